package fntest

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/krmcat/krmcat/runtime"
)

// List is a ResourceList with one Deployment, and a configuration that tells
// the test function what to do.
func List(do string) []byte {
	return append([]byte(`apiVersion: config.kubernetes.io/v1
kind: ResourceList
items:
# the first
- apiVersion: apps/v1
  kind: Deployment
  metadata:
    annotations:
      internal.config.kubernetes.io/index: '0'
      internal.config.kubernetes.io/path: a.yaml
      config.kubernetes.io/index: '0'
      config.kubernetes.io/path: a.yaml
      internal.config.kubernetes.io/other: keep
    name: web
  spec:
    replicas: 3 # three
`), configField(do)...)
}

func configField(do string) string {
	return "functionConfig:\n  " + strings.ReplaceAll(strings.TrimSpace(string(Config(do))), "\n", "\n  ") + "\n"
}

// Prepare makes the test function ready with the executor under test.
type Prepare func(t *testing.T, g runtime.Grants, l runtime.Limits) runtime.Function

// Options say what an executor cannot do.
type Options struct {
	// NoMemory means that memory is not limited.
	NoMemory bool
}

// Suite is what every executor of programs must do with the test function.
func Suite(t *testing.T, prepare Prepare, opts Options) {
	run := func(t *testing.T, do string, g runtime.Grants, l runtime.Limits) (stdout, stderr string, err error) {
		t.Helper()
		var out, errs bytes.Buffer
		err = prepare(t, g, l).Run(t.Context(), runtime.Stdio{Stdin: bytes.NewReader(List(do)), Stdout: &out, Stderr: &errs, FunctionConfig: Config(do)})
		return out.String(), errs.String(), err
	}
	t.Run("copy", func(t *testing.T) {
		out, _, err := run(t, "copy", runtime.Grants{}, runtime.Limits{})
		if err != nil {
			t.Fatal(err)
		}
		if out != string(List("copy")) {
			t.Errorf("got %s", out)
		}
	})
	t.Run("fail", func(t *testing.T) {
		_, stderr, err := run(t, "fail", runtime.Grants{}, runtime.Limits{})
		fe, ok := errors.AsType[*runtime.FunctionError](err)
		if !ok || fe.ExitCode != 3 || !strings.Contains(fe.Stderr, "frobnicator") || !strings.Contains(err.Error(), "frobnicator") {
			t.Errorf("got %#v", err)
		}
		if !strings.Contains(stderr, "frobnicator") {
			t.Errorf("standard error is %q", stderr)
		}
	})
	t.Run("kill", func(t *testing.T) {
		_, _, err := run(t, "kill", runtime.Grants{}, runtime.Limits{})
		fe, ok := errors.AsType[*runtime.FunctionError](err)
		if !ok || fe.ExitCode != 137 {
			t.Errorf("got %v", err)
		}
	})
	t.Run("hang", func(t *testing.T) {
		_, _, err := run(t, "hang", runtime.Grants{}, runtime.Limits{Timeout: 2 * time.Second})
		if !errors.Is(err, runtime.ErrTimeout) || !strings.Contains(err.Error(), "2s") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("canceled", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(500*time.Millisecond, cancel)
		err := prepare(t, runtime.Grants{}, runtime.Limits{}).Run(ctx, runtime.Stdio{Stdin: bytes.NewReader(List("hang")), Stdout: &bytes.Buffer{}})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("flood", func(t *testing.T) {
		out, _, err := run(t, "flood", runtime.Grants{}, runtime.Limits{MaxOutput: 1 << 20})
		if !errors.Is(err, runtime.ErrOutputLimit) || !strings.Contains(err.Error(), "standard output") {
			t.Errorf("got %v", err)
		}
		if len(out) > 1<<20 {
			t.Errorf("%d bytes came through", len(out))
		}
	})
	t.Run("flood stderr", func(t *testing.T) {
		_, stderr, err := run(t, "flood-stderr", runtime.Grants{}, runtime.Limits{MaxOutput: 4 << 20})
		if !errors.Is(err, runtime.ErrOutputLimit) || !strings.Contains(err.Error(), "standard error") {
			t.Errorf("got %v", err)
		}
		if len(stderr) > 2<<20 {
			t.Errorf("%d bytes came through", len(stderr))
		}
	})
	t.Run("memory", func(t *testing.T) {
		if opts.NoMemory {
			t.Skip("this executor does not limit memory")
		}
		_, _, err := run(t, "memory", runtime.Grants{}, runtime.Limits{MaxMemory: 256 << 20})
		if _, ok := errors.AsType[*runtime.FunctionError](err); !ok {
			t.Errorf("got %v", err)
		}
	})
	t.Run("env", func(t *testing.T) {
		t.Setenv("AWS_SECRET_ACCESS_KEY", "secret-of-the-caller")
		_, stderr, err := run(t, "env", runtime.Grants{Env: []string{"GIVEN=x=y"}}, runtime.Limits{})
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(stderr, "secret-of-the-caller") {
			t.Error("the function sees the caller's environment")
		}
		if !strings.Contains(stderr, "GIVEN=x=y\n") {
			t.Errorf("the granted variable is missing in\n%s", stderr)
		}
	})
	t.Run("no stdin", func(t *testing.T) {
		var out bytes.Buffer
		if err := prepare(t, runtime.Grants{}, runtime.Limits{}).Run(t.Context(), runtime.Stdio{Stdout: &out}); err != nil || out.Len() > 0 {
			t.Errorf("got %q, %v", out.String(), err)
		}
	})
	t.Run("at once", func(t *testing.T) {
		fn := prepare(t, runtime.Grants{}, runtime.Limits{})
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				var out bytes.Buffer
				if err := fn.Run(t.Context(), runtime.Stdio{Stdin: bytes.NewReader(List("copy")), Stdout: &out}); err != nil || out.Len() != len(List("copy")) {
					t.Errorf("got %d bytes, %v", out.Len(), err)
				}
			})
		}
		wg.Wait()
	})
}

