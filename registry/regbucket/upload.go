package regbucket

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base32"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strconv"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/opencontainers/go-digest"

	"github.com/krmcat/krmcat/registry/regstore"
)

// An upload's id says all that a server has to know of one that has received
// nothing: when it began, a random number, and a signature over those and the
// repository. The id that goes on after a chunk begins with "c", which tells a
// server to look for pieces.
const (
	freshUpload   = "n"
	startedUpload = "c"
)

// pieceSize is how much of a chunk is stored at a time.
const pieceSize = 4 << 20

func unknownUpload(id string) error {
	return fmt.Errorf("upload %.40q: %w", id, regstore.ErrUploadUnknown)
}

func (s *Store) signature(repository, stamp, random string) string {
	mac := hmac.New(sha256.New, s.secret)
	fmt.Fprintf(mac, "%s\n%s\n%s", repository, stamp, random)
	return base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(mac.Sum(nil)[:20])
}

// StartUpload begins an upload, of which the store learns with its first
// piece.
func (s *Store) StartUpload(_ context.Context, repository string) (string, error) {
	stamp, random := strconv.FormatInt(time.Now().Unix(), 36), rand.Text()
	return freshUpload + "-" + stamp + "-" + random + "-" + s.signature(repository, stamp, random), nil
}

// parseUpload checks an id and returns the prefix of its pieces.
func (s *Store) parseUpload(repository, id string) (prefix string, fresh bool, err error) {
	f := strings.Split(id, "-")
	if len(f) != 4 || f[0] != freshUpload && f[0] != startedUpload ||
		subtle.ConstantTimeCompare([]byte(f[3]), []byte(s.signature(repository, f[1], f[2]))) != 1 {
		return "", false, unknownUpload(id)
	}
	began, err := strconv.ParseInt(f[1], 36, 64)
	if err != nil || time.Since(time.Unix(began, 0)) > s.opts.UploadTTL {
		return "", false, unknownUpload(id)
	}
	prefix = s.prefix + "uploads/" + f[1] + "-" + f[2] + "/"
	if _, ended := s.known.get(prefix); ended {
		return "", false, unknownUpload(id)
	}
	return prefix, f[0] == freshUpload, nil
}

// piece is a stored part of an upload.
type piece struct {
	key    string
	offset int64
	size   int64
}

// ended is the name of the object that stands for an upload that has ended.
const ended = "ended"

// pieces lists what an upload received.
func (s *Store) pieces(ctx context.Context, prefix, id string) (list []piece, size int64, err error) {
	gone := false
	err = s.list(ctx, prefix, "", func(n string, info minio.ObjectInfo) bool {
		if n == ended {
			gone = true
			return false
		}
		at, perr := strconv.ParseInt(n, 10, 64)
		if perr != nil || at != size {
			return true // a piece behind a gap: of a chunk that was not acknowledged
		}
		list = append(list, piece{info.Key, at, info.Size})
		size += info.Size
		return true
	})
	if err == nil && gone {
		err = unknownUpload(id)
	}
	return list, size, err
}

// UploadSize returns how much an upload received.
func (s *Store) UploadSize(ctx context.Context, repository, id string) (int64, error) {
	prefix, _, err := s.parseUpload(repository, id)
	if err != nil {
		return 0, err
	}
	_, size, err := s.pieces(ctx, prefix, id)
	return size, err
}

// AppendUpload adds a chunk to an upload.
func (s *Store) AppendUpload(ctx context.Context, repository, id string, c regstore.Chunk) (string, int64, error) {
	prefix, _, err := s.parseUpload(repository, id)
	if err != nil {
		return id, 0, err
	}
	_, size, err := s.pieces(ctx, prefix, id)
	if err != nil {
		return id, size, err
	}
	next := startedUpload + id[len(freshUpload):]
	body, err := c.Reader(size)
	if err != nil {
		return next, size, err
	}
	buf := make([]byte, min(pieceSize, max(c.Size+1, 64<<10)))
	if c.Size < 0 {
		buf = make([]byte, pieceSize)
	}
	for {
		n, rerr := io.ReadFull(body, buf)
		if rerr != nil && !errors.Is(rerr, io.EOF) && !errors.Is(rerr, io.ErrUnexpectedEOF) {
			return next, size, rerr
		}
		if n > 0 {
			// Whoever else is writing at this place has come first.
			err := s.create(ctx, prefix+fmt.Sprintf("%020d", size), buf[:n])
			if errors.Is(err, errExists) {
				_, have, lerr := s.pieces(ctx, prefix, id)
				return next, have, errors.Join(&regstore.OffsetError{Offset: size, Size: have}, lerr)
			} else if err != nil {
				return next, size, err
			}
			size += int64(n)
		}
		if rerr != nil {
			return next, size, nil
		}
	}
}

