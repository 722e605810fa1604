package index_test

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/krmcat/krmcat/catalog/index"
	"github.com/krmcat/krmcat/registry"
	"github.com/krmcat/krmcat/registry/regdir"
	"github.com/krmcat/krmcat/registry/regserver"
	"github.com/krmcat/krmcat/registry/regtest"
)

// crashFolder is set for the process that is killed.
const crashFolder = "KRMCAT_TEST_INDEX_CRASH"

// crashes is how often a server is killed; KRMCAT_TEST_CRASHES is another
// number.
func crashes(t *testing.T) int {
	s := os.Getenv("KRMCAT_TEST_CRASHES")
	if s == "" {
		return 6
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestCrash kills a server at any point of its pushes. All that it had
// acknowledged is in the index when it starts again.
func TestCrash(t *testing.T) {
	t.Parallel()
	if dir := os.Getenv(crashFolder); dir != "" {
		crashChild(t, dir)
		return
	}
	dir := t.TempDir()
	acknowledged := map[string]bool{}
	for round := range crashes(t) {
		cmd := exec.Command(os.Args[0], "-test.run=^TestCrash$")
		cmd.Env = append(os.Environ(), crashFolder+"="+dir, fmt.Sprint("ROUND=", round))
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		cmd.Stderr = os.Stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		left := 1 + rand.IntN(60)
		lines := bufio.NewScanner(out)
		for left > 0 && lines.Scan() {
			if ref, ok := strings.CutPrefix(lines.Text(), "pushed "); ok {
				acknowledged[ref] = true
				left--
			} else {
				t.Error(lines.Text())
			}
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		// What it said before it died counts too.
		for lines.Scan() {
			if ref, ok := strings.CutPrefix(lines.Text(), "pushed "); ok {
				acknowledged[ref] = true
			}
		}
		_ = cmd.Wait() // it was killed
		checkAcknowledged(t, dir, acknowledged)
	}
	t.Logf("%d pushes were acknowledged", len(acknowledged))
}

// crashChild serves and pushes until it is killed.
func crashChild(t *testing.T, dir string) {
	store, x, stop := openCrashed(t, dir)
	defer stop()
	s := &site{t: t, x: x, http: httptest.NewServer(regserver.New(store, &regserver.Options{Observer: observe(x)}))}
	errs := make(chan error)
	for w := range 4 {
		go func() {
			for i := 0; ; i++ {
				f := setLabels
				f.kind = fmt.Sprintf("Fn%dx%d", w, i%7)
				f.image = fmt.Sprint("-", os.Getenv("ROUND"), "-", i)
				repository, tag := "acme/"+strings.ToLower(f.kind), fmt.Sprintf("v%s.%d.0", os.Getenv("ROUND"), i)
				d, err := s.tryPush(repository, f.artifact(), tag)
				if err == nil {
					_, err = s.tryPush(repository, artifact{artifactType: "application/vnd.dev.sigstore.bundle.v0.3+json", subject: d}, "")
				}
				if err != nil {
					errs <- err
					return
				}
				if _, err := fmt.Printf("pushed %s %s\n", f.kind, tag); err != nil {
					return
				}
			}
		}()
	}
	t.Error(<-errs)
}

func openCrashed(t *testing.T, dir string) (*regdir.Store, *index.Index, func()) {
	t.Helper()
	store, err := regdir.Open(filepath.Join(dir, "registry"), nil)
	if err != nil {
		t.Fatal(err)
	}
	x, err := index.OpenSQLite(t.Context(), store, filepath.Join(dir, "index.db"), nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan struct{})
	go func() { x.Run(ctx); close(done) }()
	<-x.Ready()
	return store, x, func() {
		cancel()
		<-done
		if err := x.Close(); err != nil {
			t.Error(err)
		}
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	}
}

func checkAcknowledged(t *testing.T, dir string, acknowledged map[string]bool) {
	t.Helper()
	_, x, stop := openCrashed(t, dir)
	defer stop()
	have := map[string]*index.Release{}
	p, err := x.Search(t.Context(), index.Query{Limit: 100})
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range p.Items {
		f, err := x.Function(t.Context(), l.Group, l.Kind, "")
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range f.Releases {
			have[l.Kind+" "+r.Tag] = r
		}
	}
	for ref := range acknowledged {
		switch r := have[ref]; {
		case r == nil:
			t.Errorf("%s was acknowledged and is not in the index", ref)
		case !r.Signed:
			t.Errorf("the signature of %s was acknowledged and is not in the index", ref)
		}
	}
	if broken, err := filepath.Glob(filepath.Join(dir, "*.broken")); err != nil || len(broken) > 0 {
		t.Errorf("the index was found broken: %v, %v", broken, err)
	}
}

// A database that goes away between the announcement of a change and its
// outcome: the change is stored, and is in the index when the database is
// back. Meanwhile nothing is acknowledged that the index would miss, and
// pulls go on.
func TestDatabaseGoesAway(t *testing.T) {
	t.Parallel()
	c := postgres(t)
	url := c.database(t)
	s := newSite(t, func(t *testing.T, store registry.Store) *index.Index { return openPostgres(t, store, url) }, nil)
	s.push("acme/first", setLabels.artifact(), "v1.0.0")
	s.wantAll(entry{"example.com/v1 SetLabels", "setlabels"})

	second := setLabels
	second.kind = "Second"
	a := second.artifact()
	m := a.manifest()
	change := index.Change{Repository: "acme/second", Tag: "v1.0.0", Descriptor: regtest.Describe("application/vnd.oci.image.manifest.v1+json", m), Manifest: m}
	done, err := s.x.Begin(t.Context(), change)
	if err != nil {
		t.Fatal(err)
	}
	name := url[strings.LastIndexByte(url[:strings.IndexByte(url, '?')], '/')+1 : strings.IndexByte(url, '?')]
	exec := func(query string) {
		t.Helper()
		if _, err := c.db.ExecContext(t.Context(), query); err != nil {
			t.Fatal(err)
		}
	}
	exec("ALTER DATABASE " + name + " ALLOW_CONNECTIONS false")
	exec("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '" + name + "'")

	blobs := [][]byte{[]byte("{}")}
	for _, l := range a.layers {
		blobs = append(blobs, []byte(l.data))
	}
	regtest.Put(t.Context(), t, s.store, "acme/second", &regtest.Artifact{Descriptor: change.Descriptor, Manifest: m, Blobs: blobs}, "v1.0.0")
	if err := done(t.Context(), nil); err == nil {
		t.Error("done says that the index has it, without a database")
	}
	third := setLabels
	third.kind = "Third"
	if _, err := s.tryPush("acme/third", third.artifact(), "v1.0.0"); err == nil || !strings.Contains(err.Error(), "503") {
		t.Errorf("push without a database: %v", err)
	}
	if err := s.request("GET", "/v2/acme/first/manifests/v1.0.0", "", nil); err != nil {
		t.Errorf("pull without a database: %v", err)
	}
	if err := s.request("PUT", "/v2/acme/blob/manifests/v1.0.0", "application/vnd.oci.image.manifest.v1+json", []byte("{}")); err == nil {
		t.Error("a manifest that is none was taken")
	}
	// The last catalog that was made is served on.
	s.wantAll(entry{"example.com/v1 SetLabels", "setlabels"})

	exec("ALTER DATABASE " + name + " ALLOW_CONNECTIONS true")
	waitFor(t, func() bool {
		_, err := s.x.Function(t.Context(), "example.com", "Second", "")
		return err == nil
	})
	s.wantAll(entry{"example.com/v1 Second", "second"}, entry{"example.com/v1 SetLabels", "setlabels"})
	if _, err := s.tryPush("acme/third", third.artifact(), "v1.0.0"); err != nil {
		t.Error(err)
	}
	waitFor(t, func() bool {
		st, err := s.x.Stats(t.Context())
		return err == nil && st.Pending == 0
	})
}
