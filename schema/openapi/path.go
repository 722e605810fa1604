package openapi

import (
	"slices"
	"strconv"
	"strings"
)

// resolve turns a field path of the Kubernetes libraries, such as
// spec.ports[0].name or data[a.b], into tokens. As keys are not quoted there,
// the value decides: the path is read so that it leads somewhere, and the
// longest key is tried first. A rest that leads nowhere becomes one token, as
// it is the name of a field that is missing.
func resolve(v any, path string) []string {
	budget := 10_000
	if tokens, ok := walk(v, path, &budget, true); ok {
		return tokens
	}
	budget = 10_000
	tokens, _ := walk(v, path, &budget, false)
	return tokens
}

// walk finds tokens for path in v. With exact unset it takes a rest that is
// not there.
func walk(v any, path string, budget *int, exact bool) ([]string, bool) {
	path = strings.TrimPrefix(path, ".")
	if path == "" || path == "<nil>" {
		return []string{}, true
	}
	if *budget--; *budget < 0 {
		return nil, false
	}
	switch c := v.(type) {
	case []any:
		// An index is in brackets, or behind a dot in some messages.
		rest := strings.TrimPrefix(path, "[")
		digits := len(rest) - len(strings.TrimLeft(rest, "0123456789"))
		i, err := strconv.Atoi(rest[:digits])
		if err == nil && i < len(c) {
			tail := rest[digits:]
			if len(rest) < len(path) {
				tail = strings.TrimPrefix(tail, "]")
			}
			if tokens, ok := walk(c[i], tail, budget, exact); ok {
				return append([]string{rest[:digits]}, tokens...), true
			}
		}
	case map[string]any:
		bracket, inBrackets := strings.CutPrefix(path, "[")
		var keys []string
		for k := range c {
			switch {
			case inBrackets && strings.HasPrefix(bracket, k+"]"), startsWith(path, k):
				keys = append(keys, k)
			}
		}
		slices.SortFunc(keys, func(a, b string) int { return len(b) - len(a) })
		for _, k := range keys {
			tail := strings.TrimPrefix(path, k)
			if inBrackets && strings.HasPrefix(bracket, k+"]") {
				tail = bracket[len(k)+1:]
			}
			if tokens, ok := walk(c[k], tail, budget, exact); ok {
				return append([]string{k}, tokens...), true
			}
		}
	}
	if exact {
		return nil, false
	}
	if strings.HasPrefix(path, "[") && strings.HasSuffix(path, "]") {
		path = path[1 : len(path)-1]
	}
	return []string{path}, true
}

// startsWith tells whether a path starts with a key as a whole.
func startsWith(path, key string) bool {
	rest, ok := strings.CutPrefix(path, key)
	return ok && key != "" && (rest == "" || rest[0] == '.' || rest[0] == '[')
}
