package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"runtime/debug"
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/diff"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"github.com/krmcat/krmcat/catalog/source"
	"github.com/krmcat/krmcat/runtime"
	"github.com/krmcat/krmcat/runtime/containerfn"
	"github.com/krmcat/krmcat/runtime/pkgdir"
	"github.com/krmcat/krmcat/runtime/resourcelist"
)

type runOptions struct {
	Remote remoteFlags
	Exec   executionFlags
	Choice functionChoice
	Trust  trustFlags

	Input      string
	ConfigArgs []string // KEY=VALUE after --
	Output     string
	DryRun     bool
	ResultsDir string
	Pipeline   string
	Pattern    string
	Defer      bool
	Version    string
	Match      selectorFlags
	Exclude    selectorFlags
}

// functionChoice says which function to run.
type functionChoice struct {
	Function string
	Catalogs []string
	Trusted  []string
	Image    string
	Exec     string
	Starlark string
	Config   string
}

func (c *functionChoice) add(fs *pflag.FlagSet) {
	fs.StringVar(&c.Function, "function", "", "`location` of a function definition: a file, https, git or oci")
	fs.StringArrayVar(&c.Catalogs, "catalog", nil, "`location` of a catalog that has the function for the functionConfig; repeatable, searched in order (default: those in $KRMCAT_CATALOG)")
	fs.StringArrayVar(&c.Trusted, "trusted-catalog", nil, "`location` or digest of a catalog whose functions may be run; repeatable")
	fs.StringVar(&c.Image, "image", "", "container image `reference` of the function")
	fs.StringVar(&c.Exec, "exec", "", "`path` of an executable on this machine that is the function")
	fs.StringVar(&c.Starlark, "starlark", "", "`path` of a Starlark script on this machine that is the function")
	fs.StringVar(&c.Config, "fn-config", "", "`file` with the functionConfig")
}

// executionFlags say what functions may do and how much they may use.
type executionFlags struct {
	AllowExec, AllowNetwork, AllowStorage bool

	Env       []string
	Mounts    []string
	Timeout   time.Duration
	MaxOutput int64
	MaxMemory int64
	Pull      string
}

func (x *executionFlags) add(fs *pflag.FlagSet) {
	fs.BoolVar(&x.AllowExec, "allow-exec", false, "let functions run as programs of this machine, without a container")
	fs.BoolVar(&x.AllowNetwork, "allow-network", false, "let functions use the network if their catalog says that they need it")
	fs.BoolVar(&x.AllowStorage, "allow-storage-mount", false, "let functions see --mount folders if their catalog says that they need it")
	fs.StringArrayVar(&x.Env, "env", nil, "`NAME[=VALUE]`: a variable for the function; without a value, this process's; repeatable")
	fs.StringArrayVar(&x.Mounts, "mount", nil, "`SOURCE:TARGET[:rw]`: a folder for the container, read-only unless rw; repeatable")
	fs.DurationVar(&x.Timeout, "timeout", runtime.DefaultTimeout, "`time` after which a function is killed")
	fs.Int64Var(&x.MaxOutput, "max-output", runtime.DefaultMaxOutput, "`bytes` that a function may write")
	fs.Int64Var(&x.MaxMemory, "max-memory", runtime.DefaultMaxMemory, "`bytes` of memory that a function may use")
	fs.StringVar(&x.Pull, "image-pull-policy", string(containerfn.PullMissing), "when to pull images: missing, always or never")
}

// selectorFlags are one selector of kpt's.
type selectorFlags struct {
	Selector runtime.Selector
	prefix   string
}

func (s *selectorFlags) add(fs *pflag.FlagSet, prefix, verb string) {
	s.prefix = prefix
	fs.StringVar(&s.Selector.APIVersion, prefix+"-api-version", "", verb+" resources of this `apiVersion`")
	fs.StringVar(&s.Selector.Kind, prefix+"-kind", "", verb+" resources of this `kind`")
	fs.StringVar(&s.Selector.Name, prefix+"-name", "", verb+" resources of this `name`")
	fs.StringVar(&s.Selector.Namespace, prefix+"-namespace", "", verb+" resources in this `namespace`")
	fs.StringToStringVar(&s.Selector.Labels, prefix+"-labels", nil, verb+" resources with these `labels`")
	fs.StringToStringVar(&s.Selector.Annotations, prefix+"-annotations", nil, verb+" resources with these `annotations`")
}

