package conformance

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/krmcat/krmcat/runtime/resourcelist"
)

// maxWrong bounds how many wrong configurations are tried.
const maxWrong = 8

// wrongConfig checks that schema and function agree (C18): the example's own
// functionConfig is what the schema allows, and configurations that it does
// not allow are refused. Orchestrators that follow the schema never send
// those, so that accepting them is only worth knowing; crashing is not.
func (r *runner) wrongConfig(ctx context.Context, in *example, _ ran) {
	if in.config == nil || r.opts.Schema == nil || r.opts.Valid == nil {
		return
	}
	var schema, config map[string]any
	if json.Unmarshal(r.opts.Schema, &schema) != nil || yaml.Unmarshal(in.config, &config) != nil {
		return
	}
	r.checked("C18")
	if err := r.opts.Valid(ctx, in.config); err != nil {
		r.add("C18 KC-050 KC-054", Error, "the example's functionConfig is not what the schema allows: "+err.Error(), string(in.config))
		return
	}
	var accepted []string
	for _, w := range wrongConfigs(schema, config) {
		if ctx.Err() != nil {
			return
		}
		doc, err := yaml.Marshal(w.config)
		if err != nil || r.opts.Valid(ctx, doc) == nil {
			continue // the schema allows it after all
		}
		input, err := resourcelist.Compose(&resourcelist.List{APIVersion: in.list.APIVersion, Items: in.list.Items, FunctionConfig: doc})
		if err != nil {
			continue
		}
		got := r.once(ctx, input, doc)
		switch {
		case got.err != nil:
			return
		case got.hung:
			r.add("C18", Error, "with a functionConfig "+w.what+" the function does not end", string(doc))
			return
		case crashed(got.stderr):
			r.add("C18", Warning, "with a functionConfig "+w.what+" the function crashes instead of saying what is wrong", got.stderr)
		case got.exit == 0:
			accepted = append(accepted, w.what)
		}
	}
	if len(accepted) > 0 {
		r.add("C18", Info, "the function accepts functionConfigs that its schema does not allow", strings.Join(accepted, "\n"))
	}
}

type wrong struct {
	what   string
	config map[string]any
}

// wrongConfigs are variations of a configuration that a schema may not allow:
// without a required field, with a value of another type, with a field that
// the schema does not have.
func wrongConfigs(schema, config map[string]any) []wrong {
	var out []wrong
	try := func(what string, change func(parent map[string]any), at []string) {
		if len(out) == maxWrong {
			return
		}
		c := clone(config).(map[string]any)
		parent := c
		for _, f := range at {
			next, ok := parent[f].(map[string]any)
			if !ok {
				return
			}
			parent = next
		}
		change(parent)
		out = append(out, wrong{what, c})
	}
	var walk func(schema, value map[string]any, at []string)
	walk = func(schema, value map[string]any, at []string) {
		props, _ := schema["properties"].(map[string]any)
		required, _ := schema["required"].([]any)
		for _, f := range required {
			if name, ok := f.(string); ok && value[name] != nil && !head(at, name) {
				try("without "+dotted(at, name), func(p map[string]any) { delete(p, name) }, at)
			}
		}
		for _, name := range slices.Sorted(maps.Keys(props)) {
			sub, _ := props[name].(map[string]any)
			typ, _ := sub["type"].(string)
			if value[name] == nil || head(at, name) || typ == "" {
				continue
			}
			var other any = "wrong"
			if typ == "string" {
				other = []any{"wrong"}
			}
			try("whose "+dotted(at, name)+" is no "+typ, func(p map[string]any) { p[name] = other }, at)
			if next, ok := value[name].(map[string]any); ok && len(at) < 10 {
				walk(sub, next, append(slices.Clone(at), name))
			}
		}
		if len(props) > 0 {
			try("with a field "+dotted(at, "noSuchField"), func(p map[string]any) { p["noSuchField"] = "wrong" }, at)
		}
	}
	walk(schema, config, nil)
	return out
}

// head reports whether a field says what the object is; C21 changes those.
func head(at []string, name string) bool {
	return len(at) == 0 && (name == "apiVersion" || name == "kind" || name == "metadata")
}

func dotted(at []string, name string) string {
	return strings.Join(append(slices.Clone(at), name), ".")
}

func clone(v any) any {
	switch v := v.(type) {
	case map[string]any:
		m := make(map[string]any, len(v))
		for k, x := range v {
			m[k] = clone(x)
		}
		return m
	case []any:
		l := make([]any, len(v))
		for i, x := range v {
			l[i] = clone(x)
		}
		return l
	}
	return v
}

