package yamlpos_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/krmcat/krmcat/internal/yamlpos"
)

type decoded struct {
	Name   string            `json:"name"`
	Count  int               `json:"count,omitempty"`
	On     bool              `json:"on"`
	Maybe  *int              `json:"maybe"`
	When   *time.Time        `json:"when"`
	Labels map[string]string `json:"labels"`
	Items  []decodedItem     `json:"items"`
	Any    any               `json:"any"`
	hidden string
}

type decodedItem struct {
	Size int `json:"size"`
}

func TestDecode(t *testing.T) {
	t.Parallel()
	one, when := 1, time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC)
	for name, test := range map[string]struct {
		text string
		want decoded
		bad  string // problems, line:column message (fix)
	}{
		"all": {text: "name: a\ncount: 3\non: true\nmaybe: 1\nwhen: 2027-01-01T00:00:00Z\nlabels: {a/b: c}\nitems: [{size: 4}]\nany: [1]\n",
			want: decoded{Name: "a", Count: 3, On: true, Maybe: &one, When: &when, Labels: map[string]string{"a/b": "c"}, Items: []decodedItem{{4}}, Any: []any{int64(1)}}},
		"null for lists and mappings": {text: "name: a\nlabels:\nitems:\nmaybe:\nany:\n", want: decoded{Name: "a"}},
		"unknown":                     {text: "name: a\nitems:\n- sise: 1\n", bad: `3:3 unknown field "sise" (did you mean size?)`},
		"other case":                  {text: "Name: a\n", bad: `1:1 unknown field "Name" (write name)`},
		"far off":                     {text: "items: [{zzzzzzz: 1}]\n", bad: `1:10 unknown field "zzzzzzz" (the fields here are size)`},
		"hidden":                      {text: "hidden: a\n", bad: `1:1 unknown field "hidden"`},
		"number for a string":         {text: "name: 5\n", bad: "1:7 this is the number 5, not a string"},
		"string for a boolean":        {text: "on: yes\n", bad: `1:5 this is the string "yes", not true or false`},
		"string for a number":         {text: "count: '1'\n", bad: `1:8 this is the string "1", not an integer`},
		"float for a number":          {text: "count: 1.5\n", bad: "1:8 this is the number 1.5, not an integer"},
		"null for a string":           {text: "name: null\n", bad: "1:7 this is null, not a string"},
		"mapping for a list":          {text: "items: {}\n", bad: "1:8 this is a mapping, not a list"},
		"list for a mapping":          {text: "labels: []\n", bad: "1:9 this is a list, not a mapping"},
		"number in a mapping":         {text: "labels:\n  a: b\n  c: 1\n", bad: "3:6 this is the number 1, not a string"},
		"not a time":                  {text: "when: tomorrow\n", bad: `1:7 "tomorrow" cannot be read`},
		"a list":                      {text: "- a\n", bad: "1:1 this is a list, not a mapping"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, problems := yamlpos.Parse("f", []byte(test.text), yamlpos.Limits{})
			if len(problems) > 0 {
				t.Fatal(problems)
			}
			var got decoded
			var bad []string
			for _, p := range f.Documents[0].Decode(&got) {
				s := fmt.Sprintf("%d:%d %s", p.Line, p.Column, p.Message)
				if p.Fix != "" {
					s += " (" + p.Fix + ")"
				}
				bad = append(bad, s)
			}
			if all := strings.Join(bad, "\n"); test.bad == "" && all != "" || !strings.HasPrefix(all, test.bad) {
				t.Errorf("got problems %q, want %q", all, test.bad)
			}
			if test.bad == "" {
				if d := cmp.Diff(test.want, got, cmp.AllowUnexported(decoded{})); d != "" {
					t.Error(d)
				}
			}
		})
	}
}

func TestDecodeAt(t *testing.T) {
	t.Parallel()
	f, _ := yamlpos.Parse("f", []byte("a:\n- {size: 1}\n- {size: x}\nb: 1\n"), yamlpos.Limits{})
	d := f.Documents[0]
	var item decodedItem
	if ps := d.DecodeAt([]string{"a", "0"}, &item); len(ps) > 0 || item.Size != 1 {
		t.Errorf("got %v, %v", item, ps)
	}
	if ps := d.DecodeAt([]string{"a", "1"}, &item); len(ps) != 1 || ps[0].Line != 3 || ps[0].Column != 10 {
		t.Errorf("got %v", ps)
	}
	for _, path := range [][]string{{"c"}, {"a", "2"}, {"a", "x"}, {"a", "-1"}, {"b", "c"}} {
		if ps := d.DecodeAt(path, &item); ps != nil {
			t.Errorf("%v: got %v", path, ps)
		}
	}
}
