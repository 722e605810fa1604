package process_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/krmcat/krmcat/runtime"
	"github.com/krmcat/krmcat/runtime/fntest"
	"github.com/krmcat/krmcat/runtime/internal/process"
)

// helperEnv makes the test program run a function and tell how it went.
const helperEnv = "KRMCAT_PROCESS_TEST"

func TestMain(m *testing.M) {
	if what, ok := os.LookupEnv(helperEnv); ok {
		os.Exit(helper(what))
	}
	code := m.Run()
	fntest.Cleanup()
	os.Exit(code)
}

// helper is started as another user, or in a user namespace of its own: its
// arguments are the test function and what that is to do.
func helper(what string) int {
	if what == "refused" {
		// Of this user namespace, not of the machine.
		if err := os.WriteFile("/proc/sys/user/max_pid_namespaces", []byte("0"), 0o644); err != nil {
			fmt.Println(err)
			return 1
		}
	}
	var errs bytes.Buffer
	err := process.Run(context.Background(), process.Spec{
		Name: "testfn", Path: os.Args[1], Contain: true, Env: process.Env("/tmp", nil), Dir: "/",
		Stdio:  runtime.Stdio{Stdin: bytes.NewReader(fntest.List(os.Args[2])), Stdout: io.Discard, Stderr: &errs},
		Limits: runtime.Limits{Timeout: 3 * time.Second},
	})
	fmt.Printf("timeout: %v\nerror: %v\nuid: %d\n%s", errors.Is(err, runtime.ErrTimeout), err, os.Getuid(), errs.String())
	return 0
}

// Where the system allows PID namespaces to everybody, to root only, or to
// nobody, nothing outlives the function.
func TestContain(t *testing.T) {
	// Other users cannot look into Go's folder for what it builds.
	dir := t.TempDir()
	for p := dir; p != os.TempDir() && len(p) > 1; p = filepath.Dir(p) {
		_ = os.Chmod(p, 0o755)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	test, fn := filepath.Join(dir, "test"), filepath.Join(dir, "testfn")
	for from, to := range map[string]string{self: test, fntest.Build(t): fn} {
		data, err := os.ReadFile(from)
		if err == nil {
			err = os.WriteFile(to, data, 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	id := func(n int) []syscall.SysProcIDMap {
		return []syscall.SysProcIDMap{{ContainerID: 0, HostID: n, Size: 1}}
	}
	for _, as := range []struct {
		name string
		attr *syscall.SysProcAttr
		// first says that the function is the first process of a namespace.
		first bool
	}{
		{"same", nil, true},
		{"nobody", &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}, true},
		{"refused", &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: id(os.Getuid()), GidMappings: id(os.Getgid())}, false},
	} {
		for _, do := range []string{"pid", "fork", "daemon", "daemon-holds", "daemon-hang"} {
			t.Run(as.name+"/"+do, func(t *testing.T) {
				t.Parallel()
				if as.name == "nobody" && os.Geteuid() != 0 {
					t.Skip("only root can be another user; the test as oneself is the same then")
				}
				token := fntest.Token()
				cmd := exec.CommandContext(t.Context(), test, fn, do+" "+token)
				cmd.Env = append(os.Environ(), helperEnv+"="+as.name)
				cmd.Dir = "/"
				cmd.SysProcAttr = as.attr
				out, err := cmd.CombinedOutput()
				if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENOSPC) {
					fntest.Require(t, "user namespaces are not allowed on this machine")
				}
				if err != nil {
					t.Fatalf("%v\n%s", err, out)
				}
				if pids := fntest.Running(t, token); len(pids) > 0 {
					t.Errorf("still running: %v\n%s", pids, out)
				}
				text := string(out)
				switch do {
				case "pid":
					if got := strings.Contains(text, "pid: 1\n"); got != as.first {
						t.Errorf("first process of a namespace: %v, want %v\n%s", got, as.first, text)
					}
				case "fork", "daemon-hang":
					if !strings.Contains(text, "timeout: true") || !strings.Contains(text, "started a") {
						t.Errorf("got %s", text)
					}
				case "daemon":
					if !strings.Contains(text, "error: <nil>") || !strings.Contains(text, "started a daemon") {
						t.Errorf("got %s", text)
					}
				}
			})
		}
	}
}

// A program that cannot be started says so, whatever was tried.
func TestContainNoProgram(t *testing.T) {
	t.Parallel()
	err := process.Run(t.Context(), process.Spec{Name: "none", Path: filepath.Join(t.TempDir(), "none"), Contain: true})
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}

// The limit of time counts from when it is told to, not from the start.
func TestBegan(t *testing.T) {
	t.Parallel()
	never := make(chan struct{})
	spec := process.Spec{Name: "sleep", Path: "/bin/sleep", Args: []string{"1"}, Limits: runtime.Limits{Timeout: 100 * time.Millisecond}, Began: never}
	if err := process.Run(t.Context(), spec); err != nil {
		t.Errorf("before it began: %v", err)
	}
	began := make(chan struct{})
	close(began)
	spec.Began, spec.Args = began, []string{"600"}
	if err := process.Run(t.Context(), spec); !errors.Is(err, runtime.ErrTimeout) {
		t.Errorf("after it began: %v", err)
	}
}
