package kustomization

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sort"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/krmcat/krmcat/catalog"
	"github.com/krmcat/krmcat/internal/yamlpos"
)

// ErrPin is wrapped by the errors of [Pin] about a document that it cannot
// change.
var ErrPin = errors.New("cannot be pinned")

// Annotate is the annotation that makes kustomize and kpt run the image of a
// container, by its digest. The error wraps [catalog.ErrNoDigest] if there is
// none.
func Annotate(c *catalog.Container, from catalog.Location) (string, error) {
	if c.Digest == "" {
		return "", fmt.Errorf("image %s: %w", c.Image, catalog.ErrNoDigest)
	}
	var b strings.Builder
	if !from.IsZero() {
		fmt.Fprintf(&b, "%s%s\n", Marker, from)
	}
	b.WriteString("container:\n  image: " + scalar(c.Pinned()) + "\n")
	if c.RequireNetwork {
		// kustomize asks for its own flag as well before it gives any.
		b.WriteString("  network: true\n")
	}
	return b.String(), nil
}

// Pin sets the annotation of functionConfigs in a file and changes nothing
// else: comments, order and white space stay byte for byte, and the same input
// gives the same bytes. The keys of pins are the indexes of the documents, the
// values what [Annotate] gives. A functionConfig without a name gets the one
// that it has by default, as kustomize does not read one without.
//
// A result that would differ in anything else is an error that wraps [ErrPin].
func Pin(name string, data []byte, pins map[int]string) ([]byte, error) {
	file, problems := yamlpos.Parse(name, data, yamlpos.Limits{Bytes: maxFile})
	if len(problems) > 0 {
		return nil, invalid(file, problems)
	}
	p := &pinner{file: file, text: file.Text()}
	for _, i := range slices.Sorted(maps.Keys(pins)) {
		if i < 0 || i >= len(file.Documents) {
			return nil, fmt.Errorf("%s: no document %d: %w", name, i, ErrPin)
		}
		if err := p.pin(file.Documents[i], pins[i]); err != nil {
			n := file.Documents[i].Node
			return nil, fmt.Errorf("%s:%d:%d: %w", name, n.Line, n.Column, err)
		}
	}
	out := p.apply()
	if bytes.HasPrefix(data, []byte("\uFEFF")) {
		out = append([]byte("\uFEFF"), out...)
	}
	again, problems := yamlpos.Parse(name, out, yamlpos.Limits{Bytes: 2 * maxFile})
	if len(problems) > 0 || len(again.Documents) != len(file.Documents) {
		return nil, fmt.Errorf("%s: the annotation cannot be written here without changing something else: %w", name, ErrPin)
	}
	for i, d := range file.Documents {
		want := d.Value
		if text, ok := pins[i]; ok {
			want = pinned(d.Value.(object), text)
		}
		if !reflect.DeepEqual(again.Documents[i].Value, want) {
			return nil, fmt.Errorf("%s: the annotation cannot be written here without changing something else: %w", name, ErrPin)
		}
	}
	return out, nil
}

// pinned is a functionConfig with the annotation.
func pinned(o object, text string) object {
	meta, _ := o["metadata"].(object)
	annotations, _ := meta["annotations"].(object)
	out := merge(o, object{"metadata": merge(object{}, meta)})
	m := out["metadata"].(object)
	m["annotations"] = merge(object{}, annotations)
	m["annotations"].(object)[Annotation] = text
	if str(m["name"]) == "" {
		m["name"] = kebab(str(o["kind"]))
	}
	return out
}

type pinner struct {
	file    *yamlpos.File
	text    string
	splices []splice
}

type splice struct {
	start, end int
	text       string
}

func (p *pinner) add(start, end int, text string) {
	p.splices = append(p.splices, splice{start, end, text})
}

func (p *pinner) apply() []byte {
	slices.SortStableFunc(p.splices, func(a, b splice) int { return a.start - b.start })
	var b bytes.Buffer
	pos := 0
	for _, s := range p.splices {
		b.WriteString(p.text[pos:s.start])
		b.WriteString(s.text)
		pos = s.end
	}
	b.WriteString(p.text[pos:])
	return b.Bytes()
}

