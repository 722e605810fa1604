package regdir_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/krmcat/krmcat/registry/regdir"
	"github.com/krmcat/krmcat/registry/regstore"
	"github.com/krmcat/krmcat/registry/regtest"
)

const repo = "publisher/set-labels"

func open(t testing.TB, dir string, opts *regdir.Options) *regdir.Store {
	t.Helper()
	s, err := regdir.Open(dir, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() }) // closed already in some tests
	return s
}

// lacking skips a test that this machine cannot run.
func lacking(t testing.TB, what string) {
	t.Helper()
	if os.Getenv("KRMCAT_TEST_REQUIRE") == "all" {
		t.Fatalf("KRMCAT_TEST_REQUIRE=all, but: %s", what)
	}
	t.Skip(what)
}

// mount mounts a small file system in memory.
func mount(t testing.TB, size, options string) string {
	t.Helper()
	dir := t.TempDir()
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size="+size+options, "tmpfs", dir).CombinedOutput(); err != nil {
		lacking(t, fmt.Sprintf("cannot mount a file system: %v: %s", err, out))
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", dir).CombinedOutput(); err != nil {
			t.Errorf("umount: %v: %s", err, out)
		}
	})
	return dir
}

func TestDriver(t *testing.T) {
	regtest.TestDriver(t, func(t *testing.T) regstore.Driver { return open(t, t.TempDir(), nil) })
}

func TestOpen(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "a", "b")
	s := open(t, dir, nil)
	if _, err := regdir.Open(dir, nil); !errors.Is(err, regdir.ErrLocked) || !strings.Contains(err.Error(), dir) {
		t.Errorf("a folder in use: got %v, want ErrLocked and the folder", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	open(t, dir, nil)

	other := t.TempDir()
	if err := os.WriteFile(filepath.Join(other, "thesis.doc"), nil, 0o666); err != nil {
		t.Fatal(err)
	}
	_, err := regdir.Open(other, nil)
	if !errors.Is(err, regdir.ErrNotRegistry) || !strings.Contains(err.Error(), "thesis.doc") {
		t.Errorf("a folder with other things: got %v, want ErrNotRegistry and what is there", err)
	}
	if got, _ := os.ReadDir(other); len(got) != 1 {
		t.Errorf("a folder with other things was changed: %v", got)
	}
	if _, err := regdir.Open(filepath.Join(other, "thesis.doc"), nil); err == nil {
		t.Error("a file: no error")
	}

	none := filepath.Join(t.TempDir(), "none")
	if _, err := regdir.Open(none, &regdir.Options{MustExist: true}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a folder that has to be there: got %v, want fs.ErrNotExist", err)
	}
	if _, err := os.Stat(none); err == nil {
		t.Error("it was made")
	}

	newer := t.TempDir()
	if err := os.WriteFile(filepath.Join(newer, "layout"), []byte("krmcat registry 2\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	if _, err := regdir.Open(newer, nil); !errors.Is(err, regdir.ErrNotRegistry) || !strings.Contains(err.Error(), "registry 2") {
		t.Errorf("a newer layout: got %v, want ErrNotRegistry and the layout", err)
	}
}

func TestOpenReadOnly(t *testing.T) {
	t.Parallel()
	dir := mount(t, "1m", ",ro")
	if _, err := regdir.Open(dir, nil); err == nil || !strings.Contains(err.Error(), "has to write there") {
		t.Errorf("a read-only folder: got %v", err)
	}
	if os.Geteuid() != 0 {
		dir := t.TempDir()
		if err := os.Chmod(dir, 0o500); err != nil {
			t.Fatal(err)
		}
		if _, err := regdir.Open(dir, nil); !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), "has to write there") {
			t.Errorf("a folder without permission: got %v", err)
		}
	}
}

