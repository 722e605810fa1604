// Package display writes what the libraries found in the forms that people and
// other tools read.
package display

import (
	"fmt"
	"io"
	"strings"
	"unicode"

	"github.com/krmcat/krmcat/schema"
)

// RulesURL is where the rules are described. A rule's identifier in lower case
// is an anchor in it.
const RulesURL = "https://github.com/krmcat/krmcat/blob/main/docs/rules/README.md"

// Formats are the names of the formats of diagnostics, the default first.
var Formats = []string{"text", "json", "sarif", "junit", "github", "gitlab"}

// Report is the outcome of checking some files.
type Report struct {
	Files       []string // all files that were checked, in order
	Diagnostics schema.Diagnostics
	Version     string // of the program
	Color       bool   // for text
	Max         int    // how many findings text shows; 0 means all
}

// Counts are the findings by severity.
func (r *Report) Counts() (errors, warnings, notices int) {
	for _, d := range r.Diagnostics {
		switch d.Severity {
		case schema.Error:
			errors++
		case schema.Warning:
			warnings++
		default:
			notices++
		}
	}
	return errors, warnings, notices
}

// Write writes the report in one of [Formats].
func (r *Report) Write(w io.Writer, format string) error {
	switch format {
	case "text":
		return r.writeText(w)
	case "json":
		return r.writeJSON(w)
	case "sarif":
		return r.writeSARIF(w)
	case "junit":
		return r.writeJUnit(w)
	case "github":
		return r.writeGitHub(w)
	case "gitlab":
		return r.writeGitLab(w)
	}
	return fmt.Errorf("unknown format %q", format)
}

// Summary says in one line how much was found.
func (r *Report) Summary() string {
	errors, warnings, notices := r.Counts()
	parts := []string{plural(errors, "error"), plural(warnings, "warning")}
	if notices > 0 {
		parts = append(parts, plural(notices, "notice"))
	}
	return fmt.Sprintf("%s in %s", strings.Join(parts, ", "), plural(len(r.Files), "file"))
}

func plural(n int, word string) string {
	if n == 1 {
		return "1 " + word
	}
	return fmt.Sprintf("%d %ss", n, word)
}

// Visible writes characters that do not show, that move the cursor or that
// change the direction of text as escapes, so that a document cannot change
// what its reader sees around it.
func Visible(s string) string {
	if strings.IndexFunc(s, invisible) < 0 {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		switch {
		case !invisible(r):
			b.WriteRune(r)
		case r <= 0xFFFF:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			fmt.Fprintf(&b, `\U%08x`, r)
		}
	}
	return b.String()
}

func invisible(r rune) bool {
	return unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || r == '\u2028' || r == '\u2029' || r == unicode.ReplacementChar
}

// location names a file in formats that want a path or URI.
func location(file string) string {
	return strings.TrimPrefix(strings.ReplaceAll(file, `\`, "/"), "./")
}

// message is what a finding says, with its path and fix, on one line.
func message(d schema.Diagnostic) string {
	s := d.Message
	if d.Path != "" {
		s = d.Path + ": " + s
	}
	if d.Fix != "" {
		s += " (" + d.Fix + ")"
	}
	return Visible(s)
}
