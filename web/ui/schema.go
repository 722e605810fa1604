package ui

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// Limits of the table of a schema: what is deeper or longer is in the schema
// itself, to which the page links.
const (
	maxSchemaRows  = 300
	maxSchemaDepth = 8
)

// SchemaRow is a field of a functionConfig.
type SchemaRow struct {
	Path        string // such as spec.rules[].name
	Depth       int
	Type        string
	Required    bool
	Default     string
	Constraints []string // such as "one of a, b"
	Description string
}

// schemaNode is what is shown of a schema (OpenAPI v3 as in a CRD).
type schemaNode struct {
	Type                 any               `json:"type"`
	Format               string            `json:"format"`
	Description          string            `json:"description"`
	Properties           *ordered          `json:"properties"`
	Required             []string          `json:"required"`
	Items                json.RawMessage   `json:"items"`
	AdditionalProperties json.RawMessage   `json:"additionalProperties"`
	Default              json.RawMessage   `json:"default"`
	Enum                 []json.RawMessage `json:"enum"`
	Pattern              string            `json:"pattern"`
	Minimum              *json.Number      `json:"minimum"`
	Maximum              *json.Number      `json:"maximum"`
	MinLength            *json.Number      `json:"minLength"`
	MaxLength            *json.Number      `json:"maxLength"`
	MinItems             *json.Number      `json:"minItems"`
	MaxItems             *json.Number      `json:"maxItems"`
	IntOrString          bool              `json:"x-kubernetes-int-or-string"`
	Preserve             bool              `json:"x-kubernetes-preserve-unknown-fields"`
}

// ordered is an object whose keys keep their order.
type ordered struct {
	keys   []string
	values map[string]json.RawMessage
}

func (o *ordered) UnmarshalJSON(data []byte) error {
	d := json.NewDecoder(bytes.NewReader(data))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return fmt.Errorf("properties are not an object: %w", err)
	}
	o.values = map[string]json.RawMessage{}
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return err
		}
		key, _ := t.(string)
		var v json.RawMessage
		if err := d.Decode(&v); err != nil {
			return err
		}
		if _, ok := o.values[key]; !ok {
			o.keys = append(o.keys, key)
		}
		o.values[key] = v
	}
	return nil
}

// SchemaRows lists the fields of a schema in its order, with those that every
// resource has left out. A schema that cannot be read has none.
func SchemaRows(schema json.RawMessage) []SchemaRow {
	var rows []SchemaRow
	if n := parseSchema(schema); n != nil {
		n.rows(&rows, "", 0)
	}
	return rows
}

