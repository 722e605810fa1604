package display

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/krmcat/krmcat/schema"
)

// finding is a diagnostic as JSON. The names are stable.
type finding struct {
	File     string `json:"file"`
	Line     int    `json:"line,omitempty"`
	Column   int    `json:"column,omitempty"`
	Width    int    `json:"width,omitempty"`
	Severity string `json:"severity"`
	Rule     string `json:"rule,omitempty"`
	Path     string `json:"path,omitempty"`
	Message  string `json:"message"`
	Fix      string `json:"fix,omitempty"`
	Excerpt  string `json:"excerpt,omitempty"`
}

// diagnosticList is what -o json prints.
type diagnosticList struct {
	APIVersion  string    `json:"apiVersion"`
	Kind        string    `json:"kind"`
	Summary     summary   `json:"summary"`
	Diagnostics []finding `json:"diagnostics"`
}

type summary struct {
	Files    int `json:"files"`
	Errors   int `json:"errors"`
	Warnings int `json:"warnings"`
	Notices  int `json:"notices"`
}

func asFinding(d schema.Diagnostic) finding {
	return finding{File: d.Pos.File, Line: d.Pos.Line, Column: d.Pos.Column, Width: d.Width, Severity: d.Severity.String(),
		Rule: d.Rule, Path: d.Path, Message: d.Message, Fix: d.Fix, Excerpt: d.Excerpt}
}

func (r *Report) writeJSON(w io.Writer) error {
	list := diagnosticList{APIVersion: "krmcat.dev/v1alpha1", Kind: "DiagnosticList", Diagnostics: []finding{}}
	list.Summary.Files = len(r.Files)
	list.Summary.Errors, list.Summary.Warnings, list.Summary.Notices = r.Counts()
	for _, d := range r.Diagnostics {
		list.Diagnostics = append(list.Diagnostics, asFinding(d))
	}
	return encode(w, list)
}

func encode(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(v); err != nil {
		return fmt.Errorf("writing output: %w", err)
	}
	return nil
}
