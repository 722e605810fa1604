package main

import (
	"regexp"
	"strings"

	"sigs.k8s.io/kustomize/kyaml/yaml"

	"github.com/krmcat/krmcat/examples/internal/fn"
)

// config is what a functionConfig says.
type config struct {
	labels         []label
	leaveSelectors bool
}

type label struct{ key, value string }

// readConfig reads a SetLabels, or a ConfigMap whose data are the labels. It
// returns a result for each field that is wrong.
func readConfig(o *fn.Object) (*config, []fn.Result, error) {
	r, err := fn.OpenConfig(o, "examples.krmcat.dev/v1 SetLabels", "v1 ConfigMap")
	if err != nil {
		return nil, nil, err
	}
	c := &config{}
	var path string
	var labels *yaml.Node
	if o.Kind() == "ConfigMap" {
		path = "data"
		labels = r.Mapping("", o.Node, "data")
	} else {
		r.Fields("", o.Node, "apiVersion", "kind", "metadata", "spec")
		spec := r.Mapping("", o.Node, "spec")
		r.Fields("spec", spec, "labels", "leaveSelectors")
		c.leaveSelectors = r.Bool("spec", spec, "leaveSelectors")
		path = "spec.labels"
		labels = r.Mapping("spec", spec, "labels")
	}
	for key, value := range fn.Fields(labels) {
		at := path + "." + key.Value
		if msg := checkKey(key.Value); msg != "" {
			r.Wrong(at, nil, "%s", msg)
		}
		v, ok := r.Text(at, value)
		if !ok {
			continue
		}
		if msg := checkValue(v); msg != "" {
			r.Wrong(at, value, "%s", msg)
		}
		c.labels = append(c.labels, label{key.Value, v})
	}
	if len(c.labels) == 0 && len(r.Results) == 0 {
		r.Wrong(path, nil, "no labels: name at least one")
	}
	return c, r.Results, nil
}

// What Kubernetes accepts as labels.
var (
	labelName  = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$`)
	dnsName    = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*$`)
	maxPrefix  = 253
	nameSyntax = "up to 63 letters, digits, dashes, underscores and dots, with a letter or digit at both ends"
)

// checkKey returns what is wrong with a label's key, or "".
func checkKey(key string) string {
	prefix, name, ok := strings.Cut(key, "/")
	if !ok {
		prefix, name = "", key
	} else if !dnsName.MatchString(prefix) || len(prefix) > maxPrefix {
		return "the prefix of a label is a DNS name such as app.kubernetes.io"
	}
	if !labelName.MatchString(name) {
		return "the name of a label is " + nameSyntax
	}
	return ""
}

// checkValue returns what is wrong with a label's value, or "".
func checkValue(v string) string {
	if v != "" && !labelName.MatchString(v) {
		return "the value of a label is empty or " + nameSyntax
	}
	return ""
}
