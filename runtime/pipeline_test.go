package runtime_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/krmcat/krmcat/catalog"
	"github.com/krmcat/krmcat/runtime"
	"github.com/krmcat/krmcat/runtime/fntest"
	"github.com/krmcat/krmcat/runtime/resourcelist"
)

// test is the test function in this process.
var test = runtime.FunctionFunc(func(_ context.Context, s runtime.Stdio) error {
	var errs bytes.Buffer
	if code := fntest.Function(s.Stdin, s.Stdout, io.MultiWriter(&errs, s.Stderr)); code != 0 {
		return &runtime.FunctionError{Name: "test", ExitCode: code, Stderr: errs.String()}
	}
	return nil
})

func step(do string) runtime.Step {
	return runtime.Step{Name: do, Function: test, Config: fntest.Config(do)}
}

func items(t testing.TB) []*resourcelist.Item {
	t.Helper()
	var list []*resourcelist.Item
	for i, text := range []string{
		"# one\napiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: web # here\n  annotations:\n    internal.config.kubernetes.io/other: keep\n    a: b\n",
		"apiVersion: v1\nkind: Service\nmetadata:\n  name: web\n  namespace: shop\n  labels: {tier: front}\n  annotations:\n    a: c\n",
	} {
		it, err := resourcelist.FromDocument([]byte(text), fmt.Sprintf("f%d.yaml", i), 0)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, it)
	}
	return list
}

func ids(list []*resourcelist.Item) []string {
	var out []string
	for _, it := range list {
		out = append(out, it.Meta().ID())
	}
	return out
}

func TestPipeline(t *testing.T) {
	in := items(t)
	p := runtime.Pipeline{Steps: []runtime.Step{step("annotate"), step("create"), {Name: "v", Function: test, Config: fntest.Config("validate"), Validator: true}, step("copy")}}
	out, err := p.Run(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]string{"apps/v1/Deployment web", "v1/Service shop/web", "v1/ConfigMap made"}, ids(out.Items)); d != "" {
		t.Error(d)
	}
	if out.Items[0].Origin() != in[0] || out.Items[2].Origin() != nil {
		t.Error("items do not know where they come from")
	}
	var names []string
	for _, s := range out.Steps {
		names = append(names, s.Name)
	}
	// Validators come last.
	if d := cmp.Diff([]string{"annotate", "create", "copy", "v"}, names); d != "" {
		t.Error(d)
	}
	if r := out.Steps[3].Results; len(r) != 1 || r[0].Message != "all is well" {
		t.Errorf("results: %+v", r)
	}
}

// Comments that a function loses are there again for the next one (FS-34).
func TestLostComments(t *testing.T) {
	var seen string
	look := runtime.FunctionFunc(func(_ context.Context, s runtime.Stdio) error {
		b, err := io.ReadAll(s.Stdin)
		seen = string(b)
		_, _ = s.Stdout.Write(b)
		return err
	})
	p := runtime.Pipeline{Steps: []runtime.Step{step("strip"), {Name: "look", Function: look}}}
	if _, err := p.Run(t.Context(), items(t)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []string{"# one", "# here"} {
		if !strings.Contains(seen, c) {
			t.Errorf("%s is lost in\n%s", c, seen)
		}
	}
}

// Every way in which a function can fail (issue: bad input and faults).
func TestFailures(t *testing.T) {
	for _, tt := range []struct {
		do   string
		is   error
		text string
	}{
		{"fail", nil, "function test exited with code 3: cannot do it: the frobnicator is missing"},
		{"missing-file", nil, "/nonexistent/settings.json: no such file"},
		{"invalid", nil, "exited with code 1"},
		{"error-exit-0", nil, "function error-exit-0 reported errors"},
		{"garbage", runtime.ErrOutput, `its output starts with "<html>`},
		{"logs", runtime.ErrOutput, `its output starts with "INFO starting"`},
		{"half", runtime.ErrOutput, "line "},
		{"empty", resourcelist.ErrEmpty, "output is empty"},
		{"bare", resourcelist.ErrNotResourceList, "kind ConfigMap"},
		{"other-kind", resourcelist.ErrNotResourceList, "kind List"},
		{"two", resourcelist.ErrNotResourceList, "more than one document"},
		{"utf8", runtime.ErrOutput, "not valid UTF-8"},
		{"no-items", runtime.ErrOutput, "would delete 2 resources"},
		{"escape", runtime.ErrOutput, "leaves the folder"},
		{"absolute", runtime.ErrOutput, "is absolute"},
		{"collide", runtime.ErrOutput, "same.yaml index 0"},
		{"internal", resourcelist.ErrInternal, `from "keep" to "changed"`},
	} {
		t.Run(tt.do, func(t *testing.T) {
			p := runtime.Pipeline{Steps: []runtime.Step{step(tt.do)}}
			out, err := p.Run(t.Context(), items(t))
			if err == nil || tt.is != nil && !errors.Is(err, tt.is) || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("got %v", err)
			}
			if len(out.Steps) != 1 {
				t.Errorf("%d outcomes", len(out.Steps))
			}
		})
	}
}

