package regbucket_test

import (
	"encoding/pem"
	"fmt"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"

	"github.com/krmcat/krmcat/registry/regbucket"
	"github.com/krmcat/krmcat/registry/regstore"
	"github.com/krmcat/krmcat/registry/regtest"
)

var prefixes atomic.Int64

// fake is an object store in memory.
func fake(t testing.TB) regbucket.Options {
	t.Helper()
	backend := s3mem.New()
	if err := backend.CreateBucket("registry"); err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(gofakes3.New(backend).Server())
	t.Cleanup(srv.Close)
	return regbucket.Options{Endpoint: srv.URL, Bucket: "registry", Credentials: regbucket.Credentials{AccessKey: "key", SecretKey: "secret"}}
}

// fakeTLS is an object store in memory behind TLS, and the certificate of its
// authority.
func fakeTLS(t testing.TB) ([]byte, regbucket.Options) {
	t.Helper()
	backend := s3mem.New()
	if err := backend.CreateBucket("registry"); err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewTLSServer(gofakes3.New(backend).Server())
	t.Cleanup(srv.Close)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw})
	return ca, regbucket.Options{Endpoint: srv.URL, Bucket: "registry", Credentials: regbucket.Credentials{AccessKey: "key", SecretKey: "secret"}}
}

func open(t testing.TB, cfg regbucket.Options) *regbucket.Store {
	t.Helper()
	s, err := regbucket.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() }) // never fails
	return s
}

func TestDriver(t *testing.T) {
	cfg := fake(t)
	regtest.TestDriver(t, func(t *testing.T) regstore.Driver {
		cfg := cfg
		cfg.Prefix = fmt.Sprintf("test-%d", prefixes.Add(1))
		return open(t, cfg)
	})
}

func TestOpen(t *testing.T) {
	t.Parallel()
	cfg := fake(t)
	for want, change := range map[string]func(*regbucket.Options){
		"the bucket does not exist": func(c *regbucket.Options) { c.Bucket = "other" },
		"is not https://HOST":       func(c *regbucket.Options) { c.Endpoint = "s3.example.com" },
		"not available":             func(c *regbucket.Options) { c.Endpoint = "http://127.0.0.1:1" },
	} {
		cfg := cfg
		change(&cfg)
		if _, err := regbucket.Open(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), cfg.Bucket) {
			t.Errorf("got %v, want an error with %q", err, want)
		}
	}
}
