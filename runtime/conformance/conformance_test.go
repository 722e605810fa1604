package conformance_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/krmcat/krmcat/runtime"
	"github.com/krmcat/krmcat/runtime/conformance"
	"github.com/krmcat/krmcat/runtime/fntest"
	"github.com/krmcat/krmcat/runtime/starlarkfn"
)

var test = runtime.FunctionFunc(func(_ context.Context, s runtime.Stdio) error {
	var errs bytes.Buffer
	if code := fntest.Function(s.Stdin, s.Stdout, io.MultiWriter(&errs, s.Stderr)); code != 0 {
		return &runtime.FunctionError{Name: "test", ExitCode: code, Stderr: errs.String()}
	}
	return nil
})

const head = "apiVersion: config.kubernetes.io/v1\nkind: ResourceList\n"

const item = `- apiVersion: v1
  kind: A
  metadata:
    name: a # name
    annotations:
      internal.config.kubernetes.io/path: a.yaml
      internal.config.kubernetes.io/index: '0'
      internal.config.kubernetes.io/other: keep
  spec: {n: 1}
`

// found is ids and levels of findings, sorted.
func found(fs []conformance.Finding) []string {
	var out []string
	for _, f := range fs {
		out = append(out, f.ID+" "+string(f.Level))
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func TestCheckOutput(t *testing.T) {
	in := head + "items:\n" + item
	result := func(r string) string { return in + "results:\n- " + r + "\n" }
	for _, tt := range []struct {
		name, out string
		exit      int
		want      []string
	}{
		{"same", in, 0, nil},
		{"empty", "", 0, []string{"C01 error"}},
		{"empty on failure", "", 1, nil},
		{"not YAML", "{{", 0, []string{"C01 error"}},
		{"not YAML on failure", "{{", 1, []string{"C01 warning"}},
		{"two documents", in + "---\n" + in, 0, []string{"C04 error"}},
		{"log before", "INFO starting\n" + in, 0, []string{"C04 error"}},
		{"log after", in + "INFO done\n", 0, []string{"C04 error"}},
		{"other kind", "apiVersion: v1\nkind: List\nitems: []\n", 0, []string{"C02 error"}},
		{"other version", strings.Replace(in, "/v1\n", "/v1beta1\n", 1), 0, []string{"C02 warning"}},
		{"unknown field", in + "extra: 1\n", 0, []string{"C02 warning"}},
		{"no items", head, 0, []string{"C03 error"}},
		{"item without kind", head + "items:\n- apiVersion: v1\n", 0, []string{"C03 error"}},
		{"nameless new item", in + "- apiVersion: v1\n  kind: B\n", 0, []string{"C03 error"}},
		{"error and exit 0", result("{message: m, severity: error}"), 0, []string{"C05 error"}},
		{"no severity and exit 0", result("{message: m}"), 0, []string{"C05 error"}},
		{"error and exit 1", result("{message: m, severity: error}"), 1, nil},
		{"info", result("{message: m, severity: info, tags: {a: b}}"), 0, nil},
		{"no message", result("{severity: info}"), 0, []string{"C07 error"}},
		{"warn", result("{message: m, severity: warn}"), 0, []string{"C07 warning"}},
		{"field without resourceRef", result("{message: m, severity: info, field: {path: x}}"), 0, []string{"C07 error"}},
		{"field without path", result("{message: m, severity: info, resourceRef: {apiVersion: v1, kind: A, name: a}, field: {}}"), 0, []string{"C07 error"}},
		{"resourceRef without name", result("{message: m, severity: info, resourceRef: {apiVersion: v1, kind: A}}"), 0, []string{"C07 error"}},
		{"absolute file", result("{message: m, severity: info, file: {path: /etc/x}}"), 0, []string{"C07 error"}},
		{"index", result("{message: m, severity: info, file: {path: x, index: two}}"), 0, []string{"C07 error"}},
		{"tags", result("{message: m, severity: info, tags: {a: 1}}"), 0, []string{"C07 error"}},
		{"unknown result field", result("{message: m, severity: info, line: 3}"), 0, []string{"C07 warning"}},
		{"older shape", in + "results:\n  name: x\n  items: []\n", 0, []string{"C07 warning"}},
		{"older list", result("{name: x, items: []}"), 0, []string{"C07 warning"}},
		{"suggested", result("{message: m, severity: info, resourceRef: {apiVersion: v1, kind: A, name: a}, field: {path: x, suggestedValue: 1}}"), 0, []string{"C07 warning"}},
		{"internal annotation", strings.Replace(in, "other: keep", "other: x", 1), 0, []string{"C08 error"}},
		{"internal annotation removed", strings.Replace(in, "      internal.config.kubernetes.io/other: keep\n", "", 1), 0, []string{"C08 error"}},
		{"moved", strings.Replace(in, "path: a.yaml", "path: b.yaml", 1), 0, []string{"C09 warning"}},
		{"escape", strings.Replace(in, "path: a.yaml", "path: ../b.yaml", 1), 0, []string{"C09 error", "C09 warning"}},
		{"copied place", in + strings.Replace(item, "name: a #", "name: b #", 1), 0, []string{"C08 info", "C09 error"}},
		{"comment lost", strings.Replace(in, " # name", "", 1), 0, []string{"C10 warning", "C11 info"}},
		{"reformatted", strings.Replace(in, "{n: 1}", "\n    n: 1", 1), 0, []string{"C11 info"}},
		{"value changed", strings.Replace(in, "{n: 1}", "{n: 2}", 1), 0, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := conformance.CheckOutput([]byte(in), []byte(tt.out), tt.exit)
			if d := cmp.Diff(tt.want, found(got)); d != "" {
				t.Errorf("(-want +got):\n%s\n%v", d, got)
			}
		})
	}
}

func TestCompare(t *testing.T) {
	want := head + "items:\n" + item + "- apiVersion: v1\n  kind: B\n  metadata: {name: b}\nresults:\n- {message: m, severity: info}\n"
	for _, tt := range []struct {
		name, out string
		want      []string
	}{
		{"same", want, nil},
		{"order of fields, annotations", head + "results:\n- severity: info\n  message: m\nitems:\n- kind: A\n  apiVersion: v1\n  spec:\n    n: 1\n  metadata:\n    name: a # name\n- apiVersion: v1\n  kind: B\n  metadata: {name: b}\n", nil},
		{"comment", strings.Replace(want, " # name", "", 1), []string{"C25 info"}},
		{"order of items", head + "items:\n- apiVersion: v1\n  kind: B\n  metadata: {name: b}\n" + item + "results:\n- {message: m, severity: info}\n", []string{"C25 info"}},
		{"value", strings.Replace(want, "n: 1", "n: '1'", 1), []string{"C25 error"}},
		{"missing", strings.Replace(want, "name: b", "name: c", 1), []string{"C25 error"}},
		{"results", strings.Replace(want, "message: m", "message: x", 1), []string{"C25 error"}},
		{"none", "x", []string{"C25 error"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := conformance.Compare([]byte(want), []byte(tt.out))
			if d := cmp.Diff(tt.want, found(got)); d != "" {
				t.Errorf("(-want +got):\n%s\n%v", d, got)
			}
		})
	}
}

func example(do string) conformance.Example {
	return conformance.Example{Name: do, FunctionConfig: fntest.Config(do), Input: fntest.List(do)}
}

// Conforming functions pass, and each bad one is found out.
func TestRun(t *testing.T) {
	for _, tt := range []struct {
		do   string
		opts conformance.Options
		ok   bool
		want []string // findings that must be among the rest
	}{
		{do: "fail", ok: true},
		{do: "garbage", want: []string{"C01 error"}},
		{do: "logs", want: []string{"C04 error"}},
		{do: "empty", want: []string{"C01 error"}},
		{do: "error-exit-0", want: []string{"C05 error"}},
		{do: "other-kind", want: []string{"C02 error"}},
		{do: "no-items", want: []string{"C03 error"}},
		{do: "internal", want: []string{"C08 error"}},
		{do: "escape", want: []string{"C09 error"}},
		{do: "strip", ok: true, want: []string{"C10 warning"}},
		{do: "delete", opts: conformance.Options{Validator: true, Quick: true}, ok: true, want: []string{"C28 warning"}},
		{do: "create", opts: conformance.Options{Idempotent: true}, want: []string{"C16 error"}},
	} {
		t.Run(tt.do, func(t *testing.T) {
			r := conformance.Run(t.Context(), test, example(tt.do), tt.opts)
			if r.OK() != tt.ok {
				t.Errorf("OK is %v:\n%v", r.OK(), r.Findings)
			}
			for _, w := range tt.want {
				if !slices.Contains(found(r.Findings), w) {
					t.Errorf("no %s in %v", w, r.Findings)
				}
			}
		})
	}
}

const labels = `
def run(rl):
    if "functionConfig" not in rl or rl["functionConfig"]["kind"] != "SetLabels":
        fail("functionConfig must be of kind SetLabels")
    for i in rl["items"]:
        m = i["metadata"]
        if not m.get("labels"):
            m["labels"] = {}
        m["labels"].update(rl["functionConfig"]["labels"])
run(ctx.resource_list)
`

const labelConfig = "apiVersion: example.com/v1\nkind: SetLabels\nmetadata: {name: x}\nlabels: {team: a}\n"

// A well-written function has no findings at all.
func TestGoodFunction(t *testing.T) {
	fn, err := (&starlarkfn.Executor{}).Script("set-labels.star", []byte(labels), runtime.Grants{}, runtime.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	r := conformance.Run(t.Context(), fn, conformance.Example{
		FunctionConfig: []byte(labelConfig),
		Input:          []byte(head + "items:\n" + item),
		Expected:       []byte(head + "items:\n" + strings.Replace(item, "  spec:", "    labels: {team: a}\n  spec:", 1)),
	}, conformance.Options{Idempotent: true, Many: 20})
	if !r.OK() || len(r.Findings) > 0 {
		t.Errorf("OK %v, err %v: %v", r.OK(), r.Err, r.Findings)
	}
	for _, id := range []string{"C01", "C12", "C16", "C17", "C19", "C20", "C21", "C25"} {
		if !slices.Contains(r.Checked, id) {
			t.Errorf("%s was not checked", id)
		}
	}
}

// A generator that overwrites what users did is found (CF-10).
func TestUserChanges(t *testing.T) {
	const script = `
def run(rl):
    rl["items"] = [i for i in rl["items"] if i["metadata"]["name"] != "made"]
    rl["items"].append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "made"}})
run(ctx.resource_list)
`
	fn, err := (&starlarkfn.Executor{}).Script("generate.star", []byte(script), runtime.Grants{}, runtime.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	r := conformance.Run(t.Context(), fn, conformance.Example{Input: []byte(head + "items: []\n")}, conformance.Options{})
	if !slices.Contains(found(r.Findings), "C22 warning") {
		t.Errorf("findings: %v", r.Findings)
	}
}

func TestExpectedFailure(t *testing.T) {
	ex := example("invalid")
	ex.Expected = append(fntest.List("invalid")[:0:0], bytes.Split(fntest.List("invalid"), []byte("functionConfig:"))[0]...)
	ex.Expected = append(ex.Expected, "results:\n- message: replicas must be odd\n  severity: error\n  resourceRef: {apiVersion: v1, kind: A, name: a}\n  field: {path: spec.replicas, currentValue: 2}\n  file: {path: a.yaml}\n"...)
	if r := conformance.Run(t.Context(), test, ex, conformance.Options{}); !r.OK() {
		t.Errorf("an expected failure: %v", r.Findings)
	}
	ex.Name, ex.FunctionConfig = "copy", fntest.Config("copy")
	if r := conformance.Run(t.Context(), test, ex, conformance.Options{}); r.OK() {
		t.Error("a function that should fail succeeds, and passes")
	}
	// A failure nobody expects.
	ex = example("fail")
	ex.Expected = []byte(head + "items: []\n")
	if r := conformance.Run(t.Context(), test, ex, conformance.Options{}); r.OK() {
		t.Error("a function that should succeed fails, and passes")
	}
}

// That a function cannot be run is not the function's fault.
func TestCannotRun(t *testing.T) {
	fn := runtime.FunctionFunc(func(context.Context, runtime.Stdio) error { return runtime.ErrUnavailable })
	r := conformance.Run(t.Context(), fn, example("copy"), conformance.Options{})
	if r.OK() || !errors.Is(r.Err, runtime.ErrUnavailable) || len(r.Findings) > 0 {
		t.Errorf("%v %v", r.Err, r.Findings)
	}
	fn = func(context.Context, runtime.Stdio) error { return &runtime.TimeoutError{Name: "x"} }
	r = conformance.Run(t.Context(), fn, example("copy"), conformance.Options{})
	if r.OK() || r.Err != nil || !slices.Contains(found(r.Findings), "C26 error") {
		t.Errorf("%v %v", r.Err, r.Findings)
	}
}

func TestChecksAreListed(t *testing.T) {
	var ids []string
	for _, c := range conformance.Checks() {
		ids = append(ids, c.ID)
	}
	if !slices.IsSorted(ids) {
		t.Error("not in order")
	}
	r := conformance.Run(t.Context(), test, example("copy"), conformance.Options{Validator: true})
	for _, id := range r.Checked {
		if !slices.Contains(ids, id) {
			t.Errorf("%s is checked and not listed", id)
		}
	}
}

func ExampleCheckOutput() {
	input := []byte("apiVersion: config.kubernetes.io/v1\nkind: ResourceList\nitems: []\n")
	output := []byte("reading 0 items\napiVersion: config.kubernetes.io/v1\nkind: ResourceList\nitems: []\n")
	for _, f := range conformance.CheckOutput(input, output, 0) {
		fmt.Println(f)
	}
	// Output:
	// C04 error: standard output has text besides the ResourceList (FS-31); write logs and messages to standard error
}

// A validator that changes what it should only look at.
func ExampleRun() {
	fn, err := (&starlarkfn.Executor{}).Script("check.star", []byte("for i in ctx.resource_list['items']:\n  i['checked'] = True\n"), runtime.Grants{}, runtime.Limits{})
	if err != nil {
		fmt.Println(err)
		return
	}
	report := conformance.Run(context.Background(), fn, conformance.Example{
		Input: []byte("apiVersion: config.kubernetes.io/v1\nkind: ResourceList\nitems:\n- apiVersion: v1\n  kind: ConfigMap\n  metadata: {name: a}\n"),
	}, conformance.Options{Validator: true, Quick: true})
	fmt.Println("conforms:", report.OK())
	for _, f := range report.Findings {
		fmt.Println(f)
	}
	// Output:
	// conforms: true
	// C28 warning: the function is a validator, but changes resources (CF-09, KG-18); write the items as they came, and say what is wrong in results
}
