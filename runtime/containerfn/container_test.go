package containerfn

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"log"
	"net"
	"net/http/httptest"
	"os"
	"os/exec"
	goruntime "runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/opencontainers/go-digest"

	"github.com/krmcat/krmcat/catalog"
	"github.com/krmcat/krmcat/runtime"
	"github.com/krmcat/krmcat/runtime/fntest"
)

func TestMain(m *testing.M) {
	code := m.Run()
	fntest.Cleanup()
	removeImages()
	os.Exit(code)
}

// removeImages removes what the tests have pulled from their own registries.
func removeImages() {
	for _, name := range Engines {
		x := &Executor{Engine: name, Env: os.Environ()}
		e, err := x.engine()
		if err != nil {
			continue
		}
		out, err := exec.Command(e.path, "images", "--all", "--format", "{{.ID}} {{.Repository}}").Output()
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(out)) {
			id, repo, _ := strings.Cut(strings.TrimSpace(line), " ")
			if strings.HasPrefix(repo, "127.0.0.1:") && strings.HasSuffix(repo, "/krmcat/testfn") {
				_ = exec.Command(e.path, "rmi", "--force", id).Run()
			}
		}
	}
}

// image is the test function as an image made from scratch: no /etc/passwd,
// no shell.
func image(t *testing.T, arch string) v1.Image {
	t.Helper()
	program, err := os.ReadFile(fntest.Build(t))
	if err != nil {
		t.Fatal(err)
	}
	if arch != goruntime.GOARCH {
		program[18] ^= 0xff // the machine in the ELF header
	}
	var b bytes.Buffer
	tw := tar.NewWriter(&b)
	if err := errors.Join(tw.WriteHeader(&tar.Header{Name: "fn", Mode: 0o755, Size: int64(len(program)), Typeflag: tar.TypeReg})); err != nil {
		t.Fatal(err)
	}
	if _, err := tw.Write(program); err != nil {
		t.Fatal(err)
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b.Bytes())), nil })
	if err != nil {
		t.Fatal(err)
	}
	img, err := mutate.AppendLayers(empty.Image, layer)
	if err == nil {
		img, err = mutate.ConfigFile(img, &v1.ConfigFile{OS: "linux", Architecture: arch, Config: v1.Config{Entrypoint: []string{"/fn"}}, RootFS: v1.RootFS{Type: "layers", DiffIDs: diffIDs(t, layer)}})
	}
	if err != nil {
		t.Fatal(err)
	}
	return img
}

func diffIDs(t *testing.T, l v1.Layer) []v1.Hash {
	t.Helper()
	h, err := l.DiffID()
	if err != nil {
		t.Fatal(err)
	}
	return []v1.Hash{h}
}

// push serves an image from a registry on this machine.
func push(t *testing.T, img v1.Image) (repository string, d digest.Digest) {
	t.Helper()
	srv := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(srv.Close)
	repository = strings.TrimPrefix(srv.URL, "http://") + "/krmcat/testfn"
	ref, err := name.ParseReference(repository+":v1", name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(ref, img); err != nil {
		t.Fatal(err)
	}
	h, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return repository, digest.Digest(h.String())
}

// engines calls f for each engine that this machine has.
func engines(t *testing.T, f func(t *testing.T, x *Executor)) {
	found := false
	for _, name := range Engines {
		x := &Executor{Engine: name, Env: os.Environ()}
		if _, err := x.engine(); err != nil {
			continue
		}
		found = true
		t.Run(name, func(t *testing.T) { f(t, x) })
	}
	if !found {
		fntest.Require(t, "no container engine: install podman and runc, or docker")
	}
}

func prepare(t *testing.T, x *Executor, rt catalog.Container, g runtime.Grants, l runtime.Limits) runtime.Function {
	t.Helper()
	fn, err := x.Prepare(t.Context(), catalog.Runtime{Container: &rt}, g, l)
	if err != nil {
		t.Fatal(err)
	}
	return fn
}

// noContainers makes sure that a test leaves no container behind.
func noContainers(t *testing.T, x *Executor) {
	t.Helper()
	out, err := exec.Command(x.found.path, "ps", "--all", "--format", "{{.Names}}").Output()
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(out), "krmcat-") {
		t.Errorf("containers are left:\n%s", out)
	}
}

