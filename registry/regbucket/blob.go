package regbucket

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/opencontainers/go-digest"

	"github.com/krmcat/krmcat/registry/regstore"
)

func noBlob(repository string, d digest.Digest) error {
	return fmt.Errorf("blob %s in %s: %w", d, repository, fs.ErrNotExist)
}

func (s *Store) blobKey(repository string, d digest.Digest) string {
	return s.repoKey(repository, "_blobs", objectName(d))
}

// renewAfter is how old a blob may be before the time is noted at which a
// client asks for it. It is far below any grace period.
const renewAfter = time.Hour

// StatBlob returns the size of a blob of a repository. For a few seconds the
// answer may be from memory.
func (s *Store) StatBlob(ctx context.Context, repository string, d digest.Digest) (int64, error) {
	key := s.blobKey(repository, d)
	if n, ok := s.sawLately(key); ok {
		return n, nil
	}
	info, err := s.head(ctx, key)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return 0, noBlob(repository, d)
		}
		return 0, err
	}
	s.use(ctx, repository, d, info.LastModified)
	s.seen(key, info.Size)
	s.place(repository, key)
	return info.Size, nil
}

// use notes that an old blob is counted on, so that it is not collected as
// garbage.
func (s *Store) use(ctx context.Context, repository string, d digest.Digest, since time.Time) {
	if s.opts.ReadOnly || time.Since(since) < renewAfter {
		return
	}
	key := s.repoKey(repository, "_used", objectName(d))
	if _, _, ok := s.cache.get(kindUsed + key); ok {
		return
	}
	if err := s.put(ctx, key, nil, "", minio.PutObjectOptions{}); err != nil {
		// If it is collected, the manifest that counts on it is refused.
		s.log.WarnContext(ctx, "use of a blob was not noted; a garbage collection may come early", "repository", repository, "digest", d, "error", err)
		return
	}
	s.cache.put(kindUsed+key, true, 0, renewAfter/2)
}

// OpenBlob opens a blob of a repository. One that is small is checked against
// its digest first.
func (s *Store) OpenBlob(ctx context.Context, repository string, d digest.Digest) (io.ReadSeekCloser, int64, error) {
	key := s.blobKey(repository, d)
	if content, ok := s.content(key); ok {
		return inMemory{bytes.NewReader(content)}, int64(len(content)), nil
	}
	r := &blobReader{s: s, ctx: ctx, key: key}
	if err := r.open(); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, 0, noBlob(repository, d)
		}
		return nil, 0, err
	}
	s.seen(key, r.size)
	s.place(repository, key)
	if r.size > maxCached {
		return r, r.size, nil
	}
	content := make([]byte, r.size)
	_, err := io.ReadFull(r, content)
	_ = r.Close() // only read
	if err != nil {
		return nil, 0, err
	}
	if d.Algorithm().FromBytes(content) != d {
		s.cache.forget(key)
		return nil, 0, fmt.Errorf("blob %s in %s is damaged in the bucket; push it again: %w", d, repository, regstore.ErrDigest)
	}
	s.keepContent(key, content)
	return inMemory{bytes.NewReader(content)}, r.size, nil
}

type inMemory struct{ *bytes.Reader }

func (inMemory) Close() error { return nil }

// blobReader reads an object from where it is sought to, and goes on when an
// answer breaks off. It has the context of the request that it answers.
type blobReader struct {
	s    *Store
	ctx  context.Context
	key  string
	size int64

	pos    int64 // of the reader
	body   io.ReadCloser
	at     int64 // of the body
	cancel context.CancelFunc
	tries  int
}

// maxTries is how often an answer may break off without having brought
// anything.
const maxTries = 4

// open asks for the object, from the reader's position on.
func (r *blobReader) open() error {
	r.drop()
	var o minio.GetObjectOptions
	if r.pos > 0 {
		if err := o.SetRange(r.pos, 0); err != nil {
			return err
		}
	}
	// The time limit is for the beginning of the answer; read has its own.
	ctx, cancel := context.WithCancel(r.ctx)
	late := time.AfterFunc(2*r.s.timeout, cancel)
	body, info, _, err := r.s.core.GetObject(ctx, r.s.name, r.key, o)
	late.Stop()
	if err != nil {
		cancel()
		return r.s.failed(r.ctx, "reading", r.key, err)
	}
	r.body, r.at, r.cancel = body, r.pos, cancel
	if r.pos == 0 {
		r.size = info.Size
	}
	return nil
}

