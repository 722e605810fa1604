package registry_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2"

	"github.com/krmcat/krmcat/catalog"
	"github.com/krmcat/krmcat/registry"
	"github.com/krmcat/krmcat/registry/regtest"
)

// fakeRegistry serves whatever it is told to, true or not.
type fakeRegistry struct {
	manifests map[string][]byte // by tag or digest
	blobs     map[digest.Digest][]byte
	status    int // of every response, if not 0
}

func (f *fakeRegistry) start(t *testing.T) (host string) {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if f.status != 0 {
			w.WriteHeader(f.status)
			return
		}
		name := r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]
		if strings.Contains(r.URL.Path, "/manifests/") {
			data, ok := f.manifests[name]
			if !ok {
				http.NotFound(w, r)
				return
			}
			var m struct {
				MediaType string `json:"mediaType"`
			}
			_ = json.Unmarshal(data, &m)
			w.Header().Set("Content-Type", m.MediaType)
			w.Header().Set("Docker-Content-Digest", digest.FromBytes(data).String())
			_, _ = w.Write(data)
			return
		}
		data, ok := f.blobs[digest.Digest(name)]
		if !ok {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write(data)
	}))
	t.Cleanup(srv.Close)
	return strings.TrimPrefix(srv.URL, "http://")
}

func manifestOf(t *testing.T, artifactType string, layers ...ocispec.Descriptor) []byte {
	t.Helper()
	return regtest.Marshal(ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest,
		ArtifactType: artifactType, Config: ocispec.DescriptorEmptyJSON, Layers: layers,
	})
}

func layerOf(mediaType, title string, data []byte) ocispec.Descriptor {
	return ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(data), Size: int64(len(data)),
		Annotations: map[string]string{ocispec.AnnotationTitle: title}}
}

func readAll(src catalog.Source, t *testing.T, loc string) (string, error) {
	t.Helper()
	l, err := catalog.ParseLocation(loc)
	if err != nil {
		t.Fatal(err)
	}
	c, err := src.Fetch(t.Context(), l)
	if err != nil {
		return "", err
	}
	defer c.Body.Close()
	data, err := io.ReadAll(c.Body)
	return string(data), err
}

// Content that is not what its digest says is never taken for it.
func TestSourceVerifies(t *testing.T) {
	t.Parallel()
	doc := []byte("kind: KRMFunctionCatalog\n")
	layer := layerOf(registry.MediaTypeCatalog, "catalog.yaml", doc)
	m := manifestOf(t, registry.ArtifactTypeCatalog, layer)
	f := &fakeRegistry{
		manifests: map[string][]byte{"v1": m, digest.FromBytes(m).String(): m},
		blobs:     map[digest.Digest][]byte{layer.Digest: doc},
	}
	host := f.start(t)
	src := &registry.Source{Client: registry.NewClient(nil)}
	if got, err := readAll(src, t, "oci://"+host+"/acme/catalog:v1"); err != nil || got != string(doc) {
		t.Fatalf("got %q, %v", got, err)
	}

	f.blobs[layer.Digest] = []byte("kind: KRMFunctionCatalox\n")
	if got, err := readAll(src, t, "oci://"+host+"/acme/catalog:v1"); !errors.Is(err, registry.ErrIntegrity) {
		t.Errorf("a changed blob was read as %q, %v", got, err)
	}
	f.manifests[digest.FromBytes(m).String()] = append(bytes.Clone(m), ' ')
	if _, err := readAll(src, t, "oci://"+host+"/acme/catalog@"+digest.FromBytes(m).String()); err == nil {
		t.Error("a changed manifest was read")
	}
}

// What a registry answers becomes the error that says what to do.
func TestSourceErrors(t *testing.T) {
	t.Parallel()
	src := &registry.Source{Client: registry.NewClient(&registry.Options{HTTPClient: http.DefaultClient})}
	for status, want := range map[int]error{
		http.StatusUnauthorized:       registry.ErrDenied,
		http.StatusForbidden:          registry.ErrDenied,
		http.StatusNotFound:           fs.ErrNotExist,
		http.StatusTooManyRequests:    registry.ErrUnavailable,
		http.StatusServiceUnavailable: registry.ErrUnavailable,
	} {
		host := (&fakeRegistry{status: status}).start(t)
		_, err := readAll(src, t, "oci://"+host+"/acme/fn:v1")
		if !errors.Is(err, want) || !strings.Contains(err.Error(), host+"/acme/fn:v1") {
			t.Errorf("status %d: %v, want %v", status, err, want)
		}
	}
	if _, err := src.Fetch(t.Context(), catalog.Location{Scheme: "https", Ref: "https://example.com/catalog.yaml"}); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("an https location: %v", err)
	}

	index := func(m ...ocispec.Descriptor) []byte {
		return regtest.Marshal(ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex, Manifests: m})
	}
	plan9 := manifestOf(t, registry.ArtifactTypeExec)
	i := index(ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: digest.FromBytes(plan9), Size: int64(len(plan9)),
		Platform: &ocispec.Platform{OS: "plan9", Architecture: "mips"}})
	other := manifestOf(t, "application/vnd.example", layerOf("text/plain", "notes.txt", []byte("x")))
	f := &fakeRegistry{manifests: map[string][]byte{"index": i, digest.FromBytes(i).String(): i,
		"other": other, digest.FromBytes(other).String(): other,
		"odd": []byte(`{"mediaType":"application/vnd.odd"}`), digest.FromString(`{"mediaType":"application/vnd.odd"}`).String(): []byte(`{"mediaType":"application/vnd.odd"}`)}}
	host := f.start(t)
	for tag, want := range map[string]string{
		"index":         "has plan9/mips",
		"other":         "an artifact of type application/vnd.example holds no definition, catalog or runtime",
		"odd":           "neither a manifest nor an index",
		"other#nothing": `no file "nothing" in the artifact`,
	} {
		if _, err := readAll(src, t, "oci://"+host+"/acme/fn:"+tag); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want an error with %q", tag, err, want)
		}
	}
}

