// Package containerfn runs KRM functions that are published as container
// images, with the command-line client of docker, podman or nerdctl.
//
// A container gets no network, no capabilities and no new privileges, a
// read-only root with a small tmpfs, the user 65534 (nobody; by number,
// because images made from scratch have no /etc/passwd), limits of memory,
// processes and time, and the functionConfig as a file below /local (CF-15 to
// CF-18, FS-30). An image is run by its digest and never by a tag.
package containerfn

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/krmcat/krmcat/catalog"
	"github.com/krmcat/krmcat/runtime"
	"github.com/krmcat/krmcat/runtime/internal/process"
)

// PullPolicy says when images are pulled.
type PullPolicy string

// The pull policies. Whatever the policy, what is run has the digest asked
// for.
const (
	PullMissing PullPolicy = "missing" // the default
	PullAlways  PullPolicy = "always"
	PullNever   PullPolicy = "never"
)

// Executor runs the container runtimes of functions. The zero value finds an
// engine by itself. It is safe for concurrent use.
type Executor struct {
	// Engine is docker, podman or nerdctl; empty means the first of them
	// that answers.
	Engine string
	Pull   PullPolicy
	// Env is the environment of the engine's client, which needs the user's
	// home and settings; functions get nothing of it. Nil means an empty one.
	Env []string
	// Log may be nil.
	Log *slog.Logger

	mu    sync.Mutex
	found *engine
}

