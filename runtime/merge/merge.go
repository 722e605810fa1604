// Package merge merges Kubernetes objects, two-way and three-way, by the
// rules of the configuration functions' documents (CF-42 to CF-75).
//
// Lists are merged element by element if all their elements have one of seven
// associative keys in common; other lists are taken whole. kyaml, which has
// the same rules in its documents, infers only the key name and otherwise
// looks up the schemas of Kubernetes' own types: [Kustomize2] and
// [Kustomize3] do as it does.
//
// The functions work on parsed YAML. The order of fields and the comments of
// the destination stay; the text of what does not change is the caller's to
// keep, see resourcelist.Item.Update.
package merge

import (
	"errors"
	"fmt"

	"go.yaml.in/yaml/v3"
	"sigs.k8s.io/kustomize/kyaml/yaml/merge2"
	"sigs.k8s.io/kustomize/kyaml/yaml/merge3"
	"sigs.k8s.io/kustomize/kyaml/yaml/walk"

	kyaml "sigs.k8s.io/kustomize/kyaml/yaml"

	"github.com/krmcat/krmcat/runtime/resourcelist"
)

// ErrTooDeep means that values are nested deeper than any object is.
var ErrTooDeep = errors.New("nested too deep")

const maxDepth = 500

// Merge2 merges the fields of src into dest and returns what dest becomes;
// nil if src is null, which clears. Neither is changed; the result shares
// nodes with both.
func Merge2(src, dest *yaml.Node) (*yaml.Node, error) { return merge2way(src, dest, 0) }

func merge2way(src, dest *yaml.Node, depth int) (*yaml.Node, error) {
	src, dest = plain(src), plain(dest)
	switch {
	case depth > maxDepth:
		return nil, ErrTooDeep
	case src == nil:
		return dest, nil // CF-43, CF-45, CF-47, CF-51
	case isNull(src):
		return nil, nil // CF-44, CF-46, CF-49
	}
	if src.Kind == yaml.MappingNode && (dest == nil || isNull(dest)) {
		// A field only in src is added (CF-48), without what it clears.
		dest = &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map", Style: src.Style, HeadComment: src.HeadComment, LineComment: src.LineComment, FootComment: src.FootComment}
	}
	switch {
	case dest == nil || src.Kind != dest.Kind:
		return src, nil
	case src.Kind == yaml.MappingNode:
		return mergeMaps(src, dest, depth)
	case src.Kind == yaml.SequenceNode:
		if key := associativeKey(src, dest); key != "" {
			return mergeElements(key, src, dest, depth)
		}
	}
	return withComments(src, dest), nil
}

// mergeMaps merges fields: those of dest in their order, then those only in
// src (CF-47 to CF-50).
func mergeMaps(src, dest *yaml.Node, depth int) (*yaml.Node, error) {
	out := withComments(dest, src)
	out.Content = nil
	for i := 0; i+1 < len(dest.Content); i += 2 {
		k := dest.Content[i]
		s, ok := field(src, k)
		if !ok {
			out.Content = append(out.Content, k, dest.Content[i+1])
			continue
		}
		v, err := merge2way(s, dest.Content[i+1], depth+1)
		if err != nil {
			return nil, within(k, err)
		}
		if v != nil {
			out.Content = append(out.Content, k, v)
		}
	}
	for i := 0; i+1 < len(src.Content); i += 2 {
		k := src.Content[i]
		if _, ok := field(dest, k); ok {
			continue
		}
		v, err := merge2way(src.Content[i+1], nil, depth+1)
		if err != nil {
			return nil, within(k, err)
		}
		if v != nil {
			out.Content = append(out.Content, k, v)
		}
	}
	return out, nil
}

// mergeElements merges lists by key: the elements of dest in their order,
// then those only in src (CF-51 to CF-53, CF-56).
func mergeElements(key string, src, dest *yaml.Node, depth int) (*yaml.Node, error) {
	out := withComments(dest, src)
	out.Content = nil
	for _, d := range dest.Content {
		s := element(src, key, resourcelist.Get(d, key))
		v, err := merge2way(s, d, depth+1)
		if err != nil {
			return nil, within(resourcelist.Get(d, key), err)
		}
		if v != nil {
			out.Content = append(out.Content, v)
		}
	}
	for _, s := range src.Content {
		if element(dest, key, resourcelist.Get(s, key)) != nil {
			continue
		}
		v, err := merge2way(s, nil, depth+1)
		if err != nil {
			return nil, within(resourcelist.Get(s, key), err)
		}
		out.Content = append(out.Content, v)
	}
	return out, nil
}

// Merge3 finds what changed from original to updated and merges it into dest.
// Each may be nil for something that is not there; the result is nil if it is
// to be removed.
func Merge3(original, updated, dest *yaml.Node) (*yaml.Node, error) {
	return merge3way(original, updated, dest, 0)
}

