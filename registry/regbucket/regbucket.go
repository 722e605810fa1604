// Package regbucket keeps the content of a registry in a bucket of an
// S3-compatible object store, for servers that keep nothing themselves: any
// number of them may serve one bucket.
//
// There is no document that two servers would both change. Content is stored
// under its digest; a tag is an object of its own, and one that never moves is
// created on the condition that it does not exist, so that of two servers one
// wins. The store has to be strongly consistent and to know conditional writes
// (If-None-Match: *), as AWS, MinIO, Ceph, R2 and versitygw do.
//
//	blobs/ALGORITHM/HEX                  content, once for all repositories
//	names/NAME!                          empty: there is a repository
//	repositories/NAME/_blobs/ALG-HEX     empty, with the blob's size
//	repositories/NAME/_manifests/ALG-HEX the manifest
//	repositories/NAME/_tags/TAG          the descriptor that the tag points at
//	repositories/NAME/_referrers/S/R     how the referrers of S list R
//	uploads/ID/OFFSET                    pieces of unfinished uploads
//	secret                               signs the ids of uploads
//
// What is known to be there is remembered for a few seconds, which is what
// keeps a push at some 14 calls; a deletion through one server is seen by the
// others after that.
package regbucket

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/opencontainers/go-digest"

	"github.com/krmcat/krmcat/registry/regstore"
)

// Config says where the bucket is.
type Config struct {
	// Endpoint is the store's URL, such as https://s3.eu-central-1.amazonaws.com
	// or http://minio:9000.
	Endpoint string
	// Bucket exists already. Prefix comes before all names in it; it may be
	// empty.
	Bucket, Prefix string
	// Region may be empty for stores that have none.
	Region string
	// AccessKey and SecretKey are the credentials. Without them, those of the
	// machine's role are used.
	AccessKey, SecretKey, SessionToken string
}

// Options are the optional settings of a [Store].
type Options struct {
	// Log gets what happens beside requests. Nil is silent.
	Log *slog.Logger
	// UploadTTL is how long an upload may take; 0 is 24 hours.
	UploadTTL time.Duration
	// Remember is how long something is taken to be there still, after it
	// was; 0 is 15 s.
	Remember time.Duration
	// Retries is how often a request is tried in all; 0 is 3 times.
	Retries int
	// Transport is used for requests; nil is one with sensible time limits.
	Transport http.RoundTripper
}

// Store is a driver that keeps everything in a bucket. Use [Open].
type Store struct {
	core   minio.Core
	bucket string
	prefix string
	opts   Options
	log    *slog.Logger
	secret []byte
	large  chan struct{} // bounds the buffers of uploads of unknown size

	known *memory // what is there; see [Options]
}

var _ regstore.Driver = (*Store)(nil)

// Open returns a store for a bucket. The error says what to do about a bucket
// that is not there or does not fit.
func Open(ctx context.Context, cfg Config, opts *Options) (*Store, error) {
	s := &Store{bucket: cfg.Bucket, prefix: cfg.Prefix, large: make(chan struct{}, 4)}
	if opts != nil {
		s.opts = *opts
	}
	if s.opts.UploadTTL == 0 {
		s.opts.UploadTTL = 24 * time.Hour
	}
	if s.opts.Remember == 0 {
		s.opts.Remember = 15 * time.Second
	}
	if s.opts.Retries == 0 {
		s.opts.Retries = 3
	}
	if s.log = s.opts.Log; s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if s.prefix != "" && !strings.HasSuffix(s.prefix, "/") {
		s.prefix += "/"
	}
	s.known = newMemory(s.opts.Remember)
	if err := s.open(ctx, cfg); err != nil {
		return nil, fmt.Errorf("opening bucket %s at %s: %w", cfg.Bucket, cfg.Endpoint, err)
	}
	return s, nil
}

