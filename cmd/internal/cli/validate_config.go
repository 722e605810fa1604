package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/krmcat/krmcat/catalog"
	"github.com/krmcat/krmcat/internal/yamlpos"
	"github.com/krmcat/krmcat/schema"
	"github.com/krmcat/krmcat/schema/openapi"
)

// configChecker checks functionConfigs against the schemas of the functions
// that catalogs define.
type configChecker struct {
	list     *catalog.List
	compiled map[string]compiledSchema // by the schema's JSON
}

type compiledSchema struct {
	schema *openapi.Schema
	err    error
}

// check checks every functionConfig in a file. The error is about catalogs
// that could not be read.
func (c *configChecker) check(ctx context.Context, name string, data []byte) (schema.Diagnostics, error) {
	f, problems := yamlpos.Parse(name, data, yamlpos.Limits{Depth: 500})
	var ds schema.Diagnostics
	for _, p := range problems {
		ds = append(ds, schema.ProblemDiagnostic(f, p))
	}
	if len(f.Documents) == 0 && len(ds) == 0 {
		ds = append(ds, schema.Diagnostic{Pos: schema.Position{File: name, Line: 1, Column: 1}, Severity: schema.Error,
			Rule: schema.RuleConfigFunction.ID(schema.Publish), Message: "there is no functionConfig in this file"})
	}
	for _, doc := range f.Documents {
		found, err := c.document(ctx, f, doc)
		if err != nil {
			return ds, err
		}
		ds = append(ds, found...)
	}
	ds.Sort()
	return ds, nil
}

func (c *configChecker) document(ctx context.Context, f *yamlpos.File, doc *yamlpos.Document) (schema.Diagnostics, error) {
	one := func(r schema.Rule, field, message, fix string) (schema.Diagnostics, error) {
		path := []string{field}
		if field == "" {
			path = nil
		}
		d := schema.Place(f, doc, path, false)
		d.Severity, d.Rule, d.Message, d.Fix = r.Severity(schema.Publish), r.ID(schema.Publish), message, fix
		return schema.Diagnostics{d}, nil
	}
	m, _ := doc.Value.(map[string]any)
	apiVersion, _ := m["apiVersion"].(string)
	kind, _ := m["kind"].(string)
	if apiVersion == "" || kind == "" {
		return one(schema.RuleConfigFunction, "", "a functionConfig has an apiVersion and a kind", "")
	}
	gvk := catalog.GVK(apiVersion, kind)
	version, near, err := c.find(ctx, gvk)
	switch {
	case err != nil:
		return nil, err
	case version == nil && gvk == (catalog.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}):
		return one(schema.RuleConfigPartial, "kind", "a ConfigMap names no function, so that there is no schema for it", "")
	case version == nil:
		fix := ""
		if near != "" {
			fix = "did you mean " + near + "?"
		}
		return one(schema.RuleConfigFunction, "kind", fmt.Sprintf("no catalog defines a function for %s", gvk), fix)
	case len(version.Schema) == 0:
		return one(schema.RuleConfigPartial, "kind", "the function has no schema", "ask its publisher for one")
	}
	s, ok := c.compiled[string(version.Schema)]
	if !ok {
		s.schema, s.err = openapi.Compile(version.Schema)
		c.compiled[string(version.Schema)] = s
	}
	if s.err == nil {
		found, err := s.schema.Check(ctx, f, doc)
		if err == nil || ctx.Err() != nil {
			return found, err
		}
		s.err = err
	}
	if !errors.Is(s.err, openapi.ErrSchema) {
		return nil, s.err
	}
	return one(schema.RuleConfigPartial, "kind", "the function's schema cannot be used: "+strings.TrimPrefix(s.err.Error(), openapi.ErrSchema.Error()+": "), "ask its publisher to correct it")
}

// find looks for the first version that takes functionConfigs of a type. No
// trust is needed to read a schema. If there is none, near is the type that is
// spelled most like it.
func (c *configChecker) find(ctx context.Context, gvk catalog.GroupVersionKind) (v *catalog.Version, near string, err error) {
	var names []string
	for r, err := range c.list.All(ctx) {
		if err != nil {
			return nil, "", err
		}
		if r.GVK() == gvk {
			return r.Version, "", nil
		}
		names = append(names, r.GVK().String())
	}
	return nil, schema.Suggest(gvk.String(), names), nil
}
