// Command bench compares regbucket with the S3 driver of the distribution
// project, over one MinIO, in one run on one machine:
//
//	go run . -minio ~/go/bin/minio
//
// Artifacts are a manifest and three layers of 2 to 50 KB, pushed and pulled by
// 8 workers with oras-go, as in design/registry.md. It is a module of its own, so
// that krmcat does not depend on distribution.
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	mrand "math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/distribution/distribution/v3/configuration"
	"github.com/distribution/distribution/v3/registry/handlers"
	_ "github.com/distribution/distribution/v3/registry/storage/driver/s3-aws" // the driver
	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/sirupsen/logrus"
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/content/memory"
	"oras.land/oras-go/v2/registry/remote"

	"github.com/krmcat/krmcat/registry/regbucket"
	"github.com/krmcat/krmcat/registry/regserver"
)

const (
	user     = "krmcat-bench"
	password = "krmcat-bench-secret"
)

func main() {
	program := flag.String("minio", "minio", "the `program`")
	n := flag.Int("n", 200, "how many `artifacts`")
	workers := flag.Int("workers", 8, "how many `clients`")
	flag.Parse()
	logrus.SetOutput(io.Discard)
	slog.SetDefault(slog.New(slog.DiscardHandler))
	if err := run(context.Background(), *program, *n, *workers); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, program string, n, workers int) error {
	s3, stop, err := startMinIO(ctx, program)
	if err != nil {
		return err
	}
	defer stop()
	var calls atomic.Int64
	// The same few lines count the calls of both.
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls.Add(1)
		s3.ServeHTTP(w, r)
	}))
	defer proxy.Close()

	store, err := regbucket.Open(ctx, regbucket.Options{Endpoint: proxy.URL, Bucket: "krmcat", CreateBucket: true,
		Credentials: regbucket.Credentials{AccessKey: user, SecretKey: password}})
	if err != nil {
		return err
	}
	defer store.Close()
	// A server that has just started.
	fresh, err := regbucket.Open(ctx, regbucket.Options{Endpoint: proxy.URL, Bucket: "krmcat",
		Credentials: regbucket.Credentials{AccessKey: user, SecretKey: password}})
	if err != nil {
		return err
	}
	defer fresh.Close()
	distribution, err := newDistribution(ctx, proxy.URL)
	if err != nil {
		return err
	}
	freshDistribution, err := newDistribution(ctx, proxy.URL)
	if err != nil {
		return err
	}
	arts := make([]*artifact, n)
	for i := range arts {
		if arts[i], err = newArtifact(ctx, i); err != nil {
			return err
		}
	}
	large := make([]byte, 100<<20)
	_, _ = rand.Read(large)
	fmt.Printf("%-46s %10s %8s %8s %8s\n", "", "per second", "p50 ms", "p99 ms", "S3 calls")
	for _, c := range []struct {
		name       string
		push, pull http.Handler
	}{
		{"regbucket", regserver.New(store, nil), regserver.New(store, nil)},
		{"regbucket, another server", nil, regserver.New(fresh, nil)},
		{"distribution", distribution, distribution},
		{"distribution, another server", nil, freshDistribution},
	} {
		if c.push != nil {
			srv := httptest.NewServer(c.push)
			calls.Store(0)
			if err := measure(c.name+" push", workers, n, &calls, func(i int) error { return arts[i].push(ctx, srv.Listener.Addr().String()) }); err != nil {
				return err
			}
			start := time.Now()
			if err := pushLarge(ctx, srv.URL, large); err != nil {
				return err
			}
			fmt.Printf("%-46s %7.0f MB/s\n", c.name+" push of 100 MiB", 100/time.Since(start).Seconds())
			srv.Close()
		}
		srv := httptest.NewServer(c.pull)
		calls.Store(0)
		if err := measure(c.name+" pull", workers, n, &calls, func(i int) error { return arts[i].pull(ctx, srv.Listener.Addr().String()) }); err != nil {
			return err
		}
		start := time.Now()
		resp, err := http.Get(srv.URL + "/v2/bench/large/blobs/" + string(digest.FromBytes(large)))
		if err != nil {
			return err
		}
		size, err := io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		if err != nil || size != int64(len(large)) {
			return fmt.Errorf("large blob: %d bytes, %w", size, err)
		}
		fmt.Printf("%-46s %7.0f MB/s\n", c.name+" pull of 100 MiB", 100/time.Since(start).Seconds())
		srv.Close()
	}
	return nil
}

func startMinIO(ctx context.Context, program string) (http.Handler, func(), error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	addr := l.Addr().String()
	l.Close()
	dir, err := os.MkdirTemp("", "krmcat-bench-")
	if err != nil {
		return nil, nil, err
	}
	cmd := exec.Command(program, "server", "--quiet", "--address", addr, dir)
	cmd.Env = append(os.Environ(), "MINIO_ROOT_USER="+user, "MINIO_ROOT_PASSWORD="+password, "MINIO_BROWSER=off", "MINIO_UPDATE=off")
	if err := cmd.Start(); err != nil {
		return nil, nil, err
	}
	stop := func() {
		cmd.Process.Kill()
		cmd.Wait()
		os.RemoveAll(dir)
	}
	client, err := minio.New(addr, &minio.Options{Creds: credentials.NewStaticV4(user, password, ""), Region: "us-east-1", MaxRetries: 1})
	if err != nil {
		return nil, nil, err
	}
	for range 300 {
		if err = client.MakeBucket(ctx, "distribution", minio.MakeBucketOptions{}); err == nil {
			target := &url.URL{Scheme: "http", Host: addr}
			rp := &httputil.ReverseProxy{Transport: &http.Transport{MaxIdleConnsPerHost: 100}, Rewrite: func(r *httputil.ProxyRequest) {
				r.SetURL(target)
				r.Out.Host = r.In.Host // which is signed
			}}
			return rp, stop, nil
		}
		time.Sleep(100 * time.Millisecond)
	}
	stop()
	return nil, nil, fmt.Errorf("MinIO did not start: %w", err)
}

