package regproxy_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/krmcat/krmcat/registry"
	"github.com/krmcat/krmcat/registry/regmem"
	"github.com/krmcat/krmcat/registry/regproxy"
	"github.com/krmcat/krmcat/registry/regserver"
	"github.com/krmcat/krmcat/registry/regtest"
)

// behind starts a registry whose answers another handler may change, and a
// server that keeps everything in it.
func behind(t *testing.T, change func(http.Handler) http.Handler) (*regproxy.Backend, *regtest.Server) {
	t.Helper()
	up := httptest.NewServer(change(regserver.New(regmem.New(), mutable)))
	t.Cleanup(up.Close)
	b := regproxy.NewBackend(regproxy.NewUpstream(client(), strings.TrimPrefix(up.URL, "http://"), ""), regmem.New())
	return b, regtest.NewServerWith(t, b, nil)
}

// Some registries list all tags whatever they are asked for, or in another
// order.
func TestTagsOutOfOrder(t *testing.T) {
	t.Parallel()
	for name, list := range map[string][]string{
		"all, whatever is asked": {"A", "b", "c", "d"},
		"not in order":           {"c", "A", "d", "b"},
		"upper and lower case":   {"b", "A", "c", "d", "b"},
	} {
		b, _ := behind(t, func(http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				_ = json.NewEncoder(w).Encode(map[string]any{"name": repo, "tags": list})
			})
		})
		for after, want := range map[string][]string{"": {"A", "b", "c", "d"}, "b": {"c", "d"}, "bb": {"c", "d"}, "d": nil} {
			var got []string
			for tag, err := range b.Tags(t.Context(), repo, after) {
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, tag)
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s: tags after %q: got %v, want %v", name, after, got, want)
			}
		}
		for tag := range b.Tags(t.Context(), repo, "") {
			if tag != "A" {
				t.Errorf("%s: the first tag is %s", name, tag)
			}
			break // and that is no error
		}
	}
}

// A registry may say the digest of a blob by the algorithm that it likes, and
// may mount a blob under that one only.
func TestOtherDigest(t *testing.T) {
	t.Parallel()
	content := []byte("content")
	other, usual := digest.SHA512.FromBytes(content), digest.FromBytes(content)
	mounted := false
	_, srv := behind(t, func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch {
			case r.Method == http.MethodPost && r.URL.Query().Get("mount") != "":
				mounted = true
				w.Header().Set("Location", "/v2/"+repo+"/blobs/"+string(usual))
				w.WriteHeader(http.StatusCreated)
			default:
				h.ServeHTTP(header{w, func(h http.Header) {
					if h.Get("Docker-Content-Digest") == string(other) {
						h.Set("Docker-Content-Digest", string(usual))
					}
				}}, r)
			}
		})
	})
	do := func(method, path string, body []byte) *http.Response {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, srv.URL+path, bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := srv.HTTP.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = resp.Body.Close() })
		return resp
	}
	if resp := do(http.MethodPost, "/v2/from/here/blobs/uploads/?digest="+string(other), content); resp.StatusCode != http.StatusCreated {
		t.Fatalf("pushing: %s", resp.Status)
	}
	resp := do(http.MethodGet, "/v2/from/here/blobs/"+string(other), nil)
	if b, err := io.ReadAll(resp.Body); err != nil || !bytes.Equal(b, content) || resp.Header.Get("Docker-Content-Digest") != string(other) {
		t.Errorf("pulling: got %q, %v, %v", b, err, resp.Header)
	}
	resp = do(http.MethodPost, "/v2/"+repo+"/blobs/uploads/?from=from/here&mount="+string(other), nil)
	if resp.StatusCode != http.StatusAccepted || !mounted {
		t.Errorf("mounting what is not there afterwards: got %s, want 202", resp.Status)
	}
}

type header struct {
	http.ResponseWriter
	change func(http.Header)
}

func (h header) WriteHeader(status int) {
	h.change(h.Header())
	h.ResponseWriter.WriteHeader(status)
}

func (h header) Write(p []byte) (int, error) {
	h.change(h.Header())
	return h.ResponseWriter.Write(p)
}

// What the other registry has against the content, the one who pushes it
// learns; what it cannot do is no failure of the server.
func TestUpstreamRefuses(t *testing.T) {
	t.Parallel()
	b, srv := behind(t, func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch {
			case r.Method == http.MethodPut && strings.Contains(r.URL.Path, "/manifests/"):
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(http.StatusBadRequest)
				_, _ = io.WriteString(w, `{"errors":[{"code":"MANIFEST_INVALID","message":"no cats here","detail":{"line":1}}]}`)
			case r.Method == http.MethodDelete:
				w.WriteHeader(http.StatusMethodNotAllowed)
			default:
				h.ServeHTTP(w, r)
			}
		})
	})
	art := regtest.NewArtifact("application/vnd.example", nil)
	regtest.PutBlob(t.Context(), t, b, repo, []byte("{}"))
	check := func(method, path string, body []byte, status int, want ...string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, srv.URL+"/v2/"+repo+path, bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", art.Descriptor.MediaType)
		resp, err := srv.HTTP.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		got, _ := io.ReadAll(resp.Body)
		if resp.StatusCode != status {
			t.Errorf("%s %s: got %s %s, want %d", method, path, resp.Status, got, status)
		}
		for _, s := range want {
			if !strings.Contains(string(got), s) {
				t.Errorf("%s %s: got %s, want %s in it", method, path, got, s)
			}
		}
	}
	check(http.MethodPut, "/manifests/v1", art.Manifest, http.StatusBadRequest, "MANIFEST_INVALID", "no cats here", `"line":1`)
	check(http.MethodDelete, "/manifests/latest", nil, http.StatusNotFound)
	if err := b.DeleteTag(t.Context(), repo, "latest"); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("DeleteTag: got %v, want ErrUnsupported", err)
	}
	var refused *registry.RefusedError
	if err := b.PutManifest(t.Context(), repo, art.Parse(t), nil); !errors.As(err, &refused) {
		t.Errorf("PutManifest: got %v, want a RefusedError", err)
	}
}
