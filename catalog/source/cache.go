package source

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/krmcat/krmcat/catalog"
)

// DefaultCacheBytes is how large a [Cache] grows unless told otherwise.
const DefaultCacheBytes = 512 << 20

// Cache keeps fetched content on disk under its sha256 digest, so that a
// second run need not fetch it (KC-104, KC-114). Content is checked against
// its digest each time it is read; what does not match is removed and as good
// as not there. Several processes may use one folder at once: files appear
// complete, by renaming, and every file may vanish at any time.
//
// The folder holds blobs/sha256/HEX with content and refs/HEX.json with what a
// location was when it was last fetched. Both can be deleted at will.
type Cache struct {
	Dir string
	// MaxBytes bounds the size of the content. When it is passed, the least
	// recently used goes until three quarters are left. Zero means
	// DefaultCacheBytes; content larger than an eighth of it is not kept.
	MaxBytes int64
	// Log gets what goes wrong with the cache, which is never an error of the
	// fetch. Nil is silent.
	Log *slog.Logger
}

// reference is what the cache knows about a location.
type reference struct {
	Key          string           `json:"key"`
	Digest       digest.Digest    `json:"digest"`
	ETag         string           `json:"etag,omitempty"`
	LastModified string           `json:"lastModified,omitempty"`
	MediaType    string           `json:"mediaType,omitempty"`
	Name         string           `json:"name,omitempty"`
	Location     catalog.Location `json:"location"`
}

func (c *Cache) blobPath(d digest.Digest) string {
	return filepath.Join(c.Dir, "blobs", "sha256", d.Encoded())
}

func (c *Cache) refPath(key string) string {
	sum := sha256.Sum256([]byte(key))
	return filepath.Join(c.Dir, "refs", hex.EncodeToString(sum[:])+".json")
}

func (c *Cache) limit() int64 { return cmp.Or(c.MaxBytes, DefaultCacheBytes) }

// Get returns the content with a digest, checked. It is [fs.ErrNotExist] if
// the cache does not have it.
func (c *Cache) Get(d digest.Digest) ([]byte, error) {
	if err := d.Validate(); err != nil || d.Algorithm() != digest.SHA256 {
		return nil, fmt.Errorf("cache: %q is not a sha256 digest: %w", d, fs.ErrNotExist)
	}
	name := c.blobPath(d)
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, c.limit()))
	if err != nil {
		return nil, fmt.Errorf("reading the cache: %w", err)
	}
	if digest.FromBytes(data) != d {
		c.warn("cached content does not match its digest; it is removed", "path", name)
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("removing damaged content from the cache: %w", err)
		}
		return nil, fmt.Errorf("%s was damaged: %w", name, fs.ErrNotExist)
	}
	// The time says what was used last. Failing to set it costs at most a
	// fetch later.
	now := time.Now()
	_ = os.Chtimes(name, now, now)
	return data, nil
}

// Put keeps content and returns its digest.
func (c *Cache) Put(data []byte) (digest.Digest, error) {
	d := digest.FromBytes(data)
	if int64(len(data)) > c.limit()/8 {
		return d, nil
	}
	name := c.blobPath(d)
	if info, err := os.Stat(name); err == nil && info.Size() == int64(len(data)) {
		return d, nil
	}
	if err := c.write(name, data); err != nil {
		return "", fmt.Errorf("writing to the cache: %w", err)
	}
	return d, c.prune()
}

// write makes a file appear with all of its content.
func (c *Cache) write(name string, data []byte) error {
	dir := filepath.Dir(name)
	// Only its user may write to the cache: refs say what a location is.
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, ".tmp-")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

// maxRefs bounds how many locations are remembered.
const maxRefs = 10_000

// prune removes what was used longest ago. Temporary files of processes that
// have ended count as content.
func (c *Cache) prune() error {
	if err := removeOldest(filepath.Join(c.Dir, "refs"), maxRefs, func(fs.FileInfo) int64 { return 1 }); err != nil {
		return fmt.Errorf("pruning the cache: %w", err)
	}
	if err := removeOldest(filepath.Join(c.Dir, "blobs", "sha256"), c.limit(), fs.FileInfo.Size); err != nil {
		return fmt.Errorf("pruning the cache: %w", err)
	}
	return nil
}

