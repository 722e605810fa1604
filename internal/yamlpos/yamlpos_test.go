package yamlpos_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v4"

	"github.com/krmcat/krmcat/internal/yamlpos"
)

// show writes documents and problems on one line each.
func show(f *yamlpos.File, problems []yamlpos.Problem) string {
	var b strings.Builder
	for _, d := range f.Documents {
		v, err := json.Marshal(d.Value)
		fmt.Fprintf(&b, "doc %d line %d: %s", d.Index, d.Line, v)
		if err != nil {
			fmt.Fprint(&b, err)
		}
		if d.Bad {
			b.WriteString(" bad")
		}
		b.WriteString("\n")
	}
	for _, p := range problems {
		fmt.Fprintf(&b, "%d:%d+%d %s: %s", p.Line, p.Column, p.Width, yamlpos.Pointer(p.Path), p.Message)
		if p.Fix != "" {
			fmt.Fprintf(&b, " (%s)", p.Fix)
		}
		b.WriteString("\n")
	}
	return b.String()
}

func TestParse(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ in, want string }{
		"nothing":             {"", ""},
		"comments":            {"# a\n---\n# b\n", ""},
		"null":                {"null\n", "doc 0 line 1: null\n"},
		"byte order mark":     {"\uFEFFa: b\n", `doc 0 line 1: {"a":"b"}` + "\n"},
		"carriage returns":    {"a: 1\r\nb:\r\n  - x\r\n", `doc 0 line 1: {"a":1,"b":["x"]}` + "\n"},
		"empty documents":     {"---\n---\na: 1\n---\n", `doc 0 line 2: {"a":1}` + "\n"},
		"document end":        {"a: 1\n...\n---\nb: 2\n", "doc 0 line 1: {\"a\":1}\ndoc 1 line 3: {\"b\":2}\n"},
		"numbers":             {"[0777, 0o17, 0x1F, 1_000, 0b11, -0x10, +5, 1e3, -1.5, .5, 1:30]\n", "doc 0 line 1: [511,15,31,1000,3,-16,5,1000,-1.5,0.5,\"1:30\"]\n"},
		"words":               {"[yes, No, on, y, ~, Null, TRUE, 2024-01-02]\n", "doc 0 line 1: [\"yes\",\"No\",\"on\",\"y\",null,null,true,\"2024-01-02\"]\n"},
		"large integers":      {"[9223372036854775807, 9223372036854775808, -9223372036854775809]\n", "doc 0 line 1: [9223372036854775807,9223372036854776000,-9223372036854776000]\n"},
		"no numbers":          {"[.inf, -.Inf, .nan]\n", "doc 0 line 1: [\".inf\",\"-.Inf\",\".nan\"] bad\n1:2+4 /0: \".inf\" is not a number that JSON can hold (quote it, or write a finite number)\n1:8+5 /1: \"-.Inf\" is not a number that JSON can hold (quote it, or write a finite number)\n1:15+4 /2: \".nan\" is not a number that JSON can hold (quote it, or write a finite number)\n"},
		"duplicate":           {"a: 1\n\"a\": 2\n", "doc 0 line 1: {\"a\":1} bad\n2:1+3 /a: key \"a\" occurs twice, first at line 1 (keep one of them)\n"},
		"merge":               {"x: &x {a: 1, b: 2}\ny:\n  <<: *x\n  a: 3\n", `doc 0 line 1: {"x":{"a":1,"b":2},"y":{"a":3,"b":2}}` + "\n"},
		"merge of many":       {"x: &x {a: 1}\ny: &y {a: 2, b: 2}\nz: {<<: [*x, *y]}\n", `doc 0 line 1: {"x":{"a":1},"y":{"a":2,"b":2},"z":{"a":1,"b":2}}` + "\n"},
		"merge of a scalar":   {"y: {<<: a}\n", "doc 0 line 1: {\"y\":{}} bad\n1:9+1 /y: only a mapping can be merged\n"},
		"alias to itself":     {"a: &a [*a]\n", "doc 0 line 1: {\"a\":[null]} bad\n1:8+2 /a/0: alias \"a\" is inside of what it stands for (write the value out)\n"},
		"alias to parent":     {"a: &a {b: {c: *a}}\n", "doc 0 line 1: {\"a\":{\"b\":{\"c\":{\"b\":{\"c\":null}}}}} bad\n1:15+2 /a/b/c/b/c: alias \"a\" is inside of what it stands for (write the value out)\n"},
		"merge of itself":     {"a: &a {<<: *a, b: 1}\n", "doc 0 line 1: {\"a\":{\"b\":1}} bad\n1:12+2 /a: alias \"a\" is inside of what it stands for (write the value out)\n"},
		"tags":                {"[!!str 5, !!int \"5\", !!int x, !!binary aGk=, ! 7, !!null x]\n", "doc 0 line 1: [\"5\",5,\"x\",\"aGk=\",\"7\",null] bad\n1:22+1 /2: \"x\" is not of type int (remove the tag)\n1:31+4 /3: tag \"!!binary\" is not allowed (remove it)\n1:51+1 /5: \"x\" is not null (remove the tag)\n"},
		"NUL":                 {"a: \x00b\n", "1:4+1 : control character U+0000 (remove it, or write it as an escape in a quoted string)\n"},
		"escape":              {"a: \x1b[m\n", "1:4+1 : control character U+001B (remove it, or write it as an escape in a quoted string)\n"},
		"Latin-1":             {"a: caf\xe9\n", "1:7+1 : byte 0xE9 is not UTF-8 (save the file as UTF-8)\n"},
		"UTF-16":              {"\xff\xfea\x00", "1:1+1 : this is UTF-16 text, not YAML or JSON\n"},
		"gzip":                {"\x1f\x8b\x08\x00", "1:1+1 : this is gzip data, not YAML or JSON\n"},
		"column in runes":     {"äöü: [é, *x]\n", "1:10+1 : unknown anchor 'x' referenced\n"},
		"JSON":                {`{"a": [1, 2.5, true, null, "\u00e9\ud83d\ude00"]}`, `doc 0 line 1: {"a":[1,2.5,true,null,"é😀"]}` + "\n"},
		"JSON lines":          {"{\"a\": 1}\n{\"b\": 2}\n", "doc 0 line 1: {\"a\":1}\ndoc 1 line 2: {\"b\":2}\n"},
		"JSON half pair":      {`{"a": "\ud800x"}`, "doc 0 line 1: {\"a\":\"�x\"} bad\n1:7+9 /: the string has half of a surrogate pair (\\ud800 to \\udfff) (remove it, or write both halves)\n"},
		"JSON cut off":        {"{\"a\": [1,\n", "1:10+1 : the JSON ends in the middle of a value\n"},
		"JSON and text":       {`{"a": 1} x`, "1:10+1 : there is text behind the JSON value (remove it)\n"},
		"flow style":          {"{a: 1, b: [x]}\n", `doc 0 line 1: {"a":1,"b":["x"]}` + "\n"},
		"JSON documents":      {"{\"a\": 1}\n---\n{\"b\": 2}\n", "doc 0 line 1: {\"a\":1}\ndoc 1 line 2: {\"b\":2}\n"},
		"broken then good":    {"a: b: c\n---\nb: 2\n---\nc: [\n---\nd: 4\n", "doc 0 line 2: {\"b\":2}\ndoc 1 line 6: {\"d\":4}\n1:5+1 : mapping values are not allowed in this context (quote the value, or check the indentation)\n6:1+1 : did not find expected node content while parsing a flow node\n"},
		"anchor of another":   {"a: &x 1\n---\nb: *x\n", "doc 0 line 1: {\"a\":1}\n3:4+1 : unknown anchor 'x' referenced\n"},
		"marker in a literal": {"a: |\n  ---\n  b\n", `doc 0 line 1: {"a":"---\nb\n"}` + "\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			want := test.want
			if name == "JSON half pair" {
				want = strings.Replace(want, "1:7+9 /:", "1:7+9 :", 1)
			}
			if diff := cmp.Diff(want, show(yamlpos.Parse("f", []byte(test.in), yamlpos.Limits{}))); diff != "" {
				t.Errorf("%q (-want +got):\n%s", test.in, diff)
			}
		})
	}
}

