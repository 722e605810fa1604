package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/opencontainers/go-digest"

	"github.com/krmcat/krmcat/registry/regtest"
)

// buildKrmcat builds the program that is measured.
func buildKrmcat(ctx context.Context, dir string) (string, error) {
	path := filepath.Join(dir, "krmcat-program")
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags=-s -w", "-o", path, "github.com/krmcat/krmcat/cmd/krmcat")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building krmcat: %w\n%s", err, out)
	}
	return path, nil
}

// startServe starts krmcat serve, and does not wait until it answers.
func startServe(ctx context.Context, program, log string, env []string, args ...string) (*server, error) {
	host, err := address()
	if err != nil {
		return nil, err
	}
	out, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o666)
	if err != nil {
		return nil, err
	}
	defer func() { _ = out.Close() }() // the program has its own
	cmd := exec.CommandContext(ctx, program, append([]string{"serve", "--listen", host, "--gc-interval", "0"}, args...)...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = out, out
	s := &server{name: "krmcat", host: host, cmd: cmd, begun: time.Now()}
	return s, cmd.Start()
}

// server is a registry in a process of its own.
type server struct {
	name string
	host string
	cmd  *exec.Cmd
	// begun is when it was started.
	begun time.Time
}

// start runs a program until it answers at its address.
func start(ctx context.Context, name, host string, cmd *exec.Cmd) (*server, error) {
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	begun := time.Now()
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	s := &server{name: name, host: host, cmd: cmd, begun: begun}
	for range 600 {
		conn, err := net.Dial("tcp", host)
		if err == nil {
			_ = conn.Close() // it is there
			return s, nil
		}
		if ctx.Err() != nil {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	s.stop()
	return nil, fmt.Errorf("%s did not start: %s", name, &out)
}

func (s *server) stop() {
	_ = s.cmd.Process.Kill() // stopped already, perhaps
	_ = s.cmd.Wait()
}

// address finds a free one.
func address() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// find finds a program on the path or where go install puts it.
func find(name string) (string, bool) {
	if path, err := exec.LookPath(name); err == nil {
		return path, true
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", false
	}
	path := filepath.Join(home, "go", "bin", name)
	_, err = os.Stat(path)
	return path, err == nil
}

// startKrmcat starts krmcat serve as it is, with its index and its pages, on a
// folder or, if store is not nil, on a bucket.
func startKrmcat(ctx context.Context, dir string, store *minioServer) (*server, error) {
	program, err := buildKrmcat(ctx, dir)
	if err != nil {
		return nil, err
	}
	args := []string{"--data", filepath.Join(dir, "krmcat")}
	var env []string
	if store != nil {
		args = append(args, "--storage", "s3://krmcat?endpoint="+store.endpoint)
		env = []string{"AWS_ACCESS_KEY_ID=" + minioUser, "AWS_SECRET_ACCESS_KEY=" + minioPassword}
	}
	s, err := startServe(ctx, program, filepath.Join(dir, "krmcat.log"), env, args...)
	if err != nil {
		return nil, err
	}
	for range 1000 {
		if s.get(ctx, "/v2/") == nil {
			return s, nil
		}
		time.Sleep(10 * time.Millisecond)
	}
	s.stop()
	return nil, errors.New("krmcat does not answer; see krmcat.log in the folder given with -dir")
}

// startAll starts krmcat and whichever others the machine has.
func startAll(ctx context.Context, dir string, store *minioServer) ([]*server, error) {
	var servers []*server
	s, err := startKrmcat(ctx, dir, store)
	if err != nil {
		return nil, err
	}
	servers = append(servers, s)
	for _, peer := range []struct{ name, program string }{{"docker-registry", "docker-registry"}, {"distribution", "registry"}} {
		path, ok := find(peer.program)
		if !ok || store != nil && peer.name == "docker-registry" {
			fmt.Fprintf(os.Stderr, "bench: without %s\n", peer.name)
			continue
		}
		host, err := address()
		if err != nil {
			return servers, err
		}
		config := filepath.Join(dir, peer.name+".yml")
		if err := os.WriteFile(config, []byte(distributionConfig(host, filepath.Join(dir, peer.name), store)), 0o600); err != nil {
			return servers, err
		}
		cmd := exec.CommandContext(ctx, path, "serve", config)
		cmd.Env = append(os.Environ(), "OTEL_TRACES_EXPORTER=none")
		s, err := start(ctx, peer.name, host, cmd)
		if err != nil {
			return servers, err
		}
		servers = append(servers, s)
	}
	return servers, nil
}

// distributionConfig is what distribution and its ancestor read.
func distributionConfig(host, dir string, store *minioServer) string {
	storage := "  filesystem: {rootdirectory: " + dir + "}\n"
	if store != nil {
		storage = fmt.Sprintf("  s3: {regionendpoint: %q, region: us-east-1, bucket: distribution, accesskey: %s, secretkey: %s, secure: false, forcepathstyle: true}\n  cache: {blobdescriptor: inmemory}\n  redirect: {disable: true}\n",
			store.endpoint, minioUser, minioPassword)
	}
	return "version: 0.1\nlog: {level: error, accesslog: {disabled: true}}\nstorage:\n" + storage +
		"  delete: {enabled: true}\nhttp: {addr: " + host + "}\n"
}

// cpu returns the CPU time that the server has used, in seconds.
func (s *server) cpu() float64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.cmd.Process.Pid))
	if err != nil {
		return 0
	}
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	user, _ := strconv.ParseFloat(f[11], 64)
	system, _ := strconv.ParseFloat(f[12], 64)
	return (user + system) / 100
}

