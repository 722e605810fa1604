package catalog

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/krmcat/krmcat/internal/yamlpos"
)

func at(steps ...any) []any { return steps }

func TestRewrite(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, in, want string
		edits          []Edit
	}{
		{
			name:  "image with a comment for the tag, and a digest behind it",
			in:    "a:\n- image:   fn:v1   # keep me\n  # and me\n  net: true\n",
			edits: []Edit{{at("a", 0, "image"), "h/fn@sha256:" + hexA, "v1"}, {at("a", 0, "sha256"), hexA, ""}},
			want:  "a:\n- image:   h/fn@sha256:" + hexA + " # v1   # keep me\n  sha256: " + hexA + "\n  # and me\n  net: true\n",
		},
		{
			name:  "the digest first",
			in:    "a:\n  image: fn:v1",
			edits: []Edit{{at("a", "sha256"), hexA, ""}, {at("a", "image"), "fn", "v1"}},
			want:  "a:\n  image: fn # v1\n  sha256: " + hexA,
		},
		{
			name:  "a comment that is there already",
			in:    "image: fn:v1 # v1\n",
			edits: []Edit{{at("image"), "fn:v2", "v1"}},
			want:  "image: fn:v2 # v1\n",
		},
		{
			name:  "quotes stay",
			in:    "a: 'it''s'\nb: \"x\\ty\"\n",
			edits: []Edit{{at("a"), "that's", ""}, {at("b"), `q"\`, ""}},
			want:  "a: 'that''s'\nb: \"q\\\"\\\\\"\n",
		},
		{
			name:  "values that would not be strings are quoted",
			in:    "a: x\nb: x\nc: x\nd: x\ne: x\n",
			edits: []Edit{{at("a"), "true", ""}, {at("b"), "1e5", ""}, {at("c"), "no", ""}, {at("d"), "a: b", ""}, {at("e"), "", ""}},
			want:  "a: \"true\"\nb: \"1e5\"\nc: \"no\"\nd: \"a: b\"\ne: \"\"\n",
		},
		{
			name:  "a digest that reads as a number",
			in:    "uri: x\n",
			edits: []Edit{{at("sha256"), strings.Repeat("1", 64), ""}, {at("uri"), "oci://h/r@sha256:" + hexA + "#a/README.md", ""}},
			want:  "uri: oci://h/r@sha256:" + hexA + "#a/README.md\nsha256: \"" + strings.Repeat("1", 64) + "\"\n",
		},
		{
			name:  "a script becomes a mapping",
			in:    "runtime:\n  starlark: ./x.star # the script\nusage: u\n",
			edits: []Edit{{at("runtime", "starlark"), Mapping{{Key: "uri", Value: "oci://h/r"}, {Key: "sha256", Value: hexA}}, ""}},
			want:  "runtime:\n  starlark: # the script\n    uri: oci://h/r\n    sha256: " + hexA + "\nusage: u\n",
		},
		{
			name:  "a script becomes a mapping, without comment",
			in:    "starlark: \"./x.star\"\r\nusage: u\r\n",
			edits: []Edit{{at("starlark"), Mapping{{Key: "uri", Value: "oci://h/r"}, {Key: "sha256", Value: hexA}}, "v1"}},
			want:  "starlark:\r\n  uri: oci://h/r # v1\r\n  sha256: " + hexA + "\r\nusage: u\r\n",
		},
		{
			name:  "a mapping keeps its other keys",
			in:    "starlark:\n  uri: ./x.star\n  more: 1\n",
			edits: []Edit{{at("starlark"), Mapping{{Key: "uri", Value: "oci://h/r"}, {Key: "sha256", Value: hexA}}, ""}},
			want:  "starlark:\n  uri: oci://h/r\n  sha256: " + hexA + "\n  more: 1\n",
		},
		{
			name:  "flow style",
			in:    "a: {image: fn:v1, net: true} # c\nb: {starlark: x}\n",
			edits: []Edit{{at("a", "image"), "fn@x", "v1"}, {at("a", "sha256"), hexA, ""}, {at("b", "starlark"), Mapping{{Key: "uri", Value: "u"}}, ""}},
			want:  "a: {image: fn@x, sha256: " + hexA + ", net: true} # c\nb: {starlark: {uri: u}}\n",
		},
		{
			name:  "a comment behind braces",
			in:    "a: {image: fn:v1}\n",
			edits: []Edit{{at("a", "image"), "fn", "v1"}},
			want:  "a: {image: fn} # v1\n",
		},
		{
			name:  "JSON",
			in:    "{\n  \"a\": {\n    \"image\": \"fn:v1\",\n    \"n\": 1\n  },\n  \"s\": \"x\"\n}\n",
			edits: []Edit{{at("a", "image"), "fn", "v1"}, {at("a", "sha256"), hexA, ""}, {at("s"), Mapping{{Key: "uri", Value: "u"}}, ""}},
			want:  "{\n  \"a\": {\n    \"image\": \"fn\",\n    \"sha256\": \"" + hexA + "\",\n    \"n\": 1\n  },\n  \"s\": {\"uri\": \"u\"}\n}\n",
		},
		{
			name:  "examples, a byte order mark and characters beyond ASCII",
			in:    "\uFEFFdéjà: vu\nexamples: # é\n- ./é.md\n- [nested]\n",
			edits: []Edit{{at("examples", 0), "oci://h/r#a.md", ""}},
			want:  "\uFEFFdéjà: vu\nexamples: # é\n- oci://h/r#a.md\n- [nested]\n",
		},
		{
			name:  "a key without value, null and a number",
			in:    "sha256:\nb: null\nc: 5\n",
			edits: []Edit{{at("sha256"), hexA, ""}, {at("b"), "x", ""}, {at("c"), "5", ""}},
			want:  "sha256: " + hexA + "\nb: x\nc: \"5\"\n",
		},
	} {
		got, err := Rewrite(tt.name, []byte(tt.in), tt.edits)
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		if diff := cmp.Diff(tt.want, string(got)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
		again, err := Rewrite(tt.name, got, tt.edits)
		if err != nil || (string(again) != string(got) && !strings.Contains(tt.name, "mapping")) {
			t.Errorf("%s: rewriting again gives\n%s%v", tt.name, again, err)
		}
	}
}

func TestRewriteErrors(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		in   string
		edit Edit
		want string
	}{
		{"a: [", Edit{at("a"), "x", ""}, "f.yaml:1:"},
		{"a: 1\n---\nb: 1\n", Edit{at("a"), "x", ""}, "2 documents"},
		{"a: b\n", Edit{nil, "x", ""}, "the document itself"},
		{"a: &x b\nc: *x\n", Edit{at("c"), "x", ""}, "f.yaml:2:4: c: an alias"},
		{"a: &x b\nc: *x\n", Edit{at("a"), "x", ""}, "f.yaml:1:4: a: has an anchor or a tag"},
		{"a: !!str b\n", Edit{at("a"), "x", ""}, "has an anchor or a tag"},
		{"a: |\n  b\n", Edit{at("a"), "x", ""}, "a block of lines"},
		{"a: b\n  c\n", Edit{at("a"), "x", ""}, "more than one line"},
		{"a: [b]\n", Edit{at("a"), "x", ""}, "not a scalar"},
		{"a: [b]\n", Edit{at("a", 1), "x", ""}, "no such item"},
		{"a: b\n", Edit{at("a", "b"), "x", ""}, "not a mapping"},
		{"a: b\n", Edit{at("c", "d"), "x", ""}, "f.yaml:1:1: c: not there"},
		{"a: {}\n", Edit{at("a", "b"), "x", ""}, "no value beside which to add it"},
		{"a: b\n", Edit{at("a"), 5, ""}, "a value is a string or a Mapping, not int"},
		{"a: b\n", Edit{at("a"), "x", "two\nlines"}, "one line of printable text"},
		{"a: &m\n  b: c\nd:\n  <<: *m\n", Edit{at("a", "b"), "x", ""}, "would change other values"},
	} {
		out, err := Rewrite("f.yaml", []byte(tt.in), []Edit{tt.edit})
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%q: %v, want %q", tt.in, err, tt.want)
		}
		if out != nil {
			t.Errorf("%q: bytes beside the error", tt.in)
		}
	}
	_, err := Rewrite("f.yaml", []byte("a: b\n"), []Edit{{at("a"), "x", ""}, {at("a"), "y", ""}})
	if !errors.Is(err, ErrRewrite) {
		t.Errorf("two edits of one value: %v", err)
	}
}

// FuzzRewrite checks that edits that change nothing give the same bytes, and
// that after an edit of a scalar the document has the new value there and the
// old ones everywhere else.
func FuzzRewrite(f *testing.F) {
	names, _ := filepath.Glob("testdata/kep-examples/*.yaml")
	for _, n := range names {
		data, err := os.ReadFile(n)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data, "x", "v1", 3)
	}
	for _, s := range []string{
		"a: b # c\n", "{\"a\": \"b\"}", "a: {b: c, d: [e, 'f']}\n", "- a\n- \"b\": c\n", "a:\n- b: c\r\n  d:\r\n", "? a\n: b\n", "a: \"x\\\n  y\"\n", "é: 'ü' # ä\n",
	} {
		f.Add([]byte(s), "oci://h/r@sha256:x", "", 0)
	}
	f.Fuzz(func(t *testing.T, data []byte, value, comment string, which int) {
		file, problems := yamlpos.Parse("f", data, yamlpos.Limits{})
		if len(problems) > 0 || len(file.Documents) != 1 {
			return
		}
		var scalars [][]any
		collect(file.Documents[0].Value, nil, &scalars)
		if len(scalars) == 0 {
			return
		}
		path := scalars[int(uint(which)%uint(len(scalars)))]
		same := lookup(file.Documents[0].Value, path)
		if s, ok := same.(string); ok {
			out, err := Rewrite("f", data, []Edit{{path, s, ""}})
			if err == nil && string(out) != string(data) {
				t.Fatalf("%v = %q: an edit that changes nothing gives\n%q, from\n%q", path, s, out, data)
			}
		}
		out, err := Rewrite("f", data, []Edit{{path, value, comment}})
		if err != nil {
			return
		}
		after, problems := yamlpos.Parse("f", out, yamlpos.Limits{})
		if len(problems) > 0 || len(after.Documents) != 1 {
			t.Fatalf("not valid after the edit: %v\n%q", problems, out)
		}
		if got := lookup(after.Documents[0].Value, path); got != value {
			t.Fatalf("%v = %v, want %q in\n%q", path, got, value, out)
		}
		restored, err := applied(after.Documents[0].Value, path, same)
		if err != nil || !reflect.DeepEqual(restored, file.Documents[0].Value) {
			t.Fatalf("%v: other values have changed in\n%q", path, out)
		}
	})
}

func collect(v any, path []any, out *[][]any) {
	switch v := v.(type) {
	case map[string]any:
		for _, k := range slices.Sorted(maps.Keys(v)) {
			x := v[k]
			collect(x, append(path[:len(path):len(path)], k), out)
		}
	case []any:
		for i, x := range v {
			collect(x, append(path[:len(path):len(path)], i), out)
		}
	default:
		*out = append(*out, path)
	}
}

func lookup(v any, path []any) any {
	for _, p := range path {
		switch p := p.(type) {
		case int:
			v = v.([]any)[p]
		case string:
			v = v.(map[string]any)[p]
		}
	}
	return v
}

// A key can get another name with its value, in every style.
func TestRewriteRenames(t *testing.T) {
	for in, want := range map[string]string{
		"a:\n  path: x # why\n  b: 1\n": "a:\n  uri: new # why\n  sha256: z\n  b: 1\n",
		"a: {path: x}\n":                "a: {uri: new, sha256: z}\n",
		"{\"a\": {\"path\": \"x\"}}\n":  "{\"a\": {\"uri\": \"new\", \"sha256\": \"z\"}}\n",
		"a:\n  uri: x\n":                "a:\n  uri: new\n  sha256: z\n",
		"a: x\n":                        "a:\n  uri: new\n  sha256: z\n",
	} {
		got, err := Rewrite("in.yaml", []byte(in), []Edit{{
			Path:  []any{"a"},
			Value: Mapping{{Key: "uri", Was: "path", Value: "new"}, {Key: "sha256", Value: "z"}},
		}})
		if err != nil || string(got) != want {
			t.Errorf("%q became %q, %v; want %q", in, got, err, want)
		}
	}
}
