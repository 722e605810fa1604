package regdir

import (
	"context"
	"hash/maphash"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/krmcat/krmcat/internal/durable"
	"github.com/krmcat/krmcat/registry/regstore"
)

// GCOptions say what a garbage collection removes. Nil and zero are what is
// safe: content that no manifest refers to, after a day.
type GCOptions struct {
	// Grace is how long something has to be unused; 0 is 24 hours. It has to
	// be longer than any push takes, from its first blob to its manifest.
	Grace time.Duration
	// Untagged also removes manifests that cannot be reached from a tag:
	// not as part of an index, and not as a referrer of what can be reached.
	// Someone may still know them by their digest.
	Untagged bool
	// Removed is told of manifests that Untagged removed. It may be nil.
	Removed func(repository string, d digest.Digest)
	// DryRun removes nothing and says what would be.
	DryRun bool
}

// GCResult says what a garbage collection removed.
type GCResult struct {
	Manifests int   `json:"manifests"` // that no tag leads to
	Links     int   `json:"links"`     // blobs that a repository had and did not use
	Blobs     int   `json:"blobs"`     // whose content is gone from the disk
	Bytes     int64 `json:"bytes"`     // of those
}

// collection is a garbage collection under way. Whatever is pushed, mounted
// or asked for meanwhile is noted here, and spared.
type collection struct {
	opts   GCOptions
	before time.Time // what is used later than this is spared

	mu    sync.Mutex
	noted map[string]bool // repository + "@" + digest, and the digest alone

	// live are hashes of the digests of blobs that a repository has. Two
	// that collide keep garbage, and never lose content.
	live   []uint64
	result GCResult
}

// touch notes that somebody counts on content. The caller holds the lock of
// the blob, which a collection takes to remove it.
func (s *Store) touch(repository string, d digest.Digest) {
	if c := s.gc.Load(); c != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.noted[repository+"@"+string(d)] = true
		c.noted[string(d)] = true
	}
}

func (c *collection) isNoted(key string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.noted[key]
}

func hashOf(d digest.Digest) uint64 { return maphash.String(stripeSeed, string(d)) }

// GC collects garbage. It may run beside pushes and pulls, of which it holds
// up those to one repository at a time, while it reads that one's manifests.
// Only one runs at a time; others wait.
func (s *Store) GC(ctx context.Context, opts *GCOptions) (GCResult, error) {
	if err := s.settled(ctx); err != nil {
		return GCResult{}, err
	}
	s.gcRunning.Lock()
	defer s.gcRunning.Unlock()
	c := &collection{noted: map[string]bool{}}
	if opts != nil {
		c.opts = *opts
	}
	if c.opts.Grace == 0 {
		c.opts.Grace = 24 * time.Hour
	}
	c.before = time.Now().Add(-c.opts.Grace)
	s.gc.Store(c)
	defer s.gc.Store(nil)
	// Those who looked before there was a collection have not noted what
	// they use; they are done, and it can be seen, when they have let go.
	s.blobLocks.barrier()

	for repository, err := range s.folders(ctx) {
		if err == nil {
			err = s.collectRepository(c, repository)
		}
		if err != nil {
			return c.result, err
		}
	}
	slices.Sort(c.live)
	if err := s.collectBlobs(ctx, c); err != nil {
		return c.result, err
	}
	s.expired.Store(0)
	s.expireUploads()
	s.log.InfoContext(ctx, "garbage collected", "manifests", c.result.Manifests, "links", c.result.Links, "blobs", c.result.Blobs, "bytes", c.result.Bytes, "dryRun", c.opts.DryRun)
	return c.result, nil
}

// folders lists everything that is a repository, also those without a
// manifest.
func (s *Store) folders(ctx context.Context) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		s.walk(ctx, "", "", func(path string) (bool, error) {
			for _, d := range []string{"_manifests", "_blobs", "_tags", "_referrers"} {
				if ok, err := exists(filepath.Join(path, d)); ok || err != nil {
					return ok, err
				}
			}
			return false, nil
		}, yield)
	}
}

// collectRepository removes what a repository does not use. Pushes of
// manifests to it wait meanwhile.
func (s *Store) collectRepository(c *collection, repository string) error {
	rl := s.repoLocks.of(repository)
	rl.Lock()
	defer rl.Unlock()
	stored := map[digest.Digest]*regstore.Manifest{}
	damaged, err := s.countDamaged(repository, stored)
	if err != nil {
		return err
	}
	if c.opts.Untagged && damaged == 0 { // what a damaged one leads to is not known
		if err := s.collectManifests(c, repository, stored); err != nil {
			return err
		}
	}
	used := map[digest.Digest]bool{}
	for _, m := range stored {
		for _, b := range m.Blobs {
			used[b.Digest] = true
		}
	}
	if damaged == 0 && !c.opts.DryRun {
		if err := s.collectReferrers(repository, stored); err != nil {
			return err
		}
	}
	names, err := readDir(s.repoPath(repository, "_blobs"))
	if err != nil {
		return err
	}
	for _, name := range names {
		d, ok := parseFileName(name)
		if !ok {
			continue
		}
		removed := false
		if !used[d] && damaged == 0 {
			if removed, err = s.collectLink(c, repository, d); err != nil {
				return err
			}
		}
		if !removed {
			c.live = append(c.live, hashOf(d))
		}
	}
	return nil
}

