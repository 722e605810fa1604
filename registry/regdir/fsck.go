package regdir

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"

	"github.com/opencontainers/go-digest"

	"github.com/krmcat/krmcat/internal/durable"
	"github.com/krmcat/krmcat/registry/regstore"
)

// FsckOptions say how to check a folder.
type FsckOptions struct {
	// Quick leaves out reading the content of blobs.
	Quick bool
	// Repair mends what can be mended, and puts what is damaged into the
	// folder "damaged", so that pushing it again brings it back.
	Repair bool
}

// Problem is something that is not as it should be.
type Problem struct {
	// Path is the file, below the registry folder.
	Path string `json:"path"`
	// What is wrong with it.
	What string `json:"what"`
	// Repaired says what was done about it; empty if nothing was.
	Repaired string `json:"repaired,omitempty"`
}

// Fsck checks everything in the folder and lists what is wrong; the error of
// a step is one of the check itself. It may run beside pushes and pulls.
func (s *Store) Fsck(ctx context.Context, opts *FsckOptions) iter.Seq2[Problem, error] {
	return func(yield func(Problem, error) bool) {
		c := &check{s: s, yield: yield}
		if opts != nil {
			c.opts = *opts
		}
		if err := c.run(ctx); err != nil && !errors.Is(err, errStopped) {
			yield(Problem{}, err)
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

func (c *check) run(ctx context.Context) error {
	if err := c.s.settled(ctx); err != nil {
		return err
	}
	for path, err := range c.s.blobFiles() {
		if err == nil {
			err = ctx.Err()
		}
		if err == nil {
			err = c.blob(path)
		}
		if err != nil {
			return err
		}
	}
	for repository, err := range c.s.folders(ctx) {
		if err == nil {
			err = c.repository(repository)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// report lists a problem. With Repair, it first does what can be done, which
// how names; a nil repair means that nothing can be.
func (c *check) report(path, what, how string, repair func() error) error {
	rel, err := filepath.Rel(c.s.root, path)
	if err != nil {
		return err
	}
	p := Problem{Path: filepath.ToSlash(rel), What: what}
	if c.opts.Repair && repair != nil {
		if err := repair(); err != nil {
			return fmt.Errorf("repairing %s: %w", p.Path, storageError(err))
		}
		p.Repaired = how
	}
	if !c.yield(p, nil) {
		return errStopped
	}
	return nil
}

// setAside moves a damaged file out of the way.
func (c *check) setAside(path string) func() error {
	return func() error {
		defer c.s.referrers.clear() // a manifest's subject may not be readable any more
		dir := filepath.Join(c.s.root, "damaged")
		if err := c.s.dirs.Make(dir); err != nil {
			return err
		}
		if err := os.Rename(path, filepath.Join(dir, filepath.Base(path))); err != nil {
			return err
		}
		return errors.Join(durable.SyncDir(dir), durable.SyncDir(filepath.Dir(path)))
	}
}

func remove(path string) func() error { return func() error { return durable.Remove(path) } }

func (c *check) blob(path string) error {
	alg := filepath.Base(filepath.Dir(filepath.Dir(path)))
	d, err := regstore.ParseDigest(alg + ":" + filepath.Base(path))
	if err != nil || c.s.blobPath(d) != path {
		return c.report(path, "is not the name of a blob", "", nil)
	}
	if c.opts.Quick {
		return nil
	}
	l := c.s.blobLocks.of(string(d))
	l.RLock()
	ok, err := verifyFile(path, d)
	l.RUnlock()
	switch {
	case notExist(err): // collected meanwhile
		return nil
	case err != nil:
		return c.report(path, "cannot be read: "+err.Error(), "set aside", c.setBlobAside(path, d))
	case !ok:
		return c.report(path, "content does not match the digest", "set aside", c.setBlobAside(path, d))
	}
	return nil
}

// setBlobAside moves a damaged blob out of the way, unless a push has mended it
// since it was read.
func (c *check) setBlobAside(path string, d digest.Digest) func() error {
	return func() error {
		l := c.s.blobLocks.of(string(d))
		l.Lock()
		defer l.Unlock()
		switch ok, err := verifyFile(path, d); {
		case notExist(err), err == nil && ok:
			return nil
		}
		return c.setAside(path)()
	}
}

// removeLink removes a link to a blob that is not there, unless a push has
// brought it since.
func (c *check) removeLink(path string, d digest.Digest) func() error {
	return func() error {
		l := c.s.blobLocks.of(string(d))
		l.Lock()
		defer l.Unlock()
		if ok, err := exists(c.s.blobPath(d)); err != nil || ok {
			return err
		}
		return durable.Remove(path)
	}
}

func verifyFile(path string, d digest.Digest) (bool, error) {
	f, err := os.Open(path)
	if err != nil {
		return false, err
	}
	defer func() { _ = f.Close() }() // only read
	v := d.Verifier()
	if _, err := io.CopyBuffer(v, reader{f}, make([]byte, 256<<10)); err != nil {
		return false, err
	}
	return v.Verified(), nil
}

// repository checks a repository, whose pushes wait meanwhile.
func (c *check) repository(repository string) error {
	rl := c.s.repoLocks.of(repository)
	rl.Lock()
	defer rl.Unlock()
	for _, f := range []func(string) error{c.links, c.manifests, c.tags, c.referrers} {
		if err := f(repository); err != nil {
			return err
		}
	}
	return nil
}

func (c *check) links(repository string) error {
	names, err := readDir(c.s.repoPath(repository, "_blobs"))
	if err != nil {
		return err
	}
	for _, name := range names {
		path := c.s.repoPath(repository, "_blobs", name)
		d, ok := parseFileName(name)
		if !ok {
			err = c.report(path, "is not the name of a blob", "", nil)
		} else if ok, serr := exists(c.s.blobPath(d)); serr != nil {
			err = serr
		} else if !ok {
			err = c.report(path, "the blob is not there", "removed from the repository", c.removeLink(path, d))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *check) manifests(repository string) error {
	names, err := readDir(c.s.repoPath(repository, "_manifests"))
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := c.manifest(repository, name); err != nil {
			return err
		}
	}
	return nil
}

func (c *check) manifest(repository, name string) error {
	path := c.s.repoPath(repository, "_manifests", name)
	d, ok := parseFileName(name)
	if !ok {
		return c.report(path, "is not the name of a manifest", "", nil)
	}
	desc, content, err := c.s.readManifest(repository, name)
	if err != nil {
		return c.report(path, "cannot be read: "+err.Error(), "set aside", c.setAside(path))
	}
	if d.Algorithm().FromBytes(content) != d {
		return c.report(path, "content does not match the digest", "set aside", c.setAside(path))
	}
	m, err := regstore.ParseManifest(desc.MediaType, content, d)
	if err != nil {
		return c.report(path, err.Error(), "set aside", c.setAside(path))
	}
	blobs, manifests := m.References()
	for _, b := range blobs {
		linked, err := exists(c.s.repoPath(repository, "_blobs", fileName(b)))
		if err != nil {
			return err
		}
		there, err := exists(c.s.blobPath(b))
		if err != nil {
			return err
		}
		switch {
		case !there:
			err = c.report(path, fmt.Sprintf("blob %s is missing; push it again", b), "", nil)
		case !linked:
			link := c.s.repoPath(repository, "_blobs", fileName(b))
			err = c.report(path, fmt.Sprintf("blob %s is not in the repository", b), "added to the repository", func() error {
				if err := c.s.dirs.Make(filepath.Dir(link)); err != nil {
					return err
				}
				return durable.Touch(link)
			})
		}
		if err != nil {
			return err
		}
	}
	for _, child := range manifests {
		if ok, err := exists(c.s.repoPath(repository, "_manifests", fileName(child))); err != nil {
			return err
		} else if !ok {
			if err := c.report(path, fmt.Sprintf("manifest %s is missing; push it again", child), "", nil); err != nil {
				return err
			}
		}
	}
	return c.entry(repository, m)
}

// entry checks that a manifest with a subject is listed as its referrer.
func (c *check) entry(repository string, m *regstore.Manifest) error {
	if m.Subject == "" {
		return nil
	}
	want, err := json.Marshal(m.Descriptor)
	if err != nil {
		return err
	}
	path := c.s.repoPath(repository, "_referrers", fileName(m.Subject), fileName(m.Descriptor.Digest))
	got, err := os.ReadFile(path)
	if err != nil && !notExist(err) {
		return storageError(err)
	}
	if bytes.Equal(got, want) {
		return nil
	}
	return c.report(path, "the referrer is not listed as it should be", "listed", func() error {
		if err := c.s.dirs.Make(filepath.Dir(path)); err != nil {
			return err
		}
		defer c.s.referrers.drop(repository, m.Subject)
		return durable.WriteFile(c.s.tmp(), path, want)
	})
}

func (c *check) tags(repository string) error {
	names, err := readDir(c.s.repoPath(repository, "_tags"))
	if err != nil {
		return err
	}
	for _, name := range names {
		path := c.s.repoPath(repository, "_tags", name)
		if _, ok := unescapeTag(name); !ok {
			err = c.report(path, "is not the name of a tag", "", nil)
		} else if d, rerr := c.s.readTag(repository, name); rerr != nil {
			err = c.report(path, "cannot be read: "+rerr.Error(), "set aside", c.setAside(path))
		} else if ok, serr := exists(c.s.repoPath(repository, "_manifests", fileName(d))); serr != nil {
			err = serr
		} else if !ok {
			err = c.report(path, fmt.Sprintf("manifest %s is missing", d), "set aside", c.setAside(path))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// referrers looks for entries whose manifests are gone, which is what is
// left of a push that was cut short.
func (c *check) referrers(repository string) error {
	subjects, err := readDir(c.s.repoPath(repository, "_referrers"))
	if err != nil {
		return err
	}
	for _, subject := range subjects {
		names, err := readDir(c.s.repoPath(repository, "_referrers", subject))
		if err != nil {
			return err
		}
		for _, name := range names {
			path := c.s.repoPath(repository, "_referrers", subject, name)
			desc, content, err := c.s.readManifest(repository, name)
			if err == nil {
				m, perr := regstore.ParseManifest(desc.MediaType, content, desc.Digest)
				if perr == nil && fileName(m.Subject) == subject {
					continue
				}
			} else if !errors.Is(err, fs.ErrNotExist) {
				continue // reported with the manifest
			}
			if err := c.report(path, "lists a referrer that is not there", "removed", remove(path)); err != nil {
				return err
			}
		}
	}
	return nil
}
