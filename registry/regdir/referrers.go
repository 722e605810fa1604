package regdir

import (
	"sync"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// referrerCache keeps lists of referrers that were read from the disk, as
// everybody who verifies signatures asks for them. Only this process changes
// the folder, so it knows when a list is not right any more.
type referrerCache struct {
	mu      sync.Mutex
	lists   map[string][]ocispec.Descriptor
	size    int    // rough, in bytes
	changes uint64 // how often lists were dropped
}

// maxCachedReferrers bounds the memory of the cache.
const maxCachedReferrers = 8 << 20

func referrerKey(repository string, subject digest.Digest) string {
	return repository + "@" + string(subject)
}

// get returns a list, and a number to pass to put with what is read instead.
func (c *referrerCache) get(repository string, subject digest.Digest) (list []ocispec.Descriptor, ok bool, at uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	list, ok = c.lists[referrerKey(repository, subject)]
	return list, ok, c.changes
}

// put keeps a list that was read after get, unless something has changed
// since.
func (c *referrerCache) put(repository string, subject digest.Digest, list []ocispec.Descriptor, at uint64) {
	size := 200
	for _, d := range list {
		size += 300
		for k, v := range d.Annotations {
			size += len(k) + len(v)
		}
	}
	if size > maxCachedReferrers/8 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.changes != at {
		return
	}
	if c.lists == nil || c.size+size > maxCachedReferrers {
		c.lists, c.size = map[string][]ocispec.Descriptor{}, 0
	}
	key := referrerKey(repository, subject)
	if _, ok := c.lists[key]; !ok {
		c.lists[key] = list
		c.size += size
	}
}

// drop forgets a list, after it has changed on the disk and before anybody is
// told.
func (c *referrerCache) drop(repository string, subject digest.Digest) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.changes++
	delete(c.lists, referrerKey(repository, subject)) // its size counts until the next clearing
}

// clear forgets everything.
func (c *referrerCache) clear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.changes++
	c.lists, c.size = nil, 0
}