// Prepare implements [runtime.Executor]. The image is pulled when the policy
// says always; otherwise the first run pulls it if it is missing, so that a
// run costs one call of the engine.
func (x *Executor) Prepare(ctx context.Context, rt catalog.Runtime, g runtime.Grants, l runtime.Limits) (runtime.Function, error) {
	c := rt.Container
	if c == nil {
		return nil, fmt.Errorf("not a container: %w", errors.ErrUnsupported)
	}
	if c.Digest == "" {
		return nil, fmt.Errorf("image %s: %w", c.Image, catalog.ErrNoDigest)
	}
	if err := c.Digest.Validate(); err != nil {
		return nil, fmt.Errorf("image %s: digest %q: %w: %w", c.Image, c.Digest, err, catalog.ErrNoDigest)
	}
	name, err := imageName(c.Image)
	if err != nil {
		return nil, err
	}
	if err := granted(c, g); err != nil {
		return nil, err
	}
	e, err := x.engine()
	if err != nil {
		return nil, err
	}
	f := &function{name: c.Image, image: name + "@" + c.Digest.String(), spec: *c, grants: g, limits: l, engine: e, x: x}
	if x.Pull == PullAlways {
		if err := f.pull(ctx); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// Local prepares an image of the engine's own storage that the user has named
// (by any reference or ID); it is run by its ID, so a tag cannot move between
// two runs. The error wraps [os.ErrNotExist] if the engine has no such image.
func (x *Executor) Local(ctx context.Context, c catalog.Container, g runtime.Grants, l runtime.Limits) (runtime.Function, error) {
	if _, err := imageName(c.Image); err != nil {
		return nil, err
	}
	if err := granted(&c, g); err != nil {
		return nil, err
	}
	e, err := x.engine()
	if err != nil {
		return nil, err
	}
	out, stderr, err := x.call(ctx, e, inspectTime, "image", "inspect", "--format", e.idFormat(), c.Image)
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, fmt.Errorf("%s has no image %s: %s: %w", e.name, c.Image, firstLine(stderr), os.ErrNotExist)
	}
	id := strings.TrimSpace(string(out))
	if _, after, ok := strings.Cut(id, "@"); ok {
		id = after
	}
	if !strings.Contains(id, ":") {
		id = "sha256:" + id
	}
	if err := digest.Digest(id).Validate(); err != nil {
		return nil, fmt.Errorf("%s gives the ID %q for image %s", e.name, id, c.Image)
	}
	return &function{name: c.Image, image: id, local: true, spec: c, grants: g, limits: l, engine: e, x: x}, nil
}

// granted checks what the function declares against what the user allows
// (KC-075, KC-076). What is not declared is not given, even when allowed.
func granted(c *catalog.Container, g runtime.Grants) error {
	if c.RequireNetwork && !g.Network {
		return &runtime.GrantError{Name: c.Image, Needs: "network", Why: "the catalog says that it uses the network"}
	}
	if c.RequireStorageMount && !g.StorageMount {
		return &runtime.GrantError{Name: c.Image, Needs: "storage mount", Why: "the catalog says that it reads files of this machine"}
	}
	for _, m := range g.Mounts {
		for _, p := range []string{m.Source, m.Target} {
			if !filepath.IsAbs(p) || strings.ContainsAny(p, ":,\x00\n") {
				return fmt.Errorf("mount %s:%s: both are absolute paths without colons and commas", m.Source, m.Target)
			}
		}
	}
	return nil
}

// imageName is an image reference without tag and digest.
func imageName(image string) (string, error) {
	if image == "" || strings.HasPrefix(image, "-") || strings.ContainsAny(image, " \t\n\x00\"'\\$`;|&<>") {
		return "", fmt.Errorf("image %q is not a reference", image)
	}
	name, _, _ := strings.Cut(image, "@")
	if i := strings.LastIndexByte(name, ':'); i > strings.LastIndexByte(name, '/') {
		name = name[:i]
	}
	return name, nil
}

type function struct {
	name, image string
	local       bool
	spec        catalog.Container
	grants      runtime.Grants
	limits      runtime.Limits
	engine      *engine
	x           *Executor

	mu    sync.Mutex
	early *early // what Start has started and no Run has taken
}

// Run implements [runtime.Function].
func (f *function) Run(ctx context.Context, stdio runtime.Stdio) error {
	input, err := replayable(stdio.Stdin)
	if err != nil {
		return fmt.Errorf("function %s: reading its input: %w", f.name, err)
	}
	stdio.Stdin = input
	if e := f.takeEarly(stdio.FunctionConfig); e != nil {
		err = e.run(ctx, stdio)
	} else {
		err = f.run(ctx, stdio, nil)
	}
	if !f.missing(err) || f.local || f.x.Pull == PullNever {
		return f.explain(err)
	}
	if err := f.pull(ctx); err != nil {
		return err
	}
	if _, err := input.Seek(0, io.SeekStart); err != nil {
		return fmt.Errorf("function %s: %w", f.name, err)
	}
	return f.explain(f.run(ctx, stdio, nil))
}

// replayable makes it possible to start again after the image was pulled.
func replayable(r io.Reader) (io.ReadSeeker, error) {
	if r == nil {
		return bytes.NewReader(nil), nil
	}
	if s, ok := r.(*bytes.Reader); ok {
		return s, nil
	}
	data, err := io.ReadAll(r)
	return bytes.NewReader(data), err
}

// run runs the container. Its time counts from when began is closed, if that
// is not nil.
func (f *function) run(ctx context.Context, stdio runtime.Stdio, began <-chan struct{}) error {
	l := f.limits.WithDefaults()
	tmp, remove, err := process.TempDir()
	if err != nil {
		return err
	}
	defer remove()
	container := "krmcat-" + strings.ToLower(rand.Text()[:16])
	last := l.Timeout // when the engine itself ends the container
	if began != nil {
		last += maxEarly
	}
	args := f.engine.run(container, l, last)
	if f.spec.RequireNetwork {
		args = append(args, f.engine.network()...)
	} else {
		args = append(args, "--network", "none")
	}
	user := nobody
	if f.spec.RequireStorageMount {
		for _, m := range f.grants.Mounts {
			mode := "ro"
			if m.Writable {
				mode, user = "rw", callerUser()
			}
			args = append(args, "--volume", m.Source+":"+m.Target+":"+mode)
		}
	}
	args = append(args, "--user", user)
	if len(stdio.FunctionConfig) > 0 {
		dir := filepath.Join(tmp, "local")
		// The folder above is this user's alone; these two are what the
		// container's user must be able to read.
		if err := errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(filepath.Join(dir, "functionConfig.yaml"), stdio.FunctionConfig, 0o644), os.Chmod(dir, 0o755)); err != nil {
			return fmt.Errorf("function %s: writing functionConfig for /local: %w", f.name, err)
		}
		args = append(args, "--volume", dir+":/local:"+f.engine.readOnlyVolume())
	}
	for _, e := range append([]string{"HOME=/tmp", "TMPDIR=/tmp"}, f.grants.Env...) {
		args = append(args, "--env", e)
	}
	args = append(args, f.image)
	// What the client says when it fails is part of the error.
	held := &heldStderr{w: stdio.Stderr, speaks: f.engine.speaks}
	stdio.Stderr = held
	err = process.Run(ctx, process.Spec{
		Name:   f.name,
		Path:   f.engine.path,
		Args:   args,
		Env:    f.x.Env,
		Stdio:  stdio,
		Limits: l,
		Began:  began,
		Killed: func() { f.remove(container) },
	})
	if _, failed := f.engine.failed(err); !failed {
		held.pass()
	}
	return err
}

