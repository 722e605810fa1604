package regserver_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/krmcat/krmcat/registry"
	"github.com/krmcat/krmcat/registry/regdir"
	"github.com/krmcat/krmcat/registry/regmem"
	"github.com/krmcat/krmcat/registry/regserver"
	"github.com/krmcat/krmcat/registry/regtest"
)

// zeros never ends.
type zeros struct{ n atomic.Int64 }

func (z *zeros) Read(p []byte) (int, error) {
	clear(p)
	z.n.Add(int64(len(p)))
	return len(p), nil
}

// raw opens a connection and writes to it.
func (c *client) raw(format string, a ...any) net.Conn {
	c.t.Helper()
	conn, err := net.Dial("tcp", c.srv.Host)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = conn.Close() })
	if _, err := fmt.Fprintf(conn, format, a...); err != nil {
		c.t.Fatal(err)
	}
	return conn
}

// An upload that does not end stops at the limit for blobs, whichever way it
// comes, and the server has not kept more of it.
func TestEndlessUpload(t *testing.T) {
	t.Parallel()
	store, err := regdir.Open(t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	const limit = 1 << 20
	c := newClient(t, store, &regserver.Options{Limits: regserver.Limits{BlobBytes: limit}})
	d := string(digest.FromString("x"))
	for name, request := range map[string]func() (string, string){
		"POST":  func() (string, string) { return http.MethodPost, "/v2/" + repo + "/blobs/uploads/?digest=" + d },
		"PATCH": func() (string, string) { return http.MethodPatch, c.start() },
		"PUT":   func() (string, string) { return http.MethodPut, withQuery(c.start(), "digest", d) },
	} {
		method, path := request()
		if strings.HasPrefix(path, "/") {
			path = c.srv.URL + path
		}
		body := &zeros{}
		req, err := http.NewRequestWithContext(t.Context(), method, path, body)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := c.srv.HTTP.Client().Do(req)
		if err == nil { // the client may also see the connection end first
			_ = resp.Body.Close()
			if resp.StatusCode != http.StatusRequestEntityTooLarge {
				t.Errorf("%s: got %s, want 413", name, resp.Status)
			}
		}
		// The client may still be reading it after the answer.
		if n := body.n.Load(); n > 100*limit {
			t.Errorf("%s: the server took %d bytes", name, n)
		}
		if method == http.MethodPatch {
			a := c.get(path).want(http.StatusNoContent)
			var last int
			if _, err := fmt.Sscanf(a.Header.Get("Range"), "0-%d", &last); err != nil || last >= limit {
				t.Errorf("the upload has the range %s", a.Header.Get("Range"))
			}
		}
	}
	loc := c.start()
	c.do(http.MethodPatch, loc, strings.NewReader("x"), "Content-Range", "9223372036854775806-9223372036854775806").want(http.StatusRequestEntityTooLarge)
	c.get(loc).want(http.StatusNoContent).wantHeader("Range", "0-0")
}

// A client that stalls in the middle of a body is cut off.
func TestStalledBody(t *testing.T) {
	t.Parallel()
	c := newClient(t, regmem.New(), &regserver.Options{Limits: regserver.Limits{Stall: 50 * time.Millisecond}})
	for _, path := range []string{"PUT /v2/" + repo + "/manifests/v1", "POST /v2/" + repo + "/blobs/uploads/?digest=" + string(digest.FromString("x"))} {
		conn := c.raw("%s HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nhello", path)
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			continue // cut off without a word
		}
		if resp.StatusCode != http.StatusRequestTimeout {
			t.Errorf("%s: got %s, want 408 or the end", path, resp.Status)
		}
		_ = resp.Body.Close()
	}
	// And one that trickles: never quiet, but slower than the rate.
	c = newClient(t, regmem.New(), &regserver.Options{Limits: regserver.Limits{Stall: 100 * time.Millisecond, MinRate: 1 << 20}})
	conn := c.raw("PUT /v2/%s/manifests/v1 HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n", repo)
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		_, _ = io.Copy(io.Discard, conn) // until the server ends it
	}()
	for {
		select {
		case <-gone:
			return
		case <-time.After(5 * time.Millisecond):
			_, _ = conn.Write([]byte("x")) // fails at the end
		}
	}
}

