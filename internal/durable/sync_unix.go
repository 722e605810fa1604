//go:build !windows

package durable

import (
	"errors"
	"os"
	"syscall"
)

// SyncDir flushes the names in a folder.
func SyncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	err = f.Sync()
	// Some network file systems know no flush of folders; theirs are
	// durable when the call that changed them returns, or never.
	if errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.ENOTSUP) {
		err = nil
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}
