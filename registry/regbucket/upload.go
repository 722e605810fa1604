package regbucket

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"strconv"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sync/errgroup"

	"github.com/krmcat/krmcat/registry/regstore"
)

// upload is what the id of an upload says, so that every server can go on
// with it, and one that has received nothing costs nothing. The bucket has the
// last word: a client may come with an id of before its last chunk.
type upload struct {
	name   string // of the upload; its chunks are uploads/NAME/0 and so on
	began  time.Time
	chunks int
	size   int64
	hash   hash.Hash // SHA-256 of what was received; nil if that is not known
}

const (
	nameBytes = 26 // of rand.Text
	headBytes = nameBytes + 8 + 4 + 8
	macBytes  = 16
	// maxChunks bounds the chunks of an upload, of which each is an object.
	maxChunks = maxParts
)

func unknownUpload(id string) error {
	return fmt.Errorf("upload %.40q: %w", id, regstore.ErrUploadUnknown)
}

func (s *Store) mac(repository string, b []byte) []byte {
	h := hmac.New(sha256.New, s.secret)
	_, _ = h.Write([]byte(repository + "\n")) // never fails, as below
	_, _ = h.Write(b)
	return h.Sum(nil)[:macBytes]
}

// id writes an upload as an id.
func (s *Store) id(repository string, u *upload) (string, error) {
	b := make([]byte, 0, 256)
	b = append(b, u.name...)
	b = binary.BigEndian.AppendUint64(b, uint64(u.began.Unix()))
	b = binary.BigEndian.AppendUint32(b, uint32(u.chunks)) //nolint:gosec // at most maxChunks
	b = binary.BigEndian.AppendUint64(b, uint64(u.size))   //nolint:gosec // not negative
	if u.hash != nil && u.size > 0 {
		state, err := u.hash.(encoding.BinaryMarshaler).MarshalBinary()
		if err != nil {
			return "", err
		}
		b = append(b, state...)
	}
	return base64.RawURLEncoding.EncodeToString(append(b, s.mac(repository, b)...)), nil
}

// parseID reads an id, which another one could not have written.
func (s *Store) parseID(repository, id string) (*upload, error) {
	b, err := base64.RawURLEncoding.DecodeString(id)
	if err != nil || len(b) < headBytes+macBytes {
		return nil, unknownUpload(id)
	}
	b, mac := b[:len(b)-macBytes], b[len(b)-macBytes:]
	if !hmac.Equal(mac, s.mac(repository, b)) {
		return nil, unknownUpload(id)
	}
	u := &upload{
		name:   string(b[:nameBytes]),
		began:  time.Unix(int64(binary.BigEndian.Uint64(b[nameBytes:])), 0), //nolint:gosec // our own
		chunks: int(binary.BigEndian.Uint32(b[nameBytes+8:])),
		size:   int64(binary.BigEndian.Uint64(b[nameBytes+12:])), //nolint:gosec // our own
	}
	if time.Since(u.began) > s.opts.UploadTTL {
		return nil, unknownUpload(id)
	}
	if _, _, ended := s.cache.get(kindEnded + u.name); ended {
		return nil, unknownUpload(id)
	}
	if state := b[headBytes:]; len(state) > 0 || u.size == 0 {
		u.hash = sha256.New()
		if len(state) > 0 && u.hash.(encoding.BinaryUnmarshaler).UnmarshalBinary(state) != nil {
			u.hash = nil // written by another version of Go
		}
	}
	return u, nil
}

func (s *Store) chunkPrefix(u *upload) string { return s.prefix + "uploads/" + u.name + "/" }

// chunkKey sorts like the number.
func (s *Store) chunkKey(u *upload, i int) string {
	return s.chunkPrefix(u) + fmt.Sprintf("%08d", i)
}

// StartUpload begins an upload, of which the bucket learns with its first
// chunk. There is no limit on their number, but they expire.
func (s *Store) StartUpload(_ context.Context, repository string) (string, error) {
	return s.id(repository, &upload{name: rand.Text(), began: time.Now()})
}

// refresh reads from the bucket what an upload has received, and returns the
// sizes of its chunks.
func (s *Store) refresh(ctx context.Context, u *upload, id string) ([]int64, error) {
	var sizes []int64
	var total int64
	prefix := s.chunkPrefix(u)
	for o, err := range s.list(ctx, prefix, "", true, 0) {
		if err != nil {
			return nil, err
		}
		i, err := strconv.Atoi(strings.TrimPrefix(o.Key, prefix))
		if err != nil || i != len(sizes) {
			break // after a gap: what is being deleted
		}
		sizes = append(sizes, o.Size)
		total += o.Size
	}
	if len(sizes) < u.chunks {
		return nil, unknownUpload(id) // finished, cancelled or expired
	}
	if total != u.size {
		u.hash = nil
	}
	u.chunks, u.size = len(sizes), total
	return sizes, nil
}

