package schema_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/krmcat/krmcat/internal/yamlpos"
	"github.com/krmcat/krmcat/schema"
)

func validate(t *testing.T, v schema.Validator, doc string) schema.Diagnostics {
	t.Helper()
	ds, err := v.Validate(t.Context(), "doc.yaml", []byte(doc))
	if err != nil {
		t.Fatal(err)
	}
	return ds
}

// rules are the identifiers of findings, in their order.
func rules(ds schema.Diagnostics) []string {
	out := []string{}
	for _, d := range ds {
		out = append(out, d.Severity.String()+" "+d.Rule)
	}
	return out
}

// TestKEPExamples loads the seven catalogs of KEP-2906 as they are written:
// six with exactly these warnings, and the last one, which is not YAML, with
// an error that names its placeholders.
func TestKEPExamples(t *testing.T) {
	t.Parallel()
	simple := []string{"KC111", "KC112", "KC102", "KC107"}
	want := map[string][]string{
		"catalog-1.yaml": append([]string{"KC101"}, simple...),
		"catalog-2.yaml": {"KC101", "KC111", "KC112", "KC102", "KC104"},
		"catalog-3.yaml": slices.Concat([]string{"KC101"}, simple, simple, simple),
		"catalog-4.yaml": append([]string{"KC101"}, simple...),
		"catalog-5.yaml": slices.Concat([]string{"KC101"}, simple, simple),
		"catalog-6.yaml": slices.Concat([]string{"KC101"}, simple, simple, simple, []string{"KC105"}),
		"catalog-7.yaml": {"KR013", "KR013"},
	}
	for name, ids := range want {
		data, err := os.ReadFile(filepath.Join("testdata/kep", name))
		if err != nil {
			t.Fatal(err)
		}
		ds, err := (&schema.Validator{Level: schema.Consume}).Validate(t.Context(), name, data)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, d := range ds {
			got = append(got, d.Rule)
			if want := schema.Warning; d.Severity != want && name != "catalog-7.yaml" {
				t.Errorf("%s: %s, want a warning", name, d)
			}
		}
		if !slices.Equal(got, ids) {
			t.Errorf("%s: got %v, want %v", name, got, ids)
		}
		if name == "catalog-7.yaml" {
			if ds[0].Pos.Line != 31 || !strings.Contains(ds[0].Message, "line 31") || ds.Err() == nil {
				t.Errorf("%s: got %v", name, ds)
			}
		}
		ds, err = (&schema.Validator{}).Validate(t.Context(), name, data)
		if err != nil || ds.Err() == nil {
			t.Errorf("%s: accepted at level publish (%v)", name, err)
		}
	}
}

// TestRegistryDefinition loads the one definition that was ever published. Its
// schema has the type "bool", so that it cannot be used.
func TestRegistryDefinition(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("testdata/registry/render-helm-chart.yaml")
	if err != nil {
		t.Fatal(err)
	}
	ds, err := (&schema.Validator{Level: schema.Consume}).Validate(t.Context(), "f", data)
	if got := rules(ds); err != nil || !slices.Equal(got, []string{"warning KC129"}) {
		t.Errorf("got %v, %v", got, err)
	}
}

const sourceDocument = `apiVersion: config.kubernetes.io/v1alpha1
kind: KRMFunctionDefinition
metadata: {name: set-labels}
spec:
  group: fn.example.com
  names: {kind: SetLabels}
  description: Sets labels
  publisher: Example
  versions:
    - name: v1
      schema: {openAPIV3Schema: {type: object}}
      idempotent: true
      usage: README.md
      examples: [examples/basic/README.md]
      license: Apache 2.0
      runtime:
        container:
          image: %s
        exec:
          platforms:
            - {bin: set-labels, os: linux, arch: amd64, uri: %s}
        starlark: {path: %s}
`

