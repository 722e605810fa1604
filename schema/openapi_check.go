package schema

import (
	"slices"

	"github.com/krmcat/krmcat/schema/internal/structural"
)

// openAPI checks an openAPIV3Schema (KC-050). A consumer is told once if it
// cannot be used, and an author everything that is wrong with it.
func (c *checker) openAPI(u cursor) {
	findings := structural.Check(u.v)
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
		case structural.Unknown:
			out.rule = ruleUnknown
			if c.v.StrictFields {
				out = out.at(Error)
			}
		}
		c.report(out)
	}
}
