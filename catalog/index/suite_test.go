package index_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/krmcat/krmcat/catalog"
	"github.com/krmcat/krmcat/catalog/index"
	"github.com/krmcat/krmcat/registry"
	"github.com/krmcat/krmcat/registry/regmem"
	"github.com/krmcat/krmcat/registry/regserver"
	"github.com/krmcat/krmcat/registry/regtest"
	"github.com/krmcat/krmcat/schema"
)

// opener opens an index over a store; the same database each time for one
// test.
type opener func(t *testing.T, store registry.Store) *index.Index

// TestSQLite runs the suite on SQLite.
func TestSQLite(t *testing.T) {
	t.Parallel()
	runSuite(t, func(t *testing.T) opener {
		file := filepath.Join(t.TempDir(), "index.db")
		return func(t *testing.T, store registry.Store) *index.Index {
			x, err := index.OpenSQLite(t.Context(), store, file, &index.Options{Log: testLog(t)})
			if err != nil {
				t.Fatal(err)
			}
			return x
		}
	})
}

// runSuite checks what every database has to do alike.
func runSuite(t *testing.T, database func(t *testing.T) opener) {
	for _, c := range []struct {
		name string
		run  func(t *testing.T, open opener)
	}{
		{"Empty", testEmpty},
		{"Publish", testPublish},
		{"Releases", testReleases},
		{"Aliases", testAliases},
		{"MovedTag", testMovedTag},
		{"Deleted", testDeleted},
		{"Namesake", testNamesake},
		{"Signed", testSigned},
		{"Status", testStatus},
		{"Catalogs", testCatalogs},
		{"Snapshots", testSnapshots},
		{"Broken", testBrokenDocuments},
		{"Search", testSearch},
		{"Reindex", testReindex},
		{"Leftovers", testLeftovers},
		{"Concurrent", testConcurrent},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.run(t, database(t))
		})
	}
}

