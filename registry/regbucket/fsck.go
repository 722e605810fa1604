package regbucket

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"strings"

	"github.com/minio/minio-go/v7"
	"github.com/opencontainers/go-digest"

	"github.com/krmcat/krmcat/registry/regstore"
)

// FsckOptions say how to check a bucket.
type FsckOptions struct {
	// Quick leaves out reading the content of blobs.
	Quick bool
	// Repair removes what is damaged or leads nowhere, so that pushing it again
	// brings it back, and lists referrers that are not listed.
	Repair bool
}

// Problem is something that is not as it should be.
type Problem struct {
	// Key is the object, below the prefix.
	Key string `json:"key"`
	// What is wrong with it.
	What string `json:"what"`
	// Repaired says what was done about it; empty if nothing was.
	Repaired string `json:"repaired,omitempty"`
}

// Fsck checks everything in the bucket and lists what is wrong; the error of
// a step is one of the check itself. It may run beside pulls and pushes, through
// any server; what is under way may be listed, and is not removed.
func (s *Store) Fsck(ctx context.Context, opts *FsckOptions) iter.Seq2[Problem, error] {
	return func(yield func(Problem, error) bool) {
		c := &check{s: s, yield: yield}
		if opts != nil {
			c.opts = *opts
		}
		for repository, err := range s.repositories(ctx, "", func(n *node) bool { return n.anything }) {
			if err == nil {
				err = c.repository(ctx, repository)
			}
			if errors.Is(err, errStopped) {
				return
			}
			if err != nil {
				yield(Problem{}, err)
				return
			}
		}
	}
}

// errStopped ends a check whose reader has seen enough.
var errStopped = errors.New("stopped")

type check struct {
	s     *Store
	opts  FsckOptions
	yield func(Problem, error) bool
}

// report lists a problem. With Repair, it first does what can be done, which
// how names; a nil repair means that nothing can be.
func (c *check) report(key, what, how string, repair func() error) error {
	p := Problem{Key: strings.TrimPrefix(key, c.s.prefix), What: what}
	if c.opts.Repair && repair != nil {
		if err := repair(); err != nil {
			return fmt.Errorf("repairing %s: %w", p.Key, err)
		}
		c.s.cache.forget(key)
		p.Repaired = how
	}
	if !c.yield(p, nil) {
		return errStopped
	}
	return nil
}

func (c *check) repository(ctx context.Context, repository string) error {
	blobs, err := c.blobs(ctx, repository)
	if err != nil {
		return err
	}
	manifests, err := c.manifests(ctx, repository)
	if err != nil {
		return err
	}
	if err := c.references(ctx, repository, blobs, manifests); err != nil {
		return err
	}
	if err := c.tags(ctx, repository, manifests); err != nil {
		return err
	}
	return c.referrers(ctx, repository, manifests)
}

func (c *check) blobs(ctx context.Context, repository string) (map[digest.Digest]bool, error) {
	found := map[digest.Digest]bool{}
	prefix := c.s.repoKey(repository, "_blobs", "")
	for o, err := range c.s.list(ctx, prefix, "", true, 0) {
		if err != nil {
			return nil, err
		}
		d, ok := parseObjectName(strings.TrimPrefix(o.Key, prefix))
		if !ok {
			if err := c.report(o.Key, "is not the name of a blob", "", nil); err != nil {
				return nil, err
			}
			continue
		}
		whole, err := c.verify(ctx, o.Key, d, o.Size)
		switch {
		case errors.Is(err, fs.ErrNotExist): // deleted meanwhile
			continue
		case err != nil:
			return nil, err
		case !whole:
			if err := c.report(o.Key, "content does not match the digest", "removed", c.setAside(ctx, o, repository, "_blobs", d)); err != nil {
				return nil, err
			}
			if c.opts.Repair {
				continue
			}
		}
		found[d] = true
	}
	return found, nil
}

func (c *check) verify(ctx context.Context, key string, d digest.Digest, size int64) (bool, error) {
	if c.opts.Quick {
		return true, nil
	}
	return c.s.verify(ctx, key, d, size)
}

