package regdir

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/krmcat/krmcat/internal/durable"
	"github.com/krmcat/krmcat/registry/regstore"
)

func noManifest(repository, reference string) error {
	return fmt.Errorf("manifest %s in %s: %w", reference, repository, fs.ErrNotExist)
}

// maxMediaType bounds the first line of a manifest's file.
const maxMediaType = 256

// open opens the file of a manifest, and reads its first line.
func (s *Store) openManifest(repository, name string) (*os.File, ocispec.Descriptor, error) {
	d, ok := parseFileName(name)
	if !ok {
		return nil, ocispec.Descriptor{}, noManifest(repository, name)
	}
	f, err := os.Open(s.repoPath(repository, "_manifests", name))
	if err != nil {
		if notExist(err) {
			return nil, ocispec.Descriptor{}, noManifest(repository, string(d))
		}
		return nil, ocispec.Descriptor{}, storageError(err)
	}
	desc, err := readHead(f)
	if err != nil {
		_ = f.Close()
		return nil, ocispec.Descriptor{}, fmt.Errorf("manifest %s in %s: %w", d, repository, storageError(err))
	}
	desc.Digest = d
	return f, desc, nil
}

// readHead reads the media type and leaves f at the manifest.
func readHead(f *os.File) (ocispec.Descriptor, error) {
	fi, err := f.Stat()
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	b := make([]byte, maxMediaType)
	n, err := f.ReadAt(b, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return ocispec.Descriptor{}, err
	}
	i := bytes.IndexByte(b[:n], '\n')
	if i < 0 {
		return ocispec.Descriptor{}, errors.New("file is damaged: it does not begin with a media type")
	}
	if _, err := f.Seek(int64(i)+1, io.SeekStart); err != nil {
		return ocispec.Descriptor{}, err
	}
	return ocispec.Descriptor{MediaType: string(b[:i]), Size: fi.Size() - int64(i) - 1}, nil
}

func (s *Store) stat(repository, name string) (ocispec.Descriptor, error) {
	f, desc, err := s.openManifest(repository, name)
	if err != nil {
		return desc, err
	}
	return desc, f.Close()
}

// lookup returns the name of the file that a tag or digest means.
func (s *Store) lookup(repository, reference string) (string, error) {
	if strings.Contains(reference, ":") {
		return fileName(digest.Digest(reference)), nil
	}
	d, err := s.readTag(repository, escapeTag(reference))
	if err != nil {
		return "", err
	}
	return fileName(d), nil
}

// readTag returns what a tag points at.
func (s *Store) readTag(repository, name string) (digest.Digest, error) {
	b, err := os.ReadFile(s.repoPath(repository, "_tags", name))
	if err != nil {
		if notExist(err) {
			return "", noManifest(repository, name)
		}
		return "", storageError(err)
	}
	d, err := regstore.ParseDigest(strings.TrimSuffix(string(b), "\n"))
	if err != nil {
		return "", fmt.Errorf("tag %s in %s: file is damaged: %w", name, repository, err)
	}
	return d, nil
}

// Resolve finds the manifest for a tag or a digest.
func (s *Store) Resolve(_ context.Context, repository, reference string) (ocispec.Descriptor, error) {
	name, err := s.lookup(repository, reference)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	return s.stat(repository, name)
}

// Manifest reads the manifest for a tag or a digest.
func (s *Store) Manifest(_ context.Context, repository, reference string) (ocispec.Descriptor, []byte, error) {
	name, err := s.lookup(repository, reference)
	if err != nil {
		return ocispec.Descriptor{}, nil, err
	}
	return s.readManifest(repository, name)
}

func (s *Store) readManifest(repository, name string) (ocispec.Descriptor, []byte, error) {
	f, desc, err := s.openManifest(repository, name)
	if err != nil {
		return ocispec.Descriptor{}, nil, err
	}
	defer func() { _ = f.Close() }() // only read
	content := make([]byte, desc.Size)
	if _, err := io.ReadFull(f, content); err != nil {
		return ocispec.Descriptor{}, nil, fmt.Errorf("manifest %s in %s: %w", desc.Digest, repository, storageError(err))
	}
	return desc, content, nil
}