// removeOldest removes files of a folder if they weigh more than limit, until
// three quarters of it are left.
func removeOldest(dir string, limit int64, weight func(fs.FileInfo) int64) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	type file struct {
		name   string
		weight int64
		used   time.Time
	}
	var files []file
	var total int64
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			continue // gone since
		}
		w := weight(info)
		files = append(files, file{e.Name(), w, info.ModTime()})
		total += w
	}
	if total <= limit {
		return nil
	}
	slices.SortFunc(files, func(a, b file) int { return a.used.Compare(b.used) })
	for _, f := range files {
		if total <= limit/4*3 {
			break
		}
		if err := os.Remove(filepath.Join(dir, f.name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		total -= f.weight
	}
	return nil
}

// lookup returns what the cache knows about a key, with the content.
func (c *Cache) lookup(key string) (*reference, []byte, bool) {
	raw, err := os.ReadFile(c.refPath(key))
	if err != nil {
		return nil, nil, false
	}
	var ref reference
	if json.Unmarshal(raw, &ref) != nil || ref.Key != key {
		return nil, nil, false
	}
	data, err := c.Get(ref.Digest)
	if err != nil {
		return nil, nil, false
	}
	return &ref, data, true
}

// remember keeps content and what is known about it. A cache that cannot be
// written to does not keep a fetch from working.
func (c *Cache) remember(ref reference, data []byte) {
	d, err := c.Put(data)
	if err == nil {
		ref.Digest = d
		var raw []byte
		if raw, err = json.Marshal(ref); err == nil {
			err = c.write(c.refPath(ref.Key), raw)
		}
	}
	if err != nil {
		c.warn("cache not written", "error", err)
	}
}

func (c *Cache) warn(msg string, args ...any) {
	if c.Log != nil {
		c.Log.Warn(msg, args...)
	}
}

// Cached is a source that keeps what another one fetches for locations that
// name one content for ever (see [catalog.Location.Pinned]). Other locations
// go through it; for those, [HTTPS] can be given the same cache.
type Cached struct {
	Source catalog.Source
	Cache  *Cache
}

// Fetch implements [catalog.Source].
func (s *Cached) Fetch(ctx context.Context, loc catalog.Location) (*catalog.Content, error) {
	if !loc.Pinned() || loc.IsLocal() {
		c, err := s.Source.Fetch(ctx, loc)
		if err == nil && c.Location.Pinned() && !c.Location.IsLocal() {
			return s.keep(c, c.Location)
		}
		return c, err
	}
	if ref, data, ok := s.Cache.lookup(pinnedKey(loc)); ok {
		return &catalog.Content{
			Body:      io.NopCloser(bytes.NewReader(data)),
			Size:      int64(len(data)),
			MediaType: ref.MediaType,
			Name:      ref.Name,
			Digest:    ref.Digest,
			Location:  ref.Location,
		}, nil
	}
	c, err := s.Source.Fetch(ctx, loc)
	if err != nil {
		return nil, err
	}
	return s.keep(c, loc)
}

// pinnedKey names a pinned location. An image index has something else for
// each platform.
func pinnedKey(loc catalog.Location) string {
	key := "pinned " + loc.Scheme + " " + loc.String()
	if loc.Scheme == "oci" {
		key += " " + goruntime.GOOS + "/" + goruntime.GOARCH
	}
	return key
}

func (s *Cached) keep(c *catalog.Content, loc catalog.Location) (*catalog.Content, error) {
	if c.Size > s.Cache.limit()/8 {
		return c, nil
	}
	defer c.Body.Close()
	limit := s.Cache.limit() / 8
	data, err := io.ReadAll(io.LimitReader(c.Body, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > limit {
		// Size was not known, and it is too much to keep: hand on what was
		// read and the rest.
		rest, err := spool(io.MultiReader(bytes.NewReader(data), c.Body), 1<<40, "")
		if err != nil {
			return nil, err
		}
		rest.MediaType, rest.Name, rest.Location = c.MediaType, c.Name, c.Location
		return rest, nil
	}
	s.Cache.remember(reference{Key: pinnedKey(loc), MediaType: c.MediaType, Name: c.Name, Location: c.Location}, data)
	c.Body, c.Size, c.Digest = io.NopCloser(bytes.NewReader(data)), int64(len(data)), digest.FromBytes(data)
	return c, nil
}
