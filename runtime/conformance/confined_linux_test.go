package conformance_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/krmcat/krmcat/runtime"
	"github.com/krmcat/krmcat/runtime/conformance"
	"github.com/krmcat/krmcat/runtime/fntest"
)

func TestMain(m *testing.M) {
	code := m.Run()
	fntest.Cleanup()
	os.Exit(code)
}

// A real process that the kernel keeps from privileges, network and files: a
// function that needs them is found out, one that does not is not (C13 to
// C15).
func TestConfinedProcess(t *testing.T) {
	dir := t.TempDir()
	// The program must be reachable for the user that it runs as.
	bin := filepath.Join(dir, "testfn")
	data, err := os.ReadFile(fntest.Build(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.WriteFile(bin, data, 0o755), os.Chmod(bin, 0o755)); err != nil {
		t.Fatal(err)
	}
	for d := dir; d != filepath.Dir(os.TempDir()) && d != "/"; d = filepath.Dir(d) {
		if d == os.TempDir() {
			break
		}
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if os.Getuid() != 0 {
		fntest.Require(t, "only root can start a process as nobody without network")
	}
	fn := runtime.FunctionFunc(func(ctx context.Context, s runtime.Stdio) error {
		var errs bytes.Buffer
		cmd := exec.CommandContext(ctx, bin)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = s.Stdin, s.Stdout, io.MultiWriter(&errs, s.Stderr)
		cmd.Env, cmd.Dir = []string{}, "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Credential: &syscall.Credential{Uid: 65534, Gid: 65534},
			Cloneflags: syscall.CLONE_NEWNET,
		}
		err := cmd.Run()
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			return &runtime.FunctionError{Name: "testfn", ExitCode: exit.ExitCode(), Stderr: errs.String()}
		}
		return err
	})
	opts := conformance.Options{Quick: true, Withheld: conformance.Withheld{Privileges: true, Network: true, Files: true}}
	for do, want := range map[string]string{"needs-root": "C13", "needs-network": "C14", "missing-file": "C15", "copy": ""} {
		t.Run(do, func(t *testing.T) {
			r := conformance.Run(t.Context(), fn, example(do), opts)
			if r.Err != nil {
				if errors.Is(r.Err, syscall.EPERM) {
					fntest.Require(t, "no new network namespaces here: "+r.Err.Error())
				}
				t.Fatal(r.Err)
			}
			var got []string
			for _, f := range r.Findings {
				if f.Level == conformance.Error {
					got = append(got, f.ID)
				}
			}
			if want == "" && len(got) > 0 || want != "" && !slices.Equal(got, []string{want}) {
				t.Errorf("got %v, want %q:\n%v\n%s", got, want, r.Findings, r.Stderr)
			}
		})
	}
}