func newDistribution(ctx context.Context, endpoint string) (http.Handler, error) {
	cfg := &configuration.Configuration{Storage: configuration.Storage{
		"s3": {"accesskey": user, "secretkey": password, "region": "us-east-1", "regionendpoint": endpoint, "forcepathstyle": true,
			"bucket": "distribution", "secure": false},
		"cache":       {"blobdescriptor": "inmemory"},
		"delete":      {"enabled": true},
		"maintenance": {"uploadpurging": map[any]any{"enabled": false}},
	}}
	cfg.HTTP.Secret = "secret"
	cfg.Log.Level = "error"
	cfg.Log.AccessLog.Disabled = true
	cfg.Validation.Disabled = true
	return handlers.NewApp(ctx, cfg), nil
}

type artifact struct {
	store *memory.Store
	desc  ocispec.Descriptor
	repo  string
	tag   string
}

func newArtifact(ctx context.Context, i int) (*artifact, error) {
	a := &artifact{store: memory.New(), repo: fmt.Sprintf("bench/fn-%d", i%50), tag: fmt.Sprintf("v1.%d.0", i)}
	r := mrand.New(mrand.NewPCG(1, uint64(i)))
	var layers []ocispec.Descriptor
	for range 3 {
		b := make([]byte, 2_000+r.IntN(48_000))
		_, _ = rand.Read(b)
		d, err := oras.PushBytes(ctx, a.store, "application/vnd.example", b)
		if err != nil {
			return nil, err
		}
		layers = append(layers, d)
	}
	var err error
	a.desc, err = oras.PackManifest(ctx, a.store, oras.PackManifestVersion1_1, "application/vnd.example", oras.PackManifestOptions{Layers: layers})
	if err != nil {
		return nil, err
	}
	return a, a.store.Tag(ctx, a.desc, a.tag)
}

func (a *artifact) target(host string) (*remote.Repository, error) {
	r, err := remote.NewRepository(host + "/" + a.repo)
	if err == nil {
		r.PlainHTTP = true
	}
	return r, err
}

func (a *artifact) push(ctx context.Context, host string) error {
	r, err := a.target(host)
	if err != nil {
		return err
	}
	_, err = oras.Copy(ctx, a.store, a.tag, r, a.tag, oras.DefaultCopyOptions)
	return err
}

func (a *artifact) pull(ctx context.Context, host string) error {
	r, err := a.target(host)
	if err != nil {
		return err
	}
	got, err := oras.Copy(ctx, r, a.tag, memory.New(), "", oras.DefaultCopyOptions)
	if err == nil && got.Digest != a.desc.Digest {
		return errors.New("another artifact came back")
	}
	return err
}

// pushLarge pushes a blob in one chunk of unknown length, as docker does.
func pushLarge(ctx context.Context, base string, b []byte) error {
	resp, err := http.Post(base+"/v2/bench/large/blobs/uploads/", "", nil)
	if err != nil {
		return err
	}
	resp.Body.Close()
	at, err := resp.Request.URL.Parse(resp.Header.Get("Location"))
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPatch, at.String(), io.MultiReader(&slice{b}))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/octet-stream")
	if resp, err = http.DefaultClient.Do(req); err != nil {
		return err
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusAccepted {
		return fmt.Errorf("chunk: %s", resp.Status)
	}
	if at, err = resp.Request.URL.Parse(resp.Header.Get("Location")); err != nil {
		return err
	}
	q := at.Query()
	q.Set("digest", string(digest.FromBytes(b)))
	at.RawQuery = q.Encode()
	if req, err = http.NewRequestWithContext(ctx, http.MethodPut, at.String(), nil); err != nil {
		return err
	}
	if resp, err = http.DefaultClient.Do(req); err != nil {
		return err
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusCreated {
		return fmt.Errorf("end of the upload: %s", resp.Status)
	}
	return nil
}

// slice hides its length.
type slice struct{ b []byte }

func (s *slice) Read(p []byte) (int, error) {
	if len(s.b) == 0 {
		return 0, io.EOF
	}
	n := copy(p, s.b)
	s.b = s.b[n:]
	return n, nil
}

func measure(name string, workers, n int, calls *atomic.Int64, f func(i int) error) error {
	var next atomic.Int64
	var mu sync.Mutex
	var all []time.Duration
	var failed error
	start := time.Now()
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				t := time.Now()
				err := f(i)
				mu.Lock()
				all = append(all, time.Since(t))
				failed = errors.Join(failed, err)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	took := time.Since(start)
	slices.Sort(all)
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	fmt.Printf("%-46s %10.1f %8.1f %8.1f %8.1f\n", name, float64(n)/took.Seconds(), ms(all[n/2]), ms(all[n*99/100]), float64(calls.Load())/float64(n))
	return failed
}
