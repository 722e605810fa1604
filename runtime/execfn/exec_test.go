package execfn_test

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/krmcat/krmcat/catalog"
	"github.com/krmcat/krmcat/runtime"
	"github.com/krmcat/krmcat/runtime/execfn"
	"github.com/krmcat/krmcat/runtime/fntest"
)

func TestMain(m *testing.M) {
	code := m.Run()
	fntest.Cleanup()
	os.Exit(code)
}

// memory is a source of contents by location.
type memory map[string][]byte

func (m memory) Fetch(_ context.Context, loc catalog.Location) (*catalog.Content, error) {
	data, ok := m[loc.Ref]
	if !ok {
		return nil, fs.ErrNotExist
	}
	return &catalog.Content{Body: io.NopCloser(bytes.NewReader(data)), Size: int64(len(data)), Location: loc}, nil
}

func platform(uri string, d digest.Digest) catalog.Runtime {
	return catalog.Runtime{Exec: &catalog.Exec{Platforms: []catalog.Platform{{
		Bin: "testfn", OS: goruntime.GOOS, Arch: goruntime.GOARCH, URI: uri, Digest: d,
		Location: catalog.Location{Scheme: "https", Ref: uri},
	}}}}
}

var allowed = runtime.Grants{Exec: true}

func TestSuite(t *testing.T) {
	bin, err := os.ReadFile(fntest.Build(t))
	if err != nil {
		t.Fatal(err)
	}
	src := memory{"testfn": bin}
	cache := t.TempDir()
	fntest.Suite(t, func(t *testing.T, g runtime.Grants, l runtime.Limits) runtime.Function {
		t.Helper()
		g.Exec = true
		x := &execfn.Executor{Source: src, Cache: cache}
		fn, err := x.Prepare(t.Context(), platform("testfn", digest.FromBytes(bin)), g, l)
		if err != nil {
			t.Fatal(err)
		}
		return fn
	}, fntest.Options{NoMemory: goruntime.GOOS != "linux"})
}

// What a function has started does not outlive it, however it ends and
// whatever the processes did to get away: a session of their own, a parent
// that has ended, streams that are closed or held open.
func TestLeavesNoProcess(t *testing.T) {
	if goruntime.GOOS != "linux" {
		t.Skip("other systems end the process group only")
	}
	for _, tt := range []struct {
		do string
		is error
	}{
		{"fork", runtime.ErrTimeout},
		{"daemon", nil},
		{"daemon-holds", nil},
		{"daemon-hang", runtime.ErrTimeout},
		{"bomb", nil},
	} {
		t.Run(tt.do, func(t *testing.T) {
			t.Parallel()
			l := runtime.Limits{}
			if tt.is != nil {
				l.Timeout = 3 * time.Second
			}
			fn, err := execfn.Local("testfn", fntest.Build(t), nil, allowed, l, nil)
			if err != nil {
				t.Fatal(err)
			}
			token := fntest.Token()
			var out, errs bytes.Buffer
			err = fn.Run(t.Context(), runtime.Stdio{Stdin: bytes.NewReader(fntest.List(tt.do + " " + token)), Stdout: &out, Stderr: &errs})
			if !errors.Is(err, tt.is) {
				t.Errorf("got %v, want %v", err, tt.is)
			}
			if pids := fntest.Running(t, token); len(pids) > 0 {
				t.Errorf("still running: %v", pids)
			}
			if strings.HasPrefix(tt.do, "daemon") && !strings.Contains(errs.String(), "started a daemon") {
				t.Errorf("the function did not do what is tested:\n%s", errs.String())
			}
			if tt.do == "daemon-holds" && out.Len() == 0 {
				t.Error("the output is lost")
			}
		})
	}
}

