package resourcelist

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
	"golang.org/x/tools/txtar"
)

var update = flag.Bool("update", false, "rewrite the expected output in testdata")

const service = `# the web service
apiVersion: v1
kind: Service
metadata:
  name: web
  # where it runs
  namespace: shop
spec: # Example comment
  ports:
    - port: 80
      protocol:   TCP

    - {port: 443, name: "https"}
`

func doc(t *testing.T, text, path string, index int) *Item {
	t.Helper()
	it, err := FromDocument([]byte(text), path, index)
	if err != nil {
		t.Fatal(err)
	}
	return it
}

// Composing and reading back gives the same items, pointers included, and the
// same bytes (FS-10 to FS-15).
func TestRoundTrip(t *testing.T) {
	items := []*Item{
		doc(t, service, "a/web.yaml", 0),
		doc(t, "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: c\ndata:\n  script: |\n    #!/bin/sh\n    # not a comment\n\n    echo hi\n", "a/web.yaml", 1),
		doc(t, `{"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "j"}}`, "j.json.yaml", 0),
	}
	config := []byte("# how\napiVersion: example.com/v1\nkind: Config\nspec:\n  n: 1 # one\n")
	text, err := Compose(&List{Items: items, FunctionConfig: config})
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := split(text); !ok {
		t.Errorf("what Compose writes needs a whole parse:\n%s", text)
	}
	l, err := Read(text, ReadOptions{Before: items, FromFunction: true})
	if err != nil {
		t.Fatal(err)
	}
	if len(l.Items) != len(items) {
		t.Fatalf("got %d items, want %d", len(l.Items), len(items))
	}
	for i := range items {
		if l.Items[i] != items[i] {
			t.Errorf("item %d is another one:\n%s", i, l.Items[i].Wire())
		}
	}
	again, err := Compose(&List{Items: l.Items, FunctionConfig: l.FunctionConfig})
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(text), string(again)); d != "" {
		t.Errorf("second round (-first +second):\n%s", d)
	}
	if got := items[0].Meta(); got.Path != "a/web.yaml" || got.Index != 0 || got.Namespace != "shop" {
		t.Errorf("meta = %+v", got)
	}
	// Both spellings are set (CF-32, CF-36, FS-37).
	a, err := items[1].Annotations()
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{PathAnnotation: "a/web.yaml", LegacyPathAnnotation: "a/web.yaml", IndexAnnotation: "1", LegacyIndexAnnotation: "1"}
	if d := cmp.Diff(want, a); d != "" {
		t.Error(d)
	}
}