// countDamaged reads the manifests of a repository, and counts those that it
// could not read.
func (s *Store) countDamaged(repository string, stored map[digest.Digest]*regstore.Manifest) (int, error) {
	names, err := readDir(s.repoPath(repository, "_manifests"))
	if err != nil {
		return 0, err
	}
	for m, err := range s.manifests(repository) {
		if err != nil {
			return 0, err
		}
		m.Content = nil
		stored[m.Descriptor.Digest] = m
	}
	return len(names) - len(stored), nil
}

// collectManifests removes manifests that no tag leads to.
func (s *Store) collectManifests(c *collection, repository string, stored map[digest.Digest]*regstore.Manifest) error {
	reached := map[digest.Digest]bool{}
	var todo []digest.Digest
	reach := func(d digest.Digest) {
		if !reached[d] {
			reached[d] = true
			todo = append(todo, d)
		}
	}
	tags, err := readDir(s.repoPath(repository, "_tags"))
	if err != nil {
		return err
	}
	for _, name := range tags {
		d, err := s.readTag(repository, name)
		if err != nil {
			return err
		}
		reach(d)
	}
	referrers := map[digest.Digest][]digest.Digest{}
	for d, m := range stored {
		if m.Subject != "" {
			referrers[m.Subject] = append(referrers[m.Subject], d)
		}
		fi, err := os.Stat(s.repoPath(repository, "_manifests", fileName(d)))
		if err != nil {
			return storageError(err)
		}
		if fi.ModTime().After(c.before) {
			reach(d)
		}
	}
	for len(todo) > 0 {
		d := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		for _, r := range referrers[d] {
			reach(r)
		}
		if m := stored[d]; m != nil {
			for _, child := range m.Manifests {
				reach(child.Digest)
			}
		}
	}
	for d := range stored {
		if reached[d] {
			continue
		}
		if !c.opts.DryRun {
			if err := s.deleteManifest(repository, d); err != nil {
				return err
			}
			if c.opts.Removed != nil {
				c.opts.Removed(repository, d)
			}
		}
		delete(stored, d)
		c.result.Manifests++
	}
	return nil
}

// collectReferrers removes the entries of manifests that did not get stored.
func (s *Store) collectReferrers(repository string, stored map[digest.Digest]*regstore.Manifest) error {
	subjects, err := readDir(s.repoPath(repository, "_referrers"))
	if err != nil {
		return err
	}
	for _, subject := range subjects {
		dir := s.repoPath(repository, "_referrers", subject)
		names, err := readDir(dir)
		if err != nil {
			return err
		}
		for _, name := range names {
			if d, ok := parseFileName(name); ok && stored[d] == nil {
				if err := os.Remove(filepath.Join(dir, name)); err != nil {
					return storageError(err)
				}
			}
		}
	}
	return nil
}

// collectLink removes a blob from a repository, unless somebody counts on
// it.
func (s *Store) collectLink(c *collection, repository string, d digest.Digest) (bool, error) {
	l := s.blobLocks.of(string(d))
	l.Lock()
	defer l.Unlock()
	path := s.repoPath(repository, "_blobs", fileName(d))
	if old, err := c.old(path); err != nil || !old || c.isNoted(repository+"@"+string(d)) {
		return false, err
	}
	if !c.opts.DryRun {
		s.usage.Delete(repository)
		if err := durable.Remove(path); err != nil {
			return false, storageError(err)
		}
	}
	c.result.Links++
	return true, nil
}

// old reports whether a file has not been used for the grace period.
func (c *collection) old(path string) (bool, error) {
	fi, err := os.Stat(path)
	if notExist(err) {
		return false, nil
	} else if err != nil {
		return false, storageError(err)
	}
	return !fi.ModTime().After(c.before), nil
}

// collectBlobs removes content that no repository has.
func (s *Store) collectBlobs(ctx context.Context, c *collection) error {
	for path, err := range s.blobFiles() {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return err
		}
		d, ok := parseFileName(filepath.Base(filepath.Dir(filepath.Dir(path))) + "-" + filepath.Base(path))
		if !ok {
			continue
		}
		if _, live := slices.BinarySearch(c.live, hashOf(d)); live {
			continue
		}
		if err := s.collectBlob(c, path, d); err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) collectBlob(c *collection, path string, d digest.Digest) error {
	l := s.blobLocks.of(string(d))
	l.Lock()
	defer l.Unlock()
	if old, err := c.old(path); err != nil || !old || c.isNoted(string(d)) {
		return err
	}
	fi, err := os.Stat(path)
	if err != nil {
		return storageError(err)
	}
	if !c.opts.DryRun {
		if err := os.Remove(path); err != nil { // that it may come back after a crash is no harm
			return storageError(err)
		}
	}
	c.result.Blobs++
	c.result.Bytes += fi.Size()
	return nil
}

// blobFiles lists the files of all blobs.
func (s *Store) blobFiles() iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		err := filepath.WalkDir(filepath.Join(s.root, "blobs"), func(path string, e fs.DirEntry, err error) error {
			switch {
			case err != nil && !notExist(err):
				return err
			case err == nil && !e.IsDir() && !strings.HasPrefix(e.Name(), "."):
				if !yield(path, nil) {
					return fs.SkipAll
				}
			}
			return nil
		})
		if err != nil {
			yield("", storageError(err))
		}
	}
}
