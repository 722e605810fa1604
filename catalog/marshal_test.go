package catalog

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "rewrite golden files")

func TestMarshal(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("testdata/marshal/set-labels.yaml")
	if err != nil {
		t.Fatal(err)
	}
	doc, err := Read(t.Context(), Location{}, "set-labels.yaml", data, ReadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	c, shadowed := Build("example", map[string]string{"b": "2", "a": "yes"}, []Definition{*doc.Definition})
	if len(shadowed) != 0 {
		t.Errorf("shadowed: %v", shadowed)
	}
	got, err := Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "testdata/marshal/catalog.golden.yaml", got)
	// What was valid to publish still is, and reads as the same.
	again, err := Read(t.Context(), Location{}, "catalog.yaml", got, ReadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(again.Diagnostics) > len(doc.Diagnostics) {
		t.Errorf("new findings: %v", again.Diagnostics)
	}
	want := *doc.Definition
	want.Name = ""
	if diff := cmp.Diff([]Definition{want}, again.Catalog.Definitions); diff != "" {
		t.Errorf("definitions (-want +got):\n%s", diff)
	}
	if twice, err := Marshal(again.Catalog); err != nil || !bytes.Equal(twice, got) {
		t.Errorf("marshalling again gives\n%s%v", twice, err)
	}

	def, err := MarshalDefinition(doc.Definition)
	if err != nil {
		t.Fatal(err)
	}
	doc2, err := Read(t.Context(), Location{}, "def.yaml", def, ReadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(doc.Definition, doc2.Definition); diff != "" {
		t.Errorf("definition (-want +got):\n%s", diff)
	}
}

func TestMarshalEmpty(t *testing.T) {
	t.Parallel()
	if _, err := Marshal(&Catalog{}); err == nil {
		t.Error("a catalog without a name is written")
	}
	got, err := Marshal(&Catalog{Name: "none"})
	const want = "apiVersion: config.kubernetes.io/v1alpha1\nkind: KRMFunctionCatalog\nmetadata:\n  name: none\nspec:\n  krmFunctions: []\n"
	if err != nil || string(got) != want {
		t.Errorf("got\n%s%v", got, err)
	}
}

// KC-084, KC-085: the first one wins, so the others need not be there.
func TestBuild(t *testing.T) {
	t.Parallel()
	def := func(publisher, kind string, versions ...string) Definition {
		d := Definition{Group: "g.example", Kind: kind, Publisher: publisher}
		for _, v := range versions {
			d.Versions = append(d.Versions, Version{Name: v, License: publisher})
		}
		return d
	}
	c, shadowed := Build("c", nil, []Definition{def("1", "A", "v1", "v1"), def("2", "A", "v1", "v2"), def("3", "B", "v1"), def("4", "B", "v1")})
	if diff := cmp.Diff([]Definition{def("1", "A", "v1"), def("2", "A", "v2"), def("3", "B", "v1")}, c.Definitions); diff != "" {
		t.Errorf("kept (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]Definition{def("1", "A", "v1"), def("2", "A", "v1"), def("4", "B", "v1")}, shadowed); diff != "" {
		t.Errorf("shadowed (-want +got):\n%s", diff)
	}
}

// FuzzMarshal checks that a catalog that can be read is written so that it
// reads as the same.
func FuzzMarshal(f *testing.F) {
	for _, pattern := range []string{"testdata/*/*.yaml"} {
		names, _ := filepath.Glob(pattern)
		for _, n := range names {
			data, err := os.ReadFile(n)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(data)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		doc, err := Read(t.Context(), Location{}, "f", data, ReadOptions{})
		if err != nil {
			return
		}
		c := *doc.AsCatalog()
		if c.Name == "" {
			c.Name = "c"
		}
		c.Definitions[0].Name = ""
		out, err := Marshal(&c)
		if err != nil {
			t.Fatal(err)
		}
		again, err := Read(t.Context(), Location{}, "f", out, ReadOptions{})
		if err != nil {
			t.Fatalf("valid at level publish, but not when marshalled: %v\n%s", err, out)
		}
		if !cmp.Equal(again.Catalog.Definitions, c.Definitions) {
			t.Fatalf("reads as something else (-want +got):\n%s", cmp.Diff(c.Definitions, again.Catalog.Definitions))
		}
	})
}

// golden compares with a file, or writes it.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(name, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s (-want +got; -update rewrites it):\n%s", name, diff)
	}
}