// verify reports whether the content of an object has a digest.
func (s *Store) verify(ctx context.Context, key string, d digest.Digest, size int64) (bool, error) {
	r := &blobReader{s: s, ctx: ctx, key: key, size: size}
	defer func() { _ = r.Close() }() // only read
	v := d.Verifier()
	if _, err := io.CopyBuffer(v, struct{ io.Reader }{r}, make([]byte, 256<<10)); err != nil {
		return false, err
	}
	return v.Verified(), nil
}

// setAside returns what removes an object that was found to be damaged: into
// the trash, from where it comes back at once if it was pushed again between
// the check and now, and is whole.
func (c *check) setAside(ctx context.Context, o minio.ObjectInfo, repository, kind string, d digest.Digest) func() error {
	return func() error {
		info, err := c.s.head(ctx, o.Key)
		if errors.Is(err, fs.ErrNotExist) || err == nil && info.ETag != o.ETag {
			return nil // deleted, or pushed again
		} else if err != nil {
			return err
		}
		if err := c.s.discard(ctx, repository, kind, d, o.Size); err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			return err
		}
		t := discarded{repository, kind, d, o.Size}
		whole, err := c.s.isWhole(ctx, t)
		if err != nil || !whole {
			return err
		}
		return c.s.restore(ctx, t)
	}
}

// isGone reports whether an object is still not there: what was pushed since
// it was looked for is no problem.
func (c *check) isGone(ctx context.Context, key string) (bool, error) {
	_, err := c.s.head(ctx, key)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	return false, err
}

func (c *check) manifests(ctx context.Context, repository string) (map[digest.Digest]*regstore.Manifest, error) {
	found := map[digest.Digest]*regstore.Manifest{}
	prefix := c.s.repoKey(repository, "_manifests", "")
	for o, err := range c.s.list(ctx, prefix, "", true, 0) {
		if err != nil {
			return nil, err
		}
		d, ok := parseObjectName(strings.TrimPrefix(o.Key, prefix))
		if !ok {
			if err := c.report(o.Key, "is not the name of a manifest", "", nil); err != nil {
				return nil, err
			}
			continue
		}
		c.s.cache.forget(o.Key)
		desc, content, err := c.s.readManifest(ctx, repository, d, maxObject)
		var m *regstore.Manifest
		switch {
		case errors.Is(err, fs.ErrNotExist): // deleted meanwhile
			continue
		case errors.Is(err, regstore.ErrUnavailable), ctx.Err() != nil:
			return nil, err
		case err == nil:
			m, err = regstore.ParseManifest(desc.MediaType, content, d)
		}
		if err != nil {
			if err := c.report(o.Key, "cannot be read: "+err.Error(), "removed", c.setAside(ctx, o, repository, "_manifests", d)); err != nil {
				return nil, err
			}
			continue
		}
		m.Content = nil
		found[d] = m
	}
	return found, nil
}

// references checks that what manifests refer to is there.
func (c *check) references(ctx context.Context, repository string, blobs map[digest.Digest]bool, manifests map[digest.Digest]*regstore.Manifest) error {
	for d, m := range manifests {
		key := c.s.manifestKey(repository, d)
		wantBlobs, wantManifests := m.References()
		for _, b := range wantBlobs {
			if blobs[b] {
				continue
			}
			if gone, err := c.isGone(ctx, c.s.blobKey(repository, b)); err != nil {
				return err
			} else if !gone {
				continue
			}
			if err := c.report(key, fmt.Sprintf("blob %s is missing; push it again", b), "", nil); err != nil {
				return err
			}
		}
		for _, child := range wantManifests {
			if manifests[child] != nil {
				continue
			}
			if gone, err := c.isGone(ctx, c.s.manifestKey(repository, child)); err != nil {
				return err
			} else if !gone {
				continue
			}
			if err := c.report(key, fmt.Sprintf("manifest %s is missing; push it again", child), "", nil); err != nil {
				return err
			}
		}
		if m.Subject == "" {
			continue
		}
		entry := c.s.referrerKey(repository, m.Subject, d)
		if _, err := c.s.head(ctx, entry); errors.Is(err, fs.ErrNotExist) {
			err := c.report(entry, "the referrer is not listed", "listed", func() error { return c.s.put(ctx, entry, nil, "", minio.PutObjectOptions{}) })
			if err != nil {
				return err
			}
		} else if err != nil {
			return err
		}
	}
	return nil
}