// UploadSize returns how much an upload received.
func (s *Store) UploadSize(ctx context.Context, repository, id string) (int64, error) {
	u, err := s.parseID(repository, id)
	if err != nil {
		return 0, err
	}
	_, err = s.refresh(ctx, u, id)
	return u.size, err
}

// AppendUpload adds a chunk to an upload. When the body fails, the pieces of
// it that were stored stay.
func (s *Store) AppendUpload(ctx context.Context, repository, id string, c regstore.Chunk) (string, int64, error) {
	u, err := s.parseID(repository, id)
	if err != nil {
		return id, 0, err
	}
	if err := s.appendTo(ctx, u, id, c); err != nil {
		return id, u.size, err
	}
	next, err := s.id(repository, u)
	return next, u.size, err
}

func (s *Store) appendTo(ctx context.Context, u *upload, id string, c regstore.Chunk) error {
	if c.Offset >= 0 && c.Offset != u.size {
		if _, err := s.refresh(ctx, u, id); err != nil {
			return err
		}
	}
	body, err := c.Reader(u.size)
	if err != nil {
		return err
	}
	room := int64(partSize)
	if c.Size >= 0 {
		room = min(room, c.Size+1)
	}
	release, err := s.buffer(ctx, room)
	if err != nil {
		return err
	}
	defer release()
	buf := make([]byte, 0, room)
	for {
		part, last, err := readPart(body, nil, buf)
		if err != nil {
			return err
		}
		if len(part) > 0 {
			if err := s.addChunk(ctx, u, id, c, part); err != nil {
				return err
			}
		}
		if last {
			return nil
		}
	}
}

// addChunk stores the next chunk. Of those who do that at the same time, one
// wins.
func (s *Store) addChunk(ctx context.Context, u *upload, id string, c regstore.Chunk, content []byte) error {
	if u.chunks >= maxChunks || u.size+int64(len(content)) > maxBlobBytes {
		return regstore.ErrTooLarge
	}
	key := s.chunkKey(u, u.chunks)
	writer := rand.Text()
	err := s.createAs(ctx, key, content, writer)
	if errors.Is(err, fs.ErrExist) {
		// Perhaps it is ours, and the storage's answer got lost. The content
		// does not tell: a client that sends a chunk again has to learn that
		// it was received (distribution-spec, "Pushing a blob in chunks").
		have, herr := s.head(ctx, key)
		if herr != nil && !errors.Is(herr, fs.ErrNotExist) {
			return herr
		}
		if have.UserMetadata[metaWriter] != writer {
			at := u.size
			if _, err := s.refresh(ctx, u, id); err != nil {
				return err
			}
			return &regstore.OffsetError{Offset: max(c.Offset, at), Size: u.size}
		}
	} else if err != nil {
		return err
	}
	u.chunks++
	u.size += int64(len(content))
	if u.hash != nil {
		_, _ = u.hash.Write(content) // never fails
	}
	return nil
}

// FinishUpload adds the last chunk and stores the blob.
func (s *Store) FinishUpload(ctx context.Context, repository, id string, c regstore.Chunk, d digest.Digest) error {
	if id == "" {
		return s.finishDirect(ctx, repository, c, d)
	}
	u, err := s.parseID(repository, id)
	if err != nil {
		return err
	}
	// All in one piece, most often. If that is a mistake of a client that has
	// sent chunks, the digest will not match.
	if u.chunks == 0 && c.Body != nil && c.Size != 0 && c.Offset <= 0 {
		err := s.finishDirect(ctx, repository, c, d)
		if err == nil || errors.Is(err, regstore.ErrDigest) {
			s.cache.put(kindEnded+u.name, true, 0, s.opts.UploadTTL)
		}
		return err
	}
	if c.Body != nil {
		if err := s.appendTo(ctx, u, id, c); err != nil {
			return err // the client may go on
		}
	} else if _, err := c.Reader(u.size); err != nil {
		return err
	}
	sizes, err := s.refresh(ctx, u, id)
	if err != nil {
		return err
	}
	err = s.assemble(ctx, repository, u, sizes, d)
	if err == nil || errors.Is(err, regstore.ErrDigest) {
		s.end(ctx, u, len(sizes))
	}
	return err
}

func (s *Store) finishDirect(ctx context.Context, repository string, c regstore.Chunk, d digest.Digest) error {
	body, err := c.Reader(0)
	if err != nil {
		return err
	}
	return s.storeBlob(ctx, repository, body, c.Size, d)
}

