package starlarkfn

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strconv"
	"strings"

	"maps"

	"go.starlark.net/starlark"
	"go.yaml.in/yaml/v3"
)

const maxDepth = 1000

var errDepth = errors.New("nested too deep")

// toValue makes a Starlark value of a YAML node.
func toValue(n *yaml.Node, depth int) (starlark.Value, error) {
	if depth > maxDepth {
		return nil, errDepth
	}
	switch n.Kind {
	case yaml.DocumentNode:
		return toValue(n.Content[0], depth+1)
	case yaml.AliasNode:
		return toValue(n.Alias, depth+1)
	case yaml.MappingNode:
		d := starlark.NewDict(len(n.Content) / 2)
		for i := 0; i+1 < len(n.Content); i += 2 {
			v, err := toValue(n.Content[i+1], depth+1)
			if err != nil {
				return nil, err
			}
			if err := d.SetKey(starlark.String(n.Content[i].Value), v); err != nil {
				return nil, err
			}
		}
		return d, nil
	case yaml.SequenceNode:
		l := make([]starlark.Value, len(n.Content))
		for i, c := range n.Content {
			v, err := toValue(c, depth+1)
			if err != nil {
				return nil, err
			}
			l[i] = v
		}
		return starlark.NewList(l), nil
	}
	return scalarValue(n), nil
}

func scalarValue(n *yaml.Node) starlark.Value {
	switch n.ShortTag() {
	case "!!null":
		return starlark.None
	case "!!bool":
		var b bool
		if n.Decode(&b) == nil {
			return starlark.Bool(b)
		}
	case "!!int":
		var i int64
		if n.Decode(&i) == nil {
			return starlark.MakeInt64(i)
		}
		if b, ok := new(big.Int).SetString(strings.ReplaceAll(n.Value, "_", ""), 0); ok {
			return starlark.MakeBigInt(b)
		}
	case "!!float":
		var f float64
		if n.Decode(&f) == nil {
			return starlark.Float(f)
		}
	}
	return starlark.String(n.Value)
}

// sameValue reports whether a value is still what the node says.
func sameValue(n *yaml.Node, v starlark.Value, depth int) bool {
	if depth > maxDepth {
		return false
	}
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	switch x := v.(type) {
	case *starlark.Dict:
		if n.Kind != yaml.MappingNode || x.Len() != len(n.Content)/2 {
			return false
		}
		for i := 0; i+1 < len(n.Content); i += 2 {
			c, ok, err := x.Get(starlark.String(n.Content[i].Value))
			if err != nil || !ok || !sameValue(n.Content[i+1], c, depth+1) {
				return false
			}
		}
		return true
	case starlark.Indexable:
		if _, ok := v.(starlark.String); ok {
			break
		}
		if n.Kind != yaml.SequenceNode || x.Len() != len(n.Content) {
			return false
		}
		for i, c := range n.Content {
			if !sameValue(c, x.Index(i), depth+1) {
				return false
			}
		}
		return true
	}
	if n.Kind != yaml.ScalarNode {
		return false
	}
	old := scalarValue(n)
	if old.Type() != v.Type() {
		return false
	}
	eq, err := starlark.Equal(old, v)
	return err == nil && eq
}

// toNode makes a YAML node of a Starlark value. Where the value is still that
// of old, the node has the text of old.
func toNode(v starlark.Value, old *yaml.Node, depth int) (*yaml.Node, error) {
	if depth > maxDepth {
		return nil, errDepth
	}
	for old != nil && old.Kind == yaml.AliasNode {
		old = old.Alias
	}
	if old != nil && old.Kind == yaml.ScalarNode && sameValue(old, v, 0) {
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: old.Tag, Value: old.Value, Style: old.Style}, nil
	}
	switch x := v.(type) {
	case starlark.NoneType:
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!null", Value: "null"}, nil
	case starlark.Bool:
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!bool", Value: strconv.FormatBool(bool(x))}, nil
	case starlark.Int:
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!int", Value: x.String()}, nil
	case starlark.Float:
		n := &yaml.Node{}
		return n, n.Encode(float64(x))
	case starlark.String:
		n := &yaml.Node{}
		n.SetString(string(x))
		return n, nil
	case *starlark.Dict:
		return dictNode(x, old, depth)
	case *starlark.List, starlark.Tuple:
		seq := &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq"}
		ix := v.(starlark.Indexable)
		for i := range ix.Len() {
			var was *yaml.Node
			if old != nil && old.Kind == yaml.SequenceNode && i < len(old.Content) {
				was = old.Content[i]
			}
			c, err := toNode(ix.Index(i), was, depth+1)
			if err != nil {
				return nil, fmt.Errorf("[%d]: %w", i, err)
			}
			seq.Content = append(seq.Content, c)
		}
		return seq, nil
	}
	return nil, fmt.Errorf("a %s cannot be written as YAML", v.Type())
}

func dictNode(d *starlark.Dict, old *yaml.Node, depth int) (*yaml.Node, error) {
	m := &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"}
	for _, kv := range d.Items() {
		key, ok := starlark.AsString(kv[0])
		if !ok {
			return nil, fmt.Errorf("key %s is a %s, not a string", kv[0], kv[0].Type())
		}
		var was *yaml.Node
		k := &yaml.Node{}
		k.SetString(key)
		if old != nil && old.Kind == yaml.MappingNode {
			for i := 0; i+1 < len(old.Content); i += 2 {
				if old.Content[i].Value == key {
					was = old.Content[i+1]
					o := old.Content[i]
					k = &yaml.Node{Kind: yaml.ScalarNode, Tag: o.Tag, Value: o.Value, Style: o.Style}
					break
				}
			}
		}
		v, err := toNode(kv[1], was, depth+1)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", key, err)
		}
		m.Content = append(m.Content, k, v)
	}
	return m, nil
}

// fromJSON makes a value of decoded JSON, with keys in order.
func fromJSON(v any) (starlark.Value, error) {
	switch x := v.(type) {
	case nil:
		return starlark.None, nil
	case bool:
		return starlark.Bool(x), nil
	case string:
		return starlark.String(x), nil
	case json.Number:
		if i, ok := new(big.Int).SetString(x.String(), 10); ok {
			return starlark.MakeBigInt(i), nil
		}
		f, err := x.Float64()
		return starlark.Float(f), err
	case []any:
		l := make([]starlark.Value, len(x))
		for i, e := range x {
			var err error
			if l[i], err = fromJSON(e); err != nil {
				return nil, err
			}
		}
		return starlark.NewList(l), nil
	case map[string]any:
		d := starlark.NewDict(len(x))
		for _, k := range slices.Sorted(maps.Keys(x)) {
			e, err := fromJSON(x[k])
			if err != nil {
				return nil, err
			}
			if err := d.SetKey(starlark.String(k), e); err != nil {
				return nil, err
			}
		}
		return d, nil
	}
	return nil, fmt.Errorf("a %T is not JSON", v)
}
