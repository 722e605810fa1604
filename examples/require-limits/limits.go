package main

import (
	"fmt"
	"slices"
	"strings"

	"sigs.k8s.io/kustomize/kyaml/yaml"

	"github.com/krmcat/krmcat/examples/internal/fn"
)

// podSpecs are the paths of the pod specifications in the built-in kinds, by
// group and kind.
var podSpecs = map[string][]string{
	" Pod":                   {"spec"},
	" PodTemplate":           {"template", "spec"},
	" ReplicationController": {"spec", "template", "spec"},
	"apps Deployment":        {"spec", "template", "spec"},
	"apps ReplicaSet":        {"spec", "template", "spec"},
	"apps DaemonSet":         {"spec", "template", "spec"},
	"apps StatefulSet":       {"spec", "template", "spec"},
	"batch Job":              {"spec", "template", "spec"},
	"batch CronJob":          {"spec", "jobTemplate", "spec", "template", "spec"},
}

// validate returns what is wrong with the containers of a resource.
func (c *config) validate(o *fn.Object) []fn.Result {
	path, ok := podSpecs[o.Group()+" "+o.Kind()]
	if !ok {
		return nil
	}
	pod := fn.Get(o.Node, path...)
	var results []fn.Result
	for _, field := range []string{"initContainers", "containers"} {
		for i, n := range fn.Elements(fn.Get(pod, field)) {
			n = fn.Follow(n)
			at := fn.At(strings.Join(path, ".")+"."+field, i)
			name := fn.String(n, "name")
			if n.Kind != yaml.MappingNode {
				results = append(results, fn.About(o, c.severity, at, n, "the container is not an object"))
				continue
			}
			if slices.ContainsFunc(c.exempt, func(x exemption) bool { return x.matches(o, name) }) {
				continue
			}
			results = append(results, c.container(o, pod, n, at, name)...)
		}
	}
	return results
}

// container returns what is wrong with one container at a path of a resource.
func (c *config) container(o *fn.Object, pod, n *yaml.Node, at, name string) []fn.Result {
	var results []fn.Result
	wrong := func(field string, current *yaml.Node, format string, args ...any) {
		message := fmt.Sprintf("container %q: ", name) + fmt.Sprintf(format, args...)
		results = append(results, fn.About(o, c.severity, at+"."+field, current, message))
	}
	for _, kind := range []struct {
		field, what string
		resources   []string
	}{
		{"requests", "request", c.requests},
		{"limits", "limit", c.limits},
	} {
		for _, resource := range kind.resources {
			v := fn.Get(n, "resources", kind.field, resource)
			if fn.IsEmpty(v) && !fn.IsEmpty(fn.Get(pod, "resources", kind.field, resource)) {
				continue // the pod as a whole has it
			}
			switch {
			case kind.field == "requests" && fn.IsEmpty(v) && !fn.IsEmpty(fn.Get(n, "resources", "limits", resource)):
				// Kubernetes takes the limit as the request.
			case fn.IsEmpty(v):
				wrong("resources."+kind.field+"."+resource, v, "no %s %s", resource, kind.what)
			case v.Kind != yaml.ScalarNode:
				wrong("resources."+kind.field+"."+resource, v, "the %s %s is not a quantity", resource, kind.what)
			}
		}
	}
	if image := fn.Get(n, "image"); !c.allowUnpinned {
		if why := unpinned(fn.String(n, "image")); why != "" {
			wrong("image", image, "%s", why)
		}
	}
	return results
}

// unpinned says why an image can be another one tomorrow, or "" if it cannot
// be by its name.
func unpinned(image string) string {
	if image == "" {
		return "no image"
	}
	if strings.Contains(image, "@sha256:") {
		return ""
	}
	_, tag, ok := strings.Cut(image[strings.LastIndex(image, "/")+1:], ":")
	switch {
	case !ok:
		return fmt.Sprintf("image %s has no tag, which means latest: add a tag or a digest", image)
	case tag == "latest" || tag == "":
		return fmt.Sprintf("image %s is not pinned: replace latest by a version or a digest", image)
	}
	return ""
}
