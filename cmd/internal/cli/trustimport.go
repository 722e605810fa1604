package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/krmcat/krmcat/signing"
	"github.com/krmcat/krmcat/signing/trustimport"
)

type trustImportOptions struct {
	File        string
	Scopes      []string
	Keys        []string
	TrustedRoot string
}

func newTrustImportCmd(e *env) *cobra.Command {
	opts := &trustImportOptions{}
	cmd := &cobra.Command{
		Use:   "import FILE|-",
		Short: "Write a trust policy that says what Kubewarden's or Flux's says",
		Long: `Read Kubewarden's verification-config.yml (v1), Flux's OCIRepository and HelmChart
with spec.verify, or ClusterImagePolicy, and print the same as a TrustPolicy. What
cannot be said exactly is refused, with its place and the reason; nothing becomes
wider. Notices tell what was written in another way.`,
		Example: `  # Kubewarden's has no scope
  krmcat trust import verification-config.yml --scope ghcr.io/acme/** > trust.yaml

  # Flux, with keys from a secret
  krmcat trust import ocirepository.yaml --key cosign.pub > trust.yaml`,
		Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error {
			opts.File = a[0]
			return runTrustImport(cmd.Context(), e, opts)
		},
	}
	f := cmd.Flags()
	f.StringArrayVar(&opts.Scopes, "scope", nil, "`HOST/REPOSITORY` or HOST/PREFIX/** that the rules are about, where the file does not say; repeatable")
	f.StringArrayVar(&opts.Keys, "key", nil, "public key `file` in the place of a secret; repeatable")
	f.StringVar(&opts.TrustedRoot, "trusted-root", "trusted_root.json", "`path` of Sigstore's trusted root, relative to where the policy will be")
	return cmd
}

func runTrustImport(_ context.Context, e *env, opts *trustImportOptions) error {
	data, err := readInput(e.In, opts.File)
	if err != nil {
		return err
	}
	io := trustimport.Options{Scopes: opts.Scopes, TrustedRoot: opts.TrustedRoot}
	for _, k := range opts.Keys {
		text, err := readKeyText(e, k)
		if err != nil {
			return err
		}
		if _, err := signing.LoadPublicKey(text); err != nil {
			return fmt.Errorf("key %s: %w", k, err)
		}
		io.Keys = append(io.Keys, string(text))
	}
	name := opts.File
	if name == "-" {
		name = "stdin"
	}
	res, err := trustimport.Import(data, io)
	if te, ok := errors.AsType[*signing.TrustPolicyError](err); ok {
		if err := showMistakes(e, name, data, te.Mistakes); err != nil {
			return err
		}
		return codeError{fmt.Errorf("%s cannot be said as a TrustPolicy", name), exitInvalid}
	}
	if err != nil {
		return err
	}
	for _, n := range res.Notes {
		printf(e.Err, "krmcat: notice: %s:%d:%d: %s\n", name, n.Line, n.Column, n.Message)
	}
	_, err = fmt.Fprintf(e.Out, "# From %s, by krmcat trust import.\n%s", printableLine(name), res.YAML)
	return err
}
