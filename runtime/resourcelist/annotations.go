package resourcelist

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"go.yaml.in/yaml/v3"
)

// origin is what the four annotations of one item say.
type origin struct {
	path, legacyPath   *string
	index, legacyIndex *string
}

// originOf reads the four annotations; annotations may be nil.
func originOf(annotations *yaml.Node) (origin, error) {
	var o origin
	annotations = deref(annotations)
	if annotations == nil || annotations.ShortTag() == "!!null" {
		return o, nil
	}
	if annotations.Kind != yaml.MappingNode {
		return o, fmt.Errorf("%w: metadata.annotations is %s, not a mapping", ErrItem, kindName(annotations))
	}
	for i := 0; i+1 < len(annotations.Content); i += 2 {
		v := deref(annotations.Content[i+1])
		if v.Kind != yaml.ScalarNode {
			continue
		}
		switch annotations.Content[i].Value {
		case PathAnnotation:
			o.path = &v.Value
		case LegacyPathAnnotation:
			o.legacyPath = &v.Value
		case IndexAnnotation:
			o.index = &v.Value
		case LegacyIndexAnnotation:
			o.legacyIndex = &v.Value
		}
	}
	return o, nil
}

func (o origin) empty() bool {
	return o.path == nil && o.legacyPath == nil && o.index == nil && o.legacyIndex == nil
}

// agree gives the path and index when nothing is known about what they were:
// the two spellings must say the same, or only one be there.
func (o origin) agree() (string, int, error) {
	p, err := one("path", o.path, o.legacyPath)
	if err != nil {
		return "", indexUnset, err
	}
	i, err := one("index", o.index, o.legacyIndex)
	if err != nil {
		return "", indexUnset, err
	}
	return parseOrigin(p, i)
}

// since gives the path and index after a function had the item: the spelling
// that the function changed wins (KG checklist, "last change wins").
func (o origin) since(before origin) (string, int, error) {
	p, err := changed("path", o.path, o.legacyPath, before.path, before.legacyPath)
	if err != nil {
		return "", indexUnset, err
	}
	i, err := changed("index", o.index, o.legacyIndex, before.index, before.legacyIndex)
	if err != nil {
		return "", indexUnset, err
	}
	return parseOrigin(p, i)
}

func parseOrigin(p, i *string) (string, int, error) {
	var where string
	if p != nil {
		where = *p
	}
	if i == nil || *i == "" {
		return where, indexUnset, nil
	}
	n, err := strconv.Atoi(*i)
	if err != nil || n < 0 {
		return where, indexUnset, fmt.Errorf("%w: annotation %s is %q, not a number from 0", ErrItem, IndexAnnotation, *i)
	}
	return where, n, nil
}

func one(what string, a, b *string) (*string, error) {
	if a == nil {
		return b, nil
	}
	if b != nil && *a != *b {
		return nil, fmt.Errorf("%w: %s%s is %q, config.kubernetes.io/%s is %q", ErrConflict, InternalPrefix, what, *a, what, *b)
	}
	return a, nil
}

func changed(what string, a, b, oldA, oldB *string) (*string, error) {
	if same(a, b) {
		return a, nil
	}
	aChanged, bChanged := !same(a, oldA), !same(b, oldB)
	switch {
	case aChanged && bChanged && a != nil && b != nil:
		return one(what, a, b)
	case aChanged && a != nil:
		return a, nil
	case bChanged && b != nil:
		return b, nil
	case a != nil && !aChanged:
		return a, nil // the other was removed
	case b != nil:
		return b, nil
	}
	return a, nil
}

func same(a, b *string) bool {
	if a == nil || b == nil {
		return a == b
	}
	return *a == *b
}

// CheckPath reports what is wrong with a path annotation: it must be
// relative, slash-delimited and clean, and stay below its root (FS-42).
func CheckPath(p string) error {
	switch {
	case p == "":
		return fmt.Errorf("the path is empty")
	case strings.ContainsAny(p, "\\\x00"):
		return fmt.Errorf("path %q: only slashes separate folders", p)
	case path.IsAbs(p), len(p) > 1 && p[1] == ':':
		return fmt.Errorf("path %q is absolute; paths are relative to the folder of resources", p)
	case path.Clean(p) == ".." || strings.HasPrefix(path.Clean(p), "../"):
		return fmt.Errorf("path %q leaves the folder of resources", p)
	case path.Clean(p) != p || p == ".":
		return fmt.Errorf("path %q is not clean; write %q", p, path.Clean(p))
	}
	return nil
}