// TestSource shows what an author may leave to publishing.
func TestSource(t *testing.T) {
	t.Parallel()
	local := fmt.Sprintf(sourceDocument, "./image.tar", "bin/set-labels", "set-labels.star")
	remote := fmt.Sprintf(sourceDocument, "example.com/fn:v1.0.0", "https://example.com/fn", "https://example.com/fn.star")
	for _, test := range []struct {
		name      string
		validator schema.Validator
		doc       string
		want      []string
	}{
		{"local files in a source", schema.Validator{Source: true}, local, []string{"notice KP204"}},
		{"local files found out", schema.Validator{LocalSource: true}, local, []string{"notice KP204"}},
		{"local files in a published document", schema.Validator{}, local,
			[]string{"error KP213", "error KP213", "error KP228", "error KP208", "error KP228", "error KP208", "notice KP204", "error KP228"}},
		{"local files for a consumer", schema.Validator{Level: schema.Consume}, local,
			[]string{"warning KC108", "warning KC104"}},
		{"remote files are not in the author's folder", schema.Validator{Source: true}, remote,
			[]string{"notice KP207", "error KP208", "error KP208", "notice KP204"}},
		{"no local files found out", schema.Validator{LocalSource: true}, remote,
			[]string{"error KP213", "error KP213", "error KP207", "error KP208", "error KP208", "notice KP204"}},
		{"a digest that is given must be one", schema.Validator{Source: true},
			strings.Replace(local, "uri: bin/set-labels", "uri: bin/set-labels, sha256: abc", 1), []string{"error KP208", "notice KP204"}},
		{"absolute paths are not relative to the folder", schema.Validator{Source: true},
			strings.Replace(local, "bin/set-labels}", "/bin/set-labels, sha256: "+strings.Repeat("a", 64)+"}", 1), []string{"error KP228", "notice KP204"}},
	} {
		if got := rules(validate(t, test.validator, test.doc)); !slices.Equal(got, test.want) {
			t.Errorf("%s: got %v, want %v\n%v", test.name, got, test.want, validate(t, test.validator, test.doc))
		}
	}
}

func TestOptions(t *testing.T) {
	t.Parallel()
	doc := strings.Replace(fmt.Sprintf(sourceDocument, "./image.tar", "bin/x", "x.star"), "Apache 2.0", "MIT", 1)
	ds := validate(t, schema.Validator{Source: true, OnlyKEP: true}, doc)
	if got, want := rules(ds), []string{"error KP214", "error KP204"}; !slices.Equal(got, want) {
		t.Errorf("OnlyKEP: got %v, want %v", got, want)
	}
	doc = strings.Replace(doc, "publisher: Example", "publisher: Example\n  publishr: x", 1)
	ds = validate(t, schema.Validator{Source: true, StrictFields: true}, doc)
	if got, want := rules(ds), []string{"error KP221", "notice KP214", "notice KP204"}; !slices.Equal(got, want) {
		t.Errorf("StrictFields: got %v, want %v", got, want)
	}
	ds = validate(t, schema.Validator{SkipOthers: true}, "apiVersion: v1\nkind: ConfigMap\n---\na: b\n---\napiVersion: config.kubernetes.io/v1alpha1\nkind: KRMFunction\n")
	if got, want := rules(ds), []string{"notice KR010", "notice KR010", "error KR010"}; !slices.Equal(got, want) {
		t.Errorf("SkipOthers: got %v, want %v", got, want)
	}
}

func TestLimits(t *testing.T) {
	t.Parallel()
	head := "apiVersion: config.kubernetes.io/v1alpha1\nkind: KRMFunctionDefinition\nspec:\n  x: "
	for name, doc := range map[string]string{
		"size":    head + strings.Repeat("a", 2000),
		"flow":    head + strings.Repeat("[", 500) + strings.Repeat("]", 500),
		"json":    `{"a": ` + strings.Repeat("[", 500) + strings.Repeat("]", 500) + "}",
		"aliases": "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: [*b,*b,*b,*b,*b,*b,*b,*b,*b]\n",
	} {
		v := schema.Validator{Limits: yamlpos.Limits{Bytes: 1900, Expanded: 100}}
		ds := validate(t, v, doc)
		if len(ds) == 0 || !slices.Contains(rules(ds), "error KR003") {
			t.Errorf("%s: got %v, want KR003", name, ds)
		}
	}
}

