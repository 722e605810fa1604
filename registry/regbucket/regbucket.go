// Package regbucket keeps the content of a registry in a bucket of an
// S3-compatible storage, so that several servers without a disk of their own
// can serve it at once.
//
// Whatever a client was told is stored can be read through every server at
// once. There is no document that several writers share, and no lock: content
// is immutable, each tag is an object, and a tag that never moves is created
// with a conditional write, of which the storage lets one win.
//
//	layout                                the version of this layout, and a secret for upload ids
//	repositories/NAME/_blobs/ALG-HEX      content
//	repositories/NAME/_used/ALG-HEX       empty: when an old blob was last asked for
//	repositories/NAME/_manifests/ALG-HEX  media type, newline, the manifest
//	repositories/NAME/_tags/TAG           the digest that the tag points at; empty: no tag
//	repositories/NAME/_referrers/S/R      empty: R has the subject S
//	uploads/ID/N                          chunks of unfinished uploads
//	gc                                    who collects garbage, and when that was last done
//	trash/ALG-HEX/NAME                    blobs that are about to go
//
// Unlike regdir, a repository has its own copy of a blob. A blob is thereby one
// object, which one request stores, finds or reads, and a repository can be
// cleaned without knowing the others. Mounting a blob is a copy that the storage
// makes.
//
// Components of repository names never begin with '_'.
package regbucket

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/krmcat/krmcat/registry/regstore"
)

// layoutText is the first line of the object layout.
const layoutText = "krmcat registry bucket 1\n"

// Errors of [Open].
var (
	// ErrNotRegistry: what is under the prefix is something else.
	ErrNotRegistry = errors.New("not the bucket of a registry")
	// ErrNotConditional: the storage ignores If-None-Match or If-Match, so
	// that two servers could both publish a release.
	ErrNotConditional = errors.New("the storage does not honour conditional writes (PutObject with If-None-Match: * and If-Match), without which two servers could both publish the same release")
)

// Options say where the bucket is. Endpoint and Region may be empty for
// Amazon S3.
type Options struct {
	// Endpoint is the URL of the storage, such as https://minio.example.com:9000.
	// Empty is https://s3.amazonaws.com.
	Endpoint string
	Bucket   string
	// Prefix is put before every key, with a slash after it; empty for none.
	Prefix string
	// Region is what requests are signed for; empty is us-east-1.
	Region string
	// Credentials are required.
	Credentials Credentials
	// PathStyle puts the name of the bucket into the path of URLs always.
	// Otherwise that depends on the endpoint, and is so for all but Amazon's
	// and a few others.
	PathStyle bool
	// CAFile holds certificates, in PEM, of authorities to trust beside the
	// system's.
	CAFile string
	// CreateBucket makes the bucket if it does not exist.
	CreateBucket bool
	// ReadOnly writes nothing, and needs no permission to. The bucket has to
	// be a registry's already.
	ReadOnly bool
	// MustExist makes a bucket that is not a registry yet an error
	// ([ErrNotRegistry]), instead of making it one.
	MustExist bool

	// Log gets what happens beside requests. Nil is silent.
	Log *slog.Logger
	// Timeout bounds each request to the storage, and how long reading may
	// stall; 0 is 20 seconds. It has to be shorter than [Settle].
	Timeout time.Duration
	// Attempts is how often a request is made that fails in a way that may
	// pass; 0 is 4.
	Attempts int
	// CacheTTL is how long a manifest or a small blob that was deleted through
	// another server may still be served by its digest; 0 is 30 seconds,
	// negative is not at all. Tags and lists are never cached.
	CacheTTL time.Duration
	// CacheBytes bounds the memory for that; 0 is 16 MiB.
	CacheBytes int64
	// BufferBytes bounds the memory for what is being pushed; 0 is 128 MiB.
	// Pushes wait for their share, of at most 16 MiB each.
	BufferBytes int64
	// UploadTTL is how long an unfinished upload is kept; 0 is 24 hours.
	UploadTTL time.Duration
	// Transport makes the requests; nil is one with the settings here.
	Transport http.RoundTripper
}

// Settle is how long a deleted blob is kept aside. By then, whoever was about
// to refer to it has done so, and it is put back, or has been refused.
const Settle = 2 * time.Minute

