package catalog

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"

	"github.com/krmcat/krmcat/schema"
)

// The six readable examples of KEP-2906 load at level consume, and each
// function in them is found; the seventh is refused at the line of its first
// placeholder.
func TestReadKEPExamples(t *testing.T) {
	t.Parallel()
	functions := 0
	for n := 1; n <= 7; n++ {
		name := "catalog-" + string(rune('0'+n)) + ".yaml"
		data, err := os.ReadFile(filepath.Join("testdata/kep-examples", name))
		if err != nil {
			t.Fatal(err)
		}
		loc := mustLocation(t, "https://example.co/"+name)
		doc, err := Read(t.Context(), loc, name, data, ReadOptions{Level: schema.Consume})
		if n == 7 {
			ie, ok := errors.AsType[*schema.InvalidError](err)
			if !ok {
				t.Fatalf("%s: %v, want an InvalidError", name, err)
			}
			if first := ie.Diagnostics[0]; first.Pos.Line != 31 || !strings.Contains(first.Message, `line 31 is a literal "..." placeholder`) {
				t.Errorf("%s: %v, want the placeholder in line 31", name, first)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if len(doc.Diagnostics) == 0 {
			t.Errorf("%s: no warnings", name)
		}
		for i := range doc.Catalog.Definitions {
			d := &doc.Catalog.Definitions[i]
			for _, v := range d.Versions {
				if v.Runtime.Container == nil && v.Runtime.Starlark == nil {
					t.Errorf("%s: %s %s has no runtime", name, d.Kind, v.Name)
				}
				functions++
			}
		}
		if _, err := Read(t.Context(), loc, name, data, ReadOptions{}); err == nil {
			t.Errorf("%s: accepted at level publish", name)
		}
	}
	if functions != 11 {
		t.Errorf("%d functions in the examples, want 11", functions)
	}
}

func TestReadLeniencies(t *testing.T) {
	t.Parallel()
	const hexB = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
	doc := read(t, "https://h/c/catalog.yaml", `
apiVersion: config.kubernetes.io/v1alpha1
kind: Catalog
metadata:
  name: c
  labels: {author: ExampleCo}
spec:
  krmFunctions:
  - group: example.com
    kind: A
    versions:
    - name: v1
      runtime: {starlark: a.star}
    - name: v2
      schema: {openAPIV3Schema: {type: object, properties: {z: {type: string}, a: {type: integer}}}}
      idempotent: yes
      configMap: true
    runtime:
      container:
        image: h/a:v1.0.0@sha256:`+hexA+`
        requireNetwork: "true"
        requireFilesystem: true
  - group: example.com
    names: {kind: B}
    versions:
    - name: v1
      runtime:
        exec:
          platforms:
          - {bin: b, os: linux, arch: amd64, uri: bin/b, sha256: "sha256:`+hexB+`"}
          - {bin: b, os: linux, arch: arm64, uri: "oci://h/b@sha256:`+hexA+`", sha256: <hash>}
        container:
          image: h/b
          sha256: nonsense
    - name: v2
      runtime:
        starlark: {path: ../b.star, sha256: `+hexB+`}
`)
	sha := func(hex string) digest.Digest { return digest.Digest("sha256:" + hex) }
	defs := doc.Catalog.Definitions
	if diff := cmp.Diff([]Definition{
		{Group: "example.com", Kind: "A", Versions: []Version{
			{Name: "v1", Runtime: Runtime{Starlark: &Starlark{URI: "a.star", Location: mustLocation(t, "https://h/c/a.star")}}},
			{Name: "v2", ConfigMap: true, Schema: []byte(`{"type":"object","properties":{"z":{"type":"string"},"a":{"type":"integer"}}}`),
				// A permission that is not a boolean is not given.
				Runtime: Runtime{Container: &Container{Image: "h/a:v1.0.0@sha256:" + hexA, Digest: sha(hexA), RequireStorageMount: true}}},
		}},
		{Group: "example.com", Kind: "B", Versions: []Version{
			{Name: "v1", Runtime: Runtime{
				Exec: &Exec{Platforms: []Platform{
					{Bin: "b", OS: "linux", Arch: "amd64", URI: "bin/b", Location: mustLocation(t, "https://h/c/bin/b"), Digest: sha(hexB)},
					{Bin: "b", OS: "linux", Arch: "arm64", URI: "oci://h/b@sha256:" + hexA, Location: mustLocation(t, "oci://h/b@sha256:"+hexA)},
				}},
				Container: &Container{Image: "h/b"},
			}},
			{Name: "v2", Runtime: Runtime{Starlark: &Starlark{URI: "../b.star", Location: mustLocation(t, "https://h/b.star"), Digest: sha(hexB)}}},
		}},
	}, defs); diff != "" {
		t.Errorf("definitions (-want +got):\n%s", diff)
	}
	if doc.Catalog.Name != "c" || doc.Catalog.Labels["author"] != "ExampleCo" {
		t.Errorf("metadata: %q, %v", doc.Catalog.Name, doc.Catalog.Labels)
	}
}

// Leniency never makes a permission or a digest more generous.
func TestReadFailsClosed(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		container string
		network   bool
		storage   bool
		digest    string
	}{
		{"{image: h/a}", false, false, ""},
		{"{image: h/a, requireNetwork: 1, requireStorageMount: 'true'}", false, false, ""},
		{"{image: h/a, requireNetwork: true, requireStorageMount: true}", true, true, ""},
		{"{image: h/a, sha256: " + strings.ToUpper(hexA) + "}", false, false, ""},
		{"{image: h/a, sha256: " + hexA[1:] + "}", false, false, ""},
		{"{image: h/a, sha256: " + hexA + "}", false, false, "sha256:" + hexA},
	} {
		doc := read(t, "c.yaml", `
apiVersion: config.kubernetes.io/v1alpha1
kind: KRMFunctionCatalog
metadata: {name: c}
spec:
  krmFunctions:
  - {group: g.example, names: {kind: A}, versions: [{name: v1, runtime: {container: `+tt.container+`}}]}
`)
		c := doc.Catalog.Definitions[0].Versions[0].Runtime.Container
		if c.RequireNetwork != tt.network || c.RequireStorageMount != tt.storage || c.Digest.String() != tt.digest {
			t.Errorf("%s: %+v", tt.container, c)
		}
	}
	if d := containerDigest("h/a@sha256:"+hexA, strings.Repeat("b", 64)); d != "" {
		t.Errorf("two different digests: %s is believed", d)
	}
	if storageMount(object{"requireStorageMount": false, "requireFilesystem": true}) {
		t.Error("two different storage permissions: given")
	}
}

func TestReadErrors(t *testing.T) {
	t.Parallel()
	const head = "apiVersion: config.kubernetes.io/v1alpha1\nkind: KRMFunctionCatalog\nmetadata: {name: c}\nspec: {krmFunctions: []}\n"
	for _, tt := range []struct{ in, want string }{
		{"", "no document"},
		{"a: [\n", "f.yaml:"},
		{"[]\n", "f.yaml:1:1"},
		{"<!DOCTYPE html><html>", "an HTML page"},
		{"apiVersion: v1\nkind: ConfigMap\n", "ConfigMap"},
		{strings.Replace(head, "v1alpha1", "v2", 1), "config.kubernetes.io/v2"},
		{head + "---\n" + head, "2 documents"},
	} {
		_, err := Read(t.Context(), Location{}, "f.yaml", []byte(tt.in), ReadOptions{Level: schema.Consume})
		if _, ok := errors.AsType[*schema.InvalidError](err); !ok || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%q: %v, want an InvalidError with %q", tt.in, err, tt.want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Read(ctx, Location{}, "f.yaml", []byte(head), ReadOptions{}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

func TestReadSource(t *testing.T) {
	t.Parallel()
	const doc = `
apiVersion: config.kubernetes.io/v1alpha1
kind: KRMFunctionDefinition
metadata: {name: set-a}
spec:
  group: example.com
  names: {kind: SetA}
  description: Sets a.
  publisher: example.com
  versions:
  - name: v1
    schema: {openAPIV3Schema: {type: object}}
    idempotent: true
    runtime: {exec: {platforms: [{bin: a, os: linux, arch: amd64, uri: ./a}]}}
    usage: README.md
    examples: [examples/README.md]
    license: Apache 2.0
`
	if _, err := Read(t.Context(), Location{}, "f.yaml", []byte(doc), ReadOptions{}); err == nil {
		t.Error("local paths are accepted in a document to publish")
	}
	d, err := Read(t.Context(), mustLocation(t, "x/f.yaml"), "f.yaml", []byte(doc), ReadOptions{Source: true})
	if err != nil {
		t.Fatal(err)
	}
	if got := d.Definition.Versions[0].Runtime.Exec.Platforms[0].Location; got != mustLocation(t, "x/a") {
		t.Errorf("location %v", got)
	}
	c := d.AsCatalog()
	if c.Name != "set-a" || len(c.Definitions) != 1 || c.Digest != digest.FromString(doc) || c.Origin.Ref != "x/f.yaml" {
		t.Errorf("AsCatalog: %+v", c)
	}
}

func TestLoad(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("testdata/kep-examples/catalog-1.yaml")
	if err != nil {
		t.Fatal(err)
	}
	resolved := mustLocation(t, "oci://h/c:v1@sha256:"+hexA)
	src := SourceFunc(func(_ context.Context, loc Location) (*Content, error) {
		switch loc.Ref {
		case "h/c:v1":
			return &Content{Body: io.NopCloser(bytes.NewReader(data)), Size: -1, Location: resolved}, nil
		case "big":
			return &Content{Body: io.NopCloser(io.LimitReader(zeros{}, MaxDocument+1)), Size: -1, Location: loc}, nil
		}
		return nil, os.ErrNotExist
	})
	doc, err := Load(t.Context(), src, mustLocation(t, "oci://h/c:v1"), ReadOptions{Level: schema.Consume})
	if err != nil {
		t.Fatal(err)
	}
	if c := doc.Catalog; c.Origin.String() != "oci://h/c:v1" || c.Resolved != resolved || doc.Resolved != resolved || doc.Location.String() != "oci://h/c:v1" {
		t.Errorf("origin %s, resolved %s", c.Origin, c.Resolved)
	}
	if _, err := Load(t.Context(), src, mustLocation(t, "big"), ReadOptions{}); err == nil || !strings.Contains(err.Error(), "more than 32 MiB") {
		t.Errorf("a document that is too big: %v", err)
	}
	if _, err := Load(t.Context(), src, mustLocation(t, "none"), ReadOptions{}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a document that is not there: %v", err)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

func read(t *testing.T, loc, data string) *Document {
	t.Helper()
	doc, err := Read(t.Context(), mustLocation(t, loc), loc, []byte(data), ReadOptions{Level: schema.Consume})
	if err != nil {
		t.Fatal(err)
	}
	return doc
}

// FuzzRead checks that what is accepted at level publish is accepted at level
// consume and reads as the same, and that nothing panics.
func FuzzRead(f *testing.F) {
	names, _ := filepath.Glob("testdata/*/*.yaml")
	for _, n := range names {
		data, err := os.ReadFile(n)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		loc := Location{Scheme: "https", Ref: "https://h/c.yaml"}
		strict, strictErr := Read(t.Context(), loc, "f", data, ReadOptions{})
		lenient, err := Read(t.Context(), loc, "f", data, ReadOptions{Level: schema.Consume})
		if err != nil {
			if strictErr == nil {
				t.Fatalf("valid at level publish, but not at level consume: %v", err)
			}
			return
		}
		if strictErr == nil && !cmp.Equal(strict.AsCatalog().Definitions, lenient.AsCatalog().Definitions) {
			t.Fatal("the two levels read different things")
		}
	})
}