// The private folder of a run is gone afterwards, and is where files go.
func TestTemporaryFolder(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	fn, err := execfn.Local("testfn", fntest.Build(t), nil, allowed, runtime.Limits{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	var errs bytes.Buffer
	if err := fn.Run(t.Context(), runtime.Stdio{Stdin: bytes.NewReader(fntest.List("env")), Stderr: &errs}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"HOME=", "TMPDIR="} {
		if !strings.Contains(errs.String(), name+filepath.Join(tmp, "krmcat-fn-")) {
			t.Errorf("%s is not the private folder:\n%s", name, errs.String())
		}
	}
	left, err := os.ReadDir(tmp)
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
}

func targz(t *testing.T, entries ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	zw := gzip.NewWriter(&b)
	tw := tar.NewWriter(zw)
	for _, h := range entries {
		content := h.PAXRecords["content"]
		h.PAXRecords = nil
		h.Size, h.Mode = int64(len(content)), 0o755
		if h.Typeflag != tar.TypeReg && h.Typeflag != 0 {
			h.Size = 0
		}
		if err := tw.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if h.Size > 0 {
			if _, err := io.WriteString(tw, content); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := errors.Join(tw.Close(), zw.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func entry(name, content string) tar.Header {
	return tar.Header{Name: name, PAXRecords: map[string]string{"content": content}}
}

func zipped(t *testing.T, name, content string) []byte {
	t.Helper()
	var b bytes.Buffer
	zw := zip.NewWriter(&b)
	w, err := zw.Create(name)
	if err == nil {
		_, err = io.WriteString(w, content)
	}
	if err = errors.Join(err, zw.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

const script = "#!/bin/sh\nexec cat\n"

// Executables come bare, gzipped, in a tar.gz or a zip, and the digest may be
// that of the download or of the executable (KC-063 to KC-067, KC-078).
func TestUnpack(t *testing.T) {
	var gz bytes.Buffer
	zw := gzip.NewWriter(&gz)
	_, _ = io.WriteString(zw, script)
	_ = zw.Close()
	for name, data := range map[string][]byte{
		"bare":   []byte(script),
		"gzip":   gz.Bytes(),
		"targz":  targz(t, entry("README.md", "x"), entry("testfn", script)),
		"nested": targz(t, tar.Header{Name: "testfn", Typeflag: tar.TypeDir}, entry("./fn-v1/bin/testfn", script)),
		"zip":    zipped(t, "fn/testfn", script),
	} {
		for of, d := range map[string]digest.Digest{"download": digest.FromBytes(data), "binary": digest.FromString(script)} {
			t.Run(name+"/"+of, func(t *testing.T) {
				t.Parallel()
				x := &execfn.Executor{Source: memory{"u": data}, Cache: t.TempDir()}
				fn, err := x.Prepare(t.Context(), platform("u", d), allowed, runtime.Limits{})
				if err != nil {
					t.Fatal(err)
				}
				var out bytes.Buffer
				if err := fn.Run(t.Context(), runtime.Stdio{Stdin: strings.NewReader("hi"), Stdout: &out}); err != nil || out.String() != "hi" {
					t.Fatalf("got %q, %v", out.String(), err)
				}
				// Now it is in the cache, and needs no source.
				x.Source = memory{}
				if _, err := x.Prepare(t.Context(), platform("u", d), allowed, runtime.Limits{}); err != nil {
					t.Errorf("from the cache: %v", err)
				}
			})
		}
	}
}

func TestPrepareErrors(t *testing.T) {
	good := []byte(script)
	link := targz(t, tar.Header{Name: "testfn", Typeflag: tar.TypeSymlink, Linkname: "/bin/sh"})
	none := targz(t, entry("other", script))
	outside := targz(t, entry("../../testfn", script))
	for _, tt := range []struct {
		name string
		rt   catalog.Runtime
		g    runtime.Grants
		is   error
		text string
	}{
		{"container", catalog.Runtime{Container: &catalog.Container{}}, allowed, errors.ErrUnsupported, ""},
		{"not granted", platform("good", digest.FromBytes(good)), runtime.Grants{}, runtime.ErrNotGranted, `"exec"`},
		{"no digest", platform("good", ""), allowed, catalog.ErrNoDigest, "testfn"},
		{"bad digest", platform("good", "sha256:abc"), allowed, catalog.ErrNoDigest, "abc"},
		{"wrong digest", platform("good", digest.FromString("x")), allowed, runtime.ErrIntegrity, "the document says"},
		{"missing", platform("gone", digest.FromString("x")), allowed, fs.ErrNotExist, "testfn"},
		{"link in the archive", platform("link", digest.FromBytes(link)), allowed, nil, "no regular file"},
		{"not in the archive", platform("none", digest.FromBytes(none)), allowed, fs.ErrNotExist, `no file "testfn"`},
		{"outside of the archive", platform("outside", digest.FromBytes(outside)), allowed, fs.ErrNotExist, `no file "testfn"`},
		{"other platform", catalog.Runtime{Exec: &catalog.Exec{Platforms: []catalog.Platform{{Bin: "a", OS: "plan9", Arch: "amd64"}}}}, allowed, runtime.ErrUnavailable, "only for plan9/amd64"},
		{"no platform", catalog.Runtime{Exec: &catalog.Exec{}}, allowed, runtime.ErrUnavailable, "any platform"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cache := t.TempDir()
			x := &execfn.Executor{Source: memory{"good": good, "link": link, "none": none, "outside": outside}, Cache: cache}
			_, err := x.Prepare(t.Context(), tt.rt, tt.g, runtime.Limits{})
			if err == nil || tt.is != nil && !errors.Is(err, tt.is) || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("got %v, want %v with %q", err, tt.is, tt.text)
			}
			_ = filepath.WalkDir(cache, func(p string, e fs.DirEntry, err error) error {
				if err == nil && !e.IsDir() {
					t.Errorf("%s is left in the cache", p)
				}
				return nil
			})
		})
	}
}

func TestBinNames(t *testing.T) {
	for _, bin := range []string{"", "..", "a/b", `a\b`, "/bin/sh", ".hidden", "a\x00"} {
		rt := platform("u", digest.FromString(script))
		rt.Exec.Platforms[0].Bin = bin
		x := &execfn.Executor{Source: memory{"u": []byte(script)}, Cache: t.TempDir()}
		if _, err := x.Prepare(t.Context(), rt, allowed, runtime.Limits{}); err == nil || !strings.Contains(err.Error(), "plain name") {
			t.Errorf("%q: got %v", bin, err)
		}
	}
}

// A cache that was tampered with is not run.
func TestCacheIsVerified(t *testing.T) {
	cache := t.TempDir()
	x := &execfn.Executor{Source: memory{"u": []byte(script)}, Cache: cache}
	fn, err := x.Prepare(t.Context(), platform("u", digest.FromString(script)), allowed, runtime.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(cache, "exec", "sha256", "*", "*", "testfn"))
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	if err := errors.Join(os.Chmod(files[0], 0o700), os.WriteFile(files[0], []byte("#!/bin/sh\necho evil\n"), 0o700)); err != nil {
		t.Fatal(err)
	}
	if err := fn.Run(t.Context(), runtime.Stdio{Stdout: io.Discard}); !errors.Is(err, runtime.ErrIntegrity) {
		t.Errorf("running a changed executable: %v", err)
	}
	// Preparing it again fetches it again.
	fn, err = x.Prepare(t.Context(), platform("u", digest.FromString(script)), allowed, runtime.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := fn.Run(t.Context(), runtime.Stdio{Stdin: strings.NewReader("ok"), Stdout: &out}); err != nil || out.String() != "ok" {
		t.Errorf("got %q, %v", out.String(), err)
	}
}

// A file that is no program says so.
func TestNotAProgram(t *testing.T) {
	data := []byte("\x7fELF but not really")
	x := &execfn.Executor{Source: memory{"u": data}, Cache: t.TempDir()}
	fn, err := x.Prepare(t.Context(), platform("u", digest.FromBytes(data)), allowed, runtime.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	if err := fn.Run(t.Context(), runtime.Stdio{}); !errors.Is(err, runtime.ErrUnavailable) {
		t.Errorf("got %v", err)
	}
}