// What cannot be a ResourceList is refused with an error that says why (FS-06,
// FS-12, FS-28, FS-31).
func TestReadErrors(t *testing.T) {
	const head = "apiVersion: config.kubernetes.io/v1\nkind: ResourceList\n"
	for _, tt := range []struct {
		name, in string
		is       error
		text     string
	}{
		{"empty", "", ErrEmpty, "empty"},
		{"blank", " \n\n", ErrEmpty, "empty"},
		{"comment only", "# nothing\n", ErrEmpty, "empty"},
		{"log line", "starting up\n" + head + "items: []\n", nil, "line 2"},
		{"log after", head + "items: []\ndone\n", nil, "line"},
		{"two documents", head + "items: []\n---\n" + head + "items: []\n", ErrNotResourceList, "more than one document"},
		{"other kind", "apiVersion: v1\nkind: List\nitems: []\n", ErrNotResourceList, "kind List"},
		{"no kind", "items: []\n", ErrNotResourceList, "no kind"},
		{"bare resource", "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: x}\n", ErrNotResourceList, "kind Deployment"},
		{"other version", "apiVersion: foo/v9\nkind: ResourceList\nitems: []\n", ErrNotResourceList, "foo/v9"},
		{"scalar", "hello\n", ErrNotResourceList, "a scalar"},
		{"items not a list", head + "items: {a: b}\n", ErrNotResourceList, "items is a mapping"},
		{"items nested map", head + "items:\n  a: b\n", ErrNotResourceList, "items is a mapping"},
		{"item not an object", head + "items:\n- 1\n", ErrItem, "items[0] (line 4)"},
		{"item without kind", head + "items:\n- apiVersion: v1\n  metadata: {name: a}\n", ErrItem, "has no kind"},
		{"name is a list", head + "items:\n- apiVersion: v1\n  kind: A\n  metadata: {name: [a]}\n", ErrItem, "metadata.name is a list"},
		{"annotations a list", head + "items:\n- apiVersion: v1\n  kind: A\n  metadata: {name: a, annotations: [x]}\n", ErrItem, "annotations is a list"},
		{"index", head + "items:\n- apiVersion: v1\n  kind: A\n  metadata: {name: a, annotations: {internal.config.kubernetes.io/index: x}}\n", ErrItem, "not a number"},
		{"contradiction", head + "items:\n- apiVersion: v1\n  kind: A\n  metadata: {name: a, annotations: {internal.config.kubernetes.io/path: x, config.kubernetes.io/path: y}}\n", ErrConflict, "x"},
		{"half a document", head + "items:\n- apiVersion: v1\n  kind: \"Depl", nil, "line 5: found unexpected end"},
		{"utf8", head + "items:\n- apiVersion: v1\n  kind: \xff\n", nil, "line 5: not valid UTF-8"},
		{"functionConfig", head + "items: []\nfunctionConfig: 1\n", ErrNotResourceList, "functionConfig is a scalar"},
		{"results", head + "items: []\nresults: 1\n", ErrNotResourceList, "results is a scalar"},
		{"severity", head + "items: []\nresults:\n- {message: a, severity: bad}\n", ErrNotResourceList, `severity is "bad"`},
		{"twice", head + "items: []\nitems: []\n", nil, "items"},
		{"billion laughs", head + "items:\n- &a {apiVersion: v1, kind: A, x: [1,2,3,4,5,6,7,8,9]}\n" + laughs(12), nil, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Read([]byte(tt.in), ReadOptions{})
			if err == nil {
				t.Fatal("no error")
			}
			if tt.is != nil && !errors.Is(err, tt.is) {
				t.Errorf("got %v, want one that is %v", err, tt.is)
			}
			if !strings.Contains(err.Error(), tt.text) {
				t.Errorf("got %q, want %q in it", err, tt.text)
			}
		})
	}
}

func laughs(n int) string {
	var b strings.Builder
	prev := "a"
	for i := range n {
		name := fmt.Sprintf("n%d", i)
		fmt.Fprintf(&b, "- &%s {apiVersion: v1, kind: A, x: [*%s,*%s,*%s,*%s,*%s]}\n", name, prev, prev, prev, prev, prev)
		prev = name
	}
	return b.String()
}

// Other ways to write a list give the same items (FS-11, FS-28, CF-14).
func TestReadShapes(t *testing.T) {
	for name, in := range map[string]string{
		"wide":         "apiVersion: config.kubernetes.io/v1\nkind: ResourceList\nitems:\n  - apiVersion: v1\n    kind: A\n    metadata:\n      name: a\n  - apiVersion: v1\n    kind: B\n    metadata:\n      name: b\n",
		"json":         `{"apiVersion":"config.kubernetes.io/v1beta1","kind":"ResourceList","items":[{"apiVersion":"v1","kind":"A","metadata":{"name":"a"}},{"apiVersion":"v1","kind":"B","metadata":{"name":"b"}}]}`,
		"v1alpha1":     "kind: ResourceList\napiVersion: config.kubernetes.io/v1alpha1\nitems:\n-   apiVersion: v1\n    kind: A\n    metadata:\n        name: a\n-\n  apiVersion: v1\n  kind: B\n  metadata: {name: b}\n",
		"crlf":         "apiVersion: config.kubernetes.io/v1\r\nkind: ResourceList\r\nitems:\r\n- apiVersion: v1\r\n  kind: A\r\n  metadata: {name: a}\r\n- apiVersion: v1\r\n  kind: B\r\n  metadata: {name: b}\r\n",
		"marker":       "---\napiVersion: config.kubernetes.io/v1\nkind: ResourceList\nitems:\n- apiVersion: v1\n  kind: A\n  metadata: {name: a}\n- apiVersion: v1\n  kind: B\n  metadata: {name: b}\n",
		"bom":          "\ufeffapiVersion: config.kubernetes.io/v1\nkind: ResourceList\nitems: [{apiVersion: v1, kind: A, metadata: {name: a}}, {apiVersion: v1, kind: B, metadata: {name: b}}]",
		"aliases":      "apiVersion: config.kubernetes.io/v1\nkind: ResourceList\nitems:\n- apiVersion: &v v1\n  kind: A\n  metadata: {name: a}\n- apiVersion: *v\n  kind: B\n  metadata: {name: b}\n",
		"quoted lines": "apiVersion: config.kubernetes.io/v1\nkind: ResourceList\nitems:\n- apiVersion: v1\n  kind: A\n  metadata: {name: a}\n  x: \"one\n- two: three\nkind: four\"\n- apiVersion: v1\n  kind: B\n  metadata: {name: b}\n",
	} {
		t.Run(name, func(t *testing.T) {
			l, err := Read([]byte(in), ReadOptions{})
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, it := range l.Items {
				got = append(got, it.Meta().ID())
			}
			if d := cmp.Diff([]string{"v1/A a", "v1/B b"}, got); d != "" {
				t.Error(d)
			}
			if !l.HasItems {
				t.Error("HasItems is false")
			}
		})
	}
}