// FetchManifest reads a manifest.
func (s *Store) FetchManifest(ctx context.Context, repository string, d digest.Digest) ([]byte, error) {
	_, content, err := s.Manifest(ctx, repository, string(d))
	return content, err
}

// manifests reads all manifests of a repository. One that is damaged is
// passed over; fsck reports it.
func (s *Store) manifests(repository string) iter.Seq2[*regstore.Manifest, error] {
	return func(yield func(*regstore.Manifest, error) bool) {
		names, err := readDir(s.repoPath(repository, "_manifests"))
		if err != nil {
			yield(nil, err)
			return
		}
		for _, name := range names {
			desc, content, err := s.readManifest(repository, name)
			if err != nil {
				if errors.Is(err, fs.ErrNotExist) {
					continue
				}
				yield(nil, err)
				return
			}
			m, err := regstore.ParseManifest(desc.MediaType, content, desc.Digest)
			if err != nil {
				s.log.Error("stored manifest cannot be read; run fsck", "repository", repository, "digest", desc.Digest, "error", err)
				continue
			}
			if !yield(m, nil) {
				return
			}
		}
	}
}

// PutManifest stores a manifest and points tags at it.
func (s *Store) PutManifest(ctx context.Context, repository string, m *regstore.Manifest, tags []regstore.Tag) error {
	if err := s.settled(ctx); err != nil {
		return err
	}
	rl := s.repoLocks.of(repository)
	rl.RLock()
	defer rl.RUnlock()
	d := m.Descriptor.Digest
	if err := s.checkReferences(repository, m); err != nil {
		return err
	}
	defer s.lockTags(repository, tags)()
	// Which tags are as they should be, and which are taken.
	var set []regstore.Tag
	for _, t := range tags {
		have, err := s.readTag(repository, escapeTag(t.Name))
		switch {
		case errors.Is(err, fs.ErrNotExist):
			set = append(set, t)
		case err != nil:
			return err
		case have == d:
		case t.Immutable:
			return &regstore.TagError{Tag: t.Name, Digest: have}
		default:
			set = append(set, t)
		}
	}
	if err := s.writeManifest(repository, m); err != nil {
		return storageError(err)
	}
	for _, t := range set {
		dir := s.repoPath(repository, "_tags")
		if err := s.dirs.Make(dir); err != nil {
			return storageError(err)
		}
		if err := durable.WriteFile(s.tmp(), filepath.Join(dir, escapeTag(t.Name)), []byte(string(d)+"\n")); err != nil {
			return storageError(err)
		}
	}
	return nil
}

// checkReferences looks for what a manifest refers to, and keeps a garbage
// collection from it.
func (s *Store) checkReferences(repository string, m *regstore.Manifest) error {
	s.touch(repository, m.Descriptor.Digest)
	if m.Subject != "" {
		s.touch(repository, m.Subject)
	}
	var missing []digest.Digest
	blobs, manifests := m.References()
	for _, b := range blobs {
		if _, err := s.StatBlob(context.Background(), repository, b); errors.Is(err, fs.ErrNotExist) {
			missing = append(missing, b)
		} else if err != nil {
			return err
		}
	}
	for _, c := range manifests {
		s.touch(repository, c)
		if ok, err := s.hasManifest(repository, c); err != nil {
			return err
		} else if !ok {
			missing = append(missing, c)
		}
	}
	if missing != nil {
		return &regstore.MissingError{Digests: missing}
	}
	return nil
}

// hasManifest looks for a manifest, not before a push of it that is under way
// has flushed it.
func (s *Store) hasManifest(repository string, d digest.Digest) (bool, error) {
	l := s.manifestLocks.of(string(d))
	l.RLock()
	defer l.RUnlock()
	return exists(s.repoPath(repository, "_manifests", fileName(d)))
}

// lockTags takes the locks of tags, each once and in order, and returns the
// function that gives them back.
func (s *Store) lockTags(repository string, tags []regstore.Tag) func() {
	var held []int
	for _, t := range tags {
		held = append(held, s.tagLocks.index(repository+":"+t.Name))
	}
	slices.Sort(held)
	held = slices.Compact(held)
	for _, i := range held {
		s.tagLocks.locks[i].Lock()
	}
	return func() {
		for _, i := range held {
			s.tagLocks.locks[i].Unlock()
		}
	}
}

