package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/krmcat/krmcat/internal/durable"
	"github.com/krmcat/krmcat/registry"
	"github.com/krmcat/krmcat/registry/regdir"
	"github.com/krmcat/krmcat/registry/regtest"
)

// fill compares an empty server with one of so many releases of functions,
// all of which are in its index too: how long each start takes until pulls and
// searches are answered, and how long pushes take.
func fill(ctx context.Context, o options) error {
	program, err := buildKrmcat(ctx, o.Dir)
	if err != nil {
		return err
	}
	full, empty := filepath.Join(o.Dir, "full"), filepath.Join(o.Dir, "empty")
	begin := time.Now()
	if err := fillFolder(ctx, filepath.Join(full, "registry"), o.Fill, o.Workers); err != nil {
		return err
	}
	fmt.Printf("filled with %d releases of functions in %.0f s\n", o.Fill, time.Since(begin).Seconds())

	s, err := startup(ctx, "without an index", program, full, o.Fill, full, 20*time.Minute)
	if err != nil {
		return err
	}
	defer func() { s.stop() }()
	if err := s.terminate(); err != nil {
		return err
	}
	if s, err = startup(ctx, "after a clean stop", program, full, o.Fill, full, time.Minute); err != nil {
		return err
	}
	e, err := startup(ctx, "empty, for comparison", program, empty, 0, empty, time.Minute)
	if err != nil {
		return err
	}
	defer func() { e.stop() }()
	if err := latency(ctx, e, s, o); err != nil {
		return err
	}
	if err := referrersOf(ctx, s, o); err != nil {
		return err
	}
	// In the middle of pushes.
	pushing, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _, _ = inParallel(o.Workers, 10_000, func(i int) error { return s.push(pushing, release(fmt.Sprint("killed", i))) })
	}()
	time.Sleep(2 * time.Second)
	s.stop()
	cancel()
	<-done
	if s, err = startup(ctx, "after kill -9 in the middle of pushes", program, full, o.Fill, full, time.Minute); err != nil {
		return err
	}
	rss, peak := s.memory()
	fmt.Printf("memory of that server: %.0f MB, at most %.0f MB\n", rss, peak)
	return nil
}

// startup starts a server and prints how long it takes until the registry
// answers, until a release can be pulled, and until the index answers.
func startup(ctx context.Context, what, program, dir string, n int, logs string, patience time.Duration) (*server, error) {
	s, err := startServe(ctx, program, logs+".log", nil, "--data", dir)
	if err != nil {
		return nil, err
	}
	at := map[string]time.Duration{}
	type question struct{ name, path, answer string }
	questions := []question{{"v2", "/v2/", ""}, {"search", "/api/v1/functions?q=none", `"total": 0`}}
	if n > 0 {
		last := releaseOf(n - 1)
		questions = []question{
			{"v2", "/v2/", ""}, {"pull", "/v2/" + last.repository + "/manifests/" + last.tag, ""},
			{"search", "/api/v1/functions?q=" + last.kind, fmt.Sprintf(`"kind": %q`, last.kind)},
		}
	}
	// Asked ever less often, so that asking is not what takes the time.
	for deadline := time.Now().Add(patience); len(at) < len(questions); time.Sleep(2*time.Millisecond + time.Since(s.begun)/50) {
		for _, q := range questions {
			if _, ok := at[q.name]; !ok && s.answers(ctx, q.path, q.answer) {
				at[q.name] = time.Since(s.begun)
			}
		}
		if ctx.Err() != nil || time.Now().After(deadline) {
			s.stop()
			return nil, fmt.Errorf("%s: the server does not answer (see %s.log): %v", what, logs, at)
		}
	}
	line := fmt.Sprintf("start %-38s /v2/ answers after %5.0f ms", what+":", milliseconds(at["v2"]))
	if n > 0 {
		line += fmt.Sprintf(", pulls %5.0f ms", milliseconds(at["pull"]))
	}
	fmt.Printf("%s, search %5.0f ms\n", line, milliseconds(at["search"]))
	return s, nil
}

// latency compares pushes of releases to two servers, which take turns.
func latency(ctx context.Context, empty, full *server, o options) error {
	const rounds = 7
	for _, workers := range []int{1, 8} {
		n := 40 * workers
		p50, p99 := map[*server][]float64{}, map[*server][]float64{}
		for round := range rounds {
			for _, s := range []*server{empty, full} {
				times, errs, _ := inParallel(workers, n, func(i int) error {
					return s.push(ctx, release(fmt.Sprintf("w%dr%di%d", workers, round, i)))
				})
				if len(errs) > 0 {
					return errs[0]
				}
				if round > 0 { // the first one warms up
					p50[s] = append(p50[s], milliseconds(times[len(times)/2]))
					p99[s] = append(p99[s], milliseconds(times[len(times)*99/100]))
				}
			}
		}
		e, f := middle(p50[empty]), middle(p50[full])
		fmt.Printf("push of a release, %d at a time: %.1f ms when empty, %.1f ms with %d, ratio %.2f (p99 %.1f and %.1f ms)\n",
			workers, e, f, o.Fill, f/e, middle(p99[empty]), middle(p99[full]))
	}
	return nil
}

