package index_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/krmcat/krmcat/catalog/index"
	"github.com/krmcat/krmcat/registry/regmem"
	"github.com/krmcat/krmcat/registry/regtest"
)

// benchIndex is an index of n functions, with some words that all have and
// some that few have.
func benchIndex(b *testing.B, n int) (*index.Index, *regmem.Store) {
	b.Helper()
	store := regmem.New()
	x, err := index.OpenSQLite(b.Context(), store, filepath.Join(b.TempDir(), "index.db"), nil)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = x.Close() })
	if err := x.Reindex(b.Context(), false); err != nil {
		b.Fatal(err)
	}
	for i := range n {
		benchPush(b, x, store, i)
	}
	return x, store
}

func benchPush(b *testing.B, x *index.Index, store *regmem.Store, i int) {
	b.Helper()
	words := []string{"labels", "charts", "routes", "limits", "names", "rules", "quota", "mesh"}
	f := fn{
		group: "example.com", kind: fmt.Sprintf("Set%s%d", strings.ToUpper(words[i%8][:1])+words[i%8][1:], i), publisher: fmt.Sprint("team-", i%50),
		description: fmt.Sprintf("Sets %s and %s on all resources, for case %d", words[i%8], words[(i/8)%8], i), versions: []string{"v1"}, tags: []string{"mutator"},
	}
	a := f.artifact()
	m := a.manifest()
	change := index.Change{Repository: fmt.Sprintf("team-%d/fn-%d", i%50, i), Tag: "v1.0.0", Descriptor: regtest.Describe("application/vnd.oci.image.manifest.v1+json", m), Manifest: m}
	blobs := [][]byte{[]byte("{}")}
	for _, l := range a.layers {
		blobs = append(blobs, []byte(l.data))
	}
	done, err := x.Begin(b.Context(), change)
	if err != nil {
		b.Fatal(err)
	}
	err = regtest.Push(b.Context(), store, change.Repository, &regtest.Artifact{Descriptor: change.Descriptor, Manifest: m, Blobs: blobs}, "v1.0.0")
	if err := done(b.Context(), err); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkPublish is what the index adds to a push of a definition.
func BenchmarkPublish(b *testing.B) {
	x, store := benchIndex(b, 100)
	i := 100
	for b.Loop() {
		benchPush(b, x, store, i)
		i++
	}
}

// BenchmarkOther is what the index adds to a push that is none of its
// business.
func BenchmarkOther(b *testing.B) {
	x, _ := benchIndex(b, 100)
	m := artifact{artifactType: "application/vnd.example"}.manifest()
	for b.Loop() {
		done, err := x.Begin(b.Context(), index.Change{Repository: "library/image", Tag: "v1.0.0", Descriptor: regtest.Describe("application/vnd.oci.image.manifest.v1+json", m), Manifest: m})
		if err != nil {
			b.Fatal(err)
		}
		if err := done(b.Context(), nil); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkSearch(b *testing.B) {
	x, _ := benchIndex(b, 5000)
	for name, q := range map[string]index.Query{
		"rare":     {Text: "setlabels4000"},
		"common":   {Text: "labels"},
		"two":      {Text: "labels routes"},
		"prefix":   {Text: "lab"},
		"typo":     {Text: "lables"},
		"filtered": {Text: "labels", Publisher: "team-1"},
		"browse":   {},
		"updated":  {Order: index.ByUpdated, Offset: 2000},
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if p, err := x.Search(b.Context(), q); err != nil || p.Total == 0 {
					b.Fatal(p, err)
				}
			}
		})
	}
}

// BenchmarkCatalog makes the catalog of everything anew.
func BenchmarkCatalog(b *testing.B) {
	x, store := benchIndex(b, 1000)
	i := 1000
	for b.Loop() {
		benchPush(b, x, store, i) // or the last one is served
		i++
		if _, err := x.Catalog(b.Context(), index.CatalogAll); err != nil {
			b.Fatal(err)
		}
	}
}
