package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/spf13/cobra"

	"github.com/krmcat/krmcat/registry"
	"github.com/krmcat/krmcat/signing"
)

type verifySignatureOptions struct {
	Remote  remoteFlags
	Verify  verifyFlags
	Subject string // a reference or a file
	Bundle  string
	Output  string
}

func newVerifySignatureCmd(e *env) *cobra.Command {
	opts := &verifySignatureOptions{}
	cmd := &cobra.Command{
		Use:   "verify-signature REFERENCE|FILE --key KEY",
		Short: "Check who signed any artifact, image or file, and nothing else",
		Long: `Check the signature of an artifact in a registry, of whatever type, or of a file
whose signature is beside it in FILE.sigstore.json. The digest that was verified is
printed; use that from then on, as a tag can move. To check a function or a catalog
with all that it names, use krmcat verify.`,
		Example: `  # A container image
  krmcat verify-signature ghcr.io/acme/tool:v1.0.0 --key cosign.pub

  # Signed by a workflow, without a key
  krmcat verify-signature ghcr.io/acme/tool:v1.0.0 --trusted-root trusted_root.json \
    --certificate-identity-prefix https://github.com/acme/tool/.github/workflows/release.yml@ \
    --certificate-oidc-issuer https://token.actions.githubusercontent.com

  # A file
  krmcat verify-signature catalog.yaml --key cosign.pub`,
		Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error {
			opts.Subject = a[0]
			return runVerifySignature(cmd.Context(), e, opts)
		},
	}
	opts.Remote.add(cmd.Flags())
	opts.Verify.add(cmd.Flags())
	cmd.Flags().StringVar(&opts.Bundle, "bundle", "", "`path` of the signature of a file (default: FILE.sigstore.json)")
	addOutput(cmd, &opts.Output, "text", "json")
	return cmd
}

// verifySignatureOutput is what -o json prints.
type verifySignatureOutput struct {
	Subject string         `json:"subject"`
	Digest  digest.Digest  `json:"digest"`
	Signer  string         `json:"signer"`
	Format  signing.Format `json:"format,omitempty"`
	Time    *time.Time     `json:"time,omitempty"`
	// Annotations are the signed ones.
	Annotations map[string]string `json:"annotations,omitempty"`
}

func runVerifySignature(ctx context.Context, e *env, opts *verifySignatureOptions) error {
	if !opts.Verify.wanted(e) {
		return usagef("no signer to accept: give --key, --certificate-identity or --trust-policy")
	}
	file, err := isFile(opts.Subject)
	if err != nil {
		return err
	}
	var out *verifySignatureOutput
	if file {
		out, err = opts.file(ctx, e)
	} else {
		out, err = opts.artifact(ctx, e)
	}
	if err != nil {
		return err
	}
	if opts.Output == "json" {
		return printJSON(e.Out, out)
	}
	printf(e.Err, "%s: signed by %s\n", out.Subject, out.Signer)
	printf(e.Out, "%s\n", out.Digest)
	return nil
}

func (o *verifySignatureOptions) artifact(ctx context.Context, e *env) (*verifySignatureOutput, error) {
	ref, err := registry.ParseReference(o.Subject)
	if err != nil {
		return nil, usageError{err}
	}
	client, err := o.Remote.client(e)
	if err != nil {
		return nil, err
	}
	judge, err := o.Verify.judge(e, client)
	if err != nil {
		return nil, err
	}
	desc, err := client.Resolve(ctx, ref)
	if err != nil {
		return nil, err
	}
	v, err := judge.verify(ctx, ref, desc)
	if err != nil {
		return nil, err
	}
	return newVerifySignatureOutput(ref.Name()+"@"+desc.Digest.String(), v), nil
}

func (o *verifySignatureOptions) file(ctx context.Context, e *env) (*verifySignatureOutput, error) {
	if !o.Verify.signers() {
		return nil, usagef("a trust policy is about artifacts in registries; give --key or an identity for the file %s", o.Subject)
	}
	policy, err := o.Verify.policy(e)
	if err != nil {
		return nil, err
	}
	data, err := readInput(e.In, o.Subject)
	if err != nil {
		return nil, err
	}
	bundle := o.Bundle
	if bundle == "" {
		bundle = o.Subject + signing.BundleSuffix
	}
	sig, err := readLimited(bundle, maxBundleFile)
	if err != nil {
		return nil, codeError{withHint(fmt.Errorf("reading the signature of %s: %w", o.Subject, err), "sign the file with krmcat sign, or say where its signature is with --bundle"), exitUnsigned}
	}
	v, err := signing.VerifyBlob(ctx, data, sig, policy)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", o.Subject, err)
	}
	return newVerifySignatureOutput(o.Subject, v), nil
}

// maxBundleFile is the size limit of a bundle in a file.
const maxBundleFile = 8 << 20

func newVerifySignatureOutput(subject string, v *signing.Verification) *verifySignatureOutput {
	out := &verifySignatureOutput{Subject: subject, Digest: v.Subject, Signer: "key " + v.Key, Format: v.Format, Annotations: v.Annotations}
	if v.Key == "" {
		out.Signer = v.Identity.String()
	}
	if !v.Time.IsZero() {
		t := v.Time.UTC()
		out.Time = &t
	}
	return out
}