func middle(v []float64) float64 {
	slices.Sort(v)
	return v[len(v)/2]
}

// released is a release of a function, as krmcat publish makes it.
type released struct {
	repository, tag, kind string
	artifact              *regtest.Artifact
}

// releaseOf is one of those that a store is filled with: ten of each
// function.
func releaseOf(i int) released {
	return releaseAs(fmt.Sprintf("team-%d/fn-%d", i/perRepository%100, i/perRepository), fmt.Sprintf("v1.%d.0", i%perRepository), fmt.Sprintf("Fn%d", i/perRepository), i)
}

// release is the first one of a new function.
func release(name string) released {
	return releaseAs("new/"+name, "v1.0.0", "New"+name, 0)
}

func releaseAs(repository, tag, kind string, i int) released {
	publisher, _, _ := strings.Cut(repository, "/")
	words := []string{"labels", "charts", "routes", "limits", "names", "rules", "quota", "mesh"}
	document := fmt.Sprintf(`apiVersion: config.kubernetes.io/v1alpha1
kind: KRMFunctionDefinition
metadata:
  name: %s
spec:
  group: %s.example.com
  names:
    kind: %s
  description: Sets %s and %s on all resources, in release %s of %s
  publisher: %s
  tags: [mutator, %s]
  versions:
  - name: v1
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            properties:
              value: {type: string, description: what to set}
              count: {type: integer, minimum: 1}
    idempotent: true
    runtime:
      container:
        image: registry.example.com/%s@sha256:abc%061x
        sha256: abc%061x
    usage: https://example.com/README.md
    examples: [https://example.com/example.md]
    license: Apache 2.0
`, strings.ToLower(kind), publisher, kind, words[i%8], words[(i/8)%8], tag, repository, publisher, words[i/64%8], repository, i, i)
	m := ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest, ArtifactType: registry.ArtifactTypeDefinition,
		Config:      ocispec.Descriptor{MediaType: ocispec.MediaTypeEmptyJSON, Digest: digest.FromString("{}"), Size: 2},
		Layers:      []ocispec.Descriptor{regtest.Describe(registry.MediaTypeDefinition, []byte(document))},
		Annotations: map[string]string{ocispec.AnnotationTitle: kind, ocispec.AnnotationCreated: "2026-01-01T00:00:00Z"},
	}
	manifest := regtest.Marshal(m)
	return released{repository, tag, kind, &regtest.Artifact{
		Descriptor: regtest.Describe(m.MediaType, manifest), Manifest: manifest, Blobs: [][]byte{[]byte("{}"), []byte(document)},
	}}
}

// fillFolder makes a registry folder. It is filled where flushing costs
// nothing, if the machine has such a place, and then copied.
func fillFolder(ctx context.Context, dir string, n, workers int) error {
	stage := dir
	const memory = "/dev/shm"
	if fi, err := os.Stat(memory); err == nil && fi.IsDir() {
		if stage, err = os.MkdirTemp(memory, "krmcat-bench-"); err != nil {
			return err
		}
		defer func() { _ = os.RemoveAll(stage) }() // of this program
	}
	store, err := regdir.Open(stage, nil)
	if err != nil {
		return err
	}
	_, errs, _ := inParallel(workers, n, func(i int) error {
		r := releaseOf(i)
		return errors.Join(ctx.Err(), regtest.Push(ctx, store, r.repository, r.artifact, r.tag))
	})
	if err := errors.Join(append(errs, store.Close())...); err != nil {
		return err
	}
	if stage == dir {
		return nil
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	if err := os.CopyFS(dir, os.DirFS(stage)); err != nil {
		return err
	}
	// What was copied is not to be flushed by the server that is measured.
	return durable.SyncAll(dir)
}

// push pushes a release.
func (s *server) push(ctx context.Context, r released) error {
	return s.pushTo(ctx, r.repository, r.tag, r.artifact)
}

// terminate asks the server to stop, and waits for that.
func (s *server) terminate() error {
	begin := time.Now()
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	if err := s.cmd.Wait(); err != nil {
		return fmt.Errorf("%s: %w", s.name, err)
	}
	fmt.Printf("stopped in %.0f ms\n", milliseconds(time.Since(begin)))
	return nil
}

// answers reports whether a page is there and has a text.
func (s *server) answers(ctx context.Context, path, text string) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.host+path, nil)
	if err != nil {
		return false
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	defer func() { _ = resp.Body.Close() }() // only read
	b, err := io.ReadAll(resp.Body)
	return err == nil && resp.StatusCode == http.StatusOK && strings.Contains(string(b), text)
}
