package index

import (
	"context"
	"io"
	"iter"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Store is what the index reads of a registry. Errors about missing content
// wrap [io/fs.ErrNotExist]. It is safe for concurrent use.
//
// A store that no other process writes to while it is open may also have the
// method Opening() (this, last string), which names this opening and the last
// one before: an index that was in step at the end of the last one need not be
// compared with all of the store.
type Store interface {
	// Repositories lists repository names after the given one, sorted.
	Repositories(ctx context.Context, after string) iter.Seq2[string, error]
	// Tags lists the tags of a repository after the given one, sorted.
	Tags(ctx context.Context, repository, after string) iter.Seq2[string, error]
	// Resolve finds the manifest for a tag or a digest.
	Resolve(ctx context.Context, repository, reference string) (ocispec.Descriptor, error)
	// FetchManifest reads a manifest.
	FetchManifest(ctx context.Context, repository string, d digest.Digest) ([]byte, error)
	// FetchBlob opens a blob; the caller closes it.
	FetchBlob(ctx context.Context, repository string, d digest.Digest) (io.ReadCloser, error)
	// Referrers lists the manifests whose subject is d.
	Referrers(ctx context.Context, repository string, d digest.Digest, artifactType string) iter.Seq2[ocispec.Descriptor, error]
}

// opener is a store that knows who had it last.
type opener interface{ Opening() (this, last string) }

// Change is a manifest, or the tag of one, that is about to be stored in or
// deleted from a registry. It has the fields of the type of the same name in
// package registry, so that one is converted to the other.
type Change struct {
	Repository string
	Tag        string             // empty for a change by digest
	Descriptor ocispec.Descriptor // of the manifest; for a deletion of a tag, what it points at
	Manifest   []byte             // nil for a deletion
	Delete     bool
}
