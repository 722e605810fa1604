package fn

import (
	"errors"
	"iter"
	"slices"

	"sigs.k8s.io/kustomize/kyaml/yaml"
)

// Follow returns the node that an alias stands for, or the node itself.
func Follow(n *yaml.Node) *yaml.Node {
	for n != nil && n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	return n
}

// Get returns the value at a path of fields; nil if it is not there. Aliases
// and merge keys are followed.
func Get(n *yaml.Node, path ...string) *yaml.Node {
	for _, field := range path {
		budget := maxMerges
		n = get(n, field, &budget)
	}
	return n
}

// maxMerges bounds the mappings that are looked through for one field: merge
// keys can refer to their own mapping.
const maxMerges = 100

func get(n *yaml.Node, field string, budget *int) *yaml.Node {
	if n = Follow(n); n == nil || n.Kind != yaml.MappingNode || *budget <= 0 {
		return nil
	}
	*budget--
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == field {
			return Follow(n.Content[i+1])
		}
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if k := n.Content[i]; k.Value != "<<" || k.Tag == yaml.NodeTagString {
			continue
		}
		from := []*yaml.Node{n.Content[i+1]}
		if many := Elements(n.Content[i+1]); many != nil {
			from = many
		}
		for _, m := range from {
			if v := get(m, field, budget); v != nil {
				return v
			}
		}
	}
	return nil
}

// String returns the scalar at a path of fields; empty if there is none.
func String(n *yaml.Node, path ...string) string {
	if v := Get(n, path...); v != nil && v.Kind == yaml.ScalarNode && !isNull(v) {
		return v.Value
	}
	return ""
}

// Fields are the keys and values of a mapping as they are written.
func Fields(n *yaml.Node) iter.Seq2[*yaml.Node, *yaml.Node] {
	return func(yield func(*yaml.Node, *yaml.Node) bool) {
		if n = Follow(n); n == nil || n.Kind != yaml.MappingNode {
			return
		}
		for i := 0; i+1 < len(n.Content); i += 2 {
			if !yield(n.Content[i], n.Content[i+1]) {
				return
			}
		}
	}
}

// Elements are the elements of a sequence; none of anything else.
func Elements(n *yaml.Node) []*yaml.Node {
	if n = Follow(n); n == nil || n.Kind != yaml.SequenceNode {
		return nil
	}
	return n.Content
}

// Set sets a field of a mapping to a value, at its end if it is new.
func Set(n *yaml.Node, field string, value *yaml.Node) {
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == field {
			n.Content[i+1] = value
			return
		}
	}
	n.Content = append(n.Content, Scalar(field), value)
}

// Insert adds a field that a mapping does not have, behind the last of the
// fields that are named, or in front if it has none of them.
func Insert(n *yaml.Node, field string, value *yaml.Node, behind ...string) {
	at := 0
	for i := 0; i+1 < len(n.Content); i += 2 {
		for _, b := range behind {
			if n.Content[i].Value == b {
				at = i + 2
			}
		}
	}
	content := append([]*yaml.Node{}, n.Content[:at]...)
	content = append(content, Scalar(field), value)
	n.Content = append(content, n.Content[at:]...)
}

// Remove removes a field of a mapping.
func Remove(n *yaml.Node, field string) {
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == field {
			n.Content = append(n.Content[:i:i], n.Content[i+2:]...)
			return
		}
	}
}

// Scalar is a string, in quotes if a reader of YAML 1.1 or 1.2 would take it
// for something else without.
func Scalar(s string) *yaml.Node {
	n := &yaml.Node{Kind: yaml.ScalarNode, Tag: yaml.NodeTagString, Value: s}
	if yaml.IsValueNonString(s) {
		n.Style = yaml.DoubleQuotedStyle
	}
	return n
}

// SetScalar gives a scalar another string, and keeps its comments and quotes.
func SetScalar(n *yaml.Node, s string) {
	v := Scalar(s)
	if n.ShortTag() == yaml.NodeTagString && n.Style&(yaml.DoubleQuotedStyle|yaml.SingleQuotedStyle) != 0 {
		v.Style = n.Style
	}
	n.Kind, n.Tag, n.Value, n.Style, n.Content, n.Alias = v.Kind, v.Tag, v.Value, v.Style, nil, nil
}

// Mapping is an empty mapping.
func Mapping() *yaml.Node { return &yaml.Node{Kind: yaml.MappingNode, Tag: yaml.NodeTagMap} }

// mapping is a mapping of strings.
func mapping(pairs ...string) *yaml.Node {
	n := Mapping()
	for i := 0; i+1 < len(pairs); i += 2 {
		Set(n, pairs[i], Scalar(pairs[i+1]))
	}
	return n
}

// maxExpansion bounds the nodes that a ResourceList grows to when its aliases
// are replaced.
const maxExpansion = 5_000_000

var errExpansion = errors.New("the aliases in the ResourceList stand for too much")

// Expand replaces the aliases in a list by copies of what they stand for: a
// change in one place is then none in the others. It is called before the
// function changes anything.
func (l *List) Expand() error {
	if !hasAlias(l.root) {
		return nil
	}
	budget := maxExpansion
	root, err := expanded(l.root, 0, &budget)
	if err != nil {
		return err
	}
	l.root, l.Items = root, nil
	return l.open()
}

func hasAlias(n *yaml.Node) bool {
	return n.Kind == yaml.AliasNode || slices.ContainsFunc(n.Content, hasAlias)
}

// expanded copies a value without aliases and anchors.
func expanded(n *yaml.Node, depth int, budget *int) (*yaml.Node, error) {
	if *budget--; *budget < 0 || depth > maxDepth {
		return nil, errExpansion
	}
	c := *Follow(n)
	if n.Kind == yaml.AliasNode {
		c.HeadComment, c.LineComment, c.FootComment = n.HeadComment, n.LineComment, n.FootComment
	}
	c.Anchor = ""
	c.Content = make([]*yaml.Node, 0, len(c.Content))
	for _, child := range Follow(n).Content {
		e, err := expanded(child, depth+1, budget)
		if err != nil {
			return nil, err
		}
		c.Content = append(c.Content, e)
	}
	return &c, nil
}

func isNull(n *yaml.Node) bool {
	return n == nil || n.Kind == yaml.ScalarNode && n.ShortTag() == yaml.NodeTagNull
}

// IsEmpty reports whether a value is missing, null or an empty string.
func IsEmpty(n *yaml.Node) bool {
	return isNull(n) || n.Kind == yaml.ScalarNode && n.Value == ""
}

// describe says what a value is.
func describe(n *yaml.Node) string {
	switch Follow(n).Kind {
	case yaml.MappingNode:
		return "an object"
	case yaml.SequenceNode:
		return "a list"
	}
	switch Follow(n).ShortTag() {
	case yaml.NodeTagNull:
		return "nothing"
	case yaml.NodeTagBool:
		return "a boolean"
	case yaml.NodeTagInt, yaml.NodeTagFloat:
		return "a number"
	}
	return "a string"
}
