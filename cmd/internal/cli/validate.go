package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	goruntime "runtime"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"golang.org/x/term"

	"github.com/krmcat/krmcat/cmd/internal/display"
	"github.com/krmcat/krmcat/internal/version"
	"github.com/krmcat/krmcat/schema"
	"github.com/krmcat/krmcat/schema/openapi"
)

type validateOptions struct {
	Args      []string
	Level     string
	Strict    bool
	Published bool
	OnlyKEP   bool
	Output    string
	Max       int
	Quiet     bool

	Configs  []string
	Catalogs catalogFlags
	Remote   remoteFlags
}

func newValidateCmd(e *env) *cobra.Command {
	var o validateOptions
	cmd := &cobra.Command{
		Use:   "validate [FILE|DIR|GLOB|-...]",
		Short: "Check definitions, catalogs, ResourceLists and functionConfigs",
		Long: `Check KRMFunctionDefinition, KRMFunctionCatalog and ResourceList documents in
files, directories or standard input, and report everything that is wrong with
its place and what to do about it.

At level publish every deviation from KEP-2906 is an error; at level consume a
deviation that leaves one sensible reading is a warning. The rules are described
in docs/rules.

A document that names local files as its runtimes is read as its author's
source: krmcat publish uploads these files and fills in their locations and
digests. With --published, local paths are errors.

With --config, functionConfigs are checked against the schemas of their
functions, which are looked up by apiVersion and kind in the catalogs that
--catalog names; a definition is a catalog of one. The verdicts are those of a
Kubernetes API server for a custom resource. Nothing is run, and no catalog has
to be trusted for it.

In directories, files that end in .yaml, .yml or .json are read, and documents
of other kinds are passed over with a notice. Exit code 3 means that errors were
found, 5 that a file is not there.`,
		Example: `  krmcat validate function.yaml
  krmcat validate --level consume catalog.yaml
  krmcat validate --config set-labels.yaml --catalog catalog.yaml
  krmcat validate -o sarif ./functions > krmcat.sarif
  curl -s https://example.com/catalog.yaml | krmcat validate -`,
		RunE: func(cmd *cobra.Command, a []string) error {
			o.Args = a
			if len(a) == 0 && len(o.Configs) == 0 {
				return usagef("name files to check, or - for standard input")
			}
			return runValidate(cmd.Context(), e, o)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.Level, "level", "publish", "how strictly to read: publish or consume")
	f.BoolVar(&o.Strict, "strict-fields", false, "unknown fields are errors")
	f.BoolVar(&o.Published, "published", false, "refuse local paths, as in documents for others")
	f.BoolVar(&o.OnlyKEP, "only-kep", false, "refuse starlark runtimes and licenses that only krmcat accepts")
	f.IntVar(&o.Max, "max-findings", 100, "show at most this `number` of findings as text; 0 shows all")
	f.BoolVarP(&o.Quiet, "quiet", "q", false, "no summary")
	f.StringArrayVar(&o.Configs, "config", nil, "functionConfig `file` to check against the schema of its function; repeatable, - for standard input")
	f.StringArrayVar(&o.Catalogs.Catalogs, "catalog", nil, "`location` of a catalog or definition with the functions of --config; repeatable, searched in order (default: those in $KRMCAT_CATALOG)")
	o.Remote.add(f)
	addOutput(cmd, &o.Output, display.Formats...)
	must(cmd.RegisterFlagCompletionFunc("level", cobra.FixedCompletions([]cobra.Completion{"publish", "consume"}, cobra.ShellCompDirectiveNoFileComp)))
	return cmd
}

// parseLevel reads the value of a flag --level.
func parseLevel(s string) (schema.Level, error) {
	switch s {
	case "publish":
		return schema.Publish, nil
	case "consume":
		return schema.Consume, nil
	}
	return 0, usagef("--level %s: not publish or consume", s)
}

func runValidate(ctx context.Context, e *env, o validateOptions) error {
	level, err := parseLevel(o.Level)
	if err != nil {
		return err
	}
	if o.Max < 0 {
		return usagef("--max-findings must not be negative")
	}
	inputs, err := findInputs(o.Args)
	if err != nil {
		return err
	}
	if len(inputs) >= manyFiles {
		// What a file takes is garbage right after it. Collecting less often
		// saves a fifth of the time for some ten megabytes.
		defer debug.SetGCPercent(debug.SetGCPercent(400))
	}
	v := &schema.Validator{Level: level, StrictFields: o.Strict, LocalSource: !o.Published, OnlyKEP: o.OnlyKEP, CheckRules: openapi.CheckRules}
	report := &display.Report{Version: version.String(), Color: wantColor(e), Max: o.Max}
	found := make([]schema.Diagnostics, len(inputs))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(goruntime.GOMAXPROCS(0))
	for i, in := range inputs {
		report.Files = append(report.Files, in.name)
		g.Go(func() error {
			data, err := in.read(e.In)
			if err != nil {
				return err
			}
			local := *v
			local.SkipOthers = in.walked
			found[i], err = local.Validate(gctx, in.name, data)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	configs, err := validateConfigs(ctx, e, o, report)
	if err != nil {
		return err
	}
	for _, ds := range append(found, configs) {
		report.Diagnostics = append(report.Diagnostics, ds...)
	}
	if err := report.Write(e.Out, o.Output); err != nil {
		return err
	}
	if !o.Quiet && o.Output == "text" {
		printf(e.Err, "krmcat: %s\n", report.Summary())
	}
	if errors, _, _ := report.Counts(); errors > 0 {
		return errSilent(exitInvalid)
	}
	return nil
}

// validateConfigs checks the files of --config.
func validateConfigs(ctx context.Context, e *env, o validateOptions, report *display.Report) (schema.Diagnostics, error) {
	if len(o.Configs) == 0 {
		return nil, nil
	}
	src, _, err := o.Remote.source(e)
	if err != nil {
		return nil, err
	}
	list, err := o.Catalogs.list(e, src)
	if err != nil {
		return nil, err
	}
	if len(list.Entries) == 0 {
		return nil, usagef("--config: say with --catalog where the functions are")
	}
	inputs, err := findInputs(o.Configs)
	if err != nil {
		return nil, err
	}
	c := &configChecker{list: list, compiled: map[string]compiledSchema{}}
	var found schema.Diagnostics
	for _, in := range inputs {
		report.Files = append(report.Files, in.name)
		data, err := in.read(e.In)
		if err != nil {
			return nil, err
		}
		ds, err := c.check(ctx, in.name, data)
		if err != nil {
			return nil, explainInvalid(e, err)
		}
		found = append(found, ds...)
	}
	return found, nil
}

// manyFiles is from how many files on speed is worth some memory.
const manyFiles = 100

// input is a file to check.
type input struct {
	name   string // as in diagnostics
	path   string // empty for standard input
	walked bool   // found in a directory, not named by the user
}

// maxInput is read of a file at most: one byte more than is accepted, so that
// the reader of the document can say so.
const maxInput = 64<<20 + 1

func (in input) read(stdin io.Reader) ([]byte, error) {
	r := stdin
	var b bytes.Buffer
	if in.path != "" {
		f, err := os.Open(in.path)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		r = f
		// Growing a buffer step by step would double the memory that a large
		// catalog takes.
		if info, err := f.Stat(); err == nil && info.Mode().IsRegular() {
			b.Grow(int(min(info.Size(), maxInput)) + bytes.MinRead)
		}
	}
	if _, err := b.ReadFrom(io.LimitReader(r, maxInput)); err != nil {
		return nil, fmt.Errorf("reading %s: %w", in.name, err)
	}
	return b.Bytes(), nil
}

// findInputs lists the files that arguments name, each once. It fails before
// anything is read if one of the arguments names nothing.
func findInputs(args []string) ([]input, error) {
	var out []input
	seen := map[string]bool{}
	add := func(in input) {
		key := filepath.Clean(in.path)
		if in.path == "" {
			key = "-"
		}
		if !seen[key] {
			seen[key] = true
			out = append(out, in)
		}
	}
	for _, arg := range args {
		if arg == "-" {
			add(input{name: "stdin"})
			continue
		}
		if arg == "" {
			return nil, usagef("an argument is empty")
		}
		paths := []string{arg}
		if _, err := os.Stat(arg); errors.Is(err, fs.ErrNotExist) && strings.ContainsAny(arg, "*?[") {
			matches, err := filepath.Glob(arg)
			if err != nil {
				return nil, usagef("%s: %v", arg, err)
			}
			if len(matches) == 0 {
				return nil, fmt.Errorf("%s: no file matches: %w", arg, fs.ErrNotExist)
			}
			slices.Sort(matches)
			paths = matches
		}
		for _, p := range paths {
			info, err := os.Stat(p)
			if err != nil {
				return nil, err
			}
			if !info.IsDir() {
				add(input{name: p, path: p})
				continue
			}
			files, err := documentsIn(p)
			if err != nil {
				return nil, err
			}
			if len(files) == 0 {
				return nil, fmt.Errorf("%s: no .yaml, .yml or .json files: %w", p, fs.ErrNotExist)
			}
			for _, f := range files {
				add(input{name: f, path: f, walked: true})
			}
		}
	}
	return out, nil
}

// documentsIn lists the YAML and JSON files below a directory, hidden ones
// left out.
func documentsIn(dir string) ([]string, error) {
	var files []string
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if p != dir && strings.HasPrefix(d.Name(), ".") {
			if d.IsDir() {
				return filepath.SkipDir
			}
			return nil
		}
		switch strings.ToLower(filepath.Ext(p)) {
		case ".yaml", ".yml", ".json":
		default:
			return nil
		}
		// A link may name a file, but not a pipe or a device.
		if info, err := os.Stat(p); err != nil || !info.Mode().IsRegular() {
			return err
		}
		files = append(files, p)
		return nil
	})
	return files, err
}

// wantColor tells whether text goes to a terminal that shows colours.
func wantColor(e *env) bool {
	if e.Getenv("NO_COLOR") != "" {
		return false
	}
	if force := e.Getenv("CLICOLOR_FORCE"); force != "" && force != "0" {
		return true
	}
	f, ok := e.Out.(*os.File)
	return ok && term.IsTerminal(int(f.Fd())) && e.Getenv("TERM") != "dumb"
}
