package main

import (
	"fmt"
	"os"
	"os/exec"
)

// condition is what scripts can ask for, besides what testscript has:
//
//	[mounts] a command can have file systems of its own
func condition(name string) (bool, error) {
	if name != "mounts" {
		return false, fmt.Errorf("unknown condition %q", name)
	}
	if os.Getenv("KRMCAT_TEST_REQUIRE") == "all" {
		return true, nil
	}
	return exec.Command("unshare", "--map-root-user", "--mount", "true").Run() == nil, nil
}
