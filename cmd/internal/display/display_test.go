package display_test

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/krmcat/krmcat/cmd/internal/display"
	"github.com/krmcat/krmcat/schema"
)

var update = flag.Bool("update", false, "rewrite the expected output in testdata")

func report() *display.Report {
	at := func(file string, line, column int) schema.Position {
		return schema.Position{File: file, Line: line, Column: column}
	}
	return &display.Report{
		Version: "v0.0.0",
		Files:   []string{"./fn/a b.yaml", "good.yaml"},
		Diagnostics: schema.Diagnostics{
			{Pos: at("./fn/a b.yaml", 1, 1), Severity: schema.Error, Rule: "KR001", Message: "the document's \"text\" is 100% <wrong>,\nsay: so", Excerpt: "\ta: b", Width: 3},
			{Pos: at("./fn/a b.yaml", 7, 9), Path: `spec["a:b"]`, Severity: schema.Warning, Rule: "KP221", Message: `unknown field "tgas"`, Fix: `did you mean "tags"?`, Excerpt: "  größe: tgas\u202e\x1b[31m", Width: 4},
			{Pos: at("./fn/a b.yaml", 7, 9), Path: `spec["a:b"]`, Severity: schema.Warning, Rule: "KP221", Message: `unknown field "tgas"`},
			{Pos: at("./fn/a b.yaml", 9, 3000), Severity: schema.Notice, Rule: "KP214", Message: "beyond the line", Excerpt: "end of it", Skip: 2993, Width: 1},
			{Pos: schema.Position{File: "./fn/a b.yaml"}, Severity: schema.Error, Message: "no place and no rule"},
		},
	}
}

// TestFormats compares each format with its file in testdata.
func TestFormats(t *testing.T) {
	t.Parallel()
	for _, format := range display.Formats {
		var b bytes.Buffer
		if err := report().Write(&b, format); err != nil {
			t.Fatal(err)
		}
		file := filepath.Join("testdata", format+".golden")
		if *update {
			if err := os.WriteFile(file, b.Bytes(), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), b.String()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", format, diff)
		}
		switch format {
		case "json", "sarif", "gitlab":
			if !json.Valid(b.Bytes()) {
				t.Errorf("%s is not JSON", format)
			}
		case "junit":
			if err := xml.Unmarshal(b.Bytes(), new(struct{})); err != nil {
				t.Errorf("junit: %v", err)
			}
		}
		if strings.ContainsAny(b.String(), "\x1b") && format != "json" {
			t.Errorf("%s holds an escape character", format)
		}
	}
}

func TestEmpty(t *testing.T) {
	t.Parallel()
	for _, format := range display.Formats {
		var b bytes.Buffer
		if err := (&display.Report{Files: []string{"a.yaml"}}).Write(&b, format); err != nil {
			t.Errorf("%s: %v", format, err)
		}
		if strings.Contains(b.String(), "null") {
			t.Errorf("%s writes null for an empty list:\n%s", format, b.String())
		}
	}
	if err := new(display.Report).Write(new(bytes.Buffer), "xml"); err == nil {
		t.Error("unknown format accepted")
	}
}

func TestColorAndMax(t *testing.T) {
	t.Parallel()
	r := report()
	r.Color, r.Max = true, 1
	var b bytes.Buffer
	if err := r.Write(&b, "text"); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(b.String(), "\x1b[1;31merror KR001\x1b[0m") || !strings.Contains(b.String(), "… and 4 more") {
		t.Errorf("got %q", b.String())
	}
}

func TestSummary(t *testing.T) {
	t.Parallel()
	if got, want := report().Summary(), "2 errors, 2 warnings, 1 notice in 2 files"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, errors.New("disk full") }

func TestWriteError(t *testing.T) {
	t.Parallel()
	for _, format := range display.Formats {
		if err := report().Write(failing{}, format); err == nil {
			t.Errorf("%s: no error", format)
		}
	}
}
