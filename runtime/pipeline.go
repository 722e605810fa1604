package runtime

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	goruntime "runtime"
	"strings"
	"sync"
	"time"

	"github.com/krmcat/krmcat/runtime/resourcelist"
)

// Pipeline runs functions one after the other: what one writes, the next
// reads. The zero value has no steps and changes nothing.
type Pipeline struct {
	Steps []Step
	// DeferFailure goes on after a step that failed and reports the failure
	// at the end, so that all validators get to say what they found.
	DeferFailure bool
	// APIVersion of the ResourceLists sent; empty means v1.
	APIVersion string
	// Stderr gets what functions wrote to their standard error, in one piece
	// when each has ended. Lines that only say what its results say, or what
	// its error says, are left out. May be nil.
	Stderr io.Writer
	// Log may be nil.
	Log *slog.Logger
}

// Step is one function of a pipeline.
type Step struct {
	Name     string
	Function Function
	// Config is the functionConfig as a YAML document; nil for none.
	Config []byte
	// Include chooses the items that the function sees: those that match
	// any of the selectors; all if there is none. Exclude takes away.
	Include, Exclude []Selector
	// Validator steps run after all others, at once; what they do to the
	// items does not count.
	Validator bool
}

// Outcome is what a pipeline did.
type Outcome struct {
	Items []*resourcelist.Item
	Steps []StepOutcome // those that ran
}

// StepOutcome is what one function did.
type StepOutcome struct {
	Name     string
	ExitCode int
	// Stderr are the last lines of standard error, without those that only
	// repeat results.
	Stderr   string
	Results  []resourcelist.Result
	Duration time.Duration
	Err      error // nil if the function succeeded
}

// Run runs the pipeline over items. When it fails, the outcome still says
// which steps ran and what their results were, but its items must not be
// written anywhere.
//
// Errors are those of [Function], and [*OutputError] for a function that
// ended well and wrote something else than it must. A function that gives a
// result of severity error has failed, whatever its exit code.
func (p *Pipeline) Run(ctx context.Context, items []*resourcelist.Item) (*Outcome, error) {
	out := &Outcome{Items: items}
	var deferred []error
	var validators []Step
	for _, s := range p.Steps {
		if s.Validator {
			validators = append(validators, s)
			continue
		}
		next, so := p.step(ctx, s, out.Items)
		out.Steps = append(out.Steps, so)
		if next != nil {
			out.Items = next
		}
		if so.Err == nil {
			continue
		}
		if !p.DeferFailure || ctx.Err() != nil {
			return out, so.Err
		}
		deferred = append(deferred, so.Err)
	}
	checked := make([]StepOutcome, len(validators))
	limit := make(chan struct{}, goruntime.GOMAXPROCS(0))
	var wg sync.WaitGroup
	stderr := p.Stderr
	if len(validators) > 1 && stderr != nil {
		stderr = &lockedWriter{w: stderr}
	}
	for i, s := range validators {
		wg.Go(func() {
			limit <- struct{}{}
			defer func() { <-limit }()
			v := *p
			v.Stderr = stderr
			_, checked[i] = v.step(ctx, s, out.Items)
		})
	}
	wg.Wait()
	out.Steps = append(out.Steps, checked...)
	for _, so := range checked {
		if so.Err != nil {
			deferred = append(deferred, so.Err)
		}
	}
	if len(deferred) > 0 {
		if len(deferred) == 1 {
			return out, deferred[0]
		}
		return out, errors.Join(deferred...)
	}
	return out, checkOrigins(out.Items)
}

type lockedWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *lockedWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

