package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/opencontainers/go-digest"
	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/krmcat/krmcat/catalog"
	"github.com/krmcat/krmcat/catalog/kustomization"
	"github.com/krmcat/krmcat/registry"
	"github.com/krmcat/krmcat/runtime"
	"github.com/krmcat/krmcat/runtime/containerfn"
	"github.com/krmcat/krmcat/runtime/execfn"
	"github.com/krmcat/krmcat/runtime/pkgdir"
	"github.com/krmcat/krmcat/runtime/resourcelist"
	"github.com/krmcat/krmcat/runtime/starlarkfn"
	"github.com/krmcat/krmcat/schema"
	"github.com/krmcat/krmcat/schema/openapi"
)

// functions prepares functions for the commands that run them.
type functions struct {
	e         *env
	client    *registry.Client
	source    catalog.Source
	engine    runtime.Engine
	container *containerfn.Executor
	starlark  *starlarkfn.Executor
	// given is the functionConfig of the ResourceList on standard input.
	given []byte
	// trust is the trust policy in force; nil if there is none.
	trust *trustGate
}

// prepare prepares the function of a resolution, if the trust policy accepts
// the document and what it names.
func (f *functions) prepare(ctx context.Context, r *catalog.Resolution) (runtime.Function, error) {
	if f.trust == nil {
		return f.engine.Prepare(ctx, r)
	}
	doc, err := f.trust.document(ctx, r.Catalog.Resolved)
	if err != nil {
		return nil, fmt.Errorf("preparing %s: %w", r.GVK(), err)
	}
	engine := f.trust.engine(f.engine, function{r.GVK(), doc})
	return engine.Prepare(ctx, r)
}

func newFunctions(e *env, remote *remoteFlags, x *executionFlags) (*functions, error) {
	grants := runtime.Grants{Network: x.AllowNetwork, StorageMount: x.AllowStorage, Exec: x.AllowExec}
	for _, v := range x.Env {
		name, _, ok := strings.Cut(v, "=")
		if name == "" || strings.ContainsAny(v, "\x00\n") {
			return nil, usagef("--env %q: write NAME=VALUE or NAME", v)
		}
		if !ok {
			v = name + "=" + e.Getenv(name)
		}
		grants.Env = append(grants.Env, v)
	}
	for _, m := range x.Mounts {
		parts := strings.Split(m, ":")
		if len(parts) < 2 || len(parts) > 3 || parts[0] == "" || len(parts) == 3 && parts[2] != "rw" && parts[2] != "ro" {
			return nil, usagef("--mount %s: write SOURCE:TARGET or SOURCE:TARGET:rw", m)
		}
		abs, err := filepath.Abs(parts[0])
		if err != nil {
			return nil, err
		}
		grants.Mounts = append(grants.Mounts, runtime.Mount{Source: abs, Target: parts[1], Writable: len(parts) == 3 && parts[2] == "rw"})
	}
	pull := containerfn.PullPolicy(x.Pull)
	if pull != containerfn.PullMissing && pull != containerfn.PullAlways && pull != containerfn.PullNever {
		return nil, usagef("--image-pull-policy %s: not one of missing, always, never", x.Pull)
	}
	limits := runtime.Limits{Timeout: x.Timeout, MaxOutput: x.MaxOutput, MaxMemory: x.MaxMemory}
	src, client, err := remote.source(e)
	if err != nil {
		return nil, err
	}
	cache, err := e.cacheDir()
	if err != nil {
		return nil, err
	}
	if cache, err = filepath.Abs(cache); err != nil {
		return nil, err
	}
	fns := &functions{e: e, client: client, source: src}
	fns.container = &containerfn.Executor{Engine: e.Getenv("KRM_FN_RUNTIME"), Pull: pull, Env: engineEnv(e.Getenv)}
	fns.starlark = &starlarkfn.Executor{Source: src, Worker: starlarkWorker()}
	fns.engine = runtime.Engine{
		Executors: []runtime.Executor{fns.starlark, &execfn.Executor{Source: src, Cache: cache}, fns.container},
		Grants:    grants,
		Limits:    limits,
	}
	if !grants.Exec {
		// A function that is also an image is run as one then.
		fns.engine.Executors = []runtime.Executor{fns.starlark, fns.container, fns.engine.Executors[1]}
	}
	return fns, nil
}

