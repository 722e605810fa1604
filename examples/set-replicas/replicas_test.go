// Package replicas tests the Starlark function set-replicas.
package replicas

import (
	"bytes"
	_ "embed"
	"errors"
	"regexp"
	"strings"
	"testing"

	"github.com/krmcat/krmcat/examples/internal/fntest"
	"github.com/krmcat/krmcat/runtime"
	"github.com/krmcat/krmcat/runtime/starlarkfn"
)

//go:embed main.star
var script []byte

var older = regexp.MustCompile(`(?m)^ +config\.kubernetes\.io/(path|index): .*\n`)

// run runs the script as krmcat does.
func run(t *testing.T, input []byte) fntest.Outcome {
	t.Helper()
	f, err := (&starlarkfn.Executor{}).Script("main.star", script, runtime.Grants{}, runtime.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	var stdout, stderr bytes.Buffer
	err = f.Run(t.Context(), runtime.Stdio{Stdin: bytes.NewReader(input), Stdout: &stdout, Stderr: &stderr})
	// krmcat gives functions the older annotations as well; the examples show
	// those of the specification only.
	out := fntest.Outcome{Stdout: older.ReplaceAllString(stdout.String(), ""), Stderr: stderr.String()}
	if err != nil {
		fe, ok := errors.AsType[*runtime.FunctionError](err)
		if !ok {
			t.Fatal(err)
		}
		out.ExitCode = fe.ExitCode
	}
	return out
}

func TestExamples(t *testing.T) { fntest.Examples(t, "examples", run) }

func TestCases(t *testing.T) { fntest.Examples(t, "testdata", run) }

func TestNoConfig(t *testing.T) {
	t.Parallel()
	got := run(t, []byte("apiVersion: config.kubernetes.io/v1\nkind: ResourceList\nitems: []\n"))
	if got.ExitCode != 1 || !strings.Contains(got.Stderr, "no functionConfig: this function takes SetReplicas of examples.krmcat.dev/v1") {
		t.Errorf("exit code %d, standard error %q", got.ExitCode, got.Stderr)
	}
}

func TestWrongConfig(t *testing.T) {
	t.Parallel()
	const is = "apiVersion: examples.krmcat.dev/v1, kind: SetReplicas, metadata: {name: c}"
	const rules = "rules: [{replicas: {default: 1}}]"
	for _, c := range []struct{ name, config, want string }{
		{"kind", "{apiVersion: v1, kind: ConfigMap, metadata: {name: c}}", "kind: is ConfigMap of v1; this function takes SetReplicas of examples.krmcat.dev/v1"},
		{"spec", "{" + is + "}", "spec: is not an object but nothing"},
		{"environment", "{" + is + ", spec: {" + rules + "}}", "spec.environment: names no environment"},
		{"no rules", "{" + is + ", spec: {environment: dev}}", "spec.rules: has no rules"},
		{"unknown", "{" + is + ", spec: {environment: dev, rule: [], " + rules + "}}", "spec.rule: unknown field; spec has environment, rules"},
		{"rule", "{" + is + ", spec: {environment: dev, rules: [1]}}", "spec.rules[0]: is not an object but a number"},
		{"rule field", "{" + is + ", spec: {environment: dev, rules: [{replica: 1}]}}", "spec.rules[0].replica: unknown field"},
		{"replicas", "{" + is + ", spec: {environment: dev, rules: [{replicas: 3}]}}", "spec.rules[0].replicas: is not an object of environments and numbers"},
		{"number", "{" + is + ", spec: {environment: dev, rules: [{replicas: {dev: -1}}]}}", "spec.rules[0].replicas.dev: is not a number of replicas"},
		{"text", "{" + is + ", spec: {environment: dev, rules: [{replicas: {dev: two}}]}}", "spec.rules[0].replicas.dev: is not a number of replicas"},
		{"match", "{" + is + ", spec: {environment: dev, rules: [{match: web, replicas: {dev: 1}}]}}", "spec.rules[0].match: is not an object but a string"},
		{"match kind", "{" + is + ", spec: {environment: dev, rules: [{match: {kind: 1}, replicas: {dev: 1}}]}}", "spec.rules[0].match.kind: is not a string but a number"},
		{"label", "{" + is + ", spec: {environment: dev, rules: [{match: {labels: {a: true}}, replicas: {dev: 1}}]}}", "spec.rules[0].match.labels.a: is a boolean, not a string"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got := run(t, []byte("apiVersion: config.kubernetes.io/v1\nkind: ResourceList\nfunctionConfig: "+c.config+"\nitems: []\n"))
			if got.ExitCode != 1 || !strings.Contains(got.Stdout, c.want) || !strings.Contains(got.Stdout, "severity: error") {
				t.Errorf("exit code %d, standard output\n%s\nstandard error\n%s", got.ExitCode, got.Stdout, got.Stderr)
			}
		})
	}
}