// Indexes that lead to themselves, or endlessly on, end with an error.
func TestSourceNestedIndexes(t *testing.T) {
	t.Parallel()
	f := &fakeRegistry{manifests: map[string][]byte{}}
	next := manifestOf(t, registry.ArtifactTypeExec)
	for range 10 {
		d := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageIndex, Digest: digest.FromBytes(next), Size: int64(len(next)),
			Platform: &ocispec.Platform{OS: "linux", Architecture: "amd64"}}
		f.manifests[d.Digest.String()] = next
		next = regtest.Marshal(ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex, Manifests: []ocispec.Descriptor{d}})
	}
	f.manifests["v1"], f.manifests[digest.FromBytes(next).String()] = next, next
	host := f.start(t)
	_, err := readAll(&registry.Source{Client: registry.NewClient(nil), Platform: "linux/amd64"}, t, "oci://"+host+"/acme/fn:v1")
	if err == nil || !strings.Contains(err.Error(), "nested more than") {
		t.Errorf("got %v", err)
	}
}

// The KEP's table gives executables the Starlark layer type: the artifact type
// decides (KC-101).
func TestKindByArtifactType(t *testing.T) {
	t.Parallel()
	srv := regtest.NewServer(t)
	client := registry.NewClient(nil)
	repo, err := client.Repository(reference(t, srv.Host+"/acme/fn:v1"))
	if err != nil {
		t.Fatal(err)
	}
	desc, err := oras.PushBytes(t.Context(), repo, registry.MediaTypeStarlark, []byte("\x7fELF"))
	if err != nil {
		t.Fatal(err)
	}
	for artifactType, want := range map[string]string{registry.ArtifactTypeExec: "exec", registry.ArtifactTypeStarlark: "starlark"} {
		m, err := oras.PackManifest(t.Context(), repo, oras.PackManifestVersion1_1, artifactType, oras.PackManifestOptions{Layers: []ocispec.Descriptor{desc}})
		if err != nil {
			t.Fatal(err)
		}
		a, err := client.Artifact(t.Context(), catalog.Location{Scheme: "oci", Ref: srv.Host + "/acme/fn", Digest: m.Digest}, "")
		if err != nil {
			t.Fatal(err)
		}
		if got := a.Kind(); got != want {
			t.Errorf("%s: got %s, want %s", artifactType, got, want)
		}
	}
}

// An examples archive cannot smuggle in names that escape, links, or more than
// the limits.
func TestExamplesArchive(t *testing.T) {
	t.Parallel()
	pack := func(headers ...*tar.Header) []byte {
		var buf bytes.Buffer
		zw := gzip.NewWriter(&buf)
		tw := tar.NewWriter(zw)
		for _, h := range headers {
			if err := tw.WriteHeader(h); err != nil {
				t.Fatal(err)
			}
			if _, err := tw.Write(make([]byte, h.Size)); err != nil {
				t.Fatal(err)
			}
		}
		tw.Close()
		zw.Close()
		return buf.Bytes()
	}
	for name, c := range map[string]struct {
		data []byte
		want string
	}{
		"escape":   {pack(&tar.Header{Name: "../x", Typeflag: tar.TypeReg}), "clean relative names"},
		"absolute": {pack(&tar.Header{Name: "/etc/passwd", Typeflag: tar.TypeReg}), "clean relative names"},
		"link":     {pack(&tar.Header{Name: "x", Linkname: "/etc/passwd", Typeflag: tar.TypeSymlink}), "only regular files"},
		"bomb":     {pack(&tar.Header{Name: "x", Typeflag: tar.TypeReg, Size: 65 << 20}), "entry \"x\""},
		"not gzip": {[]byte("hello"), "not gzip"},
		"not tar":  {gzipped("hello"), "not a tar archive"},
	} {
		layer := layerOf(registry.MediaTypeExamples, "examples.tar.gz", c.data)
		m := manifestOf(t, registry.ArtifactTypeDocs, layer)
		host := (&fakeRegistry{
			manifests: map[string][]byte{"v1": m, digest.FromBytes(m).String(): m},
			blobs:     map[digest.Digest][]byte{layer.Digest: c.data},
		}).start(t)
		_, err := readAll(&registry.Source{Client: registry.NewClient(nil)}, t, "oci://"+host+"/acme/fn:v1#examples/README.md")
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want an error with %q", name, err, c.want)
		}
	}
}

