package admission_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/krmcat/krmcat/catalog"
	"github.com/krmcat/krmcat/registry"
	"github.com/krmcat/krmcat/registry/admission"
	"github.com/krmcat/krmcat/registry/regmem"
	"github.com/krmcat/krmcat/registry/regserver"
	"github.com/krmcat/krmcat/registry/regtest"
)

const definition = `apiVersion: config.kubernetes.io/v1alpha1
kind: KRMFunctionDefinition
metadata:
  name: set-labels
spec:
  group: example.com
  description: Sets labels.
  publisher: example.com
  names:
    kind: SetLabels
  versions:
  - name: v1
    idempotent: true
    usage: https://example.com/README.md
    examples: [https://example.com/example.md]
    license: Apache 2.0
    maintainers: [jane@example.com]
    schema:
      openAPIV3Schema:
        type: object
        properties:
          labels:
            type: object
            additionalProperties: {type: string}
    runtime:
      container:
        image: example.com/set-labels:v1@sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
        sha256: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
`

// build makes a manifest as oras push does.
func build(artifactType string, layers ...[]byte) (*regtest.Artifact, func(mediaTypes ...string) *regtest.Artifact) {
	a := regtest.NewArtifact(artifactType, nil, layers...)
	return a, func(mediaTypes ...string) *regtest.Artifact {
		var m ocispec.Manifest
		if err := json.Unmarshal(a.Manifest, &m); err != nil {
			panic(err)
		}
		for i, t := range mediaTypes {
			m.Layers[i].MediaType = t
		}
		a.Manifest = regtest.Marshal(m)
		a.Descriptor = regtest.Describe(m.MediaType, a.Manifest)
		return a
	}
}

func artifact(artifactType string, mediaType string, content string) *regtest.Artifact {
	_, with := build(artifactType, []byte(content))
	return with(mediaType)
}

type refusal struct {
	status  int
	code    string
	message string
	detail  []admission.Finding
}

// push pushes an artifact to a server with an admission.
func push(t *testing.T, opts *admission.Options, repository, tag string, a *regtest.Artifact) refusal {
	t.Helper()
	store := regmem.New()
	srv := regtest.NewServerWith(t, store, &regserver.Options{Admission: admission.New(opts)})
	for _, b := range a.Blobs {
		regtest.PutBlob(t.Context(), t, store, repository, b)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, srv.URL+"/v2/"+repository+"/manifests/"+tag, bytes.NewReader(a.Manifest))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", a.Descriptor.MediaType)
	resp, err := srv.HTTP.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	r := refusal{status: resp.StatusCode}
	var body struct {
		Errors []struct {
			Code, Message string
			Detail        []admission.Finding
		}
	}
	if resp.StatusCode != http.StatusCreated {
		if err := json.Unmarshal(b, &body); err != nil || len(body.Errors) != 1 {
			t.Fatalf("%s: %v", b, err)
		}
		r.code, r.message, r.detail = body.Errors[0].Code, body.Errors[0].Message, body.Errors[0].Detail
	}
	return r
}

