package source

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/opencontainers/go-digest"
)

func TestHTTPS(t *testing.T) {
	t.Parallel()
	const text = "a: b\n"
	mux := http.NewServeMux()
	mux.HandleFunc("/c.yaml", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" || r.Header.Get("Cookie") != "" {
			t.Error("the request is not anonymous")
		}
		w.Header().Set("Content-Type", "application/yaml; charset=utf-8")
		fmt.Fprint(w, text)
	})
	mux.HandleFunc("/to/{n}", func(w http.ResponseWriter, r *http.Request) {
		n := len(r.PathValue("n"))
		if n == 1 {
			http.Redirect(w, r, "/c.yaml", http.StatusFound)
			return
		}
		http.Redirect(w, r, "/to/"+strings.Repeat("x", n-1), http.StatusFound)
	})
	mux.HandleFunc("/plain", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://example.com/c.yaml?X-Signature=hunter2", http.StatusFound)
	})
	mux.HandleFunc("/login", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		fmt.Fprint(w, "<html>")
	})
	mux.HandleFunc("/problem", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w, `{"title":"Not Found","detail":"no function \u001b[31mset-x\u202e here"}`)
	})
	mux.HandleFunc("/status/{code}", func(w http.ResponseWriter, r *http.Request) {
		var code int
		fmt.Sscan(r.PathValue("code"), &code)
		http.Error(w, "because", code)
	})
	mux.HandleFunc("/cut", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "100")
		fmt.Fprint(w, text)
	})
	mux.HandleFunc("/endless", func(w http.ResponseWriter, r *http.Request) {
		for {
			if _, err := io.WriteString(w, strings.Repeat("x", 1000)); err != nil {
				return
			}
		}
	})
	srv := httptest.NewTLSServer(mux)
	t.Cleanup(srv.Close)
	src := &HTTPS{Client: srv.Client(), MaxBytes: 1000}

	got, c, err := fetch(t, src, location(t, srv.URL+"/c.yaml"))
	if err != nil || got != text || c.MediaType != "application/yaml" || c.Name != "c.yaml" {
		t.Fatalf("got %q, %+v, %v", got, c, err)
	}
	if want := srv.URL + "/c.yaml#" + digest.FromString(text).String(); c.Location.String() != want {
		t.Errorf("location %s, want %s", c.Location, want)
	}
	if _, _, err := fetch(t, src, c.Location); err != nil {
		t.Errorf("by digest: %v", err)
	}
	if _, _, err := fetch(t, src, location(t, srv.URL+"/to/xxxxx")); err != nil {
		t.Errorf("five redirects: %v", err)
	}
	for _, tt := range []struct {
		path string
		is   error
		text string
	}{
		{"/c.yaml#sha256:" + strings.Repeat("a", 64), ErrIntegrity, digest.FromString(text).String()},
		{"/to/xxxxxx", nil, "more than 5 redirects"},
		{"/plain", nil, "redirected from https"},
		{"/login", nil, "web page (text/html)"},
		{"/problem", fs.ErrNotExist, "404 Not Found (no function [31mset-x here)"},
		{"/status/404", fs.ErrNotExist, "because"},
		{"/status/410", fs.ErrNotExist, ""},
		{"/status/401", ErrDenied, "must be public"},
		{"/status/403", ErrDenied, ""},
		{"/status/429", ErrUnavailable, ""},
		{"/status/503", ErrUnavailable, "503"},
		{"/status/418", nil, "418"},
		{"/cut", ErrUnavailable, "unexpected EOF"},
		{"/endless", ErrTooLarge, "more than 1000 bytes"},
	} {
		_, _, err := fetch(t, src, location(t, srv.URL+tt.path))
		wantError(t, tt.path, err, tt.is, tt.text)
		if err != nil && strings.ContainsAny(err.Error(), "\x1b\u202e") || err != nil && strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: the error repeats what it should not: %q", tt.path, err)
		}
	}

	// A certificate that nobody vouches for.
	_, _, err = fetch(t, &HTTPS{}, location(t, srv.URL+"/c.yaml"))
	wantError(t, "unknown authority", err, nil, "certificate")

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = src.Fetch(ctx, location(t, srv.URL+"/c.yaml"))
	wantError(t, "cancelled", err, context.Canceled, "")
}

func TestHTTPSUnavailable(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	_, _, err = fetch(t, &HTTPS{}, location(t, "http://"+addr+"/c.yaml"))
	wantError(t, "nobody listens", err, ErrUnavailable, "refused")
}

func TestPlainHTTP(t *testing.T) {
	t.Parallel()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, "x")
	}))
	t.Cleanup(srv.Close)
	if _, _, err := fetch(t, &HTTPS{}, location(t, srv.URL+"/c.yaml")); err != nil {
		t.Errorf("http to this machine: %v", err)
	}
	_, _, err := fetch(t, &HTTPS{}, location(t, "http://catalog.invalid/c.yaml"))
	wantError(t, "http to another machine", err, nil, "http is not encrypted")
	// Allowed, the request is made, here through a proxy.
	client := srv.Client()
	client.Transport = roundTripper(func(r *http.Request) (*http.Response, error) {
		r = r.Clone(r.Context())
		r.URL.Host = strings.TrimPrefix(srv.URL, "http://")
		return http.DefaultTransport.RoundTrip(r)
	})
	if _, _, err := fetch(t, &HTTPS{Client: client, AllowHTTP: true}, location(t, "http://catalog.invalid/c.yaml")); err != nil {
		t.Errorf("http to another machine, allowed: %v", err)
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestHTTPSCache(t *testing.T) {
	t.Parallel()
	var full, unchanged atomic.Int32
	text := "one"
	store := ""
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		etag := `"` + digest.FromString(text).Encoded() + `"`
		w.Header().Set("ETag", etag)
		w.Header().Set("Cache-Control", store)
		if r.Header.Get("If-None-Match") == etag {
			unchanged.Add(1)
			w.WriteHeader(http.StatusNotModified)
			return
		}
		full.Add(1)
		fmt.Fprint(w, text)
	}))
	t.Cleanup(srv.Close)
	src := &HTTPS{Cache: &Cache{Dir: t.TempDir()}}
	loc := location(t, srv.URL+"/c.yaml")
	check := func(want string, wantFull, wantUnchanged int32) {
		t.Helper()
		got, _, err := fetch(t, src, loc)
		if err != nil || got != want || full.Load() != wantFull || unchanged.Load() != wantUnchanged {
			t.Errorf("got %q, %v, with %d answers in full and %d unchanged; want %q, %d and %d", got, err, full.Load(), unchanged.Load(), want, wantFull, wantUnchanged)
		}
	}
	check("one", 1, 0)
	check("one", 1, 1)
	text = "two"
	check("two", 2, 1)
	check("two", 2, 2)
	// Another digest than the kept content has is an error, not a hit.
	pinned := loc
	pinned.Digest = digest.FromString("one")
	if _, _, err := fetch(t, src, pinned); !errors.Is(err, ErrIntegrity) {
		t.Errorf("pinned to the old content: %v", err)
	}
	store = "no-store"
	text = "three"
	check("three", 3, 3)
	check("three", 4, 3)
}
