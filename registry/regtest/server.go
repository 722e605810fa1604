// Package regtest is for tests: a registry server on the loopback interface,
// builders of content, and the suite that every storage driver passes.
package regtest

import (
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/krmcat/krmcat/registry"
	"github.com/krmcat/krmcat/registry/regmem"
	"github.com/krmcat/krmcat/registry/regserver"
	"github.com/krmcat/krmcat/registry/regstore"
)

// Server is a registry that ends with its test.
type Server struct {
	Host  string         // of references, such as 127.0.0.1:40001
	URL   string         // with scheme, such as http://127.0.0.1:40001
	Store registry.Store // what the server holds
	HTTP  *httptest.Server
}

// NewServer starts a registry in memory, with the real handler.
func NewServer(t testing.TB) *Server {
	t.Helper()
	return NewServerWith(t, regmem.New(), nil)
}

// NewServerWith starts a registry over a store, which stays the caller's to
// close. Nil options mean the server's defaults; set NoReferrers for a
// registry whose clients have to keep referrers in a tag.
func NewServerWith(t testing.TB, store regstore.Driver, opts *regserver.Options) *Server {
	t.Helper()
	var o regserver.Options
	if opts != nil {
		o = *opts
	}
	if o.Log == nil {
		o.Log = slog.New(slog.NewTextHandler(testWriter{t}, nil))
	}
	h := httptest.NewUnstartedServer(regserver.New(store, &o))
	regserver.Harden(h.Config)
	h.Start()
	t.Cleanup(h.Close)
	return &Server{Host: strings.TrimPrefix(h.URL, "http://"), URL: h.URL, Store: store, HTTP: h}
}

// testWriter shows the server's log in the test that failed.
type testWriter struct{ t testing.TB }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Helper()
	// A server may log after its test has ended, which is no reason to panic.
	if w.t.Context().Err() == nil {
		w.t.Logf("server: %s", strings.TrimSuffix(string(p), "\n"))
	}
	return len(p), nil
}