func TestAdmission(t *testing.T) {
	t.Parallel()
	script := "def run(x):\n    return x\n"
	_, withTypes := build(registry.ArtifactTypeDefinition, []byte(definition), []byte("# Read me"), []byte(script))
	for name, test := range map[string]struct {
		art     *regtest.Artifact
		opts    *admission.Options
		repo    string
		status  int
		message string // part of
	}{
		"definition":                       {art: artifact(registry.ArtifactTypeDefinition, registry.MediaTypeDefinition, definition), status: 201},
		"definition as oras pushes it":     {art: artifact("application/vnd.unknown.artifact.v1", registry.MediaTypeDefinition, definition), status: 201},
		"definition with wrong content":    {art: artifact(registry.ArtifactTypeDefinition, registry.MediaTypeDefinition, strings.Replace(definition, "kind: SetLabels", "kind: 5", 1)), status: 400, message: "names"},
		"definition that is not YAML":      {art: artifact(registry.ArtifactTypeDefinition, registry.MediaTypeDefinition, "a: [b"), status: 400, message: "definition.yaml:1"},
		"definition without a digest":      {art: artifact(registry.ArtifactTypeDefinition, registry.MediaTypeDefinition, definition[:strings.Index(definition, "      container:")]+"      exec:\n        platforms:\n        - {bin: set-labels, os: linux, arch: amd64, uri: https://example.com/set-labels}\n"), status: 400, message: "sha256"},
		"definition without its layer":     {art: artifact(registry.ArtifactTypeDefinition, "text/markdown", definition), status: 400, message: "has one layer"},
		"definition pushed as a catalog":   {art: artifact(registry.ArtifactTypeCatalog, registry.MediaTypeCatalog, definition), status: 400, message: "pushed as a catalog"},
		"definition with a script":         {art: withTypes(registry.MediaTypeDefinition, registry.MediaTypeMarkdown, registry.MediaTypeStarlark), status: 400, message: "has no layer of type"},
		"definition that is too large":     {art: artifact(registry.ArtifactTypeDefinition, registry.MediaTypeDefinition, definition), opts: &admission.Options{MaxDocumentBytes: 100}, status: 400, message: "at most 100"},
		"definition of the publisher":      {art: artifact(registry.ArtifactTypeDefinition, registry.MediaTypeDefinition, definition), opts: &admission.Options{Publishers: map[string]string{"": "nobody", "team/a": "example.com", "team/ab": "other"}}, repo: "team/a/x", status: 201},
		"definition of another publisher":  {art: artifact(registry.ArtifactTypeDefinition, registry.MediaTypeDefinition, definition), opts: &admission.Options{Publishers: map[string]string{"team/": "other.com"}}, repo: "team/a", status: 403, message: `publisher "other.com"`},
		"script":                           {art: artifact(registry.ArtifactTypeStarlark, registry.MediaTypeStarlark, script), status: 201},
		"script that is not text":          {art: artifact(registry.ArtifactTypeStarlark, registry.MediaTypeStarlark, "\xff\xfe"), status: 400, message: "UTF-8"},
		"script that is empty":             {art: artifact(registry.ArtifactTypeStarlark, registry.MediaTypeStarlark, ""), status: 400, message: "1 to"},
		"executable":                       {art: artifact(registry.ArtifactTypeExec, registry.MediaTypeExec, "\x7fELF"), status: 201},
		"executable that is empty":         {art: artifact(registry.ArtifactTypeExec, registry.MediaTypeExec, ""), status: 400, message: "empty"},
		"executable without its layer":     {art: artifact(registry.ArtifactTypeExec, "application/octet-stream", "\x7fELF"), status: 400, message: "has one layer"},
		"index of no executables":          {art: regtest.NewIndex(registry.ArtifactTypeExec, nil), status: 400, message: "at least one platform"},
		"something else":                   {art: artifact("application/vnd.example", "text/plain", "x"), status: 201},
		"something else where KRM only is": {art: artifact("application/vnd.example", "text/plain", "x"), opts: &admission.Options{OnlyKRM: true}, status: 403, message: "application/vnd.example"},
		"definition where KRM only is":     {art: artifact(registry.ArtifactTypeDefinition, registry.MediaTypeDefinition, definition), opts: &admission.Options{OnlyKRM: true}, status: 201},
		"signature where KRM only is":      {art: regtest.NewArtifact("application/vnd.example.signature", &ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: digest.FromString("x"), Size: 1}), opts: &admission.Options{OnlyKRM: true}, status: 201},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			repo := test.repo
			if repo == "" {
				repo = "some/repository"
			}
			got := push(t, test.opts, repo, "v1.0.0", test.art)
			if got.status != test.status || !strings.Contains(got.message, test.message) {
				t.Errorf("got %+v, want %d with %q", got, test.status, test.message)
			}
			if test.status == 400 && got.code != "MANIFEST_INVALID" || test.status == 403 && got.code != "DENIED" {
				t.Errorf("got code %s", got.code)
			}
		})
	}
}

// The findings are in the error's detail, with their places, so that a client
// such as oras shows them.
func TestDetail(t *testing.T) {
	t.Parallel()
	wrong := strings.Replace(definition, "kind: SetLabels", "kind: 5", 1)
	got := push(t, nil, "some/repository", "v1.0.0", artifact(registry.ArtifactTypeDefinition, registry.MediaTypeDefinition, wrong))
	if len(got.detail) == 0 {
		t.Fatal("no detail")
	}
	f := got.detail[0]
	if f.Line != 10 || f.Column == 0 || f.Path != "spec.names.kind" || f.Severity != "error" || f.Rule == "" || f.Message == "" {
		t.Errorf("got %+v", f)
	}
}

