package regdir

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/krmcat/krmcat/registry/regstore"
)

// session is what this process knows of an upload. The upload itself is its
// file, which outlives the process.
type session struct {
	busy chan struct{} // holds a token while somebody writes

	// hash is over the first hashed bytes, to spare reading them again.
	hash   hash.Hash
	hashed int64
}

func unknownUpload(id string) error {
	return fmt.Errorf("upload %.40q: %w", id, regstore.ErrUploadUnknown)
}

// uploadPath returns the file of an upload. The repository is part of its
// name, so that the upload is not found in another one.
func (s *Store) uploadPath(repository, id string) (string, error) {
	if len(id) != len(rand.Text()) || strings.Trim(id, "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567") != "" {
		return "", unknownUpload(id)
	}
	sum := sha256.Sum256([]byte(repository))
	return filepath.Join(s.root, "uploads", hex.EncodeToString(sum[:8])+"-"+id), nil
}

// StartUpload begins an upload.
func (s *Store) StartUpload(_ context.Context, repository string) (string, error) {
	s.expireUploads()
	if s.uploads.Load() >= int64(s.opts.MaxUploads) {
		return "", regstore.ErrTooManyUploads
	}
	id := rand.Text()
	path, err := s.uploadPath(repository, id)
	if err != nil {
		return "", err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o666)
	if err != nil {
		return "", storageError(err)
	}
	s.uploads.Add(1)
	return id, storageError(f.Close())
}

// UploadSize returns how much an upload received.
func (s *Store) UploadSize(_ context.Context, repository, id string) (int64, error) {
	path, err := s.uploadPath(repository, id)
	if err != nil {
		return 0, err
	}
	fi, err := os.Stat(path)
	if err != nil {
		if notExist(err) {
			return 0, unknownUpload(id)
		}
		return 0, storageError(err)
	}
	return fi.Size(), nil
}

// begin opens an upload for writing, once nobody else does, and returns a
// function that ends that.
func (s *Store) begin(ctx context.Context, repository, id string) (*os.File, *session, func(), error) {
	path, err := s.uploadPath(repository, id)
	if err != nil {
		return nil, nil, nil, err
	}
	if _, err := os.Stat(path); err != nil { // before an unknown id takes memory
		if notExist(err) {
			return nil, nil, nil, unknownUpload(id)
		}
		return nil, nil, nil, storageError(err)
	}
	v, _ := s.sessions.LoadOrStore(id, &session{busy: make(chan struct{}, 1), hash: sha256.New()})
	ses := v.(*session)
	select {
	case ses.busy <- struct{}{}:
	case <-ctx.Done():
		return nil, nil, nil, ctx.Err()
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		<-ses.busy
		if notExist(err) {
			s.sessions.Delete(id)
			return nil, nil, nil, unknownUpload(id)
		}
		return nil, nil, nil, storageError(err)
	}
	return f, ses, func() { <-ses.busy }, nil
}

// write adds a chunk to the end of an upload's file and returns its size.
func (ses *session) write(f *os.File, c regstore.Chunk) (int64, error) {
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return 0, storageError(err)
	}
	body, err := c.Reader(size)
	if err != nil {
		return size, err
	}
	var w io.Writer = f
	if ses != nil && ses.hashed == size {
		w = io.MultiWriter(f, ses)
	}
	n, err := io.CopyBuffer(w, body, make([]byte, min(256<<10, max(4096, bufferFor(c.Size)))))
	if err != nil && errors.Is(storageError(err), regstore.ErrNoSpace) {
		// Nothing half-written stays on a full disk.
		if terr := f.Truncate(size); terr != nil {
			err = errors.Join(err, terr)
		}
		if ses != nil {
			ses.hashed = -1
		}
		return size, storageError(err)
	}
	return size + n, storageError(err)
}

// reader hides everything but Read, so that copying uses the buffer.
type reader struct{ io.Reader }

func bufferFor(size int64) int64 {
	if size < 0 {
		return 64 << 10
	}
	return size + 1 // one read finds the end
}

// Write is the session's hash.
func (ses *session) Write(p []byte) (int, error) {
	ses.hashed += int64(len(p))
	return ses.hash.Write(p)
}