// Each finding is said once: in its result, not on standard error again, and
// not in the error. What else is on standard error is there once, too.
func TestSaidOnce(t *testing.T) {
	for _, tt := range []struct {
		do, stderr, kept, err string
	}{
		{"said-twice", "looking at 1 resource\n", "looking at 1 resource\ngiving up\n", "function test exited with code 1: giving up"},
		{"fail", "", "cannot do it: the frobnicator is missing\n", "function test exited with code 3: cannot do it: the frobnicator is missing"},
		{"invalid", "", "", "function test exited with code 1 and reported errors"},
		{"logs-on-stderr", "unknown: do \"logs-on-stderr\"\n", "unknown: do \"logs-on-stderr\"\n", ""},
	} {
		t.Run(tt.do, func(t *testing.T) {
			var stderr bytes.Buffer
			s := step(tt.do)
			if tt.err == "" { // succeeds, and says something
				s.Function = runtime.FunctionFunc(func(ctx context.Context, stdio runtime.Stdio) error {
					_ = test(ctx, runtime.Stdio{Stdin: strings.NewReader(string(fntest.List(tt.do))), Stdout: io.Discard, Stderr: stdio.Stderr})
					_, err := io.Copy(stdio.Stdout, stdio.Stdin)
					return err
				})
			}
			out, err := (&runtime.Pipeline{Steps: []runtime.Step{s}, Stderr: &stderr}).Run(t.Context(), items(t))
			if got := stderr.String(); got != tt.stderr {
				t.Errorf("standard error %q, want %q", got, tt.stderr)
			}
			if got := out.Steps[0].Stderr; got != tt.kept {
				t.Errorf("outcome has %q, want %q", got, tt.kept)
			}
			if got := fmt.Sprint(err); tt.err != "" && got != tt.err {
				t.Errorf("error %q, want %q", got, tt.err)
			}
		})
	}
}

// All validators that fail are in the error.
func TestValidatorsFail(t *testing.T) {
	a, b := step("fail"), step("missing-file")
	a.Validator, b.Validator = true, true
	_, err := (&runtime.Pipeline{Steps: []runtime.Step{a, b}}).Run(t.Context(), items(t))
	if err == nil || !strings.Contains(err.Error(), "frobnicator") || !strings.Contains(err.Error(), "settings.json") {
		t.Errorf("got %v", err)
	}
}

func TestDeferFailure(t *testing.T) {
	p := runtime.Pipeline{Steps: []runtime.Step{step("fail"), step("invalid"), step("create")}}
	out, err := p.Run(t.Context(), items(t))
	if len(out.Steps) != 1 || err == nil {
		t.Errorf("without: %d steps, %v", len(out.Steps), err)
	}
	p.DeferFailure = true
	out, err = p.Run(t.Context(), items(t))
	if len(out.Steps) != 3 || len(out.Items) != 3 || len(out.Steps[1].Results) != 1 {
		t.Errorf("with: %d steps, %d items", len(out.Steps), len(out.Items))
	}
	if err == nil || !strings.Contains(err.Error(), "code 3") || !strings.Contains(err.Error(), "code 1") {
		t.Errorf("got %v", err)
	}
}

func TestSelectors(t *testing.T) {
	for _, tt := range []struct {
		name             string
		include, exclude []runtime.Selector
		want             []string
	}{
		{"all", nil, nil, []string{"Deployment", "Service"}},
		{"kind", []runtime.Selector{{Kind: "Service"}}, nil, []string{"Service"}},
		{"either", []runtime.Selector{{Kind: "Service"}, {APIVersion: "apps/v1"}}, nil, []string{"Deployment", "Service"}},
		{"both", []runtime.Selector{{Kind: "Service", Name: "other"}}, nil, nil},
		{"namespace", []runtime.Selector{{Namespace: "shop"}}, nil, []string{"Service"}},
		{"labels", []runtime.Selector{{Labels: map[string]string{"tier": "front"}}}, nil, []string{"Service"}},
		{"annotations", []runtime.Selector{{Annotations: map[string]string{"a": "b"}}}, nil, []string{"Deployment"}},
		{"exclude", nil, []runtime.Selector{{Kind: "Service"}}, []string{"Deployment"}},
		{"include and exclude", []runtime.Selector{{Name: "web"}}, []runtime.Selector{{Kind: "Deployment"}}, []string{"Service"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var seen []string
			fn := runtime.FunctionFunc(func(_ context.Context, s runtime.Stdio) error {
				b, err := io.ReadAll(s.Stdin)
				if err != nil {
					return err
				}
				l, err := resourcelist.Read(b, resourcelist.ReadOptions{})
				if err != nil {
					return err
				}
				for _, it := range l.Items {
					seen = append(seen, it.Meta().Kind)
				}
				_, _ = s.Stdout.Write(b)
				return nil
			})
			p := runtime.Pipeline{Steps: []runtime.Step{{Name: "f", Function: fn, Include: tt.include, Exclude: tt.exclude}}}
			out, err := p.Run(t.Context(), items(t))
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(tt.want, seen); d != "" {
				t.Error(d)
			}
			if len(out.Items) != 2 {
				t.Errorf("%d items come out", len(out.Items))
			}
		})
	}
}

