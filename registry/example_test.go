package registry_test

import (
	"fmt"

	"github.com/krmcat/krmcat/registry"
)

func ExampleParseReference() {
	r, err := registry.ParseReference("oci://ghcr.io/acme/set-labels:v1.2.0")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(r.Host, r.Repository, r.Tag)
	_, err = registry.ParseReference("set-labels")
	fmt.Println(err)
	// Output:
	// ghcr.io acme/set-labels v1.2.0
	// reference "set-labels": no registry host and repository (write host/repository:tag)
}

func ExampleIsRelease() {
	for _, tag := range []string{"v1.2.0", "1.2.0-rc.1", "v1.2.0_v1_exec", "v1", "latest"} {
		fmt.Println(tag, registry.IsRelease(tag))
	}
	// Output:
	// v1.2.0 true
	// 1.2.0-rc.1 true
	// v1.2.0_v1_exec false
	// v1 false
	// latest false
}