// AppendUpload adds a chunk to an upload.
func (s *Store) AppendUpload(ctx context.Context, repository, id string, c regstore.Chunk) (string, int64, error) {
	f, ses, end, err := s.begin(ctx, repository, id)
	if err != nil {
		return id, 0, err
	}
	defer end()
	size, err := ses.write(f, c)
	if cerr := f.Close(); err == nil {
		err = storageError(cerr)
	}
	return id, size, err
}

// FinishUpload adds the last chunk and stores the blob.
func (s *Store) FinishUpload(ctx context.Context, repository, id string, c regstore.Chunk, d digest.Digest) error {
	if err := s.settled(ctx); err != nil {
		return err
	}
	var f *os.File
	var ses *session
	var err error
	if id == "" {
		if f, err = os.CreateTemp(s.tmp(), "b-"); err != nil {
			return storageError(err)
		}
		ses = &session{hash: sha256.New()}
	} else {
		var end func()
		if f, ses, end, err = s.begin(ctx, repository, id); err != nil {
			return err
		}
		defer end()
	}
	size, err := ses.write(f, c)
	if err != nil {
		_ = f.Close()
		if id == "" {
			_ = os.Remove(f.Name()) // the first error counts
		}
		return err // the client may go on with an upload
	}
	ok, err := ses.verify(f, d, size)
	if err == nil && ok {
		err = s.store(repository, f, d, size)
	} else {
		_ = f.Close()
		if err == nil {
			err = fmt.Errorf("blob of %d bytes sent as %s: %w", size, d, regstore.ErrDigest)
		}
	}
	if err != nil {
		_ = os.Remove(f.Name()) // gone already if it became the blob
	}
	if id != "" {
		s.sessions.Delete(id)
		s.uploads.Add(-1)
	}
	return storageError(err)
}

// verify reports whether the file has the digest.
func (ses *session) verify(f *os.File, d digest.Digest, size int64) (bool, error) {
	if ses.hashed == size && d.Algorithm() == digest.SHA256 {
		return hex.EncodeToString(ses.hash.Sum(nil)) == d.Encoded(), nil
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return false, err
	}
	v := d.Verifier()
	if _, err := io.CopyBuffer(v, reader{f}, make([]byte, 256<<10)); err != nil {
		return false, err
	}
	return v.Verified(), nil
}

// CancelUpload ends an upload.
func (s *Store) CancelUpload(ctx context.Context, repository, id string) error {
	f, _, end, err := s.begin(ctx, repository, id)
	if err != nil {
		return err
	}
	defer end()
	_ = f.Close()
	return s.drop(id, f.Name())
}

func (s *Store) drop(id, path string) error {
	if err := os.Remove(path); err != nil {
		return storageError(err)
	}
	s.sessions.Delete(id)
	s.uploads.Add(-1)
	return nil
}

func (s *Store) countUploads() error {
	names, err := readDir(filepath.Join(s.root, "uploads"))
	s.uploads.Store(int64(len(names)))
	return err
}

// expireUploads drops uploads that have rested for too long. It looks for
// them now and then only.
func (s *Store) expireUploads() {
	now := time.Now()
	last := s.expired.Load()
	if now.Unix()-last < int64(min(s.opts.UploadTTL/4, 10*time.Minute)/time.Second) || !s.expired.CompareAndSwap(last, now.Unix()) {
		return
	}
	dir := filepath.Join(s.root, "uploads")
	entries, err := os.ReadDir(dir)
	if err != nil {
		s.log.Warn("unfinished uploads were not looked through", "error", err)
		return
	}
	n := 0
	for _, e := range entries {
		fi, err := e.Info()
		if err != nil || now.Sub(fi.ModTime()) < s.opts.UploadTTL {
			continue
		}
		_, id, _ := strings.Cut(e.Name(), "-")
		if v, ok := s.sessions.Load(id); ok {
			ses := v.(*session)
			select {
			case ses.busy <- struct{}{}:
				err = s.drop(id, filepath.Join(dir, e.Name()))
				<-ses.busy
			default: // somebody is writing
				continue
			}
		} else {
			err = s.drop(id, filepath.Join(dir, e.Name()))
		}
		if err == nil {
			n++
		}
	}
	if n > 0 {
		s.log.Info("unfinished uploads expired", "uploads", n)
	}
}
