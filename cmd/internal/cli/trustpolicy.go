package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strings"
	"sync"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/spf13/pflag"

	"github.com/krmcat/krmcat/catalog"
	"github.com/krmcat/krmcat/catalog/kustomization"
	"github.com/krmcat/krmcat/registry"
	"github.com/krmcat/krmcat/runtime"
	"github.com/krmcat/krmcat/runtime/containerfn"
	"github.com/krmcat/krmcat/runtime/execfn"
	"github.com/krmcat/krmcat/runtime/starlarkfn"
	"github.com/krmcat/krmcat/schema"
	"github.com/krmcat/krmcat/signing"
)

// trustPolicyVariable names the trust policy where no flag does.
const trustPolicyVariable = "KRMCAT_TRUST_POLICY"

// trustFlags say which trust policy is in force: that of the flag, else of
// KRMCAT_TRUST_POLICY, else trust.yaml in the user's configuration, if it is
// there. An empty flag is none.
type trustFlags struct {
	TrustPolicy string

	set *pflag.FlagSet
	// server leaves the user's own configuration out: it is about what the
	// user takes from others.
	server bool
}

func (f *trustFlags) add(fs *pflag.FlagSet) {
	f.set = fs
	if f.server {
		fs.StringVar(&f.TrustPolicy, "trust-policy", "", "`file` with a TrustPolicy that each tag on a function, a catalog or a runtime has to satisfy (default: $KRMCAT_TRUST_POLICY)")
		return
	}
	fs.StringVar(&f.TrustPolicy, "trust-policy", "", "`file` with the TrustPolicy that decides whose signatures are needed (default: $KRMCAT_TRUST_POLICY, or krmcat/trust.yaml in the configuration folder if it is there; empty: none)")
}

// given reports whether the flag names a policy.
func (f *trustFlags) given() bool { return f.TrustPolicy != "" }

// file is the policy in force; empty if there is none.
func (f *trustFlags) file(e *env) string {
	if f.TrustPolicy != "" || f.set != nil && f.set.Changed("trust-policy") {
		return f.TrustPolicy
	}
	if v := e.Getenv(trustPolicyVariable); v != "" {
		return v
	}
	if file, err := e.configFile("trust.yaml"); err == nil && !f.server {
		if _, err := os.Lstat(file); !errors.Is(err, fs.ErrNotExist) {
			return file // what cannot be read is an error, not no policy
		}
	}
	return ""
}

// gate reads the policy in force; nil if there is none.
func (f *trustFlags) gate(e *env, client *registry.Client) (*trustGate, error) {
	file := f.file(e)
	if file == "" {
		if v := e.Getenv(trustPolicyVariable); v != "" {
			printf(e.Err, "krmcat: notice: the trust policy %s is not applied, as --trust-policy is empty\n", v)
		}
		return nil, nil
	}
	p, err := readTrustPolicy(e, file)
	if err != nil {
		return nil, err
	}
	g := &trustGate{e: e, policy: p, file: file, client: client, made: map[string]*signing.Decision{}}
	if f.given() {
		g.flag = " --trust-policy " + file
	}
	return g, nil
}

// configFile is a file in the folder for the user's configuration.
func (e *env) configFile(name string) (string, error) {
	if d := e.Getenv("XDG_CONFIG_HOME"); filepath.IsAbs(d) {
		return filepath.Join(d, "krmcat", name), nil
	}
	d, err := os.UserConfigDir()
	if err != nil {
		return "", fmt.Errorf("finding the folder for the configuration: %w", err)
	}
	return filepath.Join(d, "krmcat", name), nil
}

// readTrustPolicy reads a policy and the files beside it that it names.
// Mistakes in it are shown, each at its place.
func readTrustPolicy(e *env, file string) (*signing.TrustPolicy, error) {
	data, err := readLimited(file, maxSigstoreBytes)
	if err != nil {
		return nil, withHint(fmt.Errorf("reading the trust policy: %w", err), "krmcat trust init writes one to start from")
	}
	root, err := os.OpenRoot(filepath.Dir(file))
	if err != nil {
		return nil, fmt.Errorf("reading the trust policy: %w", err)
	}
	defer root.Close()
	p, err := signing.LoadTrustPolicy(data, root.FS())
	if te, ok := errors.AsType[*signing.TrustPolicyError](err); ok {
		if err := showMistakes(e, file, data, te.Mistakes); err != nil {
			return nil, err
		}
		return nil, codeError{fmt.Errorf("the trust policy %s is not valid", file), exitInvalid}
	}
	return p, err
}

