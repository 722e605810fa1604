package regbucket_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"slices"
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

// anyAge takes everything for old, and settles at once.
var anyAge = regbucket.GCOptions{Grace: -time.Hour, Settle: time.Nanosecond}

func TestGC(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	cfg := fake(t)
	s := open(t, cfg)
	tagged := regtest.NewArtifact("application/vnd.example", nil, regtest.Random(1, 1000))
	regtest.Put(ctx, t, s, repo, tagged, "v1")
	sig := regtest.NewArtifact("application/vnd.example.signature", &tagged.Descriptor, []byte("signature"))
	regtest.Put(ctx, t, s, repo, sig)
	child := regtest.NewArtifact("application/vnd.example", nil, []byte("child"))
	regtest.Put(ctx, t, s, repo, child)
	regtest.Put(ctx, t, s, repo, regtest.NewIndex("", nil, child.Descriptor), "index")
	untagged := regtest.NewArtifact("application/vnd.example", nil, []byte("untagged"))
	regtest.Put(ctx, t, s, repo, untagged)
	orphan := regtest.PutBlob(ctx, t, s, repo, []byte("orphan"))
	regtest.Put(ctx, t, s, "other/repository", regtest.NewArtifact("application/vnd.example", nil, []byte("orphan")), "v1")
	regtest.PutBlob(ctx, t, s, "only/blobs", []byte("only"))

	gc := func(change func(*regbucket.GCOptions), want regbucket.GCResult) {
		t.Helper()
		o := anyAge
		change(&o)
		got, err := s.GC(ctx, &o)
		if err != nil {
			t.Fatal(err)
		}
		if got != want {
			t.Errorf("GC: got %+v, want %+v", got, want)
		}
	}
	gc(func(o *regbucket.GCOptions) { o.Grace = 0 }, regbucket.GCResult{}) // all too young
	gc(func(o *regbucket.GCOptions) { o.DryRun = true }, regbucket.GCResult{Blobs: 2, Bytes: 10})
	if _, err := s.StatBlob(ctx, repo, orphan); err != nil {
		t.Errorf("a dry run removed something: %v", err)
	}
	gc(func(*regbucket.GCOptions) {}, regbucket.GCResult{Blobs: 2, Bytes: 10})
	if _, err := s.StatBlob(ctx, repo, orphan); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("orphan: got %v, want none", err)
	}
	if _, err := s.StatBlob(ctx, "other/repository", orphan); err != nil {
		t.Errorf("the blob of another repository: %v", err)
	}
	gc(func(*regbucket.GCOptions) {}, regbucket.GCResult{})
	var removed []digest.Digest
	gc(func(o *regbucket.GCOptions) {
		o.Untagged = true
		o.Removed = func(_ string, d digest.Digest) { removed = append(removed, d) }
	}, regbucket.GCResult{Manifests: 1, Blobs: 1, Bytes: 8})
	if !slices.Equal(removed, []digest.Digest{untagged.Descriptor.Digest}) {
		t.Errorf("removed %v", removed)
	}
	for _, a := range []*regtest.Artifact{tagged, sig, child} {
		if _, err := s.Resolve(ctx, repo, string(a.Descriptor.Digest)); err != nil {
			t.Errorf("a manifest that a tag leads to: %v", err)
		}
	}
	checkFsck(t, s)
	// A deleted release takes its signature along.
	if err := s.DeleteManifest(ctx, repo, tagged.Descriptor.Digest); err != nil {
		t.Fatal(err)
	}
	gc(func(o *regbucket.GCOptions) { o.Untagged = true }, regbucket.GCResult{Manifests: 1, Blobs: 2, Bytes: 1009})
	for d := range s.Referrers(ctx, repo, tagged.Descriptor.Digest, "") {
		t.Errorf("referrer %s is still listed", d.Digest)
	}
	if keys := objectsOf(t, cfg).list("trash/"); len(keys) != 0 {
		t.Errorf("left in the trash: %v", keys)
	}
}

func checkFsck(t testing.TB, s *regbucket.Store) {
	t.Helper()
	for p, err := range s.Fsck(t.Context(), nil) {
		t.Errorf("fsck: %+v, %v", p, err)
	}
}

