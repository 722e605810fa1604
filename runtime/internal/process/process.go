// Package process runs a child process for an executor within limits of time,
// memory and output, and leaves nothing of its process group behind, nor, if
// asked to, of what has left that.
package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"sync"
	"time"

	"github.com/krmcat/krmcat/runtime"
)

// Spec is a process to run.
type Spec struct {
	Name   string // of the function, for errors
	Path   string
	Args   []string // without the name of the program
	Env    []string // all of it; nothing is inherited
	Dir    string
	Stdio  runtime.Stdio
	Limits runtime.Limits
	// BoundMemory puts the memory limit on the process itself, where the
	// system can do that.
	BoundMemory bool
	// Contain ends everything that the process has started with it, also what
	// has left its process group and its session. On Linux it runs as the first
	// process of a PID namespace, or where that is not allowed, with a variable
	// in its environment by which its children are found; elsewhere this is
	// the same as without.
	Contain bool
	// Began, if not nil, is closed when the limit of time begins to count;
	// otherwise it counts from the start.
	Began <-chan struct{}
	// Adjust may change the command before it is started, for a sandbox.
	Adjust func(*exec.Cmd) error
	// Killed is called when the process is killed before its end; for a
	// client of something that goes on running without it.
	Killed func()
	// TrimStderr, if not nil, takes out of the last lines of standard error
	// what is not the function's.
	TrimStderr func([]byte) []byte
}

// waitDelay is how long the pipes of an ended process may stay open in the
// hands of its children.
const waitDelay = 2 * time.Second

// Run runs the process. Errors are as [runtime.Function] documents.
func Run(ctx context.Context, s Spec) error {
	l := s.Limits.WithDefaults()
	parent := ctx
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		if s.Began != nil {
			select {
			case <-s.Began:
			case <-ctx.Done():
				return
			}
		}
		t := time.NewTimer(l.Timeout)
		defer t.Stop()
		select {
		case <-t.C:
			cancel(runtime.ErrTimeout)
		case <-ctx.Done():
		}
	}()

	stdout := &limited{w: s.Stdio.Stdout, left: l.MaxOutput, over: func() {
		cancel(fmt.Errorf("function %s wrote more than %d bytes to its standard output and was killed: %w", s.Name, l.MaxOutput, runtime.ErrOutputLimit))
	}}
	kept := &tail{pass: s.Stdio.Stderr, passLeft: maxStderrPassed}
	stderr := &limited{w: kept, left: max(l.MaxOutput, maxStderrPassed), over: func() {
		cancel(fmt.Errorf("function %s wrote more than %d bytes to its standard error and was killed: %w", s.Name, l.MaxOutput, runtime.ErrOutputLimit))
	}}
	cmd, end, err := startContained(s.Contain, func(c containment) (*exec.Cmd, error) {
		cmd := exec.CommandContext(ctx, s.Path, s.Args...)
		cmd.Env = slices.Clone(s.Env)
		if cmd.Env == nil {
			cmd.Env = []string{}
		}
		cmd.Dir = s.Dir
		cmd.Stdin, cmd.Stdout, cmd.Stderr = s.Stdio.Stdin, stdout, stderr
		group(cmd)
		cmd.Cancel = func() error { return killGroup(cmd) }
		cmd.WaitDelay = waitDelay
		if c.prepare != nil {
			c.prepare(cmd)
		}
		if s.Adjust == nil {
			return cmd, nil
		}
		return cmd, s.Adjust(cmd)
	})
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			return fmt.Errorf("function %s: %w", s.Name, cause)
		}
		return fmt.Errorf("starting function %s: %w", s.Name, err)
	}
	if s.BoundMemory {
		boundMemory(cmd.Process.Pid, l.MaxMemory)
	}
	err = cmd.Wait()
	// What the process has left in its group must not outlive it.
	_ = killGroup(cmd)
	if end != nil {
		end()
	}
	said := kept.text()
	if s.TrimStderr != nil {
		said = s.TrimStderr(said)
	}
	if err == nil {
		return nil
	}
	if cause := context.Cause(ctx); cause != nil {
		if s.Killed != nil {
			s.Killed()
		}
		if parent.Err() != nil {
			return fmt.Errorf("function %s: %w", s.Name, context.Cause(parent))
		}
		if errors.Is(cause, runtime.ErrTimeout) {
			return &runtime.TimeoutError{Name: s.Name, After: l.Timeout, Stderr: string(said)}
		}
		return cause
	}
	if errors.Is(err, exec.ErrWaitDelay) {
		return fmt.Errorf("function %s ended but left a process behind that holds its output: %w", s.Name, runtime.ErrTimeout)
	}
	exit, ok := errors.AsType[*exec.ExitError](err)
	if !ok {
		return fmt.Errorf("function %s: %w", s.Name, err)
	}
	return &runtime.FunctionError{Name: s.Name, ExitCode: exitCode(exit.ProcessState), Stderr: string(said)}
}

