//go:build !unix

package process

import (
	"os"
	"os/exec"
)

func group(*exec.Cmd) {}

func killGroup(cmd *exec.Cmd) error {
	if cmd.Process == nil {
		return nil
	}
	return cmd.Process.Kill()
}

func exitCode(s *os.ProcessState) int { return s.ExitCode() }

func textBusy(error) bool { return false }

// systemEnv is what programs on Windows do not start without.
func systemEnv(tmp string) []string {
	env := []string{"TMP=" + tmp, "TEMP=" + tmp}
	if root := os.Getenv("SystemRoot"); root != "" {
		env = append(env, "SystemRoot="+root)
	}
	return env
}