// engineEnv is what the clients of container engines need of the environment.
func engineEnv(getenv func(string) string) []string {
	var env []string
	for _, name := range []string{
		"PATH", "HOME", "USER", "TMPDIR", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "DBUS_SESSION_BUS_ADDRESS",
		"DOCKER_HOST", "DOCKER_CONFIG", "DOCKER_CONTEXT", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH",
		"CONTAINER_HOST", "CONTAINERS_CONF", "CONTAINERS_STORAGE_CONF", "CONTAINERS_REGISTRIES_CONF", "STORAGE_DRIVER", "REGISTRY_AUTH_FILE",
		"CONTAINERD_ADDRESS", "CONTAINERD_NAMESPACE",
		"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
	} {
		if v := getenv(name); v != "" {
			env = append(env, name+"="+v)
		}
	}
	return env
}

// starlarkWorker is the command that runs a script in a process of its own:
// this program.
func starlarkWorker() []string {
	self, err := os.Executable()
	if err != nil {
		return nil
	}
	return []string{self, starlarkWorkerName}
}

const starlarkWorkerName = "starlark-worker"

// newStarlarkWorkerCmd is the process in which a script runs.
func newStarlarkWorkerCmd(e *env) *cobra.Command {
	return &cobra.Command{
		Use:    starlarkWorkerName,
		Short:  "Run a Starlark function; used by krmcat run itself",
		Hidden: true,
		Args:   args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if code := starlarkfn.Work(cmd.Context(), e.In, e.Out, e.Err); code != 0 {
				return errSilent(code)
			}
			return nil
		},
	}
}

func (c *functionChoice) named() bool {
	return c.Function != "" || c.Image != "" || c.Exec != "" || c.Starlark != ""
}

// choose prepares the one function that the flags name.
func (f *functions) choose(ctx context.Context, c *functionChoice, pairs []string) (runtime.Step, error) {
	config, err := f.config(c, pairs)
	if err != nil {
		return runtime.Step{}, err
	}
	return f.chooseWith(ctx, c, config)
}

func (f *functions) chooseWith(ctx context.Context, c *functionChoice, config []byte) (runtime.Step, error) {
	var err error
	n := 0
	for _, s := range []string{c.Function, c.Image, c.Exec, c.Starlark} {
		if s != "" {
			n++
		}
	}
	if n > 1 {
		return runtime.Step{}, usagef("name one function: --function, --image, --exec or --starlark")
	}
	inline, err := inlineRuntime(config)
	if err != nil {
		return runtime.Step{}, codeError{fmt.Errorf("functionConfig: %w", err), exitInvalid}
	}
	if n == 0 && inline == nil && len(c.Catalogs) == 0 && f.e.Getenv("KRMCAT_CATALOG") == "" {
		return runtime.Step{}, usagef("which function? Name it with --function, --catalog, --image, --exec, --starlark or --pipeline")
	}
	step := runtime.Step{Config: config}
	switch {
	case c.Image != "":
		step.Name = c.Image
		step.Function, err = f.image(ctx, c.Image)
	case c.Exec != "":
		step.Name = filepath.Base(c.Exec)
		step.Function, err = f.local(c.Exec)
	case c.Starlark != "":
		step.Name = filepath.Base(c.Starlark)
		step.Function, err = f.script(c.Starlark)
	case c.Function == "" && inline != nil:
		step.Name = inline.String()
		step.Function, err = f.inline(ctx, inline, filepath.Dir(c.Config))
	default:
		step.Name, step.Function, err = f.resolve(ctx, c, config)
	}
	return step, err
}

// inlineRuntime is the runtime that a functionConfig names itself; nil if it
// names none, or one that came from a catalog, which is asked again then.
func inlineRuntime(config []byte) (*kustomization.Runtime, error) {
	var m map[string]any
	if config == nil || yaml.Unmarshal(config, &m) != nil {
		return nil, nil
	}
	rt, err := kustomization.InlineRuntime(m)
	if rt != nil && rt.Managed {
		return nil, nil
	}
	return rt, err
}

// inline prepares what a functionConfig names itself (KC-091, KC-092). It
// goes before the catalogs, and the flags for such functions stay required
// (KC-093). Paths are relative to the functionConfig.
func (f *functions) inline(ctx context.Context, rt *kustomization.Runtime, dir string) (runtime.Function, error) {
	local := func(p string) (string, error) {
		if loc, err := catalog.ParseLocation(p); err != nil || !loc.IsLocal() {
			return "", fmt.Errorf("%s: a functionConfig can name files of this machine only: %w", p, errors.ErrUnsupported)
		}
		if filepath.IsAbs(p) {
			return p, nil
		}
		return filepath.Abs(filepath.Join(dir, filepath.FromSlash(p)))
	}
	switch {
	case rt.Exec != "":
		if !f.engine.Grants.Exec {
			return nil, &runtime.GrantError{Name: rt.Exec, Needs: "exec", Why: "the functionConfig names a program of this machine"}
		}
		p, err := local(rt.Exec)
		if err == nil {
			err = f.trust.local(ctx, p)
		}
		if err != nil {
			return nil, err
		}
		return f.local(p)
	case rt.Starlark != "":
		p, err := local(rt.Starlark)
		if err == nil {
			err = f.trust.local(ctx, p)
		}
		if err != nil {
			return nil, err
		}
		return f.script(p)
	}
	if !rt.Network && f.engine.Grants.Network {
		less := *f
		less.engine.Grants.Network = false
		return less.image(ctx, rt.Image)
	}
	return f.image(ctx, rt.Image)
}