// showMistakes prints mistakes with their source lines.
func showMistakes(e *env, file string, data []byte, mistakes []signing.TrustPolicyMistake) error {
	lines := strings.Split(string(data), "\n")
	var ds schema.Diagnostics
	for _, m := range mistakes {
		d := schema.Diagnostic{Pos: schema.Position{File: file, Line: m.Line, Column: m.Column}, Path: m.Path, Message: m.Message, Fix: m.Fix, Width: m.Width}
		if m.Line >= 1 && m.Line <= len(lines) && len(lines[m.Line-1]) < 500 {
			d.Excerpt = strings.TrimSuffix(lines[m.Line-1], "\r")
		}
		ds = append(ds, d)
	}
	return showDiagnostics(e, ds)
}

// trustGate asks a trust policy about everything that a command runs, writes
// or hands out. What is decided about one thing is decided once.
type trustGate struct {
	e      *env
	policy *signing.TrustPolicy
	file   string
	flag   string // what to add to a command so that it uses the same policy
	client *registry.Client

	mu   sync.Mutex
	made map[string]*signing.Decision
}

// decide asks about an artifact in a registry.
func (g *trustGate) decide(ctx context.Context, ref registry.Reference, r signing.TrustRequest) (*signing.Decision, error) {
	r.Reference = ref.Name()
	key := fmt.Sprint(r.Reference, "@", r.Subject.Digest, " ", r.Content, " ", r.Subject.Annotations, " ", r.Needs)
	if r.Document != nil {
		key += " " + r.Document.About()
	}
	g.mu.Lock()
	d := g.made[key]
	g.mu.Unlock()
	if d != nil {
		return d, nil
	}
	repo, err := g.client.Repository(ref)
	if err != nil {
		return nil, err
	}
	if d, err = g.policy.Evaluate(ctx, repo, r); err != nil {
		return nil, fmt.Errorf("applying the trust policy %s: %w", g.file, registry.Classify(err))
	}
	g.mu.Lock()
	g.made[key] = d
	g.mu.Unlock()
	return d, nil
}

// errorOf is nil for what is allowed, and otherwise says what to do next.
func (g *trustGate) errorOf(d *signing.Decision) error {
	if d.Err() == nil {
		return nil
	}
	err := fmt.Errorf("trust policy %s: %w", g.file, d.Err())
	if d.Reference == "" || d.Subject == "" {
		return withHint(err, "the policy is in %s", g.file)
	}
	return withHint(err, "krmcat trust explain %s%s shows each check", d.About(), g.flag)
}

// accept asks about an artifact and returns the decision if it is allowed.
func (g *trustGate) accept(ctx context.Context, ref registry.Reference, r signing.TrustRequest) (*signing.Decision, error) {
	d, err := g.decide(ctx, ref, r)
	if err != nil {
		return nil, err
	}
	return d, g.errorOf(d)
}

// document asks about the document at a location, as it was fetched. A
// document that is in no registry has no decision: what it names is asked about
// by itself.
func (g *trustGate) document(ctx context.Context, loc catalog.Location) (*signing.Decision, error) {
	if loc.Scheme != "oci" {
		return nil, nil
	}
	ref, desc, err := g.resolve(ctx, loc)
	if err != nil {
		return nil, err
	}
	return g.accept(ctx, ref, signing.TrustRequest{Subject: desc})
}

// resolve finds the manifest that a location names, by its digest if it has
// one.
func (g *trustGate) resolve(ctx context.Context, loc catalog.Location) (registry.Reference, ocispec.Descriptor, error) {
	ref, err := registry.ParseReference(loc.Ref)
	if err != nil {
		return ref, ocispec.Descriptor{}, err
	}
	if loc.Digest != "" {
		ref.Digest = loc.Digest
	}
	desc, err := g.client.Resolve(ctx, ref)
	if err != nil {
		return ref, desc, err
	}
	ref.Digest = desc.Digest
	return ref, desc, nil
}

