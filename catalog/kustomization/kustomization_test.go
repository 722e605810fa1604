package kustomization

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"github.com/krmcat/krmcat/schema"
)

var update = flag.Bool("update", false, "rewrite the expected parts of the golden cases")

// TestLoad reads the folders of testdata/*.txtar. The file "want" has what is
// found in the folder "in", or the error. KC-081 to KC-092.
func TestLoad(t *testing.T) {
	t.Parallel()
	cases, err := filepath.Glob("testdata/load/*.txtar")
	if err != nil || len(cases) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	for _, name := range cases {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".txtar"), func(t *testing.T) {
			t.Parallel()
			ar, err := txtar.ParseFile(name)
			if err != nil {
				t.Fatal(err)
			}
			dir := t.TempDir()
			want := -1
			for i, f := range ar.Files {
				if f.Name == "want" {
					want = i
					continue
				}
				p := filepath.Join(dir, filepath.FromSlash(f.Name))
				if err := os.MkdirAll(filepath.Dir(p), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(p, f.Data, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if want < 0 {
				t.Fatal("the case has no file want")
			}
			tree, err := Load(filepath.Join(dir, "in"))
			got := strings.ReplaceAll(describe(tree, err), filepath.ToSlash(dir)+"/", "")
			if *update {
				ar.Files[want].Data = []byte(got)
				if err := os.WriteFile(name, txtar.Format(ar), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := cmp.Diff(string(ar.Files[want].Data), got); diff != "" {
				t.Errorf("(-want +got; -update rewrites it):\n%s", diff)
			}
		})
	}
}

func describe(tree *Tree, err error) string {
	var b strings.Builder
	if err != nil {
		fmt.Fprintf(&b, "error: %v\n", err)
		return b.String()
	}
	fmt.Fprintf(&b, "%s %s\n", tree.Kind, filepath.ToSlash(tree.Root))
	for _, f := range tree.Functions {
		fmt.Fprintf(&b, "%s: %s %q at %s:%d", f.Field, f.GVK, f.Name, filepath.ToSlash(f.File), f.Line)
		if !f.Standalone {
			b.WriteString(" (inside)")
		}
		b.WriteByte('\n')
		if f.Layer != f.File {
			fmt.Fprintf(&b, "  used by %s\n", filepath.ToSlash(f.Layer))
		}
		if f.Inline != nil {
			fmt.Fprintf(&b, "  %s: %s\n", f.Inline.From, f.Inline)
		}
		for _, c := range f.Catalogs {
			fmt.Fprintf(&b, "  catalog %s\n", c)
		}
	}
	for _, s := range tree.Skipped {
		fmt.Fprintf(&b, "skipped %s\n", filepath.ToSlash(s))
	}
	return b.String()
}

func TestLoadErrors(t *testing.T) {
	t.Parallel()
	if _, err := Load(filepath.Join(t.TempDir(), "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no such folder: %v", err)
	}
	if _, err := Load(t.TempDir()); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "no kustomization.yaml") {
		t.Errorf("an empty folder: %v", err)
	}
	for _, tt := range []struct{ text, want string }{
		{"", "not a Kustomization"},
		{"apiVersion: v1\nkind: ConfigMap\n", `kind "ConfigMap"`},
		{"a: [", "k.yaml:"},
		{"kind: Kustomization\ncatalogs: x\n", "not a list"},
		{"kind: Kustomization\ncatalogs: ['git::x']\n", "k.yaml:2:12"},
		{"kind: Kustomization\ntransformers: [none.yaml]\n", "none.yaml: no such file"},
		{"kind: Kustomization\ntransformers: [{}]\n", "not a path"},
		{"kind: Composition\nmodules: []\ntransformers: []\n", "two names of one field"},
		{"kind: Composition\nmodules: [5]\n", "neither a functionConfig nor a path"},
		{"kind: Composition\nmodules: [{kind: A}]\n", "without apiVersion or kind"},
		{"kind: Composition\nmodulesFrom: [{path: k.yaml}]\n", "imports itself"},
		{"kind: Composition\nmodulesFrom: [{path: 'https://h/c'}]\n", "on this machine"},
		{"kind: Composition\nmoduleOverrides: [{apiVersion: a/v1, kind: A}]\n", "no imported module"},
		{"kind: Composition\nmodules: [{apiVersion: a/v1, kind: A}]\nmoduleOrder: [{name: b}]\n", `no module "b"`},
		{"kind: Composition\nmodules: [{apiVersion: a/v1, kind: A}, {apiVersion: a/v1, kind: B}]\nmoduleOrder: [{name: a}]\n", "1 modules are not in the order"},
		{"kind: Kustomization\ntransformers:\n- |\n  apiVersion: a/v1\n  kind: A\n  metadata:\n    annotations: {config.kubernetes.io/function: 'x: y'}\n", "none of container, exec and starlark"},
	} {
		name := filepath.Join(t.TempDir(), "k.yaml")
		if err := os.WriteFile(name, []byte(tt.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Load(name); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%q: %v, want %q", tt.text, err, tt.want)
		}
	}
}

func TestInlineRuntime(t *testing.T) {
	t.Parallel()
	annotated := func(name, text string) object {
		return object{"metadata": object{"annotations": object{name: text}}}
	}
	for _, tt := range []struct {
		config object
		want   *Runtime
		err    string
	}{
		{object{}, nil, ""},
		{object{"runtime": object{"container": object{"image": "h/a"}}}, &Runtime{From: "runtime", Image: "h/a"}, ""},
		{object{"runtime": object{"exec": object{"path": "./a"}}}, &Runtime{From: "runtime", Exec: "./a"}, ""},
		{object{"runtime": object{"starlark": object{"path": "a.star"}}}, &Runtime{From: "runtime", Starlark: "a.star"}, ""},
		{object{"runtime": object{"class": "gvisor"}}, nil, ""}, // a field of the function's own
		{annotated(Annotation, "container:\n  image: h/a\n  network: true\n"), &Runtime{From: "annotation", Image: "h/a", Network: true}, ""},
		{annotated(Annotation, Marker+"https://h/c.yaml\ncontainer: {image: h/a}\n"), &Runtime{From: "annotation", Image: "h/a", Managed: true, Catalog: "https://h/c.yaml"}, ""},
		{annotated(annotationLegacy, "starlark: {url: 'https://h/a.star'}"), &Runtime{From: "annotation", Starlark: "https://h/a.star"}, ""},
		{object{"metadata": object{"configFn": object{"container": object{"image": "h/a"}}}}, &Runtime{From: "configFn", Image: "h/a"}, ""},
		{annotated(Annotation, "["), nil, "not YAML"},
		{annotated(Annotation, "container: {}\nexec: {}"), nil, "more than one"},
		{annotated(Annotation, "container: {}"), nil, "no image or path"},
		{annotated(Annotation, "# nothing"), nil, "empty"},
	} {
		got, err := InlineRuntime(tt.config)
		if tt.err != "" {
			if err == nil || !strings.Contains(err.Error(), tt.err) {
				t.Errorf("%v: %v, want %q", tt.config, err, tt.err)
			}
			continue
		}
		if diff := cmp.Diff(tt.want, got); err != nil || diff != "" {
			t.Errorf("%v: %v (-want +got):\n%s", tt.config, err, diff)
		}
	}
}

func TestKebab(t *testing.T) {
	t.Parallel()
	for kind, want := range map[string]string{"JavaApplication": "java-application", "HTTPLoadBalancer": "http-load-balancer", "A": "a", "SetV2": "set-v2"} {
		if got := kebab(kind); got != want {
			t.Errorf("kebab(%q) = %q, want %q", kind, got, want)
		}
	}
}

const pinText = Marker + "https://h/c.yaml\ncontainer:\n  image: h/a@sha256:abc\n"

func TestPin(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, in, want string }{
		{
			"no metadata",
			"apiVersion: e.com/v1\nkind: JavaApplication # c\nspec:\n  a: b\n",
			"apiVersion: e.com/v1\nkind: JavaApplication # c\nmetadata:\n  name: java-application\n  annotations:\n    config.kubernetes.io/function: |\n" +
				"      # resolved by krmcat from https://h/c.yaml\n      container:\n        image: h/a@sha256:abc\nspec:\n  a: b\n",
		},
		{
			"no annotations",
			"kind: A\nmetadata:\n    # named\n    name: a # b\n    labels: {}\napiVersion: e.com/v1",
			"kind: A\nmetadata:\n    # named\n    name: a # b\n    annotations:\n      config.kubernetes.io/function: |\n" +
				"        # resolved by krmcat from https://h/c.yaml\n        container:\n          image: h/a@sha256:abc\n    labels: {}\napiVersion: e.com/v1",
		},
		{
			"annotations, and no line end",
			"kind: A\nmetadata:\n  annotations:\n    x: y # z\n  name: a",
			"kind: A\nmetadata:\n  annotations:\n    config.kubernetes.io/function: |\n" +
				"      # resolved by krmcat from https://h/c.yaml\n      container:\n        image: h/a@sha256:abc\n    x: y # z\n  name: a",
		},
		{
			"only a kind, with no line end",
			"kind: A",
			"kind: A\nmetadata:\n  name: a\n  annotations:\n    config.kubernetes.io/function: |\n" +
				"      # resolved by krmcat from https://h/c.yaml\n      container:\n        image: h/a@sha256:abc\n",
		},
		{
			"an older pin",
			"kind: A\nmetadata:\n  name: a\n  annotations:\n    config.kubernetes.io/function: |-\n      # resolved by krmcat from old\n\n      container: {image: old}\n\n    x: y\n",
			"kind: A\nmetadata:\n  name: a\n  annotations:\n    config.kubernetes.io/function: |\n" +
				"      # resolved by krmcat from https://h/c.yaml\n      container:\n        image: h/a@sha256:abc\n\n    x: y\n",
		},
		{
			"braces",
			"{kind: A, metadata: {name: a}}\n",
			"{kind: A, metadata: {\"annotations\": {\"config.kubernetes.io/function\": \"# resolved by krmcat from https://h/c.yaml\\ncontainer:\\n  image: h/a@sha256:abc\\n\"}, name: a}}\n",
		},
		{
			"JSON",
			"{\n  \"kind\": \"A\"\n}\n",
			"{\"metadata\": {\"name\": \"a\", \"annotations\": {\"config.kubernetes.io/function\": \"# resolved by krmcat from https://h/c.yaml\\ncontainer:\\n  image: h/a@sha256:abc\\n\"}}, \n  \"kind\": \"A\"\n}\n",
		},
		{
			"CR LF",
			"kind: A\r\nmetadata:\r\n  name: a\r\n",
			"kind: A\r\nmetadata:\r\n  name: a\r\n  annotations:\r\n    config.kubernetes.io/function: |\r\n" +
				"      # resolved by krmcat from https://h/c.yaml\r\n      container:\r\n        image: h/a@sha256:abc\r\n",
		},
	} {
		got, err := Pin("f.yaml", []byte(tt.in), map[int]string{0: pinText})
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		if diff := cmp.Diff(tt.want, string(got)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
		if again, err := Pin("f.yaml", got, map[int]string{0: pinText}); err != nil || !bytes.Equal(again, got) {
			t.Errorf("%s: pinning again gives %v\n%s", tt.name, err, again)
		}
	}
	// The second of two documents, and nothing of the first.
	got, err := Pin("f.yaml", []byte("kind: A\n---\nkind: B\n---\nkind: C\n"), map[int]string{1: pinText})
	if err != nil || !strings.HasPrefix(string(got), "kind: A\n---\nkind: B\nmetadata:\n  name: b\n") || !strings.HasSuffix(string(got), "abc\n---\nkind: C\n") {
		t.Errorf("got %v\n%s", err, got)
	}
}

func TestPinErrors(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ in, want string }{
		{"[]", "not a mapping"},
		{"a: b", "no kind"},
		{"kind: A\nmetadata: {}\n", "empty"},
		{"kind: A\nmetadata:\n  name: 5\n", "not a name"},
		{"kind: A\nmetadata:\n  name: a\n  annotations:\n    config.kubernetes.io/function: 'x'\n", "a way that krmcat does not write"},
		{"m: &m {name: a}\nkind: A\nmetadata: *m\n", "cannot be pinned"},
		{"kind: A\n", "no document 1"},
	} {
		i := 0
		if tt.want == "no document 1" {
			i = 1
		}
		if _, err := Pin("f.yaml", []byte(tt.in), map[int]string{i: pinText}); !errors.Is(err, ErrPin) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%q: %v, want %q", tt.in, err, tt.want)
		}
	}
	if _, err := Pin("f.yaml", []byte("a: ["), nil); err == nil {
		t.Error("what is not YAML is accepted")
	} else if _, ok := errors.AsType[*schema.InvalidError](err); !ok {
		t.Errorf("what is not YAML: %v", err)
	}
}

// FuzzPin checks that what is pinned can be read back, is found again as
// pinned by krmcat, and that pinning it again changes nothing.
func FuzzPin(f *testing.F) {
	for _, s := range []string{
		"kind: A\n", "apiVersion: e/v1\nkind: A\nmetadata:\n  name: a\n", "{kind: A, metadata: {name: a}}", "kind: A\nmetadata:\n  annotations: {a: b}\n",
		"kind: A\nmetadata:\n  name: a\n  annotations:\n    config.kubernetes.io/function: |\n      # x\n      a: b\n\nspec: {}\n",
		"---\nkind: A\n---\nkind: B\n", "\uFEFFkind: A\r\n", "kind: |\n  A\nmetadata:\n- x\n", "kind: A\nmetadata:\n  name: a\n   b\n",
	} {
		f.Add([]byte(s), 0)
	}
	f.Fuzz(func(t *testing.T, data []byte, i int) {
		out, err := Pin("f", data, map[int]string{i: pinText})
		if err != nil {
			return
		}
		again, err := Pin("f", out, map[int]string{i: pinText})
		if err != nil || !bytes.Equal(again, out) {
			t.Fatalf("pinning again: %v\n%q\n%q", err, out, again)
		}
	})
}
