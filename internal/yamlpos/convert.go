package yamlpos

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"
)

// converter turns the nodes of one document into values.
type converter struct {
	p        *parser
	doc      *Document
	anchored map[*yaml.Node]bool // the anchored nodes of this document
	open     map[*yaml.Node]bool // targets of aliases that are being expanded
	expanded int
	depth    int
	path     []string
	failed   bool // a limit was hit: stop
}

// convert computes the value of a document and adds the document to the file.
func (p *parser) convert(d *Document) {
	d.Index = len(p.file.Documents)
	before := len(p.problems)
	c := &converter{p: p, doc: d}
	c.findAnchors(d.Node)
	d.Value = c.value(d.Node)
	d.Bad = len(p.problems) > before || d.Bad
	p.file.Documents = append(p.file.Documents, d)
}

func (c *converter) findAnchors(n *yaml.Node) {
	if n.Anchor != "" {
		if c.anchored == nil {
			c.anchored = map[*yaml.Node]bool{}
		}
		c.anchored[n] = true
	}
	for _, child := range n.Content {
		c.findAnchors(child)
	}
}

func (c *converter) problem(n *yaml.Node, kind Kind, message, fix string) {
	c.p.problem(Problem{Kind: kind, Line: n.Line, Column: n.Column, Width: Width(n),
		Path: append([]string(nil), c.path...), Message: message, Fix: fix})
}

func (c *converter) push(s string) { c.path = append(c.path, s) }
func (c *converter) pop()          { c.path = c.path[:len(c.path)-1] }

func (c *converter) value(n *yaml.Node) any {
	if c.failed || c.p.stopped {
		return nil
	}
	if len(c.open) > 0 {
		c.expanded++
		if c.expanded > c.p.limits.Expanded {
			c.failed = true
			c.problem(n, Limit, fmt.Sprintf("aliases expand to more than %d values", c.p.limits.Expanded), "write the values out")
			return nil
		}
	}
	// The reader has limited how deep the text nests; aliases can nest deeper.
	if n.Kind == yaml.MappingNode || n.Kind == yaml.SequenceNode {
		c.depth++
		defer func() { c.depth-- }()
	}
	if c.depth > c.p.limits.Depth {
		c.failed = true
		c.problem(n, Limit, fmt.Sprintf("nested more than %d levels deep", c.p.limits.Depth), "")
		return nil
	}
	switch n.Kind {
	case yaml.MappingNode:
		c.checkTag(n, "!!map")
		return c.mapping(n)
	case yaml.SequenceNode:
		c.checkTag(n, "!!seq")
		out := make([]any, 0, len(n.Content))
		for i, item := range n.Content {
			c.push(strconv.Itoa(i))
			out = append(out, c.value(item))
			c.pop()
		}
		return out
	case yaml.AliasNode:
		target := c.enter(n)
		if target == nil {
			return nil
		}
		defer c.leave(target)
		return c.value(target)
	}
	return c.scalar(n)
}

// enter starts the expansion of an alias. It returns nil after reporting an
// alias that cannot be expanded.
func (c *converter) enter(n *yaml.Node) *yaml.Node {
	if len(c.open) == 0 {
		c.doc.Aliases = append(c.doc.Aliases, n)
	}
	t := n.Alias
	switch {
	case t == nil:
		c.problem(n, Alias, fmt.Sprintf("unknown anchor %q", n.Value), "")
		return nil
	case !c.anchored[t]:
		// The reader keeps anchors from one document to the next, which YAML
		// does not allow.
		c.problem(n, Alias, fmt.Sprintf("anchor %q is in another document", n.Value), "define it in this document, or write the value out")
		return nil
	case c.open[t] || n.Line == t.Line && n.Column == t.Column || within(t, n):
		c.problem(n, Alias, fmt.Sprintf("alias %q is inside of what it stands for", n.Value), "write the value out")
		return nil
	}
	if c.open == nil {
		c.open = map[*yaml.Node]bool{}
	}
	c.open[t] = true
	return t
}

func (c *converter) leave(t *yaml.Node) { delete(c.open, t) }

// within tells whether a node stands inside of another one. Only the direct
// path can be asked for cheaply: nested cycles are found by open.
func within(outer, n *yaml.Node) bool {
	for _, child := range outer.Content {
		if child == n {
			return true
		}
	}
	return false
}

