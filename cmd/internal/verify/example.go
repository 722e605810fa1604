package verify

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/krmcat/krmcat/catalog"
	"github.com/krmcat/krmcat/runtime"
	"github.com/krmcat/krmcat/runtime/conformance"
	"github.com/krmcat/krmcat/schema/openapi"
	"github.com/krmcat/krmcat/signing"
)

// examine runs a function on its examples, with one of its runtimes, and
// checks what it does by the functions specification.
func (r *run) examine(subject string, res *catalog.Resolution, rt catalog.Runtime, trusted bool, examples []conformance.Example) {
	what := kindOf(rt)
	if !r.Run {
		r.report.add(subject, "example", Skipped, "%s: not asked for", what)
		return
	}
	engine := *r.Engine
	// The key that the user gave has signed the executables, or the document
	// that gives their digests.
	engine.Grants.Exec = engine.Grants.Exec || trusted
	fn, err := engine.PrepareRuntime(r.ctx, rt)
	switch {
	case errors.Is(err, signing.ErrPolicy), errors.Is(err, signing.ErrUnsigned):
		r.report.fail(subject, "trust", fmt.Errorf("%s: %w", what, err))
		return
	case errors.Is(err, runtime.ErrNotGranted), errors.Is(err, runtime.ErrUnavailable), errors.Is(err, errors.ErrUnsupported):
		r.report.add(subject, "example", Skipped, "%s: %v", what, err)
		return
	case err != nil:
		r.report.fail(subject, "example", fmt.Errorf("%s: %w", what, err))
		return
	}
	opts := conformance.Options{
		Idempotent: res.Version.Idempotent,
		Validator:  slices.Contains(res.Definition.Tags, "validator"),
		Withheld:   withheld(rt, engine.Grants),
	}
	if s, err := openapi.Compile(res.Version.Schema); err == nil {
		opts.Schema, opts.Valid = res.Version.Schema, configCheck(s, res.GVK())
	}
	for _, x := range examples {
		rep := conformance.Run(r.ctx, fn, x, opts)
		// How it takes odd input is the same for every example; it is not
		// tried on one that should fail.
		opts.Quick = opts.Quick || rep.ExitCode == 0
		r.example(subject, what, rep)
		r.compare(subject, what, rep)
	}
}

// withheld is what the runtime of a function keeps from it.
func withheld(rt catalog.Runtime, g runtime.Grants) conformance.Withheld {
	switch {
	case rt.Starlark != nil:
		return conformance.Withheld{Privileges: true, Network: true, Files: true}
	case rt.Container != nil:
		return conformance.Withheld{
			Privileges: true,
			Network:    !rt.Container.RequireNetwork || !g.Network,
			Files:      !rt.Container.RequireStorageMount || !g.StorageMount,
		}
	}
	return conformance.Withheld{} // a program of this machine may do what its user may
}

// configCheck says whether a functionConfig of the type that the schema is for
// is what it allows; others are not its business.
func configCheck(s *openapi.Schema, gvk catalog.GroupVersionKind) func(context.Context, []byte) error {
	return func(ctx context.Context, config []byte) error {
		var head struct {
			APIVersion string `yaml:"apiVersion"`
			Kind       string `yaml:"kind"`
		}
		if yaml.Unmarshal(config, &head) != nil || catalog.GVK(head.APIVersion, head.Kind) != gvk {
			return nil
		}
		ds, err := s.Validate(ctx, "functionConfig", config)
		if err != nil {
			return err
		}
		return ds.Err()
	}
}

// compare compares what a runtime made of an example with what the first one
// did.
func (r *run) compare(subject, what string, rep *conformance.Report) {
	if r.first == nil {
		r.first = map[string]madeBy{}
	}
	key := subject + "\n" + rep.Name
	other, ok := r.first[key]
	if !ok {
		if rep.Err == nil {
			r.first[key] = madeBy{what, rep}
		}
		return
	}
	r.findings(subject, what+", "+rep.Name, conformance.CompareRuntimes(other.runtime, other.report, what, rep))
}

// madeBy is the outcome of an example by one runtime.
type madeBy struct {
	runtime string
	report  *conformance.Report
}

// findings reports findings with their numbers, evidence and remedy. Those
// that are only worth knowing are left out.
func (r *run) findings(subject, what string, found []conformance.Finding) {
	for _, f := range found {
		message := fmt.Sprintf("%s: %s", what, f.Message)
		if len(f.Rules) > 0 {
			message += " (" + strings.Join(f.Rules, ", ") + ")"
		}
		message += "; " + f.Remedy + "\n" + strings.TrimRight(f.Evidence, "\n")
		switch f.Level {
		case conformance.Error:
			r.report.fail(subject, f.ID, errors.New(message))
		case conformance.Warning:
			r.report.add(subject, f.ID, Warning, "%s", message)
		}
	}
}

// example reports what the run of an example showed.
func (r *run) example(subject, what string, rep *conformance.Report) {
	switch {
	case errors.Is(rep.Err, runtime.ErrUnavailable):
		r.report.add(subject, "example", Skipped, "%s, %s: %v", what, rep.Name, rep.Err)
		return
	case rep.Err != nil:
		r.report.fail(subject, "example", fmt.Errorf("%s, %s: %w", what, rep.Name, rep.Err))
		return
	case rep.OK():
		r.report.add(subject, "example", Pass, "%s, %s: as expected, %d checks of the functions specification, %s",
			what, rep.Name, len(rep.Checked), rep.Duration.Round(time.Millisecond))
	default:
		last := ""
		if t := strings.TrimSpace(rep.Stderr); t != "" {
			last = ": " + t[strings.LastIndexByte(t, '\n')+1:]
		}
		r.report.fail(subject, "example", fmt.Errorf("%s, %s: not what the example and the specification ask for (exit code %d)%s", what, rep.Name, rep.ExitCode, last))
	}
	r.findings(subject, what+", "+rep.Name, rep.Findings)
}

func kindOf(rt catalog.Runtime) string {
	switch {
	case rt.Exec != nil:
		return "exec"
	case rt.Starlark != nil:
		return "starlark"
	}
	return "container"
}

// examples fetches the examples of a version: for each README, the input and
// the output beside it.
func (r *run) examples(subject string, v *catalog.Version, base catalog.Location) []conformance.Example {
	var list []conformance.Example
	for _, uri := range v.Examples {
		loc, err := base.Resolve(uri)
		if err == nil {
			_, _, err = catalog.Fetch(r.ctx, r.Source, loc)
		}
		if err != nil {
			r.report.add(subject, "example", Warning, "%v", err)
			continue
		}
		x := conformance.Example{Name: exampleName(loc)}
		if x.Input, err = r.beside(loc, "input.yaml"); err == nil && x.Input != nil {
			x.Expected, err = r.beside(loc, "output.yaml")
		}
		switch {
		case err != nil:
			r.report.fail(subject, "example", fmt.Errorf("%s: %w", x.Name, err))
		case x.Input == nil:
			r.report.add(subject, "example", Skipped, "%s: there is no input.yaml beside it to run it with", uri)
		default:
			list = append(list, x)
		}
	}
	return list
}

// beside fetches a file beside another; nil if it is not there.
func (r *run) beside(loc catalog.Location, name string) ([]byte, error) {
	at, err := sibling(loc, name)
	if err != nil {
		return nil, err
	}
	data, _, err := catalog.Fetch(r.ctx, r.Source, at)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return data, err
}

// exampleName is the folder of an example's README.
func exampleName(loc catalog.Location) string {
	p := loc.Path
	if p == "" {
		p = loc.Ref
	}
	return path.Base(path.Dir(p))
}
