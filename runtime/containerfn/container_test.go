package containerfn

import (
	"archive/tar"
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/opencontainers/go-digest"

	"github.com/krmcat/krmcat/catalog"
	"github.com/krmcat/krmcat/internal/tooltest"
	"github.com/krmcat/krmcat/runtime"
	"github.com/krmcat/krmcat/runtime/fntest"
)

func TestMain(m *testing.M) {
	if dir, ok := os.LookupEnv(nerdctlEnv); ok {
		os.Exit(nerdctl(dir, os.Args[1:]))
	}
	code := m.Run()
	fntest.Cleanup()
	removeImages()
	if docker.daemon != nil {
		docker.daemon.Stop()
	}
	os.Exit(code)
}

// docker is the daemon of the tests, where none is running.
var docker struct {
	once   sync.Once
	daemon *tooltest.Docker
	err    error
}

// clientEnv is the environment of the client of an engine; docker gets a
// daemon. The error says why this machine has not got the engine.
func clientEnv(name string) ([]string, error) {
	env := os.Environ()
	if _, err := (&Executor{Engine: name, Env: env}).engine(); err == nil || name != "docker" {
		return env, err
	}
	docker.once.Do(func() { docker.daemon, docker.err = tooltest.StartDocker() })
	if docker.err != nil {
		return nil, docker.err
	}
	return append(env, "DOCKER_HOST="+docker.daemon.Host), nil
}

// removeImages removes what the tests have pulled from their own registries;
// a daemon of the tests goes with its images.
func removeImages() {
	for _, name := range Engines {
		e, err := (&Executor{Engine: name, Env: os.Environ()}).engine()
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

// archive is a tar archive with one executable file.
func archive(t *testing.T, name string, content []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	tw := tar.NewWriter(&b)
	if err := tw.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(content)), Typeflag: tar.TypeReg}); err != nil {
		t.Fatal(err)
	}
	if _, err := tw.Write(content); err != nil {
		t.Fatal(err)
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
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
	data := archive(t, "fn", program)
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil })
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

// hub is a registry on this machine.
type hub struct {
	repository string // of the images
	requests   atomic.Int64
	// user and password are asked for if they are set.
	user, password string
	// change may change what is answered to GET; it gets the path.
	change func(path string, body []byte) []byte
}

func newHub(t *testing.T) *hub {
	t.Helper()
	h := &hub{}
	reg := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.requests.Add(1)
		if user, password, _ := r.BasicAuth(); user != h.user || password != h.password {
			w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
			http.Error(w, `{"errors":[{"code":"UNAUTHORIZED","message":"authentication required"}]}`, http.StatusUnauthorized)
			return
		}
		if h.change == nil || r.Method != http.MethodGet {
			reg.ServeHTTP(w, r)
			return
		}
		rec := httptest.NewRecorder()
		reg.ServeHTTP(rec, r)
		maps.Copy(w.Header(), rec.Header())
		body := h.change(r.URL.Path, rec.Body.Bytes())
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		w.WriteHeader(rec.Code)
		_, _ = w.Write(body)
	}))
	t.Cleanup(srv.Close)
	h.repository = strings.TrimPrefix(srv.URL, "http://") + "/krmcat/testfn"
	return h
}

