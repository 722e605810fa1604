package resourcelist

import (
	"strings"

	"go.yaml.in/yaml/v3"
)

// Equal reports whether two nodes have the same value: comments, style and
// the order of fields do not count, the order of list elements does.
func Equal(a, b *yaml.Node) bool { return equal(a, b, 0) }

// maxDepth bounds recursion; no Kubernetes object is this deep.
const maxDepth = 1000

func equal(a, b *yaml.Node, depth int) bool {
	a, b = deref(a), deref(b)
	if a == nil || b == nil || depth > maxDepth {
		return a == b
	}
	if a.Kind == yaml.DocumentNode && len(a.Content) == 1 {
		a = deref(a.Content[0])
	}
	if b.Kind == yaml.DocumentNode && len(b.Content) == 1 {
		b = deref(b.Content[0])
	}
	if a.Kind != b.Kind {
		return false
	}
	switch a.Kind {
	case yaml.ScalarNode:
		ta, tb := a.ShortTag(), b.ShortTag()
		if ta != tb {
			return false
		}
		return ta == "!!null" || a.Value == b.Value
	case yaml.SequenceNode:
		if len(a.Content) != len(b.Content) {
			return false
		}
		for i := range a.Content {
			if !equal(a.Content[i], b.Content[i], depth+1) {
				return false
			}
		}
		return true
	case yaml.MappingNode:
		if len(a.Content) != len(b.Content) {
			return false
		}
		return equalFields(a, b, depth)
	}
	return true
}

func equalFields(a, b *yaml.Node, depth int) bool {
	for i := 0; i+1 < len(a.Content); i += 2 {
		// Most often the fields are in the same order.
		if sameKey(a.Content[i], b.Content[i]) {
			if !equal(a.Content[i+1], b.Content[i+1], depth+1) {
				return false
			}
			continue
		}
		found := false
		for j := 0; j+1 < len(b.Content); j += 2 {
			if sameKey(a.Content[i], b.Content[j]) {
				found = true
				if !equal(a.Content[i+1], b.Content[j+1], depth+1) {
					return false
				}
				break
			}
		}
		if !found {
			return false
		}
	}
	return true
}

func sameKey(a, b *yaml.Node) bool {
	a, b = deref(a), deref(b)
	if a.Kind != yaml.ScalarNode || b.Kind != yaml.ScalarNode {
		return equal(a, b, maxDepth/2)
	}
	return a.Value == b.Value && a.ShortTag() == b.ShortTag()
}

// commentLines collects the comments of a node, line by line, and how often
// each is there.
func commentLines(n *yaml.Node, into map[string]int) {
	for _, c := range []string{n.HeadComment, n.LineComment, n.FootComment} {
		if c == "" {
			continue
		}
		for line := range strings.SplitSeq(c, "\n") {
			if line = strings.TrimSpace(line); line != "" {
				into[line]++
			}
		}
	}
	for _, c := range n.Content {
		commentLines(c, into)
	}
}

// Comments are the lines of the comments of a node, and how often each is
// there.
func Comments(n *yaml.Node) map[string]int {
	m := map[string]int{}
	commentLines(n, m)
	return m
}
