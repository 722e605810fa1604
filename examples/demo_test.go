//go:build unix

// Package examples tests the demo and what README.md says.
package examples

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// built skips a test unless make examples was run, or fails it if
// KRMCAT_TEST_REQUIRE=all says that nothing may be skipped.
func built(t *testing.T) {
	t.Helper()
	for _, f := range []string{"../bin/krmcat", "set-labels/dist/image/index.json", "require-limits/dist/image/index.json"} {
		if _, err := os.Stat(f); err != nil {
			if os.Getenv("KRMCAT_TEST_REQUIRE") == "all" {
				t.Fatal("KRMCAT_TEST_REQUIRE=all, but the examples are not built: run make examples")
			}
			t.Skip("the examples are not built: run make examples")
		}
	}
}

// script runs a shell script with its children in a process group of their
// own, which is killed if it hangs.
func script(t *testing.T, dir string, env []string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", args...)
	cmd.Dir = dir
	cmd.Env = env
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// environ is this process's environment with some variables changed.
func environ(t *testing.T, set map[string]string) []string {
	t.Helper()
	var env []string
	for _, e := range os.Environ() {
		name, _, _ := strings.Cut(e, "=")
		if _, ok := set[name]; !ok {
			env = append(env, e)
		}
	}
	for name, value := range set {
		env = append(env, name+"="+value)
	}
	return env
}

func TestDemo(t *testing.T) {
	built(t)
	tmp := t.TempDir()
	out, err := script(t, ".", environ(t, map[string]string{"DEMO_EXIT": "1", "TMPDIR": tmp}), "demo.sh")
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{
		"0 errors, 0 warnings",
		", 0 failed,",
		"catalog is not trusted",
		"+    app.kubernetes.io/part-of: shop",
		"replicas: 4 # more in production",
		"no memory limit",
		"The site is at http://127.0.0.1:",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in the output", want)
		}
	}
	if t.Failed() {
		t.Log(out)
	}
	// It cleans up after itself.
	if left, _ := os.ReadDir(tmp); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// Without a container engine the demo says what it leaves out.
func TestDemoWithoutContainers(t *testing.T) {
	built(t)
	bin := t.TempDir()
	for _, tool := range []string{"sh", "cat", "cp", "diff", "dirname", "mkdir", "mktemp", "mv", "rm", "sed", "sleep"} {
		path, err := exec.LookPath(tool)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(path, filepath.Join(bin, tool)); err != nil {
			t.Fatal(err)
		}
	}
	env := environ(t, map[string]string{"DEMO_EXIT": "1", "TMPDIR": t.TempDir(), "PATH": bin})
	out, err := script(t, ".", env, "demo.sh")
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{"Left out: the run in a container", "changed web.yaml", "no memory limit"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in the output:\n%s", want, out)
		}
	}
}

// The demo of a tree that is not built says what to do.
func TestDemoUnbuilt(t *testing.T) {
	dir := t.TempDir()
	if err := os.CopyFS(filepath.Join(dir, "examples"), os.DirFS("shop")); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile("demo.sh")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "examples", "demo.sh"), data, 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := script(t, dir, environ(t, map[string]string{"PATH": "/usr/bin:/bin"}), "examples/demo.sh")
	var exit *exec.ExitError
	if !errors.As(err, &exit) || !strings.Contains(out, "run make demo") {
		t.Errorf("%v: %s", err, out)
	}
}

// Where nothing can be installed, make test says what is missing.
func TestToolsElsewhere(t *testing.T) {
	bin := t.TempDir()
	for _, tool := range []string{"id", "ls"} {
		path, err := exec.LookPath(tool)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(path, filepath.Join(bin, tool)); err != nil {
			t.Fatal(err)
		}
	}
	sh, err := exec.LookPath("sh")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(sh, "../.ci/tools")
	cmd.Env = []string{"PATH=" + bin}
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || !strings.Contains(string(out), "which are not here: podman") || !strings.Contains(string(out), "go test ./...") {
		t.Errorf("%v: %s", err, out)
	}
}
