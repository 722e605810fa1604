package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	goruntime "runtime"
	"slices"
	"text/tabwriter"

	"github.com/opencontainers/go-digest"
	"github.com/spf13/cobra"

	"github.com/krmcat/krmcat/catalog"
	"github.com/krmcat/krmcat/catalog/kustomization"
	"github.com/krmcat/krmcat/schema"
)

type resolveOptions struct {
	Remote   remoteFlags
	Catalogs catalogFlags
	Trust    trustFlags
	Args     []string
	Explain  bool
	Write    bool
	Check    bool
	Output   string
}

func newResolveCmd(e *env) *cobra.Command {
	opts := &resolveOptions{}
	cmd := &cobra.Command{
		Use:   "resolve APIVERSION KIND | FILE | DIR",
		Short: "Find the function for a functionConfig in catalogs, and pin it",
		Long: `Say which function runs for an apiVersion and kind, for the functionConfigs in a
file, or for all those that a Kustomization, a Component or a Composition uses:
its image by digest, or the record of its executable or script.

Where a function is looked for, first match wins:

  1. the functionConfig itself: its runtime field, its annotation
     config.kubernetes.io/function, its metadata.configFn
  2. the catalogs of --catalog, or else of KRMCAT_CATALOG, in their order
  3. the catalogs that the file itself names: for a Kustomization or Component
     those of the same file, for a Composition its own and then those of its
     imports

A catalog is fetched only when the search comes to it. One that is needed and
not available is an error, and so is a match in one that is not trusted. Under a
trust policy (--trust-policy) nothing is named that the policy does not accept.

With -w the annotation is written into the files of the functionConfigs, so that
kustomize and kpt as they are run exactly this image. Annotations that krmcat did
not write are left alone. With --check nothing is written, and exit code 20 says
that something would be.`,
		Example: `  krmcat resolve example.com/v1 SetLabels \
    --catalog https://example.com/catalog.yaml --trusted-catalog https://example.com/catalog.yaml

  # Why this one?
  krmcat resolve labels.yaml --catalog catalog.yaml --trusted-catalog catalog.yaml --explain

  # Pin the functions of a Kustomization for kustomize build, and check that in CI
  krmcat resolve overlays/production -w --trusted-catalog https://example.com/catalog.yaml
  krmcat resolve overlays/production --check --trusted-catalog https://example.com/catalog.yaml`,
		Args: args(cobra.RangeArgs(1, 2)),
		RunE: func(cmd *cobra.Command, a []string) error {
			opts.Args = a
			return runResolve(cmd.Context(), e, opts)
		},
	}
	f := cmd.Flags()
	opts.Remote.add(f)
	opts.Catalogs.add(f)
	opts.Trust.add(f)
	f.BoolVar(&opts.Explain, "explain", false, "say at which catalogs was looked, and what was there")
	f.BoolVarP(&opts.Write, "write", "w", false, "write the annotation into the files of the functionConfigs")
	f.BoolVar(&opts.Check, "check", false, "fail if -w would change a file")
	addOutput(cmd, &opts.Output, "text", "json")
	return cmd
}

