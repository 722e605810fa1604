package regbucket_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/krmcat/krmcat/registry/regbucket"
	"github.com/krmcat/krmcat/registry/regstore"
	"github.com/krmcat/krmcat/registry/regtest"
)

// loseAnswers carries out requests of a method and then breaks the
// connection, once for each object.
func loseAnswers(p *proxy, method string) {
	var seen sync.Map
	p.after.Store(new(func(r *http.Request) bool {
		_, known := seen.LoadOrStore(r.URL.Path+"?"+r.URL.Query().Get("partNumber"), true)
		return r.Method == method && !known
	}))
}

// A storage that does what it is asked, and whose answer gets lost, is asked
// again. The second answer to a conditional write is then a refusal, which must
// not be taken for another one's success.
func TestLostAnswers(t *testing.T) {
	t.Parallel()
	for _, method := range []string{http.MethodPut, http.MethodPost, http.MethodDelete, http.MethodGet, http.MethodHead} {
		t.Run(method, func(t *testing.T) {
			t.Parallel()
			testLostAnswers(t, method)
		})
	}
}

func testLostAnswers(t *testing.T, method string) {
	p, cfg := newProxy(t, fake(t))
	s := open(t, cfg)
	loseAnswers(p, method)
	a := regtest.NewArtifact("application/vnd.example", nil, []byte(method), regtest.Random(1, 9<<20))
	if err := regtest.Push(t.Context(), s, repo, a); err != nil {
		t.Fatalf("push: %v", err)
	}
	if err := s.PutManifest(t.Context(), repo, a.Parse(t), []regstore.Tag{{Name: "v1.0.0", Immutable: true}}); err != nil {
		t.Fatalf("release: %v", err)
	}
	id, err := s.StartUpload(t.Context(), repo)
	if err != nil {
		t.Fatal(err)
	}
	b := regtest.Random(2, 9<<20)
	if id, _, err = s.AppendUpload(t.Context(), repo, id, regstore.Chunk{Body: bytes.NewReader(b), Offset: -1, Size: -1}); err != nil {
		t.Fatalf("chunk: %v", err)
	}
	if err := s.FinishUpload(t.Context(), repo, id, regstore.Chunk{Offset: -1}, digest.FromBytes(b)); err != nil {
		t.Fatalf("end of upload: %v", err)
	}
	p.after.Store(nil)
	fresh := open(t, cfg)
	if _, got, err := fresh.Manifest(t.Context(), repo, "v1.0.0"); err != nil || !bytes.Equal(got, a.Manifest) {
		t.Errorf("Manifest: %v", err)
	}
	for _, want := range [][]byte{b, a.Blobs[1], a.Blobs[2]} {
		rc, err := fresh.FetchBlob(t.Context(), repo, digest.FromBytes(want))
		if err != nil {
			t.Fatalf("FetchBlob: %v", err)
		}
		if got, err := io.ReadAll(rc); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%d bytes of %d came back, %v", len(got), len(want), err)
		}
		_ = rc.Close() // only read
	}
}

// An answer that breaks off is gone on with where it broke.
func TestBrokenAnswers(t *testing.T) {
	t.Parallel()
	p, cfg := newProxy(t, fake(t))
	s := open(t, cfg)
	b := regtest.Random(3, 3<<20)
	d := regtest.PutBlob(t.Context(), t, s, repo, b)
	var broken atomic.Int64
	p.cut.Store(new(func(r *http.Request) int64 {
		if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "_blobs/") && broken.Add(1) <= 5 {
			return 500_000
		}
		return -1
	}))
	rc, err := s.FetchBlob(t.Context(), repo, d)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = rc.Close() }()
	if got, err := io.ReadAll(rc); err != nil || !bytes.Equal(got, b) {
		t.Errorf("%d bytes of %d came back, %v", len(got), len(b), err)
	}
	if broken.Load() < 6 {
		t.Errorf("%d answers; the test has shown nothing", broken.Load())
	}
	// One that brings nothing at all is not asked forever.
	p.cut.Store(new(func(*http.Request) int64 { return 0 }))
	if _, err := s.FetchBlob(t.Context(), repo, d); !errors.Is(err, regstore.ErrUnavailable) {
		if err != nil {
			t.Errorf("FetchBlob: got %v, want ErrUnavailable", err)
		}
	}
}

// A storage that takes a connection and says nothing is given up on.
func TestHungStorage(t *testing.T) { onEach(t, testHungStorage) }

