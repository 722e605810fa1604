package resourcelist

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"

	"go.yaml.in/yaml/v3"
)

// Item is one resource. It does not change; an item that a function returned
// with the same bytes is the same pointer.
type Item struct {
	wire []byte // comments at column 0, then "- " at column 0 and the object; ends in \n
	meta Meta
	prev *Item // what it was before a function changed it
	made bool  // by a function, from nothing

	internal string // annotations that functions must keep
	// parsed is the node of an item that was just read, for the first who
	// asks: what functions changed is looked at again when it is written.
	parsed atomic.Pointer[yaml.Node]
	// source is the document that the item was made of, parsed, for
	// [Preserve].
	source atomic.Pointer[source]
}

type source struct {
	text []byte
	doc  *yaml.Node
}

// Forget drops what was kept of parsing the item, which is only there to save
// time. Parsed YAML takes about twenty times the space of its text.
func (it *Item) Forget() {
	it.parsed.Store(nil)
	it.source.Store(nil)
}

// Meta is what the orchestrator needs to know of a resource.
type Meta struct {
	APIVersion, Kind, Namespace, Name string
	// Path is where the resource is or goes, relative and slash-delimited;
	// empty if nothing says so. Index is its position in that file, -1 if
	// nothing says so, which for an existing resource means 0 (FS-45).
	Path  string
	Index int
}

// ID names a resource for people.
func (m Meta) ID() string {
	if m.Namespace != "" {
		return m.APIVersion + "/" + m.Kind + " " + m.Namespace + "/" + m.Name
	}
	return m.APIVersion + "/" + m.Kind + " " + m.Name
}

// Meta returns what the item says about itself.
func (it *Item) Meta() Meta { return it.meta }

// Prev is the item as it was before the function that changed it; nil for an
// item that was read or that a function created.
func (it *Item) Prev() *Item { return it.prev }

// Origin follows Prev to the item as it was first read; it is the item itself
// if nothing changed it, and nil if a function created it.
func (it *Item) Origin() *Item {
	for it.prev != nil {
		it = it.prev
	}
	if it.made {
		return nil
	}
	return it
}

// Wire is the item as an element of a YAML sequence at column 0. The caller
// must not change the bytes.
func (it *Item) Wire() []byte { return it.wire }

// Node parses the item. The result is the caller's.
func (it *Item) Node() (*yaml.Node, error) {
	if n := it.parsed.Swap(nil); n != nil {
		return n, nil
	}
	return parseElement(it.wire)
}

// Annotations parses the item and returns its annotations.
func (it *Item) Annotations() (map[string]string, error) { return it.stringMap("annotations") }

// Labels parses the item and returns its labels.
func (it *Item) Labels() (map[string]string, error) { return it.stringMap("labels") }

func (it *Item) stringMap(field string) (map[string]string, error) {
	n, err := it.Node()
	if err != nil {
		return nil, err
	}
	m := map[string]string{}
	a := Get(Get(n, "metadata"), field)
	if a == nil || a.Kind != yaml.MappingNode {
		return m, nil
	}
	for i := 0; i+1 < len(a.Content); i += 2 {
		m[a.Content[i].Value] = a.Content[i+1].Value
	}
	return m, nil
}

// Get returns the value of a field of a mapping, following an alias; nil if
// there is none or n is no mapping.
func Get(n *yaml.Node, field string) *yaml.Node {
	n = deref(n)
	if n == nil || n.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == field {
			return deref(n.Content[i+1])
		}
	}
	return nil
}

func deref(n *yaml.Node) *yaml.Node {
	for i := 0; n != nil && n.Kind == yaml.AliasNode && i < 100; i++ {
		n = n.Alias
	}
	return n
}

