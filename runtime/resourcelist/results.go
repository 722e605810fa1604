package resourcelist

import (
	"bytes"
	"fmt"
	"strconv"

	"go.yaml.in/yaml/v3"
)

// Severity of a result.
type Severity string

// The severities of the specification (FS-18). A result that gives none is an
// error: interpretation of the specification's default, although other
// orchestrators show it as information.
const (
	SeverityError   Severity = "error"
	SeverityWarning Severity = "warning"
	SeverityInfo    Severity = "info"
)

// Result is one observation of a function (FS-16 to FS-26).
type Result struct {
	Message     string            `yaml:"message" json:"message"`
	Severity    Severity          `yaml:"severity,omitempty" json:"severity,omitempty"`
	ResourceRef *ResourceRef      `yaml:"resourceRef,omitempty" json:"resourceRef,omitempty"`
	Field       *Field            `yaml:"field,omitempty" json:"field,omitempty"`
	File        *File             `yaml:"file,omitempty" json:"file,omitempty"`
	Tags        map[string]string `yaml:"tags,omitempty" json:"tags,omitempty"`
}

// ResourceRef names the object that a result is about.
type ResourceRef struct {
	APIVersion string `yaml:"apiVersion" json:"apiVersion"`
	Kind       string `yaml:"kind" json:"kind"`
	Name       string `yaml:"name" json:"name"`
	Namespace  string `yaml:"namespace,omitempty" json:"namespace,omitempty"`
}

// Field names a field of that object. The values are of any type.
type Field struct {
	Path          string `yaml:"path" json:"path"`
	CurrentValue  any    `yaml:"currentValue,omitempty" json:"currentValue,omitempty"`
	ProposedValue any    `yaml:"proposedValue,omitempty" json:"proposedValue,omitempty"`
}

// File names a file; Index is the position of the object in it.
type File struct {
	Path  string `yaml:"path" json:"path"`
	Index int    `yaml:"index,omitempty" json:"index,omitempty"`
}

// Text is a result on one line.
func (r Result) Text() string {
	s := "[" + string(r.Level()) + "] "
	if r.ResourceRef != nil {
		s += Meta{APIVersion: r.ResourceRef.APIVersion, Kind: r.ResourceRef.Kind, Namespace: r.ResourceRef.Namespace, Name: r.ResourceRef.Name}.ID()
		if r.Field != nil {
			s += " " + r.Field.Path
		}
		s += ": "
	}
	s += r.Message
	if r.File != nil && r.File.Path != "" {
		s += " (" + r.File.Path + ")"
	}
	return s
}

// Level is the severity, error if none is given.
func (r Result) Level() Severity {
	if r.Severity == "" {
		return SeverityError
	}
	return r.Severity
}

// HasErrors reports whether a result is an error.
func HasErrors(rs []Result) bool {
	for _, r := range rs {
		if r.Level() == SeverityError {
			return true
		}
	}
	return false
}

// MarshalResults writes results as a YAML list at column 0.
func MarshalResults(rs []Result) ([]byte, error) {
	var b bytes.Buffer
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	enc.CompactSeqIndent()
	if err := enc.Encode(rs); err != nil {
		return nil, fmt.Errorf("writing results: %w", err)
	}
	if err := enc.Close(); err != nil {
		return nil, fmt.Errorf("writing results: %w", err)
	}
	return b.Bytes(), nil
}

