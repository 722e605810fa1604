package index_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/krmcat/krmcat/catalog/index"
	"github.com/krmcat/krmcat/registry"
	"github.com/krmcat/krmcat/registry/regdir"
	"github.com/krmcat/krmcat/registry/regserver"
)

// counted is a folder that counts how often it is looked through.
type counted struct {
	*regdir.Store
	lists *atomic.Int64
}

func (c *counted) Repositories(ctx context.Context, after string) iter.Seq2[string, error] {
	c.lists.Add(1)
	return c.Store.Repositories(ctx, after)
}

// folder is the data folder of a server.
type folder struct {
	dir     string
	lists   atomic.Int64
	opening string // of the store, the last time
}

func (f *folder) file() string { return filepath.Join(f.dir, "index", "index.db") }

// serve opens the folder and serves from it, until the site is closed.
func (f *folder) serve(t *testing.T) *site {
	t.Helper()
	store, err := regdir.Open(filepath.Join(f.dir, "registry"), nil)
	if err != nil {
		t.Fatal(err)
	}
	f.opening, _ = store.Opening()
	x, err := index.OpenSQLite(t.Context(), &counted{store, &f.lists}, f.file(), &index.Options{Log: testLog(t)})
	if err != nil {
		t.Fatal(err)
	}
	s := &site{t: t, x: x, done: make(chan struct{})}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	s.stop = cancel
	go func() {
		x.Run(ctx)
		_ = store.Close() // it holds nothing back
		close(s.done)
	}()
	s.http = httptest.NewServer(regserver.New(store, &regserver.Options{Observer: observe(x), Log: testLog(t)}))
	return s
}

