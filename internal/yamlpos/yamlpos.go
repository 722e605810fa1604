// Package yamlpos reads YAML and JSON documents into plain Go values while
// keeping the place of every value, so that whoever finds fault with a value
// can say where it stands.
//
// The bytes may come from anywhere. Reading is linear in their length, and
// size, nesting, documents and the expansion of aliases are limited. What is
// ambiguous in YAML, such as a key that occurs twice, is a [Problem] and never
// silently decided. Numbers, booleans and null follow the YAML 1.2 core schema
// with the octal and underscore forms of go-yaml; the words yes, no, on and
// off are strings.
package yamlpos

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"
	"go.yaml.in/yaml/v4/plugin/loaderlimits"
)

// Limits bound what [Parse] accepts. A zero field means the default.
type Limits struct {
	Bytes     int // size of the input; default 64 MiB
	Depth     int // nesting of mappings and sequences; default 100
	Documents int // documents in the input; default 100,000
	Values    int // keys, values and lines, by a quick estimate from above; default 6,000,000
	Expanded  int // values that aliases and merge keys add to one document; default 100,000
	Problems  int // problems reported before reading stops; default 1,000
}

func (l Limits) withDefaults() Limits {
	l.Bytes = cmp.Or(l.Bytes, 64<<20)
	l.Depth = cmp.Or(l.Depth, 100)
	l.Documents = cmp.Or(l.Documents, 100_000)
	l.Values = cmp.Or(l.Values, 6_000_000)
	l.Expanded = cmp.Or(l.Expanded, 100_000)
	l.Problems = cmp.Or(l.Problems, 1_000)
	return l
}

// Kind is what a [Problem] is about.
type Kind int

// The kinds of problems.
const (
	Syntax      Kind = iota // neither YAML nor JSON
	Encoding                // not UTF-8, or with characters that no text file holds
	Limit                   // beyond one of the [Limits]
	Duplicate               // a key that its mapping has already
	Key                     // a key that is not a string
	Alias                   // an alias without anchor, to itself, or into another document
	Tag                     // a tag other than those of JSON's types
	Number                  // a number that JSON cannot hold
	Placeholder             // a line that holds only "...", as in documentation
	Field                   // a field that [Document.Decode] does not know
	Type                    // a value of another type than [Document.Decode] asks for
)

// Problem is something about a document's text that makes it unreadable or
// ambiguous.
type Problem struct {
	Kind         Kind
	Line, Column int // from 1, columns in runes; 0 if unknown
	Width        int // in runes
	Path         []string
	Message      string
	Fix          string // may be empty
}

// File is a text with the documents in it.
type File struct {
	Name      string
	Documents []*Document

	text  string // without byte order mark
	lines []int  // offset of the start of each line
}

// Document is one document of a [File].
type Document struct {
	// Index counts the documents of the file from 0, empty ones left out.
	Index int
	// Line is where the document starts, from 1.
	Line int
	// Node is the root value, never an alias and never nil. For JSON it is
	// made up to look like flow style YAML.
	Node *yaml.Node
	// Root is the document node around Node, which holds comments at the ends
	// of the document. It is nil for JSON.
	Root *yaml.Node
	// Value is the same as map[string]any, []any, string, bool, int64,
	// float64 and nil. Integers beyond int64 are float64, as in the
	// Kubernetes API. Values that aliases name are shared: do not modify.
	Value any
	// Aliases are the places that use an alias.
	Aliases []*yaml.Node
	// Bad is true if a problem was reported for this document, so that Value
	// may differ from what the author meant.
	Bad bool
}

