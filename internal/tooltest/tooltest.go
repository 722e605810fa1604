// Package tooltest is for tests that work with programs of others: it finds
// them, or builds them from the module proxy.
package tooltest

import (
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/lockedfile"
)

// program is where the source of a program is.
type program struct {
	module, version string
	pkg             string // in the module; empty is its root
	// onPath says that any release will do, also one that is installed.
	onPath bool
}

// programs are those that tests use, by the name that tests call them.
var programs = map[string]program{
	"cosign2":   {module: "github.com/sigstore/cosign/v2", version: "v2.6.5", pkg: "cmd/cosign"},
	"cosign3":   {module: "github.com/sigstore/cosign/v3", version: "v3.1.3", pkg: "cmd/cosign"},
	"oras":      {module: "oras.land/oras", version: "v1.3.1", pkg: "cmd/oras", onPath: true},
	"regctl":    {module: "github.com/regclient/regclient", version: "v0.11.1", pkg: "cmd/regctl", onPath: true},
	"minio":     {module: "github.com/minio/minio", version: "v0.0.0-20260212201848-7aac2a2c5b7c", onPath: true},
	"versitygw": {module: "github.com/versity/versitygw", version: "v1.8.0", pkg: "cmd/versitygw", onPath: true},
}

// Path returns the path of a program, as [Find] does, or skips the test.
func Path(t testing.TB, name string) string {
	t.Helper()
	file := Find(t, name)
	if file == "" {
		t.Skipf("no %s: set %s to its path, or KRMCAT_TEST_REQUIRE=all to build it", name, variable(name))
	}
	return file
}

func variable(name string) string { return "KRMCAT_" + strings.ToUpper(name) }

// Find returns the path of a program: what $KRMCAT_NAME says, one that is
// installed, or one that was built before, into a folder beside Go's cache.
// Otherwise it is built there if KRMCAT_TEST_REQUIRE=all asks for everything,
// which takes minutes the first time, and the path is empty if not.
func Find(t testing.TB, name string) string {
	t.Helper()
	p, ok := programs[name]
	if !ok {
		t.Fatalf("no program %q is known", name)
	}
	if f := os.Getenv(variable(name)); f != "" {
		return f
	}
	if p.onPath {
		if f, err := exec.LookPath(name); err == nil {
			return f
		}
	}
	out, err := exec.Command("go", "env", "GOCACHE").Output()
	if err != nil {
		t.Fatalf("go env: %v", err)
	}
	base := path.Base(path.Join(p.module, p.pkg))
	dir := filepath.Join(filepath.Dir(strings.TrimSpace(string(out))), "krmcat-tools", base+"-"+p.version)
	file := filepath.Join(dir, base)
	if _, err := os.Stat(file); err == nil {
		return file
	}
	if !Required() {
		return ""
	}
	if err := p.build(dir, file); err != nil {
		t.Fatalf("building %s: %v", name, err)
	}
	return file
}

// build builds the program, once at a time, and gives it its name when it is
// whole.
func (p program) build(dir, file string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	unlock, err := lockedfile.MutexAt(filepath.Join(dir, "lock")).Lock()
	if err != nil {
		return err
	}
	defer unlock()
	if _, err := os.Stat(file); err == nil {
		return nil // by another test, meanwhile
	}
	// Not go install PACKAGE@VERSION: that asks for the list of versions,
	// which module proxies need not have.
	module, err := os.MkdirTemp(dir, "module-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(module)
	text := fmt.Sprintf("module tool\n\ngo 1.26.0\n\nrequire %s %s\n", p.module, p.version)
	if err := os.WriteFile(filepath.Join(module, "go.mod"), []byte(text), 0o644); err != nil {
		return err
	}
	cmd := exec.Command("go", "build", "-mod=mod", "-o", file+".new", path.Join(p.module, p.pkg))
	cmd.Dir = module
	cmd.Env = append(os.Environ(), "GOFLAGS=", "GOWORK=off", "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	return os.Rename(file+".new", file)
}

// Required reports whether KRMCAT_TEST_REQUIRE=all asks for every test.
func Required() bool { return os.Getenv("KRMCAT_TEST_REQUIRE") == "all" }

// Lacking skips a test that this machine cannot run, or fails it if
// KRMCAT_TEST_REQUIRE=all asks for every test.
func Lacking(t testing.TB, what string) {
	t.Helper()
	if Required() {
		t.Fatalf("KRMCAT_TEST_REQUIRE=all, but: %s", what)
	}
	t.Skip(what)
}
