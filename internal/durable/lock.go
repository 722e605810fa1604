package durable

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// ErrLocked: another process holds the lock.
var ErrLocked = errors.New("in use by another process")

// Lock is a lock between processes. It ends with the process at the latest.
type Lock struct{ f *os.File }

// LockFile takes the lock that path stands for, without waiting. The error
// wraps [ErrLocked] if it is taken, and names the process that has it.
func LockFile(path string) (*Lock, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o666)
	if err != nil {
		return nil, err
	}
	if err := lock(f); err != nil {
		b := make([]byte, 20)
		n, _ := f.ReadAt(b, 0) // for the message only
		_ = f.Close()
		if errors.Is(err, ErrLocked) {
			if pid := strings.TrimSpace(string(b[:n])); pid != "" {
				return nil, fmt.Errorf("%w (process %s)", ErrLocked, pid)
			}
			return nil, err
		}
		return nil, &os.PathError{Op: "lock", Path: path, Err: err}
	}
	l := &Lock{f}
	if err := f.Truncate(0); err == nil {
		_, _ = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0) // a help for people
	}
	return l, nil
}

// Unlock gives the lock back.
func (l *Lock) Unlock() error { return l.f.Close() }
