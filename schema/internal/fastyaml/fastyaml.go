// Package fastyaml reads the plain block style in which most documents are
// written, several times faster than a YAML library, and without the places of
// values. What it does not know it refuses, and never guesses: whoever uses it
// reads the text with package yamlpos then, which is the truth. A fuzz test
// holds the two together, and the package can be deleted without changing
// anything but speed.
package fastyaml

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// maxDepth is below the limit of yamlpos, so that what is nested deeper is
// reported there.
const maxDepth = 90

// Documents splits a text at document markers and reads each document. Those
// without content are left out. ok is false if any of them is beyond this
// package.
func Documents(text string) (docs []any, ok bool) {
	if !ordinary(text) {
		return nil, false
	}
	for len(text) > 0 {
		var doc string
		doc, text = cut(text)
		p := parser{text: doc}
		if !p.next() {
			return nil, false
		}
		if p.done {
			continue
		}
		v, ok := p.block(p.indent, 0)
		if !ok || !p.done {
			return nil, false
		}
		docs = append(docs, v)
	}
	return docs, true
}

// cut returns the text up to a line that is a document marker, and the rest
// behind it. No value can hold such a line.
func cut(text string) (doc, rest string) {
	if strings.HasPrefix(text, "---\n") {
		return "", text[4:]
	}
	if i := strings.Index(text, "\n---\n"); i >= 0 {
		return text[:i+1], text[i+5:]
	}
	return text, ""
}

// ordinary tells whether a text has only characters that mean nothing special
// to YAML anywhere: no tabs, carriage returns, other control characters, or
// line breaks beyond LF.
func ordinary(text string) bool {
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c < ' ' && c != '\n', c == 0x7F:
			return false
		case c < 0x80:
		case c == 0xC2: // U+0080 to U+00BF: C1 controls, and NEL
			if i+1 < len(text) && text[i+1] < 0xA0 {
				return false
			}
		case c == 0xE2: // LS and PS
			if i+2 < len(text) && text[i+1] == 0x80 && (text[i+2] == 0xA8 || text[i+2] == 0xA9) {
				return false
			}
		case c == 0xEF: // byte order mark, U+FFFE, U+FFFF
			if i+1 < len(text) && (text[i+1] == 0xBB || text[i+1] == 0xBF) {
				return false
			}
		}
	}
	return utf8.ValidString(text)
}

// parser stands on a line with content.
type parser struct {
	text   string
	at     int // where the next line starts
	indent int // of the current content
	cur    int // where the current content starts
	end    int // where the current line ends, without its line break
	done   bool
}

// next goes to the next line with content. It returns false if the line starts
// with something that is not known here.
func (p *parser) next() bool {
	for p.at < len(p.text) {
		start := p.at
		end := strings.IndexByte(p.text[start:], '\n')
		if end < 0 {
			end = len(p.text)
			p.at = end
		} else {
			end += start
			p.at = end + 1
		}
		i := start
		for i < end && p.text[i] == ' ' {
			i++
		}
		if i == end || p.text[i] == '#' {
			continue
		}
		if i == start && end-i >= 3 && (p.text[i:i+3] == "---" || p.text[i:i+3] == "...") {
			return false
		}
		p.indent, p.cur, p.end = i-start, i, end
		return true
	}
	p.done, p.indent = true, -1
	return true
}

// dash tells whether a sequence item starts at i.
func (p *parser) dash(i int) bool {
	return p.text[i] == '-' && (i+1 == p.end || p.text[i+1] == ' ')
}

func (p *parser) block(indent, depth int) (any, bool) {
	if depth > maxDepth {
		return nil, false
	}
	if p.dash(p.cur) {
		return p.sequence(indent, depth)
	}
	return p.mapping(indent, depth)
}

