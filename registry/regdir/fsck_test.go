package regdir_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/krmcat/krmcat/registry/regdir"
	"github.com/krmcat/krmcat/registry/regtest"
)

func fsck(t testing.TB, s *regdir.Store, opts *regdir.FsckOptions) []regdir.Problem {
	t.Helper()
	var list []regdir.Problem
	for p, err := range s.Fsck(t.Context(), opts) {
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, p)
	}
	return list
}

// checkFsck checks a folder after a crash. An entry of a referrer that did
// not get stored is what a push leaves that was cut short, until the next
// garbage collection.
func checkFsck(t testing.TB, dir string) {
	t.Helper()
	s, err := regdir.Open(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	if _, err := s.GC(t.Context(), nil); err != nil {
		t.Error(err)
	}
	for _, p := range fsck(t, s, nil) {
		t.Errorf("fsck: %s: %s", p.Path, p.What)
	}
}

func TestFsck(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	hex := func(d digest.Digest) string { return "sha256-" + d.Encoded() }
	layer := regtest.Random(1, 1000)
	art := regtest.NewArtifact("application/vnd.example", nil, layer)
	sig := regtest.NewArtifact("application/vnd.example.signature", &art.Descriptor)
	index := regtest.NewIndex("", nil, art.Descriptor)
	blob := filepath.Join("blobs", "sha256", digest.FromBytes(layer).Encoded()[:2], digest.FromBytes(layer).Encoded())
	base := "repositories/" + repo
	manifest := base + "/_manifests/" + hex(art.Descriptor.Digest)
	entry := base + "/_referrers/" + hex(art.Descriptor.Digest) + "/" + hex(sig.Descriptor.Digest)
	remove := func(path string) func(string) error {
		return func(dir string) error { return os.Remove(filepath.Join(dir, path)) }
	}
	write := func(path, content string) func(string) error {
		return func(dir string) error {
			path := filepath.Join(dir, path)
			if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
				return err
			}
			return os.WriteFile(path, []byte(content), 0o666)
		}
	}
	for name, test := range map[string]struct {
		damage func(dir string) error
		want   []string // of the problems: path or what, in any order
		left   []string // after the repair
		quick  bool     // seen without reading blobs
	}{
		"nothing":                           {func(string) error { return nil }, nil, nil, true},
		"a blob is damaged":                 {write(blob, "x"), []string{"content does not match the digest"}, nil, false},
		"a blob is gone":                    {remove(blob), []string{"the blob is not there", "push it again"}, []string{"push it again"}, true},
		"a file among the blobs":            {write("blobs/sha256/ab/x", "x"), []string{"is not the name of a blob"}, []string{"is not the name of a blob"}, true},
		"a link is gone":                    {remove(base + "/_blobs/" + hex(digest.FromBytes(layer))), []string{"is not in the repository"}, nil, true},
		"a manifest is gone":                {remove(manifest), []string{"_tags/v1", "is missing; push it again"}, []string{"is missing; push it again"}, true},
		"a manifest is damaged":             {write(manifest, "application/json\n{}"), []string{"content does not match"}, []string{"is missing; push it again"}, true},
		"a manifest has no first line":      {write(manifest, "x"), []string{"cannot be read"}, []string{"is missing; push it again"}, true},
		"a referrer is not listed":          {remove(entry), []string{"not listed as it should be"}, nil, true},
		"a referrer is listed wrongly":      {write(entry, "{}"), []string{"not listed as it should be"}, nil, true},
		"a referrer is listed that is gone": {remove(base + "/_manifests/" + hex(sig.Descriptor.Digest)), []string{"lists a referrer that is not there"}, nil, true},
		"a referrer of another subject":     {write(base+"/_referrers/"+hex(sig.Descriptor.Digest)+"/"+hex(sig.Descriptor.Digest), "{}"), []string{"lists a referrer that is not there"}, nil, true},
		"a tag is damaged":                  {write(base+"/_tags/v1", "x"), []string{"_tags/v1"}, nil, true},
		"a file among the tags":             {write(base+"/_tags/V1", "x"), []string{"is not the name of a tag"}, []string{"is not the name of a tag"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			s := open(t, dir, nil)
			regtest.Put(ctx, t, s, repo, art, "v1")
			regtest.Put(ctx, t, s, repo, sig)
			regtest.Put(ctx, t, s, repo, index, "index")
			if err := test.damage(dir); err != nil {
				t.Fatal(err)
			}
			compare := func(what string, got []regdir.Problem, want []string) {
				t.Helper()
				for _, w := range want {
					if !slices.ContainsFunc(got, func(p regdir.Problem) bool { return strings.Contains(p.Path+" "+p.What, w) }) {
						t.Errorf("%s: no problem like %q in %v", what, w, got)
					}
				}
				if len(want) == 0 && len(got) > 0 {
					t.Errorf("%s: got %v, want none", what, got)
				}
			}
			got := fsck(t, s, nil)
			compare("fsck", got, test.want)
			if quick := fsck(t, s, &regdir.FsckOptions{Quick: true}); (len(quick) == len(got)) != test.quick {
				t.Errorf("quick fsck: got %v", quick)
			}
			repaired := 0
			for _, p := range fsck(t, s, &regdir.FsckOptions{Repair: true}) {
				if p.Repaired != "" {
					repaired++
				}
			}
			if repaired == 0 && len(test.left) < len(test.want) {
				t.Error("nothing was repaired")
			}
			fsck(t, s, &regdir.FsckOptions{Repair: true}) // what the first one uncovered
			if name != "a blob is damaged" {
				compare("fsck after the repair", fsck(t, s, nil), test.left)
			}
			// Pushing again brings everything back.
			regtest.Put(ctx, t, s, repo, art, "v1")
			regtest.Put(ctx, t, s, repo, sig)
			for _, p := range fsck(t, s, nil) {
				if !strings.Contains(p.What, "is not the name of") {
					t.Errorf("after pushing again: %v", p)
				}
			}
		})
	}
}
