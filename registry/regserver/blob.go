package regserver

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"time"
)

// ping answers end-1.
func (c *call) ping() error {
	c.w.Header().Set("Content-Type", "application/json")
	_, err := io.WriteString(c.w, "{}")
	return ignore(err)
}

// ignore drops the error of writing an answer: the client is gone, and
// nothing can be said to it any more.
func ignore(error) error { return nil }

// getBlob answers end-2, with ranges (distribution-spec, "Pulling blobs"; RFC
// 9110, section 14).
func (c *call) getBlob() error {
	if c.r.Method == http.MethodHead {
		size, err := c.store.StatBlob(c.ctx, c.repository, c.digest)
		if err != nil {
			return storeError(err, "BLOB_UNKNOWN")
		}
		c.blobHeader()
		if c.unchanged(c.digest) {
			c.w.WriteHeader(http.StatusNotModified)
			return nil
		}
		c.w.Header().Set("Accept-Ranges", "bytes")
		setLength(c.w, size)
		return nil
	}
	blob, size, err := c.store.OpenBlob(c.ctx, c.repository, c.digest)
	if err != nil {
		return storeError(err, "BLOB_UNKNOWN")
	}
	defer func() { _ = blob.Close() }() // only read
	c.blobHeader()
	c.writeDeadline(size)
	c.checkRange()
	// The answer to a range that cannot be had is the server's own; the
	// specification asks for the status only.
	http.ServeContent(c.w, c.r, "", time.Time{}, blob)
	// The deadline is for this answer, not for the next one on the
	// connection.
	rc := http.NewResponseController(c.w)
	if rc.Flush() == nil {
		_ = rc.SetWriteDeadline(time.Time{}) // of a connection that may be gone
	}
	return nil
}

// checkRange repairs what [http.ServeContent] makes of a Range header: a unit
// that it does not know has to be ignored (RFC 9110 section 14.2), and the
// last 0 bytes are a range that cannot be had (section 14.1.2).
func (c *call) checkRange() {
	unit, spec, ok := strings.Cut(c.r.Header.Get("Range"), "=")
	suffix, isSuffix := strings.CutPrefix(strings.TrimSpace(spec), "-")
	switch {
	case !ok || !strings.EqualFold(strings.TrimSpace(unit), "bytes"):
		c.r.Header.Del("Range")
	case isSuffix && suffix != "" && strings.Trim(suffix, "0") == "":
		c.r.Header.Set("Range", "bytes=none")
	default:
		c.r.Header.Set("Range", "bytes="+spec)
	}
}

func (c *call) blobHeader() {
	h := c.w.Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set("Docker-Content-Digest", string(c.digest))
	h.Set("Etag", `"`+string(c.digest)+`"`)
	// Content under a digest never changes; who may see it can.
	h.Set("Cache-Control", "private, max-age=31536000, immutable")
}

// deleteBlob answers end-10.
func (c *call) deleteBlob() error {
	if err := c.deletable(string(c.digest)); err != nil {
		return err
	}
	if err := c.store.DeleteBlob(c.ctx, c.repository, c.digest); err != nil {
		return storeError(err, "BLOB_UNKNOWN")
	}
	c.w.WriteHeader(http.StatusAccepted)
	return nil
}

// deletable asks the deletion policy.
func (c *call) deletable(reference string) error {
	if c.opts.Deletable == nil || c.opts.Deletable(c.repository, reference) {
		return nil
	}
	return errKept("the registry's deletion policy keeps "+reference, nil)
}

// writeDeadline gives the client time to take n bytes.
func (c *call) writeDeadline(n int64) {
	l := c.opts.Limits
	c.deadline(http.NewResponseController(c.w).SetWriteDeadline, l.Stall+time.Duration(n/l.MinRate)*time.Second)
}

func (c *call) deadline(set func(time.Time) error, d time.Duration) {
	if err := set(time.Now().Add(d)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		c.log.WarnContext(c.ctx, "connection has no deadline", "error", err)
	}
}
