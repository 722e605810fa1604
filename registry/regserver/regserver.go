// Package regserver serves a registry over HTTP: the OCI distribution
// specification 1.1 in whole, over any storage driver (package regstore).
//
// The protocol is our own code and not a library's: what krmcat adds happens
// in the middle of a manifest's push, between the check of its content and
// the moment it is stored (admission, index, immutable releases), and blobs
// have to travel between socket and file without copies.
package regserver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/krmcat/krmcat/registry"
	"github.com/krmcat/krmcat/registry/regstore"
)

// Options are the optional settings of a [Server]. The zero value is a
// registry that anyone may read and write, with immutable releases.
type Options struct {
	// Log gets what clients are not told: causes of failures. Nil is silent.
	Log *slog.Logger
	// Authorize decides about each request; see [Access]. A refusal is an
	// [*UnauthorizedError] or a [*registry.RefusedError]; other errors are
	// answered with 503. Nil allows everything.
	Authorize func(r *http.Request, a Access) error
	// Admission decides about each manifest. Nil accepts all.
	Admission registry.Admission
	// Observer learns of each change. Nil is nobody.
	Observer registry.Observer
	// Limits bound what clients can make the server do.
	Limits Limits
	// ReadOnly refuses every change.
	ReadOnly bool
	// ImmutableTags says which tags never move once they exist and cannot be
	// deleted. Nil means [ReleaseTag].
	ImmutableTags func(repository, tag string) bool
	// Deletable says what else may be deleted: a tag, or a manifest or blob
	// by its digest. Nil means everything that no immutable tag protects.
	Deletable func(repository, reference string) bool
	// NoReferrers leaves out the referrers API, as old registries do.
	// Clients then keep referrers in a tag.
	NoReferrers bool
}

// Limits bound what clients can make a server do. Zero fields are defaults.
type Limits struct {
	// BlobBytes is the largest blob; 0 is 32 GiB.
	BlobBytes int64
	// RepositoryBytes is how much a repository may hold; 0 is unlimited.
	RepositoryBytes int64
	// BufferedBytes bounds what all running requests together keep in
	// memory of manifests; 0 is 64 MiB.
	BufferedBytes int64
	// Stall is how long a client may send or take nothing at all, and
	// MinRate how slow, in bytes per second, it may be on the whole; 0 is
	// 60 s and 1 KiB/s.
	Stall   time.Duration
	MinRate int64
}

func (l *Limits) setDefaults() {
	if l.BlobBytes == 0 {
		l.BlobBytes = 32 << 30
	}
	if l.BufferedBytes == 0 {
		l.BufferedBytes = 64 << 20
	}
	if l.Stall == 0 {
		l.Stall = 60 * time.Second
	}
	if l.MinRate == 0 {
		l.MinRate = 1 << 10
	}
}

// Access is what a request wants to do.
type Access struct {
	// Repository is empty for the base of the API and the list of
	// repositories, and for a pull from whatever repository has a blob, which
	// may be done by who may read all of them.
	Repository string
	Action     Action
}

// Action is a kind of access.
type Action string

// The actions. A push may also pull from the repository that a blob is
// mounted from, which is asked for separately.
const (
	ActionPing   Action = "ping" // GET /v2/, where clients learn how to log in
	ActionList   Action = "list" // of all repositories
	ActionPull   Action = "pull"
	ActionPush   Action = "push"
	ActionDelete Action = "delete"
)

// UnauthorizedError asks the client to log in.
type UnauthorizedError struct {
	// Challenge is the WWW-Authenticate header, such as
	// `Basic realm="krmcat"`.
	Challenge string
	Message   string
}

func (e *UnauthorizedError) Error() string { return e.Message }

// ReleaseTag reports whether a tag is a release, whatever its repository; see
// [registry.IsRelease].
func ReleaseTag(_, tag string) bool { return registry.IsRelease(tag) }

// Server is an [http.Handler] for the paths /v2 and below. It is safe for
// concurrent use.
type Server struct {
	store  regstore.Driver
	opts   Options
	log    *slog.Logger
	buffer *semaphore.Weighted
}

// New returns a server over a store, which the caller closes after the last
// request. Nil options mean the defaults.
func New(store regstore.Driver, opts *Options) *Server {
	s := &Server{store: store}
	if opts != nil {
		s.opts = *opts
	}
	s.opts.Limits.setDefaults()
	if s.opts.ImmutableTags == nil {
		s.opts.ImmutableTags = ReleaseTag
	}
	if s.log = s.opts.Log; s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	s.buffer = semaphore.NewWeighted(s.opts.Limits.BufferedBytes)
	return s
}

// Store returns what the server serves, for readers in the same process.
func (s *Server) Store() registry.Store { return s.store }

// Harden gives an [http.Server] the limits that a registry needs in front of
// its handlers: on the time and size of headers and on idle connections.
// Fields that are set stay. Reading bodies and writing answers is limited by
// the [Server], as that depends on their size.
func Harden(s *http.Server) {
	if s.ReadHeaderTimeout == 0 {
		s.ReadHeaderTimeout = 10 * time.Second
	}
	if s.IdleTimeout == 0 {
		s.IdleTimeout = 2 * time.Minute
	}
	if s.MaxHeaderBytes == 0 {
		s.MaxHeaderBytes = 64 << 10
	}
}

// call is one request on its way.
type call struct {
	*Server
	w   http.ResponseWriter
	r   *http.Request
	ctx context.Context
	route
}

// ServeHTTP answers a request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	// Not in the specification any more, but what Docker looks for.
	w.Header().Set("Docker-Distribution-Api-Version", "registry/2.0")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	c := &call{Server: s, w: w, r: r, ctx: r.Context()}
	if err := c.serve(); err != nil {
		c.fail(err)
	}
}

func (c *call) serve() error {
	var err error
	if c.route, err = parseRoute(c.r.URL.Path); err != nil {
		if errors.Is(err, errTag) && c.r.Method != http.MethodPut {
			return storeError(fs.ErrNotExist, "MANIFEST_UNKNOWN") // as no such tag can exist
		}
		return err
	}
	h, ok := c.methods()[c.r.Method]
	if !ok {
		return errMethod(c.methods())
	}
	if c.opts.ReadOnly && h.action != ActionPing && h.action != ActionList && h.action != ActionPull {
		return errReadOnly
	}
	if err := c.authorize(Access{Repository: c.repository, Action: h.action}); err != nil {
		return err
	}
	return h.do(c)
}

func (c *call) authorize(a Access) error {
	if c.opts.Authorize == nil {
		return nil
	}
	err := c.opts.Authorize(c.r, a)
	var unauthorized *UnauthorizedError
	var refused *registry.RefusedError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &unauthorized):
		return &Error{Status: http.StatusUnauthorized, Code: "UNAUTHORIZED", Message: unauthorized.Message,
			header: http.Header{"Www-Authenticate": {unauthorized.Challenge}}}
	case errors.As(err, &refused):
		return errRefused(refused)
	}
	return unavailable(fmt.Errorf("authorizing %s of %s: %w", a.Action, a.Repository, err))
}

// immutable reports whether a tag never moves.
func (s *Server) immutable(repository, tag string) bool { return s.opts.ImmutableTags(repository, tag) }
