package regbucket_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/content/memory"
	"oras.land/oras-go/v2/registry/remote"

	"github.com/krmcat/krmcat/internal/tooltest"
	"github.com/krmcat/krmcat/registry/regbucket"
	"github.com/krmcat/krmcat/registry/regserver"
	"github.com/krmcat/krmcat/registry/regstore"
	"github.com/krmcat/krmcat/registry/regtest"
)

// onEach runs a test on an object store in memory and on the real ones that
// the machine has.
func onEach(t *testing.T, f func(t *testing.T, cfg regbucket.Options)) {
	stores := map[string]func(testing.TB) regbucket.Options{
		"fake": fake,
		"minio": func(t testing.TB) regbucket.Options {
			return program(t, func(addr, dir string) *exec.Cmd {
				return exec.Command(tooltest.Path(t, "minio"), "server", "--quiet", "--address", addr, dir)
			})
		},
		"versitygw": func(t testing.TB) regbucket.Options {
			return program(t, func(addr, dir string) *exec.Cmd {
				return exec.Command(tooltest.Path(t, "versitygw"), "--access", "krmcat-test", "--secret", "krmcat-test-secret", "--port", addr, "--quiet", "posix", dir)
			})
		},
	}
	for name, start := range stores {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f(t, start(t))
		})
	}
}

