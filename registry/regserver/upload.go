package regserver

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/krmcat/krmcat/registry/regstore"
)

// startUpload answers end-4a (a new upload), end-4b (the whole blob in one
// request) and end-11 (mounting a blob of another repository).
func (c *call) startUpload() error {
	q := c.r.URL.Query()
	if s := q.Get("mount"); s != "" {
		done, err := c.mount(s, q.Get("from"))
		if err != nil || done {
			return err
		}
	} else if s := q.Get("digest"); s != "" {
		d, err := regstore.ParseDigest(s)
		if err != nil {
			return errDigest(s, err)
		}
		return c.finish("", d)
	}
	if err := c.room(0); err != nil {
		return err
	}
	id, err := c.store.StartUpload(c.ctx, c.repository)
	if err != nil {
		return storeError(err, "NAME_UNKNOWN")
	}
	c.uploadHeader(id, 0)
	c.w.WriteHeader(http.StatusAccepted)
	return nil
}

// mount tries to make a blob of another repository one of this one. When
// that is not possible for any reason, the client uploads it
// (distribution-spec, "Mounting a blob from another repository").
func (c *call) mount(s, from string) (bool, error) {
	d, err := regstore.ParseDigest(s)
	if err != nil {
		return false, errDigest(s, err)
	}
	switch {
	case from == "":
		// Knowing a digest is no proof of having the content: that needs the
		// right to read whatever repository it is in. And nobody knows how
		// large it is, for the quota.
		if c.opts.Limits.RepositoryBytes > 0 || c.authorize(Access{Action: ActionPull}) != nil {
			return false, nil
		}
	case !regstore.ValidRepository(from):
		return false, nil
	default:
		if c.authorize(Access{Repository: from, Action: ActionPull}) != nil {
			return false, nil
		}
	}
	if c.opts.Limits.RepositoryBytes > 0 {
		size, err := c.store.StatBlob(c.ctx, from, d)
		if err != nil || c.room(size) != nil {
			return false, nil
		}
	}
	if c.store.MountBlob(c.ctx, c.repository, from, d) != nil {
		return false, nil
	}
	c.created(d)
	return true, nil
}

// appendUpload answers end-5, with Content-Range (a chunk) or without (a
// stream).
func (c *call) appendUpload() error {
	chunk, err := c.chunk()
	if err != nil {
		return err
	}
	next, size, err := c.store.AppendUpload(c.ctx, c.repository, c.upload, chunk)
	if err != nil {
		return c.uploadError(err)
	}
	c.uploadHeader(next, size)
	c.w.WriteHeader(http.StatusAccepted)
	return nil
}

// finishUpload answers end-6.
func (c *call) finishUpload() error {
	s := c.r.URL.Query().Get("digest")
	if s == "" {
		return &Error{Status: http.StatusBadRequest, Code: "DIGEST_INVALID", Message: "the last request of an upload needs the parameter digest"}
	}
	d, err := regstore.ParseDigest(s)
	if err != nil {
		return errDigest(s, err)
	}
	return c.finish(c.upload, d)
}

func (c *call) finish(id string, d digest.Digest) error {
	chunk, err := c.chunk()
	if err != nil {
		return err
	}
	if err := c.room(max(chunk.Size, 0)); err != nil {
		return err
	}
	if err := c.store.FinishUpload(c.ctx, c.repository, id, chunk, d); err != nil {
		return c.uploadError(err)
	}
	c.created(d)
	return nil
}

// uploadStatus answers end-13.
func (c *call) uploadStatus() error {
	size, err := c.store.UploadSize(c.ctx, c.repository, c.upload)
	if err != nil {
		return storeError(err, "BLOB_UPLOAD_UNKNOWN")
	}
	c.uploadHeader(c.upload, size)
	c.w.WriteHeader(http.StatusNoContent)
	return nil
}

// cancelUpload ends an upload early.
func (c *call) cancelUpload() error {
	if err := c.store.CancelUpload(c.ctx, c.repository, c.upload); err != nil {
		return storeError(err, "BLOB_UPLOAD_UNKNOWN")
	}
	c.w.WriteHeader(http.StatusNoContent)
	return nil
}

func (c *call) created(d digest.Digest) {
	h := c.w.Header()
	h.Set("Location", "/v2/"+c.repository+"/blobs/"+string(d))
	h.Set("Docker-Content-Digest", string(d))
	c.w.WriteHeader(http.StatusCreated)
}

// uploadHeader says where an upload goes on. Locations are paths: a server
// does not know what its clients call it.
func (c *call) uploadHeader(id string, size int64) {
	h := c.w.Header()
	h.Set("Location", "/v2/"+c.repository+"/blobs/uploads/"+url.PathEscape(id))
	// Of an upload without bytes there is no last byte; clients expect 0-0.
	h.Set("Range", "0-"+strconv.FormatInt(max(size-1, 0), 10))
	h.Set("Docker-Upload-Uuid", id)
}

