// Package regmem keeps the content of a registry in memory, for tests and for
// trying things out. Nothing survives the process, and nothing bounds what a
// client can store but the limits of the server in front.
package regmem

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"maps"
	"slices"
	"sync"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/krmcat/krmcat/registry/regstore"
)

// Store is a driver that keeps everything in memory. Use [New].
type Store struct {
	mu      sync.RWMutex
	repos   map[string]*repository
	uploads map[string]*upload
}

type repository struct {
	blobs     map[digest.Digest][]byte
	manifests map[digest.Digest]*regstore.Manifest
	tags      map[string]digest.Digest
	known     bool // had a manifest
}

type upload struct {
	repository string
	data       []byte
}

var _ regstore.Driver = (*Store)(nil)

// New returns an empty store.
func New() *Store {
	return &Store{repos: map[string]*repository{}, uploads: map[string]*upload{}}
}

// repo returns a repository; the caller holds the lock.
func (s *Store) repo(name string) (*repository, error) {
	if r, ok := s.repos[name]; ok {
		return r, nil
	}
	return nil, fmt.Errorf("repository %s: %w", name, fs.ErrNotExist)
}

// newRepo returns a repository, made if need be; the caller holds the lock.
func (s *Store) newRepo(name string) *repository {
	r, ok := s.repos[name]
	if !ok {
		r = &repository{
			blobs:     map[digest.Digest][]byte{},
			manifests: map[digest.Digest]*regstore.Manifest{},
			tags:      map[string]digest.Digest{},
		}
		s.repos[name] = r
	}
	return r
}

// Repositories lists the repositories that have a manifest.
func (s *Store) Repositories(_ context.Context, after string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		s.mu.RLock()
		names := slices.Sorted(maps.Keys(s.repos))
		names = slices.DeleteFunc(names, func(n string) bool { return n <= after || len(s.repos[n].manifests) == 0 })
		s.mu.RUnlock()
		for _, n := range names {
			if !yield(n, nil) {
				return
			}
		}
	}
}

// Tags lists the tags of a repository.
func (s *Store) Tags(_ context.Context, name, after string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		s.mu.RLock()
		r, err := s.repo(name)
		var tags []string
		switch {
		case err == nil && r.known:
			tags = slices.Sorted(maps.Keys(r.tags))
		case err == nil:
			err = fmt.Errorf("repository %s: %w", name, fs.ErrNotExist)
		}
		s.mu.RUnlock()
		if err != nil {
			yield("", err)
			return
		}
		for _, t := range tags {
			if t > after && !yield(t, nil) {
				return
			}
		}
	}
}

// find returns a manifest; the caller holds the lock.
func (s *Store) find(name, reference string) (*regstore.Manifest, error) {
	r, err := s.repo(name)
	if err != nil {
		return nil, err
	}
	d := digest.Digest(reference)
	if t, ok := r.tags[reference]; ok {
		d = t
	}
	if m, ok := r.manifests[d]; ok {
		return m, nil
	}
	return nil, fmt.Errorf("manifest %s in %s: %w", reference, name, fs.ErrNotExist)
}

// Resolve finds the manifest for a tag or a digest.
func (s *Store) Resolve(_ context.Context, name, reference string) (ocispec.Descriptor, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	m, err := s.find(name, reference)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	return m.Plain(), nil
}

// Manifest reads the manifest for a tag or a digest.
func (s *Store) Manifest(_ context.Context, name, reference string) (ocispec.Descriptor, []byte, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	m, err := s.find(name, reference)
	if err != nil {
		return ocispec.Descriptor{}, nil, err
	}
	return m.Plain(), m.Content, nil
}

// FetchManifest reads a manifest.
func (s *Store) FetchManifest(ctx context.Context, name string, d digest.Digest) ([]byte, error) {
	_, content, err := s.Manifest(ctx, name, string(d))
	return slices.Clone(content), err
}

