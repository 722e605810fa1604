package index_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/krmcat/krmcat/catalog/index"
	"github.com/krmcat/krmcat/registry"
	"github.com/krmcat/krmcat/registry/regmem"
)

// cluster is a PostgreSQL server of the tests' own, on a socket in a folder.
type cluster struct {
	dir string
	cmd *exec.Cmd
	db  *sql.DB
	n   int
	mu  sync.Mutex
}

var (
	clusterOnce sync.Once
	theCluster  *cluster
	clusterErr  error
)

func TestMain(m *testing.M) {
	code := m.Run()
	if theCluster != nil {
		theCluster.stop()
	}
	os.Exit(code)
}

// postgres is the cluster, started for the first test that needs it.
func postgres(t *testing.T) *cluster {
	t.Helper()
	clusterOnce.Do(func() { theCluster, clusterErr = startCluster() })
	if clusterErr != nil {
		if os.Getenv("KRMCAT_TEST_REQUIRE") == "all" {
			t.Fatal(clusterErr)
		}
		t.Skipf("no PostgreSQL: %v", clusterErr)
	}
	return theCluster
}

// program finds a program of PostgreSQL, where Debian has it too.
func program(name string) (string, error) {
	if p, err := exec.LookPath(name); err == nil {
		return filepath.EvalSymlinks(p)
	}
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/" + name)
	if err != nil || len(found) == 0 {
		return "", fmt.Errorf("%s is not installed (Debian: apt-get install postgresql)", name)
	}
	return found[len(found)-1], nil
}

func startCluster() (*cluster, error) {
	initdb, err := program("initdb")
	if err != nil {
		return nil, err
	}
	server, err := program("postgres")
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "krmcat-pg")
	if err != nil {
		return nil, err
	}
	c := &cluster{dir: dir}
	attr := &syscall.SysProcAttr{}
	if os.Getuid() == 0 {
		// PostgreSQL refuses to run as root.
		u, err := user.Lookup("nobody")
		if err != nil {
			return nil, err
		}
		uid, _ := strconv.Atoi(u.Uid)
		gid, _ := strconv.Atoi(u.Gid)
		if err := os.Chown(dir, uid, gid); err != nil {
			return nil, err
		}
		attr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	}
	data := filepath.Join(dir, "data")
	init := exec.Command(initdb, "-D", data, "-A", "trust", "-U", "krmcat", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync")
	init.Dir, init.SysProcAttr = dir, attr
	if out, err := init.CombinedOutput(); err != nil {
		c.stop()
		return nil, fmt.Errorf("initdb: %w\n%s", err, out)
	}
	c.cmd = exec.Command(server, "-D", data, "-k", dir, "-c", "listen_addresses=", "-c", "fsync=off", "-c", "max_connections=200")
	c.cmd.Dir, c.cmd.SysProcAttr = dir, attr
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		c.stop()
		return nil, err
	}
	defer log.Close()
	c.cmd.Stdout, c.cmd.Stderr = log, log
	if err := c.cmd.Start(); err != nil {
		c.stop()
		return nil, err
	}
	if c.db, err = sql.Open("pgx", c.url("postgres")); err != nil {
		c.stop()
		return nil, err
	}
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if err = c.db.Ping(); err == nil {
			return c, nil
		}
		if time.Now().After(deadline) {
			c.stop()
			return nil, fmt.Errorf("PostgreSQL does not answer: %w", err)
		}
	}
}

func (c *cluster) stop() {
	if c.db != nil {
		_ = c.db.Close()
	}
	if c.cmd != nil && c.cmd.Process != nil {
		_ = c.cmd.Process.Signal(syscall.SIGINT) // fast shutdown
		_ = c.cmd.Wait()
	}
	_ = os.RemoveAll(c.dir)
}

func (c *cluster) url(database string) string {
	return "postgres:///" + database + "?" + url.Values{"host": {c.dir}, "user": {"krmcat"}}.Encode()
}

// database makes a new database and returns its URL.
func (c *cluster) database(t *testing.T) string {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n++
	name := fmt.Sprint("test", c.n)
	if _, err := c.db.ExecContext(t.Context(), "CREATE DATABASE "+name); err != nil {
		t.Fatal(err)
	}
	return c.url(name)
}

