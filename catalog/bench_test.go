package catalog

import (
	"fmt"
	"os"
	"testing"
)

// BenchmarkRead reads a catalog of 1,000 functions, and BenchmarkMarshal
// writes it.
func benchCatalog(b *testing.B) *Catalog {
	b.Helper()
	data, err := os.ReadFile("testdata/marshal/set-labels.yaml")
	if err != nil {
		b.Fatal(err)
	}
	doc, err := Read(b.Context(), Location{}, "set-labels.yaml", data, ReadOptions{})
	if err != nil {
		b.Fatal(err)
	}
	var defs []Definition
	for i := range 1000 {
		d := *doc.Definition
		d.Kind = fmt.Sprintf("SetLabels%d", i)
		defs = append(defs, d)
	}
	c, _ := Build("bench", nil, defs)
	return c
}

func BenchmarkRead(b *testing.B) {
	data, err := Marshal(benchCatalog(b))
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Read(b.Context(), Location{}, "catalog.yaml", data, ReadOptions{}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkMarshal(b *testing.B) {
	c := benchCatalog(b)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Marshal(c); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkRewrite(b *testing.B) {
	data, err := Marshal(benchCatalog(b))
	if err != nil {
		b.Fatal(err)
	}
	var edits []Edit
	for i := range 1000 {
		edits = append(edits, Edit{Path: []any{"spec", "krmFunctions", i, "versions", 0, "runtime", "container", "image"}, Value: "h/x:v2", Comment: "v2"})
	}
	for b.Loop() {
		if _, err := Rewrite("catalog.yaml", data, edits); err != nil {
			b.Fatal(err)
		}
	}
}
