package regdir_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/krmcat/krmcat/registry/regdir"
	"github.com/krmcat/krmcat/registry/regserver"
	"github.com/krmcat/krmcat/registry/regtest"
)

// The test program is also the server that it kills.
const serveVar = "KRMCAT_TEST_SERVE_REGDIR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(serveVar); dir != "" {
		if err := serve(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func serve(dir string) error {
	s, err := regdir.Open(dir, nil)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println("http://" + l.Addr().String())
	go func() { // ends with the test, however that ends
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	srv := &http.Server{Handler: regserver.New(s, nil), ReadHeaderTimeout: 10 * time.Second}
	return srv.Serve(l)
}

// process is a server in a process of its own.
type process struct {
	t     testing.TB
	cmd   *exec.Cmd
	stdin io.Closer
	url   string
	hc    *http.Client
}

func startProcess(t testing.TB, dir string) *process {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), serveVar+"="+dir)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &process{t: t, cmd: cmd, stdin: in, hc: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 16}}}
	t.Cleanup(p.kill)
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		p.kill()
		t.Fatalf("the server did not start: %v", err)
	}
	p.url = strings.TrimSpace(line)
	return p
}

// kill is kill -9.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // dead already, perhaps
	_ = p.cmd.Wait()
	_ = p.stdin.Close()
	p.hc.CloseIdleConnections()
}

func (p *process) do(ctx context.Context, method, path string, body []byte, contentType string) (int, []byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, p.url+path, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	req.Header.Set("Content-Type", contentType)
	resp, err := p.hc.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	return resp.StatusCode, b, err
}

// acked is something that the server said it has stored.
type acked struct {
	repository, tag string
	art             *regtest.Artifact // nil for a blob alone
	blob            []byte
}

// crash pushes with several workers until the server is stopped by the given
// function at a random moment, and returns what was acknowledged.
func crash(t testing.TB, p *process, round int, stop func()) []acked {
	var mu sync.Mutex
	var acks []acked
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	push := func(repository, tag string, art *regtest.Artifact) bool {
		for _, b := range art.Blobs {
			code, _, err := p.do(ctx, http.MethodPost, "/v2/"+repository+"/blobs/uploads/?digest="+string(digest.FromBytes(b)), b, "application/octet-stream")
			if err != nil || code != http.StatusCreated {
				return false
			}
			mu.Lock()
			acks = append(acks, acked{repository: repository, blob: b})
			mu.Unlock()
		}
		ref := tag
		if ref == "" {
			ref = string(art.Descriptor.Digest)
		}
		code, _, err := p.do(ctx, http.MethodPut, "/v2/"+repository+"/manifests/"+ref, art.Manifest, art.Descriptor.MediaType)
		if err != nil || code != http.StatusCreated {
			return false
		}
		mu.Lock()
		acks = append(acks, acked{repository: repository, tag: tag, art: art})
		mu.Unlock()
		return true
	}
	var wg sync.WaitGroup
	for w := range 6 {
		wg.Go(func() {
			for k := 0; ctx.Err() == nil; k++ {
				seed := uint64(round)<<32 | uint64(w)<<24 | uint64(k)
				repository := fmt.Sprintf("crash/fn-%d", w%3)
				art := regtest.NewArtifact("application/vnd.example", nil, regtest.Random(seed, 500+k%7*3000), regtest.Random(seed+1<<20, 100))
				if !push(repository, fmt.Sprintf("v%d.%d.%d", round, w, k), art) ||
					!push(repository, "", regtest.NewArtifact("application/vnd.example.signature", &art.Descriptor, fmt.Appendf(nil, "signature of %s", art.Descriptor.Digest))) ||
					!push(repository, "latest", art) {
					return
				}
			}
		})
	}
	time.Sleep(time.Duration(5+rand.IntN(120)) * time.Millisecond) // any moment will do
	stop()
	cancel()
	wg.Wait()
	return acks
}

