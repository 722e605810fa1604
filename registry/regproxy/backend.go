package regproxy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"net/http"
	"slices"
	"sync"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/errdef"
	"oras.land/oras-go/v2/registry/remote/errcode"

	"github.com/krmcat/krmcat/registry/regstore"
)

// Backend is a driver that keeps everything in another registry.
//
// Releases are immutable for all who push through this backend. The protocol
// has no condition for that, so whoever pushes to the other registry directly,
// or through a second backend at the same moment, can still move them.
// Mounting from an unknown repository and [Backend.Usage] are not possible.
type Backend struct {
	up    *Upstream
	spool regstore.Driver
	tags  sync.Map // repository:tag -> *sync.Mutex
}

var _ regstore.Driver = (*Backend)(nil)

// NewBackend returns a driver over another registry. Uploads are collected in
// spool, such as an empty [github.com/krmcat/krmcat/registry/regdir] or regmem
// store, until they are complete. The backend closes it.
func NewBackend(up *Upstream, spool regstore.Driver) *Backend { return &Backend{up: up, spool: spool} }

// Close closes the spool.
func (b *Backend) Close() error { return b.spool.Close() }

// Repositories lists repository names, if the other registry does.
func (b *Backend) Repositories(ctx context.Context, after string) iter.Seq2[string, error] {
	return b.up.repositories(ctx, after)
}

// Tags lists the tags of a repository.
func (b *Backend) Tags(ctx context.Context, repository, after string) iter.Seq2[string, error] {
	return b.up.tags(ctx, repository, after)
}

// Resolve finds the manifest for a tag or a digest.
func (b *Backend) Resolve(ctx context.Context, repository, reference string) (ocispec.Descriptor, error) {
	return b.up.resolve(ctx, repository, reference)
}

// Manifest reads the manifest for a tag or a digest.
func (b *Backend) Manifest(ctx context.Context, repository, reference string) (ocispec.Descriptor, []byte, error) {
	return b.up.manifest(ctx, repository, reference)
}

// FetchManifest reads a manifest.
func (b *Backend) FetchManifest(ctx context.Context, repository string, d digest.Digest) ([]byte, error) {
	_, content, err := b.up.manifest(ctx, repository, string(d))
	return content, err
}

// Referrers lists the manifests whose subject is d, by their digests.
func (b *Backend) Referrers(ctx context.Context, repository string, d digest.Digest, artifactType string) iter.Seq2[ocispec.Descriptor, error] {
	return sorted(b.up.referrers(ctx, repository, d, artifactType))
}

// sorted brings referrers into the order that pages need.
func sorted(seq iter.Seq2[ocispec.Descriptor, error]) iter.Seq2[ocispec.Descriptor, error] {
	return func(yield func(ocispec.Descriptor, error) bool) {
		var list []ocispec.Descriptor
		for desc, err := range seq {
			if err != nil {
				yield(desc, err)
				return
			}
			list = append(list, desc)
		}
		slices.SortFunc(list, func(a, b ocispec.Descriptor) int { return bytes.Compare([]byte(a.Digest), []byte(b.Digest)) })
		for _, desc := range list {
			if !yield(desc, nil) {
				return
			}
		}
	}
}

// StatBlob returns the size of a blob.
func (b *Backend) StatBlob(ctx context.Context, repository string, d digest.Digest) (int64, error) {
	return b.up.statBlob(ctx, repository, d)
}

// OpenBlob opens a blob. Who reads all of it gets the end only if it matches
// its digest; those who read a part have to check the whole themselves.
func (b *Backend) OpenBlob(ctx context.Context, repository string, d digest.Digest) (io.ReadSeekCloser, int64, error) {
	size, err := b.up.statBlob(ctx, repository, d)
	if err != nil {
		return nil, 0, err
	}
	open := func() (io.ReadCloser, error) {
		return b.up.openBlob(ctx, repository, ocispec.Descriptor{Digest: d, Size: size})
	}
	rc, err := open()
	if err != nil {
		return nil, 0, err
	}
	return &blob{open: open, rc: rc, size: size, digest: d, hash: d.Algorithm().Hash()}, size, nil
}

// FetchBlob opens a blob.
func (b *Backend) FetchBlob(ctx context.Context, repository string, d digest.Digest) (io.ReadCloser, error) {
	rc, _, err := b.OpenBlob(ctx, repository, d)
	if err != nil {
		return nil, err
	}
	return rc, nil
}

// PutManifest stores a manifest and points tags at it.
func (b *Backend) PutManifest(ctx context.Context, repository string, m *regstore.Manifest, tags []regstore.Tag) error {
	if err := b.checkReferences(ctx, repository, m); err != nil {
		return err
	}
	for _, t := range tags {
		if !t.Immutable {
			continue
		}
		v, _ := b.tags.LoadOrStore(repository+":"+t.Name, &sync.Mutex{})
		l := v.(*sync.Mutex)
		l.Lock()
		defer l.Unlock()
		have, err := b.up.resolve(ctx, repository, t.Name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return err
		case have.Digest != m.Descriptor.Digest:
			return &regstore.TagError{Tag: t.Name, Digest: have.Digest}
		}
	}
	r, err := b.up.repository(repository)
	if err != nil {
		return err
	}
	if err := r.Manifests().Push(ctx, m.Plain(), bytes.NewReader(m.Content)); err != nil {
		return upstreamError(err)
	}
	for _, t := range tags {
		if m.Descriptor.Digest.Algorithm() != digest.SHA256 {
			if err := b.up.tagDigest(ctx, repository, t.Name, m); err != nil {
				return err
			}
			continue
		}
		if err := r.Manifests().PushReference(ctx, m.Plain(), bytes.NewReader(m.Content), t.Name); err != nil {
			return upstreamError(err)
		}
	}
	return nil
}