// The executor suite in real containers, from a registry, by digest.
func TestSuite(t *testing.T) {
	repo, d := push(t, image(t, goruntime.GOARCH))
	engines(t, func(t *testing.T, x *Executor) {
		fntest.Suite(t, func(t *testing.T, g runtime.Grants, l runtime.Limits) runtime.Function {
			t.Helper()
			return prepare(t, x, catalog.Container{Image: repo + ":v1", Digest: d}, g, l)
		}, fntest.Options{})
		noContainers(t, x)
	})
}

// What a container may not do (CF-15 to CF-18, FS-30).
func TestConfinement(t *testing.T) {
	repo, d := push(t, image(t, goruntime.GOARCH))
	engines(t, func(t *testing.T, x *Executor) {
		for _, tt := range []struct {
			do        string
			rt        catalog.Container
			g         runtime.Grants
			want, not []string
		}{
			{do: "user", want: []string{"uid 65534 gid 65534", "CapEff 0000000000000000", "CapBnd 0000000000000000", "NoNewPrivs 1"}},
			{do: "write", want: []string{"/x open /x: read-only file system", "/tmp/x <nil>"}},
			{do: "network", want: []string{"interfaces: 1 ", "lo"}},
			{do: "network", g: runtime.Grants{Network: true}, want: []string{"interfaces: 1 "}}, // not declared
			{do: "local", want: []string{"do: local", "write: open /local/new: read-only file system"}},
			{do: "env", want: []string{"HOME=/tmp"}, not: []string{"krmcat-caller"}},
		} {
			t.Run(tt.do, func(t *testing.T) {
				tt.rt.Image, tt.rt.Digest = repo, d
				x := &Executor{Engine: x.Engine, Env: append(os.Environ(), "SECRET=krmcat-caller")}
				var out, errs bytes.Buffer
				err := prepare(t, x, tt.rt, tt.g, runtime.Limits{}).Run(t.Context(), runtime.Stdio{Stdin: bytes.NewReader(fntest.List(tt.do)), Stdout: &out, Stderr: &errs, FunctionConfig: fntest.Config(tt.do)})
				if err != nil {
					t.Fatal(err)
				}
				for _, w := range tt.want {
					if !strings.Contains(errs.String(), w) {
						t.Errorf("no %q in\n%s", w, errs.String())
					}
				}
				for _, n := range tt.not {
					if strings.Contains(errs.String(), n) {
						t.Errorf("%q in\n%s", n, errs.String())
					}
				}
			})
		}
	})
}

// A granted network is one of the container's own: an interface besides the
// loopback, and none of this machine's.
func TestNetworkGranted(t *testing.T) {
	repo, d := push(t, image(t, goruntime.GOARCH))
	engines(t, func(t *testing.T, x *Executor) {
		if x.Engine == "docker" && !dockerHasBridge(t, x) {
			fntest.Require(t, "this docker daemon runs without a bridge")
		}
		hosts, err := net.Interfaces()
		if err != nil {
			t.Fatal(err)
		}
		var errs bytes.Buffer
		rt := catalog.Container{Image: repo, Digest: d, RequireNetwork: true}
		err = prepare(t, x, rt, runtime.Grants{Network: true}, runtime.Limits{}).Run(t.Context(), runtime.Stdio{Stdin: bytes.NewReader(fntest.List("network")), Stderr: &errs})
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(errs.String(), "interfaces: 2 ") {
			t.Errorf("got %s", errs.String())
		}
		for _, i := range hosts {
			if i.Name != "lo" && i.Name != "eth0" && strings.Contains(errs.String(), i.Name+"\n") {
				t.Errorf("the container sees %s of this machine", i.Name)
			}
		}
	})
}

