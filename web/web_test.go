package web_test

import (
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"go.yaml.in/yaml/v3"

	"github.com/krmcat/krmcat/catalog"
	"github.com/krmcat/krmcat/catalog/index"
	"github.com/krmcat/krmcat/registry"
	"github.com/krmcat/krmcat/registry/regmem"
	"github.com/krmcat/krmcat/registry/regserver"
	"github.com/krmcat/krmcat/registry/regtest"
	"github.com/krmcat/krmcat/schema"
	"github.com/krmcat/krmcat/web"
)

// site is a whole server: registry, index and web.
type site struct {
	t     testing.TB
	url   string
	x     *index.Index
	store *regmem.Store
}

// observe tells an index of the changes to a server.
func observe(x *index.Index) registry.Observer {
	return registry.ObserverFunc(func(ctx context.Context, _ registry.Store, c registry.Change) (func(context.Context, error) error, error) {
		return x.Begin(ctx, index.Change(c))
	})
}

func newSite(t testing.TB, opts web.Options) *site {
	t.Helper()
	store := regmem.New()
	x, err := index.OpenSQLite(t.Context(), store, filepath.Join(t.TempDir(), "index.db"), nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan struct{})
	go func() { x.Run(ctx); close(done) }()
	opts.Registry = regserver.New(store, &regserver.Options{Observer: observe(x)})
	h, err := web.New(x, &opts)
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(h)
	t.Cleanup(func() {
		srv.Close()
		cancel()
		<-done
		if err := x.Close(); err != nil {
			t.Error(err)
		}
	})
	<-x.Ready()
	return &site{t: t, url: srv.URL, x: x, store: store}
}

const definition = `apiVersion: config.kubernetes.io/v1alpha1
kind: KRMFunctionDefinition
spec:
  group: example.com
  names:
    kind: %s
  description: "Sets things <b>& more</b>"
  publisher: acme
  tags: [mutator]
  home: javascript:alert(1)
  versions:
  - name: v1
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            required: [labels]
            properties:
              labels:
                type: object
                description: The labels
                additionalProperties: {type: string}
    idempotent: true
    runtime:
      container:
        image: example.com/fn:v1@sha256:abababababababababababababababababababababababababababababababab
        sha256: abababababababababababababababababababababababababababababababab
    usage: https://example.com/README.md
    examples: [https://example.com/example.md]
    license: Apache 2.0
`

const readme = "# Readme\n\n[good](https://example.com) [bad](javascript:alert(1)) ![image](https://example.com/x.png)\n\n<script>alert(1)</script>\n"

// push stores an artifact and tells the index, as the registry does.
func (s *site) push(repository, tag, artifactType string, subject *ocispec.Descriptor, layers ...[2]string) ocispec.Descriptor {
	s.t.Helper()
	m := ocispec.Manifest{MediaType: ocispec.MediaTypeImageManifest, ArtifactType: artifactType, Config: ocispec.DescriptorEmptyJSON, Layers: []ocispec.Descriptor{}, Subject: subject}
	m.SchemaVersion = 2
	m.Config.Data = nil
	a := &regtest.Artifact{Blobs: [][]byte{[]byte("{}")}}
	for _, l := range layers {
		m.Layers = append(m.Layers, regtest.Describe(l[0], []byte(l[1])))
		a.Blobs = append(a.Blobs, []byte(l[1]))
	}
	a.Manifest = regtest.Marshal(m)
	a.Descriptor = regtest.Describe(ocispec.MediaTypeImageManifest, a.Manifest)
	done, err := s.x.Begin(s.t.Context(), index.Change{Repository: repository, Tag: tag, Descriptor: a.Descriptor, Manifest: a.Manifest})
	if err != nil {
		s.t.Fatal(err)
	}
	var tags []string
	if tag != "" {
		tags = append(tags, tag)
	}
	if err := done(s.t.Context(), regtest.Push(s.t.Context(), s.store, repository, a, tags...)); err != nil {
		s.t.Fatal(err)
	}
	return a.Descriptor
}

func (s *site) define(repository, tag, kind string) ocispec.Descriptor {
	s.t.Helper()
	return s.push(repository, tag, registry.ArtifactTypeDefinition, nil,
		[2]string{registry.MediaTypeDefinition, fmt.Sprintf(definition, kind)}, [2]string{registry.MediaTypeMarkdown, readme})
}

