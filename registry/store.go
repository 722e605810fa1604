package registry

import (
	"context"
	"io"
	"iter"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Store is what a registry server holds, for readers in the same process.
// Errors about missing content wrap [io/fs.ErrNotExist]. It is safe for
// concurrent use.
type Store interface {
	// Repositories lists repository names after the given one, sorted.
	Repositories(ctx context.Context, after string) iter.Seq2[string, error]
	// Tags lists the tags of a repository after the given one, sorted.
	Tags(ctx context.Context, repository, after string) iter.Seq2[string, error]
	// Resolve finds the manifest for a tag or a digest.
	Resolve(ctx context.Context, repository, reference string) (ocispec.Descriptor, error)
	// FetchManifest reads a manifest, at most MaxManifestBytes.
	FetchManifest(ctx context.Context, repository string, d digest.Digest) ([]byte, error)
	// FetchBlob opens a blob; the caller closes it.
	FetchBlob(ctx context.Context, repository string, d digest.Digest) (io.ReadCloser, error)
	// Referrers lists the manifests whose subject is d.
	Referrers(ctx context.Context, repository string, d digest.Digest, artifactType string) iter.Seq2[ocispec.Descriptor, error]
}

// Change is a manifest, or the tag of one, that is about to be stored in or
// deleted from a registry server.
type Change struct {
	Repository string
	Tag        string             // empty for a change by digest
	Descriptor ocispec.Descriptor // of the manifest; for a deletion of a tag, what it points at
	Manifest   []byte             // nil for a deletion
	Delete     bool
}

// Observer learns of changes to a registry server, so that an index can be
// kept in step: whatever a client has been told is stored, the observer has
// been told before.
type Observer interface {
	// Begin is called after the content of a change was checked and before
	// it is stored. If it fails, the client gets 503 and nothing is
	// stored. Otherwise done is called once, with the outcome of storing,
	// before the client is answered; an error from done does not undo the
	// change, and is logged.
	Begin(ctx context.Context, store Store, c Change) (done func(ctx context.Context, stored error) error, err error)
}

// ObserverFunc is a function as an [Observer].
type ObserverFunc func(ctx context.Context, store Store, c Change) (done func(ctx context.Context, stored error) error, err error)

// Begin calls the function.
func (f ObserverFunc) Begin(ctx context.Context, store Store, c Change) (func(ctx context.Context, stored error) error, error) {
	return f(ctx, store, c)
}

// Admission decides whether a manifest may be stored. Its referenced blobs
// are in the store already.
type Admission interface {
	// Admit returns nil to accept the change. A [*RefusedError] is shown to
	// the client as it is.
	Admit(ctx context.Context, store Store, c Change) error
}

// RefusedError is an admission's refusal.
type RefusedError struct {
	Code    string // an OCI error code: DENIED or MANIFEST_INVALID
	Message string
	Detail  any // marshalled into the error's detail; may be nil
}

func (e *RefusedError) Error() string { return e.Message }
