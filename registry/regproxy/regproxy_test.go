package regproxy_test

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/krmcat/krmcat/registry"
	"github.com/krmcat/krmcat/registry/regdir"
	"github.com/krmcat/krmcat/registry/regmem"
	"github.com/krmcat/krmcat/registry/regproxy"
	"github.com/krmcat/krmcat/registry/regserver"
	"github.com/krmcat/krmcat/registry/regstore"
	"github.com/krmcat/krmcat/registry/regtest"
)

// client gives up at once, for tests of registries that fail.
func client() *registry.Client {
	return registry.NewClient(&registry.Options{HTTPClient: &http.Client{}})
}

var mutable = &regserver.Options{ImmutableTags: func(string, string) bool { return false }}

func TestBackend(t *testing.T) {
	regtest.TestDriver(t, func(t *testing.T) regstore.Driver {
		up := regtest.NewServerWith(t, regmem.New(), mutable)
		return regproxy.NewBackend(regproxy.NewUpstream(client(), up.Host, ""), regmem.New())
	})
}

// With a prefix, only the repositories below it are there.
func TestBackendPrefix(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	store := regmem.New()
	up := regtest.NewServerWith(t, store, mutable)
	b := regproxy.NewBackend(regproxy.NewUpstream(client(), up.Host, "team/krm"), regmem.New())
	art := regtest.NewArtifact("application/vnd.example", nil)
	regtest.Put(ctx, t, b, "set-labels", art, "v1")
	regtest.Put(ctx, t, store, "other", art, "v1")
	if _, err := store.Resolve(ctx, "team/krm/set-labels", "v1"); err != nil {
		t.Error(err)
	}
	for r, err := range b.Repositories(ctx, "") {
		if r != "set-labels" || err != nil {
			t.Errorf("repository %q, %v", r, err)
		}
	}
}

func TestBackendUnavailable(t *testing.T) {
	t.Parallel()
	up := regtest.NewServerWith(t, regmem.New(), mutable)
	b := regproxy.NewBackend(regproxy.NewUpstream(client(), up.Host, ""), regmem.New())
	srv := regtest.NewServerWith(t, b, nil)
	up.HTTP.Close()
	for _, path := range []string{"/manifests/v1", "/tags/list", "/blobs/" + string(digest.FromString("x")), "/referrers/" + string(digest.FromString("x"))} {
		resp, err := srv.HTTP.Client().Get(srv.URL + "/v2/a/b" + path)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusServiceUnavailable {
			t.Errorf("GET %s: %s, want 503", path, resp.Status)
		}
	}
}

const repo = "publisher/set-labels"

// upstream is a registry that counts requests, and can be broken.
type upstream struct {
	store  *regmem.Store
	host   string
	calls  atomic.Int64
	broken atomic.Bool
	lie    atomic.Bool // sends other content
}

func newUpstream(t *testing.T) *upstream {
	t.Helper()
	u := &upstream{store: regmem.New()}
	srv := regtest.NewServerWith(t, u.store, nil)
	target, err := url.Parse(srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	rp := httputil.NewSingleHostReverseProxy(target)
	rp.ModifyResponse = func(r *http.Response) error {
		if u.lie.Load() && r.Request.Method == http.MethodGet && r.StatusCode == http.StatusOK {
			b, err := io.ReadAll(r.Body)
			if err != nil {
				return err
			}
			b[0] ^= 1
			r.Body = io.NopCloser(bytes.NewReader(b))
		}
		return nil
	}
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		u.calls.Add(1)
		if u.broken.Load() {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		rp.ServeHTTP(w, r)
	}))
	t.Cleanup(h.Close)
	u.host = strings.TrimPrefix(h.URL, "http://")
	return u
}

