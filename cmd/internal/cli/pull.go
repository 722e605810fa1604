package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/spf13/cobra"

	"github.com/krmcat/krmcat/catalog"
	"github.com/krmcat/krmcat/registry"
)

type pullOptions struct {
	Remote    remoteFlags
	Verify    verifyFlags
	Reference string
	Dir       string
	Platform  string
	Force     bool
	Output    string
}

func newPullCmd(e *env) *cobra.Command {
	opts := &pullOptions{}
	cmd := &cobra.Command{
		Use:   "pull REFERENCE",
		Short: "Get a definition, a catalog or a runtime out of a registry",
		Long: `Fetch an artifact and write its files: function.yaml, README.md and
examples.tar.gz of a definition, catalog.yaml of a catalog, the executable or the
script of a runtime. The tag is resolved once; everything is verified by digest
before a file appears. With --key, or under a trust policy, the artifact's
signature is verified first.`,
		Example: `  # A function with its README and examples
  krmcat pull localhost:8080/acme/set-labels:v1.0.0 --dir set-labels

  # A catalog, only if it is signed
  krmcat pull localhost:8080/acme/catalog --key cosign.pub`,
		Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error {
			opts.Reference = a[0]
			return runPull(cmd.Context(), e, opts)
		},
	}
	f := cmd.Flags()
	opts.Remote.add(f)
	opts.Verify.add(f)
	f.StringVar(&opts.Dir, "dir", ".", "`folder` to write to; made if it is not there")
	f.StringVar(&opts.Platform, "platform", "", "`OS/ARCH` of an executable (default: this machine's)")
	f.BoolVar(&opts.Force, "force", false, "replace files that have other content")
	addOutput(cmd, &opts.Output, "text", "json")
	return cmd
}

func runPull(ctx context.Context, e *env, opts *pullOptions) error {
	ref, err := registry.ParseReference(opts.Reference)
	if err != nil {
		return usageError{err}
	}
	if ref.Tag == "" && ref.Digest == "" {
		ref.Tag = "latest"
	}
	client, err := opts.Remote.client(e)
	if err != nil {
		return err
	}
	loc := catalog.Location{Scheme: "oci", Ref: registry.Reference{Host: ref.Host, Repository: ref.Repository, Tag: ref.Tag}.String(), Digest: ref.Digest}
	judge, err := opts.Verify.judge(e, client)
	if err != nil {
		return err
	}
	a, err := client.Artifact(ctx, loc, opts.Platform)
	if err != nil {
		return err
	}
	if judge != nil {
		who, err := judge.artifact(ctx, a.Reference, a.Descriptor)
		if err != nil {
			return err
		}
		printf(e.Err, "%s\n", who)
	}
	if a.IsImage() {
		return withHint(fmt.Errorf("%s is a container image", a.Reference), "pull it with docker or podman")
	}
	if err := os.MkdirAll(opts.Dir, 0o755); err != nil {
		return err
	}
	root, err := os.OpenRoot(opts.Dir)
	if err != nil {
		return err
	}
	defer root.Close()
	files, err := a.Pull(ctx, root, opts.Force)
	if errors.Is(err, fs.ErrExist) {
		return codeError{withHint(err, "replace it with --force, or choose another folder with --dir"), exitConflict}
	}
	if err != nil {
		return err
	}
	if opts.Output == "json" {
		return printJSON(e.Out, struct {
			Reference string                `json:"reference"`
			Digest    string                `json:"digest"`
			Files     []registry.PulledFile `json:"files"`
		}{a.Reference.String(), a.Descriptor.Digest.String(), files})
	}
	for _, f := range files {
		did := "wrote "
		if !f.Written {
			did = "exists"
		}
		printf(e.Err, "%s %s\n", did, f.Name)
	}
	printf(e.Out, "%s\n", a.Descriptor.Digest)
	return nil
}
