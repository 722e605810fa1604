package cli

import (
	"bytes"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// Whatever a functionConfig holds, the variables are ones that a shell takes.
func FuzzConfigVariables(f *testing.F) {
	f.Add([]byte("metadata: {name: a}\nspec:\n  x-y: 1\n  z: {a: [b], c: null, d: \"e\\0\"}\ndata: {=: b, é: c}\n"))
	f.Add([]byte("spec: &a\n  b: *a\n"))
	f.Add([]byte("- a\n"))
	f.Add([]byte("# nothing\n"))
	f.Fuzz(func(t *testing.T, config []byte) {
		vars, err := configVariables(config)
		if err != nil {
			return
		}
		for name, value := range vars {
			if strings.Trim(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") != "" || strings.Contains(value, "\x00") {
				t.Errorf("%q=%q", name, value)
			}
		}
	})
}

// A pipeline file is read or refused; what is read has the steps that a plain
// parse sees.
func FuzzPipelineFile(f *testing.F) {
	f.Add([]byte("mutators:\n- function: a\n  selectors: [{kind: A, labels: {a: b}}]\n  config: {a: b}\nvalidators:\n- starlark: b\n"))
	f.Add([]byte("apiVersion: kpt.dev/v1\nkind: Kptfile\npipeline:\n  mutators:\n  - image: a\n    configMap: {a: b}\n"))
	f.Add([]byte("mutators: &a\n- {exec: x}\nvalidators: *a\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := parsePipeline(data)
		if err != nil {
			return
		}
		var plain struct {
			Pipeline *struct{ Mutators, Validators []yaml.Node }
		}
		if err := yaml.NewDecoder(bytes.NewReader(data)).Decode(&plain); err == nil && plain.Pipeline != nil {
			if len(p.Mutators) != len(plain.Pipeline.Mutators) || len(p.Validators) != len(plain.Pipeline.Validators) {
				t.Errorf("%d and %d steps, want %d and %d", len(p.Mutators), len(p.Validators), len(plain.Pipeline.Mutators), len(plain.Pipeline.Validators))
			}
		}
	})
}