// freshFor is how long a server that saw a blob lets manifests refer to it
// without asking again. With the time that storing the manifest takes, it is
// much shorter than Settle.
const freshFor = 10 * time.Second

// Store is a driver that keeps everything in a bucket. Use [Open].
type Store struct {
	*bucket
	opts   Options
	cache  *cache
	secret []byte // authenticates upload ids

	background sync.WaitGroup
	stop       context.CancelFunc
	wake       chan struct{} // something is in the trash
}

var _ regstore.Driver = (*Store)(nil)

// Open opens a bucket that holds a registry, or makes a registry of one that
// holds nothing under the prefix. It checks that the storage honours
// conditional writes, or fails with [ErrNotConditional]. Any number of
// processes may have the same bucket open.
func Open(ctx context.Context, opts Options) (*Store, error) {
	if opts.Timeout == 0 {
		opts.Timeout = 20 * time.Second
	}
	if opts.Attempts == 0 {
		opts.Attempts = 4
	}
	if opts.CacheTTL == 0 {
		opts.CacheTTL = 30 * time.Second
	}
	if opts.CacheBytes == 0 {
		opts.CacheBytes = 16 << 20
	}
	if opts.BufferBytes == 0 {
		opts.BufferBytes = 128 << 20
	}
	if opts.UploadTTL == 0 {
		opts.UploadTTL = 24 * time.Hour
	}
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	s := &Store{opts: opts, cache: newCache(opts.CacheBytes), wake: make(chan struct{}, 1)}
	err := s.open(ctx)
	if err != nil {
		return nil, fmt.Errorf("opening bucket %s: %w", opts.Bucket, err)
	}
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	s.stop = stop
	if !opts.ReadOnly {
		s.background.Go(func() { s.maintain(background) })
	}
	return s, nil
}

func (s *Store) open(ctx context.Context) error {
	if s.opts.Timeout >= Settle/2 {
		return fmt.Errorf("a timeout of %s is too long (at most %s)", s.opts.Timeout, Settle/2)
	}
	var err error
	if s.bucket, err = newBucket(s.opts); err != nil {
		return err
	}
	if err := s.checkBucket(ctx); err != nil {
		return err
	}
	layout, _, err := s.get(ctx, s.prefix+"layout", maxLayout)
	if errors.Is(err, fs.ErrNotExist) && !s.opts.ReadOnly && !s.opts.MustExist {
		if err := s.checkEmpty(ctx); err != nil {
			return err
		}
		if err := s.probe(ctx); err != nil {
			return err
		}
		layout = []byte(layoutText + base64.RawURLEncoding.EncodeToString([]byte(rand.Text()+rand.Text())) + "\n")
		switch err := s.create(ctx, s.prefix+"layout", layout); {
		case errors.Is(err, fs.ErrExist): // another server was faster
			layout, _, err = s.get(ctx, s.prefix+"layout", maxLayout)
			if err != nil {
				return err
			}
		case err != nil:
			return err
		}
	} else if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: there is no object %slayout", ErrNotRegistry, s.prefix)
	} else if err != nil {
		return err
	} else if !s.opts.ReadOnly {
		if err := s.probe(ctx); err != nil {
			return err
		}
	}
	return s.recognize(layout)
}

const maxLayout = 1 << 10

// recognize reads the object layout.
func (s *Store) recognize(layout []byte) error {
	rest, ok := strings.CutPrefix(string(layout), layoutText)
	if !ok {
		return fmt.Errorf("%w of this version (its layout is %.40q, this program knows %q)", ErrNotRegistry, layout, layoutText)
	}
	secret, err := base64.RawURLEncoding.DecodeString(strings.TrimSuffix(rest, "\n"))
	if err != nil || len(secret) < 32 {
		return fmt.Errorf("%w: the object %slayout is damaged", ErrNotRegistry, s.prefix)
	}
	s.secret = secret
	return nil
}

