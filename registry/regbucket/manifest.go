package regbucket

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"github.com/krmcat/krmcat/registry"
	"github.com/krmcat/krmcat/registry/regstore"
)

func noManifest(repository, reference string) error {
	return fmt.Errorf("manifest %s in %s: %w", reference, repository, fs.ErrNotExist)
}

// maxMediaType bounds the first line of a manifest's object, and maxObject
// the object.
const (
	maxMediaType = 256
	maxObject    = registry.MaxManifestBytes + maxMediaType + 1
)

func (s *Store) manifestKey(repository string, d digest.Digest) string {
	return s.repoKey(repository, "_manifests", objectName(d))
}

func (s *Store) referrerKey(repository string, subject, d digest.Digest) string {
	return s.repoKey(repository, "_referrers", objectName(subject)+"/"+objectName(d))
}

// lookup returns the digest that a reference means.
func (s *Store) lookup(ctx context.Context, repository, reference string) (digest.Digest, error) {
	if strings.Contains(reference, ":") {
		return digest.Digest(reference), nil
	}
	d, err := s.readTag(ctx, repository, reference)
	if errors.Is(err, fs.ErrNotExist) {
		// A push asks before it stores; this spares it asking again. Whether
		// the tag is free is decided when it is created.
		s.cache.put(kindAbsent+s.tagKey(repository, reference), true, 0, time.Second)
	}
	return d, err
}

// Resolve finds the manifest for a tag or a digest.
func (s *Store) Resolve(ctx context.Context, repository, reference string) (ocispec.Descriptor, error) {
	d, err := s.lookup(ctx, repository, reference)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	desc, _, err := s.readManifest(ctx, repository, d, maxCached)
	return desc, err
}

// Manifest reads the manifest for a tag or a digest.
func (s *Store) Manifest(ctx context.Context, repository, reference string) (ocispec.Descriptor, []byte, error) {
	d, err := s.lookup(ctx, repository, reference)
	if err != nil {
		return ocispec.Descriptor{}, nil, err
	}
	return s.readManifest(ctx, repository, d, maxObject)
}

// FetchManifest reads a manifest.
func (s *Store) FetchManifest(ctx context.Context, repository string, d digest.Digest) ([]byte, error) {
	_, content, err := s.readManifest(ctx, repository, d, maxObject)
	return slices.Clone(content), err
}

// readManifest reads a manifest and checks its digest; or, if it has more
// bytes than the limit, its descriptor only.
func (s *Store) readManifest(ctx context.Context, repository string, d digest.Digest, limit int64) (ocispec.Descriptor, []byte, error) {
	key := s.manifestKey(repository, d)
	object, ok := s.content(key)
	size := int64(len(object))
	if !ok {
		var err error
		if object, size, err = s.get(ctx, key, limit); err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				return ocispec.Descriptor{}, nil, noManifest(repository, string(d))
			}
			return ocispec.Descriptor{}, nil, err
		}
		s.seen(key, size)
	}
	i := bytes.IndexByte(object[:min(len(object), maxMediaType)], '\n')
	if i < 0 || size > maxObject {
		return ocispec.Descriptor{}, nil, fmt.Errorf("manifest %s in %s: object is damaged: it does not begin with a media type, or is too large", d, repository)
	}
	desc := ocispec.Descriptor{MediaType: string(object[:i]), Digest: d, Size: size - int64(i) - 1}
	if int64(len(object)) < size {
		return desc, nil, nil
	}
	content := object[i+1:]
	if !ok {
		if d.Algorithm().FromBytes(content) != d {
			return ocispec.Descriptor{}, nil, fmt.Errorf("manifest %s in %s is damaged in the bucket; push it again: %w", d, repository, regstore.ErrDigest)
		}
		s.keepContent(key, object)
	}
	return desc, content, nil
}

// manifests reads all manifests of a repository. One that is damaged is
// passed over; fsck reports it.
func (s *Store) manifests(ctx context.Context, repository string) iter.Seq2[*regstore.Manifest, error] {
	return func(yield func(*regstore.Manifest, error) bool) {
		for m, err := range inOrder(ctx, s.digests(ctx, s.repoKey(repository, "_manifests", "")), func(ctx context.Context, d digest.Digest) (*regstore.Manifest, error) {
			return s.parse(ctx, repository, d)
		}) {
			if err == nil && m == nil {
				continue
			}
			if !yield(m, err) {
				return
			}
		}
	}
}

