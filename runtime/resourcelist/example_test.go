package resourcelist_test

import (
	"fmt"

	"github.com/krmcat/krmcat/runtime/resourcelist"
)

// A function returned a resource reformatted, with a changed value and
// without comments. What is written differs from the file in that value only.
func ExamplePreserve() {
	file := []byte(`# The web server.
apiVersion: apps/v1
kind: Deployment
metadata: {name: "web"}
spec:
  replicas:   3   # enough
`)
	changed, err := resourcelist.FromDocument([]byte("kind: Deployment\napiVersion: apps/v1\nmetadata:\n  name: web\nspec:\n  replicas: 5\n"), "", 0)
	if err != nil {
		fmt.Println(err)
		return
	}
	text, err := resourcelist.Preserve(file, changed)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Print(string(text))
	// Output:
	// # The web server.
	// apiVersion: apps/v1
	// kind: Deployment
	// metadata: {name: "web"}
	// spec:
	//   replicas:   5   # enough
}

func ExampleRead() {
	list, err := resourcelist.Read([]byte(`apiVersion: config.kubernetes.io/v1
kind: ResourceList
items:
- apiVersion: v1
  kind: Service
  metadata:
    name: web
    namespace: shop
results:
- message: port 80 is not encrypted
  severity: warning
`), resourcelist.ReadOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, it := range list.Items {
		fmt.Println(it.Meta().ID())
	}
	for _, r := range list.Results {
		fmt.Println(r.Text())
	}
	// Output:
	// v1/Service shop/web
	// [warning] port 80 is not encrypted
}