func (s *selectorFlags) list() []runtime.Selector {
	if s.Selector.Empty() {
		return nil
	}
	return []runtime.Selector{s.Selector}
}

func newRunCmd(e *env) *cobra.Command {
	opts := &runOptions{}
	cmd := &cobra.Command{
		Use:     "run [DIR|-] [flags] [-- KEY=VALUE...]",
		Aliases: []string{"eval"},
		Short:   "Run a function on resources",
		Long: `Run a KRM function, or a pipeline of them, on the resources of a folder or of a
ResourceList on standard input.

The function comes from a definition (--function), from the first catalog that
has it for the apiVersion and kind of the functionConfig (--catalog), or is named
directly (--image, --exec, --starlark). A function from a catalog is run only if
the catalog is trusted (--trusted-catalog), what is fetched is verified against
its digest, and functions get no network, no files and no environment unless
they declare it and a flag allows it. Functions that are programs of this
machine need --allow-exec.

Under a trust policy (--trust-policy), the definition or the catalog, if it is in a
registry, and what is run of it have to satisfy the policy before anything runs, and
functions get no more than it grants. Only what --exec and --starlark name is run
as it is.

Everything that functions do not change keeps its text: comments, order of
fields, quotes. When anything fails, nothing is written.`,
		Example: `  # Run a function of a definition on the resources of this folder
  krmcat run . --function set-labels/function.yaml --fn-config labels.yaml --allow-exec

  # Show what it would change
  krmcat run . --function set-labels/function.yaml --fn-config labels.yaml --allow-exec --dry-run

  # Find the function in a catalog, by the apiVersion and kind in labels.yaml
  krmcat run . --catalog https://example.com/catalog.yaml \
    --trusted-catalog https://example.com/catalog.yaml --fn-config labels.yaml

  # Run a program of this machine; the functionConfig is a ConfigMap
  krmcat run . --exec ./my-function -- namespace=shop

  # As part of a pipe
  krmcat fn source . | krmcat run - --starlark fix.star | krmcat fn sink fixed`,
		RunE: func(cmd *cobra.Command, a []string) error {
			if n := cmd.ArgsLenAtDash(); n >= 0 {
				opts.ConfigArgs = a[n:]
				a = a[:n]
			}
			if len(a) > 1 {
				return usagef("run takes one folder, or - for standard input; KEY=VALUE pairs come after --")
			}
			opts.Input = "."
			if len(a) == 1 {
				opts.Input = a[0]
			}
			return runRun(cmd.Context(), e, opts)
		},
	}
	f := cmd.Flags()
	opts.Choice.add(f)
	opts.Exec.add(f)
	opts.Remote.add(f)
	opts.Trust.add(f)
	f.StringVar(&opts.Pipeline, "pipeline", "", "`file` that lists functions: mutators, then validators")
	f.StringVarP(&opts.Output, "output", "o", "", "where the result goes: stdout (a ResourceList), unwrap (the resources) or a new `DIR`; default: back into the folder, or stdout for -")
	f.BoolVar(&opts.DryRun, "dry-run", false, "show the changes as a diff and write nothing")
	f.StringVar(&opts.ResultsDir, "results-dir", "", "`folder` to write the results of the functions to")
	addPattern(f, &opts.Pattern)
	f.BoolVar(&opts.Defer, "defer-failure", false, "go on after a function that failed, and fail at the end")
	f.StringVar(&opts.Version, "resource-list-version", "v1", "`version` of the ResourceList to send: v1, v1beta1 or v1alpha1")
	opts.Match.add(f, "match", "show the function only")
	opts.Exclude.add(f, "exclude", "hide from the function")
	return cmd
}

// addPattern adds the flag that says where resources without a path go.
func addPattern(f *pflag.FlagSet, pattern *string) {
	f.StringVar(pattern, "filename-pattern", "", "`path` of new resources that name none: %n is the name, %k the kind, %s the namespace, all in lower case (default: "+pkgdir.DefaultPattern+")")
}

func checkPattern(pattern string) error {
	if pattern == "" {
		return nil
	}
	if err := pkgdir.CheckPattern(pattern); err != nil {
		return usagef("--filename-pattern: %v", err)
	}
	return nil
}