// content asks about what a function's document names at a location: an
// executable or a script. The location is returned by the digest that was
// decided about.
func (g *trustGate) content(ctx context.Context, loc catalog.Location, of digest.Digest, fn function, needs signing.TrustCapabilities) (catalog.Location, *signing.Decision, error) {
	r := signing.TrustRequest{Content: of, Document: fn.document, Needs: &needs}
	if loc.Scheme != "oci" {
		r.Name, r.Local = loc.String(), loc.IsLocal()
		d, err := g.policy.Evaluate(ctx, nil, r)
		if err == nil {
			err = g.errorOf(d)
		}
		return loc, d, err
	}
	ref, desc, err := g.resolve(ctx, loc)
	if err != nil {
		return loc, nil, err
	}
	loc.Digest = desc.Digest
	r.Subject = fn.subject(desc)
	d, err := g.accept(ctx, ref, r)
	return loc, d, err
}

// local asks about a file of this machine that a document names.
func (g *trustGate) local(ctx context.Context, file string) error {
	if g == nil {
		return nil
	}
	d, err := g.policy.Evaluate(ctx, nil, signing.TrustRequest{Name: file, Local: true})
	if err != nil {
		return err
	}
	return g.errorOf(d)
}

// function is what a runtime belongs to.
type function struct {
	gvk      catalog.GroupVersionKind // zero if it is not known
	document *signing.Decision        // nil if the document is in no registry
}

// subject is a descriptor with the name of the function, so that what was
// signed for another function does not count.
func (f function) subject(desc ocispec.Descriptor) ocispec.Descriptor {
	if f.gvk == (catalog.GroupVersionKind{}) {
		return desc
	}
	return signing.Named(desc, f.gvk.Group, f.gvk.Kind)
}

// engine is an engine that prepares only what the policy accepts.
func (g *trustGate) engine(engine runtime.Engine, fn function) runtime.Engine {
	list := slices.Clone(engine.Executors)
	for i, x := range list {
		list[i] = g.executor(x, fn)
	}
	engine.Executors = list
	return engine
}

func (g *trustGate) executor(x runtime.Executor, fn function) runtime.Executor {
	return &gatedExecutor{inner: x, gate: g, fn: fn}
}

// gatedExecutor asks the policy before an executor fetches anything.
type gatedExecutor struct {
	inner runtime.Executor
	gate  *trustGate
	fn    function
}

// ceilingError is a refusal that leaves other runtimes of the function.
type ceilingError struct{ error }

func (e ceilingError) Unwrap() []error { return []error{e.error, runtime.ErrNotGranted} }

// Prepare implements [runtime.Executor]. The executor gets exactly what was
// decided about: the one runtime, by its digest.
func (x *gatedExecutor) Prepare(ctx context.Context, rt catalog.Runtime, g runtime.Grants, l runtime.Limits) (runtime.Function, error) {
	only := x.part(rt)
	if only == (catalog.Runtime{}) {
		return nil, fmt.Errorf("no runtime for this executor: %w", errors.ErrUnsupported)
	}
	only, d, err := x.gate.runtime(ctx, only, g, x.fn)
	if errors.Is(err, signing.ErrCapability) {
		return nil, ceilingError{err}
	}
	if err != nil {
		return nil, err
	}
	if d != nil {
		g.Env = x.gate.environment(d, g.Env)
	}
	return x.inner.Prepare(ctx, only, g, l)
}

// part is the part of a runtime that the executor is for. One that is not
// known here is for none.
func (x *gatedExecutor) part(rt catalog.Runtime) catalog.Runtime {
	switch x.inner.(type) {
	case *starlarkfn.Executor:
		return catalog.Runtime{Starlark: rt.Starlark}
	case *execfn.Executor:
		return catalog.Runtime{Exec: rt.Exec}
	case *containerfn.Executor:
		return catalog.Runtime{Container: rt.Container}
	}
	return catalog.Runtime{}
}

