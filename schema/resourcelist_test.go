package schema_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/krmcat/krmcat/schema"
)

// TestResourceListDirection shows what only the output of a function must not
// have, and output that is no ResourceList.
func TestResourceListDirection(t *testing.T) {
	t.Parallel()
	head := "apiVersion: config.kubernetes.io/v1\nkind: ResourceList\nitems: []\n"
	for _, test := range []struct {
		doc           string
		input, output []string
	}{
		{head, nil, nil},
		{head + "results:\n- message: a\n  field: {path: b}\n", []string{"warning KL010"}, []string{"error KL010"}},
		{"", []string{"error KR009"}, []string{"error KR009"}},
		{"panic: runtime error\n\ngoroutine 1 [running]:\n", []string{"error KL002", "error KL002", "error KL002", "warning KL004", "warning KL004"}, nil},
		{"not a list", []string{"error KL001"}, nil},
		{head + "---\n" + head, []string{"error KL001"}, nil},
		{strings.Replace(head, "ResourceList", "List", 1), []string{"error KL001"}, nil},
		{strings.Replace(head, "/v1", "/v2", 1), []string{"error KL001"}, nil},
		{"a: b: c\n", []string{"error KR001"}, nil},
		{strings.Repeat("[", 600), []string{"error KR003"}, nil},
	} {
		for dir, want := range map[schema.Direction][]string{schema.Input: test.input, schema.Output: test.output} {
			if want == nil {
				want = test.input
			}
			v := schema.Validator{}
			ds, err := v.ValidateResourceList(t.Context(), "f", []byte(test.doc), dir)
			if err != nil {
				t.Fatal(err)
			}
			if got := rules(ds); !slices.Equal(got, want) && len(got)+len(want) > 0 {
				t.Errorf("%q, direction %d: %v, want %v", test.doc, dir, ds, want)
			}
		}
	}
}

// FuzzResourceList checks that what a function may write, it may be given.
func FuzzResourceList(f *testing.F) {
	f.Add([]byte("apiVersion: config.kubernetes.io/v1\nkind: ResourceList\nitems:\n- apiVersion: v1\n  kind: A\n  metadata: {name: a, annotations: {config.kubernetes.io/index: 0}}\nresults:\n- message: a\n  severity: warn\n"))
	f.Add([]byte(`{"apiVersion": "config.kubernetes.io/v1alpha1", "kind": "ResourceList", "items": null, "results": [{"name": "a", "items": [{"message": "b"}]}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		v := schema.Validator{}
		in, err := v.ValidateResourceList(t.Context(), "f", data, schema.Input)
		if err != nil {
			t.Fatal(err)
		}
		out, err := v.ValidateResourceList(t.Context(), "f", data, schema.Output)
		if err != nil {
			t.Fatal(err)
		}
		if out.Err() == nil && in.Err() != nil {
			t.Errorf("valid output is no valid input: %v", in.Err())
		}
	})
}
