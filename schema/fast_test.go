package schema

import (
	"context"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/krmcat/krmcat/internal/yamlpos"
	"github.com/krmcat/krmcat/schema/internal/fastyaml"
	"golang.org/x/tools/txtar"
)

// both checks a document in the fast and in the slow way, which must find the
// same.
func both(t *testing.T, v Validator, data []byte) Diagnostics {
	t.Helper()
	fast, err := v.Validate(context.Background(), "f", data)
	if err != nil {
		t.Fatal(err)
	}
	v.slow = true
	slow, err := v.Validate(context.Background(), "f", data)
	if err != nil {
		t.Fatal(err)
	}
	if len(fast) != len(slow) || len(fast) > 0 && !reflect.DeepEqual(fast, slow) {
		t.Errorf("%+v, %q:\nfast: %v\nslow: %v", v, data, fast, slow)
	}
	return slow
}

var fastValidators = []Validator{{}, {Level: Consume}, {Source: true}, {LocalSource: true, StrictFields: true}, {OnlyKEP: true}, {SkipOthers: true}}

// TestFastWay checks all golden cases both ways, and that the fast way is
// taken at all.
func TestFastWay(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/rules/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	clean := 0
	for _, file := range files {
		a, err := txtar.ParseFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range a.Files {
			for _, v := range fastValidators {
				both(t, v, f.Data)
				if v.clean(f.Data) {
					clean++
				}
			}
		}
	}
	if clean < 20 {
		t.Errorf("the fast way was taken %d times only", clean)
	}
}

// FuzzFastWay checks that the fast way never says that all is well when it is
// not.
func FuzzFastWay(f *testing.F) {
	for _, pattern := range []string{"testdata/rules/*.txtar", "testdata/format/*.txtar"} {
		files, _ := filepath.Glob(pattern)
		for _, file := range files {
			a, err := txtar.ParseFile(file)
			if err != nil {
				f.Fatal(err)
			}
			for _, x := range a.Files {
				f.Add(x.Data, uint8(len(x.Data)))
			}
		}
	}
	for _, file := range []string{"testdata/kep/catalog-1.yaml", "testdata/registry/render-helm-chart.yaml"} {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data, uint8(0))
	}
	f.Fuzz(func(t *testing.T, data []byte, which uint8) {
		both(t, fastValidators[int(which)%len(fastValidators)], data)
	})
}

func BenchmarkValidate(b *testing.B) {
	a, err := txtar.ParseFile("testdata/rules/k00-valid.txtar")
	if err != nil {
		b.Fatal(err)
	}
	data := a.Files[0].Data
	for name, slow := range map[string]bool{"fast": false, "slow": true} {
		b.Run(name, func(b *testing.B) {
			v := Validator{slow: slow}
			b.SetBytes(int64(len(data)))
			b.ReportAllocs()
			for b.Loop() {
				if ds, err := v.Validate(context.Background(), "f", data); err != nil || len(ds) > 0 {
					b.Fatal(ds, err)
				}
			}
		})
	}
}

// BenchmarkParse is the part of [BenchmarkValidate] that reads the text; the
// rest of that is the validation.
func BenchmarkParse(b *testing.B) {
	a, err := txtar.ParseFile("testdata/rules/k00-valid.txtar")
	if err != nil {
		b.Fatal(err)
	}
	data := a.Files[0].Data
	for name, parse := range map[string]func() bool{
		"fast": func() bool { _, ok := fastyaml.Documents(string(data)); return ok },
		"slow": func() bool { _, problems := yamlpos.Parse("f", data, yamlpos.Limits{}); return len(problems) == 0 },
	} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(data)))
			b.ReportAllocs()
			for b.Loop() {
				if !parse() {
					b.Fatal("not parsed")
				}
			}
		})
	}
}
