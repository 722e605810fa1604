// Package fn is what the example functions share: it reads a ResourceList
// from standard input, hands it to a function and writes the answer.
//
// It works on YAML nodes and never on structs, so that comments, the order of
// fields and fields that it does not know stay as they are.
package fn

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"sigs.k8s.io/kustomize/kyaml/yaml"
)

// MaxInput is the size in bytes up to which a ResourceList is read.
const MaxInput = 256 << 20

// Versions are the apiVersions of a ResourceList that functions read. They
// answer in the one they were asked in.
var Versions = []string{
	"config.kubernetes.io/v1",
	"config.kubernetes.io/v1beta1",
	"config.kubernetes.io/v1alpha1",
}

// List is a ResourceList.
type List struct {
	// Config is the functionConfig; nil if there is none.
	Config *Object
	// Items are the resources. A function changes their nodes in place, or
	// puts others here.
	Items []*Object
	// Results are what the function reports.
	Results []Result

	root *yaml.Node // the mapping
	wide bool       // sequences are indented under their key
}

// A Func does the work of a function. An error is a failure that is not about
// one resource; what is wrong with resources or with the functionConfig
// becomes a result.
type Func func(*List) error

// Run is the body of a function's main: it returns the exit code. A result of
// severity error makes it 1, as does an input that is no ResourceList; the
// latter leaves stdout empty.
func Run(name string, stdin io.Reader, stdout, stderr io.Writer, f Func) int {
	list, err := Read(stdin)
	if err != nil {
		fmt.Fprintf(stderr, "%s: %v\n", name, err)
		return 1
	}
	if err := f(list); err != nil {
		list.Results = append(list.Results, Result{Message: err.Error(), Severity: Error})
	}
	if err := list.Write(stdout); err != nil {
		fmt.Fprintf(stderr, "%s: %v\n", name, err)
		return 1
	}
	failed := 0
	for _, r := range list.Results {
		if r.Severity == Error {
			fmt.Fprintf(stderr, "%s: %s\n", name, r)
			failed = 1
		}
	}
	return failed
}

