package openapi_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/objectmeta"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	celconfig "k8s.io/apiserver/pkg/apis/cel"

	"github.com/krmcat/krmcat/schema"
	"github.com/krmcat/krmcat/schema/openapi"
)

// TestCorpus checks made-up custom resources against schemas of real
// CustomResourceDefinitions, and compares the verdicts with those of the API
// server's functions called one after another on the JSON. That guards what is
// between a file and the library: reading YAML, refusing schemas, and the order
// of the steps. Every finding has a place.
func TestCorpus(t *testing.T) {
	t.Parallel()
	dir := "testdata/crds"
	if more := os.Getenv("KRMCAT_TEST_CRDS"); more != "" {
		dir = more
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no schemas in %s (%v)", dir, err)
	}
	valid, invalid := 0, 0
	for i, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		s, err := openapi.Compile(raw)
		if err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		ref := newReference(t, raw)
		var def map[string]any
		if err := json.Unmarshal(raw, &def); err != nil {
			t.Fatal(err)
		}
		r := rand.New(rand.NewPCG(uint64(i), 1))
		for n := range 16 {
			doc, _ := instance(r, def, 0).(map[string]any)
			doc["apiVersion"], doc["kind"], doc["metadata"] = "example.com/v1", "Example", map[string]any{"name": "example"}
			for range n % 4 {
				mutate(r, doc)
			}
			text, err := json.Marshal(doc)
			if err != nil {
				t.Fatal(err)
			}
			found, err := s.Validate(t.Context(), "f", text)
			if err != nil {
				t.Fatalf("%s: %v\n%s", file, err, text)
			}
			for _, d := range found {
				if d.Pos.Line < 1 || d.Pos.Column < 1 || d.Message == "" || strings.Contains(d.Message, " in body ") {
					t.Errorf("%s: %+v", file, d)
				}
			}
			want := ref.errors(t.Context(), text)
			if (found.Err() == nil) != (len(want) == 0) {
				t.Errorf("%s: found %v, the API server %v\n%s", filepath.Base(file), found, want, text)
			}
			if len(want) == 0 {
				valid++
			} else {
				invalid++
			}
		}
	}
	if valid == 0 || invalid == 0 {
		t.Errorf("%d valid and %d invalid documents: no comparison", valid, invalid)
	}
	t.Logf("%d schemas, %d valid and %d invalid documents", len(files), valid, invalid)
}

// reference is the API server's way.
type reference struct {
	validator  validation.SchemaValidator
	structural *structuralschema.Structural
	cel        *cel.Validator
}

func newReference(t *testing.T, raw []byte) *reference {
	t.Helper()
	var v1 apiextensionsv1.JSONSchemaProps
	if err := json.Unmarshal(raw, &v1); err != nil {
		t.Fatal(err)
	}
	internal := &apiextensions.JSONSchemaProps{}
	if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(&v1, internal, nil); err != nil {
		t.Fatal(err)
	}
	r := &reference{}
	var err error
	if r.validator, _, err = validation.NewSchemaValidator(internal); err != nil {
		t.Fatal(err)
	}
	if r.structural, err = structuralschema.NewStructural(internal); err != nil {
		t.Fatal(err)
	}
	r.cel = cel.NewValidator(r.structural, true, celconfig.PerCallLimit)
	return r
}

func (r *reference) errors(ctx context.Context, text []byte) []string {
	// As unstructured objects are decoded: integers stay integers.
	var obj map[string]any
	dec := json.NewDecoder(strings.NewReader(string(text)))
	dec.UseNumber()
	if err := dec.Decode(&obj); err != nil {
		return []string{err.Error()}
	}
	obj = numbers(obj).(map[string]any)
	var out []string
	if err := objectmeta.Coerce(nil, obj, r.structural, true, false); err != nil {
		return []string{err.Error()}
	}
	out = append(out, pruning.PruneWithOptions(obj, r.structural, true, structuralschema.UnknownFieldPathOptions{TrackUnknownFieldPaths: true})...)
	defaulting.PruneNonNullableNullsWithoutDefaults(obj, r.structural)
	defaulting.Default(obj, r.structural)
	for _, e := range validation.ValidateCustomResource(nil, obj, r.validator) {
		out = append(out, e.Error())
	}
	for _, e := range objectmeta.Validate(ctx, nil, obj, r.structural, false) {
		out = append(out, e.Error())
	}
	for _, e := range listtype.ValidateListSetsAndMaps(nil, r.structural, obj) {
		out = append(out, e.Error())
	}
	if len(out) == 0 && r.cel != nil {
		errs, _ := r.cel.Validate(ctx, nil, r.structural, obj, nil, celconfig.RuntimeCELCostBudget)
		for _, e := range errs {
			out = append(out, e.Error())
		}
	}
	return out
}