func (h *hub) push(t *testing.T, img v1.Image) digest.Digest {
	t.Helper()
	ref, err := name.ParseReference(h.repository+":v1", name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(ref, img, remote.WithAuth(&authn.Basic{Username: h.user, Password: h.password})); err != nil {
		t.Fatal(err)
	}
	d, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return digest.Digest(d.String())
}

// push serves an image from a registry on this machine.
func push(t *testing.T, img v1.Image) (repository string, d digest.Digest) {
	t.Helper()
	h := newHub(t)
	return h.repository, h.push(t, img)
}

// marked is an image that no other test has, so that no engine has it or any
// part of it yet.
func marked(t *testing.T, img v1.Image) v1.Image {
	t.Helper()
	layer := static.NewLayer(archive(t, "mark", []byte(rand.Text())), types.DockerUncompressedLayer)
	img, err := mutate.AppendLayers(img, layer)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// engines calls f for each engine that this machine has.
func engines(t *testing.T, f func(t *testing.T, x *Executor)) {
	for _, name := range Engines {
		env, err := clientEnv(name)
		if err != nil && name == "nerdctl" {
			continue // not in Debian: TestNerdctl
		}
		t.Run(name, func(t *testing.T) {
			if err != nil {
				fntest.Require(t, "no "+name+": "+err.Error())
			}
			x := &Executor{Engine: name, Env: env}
			if _, err := x.engine(); err != nil {
				t.Fatal(err)
			}
			f(t, x)
		})
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
	cmd := exec.CommandContext(t.Context(), x.found.path, "ps", "--all", "--format", "{{.Names}}")
	cmd.Env = x.Env
	out, err := cmd.Output()
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
			{do: "local", want: []string{"do: local", "write: open /local/new: read-only file system"}},
			{do: "env", want: []string{"HOME=/tmp"}, not: []string{"krmcat-caller"}},
		} {
			t.Run(tt.do, func(t *testing.T) {
				tt.rt.Image, tt.rt.Digest = repo, d
				x := &Executor{Engine: x.Engine, Env: append(slices.Clip(x.Env), "SECRET=krmcat-caller")}
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

// A granted network is an isolated bridge and not this machine's: a network
// namespace of the container's own, with none of the machine's addresses, from
// which a server on the machine's loopback cannot be reached.
func TestNetwork(t *testing.T) {
	repo, d := push(t, image(t, goruntime.GOARCH))
	host, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = host.Close() })
	var reached atomic.Int64
	go func() {
		for {
			c, err := host.Accept()
			if err != nil {
				return
			}
			reached.Add(1)
			_ = c.Close()
		}
	}()
	addr := host.Addr().String()
	engines(t, func(t *testing.T, x *Executor) {
		ns, err := os.Readlink("/proc/self/ns/net")
		if err != nil {
			t.Fatal(err)
		}
		do := func(rt catalog.Container, what string) (string, error) {
			rt.Image, rt.Digest = repo, d
			var errs bytes.Buffer
			err := prepare(t, x, rt, runtime.Grants{Network: true}, runtime.Limits{}).Run(t.Context(), runtime.Stdio{Stdin: bytes.NewReader(fntest.List(what)), Stderr: &errs})
			return errs.String(), err
		}
		granted := catalog.Container{RequireNetwork: true}
		text, err := do(granted, "network")
		if err != nil || !strings.Contains(text, "interfaces: 2 ") || !strings.Contains(text, "namespace: net:[") {
			t.Errorf("got %v\n%s", err, text)
		}
		if strings.Contains(text, ns) {
			t.Errorf("the network namespace is this machine's:\n%s", text)
		}
		ours, err := net.InterfaceAddrs()
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range ours {
			if n, ok := a.(*net.IPNet); ok && !n.IP.IsLoopback() && strings.Contains(text, n.IP.String()+"/") {
				t.Errorf("the container has the address %s of this machine:\n%s", a, text)
			}
		}
		// It is a network: there is a route out.
		if text, err := do(granted, "needs-network"); err != nil {
			t.Errorf("with the network: %v\n%s", err, text)
		}
		// Neither by its own address nor by the bridge's.
		text, err = do(granted, "dial "+addr)
		if err != nil || strings.Count(text, "connection refused") != 2 || reached.Load() > 0 {
			t.Errorf("got %v, %d connections\n%s", err, reached.Load(), text)
		}
		// Not declared is not given, also when allowed.
		if text, err := do(catalog.Container{}, "needs-network"); err == nil || !strings.Contains(text, "network is unreachable") {
			t.Errorf("without the network: %v\n%s", err, text)
		}
		if text, err := do(catalog.Container{}, "network"); err != nil || !strings.Contains(text, "interfaces: 1 ") || strings.Contains(text, ns) {
			t.Errorf("got %v\n%s", err, text)
		}
	})
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

// Images that are missing, changed, or for another platform: the error says
// which image, what became of it, and is of the kind that callers test for.
func TestImageErrors(t *testing.T) {
	other := "arm64"
	if goruntime.GOARCH == other {
		other = "amd64"
	}
	engines(t, func(t *testing.T, x *Executor) {
		img := marked(t, image(t, goruntime.GOARCH))
		repo, d := push(t, img)
		otherRepo, otherDigest := push(t, marked(t, image(t, other)))
		// An index with nothing for this machine.
		list := newHub(t)
		index := mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: image(t, other), Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: other}}})
		ref, err := name.ParseReference(list.repository+":v1", name.Insecure)
		if err == nil {
			err = remote.WriteIndex(ref, index)
		}
		if err != nil {
			t.Fatal(err)
		}
		indexDigest, err := index.Digest()
		if err != nil {
			t.Fatal(err)
		}
		// A registry that gives something else for a digest.
		changedManifest, changedLayer := newHub(t), newHub(t)
		manifestDigest := changedManifest.push(t, marked(t, image(t, goruntime.GOARCH)))
		changedManifest.change = func(path string, body []byte) []byte {
			if strings.Contains(path, "/manifests/") {
				return bytes.Replace(body, []byte(`{"schemaVersion":2,`), []byte(`{ "schemaVersion":2,`), 1)
			}
			return body
		}
		layerDigest := changedLayer.push(t, marked(t, image(t, goruntime.GOARCH)))
		changedLayer.change = func(path string, body []byte) []byte {
			if strings.Contains(path, "/blobs/") && bytes.HasPrefix(body, []byte("mark\x00")) {
				return bytes.Replace(body, []byte("mark\x00"), []byte("evil\x00"), 1)
			}
			return body
		}
		run := func(x *Executor, rt catalog.Container) error {
			fn, err := x.Prepare(t.Context(), catalog.Runtime{Container: &rt}, runtime.Grants{}, runtime.Limits{})
			if err != nil {
				return err
			}
			var errs bytes.Buffer
			err = fn.Run(t.Context(), runtime.Stdio{Stdin: strings.NewReader("x"), Stdout: io.Discard, Stderr: &errs})
			if err != nil && strings.Contains(errs.String(), "o such image") {
				t.Errorf("the client's own message came through: %s", errs.String())
			}
			return err
		}
		for _, tt := range []struct {
			name string
			rt   catalog.Container
			pull PullPolicy
			is   error
			text string
		}{
			{"no digest", catalog.Container{Image: repo + ":v1"}, "", catalog.ErrNoDigest, repo},
			{"not a digest", catalog.Container{Image: repo, Digest: "sha256:xyz"}, "", catalog.ErrNoDigest, "xyz"},
			{"missing", catalog.Container{Image: repo, Digest: digest.FromString("changed")}, "", os.ErrNotExist, "pulling image " + repo + "@" + digest.FromString("changed").String()},
			{"missing, always", catalog.Container{Image: repo, Digest: digest.FromString("changed")}, PullAlways, os.ErrNotExist, "pulling image " + repo},
			{"missing, never", catalog.Container{Image: repo, Digest: d}, PullNever, os.ErrNotExist, "has no image " + repo + "@" + d.String() + ", and pulling is off"},
			{"no registry", catalog.Container{Image: "127.0.0.1:1/krmcat/testfn", Digest: d}, "", runtime.ErrUnreachable, "pulling image 127.0.0.1:1/krmcat/testfn@"},
			{"manifest changed", catalog.Container{Image: changedManifest.repository, Digest: manifestDigest}, "", runtime.ErrIntegrity, changedManifest.repository},
			{"layer changed", catalog.Container{Image: changedLayer.repository, Digest: layerDigest}, "", runtime.ErrIntegrity, changedLayer.repository},
			{"other platform", catalog.Container{Image: otherRepo, Digest: otherDigest}, "", runtime.ErrPlatform, "running image " + otherRepo},
			{"no platform in the index", catalog.Container{Image: list.repository, Digest: digest.Digest(indexDigest.String())}, "", runtime.ErrPlatform, list.repository},
			{"network", catalog.Container{Image: repo, Digest: d, RequireNetwork: true}, "", runtime.ErrNotGranted, "network"},
		} {
			t.Run(tt.name, func(t *testing.T) {
				err := run(&Executor{Engine: x.Engine, Env: x.Env, Pull: tt.pull}, tt.rt)
				if err == nil || tt.is != nil && !errors.Is(err, tt.is) || !strings.Contains(err.Error(), tt.text) {
					t.Errorf("got %v, want %v with %q", err, tt.is, tt.text)
				}
			})
		}
		noContainers(t, x)
	})
}

// The pull policies, by what the registry is asked.
func TestPullPolicies(t *testing.T) {
	engines(t, func(t *testing.T, x *Executor) {
		h := newHub(t)
		rt := catalog.Container{Image: h.repository + ":v1", Digest: h.push(t, marked(t, image(t, goruntime.GOARCH)))}
		for _, tt := range []struct {
			name  string
			pull  PullPolicy
			asked bool
			err   error
		}{
			{"never, when it is missing", PullNever, false, os.ErrNotExist},
			{"by default, when it is missing", "", true, nil},
			{"by default, when it is there", "", false, nil},
			{"missing, when it is there", PullMissing, false, nil},
			{"never, when it is there", PullNever, false, nil},
			{"always, when it is there", PullAlways, true, nil},
		} {
			h.requests.Store(0)
			var out, errs bytes.Buffer
			fn, err := (&Executor{Engine: x.Engine, Env: x.Env, Pull: tt.pull}).Prepare(t.Context(), catalog.Runtime{Container: &rt}, runtime.Grants{}, runtime.Limits{})
			if err == nil {
				err = fn.Run(t.Context(), runtime.Stdio{Stdin: bytes.NewReader(fntest.List("copy")), Stdout: &out, Stderr: &errs})
			}
			if !errors.Is(err, tt.err) {
				t.Errorf("%s: got %v, want %v", tt.name, err, tt.err)
			}
			if err == nil && (out.String() != string(fntest.List("copy")) || errs.Len() > 0) {
				t.Errorf("%s: got %d bytes, and on standard error %q", tt.name, out.Len(), errs.String())
			}
			if asked := h.requests.Load() > 0; asked != tt.asked {
				t.Errorf("%s: the registry was asked: %v, want %v", tt.name, asked, tt.asked)
			}
		}
		// A tag that moves changes nothing: what runs has the digest.
		h.push(t, marked(t, image(t, goruntime.GOARCH)))
		h.requests.Store(0)
		if err := prepare(t, x, rt, runtime.Grants{}, runtime.Limits{}).Run(t.Context(), runtime.Stdio{Stdin: bytes.NewReader(fntest.List("copy")), Stdout: io.Discard}); err != nil || h.requests.Load() > 0 {
			t.Errorf("after the tag has moved: %v, %d requests", err, h.requests.Load())
		}
	})
}

// A private registry: the image is pulled with the credentials that the user
// has logged in with, where the engine's client looks for them, and without
// them the error says which registry wants some.
func TestPrivateRegistry(t *testing.T) {
	engines(t, func(t *testing.T, x *Executor) {
		h := newHub(t)
		h.user, h.password = "ada", "open sesame"
		rt := catalog.Container{Image: h.repository, Digest: h.push(t, marked(t, image(t, goruntime.GOARCH)))}
		host, _, _ := strings.Cut(h.repository, "/")
		credentials := func(password string) []string {
			dir := t.TempDir()
			auth := base64.StdEncoding.EncodeToString([]byte("ada:" + password))
			if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(`{"auths":{"`+host+`":{"auth":"`+auth+`"}}}`), 0o600); err != nil {
				t.Fatal(err)
			}
			return []string{"DOCKER_CONFIG=" + dir, "REGISTRY_AUTH_FILE=" + filepath.Join(dir, "config.json")}
		}
		home := t.TempDir()
		if err := os.MkdirAll(filepath.Join(home, ".docker"), 0o700); err != nil {
			t.Fatal(err)
		}
		run := func(env ...string) error {
			x := &Executor{Engine: x.Engine, Env: append(append(slices.Clip(x.Env), "HOME="+home, "XDG_RUNTIME_DIR="+home, "XDG_CONFIG_HOME="+home), env...)}
			fn, err := x.Prepare(t.Context(), catalog.Runtime{Container: &rt}, runtime.Grants{}, runtime.Limits{})
			if err != nil {
				return err
			}
			return fn.Run(t.Context(), runtime.Stdio{Stdin: bytes.NewReader(fntest.List("copy")), Stdout: io.Discard})
		}
		for name, env := range map[string][]string{"none": nil, "wrong": credentials("guess")} {
			err := run(env...)
			de, ok := errors.AsType[*runtime.DeniedError](err)
			if !ok || !errors.Is(err, runtime.ErrDenied) || de.Host != host || !strings.Contains(err.Error(), "pulling image "+h.repository+"@"+rt.Digest.String()+" with "+x.Engine) {
				t.Errorf("%s credentials: got %v", name, err)
			}
			if err != nil && strings.Contains(err.Error(), "guess") {
				t.Error("the error tells the password")
			}
		}
		// As krmcat login and docker login leave them, which podman reads too.
		env := credentials(h.password)
		if err := run(env...); err != nil {
			t.Errorf("with credentials: %v", err)
		}
		noContainers(t, x)
	})
}

