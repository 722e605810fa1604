package regproxy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"log/slog"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/singleflight"

	"github.com/krmcat/krmcat/registry/regstore"
)

// CacheOptions are the optional settings of a [Cache].
type CacheOptions struct {
	// Log gets what is served although the upstream does not answer. Nil is
	// silent.
	Log *slog.Logger
	// TagTTL is how long a tag is taken to point where it did; 0 is a minute.
	TagTTL time.Duration
}

// Cache is a read-only driver that reads through to another registry and
// keeps what it read: blobs and manifests under their digests, for good, and
// tags for when the other registry does not answer. Nothing is passed on that
// does not match its digest.
type Cache struct {
	up    *Upstream
	local regstore.Driver
	log   *slog.Logger
	ttl   time.Duration

	fetches singleflight.Group

	mu      sync.Mutex
	tags    map[string]tagAt
	pending map[string]*waiting
}

var _ regstore.Driver = (*Cache)(nil)

type tagAt struct {
	desc  ocispec.Descriptor
	until time.Time
}

// waiting is a manifest that becomes one of the local store when its blobs
// are there. Until then it is kept as a blob.
type waiting struct {
	repository string
	manifest   *regstore.Manifest
	tags       map[string]bool
}

// maxTags and maxPending bound the memory of a cache.
const (
	maxTags    = 50_000
	maxPending = 1000
)

// NewCache returns a cache of a registry in a local store, which it closes.
func NewCache(up *Upstream, local regstore.Driver, opts *CacheOptions) *Cache {
	c := &Cache{up: up, local: local, ttl: time.Minute, tags: map[string]tagAt{}, pending: map[string]*waiting{}}
	if opts != nil {
		c.log = opts.Log
		if opts.TagTTL != 0 {
			c.ttl = opts.TagTTL
		}
	}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	return c
}

// Close closes the local store.
func (c *Cache) Close() error { return c.local.Close() }

// stale reports whether an error of the upstream is no reason to keep back
// what is here.
func (c *Cache) stale(ctx context.Context, what, repository string, err error) bool {
	if err == nil || !errors.Is(err, regstore.ErrUnavailable) {
		return false
	}
	c.log.WarnContext(ctx, "the other registry does not answer; serving what is here", "what", what, "repository", repository, "error", err)
	return true
}

// Resolve finds the manifest for a tag or a digest.
func (c *Cache) Resolve(ctx context.Context, repository, reference string) (ocispec.Descriptor, error) {
	if _, err := regstore.ParseDigest(reference); err == nil {
		if desc, err := c.local.Resolve(ctx, repository, reference); err == nil {
			return desc, nil
		}
		desc, err := c.up.resolve(ctx, repository, reference)
		if c.stale(ctx, "manifest", repository, err) {
			if here, _, herr := c.kept(ctx, repository, digest.Digest(reference)); herr == nil {
				return here, nil
			}
		}
		return desc, err
	}
	key := repository + ":" + reference
	c.mu.Lock()
	t, ok := c.tags[key]
	c.mu.Unlock()
	if ok && time.Now().Before(t.until) {
		return t.desc, nil
	}
	desc, err := c.up.resolve(ctx, repository, reference)
	if c.stale(ctx, "tag", repository, err) {
		if ok {
			return t.desc, nil
		}
		if here, herr := c.local.Resolve(ctx, repository, reference); herr == nil {
			return here, nil
		}
		return desc, err // it may be there
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		delete(c.tags, key)
		return desc, err
	}
	if len(c.tags) >= maxTags {
		clear(c.tags)
	}
	c.tags[key] = tagAt{desc, time.Now().Add(c.ttl)}
	return desc, nil
}

// Manifest reads the manifest for a tag or a digest.
func (c *Cache) Manifest(ctx context.Context, repository, reference string) (ocispec.Descriptor, []byte, error) {
	desc, err := c.Resolve(ctx, repository, reference)
	if err != nil {
		return desc, nil, err
	}
	tag := ""
	if reference != string(desc.Digest) {
		tag = reference
	}
	found, b, err := c.local.Manifest(ctx, repository, string(desc.Digest))
	if err != nil {
		found, b, err = c.kept(ctx, repository, desc.Digest)
	}
	if err != nil {
		if found, b, err = c.up.manifest(ctx, repository, string(desc.Digest)); err != nil {
			return found, nil, err
		}
	}
	c.keep(ctx, repository, found, b, tag)
	return found, b, nil
}

