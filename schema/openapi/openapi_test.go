package openapi_test

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"github.com/krmcat/krmcat/internal/yamlpos"
	"github.com/krmcat/krmcat/schema/openapi"
)

var update = flag.Bool("update", false, "rewrite the expected findings in testdata")

// compile reads a schema in YAML.
func compile(t testing.TB, text []byte) (*openapi.Schema, error) {
	t.Helper()
	f, problems := yamlpos.Parse("schema.yaml", text, yamlpos.Limits{})
	if len(problems) > 0 || len(f.Documents) != 1 {
		t.Fatalf("schema: %v", problems)
	}
	raw, err := json.Marshal(f.Documents[0].Value)
	if err != nil {
		t.Fatal(err)
	}
	return openapi.Compile(raw)
}

// TestCases checks the cases in testdata/cases: a schema, functionConfigs, and
// the findings about them.
func TestCases(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/cases/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			t.Parallel()
			a, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var s *openapi.Schema
			var got strings.Builder
			want := ""
			out := &txtar.Archive{Comment: a.Comment}
			for _, f := range a.Files {
				switch f.Name {
				case "want":
					want = string(f.Data)
					continue
				case "schema.yaml":
					if s, err = compile(t, f.Data); err != nil {
						t.Fatal(err)
					}
				default:
					ds, err := s.Validate(t.Context(), f.Name, f.Data)
					if err != nil {
						t.Fatal(err)
					}
					if len(ds) == 0 {
						fmt.Fprintf(&got, "%s: ok\n", f.Name)
					}
					for _, d := range ds {
						fmt.Fprintln(&got, d)
					}
				}
				out.Files = append(out.Files, f)
			}
			out.Files = append(out.Files, txtar.File{Name: "want", Data: []byte(got.String())})
			if *update {
				if err := os.WriteFile(file, txtar.Format(out), 0o644); err != nil {
					t.Fatal(err)
				}
			} else if diff := cmp.Diff(want, got.String()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestCompileErrors shows schemas that no value is checked against.
func TestCompileErrors(t *testing.T) {
	t.Parallel()
	for _, def := range []string{
		"", "[", "null", "5", "{} {}", `{"type": "bool"}`, `{"$ref": "file:///etc/passwd"}`, `{"properties": {"a": {"$ref": "#"}}}`,
		`{"properties": {"a": {"pattern": "(?!x)"}}}`, `{"required": "a"}`, `{"items": [{}]}`, `{"x-kubernetes-validations": [{"rule": 5}]}`,
		strings.Repeat(`{"properties": {"a": `, 100) + "{}" + strings.Repeat("}}", 100),
		`{"description": "` + strings.Repeat("a", 5<<20) + `"}`,
	} {
		if _, err := openapi.Compile(json.RawMessage(def)); !errors.Is(err, openapi.ErrSchema) {
			t.Errorf("%.60q: got %v, want ErrSchema", def, err)
		}
	}
	// Schemas that are not structural are used all the same.
	for _, def := range []string{`{}`, `{"properties": {"a": {}}}`, `{"type": "object", "additionalProperties": false}`} {
		s, err := openapi.Compile(json.RawMessage(def))
		if err != nil {
			t.Errorf("%s: %v", def, err)
			continue
		}
		if _, err := s.Validate(t.Context(), "f", []byte("a: 1\n")); err != nil {
			t.Errorf("%s: %v", def, err)
		}
	}
}
