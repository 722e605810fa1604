package schema

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/krmcat/krmcat/internal/yamlpos"
)

// ErrFormat is wrapped by the errors of [Format] for documents that cannot be
// written in another way without losing something. The message says what and
// where.
var ErrFormat = errors.New("cannot be formatted")

// FormatOptions say how [Format] writes documents. The zero value only changes
// how they look, and the kind Catalog.
type FormatOptions struct {
	// Fix also rewrites what has one reading only, in the way that level
	// Publish wants it: names and places of fields, digests and the license.
	Fix bool
}

// Format writes definitions and catalogs in their canonical form: the kind
// KRMFunctionCatalog, fields in the order of KEP-2906, an indentation of two,
// no more quotes than were there. Comments are kept. What is formatted already
// comes back as it is, and the meaning stays the same apart from what opts
// asks for; both are checked, and an error wraps [ErrFormat] if a document
// does not come through. Documents of other kinds are written as they are.
// JSON stays JSON. Text that cannot be read is an [*InvalidError].
func Format(name string, data []byte, opts FormatOptions) ([]byte, error) {
	out, err := format(name, data, opts)
	if err != nil {
		return nil, err
	}
	// The YAML writer moves some comments when it meets them for the first
	// time only.
	for range 3 {
		again, err := format(name, out, opts)
		if err != nil {
			return nil, err
		}
		if bytes.Equal(out, again) {
			return out, nil
		}
		out = again
	}
	return nil, fmt.Errorf("%s: %w: its comments move each time", name, ErrFormat)
}

func format(name string, data []byte, opts FormatOptions) ([]byte, error) {
	f, problems := yamlpos.Parse(name, data, yamlpos.Limits{})
	if len(problems) > 0 {
		var ds Diagnostics
		for _, p := range problems {
			ds = append(ds, ProblemDiagnostic(f, p))
		}
		return nil, &InvalidError{Diagnostics: ds}
	}
	if len(f.Documents) == 0 {
		return data, nil
	}
	if err := lostComment(f); err != nil {
		return nil, err
	}
	var out bytes.Buffer
	var want []any
	comments := nodeComments(f)
	if f.Documents[0].Root == nil {
		for _, d := range f.Documents {
			v := canonical(d, opts)
			want = append(want, v)
			writeJSON(&out, d.Node, "")
			out.WriteByte('\n')
		}
	} else {
		w, err := yaml.NewDumper(&out, yaml.WithIndent(2), yaml.WithCompactSeqIndent(), yaml.WithLineWidth(-1), yaml.WithQuotePreference(yaml.QuoteDouble))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		for _, d := range f.Documents {
			want = append(want, canonical(d, opts))
			if err := w.Dump(d.Root); err != nil {
				return nil, fmt.Errorf("%s: %w: %v", name, ErrFormat, err)
			}
		}
		if err := w.Close(); err != nil {
			return nil, fmt.Errorf("%s: %w: %v", name, ErrFormat, err)
		}
	}
	return out.Bytes(), sameMeaning(name, out.Bytes(), want, comments)
}

// sameMeaning reads what was written and compares it with what was meant.
func sameMeaning(name string, out []byte, want []any, comments []string) error {
	f, problems := yamlpos.Parse(name, out, yamlpos.Limits{})
	if len(problems) > 0 {
		return fmt.Errorf("%s: %w: line %d would not be readable: %s", name, ErrFormat, problems[0].Line, problems[0].Message)
	}
	if len(f.Documents) != len(want) {
		return fmt.Errorf("%s: %w: it would have %d documents instead of %d", name, ErrFormat, len(f.Documents), len(want))
	}
	for i, d := range f.Documents {
		if !reflect.DeepEqual(d.Value, want[i]) {
			return fmt.Errorf("%s: %w: the values of document %d would change", name, ErrFormat, i+1)
		}
	}
	if got := nodeComments(f); !slices.Equal(got, comments) {
		return fmt.Errorf("%s: %w: comments would change", name, ErrFormat)
	}
	return nil
}

