package schema

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/krmcat/krmcat/internal/yamlpos"
)

// draft7 is the version of JSON Schema that editors and kubeconform read.
const draft7 = "http://json-schema.org/draft-07/schema#"

// DocumentJSONSchema is the JSON Schema (draft 7) of the documents of a kind:
// KindDefinition, KindCatalog or ResourceList. ok is false for other kinds.
func DocumentJSONSchema(kind string) (out []byte, ok bool, err error) {
	b := functionBundle
	switch kind {
	case KindDefinition, KindCatalog:
	case kindResourceList:
		b = resourceListBundle
	default:
		return nil, false, nil
	}
	root := b.definition(kind)
	if root == nil {
		return nil, false, fmt.Errorf("the embedded schema of %s cannot be read", kind)
	}
	defs := map[string]any{}
	doc, _ := b.export(root, defs).(map[string]any)
	doc = maps.Clone(doc)
	doc["$schema"] = draft7
	doc["title"] = kind
	if len(defs) > 0 {
		doc["definitions"] = defs
	}
	out, err = json.MarshalIndent(doc, "", "  ")
	return append(out, '\n'), true, err
}

// lenient are properties that consumers read and publishers must not write.
var lenient = map[string]bool{"requireFilesystem": true}

// export copies a definition for others: without what only krmcat reads, with
// the definitions it refers to.
func (b *bundle) export(v any, defs map[string]any) any {
	switch x := v.(type) {
	case []any:
		out := make([]any, len(x))
		for i, e := range x {
			out[i] = b.export(e, defs)
		}
		return out
	case map[string]any:
		ref, isRef := x["$ref"].(string)
		if s, ok := x["x-krmcat-schema"].(string); ok {
			ref, isRef = s, true
		}
		if isRef {
			name := shortName(ref)
			if _, done := defs[name]; !done {
				defs[name] = true // against recursion
				defs[name] = b.export(b.definition(strings.TrimPrefix(ref, "#/definitions/")), defs)
			}
			return map[string]any{"$ref": "#/definitions/" + name}
		}
		out := map[string]any{}
		for k, e := range x {
			switch {
			case k == "properties":
				props := map[string]any{}
				m, _ := e.(map[string]any)
				isFunction := m["versions"] != nil && m["group"] != nil
				for name, p := range m {
					if lenient[name] || isFunction && (name == "runtime" || name == "kind") {
						continue
					}
					props[name] = b.export(p, defs)
				}
				out[k] = props
			case strings.HasPrefix(k, "x-"):
			case k == "exclusiveMinimum" && e == true:
				out[k] = x["minimum"]
			case k == "minimum" && x["exclusiveMinimum"] == true:
			case k == "enum" && slices.Equal(asStrings(e), []string{kepLicense}):
				// krmcat takes SPDX licenses as well.
				out["examples"] = []any{kepLicense, "MIT"}
			default:
				out[k] = b.export(e, defs)
			}
		}
		return out
	}
	return v
}

func asStrings(v any) []string {
	list, _ := v.([]any)
	out := make([]string, len(list))
	for i, x := range list {
		out[i], _ = x.(string)
	}
	return out
}

// shortName is the last part of a definition's name.
func shortName(ref string) string {
	ref = strings.TrimPrefix(ref, "#/definitions/")
	return ref[strings.LastIndexByte(ref, '.')+1:]
}

// FunctionJSONSchema turns the openAPIV3Schema of a function into a JSON Schema
// (draft 7) of its functionConfigs, for editors and validators that do not know
// structural schemas: unknown fields are refused, null and "integer or string"
// are types, and required fields that have a default are optional. Rules of
// x-kubernetes-validations have no counterpart; a $comment counts them.
func FunctionJSONSchema(apiVersion, kind string, openAPI json.RawMessage) ([]byte, error) {
	f, problems := yamlpos.Parse("openAPIV3Schema", openAPI, yamlpos.Limits{Depth: 300})
	if len(problems) > 0 {
		return nil, fmt.Errorf("the schema of %s, kind %s: %s", apiVersion, kind, problems[0].Message)
	}
	root := map[string]any{}
	if len(f.Documents) == 1 {
		if m, ok := f.Documents[0].Value.(map[string]any); ok {
			root = m
		}
	}
	t := &translation{}
	out := t.schema(root, true, 0)
	props, _ := out["properties"].(map[string]any)
	if props == nil {
		props = map[string]any{}
	}
	props["apiVersion"] = map[string]any{"const": apiVersion}
	props["kind"] = map[string]any{"const": kind}
	if props["metadata"] == nil {
		props["metadata"] = map[string]any{}
	}
	props["metadata"] = t.metadata(props["metadata"])
	out["properties"] = props
	out["type"] = "object"
	required, _ := out["required"].([]any)
	for _, name := range []string{"apiVersion", "kind"} {
		if !slices.Contains(required, any(name)) {
			required = append(required, name)
		}
	}
	out["required"] = required
	out["$schema"] = draft7
	if _, ok := out["title"]; !ok {
		out["title"] = kind
	}
	if t.rules > 0 {
		out["$comment"] = fmt.Sprintf("%d x-kubernetes-validations are not part of this schema; krmcat validate --config checks them", t.rules)
	}
	text, err := json.MarshalIndent(out, "", "  ")
	return append(text, '\n'), err
}

