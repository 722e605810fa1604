package regdir_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/krmcat/krmcat/registry/regdir"
	"github.com/krmcat/krmcat/registry/regstore"
	"github.com/krmcat/krmcat/registry/regtest"
)

// age makes every file of a registry two days old.
func age(t testing.TB, dir string) {
	t.Helper()
	old := time.Now().Add(-48 * time.Hour)
	for _, f := range files(t, dir) {
		if err := os.Chtimes(filepath.Join(dir, f), old, old); err != nil {
			t.Fatal(err)
		}
	}
}

func TestGC(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	dir := t.TempDir()
	s := open(t, dir, nil)
	layer := regtest.Random(1, 1000)
	tagged := regtest.NewArtifact("application/vnd.example", nil, layer)
	regtest.Put(ctx, t, s, repo, tagged, "v1")
	sig := regtest.NewArtifact("application/vnd.example.signature", &tagged.Descriptor, []byte("signature"))
	regtest.Put(ctx, t, s, repo, sig)
	sigOfSig := regtest.NewArtifact("application/vnd.example.signature", &sig.Descriptor, []byte("timestamp"))
	regtest.Put(ctx, t, s, repo, sigOfSig)
	child := regtest.NewArtifact("application/vnd.example", nil, []byte("child"))
	regtest.Put(ctx, t, s, repo, child)
	regtest.Put(ctx, t, s, repo, regtest.NewIndex("", nil, child.Descriptor), "index")
	untagged := regtest.NewArtifact("application/vnd.example", nil, []byte("untagged"))
	regtest.Put(ctx, t, s, repo, untagged)
	orphan := regtest.PutBlob(ctx, t, s, repo, []byte("orphan"))
	shared := regtest.PutBlob(ctx, t, s, repo, []byte("shared"))
	regtest.Put(ctx, t, s, "other/repository", regtest.NewArtifact("application/vnd.example", nil, []byte("shared")), "v1")

	gc := func(opts *regdir.GCOptions, want regdir.GCResult) {
		t.Helper()
		got, err := s.GC(ctx, opts)
		if err != nil {
			t.Fatal(err)
		}
		if got != want {
			t.Errorf("GC: got %+v, want %+v", got, want)
		}
	}
	gc(nil, regdir.GCResult{}) // all too young
	age(t, dir)
	gc(&regdir.GCOptions{DryRun: true}, regdir.GCResult{Links: 2, Blobs: 1, Bytes: 6})
	if rc, err := s.FetchBlob(ctx, repo, orphan); err == nil {
		_ = rc.Close()
	} else {
		t.Errorf("a dry run removed something: %v", err)
	}
	gc(nil, regdir.GCResult{Links: 2, Blobs: 1, Bytes: 6})
	for _, d := range []digest.Digest{orphan, shared} {
		if _, err := s.StatBlob(ctx, repo, d); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("blob %s: got %v, want none", d, err)
		}
	}
	if _, err := s.StatBlob(ctx, "other/repository", shared); err != nil {
		t.Errorf("a blob that another repository has: %v", err)
	}
	gc(nil, regdir.GCResult{})
	// What is only known by its digest stays, unless one wants otherwise.
	if _, err := s.Resolve(ctx, repo, string(untagged.Descriptor.Digest)); err != nil {
		t.Errorf("an untagged manifest: %v", err)
	}
	var removed []digest.Digest
	gc(&regdir.GCOptions{Untagged: true, Removed: func(_ string, d digest.Digest) { removed = append(removed, d) }},
		regdir.GCResult{Manifests: 1, Links: 1, Blobs: 1, Bytes: 8})
	if !slices.Equal(removed, []digest.Digest{untagged.Descriptor.Digest}) {
		t.Errorf("removed %v", removed)
	}
	for _, a := range []*regtest.Artifact{tagged, sig, sigOfSig, child} {
		if _, err := s.Resolve(ctx, repo, string(a.Descriptor.Digest)); err != nil {
			t.Errorf("manifest that a tag leads to: %v", err)
		}
	}
	for _, p := range fsck(t, s, nil) {
		t.Errorf("fsck: %v", p)
	}
	// A deleted release takes its signatures along.
	if err := s.DeleteManifest(ctx, repo, tagged.Descriptor.Digest); err != nil {
		t.Fatal(err)
	}
	gc(&regdir.GCOptions{Untagged: true}, regdir.GCResult{Manifests: 2, Links: 3, Blobs: 3, Bytes: 1000 + 9 + 9})
}

