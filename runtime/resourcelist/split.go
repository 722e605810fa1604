package resourcelist

import (
	"bytes"
)

// parts are the pieces of a ResourceList found by its lines alone.
type parts struct {
	header   []byte   // everything but the items
	items    [][]byte // elements at column 0
	line     []int    // line of each element in the text, from 1
	hasItems bool
}

// split takes a ResourceList in block style apart without parsing it. It
// reports false for anything it is not sure about, and then a real parse is
// needed: flow style and JSON, several documents, directives, tabs, carriage
// returns, byte order marks, quoted keys.
//
// What it returns is right if every element parses, alone, to exactly one
// mapping, and the header parses too: a quoted scalar or flow collection that
// reaches over a line mistaken for a boundary is cut, and cannot parse.
func split(data []byte) (parts, bool) {
	var p parts
	if bytes.IndexByte(data, '\r') >= 0 || bytes.IndexByte(data, 0) >= 0 || !bytes.HasSuffix(data, []byte("\n")) {
		return p, false
	}
	const none = -1
	var (
		inItems   bool
		dash      = none // column of the dashes of the items
		itemStart = none
		pending   = none // start of comments at the dash's column, not yet owned
		seen      = map[string]bool{}
		headFrom  = 0
		pos, num  = 0, 0
		first     = true
	)
	flush := func(end int) {
		if itemStart != none {
			p.items = append(p.items, data[itemStart:end])
			itemStart = none
		}
	}
	for pos < len(data) {
		start := pos
		num++
		end := bytes.IndexByte(data[pos:], '\n') + pos + 1
		pos = end
		line := data[start:end]
		col := 0
		for line[col] == ' ' {
			col++
		}
		c := line[col]
		switch {
		case c == '\n':
			continue
		case c == '\t':
			return p, false
		case c == '#':
			if inItems && (col == 0 || col == dash) && pending == none {
				pending = start
			}
			continue
		}
		if inItems && c == '-' && (line[col+1] == ' ' || line[col+1] == '\n') && (dash == none || col == dash) {
			dash = col
			cut := start
			if pending != none {
				cut = headComments(data, pending, start)
			}
			flush(cut)
			itemStart = cut
			p.line = append(p.line, num)
			pending = none
			continue
		}
		if col > 0 {
			if inItems && col <= dash {
				return p, false
			}
			if inItems && dash == none {
				return p, false // items is not a list, or flow style
			}
			pending = none
			first = false
			continue
		}
		// A field of the ResourceList.
		key, rest, ok := fieldLine(line)
		if !ok {
			if first && string(line) == "---\n" {
				first = false
				continue
			}
			if c == '-' && !inItems && !first && len(seen) > 0 && !bytes.HasPrefix(line, []byte("---")) {
				continue // a list in another field
			}
			return p, false
		}
		first = false
		if seen[key] {
			return p, false
		}
		seen[key] = true
		if inItems {
			if dash == none {
				return p, false // null
			}
			cut := start
			if pending != none {
				cut = pending
			}
			flush(cut)
			headFrom = cut
			inItems, pending = false, none
		}
		if key == "items" {
			p.header = append(p.header, data[headFrom:start]...)
			headFrom = end
			p.hasItems = true
			switch {
			case len(rest) == 0:
				inItems = true
			case string(rest) == "[]":
			default:
				return p, false
			}
		}
	}
	if inItems {
		flush(len(data))
		if len(p.items) == 0 {
			return p, false // null
		}
	} else {
		p.header = append(p.header, data[headFrom:]...)
	}
	if dash > 0 {
		for i, it := range p.items {
			p.items[i] = shift(it, dash)
		}
	}
	return p, true
}

// headComments decides which of the comments between two items belong to the
// next: the last run without an empty line before the dash. Comments before
// that belong to the item above.
func headComments(data []byte, from, dash int) int {
	cut := dash
	for cut > from {
		prev := bytes.LastIndexByte(data[:cut-1], '\n') + 1
		if len(bytes.TrimSpace(data[prev:cut])) == 0 {
			break
		}
		cut = prev
	}
	return cut
}

// fieldLine splits "key: rest" of a plain key made of letters and digits;
// rest is without a trailing comment.
func fieldLine(line []byte) (key string, rest []byte, ok bool) {
	i := 0
	for i < len(line) && (line[i] >= 'a' && line[i] <= 'z' || line[i] >= 'A' && line[i] <= 'Z' || i > 0 && line[i] >= '0' && line[i] <= '9') {
		i++
	}
	if i == 0 || line[i] != ':' || line[i+1] != ' ' && line[i+1] != '\n' {
		return "", nil, false
	}
	rest = bytes.TrimSpace(line[i+1:])
	if len(rest) > 0 && rest[0] == '#' {
		rest = nil
	}
	return string(line[:i]), rest, true
}

// shift moves an element to column 0.
func shift(item []byte, by int) []byte {
	out := make([]byte, 0, len(item))
	for line := range bytes.Lines(item) {
		out = append(out, trimSpaces(line, by)...)
	}
	return out
}
