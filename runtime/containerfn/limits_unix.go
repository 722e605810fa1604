//go:build unix

package containerfn

import (
	"errors"

	"golang.org/x/sys/unix"
)

// isBrokenPipe reports whether nobody reads any more.
func isBrokenPipe(err error) bool { return errors.Is(err, unix.EPIPE) }

// limitFiles keeps what is asked for a container within what this process may
// give.
func limitFiles(e *engine) {
	var r unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &r) == nil && uint64(r.Max) < uint64(e.noFiles) {
		e.noFiles = int(r.Max)
	}
	if n := maxProcesses(); n > 0 && n < e.noProcs {
		e.noProcs = n
	}
}