// verify checks that everything acknowledged is there, and that every tag of
// a round that is visible is whole.
func verify(t testing.TB, p *process, round int, acks []acked) {
	t.Helper()
	ctx := t.Context()
	get := func(path string) []byte {
		code, b, err := p.do(ctx, http.MethodGet, path, nil, "")
		if err != nil || code != http.StatusOK {
			t.Errorf("GET %s: %d, %v", path, code, err)
		}
		return b
	}
	for _, a := range acks {
		base := "/v2/" + a.repository
		if a.art == nil {
			if got := get(base + "/blobs/" + string(digest.FromBytes(a.blob))); !bytes.Equal(got, a.blob) {
				t.Errorf("blob %s of %s is lost or damaged", digest.FromBytes(a.blob), a.repository)
			}
			continue
		}
		d := a.art.Descriptor.Digest
		if got := get(base + "/manifests/" + string(d)); !bytes.Equal(got, a.art.Manifest) {
			t.Errorf("manifest %s of %s is lost or damaged", d, a.repository)
		}
		if a.tag != "" && a.tag != "latest" {
			if got := get(base + "/manifests/" + a.tag); !bytes.Equal(got, a.art.Manifest) {
				t.Errorf("tag %s of %s is lost or wrong", a.tag, a.repository)
			}
		}
		if a.art.Subject != nil && !bytes.Contains(get(base+"/referrers/"+string(a.art.Subject.Digest)), []byte(d)) {
			t.Errorf("signature %s of %s is not listed", d, a.repository)
		}
	}
	for i := range 3 {
		base := fmt.Sprintf("/v2/crash/fn-%d", i)
		code, b, err := p.do(ctx, http.MethodGet, base+"/tags/list", nil, "")
		if code == http.StatusNotFound && err == nil {
			continue // nobody got so far
		}
		var list struct{ Tags []string }
		if err := json.Unmarshal(b, &list); err != nil {
			t.Fatalf("tags of %s: %d %s", base, code, b)
		}
		for _, tag := range list.Tags {
			if tag != "latest" && !strings.HasPrefix(tag, fmt.Sprintf("v%d.", round)) {
				continue
			}
			var m ocispec.Manifest
			if err := json.Unmarshal(get(base+"/manifests/"+tag), &m); err != nil {
				t.Errorf("tag %s of %s is visible without its manifest: %v", tag, base, err)
			}
			for _, l := range append(m.Layers, m.Config) {
				if got := get(base + "/blobs/" + string(l.Digest)); digest.FromBytes(got) != l.Digest {
					t.Errorf("tag %s of %s is visible without its blob %s", tag, base, l.Digest)
				}
			}
		}
	}
}

// rounds reads how often to crash from the environment.
func rounds(t testing.TB, name string, usual int) int {
	s := os.Getenv(name)
	if s == "" {
		return usual
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

// A process that is killed while it stores things loses nothing that it
// acknowledged and shows nothing that is not whole. KRMCAT_CRASH_KILLS sets
// how often.
func TestKill(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "registry")
	n := rounds(t, "KRMCAT_CRASH_KILLS", 12)
	var all []acked
	total := 0
	for round := range n {
		p := startProcess(t, dir)
		acks := crash(t, p, round, func() { p.kill() })
		total += len(acks)
		p = startProcess(t, dir)
		if got := files(t, filepath.Join(dir, "tmp")); len(got) != 0 {
			t.Errorf("left behind by a killed process: %v", got)
		}
		verify(t, p, round, acks)
		p.kill()
		all = append(all, acks[:min(len(acks), 20)]...)
		if t.Failed() {
			t.FailNow()
		}
	}
	p := startProcess(t, dir)
	verify(t, p, 0, all)
	p.kill()
	checkFsck(t, dir)
	t.Logf("%d kills, %d acknowledgements checked", n, total)
}

// A machine that loses power: what was not flushed is gone. A file system in
// a file is told to forget it (EXT4_IOC_SHUTDOWN without flushing its
// journal). KRMCAT_CRASH_POWER sets how often.
func TestPowerLoss(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		lacking(t, "needs ext4")
	}
	base := t.TempDir()
	img, mnt := filepath.Join(base, "img"), filepath.Join(base, "mnt")
	run := func(name string, arg ...string) error {
		out, err := exec.Command(name, arg...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%s %v: %w: %s", name, arg, err, out)
		}
		return nil
	}
	mountImage := func() error { return run("mount", "-o", "loop,commit=300", img, mnt) }
	if err := errors.Join(os.Mkdir(mnt, 0o777), os.WriteFile(img, nil, 0o666), os.Truncate(img, 256<<20)); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(run("mkfs.ext4", "-q", "-F", img), mountImage()); err != nil {
		lacking(t, fmt.Sprintf("cannot make a file system in a file: %v", err))
	}
	t.Cleanup(func() {
		if err := run("umount", mnt); err != nil {
			t.Error(err)
		}
	})
	dir := filepath.Join(mnt, "registry")
	n := rounds(t, "KRMCAT_CRASH_POWER", 3)
	total := 0
	for round := range n {
		p := startProcess(t, dir)
		acks := crash(t, p, round, func() {
			if err := shutdown(mnt); err != nil {
				lacking(t, fmt.Sprintf("cannot stop the file system: %v", err))
			}
			p.kill()
		})
		total += len(acks)
		// As long as another mount namespace has a copy of the mount, such as
		// that of a container which was just started, the old one lives on.
		for try := 0; ; try++ {
			if err := errors.Join(run("umount", mnt), mountImage()); err != nil {
				t.Fatal(err)
			}
			err := os.WriteFile(filepath.Join(mnt, "probe"), nil, 0o666)
			if err == nil {
				break
			}
			if try == 100 || !errors.Is(err, syscall.EIO) && !errors.Is(err, syscall.EROFS) {
				t.Fatalf("the file system does not come back: %v", err)
			}
			time.Sleep(100 * time.Millisecond)
		}
		p = startProcess(t, dir)
		verify(t, p, round, acks)
		p.kill()
		checkFsck(t, dir)
		if t.Failed() {
			t.FailNow()
		}
	}
	t.Logf("%d losses of power, %d acknowledgements checked", n, total)
}