func merge3way(original, updated, dest *yaml.Node, depth int) (*yaml.Node, error) {
	original, updated, dest = plain(original), plain(updated), plain(dest)
	switch {
	case depth > maxDepth:
		return nil, ErrTooDeep
	case updated != nil && isNull(updated), dest != nil && isNull(dest):
		return nil, nil // CF-62, CF-65, CF-68
	}
	if original != nil && isNull(original) {
		original = nil
	}
	switch sameKind(original, updated, dest) {
	case yaml.MappingNode:
		return merge3Maps(original, updated, dest, depth)
	case yaml.SequenceNode:
		// A list that was removed as a whole is removed as a whole.
		if key := associativeKey(original, updated, dest); key != "" && (updated != nil || original == nil) {
			return merge3Elements(key, original, updated, dest, depth)
		}
	}
	// CF-63 and CF-66: unchanged, keep dest. CF-64 and CF-67: changed, take
	// updated, also when that means removing it.
	if same(original, updated) {
		return dest, nil
	}
	if updated == nil {
		return nil, nil
	}
	return withComments(updated, dest), nil
}

// merge3Maps merges fields (CF-68 to CF-71). A map that was removed goes when
// nothing of it is left.
func merge3Maps(original, updated, dest *yaml.Node, depth int) (*yaml.Node, error) {
	shape := dest
	if shape == nil {
		shape = updated
	}
	if shape == nil {
		return nil, nil
	}
	out := *shape
	out.Content = nil
	err := eachField([]*yaml.Node{dest, updated}, func(k *yaml.Node) error {
		o, _ := field(original, k)
		u, _ := field(updated, k)
		d, _ := field(dest, k)
		v, err := merge3way(o, u, d, depth+1)
		if err != nil {
			return within(k, err)
		}
		if v != nil {
			out.Content = append(out.Content, k, v)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if len(out.Content) > 0 {
		return &out, nil
	}
	switch {
	case dest != nil && (len(dest.Content) == 0 || updated != nil):
		return &out, nil // it is there on both sides, if empty now
	case dest == nil && updated != nil && len(updated.Content) == 0 && !same(original, updated):
		return &out, nil // it was added, empty
	}
	return nil, nil
}

// merge3Elements merges lists by key (CF-72 to CF-74).
func merge3Elements(key string, original, updated, dest *yaml.Node, depth int) (*yaml.Node, error) {
	shape := dest
	if shape == nil {
		shape = updated
	}
	if shape == nil {
		return nil, nil
	}
	out := *shape
	out.Content = nil
	var seen []*yaml.Node
	for _, list := range []*yaml.Node{dest, updated} {
		if list == nil {
			continue
		}
		for _, e := range list.Content {
			id := resourcelist.Get(e, key)
			if has(seen, id) {
				continue
			}
			seen = append(seen, id)
			o, u, d := element(original, key, id), element(updated, key, id), element(dest, key, id)
			v, err := merge3Element(key, id, o, u, d, depth)
			if err != nil {
				return nil, within(id, err)
			}
			if v != nil {
				out.Content = append(out.Content, v)
			}
		}
	}
	if len(out.Content) == 0 && !(dest != nil && len(dest.Content) == 0) {
		return nil, nil
	}
	return &out, nil
}

func merge3Element(key string, id, original, updated, dest *yaml.Node, depth int) (*yaml.Node, error) {
	switch {
	case original == nil && updated == nil:
		return dest, nil // CF-72
	case dest == nil && same(original, updated):
		return nil, nil // removed locally, unchanged upstream
	}
	v, err := merge3way(original, updated, dest, depth+1)
	if err != nil {
		return nil, err
	}
	if v == nil || v.Kind != yaml.MappingNode {
		return v, nil
	}
	if resourcelist.Get(v, key) != nil {
		return v, nil
	}
	if len(v.Content) == 0 {
		return nil, nil
	}
	// What is left of an element keeps its key: a field that was added
	// locally, or the difference for one that is not in dest (CF-73).
	keyed := *v
	keyed.Content = append([]*yaml.Node{{Kind: yaml.ScalarNode, Tag: "!!str", Value: key}, id}, v.Content...)
	return &keyed, nil
}

// sameKind is the kind that all the values there have, or 0.
func sameKind(nodes ...*yaml.Node) yaml.Kind {
	var kind yaml.Kind
	for _, n := range nodes {
		switch {
		case n == nil:
		case kind == 0:
			kind = n.Kind
		case kind != n.Kind:
			return 0
		}
	}
	return kind
}

// associativeKey is the first of the associative keys that all elements of
// all lists have, with values that tell the elements of a list apart
// (CF-54, CF-55). Empty lists have all keys, but not alone.
func associativeKey(lists ...*yaml.Node) string {
	any := false
	for _, l := range lists {
		any = any || l != nil && len(l.Content) > 0
	}
	if !any {
		return ""
	}
next:
	for _, key := range resourcelist.AssociativeKeys {
		for _, l := range lists {
			if l == nil {
				continue
			}
			var seen []*yaml.Node
			for _, e := range l.Content {
				v := resourcelist.Get(e, key)
				if v == nil || v.Kind != yaml.ScalarNode || isNull(v) || has(seen, v) {
					continue next
				}
				seen = append(seen, v)
			}
		}
		return key
	}
	return ""
}

func has(in []*yaml.Node, n *yaml.Node) bool {
	for _, e := range in {
		if e.Value == n.Value {
			return true
		}
	}
	return false
}

// element finds the element of a list by its key. The text of the value
// decides: a port is the same whether it is quoted or not.
func element(list *yaml.Node, key string, id *yaml.Node) *yaml.Node {
	if list == nil || id == nil {
		return nil
	}
	for _, e := range list.Content {
		if v := resourcelist.Get(e, key); v != nil && v.Value == id.Value {
			return plain(e)
		}
	}
	return nil
}

func field(m, key *yaml.Node) (*yaml.Node, bool) {
	if m == nil {
		return nil, false
	}
	for i := 0; i+1 < len(m.Content); i += 2 {
		if m.Content[i].Value == key.Value && m.Content[i].Kind == key.Kind {
			return m.Content[i+1], true
		}
	}
	return nil, false
}

func eachField(maps []*yaml.Node, f func(key *yaml.Node) error) error {
	for i, m := range maps {
		if m == nil {
			continue
		}
		for j := 0; j+1 < len(m.Content); j += 2 {
			seen := false
			for _, before := range maps[:i] {
				if _, ok := field(before, m.Content[j]); ok {
					seen = true
				}
			}
			if seen {
				continue
			}
			if err := f(m.Content[j]); err != nil {
				return err
			}
		}
	}
	return nil
}

// withComments is a copy of n that has the comments of other where it has
// none of its own.
func withComments(n, other *yaml.Node) *yaml.Node {
	c := *n
	if other == nil {
		return &c
	}
	for _, p := range []struct {
		to   *string
		from string
	}{{&c.HeadComment, other.HeadComment}, {&c.LineComment, other.LineComment}, {&c.FootComment, other.FootComment}} {
		if *p.to == "" {
			*p.to = p.from
		}
	}
	return &c
}

// plain follows aliases and documents to a value.
func plain(n *yaml.Node) *yaml.Node {
	for i := 0; n != nil && i < 100; i++ {
		switch {
		case n.Kind == yaml.AliasNode:
			n = n.Alias
		case n.Kind == yaml.DocumentNode && len(n.Content) == 1:
			n = n.Content[0]
		default:
			return n
		}
	}
	return n
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

func same(a, b *yaml.Node) bool {
	if a == nil || b == nil {
		return a == b
	}
	return resourcelist.Equal(a, b)
}

func within(key *yaml.Node, err error) error {
	if key == nil {
		return err
	}
	return fmt.Errorf("%s: %w", key.Value, err)
}

// Options are those of kyaml's merge.
type Options struct {
	// Infer pairs the elements of lists of unknown types by their name.
	Infer bool
	// Prepend puts new elements before those of dest.
	Prepend bool
}

// Kustomize2 merges src into dest as kyaml does: by the schemas of
// Kubernetes' types, with patch directives.
func Kustomize2(src, dest *yaml.Node, opts Options) (*yaml.Node, error) {
	m := kyaml.MergeOptions{}
	if opts.Prepend {
		m.ListIncreaseDirection = kyaml.MergeOptionsListPrepend
	}
	out, err := walk.Walker{
		Sources:               []*kyaml.RNode{wrap(dest), wrap(src)},
		Visitor:               merge2.Merger{},
		InferAssociativeLists: opts.Infer,
		MergeOptions:          m,
	}.Walk()
	return unwrap(out), err
}

// Kustomize3 merges what changed from original to updated into dest as kyaml
// does.
func Kustomize3(original, updated, dest *yaml.Node, opts Options) (*yaml.Node, error) {
	out, err := walk.Walker{
		Sources:               []*kyaml.RNode{wrap(dest), wrap(original), wrap(updated)},
		Visitor:               merge3.Visitor{},
		InferAssociativeLists: opts.Infer,
	}.Walk()
	return unwrap(out), err
}

func wrap(n *yaml.Node) *kyaml.RNode {
	if n = plain(n); n == nil {
		return nil
	}
	return kyaml.NewRNode(n)
}

func unwrap(r *kyaml.RNode) *yaml.Node {
	if r == nil {
		return nil
	}
	return plain(r.YNode())
}
