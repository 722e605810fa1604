package regbucket

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
	"golang.org/x/sync/semaphore"

	"github.com/krmcat/krmcat/registry/regstore"
)

// bucket makes requests, and turns their errors into those of drivers.
type bucket struct {
	core      *minio.Core
	transport http.RoundTripper
	name      string
	prefix    string // empty, or with a slash at its end
	region    string
	secure    bool
	timeout   time.Duration
	log       *slog.Logger
	buffers   *semaphore.Weighted
	bufferMax int64
}

func newBucket(o Options) (*bucket, error) {
	endpoint, err := parseEndpoint(cmp.Or(o.Endpoint, "https://s3.amazonaws.com"))
	if err != nil {
		return nil, fmt.Errorf("endpoint: %w", err)
	}
	creds, err := o.Credentials.provider()
	if err != nil {
		return nil, err
	}
	b := &bucket{
		transport: o.Transport, name: o.Bucket, region: cmp.Or(o.Region, "us-east-1"), secure: endpoint.Scheme == "https",
		timeout: o.Timeout, log: o.Log, buffers: semaphore.NewWeighted(max(o.BufferBytes, 2*partSize)), bufferMax: max(o.BufferBytes, 2*partSize),
	}
	if p := strings.Trim(o.Prefix, "/"); p != "" {
		b.prefix = p + "/"
	}
	if b.transport == nil {
		if b.transport, err = newTransport(o); err != nil {
			return nil, err
		}
	}
	if host := endpoint.Hostname(); !b.secure && host != "localhost" && !net.ParseIP(host).IsLoopback() {
		b.log.Warn("the connection to the storage is not encrypted", "endpoint", endpoint.String())
	}
	lookup := minio.BucketLookupAuto
	if o.PathStyle {
		lookup = minio.BucketLookupPath
	}
	b.core, err = minio.NewCore(endpoint.Host, &minio.Options{
		Creds: creds, Secure: b.secure, Transport: b.transport, Region: b.region, BucketLookup: lookup, MaxRetries: o.Attempts,
	})
	if err != nil {
		return nil, err
	}
	b.core.SetAppInfo("krmcat", "registry")
	return b, nil
}

func newTransport(o Options) (http.RoundTripper, error) {
	t := &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: 5 * time.Second, KeepAlive: 15 * time.Second}).DialContext,
		TLSHandshakeTimeout:   10 * time.Second,
		ResponseHeaderTimeout: o.Timeout,
		IdleConnTimeout:       90 * time.Second,
		MaxIdleConns:          256,
		MaxIdleConnsPerHost:   256,
		// What is stored is what is sent.
		DisableCompression: true,
		TLSClientConfig:    &tls.Config{MinVersion: tls.VersionTLS12},
	}
	if o.CAFile != "" {
		pem, err := os.ReadFile(o.CAFile)
		if err != nil {
			return nil, fmt.Errorf("reading certificates: %w", err)
		}
		pool, err := x509.SystemCertPool()
		if err != nil {
			pool = x509.NewCertPool()
		}
		if !pool.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("reading certificates: %s holds none (they begin with -----BEGIN CERTIFICATE-----)", o.CAFile)
		}
		t.TLSClientConfig.RootCAs = pool
	}
	return t, nil
}

// minRate is the least that storing is given time for, in bytes per second.
const minRate = 256 << 10

// limit bounds a request that carries size bytes.
func (b *bucket) limit(ctx context.Context, size int64) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, b.timeout+time.Duration(size/minRate)*time.Second)
}

// failed says what an error of the storage means. ctx is the caller's.
func (b *bucket) failed(ctx context.Context, doing, key string, err error) error {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return ctx.Err() // the caller is gone
	}
	what := doing
	if key != "" {
		what += " " + key
	}
	r := minio.ToErrorResponse(err)
	var kind error
	switch {
	case r.Code == "NoSuchBucket":
		kind = regstore.ErrUnavailable // it was there
	case r.Code == minio.NoSuchKey, r.Code == "NoSuchUpload", r.StatusCode == http.StatusNotFound:
		kind = fs.ErrNotExist
	case r.Code == minio.PreconditionFailed, r.StatusCode == http.StatusPreconditionFailed:
		kind = fs.ErrExist
	case r.Code == "XMinioStorageFull", r.Code == "QuotaExceeded", r.Code == "XMinioAdminBucketQuotaExceeded", r.StatusCode == http.StatusInsufficientStorage:
		kind = regstore.ErrNoSpace
	case r.StatusCode == http.StatusBadRequest, r.StatusCode == http.StatusRequestedRangeNotSatisfiable:
		return fmt.Errorf("%s: %w", what, err) // a mistake of this package
	default:
		// Down, slow, overloaded, broken, or it does not let us: that is
		// nothing that a client did wrong, and it may pass.
		kind = regstore.ErrUnavailable
	}
	return fmt.Errorf("%s: %w: %w", what, kind, err)
}