func (c *converter) mapping(n *yaml.Node) any {
	out := make(map[string]any, len(n.Content)/2)
	var lines map[string]int // only for messages: where a key was first
	var merges []*yaml.Node
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		if k.Kind == yaml.ScalarNode && k.Tag == "!!merge" {
			c.doc.Aliases = append(c.doc.Aliases, k)
			merges = append(merges, v)
			continue
		}
		name, ok := c.key(k)
		if !ok {
			continue
		}
		if _, dup := out[name]; dup {
			if lines == nil {
				lines = map[string]int{}
				for j := 0; j < i; j += 2 {
					if s := n.Content[j]; s.Kind == yaml.ScalarNode && lines[s.Value] == 0 {
						lines[s.Value] = s.Line
					}
				}
			}
			c.push(name)
			c.problem(k, Duplicate, fmt.Sprintf("key %s occurs twice, first at line %d", quoteShort(name), lines[name]), "keep one of them")
			c.pop()
			continue // the first one stays
		}
		c.push(name)
		out[name] = c.value(v)
		c.pop()
	}
	for _, m := range merges {
		c.merge(out, m)
	}
	return out
}

// merge adds what << names; keys that are there already stay.
func (c *converter) merge(out map[string]any, n *yaml.Node) {
	if n.Kind == yaml.SequenceNode {
		for _, item := range n.Content {
			c.merge(out, item)
		}
		return
	}
	if c.failed {
		return
	}
	t := n
	if n.Kind == yaml.AliasNode {
		if t = c.enter(n); t == nil {
			return
		}
		defer c.leave(t)
	}
	if t.Kind != yaml.MappingNode {
		c.problem(n, Alias, "only a mapping can be merged", "")
		return
	}
	m, _ := c.value(t).(map[string]any)
	for k, v := range m {
		if _, there := out[k]; !there {
			out[k] = v
		}
	}
}

// key is the string for a mapping key.
func (c *converter) key(k *yaml.Node) (string, bool) {
	if k.Kind == yaml.AliasNode {
		t := c.enter(k)
		if t == nil {
			return "", false
		}
		c.leave(t)
		if t.Kind != yaml.ScalarNode {
			c.problem(k, Key, "a mapping key must be a string", "")
			return "", false
		}
		k = t
	}
	if k.Kind != yaml.ScalarNode {
		c.problem(k, Key, "a mapping key must be a string, not a "+kindName(k), "")
		return "", false
	}
	switch k.Tag {
	case "!!str", "!!timestamp":
		return k.Value, true
	case "!", "":
		return k.Value, true
	}
	what := strings.TrimPrefix(k.Tag, "!!")
	if k.Style&yaml.TaggedStyle != 0 {
		c.problem(k, Tag, fmt.Sprintf("tag %s is not allowed", quoteShort(k.Tag)), "remove it")
		return "", false
	}
	c.problem(k, Key, fmt.Sprintf("key %s is of type %s, and a mapping key must be a string", k.Value, what), fmt.Sprintf("write %q", k.Value))
	return "", false
}

func kindName(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "mapping"
	case yaml.SequenceNode:
		return "sequence"
	}
	return "scalar"
}

// checkTag reports explicit tags that say something else than the default.
func (c *converter) checkTag(n *yaml.Node, want string) {
	if n.Tag != want && n.Tag != "" && n.Tag != "!" {
		c.problem(n, Tag, fmt.Sprintf("tag %s is not allowed", quoteShort(n.Tag)), "remove it")
	}
}

