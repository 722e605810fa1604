package registry_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/content/file"

	"github.com/krmcat/krmcat/catalog"
	"github.com/krmcat/krmcat/registry"
	"github.com/krmcat/krmcat/registry/regtest"
	"github.com/krmcat/krmcat/schema"
)

// functionSource is a definition as its author writes it: every kind of
// runtime and the documentation by local paths.
const functionSource = `# Sets labels.
apiVersion: config.kubernetes.io/v1alpha1
kind: KRMFunctionDefinition
metadata:
  name: set-labels
spec:
  group: example.com
  names:
    kind: SetLabels
  description: Sets labels on every resource
  publisher: example.com
  versions:
    - name: v1 # the only one
      schema:
        openAPIV3Schema:
          type: object
          properties:
            labels:
              type: object
              additionalProperties:
                type: string
      idempotent: true
      runtime:
        exec:
          platforms:
            - bin: fn
              os: linux
              arch: amd64
              uri: dist/fn-linux-amd64 # built by make
            - bin: fn
              os: linux
              arch: arm64
              uri: dist/fn-linux-arm64
        starlark: main.star
        container:
          image: ./image
      usage: README.md
      examples:
        - examples/basic/README.md
      license: Apache-2.0
  tags: [mutator]
`

// functionFolder is a folder with all that functionSource names.
func functionFolder(t *testing.T) (dir string, root *os.Root) {
	t.Helper()
	dir = t.TempDir()
	write(t, dir, "main.go", "package main\nfunc main() {}\n")
	write(t, dir, "go.mod", "module fn\n")
	for _, arch := range []string{"amd64", "arm64"} {
		cmd := exec.Command("go", "build", "-o", "dist/fn-linux-"+arch, ".")
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GOOS=linux", "GOARCH="+arch, "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("building: %v\n%s", err, out)
		}
	}
	err := registry.WriteImage(filepath.Join(dir, "image"), "fn", []registry.ImageExecutable{
		{Platform: "linux/amd64", Path: filepath.Join(dir, "dist/fn-linux-amd64")},
		{Platform: "linux/arm64", Path: filepath.Join(dir, "dist/fn-linux-arm64")},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	write(t, dir, "function.yaml", functionSource)
	write(t, dir, "main.star", "def run(items):\n    pass\n")
	write(t, dir, "README.md", "# SetLabels\n")
	write(t, dir, "examples/basic/README.md", "# Basic\n")
	write(t, dir, "examples/basic/input.yaml", "apiVersion: config.kubernetes.io/v1\nkind: ResourceList\nitems: []\n")
	root, err = os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	return dir, root
}

func write(t *testing.T, dir, name, content string) {
	t.Helper()
	p := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func reference(t *testing.T, s string) registry.Reference {
	t.Helper()
	r, err := registry.ParseReference(s)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// A definition that names everything by local paths is published with
// everything by digest, once, and each part can be fetched again (KC-063,
// KC-077 to KC-078, KC-097 to KC-106).
func TestPublishDefinition(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	srv := regtest.NewServer(t)
	client := registry.NewClient(nil)
	_, root := functionFolder(t)
	ref := reference(t, srv.Host+"/acme/set-labels:v1.0.0")
	res, err := client.Publish(ctx, "function.yaml", []byte(functionSource), ref, &registry.PublishOptions{Root: root})
	if err != nil {
		t.Fatal(err)
	}
	if !res.Pushed || res.Kind != "definition" {
		t.Errorf("got %+v", res)
	}
	text := string(res.Document)
	for _, keep := range []string{"# Sets labels.", "- name: v1 # the only one", "# built by make", "  tags: [mutator]"} {
		if !strings.Contains(text, keep) {
			t.Errorf("published document lost %q:\n%s", keep, text)
		}
	}
	doc, err := catalog.Read(ctx, catalog.Location{}, "published", res.Document, catalog.ReadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	rt := doc.Definition.Versions[0].Runtime
	if rt.Container.Digest == "" || !strings.HasPrefix(rt.Container.Image, srv.Host+"/acme/set-labels@sha256:") {
		t.Errorf("container %+v", rt.Container)
	}
	src := &registry.Source{Client: client}
	fetch := func(loc catalog.Location) string {
		t.Helper()
		c, err := src.Fetch(ctx, loc)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Body.Close()
		data, err := io.ReadAll(c.Body)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	for _, p := range rt.Exec.Platforms {
		want, err := root.ReadFile("dist/fn-linux-" + p.Arch)
		if err != nil {
			t.Fatal(err)
		}
		if fetch(p.Location) != string(want) {
			t.Errorf("%s: other bytes than the file", p.URI)
		}
	}
	if got := fetch(rt.Starlark.Location); !strings.HasPrefix(got, "def run") {
		t.Errorf("script is %q", got)
	}
	for uri, want := range map[string]string{
		doc.Definition.Versions[0].Usage:       "# SetLabels\n",
		doc.Definition.Versions[0].Examples[0]: "# Basic\n",
	} {
		loc, err := catalog.ParseLocation(uri)
		if err != nil {
			t.Fatal(err)
		}
		if got := fetch(loc); got != want {
			t.Errorf("%s is %q, want %q", uri, got, want)
		}
	}

	// What the definition is made of is found by the tag, whatever the
	// platform.
	loc, err := catalog.ParseLocation("oci://" + ref.String())
	if err != nil {
		t.Fatal(err)
	}
	if got := fetch(loc); got != text {
		t.Errorf("the registry has another document:\n%s", got)
	}

	// The same input again pushes nothing.
	again, err := client.Publish(ctx, "function.yaml", []byte(functionSource), ref, &registry.PublishOptions{Root: root})
	if err != nil {
		t.Fatal(err)
	}
	if again.Pushed || again.Digest != res.Digest {
		t.Errorf("published again: %+v, first %s", again, res.Digest)
	}

	// Another release keeps the runtimes' digests.
	ref.Tag = "v1.0.1"
	next, err := client.Publish(ctx, "function.yaml", []byte(functionSource), ref, &registry.PublishOptions{Root: root})
	if err != nil {
		t.Fatal(err)
	}
	for i, a := range next.Artifacts {
		if same := a.Digest == res.Artifacts[i].Digest; same != (a.Kind != "definition") {
			t.Errorf("%s: same digest as before: %v", a.Kind, same)
		}
	}

	// A release never changes; a tag that is none does.
	other := strings.Replace(functionSource, "Sets labels on every", "Sets all labels on every", 1)
	_, err = client.Publish(ctx, "function.yaml", []byte(other), ref, &registry.PublishOptions{Root: root})
	if !errors.Is(err, registry.ErrExists) || !strings.Contains(err.Error(), string(next.Digest)) {
		t.Errorf("another release under the same tag: %v", err)
	}
	ref.Tag = "latest"
	for _, src := range []string{functionSource, other} {
		if _, err := client.Publish(ctx, "function.yaml", []byte(src), ref, &registry.PublishOptions{Root: root}); err != nil {
			t.Error(err)
		}
	}
}

// Plain oras gets the files of a definition and of a catalog under their
// names, and an artifact that plain oras pushed is read.
func TestPlainORAS(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	srv := regtest.NewServer(t)
	client := registry.NewClient(nil)
	_, root := functionFolder(t)
	ref := reference(t, srv.Host+"/acme/set-labels:v1.0.0")
	res, err := client.Publish(ctx, "function.yaml", []byte(functionSource), ref, &registry.PublishOptions{Root: root})
	if err != nil {
		t.Fatal(err)
	}
	repo, err := client.Repository(ref)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	store, err := file.New(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	if _, err := oras.Copy(ctx, repo, "v1.0.0", store, "v1.0.0", oras.DefaultCopyOptions); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"function.yaml": string(res.Document), "README.md": "# SetLabels\n"} {
		got, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || string(got) != want {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}

	// oras push HOST/acme/catalog:latest catalog.yaml:MEDIATYPE
	desc, err := oras.PushBytes(ctx, repo, registry.MediaTypeCatalog, []byte("kind: KRMFunctionCatalog\n"))
	if err != nil {
		t.Fatal(err)
	}
	m, err := oras.PackManifest(ctx, repo, oras.PackManifestVersion1_1, "application/vnd.unknown.artifact.v1", oras.PackManifestOptions{Layers: []ocispec.Descriptor{desc}})
	if err != nil {
		t.Fatal(err)
	}
	if err := repo.Tag(ctx, m, "plain"); err != nil {
		t.Fatal(err)
	}
	loc, err := catalog.ParseLocation("oci://" + srv.Host + "/acme/set-labels:plain")
	if err != nil {
		t.Fatal(err)
	}
	c, err := (&registry.Source{Client: client}).Fetch(ctx, loc)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Body.Close()
	if c.MediaType != registry.MediaTypeCatalog || c.Location.Digest != m.Digest {
		t.Errorf("got %+v", c)
	}
}

// What is wrong with a document or its files is found before anything is
// sent.
func TestPublishRefuses(t *testing.T) {
	t.Parallel()
	srv := regtest.NewServer(t)
	client := registry.NewClient(nil)
	dir, root := functionFolder(t)
	write(t, dir, "outside-link/x", "x")
	if err := os.Symlink("/etc/passwd", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	zeros := strings.Repeat("0a", 32)
	replace := func(old, new string) string {
		t.Helper()
		if !strings.Contains(functionSource, old) {
			t.Fatalf("no %q in the source", old)
		}
		return strings.Replace(functionSource, old, new, 1)
	}
	for name, c := range map[string]struct {
		doc  string
		want string
		is   error
	}{
		"missing executable": {replace("dist/fn-linux-amd64", "dist/nothing"), "dist/nothing: no such file", os.ErrNotExist},
		"other platform":     {replace("dist/fn-linux-amd64", "dist/fn-linux-arm64"), "an executable for linux/arm64, not for linux/amd64", nil},
		"wrong sha256":       {replace("dist/fn-linux-amd64 # built by make", "dist/fn-linux-amd64\n              sha256: "+zeros), "but the document says sha256:0a0a", registry.ErrIntegrity},
		"path that escapes":  {replace("dist/fn-linux-amd64", "../fn"), "outside the document's folder", nil},
		"link that escapes":  {replace("starlark: main.star", "starlark: link"), "link: path escapes from parent", nil},
		"folder as script":   {replace("starlark: main.star", "starlark: dist"), "dist: not a regular file", nil},
		"image is a folder":  {replace("image: ./image", "image: image"), "write ./image to publish it", nil},
		"image is no layout": {replace("image: ./image", "image: ./dist"), "not an OCI image layout", nil},
		"image not there":    {replace("image: ./image", "image: "+srv.Host+"/acme/nothing:v1"), "acme/nothing:v1", os.ErrNotExist},
		"missing README":     {replace("usage: README.md", "usage: NOTHING.md"), "NOTHING.md: no such file", os.ErrNotExist},
		"not a definition":   {"apiVersion: v1\nkind: ConfigMap\n", "kind", nil},
	} {
		ref := reference(t, srv.Host+"/refused/fn:v1.0.0")
		_, err := client.Publish(t.Context(), "function.yaml", []byte(c.doc), ref, &registry.PublishOptions{Root: root})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want an error with %q", name, err, c.want)
		}
		if c.is != nil && !errors.Is(err, c.is) {
			t.Errorf("%s: %v is not %v", name, err, c.is)
		}
		for repo := range srv.Store.Repositories(context.Background(), "") {
			t.Errorf("%s: something was sent to %s", name, repo)
		}
	}
	if _, err := client.Publish(t.Context(), "f", []byte("kind: X"), reference(t, srv.Host+"/a/b:v1"), nil); err == nil {
		t.Error("a wrong document was published")
	} else if _, ok := errors.AsType[*schema.InvalidError](err); !ok {
		t.Errorf("a wrong document: %v", err)
	}
	if _, err := client.Publish(t.Context(), "f", []byte(functionSource), reference(t, srv.Host+"/a/b"), nil); err == nil || !strings.Contains(err.Error(), "no tag") {
		t.Errorf("without a tag: %v", err)
	}
	if _, err := client.Publish(t.Context(), "f", []byte(functionSource), reference(t, srv.Host+"/a/b:v1"), nil); err == nil || !strings.Contains(err.Error(), "the document has no folder") {
		t.Errorf("without a root: %v", err)
	}
}

// A registry that is down is unavailable, which can be tried again.
func TestPublishUnavailable(t *testing.T) {
	t.Parallel()
	client := registry.NewClient(nil)
	_, root := functionFolder(t)
	ref := reference(t, "127.0.0.1:1/acme/fn:v1.0.0")
	_, err := client.Publish(t.Context(), "function.yaml", []byte(functionSource), ref, &registry.PublishOptions{Root: root})
	if !errors.Is(err, registry.ErrUnavailable) {
		t.Errorf("got %v", err)
	}
}

// A catalog's images are pinned, and a tag that moved since is found out.
func TestPublishCatalog(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	srv := regtest.NewServer(t)
	client := registry.NewClient(nil)
	_, root := functionFolder(t)
	fn, err := client.Publish(ctx, "function.yaml", []byte(functionSource), reference(t, srv.Host+"/acme/set-labels:v1.0.0"), &registry.PublishOptions{Root: root})
	if err != nil {
		t.Fatal(err)
	}
	image := ""
	for _, a := range fn.Artifacts {
		if a.Kind == "image" && strings.Contains(a.Reference, "_image") {
			image = reference(t, a.Reference).Name() + ":" + reference(t, a.Reference).Tag
		}
	}
	doc := `apiVersion: config.kubernetes.io/v1alpha1
kind: KRMFunctionCatalog
metadata:
  name: acme
spec:
  krmFunctions:
    - group: example.com
      names:
        kind: SetLabels
      description: Sets labels
      publisher: example.com
      versions:
        - name: v1
          schema:
            openAPIV3Schema:
              type: object
          idempotent: true
          runtime:
            container:
              image: ` + image + `
          usage: https://example.com/README.md
          examples:
            - https://example.com/basic/README.md
          license: Apache-2.0
`
	ref := reference(t, srv.Host+"/acme/catalog:latest")
	res, err := client.Publish(ctx, "catalog.yaml", []byte(doc), ref, &registry.PublishOptions{Created: time.Unix(1700000000, 0)})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(res.Document), "@sha256:") || !strings.Contains(string(res.Document), "# v1.0.0_v1_image") {
		t.Errorf("image was not pinned:\n%s", res.Document)
	}
	a, err := client.Artifact(ctx, catalog.Location{Scheme: "oci", Ref: ref.String()}, "")
	if err != nil {
		t.Fatal(err)
	}
	if got := a.Manifest.Annotations[ocispec.AnnotationCreated]; got != "2023-11-14T22:13:20Z" {
		t.Errorf("created is %q", got)
	}
	if a.Kind() != "catalog" || a.Manifest.ArtifactType != registry.ArtifactTypeCatalog {
		t.Errorf("kind %s, artifact type %s", a.Kind(), a.Manifest.ArtifactType)
	}
	wrong := strings.Replace(doc, "image: "+image, "image: "+image+"\n              sha256: "+strings.Repeat("0a", 32), 1)
	if _, err := client.Publish(ctx, "catalog.yaml", []byte(wrong), ref, nil); !errors.Is(err, registry.ErrIntegrity) {
		t.Errorf("with a wrong digest: %v", err)
	}
}

// A script can be named by a mapping with its path as well.
func TestPublishStarlarkPath(t *testing.T) {
	t.Parallel()
	srv := regtest.NewServer(t)
	_, root := functionFolder(t)
	doc := strings.Replace(functionSource, "starlark: main.star", "starlark: {path: main.star} # the rules", 1)
	res, err := registry.NewClient(nil).Publish(t.Context(), "function.yaml", []byte(doc), reference(t, srv.Host+"/acme/fn:v1.0.0"), &registry.PublishOptions{Root: root})
	if err != nil {
		t.Fatal(err)
	}
	if text := string(res.Document); !strings.Contains(text, "starlark: {uri: oci://"+srv.Host+"/acme/fn@sha256:") || !strings.Contains(text, "# the rules") || strings.Contains(text, "path:") {
		t.Errorf("published as\n%s", text)
	}
}

// The result as -o json prints it.
func TestPublishedJSON(t *testing.T) {
	data, err := json.Marshal(registry.Published{Kind: "catalog", Reference: "h/r:t", Digest: someDigest})
	want := `{"kind":"catalog","reference":"h/r:t","digest":"` + someDigest + `","pushed":false,"artifacts":null}`
	if err != nil || string(data) != want {
		t.Errorf("got %s, want %s", data, want)
	}
}
