package starlarkfn

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	goruntime "runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"

	"github.com/krmcat/krmcat/catalog"
	"github.com/krmcat/krmcat/runtime"
)

// TestMain makes the test binary its own worker.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == "starlark-test-worker" {
		os.Exit(Work(context.Background(), os.Stdin, os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

func worker(t *testing.T) []string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return []string{self, "starlark-test-worker"}
}

// both runs a test in this process and in a worker.
func both(t *testing.T, f func(t *testing.T, x *Executor)) {
	t.Run("worker", func(t *testing.T) { f(t, &Executor{Worker: worker(t)}) })
	t.Run("in process", func(t *testing.T) { f(t, &Executor{}) })
}

const input = `apiVersion: config.kubernetes.io/v1
kind: ResourceList
items:
# the web server
- apiVersion: apps/v1
  kind: Deployment
  metadata:
    name: web # name
  spec:
    replicas:   3
    octal: 0777
    big: 12345678901234567890
    f: 1.50
    none: ~
    list: [a, "b"] # short
- apiVersion: v1
  kind: Service
  metadata: {name: svc}
functionConfig:
  apiVersion: v1
  kind: ConfigMap
  metadata: {name: c}
  data: {key: value}
`

func run(t *testing.T, x *Executor, script string, g runtime.Grants, l runtime.Limits) (stdout, stderr string, err error) {
	t.Helper()
	fn, err := x.Script("test.star", []byte(script), g, l)
	if err != nil {
		return "", "", err
	}
	var out, errs bytes.Buffer
	err = fn.Run(t.Context(), runtime.Stdio{Stdin: strings.NewReader(input), Stdout: &out, Stderr: &errs})
	return out.String(), errs.String(), err
}

// What scripts do, and what becomes of the text (KG-09).
func TestScripts(t *testing.T) {
	for _, tt := range []struct {
		name, script string
		replace      []string // pairs in input
		stderr       string
	}{
		{name: "nothing", script: "x = 1"},
		{name: "read only", script: "for i in ctx.resource_list['items']:\n  log(i['kind'], n=1)", stderr: "Deployment n=1\nService n=1\n"},
		{name: "change", script: `
def run(r, config):
    for i in r["items"]:
        if i["kind"] == "Deployment":
            i["spec"]["replicas"] += 2
            i["metadata"].setdefault("annotations", {})["by"] = config["data"]["key"]
run(ctx.resource_list, ctx.resource_list["functionConfig"])
`, replace: []string{"replicas:   3", "replicas:   5", "    name: web # name\n", "    name: web # name\n    annotations:\n      by: value\n"}},
		{name: "list", script: "ctx.resource_list['items'][0]['spec']['list'].append('c')", replace: []string{`list: [a, "b"] # short`, `list: [a, "b", c] # short`}},
		{name: "delete", script: "ctx.resource_list['items'].pop()", replace: []string{"- apiVersion: v1\n  kind: Service\n  metadata: {name: svc}\n", ""}},
		{name: "replace", script: "ctx.resource_list['items'] = [i for i in ctx.resource_list['items'] if i['kind'] != 'Service']", replace: []string{"- apiVersion: v1\n  kind: Service\n  metadata: {name: svc}\n", ""}},
		{name: "create", script: "ctx.resource_list['items'].append({'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': 'n'}, 'data': {'n': '1', 't': 'a\\nb\\n'}})", replace: []string{"functionConfig:", "- apiVersion: v1\n  kind: ConfigMap\n  metadata:\n    name: n\n  data:\n    n: \"1\"\n    t: |\n      a\n      b\nfunctionConfig:"}},
		{name: "modules", script: "log(json.encode({'a': [1, math.ceil(1.5), None, True]}))", stderr: "{\"a\":[1,2,null,true]}\n"},
		{name: "numbers", script: "s = ctx.resource_list['items'][0]['spec']\nlog(s['octal'], s['big'], s['f'], s['none'])", stderr: "511 12345678901234567890 1.5 None\n"},
		{name: "environment", script: "log(ctx.environment)", stderr: "{\"A\": \"b=c\"}\n"},
		{name: "open_api", script: "log(ctx.open_api['definitions']['io.k8s.api.apps.v1.Deployment']['type'])", stderr: "object\n"},
		{name: "results", script: "ctx.resource_list['results'] = [{'message': 'm', 'severity': 'info'}]", replace: []string{"  data: {key: value}\n", "  data: {key: value}\nresults:\n- message: m\n  severity: info\n"}},
		{name: "top level", script: "x = set([1])\nx = set([2])\ni = 0\nwhile i < 3:\n  i += 1\nif i == 3:\n  print('three')", stderr: "three\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			both(t, func(t *testing.T, x *Executor) {
				out, stderr, err := run(t, x, tt.script, runtime.Grants{Env: []string{"A=b=c"}}, runtime.Limits{})
				if err != nil {
					t.Fatal(err, stderr)
				}
				want := strings.NewReplacer(tt.replace...).Replace(input)
				if d := cmp.Diff(want, out); d != "" {
					t.Errorf("(-want +got):\n%s", d)
				}
				if stderr != tt.stderr {
					t.Errorf("standard error is %q, want %q", stderr, tt.stderr)
				}
			})
		})
	}
}

