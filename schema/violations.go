package schema

import (
	"fmt"
	"slices"
	"strings"
)

// forPeople are the fields of a function and of a version that no machine
// acts on: when one has the wrong type, a consumer ignores it.
var forPeople = []string{"description", "publisher", "home", "maintainers", "tags", "usage", "examples", "license"}

// violation reports a broken keyword of the schema under the rule that covers
// the place, in words that fit it. Places that a rule of our own looks at
// alone are left to that rule.
func (c *checker) violation(definition string, v violation) {
	f := finding{rule: ruleType, path: v.path, message: v.describe()}
	if v.keyword == "required" {
		c.missing(definition, v)
		return
	}
	if len(v.path) == 1 && (v.path[0] == "apiVersion" || v.path[0] == "kind") {
		return // kindOf has reported it
	}
	if len(v.path) > 0 && v.path[0] == "metadata" {
		f.rule = ruleMetadata
		c.report(f)
		return
	}
	rel := relative(definition, v.path)
	last := ""
	if len(rel) > 0 {
		last = rel[len(rel)-1]
	}
	switch {
	case len(rel) >= 4 && rel[0] == "versions" && rel[2] == "schema" && rel[3] == "openAPIV3Schema" && len(rel) > 4:
		return // the schema has a check of its own
	case len(rel) >= 3 && rel[0] == "versions" && rel[2] == "schema":
		f.rule = ruleNoSchema
		f.fix = "write the schema inline, as in a CustomResourceDefinition"
		if c.v.Level == Consume {
			f.message += "; functionConfigs will not be validated"
		}
	case last == "idempotent", last == "requireNetwork", last == "requireStorageMount", last == "requireFilesystem", last == "configMap":
		f.rule = ruleBoolean
		f.fix = "write true or false"
		if s, ok := v.value.(string); ok && isBooleanWord(s) {
			f.fix = "write true, as YAML 1.2 has no other words for it"
			if l := strings.ToLower(s); strings.HasPrefix(l, "n") || l == "off" {
				f.fix = "write false, as YAML 1.2 has no other words for it"
			}
		}
		if c.v.Level == Consume {
			f.message += "; read as false"
		}
	case last == "sha256":
		f.rule = ruleDigest
		if _, isMap := v.value.(map[string]any); !isMap && v.value != nil {
			f.fix = "quote it"
		}
	case last == "license" && v.keyword == "enum":
		return // license looks at it
	case (last == "os" || last == "arch") && v.keyword == "enum":
		f.rule = rulePlatform
		if near := suggestEnum(v); near != "" {
			f.fix = fmt.Sprintf("did you mean %q?", near)
		}
		if c.v.Level == Consume {
			f.message += ", and is usable on such a host only"
		}
	case len(rel) > 0 && (slices.Contains(forPeople, rel[0]) || len(rel) > 2 && rel[0] == "versions" && slices.Contains(forPeople, rel[2])):
		f.rule = ruleIgnored
		if c.v.Level == Consume {
			f.message += "; ignored"
		}
	case len(rel) > 0 && rel[0] == "kind":
		f.rule = ruleNames
	}
	c.report(f)
}

func suggestEnum(v violation) string {
	list, _ := v.schema["enum"].([]any)
	words := make([]string, 0, len(list))
	for _, w := range list {
		if s, ok := w.(string); ok {
			words = append(words, s)
		}
	}
	s, _ := v.value.(string)
	switch s {
	// The names of other tools for the same machines.
	case "x86_64", "x64", "aarch64", "macos", "macOS", "osx", "win32":
		return map[string]string{"x86_64": "amd64", "x64": "amd64", "aarch64": "arm64", "macos": "darwin", "macOS": "darwin", "osx": "darwin", "win32": "windows"}[s]
	}
	return suggest(s, words)
}

// missing reports required fields that are not there.
func (c *checker) missing(definition string, v violation) {
	names := v.missing()
	if len(v.path) == 0 {
		for _, n := range names {
			if n == "spec" {
				c.report(finding{rule: ruleRequired, message: `missing "spec"`})
			}
		}
		return
	}
	rel := relative(definition, v.path)
	var others []string
	for _, n := range names {
		f := finding{rule: ruleRequired, path: v.path, message: fmt.Sprintf("missing %q", n), onKey: true}
		switch {
		case len(rel) == 0 && (n == "publisher" || n == "description"):
			f.rule = rulePublisher
		case len(rel) == 0 && n == "group":
			f.rule = ruleGroup
		case len(rel) == 0 && n == "versions":
			f.rule = ruleVersions
			if c.v.Level == Consume {
				f.message += ": nothing to resolve"
			}
		case len(rel) == 0 && n == "names":
			if m, _ := v.value.(map[string]any); m["kind"] != nil {
				continue // kind beside group is read as names.kind
			}
		case len(rel) == 1 && n == "krmFunctions", definition == KindCatalog && len(v.path) == 1:
			f.rule = ruleEmpty
		case len(rel) == 2 && rel[0] == "versions" && n == "name":
		case len(rel) == 2 && rel[0] == "versions" && n == "runtime":
			continue // noRuntime knows whether there is one beside versions
		case len(rel) == 2 && rel[0] == "versions":
			others = append(others, n)
			continue
		case len(rel) == 3 && rel[2] == "schema":
			f.rule = ruleNoSchema
			if c.v.Level == Consume {
				f.message += "; functionConfigs will not be validated"
			}
		case len(rel) > 3 && rel[2] == "schema":
			continue // the schema has a check of its own
		case n == "platforms":
			f.rule = ruleNoRuntime
		case n == "sha256":
			continue // digests looks at it together with the uri
		}
		c.report(f)
	}
	if len(others) > 0 {
		f := finding{rule: ruleVersion, path: v.path, message: "missing " + strings.Join(others, ", "), onKey: true}
		if c.v.Level == Consume && slices.Contains(others, "idempotent") {
			f.message += "; read as not idempotent"
		}
		c.report(f)
	}
}

// relative is a path from the function's spec on: empty for the spec itself
// and for what is outside of it.
func relative(definition string, path []string) []string {
	n := 1
	if definition == KindCatalog {
		n = 3 // spec.krmFunctions[i]
	}
	if len(path) < n || path[0] != "spec" {
		return nil
	}
	return path[n:]
}
