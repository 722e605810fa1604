package cli

import (
	"context"

	"github.com/spf13/cobra"
)

func newTrustCmd(e *env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "trust",
		Short: "Write, check and import trust policies, and explain what they decide",
		Long: `A TrustPolicy says whose signatures are needed for what, and what functions may be
granted at most. It is applied by pull, run, build, resolve, verify,
verify-signature, catalog create and serve: that of --trust-policy, else of
KRMCAT_TRUST_POLICY, else krmcat/trust.yaml in the folder for the user's
configuration (for serve only the first two).`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newTrustInitCmd(e), newTrustCheckCmd(e), newTrustExplainCmd(e), newTrustImportCmd(e))
	return cmd
}

type trustCheckOptions struct {
	Trust trustFlags
	File  string
}

func newTrustCheckCmd(e *env) *cobra.Command {
	opts := &trustCheckOptions{}
	cmd := &cobra.Command{
		Use:   "check [FILE]",
		Short: "Check a trust policy and the files that it names",
		Long: `Read a trust policy, or the one that is in force, with the keys and trusted roots
that it names. Each mistake is shown at its place; so is what would accept
everybody.`,
		Example: `  krmcat trust check trust.yaml`,
		Args:    args(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error {
			if len(a) == 1 {
				opts.File = a[0]
			}
			return runTrustCheck(cmd.Context(), e, opts)
		},
	}
	return cmd
}

func runTrustCheck(_ context.Context, e *env, opts *trustCheckOptions) error {
	file := opts.File
	if file == "" {
		if file = opts.Trust.file(e); file == "" {
			return noTrustPolicy(e)
		}
	}
	p, err := readTrustPolicy(e, file)
	if err != nil {
		return err
	}
	printf(e.Err, "%s: %d signers, %d rules; fine\n", file, len(p.Spec.Signers), len(p.Spec.Rules))
	return nil
}

// noTrustPolicy says that a command needs a policy, and how to get one.
func noTrustPolicy(e *env) error {
	where := "the configuration folder"
	if file, err := e.configFile("trust.yaml"); err == nil {
		where = file
	}
	return withHint(usagef("no trust policy: give --trust-policy, or set %s", trustPolicyVariable), "krmcat trust init writes one to %s, where all commands find it", where)
}