const pushedCatalog = `# as pushed
apiVersion: config.kubernetes.io/v1alpha1
kind: KRMFunctionCatalog
metadata: {name: tools}
spec:
  krmFunctions: []
`

func filled(t testing.TB) *site {
	s := newSite(t, web.Options{Name: "Example", Version: "v1.2.3"})
	s.define("acme/set-labels", "v1.0.0", "SetLabels")
	s.define("acme/set-names", "v2.1.0", "SetNames")
	s.push("catalogs/tools", "v20260102", registry.ArtifactTypeCatalog, nil, [2]string{registry.MediaTypeCatalog, pushedCatalog})
	return s
}

type answer struct {
	status int
	header http.Header
	body   string
}

func (s *site) get(path string, header ...string) answer {
	return s.do(http.MethodGet, path, header...)
}

func (s *site) do(method, path string, header ...string) answer {
	s.t.Helper()
	req, err := http.NewRequest(method, s.url+path, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Accept-Encoding", "identity")
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return answer{resp.StatusCode, resp.Header, string(body)}
}

func reprDigest(body string) string {
	sum := sha256.Sum256([]byte(body))
	return "sha-256=:" + base64.StdEncoding.EncodeToString(sum[:]) + ":"
}

// KC-029, KC-030: one document, for everybody.
func TestCatalog(t *testing.T) {
	t.Parallel()
	s := filled(t)
	whole := s.get("/catalog.yaml")
	if whole.status != 200 || whole.header.Get("Content-Type") != "application/yaml" {
		t.Fatalf("GET /catalog.yaml: %d %v", whole.status, whole.header)
	}
	doc, err := catalog.Read(t.Context(), catalog.Location{}, "catalog.yaml", []byte(whole.body), catalog.ReadOptions{Level: schema.Consume})
	if err != nil {
		t.Fatal(err)
	}
	if n := len(doc.Catalog.Definitions); n != 2 {
		t.Errorf("%d functions, want 2", n)
	}
	hex := digest.FromString(whole.body).Encoded()
	if got, want := whole.header.Get("Etag"), `"`+hex+`"`; got != want {
		t.Errorf("ETag %s, want %s", got, want)
	}
	for name, want := range map[string]string{
		"Repr-Digest": reprDigest(whole.body), "Vary": "Accept-Encoding", "Access-Control-Allow-Origin": "*", "X-Content-Type-Options": "nosniff",
	} {
		if got := whole.header.Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	if whole.header.Get("Last-Modified") == "" {
		t.Error("no Last-Modified")
	}

	zipped := s.get("/catalog.yaml", "Accept-Encoding", "br;q=1, gzip;q=0.8")
	z, err := gzip.NewReader(strings.NewReader(zipped.body))
	if err != nil {
		t.Fatal(err)
	}
	plain, err := io.ReadAll(z)
	if err != nil || string(plain) != whole.body {
		t.Errorf("the compressed document differs: %v", err)
	}
	if got, want := zipped.header.Get("Etag"), `"`+hex+`-gz"`; got != want {
		t.Errorf("ETag of the compressed document %s, want %s", got, want)
	}
	if got := zipped.header.Get("Repr-Digest"); got != reprDigest(zipped.body) {
		t.Errorf("Repr-Digest of the compressed document %s", got)
	}
	if zipped.header.Get("Vary") != "Accept-Encoding" || zipped.header.Get("Content-Encoding") != "gzip" {
		t.Errorf("headers of the compressed document: %v", zipped.header)
	}

	for _, c := range []struct {
		name   string
		header []string
		status int
	}{
		{"its tag", []string{"If-None-Match", `"` + hex + `"`}, 304},
		{"the other form's tag", []string{"If-None-Match", `"` + hex + `-gz"`}, 304},
		{"compressed, its tag", []string{"If-None-Match", `"` + hex + `-gz"`, "Accept-Encoding", "gzip"}, 304},
		{"weak", []string{"If-None-Match", `"x", W/"` + hex + `"`}, 304},
		{"any", []string{"If-None-Match", "*"}, 304},
		{"another tag", []string{"If-None-Match", `"x"`}, 200},
		{"another tag beats the date", []string{"If-None-Match", `"x"`, "If-Modified-Since", whole.header.Get("Last-Modified")}, 200},
		{"the date", []string{"If-Modified-Since", whole.header.Get("Last-Modified")}, 304},
		{"the date, compressed", []string{"If-Modified-Since", whole.header.Get("Last-Modified"), "Accept-Encoding", "gzip"}, 304},
		{"an old date", []string{"If-Modified-Since", "Mon, 02 Jan 2006 15:04:05 GMT"}, 200},
		{"part", []string{"Range", "bytes=0-9"}, 206},
		{"part, never compressed", []string{"Range", "bytes=0-9", "Accept-Encoding", "gzip"}, 206},
		{"part of another document", []string{"Range", "bytes=0-9", "If-Range", `"x"`}, 200},
		{"no part", []string{"Range", "bytes=9999999-"}, 416},
	} {
		a := s.get("/catalog.yaml", c.header...)
		if a.status != c.status {
			t.Errorf("%s: %d, want %d", c.name, a.status, c.status)
		}
		switch a.status {
		case 206:
			if a.body != whole.body[:10] || a.header.Get("Content-Encoding") != "" {
				t.Errorf("%s: %q, %v", c.name, a.body, a.header)
			}
		case 304:
			if a.body != "" || a.header.Get("Etag") == "" || a.header.Get("Vary") == "" {
				t.Errorf("%s: %q, %v", c.name, a.body, a.header)
			}
		}
	}
	head := s.do(http.MethodHead, "/catalog.yaml")
	if head.status != 200 || head.body != "" || head.header.Get("Content-Length") != fmt.Sprint(len(whole.body)) || head.header.Get("Etag") != whole.header.Get("Etag") {
		t.Errorf("HEAD: %d %v", head.status, head.header)
	}

	asJSON := s.get("/catalog.json")
	var fromJSON, fromYAML any
	if err := json.Unmarshal([]byte(asJSON.body), &fromJSON); err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal([]byte(whole.body), &fromYAML); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(fromYAML, fromJSON); diff != "" {
		t.Errorf("catalog.json differs from catalog.yaml:\n%s", diff)
	}
	if asJSON.header.Get("Content-Type") != "application/json" || asJSON.header.Get("Etag") == whole.header.Get("Etag") {
		t.Errorf("headers of catalog.json: %v", asJSON.header)
	}

	// What is pushed shows at once.
	s.define("acme/third", "v1.0.0", "Third")
	if a := s.get("/catalog.yaml", "If-None-Match", whole.header.Get("Etag")); a.status != 200 || !strings.Contains(a.body, "kind: Third") {
		t.Errorf("after a push: %d\n%s", a.status, a.body)
	}
}

func TestCatalogsByName(t *testing.T) {
	t.Parallel()
	s := filled(t)
	hex := digest.FromString(pushedCatalog).Encoded()
	for path, want := range map[string]string{
		"/catalogs/tools/catalog.yaml":                               pushedCatalog,
		"/catalogs/tools/latest.yaml":                                pushedCatalog,
		"/catalogs/tools/v20260102.yaml":                             pushedCatalog,
		"/catalogs/tools/sha256-" + hex + ".yaml":                    pushedCatalog,
		"/catalogs/acme/catalog.yaml":                                "name: acme",
		"/catalogs/aggregate/latest.yaml?publisher=acme":             "name: aggregate",
		"/catalogs/aggregate/latest.json?publisher=acme&tag=mutator": `"name":"aggregate"`,
	} {
		a := s.get(path)
		if a.status != 200 || a.body != want && !strings.Contains(a.body, want) {
			t.Errorf("GET %s: %d\n%s", path, a.status, a.body)
		}
		immutable := strings.Contains(path, "v2026") || strings.Contains(path, "sha256-")
		if got := strings.Contains(a.header.Get("Cache-Control"), "immutable"); got != immutable {
			t.Errorf("GET %s: Cache-Control %q", path, a.header.Get("Cache-Control"))
		}
	}
	if a := s.get("/catalogs/tools/catalog.yaml"); !strings.HasPrefix(a.header.Get("Link"), "<oci://127.0.0.1:") {
		t.Errorf("Link: %q", a.header.Get("Link"))
	}
	for path, status := range map[string]int{
		"/catalogs/nope/catalog.yaml":                                                  404,
		"/catalogs/tools/v20990101.yaml":                                               404,
		"/catalogs/tools/sha256-00.yaml":                                               404,
		"/catalogs/tools/..%2fcatalog.yaml":                                            404,
		"/catalogs/tools/catalog.exe":                                                  404,
		"/catalogs/aggregate/latest.yaml":                                              400,
		"/catalogs/aggregate/latest.yaml?publisher=nobody":                             404,
		"/catalogs/aggregate/latest.yaml?publisher=%00":                                400,
		"/catalogs/aggregate/latest.yaml?publisher=acme&tag=" + url.QueryEscape("a b"): 400,
	} {
		a := s.get(path)
		var p struct {
			Status int    `json:"status"`
			Title  string `json:"title"`
			Detail string `json:"detail"`
		}
		if err := json.Unmarshal([]byte(a.body), &p); err != nil || a.status != status || p.Status != status || p.Title == "" || p.Detail == "" || a.header.Get("Content-Type") != "application/problem+json" {
			t.Errorf("GET %s: %d %s, %v", path, a.status, a.body, err)
		}
	}
}

func TestAPI(t *testing.T) {
	t.Parallel()
	s := filled(t)
	get := func(path string, v any) answer {
		t.Helper()
		a := s.get(path)
		if a.status != 200 || a.header.Get("Content-Type") != "application/json" {
			t.Fatalf("GET %s: %d %s", path, a.status, a.body)
		}
		if err := json.Unmarshal([]byte(a.body), v); err != nil {
			t.Fatal(err)
		}
		return a
	}
	var page struct {
		Items []struct {
			Kind, URL, APIVersion, Reference string
			Versions                         []struct{ APIVersion, Schema string }
		}
		Total     int
		Next      string
		Corrected string
	}
	a := get("/api/v1/functions?limit=1", &page)
	if page.Total != 2 || len(page.Items) != 1 || page.Items[0].Kind != "SetLabels" || page.Next != "/api/v1/functions?limit=1&offset=1" || a.header.Get("Link") == "" {
		t.Errorf("first page: %+v", page)
	}
	next := page.Next
	page.Next = ""
	get(next, &page)
	if len(page.Items) != 1 || page.Items[0].Kind != "SetNames" || page.Next != "" {
		t.Errorf("second page: %+v", page)
	}
	get("/api/v1/search?q=lables", &page)
	if page.Total != 1 || page.Corrected != "labels" {
		t.Errorf("search with a slip: %+v", page)
	}
	get("/api/v1/complete?prefix=setn", &page)
	if page.Total != 1 || page.Items[0].APIVersion != "example.com/v1" || !strings.Contains(page.Items[0].Reference, "/acme/set-names:v2.1.0") {
		t.Errorf("completion: %+v", page)
	}
	var f struct {
		Kind, Readme, Definition string
		Releases                 []struct {
			Version          string
			ReleaseTimestamp string
			IsDeprecated     bool
		}
	}
	get("/api/v1/functions/example.com/SetLabels", &f)
	if f.Kind != "SetLabels" || f.Readme != readme || f.Definition != fmt.Sprintf(definition, "SetLabels") || len(f.Releases) != 1 || f.Releases[0].Version != "v1.0.0" {
		t.Errorf("function: %+v", f)
	}
	var r struct {
		Release, Definition string
		Container           struct{ Image, Digest string }
	}
	get("/api/v1/resolve?apiVersion=example.com/v1&kind=SetLabels", &r)
	if r.Release != "v1.0.0" || !strings.Contains(r.Definition, "@sha256:") || !strings.HasPrefix(r.Container.Image, "example.com/fn:v1@") {
		t.Errorf("resolution: %+v", r)
	}
	for _, path := range []string{"/api/v1/catalogs", "/api/v1/publishers", "/api/v1/stats", "/.well-known/krm-catalog.json", "/feeds/publishers/acme.json"} {
		var v map[string]any
		if a := s.get(path); a.status != 200 || json.Unmarshal([]byte(a.body), &v) != nil || len(v) == 0 {
			t.Errorf("GET %s: %d %s", path, a.status, a.body)
		}
	}
	for path, status := range map[string]int{
		"/api/v1/nope":                                        404,
		"/api/v1/functions/example.com/Nope":                  404,
		"/api/v1/functions/example.com/SetLabels/v9.9.9":      404,
		"/api/v1/resolve":                                     400,
		"/api/v1/resolve?apiVersion=example.com/v1&kind=Nope": 404,
		"/api/v1/functions?limit=x":                           400,
		"/api/v1/functions?offset=-1":                         400,
		"/api/v1/search?q=" + strings.Repeat("x", 300):        400,
		"/schemas/example.com/nope_v1.json":                   404,
		"/schemas/example.com/setlabels.json":                 404,
		"/feeds/publishers/acme.rss":                          404,
	} {
		if a := s.get(path); a.status != status || a.header.Get("Content-Type") != "application/problem+json" {
			t.Errorf("GET %s: %d %s", path, a.status, a.body)
		}
	}
	if a := s.do(http.MethodPost, "/api/v1/functions"); a.status != 405 || a.header.Get("Allow") != "GET, HEAD" {
		t.Errorf("POST: %d %v", a.status, a.header)
	}
	if a := s.do(http.MethodOptions, "/catalog.yaml", "Origin", "https://example.com", "Access-Control-Request-Method", "GET"); a.status != 204 || a.header.Get("Access-Control-Allow-Methods") != "GET, HEAD" {
		t.Errorf("OPTIONS: %d %v", a.status, a.header)
	}
}

func TestSchemaFile(t *testing.T) {
	t.Parallel()
	s := filled(t)
	a := s.get("/schemas/example.com/setlabels_v1.json")
	var got struct {
		Properties map[string]struct {
			Const string
			Type  string
		}
	}
	if err := json.Unmarshal([]byte(a.body), &got); err != nil || a.header.Get("Content-Type") != "application/schema+json" {
		t.Fatalf("%d %s: %v", a.status, a.body, err)
	}
	if got.Properties["apiVersion"].Const != "example.com/v1" || got.Properties["kind"].Const != "SetLabels" || got.Properties["spec"].Type != "object" {
		t.Errorf("schema:\n%s", a.body)
	}
}

func TestHealth(t *testing.T) {
	t.Parallel()
	var broken error
	s := newSite(t, web.Options{Ready: func(context.Context) error { return broken }})
	for _, p := range []string{"/livez", "/readyz"} {
		if a := s.get(p); a.status != 200 || a.body != "ok\n" {
			t.Errorf("GET %s: %d %s", p, a.status, a.body)
		}
	}
	broken = errors.New("secret cause")
	if a := s.get("/readyz"); a.status != 503 || strings.Contains(a.body, "secret") {
		t.Errorf("GET /readyz: %d %s", a.status, a.body)
	}
	if a := s.get("/livez"); a.status != 200 {
		t.Errorf("GET /livez: %d", a.status)
	}
}

// While the index cannot answer, pulls go on, and the first page says what is
// going on.
func TestNotReady(t *testing.T) {
	t.Parallel()
	store := regmem.New()
	x, err := index.OpenSQLite(t.Context(), store, filepath.Join(t.TempDir(), "index.db"), nil)
	if err != nil {
		t.Fatal(err)
	}
	h, err := web.New(x, &web.Options{Registry: regserver.New(store, &regserver.Options{Observer: observe(x)})})
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(h)
	defer srv.Close()
	s := &site{t: t, url: srv.URL}
	for path, status := range map[string]int{"/catalog.yaml": 503, "/readyz": 503, "/livez": 200, "/v2/": 200, "/": 200} {
		if a := s.get(path); a.status != status {
			t.Errorf("GET %s before the index was built: %d %s", path, a.status, a.body)
		}
	}
	if err := x.Close(); err != nil {
		t.Fatal(err)
	}
	for path, status := range map[string]int{"/catalog.yaml": 503, "/api/v1/functions": 503, "/v2/": 200, "/": 200, "/functions/a/B": 503} {
		a := s.get(path)
		if a.status != status || status == 503 && a.header.Get("Retry-After") == "" {
			t.Errorf("GET %s without a database: %d %s", path, a.status, a.body)
		}
		if strings.Contains(a.body, "closed") || strings.Contains(a.body, "sql") {
			t.Errorf("GET %s tells the cause: %s", path, a.body)
		}
	}
}

func TestExternalURL(t *testing.T) {
	t.Parallel()
	u := &url.URL{Scheme: "https", Host: "functions.example.com"}
	s := newSite(t, web.Options{ExternalURL: u})
	s.define("acme/set-labels", "v1.0.0", "SetLabels")
	for _, path := range []string{"/.well-known/krm-catalog.json", "/functions/example.com/SetLabels", "/feeds/all.atom", "/"} {
		a := s.get(path)
		if !strings.Contains(a.body, "functions.example.com") || strings.Contains(a.body, "127.0.0.1") || strings.Contains(a.body, "--plain-http") {
			t.Errorf("GET %s:\n%s", path, a.body)
		}
	}
	// Without one, a host that is none does not get onto the pages.
	s = newSite(t, web.Options{})
	req, err := http.NewRequest(http.MethodGet, s.url+"/", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Host = "a;reboot"
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(body), "reboot") {
		t.Error("the Host header is on the page")
	}
}
