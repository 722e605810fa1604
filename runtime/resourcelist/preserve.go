package resourcelist

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Preserve writes what has become of a document after functions changed it
// to item, keeping the text of everything that they did not change: comments
// (also those that a function lost, FS-34), field order, quotes, indentation,
// empty lines. Comments that a function added are taken over.
//
// The orchestrator's own annotations are left out of the result, unless the
// document had them (FS-36, FS-38). The result is checked by parsing it.
func Preserve(doc []byte, item *Item) ([]byte, error) {
	want, err := item.Node()
	if err != nil {
		return nil, err
	}
	text := normalise(doc)
	d, err := parsedSource(text, item)
	if err != nil {
		return nil, err
	}
	if len(d.Content) != 1 || d.Content[0].Kind != yaml.MappingNode {
		return nil, fmt.Errorf("%w: the original is not a mapping", ErrItem)
	}
	old := d.Content[0]
	stripInternal(want, old)
	out, err := preserve(text, d, old, want)
	if err != nil {
		return nil, err
	}
	if bytes.Contains(doc, []byte("\r\n")) {
		out = bytes.ReplaceAll(out, []byte("\n"), []byte("\r\n"))
	}
	if bytes.HasPrefix(doc, []byte("\ufeff")) && !bytes.HasPrefix(out, []byte("\ufeff")) {
		out = append([]byte("\ufeff"), out...)
	}
	return out, nil
}

// parsedSource parses a document, or takes what is left of parsing it when the
// item was read.
func parsedSource(text []byte, item *Item) (*yaml.Node, error) {
	if origin := item.Origin(); origin != nil {
		if s := origin.source.Swap(nil); s != nil && bytes.Equal(s.text, text) {
			return s.doc, nil
		}
	}
	var d yaml.Node
	return &d, unmarshal(text, &d)
}

// Strip is the item as a document without the orchestrator's annotations: the
// form in which an item that a function created is written.
func Strip(item *Item) ([]byte, error) {
	n, err := item.Node()
	if err != nil {
		return nil, err
	}
	had := false
	if a := Get(Get(n, "metadata"), "annotations"); a != nil {
		for i := 0; i+1 < len(a.Content); i += 2 {
			had = had || isInternal(a.Content[i].Value)
		}
	}
	if !had {
		return item.Document()
	}
	doc, err := item.Document()
	if err != nil {
		return nil, err
	}
	stripInternal(n, nil)
	var d yaml.Node
	if err := unmarshal(doc, &d); err != nil {
		return nil, err
	}
	return preserve(doc, &d, d.Content[0], n)
}

// stripInternal removes internal annotations, except those that old has: then
// they are in the user's file, and stay as they are there.
func stripInternal(n, old *yaml.Node) {
	keep := map[string]string{}
	if a := Get(Get(old, "metadata"), "annotations"); a != nil {
		for i := 0; i+1 < len(a.Content); i += 2 {
			if isInternal(a.Content[i].Value) {
				keep[a.Content[i].Value] = deref(a.Content[i+1]).Value
			}
		}
	}
	editAnnotations(n, func(key string) bool { _, ok := keep[key]; return isInternal(key) && !ok }, nil)
	if len(keep) > 0 {
		editAnnotations(n, func(string) bool { return false }, keep)
	}
}

func preserve(text []byte, doc, old, want *yaml.Node) ([]byte, error) {
	had := map[string]int{}
	commentLines(doc, had)
	p := &patcher{style: StyleOf(text), had: had}
	for line := range bytes.Lines(text) {
		p.lines = append(p.lines, string(line))
	}
	if Equal(old, want) && !p.newComments(want) {
		return text, nil
	}
	if p.mapping(old, want, len(p.lines)+1) {
		out := p.apply()
		if p.right(out, want) {
			return out, nil
		}
	}
	// The text does not allow patching: write the new values with the old
	// comments, order and style.
	merged := merge(old, want, had)
	if merged.HeadComment == "" && doc.HeadComment != "" {
		merged.HeadComment = doc.HeadComment
	}
	clearFlowIfEmpty(merged)
	return Encode(merged, p.style)
}

func clearFlowIfEmpty(n *yaml.Node) {
	if len(n.Content) > 0 && n.Line == 0 {
		n.Style &^= yaml.FlowStyle
	}
}

// right reports whether a patched text means what it should.
func (p *patcher) right(text []byte, want *yaml.Node) bool {
	var d yaml.Node
	if err := unmarshal(text, &d); err != nil || len(d.Content) != 1 {
		return false
	}
	if !Equal(d.Content[0], want) {
		return false
	}
	got, need := map[string]int{}, map[string]int{}
	commentLines(&d, got)
	commentLines(want, need)
	for c := range need {
		if got[c] == 0 {
			return false
		}
	}
	return true
}