// parseElement parses one element of a sequence at column 0. It fails if the
// text is not exactly one mapping: that is what makes splitting by lines safe.
func parseElement(wire []byte) (*yaml.Node, error) {
	var doc yaml.Node
	if err := unmarshal(wire, &doc); err != nil {
		return nil, err
	}
	if doc.Kind != yaml.DocumentNode || len(doc.Content) != 1 || doc.Content[0].Kind != yaml.SequenceNode || len(doc.Content[0].Content) != 1 {
		return nil, fmt.Errorf("%w: not one element", ErrItem)
	}
	seq := doc.Content[0]
	n := seq.Content[0]
	if n.Kind != yaml.MappingNode {
		return nil, fmt.Errorf("%w: it is %s, not a mapping", ErrItem, kindName(n))
	}
	// Comments before the dash belong to the object.
	if n.HeadComment == "" {
		for _, c := range []string{seq.HeadComment, doc.HeadComment} {
			if c != "" {
				n.HeadComment = c
				break
			}
		}
	}
	if c := joinComments(n.FootComment, seq.FootComment, doc.FootComment); c != n.FootComment {
		n.FootComment = c
	}
	return n, nil
}

func joinComments(cs ...string) string {
	var out []string
	for _, c := range cs {
		if c != "" {
			out = append(out, c)
		}
	}
	return strings.Join(out, "\n")
}

// unmarshal parses the one document of data.
func unmarshal(data []byte, doc *yaml.Node) (err error) {
	if err := yaml.Unmarshal(data, doc); err != nil {
		return syntaxError(err)
	}
	return nil
}

// syntaxError takes the line out of a message of the YAML library.
func syntaxError(err error) error {
	msg := strings.TrimPrefix(err.Error(), "yaml: ")
	if rest, ok := strings.CutPrefix(msg, "line "); ok {
		if num, text, ok := strings.Cut(rest, ": "); ok {
			if line, err := strconv.Atoi(num); err == nil {
				return &SyntaxError{Line: line, Msg: text}
			}
		}
	}
	return &SyntaxError{Msg: msg}
}

func kindName(n *yaml.Node) string {
	switch deref(n).Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	case yaml.ScalarNode:
		if n.Tag == "!!null" {
			return "null"
		}
		return "a scalar"
	}
	return "nothing"
}

func missing(m Meta) string {
	switch {
	case m.APIVersion == "" && m.Kind == "":
		return "apiVersion and kind"
	case m.Kind == "":
		return "kind"
	}
	return "apiVersion"
}

const indexUnset = -1

// Document is the item as a document of its own.
func (it *Item) Document() ([]byte, error) {
	n, err := it.Node()
	if err != nil {
		return nil, err
	}
	if doc, ok := dedent(it.wire, n); ok {
		return doc, nil
	}
	return Encode(n, Style{})
}

// dedent turns an element at column 0 into a document, by moving lines.
func dedent(wire []byte, n *yaml.Node) ([]byte, bool) {
	col := n.Column - 1
	if col <= 0 || n.Anchor != "" || n.Style&(yaml.FlowStyle|yaml.TaggedStyle) != 0 {
		return nil, false
	}
	out := make([]byte, 0, len(wire))
	seenDash := false
	for line := range bytes.Lines(wire) {
		if !seenDash {
			if line[0] != '-' {
				out = append(out, line...)
				continue
			}
			seenDash = true
			rest := line[1:]
			if t := bytes.TrimLeft(rest, " "); len(t) == 0 || t[0] == '\n' || t[0] == '#' {
				if len(t) > 0 && t[0] == '#' {
					out = append(out, t...)
				}
				continue
			}
			if len(line) <= col {
				return nil, false
			}
			out = append(out, line[col:]...)
			continue
		}
		out = append(out, trimSpaces(line, col)...)
	}
	return out, true
}

// trimSpaces removes up to n leading spaces.
func trimSpaces(line []byte, n int) []byte {
	i := 0
	for i < n && i < len(line) && line[i] == ' ' {
		i++
	}
	return line[i:]
}

// indent writes a document as an element at column 0: leading comments stay
// before the dash, where YAML libraries look for them.
func indent(doc []byte) []byte {
	out := make([]byte, 0, len(doc)+len(doc)/8+64)
	started := false
	for line := range bytes.Lines(doc) {
		if !started {
			t := bytes.TrimLeft(line, " ")
			if t[0] == '\n' {
				continue
			}
			if t[0] == '#' {
				out = append(out, t...)
				continue
			}
			out = append(out, '-', ' ')
			out = append(out, line...)
			started = true
			continue
		}
		if line[0] != '\n' {
			out = append(out, ' ', ' ')
		}
		out = append(out, line...)
	}
	if len(out) > 0 && out[len(out)-1] != '\n' {
		out = append(out, '\n')
	}
	return out
}