func testHungStorage(t *testing.T, cfg regbucket.Options) {
	p, cfg := newProxy(t, cfg)
	cfg.Timeout, cfg.Attempts, cfg.CacheTTL = 5*time.Second, 1, -1
	s := open(t, cfg)
	srv := regtest.NewServerWith(t, s, nil)
	a := regtest.NewArtifact("application/vnd.example", nil, []byte("layer"))
	regtest.Put(t.Context(), t, s, repo, a, "v1.0.0")
	large := regtest.Random(5, 2<<20)
	regtest.PutBlob(t.Context(), t, s, repo, large)
	hang := func(_ http.ResponseWriter, r *http.Request) bool {
		<-r.Context().Done()
		panic(http.ErrAbortHandler)
	}
	p.mode.Store(&hang)
	var wg sync.WaitGroup
	for what, push := range map[string]func() int{
		"blob":     func() int { return pushBlob(t, srv.URL, []byte("other")) },
		"manifest": func() int { return pushManifest(t, srv.URL, "v1.0.1", a) },
	} {
		wg.Go(func() {
			if got := push(); got != http.StatusServiceUnavailable {
				t.Errorf("%s: %d, want 503", what, got)
			}
		})
	}
	for _, path := range []string{"manifests/v1.0.0", "tags/list", "blobs/" + string(digest.FromBytes(large)), "referrers/" + string(a.Descriptor.Digest)} {
		wg.Go(func() {
			code, body, h := send(t, http.MethodGet, srv.URL+"/v2/"+repo+"/"+path, nil, "")
			if code != http.StatusServiceUnavailable || h.Get("Retry-After") == "" {
				t.Errorf("GET %s: %d, want 503 with Retry-After", path, code)
			}
			if !bytes.Contains(body, []byte("try again")) || bytes.Contains(body, []byte(strings.TrimPrefix(cfg.Endpoint, "http://"))) {
				t.Errorf("GET %s: says %s", path, body)
			}
		})
	}
	wg.Wait()
	p.mode.Store(nil)
	if code, got, _ := send(t, http.MethodGet, srv.URL+"/v2/"+repo+"/manifests/v1.0.0", nil, ""); code != http.StatusOK || !bytes.Equal(got, a.Manifest) {
		t.Errorf("after that: %d", code)
	}
}

// Whatever fails while artifacts are pushed through two servers: what was
// acknowledged is whole, and a tag is not seen without its content.
func TestFlakyStorage(t *testing.T) { onEach(t, testFlakyStorage) }

func testFlakyStorage(t *testing.T, cfg regbucket.Options) {
	pushes := 15
	if !strings.HasSuffix(t.Name(), "/fake") {
		pushes = 8 // these flush to a disk
	}
	p, cfg := newProxy(t, cfg)
	cfg.Attempts = 1
	servers := []*regtest.Server{regtest.NewServerWith(t, open(t, cfg), nil), regtest.NewServerWith(t, open(t, cfg), nil)}
	var n atomic.Int64
	p.mode.Store(new(func(w http.ResponseWriter, _ *http.Request) bool {
		switch k := n.Add(1); {
		case k%23 == 0:
			w.WriteHeader(http.StatusInternalServerError)
			return true
		case k%31 == 0:
			panic(http.ErrAbortHandler)
		}
		return false
	}))
	p.after.Store(new(func(*http.Request) bool { return n.Load()%17 == 0 }))
	type ack struct {
		tag string
		art *regtest.Artifact
	}
	var mu sync.Mutex
	var acks []ack
	var refused atomic.Int64
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for k := range pushes {
				a := regtest.NewArtifact("application/vnd.example", nil, fmt.Appendf(nil, "layer %d %d", w, k))
				tag := fmt.Sprintf("v%d.%d.0", w, k)
				base := servers[(w+k)%2].URL
				ok := true
				for _, b := range a.Blobs {
					ok = ok && pushBlob(t, base, b) == http.StatusCreated
				}
				switch code := pushManifest(t, base, tag, a); {
				case code == http.StatusCreated:
					mu.Lock()
					acks = append(acks, ack{tag, a})
					mu.Unlock()
				case code == http.StatusServiceUnavailable, code == http.StatusNotFound && !ok:
					refused.Add(1)
				default:
					t.Errorf("%s: %d", tag, code)
				}
			}
		})
	}
	wg.Wait()
	p.mode.Store(nil)
	p.after.Store(nil)
	s := open(t, cfg)
	for _, a := range acks {
		if _, got, err := s.Manifest(t.Context(), repo, a.tag); err != nil || !bytes.Equal(got, a.art.Manifest) {
			t.Errorf("%s was acknowledged: %v", a.tag, err)
		}
	}
	for problem, err := range s.Fsck(t.Context(), nil) {
		if err != nil || !strings.Contains(problem.What, "referrer") {
			t.Errorf("fsck: %+v, %v", problem, err)
		}
	}
	t.Logf("%d acknowledged, %d refused", len(acks), refused.Load())
	if len(acks) == 0 || refused.Load() == 0 {
		t.Error("the test has shown nothing")
	}
}