// memory returns the resident memory of the server, and its peak, in MB.
func (s *server) memory() (rss, peak float64) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.cmd.Process.Pid))
	if err != nil {
		return 0, 0
	}
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		kb, _ := strconv.ParseFloat(f[1], 64)
		switch f[0] {
		case "VmRSS:":
			rss = kb / 1024
		case "VmHWM:":
			peak = kb / 1024
		}
	}
	return rss, peak
}

func (s *server) get(ctx context.Context, path string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.host+path, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }() // only read
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s: %s", path, resp.Status)
	}
	_, err = io.Copy(io.Discard, resp.Body)
	return err
}

func (s *server) send(ctx context.Context, method, path string, body []byte, mediaType string) error {
	req, err := http.NewRequestWithContext(ctx, method, "http://"+s.host+path, bytes.NewReader(body))
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

// pushTo pushes an artifact; without a tag, by its digest.
func (s *server) pushTo(ctx context.Context, repository, tag string, a *regtest.Artifact) error {
	for _, b := range a.Blobs {
		if err := s.send(ctx, http.MethodPost, "/v2/"+repository+"/blobs/uploads/?digest="+string(digest.FromBytes(b)), b, "application/octet-stream"); err != nil {
			return err
		}
	}
	if tag == "" {
		tag = string(a.Descriptor.Digest)
	}
	return s.send(ctx, http.MethodPut, "/v2/"+repository+"/manifests/"+tag, a.Manifest, a.Descriptor.MediaType)
}

// The credentials of the MinIO that this program starts.
const (
	minioUser     = "krmcat-bench"
	minioPassword = "krmcat-bench-only"
)

// minioServer is an object store, with a proxy in front that counts calls.
type minioServer struct {
	*server
	endpoint string
	calls    atomic.Int64
	proxy    *http.Server
}

func (m *minioServer) count() int64 {
	if m == nil {
		return 0
	}
	return m.calls.Load()
}

func (m *minioServer) stop() {
	_ = m.proxy.Close()
	m.server.stop()
}

func startMinio(ctx context.Context, dir string) (*minioServer, error) {
	path, ok := find("minio")
	if !ok {
		return nil, errors.New("minio is not installed")
	}
	host, err := address()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, path, "server", "--quiet", "--address", host, dir)
	cmd.Env = append(os.Environ(), "MINIO_ROOT_USER="+minioUser, "MINIO_ROOT_PASSWORD="+minioPassword, "MINIO_BROWSER=off", "MINIO_UPDATE=off")
	s, err := start(ctx, "minio", host, cmd)
	if err != nil {
		return nil, err
	}
	m := &minioServer{server: s}
	client, err := minio.New(host, &minio.Options{Creds: credentials.NewStaticV4(minioUser, minioPassword, "")})
	for _, bucket := range []string{"krmcat", "distribution"} {
		if err == nil {
			err = client.MakeBucket(ctx, bucket, minio.MakeBucketOptions{})
		}
	}
	if err != nil {
		s.stop()
		return nil, err
	}
	rp := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(&url.URL{Scheme: "http", Host: host})
		r.Out.Host = r.In.Host // which is signed
	}}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		s.stop()
		return nil, err
	}
	m.endpoint = "http://" + l.Addr().String()
	m.proxy = &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		m.calls.Add(1)
		rp.ServeHTTP(w, r)
	})}
	go func() { _ = m.proxy.Serve(l) }() // until it is closed
	return m, nil
}
