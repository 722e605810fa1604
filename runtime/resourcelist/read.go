package resourcelist

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	goruntime "runtime"
	"sync"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// List is a ResourceList.
type List struct {
	APIVersion string
	// Items are the resources. HasItems tells an empty list from a missing
	// field, which the specification does not allow (FS-12).
	Items    []*Item
	HasItems bool
	// FunctionConfig is the text of the configuration as a document; nil if
	// there is none.
	FunctionConfig []byte
	Results        []Result
	// Legacy says that results were in the older shape, a list or a mapping
	// with name and items (KG-20).
	LegacyResults bool
	// Unknown are fields that a ResourceList does not have.
	Unknown []string
}

// ReadOptions change how a list is read. The zero value reads a list from
// scratch.
type ReadOptions struct {
	// Before are the items that a function was given. Those that come back
	// with the same bytes are the same pointers; the others are matched to
	// what they were.
	Before []*Item
	// FromFunction says that items without a match were made by a function.
	FromFunction bool
	// Verbatim leaves the annotations with the origin as they are, instead
	// of bringing their two spellings in step: for checking what was written.
	Verbatim bool
}

// Read reads exactly one ResourceList of an apiVersion this package knows.
// Errors wrap [ErrEmpty], [ErrNotResourceList], [ErrItem], [ErrConflict] or a
// [*SyntaxError].
func Read(data []byte, opts ReadOptions) (*List, error) {
	if len(bytes.TrimSpace(data)) == 0 {
		return nil, ErrEmpty
	}
	if !utf8.Valid(data) {
		return nil, &SyntaxError{Line: invalidUTF8Line(data), Msg: "not valid UTF-8"}
	}
	if p, ok := split(data); ok {
		l, err := readParts(p, opts)
		if err == nil {
			return l, nil
		}
		if _, ok := errors.AsType[*SyntaxError](err); !ok && !errors.Is(err, errSplit) {
			return nil, err
		}
	}
	return readWhole(data, opts)
}

// errSplit says that the parts are not what the lines made them look like.
var errSplit = errors.New("the list must be parsed as a whole")

func invalidUTF8Line(data []byte) int {
	line := 1
	for len(data) > 0 {
		r, n := utf8.DecodeRune(data)
		if r == utf8.RuneError && n == 1 {
			return line
		}
		if r == '\n' {
			line++
		}
		data = data[n:]
	}
	return 0
}

func readParts(p parts, opts ReadOptions) (*List, error) {
	var doc yaml.Node
	if err := unmarshal(p.header, &doc); err != nil {
		return nil, errSplit
	}
	if doc.Kind == 0 && !p.hasItems {
		return nil, ErrEmpty // comments only
	}
	l, err := readHeader(&doc)
	if err != nil {
		return nil, err
	}
	l.HasItems = p.hasItems
	l.Items, err = readItems(p.items, opts, func(i int, err error) error {
		if s, ok := errors.AsType[*SyntaxError](err); ok {
			return s
		}
		return fmt.Errorf("items[%d] (line %d): %w", i, p.line[i], err)
	})
	return l, err
}

// readItems makes items of elements, re-using those of before. Elements that
// are new are parsed by as many goroutines as there are processors.
func readItems(wires [][]byte, opts ReadOptions, wrap func(int, error) error) ([]*Item, error) {
	known := make(map[string][]*Item, len(opts.Before))
	for _, it := range opts.Before {
		known[string(it.wire)] = append(known[string(it.wire)], it)
	}
	items := make([]*Item, len(wires))
	var fresh []int
	for i, w := range wires {
		if same := known[string(w)]; len(same) > 0 {
			items[i] = same[0]
			known[string(w)] = same[1:]
			continue
		}
		fresh = append(fresh, i)
	}
	if len(fresh) == 0 {
		return items, nil
	}
	nodes := make([]*yaml.Node, len(wires))
	errs := make([]error, len(fresh))
	Parallel(len(fresh), func(k int) {
		i := fresh[k]
		n, err := parseElement(wires[i])
		if err != nil {
			if errors.Is(err, ErrItem) {
				// The lines may have misled; the whole parse will tell.
				err = errSplit
			}
			errs[k] = err
			return
		}
		nodes[i] = n
	})
	for k, err := range errs {
		if err != nil {
			return nil, wrap(fresh[k], err)
		}
	}
	return finishItems(wires, nodes, items, known, opts, wrap)
}