// Referrers lists the manifests whose subject is d.
func (s *Store) Referrers(_ context.Context, name string, d digest.Digest, artifactType string) iter.Seq2[ocispec.Descriptor, error] {
	return func(yield func(ocispec.Descriptor, error) bool) {
		var list []ocispec.Descriptor
		s.mu.RLock()
		if r, err := s.repo(name); err == nil {
			for _, m := range r.manifests {
				if m.Subject == d && (artifactType == "" || m.Descriptor.ArtifactType == artifactType) {
					list = append(list, m.Descriptor)
				}
			}
		}
		s.mu.RUnlock()
		slices.SortFunc(list, func(a, b ocispec.Descriptor) int { return cmp.Compare(a.Digest, b.Digest) })
		for _, desc := range list {
			if !yield(desc, nil) {
				return
			}
		}
	}
}

// PutManifest stores a manifest and points tags at it.
func (s *Store) PutManifest(_ context.Context, name string, m *regstore.Manifest, tags []regstore.Tag) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := m.Descriptor.Digest
	r := s.newRepo(name)
	var missing []digest.Digest
	blobs, manifests := m.References()
	for _, b := range blobs {
		if _, ok := r.blobs[b]; !ok {
			missing = append(missing, b)
		}
	}
	for _, c := range manifests {
		if _, ok := r.manifests[c]; !ok {
			missing = append(missing, c)
		}
	}
	if missing != nil {
		return &regstore.MissingError{Digests: missing}
	}
	for _, t := range tags {
		if have, ok := r.tags[t.Name]; ok && t.Immutable && have != d {
			return &regstore.TagError{Tag: t.Name, Digest: have}
		}
	}
	r.manifests[d] = m
	r.known = true
	for _, t := range tags {
		r.tags[t.Name] = d
	}
	return nil
}

// DeleteManifest removes a manifest and its tags.
func (s *Store) DeleteManifest(_ context.Context, name string, d digest.Digest) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := s.find(name, string(d)); err != nil {
		return err
	}
	r := s.repos[name]
	maps.DeleteFunc(r.tags, func(_ string, t digest.Digest) bool { return t == d })
	delete(r.manifests, d)
	return nil
}

// DeleteTag removes a tag.
func (s *Store) DeleteTag(_ context.Context, name, tag string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := s.find(name, tag); err != nil {
		return err
	}
	delete(s.repos[name].tags, tag)
	return nil
}

func (s *Store) blob(name string, d digest.Digest) ([]byte, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	r, err := s.repo(name)
	if err != nil {
		return nil, err
	}
	if b, ok := r.blobs[d]; ok {
		return b, nil
	}
	return nil, fmt.Errorf("blob %s in %s: %w", d, name, fs.ErrNotExist)
}

// StatBlob returns the size of a blob.
func (s *Store) StatBlob(_ context.Context, name string, d digest.Digest) (int64, error) {
	b, err := s.blob(name, d)
	return int64(len(b)), err
}

type reader struct{ *bytes.Reader }

func (reader) Close() error { return nil }

// OpenBlob opens a blob.
func (s *Store) OpenBlob(_ context.Context, name string, d digest.Digest) (io.ReadSeekCloser, int64, error) {
	b, err := s.blob(name, d)
	if err != nil {
		return nil, 0, err
	}
	return reader{bytes.NewReader(b)}, int64(len(b)), nil
}

// FetchBlob opens a blob.
func (s *Store) FetchBlob(ctx context.Context, name string, d digest.Digest) (io.ReadCloser, error) {
	rc, _, err := s.OpenBlob(ctx, name, d)
	if err != nil {
		return nil, err
	}
	return rc, nil
}

// MountBlob makes a blob one of another repository too.
func (s *Store) MountBlob(_ context.Context, name, from string, d digest.Digest) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for n, r := range s.repos {
		if b, ok := r.blobs[d]; ok && (from == "" || from == n) {
			s.newRepo(name).blobs[d] = b
			return nil
		}
	}
	return fmt.Errorf("blob %s in %s: %w", d, from, fs.ErrNotExist)
}

