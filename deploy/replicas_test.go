package deploy

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/krmcat/krmcat/registry"
	"github.com/krmcat/krmcat/registry/regtest"
)

// release is what the test publishes: a function of its own.
func release(kind string) *regtest.Artifact {
	document := []byte(`apiVersion: config.kubernetes.io/v1alpha1
kind: KRMFunctionDefinition
spec:
  group: example.com
  names: {kind: ` + kind + `}
  description: Does ` + kind + `
  publisher: acme
  versions:
  - name: v1
    schema: {openAPIV3Schema: {type: object}}
    idempotent: true
    runtime: {container: {image: "example.com/fn@sha256:2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae"}}
    usage: https://example.com/README.md
    examples: [https://example.com/example.md]
    license: Apache 2.0
`)
	m := regtest.Marshal(ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest, ArtifactType: registry.ArtifactTypeDefinition,
		Config: ocispec.Descriptor{MediaType: ocispec.MediaTypeEmptyJSON, Digest: digest.FromString("{}"), Size: 2},
		Layers: []ocispec.Descriptor{regtest.Describe(registry.MediaTypeDefinition, document)},
	})
	return &regtest.Artifact{Descriptor: regtest.Describe(ocispec.MediaTypeImageManifest, m), Manifest: m, Blobs: [][]byte{[]byte("{}"), document}}
}

// impatient gives up on a server that is gone.
var impatient = &http.Client{Timeout: 30 * time.Second}

func send(ctx context.Context, method, address, path, contentType string, body []byte) (int, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://"+address+path, bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	req.SetBasicAuth("ci", "secret")
	req.Header.Set("Content-Type", contentType)
	resp, err := impatient.Do(req)
	if err != nil {
		return 0, err
	}
	defer func() { _ = resp.Body.Close() }() // only read
	_, err = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, err
}

// pushRelease publishes a function and reports whether that was acknowledged.
func pushRelease(ctx context.Context, address, kind string) error {
	a := release(kind)
	repository := "/v2/acme/" + strings.ToLower(kind)
	for _, b := range a.Blobs {
		if code, err := send(ctx, http.MethodPost, address, repository+"/blobs/uploads/?digest="+string(digest.FromBytes(b)), "application/octet-stream", b); err != nil || code != http.StatusCreated {
			return fmt.Errorf("blob: %d, %w", code, err)
		}
	}
	if code, err := send(ctx, http.MethodPut, address, repository+"/manifests/v1.0.0", a.Descriptor.MediaType, a.Manifest); err != nil || code != http.StatusCreated {
		return fmt.Errorf("manifest: %d, %w", code, err)
	}
	return nil
}

// finds reports whether a server finds a function.
func finds(address, kind string) bool {
	return status("http://"+address+"/api/v1/functions?q="+url.QueryEscape(kind), fmt.Sprintf(`"kind": %q`, kind)) == http.StatusOK
}

// within is how soon the other servers show what one has acknowledged. The
// test looks for much longer, as its machine may be busy with others, and
// says how long it took.
const within = 2 * time.Second

