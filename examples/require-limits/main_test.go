package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/krmcat/krmcat/examples/internal/fntest"
)

func TestMain(m *testing.M) { fntest.Main(m, main) }

func TestExamples(t *testing.T) { fntest.Examples(t, "examples", fntest.Process) }

func TestCases(t *testing.T) { fntest.Examples(t, "testdata", fntest.Process) }

func TestHostile(t *testing.T) { fntest.Hostile(t, fntest.Process) }

// The answer is the input, byte by byte, with results behind it: a validator
// leaves the resources alone.
func TestLeavesItemsAlone(t *testing.T) {
	t.Parallel()
	inputs, _ := filepath.Glob("*/*/input.yaml")
	if len(inputs) == 0 {
		t.Fatal("no inputs")
	}
	for _, file := range inputs {
		input, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		got := fntest.Process(t, input)
		rest, ok := strings.CutPrefix(got.Stdout, string(input))
		if !ok || rest != "" && !strings.HasPrefix(rest, "results:\n") {
			t.Errorf("%s: changed:\n%s", file, got.Stdout)
		}
	}
}

func TestWrongConfig(t *testing.T) {
	t.Parallel()
	const head = "apiVersion: config.kubernetes.io/v1\nkind: ResourceList\n"
	const is = "apiVersion: examples.krmcat.dev/v1, kind: RequireLimits"
	for _, c := range []struct{ name, config, want string }{
		{"none", "null", "no functionConfig: it takes one of kind RequireLimits of examples.krmcat.dev/v1"},
		{"kind", "{apiVersion: v1, kind: ConfigMap}", `kind "ConfigMap": it takes kind RequireLimits`},
		{"spec", "{" + is + ", spec: 1}", "spec: is not an object but a number"},
		{"severity", "{" + is + ", spec: {severity: fatal}}", `spec.severity: "fatal" is not one of error, warning, info`},
		{"requests", "{" + is + ", spec: {requests: cpu}}", "spec.requests: is not a list but a string"},
		{"resource", "{" + is + ", spec: {limits: [cpu, 1]}}", "spec.limits[1]: is a number, not a string"},
		{"unpinned", "{" + is + ", spec: {allowUnpinnedImages: 1}}", "spec.allowUnpinnedImages: is not true or false but a number"},
		{"unknown", "{" + is + ", spec: {limit: [cpu]}}", "spec.limit: unknown field; spec has severity, requests"},
		{"exempt", "{" + is + ", spec: {exempt: [web]}}", "spec.exempt[0]: is not an object"},
		{"exempt all", "{" + is + ", spec: {exempt: [{}]}}", "spec.exempt[0]: exempts everything"},
		{"exempt field", "{" + is + ", spec: {exempt: [{image: a}]}}", "spec.exempt[0].image: unknown field"},
		{"exempt null", "{" + is + ", spec: {exempt: [{kind: null}]}}", "spec.exempt[0].kind: has no value"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got := fntest.Process(t, []byte(head+"functionConfig: "+c.config+"\nitems: []\n"))
			fntest.Refused(t, got)
			if !strings.Contains(got.Stderr, c.want) {
				t.Errorf("standard error %q, want %q in it", got.Stderr, c.want)
			}
			if !strings.Contains(got.Stdout, "severity: error") {
				t.Errorf("standard output:\n%s", got.Stdout)
			}
		})
	}
}

func TestUnpinned(t *testing.T) {
	t.Parallel()
	for image, want := range map[string]string{
		"web:v1.2.3":                                   "",
		"registry.example.com:5000/web:v1":             "",
		"web@sha256:" + strings.Repeat("a", 64):        "",
		"web:latest@sha256:" + strings.Repeat("a", 64): "",
		"web":                           "no tag",
		"registry.example.com:5000/web": "no tag",
		"web:latest":                    "not pinned",
		"web:":                          "not pinned",
		"":                              "no image",
	} {
		got := unpinned(image)
		if want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("unpinned(%q) = %q, want %q", image, got, want)
		}
	}
}
