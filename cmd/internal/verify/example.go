package verify

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/krmcat/krmcat/catalog"
	"github.com/krmcat/krmcat/runtime"
	"github.com/krmcat/krmcat/runtime/conformance"
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
	case errors.Is(err, runtime.ErrNotGranted), errors.Is(err, runtime.ErrUnavailable), errors.Is(err, errors.ErrUnsupported):
		r.report.add(subject, "example", Skipped, "%s: %v", what, err)
		return
	case err != nil:
		r.report.fail(subject, "example", fmt.Errorf("%s: %w", what, err))
		return
	}
	for i, x := range examples {
		rep := conformance.Run(r.ctx, fn, x, conformance.Options{
			Idempotent: res.Version.Idempotent,
			Validator:  slices.Contains(res.Definition.Tags, "validator"),
			// How it takes odd input is the same for every example.
			Quick: i > 0,
		})
		r.example(subject, what, rep)
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
	for _, f := range rep.Findings {
		message := fmt.Sprintf("%s, %s: %s", what, rep.Name, f.Message)
		if f.Evidence != "" {
			message += "\n" + f.Evidence
		}
		switch f.Level {
		case conformance.Error:
			r.report.fail(subject, f.ID, errors.New(message))
		case conformance.Warning:
			r.report.add(subject, f.ID, Warning, "%s", message)
		}
	}
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
