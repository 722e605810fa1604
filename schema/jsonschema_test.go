package schema_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v5"
	"golang.org/x/tools/txtar"

	"github.com/krmcat/krmcat/internal/yamlpos"
	"github.com/krmcat/krmcat/schema"
)

func compileJSON(t *testing.T, text []byte) *jsonschema.Schema {
	t.Helper()
	c := jsonschema.NewCompiler()
	if err := c.AddResource("mem:///s.json", bytes.NewReader(text)); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("mem:///s.json")
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return s
}

func value(t *testing.T, doc []byte) any {
	t.Helper()
	f, problems := yamlpos.Parse("f", doc, yamlpos.Limits{})
	if len(problems) > 0 || len(f.Documents) != 1 {
		t.Fatal(problems)
	}
	return f.Documents[0].Value
}

// TestDocumentJSONSchema gives the exported schemas to a validator that knows
// nothing of krmcat.
func TestDocumentJSONSchema(t *testing.T) {
	t.Parallel()
	a, err := txtar.ParseFile("testdata/rules/k00-valid.txtar")
	if err != nil {
		t.Fatal(err)
	}
	docs := map[string][]byte{schema.KindDefinition: a.Files[0].Data, schema.KindCatalog: a.Files[1].Data,
		"ResourceList": []byte("apiVersion: config.kubernetes.io/v1\nkind: ResourceList\nitems: []\n")}
	for kind, doc := range docs {
		text, ok, err := schema.DocumentJSONSchema(kind)
		if !ok || err != nil {
			t.Fatalf("%s: %t, %v", kind, ok, err)
		}
		s := compileJSON(t, text)
		if err := s.Validate(value(t, doc)); err != nil {
			t.Errorf("%s: %v", kind, err)
		}
		if err := s.Validate(map[string]any{"kind": kind}); err == nil {
			t.Errorf("%s: an empty document is valid", kind)
		}
	}
	for _, bad := range []string{"testdata/kep/catalog-1.yaml"} {
		data, err := os.ReadFile(bad)
		if err != nil {
			t.Fatal(err)
		}
		text, _, _ := schema.DocumentJSONSchema(schema.KindCatalog)
		if compileJSON(t, text).Validate(value(t, data)) == nil {
			t.Errorf("%s is valid", bad)
		}
	}
	if _, ok, _ := schema.DocumentJSONSchema("ConfigMap"); ok {
		t.Error("there is a schema for ConfigMap")
	}
}

// TestFunctionJSONSchema checks that schemas of real CustomResourceDefinitions
// become JSON Schemas that compile, and what the special keywords become.
func TestFunctionJSONSchema(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("openapi/testdata/crds/*.json")
	if err != nil || len(files) == 0 {
		t.Fatal("no schemas", err)
	}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		text, err := schema.FunctionJSONSchema("example.com/v1", "Example", raw)
		if err != nil {
			t.Fatal(err)
		}
		compileJSON(t, text)
	}
	text, err := schema.FunctionJSONSchema("example.com/v1", "Example", json.RawMessage(`{"type": "object", "required": ["a", "b"], "properties": {
		"a": {"type": "integer", "minimum": 0, "exclusiveMinimum": true}, "b": {"type": "string", "default": "x", "nullable": true},
		"c": {"x-kubernetes-int-or-string": true}, "d": {"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {"e": {"type": "string"}}},
		"f": {"type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true},
		"g": {"type": "object", "properties": {}, "anyOf": [{"required": ["h"]}]}}}`))
	if err != nil {
		t.Fatal(err)
	}
	s := compileJSON(t, text)
	head := "apiVersion: example.com/v1\nkind: Example\n"
	for doc, want := range map[string]bool{
		head + "a: 1\n":                   true,
		head + "a: 1\nb: null\nc: 5%\n":   true,
		head + "a: 0\n":                   false,
		head + "b: x\n":                   false,
		head + "a: 1\nz: 1\n":             false,
		head + "a: 1\nc: []\n":            false,
		head + "a: 1\nd: {x: y}\n":        true,
		head + "a: 1\nf: {kind: a}\n":     false,
		head + "a: 1\ng: {}\n":            false,
		head + "metadata: {name: 5}\n":    false,
		"apiVersion: v1\nkind: Other\n":   false,
		head + "a: 1\nmetadata: {x: y}\n": true,
	} {
		if err := s.Validate(value(t, []byte(doc))); (err == nil) != want {
			t.Errorf("%q: %v, want valid %t", doc, err, want)
		}
	}
	for _, bad := range []string{"", "[", "[]", "5", `{"properties": 5}`, `{"required": {}}`} {
		if text, err := schema.FunctionJSONSchema("a/v1", "B", json.RawMessage(bad)); err == nil && !json.Valid(text) {
			t.Errorf("%q became %s", bad, text)
		}
	}
}