// writeManifest stores a manifest, and before it its entry as a referrer: an
// entry without its manifest is passed over, a manifest without its entry
// would be lost to its subject.
func (s *Store) writeManifest(repository string, m *regstore.Manifest) error {
	d := m.Descriptor.Digest
	l := s.manifestLocks.of(string(d))
	l.Lock()
	defer l.Unlock()
	dir := s.repoPath(repository, "_manifests")
	path := filepath.Join(dir, fileName(d))
	if fi, err := os.Stat(path); err == nil && fi.Size() == int64(len(m.Descriptor.MediaType)+1+len(m.Content)) {
		return nil
	}
	if m.Subject != "" {
		entry, err := json.Marshal(m.Descriptor)
		if err != nil {
			return err
		}
		refs := s.repoPath(repository, "_referrers", fileName(m.Subject))
		if err := s.dirs.Make(refs); err != nil {
			return err
		}
		if err := durable.WriteFile(s.tmp(), filepath.Join(refs, fileName(d)), entry); err != nil {
			return err
		}
	}
	if err := s.dirs.Make(dir); err != nil {
		return err
	}
	if m.Subject != "" {
		// Even if storing fails: it may have got its name.
		defer s.referrers.drop(repository, m.Subject)
	}
	if err := durable.WriteFile(s.tmp(), path, slices.Concat([]byte(m.Descriptor.MediaType+"\n"), m.Content)); err != nil {
		return err
	}
	s.addUsage(repository, m.Descriptor.Size)
	return nil
}

// DeleteTag removes a tag.
func (s *Store) DeleteTag(ctx context.Context, repository, tag string) error {
	if err := s.settled(ctx); err != nil {
		return err
	}
	rl := s.repoLocks.of(repository)
	rl.RLock()
	defer rl.RUnlock()
	defer s.lockTags(repository, []regstore.Tag{{Name: tag}})()
	if err := durable.Remove(s.repoPath(repository, "_tags", escapeTag(tag))); err != nil {
		if notExist(err) {
			return noManifest(repository, tag)
		}
		return storageError(err)
	}
	return nil
}

// DeleteManifest removes a manifest after the tags that point at it.
func (s *Store) DeleteManifest(ctx context.Context, repository string, d digest.Digest) error {
	if err := s.settled(ctx); err != nil {
		return err
	}
	rl := s.repoLocks.of(repository)
	rl.Lock()
	defer rl.Unlock()
	return s.deleteManifest(repository, d)
}

// deleteManifest is DeleteManifest for callers that hold the repository.
func (s *Store) deleteManifest(repository string, d digest.Digest) error {
	path := s.repoPath(repository, "_manifests", fileName(d))
	if ok, err := exists(path); err != nil {
		return err
	} else if !ok {
		return noManifest(repository, string(d))
	}
	names, err := readDir(s.repoPath(repository, "_tags"))
	if err != nil {
		return err
	}
	for _, name := range names {
		if have, err := s.readTag(repository, name); err == nil && have == d {
			if err := durable.Remove(s.repoPath(repository, "_tags", name)); err != nil {
				return storageError(err)
			}
		}
	}
	desc, content, err := s.readManifest(repository, fileName(d))
	if err != nil {
		return err
	}
	s.usage.Delete(repository)
	m, err := regstore.ParseManifest(desc.MediaType, content, d)
	if rerr := durable.Remove(path); rerr != nil {
		return storageError(rerr)
	}
	if err != nil || m.Subject == "" {
		return nil // a damaged one's entry is passed over, and goes with fsck
	}
	s.referrers.drop(repository, m.Subject)
	if err := durable.Remove(s.repoPath(repository, "_referrers", fileName(m.Subject), fileName(d))); err != nil && !notExist(err) {
		return storageError(err)
	}
	return nil
}