// kept reads a manifest that is kept as a blob.
func (c *Cache) kept(ctx context.Context, repository string, d digest.Digest) (ocispec.Descriptor, []byte, error) {
	rc, err := c.local.FetchBlob(ctx, repository, d)
	if err != nil {
		return ocispec.Descriptor{}, nil, err
	}
	defer func() { _ = rc.Close() }() // only read
	b, err := io.ReadAll(rc)
	if err != nil {
		return ocispec.Descriptor{}, nil, err
	}
	m, err := regstore.ParseManifest("", b, d)
	if err != nil { // it does not say its type, or is none
		return ocispec.Descriptor{}, nil, fmt.Errorf("manifest %s in %s: %w", d, repository, fs.ErrNotExist)
	}
	return m.Plain(), b, nil
}

// keep stores a manifest. That it cannot is no reason not to serve it.
func (c *Cache) keep(ctx context.Context, repository string, desc ocispec.Descriptor, b []byte, tag string) {
	if regstore.CheckManifest(b) != nil {
		return // served as it is, and not kept
	}
	m, err := regstore.ParseManifest(desc.MediaType, b, desc.Digest)
	if err != nil {
		return // of a kind that is served and not kept
	}
	w := &waiting{repository: repository, manifest: m, tags: map[string]bool{}}
	if tag != "" {
		w.tags[tag] = true
	}
	err = c.promote(ctx, w)
	var missing *regstore.MissingError
	switch {
	case errors.As(err, &missing):
		c.mu.Lock()
		key := repository + "@" + string(desc.Digest)
		if old, ok := c.pending[key]; ok && tag != "" {
			old.tags[tag] = true
		} else if !ok && len(c.pending) < maxPending {
			c.pending[key] = w
		}
		c.mu.Unlock()
		err = c.local.FinishUpload(ctx, repository, "", regstore.Chunk{Body: bytes.NewReader(b), Offset: -1, Size: int64(len(b))}, desc.Digest)
	}
	if err != nil {
		c.log.WarnContext(ctx, "manifest was not kept", "repository", repository, "digest", desc.Digest, "error", err)
	}
}

func (c *Cache) promote(ctx context.Context, w *waiting) error {
	var tags []regstore.Tag
	for t := range w.tags {
		tags = append(tags, regstore.Tag{Name: t})
	}
	return c.local.PutManifest(ctx, w.repository, w.manifest, tags)
}

// arrived stores the manifests that have waited for a blob.
func (c *Cache) arrived(ctx context.Context, repository string, d digest.Digest) {
	c.mu.Lock()
	var ready []*waiting
	for _, w := range c.pending {
		if w.repository != repository {
			continue
		}
		for _, b := range w.manifest.Blobs {
			if b.Digest == d {
				ready = append(ready, w)
				break
			}
		}
	}
	c.mu.Unlock()
	for _, w := range ready {
		if c.promote(ctx, w) == nil {
			c.mu.Lock()
			delete(c.pending, repository+"@"+string(w.manifest.Descriptor.Digest))
			c.mu.Unlock()
		}
	}
}

// FetchManifest reads a manifest.
func (c *Cache) FetchManifest(ctx context.Context, repository string, d digest.Digest) ([]byte, error) {
	_, b, err := c.Manifest(ctx, repository, string(d))
	return b, err
}

// Tags lists the tags of a repository.
func (c *Cache) Tags(ctx context.Context, repository, after string) iter.Seq2[string, error] {
	return fallback(c, ctx, "tags", repository, c.up.tags(ctx, repository, after), c.local.Tags(ctx, repository, after))
}

// Referrers lists the manifests whose subject is d.
func (c *Cache) Referrers(ctx context.Context, repository string, d digest.Digest, artifactType string) iter.Seq2[ocispec.Descriptor, error] {
	return fallback(c, ctx, "referrers", repository, sorted(c.up.referrers(ctx, repository, d, artifactType)), c.local.Referrers(ctx, repository, d, artifactType))
}

// Repositories lists repository names.
func (c *Cache) Repositories(ctx context.Context, after string) iter.Seq2[string, error] {
	return fallback(c, ctx, "repositories", "", c.up.repositories(ctx, after), c.local.Repositories(ctx, after))
}

