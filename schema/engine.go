package schema

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v5"
)

// The schemas of KEP-2906 and of the KRM Functions Specification, as written
// there, with what it takes to use them: the definitions they only refer to,
// exec's required field "platforms" spelled right, metadata of a definition,
// and the fields that the KEP's text and examples have but its schema has not.
// Which of the latter a document may use is for the rules to say.
var (
	//go:embed schemas/krmfunction.json
	functionSchemas []byte
	//go:embed schemas/resourcelist.json
	resourceListSchemas []byte
)

var (
	functionBundle     = newBundle(functionSchemas)
	resourceListBundle = newBundle(resourceListSchemas)
)

// bundle is a document of schema definitions, compiled on first use. This file
// is the only one that knows the JSON Schema library.
type bundle struct {
	data []byte

	mu       sync.Mutex
	root     map[string]any
	compiler *jsonschema.Compiler
	compiled map[string]*jsonschema.Schema
}

func newBundle(data []byte) *bundle { return &bundle{data: data} }

const bundleURL = "mem:///schema.json"

// compile returns one definition of the bundle.
func (b *bundle) compile(definition string) (*jsonschema.Schema, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if s := b.compiled[definition]; s != nil {
		return s, nil
	}
	if b.compiler == nil {
		if err := b.parse(); err != nil {
			return nil, err
		}
		c := jsonschema.NewCompiler()
		// The KEP uses a boolean exclusiveMinimum and puts a description
		// beside a $ref, as draft 4 has it.
		c.Draft = jsonschema.Draft4
		// By default the library opens what a $ref names, files included.
		c.LoadURL = func(s string) (io.ReadCloser, error) {
			return nil, fmt.Errorf("%s: schemas are not loaded from elsewhere", s)
		}
		if err := c.AddResource(bundleURL, bytes.NewReader(b.data)); err != nil {
			return nil, err
		}
		b.compiler, b.compiled = c, map[string]*jsonschema.Schema{}
	}
	s, err := b.compiler.Compile(bundleURL + "#/definitions/" + definition)
	if err != nil {
		return nil, err
	}
	b.compiled[definition] = s
	return s, nil
}

// parse decodes the bundle. The caller holds mu.
func (b *bundle) parse() error {
	if b.root != nil {
		return nil
	}
	return json.Unmarshal(b.data, &b.root)
}

// definition is the schema document of a definition, to be read only.
func (b *bundle) definition(name string) map[string]any {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.parse() != nil {
		return nil
	}
	defs, _ := b.root["definitions"].(map[string]any)
	d, _ := defs[name].(map[string]any)
	return d
}

// resolve follows a $ref inside of the bundle.
func (b *bundle) resolve(s map[string]any) map[string]any {
	for range 10 {
		ref, ok := s["$ref"].(string)
		if !ok {
			return s
		}
		s = b.definition(strings.TrimPrefix(ref, "#/definitions/"))
	}
	return s
}

// violation is one broken keyword of a schema.
type violation struct {
	path    []string // of the value, from the root of the document
	keyword string
	schema  map[string]any // the schema that has the keyword
	value   any
	message string // the library's
}

// check validates a value against a definition and returns every violation,
// in no particular order.
func (b *bundle) check(definition string, value any) ([]violation, error) {
	s, err := b.compile(definition)
	if err != nil {
		return nil, fmt.Errorf("compiling the schema of %s: %w", definition, err)
	}
	err = s.Validate(value)
	if err == nil {
		return nil, nil
	}
	ve, ok := errors.AsType[*jsonschema.ValidationError](err)
	if !ok {
		return nil, fmt.Errorf("validating against the schema of %s: %w", definition, err)
	}
	var out []violation
	for _, leaf := range leaves(ve) {
		out = append(out, b.violation(leaf, value))
	}
	return out, nil
}

// leaves are the errors that say what is wrong. Of the branches of an anyOf or
// oneOf, those count that got furthest: a mapping that has an error inside was
// not meant as a boolean.
func leaves(e *jsonschema.ValidationError) []*jsonschema.ValidationError {
	if len(e.Causes) == 0 {
		return []*jsonschema.ValidationError{e}
	}
	if keyword := lastSegment(e.KeywordLocation); keyword == "anyOf" || keyword == "oneOf" {
		var deep [][]*jsonschema.ValidationError
		for _, c := range e.Causes {
			ls := leaves(c)
			if !slices.ContainsFunc(ls, func(l *jsonschema.ValidationError) bool {
				return lastSegment(l.KeywordLocation) == "type" && l.InstanceLocation == e.InstanceLocation
			}) {
				deep = append(deep, ls)
			}
		}
		if len(deep) > 0 {
			return deep[0]
		}
		return []*jsonschema.ValidationError{e}
	}
	var out []*jsonschema.ValidationError
	for _, c := range e.Causes {
		out = append(out, leaves(c)...)
	}
	return out
}

