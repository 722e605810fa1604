//go:build unix

package fntest

import (
	"os/exec"
	"syscall"
	"time"
)

// kill ends the process as the system does when memory is short.
func kill() int {
	if syscall.Getpid() == 1 {
		return 137 // the first process of a container cannot kill itself
	}
	_ = syscall.Kill(syscall.Getpid(), syscall.SIGKILL)
	time.Sleep(time.Minute)
	return 137
}

// detach gives a command a session, and so a process group, of its own.
func detach(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} }
