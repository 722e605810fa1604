package starlarkfn

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	starjson "go.starlark.net/lib/json"
	starmath "go.starlark.net/lib/math"
	"go.starlark.net/starlark"
	"go.yaml.in/yaml/v3"
	"sigs.k8s.io/kustomize/kyaml/openapi"

	"github.com/krmcat/krmcat/runtime/resourcelist"
)

// errReported means that the script's results say what is wrong.
var errReported = errors.New("the results of the script have errors")

// predeclared are the names that a script finds.
var predeclared = map[string]bool{"ctx": true, "log": true, "json": true, "math": true}

func isUniversal(name string) bool { _, ok := starlark.Universe[name]; return ok }

// execute runs a script over a ResourceList and returns the changed one. Items
// that the script did not change keep their bytes.
func execute(ctx context.Context, j job, script, input []byte, stderr io.Writer) ([]byte, error) {
	list, err := resourcelist.Read(input, resourcelist.ReadOptions{})
	if err != nil {
		return nil, fmt.Errorf("reading the input: %w", err)
	}
	rl, back, err := toList(list)
	if err != nil {
		return nil, err
	}
	thread := &starlark.Thread{Name: j.Name, Print: func(_ *starlark.Thread, msg string) { fmt.Fprintln(stderr, msg) }}
	steps := j.MaxSteps
	if steps == 0 {
		steps = DefaultMaxSteps
	}
	thread.SetMaxExecutionSteps(steps)
	stop := context.AfterFunc(ctx, func() { thread.Cancel("the function was stopped") })
	defer stop()
	env := starlark.StringDict{
		"ctx":  &scriptContext{list: rl, env: j.Env},
		"log":  starlark.NewBuiltin("log", logTo(stderr)),
		"json": starjson.Module,
		"math": starmath.Module,
	}
	if _, err := starlark.ExecFileOptions(options, thread, j.Name, script, env); err != nil {
		if ee, ok := errors.AsType[*starlark.EvalError](err); ok {
			return nil, errors.New(explain(ee))
		}
		return nil, err
	}
	out, err := fromList(list, rl, back)
	if err != nil {
		return nil, err
	}
	text, err := resourcelist.Compose(out)
	if err != nil {
		return nil, err
	}
	if resourcelist.HasErrors(out.Results) {
		return text, errReported
	}
	return text, nil
}

// explain is an error of a script after the places that led to it, so that
// the last line says what is wrong.
func explain(ee *starlark.EvalError) string {
	var b strings.Builder
	for _, f := range ee.CallStack {
		if f.Pos.Filename() != "<builtin>" {
			fmt.Fprintf(&b, "%s: in %s\n", f.Pos, f.Name)
		}
	}
	return b.String() + ee.Msg
}

// logTo is the function log: its arguments on a line of standard error.
func logTo(w io.Writer) func(*starlark.Thread, *starlark.Builtin, starlark.Tuple, []starlark.Tuple) (starlark.Value, error) {
	return func(_ *starlark.Thread, _ *starlark.Builtin, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error) {
		var parts []string
		for _, a := range args {
			if s, ok := starlark.AsString(a); ok {
				parts = append(parts, s)
				continue
			}
			parts = append(parts, a.String())
		}
		for _, kv := range kwargs {
			parts = append(parts, string(kv[0].(starlark.String))+"="+kv[1].String())
		}
		fmt.Fprintln(w, strings.Join(parts, " "))
		return starlark.None, nil
	}
}

// scriptContext is ctx. The OpenAPI definitions are large, and made only for
// the scripts that use them.
type scriptContext struct {
	list    *starlark.Dict
	env     []string
	openAPI starlark.Value
}

var _ starlark.HasAttrs = (*scriptContext)(nil)

func (c *scriptContext) String() string        { return "ctx" }
func (c *scriptContext) Type() string          { return "ctx" }
func (c *scriptContext) Freeze()               {}
func (c *scriptContext) Truth() starlark.Bool  { return true }
func (c *scriptContext) Hash() (uint32, error) { return 0, errors.New("ctx is not hashable") }
func (c *scriptContext) AttrNames() []string {
	return []string{"environment", "open_api", "resource_list"}
}

// Attr returns a part of ctx.
func (c *scriptContext) Attr(name string) (starlark.Value, error) {
	switch name {
	case "resource_list":
		return c.list, nil
	case "environment":
		d := starlark.NewDict(len(c.env))
		for _, e := range c.env {
			k, v, _ := strings.Cut(e, "=")
			if err := d.SetKey(starlark.String(k), starlark.String(v)); err != nil {
				return nil, err
			}
		}
		d.Freeze()
		return d, nil
	case "open_api":
		if c.openAPI == nil {
			v, err := openAPIValue()
			if err != nil {
				return nil, fmt.Errorf("open_api: %w", err)
			}
			c.openAPI = v
		}
		return c.openAPI, nil
	}
	return nil, nil
}

