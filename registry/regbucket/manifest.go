package regbucket

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"slices"
	"strings"

	"github.com/minio/minio-go/v7"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"github.com/krmcat/krmcat/registry/regstore"
)

func noManifest(repository, reference string) error {
	return fmt.Errorf("manifest %s in %s: %w", reference, repository, fs.ErrNotExist)
}

// readTag returns what a tag points at.
func (s *Store) readTag(ctx context.Context, repository, tag string) (ocispec.Descriptor, error) {
	b, _, err := s.read(ctx, s.key(repository, "_tags", tag))
	if errors.Is(err, fs.ErrNotExist) {
		return ocispec.Descriptor{}, noManifest(repository, tag)
	} else if err != nil {
		return ocispec.Descriptor{}, err
	}
	var desc ocispec.Descriptor
	if err := json.Unmarshal(b, &desc); err != nil {
		return desc, fmt.Errorf("tag %s in %s: object is damaged: %w", tag, repository, err)
	}
	return desc, nil
}

// Resolve finds the manifest for a tag or a digest.
func (s *Store) Resolve(ctx context.Context, repository, reference string) (ocispec.Descriptor, error) {
	if !strings.Contains(reference, ":") {
		return s.readTag(ctx, repository, reference)
	}
	d := digest.Digest(reference)
	info, err := s.core.StatObject(ctx, s.bucket, s.key(repository, "_manifests", name(d)), minio.StatObjectOptions{})
	if err := storeError(err); errors.Is(err, fs.ErrNotExist) {
		return ocispec.Descriptor{}, noManifest(repository, reference)
	} else if err != nil {
		return ocispec.Descriptor{}, err
	}
	return ocispec.Descriptor{MediaType: info.ContentType, Digest: d, Size: info.Size}, nil
}

// Manifest reads the manifest for a tag or a digest.
func (s *Store) Manifest(ctx context.Context, repository, reference string) (ocispec.Descriptor, []byte, error) {
	d := digest.Digest(reference)
	if !strings.Contains(reference, ":") {
		desc, err := s.readTag(ctx, repository, reference)
		if err != nil {
			return desc, nil, err
		}
		d = desc.Digest
	}
	b, mediaType, err := s.read(ctx, s.key(repository, "_manifests", name(d)))
	if errors.Is(err, fs.ErrNotExist) {
		return ocispec.Descriptor{}, nil, noManifest(repository, reference)
	} else if err != nil {
		return ocispec.Descriptor{}, nil, err
	}
	desc := ocispec.Descriptor{MediaType: mediaType, Digest: d, Size: int64(len(b))}
	// The blobs come next, and are known to be there as long as the
	// manifest is: their deletion is refused.
	if m, err := regstore.ParseManifest(mediaType, b, d); err == nil {
		for _, l := range m.Blobs {
			s.known.add(s.key(repository, "_blobs", name(l.Digest)), l.Size)
		}
	}
	return desc, b, nil
}

// FetchManifest reads a manifest.
func (s *Store) FetchManifest(ctx context.Context, repository string, d digest.Digest) ([]byte, error) {
	_, b, err := s.Manifest(ctx, repository, string(d))
	return b, err
}

func (s *Store) parse(ctx context.Context, repository string, d digest.Digest) (*regstore.Manifest, error) {
	b, mediaType, err := s.read(ctx, s.key(repository, "_manifests", name(d)))
	if err != nil {
		return nil, err
	}
	return regstore.ParseManifest(mediaType, b, d)
}