// nodeComments are the lines of all comments, sorted.
func nodeComments(f *yamlpos.File) []string {
	var out []string
	var walk func(n *yaml.Node)
	walk = func(n *yaml.Node) {
		for _, c := range []string{n.HeadComment, n.LineComment, n.FootComment} {
			for line := range strings.SplitSeq(c, "\n") {
				if line = strings.TrimSpace(line); line != "" {
					out = append(out, line)
				}
			}
		}
		for _, c := range n.Content {
			walk(c)
		}
	}
	for _, d := range f.Documents {
		if d.Root != nil {
			walk(d.Root)
		}
	}
	slices.Sort(out)
	return out
}

// lostComment finds comments in the text that the YAML reader did not keep.
func lostComment(f *yamlpos.File) error {
	if f.Documents[0].Root == nil {
		return nil
	}
	kept := map[string]int{}
	for _, c := range nodeComments(f) {
		kept[c]++
	}
	var values []string
	var collect func(n *yaml.Node)
	collect = func(n *yaml.Node) {
		if n.Kind == yaml.ScalarNode && strings.Contains(n.Value, "#") {
			values = append(values, squeeze(n.Value))
		}
		for _, c := range n.Content {
			collect(c)
		}
	}
	for _, d := range f.Documents {
		collect(d.Node)
	}
	for i := 1; i <= f.Lines(); i++ {
		line := f.Line(i)
		for from := 0; ; {
			at := strings.IndexByte(line[from:], '#')
			if at < 0 {
				break
			}
			at += from
			from = at + 1
			if at > 0 && line[at-1] != ' ' && line[at-1] != '\t' {
				continue
			}
			comment := strings.TrimSpace(line[at:])
			if kept[comment] > 0 {
				kept[comment]--
				break
			}
			inside := squeeze(strings.TrimRight(comment, `"'],} `))
			if !slices.ContainsFunc(values, func(v string) bool { return strings.Contains(v, inside) }) {
				return fmt.Errorf("%s:%d:%d: %w: the comment would be lost; move it to a line of its own", f.Name, i, at+1, ErrFormat)
			}
		}
	}
	return nil
}

// squeeze makes all white space single spaces.
func squeeze(s string) string { return strings.Join(strings.Fields(s), " ") }

// The order of fields. Others follow in the order in which they stand.
var (
	rootOrder      = []string{"apiVersion", "kind", "metadata", "spec"}
	metadataOrder  = []string{"name", "namespace", "labels", "annotations"}
	functionOrder  = []string{"group", "names", "kind", "description", "publisher", "home", "maintainers", "tags", "versions", "runtime"}
	versionOrder   = []string{"name", "schema", "idempotent", "configMap", "runtime", "usage", "examples", "license", "maintainers"}
	runtimeOrder   = []string{"container", "exec", "starlark"}
	containerOrder = []string{"image", "sha256", "requireNetwork", "requireStorageMount"}
	platformOrder  = []string{"bin", "os", "arch", "uri", "sha256"}
	starlarkOrder  = []string{"uri", "path", "sha256"}
	schemaOrder    = []string{"type", "format", "title", "description", "nullable", "default", "enum", "required", "properties", "items", "additionalProperties"}
)

// canonical changes the nodes of a document and returns the value that they
// stand for then.
func canonical(d *yamlpos.Document, opts FormatOptions) any {
	root := mapping(d.Node)
	value := d.Value
	if root == nil || str(get(root, "apiVersion")) != APIVersion {
		return value
	}
	kind := get(root, "kind")
	switch str(kind) {
	case KindDefinition, KindCatalog, KindCatalogAlias:
	default:
		return value
	}
	// Values may be shared by aliases, and the nodes as well: a document with
	// aliases is only put in order.
	if len(d.Aliases) > 0 {
		opts.Fix = false
	}
	if str(kind) == KindCatalogAlias && kind.Kind == yaml.ScalarNode {
		kind.Value = KindCatalog
		m := maps.Clone(value.(map[string]any))
		m["kind"] = KindCatalog
		value = m
	}
	order(root, rootOrder)
	order(mapping(get(root, "metadata")), metadataOrder)
	spec := mapping(get(root, "spec"))
	functions := []*yaml.Node{spec}
	if str(kind) == KindCatalog {
		functions = items(get(spec, "krmFunctions"))
	}
	for _, fn := range functions {
		if fn = mapping(fn); fn == nil {
			continue
		}
		if opts.Fix {
			fixFunction(fn)
		}
		orderFunction(fn)
	}
	if opts.Fix {
		return nodeValue(d.Node)
	}
	return value
}

