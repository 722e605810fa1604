package schema

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// aliasFields are spellings that a rule of their own reads as something else.
var aliasFields = map[string]bool{"requireFilesystem": true}

// renamed says what authors mean by names that are too far from the right one
// for a guess by spelling.
var renamed = map[string]string{
	"requireStorage": "requireStorageMount", "storageMount": "requireStorageMount", "storageMounts": "requireStorageMount",
	"network": "requireNetwork", "checksum": "sha256", "digest": "sha256", "url": "uri", "functions": "krmFunctions",
	"openapi": "openAPIV3Schema", "docker": "container", "platform": "platforms", "keywords": "tags", "binary": "bin",
	"architecture": "arch", "operatingSystem": "os", "licence": "license", "homepage": "home", "readme": "usage",
}

// unknownFields reports keys that the schema does not know, except in
// metadata, where Kubernetes decides, and in openAPIV3Schema, which has a
// check of its own.
func (c *checker) unknownFields(definition string) {
	c.unknown(functionBundle, functionBundle.definition(definition), cursor{c: c, v: c.doc.Value})
}

func (c *checker) unknown(b *bundle, s map[string]any, u cursor) {
	s = b.resolve(s)
	switch v := u.v.(type) {
	case map[string]any:
		if branches, ok := s["anyOf"].([]any); ok {
			for _, x := range branches {
				if m, _ := x.(map[string]any); m["type"] == "object" {
					s = m
				}
			}
		}
		props, _ := s["properties"].(map[string]any)
		if props == nil {
			return
		}
		for k, e := range v {
			f := u.child(k, e)
			p, known := props[k].(map[string]any)
			switch {
			case known && (k == "metadata" || k == "openAPIV3Schema"):
			case known:
				c.unknown(b, p, f)
			case aliasFields[k]:
			default:
				c.report(c.unknownField(f, k, props))
			}
		}
	case []any:
		items, _ := s["items"].(map[string]any)
		if items == nil {
			return
		}
		for _, item := range u.items() {
			c.unknown(b, items, item)
		}
	}
}

// unknownField says what a key may have been meant as.
func (c *checker) unknownField(f cursor, name string, props map[string]any) finding {
	out := finding{rule: ruleUnknown, path: f.path, onKey: true, message: fmt.Sprintf("unknown field %s", display(name))}
	if len(f.path) > 1 && f.path[len(f.path)-2] == "runtime" {
		out.message = fmt.Sprintf("unknown runtime %s", display(name))
		out.fix = "krmcat knows container, exec and starlark"
	}
	near := renamed[name]
	if _, ok := props[near]; !ok {
		near = suggest(name, slices.Sorted(maps.Keys(props)))
	}
	if near != "" {
		out.fix = fmt.Sprintf("did you mean %q?", near)
	}
	if c.v.Level == Publish && c.v.StrictFields {
		return out.at(Error)
	}
	return out
}

// suggest is the candidate that is spelled most like a name, or "" if none is
// near enough.
func suggest(name string, candidates []string) string {
	if name == "" || len(name) > 100 {
		return ""
	}
	best, limit := "", 1+len(name)/3
	for _, c := range candidates {
		if d := distance(strings.ToLower(name), strings.ToLower(c)); d <= limit && d < len(c) {
			best, limit = c, d-1
		}
	}
	return best
}

// distance counts the insertions, deletions, changes and swaps of neighbours
// that turn a into b (optimal string alignment).
func distance(a, b string) int {
	prev2, prev, cur := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := 1; i <= len(a); i++ {
		cur[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			cur[j] = min(prev[j]+1, cur[j-1]+1, prev[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				cur[j] = min(cur[j], prev2[j-2]+1)
			}
		}
		prev2, prev, cur = prev, cur, prev2
	}
	return prev[len(b)]
}

// Suggest is the candidate that is spelled most like a name, or "" if none is
// near enough.
func Suggest(name string, candidates []string) string { return suggest(name, candidates) }