func newCache(t *testing.T, u *upstream, ttl time.Duration) *regproxy.Cache {
	t.Helper()
	local, err := regdir.Open(t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	c := regproxy.NewCache(regproxy.NewUpstream(client(), u.host, ""), local, &regproxy.CacheOptions{TagTTL: ttl})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// pull reads an artifact through a server, as a client does.
func pull(t *testing.T, srv *regtest.Server, ref string, art *regtest.Artifact) {
	t.Helper()
	get := func(path string, want []byte) {
		t.Helper()
		resp, err := srv.HTTP.Client().Get(srv.URL + "/v2/" + repo + path)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		if b, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != http.StatusOK || !bytes.Equal(b, want) {
			t.Errorf("GET %s: %s, %d bytes, %v", path, resp.Status, len(b), err)
		}
	}
	get("/manifests/"+ref, art.Manifest)
	for _, b := range art.Blobs {
		get("/blobs/"+string(digest.FromBytes(b)), b)
	}
}

func TestCache(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	u := newUpstream(t)
	layer := regtest.Random(1, 300_000)
	art := regtest.NewArtifact("application/vnd.example", nil, layer)
	regtest.Put(ctx, t, u.store, repo, art, "v1")
	sig := regtest.NewArtifact("application/vnd.example.signature", &art.Descriptor)
	regtest.Put(ctx, t, u.store, repo, sig)
	c := newCache(t, u, time.Hour)
	srv := regtest.NewServerWith(t, c, nil)

	pull(t, srv, "v1", art)
	before := u.calls.Load()
	pull(t, srv, "v1", art)
	pull(t, srv, string(art.Descriptor.Digest), art)
	if n := u.calls.Load() - before; n != 0 {
		t.Errorf("pulling again made %d requests to the upstream", n)
	}

	// With the upstream gone, what was pulled is served, and the rest is a 503.
	u.broken.Store(true)
	pull(t, srv, "v1", art)
	for tag, err := range c.Tags(ctx, repo, "") {
		if tag != "v1" || err != nil {
			t.Errorf("tags: %q, %v", tag, err)
		}
	}
	if _, err := c.Resolve(ctx, repo, "v2"); err == nil {
		t.Error("an unknown tag: no error")
	}
	if _, err := c.StatBlob(ctx, repo, digest.FromString("unknown")); !errors.Is(err, regstore.ErrUnavailable) {
		t.Errorf("an unknown blob: got %v, want ErrUnavailable", err)
	}
	u.broken.Store(false)
	n := 0
	for range c.Referrers(ctx, repo, art.Descriptor.Digest, "") {
		n++
	}
	if n != 1 {
		t.Errorf("%d referrers, want 1", n)
	}
	if resp, err := http.Post(srv.URL+"/v2/"+repo+"/blobs/uploads/", "", nil); err != nil || resp.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("a push to a cache: %v, %v", resp, err)
	} else {
		_ = resp.Body.Close()
	}
}

// A tag that moves upstream moves here; one that is gone is gone.
func TestCacheFollowsTags(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	u := newUpstream(t)
	one := regtest.NewArtifact("application/vnd.example", nil, []byte("one"))
	two := regtest.NewArtifact("application/vnd.example", nil, []byte("two"))
	regtest.Put(ctx, t, u.store, repo, one, "latest")
	c := newCache(t, u, time.Nanosecond)
	srv := regtest.NewServerWith(t, c, nil)
	pull(t, srv, "latest", one)
	regtest.Put(ctx, t, u.store, repo, two, "latest")
	pull(t, srv, "latest", two)
	u.broken.Store(true)
	pull(t, srv, "latest", two)
	u.broken.Store(false)
	if err := u.store.DeleteTag(ctx, repo, "latest"); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Resolve(ctx, repo, "latest"); err == nil {
		t.Error("a tag that is gone: no error")
	}
}

// An upstream that sends something else is not believed, and nothing of it is
// kept.
func TestCacheVerifies(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	u := newUpstream(t)
	art := regtest.NewArtifact("application/vnd.example", nil, []byte("layer"))
	regtest.Put(ctx, t, u.store, repo, art, "v1")
	c := newCache(t, u, time.Hour)
	srv := regtest.NewServerWith(t, c, nil)
	u.lie.Store(true)
	if _, _, err := c.Manifest(ctx, repo, "v1"); err == nil {
		t.Error("a changed manifest was believed")
	}
	if _, _, err := c.OpenBlob(ctx, repo, digest.FromString("layer")); err == nil {
		t.Error("a changed blob was believed")
	}
	u.lie.Store(false)
	pull(t, srv, "v1", art)
}