func orderFunction(fn *yaml.Node) {
	order(fn, functionOrder)
	orderRuntime(mapping(get(fn, "runtime")))
	for _, v := range items(get(fn, "versions")) {
		v = mapping(v)
		order(v, versionOrder)
		orderRuntime(mapping(get(v, "runtime")))
		orderSchema(get(mapping(get(v, "schema")), "openAPIV3Schema"), 0)
	}
}

func orderRuntime(rt *yaml.Node) {
	order(rt, runtimeOrder)
	order(mapping(get(rt, "container")), containerOrder)
	for _, p := range items(get(mapping(get(rt, "exec")), "platforms")) {
		order(mapping(p), platformOrder)
	}
	order(mapping(get(rt, "starlark")), starlarkOrder)
}

// orderSchema orders the keywords of a schema, but not its properties, whose
// order is the author's.
func orderSchema(s *yaml.Node, depth int) {
	if s = mapping(s); s == nil || depth > 64 {
		return
	}
	order(s, schemaOrder)
	if props := mapping(get(s, "properties")); props != nil {
		for i := 1; i < len(props.Content); i += 2 {
			orderSchema(props.Content[i], depth+1)
		}
	}
	orderSchema(get(s, "items"), depth+1)
	orderSchema(get(s, "additionalProperties"), depth+1)
}

// fixFunction rewrites what has one reading only.
func fixFunction(fn *yaml.Node) {
	if kind := get(fn, "kind"); kind != nil && get(fn, "names") == nil && kind.Kind == yaml.ScalarNode {
		k := remove(fn, "kind")
		names := &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map", Content: []*yaml.Node{k, kind}}
		fn.Content = append(fn.Content, scalar("names"), names)
	}
	versions := items(get(fn, "versions"))
	// A runtime beside versions goes into the version if there is one only:
	// its comments cannot be in several places.
	if rt := get(fn, "runtime"); rt != nil && len(versions) == 1 {
		if v := mapping(versions[0]); v != nil {
			k := remove(fn, "runtime")
			if get(v, "runtime") == nil {
				v.Content = append(v.Content, k, rt)
			} else {
				fn.Content = append(fn.Content, k, rt)
			}
		}
	}
	fixRuntime(mapping(get(fn, "runtime")))
	for _, v := range versions {
		v = mapping(v)
		fixRuntime(mapping(get(v, "runtime")))
		if l := get(v, "license"); str(l) == spdxLicense {
			l.Value = kepLicense
		}
	}
}

func fixRuntime(rt *yaml.Node) {
	container := mapping(get(rt, "container"))
	if get(container, "requireStorageMount") == nil {
		if k := key(container, "requireFilesystem"); k != nil {
			k.Value = "requireStorageMount"
		}
	}
	digests := []*yaml.Node{get(container, "sha256"), get(mapping(get(rt, "starlark")), "sha256")}
	for _, p := range items(get(mapping(get(rt, "exec")), "platforms")) {
		digests = append(digests, get(mapping(p), "sha256"))
	}
	for _, d := range digests {
		s := strings.ToLower(strings.TrimPrefix(str(d), "sha256:"))
		if isHexDigest(s) {
			d.Value = s
		}
	}
}

// order puts the keys of a mapping into an order; others stay behind them.
// Merge keys are left alone, as their place says who wins.
func order(m *yaml.Node, first []string) {
	if m == nil || len(m.Content) == 0 || slices.ContainsFunc(m.Content, func(n *yaml.Node) bool { return n.Tag == "!!merge" }) {
		return
	}
	type pair struct{ k, v *yaml.Node }
	pairs := make([]pair, 0, len(m.Content)/2)
	for i := 0; i+1 < len(m.Content); i += 2 {
		pairs = append(pairs, pair{m.Content[i], m.Content[i+1]})
	}
	rank := func(p pair) int {
		if i := slices.Index(first, p.k.Value); i >= 0 && p.k.Kind == yaml.ScalarNode {
			return i
		}
		return len(first)
	}
	sorted := slices.Clone(pairs)
	slices.SortStableFunc(sorted, func(a, b pair) int { return rank(a) - rank(b) })
	// An anchor has to come before its aliases.
	if slices.ContainsFunc(pairs, func(p pair) bool { return hasAlias(p.v) || p.k.Kind == yaml.AliasNode }) {
		return
	}
	// A comment behind the last field stays at the end.
	if was, is := pairs[len(pairs)-1].k, sorted[len(sorted)-1].k; was != is && was.FootComment != "" {
		is.FootComment = strings.TrimPrefix(is.FootComment+"\n\n"+was.FootComment, "\n\n")
		was.FootComment = ""
	}
	m.Content = m.Content[:0]
	for _, p := range sorted {
		m.Content = append(m.Content, p.k, p.v)
	}
}