// Read reads one ResourceList, in YAML or JSON.
func Read(r io.Reader) (*List, error) {
	data, err := io.ReadAll(io.LimitReader(r, MaxInput+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("reading standard input: %w", err)
	case len(data) > MaxInput:
		return nil, fmt.Errorf("standard input has more than %d bytes", MaxInput)
	case len(bytes.TrimSpace(data)) == 0:
		return nil, errors.New("standard input is empty; it takes a ResourceList")
	case !utf8.Valid(data):
		return nil, errors.New("standard input is not UTF-8")
	}
	var doc, more yaml.Node
	dec := yaml.NewDecoder(bytes.NewReader(data))
	if err := dec.Decode(&doc); err != nil {
		return nil, fmt.Errorf("standard input is not YAML: %w", err)
	}
	if err := dec.Decode(&more); !errors.Is(err, io.EOF) {
		return nil, errors.New("standard input has more than one document; it takes one ResourceList")
	}
	list := &List{root: doc.Content[0], wide: yaml.DeriveSeqIndentStyle(string(data)) == string(yaml.WideSequenceStyle)}
	if err := check(list.root, 0); err != nil {
		return nil, err
	}
	return list, list.open()
}

// open finds the parts of the list.
func (l *List) open() error {
	if l.root.Kind != yaml.MappingNode {
		return errors.New("standard input is not a ResourceList but " + describe(l.root))
	}
	if kind := String(l.root, "kind"); kind != "ResourceList" {
		return fmt.Errorf("standard input is of kind %q; it takes a ResourceList", kind)
	}
	if v := String(l.root, "apiVersion"); !slices.Contains(Versions, v) {
		return fmt.Errorf("ResourceList of apiVersion %q; this function reads %s", v, strings.Join(Versions, ", "))
	}
	if c := Get(l.root, "functionConfig"); !isNull(c) {
		if c.Kind != yaml.MappingNode {
			return fmt.Errorf("functionConfig is not an object but %s", describe(c))
		}
		budget := maxExpansion
		c, err := expanded(c, 0, &budget)
		if err != nil {
			return err
		}
		l.Config = &Object{Node: c}
	}
	items := Get(l.root, "items")
	if isNull(items) {
		return nil
	}
	if items.Kind != yaml.SequenceNode {
		return fmt.Errorf("items is not a list but %s", describe(items))
	}
	for i, n := range items.Content {
		if n = Follow(n); n.Kind != yaml.MappingNode {
			return fmt.Errorf("items[%d] is not an object but %s", i, describe(n))
		}
		l.Items = append(l.Items, &Object{Node: n})
	}
	return nil
}

// Write writes the list.
func (l *List) Write(w io.Writer) error {
	items := Get(l.root, "items")
	if isNull(items) {
		items = &yaml.Node{Kind: yaml.SequenceNode, Tag: yaml.NodeTagSeq, Style: yaml.FlowStyle}
		Set(l.root, "items", items)
	}
	for i, o := range l.Items {
		if i < len(items.Content) && Follow(items.Content[i]) == o.Node {
			continue // keep the alias
		}
		items.Content = append(items.Content[:min(i, len(items.Content))], nodes(l.Items[i:])...)
		break
	}
	items.Content = items.Content[:len(l.Items)]
	Remove(l.root, "results")
	if len(l.Results) > 0 {
		results := &yaml.Node{Kind: yaml.SequenceNode, Tag: yaml.NodeTagSeq, Style: l.root.Style & yaml.FlowStyle}
		for _, r := range l.Results {
			results.Content = append(results.Content, r.node())
		}
		Set(l.root, "results", results)
	}
	style := yaml.CompactSequenceStyle
	if l.wide {
		style = yaml.WideSequenceStyle
	}
	enc := yaml.NewEncoderWithOptions(w, &yaml.EncoderOptions{SeqIndent: style})
	if err := enc.Encode(l.root); err != nil {
		return fmt.Errorf("writing the ResourceList: %w", err)
	}
	return enc.Close()
}

func nodes(list []*Object) []*yaml.Node {
	out := make([]*yaml.Node, len(list))
	for i, o := range list {
		out[i] = o.Node
	}
	return out
}

// maxDepth bounds how deep a document is nested.
const maxDepth = 200

// check refuses what the YAML package accepts in nodes although it is wrong:
// keys that occur twice, of which other readers take one or the other.
func check(n *yaml.Node, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("line %d: nested more than %d deep", n.Line, maxDepth)
	}
	if n.Kind == yaml.MappingNode {
		seen := make(map[string]bool, len(n.Content)/2)
		for i := 0; i < len(n.Content); i += 2 {
			if n.Content[i].Tag == yaml.MergeTag {
				n.Content[i].Tag = "" // or it is written as !!merge <<
			}
			k := n.Content[i].Value
			if seen[k] && k != "<<" {
				return fmt.Errorf("line %d: the key %q occurs twice", n.Content[i].Line, k)
			}
			seen[k] = true
		}
	}
	for _, c := range n.Content {
		if err := check(c, depth+1); err != nil {
			return err
		}
	}
	return nil
}

// Object is a Kubernetes object.
type Object struct {
	// Node is the mapping of its fields.
	Node *yaml.Node
}

// APIVersion is the apiVersion of the object.
func (o *Object) APIVersion() string { return String(o.Node, "apiVersion") }

// Kind is the kind of the object.
func (o *Object) Kind() string { return String(o.Node, "kind") }

// Name is metadata.name.
func (o *Object) Name() string { return String(o.Node, "metadata", "name") }

// Namespace is metadata.namespace; empty if there is none.
func (o *Object) Namespace() string { return String(o.Node, "metadata", "namespace") }

// Group is the API group; empty for the core group.
func (o *Object) Group() string {
	if group, _, ok := strings.Cut(o.APIVersion(), "/"); ok {
		return group
	}
	return ""
}

// ref refers to the object in a result; nil if it has no name.
func (o *Object) ref() *Ref {
	if o.APIVersion() == "" || o.Kind() == "" || o.Name() == "" {
		return nil
	}
	return &Ref{o.APIVersion(), o.Kind(), o.Namespace(), o.Name()}
}

// file is where the orchestrator says that the object is from; nil if it
// does not say.
func (o *Object) file() *File {
	for _, prefix := range []string{"internal.config.kubernetes.io/", "config.kubernetes.io/"} {
		path := String(o.Node, "metadata", "annotations", prefix+"path")
		if path == "" {
			continue
		}
		index, err := strconv.Atoi(String(o.Node, "metadata", "annotations", prefix+"index"))
		if err != nil {
			index = 0 // the specification's default
		}
		return &File{path, index}
	}
	return nil
}
