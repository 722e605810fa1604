// Package openapi checks functionConfigs against the OpenAPI v3 schema of
// their function, with the verdicts of a Kubernetes API server for a custom
// resource (KC-050): types and formats, required fields after defaults are
// filled in, unknown fields, lists that are sets or maps, embedded resources,
// and the rules of x-kubernetes-validations.
//
// It runs the API server's own library, apiextensions-apiserver, and adds the
// place of each finding. The library is large, which is why this package and
// not package schema imports it; see docs/schema.md for the sizes.
package openapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/objectmeta"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"

	"github.com/krmcat/krmcat/internal/lazyregexp"
	"github.com/krmcat/krmcat/internal/yamlpos"
	"github.com/krmcat/krmcat/schema"
	"github.com/krmcat/krmcat/schema/internal/structural"
)

// ErrSchema is wrapped by the errors for schemas that values cannot be checked
// against. The message says where and why.
var ErrSchema = errors.New("unusable openAPIV3Schema")

// maxSchema bounds the size of a schema in bytes.
const maxSchema = 4 << 20

// Schema is a schema that is ready to check values. It is safe for concurrent
// use.
type Schema struct {
	internal   *apiextensions.JSONSchemaProps
	validator  validation.SchemaValidator
	structural *structuralschema.Structural
	cel        *cel.Validator // nil if there are no rules
}

// Compile reads an openAPIV3Schema as JSON. It takes every schema that an API
// server can check values with, structural or not: an error wraps [ErrSchema].
func Compile(raw json.RawMessage) (s *Schema, err error) {
	if len(raw) > maxSchema {
		return nil, fmt.Errorf("%w: larger than %d bytes", ErrSchema, maxSchema)
	}
	f, problems := yamlpos.Parse("openAPIV3Schema", raw, yamlpos.Limits{Depth: 300})
	if len(problems) > 0 || len(f.Documents) != 1 {
		reason := "not one JSON document"
		if len(problems) > 0 {
			reason = problems[0].Message
		}
		return nil, fmt.Errorf("%w: %s", ErrSchema, reason)
	}
	value := f.Documents[0].Value
	// Also keeps away from the library what it panics on or loads from
	// elsewhere, such as $ref.
	if findings := structural.Check(value); !structural.Usable(findings) {
		i := slices.IndexFunc(findings, func(f structural.Finding) bool { return f.Kind == structural.Fault })
		return nil, fmt.Errorf("%w: %s: %s", ErrSchema, orRoot(yamlpos.Path(value, findings[i].Path)), findings[i].Message)
	}
	defer recovered(&err, "compiling the schema")
	var v1 apiextensionsv1.JSONSchemaProps
	if err := json.Unmarshal(raw, &v1); err != nil {
		return nil, fmt.Errorf("%w: %v", ErrSchema, err)
	}
	s = &Schema{internal: &apiextensions.JSONSchemaProps{}}
	if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(&v1, s.internal, nil); err != nil {
		return nil, fmt.Errorf("%w: %v", ErrSchema, err)
	}
	if s.validator, _, err = validation.NewSchemaValidator(s.internal); err != nil {
		return nil, fmt.Errorf("%w: %v", ErrSchema, err)
	}
	if s.structural, err = structuralschema.NewStructural(s.internal); err != nil {
		return nil, fmt.Errorf("%w: %v", ErrSchema, err)
	}
	s.cel = cel.NewValidator(s.structural, true, celconfig.PerCallLimit)
	return s, nil
}

func orRoot(path string) string {
	if path == "" {
		return "the root"
	}
	return path
}

// recovered turns a panic of the library into an error: it checks schemas and
// values that strangers wrote.
func recovered(err *error, doing string) {
	if r := recover(); r != nil {
		*err = fmt.Errorf("%w: %s: %v", ErrSchema, doing, r)
	}
}

