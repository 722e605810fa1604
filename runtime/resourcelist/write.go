package resourcelist

import (
	"bytes"
	"fmt"

	"go.yaml.in/yaml/v3"
)

// Style is how YAML text is written: how far a list is indented below its
// field.
type Style struct {
	WideSequences bool
}

// StyleOf looks at how lists are written in a text; the first one decides.
func StyleOf(text []byte) Style {
	prevIndent, prevOpens := 0, false
	for line := range bytes.Lines(text) {
		t := bytes.TrimLeft(line, " ")
		col := len(line) - len(t)
		if len(t) == 0 || t[0] == '\n' || t[0] == '#' {
			continue
		}
		if prevOpens && bytes.HasPrefix(t, []byte("- ")) {
			return Style{WideSequences: col > prevIndent}
		}
		for bytes.HasPrefix(t, []byte("- ")) {
			t = t[2:]
			col += 2
		}
		prevIndent, prevOpens = col, bytes.HasSuffix(bytes.TrimRight(t, " \r\n"), []byte(":"))
	}
	return Style{}
}

// Encode writes a node as a document.
func Encode(n *yaml.Node, s Style) ([]byte, error) {
	explicitNulls(n, false)
	var b bytes.Buffer
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	if s.WideSequences {
		enc.DefaultSeqIndent()
	} else {
		enc.CompactSeqIndent()
	}
	if err := enc.Encode(n); err != nil {
		return nil, fmt.Errorf("writing YAML: %w", err)
	}
	if err := enc.Close(); err != nil {
		return nil, fmt.Errorf("writing YAML: %w", err)
	}
	return b.Bytes(), nil
}

// explicitNulls writes null inside flow collections, where the YAML library
// would turn an empty value into an empty string.
func explicitNulls(n *yaml.Node, flow bool) {
	if flow && n.Kind == yaml.ScalarNode && n.Value == "" && n.ShortTag() == "!!null" {
		n.Value = "null"
	}
	for _, c := range n.Content {
		explicitNulls(c, flow || n.Style&yaml.FlowStyle != 0)
	}
}

// Compose writes a ResourceList: the items as they are, then the
// configuration of the function and results.
func Compose(l *List) ([]byte, error) {
	size := 256 + len(l.FunctionConfig)*5/4
	for _, it := range l.Items {
		size += len(it.wire)
	}
	v := l.APIVersion
	if v == "" {
		v = APIVersion
	}
	out := make([]byte, 0, size)
	out = append(out, "apiVersion: "...)
	out = append(out, v...)
	out = append(out, "\nkind: ResourceList\nitems:"...)
	if len(l.Items) == 0 {
		out = append(out, " []"...)
	}
	out = append(out, '\n')
	for _, it := range l.Items {
		out = append(out, it.wire...)
	}
	if len(l.FunctionConfig) > 0 {
		fc, err := field(l.FunctionConfig)
		if err != nil {
			return nil, fmt.Errorf("functionConfig: %w", err)
		}
		out = append(out, "functionConfig:\n"...)
		out = append(out, fc...)
	}
	if len(l.Results) > 0 {
		r, err := MarshalResults(l.Results)
		if err != nil {
			return nil, err
		}
		out = append(out, "results:\n"...)
		out = append(out, r...)
	}
	return out, nil
}

// field indents a document as the value of a field, text untouched where its
// style allows it.
func field(doc []byte) ([]byte, error) {
	doc = normalise(doc)
	var n yaml.Node
	if err := unmarshal(doc, &n); err != nil {
		return nil, err
	}
	if len(n.Content) != 1 || n.Content[0].Kind != yaml.MappingNode {
		return nil, fmt.Errorf("%w: it is not a mapping", ErrItem)
	}
	root := n.Content[0]
	if !movable(doc, root) {
		if err := singleDocument(doc); err != nil {
			return nil, err
		}
		text, err := Encode(root, StyleOf(doc))
		if err != nil {
			return nil, err
		}
		doc = text
	}
	out := make([]byte, 0, len(doc)+len(doc)/8)
	for line := range bytes.Lines(doc) {
		if line[0] != '\n' {
			out = append(out, ' ', ' ')
		}
		out = append(out, line...)
	}
	if len(out) > 0 && out[len(out)-1] != '\n' {
		out = append(out, '\n')
	}
	return out, nil
}

