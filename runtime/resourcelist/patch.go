package resourcelist

import (
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// patcher changes the text of a document line by line. Its methods report
// false when the text is not written in a way they understand; the caller
// then writes a bigger part anew.
type patcher struct {
	lines []string // with their line ends
	edits []edit
	style Style
	had   map[string]int // comments that were there
}

// edit replaces lines from (1-based, inclusive) to to (exclusive) by text.
type edit struct {
	from, to int
	text     string
	seq      int
}

func (p *patcher) replace(from, to int, text string) {
	p.edits = append(p.edits, edit{from, to, text, len(p.edits)})
}

// apply makes the edits, the last lines first.
func (p *patcher) apply() []byte {
	slices.SortStableFunc(p.edits, func(a, b edit) int {
		if a.from != b.from {
			return a.from - b.from
		}
		// Insertions come before what they are inserted in front of.
		if a.to != b.to {
			return a.to - b.to
		}
		return a.seq - b.seq
	})
	var b strings.Builder
	line := 1
	for _, e := range p.edits {
		for ; line < e.from && line <= len(p.lines); line++ {
			b.WriteString(p.lines[line-1])
		}
		if e.text != "" && b.Len() > 0 && !strings.HasSuffix(b.String()[b.Len()-1:], "\n") {
			b.WriteByte('\n')
		}
		b.WriteString(e.text)
		line = max(line, e.to)
	}
	for ; line <= len(p.lines); line++ {
		b.WriteString(p.lines[line-1])
	}
	return []byte(b.String())
}

// newComments reports whether a node has comments that were nowhere before.
func (p *patcher) newComments(n *yaml.Node) bool {
	if isNew(n.HeadComment, p.had) || isNew(n.LineComment, p.had) || isNew(n.FootComment, p.had) {
		return true
	}
	return slices.ContainsFunc(n.Content, p.newComments)
}

func block(n *yaml.Node) bool {
	return n.Style&(yaml.FlowStyle|yaml.TaggedStyle) == 0 && n.Anchor == "" && len(n.Content) > 0 && n.Kind != yaml.AliasNode
}

// entryEnds gives for each of the starts (first lines of entries at a column)
// the line after its last; end is the line after the last entry's region.
// Comments and empty lines between two entries belong to neither, or to the
// next one.
func (p *patcher) entryEnds(starts []int, col, end int) []int {
	ends := make([]int, len(starts))
	for i := range starts {
		e := end
		if i+1 < len(starts) {
			e = starts[i+1]
		}
		for e-1 > starts[i] {
			t := strings.TrimLeft(p.lines[e-2], " ")
			indent := len(p.lines[e-2]) - len(t)
			if t == "\n" || t == "" || t[0] == '#' && indent < col {
				e--
				continue
			}
			break
		}
		ends[i] = e
	}
	return ends
}

// headOf is the first of the comment lines directly above a line.
func (p *patcher) headOf(line, col int) int {
	for line > 1 {
		l := p.lines[line-2]
		t := strings.TrimLeft(l, " ")
		if !strings.HasPrefix(t, "#") || len(l)-len(t) != col-1 {
			break
		}
		line--
	}
	return line
}

// mapping patches a block mapping whose region ends before line end.
func (p *patcher) mapping(old, want *yaml.Node, end int) bool {
	if !block(old) || want.Kind != yaml.MappingNode || len(want.Content) == 0 {
		return false
	}
	col := old.Content[0].Column
	var starts []int
	for i := 0; i+1 < len(old.Content); i += 2 {
		k := old.Content[i]
		if k.Column != col || k.Kind != yaml.ScalarNode || k.Anchor != "" || len(starts) > 0 && k.Line <= starts[len(starts)-1] {
			return false
		}
		starts = append(starts, k.Line)
	}
	ends := p.entryEnds(starts, col, end)
	for i := range ends {
		// Comments at the column of the fields directly above the next
		// field are the next one's.
		if i+1 < len(starts) {
			ends[i] = min(ends[i], p.headOf(starts[i+1], col))
			for ends[i]-1 > starts[i] && strings.TrimSpace(p.lines[ends[i]-2]) == "" {
				ends[i]--
			}
		}
	}
	after := starts[0] // where fields go that want has before all of old's
	if h := p.headOf(after, col); p.ownLine(old.Content[0]) {
		after = h
	} else {
		after = 0
	}
	last := -1
	for j := 0; j+1 < len(want.Content); j += 2 {
		k, v := want.Content[j], want.Content[j+1]
		i := fieldIndex(old, k)
		if i >= 0 {
			last = i / 2
			if !p.entry(old.Content[i], old.Content[i+1], k, v, starts[last], ends[last], col) {
				return false
			}
			continue
		}
		text, ok := p.encodeField(k, v, col)
		if !ok {
			return false
		}
		at := after
		if last >= 0 {
			at = ends[last]
		} else if at == 0 {
			// The first field shares its line with a dash: after it then.
			at = ends[0]
		}
		p.replace(at, at, text)
	}
	for i := 0; i+1 < len(old.Content); i += 2 {
		if fieldIndex(want, old.Content[i]) >= 0 {
			continue
		}
		from := p.headOf(starts[i/2], col)
		if !p.ownLine(old.Content[i]) {
			return false
		}
		p.replace(from, ends[i/2], "")
	}
	return true
}

// ownLine reports whether a node is the first thing on its line.
func (p *patcher) ownLine(n *yaml.Node) bool {
	return strings.TrimSpace(p.lines[n.Line-1][:min(n.Column-1, len(p.lines[n.Line-1]))]) == ""
}

// entry patches the value of one field, whose lines are start to end.
func (p *patcher) entry(oldKey, old, key, want *yaml.Node, start, end, col int) bool {
	comments := p.newComments(key) || p.newComments(want)
	if Equal(old, want) && !comments {
		return true
	}
	if comments && isNew(key.HeadComment, p.had) && p.ownLine(oldKey) {
		pad := strings.Repeat(" ", col-1)
		var b strings.Builder
		for line := range strings.SplitSeq(key.HeadComment, "\n") {
			if had := p.had[strings.TrimSpace(line)]; had == 0 && line != "" {
				b.WriteString(pad + strings.TrimSpace(line) + "\n")
			}
		}
		p.replace(start, start, b.String())
	}
	mark := len(p.edits)
	ok := false
	switch {
	case old.Kind == yaml.ScalarNode && want.Kind == yaml.ScalarNode:
		ok = p.scalar(oldKey, old, key, want, end)
	case old.Kind == yaml.MappingNode && old.Content != nil && old.Line > oldKey.Line:
		ok = p.mapping(old, want, end)
	case old.Kind == yaml.SequenceNode && old.Line > oldKey.Line:
		ok = p.sequence(old, want, end)
	}
	if ok {
		return true
	}
	p.edits = p.edits[:mark]
	if !p.ownLine(oldKey) || old.Kind == yaml.AliasNode || hasAnchors(old) {
		return false
	}
	k := merge(oldKey, key, p.had)
	k.HeadComment, k.FootComment = "", ""
	text, ok := p.encodeField(k, merge(old, want, p.had), col)
	if !ok {
		return false
	}
	p.replace(start, end, text)
	return true
}

func hasAnchors(n *yaml.Node) bool {
	return n.Anchor != "" || n.Kind == yaml.AliasNode || slices.ContainsFunc(n.Content, hasAnchors)
}

// scalar replaces a scalar of one line in its line.
func (p *patcher) scalar(oldKey, old, key, want *yaml.Node, end int) bool {
	if old.Anchor != "" || old.Style&(yaml.TaggedStyle|yaml.LiteralStyle|yaml.FoldedStyle) != 0 || old.Line == 0 {
		return false
	}
	line := p.lines[old.Line-1]
	from := byteColumn(line, old.Column)
	if from < 0 {
		return false
	}
	length := scalarLength(line[from:], old)
	if length < 0 {
		return false
	}
	text := line[from : from+length]
	if !Equal(old, want) {
		var ok bool
		if text, ok = scalarText(old, want); !ok {
			return false
		}
	}
	rest := line[from+length:]
	lineComment := want.LineComment
	if lineComment == "" {
		lineComment = key.LineComment
	}
	if isNew(lineComment, p.had) {
		if strings.Contains(lineComment, "\n") {
			return false
		}
		rest = " " + lineComment + "\n"
	}
	sep := ""
	if length == 0 && text != "" && !strings.HasSuffix(line[:from], " ") {
		sep = " "
	}
	if isNew(want.HeadComment, p.had) || isNew(want.FootComment, p.had) || isNew(key.FootComment, p.had) {
		return false
	}
	p.replace(old.Line, old.Line+1, line[:from]+sep+text+rest)
	return true
}

// byteColumn turns the column of a node, counted in characters, into an
// offset.
func byteColumn(line string, col int) int {
	n := 1
	for i := range line {
		if n == col {
			return i
		}
		n++
	}
	if n == col {
		return len(line)
	}
	return -1
}

// scalarLength is the length of the text of a scalar at the start of s, or -1
// if it is not on this line alone.
func scalarLength(s string, n *yaml.Node) int {
	switch {
	case n.Style&yaml.DoubleQuotedStyle != 0:
		if !strings.HasPrefix(s, `"`) {
			return -1
		}
		for i := 1; i < len(s); i++ {
			switch s[i] {
			case '\\':
				i++
			case '"':
				return i + 1
			}
		}
		return -1
	case n.Style&yaml.SingleQuotedStyle != 0:
		if !strings.HasPrefix(s, "'") {
			return -1
		}
		for i := 1; i < len(s); i++ {
			if s[i] != '\'' {
				continue
			}
			if i+1 < len(s) && s[i+1] == '\'' {
				i++
				continue
			}
			return i + 1
		}
		return -1
	}
	if !strings.HasPrefix(s, n.Value) {
		return -1
	}
	rest := strings.TrimLeft(s[len(n.Value):], " ")
	if rest == "\n" || rest == "" || rest[0] == '#' {
		return len(n.Value)
	}
	return -1
}

// scalarText writes a value with the quotes of the old one if they fit.
func scalarText(old, want *yaml.Node) (string, bool) {
	n := yaml.Node{Kind: yaml.ScalarNode, Tag: want.Tag, Value: want.Value, Style: want.Style &^ (yaml.LiteralStyle | yaml.FoldedStyle)}
	if old.ShortTag() == want.ShortTag() {
		n.Style = old.Style
	}
	if strings.ContainsAny(want.Value, "\n\r") || want.Style&(yaml.LiteralStyle|yaml.FoldedStyle|yaml.TaggedStyle) != 0 {
		return "", false
	}
	out, err := Encode(&n, Style{})
	if err != nil {
		return "", false
	}
	text := strings.TrimSuffix(string(out), "\n")
	if strings.Contains(text, "\n") || len(text) > 4096 {
		return "", false
	}
	return text, true
}

// sequence patches a block sequence whose region ends before line end.
func (p *patcher) sequence(old, want *yaml.Node, end int) bool {
	if !block(old) || want.Kind != yaml.SequenceNode || len(want.Content) == 0 {
		return false
	}
	col := old.Column
	var starts []int
	index := map[*yaml.Node]int{}
	for i, e := range old.Content {
		l := p.lines[e.Line-1]
		dash := byteColumn(l, col)
		if dash < 0 || dash >= len(l) || l[dash] != '-' || strings.TrimSpace(l[:dash]) != "" || e.Column <= col || len(starts) > 0 && e.Line <= starts[len(starts)-1] {
			return false
		}
		starts = append(starts, e.Line)
		index[e] = i
	}
	ends := p.entryEnds(starts, col, end)
	for i := range ends {
		if i+1 < len(starts) {
			ends[i] = min(ends[i], p.headOf(starts[i+1], col))
			for ends[i]-1 > starts[i] && strings.TrimSpace(p.lines[ends[i]-2]) == "" {
				ends[i]--
			}
		}
	}
	last := -1
	for _, pr := range alignSequence(old, want) {
		switch {
		case pr.want == nil:
			i := index[pr.old]
			p.replace(p.headOf(starts[i], col), ends[i], "")
		case pr.old == nil:
			text, ok := p.encodeElement(pr.want, col)
			if !ok {
				return false
			}
			at := p.headOf(starts[0], col)
			if last >= 0 {
				at = ends[last]
			}
			p.replace(at, at, text)
		default:
			i := index[pr.old]
			if i < last {
				return false // moved
			}
			last = i
			if Equal(pr.old, pr.want) && !p.newComments(pr.want) {
				continue
			}
			if isNew(pr.want.HeadComment, p.had) {
				return false
			}
			mark := len(p.edits)
			ok := false
			switch pr.old.Kind {
			case yaml.ScalarNode:
				if pr.want.Kind == yaml.ScalarNode {
					ok = p.scalar(&yaml.Node{}, pr.old, &yaml.Node{}, pr.want, ends[i])
				}
			case yaml.MappingNode:
				ok = p.mapping(pr.old, pr.want, ends[i])
			}
			if ok {
				continue
			}
			p.edits = p.edits[:mark]
			if hasAnchors(pr.old) {
				return false
			}
			m := merge(pr.old, pr.want, p.had)
			m.HeadComment, m.FootComment = "", ""
			text, ok := p.encodeElement(m, col)
			if !ok {
				return false
			}
			p.replace(starts[i], ends[i], text)
		}
	}
	return true
}

func (p *patcher) encodeField(k, v *yaml.Node, col int) (string, bool) {
	return p.encode(&yaml.Node{Kind: yaml.MappingNode, Content: []*yaml.Node{k, v}}, col)
}

func (p *patcher) encodeElement(v *yaml.Node, col int) (string, bool) {
	return p.encode(&yaml.Node{Kind: yaml.SequenceNode, Content: []*yaml.Node{v}}, col)
}

// encode writes a node at a column.
func (p *patcher) encode(n *yaml.Node, col int) (string, bool) {
	if slices.ContainsFunc(n.Content, hasAnchors) {
		return "", false
	}
	out, err := Encode(n, p.style)
	if err != nil {
		return "", false
	}
	pad := strings.Repeat(" ", col-1)
	var b strings.Builder
	for line := range strings.Lines(string(out)) {
		if line != "\n" {
			b.WriteString(pad)
		}
		b.WriteString(line)
	}
	return b.String(), true
}
