package catalog_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"

	"github.com/krmcat/krmcat/catalog"
	"github.com/krmcat/krmcat/schema"
)

const exampleCatalog = `apiVersion: config.kubernetes.io/v1alpha1
kind: KRMFunctionCatalog
metadata:
  name: example
spec:
  krmFunctions:
  - group: example.com
    names:
      kind: SetLabels
    versions:
    - name: v1
      runtime:
        container:
          image: registry.example.com/set-labels:v1.2.3
          sha256: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
`

func ExampleParseLocation() {
	for _, s := range []string{
		"catalog.yaml",
		"HTTPS://Example.com:443/catalog.yaml",
		"https://github.com/acme/functions?ref=v1",
		"oci://registry.example.com/acme/catalog",
		"https://user:secret@example.com/catalog.yaml",
	} {
		l, err := catalog.ParseLocation(s)
		if err != nil {
			fmt.Println("error:", err)
			continue
		}
		fmt.Println(l.Scheme, l)
	}
	// Output:
	// file catalog.yaml
	// https https://example.com/catalog.yaml
	// git https://github.com/acme/functions//catalog.yaml?ref=v1
	// oci oci://registry.example.com/acme/catalog:latest
	// error: location "https://…@example.com/catalog.yaml": credentials in a URL are not accepted: documents over https are read anonymously
}

// A function is found by the apiVersion and kind of its functionConfig, in
// catalogs that are fetched when the search comes to them.
func ExampleList() {
	src := catalog.SourceFunc(func(_ context.Context, loc catalog.Location) (*catalog.Content, error) {
		if loc.String() != "https://example.com/catalog.yaml" {
			return nil, fmt.Errorf("%s: %w", loc, fs.ErrNotExist)
		}
		return &catalog.Content{Body: io.NopCloser(strings.NewReader(exampleCatalog)), Size: -1, Location: loc}, nil
	})
	loc, err := catalog.ParseLocation("https://example.com/catalog.yaml")
	if err != nil {
		fmt.Println(err)
		return
	}
	list := &catalog.List{
		Entries: []*catalog.Entry{catalog.NewEntry(loc)},
		Source:  src,
		Options: catalog.ReadOptions{Level: schema.Consume},
	}
	want := catalog.GVK("example.com/v1", "SetLabels")
	_, err = list.Resolve(context.Background(), want)
	fmt.Println(errors.Is(err, catalog.ErrUntrusted))

	list.Trust = &catalog.TrustList{Locations: []catalog.Location{loc}}
	r, err := list.Resolve(context.Background(), want)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(r.Version.Runtime.Container.Pinned())
	// Output:
	// true
	// registry.example.com/set-labels@sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
}

func ExampleRewrite() {
	out, err := catalog.Rewrite("function.yaml", []byte("runtime:\n  container: # portable\n    image: fn:v1\n"), []catalog.Edit{
		{Path: []any{"runtime", "container", "image"}, Value: "registry.example.com/fn@sha256:abc", Comment: "v1"},
		{Path: []any{"runtime", "container", "sha256"}, Value: "abc"},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Print(string(out))
	// Output:
	// runtime:
	//   container: # portable
	//     image: registry.example.com/fn@sha256:abc # v1
	//     sha256: abc
}