func (c *check) tags(ctx context.Context, repository string, manifests map[digest.Digest]*regstore.Manifest) error {
	prefix := c.s.tagKey(repository, "")
	for o, err := range c.s.list(ctx, prefix, "", true, 0) {
		if err != nil {
			return err
		}
		tag := strings.TrimPrefix(o.Key, prefix)
		if !regstore.ValidTag(tag) {
			err = c.report(o.Key, "is not the name of a tag", "", nil)
		} else if d, rerr := c.s.readTag(ctx, repository, tag); errors.Is(rerr, fs.ErrNotExist) {
			continue // deleted
		} else if errors.Is(rerr, regstore.ErrUnavailable) || ctx.Err() != nil {
			return rerr
		} else if rerr != nil {
			err = c.report(o.Key, rerr.Error(), "removed", func() error {
				if err := c.s.replace(ctx, o.Key, o.ETag, nil); !errors.Is(err, fs.ErrExist) && !errors.Is(err, fs.ErrNotExist) {
					return err
				}
				return nil // moved since
			})
		} else if manifests[d] == nil {
			var gone bool
			if gone, err = c.isGone(ctx, c.s.manifestKey(repository, d)); err == nil && gone {
				err = c.report(o.Key, fmt.Sprintf("manifest %s is missing", d), "removed", func() error { return c.removeTag(ctx, repository, tag, d) })
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// removeTag removes a tag whose manifest is missing. Whoever pushes that just
// now sets the tag after it, so that either the tag comes later, or the
// manifest is there by the time that it is looked for here, and the tag is put
// back.
func (c *check) removeTag(ctx context.Context, repository, tag string, d digest.Digest) error {
	if err := c.s.removeTag(ctx, repository, tag, d); err != nil {
		return err
	}
	if gone, err := c.isGone(ctx, c.s.manifestKey(repository, d)); err != nil || gone {
		return err
	}
	err := c.s.createTag(ctx, repository, tag, d)
	if _, taken := errors.AsType[*regstore.TagError](err); taken {
		return nil
	}
	return err
}

// referrers looks for entries whose manifests are gone, which is what is
// left of a push that was cut short.
func (c *check) referrers(ctx context.Context, repository string, manifests map[digest.Digest]*regstore.Manifest) error {
	type entry struct {
		key        string
		subject, d digest.Digest
	}
	prefix := c.s.repoKey(repository, "_referrers", "")
	var stray []entry
	for o, err := range c.s.list(ctx, prefix, "", true, 0) {
		if err != nil {
			return err
		}
		first, second, _ := strings.Cut(strings.TrimPrefix(o.Key, prefix), "/")
		subject, _ := parseObjectName(first)
		d, ok := parseObjectName(second)
		if m := manifests[d]; !ok || m == nil || m.Subject == "" || m.Subject != subject {
			stray = append(stray, entry{o.Key, subject, d})
		}
	}
	for _, e := range stray {
		remove := func() error { return c.s.remove(ctx, e.key) }
		if e.subject != "" && e.d != "" && manifests[e.d] == nil {
			// Pushed since, perhaps, or being pushed now.
			if gone, err := c.isGone(ctx, c.s.manifestKey(repository, e.d)); err != nil {
				return err
			} else if !gone {
				continue
			}
			remove = func() error { return c.s.removeReferrer(ctx, repository, e.subject, e.d) }
		}
		if err := c.report(e.key, "lists a referrer that is not there", "removed", remove); err != nil {
			return err
		}
	}
	return nil
}