// Results of both shapes are read (FS-16 to FS-26, KG-20 to KG-28).
func TestResults(t *testing.T) {
	const in = `apiVersion: config.kubernetes.io/v1
kind: ResourceList
items: []
results:
- message: bad
  resourceRef: {apiVersion: v1, kind: A, name: a}
  field: {path: spec.n, currentValue: 1, proposedValue: [2]}
  file: {path: a.yaml, index: 2}
  tags: {k: v}
- name: older
  items:
  - {message: hm, severity: warn, field: {path: x, suggestedValue: "2"}}
`
	l, err := Read([]byte(in), ReadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	want := []Result{
		{Message: "bad", Severity: "error", ResourceRef: &ResourceRef{APIVersion: "v1", Kind: "A", Name: "a"}, Field: &Field{Path: "spec.n", CurrentValue: 1, ProposedValue: []any{2}}, File: &File{Path: "a.yaml", Index: 2}, Tags: map[string]string{"k": "v"}},
		{Message: "hm", Severity: "warning", Field: &Field{Path: "x", ProposedValue: "2"}},
	}
	if d := cmp.Diff(want, l.Results); d != "" {
		t.Error(d)
	}
	if !l.LegacyResults || !HasErrors(l.Results) {
		t.Errorf("legacy %v, errors %v", l.LegacyResults, HasErrors(l.Results))
	}
	if got, want := want[0].Text(), "[error] v1/A a spec.n: bad (a.yaml)"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// The spelling that a function changed wins, and both are in step afterwards.
func TestOriginInStep(t *testing.T) {
	before := []*Item{doc(t, service, "a.yaml", 3)}
	wire := string(before[0].Wire())
	for _, tt := range []struct {
		name, from, to, path string
		index                int
		err                  error
	}{
		{name: "new spelling", from: InternalPrefix + "path: a.yaml", to: InternalPrefix + "path: b.yaml", path: "b.yaml", index: 3},
		{name: "older spelling", from: " config.kubernetes.io/path: a.yaml", to: " config.kubernetes.io/path: b.yaml", path: "b.yaml", index: 3},
		{name: "older index", from: " config.kubernetes.io/index: '3'", to: " config.kubernetes.io/index: '0'", path: "a.yaml", index: 0},
		{name: "removed", from: "    " + InternalPrefix + "path: a.yaml\n  ", to: "", path: "a.yaml", index: 3},
		{name: "both, differently", from: InternalPrefix + "path: a.yaml\n      config.kubernetes.io/index: '3'\n      config.kubernetes.io/path: a.yaml", to: InternalPrefix + "path: b.yaml\n      config.kubernetes.io/path: c.yaml", err: ErrConflict},
	} {
		t.Run(tt.name, func(t *testing.T) {
			changed := strings.Replace(wire, tt.from, tt.to, 1)
			if changed == wire {
				t.Fatalf("nothing replaced in:\n%s", wire)
			}
			l, err := Read([]byte("apiVersion: config.kubernetes.io/v1\nkind: ResourceList\nitems:\n"+changed), ReadOptions{Before: before, FromFunction: true})
			if !errors.Is(err, tt.err) {
				t.Fatalf("got error %v, want %v", err, tt.err)
			}
			if err != nil {
				return
			}
			it := l.Items[0]
			if m := it.Meta(); m.Path != tt.path || m.Index != tt.index {
				t.Errorf("got %s %d, want %s %d", m.Path, m.Index, tt.path, tt.index)
			}
			if it.Prev() != before[0] || it.Origin() != before[0] {
				t.Error("the item does not know what it was")
			}
			a, err := it.Annotations()
			if err != nil {
				t.Fatal(err)
			}
			if a[PathAnnotation] != a[LegacyPathAnnotation] || a[IndexAnnotation] != a[LegacyIndexAnnotation] {
				t.Errorf("not in step: %v", a)
			}
		})
	}
}

func TestCheckPath(t *testing.T) {
	for _, p := range []string{"a.yaml", "a/b c.yaml", "..a/b", "a/..b"} {
		if err := CheckPath(p); err != nil {
			t.Errorf("%q: %v", p, err)
		}
	}
	for _, p := range []string{"", ".", "..", "../a", "/a", "a/../../b", "a//b", "./a", "a/", `a\b`, "C:/a", "a\x00b"} {
		if CheckPath(p) == nil {
			t.Errorf("%q: no error", p)
		}
	}
}

// Each case in testdata/preserve has a document, what a function made of it,
// and the document as it is written. -update rewrites the last.
func TestPreserve(t *testing.T) {
	files, err := filepath.Glob("testdata/preserve/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatal("no cases", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			ar, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			part := func(name string) []byte {
				for _, f := range ar.Files {
					if f.Name == name {
						return f.Data
					}
				}
				return nil
			}
			it, err := FromDocument(part("function.yaml"), "", 0)
			if err != nil {
				t.Fatal(err)
			}
			got, err := Preserve(part("before.yaml"), it)
			if err != nil {
				t.Fatal(err)
			}
			if *update {
				kept := ar.Files[:0]
				for _, f := range ar.Files {
					if f.Name != "after.yaml" {
						kept = append(kept, f)
					}
				}
				ar.Files = append(kept, txtar.File{Name: "after.yaml", Data: got})
				if err := os.WriteFile(file, txtar.Format(ar), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if d := cmp.Diff(string(part("after.yaml")), string(got)); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}

func TestPreserveLineEnds(t *testing.T) {
	before := "\ufeffapiVersion: v1\r\nkind: A\r\nmetadata:\r\n  name: a # keep\r\nx: 1\r\n"
	it := doc(t, "apiVersion: v1\nkind: A\nmetadata: {name: a}\nx: 2\ny: 3\n", "", 0)
	got, err := Preserve([]byte(before), it)
	if err != nil {
		t.Fatal(err)
	}
	want := "\ufeffapiVersion: v1\r\nkind: A\r\nmetadata:\r\n  name: a # keep\r\nx: 2\r\ny: 3\r\n"
	if d := cmp.Diff(want, string(got)); d != "" {
		t.Error(d)
	}
}

// Splitting by lines gives what a whole parse gives, or refuses.
func FuzzSplit(f *testing.F) {
	for _, s := range []string{
		"apiVersion: config.kubernetes.io/v1\nkind: ResourceList\nitems:\n- apiVersion: v1\n  kind: A\n  metadata:\n    name: a\n# c\n- apiVersion: v1\n  kind: B\n",
		"kind: ResourceList\napiVersion: config.kubernetes.io/v1\nitems:\n  - apiVersion: v1\n    kind: \"A\n  - b\"\n  # c\n\n  - apiVersion: v1\n    kind: B\n    x: |\n      # y\n\n      - z\nresults:\n- message: m\n",
		"kind: ResourceList\napiVersion: config.kubernetes.io/v1\nitems:\n- {apiVersion: v1, kind: A,\nx: [1,\n- 2]}\n",
		"kind: ResourceList\napiVersion: config.kubernetes.io/v1\nitems:\n- &a\n  apiVersion: v1\n  kind: &k A\n- apiVersion: v1\n  kind: *k\n",
		"kind: ResourceList\napiVersion: config.kubernetes.io/v1\nitems:\n- apiVersion: v1\n  kind: >\n   A\n\n- apiVersion: v1\n  ? kind\n  : A\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		p, ok := split(data)
		if !ok {
			return
		}
		fast, err := readParts(p, ReadOptions{})
		if err != nil {
			return
		}
		whole, err := readWhole(data, ReadOptions{})
		if err != nil {
			// The whole may be refused for its aliases only.
			if strings.Contains(err.Error(), "alias") || strings.Contains(err.Error(), "anchor") {
				return
			}
			t.Fatalf("by lines it is fine, as a whole: %v", err)
		}
		if len(fast.Items) != len(whole.Items) || fast.HasItems != whole.HasItems {
			t.Fatalf("by lines %d items, as a whole %d", len(fast.Items), len(whole.Items))
		}
		for i := range fast.Items {
			a, err := fast.Items[i].Node()
			if err != nil {
				t.Fatal(err)
			}
			b, err := whole.Items[i].Node()
			if err != nil {
				t.Fatal(err)
			}
			if !Equal(a, b) {
				t.Fatalf("item %d: by lines\n%s\nas a whole\n%s", i, fast.Items[i].Wire(), whole.Items[i].Wire())
			}
		}
	})
}

// Whatever a function makes of a document, what is written has its values.
func FuzzPreserve(f *testing.F) {
	f.Add([]byte(service), []byte("apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {ports: [{port: 80}]}\n"))
	f.Add([]byte("apiVersion: v1\nkind: A\na: &x [1, 2]\nb: *x\nc: |\n  t\n"), []byte("apiVersion: v1\nkind: A\nb: 1\nc: |\n  t\n  u\nd: {}\n"))
	f.Add([]byte("apiVersion: v1\nkind: A\nl:\n- name: a\n  v: 1 # one\n- name: b\n"), []byte("apiVersion: v1\nkind: A\nl:\n- name: b\n- name: a\n  v: 2\n- name: c\n"))
	f.Fuzz(func(t *testing.T, before, after []byte) {
		it, err := FromDocument(after, "", 0)
		if err != nil {
			return
		}
		if _, err := FromDocument(before, "", 0); err != nil {
			return
		}
		want, err := it.Node()
		if err != nil {
			t.Fatalf("an item does not parse: %v\n%s", err, it.Wire())
		}
		var old yaml.Node
		if err := unmarshal(normalise(before), &old); err != nil {
			return
		}
		if duplicateKeys(&old) || duplicateKeys(want) || hasMerge(&old) || hasMerge(want) {
			return
		}
		stripInternal(want, old.Content[0])
		got, err := Preserve(before, it)
		if err != nil {
			return // the YAML library cannot write it
		}
		var d yaml.Node
		if err := unmarshal(bytes.TrimPrefix(got, []byte("\ufeff")), &d); err != nil {
			t.Fatalf("what is written does not parse: %v\n%s", err, got)
		}
		if !Equal(&d, want) {
			t.Fatalf("got\n%s\nwant the values of\n%s", got, it.Wire())
		}
	})
}

func duplicateKeys(n *yaml.Node) bool {
	if n.Kind == yaml.MappingNode {
		for i := 0; i+1 < len(n.Content); i += 2 {
			if n.Content[i].Kind != yaml.ScalarNode || fieldIndex(n, n.Content[i]) != i {
				return true
			}
		}
	}
	for _, c := range n.Content {
		if duplicateKeys(c) {
			return true
		}
	}
	return false
}

func hasMerge(n *yaml.Node) bool {
	if n.Kind == yaml.AliasNode || n.Anchor != "" || n.Tag == "!!merge" {
		return true
	}
	for _, c := range n.Content {
		if hasMerge(c) {
			return true
		}
	}
	return false
}
