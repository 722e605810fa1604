package regserver_test

import (
	"bytes"
	"crypto/sha512"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/krmcat/krmcat/registry"
	"github.com/krmcat/krmcat/registry/regbucket"
	"github.com/krmcat/krmcat/registry/regdir"
	"github.com/krmcat/krmcat/registry/regmem"
	"github.com/krmcat/krmcat/registry/regproxy"
	"github.com/krmcat/krmcat/registry/regserver"
	"github.com/krmcat/krmcat/registry/regstore"
	"github.com/krmcat/krmcat/registry/regtest"
)

// conformance is the distribution specification 1.1 as tests: the name of
// each says the section, and the number in its table of endpoints.
var conformance = map[string]func(*testing.T, *client){
	"Endpoints end-1 API version":                                   checkBase,
	"Pulling blobs end-2":                                           checkPullBlob,
	"Pulling blobs end-2 ranges (RFC 9110 section 14)":              checkRanges,
	"Pulling manifests end-3":                                       checkPullManifest,
	"Checking if content exists end-2 end-3 HEAD":                   checkHead,
	"Pushing a blob monolithically end-4a end-6 POST then PUT":      checkPostPut,
	"Pushing a blob monolithically end-4b single POST":              checkSinglePost,
	"Pushing a blob in chunks end-4a end-5 end-6":                   checkChunks,
	"Pushing a blob in chunks end-5 end-13 out of order":            checkOutOfOrder,
	"Pushing a blob in chunks end-5 streamed":                       checkStreamed,
	"Pushing a blob in chunks end-13 status":                        checkStatus,
	"Pushing a blob cancelled":                                      checkCancel,
	"Pushing a blob with a wrong digest (DIGEST_INVALID)":           checkWrongDigest,
	"Mounting a blob from another repository end-11":                checkMount,
	"Pushing manifests end-7 by tag and digest":                     checkPushManifest,
	"Pushing manifests end-7 refused (MANIFEST_INVALID and others)": checkPushManifestRefused,
	"Pushing manifests end-7 tag parameters":                        checkTagParameters,
	"Pushing manifests with subject":                                checkSubject,
	"Listing tags end-8a end-8b":                                    checkTags,
	"Listing referrers end-12a end-12b":                             checkReferrers,
	"Listing referrers in pages":                                    checkReferrerPages,
	"Deleting tags end-9":                                           checkDeleteTag,
	"Deleting manifests end-9":                                      checkDeleteManifest,
	"Deleting blobs end-10":                                         checkDeleteBlob,
	"Digests registered algorithms sha512":                          checkSHA512,
	"Error codes":                                                   checkErrors,
	"Repository names and references":                               checkNames,
	"Reserved _catalog":                                             checkCatalog,
}