// pattern is a body that takes no memory.
type pattern struct {
	left int64
	n    byte
}

func (r *pattern) Read(p []byte) (int, error) {
	if r.left == 0 {
		return 0, io.EOF
	}
	p = p[:min(int64(len(p)), r.left)]
	for i := range p {
		p[i] = r.n
		r.n += 7
	}
	r.left -= int64(len(p))
	return len(p), nil
}

// discardStorage takes everything and keeps nothing, so that only the
// memory of the store is measured.
func discardStorage(t *testing.T) (*httptest.Server, *atomic.Int64) {
	var received atomic.Int64
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body) // the test counts
		received.Add(n)
		w.Header().Set("Etag", `"x"`)
		w.Header().Set("Last-Modified", time.Now().UTC().Format(http.TimeFormat))
		switch q := r.URL.Query(); {
		case r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/layout"):
			_, _ = io.WriteString(w, "krmcat registry bucket 1\nMDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE\n")
		case r.Method == http.MethodPost && q.Has("uploads"):
			_, _ = io.WriteString(w, `<InitiateMultipartUploadResult><UploadId>id</UploadId></InitiateMultipartUploadResult>`)
		case r.Method == http.MethodPost:
			_, _ = io.WriteString(w, `<CompleteMultipartUploadResult><Bucket>registry</Bucket><Key>x</Key><ETag>x</ETag></CompleteMultipartUploadResult>`)
		}
	}))
	t.Cleanup(srv.Close)
	return srv, &received
}

// Memory does not grow with the blob.
func TestConstantMemory(t *testing.T) {
	srv, received := discardStorage(t)
	s := open(t, regbucket.Options{Endpoint: srv.URL, Bucket: "registry", ReadOnly: true, Credentials: regbucket.Credentials{AccessKey: "key", SecretKey: "secret"}})
	const size = 200 << 20
	v := digest.SHA256.Digester()
	if _, err := io.Copy(v.Hash(), &pattern{left: size}); err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if err := s.FinishUpload(t.Context(), repo, "", regstore.Chunk{Body: &pattern{left: size}, Offset: -1, Size: -1}, v.Digest()); err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	if got := received.Load(); got < size {
		t.Errorf("the storage got %d bytes, want %d", got, size)
	}
	if got := after.TotalAlloc - before.TotalAlloc; got > 48<<20 {
		t.Errorf("%d MB were allocated for a blob of %d MB", got>>20, size>>20)
	}
}

// More pushes than there is memory for wait for each other, and in the end
// are asked to come back.
func TestBufferLimit(t *testing.T) {
	t.Parallel()
	cfg := fake(t)
	cfg.BufferBytes, cfg.Timeout = 1, 3*time.Second // for one large blob at a time
	s := open(t, cfg)
	stuck, unstick := io.Pipe()
	first := make(chan error, 1)
	b := regtest.Random(9, 9<<20)
	go func() {
		first <- s.FinishUpload(context.Background(), repo, "", regstore.Chunk{Body: stuck, Offset: -1, Size: -1}, digest.FromBytes(b))
	}()
	if _, err := unstick.Write(b[:1]); err != nil { // it has its buffer
		t.Fatal(err)
	}
	err := s.FinishUpload(t.Context(), repo, "", regstore.Chunk{Body: bytes.NewReader(b), Offset: -1, Size: -1}, digest.FromBytes(b))
	if !errors.Is(err, regstore.ErrUnavailable) || !strings.Contains(err.Error(), "too many") {
		t.Errorf("a second large push: got %v, want ErrUnavailable", err)
	}
	if _, err := unstick.Write(b[1:]); err != nil {
		t.Fatal(err)
	}
	_ = unstick.Close() // never fails
	if err := <-first; err != nil {
		t.Errorf("the first push: %v", err)
	}
}