// step runs one function. The items are nil if its output cannot be used.
func (p *Pipeline) step(ctx context.Context, s Step, items []*resourcelist.Item) (next []*resourcelist.Item, so StepOutcome) {
	so = StepOutcome{Name: s.Name}
	chosen, err := choose(items, s.Include, s.Exclude)
	if err != nil {
		so.Err = fmt.Errorf("function %s: selecting resources: %w", s.Name, err)
		return nil, so
	}
	input, err := resourcelist.Compose(&resourcelist.List{APIVersion: p.APIVersion, Items: chosen, FunctionConfig: s.Config})
	if err != nil {
		so.Err = fmt.Errorf("function %s: %w", s.Name, err)
		return nil, so
	}
	var stdout bytes.Buffer
	stdout.Grow(len(input) + len(input)/8 + 512)
	stderr := &heldBuffer{to: p.Stderr}
	start := time.Now()
	runErr := s.Function.Run(ctx, Stdio{Stdin: bytes.NewReader(input), Stdout: &stdout, Stderr: stderr, FunctionConfig: s.Config})
	so.Duration = time.Since(start)
	if p.Log != nil {
		p.Log.DebugContext(ctx, "function ended", "function", s.Name, "duration", so.Duration, "input", len(input), "output", stdout.Len())
	}
	list, readErr := resourcelist.Read(stdout.Bytes(), resourcelist.ReadOptions{Before: chosen, FromFunction: true})
	if readErr == nil {
		so.Results = list.Results
	}
	so.Stderr = withoutResults(stderr.tail.String(), so.Results)
	defer func() { stderr.release(so.Results, so.Err) }()
	if runErr != nil {
		so.Err = runErr
		if fe, ok := errors.AsType[*FunctionError](runErr); ok {
			fe.Results, fe.Stderr = so.Results, withoutResults(fe.Stderr, so.Results)
			so.ExitCode = fe.ExitCode
		} else {
			so.ExitCode = -1
		}
		if readErr != nil || !list.HasItems {
			return nil, so
		}
		return merge(items, chosen, list.Items), so
	}
	bad := func(err error) ([]*resourcelist.Item, StepOutcome) {
		head := stdout.Bytes()
		so.Err = &OutputError{Name: s.Name, Err: err, Output: string(head[:min(len(head), 500)])}
		return nil, so
	}
	if readErr != nil {
		return bad(readErr)
	}
	// The SDKs leave out the field when there are no items. That is harmless
	// only if there were none: otherwise it would delete everything.
	if !list.HasItems && len(chosen) > 0 {
		return bad(fmt.Errorf("%w: it has no items, which would delete %d resources; a function that means that writes an empty list", resourcelist.ErrNotResourceList, len(chosen)))
	}
	for _, it := range list.Items {
		if it.Origin() == nil && it.Meta().Name == "" {
			return bad(fmt.Errorf("%w: a new %s has no metadata.name", resourcelist.ErrItem, it.Meta().Kind))
		}
		if it.Meta().Path != "" && it.Prev() != nil || it.Origin() == nil && it.Meta().Path != "" {
			if err := resourcelist.CheckPath(it.Meta().Path); err != nil {
				return bad(fmt.Errorf("%s: %w", it.Meta().ID(), err))
			}
		}
		if err := it.CheckInternal(); err != nil {
			return bad(err)
		}
	}
	if err := resourcelist.RestoreLost(list.Items); err != nil {
		return bad(err)
	}
	if resourcelist.HasErrors(list.Results) {
		// KG-22 against FS-32: an error is an error.
		so.Err = &FunctionError{Name: s.Name, Stderr: so.Stderr, Results: list.Results}
	}
	return merge(items, chosen, list.Items), so
}

// merge puts what a function made of the chosen items back among the others.
// Items keep the order of the function's output if it saw all of them, or
// else their places; new ones come last.
func merge(all, chosen, got []*resourcelist.Item) []*resourcelist.Item {
	if len(all) == len(chosen) {
		return got
	}
	// Items that came back with the same bytes are the same pointers.
	given := make(map[*resourcelist.Item]bool, len(chosen))
	for _, it := range chosen {
		given[it] = true
	}
	now := make(map[*resourcelist.Item]*resourcelist.Item, len(got))
	var created []*resourcelist.Item
	for _, it := range got {
		switch {
		case given[it]:
			now[it] = it
		case given[it.Prev()]:
			now[it.Prev()] = it
		default:
			created = append(created, it)
		}
	}
	next := make([]*resourcelist.Item, 0, len(all)+len(created))
	for _, it := range all {
		if !given[it] {
			next = append(next, it)
			continue
		}
		if n, ok := now[it]; ok {
			next = append(next, n)
		}
	}
	return append(next, created...)
}

