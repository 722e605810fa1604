package containerfn

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/krmcat/krmcat/runtime"
)

// Engines are the container engines that can be named, in the order in which
// they are looked for.
var Engines = []string{"docker", "podman", "nerdctl"}

// engine is a client of a container engine.
type engine struct {
	name, path string
	ociRuntime string // for podman, if not its own choice
	noFiles    int
	noProcs    int
}

// engine finds the engine once.
func (x *Executor) engine() (*engine, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.found != nil {
		return x.found, nil
	}
	names := Engines
	if x.Engine != "" {
		names = []string{x.Engine}
	}
	var why []string
	for _, name := range names {
		e, err := x.find(name)
		if err != nil {
			why = append(why, err.Error())
			continue
		}
		x.found = e
		return e, nil
	}
	return nil, fmt.Errorf("no container engine (%s): %w", strings.Join(why, "; "), runtime.ErrUnavailable)
}

// find checks that an engine is there without asking it: that would cost as
// much as starting a container.
func (x *Executor) find(name string) (*engine, error) {
	switch name {
	case "docker", "podman", "nerdctl":
	default:
		return nil, fmt.Errorf("%q is not docker, podman or nerdctl", name)
	}
	p, err := lookPath(name, x.getenv("PATH"))
	if err != nil {
		return nil, err
	}
	e := &engine{name: name, path: p, noFiles: 1024, noProcs: 1000}
	limitFiles(e)
	switch name {
	case "docker":
		if err := reachable(x.getenv("DOCKER_HOST"), "/var/run/docker.sock"); err != nil && x.getenv("DOCKER_CONTEXT") == "" {
			return nil, fmt.Errorf("docker: its daemon does not answer: %v", err)
		}
	case "nerdctl":
		if err := reachable(x.getenv("CONTAINERD_ADDRESS"), "/run/containerd/containerd.sock"); err != nil && os.Getuid() == 0 {
			return nil, fmt.Errorf("nerdctl: containerd does not answer: %v", err)
		}
	case "podman":
		// crun refuses a machine with both versions of control groups, runc
		// does not.
		if hybridCgroups() {
			for _, dir := range []string{"/usr/sbin", "/usr/bin", "/usr/local/sbin", "/usr/local/bin"} {
				if _, err := os.Stat(filepath.Join(dir, "runc")); err == nil {
					e.ociRuntime = filepath.Join(dir, "runc")
					break
				}
			}
		}
	}
	return e, nil
}

func (x *Executor) getenv(name string) string {
	for _, e := range x.Env {
		if v, ok := strings.CutPrefix(e, name+"="); ok {
			return v
		}
	}
	return ""
}

// lookPath finds a program on the path of the client's environment, not on
// that of this process.
func lookPath(name, path string) (string, error) {
	for _, dir := range filepath.SplitList(path) {
		if !filepath.IsAbs(dir) {
			continue
		}
		if p, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return p, nil
		}
	}
	return "", fmt.Errorf("%s: not on PATH", name)
}

// reachable dials the socket of a daemon.
func reachable(host, socket string) error {
	network, addr := "unix", socket
	if host != "" {
		u, err := url.Parse(host)
		if err != nil {
			return err
		}
		switch u.Scheme {
		case "unix", "":
			addr = u.Path
		case "tcp", "http", "https":
			network, addr = "tcp", u.Host
		default:
			return nil // ssh and others: the client knows
		}
	}
	c, err := net.DialTimeout(network, addr, 2*time.Second)
	if err != nil {
		return err
	}
	return c.Close()
}

func hybridCgroups() bool {
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		return false
	}
	_, err := os.Stat("/sys/fs/cgroup/unified")
	return err == nil
}