// TestReplicas runs two servers over one bucket in MinIO and one PostgreSQL,
// which both collect garbage all the time. One server is killed in the middle of
// pushes, and then the database: what either server acknowledged is found
// through both, and the registry is whole.
func TestReplicas(t *testing.T) {
	t.Parallel()
	c := newComposition(t)
	gc := []string{"--gc-interval=300ms", "--gc-grace=1ms", "--log-level=debug"}
	a, killed := c.serve("krmcat-a", gc...)
	b, _ := c.serve("krmcat-b", gc...)

	var slowest time.Duration
	for i := range 6 {
		one, other := a, b
		if i%2 == 1 {
			one, other = b, a
		}
		kind := fmt.Sprint("Seen", i)
		if err := retry(t.Context(), one, kind); err != nil {
			t.Fatal(err)
		}
		if !finds(one, kind) {
			t.Errorf("%s is not found at once through the server that took it", kind)
		}
		acknowledged := time.Now()
		await(t, kind+" through the other server", func() bool { return finds(other, kind) })
		slowest = max(slowest, time.Since(acknowledged))
	}
	t.Logf("what one server acknowledged was found through the other one after %s at most (%s are promised)", slowest.Round(time.Millisecond), within)

	// Pushes through both, while one is killed, and while the database is.
	var mu sync.Mutex
	var acknowledged []string
	push := func(ctx context.Context, address func() string, prefix string, stop <-chan struct{}) {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			kind := fmt.Sprint(prefix, i)
			if pushRelease(ctx, address(), kind) == nil {
				mu.Lock()
				acknowledged = append(acknowledged, kind)
				mu.Unlock()
			}
		}
	}
	count := func() int { mu.Lock(); defer mu.Unlock(); return len(acknowledged) }
	more := func(n int) {
		t.Helper()
		want := count() + n
		await(t, "more pushes", func() bool { return count() >= want })
	}
	var one atomic.Value
	one.Store(a)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for w := range 2 {
		wg.Go(func() {
			push(t.Context(), func() string { return one.Load().(string) }, fmt.Sprintf("ViaA%dx", w), stop)
		})
		wg.Go(func() { push(t.Context(), func() string { return b }, fmt.Sprintf("ViaB%dx", w), stop) })
	}
	more(8)
	if err := killed.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	more(6) // through the other one
	again, _ := c.serve("krmcat-a", gc...)
	one.Store(again)
	more(4)
	c.pg.stop()
	// Nothing is acknowledged without the database; pulls go on.
	for _, address := range []string{again, b} {
		if code, err := send(t.Context(), http.MethodGet, address, "/v2/acme/seen0/manifests/v1.0.0", "", nil); err != nil || code != http.StatusOK {
			t.Errorf("a pull without the database: %d, %v", code, err)
		}
	}
	if err := pushRelease(t.Context(), b, "Without"); err == nil {
		t.Error("a release was acknowledged without the database")
	}
	c.pg.start()
	more(8)
	close(stop)
	wg.Wait()

	for _, address := range []string{again, b} {
		for _, kind := range acknowledged {
			await(t, fmt.Sprintf("%s, which was acknowledged, through %s", kind, address), func() bool { return finds(address, kind) })
			if code, err := send(t.Context(), http.MethodGet, address, "/v2/acme/"+strings.ToLower(kind)+"/manifests/v1.0.0", "", nil); err != nil || code != http.StatusOK {
				t.Errorf("%s: %d, %v", kind, code, err)
			}
		}
	}
	t.Logf("%d pushes were acknowledged", len(acknowledged))

	// Garbage was collected, by one server at a time.
	fsck := exec.Command(c.krmcat, "admin", "fsck", c.expand("s3://functions?endpoint=http://minio:9000"))
	fsck.Env = c.environment("krmcat-a")
	if out, err := fsck.CombinedOutput(); err != nil {
		t.Errorf("krmcat admin fsck: %v\n%s", err, out)
	}
	await(t, "a garbage collection", func() bool { return collected(t, c) })
}

// retry publishes a function that a garbage collection without grace may get
// in the way of: a blob can go before the manifest that refers to it comes, and
// that is then refused.
func retry(ctx context.Context, address, kind string) (err error) {
	for range 20 {
		if err = pushRelease(ctx, address, kind); err == nil {
			return nil
		}
	}
	return err
}

// collected reports whether the bucket says that garbage was collected.
func collected(t *testing.T, c *composition) bool {
	t.Helper()
	client, err := minio.New(c.hosts["minio:9000"], &minio.Options{Creds: credentials.NewStaticV4("krmcat", "s3-password", ""), Region: "us-east-1"})
	if err != nil {
		t.Fatal(err)
	}
	o, err := client.GetObject(t.Context(), "functions", "gc", minio.GetObjectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = o.Close() }() // only read
	var state struct{ Finished time.Time }
	return json.NewDecoder(o).Decode(&state) == nil && !state.Finished.IsZero()
}