func (p *parser) sequence(indent, depth int) (any, bool) {
	out := make([]any, 0, 4)
	for !p.done && p.indent == indent && p.dash(p.cur) {
		i := p.skip(p.cur + 1)
		var v any
		ok := true
		switch {
		case i == p.end || p.text[i] == '#':
			if !p.next() {
				return nil, false
			}
			if !p.done && p.indent > indent {
				v, ok = p.block(p.indent, depth+1)
			}
		case p.dash(i) || p.key(i) >= 0:
			// A collection that starts on the line of the dash.
			p.indent += i - p.cur
			p.cur = i
			v, ok = p.block(p.indent, depth+1)
		default:
			v, ok = p.scalar(i, indent, depth)
		}
		if !ok {
			return nil, false
		}
		out = append(out, v)
	}
	return out, p.done || p.indent < indent || p.indent == indent && indent >= 0 && !p.dash(p.cur)
}

func (p *parser) skip(i int) int {
	for i < p.end && p.text[i] == ' ' {
		i++
	}
	return i
}

// key returns where the colon behind a simple key is that starts at i, or -1.
func (p *parser) key(i int) int {
	switch c := p.text[i]; c {
	case '"', '\'':
		j := strings.IndexByte(p.text[i+1:p.end], c)
		if j < 0 {
			return -1
		}
		j += i + 2
		if j < p.end && p.text[j] == ':' && (j+1 == p.end || p.text[j+1] == ' ') && strings.IndexByte(p.text[i:j], '\\') < 0 {
			return j
		}
		return -1
	case '{', '[':
		return -1
	}
	line := p.text[i:p.end]
	for from := 0; ; {
		k := strings.IndexByte(line[from:], ':')
		if k < 0 {
			return -1
		}
		k += from
		if k+1 == len(line) || line[k+1] == ' ' {
			if strings.Contains(line[:k], " #") {
				return -1
			}
			return i + k
		}
		from = k + 1
	}
}

// maxKey is below the length to which YAML readers take a key on one line.
const maxKey = 1000

func (p *parser) mapping(indent, depth int) (any, bool) {
	m := make(map[string]any, 8)
	for !p.done && p.indent == indent {
		colon := p.key(p.cur)
		if colon < 0 || colon-p.cur > maxKey {
			return nil, false
		}
		k, ok := keyText(p.text[p.cur:colon])
		if !ok {
			return nil, false
		}
		if _, twice := m[k]; twice {
			return nil, false
		}
		i := p.skip(colon + 1)
		var v any
		if i == p.end || p.text[i] == '#' {
			if !p.next() {
				return nil, false
			}
			// A list may stand as far left as the key of it.
			if !p.done && (p.indent > indent || p.indent == indent && p.dash(p.cur)) {
				v, ok = p.block(p.indent, depth+1)
			}
		} else {
			v, ok = p.scalar(i, indent, depth)
		}
		if !ok {
			return nil, false
		}
		m[k] = v
	}
	return m, p.done || p.indent < indent
}

// keyText is the string that a key stands for.
func keyText(s string) (string, bool) {
	if s == "" {
		return "", false
	}
	switch c := s[0]; c {
	case '"', '\'':
		return s[1 : len(s)-1], true
	default:
		s = strings.TrimRight(s, " ")
		if s == "" || !plainStart(s) || strings.Contains(s, " #") {
			return "", false
		}
		v, ok := resolve(s)
		if !ok {
			return "", false
		}
		text, isText := v.(string)
		return text, isText
	}
}

// plainStart tells whether a scalar without quotes may start like this. The
// marks that may under conditions are refused as well.
func plainStart(s string) bool {
	switch s[0] {
	case ',', '[', ']', '{', '}', '#', '&', '*', '!', '|', '>', '\'', '"', '%', '@', '`', '?', ':', '=', ' ':
		return false
	case '-':
		return len(s) > 1 && s[1] != ' '
	}
	return true
}