func (p *pinner) pin(d *yamlpos.Document, text string) error {
	root, ok := d.Value.(object)
	if !ok {
		return fmt.Errorf("not a mapping: %w", ErrPin)
	}
	if str(root["kind"]) == "" {
		return fmt.Errorf("no kind: %w", ErrPin)
	}
	meta, _ := root["metadata"].(object)
	annotations, hasAnnotations := meta["annotations"].(object)
	name := ""
	if str(meta["name"]) == "" {
		if meta["name"] != nil {
			return fmt.Errorf("metadata.name is not a name: %w", ErrPin)
		}
		name = kebab(str(root["kind"]))
	}
	key, value, found := d.Find("metadata", "annotations", Annotation)
	switch {
	case found:
		if str(annotations[Annotation]) == text && name == "" {
			return nil
		}
		if err := p.replace(key, value, text); err != nil {
			return err
		}
		return p.name(d, name)
	case hasAnnotations && len(annotations) > 0:
		_, n, _ := d.Find("metadata", "annotations")
		if err := p.into(n, []entry{{Annotation, text}}); err != nil {
			return err
		}
		return p.name(d, name)
	case len(meta) > 0 && meta["annotations"] == nil && !hasKey(meta, "annotations"):
		_, n, _ := d.Find("metadata")
		var entries []entry
		if name != "" {
			entries = append(entries, entry{"name", name})
		}
		return p.into(n, append(entries, entry{"annotations", []entry{{Annotation, text}}}))
	case !hasKey(root, "metadata"):
		var m []entry
		m = append(m, entry{"name", name}, entry{"annotations", []entry{{Annotation, text}}})
		return p.into(d.Node, []entry{{"metadata", m}})
	}
	return fmt.Errorf("metadata or annotations is there but empty; remove it: %w", ErrPin)
}

func hasKey(o object, key string) bool { _, ok := o[key]; return ok }

// name adds metadata.name.
func (p *pinner) name(d *yamlpos.Document, name string) error {
	if name == "" {
		return nil
	}
	_, n, _ := d.Find("metadata")
	return p.into(n, []entry{{"name", name}})
}

// entry is a key to add, with a string or more entries as its value.
type entry struct {
	key   string
	value any
}

// into adds entries to a mapping that has some: in front of the first, or
// behind apiVersion, kind and name if the mapping starts with these.
func (p *pinner) into(n *yaml.Node, entries []entry) error {
	if n.Kind != yaml.MappingNode || len(n.Content) == 0 {
		return fmt.Errorf("not a mapping, or an empty one: %w", ErrPin)
	}
	if n.Style&yaml.FlowStyle != 0 {
		start := p.offset(n)
		if n.Anchor != "" || start >= len(p.text) || p.text[start] != '{' {
			return fmt.Errorf("an anchor or a tag is in the way: %w", ErrPin)
		}
		text := flow(entries)
		p.add(start+1, start+1, text[1:len(text)-1]+", ")
		return nil
	}
	indent := n.Content[0].Column - 1
	at := -1
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		if k.Value != "apiVersion" && k.Value != "kind" && k.Value != "name" || v.Kind != yaml.ScalarNode {
			break
		}
		if v.Line != k.Line || v.Style&(yaml.LiteralStyle|yaml.FoldedStyle) != 0 {
			break
		}
		if i+2 < len(n.Content) && n.Content[i+2].Line == v.Line {
			break
		}
		at = v.Line
	}
	var b strings.Builder
	block(&b, entries, indent, p.lineBreak())
	if at >= 0 {
		// Behind the whole line, with its comment. A plain value may go on in
		// the next one, which the check at the end finds.
		end := p.lineEnd(at)
		p.add(end, end, p.lineBreak()+p.atEnd(end, b.String()))
		return nil
	}
	first := p.offset(n.Content[0])
	start := p.lineStart(n.Content[0].Line)
	if strings.TrimSpace(p.text[start:first]) != "" {
		return fmt.Errorf("the first key is not at the start of its line: %w", ErrPin)
	}
	p.add(start, start, b.String())
	return nil
}