// many checks that the function copes with more resources than an example has
// (C24): copies of its items under other names.
func (r *runner) many(ctx context.Context, in *example, base ran) {
	if len(in.list.Items) == 0 {
		return
	}
	n := r.opts.Many
	if n == 0 {
		n = DefaultMany
	}
	r.checked("C24")
	items := make([]*resourcelist.Item, 0, n)
	for i := 0; len(items) < n; i++ {
		for _, it := range in.list.Items {
			if i == 0 {
				items = append(items, it)
				continue
			}
			c, err := copyOf(it, i)
			if err != nil {
				return
			}
			items = append(items, c)
			if len(items) == n {
				break
			}
		}
	}
	input, err := resourcelist.Compose(&resourcelist.List{APIVersion: in.list.APIVersion, Items: items, FunctionConfig: in.config})
	if err != nil {
		return
	}
	got := r.once(ctx, input, in.config)
	switch {
	case got.err != nil:
	case got.hung:
		r.add("C24", Warning, fmt.Sprintf("with %d resources the function does not end in time", n), got.stderr)
	case got.exit != base.exit || crashed(got.stderr):
		r.add("C24", Info, fmt.Sprintf("with %d resources the exit code is %d", n, got.exit), got.stderr)
	default:
		list, err := resourcelist.Read(got.stdout, resourcelist.ReadOptions{Before: items, FromFunction: true})
		if err != nil {
			r.add("C24", Warning, fmt.Sprintf("with %d resources the output is no ResourceList: %v", n, err), firstLines(got.stdout))
			return
		}
		if len(base.list.Items) == len(in.list.Items) && len(list.Items) < n {
			r.add("C24", Warning, fmt.Sprintf("of %d resources %d come back", n, len(list.Items)), firstLines(got.stdout))
		}
	}
}

// copyOf is a resource under another name and in another file.
func copyOf(it *resourcelist.Item, i int) (*resourcelist.Item, error) {
	doc, err := resourcelist.Strip(it)
	if err != nil {
		return nil, err
	}
	var d yaml.Node
	if err := yaml.Unmarshal(doc, &d); err != nil {
		return nil, err
	}
	if name := resourcelist.Get(resourcelist.Get(d.Content[0], "metadata"), "name"); name != nil {
		name.Value = fmt.Sprintf("%s-%d", name.Value, i)
	}
	text, err := resourcelist.Encode(d.Content[0], resourcelist.Style{})
	if err != nil {
		return nil, err
	}
	return resourcelist.FromDocument(text, fmt.Sprintf("copies/%d-%s.yaml", i, strings.ToLower(it.Meta().Kind+"-"+strings.ReplaceAll(it.Meta().Name, "/", "-"))), 0)
}

// bare checks that the function works on resources as they are in files and
// clusters, without an orchestrator's annotations (C29).
func (r *runner) bare(ctx context.Context, in *example, base ran) {
	if len(in.list.Items) == 0 {
		return
	}
	r.checked("C29")
	items := make([]*resourcelist.Item, len(in.list.Items))
	for i, it := range in.list.Items {
		doc, err := resourcelist.Strip(it)
		if err != nil {
			return
		}
		if items[i], err = resourcelist.FromDocument(doc, "", 0); err != nil {
			return
		}
	}
	input, err := resourcelist.Compose(&resourcelist.List{APIVersion: in.list.APIVersion, Items: items, FunctionConfig: in.config})
	if err != nil {
		return
	}
	got := r.once(ctx, input, in.config)
	const what = "without the orchestrator's annotations"
	switch {
	case got.err != nil:
	case got.hung || got.exit != base.exit || crashed(got.stderr):
		r.add("C29", Warning, fmt.Sprintf("%s the exit code is %d", what, got.exit), got.stderr)
	default:
		list, err := resourcelist.Read(got.stdout, resourcelist.ReadOptions{})
		if err != nil {
			r.add("C29", Warning, fmt.Sprintf("%s the output is no ResourceList: %v", what, err), firstLines(got.stdout))
			return
		}
		if d := differStripped(base.list.Items, list.Items); d != "" {
			r.add("C29", Warning, what+" the items are not the same", d)
		}
	}
}

// differStripped is differ without the orchestrator's annotations.
func differStripped(a, b []*resourcelist.Item) string {
	strip := func(items []*resourcelist.Item) string {
		out := make([]*resourcelist.Item, 0, len(items))
		for _, it := range sorted(items) {
			doc, err := resourcelist.Strip(it)
			if err != nil {
				continue
			}
			s, err := resourcelist.FromDocument(doc, "", 0)
			if err != nil {
				continue
			}
			out = append(out, s)
		}
		return values(out)
	}
	x, y := strip(a), strip(b)
	if x == y {
		return ""
	}
	return diffText(x, y)
}
