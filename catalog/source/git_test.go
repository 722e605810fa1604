package source

import (
	"errors"
	"io/fs"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/krmcat/krmcat/catalog"
)

// needGit skips a test if there is no git to test with.
func needGit(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("git"); err != nil {
		if os.Getenv("KRMCAT_TEST_REQUIRE") == "all" {
			t.Fatal("git is not installed")
		}
		t.Skip("git is not installed")
	}
}

func run(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.Command("git", append([]string{"-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "init.defaultBranch=main", "-c", "protocol.file.allow=always"}, args...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

// testRepo makes a repository with two commits, of which the first is tagged
// v1, and returns its path and both commits.
func testRepo(t *testing.T) (dir, first, second string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "repo")
	if err := os.MkdirAll(filepath.Join(dir, "sub dir"), 0o700); err != nil {
		t.Fatal(err)
	}
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	run(t, dir, "init", "--quiet")
	write("catalog.yaml", "version: 1\n")
	write("sub dir/ü*.yaml", "nested: true\n")
	if err := os.Symlink("/etc/passwd", filepath.Join(dir, "link.yaml")); err != nil {
		t.Fatal(err)
	}
	run(t, dir, "add", ".")
	run(t, dir, "commit", "--quiet", "-m", "one")
	run(t, dir, "tag", "-a", "-m", "v1", "v1")
	first = run(t, dir, "rev-parse", "HEAD")
	write("catalog.yaml", "version: 2\n")
	write("big.yaml", strings.Repeat("x", 2000))
	run(t, dir, "add", ".")
	run(t, dir, "update-index", "--add", "--cacheinfo", "160000,"+first+",module")
	run(t, dir, "commit", "--quiet", "-m", "two")
	run(t, dir, "branch", "feature/x")
	return dir, first, run(t, dir, "rev-parse", "HEAD")
}

func TestGit(t *testing.T) {
	t.Parallel()
	needGit(t)
	dir, first, second := testRepo(t)
	base := "file://" + filepath.ToSlash(dir)
	src := &Git{MaxBytes: 1000}
	for _, tt := range []struct{ loc, want, commit string }{
		{"//", "version: 2\n", second},
		{"//catalog.yaml", "version: 2\n", second},
		{"//catalog.yaml?ref=v1", "version: 1\n", first},
		{"//catalog.yaml?ref=main&timeout=60s", "version: 2\n", second},
		{"//catalog.yaml?ref=feature/x", "version: 2\n", second},
		{"//catalog.yaml?ref=refs/tags/v1", "version: 1\n", first},
		{"//catalog.yaml?ref=" + first, "version: 1\n", first},
		{"//sub%20dir/%C3%BC*.yaml", "nested: true\n", second},
	} {
		got, c, err := fetch(t, src, location(t, base+tt.loc))
		if err != nil || got != tt.want {
			t.Errorf("%s: got %q, %v", tt.loc, got, err)
			continue
		}
		g, err := c.Location.Git()
		if err != nil || g.Ref != tt.commit || !c.Location.Pinned() {
			t.Errorf("%s: location %s, %v, want commit %s", tt.loc, c.Location, err, tt.commit)
		}
		if again, _, err := fetch(t, src, c.Location); err != nil || again != tt.want {
			t.Errorf("%s again: %q, %v", c.Location, again, err)
		}
	}
	for _, tt := range []struct {
		loc  string
		is   error
		text string
	}{
		{"//none.yaml", fs.ErrNotExist, "no file none.yaml"},
		{"//sub%20dir/*", fs.ErrNotExist, "no file"},
		{"//catalog.yaml?ref=none", fs.ErrNotExist, "none"},
		{"//catalog.yaml?ref=" + strings.Repeat("0", 40), fs.ErrNotExist, ""},
		{"//sub%20dir", nil, "is a folder; name a file in it, such as sub dir/catalog.yaml"},
		{"//link.yaml", nil, "is a symbolic link"},
		{"//module", nil, "is a submodule"},
		{"//big.yaml", ErrTooLarge, "more than 1000 bytes"},
		{"x//catalog.yaml", fs.ErrNotExist, ""},
	} {
		_, _, err := fetch(t, src, location(t, base+tt.loc))
		wantError(t, tt.loc, err, tt.is, tt.text)
	}
	_, _, err := fetch(t, &Git{Command: "no-such-git"}, location(t, base+"//"))
	wantError(t, "no git", err, errors.ErrUnsupported, "git is not installed")
	_, _, err = fetch(t, src, location(t, "http://catalog.invalid/repo.git"))
	wantError(t, "http", err, nil, "http is not encrypted")
}

// The smart HTTP protocol, as hosting services speak it.
func TestGitHTTP(t *testing.T) {
	t.Parallel()
	needGit(t)
	dir, first, _ := testRepo(t)
	run(t, dir, "config", "http.uploadpack", "true")
	run(t, dir, "config", "uploadpack.allowFilter", "true")
	backend := filepath.Join(run(t, dir, "--exec-path"), "git-http-backend")
	if _, err := os.Stat(backend); err != nil {
		t.Skipf("no git-http-backend: %v", err)
	}
	h := &cgi.Handler{Path: backend, Env: []string{"GIT_PROJECT_ROOT=" + filepath.Dir(dir), "GIT_HTTP_EXPORT_ALL=1", "HOME=" + t.TempDir()}}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasPrefix(r.URL.Path, "/private"):
			w.Header().Set("WWW-Authenticate", "Basic")
			w.WriteHeader(http.StatusUnauthorized)
		case strings.HasPrefix(r.URL.Path, "/broken"):
			w.WriteHeader(http.StatusServiceUnavailable)
		default:
			h.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(srv.Close)
	got, _, err := fetch(t, &Git{}, location(t, srv.URL+"/repo//catalog.yaml?ref=v1"))
	if err != nil || got != "version: 1\n" {
		t.Errorf("got %q, %v", got, err)
	}
	// A commit that no server has to give out.
	if got, _, err := fetch(t, &Git{}, location(t, srv.URL+"/repo//catalog.yaml?ref="+first)); err != nil || got != "version: 1\n" {
		t.Errorf("by commit: got %q, %v", got, err)
	}
	_, _, err = fetch(t, &Git{}, location(t, srv.URL+"/private.git//catalog.yaml"))
	wantError(t, "private", err, ErrDenied, "")
	_, _, err = fetch(t, &Git{}, location(t, srv.URL+"/broken.git//catalog.yaml"))
	wantError(t, "broken", err, ErrUnavailable, "503")
	_, _, err = fetch(t, &Git{}, location(t, srv.URL+"/none.git//catalog.yaml"))
	wantError(t, "none", err, fs.ErrNotExist, "")
}

// The ssh protocol with a program in the place of ssh, and what the user's
// own configuration says about URLs. Not parallel: it sets the environment.
func TestGitSSH(t *testing.T) {
	needGit(t)
	dir, _, _ := testRepo(t)
	ssh := filepath.Join(t.TempDir(), "ssh")
	script := "#!/bin/sh\n[ \"$1\" = -G ] && exit 0\nfor last; do :; done\necho \"$*\" >> " + ssh + ".log\nexec sh -c \"$last\"\n"
	if err := os.WriteFile(ssh, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("GIT_SSH_COMMAND", ssh)
	t.Setenv("GIT_DIR", "/nonexistent")
	loc := location(t, "ssh://git@example.com"+filepath.ToSlash(dir)+"//catalog.yaml?ref=v1")
	if got, _, err := fetch(t, &Git{}, loc); err != nil || got != "version: 1\n" {
		t.Errorf("got %q, %v", got, err)
	}
	log, err := os.ReadFile(ssh + ".log")
	if err != nil || !strings.Contains(string(log), "git@example.com") {
		t.Errorf("ssh was called with %q, %v", log, err)
	}

	// url.<base>.insteadOf applies, but cannot lead to another protocol.
	t.Setenv("GIT_CONFIG_COUNT", "1")
	t.Setenv("GIT_CONFIG_KEY_0", "url.ext::sh -c false .insteadOf")
	t.Setenv("GIT_CONFIG_VALUE_0", "https://rewritten.invalid/")
	_, _, err = fetch(t, &Git{}, location(t, "https://rewritten.invalid/repo.git"))
	wantError(t, "rewritten to ext::", err, nil, "not allowed")
}

// A server that does not answer is given up after the location's timeout.
func TestGitTimeout(t *testing.T) {
	t.Parallel()
	needGit(t)
	hang := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-r.Context().Done():
		case <-hang:
		}
	}))
	t.Cleanup(srv.Close)
	t.Cleanup(func() { close(hang) })
	_, _, err := fetch(t, &Git{}, location(t, srv.URL+"/repo.git//catalog.yaml?timeout=1s"))
	wantError(t, "timeout", err, ErrUnavailable, "no answer within 1s")
}

var _ catalog.Source = (*Git)(nil)
