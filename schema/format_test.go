package schema_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"github.com/krmcat/krmcat/internal/yamlpos"
	"github.com/krmcat/krmcat/schema"
)

// TestFormat checks the cases in testdata/format: a document, what it becomes,
// and what it becomes with Fix.
func TestFormat(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/format/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	for _, file := range files {
		a, err := txtar.ParseFile(file)
		if err != nil {
			t.Fatal(err)
		}
		out := &txtar.Archive{Comment: a.Comment, Files: a.Files[:1]}
		want := map[string]string{}
		for _, f := range a.Files[1:] {
			want[f.Name] = string(f.Data)
		}
		in := a.Files[0]
		for name, opts := range map[string]schema.FormatOptions{"want": {}, "want/fix": {Fix: true}} {
			got, err := schema.Format(in.Name, in.Data, opts)
			if err != nil {
				got = []byte(err.Error() + "\n")
			}
			if diff := cmp.Diff(want[name], string(got)); diff != "" && !*update {
				t.Errorf("%s, %s (-want +got):\n%s", file, name, diff)
			}
			want[name] = string(got)
		}
		for _, name := range []string{"want", "want/fix"} {
			out.Files = append(out.Files, txtar.File{Name: name, Data: []byte(want[name])})
		}
		if *update {
			if err := os.WriteFile(file, txtar.Format(out), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// FuzzFormat checks that formatting is idempotent, keeps the meaning, and
// leaves a valid document valid.
func FuzzFormat(f *testing.F) {
	for _, pattern := range []string{"testdata/kep/*.yaml", "testdata/registry/*.yaml", "testdata/rules/*.txtar", "testdata/format/*.txtar"} {
		files, _ := filepath.Glob(pattern)
		for _, file := range files {
			data, err := os.ReadFile(file)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(data, false)
			if a := txtar.Parse(data); len(a.Files) > 0 {
				f.Add(a.Files[0].Data, true)
			}
		}
	}
	f.Fuzz(func(t *testing.T, data []byte, fix bool) {
		before := bytes.Clone(data)
		opts := schema.FormatOptions{Fix: fix}
		out, err := schema.Format("f", data, opts)
		if !bytes.Equal(before, data) {
			t.Fatal("the input was changed")
		}
		if err != nil {
			if _, ok := errors.AsType[*schema.InvalidError](err); !ok && !errors.Is(err, schema.ErrFormat) {
				t.Fatalf("unexpected error: %v", err)
			}
			return
		}
		again, err := schema.Format("f", out, opts)
		if err != nil || !bytes.Equal(out, again) {
			t.Fatalf("not idempotent: %q became %q, then %q (%v)", data, out, again, err)
		}
		file, _ := yamlpos.Parse("f", data, yamlpos.Limits{})
		formatted, problems := yamlpos.Parse("f", out, yamlpos.Limits{})
		if len(problems) > 0 || len(file.Documents) != len(formatted.Documents) {
			t.Fatalf("%q became %q: %v", data, out, problems)
		}
		for i, d := range file.Documents {
			if m, _ := d.Value.(map[string]any); fix || m != nil && m["kind"] == schema.KindCatalogAlias {
				continue
			}
			if diff := cmp.Diff(d.Value, formatted.Documents[i].Value); diff != "" {
				t.Errorf("the value changed: %s", diff)
			}
		}
		v := schema.Validator{Level: schema.Consume}
		old, _ := v.Validate(t.Context(), "f", data)
		now, _ := v.Validate(t.Context(), "f", out)
		if old.Err() == nil && now.Err() != nil {
			t.Errorf("a valid document became invalid: %v", now.Err())
		}
	})
}

func TestFormatErrors(t *testing.T) {
	t.Parallel()
	if _, err := schema.Format("f", []byte("a: b: c\n"), schema.FormatOptions{}); err == nil {
		t.Error("broken YAML was formatted")
	} else if _, ok := errors.AsType[*schema.InvalidError](err); !ok {
		t.Errorf("got %v, want an InvalidError", err)
	}
	// What has no document stays as it is.
	for _, doc := range []string{"", "# nothing\n"} {
		if out, err := schema.Format("f", []byte(doc), schema.FormatOptions{}); err != nil || string(out) != doc {
			t.Errorf("%q became %q (%v)", doc, out, err)
		}
	}
	if strings.Contains(schema.ErrFormat.Error(), "%") {
		t.Error("format verb in an error")
	}
}
