// Package web serves the pages, the JSON API and the catalogs of a krmcat
// server, beside a registry that it is given as a handler. It knows neither
// how artifacts are stored nor how the index is kept.
package web

import (
	"context"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"

	"github.com/krmcat/krmcat/catalog/index"
	"github.com/krmcat/krmcat/web/ui"
)

// Index is what the server asks about what was published. What is not there is
// an error that wraps [index.ErrNotFound]; while it cannot answer, errors
// wrap [index.ErrNotReady].
type Index interface {
	Check(ctx context.Context) error
	Search(ctx context.Context, q index.Query) (*index.Page, error)
	Complete(ctx context.Context, prefix string, limit int) ([]*index.Listing, error)
	Facets(ctx context.Context, facet string, limit int) ([]index.Count, error)
	Publishers(ctx context.Context) ([]index.Publisher, error)
	Function(ctx context.Context, group, kind, release string) (*index.Function, error)
	Resolve(ctx context.Context, apiVersion, kind string) (*index.Resolved, error)
	Catalogs(ctx context.Context) ([]*index.CatalogListing, error)
	Catalog(ctx context.Context, name string) (*index.Document, error)
	Snapshot(ctx context.Context, name, version string) (*index.Document, error)
	Aggregate(ctx context.Context, publishers []string, tag string) (*index.Document, error)
	Newest(ctx context.Context, publisher string, limit int) ([]index.Event, error)
	Stats(ctx context.Context) (index.Stats, error)
}

// Options are the optional settings of a server. The zero value serves no
// registry and is silent.
type Options struct {
	// Registry is served under /v2/.
	Registry http.Handler
	// Observe is told of every request that was answered, with the pattern
	// of its route.
	Observe func(method, route string, status int, seconds float64)
	// Log gets failures, and each request at level debug. Nil is silent.
	Log *slog.Logger
	// ExternalURL is where clients reach the server, without a path. Nil
	// takes it from each request.
	ExternalURL *url.URL
	// Name is shown on the pages; empty is krmcat.
	Name string
	// Version is that of the program.
	Version string
	// Ready is a further condition for /readyz; nil is none.
	Ready func(ctx context.Context) error
}

type server struct {
	index Index
	opts  Options
	log   *slog.Logger
	ui    *ui.Pages
	reps  representations
	// started stands for the age of what is part of the program.
	started time.Time
}

// New returns the handler of a krmcat server. It is safe for concurrent use.
func New(x Index, opts *Options) (http.Handler, error) {
	s := &server{index: x, log: slog.New(slog.DiscardHandler), started: time.Now()}
	if opts != nil {
		s.opts = *opts
	}
	if s.opts.Log != nil {
		s.log = s.opts.Log
	}
	if s.opts.Name == "" {
		s.opts.Name = "krmcat"
	}
	var err error
	if s.ui, err = ui.New(); err != nil {
		return nil, err
	}
	return s.routes(), nil
}

// routes lists everything that is served.
func (s *server) routes() http.Handler {
	r := chi.NewRouter()
	r.Use(s.observe, s.recover)

	if s.opts.Registry != nil {
		r.Handle("/v2", s.opts.Registry)
		r.Handle("/v2/*", s.opts.Registry)
	}

	// For machines: anonymous (KC-029), from any origin, problem+json.
	r.Group(func(r chi.Router) {
		r.Use(deadlines, plainHeaders, anyOrigin)
		get := func(pattern string, h handler) {
			r.Method(http.MethodGet, pattern, s.machine(h))
			r.Method(http.MethodHead, pattern, s.machine(h))
			r.Method(http.MethodOptions, pattern, s.machine(preflight))
		}
		get("/catalog.yaml", s.catalogAll)
		get("/catalog.json", s.catalogAll)
		get("/catalogs/aggregate/latest.yaml", s.catalogAggregate)
		get("/catalogs/aggregate/latest.json", s.catalogAggregate)
		get("/catalogs/{name}/{file}", s.catalogFile)
		get("/schemas/{group}/{file}", s.schemaFile)
		get("/feeds/all.atom", s.feedAtom)
		get("/feeds/all.json", s.feedJSON)
		get("/feeds/publishers/{file}", s.feedPublisher)
		get("/.well-known/krm-catalog.json", s.discovery)
		get("/api/v1/functions", s.apiFunctions)
		get("/api/v1/search", s.apiFunctions)
		get("/api/v1/functions/{group}/{kind}", s.apiFunction)
		get("/api/v1/functions/{group}/{kind}/{release}", s.apiFunction)
		get("/api/v1/resolve", s.apiResolve)
		get("/api/v1/complete", s.apiComplete)
		get("/api/v1/catalogs", s.apiCatalogs)
		get("/api/v1/publishers", s.apiPublishers)
		get("/api/v1/stats", s.apiStats)
		get("/openapi.yaml", s.openAPI)
		get("/livez", s.livez)
		get("/readyz", s.readyz)
		get("/robots.txt", s.robots)
		get("/api/*", func(http.ResponseWriter, *http.Request) error {
			return &httpError{status: http.StatusNotFound, msg: "no such endpoint", fix: "see /openapi.yaml for all of them"}
		})
	})

	// For people.
	r.Group(func(r chi.Router) {
		r.Use(deadlines, pageHeaders)
		get := func(pattern string, h handler) {
			r.Method(http.MethodGet, pattern, s.page(h))
			r.Method(http.MethodHead, pattern, s.page(h))
		}
		get("/", s.home)
		get("/search", s.search)
		get("/functions", s.search)
		get("/functions/{group}/{kind}", s.function)
		get("/functions/{group}/{kind}/{release}", s.function)
		get("/catalogs", s.catalogs)
		get("/catalogs/{name}", s.catalogPage)
		get("/publishers", s.publishers)
		get("/publishers/{publisher}", s.publisher)
		get("/static/{file}", s.static)
		r.NotFound(s.page(func(http.ResponseWriter, *http.Request) error {
			return &httpError{status: http.StatusNotFound, msg: "there is no such page"}
		}).ServeHTTP)
	})
	r.MethodNotAllowed(s.machine(func(w http.ResponseWriter, _ *http.Request) error {
		return &httpError{status: http.StatusMethodNotAllowed, msg: "this can only be read", fix: "content is published by pushing it to the registry at /v2/"}
	}).ServeHTTP)
	return r
}

// base is where clients reach the server, without a slash at the end.
func (s *server) base(r *http.Request) string {
	if u := s.opts.ExternalURL; u != nil {
		return strings.TrimSuffix(u.String(), "/")
	}
	scheme := "http"
	if r.TLS != nil {
		scheme = "https"
	}
	return scheme + "://" + hostOf(r)
}

// host is the server's in references, such as example.com or localhost:8080.
func (s *server) host(r *http.Request) string {
	if u := s.opts.ExternalURL; u != nil {
		return u.Host
	}
	return hostOf(r)
}

// hostOf is what the client calls the server, unless that is no host name: it
// goes into commands that people paste.
func hostOf(r *http.Request) string {
	for _, c := range r.Host {
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.ContainsRune(".-:[]", c)) {
			return "localhost"
		}
	}
	if r.Host == "" || len(r.Host) > 255 {
		return "localhost"
	}
	return r.Host
}
