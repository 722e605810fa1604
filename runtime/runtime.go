// Package runtime runs KRM functions.
//
// An [Engine] turns a resolved function version into a [Function] with the
// first [Executor] that supports its runtime. The executors are in
// subpackages, so that a program links only the ones it uses.
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
	// [*FunctionError].
	Run(ctx context.Context, stdio Stdio) error
}

// Stdio are the streams of a function. Stderr may be nil.
type Stdio struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
}

// Grants are the permissions a user gives to functions. A function gets what
// it declares and the user grants. The zero value grants nothing.
type Grants struct {
	Network      bool
	StorageMount bool
	Exec         bool
}

// Limits bound one run of a function. A zero field means the default.
type Limits struct {
	Timeout   time.Duration
	MaxOutput int64 // bytes of standard output
	MaxMemory int64 // bytes
}

// Executor prepares functions of one kind of runtime.
type Executor interface {
	// Prepare fetches and verifies what the function needs. The error
	// wraps [errors.ErrUnsupported] if the executor is for other runtimes.
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
	for _, x := range e.Executors {
		f, err := x.Prepare(ctx, r.Version.Runtime, e.Grants, e.Limits)
		if errors.Is(err, errors.ErrUnsupported) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("preparing %s: %w", r.GVK(), err)
		}
		return f, nil
	}
	return nil, fmt.Errorf("%s: no executor for its runtime: %w", r.GVK(), errors.ErrUnsupported)
}

// FunctionError reports a function that ran and failed.
type FunctionError struct {
	Name     string
	ExitCode int
	Stderr   string // last lines
}

func (e *FunctionError) Error() string {
	return fmt.Sprintf("function %s exited with code %d", e.Name, e.ExitCode)
}

// ErrNotGranted is wrapped by errors about a permission that a function needs
// and the user has not given.
var ErrNotGranted = errors.New("permission not granted")