// Where krmcat login leaves the credentials when nothing is set: in .docker
// of the home, which all engines read.
func TestCredentialsAtHome(t *testing.T) {
	engines(t, func(t *testing.T, x *Executor) {
		h := newHub(t)
		h.user, h.password = "ada", "open sesame"
		rt := catalog.Container{Image: h.repository, Digest: h.push(t, marked(t, image(t, goruntime.GOARCH)))}
		host, _, _ := strings.Cut(h.repository, "/")
		home := t.TempDir()
		auth := base64.StdEncoding.EncodeToString([]byte("ada:open sesame"))
		if err := errors.Join(os.Mkdir(filepath.Join(home, ".docker"), 0o700),
			os.WriteFile(filepath.Join(home, ".docker", "config.json"), []byte(`{"auths":{"`+host+`":{"auth":"`+auth+`"}}}`), 0o600)); err != nil {
			t.Fatal(err)
		}
		x = &Executor{Engine: x.Engine, Env: append(slices.Clip(x.Env), "HOME="+home, "DOCKER_CONFIG=", "REGISTRY_AUTH_FILE=", "XDG_RUNTIME_DIR="+home, "XDG_CONFIG_HOME="+home)}
		if err := prepare(t, x, rt, runtime.Grants{}, runtime.Limits{}).Run(t.Context(), runtime.Stdio{Stdin: bytes.NewReader(fntest.List("copy")), Stdout: io.Discard}); err != nil {
			t.Error(err)
		}
	})
}