func dockerHasBridge(t *testing.T, x *Executor) bool {
	t.Helper()
	out, err := exec.Command(x.found.path, "network", "ls", "--format", "{{.Name}}").Output()
	return err == nil && strings.Contains(string(out), "bridge")
}

// Folders are mounted when the function declares it and the user grants it,
// read-only unless the user says otherwise.
func TestMounts(t *testing.T) {
	repo, d := push(t, image(t, goruntime.GOARCH))
	engines(t, func(t *testing.T, x *Executor) {
		dir := t.TempDir()
		g := runtime.Grants{StorageMount: true, Mounts: []runtime.Mount{{Source: dir, Target: "/local"}}}
		rt := catalog.Container{Image: repo, Digest: d, RequireStorageMount: true}
		var errs bytes.Buffer
		err := prepare(t, x, rt, g, runtime.Limits{}).Run(t.Context(), runtime.Stdio{Stdin: bytes.NewReader(fntest.List("local")), Stderr: &errs})
		if err != nil || !strings.Contains(errs.String(), "write: open /local/new: read-only file system") {
			t.Errorf("got %v\n%s", err, errs.String())
		}
		if _, err := x.Prepare(t.Context(), catalog.Runtime{Container: &rt}, runtime.Grants{}, runtime.Limits{}); !errors.Is(err, runtime.ErrNotGranted) {
			t.Errorf("without the grant: %v", err)
		}
		g.Mounts[0].Target = "/a:/b"
		if _, err := x.Prepare(t.Context(), catalog.Runtime{Container: &rt}, g, runtime.Limits{}); err == nil {
			t.Error("a mount with a colon in its target is accepted")
		}
	})
}

// Images that are missing, changed, or for another platform.
func TestImageErrors(t *testing.T) {
	repo, d := push(t, image(t, goruntime.GOARCH))
	other := "arm64"
	if goruntime.GOARCH == other {
		other = "amd64"
	}
	otherRepo, otherDigest := push(t, image(t, other))
	engines(t, func(t *testing.T, x *Executor) {
		run := func(x *Executor, rt catalog.Container) error {
			fn, err := x.Prepare(t.Context(), catalog.Runtime{Container: &rt}, runtime.Grants{}, runtime.Limits{})
			if err != nil {
				return err
			}
			return fn.Run(t.Context(), runtime.Stdio{Stdin: strings.NewReader("x"), Stdout: io.Discard})
		}
		for _, tt := range []struct {
			name string
			rt   catalog.Container
			pull PullPolicy
			is   error
		}{
			{"no digest", catalog.Container{Image: repo + ":v1"}, "", catalog.ErrNoDigest},
			{"not a digest", catalog.Container{Image: repo, Digest: "sha256:xyz"}, "", catalog.ErrNoDigest},
			{"other digest", catalog.Container{Image: repo, Digest: digest.FromString("changed")}, "", os.ErrNotExist},
			{"other digest, always", catalog.Container{Image: repo, Digest: digest.FromString("changed")}, PullAlways, os.ErrNotExist},
			{"never", catalog.Container{Image: repo, Digest: digest.FromString("never pulled")}, PullNever, os.ErrNotExist},
			{"other platform", catalog.Container{Image: otherRepo, Digest: otherDigest}, "", runtime.ErrUnavailable},
			{"network", catalog.Container{Image: repo, Digest: d, RequireNetwork: true}, "", runtime.ErrNotGranted},
		} {
			t.Run(tt.name, func(t *testing.T) {
				x := &Executor{Engine: x.Engine, Env: os.Environ(), Pull: tt.pull}
				if err := run(x, tt.rt); !errors.Is(err, tt.is) {
					t.Errorf("got %v, want %v", err, tt.is)
				} else {
					t.Log(err)
				}
			})
		}
		if err := run(&Executor{Engine: x.Engine, Env: os.Environ(), Pull: PullAlways}, catalog.Container{Image: repo, Digest: d}); err != nil {
			t.Errorf("pulling always: %v", err)
		}
		noContainers(t, x)
	})
}

