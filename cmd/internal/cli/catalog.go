package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/krmcat/krmcat/catalog"
	"github.com/krmcat/krmcat/registry"
)

func newCatalogCmd(e *env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "catalog",
		Short: "Make catalogs of published functions",
		Args:  args(cobra.NoArgs),
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newCatalogCreateCmd(e))
	return cmd
}

type catalogCreateOptions struct {
	Remote    remoteFlags
	Verify    verifyFlags
	Name      string
	Locations []string
	Labels    map[string]string
}

func newCatalogCreateCmd(e *env) *cobra.Command {
	opts := &catalogCreateOptions{}
	cmd := &cobra.Command{
		Use:   "create NAME LOCATION...",
		Short: "Write a catalog of published definitions",
		Long: `Read definitions and catalogs, in registries, on the web, in git or in files, and
write one KRMFunctionCatalog with all their functions to standard output. Where
two give the same function, the first one wins. With --key, or under a trust
policy, only what is signed is taken, and only from registries.`,
		Example: `  # A catalog of two functions, published and signed
  krmcat catalog create acme oci://localhost:8080/acme/set-labels:v1.0.0 \
    oci://localhost:8080/acme/require-limits:v1.0.0 > catalog.yaml
  krmcat publish catalog.yaml localhost:8080/acme/catalog:latest --key cosign.key`,
		Args: args(cobra.MinimumNArgs(2)),
		RunE: func(cmd *cobra.Command, a []string) error {
			opts.Name, opts.Locations = a[0], a[1:]
			return runCatalogCreate(cmd.Context(), e, opts)
		},
	}
	opts.Remote.add(cmd.Flags())
	opts.Verify.add(cmd.Flags())
	cmd.Flags().StringToStringVar(&opts.Labels, "label", nil, "`KEY=VALUE`: a label of the catalog; repeatable")
	return cmd
}

func runCatalogCreate(ctx context.Context, e *env, opts *catalogCreateOptions) error {
	src, client, err := opts.Remote.source(e)
	if err != nil {
		return err
	}
	judge, err := opts.Verify.judge(e, client)
	if err != nil {
		return err
	}
	var defs []catalog.Definition
	for _, l := range opts.Locations {
		loc, err := catalog.ParseLocation(l)
		if err != nil {
			return usageError{err}
		}
		if judge != nil {
			if loc, err = judge.location(ctx, loc); err != nil {
				return err
			}
		}
		doc, err := catalog.Load(ctx, src, loc, catalog.ReadOptions{})
		if err != nil {
			return explainInvalid(e, err)
		}
		defs = append(defs, doc.AsCatalog().Definitions...)
	}
	c, shadowed := catalog.Build(opts.Name, opts.Labels, defs)
	for _, d := range shadowed {
		for i := range d.Versions {
			printf(e.Err, "krmcat: warning: %s is given twice; the first one is taken\n", (&catalog.Resolution{Definition: &d, Version: &d.Versions[i]}).GVK())
		}
	}
	data, err := catalog.Marshal(c)
	if err != nil {
		return err
	}
	if _, err := catalog.Read(ctx, catalog.Location{}, opts.Name, data, catalog.ReadOptions{}); err != nil {
		return explainInvalid(e, err)
	}
	if _, err := e.Out.Write(data); err != nil {
		return fmt.Errorf("writing the catalog: %w", err)
	}
	return nil
}

// location verifies the signature of the artifact that a location names, and
// returns the location by the digest that was verified.
func (j *judge) location(ctx context.Context, loc catalog.Location) (catalog.Location, error) {
	if loc.Scheme != "oci" {
		return loc, usagef("%s: only artifacts in a registry (oci://) can be verified here", loc)
	}
	ref, err := registry.ParseReference(loc.Ref)
	if err != nil {
		return loc, err
	}
	if loc.Digest != "" {
		ref.Digest = loc.Digest
	}
	desc, err := j.client.Resolve(ctx, ref)
	if err != nil {
		return loc, err
	}
	ref.Digest, loc.Digest = desc.Digest, desc.Digest
	_, err = j.artifact(ctx, ref, desc)
	return loc, err
}