// merge puts the values of want into the shape of old.
func merge(old, want *yaml.Node, had map[string]int) *yaml.Node {
	old, want = deref(old), deref(want)
	out := *want
	out.Anchor = ""
	if old == nil {
		return &out
	}
	out.HeadComment = mergeComment(old.HeadComment, want.HeadComment, had)
	out.LineComment = mergeComment(old.LineComment, want.LineComment, had)
	out.FootComment = mergeComment(old.FootComment, want.FootComment, had)
	if old.Kind != want.Kind {
		return &out
	}
	out.Style = old.Style
	switch want.Kind {
	case yaml.ScalarNode:
		if Equal(old, want) {
			out.Value, out.Tag = old.Value, old.Tag
		} else if old.ShortTag() != want.ShortTag() || out.Style&yaml.TaggedStyle != 0 {
			out.Style = want.Style
		}
	case yaml.SequenceNode:
		out.Content = nil
		for i, pair := range alignSequence(old, want) {
			_ = i
			if pair.want != nil {
				out.Content = append(out.Content, merge(pair.old, pair.want, had))
			}
		}
	case yaml.MappingNode:
		out.Content = nil
		for i := 0; i+1 < len(old.Content); i += 2 {
			if j := fieldIndex(want, old.Content[i]); j >= 0 {
				out.Content = append(out.Content, merge(old.Content[i], want.Content[j], had), merge(old.Content[i+1], want.Content[j+1], had))
			}
		}
		for j := 0; j+1 < len(want.Content); j += 2 {
			if fieldIndex(old, want.Content[j]) < 0 {
				out.Content = append(out.Content, want.Content[j], want.Content[j+1])
			}
		}
	}
	return &out
}

// mergeComment keeps an old comment unless the function wrote another.
func mergeComment(old, want string, had map[string]int) string {
	if want != "" && isNew(want, had) {
		return want
	}
	return old
}

// isNew reports whether a comment has a line that was nowhere before. A
// comment that only moved, as YAML libraries do with them, is not new.
func isNew(comment string, had map[string]int) bool {
	for line := range strings.SplitSeq(comment, "\n") {
		if line = strings.TrimSpace(line); line != "" && had[line] == 0 {
			return true
		}
	}
	return false
}

func fieldIndex(m, key *yaml.Node) int {
	for i := 0; i+1 < len(m.Content); i += 2 {
		if sameKey(m.Content[i], key) {
			return i
		}
	}
	return -1
}

type pair struct{ old, want *yaml.Node }

// AssociativeKeys are the fields that identify the elements of a list, in the
// order in which they are tried (CF-54).
var AssociativeKeys = []string{"mountPath", "devicePath", "ip", "type", "topologyKey", "name", "containerPort"}

// alignSequence pairs the elements of two lists, in the order of want with
// removed ones (want nil) where they were.
func alignSequence(old, want *yaml.Node) []pair {
	o, w := old.Content, want.Content
	// Equal ends first; what is between is paired by key, then by position.
	var head, tail []pair
	for len(o) > 0 && len(w) > 0 && Equal(o[0], w[0]) {
		head = append(head, pair{o[0], w[0]})
		o, w = o[1:], w[1:]
	}
	for len(o) > 0 && len(w) > 0 && Equal(o[len(o)-1], w[len(w)-1]) {
		tail = append(tail, pair{o[len(o)-1], w[len(w)-1]})
		o, w = o[:len(o)-1], w[:len(w)-1]
	}
	slices.Reverse(tail)
	return slices.Concat(head, alignMiddle(o, w), tail)
}

func alignMiddle(o, w []*yaml.Node) []pair {
	var mid []pair
	if key := commonKey(o, w); key != "" {
		used := map[*yaml.Node]bool{}
		next := 0
		for _, e := range w {
			var match *yaml.Node
			for k := range o {
				if !used[o[k]] && Equal(Get(o[k], key), Get(e, key)) {
					match = o[k]
					for ; next < k; next++ {
						if !used[o[next]] && !hasKeyValue(w, key, Get(o[next], key)) {
							mid = append(mid, pair{o[next], nil})
							used[o[next]] = true
						}
					}
					break
				}
			}
			if match != nil {
				used[match] = true
			}
			mid = append(mid, pair{match, e})
		}
		for _, e := range o {
			if !used[e] {
				mid = append(mid, pair{e, nil})
			}
		}
		return mid
	}
	// Elements that are equal keep their pairing, so that a removed or added
	// element does not move the comments of its neighbours.
	for len(o) > 0 && len(w) > 0 {
		switch {
		case Equal(o[0], w[0]):
			mid = append(mid, pair{o[0], w[0]})
			o, w = o[1:], w[1:]
		case len(o) > len(w) && !contains(w, o[0]):
			mid = append(mid, pair{o[0], nil})
			o = o[1:]
		case len(w) > len(o) && !contains(o, w[0]):
			mid = append(mid, pair{nil, w[0]})
			w = w[1:]
		default:
			mid = append(mid, pair{o[0], w[0]})
			o, w = o[1:], w[1:]
		}
	}
	for _, e := range o {
		mid = append(mid, pair{e, nil})
	}
	for _, e := range w {
		mid = append(mid, pair{nil, e})
	}
	return mid
}

