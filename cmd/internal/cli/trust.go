package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/krmcat/krmcat/registry"
	"github.com/krmcat/krmcat/signing"
)

func newTrustCmd(e *env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "trust",
		Short: "Check trust policies, and explain what they decide",
		Args:  args(cobra.NoArgs),
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newTrustCheckCmd(e), newTrustExplainCmd(e))
	return cmd
}

type trustCheckOptions struct{ File string }

func newTrustCheckCmd(e *env) *cobra.Command {
	opts := &trustCheckOptions{}
	return &cobra.Command{
		Use:     "check FILE",
		Short:   "Check a trust policy and the files that it names",
		Example: `  krmcat trust check trust.yaml`,
		Args:    args(cobra.ExactArgs(1)),
		RunE: func(_ *cobra.Command, a []string) error {
			opts.File = a[0]
			return runTrustCheck(e, opts)
		},
	}
}

func runTrustCheck(e *env, opts *trustCheckOptions) error {
	p, err := readTrustPolicy(opts.File)
	if err != nil {
		return err
	}
	printf(e.Err, "%s: %d signers, %d rules; fine\n", opts.File, len(p.Spec.Signers), len(p.Spec.Rules))
	return nil
}

type trustExplainOptions struct {
	Remote    remoteFlags
	Policy    string
	Reference string
	Output    string
}

func newTrustExplainCmd(e *env) *cobra.Command {
	opts := &trustExplainOptions{}
	cmd := &cobra.Command{
		Use:   "explain REFERENCE --trust-policy FILE",
		Short: "Show which rule decides about an artifact, and why",
		Long: `Apply a trust policy to an artifact and print each check. The exit code is that of
a command that needed the artifact: 0 if it is allowed, 10 if it is not signed, 12
if no signature satisfies the rule.`,
		Example: `  krmcat trust explain localhost:5000/acme/hello:v1.0.0 --trust-policy trust.yaml`,
		Args:    args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error {
			opts.Reference = a[0]
			return runTrustExplain(cmd.Context(), e, opts)
		},
	}
	opts.Remote.add(cmd.Flags())
	cmd.Flags().StringVar(&opts.Policy, "trust-policy", "", "`file` with the TrustPolicy")
	addOutput(cmd, &opts.Output, "text", "json")
	return cmd
}

func runTrustExplain(ctx context.Context, e *env, opts *trustExplainOptions) error {
	if opts.Policy == "" {
		return usagef("--trust-policy is required")
	}
	verify := identityFlags{TrustPolicy: opts.Policy}
	if err := verify.addTo(&signing.Policy{}); err != nil {
		return err
	}
	ref, repo, desc, err := opts.Remote.subject(ctx, e, opts.Reference)
	if err != nil {
		return err
	}
	d, err := verify.decide(ctx, repo, ref.Name(), desc)
	if err != nil {
		return registry.Classify(err)
	}
	if opts.Output == "json" {
		if err := printJSON(e.Out, d); err != nil {
			return err
		}
	} else {
		printDecision(e, d)
	}
	return d.Err()
}

func printDecision(e *env, d *signing.Decision) {
	verdict := "denied"
	if d.Allowed {
		verdict = "allowed"
	}
	printf(e.Out, "%s@%s: %s\n", d.Reference, d.Subject, verdict)
	if d.Original != "" {
		printf(e.Out, "  copy of %s\n", d.Original)
	}
	for _, s := range d.Steps {
		mark := "no "
		if s.Passed {
			mark = "yes"
		}
		printf(e.Out, "  %s  %s: %s\n", mark, s.Check, s.Detail)
	}
	if c := d.Capabilities; c != nil {
		printf(e.Out, "  at most: %s\n", c)
	}
}
