package regproxy_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/opencontainers/go-digest"
	"oras.land/oras-go/v2/registry/remote/auth"

	"github.com/krmcat/krmcat/registry"
	"github.com/krmcat/krmcat/registry/regdir"
	"github.com/krmcat/krmcat/registry/regmem"
	"github.com/krmcat/krmcat/registry/regproxy"
	"github.com/krmcat/krmcat/registry/regserver"
	"github.com/krmcat/krmcat/registry/regstore"
	"github.com/krmcat/krmcat/registry/regtest"
)

// guarded is a registry that wants credentials, and keeps blobs elsewhere.
type guarded struct {
	store    *regmem.Store
	host     string
	password string

	mu        sync.Mutex
	seen      map[string]bool // Authorization headers that came
	elsewhere map[string]bool // likewise, where blobs are kept
}

func newGuarded(t *testing.T) *guarded {
	t.Helper()
	g := &guarded{store: regmem.New(), password: "hush", seen: map[string]bool{}, elsewhere: map[string]bool{}}
	inner := regserver.New(g.store, nil)
	// The same host on another port, to which package http would send on
	// everything.
	blobs := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g.mu.Lock()
		g.elsewhere[r.Header.Get("Authorization")] = true
		g.mu.Unlock()
		inner.ServeHTTP(w, r)
	}))
	t.Cleanup(blobs.Close)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g.mu.Lock()
		g.seen[r.Header.Get("Authorization")] = true
		g.mu.Unlock()
		user, password, _ := r.BasicAuth()
		w.Header().Set("Set-Cookie", "session=upstream")
		switch {
		case user != "robot" || password != g.password:
			w.Header().Set("Www-Authenticate", `Basic realm="the other registry"`)
			w.WriteHeader(http.StatusUnauthorized)
		case r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/"):
			http.Redirect(w, r, blobs.URL+r.URL.Path, http.StatusTemporaryRedirect)
		default:
			inner.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(srv.Close)
	g.host = strings.TrimPrefix(srv.URL, "http://")
	return g
}

func (g *guarded) upstream() *regproxy.Upstream {
	return regproxy.NewUpstream(registry.NewClient(&registry.Options{
		HTTPClient: &http.Client{}, Credential: auth.StaticCredential(g.host, auth.Credential{Username: "robot", Password: "hush"}),
	}), g.host, "")
}

// The credentials for the other registry go to it and to nobody else: not to
// where it keeps its blobs, and not to clients, whose own credentials stay here.
func TestCredentialsStay(t *testing.T) {
	t.Parallel()
	for name, driver := range map[string]func(t *testing.T, up *regproxy.Upstream) regstore.Driver{
		"cache": func(t *testing.T, up *regproxy.Upstream) regstore.Driver {
			local, err := regdir.Open(t.TempDir(), nil)
			if err != nil {
				t.Fatal(err)
			}
			c := regproxy.NewCache(up, local, nil)
			t.Cleanup(func() { _ = c.Close() })
			return c
		},
		"backend": func(_ *testing.T, up *regproxy.Upstream) regstore.Driver {
			return regproxy.NewBackend(up, regmem.New())
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGuarded(t)
			art := regtest.NewArtifact("application/vnd.example", nil, []byte("layer"))
			regtest.Put(t.Context(), t, g.store, repo, art, "v1")
			srv := regtest.NewServerWith(t, driver(t, g.upstream()), nil)
			get := func(path string) (int, string) {
				req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, srv.URL+"/v2/"+repo+path, nil)
				if err != nil {
					t.Fatal(err)
				}
				req.SetBasicAuth("client", "own-secret")
				resp, err := srv.HTTP.Client().Do(req)
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = resp.Body.Close() }() // only read
				body, err := io.ReadAll(resp.Body)
				if err != nil {
					t.Fatal(err)
				}
				return resp.StatusCode, fmt.Sprint(resp.Header) + string(body)
			}
			layer := "/blobs/" + string(digest.FromString("layer"))
			paths := []string{"/manifests/v1", layer, "/tags/list", "/referrers/" + string(art.Descriptor.Digest)}
			check := func(want int) {
				t.Helper()
				for _, path := range paths {
					code, all := get(path)
					if code != want {
						t.Errorf("GET %s: %d, want %d: %s", path, code, want, all)
					}
					for _, secret := range []string{"hush", "robot", "session=", "the other registry", "aHVzaA"} {
						if strings.Contains(all, secret) {
							t.Errorf("GET %s: the client is told %q: %s", path, secret, all)
						}
					}
				}
			}
			check(http.StatusOK)
			// With credentials that are not good any more, that is nothing a
			// client could mend by logging in.
			g.password = "changed"
			paths = []string{"/manifests/v2", "/blobs/" + string(digest.FromString("other"))}
			check(http.StatusServiceUnavailable)
			g.mu.Lock()
			defer g.mu.Unlock()
			if len(g.elsewhere) != 1 || !g.elsewhere[""] {
				t.Errorf("where the blobs are, these credentials came: %v", g.elsewhere)
			}
			for h := range g.seen {
				if want := "Basic cm9ib3Q6aHVzaA=="; h != "" && h != want {
					t.Errorf("the other registry was sent %q, want %q", h, want)
				}
			}
		})
	}
}

