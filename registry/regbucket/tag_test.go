package regbucket_test

import (
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/krmcat/krmcat/registry/regbucket"
	"github.com/krmcat/krmcat/registry/regstore"
	"github.com/krmcat/krmcat/registry/regtest"
)

// onTag calls f once, before the first request that removes a tag, whichever
// way it does that.
func onTag(p *proxy, tag string, f func()) {
	var once sync.Once
	p.mode.Store(new(func(_ http.ResponseWriter, r *http.Request) bool {
		if strings.HasSuffix(r.URL.Path, "/_tags/"+tag) && (r.Method == http.MethodDelete || r.Method == http.MethodPut && r.Header.Get("If-Match") != "") {
			once.Do(f)
		}
		return false
	}))
}

// A tag that is moved to another manifest at the moment at which its manifest
// is deleted stays with the other one.
func TestTagMovesUnderADeletion(t *testing.T) {
	onEach(t, func(t *testing.T, cfg regbucket.Options) {
		ctx := t.Context()
		other := open(t, cfg)
		p, cfg := newProxy(t, cfg)
		s := open(t, cfg)
		first := regtest.NewArtifact("application/vnd.example", nil, []byte("first"))
		second := regtest.NewArtifact("application/vnd.example", nil, []byte("second"))
		regtest.Put(ctx, t, s, repo, first, "latest", "old")
		moved := false
		onTag(p, "latest", func() { regtest.Put(ctx, t, other, repo, second, "latest"); moved = true })
		if err := s.DeleteManifest(ctx, repo, first.Descriptor.Digest); err != nil {
			t.Fatal(err)
		}
		p.mode.Store(nil)
		if !moved {
			t.Fatal("the tag was not moved; the test has shown nothing")
		}
		for _, s := range []*regbucket.Store{s, other, open(t, cfg)} {
			if desc, err := s.Resolve(ctx, repo, "latest"); err != nil || desc.Digest != second.Descriptor.Digest {
				t.Errorf("the tag that was moved: %v, %v", desc.Digest, err)
			}
			if _, err := s.Resolve(ctx, repo, "old"); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("a tag whose manifest was deleted: %v", err)
			}
			var tags []string
			for tag, err := range s.Tags(ctx, repo, "") {
				if err != nil {
					t.Fatal(err)
				}
				tags = append(tags, tag)
			}
			if !slices.Equal(tags, []string{"latest"}) {
				t.Errorf("tags %v", tags)
			}
		}
		checkFsck(t, s)
	})
}

// So it does however the two meet.
func TestTagsMoveBesideDeletions(t *testing.T) {
	onEach(t, func(t *testing.T, cfg regbucket.Options) {
		ctx := t.Context()
		a, b := open(t, cfg), open(t, cfg)
		for i := range 40 {
			old := regtest.NewArtifact("application/vnd.example", nil, fmt.Appendf(nil, "old %d", i))
			next := regtest.NewArtifact("application/vnd.example", nil, fmt.Appendf(nil, "next %d", i))
			regtest.Put(ctx, t, a, repo, old, "latest")
			regtest.Put(ctx, t, b, repo, next)
			var wg sync.WaitGroup
			wg.Go(func() {
				if err := a.DeleteManifest(ctx, repo, old.Descriptor.Digest); err != nil {
					t.Errorf("deletion: %v", err)
				}
			})
			wg.Go(func() {
				if err := b.PutManifest(ctx, repo, next.Parse(t), []regstore.Tag{{Name: "latest"}}); err != nil {
					t.Errorf("push: %v", err)
				}
			})
			wg.Wait()
			if desc, err := a.Resolve(ctx, repo, "latest"); err != nil || desc.Digest != next.Descriptor.Digest {
				t.Fatalf("round %d: the tag that was moved: %v, %v", i, desc.Digest, err)
			}
		}
	})
}

// The name of a tag that went with its manifest is free again, for one.
func TestTagComesAgain(t *testing.T) {
	onEach(t, func(t *testing.T, cfg regbucket.Options) {
		ctx := t.Context()
		s, other := open(t, cfg), open(t, cfg)
		old := regtest.NewArtifact("application/vnd.example", nil, []byte("old"))
		regtest.Put(ctx, t, s, repo, old, "v1.0.0", "moving")
		if err := s.DeleteManifest(ctx, repo, old.Descriptor.Digest); err != nil {
			t.Fatal(err)
		}
		if err := s.DeleteTag(ctx, repo, "v1.0.0"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("deleting a tag that is gone: %v", err)
		}
		candidates := make([]*regtest.Artifact, 6)
		errs := make([]error, len(candidates))
		for i := range candidates {
			candidates[i] = regtest.NewArtifact("application/vnd.example", nil, fmt.Appendf(nil, "candidate %d", i))
			regtest.Put(ctx, t, s, repo, candidates[i])
		}
		var wg sync.WaitGroup
		for i, c := range candidates {
			wg.Go(func() {
				errs[i] = []*regbucket.Store{s, other}[i%2].PutManifest(ctx, repo, c.Parse(t), []regstore.Tag{{Name: "v1.0.0", Immutable: true}, {Name: "moving"}})
			})
		}
		wg.Wait()
		var won digest.Digest
		for i, err := range errs {
			_, taken := errors.AsType[*regstore.TagError](err)
			switch {
			case err == nil && won == "":
				won = candidates[i].Descriptor.Digest
			case !taken:
				t.Errorf("candidate %d: %v after %s won", i, err, won)
			}
		}
		for _, tag := range []string{"v1.0.0", "moving"} {
			if desc, err := other.Resolve(ctx, repo, tag); err != nil || desc.Digest != won {
				t.Errorf("%s: %v, %v, want %s", tag, desc.Digest, err, won)
			}
		}
	})
}

