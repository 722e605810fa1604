package runtime_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/krmcat/krmcat/catalog"
	"github.com/krmcat/krmcat/catalog/source"
	"github.com/krmcat/krmcat/runtime"
	"github.com/krmcat/krmcat/runtime/containerfn"
	"github.com/krmcat/krmcat/runtime/execfn"
	"github.com/krmcat/krmcat/runtime/resourcelist"
	"github.com/krmcat/krmcat/runtime/starlarkfn"
	"github.com/krmcat/krmcat/schema"
)

// parse makes items of documents that come from no file.
func parse(docs ...string) ([]*resourcelist.Item, error) {
	var list []*resourcelist.Item
	for _, d := range docs {
		it, err := resourcelist.FromDocument([]byte(d), "", 0)
		if err != nil {
			return nil, err
		}
		list = append(list, it)
	}
	return list, nil
}

// An engine prepares the function of a definition with the first executor that
// can run one of its runtimes. What the function may do is what its definition
// declares and Grants give; here nothing.
func ExampleEngine() {
	ctx := context.Background()
	folder, err := os.MkdirTemp("", "example-")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(folder)
	const script = "for item in ctx.resource_list['items']:\n  item['metadata']['namespace'] = ctx.resource_list['functionConfig']['data']['namespace']\n"
	definition := `apiVersion: config.kubernetes.io/v1alpha1
kind: KRMFunctionDefinition
spec:
  group: example.com
  names: {kind: SetNamespace}
  versions:
  - name: v1
    runtime:
      starlark: {uri: ./main.star, sha256: ` + digest.FromString(script).Encoded() + `}
`
	file := filepath.Join(folder, "function.yaml")
	if err := errors.Join(os.WriteFile(file, []byte(definition), 0o600), os.WriteFile(filepath.Join(folder, "main.star"), []byte(script), 0o600)); err != nil {
		fmt.Println(err)
		return
	}

	files := &source.File{}
	loc, err := catalog.ParseLocation(file)
	if err != nil {
		fmt.Println(err)
		return
	}
	doc, err := catalog.Load(ctx, files, loc, catalog.ReadOptions{Level: schema.Consume})
	if err != nil {
		fmt.Println(err)
		return
	}
	engine := runtime.Engine{
		Executors: []runtime.Executor{
			&starlarkfn.Executor{Source: files},
			&containerfn.Executor{},
			&execfn.Executor{Source: files, Cache: filepath.Join(folder, "cache")},
		},
		Limits: runtime.Limits{Timeout: 10 * time.Second},
	}
	items, err := parse("apiVersion: v1\nkind: Service\nmetadata:\n  name: web # the shop\n")
	if err != nil {
		fmt.Println(err)
		return
	}
	for r := range doc.AsCatalog().Resolutions() {
		fn, err := engine.Prepare(ctx, r)
		if err != nil {
			fmt.Println(err)
			return
		}
		config := []byte("apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: config\ndata:\n  namespace: shop\n")
		p := runtime.Pipeline{Steps: []runtime.Step{{Name: r.Definition.Kind, Function: fn, Config: config}}}
		out, err := p.Run(ctx, items)
		if err != nil {
			fmt.Println(err)
			return
		}
		for _, it := range out.Items {
			text, err := resourcelist.Strip(it)
			if err != nil {
				fmt.Println(err)
				return
			}
			fmt.Print(string(text))
		}
	}
	// Output:
	// apiVersion: v1
	// kind: Service
	// metadata:
	//   name: web # the shop
	//   namespace: shop
}

// A function that fails says why in results, on standard error, or both; each
// finding is there once.
func ExampleFunctionError() {
	check := runtime.FunctionFunc(func(_ context.Context, stdio runtime.Stdio) error {
		fmt.Fprint(stdio.Stdout, `apiVersion: config.kubernetes.io/v1
kind: ResourceList
items: []
results:
- message: replicas must be odd
  severity: error
  resourceRef: {apiVersion: apps/v1, kind: Deployment, name: web}
  field: {path: spec.replicas}
`)
		fmt.Fprint(stdio.Stderr, "read 1 resource\n[error] apps/v1/Deployment web: replicas must be odd\n")
		return &runtime.FunctionError{Name: "check", ExitCode: 1}
	})
	p := runtime.Pipeline{Steps: []runtime.Step{{Name: "check", Function: check, Validator: true}}}
	out, err := p.Run(context.Background(), nil)
	if failed, ok := errors.AsType[*runtime.FunctionError](err); ok {
		fmt.Println("exit code", failed.ExitCode)
	}
	for _, s := range out.Steps {
		fmt.Print(s.Stderr)
		for _, r := range s.Results {
			fmt.Println(r.Text())
		}
	}
	// Output:
	// exit code 1
	// read 1 resource
	// [error] apps/v1/Deployment web spec.replicas: replicas must be odd
}

// Selectors choose what a function sees; the rest stays as it is.
func ExampleSelector() {
	items, err := parse(
		"apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: web\nspec:\n  replicas: 1\n",
		"apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: test\n  labels: {tier: test}\nspec:\n  replicas: 1\n",
		"apiVersion: v1\nkind: Service\nmetadata:\n  name: web\n",
	)
	if err != nil {
		fmt.Println(err)
		return
	}
	scale, err := (&starlarkfn.Executor{}).Script("scale.star", []byte("for i in ctx.resource_list['items']:\n  i['spec']['replicas'] = 3\n"), runtime.Grants{}, runtime.Limits{})
	if err != nil {
		fmt.Println(err)
		return
	}
	p := runtime.Pipeline{Steps: []runtime.Step{{
		Name:     "scale",
		Function: scale,
		Include:  []runtime.Selector{{Kind: "Deployment"}},
		Exclude:  []runtime.Selector{{Labels: map[string]string{"tier": "test"}}},
	}}}
	out, err := p.Run(context.Background(), items)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, it := range out.Items {
		fmt.Println(it.Meta().ID(), strings.Contains(string(it.Wire()), "replicas: 3"))
	}
	// Output:
	// apps/v1/Deployment web true
	// apps/v1/Deployment test false
	// v1/Service web false
}
