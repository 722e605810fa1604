package catalog

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/opencontainers/go-digest"
	"go.yaml.in/yaml/v4"

	"github.com/krmcat/krmcat/schema"
)

// Build makes a catalog of definitions, in their order. A version of a
// function that is there already is left out, as it could never be resolved
// (KC-085), and so is a definition without any version left; the left out
// ones are returned, and they hold nothing but what was left out.
func Build(name string, labels map[string]string, defs []Definition) (c *Catalog, shadowed []Definition) {
	c = &Catalog{Name: name, Labels: maps.Clone(labels)}
	seen := map[GroupVersionKind]bool{}
	for _, d := range defs {
		var keep, drop []Version
		for _, v := range d.Versions {
			gvk := GroupVersionKind{d.Group, v.Name, d.Kind}
			if seen[gvk] {
				drop = append(drop, v)
				continue
			}
			seen[gvk] = true
			keep = append(keep, v)
		}
		if len(keep) > 0 {
			kept := d
			kept.Versions = keep
			c.Definitions = append(c.Definitions, kept)
		}
		if len(drop) > 0 {
			left := d
			left.Versions = drop
			shadowed = append(shadowed, left)
		}
	}
	return c, shadowed
}

// Marshal writes a catalog as a KRMFunctionCatalog document: YAML with the
// fields in the order of KEP-2906's examples, the same bytes for the same
// catalog. Of a Definition, Name has no place in a catalog and is left out. A
// catalog of definitions that are valid at level publish is so itself, if it
// has a name and, as from [Build], no function twice.
func Marshal(c *Catalog) ([]byte, error) {
	entries := make([][]byte, len(c.Definitions))
	for i := range c.Definitions {
		var err error
		if entries[i], err = MarshalEntry(&c.Definitions[i]); err != nil {
			return nil, fmt.Errorf("catalog %s: %w", c.Name, err)
		}
	}
	return JoinEntries(c.Name, c.Labels, entries)
}

// MarshalEntry writes a definition as it stands in the list of a catalog. An
// index keeps entries, so that a catalog of many costs no more than joining
// them.
func MarshalEntry(d *Definition) ([]byte, error) {
	spec, err := definitionNode(d)
	if err != nil {
		return nil, err
	}
	data, err := dump(&yaml.Node{Kind: yaml.SequenceNode, Content: []*yaml.Node{spec}})
	if err != nil {
		return nil, fmt.Errorf("writing %s %s: %w", d.Group, d.Kind, err)
	}
	var b bytes.Buffer
	b.Grow(len(data) + len(data)/8)
	for line := range bytes.Lines(data) {
		if len(line) > 1 {
			b.WriteString("  ")
		}
		b.Write(line)
	}
	return b.Bytes(), nil
}

// JoinEntries writes a catalog of what [MarshalEntry] gives: the same bytes
// as [Marshal].
func JoinEntries(name string, labels map[string]string, entries [][]byte) ([]byte, error) {
	if name == "" {
		return nil, errors.New("a catalog needs a name")
	}
	var meta, root fields
	meta.str("name", name)
	if len(labels) > 0 {
		var l fields
		for _, k := range slices.Sorted(maps.Keys(labels)) {
			l.str(k, labels[k])
		}
		meta.add("labels", l.node())
	}
	root.str("apiVersion", schema.APIVersion)
	root.str("kind", schema.KindCatalog)
	root.add("metadata", meta.node())
	head, err := dump(root.node())
	if err != nil {
		return nil, fmt.Errorf("writing catalog %s: %w", name, err)
	}
	if len(entries) == 0 {
		return append(head, "spec:\n  krmFunctions: []\n"...), nil
	}
	return slices.Concat(append([][]byte{head, []byte("spec:\n  krmFunctions:\n")}, entries...)...), nil
}

// MarshalDefinition writes a definition as a KRMFunctionDefinition document,
// with the same promises as [Marshal].
func MarshalDefinition(d *Definition) ([]byte, error) {
	spec, err := definitionNode(d)
	if err != nil {
		return nil, err
	}
	var root fields
	root.str("apiVersion", schema.APIVersion)
	root.str("kind", schema.KindDefinition)
	if d.Name != "" {
		var meta fields
		meta.str("name", d.Name)
		root.add("metadata", meta.node())
	}
	root.add("spec", spec)
	data, err := dump(root.node())
	if err != nil {
		return nil, fmt.Errorf("writing %s %s: %w", d.Group, d.Kind, err)
	}
	return data, nil
}

// dump writes YAML in the one style that krmcat writes.
func dump(n *yaml.Node) ([]byte, error) {
	return yaml.Dump(n, yaml.WithIndent(2), yaml.WithCompactSeqIndent(), yaml.WithLineWidth(-1), yaml.WithQuotePreference(yaml.QuoteDouble))
}