// Tags lists the tags of a repository.
func (s *Store) Tags(_ context.Context, repository, after string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		names, err := readDir(s.repoPath(repository, "_tags"))
		if err != nil {
			yield("", err)
			return
		}
		if names == nil {
			if ok, err := exists(s.repoPath(repository, "_manifests")); err != nil || !ok {
				yield("", cmp.Or(err, fmt.Errorf("repository %s: %w", repository, fs.ErrNotExist)))
				return
			}
		}
		tags := names[:0]
		for _, name := range names {
			if tag, ok := unescapeTag(name); ok && tag > after {
				tags = append(tags, tag)
			}
		}
		slices.Sort(tags)
		for _, tag := range tags {
			if !yield(tag, nil) {
				return
			}
		}
	}
}

// Referrers lists the manifests whose subject is d, by their digests.
func (s *Store) Referrers(ctx context.Context, repository string, d digest.Digest, artifactType string) iter.Seq2[ocispec.Descriptor, error] {
	return func(yield func(ocispec.Descriptor, error) bool) {
		list, ok, at := s.referrers.get(repository, d)
		if !ok {
			var err error
			if list, err = s.readReferrers(ctx, repository, d); err != nil {
				yield(ocispec.Descriptor{}, err)
				return
			}
			s.referrers.put(repository, d, list, at)
		}
		for _, desc := range list {
			if artifactType != "" && desc.ArtifactType != artifactType {
				continue
			}
			desc.Annotations = maps.Clone(desc.Annotations) // the list is shared
			if !yield(desc, nil) {
				return
			}
		}
	}
}

func (s *Store) readReferrers(ctx context.Context, repository string, d digest.Digest) ([]ocispec.Descriptor, error) {
	dir := s.repoPath(repository, "_referrers", fileName(d))
	names, err := readDir(dir)
	if err != nil {
		return nil, err
	}
	var list []ocispec.Descriptor
	for _, name := range names {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if ok, err := exists(s.repoPath(repository, "_manifests", name)); err != nil {
			return nil, err
		} else if !ok {
			continue
		}
		b, err := os.ReadFile(filepath.Join(dir, name))
		if notExist(err) {
			continue
		} else if err != nil {
			return nil, storageError(err)
		}
		var desc ocispec.Descriptor
		if err := json.Unmarshal(b, &desc); err != nil {
			s.log.Error("stored referrer cannot be read; run fsck", "repository", repository, "subject", d, "referrer", name, "error", err)
			continue
		}
		list = append(list, desc)
	}
	return list, nil
}

// Repositories lists the repositories that have a manifest.
func (s *Store) Repositories(ctx context.Context, after string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		s.walk(ctx, "", after, func(path string) (bool, error) { return firstName(filepath.Join(path, "_manifests")) }, yield)
	}
}

// walk lists the folders below a prefix, which is empty or ends with a slash,
// that are repositories. Those below a folder sort after the ones whose names begin with the
// folder's and go on with a character before the slash, so each folder is
// two entries: itself, and what is below it.
func (s *Store) walk(ctx context.Context, prefix, after string, is func(path string) (bool, error), yield func(string, error) bool) bool {
	names, err := readDir(s.repoPath(prefix))
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return yield("", err)
	}
	var entries []string
	for _, name := range names {
		if !strings.HasPrefix(name, "_") {
			entries = append(entries, prefix+name, prefix+name+"/")
		}
	}
	slices.Sort(entries)
	for _, e := range entries {
		below := strings.HasSuffix(e, "/")
		switch {
		case below && (e > after || strings.HasPrefix(after, e)):
			if !s.walk(ctx, e, after, is, yield) {
				return false
			}
		case !below && e > after:
			ok, err := is(s.repoPath(e))
			if err != nil {
				return yield("", err)
			}
			if ok && !yield(e, nil) {
				return false
			}
		}
	}
	return true
}

// firstName reports whether a folder has anything in it.
func firstName(dir string) (bool, error) {
	f, err := os.Open(dir)
	if err != nil {
		if notExist(err) {
			return false, nil
		}
		return false, storageError(err)
	}
	defer func() { _ = f.Close() }() // only read
	names, err := f.Readdirnames(1)
	if err != nil && !errors.Is(err, io.EOF) {
		return false, storageError(err)
	}
	return len(names) > 0, nil
}
