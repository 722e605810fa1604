package regbucket

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/opencontainers/go-digest"

	"github.com/krmcat/krmcat/registry/regstore"
)

// GCOptions say what a garbage collection removes. Nil and zero are what is
// safe: content that no manifest refers to, after a day.
type GCOptions struct {
	// Grace is how long something has to be unused; 0 is 24 hours. It has to
	// be longer than any push takes, from its first blob to its manifest, and
	// than two hours, to which the use of old blobs is known.
	Grace time.Duration
	// Settle is how long what was removed is kept aside until the pushes that
	// went on meanwhile have ended, and it is put back if one of them refers to
	// it; 0 is [Settle]. Less is for tests without other servers. Negative does
	// not wait, and leaves that to the servers.
	Settle time.Duration
	// Untagged also removes manifests that cannot be reached from a tag:
	// not as part of an index, and not as a referrer of what can be reached.
	// Someone may still know them by their digest.
	Untagged bool
	// Removed is told of manifests that Untagged removed. It may be nil.
	Removed func(repository string, d digest.Digest)
	// DryRun removes nothing and says what would be.
	DryRun bool
	// Interval leaves it at that if garbage was collected, by whatever server,
	// less than that ago ([ErrNotDue]); 0 collects in any case.
	Interval time.Duration
	// Lease is how long another server that collects garbage may not be heard
	// of before this one takes over; 0 is a minute. It has to be the same
	// everywhere.
	Lease time.Duration
}

// GCResult says what a garbage collection removed.
type GCResult struct {
	Manifests int   `json:"manifests"` // that no tag leads to
	Blobs     int   `json:"blobs"`     // that their repository does not use
	Bytes     int64 `json:"bytes"`     // of those
}

// GC collects garbage. It may run beside pushes through any server: what is
// pushed, or asked for, while it runs is spared or put back. It takes at least as
// long as [Settle], unless told otherwise. One of all servers does it at a time:
// for the others, it is [ErrCollecting].
func (s *Store) GC(ctx context.Context, opts *GCOptions) (GCResult, error) {
	var o GCOptions
	if opts != nil {
		o = *opts
	}
	if o.Grace == 0 {
		o.Grace = 24 * time.Hour
	}
	if o.Settle == 0 {
		o.Settle = Settle
	}
	if o.Lease == 0 {
		o.Lease = defaultLease
	}
	if !o.DryRun {
		l, err := s.acquireLease(ctx, o.Lease, o.Interval)
		if err != nil {
			return GCResult{}, err
		}
		collecting, stop := context.WithCancelCause(ctx)
		renewed := make(chan struct{})
		go func() {
			defer close(renewed)
			l.renew(collecting, func() { stop(errLeaseLost) })
		}()
		result, err := s.collect(collecting, o)
		if lost := context.Cause(collecting); err != nil && errors.Is(lost, errLeaseLost) {
			err = fmt.Errorf("%w: %w", regstore.ErrUnavailable, lost)
		}
		stop(nil)
		<-renewed
		l.release(ctx, err == nil)
		return result, err
	}
	return s.collect(ctx, o)
}

// errLeaseLost ends a collection that others take to have ended already.
var errLeaseLost = errors.New("the storage did not answer for so long that another server may collect garbage now")

func (s *Store) collect(ctx context.Context, o GCOptions) (GCResult, error) {
	c := &collection{s: s, opts: o, before: time.Now().Add(-o.Grace)}
	for repository, err := range s.repositories(ctx, "", func(n *node) bool { return n.anything }) {
		if err == nil {
			err = c.repository(ctx, repository)
		}
		if err != nil {
			return c.result, err
		}
	}
	if o.DryRun {
		return c.result, nil
	}
	if o.Settle < 0 {
		o.Settle = Settle
	} else if c.removed {
		if err := pause(ctx, o.Settle); err != nil {
			return c.result, err
		}
	}
	if err := s.emptyTrash(ctx, o.Settle); err != nil {
		return c.result, err
	}
	if _, err := s.ExpireUploads(ctx); err != nil {
		return c.result, err
	}
	s.log.InfoContext(ctx, "garbage collected", "manifests", c.result.Manifests, "blobs", c.result.Blobs, "bytes", c.result.Bytes)
	return c.result, nil
}