// heldStderr passes standard error on, except when it begins with a line of
// the engine's client: that is held until it is known what became of it.
type heldStderr struct {
	w      io.Writer // may be nil
	speaks func(string) bool

	mu      sync.Mutex
	begin   []byte
	passing bool
}

func (h *heldStderr) Write(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.w == nil {
		return len(p), nil
	}
	if h.passing {
		return h.w.Write(p)
	}
	h.begin = append(h.begin, p...)
	line, _, whole := strings.Cut(string(h.begin), "\n")
	if len(h.begin) < maxHeld && (!whole || h.speaks(line)) {
		return len(p), nil
	}
	h.release()
	return len(p), nil
}

// maxHeld is more than a client says when it fails.
const maxHeld = 16 << 10

// release is called with the lock held.
func (h *heldStderr) release() {
	h.passing = true
	if len(h.begin) > 0 {
		_, _ = h.w.Write(h.begin) // a closed stream must not make the function fail
		h.begin = nil
	}
}

// pass passes on what is held.
func (h *heldStderr) pass() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.w != nil && !h.passing {
		h.release()
	}
}

// remove kills a container whose client was killed: the container goes on
// without it, or is only just being made by a daemon that has not noticed. The
// function's context has ended, so this has a time of its own.
func (f *function) remove(container string) {
	ctx, stop := context.WithTimeout(context.Background(), removeTime)
	defer stop()
	for started := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		stdout, stderr, err := f.x.call(ctx, f.engine, removeTime, "rm", "--force", container)
		// All of them print the name of what they have removed; some find
		// nothing wrong when there was nothing.
		if err == nil && len(bytes.TrimSpace(stdout)) > 0 {
			return
		}
		if f.engine.name == "podman" || time.Since(started) > appearTime {
			if err != nil && !containsAny(strings.ToLower(string(stderr)), "no such container", "no container with name") && f.x.Log != nil {
				f.x.Log.WarnContext(ctx, "container may still be running", "engine", f.engine.name, "container", container, "stderr", firstLine(stderr))
			}
			return
		}
	}
}

const (
	inspectTime = 20 * time.Second
	pullTime    = 10 * time.Minute
	removeTime  = 30 * time.Second
	// appearTime is how long after its client a container may come up that
	// the client has asked a daemon for.
	appearTime = 3 * time.Second
)

// nobody is the user of functions. By number: looking up the name fails in
// images without /etc/passwd.
const nobody = "65534:65534"

// callerUser is who writes to a folder that the user has mounted writable.
// Root stays nobody: a function is never given root.
func callerUser() string {
	if uid := os.Getuid(); uid > 0 {
		return strconv.Itoa(uid) + ":" + strconv.Itoa(os.Getgid())
	}
	return nobody
}