// fallback lists what is here if the upstream fails before its first entry.
func fallback[T any](c *Cache, ctx context.Context, what, repository string, up, local iter.Seq2[T, error]) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		first, failed := true, false
		for v, err := range up {
			if first && c.stale(ctx, what, repository, err) {
				failed = true
				break
			}
			first = false
			if !yield(v, err) {
				return
			}
		}
		if !failed {
			return
		}
		for v, err := range local {
			if !yield(v, err) {
				return
			}
		}
	}
}

// StatBlob returns the size of a blob.
func (c *Cache) StatBlob(ctx context.Context, repository string, d digest.Digest) (int64, error) {
	if n, err := c.local.StatBlob(ctx, repository, d); err == nil {
		return n, nil
	}
	return c.up.statBlob(ctx, repository, d)
}

// OpenBlob opens a blob, which is fetched and checked first if need be. Of
// those who ask for the same one at the same time, one fetches it.
func (c *Cache) OpenBlob(ctx context.Context, repository string, d digest.Digest) (io.ReadSeekCloser, int64, error) {
	rc, size, err := c.local.OpenBlob(ctx, repository, d)
	if err == nil || !errors.Is(err, fs.ErrNotExist) {
		return rc, size, err
	}
	// It goes on for the others when the first one hangs up.
	fetch := c.fetches.DoChan(repository+"@"+string(d), func() (any, error) {
		return nil, c.fetch(context.WithoutCancel(ctx), repository, d)
	})
	select {
	case res := <-fetch:
		if res.Err != nil {
			return nil, 0, res.Err
		}
	case <-ctx.Done():
		return nil, 0, ctx.Err()
	}
	return c.local.OpenBlob(ctx, repository, d)
}

func (c *Cache) fetch(ctx context.Context, repository string, d digest.Digest) error {
	size, err := c.up.statBlob(ctx, repository, d)
	if err != nil {
		return err
	}
	rc, err := c.up.openBlob(ctx, repository, ocispec.Descriptor{Digest: d, Size: size})
	if err != nil {
		return err
	}
	defer func() { _ = rc.Close() }() // only read
	err = c.local.FinishUpload(ctx, repository, "", regstore.Chunk{Body: rc, Offset: -1, Size: size}, d)
	if errors.Is(err, regstore.ErrDigest) {
		return fmt.Errorf("%w: the other registry sent something else for blob %s of %s", regstore.ErrUnavailable, d, repository)
	} else if err != nil {
		return upstreamError(err)
	}
	c.arrived(ctx, repository, d)
	return nil
}

// FetchBlob opens a blob.
func (c *Cache) FetchBlob(ctx context.Context, repository string, d digest.Digest) (io.ReadCloser, error) {
	rc, _, err := c.OpenBlob(ctx, repository, d)
	if err != nil {
		return nil, err
	}
	return rc, nil
}

// Usage returns what the cache holds of a repository.
func (c *Cache) Usage(ctx context.Context, repository string) (int64, error) {
	return c.local.Usage(ctx, repository)
}

// The rest is for changes, of which a cache makes none: [regstore.ErrReadOnly].

// PutManifest refuses.
func (*Cache) PutManifest(context.Context, string, *regstore.Manifest, []regstore.Tag) error {
	return regstore.ErrReadOnly
}

// DeleteManifest refuses.
func (*Cache) DeleteManifest(context.Context, string, digest.Digest) error {
	return regstore.ErrReadOnly
}

// DeleteTag refuses.
func (*Cache) DeleteTag(context.Context, string, string) error { return regstore.ErrReadOnly }

// MountBlob refuses.
func (*Cache) MountBlob(context.Context, string, string, digest.Digest) error {
	return regstore.ErrReadOnly
}

// DeleteBlob refuses.
func (*Cache) DeleteBlob(context.Context, string, digest.Digest) error { return regstore.ErrReadOnly }

// StartUpload refuses.
func (*Cache) StartUpload(context.Context, string) (string, error) { return "", regstore.ErrReadOnly }

// UploadSize refuses.
func (*Cache) UploadSize(context.Context, string, string) (int64, error) {
	return 0, regstore.ErrReadOnly
}

// AppendUpload refuses.
func (*Cache) AppendUpload(_ context.Context, _, id string, _ regstore.Chunk) (string, int64, error) {
	return id, 0, regstore.ErrReadOnly
}

// FinishUpload refuses.
func (*Cache) FinishUpload(context.Context, string, string, regstore.Chunk, digest.Digest) error {
	return regstore.ErrReadOnly
}

// CancelUpload refuses.
func (*Cache) CancelUpload(context.Context, string, string) error { return regstore.ErrReadOnly }