func runResolve(ctx context.Context, e *env, opts *resolveOptions) error {
	if opts.Write && opts.Check {
		return usagef("-w and --check exclude each other")
	}
	if (opts.Write || opts.Check) && (len(opts.Args) == 2 || opts.Args[0] == "-") {
		return usagef("-w and --check are for files and folders")
	}
	tree, err := resolveInput(e, opts.Args)
	if err != nil {
		return explainInvalid(e, err)
	}
	if (opts.Write || opts.Check) && tree.Kind == "Composition" {
		return usagef("%s is a Composition, which only tools that know catalogs build; there is nothing to write into it", tree.Root)
	}
	src, client, err := opts.Remote.source(e)
	if err != nil {
		return err
	}
	trust, err := opts.Trust.gate(e, client)
	if err != nil {
		return err
	}
	r, err := newFunctionResolver(e, src, &opts.Catalogs)
	if err != nil {
		return err
	}
	results := []resolvedView{}
	pins := map[string]map[int]string{}
	var failures []error
	for i := range tree.Functions {
		fn := &tree.Functions[i]
		v, res, err := r.resolve(ctx, fn)
		if opts.Explain && opts.Output == "text" {
			explain(e.Err, &v)
		}
		if !opts.Explain {
			v.Searched = nil
		}
		if err == nil && trust != nil {
			err = trust.handOut(ctx, fn, res, &v)
		}
		if err == nil && res != nil && (opts.Write || opts.Check) {
			err = addPin(pins, fn, res)
		}
		if err != nil {
			if fn.File != "" {
				err = fmt.Errorf("%s:%d: %w", fn.File, fn.Line, err)
			}
			failures = append(failures, err)
			continue
		}
		results = append(results, v)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if len(failures) > 0 {
		return explainInvalid(e, joined(failures))
	}
	for _, s := range tree.Skipped {
		printf(e.Err, "krmcat: notice: not followed: %s\n", s)
	}
	for _, loc := range tree.Catalogs {
		// Interpretation of KC-022: not trusted and not needed is success.
		if loc = here(loc); !r.used[loc] && !r.trust.Names(loc) {
			printf(e.Err, "krmcat: notice: catalog %s is not trusted, and nothing was needed from it\n", loc)
		}
	}
	if opts.Write || opts.Check {
		return writePins(e, pins, opts.Check)
	}
	if opts.Output == "json" {
		return printJSON(e.Out, results)
	}
	return resolvedText(e.Out, tree, results)
}

// joined makes one error of several. One alone stays what it is.
func joined(errs []error) error {
	if len(errs) == 1 {
		return errs[0]
	}
	return errors.Join(errs...)
}

// resolveInput finds out what the arguments name.
func resolveInput(e *env, a []string) (*kustomization.Tree, error) {
	if len(a) == 2 {
		gvk := catalog.GVK(a[0], a[1])
		if gvk.Version == "" || gvk.Kind == "" {
			return nil, usagef("write the apiVersion and the kind, such as example.com/v1 SetLabels")
		}
		return &kustomization.Tree{Functions: []kustomization.Function{{GVK: gvk}}}, nil
	}
	name := a[0]
	if name != "-" {
		tree, err := kustomization.Load(name)
		if !errors.Is(err, kustomization.ErrNotKustomization) {
			return tree, err
		}
	}
	data, err := readInput(e.In, name)
	if err != nil {
		return nil, err
	}
	if name == "-" {
		name = "stdin"
	}
	fns, err := kustomization.Configs(name, data)
	return &kustomization.Tree{Functions: fns}, err
}

// functionResolver resolves functions, each in its own search order, and
// fetches each catalog once.
type functionResolver struct {
	source  catalog.Source
	trust   *catalog.TrustList
	first   []catalog.Location // of the command line
	entries map[catalog.Location]*catalog.Entry
	used    map[catalog.Location]bool
}

func newFunctionResolver(e *env, src catalog.Source, f *catalogFlags) (*functionResolver, error) {
	trust, err := f.trust(src)
	if err != nil {
		return nil, err
	}
	first, err := f.locations(e)
	if err != nil {
		return nil, err
	}
	return &functionResolver{source: src, trust: trust, first: first,
		entries: map[catalog.Location]*catalog.Entry{}, used: map[catalog.Location]bool{}}, nil
}

// list is the search order of a function.
func (r *functionResolver) list(fn *kustomization.Function) *catalog.List {
	l := &catalog.List{Source: r.source, Trust: r.trust, Options: catalog.ReadOptions{Level: schema.Consume}}
	seen := map[catalog.Location]bool{}
	for _, loc := range slices.Concat(r.first, fn.Catalogs) {
		if loc = here(loc); seen[loc] {
			continue
		}
		seen[loc] = true
		if r.entries[loc] == nil {
			r.entries[loc] = catalog.NewEntry(loc)
		}
		l.Entries = append(l.Entries, r.entries[loc])
	}
	return l
}

// resolvedView is what runs for a functionConfig, in the form that -o json
// prints.
type resolvedView struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Name       string `json:"name,omitempty"`
	File       string `json:"file,omitempty"`
	Line       int    `json:"line,omitempty"`
	Field      string `json:"field,omitempty"` // generators, transformers, validators or modules

	// Inline is where the functionConfig itself gives the runtime: runtime,
	// annotation or configFn. No catalog is asked then.
	Inline        string        `json:"inline,omitempty"`
	Catalog       string        `json:"catalog,omitempty"`
	Resolved      string        `json:"catalogResolved,omitempty"`
	CatalogDigest digest.Digest `json:"catalogDigest,omitempty"`
	Publisher     string        `json:"publisher,omitempty"`
	Network       bool          `json:"requireNetwork"`
	Storage       bool          `json:"requireStorageMount"`
	// Reference is what would be run on this machine.
	Reference string         `json:"reference"`
	Runtimes  []recordView   `json:"runtimes,omitempty"`
	Searched  []searchedView `json:"searched,omitempty"`
}