func hasAlias(n *yaml.Node) bool {
	return n.Kind == yaml.AliasNode || n.Anchor != "" || slices.ContainsFunc(n.Content, hasAlias)
}

func mapping(n *yaml.Node) *yaml.Node {
	if n == nil || n.Kind != yaml.MappingNode {
		return nil
	}
	return n
}

func items(n *yaml.Node) []*yaml.Node {
	if n == nil || n.Kind != yaml.SequenceNode {
		return nil
	}
	return n.Content
}

func key(m *yaml.Node, name string) *yaml.Node {
	if m == nil {
		return nil
	}
	for i := 0; i+1 < len(m.Content); i += 2 {
		if k := m.Content[i]; k.Kind == yaml.ScalarNode && k.Value == name {
			return k
		}
	}
	return nil
}

func get(m *yaml.Node, name string) *yaml.Node {
	k := key(m, name)
	if k == nil {
		return nil
	}
	return m.Content[slices.Index(m.Content, k)+1]
}

// remove takes a field out of a mapping and returns its key.
func remove(m *yaml.Node, name string) *yaml.Node {
	k := key(m, name)
	if k != nil {
		i := slices.Index(m.Content, k)
		m.Content = slices.Delete(m.Content, i, i+2)
	}
	return k
}

// str is the value of a string node, "" for all else.
func str(n *yaml.Node) string {
	if n == nil || n.Kind != yaml.ScalarNode || n.Tag != "!!str" {
		return ""
	}
	return n.Value
}

func scalar(s string) *yaml.Node { return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: s} }

// nodeValue is the value of a tree without aliases.
func nodeValue(n *yaml.Node) any {
	var out bytes.Buffer
	writeJSON(&out, n, "")
	f, problems := yamlpos.Parse("", out.Bytes(), yamlpos.Limits{Depth: 1000})
	if len(problems) > 0 || len(f.Documents) != 1 {
		return nil
	}
	return f.Documents[0].Value
}

// writeJSON writes a tree as JSON in the order of its keys.
func writeJSON(b *bytes.Buffer, n *yaml.Node, indent string) {
	inner := indent + "  "
	switch n.Kind {
	case yaml.MappingNode:
		if len(n.Content) == 0 {
			b.WriteString("{}")
			return
		}
		b.WriteByte('{')
		for i := 0; i+1 < len(n.Content); i += 2 {
			if i > 0 {
				b.WriteByte(',')
			}
			b.WriteString("\n" + inner)
			writeJSONString(b, n.Content[i].Value)
			b.WriteString(": ")
			writeJSON(b, n.Content[i+1], inner)
		}
		b.WriteString("\n" + indent + "}")
	case yaml.SequenceNode:
		if len(n.Content) == 0 {
			b.WriteString("[]")
			return
		}
		b.WriteByte('[')
		for i, c := range n.Content {
			if i > 0 {
				b.WriteByte(',')
			}
			b.WriteString("\n" + inner)
			writeJSON(b, c, inner)
		}
		b.WriteString("\n" + indent + "]")
	case yaml.ScalarNode:
		switch n.Tag {
		case "!!null":
			b.WriteString("null")
		case "!!bool":
			b.WriteString(strings.ToLower(n.Value))
		case "!!int", "!!float":
			if json.Valid([]byte(n.Value)) {
				b.WriteString(n.Value)
				return
			}
			text, err := json.Marshal(yamlpos.Scalar(n))
			if err != nil {
				text = []byte("null")
			}
			b.Write(text)
		default:
			writeJSONString(b, n.Value)
		}
	}
}

func writeJSONString(b *bytes.Buffer, s string) {
	enc := json.NewEncoder(b)
	enc.SetEscapeHTML(false)
	// A string always encodes; the encoder adds a line end.
	_ = enc.Encode(s)
	b.Truncate(b.Len() - 1)
}