func (s *Store) checkBucket(ctx context.Context) error {
	op, cancel := s.limit(ctx, 0)
	defer cancel()
	ok, err := s.core.BucketExists(op, s.name)
	if err != nil {
		return s.failed(ctx, "looking for the bucket", "", err)
	}
	switch {
	case ok:
		return nil
	case !s.opts.CreateBucket || s.opts.ReadOnly:
		return fmt.Errorf("the bucket does not exist at %s: %w (create it, or check its name)", s.core.EndpointURL().Host, fs.ErrNotExist)
	}
	return s.makeBucket(ctx)
}

// checkEmpty refuses to mix a registry with something else.
func (s *Store) checkEmpty(ctx context.Context) error {
	for o, err := range s.list(ctx, s.prefix, "", false, 20) {
		if err != nil {
			return err
		}
		switch o.Key {
		case s.prefix + "probe/", s.prefix + "layout": // another server that is starting
		default:
			return fmt.Errorf("%w: it holds %s (choose a prefix with nothing under it)", ErrNotRegistry, o.Key)
		}
	}
	return nil
}

// probe lets several writers create the same object, of whom one may win.
func (s *Store) probe(ctx context.Context) error {
	key := s.prefix + "probe/" + rand.Text()
	const writers = 4
	var wg sync.WaitGroup
	errs := make([]error, writers+1)
	for i := range writers {
		wg.Go(func() { errs[i] = s.create(ctx, key, fmt.Appendf(nil, "%d", i)) })
	}
	wg.Wait()
	errs[writers] = s.create(ctx, key, []byte("late"))
	won := 0
	for _, err := range errs {
		switch {
		case err == nil:
			won++
		case !errors.Is(err, fs.ErrExist):
			return fmt.Errorf("checking conditional writes: %w", err)
		}
	}
	if won != 1 {
		return errors.Join(fmt.Errorf("%w: %d of %d succeeded", ErrNotConditional, won, len(errs)), s.remove(ctx, key))
	}
	return errors.Join(s.probeReplace(ctx, key), s.remove(ctx, key))
}

// probeReplace replaces an object twice by its first version, which works
// once.
func (s *Store) probeReplace(ctx context.Context, key string) error {
	_, info, err := s.getInfo(ctx, key, maxLayout)
	if err != nil {
		return err
	}
	if err := s.replace(ctx, key, info.ETag, []byte("second")); err != nil {
		return fmt.Errorf("checking conditional writes: %w", err)
	}
	switch err := s.replace(ctx, key, info.ETag, []byte("third")); {
	case err == nil:
		return fmt.Errorf("%w: an object was replaced that had changed", ErrNotConditional)
	case !errors.Is(err, fs.ErrExist):
		return fmt.Errorf("checking conditional writes: %w", err)
	}
	return nil
}

// Close ends what runs in the background. No other call may be running.
func (s *Store) Close() error {
	s.stop()
	s.background.Wait()
	if t, ok := s.transport.(*http.Transport); ok && s.opts.Transport == nil {
		t.CloseIdleConnections()
	}
	return nil
}

// maintain drops what is left behind, until ctx is done.
func (s *Store) maintain(ctx context.Context) {
	uploads := time.NewTicker(min(s.opts.UploadTTL/4, time.Hour))
	defer uploads.Stop()
	trash := time.NewTimer(Settle)
	defer trash.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.wake:
			trash.Reset(Settle + s.opts.Timeout)
		case <-trash.C:
			if err := s.emptyTrash(ctx, Settle); err != nil && ctx.Err() == nil {
				s.log.Warn("trash was not emptied", "error", err)
			}
		case <-uploads.C:
			if _, err := s.ExpireUploads(ctx); err != nil && ctx.Err() == nil {
				s.log.Warn("unfinished uploads were not looked through", "error", err)
			}
			trash.Reset(0) // what other servers left there
		}
	}
}

// repoKey returns a key below a repository.
func (s *Store) repoKey(repository, kind, name string) string {
	return s.prefix + "repositories/" + repository + "/" + kind + "/" + name
}

// objectName writes a digest as part of a key.
func objectName(d digest.Digest) string { return d.Algorithm().String() + "-" + d.Encoded() }

// parseObjectName reads what objectName wrote.
func parseObjectName(name string) (digest.Digest, bool) {
	algorithm, hex, ok := strings.Cut(name, "-")
	if !ok {
		return "", false
	}
	d, err := regstore.ParseDigest(algorithm + ":" + hex)
	return d, err == nil
}