// FinishUpload adds the last chunk and stores the blob.
func (s *Store) FinishUpload(ctx context.Context, repository, id string, c regstore.Chunk, d digest.Digest) error {
	var prefix string
	var list []piece
	var size int64
	if id != "" {
		var fresh bool
		var err error
		if prefix, fresh, err = s.parseUpload(repository, id); err != nil {
			return err
		}
		// An upload that has received nothing brings everything now.
		if !fresh || c.Offset > 0 || c.Body == nil || c.Size == 0 {
			if list, size, err = s.pieces(ctx, prefix, id); err != nil {
				return err
			}
		}
	}
	body, err := c.Reader(size)
	if err != nil {
		return err
	}
	total := int64(-1)
	if c.Body == nil {
		total = size
	} else if c.Size >= 0 {
		total = size + c.Size
	}
	if err := s.store(ctx, repository, io.MultiReader(s.readPieces(ctx, list), body), total, d); err != nil {
		if errors.Is(err, regstore.ErrDigest) && id != "" {
			return errors.Join(err, s.end(ctx, prefix, list))
		}
		return err
	}
	if id == "" {
		return nil
	}
	return s.end(ctx, prefix, list)
}

// end drops an upload.
func (s *Store) end(ctx context.Context, prefix string, list []piece) error {
	s.known.add(prefix, 0)
	if len(list) == 0 {
		return nil
	}
	if err := s.write(ctx, prefix+ended, nil, minio.PutObjectOptions{}); err != nil {
		return err
	}
	for _, p := range list {
		if err := s.remove(ctx, p.key); err != nil {
			return err
		}
	}
	return nil
}

// readPieces reads pieces one after the other.
func (s *Store) readPieces(ctx context.Context, list []piece) io.Reader {
	return &pieceReader{ctx: ctx, s: s, list: list}
}

type pieceReader struct {
	ctx  context.Context // of the request that the reader lives in
	s    *Store
	list []piece
	r    bytes.Reader
}

func (r *pieceReader) Read(p []byte) (int, error) {
	for r.r.Len() == 0 {
		if len(r.list) == 0 {
			return 0, io.EOF
		}
		b, _, err := r.s.read(r.ctx, r.list[0].key)
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				err = fmt.Errorf("piece of the upload is gone: %w", regstore.ErrUploadUnknown)
			}
			return 0, err
		}
		r.r.Reset(b)
		r.list = r.list[1:]
	}
	return r.r.Read(p)
}

// CancelUpload ends an upload.
func (s *Store) CancelUpload(ctx context.Context, repository, id string) error {
	prefix, _, err := s.parseUpload(repository, id)
	if err != nil {
		return err
	}
	list, _, err := s.pieces(ctx, prefix, id)
	if err != nil {
		return err
	}
	s.known.add(prefix, 0)
	if err := s.write(ctx, prefix+ended, nil, minio.PutObjectOptions{}); err != nil {
		return err
	}
	return s.end(ctx, prefix, list)
}

// ExpireUploads removes what is left of uploads that nobody can finish any
// more. Any server of the bucket may call it, now and then.
func (s *Store) ExpireUploads(ctx context.Context) error {
	var old []string
	prefix := s.prefix + "uploads/"
	err := s.list(ctx, prefix, "", func(n string, info minio.ObjectInfo) bool {
		if time.Since(info.LastModified) > s.opts.UploadTTL {
			old = append(old, info.Key)
		}
		return true
	})
	for _, key := range old {
		if err == nil {
			err = s.remove(ctx, key)
		}
	}
	return err
}
