package schema

import (
	"sync"
	"unsafe"

	"github.com/krmcat/krmcat/internal/yamlpos"
	"github.com/krmcat/krmcat/schema/internal/fastyaml"
)

// clean tells whether there is nothing to say about the documents in data. It
// is the same check as the one that follows, on values without places, and
// answers no whenever it is not sure. Without it the validator does the same,
// several times slower.
func (v *Validator) clean(data []byte) bool {
	if v.Limits != (yamlpos.Limits{}) || v.slow {
		return false
	}
	// Nothing that is read here outlives this call, and data is not changed
	// meanwhile: a copy of a large catalog would be a tenth of the memory.
	text := unsafe.String(unsafe.SliceData(data), len(data))
	if !v.Limits.Within(text) {
		return false
	}
	docs, ok := fastyaml.Documents(text)
	if !ok || len(docs) == 0 {
		return false
	}
	for _, doc := range docs {
		c := &checker{v: v, doc: &yamlpos.Document{Value: doc}, source: v.Source, probe: true}
		c.document()
		if c.failed {
			return false
		}
	}
	return true
}

// acceptor checks values against a schema and only says whether all is well.
// It knows the keywords that the embedded schemas use.
type acceptor struct {
	types      int // bits; 0 for any
	properties map[string]*acceptor
	additional *acceptor
	required   []string
	items      *acceptor
	enum       []any
	anyOf      []*acceptor
	minimum    *float64
	unknown    bool // has a keyword that is not known here: accept nothing
}

// Bits for the types of JSON.
const (
	isObject = 1 << iota
	isArray
	isString
	isInteger
	isNumber
	isBoolean
	isNull
)

var typeBits = map[string]int{"object": isObject, "array": isArray, "string": isString, "integer": isInteger,
	"number": isInteger | isNumber, "boolean": isBoolean, "null": isNull}

// acceptors are compiled on first use, like the schemas they are made of.
var acceptors sync.Map // definition name -> *acceptor

func (b *bundle) acceptor(definition string) *acceptor {
	if a, ok := acceptors.Load(definition); ok {
		return a.(*acceptor)
	}
	a := b.compileAcceptor(b.definition(definition), map[string]*acceptor{})
	acceptors.Store(definition, a)
	return a
}

func (b *bundle) compileAcceptor(s map[string]any, done map[string]*acceptor) *acceptor {
	a := &acceptor{}
	if ref, ok := s["$ref"].(string); ok {
		if known := done[ref]; known != nil {
			return known
		}
		done[ref] = a
		s = b.resolve(s)
	}
	for k, v := range s {
		switch k {
		case "description", "title", "format", "default", "x-kubernetes-group-version-kind", "x-krmcat-schema":
			if k == "format" {
				a.unknown = true
			}
		case "type":
			t, _ := v.(string)
			a.types = typeBits[t]
		case "required":
			a.required = asStrings(v)
		case "properties":
			a.properties = map[string]*acceptor{}
			m, _ := v.(map[string]any)
			for name, p := range m {
				ps, _ := p.(map[string]any)
				a.properties[name] = b.compileAcceptor(ps, done)
			}
		case "additionalProperties", "items":
			m, ok := v.(map[string]any)
			if !ok {
				a.unknown = true
				continue
			}
			if k == "items" {
				a.items = b.compileAcceptor(m, done)
			} else {
				a.additional = b.compileAcceptor(m, done)
			}
		case "enum":
			a.enum, _ = v.([]any)
		case "anyOf":
			list, _ := v.([]any)
			for _, e := range list {
				m, _ := e.(map[string]any)
				a.anyOf = append(a.anyOf, b.compileAcceptor(m, done))
			}
		default:
			a.unknown = true
		}
	}
	return a
}

// accepts tells whether a value is valid. It may say no to a valid value, but
// never yes to an invalid one.
func (a *acceptor) accepts(v any) bool {
	if a.unknown {
		return false
	}
	kind := 0
	switch v.(type) {
	case map[string]any:
		kind = isObject
	case []any:
		kind = isArray
	case string:
		kind = isString
	case int64:
		kind = isInteger
	case float64:
		kind = isNumber
	case bool:
		kind = isBoolean
	case nil:
		kind = isNull
	}
	if a.types != 0 && a.types&kind == 0 {
		return false
	}
	if a.enum != nil && !oneOf(a.enum, v) {
		return false
	}
	if a.anyOf != nil {
		any := false
		for _, branch := range a.anyOf {
			any = any || branch.accepts(v)
		}
		if !any {
			return false
		}
	}
	switch x := v.(type) {
	case map[string]any:
		for _, name := range a.required {
			if _, there := x[name]; !there {
				return false
			}
		}
		for k, e := range x {
			if p := a.properties[k]; p != nil {
				if !p.accepts(e) {
					return false
				}
			} else if a.additional != nil && !a.additional.accepts(e) {
				return false
			}
		}
	case []any:
		if a.items == nil {
			return true
		}
		for _, e := range x {
			if !a.items.accepts(e) {
				return false
			}
		}
	}
	return true
}

// oneOf compares scalars.
func oneOf(list []any, v any) bool {
	s, ok := v.(string)
	if !ok {
		return false
	}
	for _, e := range list {
		if e == s {
			return true
		}
	}
	return false
}