// Parse reads all documents in data: YAML, or JSON values one after another.
// Empty documents, and documents with nothing but comments, are left out. A
// document that cannot be parsed is reported and left out; the documents after
// it are read. The problems are in the order of their places.
func Parse(name string, data []byte, limits Limits) (*File, []Problem) {
	limits = limits.withDefaults()
	f := &File{Name: name}
	p := &parser{file: f, limits: limits}
	if len(data) > limits.Bytes {
		p.problem(Problem{Kind: Limit, Line: 1, Column: 1,
			Message: fmt.Sprintf("the input has more than %d bytes", limits.Bytes),
			Fix:     "split it into several files"})
		return f, p.problems
	}
	data = bytes.TrimPrefix(data, []byte("\uFEFF"))
	f.text = string(data)
	f.lines = lineStarts(f.text)
	if p.checkEncoding() && p.checkValues() {
		p.parse()
	}
	slices.SortStableFunc(p.problems, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	return f, p.problems
}

type parser struct {
	file     *File
	limits   Limits
	problems []Problem
	stopped  bool // the limit of problems was reached
}

func (p *parser) problem(pr Problem) {
	if p.stopped {
		return
	}
	if len(p.problems) == p.limits.Problems {
		p.stopped = true
		p.problems = append(p.problems, Problem{Kind: Limit, Line: pr.Line, Column: pr.Column,
			Message: "too many problems; the rest of the input was not checked"})
		return
	}
	pr.Width = max(pr.Width, 1)
	p.problems = append(p.problems, pr)
}

// checkEncoding reports text that is no text.
func (p *parser) checkEncoding() bool {
	text := p.file.text
	at := func(offset int, kind Kind, message, fix string) bool {
		line, column := p.file.Position(offset)
		p.problem(Problem{Kind: kind, Line: line, Column: column, Message: message, Fix: fix})
		return false
	}
	if what := looksLike(text); what != "" {
		return at(0, Encoding, "this is "+what+", not YAML or JSON", "")
	}
	for i := 0; i < len(text); {
		c := text[i]
		if c < utf8.RuneSelf {
			if c < ' ' && c != '\t' && c != '\n' && c != '\r' {
				return at(i, Encoding, fmt.Sprintf("control character U+%04X", c), "remove it, or write it as an escape in a quoted string")
			}
			i++
			continue
		}
		r, n := utf8.DecodeRuneInString(text[i:])
		if r == utf8.RuneError && n == 1 {
			return at(i, Encoding, fmt.Sprintf("byte 0x%02X is not UTF-8", c), "save the file as UTF-8")
		}
		// U+0085 is a line break in YAML; the other C1 controls are refused.
		if r >= 0x80 && r < 0xA0 && r != 0x85 || r == 0xFFFE || r == 0xFFFF || r == 0xFEFF {
			return at(i, Encoding, fmt.Sprintf("character U+%04X is not allowed", r), "remove it, or write it as an escape in a quoted string")
		}
		i += n
	}
	return true
}

// checkValues refuses text that would take hundreds of times its own size as
// nodes, such as millions of empty items. Every value ends with one of these
// characters or at the end.
func (p *parser) checkValues() bool {
	if estimate(p.file.text) <= p.limits.Values {
		return true
	}
	p.problem(Problem{Kind: Limit, Line: 1, Column: 1, Message: fmt.Sprintf("the input has more than %d lines, fields and items", p.limits.Values),
		Fix: "split it into several files"})
	return false
}

func estimate(text string) int {
	n := 0
	for _, c := range []string{"\n", ",", ":", "[", "{"} {
		n += strings.Count(text, c)
	}
	return n
}

// Within tells whether a text keeps within the limits on bytes and values. The
// others show only when it is read.
func (l Limits) Within(text string) bool {
	l = l.withDefaults()
	return len(text) <= l.Bytes && estimate(text) <= l.Values
}

// looksLike names common kinds of files that are fetched by mistake.
func looksLike(text string) string {
	head := text[:min(len(text), 512)]
	lower := strings.ToLower(strings.TrimSpace(head))
	switch {
	case strings.HasPrefix(head, "\x1f\x8b"):
		return "gzip data"
	case strings.HasPrefix(head, "PK\x03\x04"):
		return "a zip archive"
	case strings.HasPrefix(head, "\x7fELF"):
		return "an executable"
	case strings.HasPrefix(head, "\xff\xfe"), strings.HasPrefix(head, "\xfe\xff"):
		return "UTF-16 text"
	case strings.HasPrefix(lower, "<!doctype html"), strings.HasPrefix(lower, "<html"):
		return "an HTML page"
	}
	return ""
}

func (p *parser) parse() {
	trimmed := strings.TrimLeft(p.file.text, " \t\r\n")
	if strings.HasPrefix(trimmed, "{") || strings.HasPrefix(trimmed, "[") {
		// JSON first: YAML readers refuse the surrogate pairs that JSON
		// writers use for characters beyond U+FFFF.
		docs, problems, err := readJSON(p.file, p.limits)
		if err == nil {
			for _, pr := range problems {
				p.problem(pr)
			}
			for _, d := range docs {
				p.convert(d)
			}
			return
		}
		// Flow style YAML starts in the same way. If it is not YAML either,
		// the more helpful of the two errors is JSON's if a quoted key says
		// that JSON was meant.
		before := len(p.problems)
		p.parseYAML()
		if len(p.problems) > before && p.problems[before].Kind == Syntax && strings.HasPrefix(strings.TrimLeft(trimmed[1:], " \t\r\n{["), `"`) {
			p.problems[before] = *err
		}
		return
	}
	p.parseYAML()
}

// parseYAML reads a stream of documents. After a syntax error it goes on
// behind the next document marker, which no value can contain.
func (p *parser) parseYAML() {
	firstLine := 0 // index of the line where the rest starts
	for firstLine < len(p.file.lines) && !p.stopped {
		bad := p.parseStream(firstLine)
		if bad == 0 {
			return
		}
		next := -1
		for i := max(bad-1, firstLine+1); i < len(p.file.lines); i++ {
			if l := p.file.Line(i + 1); l == "---" || strings.HasPrefix(l, "--- ") {
				next = i
				break
			}
		}
		if next < 0 {
			return
		}
		firstLine = next
	}
}

// parseStream reads documents from the line with index first on. It returns
// the number of the line where it gave up, or 0.
func (p *parser) parseStream(first int) int {
	text := p.file.text[p.file.lines[first]:]
	tooDeep := false
	depth := loaderlimits.DepthFunc(func(depth int, _ *loaderlimits.DepthContext) error {
		if depth > p.limits.Depth {
			tooDeep = true
			return errors.New("nested too deep")
		}
		return nil
	})
	loader, err := yaml.NewLoader(strings.NewReader(text), yaml.WithPlugin(loaderlimits.New(depth, loaderlimits.AliasNone())))
	if err != nil {
		p.problem(Problem{Kind: Syntax, Message: err.Error()})
		return 0
	}
	for !p.stopped {
		var doc yaml.Node
		err := loader.Load(&doc)
		if errors.Is(err, io.EOF) {
			return 0
		}
		if err != nil {
			return p.syntaxError(err, first, tooDeep)
		}
		if doc.Kind != yaml.DocumentNode || len(doc.Content) == 0 || isEmpty(doc.Content[0]) {
			continue
		}
		if first > 0 {
			shift(&doc, first)
		}
		if len(p.file.Documents) == p.limits.Documents {
			p.problem(Problem{Kind: Limit, Line: doc.Line, Column: 1,
				Message: fmt.Sprintf("more than %d documents", p.limits.Documents)})
			return 0
		}
		p.convert(&Document{Line: doc.Line, Node: doc.Content[0], Root: &doc})
	}
	return 0
}

// isEmpty tells a document without content from one that says null.
func isEmpty(n *yaml.Node) bool {
	return n.Kind == yaml.ScalarNode && n.Tag == "!!null" && n.Value == "" && n.Style == 0 && n.Anchor == ""
}

// shift moves the places of a tree down. Aliases are not followed, as their
// targets are in the tree themselves.
func shift(n *yaml.Node, lines int) {
	n.Line += lines
	for _, c := range n.Content {
		shift(c, lines)
	}
}

// syntaxError reports an error of the YAML reader and returns the line behind
// which reading may go on.
func (p *parser) syntaxError(err error, first int, tooDeep bool) int {
	le, ok := errors.AsType[*yaml.LoadError](err)
	if !ok {
		p.problem(Problem{Kind: Syntax, Line: first + 1, Column: 1, Message: err.Error()})
		return first + 1
	}
	line, column := le.Mark.Line, le.Mark.Column
	if line == 0 {
		line, column = 1, 1
	}
	line += first
	if tooDeep {
		p.problem(Problem{Kind: Limit, Line: line, Column: max(column, 1),
			Message: fmt.Sprintf("nested more than %d levels deep", p.limits.Depth)})
		return line
	}
	if p.placeholders(first, line) {
		return line
	}
	pr := Problem{Kind: Syntax, Line: min(line, max(1, len(p.file.lines))), Column: max(column, 1), Message: le.Message}
	switch {
	case le.ContextMsg != "" && le.ContextMark.Line != 0 && le.ContextMark.Line+first != line:
		pr.Message = fmt.Sprintf("%s %s that starts at line %d", le.Message, le.ContextMsg, le.ContextMark.Line+first)
	case le.ContextMsg != "":
		pr.Message = le.Message + " " + le.ContextMsg
	}
	text := p.file.Line(pr.Line)
	switch {
	case strings.Contains(le.Message, "unknown anchor"):
		pr.Kind = Alias
	case strings.Contains(le.Message, "cannot start any token") && strings.HasPrefix(strings.TrimLeft(text, " "), "\t"):
		pr.Message = "a tab is used for indentation"
		pr.Fix = "indent with spaces"
	case strings.Contains(le.Message, "mapping values are not allowed"):
		pr.Fix = "quote the value, or check the indentation"
	case strings.Contains(le.Message, "did not find expected key"), strings.Contains(le.Message, "did not find expected '-' indicator"):
		pr.Fix = "check the indentation"
	}
	p.problem(pr)
	return line
}

// placeholders reports lines with only "..." in the document that holds the
// given line: documentation uses them to leave something out.
func (p *parser) placeholders(first, line int) bool {
	isMarker := func(l string) bool { return l == "---" || strings.HasPrefix(l, "--- ") }
	isPlaceholder := func(i int) bool {
		l := p.file.Line(i)
		return strings.TrimSpace(l) == "..." && strings.TrimSpace(l) != strings.TrimRight(l, " \t\r")
	}
	// The YAML reader notices such a line at the latest where the next one
	// starts that is not a comment.
	near := false
	for i := line; i > first && i >= line-3; i-- {
		near = near || isPlaceholder(i)
	}
	if !near {
		return false
	}
	start := line
	for start > first+1 && !isMarker(p.file.Line(start)) {
		start--
	}
	for i := start; i <= len(p.file.lines) && (i == start || !isMarker(p.file.Line(i))); i++ {
		if isPlaceholder(i) {
			l := p.file.Line(i)
			p.problem(Problem{Kind: Placeholder, Line: i, Column: strings.Index(l, "...") + 1, Width: 3,
				Message: fmt.Sprintf(`line %d is a literal "..." placeholder, which is not YAML`, i),
				Fix:     "write out what it stands for, or delete the line"})
		}
	}
	return true
}
