//go:build !windows && !linux

package durable

import "syscall"

// SyncAll flushes everything on the file system of a folder.
func SyncAll(string) error {
	syscall.Sync()
	return nil
}