// readResults reads both shapes: the flat list of the specification, and the
// older groups with name and items (KG-20), with their words for warning and
// proposedValue.
func readResults(n *yaml.Node) ([]Result, bool, error) {
	switch {
	case n.ShortTag() == "!!null":
		return nil, false, nil
	case n.Kind == yaml.MappingNode:
		rs, err := readGroup(n, "results")
		return rs, true, err
	case n.Kind != yaml.SequenceNode:
		return nil, false, fmt.Errorf("results is %s, not a list", kindName(n))
	}
	var out []Result
	legacy := false
	for i, c := range n.Content {
		c = deref(c)
		where := "results[" + strconv.Itoa(i) + "]"
		if c.Kind != yaml.MappingNode {
			return nil, legacy, fmt.Errorf("%s is %s, not a mapping", where, kindName(c))
		}
		if Get(c, "items") != nil && Get(c, "message") == nil {
			legacy = true
			rs, err := readGroup(c, where)
			if err != nil {
				return nil, legacy, err
			}
			out = append(out, rs...)
			continue
		}
		r, err := readResult(c, where)
		if err != nil {
			return nil, legacy, err
		}
		out = append(out, r)
	}
	return out, legacy, nil
}

func readGroup(n *yaml.Node, where string) ([]Result, error) {
	items := Get(n, "items")
	if items == nil || items.ShortTag() == "!!null" {
		return nil, nil
	}
	if items.Kind != yaml.SequenceNode {
		return nil, fmt.Errorf("%s.items is %s, not a list", where, kindName(items))
	}
	var out []Result
	for i, c := range items.Content {
		r, err := readResult(deref(c), where+".items["+strconv.Itoa(i)+"]")
		if err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	return out, nil
}

// readResult reads what it can use; conformance has the strict checks.
func readResult(n *yaml.Node, where string) (Result, error) {
	var r Result
	if n.Kind != yaml.MappingNode {
		return r, fmt.Errorf("%s is %s, not a mapping", where, kindName(n))
	}
	text := func(parent *yaml.Node, field string) string {
		if v := Get(parent, field); v != nil && v.Kind == yaml.ScalarNode && v.ShortTag() != "!!null" {
			return v.Value
		}
		return ""
	}
	r.Message = text(n, "message")
	switch s := text(n, "severity"); s {
	case "", "error":
		r.Severity = SeverityError
	case "warning", "warn":
		r.Severity = SeverityWarning
	case "info":
		r.Severity = SeverityInfo
	default:
		return r, fmt.Errorf("%s.severity is %q, want error, warning or info", where, s)
	}
	if ref := Get(n, "resourceRef"); ref != nil && ref.Kind == yaml.MappingNode {
		r.ResourceRef = &ResourceRef{text(ref, "apiVersion"), text(ref, "kind"), text(ref, "name"), text(ref, "namespace")}
		if md := Get(ref, "metadata"); r.ResourceRef.Name == "" && md != nil {
			r.ResourceRef.Name, r.ResourceRef.Namespace = text(md, "name"), text(md, "namespace")
		}
	}
	if f := Get(n, "field"); f != nil && f.Kind == yaml.MappingNode {
		r.Field = &Field{Path: text(f, "path")}
		for _, v := range []struct {
			name string
			dst  *any
		}{{"currentValue", &r.Field.CurrentValue}, {"proposedValue", &r.Field.ProposedValue}, {"suggestedValue", &r.Field.ProposedValue}} {
			if c := Get(f, v.name); c != nil {
				if err := c.Decode(v.dst); err != nil {
					return r, fmt.Errorf("%s.field.%s: %w", where, v.name, syntaxError(err))
				}
			}
		}
	}
	if f := Get(n, "file"); f != nil && f.Kind == yaml.MappingNode {
		r.File = &File{Path: text(f, "path")}
		if i := text(f, "index"); i != "" {
			idx, err := strconv.ParseFloat(i, 64)
			if err != nil {
				return r, fmt.Errorf("%s.file.index is %q, not a number", where, i)
			}
			r.File.Index = int(idx)
		}
	}
	if t := Get(n, "tags"); t != nil && t.Kind == yaml.MappingNode {
		r.Tags = map[string]string{}
		for i := 0; i+1 < len(t.Content); i += 2 {
			r.Tags[t.Content[i].Value] = deref(t.Content[i+1]).Value
		}
	}
	return r, nil
}

// ResultsOf reads the value of a results field.
func ResultsOf(n *yaml.Node) ([]Result, error) {
	rs, _, err := readResults(deref(n))
	return rs, err
}
