package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/spf13/cobra"
	"oras.land/oras-go/v2/registry/remote"

	"github.com/krmcat/krmcat/registry"
	"github.com/krmcat/krmcat/signing"
)

type signOptions struct {
	Remote   remoteFlags
	Key      keyFlags
	Services serviceFlags
	Subjects []string // references and files
	Bundle   string
	// Annotations are signed along.
	Annotations map[string]string
	Recursive   bool
	Output      string
}

func newSignCmd(e *env) *cobra.Command {
	opts := &signOptions{}
	cmd := &cobra.Command{
		Use:   "sign {REFERENCE | FILE}... {--key KEY | --keyless}",
		Short: "Sign artifacts in a registry, or files",
		Long: `Sign artifacts in a registry. A tag is resolved once; the digest that was signed is
printed. What this key has signed already is not signed again. The key is read
once for all that is signed.

A file gets its signature beside it, in FILE.sigstore.json; cosign verify-blob
--bundle accepts it. Serve that file beside the document on the web, and
consumers find it.`,
		Example: `  # An artifact
  COSIGN_PASSWORD=secret krmcat sign localhost:5000/fn/set-labels:v1.0.0 --key cosign.key

  # An image index with all its images
  krmcat sign localhost:5000/fn/set-labels:v1.0.0 --key cosign.key --recursive

  # A file
  krmcat sign catalog.yaml --key cosign.key

  # In a CI job, as the identity of the job
  krmcat sign ghcr.io/acme/hello:v1.0.0 --keyless`,
		Args: args(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error {
			opts.Subjects = a
			return runSign(cmd.Context(), e, opts)
		},
	}
	opts.Remote.add(cmd.Flags())
	opts.Key.add(cmd.Flags())
	opts.Services.add(cmd.Flags())
	cmd.Flags().StringToStringVarP(&opts.Annotations, "annotation", "a", nil, "annotation `KEY=VALUE` that is signed along; repeatable")
	cmd.Flags().StringVar(&opts.Bundle, "bundle", "", "`path` for the signature of a file (default: FILE.sigstore.json)")
	cmd.Flags().BoolVarP(&opts.Recursive, "recursive", "r", false, "sign what an image index lists as well")
	addOutput(cmd, &opts.Output, "text", "json")
	return cmd
}

// signOutput is what -o json prints for each subject.
type signOutput struct {
	Subject   string        `json:"subject"`
	Digest    digest.Digest `json:"digest"`
	Signer    string        `json:"signer"`              // the fingerprint of the key, or the identity
	Signature string        `json:"signature,omitempty"` // the digest of the manifest, or the path of the bundle
	Signed    bool          `json:"signed"`              // false if it was signed already
}

func runSign(ctx context.Context, e *env, opts *signOptions) error {
	if opts.Bundle != "" && len(opts.Subjects) > 1 {
		return usagef("--bundle is for one file")
	}
	subjects := make([]signSubject, len(opts.Subjects))
	for i, name := range opts.Subjects {
		var err error
		if subjects[i], err = opts.subject(ctx, e, name); err != nil {
			return err
		}
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
	var list []signOutput
	for _, s := range subjects {
		if s.data != nil {
			out, err := opts.signFile(ctx, s, signer, name, signOpts)
			if err != nil {
				return err
			}
			list = append(list, out)
			continue
		}
		withAnnotations := signOpts
		withAnnotations.Annotations = opts.Annotations
		for _, desc := range s.manifests {
			out, err := signOne(ctx, signer, name, withAnnotations, s.repo, s.ref, desc)
			if err != nil {
				return err
			}
			list = append(list, out)
		}
	}
	if opts.Output == "json" {
		return printJSON(e.Out, list)
	}
	for _, s := range list {
		if !s.Signed {
			printf(e.Err, "%s: signed already by %s\n", s.Subject, s.Signer)
		}
		printf(e.Out, "%s\n", s.Digest)
	}
	return nil
}

// isFile tells files from references. A reference has a registry host in
// front, so it is a file only if there is one of that name.
func isFile(s string) (bool, error) {
	if strings.HasPrefix(s, "oci://") {
		return false, nil
	}
	info, err := os.Stat(s)
	switch {
	case err == nil && info.IsDir():
		return false, usagef("%s is a folder; give a file or a reference", s)
	case err == nil:
		return true, nil
	}
	if _, rerr := registry.ParseReference(s); rerr != nil {
		if errors.Is(err, fs.ErrNotExist) && !strings.Contains(s, ":") {
			return false, codeError{fmt.Errorf("%s is neither a file (%w) nor a reference (%w)", s, err, rerr), exitNotFound}
		}
		return false, usageError{rerr}
	}
	return false, nil
}

// signSubject is what one argument names: manifests in a registry, or a file.
type signSubject struct {
	name      string
	data      []byte // of a file; nil for a reference
	ref       registry.Reference
	repo      *remote.Repository
	manifests []ocispec.Descriptor
}

// subject finds out what an argument names, before a key is asked for.
func (o *signOptions) subject(ctx context.Context, e *env, name string) (signSubject, error) {
	s := signSubject{name: name}
	file, err := isFile(name)
	if err != nil {
		return s, err
	}
	if file {
		if o.Recursive || len(o.Annotations) > 0 {
			return s, usagef("--recursive and --annotation are for artifacts in a registry, not for the file %s", name)
		}
		s.data, err = readInput(e.In, name)
		if s.data == nil {
			s.data = []byte{}
		}
		return s, err
	}
	if s.ref, err = registry.ParseReference(name); err != nil {
		return s, usageError{err}
	}
	client, err := o.Remote.client(e)
	if err != nil {
		return s, err
	}
	if s.repo, err = client.Repository(s.ref); err != nil {
		return s, err
	}
	desc, err := client.Resolve(ctx, s.ref)
	if err != nil {
		return s, err
	}
	s.manifests = []ocispec.Descriptor{desc}
	if o.Recursive {
		if s.manifests, err = signing.Tree(ctx, s.repo, desc); err != nil {
			return s, fmt.Errorf("%s: %w", s.ref, registry.Classify(err))
		}
	}
	return s, nil
}

// signOne signs one manifest unless the key has signed it already.
func signOne(ctx context.Context, signer artifactSigner, name string, opts signing.SignOptions, repo *remote.Repository, ref registry.Reference, desc ocispec.Descriptor) (signOutput, error) {
	out := signOutput{Subject: ref.Name() + "@" + desc.Digest.String(), Digest: desc.Digest, Signer: name}
	done, err := signer.Signed(ctx, repo, ref.Name(), desc, opts)
	if err != nil {
		return out, registry.Classify(err)
	}
	if done {
		return out, nil
	}
	sig, err := signer.With(opts).Sign(ctx, repo, ref.Name(), desc)
	if err != nil {
		return out, registry.Classify(err)
	}
	out.Signature, out.Signed = sig.Digest.String(), true
	return out, nil
}

// signFile signs a file and puts the bundle beside it.
func (o *signOptions) signFile(ctx context.Context, s signSubject, signer artifactSigner, name string, opts signing.SignOptions) (signOutput, error) {
	target := o.Bundle
	if target == "" {
		target = s.name + signing.BundleSuffix
	}
	out := signOutput{Subject: s.name, Digest: digest.FromBytes(s.data), Signer: name, Signature: target}
	if _, err := os.Lstat(target); err == nil {
		if err := signedFileBy(ctx, signer, target, s.data); err != nil {
			return out, codeError{withHint(fmt.Errorf("%s exists, and does not sign %s with this key", target, s.name), "remove it, or choose another path with --bundle"), exitConflict}
		}
		return out, nil
	}
	bundle, err := signer.With(opts).SignBlob(ctx, s.data)
	if err != nil {
		return out, err
	}
	if err := writeNew(target, append(bundle, '\n'), 0o644); err != nil {
		return out, err
	}
	out.Signed = true
	return out, nil
}

// signedFileBy checks that a bundle is a signature of data by the same key.
func signedFileBy(ctx context.Context, signer artifactSigner, bundle string, data []byte) error {
	key, ok := signer.(keySigner)
	if !ok {
		return errors.New("keyless signatures are made anew")
	}
	old, err := readLimited(bundle, maxBundleFile)
	if err != nil {
		return err
	}
	_, err = signing.VerifyBlob(ctx, data, old, signing.Policy{Keys: []any{key.PublicKey()}})
	return err
}