// DeleteBlob removes a blob from a repository.
func (s *Store) DeleteBlob(_ context.Context, name string, d digest.Digest) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, err := s.repo(name)
	if err != nil {
		return err
	}
	if _, ok := r.blobs[d]; !ok {
		return fmt.Errorf("blob %s in %s: %w", d, name, fs.ErrNotExist)
	}
	for _, m := range r.manifests {
		if blobs, _ := m.References(); slices.Contains(blobs, d) {
			return fmt.Errorf("blob %s in %s: manifest %s: %w", d, name, m.Descriptor.Digest, regstore.ErrInUse)
		}
	}
	delete(r.blobs, d)
	return nil
}

// StartUpload begins an upload.
func (s *Store) StartUpload(_ context.Context, name string) (string, error) {
	id := rand.Text()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.uploads[id] = &upload{repository: name}
	return id, nil
}

// upload returns an upload; the caller holds the lock.
func (s *Store) upload(name, id string) (*upload, error) {
	if u, ok := s.uploads[id]; ok && u.repository == name {
		return u, nil
	}
	return nil, fmt.Errorf("upload %s: %w", id, regstore.ErrUploadUnknown)
}

// UploadSize returns how much an upload received.
func (s *Store) UploadSize(_ context.Context, name, id string) (int64, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	u, err := s.upload(name, id)
	if err != nil {
		return 0, err
	}
	return int64(len(u.data)), nil
}

// AppendUpload adds a chunk to an upload.
func (s *Store) AppendUpload(ctx context.Context, name, id string, c regstore.Chunk) (string, int64, error) {
	size, err := s.UploadSize(ctx, name, id)
	if err != nil {
		return id, 0, err
	}
	data, err := readAll(c, size)
	if err != nil {
		return id, size, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	u, err := s.upload(name, id)
	switch {
	case err != nil:
		return id, 0, err
	case int64(len(u.data)) != size: // another chunk came in between
		return id, int64(len(u.data)), &regstore.OffsetError{Offset: size, Size: int64(len(u.data))}
	}
	u.data = append(u.data, data...)
	return id, int64(len(u.data)), nil
}

func readAll(c regstore.Chunk, size int64) ([]byte, error) {
	r, err := c.Reader(size)
	if err != nil {
		return nil, err
	}
	return io.ReadAll(r)
}

// FinishUpload stores what an upload received.
func (s *Store) FinishUpload(ctx context.Context, name, id string, c regstore.Chunk, d digest.Digest) error {
	var data []byte
	if id == "" {
		b, err := readAll(c, 0)
		if err != nil {
			return err
		}
		data = b
	} else {
		if _, _, err := s.AppendUpload(ctx, name, id, c); err != nil {
			return err
		}
		s.mu.RLock()
		u, err := s.upload(name, id)
		if err == nil {
			data = u.data
		}
		s.mu.RUnlock()
		if err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.uploads, id)
	if d.Algorithm().FromBytes(data) != d {
		return fmt.Errorf("blob of %d bytes sent as %s: %w", len(data), d, regstore.ErrDigest)
	}
	s.newRepo(name).blobs[d] = data
	return nil
}

// CancelUpload ends an upload.
func (s *Store) CancelUpload(_ context.Context, name, id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := s.upload(name, id); err != nil {
		return err
	}
	delete(s.uploads, id)
	return nil
}

// Usage returns the bytes that a repository holds.
func (s *Store) Usage(_ context.Context, name string) (int64, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	r, err := s.repo(name)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	var n int64
	for _, b := range r.blobs {
		n += int64(len(b))
	}
	for _, m := range r.manifests {
		n += int64(len(m.Content))
	}
	return n, nil
}

// Close does nothing.
func (*Store) Close() error { return nil }
