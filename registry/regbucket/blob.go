package regbucket

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"strconv"

	"github.com/minio/minio-go/v7"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sync/errgroup"

	"github.com/krmcat/krmcat/registry/regstore"
)

// sizeKey is the metadata of a link: the size of its blob.
const sizeKey = "Size"

// parallel is how many requests one call makes at a time.
const parallel = 16

func noBlob(repository string, d digest.Digest) error {
	return fmt.Errorf("blob %s in %s: %w", d, repository, fs.ErrNotExist)
}

// StatBlob returns the size of a blob of a repository.
func (s *Store) StatBlob(ctx context.Context, repository string, d digest.Digest) (int64, error) {
	key := s.key(repository, "_blobs", name(d))
	if size, ok := s.known.get(key); ok {
		return size, nil
	}
	info, err := s.core.StatObject(ctx, s.bucket, key, minio.StatObjectOptions{})
	if err := storeError(err); errors.Is(err, fs.ErrNotExist) {
		return 0, noBlob(repository, d)
	} else if err != nil {
		return 0, err
	}
	size, err := strconv.ParseInt(info.UserMetadata[sizeKey], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("object %s has no size: %w", key, err)
	}
	s.known.add(key, size)
	return size, nil
}

// OpenBlob opens a blob of a repository.
func (s *Store) OpenBlob(ctx context.Context, repository string, d digest.Digest) (io.ReadSeekCloser, int64, error) {
	size, err := s.StatBlob(ctx, repository, d)
	if err != nil {
		return nil, 0, err
	}
	b := &blob{ctx: ctx, s: s, key: s.blobKey(d), size: size}
	if err := b.open(); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, 0, noBlob(repository, d)
		}
		return nil, 0, err
	}
	return b, size, nil
}

// FetchBlob opens a blob of a repository.
func (s *Store) FetchBlob(ctx context.Context, repository string, d digest.Digest) (io.ReadCloser, error) {
	b, _, err := s.OpenBlob(ctx, repository, d)
	if err != nil {
		return nil, err
	}
	return b, nil
}

// blob reads an object, from anywhere in it. The context is that of the
// request that it is opened for, which reading belongs to.
type blob struct {
	ctx  context.Context
	s    *Store
	key  string
	size int64

	rc     io.ReadCloser // nil after a Seek elsewhere
	at     int64         // where rc is
	offset int64         // where the next Read is
}

func (b *blob) open() error {
	opts := minio.GetObjectOptions{}
	if b.offset > 0 {
		if err := opts.SetRange(b.offset, 0); err != nil {
			return err
		}
	}
	rc, _, _, err := b.s.core.GetObject(b.ctx, b.s.bucket, b.key, opts)
	if err != nil {
		return storeError(err)
	}
	b.rc, b.at = rc, b.offset
	return nil
}

func (b *blob) Read(p []byte) (int, error) {
	if b.offset >= b.size {
		return 0, io.EOF
	}
	if b.rc != nil && b.at != b.offset {
		_ = b.rc.Close() // only read
		b.rc = nil
	}
	if b.rc == nil {
		if err := b.open(); err != nil {
			return 0, err
		}
	}
	n, err := b.rc.Read(p)
	b.at += int64(n)
	b.offset = b.at
	if errors.Is(err, io.EOF) && b.offset < b.size {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

func (b *blob) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += b.offset
	case io.SeekEnd:
		offset += b.size
	}
	if offset < 0 {
		return 0, errors.New("seek before the beginning")
	}
	b.offset = offset
	return offset, nil
}

func (b *blob) Close() error {
	if b.rc == nil {
		return nil
	}
	return b.rc.Close()
}

// MountBlob makes a blob one of another repository too.
func (s *Store) MountBlob(ctx context.Context, repository, from string, d digest.Digest) error {
	var size int64
	var err error
	if from != "" {
		size, err = s.StatBlob(ctx, from, d)
	} else {
		var info minio.ObjectInfo
		info, err = s.core.StatObject(ctx, s.bucket, s.blobKey(d), minio.StatObjectOptions{})
		size, err = info.Size, storeError(err)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return noBlob(from, d)
	} else if err != nil {
		return err
	}
	return s.link(ctx, repository, d, size)
}

// link makes a stored blob one of a repository.
func (s *Store) link(ctx context.Context, repository string, d digest.Digest, size int64) error {
	key := s.key(repository, "_blobs", name(d))
	err := s.write(ctx, key, nil, minio.PutObjectOptions{UserMetadata: map[string]string{sizeKey: strconv.FormatInt(size, 10)}})
	if err == nil {
		s.known.add(key, size)
	}
	return err
}

