package kustomization

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"
)

// unpack writes the files of an archive to a temporary folder.
func unpack(t *testing.T, text string) string {
	t.Helper()
	dir := t.TempDir()
	for _, f := range txtar.Parse([]byte(text)).Files {
		p := filepath.Join(dir, filepath.FromSlash(f.Name))
		if err := os.MkdirAll(filepath.Dir(p), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, f.Data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestOverlay(t *testing.T) {
	t.Parallel()
	dir := unpack(t, `
-- in/kustomization.yaml --
catalogs: [c.yaml]
namePrefix: x-
transformers:
- t.yaml
- |
  apiVersion: e.com/v1
  kind: Inside
  ---
  apiVersion: e.com/v1
  kind: Second
-- in/t.yaml --
apiVersion: builtin
kind: PrefixTransformer
metadata: {name: p}
---
apiVersion: e.com/v1
kind: A
metadata:
  configFn: {container: {image: old}}
  annotations: {config.k8s.io/function: "exec: {path: ./evil}", other: "1"}
`)
	tree, err := Load(filepath.Join(dir, "in"))
	if err != nil {
		t.Fatal(err)
	}
	files, err := tree.Overlay(func(i int) string { return fmt.Sprint("function ", i) })
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for name, data := range files {
		got[strings.TrimPrefix(filepath.ToSlash(name), filepath.ToSlash(dir)+"/")] = string(data)
	}
	want := map[string]string{
		"in/kustomization.yaml": `{"namePrefix":"x-","transformers":["t.yaml","{\"apiVersion\":\"e.com/v1\",\"kind\":\"Inside\",\"metadata\":{\"annotations\":{\"config.kubernetes.io/function\":\"function 1\"},\"name\":\"inside\"}}\n---\n` +
			`{\"apiVersion\":\"e.com/v1\",\"kind\":\"Second\",\"metadata\":{\"annotations\":{\"config.kubernetes.io/function\":\"function 2\"},\"name\":\"second\"}}\n"]}` + "\n",
		"in/t.yaml": `{"apiVersion":"builtin","kind":"PrefixTransformer","metadata":{"name":"p"}}` + "\n---\n" +
			`{"apiVersion":"e.com/v1","kind":"A","metadata":{"annotations":{"config.kubernetes.io/function":"function 0","other":"1"},"name":"a"}}` + "\n",
	}
	for name, text := range want {
		if got[name] != text {
			t.Errorf("%s is\n%s, want\n%s", name, got[name], text)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d files, want %d", len(got), len(want))
	}
	config, err := tree.Functions[0].ConfigText()
	if err != nil {
		t.Fatal(err)
	}
	if s := string(config); strings.Contains(s, "evil") || strings.Contains(s, "configFn") || !strings.Contains(s, "other: \"1\"") || !strings.Contains(s, "name: a") {
		t.Errorf("the function gets\n%s", s)
	}
}

// What could run a function that nobody looked at is refused.
func TestOverlayRefuses(t *testing.T) {
	t.Parallel()
	const fn = "apiVersion: e.com/v1\nkind: A\nmetadata: {name: a}\n"
	for _, tt := range []struct{ text, want string }{
		{"-- in/kustomization.yaml --\nresources: ['https://github.com/a/b?ref=v1']\n", "is not on this machine"},
		{"-- in/kustomization.yaml --\ntransformers: ['https://h/t.yaml']\n", "is not on this machine"},
		{"-- in/kustomization.yaml --\ntransformers: [fns]\n-- in/fns/kustomization.yaml --\nresources: [a.yaml]\ncommonAnnotations: {x: y}\n-- in/fns/a.yaml --\n" + fn, "has commonAnnotations"},
		{"-- in/kustomization.yaml --\ntransformers: [fns]\n-- in/fns/kustomization.yaml --\nresources: [a.yaml]\ntransformers: [b.yaml]\n-- in/fns/a.yaml --\n" + fn, "has transformers"},
		{"-- in/kustomization.yaml --\ntransformers: [c.yaml]\n-- in/c.yaml --\nkind: Composition\nmodules: []\n", "a Composition inside of a layer"},
		{"-- in/kustomization.yaml --\nresources: [c]\n-- in/c/composition.yaml --\nkind: Composition\nmodules: []\n", "a Composition inside of a layer"},
		{"-- in/composition.yaml --\nkind: Composition\nmodules: []\n", "a Composition"},
		{"-- in/kustomization.yaml --\nresources: [b]\ntransformers: [a.yaml]\n-- in/a.yaml --\n" + fn + "-- in/b/kustomization.yaml --\ntransformers: [../a.yaml]\n", "used by layers whose catalogs have different functions"},
	} {
		tree, err := Load(filepath.Join(unpack(t, tt.text), "in"))
		if err != nil {
			t.Errorf("%q: %v", tt.text, err)
			continue
		}
		if _, err := tree.Overlay(func(i int) string { return fmt.Sprint(i) }); !errors.Is(err, ErrNotBuildable) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%q: %v, want %q", tt.text, err, tt.want)
		}
	}
}
