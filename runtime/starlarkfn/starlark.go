// Package starlarkfn runs KRM functions that are published as Starlark
// scripts (KG-09, KG-10).
//
// A script finds the ResourceList in ctx.resource_list and changes it in
// place. ctx.open_api holds the OpenAPI definitions of Kubernetes' types,
// ctx.environment the variables that the user granted. log and print write to
// standard error, fail ends the function, the modules json and math are
// there. There is no clock, no randomness, no file and no network: the same
// input gives the same output.
//
// Starlark itself bounds steps, but not memory: one multiplication of a list
// takes five gigabytes in nine steps, and cannot be interrupted. Scripts
// therefore run in a child process, with the limits of every other function;
// see [Executor].
package starlarkfn

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"

	"github.com/opencontainers/go-digest"
	"go.starlark.net/resolve"
	"go.starlark.net/syntax"

	"github.com/krmcat/krmcat/catalog"
	"github.com/krmcat/krmcat/runtime"
	"github.com/krmcat/krmcat/runtime/internal/process"
)

// MaxScript is the size in bytes up to which scripts are read.
const MaxScript = 1 << 20

// DefaultMaxSteps is the number of steps after which a script is stopped.
const DefaultMaxSteps = 1_000_000_000

// Executor runs Starlark runtimes. It is safe for concurrent use.
type Executor struct {
	// Source fetches scripts.
	Source catalog.Source
	// Worker is the command, with its arguments, of a process that calls
	// [Work]; usually the program itself. Without it scripts run inside this
	// process: time, steps and output are limited then, but memory is not,
	// which is for scripts that are trusted like the program.
	Worker []string
	// MaxSteps is the number of steps, 0 for [DefaultMaxSteps].
	MaxSteps uint64
	// Log may be nil.
	Log *slog.Logger
}

// Prepare implements [runtime.Executor]: it fetches the script, verifies its
// digest and checks its syntax.
func (x *Executor) Prepare(ctx context.Context, rt catalog.Runtime, g runtime.Grants, l runtime.Limits) (runtime.Function, error) {
	s := rt.Starlark
	if s == nil {
		return nil, fmt.Errorf("not a Starlark script: %w", errors.ErrUnsupported)
	}
	want := s.Digest
	if want == "" && s.Location.Digest == "" {
		return nil, fmt.Errorf("script %s: %w", s.URI, catalog.ErrNoDigest)
	}
	if x.Source == nil {
		return nil, fmt.Errorf("script %s: there is no source to fetch it from: %w", s.URI, runtime.ErrUnavailable)
	}
	c, err := x.Source.Fetch(ctx, s.Location)
	if err != nil {
		return nil, fmt.Errorf("fetching script: %w", err)
	}
	defer c.Body.Close()
	script, err := io.ReadAll(io.LimitReader(c.Body, MaxScript+1))
	if err != nil {
		return nil, fmt.Errorf("fetching script %s: %w", s.URI, err)
	}
	// The location's own digest has been verified by the source.
	if got := digest.FromBytes(script); want != "" && got != want {
		return nil, fmt.Errorf("script %s is %s, but the document says %s: %w", s.URI, got, want, runtime.ErrIntegrity)
	}
	return x.Script(s.URI, script, g, l)
}

// Script is a function from a script that the caller trusts to be the right
// one. The name is for errors.
func (x *Executor) Script(name string, script []byte, g runtime.Grants, l runtime.Limits) (runtime.Function, error) {
	if len(script) > MaxScript {
		return nil, fmt.Errorf("script %s: larger than %d bytes", name, MaxScript)
	}
	if err := check(name, script); err != nil {
		return nil, fmt.Errorf("script %w", err)
	}
	return &function{x: x, job: job{Name: name, Env: g.Env, MaxSteps: x.MaxSteps, Size: len(script)}, script: script, limits: l}, nil
}

// options are the dialect: what functions written for other orchestrators
// use. Recursion stays off, as it would use memory without steps.
var options = &syntax.FileOptions{Set: true, While: true, TopLevelControl: true, GlobalReassign: true}

func check(name string, script []byte) error {
	f, err := options.Parse(name, script, 0)
	if err != nil {
		return err
	}
	universe := func(n string) bool { return predeclared[n] || isUniversal(n) }
	if err := resolve.File(f, func(n string) bool { return predeclared[n] }, universe); err != nil {
		return err
	}
	return nil
}

