package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	goruntime "runtime"

	"github.com/spf13/cobra"

	"github.com/krmcat/krmcat/catalog"
	"github.com/krmcat/krmcat/registry"
	"github.com/krmcat/krmcat/runtime"
	"github.com/krmcat/krmcat/signing"
)

type trustExplainOptions struct {
	Remote    remoteFlags
	Trust     trustFlags
	Reference string
	Output    string
}

func newTrustExplainCmd(e *env) *cobra.Command {
	opts := &trustExplainOptions{}
	cmd := &cobra.Command{
		Use:   "explain REFERENCE",
		Short: "Show which rule decides about an artifact, and why",
		Long: `Apply the trust policy to an artifact and print each check. For a definition or a
catalog, the images, executables and scripts that it names are decided about too,
with what the functions ask for, as krmcat run would.

The exit code is that of a command that needed the artifact: 0 if it is allowed, 10
if it is not signed, 12 if no signature satisfies the rule or if a function has no
runtime that is allowed.`,
		Example: `  krmcat trust explain localhost:5000/acme/hello:v1.0.0 --trust-policy trust.yaml

  # For programs
  krmcat trust explain localhost:5000/acme/hello:v1.0.0 -o json`,
		Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error {
			opts.Reference = a[0]
			return runTrustExplain(cmd.Context(), e, opts)
		},
	}
	opts.Remote.add(cmd.Flags())
	opts.Trust.add(cmd.Flags())
	addOutput(cmd, &opts.Output, "text", "json")
	return cmd
}

// trustExplanation is what -o json prints.
type trustExplanation struct {
	PolicyFile string `json:"policyFile"`
	*signing.Decision
	Functions []explainedFunction `json:"functions,omitempty"`
}

type explainedFunction struct {
	APIVersion string             `json:"apiVersion"`
	Kind       string             `json:"kind"`
	Runtimes   []explainedRuntime `json:"runtimes"`
}

type explainedRuntime struct {
	Type      string `json:"type"` // starlark, exec or container
	Reference string `json:"reference"`
	*signing.Decision
	// Error is why it could not be decided.
	Error string `json:"error,omitempty"`
}

func runTrustExplain(ctx context.Context, e *env, opts *trustExplainOptions) error {
	src, client, err := opts.Remote.source(e)
	if err != nil {
		return err
	}
	gate, err := opts.Trust.gate(e, client)
	if err != nil {
		return err
	}
	if gate == nil {
		return noTrustPolicy(e)
	}
	ref, err := registry.ParseReference(opts.Reference)
	if err != nil {
		return usageError{err}
	}
	desc, err := client.Resolve(ctx, ref)
	if err != nil {
		return err
	}
	ref.Tag, ref.Digest = "", desc.Digest
	d, err := gate.decide(ctx, ref, signing.TrustRequest{Subject: desc})
	if err != nil {
		return err
	}
	x := &trustExplanation{PolicyFile: gate.file, Decision: d}
	failure := d.Err()
	functions, err := explainFunctions(ctx, gate, src, ref, d)
	if err != nil {
		return err
	}
	for _, f := range functions {
		view, err := f.explain(ctx, gate)
		if failure == nil {
			failure = err
		}
		x.Functions = append(x.Functions, view)
	}
	if opts.Output == "json" {
		if err := printJSON(e.Out, x); err != nil {
			return err
		}
	} else {
		x.text(e.Out)
	}
	return failure
}

// toExplain is a function version with the decision on its document.
type toExplain struct {
	res *catalog.Resolution
	fn  function
}