// run is the command line up to what depends on the function. An engine that
// can ends the container itself, some time after last.
func (e *engine) run(container string, l runtime.Limits, last time.Duration) []string {
	var args []string
	if e.ociRuntime != "" {
		args = append(args, "--runtime", e.ociRuntime)
	}
	args = append(args, "run", "--rm", "--interactive", "--name", container,
		"--pull", "never",
		"--read-only", "--tmpfs", "/tmp:rw,noexec,nosuid,nodev,size=64m,mode=1777",
		"--cap-drop", "ALL",
		"--security-opt", "no-new-privileges",
		"--memory", strconv.FormatInt(l.MaxMemory, 10),
		"--memory-swap", strconv.FormatInt(l.MaxMemory, 10),
		"--pids-limit", strconv.Itoa(l.MaxProcs),
		"--ulimit", fmt.Sprintf("nofile=%d:%d", e.noFiles, e.noFiles),
		"--ulimit", "core=0:0",
	)
	switch e.name {
	case "podman":
		// Its default is more than an unprivileged machine may give. And
		// podman can end a container by itself, should this process die.
		args = append(args,
			"--ulimit", fmt.Sprintf("nproc=%d:%d", e.noProcs, e.noProcs),
			"--log-driver", "none",
			"--timeout", strconv.Itoa(int(last/time.Second)+10))
	case "docker":
		args = append(args, "--log-driver", "none")
	case "nerdctl":
		// Only new ones have a driver none. What the function writes goes
		// to a file otherwise, as long as it runs.
		args = append(args, "--log-driver", "json-file", "--log-opt", "max-size=1m", "--log-opt", "max-file=1")
	}
	return args
}

// network is an isolated network of the container's own, not the host's.
func (e *engine) network() []string {
	if e.name == "podman" {
		return []string{"--network", "private"}
	}
	return []string{"--network", "bridge"}
}

func (e *engine) readOnlyVolume() string {
	if e.name == "podman" {
		return "ro,Z" // for SELinux
	}
	return "ro"
}

// insecure allows registries on this machine to be without TLS; docker allows
// that by itself.
func (e *engine) insecure(image string) []string {
	host, _, _ := strings.Cut(image, "/")
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	addr, err := netip.ParseAddr(strings.Trim(host, "[]"))
	if host != "localhost" && (err != nil || !addr.IsLoopback()) {
		return nil
	}
	switch e.name {
	case "podman":
		return []string{"--tls-verify=false"}
	case "nerdctl":
		return []string{"--insecure-registry"}
	}
	return nil
}

// idFormat asks for what an image can be run by and never changes: its ID, and
// in nerdctl, which does not find images by that, the digest of its manifest
// or index.
func (e *engine) idFormat() string {
	if e.name == "nerdctl" {
		return "{{index .RepoDigests 0}}"
	}
	return "{{.Id}}"
}

// failed reports whether a run ended as the client itself does when it fails,
// rather than the function, and what it said.
func (e *engine) failed(err error) (said string, ok bool) {
	fe, ok := errors.AsType[*runtime.FunctionError](err)
	if !ok {
		return "", false
	}
	switch fe.ExitCode {
	case 125, 126, 127: // of docker run and podman run
		if e.name == "nerdctl" {
			return "", false
		}
	case 1: // of nerdctl
		if e.name != "nerdctl" {
			return "", false
		}
	default:
		return "", false
	}
	for line := range strings.SplitSeq(fe.Stderr, "\n") {
		if e.speaks(line) {
			return strings.TrimSpace(line), true
		}
	}
	return "", false
}

// speaks reports whether a line is what the engine's client says when it fails.
func (e *engine) speaks(line string) bool {
	switch e.name {
	case "docker":
		return strings.HasPrefix(line, "docker: ")
	case "podman":
		return strings.HasPrefix(line, "Error: ")
	}
	return strings.HasPrefix(line, "time=") && strings.Contains(line, "level=fatal")
}

// lacksImage reports whether the client says that the image is not there; it
// was told not to pull.
func (e *engine) lacksImage(said string) bool {
	return containsAny(strings.ToLower(said), "no such image", "image not known", "unable to find image", "not found locally", "image not available")
}