// What fsck finds missing or damaged, and is pushed before fsck repairs it,
// stays.
func TestFsckBesidePushes(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	cfg := fake(t)
	other := open(t, cfg)
	o := objectsOf(t, cfg)
	p, proxied := newProxy(t, cfg)
	s := open(t, proxied)
	art := regtest.NewArtifact("application/vnd.example", nil, []byte("layer"))
	sig := regtest.NewArtifact("application/vnd.example.signature", &art.Descriptor)
	base := "repositories/" + repo + "/"
	name := func(d digest.Digest) string { return strings.Replace(string(d), ":", "-", 1) }
	manifest, blob := base+"_manifests/"+name(art.Descriptor.Digest), base+"_blobs/"+name(digest.FromString("layer"))
	entry := base + "_referrers/" + name(art.Descriptor.Digest) + "/" + name(sig.Descriptor.Digest)
	push := func() {
		regtest.Put(ctx, t, other, repo, art, "v1")
		regtest.Put(ctx, t, other, repo, sig)
	}
	push()
	for name, c := range map[string]struct {
		damage func()
		// before says which request of fsck the push comes before.
		before func(r *http.Request) bool
	}{
		"damaged blob": {
			func() { o.put(blob, "nonsense") },
			func(r *http.Request) bool {
				return r.Method == http.MethodHead && strings.HasSuffix(r.URL.Path, blob)
			},
		},
		"damaged blob, a moment before it goes": {
			func() { o.put(blob, "nonsense") },
			func(r *http.Request) bool {
				return r.Method == http.MethodPut && strings.Contains(r.URL.Path, "/trash/")
			},
		},
		"damaged manifest": {
			func() { o.put(manifest, "nonsense") },
			func(r *http.Request) bool {
				return r.Method == http.MethodPut && strings.Contains(r.URL.Path, "/trash/")
			},
		},
		"tag without a manifest": {
			func() { o.remove(manifest) },
			func(r *http.Request) bool {
				return r.Method == http.MethodPut && strings.HasSuffix(r.URL.Path, "_tags/v1")
			},
		},
		"referrer without a manifest": {
			func() { o.remove(base + "_manifests/" + name(sig.Descriptor.Digest)) },
			func(r *http.Request) bool {
				return r.Method == http.MethodDelete && strings.HasSuffix(r.URL.Path, entry)
			},
		},
	} {
		c.damage()
		var once sync.Once
		pushed := false
		p.mode.Store(new(func(_ http.ResponseWriter, r *http.Request) bool {
			if c.before(r) {
				once.Do(func() { push(); pushed = true })
			}
			return false
		}))
		for _, err := range s.Fsck(ctx, &regbucket.FsckOptions{Repair: true}) {
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		p.mode.Store(nil)
		if !pushed {
			t.Errorf("%s: the push did not come in between; the test has shown nothing", name)
			push()
		}
		fresh := open(t, cfg)
		if desc, err := fresh.Resolve(ctx, repo, "v1"); err != nil || desc.Digest != art.Descriptor.Digest {
			t.Errorf("%s: tag: %v", name, err)
		}
		found := false
		for d := range fresh.Referrers(ctx, repo, art.Descriptor.Digest, "") {
			found = found || d.Digest == sig.Descriptor.Digest
		}
		if !found {
			t.Errorf("%s: the signature is not listed any more", name)
		}
		checkFsck(t, fresh)
	}
}

// What fsck puts aside as damaged does not come back from the trash.
func TestDamagedStaysAside(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	cfg := fake(t)
	s := open(t, cfg)
	o := objectsOf(t, cfg)
	art := regtest.NewArtifact("application/vnd.example", nil, []byte("layer"))
	regtest.Put(ctx, t, s, repo, art, "v1")
	blob := "repositories/" + repo + "/_blobs/" + strings.Replace(string(digest.FromString("layer")), ":", "-", 1)
	o.put(blob, "nonsense")
	for _, err := range s.Fsck(ctx, &regbucket.FsckOptions{Repair: true}) {
		if err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.GC(ctx, &anyAge); err != nil { // which looks through the trash
		t.Fatal(err)
	}
	if keys := o.list(blob); len(keys) != 0 {
		t.Errorf("a damaged blob came back: %v", keys)
	}
	if keys := o.list("trash/"); len(keys) != 0 {
		t.Errorf("left in the trash: %v", keys)
	}
}

// A storage that replaces objects whatever they have become is refused.
func TestUnconditionalReplacement(t *testing.T) {
	t.Parallel()
	p, cfg := newProxy(t, fake(t))
	p.mode.Store(new(func(_ http.ResponseWriter, r *http.Request) bool {
		r.Header.Del("If-Match")
		return false
	}))
	if _, err := regbucket.Open(t.Context(), cfg); !errors.Is(err, regbucket.ErrNotConditional) || !strings.Contains(err.Error(), "If-Match") {
		t.Errorf("got %v, want ErrNotConditional", err)
	}
}