func gzipped(s string) []byte {
	var buf bytes.Buffer
	zw := gzip.NewWriter(&buf)
	_, _ = zw.Write([]byte(s))
	zw.Close()
	return buf.Bytes()
}

// Pulling writes verified files only, replaces nothing unasked, and cannot be
// led out of the folder.
func TestPull(t *testing.T) {
	t.Parallel()
	doc := []byte("kind: KRMFunctionCatalog\n")
	layer := layerOf(registry.MediaTypeCatalog, "catalog.yaml", doc)
	m := manifestOf(t, registry.ArtifactTypeCatalog, layer)
	f := &fakeRegistry{
		manifests: map[string][]byte{"v1": m, digest.FromBytes(m).String(): m},
		blobs:     map[digest.Digest][]byte{layer.Digest: doc},
	}
	for _, title := range []string{"../evil.yaml", "/evil.yaml", `a\b`, "."} {
		bad := manifestOf(t, registry.ArtifactTypeCatalog, layerOf(registry.MediaTypeCatalog, title, doc))
		f.manifests[digest.FromBytes(bad).String()] = bad
		f.manifests["bad"+digest.FromString(title).Encoded()[:8]] = bad
	}
	host := f.start(t)
	client := registry.NewClient(nil)
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	pull := func(tag string, force bool) ([]registry.PulledFile, error) {
		t.Helper()
		a, err := client.Artifact(t.Context(), catalog.Location{Scheme: "oci", Ref: host + "/acme/catalog:" + tag}, "")
		if err != nil {
			t.Fatal(err)
		}
		return a.Pull(t.Context(), root, force)
	}
	for tag := range f.manifests {
		if !strings.HasPrefix(tag, "bad") {
			continue
		}
		if _, err := pull(tag, true); err == nil || !strings.Contains(err.Error(), "not a clean relative path") {
			t.Errorf("%s: %v", tag, err)
		}
	}
	f.blobs[layer.Digest] = []byte("damaged")
	if _, err := pull("v1", false); err == nil {
		t.Error("a damaged blob was pulled")
	}
	if list, _ := os.ReadDir(dir); len(list) != 0 {
		t.Errorf("a failed pull left %v", list)
	}
	f.blobs[layer.Digest] = doc
	for i, written := range []bool{true, false} {
		files, err := pull("v1", false)
		if err != nil || len(files) != 1 || files[0].Written != written {
			t.Errorf("pull %d: %+v, %v", i, files, err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "catalog.yaml"), []byte("mine"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := pull("v1", false); !errors.Is(err, fs.ErrExist) {
		t.Errorf("over another file: %v", err)
	}
	if _, err := pull("v1", true); err != nil {
		t.Error(err)
	}
	if got, _ := os.ReadFile(filepath.Join(dir, "catalog.yaml")); string(got) != string(doc) {
		t.Errorf("forced, got %q", got)
	}
}

// Check reads everything an image refers to.
func TestCheck(t *testing.T) {
	t.Parallel()
	good, bad := []byte("good"), []byte("bad!")
	m := manifestOf(t, "", layerOf("application/octet-stream", "", good), layerOf("application/octet-stream", "", bad))
	d := digest.FromBytes(m)
	f := &fakeRegistry{
		manifests: map[string][]byte{d.String(): m},
		blobs:     map[digest.Digest][]byte{digest.FromBytes(good): good, digest.FromBytes(bad): bad, ocispec.DescriptorEmptyJSON.Digest: []byte("{}")},
	}
	ref := registry.Reference{Host: f.start(t), Repository: "acme/fn", Digest: d}
	client := registry.NewClient(nil)
	if n, err := client.Check(t.Context(), ref); err != nil || n != 3 {
		t.Errorf("got %d, %v", n, err)
	}
	f.blobs[digest.FromBytes(bad)] = []byte("BAD!")
	if _, err := client.Check(t.Context(), ref); !errors.Is(err, registry.ErrIntegrity) {
		t.Errorf("a changed blob: %v", err)
	}
	delete(f.blobs, digest.FromBytes(bad))
	if _, err := client.Check(t.Context(), ref); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing blob: %v", err)
	}
}
