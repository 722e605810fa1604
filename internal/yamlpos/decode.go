package yamlpos

import (
	"encoding"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"
)

// Decode puts the value of a document into what v points to: structs with
// json tags, maps with string keys, slices, pointers, strings, booleans,
// integers and types that unmarshal themselves from text. A field of type any
// takes everything.
//
// It is strict: unknown fields, with their exact spelling, and values of other
// types are problems, each with its place; nothing is converted. Null is no
// value for strings, booleans and integers, and nothing for the rest.
func (d *Document) Decode(v any) []Problem { return d.DecodeAt(nil, v) }

// DecodeAt is as Decode, for the value at a path. Where there is none, v stays
// as it is.
func (d *Document) DecodeAt(path []string, v any) []Problem {
	from, ok := d.ValueAt(path)
	if !ok {
		return nil
	}
	x := &decoder{doc: d}
	x.value(slices.Clone(path), from, reflect.ValueOf(v).Elem())
	return x.problems
}

// ValueAt is the value at a path of field names and indexes.
func (d *Document) ValueAt(path []string) (any, bool) {
	v := d.Value
	for _, t := range path {
		switch c := v.(type) {
		case map[string]any:
			next, ok := c[t]
			if !ok {
				return nil, false
			}
			v = next
		case []any:
			i, err := strconv.Atoi(t)
			if err != nil || i < 0 || i >= len(c) {
				return nil, false
			}
			v = c[i]
		default:
			return nil, false
		}
	}
	return v, true
}

type decoder struct {
	doc      *Document
	problems []Problem
}

// maxDecodeProblems bounds what is reported of one document.
const maxDecodeProblems = 100

func (x *decoder) problem(path []string, kind Kind, atKey bool, fix, format string, a ...any) {
	if len(x.problems) == maxDecodeProblems {
		return
	}
	x.problems = append(x.problems, x.doc.ProblemAt(path, kind, atKey, fix, format, a...))
}

// ProblemAt is a problem at the place of a path: of the value, or of its key.
// If the path leads nowhere, it is at the last value on the way.
func (d *Document) ProblemAt(path []string, kind Kind, atKey bool, fix, format string, a ...any) Problem {
	key, n, ok := d.Find(path...)
	if atKey && ok && key != nil {
		n = key
	}
	return Problem{Kind: kind, Line: n.Line, Column: n.Column, Width: Width(n), Path: slices.Clone(path), Message: fmt.Sprintf(format, a...), Fix: fix}
}

var textUnmarshaler = reflect.TypeFor[encoding.TextUnmarshaler]()

func (x *decoder) value(path []string, from any, to reflect.Value) {
	t := to.Type()
	if t.Kind() == reflect.Pointer {
		if from == nil {
			return
		}
		to.Set(reflect.New(t.Elem()))
		x.value(path, from, to.Elem())
		return
	}
	if reflect.PointerTo(t).Implements(textUnmarshaler) {
		s, ok := from.(string)
		if !ok {
			x.wrong(path, from, "a string")
			return
		}
		if err := to.Addr().Interface().(encoding.TextUnmarshaler).UnmarshalText([]byte(s)); err != nil {
			x.problem(path, Type, false, "", "%s cannot be read: %v", quoteShort(s), err)
		}
		return
	}
	switch t.Kind() {
	case reflect.Interface:
		if from != nil {
			to.Set(reflect.ValueOf(from))
		}
	case reflect.String:
		if s, ok := from.(string); ok {
			to.SetString(s)
		} else {
			x.wrong(path, from, "a string")
		}
	case reflect.Bool:
		if b, ok := from.(bool); ok {
			to.SetBool(b)
		} else {
			x.wrong(path, from, "true or false")
		}
	case reflect.Int:
		if n, ok := from.(int64); ok && !to.OverflowInt(n) {
			to.SetInt(n)
		} else {
			x.wrong(path, from, "an integer")
		}
	case reflect.Slice:
		list, ok := from.([]any)
		if !ok {
			x.wrong(path, from, "a list")
			return
		}
		out := reflect.MakeSlice(t, len(list), len(list))
		for i, item := range list {
			x.value(append(path[:len(path):len(path)], fmt.Sprint(i)), item, out.Index(i))
		}
		to.Set(out)
	case reflect.Map:
		m, ok := from.(map[string]any)
		if !ok {
			x.wrong(path, from, "a mapping")
			return
		}
		out := reflect.MakeMapWithSize(t, len(m))
		for _, k := range x.keys(path, m) {
			e := reflect.New(t.Elem()).Elem()
			x.value(append(path[:len(path):len(path)], k), m[k], e)
			out.SetMapIndex(reflect.ValueOf(k).Convert(t.Key()), e)
		}
		to.Set(out)
	case reflect.Struct:
		m, ok := from.(map[string]any)
		if !ok {
			x.wrong(path, from, "a mapping")
			return
		}
		x.fields(path, m, to)
	default:
		x.problem(path, Type, false, "", "values of type %s are not read", t)
	}
}

// wrong reports a value of another type. Null is none.
func (x *decoder) wrong(path []string, from any, want string) {
	if from == nil && (want == "a list" || want == "a mapping") && len(path) > 0 {
		return
	}
	x.problem(path, Type, false, "", "this is %s, not %s", typeName(from), want)
}

func typeName(v any) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case string:
		return "the string " + quoteShort(v)
	case bool:
		return fmt.Sprintf("the boolean %v", v)
	case int64, float64:
		return fmt.Sprintf("the number %v", v)
	case []any:
		return "a list"
	}
	return "a mapping"
}

// keys are those of a mapping in the order of the text, so that problems come
// in it too.
func (x *decoder) keys(path []string, m map[string]any) []string {
	_, n, ok := x.doc.Find(path...)
	var keys []string
	seen := make(map[string]bool, len(m))
	if ok && n.Kind == yaml.MappingNode {
		for i := 0; i+1 < len(n.Content); i += 2 {
			k := n.Content[i].Value
			if _, there := m[k]; there && !seen[k] {
				seen[k] = true
				keys = append(keys, k)
			}
		}
	}
	var rest []string // of merge keys
	for k := range m {
		if !seen[k] {
			rest = append(rest, k)
		}
	}
	slices.Sort(rest)
	return append(keys, rest...)
}

func (x *decoder) fields(path []string, m map[string]any, to reflect.Value) {
	known := map[string]int{}
	var names []string
	for i := range to.NumField() {
		f := to.Type().Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.IsExported() && name != "" && name != "-" {
			known[name] = i
			names = append(names, name)
		}
	}
	for _, k := range x.keys(path, m) {
		at := append(path[:len(path):len(path)], k)
		i, ok := known[k]
		if !ok {
			x.problem(at, Field, true, nearest(k, names), "unknown field %s", quoteShort(k))
			continue
		}
		x.value(at, m[k], to.Field(i))
	}
}

// nearest says what a name could have been meant to be.
func nearest(name string, names []string) string {
	for _, n := range names {
		if strings.EqualFold(n, name) {
			return "write " + n
		}
	}
	best, least := "", 3
	for _, n := range names {
		if d := distance(strings.ToLower(name), strings.ToLower(n)); d < least {
			best, least = n, d
		}
	}
	if best != "" {
		return "did you mean " + best + "?"
	}
	return "the fields here are " + strings.Join(names, ", ")
}

// distance is the number of letters to change, add or leave out between two
// words (Levenshtein's).
func distance(a, b string) int {
	if len(a) > 64 || len(b) > 64 {
		return len(a) + len(b)
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