// A blob that a client was told to be there is not collected before the
// client can refer to it.
func TestGCSparesWhatWasAskedFor(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	dir := t.TempDir()
	s := open(t, dir, nil)
	asked := regtest.PutBlob(ctx, t, s, repo, []byte("asked"))
	mounted := regtest.PutBlob(ctx, t, s, "other/repository", []byte("mounted"))
	again := regtest.PutBlob(ctx, t, s, repo, []byte("again"))
	age(t, dir)
	if _, err := s.StatBlob(ctx, repo, asked); err != nil {
		t.Fatal(err)
	}
	if err := s.MountBlob(ctx, repo, "other/repository", mounted); err != nil {
		t.Fatal(err)
	}
	regtest.PutBlob(ctx, t, s, repo, []byte("again"))
	if got, err := s.GC(ctx, nil); err != nil || got != (regdir.GCResult{Links: 1}) { // in other/repository
		t.Errorf("GC: got %+v, %v", got, err)
	}
	for _, d := range []digest.Digest{asked, mounted, again} {
		if _, err := s.StatBlob(ctx, repo, d); err != nil {
			t.Error(err)
		}
	}
}

// Nothing acknowledged is lost, however often garbage is collected beside
// pushes, and with no grace to speak of. A push may be told that a blob it
// counts on is not there any more; it is never told that it succeeded when it
// did not.
func TestGCBesidePushes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir, nil)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	type pushed struct {
		repository, tag string
		art             *regtest.Artifact
	}
	var mu sync.Mutex
	var acks []pushed
	var retries, collected atomic.Int64
	n := rounds(t, "KRMCAT_GC_PUSHES", 60)
	var wg sync.WaitGroup
	for w := range 6 {
		wg.Go(func() {
			for k := range n {
				// Layers that others push, mount and abandon too.
				shared := regtest.Random(uint64(k%5), 3000)
				art := regtest.NewArtifact("application/vnd.example", nil, shared, fmt.Appendf(nil, "layer %d of %d", k, w))
				sig := regtest.NewArtifact("application/vnd.example.signature", &art.Descriptor, []byte("signature"))
				index := regtest.NewIndex("", nil, art.Descriptor)
				repository := fmt.Sprintf("gc/fn-%d", (w+k)%4)
				ok := false
				for range 100 {
					var err error
					if k%3 == 0 { // mount instead of pushing
						err = s.MountBlob(ctx, repository, "", digest.FromBytes(shared))
						if err == nil {
							art.Blobs = slices.DeleteFunc(art.Blobs, func(b []byte) bool { return bytes.Equal(b, shared) })
						}
					}
					tag := fmt.Sprintf("v%d.%d", w, k)
					if err == nil || errors.Is(err, fs.ErrNotExist) {
						err = regtest.Push(ctx, s, repository, art)
					}
					art.Blobs = [][]byte{[]byte("{}"), shared, fmt.Appendf(nil, "layer %d of %d", k, w)}
					if err == nil {
						err = regtest.Push(ctx, s, repository, index, tag)
					}
					if err == nil {
						err = regtest.Push(ctx, s, repository, sig)
					}
					var missing *regstore.MissingError
					if errors.As(err, &missing) {
						retries.Add(1)
						continue
					}
					if err != nil {
						t.Errorf("push: %v", err)
						return
					}
					mu.Lock()
					acks = append(acks, pushed{repository, tag, art})
					mu.Unlock()
					ok = true
					break
				}
				if !ok {
					t.Error("a push did not succeed in 100 tries")
				}
				regtest.PutBlob(ctx, t, s, repository, fmt.Appendf(nil, "abandoned %d %d", w, k))
			}
		})
	}
	done := make(chan struct{})
	var collector sync.WaitGroup
	collector.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-done:
				return
			default:
			}
			got, err := s.GC(ctx, &regdir.GCOptions{Grace: time.Nanosecond, Untagged: i%4 == 3})
			if err != nil {
				t.Errorf("GC: %v", err)
				return
			}
			collected.Add(int64(got.Blobs))
		}
	})
	wg.Wait()
	close(done)
	collector.Wait()
	for _, a := range acks {
		if got, err := s.Resolve(ctx, a.repository, a.tag); err != nil {
			t.Errorf("tag %s of %s: %v", a.tag, a.repository, err)
		} else if got.MediaType != "application/vnd.oci.image.index.v1+json" {
			t.Errorf("tag %s is %s", a.tag, got.MediaType)
		}
		if got, err := s.FetchManifest(ctx, a.repository, a.art.Descriptor.Digest); err != nil || !bytes.Equal(got, a.art.Manifest) {
			t.Errorf("manifest of %s: %v", a.tag, err)
		}
		for _, b := range a.art.Blobs {
			if size, err := s.StatBlob(ctx, a.repository, digest.FromBytes(b)); err != nil || size != int64(len(b)) {
				t.Errorf("blob of %s: %v", a.tag, err)
			}
		}
		sigs := 0
		for range s.Referrers(ctx, a.repository, a.art.Descriptor.Digest, "") {
			sigs++
		}
		if sigs != 1 {
			t.Errorf("%s has %d signatures, want 1", a.tag, sigs)
		}
	}
	for _, p := range fsck(t, s, nil) {
		if !strings.Contains(p.What, "lists a referrer") {
			t.Errorf("fsck: %v", p)
		}
	}
	t.Logf("%d pushes acknowledged, %d tries again, %d blobs collected", len(acks), retries.Load(), collected.Load())
	if collected.Load() == 0 {
		t.Error("nothing was collected; the test has shown nothing")
	}
}