func (c *converter) scalar(n *yaml.Node) any {
	switch n.Tag {
	case "!!str", "!", "":
		return n.Value
	case "!!null":
		if n.Style&yaml.TaggedStyle != 0 && n.Value != "" && n.Value != "null" && n.Value != "~" {
			c.problem(n, Tag, fmt.Sprintf("%s is not null", quoteShort(n.Value)), "remove the tag")
		}
		return nil
	case "!!bool":
		switch n.Value {
		case "true", "True", "TRUE":
			return true
		case "false", "False", "FALSE":
			return false
		}
	case "!!int":
		if v, ok := parseInt(n.Value); ok {
			return v
		}
	case "!!float":
		if n.Style&yaml.TaggedStyle == 0 || isFloat(n.Value) {
			return c.float(n)
		}
	case "!!timestamp":
		// A date without quotes: what JSON tools would have as a string.
		if n.Style&yaml.TaggedStyle == 0 {
			return n.Value
		}
	}
	if n.Style&yaml.TaggedStyle != 0 {
		switch n.Tag {
		case "!!bool", "!!int", "!!float":
			c.problem(n, Tag, fmt.Sprintf("%s is not of type %s", quoteShort(n.Value), n.Tag[2:]), "remove the tag")
		default:
			c.problem(n, Tag, fmt.Sprintf("tag %s is not allowed", quoteShort(n.Tag)), "remove it")
		}
		return n.Value
	}
	c.problem(n, Tag, fmt.Sprintf("a value of type %s is not allowed", n.Tag), "quote it")
	return n.Value
}

// parseInt reads an integer as go-yaml does: an int64, or a float64 beyond it.
func parseInt(s string) (any, bool) {
	if v, err := strconv.ParseInt(s, 10, 64); err == nil && (s[0] != '0' || len(s) == 1) && !strings.HasPrefix(s, "-0") && s[0] != '+' {
		return v, true
	}
	plain := strings.ReplaceAll(s, "_", "")
	negative := strings.HasPrefix(plain, "-")
	digits := strings.TrimLeft(plain, "+-")
	if digits == "" {
		return nil, false
	}
	base := 10
	switch {
	case strings.HasPrefix(digits, "0x"), strings.HasPrefix(digits, "0X"):
		base, digits = 16, digits[2:]
	case strings.HasPrefix(digits, "0o"), strings.HasPrefix(digits, "0O"):
		base, digits = 8, digits[2:]
	case strings.HasPrefix(digits, "0b"), strings.HasPrefix(digits, "0B"):
		base, digits = 2, digits[2:]
	case len(digits) > 1 && digits[0] == '0':
		base = 8
	}
	sign := ""
	if negative {
		sign = "-"
	}
	if v, err := strconv.ParseInt(sign+digits, base, 64); err == nil {
		return v, true
	}
	if u, err := strconv.ParseUint(digits, base, 64); err == nil {
		f := float64(u)
		if negative {
			f = -f
		}
		return f, true
	}
	if base == 10 {
		if f, err := strconv.ParseFloat(sign+digits, 64); err == nil && !math.IsInf(f, 0) {
			return f, true
		}
	}
	return nil, false
}

func isFloat(s string) bool {
	_, err := strconv.ParseFloat(strings.ReplaceAll(s, "_", ""), 64)
	return err == nil
}

func (c *converter) float(n *yaml.Node) any {
	f, err := strconv.ParseFloat(strings.ReplaceAll(n.Value, "_", ""), 64)
	if err != nil || math.IsInf(f, 0) || math.IsNaN(f) {
		// .inf and .nan, or a number beyond float64.
		c.problem(n, Number, fmt.Sprintf("%s is not a number that JSON can hold", quoteShort(n.Value)), "quote it, or write a finite number")
		return n.Value
	}
	return f
}

// Width is how many runes of its first line a node takes, at least 1.
func Width(n *yaml.Node) int {
	if n.Kind != yaml.ScalarNode {
		if n.Kind == yaml.AliasNode {
			return utf8.RuneCountInString(n.Value) + 1
		}
		return 1
	}
	first, rest, _ := strings.Cut(n.Value, "\n")
	w := utf8.RuneCountInString(first)
	switch {
	case n.Style&(yaml.LiteralStyle|yaml.FoldedStyle) != 0:
		return 1
	case n.Style&(yaml.DoubleQuotedStyle|yaml.SingleQuotedStyle) != 0:
		w++
		if rest == "" {
			w++
		}
	}
	return max(1, w)
}

// quoteShort quotes a string for a message.
func quoteShort(s string) string {
	if n := runeOffset(s, 60); n < len(s) {
		s = s[:n] + "…"
	}
	return strconv.Quote(s)
}

// Scalar is the value of a scalar node on its own, as in [Document.Value].
func Scalar(n *yaml.Node) any {
	c := &converter{p: &parser{file: &File{}, limits: Limits{}.withDefaults()}, doc: &Document{}}
	return c.scalar(n)
}
