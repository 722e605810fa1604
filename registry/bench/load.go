package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/content/memory"
	"oras.land/oras-go/v2/registry/remote"
	"oras.land/oras-go/v2/registry/remote/auth"

	"github.com/krmcat/krmcat/registry/regtest"
)

// phases are what is measured, in this order.
var phases = []string{"push", "pull", "sign", "refs"}

// artifact is a function's release of the usual size with its signature.
type artifact struct {
	repository, tag string
	store           *memory.Store
	desc, signature ocispec.Descriptor
}

// perRepository is how many releases a repository has.
const perRepository = 10

func build(ctx context.Context, salt string, i int) (*artifact, error) {
	a := &artifact{repository: fmt.Sprintf("%s/fn-%03d", salt, i/perRepository), tag: fmt.Sprintf("v0.%d.0", i%perRepository), store: memory.New()}
	seed := uint64(i)<<8 | uint64(len(salt))
	rng := rand.New(rand.NewPCG(seed, 1))
	var layers []ocispec.Descriptor
	for l := range 3 {
		b := append(fmt.Appendf(nil, "%s-%d-%d|", salt, i, l), regtest.Random(seed<<4|uint64(l), 2048+rng.IntN(48<<10))...)
		d, err := oras.PushBytes(ctx, a.store, "application/vnd.example.layer", b)
		if err != nil {
			return nil, err
		}
		layers = append(layers, d)
	}
	created := map[string]string{ocispec.AnnotationCreated: "2026-01-01T00:00:00Z"}
	var err error
	if a.desc, err = oras.PackManifest(ctx, a.store, oras.PackManifestVersion1_1, "application/vnd.example", oras.PackManifestOptions{Layers: layers, ManifestAnnotations: created}); err != nil {
		return nil, err
	}
	if err := a.store.Tag(ctx, a.desc, a.tag); err != nil {
		return nil, err
	}
	sig, err := oras.PushBytes(ctx, a.store, "application/vnd.example.signature", fmt.Appendf(nil, `{"signature of":%q}`, a.desc.Digest))
	if err != nil {
		return nil, err
	}
	a.signature, err = oras.PackManifest(ctx, a.store, oras.PackManifestVersion1_1, "application/vnd.example.signature",
		oras.PackManifestOptions{Layers: []ocispec.Descriptor{sig}, Subject: &a.desc, ManifestAnnotations: created})
	return a, err
}

// load runs all phases against one server.
func load(ctx context.Context, s *server, o options, round int, store *minioServer) ([]result, error) {
	salt := fmt.Sprintf("round%d", round)
	arts := make([]*artifact, o.Artifacts)
	for i := range arts {
		var err error
		if arts[i], err = build(ctx, salt, i); err != nil {
			return nil, err
		}
	}
	client := &auth.Client{Client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}, Cache: auth.NewCache()}
	repository := func(a *artifact) (*remote.Repository, error) {
		r, err := remote.NewRepository(s.host + "/" + a.repository)
		if err != nil {
			return nil, err
		}
		r.Client, r.PlainHTTP, r.SkipReferrersGC = client, true, true
		return r, nil
	}
	three := oras.CopyOptions{CopyGraphOptions: oras.CopyGraphOptions{Concurrency: 3}}
	do := map[string]func(*artifact, *remote.Repository) error{
		"push": func(a *artifact, r *remote.Repository) error {
			_, err := oras.Copy(ctx, a.store, a.tag, r, a.tag, three)
			return err
		},
		"pull": func(a *artifact, r *remote.Repository) error {
			d, err := oras.Copy(ctx, r, a.tag, memory.New(), "", three)
			if err == nil && d.Digest != a.desc.Digest {
				err = errors.New("pulled something else")
			}
			return err
		},
		"sign": func(a *artifact, r *remote.Repository) error {
			return oras.CopyGraph(ctx, a.store, r, a.signature, oras.DefaultCopyGraphOptions)
		},
		"refs": func(a *artifact, r *remote.Repository) error {
			found := false
			err := r.Referrers(ctx, a.desc, "application/vnd.example.signature", func(list []ocispec.Descriptor) error {
				found = found || slices.ContainsFunc(list, func(d ocispec.Descriptor) bool { return d.Digest == a.signature.Digest })
				return nil
			})
			if err == nil && !found {
				err = errors.New("signature is not listed")
			}
			return err
		},
	}
	var results []result
	for _, phase := range phases {
		r := result{Server: s.name, Phase: phase, Round: round, N: o.Artifacts}
		calls := store.count()
		cpu := s.cpu()
		times, errs, took := inParallel(o.Workers, len(arts), func(i int) error {
			repo, err := repository(arts[i])
			if err != nil {
				return err
			}
			return do[phase](arts[i], repo)
		})
		if err := ctx.Err(); err != nil {
			return results, err
		}
		r.Errors, r.Seconds = len(errs), took.Seconds()
		r.PerSecond = float64(o.Artifacts) / took.Seconds()
		r.P50, r.P99 = milliseconds(times[len(times)/2]), milliseconds(times[len(times)*99/100])
		r.CPU = (s.cpu() - cpu) * 1000 / float64(o.Artifacts)
		r.RSS, r.Peak = s.memory()
		r.Calls = float64(store.count()-calls) / float64(o.Artifacts)
		results = append(results, r)
		if len(errs) > 0 {
			fmt.Fprintf(os.Stderr, "%s %s: %v\n", s.name, phase, errs[0])
		}
	}
	return results, nil
}