type collection struct {
	s       *Store
	opts    GCOptions
	before  time.Time // what is used later than this is spared
	removed bool
	result  GCResult
}

// repository removes what a repository does not use.
func (c *collection) repository(ctx context.Context, repository string) error {
	s := c.s
	// Blobs before manifests: one that a manifest of later refers to is young.
	type blob struct {
		d    digest.Digest
		size int64
	}
	var old []blob
	prefix := s.repoKey(repository, "_blobs", "")
	for o, err := range s.list(ctx, prefix, "", true, 0) {
		if err != nil {
			return err
		}
		if d, ok := parseObjectName(strings.TrimPrefix(o.Key, prefix)); ok && !o.LastModified.After(c.before) {
			old = append(old, blob{d, o.Size})
		}
	}
	used := map[digest.Digest]bool{}
	prefix = s.repoKey(repository, "_used", "")
	for o, err := range s.list(ctx, prefix, "", true, 0) {
		if err != nil {
			return err
		}
		d, ok := parseObjectName(strings.TrimPrefix(o.Key, prefix))
		if ok && o.LastModified.After(c.before) {
			used[d] = true
		} else if !c.opts.DryRun {
			if err := s.remove(ctx, o.Key); err != nil {
				return err
			}
		}
	}
	stored, whole, err := s.stored(ctx, repository)
	if err != nil || !whole { // what a damaged one leads to is not known
		return err
	}
	if c.opts.Untagged {
		if err := c.manifests(ctx, repository, stored); err != nil {
			return err
		}
	}
	for _, m := range stored {
		for _, b := range m.Blobs {
			used[b.Digest] = true
		}
	}
	for _, b := range old {
		if used[b.d] {
			continue
		}
		if !c.opts.DryRun {
			if err := s.discard(ctx, repository, "_blobs", b.d, b.size); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			c.removed = true
		}
		c.result.Blobs++
		c.result.Bytes += b.size
	}
	return nil
}

// stored reads all manifests of a repository, and reports whether all could
// be read.
func (s *Store) stored(ctx context.Context, repository string) (map[digest.Digest]*regstore.Manifest, bool, error) {
	var names []digest.Digest
	for d, err := range s.digests(ctx, s.repoKey(repository, "_manifests", "")) {
		if err != nil {
			return nil, false, err
		}
		names = append(names, d)
	}
	stored := map[digest.Digest]*regstore.Manifest{}
	for m, err := range s.manifests(ctx, repository) {
		if err != nil {
			return nil, false, err
		}
		stored[m.Descriptor.Digest] = &regstore.Manifest{Descriptor: m.Descriptor, Subject: m.Subject, Blobs: m.Blobs, Manifests: m.Manifests}
	}
	return stored, !slices.ContainsFunc(names, func(d digest.Digest) bool { return stored[d] == nil }), nil
}

// manifests removes manifests that no tag leads to.
func (c *collection) manifests(ctx context.Context, repository string, stored map[digest.Digest]*regstore.Manifest) error {
	roots := []digest.Digest{}
	prefix := c.s.repoKey(repository, "_manifests", "")
	for o, err := range c.s.list(ctx, prefix, "", true, 0) {
		if err != nil {
			return err
		}
		if d, ok := parseObjectName(strings.TrimPrefix(o.Key, prefix)); ok && o.LastModified.After(c.before) {
			roots = append(roots, d)
		}
	}
	tagged, err := c.s.tagged(ctx, repository)
	if err != nil {
		return err
	}
	reached := reach(append(roots, tagged...), stored)
	for d, m := range stored {
		if reached[d] {
			continue
		}
		if !c.opts.DryRun {
			if err := c.s.discard(ctx, repository, "_manifests", d, m.Descriptor.Size); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			c.removed = true
			if c.opts.Removed != nil {
				c.opts.Removed(repository, d)
			}
		}
		delete(stored, d)
		c.result.Manifests++
	}
	return nil
}

