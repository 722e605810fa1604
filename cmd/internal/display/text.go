package display

import (
	"bufio"
	"fmt"
	"io"
	"strings"

	"github.com/krmcat/krmcat/schema"
)

// Escape sequences for terminals.
const (
	bold   = "\x1b[1m"
	red    = "\x1b[1;31m"
	yellow = "\x1b[1;33m"
	blue   = "\x1b[1;34m"
	faint  = "\x1b[2m"
	reset  = "\x1b[0m"
)

type painter bool

func (p painter) paint(code, s string) string {
	if !p {
		return s
	}
	return code + s + reset
}

func (r *Report) writeText(w io.Writer) error {
	b := bufio.NewWriter(w)
	p := painter(r.Color)
	for i, d := range r.Diagnostics {
		if r.Max > 0 && i == r.Max {
			fmt.Fprintf(b, "… and %d more; show all with --max-findings 0\n", len(r.Diagnostics)-i)
			break
		}
		color := red
		switch d.Severity {
		case schema.Warning:
			color = yellow
		case schema.Notice:
			color = blue
		}
		fmt.Fprintf(b, "%s: %s: ", p.paint(bold, Visible(d.Pos.String())), p.paint(color, strings.TrimSpace(d.Severity.String()+" "+d.Rule)))
		if d.Path != "" {
			fmt.Fprintf(b, "%s: ", Visible(d.Path))
		}
		fmt.Fprintf(b, "%s\n", Visible(d.Message))
		writeExcerpt(b, p, color, d)
		if d.Fix != "" {
			fmt.Fprintf(b, "%s%s %s\n", strings.Repeat(" ", gutter), p.paint(faint, "= fix:"), Visible(d.Fix))
		}
	}
	if err := b.Flush(); err != nil {
		return fmt.Errorf("writing output: %w", err)
	}
	return nil
}

// gutter is how wide the column of line numbers is.
const gutter = 6

// writeExcerpt shows the line and marks the place in it.
func writeExcerpt(b io.Writer, p painter, color string, d schema.Diagnostic) {
	if strings.TrimSpace(d.Excerpt) == "" || d.Pos.Line == 0 {
		return
	}
	runes := []rune(d.Excerpt)
	start := min(max(0, d.Pos.Column-1-d.Skip), len(runes))
	end := min(start+max(1, d.Width), max(len(runes), start+1))
	// Tabs are shown as one space, so that the marks stay under their place.
	show := func(rs []rune) string { return Visible(strings.ReplaceAll(string(rs), "\t", " ")) }
	before, marked, after := show(runes[:start]), "", ""
	if start < len(runes) {
		marked, after = show(runes[start:min(end, len(runes))]), show(runes[min(end, len(runes)):])
	}
	ellipsis := ""
	if d.Skip > 0 {
		ellipsis = "…"
	}
	bar := p.paint(faint, "|")
	fmt.Fprintf(b, "%*d %s %s%s%s%s\n", gutter-1, d.Pos.Line, bar, ellipsis, before, marked, after)
	fmt.Fprintf(b, "%*s %s %s%s\n", gutter-1, "", bar, strings.Repeat(" ", len([]rune(ellipsis+before))),
		p.paint(color, strings.Repeat("^", max(1, min(len([]rune(marked)), 80)))))
}