// replace writes another text into the annotation.
func (p *pinner) replace(key, value *yaml.Node, text string) error {
	if value.Kind != yaml.ScalarNode || value.Anchor != "" || value.Style&yaml.TaggedStyle != 0 {
		return fmt.Errorf("the annotation is an alias, or has an anchor or a tag: %w", ErrPin)
	}
	start := p.offset(value)
	if value.Style&yaml.LiteralStyle == 0 {
		if value.Style&yaml.DoubleQuotedStyle == 0 || value.Line != key.Line {
			return fmt.Errorf("the annotation is written in a way that krmcat does not write: %w", ErrPin)
		}
		end := start + 1
		for end < len(p.text) && p.text[end] != '"' {
			if p.text[end] == '\\' {
				end++
			}
			end++
		}
		p.add(start, min(end+1, len(p.text)), quoted(text))
		return nil
	}
	// The block ends where a line is indented no more than its key. Empty
	// lines at its end stay.
	last := value.Line
	for i := value.Line + 1; i <= p.file.Lines(); i++ {
		line := p.file.Line(i)
		trimmed := strings.TrimLeft(line, " ")
		if trimmed == "" {
			continue
		}
		if len(line)-len(trimmed) < key.Column {
			break
		}
		last = i
	}
	var b strings.Builder
	literal(&b, text, key.Column-1+2, p.lineBreak())
	end := p.lineEnd(last)
	p.add(start, end, p.atEnd(end, b.String()))
	return nil
}

// atEnd is text, which ends in a line end, for a place at the end of a line:
// only behind the last line of the file is that line end not there already.
func (p *pinner) atEnd(end int, text string) string {
	if end == len(p.text) {
		return text
	}
	return strings.TrimSuffix(text, p.lineBreak())
}

// block writes entries in lines, indented.
func block(b *strings.Builder, entries []entry, indent int, nl string) {
	for _, e := range entries {
		b.WriteString(strings.Repeat(" ", indent) + e.key + ":")
		switch v := e.value.(type) {
		case string:
			b.WriteByte(' ')
			if !strings.Contains(v, "\n") {
				b.WriteString(scalar(v) + nl)
				continue
			}
			literal(b, v, indent+2, nl)
		case []entry:
			b.WriteString(nl)
			block(b, v, indent+2, nl)
		}
	}
}

// literal writes text that ends in a line end as a block.
func literal(b *strings.Builder, text string, indent int, nl string) {
	b.WriteString("|" + nl)
	for line := range strings.Lines(text) {
		b.WriteString(strings.Repeat(" ", indent) + strings.TrimSuffix(line, "\n") + nl)
	}
}

// flow writes entries as JSON, which YAML reads in braces as well.
func flow(entries []entry) string {
	var b strings.Builder
	b.WriteByte('{')
	for i, e := range entries {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(quoted(e.key) + ": ")
		switch v := e.value.(type) {
		case string:
			b.WriteString(quoted(v))
		case []entry:
			b.WriteString(flow(v))
		}
	}
	return b.String() + "}"
}

func quoted(s string) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(s); err != nil {
		return `""`
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// scalar writes a string plainly if that reads as the same string.
func scalar(s string) string {
	f, problems := yamlpos.Parse("", []byte("k: "+s+"\n"), yamlpos.Limits{})
	if len(problems) == 0 && len(f.Documents) == 1 && !strings.ContainsAny(s, "#&*!|>'\"%`{}[],") {
		if m, _ := f.Documents[0].Value.(object); m["k"] == s {
			switch strings.ToLower(s) {
			case "y", "n", "yes", "no", "on", "off":
			default:
				return s
			}
		}
	}
	return quoted(s)
}

func (p *pinner) offset(n *yaml.Node) int {
	return sort.Search(len(p.text), func(i int) bool {
		line, column := p.file.Position(i)
		return line > n.Line || (line == n.Line && column >= n.Column)
	})
}

func (p *pinner) lineStart(line int) int {
	return sort.Search(len(p.text), func(i int) bool { l, _ := p.file.Position(i); return l >= line })
}

func (p *pinner) lineEnd(line int) int {
	return p.lineStart(line) + len(p.file.Line(line))
}

func (p *pinner) lineBreak() string {
	if i := strings.IndexByte(p.text, '\n'); i > 0 && p.text[i-1] == '\r' {
		return "\r\n"
	}
	return "\n"
}
