package regbucket

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"net/http"

	"github.com/minio/minio-go/v7"
	"github.com/opencontainers/go-digest"

	"github.com/krmcat/krmcat/registry/regstore"
)

// Sizes of what is sent at a time. A multipart upload has at most 10,000
// parts, of one size, of at least 5 MiB.
const (
	partSize     = 8 << 20
	maxParts     = 10_000
	maxBlobBytes = partSize * maxParts
)

// storeBlob stores a body under its digest. A blob has its name from the
// moment on when all of it was seen and matches, and not before. size is what
// is expected, or negative.
func (s *Store) storeBlob(ctx context.Context, repository string, body io.Reader, size int64, d digest.Digest) error {
	if size > maxBlobBytes {
		return regstore.ErrTooLarge
	}
	room := int64(2 * partSize) // one fills while the other is sent
	if size >= 0 && size < partSize {
		room = size + 1
	}
	release, err := s.buffer(ctx, room)
	if err != nil {
		return err
	}
	defer release()
	h := d.Algorithm().Hash()
	first, last, err := readPart(body, h, make([]byte, 0, min(room, partSize)))
	if err != nil {
		return err
	}
	key := s.blobKey(repository, d)
	var n int64
	if last {
		if n = int64(len(first)); !sumIs(h, d) {
			return wrongDigest(n, d)
		}
		var sum string
		if d.Algorithm() == digest.SHA256 {
			sum = d.Encoded() // which the storage compares
		}
		if err := s.put(ctx, key, first, sum, minio.PutObjectOptions{}); err != nil {
			return err
		}
		if n <= maxCached {
			s.keepContent(key, bytes.Clone(first)) // without the rest of the buffer
		}
	} else if len(first) < partSize {
		return fmt.Errorf("body has more than the %d bytes that it should have", size)
	} else if n, err = s.storeParts(ctx, key, first, body, h, d); err != nil {
		return err
	}
	s.seen(key, n)
	s.place(repository, key)
	return nil
}

func wrongDigest(size int64, d digest.Digest) error {
	return fmt.Errorf("blob of %d bytes sent as %s: %w", size, d, regstore.ErrDigest)
}

func sumIs(h hash.Hash, d digest.Digest) bool {
	return d.Algorithm().Encode(h.Sum(nil)) == d.Encoded()
}

// readPart reads into the room of buf until it is full, or the body ends.
func readPart(body io.Reader, h hash.Hash, buf []byte) (part []byte, last bool, err error) {
	buf = buf[:cap(buf)]
	n := 0
	for n < len(buf) && err == nil {
		var k int
		k, err = body.Read(buf[n:])
		n += k
	}
	if errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		last, err = true, nil
	}
	if err != nil {
		return nil, false, err
	}
	if h != nil {
		_, _ = h.Write(buf[:n]) // never fails
	}
	return buf[:n], last, nil
}

// storeParts stores a blob that is larger than a part.
func (s *Store) storeParts(ctx context.Context, key string, first []byte, body io.Reader, h hash.Hash, d digest.Digest) (n int64, err error) {
	w, err := s.newParts(ctx, key)
	if err != nil {
		return 0, err
	}
	defer func() {
		if err != nil {
			w.abort(ctx)
		}
	}()
	free := make(chan []byte, 2)
	free <- make([]byte, 0, partSize)
	sent := make(chan error, 1)
	sent <- nil
	for part, last := first, false; ; {
		n += int64(len(part))
		// One part at a time, beside reading the next one.
		if err := <-sent; err != nil {
			return n, err
		}
		go func(part []byte) {
			err := w.send(ctx, part)
			free <- part[:0]
			sent <- err
		}(part)
		if last {
			break
		}
		part, last, err = readPart(body, h, <-free)
		if err == nil && n+int64(len(part)) > maxBlobBytes {
			err = regstore.ErrTooLarge
		}
		if err != nil {
			<-sent // the buffer is in use
			return n, err
		}
		if last && len(part) == 0 {
			break
		}
	}
	if err := <-sent; err != nil {
		return n, err
	}
	if !sumIs(h, d) {
		return n, wrongDigest(n, d)
	}
	return n, w.complete(ctx, n)
}

// parts is a multipart upload, which gives an object its name at the end.
type parts struct {
	b    *bucket
	key  string
	id   string
	list []minio.CompletePart
}

func (b *bucket) newParts(ctx context.Context, key string) (*parts, error) {
	op, cancel := b.limit(ctx, 0)
	defer cancel()
	id, err := b.core.NewMultipartUpload(op, b.name, key, minio.PutObjectOptions{})
	return &parts{b: b, key: key, id: id}, b.failed(ctx, "beginning", key, err)
}

func (p *parts) send(ctx context.Context, content []byte) error {
	op, cancel := p.b.limit(ctx, int64(len(content)))
	defer cancel()
	o := minio.PutObjectPartOptions{DisableContentSha256: true} // see put
	if !p.b.secure {                                            // TLS keeps content whole, otherwise a signature does
		o.Sha256Hex = sumOf(content)
	}
	part, err := p.b.core.PutObjectPart(op, p.b.name, p.key, p.id, len(p.list)+1, bytes.NewReader(content), int64(len(content)), o)
	if err != nil {
		return p.failed(ctx, err)
	}
	p.list = append(p.list, minio.CompletePart{PartNumber: part.PartNumber, ETag: part.ETag})
	return nil
}

// copy lets the storage make a part of another object. Not every one can,
// which is [errors.ErrUnsupported].
func (p *parts) copy(ctx context.Context, from string, size int64) error {
	op, cancel := p.b.limit(ctx, size)
	defer cancel()
	part, err := p.b.core.CopyObjectPart(op, p.b.name, from, p.b.name, p.key, p.id, len(p.list)+1, 0, -1, nil)
	if status := minio.ToErrorResponse(err).StatusCode; err != nil && (status == http.StatusNotImplemented || status >= 400 && status < 500 && status != http.StatusNotFound && status != http.StatusTooManyRequests) {
		return fmt.Errorf("copying a part of %s: %w: %w", p.key, errors.ErrUnsupported, err)
	}
	if err != nil {
		return p.failed(ctx, err)
	}
	p.list = append(p.list, part)
	return nil
}

// failed is for requests of the upload: that it is not there any more is no
// answer to a client.
func (p *parts) failed(ctx context.Context, err error) error {
	if err = p.b.failed(ctx, "storing a part of", p.key, err); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: storing a part of %s: %v", regstore.ErrUnavailable, p.key, err)
	}
	return err
}

func (p *parts) complete(ctx context.Context, size int64) error {
	op, cancel := p.b.limit(ctx, size)
	defer cancel()
	_, err := p.b.core.CompleteMultipartUpload(op, p.b.name, p.key, p.id, p.list, minio.PutObjectOptions{})
	if err == nil {
		return nil
	}
	err = p.failed(ctx, err)
	// An answer that got lost, after which the upload is not known any more.
	if info, herr := p.b.head(ctx, p.key); herr == nil && info.Size == size {
		return nil
	}
	return err
}

// abort drops the parts, also for a client that is gone.
func (p *parts) abort(ctx context.Context) {
	op, cancel := p.b.limit(context.WithoutCancel(ctx), 0)
	defer cancel()
	if err := p.b.core.AbortMultipartUpload(op, p.b.name, p.key, p.id); err != nil {
		p.b.log.WarnContext(ctx, "parts of a blob were left in the bucket; they go with the expiry of uploads", "key", p.key, "error", err)
	}
}
