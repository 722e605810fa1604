package fn

import (
	"fmt"
	"slices"
	"strings"

	"sigs.k8s.io/kustomize/kyaml/yaml"
)

// The severities of results.
const (
	Error   = "error"
	Warning = "warning"
	Info    = "info"
)

// Severities are all severities.
var Severities = []string{Error, Warning, Info}

// Result is something that a function reports.
type Result struct {
	Message  string
	Severity string
	Ref      *Ref
	Field    *Field
	File     *File
}

// Ref refers to an object.
type Ref struct{ APIVersion, Kind, Namespace, Name string }

// Field is a field of the object that a result is about.
type Field struct {
	Path          string     // such as spec.template.spec.containers[0].image
	CurrentValue  *yaml.Node // nil if the field is not there
	ProposedValue *yaml.Node // nil if there is nothing to propose
}

// File is the file that an object is from.
type File struct {
	Path  string
	Index int
}

// About makes a result about an object. The field may be empty, and current
// nil. The specification has no field without the object's name, so that a
// nameless object's is in the message only.
func About(o *Object, severity, field string, current *yaml.Node, message string) Result {
	r := Result{Message: message, Severity: severity, Ref: o.ref(), File: o.file()}
	if field != "" && r.Ref != nil {
		r.Field = &Field{Path: field, CurrentValue: current}
	}
	return r
}

// String is the result as one line.
func (r Result) String() string {
	var b strings.Builder
	if r.File != nil {
		fmt.Fprintf(&b, "%s[%d]: ", r.File.Path, r.File.Index)
	}
	if r.Ref != nil {
		fmt.Fprintf(&b, "%s ", r.Ref.Kind)
		if r.Ref.Namespace != "" {
			fmt.Fprintf(&b, "%s/", r.Ref.Namespace)
		}
		fmt.Fprintf(&b, "%s: ", r.Ref.Name)
	}
	if r.Field != nil {
		fmt.Fprintf(&b, "%s: ", r.Field.Path)
	}
	b.WriteString(r.Message)
	return b.String()
}

// node is the result as it is written.
func (r Result) node() *yaml.Node {
	n := mapping("message", r.Message, "severity", r.Severity)
	if r.Ref != nil {
		ref := mapping("apiVersion", r.Ref.APIVersion, "kind", r.Ref.Kind)
		if r.Ref.Namespace != "" {
			Set(ref, "namespace", Scalar(r.Ref.Namespace))
		}
		Set(ref, "name", Scalar(r.Ref.Name))
		Set(n, "resourceRef", ref)
	}
	if r.Field != nil {
		f := mapping("path", r.Field.Path)
		setValue(f, "currentValue", r.Field.CurrentValue)
		setValue(f, "proposedValue", r.Field.ProposedValue)
		Set(n, "field", f)
	}
	if r.File != nil {
		f := mapping("path", r.File.Path)
		Set(f, "index", &yaml.Node{Kind: yaml.ScalarNode, Tag: yaml.NodeTagInt, Value: fmt.Sprint(r.File.Index)})
		Set(n, "file", f)
	}
	return n
}

func setValue(n *yaml.Node, field string, value *yaml.Node) {
	if value == nil {
		return
	}
	if v := plain(value); v != nil {
		Set(n, field, v)
	}
}

// maxValue bounds the nodes of a value in a result.
const maxValue = 1000

// plain copies a value without its comments; nil if it is too large for a
// result.
func plain(n *yaml.Node) *yaml.Node {
	budget := maxValue
	c, err := expanded(n, 0, &budget)
	if err != nil {
		return nil
	}
	uncomment(c)
	return c
}

func uncomment(n *yaml.Node) {
	n.HeadComment, n.LineComment, n.FootComment = "", "", ""
	for _, c := range n.Content {
		uncomment(c)
	}
}

// ConfigReader reads the fields of a functionConfig and collects all that is
// wrong with them.
type ConfigReader struct {
	config  *Object
	Results []Result
}

// OpenConfig checks that a functionConfig is there and of one of the
// apiVersions and kinds, each written as "apiVersion kind".
func OpenConfig(config *Object, want ...string) (*ConfigReader, error) {
	if config == nil {
		return nil, fmt.Errorf("no functionConfig: it takes one of %s", list(want))
	}
	if got := config.APIVersion() + " " + config.Kind(); !slices.Contains(want, got) {
		return nil, fmt.Errorf("functionConfig is of apiVersion %q and kind %q: it takes %s", config.APIVersion(), config.Kind(), list(want))
	}
	return &ConfigReader{config: config}, nil
}

func list(want []string) string {
	var out []string
	for _, w := range want {
		apiVersion, kind, _ := strings.Cut(w, " ")
		out = append(out, fmt.Sprintf("kind %s of %s", kind, apiVersion))
	}
	return strings.Join(out, ", or ")
}

// Wrong reports a field that is wrong.
func (c *ConfigReader) Wrong(field string, current *yaml.Node, format string, args ...any) {
	c.Results = append(c.Results, About(c.config, Error, field, current, fmt.Sprintf("functionConfig: "+field+": "+format, args...)))
}

// Fields checks that a mapping has only these fields, which catches typing
// errors. A nil mapping has none.
func (c *ConfigReader) Fields(path string, n *yaml.Node, known ...string) {
	for key, value := range Fields(n) {
		if !slices.Contains(known, key.Value) {
			c.Wrong(join(path, key.Value), value, "unknown field; %s has %s", path, strings.Join(known, ", "))
		}
	}
}

// Mapping returns a field that is an object; nil if it is not there.
func (c *ConfigReader) Mapping(path string, n *yaml.Node, field string) *yaml.Node {
	return c.kind(join(path, field), Get(n, field), yaml.MappingNode, "an object")
}

// Sequence returns a field that is a list; nil if it is not there.
func (c *ConfigReader) Sequence(path string, n *yaml.Node, field string) *yaml.Node {
	return c.kind(join(path, field), Get(n, field), yaml.SequenceNode, "a list")
}

func (c *ConfigReader) kind(path string, n *yaml.Node, kind yaml.Kind, what string) *yaml.Node {
	if isNull(n) {
		return nil
	}
	if n.Kind != kind {
		c.Wrong(path, n, "is not %s but %s", what, describe(n))
		return nil
	}
	return n
}

// Bool returns a field that is true or false; false if it is not there.
func (c *ConfigReader) Bool(path string, n *yaml.Node, field string) bool {
	v := Get(n, field)
	if isNull(v) {
		return false
	}
	var b bool
	if v.Kind != yaml.ScalarNode || v.ShortTag() != yaml.NodeTagBool || v.Decode(&b) != nil {
		c.Wrong(join(path, field), v, "is not true or false but %s", describe(v))
	}
	return b
}

// Text returns a value that is a string. A number or a boolean is refused
// with the advice to quote it: which digits "1.10" has is lost otherwise.
func (c *ConfigReader) Text(path string, v *yaml.Node) (string, bool) {
	switch {
	case isNull(v):
		c.Wrong(path, v, "has no value")
	case v.Kind != yaml.ScalarNode:
		c.Wrong(path, v, "is not a string but %s", describe(v))
	case v.ShortTag() != yaml.NodeTagString:
		c.Wrong(path, v, "is %s, not a string: write %q in quotes", describe(v), v.Value)
	default:
		return v.Value, true
	}
	return "", false
}

// At is the path of an element of a list.
func At(path string, index int) string { return fmt.Sprintf("%s[%d]", path, index) }

func join(path, field string) string {
	if path == "" {
		return field
	}
	return path + "." + field
}
