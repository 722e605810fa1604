// Package cli is the command line of krmcat. Commands parse flags, call the
// library packages and print; they hold no logic of their own.
//
// A command is three things in a file of its own: a struct of what the flags
// said, a constructor that parses into it, and a run function that calls the
// library and prints.
package cli

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
)

// Stdio are the standard streams of the process.
type Stdio struct {
	In       io.Reader
	Out, Err io.Writer
}

// env is what every command gets from its surroundings. It is built once by
// Main and handed down; commands read no environment variables themselves.
type env struct {
	Stdio
	LookupEnv func(string) (string, bool)
}

// Getenv is the value of an environment variable, empty if it is not set.
func (e *env) Getenv(name string) string {
	v, _ := e.LookupEnv(name)
	return v
}

// Main runs the command line and returns the exit code. It is the only place
// that prints errors.
func Main(ctx context.Context, args []string, stdio Stdio) int {
	e := &env{Stdio: stdio, LookupEnv: os.LookupEnv}
	root := newRootCmd(e)
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	return report(ctx, e.Err, cmd, err)
}

// commands lists the constructors of all commands.
var commands = []func(*env) *cobra.Command{
	newBuildCmd,
	newFunctionCallCmd,
	newAdminCmd,
	newAttestCmd,
	newCatalogCmd,
	newExitCodesCmd,
	newFmtCmd,
	newFnCmd,
	newImageCmd,
	newInitCmd,
	newKeygenCmd,
	newLoginCmd,
	newLogoutCmd,
	newResolveCmd,
	newMergeCmd,
	newMerge3Cmd,
	newRunCmd,
	newStarlarkWorkerCmd,
	newSchemaCmd,
	newValidateCmd,
	newPublishCmd,
	newPullCmd,
	newSearchCmd,
	newServeCmd,
	newSignCmd,
	newTreeCmd,
	newTrustCmd,
	newVerifyAttestationCmd,
	newVerifyCmd,
	newVerifySignatureCmd,
	newVersionCmd,
	newViewCmd,
}

func newRootCmd(e *env) *cobra.Command {
	root := &cobra.Command{
		Use:           "krmcat",
		Short:         "Validate, publish, find and run KRM functions",
		SilenceUsage:  true,
		SilenceErrors: true,

		SuggestionsMinimumDistance: 2,
		// Without Args, cobra reports an unknown command as a plain error
		// that cannot be told from a failure.
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
				return usagef("unknown command %q; did you mean %q?", args[0], near[0])
			}
			return usagef("unknown command %q", args[0])
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetIn(e.In)
	root.SetOut(e.Out)
	root.SetErr(e.Err)
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	for _, c := range commands {
		root.AddCommand(c(e))
	}
	return root
}

// args wraps a cobra argument check so that its failure is a usage error.
func args(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, a []string) error {
		if err := check(cmd, a); err != nil {
			return usageError{err}
		}
		return nil
	}
}

// printf writes to w; a failure to write to a standard stream is not
// reported, as there is nowhere to report it to.
func printf(w io.Writer, format string, a ...any) { _, _ = fmt.Fprintf(w, format, a...) }