func (r *blobReader) drop() {
	if r.body != nil {
		r.cancel() // before closing, which would read to the end
		_ = r.body.Close()
		r.body = nil
	}
}

func (r *blobReader) Read(p []byte) (int, error) {
	if r.pos >= r.size {
		return 0, io.EOF
	}
	if len(p) == 0 {
		return 0, nil
	}
	for {
		if r.body == nil || r.at != r.pos {
			if err := r.open(); err != nil {
				return 0, err
			}
		}
		stalled := time.AfterFunc(r.s.timeout, r.cancel)
		n, err := r.body.Read(p)
		stalled.Stop()
		r.pos += int64(n)
		r.at += int64(n)
		if n > 0 {
			r.tries = 0
			return n, nil // an error comes again
		}
		if err == nil {
			continue
		}
		if r.ctx.Err() != nil {
			return 0, r.ctx.Err()
		}
		r.drop()
		if r.tries++; r.tries == maxTries {
			return 0, r.s.failed(r.ctx, "reading", r.key, err)
		}
		if err := pause(r.ctx, time.Duration(r.tries*r.tries)*50*time.Millisecond); err != nil {
			return 0, err
		}
	}
}

func (r *blobReader) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += r.pos
	case io.SeekEnd:
		offset += r.size
	}
	if offset < 0 {
		return 0, fmt.Errorf("seeking before the beginning of %s", r.key)
	}
	r.pos = offset
	return offset, nil
}

func (r *blobReader) Close() error {
	r.drop()
	return nil
}

// FetchBlob opens a blob of a repository.
func (s *Store) FetchBlob(ctx context.Context, repository string, d digest.Digest) (io.ReadCloser, error) {
	rc, _, err := s.OpenBlob(ctx, repository, d)
	if err != nil {
		return nil, err
	}
	return rc, nil
}

// MountBlob lets the storage copy a blob into another repository. Without
// the name of one to take it from, it is found only if it was stored or asked
// for through this server not long ago; the client uploads it otherwise.
func (s *Store) MountBlob(ctx context.Context, repository, from string, d digest.Digest) error {
	if from == "" {
		v, _, ok := s.cache.get(kindPlace + objectName(d))
		if !ok {
			return fmt.Errorf("finding blob %s without its repository: %w", d, errors.ErrUnsupported)
		}
		from = v.(string)
	}
	if from == repository {
		_, err := s.StatBlob(ctx, repository, d)
		return err
	}
	if err := s.copy(ctx, s.blobKey(from, d), s.blobKey(repository, d), 0); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return noBlob(from, d)
		}
		return err
	}
	return nil
}

// DeleteBlob removes a blob from a repository. It is kept aside for a while
// (see [Settle]), and put back if it turns out that a push that was going on
// refers to it.
func (s *Store) DeleteBlob(ctx context.Context, repository string, d digest.Digest) error {
	info, err := s.head(ctx, s.blobKey(repository, d))
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return noBlob(repository, d)
		}
		return err
	}
	for m, err := range s.manifests(ctx, repository) {
		if err != nil {
			return err
		}
		if blobs, _ := m.References(); slices.Contains(blobs, d) {
			return fmt.Errorf("blob %s in %s: manifest %s: %w", d, repository, m.Descriptor.Digest, regstore.ErrInUse)
		}
	}
	return s.discard(ctx, repository, "_blobs", d, info.Size)
}

// Usage returns the bytes that a repository holds, which costs a request for
// each thousand blobs and manifests.
func (s *Store) Usage(ctx context.Context, repository string) (int64, error) {
	var n int64
	for o, err := range s.list(ctx, s.repoKey(repository, "_blobs", ""), "", true, 0) {
		if err != nil {
			return 0, err
		}
		n += o.Size
	}
	for m, err := range s.manifests(ctx, repository) {
		if err != nil {
			return 0, err
		}
		n += m.Descriptor.Size
	}
	return n, nil
}
