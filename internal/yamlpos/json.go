package yamlpos

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"go.yaml.in/yaml/v4"
)

// jsonReader builds nodes from JSON, so that everything behind it is the same
// for both formats.
type jsonReader struct {
	file     *File
	limits   Limits
	dec      *json.Decoder
	problems []Problem
	line     int // index of the line of the last position, to search on from
}

// readJSON reads JSON values one after another. It returns a Problem if the
// text is not JSON; problems that leave it JSON are returned as a list.
func readJSON(f *File, limits Limits) ([]*Document, []Problem, *Problem) {
	r := &jsonReader{file: f, limits: limits, dec: json.NewDecoder(strings.NewReader(f.text))}
	r.dec.UseNumber()
	var docs []*Document
	for {
		end := int(r.dec.InputOffset())
		n, err := r.value(0)
		if errors.Is(err, io.EOF) {
			return docs, r.problems, nil
		}
		if pr, ok := errors.AsType[limitError](err); ok {
			// As YAML, the documents behind it can be found.
			limit := Problem(pr)
			return nil, nil, &limit
		}
		if err != nil && len(docs) > 0 {
			if rest := strings.TrimLeft(f.text[end:], " \t\r\n"); rest != "" && rest[0] != '{' && rest[0] != '[' {
				line, column := f.Position(len(f.text) - len(rest))
				return nil, nil, &Problem{Kind: Syntax, Line: line, Column: column, Width: 1, Message: "there is text behind the JSON value", Fix: "remove it"}
			}
		}
		if err != nil {
			return nil, nil, r.syntaxError(err)
		}
		if len(docs) == limits.Documents {
			r.problems = append(r.problems, Problem{Kind: Limit, Line: n.Line, Column: n.Column,
				Message: fmt.Sprintf("more than %d documents", limits.Documents)})
			return docs, r.problems, nil
		}
		docs = append(docs, &Document{Line: n.Line, Node: n, Bad: len(r.problems) > 0})
	}
}

// limitError carries a problem that ends reading.
type limitError Problem

func (e limitError) Error() string { return e.Message }

func (r *jsonReader) syntaxError(err error) *Problem {
	offset := int(r.dec.InputOffset())
	if se, ok := errors.AsType[*json.SyntaxError](err); ok {
		offset = max(0, int(se.Offset)-1)
	}
	message := strings.TrimPrefix(err.Error(), "json: ")
	if errors.Is(err, io.ErrUnexpectedEOF) {
		offset, message = len(strings.TrimRight(r.file.text, " \t\r\n")), "the JSON ends in the middle of a value"
	}
	line, column := r.file.Position(offset)
	return &Problem{Kind: Syntax, Line: line, Column: column, Width: 1, Message: message}
}

// token reads the next token and where it stands.
func (r *jsonReader) token() (json.Token, *yaml.Node, error) {
	start := int(r.dec.InputOffset())
	tok, err := r.dec.Token()
	if err != nil {
		if start > 0 && errors.Is(err, io.EOF) && strings.Trim(r.file.text[start:], " \t\r\n") != "" {
			err = io.ErrUnexpectedEOF
		}
		return nil, nil, err
	}
	end := int(r.dec.InputOffset())
	for start < end && strings.IndexByte(" \t\r\n,:", r.file.text[start]) >= 0 {
		start++
	}
	raw := r.file.text[start:end]
	n := &yaml.Node{Kind: yaml.ScalarNode}
	for r.line+1 < len(r.file.lines) && r.file.lines[r.line+1] <= start {
		r.line++
	}
	n.Line = r.line + 1
	n.Column = runeCount(r.file.text[r.file.lines[r.line]:start]) + 1
	switch v := tok.(type) {
	case string:
		n.Tag, n.Value, n.Style = "!!str", v, yaml.DoubleQuotedStyle
		if strings.Contains(raw, `\u`) && loneSurrogate(raw) {
			r.problems = append(r.problems, Problem{Kind: Encoding, Line: n.Line, Column: n.Column, Width: runeCount(raw),
				Message: `the string has half of a surrogate pair (\ud800 to \udfff)`, Fix: "remove it, or write both halves"})
		}
	case json.Number:
		n.Tag, n.Value = "!!int", string(v)
		if strings.ContainsAny(n.Value, ".eE") {
			n.Tag = "!!float"
		}
	case bool:
		n.Tag, n.Value = "!!bool", raw
	case nil:
		n.Tag, n.Value = "!!null", raw
	case json.Delim:
		n.Style = yaml.FlowStyle
	}
	return tok, n, nil
}

func (r *jsonReader) value(depth int) (*yaml.Node, error) {
	tok, n, err := r.token()
	if err != nil {
		return nil, err
	}
	delim, ok := tok.(json.Delim)
	if !ok {
		return n, nil
	}
	if depth == r.limits.Depth {
		return nil, limitError{Kind: Limit, Line: n.Line, Column: n.Column, Width: 1,
			Message: fmt.Sprintf("nested more than %d levels deep", r.limits.Depth)}
	}
	if delim == '[' {
		n.Kind, n.Tag = yaml.SequenceNode, "!!seq"
		for r.dec.More() {
			item, err := r.value(depth + 1)
			if err != nil {
				return nil, unexpected(err)
			}
			n.Content = append(n.Content, item)
		}
		_, err := r.dec.Token()
		return n, unexpected(err)
	}
	n.Kind, n.Tag = yaml.MappingNode, "!!map"
	for r.dec.More() {
		_, k, err := r.token()
		if err != nil {
			return nil, unexpected(err)
		}
		v, err := r.value(depth + 1)
		if err != nil {
			return nil, unexpected(err)
		}
		n.Content = append(n.Content, k, v)
	}
	_, err = r.dec.Token()
	return n, unexpected(err)
}

// unexpected makes the end of the text inside of a value an error.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// loneSurrogate finds a \u escape of half a pair, which encoding/json replaces
// silently.
func loneSurrogate(raw string) bool {
	for i := 0; i+1 < len(raw); i++ {
		if raw[i] != '\\' {
			continue
		}
		i++
		if raw[i] != 'u' || i+4 >= len(raw) {
			continue
		}
		switch surrogate(raw[i+1 : i+5]) {
		case 'h':
			if i+10 >= len(raw) || raw[i+5] != '\\' || raw[i+6] != 'u' || surrogate(raw[i+7:i+11]) != 'l' {
				return true
			}
			i += 10
		case 'l':
			return true
		}
	}
	return false
}

// surrogate says whether four hexadecimal digits are a high (h) or low (l)
// surrogate, or neither (0).
func surrogate(hex string) byte {
	if hex[0] != 'd' && hex[0] != 'D' {
		return 0
	}
	switch c := hex[1]; {
	case c == '8', c == '9', c == 'a', c == 'A', c == 'b', c == 'B':
		return 'h'
	case c >= 'c' && c <= 'f', c >= 'C' && c <= 'F':
		return 'l'
	}
	return 0
}