func (b *Backend) checkReferences(ctx context.Context, repository string, m *regstore.Manifest) error {
	var missing []digest.Digest
	blobs, manifests := m.References()
	for i, d := range slices.Concat(blobs, manifests) {
		var err error
		if i < len(blobs) {
			_, err = b.up.statBlob(ctx, repository, d)
		} else {
			_, err = b.up.resolve(ctx, repository, string(d))
		}
		if errors.Is(err, fs.ErrNotExist) {
			missing = append(missing, d)
		} else if err != nil {
			return err
		}
	}
	if missing != nil {
		return &regstore.MissingError{Digests: missing}
	}
	return nil
}

// DeleteManifest removes a manifest.
func (b *Backend) DeleteManifest(ctx context.Context, repository string, d digest.Digest) error {
	desc, err := b.up.resolve(ctx, repository, string(d))
	if err != nil {
		return err
	}
	r, err := b.up.repository(repository)
	if err != nil {
		return err
	}
	return deleteError(r.Manifests().Delete(ctx, desc))
}

// deleteError says why a registry that has something does not delete it.
func deleteError(err error) error {
	var resp *errcode.ErrorResponse
	if errors.As(err, &resp) && resp.StatusCode == http.StatusMethodNotAllowed {
		return fmt.Errorf("%w, or the other registry deletes nothing: %w", regstore.ErrInUse, err)
	}
	return upstreamError(err)
}

// DeleteTag removes a tag, if the other registry does.
func (b *Backend) DeleteTag(ctx context.Context, repository, tag string) error {
	return b.up.deleteTag(ctx, repository, tag)
}

// MountBlob makes a blob one of another repository too.
func (b *Backend) MountBlob(ctx context.Context, repository, from string, d digest.Digest) error {
	if from == "" {
		return fmt.Errorf("mounting from any repository: %w", errors.ErrUnsupported)
	}
	size, err := b.up.statBlob(ctx, from, d)
	if err != nil {
		return err
	}
	r, err := b.up.repository(repository)
	if err != nil {
		return err
	}
	// A registry that does not mount is answered by not sending anything.
	err = r.Mount(ctx, ocispec.Descriptor{Digest: d, Size: size}, b.up.prefix+from, func() (io.ReadCloser, error) { return nil, errStop })
	if errors.Is(err, errStop) {
		return fmt.Errorf("mounting from %s: %w", from, errors.ErrUnsupported)
	}
	if err == nil && d.Algorithm() != digest.SHA256 {
		// Some mount the blob under its usual digest only.
		_, err = b.up.statBlob(ctx, repository, d)
	}
	return upstreamError(err)
}

// DeleteBlob removes a blob.
func (b *Backend) DeleteBlob(ctx context.Context, repository string, d digest.Digest) error {
	r, err := b.up.repository(repository)
	if err != nil {
		return err
	}
	return deleteError(r.Blobs().Delete(ctx, ocispec.Descriptor{Digest: d}))
}

// StartUpload begins an upload.
func (b *Backend) StartUpload(ctx context.Context, repository string) (string, error) {
	return b.spool.StartUpload(ctx, repository)
}

// UploadSize returns how much an upload received.
func (b *Backend) UploadSize(ctx context.Context, repository, id string) (int64, error) {
	return b.spool.UploadSize(ctx, repository, id)
}

// AppendUpload adds a chunk to an upload.
func (b *Backend) AppendUpload(ctx context.Context, repository, id string, c regstore.Chunk) (string, int64, error) {
	return b.spool.AppendUpload(ctx, repository, id, c)
}

// CancelUpload ends an upload.
func (b *Backend) CancelUpload(ctx context.Context, repository, id string) error {
	return b.spool.CancelUpload(ctx, repository, id)
}

// FinishUpload completes an upload in the spool, where it is checked, and
// sends it on.
func (b *Backend) FinishUpload(ctx context.Context, repository, id string, c regstore.Chunk, d digest.Digest) error {
	if err := b.spool.FinishUpload(ctx, repository, id, c, d); err != nil {
		return err
	}
	rc, size, err := b.spool.OpenBlob(ctx, repository, d)
	if errors.Is(err, fs.ErrNotExist) {
		// Somebody else sent the same blob on, and removed it here.
		_, err = b.up.statBlob(ctx, repository, d)
		return err
	} else if err != nil {
		return err
	}
	defer func() { _ = rc.Close() }() // only read
	r, err := b.up.repository(repository)
	if err != nil {
		return err
	}
	if err := r.Blobs().Push(ctx, ocispec.Descriptor{MediaType: "application/octet-stream", Digest: d, Size: size}, rc); err != nil && !errors.Is(err, errdef.ErrAlreadyExists) {
		return upstreamError(err)
	}
	if err := b.spool.DeleteBlob(ctx, repository, d); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Usage is not known of another registry.
func (b *Backend) Usage(context.Context, string) (int64, error) {
	return 0, fmt.Errorf("the size of a repository of another registry: %w", errors.ErrUnsupported)
}
