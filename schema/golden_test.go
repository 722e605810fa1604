package schema_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"github.com/krmcat/krmcat/schema"
)

var update = flag.Bool("update", false, "rewrite the expected findings in testdata")

// levels are the ways in which every golden case is checked, and the file in
// the archive that holds what is expected.
var levels = []struct {
	want      string
	validator schema.Validator
}{
	{"want/publish", schema.Validator{}},
	{"want/consume", schema.Validator{Level: schema.Consume}},
}

// TestRules checks the cases in testdata/rules: documents and the findings
// that are expected at both levels, side by side.
func TestRules(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/rules/*.txtar")
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
			out := &txtar.Archive{Comment: a.Comment}
			got := map[string]*strings.Builder{}
			for _, l := range levels {
				got[l.want] = &strings.Builder{}
			}
			want := map[string]string{}
			for _, f := range a.Files {
				if strings.HasPrefix(f.Name, "want/") {
					want[f.Name] = string(f.Data)
					continue
				}
				out.Files = append(out.Files, f)
				for _, l := range levels {
					ds, err := l.validator.Validate(t.Context(), f.Name, f.Data)
					if err != nil {
						t.Fatal(err)
					}
					for _, d := range ds {
						fmt.Fprintln(got[l.want], d)
						if d.Message == "" || d.Rule == "" || d.Pos.Line == 0 || d.Pos.Column == 0 {
							t.Errorf("finding without place, rule or message: %+v", d)
						}
					}
				}
			}
			for _, l := range levels {
				out.Files = append(out.Files, txtar.File{Name: l.want, Data: []byte(got[l.want].String())})
				if diff := cmp.Diff(want[l.want], got[l.want].String()); diff != "" && !*update {
					t.Errorf("%s (-want +got):\n%s", l.want, diff)
				}
			}
			if *update {
				if err := os.WriteFile(file, txtar.Format(out), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// TestEveryRuleHasCase finds rules that no golden case shows.
func TestEveryRuleHasCase(t *testing.T) {
	if *update {
		t.Skip("the cases are being rewritten")
	}
	// Cases that cannot be written into an archive of text are in the tests
	// named here.
	elsewhere := map[string]string{"KR003": "TestLimits", "KF007": "script/validate-config.txtar"}
	files, err := filepath.Glob("testdata/rules/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	configs, err := filepath.Glob("openapi/testdata/cases/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	files = append(files, configs...)
	var all strings.Builder
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(data)
	}
	for _, r := range schema.Rules() {
		for _, l := range []schema.Level{schema.Publish, schema.Consume} {
			id := r.ID(l)
			if r.Severity(l) >= 0 && elsewhere[id] == "" && !strings.Contains(all.String(), " "+id+": ") {
				t.Errorf("no golden case shows %s: %s", id, r.Title)
			}
		}
	}
}