// change runs statements on the database of a server that is stopped.
func (f *folder) change(t *testing.T, statements ...string) {
	t.Helper()
	db, err := sql.Open("sqlite", f.file())
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range statements {
		if _, err := db.ExecContext(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}

// inStep reports whether the index says that it has compared itself with the
// store as it is open now, which goes on while it is searched.
func (f *folder) inStep(t *testing.T) bool {
	t.Helper()
	db, err := sql.Open("sqlite", f.file())
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	var opening string
	err = db.QueryRowContext(t.Context(), `SELECT v FROM meta WHERE k = 'opening'`).Scan(&opening)
	return err == nil && opening == f.opening
}

const (
	killed = `UPDATE meta SET v = '' WHERE k = 'clean'`
	reboot = `UPDATE meta SET v = 'another' WHERE k = 'boot'`
)

// publishSome publishes a few functions and returns what the server shows.
func publishSome(t *testing.T, f *folder) string {
	t.Helper()
	s := f.serve(t)
	defer s.close()
	<-s.x.Ready()
	for i := range 40 {
		fn := setLabels
		fn.kind = fmt.Sprint("SetLabels", i)
		a := fn.artifact()
		// Otherwise it is published when the index first sees it.
		a.annotations = map[string]string{ocispec.AnnotationCreated: "2026-01-02T03:04:05Z"}
		s.push(fmt.Sprint("acme/set-labels-", i), a, "v1.0.0")
	}
	return s.state()
}

// A start reads the whole registry only if the index may not be in step with
// it.
func TestStartsInStep(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		prepare  func(t *testing.T, f *folder)
		compares bool
	}{
		"closed":         {func(*testing.T, *folder) {}, false},
		"killed":         {func(t *testing.T, f *folder) { f.change(t, killed) }, false},
		"loss of power":  {func(t *testing.T, f *folder) { f.change(t, killed, reboot) }, true},
		"reboot":         {func(t *testing.T, f *folder) { f.change(t, reboot) }, false},
		"without a file": {func(t *testing.T, f *folder) { _ = os.RemoveAll(filepath.Dir(f.file())) }, true},
		"other tables":   {func(t *testing.T, f *folder) { f.change(t, `UPDATE meta SET v = '0' WHERE k = 'schema'`) }, true},
		"somebody else had the folder": {func(t *testing.T, f *folder) {
			store, err := regdir.Open(filepath.Join(f.dir, "registry"), nil)
			if err != nil {
				t.Fatal(err)
			}
			if err := store.DeleteTag(t.Context(), "acme/set-labels-7", "v1.0.0"); err != nil {
				t.Error(err)
			}
			if err := store.Close(); err != nil {
				t.Fatal(err)
			}
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := &folder{dir: t.TempDir()}
			publishSome(t, f)
			c.prepare(t, f)
			want := 40
			if name == "somebody else had the folder" {
				want = 39
			}
			for _, again := range []bool{false, true} {
				before := f.lists.Load()
				s := f.serve(t)
				waitFor(t, func() bool {
					p, err := s.x.Search(t.Context(), index.Query{})
					return err == nil && p.Total == want && f.inStep(t)
				})
				s.close()
				if got := f.lists.Load() > before; got != (c.compares && !again) {
					t.Errorf("again %v: looked through the registry: %v", again, got)
				}
			}
		})
	}
}

// A database with damaged pages is found out, beside what else the server
// does, and made anew; what it shows is the same then.
func TestDamagedPages(t *testing.T) {
	t.Parallel()
	f := &folder{dir: t.TempDir()}
	want := publishSome(t, f)
	f.change(t, killed, reboot, `PRAGMA wal_checkpoint(TRUNCATE)`)
	db, err := os.OpenFile(f.file(), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	fi, err := db.Stat()
	if err != nil {
		t.Fatal(err)
	}
	// All but the first pages, which say what tables there are.
	garbage := []byte(strings.Repeat("garbage!", 512))
	for at := int64(16 << 12); at < fi.Size(); at += int64(len(garbage)) {
		if _, err := db.WriteAt(garbage, at); err != nil {
			t.Fatal(err)
		}
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	s := f.serve(t)
	defer s.close()
	// Pulls go on meanwhile.
	if err := s.request(http.MethodGet, "/v2/acme/set-labels-3/manifests/v1.0.0", "", nil); err != nil {
		t.Error(err)
	}
	waitFor(t, func() bool {
		_, err := os.Stat(f.file() + ".broken")
		return err == nil && s.x.Check(t.Context()) == nil
	})
	if diff := cmp.Diff(want, s.state()); diff != "" {
		t.Errorf("after a database with damaged pages (-before +after):\n%s", diff)
	}
	s.push("acme/more", setLabels.artifact(), "v1.0.0")
}

// A database that cannot even be opened stops neither the server nor pulls,
// only pushes that the index would miss; when it can be, all goes on.
func TestDatabaseCannotBeOpened(t *testing.T) {
	t.Parallel()
	f := &folder{dir: t.TempDir()}
	want := publishSome(t, f)
	if err := os.RemoveAll(filepath.Dir(f.file())); err != nil {
		t.Fatal(err)
	}
	// Not even root can open this one.
	if err := os.MkdirAll(filepath.Join(f.file(), "a folder"), 0o777); err != nil {
		t.Fatal(err)
	}
	s := f.serve(t)
	defer s.close()
	if err := s.request(http.MethodGet, "/v2/acme/set-labels-3/manifests/v1.0.0", "", nil); err != nil {
		t.Error(err)
	}
	if err := s.x.Check(t.Context()); !errors.Is(err, index.ErrNotReady) {
		t.Errorf("Check: %v", err)
	}
	if _, err := s.tryPush("acme/more", setLabels.artifact(), "v1.0.0"); err == nil || !strings.Contains(err.Error(), "503") {
		t.Errorf("a push that the index would miss: %v", err)
	}
	if _, err := s.tryPush("library/other", artifact{artifactType: "application/vnd.example"}, ""); err != nil {
		t.Errorf("a push that is none of its business: %v", err)
	}
	if err := os.RemoveAll(filepath.Dir(f.file())); err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool { return s.x.Check(t.Context()) == nil })
	if diff := cmp.Diff(want, s.state()); diff != "" {
		t.Errorf("when the database can be opened (-before +after):\n%s", diff)
	}
	s.push("acme/more", setLabels.artifact(), "v1.0.0")
}

// Content that is damaged in the registry is missing from the index, and
// nothing else is.
func TestDamagedContent(t *testing.T) {
	t.Parallel()
	f := &folder{dir: t.TempDir()}
	publishSome(t, f)
	fn := setLabels
	fn.kind = "SetLabels5"
	d := digest.FromString(fn.yaml())
	blob := filepath.Join(f.dir, "registry", "blobs", "sha256", d.Encoded()[:2], d.Encoded())
	if err := os.WriteFile(blob, []byte("damaged"), 0o666); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Dir(f.file())); err != nil {
		t.Fatal(err)
	}
	s := f.serve(t)
	defer s.close()
	waitFor(t, func() bool { return s.x.Check(t.Context()) == nil })
	p, err := s.x.Search(t.Context(), index.Query{Limit: 100})
	if err != nil || p.Total != 39 {
		t.Errorf("%+v, %v, want 39 functions", p, err)
	}
	if _, err := s.x.Function(t.Context(), "example.com", "SetLabels5", ""); !errors.Is(err, index.ErrNotFound) {
		t.Errorf("the damaged one: %v", err)
	}
}

// An index of content that others change without telling it looks for that
// itself.
func TestRefresh(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	store, err := regdir.Open(filepath.Join(dir, "registry"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = store.Close() }()
	x, err := index.OpenSQLite(t.Context(), store, filepath.Join(dir, "index.db"), &index.Options{Refresh: 1})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { x.Run(ctx); close(done) }()
	defer func() { cancel(); <-done; _ = x.Close() }()
	<-x.Ready()
	other := &site{t: t, http: httptest.NewServer(regserver.New(store, nil))}
	defer other.http.Close()
	other.push("acme/set-labels", setLabels.artifact(), "v1.0.0")
	waitFor(t, func() bool {
		_, err := x.Function(t.Context(), "example.com", "SetLabels", "")
		return err == nil
	})
	if err := store.DeleteManifest(t.Context(), "acme/set-labels", digest.FromBytes(setLabels.artifact().manifest())); err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool {
		_, err := x.Function(t.Context(), "example.com", "SetLabels", "")
		return errors.Is(err, index.ErrNotFound)
	})
}

var _ registry.Store = index.Store(nil)
