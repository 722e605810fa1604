//go:build unix

package execfn

import (
	"errors"
	"syscall"
)

// isExecFormat reports whether the system refused to load a program.
func isExecFormat(err error) bool { return errors.Is(err, syscall.ENOEXEC) }
