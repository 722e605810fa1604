// Package schema checks KRM documents against the schemas that krmcat
// understands and reports what it finds as [Diagnostics].
//
// A document that cannot be parsed, and a document that is wrong, are both
// reported as diagnostics. An error is returned only when the check itself
// could not be made. The package reads no files and uses no network.
package schema

import (
	"cmp"
	"context"
	"slices"

	"github.com/krmcat/krmcat/internal/yamlpos"
)

// The apiVersion and kinds of the documents that are checked (KC-069, KC-070).
const (
	APIVersion     = "config.kubernetes.io/v1alpha1"
	KindDefinition = "KRMFunctionDefinition"
	KindCatalog    = "KRMFunctionCatalog"
	// KindCatalogAlias is how the text and all examples of KEP-2906 spell
	// KindCatalog.
	KindCatalogAlias = "Catalog"
)

// Validator checks documents. The zero value checks against the embedded
// schemas at level [Publish] and is ready to use. It is safe for concurrent
// use as long as its fields are not changed.
type Validator struct {
	Level        Level
	StrictFields bool // unknown fields are errors instead of warnings

	// Source says that the documents are still in their author's folder:
	// runtimes and documentation may be named by relative local paths, and
	// what publishing fills in may be missing: the sha256 of local files and
	// the digests of images. A sha256 that is given must be one.
	Source bool
	// LocalSource does as Source for the documents that name a local file as
	// a runtime, and leaves the others as they are.
	LocalSource bool

	// OnlyKEP refuses at level Publish what only the text of KEP-2906 has or
	// what krmcat adds to it: the starlark runtime and licenses other than
	// Apache 2.0.
	OnlyKEP bool
	// SkipOthers makes documents of kinds that are not checked a notice
	// instead of an error.
	SkipOthers bool

	// Limits of the documents' text; the zero value has the defaults.
	Limits yamlpos.Limits

	// CheckRules, if not nil, is called at level Publish with each
	// openAPIV3Schema that has x-kubernetes-validations, and says which of
	// these rules do not compile. Package openapi has such a function; this
	// package does without the library that it takes.
	CheckRules func(openAPIV3Schema any) []RuleFinding

	slow bool // for tests: never take the fast way
}

// RuleFinding is something that is wrong with a rule in a schema.
type RuleFinding struct {
	Path    []string // tokens from the root of the schema
	Message string
}

// Validate checks every document in data, which may hold several YAML
// documents or JSON. The name is used in positions. The diagnostics are in the
// order of their places. The error is that of ctx.
func (v *Validator) Validate(ctx context.Context, name string, data []byte) (Diagnostics, error) {
	if v.clean(data) {
		return nil, ctx.Err()
	}
	f, problems := yamlpos.Parse(name, data, v.Limits)
	return v.ValidateFile(ctx, f, problems)
}

// ValidateFile is [Validator.Validate] for a text that has been parsed
// already; problems are those of parsing.
func (v *Validator) ValidateFile(ctx context.Context, f *yamlpos.File, problems []yamlpos.Problem) (Diagnostics, error) {
	var ds Diagnostics
	for _, p := range problems {
		ds = append(ds, problemDiagnostic(f, p, v.Level))
	}
	if len(f.Documents) == 0 && len(ds) == 0 {
		ds = append(ds, Diagnostic{Pos: Position{File: f.Name, Line: 1, Column: 1}, Severity: ruleNoDocument.Severity(v.Level),
			Rule: ruleNoDocument.ID(v.Level), Message: "there is no document in this file"})
	}
	for _, doc := range f.Documents {
		if err := ctx.Err(); err != nil {
			return ds, err
		}
		c := &checker{v: v, file: f, doc: doc, source: v.Source}
		c.document()
		ds = append(ds, c.found...)
	}
	sortDiagnostics(ds)
	return ds, ctx.Err()
}

// sortDiagnostics brings findings into the order of their places, those at
// one place into that of severity, rule and text.
func sortDiagnostics(ds Diagnostics) {
	slices.SortStableFunc(ds, func(a, b Diagnostic) int {
		return cmp.Or(
			cmp.Compare(a.Pos.Line, b.Pos.Line), cmp.Compare(a.Pos.Column, b.Pos.Column),
			cmp.Compare(a.Severity, b.Severity), cmp.Compare(a.Rule, b.Rule),
			cmp.Compare(a.Path, b.Path), cmp.Compare(a.Message, b.Message))
	})
}

// problemDiagnostic reports what is wrong with the text of a file.
func problemDiagnostic(f *yamlpos.File, p yamlpos.Problem, l Level) Diagnostic {
	r := ruleSyntax
	switch p.Kind {
	case yamlpos.Encoding:
		r = ruleEncoding
	case yamlpos.Limit:
		r = ruleLimit
	case yamlpos.Duplicate:
		r = ruleDuplicate
	case yamlpos.Key:
		r = ruleKey
	case yamlpos.Alias:
		r = ruleAlias
	case yamlpos.Tag:
		r = ruleTag
	case yamlpos.Number:
		r = ruleNumber
	case yamlpos.Placeholder:
		r = rulePlaceholder
	}
	d := Diagnostic{Pos: Position{File: f.Name, Line: p.Line, Column: p.Column}, Severity: r.Severity(l), Rule: r.ID(l),
		Message: p.Message, Fix: p.Fix, Width: p.Width}
	if len(p.Path) > 0 {
		// The document that the problem is in may not have a value to walk.
		d.Path = yamlpos.Path(rootOf(f, p.Line), p.Path)
	}
	d.Excerpt, d.Skip = f.Excerpt(p.Line, p.Column)
	return d
}

// rootOf is the value of the document that a line belongs to.
func rootOf(f *yamlpos.File, line int) any {
	var root any
	for _, d := range f.Documents {
		if d.Line <= line {
			root = d.Value
		}
	}
	return root
}