// files lists the files below a folder.
func files(t testing.TB, dir string) []string {
	t.Helper()
	var list []string
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			rel, _ := filepath.Rel(dir, path)
			list = append(list, rel)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// A full disk: the client learns so, nothing half-written stays, and what was
// there is readable.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	dir := mount(t, "2m", "")
	s := open(t, dir, nil)
	srv := regtest.NewServerWith(t, s, nil)
	ctx := t.Context()
	art := regtest.NewArtifact("application/vnd.example", nil, regtest.Random(1, 100_000))
	regtest.Put(ctx, t, s, repo, art, "v1")
	before := files(t, dir)
	put := func(method, path string, b []byte) int {
		t.Helper()
		req, err := http.NewRequestWithContext(ctx, method, srv.URL+path, bytes.NewReader(b))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := srv.HTTP.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		return resp.StatusCode
	}
	big := regtest.Random(2, 3<<20)
	if got := put(http.MethodPost, "/v2/"+repo+"/blobs/uploads/?digest="+string(digest.FromBytes(big)), big); got != http.StatusInsufficientStorage {
		t.Errorf("a blob that does not fit: got %d, want 507", got)
	}
	id, err := s.StartUpload(ctx, repo)
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = s.AppendUpload(ctx, repo, id, regstore.Chunk{Body: bytes.NewReader(big[:1000]), Offset: 0, Size: 1000})
	if err != nil {
		t.Fatal(err)
	}
	if got := put(http.MethodPatch, "/v2/"+repo+"/blobs/uploads/"+id, big[1000:]); got != http.StatusInsufficientStorage {
		t.Errorf("a chunk that does not fit: got %d, want 507", got)
	}
	if n, err := s.UploadSize(ctx, repo, id); n != 1000 || err != nil {
		t.Errorf("the upload has %d bytes after a chunk that did not fit, %v, want 1000", n, err)
	}
	if err := s.CancelUpload(ctx, repo, id); err != nil {
		t.Fatal(err)
	}
	// Fill the rest, and push manifests until that fails too.
	if err := os.WriteFile(filepath.Join(dir, "filler"), make([]byte, 8<<20), 0o666); err == nil {
		t.Fatal("the disk is not full")
	}
	failed := 0
	for i := range 600 {
		m := regtest.NewArtifact(fmt.Sprintf("application/vnd.example.%d%s", i, strings.Repeat("x", 4000)), &art.Descriptor)
		code := put(http.MethodPut, "/v2/"+repo+"/manifests/t"+fmt.Sprint(i), m.Manifest)
		_, err := s.Resolve(ctx, repo, fmt.Sprintf("t%d", i))
		switch {
		case code == http.StatusCreated && err == nil:
			continue
		case code == http.StatusInsufficientStorage && errors.Is(err, fs.ErrNotExist):
			failed++
		default:
			t.Fatalf("push %d: got %d and a tag that resolves to %v", i, code, err)
		}
		if failed > 3 {
			break
		}
	}
	if failed == 0 {
		t.Error("600 manifests went on a full disk")
	}
	if got, err := s.FetchManifest(ctx, repo, art.Descriptor.Digest); err != nil || !bytes.Equal(got, art.Manifest) {
		t.Errorf("what was there cannot be read: %v", err)
	}
	if err := os.Remove(filepath.Join(dir, "filler")); err != nil {
		t.Fatal(err)
	}
	for _, f := range files(t, dir) {
		if strings.HasPrefix(f, "tmp/") || strings.HasPrefix(f, "uploads/") {
			t.Errorf("left behind: %s (before: %v)", f, before)
		}
	}
}

// What is stored is there after a restart; uploads go on; what is left of a
// process that was killed is gone.
func TestRestart(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	dir := t.TempDir()
	s := open(t, dir, nil)
	art := regtest.NewArtifact("application/vnd.example", nil, []byte("layer"))
	regtest.Put(ctx, t, s, repo, art, "v1", "V1")
	sig := regtest.NewArtifact("application/vnd.example.signature", &art.Descriptor)
	regtest.Put(ctx, t, s, repo, sig)
	b := regtest.Random(1, 1000)
	id, err := s.StartUpload(ctx, repo)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.AppendUpload(ctx, repo, id, regstore.Chunk{Body: bytes.NewReader(b[:500]), Offset: 0, Size: 500}); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "tmp", "w-123"), b, 0o666); err != nil {
		t.Fatal(err)
	}
	s = open(t, dir, nil)
	if got := files(t, filepath.Join(dir, "tmp")); len(got) != 0 {
		t.Errorf("left in tmp: %v", got)
	}
	for _, ref := range []string{"v1", "V1", string(art.Descriptor.Digest)} {
		if _, got, err := s.Manifest(ctx, repo, ref); err != nil || !bytes.Equal(got, art.Manifest) {
			t.Errorf("manifest %s: %v", ref, err)
		}
	}
	n := 0
	for range s.Referrers(ctx, repo, art.Descriptor.Digest, "") {
		n++
	}
	if n != 1 {
		t.Errorf("%d referrers, want 1", n)
	}
	if err := s.FinishUpload(ctx, repo, id, regstore.Chunk{Body: bytes.NewReader(b[500:]), Offset: 500, Size: 500}, digest.FromBytes(b)); err != nil {
		t.Errorf("going on with an upload: %v", err)
	}
}