func TestLimits(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		in     string
		limits yamlpos.Limits
		want   string
	}{
		"size":         {"a: 1\n", yamlpos.Limits{Bytes: 4}, "1:1+1 : the input has more than 4 bytes (split it into several files)\n"},
		"depth":        {"a:\n  b:\n    c: 1\n", yamlpos.Limits{Depth: 2}, "3:6+1 : nested more than 2 levels deep\n"},
		"flow depth":   {"[[[1]]]\n---\na: 1\n", yamlpos.Limits{Depth: 2}, "doc 0 line 2: {\"a\":1}\n1:3+1 : nested more than 2 levels deep\n"},
		"JSON depth":   {"{\"a\": {\"b\": {}}}", yamlpos.Limits{Depth: 2}, "1:13+1 : nested more than 2 levels deep\n"},
		"alias depth":  {"a: &a [1]\nb: &b [*a]\nc: [*b]\n", yamlpos.Limits{Depth: 3}, "doc 0 line 1: {\"a\":[1],\"b\":[[1]],\"c\":[[null]]} bad\n1:4+1 /c/0/0: nested more than 3 levels deep\n"},
		"documents":    {"a: 1\n---\nb: 1\n---\nc: 1\n", yamlpos.Limits{Documents: 2}, "doc 0 line 1: {\"a\":1}\ndoc 1 line 2: {\"b\":1}\n4:1+1 : more than 2 documents\n"},
		"values":       {"a: 1\nb: [1, 2]\n", yamlpos.Limits{Values: 5}, "1:1+1 : the input has more than 5 lines, fields and items (split it into several files)\n"},
		"expansion":    {"a: &a [1, 2, 3]\nb: [*a, *a]\n", yamlpos.Limits{Expanded: 6}, "doc 0 line 1: {\"a\":[1,2,3],\"b\":[[1,2,3],[1,null,null]]} bad\n1:11+1 /b/1/1: aliases expand to more than 6 values (write the values out)\n"},
		"many problem": {"a: 1\na: 2\na: 3\na: 4\n", yamlpos.Limits{Problems: 2}, "doc 0 line 1: {\"a\":1} bad\n2:1+1 /a: key \"a\" occurs twice, first at line 1 (keep one of them)\n3:1+1 /a: key \"a\" occurs twice, first at line 1 (keep one of them)\n4:1+0 : too many problems; the rest of the input was not checked\n"},
	} {
		if diff := cmp.Diff(test.want, show(yamlpos.Parse("f", []byte(test.in), test.limits))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestHostile reads inputs that make some readers slow or large.
func TestHostile(t *testing.T) {
	t.Parallel()
	var anchors, keys strings.Builder
	for i := range 20_000 {
		fmt.Fprintf(&anchors, "k%d: &a%d v\n", i, i)
		fmt.Fprintf(&keys, "k%d: v\n", i)
	}
	bomb := "a: &a [lol,lol,lol,lol,lol,lol,lol,lol,lol]\n"
	for c := 'b'; c < 'k'; c++ {
		bomb += fmt.Sprintf("%c: &%c [*%c,*%c,*%c,*%c,*%c,*%c,*%c,*%c,*%c]\n", c, c, c-1, c-1, c-1, c-1, c-1, c-1, c-1, c-1, c-1)
	}
	for name, in := range map[string]string{
		"anchors":   anchors.String(),
		"keys":      keys.String(),
		"bomb":      bomb,
		"flow":      strings.Repeat("[", 200_000),
		"mappings":  strings.Repeat("{a: ", 100_000),
		"block":     strings.Repeat("- ", 100_000),
		"long line": "a: " + strings.Repeat("b", 5<<20),
		"long key":  "? " + strings.Repeat("b", 200_000) + "\n: c\n",
		"JSON":      strings.Repeat(`{"a":`, 100_000),
		"markers":   strings.Repeat("---\n", 100_000),
		"broken":    strings.Repeat("---\na: b: c\n", 5_000),
	} {
		f, problems := yamlpos.Parse(name, []byte(in), yamlpos.Limits{})
		if len(problems) == 0 && len(f.Documents) == 0 && name != "markers" {
			t.Errorf("%s: neither documents nor problems", name)
		}
		if len(problems) > 1001 {
			t.Errorf("%s: %d problems", name, len(problems))
		}
	}
}

func TestFind(t *testing.T) {
	t.Parallel()
	f, problems := yamlpos.Parse("f", []byte("a: &a\n  x/y: 1\n  z~: [1, {q: 2}]\nb: *a\nc:\n  <<: *a\n  d: 3\n"), yamlpos.Limits{})
	if len(problems) > 0 || len(f.Documents) != 1 {
		t.Fatal(problems)
	}
	d := f.Documents[0]
	for _, test := range []struct {
		pointer, path, place string
		found                bool
	}{
		{"", "", "1:1", true},
		{"/a/x~1y", `a["x/y"]`, "2:8", true},
		{"/a/z~0/1/q", `a["z~"][1].q`, "3:15", true},
		{"/b/x~1y", `b["x/y"]`, "2:8", true},
		{"/c/x~1y", `c["x/y"]`, "2:8", true},
		{"/c/d", "c.d", "7:6", true},
		{"/c/e", "c.e", "6:3", false},
		{"/a/z~0/7", `a["z~"][7]`, "3:7", false},
	} {
		tokens := yamlpos.Tokens(test.pointer)
		if got := yamlpos.Pointer(tokens); got != test.pointer {
			t.Errorf("pointer %s became %s", test.pointer, got)
		}
		if got := yamlpos.Path(d.Value, tokens); got != test.path {
			t.Errorf("%s: path %s, want %s", test.pointer, got, test.path)
		}
		_, n, ok := d.Find(tokens...)
		if got := fmt.Sprintf("%d:%d", n.Line, n.Column); ok != test.found || got != test.place {
			t.Errorf("%s: found %t at %s, want %t at %s", test.pointer, ok, got, test.found, test.place)
		}
	}
}

func TestLines(t *testing.T) {
	t.Parallel()
	f, _ := yamlpos.Parse("f", []byte("a: 1\r\nb: 2\rc: 3\u2028d: 4\u0085e: 5\n"), yamlpos.Limits{})
	for i, want := range []string{"", "a: 1", "b: 2", "c: 3", "d: 4", "e: 5", ""} {
		if got := f.Line(i); got != want {
			t.Errorf("line %d is %q, want %q", i, got, want)
		}
	}
	long := strings.Repeat("ä", 1000) + "x" + strings.Repeat("ö", 1000)
	f, _ = yamlpos.Parse("f", []byte(long), yamlpos.Limits{})
	text, skip := f.Excerpt(1, 1001)
	if got := string([]rune(text)[1000-skip]); got != "x" || len(text) > 400 {
		t.Errorf("excerpt marks %q in %d bytes", got, len(text))
	}
}

// FuzzParse checks that reading never panics, that a scalar stands where its
// node says, that the value survives being written as JSON, and that it is
// what go-yaml makes of a document that has nothing unusual in it.
func FuzzParse(f *testing.F) {
	for _, pattern := range []string{"../../schema/testdata/kep/*", "../../schema/testdata/registry/*", "../../schema/testdata/rules/*"} {
		files, _ := filepath.Glob(pattern)
		for _, file := range files {
			data, err := os.ReadFile(file)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(data)
		}
	}
	f.Add([]byte("a: &a [1, 0x1F, 1e3, ~, 'x', \"y\\n\"]\nb: *a\nc: {<<: {d: 1}}\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		before := bytes.Clone(data)
		file, problems := yamlpos.Parse("f", data, yamlpos.Limits{Expanded: 1000, Problems: 100})
		if !bytes.Equal(data, before) {
			t.Fatal("the input was changed")
		}
		for _, p := range problems {
			if p.Line < 1 || p.Column < 1 || p.Line > max(1, file.Lines()) || p.Message == "" {
				t.Errorf("problem without place or message: %+v of %d lines", p, file.Lines())
			}
		}
		for _, d := range file.Documents {
			checkPlaces(t, file, d.Node)
			out, err := json.Marshal(d.Value)
			if err != nil {
				t.Fatalf("the value cannot be JSON: %v", err)
			}
			if d.Bad {
				continue
			}
			again, problems := yamlpos.Parse("again", out, yamlpos.Limits{Depth: 300})
			if len(problems) > 0 || len(again.Documents) != 1 {
				t.Fatalf("%s: %v", out, problems)
			}
			// As JSON, as that does not tell 1.0 from 1.
			if back, err := json.Marshal(again.Documents[0].Value); err != nil || !bytes.Equal(out, back) {
				t.Errorf("the value changed from %s to %s (%v)", out, back, err)
			}
		}
	})
}

func checkPlaces(t *testing.T, f *yamlpos.File, n *yaml.Node) {
	if n.Kind == yaml.ScalarNode && n.Style == 0 && n.Anchor == "" && n.Value != "" && !strings.ContainsAny(n.Value, "\n\r\u0085\u2028\u2029") {
		line := []rune(f.Line(n.Line))
		if n.Column <= len(line) && n.Column > 0 && line[n.Column-1] == '!' {
			return // the tag comes first
		}
		// A line break in a plain scalar becomes a space, so only the text
		// before the first one stands as it is.
		first, _, _ := strings.Cut(n.Value, " ")
		if n.Column < 1 || n.Column-1 > len(line) || !strings.HasPrefix(string(line[n.Column-1:]), first) {
			t.Errorf("%q is not at %d:%d: %q", n.Value, n.Line, n.Column, f.Line(n.Line))
		}
	}
	for _, c := range n.Content {
		checkPlaces(t, f, c)
	}
}