func (f *function) pull(ctx context.Context) error {
	if f.x.Log != nil {
		f.x.Log.InfoContext(ctx, "pulling image", "engine", f.engine.name, "image", f.image)
	}
	args := append([]string{"pull", "--quiet"}, f.engine.insecure(f.image)...)
	_, stderr, err := f.x.call(ctx, f.engine, pullTime, append(args, f.image)...)
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	said := lastLine(stderr)
	if said == "" {
		said = err.Error()
	}
	for _, prefix := range []string{"Error: ", "Error response from daemon: "} {
		said = strings.TrimPrefix(said, prefix)
	}
	why := fmt.Errorf("pulling image %s with %s: %s", f.image, f.engine.name, strings.ReplaceAll(said, " docker://"+f.image, ""))
	switch text := strings.ToLower(string(stderr)); {
	case containsAny(text, "unauthorized", "authentication required", "no basic auth credentials", "pull access denied",
		"requested access to the resource is denied", "authorization failed", "insufficient_scope", "403 forbidden", "403 (forbidden)", "invalid username/password"):
		// Also for what is not there: registries do not tell strangers.
		return &runtime.DeniedError{Host: registryHost(f.image), Err: why}
	case containsAny(text, "digest did not match", "does not match digest", "failed size validation", "digest mismatch", "unexpected digest", "unexpected commit digest",
		"verification failed for digest", "not match provided manifest digest"):
		return fmt.Errorf("%w: %w", why, runtime.ErrIntegrity)
	case containsAny(text, "no matching manifest", "no image found in manifest list", "no image found in image index", "does not match the specified platform", "no match for platform", "exec format"):
		return fmt.Errorf("%w: %w", why, runtime.ErrPlatform)
	case containsAny(text, "manifest unknown", "not found", "name unknown", "no such image", "repository does not exist"):
		return fmt.Errorf("%w: %w", why, os.ErrNotExist)
	case containsAny(text, "connection refused", "no such host", "i/o timeout", "no route to host", "network is unreachable", "tls handshake timeout", "temporary failure in name resolution"):
		return fmt.Errorf("%w: %w", why, runtime.ErrUnreachable)
	}
	return why
}

// registryHost is the registry of an image, as users log in to it.
func registryHost(image string) string {
	host, _, ok := strings.Cut(image, "/")
	if !ok || !strings.ContainsAny(host, ".:") && host != "localhost" {
		return "docker.io"
	}
	return host
}

// explain turns an error of the engine, which has exit codes of its own, into
// one that says so.
func (f *function) explain(err error) error {
	fe, ok := errors.AsType[*runtime.FunctionError](err)
	if ok && wrongFormat(fe.Stderr) {
		return fmt.Errorf("running image %s: %s: %w", f.image, lastLine([]byte(fe.Stderr)), runtime.ErrPlatform)
	}
	said, failed := f.engine.failed(err)
	switch {
	case !failed:
		return err
	case f.engine.lacksImage(said) && f.x.Pull == PullNever:
		return fmt.Errorf("%s has no image %s, and pulling is off: %w", f.engine.name, f.image, os.ErrNotExist)
	case f.engine.lacksImage(said):
		return fmt.Errorf("%s has no image %s: %w", f.engine.name, f.image, os.ErrNotExist)
	}
	return fmt.Errorf("%s could not run image %s: %s: %w", f.engine.name, f.image, said, runtime.ErrUnavailable)
}

// missing reports whether the engine has not got the image.
func (f *function) missing(err error) bool {
	said, failed := f.engine.failed(err)
	return failed && f.engine.lacksImage(said)
}

// wrongFormat reports whether the kernel refused the program of the image.
// The OCI runtime says so in the function's place, with exit codes of all
// kinds; it is then the only thing that is said.
func wrongFormat(stderr string) bool {
	last := lastLine([]byte(stderr))
	return strings.HasSuffix(last, "exec format error") && (strings.HasPrefix(last, "exec ") || containsAny(last, "OCI runtime", "exec user process"))
}

func containsAny(s string, subs ...string) bool {
	for _, sub := range subs {
		if strings.Contains(s, sub) {
			return true
		}
	}
	return false
}

func firstLine(b []byte) string {
	s, _, _ := strings.Cut(strings.TrimSpace(string(b)), "\n")
	return s
}

func lastLine(b []byte) string {
	s := strings.TrimSpace(string(b))
	return s[strings.LastIndexByte(s, '\n')+1:]
}

// call runs the engine's client for something else than a function.
func (x *Executor) call(ctx context.Context, e *engine, limit time.Duration, args ...string) (stdout, stderr []byte, err error) {
	ctx, stop := context.WithTimeout(ctx, limit)
	defer stop()
	cmd := exec.CommandContext(ctx, e.path, args...)
	cmd.Env = x.Env
	if cmd.Env == nil {
		cmd.Env = []string{}
	}
	cmd.WaitDelay = 2 * time.Second
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	return out.Bytes(), errs.Bytes(), err
}
