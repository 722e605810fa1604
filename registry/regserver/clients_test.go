package regserver_test

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/krmcat/krmcat/internal/tooltest"
	"github.com/krmcat/krmcat/registry/regdir"
	"github.com/krmcat/krmcat/registry/regtest"
)

// The tests here let clients that people use push and pull.

func diskServer(t testing.TB) *regtest.Server {
	t.Helper()
	store, err := regdir.Open(t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	return regtest.NewServerWith(t, store, nil)
}

// program finds one of the given programs, or files.
func program(t testing.TB, names ...string) string {
	t.Helper()
	for _, n := range names {
		if path, err := exec.LookPath(n); err == nil {
			return path
		}
	}
	tooltest.Lacking(t, names[0]+" is not installed")
	return ""
}

// runner runs a program in a folder of its own, with a home of its own.
func runner(t testing.TB) func(env []string, name string, arg ...string) string {
	home := t.TempDir()
	if err := os.WriteFile(filepath.Join(home, "config.json"), []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	return func(env []string, name string, arg ...string) string {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, name, arg...)
		cmd.Dir = home
		cmd.Env = append(append(os.Environ(), "HOME="+home, "XDG_RUNTIME_DIR="+home, "DOCKER_CONFIG="+home, "REGISTRY_AUTH_FILE="), env...)
		var out, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errs
		if err := cmd.Run(); err != nil {
			t.Fatalf("%s %v: %v\n%s%s", filepath.Base(name), arg, err, &out, &errs)
		}
		return out.String()
	}
}

func TestGoContainerRegistry(t *testing.T) {
	t.Parallel()
	srv := diskServer(t)
	ctx := remote.WithContext(t.Context())
	anonymous := remote.WithAuth(authn.Anonymous)
	ref := func(s string) name.Reference {
		t.Helper()
		r, err := name.ParseReference(srv.Host+"/ggcr/"+s, name.Insecure)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	img, err := random.Image(200_000, 3)
	if err != nil {
		t.Fatal(err)
	}
	want, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(ref("image:v1.0.0"), img, ctx, anonymous); err != nil {
		t.Fatal(err)
	}
	got, err := remote.Image(ref("image:v1.0.0"), ctx, anonymous)
	if err != nil {
		t.Fatal(err)
	}
	if d, err := got.Digest(); err != nil || d != want {
		t.Errorf("got %v, %v, want %v", d, err, want)
	}
	layers, err := got.Layers()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range layers {
		rc, err := l.Compressed() // which checks the digest
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, rc); err != nil {
			t.Error(err)
		}
		_ = rc.Close()
	}
	// To another repository, the layers are mounted.
	if err := remote.Write(ref("copy:v1"), got, ctx, anonymous); err != nil {
		t.Fatal(err)
	}
	index := mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: img})
	if err := remote.WriteIndex(ref("image:index"), index, ctx, anonymous); err != nil {
		t.Fatal(err)
	}
	tags, err := remote.List(ref("image:x").Context(), ctx, anonymous)
	if err != nil || strings.Join(tags, " ") != "index v1.0.0" {
		t.Errorf("tags: %v, %v", tags, err)
	}
	signed, ok := mutate.Subject(img, mustDescriptor(t, ref("image:v1.0.0"))).(v1.Image)
	if !ok {
		t.Fatal("mutate.Subject gave no image")
	}
	if err := remote.Put(ref("image:signature"), signed, ctx, anonymous); err != nil {
		t.Fatal(err)
	}
	refs, err := remote.Referrers(ref("image:x").Context().Digest(want.String()), ctx, anonymous)
	if err != nil {
		t.Fatal(err)
	}
	if m, err := refs.IndexManifest(); err != nil || len(m.Manifests) != 1 {
		t.Errorf("referrers: %v, %v", m, err)
	}
	if err := remote.Delete(ref("image:index"), ctx, anonymous); err != nil {
		t.Error(err)
	}
	repos, err := remote.Catalog(t.Context(), ref("x").Context().Registry, anonymous)
	if err != nil || strings.Join(repos, " ") != "ggcr/copy ggcr/image" {
		t.Errorf("repositories: %v, %v", repos, err)
	}
}