// program starts an object store and makes a bucket in it.
func program(t testing.TB, command func(addr, dir string) *exec.Cmd) regbucket.Options {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	_ = l.Close() // for the program to take
	cmd := command(addr, t.TempDir())
	cmd.Env = append(os.Environ(), "MINIO_ROOT_USER=krmcat-test", "MINIO_ROOT_PASSWORD=krmcat-test-secret", "MINIO_BROWSER=off", "MINIO_UPDATE=off")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // dead already, perhaps
		_ = cmd.Wait()
	})
	cfg := regbucket.Options{Endpoint: "http://" + addr, Bucket: "registry", Credentials: regbucket.Credentials{AccessKey: "krmcat-test", SecretKey: "krmcat-test-secret"}}
	client, err := minio.New(addr, &minio.Options{Creds: credentials.NewStaticV4(cfg.Credentials.AccessKey, cfg.Credentials.SecretKey, ""), Region: "us-east-1", MaxRetries: 1})
	if err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(time.Minute)
	for {
		err := client.MakeBucket(t.Context(), cfg.Bucket, minio.MakeBucketOptions{})
		if err == nil {
			return cfg
		}
		if time.Now().After(deadline) {
			t.Fatalf("the store did not start: %v\n%s", err, &out)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func TestRealStores(t *testing.T) {
	onEach(t, func(t *testing.T, cfg regbucket.Options) {
		regtest.TestDriver(t, func(t *testing.T) regstore.Driver {
			cfg := cfg
			cfg.Prefix = fmt.Sprintf("test-%d", prefixes.Add(1))
			return open(t, cfg)
		})
	})
}

const repo = "publisher/set-labels"

func send(t testing.TB, method, url string, body io.Reader, contentType string) (int, []byte, http.Header) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", contentType)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, b, resp.Header
}

func pushBlob(t testing.TB, base string, b []byte) int {
	t.Helper()
	code, _, _ := send(t, http.MethodPost, base+"/v2/"+repo+"/blobs/uploads/?digest="+string(digest.FromBytes(b)), bytes.NewReader(b), "application/octet-stream")
	return code
}

func pushManifest(t testing.TB, base, ref string, a *regtest.Artifact) int {
	t.Helper()
	code, _, _ := send(t, http.MethodPut, base+"/v2/"+repo+"/manifests/"+ref, bytes.NewReader(a.Manifest), a.Descriptor.MediaType)
	return code
}

// Two servers over one bucket are one registry.
func TestReplicas(t *testing.T) {
	onEach(t, func(t *testing.T, cfg regbucket.Options) {
		a := regtest.NewServerWith(t, open(t, cfg), nil)
		b := regtest.NewServerWith(t, open(t, cfg), nil)
		servers := []string{a.URL, b.URL}

		// What one has acknowledged, the other has.
		for i := range 10 {
			art := regtest.NewArtifact("application/vnd.example", nil, fmt.Appendf(nil, "layer %d", i))
			one, other := servers[i%2], servers[(i+1)%2]
			for _, blob := range art.Blobs {
				if code := pushBlob(t, one, blob); code != http.StatusCreated {
					t.Fatalf("blob: %d", code)
				}
				if code, got, _ := send(t, http.MethodGet, other+"/v2/"+repo+"/blobs/"+string(digest.FromBytes(blob)), nil, ""); code != http.StatusOK || !bytes.Equal(got, blob) {
					t.Errorf("blob through the other server: %d", code)
				}
			}
			if code := pushManifest(t, one, "latest", art); code != http.StatusCreated {
				t.Fatalf("manifest: %d", code)
			}
			if code, got, _ := send(t, http.MethodGet, other+"/v2/"+repo+"/manifests/latest", nil, ""); code != http.StatusOK || !bytes.Equal(got, art.Manifest) {
				t.Errorf("manifest through the other server: %d", code)
			}
		}

		// An upload may go from one to the other and back.
		blob := regtest.Random(1, 300_000)
		_, _, h := send(t, http.MethodPost, a.URL+"/v2/"+repo+"/blobs/uploads/", nil, "")
		code, _, h := send(t, http.MethodPatch, b.URL+h.Get("Location"), bytes.NewReader(blob[:100_000]), "")
		if code != http.StatusAccepted {
			t.Fatalf("first chunk: %d", code)
		}
		code, _, h = send(t, http.MethodPatch, a.URL+h.Get("Location"), bytes.NewReader(blob[100_000:200_000]), "")
		if code != http.StatusAccepted {
			t.Fatalf("second chunk: %d", code)
		}
		code, _, _ = send(t, http.MethodPut, b.URL+h.Get("Location")+"?digest="+url.QueryEscape(string(digest.FromBytes(blob))), bytes.NewReader(blob[200_000:]), "")
		if code != http.StatusCreated {
			t.Fatalf("last chunk: %d", code)
		}
		if code, got, _ := send(t, http.MethodGet, a.URL+"/v2/"+repo+"/blobs/"+string(digest.FromBytes(blob)), nil, ""); code != http.StatusOK || !bytes.Equal(got, blob) {
			t.Errorf("blob that came in chunks: %d", code)
		}

		// Of those who push one release at the same time, one wins.
		for round := range 5 {
			tag := fmt.Sprintf("v1.%d.0", round)
			codes := make([]int, 8)
			arts := make([]*regtest.Artifact, len(codes))
			for i := range arts {
				layer := fmt.Appendf(nil, "round %d candidate %d", round, i)
				arts[i] = regtest.NewArtifact("application/vnd.example", nil, layer)
				pushBlob(t, servers[i%2], layer)
			}
			var wg sync.WaitGroup
			for i := range codes {
				wg.Go(func() { codes[i] = pushManifest(t, servers[i%2], tag, arts[i]) })
			}
			wg.Wait()
			_, got, _ := send(t, http.MethodGet, servers[round%2]+"/v2/"+repo+"/manifests/"+tag, nil, "")
			won := 0
			for i, code := range codes {
				switch code {
				case http.StatusCreated:
					won++
					if !bytes.Equal(got, arts[i].Manifest) {
						t.Errorf("%s: a push was told that it won, but the release is another", tag)
					}
				case http.StatusForbidden:
				default:
					t.Errorf("%s: %d", tag, code)
				}
			}
			if won != 1 {
				t.Errorf("%s: %d pushes won, want 1", tag, won)
			}
		}

		// Signatures through both are all listed by both.
		subject := regtest.NewArtifact("application/vnd.example", nil)
		var wg sync.WaitGroup
		for i := range 40 {
			wg.Go(func() {
				layer := fmt.Appendf(nil, "signature %d", i)
				sig := regtest.NewArtifact("application/vnd.example.signature", &subject.Descriptor, layer)
				if pushBlob(t, servers[i%2], layer) != http.StatusCreated || pushManifest(t, servers[i%2], string(sig.Descriptor.Digest), sig) != http.StatusCreated {
					t.Error("signature was not taken")
				}
			})
		}
		wg.Wait()
		for _, s := range servers {
			_, got, _ := send(t, http.MethodGet, s+"/v2/"+repo+"/referrers/"+string(subject.Descriptor.Digest), nil, "")
			if n := bytes.Count(got, []byte(`"application/vnd.example.signature"`)) / 2; n != 40 {
				t.Errorf("%d signatures are listed, want 40", n)
			}
		}
	})
}

// proxy stands between a server and its object store.
type proxy struct {
	calls atomic.Int64
	mode  atomic.Pointer[func(http.ResponseWriter, *http.Request) bool] // true has answered
	after atomic.Pointer[func(*http.Request) bool]                      // true loses the answer
	cut   atomic.Pointer[func(*http.Request) int64]                     // how much of the answer gets through; negative is all
}

func newProxy(t testing.TB, cfg regbucket.Options) (*proxy, regbucket.Options) {
	t.Helper()
	target, err := url.Parse(cfg.Endpoint)
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{}
	rp := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(target)
		r.Out.Host = r.In.Host // which is signed
	}}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.calls.Add(1)
		if f := p.mode.Load(); f != nil && (*f)(w, r) {
			return
		}
		if f := p.cut.Load(); f != nil {
			if n := (*f)(r); n >= 0 {
				w = &cutter{w, n}
			}
		}
		if f := p.after.Load(); f != nil && (*f)(r) {
			rp.ServeHTTP(httptest.NewRecorder(), r)
			panic(http.ErrAbortHandler)
		}
		rp.ServeHTTP(w, r)
	})}
	go func() { _ = srv.Serve(l) }() // until the test closes it
	t.Cleanup(func() { _ = srv.Close() })
	cfg.Endpoint = "http://" + l.Addr().String()
	return p, cfg
}