// translation turns one structural schema into JSON Schema.
type translation struct{ rules int }

// jsonFormats are the formats that mean the same in JSON Schema.
var jsonFormats = map[string]bool{"date-time": true, "email": true, "hostname": true, "ipv4": true, "ipv6": true, "date": true}

// schema translates one schema. Inside of allOf, anyOf, oneOf and not, closed
// is unset: such a schema does not say which fields there are.
func (t *translation) schema(s map[string]any, closed bool, depth int) map[string]any {
	out := map[string]any{}
	if depth > 100 {
		return out
	}
	props, _ := s["properties"].(map[string]any)
	for k, v := range s {
		switch k {
		case "description", "title", "pattern", "minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties",
			"multipleOf", "default", "enum", "uniqueItems":
			if v != nil {
				out[k] = v
			}
		case "type":
			out[k] = v
		case "example":
			out["examples"] = []any{v}
		case "minimum", "maximum":
			name := k
			if s["exclusive"+strings.ToUpper(k[:1])+k[1:]] == true {
				name = "exclusive" + strings.ToUpper(k[:1]) + k[1:]
			}
			out[name] = v
		case "format":
			if f, _ := v.(string); jsonFormats[f] {
				out[k] = v
			}
		case "properties":
			m := map[string]any{}
			for name, p := range props {
				m[name] = t.child(p, closed, depth)
			}
			out[k] = m
		case "required":
			var names []any
			list, _ := v.([]any)
			for _, n := range list {
				name, _ := n.(string)
				p, _ := props[name].(map[string]any)
				if _, hasDefault := p["default"]; !hasDefault {
					names = append(names, n)
				}
			}
			if len(names) > 0 {
				out[k] = names
			}
		case "items":
			out[k] = t.child(v, closed, depth)
		case "additionalProperties":
			if m, ok := v.(map[string]any); ok {
				out[k] = t.child(m, closed, depth)
			} else {
				out[k] = v
			}
		case "allOf", "anyOf", "oneOf":
			list, _ := v.([]any)
			all := make([]any, len(list))
			for i, e := range list {
				all[i] = t.child(e, false, depth)
			}
			out[k] = all
		case "not":
			out[k] = t.child(v, false, depth)
		case "x-kubernetes-validations":
			list, _ := v.([]any)
			t.rules += len(list)
		}
	}
	if s["x-kubernetes-int-or-string"] == true {
		out["type"] = []any{"integer", "string"}
	}
	if s["x-kubernetes-list-type"] == "set" {
		out["uniqueItems"] = true
	}
	if props != nil && closed && out["additionalProperties"] == nil && s["x-kubernetes-preserve-unknown-fields"] != true {
		out["additionalProperties"] = false
	}
	if s["x-kubernetes-embedded-resource"] == true {
		t.embedded(out)
	}
	if s["nullable"] == true {
		switch typ := out["type"].(type) {
		case string:
			out["type"] = []any{typ, "null"}
		case []any:
			out["type"] = append(typ[:len(typ):len(typ)], "null")
		}
	}
	return out
}

func (t *translation) child(v any, closed bool, depth int) any {
	m, ok := v.(map[string]any)
	if !ok {
		return true
	}
	return t.schema(m, closed, depth+1)
}

// embedded adds what every resource has.
func (t *translation) embedded(out map[string]any) {
	props, _ := out["properties"].(map[string]any)
	if props == nil {
		props = map[string]any{}
	}
	for _, name := range []string{"apiVersion", "kind"} {
		if props[name] == nil {
			props[name] = map[string]any{"type": "string"}
		}
	}
	if props["metadata"] == nil {
		props["metadata"] = map[string]any{}
	}
	props["metadata"] = t.metadata(props["metadata"])
	out["properties"] = props
	required, _ := out["required"].([]any)
	for _, name := range []string{"apiVersion", "kind"} {
		if !slices.Contains(required, any(name)) {
			required = append(required[:len(required):len(required)], name)
		}
	}
	out["required"] = required
}

// metadata adds the fields of ObjectMeta to what a schema says about it.
func (t *translation) metadata(v any) any {
	m, _ := v.(map[string]any)
	out := maps.Clone(m)
	if out == nil {
		out = map[string]any{}
	}
	out["type"] = "object"
	delete(out, "additionalProperties")
	own, _ := out["properties"].(map[string]any)
	props := map[string]any{
		"name": map[string]any{"type": "string"}, "namespace": map[string]any{"type": "string"}, "generateName": map[string]any{"type": "string"},
		"labels":      map[string]any{"type": "object", "additionalProperties": map[string]any{"type": "string"}},
		"annotations": map[string]any{"type": "object", "additionalProperties": map[string]any{"type": "string"}},
	}
	maps.Copy(props, own)
	out["properties"] = props
	return out
}