// Validate checks every document in data, which holds functionConfigs as YAML
// or JSON. The name is used in positions. Text that cannot be read is reported
// as a finding; the error is that of ctx, or wraps [ErrSchema].
func (s *Schema) Validate(ctx context.Context, name string, data []byte) (schema.Diagnostics, error) {
	f, problems := yamlpos.Parse(name, data, yamlpos.Limits{Depth: 500})
	var ds schema.Diagnostics
	for _, p := range problems {
		ds = append(ds, schema.ProblemDiagnostic(f, p))
	}
	for _, doc := range f.Documents {
		found, err := s.Check(ctx, f, doc)
		if err != nil {
			return ds, err
		}
		ds = append(ds, found...)
	}
	ds.Sort()
	return ds, ctx.Err()
}

// Check checks one document that has been parsed. The document is not changed.
func (s *Schema) Check(ctx context.Context, f *yamlpos.File, doc *yamlpos.Document) (ds schema.Diagnostics, err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	r := &reporter{file: f, doc: doc}
	if _, ok := doc.Value.(map[string]any); !ok {
		r.add(schema.RuleConfigValue, nil, false, "a functionConfig must be a mapping", "")
		return r.found, nil
	}
	defer recovered(&err, "checking "+f.Name)
	obj := runtime.DeepCopyJSONValue(doc.Value).(map[string]any)

	// The order is that of the API server's handling of a custom resource.
	if e := objectmeta.Coerce(nil, obj, s.structural, true, false); e != nil {
		r.errors(schema.RuleConfigMetadata, doc.Value, field.ErrorList{e})
		return r.found, nil
	}
	for _, p := range pruning.PruneWithOptions(obj, s.structural, true, structuralschema.UnknownFieldPathOptions{TrackUnknownFieldPaths: true}) {
		path := resolve(doc.Value, p)
		r.add(schema.RuleConfigUnknown, path, true, fmt.Sprintf("unknown field %q", clip(path[len(path)-1])), s.suggest(path))
	}
	defaulting.PruneNonNullableNullsWithoutDefaults(obj, s.structural)
	defaulting.Default(obj, s.structural)
	errs := validation.ValidateCustomResource(nil, obj, s.validator)
	r.errors(schema.RuleConfigValue, obj, errs)
	r.errors(schema.RuleConfigMetadata, obj, objectmeta.Validate(ctx, nil, obj, s.structural, false))
	r.errors(schema.RuleConfigList, obj, listtype.ValidateListSetsAndMaps(nil, s.structural, obj))
	if s.cel == nil {
		return r.found, nil
	}
	if blocking(errs) {
		r.add(schema.RuleConfigPartial, nil, true, "the rules of x-kubernetes-validations were not evaluated, as values have wrong types", "correct the other errors first")
		return r.found, nil
	}
	errs, _ = s.cel.Validate(ctx, nil, s.structural, obj, nil, celconfig.RuntimeCELCostBudget)
	r.errors(schema.RuleConfigRule, obj, errs)
	return r.found, ctx.Err()
}

// blocking tells whether values are so wrong that rules about them cannot be
// evaluated. The API server draws the same line.
func blocking(errs field.ErrorList) bool {
	return slices.ContainsFunc(errs, func(e *field.Error) bool {
		switch e.Type {
		case field.ErrorTypeNotSupported, field.ErrorTypeRequired, field.ErrorTypeTooLong, field.ErrorTypeTooMany, field.ErrorTypeTypeInvalid:
			return true
		}
		return false
	})
}

// Defaults returns a copy of a functionConfig with the defaults of the schema
// filled in, as the API server stores it. Unknown fields are kept.
func (s *Schema) Defaults(value map[string]any) (out map[string]any, err error) {
	defer recovered(&err, "filling in defaults")
	out = runtime.DeepCopyJSONValue(value).(map[string]any)
	defaulting.PruneNonNullableNullsWithoutDefaults(out, s.structural)
	defaulting.Default(out, s.structural)
	return out, nil
}

