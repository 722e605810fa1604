// Package runtime runs KRM functions.
//
// An [Engine] turns a resolved function version into a [Function] with the
// first [Executor] that supports its runtime. The executors are in
// subpackages, so that a program links only the ones it uses. A [Pipeline]
// runs functions one after the other over resources and keeps what they did
// not change.
//
// Executors move bytes and know nothing of YAML; the subpackage resourcelist
// knows the wire format and starts nothing. Directories of resources are the
// subpackage pkgdir's.
package runtime

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/krmcat/krmcat/catalog"
)

// Function is a function that is ready to run. It may be run several times,
// and at once.
type Function interface {
	// Run feeds a ResourceList to the function and returns when it has
	// ended. A function that ran and failed is reported as a
	// [*FunctionError]; one that did not end in time, wrote too much or
	// could not be run wraps [ErrTimeout], [ErrOutputLimit] or
	// [ErrUnavailable].
	Run(ctx context.Context, stdio Stdio) error
}

// Starter is a [Function] that can be started before its input is there, so
// that the time it takes to start is not lost.
type Starter interface {
	Function
	// Start begins to start the function for its next Run, if that is given
	// the same configuration; its time limit counts from the Run. It does
	// nothing for a function that could have any effect but its output. The
	// caller calls stop in any case, before or after the Run; it ends what no
	// Run has taken, and returns when that has ended.
	Start(ctx context.Context, functionConfig []byte) (stop func())
}

// FunctionFunc is a Go function used as a [Function], for tests and for
// functions that are part of a program.
type FunctionFunc func(ctx context.Context, stdio Stdio) error

// Run calls f.
func (f FunctionFunc) Run(ctx context.Context, stdio Stdio) error { return f(ctx, stdio) }

// Stdio are the streams of a function. Stderr may be nil.
type Stdio struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// FunctionConfig is the configuration as a document, also part of the
	// ResourceList in Stdin. Runtimes that mount it get it as a file (CF-18).
	// It may be nil.
	FunctionConfig []byte
}

// Grants are the permissions a user gives to functions. A function gets what
// it declares and the user grants (KC-075, KC-076). The zero value grants
// nothing.
type Grants struct {
	Network      bool
	StorageMount bool
	// Exec allows programs that run on this machine without a container.
	Exec bool
	// Env are environment variables, NAME=value, for every function. Nothing
	// of the caller's own environment reaches a function.
	Env []string
	// Mounts are folders for functions that declare a storage mount; they
	// need StorageMount.
	Mounts []Mount
}

// Mount makes a folder of this machine visible to a container.
type Mount struct {
	Source string // absolute
	Target string // absolute path in the container
	// Writable mounts can be changed by the function.
	Writable bool
}

// Limits bound one run of a function. A zero field means the default.
type Limits struct {
	Timeout   time.Duration // default [DefaultTimeout]
	MaxOutput int64         // bytes of standard output, default [DefaultMaxOutput]
	MaxMemory int64         // bytes, default [DefaultMaxMemory]
	MaxProcs  int           // processes in a container, default [DefaultMaxProcs]
}

// The defaults of [Limits].
const (
	DefaultTimeout   = 60 * time.Second
	DefaultMaxOutput = 64 << 20
	DefaultMaxMemory = 2 << 30
	DefaultMaxProcs  = 256
)

// WithDefaults fills in the fields that are zero.
func (l Limits) WithDefaults() Limits {
	if l.Timeout <= 0 {
		l.Timeout = DefaultTimeout
	}
	if l.MaxOutput <= 0 {
		l.MaxOutput = DefaultMaxOutput
	}
	if l.MaxMemory <= 0 {
		l.MaxMemory = DefaultMaxMemory
	}
	if l.MaxProcs <= 0 {
		l.MaxProcs = DefaultMaxProcs
	}
	return l
}

// Executor prepares functions of one kind of runtime.
type Executor interface {
	// Prepare fetches and verifies what the function needs. The error
	// wraps [errors.ErrUnsupported] if the executor is for other runtimes,
	// [ErrNotGranted] if a permission is missing, [catalog.ErrNoDigest] if
	// there is nothing to verify with, [ErrIntegrity] if what was fetched
	// is something else, and [ErrUnavailable] if this machine cannot run it.
	Prepare(ctx context.Context, rt catalog.Runtime, g Grants, l Limits) (Function, error)
}

// Engine prepares functions with the first executor that supports them.
type Engine struct {
	Executors []Executor
	Grants    Grants
	Limits    Limits
}

// Prepare returns the function for a resolution.
func (e *Engine) Prepare(ctx context.Context, r *catalog.Resolution) (Function, error) {
	f, err := e.PrepareRuntime(ctx, r.Version.Runtime)
	if err != nil {
		return nil, fmt.Errorf("preparing %s: %w", r.GVK(), err)
	}
	return f, nil
}

// PrepareRuntime returns the function for a runtime. When an executor cannot
// run a function that offers several runtimes, because this machine lacks
// what it takes, the next one is tried; the error is the first.
func (e *Engine) PrepareRuntime(ctx context.Context, rt catalog.Runtime) (Function, error) {
	var first error
	for _, x := range e.Executors {
		f, err := x.Prepare(ctx, rt, e.Grants, e.Limits)
		switch {
		case err == nil:
			return f, nil
		case errors.Is(err, errors.ErrUnsupported):
		case errors.Is(err, ErrUnavailable), errors.Is(err, ErrNotGranted):
			if first == nil {
				first = err
			}
		default:
			return nil, err
		}
	}
	if first != nil {
		return nil, first
	}
	return nil, fmt.Errorf("no executor for its runtime: %w", errors.ErrUnsupported)
}