// tagged returns what tags point at.
func (s *Store) tagged(ctx context.Context, repository string) ([]digest.Digest, error) {
	var list []digest.Digest
	for d, err := range inOrder(ctx, s.tagNames(ctx, repository, ""), func(ctx context.Context, tag string) (digest.Digest, error) {
		d, err := s.readTag(ctx, repository, tag)
		if errors.Is(err, fs.ErrNotExist) {
			return "", nil
		}
		return d, err
	}) {
		if err != nil {
			return nil, err
		}
		list = append(list, d)
	}
	return list, nil
}

// reach returns what can be reached from manifests: parts of an index, and
// referrers.
func reach(from []digest.Digest, stored map[digest.Digest]*regstore.Manifest) map[digest.Digest]bool {
	referrers := map[digest.Digest][]digest.Digest{}
	for d, m := range stored {
		if m.Subject != "" {
			referrers[m.Subject] = append(referrers[m.Subject], d)
		}
	}
	reached := map[digest.Digest]bool{}
	for todo := from; len(todo) > 0; {
		d := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if reached[d] {
			continue
		}
		reached[d] = true
		todo = append(todo, referrers[d]...)
		if m := stored[d]; m != nil {
			for _, child := range m.Manifests {
				todo = append(todo, child.Digest)
			}
		}
	}
	return reached
}

func (s *Store) trashKey(repository, kind string, d digest.Digest) string {
	return s.prefix + "trash/" + kind + "/" + objectName(d) + "/" + repository
}

// discard puts content aside, where nobody finds it, until it is known that
// nobody counted on it.
func (s *Store) discard(ctx context.Context, repository, kind string, d digest.Digest, size int64) error {
	key := s.repoKey(repository, kind, objectName(d))
	if err := s.copy(ctx, key, s.trashKey(repository, kind, d), size); err != nil {
		return err
	}
	err := s.remove(ctx, key)
	s.cache.forget(key)
	select {
	case s.wake <- struct{}{}:
	default: // it knows
	}
	return err
}

// discarded is something in the trash.
type discarded struct {
	repository, kind string
	d                digest.Digest
	size             int64
}

// emptyTrash looks at what was put aside that long ago, puts back what is
// referred to, and drops the rest.
func (s *Store) emptyTrash(ctx context.Context, settle time.Duration) error {
	before := time.Now().Add(-settle)
	prefix := s.prefix + "trash/"
	trash := map[string][]discarded{} // by repository
	for o, err := range s.list(ctx, prefix, "", true, 0) {
		if err != nil {
			return err
		}
		f := strings.SplitN(strings.TrimPrefix(o.Key, prefix), "/", 3)
		if len(f) != 3 || o.LastModified.After(before) {
			continue
		}
		if d, ok := parseObjectName(f[1]); ok {
			trash[f[2]] = append(trash[f[2]], discarded{f[2], f[0], d, o.Size})
		}
	}
	for repository, list := range trash {
		if err := s.sort(ctx, repository, list); err != nil {
			return fmt.Errorf("looking through what was deleted from %s: %w", repository, err)
		}
	}
	return nil
}

