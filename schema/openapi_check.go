package schema

import (
	"slices"

	"github.com/krmcat/krmcat/schema/internal/structural"
)

// openAPI checks an openAPIV3Schema (KC-050). A consumer is told once if it
// cannot be used, and an author everything that is wrong with it.
func (c *checker) openAPI(u cursor) {
	findings := structural.Check(u.v)
	if c.v.CheckRules != nil && c.v.Level == Publish && structural.Usable(findings) && hasRules(u.v) {
		for _, f := range c.v.CheckRules(u.v) {
			c.report(finding{rule: ruleSchema, path: append(u.path[:len(u.path):len(u.path)], f.Path...), message: f.Message})
		}
	}
	if len(findings) == 0 {
		return
	}
	if c.v.Level == Consume {
		i := slices.IndexFunc(findings, func(f structural.Finding) bool { return f.Kind == structural.Fault })
		if i >= 0 {
			f := findings[i]
			c.report(finding{rule: ruleSchema, path: append(u.path[:len(u.path):len(u.path)], f.Path...), onKey: f.OnKey,
				message: f.Message + "; functionConfigs will not be validated", fix: f.Fix})
		}
		return
	}
	for _, f := range findings {
		out := finding{rule: ruleSchema, path: append(u.path[:len(u.path):len(u.path)], f.Path...), onKey: f.OnKey, message: f.Message, fix: f.Fix}
		switch f.Kind {
		case structural.Unstructural:
			out = out.at(Warning)
		case structural.Contradiction:
			out = out.at(Error)
		case structural.Unknown:
			out.rule = ruleUnknown
			if c.v.StrictFields {
				out = out.at(Error)
			}
		}
		c.report(out)
	}
}

// hasRules tells whether there are x-kubernetes-validations in a schema. The
// schema has been checked, so that it is not nested too deep.
func hasRules(v any) bool {
	switch x := v.(type) {
	case map[string]any:
		if _, ok := x["x-kubernetes-validations"]; ok {
			return true
		}
		for _, e := range x {
			if hasRules(e) {
				return true
			}
		}
	case []any:
		return slices.ContainsFunc(x, hasRules)
	}
	return false
}