// uploadError answers a chunk that was not taken; one that came out of order
// is told where the upload is.
func (c *call) uploadError(err error) error {
	var offset *regstore.OffsetError
	if errors.As(err, &offset) && c.upload != "" {
		c.uploadHeader(c.upload, offset.Size)
	}
	if errors.Is(err, regstore.ErrTooLarge) {
		return &Error{Status: http.StatusRequestEntityTooLarge, Code: "SIZE_INVALID", Message: fmt.Sprintf("a blob has at most %d bytes here", c.opts.Limits.BlobBytes)}
	}
	return storeError(err, "BLOB_UPLOAD_UNKNOWN")
}

// chunk returns the body of the request as a piece of an upload.
func (c *call) chunk() (regstore.Chunk, error) {
	chunk := regstore.Chunk{Offset: -1, Size: c.r.ContentLength, Limit: c.opts.Limits.BlobBytes}
	if s := c.r.Header.Get("Content-Range"); s != "" {
		first, last, err := parseContentRange(s)
		if err != nil {
			if size, err := c.store.UploadSize(c.ctx, c.repository, c.upload); err == nil {
				c.uploadHeader(c.upload, size)
			}
			return chunk, &Error{Status: http.StatusRequestedRangeNotSatisfiable, Code: "BLOB_UPLOAD_INVALID", Message: err.Error()}
		}
		if n := last - first + 1; c.r.ContentLength >= 0 && c.r.ContentLength != n {
			return chunk, &Error{Status: http.StatusBadRequest, Code: "SIZE_INVALID",
				Message: fmt.Sprintf("Content-Range says %d bytes, Content-Length %d", n, c.r.ContentLength)}
		} else {
			chunk.Size = n
		}
		chunk.Offset = first
	}
	if chunk.Size != 0 {
		chunk.Body = c.body(chunk.Size)
	}
	return chunk, nil
}

// parseContentRange reads "first-last", as this API has it, and the
// "bytes first-last/size" of HTTP that some clients send.
func parseContentRange(s string) (first, last int64, err error) {
	bad := fmt.Errorf("Content-Range %.100q is not first-last", s)
	t := strings.TrimPrefix(strings.TrimPrefix(s, "bytes "), "bytes=")
	t, _, _ = strings.Cut(t, "/")
	a, b, ok := strings.Cut(t, "-")
	if !ok {
		return 0, 0, bad
	}
	x, err1 := strconv.ParseUint(a, 10, 63)
	y, err2 := strconv.ParseUint(b, 10, 63)
	if err1 != nil || err2 != nil || y < x {
		return 0, 0, bad
	}
	return int64(x), int64(y), nil
}

// room checks the quota of the repository for n more bytes.
func (c *call) room(n int64) error {
	limit := c.opts.Limits.RepositoryBytes
	if limit <= 0 {
		return nil
	}
	used, err := c.store.Usage(c.ctx, c.repository)
	if err != nil {
		return storeError(err, "NAME_UNKNOWN")
	}
	if used+n > limit || used >= limit {
		return &Error{Status: http.StatusForbidden, Code: "DENIED",
			Message: fmt.Sprintf("repository %s holds %d of the %d bytes it may; there is no room for %d more", c.repository, used, limit, n)}
	}
	return nil
}

// body returns the request's body, which fails with [os.ErrDeadlineExceeded]
// when the client stalls. size is what is expected, or negative.
func (c *call) body(size int64) io.Reader {
	return &body{c: c, want: size, known: size >= 0, start: time.Now()}
}

type body struct {
	c     *call
	known bool  // whether the size is
	want  int64 // bytes still expected
	start time.Time
	set   time.Time // when the deadline was set
	n     int64
}

func (b *body) Read(p []byte) (int, error) {
	// A deadline for each second of reading; a client that sends a byte now
	// and then runs out of its rate.
	l := b.c.opts.Limits
	if now := time.Now(); now.Sub(b.set) > time.Second {
		b.set = now
		until := b.start.Add(2*l.Stall + time.Duration(b.n/l.MinRate)*time.Second)
		if d := now.Add(l.Stall); d.Before(until) {
			until = d
		}
		b.c.deadline(http.NewResponseController(b.c.w).SetReadDeadline, time.Until(until))
	}
	n, err := b.c.r.Body.Read(p)
	b.n += int64(n)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, os.ErrDeadlineExceeded) {
		return n, &Error{Status: http.StatusBadRequest, Code: "SIZE_INVALID", Message: "the request's body cannot be read to its end", cause: err}
	}
	if b.known {
		b.want -= int64(n)
		switch {
		case b.want < 0:
			return 0, &Error{Status: http.StatusBadRequest, Code: "SIZE_INVALID", Message: "the body is longer than its headers say"}
		case b.want > 0 && errors.Is(err, io.EOF):
			return n, io.ErrUnexpectedEOF
		}
	}
	return n, err
}
