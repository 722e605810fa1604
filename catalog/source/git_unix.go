//go:build unix

package source

import (
	"os/exec"
	"syscall"
)

// detach takes the program away from the terminal, where ssh would ask for
// passwords, and makes sure that its children end with it.
func detach(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
}
