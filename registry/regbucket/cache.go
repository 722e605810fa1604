package regbucket

import (
	"container/list"
	"strings"
	"sync"
	"time"
)

// cache remembers values for a time, as many as fit. What is in it may be
// gone from the bucket already.
type cache struct {
	mu      sync.Mutex
	room    int64
	entries map[string]*list.Element
	order   list.List // of *entry, last used first
}

type entry struct {
	key   string
	value any
	cost  int64
	since time.Time
	until time.Time
}

// overhead is what an entry costs beside its key and its content.
const overhead = 256

func newCache(room int64) *cache { return &cache{room: room, entries: map[string]*list.Element{}} }

func (c *cache) put(key string, value any, size int64, ttl time.Duration) {
	if ttl <= 0 {
		return
	}
	now := time.Now()
	e := &entry{key: key, value: value, cost: size + int64(len(key)) + overhead, since: now, until: now.Add(ttl)}
	c.mu.Lock()
	defer c.mu.Unlock()
	if old, ok := c.entries[key]; ok {
		c.drop(old)
	}
	c.room -= e.cost
	c.entries[key] = c.order.PushFront(e)
	for c.room < 0 {
		c.drop(c.order.Back())
	}
}

// get returns a value and how old it is.
func (c *cache) get(key string) (any, time.Duration, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	el, ok := c.entries[key]
	if !ok {
		return nil, 0, false
	}
	e := el.Value.(*entry)
	now := time.Now()
	if now.After(e.until) {
		c.drop(el)
		return nil, 0, false
	}
	c.order.MoveToFront(el)
	return e.value, now.Sub(e.since), true
}

// forget drops what is known under a key of the bucket.
func (c *cache) forget(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, kind := range []string{kindContent, kindSeen, kindUsed, kindAbsent} {
		if el, ok := c.entries[kind+key]; ok {
			c.drop(el)
		}
	}
}

// drop removes an entry; the caller holds the lock.
func (c *cache) drop(el *list.Element) {
	e := el.Value.(*entry)
	c.order.Remove(el)
	delete(c.entries, e.key)
	c.room += e.cost
}

// Kinds of entries, which go before the key of an object.
const (
	kindContent = "c:" // content of a blob or a manifest
	kindSeen    = "s:" // size of an object that was there
	kindUsed    = "u:" // that the time of use of an old blob was noted
	kindAbsent  = "a:" // that a tag was not there
	kindEnded   = "e:" // that an upload was finished or cancelled
	kindPlace   = "p:" // a repository that has a blob, by its digest
)

// seen notes that there is an object.
func (s *Store) seen(key string, size int64) { s.cache.put(kindSeen+key, size, 8, freshFor) }

// sawLately returns the size of an object that was there not long ago.
func (s *Store) sawLately(key string) (int64, bool) {
	v, _, ok := s.cache.get(kindSeen + key)
	if !ok {
		return 0, false
	}
	return v.(int64), true
}

// content returns what was read or stored lately.
func (s *Store) content(key string) ([]byte, bool) {
	v, _, ok := s.cache.get(kindContent + key)
	if !ok {
		return nil, false
	}
	return v.([]byte), true
}

func (s *Store) keepContent(key string, content []byte) {
	if len(content) <= maxCached {
		s.cache.put(kindContent+key, content, int64(len(content)), s.opts.CacheTTL)
	}
}

// maxCached is how large content in the cache may be.
const maxCached = 64 << 10

// place notes that a repository has a blob.
func (s *Store) place(repository string, key string) {
	name := key[strings.LastIndexByte(key, '/')+1:]
	s.cache.put(kindPlace+name, repository, int64(len(repository)), time.Hour)
}