func openPostgres(t *testing.T, store registry.Store, url string) *index.Index {
	t.Helper()
	x, err := index.OpenPostgres(store, url, &index.Options{Log: testLog(t)})
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// TestPostgres runs the suite on PostgreSQL.
func TestPostgres(t *testing.T) {
	t.Parallel()
	c := postgres(t)
	runSuite(t, func(t *testing.T) opener {
		url := c.database(t)
		return func(t *testing.T, store registry.Store) *index.Index { return openPostgres(t, store, url) }
	})
}

// Servers that share a database show the same at once, whoever took the push.
func TestReplicas(t *testing.T) {
	t.Parallel()
	url := postgres(t).database(t)
	store := regmem.New()
	open := func(t *testing.T, store registry.Store) *index.Index { return openPostgres(t, store, url) }
	a, b := newSite(t, open, store), newSite(t, open, store)
	a.push("acme/set-labels", setLabels.artifact(), "v1.0.0")
	b.wantAll(entry{"example.com/v1 SetLabels", "setlabels"})
	other := setLabels
	other.kind = "Other"
	b.push("acme/other", other.artifact(), "v1.0.0")
	want := []entry{{"example.com/v1 Other", "other"}, {"example.com/v1 SetLabels", "setlabels"}}
	a.wantAll(want...)
	b.wantAll(want...)

	// Releases of one function that come in at both are all there.
	const n = 30
	errs := make(chan error)
	for i := range n {
		go func() {
			f := setLabels
			f.image = fmt.Sprint("-", i)
			_, err := []*site{a, b}[i%2].tryPush("acme/set-labels", f.artifact(), fmt.Sprintf("v1.1.%d", i))
			errs <- err
		}()
	}
	for range n {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	for _, s := range []*site{a, b} {
		if f := s.function("example.com", "SetLabels", ""); f.Listing.Releases != n+1 || f.Tag != fmt.Sprintf("v1.1.%d", n-1) {
			t.Errorf("%d releases, the newest %s", f.Listing.Releases, f.Tag)
		}
		p, err := s.x.Search(t.Context(), index.Query{Text: "labels"})
		if err != nil || len(p.Items) != 2 || p.Items[0].Releases != n+1 {
			t.Errorf("search: %+v, %v", p, err)
		}
	}
	if got, want := a.state(), b.state(); got != want {
		t.Errorf("the servers differ:\n%s\n%s", got, want)
	}
}

// A server whose database is away takes no definitions, and the others answer
// for it when it is gone for good.
func TestDatabaseAway(t *testing.T) {
	t.Parallel()
	c := postgres(t)
	store := regmem.New()
	name := fmt.Sprintf("away_%d", time.Now().UnixNano())
	x := openPostgres(t, store, c.url(name))
	defer x.Close()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { x.Run(ctx); close(done) }()
	defer func() { cancel(); <-done }()
	if err := x.Check(t.Context()); !errors.Is(err, index.ErrNotReady) {
		t.Errorf("Check: %v", err)
	}
	m := setLabels.artifact().manifest()
	if _, err := x.Begin(t.Context(), index.Change{Repository: "a", Tag: "v1.0.0", Manifest: m}); !errors.Is(err, index.ErrNotReady) {
		t.Errorf("Begin: %v", err)
	}
	for what, err := range map[string]error{
		"Search":   func() error { _, err := x.Search(t.Context(), index.Query{}); return err }(),
		"Catalog":  func() error { _, err := x.Catalog(t.Context(), index.CatalogAll); return err }(),
		"Function": func() error { _, err := x.Function(t.Context(), "a", "B", ""); return err }(),
		"Resolve":  func() error { _, err := x.Resolve(t.Context(), "a/v1", "B"); return err }(),
		"Stats":    func() error { _, err := x.Stats(t.Context()); return err }(),
		"Newest":   func() error { _, err := x.Newest(t.Context(), "", 1); return err }(),
		"Catalogs": func() error { _, err := x.Catalogs(t.Context()); return err }(),
	} {
		if !errors.Is(err, index.ErrNotReady) {
			t.Errorf("%s: %v, want ErrNotReady", what, err)
		}
	}
	// It comes, and the index with it.
	if _, err := c.db.ExecContext(t.Context(), "CREATE DATABASE "+name); err != nil {
		t.Fatal(err)
	}
	select {
	case <-x.Ready():
	case <-time.After(time.Minute):
		t.Fatal("the index does not become ready")
	}
	if _, err := x.Catalog(t.Context(), index.CatalogAll); err != nil {
		t.Error(err)
	}
}

func TestBadDatabaseURL(t *testing.T) {
	t.Parallel()
	_, err := index.OpenPostgres(regmem.New(), "postgres://user:secret@[bad", nil)
	if err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("error %v", err)
	}
}