// PutManifest stores a manifest and points tags at it.
func (s *Store) PutManifest(ctx context.Context, repository string, m *regstore.Manifest, tags []regstore.Tag) error {
	if err := s.checkReferences(ctx, repository, m); err != nil {
		return err
	}
	for _, t := range tags {
		// What can be seen now need not be tried.
		if !t.Immutable {
			continue
		}
		if err := s.checkTag(ctx, repository, t.Name, m.Descriptor.Digest); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if err := s.enter(ctx, repository); err != nil {
		return err
	}
	d := m.Descriptor.Digest
	if m.Subject != "" {
		// Before the manifest: an entry without it is passed over.
		entry, err := json.Marshal(m.Descriptor)
		if err != nil {
			return err
		}
		if err := s.write(ctx, s.key(repository, "_referrers", name(m.Subject), name(d)), entry, minio.PutObjectOptions{ContentType: "application/json"}); err != nil {
			return err
		}
	}
	if err := s.write(ctx, s.key(repository, "_manifests", name(d)), m.Content, minio.PutObjectOptions{ContentType: m.Descriptor.MediaType}); err != nil {
		return err
	}
	s.known.add(s.key(repository, "_manifests", name(d)), m.Descriptor.Size)
	return s.putTags(ctx, repository, m, tags)
}

// putTags points tags at a manifest, those first that can be refused.
func (s *Store) putTags(ctx context.Context, repository string, m *regstore.Manifest, tags []regstore.Tag) error {
	b, err := json.Marshal(m.Plain())
	if err != nil {
		return err
	}
	for _, t := range tags {
		if !t.Immutable {
			continue
		}
		err := s.create(ctx, s.key(repository, "_tags", t.Name), b)
		if errors.Is(err, errExists) {
			err = s.checkTag(ctx, repository, t.Name, m.Descriptor.Digest)
		}
		if err != nil {
			return err
		}
	}
	for _, t := range tags {
		if t.Immutable {
			continue
		}
		if err := s.write(ctx, s.key(repository, "_tags", t.Name), b, minio.PutObjectOptions{ContentType: "application/json"}); err != nil {
			return err
		}
	}
	return nil
}

// checkTag refuses a tag that points at something else.
func (s *Store) checkTag(ctx context.Context, repository, tag string, d digest.Digest) error {
	have, err := s.readTag(ctx, repository, tag)
	if err == nil && have.Digest != d {
		return &regstore.TagError{Tag: tag, Digest: have.Digest}
	}
	return err
}

// nameEnd ends the names of repositories: stores that are folders cannot have
// objects a and a/b, and it sorts before everything that a name can go on with.
const nameEnd = "!"

func (s *Store) nameKey(repository string) string { return s.prefix + "names/" + repository + nameEnd }

// enter puts a repository on the list of them.
func (s *Store) enter(ctx context.Context, repository string) error {
	key := s.nameKey(repository)
	if _, ok := s.known.get(key); ok {
		return nil
	}
	err := s.write(ctx, key, nil, minio.PutObjectOptions{})
	if err == nil {
		s.known.add(key, 0)
	}
	return err
}

func (s *Store) checkReferences(ctx context.Context, repository string, m *regstore.Manifest) error {
	blobs, manifests := m.References()
	all := slices.Concat(blobs, manifests)
	absent := make([]bool, len(all))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(parallel)
	for i, d := range all {
		g.Go(func() error {
			var err error
			if i < len(blobs) {
				_, err = s.StatBlob(gctx, repository, d)
			} else {
				err = s.hasManifest(gctx, repository, d)
			}
			if errors.Is(err, fs.ErrNotExist) {
				absent[i] = true
				return nil
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
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

// hasManifest looks for a manifest, of which it may remember that it was
// there a moment ago.
func (s *Store) hasManifest(ctx context.Context, repository string, d digest.Digest) error {
	key := s.key(repository, "_manifests", name(d))
	if _, ok := s.known.get(key); ok {
		return nil
	}
	desc, err := s.Resolve(ctx, repository, string(d))
	if err == nil {
		s.known.add(key, desc.Size)
	}
	return err
}

// DeleteTag removes a tag.
func (s *Store) DeleteTag(ctx context.Context, repository, tag string) error {
	if _, err := s.readTag(ctx, repository, tag); err != nil {
		return err
	}
	return s.remove(ctx, s.key(repository, "_tags", tag))
}

// DeleteManifest removes a manifest after the tags that point at it.
func (s *Store) DeleteManifest(ctx context.Context, repository string, d digest.Digest) error {
	m, err := s.parse(ctx, repository, d)
	if errors.Is(err, fs.ErrNotExist) {
		return noManifest(repository, string(d))
	} else if err != nil {
		return err
	}
	var tags []string
	err = s.list(ctx, s.key(repository, "_tags"), "", func(n string, _ minio.ObjectInfo) bool {
		tags = append(tags, n)
		return true
	})
	if err != nil {
		return err
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(parallel)
	for _, t := range tags {
		g.Go(func() error {
			have, err := s.readTag(gctx, repository, t)
			if errors.Is(err, fs.ErrNotExist) || err == nil && have.Digest != d {
				return nil
			} else if err != nil {
				return err
			}
			return s.remove(gctx, s.key(repository, "_tags", t))
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	key := s.key(repository, "_manifests", name(d))
	s.known.forget(key)
	if err := s.remove(ctx, key); err != nil {
		return err
	}
	if m.Subject == "" {
		return nil
	}
	return s.remove(ctx, s.key(repository, "_referrers", name(m.Subject), name(d)))
}

// Tags lists the tags of a repository.
func (s *Store) Tags(ctx context.Context, repository, after string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		any, stopped := false, false
		err := s.list(ctx, s.key(repository, "_tags"), after, func(n string, _ minio.ObjectInfo) bool {
			any = true
			stopped = regstore.ValidTag(n) && !yield(n, nil)
			return !stopped
		})
		if err == nil && !any {
			_, err = s.core.StatObject(ctx, s.bucket, s.nameKey(repository), minio.StatObjectOptions{})
			if err = storeError(err); errors.Is(err, fs.ErrNotExist) {
				err = fmt.Errorf("repository %s: %w", repository, fs.ErrNotExist)
			}
		}
		if err != nil && !stopped {
			yield("", err)
		}
	}
}

// Repositories lists the repositories that have, or had, a manifest.
func (s *Store) Repositories(ctx context.Context, after string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		stopped := false
		if after != "" {
			after += nameEnd
		}
		err := s.list(ctx, s.prefix+"names/", after, func(n string, _ minio.ObjectInfo) bool {
			stopped = !yield(strings.TrimSuffix(n, nameEnd), nil)
			return !stopped
		})
		if err != nil && !stopped {
			yield("", err)
		}
	}
}

// Referrers lists the manifests whose subject is d, by their digests.
func (s *Store) Referrers(ctx context.Context, repository string, d digest.Digest, artifactType string) iter.Seq2[ocispec.Descriptor, error] {
	return func(yield func(ocispec.Descriptor, error) bool) {
		list, err := s.referrers(ctx, repository, d)
		if err != nil {
			yield(ocispec.Descriptor{}, err)
			return
		}
		for _, desc := range list {
			if desc != nil && (artifactType == "" || desc.ArtifactType == artifactType) && !yield(*desc, nil) {
				return
			}
		}
	}
}

func (s *Store) referrers(ctx context.Context, repository string, subject digest.Digest) ([]*ocispec.Descriptor, error) {
	var found []digest.Digest
	prefix := s.key(repository, "_referrers", name(subject), "")
	err := s.list(ctx, prefix, "", func(n string, _ minio.ObjectInfo) bool {
		if d, ok := parseName(n); ok {
			found = append(found, d)
		}
		return true
	})
	if err != nil {
		return nil, err
	}
	list := make([]*ocispec.Descriptor, len(found))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(parallel)
	for i, d := range found {
		g.Go(func() error {
			err := s.hasManifest(gctx, repository, d)
			if errors.Is(err, fs.ErrNotExist) {
				return nil // a push that was cut short
			} else if err != nil {
				return err
			}
			b, _, err := s.read(gctx, prefix+name(d))
			if errors.Is(err, fs.ErrNotExist) {
				return nil // deleted meanwhile
			} else if err != nil {
				return err
			}
			desc := &ocispec.Descriptor{}
			if err := json.Unmarshal(b, desc); err != nil {
				return fmt.Errorf("referrer %s of %s in %s: object is damaged: %w", d, subject, repository, err)
			}
			list[i] = desc
			return nil
		})
	}
	return list, g.Wait()
}