// archive makes an image archive that skopeo and podman read.
func archive(t testing.TB, dir string) string {
	t.Helper()
	path := filepath.Join(dir, "layer.tar")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	w := tar.NewWriter(f)
	content := []byte("hello\n")
	if err := w.WriteHeader(&tar.Header{Name: "hello", Mode: 0o644, Size: int64(len(content))}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(content); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestSkopeo(t *testing.T) {
	t.Parallel()
	skopeo := program(t, "skopeo")
	srv := diskServer(t)
	run := runner(t)
	img, err := random.Image(100_000, 2)
	if err != nil {
		t.Fatal(err)
	}
	ref, err := name.ParseReference(srv.Host+"/skopeo/source:v1", name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(ref, img, remote.WithContext(t.Context()), remote.WithAuth(authn.Anonymous)); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	source := "docker://" + srv.Host + "/skopeo/source:v1"
	run(nil, skopeo, "--insecure-policy", "copy", "--src-tls-verify=false", source, "dir:"+dir)
	run(nil, skopeo, "--insecure-policy", "copy", "--dest-tls-verify=false", "dir:"+dir, "docker://"+srv.Host+"/skopeo/copy:v1")
	run(nil, skopeo, "--insecure-policy", "copy", "--src-tls-verify=false", "--dest-tls-verify=false", "--format", "oci", source, "docker://"+srv.Host+"/skopeo/oci:v1")
	var inspected struct {
		Digest   string
		RepoTags []string
		Layers   []string
	}
	out := run(nil, skopeo, "inspect", "--tls-verify=false", "docker://"+srv.Host+"/skopeo/copy:v1")
	if err := json.Unmarshal([]byte(out), &inspected); err != nil || len(inspected.Layers) != 2 || len(inspected.RepoTags) != 1 {
		t.Errorf("inspect: %s, %v", out, err)
	}
	want, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	if inspected.Digest != want.String() {
		t.Errorf("digest: got %s, want %s", inspected.Digest, want)
	}
	run(nil, skopeo, "delete", "--tls-verify=false", "docker://"+srv.Host+"/skopeo/copy:v1")
	if got := run(nil, skopeo, "list-tags", "--tls-verify=false", "docker://"+srv.Host+"/skopeo/oci"); !strings.Contains(got, `"v1"`) {
		t.Errorf("list-tags: %s", got)
	}
}

func TestPodman(t *testing.T) {
	podman := program(t, "podman")
	srv := diskServer(t)
	run := runner(t)
	base := t.TempDir()
	flags := []string{"--root", filepath.Join(base, "root"), "--runroot", filepath.Join(base, "run"), "--storage-driver", "vfs"}
	do := func(arg ...string) string {
		t.Helper()
		return run(nil, podman, append(flags, arg...)...)
	}
	t.Cleanup(func() { _ = exec.Command(podman, append(flags, "system", "reset", "--force")...).Run() }) // its folders go anyway
	image := srv.Host + "/podman/hello:v1.0.0"
	do("import", archive(t, base), image)
	do("push", "--tls-verify=false", image)
	id := do("image", "inspect", "--format", "{{.Id}}", image)
	do("rmi", image)
	do("pull", "--tls-verify=false", image)
	if got := do("image", "inspect", "--format", "{{.Id}}", image); got != id {
		t.Errorf("pulled image %s, want %s", got, id)
	}
}

// cosign signs an artifact, in its old way and in its new one, and verifies.
func TestCosign(t *testing.T) {
	t.Parallel()
	for _, which := range []string{"2", "3"} {
		t.Run(which, func(t *testing.T) {
			t.Parallel()
			cosign := tooltest.Path(t, "cosign"+which)
			srv := diskServer(t)
			run := runner(t)
			img, err := random.Image(1000, 1)
			if err != nil {
				t.Fatal(err)
			}
			ref, err := name.ParseReference(srv.Host+"/cosign/image:v1.0.0", name.Insecure)
			if err != nil {
				t.Fatal(err)
			}
			if err := remote.Write(ref, img, remote.WithContext(t.Context()), remote.WithAuth(authn.Anonymous)); err != nil {
				t.Fatal(err)
			}
			d, err := img.Digest()
			if err != nil {
				t.Fatal(err)
			}
			target := ref.Context().Name() + "@" + d.String()
			env := []string{"COSIGN_PASSWORD=test"}
			run(env, cosign, "generate-key-pair")
			sign := []string{"sign", "--yes", "--key", "cosign.key", "--allow-insecure-registry", "--tlog-upload=false"}
			verify := []string{"verify", "--key", "cosign.pub", "--allow-insecure-registry", "--insecure-ignore-tlog=true"}
			if which == "3" {
				sign = append(sign, "--use-signing-config=false")
			}
			run(env, cosign, append(sign, target)...)
			if got := run(env, cosign, append(verify, target)...); !strings.Contains(got, d.String()) {
				t.Errorf("verify: %s", got)
			}
		})
	}
}

func mustDescriptor(t testing.TB, ref name.Reference) v1.Descriptor {
	t.Helper()
	d, err := remote.Head(ref, remote.WithContext(t.Context()), remote.WithAuth(authn.Anonymous))
	if err != nil {
		t.Fatal(fmt.Errorf("HEAD %s: %w", ref, err))
	}
	return *d
}

// regctl copies, lists and deletes.
func TestRegctl(t *testing.T) {
	t.Parallel()
	regctl := tooltest.Path(t, "regctl")
	srv := diskServer(t)
	run := runner(t)
	img, err := random.Image(50_000, 2)
	if err != nil {
		t.Fatal(err)
	}
	ref, err := name.ParseReference(srv.Host+"/regctl/source:v1.0.0", name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(ref, img, remote.WithContext(t.Context()), remote.WithAuth(authn.Anonymous)); err != nil {
		t.Fatal(err)
	}
	want, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	run(nil, regctl, "registry", "set", srv.Host, "--tls", "disabled")
	run(nil, regctl, "image", "copy", srv.Host+"/regctl/source:v1.0.0", "ocidir://copied:v1")
	run(nil, regctl, "image", "copy", "ocidir://copied:v1", srv.Host+"/regctl/copy:latest")
	if got := strings.TrimSpace(run(nil, regctl, "image", "digest", srv.Host+"/regctl/copy:latest")); got != want.String() {
		t.Errorf("digest: got %s, want %s", got, want)
	}
	run(nil, regctl, "artifact", "put", "--artifact-type", "application/vnd.example", "--file", "config.json", "--subject", srv.Host+"/regctl/copy:latest")
	if got := run(nil, regctl, "artifact", "list", srv.Host+"/regctl/copy:latest"); !strings.Contains(got, "application/vnd.example") {
		t.Errorf("artifact list: %s", got)
	}
	run(nil, regctl, "tag", "delete", srv.Host+"/regctl/copy:latest")
	if got := run(nil, regctl, "tag", "ls", srv.Host+"/regctl/copy"); strings.Contains(got, "latest") {
		t.Errorf("tag ls after the deletion: %s", got)
	}
}

// docker pushes and pulls, with an engine of its own.
func TestDocker(t *testing.T) {
	docker, dockerd := program(t, "docker"), program(t, "dockerd", "/usr/sbin/dockerd")
	if os.Geteuid() != 0 {
		tooltest.Lacking(t, "dockerd needs root")
	}
	srv := diskServer(t)
	run := runner(t)
	base := t.TempDir()
	socket := "unix://" + filepath.Join(base, "docker.sock")
	var out bytes.Buffer
	engine := exec.Command(dockerd, "--host", socket, "--data-root", filepath.Join(base, "data"), "--exec-root", filepath.Join(base, "exec"),
		"--pidfile", filepath.Join(base, "pid"), "--storage-driver", "vfs", "--iptables=false", "--bridge=none")
	engine.Env = append(os.Environ(), "PATH="+os.Getenv("PATH")+":/usr/sbin:/sbin")
	engine.Stdout, engine.Stderr = &out, &out
	if err := engine.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { _ = engine.Wait(); close(ended) }()
	t.Cleanup(func() { _ = engine.Process.Signal(os.Interrupt); <-ended })
	env := []string{"DOCKER_HOST=" + socket}
	deadline := time.Now().Add(time.Minute)
	for {
		cmd := exec.CommandContext(t.Context(), docker, "version")
		cmd.Env = append(os.Environ(), env...)
		if cmd.Run() == nil {
			break
		}
		select {
		case <-ended:
			t.Fatalf("dockerd did not start:\n%s", &out)
		case <-time.After(100 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			t.Fatal("dockerd does not answer")
		}
	}
	image := srv.Host + "/docker/hello:v1.0.0"
	run(env, docker, "import", archive(t, base), image)
	id := run(env, docker, "image", "inspect", "--format", "{{.Id}}", image)
	run(env, docker, "push", image)
	run(env, docker, "rmi", image)
	run(env, docker, "pull", image)
	if got := run(env, docker, "image", "inspect", "--format", "{{.Id}}", image); got != id {
		t.Errorf("pulled image %s, want %s", got, id)
	}
}
