package structural

import (
	"fmt"
	"maps"
	"math"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// shape is what the value of a keyword must be.
type shape int

const (
	shapeString shape = iota
	shapeBool
	shapeNumber
	shapeCount // an integer from 0
	shapeStrings
	shapeAny
	shapeAnyList
	shapeSchema
	shapeSchemas
	shapeSchemaMap
	shapeSchemaOrBool
	shapeSchemaOrList
	shapeMap
	shapeRules
)

// keywords are the fields of Kubernetes' JSONSchemaProps.
var keywords = map[string]shape{
	"$ref": shapeString, "$schema": shapeString, "id": shapeString,
	"description": shapeString, "title": shapeString, "format": shapeString, "pattern": shapeString, "type": shapeString,
	"default": shapeAny, "example": shapeAny, "enum": shapeAnyList, "externalDocs": shapeMap,
	"maximum": shapeNumber, "minimum": shapeNumber, "multipleOf": shapeNumber,
	"exclusiveMaximum": shapeBool, "exclusiveMinimum": shapeBool, "uniqueItems": shapeBool, "nullable": shapeBool,
	"maxLength": shapeCount, "minLength": shapeCount, "maxItems": shapeCount, "minItems": shapeCount,
	"maxProperties": shapeCount, "minProperties": shapeCount,
	"required": shapeStrings, "items": shapeSchemaOrList, "additionalItems": shapeSchemaOrBool,
	"not": shapeSchema, "allOf": shapeSchemas, "anyOf": shapeSchemas, "oneOf": shapeSchemas,
	"properties": shapeSchemaMap, "patternProperties": shapeSchemaMap, "definitions": shapeSchemaMap,
	"additionalProperties": shapeSchemaOrBool, "dependencies": shapeMap,
	"x-kubernetes-preserve-unknown-fields": shapeBool, "x-kubernetes-embedded-resource": shapeBool,
	"x-kubernetes-int-or-string": shapeBool, "x-kubernetes-list-type": shapeString, "x-kubernetes-map-type": shapeString,
	"x-kubernetes-list-map-keys": shapeStrings, "x-kubernetes-validations": shapeRules,
}

var types = []string{"object", "array", "string", "integer", "number", "boolean"}

// typeSlips are names of types in other languages.
var typeSlips = map[string]string{
	"bool": "boolean", "int": "integer", "int32": "integer", "int64": "integer", "float": "number", "float64": "number", "double": "number",
	"map": "object", "dict": "object", "struct": "object", "list": "array", "slice": "array", "str": "string", "text": "string",
}

// Check checks an openAPIV3Schema, as decoded from JSON with integers as
// int64 or float64. The findings are in no particular order.
func Check(schema any) []Finding {
	w := &walker{}
	w.schema(make([]string, 0, 64), schema, level{root: true})
	slices.SortStableFunc(w.found, func(a, b Finding) int { return slices.Compare(a.Path, b.Path) })
	return w.found
}

// Usable tells whether none of the findings about a schema keeps values from
// being checked against it.
func Usable(findings []Finding) bool {
	return !slices.ContainsFunc(findings, func(f Finding) bool { return f.Kind == Fault })
}

type walker struct {
	found []Finding
	nodes int
	full  bool // over the limit
}

// level is what a schema's place means for it.
type level struct {
	root     bool
	logical  bool // inside of allOf, anyOf, oneOf or not
	depth    int
	metadata bool // the metadata of the root or of an embedded resource
}

func (w *walker) add(kind Kind, path []string, onKey bool, fix, format string, a ...any) {
	w.found = append(w.found, Finding{Path: slices.Clone(path), OnKey: onKey, Kind: kind, Message: fmt.Sprintf(format, a...), Fix: fix})
}

// join goes deeper on a path. All paths of a walk share their memory, as only
// one of them is in use at a time: add copies those that are kept.
func join(path []string, more ...string) []string { return append(path, more...) }

func (w *walker) schema(path []string, v any, l level) {
	m, ok := v.(map[string]any)
	if !ok {
		w.add(Fault, path, false, "", "a schema must be a mapping, not %s", what(v))
		return
	}
	if w.nodes++; w.nodes > maxNodes && !w.full {
		w.full = true
		w.add(Fault, path, false, "", "the schema has more than %d schemas inside", maxNodes)
	}
	if w.full {
		return
	}
	if l.depth > maxDepth {
		w.add(Fault, path, false, "", "schemas are nested more than %d deep", maxDepth)
		return
	}
	before := len(w.found)
	for k, v := range m {
		w.keyword(join(path, k), k, v)
	}
	// Rules about the keywords together only make sense if each is right.
	if len(w.found) == before {
		w.ranges(path, m)
		w.structural(path, m, l)
		w.lists(path, m)
		w.defaults(path, m)
	}
	w.children(path, m, l)
}

// keyword checks the value of one keyword by itself.
func (w *walker) keyword(path []string, k string, v any) {
	s, known := keywords[k]
	if !known {
		if strings.HasPrefix(k, "x-") && !strings.HasPrefix(k, "x-kubernetes-") {
			return
		}
		fix := ""
		if near := nearest(k); near != "" {
			fix = fmt.Sprintf("did you mean %q?", near)
		}
		w.add(Unknown, path, true, fix, "unknown keyword %q has no effect", clip(k))
		return
	}
	wrong := func(want string) {
		fix := ""
		if _, isNumber := number(v); isNumber && (k == "exclusiveMinimum" || k == "exclusiveMaximum") {
			fix = fmt.Sprintf("write %s: the number, and %s: true", strings.ToLower(k[9:10])+k[10:], k)
		}
		w.add(Fault, path, false, fix, "must be %s, not %s", want, what(v))
	}
	switch s {
	case shapeString:
		if _, ok := v.(string); !ok {
			if v == nil && (k == "description" || k == "title") {
				w.add(Unstructural, path, false, "", "is empty")
				return
			}
			if k == "type" {
				if _, isList := v.([]any); isList {
					w.add(Fault, path, false, `write one type, and "nullable: true" if null is one of them`, "must be one type, not a list")
					return
				}
			}
			wrong("a string")
			return
		}
	case shapeBool:
		if _, ok := v.(bool); !ok {
			wrong("true or false")
		}
		return
	case shapeNumber:
		n, ok := number(v)
		if !ok {
			wrong("a number")
		} else if k == "multipleOf" && n <= 0 {
			w.add(Fault, path, false, "", "must be more than 0")
		}
		return
	case shapeCount:
		if n, ok := number(v); !ok || n != math.Trunc(n) {
			wrong("an integer")
		} else if n < 0 || n > math.MaxInt32 {
			w.add(Fault, path, false, "", "must be from 0 to %d", math.MaxInt32)
		}
		return
	case shapeStrings:
		list, ok := v.([]any)
		if !ok {
			wrong("a list of strings")
			return
		}
		for i, x := range list {
			if _, ok := x.(string); !ok {
				w.add(Fault, join(path, strconv.Itoa(i)), false, "", "must be a string, not %s", what(x))
			}
		}
		return
	case shapeAnyList:
		if list, ok := v.([]any); !ok {
			wrong("a list")
		} else if len(list) == 0 {
			w.add(Fault, path, false, "", "an empty list allows no value")
		}
		return
	case shapeSchemas:
		if _, ok := v.([]any); !ok {
			wrong("a list of schemas")
		}
		return
	case shapeSchemaMap, shapeMap:
		if _, ok := v.(map[string]any); !ok {
			wrong("a mapping")
		}
		return
	case shapeSchemaOrBool:
		switch v.(type) {
		case bool, map[string]any:
		default:
			wrong("a schema, true or false")
		}
		return
	case shapeSchemaOrList:
		switch v.(type) {
		case map[string]any:
		case []any:
			w.add(Fault, path, false, "write one schema for all items", "must be one schema, not a list")
		default:
			wrong("a schema")
		}
		return
	case shapeRules:
		w.rules(path, v)
		return
	}
	text, _ := v.(string)
	switch k {
	case "type":
		if !slices.Contains(types, text) {
			fix := "write one of " + strings.Join(types, ", ")
			if t := typeSlips[strings.ToLower(text)]; t != "" {
				fix = fmt.Sprintf("write %q", t)
			}
			w.add(Fault, path, false, fix, "unknown type %q", clip(text))
		}
	case "pattern":
		if err := checkPattern(text); err != nil {
			w.add(Fault, path, false, "patterns are those of RE2, without lookaround and back references", "%v", err)
		}
	case "$ref", "$schema", "id":
		// They could name a file or a URL. Kubernetes forbids them as well.
		w.add(Fault, path, true, "write the schema out", "%s is not allowed", k)
	case "x-kubernetes-list-type":
		if text != "atomic" && text != "set" && text != "map" {
			w.add(Fault, path, false, "", "must be atomic, set or map, not %q", clip(text))
		}
	case "x-kubernetes-map-type":
		if text != "atomic" && text != "granular" {
			w.add(Fault, path, false, "", "must be atomic or granular, not %q", clip(text))
		}
	}
}

// maxPattern bounds a pattern: RE2 takes linear time, but repetition makes
// large programs of small patterns.
const maxPattern = 10_000

func checkPattern(p string) error {
	if len(p) > maxPattern {
		return fmt.Errorf("the pattern is longer than %d bytes", maxPattern)
	}
	if _, err := regexp.Compile(p); err != nil {
		return fmt.Errorf("invalid pattern: %w", err)
	}
	return nil
}

// rules checks the form of x-kubernetes-validations.
func (w *walker) rules(path []string, v any) {
	list, ok := v.([]any)
	if !ok {
		w.add(Fault, path, false, "", "must be a list of rules, not %s", what(v))
		return
	}
	fields := map[string]bool{"rule": true, "message": true, "messageExpression": true, "reason": true, "fieldPath": true, "optionalOldSelf": false}
	for i, item := range list {
		at := join(path, strconv.Itoa(i))
		m, ok := item.(map[string]any)
		if !ok {
			w.add(Fault, at, false, "", "a rule must be a mapping, not %s", what(item))
			continue
		}
		for _, k := range slices.Sorted(maps.Keys(m)) {
			isText, known := fields[k]
			switch {
			case !known:
				w.add(Unknown, join(at, k), true, "", "unknown field %q has no effect", clip(k))
			case isText:
				if s, ok := m[k].(string); !ok {
					w.add(Fault, join(at, k), false, "", "must be a string, not %s", what(m[k]))
				} else if k == "rule" && strings.TrimSpace(s) == "" {
					w.add(Fault, join(at, k), false, "", "the rule is empty")
				}
			default:
				if _, ok := m[k].(bool); !ok {
					w.add(Fault, join(at, k), false, "", "must be true or false, not %s", what(m[k]))
				}
			}
		}
		if _, ok := m["rule"]; !ok {
			w.add(Fault, at, true, "", `missing "rule"`)
		}
	}
}

// ranges checks bounds against each other.
func (w *walker) ranges(path []string, m map[string]any) {
	for _, pair := range [][2]string{{"minimum", "maximum"}, {"minLength", "maxLength"}, {"minItems", "maxItems"}, {"minProperties", "maxProperties"}} {
		lo, ok1 := number(m[pair[0]])
		hi, ok2 := number(m[pair[1]])
		if ok1 && ok2 && lo > hi {
			w.add(Fault, join(path, pair[0]), false, "", "%s is more than %s: no value is valid", pair[0], pair[1])
		}
	}
}

// structural checks the rules for structural schemas.
func (w *walker) structural(path []string, m map[string]any, l level) {
	typ, _ := m["type"].(string)
	intOrString := isTrue(m, "x-kubernetes-int-or-string")
	preserve := isTrue(m, "x-kubernetes-preserve-unknown-fields")
	switch {
	case l.root && typ != "object":
		w.add(Unstructural, path, true, `add "type: object"`, "the root of a schema must have the type object")
	case !l.logical && typ == "" && !intOrString && !preserve:
		w.add(Unstructural, path, true, "add a type", "has no type")
	case typ != "" && intOrString:
		w.add(Unstructural, join(path, "type"), true, "remove it", "x-kubernetes-int-or-string and type exclude each other")
	}
	if l.logical {
		for _, k := range []string{"type", "description", "title", "default", "nullable", "additionalProperties", "x-kubernetes-preserve-unknown-fields", "x-kubernetes-embedded-resource", "x-kubernetes-int-or-string"} {
			if _, there := m[k]; there && !(k == "type" && intOrStringBranch(m)) {
				w.add(Unstructural, join(path, k), true, "move it out", "%s is not allowed inside of allOf, anyOf, oneOf and not", k)
			}
		}
	}
	if m["properties"] != nil && m["additionalProperties"] != nil && m["additionalProperties"] != false {
		w.add(Unstructural, join(path, "additionalProperties"), true, "keep one of them", "properties and additionalProperties exclude each other")
	}
	if m["additionalProperties"] == false {
		w.add(Unstructural, join(path, "additionalProperties"), false, "remove it", "must not be false: unknown fields are refused without it")
	}
	if isTrue(m, "uniqueItems") {
		w.add(Unstructural, join(path, "uniqueItems"), false, "write x-kubernetes-list-type: set", "must not be true")
	}
	for _, k := range []string{"definitions", "dependencies", "patternProperties", "additionalItems"} {
		if _, there := m[k]; there {
			w.add(Fault, join(path, k), true, "", "%s is not allowed", k)
		}
	}
	if typ == "array" && m["items"] == nil && !l.logical {
		w.add(Unstructural, path, true, "add items", "a list must say what its items are")
	}
	if preserve && typ != "" && typ != "object" {
		w.add(Unstructural, join(path, "x-kubernetes-preserve-unknown-fields"), true, "remove it", "only objects have unknown fields")
	}
	if isTrue(m, "x-kubernetes-embedded-resource") {
		if typ != "object" {
			w.add(Unstructural, path, true, `add "type: object"`, "an embedded resource must have the type object")
		}
		if m["properties"] == nil && !preserve {
			w.add(Unstructural, path, true, "add properties or x-kubernetes-preserve-unknown-fields", "an embedded resource must have properties")
		}
	}
	if l.metadata {
		w.metadata(path, m)
	}
	if _, there := m["default"]; there && l.root {
		w.add(Unstructural, join(path, "default"), true, "remove it", "the root of a schema has no default")
	}
}

// intOrStringBranch tells the two branches that Kubernetes lets stand beside
// x-kubernetes-int-or-string.
func intOrStringBranch(m map[string]any) bool {
	t, _ := m["type"].(string)
	return len(m) == 1 && (t == "integer" || t == "string")
}

// metadata checks the metadata of a resource, which may only restrict names.
func (w *walker) metadata(path []string, m map[string]any) {
	for _, k := range slices.Sorted(maps.Keys(m)) {
		switch k {
		case "type", "properties", "description":
		default:
			w.add(Unstructural, join(path, k), true, "remove it", "metadata may only restrict name and generateName, with properties")
		}
	}
	props, _ := m["properties"].(map[string]any)
	for _, k := range slices.Sorted(maps.Keys(props)) {
		if k != "name" && k != "generateName" {
			w.add(Unstructural, join(path, "properties", k), true, "remove it", "metadata may only restrict name and generateName")
		}
	}
}

// lists checks the extensions for lists.
func (w *walker) lists(path []string, m map[string]any) {
	kind, _ := m["x-kubernetes-list-type"].(string)
	typ, _ := m["type"].(string)
	if kind != "" && typ != "array" && typ != "" {
		w.add(Unstructural, join(path, "x-kubernetes-list-type"), true, "remove it", "only lists have a list type")
	}
	if t, ok := m["x-kubernetes-map-type"].(string); ok && t != "" && typ != "object" && typ != "" {
		w.add(Unstructural, join(path, "x-kubernetes-map-type"), true, "remove it", "only objects have a map type")
	}
	keys, _ := m["x-kubernetes-list-map-keys"].([]any)
	switch {
	case kind == "map" && len(keys) == 0:
		w.add(Fault, join(path, "x-kubernetes-list-type"), false, "add x-kubernetes-list-map-keys", "a list of type map needs keys")
	case kind != "map" && len(keys) > 0:
		w.add(Unstructural, join(path, "x-kubernetes-list-map-keys"), true, "write x-kubernetes-list-type: map", "only lists of type map have keys")
	}
	items, _ := m["items"].(map[string]any)
	if items == nil {
		return
	}
	itemType, _ := items["type"].(string)
	props, _ := items["properties"].(map[string]any)
	switch kind {
	case "map":
		if itemType != "object" {
			w.add(Unstructural, join(path, "items"), true, "", "the items of a list of type map must be objects")
		}
		for i, k := range keys {
			name, _ := k.(string)
			p, ok := props[name].(map[string]any)
			at := join(path, "x-kubernetes-list-map-keys", strconv.Itoa(i))
			if !ok {
				w.add(Unstructural, at, false, "", "%q is not a property of the items", clip(name))
				continue
			}
			if t, _ := p["type"].(string); t == "object" || t == "array" {
				w.add(Unstructural, at, false, "", "%q is no scalar", clip(name))
			}
		}
	case "set":
		if itemType == "object" && items["x-kubernetes-map-type"] != "atomic" || itemType == "array" && items["x-kubernetes-list-type"] != "atomic" && items["x-kubernetes-list-type"] != nil {
			w.add(Unstructural, join(path, "items"), true, "", "the items of a list of type set must be scalars or atomic")
		}
	}
}

// defaults checks a default against the keywords for scalars beside it, and a
// collection against its type.
func (w *walker) defaults(path []string, m map[string]any) {
	d, there := m["default"]
	if !there || d == nil && isTrue(m, "nullable") {
		return
	}
	at := join(path, "default")
	wrong := func(format string, a ...any) { w.add(Contradiction, at, false, "", format, a...) }
	n, isNumber := number(d)
	text, isText := d.(string)
	ok := true
	switch m["type"] {
	case "object":
		_, ok = d.(map[string]any)
	case "array":
		_, ok = d.([]any)
	case "string":
		ok = isText
	case "boolean":
		_, ok = d.(bool)
	case "number":
		ok = isNumber
	case "integer":
		ok = isNumber && n == math.Trunc(n)
	default:
		ok = !isTrue(m, "x-kubernetes-int-or-string") || isText || isNumber && n == math.Trunc(n)
	}
	if !ok {
		wrong("the default is %s, and does not have the type that the schema gives", what(d))
		return
	}
	if list, has := m["enum"].([]any); has && !slices.ContainsFunc(list, func(e any) bool { return reflect.DeepEqual(e, d) }) {
		if _, isScalar := d.(map[string]any); !isScalar && !isNumber {
			wrong("the default is not one of the values that the schema allows")
		}
	}
	if isNumber {
		if least, has := number(m["minimum"]); has && (n < least || n == least && isTrue(m, "exclusiveMinimum")) {
			wrong("the default is below the minimum")
		}
		if most, has := number(m["maximum"]); has && (n > most || n == most && isTrue(m, "exclusiveMaximum")) {
			wrong("the default is above the maximum")
		}
	}
	if isText {
		length := float64(utf8.RuneCountInString(text))
		if least, has := number(m["minLength"]); has && length < least {
			wrong("the default is shorter than minLength")
		}
		if most, has := number(m["maxLength"]); has && length > most {
			wrong("the default is longer than maxLength")
		}
		if p, has := m["pattern"].(string); has {
			if re, err := regexp.Compile(p); err == nil && !re.MatchString(text) {
				wrong("the default does not match the pattern")
			}
		}
	}
}

// children walks the schemas inside of a schema.
func (w *walker) children(path []string, m map[string]any, l level) {
	inner := level{logical: l.logical, depth: l.depth + 1}
	props, _ := m["properties"].(map[string]any)
	resource := l.root || isTrue(m, "x-kubernetes-embedded-resource")
	for k, p := range props {
		child := inner
		child.metadata = resource && k == "metadata" && !l.logical
		w.schema(join(path, "properties", k), p, child)
	}
	for _, k := range []string{"items", "additionalProperties"} {
		if s, ok := m[k].(map[string]any); ok {
			w.schema(join(path, k), s, inner)
		}
	}
	inner.logical = true
	if s, ok := m["not"].(map[string]any); ok {
		w.schema(join(path, "not"), s, inner)
	}
	for _, k := range []string{"allOf", "anyOf", "oneOf"} {
		list, _ := m[k].([]any)
		for i, s := range list {
			w.schema(join(path, k, strconv.Itoa(i)), s, inner)
		}
	}
}

func isTrue(m map[string]any, k string) bool { return m[k] == true }

// number is the value of any Go number.
func number(v any) (float64, bool) {
	switch n := v.(type) {
	case int64:
		return float64(n), true
	case float64:
		return n, true
	case int:
		return float64(n), true
	}
	return 0, false
}

// what names the type of a value for a message.
func what(v any) string {
	switch x := v.(type) {
	case nil:
		return "null"
	case map[string]any:
		return "a mapping"
	case []any:
		return "a list"
	case string:
		return "the string " + strconv.Quote(clip(x))
	case bool:
		return strconv.FormatBool(x)
	}
	return fmt.Sprintf("the number %v", v)
}

// clip shortens text for a message.
func clip(s string) string {
	if r := []rune(s); len(r) > 60 {
		return string(r[:60]) + "…"
	}
	return s
}

// nearest is the keyword that is spelled most like k, if one is.
func nearest(k string) string {
	fold := func(s string) string {
		return strings.NewReplacer("-", "", "_", "").Replace(strings.ToLower(s))
	}
	for _, name := range slices.Sorted(maps.Keys(keywords)) {
		if fold(name) == fold(k) || fold(name) == fold(k)+"s" || fold(name)+"s" == fold(k) {
			return name
		}
		if len(k) == len(name) && len(k) > 3 {
			diff := 0
			for i := range len(k) {
				if k[i] != name[i] {
					diff++
				}
			}
			// One letter changed, or two neighbours swapped.
			if diff <= 2 {
				return name
			}
		}
	}
	return ""
}
