package main

import (
	"fmt"
	"slices"
	"strings"

	"sigs.k8s.io/kustomize/kyaml/yaml"

	"github.com/krmcat/krmcat/examples/internal/fn"
)

// shape says where a kind of resource has labels besides its own.
type shape struct {
	// templates are the objects that get the labels because pods, jobs or
	// claims are made of them.
	templates [][]string
	// selector is the selector of what is made of the templates, or of pods
	// that something else makes. It is only added to, never made.
	selector []string
	// plain means that the selector is labels alone, without matchLabels.
	plain bool
	// claims is a list of templates that cannot be changed on a live object.
	claims []string
}

var pods = []string{"spec", "template"}

// shapes are the built-in kinds that have more than their own labels, by
// group and kind. Versions do not differ in this. A Job is not among those
// with a selector: Kubernetes makes it. The empty podSelector of a
// NetworkPolicy means all pods, as an empty selector of a PodDisruptionBudget
// does; they stay empty.
var shapes = map[string]shape{
	"apps Deployment":            {templates: [][]string{pods}, selector: []string{"spec", "selector"}},
	"apps ReplicaSet":            {templates: [][]string{pods}, selector: []string{"spec", "selector"}},
	"apps DaemonSet":             {templates: [][]string{pods}, selector: []string{"spec", "selector"}},
	"apps StatefulSet":           {templates: [][]string{pods}, selector: []string{"spec", "selector"}, claims: []string{"spec", "volumeClaimTemplates"}},
	"batch Job":                  {templates: [][]string{pods}},
	"batch CronJob":              {templates: [][]string{{"spec", "jobTemplate"}, {"spec", "jobTemplate", "spec", "template"}}},
	" PodTemplate":               {templates: [][]string{{"template"}}},
	" ReplicationController":     {templates: [][]string{pods}, selector: []string{"spec", "selector"}, plain: true},
	" Service":                   {selector: []string{"spec", "selector"}, plain: true},
	"policy PodDisruptionBudget": {selector: []string{"spec", "selector"}},
	"networking.k8s.io NetworkPolicy": {
		selector: []string{"spec", "podSelector"},
	},
}

// apply sets the labels on one resource. It returns a warning for each label
// that a template cannot get without losing its selector.
func (c *config) apply(o *fn.Object) []fn.Result {
	s := shapes[o.Group()+" "+o.Kind()]
	results := c.setOn(o, o.Node, nil, nil)
	selector := fn.Get(o.Node, s.selector...)
	if s.selector == nil || selector != nil && selector.Kind != yaml.MappingNode {
		selector = nil
	}
	var keep []string // labels that the selector holds on to
	if len(s.templates) > 0 && selector != nil {
		keep = c.held(selector, s.plain)
	}
	for _, path := range s.templates {
		if t := fn.Get(o.Node, path...); t != nil && t.Kind == yaml.MappingNode {
			results = append(results, c.setOn(o, t, path, keep)...)
		}
	}
	if c.leaveSelectors {
		return results
	}
	if selector != nil {
		c.setSelector(selector, s, keep)
	}
	for i, claim := range fn.Elements(fn.Get(o.Node, s.claims...)) {
		if s.claims != nil && claim.Kind == yaml.MappingNode {
			results = append(results, c.setOn(o, claim, []string{fn.At(strings.Join(s.claims, "."), i)}, nil)...)
		}
	}
	return results
}

// held are the keys of labels whose value a selector requires and this
// function does not change there.
func (c *config) held(selector *yaml.Node, plain bool) []string {
	var keys []string
	if c.leaveSelectors {
		labels := selector
		if !plain {
			labels = fn.Get(selector, "matchLabels")
		}
		for _, l := range c.labels {
			if v := fn.Get(labels, l.key); v != nil && v.Value != l.value {
				keys = append(keys, l.key)
			}
		}
	}
	for _, e := range fn.Elements(fn.Get(selector, "matchExpressions")) {
		if !plain {
			keys = append(keys, fn.String(e, "key"))
		}
	}
	return keys
}

// setSelector adds the labels to a selector that selects something already.
func (c *config) setSelector(selector *yaml.Node, s shape, keep []string) {
	if len(selector.Content) == 0 {
		return
	}
	labels := selector
	if !s.plain {
		if labels = fn.Get(selector, "matchLabels"); labels == nil {
			if len(s.templates) == 0 {
				return // of pods that somebody else labels
			}
			labels = fn.Mapping()
			fn.Insert(selector, "matchLabels", labels)
		}
	}
	if labels.Kind != yaml.MappingNode {
		return
	}
	for _, l := range c.labels {
		if !slices.Contains(keep, l.key) {
			setLabel(labels, l)
		}
	}
}

// setOn sets metadata.labels of an object or of a template at a path in it,
// except for the keys in keep.
func (c *config) setOn(o *fn.Object, n *yaml.Node, path []string, keep []string) []fn.Result {
	at := strings.Join(append(slices.Clone(path), "metadata"), ".")
	metadata := fn.Get(n, "metadata")
	if metadata == nil || metadata.Kind == yaml.ScalarNode && metadata.ShortTag() == yaml.NodeTagNull {
		metadata = fn.Mapping()
		fn.Remove(n, "metadata")
		fn.Insert(n, "metadata", metadata, "apiVersion", "kind")
	}
	if metadata.Kind != yaml.MappingNode {
		return []fn.Result{fn.About(o, fn.Error, at, metadata, at+" is not an object, so that it cannot have labels")}
	}
	labels := fn.Get(metadata, "labels")
	if labels == nil || labels.Kind == yaml.ScalarNode && labels.ShortTag() == yaml.NodeTagNull {
		labels = fn.Mapping()
		fn.Remove(metadata, "labels")
		fn.Insert(metadata, "labels", labels, "name", "generateName", "namespace")
	}
	if labels.Kind != yaml.MappingNode {
		return []fn.Result{fn.About(o, fn.Error, at+".labels", labels, at+".labels is not an object")}
	}
	var results []fn.Result
	for _, l := range c.labels {
		if !slices.Contains(keep, l.key) {
			setLabel(labels, l)
			continue
		}
		if old := fn.Get(labels, l.key); old == nil || old.Value != l.value {
			results = append(results, fn.About(o, fn.Warning, at+".labels."+l.key, old,
				fmt.Sprintf("the label %s is left alone: with %s: %s the selector would not find the pods", l.key, l.key, l.value)))
		}
	}
	return results
}

// setLabel sets one label, and leaves it alone if it is right. An empty
// mapping that was written as {} is written in lines then.
func setLabel(labels *yaml.Node, l label) {
	if len(labels.Content) == 0 {
		labels.Style &^= yaml.FlowStyle
	}
	for key, value := range fn.Fields(labels) {
		if key.Value != l.key {
			continue
		}
		if value.Value != l.value || value.ShortTag() != yaml.NodeTagString {
			fn.SetScalar(value, l.value)
		}
		return
	}
	fn.Set(labels, l.key, fn.Scalar(l.value))
}
