package fastyaml_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/krmcat/krmcat/internal/yamlpos"
	"github.com/krmcat/krmcat/schema/internal/fastyaml"
)

// agree checks a text that the fast reader takes against the slow one.
func agree(t *testing.T, text string) bool {
	t.Helper()
	docs, ok := fastyaml.Documents(text)
	if !ok {
		return false
	}
	f, problems := yamlpos.Parse("f", []byte(text), yamlpos.Limits{})
	if len(problems) > 0 {
		t.Fatalf("%q: taken as %v, but %v", text, docs, problems)
	}
	var want []any
	for _, d := range f.Documents {
		want = append(want, d.Value)
		if len(d.Aliases) > 0 {
			t.Errorf("%q: taken with aliases", text)
		}
	}
	if diff := cmp.Diff(want, docs); diff != "" {
		t.Fatalf("%q (-slow +fast):\n%s", text, diff)
	}
	return true
}

func TestDocuments(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"", "# a\n", "---\n", "a: 1\n", "a: b", "a:\n  b: c\n  d:\n  - e\n  - f: g\n    h: i\n  -\n    j: k\n",
		"a: |\n  x\n    y\n\n  z\nb: |-\n  x\n", "a: \"b\\n\\\"c\\\" \\\\\"\nb: 'it''s' # c\n", "a: one\n  two\n\n  three\nb: 1\n",
		"- - a\n  - b\n- c\n", "a: []\nb: {}\n", "a: 1.5\nb: -3\nc: 1.2.3\nd: 2024-01-02\ne: 0b5f\n", "a: true\nb: null\nc:\nd: x\n",
		"---\na: 1\n---\nb: 2\n---\n", "\"a b\": 'c'\n'd': e\n", "a: http://x/y:z#w # c\n", "größe: ä\n",
		"a: >\n  b\n  c\n\n  d\ne: >-\n  f\n", "a: [b, 'c', \"d\", [1, {e: f, \"g\": []}]] # h\nb: {}\n", "- {a: http://b:c}\n",
	} {
		if !agree(t, text) {
			t.Errorf("%q is not taken", text)
		}
	}
	// What has more than one reading, or needs more of YAML, is for the other
	// reader.
	for _, text := range []string{
		"a: *b\n", "a: &b c\n", "a: !!str b\n", "a: yes\n", "on: b\n", "a: 0777\n", "a: 1_000\n", "a: .inf\n", "a: 1e3\n", "a: 0x1F\n",
		"a: >\n  b\n   c\n", "a: [b\n  ]\n", "a: [b, ]\n", "a: {b}\n", "a: [b: c]\n", "a: {b:c}\n", "a: [yes]\n", "a: {b: 1, b: 2}\n", "a\tb: c\n", "a: b\r\n", "a: 1\na: 2\n", "a: b: c\n", "a\n", "- a\nb: c\n", "a:\n  b: 1\n c: 2\n",
		"? a\n: b\n", "1: a\n", "<<: b\n", "a: |\n\n  b\n", "a: |\n  b", "%YAML 1.2\n---\na: b\n", "\ufeffa: b\n", "a: \x01\n", "a: \xff\n", "a: ~\n",
		"a: b\n...\n", "--- a\n", "a: 'b\n  c'\n",
	} {
		if docs, ok := fastyaml.Documents(text); ok {
			t.Errorf("%q is taken as %v", text, docs)
		}
	}
}

// FuzzDocuments checks that what the fast reader takes means the same to the
// slow one.
func FuzzDocuments(f *testing.F) {
	for _, pattern := range []string{"../../testdata/kep/*", "../../testdata/registry/*", "../../testdata/rules/*", "../../testdata/format/*", "../../openapi/testdata/cases/*"} {
		files, _ := filepath.Glob(pattern)
		for _, file := range files {
			data, err := os.ReadFile(file)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(string(data))
		}
	}
	f.Add("a: |\n  x\n    y\n\n  z\nb: |-\n  x\n- - 'it''s'\nc: one\n  two\n\n  three # d\n\"e f\": 1.2.3\n")
	f.Fuzz(func(t *testing.T, text string) { agree(t, text) })
}