// config is the functionConfig: a file, a ConfigMap made of pairs, or what the
// ResourceList on standard input has.
func (f *functions) config(c *functionChoice, pairs []string) ([]byte, error) {
	if c.Config == "" && len(pairs) == 0 {
		return f.given, nil
	}
	if c.Config != "" && len(pairs) > 0 {
		return nil, usagef("give the functionConfig as --fn-config FILE or as KEY=VALUE pairs, not both")
	}
	if c.Config != "" {
		data, err := readInput(f.e.In, c.Config)
		if err != nil {
			return nil, fmt.Errorf("reading functionConfig: %w", err)
		}
		if _, _, err := typeOf(data); err != nil {
			return nil, codeError{fmt.Errorf("functionConfig %s: %w", c.Config, err), exitInvalid}
		}
		return data, nil
	}
	cm := struct {
		APIVersion string            `yaml:"apiVersion"`
		Kind       string            `yaml:"kind"`
		Metadata   map[string]string `yaml:"metadata"`
		Data       map[string]string `yaml:"data"`
	}{"v1", "ConfigMap", map[string]string{"name": "function-input"}, map[string]string{}}
	for _, p := range pairs {
		k, v, ok := strings.Cut(p, "=")
		if !ok || k == "" {
			return nil, usagef("%q: write KEY=VALUE", p)
		}
		cm.Data[k] = v
	}
	var n yaml.Node
	if err := n.Encode(cm); err != nil {
		return nil, fmt.Errorf("making the functionConfig: %w", err)
	}
	return resourcelist.Encode(&n, resourcelist.Style{})
}

// typeOf reads the apiVersion and kind of a functionConfig.
func typeOf(config []byte) (apiVersion, kind string, err error) {
	items, err := pkgdir.Documents(config)
	if err != nil {
		return "", "", err
	}
	if len(items) != 1 {
		return "", "", fmt.Errorf("it holds %d resources, want one", len(items))
	}
	m := items[0].Meta()
	return m.APIVersion, m.Kind, nil
}

// image prepares an image that the user named. What the engine has is run by
// its ID; otherwise the reference is resolved to a digest once.
func (f *functions) image(ctx context.Context, image string) (runtime.Function, error) {
	c := catalog.Container{Image: image, RequireNetwork: f.engine.Grants.Network, RequireStorageMount: f.engine.Grants.StorageMount}
	var executor runtime.Executor = f.container
	if f.trust != nil {
		executor = f.trust.executor(executor, function{})
	}
	if _, d, ok := strings.Cut(image, "@"); ok {
		c.Digest = digest.Digest(d)
		return executor.Prepare(ctx, catalog.Runtime{Container: &c}, f.engine.Grants, f.engine.Limits)
	}
	var err error = fs.ErrNotExist
	if f.trust == nil { // what the engine has came from anywhere
		var fn runtime.Function
		fn, err = f.container.Local(ctx, c, f.engine.Grants, f.engine.Limits)
		if !errors.Is(err, fs.ErrNotExist) || f.container.Pull == containerfn.PullNever {
			return fn, err
		}
	}
	ref, rerr := registry.ParseReference(image)
	if rerr != nil {
		return nil, errors.Join(err, rerr)
	}
	desc, rerr := f.client.Resolve(ctx, ref)
	if rerr != nil && f.trust != nil {
		return nil, rerr
	}
	if rerr != nil {
		return nil, fmt.Errorf("%w; and %w", err, rerr)
	}
	c.Image, c.Digest = image, desc.Digest
	return executor.Prepare(ctx, catalog.Runtime{Container: &c}, f.engine.Grants, f.engine.Limits)
}

