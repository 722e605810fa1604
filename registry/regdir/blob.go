package regdir

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/krmcat/krmcat/internal/durable"
	"github.com/krmcat/krmcat/registry/regstore"
)

func noBlob(repository string, d digest.Digest) error {
	return fmt.Errorf("blob %s in %s: %w", d, repository, fs.ErrNotExist)
}

// renewAfter is how old the time of a link may be before a client who asks
// for the blob makes it young again. It is far below any grace period.
const renewAfter = time.Second

// StatBlob returns the size of a blob of a repository.
func (s *Store) StatBlob(ctx context.Context, repository string, d digest.Digest) (int64, error) {
	if err := s.settled(ctx); err != nil {
		return 0, err
	}
	// Not before a push of the same blob that is under way has flushed it.
	l := s.blobLocks.of(string(d))
	l.RLock()
	defer l.RUnlock()
	s.touch(repository, d)
	link := s.repoPath(repository, "_blobs", fileName(d))
	li, err := os.Stat(link)
	if err != nil {
		if notExist(err) {
			return 0, noBlob(repository, d)
		}
		return 0, storageError(err)
	}
	fi, err := os.Stat(s.blobPath(d))
	if err != nil {
		if notExist(err) {
			return 0, noBlob(repository, d)
		}
		return 0, storageError(err)
	}
	if now := time.Now(); now.Sub(li.ModTime()) > renewAfter {
		if err := os.Chtimes(link, now, now); err != nil {
			s.log.Warn("time of a link was not renewed; a garbage collection may come early", "path", link, "error", err)
		}
	}
	return fi.Size(), nil
}

// OpenBlob opens a blob of a repository.
func (s *Store) OpenBlob(_ context.Context, repository string, d digest.Digest) (io.ReadSeekCloser, int64, error) {
	if ok, err := exists(s.repoPath(repository, "_blobs", fileName(d))); err != nil {
		return nil, 0, err
	} else if !ok {
		return nil, 0, noBlob(repository, d)
	}
	f, err := os.Open(s.blobPath(d))
	if err != nil {
		if notExist(err) {
			return nil, 0, noBlob(repository, d)
		}
		return nil, 0, storageError(err)
	}
	fi, err := f.Stat()
	if err != nil {
		_ = f.Close()
		return nil, 0, storageError(err)
	}
	return f, fi.Size(), nil
}

// FetchBlob opens a blob of a repository.
func (s *Store) FetchBlob(ctx context.Context, repository string, d digest.Digest) (io.ReadCloser, error) {
	f, _, err := s.OpenBlob(ctx, repository, d)
	if err != nil {
		return nil, err
	}
	return f, nil
}

// MountBlob makes a blob one of another repository too.
func (s *Store) MountBlob(ctx context.Context, repository, from string, d digest.Digest) error {
	if err := s.settled(ctx); err != nil {
		return err
	}
	l := s.blobLocks.of(string(d))
	l.Lock()
	defer l.Unlock()
	s.touch(repository, d)
	if from != "" {
		if ok, err := exists(s.repoPath(from, "_blobs", fileName(d))); err != nil {
			return err
		} else if !ok {
			return noBlob(from, d)
		}
	}
	fi, err := os.Stat(s.blobPath(d))
	if err != nil {
		if notExist(err) {
			return noBlob(from, d)
		}
		return storageError(err)
	}
	return s.link(repository, d, fi.Size())
}

// link makes a stored blob one of a repository. The caller holds the blob's
// lock.
func (s *Store) link(repository string, d digest.Digest, size int64) error {
	dir := s.repoPath(repository, "_blobs")
	path := filepath.Join(dir, fileName(d))
	known, err := exists(path)
	if err != nil {
		return err
	}
	if known {
		now := time.Now()
		return storageError(os.Chtimes(path, now, now))
	}
	if err := s.dirs.Make(dir); err != nil {
		return storageError(err)
	}
	if err := durable.Touch(path); err != nil {
		return storageError(err)
	}
	s.addUsage(repository, size)
	return nil
}

// DeleteBlob removes a blob from a repository. The content goes with the next
// garbage collection, if nobody else has it.
func (s *Store) DeleteBlob(ctx context.Context, repository string, d digest.Digest) error {
	if err := s.settled(ctx); err != nil {
		return err
	}
	rl := s.repoLocks.of(repository)
	rl.Lock()
	defer rl.Unlock()
	path := s.repoPath(repository, "_blobs", fileName(d))
	if ok, err := exists(path); err != nil {
		return err
	} else if !ok {
		return noBlob(repository, d)
	}
	for m, err := range s.manifests(repository) {
		if err != nil {
			return err
		}
		if blobs, _ := m.References(); slices.Contains(blobs, d) {
			return fmt.Errorf("blob %s in %s: manifest %s: %w", d, repository, m.Descriptor.Digest, regstore.ErrInUse)
		}
	}
	l := s.blobLocks.of(string(d))
	l.Lock()
	defer l.Unlock()
	s.usage.Delete(repository)
	if err := durable.Remove(path); err != nil {
		if notExist(err) {
			return noBlob(repository, d)
		}
		return storageError(err)
	}
	return nil
}

// store gives a file with the content of a blob, which was checked, its name
// and makes it one of the repository. f is closed, and removed unless it
// became the blob.
func (s *Store) store(repository string, f *os.File, d digest.Digest, size int64) error {
	l := s.blobLocks.of(string(d))
	l.Lock()
	defer l.Unlock()
	s.touch(repository, d)
	path := s.blobPath(d)
	fi, err := os.Stat(path)
	switch {
	case err == nil && fi.Size() == size:
		_ = f.Close()
		if err := os.Remove(f.Name()); err != nil {
			return storageError(err)
		}
	case err == nil || notExist(err): // not there, or damaged and mended now
		if err := s.dirs.Make(filepath.Dir(path)); err != nil {
			_ = f.Close()
			return storageError(err)
		}
		if err := durable.Commit(f, path); err != nil {
			return storageError(err)
		}
	default:
		_ = f.Close()
		return storageError(err)
	}
	return s.link(repository, d, size)
}

// Usage returns the bytes that a repository holds. It is counted once and
// then kept.
func (s *Store) Usage(ctx context.Context, repository string) (int64, error) {
	if v, ok := s.usage.Load(repository); ok {
		return v.(*atomic.Int64).Load(), nil
	}
	n := &atomic.Int64{}
	names, err := readDir(s.repoPath(repository, "_blobs"))
	if err != nil {
		return 0, err
	}
	for _, name := range names {
		if d, ok := parseFileName(name); ok {
			if fi, err := os.Stat(s.blobPath(d)); err == nil {
				n.Add(fi.Size())
			}
		}
		if ctx.Err() != nil {
			return 0, ctx.Err()
		}
	}
	if names, err = readDir(s.repoPath(repository, "_manifests")); err != nil {
		return 0, err
	}
	for _, name := range names {
		desc, err := s.stat(repository, name)
		if err == nil {
			n.Add(desc.Size)
		} else if !errors.Is(err, fs.ErrNotExist) {
			return 0, err
		}
	}
	s.usage.Store(repository, n)
	return n.Load(), nil
}

func (s *Store) addUsage(repository string, n int64) {
	if v, ok := s.usage.Load(repository); ok {
		v.(*atomic.Int64).Add(n)
	}
}

// readDir returns the names in a folder, sorted; none if there is no folder.
func readDir(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		if notExist(err) {
			return nil, nil
		}
		return nil, storageError(err)
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names, nil
}
