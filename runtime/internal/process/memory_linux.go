package process

import (
	"golang.org/x/sys/unix"
)

// boundMemory limits the data of a process that has just started. The limit
// is on writable private memory: a limit on address space would stop
// programs, such as those of Node and the JVM, that reserve much and use
// little. A process that has ended already needs none.
func boundMemory(pid int, limit int64) {
	_ = unix.Prlimit(pid, unix.RLIMIT_DATA, &unix.Rlimit{Cur: uint64(limit), Max: uint64(limit)}, nil)
	_ = unix.Prlimit(pid, unix.RLIMIT_CORE, &unix.Rlimit{}, nil)
}
