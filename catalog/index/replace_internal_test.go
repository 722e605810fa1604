package index

import (
	"path/filepath"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/krmcat/krmcat/catalog"
	"github.com/krmcat/krmcat/registry/regmem"
	"github.com/krmcat/krmcat/registry/regtest"
)

const replaceDefinition = `apiVersion: config.kubernetes.io/v1alpha1
kind: KRMFunctionDefinition
spec:
  group: example.com
  names: {kind: Late}
  description: Comes late
  publisher: acme
  versions:
  - name: v1
    schema: {openAPIV3Schema: {type: object}}
    idempotent: true
    runtime: {container: {image: "example.com/late@sha256:2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae"}}
    usage: https://example.com/README.md
    examples: [https://example.com/example.md]
    license: Apache 2.0
`

// A change that was announced to a database that then turns out to be damaged
// is known to the one that takes its place.
func TestReplacedUnderAChange(t *testing.T) {
	dir := t.TempDir()
	store := regmem.New()
	art := regtest.NewArtifact("application/vnd.example", nil)
	layer := regtest.Describe(catalog.MediaTypeDefinition, []byte(replaceDefinition))
	art.Manifest = regtest.Marshal(ocispec.Manifest{
		MediaType: ocispec.MediaTypeImageManifest, Config: regtest.Describe(ocispec.MediaTypeEmptyJSON, []byte("{}")),
		Layers: []ocispec.Descriptor{layer}, Annotations: map[string]string{"a": "b"},
	})
	art.Manifest = append([]byte(`{"schemaVersion":2,`), art.Manifest[len(`{"schemaVersion":0,`):]...)
	art.Descriptor = regtest.Describe(ocispec.MediaTypeImageManifest, art.Manifest)
	art.Blobs = [][]byte{[]byte("{}"), []byte(replaceDefinition)}

	x, err := OpenSQLite(t.Context(), store, filepath.Join(dir, "index.db"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = x.Close() }()
	if !x.work(t.Context(), false) || x.usable() != nil {
		t.Fatal("the index is not ready")
	}
	done, err := x.Begin(t.Context(), Change{Repository: "acme/late", Tag: "v1.0.0", Descriptor: art.Descriptor, Manifest: art.Manifest})
	if err != nil {
		t.Fatal(err)
	}
	before := x.dbs.Load()
	x.damaged.Store(true)
	if !x.work(t.Context(), true) || x.dbs.Load() == before || x.damaged.Load() {
		t.Fatal("the database was not replaced")
	}
	if st, err := x.Stats(t.Context()); err != nil || st.Pending != 1 || st.Functions != 0 {
		t.Errorf("after the replacement: %+v, %v, want one change of unknown outcome", st, err)
	}
	regtest.Put(t.Context(), t, store, "acme/late", art, "v1.0.0")
	if err := done(t.Context(), nil); err != nil {
		t.Error(err)
	}
	f, err := x.Function(t.Context(), "example.com", "Late", "")
	if err != nil || f.Digest != string(digest.FromBytes(art.Manifest)) {
		t.Errorf("the change that came through: %v", err)
	}
	if st, err := x.Stats(t.Context()); err != nil || st.Pending != 0 {
		t.Errorf("in the end: %+v, %v", st, err)
	}
}