// What is deleted while a push refers to it is put back.
func TestDeletedUnderAPush(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	cfg := fake(t)
	a, b := open(t, cfg), open(t, cfg)
	art := regtest.NewArtifact("application/vnd.example", nil, []byte("layer"))
	for _, blob := range art.Blobs {
		regtest.PutBlob(ctx, t, a, repo, blob)
	}
	// One server has seen the blobs, the other one deletes them.
	for _, blob := range art.Blobs {
		if err := b.DeleteBlob(ctx, repo, digest.FromBytes(blob)); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.PutManifest(ctx, repo, art.Parse(t), []regstore.Tag{{Name: "v1"}}); err != nil {
		t.Fatalf("PutManifest: %v (the server has seen the blobs a moment ago)", err)
	}
	if _, err := b.GC(ctx, &anyAge); err != nil {
		t.Fatal(err)
	}
	c := open(t, cfg)
	for _, blob := range art.Blobs {
		if n, err := c.StatBlob(ctx, repo, digest.FromBytes(blob)); err != nil || n != int64(len(blob)) {
			t.Errorf("blob of an acknowledged manifest: %v", err)
		}
	}
	checkFsck(t, c)
}

// A deletion through one server shows through the others, as soon as they
// may not remember any more.
func TestDeletionsShow(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	cfg := fake(t)
	a := open(t, cfg)
	cfg.CacheTTL = -1
	b := open(t, cfg)
	art := regtest.NewArtifact("application/vnd.example", nil, []byte("layer"))
	regtest.Put(ctx, t, a, repo, art, "v1")
	layer := digest.FromString("layer")
	for _, s := range []*regbucket.Store{a, b} {
		if _, _, err := s.Manifest(ctx, repo, "v1"); err != nil {
			t.Fatal(err)
		}
		if _, err := s.FetchBlob(ctx, repo, layer); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.DeleteManifest(ctx, repo, art.Descriptor.Digest); err != nil {
		t.Fatal(err)
	}
	if err := a.DeleteBlob(ctx, repo, layer); err != nil {
		t.Fatal(err)
	}
	for name, s := range map[string]*regbucket.Store{"the same": a, "another": b} {
		for _, ref := range []string{"v1", string(art.Descriptor.Digest)} {
			if _, _, err := s.Manifest(ctx, repo, ref); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s server: manifest %s: got %v, want none", name, ref, err)
			}
		}
		if _, err := s.FetchBlob(ctx, repo, layer); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s server: blob: got %v, want none", name, err)
		}
	}
}

// Nothing acknowledged is lost, however often garbage is collected beside
// pushes through two servers, by either of two others, and with no grace at all.
func TestGCBesidePushes(t *testing.T) { onEach(t, testGCBesidePushes) }

func testGCBesidePushes(t *testing.T, cfg regbucket.Options) {
	ctx := t.Context()
	pushes := 12
	if !strings.HasSuffix(t.Name(), "/fake") {
		pushes = 3 // these flush to a disk
	}
	servers := []*regbucket.Store{open(t, cfg), open(t, cfg), open(t, cfg), open(t, cfg)}
	type pushed struct {
		repository, tag string
		art             *regtest.Artifact
	}
	var mu sync.Mutex
	var acks []pushed
	var retries, collected atomic.Int64
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			s := servers[w%2]
			for k := range pushes {
				shared := regtest.Random(uint64(k%5), 3000) // a layer that others push and abandon too
				art := regtest.NewArtifact("application/vnd.example", nil, shared, fmt.Appendf(nil, "layer %d of %d", k, w))
				sig := regtest.NewArtifact("application/vnd.example.signature", &art.Descriptor, []byte("signature"))
				repository := fmt.Sprintf("gc/fn-%d", (w+k)%2)
				tag := fmt.Sprintf("v%d.%d", w, k)
				for range 50 {
					err := regtest.Push(ctx, s, repository, art, tag)
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
					break
				}
				regtest.PutBlob(ctx, t, s, repository, fmt.Appendf(nil, "abandoned %d %d", w, k))
			}
		})
	}
	done := make(chan struct{})
	var collector sync.WaitGroup
	for _, s := range servers[2:] {
		collector.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				// What is removed is kept aside for longer than the test takes.
				got, err := s.GC(ctx, &regbucket.GCOptions{Grace: -time.Hour, Settle: -1, Lease: time.Second})
				if err != nil && !errors.Is(err, regbucket.ErrCollecting) {
					t.Errorf("GC: %v", err)
					return
				}
				collected.Add(int64(got.Blobs))
			}
		})
	}
	wg.Wait()
	close(done)
	collector.Wait()
	t.Logf("%d pushes acknowledged, %d tries again, %d blobs collected", len(acks), retries.Load(), collected.Load())
	if collected.Load() == 0 {
		t.Error("nothing was collected; the test has shown nothing")
	}
	s := open(t, cfg)
	if _, err := s.GC(ctx, &regbucket.GCOptions{Grace: time.Hour, Settle: time.Nanosecond}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.GC(ctx, &anyAge); err != nil {
		t.Fatal(err)
	}
	for _, a := range acks {
		if _, got, err := s.Manifest(ctx, a.repository, a.tag); err != nil || !bytes.Equal(got, a.art.Manifest) {
			t.Errorf("tag %s of %s: %v", a.tag, a.repository, err)
		}
		for _, b := range a.art.Blobs {
			if n, err := s.StatBlob(ctx, a.repository, digest.FromBytes(b)); err != nil || n != int64(len(b)) {
				t.Errorf("blob of %s: %v", a.tag, err)
			}
		}
	}
	checkFsck(t, s)
}

