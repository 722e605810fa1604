package main

import (
	"slices"
	"strings"

	"sigs.k8s.io/kustomize/kyaml/yaml"

	"github.com/krmcat/krmcat/examples/internal/fn"
)

// config is what a functionConfig says.
type config struct {
	severity      string
	requests      []string // resources that need a request
	limits        []string // resources that need a limit
	allowUnpinned bool
	exempt        []exemption
}

// exemption are containers that nothing is required of. An empty field stands
// for all.
type exemption struct{ kind, namespace, name, container string }

func (x exemption) matches(o *fn.Object, container string) bool {
	return (x.kind == "" || x.kind == o.Kind()) &&
		(x.namespace == "" || x.namespace == o.Namespace()) &&
		(x.name == "" || x.name == o.Name()) &&
		(x.container == "" || x.container == container)
}

var defaultResources = []string{"cpu", "memory"}

// readConfig reads a RequireLimits. It returns a result for each field that is
// wrong.
func readConfig(o *fn.Object) (*config, []fn.Result, error) {
	r, err := fn.OpenConfig(o, "examples.krmcat.dev/v1 RequireLimits")
	if err != nil {
		return nil, nil, err
	}
	r.Fields("", o.Node, "apiVersion", "kind", "metadata", "spec")
	spec := r.Mapping("", o.Node, "spec")
	r.Fields("spec", spec, "severity", "requests", "limits", "allowUnpinnedImages", "exempt")
	c := &config{
		severity:      fn.Error,
		requests:      texts(r, spec, "requests", defaultResources),
		limits:        texts(r, spec, "limits", defaultResources),
		allowUnpinned: r.Bool("spec", spec, "allowUnpinnedImages"),
	}
	if v := fn.Get(spec, "severity"); v != nil {
		if s, ok := r.Text("spec.severity", v); ok {
			c.severity = s
			if !slices.Contains(fn.Severities, s) {
				r.Wrong("spec.severity", v, "%q is not one of %s", s, strings.Join(fn.Severities, ", "))
			}
		}
	}
	for i, n := range fn.Elements(r.Sequence("spec", spec, "exempt")) {
		c.exempt = append(c.exempt, readExemption(r, fn.At("spec.exempt", i), n))
	}
	return c, r.Results, nil
}

func readExemption(r *fn.ConfigReader, path string, n *yaml.Node) exemption {
	if fn.Follow(n).Kind != yaml.MappingNode {
		r.Wrong(path, n, "is not an object")
		return exemption{}
	}
	var x exemption
	fields := map[string]*string{"kind": &x.kind, "namespace": &x.namespace, "name": &x.name, "container": &x.container}
	r.Fields(path, n, "kind", "namespace", "name", "container")
	for key, value := range fn.Fields(n) {
		if to := fields[key.Value]; to != nil {
			*to, _ = r.Text(path+"."+key.Value, value)
		}
	}
	if x == (exemption{}) && len(r.Results) == 0 {
		r.Wrong(path, n, "exempts everything: name a kind, namespace, name or container")
	}
	return x
}

// texts reads a list of strings; the default if the field is not there. An
// empty list is one.
func texts(r *fn.ConfigReader, spec *yaml.Node, field string, otherwise []string) []string {
	list := r.Sequence("spec", spec, field)
	if list == nil {
		return otherwise
	}
	var out []string
	for i, n := range list.Content {
		if s, ok := r.Text(fn.At("spec."+field, i), n); ok {
			out = append(out, s)
		}
	}
	return out
}
