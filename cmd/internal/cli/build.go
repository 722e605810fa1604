package cli

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/kustomize/kyaml/filesys"

	"github.com/krmcat/krmcat/catalog"
	"github.com/krmcat/krmcat/catalog/kustomization"
	"github.com/krmcat/krmcat/runtime"
	"github.com/krmcat/krmcat/runtime/resourcelist"
)

type buildOptions struct {
	Remote   remoteFlags
	Exec     executionFlags
	Catalogs catalogFlags
	Trust    trustFlags
	Dir      string
}

func newBuildCmd(e *env) *cobra.Command {
	opts := &buildOptions{}
	cmd := &cobra.Command{
		Use:   "build [DIR|FILE]",
		Short: "Build a Kustomization or a Composition with functions from catalogs",
		Long: `Build a Kustomization as kustomize does, or a Composition, and print the resources.
The functions of its generators, transformers and validators are resolved as by
krmcat resolve, verified, and run as by krmcat run, each with what it declares and
the flags allow. kustomize is built in and does the rest. Under a trust policy
(--trust-policy) each of them has to satisfy it before any of them runs.

Layers on other machines are not built, as functions in them would not have been
looked at.`,
		Example: `  krmcat build overlays/production --trusted-catalog https://example.com/catalog.yaml

  # What it would run
  krmcat resolve overlays/production --trusted-catalog https://example.com/catalog.yaml`,
		Args: args(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error {
			opts.Dir = "."
			if len(a) == 1 {
				opts.Dir = a[0]
			}
			return runBuild(cmd.Context(), e, opts)
		},
	}
	f := cmd.Flags()
	opts.Catalogs.add(f)
	opts.Exec.add(f)
	opts.Remote.add(f)
	opts.Trust.add(f)
	return cmd
}

func runBuild(ctx context.Context, e *env, opts *buildOptions) error {
	tree, err := kustomization.Load(opts.Dir)
	if err != nil {
		return explainInvalid(e, err)
	}
	fns, err := newFunctions(e, &opts.Remote, &opts.Exec)
	if err != nil {
		return err
	}
	if fns.trust, err = opts.Trust.gate(e, fns.client); err != nil {
		return err
	}
	resolver, err := newFunctionResolver(e, fns.source, &opts.Catalogs)
	if err != nil {
		return err
	}
	b := &builder{e: e, fns: fns, resolver: resolver, prepared: map[string]runtime.Function{}}
	steps := make([]runtime.Step, len(tree.Functions))
	keys := make([]string, len(tree.Functions))
	var failures []error
	for i := range tree.Functions {
		fn := &tree.Functions[i]
		if steps[i], keys[i], err = b.prepare(ctx, fn); err != nil {
			failures = append(failures, fmt.Errorf("%s:%d: %w", fn.File, fn.Line, err))
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if len(failures) > 0 {
		return explainInvalid(e, explainRun(joined(failures)))
	}
	if tree.Kind == "Composition" {
		return buildComposition(ctx, e, steps)
	}
	return buildKustomization(ctx, e, tree, steps, keys)
}

// builder prepares the functions of a tree, each once.
type builder struct {
	e        *env
	fns      *functions
	resolver *functionResolver
	prepared map[string]runtime.Function
}

// prepare returns the step for a functionConfig, and a key that is the same
// for functionConfigs of which the same is run.
func (b *builder) prepare(ctx context.Context, fn *kustomization.Function) (runtime.Step, string, error) {
	config, err := fn.ConfigText()
	if err != nil {
		return runtime.Step{}, "", err
	}
	step := runtime.Step{Name: fn.Name, Config: config}
	if step.Name == "" {
		step.Name = fn.GVK.Kind
	}
	_, res, err := b.resolver.resolve(ctx, fn)
	if err != nil {
		return step, "", err
	}
	key := ""
	switch rt := fn.Inline; {
	case res != nil:
		key = fmt.Sprint("catalog ", res.Catalog.Digest, " ", res.GVK())
	case rt.Exec != "":
		key = "exec " + filepath.Join(filepath.Dir(fn.Layer), rt.Exec)
	case rt.Starlark != "":
		key = "starlark " + filepath.Join(filepath.Dir(fn.Layer), rt.Starlark)
	default:
		key = fmt.Sprint("image ", rt.Image, " ", rt.Network)
	}
	if step.Function = b.prepared[key]; step.Function != nil {
		return step, key, nil
	}
	if res != nil {
		step.Function, err = b.fns.prepare(ctx, res)
	} else {
		step.Function, err = b.inline(ctx, fn)
	}
	if err == nil {
		b.prepared[key] = step.Function
	}
	return step, key, err
}

// inline prepares what a functionConfig names itself. The flags for such
// functions stay required (KC-093), and it gets no more than it asks for.
func (b *builder) inline(ctx context.Context, fn *kustomization.Function) (runtime.Function, error) {
	rt := fn.Inline
	local := func(p string) (string, error) {
		if loc, err := catalog.ParseLocation(p); err != nil || !loc.IsLocal() {
			return "", fmt.Errorf("%s: only files on this machine can be named here: %w", p, errors.ErrUnsupported)
		}
		if filepath.IsAbs(p) {
			return p, nil
		}
		return filepath.Join(filepath.Dir(fn.Layer), filepath.FromSlash(p)), nil
	}
	switch {
	case rt.Exec != "":
		if !b.fns.engine.Grants.Exec {
			return nil, withHint(fmt.Errorf("%s names the program %s: %w", fn.GVK, rt.Exec, runtime.ErrNotGranted), "allow it with --allow-exec if you trust the function")
		}
		p, err := local(rt.Exec)
		if err == nil {
			err = b.fns.trust.local(ctx, p)
		}
		if err != nil {
			return nil, err
		}
		if p, err = filepath.Abs(p); err != nil {
			return nil, err
		}
		return b.fns.local(p)
	case rt.Starlark != "":
		p, err := local(rt.Starlark)
		if err == nil {
			err = b.fns.trust.local(ctx, p)
		}
		if err != nil {
			return nil, err
		}
		return b.fns.script(p)
	}
	if !rt.Network && b.fns.engine.Grants.Network {
		f := *b.fns
		f.engine.Grants.Network = false
		return f.image(ctx, rt.Image)
	}
	return b.fns.image(ctx, rt.Image)
}

// buildComposition runs the modules one after another, the first one without
// resources (KEP-2299).
func buildComposition(ctx context.Context, e *env, steps []runtime.Step) error {
	p := &runtime.Pipeline{Steps: steps, APIVersion: resourcelist.APIVersion, Stderr: e.Err}
	out, err := p.Run(ctx, nil)
	showResults(e, out)
	if err != nil {
		return explainRun(err)
	}
	for i, it := range out.Items {
		text, err := resourcelist.Strip(it)
		if err != nil {
			return err
		}
		if i > 0 {
			printf(e.Out, "---\n")
		}
		if _, err := e.Out.Write(text); err != nil {
			return err
		}
	}
	return nil
}

// buildKustomization lets kustomize build, over files in which every function
// is this program, which gives what it reads to the functions here.
func buildKustomization(ctx context.Context, e *env, tree *kustomization.Tree, steps []runtime.Step, keys []string) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("finding this program: %w", err)
	}
	// Steps are shared by functionConfigs that one file is for.
	first := map[string]int{}
	for i, k := range keys {
		fn := &tree.Functions[i]
		k = fmt.Sprint(k, " ", fn.File, " ", fn.Line, " ", fn.Document)
		if _, ok := first[k]; !ok {
			first[k] = i
		}
		keys[i] = k
	}
	srv, err := newFunctionServer(ctx, e, tree.Functions, steps)
	if err != nil {
		return err
	}
	defer srv.close()
	overlay, err := tree.Overlay(func(i int) string {
		text, err := json.Marshal(map[string]any{"exec": map[string]any{"path": self, "args": []string{functionCallName, srv.socket(), strconv.Itoa(first[keys[i]])}}})
		if err != nil {
			return ""
		}
		return string(text)
	})
	if err != nil {
		return explainInvalid(e, err)
	}
	o := krusty.MakeDefaultOptions()
	o.Reorder = krusty.ReorderOptionUnspecified
	o.PluginConfig = types.EnabledPluginConfig(types.BploUseStaticallyLinked)
	o.PluginConfig.FnpLoadingOptions.EnableExec = true
	root := filepath.Dir(tree.Root)
	files := &overlayFS{FileSystem: filesys.MakeFsOnDisk(), files: overlay}
	m, err := krusty.MakeKustomizer(o).Run(files, root)
	switch ferr := srv.failed(); {
	case ctx.Err() != nil:
		return ctx.Err()
	case ferr != nil:
		return explainRun(ferr)
	case files.refused != nil:
		return files.refused
	case err != nil:
		// Its causes are about its own files and mean nothing here.
		return fmt.Errorf("kustomize: %v", err)
	}
	out, err := m.AsYaml()
	if err != nil {
		return fmt.Errorf("kustomize: %v", err)
	}
	_, err = e.Out.Write(out)
	return err
}

// overlayFS is the file system with other content in some files. A layer that
// is none of them was not looked at, and is not read.
type overlayFS struct {
	filesys.FileSystem
	files map[string][]byte

	mu      sync.Mutex
	refused error
}

// ReadFile implements [filesys.FileSystem].
func (f *overlayFS) ReadFile(name string) ([]byte, error) {
	abs, err := filepath.Abs(name)
	if err != nil {
		return nil, err
	}
	if data, ok := f.files[abs]; ok {
		return data, nil
	}
	if real, err := filepath.EvalSymlinks(abs); err == nil {
		for p, data := range f.files {
			if rp, err := filepath.EvalSymlinks(p); err == nil && rp == real {
				return data, nil
			}
		}
	}
	if slices.Contains([]string{"kustomization.yaml", "kustomization.yml", "Kustomization"}, filepath.Base(abs)) {
		f.mu.Lock()
		defer f.mu.Unlock()
		if _, err := os.Stat(abs); err == nil && f.refused == nil {
			f.refused = fmt.Errorf("%s is a layer that its functions could not be looked for in: %w", abs, kustomization.ErrNotBuildable)
			return nil, f.refused
		}
	}
	return f.FileSystem.ReadFile(name)
}

const functionCallName = "function-call"

// newFunctionCallCmd is what kustomize runs in the place of a function.
func newFunctionCallCmd(e *env) *cobra.Command {
	return &cobra.Command{
		Use:    functionCallName + " SOCKET INDEX",
		Short:  "Hand a ResourceList to a function; used by krmcat build itself",
		Hidden: true,
		Args:   args(cobra.ExactArgs(2)),
		RunE: func(cmd *cobra.Command, a []string) error {
			return callFunction(cmd.Context(), e, a[0], a[1])
		},
	}
}

// maxCall bounds what goes through the socket in one direction.
const maxCall = 1 << 30

func callFunction(ctx context.Context, e *env, socket, index string) error {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", socket)
	if err != nil {
		return fmt.Errorf("reaching krmcat build: %w", err)
	}
	defer conn.Close()
	if _, err := fmt.Fprintln(conn, index); err != nil {
		return fmt.Errorf("talking to krmcat build: %w", err)
	}
	if _, err := io.Copy(conn, e.In); err != nil {
		return fmt.Errorf("talking to krmcat build: %w", err)
	}
	if err := conn.(*net.UnixConn).CloseWrite(); err != nil {
		return fmt.Errorf("talking to krmcat build: %w", err)
	}
	r := bufio.NewReader(conn)
	status, err := r.ReadString('\n')
	if err != nil {
		return fmt.Errorf("talking to krmcat build: %w", err)
	}
	if _, err := io.Copy(e.Out, io.LimitReader(r, maxCall)); err != nil {
		return fmt.Errorf("talking to krmcat build: %w", err)
	}
	if status != "ok\n" {
		return errSilent(exitInvalid)
	}
	return nil
}

// functionServer runs functions for the programs that kustomize starts. Its
// socket is in a folder that nobody else can enter.
type functionServer struct {
	e     *env
	fns   []kustomization.Function
	steps []runtime.Step // of each of fns
	dir   string
	ln    net.Listener
	wg    sync.WaitGroup

	mu  sync.Mutex
	err error // of the first function that failed
}

func newFunctionServer(ctx context.Context, e *env, fns []kustomization.Function, steps []runtime.Step) (*functionServer, error) {
	dir, err := os.MkdirTemp("", "krmcat-build-")
	if err != nil {
		return nil, fmt.Errorf("making a temporary folder: %w", err)
	}
	s := &functionServer{e: e, fns: fns, steps: steps, dir: dir}
	if s.ln, err = net.Listen("unix", s.socket()); err != nil {
		return nil, errors.Join(fmt.Errorf("listening for functions: %w", err), os.RemoveAll(dir))
	}
	s.wg.Go(func() {
		for {
			conn, err := s.ln.Accept()
			if err != nil {
				return
			}
			s.wg.Go(func() { s.serve(ctx, conn) })
		}
	})
	return s, nil
}

func (s *functionServer) socket() string { return filepath.Join(s.dir, "s") }

func (s *functionServer) close() {
	_ = s.ln.Close()
	s.wg.Wait()
	_ = os.RemoveAll(s.dir)
}

func (s *functionServer) failed() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

func (s *functionServer) serve(ctx context.Context, conn net.Conn) {
	defer conn.Close()
	out, err := s.run(ctx, conn)
	if err != nil {
		s.mu.Lock()
		if s.err == nil {
			s.err = err
		}
		s.mu.Unlock()
		printf(conn, "failed\n")
		return
	}
	printf(conn, "ok\n")
	// A program that went away has been noticed by kustomize.
	_, _ = conn.Write(out)
}

// run feeds the items that kustomize sent to a function, with the
// functionConfig as it stands in its file.
func (s *functionServer) run(ctx context.Context, conn io.Reader) ([]byte, error) {
	r := bufio.NewReader(io.LimitReader(conn, maxCall+1))
	line, err := r.ReadString('\n')
	if err != nil {
		return nil, fmt.Errorf("reading from kustomize: %w", err)
	}
	i, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil || i < 0 || i >= len(s.steps) {
		return nil, errors.New("kustomize asked for a function that is not there")
	}
	data, err := io.ReadAll(r)
	if err != nil {
		return nil, fmt.Errorf("reading from kustomize: %w", err)
	}
	list, err := resourcelist.Read(data, resourcelist.ReadOptions{})
	if err != nil {
		return nil, fmt.Errorf("reading from kustomize: %w", err)
	}
	p := &runtime.Pipeline{Steps: s.steps[i : i+1], APIVersion: resourcelist.APIVersion, Stderr: s.e.Err}
	out, err := p.Run(ctx, list.Items)
	if out != nil {
		showResults(s.e, out)
	}
	if err != nil {
		return nil, fmt.Errorf("%s:%d: %w", s.fns[i].File, s.fns[i].Line, err)
	}
	return resourcelist.Compose(&resourcelist.List{APIVersion: resourcelist.APIVersion, Items: out.Items, FunctionConfig: bytes.Clone(list.FunctionConfig)})
}