// checkOrigins refuses two items in one place if functions brought that about.
func checkOrigins(items []*resourcelist.Item) error {
	type place struct {
		path  string
		index int
	}
	at := map[place]*resourcelist.Item{}
	for _, it := range items {
		m := it.Meta()
		if m.Path == "" || m.Index < 0 {
			continue
		}
		p := place{m.Path, m.Index}
		other, ok := at[p]
		if !ok {
			at[p] = it
			continue
		}
		if other.Origin() == other && it.Origin() == it {
			continue // they came like that
		}
		return fmt.Errorf("functions put two resources in the same place, %s index %d: %s and %s: %w", m.Path, m.Index, other.Meta().ID(), m.ID(), ErrOutput)
	}
	return nil
}

// Selector chooses items, with the fields that kpt's selectors have. An item
// matches if it has all the values that are given, exactly.
type Selector struct {
	APIVersion  string            `yaml:"apiVersion,omitempty" json:"apiVersion,omitempty"`
	Kind        string            `yaml:"kind,omitempty" json:"kind,omitempty"`
	Name        string            `yaml:"name,omitempty" json:"name,omitempty"`
	Namespace   string            `yaml:"namespace,omitempty" json:"namespace,omitempty"`
	Labels      map[string]string `yaml:"labels,omitempty" json:"labels,omitempty"`
	Annotations map[string]string `yaml:"annotations,omitempty" json:"annotations,omitempty"`
}

// Empty reports whether the selector has no conditions; it matches all items.
func (s Selector) Empty() bool {
	return s.APIVersion == "" && s.Kind == "" && s.Name == "" && s.Namespace == "" && len(s.Labels) == 0 && len(s.Annotations) == 0
}

func (s Selector) matches(it *resourcelist.Item) (bool, error) {
	m := it.Meta()
	if s.APIVersion != "" && s.APIVersion != m.APIVersion || s.Kind != "" && s.Kind != m.Kind ||
		s.Name != "" && s.Name != m.Name || s.Namespace != "" && s.Namespace != m.Namespace {
		return false, nil
	}
	for _, x := range []struct {
		want map[string]string
		have func() (map[string]string, error)
	}{{s.Labels, it.Labels}, {s.Annotations, it.Annotations}} {
		if len(x.want) == 0 {
			continue
		}
		have, err := x.have()
		if err != nil {
			return false, err
		}
		for k, v := range x.want {
			if h, ok := have[k]; !ok || h != v {
				return false, nil
			}
		}
	}
	return true, nil
}

// String is the selector as the command line has it.
func (s Selector) String() string {
	var parts []string
	for _, f := range [][2]string{{"apiVersion", s.APIVersion}, {"kind", s.Kind}, {"name", s.Name}, {"namespace", s.Namespace}} {
		if f[1] != "" {
			parts = append(parts, f[0]+"="+f[1])
		}
	}
	return strings.Join(parts, ",")
}

func choose(items []*resourcelist.Item, include, exclude []Selector) ([]*resourcelist.Item, error) {
	if len(include) == 0 && len(exclude) == 0 {
		return items, nil
	}
	out := make([]*resourcelist.Item, 0, len(items))
	for _, it := range items {
		in, err := anyMatches(include, it)
		if err != nil {
			return nil, err
		}
		no, err := anyMatches(exclude, it)
		if err != nil {
			return nil, err
		}
		if (in || len(include) == 0) && !no {
			out = append(out, it)
		}
	}
	return out, nil
}

func anyMatches(ss []Selector, it *resourcelist.Item) (bool, error) {
	for _, s := range ss {
		ok, err := s.matches(it)
		if ok || err != nil {
			return ok, err
		}
	}
	return false, nil
}