// openAPIValue turns the definitions into values by way of YAML, which JSON
// is: its keys keep their order then.
func openAPIValue() (starlark.Value, error) {
	text, err := json.Marshal(openapi.Schema())
	if err != nil {
		return nil, err
	}
	var any any
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	if err := dec.Decode(&any); err != nil {
		return nil, err
	}
	v, err := fromJSON(any)
	if err != nil {
		return nil, err
	}
	v.Freeze()
	return v, nil
}

// toList makes the value of ctx.resource_list, and remembers which value is
// which item.
func toList(l *resourcelist.List) (*starlark.Dict, map[starlark.Value]*resourcelist.Item, error) {
	rl := starlark.NewDict(4)
	back := make(map[starlark.Value]*resourcelist.Item, len(l.Items))
	items := make([]starlark.Value, len(l.Items))
	for i, it := range l.Items {
		n, err := it.Node()
		if err != nil {
			return nil, nil, err
		}
		v, err := toValue(n, 0)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", it.Meta().ID(), err)
		}
		items[i] = v
		back[v] = it
	}
	set := func(k string, v starlark.Value) error { return rl.SetKey(starlark.String(k), v) }
	err := errors.Join(
		set("apiVersion", starlark.String(l.APIVersion)),
		set("kind", starlark.String(resourcelist.Kind)),
		set("items", starlark.NewList(items)))
	if err == nil && len(l.FunctionConfig) > 0 {
		var d yaml.Node
		if err := yaml.Unmarshal(l.FunctionConfig, &d); err != nil {
			return nil, nil, fmt.Errorf("functionConfig: %w", err)
		}
		v, err := toValue(&d, 0)
		if err != nil {
			return nil, nil, fmt.Errorf("functionConfig: %w", err)
		}
		if err := set("functionConfig", v); err != nil {
			return nil, nil, err
		}
	}
	return rl, back, err
}

// fromList reads what the script made of ctx.resource_list.
func fromList(in *resourcelist.List, rl *starlark.Dict, back map[starlark.Value]*resourcelist.Item) (*resourcelist.List, error) {
	out := &resourcelist.List{APIVersion: in.APIVersion, FunctionConfig: in.FunctionConfig}
	v, ok, err := rl.Get(starlark.String("items"))
	if err != nil || !ok {
		return nil, errors.New(`the script removed ctx.resource_list["items"]`)
	}
	items, ok := v.(starlark.Iterable)
	if !ok {
		return nil, fmt.Errorf(`ctx.resource_list["items"] is a %s, not a list`, v.Type())
	}
	it := items.Iterate()
	defer it.Done()
	seen := map[starlark.Value]bool{}
	var e starlark.Value
	for i := 0; it.Next(&e); i++ {
		d, ok := e.(*starlark.Dict)
		if !ok {
			return nil, fmt.Errorf(`ctx.resource_list["items"][%d] is a %s, not a dict`, i, e.Type())
		}
		item := back[d]
		if seen[d] {
			item = nil // the same dict twice is one item and one new one
		}
		seen[d] = true
		got, err := fromItem(d, item)
		if err != nil {
			return nil, fmt.Errorf(`ctx.resource_list["items"][%d]: %w`, i, err)
		}
		out.Items = append(out.Items, got)
	}
	if r, ok, _ := rl.Get(starlark.String("results")); ok && r != starlark.None {
		n, err := toNode(r, nil, 0)
		if err != nil {
			return nil, fmt.Errorf(`ctx.resource_list["results"]: %w`, err)
		}
		if out.Results, err = resourcelist.ResultsOf(n); err != nil {
			return nil, fmt.Errorf(`ctx.resource_list["results"]: %w`, err)
		}
	}
	return out, nil
}

func fromItem(d *starlark.Dict, item *resourcelist.Item) (*resourcelist.Item, error) {
	var old *yaml.Node
	if item != nil {
		var err error
		if old, err = item.Node(); err != nil {
			return nil, err
		}
		if sameValue(old, d, 0) {
			return item, nil
		}
	}
	n, err := toNode(d, old, 0)
	if err != nil {
		return nil, err
	}
	if item != nil {
		return item.Update(n)
	}
	text, err := resourcelist.Encode(n, resourcelist.Style{})
	if err != nil {
		return nil, err
	}
	return resourcelist.FromDocument(text, "", 0)
}