func testLog(t *testing.T) *slog.Logger {
	return slog.New(slog.NewTextHandler(logWriter{t}, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

type logWriter struct{ t *testing.T }

func (w logWriter) Write(p []byte) (int, error) {
	if w.t.Context().Err() == nil {
		w.t.Logf("%s", bytes.TrimSpace(p))
	}
	return len(p), nil
}

// site is a registry server with an index that observes it.
type site struct {
	t     *testing.T
	store *regmem.Store
	x     *index.Index
	http  *httptest.Server
	stop  context.CancelFunc
	done  chan struct{}
}

func newSite(t *testing.T, open opener, store *regmem.Store) *site {
	t.Helper()
	if store == nil {
		store = regmem.New()
	}
	s := &site{t: t, store: store, x: open(t, store), done: make(chan struct{})}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	s.stop = cancel
	go func() { s.x.Run(ctx); close(s.done) }()
	s.http = httptest.NewServer(regserver.New(store, &regserver.Options{Observer: observe(s.x), Log: testLog(t)}))
	t.Cleanup(s.close)
	<-s.x.Ready()
	return s
}

func (s *site) close() {
	s.http.Close()
	s.stop()
	<-s.done
	if err := s.x.Close(); err != nil {
		s.t.Error(err)
	}
}

// observe tells an index of the changes to a server.
func observe(x *index.Index) registry.Observer {
	return registry.ObserverFunc(func(ctx context.Context, _ registry.Store, c registry.Change) (func(context.Context, error) error, error) {
		return x.Begin(ctx, index.Change(c))
	})
}

type layer struct {
	mediaType string
	data      string
}

// artifact is what the tests push.
type artifact struct {
	artifactType string
	layers       []layer
	subject      digest.Digest
	annotations  map[string]string
}

func (a artifact) manifest() []byte {
	m := ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest,
		ArtifactType: a.artifactType, Config: ocispec.DescriptorEmptyJSON, Layers: []ocispec.Descriptor{}, Annotations: a.annotations,
	}
	m.Config.Data = nil
	for _, l := range a.layers {
		m.Layers = append(m.Layers, regtest.Describe(l.mediaType, []byte(l.data)))
	}
	if a.subject != "" {
		m.Subject = &ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: a.subject, Size: 1}
	}
	return regtest.Marshal(m)
}

// push pushes an artifact over HTTP and returns its digest.
func (s *site) push(repository string, a artifact, reference string) digest.Digest {
	s.t.Helper()
	d, err := s.tryPush(repository, a, reference)
	if err != nil {
		s.t.Fatal(err)
	}
	return d
}

func (s *site) tryPush(repository string, a artifact, reference string) (digest.Digest, error) {
	blobs := [][]byte{[]byte("{}")}
	for _, l := range a.layers {
		blobs = append(blobs, []byte(l.data))
	}
	for _, b := range blobs {
		d := digest.FromBytes(b)
		if err := s.request("POST", "/v2/"+repository+"/blobs/uploads/?digest="+string(d), "application/octet-stream", b); err != nil {
			return "", err
		}
	}
	m := a.manifest()
	d := digest.FromBytes(m)
	if reference == "" {
		reference = string(d)
	}
	return d, s.request("PUT", "/v2/"+repository+"/manifests/"+reference, ocispec.MediaTypeImageManifest, m)
}

func (s *site) remove(repository, reference string) {
	s.t.Helper()
	if err := s.request("DELETE", "/v2/"+repository+"/manifests/"+reference, "", nil); err != nil {
		s.t.Fatal(err)
	}
}

func (s *site) request(method, path, contentType string, body []byte) error {
	req, err := http.NewRequest(method, s.http.URL+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", contentType)
	resp, err := s.http.Client().Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode >= 300 {
		return fmt.Errorf("%s %s: %d: %s", method, path, resp.StatusCode, answer)
	}
	return nil
}

// fn describes a definition.
type fn struct {
	group, kind, publisher, description string
	versions                            []string
	tags                                []string
	image                               string // part of the image's name, to tell releases apart
}

func (f fn) yaml() string {
	var b strings.Builder
	fmt.Fprintf(&b, `apiVersion: config.kubernetes.io/v1alpha1
kind: KRMFunctionDefinition
spec:
  group: %s
  names:
    kind: %s
  description: %q
  publisher: %s
  versions:
`, f.group, f.kind, f.description, f.publisher)
	for _, v := range f.versions {
		fmt.Fprintf(&b, `  - name: %s
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec: {type: object}
    idempotent: true
    runtime:
      container:
        image: example.com/%s@sha256:%s
        sha256: %s
    usage: https://example.com/README.md
    examples: [https://example.com/example.md]
    license: Apache 2.0
`, v, strings.ToLower(f.kind)+f.image, strings.Repeat("ab", 32), strings.Repeat("ab", 32))
	}
	if len(f.tags) > 0 {
		fmt.Fprintf(&b, "  tags: [%s]\n", strings.Join(f.tags, ", "))
	}
	return b.String()
}

func (f fn) artifact() artifact {
	return artifact{artifactType: registry.ArtifactTypeDefinition, layers: []layer{
		{registry.MediaTypeDefinition, f.yaml()},
		{registry.MediaTypeMarkdown, "# " + f.kind + "\n"},
	}}
}

func catalogArtifact(name string, fns ...fn) artifact {
	c := &catalog.Catalog{Name: name}
	for _, f := range fns {
		doc, err := catalog.Read(context.Background(), catalog.Location{}, "test", []byte(f.yaml()), catalog.ReadOptions{Level: schema.Consume})
		if err != nil {
			panic(err)
		}
		c.Definitions = append(c.Definitions, *doc.Definition)
	}
	data, err := catalog.Marshal(c)
	if err != nil {
		panic(err)
	}
	// What is pushed is not what krmcat would write itself.
	return artifact{artifactType: registry.ArtifactTypeCatalog, layers: []layer{{registry.MediaTypeCatalog, "# by hand\n" + string(data)}}}
}

var setLabels = fn{group: "example.com", kind: "SetLabels", publisher: "acme", description: "Sets labels on all resources", versions: []string{"v1"}, tags: []string{"mutator"}}

func (s *site) function(group, kind, release string) *index.Function {
	s.t.Helper()
	f, err := s.x.Function(s.t.Context(), group, kind, release)
	if err != nil {
		s.t.Fatal(err)
	}
	return f
}

// entry is a version of a function in a catalog.
type entry struct{ Type, Image string }

// entries reads a document and lists what it holds.
func (s *site) entries(doc *index.Document, err error) []entry {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
	level := schema.Publish
	if strings.HasSuffix(string(doc.Data), "krmFunctions: []\n") {
		level = schema.Consume // nobody may publish a catalog of nothing
	}
	read, err := catalog.Read(s.t.Context(), catalog.Location{}, doc.Name, doc.Data, catalog.ReadOptions{Level: level})
	if err != nil {
		s.t.Fatalf("%v\n%s", err, doc.Data)
	}
	if got := digest.FromBytes(doc.Data); got != doc.Digest {
		s.t.Errorf("digest of %s is %s, want %s", doc.Name, doc.Digest, got)
	}
	var list []entry
	for _, d := range read.Catalog.Definitions {
		for _, v := range d.Versions {
			image, _, _ := strings.Cut(v.Runtime.Container.Image, "@")
			list = append(list, entry{d.Group + "/" + v.Name + " " + d.Kind, strings.TrimPrefix(image, "example.com/")})
		}
	}
	return list
}

func (s *site) wantAll(want ...entry) {
	s.t.Helper()
	got := s.entries(s.x.Catalog(s.t.Context(), index.CatalogAll))
	if diff := cmp.Diff(want, got); diff != "" {
		s.t.Errorf("catalog of all (-want +got):\n%s", diff)
	}
}

func testEmpty(t *testing.T, open opener) {
	s := newSite(t, open, nil)
	s.wantAll()
	if p, err := s.x.Search(t.Context(), index.Query{}); err != nil || p.Total != 0 {
		t.Errorf("Search = %v, %v", p, err)
	}
	for what, err := range map[string]error{
		"function": func() error { _, err := s.x.Function(t.Context(), "a", "B", ""); return err }(),
		"resolve":  func() error { _, err := s.x.Resolve(t.Context(), "a/v1", "B"); return err }(),
		"catalog":  func() error { _, err := s.x.Catalog(t.Context(), "nope"); return err }(),
		"snapshot": func() error { _, err := s.x.Snapshot(t.Context(), "nope", "v20260101"); return err }(),
	} {
		if !errors.Is(err, index.ErrNotFound) {
			t.Errorf("%s: error %v, want ErrNotFound", what, err)
		}
	}
	if err := s.x.Check(t.Context()); err != nil {
		t.Error(err)
	}
}

// A definition is in the index as soon as its push is acknowledged.
func testPublish(t *testing.T, open opener) {
	s := newSite(t, open, nil)
	d := s.push("acme/set-labels", setLabels.artifact(), "v1.0.0")
	s.wantAll(entry{"example.com/v1 SetLabels", "setlabels"})
	f := s.function("example.com", "SetLabels", "")
	if f.Tag != "v1.0.0" || f.Digest != string(d) || f.Repository != "acme/set-labels" || !f.Released || f.Signed || f.Status != index.Active {
		t.Errorf("listing = %+v", f.Listing)
	}
	if string(f.Readme) != "# SetLabels\n" || string(f.Document) != setLabels.yaml() || f.Version("v1") == nil || f.Version("v2") != nil {
		t.Errorf("function = %+v", f)
	}
	r, err := s.x.Resolve(t.Context(), "example.com/v1", "SetLabels")
	if err != nil || r.Runtime.Container == nil || r.Version.Digest != string(d) {
		t.Errorf("Resolve = %+v, %v", r, err)
	}
	if _, err := s.x.Resolve(t.Context(), "example.com/v9", "SetLabels"); !errors.Is(err, index.ErrNotFound) || !strings.Contains(err.Error(), "there is v1") {
		t.Errorf("Resolve of another version: %v", err)
	}
	// What other programs push is none of the index's business.
	s.push("library/image", artifact{artifactType: "application/vnd.example", layers: []layer{{"application/octet-stream", "x"}}}, "v1.0.0")
	s.push("acme/set-labels", artifact{artifactType: registry.ArtifactTypeExec, layers: []layer{{registry.MediaTypeExec, "ELF"}}}, "v1.0.0_v1_exec")
	st, err := s.x.Stats(t.Context())
	if err != nil || st.Functions != 1 || st.Releases != 1 || st.Publishers != 1 || st.Pending != 0 {
		t.Errorf("Stats = %+v, %v", st, err)
	}
}

// Catalogs have the newest release that is no pre-release for each version
// of the functionConfig.
func testReleases(t *testing.T, open opener) {
	s := newSite(t, open, nil)
	v := func(image string, versions ...string) artifact {
		f := setLabels
		f.versions, f.image = versions, image
		return f.artifact()
	}
	s.push("acme/set-labels", v("-10", "v1alpha1", "v1"), "v1.10.0")
	s.push("acme/set-labels", v("-9", "v1"), "1.9.0")
	s.push("acme/set-labels", v("-2", "v2", "v1"), "v2.0.0")
	s.push("acme/set-labels", v("-3rc", "v3", "v2"), "v3.0.0-rc.1")
	s.push("acme/set-labels", v("-latest", "v4"), "latest")
	s.wantAll(
		entry{"example.com/v2 SetLabels", "setlabels-2"},
		entry{"example.com/v1 SetLabels", "setlabels-2"},
		entry{"example.com/v1alpha1 SetLabels", "setlabels-10"},
	)
	f := s.function("example.com", "SetLabels", "")
	var tags []string
	for _, r := range f.Releases {
		tags = append(tags, r.Tag)
	}
	if diff := cmp.Diff([]string{"v2.0.0", "v1.10.0", "1.9.0", "v3.0.0-rc.1", "latest"}, tags); diff != "" {
		t.Errorf("releases (-want +got):\n%s", diff)
	}
	var versions []string
	for _, v := range f.Versions {
		versions = append(versions, fmt.Sprint(v.Name, " ", v.Tag, " ", v.InCatalog))
	}
	if diff := cmp.Diff([]string{"v4 latest false", "v3 v3.0.0-rc.1 false", "v2 v2.0.0 true", "v1 v2.0.0 true", "v1alpha1 v1.10.0 true"}, versions); diff != "" {
		t.Errorf("versions (-want +got):\n%s", diff)
	}
	if f := s.function("example.com", "SetLabels", "1.9.0"); f.Shown.Version != "1.9.0" || !strings.Contains(string(f.Document), "setlabels-9@") {
		t.Errorf("shown release %+v", f.Shown)
	}
	if _, err := s.x.Function(t.Context(), "example.com", "SetLabels", "v9.9.9"); !errors.Is(err, index.ErrNotFound) {
		t.Errorf("an unknown release: %v", err)
	}
}

// A function that was never released is listed by its tag.
func testAliases(t *testing.T, open opener) {
	s := newSite(t, open, nil)
	s.push("acme/set-labels", setLabels.artifact(), "latest")
	s.wantAll(entry{"example.com/v1 SetLabels", "setlabels"})
	if f := s.function("example.com", "SetLabels", ""); f.Released || f.Tag != "latest" {
		t.Errorf("listing = %+v", f.Listing)
	}
	// One that has only a pre-release is not, but can be found.
	pre := setLabels
	pre.kind = "Preview"
	s.push("acme/preview", pre.artifact(), "v1.0.0-alpha.1")
	s.wantAll(entry{"example.com/v1 SetLabels", "setlabels"})
	if f := s.function("example.com", "Preview", ""); !f.Prerelease {
		t.Errorf("listing = %+v", f.Listing)
	}
}

// A tag that moves to something else takes its function with it.
func testMovedTag(t *testing.T, open opener) {
	s := newSite(t, open, nil)
	s.push("acme/fn", setLabels.artifact(), "latest")
	other := setLabels
	other.kind = "SetNames"
	s.push("acme/fn", other.artifact(), "latest")
	s.wantAll(entry{"example.com/v1 SetNames", "setnames"})
	s.push("acme/fn", artifact{artifactType: "application/vnd.example"}, "latest")
	s.wantAll()
	if st, err := s.x.Stats(t.Context()); err != nil || st.Functions != 0 || st.Releases != 0 {
		t.Errorf("Stats = %+v, %v", st, err)
	}
}

func testDeleted(t *testing.T, open opener) {
	s := newSite(t, open, nil)
	d := s.push("acme/fn", setLabels.artifact(), "latest")
	s.push("acme/fn", setLabels.artifact(), "stable")
	s.remove("acme/fn", "latest")
	s.wantAll(entry{"example.com/v1 SetLabels", "setlabels"})
	if f := s.function("example.com", "SetLabels", ""); f.Tag != "stable" {
		t.Errorf("listing = %+v", f.Listing)
	}
	s.remove("acme/fn", string(d))
	s.wantAll()
	if p, err := s.x.Search(t.Context(), index.Query{Text: "labels"}); err != nil || len(p.Items) != 0 {
		t.Errorf("Search = %+v, %v", p, err)
	}
}

// A function elsewhere that has the type of one in its publisher's own
// repository does not take over, however high its version.
func testNamesake(t *testing.T, open opener) {
	s := newSite(t, open, nil)
	evil := setLabels
	evil.image = "-evil"
	s.push("evil/set-labels", evil.artifact(), "v99.0.0")
	s.wantAll(entry{"example.com/v1 SetLabels", "setlabels-evil"})
	s.push("acme/set-labels", setLabels.artifact(), "v1.0.0")
	s.wantAll(entry{"example.com/v1 SetLabels", "setlabels"})
	f := s.function("example.com", "SetLabels", "")
	if diff := cmp.Diff([]string{"evil/set-labels"}, f.Elsewhere); diff != "" {
		t.Errorf("elsewhere (-want +got):\n%s", diff)
	}
}

func testSigned(t *testing.T, open opener) {
	s := newSite(t, open, nil)
	signed := func() bool { return s.function("example.com", "SetLabels", "").Signed }
	bundle := "application/vnd.dev.sigstore.bundle.v0.3+json"

	// As a referrer, before and after the tag.
	d := digest.FromBytes(setLabels.artifact().manifest())
	sig := artifact{artifactType: bundle, subject: d, layers: []layer{{bundle, "{}"}}}
	sd := s.push("acme/fn", sig, "")
	s.push("acme/fn", setLabels.artifact(), "v1.0.0")
	if !signed() {
		t.Error("a signature that was there before the tag is not seen")
	}
	s.remove("acme/fn", string(sd))
	if signed() {
		t.Error("a signature that is gone is still seen")
	}
	s.push("acme/fn", sig, "")
	if !signed() {
		t.Error("a signature that came after the tag is not seen")
	}
	if p, err := s.x.Search(t.Context(), index.Query{Signed: true}); err != nil || p.Total != 1 {
		t.Errorf("search for what is signed = %+v, %v", p, err)
	}
	// As cosign's tag.
	other := setLabels
	other.kind = "Other"
	od := s.push("acme/other", other.artifact(), "v1.0.0")
	if s.function("example.com", "Other", "").Signed {
		t.Error("unsigned function is shown as signed")
	}
	tag := "sha256-" + od.Encoded() + ".sig"
	s.push("acme/other", artifact{layers: []layer{{"application/vnd.dev.cosign.simplesigning.v1+json", "{}"}}}, tag)
	if !s.function("example.com", "Other", "").Signed {
		t.Error("cosign's signature is not seen")
	}
	s.remove("acme/other", tag)
	if s.function("example.com", "Other", "").Signed {
		t.Error("cosign's signature is gone and still seen")
	}
	// An attestation is no signature, nor is an SBOM.
	s.push("acme/other", artifact{artifactType: "application/spdx+json", subject: od, layers: []layer{{"application/spdx+json", "{}"}}}, "")
	if f := s.function("example.com", "Other", ""); f.Signed || len(f.Shown.Attached) != 1 {
		t.Errorf("release with an SBOM = %+v", f.Shown)
	}
}

// The status of a release is attached to it.
func testStatus(t *testing.T, open opener) {
	s := newSite(t, open, nil)
	one, two := setLabels, setLabels
	two.image = "-2"
	s.push("acme/fn", one.artifact(), "v1.0.0")
	d := s.push("acme/fn", two.artifact(), "v2.0.0")
	status := func(st index.Status, created string) {
		s.push("acme/fn", artifact{artifactType: index.ArtifactTypeStatus, subject: d, annotations: map[string]string{
			index.AnnotationStatus: string(st), index.AnnotationStatusMessage: "use another", ocispec.AnnotationCreated: created}}, "")
	}
	status(index.Deprecated, "2026-01-01T00:00:00Z")
	doc, err := s.x.Catalog(t.Context(), index.CatalogAll)
	if err != nil || !strings.Contains(string(doc.Data), "Deprecated: use another") {
		t.Errorf("catalog says nothing of the deprecation: %v\n%s", err, doc.Data)
	}
	status(index.Yanked, "2026-01-02T00:00:00Z")
	s.wantAll(entry{"example.com/v1 SetLabels", "setlabels"})
	if f := s.function("example.com", "SetLabels", "v2.0.0"); f.Shown.Status != index.Yanked || f.Shown.Message != "use another" {
		t.Errorf("release = %+v", f.Shown)
	}
	status(index.Active, "2026-01-03T00:00:00Z")
	s.wantAll(entry{"example.com/v1 SetLabels", "setlabels-2"})
}

func testCatalogs(t *testing.T, open opener) {
	s := newSite(t, open, nil)
	a := catalogArtifact("tools", setLabels)
	s.push("catalogs/tools", a, "v1.0.0")
	doc, err := s.x.Catalog(t.Context(), "tools")
	if err != nil || string(doc.Data) != a.layers[0].data || doc.Repository != "catalogs/tools" {
		t.Errorf("Catalog = %+v, %v; want the bytes as pushed", doc, err)
	}
	// A publisher has a catalog of everything of its own.
	other := setLabels
	other.kind, other.publisher = "Other", "Somebody Else"
	s.push("acme/set-labels", setLabels.artifact(), "v1.0.0")
	s.push("else/other", other.artifact(), "v1.0.0")
	if diff := cmp.Diff([]entry{{"example.com/v1 SetLabels", "setlabels"}}, s.entries(s.x.Catalog(t.Context(), "acme"))); diff != "" {
		t.Errorf("catalog of acme (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]entry{{"example.com/v1 Other", "other"}}, s.entries(s.x.Catalog(t.Context(), "somebody-else"))); diff != "" {
		t.Errorf("catalog of somebody else (-want +got):\n%s", diff)
	}
	if got := s.entries(s.x.Aggregate(t.Context(), []string{"somebody-else", "acme"}, "")); len(got) != 2 {
		t.Errorf("aggregate = %v", got)
	}
	if got := s.entries(s.x.Aggregate(t.Context(), []string{"acme"}, "generator")); len(got) != 0 {
		t.Errorf("aggregate of generators = %v", got)
	}
	if _, err := s.x.Aggregate(t.Context(), []string{"acme", "nobody"}, ""); !errors.Is(err, index.ErrNotFound) {
		t.Errorf("aggregate with an unknown publisher: %v", err)
	}
	// A catalog that somebody pushes elsewhere does not take the name.
	s.push("evil/x", catalogArtifact("acme", other), "v9.0.0")
	if diff := cmp.Diff([]entry{{"example.com/v1 SetLabels", "setlabels"}}, s.entries(s.x.Catalog(t.Context(), "acme"))); diff != "" {
		t.Errorf("catalog of acme (-want +got):\n%s", diff)
	}
	// One of its own does.
	s.push("acme/catalog", catalogArtifact("acme", setLabels, other), "v1.0.0")
	if got := s.entries(s.x.Catalog(t.Context(), "acme")); len(got) != 2 {
		t.Errorf("catalog of acme = %v", got)
	}
	list, err := s.x.Catalogs(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, c := range list {
		names = append(names, fmt.Sprintf("%s %v %d", c.Name, c.Pushed(), c.Functions))
	}
	if diff := cmp.Diff([]string{"acme true 2", "somebody-else false 1", "tools true 1"}, names); diff != "" {
		t.Errorf("catalogs (-want +got):\n%s", diff)
	}
}

// Dated versions of a catalog never change (KEP-2985, story 3).
func testSnapshots(t *testing.T, open opener) {
	s := newSite(t, open, nil)
	old, recent := catalogArtifact("acme", setLabels), catalogArtifact("acme")
	s.push("catalogs/acme", old, "v20260101")
	s.push("catalogs/acme", recent, "v20260102")
	s.push("catalogs/acme", old, "latest")
	doc, err := s.x.Snapshot(t.Context(), "acme", "v20260101")
	if err != nil || string(doc.Data) != old.layers[0].data || !doc.Immutable {
		t.Errorf("Snapshot = %+v, %v", doc, err)
	}
	hex := digest.FromString(recent.layers[0].data).Encoded()
	doc, err = s.x.Snapshot(t.Context(), "acme", "sha256-"+hex)
	if err != nil || string(doc.Data) != recent.layers[0].data {
		t.Errorf("Snapshot by digest = %+v, %v", doc, err)
	}
	// What is current: the tag latest, or, without it, the newest snapshot.
	s.remove("catalogs/acme", "latest")
	if doc, err = s.x.Catalog(t.Context(), "acme"); err != nil || doc.Tag != "v20260102" || doc.Immutable {
		t.Errorf("Catalog = %+v, %v; want the newest snapshot", doc, err)
	}
	// Snapshots do not stand for the functions of a publisher, who goes on
	// publishing; a catalog that the publisher curates does.
	s.push("acme/set-labels", setLabels.artifact(), "v1.0.0")
	if doc, err = s.x.Catalog(t.Context(), "acme"); err != nil || doc.Repository != "" || !strings.Contains(string(doc.Data), "SetLabels") {
		t.Errorf("Catalog = %+v, %v; want what acme has released", doc, err)
	}
	list, err := s.x.Catalogs(t.Context())
	if err != nil || len(list) != 1 || list[0].Pushed() || len(list[0].Versions) != 2 {
		t.Errorf("Catalogs = %+v, %v", list, err)
	}
	s.push("catalogs/acme", old, "latest")
	if doc, err = s.x.Catalog(t.Context(), "acme"); err != nil || doc.Tag != "latest" {
		t.Errorf("Catalog = %+v, %v; want latest", doc, err)
	}
	if list, err = s.x.Catalogs(t.Context()); err != nil || len(list) != 1 || !list[0].Pushed() || list[0].Versions[0].Tag != "latest" {
		t.Errorf("Catalogs = %+v, %v", list, err)
	}
}

// Documents that cannot be read are not shown and stop nobody.
func testBrokenDocuments(t *testing.T, open opener) {
	s := newSite(t, open, nil)
	for i, text := range []string{
		"", "{", "a: b", strings.Repeat("[", 100_000),
		strings.Replace(setLabels.yaml(), "SetLabels", `"nul \0 in a kind"`, 1),
		catalogArtifact("x").layers[0].data, // of the other kind
	} {
		s.push("acme/broken", artifact{layers: []layer{{registry.MediaTypeDefinition, text}}}, fmt.Sprint("t", i))
		s.push("acme/broken", artifact{layers: []layer{{registry.MediaTypeCatalog, text}}}, fmt.Sprint("c", i))
	}
	s.push("acme/set-labels", setLabels.artifact(), "v1.0.0")
	doc, err := s.x.Catalog(t.Context(), index.CatalogAll)
	if err != nil || !strings.Contains(string(doc.Data), "SetLabels") {
		t.Fatalf("catalog = %+v, %v", doc, err)
	}
	st, err := s.x.Stats(t.Context())
	if err != nil || st.Problems < 8 || st.Pending != 0 {
		t.Errorf("Stats = %+v, %v", st, err)
	}
}

func testSearch(t *testing.T, open opener) {
	s := newSite(t, open, nil)
	for _, f := range []fn{
		{kind: "SetLabels", description: "Sets labels on all resources", tags: []string{"mutator"}},
		{kind: "SetAnnotations", description: "Sets annotations, not labels", tags: []string{"mutator"}},
		{kind: "RenderHelmChart", description: "Renders a chart", tags: []string{"generator"}},
		{kind: "ValidateHTTPRoutes", description: "Finds routes without a backend", tags: []string{"validator"}},
	} {
		f.group, f.publisher, f.versions = "example.com", "acme", []string{"v1"}
		s.push("acme/"+strings.ToLower(f.kind), f.artifact(), "v1.0.0")
	}
	for _, c := range []struct {
		q         index.Query
		want      string
		corrected string
	}{
		{q: index.Query{}, want: "RenderHelmChart SetAnnotations SetLabels ValidateHTTPRoutes"},
		{q: index.Query{Limit: 2}, want: "RenderHelmChart SetAnnotations"},
		{q: index.Query{Limit: 2, Offset: 2}, want: "SetLabels ValidateHTTPRoutes"},
		{q: index.Query{Text: "labels"}, want: "SetLabels SetAnnotations"},
		{q: index.Query{Text: "set-labels"}, want: "SetLabels SetAnnotations"},
		{q: index.Query{Text: "SETLABELS"}, want: "SetLabels"},
		{q: index.Query{Text: "lab"}, want: "SetLabels SetAnnotations"},
		{q: index.Query{Text: "rend"}, want: "RenderHelmChart"},
		{q: index.Query{Text: "http routes"}, want: "ValidateHTTPRoutes"},
		{q: index.Query{Text: "labels chart"}, want: ""},
		{q: index.Query{Text: "annotatoins"}, want: "SetAnnotations", corrected: "annotations"},
		{q: index.Query{Text: "helm chrat"}, want: "RenderHelmChart", corrected: "helm chart"},
		{q: index.Query{Text: "xyzzy"}, want: ""},
		{q: index.Query{Text: "'; DROP TABLE functions; --"}, want: ""},
		{q: index.Query{Text: "%_\""}, want: ""},
		{q: index.Query{Tag: "mutator"}, want: "SetAnnotations SetLabels"},
		{q: index.Query{Text: "set", Tag: "validator"}, want: ""},
		{q: index.Query{Publisher: "acme", Runtime: "container", Text: "chart"}, want: "RenderHelmChart"},
		{q: index.Query{Runtime: "exec"}, want: ""},
		{q: index.Query{Group: "example.com", Kind: "SetLabels"}, want: "SetLabels"},
		{q: index.Query{Text: "set", Order: index.ByName}, want: "SetAnnotations SetLabels"},
	} {
		p, err := s.x.Search(t.Context(), c.q)
		if err != nil {
			t.Errorf("Search(%+v): %v", c.q, err)
			continue
		}
		var kinds []string
		for _, l := range p.Items {
			kinds = append(kinds, l.Kind)
		}
		if got := strings.Join(kinds, " "); got != c.want || p.Corrected != c.corrected {
			t.Errorf("Search(%+v) = %q, corrected %q; want %q, %q", c.q, got, p.Corrected, c.want, c.corrected)
		}
	}
	counts, err := s.x.Facets(t.Context(), "tag", 10)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]index.Count{{Value: "mutator", Count: 2}, {Value: "generator", Count: 1}, {Value: "validator", Count: 1}}, counts); diff != "" {
		t.Errorf("facets (-want +got):\n%s", diff)
	}
}

// state is everything that the index can be asked.
func (s *site) state() string {
	s.t.Helper()
	ctx := s.t.Context()
	var b strings.Builder
	catalogs, err := s.x.Catalogs(ctx)
	if err != nil {
		s.t.Fatal(err)
	}
	names := []string{index.CatalogAll}
	for _, c := range catalogs {
		names = append(names, c.Name)
	}
	for _, n := range names {
		doc, err := s.x.Catalog(ctx, n)
		if err != nil {
			s.t.Fatal(err)
		}
		fmt.Fprintf(&b, "--- %s\n%s", n, doc.Data)
	}
	p, err := s.x.Search(ctx, index.Query{Limit: 100})
	if err != nil {
		s.t.Fatal(err)
	}
	for _, l := range p.Items {
		l := *l
		l.Updated = l.Updated.Truncate(1)
		data, err := json.Marshal(l)
		if err != nil {
			s.t.Fatal(err)
		}
		fmt.Fprintf(&b, "%s\n", data)
	}
	return b.String()
}

// fill pushes some of everything.
func (s *site) fill() {
	for i, v := range []string{"v1.0.0", "v1.1.0", "v2.0.0-rc.1", "latest"} {
		f := setLabels
		f.image = fmt.Sprint("-", i)
		f.versions = []string{"v1", "v1beta1"}[:1+i%2]
		a := f.artifact()
		a.annotations = map[string]string{ocispec.AnnotationCreated: "2026-01-02T03:04:05Z"}
		d := s.push("acme/set-labels", a, v)
		s.push("acme/set-labels", artifact{artifactType: "application/vnd.dev.sigstore.bundle.v0.3+json", subject: d}, "")
	}
	other := setLabels
	other.kind, other.publisher = "Other", "else"
	a := other.artifact()
	a.annotations = map[string]string{ocispec.AnnotationCreated: "2026-01-02T03:04:05Z"}
	s.push("else/other", a, "v1.0.0")
	s.push("catalogs/tools", catalogArtifact("tools", setLabels, other), "v1.0.0")
}

// A rebuild comes to the same documents, byte for byte: over the index that
// is there, and over an empty one.
func testReindex(t *testing.T, open opener) {
	s := newSite(t, open, nil)
	s.fill()
	want := s.state()
	if !strings.Contains(want, "setlabels-1") {
		t.Fatalf("nothing was published:\n%s", want)
	}
	if err := s.x.Reindex(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, s.state()); diff != "" {
		t.Errorf("after a rebuild (-before +after):\n%s", diff)
	}
	s.close()
	fresh := newSite(t, opener(func(t *testing.T, store registry.Store) *index.Index {
		x, err := index.OpenSQLite(t.Context(), store, filepath.Join(t.TempDir(), "new.db"), nil)
		if err != nil {
			t.Fatal(err)
		}
		return x
	}), s.store)
	if diff := cmp.Diff(want, fresh.state()); diff != "" {
		t.Errorf("after a build from nothing (-before +after):\n%s", diff)
	}
	s.http.Config.Handler = http.NotFoundHandler()
}

// What was announced and stored by a process that went away before it could
// say so is looked up by the next one.
func testLeftovers(t *testing.T, open opener) {
	s := newSite(t, open, nil)
	a := setLabels.artifact()
	m := a.manifest()
	change := index.Change{Repository: "acme/set-labels", Tag: "v1.0.0", Descriptor: regtest.Describe(ocispec.MediaTypeImageManifest, m), Manifest: m}
	if _, err := s.x.Begin(t.Context(), change); err != nil {
		t.Fatal(err)
	}
	other := setLabels
	other.kind = "NeverStored"
	mo := other.artifact().manifest()
	if _, err := s.x.Begin(t.Context(), index.Change{Repository: "acme/other", Tag: "v1.0.0", Descriptor: regtest.Describe(ocispec.MediaTypeImageManifest, mo), Manifest: mo}); err != nil {
		t.Fatal(err)
	}
	blobs := [][]byte{[]byte("{}")}
	for _, l := range a.layers {
		blobs = append(blobs, []byte(l.data))
	}
	regtest.Put(t.Context(), t, s.store, "acme/set-labels", &regtest.Artifact{Descriptor: change.Descriptor, Manifest: m, Blobs: blobs}, "v1.0.0")
	if st, err := s.x.Stats(t.Context()); err != nil || st.Pending != 2 || st.Functions != 0 {
		t.Fatalf("Stats = %+v, %v", st, err)
	}
	// The process goes away: neither done was called.
	s.stop()
	<-s.done
	s = newSite(t, open, s.store)
	// One that shares the database gives the other a moment to come back.
	waitFor(t, func() bool {
		st, err := s.x.Stats(t.Context())
		return err == nil && st.Functions == 1
	})
	s.wantAll(entry{"example.com/v1 SetLabels", "setlabels"})
}

// Pushes of one tag at the same time leave what the registry has.
func testConcurrent(t *testing.T, open opener) {
	s := newSite(t, open, nil)
	const n = 24
	errs := make(chan error)
	for i := range n {
		go func() {
			f := setLabels
			f.image = fmt.Sprint("-", i)
			_, err := s.tryPush("acme/set-labels", f.artifact(), "latest")
			f.kind = fmt.Sprint("Kind", i)
			if err == nil {
				_, err = s.tryPush(fmt.Sprint("acme/fn", i%5), f.artifact(), fmt.Sprintf("v1.0.%d", i))
			}
			errs <- err
		}()
	}
	for range n {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	desc, err := s.store.Resolve(t.Context(), "acme/set-labels", "latest")
	if err != nil {
		t.Fatal(err)
	}
	if f := s.function("example.com", "SetLabels", ""); f.Digest != string(desc.Digest) {
		t.Errorf("index has %s, registry has %s", f.Digest, desc.Digest)
	}
	if st, err := s.x.Stats(t.Context()); err != nil || st.Functions != n+1 || st.Pending != 0 {
		t.Errorf("Stats = %+v, %v", st, err)
	}
}

// waitFor waits for what comes sooner or later.
func waitFor(t *testing.T, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatal("it does not come")
}
