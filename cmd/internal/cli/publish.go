package cli

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/krmcat/krmcat/registry"
)

type publishOptions struct {
	Remote      remoteFlags
	Signing     signingFlags
	File        string
	Reference   string
	Root        string
	Annotations map[string]string
	DryRun      bool
	Output      string
}

func newPublishCmd(e *env) *cobra.Command {
	opts := &publishOptions{}
	cmd := &cobra.Command{
		Use:   "publish FILE REFERENCE",
		Short: "Publish a function definition or a catalog to a registry",
		Long: `Validate a KRMFunctionDefinition or a KRMFunctionCatalog, upload what it names by
local paths (executables, Starlark scripts, OCI image layouts, README and
examples), rewrite it to refer to everything by digest, pin its container images
to digests, push it as an OCI artifact and sign it.

Nothing is sent before everything that can be checked here is found right. The
same input gives the same digest, and publishing it again pushes nothing. A tag
that is a semantic version, such as v1.2.3, is a release and never moves.`,
		Example: `  # Publish and sign a function
  krmcat publish function.yaml localhost:8080/acme/set-labels:v1.0.0 --key cosign.key

  # In a CI job, as the identity of the job
  krmcat publish function.yaml ghcr.io/acme/set-labels:v1.0.0 --keyless

  # See what would be published
  krmcat publish function.yaml localhost:8080/acme/set-labels:v1.0.0 --sign=false --dry-run

  # Publish a catalog
  krmcat publish catalog.yaml localhost:8080/acme/catalog:latest --key cosign.key`,
		Args: args(cobra.ExactArgs(2)),
		RunE: func(cmd *cobra.Command, a []string) error {
			opts.File, opts.Reference = a[0], a[1]
			return runPublish(cmd.Context(), e, opts)
		},
	}
	f := cmd.Flags()
	opts.Remote.add(f)
	opts.Signing.add(f)
	f.StringVar(&opts.Root, "root", "", "`folder` that local paths are relative to and cannot leave (default: that of FILE)")
	f.StringToStringVar(&opts.Annotations, "annotation", nil, "`KEY=VALUE` to add to the manifest, such as org.opencontainers.image.revision=$GIT_COMMIT; repeatable")
	f.BoolVar(&opts.DryRun, "dry-run", false, "find what would be published and push nothing")
	addOutput(cmd, &opts.Output, "text", "json", "yaml")
	return cmd
}

func runPublish(ctx context.Context, e *env, opts *publishOptions) error {
	ref, err := registry.ParseReference(opts.Reference)
	if err != nil {
		return usageError{err}
	}
	if ref.Tag == "" {
		return usagef("reference %s has no tag: add a release such as :v1.0.0, or :latest for a catalog", ref)
	}
	data, err := readInput(e.In, opts.File)
	if err != nil {
		return err
	}
	pub := &registry.PublishOptions{Annotations: opts.Annotations, DryRun: opts.DryRun}
	if pub.Created, err = sourceDate(e.Getenv); err != nil {
		return err
	}
	dir := opts.Root
	if dir == "" {
		dir = filepath.Dir(opts.File)
	}
	if opts.File != "-" || opts.Root != "" {
		root, err := os.OpenRoot(dir)
		if err != nil {
			return fmt.Errorf("opening the document's folder: %w", err)
		}
		defer root.Close()
		pub.Root = root
	}
	if !opts.DryRun {
		signer, done, err := opts.Signing.signer(ctx, e)
		if err != nil {
			return err
		}
		defer done()
		pub.Signer = signer
	}
	client, err := opts.Remote.client(e)
	if err != nil {
		return err
	}
	res, err := client.Publish(ctx, opts.File, data, ref, pub)
	if err != nil {
		return explainInvalid(e, err)
	}
	if err := showDiagnostics(e, res.Diagnostics); err != nil {
		return err
	}
	switch opts.Output {
	case "json":
		return printJSON(e.Out, res)
	case "yaml":
		_, err := e.Out.Write(res.Document)
		return err
	}
	for _, a := range res.Artifacts {
		did := "exists "
		switch {
		case opts.DryRun:
			did = "would push"
		case a.Pushed:
			did = "pushed "
		}
		signed := ""
		if a.Signed {
			signed = " (signed)"
		}
		printf(e.Err, "%s %-10s %s%s\n", did, a.Kind, a.Reference, signed)
	}
	printf(e.Out, "%s\n", res.Digest)
	return nil
}
