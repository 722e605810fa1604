package cli

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/krmcat/krmcat/internal/durable"
	"github.com/krmcat/krmcat/schema"
)

type fmtOptions struct {
	Args  []string
	Write bool
	Check bool
	Fix   bool
}

func newFmtCmd(e *env) *cobra.Command {
	var o fmtOptions
	cmd := &cobra.Command{
		Use:   "fmt FILE|DIR|GLOB|-...",
		Short: "Write definitions and catalogs in their canonical form",
		Long: `Write KRMFunctionDefinition and KRMFunctionCatalog documents in their canonical
form: the kind KRMFunctionCatalog instead of Catalog, fields in the order of
KEP-2906, an indentation of two. Comments are kept and the meaning stays the
same; a document that would lose something is left alone, with an error.

The result goes to standard output, or with --write into the files. With --check
nothing is written: the names of files that are not formatted are printed, and
the exit code is 3 if there are any. --fix also rewrites what krmcat validate
reports and what has one reading only: kind beside group, a runtime beside one
version, requireFilesystem, digests with a prefix or capitals, Apache-2.0.`,
		Example: `  krmcat fmt function.yaml
  krmcat fmt --write --fix ./functions
  krmcat fmt --check ./functions
  krmcat fmt - < catalog.yaml`,
		Args: args(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error {
			o.Args = a
			return runFmt(cmd.Context(), e, o)
		},
	}
	f := cmd.Flags()
	f.BoolVarP(&o.Write, "write", "w", false, "write the result into the files")
	f.BoolVar(&o.Check, "check", false, "only say which files are not formatted")
	f.BoolVar(&o.Fix, "fix", false, "also rewrite what has one reading only")
	return cmd
}

func runFmt(ctx context.Context, e *env, o fmtOptions) error {
	if o.Write && o.Check {
		return usagef("--write and --check exclude each other")
	}
	inputs, err := findInputs(o.Args)
	if err != nil {
		return err
	}
	if len(inputs) > 1 && !o.Write && !o.Check {
		return usagef("more than one file: add --write or --check")
	}
	unformatted := false
	for _, in := range inputs {
		if err := ctx.Err(); err != nil {
			return err
		}
		data, err := in.read(e.In)
		if err != nil {
			return err
		}
		out, err := schema.Format(in.name, data, schema.FormatOptions{Fix: o.Fix})
		if err != nil {
			return explainInvalid(e, err)
		}
		changed := !bytes.Equal(data, out)
		switch {
		case o.Check:
			if changed {
				unformatted = true
				printf(e.Out, "%s\n", in.name)
			}
		case o.Write && in.path != "":
			if !changed {
				continue
			}
			if err := replaceFile(in.path, out); err != nil {
				return err
			}
			printf(e.Err, "krmcat: formatted %s\n", in.name)
		default:
			if _, err := e.Out.Write(out); err != nil {
				return fmt.Errorf("writing output: %w", err)
			}
		}
	}
	if unformatted {
		return errSilent(exitInvalid)
	}
	return nil
}

// replaceFile gives a file new content, all or nothing. Its permissions stay,
// and a link stays a link.
func replaceFile(path string, data []byte) error {
	path, err := filepath.EvalSymlinks(path)
	if err != nil {
		return err
	}
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".krmcat-*")
	if err != nil {
		return err
	}
	tmp := f.Name()
	defer os.Remove(tmp) // gone already if all went well
	_, err = f.Write(data)
	if err == nil {
		err = f.Chmod(info.Mode().Perm())
	}
	if err == nil {
		return durable.Commit(f, path)
	}
	f.Close()
	return fmt.Errorf("writing %s: %w", path, err)
}