// drivers are the storages that the whole protocol is tested over.
var drivers = map[string]func(t *testing.T) regstore.Driver{
	"regmem": func(*testing.T) regstore.Driver { return regmem.New() },
	"regdir": func(t *testing.T) regstore.Driver {
		s, err := regdir.Open(t.TempDir(), nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		return s
	},
	"regbucket": func(t *testing.T) regstore.Driver {
		backend := s3mem.New()
		if err := backend.CreateBucket("registry"); err != nil {
			t.Fatal(err)
		}
		srv := httptest.NewServer(gofakes3.New(backend).Server())
		t.Cleanup(srv.Close)
		s, err := regbucket.Open(t.Context(), regbucket.Options{Endpoint: srv.URL, Bucket: "registry", Credentials: regbucket.Credentials{AccessKey: "key", SecretKey: "secret"}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		return s
	},
	"regproxy": func(t *testing.T) regstore.Driver {
		up := regtest.NewServer(t)
		b := regproxy.NewBackend(regproxy.NewUpstream(registry.NewClient(nil), up.Host, ""), regmem.New())
		t.Cleanup(func() { _ = b.Close() })
		return b
	},
}

func TestConformance(t *testing.T) {
	for driver, open := range drivers {
		for name, check := range conformance {
			t.Run(driver+"/"+name, func(t *testing.T) {
				t.Parallel()
				check(t, newClient(t, open(t), nil))
			})
		}
	}
}

const repo = "conformance/repository"

// client sends requests to a server.
type client struct {
	t   testing.TB
	srv *regtest.Server
}

func newClient(t testing.TB, store regstore.Driver, opts *regserver.Options) *client {
	return &client{t, regtest.NewServerWith(t, store, opts)}
}

type answer struct {
	t testing.TB
	*http.Response
	body []byte
}

// do sends a request; header is pairs of name and value.
func (c *client) do(method, path string, body io.Reader, header ...string) *answer {
	c.t.Helper()
	u := path
	if strings.HasPrefix(path, "/") {
		u = c.srv.URL + path
	}
	req, err := http.NewRequestWithContext(c.t.Context(), method, u, body)
	if err != nil {
		c.t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Add(header[i], header[i+1])
	}
	resp, err := c.srv.HTTP.Client().Do(req)
	if err != nil {
		c.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	return &answer{c.t, resp, b}
}

func (c *client) get(path string, header ...string) *answer {
	c.t.Helper()
	return c.do(http.MethodGet, path, nil, header...)
}

// want checks the status, and of failures that the body is as the
// specification has it.
func (a *answer) want(status int) *answer {
	a.t.Helper()
	if a.StatusCode != status {
		a.t.Fatalf("%s %s: got %s %s, want %d", a.Request.Method, a.Request.URL, a.Status, a.body, status)
	}
	if status >= 400 && a.Request.Method != http.MethodHead {
		a.errors()
	}
	if a.Header.Get("Warning") != "" {
		a.t.Errorf("warning %q", a.Header.Get("Warning"))
	}
	return a
}

type wireError struct {
	Code, Message string
	Detail        json.RawMessage
}

func (a *answer) errors() []wireError {
	a.t.Helper()
	var v struct{ Errors []wireError }
	if err := json.Unmarshal(a.body, &v); err != nil || len(v.Errors) == 0 {
		a.t.Fatalf("%s %s: %s is no list of errors (%v)", a.Request.Method, a.Request.URL, a.body, err)
	}
	if got := a.Header.Get("Content-Type"); got != "application/json" {
		a.t.Errorf("errors come as %s", got)
	}
	for _, e := range v.Errors {
		if strings.Trim(e.Code, "ABCDEFGHIJKLMNOPQRSTUVWXYZ_") != "" || e.Code == "" {
			a.t.Errorf("error code %q has other characters than upper case letters and '_'", e.Code)
		}
	}
	return v.Errors
}

// wantCode checks the first error's code.
func (a *answer) wantCode(code string) *answer {
	a.t.Helper()
	if got := a.errors()[0].Code; got != code {
		a.t.Errorf("%s %s: got code %s, want %s", a.Request.Method, a.Request.URL, got, code)
	}
	return a
}

func (a *answer) wantHeader(name, value string) *answer {
	a.t.Helper()
	if got := a.Header.Get(name); got != value {
		a.t.Errorf("%s %s: %s is %q, want %q", a.Request.Method, a.Request.URL, name, got, value)
	}
	return a
}

func (a *answer) wantBody(b []byte) *answer {
	a.t.Helper()
	if !bytes.Equal(a.body, b) {
		a.t.Errorf("%s %s: got %d bytes, want %d other ones", a.Request.Method, a.Request.URL, len(a.body), len(b))
	}
	a.wantHeader("Content-Length", strconv.Itoa(len(b)))
	return a
}

// location resolves the Location header, as clients have to.
func (a *answer) location() string {
	a.t.Helper()
	u, err := a.Request.URL.Parse(a.Header.Get("Location"))
	if err != nil || a.Header.Get("Location") == "" {
		a.t.Fatalf("Location %q: %v", a.Header.Get("Location"), err)
	}
	return u.String()
}

func withQuery(u, name, value string) string {
	sep := "?"
	if strings.Contains(u, "?") {
		sep = "&"
	}
	return u + sep + name + "=" + url.QueryEscape(value)
}

func (c *client) pushBlob(repository string, b []byte) digest.Digest {
	c.t.Helper()
	d := digest.FromBytes(b)
	c.do(http.MethodPost, "/v2/"+repository+"/blobs/uploads/?digest="+string(d), bytes.NewReader(b), "Content-Type", "application/octet-stream").want(http.StatusCreated)
	return d
}

func (c *client) pushManifest(repository, reference string, a *regtest.Artifact) *answer {
	c.t.Helper()
	return c.do(http.MethodPut, "/v2/"+repository+"/manifests/"+reference, bytes.NewReader(a.Manifest), "Content-Type", a.Descriptor.MediaType)
}

func (c *client) push(repository string, a *regtest.Artifact, tags ...string) {
	c.t.Helper()
	for _, b := range a.Blobs {
		c.pushBlob(repository, b)
	}
	for _, tag := range append(tags, string(a.Descriptor.Digest)) {
		c.pushManifest(repository, tag, a).want(http.StatusCreated)
	}
}

func checkBase(_ *testing.T, c *client) {
	c.get("/v2/").want(http.StatusOK)
	c.get("/v2").want(http.StatusOK)
	c.do(http.MethodHead, "/v2/", nil).want(http.StatusOK)
	c.do(http.MethodPost, "/v2/", nil).want(http.StatusMethodNotAllowed).wantHeader("Allow", "GET, HEAD")
}

func checkPullBlob(_ *testing.T, c *client) {
	for _, b := range [][]byte{{}, []byte("{}"), regtest.Random(1, 100_000)} {
		d := c.pushBlob(repo, b)
		a := c.get("/v2/"+repo+"/blobs/"+string(d)).want(http.StatusOK).wantBody(b).wantHeader("Docker-Content-Digest", string(d))
		c.get("/v2/"+repo+"/blobs/"+string(d), "If-None-Match", a.Header.Get("Etag")).want(http.StatusNotModified)
		c.get("/v2/other/repository/blobs/" + string(d)).want(http.StatusNotFound).wantCode("BLOB_UNKNOWN")
		c.get("/v2/" + repo + "/blobs/" + strings.ReplaceAll(string(d), ":", "%3A")).want(http.StatusOK).wantBody(b)
	}
	c.get("/v2/" + repo + "/blobs/" + string(digest.FromString("x"))).want(http.StatusNotFound).wantCode("BLOB_UNKNOWN")
}

func checkRanges(_ *testing.T, c *client) {
	b := regtest.Random(2, 2048)
	path := "/v2/" + repo + "/blobs/" + string(c.pushBlob(repo, b))
	for _, r := range []struct {
		header      string
		first, last int
	}{{"bytes=500-1499", 500, 1499}, {"bytes=0-0", 0, 0}, {"bytes=500-", 500, 2047}, {"bytes=-500", 1548, 2047}, {"bytes=2000-5000", 2000, 2047}, {"bytes=-5000", 0, 2047}} {
		c.get(path, "Range", r.header).want(http.StatusPartialContent).wantBody(b[r.first:r.last+1]).
			wantHeader("Content-Range", fmt.Sprintf("bytes %d-%d/2048", r.first, r.last))
	}
	for _, r := range []string{"bytes=500-0", "bytes=5000-10000", "bytes=2048-"} {
		if a := c.get(path, "Range", r); a.StatusCode != http.StatusRequestedRangeNotSatisfiable {
			c.t.Errorf("range %s: got %s, want 416", r, a.Status)
		}
	}
	if a := c.get(path, "Range", "bytes=0-9,20-29"); a.StatusCode != http.StatusPartialContent || !strings.HasPrefix(a.Header.Get("Content-Type"), "multipart/byteranges") {
		c.t.Errorf("two ranges: got %s %s", a.Status, a.Header.Get("Content-Type"))
	}
	c.do(http.MethodHead, path, nil).want(http.StatusOK).wantHeader("Accept-Ranges", "bytes")
}

func checkPullManifest(_ *testing.T, c *client) {
	art := regtest.NewArtifact("application/vnd.example", nil, []byte("layer"))
	c.push(repo, art, "v1")
	for _, ref := range []string{"v1", string(art.Descriptor.Digest)} {
		a := c.get("/v2/"+repo+"/manifests/"+ref, "Accept", ocispec.MediaTypeImageManifest).want(http.StatusOK).wantBody(art.Manifest).
			wantHeader("Content-Type", ocispec.MediaTypeImageManifest).wantHeader("Docker-Content-Digest", string(art.Descriptor.Digest))
		c.get("/v2/"+repo+"/manifests/"+ref, "If-None-Match", a.Header.Get("Etag")).want(http.StatusNotModified)
	}
	c.get("/v2/" + repo + "/manifests/v2").want(http.StatusNotFound).wantCode("MANIFEST_UNKNOWN")
	c.get("/v2/" + repo + "/manifests/" + string(digest.FromString("x"))).want(http.StatusNotFound).wantCode("MANIFEST_UNKNOWN")
	c.get("/v2/other/repository/manifests/v1").want(http.StatusNotFound)
	c.get("/v2/" + repo + "/manifests/.INVALID_MANIFEST_NAME").want(http.StatusNotFound)
}

func checkHead(_ *testing.T, c *client) {
	art := regtest.NewArtifact("application/vnd.example", nil, []byte("layer"))
	c.push(repo, art, "v1")
	for _, ref := range []string{"v1", string(art.Descriptor.Digest)} {
		c.do(http.MethodHead, "/v2/"+repo+"/manifests/"+ref, nil).want(http.StatusOK).
			wantHeader("Content-Length", strconv.Itoa(len(art.Manifest))).wantHeader("Content-Type", ocispec.MediaTypeImageManifest).
			wantHeader("Docker-Content-Digest", string(art.Descriptor.Digest))
	}
	d := digest.FromString("layer")
	c.do(http.MethodHead, "/v2/"+repo+"/blobs/"+string(d), nil).want(http.StatusOK).
		wantHeader("Content-Length", "5").wantHeader("Docker-Content-Digest", string(d))
	for _, path := range []string{"/manifests/none", "/manifests/" + string(digest.FromString("x")), "/blobs/" + string(digest.FromString("x"))} {
		if a := c.do(http.MethodHead, "/v2/"+repo+path, nil).want(http.StatusNotFound); len(a.body) > 0 {
			c.t.Errorf("HEAD %s: answered with a body", path)
		}
	}
}

// start begins an upload and returns where it goes on.
func (c *client) start() string {
	c.t.Helper()
	return c.do(http.MethodPost, "/v2/"+repo+"/blobs/uploads/", nil).want(http.StatusAccepted).location()
}

// finished checks what the specification says about the end of an upload.
func (c *client) finished(a *answer, b []byte, d digest.Digest) {
	c.t.Helper()
	a.want(http.StatusCreated).wantHeader("Docker-Content-Digest", string(d))
	c.get(a.location()).want(http.StatusOK).wantBody(b)
	c.get("/v2/" + repo + "/blobs/" + string(d)).want(http.StatusOK).wantBody(b)
}

func checkPostPut(_ *testing.T, c *client) {
	b := regtest.Random(3, 10_000)
	d := digest.FromBytes(b)
	loc := c.start()
	c.finished(c.do(http.MethodPut, withQuery(loc, "digest", string(d)), bytes.NewReader(b), "Content-Type", "application/octet-stream"), b, d)
	c.get(loc).want(http.StatusNotFound).wantCode("BLOB_UPLOAD_UNKNOWN")
	// The path may have no slash at its end.
	loc = c.do(http.MethodPost, "/v2/"+repo+"/blobs/uploads", nil).want(http.StatusAccepted).location()
	c.do(http.MethodPut, loc, bytes.NewReader(b)).want(http.StatusBadRequest).wantCode("DIGEST_INVALID")
	c.do(http.MethodPut, withQuery(loc, "digest", "sha256:short"), bytes.NewReader(b)).want(http.StatusBadRequest).wantCode("DIGEST_INVALID")
}

func checkSinglePost(_ *testing.T, c *client) {
	for _, b := range [][]byte{{}, []byte("{}"), regtest.Random(4, 10_000)} {
		d := digest.FromBytes(b)
		c.finished(c.do(http.MethodPost, "/v2/"+repo+"/blobs/uploads/?digest="+string(d), bytes.NewReader(b), "Content-Type", "application/octet-stream"), b, d)
	}
	c.do(http.MethodPost, "/v2/"+repo+"/blobs/uploads/?digest=sha256:short", strings.NewReader("x")).want(http.StatusBadRequest).wantCode("DIGEST_INVALID")
}

func contentRange(first, n int) string { return fmt.Sprintf("%d-%d", first, first+n-1) }

func checkChunks(_ *testing.T, c *client) {
	b := regtest.Random(5, 3000)
	d := digest.FromBytes(b)
	for _, last := range []int{0, 1000} { // with an empty PUT at the end, or one with the last chunk
		loc := c.start()
		at := 0
		for at < len(b)-last {
			a := c.do(http.MethodPatch, loc, bytes.NewReader(b[at:at+1000]), "Content-Range", contentRange(at, 1000), "Content-Type", "application/octet-stream").want(http.StatusAccepted)
			at += 1000
			a.wantHeader("Range", fmt.Sprintf("0-%d", at-1))
			loc = a.location()
		}
		var header []string
		if last > 0 {
			header = []string{"Content-Range", contentRange(at, last)}
		}
		c.finished(c.do(http.MethodPut, withQuery(loc, "digest", string(d)), bytes.NewReader(b[at:]), header...), b, d)
	}
	loc := c.start()
	loc = c.do(http.MethodPatch, loc, bytes.NewReader(b[:10]), "Content-Range", "bytes 0-9/3000").want(http.StatusAccepted).wantHeader("Range", "0-9").location()
	c.do(http.MethodPatch, loc, bytes.NewReader(b[:10]), "Content-Range", "10-20").want(http.StatusBadRequest).wantCode("SIZE_INVALID")
	c.do(http.MethodPatch, "/v2/"+repo+"/blobs/uploads/unknown", bytes.NewReader(b)).want(http.StatusNotFound).wantCode("BLOB_UPLOAD_UNKNOWN")
	c.do(http.MethodPut, "/v2/"+repo+"/blobs/uploads/unknown?digest="+string(d), bytes.NewReader(b)).want(http.StatusNotFound).wantCode("BLOB_UPLOAD_UNKNOWN")
}

func checkOutOfOrder(_ *testing.T, c *client) {
	b := regtest.Random(6, 3000)
	d := digest.FromBytes(b)
	// Clients go on with the latest Location, which may be another one.
	loc := c.start()
	wrong := func(method, query string, at, size int) {
		c.t.Helper()
		a := c.do(method, loc+query, bytes.NewReader(b[at:at+1000]), "Content-Range", contentRange(at, 1000)).want(http.StatusRequestedRangeNotSatisfiable)
		want := "0-" + strconv.Itoa(max(size-1, 0))
		loc = a.wantHeader("Range", want).location()
		loc = c.get(loc).want(http.StatusNoContent).wantHeader("Range", want).location()
	}
	right := func(at int) {
		c.t.Helper()
		loc = c.do(http.MethodPatch, loc, bytes.NewReader(b[at:at+1000]), "Content-Range", contentRange(at, 1000)).want(http.StatusAccepted).location()
	}
	wrong(http.MethodPatch, "", 1000, 0)
	right(0)
	wrong(http.MethodPatch, "", 0, 1000)
	wrong(http.MethodPatch, "", 2000, 1000)
	wrong(http.MethodPut, "?digest="+url.QueryEscape(string(d)), 2000, 1000)
	for _, s := range []string{"x", "1000", "1999-1000", "-5", "1000-99999999999999999999"} {
		c.do(http.MethodPatch, loc, bytes.NewReader(b[1000:2000]), "Content-Range", s).want(http.StatusRequestedRangeNotSatisfiable)
	}
	// What was refused left no trace.
	right(1000)
	c.finished(c.do(http.MethodPut, withQuery(loc, "digest", string(d)), bytes.NewReader(b[2000:]), "Content-Range", "2000-2999"), b, d)
}

func checkStreamed(_ *testing.T, c *client) {
	b := regtest.Random(7, 100_000)
	d := digest.FromBytes(b)
	loc := c.start()
	// A reader of unknown size makes the client use chunked encoding.
	a := c.do(http.MethodPatch, loc, io.MultiReader(bytes.NewReader(b)), "Content-Type", "application/octet-stream").want(http.StatusAccepted).wantHeader("Range", "0-99999")
	c.finished(c.do(http.MethodPut, withQuery(a.location(), "digest", string(d)), nil), b, d)
	// And all of it in the PUT.
	c.finished(c.do(http.MethodPut, withQuery(c.start(), "digest", string(d)), io.MultiReader(bytes.NewReader(b))), b, d)
}

func checkStatus(_ *testing.T, c *client) {
	loc := c.start()
	c.get(loc).want(http.StatusNoContent).wantHeader("Range", "0-0")
	a := c.do(http.MethodPatch, loc, strings.NewReader("hello")).want(http.StatusAccepted)
	c.get(a.location()).want(http.StatusNoContent).wantHeader("Range", "0-4")
	c.get(strings.Replace(loc, repo, "other/repository", 1)).want(http.StatusNotFound).wantCode("BLOB_UPLOAD_UNKNOWN")
}

func checkCancel(_ *testing.T, c *client) {
	loc := c.do(http.MethodPatch, c.start(), strings.NewReader("hello")).want(http.StatusAccepted).location()
	c.do(http.MethodDelete, loc, nil).want(http.StatusNoContent)
	c.do(http.MethodDelete, loc, nil).want(http.StatusNotFound).wantCode("BLOB_UPLOAD_UNKNOWN")
	c.do(http.MethodPatch, loc, strings.NewReader("hello")).want(http.StatusNotFound)
}

func checkWrongDigest(_ *testing.T, c *client) {
	b := regtest.Random(8, 3000)
	for _, d := range []digest.Digest{digest.FromString("other"), digest.SHA512.FromString("other")} {
		put := func(loc string, body []byte) {
			c.t.Helper()
			c.do(http.MethodPut, withQuery(loc, "digest", string(d)), bytes.NewReader(body)).want(http.StatusBadRequest).wantCode("DIGEST_INVALID")
		}
		c.do(http.MethodPost, "/v2/"+repo+"/blobs/uploads/?digest="+string(d), bytes.NewReader(b)).want(http.StatusBadRequest).wantCode("DIGEST_INVALID")
		put(c.start(), b)
		loc := c.start()
		loc = c.do(http.MethodPatch, loc, bytes.NewReader(b[:1000]), "Content-Range", "0-999").want(http.StatusAccepted).location()
		put(loc, b[1000:])
		loc = c.do(http.MethodPatch, c.start(), bytes.NewReader(b)).want(http.StatusAccepted).location()
		put(loc, nil)
		c.get("/v2/" + repo + "/blobs/" + string(d)).want(http.StatusNotFound)
		c.do(http.MethodPut, "/v2/"+repo+"/manifests/"+string(d), strings.NewReader("{}")).want(http.StatusBadRequest).wantCode("DIGEST_INVALID")
	}
}

func checkMount(_ *testing.T, c *client) {
	b := regtest.Random(9, 1000)
	d := c.pushBlob("from/here", b)
	mount := func(q string) *answer {
		c.t.Helper()
		return c.do(http.MethodPost, "/v2/"+repo+"/blobs/uploads/?"+q, nil)
	}
	c.finished(mount("mount="+string(d)+"&from=from/here"), b, d)
	c.do(http.MethodDelete, "/v2/"+repo+"/blobs/"+string(d), nil).want(http.StatusAccepted)
	if a := mount("mount=" + string(d)); a.StatusCode != http.StatusAccepted { // from any repository, which not every storage can tell
		c.finished(a, b, d)
		c.do(http.MethodDelete, "/v2/"+repo+"/blobs/"+string(d), nil).want(http.StatusAccepted)
	}
	unknown := string(digest.FromString("x"))
	for _, q := range []string{"mount=" + unknown + "&from=from/here", "mount=" + string(d) + "&from=no/where", "mount=" + string(d) + "&from=NOT//VALID", "mount=" + unknown} {
		loc := mount(q).want(http.StatusAccepted).location() // and the client uploads
		c.finished(c.do(http.MethodPut, withQuery(loc, "digest", string(d)), bytes.NewReader(b)), b, d)
	}
	mount("mount=nonsense&from=from/here").want(http.StatusBadRequest).wantCode("DIGEST_INVALID")
}

func checkPushManifest(_ *testing.T, c *client) {
	art := regtest.NewArtifact("application/vnd.example", nil, []byte("layer"))
	for _, b := range art.Blobs {
		c.pushBlob(repo, b)
	}
	for _, ref := range []string{"v1", string(art.Descriptor.Digest), "v1"} {
		a := c.pushManifest(repo, ref, art).want(http.StatusCreated).wantHeader("Docker-Content-Digest", string(art.Descriptor.Digest)).wantHeader("OCI-Subject", "")
		c.get(a.location()).want(http.StatusOK).wantBody(art.Manifest)
	}
	// Without a Content-Type, the manifest says it; parameters do not matter.
	c.do(http.MethodPut, "/v2/"+repo+"/manifests/v1", bytes.NewReader(art.Manifest)).want(http.StatusCreated)
	c.do(http.MethodPut, "/v2/"+repo+"/manifests/v1", bytes.NewReader(art.Manifest), "Content-Type", ocispec.MediaTypeImageManifest+"; charset=utf-8").want(http.StatusCreated)
	// No layers; fields that this server does not know; an index, also of nothing and of indexes.
	c.push(repo, regtest.NewArtifact("application/vnd.example", nil), "no-layers")
	custom := &regtest.Artifact{Manifest: bytes.Replace(art.Manifest, []byte("{"), []byte(`{"org.example.unknown":[1,{"a":null}],`), 1)}
	custom.Descriptor = regtest.Describe(ocispec.MediaTypeImageManifest, custom.Manifest)
	c.push(repo, custom, "custom")
	c.get("/v2/" + repo + "/manifests/custom").want(http.StatusOK).wantBody(custom.Manifest)
	index := regtest.NewIndex("", nil, art.Descriptor)
	c.push(repo, index, "index")
	c.push(repo, regtest.NewIndex("", nil, index.Descriptor), "index-of-index")
	c.push(repo, regtest.NewIndex("", nil), "index-of-nothing")
	// Layers that are fetched from elsewhere need not be here.
	foreign := ocispec.Descriptor{MediaType: "application/vnd.oci.image.layer.nondistributable.v1.tar+gzip", Digest: digest.FromString("elsewhere"), Size: 5, URLs: []string{"https://store.example.com/blob"}}
	nd := &regtest.Artifact{Manifest: regtest.Marshal(map[string]any{"schemaVersion": 2, "mediaType": ocispec.MediaTypeImageManifest,
		"config": regtest.Describe("application/vnd.oci.image.config.v1+json", []byte("{}")), "layers": []ocispec.Descriptor{foreign}})}
	nd.Descriptor = regtest.Describe(ocispec.MediaTypeImageManifest, nd.Manifest)
	c.push(repo, nd, "non-distributable")
	// Docker's manifests, as its clients push them.
	docker := &regtest.Artifact{Manifest: regtest.Marshal(map[string]any{"schemaVersion": 2, "mediaType": "application/vnd.docker.distribution.manifest.v2+json",
		"config": regtest.Describe("application/vnd.docker.container.image.v1+json", []byte("{}")), "layers": []ocispec.Descriptor{}})}
	docker.Descriptor = regtest.Describe("application/vnd.docker.distribution.manifest.v2+json", docker.Manifest)
	c.push(repo, docker, "docker")
	c.get("/v2/"+repo+"/manifests/docker").want(http.StatusOK).wantHeader("Content-Type", docker.Descriptor.MediaType)
	// Nearly as large as allowed.
	large := regtest.NewArtifact(strings.Repeat("x", 2_000_000), nil)
	c.push(repo, large, "large")
	c.get("/v2/" + repo + "/manifests/large").want(http.StatusOK).wantBody(large.Manifest)
}

func checkPushManifestRefused(_ *testing.T, c *client) {
	empty := regtest.Describe("application/vnd.oci.empty.v1+json", []byte("{}"))
	c.pushBlob(repo, []byte("{}"))
	missing := regtest.Describe("application/vnd.example", []byte("not pushed"))
	lie := empty
	lie.Size = 3
	manifest := func(change func(m map[string]any)) []byte {
		m := map[string]any{"schemaVersion": 2, "mediaType": ocispec.MediaTypeImageManifest, "config": empty, "layers": []any{empty}}
		change(m)
		return regtest.Marshal(m)
	}
	many := make([]ocispec.Descriptor, regstore.MaxReferences+1)
	for i := range many {
		many[i] = empty
	}
	for name, test := range map[string]struct {
		body   []byte
		status int
		code   string
	}{
		"not JSON":                {[]byte("blablabla"), http.StatusBadRequest, "MANIFEST_INVALID"},
		"nothing":                 {nil, http.StatusBadRequest, "MANIFEST_INVALID"},
		"an array":                {[]byte("[]"), http.StatusBadRequest, "MANIFEST_INVALID"},
		"something after the end": {append(manifest(func(map[string]any) {}), "{}"...), http.StatusBadRequest, "MANIFEST_INVALID"},
		"a truncated document":    {manifest(func(map[string]any) {})[:100], http.StatusBadRequest, "MANIFEST_INVALID"},
		"no schemaVersion":        {manifest(func(m map[string]any) { delete(m, "schemaVersion") }), http.StatusBadRequest, "MANIFEST_INVALID"},
		"another media type":      {manifest(func(m map[string]any) { m["mediaType"] = ocispec.MediaTypeImageIndex }), http.StatusBadRequest, "MANIFEST_INVALID"},
		"no config":               {manifest(func(m map[string]any) { delete(m, "config") }), http.StatusBadRequest, "MANIFEST_INVALID"},
		"manifest and index":      {manifest(func(m map[string]any) { m["manifests"] = []any{} }), http.StatusBadRequest, "MANIFEST_INVALID"},
		"a field twice":           {bytes.Replace(manifest(func(map[string]any) {}), []byte("{"), []byte(`{"config":{},`), 1), http.StatusBadRequest, "MANIFEST_INVALID"},
		"a field in another case": {manifest(func(m map[string]any) { m["Config"] = missing }), http.StatusBadRequest, "MANIFEST_INVALID"},
		"an invalid digest":       {manifest(func(m map[string]any) { m["layers"] = []any{map[string]any{"digest": "sha256:x"}} }), http.StatusBadRequest, "MANIFEST_INVALID"},
		"an unknown algorithm": {manifest(func(m map[string]any) {
			m["layers"] = []any{map[string]any{"digest": "md5:" + strings.Repeat("0", 32)}}
		}), http.StatusBadRequest, "MANIFEST_INVALID"},
		"a negative size":         {manifest(func(m map[string]any) { m["layers"] = []any{map[string]any{"digest": empty.Digest, "size": -1}} }), http.StatusBadRequest, "MANIFEST_INVALID"},
		"an invalid subject":      {manifest(func(m map[string]any) { m["subject"] = map[string]any{"digest": "x"} }), http.StatusBadRequest, "MANIFEST_INVALID"},
		"too many layers":         {manifest(func(m map[string]any) { m["layers"] = many }), http.StatusBadRequest, "MANIFEST_INVALID"},
		"a wrong size":            {manifest(func(m map[string]any) { m["layers"] = []any{lie} }), http.StatusBadRequest, "SIZE_INVALID"},
		"a layer that is missing": {manifest(func(m map[string]any) { m["layers"] = []any{missing} }), http.StatusNotFound, "MANIFEST_BLOB_UNKNOWN"},
		"too large":               {manifest(func(m map[string]any) { m["artifactType"] = strings.Repeat("x", 4<<20) }), http.StatusRequestEntityTooLarge, "SIZE_INVALID"},
	} {
		for _, body := range []io.Reader{bytes.NewReader(test.body), io.MultiReader(bytes.NewReader(test.body))} { // of known and unknown length
			a := c.do(http.MethodPut, "/v2/"+repo+"/manifests/refused", body, "Content-Type", ocispec.MediaTypeImageManifest)
			if a.StatusCode != test.status || a.errors()[0].Code != test.code {
				c.t.Errorf("%s: got %s %s, want %d %s", name, a.Status, a.body, test.status, test.code)
			}
		}
	}
	for _, mediaType := range []string{"application/json", "text/html", "a/b/c", "application/vnd.docker.distribution.manifest.v1+json"} {
		c.do(http.MethodPut, "/v2/"+repo+"/manifests/refused", bytes.NewReader(manifest(func(m map[string]any) { delete(m, "mediaType") })), "Content-Type", mediaType).
			want(http.StatusBadRequest).wantCode("MANIFEST_INVALID")
	}
	a := c.do(http.MethodPut, "/v2/"+repo+"/manifests/refused", bytes.NewReader(regtest.NewIndex("", nil, missing).Manifest)).want(http.StatusNotFound).wantCode("MANIFEST_BLOB_UNKNOWN")
	if d := a.errors()[0].Detail; !strings.Contains(string(d), string(missing.Digest)) {
		c.t.Errorf("detail %s does not say what is missing", d)
	}
	c.do(http.MethodPut, "/v2/"+repo+"/manifests/-refused", strings.NewReader("{}")).want(http.StatusBadRequest).wantCode("MANIFEST_INVALID")
	c.do(http.MethodPut, "/v2/"+repo+"/manifests/sha256:baddigeststring", strings.NewReader("{}")).want(http.StatusBadRequest).wantCode("DIGEST_INVALID")
	c.get("/v2/" + repo + "/manifests/refused").want(http.StatusNotFound)
	if a := c.get("/v2/" + repo + "/tags/list"); a.StatusCode != http.StatusNotFound {
		if got, _ := c.tags(""); len(got) != 0 {
			c.t.Errorf("tags of what was refused: %v", got)
		}
	}
}

func checkTagParameters(_ *testing.T, c *client) {
	art := regtest.NewArtifact("application/vnd.example", nil)
	c.pushBlob(repo, []byte("{}"))
	a := c.pushManifest(repo, string(art.Descriptor.Digest)+"?tag=a&tag=b", art).want(http.StatusCreated)
	if got := a.Header.Values("OCI-Tag"); !slices.Equal(got, []string{"a", "b"}) {
		c.t.Errorf("OCI-Tag: got %v, want [a b]", got)
	}
	c.get("/v2/" + repo + "/manifests/b").want(http.StatusOK)
	c.pushManifest(repo, string(art.Descriptor.Digest)+"?tag=-", art).want(http.StatusBadRequest)
	c.pushManifest(repo, string(art.Descriptor.Digest)+"?"+strings.Repeat("tag=x&", 51), art).want(http.StatusBadRequest)
	a = c.pushManifest(repo, "c?tag=d", art).want(http.StatusCreated) // by tag there is one tag
	if got := a.Header.Values("OCI-Tag"); got != nil {
		c.t.Errorf("OCI-Tag: got %v, want none", got)
	}
	c.get("/v2/" + repo + "/manifests/d").want(http.StatusNotFound)
}

func checkSubject(_ *testing.T, c *client) {
	subject := regtest.Describe(ocispec.MediaTypeImageManifest, []byte("not pushed"))
	sig := regtest.NewArtifact("application/vnd.example.signature", &subject)
	c.pushBlob(repo, []byte("{}"))
	c.pushManifest(repo, string(sig.Descriptor.Digest), sig).want(http.StatusCreated).wantHeader("OCI-Subject", string(subject.Digest))
	c.pushManifest(repo, "sig", sig).want(http.StatusCreated).wantHeader("OCI-Subject", string(subject.Digest))
	att := regtest.NewIndex("application/vnd.example.attestation", &subject)
	c.pushManifest(repo, string(att.Descriptor.Digest), att).want(http.StatusCreated).wantHeader("OCI-Subject", string(subject.Digest))
}

func (c *client) tags(query string) ([]string, *answer) {
	c.t.Helper()
	a := c.get("/v2/"+repo+"/tags/list"+query).want(http.StatusOK).wantHeader("Content-Type", "application/json")
	var v struct {
		Name string
		Tags []string
	}
	if err := json.Unmarshal(a.body, &v); err != nil || v.Name != repo || v.Tags == nil {
		c.t.Fatalf("list of tags is %s (%v)", a.body, err)
	}
	return v.Tags, a
}

func checkTags(_ *testing.T, c *client) {
	c.get("/v2/" + repo + "/tags/list").want(http.StatusNotFound).wantCode("NAME_UNKNOWN")
	art := regtest.NewArtifact("application/vnd.example", nil)
	all := []string{"Z", "a", "b", "test0", "test1", "v1"}
	c.push(repo, art, all...)
	for query, want := range map[string][]string{
		"":             all,
		"?n=2":         all[:2],
		"?n=6":         all,
		"?n=0":         {},
		"?last=b":      all[3:],
		"?n=2&last=b":  all[3:5],
		"?last=nobody": all[3:],
		"?last=zzz":    {},
		"?n=2&last=v0": {"v1"},
		"?n=1&last=v1": {},
	} {
		if got, _ := c.tags(query); !slices.Equal(got, want) {
			c.t.Errorf("tags %s: got %v, want %v", query, got, want)
		}
	}
	// Following the links (RFC 8288) gives all of them, once.
	var got []string
	query := "?n=4"
	for range 10 {
		page, a := c.tags(query)
		got = append(got, page...)
		link := a.Header.Get("Link")
		if link == "" {
			break
		}
		target, ok := strings.CutSuffix(link, `>; rel="next"`)
		if !ok {
			c.t.Fatalf("Link: %s", link)
		}
		_, q, _ := strings.Cut(target, "?")
		query = "?" + q
	}
	if !slices.Equal(got, all) {
		c.t.Errorf("pages of tags: got %v, want %v", got, all)
	}
	c.get("/v2/" + repo + "/tags/list?n=-1").want(http.StatusBadRequest)
	c.get("/v2/" + repo + "/tags/list?n=x").want(http.StatusBadRequest)
}

func (c *client) referrers(subject digest.Digest, query string) ([]ocispec.Descriptor, *answer) {
	c.t.Helper()
	a := c.get("/v2/"+repo+"/referrers/"+string(subject)+query).want(http.StatusOK).wantHeader("Content-Type", ocispec.MediaTypeImageIndex)
	var index ocispec.Index
	if err := json.Unmarshal(a.body, &index); err != nil || index.SchemaVersion != 2 || index.MediaType != ocispec.MediaTypeImageIndex || index.Manifests == nil {
		c.t.Fatalf("referrers are %s (%v)", a.body, err)
	}
	return index.Manifests, a
}

func checkReferrers(_ *testing.T, c *client) {
	art := regtest.NewArtifact("application/vnd.example", nil)
	if got, _ := c.referrers(art.Descriptor.Digest, ""); len(got) != 0 { // of a repository that does not exist
		c.t.Errorf("got %v, want none", got)
	}
	c.push(repo, art, "v1")
	sig := regtest.NewArtifact("application/vnd.example.signature", &art.Descriptor)
	att := regtest.NewIndex("application/vnd.example.attestation", &art.Descriptor)
	// Without an artifact type, that of the config counts.
	old := &regtest.Artifact{Manifest: regtest.Marshal(map[string]any{"schemaVersion": 2, "mediaType": ocispec.MediaTypeImageManifest,
		"config": regtest.Describe("application/vnd.example.config", []byte("{}")), "layers": []any{}, "subject": art.Descriptor})}
	old.Descriptor = regtest.Describe(ocispec.MediaTypeImageManifest, old.Manifest)
	for _, a := range []*regtest.Artifact{sig, att, old} {
		c.push(repo, a)
	}
	got, a := c.referrers(art.Descriptor.Digest, "")
	if len(got) != 3 {
		c.t.Fatalf("got %v, want 3", got)
	}
	a.wantHeader("OCI-Filters-Applied", "")
	types := map[digest.Digest]string{}
	for _, d := range got {
		types[d.Digest] = d.ArtifactType
		if d.Size == 0 || d.MediaType == "" {
			c.t.Errorf("descriptor %v", d)
		}
	}
	for _, want := range []struct {
		art *regtest.Artifact
		typ string
	}{{sig, "application/vnd.example.signature"}, {att, "application/vnd.example.attestation"}, {old, "application/vnd.example.config"}} {
		if types[want.art.Descriptor.Digest] != want.typ {
			c.t.Errorf("artifact type: got %q, want %q", types[want.art.Descriptor.Digest], want.typ)
		}
		got, a := c.referrers(art.Descriptor.Digest, "?artifactType="+url.QueryEscape(want.typ))
		if len(got) != 1 || got[0].Digest != want.art.Descriptor.Digest {
			c.t.Errorf("filtered: got %v", got)
		}
		a.wantHeader("OCI-Filters-Applied", "artifactType")
	}
	i := slices.IndexFunc(got, func(d ocispec.Descriptor) bool { return d.Digest == sig.Descriptor.Digest })
	if got[i].Annotations["org.example.kind"] != "application/vnd.example.signature" {
		c.t.Errorf("annotations: got %v", got[i].Annotations)
	}
	got, a = c.referrers(art.Descriptor.Digest, "?artifactType=none")
	if len(got) != 0 {
		c.t.Errorf("filtered: got %v, want none", got)
	}
	a.wantHeader("OCI-Filters-Applied", "artifactType")
	c.get("/v2/" + repo + "/referrers/sha256:x").want(http.StatusBadRequest).wantCode("DIGEST_INVALID")
	c.get("/v2/" + repo + "/referrers/" + string(art.Descriptor.Digest) + "?last=x").want(http.StatusBadRequest)
	c.do(http.MethodDelete, "/v2/"+repo+"/manifests/"+string(sig.Descriptor.Digest), nil).want(http.StatusAccepted)
	if got, _ := c.referrers(art.Descriptor.Digest, ""); len(got) != 2 {
		c.t.Errorf("after a deletion: got %v, want 2", got)
	}
}

// Referrers whose annotations are together larger than a client reads come
// in pages.
func checkReferrerPages(_ *testing.T, c *client) {
	subject := regtest.Describe(ocispec.MediaTypeImageManifest, []byte("x"))
	c.pushBlob(repo, []byte("{}"))
	want := map[digest.Digest]bool{}
	for i := range 5 {
		a := regtest.NewArtifact(fmt.Sprintf("t%d", i)+strings.Repeat("x", 600_000), &subject) // twice in the descriptor
		c.pushManifest(repo, string(a.Descriptor.Digest), a).want(http.StatusCreated)
		want[a.Descriptor.Digest] = true
	}
	query, pages := "", 0
	for range 10 {
		list, a := c.referrers(subject.Digest, query)
		if len(a.body) > 4<<20 {
			c.t.Errorf("a page has %d bytes", len(a.body))
		}
		for _, d := range list {
			if !want[d.Digest] {
				c.t.Errorf("referrer %s comes twice", d.Digest)
			}
			delete(want, d.Digest)
		}
		pages++
		target, more := strings.CutSuffix(a.Header.Get("Link"), `>; rel="next"`)
		if !more {
			break
		}
		_, q, _ := strings.Cut(target, "?")
		query = "?" + q
	}
	if len(want) > 0 || pages != 2 {
		c.t.Errorf("%d referrers did not come in %d pages", len(want), pages)
	}
}

func checkDeleteTag(_ *testing.T, c *client) {
	art := regtest.NewArtifact("application/vnd.example", nil)
	c.push(repo, art, "a", "b")
	c.do(http.MethodDelete, "/v2/"+repo+"/manifests/a", nil).want(http.StatusAccepted)
	c.get("/v2/" + repo + "/manifests/a").want(http.StatusNotFound)
	c.do(http.MethodDelete, "/v2/"+repo+"/manifests/a", nil).want(http.StatusNotFound).wantCode("MANIFEST_UNKNOWN")
	c.get("/v2/" + repo + "/manifests/b").want(http.StatusOK)
	if got, _ := c.tags(""); !slices.Equal(got, []string{"b"}) {
		c.t.Errorf("tags: got %v, want [b]", got)
	}
}

func checkDeleteManifest(_ *testing.T, c *client) {
	art := regtest.NewArtifact("application/vnd.example", nil)
	c.push(repo, art, "a", "b")
	c.do(http.MethodDelete, "/v2/"+repo+"/manifests/"+string(art.Descriptor.Digest), nil).want(http.StatusAccepted)
	for _, ref := range []string{"a", "b", string(art.Descriptor.Digest)} {
		c.get("/v2/" + repo + "/manifests/" + ref).want(http.StatusNotFound).wantCode("MANIFEST_UNKNOWN")
		c.do(http.MethodHead, "/v2/"+repo+"/manifests/"+ref, nil).want(http.StatusNotFound)
	}
	c.do(http.MethodDelete, "/v2/"+repo+"/manifests/"+string(art.Descriptor.Digest), nil).want(http.StatusNotFound)
	if got, _ := c.tags(""); len(got) != 0 {
		c.t.Errorf("tags: got %v, want none", got)
	}
}

func checkDeleteBlob(_ *testing.T, c *client) {
	b := []byte("blob")
	d := c.pushBlob(repo, b)
	path := "/v2/" + repo + "/blobs/" + string(d)
	c.do(http.MethodDelete, path, nil).want(http.StatusAccepted)
	c.get(path).want(http.StatusNotFound).wantCode("BLOB_UNKNOWN")
	c.do(http.MethodHead, path, nil).want(http.StatusNotFound)
	c.do(http.MethodDelete, path, nil).want(http.StatusNotFound).wantCode("BLOB_UNKNOWN")
	c.pushBlob(repo, b)
	c.get(path).want(http.StatusOK).wantBody(b)
	// A blob that a manifest needs stays until the manifest is gone.
	art := regtest.NewArtifact("application/vnd.example", nil, b)
	c.push(repo, art, "v1")
	c.do(http.MethodDelete, path, nil).want(http.StatusMethodNotAllowed).wantCode("UNSUPPORTED")
	c.do(http.MethodDelete, "/v2/"+repo+"/manifests/"+string(art.Descriptor.Digest), nil).want(http.StatusAccepted)
	c.do(http.MethodDelete, path, nil).want(http.StatusAccepted)
}

func checkSHA512(t *testing.T, c *client) {
	b := regtest.Random(10, 5000)
	sum := sha512.Sum512(b)
	d := digest.NewDigestFromEncoded(digest.SHA512, hex.EncodeToString(sum[:]))
	c.finished(c.do(http.MethodPost, "/v2/"+repo+"/blobs/uploads/?digest="+string(d), bytes.NewReader(b)), b, d)
	c.do(http.MethodDelete, "/v2/"+repo+"/blobs/"+string(d), nil).want(http.StatusAccepted)
	loc := c.start()
	loc = c.do(http.MethodPatch, loc, bytes.NewReader(b[:2000]), "Content-Range", "0-1999").want(http.StatusAccepted).location()
	c.finished(c.do(http.MethodPut, withQuery(loc, "digest", string(d)), bytes.NewReader(b[2000:]), "Content-Range", "2000-4999"), b, d)
	c.get("/v2/" + repo + "/blobs/" + string(digest.FromBytes(b))).want(http.StatusNotFound)

	art := &regtest.Artifact{Manifest: regtest.Marshal(map[string]any{"schemaVersion": 2, "mediaType": ocispec.MediaTypeImageManifest,
		"config": ocispec.Descriptor{MediaType: "application/vnd.example", Digest: d, Size: int64(len(b))}, "layers": []any{}})}
	md := digest.SHA512.FromBytes(art.Manifest)
	c.pushManifest(repo, string(md)+"?tag=v1", art).want(http.StatusCreated).wantHeader("Docker-Content-Digest", string(md))
	c.get("/v2/"+repo+"/manifests/"+string(md)).want(http.StatusOK).wantBody(art.Manifest).wantHeader("Docker-Content-Digest", string(md))
	c.get("/v2/"+repo+"/manifests/v1").want(http.StatusOK).wantHeader("Docker-Content-Digest", string(md))
	sig := regtest.NewArtifact("application/vnd.example.signature", &ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: md, Size: 1})
	c.push(repo, sig)
	if got, _ := c.referrers(md, ""); len(got) != 1 {
		t.Errorf("referrers: got %v, want 1", got)
	}
}

func checkErrors(_ *testing.T, c *client) {
	for _, test := range []struct {
		method, path string
		status       int
		code         string
	}{
		{http.MethodGet, "/v2/" + repo, http.StatusNotFound, "UNSUPPORTED"},
		{http.MethodGet, "/v2/" + repo + "/", http.StatusNotFound, "UNSUPPORTED"},
		{http.MethodGet, "/v2/" + repo + "/tags", http.StatusNotFound, "UNSUPPORTED"},
		{http.MethodGet, "/v2/" + repo + "/unknown/v1", http.StatusNotFound, "UNSUPPORTED"},
		{http.MethodGet, "/v2x", http.StatusNotFound, "UNSUPPORTED"},
		{http.MethodGet, "/v1/", http.StatusNotFound, "UNSUPPORTED"},
		{http.MethodPost, "/v2/" + repo + "/manifests/v1", http.StatusMethodNotAllowed, "UNSUPPORTED"},
		{http.MethodPut, "/v2/" + repo + "/blobs/" + string(digest.FromString("x")), http.StatusMethodNotAllowed, "UNSUPPORTED"},
		{http.MethodGet, "/v2/" + repo + "/blobs/uploads/", http.StatusMethodNotAllowed, "UNSUPPORTED"},
		{http.MethodDelete, "/v2/" + repo + "/tags/list", http.StatusMethodNotAllowed, "UNSUPPORTED"},
		{http.MethodDelete, "/v2/" + repo + "/referrers/" + string(digest.FromString("x")), http.StatusMethodNotAllowed, "UNSUPPORTED"},
		{"BREW", "/v2/", http.StatusMethodNotAllowed, "UNSUPPORTED"},
		{http.MethodGet, "/v2/" + repo + "/blobs/nonsense", http.StatusBadRequest, "DIGEST_INVALID"},
		{http.MethodGet, "/v2/" + repo + "/manifests/sha256:baddigeststring", http.StatusBadRequest, "DIGEST_INVALID"},
		{http.MethodGet, "/v2/" + repo + "/blobs/md5:" + strings.Repeat("0", 32), http.StatusBadRequest, "DIGEST_INVALID"},
	} {
		c.do(test.method, test.path, nil).want(test.status).wantCode(test.code)
	}
}

func checkNames(_ *testing.T, c *client) {
	art := regtest.NewArtifact("application/vnd.example", nil)
	for _, name := range []string{"a", "a/b", "0", "a.b_c__d-e---f/g", "manifests", "blobs/uploads", "tags/list", "x/manifests/y", "x/blobs/uploads/y", strings.Repeat("a/", 127) + "a"} {
		c.push(name, art, "v1")
		c.get("/v2/" + name + "/manifests/v1").want(http.StatusOK).wantBody(art.Manifest)
		c.get("/v2/" + name + "/tags/list").want(http.StatusOK)
	}
	for _, name := range []string{"A", "a//b", "/a", "a/", "-a", "a-", "a..b", "_a", "a/_b", "a/../b", "..", "a/.", "a%2F..%2Fb", "a%5Cb", "a%00b", "a b", "a:b", "ä", strings.Repeat("a/", 128) + "a"} {
		name = strings.ReplaceAll(strings.ReplaceAll(name, " ", "%20"), "ä", "%C3%A4")
		for _, path := range []string{"/manifests/v1", "/tags/list", "/blobs/" + string(digest.FromString("x"))} {
			a := c.get("/v2/" + name + path)
			if a.StatusCode != http.StatusBadRequest || a.errors()[0].Code != "NAME_INVALID" {
				c.t.Errorf("GET %s%s: got %s %s", name, path, a.Status, a.body)
			}
		}
		c.do(http.MethodPost, "/v2/"+name+"/blobs/uploads/", nil).want(http.StatusBadRequest).wantCode("NAME_INVALID")
	}
}

func checkCatalog(_ *testing.T, c *client) {
	art := regtest.NewArtifact("application/vnd.example", nil)
	for _, name := range []string{"b", "a", "c/d"} {
		c.push(name, art, "v1")
	}
	c.get("/v2/_catalog").want(http.StatusOK).wantBody([]byte(`{"repositories":["a","b","c/d"]}`))
	c.get("/v2/_catalog?n=2").want(http.StatusOK).wantBody([]byte(`{"repositories":["a","b"]}`)).wantHeader("Link", `</v2/_catalog?last=b&n=2>; rel="next"`)
	c.get("/v2/_catalog?n=2&last=b").want(http.StatusOK).wantBody([]byte(`{"repositories":["c/d"]}`)).wantHeader("Link", "")
}
