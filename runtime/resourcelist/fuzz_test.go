package resourcelist

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Whatever a function writes is refused or read; what is read can be written,
// and read again it is the same.
func FuzzRead(f *testing.F) {
	const head = "apiVersion: config.kubernetes.io/v1\nkind: ResourceList\n"
	for _, s := range []string{
		head + "items:\n- apiVersion: v1\n  kind: A\n  metadata: {name: a, annotations: {config.kubernetes.io/path: a.yaml}}\nresults:\n- {message: m, severity: warn, field: {path: x, suggestedValue: [1, {a: b}]}, file: {path: a, index: 1.0}, tags: {a: 1}}\n",
		head + "items: []\nresults:\n  name: x\n  items:\n  - message: |\n      two\n      lines\n",
		`{"apiVersion":"config.kubernetes.io/v1beta1","kind":"ResourceList","items":[{"apiVersion":"v1","kind":"A","x":1e400}],"functionConfig":{"a":null}}`,
		head + "functionConfig: &c\n  a: b\nitems:\n- apiVersion: v1\n  kind: A\n  x: *c\n  \"y\": !!binary aGk=\n  ? [a]\n  : {<<: *c}\n",
		head + "items:\n- !x\n  apiVersion: v1\n  kind: A\n  metadata:\n    annotations: {internal.config.kubernetes.io/index: '007'}\n",
		"%YAML 1.1\n---\n" + head + "items:\n# c\n-\n  apiVersion: v1\n  kind: A # d\n...\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		l, err := Read(data, ReadOptions{FromFunction: true})
		if err != nil {
			return
		}
		for _, it := range l.Items {
			if _, err := it.Node(); err != nil {
				t.Fatalf("an item that was read does not parse: %v\n%s", err, it.Wire())
			}
			_ = it.Meta().ID()
			_, _ = it.Annotations()
		}
		for _, r := range l.Results {
			_ = r.Text()
		}
		text, err := Compose(l)
		if err != nil {
			return // the YAML library cannot write it
		}
		again, err := Read(text, ReadOptions{Before: l.Items, FromFunction: true})
		if err != nil {
			t.Fatalf("what was read and written cannot be read: %v\n%s", err, text)
		}
		if len(again.Items) != len(l.Items) || again.HasItems != true {
			t.Fatalf("%d items became %d\n%s", len(l.Items), len(again.Items), text)
		}
		for i := range l.Items {
			if again.Items[i] != l.Items[i] && !bytes.Equal(again.Items[i].Wire(), l.Items[i].Wire()) {
				t.Fatalf("item %d is another one:\n%s\nwas\n%s", i, again.Items[i].Wire(), l.Items[i].Wire())
			}
		}
		if len(again.Results) != len(l.Results) {
			t.Fatalf("%d results became %d\n%s", len(l.Results), len(again.Results), text)
		}
		for i := range l.Results {
			if a, b := l.Results[i].Text(), again.Results[i].Text(); a != b {
				t.Fatalf("result %d:\n%s", i, cmp.Diff(a, b))
			}
		}
	})
}