func numbers(v any) any {
	switch x := v.(type) {
	case map[string]any:
		for k, e := range x {
			x[k] = numbers(e)
		}
	case []any:
		for i, e := range x {
			x[i] = numbers(e)
		}
	case json.Number:
		if n, err := x.Int64(); err == nil {
			return n
		}
		f, _ := x.Float64()
		return f
	}
	return v
}

// instance makes a value for a schema: valid in most cases.
func instance(r *rand.Rand, s map[string]any, depth int) any {
	if list, ok := s["enum"].([]any); ok && len(list) > 0 {
		return list[r.IntN(len(list))]
	}
	if s["x-kubernetes-int-or-string"] == true {
		if r.IntN(2) == 0 {
			return int64(r.IntN(100))
		}
		return fmt.Sprintf("%d%%", r.IntN(100))
	}
	switch s["type"] {
	case "object":
		out := map[string]any{}
		props, _ := s["properties"].(map[string]any)
		required, _ := s["required"].([]any)
		for _, k := range sortedKeys(props) {
			p, _ := props[k].(map[string]any)
			if !slices.Contains(required, any(k)) && (depth > 6 || r.IntN(3) > 0) {
				continue
			}
			out[k] = instance(r, p, depth+1)
		}
		if p, ok := s["additionalProperties"].(map[string]any); ok {
			for i := range r.IntN(3) {
				out[fmt.Sprintf("key%d", i)] = instance(r, p, depth+1)
			}
		}
		return out
	case "array":
		items, _ := s["items"].(map[string]any)
		n := r.IntN(3)
		if least, ok := s["minItems"].(float64); ok {
			n = max(n, int(least))
		}
		out := []any{}
		for range n {
			out = append(out, instance(r, items, depth+1))
		}
		return out
	case "integer":
		least, _ := s["minimum"].(float64)
		return int64(least) + int64(r.IntN(5))
	case "number":
		return float64(r.IntN(10)) / 2
	case "boolean":
		return r.IntN(2) == 0
	}
	switch s["format"] {
	case "date-time":
		return "2024-01-02T03:04:05Z"
	case "duration":
		return "1h"
	case "byte":
		return "aGk="
	}
	switch r.IntN(4) {
	case 0:
		return "example.com"
	case 1:
		return "1m"
	}
	return string(rune('a' + r.IntN(26)))
}

func sortedKeys(m map[string]any) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// mutate changes something somewhere.
func mutate(r *rand.Rand, m map[string]any) {
	keys := sortedKeys(m)
	if len(keys) == 0 {
		m["unknown"] = "x"
		return
	}
	k := keys[r.IntN(len(keys))]
	if child, ok := m[k].(map[string]any); ok && r.IntN(4) > 0 {
		mutate(r, child)
		return
	}
	if list, ok := m[k].([]any); ok && len(list) > 0 && r.IntN(3) > 0 {
		if child, ok := list[0].(map[string]any); ok && r.IntN(2) == 0 {
			mutate(r, child)
			return
		}
		m[k] = append(list, list[0])
		return
	}
	switch r.IntN(6) {
	case 0:
		delete(m, k)
	case 1:
		m[k] = nil
	case 2:
		m[k] = int64(5_000_000_000)
	case 3:
		m[k] = "Not a Value"
	case 4:
		m[k] = []any{}
	default:
		m["unknown.field/~x"] = map[string]any{"a": 1.5}
	}
}

// FuzzValidate checks that no schema and no value makes the library panic, and
// that values are not changed.
func FuzzValidate(f *testing.F) {
	f.Add(`{"type":"object","properties":{"a":{"type":"string"}}}`, "a: b\n")
	f.Add(`{"type":"object","x-kubernetes-validations":[{"rule":"self.a > 1"}],"properties":{"a":{"type":"integer","default":5}}}`, "a: .5\nb.c: [1]\n")
	f.Add(`{"type":"object","properties":{"a":{"x-kubernetes-embedded-resource":true,"type":"object","x-kubernetes-preserve-unknown-fields":true},"b":{"type":"array","x-kubernetes-list-type":"set","items":{"type":"string"}}}}`, "a: {kind: 5}\nb: [x, x, null]\n")
	f.Add(`{"$ref":"#"}`, "{}")
	f.Fuzz(func(t *testing.T, def, doc string) {
		s, err := openapi.Compile(json.RawMessage(def))
		if err != nil {
			return
		}
		ds, err := s.Validate(t.Context(), "f", []byte(doc))
		if err != nil {
			t.Fatalf("%q, %q: %v", def, doc, err)
		}
		for _, d := range ds {
			if d.Pos.Line < 1 || d.Message == "" || d.Severity != schema.Error && d.Severity != schema.Warning {
				t.Errorf("%+v", d)
			}
		}
	})
}
