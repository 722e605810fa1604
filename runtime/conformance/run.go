package conformance

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/krmcat/krmcat/runtime"
	"github.com/krmcat/krmcat/runtime/resourcelist"
)

// Example is an input of a function and what it makes of it.
type Example struct {
	Name string
	// FunctionConfig is a document; nil if the input has it.
	FunctionConfig []byte
	// Input is a ResourceList; nil means one without items.
	Input []byte
	// Expected is a ResourceList; nil if nothing is expected in particular.
	// If it has results of severity error, the function must fail.
	Expected []byte
}

// Options say what is known about a function. The zero value is a function
// that promises nothing.
type Options struct {
	// Idempotent functions must change nothing in a second run (KC-051).
	Idempotent bool
	// Validator functions must leave the items alone.
	Validator bool
	// Quick leaves out the checks that run the function again with other
	// input: C12, C16 to C22, C24, C29 and the versions of C02.
	Quick bool
	// Withheld says what the function was kept from when it ran.
	Withheld Withheld
	// Schema is the schema of the functionConfig as JSON (openAPIV3Schema);
	// nil if there is none. Valid says whether a functionConfig is what the
	// schema allows; it returns nil also for one that the schema is not for.
	// C18 needs both.
	Schema []byte
	Valid  func(ctx context.Context, config []byte) error
	// Many is the number of resources for C24; zero means [DefaultMany].
	Many int
}

// DefaultMany is the number of resources of the largest input that [Run]
// makes.
const DefaultMany = 1000

// Withheld are things that a function was run without. What its executor does
// not keep from it cannot be checked: the zero value leaves out C13 to C15.
type Withheld struct {
	Privileges bool // it ran as nobody on a read-only root, without capabilities
	Network    bool
	Files      bool // none of the machine's
}

// Report is what the checks found for one example.
type Report struct {
	Name     string        `json:"name"`
	Findings []Finding     `json:"findings"`
	Checked  []string      `json:"checked"` // the checks that were made
	ExitCode int           `json:"exitCode"`
	Stderr   string        `json:"stderr,omitempty"`
	Stdout   []byte        `json:"-"`
	Duration time.Duration `json:"duration"`
	// Err is why the function could not be run at all: no engine, a missing
	// image, a permission. It is not the function's fault.
	Err error `json:"-"`
}

// OK reports whether the function ran and no finding is an error.
func (r *Report) OK() bool {
	return r.Err == nil && !slices.ContainsFunc(r.Findings, func(f Finding) bool { return f.Level == Error })
}

// probeAnnotation is an internal annotation that no function knows (FS-41).
const probeAnnotation = resourcelist.InternalPrefix + "krmcat-probe"

// Run runs a function on an example and makes the checks. It returns early
// when ctx ends or the function cannot be run.
func Run(ctx context.Context, fn runtime.Function, ex Example, opts Options) *Report {
	r := &runner{fn: fn, report: &Report{Name: ex.Name}, opts: opts}
	r.run(ctx, ex)
	r.report.Findings = append(r.report.Findings, r.findings...)
	slices.Sort(r.report.Checked)
	r.report.Checked = slices.Compact(r.report.Checked)
	return r.report
}

type runner struct {
	checker
	fn     runtime.Function
	report *Report
	opts   Options
}

// ran is the outcome of one run.
type ran struct {
	stdout   []byte
	stderr   string
	exit     int
	list     *resourcelist.List // nil if stdout is none
	duration time.Duration
	err      error // not the function's fault
	hung     bool
}

func (r *runner) checked(ids ...string) { r.report.Checked = append(r.report.Checked, ids...) }