// lineInsert is text to be put before a line (from 1).
type lineInsert struct {
	line int
	text string
}

// annotate adds the four annotations to the text of a document by inserting
// lines, so that everything else stays as it is. It reports false if the
// document is not written in a way that allows it.
func annotate(doc []byte, n *yaml.Node, p string, index int) ([]byte, bool) {
	if n.Kind != yaml.MappingNode || n.Style&yaml.FlowStyle != 0 {
		return nil, false
	}
	var mdKey, md *yaml.Node
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == "metadata" {
			mdKey, md = n.Content[i], n.Content[i+1]
			break
		}
	}
	if md == nil || !plainBlock(mdKey, md) {
		return nil, false
	}
	indent, prefix, at := md.Content[0].Column-1, "annotations:\n", mdKey.Line+1
	if indent <= mdKey.Column-1 {
		return nil, false
	}
	pad := strings.Repeat(" ", indent)
	for i := 0; i+1 < len(md.Content); i += 2 {
		if md.Content[i].Value != "annotations" {
			continue
		}
		a := md.Content[i+1]
		if !plainBlock(md.Content[i], a) {
			return nil, false
		}
		if o, err := originOf(a); err != nil || !o.empty() {
			return nil, false
		}
		prefix, at = "", md.Content[i].Line+1
		indent = a.Content[0].Column - 1
		pad = ""
	}
	var b strings.Builder
	b.WriteString(pad)
	b.WriteString(prefix)
	if prefix != "" {
		indent += 2
	} else {
		b.Reset()
	}
	inner := strings.Repeat(" ", indent)
	q := quote(p)
	i := strconv.Itoa(index)
	for _, kv := range [][2]string{{IndexAnnotation, "'" + i + "'"}, {PathAnnotation, q}, {LegacyIndexAnnotation, "'" + i + "'"}, {LegacyPathAnnotation, q}} {
		b.WriteString(inner)
		b.WriteString(kv[0])
		b.WriteString(": ")
		b.WriteString(kv[1])
		b.WriteByte('\n')
	}
	return insertLine(doc, lineInsert{at, b.String()}), true
}

// plainBlock reports whether value is a non-empty block mapping on the lines
// after its key, without anchor or tag.
func plainBlock(key, value *yaml.Node) bool {
	return value.Kind == yaml.MappingNode && value.Style&(yaml.FlowStyle|yaml.TaggedStyle) == 0 && value.Anchor == "" &&
		len(value.Content) > 0 && value.Content[0].Line > key.Line && value.Content[0].Kind == yaml.ScalarNode
}

func insertLine(doc []byte, ins lineInsert) []byte {
	at := 0
	for i := 1; i < ins.line; i++ {
		j := bytes.IndexByte(doc[at:], '\n')
		if j < 0 {
			break
		}
		at += j + 1
	}
	out := make([]byte, 0, len(doc)+len(ins.text))
	out = append(out, doc[:at]...)
	out = append(out, ins.text...)
	return append(out, doc[at:]...)
}