func lastSegment(pointer string) string { return pointer[strings.LastIndexByte(pointer, '/')+1:] }

func (b *bundle) violation(e *jsonschema.ValidationError, root any) violation {
	v := violation{path: segments(e.InstanceLocation), keyword: lastSegment(e.KeywordLocation), message: e.Message}
	v.value = at(root, v.path)
	_, fragment, _ := strings.Cut(e.AbsoluteKeywordLocation, "#")
	if ks := segments(fragment); len(ks) > 0 {
		b.mu.Lock()
		v.schema, _ = at(b.root, ks[:len(ks)-1]).(map[string]any)
		b.mu.Unlock()
	}
	return v
}

// segments splits a location as the library writes it: a JSON pointer whose
// tokens are escaped as in URLs on top.
func segments(pointer string) []string {
	if pointer == "" {
		return nil
	}
	ts := strings.Split(strings.TrimPrefix(pointer, "/"), "/")
	for i, t := range ts {
		if u, err := url.PathUnescape(t); err == nil {
			t = u
		}
		ts[i] = strings.ReplaceAll(strings.ReplaceAll(t, "~1", "/"), "~0", "~")
	}
	return ts
}

// at is the value at a path, nil if there is none.
func at(v any, path []string) any {
	for _, t := range path {
		switch c := v.(type) {
		case map[string]any:
			v = c[t]
		case []any:
			i, err := strconv.Atoi(t)
			if err != nil || i < 0 || i >= len(c) {
				return nil
			}
			v = c[i]
		default:
			return nil
		}
	}
	return v
}

// missing are the names that a required keyword asks for and the value lacks,
// in the schema's order.
func (v violation) missing() []string {
	m, _ := v.value.(map[string]any)
	var out []string
	req, _ := v.schema["required"].([]any)
	for _, r := range req {
		if name, ok := r.(string); ok {
			if _, there := m[name]; !there {
				out = append(out, name)
			}
		}
	}
	return out
}

// describe says what is wrong in our words.
func (v violation) describe() string {
	switch v.keyword {
	case "type":
		return fmt.Sprintf("must be %s, not %s", typeNames(v.schema["type"]), typeName(v.value))
	case "enum":
		list, _ := v.schema["enum"].([]any)
		words := make([]string, len(list))
		for i, w := range list {
			words[i] = display(w)
		}
		if len(words) == 1 {
			return fmt.Sprintf("must be %s, not %s", words[0], display(v.value))
		}
		return fmt.Sprintf("must be one of %s, not %s", strings.Join(words, ", "), display(v.value))
	case "anyOf", "oneOf":
		var alternatives []string
		list, _ := v.schema[v.keyword].([]any)
		for _, a := range list {
			m, _ := a.(map[string]any)
			if _, isRef := m["$ref"]; isRef {
				alternatives = append(alternatives, "a mapping")
			} else if m["type"] != nil {
				alternatives = append(alternatives, typeNames(m["type"]))
			}
		}
		return fmt.Sprintf("must be %s, not %s", strings.Join(alternatives, " or "), typeName(v.value))
	}
	return v.message
}

// typeNames says what one or several JSON types are called in YAML.
func typeNames(t any) string {
	if list, ok := t.([]any); ok {
		names := make([]string, len(list))
		for i, x := range list {
			names[i] = typeNames(x)
		}
		return strings.Join(names, " or ")
	}
	switch t {
	case "object":
		return "a mapping"
	case "array":
		return "a list"
	case "string":
		return "a string"
	case "integer":
		return "an integer"
	case "number":
		return "a number"
	case "boolean":
		return "true or false"
	case "null":
		return "null"
	}
	return fmt.Sprint(t)
}

// typeName says what a value is.
func typeName(v any) string {
	switch x := v.(type) {
	case nil:
		return "null"
	case map[string]any:
		return "a mapping"
	case []any:
		return "a list"
	case string:
		return "the string " + display(x)
	case bool:
		return display(x)
	}
	return "the number " + display(v)
}

// display writes a value into a message, shortened.
func display(v any) string {
	switch x := v.(type) {
	case string:
		if r := []rune(x); len(r) > 60 {
			x = string(r[:60]) + "…"
		}
		return strconv.Quote(x)
	case map[string]any, []any:
		return typeName(v)
	case nil:
		return "null"
	}
	return fmt.Sprint(v)
}