// scalar reads the value that starts at i, and goes to the next line.
func (p *parser) scalar(i, indent, depth int) (any, bool) {
	switch p.text[i] {
	case '"':
		j := i + 1
		escaped := false
		for j < p.end && p.text[j] != '"' {
			if p.text[j] == '\\' {
				if j+1 >= p.end || strings.IndexByte(`"\nt`, p.text[j+1]) < 0 {
					return nil, false
				}
				escaped = true
				j++
			}
			j++
		}
		if j >= p.end || !p.tail(j+1) {
			return nil, false
		}
		v := p.text[i+1 : j]
		if escaped {
			v = unescape.Replace(v)
		}
		return v, p.next()
	case '\'':
		j := i + 1
		for j < p.end {
			if p.text[j] == '\'' {
				if j+1 == p.end || p.text[j+1] != '\'' {
					break
				}
				j++
			}
			j++
		}
		if j >= p.end || !p.tail(j+1) {
			return nil, false
		}
		return strings.ReplaceAll(p.text[i+1:j], "''", "'"), p.next()
	case '|':
		return p.literal(i, indent)
	case '>':
		return p.folded(i, indent)
	case '[', '{':
		v, j, ok := p.flow(i, depth)
		return v, ok && p.tail(j) && p.next()
	}
	return p.plain(i, indent)
}

