// Package regstore is what a registry server asks of its storage: the Driver
// interface, its errors, and the manifests, names and digests that both sides
// agree on.
//
// The server (package regserver) knows the protocol and no storage; drivers
// (regdir, regmem, regbucket, regproxy) know storage and no protocol. Every
// driver runs the same suite (package regtest).
package regstore

import (
	"context"
	"io"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/krmcat/krmcat/registry"
)

// Driver stores the content of a registry. Names, tags, digests and manifests
// that it is given have been checked by the caller (see [ValidRepository],
// [ValidTag], [ParseDigest], [ParseManifest]).
//
// When a method that stores something returns nil, what it stored survives
// the loss of power, as far as the medium behind the driver can promise that.
// Content that is not there is an error that wraps [io/fs.ErrNotExist]; a
// medium that cannot answer just now is [ErrUnavailable], one that is full is
// [ErrNoSpace]. A driver is safe for concurrent use.
type Driver interface {
	registry.Store

	// Manifest reads the manifest that a tag or a digest names. The
	// descriptor has the media type, digest and size.
	Manifest(ctx context.Context, repository, reference string) (ocispec.Descriptor, []byte, error)
	// PutManifest stores a manifest and then points the tags at it. The
	// blobs and manifests it refers to are in the repository, or the error
	// is a [*MissingError]. An immutable tag that points at something else
	// already is a [*TagError], and nothing is stored. Storing what is there
	// already is success.
	PutManifest(ctx context.Context, repository string, m *Manifest, tags []Tag) error
	// DeleteManifest removes a manifest and the tags that point at it.
	DeleteManifest(ctx context.Context, repository string, d digest.Digest) error
	// DeleteTag removes a tag; its manifest stays.
	DeleteTag(ctx context.Context, repository, tag string) error

	// StatBlob returns the size of a blob of the repository. A blob that was
	// asked for here is spared by a garbage collection for its grace
	// period, because a client who was told that it is there will not send it.
	StatBlob(ctx context.Context, repository string, d digest.Digest) (int64, error)
	// OpenBlob opens a blob of the repository and returns its size. Seek
	// may come before the first Read. The caller closes it.
	OpenBlob(ctx context.Context, repository string, d digest.Digest) (io.ReadSeekCloser, int64, error)
	// MountBlob makes a blob of the repository from, or of any repository
	// if from is empty, one of the given repository too. A driver that cannot
	// do that says [errors.ErrUnsupported].
	MountBlob(ctx context.Context, repository, from string, d digest.Digest) error
	// DeleteBlob removes a blob from the repository, unless a manifest there
	// refers to it ([ErrInUse]).
	DeleteBlob(ctx context.Context, repository string, d digest.Digest) error

	// StartUpload begins an upload and returns an id of letters, digits,
	// '-' and '_'. Too many unfinished ones are [ErrTooManyUploads].
	StartUpload(ctx context.Context, repository string) (string, error)
	// UploadSize returns how many bytes an upload has received. Uploads of
	// other repositories are [ErrUploadUnknown] here and below.
	UploadSize(ctx context.Context, repository, id string) (int64, error)
	// AppendUpload adds a chunk and returns the size so far, and the id to go
	// on with, which may be another one. A chunk that does not start at the
	// end is an [*OffsetError]. When the body fails, its error is returned and
	// what was read before may be kept.
	AppendUpload(ctx context.Context, repository, id string, c Chunk) (next string, size int64, err error)
	// FinishUpload adds the last chunk, which may be empty, checks the
	// content against the digest ([ErrDigest]), stores it as a blob of the
	// repository and ends the upload. An empty id stores the chunk without
	// an upload having been started.
	FinishUpload(ctx context.Context, repository, id string, c Chunk, d digest.Digest) error
	// CancelUpload ends an upload and drops what it received.
	CancelUpload(ctx context.Context, repository, id string) error

	// Usage returns how many bytes of blobs and manifests a repository
	// holds; a blob that several repositories hold counts in each. A driver
	// that does not know says [errors.ErrUnsupported].
	Usage(ctx context.Context, repository string) (int64, error)

	// Close ends the use of the storage. No other call may be running.
	Close() error
}

// Tag is a tag to point at a manifest.
type Tag struct {
	Name      string
	Immutable bool // never to be pointed at anything else
}

// Chunk is a piece of an upload.
type Chunk struct {
	Body   io.Reader // nil is empty
	Offset int64     // where it starts in the blob; negative is wherever the upload is
	Size   int64     // of the body; negative is unknown
	Limit  int64     // of the whole blob; past it is [ErrTooLarge]; 0 is none
}

// Reader returns the body, to be added to the size bytes that there are, or
// the error of a chunk that does not belong there: an [*OffsetError] or
// [ErrTooLarge]. Reading fails with ErrTooLarge past the limit.
func (c Chunk) Reader(size int64) (io.Reader, error) {
	switch {
	case c.Limit > 0 && c.Offset > c.Limit:
		return nil, ErrTooLarge
	case c.Offset >= 0 && c.Offset != size:
		return nil, &OffsetError{Offset: c.Offset, Size: size}
	case c.Body == nil:
		return eof{}, nil
	case c.Limit <= 0:
		return reader{c.Body}, nil
	case size > c.Limit || c.Size > c.Limit-size:
		return nil, ErrTooLarge
	}
	return &limited{c.Body, c.Limit - size}, nil
}

type eof struct{}

func (eof) Read([]byte) (int, error) { return 0, io.EOF }

// reader hides everything but Read.
type reader struct{ io.Reader }

type limited struct {
	r    io.Reader
	left int64
}

func (l *limited) Read(p []byte) (int, error) {
	if int64(len(p)) > l.left+1 { // one more tells the end from too much
		p = p[:l.left+1]
	}
	n, err := l.r.Read(p)
	if int64(n) > l.left {
		return 0, ErrTooLarge
	}
	l.left -= int64(n)
	return n, err
}