// finishItems identifies the items whose bytes are new (nodes[i] is not nil),
// and brings their two spellings of the origin in step.
func finishItems(wires [][]byte, nodes []*yaml.Node, items []*Item, known map[string][]*Item, opts ReadOptions, wrap func(int, error) error) ([]*Item, error) {
	m := newMatcher(known, opts.Before)
	for i, n := range nodes {
		if n == nil {
			continue
		}
		it, err := identify(wires[i], n, m, opts)
		if err != nil {
			return nil, wrap(i, err)
		}
		items[i] = it
	}
	return items, nil
}

func identify(wire []byte, n *yaml.Node, m *matcher, opts ReadOptions) (*Item, error) {
	o, err := originOf(Get(Get(n, "metadata"), "annotations"))
	if err != nil {
		return nil, err
	}
	it := &Item{wire: wire, made: opts.FromFunction, internal: internalOf(n)}
	meta, err := metaWithout(n)
	if err != nil {
		return nil, err
	}
	if it.prev = m.match(meta, o); it.prev != nil {
		it.made = false
		meta.Path, meta.Index, err = o.since(originIn(it.prev.meta))
	} else {
		meta.Path, meta.Index, err = o.agree()
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", meta.ID(), err)
	}
	it.meta = meta
	if opts.Verbatim {
		return it, nil
	}
	want := originIn(meta)
	if same(o.path, want.path) && same(o.legacyPath, want.legacyPath) && same(o.index, want.index) && same(o.legacyIndex, want.legacyIndex) {
		if it.prev != nil {
			it.parsed.Store(n)
		}
	} else {
		setOrigin(n, meta.Path, meta.Index)
		text, err := Encode(n, StyleOf(wire))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", meta.ID(), err)
		}
		it.wire = indent(text)
	}
	return it, nil
}

func originIn(m Meta) origin {
	var o origin
	if m.Path != "" {
		o.path, o.legacyPath = &m.Path, &m.Path
	}
	if m.Index >= 0 {
		i := fmt.Sprint(m.Index)
		o.index, o.legacyIndex = &i, &i
	}
	return o
}

// matcher finds what an item was before a function changed it: by path and
// index together with the type and name, then by type and name, then by path
// and index alone, for functions that rename.
type matcher struct {
	byAll, byName, byOrigin map[string]*Item
	used                    map[*Item]bool
}

func newMatcher(known map[string][]*Item, before []*Item) *matcher {
	m := &matcher{map[string]*Item{}, map[string]*Item{}, map[string]*Item{}, map[*Item]bool{}}
	left := map[*Item]bool{}
	for _, same := range known {
		for _, it := range same {
			left[it] = true
		}
	}
	put := func(in map[string]*Item, key string, it *Item) {
		if _, dup := in[key]; dup {
			it = nil // ambiguous
		}
		in[key] = it
	}
	for _, it := range before {
		if !left[it] {
			continue
		}
		name, org := nameKey(it.meta), originKey(it.meta.Path, it.meta.Index)
		put(m.byName, name, it)
		if org != "" {
			put(m.byAll, name+"\n"+org, it)
			put(m.byOrigin, org, it)
		}
	}
	return m
}

func nameKey(m Meta) string {
	// The version is left out: functions upgrade it.
	return CutGroup(m.APIVersion) + "\n" + m.Kind + "\n" + m.Namespace + "\n" + m.Name
}

// CutGroup is the group of an apiVersion; empty for the core group.
func CutGroup(apiVersion string) string {
	if i := bytes.IndexByte([]byte(apiVersion), '/'); i >= 0 {
		return apiVersion[:i]
	}
	return ""
}

func originKey(path string, index int) string {
	if path == "" {
		return ""
	}
	return fmt.Sprintf("%s\n%d", path, max(index, 0))
}

