package regtest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/krmcat/krmcat/registry/regstore"
)

// Artifact is a manifest with the blobs it refers to.
type Artifact struct {
	Descriptor ocispec.Descriptor
	Manifest   []byte
	Blobs      [][]byte // config first
	Subject    *ocispec.Descriptor
}

// NewArtifact builds an artifact with the given layers and, if subject is
// not nil, a subject. The same arguments give the same bytes.
func NewArtifact(artifactType string, subject *ocispec.Descriptor, layers ...[]byte) *Artifact {
	m := ocispec.Manifest{
		Versioned:    specs.Versioned{SchemaVersion: 2},
		MediaType:    ocispec.MediaTypeImageManifest,
		ArtifactType: artifactType,
		Config:       ocispec.DescriptorEmptyJSON,
		Layers:       []ocispec.Descriptor{},
		Subject:      subject,
		Annotations:  map[string]string{"org.example.kind": artifactType},
	}
	a := &Artifact{Blobs: [][]byte{[]byte("{}")}, Subject: subject}
	m.Config.Data = nil
	for _, l := range layers {
		m.Layers = append(m.Layers, Describe("application/vnd.example.layer", l))
		a.Blobs = append(a.Blobs, l)
	}
	a.Manifest = Marshal(m)
	a.Descriptor = Describe(m.MediaType, a.Manifest)
	return a
}

// NewIndex builds an image index over manifests.
func NewIndex(artifactType string, subject *ocispec.Descriptor, manifests ...ocispec.Descriptor) *Artifact {
	a := &Artifact{Subject: subject}
	a.Manifest = Marshal(ocispec.Index{
		Versioned:    specs.Versioned{SchemaVersion: 2},
		MediaType:    ocispec.MediaTypeImageIndex,
		ArtifactType: artifactType,
		Manifests:    append([]ocispec.Descriptor{}, manifests...),
		Subject:      subject,
	})
	a.Descriptor = Describe(ocispec.MediaTypeImageIndex, a.Manifest)
	return a
}

// Describe returns the descriptor of content.
func Describe(mediaType string, content []byte) ocispec.Descriptor {
	return ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(content), Size: int64(len(content))}
}

// Marshal is json.Marshal for values that always have a form in JSON.
func Marshal(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("regtest: %v", err))
	}
	return b
}

// Random returns n bytes that depend on the seed only.
func Random(seed uint64, n int) []byte {
	var key [32]byte
	for i := range 8 {
		key[i] = byte(seed >> (8 * i))
	}
	b := make([]byte, n)
	_, _ = rand.NewChaCha8(key).Read(b) // never fails
	return b
}

// Parse is [regstore.ParseManifest] of an artifact.
func (a *Artifact) Parse(t testing.TB) *regstore.Manifest {
	t.Helper()
	m, err := regstore.ParseManifest(a.Descriptor.MediaType, a.Manifest, a.Descriptor.Digest)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// Put stores an artifact, blobs first, and points tags at it.
func Put(ctx context.Context, t testing.TB, s regstore.Driver, repository string, a *Artifact, tags ...string) {
	t.Helper()
	if err := Push(ctx, s, repository, a, tags...); err != nil {
		t.Fatal(err)
	}
}

// PutBlob stores a blob and returns its digest.
func PutBlob(ctx context.Context, t testing.TB, s regstore.Driver, repository string, b []byte) digest.Digest {
	t.Helper()
	if err := pushBlob(ctx, s, repository, b); err != nil {
		t.Fatal(err)
	}
	return digest.FromBytes(b)
}

// Push is [Put] for other goroutines than the test's.
func Push(ctx context.Context, s regstore.Driver, repository string, a *Artifact, tags ...string) error {
	for _, b := range a.Blobs {
		if err := pushBlob(ctx, s, repository, b); err != nil {
			return err
		}
	}
	m, err := regstore.ParseManifest(a.Descriptor.MediaType, a.Manifest, a.Descriptor.Digest)
	if err != nil {
		return err
	}
	var list []regstore.Tag
	for _, tag := range tags {
		list = append(list, regstore.Tag{Name: tag})
	}
	if err := s.PutManifest(ctx, repository, m, list); err != nil {
		return fmt.Errorf("PutManifest: %w", err)
	}
	return nil
}

func pushBlob(ctx context.Context, s regstore.Driver, repository string, b []byte) error {
	err := s.FinishUpload(ctx, repository, "", regstore.Chunk{Body: bytes.NewReader(b), Offset: -1, Size: int64(len(b))}, digest.FromBytes(b))
	if err != nil {
		return fmt.Errorf("FinishUpload: %w", err)
	}
	return nil
}
