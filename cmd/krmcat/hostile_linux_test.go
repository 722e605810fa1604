package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/krmcat/krmcat/registry/regtest"
)

// served is a krmcat serve in a process of its own, whose memory is its own.
type served struct {
	t    *testing.T
	cmd  *exec.Cmd
	addr string
}

func serveProcess(t *testing.T) *served {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	addr := filepath.Join(dir, "addr")
	s := &served{t: t, cmd: exec.Command(self, "serve", "--data", filepath.Join(dir, "data"), "--listen", "127.0.0.1:0", "--addr-file", addr)}
	s.cmd.Args[0] = "krmcat" // as which TestMain then behaves
	s.cmd.Env = append(os.Environ(), "HOME="+dir)
	var log bytes.Buffer
	s.cmd.Stderr = &log
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = s.cmd.Process.Kill() // dead already, perhaps
		_ = s.cmd.Wait()
		if t.Failed() {
			t.Logf("%s", log.String()[:min(log.Len(), 4000)])
		}
	})
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if b, err := os.ReadFile(addr); err == nil {
			s.addr = strings.TrimSpace(string(b))
			return s
		}
	}
	t.Fatalf("the server does not start:\n%s", &log)
	return nil
}

// memory returns the resident memory of the server, in bytes.
func (s *served) memory() int64 {
	s.t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.cmd.Process.Pid))
	if err != nil {
		s.t.Skipf("the memory of a process cannot be read here: %v", err)
	}
	_, rest, _ := strings.Cut(string(b), "VmRSS:")
	kb, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
	if err != nil {
		s.t.Fatal(err)
	}
	return kb << 10
}

// push pushes an artifact as honest clients do.
func (s *served) push(repository, tag string, a *regtest.Artifact) error {
	put := func(method, path, mediaType string, body []byte) error {
		req, err := http.NewRequestWithContext(s.t.Context(), method, "http://"+s.addr+"/v2/"+repository+path, bytes.NewReader(body))
		if err != nil {
			return err
		}
		req.Header.Set("Content-Type", mediaType)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		defer func() { _ = resp.Body.Close() }() // empty
		if resp.StatusCode != http.StatusCreated {
			return fmt.Errorf("%s %s: %s", method, path, resp.Status)
		}
		return nil
	}
	for _, b := range a.Blobs {
		if err := put(http.MethodPost, "/blobs/uploads/?digest="+string(digest.FromBytes(b)), "application/octet-stream", b); err != nil {
			return err
		}
	}
	return put(http.MethodPut, "/manifests/"+tag, a.Descriptor.MediaType, a.Manifest)
}

func (s *served) get(path string) ([]byte, error) {
	resp, err := http.Get("http://" + s.addr + path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }() // only read
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("GET %s: %s", path, resp.Status)
	}
	return io.ReadAll(resp.Body)
}

// perClient is how much memory a client may cost that does nothing useful. A
// connection that only waits takes about 10 KB, and one in the middle of a
// request about 40; what the race detector adds is several times that.
const perClient = 256 << 10