var unescape = strings.NewReplacer(`\"`, `"`, `\\`, `\`, `\n`, "\n", `\t`, "\t")

// tail tells whether nothing but a comment follows a quoted value.
func (p *parser) tail(i int) bool {
	rest := p.text[i:p.end]
	trimmed := strings.TrimLeft(rest, " ")
	return trimmed == "" || trimmed[0] == '#' && len(trimmed) < len(rest)
}

// plain reads a value without quotes, which may go on on further lines.
func (p *parser) plain(i, indent int) (any, bool) {
	first := p.text[i:p.end]
	comment := strings.Index(first, " #")
	if comment >= 0 {
		first = first[:comment]
	}
	first = strings.TrimRight(first, " ")
	if first == "" || !plainStart(first) || strings.Contains(first, ": ") || strings.HasSuffix(first, ":") {
		return nil, false
	}
	var more strings.Builder
	for rest := p.text[p.at:]; ; rest = p.text[p.at:] {
		// Blank lines belong to the value only if it goes on behind them.
		blank, n := 0, 0
		line, size := "", 0
		for n < len(rest) {
			line, size = firstLine(rest[n:])
			if strings.TrimLeft(line, " ") != "" {
				break
			}
			blank++
			n += size
		}
		content := strings.TrimLeft(line, " ")
		if n >= len(rest) || len(line)-len(content) <= indent || content[0] == '#' {
			break
		}
		content = strings.TrimRight(content, " ")
		if comment >= 0 || strings.Contains(content, ": ") || strings.HasSuffix(content, ":") || strings.Contains(content, " #") || strings.HasPrefix(content, "- ") || content == "-" {
			return nil, false
		}
		if more.Len() == 0 {
			more.WriteString(first)
		}
		if blank == 0 {
			more.WriteByte(' ')
		}
		for range blank {
			more.WriteByte('\n')
		}
		more.WriteString(content)
		p.at += n + size
	}
	if more.Len() > 0 {
		return more.String(), p.next()
	}
	v, ok := resolve(first)
	return v, ok && p.next()
}

// firstLine is the first line of a text without its line break, and its size
// with it.
func firstLine(s string) (line string, size int) {
	if i := strings.IndexByte(s, '\n'); i >= 0 {
		return s[:i], i + 1
	}
	return s, len(s)
}

// literal reads a block of text behind |.
func (p *parser) literal(i, indent int) (any, bool) {
	header := strings.TrimRight(p.text[i:p.end], " ")
	if header != "|" && header != "|-" {
		return nil, false
	}
	var b strings.Builder
	margin, blank := -1, 0
	for p.at < len(p.text) {
		line, size := firstLine(p.text[p.at:])
		if p.at+size == len(p.text) && size == len(line) {
			return nil, false // the last line has no end
		}
		content := strings.TrimLeft(line, " ")
		at := len(line) - len(content)
		if content == "" {
			if margin < 0 && at > indent+1 || margin >= 0 && at > margin {
				return nil, false // spaces that count, or are an error
			}
			blank++
			p.at += size
			continue
		}
		if margin < 0 {
			if at <= indent {
				break
			}
			margin = at
			if blank > 0 {
				return nil, false
			}
		}
		if at < margin {
			break
		}
		for ; blank > 0; blank-- {
			b.WriteByte('\n')
		}
		b.WriteString(line[margin:])
		b.WriteByte('\n')
		p.at += size
	}
	v := b.String()
	if header == "|-" {
		v = strings.TrimSuffix(v, "\n")
	}
	return v, p.next()
}

// folded reads a block of text behind > whose lines are joined by spaces.
func (p *parser) folded(i, indent int) (any, bool) {
	header := strings.TrimRight(p.text[i:p.end], " ")
	if header != ">" && header != ">-" {
		return nil, false
	}
	var b strings.Builder
	margin, blank := -1, 0
	for p.at < len(p.text) {
		line, size := firstLine(p.text[p.at:])
		if p.at+size == len(p.text) && size == len(line) {
			return nil, false // the last line has no end
		}
		content := strings.TrimLeft(line, " ")
		at := len(line) - len(content)
		if content == "" {
			if margin < 0 || at > margin {
				return nil, false // spaces that count, or are an error
			}
			blank++
			p.at += size
			continue
		}
		if margin < 0 {
			if at <= indent {
				break
			}
			margin = at
		}
		if at < margin {
			break
		}
		if at > margin {
			return nil, false // such lines are not joined
		}
		switch {
		case b.Len() == 0:
		case blank == 0:
			b.WriteByte(' ')
		}
		for ; blank > 0; blank-- {
			b.WriteByte('\n')
		}
		b.WriteString(line[margin:])
		p.at += size
	}
	if b.Len() == 0 {
		return nil, false
	}
	v := b.String()
	if header == ">" {
		v += "\n"
	}
	return v, p.next()
}

// flow reads a list in brackets or a mapping in braces that ends on its line,
// and returns where it ends.
func (p *parser) flow(i, depth int) (v any, end int, ok bool) {
	if depth > maxDepth {
		return nil, 0, false
	}
	closing := byte(']')
	list, m := []any{}, map[string]any(nil)
	if p.text[i] == '{' {
		closing, m = '}', map[string]any{}
	}
	value := func() any {
		if m == nil {
			return list
		}
		return m
	}
	i = p.skip(i + 1)
	if i < p.end && p.text[i] == closing {
		return value(), i + 1, true
	}
	for i < p.end {
		var key string
		if m != nil {
			var k any
			if k, i, ok = p.flowScalar(i); !ok || i >= p.end || p.text[i] != ':' || i+1 >= p.end || p.text[i+1] != ' ' {
				return nil, 0, false
			}
			if key, ok = k.(string); !ok {
				return nil, 0, false
			}
			if _, twice := m[key]; twice {
				return nil, 0, false
			}
			if i = p.skip(i + 1); i >= p.end {
				return nil, 0, false
			}
		}
		var e any
		if p.text[i] == '[' || p.text[i] == '{' {
			e, i, ok = p.flow(i, depth+1)
		} else {
			e, i, ok = p.flowScalar(i)
		}
		if !ok {
			return nil, 0, false
		}
		if m != nil {
			m[key] = e
		} else {
			list = append(list, e)
		}
		if i = p.skip(i); i >= p.end {
			return nil, 0, false
		}
		switch p.text[i] {
		case closing:
			return value(), i + 1, true
		case ',':
			if i = p.skip(i + 1); i < p.end && p.text[i] == closing {
				return nil, 0, false
			}
		default:
			return nil, 0, false
		}
	}
	return nil, 0, false
}

// flowScalar reads a scalar inside of brackets, and returns where it ends.
func (p *parser) flowScalar(i int) (v any, end int, ok bool) {
	if c := p.text[i]; c == '"' || c == '\'' {
		j := strings.IndexByte(p.text[i+1:p.end], c)
		if j < 0 {
			return nil, 0, false
		}
		j += i + 1
		inner := p.text[i+1 : j]
		if strings.IndexByte(inner, '\\') >= 0 || j+1 < p.end && strings.IndexByte(",]}: ", p.text[j+1]) < 0 {
			return nil, 0, false
		}
		return inner, j + 1, true
	}
	j := i
	for j < p.end {
		c := p.text[j]
		if c == ',' || c == ']' || c == '}' {
			break
		}
		if c == '[' || c == '{' || c == '#' {
			return nil, 0, false
		}
		if c == ':' {
			if j+1 < p.end && p.text[j+1] == ' ' {
				break
			}
			if j+1 >= p.end || strings.IndexByte(",[]{}", p.text[j+1]) >= 0 {
				return nil, 0, false
			}
		}
		j++
	}
	s := strings.TrimRight(p.text[i:j], " ")
	if s == "" || !plainStart(s) || len(s) > maxKey {
		return nil, 0, false
	}
	v, ok = resolve(s)
	return v, j, ok
}

// resolve finds the value of a scalar without quotes.
func resolve(s string) (any, bool) {
	switch c := s[0]; {
	case c >= '0' && c <= '9', c == '-', c == '+', c == '.':
		return number(s)
	case c == '~':
		return nil, false
	case c == '<':
		return s, s != "<<"
	}
	if len(s) > 5 {
		return s, true
	}
	switch s {
	case "true", "True", "TRUE":
		return true, true
	case "false", "False", "FALSE":
		return false, true
	case "null", "Null", "NULL":
		return nil, true
	}
	switch strings.ToLower(s) {
	case "y", "n", "yes", "no", "on", "off":
		return nil, false // worth a warning
	}
	return s, true
}

// number resolves what starts like a number. Forms that only some readers take
// for one are refused.
func number(s string) (any, bool) {
	digits := strings.TrimPrefix(s, "-")
	whole, fraction, isFloat := strings.Cut(digits, ".")
	if allDigits(whole) && (whole == "0" && s[0] != '-' || whole[0] != '0') && len(whole) <= 18 {
		if !isFloat {
			n, err := strconv.ParseInt(s, 10, 64)
			return n, err == nil
		}
		if allDigits(fraction) && len(fraction) <= 15 {
			f, err := strconv.ParseFloat(s, 64)
			return f, err == nil
		}
	}
	// A letter that no form of a number has, or two dots, make it a string.
	if strings.IndexByte(s, '_') >= 0 {
		return nil, false
	}
	unsigned := strings.TrimLeft(s, "+-")
	if len(unsigned) > 1 && unsigned[0] == '0' && unsigned[1] > '9' {
		switch unsigned[1] {
		case 'x', 'X', 'o', 'O':
			return nil, false
		case 'b', 'B':
			if strings.Trim(unsigned[2:], "01") == "" {
				return nil, false
			}
			return s, true
		}
	}
	if lower := strings.ToLower(unsigned); lower == ".inf" || lower == ".nan" {
		return nil, false
	}
	for i := range len(s) {
		c := s[i] | 0x20
		if c >= 'a' && c <= 'z' && c != 'e' || s[i] >= 0x80 || s[i] == '/' || s[i] == ' ' || s[i] == '@' {
			return s, true
		}
	}
	inside := s[1:]
	return s, !strings.ContainsAny(s, "eE") && (strings.Count(s, ".") > 1 || strings.ContainsAny(inside, "-+:"))
}

func allDigits(s string) bool {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return s != ""
}