func parseSchema(data json.RawMessage) *schemaNode {
	if len(data) == 0 {
		return nil
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	var n schemaNode
	if d.Decode(&n) != nil {
		return nil
	}
	return &n
}

func (n *schemaNode) rows(rows *[]SchemaRow, prefix string, depth int) {
	if n.Properties == nil || depth > maxSchemaDepth {
		return
	}
	for _, key := range n.Properties.keys {
		if depth == 0 && (key == "apiVersion" || key == "kind" || key == "metadata") {
			continue
		}
		if len(*rows) >= maxSchemaRows {
			return
		}
		child := parseSchema(n.Properties.values[key])
		if child == nil {
			continue
		}
		path := key
		if prefix != "" {
			path = prefix + "." + key
		}
		*rows = append(*rows, SchemaRow{
			Path: path, Depth: depth, Type: child.typeName(), Required: slices.Contains(n.Required, key),
			Default: compact(child.Default), Constraints: child.constraints(), Description: child.Description,
		})
		child.below(rows, path, depth)
	}
}

// below lists what is inside a field: its fields, those of its items, or
// those of the values of a map.
func (n *schemaNode) below(rows *[]SchemaRow, path string, depth int) {
	if n.Properties != nil {
		n.rows(rows, path, depth+1)
		return
	}
	if items := parseSchema(n.Items); items != nil {
		items.rows(rows, path+"[]", depth+1)
	} else if values := parseSchema(n.AdditionalProperties); values != nil {
		values.rows(rows, path+".*", depth+1)
	}
}

func (n *schemaNode) typeName() string {
	var name string
	switch t := n.Type.(type) {
	case string:
		name = t
	case []any:
		var parts []string
		for _, x := range t {
			parts = append(parts, fmt.Sprint(x))
		}
		name = strings.Join(parts, " or ")
	}
	switch {
	case n.IntOrString:
		return "integer or string"
	case name == "array":
		if items := parseSchema(n.Items); items != nil {
			return "list of " + items.typeName()
		}
		return "list"
	case name == "object" && n.Properties == nil:
		if values := parseSchema(n.AdditionalProperties); values != nil && values.Type != nil {
			return "map of " + values.typeName()
		}
	case name == "" && n.Properties != nil:
		return "object"
	case name == "":
		return "anything"
	}
	if n.Format != "" {
		return name + " (" + n.Format + ")"
	}
	return name
}

func (n *schemaNode) constraints() []string {
	var out []string
	if len(n.Enum) > 0 {
		var values []string
		for _, e := range n.Enum[:min(len(n.Enum), 20)] {
			values = append(values, compact(e))
		}
		out = append(out, "one of "+strings.Join(values, ", "))
	}
	if n.Pattern != "" {
		out = append(out, "matches "+n.Pattern)
	}
	between := func(low, high *json.Number, what string) {
		switch {
		case low != nil && high != nil:
			out = append(out, fmt.Sprintf("%s to %s%s", *low, *high, what))
		case low != nil:
			out = append(out, fmt.Sprintf("at least %s%s", *low, what))
		case high != nil:
			out = append(out, fmt.Sprintf("at most %s%s", *high, what))
		}
	}
	between(n.Minimum, n.Maximum, "")
	between(n.MinLength, n.MaxLength, " characters")
	between(n.MinItems, n.MaxItems, " items")
	return out
}

// compact is JSON on one line, cut where it gets long.
func compact(data json.RawMessage) string {
	if len(data) == 0 {
		return ""
	}
	var b bytes.Buffer
	if json.Compact(&b, data) != nil {
		return ""
	}
	if s := []rune(b.String()); len(s) > 80 {
		return string(s[:80]) + "…"
	}
	return b.String()
}

// Skeleton is a functionConfig to begin with: the required fields of a
// schema, with their defaults or a value of their type.
func Skeleton(apiVersion, kind string, schema json.RawMessage) string {
	var b strings.Builder
	fmt.Fprintf(&b, "apiVersion: %s\nkind: %s\nmetadata:\n  name: my-%s\n", apiVersion, kind, strings.ToLower(kind))
	n := parseSchema(schema)
	if n == nil || n.Properties == nil {
		return b.String()
	}
	for _, key := range n.Properties.keys {
		if key == "apiVersion" || key == "kind" || key == "metadata" {
			continue
		}
		// What a function takes is in spec, or beside it: shown either way.
		if key == "spec" || slices.Contains(n.Required, key) {
			writeSkeleton(&b, key, parseSchema(n.Properties.values[key]), 0)
		}
	}
	return b.String()
}

func writeSkeleton(b *strings.Builder, key string, n *schemaNode, depth int) {
	indent := strings.Repeat("  ", depth)
	if n == nil || depth > maxSchemaDepth || b.Len() > 8<<10 {
		return
	}
	name := key
	if strings.ContainsAny(key, ":#{}[],&*?|-<>=!%@\\\"' \t\n") || key == "" {
		name = fmt.Sprintf("%q", key)
	}
	switch {
	case len(n.Default) > 0:
		fmt.Fprintf(b, "%s%s: %s\n", indent, name, compact(n.Default))
	case len(n.Enum) > 0:
		fmt.Fprintf(b, "%s%s: %s\n", indent, name, compact(n.Enum[0]))
	case n.Properties != nil:
		fmt.Fprintf(b, "%s%s:\n", indent, name)
		begun := b.Len()
		for _, k := range n.Properties.keys {
			if slices.Contains(n.Required, k) || depth == 0 && len(n.Required) == 0 {
				writeSkeleton(b, k, parseSchema(n.Properties.values[k]), depth+1)
			}
		}
		if b.Len() == begun {
			s := strings.TrimSuffix(b.String(), "\n")
			b.Reset()
			b.WriteString(s + " {}\n")
		}
	default:
		value := map[string]string{"string": `""`, "integer": "0", "number": "0", "boolean": "false", "array": "[]", "object": "{}"}
		t, _ := n.Type.(string)
		v := value[t]
		if v == "" {
			v = `""`
		}
		fmt.Fprintf(b, "%s%s: %s\n", indent, name, v)
	}
}