// inParallel does n things and returns how long each took, sorted.
func inParallel(workers, n int, f func(i int) error) (times []time.Duration, errs []error, took time.Duration) {
	times = make([]time.Duration, n)
	var next atomic.Int64
	var mu sync.Mutex
	var wg sync.WaitGroup
	begin := time.Now()
	for range workers {
		wg.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				start := time.Now()
				if err := f(i); err != nil {
					mu.Lock()
					errs = append(errs, err)
					mu.Unlock()
				}
				times[i] = time.Since(start)
			}
		})
	}
	wg.Wait()
	took = time.Since(begin)
	slices.Sort(times)
	return times, errs, took
}

// referrersOf measures the list of 1, 10 and 100 referrers of one subject.
func referrersOf(ctx context.Context, s *server, o options) error {
	for _, n := range []int{1, 10, 100} {
		subject := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: digest.FromString(fmt.Sprint("subject ", n)), Size: 1}
		for i := range n {
			sig := regtest.NewArtifact("application/vnd.example.signature", &subject, fmt.Appendf(nil, "signature %d", i))
			if err := s.pushTo(ctx, "referrers/of", "", sig); err != nil {
				return err
			}
		}
		times, errs, _ := inParallel(o.Workers, 4*o.Artifacts, func(int) error {
			return s.get(ctx, "/v2/referrers/of/referrers/"+string(subject.Digest))
		})
		if len(errs) > 0 {
			return errs[0]
		}
		fmt.Printf("%3d referrers: p50 %.2f ms, p99 %.2f ms\n", n, milliseconds(times[len(times)/2]), milliseconds(times[len(times)*99/100]))
	}
	return nil
}

// largeBlob measures one large blob.
func largeBlob(ctx context.Context, o options) error {
	s, err := startKrmcat(ctx, o.Dir, nil)
	if err != nil {
		return err
	}
	defer s.stop()
	block := regtest.Random(1, 1<<20)
	h := digest.SHA256.Digester()
	for range o.Blob {
		h.Hash().Write(block)
	}
	readers := make([]io.Reader, o.Blob)
	for i := range readers {
		readers[i] = strings.NewReader(string(block))
	}
	before, _ := s.memory()
	begin := time.Now()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+s.host+"/v2/large/blob/blobs/uploads/?digest="+string(h.Digest()), io.MultiReader(readers...))
	if err != nil {
		return err
	}
	req.ContentLength = int64(o.Blob) << 20
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	_ = resp.Body.Close() // empty
	if resp.StatusCode != http.StatusCreated {
		return fmt.Errorf("push: %s", resp.Status)
	}
	up := time.Since(begin)
	begin = time.Now()
	if err := s.get(ctx, "/v2/large/blob/blobs/"+string(h.Digest())); err != nil {
		return err
	}
	down := time.Since(begin)
	after, peak := s.memory()
	fmt.Printf("%d MiB: in %.0f MiB/s, out %.0f MiB/s; rss %.0f MB before, %.0f after, peak %.0f\n", o.Blob,
		float64(o.Blob)/up.Seconds(), float64(o.Blob)/down.Seconds(), before, after, peak)
	return nil
}