// parse reads and parses a manifest; nil is one that is gone or damaged.
func (s *Store) parse(ctx context.Context, repository string, d digest.Digest) (*regstore.Manifest, error) {
	desc, content, err := s.readManifest(ctx, repository, d, maxObject)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case errors.Is(err, regstore.ErrUnavailable), ctx.Err() != nil:
		return nil, err
	}
	var m *regstore.Manifest
	if err == nil {
		m, err = regstore.ParseManifest(desc.MediaType, content, d)
	}
	if err != nil {
		s.log.ErrorContext(ctx, "stored manifest cannot be read; run fsck", "repository", repository, "digest", d, "error", err)
		return nil, nil
	}
	return m, nil
}

// digests lists the digests that objects under a prefix are named after.
func (s *Store) digests(ctx context.Context, prefix string) iter.Seq2[digest.Digest, error] {
	return func(yield func(digest.Digest, error) bool) {
		for o, err := range s.list(ctx, prefix, "", true, 0) {
			if err != nil {
				yield("", err)
				return
			}
			if d, ok := parseObjectName(strings.TrimPrefix(o.Key, prefix)); ok && !yield(d, nil) {
				return
			}
		}
	}
}

// width is how many requests one list makes at a time.
const width = 16

// inOrder calls f for the items of a list, some at a time, and returns the
// results in the order of the items. It ends with the first error.
func inOrder[K, V any](ctx context.Context, items iter.Seq2[K, error], f func(context.Context, K) (V, error)) iter.Seq2[V, error] {
	return func(yield func(V, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		var running sync.WaitGroup
		defer running.Wait() // nothing goes on when the list has ended
		defer cancel()
		type result struct {
			v   V
			err error
		}
		queue := make(chan chan result, width-1)
		running.Go(func() {
			defer close(queue)
			for item, err := range items {
				one := make(chan result, 1)
				select {
				case queue <- one:
				case <-ctx.Done():
					return
				}
				if err != nil {
					one <- result{err: err}
					return
				}
				running.Go(func() {
					v, err := f(ctx, item)
					one <- result{v, err}
				})
			}
		})
		for one := range queue {
			r := <-one
			if !yield(r.v, r.err) || r.err != nil {
				return
			}
		}
	}
}

// PutManifest stores a manifest and points tags at it.
func (s *Store) PutManifest(ctx context.Context, repository string, m *regstore.Manifest, tags []regstore.Tag) error {
	d := m.Descriptor.Digest
	if err := s.checkReferences(ctx, repository, m); err != nil {
		return err
	}
	// From here on it takes less than Settle, or fails.
	ctx, cancel := context.WithTimeoutCause(ctx, Settle/2, regstore.ErrUnavailable)
	defer cancel()
	err := s.putManifest(ctx, repository, m, tags)
	if err != nil && context.Cause(ctx) == regstore.ErrUnavailable { //nolint:errorlint // the cause is set as it is above
		return fmt.Errorf("storing manifest %s in %s: %w: it took too long", d, repository, regstore.ErrUnavailable)
	}
	return err
}

func (s *Store) putManifest(ctx context.Context, repository string, m *regstore.Manifest, tags []regstore.Tag) error {
	d := m.Descriptor.Digest
	// Those that never move first: if one is taken, none is set.
	var fixed, moving []string
	for _, t := range tags {
		if !t.Immutable {
			moving = append(moving, t.Name)
			continue
		}
		have, err := s.takenBy(ctx, repository, t.Name)
		switch {
		case err != nil:
			return err
		case have == "":
			fixed = append(fixed, t.Name)
		case have != d:
			return &regstore.TagError{Tag: t.Name, Digest: have}
		}
	}
	if err := s.writeManifest(ctx, repository, m); err != nil {
		return err
	}
	for _, t := range fixed {
		if err := s.createTag(ctx, repository, t, d); err != nil {
			return err
		}
	}
	for _, t := range moving {
		if err := s.put(ctx, s.tagKey(repository, t), tagObject(d), "", minio.PutObjectOptions{}); err != nil {
			return err
		}
	}
	if len(fixed)+len(moving) == 0 {
		return nil
	}
	// One who deletes the manifest removes its tags before and after: either
	// that one sees the tags set here, or this sees that the manifest is gone.
	if _, err := s.head(ctx, s.manifestKey(repository, d)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return s.writeManifest(ctx, repository, m)
}

// checkReferences looks for what a manifest refers to.
func (s *Store) checkReferences(ctx context.Context, repository string, m *regstore.Manifest) error {
	blobs, manifests := m.References()
	all := slices.Concat(blobs, manifests)
	absent := make([]bool, len(all))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(width)
	for i, d := range all {
		g.Go(func() error {
			var err error
			if i < len(blobs) {
				_, err = s.StatBlob(gctx, repository, d)
			} else if _, ok := s.sawLately(s.manifestKey(repository, d)); !ok {
				_, err = s.head(gctx, s.manifestKey(repository, d))
			}
			if absent[i] = errors.Is(err, fs.ErrNotExist); absent[i] {
				return nil
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return cmp.Or(ctx.Err(), err)
	}
	var missing []digest.Digest
	for i, d := range all {
		if absent[i] {
			missing = append(missing, d)
		}
	}
	if missing != nil {
		return &regstore.MissingError{Digests: missing}
	}
	return nil
}

// writeManifest stores a manifest, and before it its entry as a referrer: an
// entry without its manifest is passed over, a manifest without its entry
// would be lost to its subject.
func (s *Store) writeManifest(ctx context.Context, repository string, m *regstore.Manifest) error {
	d := m.Descriptor.Digest
	if m.Subject != "" {
		if err := s.put(ctx, s.referrerKey(repository, m.Subject, d), nil, "", minio.PutObjectOptions{}); err != nil {
			return err
		}
	}
	key := s.manifestKey(repository, d)
	object := slices.Concat([]byte(m.Descriptor.MediaType+"\n"), m.Content)
	if err := s.put(ctx, key, object, "", minio.PutObjectOptions{}); err != nil {
		return err
	}
	s.seen(key, int64(len(object)))
	s.keepContent(key, object)
	return nil
}

// DeleteManifest removes a manifest after the tags that point at it.
func (s *Store) DeleteManifest(ctx context.Context, repository string, d digest.Digest) error {
	s.cache.forget(s.manifestKey(repository, d))
	desc, content, err := s.readManifest(ctx, repository, d, maxObject)
	s.cache.forget(s.manifestKey(repository, d))
	damaged := err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, regstore.ErrUnavailable) && ctx.Err() == nil
	if err != nil && !damaged {
		return err
	}
	if err := s.removeTags(ctx, repository, d); err != nil {
		return err
	}
	if err := s.remove(ctx, s.manifestKey(repository, d)); err != nil {
		return err
	}
	s.cache.forget(s.manifestKey(repository, d))
	if err := s.removeTags(ctx, repository, d); err != nil { // see PutManifest
		return err
	}
	if damaged {
		return nil // its entry is passed over, and goes with fsck
	}
	m, err := regstore.ParseManifest(desc.MediaType, content, d)
	if err != nil || m.Subject == "" {
		return nil
	}
	return s.removeReferrer(ctx, repository, m.Subject, d)
}

// removeReferrer removes the entry of a referrer whose manifest is gone. If
// that came back meanwhile, so does the entry.
func (s *Store) removeReferrer(ctx context.Context, repository string, subject, d digest.Digest) error {
	key := s.referrerKey(repository, subject, d)
	if err := s.remove(ctx, key); err != nil {
		return err
	}
	if _, err := s.head(ctx, s.manifestKey(repository, d)); err == nil {
		return s.put(ctx, key, nil, "", minio.PutObjectOptions{})
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Referrers lists the manifests whose subject is d, by their digests.
func (s *Store) Referrers(ctx context.Context, repository string, d digest.Digest, artifactType string) iter.Seq2[ocispec.Descriptor, error] {
	return func(yield func(ocispec.Descriptor, error) bool) {
		prefix := s.repoKey(repository, "_referrers", objectName(d)+"/")
		for m, err := range inOrder(ctx, s.digests(ctx, prefix), func(ctx context.Context, r digest.Digest) (*regstore.Manifest, error) {
			return s.parse(ctx, repository, r)
		}) {
			switch {
			case err != nil:
				yield(ocispec.Descriptor{}, err)
				return
			case m == nil || m.Subject != d || artifactType != "" && m.Descriptor.ArtifactType != artifactType:
			case !yield(m.Descriptor, nil):
				return
			}
		}
	}
}
