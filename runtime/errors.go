package runtime

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/krmcat/krmcat/runtime/resourcelist"
)

// Errors of functions and executors; test for them with [errors.Is].
var (
	// ErrNotGranted is wrapped by errors about a permission that a function
	// needs and the user has not given; the type is [*GrantError].
	ErrNotGranted = errors.New("permission not granted")
	// ErrTimeout means that a function did not end in time and was killed.
	ErrTimeout = errors.New("time limit")
	// ErrOutputLimit means that a function wrote more than it may and was
	// killed.
	ErrOutputLimit = errors.New("output limit")
	// ErrOutput means that a function ended well but what it wrote is not
	// the ResourceList that it must write; the type is [*OutputError].
	ErrOutput = errors.New("output is not a valid ResourceList")
	// ErrUnavailable means that this machine cannot run the function: no
	// container engine, or nothing for its platform.
	ErrUnavailable = errors.New("cannot be run here")
	// ErrPlatform is an [ErrUnavailable]: what there is of the function is for
	// other operating systems or processors.
	ErrPlatform = fmt.Errorf("%w: not for this platform", ErrUnavailable)
	// ErrIntegrity means that what was fetched does not match its digest.
	ErrIntegrity = errors.New("content does not match its digest")
	// ErrUnreachable means that a registry did not answer.
	ErrUnreachable = errors.New("registry does not answer")
	// ErrDenied means that a registry asked for credentials, or for others;
	// the type is [*DeniedError].
	ErrDenied = errors.New("access denied")
)

// DeniedError says which registry did not let the user fetch something. It
// wraps [ErrDenied] and the cause.
type DeniedError struct {
	Host string // of the registry, as users log in to it
	Err  error
}

func (e *DeniedError) Error() string { return fmt.Sprintf("%v: %v", e.Err, ErrDenied) }

func (e *DeniedError) Unwrap() []error { return []error{ErrDenied, e.Err} }

// FunctionError reports a function that ran and failed: it exited with
// another code than 0, or gave results of severity error.
type FunctionError struct {
	Name     string
	ExitCode int    // 0 if only its results say that it failed
	Stderr   string // last lines; from a pipeline without those that repeat results
	Results  []resourcelist.Result
}

func (e *FunctionError) Error() string {
	var b strings.Builder
	switch {
	case e.ExitCode == 0:
		fmt.Fprintf(&b, "function %s reported errors", e.Name)
	case e.ExitCode == 137:
		fmt.Fprintf(&b, "function %s was killed (exit code 137): it may have used more memory than it may", e.Name)
	case e.ExitCode > 128 && e.ExitCode < 128+65:
		fmt.Fprintf(&b, "function %s was killed by signal %d", e.Name, e.ExitCode-128)
	default:
		fmt.Fprintf(&b, "function %s exited with code %d", e.Name, e.ExitCode)
	}
	if last := lastLine(e.Stderr); last != "" {
		fmt.Fprintf(&b, ": %s", last)
	} else if e.ExitCode != 0 && resourcelist.HasErrors(e.Results) {
		b.WriteString(" and reported errors")
	}
	return b.String()
}

func lastLine(s string) string {
	s = strings.TrimSpace(s)
	if i := strings.LastIndexByte(s, '\n'); i >= 0 {
		s = strings.TrimSpace(s[i+1:])
	}
	if len(s) > 300 {
		s = s[:300] + "..."
	}
	return strings.ToValidUTF8(s, "?")
}

// GrantError says which permission a function needs. It wraps
// [ErrNotGranted].
type GrantError struct {
	Name string
	// Needs is network, storage mount or exec.
	Needs string
	// Why says what it is needed for.
	Why string
}

func (e *GrantError) Error() string {
	return fmt.Sprintf("%s needs the permission %q (%s): %v", e.Name, e.Needs, e.Why, ErrNotGranted)
}

func (e *GrantError) Unwrap() error { return ErrNotGranted }

// TimeoutError wraps [ErrTimeout].
type TimeoutError struct {
	Name   string
	After  time.Duration
	Stderr string // last lines
}

func (e *TimeoutError) Error() string {
	s := fmt.Sprintf("function %s did not end within %s and was killed", e.Name, e.After)
	if last := lastLine(e.Stderr); last != "" {
		s += ": " + last
	}
	return s
}

func (e *TimeoutError) Unwrap() error { return ErrTimeout }

// OutputError says what is wrong with the output of a function. It wraps
// [ErrOutput] and the cause.
type OutputError struct {
	Name   string
	Err    error
	Output string // the first lines
}

func (e *OutputError) Error() string {
	s := fmt.Sprintf("function %s: %v", e.Name, e.Err)
	if first, _, _ := strings.Cut(strings.TrimSpace(e.Output), "\n"); first != "" && !strings.HasPrefix(first, "apiVersion: config.kubernetes.io/") {
		if len(first) > 120 {
			first = first[:120] + "..."
		}
		s += fmt.Sprintf(" (its output starts with %q)", strings.ToValidUTF8(first, "?"))
	}
	return s
}

func (e *OutputError) Unwrap() []error { return []error{ErrOutput, e.Err} }