// Build builds the test function as a static program, once for each test
// process and platform; the go command caches it.
func Build(t testing.TB) string {
	t.Helper()
	built.once.Do(func() {
		dir, err := os.MkdirTemp("", "krmcat-testfn-")
		if err != nil {
			built.err = err
			return
		}
		built.path = filepath.Join(dir, "testfn")
		cmd := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", built.path, "github.com/krmcat/krmcat/runtime/fntest/testfn")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			built.err = errors.New(string(out))
		}
	})
	if built.err != nil {
		t.Fatalf("building the test function: %v", built.err)
	}
	return built.path
}

var built struct {
	once sync.Once
	path string
	err  error
}

// Cleanup removes what [Build] made; call it at the end of TestMain.
func Cleanup() {
	if built.path != "" {
		_ = os.RemoveAll(filepath.Dir(built.path))
	}
}

// Token returns a word that no other test uses, for [Running].
func Token() string { return "t" + strings.ToLower(rand.Text()) }

// Running returns the numbers of the processes of this machine that the test
// function has started with a token. It looks in /proc, which Linux has.
func Running(t testing.TB, token string) []string {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	var pids []string
	for _, f := range files {
		// One that has ended meanwhile, or that nobody has waited for, has
		// no command line.
		if b, err := os.ReadFile(f); err == nil && bytes.HasSuffix(b, []byte("\x00"+token+"\x00")) {
			pids = append(pids, filepath.Base(filepath.Dir(f)))
		}
	}
	return pids
}

// Require skips a test that needs something this machine does not have, or
// fails it if KRMCAT_TEST_REQUIRE=all says that nothing may be skipped.
func Require(t testing.TB, why string) {
	t.Helper()
	if os.Getenv("KRMCAT_TEST_REQUIRE") == "all" {
		t.Fatal(why)
	}
	t.Skip(why)
}