// searchedView is a place where a function was looked for.
type searchedView struct {
	Catalog string `json:"catalog"`
	State   string `json:"state"`
	Matches int    `json:"matches"`
	Error   string `json:"error,omitempty"`
}

// resolve finds out what runs for a functionConfig. The resolution is nil if
// the functionConfig says so itself.
func (r *functionResolver) resolve(ctx context.Context, fn *kustomization.Function) (resolvedView, *catalog.Resolution, error) {
	v := resolvedView{APIVersion: fn.GVK.APIVersion(), Kind: fn.GVK.Kind, Name: fn.Name, File: fn.File, Line: fn.Line, Field: fn.Field}
	if rt := fn.Inline; rt != nil && !rt.Managed {
		v.Inline, v.Reference = rt.From, rt.String()
		return v, nil, nil
	}
	res, looked, err := r.list(fn).Explain(ctx, fn.GVK)
	for _, l := range looked {
		s := searchedView{Catalog: l.Location.String(), State: l.State.String(), Matches: len(l.Matches)}
		if l.Err != nil {
			s.Error = l.Err.Error()
		}
		v.Searched = append(v.Searched, s)
	}
	if err != nil {
		return v, nil, err
	}
	c := res.Catalog
	r.used[c.Origin] = true
	v.Catalog, v.CatalogDigest, v.Publisher = c.Origin.String(), c.Digest, res.Definition.Publisher
	if s := c.Resolved.String(); c.Resolved.Pinned() && !c.Resolved.IsLocal() && s != v.Catalog {
		v.Resolved = s
	}
	if x := res.Version.Runtime.Container; x != nil {
		v.Network, v.Storage = x.RequireNetwork, x.RequireStorageMount
	}
	v.Runtimes = records(&res.Version.Runtime)
	v.Reference, err = chooseRecord(v.Runtimes)
	if err != nil {
		return v, nil, fmt.Errorf("%s, from %s: %w", fn.GVK, c.Origin, err)
	}
	return v, res, nil
}

// chooseRecord is what runs on this machine: an image, as the portable form
// (FS-29), before an executable for this platform and a script. What has no
// digest is not run at all (KC-080).
func chooseRecord(list []recordView) (string, error) {
	here := goruntime.GOOS + "/" + goruntime.GOARCH
	found := false
	for _, r := range list {
		if r.Type == "exec" && r.Platform != here {
			continue
		}
		if r.Verifiable {
			return r.Reference, nil
		}
		found = true
	}
	switch {
	case found:
		return "", fmt.Errorf("its runtime cannot be verified: %w", catalog.ErrNoDigest)
	case len(list) > 0:
		return "", fmt.Errorf("no executable for %s: %w", here, errors.ErrUnsupported)
	}
	return "", fmt.Errorf("no runtime: %w", errors.ErrUnsupported)
}