// Thousands of clients that say nothing, or half of something, or take an
// answer and do not read it, or begin an upload and let it rest, cost the server
// little memory each and keep nobody from their work; and when they are gone, so
// is all that they held.
func TestThousandsOfSlowClients(t *testing.T) {
	// A connection is a descriptor here and one or two there; Go has raised
	// the soft limit of both processes to the hard one.
	clients := 5000
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if clients = min(clients, int(limit.Cur)/3-100); clients < 2000 {
		if os.Getenv("KRMCAT_TEST_REQUIRE") == "all" {
			t.Fatalf("only %d files may be open; raise the hard limit (ulimit -Hn)", limit.Cur)
		}
		t.Skipf("only %d files may be open", limit.Cur)
	}
	s := serveProcess(t)
	const repo = "publisher/set-labels"
	large := regtest.Random(1, 4<<20) // more than what the kernel keeps of a connection
	art := regtest.NewArtifact("application/vnd.example", nil, large)
	if err := s.push(repo, "v1.0.0", art); err != nil {
		t.Fatal(err)
	}
	before := s.memory()

	blob := "/v2/" + repo + "/blobs/" + string(digest.FromBytes(large))
	kinds := []func(io.ReadWriter) error{
		// Says nothing.
		func(io.ReadWriter) error { return nil },
		// Does not finish its header.
		func(c io.ReadWriter) error {
			_, err := io.WriteString(c, "GET /v2/ HTTP/1.1\r\nHost: x\r\nX-Slow: ")
			return err
		},
		// Got an answer and stays.
		func(c io.ReadWriter) error {
			if _, err := io.WriteString(c, "GET /v2/ HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
				return err
			}
			resp, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err == nil {
				_ = resp.Body.Close() // empty
			}
			return err
		},
		// Sends a little of a manifest.
		func(c io.ReadWriter) error {
			_, err := fmt.Fprintf(c, "PUT /v2/%s/manifests/slow HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{", repo)
			return err
		},
		// Sends a little of a blob.
		func(c io.ReadWriter) error {
			_, err := fmt.Fprintf(c, "POST /v2/%s/blobs/uploads/?digest=%s HTTP/1.1\r\nHost: x\r\nContent-Length: 100000000\r\n\r\nx", repo, digest.FromString("x"))
			return err
		},
		// Asks for a large blob and reads nothing of it.
		func(c io.ReadWriter) error {
			_, err := fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: x\r\n\r\n", blob)
			return err
		},
	}
	conns := make([]net.Conn, clients)
	defer func() {
		for _, c := range conns {
			if c != nil {
				_ = c.Close() // cut off already, perhaps
			}
		}
	}()
	var wg sync.WaitGroup
	var mu sync.Mutex
	var failed error
	for w := range 16 {
		wg.Go(func() {
			for i := w; i < clients; i += 16 {
				// An address of its own for every thousand, so that ports do
				// not run out.
				d := net.Dialer{Timeout: 30 * time.Second, LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, byte(2+i/1000))}}
				c, err := d.DialContext(t.Context(), "tcp", s.addr)
				if err == nil {
					conns[i] = c
					err = kinds[i%len(kinds)](c)
				}
				if err != nil {
					mu.Lock()
					failed = errors.Join(failed, fmt.Errorf("client %d: %w", i, err))
					mu.Unlock()
					return
				}
			}
		})
	}
	wg.Wait()
	if failed != nil {
		t.Fatal(failed)
	}
	// Honest clients are served meanwhile.
	for i := range 20 {
		if got, err := s.get("/v2/" + repo + "/manifests/v1.0.0"); err != nil || !bytes.Equal(got, art.Manifest) {
			t.Fatalf("a pull beside %d slow clients: %v", clients, err)
		}
		if err := s.push("publisher/other", fmt.Sprintf("v1.0.%d", i), regtest.NewArtifact("application/vnd.example", nil, fmt.Appendf(nil, "layer %d", i))); err != nil {
			t.Fatalf("a push beside %d slow clients: %v", clients, err)
		}
	}
	if got, err := s.get(blob); err != nil || !bytes.Equal(got, large) {
		t.Errorf("a pull of a blob beside %d slow clients: %v", clients, err)
	}
	each := (s.memory() - before) / int64(clients)
	t.Logf("%d clients; the server takes %d MB, %d KB more for each", clients, s.memory()>>20, each>>10)
	if each > perClient {
		t.Errorf("a client that does nothing costs %d KB, want at most %d", each>>10, perClient>>10)
	}

	// Those that do not finish their headers are cut off by the server, and
	// the rest go by themselves.
	for _, i := range []int{0, 1} {
		_ = conns[i].SetReadDeadline(time.Now().Add(time.Minute))
		if _, err := conns[i].Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("client %d is not cut off: %v", i, err)
		}
	}
	for _, c := range conns {
		_ = c.Close() // cut off already, perhaps
	}
	files := func() int {
		list, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", s.cmd.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	deadline := time.Now().Add(2 * time.Minute)
	for files() > 200 {
		if time.Now().After(deadline) {
			t.Fatalf("%d files are still open in the server", files())
		}
		time.Sleep(50 * time.Millisecond)
	}
}
