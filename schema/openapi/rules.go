package openapi

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel/model"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/cel/environment"

	"github.com/krmcat/krmcat/internal/lazyregexp"
	"github.com/krmcat/krmcat/schema"
)

// CheckRules compiles the x-kubernetes-validations of an openAPIV3Schema, as
// decoded from YAML, and reports those that do not compile: the API server
// would refuse the schema for them. It is made for the field of that name of
// [schema.Validator].
func CheckRules(openAPIV3Schema any) (found []schema.RuleFinding) {
	raw, err := json.Marshal(openAPIV3Schema)
	if err != nil || len(raw) > maxSchema {
		return nil
	}
	var v1 apiextensionsv1.JSONSchemaProps
	if json.Unmarshal(raw, &v1) != nil {
		return nil // the schema's own check has said so
	}
	defer func() {
		if recover() != nil {
			found = nil // what the library cannot read is reported when it is used
		}
	}()
	internal := &apiextensions.JSONSchemaProps{}
	if apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(&v1, internal, nil) != nil {
		return nil
	}
	s, err := structuralschema.NewStructural(internal)
	if err != nil {
		return nil
	}
	c := &ruleCompiler{env: environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion())}
	c.walk(s, nil, true)
	return c.found
}

type ruleCompiler struct {
	env   *environment.EnvSet
	found []schema.RuleFinding
}

func (c *ruleCompiler) walk(s *structuralschema.Structural, path []string, root bool) {
	if s == nil {
		return
	}
	if len(s.XValidations) > 0 {
		c.compile(s, path, root || s.XEmbeddedResource)
	}
	names := make([]string, 0, len(s.Properties))
	for name := range s.Properties {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		p := s.Properties[name]
		c.walk(&p, append(path[:len(path):len(path)], "properties", name), false)
	}
	c.walk(s.Items, append(path[:len(path):len(path)], "items"), false)
	if s.AdditionalProperties != nil {
		c.walk(s.AdditionalProperties.Structural, append(path[:len(path):len(path)], "additionalProperties"), false)
	}
}

func (c *ruleCompiler) compile(s *structuralschema.Structural, path []string, resource bool) {
	results, err := cel.Compile(s, model.SchemaDeclType(s, resource), celconfig.PerCallLimit, c.env, cel.NewExpressionsEnvLoader())
	if err != nil {
		c.found = append(c.found, schema.RuleFinding{Path: append(path[:len(path):len(path)], "x-kubernetes-validations"), Message: err.Error()})
		return
	}
	for i, r := range results {
		at := append(path[:len(path):len(path)], "x-kubernetes-validations", strconv.Itoa(i))
		if r.Error != nil {
			c.found = append(c.found, schema.RuleFinding{Path: append(at, "rule"), Message: explain(r.Error.Detail)})
		}
		if r.MessageExpressionError != nil {
			c.found = append(c.found, schema.RuleFinding{Path: append(at, "messageExpression"), Message: explain(r.MessageExpressionError.Detail)})
		}
	}
}

// compilerText is what the compiler says before the reason.
var compilerText = lazyregexp.New(`^.*?compilation failed: (?:ERROR: <input>:[0-9]+:([0-9]+): )?`)

// explain says why an expression does not compile, without the excerpts that
// the compiler draws.
func explain(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	m := compilerText.FindStringSubmatch(line)
	if m == nil {
		return line
	}
	line = "does not compile: " + strings.TrimPrefix(line, m[0])
	if m[1] != "" {
		line += " (at character " + m[1] + ")"
	}
	return line
}