// An image of the engine's own storage is run by its ID.
func TestLocal(t *testing.T) {
	repo, d := push(t, image(t, goruntime.GOARCH))
	engines(t, func(t *testing.T, x *Executor) {
		fn := prepare(t, x, catalog.Container{Image: repo, Digest: d}, runtime.Grants{}, runtime.Limits{})
		if err := fn.Run(t.Context(), runtime.Stdio{Stdin: bytes.NewReader(fntest.List("copy")), Stdout: io.Discard}); err != nil {
			t.Fatal(err)
		}
		fn, err := x.Local(t.Context(), catalog.Container{Image: repo + "@" + d.String()}, runtime.Grants{}, runtime.Limits{})
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		if err := fn.Run(t.Context(), runtime.Stdio{Stdin: bytes.NewReader(fntest.List("copy")), Stdout: &out}); err != nil || out.Len() == 0 {
			t.Errorf("got %d bytes, %v", out.Len(), err)
		}
		if _, err := x.Local(t.Context(), catalog.Container{Image: "localhost/no/such/image:v9"}, runtime.Grants{}, runtime.Limits{}); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("missing: %v", err)
		}
	})
}

// Without an engine the error says what was looked for.
func TestNoEngine(t *testing.T) {
	for _, tt := range []struct {
		x    *Executor
		text string
	}{
		{&Executor{Env: []string{"PATH=" + t.TempDir()}}, "docker: not on PATH; podman: not on PATH; nerdctl: not on PATH"},
		{&Executor{Engine: "rkt", Env: os.Environ()}, `"rkt" is not docker, podman or nerdctl`},
		{&Executor{}, "not on PATH"},
	} {
		_, err := tt.x.Prepare(t.Context(), catalog.Runtime{Container: &catalog.Container{Image: "a", Digest: digest.FromString("a")}}, runtime.Grants{}, runtime.Limits{})
		if !errors.Is(err, runtime.ErrUnavailable) || !strings.Contains(err.Error(), tt.text) {
			t.Errorf("got %v, want %q", err, tt.text)
		}
	}
}

// What is passed to the clients of engines, also of those that are not here.
func TestArguments(t *testing.T) {
	l := runtime.Limits{Timeout: 5 * time.Second, MaxMemory: 1 << 20, MaxProcs: 7}.WithDefaults()
	for _, name := range Engines {
		e := &engine{name: name, noFiles: 10, noProcs: 20}
		args := strings.Join(e.run("c", l), " ")
		for _, want := range []string{"--rm", "--interactive", "--pull never", "--read-only", "--cap-drop all", "--security-opt no-new-privileges", "--memory 1048576", "--pids-limit 7", "--ulimit nofile=10:10"} {
			if !strings.Contains(args, want) {
				t.Errorf("%s: no %s in %s", name, want, args)
			}
		}
		if net := strings.Join(e.network(), " "); strings.Contains(net, "host") {
			t.Errorf("%s: granted network is %s", name, net)
		}
	}
}

func TestImageName(t *testing.T) {
	for in, want := range map[string]string{
		"a": "a", "a:v1": "a", "localhost:5000/a/b:v1": "localhost:5000/a/b", "localhost:5000/a": "localhost:5000/a",
		"r/a@sha256:x": "r/a", "r/a:v1@sha256:x": "r/a",
	} {
		if got, err := imageName(in); err != nil || got != want {
			t.Errorf("%s: got %q, %v, want %q", in, got, err, want)
		}
	}
	for _, in := range []string{"", "--privileged", "a b", "a;b", "a\nb", "$(x)"} {
		if _, err := imageName(in); err == nil {
			t.Errorf("%q: no error", in)
		}
	}
}

func TestInsecure(t *testing.T) {
	e := &engine{name: "podman"}
	for image, want := range map[string]bool{"localhost:5000/a": true, "127.0.0.1:1/a": true, "[::1]:5000/a": true, "example.com/a": false, "127.example.com/a": false, "a": false} {
		if got := len(e.insecure(image)) > 0; got != want {
			t.Errorf("%s: %v, want %v", image, got, want)
		}
	}
}