func contains(in []*yaml.Node, n *yaml.Node) bool {
	return slices.ContainsFunc(in, func(e *yaml.Node) bool { return Equal(e, n) })
}

func hasKeyValue(in []*yaml.Node, key string, v *yaml.Node) bool {
	return slices.ContainsFunc(in, func(e *yaml.Node) bool { return Equal(Get(e, key), v) })
}

// commonKey is the associative key that all elements have with different
// values; "name" is preferred, as most lists of Kubernetes go by it.
func commonKey(o, w []*yaml.Node) string {
	for _, key := range append([]string{"name"}, AssociativeKeys...) {
		if distinct(o, key) && distinct(w, key) {
			return key
		}
	}
	return ""
}

func distinct(in []*yaml.Node, key string) bool {
	if len(in) > 1000 {
		return false
	}
	seen := map[string]bool{}
	for _, e := range in {
		v := Get(e, key)
		if v == nil || v.Kind != yaml.ScalarNode || seen[v.Value] {
			return false
		}
		seen[v.Value] = true
	}
	return true
}

// Update is the item with new values, and the text of everything else as it
// was. The values become the item's.
func (it *Item) Update(want *yaml.Node) (*Item, error) {
	meta, err := metaWithout(want)
	if err != nil {
		return nil, err
	}
	o, err := originOf(Get(Get(want, "metadata"), "annotations"))
	if err != nil {
		return nil, err
	}
	if meta.Path, meta.Index, err = o.since(originIn(it.meta)); err != nil {
		return nil, fmt.Errorf("%s: %w", meta.ID(), err)
	}
	doc, err := it.Document()
	if err != nil {
		return nil, err
	}
	var d yaml.Node
	if err := unmarshal(doc, &d); err != nil {
		return nil, err
	}
	text, err := preserve(doc, &d, d.Content[0], want)
	if err != nil {
		return nil, err
	}
	if err := unmarshal(text, &d); err != nil {
		return nil, err
	}
	if !movable(text, d.Content[0]) {
		clearFlow(d.Content[0])
		if text, err = Encode(d.Content[0], StyleOf(text)); err != nil {
			return nil, err
		}
	}
	return &Item{wire: indent(text), meta: meta, prev: it, internal: internalOf(want)}, nil
}

// Restore is the item with everything that functions did not change as it was
// when it was first read; the item itself if nothing changed it, or if it is
// new.
func (it *Item) Restore() (*Item, error) {
	origin := it.Origin()
	if origin == nil || origin == it {
		return it, nil
	}
	n, err := it.Node()
	if err != nil {
		return nil, err
	}
	return origin.Update(n)
}

// RestoreLost gives each item that has lost comments since the function
// before had it those comments back, so that the next function finds them
// (FS-34). The items are changed in place in the slice.
func RestoreLost(items []*Item) error {
	var lost []int
	for i, it := range items {
		if it.prev != nil && bytes.Count(it.wire, []byte("#")) < bytes.Count(it.prev.wire, []byte("#")) {
			lost = append(lost, i)
		}
	}
	errs := make([]error, len(lost))
	Parallel(len(lost), func(k int) {
		it := items[lost[k]]
		n, err := it.Node()
		if err == nil {
			it, err = it.prev.Update(n)
		}
		if err != nil {
			errs[k] = err
			return
		}
		items[lost[k]] = it
	})
	return errors.Join(errs...)
}

// Created is the item as something new: where it is from is forgotten, only
// the path stays.
func (it *Item) Created() (*Item, error) {
	text, err := Strip(it)
	if err != nil {
		return nil, err
	}
	n, err := FromDocument(text, "", 0)
	if err != nil {
		return nil, err
	}
	n.made = true
	n.meta.Path = it.meta.Path
	return n, nil
}