func (r *runner) run(ctx context.Context, ex Example) {
	input, err := compose(ex)
	if err != nil {
		r.add("C25", Error, "the example's input is no ResourceList: "+err.Error(), firstLines(ex.Input))
		return
	}
	base := r.once(ctx, input.text, input.config)
	rep := r.report
	rep.Stdout, rep.Stderr, rep.ExitCode, rep.Duration, rep.Err = base.stdout, base.stderr, base.exit, base.duration, base.err
	if base.err != nil {
		return
	}
	r.checked("C26")
	if base.hung {
		r.add("C26", Error, "the function did not end in time, or wrote without end", base.stderr)
		return
	}
	r.checked("C01", "C02", "C03", "C04", "C05", "C06", "C07", "C08", "C09", "C10", "C11")
	base.list = r.output(input.list, base.stdout, base.exit)
	r.findings = append(r.findings, CheckFailure(base.stdout, base.stderr, base.exit)...)
	if base.list != nil {
		r.probe(base.list)
	}
	r.confined(ex, base)
	r.expected(ex, base)
	if r.opts.Validator && base.list != nil {
		r.checked("C28")
		if d := differ(input.list.Items, base.list.Items); d != "" {
			r.add("C28", Warning, "the function is a validator, but changes resources", d)
		}
	}
	if r.opts.Quick || base.list == nil || base.exit != 0 {
		return
	}
	for _, check := range []func(context.Context, *example, ran){r.deterministic, r.idempotent, r.versions, r.json, r.userChanges, r.unusual, r.canary, r.wrongType, r.wrongConfig, r.bare, r.many} {
		if ctx.Err() != nil {
			rep.Err = ctx.Err()
			return
		}
		check(ctx, input, base)
	}
}

// example is the input of a run, with a probe annotation on each item.
type example struct {
	list   *resourcelist.List
	text   []byte
	config []byte
}

func compose(ex Example) (*example, error) {
	list := &resourcelist.List{HasItems: true}
	if len(ex.Input) > 0 {
		var err error
		if list, err = resourcelist.Read(ex.Input, resourcelist.ReadOptions{}); err != nil {
			return nil, err
		}
	}
	if list.APIVersion == "" {
		list.APIVersion = resourcelist.APIVersion
	}
	if ex.FunctionConfig != nil {
		list.FunctionConfig = ex.FunctionConfig
	}
	list.Results = nil
	for i, it := range list.Items {
		probed, err := it.WithAnnotation(probeAnnotation, fmt.Sprint(i))
		if err != nil {
			return nil, err
		}
		list.Items[i] = probed
	}
	text, err := resourcelist.Compose(list)
	if err != nil {
		return nil, err
	}
	// Read it again, so that its items are those of the text.
	list, err = resourcelist.Read(text, resourcelist.ReadOptions{})
	if err != nil {
		return nil, err
	}
	return &example{list: list, text: text, config: list.FunctionConfig}, nil
}

func (r *runner) once(ctx context.Context, input, config []byte) ran {
	var out, errs bytes.Buffer
	start := time.Now()
	err := r.fn.Run(ctx, runtime.Stdio{Stdin: bytes.NewReader(input), Stdout: &out, Stderr: &errs, FunctionConfig: config})
	x := ran{stdout: out.Bytes(), stderr: errs.String(), duration: time.Since(start)}
	if fe, ok := errors.AsType[*runtime.FunctionError](err); ok {
		x.exit = fe.ExitCode
		if x.exit == 0 {
			x.exit = 1
		}
		if x.stderr == "" {
			x.stderr = fe.Stderr
		}
		return x
	}
	switch {
	case err == nil:
	case ctx.Err() == nil && (errors.Is(err, runtime.ErrTimeout) || errors.Is(err, runtime.ErrOutputLimit)):
		x.hung, x.exit = true, -1
	default:
		x.err = err
	}
	return x
}

// probe checks that the annotation of each item that the function changed is
// still there; items with the same bytes have it.
func (r *runner) probe(out *resourcelist.List) {
	seen := map[string]string{}
	for _, it := range out.Items {
		a, err := it.Annotations()
		if err != nil {
			continue
		}
		p, ok := a[probeAnnotation]
		if !ok {
			continue
		}
		if other, dup := seen[p]; dup {
			r.add("C08 FS-40", Warning, fmt.Sprintf("%s has the internal annotations of %s; new resources must not copy them", it.Meta().ID(), other), string(it.Wire()))
		}
		seen[p] = it.Meta().ID()
	}
}