// local prepares a program that the user named: that is the permission.
func (f *functions) local(path string) (runtime.Function, error) {
	file, err := exec.LookPath(path)
	if err != nil {
		return nil, withHint(fmt.Errorf("function %s: %w", path, err), "name an executable file")
	}
	if file, err = filepath.Abs(file); err != nil {
		return nil, err
	}
	g := f.engine.Grants
	g.Exec = true
	return execfn.Local(filepath.Base(path), file, nil, g, f.engine.Limits, nil)
}

func (f *functions) script(path string) (runtime.Function, error) {
	data, err := readInput(f.e.In, path)
	if err != nil {
		return nil, fmt.Errorf("reading script: %w", err)
	}
	fn, err := f.starlark.Script(filepath.Base(path), data, f.engine.Grants, f.engine.Limits)
	if err != nil {
		return nil, codeError{err, exitInvalid}
	}
	return fn, nil
}

// resolve finds a function in a definition or in catalogs, checks the
// configuration against its schema, and prepares it.
func (f *functions) resolve(ctx context.Context, c *functionChoice, config []byte) (string, runtime.Function, error) {
	r, err := f.find(ctx, c, config)
	if err != nil {
		return "", nil, err
	}
	name := r.Definition.Name
	if name == "" {
		name = r.Definition.Kind
	}
	if err := f.checkConfig(ctx, r, c, config); err != nil {
		return "", nil, err
	}
	fn, err := f.prepare(ctx, r)
	return name, fn, err
}

// consumeOptions read documents to run what they define.
var consumeOptions = catalog.ReadOptions{Level: schema.Consume}

// checkConfig checks the functionConfig against the function's schema before
// anything runs (KC-050). A schema that is wrong itself does not stop the
// function; publishing such is refused.
func (f *functions) checkConfig(ctx context.Context, r *catalog.Resolution, c *functionChoice, config []byte) error {
	if config == nil || len(r.Version.Schema) == 0 {
		return nil
	}
	if apiVersion, kind, err := typeOf(config); err != nil || catalog.GVK(apiVersion, kind) != r.GVK() {
		return err
	}
	s, err := openapi.Compile(r.Version.Schema)
	if err != nil {
		printf(f.e.Err, "krmcat: notice: the schema of %s cannot be used: %v\n", r.GVK(), err)
		return nil
	}
	name := c.Config
	if name == "" {
		name = "functionConfig"
	}
	ds, err := s.Validate(ctx, name, config)
	if err != nil {
		return err
	}
	return explainInvalid(f.e, ds.Err())
}

func (f *functions) find(ctx context.Context, c *functionChoice, config []byte) (*catalog.Resolution, error) {
	var want catalog.GroupVersionKind
	if config != nil {
		apiVersion, kind, err := typeOf(config)
		if err != nil {
			return nil, codeError{fmt.Errorf("functionConfig: %w", err), exitInvalid}
		}
		want = catalog.GVK(apiVersion, kind)
	}
	opts := consumeOptions
	if c.Function != "" {
		loc, err := catalog.ParseLocation(c.Function)
		if err != nil {
			return nil, usageError{err}
		}
		doc, err := catalog.Load(ctx, f.source, loc, opts)
		if err != nil {
			return nil, fmt.Errorf("reading the function: %w", err)
		}
		return pick(doc, want, config != nil)
	}
	if config == nil {
		return nil, withHint(usagef("a catalog finds the function by the apiVersion and kind of the functionConfig"), "give it with --fn-config FILE")
	}
	list, err := (&catalogFlags{Catalogs: c.Catalogs, Trusted: c.Trusted}).list(f.e, f.source)
	if err != nil {
		return nil, err
	}
	return list.Resolve(ctx, want)
}

// pick chooses the version of a document that the configuration is for. A
// function with one version needs no configuration.
func pick(doc *catalog.Document, want catalog.GroupVersionKind, typed bool) (*catalog.Resolution, error) {
	var only *catalog.Resolution
	n := 0
	var have []string
	for r := range doc.AsCatalog().Resolutions() {
		if typed && r.GVK() == want {
			return r, nil
		}
		n++
		only = r
		have = append(have, r.GVK().String())
	}
	switch {
	case n == 0:
		return nil, fmt.Errorf("the document defines no function: %w", catalog.ErrNotFound)
	case typed && n == 1 && want.Group == "" && want.Version == "v1" && want.Kind == "ConfigMap":
		return only, nil // functions that take no type of their own
	case typed:
		return nil, withHint(fmt.Errorf("the functionConfig is of %s: %w", want, catalog.ErrNotFound), "the document has %s", strings.Join(have, "; "))
	case n > 1:
		return nil, withHint(usagef("the document has %d functions and versions", n), "give a functionConfig with --fn-config, of %s", strings.Join(have, " or "))
	}
	return only, nil
}
