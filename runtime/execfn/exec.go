// Package execfn runs KRM functions that are published as executables
// (KC-062 to KC-067).
//
// An executable runs as a program of this machine: with the rights of the
// user, unless a [Sandbox] takes them away. It is therefore run only when the
// user grants it. It gets nothing of the caller's environment, a temporary
// folder of its own that is also its working directory and home, and limits
// of time, memory and output. Nothing that it starts outlives it: on Linux it
// is the first process of a PID namespace, which the kernel ends with it; where
// that is not allowed, its children are found by their environment and killed;
// on other systems its process group is killed.
package execfn

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	goruntime "runtime"
	"strings"

	"github.com/krmcat/krmcat/catalog"
	"github.com/krmcat/krmcat/runtime"
	"github.com/krmcat/krmcat/runtime/internal/process"
)

// Sandbox takes rights away from a command before it is started. It may
// change everything about the command except its streams.
type Sandbox interface {
	// Confine is given the command and the only folder that it may write
	// to. On Linux the command asks for a PID namespace already, and for a
	// user namespace with the caller's user in it unless the caller is root;
	// a sandbox adds to these. If the system refuses to start the command,
	// Confine is called again with one that asks for less. An error keeps
	// the function from running.
	Confine(cmd *exec.Cmd, tmp string, l runtime.Limits) error
}

// Executor runs the exec runtimes of functions. It is safe for concurrent use.
type Executor struct {
	// Source fetches executables and archives.
	Source catalog.Source
	// Cache is the folder where executables are kept, by the digest they
	// are published under. It must not be writable by others. Required.
	Cache string
	// Platform is os/arch; empty means this machine's.
	Platform string
	// Sandbox may be nil.
	Sandbox Sandbox
	// Log may be nil.
	Log *slog.Logger
}

// Prepare implements [runtime.Executor]: it finds the executable for this
// machine, fetches, verifies and unpacks it, or takes it from the cache.
func (x *Executor) Prepare(ctx context.Context, rt catalog.Runtime, g runtime.Grants, l runtime.Limits) (runtime.Function, error) {
	if rt.Exec == nil {
		return nil, fmt.Errorf("not an executable: %w", errors.ErrUnsupported)
	}
	p, err := x.platform(rt.Exec.Platforms)
	if err != nil {
		return nil, err
	}
	if !g.Exec {
		return nil, &runtime.GrantError{Name: p.Bin, Needs: "exec", Why: "it is a program that runs on this machine, without a container"}
	}
	file, err := x.executable(ctx, p)
	if err != nil {
		return nil, err
	}
	return &function{name: p.Bin, file: file.path, digest: file, env: g.Env, limits: l, sandbox: x.Sandbox}, nil
}

// platform chooses the executable for this machine.
func (x *Executor) platform(ps []catalog.Platform) (catalog.Platform, error) {
	want := x.Platform
	if want == "" {
		want = goruntime.GOOS + "/" + goruntime.GOARCH
	}
	var have []string
	for _, p := range ps {
		if p.OS+"/"+p.Arch == want {
			return p, nil
		}
		have = append(have, p.OS+"/"+p.Arch)
	}
	if len(have) == 0 {
		return catalog.Platform{}, fmt.Errorf("the function has no executable for any platform: %w", runtime.ErrPlatform)
	}
	return catalog.Platform{}, fmt.Errorf("the function has no executable for %s, only for %s: %w", want, strings.Join(have, ", "), runtime.ErrPlatform)
}

// Local is a function from an executable on this machine, which the user has
// named and which is run as it is, without a digest.
func Local(name, path string, args []string, g runtime.Grants, l runtime.Limits, s Sandbox) (runtime.Function, error) {
	if !g.Exec {
		return nil, &runtime.GrantError{Name: name, Needs: "exec", Why: "it is a program that runs on this machine, without a container"}
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("function %s: %w", name, err)
	}
	if info.IsDir() {
		return nil, fmt.Errorf("function %s: %s is a folder", name, path)
	}
	return &function{name: name, file: path, args: args, env: g.Env, limits: l, sandbox: s}, nil
}

type function struct {
	name, file string
	args       []string
	digest     *cached // nil for a local file
	env        []string
	limits     runtime.Limits
	sandbox    Sandbox
}

// Run implements [runtime.Function].
func (f *function) Run(ctx context.Context, stdio runtime.Stdio) error {
	if f.digest != nil {
		if err := f.digest.verify(); err != nil {
			return fmt.Errorf("function %s: %w", f.name, err)
		}
	}
	tmp, remove, err := process.TempDir()
	if err != nil {
		return err
	}
	defer remove()
	spec := process.Spec{
		Name:        f.name,
		Path:        f.file,
		Args:        f.args,
		Env:         process.Env(tmp, f.env),
		Dir:         tmp,
		Stdio:       stdio,
		Limits:      f.limits,
		BoundMemory: true,
		Contain:     true,
	}
	if f.sandbox != nil {
		spec.Adjust = func(cmd *exec.Cmd) error { return f.sandbox.Confine(cmd, tmp, f.limits.WithDefaults()) }
	}
	err = process.Run(ctx, spec)
	if pe, ok := errors.AsType[*os.PathError](err); ok && errors.Is(pe.Err, exec.ErrNotFound) || isExecFormat(err) {
		return fmt.Errorf("%w: it is no program for %s/%s: %w", err, goruntime.GOOS, goruntime.GOARCH, runtime.ErrPlatform)
	}
	return err
}