func TestExecIndex(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	a := admission.New(nil)
	d := func(p *ocispec.Platform) ocispec.Descriptor {
		d := regtest.Describe(ocispec.MediaTypeImageManifest, []byte("x"))
		d.Platform = p
		return d
	}
	for name, test := range map[string]struct {
		manifests []ocispec.Descriptor
		ok        bool
	}{
		"two platforms": {[]ocispec.Descriptor{d(&ocispec.Platform{OS: "linux", Architecture: "amd64"}), d(&ocispec.Platform{OS: "linux", Architecture: "arm64"})}, true},
		"one twice":     {[]ocispec.Descriptor{d(&ocispec.Platform{OS: "linux", Architecture: "amd64"}), d(&ocispec.Platform{OS: "linux", Architecture: "amd64"})}, false},
		"no platform":   {[]ocispec.Descriptor{d(nil)}, false},
		"half of one":   {[]ocispec.Descriptor{d(&ocispec.Platform{OS: "linux"})}, false},
	} {
		index := regtest.NewIndex(registry.ArtifactTypeExec, nil, test.manifests...)
		err := a.Admit(ctx, regmem.New(), registry.Change{Repository: "r", Manifest: index.Manifest, Descriptor: index.Descriptor})
		if (err == nil) != test.ok {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if err := a.Admit(ctx, regmem.New(), registry.Change{Repository: "r", Delete: true}); err != nil {
		t.Errorf("a deletion: %v", err)
	}
}

// Where releases have to be signed, the signature is pushed first.
func TestSigned(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	store := regmem.New()
	a := admission.New(&admission.Options{Signed: func(ctx context.Context, s registry.Store, c registry.Change) error {
		for range s.Referrers(ctx, c.Repository, c.Descriptor.Digest, "application/vnd.example.signature") {
			return nil
		}
		return &registry.RefusedError{Code: "DENIED", Message: "sign it first"}
	}})
	def := artifact(registry.ArtifactTypeDefinition, registry.MediaTypeDefinition, definition)
	for _, b := range def.Blobs {
		regtest.PutBlob(ctx, t, store, "r", b)
	}
	change := registry.Change{Repository: "r", Tag: "v1.0.0", Manifest: def.Manifest, Descriptor: def.Descriptor}
	if err := a.Admit(ctx, store, change); err == nil {
		t.Error("an unsigned release was admitted")
	}
	change.Tag = "latest"
	if err := a.Admit(ctx, store, change); err != nil {
		t.Errorf("a tag that is no release: %v", err)
	}
	regtest.Put(ctx, t, store, "r", regtest.NewArtifact("application/vnd.example.signature", &def.Descriptor))
	change.Tag = "v1.0.0"
	if err := a.Admit(ctx, store, change); err != nil {
		t.Errorf("a signed release: %v", err)
	}
}

// Every tag on a function, a catalog or a runtime is asked about; what is pushed
// by digest waits for its signatures, and what is none of those is no matter.
func TestTrusted(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	store := regmem.New()
	var asked []string
	a := admission.New(&admission.Options{Trusted: func(_ context.Context, _ registry.Store, c registry.Change, doc *catalog.Document) error {
		what := "runtime"
		if doc != nil {
			what = doc.Definition.Name
		}
		asked = append(asked, c.Tag+" "+what)
		return &registry.RefusedError{Code: "DENIED", Message: "no"}
	}})
	for name, test := range map[string]struct {
		art  *regtest.Artifact
		want string
	}{
		"definition": {artifact(registry.ArtifactTypeDefinition, registry.MediaTypeDefinition, definition), "latest set-labels"},
		"script":     {artifact(registry.ArtifactTypeStarlark, registry.MediaTypeStarlark, "x = 1\n"), "latest runtime"},
		"executable": {artifact(registry.ArtifactTypeExec, registry.MediaTypeExec, "\x7fELF"), "latest runtime"},
		"other":      {artifact("application/vnd.example", "text/plain", "x"), ""},
	} {
		for _, b := range test.art.Blobs {
			regtest.PutBlob(ctx, t, store, "r", b)
		}
		for _, tag := range []string{"latest", ""} {
			asked = nil
			err := a.Admit(ctx, store, registry.Change{Repository: "r", Tag: tag, Manifest: test.art.Manifest, Descriptor: test.art.Descriptor})
			want := test.want
			if tag == "" {
				want = ""
			}
			if got := strings.Join(asked, ", "); got != want || (err != nil) != (want != "") {
				t.Errorf("%s with tag %q: asked about %q, %v, want %q", name, tag, got, err, want)
			}
		}
	}
}