// put stores an object. sum is the SHA-256 of its content in hex, or empty.
func (b *bucket) put(ctx context.Context, key string, content []byte, sum string, o minio.PutObjectOptions) error {
	op, cancel := b.limit(ctx, int64(len(content)))
	defer cancel()
	if sum == "" {
		sum = sumOf(content)
	}
	o.DisableContentSha256 = true // one signature with the sum, not one for each piece
	_, err := b.core.PutObject(op, b.name, key, bytes.NewReader(content), int64(len(content)), "", sum, o)
	return b.failed(ctx, "storing", key, err)
}

func sumOf(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

// create stores an object that is not there yet; otherwise the error wraps
// [fs.ErrExist]. A writer whose answer got lost may see its own object.
func (b *bucket) create(ctx context.Context, key string, content []byte) error {
	return b.createAs(ctx, key, content, "")
}

// metaWriter is metadata that says who created an object.
const metaWriter = "Writer"

// createAs is create by a writer who wants to know its own object again; see
// [metaWriter].
func (b *bucket) createAs(ctx context.Context, key string, content []byte, writer string) error {
	var o minio.PutObjectOptions
	o.SetMatchETagExcept("*")
	if writer != "" {
		o.UserMetadata = map[string]string{metaWriter: writer}
	}
	return b.putIf(ctx, key, content, o)
}

// replace stores an object in the place of a version of it; if there is
// another one, the error wraps [fs.ErrExist], and if there is none, that or
// [fs.ErrNotExist]. A writer whose answer got lost may see its own object.
func (b *bucket) replace(ctx context.Context, key, etag string, content []byte) error {
	var o minio.PutObjectOptions
	o.SetMatchETag(etag)
	return b.putIf(ctx, key, content, o)
}

func (b *bucket) putIf(ctx context.Context, key string, content []byte, o minio.PutObjectOptions) error {
	for try := 0; ; try++ {
		err := b.put(ctx, key, content, "", o)
		// Amazon's answer to one of two who write at the same time: neither may
		// have won yet.
		if minio.ToErrorResponse(cause(err)).StatusCode != http.StatusConflict || try == 5 {
			return err
		}
		if err := pause(ctx, time.Duration(try+1)*20*time.Millisecond); err != nil {
			return err
		}
	}
}

// cause returns the storage's own error.
func cause(err error) error {
	var r minio.ErrorResponse
	if errors.As(err, &r) {
		return r
	}
	return err
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// get reads an object, or what is at its beginning if it has more than limit
// bytes, and returns its size.
func (b *bucket) get(ctx context.Context, key string, limit int64) ([]byte, int64, error) {
	content, info, err := b.getInfo(ctx, key, limit)
	return content, info.Size, err
}

// getInfo is get with all that the storage says of the object.
func (b *bucket) getInfo(ctx context.Context, key string, limit int64) ([]byte, minio.ObjectInfo, error) {
	op, cancel := b.limit(ctx, limit)
	defer cancel()
	var o minio.GetObjectOptions
	if err := o.SetRange(0, limit-1); err != nil {
		return nil, minio.ObjectInfo{}, err
	}
	for try := 0; ; try++ {
		content, info, err := b.getOnce(op, key, o, limit)
		// Answers that break off are not tried again by the client.
		if err == nil || try == 2 || !errors.Is(err, io.ErrUnexpectedEOF) {
			return content, info, b.failed(ctx, "reading", key, err)
		}
	}
}

func (b *bucket) getOnce(ctx context.Context, key string, o minio.GetObjectOptions, limit int64) ([]byte, minio.ObjectInfo, error) {
	body, info, header, err := b.core.GetObject(ctx, b.name, key, o)
	if err != nil {
		if minio.ToErrorResponse(err).StatusCode == http.StatusRequestedRangeNotSatisfiable {
			// An empty object has no first byte.
			info, err := b.core.StatObject(ctx, b.name, key, minio.StatObjectOptions{})
			if err == nil && info.Size > 0 {
				err = io.ErrUnexpectedEOF // it was replaced since
			}
			return nil, info, err
		}
		return nil, minio.ObjectInfo{}, err
	}
	defer func() { _ = body.Close() }() // only read
	if r := header.Get("Content-Range"); r != "" {
		_, total, _ := strings.Cut(r, "/")
		if info.Size, err = strconv.ParseInt(total, 10, 64); err != nil {
			return nil, minio.ObjectInfo{}, fmt.Errorf("Content-Range %q: %w", r, err)
		}
	}
	content, err := io.ReadAll(io.LimitReader(body, limit))
	if err == nil && int64(len(content)) < min(info.Size, limit) {
		err = io.ErrUnexpectedEOF
	}
	return content, info, err
}

// head returns the size and time of an object.
func (b *bucket) head(ctx context.Context, key string) (minio.ObjectInfo, error) {
	op, cancel := b.limit(ctx, 0)
	defer cancel()
	info, err := b.core.StatObject(op, b.name, key, minio.StatObjectOptions{})
	return info, b.failed(ctx, "looking for", key, err)
}

// remove deletes an object; one that is not there is none the less deleted.
func (b *bucket) remove(ctx context.Context, key string) error {
	op, cancel := b.limit(ctx, 0)
	defer cancel()
	return b.failed(ctx, "deleting", key, b.core.RemoveObject(op, b.name, key, minio.RemoveObjectOptions{}))
}

// maxCopy is the largest object that one request copies.
const maxCopy = 5 << 30

// copy lets the storage copy an object. size may be what is known to be at
// least its size.
func (b *bucket) copy(ctx context.Context, from, to string, size int64) error {
	op, cancel := b.limit(ctx, size)
	defer cancel()
	var err error
	if size < maxCopy {
		_, err = b.core.CopyObject(op, b.name, from, b.name, to, nil, minio.CopySrcOptions{}, minio.PutObjectOptions{})
	} else {
		_, err = b.core.ComposeObject(op, minio.CopyDestOptions{Bucket: b.name, Object: to}, minio.CopySrcOptions{Bucket: b.name, Object: from})
	}
	return b.failed(ctx, "copying", from, err)
}

// list lists objects by their keys, those after a key; below a slash they
// are one entry unless all is set. page is how many to ask for at a time; 0
// is the storage's limit.
func (b *bucket) list(ctx context.Context, prefix, after string, all bool, page int) iter.Seq2[minio.ObjectInfo, error] {
	return func(yield func(minio.ObjectInfo, error) bool) {
		// Stopping early has to end the listing too.
		op, cancel := context.WithCancel(ctx)
		defer cancel()
		// However long a list is, the next entry comes soon.
		late := time.AfterFunc(b.timeout, cancel)
		defer late.Stop()
		for o := range b.core.ListObjectsIter(op, b.name, minio.ListObjectsOptions{Prefix: prefix, StartAfter: after, Recursive: all, MaxKeys: page}) {
			if o.Err != nil {
				yield(minio.ObjectInfo{}, b.failed(ctx, "listing", prefix, o.Err))
				return
			}
			late.Stop()
			// A "folder" that some tool made is no entry.
			if (o.Key != prefix || !strings.HasSuffix(prefix, "/")) && !yield(o, nil) {
				return
			}
			late.Reset(b.timeout)
		}
		if op.Err() != nil {
			yield(minio.ObjectInfo{}, b.failed(ctx, "listing", prefix, op.Err()))
		}
	}
}

// any reports whether there is an object with a prefix.
func (b *bucket) any(ctx context.Context, prefix string) (bool, error) {
	for _, err := range b.list(ctx, prefix, "", true, 1) {
		return err == nil, err
	}
	return false, nil
}

func (b *bucket) makeBucket(ctx context.Context) error {
	op, cancel := b.limit(ctx, 0)
	defer cancel()
	err := b.core.MakeBucket(op, b.name, minio.MakeBucketOptions{Region: b.region})
	if c := minio.ToErrorResponse(err).Code; c == "BucketAlreadyOwnedByYou" || c == "BucketAlreadyExists" {
		return nil // another server was faster
	}
	return b.failed(ctx, "creating the bucket", "", err)
}

// buffer waits for memory for a push, and returns the function that gives it
// back.
func (b *bucket) buffer(ctx context.Context, n int64) (func(), error) {
	n = min(n, b.bufferMax)
	wait, cancel := context.WithTimeout(ctx, b.timeout)
	defer cancel()
	if err := b.buffers.Acquire(wait, n); err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, fmt.Errorf("%w: too many pushes at once", regstore.ErrUnavailable)
	}
	return func() { b.buffers.Release(n) }, nil
}
