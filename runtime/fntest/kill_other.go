//go:build !unix

package fntest

import "os/exec"

func kill() int { return 137 }

func detach(*exec.Cmd) {}
