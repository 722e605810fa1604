package main

import (
	"os"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"krmcat": main})
}

// TestScript runs the scripts in testdata/script, one file for each command.
// UPDATE=1 rewrites the expected output in them.
func TestScript(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		UpdateScripts:       os.Getenv("UPDATE") != "",
		Setup: func(env *testscript.Env) error {
			// Never the developer's own credentials, keys or cache.
			env.Setenv("HOME", env.WorkDir)
			return nil
		},
	})
}
