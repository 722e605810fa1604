package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/krmcat/krmcat/catalog"
	"github.com/krmcat/krmcat/internal/lazyregexp"
	"github.com/krmcat/krmcat/internal/yamlpos"
	"github.com/krmcat/krmcat/schema"
)

type schemaOptions struct {
	Names     []string
	Modelines []string
	Dir       string
	Catalogs  catalogFlags
	Remote    remoteFlags
}

func newSchemaCmd(e *env) *cobra.Command {
	var o schemaOptions
	cmd := &cobra.Command{
		Use:   "schema [GROUP/KIND/VERSION|KIND]...",
		Short: "Print JSON Schemas for editors and validators",
		Long: `Print the JSON Schema (draft 7) of a function's functionConfig, found in the
catalogs that --catalog names, or of one of krmcat's own documents:
KRMFunctionDefinition, KRMFunctionCatalog or ResourceList.

With --dir the schemas are written into files GROUP/KIND_VERSION.json below a
folder instead, in lower case, as kubeconform looks them up:

  kubeconform -schema-location \
    'DIR/{{.Group}}/{{.ResourceKind}}_{{.ResourceAPIVersion}}.json' FILE

With --modeline the schemas of the functionConfigs in files are written below
--dir (by default .krmcat), and the line is added to each file that tells
editors with the YAML language server where its schema is.

A JSON Schema cannot say all that krmcat validate --config checks: the rules of
x-kubernetes-validations are left out.`,
		Example: `  krmcat schema KRMFunctionDefinition
  krmcat schema fn.example.com/SetLabels/v1 --catalog catalog.yaml
  krmcat schema --modeline set-labels.yaml --catalog catalog.yaml`,
		RunE: func(cmd *cobra.Command, a []string) error {
			o.Names = a
			if len(a) == 0 && len(o.Modelines) == 0 {
				return usagef("name a function as GROUP/KIND/VERSION, or one of KRMFunctionDefinition, KRMFunctionCatalog and ResourceList")
			}
			if len(a) > 1 && o.Dir == "" {
				return usagef("more than one schema: add --dir")
			}
			return runSchema(cmd.Context(), e, o)
		},
	}
	f := cmd.Flags()
	f.StringArrayVar(&o.Modelines, "modeline", nil, "functionConfig `file` to write a schema for, and to add its place to; repeatable")
	f.StringVar(&o.Dir, "dir", "", "write schemas into files below this `folder`")
	f.StringArrayVar(&o.Catalogs.Catalogs, "catalog", nil, "`location` of a catalog or definition to look for functions in; repeatable, searched in order (default: those in $KRMCAT_CATALOG)")
	o.Remote.add(f)
	return cmd
}

func runSchema(ctx context.Context, e *env, o schemaOptions) error {
	s := &schemaFinder{env: e, opts: o}
	for _, name := range o.Names {
		text, file, err := s.byName(ctx, name)
		if err != nil {
			return err
		}
		if o.Dir == "" {
			if _, err := e.Out.Write(text); err != nil {
				return fmt.Errorf("writing output: %w", err)
			}
			continue
		}
		if err := s.write(o.Dir, file, text); err != nil {
			return err
		}
	}
	dir := o.Dir
	if dir == "" {
		dir = ".krmcat"
	}
	for _, config := range o.Modelines {
		if err := s.modeline(ctx, dir, config); err != nil {
			return err
		}
	}
	return nil
}

// schemaFinder finds the schemas of functions.
type schemaFinder struct {
	env  *env
	opts schemaOptions
	list *catalog.List
}

// byName is the schema for an argument, and the name of its file.
func (s *schemaFinder) byName(ctx context.Context, name string) (text []byte, file string, err error) {
	text, known, err := schema.DocumentJSONSchema(name)
	if known || err != nil {
		return text, schemaFile(catalog.GVK(schema.APIVersion, name)), err
	}
	parts := strings.Split(name, "/")
	if len(parts) != 3 || parts[0] == "" || parts[1] == "" || parts[2] == "" {
		return nil, "", usagef("%s: not GROUP/KIND/VERSION, such as fn.example.com/SetLabels/v1", name)
	}
	gvk := catalog.GroupVersionKind{Group: parts[0], Kind: parts[1], Version: parts[2]}
	text, err = s.function(ctx, gvk)
	return text, schemaFile(gvk), err
}