func (s *Store) open(ctx context.Context, cfg Config) error {
	u, err := url.Parse(cfg.Endpoint)
	if err != nil {
		return err
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || strings.Trim(u.Path, "/") != "" {
		return errors.New("endpoint is not http://HOST or https://HOST")
	}
	creds := credentials.NewStaticV4(cfg.AccessKey, cfg.SecretKey, cfg.SessionToken)
	if cfg.AccessKey == "" {
		creds = credentials.NewIAM("")
	}
	transport := s.opts.Transport
	if transport == nil {
		transport = &http.Transport{
			Proxy:                 http.ProxyFromEnvironment,
			DialContext:           (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
			TLSHandshakeTimeout:   10 * time.Second,
			ResponseHeaderTimeout: 30 * time.Second,
			MaxIdleConnsPerHost:   64,
			IdleConnTimeout:       90 * time.Second,
			DisableCompression:    true,
		}
	}
	client, err := minio.New(u.Host, &minio.Options{Creds: creds, Secure: u.Scheme == "https", Region: cfg.Region, Transport: transport, MaxRetries: s.opts.Retries})
	if err != nil {
		return err
	}
	client.SetAppInfo("krmcat", "")
	s.core = minio.Core{Client: client}
	ok, err := client.BucketExists(ctx, s.bucket)
	if err != nil {
		return storeError(err)
	}
	if !ok {
		return fmt.Errorf("%w (make the bucket first)", fs.ErrNotExist)
	}
	return s.openSecret(ctx)
}

// openSecret reads the secret that all servers of the bucket share; the first
// one makes it. That shows as well whether the store knows conditions.
func (s *Store) openSecret(ctx context.Context) error {
	key := s.prefix + "secret"
	b := make([]byte, 32)
	_, _ = rand.Read(b) // never fails
	err := s.create(ctx, key, b)
	if err != nil && !errors.Is(err, errExists) {
		return err
	}
	if err := s.create(ctx, key, b); !errors.Is(err, errExists) {
		return fmt.Errorf("the store does not keep the condition If-None-Match: * (got %v); releases would not be safe there", err)
	}
	s.secret, _, err = s.read(ctx, key)
	if err == nil && len(s.secret) != len(b) {
		err = fmt.Errorf("object %s is damaged", key)
	}
	return err
}

// Close does nothing.
func (*Store) Close() error { return nil }

func (s *Store) blobKey(d digest.Digest) string {
	return s.prefix + "blobs/" + d.Algorithm().String() + "/" + d.Encoded()
}

// key returns the name of something of a repository.
func (s *Store) key(repository, kind string, elem ...string) string {
	return s.prefix + "repositories/" + repository + "/" + kind + "/" + strings.Join(elem, "/")
}

func name(d digest.Digest) string { return d.Algorithm().String() + "-" + d.Encoded() }

func parseName(s string) (digest.Digest, bool) {
	alg, hex, ok := strings.Cut(s, "-")
	if !ok {
		return "", false
	}
	d, err := regstore.ParseDigest(alg + ":" + hex)
	return d, err == nil
}

// errExists: the object that should be created is there.
var errExists = errors.New("object exists")

// storeError translates an error of the object store.
func storeError(err error) error {
	if err == nil || errors.Is(err, context.Canceled) {
		return err
	}
	resp := minio.ToErrorResponse(err)
	var netErr net.Error
	var urlErr *url.Error
	switch {
	case resp.Code == minio.NoSuchBucket:
		return fmt.Errorf("%w: %w", regstore.ErrUnavailable, err)
	case resp.Code == minio.NoSuchKey, resp.StatusCode == http.StatusNotFound:
		return fmt.Errorf("%w: %w", fs.ErrNotExist, err)
	case resp.StatusCode == http.StatusPreconditionFailed, resp.Code == minio.PreconditionFailed:
		return errExists
	case resp.StatusCode == http.StatusInsufficientStorage, resp.Code == "XMinioStorageFull", resp.Code == "QuotaExceeded":
		return fmt.Errorf("%w: %w", regstore.ErrNoSpace, err)
	case resp.StatusCode >= 500, resp.StatusCode == http.StatusTooManyRequests, resp.Code == "SlowDown", resp.Code == "OperationAborted",
		errors.As(err, &netErr), errors.As(err, &urlErr), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%w: %w", regstore.ErrUnavailable, err)
	}
	return err
}

// read returns a small object and its type.
func (s *Store) read(ctx context.Context, key string) ([]byte, string, error) {
	rc, info, _, err := s.core.GetObject(ctx, s.bucket, key, minio.GetObjectOptions{})
	if err != nil {
		return nil, "", storeError(err)
	}
	defer func() { _ = rc.Close() }() // only read
	b, err := io.ReadAll(rc)
	return b, info.ContentType, storeError(err)
}

// write stores a small object.
func (s *Store) write(ctx context.Context, key string, content []byte, opts minio.PutObjectOptions) error {
	opts.DisableMultipart = true
	// A signature in chunks of nothing is beyond some stores.
	opts.DisableContentSha256 = len(content) == 0
	_, err := s.core.Client.PutObject(ctx, s.bucket, key, strings.NewReader(string(content)), int64(len(content)), opts)
	return storeError(err)
}

// create stores a small object if there is none of that name; otherwise the
// error is errExists.
func (s *Store) create(ctx context.Context, key string, content []byte) error {
	opts := minio.PutObjectOptions{}
	opts.SetMatchETagExcept("*")
	for {
		err := s.write(ctx, key, content, opts)
		// AWS answers so when somebody else is creating it just now.
		if minio.ToErrorResponse(err).Code == "ConditionalRequestConflict" && ctx.Err() == nil {
			continue
		}
		return err
	}
}

// remove deletes an object; that it is not there is no error.
func (s *Store) remove(ctx context.Context, key string) error {
	err := storeError(s.core.Client.RemoveObject(ctx, s.bucket, key, minio.RemoveObjectOptions{}))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// list calls f with the names of the objects below a prefix, without it, in
// order, beginning after one.
func (s *Store) list(ctx context.Context, prefix, after string, f func(name string, info minio.ObjectInfo) bool) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the listing when f has seen enough
	opts := minio.ListObjectsOptions{Prefix: prefix, Recursive: true}
	if after != "" {
		opts.StartAfter = prefix + after
	}
	for info := range s.core.Client.ListObjects(ctx, s.bucket, opts) {
		if info.Err != nil {
			return storeError(info.Err)
		}
		if name := strings.TrimPrefix(info.Key, prefix); name > after && !f(name, info) {
			return nil
		}
	}
	return storeError(ctx.Err())
}

// memory remembers what was there a moment ago.
type memory struct {
	ttl time.Duration
	mu  sync.Mutex
	m   map[string]remembered
}

type remembered struct {
	size  int64
	until time.Time
}

// maxRemembered bounds the memory of a server.
const maxRemembered = 50_000

func newMemory(ttl time.Duration) *memory { return &memory{ttl: ttl, m: map[string]remembered{}} }

func (m *memory) add(key string, size int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.m) >= maxRemembered {
		clear(m.m)
	}
	m.m[key] = remembered{size, time.Now().Add(m.ttl)}
}

func (m *memory) get(key string) (int64, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r, ok := m.m[key]
	return r.size, ok && time.Now().Before(r.until)
}

func (m *memory) forget(key string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.m, key)
}