// normalise removes what may stand at the edges of a file but not inside a
// list: a byte order mark, carriage returns, document markers.
func normalise(doc []byte) []byte {
	doc = bytes.TrimPrefix(doc, []byte("\ufeff"))
	if bytes.IndexByte(doc, '\r') >= 0 {
		doc = bytes.ReplaceAll(doc, []byte("\r\n"), []byte("\n"))
	}
	if len(doc) > 0 && doc[len(doc)-1] != '\n' {
		doc = append(doc[:len(doc):len(doc)], '\n')
	}
	return doc
}

// movable reports whether the lines of a document may be indented as they
// are: a block mapping at column 0, no markers, directives, tabs or anchors
// at its root.
func movable(doc []byte, root *yaml.Node) bool {
	if root.Style&(yaml.FlowStyle|yaml.TaggedStyle) != 0 || root.Anchor != "" || root.Column != 1 || len(root.Content) == 0 {
		return false
	}
	if bytes.IndexByte(doc, '\r') >= 0 {
		return false
	}
	for line := range bytes.Lines(doc) {
		switch line[0] {
		case '%', '\t':
			return false
		case '-', '.':
			if bytes.HasPrefix(line, []byte("---")) || bytes.HasPrefix(line, []byte("...")) {
				return false
			}
		}
	}
	return true
}

// FromDocument makes an item of a document that holds one object. A path that
// is not empty is recorded, with the index, in the annotations of the wire
// form; the document itself stays as it is. Errors wrap [ErrItem] or a
// [*SyntaxError].
func FromDocument(doc []byte, path string, index int) (*Item, error) {
	text := normalise(doc)
	var d yaml.Node
	if err := unmarshal(text, &d); err != nil {
		return nil, err
	}
	if len(d.Content) != 1 || d.Content[0].Kind != yaml.MappingNode {
		what := "empty"
		if len(d.Content) == 1 {
			what = kindName(d.Content[0])
		}
		return nil, fmt.Errorf("%w: it is %s, not a mapping", ErrItem, what)
	}
	n := d.Content[0]
	meta, err := metaWithout(n)
	if err != nil {
		return nil, err
	}
	it := &Item{internal: internalOf(n)}
	if movable(text, n) {
		switch {
		case path != "":
			if t, ok := annotate(text, n, path, index); ok {
				it.wire = indent(t)
			}
		default:
			o, err := originOf(Get(Get(n, "metadata"), "annotations"))
			if err == nil && o.empty() {
				it.wire = indent(text)
			}
		}
	}
	if path == "" && it.wire == nil {
		o, err := originOf(Get(Get(n, "metadata"), "annotations"))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", meta.ID(), err)
		}
		if path, index, err = o.agree(); err != nil {
			return nil, fmt.Errorf("%s: %w", meta.ID(), err)
		}
	}
	if it.wire != nil {
		it.source.Store(&source{text, &d})
	} else {
		clearFlow(n)
		n.HeadComment = joinComments(d.HeadComment, n.HeadComment)
		if path != "" {
			setOrigin(n, path, index)
		}
		if err := singleDocument(text); err != nil {
			return nil, err
		}
		text, err := Encode(n, StyleOf(text))
		if err != nil {
			return nil, err
		}
		it.wire = indent(text)
	}
	meta.Path, meta.Index = path, index
	if path == "" {
		meta.Index = indexUnset
	}
	it.meta = meta
	return it, nil
}

// singleDocument refuses text with more than one document.
func singleDocument(text []byte) error {
	dec := yaml.NewDecoder(bytes.NewReader(text))
	for i := 0; ; i++ {
		var n yaml.Node
		if err := dec.Decode(&n); err != nil {
			return nil // the end; errors have been seen by the first parse
		}
		if i > 0 {
			return fmt.Errorf("%w: more than one document", ErrItem)
		}
	}
}