// sort puts back what a repository refers to, manifests first, as those
// refer to more.
func (s *Store) sort(ctx context.Context, repository string, list []discarded) error {
	slices.SortFunc(list, func(a, b discarded) int { return strings.Compare(b.kind, a.kind) })
	var rest []discarded
	for changed := true; changed; list, rest = rest, nil {
		changed = false
		needed, err := s.needed(ctx, repository)
		if err != nil {
			return err
		}
		for _, t := range list {
			back, err := s.wanted(ctx, t, needed)
			if err == nil && back {
				back, err = s.isWhole(ctx, t) // fsck puts aside what is damaged
			}
			if err != nil {
				return err
			}
			if !back {
				rest = append(rest, t)
				continue
			}
			changed = changed || t.kind == "_manifests"
			s.log.WarnContext(ctx, "content that was deleted while a push referred to it was put back", "repository", repository, "digest", t.d)
			if err := s.restore(ctx, t); err != nil {
				return err
			}
		}
	}
	for _, t := range list {
		if t.kind == "_manifests" {
			if err := s.forgetReferrer(ctx, t); err != nil {
				return err
			}
		}
		if err := s.remove(ctx, s.trashKey(repository, t.kind, t.d)); err != nil {
			return err
		}
	}
	return nil
}

// needed returns what tags and manifests of a repository lead to.
func (s *Store) needed(ctx context.Context, repository string) (map[digest.Digest]bool, error) {
	needed := map[digest.Digest]bool{}
	tagged, err := s.tagged(ctx, repository)
	if err != nil {
		return nil, err
	}
	for _, d := range tagged {
		needed[d] = true
	}
	stored, whole, err := s.stored(ctx, repository)
	if err != nil {
		return nil, err
	}
	if !whole {
		return nil, errors.New("a manifest is damaged, and what it refers to is not known (run fsck)")
	}
	for _, m := range stored {
		for _, b := range m.Blobs {
			needed[b.Digest] = true
		}
		for _, child := range m.Manifests {
			needed[child.Digest] = true
		}
	}
	return needed, nil
}

// wanted reports whether something in the trash is to be put back. A
// referrer goes with its subject.
func (s *Store) wanted(ctx context.Context, t discarded, needed map[digest.Digest]bool) (bool, error) {
	if needed[t.d] || t.kind != "_manifests" {
		return needed[t.d], nil
	}
	m, err := s.discardedManifest(ctx, t)
	if err != nil || m == nil || m.Subject == "" {
		return false, err
	}
	_, err = s.head(ctx, s.manifestKey(t.repository, m.Subject))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// isWhole reports whether something in the trash has its digest.
func (s *Store) isWhole(ctx context.Context, t discarded) (bool, error) {
	if t.kind == "_manifests" {
		m, err := s.discardedManifest(ctx, t)
		return m != nil, err
	}
	whole, err := s.verify(ctx, s.trashKey(t.repository, t.kind, t.d), t.d, t.size)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return whole, err
}

// discardedManifest reads a manifest in the trash; nil is one that cannot be
// read.
func (s *Store) discardedManifest(ctx context.Context, t discarded) (*regstore.Manifest, error) {
	object, _, err := s.get(ctx, s.trashKey(t.repository, t.kind, t.d), maxObject)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	mediaType, content, _ := strings.Cut(string(object), "\n")
	m, err := regstore.ParseManifest(mediaType, []byte(content), t.d)
	if err != nil || t.d.Algorithm().FromString(content) != t.d {
		return nil, nil //nolint:nilerr // damaged: nobody can use it
	}
	return m, nil
}

func (s *Store) restore(ctx context.Context, t discarded) error {
	if t.kind == "_manifests" {
		m, err := s.discardedManifest(ctx, t)
		if err != nil {
			return err
		}
		if m != nil && m.Subject != "" {
			if err := s.put(ctx, s.referrerKey(t.repository, m.Subject, t.d), nil, "", minio.PutObjectOptions{}); err != nil {
				return err
			}
		}
	}
	key := s.trashKey(t.repository, t.kind, t.d)
	if err := s.copy(ctx, key, s.repoKey(t.repository, t.kind, objectName(t.d)), t.size); err != nil {
		return err
	}
	return s.remove(ctx, key)
}

// forgetReferrer removes the entry of a manifest that is gone for good.
func (s *Store) forgetReferrer(ctx context.Context, t discarded) error {
	m, err := s.discardedManifest(ctx, t)
	if err != nil || m == nil || m.Subject == "" {
		return err
	}
	return s.removeReferrer(ctx, t.repository, m.Subject, t.d)
}
