package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/krmcat/krmcat/catalog"
	"github.com/krmcat/krmcat/internal/lazyregexp"
	"github.com/krmcat/krmcat/runtime/merge"
	"github.com/krmcat/krmcat/runtime/pkgdir"
	"github.com/krmcat/krmcat/runtime/resourcelist"
)

func newFnCmd(e *env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "fn",
		Short: "Read, write and wrap the input and output of functions",
		Long: `Commands that stand at the ends of a pipe of functions, each of which reads a
ResourceList and writes one.`,
		Example: `  # The same as krmcat run shop --starlark fix.star, as a pipe
  krmcat fn source shop | krmcat run - --starlark fix.star | krmcat fn sink shop`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newFnSourceCmd(e), newFnSinkCmd(e), newFnWrapCmd(e), newFnDocCmd(e))
	return cmd
}

type fnSourceOptions struct {
	Dirs    []string
	Config  string
	Version string
}

func newFnSourceCmd(e *env) *cobra.Command {
	opts := &fnSourceOptions{}
	cmd := &cobra.Command{
		Use:   "source [DIR]",
		Short: "Print the resources of a folder as a ResourceList",
		Example: `  # As input for a function in a pipe
  krmcat fn source shop --fn-config labels.yaml | ./my-function`,
		Args: args(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error {
			opts.Dirs = a
			return runFnSource(cmd.Context(), e, opts)
		},
	}
	f := cmd.Flags()
	f.StringVar(&opts.Config, "fn-config", "", "`file` with the functionConfig to put into the list")
	f.StringVar(&opts.Version, "resource-list-version", "v1", "`version` of the ResourceList: v1, v1beta1 or v1alpha1")
	return cmd
}

func runFnSource(ctx context.Context, e *env, opts *fnSourceOptions) error {
	v := "config.kubernetes.io/" + opts.Version
	if !resourcelist.KnownAPIVersion(v) {
		return usagef("--resource-list-version %s: not one of v1, v1beta1, v1alpha1", opts.Version)
	}
	input := "."
	if len(opts.Dirs) == 1 {
		input = opts.Dirs[0]
	}
	dir, list, err := readResources(ctx, e, input)
	if err != nil {
		return err
	}
	defer dir.Close()
	list.APIVersion, list.Results = v, nil
	if opts.Config != "" {
		fns := &functions{e: e}
		if list.FunctionConfig, err = fns.config(&functionChoice{Config: opts.Config}, nil); err != nil {
			return err
		}
	}
	text, err := resourcelist.Compose(list)
	if err != nil {
		return err
	}
	_, err = e.Out.Write(text)
	return err
}

type fnSinkOptions struct {
	Dir     string
	Pattern string
	Prune   bool
	DryRun  bool
}

func newFnSinkCmd(e *env) *cobra.Command {
	opts := &fnSinkOptions{}
	cmd := &cobra.Command{
		Use:   "sink DIR",
		Short: "Write a ResourceList from standard input to a folder",
		Long: `Write the resources of a ResourceList to the files that their path annotations
name. In a folder that exists, resources that are there already keep the text of
what is not changed, and those that the list does not have stay, unless --prune
removes them. Resources without a path go where --filename-pattern says. The
orchestrator's annotations are not written.`,
		Example: `  # The other end of krmcat fn source
  krmcat fn source shop | ./my-function | krmcat fn sink shop`,
		Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error {
			opts.Dir = a[0]
			return runFnSink(cmd.Context(), e, opts)
		},
	}
	f := cmd.Flags()
	addPattern(f, &opts.Pattern)
	f.BoolVar(&opts.Prune, "prune", false, "remove resources of the folder that the list does not have")
	f.BoolVar(&opts.DryRun, "dry-run", false, "show the changes as a diff and write nothing")
	return cmd
}

func runFnSink(ctx context.Context, e *env, opts *fnSinkOptions) error {
	if err := checkPattern(opts.Pattern); err != nil {
		return err
	}
	data, err := io.ReadAll(io.LimitReader(e.In, pkgdir.MaxFile*4+1))
	if err != nil {
		return fmt.Errorf("reading standard input: %w", err)
	}
	if len(data) > pkgdir.MaxFile*4 {
		return fmt.Errorf("standard input: more than %d bytes", pkgdir.MaxFile*4)
	}
	_, err = os.Stat(opts.Dir)
	if errors.Is(err, fs.ErrNotExist) && !opts.DryRun {
		list, err := resourcelist.Read(data, resourcelist.ReadOptions{})
		if err != nil {
			return codeError{fmt.Errorf("standard input: %w", err), exitInvalid}
		}
		to := pkgdir.Memory()
		to.FilenamePattern = opts.Pattern
		files, err := to.Files(list.Items)
		if err == nil {
			err = pkgdir.Create(ctx, opts.Dir, files)
		}
		if err != nil {
			return explainRun(fmt.Errorf("writing %s: %w", opts.Dir, err))
		}
		return nil
	}
	dir, err := pkgdir.Read(ctx, opts.Dir)
	if err != nil {
		return fmt.Errorf("reading %s: %w", opts.Dir, err)
	}
	defer dir.Close()
	dir.FilenamePattern = opts.Pattern
	list, err := resourcelist.Read(data, resourcelist.ReadOptions{Before: dir.Items, FromFunction: true})
	if err != nil {
		return codeError{fmt.Errorf("standard input: %w", err), exitInvalid}
	}
	items := list.Items
	if !opts.Prune {
		here := map[*resourcelist.Item]bool{}
		for _, it := range items {
			here[it.Origin()] = true
		}
		for _, it := range dir.Items {
			if !here[it] {
				items = append(items, it)
			}
		}
	}
	changes, err := dir.Changes(items)
	if err != nil {
		return explainRun(err)
	}
	if opts.DryRun {
		for _, c := range changes {
			if _, err := e.Out.Write(unifiedDiff(c)); err != nil {
				return err
			}
		}
		return nil
	}
	if err := dir.Apply(ctx, changes); err != nil {
		return explainRun(fmt.Errorf("writing %s: %w", opts.Dir, err))
	}
	showChanges(e, changes)
	return nil
}

type fnWrapOptions struct {
	Command []string
	Pattern string
}

func newFnWrapCmd(e *env) *cobra.Command {
	opts := &fnWrapOptions{}
	cmd := &cobra.Command{
		Use:   "wrap -- COMMAND [ARG...]",
		Short: "Make a function of a command that prints resources",
		Long: `Read a ResourceList from standard input, run a command that prints resources as
YAML, merge them into the items and print the ResourceList.

The command finds the fields of the functionConfig as environment variables with
names in upper case: NAME is metadata.name, NAMESPACE metadata.namespace, and the
fields of spec and data follow, such as REPLICAS for spec.replicas and
IMAGE_TAG for spec.image.tag. A variable that is set already is not changed.
WRAPPED=true tells the command that it is wrapped.

Resources that are among the items, by type, namespace and name, are merged field
by field, so that what a user has added to them stays. New ones get the path
config/NAME_KIND.yaml unless they have one. The exit code is the command's.`,
		Example: `  #!/bin/sh
  # A function that generates a Service; it wraps itself.
  if [ -z "$WRAPPED" ]; then exec krmcat fn wrap -- "$0"; fi
  cat <<END
  apiVersion: v1
  kind: Service
  metadata:
    name: ${NAME}
  END`,
		Args: args(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error {
			opts.Command = a
			return runFnWrap(cmd.Context(), e, opts)
		},
	}
	cmd.Flags().StringVar(&opts.Pattern, "filename-pattern", wrapPattern, "`path` of new resources that name none: %n is the name, %k the kind, %s the namespace, all in lower case")
	return cmd
}

// wrapPattern is where what a wrapped command makes goes (CF-22, in lower case
// as CF-27 has it).
const wrapPattern = "config/" + pkgdir.DefaultPattern

func runFnWrap(ctx context.Context, e *env, opts *fnWrapOptions) error {
	if err := checkPattern(opts.Pattern); err != nil {
		return err
	}
	data, err := io.ReadAll(io.LimitReader(e.In, pkgdir.MaxFile*4+1))
	if err != nil {
		return fmt.Errorf("reading standard input: %w", err)
	}
	list, err := resourcelist.Read(data, resourcelist.ReadOptions{})
	if err != nil {
		return codeError{fmt.Errorf("standard input: %w", err), exitInvalid}
	}
	vars, err := configVariables(list.FunctionConfig)
	if err != nil {
		return codeError{fmt.Errorf("functionConfig: %w", err), exitInvalid}
	}
	environ := []string{"WRAPPED=true"}
	for _, name := range slices.Sorted(maps.Keys(vars)) {
		// A field called path must not become PATH.
		if _, set := e.LookupEnv(name); set || strings.HasPrefix(name, "LD_") || name == "IFS" || name == "ENV" || name == "BASH_ENV" {
			printf(e.Err, "krmcat: notice: the functionConfig does not set the variable %s\n", name)
			continue
		}
		environ = append(environ, name+"="+vars[name])
	}
	// wrap runs inside of a function: what is left of the environment there
	// is the function's own.
	cmd := exec.CommandContext(ctx, opts.Command[0], opts.Command[1:]...)
	cmd.Env = append(os.Environ(), environ...)
	cmd.Stdin = bytes.NewReader(data)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, e.Err
	if err := cmd.Run(); err != nil {
		if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() > 0 {
			return errSilent(exit.ExitCode())
		}
		return fmt.Errorf("running %s: %w", opts.Command[0], err)
	}
	made, err := pkgdir.Documents(out.Bytes())
	if err != nil {
		return codeError{fmt.Errorf("output of %s: %w", opts.Command[0], err), exitInvalid}
	}
	items, err := mergeGenerated(list.Items, made, opts.Pattern)
	if err != nil {
		return codeError{err, exitInvalid}
	}
	text, err := resourcelist.Compose(&resourcelist.List{APIVersion: list.APIVersion, Items: items, FunctionConfig: list.FunctionConfig})
	if err != nil {
		return err
	}
	_, err = e.Out.Write(text)
	return err
}

// mergeGenerated merges what a generator printed into the items (CF-21): the
// generator's fields win, everything else stays (CF-10).
func mergeGenerated(items, made []*resourcelist.Item, pattern string) ([]*resourcelist.Item, error) {
	at := map[string]int{}
	out := slices.Clone(items)
	for i, it := range items {
		at[identity(it)] = i
	}
	for _, g := range made {
		if g.Meta().Name == "" {
			return nil, fmt.Errorf("a generated %s has no metadata.name", g.Meta().Kind)
		}
		i, ok := at[identity(g)]
		if !ok {
			placed, err := withDefaultPath(g, pattern)
			if err != nil {
				return nil, err
			}
			at[identity(g)] = len(out)
			out = append(out, placed)
			continue
		}
		src, err := g.Node()
		if err != nil {
			return nil, err
		}
		dest, err := out[i].Node()
		if err != nil {
			return nil, err
		}
		merged, err := merge.Merge2(src, dest)
		if err == nil && merged != nil {
			out[i], err = out[i].Update(merged)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", g.Meta().ID(), err)
		}
	}
	return out, nil
}

// withDefaultPath gives a new resource a path (CF-22).
func withDefaultPath(it *resourcelist.Item, pattern string) (*resourcelist.Item, error) {
	m := it.Meta()
	if m.Path != "" {
		return it, nil
	}
	p := pkgdir.ExpandPattern(pattern, m)
	if err := resourcelist.CheckPath(p); err != nil {
		return nil, fmt.Errorf("--filename-pattern %s: %w", pattern, err)
	}
	return it.WithAnnotation(resourcelist.PathAnnotation, p)
}

var notInName = lazyregexp.New(`[^A-Z0-9_]`)

// configVariables are the fields of a functionConfig as variables (CF-20).
func configVariables(config []byte) (map[string]string, error) {
	vars := map[string]string{}
	if len(config) == 0 {
		return vars, nil
	}
	var d yaml.Node
	if err := yaml.Unmarshal(config, &d); err != nil {
		return nil, err
	}
	if len(d.Content) == 0 {
		return vars, nil
	}
	root := d.Content[0]
	var add func(prefix string, n *yaml.Node, depth int)
	add = func(prefix string, n *yaml.Node, depth int) {
		if n == nil || n.Kind != yaml.MappingNode || depth > 20 {
			return
		}
		for i := 0; i+1 < len(n.Content); i += 2 {
			name := prefix + notInName.ReplaceAllString(strings.ToUpper(n.Content[i].Value), "_")
			switch v := n.Content[i+1]; v.Kind {
			case yaml.ScalarNode:
				if name != "" && v.ShortTag() != "!!null" && !strings.Contains(v.Value, "\x00") {
					vars[name] = v.Value
				}
			case yaml.MappingNode:
				add(name+"_", v, depth+1)
			}
		}
	}
	add("", resourcelist.Get(root, "data"), 0)
	add("", resourcelist.Get(root, "spec"), 0)
	md := resourcelist.Get(root, "metadata")
	for field, name := range map[string]string{"name": "NAME", "namespace": "NAMESPACE"} {
		if v := resourcelist.Get(md, field); v != nil && v.Kind == yaml.ScalarNode {
			vars[name] = v.Value
		}
	}
	return vars, nil
}

type fnDocOptions struct {
	Remote remoteFlags
	Choice functionChoice
	Usage  bool
}

func newFnDocCmd(e *env) *cobra.Command {
	opts := &fnDocOptions{}
	cmd := &cobra.Command{
		Use:   "doc LOCATION",
		Short: "Print the documentation of a function",
		Long: `Print what a function definition says about a function: what it does, where it
runs, which permissions it needs, the fields of its functionConfig, and its README
if that can be fetched.`,
		Example: `  # A definition on disk or in a registry
  krmcat fn doc set-labels/function.yaml
  krmcat fn doc oci://localhost:8080/acme/set-labels:v1.0.0`,
		Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error {
			opts.Choice.Function = a[0]
			return runFnDoc(cmd.Context(), e, opts)
		},
	}
	opts.Remote.add(cmd.Flags())
	cmd.Flags().BoolVar(&opts.Usage, "usage", true, "fetch and print the README")
	return cmd
}

func runFnDoc(ctx context.Context, e *env, opts *fnDocOptions) error {
	fns, err := newFunctions(e, &opts.Remote, &executionFlags{Pull: "missing"})
	if err != nil {
		return err
	}
	loc, err := catalog.ParseLocation(opts.Choice.Function)
	if err != nil {
		return usageError{err}
	}
	doc, err := catalog.Load(ctx, fns.source, loc, consumeOptions)
	if err != nil {
		return fmt.Errorf("reading the function: %w", err)
	}
	for r := range doc.AsCatalog().Resolutions() {
		printFunction(e.Out, r)
		if !opts.Usage || r.Version.Usage == "" {
			continue
		}
		at, err := loc.Resolve(r.Version.Usage)
		var text []byte
		if err == nil {
			text, _, err = catalog.Fetch(ctx, fns.source, at)
		}
		if err != nil {
			printf(e.Err, "krmcat: notice: README %s: %v\n", r.Version.Usage, err)
			continue
		}
		printf(e.Out, "\n%s\n", bytes.TrimSpace(text))
	}
	return nil
}

func printFunction(w io.Writer, r *catalog.Resolution) {
	d, v := r.Definition, r.Version
	printf(w, "%s\n", r.GVK())
	if d.Description != "" {
		printf(w, "\n%s\n", strings.TrimSpace(d.Description))
	}
	printf(w, "\n")
	tw := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	row := func(name, value string) {
		if value != "" {
			printf(tw, "%s\t%s\n", name, value)
		}
	}
	row("publisher", d.Publisher)
	row("license", v.License)
	row("home", d.Home)
	row("tags", strings.Join(d.Tags, ", "))
	if v.Idempotent {
		row("idempotent", "yes")
	}
	if c := v.Runtime.Container; c != nil {
		row("container", c.Image)
		var needs []string
		if c.RequireNetwork {
			needs = append(needs, "network")
		}
		if c.RequireStorageMount {
			needs = append(needs, "storage mount")
		}
		row("needs", strings.Join(needs, ", "))
	}
	if x := v.Runtime.Exec; x != nil {
		var ps []string
		for _, p := range x.Platforms {
			ps = append(ps, p.OS+"/"+p.Arch)
		}
		row("exec", strings.Join(ps, ", "))
	}
	if s := v.Runtime.Starlark; s != nil {
		row("starlark", s.URI)
	}
	row("usage", v.Usage)
	row("examples", strings.Join(v.Examples, ", "))
	_ = tw.Flush()
	var schema map[string]any
	if json.Unmarshal(v.Schema, &schema) != nil {
		return
	}
	var fields [][3]string
	schemaFields("", schema, 0, &fields)
	if len(fields) == 0 {
		return
	}
	printf(w, "\nFields of the functionConfig:\n")
	tw = tabwriter.NewWriter(w, 2, 4, 2, ' ', 0)
	for _, f := range fields {
		printf(tw, "  %s\t%s\t%s\n", f[0], f[1], f[2])
	}
	_ = tw.Flush()
}

// schemaFields lists the properties of a schema as path, type and text.
func schemaFields(prefix string, schema map[string]any, depth int, out *[][3]string) {
	props, _ := schema["properties"].(map[string]any)
	required, _ := schema["required"].([]any)
	for _, name := range slices.Sorted(maps.Keys(props)) {
		p, _ := props[name].(map[string]any)
		if p == nil || prefix == "" && (name == "apiVersion" || name == "kind" || name == "metadata") {
			continue
		}
		path := prefix + name
		typ, _ := p["type"].(string)
		if slices.Contains(required, any(name)) {
			typ += ", required"
		}
		text, _ := p["description"].(string)
		*out = append(*out, [3]string{path, typ, strings.Join(strings.Fields(text), " ")})
		if depth > 10 {
			continue
		}
		schemaFields(path+".", p, depth+1, out)
		if items, ok := p["items"].(map[string]any); ok {
			schemaFields(path+"[].", items, depth+1, out)
		}
	}
}
