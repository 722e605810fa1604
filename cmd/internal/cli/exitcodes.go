package cli

import "github.com/spf13/cobra"

// newExitCodesCmd is a help topic: krmcat help exit-codes.
func newExitCodesCmd(*env) *cobra.Command {
	return &cobra.Command{
		Use:   "exit-codes",
		Short: "What the exit codes of krmcat mean",
		Long: `Exit codes of krmcat:

    0  success
    1  the command could not do its work
    2  wrong flags or arguments
    3  a document or a function was found wrong
    4  authentication or authorisation failed
    5  the thing asked for is not there
    6  a registry or the network did not answer; try again
    7  content does not match its digest, or there is no digest to match
    8  would overwrite something else
   10  no signature
   12  there are signatures, but none is acceptable
   14  the catalog is not trusted
   20  --check found files that are not up to date
  130  interrupted by a signal

10 and 12 are cosign's.`,
	}
}
