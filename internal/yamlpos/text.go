package yamlpos

import (
	"sort"
	"strings"
	"unicode/utf8"
)

// lineStarts returns the offsets at which lines start, with the line breaks
// that the YAML reader counts: LF, CR LF, CR, NEL, LS and PS.
func lineStarts(text string) []int {
	starts := make([]int, 1, 1+strings.Count(text, "\n"))
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '\n':
			starts = append(starts, i+1)
		case '\r':
			if i+1 < len(text) && text[i+1] == '\n' {
				i++
			}
			starts = append(starts, i+1)
		case 0xC2:
			if i+1 < len(text) && text[i+1] == 0x85 {
				starts = append(starts, i+2)
			}
		case 0xE2:
			if i+2 < len(text) && text[i+1] == 0x80 && (text[i+2] == 0xA8 || text[i+2] == 0xA9) {
				starts = append(starts, i+3)
			}
		}
	}
	return starts
}

// Position is the line and column, in runes and from 1, of an offset into the
// text behind the byte order mark.
func (f *File) Position(offset int) (line, column int) {
	i := sort.SearchInts(f.lines, offset+1) - 1
	if i < 0 {
		return 1, 1
	}
	return i + 1, runeCount(f.text[f.lines[i]:min(offset, len(f.text))]) + 1
}

// Line is the text of a line, counted from 1, without its line break. It is
// empty for lines that do not exist.
func (f *File) Line(n int) string {
	if n < 1 || n > len(f.lines) {
		return ""
	}
	end := len(f.text)
	if n < len(f.lines) {
		end = f.lines[n]
	}
	return strings.TrimRight(f.text[f.lines[n-1]:end], "\r\n\u0085\u2028\u2029")
}

// Lines is the number of lines.
func (f *File) Lines() int { return len(f.lines) }

// Text is the whole text without a byte order mark.
func (f *File) Text() string { return f.text }

// Lines up to longLine bytes are shown whole in excerpts; of longer ones,
// excerptBefore runes before the place and excerptAfter behind it.
const (
	longLine      = 400
	excerptBefore = 60
	excerptAfter  = 100
)

// Excerpt is what to show of a line for something at a column: the line, or a
// part of a very long one. Skip is how many runes of the line come before the
// excerpt.
func (f *File) Excerpt(line, column int) (text string, skip int) {
	text = f.Line(line)
	if len(text) <= longLine {
		return text, 0
	}
	skip = max(0, column-1-excerptBefore)
	start := runeOffset(text, skip)
	end := start + runeOffset(text[start:], excerptBefore+excerptAfter)
	return strings.Clone(text[start:end]), skip
}

// runeOffset is the offset of the nth rune, at most the length of s.
func runeOffset(s string, n int) int {
	for i := range s {
		if n == 0 {
			return i
		}
		n--
	}
	return len(s)
}

func runeCount(s string) int { return utf8.RuneCountInString(s) }