func TestFsck(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	cfg := fake(t)
	s := open(t, cfg)
	o := objectsOf(t, cfg)
	name := func(d digest.Digest) string { return strings.Replace(string(d), ":", "-", 1) }
	a := regtest.NewArtifact("application/vnd.example", nil, []byte("layer a"), []byte("layer b"))
	regtest.Put(ctx, t, s, repo, a, "v1", "v2")
	sig := regtest.NewArtifact("application/vnd.example.signature", &a.Descriptor)
	regtest.Put(ctx, t, s, repo, sig)
	index := regtest.NewIndex("", nil, sig.Descriptor)
	regtest.Put(ctx, t, s, repo, index, "index")
	checkFsck(t, s)
	base := "repositories/" + repo + "/"
	o.put(base+"_blobs/"+name(digest.FromString("layer a")), "other")
	o.put(base+"_blobs/nonsense", "x")
	o.remove(base + "_blobs/" + name(digest.FromString("layer b")))
	o.put(base+"_tags/v2", string(digest.FromString("nowhere"))+"\n")
	o.put(base+"_tags/v3", "nonsense")
	o.put(base+"_tags/-", "nonsense")
	o.put(base+"_manifests/nonsense", "x")
	o.put(base+"_manifests/"+name(digest.FromString("damaged")), "application/vnd.oci.image.manifest.v1+json\nother")
	o.remove(base + "_referrers/" + name(a.Descriptor.Digest) + "/" + name(sig.Descriptor.Digest))
	o.put(base+"_referrers/"+name(a.Descriptor.Digest)+"/"+name(digest.FromString("stray")), "")
	wants := []string{
		"content does not match the digest", "is not the name of a blob", "blob " + string(digest.FromString("layer b")) + " is missing",
		"manifest " + string(digest.FromString("nowhere")) + " is missing", "object is damaged", "is not the name of a tag",
		"is not the name of a manifest", "is damaged in the bucket", "the referrer is not listed", "lists a referrer that is not there",
	}
	fsck := func(opts *regbucket.FsckOptions) []regbucket.Problem {
		t.Helper()
		var list []regbucket.Problem
		for p, err := range s.Fsck(ctx, opts) {
			if err != nil {
				t.Fatal(err)
			}
			list = append(list, p)
		}
		return list
	}
	for _, opts := range []*regbucket.FsckOptions{nil, {Repair: true}} {
		list := fsck(opts)
		for _, want := range wants {
			if !slices.ContainsFunc(list, func(p regbucket.Problem) bool { return strings.Contains(p.What, want) }) {
				t.Errorf("%+v: no problem %q in %+v", opts, want, list)
			}
		}
	}
	// Pushed again, everything is whole but for the names that are nobody's.
	regtest.Put(ctx, t, s, repo, a, "v1", "v2")
	for _, p := range fsck(nil) {
		if !strings.Contains(p.What, "is not the name of") {
			t.Errorf("after repair and a push: %+v", p)
		}
	}
	if len(fsck(&regbucket.FsckOptions{Quick: true})) != 3 {
		t.Errorf("quick: %+v", fsck(&regbucket.FsckOptions{Quick: true}))
	}
	for range s.Fsck(ctx, nil) { // a reader may stop
		break
	}
	// What is damaged is not served.
	o.put(base+"_blobs/"+name(digest.FromString("layer a")), "other")
	if _, err := open(t, cfg).FetchBlob(ctx, repo, digest.FromString("layer a")); !errors.Is(err, regstore.ErrDigest) {
		t.Errorf("a damaged blob: got %v, want ErrDigest", err)
	}
}

// Unfinished uploads go when they are old.
func TestExpireUploads(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	cfg := fake(t)
	s := open(t, cfg)
	id, err := s.StartUpload(ctx, repo)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.AppendUpload(ctx, repo, id, regstore.Chunk{Body: strings.NewReader("chunk"), Offset: 0, Size: 5}); err != nil {
		t.Fatal(err)
	}
	if n, err := s.ExpireUploads(ctx); n != 0 || err != nil {
		t.Errorf("a young upload: %d expired, %v", n, err)
	}
	cfg.UploadTTL = time.Nanosecond * 4
	old := open(t, cfg)
	if _, err := old.UploadSize(ctx, repo, id); !errors.Is(err, regstore.ErrUploadUnknown) {
		t.Errorf("an upload that is too old: got %v, want ErrUploadUnknown", err)
	}
	deadline := time.Now().Add(10 * time.Second)
	for len(objectsOf(t, cfg).list("uploads/")) > 0 { // the storage's clock counts in seconds
		if _, err := old.ExpireUploads(ctx); err != nil {
			t.Fatal(err)
		}
		if time.Now().After(deadline) {
			t.Fatal("the upload does not expire")
		}
		time.Sleep(50 * time.Millisecond)
	}
	if _, err := s.UploadSize(ctx, repo, id); err != nil && !errors.Is(err, regstore.ErrUploadUnknown) {
		t.Errorf("UploadSize: %v", err)
	}
}
