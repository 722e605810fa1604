package yamlpos

import (
	"fmt"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"
)

// Tokens splits an RFC 6901 JSON pointer. The empty pointer has no tokens.
func Tokens(pointer string) []string {
	if pointer == "" {
		return nil
	}
	tokens := strings.Split(strings.TrimPrefix(pointer, "/"), "/")
	for i, t := range tokens {
		if strings.Contains(t, "~") {
			tokens[i] = strings.ReplaceAll(strings.ReplaceAll(t, "~1", "/"), "~0", "~")
		}
	}
	return tokens
}

// Pointer joins tokens to an RFC 6901 JSON pointer.
func Pointer(tokens []string) string {
	var b strings.Builder
	for _, t := range tokens {
		b.WriteByte('/')
		b.WriteString(strings.ReplaceAll(strings.ReplaceAll(t, "~", "~0"), "/", "~1"))
	}
	return b.String()
}

// Find walks from the root of the document along the tokens of a pointer,
// through aliases and merge keys. It returns the node of the value and the
// node of its key, which is nil for the root and for items of a sequence. If
// the path leads nowhere, ok is false and the nodes are those of the last
// value on the way.
func (d *Document) Find(tokens ...string) (key, value *yaml.Node, ok bool) {
	value = d.Node
	for _, t := range tokens {
		k, v := child(value, t, 0)
		if v == nil {
			return key, value, false
		}
		key, value = k, v
	}
	return key, value, true
}

// maxMerge bounds how deep merge keys are followed.
const maxMerge = 100

func child(n *yaml.Node, token string, depth int) (key, value *yaml.Node) {
	for i := 0; n.Kind == yaml.AliasNode && n.Alias != nil; i++ {
		if i == maxMerge {
			return nil, nil
		}
		n = n.Alias
	}
	switch n.Kind {
	case yaml.SequenceNode:
		if i, err := strconv.Atoi(token); err == nil && i >= 0 && i < len(n.Content) {
			return nil, n.Content[i]
		}
	case yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			k := n.Content[i]
			if k.Kind == yaml.AliasNode && k.Alias != nil {
				k = k.Alias
			}
			if k.Kind == yaml.ScalarNode && k.Value == token && k.Tag != "!!merge" {
				return n.Content[i], n.Content[i+1]
			}
		}
		if depth == maxMerge {
			return nil, nil
		}
		for i := 0; i+1 < len(n.Content); i += 2 {
			if n.Content[i].Tag != "!!merge" {
				continue
			}
			from := n.Content[i+1]
			if from.Kind != yaml.SequenceNode {
				if k, v := child(from, token, depth+1); v != nil {
					return k, v
				}
				continue
			}
			for _, item := range from.Content {
				if k, v := child(item, token, depth+1); v != nil {
					return k, v
				}
			}
		}
	}
	return nil, nil
}

// Path writes the tokens of a pointer into a value as a field path such as
// spec.versions[0].runtime. Keys that are not plain words are quoted, as in
// metadata.labels["example.com/a"].
func Path(root any, tokens []string) string {
	var b strings.Builder
	v := root
	for _, t := range tokens {
		switch c := v.(type) {
		case []any:
			b.WriteString("[" + t + "]")
			v = nil
			if i, err := strconv.Atoi(t); err == nil && i >= 0 && i < len(c) {
				v = c[i]
			}
			continue
		case map[string]any:
			v = c[t]
		default:
			v = nil
		}
		writeKey(&b, t)
	}
	return b.String()
}

// writeKey appends .name, or ["name"] if the name is not a word.
func writeKey(b *strings.Builder, name string) {
	if !isWord(name) {
		fmt.Fprintf(b, "[%s]", quoteShort(name))
		return
	}
	if b.Len() > 0 {
		b.WriteByte('.')
	}
	b.WriteString(name)
}

func isWord(s string) bool {
	for i := range len(s) {
		c := s[i]
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c == '_', c == '$':
		case i > 0 && (c >= '0' && c <= '9' || c == '-'):
		default:
			return false
		}
	}
	return s != ""
}
