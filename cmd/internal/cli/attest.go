package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/krmcat/krmcat/registry"
	"github.com/krmcat/krmcat/signing"
)

type attestOptions struct {
	Remote    remoteFlags
	Key       keyFlags
	Services  serviceFlags
	Reference string
	Type      string
	Predicate string
	Output    string
}

func newAttestCmd(e *env) *cobra.Command {
	opts := &attestOptions{}
	cmd := &cobra.Command{
		Use:   "attest REFERENCE --type TYPE --predicate FILE {--key KEY | --keyless}",
		Short: "Attach a signed statement to an artifact: a test result, provenance, an SBOM",
		Long: `Sign a statement about an artifact in a registry and attach it, as an in-toto
attestation in a Sigstore bundle. The predicate is a JSON object of the type. An
attestation is no signature: it says something about the artifact, not that it is
released.

Types are URIs, or short names: ` + strings.Join(signing.PredicateNames(), ", ") + `.`,
		Example: `  # The tests passed
  krmcat attest localhost:5000/acme/hello:v1.0.0 --type test-result --predicate result.json --key ci.key

  # A bill of materials, from standard input
  krmcat attest localhost:5000/acme/hello:v1.0.0 --type spdxjson --predicate - --key ci.key <sbom.json`,
		Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error {
			opts.Reference = a[0]
			return runAttest(cmd.Context(), e, opts)
		},
	}
	opts.Remote.add(cmd.Flags())
	cmd.Flags().StringVar(&opts.Key.Key, "key", "", "private key to sign with: a `file`, or env://NAME; the password is in COSIGN_PASSWORD or asked for")
	opts.Services.add(cmd.Flags())
	cmd.Flags().StringVar(&opts.Type, "type", "", "`type` of the predicate: a URI or a short name")
	cmd.Flags().StringVar(&opts.Predicate, "predicate", "", "`file` with the predicate, a JSON object; - is standard input")
	addOutput(cmd, &opts.Output, "text", "json")
	return cmd
}

func runAttest(ctx context.Context, e *env, opts *attestOptions) error {
	if opts.Type == "" || opts.Predicate == "" {
		return usagef("--type and --predicate are required")
	}
	uri, err := signing.PredicateType(opts.Type)
	if err != nil {
		return usageError{err}
	}
	predicate, err := readInput(e.In, opts.Predicate)
	if err != nil {
		return err
	}
	ref, repo, desc, err := opts.Remote.subject(ctx, e, opts.Reference)
	if err != nil {
		return err
	}
	signer, signOpts, done, err := opts.Services.artifactSigner(ctx, e, &opts.Key)
	if err != nil {
		return err
	}
	defer done()
	name, err := signer.Identity(ctx)
	if err != nil {
		return err
	}
	att, err := signer.With(signOpts).Attest(ctx, repo, ref.Name(), desc, uri, predicate)
	if err != nil {
		return registry.Classify(err)
	}
	if opts.Output == "json" {
		return printJSON(e.Out, struct {
			Subject       string `json:"subject"`
			PredicateType string `json:"predicateType"`
			Attestation   string `json:"attestation"`
			Signer        string `json:"signer"`
		}{ref.Name() + "@" + desc.Digest.String(), uri, att.Digest.String(), name})
	}
	printf(e.Err, "Attested %s to %s@%s\n", uri, ref.Name(), desc.Digest)
	printf(e.Out, "%s\n", att.Digest)
	return nil
}

type verifyAttestationOptions struct {
	Remote    remoteFlags
	Verify    verifyFlags
	Reference string
	Type      string
	Require   map[string]string
	Output    string
}

func newVerifyAttestationCmd(e *env) *cobra.Command {
	opts := &verifyAttestationOptions{}
	cmd := &cobra.Command{
		Use:   "verify-attestation REFERENCE --type TYPE --key KEY",
		Short: "Check what is attested about an artifact, and print it",
		Long: `Find the attestations of one type that an artifact carries, verify who made them,
and print their predicates, one JSON object in each line. With --require, at least
one has to have the given values.`,
		Example: `  # Did the tests pass?
  krmcat verify-attestation localhost:5000/acme/hello:v1.0.0 --type test-result --key ci.pub --require result=PASSED

  # The bill of materials
  krmcat verify-attestation localhost:5000/acme/hello:v1.0.0 --type spdxjson --key ci.pub`,
		Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error {
			opts.Reference = a[0]
			return runVerifyAttestation(cmd.Context(), e, opts)
		},
	}
	opts.Remote.add(cmd.Flags())
	opts.Verify.add(cmd.Flags())
	cmd.Flags().StringVar(&opts.Type, "type", "", "`type` of the predicate: a URI or a short name")
	cmd.Flags().StringToStringVar(&opts.Require, "require", nil, "`FIELD=VALUE` that a predicate must have at its top level; repeatable")
	addOutput(cmd, &opts.Output, "text", "json")
	return cmd
}

func runVerifyAttestation(ctx context.Context, e *env, opts *verifyAttestationOptions) error {
	if opts.Type == "" {
		return usagef("--type is required")
	}
	if _, err := signing.PredicateType(opts.Type); err != nil {
		return usageError{err}
	}
	if opts.Verify.given() {
		return usagef("--trust-policy decides about artifacts; see krmcat trust explain")
	}
	if !opts.Verify.signers() {
		return usagef("no key to verify with: give --key, or --certificate-identity and --certificate-oidc-issuer")
	}
	policy, err := opts.Verify.policy(e)
	if err != nil {
		return err
	}
	ref, repo, desc, err := opts.Remote.subject(ctx, e, opts.Reference)
	if err != nil {
		return err
	}
	list, err := signing.Checker{}.VerifyAttestations(ctx, repo, ref.Name(), desc, opts.Type, policy)
	if err != nil {
		return registry.Classify(err)
	}
	if list, err = requireFields(list, opts.Require); err != nil {
		return fmt.Errorf("%s@%s: %w", ref.Name(), desc.Digest, err)
	}
	return printAttestations(e, opts.Output, list)
}

// requireFields keeps the attestations that have the values.
func requireFields(list []signing.Attestation, want map[string]string) ([]signing.Attestation, error) {
	if len(want) == 0 {
		return list, nil
	}
	var kept []signing.Attestation
	var problem error
	for _, a := range list {
		if err := a.Require(want); err != nil {
			problem = err
			continue
		}
		kept = append(kept, a)
	}
	if len(kept) == 0 {
		return nil, fmt.Errorf("%w: %w", signing.ErrPolicy, problem)
	}
	return kept, nil
}

// attestationOutput is what -o json prints for each attestation.
type attestationOutput struct {
	PredicateType string `json:"predicateType"`
	Predicate     any    `json:"predicate"`
	Attestation   string `json:"attestation"`
	Signer        string `json:"signer"`
}

func printAttestations(e *env, format string, list []signing.Attestation) error {
	var out []attestationOutput
	for _, a := range list {
		who := signedBy(&a.Verification)
		if format == "json" {
			out = append(out, attestationOutput{a.PredicateType, a.Predicate, a.Signature.Digest.String(), strings.TrimPrefix(who, "signed by ")})
			continue
		}
		printf(e.Err, "%s: %s\n", a.Signature.Digest, who)
		printf(e.Out, "%s\n", a.Predicate)
	}
	if format == "json" {
		return printJSON(e.Out, out)
	}
	return nil
}