func (r *runner) expected(ex Example, base ran) {
	if ex.Expected == nil {
		return
	}
	r.checked("C25")
	want, err := resourcelist.Read(ex.Expected, resourcelist.ReadOptions{})
	if err != nil {
		r.add("C25", Error, "the expected output is no ResourceList: "+err.Error(), firstLines(ex.Expected))
		return
	}
	fails := resourcelist.HasErrors(want.Results)
	switch {
	case fails && base.exit == 0:
		r.add("C25", Error, "the function should fail, as the expected results have errors, but its exit code is 0", resultText(want.Results))
	case !fails && base.exit != 0:
		r.add("C25", Error, fmt.Sprintf("the function failed with exit code %d, which the expected output does not say", base.exit), base.stderr)
		return
	}
	if base.list == nil {
		if !fails {
			r.add("C25", Error, "there is no output to compare with the expected one", base.stderr)
		}
		return
	}
	r.compare(want, base.list)
}

// differ says how two lists of items differ in their values.
func differ(a, b []*resourcelist.Item) string {
	x, y := values(a), values(b)
	if x == y {
		return ""
	}
	return diffText(x, y)
}

// values is a text of items without comments and format, fields sorted.
func values(items []*resourcelist.Item) string {
	var b strings.Builder
	for _, it := range items {
		n, err := it.Node()
		if err != nil {
			b.WriteString(err.Error())
			continue
		}
		var v any
		if err := n.Decode(&v); err != nil {
			b.Write(it.Wire())
			continue
		}
		text, err := yaml.Marshal(v)
		if err != nil {
			b.Write(it.Wire())
			continue
		}
		b.WriteString("---\n")
		b.Write(text)
	}
	return b.String()
}

func sorted(items []*resourcelist.Item) []*resourcelist.Item {
	s := slices.Clone(items)
	slices.SortStableFunc(s, func(a, b *resourcelist.Item) int { return strings.Compare(a.Meta().ID(), b.Meta().ID()) })
	return s
}

func (r *runner) deterministic(ctx context.Context, in *example, base ran) {
	r.checked("C17")
	again := r.once(ctx, in.text, in.config)
	switch {
	case again.err != nil:
	case again.exit != base.exit:
		r.add("C17", Warning, fmt.Sprintf("a second run with the same input ended with exit code %d instead of %d", again.exit, base.exit), again.stderr)
	case !bytes.Equal(again.stdout, base.stdout):
		r.add("C17", Warning, "a second run with the same input gave another output", diffText(string(base.stdout), string(again.stdout)))
	}
}

func (r *runner) idempotent(ctx context.Context, in *example, base ran) {
	r.checked("C16")
	text, err := resourcelist.Compose(&resourcelist.List{APIVersion: in.list.APIVersion, Items: base.list.Items, FunctionConfig: in.config})
	if err != nil {
		return
	}
	again := r.once(ctx, text, in.config)
	if again.err != nil {
		return
	}
	level := Info
	if r.opts.Idempotent {
		level = Error
	}
	if again.exit != 0 {
		r.add("C16 FS-04 KC-051", level, "the function fails on its own output", again.stderr)
		return
	}
	list, err := resourcelist.Read(again.stdout, resourcelist.ReadOptions{})
	if err != nil {
		r.add("C16", level, "on its own output the function writes no ResourceList: "+err.Error(), firstLines(again.stdout))
		return
	}
	d := differ(sorted(base.list.Items), sorted(list.Items))
	switch {
	case d != "" && r.opts.Idempotent:
		r.add("C16", Error, "the function is declared idempotent, but a second run changes its output", d)
	case d != "":
		r.add("C16", Info, "the function is not idempotent: a second run changes its output", d)
	}
}

func (r *runner) versions(ctx context.Context, in *example, base ran) {
	for _, v := range []string{resourcelist.APIVersionV1beta1, resourcelist.APIVersionV1alpha1} {
		if v == in.list.APIVersion {
			continue
		}
		text, err := resourcelist.Compose(&resourcelist.List{APIVersion: v, Items: in.list.Items, FunctionConfig: in.config})
		if err != nil {
			return
		}
		r.sameItems(ctx, "C02 FS-11 CF-14", Warning, "a ResourceList of "+v, text, in, base)
	}
}

