package catalog

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sort"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"

	"github.com/krmcat/krmcat/internal/lazyregexp"
	"github.com/krmcat/krmcat/internal/yamlpos"
)

// Edit is one change of a document.
type Edit struct {
	// Path leads to the value: strings are keys, ints are indexes into
	// sequences. Everything but the last key has to exist.
	Path []any
	// Value is the new value: a string, or a Mapping.
	Value any
	// Comment is put at the end of the value's line, before a comment that is
	// there already. In JSON it is left out. Empty means none.
	Comment string
}

// Mapping is a value with keys in an order. Replacing a mapping by a Mapping
// sets its keys and leaves the others.
type Mapping []Field

// Field is a key of a [Mapping] and its value.
type Field struct {
	Key, Value string
	// Was is another name of the key: a mapping that has it, and not Key, has
	// it renamed.
	Was string
}

// ErrRewrite is wrapped by the errors of [Rewrite] about places in a document
// that it cannot change, such as an alias.
var ErrRewrite = errors.New("cannot be rewritten")

// Rewrite applies edits to a YAML or JSON document and changes nothing else:
// comments, order, quotes and white space stay byte for byte. The same input
// gives the same bytes. The name is for errors.
//
// The document is one that can be read; the result is read again and has to
// differ in the edited values only, or else an error comes back and no bytes.
func Rewrite(name string, data []byte, edits []Edit) ([]byte, error) {
	w := &rewriter{}
	doc, err := w.parse(name, data)
	if err != nil {
		return nil, err
	}
	want := doc.Value
	for _, e := range edits {
		if err := w.edit(doc.Node, e); err != nil {
			return nil, err
		}
		if want, err = applied(want, e.Path, e.Value); err != nil {
			return nil, w.at(doc.Node, e.Path, err)
		}
	}
	out, err := w.apply()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	check := &rewriter{}
	again, err := check.parse(name, out)
	if err != nil {
		return nil, fmt.Errorf("rewriting %s: the result is not valid: %w", name, err)
	}
	if !reflect.DeepEqual(again.Value, want) {
		return nil, fmt.Errorf("rewriting %s: the edits would change other values as well: %w", name, ErrRewrite)
	}
	return out, nil
}

type rewriter struct {
	file   *yamlpos.File
	text   string
	bom    bool
	json   bool // comments are not allowed
	splice []splice
}

// splice replaces the bytes from start to end. Several at one place are
// applied in their order, those that begin a new line after the others.
type splice struct {
	start, end int
	newLine    bool
	text       string
}

func (w *rewriter) parse(name string, data []byte) (*yamlpos.Document, error) {
	file, problems := yamlpos.Parse(name, data, yamlpos.Limits{Bytes: MaxDocument})
	if len(problems) > 0 {
		p := problems[0]
		return nil, fmt.Errorf("%s:%d:%d: %s", name, p.Line, p.Column, p.Message)
	}
	if len(file.Documents) != 1 {
		return nil, fmt.Errorf("%s: %d documents, and only a file with one can be rewritten: %w", name, len(file.Documents), ErrRewrite)
	}
	w.file, w.text = file, file.Text()
	w.bom = bytes.HasPrefix(data, []byte("\uFEFF"))
	trimmed := strings.TrimLeft(w.text, " \t\r\n")
	w.json = strings.HasPrefix(trimmed, "{") || strings.HasPrefix(trimmed, "[")
	return file.Documents[0], nil
}

// at adds the place of a node to an error.
func (w *rewriter) at(n *yaml.Node, path []any, err error) error {
	return fmt.Errorf("%s:%d:%d: %s: %w", w.file.Name, n.Line, n.Column, fieldPath(path), err)
}

// fieldPath writes a path as diagnostics do.
func fieldPath(path []any) string {
	var b strings.Builder
	for _, p := range path {
		switch p := p.(type) {
		case int:
			fmt.Fprintf(&b, "[%d]", p)
		default:
			if b.Len() > 0 {
				b.WriteByte('.')
			}
			fmt.Fprint(&b, p)
		}
	}
	return b.String()
}

// place is a value and where it hangs.
type place struct {
	parent, key, value *yaml.Node // key is nil for items of a sequence
}