// cutter breaks a connection after some bytes.
type cutter struct {
	http.ResponseWriter
	left int64
}

func (c *cutter) Write(p []byte) (int, error) {
	n, err := c.ResponseWriter.Write(p[:min(int64(len(p)), c.left)])
	if c.left -= int64(n); c.left == 0 {
		panic(http.ErrAbortHandler)
	}
	return n, err
}

// A store that fails, or is gone, or cuts answers short is a 503 and no more:
// when it is back, everything acknowledged is there, and pushes succeed.
func TestStoreFails(t *testing.T) {
	onEach(t, func(t *testing.T, cfg regbucket.Options) {
		p, cfg := newProxy(t, cfg)
		cfg.CacheTTL, cfg.Attempts = -1, 1
		srv := regtest.NewServerWith(t, open(t, cfg), nil)
		layer := regtest.Random(2, 400_000)
		art := regtest.NewArtifact("application/vnd.example", nil, layer)
		for _, b := range art.Blobs {
			pushBlob(t, srv.URL, b)
		}
		if code := pushManifest(t, srv.URL, "v1.0.0", art); code != http.StatusCreated {
			t.Fatalf("manifest: %d", code)
		}
		next := regtest.NewArtifact("application/vnd.example", nil, layer, []byte("next"))
		for name, f := range map[string]func(http.ResponseWriter, *http.Request) bool{
			"fails": func(w http.ResponseWriter, _ *http.Request) bool {
				w.WriteHeader(http.StatusServiceUnavailable)
				return true
			},
			"is gone": func(http.ResponseWriter, *http.Request) bool { panic(http.ErrAbortHandler) },
			"fails to write": func(w http.ResponseWriter, r *http.Request) bool {
				if r.Method == http.MethodPut {
					panic(http.ErrAbortHandler)
				}
				return false
			},
		} {
			p.mode.Store(&f)
			for what, got := range map[string]int{
				"blob":        pushBlob(t, srv.URL, []byte("next")),
				"large blob":  pushBlob(t, srv.URL, regtest.Random(3, 600_000)),
				"manifest":    pushManifest(t, srv.URL, "v1.0.1", art),
				"same again":  pushManifest(t, srv.URL, "v1.0.0", art),
				"other again": pushManifest(t, srv.URL, "latest", art),
			} {
				if got != http.StatusServiceUnavailable {
					t.Errorf("store %s: %s: %d, want 503", name, what, got)
				}
			}
			if name != "fails to write" {
				if code, body, h := send(t, http.MethodGet, srv.URL+"/v2/"+repo+"/manifests/v1.0.0", nil, ""); code != http.StatusServiceUnavailable || h.Get("Retry-After") == "" || !bytes.Contains(body, []byte("UNAVAILABLE")) {
					t.Errorf("store %s: GET: %d %s", name, code, body)
				}
			}
			p.mode.Store(nil)
			if code, got, _ := send(t, http.MethodGet, srv.URL+"/v2/"+repo+"/manifests/v1.0.0", nil, ""); code != http.StatusOK || !bytes.Equal(got, art.Manifest) {
				t.Errorf("after the store %s: manifest: %d", name, code)
			}
			if code, got, _ := send(t, http.MethodGet, srv.URL+"/v2/"+repo+"/blobs/"+string(digest.FromBytes(layer)), nil, ""); code != http.StatusOK || !bytes.Equal(got, layer) {
				t.Errorf("after the store %s: blob: %d", name, code)
			}
		}
		if pushBlob(t, srv.URL, []byte("next")) != http.StatusCreated || pushManifest(t, srv.URL, "v1.1.0", next) != http.StatusCreated {
			t.Error("a push after the store was back failed")
		}
		// A store that answers slowly only takes longer.
		slow := func(http.ResponseWriter, *http.Request) bool { time.Sleep(20 * time.Millisecond); return false }
		p.mode.Store(&slow)
		if pushManifest(t, srv.URL, "v1.2.0", next) != http.StatusCreated {
			t.Error("a push to a slow store failed")
		}
	})
}

