package schema

import (
	"fmt"
	"strings"
)

// Level selects how strictly a document is read.
type Level int

const (
	// Publish is the level for documents that are about to be published:
	// every deviation from the specification is an error. It is the zero
	// value, so the strict reading is what you get by default.
	Publish Level = iota

	// Consume is the level for documents written by others: a deviation
	// that leaves one sensible reading is a warning.
	Consume
)

func (l Level) String() string {
	if l == Consume {
		return "consume"
	}
	return "publish"
}

// Severity says what a diagnostic means for the document.
type Severity int

// The severities, most severe first.
const (
	Error Severity = iota
	Warning
	Notice
)

func (s Severity) String() string {
	switch s {
	case Error:
		return "error"
	case Warning:
		return "warning"
	default:
		return "notice"
	}
}

// Position is a place in a file. Line and Column count from 1, columns in
// runes; a zero Line means that the place is not known.
type Position struct {
	File         string
	Line, Column int
}

func (p Position) String() string {
	if p.Line == 0 {
		return p.File
	}
	return fmt.Sprintf("%s:%d:%d", p.File, p.Line, p.Column)
}

// Diagnostic is one finding about a document.
type Diagnostic struct {
	Pos      Position
	Path     string // field path from the root, such as spec.versions[0].runtime; empty for the document itself
	Severity Severity
	Rule     string // stable identifier, such as KC107; see docs/rules
	Message  string // what is wrong
	Fix      string // what to do about it; may be empty
	Excerpt  string // the source line at Pos, without its line end; may be empty
	Skip     int    // how many runes of a very long line come before Excerpt
	Width    int    // how many runes at Pos the finding is about; 0 means 1
}

// String is the finding on one line: position, severity, rule, path, message
// and fix.
func (d Diagnostic) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s", d.Pos, d.Severity)
	if d.Rule != "" {
		fmt.Fprintf(&b, " %s", d.Rule)
	}
	b.WriteString(": ")
	if d.Path != "" {
		fmt.Fprintf(&b, "%s: ", d.Path)
	}
	b.WriteString(d.Message)
	if d.Fix != "" {
		fmt.Fprintf(&b, " (%s)", d.Fix)
	}
	return b.String()
}

// Diagnostics is a list of findings in document order.
type Diagnostics []Diagnostic

// Err returns nil if ds has no diagnostic of severity [Error], and otherwise
// an [*InvalidError] holding all of ds.
func (ds Diagnostics) Err() error {
	for _, d := range ds {
		if d.Severity == Error {
			return &InvalidError{Diagnostics: ds}
		}
	}
	return nil
}

// InvalidError reports a document that was read but is not valid.
type InvalidError struct {
	Diagnostics Diagnostics
}

// Error is the first finding of severity [Error] and how many more there are.
func (e *InvalidError) Error() string {
	n := 0
	var first Diagnostic
	for _, d := range e.Diagnostics {
		if d.Severity == Error {
			if n == 0 {
				first = d
			}
			n++
		}
	}
	switch n {
	case 0:
		return "document is not valid"
	case 1:
		return first.String()
	case 2:
		return fmt.Sprintf("%s (and 1 more error)", first)
	}
	return fmt.Sprintf("%s (and %d more errors)", first, n-1)
}

// Sort brings findings into the order of their places; those at one place are
// ordered by severity, rule and text.
func (ds Diagnostics) Sort() { sortDiagnostics(ds) }