// sameItems runs the function on another form of its input.
func (r *runner) sameItems(ctx context.Context, id string, level Level, what string, text []byte, in *example, base ran) {
	got := r.once(ctx, text, in.config)
	if got.err != nil {
		return
	}
	if got.hung || got.exit != base.exit {
		r.add(id, level, fmt.Sprintf("with %s the exit code is %d", what, got.exit), got.stderr)
		return
	}
	list, err := resourcelist.Read(got.stdout, resourcelist.ReadOptions{})
	if err != nil {
		r.add(id, level, fmt.Sprintf("with %s the output is no ResourceList: %v", what, err), firstLines(got.stdout))
		return
	}
	if d := differ(sorted(base.list.Items), sorted(list.Items)); d != "" {
		r.add(id, level, fmt.Sprintf("with %s the items are not the same", what), d)
	}
}

func (r *runner) json(ctx context.Context, in *example, base ran) {
	r.checked("C12")
	var v any
	if err := yaml.Unmarshal(in.text, &v); err != nil {
		return
	}
	text, err := json.Marshal(v)
	if err != nil {
		return // keys that JSON does not have
	}
	r.sameItems(ctx, "C12 FS-28", Error, "JSON", append(text, '\n'), in, base)
}

// unusual gives the function what it should not get (C19).
func (r *runner) unusual(ctx context.Context, in *example, _ ran) {
	r.checked("C19")
	head := "apiVersion: " + in.list.APIVersion + "\nkind: ResourceList\n"
	none, err := resourcelist.Compose(&resourcelist.List{APIVersion: in.list.APIVersion, FunctionConfig: in.config})
	if err != nil {
		return
	}
	bare, err := resourcelist.Compose(&resourcelist.List{APIVersion: in.list.APIVersion, Items: in.list.Items})
	if err != nil {
		return
	}
	for _, t := range []struct {
		what   string
		input  string
		config []byte
		bad    bool // it must not succeed
	}{
		{"no items", string(none), in.config, false},
		{"no functionConfig", string(bare), nil, false},
		{"empty input", "", nil, true},
		{"input that is not YAML", "\t: {\n", nil, true},
		{"a document of another kind", "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\n", nil, true},
		{"annotations that are null", head + "items:\n- apiVersion: v1\n  kind: ConfigMap\n  metadata:\n    name: a\n    annotations: null\n", in.config, false},
	} {
		if ctx.Err() != nil {
			return
		}
		got := r.once(ctx, []byte(t.input), t.config)
		switch {
		case got.err != nil:
		case got.hung:
			r.add("C19 CF-03", Error, "with "+t.what+" the function does not end", t.input)
		case crashed(got.stderr):
			r.add("C19", Warning, "with "+t.what+" the function crashes instead of saying what is wrong", got.stderr)
		case t.bad && got.exit == 0:
			r.add("C19", Warning, "with "+t.what+" the function succeeds", string(got.stdout))
		case got.exit == 0:
			if _, err := resourcelist.Read(got.stdout, resourcelist.ReadOptions{}); err != nil {
				r.add("C19", Warning, fmt.Sprintf("with %s the function succeeds but writes no ResourceList: %v", t.what, err), string(got.stdout))
			}
		case strings.TrimSpace(got.stderr) == "" && len(got.stdout) == 0:
			r.add("C06", Warning, fmt.Sprintf("with %s the function fails with exit code %d and says nothing", t.what, got.exit), t.input)
		}
	}
}

func crashed(stderr string) bool {
	return strings.Contains(stderr, "\ngoroutine ") || strings.HasPrefix(stderr, "panic:") ||
		strings.Contains(stderr, "Traceback (most recent call last)") || strings.Contains(stderr, "Segmentation fault")
}

// canaryItem has what functions written against fixed types lose.
const canaryItem = `apiVersion: canary.krmcat.dev/v1
kind: Canary
metadata:
  name: canary
spec:
  # a comment
  text: "yes"
  octal: 0777
  big: 12345678901234567890
  float: 1.10
  nothing: null
  empty: ""
  emptyList: []
  emptyMap: {}
  unicode: "grün 🐦"
  lines: |
    one
      two
  folded: >-
    a
    b
  anchor: &shared {of: it}
  alias: *shared
  nested:
  - name: x
    unknown: {a: [1, 2, {b: c}]}
`

// longText is longer than the lines that many readers expect.
const longText = 100_000