// How many calls a push and a pull make. They cost money, and time.
func TestCalls(t *testing.T) {
	t.Parallel()
	p, cfg := newProxy(t, fake(t))
	srv := regtest.NewServerWith(t, open(t, cfg), &regserver.Options{})
	ctx := t.Context()
	const n = 20
	p.calls.Store(0)
	var descs []ocispec.Descriptor
	target := func(i int) *remote.Repository {
		r, err := remote.NewRepository(fmt.Sprintf("%s/calls/fn-%d", srv.Host, i%2))
		if err != nil {
			t.Fatal(err)
		}
		r.PlainHTTP = true
		return r
	}
	for i := range n {
		store := memory.New()
		var layers []ocispec.Descriptor
		for l := range 3 {
			d, err := oras.PushBytes(ctx, store, "application/vnd.example", regtest.Random(uint64(i*10+l), 20_000))
			if err != nil {
				t.Fatal(err)
			}
			layers = append(layers, d)
		}
		desc, err := oras.PackManifest(ctx, store, oras.PackManifestVersion1_1, "application/vnd.example", oras.PackManifestOptions{Layers: layers})
		if err != nil {
			t.Fatal(err)
		}
		tag := fmt.Sprintf("v1.%d.0", i)
		if err := store.Tag(ctx, desc, tag); err != nil {
			t.Fatal(err)
		}
		if _, err := oras.Copy(ctx, store, tag, target(i), tag, oras.DefaultCopyOptions); err != nil {
			t.Fatal(err)
		}
		descs = append(descs, desc)
	}
	push := float64(p.calls.Swap(0)) / n
	for i := range descs {
		if _, err := oras.Copy(ctx, target(i), fmt.Sprintf("v1.%d.0", i), memory.New(), "", oras.DefaultCopyOptions); err != nil {
			t.Fatal(err)
		}
	}
	pull := float64(p.calls.Load()) / n
	t.Logf("%.1f calls to push an artifact of three layers, %.1f to pull it", push, pull)
	if push > 15 || pull > 8 {
		t.Errorf("%.1f calls to push an artifact, %.1f to pull it; want at most 15 and 8", push, pull)
	}
}

// A client that hangs up in the middle of a blob leaves nothing under the
// blob's name.
func TestBrokenBody(t *testing.T) {
	onEach(t, func(t *testing.T, cfg regbucket.Options) {
		s := open(t, cfg)
		broken := errors.New("connection reset")
		for _, size := range []int{1000, 1 << 20} {
			b := regtest.Random(uint64(size), size)
			for name, body := range map[string]io.Reader{
				"broken": io.MultiReader(bytes.NewReader(b[:size-1]), &failing{broken}),
				"wrong":  io.MultiReader(bytes.NewReader(b[:size-1]), strings.NewReader("?")),
			} {
				for _, known := range []int64{int64(size), -1} {
					d := digest.FromBytes(b)
					err := s.FinishUpload(context.Background(), repo, "", regstore.Chunk{Body: body, Offset: -1, Size: known}, d)
					if name == "broken" && !errors.Is(err, broken) && known >= 0 || err == nil {
						t.Errorf("%s body of %d: got %v", name, size, err)
					}
					if err := s.MountBlob(context.Background(), "other/repository", "", d); err == nil {
						t.Errorf("%s body of %d: the blob is there", name, size)
					}
				}
			}
		}
	})
}

type failing struct{ err error }

func (f *failing) Read([]byte) (int, error) { return 0, f.err }