func (w *rewriter) edit(root *yaml.Node, e Edit) error {
	if len(e.Path) == 0 {
		return fmt.Errorf("%s: the document itself: %w", w.file.Name, ErrRewrite)
	}
	if err := checkComment(e.Comment); err != nil {
		return w.at(root, e.Path, err)
	}
	at := place{value: root}
	for i, step := range e.Path {
		next, err := descend(at.value, step)
		if err != nil {
			return w.at(at.value, e.Path[:i+1], err)
		}
		if next.value == nil {
			if i < len(e.Path)-1 {
				return w.at(at.value, e.Path[:i+1], fmt.Errorf("not there: %w", ErrRewrite))
			}
			return w.insert(at.value, e.Path, step.(string), e.Value, e.Comment)
		}
		at = next
	}
	return w.replace(at, e.Path, e.Value, e.Comment)
}

// descend goes one step. The value is nil if a mapping does not have the key.
func descend(n *yaml.Node, step any) (place, error) {
	switch step := step.(type) {
	case int:
		if n.Kind != yaml.SequenceNode || step < 0 || step >= len(n.Content) {
			return place{}, fmt.Errorf("no such item: %w", ErrRewrite)
		}
		return place{parent: n, value: n.Content[step]}, nil
	case string:
		if n.Kind == yaml.AliasNode {
			return place{}, fmt.Errorf("an alias; write the value out: %w", ErrRewrite)
		}
		if n.Kind != yaml.MappingNode {
			return place{}, fmt.Errorf("not a mapping: %w", ErrRewrite)
		}
		for i := 0; i+1 < len(n.Content); i += 2 {
			if k := n.Content[i]; k.Kind == yaml.ScalarNode && k.Value == step && k.Tag != "!!merge" {
				return place{parent: n, key: k, value: n.Content[i+1]}, nil
			}
		}
		return place{parent: n}, nil
	}
	return place{}, fmt.Errorf("a step is a string or an int, not %T", step)
}

// replace changes a value that is there.
func (w *rewriter) replace(at place, path []any, value any, comment string) error {
	if at.value.Kind == yaml.AliasNode {
		return w.at(at.value, path, fmt.Errorf("an alias; write the value out: %w", ErrRewrite))
	}
	switch v := value.(type) {
	case string:
		if at.value.Kind != yaml.ScalarNode {
			return w.at(at.value, path, fmt.Errorf("not a scalar: %w", ErrRewrite))
		}
		return w.replaceScalar(at, path, v, comment)
	case Mapping:
		if at.value.Kind == yaml.MappingNode {
			return w.setFields(at.value, path, v, comment)
		}
		if at.value.Kind != yaml.ScalarNode || len(v) == 0 {
			return w.at(at.value, path, fmt.Errorf("neither a scalar nor a mapping: %w", ErrRewrite))
		}
		return w.replaceByMapping(at, path, v, comment)
	}
	return w.at(at.value, path, fmt.Errorf("a value is a string or a Mapping, not %T", value))
}