// The same script and input give the same bytes.
func TestDeterministic(t *testing.T) {
	const script = "d = {}\nfor k in ['z', 'a', 'm']:\n  d[k] = hash(k)\nctx.resource_list['items'][0]['d'] = d"
	var first string
	for range 5 {
		out, _, err := run(t, &Executor{Worker: worker(t)}, script, runtime.Grants{}, runtime.Limits{})
		if err != nil {
			t.Fatal(err)
		}
		if first == "" {
			first = out
		}
		if out != first {
			t.Fatal(cmp.Diff(first, out))
		}
	}
}

func TestScriptErrors(t *testing.T) {
	for _, tt := range []struct{ name, script, text string }{
		{"fail", "def f():\n  fail('no', 'way')\nf()", "no way"},
		{"place", "x = 1\nctx.resource_list['nope']", "test.star:2:"},
		{"steps", "while True:\n  pass", "too many steps"},
		{"items", "ctx.resource_list['items'] = 1", "is a int, not a list"},
		{"item", "ctx.resource_list['items'].append(1)", "[2] is a int, not a dict"},
		{"kind", "ctx.resource_list['items'][0].pop('kind')", "has no kind"},
		{"value", "ctx.resource_list['items'][0]['x'] = len", "cannot be written"},
		{"key", "ctx.resource_list['items'][0]['x'] = {1: 2}", "not a string"},
		{"cycle", "l = []\nl.append(l)\nctx.resource_list['items'][0]['x'] = l", "nested too deep"},
		{"results", "ctx.resource_list['results'] = 1", "results is a scalar"},
		{"open", "open('/etc/passwd')", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			both(t, func(t *testing.T, x *Executor) {
				x.MaxSteps = 1_000_000
				out, stderr, err := run(t, x, tt.script, runtime.Grants{}, runtime.Limits{})
				if tt.text == "" {
					if err == nil {
						t.Error("no error")
					}
					return
				}
				fe, ok := errors.AsType[*runtime.FunctionError](err)
				if !ok || fe.ExitCode != 1 || !strings.Contains(fe.Stderr, tt.text) || !strings.Contains(stderr, tt.text) {
					t.Errorf("got %v\n%s", err, stderr)
				}
				if out != "" {
					t.Errorf("it wrote %s", out)
				}
			})
		})
	}
}

// A result of severity error makes the function fail, with the results.
func TestErrorResults(t *testing.T) {
	both(t, func(t *testing.T, x *Executor) {
		out, _, err := run(t, x, "ctx.resource_list['results'] = [{'message': 'bad'}]", runtime.Grants{}, runtime.Limits{})
		fe, ok := errors.AsType[*runtime.FunctionError](err)
		if !ok || fe.ExitCode != 1 || !strings.Contains(out, "severity: error") {
			t.Errorf("got %v\n%s", err, out)
		}
	})
}