// beside is the pattern for new resources when the functionConfig is a file of
// the folder: they go beside it (CF-27).
func beside(input, config string) string {
	dir, err := filepath.Abs(input)
	if err != nil {
		return ""
	}
	file, err := filepath.Abs(config)
	if err != nil {
		return ""
	}
	rel, err := filepath.Rel(dir, filepath.Dir(file))
	if err != nil || !filepath.IsLocal(rel) {
		return ""
	}
	pattern := path.Join(filepath.ToSlash(rel), pkgdir.DefaultPattern)
	if pkgdir.CheckPattern(pattern) != nil {
		return ""
	}
	return pattern
}

func runRun(ctx context.Context, e *env, opts *runOptions) error {
	apiVersion := "config.kubernetes.io/" + opts.Version
	if !resourcelist.KnownAPIVersion(apiVersion) {
		return usagef("--resource-list-version %s: not one of v1, v1beta1, v1alpha1", opts.Version)
	}
	toDir := opts.Output != "" && opts.Output != "stdout" && opts.Output != "unwrap"
	if toDir {
		if _, err := os.Lstat(opts.Output); err == nil {
			return codeError{withHint(fmt.Errorf("-o %s: it exists already", opts.Output), "name a folder that is not there yet, or leave -o out to change the input"), exitConflict}
		}
	}
	if opts.DryRun && toDir {
		return usagef("--dry-run writes nothing: leave out -o %s", opts.Output)
	}
	if err := checkPattern(opts.Pattern); err != nil {
		return err
	}
	// Parsing makes much that is soon forgotten; a command that ends after
	// one run is better off collecting it less often.
	debug.SetGCPercent(400)
	fns, err := newFunctions(e, &opts.Remote, &opts.Exec)
	if err != nil {
		return err
	}
	if fns.trust, err = opts.Trust.gate(e, fns.client); err != nil {
		return err
	}
	var dir *pkgdir.Dir
	var list *resourcelist.List
	if opts.Input == "-" {
		// It may hold the functionConfig, which says what the function is.
		if dir, list, err = readResources(ctx, e, opts.Input); err != nil {
			return err
		}
		defer dir.Close()
		fns.given = list.FunctionConfig
	}
	var steps []runtime.Step
	if opts.Pipeline != "" {
		if opts.Choice.named() || opts.Choice.Config != "" || len(opts.ConfigArgs) > 0 {
			return usagef("--pipeline names its functions itself: leave out --function, --image, --exec, --starlark, --fn-config and KEY=VALUE")
		}
		steps, err = fns.pipeline(ctx, opts.Pipeline, &opts.Choice)
	} else {
		var step runtime.Step
		step, err = fns.choose(ctx, &opts.Choice, opts.ConfigArgs)
		steps = []runtime.Step{step}
	}
	if err != nil {
		return explainRun(err)
	}
	if opts.Input != "-" {
		// A container starts while the folder is read.
		if s, ok := firstFunction(steps).(runtime.Starter); ok {
			defer s.Start(ctx, steps[0].Config)()
		}
		if dir, list, err = readResources(ctx, e, opts.Input); err != nil {
			return err
		}
		defer dir.Close()
	}
	dir.FilenamePattern = opts.Pattern
	if opts.Pattern == "" && opts.Input != "-" && opts.Choice.Config != "" && opts.Choice.Config != "-" {
		dir.FilenamePattern = beside(opts.Input, opts.Choice.Config)
	}
	for i := range steps {
		steps[i].Include = append(steps[i].Include, opts.Match.list()...)
		steps[i].Exclude = append(steps[i].Exclude, opts.Exclude.list()...)
	}
	p := &runtime.Pipeline{Steps: steps, DeferFailure: opts.Defer, APIVersion: apiVersion, Stderr: e.Err}
	out, err := p.Run(ctx, list.Items)
	if opts.ResultsDir != "" {
		if werr := writeResults(opts.ResultsDir, out); werr != nil {
			return errors.Join(explainRun(err), werr)
		}
	}
	showResults(e, out)
	if err != nil {
		return explainRun(err)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return explainRun(writeOutput(ctx, e, opts, dir, list, out.Items))
}

// firstFunction is what runs first; nil if nothing does.
func firstFunction(steps []runtime.Step) runtime.Function {
	if len(steps) == 0 {
		return nil
	}
	return steps[0].Function
}

// readResources reads a folder, or a ResourceList or resources from standard
// input.
func readResources(ctx context.Context, e *env, input string) (*pkgdir.Dir, *resourcelist.List, error) {
	if input != "-" {
		dir, err := pkgdir.Read(ctx, input)
		if err != nil {
			return nil, nil, fmt.Errorf("reading resources: %w", err)
		}
		for _, s := range dir.Skipped {
			printf(e.Err, "krmcat: notice: %s is left alone: %s\n", s.Path, s.Reason)
		}
		return dir, &resourcelist.List{Items: dir.Items}, nil
	}
	data, err := io.ReadAll(io.LimitReader(e.In, pkgdir.MaxFile*4+1))
	if err != nil {
		return nil, nil, fmt.Errorf("reading standard input: %w", err)
	}
	if len(data) > pkgdir.MaxFile*4 {
		return nil, nil, fmt.Errorf("standard input: more than %d bytes", pkgdir.MaxFile*4)
	}
	list, err := resourcelist.Read(data, resourcelist.ReadOptions{})
	if errors.Is(err, resourcelist.ErrNotResourceList) {
		// Resources as such are welcome too.
		if items, derr := pkgdir.Documents(data); derr == nil {
			return pkgdir.Memory(), &resourcelist.List{Items: items, APIVersion: ""}, nil
		}
	}
	if err != nil {
		return nil, nil, withHint(fmt.Errorf("standard input: %w", err), "give a ResourceList, as krmcat fn source prints, or resources")
	}
	return pkgdir.Memory(), list, nil
}

func writeOutput(ctx context.Context, e *env, opts *runOptions, dir *pkgdir.Dir, list *resourcelist.List, items []*resourcelist.Item) error {
	switch {
	case opts.DryRun && opts.Input != "-":
		changes, err := dir.Changes(items)
		if err != nil {
			return err
		}
		for _, c := range changes {
			_, err := e.Out.Write(unifiedDiff(c))
			if err != nil {
				return err
			}
		}
		return nil
	case opts.DryRun:
		before, err := dir.Texts(list.Items)
		if err != nil {
			return err
		}
		after, err := dir.Texts(items)
		if err != nil {
			return err
		}
		_, err = e.Out.Write(diff.Diff("before", joinDocuments(before), "after", joinDocuments(after)))
		return err
	case opts.Output == "stdout" || opts.Output == "" && opts.Input == "-":
		return writeList(e.Out, opts.Version, list, items)
	case opts.Output == "unwrap":
		texts, err := dir.Texts(items)
		if err != nil {
			return err
		}
		_, err = e.Out.Write(joinDocuments(texts))
		return err
	case opts.Output != "":
		files, err := dir.Files(items)
		if err != nil {
			return err
		}
		return pkgdir.Create(ctx, opts.Output, files)
	}
	changes, err := dir.Changes(items)
	if err != nil {
		return err
	}
	if err := dir.Apply(ctx, changes); err != nil {
		return fmt.Errorf("writing %s: %w", opts.Input, err)
	}
	showChanges(e, changes)
	return nil
}

// showChanges says what was done to which file.
func showChanges(e *env, changes []pkgdir.Change) {
	for _, c := range changes {
		what := "changed"
		switch {
		case c.Before == nil:
			what = "created"
		case c.After == nil:
			what = "removed"
		}
		printf(e.Err, "%s %s\n", what, c.Path)
	}
}

// unifiedDiff shows a change as diff and patch have it.
func unifiedDiff(c pkgdir.Change) []byte {
	before, after := "a/"+c.Path, "b/"+c.Path
	if c.Before == nil {
		before = "/dev/null"
	}
	if c.After == nil {
		after = "/dev/null"
	}
	return diff.Diff(before, c.Before, after, c.After)
}

// writeList writes a ResourceList. What functions did not change is restored
// to its text; the configuration of the input, if any, is passed on.
func writeList(w io.Writer, version string, list *resourcelist.List, items []*resourcelist.Item) error {
	restored := make([]*resourcelist.Item, len(items))
	for i, it := range items {
		r, err := it.Restore()
		if err != nil {
			return fmt.Errorf("%s: %w", it.Meta().ID(), err)
		}
		restored[i] = r
	}
	text, err := resourcelist.Compose(&resourcelist.List{APIVersion: "config.kubernetes.io/" + version, Items: restored, FunctionConfig: list.FunctionConfig})
	if err != nil {
		return err
	}
	_, err = w.Write(text)
	return err
}

func joinDocuments(docs [][]byte) []byte {
	var b bytes.Buffer
	for i, d := range docs {
		if i > 0 {
			b.WriteString("---\n")
		}
		b.Write(d)
		if len(d) > 0 && d[len(d)-1] != '\n' {
			b.WriteByte('\n')
		}
	}
	return b.Bytes()
}

// showResults prints what functions had to say about resources.
func showResults(e *env, out *runtime.Outcome) {
	for _, s := range out.Steps {
		for _, r := range s.Results {
			printf(e.Err, "%s: %s\n", s.Name, r.Text())
		}
	}
}

// functionResult and functionResultList are the file that kpt writes, which
// other tools read.
type functionResult struct {
	Name     string                `yaml:"name,omitempty" json:"name,omitempty"`
	ExitCode int                   `yaml:"exitCode" json:"exitCode"`
	Stderr   string                `yaml:"stderr,omitempty" json:"stderr,omitempty"`
	Results  []resourcelist.Result `yaml:"results,omitempty" json:"results,omitempty"`
}

// writeResults writes a file for each function and results.yaml with all
// (KG-19).
func writeResults(dir string, out *runtime.Outcome) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("writing results: %w", err)
	}
	all := struct {
		APIVersion string            `yaml:"apiVersion"`
		Kind       string            `yaml:"kind"`
		Metadata   map[string]string `yaml:"metadata"`
		ExitCode   int               `yaml:"exitCode"`
		Items      []functionResult  `yaml:"items"`
	}{APIVersion: "kpt.dev/v1", Kind: "FunctionResultList", Metadata: map[string]string{"name": "fnresults"}}
	for i, s := range out.Steps {
		r := functionResult{Name: s.Name, ExitCode: s.ExitCode, Stderr: s.Stderr, Results: s.Results}
		if s.Err != nil {
			if r.ExitCode == 0 {
				r.ExitCode = 1
			}
			all.ExitCode = 1
		}
		all.Items = append(all.Items, r)
		if len(s.Results) == 0 {
			continue
		}
		text, err := resourcelist.MarshalResults(s.Results)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("results-%d.yaml", i)), text, 0o644); err != nil {
			return fmt.Errorf("writing results: %w", err)
		}
	}
	var n yaml.Node
	err := n.Encode(all)
	var text []byte
	if err == nil {
		text, err = resourcelist.Encode(&n, resourcelist.Style{})
	}
	if err != nil {
		return fmt.Errorf("writing results: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "results.yaml"), text, 0o644); err != nil {
		return fmt.Errorf("writing results: %w", err)
	}
	return nil
}