// What is longer, shorter or other than its digest says is not passed on as a
// whole, whichever way it comes.
func TestUpstreamLies(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	layer := regtest.Random(7, 300_000)
	art := regtest.NewArtifact("application/vnd.example", nil, layer)
	for name, lie := range map[string]func([]byte) []byte{
		"longer":  func(b []byte) []byte { return append(bytes.Clone(b), '?') },
		"shorter": func(b []byte) []byte { return b[:len(b)-1] },
		"other":   func(b []byte) []byte { c := bytes.Clone(b); c[len(c)/2] ^= 1; return c },
		"nothing": func([]byte) []byte { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := regmem.New()
			regtest.Put(ctx, t, store, repo, art, "v1")
			inner := regserver.New(store, nil)
			up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Method != http.MethodGet {
					inner.ServeHTTP(w, r)
					return
				}
				rec := httptest.NewRecorder()
				inner.ServeHTTP(rec, r)
				for k, v := range rec.Header() {
					w.Header()[k] = v
				}
				w.Header().Del("Content-Length")
				w.WriteHeader(rec.Code)
				_, _ = w.Write(lie(rec.Body.Bytes())) // the client may hang up
			}))
			t.Cleanup(up.Close)
			upstream := func() *regproxy.Upstream {
				return regproxy.NewUpstream(client(), strings.TrimPrefix(up.URL, "http://"), "")
			}
			local, err := regdir.Open(t.TempDir(), nil)
			if err != nil {
				t.Fatal(err)
			}
			cache := regproxy.NewCache(upstream(), local, nil)
			t.Cleanup(func() { _ = cache.Close() })
			for driver, d := range map[string]regstore.Driver{"cache": cache, "backend": regproxy.NewBackend(upstream(), regmem.New())} {
				if _, b, err := d.Manifest(ctx, repo, "v1"); err == nil && !bytes.Equal(b, art.Manifest) {
					t.Errorf("%s: a manifest that is %s was believed", driver, name)
				}
				rc, _, err := d.OpenBlob(ctx, repo, digest.FromBytes(layer))
				if err != nil {
					continue
				}
				b, err := io.ReadAll(rc)
				_ = rc.Close() // only read
				if err == nil && !bytes.Equal(b, layer) {
					t.Errorf("%s: a blob that is %s was passed on", driver, name)
				}
			}
			if _, err := local.StatBlob(ctx, repo, digest.FromBytes(layer)); name != "longer" && err == nil {
				t.Error("the cache kept it")
			}
		})
	}
}
