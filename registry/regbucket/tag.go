package regbucket

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"strings"

	"github.com/opencontainers/go-digest"

	"github.com/krmcat/krmcat/registry/regstore"
)

// A tag is an object with the digest that it points at. An empty one is no
// tag: with its manifest, a tag is not deleted but replaced by that, on the
// condition that it still is what it was. (Few storages delete on a condition,
// and a tag that is moved to another manifest at that moment is not to go.)

func (s *Store) tagKey(repository, tag string) string { return s.repoKey(repository, "_tags", tag) }

func tagObject(d digest.Digest) []byte { return []byte(string(d) + "\n") }

// maxTurns is how often somebody else may be faster.
const maxTurns = 8

// tagVersion is what a tag points at, or nothing, and the version of its
// object.
type tagVersion struct {
	digest digest.Digest
	etag   string
}

func (s *Store) readTagObject(ctx context.Context, repository, tag string) (tagVersion, error) {
	b, info, err := s.getInfo(ctx, s.tagKey(repository, tag), 1<<10)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return tagVersion{}, noManifest(repository, tag)
		}
		return tagVersion{}, err
	}
	v := tagVersion{etag: info.ETag}
	if len(b) == 0 {
		return v, nil
	}
	if v.digest, err = regstore.ParseDigest(strings.TrimSuffix(string(b), "\n")); err != nil {
		return tagVersion{}, fmt.Errorf("tag %s in %s: object is damaged: %w", tag, repository, err)
	}
	return v, nil
}

// readTag returns what a tag points at.
func (s *Store) readTag(ctx context.Context, repository, tag string) (digest.Digest, error) {
	v, err := s.readTagObject(ctx, repository, tag)
	if err == nil && v.digest == "" {
		err = noManifest(repository, tag)
	}
	return v.digest, err
}

// takenBy returns what a tag points at, or nothing.
func (s *Store) takenBy(ctx context.Context, repository, tag string) (digest.Digest, error) {
	if _, _, ok := s.cache.get(kindAbsent + s.tagKey(repository, tag)); ok {
		return "", nil
	}
	d, err := s.readTag(ctx, repository, tag)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return d, err
}

// createTag points a tag at a manifest that points at nothing yet.
func (s *Store) createTag(ctx context.Context, repository, tag string, d digest.Digest) error {
	key := s.tagKey(repository, tag)
	err := s.create(ctx, key, tagObject(d))
	for range maxTurns {
		if !errors.Is(err, fs.ErrExist) {
			return err
		}
		v, rerr := s.readTagObject(ctx, repository, tag)
		switch {
		case errors.Is(rerr, fs.ErrNotExist):
			err = s.create(ctx, key, tagObject(d))
		case rerr != nil:
			return rerr
		case v.digest == d:
			return nil // ours: the storage's first answer got lost, or somebody pushes the same
		case v.digest != "":
			return &regstore.TagError{Tag: tag, Digest: v.digest}
		default: // it was deleted
			err = s.replace(ctx, key, v.etag, tagObject(d))
		}
	}
	return fmt.Errorf("%w: tag %s in %s comes and goes", regstore.ErrUnavailable, tag, repository)
}

// DeleteTag removes a tag.
func (s *Store) DeleteTag(ctx context.Context, repository, tag string) error {
	key := s.tagKey(repository, tag)
	info, err := s.head(ctx, key)
	if errors.Is(err, fs.ErrNotExist) || err == nil && info.Size == 0 {
		return noManifest(repository, tag)
	} else if err != nil {
		return err
	}
	return s.remove(ctx, key)
}

// removeTags removes the tags that point at a manifest, and leaves those alone
// that are moved to another one meanwhile.
func (s *Store) removeTags(ctx context.Context, repository string, d digest.Digest) error {
	for tag, err := range s.tagsOf(ctx, repository, d) {
		if err == nil {
			err = s.removeTag(ctx, repository, tag, d)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// removeTag removes a tag if it points at a manifest.
func (s *Store) removeTag(ctx context.Context, repository, tag string, d digest.Digest) error {
	for range maxTurns {
		v, err := s.readTagObject(ctx, repository, tag)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		case v.digest != d:
			return nil
		}
		err = s.replace(ctx, s.tagKey(repository, tag), v.etag, nil)
		if !errors.Is(err, fs.ErrExist) && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return fmt.Errorf("%w: tag %s in %s comes and goes", regstore.ErrUnavailable, tag, repository)
}

// tagsOf lists the tags that point at a manifest.
func (s *Store) tagsOf(ctx context.Context, repository string, d digest.Digest) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		for tag, err := range inOrder(ctx, s.tagNames(ctx, repository, ""), func(ctx context.Context, tag string) (string, error) {
			have, err := s.readTag(ctx, repository, tag)
			if errors.Is(err, regstore.ErrUnavailable) || ctx.Err() != nil {
				return "", err
			}
			if err != nil || have != d {
				return "", nil
			}
			return tag, nil
		}) {
			if err == nil && tag == "" {
				continue
			}
			if !yield(tag, err) {
				return
			}
		}
	}
}

func (s *Store) tagNames(ctx context.Context, repository, after string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		prefix := s.tagKey(repository, "")
		start := ""
		if after != "" {
			start = prefix + after
		}
		for o, err := range s.list(ctx, prefix, start, true, 0) {
			if err != nil {
				yield("", err)
				return
			}
			if tag := strings.TrimPrefix(o.Key, prefix); o.Size > 0 && tag > after && regstore.ValidTag(tag) && !yield(tag, nil) {
				return
			}
		}
	}
}

// Tags lists the tags of a repository.
func (s *Store) Tags(ctx context.Context, repository, after string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		none := true
		for tag, err := range s.tagNames(ctx, repository, after) {
			none = false
			if !yield(tag, err) || err != nil {
				return
			}
		}
		if none {
			if known, err := s.any(ctx, s.prefix+"repositories/"+repository+"/_"); err != nil || !known {
				yield("", cmp.Or(err, fmt.Errorf("repository %s: %w", repository, fs.ErrNotExist)))
			}
		}
	}
}