// assemble makes a blob of the chunks of an upload. Where it is known that
// they match the digest, the storage copies them.
func (s *Store) assemble(ctx context.Context, repository string, u *upload, sizes []int64, d digest.Digest) error {
	known := u.hash != nil && d.Algorithm() == digest.SHA256
	if known && !sumIs(u.hash, d) {
		return wrongDigest(u.size, d)
	}
	key := s.blobKey(repository, d)
	err := errors.ErrUnsupported
	switch {
	case known && len(sizes) == 1:
		err = s.copy(ctx, s.chunkKey(u, 0), key, u.size)
	case known && uniform(sizes):
		err = s.copyParts(ctx, u, sizes, key)
	}
	if errors.Is(err, errors.ErrUnsupported) {
		return s.storeBlob(ctx, repository, &chunkReader{s: s, ctx: ctx, u: u, n: len(sizes)}, u.size, d)
	}
	if err != nil {
		return s.lostChunk(u, err)
	}
	s.seen(key, u.size)
	s.place(repository, key)
	return nil
}

// lostChunk is for a chunk that went while it was used.
func (s *Store) lostChunk(u *upload, err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return unknownUpload(u.name)
	}
	return err
}

// uniform reports whether chunks can be the parts of a multipart upload,
// which some storages want to be of one size.
func uniform(sizes []int64) bool {
	for _, n := range sizes[:max(len(sizes)-1, 0)] {
		if n != partSize {
			return false
		}
	}
	return len(sizes) > 0 && sizes[len(sizes)-1] <= partSize
}

func (s *Store) copyParts(ctx context.Context, u *upload, sizes []int64, key string) (err error) {
	w, err := s.newParts(ctx, key)
	if err != nil {
		return err
	}
	for i, n := range sizes {
		if err := w.copy(ctx, s.chunkKey(u, i), n); err != nil {
			w.abort(ctx)
			return err
		}
	}
	if err := w.complete(ctx, u.size); err != nil {
		w.abort(ctx)
		return err
	}
	return nil
}

// chunkReader reads the chunks of an upload one after the other. It has the
// context of the request that finishes the upload.
type chunkReader struct {
	s    *Store
	ctx  context.Context
	u    *upload
	n    int // chunks
	i    int // the next one
	left []byte
}

func (r *chunkReader) Read(p []byte) (int, error) {
	for len(r.left) == 0 {
		if r.i == r.n {
			return 0, io.EOF
		}
		content, _, err := r.s.get(r.ctx, r.s.chunkKey(r.u, r.i), partSize)
		if err != nil {
			return 0, r.s.lostChunk(r.u, err)
		}
		r.left = content
		r.i++
	}
	n := copy(p, r.left)
	r.left = r.left[n:]
	return n, nil
}

// end drops the chunks of an upload, the last one first, so that what is left
// after a failure is not taken for an upload.
func (s *Store) end(ctx context.Context, u *upload, chunks int) {
	s.cache.put(kindEnded+u.name, true, 0, s.opts.UploadTTL)
	ctx = context.WithoutCancel(ctx)
	g := &errgroup.Group{}
	g.SetLimit(width)
	for i := range chunks {
		g.Go(func() error { return s.remove(ctx, s.chunkKey(u, i)) })
	}
	if err := g.Wait(); err != nil {
		s.log.WarnContext(ctx, "chunks of an upload were left in the bucket; they expire", "upload", u.name, "error", err)
	}
}

// CancelUpload ends an upload.
func (s *Store) CancelUpload(ctx context.Context, repository, id string) error {
	u, err := s.parseID(repository, id)
	if err != nil {
		return err
	}
	sizes, err := s.refresh(ctx, u, id)
	if err != nil {
		return err
	}
	s.end(ctx, u, len(sizes))
	return nil
}

// ExpireUploads drops what unfinished uploads have left in the bucket, and
// returns how many objects that were. Every server does so now and then.
func (s *Store) ExpireUploads(ctx context.Context) (int, error) {
	n := 0
	before := time.Now().Add(-s.opts.UploadTTL)
	for o, err := range s.list(ctx, s.prefix+"uploads/", "", true, 0) {
		if err != nil {
			return n, err
		}
		if o.LastModified.After(before) {
			continue
		}
		if err := s.remove(ctx, o.Key); err != nil {
			return n, err
		}
		n++
	}
	// Parts of servers that ended while they stored a blob.
	op, cancel := context.WithCancel(ctx)
	defer cancel()
	for o := range s.core.ListIncompleteUploads(op, s.name, s.prefix+"repositories/", true) {
		if err := s.failed(ctx, "listing unfinished uploads", "", o.Err); errors.Is(err, fs.ErrNotExist) {
			break // some say so of an empty list
		} else if err != nil {
			return n, err
		}
		if o.Initiated.After(before) {
			continue
		}
		err := s.core.AbortMultipartUpload(op, s.name, o.Key, o.UploadID)
		if err = s.failed(ctx, "dropping parts of", o.Key, err); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return n, err
		}
		n++
	}
	if n > 0 {
		s.log.InfoContext(ctx, "unfinished uploads expired", "objects", n)
	}
	return n, nil
}