// runtime asks about a runtime, and returns it by the digest that was decided
// about. The decision is nil for one that the executor will refuse by itself.
func (g *trustGate) runtime(ctx context.Context, rt catalog.Runtime, grants runtime.Grants, fn function) (catalog.Runtime, *signing.Decision, error) {
	switch {
	case rt.Starlark != nil:
		s := *rt.Starlark
		loc, d, err := g.content(ctx, s.Location, s.Digest, fn, signing.TrustCapabilities{})
		s.Location = loc
		return catalog.Runtime{Starlark: &s}, d, err
	case rt.Exec != nil:
		here := goruntime.GOOS + "/" + goruntime.GOARCH
		i := slices.IndexFunc(rt.Exec.Platforms, func(p catalog.Platform) bool { return p.OS+"/"+p.Arch == here })
		if i < 0 || !grants.Exec {
			return rt, nil, nil
		}
		p := rt.Exec.Platforms[i]
		loc, d, err := g.content(ctx, p.Location, p.Digest, fn, signing.TrustCapabilities{Exec: true})
		p.Location = loc
		return catalog.Runtime{Exec: &catalog.Exec{Platforms: []catalog.Platform{p}}}, d, err
	}
	c := rt.Container
	if c.Digest == "" {
		return rt, nil, nil
	}
	d, err := g.image(ctx, c, grants, fn)
	return rt, d, err
}

// image asks about an image by its digest.
func (g *trustGate) image(ctx context.Context, c *catalog.Container, grants runtime.Grants, fn function) (*signing.Decision, error) {
	ref, err := registry.ParseImage(c.Image)
	if err != nil {
		return nil, err
	}
	ref.Digest = c.Digest
	desc, err := g.client.Resolve(ctx, ref)
	if err != nil {
		return nil, err
	}
	needs := signing.TrustCapabilities{Network: c.RequireNetwork, Storage: c.RequireStorageMount}
	needs.Write = c.RequireStorageMount && slices.ContainsFunc(grants.Mounts, func(m runtime.Mount) bool { return m.Writable })
	return g.accept(ctx, ref, signing.TrustRequest{Subject: fn.subject(desc), Document: fn.document, Needs: &needs})
}

// handOut asks about the one reference that a command is about to name, for
// others to run, and keeps others out of the view.
func (g *trustGate) handOut(ctx context.Context, fn *kustomization.Function, res *catalog.Resolution, v *resolvedView) error {
	if res == nil {
		rt := fn.Inline
		if rt.Image == "" {
			return g.local(ctx, rt.String())
		}
		ref, err := registry.ParseImage(rt.Image)
		if err != nil {
			return err
		}
		desc, err := g.client.Resolve(ctx, ref)
		if err != nil {
			return err
		}
		// By the digest that was decided about: a tag may move.
		c := &catalog.Container{Image: rt.Image, Digest: desc.Digest, RequireNetwork: rt.Network}
		v.Reference = c.Pinned()
		_, err = g.image(ctx, c, runtime.Grants{}, function{})
		return err
	}
	doc, err := g.document(ctx, res.Catalog.Resolved)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(v.Runtimes, func(r recordView) bool { return r.Reference == v.Reference })
	if i < 0 {
		return fmt.Errorf("%s: %s is none of its runtimes", fn.GVK, v.Reference)
	}
	v.Runtimes = v.Runtimes[i : i+1]
	rt := res.Version.Runtime
	only := map[string]catalog.Runtime{"container": {Container: rt.Container}, "exec": {Exec: rt.Exec}, "starlark": {Starlark: rt.Starlark}}[v.Runtimes[0].Type]
	_, _, err = g.runtime(ctx, only, runtime.Grants{Exec: true}, function{res.GVK(), doc})
	return err
}

// environment leaves out the variables that a function may not have. They are
// for all functions of a command, so this is no error.
func (g *trustGate) environment(d *signing.Decision, env []string) []string {
	var out []string
	for _, v := range env {
		name, _, _ := strings.Cut(v, "=")
		if len(d.Capabilities.Beyond(signing.TrustCapabilities{Env: []string{name}})) == 0 {
			out = append(out, v)
			continue
		}
		printf(g.e.Err, "krmcat: notice: %s does not get the variable %s: the trust policy grants at most %s\n", d.About(), name, d.Capabilities)
	}
	return out
}
