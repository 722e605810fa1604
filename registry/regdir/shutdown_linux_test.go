package regdir_test

import (
	"os"

	"golang.org/x/sys/unix"
)

// shutdown makes a file system drop everything that was not flushed.
func shutdown(mnt string) error {
	const (
		ext4IocShutdown = 0x8004587d
		noLogFlush      = 2
	)
	f, err := os.Open(mnt)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	return unix.IoctlSetPointerInt(int(f.Fd()), ext4IocShutdown, noLogFlush)
}