// function is the schema of a function's functionConfig.
func (s *schemaFinder) function(ctx context.Context, gvk catalog.GroupVersionKind) ([]byte, error) {
	if s.list == nil {
		src, _, err := s.opts.Remote.source(s.env)
		if err != nil {
			return nil, err
		}
		list, err := s.opts.Catalogs.list(s.env, src)
		if err != nil {
			return nil, err
		}
		if len(list.Entries) == 0 {
			return nil, usagef("say with --catalog where the functions are")
		}
		s.list = list
	}
	v, near, err := (&configChecker{list: s.list}).find(ctx, gvk)
	switch {
	case err != nil:
		return nil, explainInvalid(s.env, err)
	case v == nil && near != "":
		return nil, withHint(fmt.Errorf("%s: %w", gvk, catalog.ErrNotFound), "did you mean %s?", near)
	case v == nil:
		return nil, fmt.Errorf("%s: %w", gvk, catalog.ErrNotFound)
	case len(v.Schema) == 0:
		return nil, codeError{fmt.Errorf("the function for %s has no schema: %w", gvk, fs.ErrNotExist), exitNotFound}
	}
	return schema.FunctionJSONSchema(gvk.APIVersion(), gvk.Kind, v.Schema)
}

var fileWord = lazyregexp.New(`^[a-z0-9][a-z0-9.-]*$`)

// schemaFile is where kubeconform looks for the schema of a type. It is empty
// for types whose names are no words, which could lead out of the folder.
func schemaFile(gvk catalog.GroupVersionKind) string {
	group, kind, version := strings.ToLower(gvk.Group), strings.ToLower(gvk.Kind), strings.ToLower(gvk.Version)
	if group == "" {
		group = "core"
	}
	for _, w := range []string{group, kind, version} {
		if !fileWord.MatchString(w) {
			return ""
		}
	}
	return filepath.Join(group, kind+"_"+version+".json")
}

func (s *schemaFinder) write(dir, file string, text []byte) error {
	if file == "" {
		return errors.New("the type has characters that cannot be in a file name")
	}
	path := filepath.Join(dir, file)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(path, text, 0o644); err != nil {
		return err
	}
	printf(s.env.Err, "krmcat: wrote %s\n", path)
	return nil
}

// modelineText is what the YAML language server looks for.
const modelineText = "# yaml-language-server: $schema="

// modeline writes the schema of the functionConfig in a file, and where it is
// into the file.
func (s *schemaFinder) modeline(ctx context.Context, dir, config string) error {
	data, err := input{name: config, path: config}.read(nil)
	if err != nil {
		return err
	}
	f, problems := yamlpos.Parse(config, data, yamlpos.Limits{Depth: 500})
	if len(problems) > 0 {
		var ds schema.Diagnostics
		for _, p := range problems {
			ds = append(ds, schema.ProblemDiagnostic(f, p))
		}
		return explainInvalid(s.env, &schema.InvalidError{Diagnostics: ds})
	}
	if len(f.Documents) != 1 || f.Documents[0].Root == nil {
		return codeError{fmt.Errorf("%s: a modeline is for a file with one YAML document", config), exitInvalid}
	}
	m, _ := f.Documents[0].Value.(map[string]any)
	apiVersion, _ := m["apiVersion"].(string)
	kind, _ := m["kind"].(string)
	if apiVersion == "" || kind == "" {
		return codeError{fmt.Errorf("%s: a functionConfig has an apiVersion and a kind", config), exitInvalid}
	}
	gvk := catalog.GVK(apiVersion, kind)
	text, known, err := schema.DocumentJSONSchema(kind)
	if !known || gvk != catalog.GVK(schema.APIVersion, kind) {
		text, err = s.function(ctx, gvk)
	}
	if err != nil {
		return err
	}
	file := schemaFile(gvk)
	if err := s.write(dir, file, text); err != nil {
		return err
	}
	target, err := filepath.Abs(filepath.Join(dir, file))
	if err != nil {
		return err
	}
	from, err := filepath.Abs(filepath.Dir(config))
	if err != nil {
		return err
	}
	rel, err := filepath.Rel(from, target)
	if err != nil {
		return err
	}
	out := withModeline(f.Text(), filepath.ToSlash(rel))
	if out == string(data) {
		return nil
	}
	if err := replaceFile(config, []byte(out)); err != nil {
		return err
	}
	printf(s.env.Err, "krmcat: wrote the modeline of %s\n", config)
	return nil
}

// withModeline puts the modeline first, or replaces the one that is there.
func withModeline(text, schemaPath string) string {
	line := modelineText + schemaPath
	lines := strings.SplitAfter(text, "\n")
	for i, l := range lines {
		trimmed := strings.TrimSpace(l)
		if strings.HasPrefix(trimmed, strings.TrimSuffix(modelineText, "=")) {
			lines[i] = line + "\n"
			return strings.Join(lines, "")
		}
		// Only comments come before the document.
		if trimmed != "" && !strings.HasPrefix(trimmed, "#") {
			break
		}
	}
	return line + "\n" + text
}