func (m *matcher) match(meta Meta, o origin) *Item {
	org := ""
	for _, p := range []*string{o.path, o.legacyPath} {
		if p != nil {
			idx := o.index
			if idx == nil {
				idx = o.legacyIndex
			}
			if idx == nil {
				zero := "0"
				idx = &zero
			}
			org = *p + "\n" + *idx
			break
		}
	}
	name := nameKey(meta)
	for _, it := range []*Item{m.byAll[name+"\n"+org], m.byName[name], m.byOrigin[org]} {
		if it != nil && !m.used[it] {
			m.used[it] = true
			return it
		}
	}
	return nil
}

// metaWithout is metaOf without the origin.
func metaWithout(n *yaml.Node) (Meta, error) {
	m := Meta{Index: indexUnset}
	str := func(parent *yaml.Node, where, field string, dst *string) error {
		v := Get(parent, field)
		if v == nil || v.ShortTag() == "!!null" {
			return nil
		}
		if v.Kind != yaml.ScalarNode {
			return fmt.Errorf("%w: %s%s is %s, not a string", ErrItem, where, field, kindName(v))
		}
		*dst = v.Value
		return nil
	}
	md := Get(n, "metadata")
	err := errors.Join(
		str(n, "", "apiVersion", &m.APIVersion),
		str(n, "", "kind", &m.Kind),
		str(md, "metadata.", "name", &m.Name),
		str(md, "metadata.", "namespace", &m.Namespace))
	if err != nil {
		return m, err
	}
	if m.APIVersion == "" || m.Kind == "" {
		return m, fmt.Errorf("%w: it has no %s", ErrItem, missing(m))
	}
	return m, nil
}

// readHeader reads everything but the items.
func readHeader(doc *yaml.Node) (*List, error) {
	if doc.Kind != yaml.DocumentNode || len(doc.Content) == 0 {
		return nil, fmt.Errorf("%w: it has no kind", ErrNotResourceList)
	}
	top := doc.Content[0]
	if top.Kind != yaml.MappingNode {
		return nil, fmt.Errorf("%w: it is %s", ErrNotResourceList, kindName(top))
	}
	l := &List{}
	kind := ""
	if k := Get(top, "kind"); k != nil {
		kind = k.Value
	}
	if v := Get(top, "apiVersion"); v != nil {
		l.APIVersion = v.Value
	}
	if kind != Kind {
		if kind == "" {
			return nil, fmt.Errorf("%w: it has no kind", ErrNotResourceList)
		}
		return nil, fmt.Errorf("%w: it is of kind %s", ErrNotResourceList, kind)
	}
	if !KnownAPIVersion(l.APIVersion) {
		return nil, fmt.Errorf("%w: apiVersion is %q, want %s, v1beta1 or v1alpha1", ErrNotResourceList, l.APIVersion, APIVersion)
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(top.Content); i += 2 {
		key, value := top.Content[i], deref(top.Content[i+1])
		if seen[key.Value] {
			return nil, fmt.Errorf("%w: field %s is given twice", ErrNotResourceList, key.Value)
		}
		seen[key.Value] = true
		switch key.Value {
		case "apiVersion", "kind", "items", "metadata":
		case "functionConfig":
			if value.ShortTag() == "!!null" {
				continue
			}
			if value.Kind != yaml.MappingNode {
				return nil, fmt.Errorf("%w: functionConfig is %s, not a mapping", ErrNotResourceList, kindName(value))
			}
			text, err := Encode(value, Style{})
			if err != nil {
				return nil, fmt.Errorf("functionConfig: %w", err)
			}
			l.FunctionConfig = text
		case "results":
			var err error
			if l.Results, l.LegacyResults, err = readResults(value); err != nil {
				return nil, fmt.Errorf("%w: %w", ErrNotResourceList, err)
			}
		default:
			l.Unknown = append(l.Unknown, key.Value)
		}
	}
	return l, nil
}

// readWhole parses the whole text: JSON, flow style and everything else that
// the lines do not show.
func readWhole(data []byte, opts ReadOptions) (*List, error) {
	dec := yaml.NewDecoder(bytes.NewReader(bytes.TrimPrefix(data, []byte("\ufeff"))))
	var doc yaml.Node
	if err := dec.Decode(&doc); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, ErrEmpty
		}
		return nil, syntaxError(err)
	}
	var more yaml.Node
	if err := dec.Decode(&more); err == nil {
		if !(len(more.Content) == 1 && more.Content[0].ShortTag() == "!!null" && more.Content[0].Value == "") {
			return nil, fmt.Errorf("%w: more than one document", ErrNotResourceList)
		}
	} else if !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%w: text after the document: %w", ErrNotResourceList, syntaxError(err))
	}
	l, err := readHeader(&doc)
	if err != nil {
		return nil, err
	}
	list := Get(doc.Content[0], "items")
	if list == nil || list.ShortTag() == "!!null" {
		return l, nil
	}
	if list.Kind != yaml.SequenceNode {
		return nil, fmt.Errorf("%w: items is %s, not a list", ErrNotResourceList, kindName(list))
	}
	l.HasItems = true
	style := StyleOf(data)
	wires := make([][]byte, len(list.Content))
	budget := maxExpanded
	for i, n := range list.Content {
		n = deref(n)
		if n.Kind != yaml.MappingNode {
			return nil, fmt.Errorf("items[%d] (line %d): %w: it is %s, not a mapping", i, n.Line, ErrItem, kindName(n))
		}
		n, err := selfContained(n, &budget)
		if err != nil {
			return nil, fmt.Errorf("items[%d] (line %d): %w", i, list.Content[i].Line, err)
		}
		clearFlow(n)
		text, err := Encode(n, style)
		if err != nil {
			return nil, fmt.Errorf("items[%d] (line %d): %w", i, list.Content[i].Line, err)
		}
		wires[i] = indent(text)
	}
	l.Items, err = readItems(wires, opts, func(i int, err error) error {
		return fmt.Errorf("items[%d] (line %d): %w", i, list.Content[i].Line, err)
	})
	return l, err
}