// containment is a way to end with a process all that it has started.
type containment struct {
	// prepare changes the command; it may be nil.
	prepare func(*exec.Cmd)
	// end is called when the process has ended; it may be nil.
	end func()
}

// startContained starts a process with the first containment that the system
// allows.
func startContained(contain bool, build func(containment) (*exec.Cmd, error)) (cmd *exec.Cmd, end func(), err error) {
	ways := []containment{{}}
	if contain {
		ways = containments()
	}
	for i, c := range ways {
		cmd, err = start(func() (*exec.Cmd, error) { return build(c) })
		if err == nil {
			return cmd, c.end, nil
		}
		if i == len(ways)-1 || !refused(err) {
			break
		}
	}
	return nil, nil, err
}

// start tries again when the program was just written and another goroutine
// has forked while the file was open for writing (ETXTBSY, golang/go#22315).
// A command can be started once, so each try builds a new one.
func start(build func() (*exec.Cmd, error)) (*exec.Cmd, error) {
	for i := 0; ; i++ {
		cmd, err := build()
		if err != nil {
			return nil, err
		}
		if err = cmd.Start(); err == nil {
			return cmd, nil
		}
		if i == 20 || !textBusy(err) {
			return nil, err
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// limited stops at a number of bytes and says so.
type limited struct {
	w    io.Writer
	left int64
	over func()
}

func (l *limited) Write(p []byte) (int, error) {
	if int64(len(p)) > l.left {
		l.over()
		return 0, runtime.ErrOutputLimit
	}
	l.left -= int64(len(p))
	if l.w == nil {
		return len(p), nil
	}
	return l.w.Write(p)
}

const (
	maxStderrPassed = 1 << 20
	keepStderr      = 16 << 10
)

// tail passes on the first part of what is written and keeps the last.
type tail struct {
	mu       sync.Mutex
	pass     io.Writer
	passLeft int
	kept     []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.pass != nil && t.passLeft > 0 {
		n := min(len(p), t.passLeft)
		t.passLeft -= n
		// A caller whose stream is closed must not make the function fail.
		_, _ = t.pass.Write(p[:n])
		if t.passLeft == 0 {
			_, _ = io.WriteString(t.pass, "\n[more is left out]\n")
		}
	}
	t.kept = append(t.kept, p...)
	if over := len(t.kept) - keepStderr; over > keepStderr {
		t.kept = append(t.kept[:0], t.kept[over:]...)
	}
	return len(p), nil
}

func (t *tail) text() []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	if over := len(t.kept) - keepStderr; over > 0 {
		return t.kept[over:]
	}
	return t.kept
}

// Env is the environment of a function: nothing of the caller's, a home and
// temporary folder that are its own, and what was granted.
func Env(tmp string, granted []string) []string {
	env := []string{
		"PATH=/usr/local/bin:/usr/bin:/bin",
		"HOME=" + tmp,
		"TMPDIR=" + tmp,
		"LANG=C.UTF-8",
		"LC_ALL=C.UTF-8",
		"TZ=UTC",
	}
	env = append(env, systemEnv(tmp)...)
	return append(env, granted...)
}

// TempDir makes a folder that only this user can see; call the returned
// function to remove it.
func TempDir() (string, func(), error) {
	dir, err := os.MkdirTemp("", "krmcat-fn-")
	if err != nil {
		return "", nil, fmt.Errorf("making a temporary folder for the function: %w", err)
	}
	return dir, func() { _ = os.RemoveAll(dir) }, nil
}