// canary checks that the spec of an object of an unknown type comes back as
// it was (C20). Its metadata may change: some functions change all metadata.
func (r *runner) canary(ctx context.Context, in *example, base ran) {
	r.checked("C20")
	item := canaryItem + "  long: " + strings.Repeat("x", longText) + "\n"
	bird, err := resourcelist.FromDocument([]byte(item), "canary.yaml", 0)
	if err != nil {
		return
	}
	input, err := resourcelist.Compose(&resourcelist.List{APIVersion: in.list.APIVersion, Items: append(slices.Clone(in.list.Items), bird), FunctionConfig: in.config})
	if err != nil {
		return
	}
	got := r.once(ctx, input, in.config)
	if got.err != nil {
		return
	}
	if got.exit != base.exit {
		r.add("C20", Info, fmt.Sprintf("an object of an unknown type changes the exit code to %d", got.exit), got.stderr)
		return
	}
	list, err := resourcelist.Read(got.stdout, resourcelist.ReadOptions{})
	if err != nil {
		r.add("C20", Warning, "with an object of an unknown type the output is no ResourceList: "+err.Error(), firstLines(got.stdout))
		return
	}
	for _, it := range list.Items {
		if it.Meta().Kind != "Canary" {
			continue
		}
		was, err1 := bird.Node()
		is, err2 := it.Node()
		if err1 != nil || err2 != nil {
			return
		}
		a, b := resourcelist.Get(was, "spec"), resourcelist.Get(is, "spec")
		if b == nil || !resourcelist.Equal(a, b) {
			have := ""
			if b != nil {
				have = text(b)
			}
			r.add("C20", Warning, "the spec of an object of an unknown type is changed", diffText(text(a), have))
		}
		return
	}
	r.add("C20 KG-03", Warning, "an object of an unknown type is removed", canaryItem)
}

// wrongType gives a functionConfig of another type (C21).
func (r *runner) wrongType(ctx context.Context, in *example, _ ran) {
	if in.config == nil {
		return
	}
	r.checked("C21")
	config := []byte("apiVersion: canary.krmcat.dev/v1\nkind: NoSuchConfig\nmetadata:\n  name: canary\n")
	text, err := resourcelist.Compose(&resourcelist.List{APIVersion: in.list.APIVersion, Items: in.list.Items, FunctionConfig: config})
	if err != nil {
		return
	}
	got := r.once(ctx, text, config)
	switch {
	case got.err != nil:
	case got.hung:
		r.add("C21", Error, "with a functionConfig of another type the function does not end", string(config))
	case crashed(got.stderr):
		r.add("C21", Warning, "with a functionConfig of another type the function crashes", got.stderr)
	case got.exit == 0:
		r.add("C21", Warning, "a functionConfig of another type is accepted", string(config))
	}
}

// userChanges checks that a generator keeps what a user added to what it
// generated (C22): an annotation that the function knows nothing of.
func (r *runner) userChanges(ctx context.Context, in *example, base ran) {
	const key = "canary.krmcat.dev/user-change"
	edited := slices.Clone(base.list.Items)
	made := map[string]bool{}
	for i, it := range edited {
		if it.Origin() != nil {
			continue
		}
		e, err := it.WithAnnotation(key, "kept")
		if err != nil {
			return
		}
		edited[i] = e
		made[it.Meta().ID()] = true
	}
	if len(made) == 0 {
		return
	}
	r.checked("C22")
	input, err := resourcelist.Compose(&resourcelist.List{APIVersion: in.list.APIVersion, Items: edited, FunctionConfig: in.config})
	if err != nil {
		return
	}
	got := r.once(ctx, input, in.config)
	if got.err != nil || got.exit != 0 {
		return
	}
	list, err := resourcelist.Read(got.stdout, resourcelist.ReadOptions{})
	if err != nil {
		return
	}
	for _, it := range list.Items {
		if !made[it.Meta().ID()] {
			continue
		}
		a, err := it.Annotations()
		if err == nil && a[key] != "kept" {
			r.add("C22", Warning, it.Meta().ID()+": an annotation that a user added to the generated resource is lost when it is generated again", string(it.Wire()))
		}
	}
}