// maxExpanded bounds the nodes that aliases to other items may add.
const maxExpanded = 100_000

// selfContained replaces aliases by copies of what they point to if that is
// outside n: PyYAML writes such for values that two items share.
func selfContained(n *yaml.Node, budget *int) (*yaml.Node, error) {
	has := false
	anchors := map[*yaml.Node]bool{}
	var look func(*yaml.Node)
	look = func(n *yaml.Node) {
		anchors[n] = true
		has = has || n.Kind == yaml.AliasNode
		for _, c := range n.Content {
			look(c)
		}
	}
	look(n)
	if !has {
		return n, nil
	}
	var cp func(n *yaml.Node, depth int) (*yaml.Node, error)
	cp = func(n *yaml.Node, depth int) (*yaml.Node, error) {
		if *budget--; *budget < 0 || depth > 1000 {
			return nil, &SyntaxError{Line: n.Line, Msg: "aliases expand to too much"}
		}
		if n.Kind == yaml.AliasNode {
			return cp(n.Alias, depth+1)
		}
		c := *n
		c.Anchor = ""
		c.Content = make([]*yaml.Node, len(n.Content))
		for i, child := range n.Content {
			var err error
			if c.Content[i], err = cp(child, depth+1); err != nil {
				return nil, err
			}
		}
		return &c, nil
	}
	return cp(n, 0)
}

// clearFlow makes JSON block style, so that what follows goes by lines. Only
// the object itself, its metadata and annotations need it.
func clearFlow(n *yaml.Node) {
	for _, m := range []*yaml.Node{n, Get(n, "metadata"), Get(Get(n, "metadata"), "annotations")} {
		if m != nil {
			m.Style &^= yaml.FlowStyle
		}
	}
}

// Parallel calls f for 0 to n-1 from as many goroutines as there are
// processors; small n stay in this one.
func Parallel(n int, f func(int)) {
	workers := min(goruntime.GOMAXPROCS(0), n/16)
	if workers <= 1 {
		for i := range n {
			f(i)
		}
		return
	}
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := w; i < n; i += workers {
				f(i)
			}
		})
	}
	wg.Wait()
}