// explainRun adds hints and exit codes to the errors of running functions.
func explainRun(err error) error {
	switch {
	case err == nil:
		return nil
	case isType[hintError](err), isType[codeError](err), isType[usageError](err):
		return err
	}
	if g, ok := errors.AsType[*runtime.GrantError](err); ok {
		flag := map[string]string{"exec": "--allow-exec", "network": "--allow-network", "storage mount": "--allow-storage-mount"}[g.Needs]
		return withHint(err, "allow it with %s if you trust the function", flag)
	}
	switch {
	case errors.Is(err, runtime.ErrTimeout):
		return codeError{withHint(err, "give it more time with --timeout"), exitInvalid}
	case errors.Is(err, runtime.ErrOutputLimit):
		return codeError{withHint(err, "let it write more with --max-output"), exitInvalid}
	case errors.Is(err, runtime.ErrOutput):
		return codeError{withHint(err, "the function must write one ResourceList to standard output and everything else to standard error; nothing was written"), exitInvalid}
	case errors.Is(err, runtime.ErrIntegrity), errors.Is(err, source.ErrIntegrity):
		return codeError{withHint(err, "what was published has been changed, or the digest in the document is of another file"), exitIntegrity}
	case errors.Is(err, runtime.ErrUnavailable) && strings.Contains(err.Error(), "no container engine"):
		return withHint(err, "install docker, podman or nerdctl, or name one with KRM_FN_RUNTIME")
	case errors.Is(err, pkgdir.ErrCollision):
		return codeError{err, exitConflict}
	}
	return err
}
