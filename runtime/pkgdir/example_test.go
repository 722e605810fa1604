package pkgdir_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/krmcat/krmcat/runtime"
	"github.com/krmcat/krmcat/runtime/pkgdir"
	"github.com/krmcat/krmcat/runtime/starlarkfn"
)

// Read a folder, run a function over its resources, and write back what
// changed.
func Example() {
	folder, err := os.MkdirTemp("", "example-")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(folder)
	file := filepath.Join(folder, "web.yaml")
	if err := os.WriteFile(file, []byte("apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: web # ours\nspec:\n  replicas: 1\n"), 0o644); err != nil {
		fmt.Println(err)
		return
	}

	ctx := context.Background()
	dir, err := pkgdir.Read(ctx, folder)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer dir.Close()
	script := []byte("for item in ctx.resource_list['items']:\n  item['spec']['replicas'] = 3\n")
	triple, err := (&starlarkfn.Executor{}).Script("triple.star", script, runtime.Grants{}, runtime.Limits{})
	if err != nil {
		fmt.Println(err)
		return
	}
	p := runtime.Pipeline{Steps: []runtime.Step{{Name: "triple", Function: triple}}}
	out, err := p.Run(ctx, dir.Items)
	if err != nil {
		fmt.Println(err)
		return
	}
	changes, err := dir.Changes(out.Items)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, c := range changes {
		fmt.Printf("%s:\n%s", c.Path, c.After)
	}
	if err := dir.Apply(ctx, changes); err != nil {
		fmt.Println(err)
	}
	// Output:
	// web.yaml:
	// apiVersion: apps/v1
	// kind: Deployment
	// metadata:
	//   name: web # ours
	// spec:
	//   replicas: 3
}
