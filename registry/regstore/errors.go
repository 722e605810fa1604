package regstore

import (
	"errors"
	"fmt"
	"strings"

	"github.com/opencontainers/go-digest"
)

// Errors of drivers; test for them with [errors.Is].
var (
	// ErrUploadUnknown: the upload was never started, is finished, was
	// cancelled or has expired.
	ErrUploadUnknown = errors.New("upload unknown")
	// ErrTooManyUploads: the storage has as many unfinished uploads as it
	// allows.
	ErrTooManyUploads = errors.New("too many unfinished uploads")
	// ErrTooLarge: a blob is larger than allowed.
	ErrTooLarge = errors.New("blob is too large")
	// ErrDigest: content does not match the digest it was sent with.
	ErrDigest = errors.New("content does not match its digest")
	// ErrInUse: a manifest of the repository refers to the blob.
	ErrInUse = errors.New("a manifest of the repository refers to it")
	// ErrNoSpace: the storage is full.
	ErrNoSpace = errors.New("storage is full")
	// ErrReadOnly: the storage accepts no changes.
	ErrReadOnly = errors.New("storage is read-only")
	// ErrUnavailable: the storage does not answer just now.
	ErrUnavailable = errors.New("storage is not available")
)

// OffsetError says that a chunk does not continue an upload.
type OffsetError struct {
	Offset int64 // of the chunk
	Size   int64 // that the upload has
}

func (e *OffsetError) Error() string {
	return fmt.Sprintf("chunk starts at byte %d, but the upload has %d bytes", e.Offset, e.Size)
}

// TagError says that an immutable tag points at another manifest.
type TagError struct {
	Tag    string
	Digest digest.Digest // what the tag points at
}

func (e *TagError) Error() string {
	return fmt.Sprintf("tag %s is %s already and does not change", e.Tag, e.Digest)
}

// MissingError says which content a manifest refers to that is not in its
// repository.
type MissingError struct {
	Digests []digest.Digest
}

func (e *MissingError) Error() string {
	s := make([]string, len(e.Digests))
	for i, d := range e.Digests {
		s[i] = string(d)
	}
	return "the manifest refers to content that is not in the repository: " + strings.Join(s, ", ")
}