// The limits that the kernel keeps: processes and the size of /tmp. Those of
// time, memory and output are in the suite.
func TestLimits(t *testing.T) {
	repo, d := push(t, image(t, goruntime.GOARCH))
	engines(t, func(t *testing.T, x *Executor) {
		for _, tt := range []struct{ do, want string }{
			{"bomb " + fntest.Token(), "resource temporarily unavailable"},
			{"fill", "megabytes: 64\nwrite /tmp/full: no space left on device"},
		} {
			var errs bytes.Buffer
			err := prepare(t, x, catalog.Container{Image: repo, Digest: d}, runtime.Grants{}, runtime.Limits{MaxProcs: 40}).Run(t.Context(), runtime.Stdio{Stdin: bytes.NewReader(fntest.List(tt.do)), Stderr: &errs})
			if _, ok := errors.AsType[*runtime.FunctionError](err); !ok || !strings.Contains(errs.String(), tt.want) {
				t.Errorf("%s: got %v, no %q in\n%s", tt.do, err, tt.want, errs.String())
			}
		}
		noContainers(t, x)
	})
}

// What a function has started ends with its container, however it ends.
func TestLeavesNoProcess(t *testing.T) {
	repo, d := push(t, image(t, goruntime.GOARCH))
	engines(t, func(t *testing.T, x *Executor) {
		for do, is := range map[string]error{"daemon": nil, "daemon-hang": runtime.ErrTimeout} {
			token := fntest.Token()
			l := runtime.Limits{}
			if is != nil {
				l.Timeout = 5 * time.Second
			}
			var errs bytes.Buffer
			err := prepare(t, x, catalog.Container{Image: repo, Digest: d}, runtime.Grants{}, l).Run(t.Context(), runtime.Stdio{Stdin: bytes.NewReader(fntest.List(do + " " + token)), Stdout: io.Discard, Stderr: &errs})
			if !errors.Is(err, is) || !strings.Contains(errs.String(), "started a ") {
				t.Errorf("%s: got %v, want %v\n%s", do, err, is, errs.String())
			}
			if pids := fntest.Running(t, token); len(pids) > 0 {
				t.Errorf("%s: still running: %v", do, pids)
			}
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
		args := strings.Join(e.run("c", l, l.Timeout), " ")
		for _, want := range []string{"--rm", "--interactive", "--pull never", "--read-only", "--cap-drop ALL", "--security-opt no-new-privileges", "--memory 1048576", "--pids-limit 7", "--ulimit nofile=10:10"} {
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
