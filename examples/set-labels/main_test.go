package main

import (
	"strings"
	"testing"

	"github.com/krmcat/krmcat/examples/internal/fntest"
)

func TestMain(m *testing.M) { fntest.Main(m, main) }

func TestExamples(t *testing.T) { fntest.Examples(t, "examples", fntest.Process) }

func TestCases(t *testing.T) { fntest.Examples(t, "testdata", fntest.Process) }

func TestHostile(t *testing.T) { fntest.Hostile(t, fntest.Process) }

const labelA = `functionConfig:
  apiVersion: examples.krmcat.dev/v1
  kind: SetLabels
  metadata:
    name: test
  spec:
    labels:
      a: b
`

func list(version, rest string) []byte {
	return []byte("apiVersion: config.kubernetes.io/" + version + "\nkind: ResourceList\n" + rest)
}

func TestAnswersInKind(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"v1", "v1beta1", "v1alpha1"} {
		got := fntest.Process(t, list(version, labelA+"items: []\n"))
		if want := string(list(version, labelA+"items: []\n")); got.Stdout != want || got.ExitCode != 0 {
			t.Errorf("%s: exit code %d, standard output\n%s", version, got.ExitCode, got.Stdout)
		}
	}
}

func TestJSON(t *testing.T) {
	t.Parallel()
	got := fntest.Process(t, []byte(`{"apiVersion": "config.kubernetes.io/v1", "kind": "ResourceList", `+
		`"functionConfig": {"apiVersion": "examples.krmcat.dev/v1", "kind": "SetLabels", "spec": {"labels": {"a": "b"}}}, `+
		`"items": [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}}]}`))
	want := `"items": [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m", labels: {a: b}}}]}`
	if got.ExitCode != 0 || !strings.Contains(got.Stdout, want) {
		t.Errorf("exit code %d, standard output\n%s", got.ExitCode, got.Stdout)
	}
}

// A function without items or with null ones answers with a list.
func TestNoItems(t *testing.T) {
	t.Parallel()
	for _, items := range []string{"", "items:\n", "items: null\n"} {
		got := fntest.Process(t, list("v1", labelA+items))
		if got.ExitCode != 0 || !strings.HasSuffix(got.Stdout, "items: []\n") {
			t.Errorf("%q: exit code %d, standard output\n%s", items, got.ExitCode, got.Stdout)
		}
	}
}

// What is wrong with a functionConfig becomes a result for each field, and
// nothing is changed.
func TestWrongConfig(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, config, want string }{
		{"none", "", "no functionConfig: it takes one of kind SetLabels of examples.krmcat.dev/v1, or kind ConfigMap of v1"},
		{"kind", "{apiVersion: examples.krmcat.dev/v1, kind: SetLabel}", `of apiVersion "examples.krmcat.dev/v1" and kind "SetLabel": it takes`},
		{"version", "{apiVersion: examples.krmcat.dev/v2, kind: SetLabels}", `of apiVersion "examples.krmcat.dev/v2"`},
		{"empty", "{apiVersion: examples.krmcat.dev/v1, kind: SetLabels}", "spec.labels: no labels: name at least one"},
		{"spec", "{apiVersion: examples.krmcat.dev/v1, kind: SetLabels, spec: []}", "spec: is not an object but a list"},
		{"labels", "{apiVersion: examples.krmcat.dev/v1, kind: SetLabels, spec: {labels: [a]}}", "spec.labels: is not an object but a list"},
		{"number", "{apiVersion: examples.krmcat.dev/v1, kind: SetLabels, spec: {labels: {v: 1.10}}}", `spec.labels.v: is a number, not a string: write "1.10" in quotes`},
		{"boolean", "{apiVersion: examples.krmcat.dev/v1, kind: SetLabels, spec: {labels: {v: true}}}", `spec.labels.v: is a boolean, not a string: write "true" in quotes`},
		{"nothing", "{apiVersion: examples.krmcat.dev/v1, kind: SetLabels, spec: {labels: {v: }}}", `spec.labels.v: has no value`},
		{"object", "{apiVersion: examples.krmcat.dev/v1, kind: SetLabels, spec: {labels: {v: {}}}}", `spec.labels.v: is not a string but an object`},
		{"key", "{apiVersion: examples.krmcat.dev/v1, kind: SetLabels, spec: {labels: {-a: b}}}", `spec.labels.-a: the name of a label is`},
		{"prefix", "{apiVersion: examples.krmcat.dev/v1, kind: SetLabels, spec: {labels: {A_B/a: b}}}", `the prefix of a label is a DNS name`},
		{"value", "{apiVersion: examples.krmcat.dev/v1, kind: SetLabels, spec: {labels: {a: b c}}}", `the value of a label is empty or`},
		{"long", "{apiVersion: examples.krmcat.dev/v1, kind: SetLabels, spec: {labels: {a: " + strings.Repeat("x", 64) + "}}}", `the value of a label is empty or`},
		{"unknown", "{apiVersion: examples.krmcat.dev/v1, kind: SetLabels, spec: {labels: {a: b}, leaveSelector: true}}", `spec.leaveSelector: unknown field; spec has labels, leaveSelectors`},
		{"switch", "{apiVersion: examples.krmcat.dev/v1, kind: SetLabels, spec: {labels: {a: b}, leaveSelectors: \"no\"}}", `spec.leaveSelectors: is not true or false but a string`},
		{"data", "{apiVersion: v1, kind: ConfigMap, metadata: {name: c}, data: {a: 1}}", `data.a: is a number`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			const items = "items:\n- apiVersion: v1\n  kind: ConfigMap\n  metadata:\n    name: m\n"
			in := items
			if c.config != "" {
				in = "functionConfig: " + c.config + "\n" + items
			}
			got := fntest.Process(t, list("v1", in))
			fntest.Refused(t, got)
			if !strings.Contains(got.Stderr, c.want) {
				t.Errorf("standard error %q, want %q in it", got.Stderr, c.want)
			}
			if !strings.Contains(got.Stdout, items+"results:\n- message: ") || !strings.Contains(got.Stdout, "severity: error") {
				t.Errorf("standard output:\n%s", got.Stdout)
			}
		})
	}
}

// Aliases that stand for more than a function can hold are refused.
func TestAliasBomb(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	b.WriteString("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n")
	for i := range 8 {
		at := string(rune('0' + i))
		next := string(rune('1' + i))
		b.WriteString("a" + next + ": &a" + next + " [" + strings.Repeat("*a"+at+", ", 10) + "]\n")
	}
	got := fntest.Process(t, list("v1", labelA+b.String()+"items: []\n"))
	fntest.Refused(t, got)
	if !strings.Contains(got.Stderr, "aliases in the ResourceList stand for too much") {
		t.Errorf("standard error %q", got.Stderr)
	}
}
