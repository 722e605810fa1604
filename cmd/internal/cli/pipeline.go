package cli

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"

	"go.yaml.in/yaml/v3"

	"github.com/krmcat/krmcat/runtime"
	"github.com/krmcat/krmcat/runtime/resourcelist"
)

// pipelineFile lists functions. It is the pipeline of a Kptfile, which may be
// given as it is, with the other ways to name a function.
type pipelineFile struct {
	APIVersion string     `yaml:"apiVersion"`
	Kind       string     `yaml:"kind"`
	Metadata   yaml.Node  `yaml:"metadata"`
	Info       yaml.Node  `yaml:"info"`
	Upstream   yaml.Node  `yaml:"upstream"`
	Lock       yaml.Node  `yaml:"upstreamLock"`
	Inventory  yaml.Node  `yaml:"inventory"`
	Pipeline   *stepLists `yaml:"pipeline"`
	stepLists  `yaml:",inline"`
}

type stepLists struct {
	Mutators   []pipelineStep `yaml:"mutators"`
	Validators []pipelineStep `yaml:"validators"`
}

type pipelineStep struct {
	Name     string   `yaml:"name"`
	Function string   `yaml:"function"`
	Catalogs []string `yaml:"catalogs"`
	Image    string   `yaml:"image"`
	Exec     string   `yaml:"exec"`
	Starlark string   `yaml:"starlark"`

	ConfigPath string            `yaml:"configPath"`
	ConfigMap  map[string]string `yaml:"configMap"`
	Config     yaml.Node         `yaml:"config"`

	Selectors []runtime.Selector `yaml:"selectors"`
	Exclude   []runtime.Selector `yaml:"exclude"`
}

// pipeline prepares all functions of a file before any of them runs. Paths in
// it are relative to the file.
func (f *functions) pipeline(ctx context.Context, file string, defaults *functionChoice) ([]runtime.Step, error) {
	data, err := readInput(f.e.In, file)
	if err != nil {
		return nil, fmt.Errorf("reading the pipeline: %w", err)
	}
	lists, err := parsePipeline(data)
	if err != nil {
		return nil, codeError{fmt.Errorf("pipeline %s: %w", file, err), exitInvalid}
	}
	if len(lists.Mutators)+len(lists.Validators) == 0 {
		return nil, codeError{withHint(fmt.Errorf("pipeline %s: it lists no functions", file), "list them under mutators and validators"), exitInvalid}
	}
	dir := filepath.Dir(file)
	if file == "-" {
		dir = "."
	}
	var steps []runtime.Step
	for _, l := range []struct {
		what      string
		steps     []pipelineStep
		validator bool
	}{{"mutators", lists.Mutators, false}, {"validators", lists.Validators, true}} {
		for i, s := range l.steps {
			step, err := f.pipelineStep(ctx, dir, s, defaults)
			if err != nil {
				return nil, fmt.Errorf("pipeline %s: %s[%d]: %w", file, l.what, i, err)
			}
			step.Validator = l.validator
			steps = append(steps, step)
		}
	}
	return steps, nil
}

// parsePipeline reads the steps of a pipeline file, or of a Kptfile.
func parsePipeline(data []byte) (stepLists, error) {
	var p pipelineFile
	dec := yaml.NewDecoder(bytes.NewReader(data))
	dec.KnownFields(true)
	if err := dec.Decode(&p); err != nil {
		return stepLists{}, err
	}
	lists := p.stepLists
	if p.Pipeline != nil {
		lists = *p.Pipeline
	}
	// A step that is null vanishes in the YAML library; that one is missing
	// must not go unnoticed.
	var doc yaml.Node
	if err := yaml.Unmarshal(data, &doc); err != nil || len(doc.Content) == 0 {
		return lists, err
	}
	top := doc.Content[0]
	if p.Pipeline != nil {
		top = resourcelist.Get(top, "pipeline")
	}
	for _, l := range []struct {
		name  string
		steps []pipelineStep
	}{{"mutators", lists.Mutators}, {"validators", lists.Validators}} {
		if n := resourcelist.Get(top, l.name); n != nil && n.Kind == yaml.SequenceNode && len(n.Content) != len(l.steps) {
			return lists, fmt.Errorf("line %d: a step of %s is empty", n.Line, l.name)
		}
	}
	return lists, nil
}

func (f *functions) pipelineStep(ctx context.Context, dir string, s pipelineStep, defaults *functionChoice) (runtime.Step, error) {
	c := functionChoice{Function: s.Function, Image: s.Image, Catalogs: s.Catalogs, Trusted: defaults.Trusted}
	if len(c.Catalogs) == 0 {
		c.Catalogs = defaults.Catalogs
	}
	c.Exec = s.Exec
	if p := filepath.Join(dir, s.Exec); s.Exec != "" && !filepath.IsAbs(s.Exec) {
		// A program beside the pipeline, or else one on the path.
		if _, err := os.Stat(p); err == nil {
			if c.Exec, err = filepath.Abs(p); err != nil {
				return runtime.Step{}, err
			}
		}
	}
	for _, p := range []struct{ from, to *string }{{&s.Starlark, &c.Starlark}, {&s.ConfigPath, &c.Config}} {
		*p.to = *p.from
		if *p.from != "" && !filepath.IsAbs(*p.from) {
			*p.to = filepath.Join(dir, *p.from)
		}
	}
	if c.Function != "" {
		if _, err := os.Stat(filepath.Join(dir, c.Function)); err == nil {
			c.Function = filepath.Join(dir, c.Function)
		}
	}
	n := 0
	for _, given := range []bool{c.Config != "", len(s.ConfigMap) > 0, s.Config.Kind != 0} {
		if given {
			n++
		}
	}
	if n > 1 {
		return runtime.Step{}, codeError{fmt.Errorf("give one of configPath, configMap and config"), exitInvalid}
	}
	var pairs []string
	for k, v := range s.ConfigMap {
		pairs = append(pairs, k+"="+v)
	}
	if s.Exec != "" && !f.engine.Grants.Exec {
		return runtime.Step{}, &runtime.GrantError{Name: s.Exec, Needs: "exec", Why: "the pipeline runs a program of this machine"}
	}
	for _, file := range []string{s.Exec, s.Starlark} {
		if file == "" {
			continue
		}
		if err := f.trust.local(ctx, file); err != nil {
			return runtime.Step{}, err
		}
	}
	var step runtime.Step
	var err error
	if s.Config.Kind != 0 {
		config, merr := yaml.Marshal(&s.Config)
		if merr != nil {
			return step, merr
		}
		step, err = f.chooseWith(ctx, &c, config)
	} else {
		step, err = f.choose(ctx, &c, pairs)
	}
	if s.Name != "" {
		step.Name = s.Name
	}
	step.Include, step.Exclude = s.Selectors, s.Exclude
	return step, err
}