func TestCanceled(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := (&schema.Validator{}).Validate(ctx, "f", []byte("a: b")); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
}

// TestExcerpt checks that findings in very long lines show only a part of
// them, and that the mark is still at the place.
func TestExcerpt(t *testing.T) {
	t.Parallel()
	doc := `{"apiVersion": "config.kubernetes.io/v1alpha1", "kind": "KRMFunctionDefinition", "spec": {"description": "` +
		strings.Repeat("ä", 5000) + `", "tags": 5}}`
	for _, d := range validate(t, schema.Validator{}, doc) {
		if d.Path != "spec.tags" {
			continue
		}
		if got := string([]rune(d.Excerpt)[d.Pos.Column-1-d.Skip]); got != "5" || len(d.Excerpt) > 400 {
			t.Errorf("mark at %q in an excerpt of %d bytes", got, len(d.Excerpt))
		}
		return
	}
	t.Error("no finding")
}

// TestConcurrent uses one validator at once.
func TestConcurrent(t *testing.T) {
	t.Parallel()
	v := &schema.Validator{}
	done := make(chan error)
	for range 8 {
		go func() {
			_, err := v.Validate(context.Background(), "f", []byte(fmt.Sprintf(sourceDocument, "a", "b", "c")))
			done <- err
		}()
	}
	for range 8 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func ExampleValidator() {
	doc := `apiVersion: config.kubernetes.io/v1alpha1
kind: Catalog
metadata:
  name: example
spec:
  krmFunctions: []
`
	v := schema.Validator{Level: schema.Consume}
	found, err := v.Validate(context.Background(), "catalog.yaml", []byte(doc))
	if err != nil {
		panic(err)
	}
	for _, d := range found {
		fmt.Println(d)
	}
	fmt.Println("valid:", found.Err() == nil)
	// Output:
	// catalog.yaml:2:7: warning KC101: kind: "Catalog" is read as KRMFunctionCatalog (write KRMFunctionCatalog)
	// catalog.yaml:6:17: warning KC124: spec.krmFunctions: no functions
	// valid: true
}

// FuzzValidate checks that no document makes the validator panic, that the
// findings are in order, and that what is valid to publish is valid to
// consume.
func FuzzValidate(f *testing.F) {
	for _, pattern := range []string{"testdata/kep/*.yaml", "testdata/registry/*.yaml", "testdata/rules/*.txtar"} {
		files, _ := filepath.Glob(pattern)
		for _, file := range files {
			data, err := os.ReadFile(file)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(data)
		}
	}
	f.Add([]byte(fmt.Sprintf(sourceDocument, "example.com/a", "https://example.com/b", "https://example.com/c")))
	f.Fuzz(func(t *testing.T, data []byte) {
		before := bytes.Clone(data)
		publish, err := (&schema.Validator{}).Validate(context.Background(), "f", data)
		if err != nil {
			t.Fatal(err)
		}
		consume, err := (&schema.Validator{Level: schema.Consume}).Validate(context.Background(), "f", data)
		if err != nil {
			t.Fatal(err)
		}
		if publish.Err() == nil && consume.Err() != nil {
			t.Errorf("valid to publish, but not to consume: %v", consume.Err())
		}
		source, err := (&schema.Validator{Source: true}).Validate(context.Background(), "f", data)
		if err != nil {
			t.Fatal(err)
		}
		if publish.Err() == nil && source.Err() != nil {
			t.Errorf("valid when published, but not as a source: %v", source.Err())
		}
		if !bytes.Equal(before, data) {
			t.Error("the document was changed")
		}
		for i := range publish {
			if i > 0 && publish[i].Pos.Line < publish[i-1].Pos.Line {
				t.Errorf("findings are out of order: %v, %v", publish[i-1], publish[i])
			}
			if publish[i].Pos.Line < 1 || publish[i].Pos.Column < 1 || publish[i].Message == "" {
				t.Errorf("finding without place or message: %+v", publish[i])
			}
		}
	})
}