// What a function does to the chosen items goes where they were.
func TestSelectedChanges(t *testing.T) {
	in := items(t)
	s := step("annotate")
	s.Include = []runtime.Selector{{Kind: "Service"}}
	d := step("delete")
	d.Include = []runtime.Selector{{Kind: "Deployment"}}
	c := step("create")
	c.Include = s.Include
	out, err := (&runtime.Pipeline{Steps: []runtime.Step{s, c}}).Run(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]string{"apps/v1/Deployment web", "v1/Service shop/web", "v1/ConfigMap made"}, ids(out.Items)); d != "" {
		t.Error(d)
	}
	if out.Items[0] != in[0] || out.Items[1] == in[1] {
		t.Error("the wrong item is changed")
	}
	out, err = (&runtime.Pipeline{Steps: []runtime.Step{d}}).Run(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]string{"v1/Service shop/web"}, ids(out.Items)); d != "" {
		t.Error(d)
	}
}

// What validators do to items does not count.
func TestValidatorsChangeNothing(t *testing.T) {
	in := items(t)
	v := step("delete")
	v.Validator = true
	out, err := (&runtime.Pipeline{Steps: []runtime.Step{v, v, v}}).Run(t.Context(), in)
	if err != nil || len(out.Items) != 2 || len(out.Steps) != 3 {
		t.Errorf("got %d items, %d steps, %v", len(out.Items), len(out.Steps), err)
	}
}

func TestAPIVersions(t *testing.T) {
	for _, v := range []string{"", resourcelist.APIVersionV1beta1, resourcelist.APIVersionV1alpha1} {
		var sent string
		fn := runtime.FunctionFunc(func(_ context.Context, s runtime.Stdio) error {
			b, err := io.ReadAll(s.Stdin)
			sent, _, _ = strings.Cut(string(b), "\n")
			_, _ = s.Stdout.Write(b)
			return err
		})
		if _, err := (&runtime.Pipeline{APIVersion: v, Steps: []runtime.Step{{Name: "f", Function: fn}}}).Run(t.Context(), items(t)); err != nil {
			t.Fatal(err)
		}
		if v == "" {
			v = resourcelist.APIVersion
		}
		if sent != "apiVersion: "+v {
			t.Errorf("sent %q, want %s", sent, v)
		}
	}
}

type fakeExecutor struct{ err error }

func (f fakeExecutor) Prepare(context.Context, catalog.Runtime, runtime.Grants, runtime.Limits) (runtime.Function, error) {
	return test, f.err
}

func TestEngine(t *testing.T) {
	for _, tt := range []struct {
		name string
		ex   []runtime.Executor
		is   error
	}{
		{"none", nil, errors.ErrUnsupported},
		{"other kinds", []runtime.Executor{fakeExecutor{errors.ErrUnsupported}}, errors.ErrUnsupported},
		{"second", []runtime.Executor{fakeExecutor{errors.ErrUnsupported}, fakeExecutor{}}, nil},
		{"not here, but there", []runtime.Executor{fakeExecutor{runtime.ErrUnavailable}, fakeExecutor{}}, nil},
		{"not granted", []runtime.Executor{fakeExecutor{&runtime.GrantError{Name: "f", Needs: "exec"}}, fakeExecutor{errors.ErrUnsupported}}, runtime.ErrNotGranted},
		{"wrong digest ends it", []runtime.Executor{fakeExecutor{runtime.ErrIntegrity}, fakeExecutor{}}, runtime.ErrIntegrity},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := runtime.Engine{Executors: tt.ex}
			_, err := e.Prepare(t.Context(), &catalog.Resolution{Definition: &catalog.Definition{Group: "g", Kind: "K"}, Version: &catalog.Version{Name: "v1"}})
			if !errors.Is(err, tt.is) {
				t.Errorf("got %v, want %v", err, tt.is)
			}
		})
	}
}

func ExamplePipeline() {
	item, err := resourcelist.FromDocument([]byte("apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name:   settings # of the shop\ndata:\n  colour: red\n"), "settings.yaml", 0)
	if err != nil {
		fmt.Println(err)
		return
	}
	// A function reads a ResourceList and writes one.
	repaint := runtime.FunctionFunc(func(_ context.Context, stdio runtime.Stdio) error {
		in, err := io.ReadAll(stdio.Stdin)
		if err != nil {
			return err
		}
		_, err = stdio.Stdout.Write(bytes.ReplaceAll(in, []byte("red"), []byte("green")))
		return err
	})
	p := runtime.Pipeline{Steps: []runtime.Step{{Name: "repaint", Function: repaint}}}
	out, err := p.Run(context.Background(), []*resourcelist.Item{item})
	if err != nil {
		fmt.Println(err)
		return
	}
	text, err := resourcelist.Strip(out.Items[0])
	if err != nil {
		fmt.Println(err)
		return
	}
	_, _ = os.Stdout.Write(text)
	// Output:
	// apiVersion: v1
	// kind: ConfigMap
	// metadata:
	//   name:   settings # of the shop
	// data:
	//   colour: green
}
