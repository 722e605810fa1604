package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/krmcat/krmcat/cmd/internal/scaffold"
)

type initOptions struct {
	Dir     string
	Name    string
	Group   string
	Kind    string
	Runtime string
	Output  string
}

func newInitCmd(e *env) *cobra.Command {
	opts := &initOptions{}
	cmd := &cobra.Command{
		Use:   "init [FOLDER]",
		Short: "Begin a function: its definition, a program, a README and an example",
		Long: `Make the folder of a new function: function.yaml, a program that sets annotations,
a README and an example. It can be verified and published as it is, and is then
yours to change. Without FOLDER the files are put into this one.

Existing files are never overwritten: if one is in the way, nothing is written.`,
		Example: `  # A function in Starlark, which needs no build
  krmcat init set-owner --group example.com
  krmcat verify set-owner/function.yaml --signature=false

  # A function in Go, as executables and as a container image
  krmcat init set-owner --group example.com --runtime go
  make -C set-owner build`,
		Args: args(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, argv []string) error {
			opts.Dir = "."
			if len(argv) == 1 {
				opts.Dir = argv[0]
			}
			return runInit(cmd.Context(), e, opts)
		},
	}
	cmd.Flags().StringVar(&opts.Group, "group", "example.com", "`domain` that is yours; the apiVersion of the functionConfig is DOMAIN/v1")
	cmd.Flags().StringVar(&opts.Kind, "kind", "", "`kind` of the functionConfig (default: the name without hyphens, such as SetOwner)")
	cmd.Flags().StringVar(&opts.Name, "name", "", "`name` of the function (default: that of the folder)")
	cmd.Flags().StringVar(&opts.Runtime, "runtime", "starlark", "how the function is written: starlark or go")
	addOutput(cmd, &opts.Output, "text", "json")
	return cmd
}

// initOutput is what -o json prints.
type initOutput struct {
	Name  string   `json:"name"`
	Files []string `json:"files"`
}

func runInit(_ context.Context, e *env, opts *initOptions) error {
	dir, err := filepath.Abs(opts.Dir)
	if err != nil {
		return err
	}
	f := scaffold.Function{Name: opts.Name, Group: opts.Group, Kind: opts.Kind, Runtime: opts.Runtime}
	if f.Name == "" {
		f.Name = filepath.Base(dir)
	}
	if f.Kind == "" {
		f.Kind = scaffold.KindOf(f.Name)
	}
	files, err := scaffold.Files(f)
	if wrong, ok := errors.AsType[*scaffold.NameError](err); ok {
		if wrong.What == "function" && opts.Name == "" {
			return usagef("the folder's name is no name for a function: %w; say another with --name", err)
		}
		return usagef("%w", err)
	}
	if err != nil {
		return err
	}
	out := initOutput{Name: f.Name}
	for _, file := range files {
		path := filepath.Join(opts.Dir, filepath.FromSlash(file.Name))
		if _, err := os.Lstat(path); err == nil {
			return wouldOverwrite(path)
		}
		out.Files = append(out.Files, path)
	}
	for i, path := range out.Files {
		if err := writeNewIn(path, files[i].Data); err != nil {
			// Half a folder would be in the way of the next try.
			for _, made := range out.Files[:i] {
				err = errors.Join(err, os.Remove(made))
			}
			return err
		}
	}
	if opts.Output == "json" {
		return printJSON(e.Out, out)
	}
	for _, path := range out.Files {
		printf(e.Out, "%s\n", path)
	}
	definition := filepath.Join(opts.Dir, "function.yaml")
	build, allow := "", ""
	if f.Runtime == "go" {
		build, allow = fmt.Sprintf("  make -C %s build\n", opts.Dir), " --allow-exec"
	}
	printf(e.Err, `Next:
%s  krmcat verify %s --signature=false%s
  krmcat keygen
  krmcat publish %s localhost:8080/%s:v0.1.0 --key cosign.key
`, build, definition, allow, definition, f.Name)
	return nil
}

// writeNewIn writes a file that must not exist, and the folders it is in.
func writeNewIn(path string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return writeNew(path, data, 0o644)
}