// suggest looks for a property that is spelled like an unknown field.
func (s *Schema) suggest(path []string) string {
	props := s.structural
	for _, t := range path[:len(path)-1] {
		if props == nil {
			return ""
		}
		if p, ok := props.Properties[t]; ok {
			props = &p
		} else if props.Items != nil {
			props = props.Items
		} else if props.AdditionalProperties != nil {
			props = props.AdditionalProperties.Structural
		} else {
			return ""
		}
	}
	if props == nil {
		return ""
	}
	names := make([]string, 0, len(props.Properties))
	for n := range props.Properties {
		names = append(names, n)
	}
	slices.Sort(names)
	if near := schema.Suggest(path[len(path)-1], names); near != "" {
		return fmt.Sprintf("did you mean %q?", near)
	}
	return ""
}

// reporter turns what the library says into diagnostics.
type reporter struct {
	file  *yamlpos.File
	doc   *yamlpos.Document
	found schema.Diagnostics
}

func (r *reporter) add(rule schema.Rule, path []string, onKey bool, message, fix string) {
	d := schema.Place(r.file, r.doc, path, onKey)
	d.Severity, d.Rule, d.Message, d.Fix = rule.Severity(schema.Publish), rule.ID(schema.Publish), message, fix
	if !slices.Contains(r.found, d) {
		r.found = append(r.found, d)
	}
}

// The library says some things in words that need the code to be understood.
var (
	typeText  = lazyregexp.New(`^must be of type ([a-z,]+): "(string|integer|number|boolean|object|array|null)"$`)
	rangeText = lazyregexp.New(`^(?:Checked|MultipleOf|Maximum boundary|Minimum boundary) value must be (of type .*) in (.*)$`)
)

func (r *reporter) errors(rule schema.Rule, obj any, errs field.ErrorList) {
	wrongType := map[string]bool{} // paths, as the library writes them
	for _, e := range errs {
		wrongType[e.Field] = wrongType[e.Field] || e.Type == field.ErrorTypeTypeInvalid
	}
	for _, e := range errs {
		at := e.Field
		message := e.Detail
		// The library repeats the path in the text.
		if _, rest, ok := strings.Cut(message, " in body "); ok {
			message = rest
		}
		if m := typeText.FindStringSubmatch(message); m != nil {
			message = fmt.Sprintf("must be of type %s, not %s", strings.ReplaceAll(m[1], ",", " or "), m[2])
		}
		if m := rangeText.FindStringSubmatch(message); m != nil {
			// Only the text has the path.
			if at = m[2]; wrongType[at] {
				continue
			}
			message = "must be " + m[1]
		}
		path := resolve(obj, at)
		use, onKey := rule, false
		switch e.Type {
		case field.ErrorTypeRequired:
			onKey = true
			if rule == schema.RuleConfigRule {
				break // the rule has words of its own
			}
			if rule == schema.RuleConfigValue {
				use = schema.RuleConfigRequired
			}
			message = fmt.Sprintf("missing %q", clip(last(path)))
			if len(path) > 0 {
				path = path[:len(path)-1]
			}
		case field.ErrorTypeNotSupported:
			message = fmt.Sprintf("%s is not one of the %s", show(e.BadValue), e.Detail)
		case field.ErrorTypeDuplicate:
			message = fmt.Sprintf("%s is in the list twice", show(e.BadValue))
		case field.ErrorTypeTooLong:
			// It counts characters and says bytes.
			message = strings.ReplaceAll(e.ErrorBody(), " bytes", " characters")
		case field.ErrorTypeTooMany:
			message = e.ErrorBody()
		}
		if message == "" {
			message = e.ErrorBody()
		}
		r.add(use, path, onKey, message, "")
	}
}

func last(path []string) string {
	if len(path) == 0 {
		return ""
	}
	return path[len(path)-1]
}

// show writes a value into a message.
func show(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	return clip(string(b))
}

func clip(s string) string {
	if r := []rune(s); len(r) > 80 {
		return string(r[:80]) + "…"
	}
	return s
}