func definitionNode(d *Definition) (*yaml.Node, error) {
	var names, spec fields
	names.str("kind", d.Kind)
	spec.str("group", d.Group)
	spec.add("names", names.node())
	spec.optional("description", d.Description)
	spec.optional("publisher", d.Publisher)
	versions := &yaml.Node{Kind: yaml.SequenceNode}
	for i := range d.Versions {
		v, err := versionNode(&d.Versions[i])
		if err != nil {
			return nil, fmt.Errorf("%s/%s, kind %s: %w", d.Group, d.Versions[i].Name, d.Kind, err)
		}
		versions.Content = append(versions.Content, v)
	}
	spec.add("versions", versions)
	spec.optional("home", d.Home)
	spec.list("maintainers", d.Maintainers)
	spec.list("tags", d.Tags)
	return spec.node(), nil
}

func versionNode(v *Version) (*yaml.Node, error) {
	var out fields
	out.str("name", v.Name)
	if len(v.Schema) > 0 {
		open, err := jsonNode(v.Schema)
		if err != nil {
			return nil, fmt.Errorf("schema: %w", err)
		}
		var s fields
		s.add("openAPIV3Schema", open)
		out.add("schema", s.node())
	}
	out.add("idempotent", boolean(v.Idempotent))
	if v.ConfigMap {
		out.add("configMap", boolean(true))
	}
	out.add("runtime", runtimeNode(&v.Runtime))
	out.optional("usage", v.Usage)
	out.list("examples", v.Examples)
	out.optional("license", v.License)
	out.list("maintainers", v.Maintainers)
	return out.node(), nil
}

func runtimeNode(r *Runtime) *yaml.Node {
	var out fields
	if c := r.Container; c != nil {
		var f fields
		f.str("image", c.Image)
		f.optional("sha256", hexDigest(c.Digest))
		if c.RequireNetwork {
			f.add("requireNetwork", boolean(true))
		}
		if c.RequireStorageMount {
			f.add("requireStorageMount", boolean(true))
		}
		out.add("container", f.node())
	}
	if x := r.Exec; x != nil {
		list := &yaml.Node{Kind: yaml.SequenceNode}
		for i := range x.Platforms {
			p := &x.Platforms[i]
			var f fields
			f.str("bin", p.Bin)
			f.str("os", p.OS)
			f.str("arch", p.Arch)
			f.str("uri", p.URI)
			f.optional("sha256", hexDigest(p.Digest))
			list.Content = append(list.Content, f.node())
		}
		var f fields
		f.add("platforms", list)
		out.add("exec", f.node())
	}
	if s := r.Starlark; s != nil {
		var f fields
		f.str("uri", s.URI)
		f.optional("sha256", hexDigest(s.Digest))
		out.add("starlark", f.node())
	}
	return out.node()
}

// fields is a mapping under construction, with its keys in order.
type fields struct{ content []*yaml.Node }

func (f *fields) add(key string, value *yaml.Node) {
	f.content = append(f.content, text(key), value)
}

func (f *fields) str(key, value string) { f.add(key, text(value)) }

func (f *fields) optional(key, value string) {
	if value != "" {
		f.str(key, value)
	}
}

func (f *fields) list(key string, values []string) {
	if len(values) == 0 {
		return
	}
	n := &yaml.Node{Kind: yaml.SequenceNode}
	for _, v := range values {
		n.Content = append(n.Content, text(v))
	}
	f.add(key, n)
}

func (f *fields) node() *yaml.Node {
	return &yaml.Node{Kind: yaml.MappingNode, Content: f.content}
}

// text is a string that every YAML reader takes for one.
func text(s string) *yaml.Node {
	n := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: s}
	if yaml11Expr.MatchString(s) {
		n.Style = yaml.DoubleQuotedStyle
	}
	return n
}

func boolean(b bool) *yaml.Node {
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!bool", Value: fmt.Sprint(b)}
}

// jsonNode turns JSON into nodes, with the keys in their order.
func jsonNode(data []byte) (*yaml.Node, error) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	n, err := jsonValue(d)
	if err != nil {
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("more than one JSON value")
	}
	return n, nil
}

func jsonValue(d *json.Decoder) (*yaml.Node, error) {
	tok, err := d.Token()
	if err != nil {
		return nil, err
	}
	switch v := tok.(type) {
	case string:
		return text(v), nil
	case bool:
		return boolean(v), nil
	case json.Number:
		tag := "!!int"
		if bytes.ContainsAny([]byte(v), ".eE") {
			tag = "!!float"
		}
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: tag, Value: string(v)}, nil
	case nil:
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!null", Value: "null"}, nil
	}
	n := &yaml.Node{Kind: yaml.SequenceNode}
	if tok == json.Delim('{') {
		n.Kind = yaml.MappingNode
	}
	for d.More() {
		item, err := jsonValue(d)
		if err != nil {
			return nil, err
		}
		n.Content = append(n.Content, item)
	}
	if len(n.Content) == 0 {
		n.Style = yaml.FlowStyle
	}
	_, err = d.Token()
	return n, err
}

// hexDigest is a sha256 as the sha256 fields hold it. Digests of other kinds
// have no place there.
func hexDigest(d digest.Digest) string {
	if d.Validate() != nil || d.Algorithm() != digest.SHA256 {
		return ""
	}
	return d.Encoded()
}
