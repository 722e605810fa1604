package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	goruntime "runtime"

	"github.com/spf13/cobra"

	"github.com/krmcat/krmcat/catalog"
	"github.com/krmcat/krmcat/catalog/source"
	"github.com/krmcat/krmcat/registry"
	"github.com/krmcat/krmcat/runtime"
	"github.com/krmcat/krmcat/schema"
	"github.com/krmcat/krmcat/signing"
)

// Exit codes, documented by krmcat help exit-codes. Those from 10 to 13 are
// cosign's.
const (
	exitOK          = 0
	exitError       = 1   // the command could not do its work
	exitUsage       = 2   // wrong flags or arguments
	exitInvalid     = 3   // a document or a function was found wrong
	exitAuth        = 4   // authentication or authorisation failed
	exitNotFound    = 5   // the thing asked for is not there
	exitUnavailable = 6   // a registry or the network did not answer; try again
	exitIntegrity   = 7   // content does not match its digest
	exitConflict    = 8   // would overwrite something else
	exitUnsigned    = 10  // no signature
	exitPolicy      = 12  // signatures, but none is acceptable
	exitUntrusted   = 14  // the catalog is not trusted
	exitDrift       = 20  // --check found files that are not up to date
	exitInterrupted = 130 // interrupted by a signal
)

// usageError is an error in how the command was called.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func usagef(format string, a ...any) error { return usageError{fmt.Errorf(format, a...)} }

// hintError is an error with what the user can do about it.
type hintError struct {
	error
	hint string
}

func (e hintError) Unwrap() error { return e.error }

// withHint adds a hint to an error; nil stays nil.
func withHint(err error, format string, a ...any) error {
	if err == nil {
		return nil
	}
	return hintError{err, fmt.Sprintf(format, a...)}
}

// codeError is an error with an exit code of its own. A nil error has been
// reported already.
type codeError struct {
	error
	code int
}

func (e codeError) Unwrap() error { return e.error }

// errSilent ends a command whose output has said what is wrong.
func errSilent(code int) error { return codeError{nil, code} }

func (e codeError) Error() string {
	if e.error == nil {
		return "already reported"
	}
	return e.error.Error()
}

// report prints an error and its hint, and chooses the exit code.
func report(ctx context.Context, w io.Writer, cmd *cobra.Command, err error) int {
	if err == nil {
		return exitOK
	}
	ce, hasCode := errors.AsType[codeError](err)
	if hasCode && ce.error == nil {
		return ce.code
	}
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		printf(w, "krmcat: interrupted\n")
		return exitInterrupted
	}
	printf(w, "krmcat: error: %v\n", err)
	if hint := hintFor(err); hint != "" {
		printf(w, "krmcat: hint: %s\n", hint)
	}
	if _, ok := errors.AsType[usageError](err); ok {
		printf(w, "krmcat: hint: run %q for usage\n", cmd.CommandPath()+" --help")
		return exitUsage
	}
	if hasCode {
		return ce.code
	}
	return codeFor(err)
}

// codeFor is the exit code for an error of the libraries.
func codeFor(err error) int {
	switch {
	case isType[*schema.InvalidError](err), isType[*runtime.FunctionError](err):
		return exitInvalid
	case errors.Is(err, signing.ErrUnsigned), errors.Is(err, signing.ErrNoAttestation):
		return exitUnsigned
	case errors.Is(err, signing.ErrPolicy):
		return exitPolicy
	case errors.Is(err, catalog.ErrUntrusted):
		return exitUntrusted
	case errors.Is(err, catalog.ErrNoDigest), errors.Is(err, registry.ErrIntegrity), errors.Is(err, source.ErrIntegrity):
		return exitIntegrity
	case errors.Is(err, registry.ErrDenied), errors.Is(err, source.ErrDenied), errors.Is(err, runtime.ErrDenied):
		return exitAuth
	case errors.Is(err, registry.ErrExists):
		return exitConflict
	case errors.Is(err, registry.ErrUnavailable), errors.Is(err, source.ErrUnavailable), errors.Is(err, runtime.ErrUnreachable):
		return exitUnavailable
	case errors.Is(err, catalog.ErrNotFound), errors.Is(err, fs.ErrNotExist):
		return exitNotFound
	}
	return exitError
}

func isType[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}

// hintFor says what the user can do about an error, or "".
func hintFor(err error) string {
	if he, ok := errors.AsType[hintError](err); ok {
		return he.hint
	}
	if de, ok := errors.AsType[*runtime.DeniedError](err); ok {
		return fmt.Sprintf("log in with krmcat login %s, which docker, podman and nerdctl share, or ask for the right to read the image", de.Host)
	}
	switch {
	case errors.Is(err, signing.ErrUnsigned):
		return "ask its publisher for a signed release, or sign it with krmcat sign"
	case errors.Is(err, signing.ErrPolicy):
		return "check that --key is the publisher's public key; krmcat tree REFERENCE shows who signed"
	case errors.Is(err, signing.ErrKey):
		return "check the key's file and COSIGN_PASSWORD"
	case errors.Is(err, catalog.ErrNoDigest):
		return "krmcat publish fills digests in; to try a file of this machine before, name it with --exec or --starlark"
	case errors.Is(err, catalog.ErrUntrusted):
		return "add --trusted-catalog with the location of the catalog if you trust it"
	case errors.Is(err, runtime.ErrPlatform):
		return "run it on a platform that it is published for, or ask its publisher for one for " + goruntime.GOOS + "/" + goruntime.GOARCH
	case errors.Is(err, runtime.ErrNotGranted):
		return "allow it with --allow-exec, --allow-network or --allow-storage-mount"
	case errors.Is(err, registry.ErrDenied):
		return "log in with krmcat login HOST, unless the registry gives another reason"
	case errors.Is(err, registry.ErrExists):
		return "a release never changes: publish under a new version"
	case errors.Is(err, registry.ErrUnavailable), errors.Is(err, runtime.ErrUnreachable):
		return "check that the registry is running and reachable, and try again"
	case errors.Is(err, source.ErrUnavailable):
		return "check the location and the network, and try again"
	case errors.Is(err, source.ErrDenied):
		return "make it readable for everybody, or publish it to a registry, which can be logged in to"
	case errors.Is(err, registry.ErrIntegrity), errors.Is(err, source.ErrIntegrity):
		return "the content was changed or damaged on its way; do not use it"
	case isType[*fs.PathError](err):
		if errors.Is(err, fs.ErrNotExist) {
			return "check the path; use - to read from standard input"
		}
	case errors.Is(err, fs.ErrNotExist):
		return "check the name and the tag"
	}
	return ""
}