func (w *rewriter) setFields(n *yaml.Node, path []any, m Mapping, comment string) error {
	for i, f := range m {
		c := ""
		if i == 0 {
			c = comment
		}
		p := append(path[:len(path):len(path)], f.Key)
		at, err := descend(n, f.Key)
		if err == nil && at.value == nil && f.Was != "" {
			if at, err = descend(n, f.Was); err == nil && at.value != nil {
				err = w.replaceScalar(place{parent: n, value: at.key}, p, f.Key, "")
			}
		}
		if err == nil && at.value != nil {
			err = w.replace(at, p, f.Value, c)
		} else if err == nil {
			err = w.insert(n, p, f.Key, f.Value, c)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// replaceScalar changes a scalar in place, in the quotes that it has.
func (w *rewriter) replaceScalar(at place, path []any, value, comment string) error {
	start, end, err := w.span(at)
	if err != nil {
		return w.at(at.value, path, err)
	}
	isString := at.value.Tag == "!!str" || at.value.Tag == "" || at.value.Tag == "!!timestamp"
	if at.value.Value != value || !isString {
		var text string
		switch {
		case w.json, at.value.Style&yaml.DoubleQuotedStyle != 0:
			text = doubleQuoted(value)
		case at.value.Style&yaml.SingleQuotedStyle != 0:
			if !printable(value) {
				text = doubleQuoted(value)
				break
			}
			text = "'" + strings.ReplaceAll(value, "'", "''") + "'"
		default:
			text = scalarText(value)
		}
		if start == end {
			text = " " + text // behind the colon of a key without value
		}
		w.add(start, end, text)
	}
	w.comment(end, comment)
	return nil
}

// replaceByMapping writes a mapping where a scalar was.
func (w *rewriter) replaceByMapping(at place, path []any, m Mapping, comment string) error {
	start, end, err := w.span(at)
	if err != nil {
		return w.at(at.value, path, err)
	}
	if at.key == nil || at.parent.Style&yaml.FlowStyle != 0 {
		quoted := w.json || at.key != nil && at.key.Style&yaml.DoubleQuotedStyle != 0
		w.add(start, end, flowText(m, quoted))
		w.comment(end, comment)
		return nil
	}
	// What follows the scalar on its line, a comment at most, stays behind
	// the key.
	lineEnd := w.lineEnd(end)
	if strings.TrimSpace(w.text[end:lineEnd]) == "" {
		lineEnd = end
	}
	for start > 0 && (w.text[start-1] == ' ' || w.text[start-1] == '\t') {
		start--
	}
	w.add(start, end, "")
	indent := strings.Repeat(" ", at.key.Column-1+2)
	for i, f := range m {
		line := w.lineBreak() + indent + f.Key + ": " + scalarText(f.Value)
		if i == 0 && comment != "" {
			line += " # " + comment
		}
		w.addLine(lineEnd, line)
	}
	return nil
}

// after says behind which key a new one belongs.
var after = map[string][]string{
	"sha256": {"uri", "path", "url", "image"},
}

// insert adds a key to a mapping.
func (w *rewriter) insert(n *yaml.Node, path []any, key string, value any, comment string) error {
	v, ok := value.(string)
	if !ok {
		return w.at(n, path, fmt.Errorf("not there, and only a string can be added: %w", ErrRewrite))
	}
	var sibling place
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, val := n.Content[i], n.Content[i+1]
		if val.Kind != yaml.ScalarNode {
			continue
		}
		here := place{n, k, val}
		if _, _, err := w.span(here); err != nil {
			continue
		}
		if sibling.key == nil || slices.Contains(after[key], k.Value) {
			sibling = here
		}
	}
	if sibling.key == nil {
		return w.at(n, path, fmt.Errorf("no value beside which to add it: %w", ErrRewrite))
	}
	_, end, _ := w.span(sibling)
	if n.Style&yaml.FlowStyle != 0 {
		text := key + ": " + scalarText(v)
		if w.json || sibling.key.Style&yaml.DoubleQuotedStyle != 0 {
			text = doubleQuoted(key) + ": " + doubleQuoted(v)
		}
		sep := ", "
		if before := w.text[w.lineStart(w.offset(sibling.key)):w.offset(sibling.key)]; strings.TrimSpace(before) == "" && sibling.key.Line != n.Line {
			sep = "," + w.lineBreak() + before
		}
		w.add(end, end, sep+text)
		return nil
	}
	lineEnd := w.lineEnd(end)
	text := w.lineBreak() + strings.Repeat(" ", sibling.key.Column-1) + key + ": " + scalarText(v)
	if comment != "" {
		text += " # " + comment
	}
	w.addLine(lineEnd, text)
	return nil
}

func (w *rewriter) add(start, end int, text string) {
	w.splice = append(w.splice, splice{start, end, false, text})
}

// addLine adds text that begins with a line break.
func (w *rewriter) addLine(lineEnd int, text string) {
	w.splice = append(w.splice, splice{lineEnd, lineEnd, true, text})
}

// comment adds a comment to the line of the value that ends at end.
func (w *rewriter) comment(end int, comment string) {
	if comment == "" || w.json {
		return
	}
	lineEnd := w.lineEnd(end)
	rest := w.text[end:lineEnd]
	have, ok := strings.CutPrefix(strings.TrimLeft(rest, " \t"), "#")
	switch {
	case ok:
		if have = strings.TrimSpace(have); have == comment || strings.HasPrefix(have, comment+" ") {
			return
		}
		w.add(end, end, " # "+comment)
	case strings.TrimSpace(rest) == "":
		w.add(end, end, " # "+comment)
	case !strings.ContainsAny(rest, "#\"'"):
		// Behind the rest of a mapping in braces.
		w.add(lineEnd, lineEnd, " # "+comment)
	}
}

func checkComment(c string) error {
	for _, r := range c {
		if unicode.IsControl(r) || r == '\u2028' || r == '\u2029' || r == utf8.RuneError || r == '\uFEFF' {
			return errors.New("a comment holds one line of printable text")
		}
	}
	return nil
}

// span is where a scalar stands, with its quotes. A scalar without text spans
// nothing behind the colon of its key.
func (w *rewriter) span(at place) (start, end int, err error) {
	n := at.value
	if n.Anchor != "" || n.Style&yaml.TaggedStyle != 0 {
		return 0, 0, fmt.Errorf("has an anchor or a tag; write the value plainly: %w", ErrRewrite)
	}
	start = w.offset(n)
	switch {
	case n.Style&(yaml.LiteralStyle|yaml.FoldedStyle) != 0:
		return 0, 0, fmt.Errorf("a block of lines; write the value on one line: %w", ErrRewrite)
	case n.Style&yaml.DoubleQuotedStyle != 0:
		end = quotedEnd(w.text, start, '"')
	case n.Style&yaml.SingleQuotedStyle != 0:
		end = quotedEnd(w.text, start, '\'')
	case n.Value == "":
		if at.key == nil {
			return 0, 0, fmt.Errorf("an empty item: %w", ErrRewrite)
		}
		_, keyEnd, err := w.span(place{value: at.key})
		if err != nil {
			return 0, 0, err
		}
		colon := strings.IndexByte(w.text[keyEnd:], ':')
		if colon < 0 || strings.TrimSpace(w.text[keyEnd:keyEnd+colon]) != "" {
			return 0, 0, fmt.Errorf("a key without a colon: %w", ErrRewrite)
		}
		start = keyEnd + colon + 1
		return start, start, nil
	case strings.HasPrefix(w.text[start:], n.Value):
		end = start + len(n.Value)
	}
	if end == 0 || end > len(w.text) {
		return 0, 0, fmt.Errorf("more than one line; write the value on one line: %w", ErrRewrite)
	}
	return start, end, nil
}

// quotedEnd is the offset behind the quote that closes the one at start, or 0.
func quotedEnd(text string, start int, quote byte) int {
	if start >= len(text) || text[start] != quote {
		return 0
	}
	for i := start + 1; i < len(text); i++ {
		switch {
		case quote == '"' && text[i] == '\\':
			i++
		case text[i] != quote:
		case quote == '\'' && i+1 < len(text) && text[i+1] == quote:
			i++
		default:
			return i + 1
		}
	}
	return 0
}

// offset is the place of a node in the text.
func (w *rewriter) offset(n *yaml.Node) int {
	return sort.Search(len(w.text), func(i int) bool {
		line, column := w.file.Position(i)
		return line > n.Line || (line == n.Line && column >= n.Column)
	})
}

func (w *rewriter) lineStart(offset int) int {
	return strings.LastIndexAny(w.text[:offset], "\r\n") + 1
}

func (w *rewriter) lineEnd(offset int) int {
	if i := strings.IndexAny(w.text[offset:], "\r\n"); i >= 0 {
		return offset + i
	}
	return len(w.text)
}

// lineBreak is the one that the text uses.
func (w *rewriter) lineBreak() string {
	i := strings.IndexByte(w.text, '\n')
	if i > 0 && w.text[i-1] == '\r' {
		return "\r\n"
	}
	return "\n"
}

// apply carries out the splices from the front.
func (w *rewriter) apply() ([]byte, error) {
	slices.SortStableFunc(w.splice, func(a, b splice) int {
		if c := cmp.Or(cmp.Compare(a.start, b.start), cmp.Compare(a.end, b.end)); c != 0 || a.newLine == b.newLine {
			return c
		}
		if a.newLine {
			return 1
		}
		return -1
	})
	var b bytes.Buffer
	if w.bom {
		b.WriteString("\uFEFF")
	}
	pos := 0
	for _, s := range w.splice {
		if s.start < pos {
			return nil, fmt.Errorf("two edits of one place: %w", ErrRewrite)
		}
		b.WriteString(w.text[pos:s.start])
		b.WriteString(s.text)
		pos = s.end
	}
	b.WriteString(w.text[pos:])
	return b.Bytes(), nil
}

// plainExpr is text that is the same plain scalar in block and flow style,
// whatever stands around it, unless it is of another type than string.
var plainExpr = lazyregexp.New(`^[A-Za-z0-9./_][A-Za-z0-9./_@:+=~?&%#;()$-]*$`)

// scalarText writes a string: plain if every reader takes it for a string,
// otherwise in double quotes.
func scalarText(s string) string {
	if plainExpr.MatchString(s) && !strings.HasSuffix(s, ":") && isPlainString(s) {
		return s
	}
	return doubleQuoted(s)
}

// yaml11Expr is what YAML 1.1 readers take for something else than a string.
var yaml11Expr = lazyregexp.New(`^(?i:y|n|yes|no|on|off|true|false|null|~|\.inf|\.nan|[0-9][0-9_.:-]*(e[0-9+-]+)?|0[xob][0-9a-f_]+|\.[0-9_]+|[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}.*)$`)

func isPlainString(s string) bool {
	if yaml11Expr.MatchString(s) {
		return false
	}
	f, problems := yamlpos.Parse("", []byte("k: "+s+"\n"), yamlpos.Limits{})
	if len(problems) > 0 || len(f.Documents) != 1 {
		return false
	}
	m, _ := f.Documents[0].Value.(map[string]any)
	return m["k"] == s
}

// doubleQuoted writes a string as JSON does, which YAML reads as well.
func doubleQuoted(s string) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(s); err != nil {
		return strconv.QuoteToASCII(s)
	}
	// Printable in JSON, but line breaks or forbidden in YAML.
	return strings.NewReplacer("\u0085", `\u0085`, "\uFEFF", `\ufeff`, "\u007f", `\u007f`).Replace(strings.TrimSuffix(b.String(), "\n"))
}

func printable(s string) bool {
	for _, r := range s {
		if !unicode.IsPrint(r) {
			return false
		}
	}
	return utf8.ValidString(s)
}

func flowText(m Mapping, quoted bool) string {
	var b strings.Builder
	b.WriteByte('{')
	for i, f := range m {
		if i > 0 {
			b.WriteString(", ")
		}
		if quoted {
			b.WriteString(doubleQuoted(f.Key) + ": " + doubleQuoted(f.Value))
		} else {
			b.WriteString(f.Key + ": " + scalarText(f.Value))
		}
	}
	return b.String() + "}"
}

// applied is the value v with an edit made in it. What the edit does not
// touch is shared with v.
func applied(v any, path []any, value any) (any, error) {
	if len(path) == 0 {
		switch value := value.(type) {
		case Mapping:
			out := map[string]any{}
			if old, ok := v.(map[string]any); ok {
				for k, x := range old {
					out[k] = x
				}
			}
			for _, f := range value {
				if _, ok := out[f.Key]; !ok && f.Was != "" {
					delete(out, f.Was)
				}
				out[f.Key] = f.Value
			}
			return out, nil
		default:
			return value, nil
		}
	}
	switch step := path[0].(type) {
	case int:
		list, ok := v.([]any)
		if !ok || step < 0 || step >= len(list) {
			return nil, ErrRewrite
		}
		item, err := applied(list[step], path[1:], value)
		if err != nil {
			return nil, err
		}
		out := slices.Clone(list)
		out[step] = item
		return out, nil
	case string:
		m, ok := v.(map[string]any)
		if !ok {
			return nil, ErrRewrite
		}
		item, err := applied(m[step], path[1:], value)
		if err != nil {
			return nil, err
		}
		out := make(map[string]any, len(m)+1)
		for k, x := range m {
			out[k] = x
		}
		out[step] = item
		return out, nil
	}
	return nil, ErrRewrite
}
