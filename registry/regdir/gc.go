package regdir

import (
	"sync"

	"github.com/opencontainers/go-digest"
)

// collection is a garbage collection under way. Whatever is pushed, mounted
// or asked for meanwhile is noted here, and spared.
type collection struct {
	mu    sync.Mutex
	noted map[string]bool // repository + "@" + digest, and the digest alone
}

// touch notes that somebody counts on content. The caller holds the lock of
// the content, or of the repository, that the collection takes to remove it.
func (s *Store) touch(repository string, d digest.Digest) {
	if c := s.gc.Load(); c != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.noted[repository+"@"+string(d)] = true
		c.noted[string(d)] = true
	}
}