// explainFunctions are the functions of a document; none of other artifacts.
func explainFunctions(ctx context.Context, gate *trustGate, src catalog.Source, ref registry.Reference, d *signing.Decision) ([]toExplain, error) {
	loc := catalog.Location{Scheme: "oci", Ref: ref.Name(), Digest: ref.Digest}
	a, err := gate.client.Artifact(ctx, loc, "")
	switch {
	case errors.Is(err, registry.ErrUnavailable), errors.Is(err, registry.ErrDenied), errors.Is(err, registry.ErrIntegrity):
		return nil, err
	case err != nil, a.Kind() != "definition" && a.Kind() != "catalog":
		return nil, nil // nor has an image for other machines a document
	}
	doc, err := catalog.Load(ctx, src, loc, consumeOptions)
	if err != nil {
		return nil, err
	}
	var list []toExplain
	for r := range doc.AsCatalog().Resolutions() {
		list = append(list, toExplain{r, function{r.GVK(), d}})
	}
	return list, nil
}

// explain decides about each runtime. The error says why none is allowed.
func (f toExplain) explain(ctx context.Context, gate *trustGate) (explainedFunction, error) {
	gvk := f.res.GVK()
	view := explainedFunction{APIVersion: gvk.APIVersion(), Kind: gvk.Kind, Runtimes: []explainedRuntime{}}
	rt := f.res.Version.Runtime
	var failure error
	allowed := false
	for _, only := range []catalog.Runtime{{Starlark: rt.Starlark}, {Exec: rt.Exec}, {Container: rt.Container}} {
		if only == (catalog.Runtime{}) {
			continue
		}
		x := explainedRuntime{}
		x.Type, x.Reference = describeRuntime(only)
		_, d, err := gate.runtime(ctx, only, runtime.Grants{Exec: true}, f.fn)
		x.Decision = d
		if d == nil {
			x.Error = "nothing for this machine, or no digest: it would not be run"
			if err != nil {
				x.Error = err.Error()
			} else {
				err = errors.New(x.Error)
			}
		}
		if err != nil && failure == nil {
			failure = fmt.Errorf("%s: %w", gvk, err)
		}
		allowed = allowed || err == nil
		view.Runtimes = append(view.Runtimes, x)
	}
	if allowed {
		failure = nil
	}
	return view, failure
}

// describeRuntime says what a runtime is, and where; an executable that of this
// machine.
func describeRuntime(rt catalog.Runtime) (kind, where string) {
	switch {
	case rt.Starlark != nil:
		return "starlark", reference(rt.Starlark.URI, rt.Starlark.Location)
	case rt.Container != nil:
		return "container", rt.Container.Pinned()
	}
	for _, p := range rt.Exec.Platforms {
		if p.OS == goruntime.GOOS && p.Arch == goruntime.GOARCH {
			return "exec", reference(p.URI, p.Location)
		}
	}
	return "exec", "for other platforms"
}

func (x *trustExplanation) text(w io.Writer) {
	explainDecision(w, "", x.About(), x.Decision)
	printf(w, "  policy %s\n", x.PolicyFile)
	for _, f := range x.Functions {
		printf(w, "\n%s, kind %s\n", printableLine(f.APIVersion), printableLine(f.Kind))
		for _, r := range f.Runtimes {
			name := r.Type + " " + r.Reference
			if r.Decision == nil {
				printf(w, "  %s: %s\n", printableLine(name), printableLine(r.Error))
				continue
			}
			explainDecision(w, "  ", name, r.Decision)
		}
	}
}

func explainDecision(w io.Writer, indent, name string, d *signing.Decision) {
	verdict := "denied"
	if d.Allowed {
		verdict = "allowed"
	}
	printf(w, "%s%s: %s\n", indent, printableLine(name), verdict)
	if d.Original != "" {
		printf(w, "%s  copy of %s\n", indent, d.Original)
	}
	for _, s := range d.Steps {
		mark := "no "
		if s.Passed {
			mark = "yes"
		}
		printf(w, "%s  %s  %s: %s\n", indent, mark, s.Check, printableLine(s.Detail))
	}
	for _, s := range d.Expected {
		printf(w, "%s  needed: %s\n", indent, printableLine(s))
	}
	for _, s := range d.Found {
		printf(w, "%s  found: %s\n", indent, printableLine(s))
	}
	if d.Capabilities != nil {
		printf(w, "%s  at most: %s\n", indent, d.Capabilities)
	}
}
