package cli

import (
	"context"
	"errors"
	"fmt"
	"text/tabwriter"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/spf13/cobra"

	"github.com/krmcat/krmcat/catalog"
	"github.com/krmcat/krmcat/cmd/internal/verify"
	"github.com/krmcat/krmcat/registry"
	"github.com/krmcat/krmcat/signing"
)

type verifyOptions struct {
	Remote    remoteFlags
	Verify    verifyFlags
	Execution executionFlags
	Location  string
	Level     string
	Signature bool
	Run       bool
	Strict    bool
	Output    string
}

func newVerifyCmd(e *env) *cobra.Command {
	opts := &verifyOptions{}
	cmd := &cobra.Command{
		Use:   "verify LOCATION",
		Short: "Prove that a published function or catalog is what it claims to be",
		Long: `Check a definition or a catalog in a registry, on the web, in git or in a file:

  schema       the document is valid
  digest       everything it refers to is there and has the digest it gives: the
               executables of every platform, scripts, and all blobs of images
  signature    the artifact, and what it refers to, is signed by the key
  example      every runtime gives the expected output on every example, and what
               it writes follows the functions specification

A document that is not in a registry is signed by a bundle beside it, in
LOCATION.sigstore.json; without one, everything that it refers to must be signed.

Executables run as programs of this machine when the key has signed the document,
or with --allow-exec. What cannot be checked here, such as a container without a
container engine, is reported as skipped; --strict makes it a failure.

Exit codes: 0 all passed; 3 a document or a function is wrong; 5 not there; 6 a
registry does not answer; 7 a digest does not match; 10 not signed; 12 signed by
others only. krmcat help exit-codes has the list.`,
		Example: `  # In a release pipeline
  krmcat verify oci://localhost:8080/acme/set-labels:v1.0.0 --key cosign.pub --strict

  # A catalog on the web, with all its functions
  krmcat verify https://example.com/catalog.yaml --key cosign.pub

  # Before publishing, in the function's folder
  krmcat verify function.yaml --signature=false --allow-exec`,
		Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error {
			opts.Location = a[0]
			return runVerify(cmd.Context(), e, opts)
		},
	}
	f := cmd.Flags()
	opts.Remote.add(f)
	opts.Verify.add(f)
	opts.Execution.add(f)
	f.StringVar(&opts.Level, "level", "publish", "how strictly documents are read: publish or consume")
	f.BoolVar(&opts.Signature, "signature", true, "check signatures; --signature=false leaves them out")
	f.BoolVar(&opts.Run, "run", true, "run the functions on their examples")
	f.BoolVar(&opts.Strict, "strict", false, "what could not be checked, and warnings, are failures")
	addOutput(cmd, &opts.Output, "text", "json")
	return cmd
}

func runVerify(ctx context.Context, e *env, opts *verifyOptions) error {
	level, err := parseLevel(opts.Level)
	if err != nil {
		return err
	}
	if opts.Signature && !opts.Verify.wanted(e) {
		return withHint(usagef("no key to verify signatures with: give --key or --trust-policy"), "--signature=false checks everything else")
	}
	if !opts.Signature && (opts.Verify.signers() || opts.Verify.given()) {
		return usagef("--key or --trust-policy and --signature=false exclude each other")
	}
	loc, err := parseLocation(opts.Location)
	if err != nil {
		return err
	}
	fns, err := newFunctions(e, &opts.Remote, &opts.Execution)
	if err != nil {
		return err
	}
	cache, err := e.cacheDir()
	if err != nil {
		return err
	}
	v := &verify.Verifier{Client: fns.client, Source: fns.source, Engine: &fns.engine, Cache: cache, Level: level, Run: opts.Run}
	if opts.Signature {
		judge, err := opts.Verify.judge(e, fns.client)
		if err != nil {
			return err
		}
		if judge.trust != nil {
			trustVerifier(v, judge.trust, loc)
		} else {
			v.Signature = judge.artifact
			v.Blob = judge.blob
		}
	}
	report, err := v.Verify(ctx, loc)
	if err != nil {
		return err
	}
	if err := showDiagnostics(e, report.Diagnostics); err != nil {
		return err
	}
	failure := report.Err()
	if failure == nil && opts.Strict {
		failure = strictly(report)
	}
	if opts.Output == "json" {
		if err := printJSON(e.Out, report); err != nil {
			return err
		}
	} else if err := printReport(e, report); err != nil {
		return err
	}
	if failure != nil {
		return codeError{fmt.Errorf("%s: verification failed: %d of %d checks", loc, max(report.Count(verify.Fail), 1), len(report.Checks)), verifyCode(failure)}
	}
	return nil
}

// trustVerifier lets a trust policy decide: about the document if it is in a
// registry, about each runtime that it names, and, before one is run, about what
// it asks for. It is for one verification.
func trustVerifier(v *verify.Verifier, trust *trustGate, loc catalog.Location) {
	base := *v.Engine
	gate := func(doc *signing.Decision) {
		engine := trust.engine(base, function{document: doc})
		v.Engine = &engine
	}
	gate(nil)
	v.EachSigned = true
	var doc *signing.Decision
	document := loc.Scheme == "oci" && loc.Path == "" // it is asked about first
	v.Signature = func(ctx context.Context, ref registry.Reference, subject ocispec.Descriptor) (string, error) {
		d, err := trust.decide(ctx, ref, signing.TrustRequest{Subject: subject, Document: doc})
		if err != nil {
			return "", err
		}
		if document {
			document = false
			gate(d) // what one that is not accepted names is not run
			if d.Allowed {
				doc = d
			}
		}
		return trustedBy(d), trust.errorOf(d)
	}
}

// strictly is the failure of a report in which not everything passed.
func strictly(r *verify.Report) error {
	if n := r.Count(verify.Skipped) + r.Count(verify.Warning); n > 0 {
		return fmt.Errorf("%d checks were skipped or gave warnings", n)
	}
	return nil
}

// verifyCode is the exit code for the worst of what was found: content that
// was changed before signatures, those before everything else.
func verifyCode(err error) int {
	for _, sentinel := range []error{registry.ErrIntegrity, signing.ErrPolicy, signing.ErrUnsigned} {
		if errors.Is(err, sentinel) {
			return codeFor(sentinel)
		}
	}
	if code := codeFor(err); code != exitError {
		return code
	}
	return exitInvalid
}

func printReport(e *env, r *verify.Report) error {
	w := tabwriter.NewWriter(e.Out, 0, 8, 2, ' ', 0)
	subject := ""
	for _, c := range r.Checks {
		if c.Subject != subject {
			subject = c.Subject
			printf(w, "%s\n", subject)
		}
		printf(w, "  %s\t%s\t%s\n", c.Status, c.Name, c.Message)
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("writing the report: %w", err)
	}
	printf(e.Out, "%d passed, %d failed, %d warnings, %d skipped\n",
		r.Count(verify.Pass), r.Count(verify.Fail), r.Count(verify.Warning), r.Count(verify.Skipped))
	return nil
}
