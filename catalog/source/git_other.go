//go:build !unix

package source

import "os/exec"

// detach does nothing: only unix has sessions.
func detach(*exec.Cmd) {}