func TestUploadExpiry(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	dir := t.TempDir()
	s := open(t, dir, &regdir.Options{MaxUploads: 3})
	old, err := s.StartUpload(ctx, repo)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.AppendUpload(ctx, repo, old, regstore.Chunk{Body: strings.NewReader("x"), Offset: -1, Size: 1}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := s.StartUpload(ctx, repo); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.StartUpload(ctx, repo); !errors.Is(err, regstore.ErrTooManyUploads) {
		t.Errorf("a fourth upload: got %v, want ErrTooManyUploads", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	yesterday := time.Now().Add(-25 * time.Hour)
	for _, f := range files(t, filepath.Join(dir, "uploads")) {
		if strings.HasSuffix(f, old) {
			if err := os.Chtimes(filepath.Join(dir, "uploads", f), yesterday, yesterday); err != nil {
				t.Fatal(err)
			}
		}
	}
	s = open(t, dir, &regdir.Options{MaxUploads: 3})
	fresh, err := s.StartUpload(ctx, repo) // which drops the old one first
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.UploadSize(ctx, repo, old); !errors.Is(err, regstore.ErrUploadUnknown) {
		t.Errorf("an upload of yesterday: got %v, want ErrUploadUnknown", err)
	}
	if n, err := s.UploadSize(ctx, repo, fresh); n != 0 || err != nil {
		t.Errorf("a new upload: got %d, %v", n, err)
	}
	if _, err := s.StartUpload(ctx, repo); !errors.Is(err, regstore.ErrTooManyUploads) {
		t.Errorf("a fourth upload: got %v, want ErrTooManyUploads", err)
	}
	if err := s.CancelUpload(ctx, repo, fresh); err != nil {
		t.Fatal(err)
	}
	if _, err := s.StartUpload(ctx, repo); err != nil {
		t.Errorf("after one was cancelled: %v", err)
	}
}

// A file that was damaged outside is an error or not there, but never wrong
// content under a right name, and a push of the same content mends it.
func TestDamage(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	dir := t.TempDir()
	s := open(t, dir, nil)
	layer := regtest.Random(1, 1000)
	art := regtest.NewArtifact("application/vnd.example", nil, layer)
	regtest.Put(ctx, t, s, repo, art, "v1")
	d := digest.FromBytes(layer)
	blob := filepath.Join(dir, "blobs", "sha256", d.Encoded()[:2], d.Encoded())
	base := filepath.Join(dir, "repositories", repo)
	manifest := filepath.Join(base, "_manifests", "sha256-"+art.Descriptor.Digest.Encoded())
	truncate := func(path string) {
		t.Helper()
		if err := os.Truncate(path, 10); err != nil {
			t.Fatal(err)
		}
	}
	truncate(blob)
	truncate(manifest)
	if _, err := s.Resolve(ctx, repo, "v1"); err == nil {
		t.Error("a truncated manifest: no error")
	}
	regtest.Put(ctx, t, s, repo, art, "v1")
	if got, err := s.FetchManifest(ctx, repo, art.Descriptor.Digest); err != nil || !bytes.Equal(got, art.Manifest) {
		t.Errorf("the manifest was not mended: %v", err)
	}
	if got, err := os.ReadFile(blob); err != nil || !bytes.Equal(got, layer) {
		t.Errorf("the blob was not mended: %v", err)
	}
	truncate(filepath.Join(base, "_tags", "v1"))
	if _, err := s.Resolve(ctx, repo, "v1"); err == nil || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a truncated tag: got %v", err)
	}
}