// DeleteBlob removes a blob from a repository.
func (s *Store) DeleteBlob(ctx context.Context, repository string, d digest.Digest) error {
	key := s.key(repository, "_blobs", name(d))
	s.known.forget(key)
	if _, err := s.StatBlob(ctx, repository, d); err != nil {
		return err
	}
	s.known.forget(key)
	var manifests []digest.Digest
	err := s.list(ctx, s.key(repository, "_manifests"), "", func(n string, _ minio.ObjectInfo) bool {
		if m, ok := parseName(n); ok {
			manifests = append(manifests, m)
		}
		return true
	})
	if err != nil {
		return err
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(parallel)
	for _, md := range manifests {
		g.Go(func() error {
			m, err := s.parse(gctx, repository, md)
			if errors.Is(err, fs.ErrNotExist) {
				return nil // deleted meanwhile
			} else if err != nil {
				return err
			}
			for _, b := range m.Blobs {
				if b.Digest == d {
					return fmt.Errorf("blob %s in %s: manifest %s: %w", d, repository, md, regstore.ErrInUse)
				}
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	return s.remove(ctx, key)
}

// Usage returns the bytes that a repository holds.
func (s *Store) Usage(ctx context.Context, repository string) (int64, error) {
	var total int64
	var blobs []digest.Digest
	err := s.list(ctx, s.prefix+"repositories/"+repository+"/_", "", func(n string, info minio.ObjectInfo) bool {
		kind, rest, _ := bytes.Cut([]byte(n), []byte("/"))
		switch string(kind) {
		case "manifests":
			total += info.Size
		case "blobs":
			if d, ok := parseName(string(rest)); ok {
				blobs = append(blobs, d)
			}
		}
		return true
	})
	if err != nil {
		return 0, err
	}
	sizes := make([]int64, len(blobs))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(parallel)
	for i, d := range blobs {
		g.Go(func() error {
			n, err := s.StatBlob(gctx, repository, d)
			sizes[i] = n
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			return err
		})
	}
	err = g.Wait()
	for _, n := range sizes {
		total += n
	}
	return total, err
}

// smallBlob is up to which size a blob is read before it is sent on, so that
// sending can be tried again.
const smallBlob = 256 << 10

// partSize is the buffer for blobs of unknown size. A blob has at most 10,000
// parts.
const partSize = 8 << 20

// store stores a blob while it is read, and makes it one of the repository.
// The store never gets the end of content that does not match its digest.
func (s *Store) store(ctx context.Context, repository string, r io.Reader, size int64, d digest.Digest) error {
	v := &verifier{r: r, d: d, hash: d.Algorithm().Hash()}
	var err error
	if size >= 0 && size <= smallBlob {
		err = s.storeWhole(ctx, v, d)
	} else {
		err = s.storeStream(ctx, v, size, d)
	}
	if v.err != nil {
		return v.err // whatever the store made of it
	}
	if err != nil {
		return err
	}
	return s.link(ctx, repository, d, v.n)
}

func (s *Store) storeWhole(ctx context.Context, r io.Reader, d digest.Digest) error {
	b, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	return s.write(ctx, s.blobKey(d), b, minio.PutObjectOptions{ContentType: "application/octet-stream"})
}

func (s *Store) storeStream(ctx context.Context, r io.Reader, size int64, d digest.Digest) error {
	opts := minio.PutObjectOptions{ContentType: "application/octet-stream", PartSize: partSize, NumThreads: 1}
	if size >= 0 && size <= 4<<30 {
		opts.DisableMultipart = true // and goes through without a buffer
	} else {
		select {
		case s.large <- struct{}{}:
			defer func() { <-s.large }()
		case <-ctx.Done():
			return ctx.Err()
		}
		b, err := io.ReadAll(io.LimitReader(r, partSize))
		if err != nil {
			return err
		}
		if len(b) < partSize { // that was all
			return s.write(ctx, s.blobKey(d), b, minio.PutObjectOptions{ContentType: "application/octet-stream"})
		}
		r = io.MultiReader(bytes.NewReader(b), r)
	}
	_, err := s.core.Client.PutObject(ctx, s.bucket, s.blobKey(d), r, size, opts)
	return storeError(err)
}

// verifier passes content through, but for the last bytes, which come when
// everything was seen and matches the digest.
type verifier struct {
	r    io.Reader
	d    digest.Digest
	hash hash.Hash

	n    int64  // bytes read
	held []byte // read and not passed on
	done bool
	err  error // what ended reading, other than io.EOF
}

// hold is how many bytes are kept back.
const hold = 512

func (v *verifier) Read(p []byte) (int, error) {
	for {
		if out := len(v.held) - hold; v.done || out > 0 {
			if v.done {
				out = len(v.held)
			}
			if out == 0 {
				return 0, io.EOF
			}
			n := copy(p, v.held[:out])
			v.held = v.held[n:]
			return n, nil
		}
		if v.err != nil {
			return 0, v.err
		}
		buf := make([]byte, len(v.held)+max(len(p), 4096))
		have := copy(buf, v.held)
		n, err := v.r.Read(buf[have:])
		v.hash.Write(buf[have : have+n])
		v.n += int64(n)
		v.held = buf[:have+n]
		switch {
		case errors.Is(err, io.EOF):
			if v.d.Algorithm().Encode(v.hash.Sum(nil)) != v.d.Encoded() {
				v.err = fmt.Errorf("blob of %d bytes sent as %s: %w", v.n, v.d, regstore.ErrDigest)
				return 0, v.err
			}
			v.done = true
		case err != nil:
			v.err = err
			return 0, err
		}
	}
}