// explain says on standard error where a function was looked for.
func explain(w io.Writer, v *resolvedView) {
	printf(w, "%s, kind %s\n", v.APIVersion, v.Kind)
	if v.Inline != "" {
		printf(w, "  given by the functionConfig itself (%s); catalogs are not asked\n", v.Inline)
		return
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for i, s := range v.Searched {
		more := ""
		switch {
		case s.State == "match" && s.Matches > 1:
			more = fmt.Sprintf(", the first of %d", s.Matches)
		case s.Error != "":
			more = ": " + printableLine(s.Error)
		}
		printf(tw, "  %d.\t%s\t%s%s\n", i+1, s.Catalog, s.State, more)
	}
	if len(v.Searched) == 0 {
		printf(tw, "  no catalog to look in\n")
	}
	_ = tw.Flush()
}

// resolvedText prints references, one a line; for what a Kustomization uses,
// with the place of the functionConfig and where its function is from.
func resolvedText(w io.Writer, tree *kustomization.Tree, results []resolvedView) error {
	if tree.Kind == "" {
		for _, v := range results {
			if _, err := fmt.Fprintln(w, v.Reference); err != nil {
				return err
			}
		}
		return nil
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, v := range results {
		from := v.Catalog
		if v.Inline != "" {
			from = v.Inline
		}
		printf(tw, "%s:%d\t%s/%s\t%s\t%s\n", v.File, v.Line, v.APIVersion, v.Kind, v.Reference, from)
	}
	return tw.Flush()
}

// addPin notes the annotation for a functionConfig.
func addPin(pins map[string]map[int]string, fn *kustomization.Function, res *catalog.Resolution) error {
	if !fn.Standalone {
		return withHint(fmt.Errorf("%s stands inside of %s, where an annotation cannot be written", fn.GVK, fn.Layer), "move the functionConfig to a file of its own")
	}
	c := res.Version.Runtime.Container
	if c == nil {
		return withHint(fmt.Errorf("%s has no image: %w", fn.GVK, errors.ErrUnsupported), "kustomize and kpt fetch nothing but images; run the function with krmcat run")
	}
	text, err := kustomization.Annotate(c, res.Catalog.Origin)
	if err != nil {
		return err
	}
	if pins[fn.File] == nil {
		pins[fn.File] = map[int]string{}
	}
	if before, ok := pins[fn.File][fn.Document]; ok && before != text {
		return codeError{fmt.Errorf("%s is used by layers whose catalogs have different functions for it", fn.GVK), exitConflict}
	}
	pins[fn.File][fn.Document] = text
	return nil
}

// writePins changes all files or, if one of them cannot be, none. With check
// it only says which would be changed.
func writePins(e *env, pins map[string]map[int]string, check bool) error {
	type change struct {
		name string
		data []byte
	}
	var changes []change
	names := make([]string, 0, len(pins))
	for name := range pins {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		data, err := readInput(nil, name)
		if err != nil {
			return err
		}
		out, err := kustomization.Pin(name, data, pins[name])
		if err != nil {
			return explainInvalid(e, err)
		}
		if !bytes.Equal(out, data) {
			changes = append(changes, change{name, out})
		}
	}
	for _, c := range changes {
		if check {
			printf(e.Err, "krmcat: %s is not up to date\n", c.name)
			continue
		}
		if err := replaceFile(c.name, c.data); err != nil {
			return err
		}
		printf(e.Err, "krmcat: pinned %s\n", c.name)
	}
	if check && len(changes) > 0 {
		printf(e.Err, "krmcat: hint: run krmcat resolve with -w\n")
		return errSilent(exitDrift)
	}
	return nil
}
