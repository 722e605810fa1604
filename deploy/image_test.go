// Package deploy tests the container image of krmcat.
package deploy

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/krmcat/krmcat/internal/tooltest"
)

// podman is the engine, with what it needs where control groups are mixed.
type podman struct {
	t      *testing.T
	global []string
}

func newPodman(t *testing.T) *podman {
	t.Helper()
	if _, err := exec.LookPath("podman"); err != nil {
		tooltest.Lacking(t, "no podman")
	}
	p := &podman{t: t}
	for _, runc := range []string{"/usr/sbin/runc", "/usr/bin/runc"} {
		if _, err := os.Stat(runc); err == nil {
			p.global = []string{"--runtime", runc}
		}
	}
	return p
}

func (p *podman) try(args ...string) (string, error) {
	p.t.Helper()
	cmd := exec.Command("podman", append(p.global, args...)...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return out.String(), err
}

func (p *podman) run(args ...string) string {
	p.t.Helper()
	out, err := p.try(args...)
	if err != nil {
		p.t.Fatalf("podman %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// TestImageFromBinary builds the image as make image does and serves from it,
// with a root that cannot be written and without privileges.
func TestImageFromBinary(t *testing.T) {
	p := newPodman(t)
	dir := t.TempDir()
	files(t, dir, map[string]string{"bin/data/": "", "bin/image/tmp/": "", "bin/image/etc/ssl/certs/ca-certificates.crt": ""})
	build := exec.Command("go", "build", "-trimpath", "-o", filepath.Join(dir, "bin/image/krmcat"), "../cmd/krmcat")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	image := fmt.Sprintf("localhost/krmcat-deploy-test:%d", os.Getpid())
	p.run("build", "--format", "docker", "--target", "prebuilt", "-f", "../Dockerfile", "-t", image, dir)
	t.Cleanup(func() { p.run("rmi", "-f", image) })
	serves(t, p, image)
}

// TestImageFromSource builds the image with its first stage as well. No Go
// image can be pulled here: one is made of a shell and this machine's Go.
func TestImageFromSource(t *testing.T) {
	p := newPodman(t)
	shell, err := exec.LookPath("busybox")
	if err != nil {
		tooltest.Lacking(t, "no busybox, of which the builder's image is made")
	}
	goroot, modules, cache := goEnv(t, "GOROOT"), goEnv(t, "GOMODCACHE"), goEnv(t, "GOCACHE")
	dir := t.TempDir()
	data, err := os.ReadFile(shell)
	if err != nil {
		t.Fatal(err)
	}
	files(t, dir, map[string]string{
		"busybox": string(data),
		"certs":   "",
		"Dockerfile": `FROM scratch
COPY busybox /bin/busybox
RUN ["/bin/busybox", "--install", "/bin"]
RUN mkdir -p /tmp /etc/ssl/certs
COPY certs /etc/ssl/certs/ca-certificates.crt
ENV PATH=/usr/local/go/bin:/bin GOFLAGS=-mod=mod GOPROXY=off GOTOOLCHAIN=local GOPATH=/go GOMODCACHE=/modules GOCACHE=/cache HOME=/tmp
`,
	})
	if err := os.Chmod(filepath.Join(dir, "busybox"), 0o755); err != nil {
		t.Fatal(err)
	}
	builder := fmt.Sprintf("localhost/krmcat-builder-test:%d", os.Getpid())
	image := fmt.Sprintf("localhost/krmcat-source-test:%d", os.Getpid())
	limits := []string{"--ulimit", "nofile=1024:1024"}
	p.run(append([]string{"build", "-t", builder, dir}, limits...)...)
	t.Cleanup(func() { p.run("rmi", "-f", builder) })
	p.run(append([]string{
		"build", "--format", "docker", "--pull-never", "--network", "none", "--build-arg", "BUILDER_IMAGE=" + builder,
		"-v", goroot + ":/usr/local/go:ro", "-v", modules + ":/modules", "-v", cache + ":/cache",
		"-f", "../Dockerfile", "-t", image, "..",
	}, limits...)...)
	t.Cleanup(func() { p.run("rmi", "-f", image) })
	serves(t, p, image)
}

// serves runs the image as a server, asks its own health check, and stops it.
func serves(t *testing.T, p *podman, image string) {
	t.Helper()
	name := fmt.Sprintf("krmcat-deploy-test-%d", os.Getpid())
	hardened := []string{
		"--network", "none", "--read-only", "--tmpfs", "/tmp", "--cap-drop", "all", "--security-opt", "no-new-privileges",
		"--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1000:1000",
	}
	version := p.run(append(append([]string{"run", "--rm"}, hardened...), image, "version")...)
	if !strings.Contains(version, "krmcat ") {
		t.Errorf("krmcat version: %q", version)
	}
	// Who may publish has to be said.
	out, err := p.try(append(append([]string{"run", "--rm"}, hardened...), image)...)
	if err == nil || !strings.Contains(out, "/etc/krmcat/users") || !strings.Contains(out, "htpasswd -B") {
		t.Errorf("without users: %v, %q", err, out)
	}

	p.run(append(append([]string{"run", "--detach", "--name", name}, hardened...), image,
		"serve", "--data", "/data", "--listen", ":8080", "--anonymous-push")...)
	t.Cleanup(func() { p.run("rm", "-f", "-v", name) })
	healthy := false
	for range 200 {
		if out, err = p.try("healthcheck", "run", name); err == nil {
			healthy = true
			break
		}
	}
	if !healthy {
		logs, _ := p.try("logs", name)
		t.Fatalf("the health check fails: %v: %s\n%s", err, out, logs)
	}
	user := p.run("inspect", "--format", "{{.Config.User}} {{.Config.WorkingDir}} {{.HostConfig.ReadonlyRootfs}}", name)
	if strings.TrimSpace(user) != "65534:65534 /data true" {
		t.Errorf("runs as %q", user)
	}
	p.run("stop", "--time", "20", name)
	if code := strings.TrimSpace(p.run("inspect", "--format", "{{.State.ExitCode}}", name)); code != "0" {
		logs, _ := p.try("logs", name)
		t.Errorf("stopped with exit code %s\n%s", code, logs)
	}
}

func goEnv(t *testing.T, name string) string {
	t.Helper()
	out, err := exec.Command("go", "env", name).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

// files writes files; a name with a slash at its end is a folder.
func files(t *testing.T, dir string, content map[string]string) {
	t.Helper()
	for name, text := range content {
		file := filepath.Join(dir, name)
		if strings.HasSuffix(name, "/") {
			if err := os.MkdirAll(file, 0o777); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