// quote writes a path as a YAML scalar. Paths of ordinary characters need no
// quotes; everything else goes through the YAML library.
func quote(p string) string {
	if strings.ContainsFunc(p, func(r rune) bool { return !unicode.IsPrint(r) }) {
		if b, err := json.Marshal(p); err == nil {
			return string(b)
		}
	}
	plain := p != "" && strings.ContainsAny(p[:1], "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
	for _, c := range p {
		if c != '/' && c != '.' && c != '-' && c != '_' && (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') {
			plain = false
		}
	}
	if plain && strings.ContainsAny(p, "./") {
		return p
	}
	return "'" + strings.ReplaceAll(p, "'", "''") + "'"
}

// setOrigin sets the four annotations on a parsed object; an empty path
// removes the path, a negative index the index.
func setOrigin(n *yaml.Node, p string, index int) {
	set := map[string]string{}
	if p != "" {
		set[PathAnnotation], set[LegacyPathAnnotation] = p, p
	}
	if index >= 0 {
		set[IndexAnnotation], set[LegacyIndexAnnotation] = strconv.Itoa(index), strconv.Itoa(index)
	}
	editAnnotations(n, func(key string) bool { _, ok := set[key]; return !ok && isOrigin(key) }, set)
}

func isOrigin(key string) bool {
	return key == PathAnnotation || key == IndexAnnotation || key == LegacyPathAnnotation || key == LegacyIndexAnnotation
}

// isInternal reports whether an annotation is the orchestrator's own and is
// not written to files (FS-36, FS-39).
func isInternal(key string) bool { return isOrigin(key) || strings.HasPrefix(key, InternalPrefix) }

// editAnnotations drops and sets annotations. A map that becomes empty goes.
func editAnnotations(n *yaml.Node, drop func(string) bool, set map[string]string) {
	md := Get(n, "metadata")
	if md == nil || md.Kind != yaml.MappingNode {
		if len(set) == 0 {
			return
		}
		md = setField(n, "metadata", &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"})
	}
	a := Get(md, "annotations")
	if a == nil || a.Kind != yaml.MappingNode {
		if len(set) == 0 {
			return
		}
		a = setField(md, "annotations", &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"})
	}
	had := len(a.Content) > 0
	kept := a.Content[:0:0]
	done := map[string]bool{}
	for i := 0; i+1 < len(a.Content); i += 2 {
		k, v := a.Content[i], a.Content[i+1]
		if s, ok := set[k.Value]; ok {
			done[k.Value] = true
			if deref(v).Value != s {
				v = scalarNode(s)
			}
		} else if drop(k.Value) {
			continue
		}
		kept = append(kept, k, v)
	}
	for _, k := range []string{IndexAnnotation, PathAnnotation, LegacyIndexAnnotation, LegacyPathAnnotation} {
		if s, ok := set[k]; ok && !done[k] {
			kept = append(kept, &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: k}, scalarNode(s))
		}
	}
	a.Content = kept
	if had && len(kept) == 0 {
		removeField(md, "annotations")
		if len(md.Content) == 0 {
			removeField(n, "metadata")
		}
	}
}

func scalarNode(s string) *yaml.Node {
	n := &yaml.Node{}
	n.SetString(s)
	return n
}

func setField(n *yaml.Node, field string, v *yaml.Node) *yaml.Node {
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == field {
			n.Content[i+1] = v
			return v
		}
	}
	n.Content = append(n.Content, &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: field}, v)
	return v
}

func removeField(n *yaml.Node, field string) {
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == field {
			n.Content = append(n.Content[:i:i], n.Content[i+2:]...)
			return
		}
	}
}

// CheckInternal reports, for an item that a function changed, whether the
// function changed an internal annotation that is not its to change (FS-40,
// FS-41): all but path and index.
func (it *Item) CheckInternal() error {
	if it.prev == nil {
		return nil
	}
	if it.prev.internal == it.internal || it.prev.internal == "" {
		return nil
	}
	now, err := it.Annotations()
	if err != nil {
		return err
	}
	before, err := it.prev.Annotations()
	if err != nil {
		return err
	}
	for k, v := range before {
		if !strings.HasPrefix(k, InternalPrefix) || isOrigin(k) {
			continue
		}
		if w, ok := now[k]; !ok {
			return fmt.Errorf("%s: the function removed the internal annotation %s: %w", it.meta.ID(), k, ErrInternal)
		} else if w != v {
			return fmt.Errorf("%s: the function changed the internal annotation %s from %q to %q: %w", it.meta.ID(), k, v, w, ErrInternal)
		}
	}
	return nil
}

// internalOf is a text of the internal annotations that are not a function's
// to change; most items have none.
func internalOf(n *yaml.Node) string {
	a := Get(Get(n, "metadata"), "annotations")
	if a == nil || a.Kind != yaml.MappingNode {
		return ""
	}
	var found []string
	for i := 0; i+1 < len(a.Content); i += 2 {
		if k := a.Content[i].Value; strings.HasPrefix(k, InternalPrefix) && !isOrigin(k) {
			found = append(found, k+"="+deref(a.Content[i+1]).Value)
		}
	}
	slices.Sort(found)
	return strings.Join(found, "\n")
}

// WithAnnotation is the item with an annotation set; it is an item of its
// own, not a change of this one.
func (it *Item) WithAnnotation(key, value string) (*Item, error) {
	n, err := it.Node()
	if err != nil {
		return nil, err
	}
	md := Get(n, "metadata")
	if md == nil || md.Kind != yaml.MappingNode {
		md = setField(n, "metadata", &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"})
	}
	a := Get(md, "annotations")
	if a == nil || a.Kind != yaml.MappingNode {
		a = setField(md, "annotations", &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"})
	}
	setField(a, key, scalarNode(value))
	changed, err := it.Update(n)
	if err != nil {
		return nil, err
	}
	changed.prev, changed.made = nil, it.made
	return changed, nil
}