// Manifests that are being received do not take more memory than the server
// was given.
func TestManifestMemory(t *testing.T) {
	t.Parallel()
	c := newClient(t, regmem.New(), &regserver.Options{Limits: regserver.Limits{BufferedBytes: 20 << 20}})
	conn := c.raw("PUT /v2/%s/manifests/v1 HTTP/1.1\r\nHost: x\r\nContent-Length: 4194304\r\nExpect: 100-continue\r\n\r\n", repo)
	if line, err := bufio.NewReader(conn).ReadString('\n'); err != nil || !strings.Contains(line, "100") {
		t.Fatalf("got %q, %v, want 100 Continue", line, err) // now the server is reading
	}
	large := strings.NewReader(strings.Repeat("x", 4<<20))
	c.do(http.MethodPut, "/v2/"+repo+"/manifests/v1", large).want(http.StatusTooManyRequests).wantCode("TOOMANYREQUESTS").wantHeader("Retry-After", "5")
	c.do(http.MethodPut, "/v2/"+repo+"/manifests/v1", strings.NewReader("{}")).want(http.StatusBadRequest) // small ones go on
	_ = conn.Close()
	for { // until the server has noticed
		large := strings.NewReader(strings.Repeat("x", 4<<20))
		if a := c.do(http.MethodPut, "/v2/"+repo+"/manifests/v1", large); a.StatusCode != http.StatusTooManyRequests {
			a.want(http.StatusBadRequest)
			return
		}
	}
}

func TestHeaderFlood(t *testing.T) {
	t.Parallel()
	c := newClient(t, regmem.New(), nil)
	conn := c.raw("GET /v2/ HTTP/1.1\r\nHost: x\r\n")
	go func() {
		for i := 0; ; i++ {
			if _, err := fmt.Fprintf(conn, "X-Flood-%d: %s\r\n", i, strings.Repeat("x", 1000)); err != nil {
				return
			}
		}
	}()
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err == nil && resp.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("got %s, want 431", resp.Status)
	}
}

// A thousand connections that do nothing do not keep others from their work,
// nor take much memory.
func TestIdleClients(t *testing.T) {
	c := newClient(t, regmem.New(), nil)
	art := regtest.NewArtifact("application/vnd.example", nil)
	c.push(repo, art, "v1")
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapInuse + m.StackInuse
	}
	before := heap()
	for i := range 1000 {
		switch i % 3 {
		case 0:
			c.raw("") // says nothing
		case 1:
			c.raw("GET /v2/ HTTP/1.1\r\nHost:") // and does not go on
		case 2:
			c.raw("PATCH /v2/%s/blobs/uploads/x HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\nExpect: 100-continue\r\n", repo)
		}
	}
	for range 100 {
		c.get("/v2/" + repo + "/manifests/v1").want(http.StatusOK)
	}
	if after := heap(); after > before+64<<20 {
		t.Errorf("1000 idle clients take %d MB", (after-before)>>20)
	}
}

// A blob that is larger than the memory the process may take goes in and out.
func TestLargeBlob(t *testing.T) {
	store, err := regdir.Open(t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	c := newClient(t, store, nil)
	const size = 200 << 20
	hash := digest.SHA256.Digester()
	if _, err := io.Copy(hash.Hash(), io.LimitReader(&zeros{}, size)); err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	path := "/v2/" + repo + "/blobs/" + string(hash.Digest())
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, c.srv.URL+"/v2/"+repo+"/blobs/uploads/?digest="+string(hash.Digest()), io.LimitReader(&zeros{}, size))
	if err != nil {
		t.Fatal(err)
	}
	req.ContentLength = size
	resp, err := c.srv.HTTP.Client().Do(req)
	if err != nil || resp.StatusCode != http.StatusCreated {
		t.Fatalf("got %v, %v, want 201", resp, err)
	}
	_ = resp.Body.Close()
	resp, err = c.srv.HTTP.Client().Get(c.srv.URL + path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if n, err := io.Copy(io.Discard, resp.Body); n != size || err != nil {
		t.Errorf("got %d bytes, %v", n, err)
	}
	runtime.ReadMemStats(&after)
	if got := after.TotalAlloc - before.TotalAlloc; got > 32<<20 { // of client and server together
		t.Errorf("a blob of 200 MB in and out allocated %d MB", got>>20)
	}
}

// Errors of the storage reach the client as what they are, without their
// causes.
func TestStorageGone(t *testing.T) {
	t.Parallel()
	store, err := regdir.Open(t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	c := newClient(t, store, &regserver.Options{Observer: &observer{begin: func(registry.Change) error { return errors.New("secret place") }}})
	c.pushBlob(repo, []byte("{}"))
	a := c.pushManifest(repo, "v1", regtest.NewArtifact("application/vnd.example", nil)).want(http.StatusServiceUnavailable).wantCode("UNAVAILABLE")
	if strings.Contains(string(a.body), "secret") {
		t.Errorf("the client is told the cause: %s", a.body)
	}
}