type function struct {
	x      *Executor
	job    job
	script []byte
	limits runtime.Limits
}

// job is what the worker is told in the first line of its input; the script
// and then the ResourceList follow.
type job struct {
	Name     string   `json:"name"`
	Size     int      `json:"size"`
	MaxSteps uint64   `json:"maxSteps,omitempty"`
	Env      []string `json:"env,omitempty"`
}

// Run implements [runtime.Function].
func (f *function) Run(ctx context.Context, stdio runtime.Stdio) error {
	if len(f.x.Worker) == 0 {
		return f.inProcess(ctx, stdio)
	}
	head, err := json.Marshal(f.job)
	if err != nil {
		return fmt.Errorf("script %s: %w", f.job.Name, err)
	}
	tmp, remove, err := process.TempDir()
	if err != nil {
		return err
	}
	defer remove()
	in := stdio.Stdin
	if in == nil {
		in = bytes.NewReader(nil)
	}
	stdio.Stdin = io.MultiReader(bytes.NewReader(append(head, '\n')), bytes.NewReader(f.script), in)
	return process.Run(ctx, process.Spec{
		Name:        f.job.Name,
		Path:        f.x.Worker[0],
		Args:        f.x.Worker[1:],
		Env:         process.Env(tmp, nil),
		Dir:         tmp,
		Stdio:       stdio,
		Limits:      f.limits,
		BoundMemory: true,
	})
}

// inProcess runs the script in this process.
func (f *function) inProcess(ctx context.Context, stdio runtime.Stdio) error {
	l := f.limits.WithDefaults()
	parent := ctx
	ctx, stop := context.WithTimeoutCause(ctx, l.Timeout, runtime.ErrTimeout)
	defer stop()
	input, err := io.ReadAll(stdio.Stdin)
	if err != nil {
		return fmt.Errorf("script %s: reading its input: %w", f.job.Name, err)
	}
	var said bytes.Buffer
	var stderr io.Writer = &said
	if stdio.Stderr != nil {
		stderr = io.MultiWriter(&said, stdio.Stderr)
	}
	out, err := execute(ctx, f.job, f.script, input, stderr)
	if int64(len(out)) > l.MaxOutput {
		return fmt.Errorf("script %s wrote more than %d bytes: %w", f.job.Name, l.MaxOutput, runtime.ErrOutputLimit)
	}
	if len(out) > 0 {
		if _, err := stdio.Stdout.Write(out); err != nil {
			return fmt.Errorf("script %s: %w", f.job.Name, err)
		}
	}
	switch {
	case err == nil:
		return nil
	case parent.Err() != nil:
		return fmt.Errorf("script %s: %w", f.job.Name, context.Cause(parent))
	case ctx.Err() != nil:
		return &runtime.TimeoutError{Name: f.job.Name, After: l.Timeout}
	}
	if !errors.Is(err, errReported) {
		fmt.Fprintf(stderr, "%v\n", err)
	}
	return &runtime.FunctionError{Name: f.job.Name, ExitCode: 1, Stderr: said.String()}
}

// Work is the child process: it reads a job from in, runs the script and
// returns the exit code. A program that gives its own command as
// [Executor.Worker] calls it and does nothing else.
func Work(ctx context.Context, in io.Reader, out, stderr io.Writer) int {
	r := bufio.NewReaderSize(in, 64<<10)
	fail := func(err error) int {
		fmt.Fprintf(stderr, "%v\n", err)
		return 1
	}
	line, err := r.ReadSlice('\n')
	if err != nil {
		return fail(fmt.Errorf("starlark worker: no job on standard input: %w", err))
	}
	var j job
	if err := json.Unmarshal(line, &j); err != nil || j.Size < 0 || j.Size > MaxScript {
		return fail(fmt.Errorf("starlark worker: not a job: %v", err))
	}
	script := make([]byte, j.Size)
	if _, err := io.ReadFull(r, script); err != nil {
		return fail(fmt.Errorf("starlark worker: reading the script: %w", err))
	}
	input, err := io.ReadAll(r)
	if err != nil {
		return fail(fmt.Errorf("starlark worker: reading the ResourceList: %w", err))
	}
	result, err := execute(ctx, j, script, input, stderr)
	if _, werr := out.Write(result); werr != nil {
		return fail(werr)
	}
	switch {
	case errors.Is(err, errReported):
		return 1
	case err != nil:
		return fail(err)
	}
	return 0
}