// What Starlark itself does not bound: one operation that takes much memory
// and cannot be interrupted. The worker is killed.
func TestLimits(t *testing.T) {
	if goruntime.GOOS != "linux" {
		t.Skip("memory is limited on Linux only")
	}
	x := &Executor{Worker: worker(t)}
	_, _, err := run(t, x, "x = [0] * (1 << 28)", runtime.Grants{}, runtime.Limits{MaxMemory: 256 << 20})
	if _, ok := errors.AsType[*runtime.FunctionError](err); !ok {
		t.Errorf("memory: got %v", err)
	}
	_, _, err = run(t, x, "def f():\n  while True:\n    pass\nf()", runtime.Grants{}, runtime.Limits{Timeout: 500 * time.Millisecond})
	if !errors.Is(err, runtime.ErrTimeout) {
		t.Errorf("time: got %v", err)
	}
	_, _, err = run(t, x, "print('x' * 5000000)", runtime.Grants{}, runtime.Limits{MaxOutput: 2 << 20})
	if !errors.Is(err, runtime.ErrOutputLimit) {
		t.Errorf("output: got %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	fn, err := x.Script("s", []byte("x = 1"), runtime.Grants{}, runtime.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	if err := fn.Run(ctx, runtime.Stdio{Stdin: strings.NewReader(input), Stdout: io.Discard}); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: got %v", err)
	}
}

func TestInProcessTimeout(t *testing.T) {
	_, _, err := run(t, &Executor{}, "while True:\n  pass", runtime.Grants{}, runtime.Limits{Timeout: 100 * time.Millisecond})
	if !errors.Is(err, runtime.ErrTimeout) {
		t.Errorf("got %v", err)
	}
}

func TestPrepare(t *testing.T) {
	script := []byte("x = 1\n")
	src := catalog.SourceFunc(func(_ context.Context, loc catalog.Location) (*catalog.Content, error) {
		switch loc.Ref {
		case "ok":
			return &catalog.Content{Body: io.NopCloser(bytes.NewReader(script))}, nil
		case "bad":
			return &catalog.Content{Body: io.NopCloser(strings.NewReader("def f(:\n"))}, nil
		case "name":
			return &catalog.Content{Body: io.NopCloser(strings.NewReader("x = undefined_name\n"))}, nil
		}
		return nil, fs.ErrNotExist
	})
	star := func(ref string, d digest.Digest) catalog.Runtime {
		return catalog.Runtime{Starlark: &catalog.Starlark{URI: ref, Location: catalog.Location{Scheme: "https", Ref: ref}, Digest: d}}
	}
	x := &Executor{Source: src}
	for _, tt := range []struct {
		name string
		rt   catalog.Runtime
		is   error
		text string
	}{
		{"ok", star("ok", digest.FromBytes(script)), nil, ""},
		{"other", catalog.Runtime{Exec: &catalog.Exec{}}, errors.ErrUnsupported, ""},
		{"no digest", star("ok", ""), catalog.ErrNoDigest, "ok"},
		{"wrong digest", star("ok", digest.FromString("x")), runtime.ErrIntegrity, "the document says"},
		{"missing", star("gone", digest.FromString("x")), fs.ErrNotExist, "fetching script"},
		{"syntax", star("bad", digest.FromString("def f(:\n")), nil, "bad:1:"},
		{"undefined", star("name", digest.FromString("x = undefined_name\n")), nil, "undefined_name"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := x.Prepare(t.Context(), tt.rt, runtime.Grants{}, runtime.Limits{})
			switch {
			case tt.is == nil && tt.text == "":
				if err != nil {
					t.Error(err)
				}
			case err == nil || tt.is != nil && !errors.Is(err, tt.is) || !strings.Contains(err.Error(), tt.text):
				t.Errorf("got %v", err)
			}
		})
	}
}

// The worker does not trust what it is told.
func TestWork(t *testing.T) {
	for _, in := range []string{"", "x\n", "{}\n", `{"size": 10}` + "\nshort", `{"size": 99999999}` + "\n", `{"size": -1}` + "\n"} {
		var errs bytes.Buffer
		if code := Work(t.Context(), strings.NewReader(in), io.Discard, &errs); code == 0 || errs.Len() == 0 {
			t.Errorf("%q: code %d, %q", in, code, errs.String())
		}
	}
}
