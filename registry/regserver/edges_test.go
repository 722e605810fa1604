package regserver_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"mime/multipart"
	"net/http"
	"net/url"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/krmcat/krmcat/registry/regmem"
	"github.com/krmcat/krmcat/registry/regserver"
	"github.com/krmcat/krmcat/registry/regstore"
	"github.com/krmcat/krmcat/registry/regtest"
)

// edges are what no ordinary client does, and what the specification leaves
// to HTTP. They run beside [conformance], over every driver.
var edges = map[string]func(*testing.T, *client){
	"a chunk that is sent again":                checkRepeatedChunk,
	"chunks that are sent at the same time":     checkConcurrentChunks,
	"an upload after its end":                   checkEndedUpload,
	"an upload of another repository":           checkForeignUpload,
	"HEAD has the headers of GET":               checkHeadLikeGet,
	"conditions (RFC 9110 section 13)":          checkConditions,
	"odd ranges (RFC 9110 section 14)":          checkOddRanges,
	"manifests that readers would disagree on":  checkAmbiguousManifests,
	"a manifest that is nearly too large":       checkLargeManifest,
	"odd numbers and digests":                   checkOddParameters,
	"odd paths and methods":                     checkOddPaths,
	"Accept is not asked":                       checkAccept,
	"Location behind a proxy":                   checkLocation,
	"referrers stay without their subject":      checkLostSubject,
	"a manifest goes before the index it is in": checkDeleteChild,
}

func TestEdges(t *testing.T) {
	for driver, open := range drivers {
		for name, check := range edges {
			t.Run(driver+"/"+name, func(t *testing.T) {
				t.Parallel()
				check(t, newClient(t, open(t), nil))
			})
		}
	}
}

// A client that did not hear of its success sends a chunk again, to the
// location that it knows, and is told where the upload is.
func checkRepeatedChunk(_ *testing.T, c *client) {
	b := regtest.Random(20, 3000)
	d := digest.FromBytes(b)
	first := c.start()
	patch := func(loc string, at int) *answer {
		c.t.Helper()
		return c.do(http.MethodPatch, loc, bytes.NewReader(b[at:at+1000]), "Content-Range", contentRange(at, 1000))
	}
	second := patch(first, 0).want(http.StatusAccepted).location()
	for _, loc := range []string{first, second} {
		patch(loc, 0).want(http.StatusRequestedRangeNotSatisfiable).wantHeader("Range", "0-999")
		c.get(loc).want(http.StatusNoContent).wantHeader("Range", "0-999")
	}
	loc := c.get(first).want(http.StatusNoContent).location()
	loc = patch(loc, 1000).want(http.StatusAccepted).wantHeader("Range", "0-1999").location()
	patch(first, 1000).want(http.StatusRequestedRangeNotSatisfiable).wantHeader("Range", "0-1999")
	// Also with the last one in the closing request, whose parameter stays in
	// the URL that the client asks for the status.
	closing := withQuery(loc, "digest", string(d))
	c.do(http.MethodPut, closing, bytes.NewReader(b[1000:2000]), "Content-Range", contentRange(1000, 1000)).want(http.StatusRequestedRangeNotSatisfiable)
	loc = c.get(closing).want(http.StatusNoContent).wantHeader("Range", "0-1999").location()
	c.finished(c.do(http.MethodPut, withQuery(loc, "digest", string(d)), bytes.NewReader(b[2000:]), "Content-Range", contentRange(2000, 1000)), b, d)
}

// Of those who send the same part of an upload at once, one is heard.
func checkConcurrentChunks(_ *testing.T, c *client) {
	loc := c.start()
	const clients = 6
	accepted := make(chan *answer, clients)
	var wg sync.WaitGroup
	for i := range clients {
		wg.Go(func() {
			a := c.do(http.MethodPatch, loc, bytes.NewReader(bytes.Repeat([]byte{byte(i)}, 1000)), "Content-Range", "0-999")
			switch a.StatusCode {
			case http.StatusAccepted:
				accepted <- a
			case http.StatusRequestedRangeNotSatisfiable:
			default:
				c.t.Errorf("got %s %s, want 202 or 416", a.Status, a.body)
			}
		})
	}
	wg.Wait()
	close(accepted)
	var won []*answer
	for a := range accepted {
		won = append(won, a)
	}
	if len(won) != 1 {
		c.t.Fatalf("%d of %d clients sent the first chunk", len(won), clients)
	}
	for i := range clients {
		b := bytes.Repeat([]byte{byte(i)}, 1000)
		d := digest.FromBytes(b)
		a := c.do(http.MethodPut, withQuery(won[0].location(), "digest", string(d)), nil)
		if a.StatusCode == http.StatusCreated {
			c.finished(a, b, d)
			return
		}
		// A wrong digest ends the upload; which one was right shows the
		// content, which only the winner knows.
		loc = c.start()
		won[0] = c.do(http.MethodPatch, loc, bytes.NewReader(bytes.Repeat([]byte{byte(i + 1)}, 1000)), "Content-Range", "0-999").want(http.StatusAccepted)
	}
	c.t.Error("no client's content is what was stored")
}

func checkEndedUpload(_ *testing.T, c *client) {
	b := []byte("content")
	d := digest.FromBytes(b)
	for name, end := range map[string]func(loc string){
		"finished": func(loc string) {
			c.do(http.MethodPut, withQuery(loc, "digest", string(d)), bytes.NewReader(b)).want(http.StatusCreated)
		},
		"cancelled": func(loc string) { c.do(http.MethodDelete, loc, nil).want(http.StatusNoContent) },
	} {
		loc := c.start()
		end(loc)
		for _, a := range []*answer{
			c.do(http.MethodPatch, loc, strings.NewReader("more")),
			c.do(http.MethodPatch, loc, strings.NewReader("more"), "Content-Range", "7-10"),
			c.do(http.MethodPut, withQuery(loc, "digest", string(d)), bytes.NewReader(b)),
			c.get(loc),
			c.do(http.MethodDelete, loc, nil),
		} {
			if a.StatusCode != http.StatusNotFound || a.errors()[0].Code != "BLOB_UPLOAD_UNKNOWN" {
				c.t.Errorf("%s %s after it was %s: got %s %s", a.Request.Method, loc, name, a.Status, a.body)
			}
		}
	}
}

func checkForeignUpload(_ *testing.T, c *client) {
	b := []byte("content")
	d := digest.FromBytes(b)
	loc := c.do(http.MethodPatch, c.start(), bytes.NewReader(b)).want(http.StatusAccepted).location()
	foreign := strings.Replace(loc, repo, "another/repository", 1)
	c.get(foreign).want(http.StatusNotFound).wantCode("BLOB_UPLOAD_UNKNOWN")
	c.do(http.MethodPatch, foreign, strings.NewReader("more")).want(http.StatusNotFound).wantCode("BLOB_UPLOAD_UNKNOWN")
	c.do(http.MethodPut, withQuery(foreign, "digest", string(d)), nil).want(http.StatusNotFound).wantCode("BLOB_UPLOAD_UNKNOWN")
	c.do(http.MethodDelete, foreign, nil).want(http.StatusNotFound).wantCode("BLOB_UPLOAD_UNKNOWN")
	for _, id := range []string{"..", ".", "%2E%2E", "..%2F..%2Fx", "a%00b", "-", strings.Repeat("x", 4000), "%FF", "a%20b"} {
		if a := c.get("/v2/" + repo + "/blobs/uploads/" + id); a.StatusCode != http.StatusNotFound && a.StatusCode != http.StatusBadRequest {
			c.t.Errorf("upload %.20q: got %s", id, a.Status)
		}
	}
	c.finished(c.do(http.MethodPut, withQuery(loc, "digest", string(d)), nil), b, d) // which did not suffer
}

func checkHeadLikeGet(_ *testing.T, c *client) {
	art := regtest.NewArtifact("application/vnd.example", nil, []byte("layer"))
	c.push(repo, art, "v1")
	c.push(repo, regtest.NewArtifact("application/vnd.example.signature", &art.Descriptor))
	for _, path := range []string{
		"/v2/", "/v2/_catalog", "/v2/" + repo + "/tags/list", "/v2/" + repo + "/tags/list?n=1", "/v2/" + repo + "/manifests/v1",
		"/v2/" + repo + "/manifests/" + string(art.Descriptor.Digest), "/v2/" + repo + "/blobs/" + string(digest.FromString("layer")),
		"/v2/" + repo + "/referrers/" + string(art.Descriptor.Digest) + "?artifactType=x",
	} {
		get, head := c.get(path).want(http.StatusOK), c.do(http.MethodHead, path, nil).want(http.StatusOK)
		for _, h := range []http.Header{get.Header, head.Header} {
			h.Del("Date")
		}
		if !maps.EqualFunc(get.Header, head.Header, slices.Equal) {
			c.t.Errorf("%s: GET has %v, HEAD %v", path, get.Header, head.Header)
		}
		if get.Header.Get("Content-Length") == "" {
			c.t.Errorf("%s: no Content-Length", path)
		}
	}
}

func checkConditions(_ *testing.T, c *client) {
	art := regtest.NewArtifact("application/vnd.example", nil, []byte("layer"))
	c.push(repo, art, "v1")
	for path, d := range map[string]digest.Digest{"/manifests/v1": art.Descriptor.Digest, "/blobs/" + string(digest.FromString("layer")): digest.FromString("layer")} {
		for condition, status := range map[string]int{
			`"` + string(d) + `"`: http.StatusNotModified, `W/"` + string(d) + `"`: http.StatusNotModified, `"x" , "` + string(d) + `"`: http.StatusNotModified,
			"*": http.StatusNotModified, `"x"`: http.StatusOK, `"` + string(digest.FromString("x")) + `", W/"y"`: http.StatusOK,
		} {
			for _, method := range []string{http.MethodGet, http.MethodHead} {
				a := c.do(method, "/v2/"+repo+path, nil, "If-None-Match", condition)
				if a.StatusCode != status || a.Header.Get("Etag") != `"`+string(d)+`"` || a.Header.Get("Docker-Content-Digest") != string(d) {
					c.t.Errorf("%s %s with %s: got %s %v, want %d", method, path, condition, a.Status, a.Header, status)
				}
			}
		}
	}
}

func checkOddRanges(t *testing.T, c *client) {
	b := regtest.Random(21, 100)
	path := "/v2/" + repo + "/blobs/" + string(c.pushBlob(repo, b))
	for header, status := range map[string]int{
		"items=0-1": http.StatusOK, "lines=5-": http.StatusOK, "0-1": http.StatusOK, "bytes=": http.StatusOK,
		"Bytes=0-0": http.StatusPartialContent, "bytes= 0-0": http.StatusPartialContent, "bytes=99-": http.StatusPartialContent,
		"bytes=-0": http.StatusRequestedRangeNotSatisfiable, "bytes=-00": http.StatusRequestedRangeNotSatisfiable, "bytes=100-": http.StatusRequestedRangeNotSatisfiable,
		"bytes=x": http.StatusRequestedRangeNotSatisfiable, "bytes=1": http.StatusRequestedRangeNotSatisfiable, "bytes=--1": http.StatusRequestedRangeNotSatisfiable,
		"bytes=0-99999999999999999999": http.StatusRequestedRangeNotSatisfiable,
		// More than there is to send, many times over.
		"bytes=" + strings.Repeat("0-,", 1000) + "0-": http.StatusOK,
	} {
		a := c.get(path, "Range", header)
		if a.StatusCode != status {
			c.t.Errorf("Range: %.50s: got %s, want %d", header, a.Status, status)
		}
		if status == http.StatusRequestedRangeNotSatisfiable && a.Header.Get("Content-Range") != "bytes */100" && !strings.HasPrefix(string(a.body), "invalid") {
			c.t.Errorf("Range: %.50s: got %v %s", header, a.Header, a.body)
		}
		if status == http.StatusOK {
			a.wantBody(b)
		}
	}
	c.get(path, "Range", "bytes=0-9", "If-Range", `"x"`).want(http.StatusOK).wantBody(b)
	c.get(path, "Range", "bytes=0-9", "If-Range", c.get(path).Header.Get("Etag")).want(http.StatusPartialContent).wantBody(b[:10])

	a := c.get(path, "Range", "bytes=0-1,50-59,-1").want(http.StatusPartialContent)
	_, params, err := mime.ParseMediaType(a.Header.Get("Content-Type"))
	if err != nil {
		t.Fatal(err)
	}
	parts := multipart.NewReader(bytes.NewReader(a.body), params["boundary"])
	for _, want := range []struct {
		header string
		body   []byte
	}{{"bytes 0-1/100", b[:2]}, {"bytes 50-59/100", b[50:60]}, {"bytes 99-99/100", b[99:]}} {
		p, err := parts.NextPart()
		if err != nil {
			t.Fatal(err)
		}
		if got, _ := io.ReadAll(p); !bytes.Equal(got, want.body) || p.Header.Get("Content-Range") != want.header {
			t.Errorf("part %v: %d bytes, want %s", p.Header, len(got), want.header)
		}
	}
	if _, err := parts.NextPart(); !errors.Is(err, io.EOF) {
		t.Errorf("after the last part: %v", err)
	}
	// Of nothing there is no first byte; the whole of it is the answer.
	empty := "/v2/" + repo + "/blobs/" + string(c.pushBlob(repo, nil))
	if a := c.get(empty, "Range", "bytes=0-0"); a.StatusCode != http.StatusOK && a.StatusCode != http.StatusRequestedRangeNotSatisfiable {
		t.Errorf("first byte of an empty blob: %s", a.Status)
	}
}

// Two readers of one document must not see different content: what is checked
// here is what is pulled.
func checkAmbiguousManifests(_ *testing.T, c *client) {
	good := c.pushBlob(repo, []byte("good"))
	evil := c.pushBlob(repo, []byte("evil"))
	c.pushBlob(repo, []byte("{}"))
	desc := func(s string) string {
		return strings.NewReplacer("GOOD", string(good), "EVIL", string(evil)).Replace(`{"mediaType":"application/vnd.example","size":4,` + s + `}`)
	}
	layer := func(s string) string {
		return `{"schemaVersion":2,"mediaType":"` + ocispec.MediaTypeImageManifest + `","config":{"mediaType":"a/b","digest":"` + string(digest.FromString("{}")) + `","size":2},"layers":[` + s + `]}`
	}
	plain := layer(desc(`"digest":"GOOD"`))
	put := func(body string) *answer {
		return c.do(http.MethodPut, "/v2/"+repo+"/manifests/v1", strings.NewReader(body), "Content-Type", ocispec.MediaTypeImageManifest)
	}
	put(plain).want(http.StatusCreated)
	for name, body := range map[string]string{
		"a digest twice":                 layer(desc(`"digest":"EVIL","digest":"GOOD"`)),
		"a digest in two cases":          layer(desc(`"digest":"EVIL","Digest":"GOOD"`)),
		"a digest in another case":       layer(desc(`"DIGEST":"GOOD"`)),
		"a size twice":                   layer(desc(`"digest":"GOOD","size":4`)),
		"an annotation twice":            strings.Replace(plain, "{", `{"annotations":{"a":"1","a":"2"},`, 1),
		"an unknown field twice, inside": strings.Replace(plain, "{", `{"x":[{"y":1,"y":2}],`, 1),
		"an escaped name of a field":     layer(desc(`"digest":"EVIL","dige\u0073t":"GOOD"`)),
		"a subject in two cases":         strings.Replace(plain, "{", `{"Subject":`+desc(`"digest":"EVIL"`)+`,`, 1),
		"text that is not UTF-8":         strings.Replace(plain, "application/vnd.example", "application/vnd.\xff", 1),
		"a byte order mark":              "\ufeff" + plain,
		"two documents":                  plain + plain,
		"a comment":                      plain + "// x",
		"layers that are no list":        layer("") + "x",
		"a layer that is no object":      layer(`"` + string(good) + `"`),
		"a layer that is null":           layer("null"),
		"a config that is null":          strings.Replace(plain, `"config":{`, `"config":null,"y":{`, 1),
		"a size with a fraction":         layer(desc(`"digest":"GOOD","size2":1.5`)) + "}",
		"a number as media type":         strings.Replace(plain, `"mediaType":"a/b"`, `"mediaType":7`, 1),
	} {
		a := put(body)
		if a.StatusCode != http.StatusBadRequest || a.errors()[0].Code != "MANIFEST_INVALID" {
			c.t.Errorf("%s: got %s %s", name, a.Status, a.body)
		}
	}
	// What only looks odd is kept to the byte.
	for name, body := range map[string]string{
		"a name in other words":     strings.Replace(plain, "{", `{"Org.Example":1,"org.example":2,`, 1),
		"annotations in two cases":  strings.Replace(plain, "{", `{"annotations":{"A":"1","a":"2"},`, 1),
		"space around":              "\n\t " + plain + "\r\n",
		"fields of a descriptor":    layer(desc(`"digest":"GOOD","x-new":{"a":[1,2]},"data":"Z29vZA=="`)),
		"letters of other scripts":  strings.Replace(plain, "{", `{"annotations":{"título":"漢字 \u00e4"},`, 1),
		"null for what is optional": strings.Replace(plain, "{", `{"subject":null,"annotations":null,"manifests":null,`, 1),
	} {
		a := put(body)
		if a.StatusCode != http.StatusCreated {
			c.t.Errorf("%s: got %s %s", name, a.Status, a.body)
			continue
		}
		c.get(a.location()).want(http.StatusOK).wantBody([]byte(body))
	}
	for _, contentType := range []string{"text/plain", "application/json", "multipart/form-data; boundary=x", ocispec.MediaTypeImageIndex, "x", ";;;", strings.ToUpper(ocispec.MediaTypeImageIndex)} {
		c.do(http.MethodPut, "/v2/"+repo+"/manifests/v1", strings.NewReader(plain), "Content-Type", contentType).want(http.StatusBadRequest).wantCode("MANIFEST_INVALID")
	}
}

// putLarge pushes a manifest of unknown length, as a client that streams does.
func (c *client) putLarge(body []byte) *answer {
	c.t.Helper()
	return c.do(http.MethodPut, "/v2/"+repo+"/manifests/large", io.MultiReader(bytes.NewReader(body)), "Content-Type", ocispec.MediaTypeImageManifest)
}

func manifestWith(field string, v any) []byte {
	return regtest.Marshal(map[string]any{"schemaVersion": 2, "mediaType": ocispec.MediaTypeImageManifest,
		"config": regtest.Describe(ocispec.MediaTypeEmptyJSON, []byte("{}")), "layers": []any{}, field: v})
}

func checkLargeManifest(_ *testing.T, c *client) {
	c.pushBlob(repo, []byte("{}"))
	annotations := map[string]string{}
	for i := range 390 {
		annotations[fmt.Sprintf("large-%d", i)] = strings.Repeat("A", 10_000)
	}
	large := manifestWith("annotations", annotations)
	c.get(c.putLarge(large).want(http.StatusCreated).location()).want(http.StatusOK).wantBody(large)
}

// What is small as a document and large in memory, or deep, is refused
// before it takes either.
func TestManifestBombs(t *testing.T) {
	c := newClient(t, regmem.New(), nil)
	c.pushBlob(repo, []byte("{}"))
	many := map[string]string{}
	for i := range 300_000 {
		many[strconv.Itoa(i)] = ""
	}
	for name, body := range map[string][]byte{
		"a million layers":          []byte(`{"schemaVersion":2,"config":{},"layers":[` + strings.Repeat("{},", 1_000_000) + `{}]}`),
		"very many layers":          []byte(`{"schemaVersion":2,"config":{},"layers":[` + strings.Repeat("{},", 30_000) + `{}]}`),
		"very many annotations":     manifestWith("annotations", many),
		"a million elements":        manifestWith("org.example", make([]int, 1_000_000)),
		"a million URLs":            manifestWith("layers", []any{map[string]any{"urls": make([]string, 1_000_000)}}),
		"layers without a digest":   manifestWith("layers", make([]struct{}, 1000)),
		"nested too deep":           []byte(`{"schemaVersion":2,"x":` + strings.Repeat("[", 2_000_000) + strings.Repeat("]", 2_000_000) + `}`),
		"objects nested too deep":   []byte(`{"schemaVersion":2,"x":` + strings.Repeat(`{"x":`, 20_000) + "1" + strings.Repeat("}", 20_000) + `}`),
		"nested and not closed":     []byte(strings.Repeat(`{"a":[`, 500_000)),
		"a field with a long name":  []byte(`{"` + strings.Repeat("x", 3_000_000) + `":1}`),
		"a number with many digits": []byte(`{"schemaVersion":2` + strings.Repeat("0", 1_000_000) + `}`),
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		a := c.putLarge(body)
		runtime.ReadMemStats(&after)
		if a.StatusCode != http.StatusBadRequest || a.errors()[0].Code != "MANIFEST_INVALID" {
			t.Errorf("%s: got %s %.300s", name, a.Status, a.body)
		}
		if len(a.body) > 2000 {
			t.Errorf("%s: the answer has %d bytes", name, len(a.body))
		}
		// Reading what is of unknown length takes a few times its size.
		if n := after.TotalAlloc - before.TotalAlloc; n > uint64(16*len(body)+4<<20) {
			t.Errorf("%s: %d MB were allocated for %d KB", name, n>>20, len(body)>>10)
		}
	}
}

func checkOddParameters(_ *testing.T, c *client) {
	art := regtest.NewArtifact("application/vnd.example", nil)
	c.push(repo, art, "a", "b")
	for query, want := range map[string]int{"?n=99999999999999999999999": 2, "?n=4294967296": 2, "?n=": 2, "?n=01": 1, "?n=0": 0, "?last=%00": 2, "?last=../..": 2, "?last=" + strings.Repeat("z", 3000): 0, "?n=1&n=2": 1} {
		got, a := c.tags(query)
		if len(got) != want {
			c.t.Errorf("tags%.40s: got %v, want %d", query, got, want)
		}
		if want != 1 {
			a.wantHeader("Link", "")
		}
	}
	for _, n := range []string{"-1", "abc", "1.5", "0x2", "%2B1", "1e3", "٣", " 1"} {
		c.get("/v2/" + repo + "/tags/list?n=" + url.QueryEscape(n)).want(http.StatusBadRequest).wantCode("UNSUPPORTED")
		c.get("/v2/_catalog?n=" + url.QueryEscape(n)).want(http.StatusBadRequest).wantCode("UNSUPPORTED")
	}
	b := []byte("content")
	hex := digest.FromBytes(b).Encoded()
	for _, d := range []string{"sha256:" + strings.ToUpper(hex), "SHA256:" + hex, "sha256:" + hex + "0", "sha256:" + hex[1:], "sha256", hex, "sha256:" + hex + ":x", "sha256 :" + hex, "sha256+b64:" + hex, "sha384:" + strings.Repeat("0", 96)} {
		e := url.PathEscape(d)
		for _, a := range []*answer{
			c.do(http.MethodPost, "/v2/"+repo+"/blobs/uploads/?digest="+url.QueryEscape(d), bytes.NewReader(b)),
			c.do(http.MethodPost, "/v2/"+repo+"/blobs/uploads/?from=x&mount="+url.QueryEscape(d), nil),
			c.do(http.MethodPut, withQuery(c.start(), "digest", d), bytes.NewReader(b)),
			c.get("/v2/" + repo + "/blobs/" + e),
			c.get("/v2/" + repo + "/referrers/" + e),
		} {
			if a.StatusCode != http.StatusBadRequest || a.errors()[0].Code != "DIGEST_INVALID" {
				c.t.Errorf("%s %s: got %s %s", a.Request.Method, a.Request.URL, a.Status, a.body)
			}
		}
	}
}

func checkOddPaths(_ *testing.T, c *client) {
	art := regtest.NewArtifact("application/vnd.example", nil)
	c.push(repo, art, "v1")
	tag := "/v2/" + repo + "/manifests/v1"
	for path, status := range map[string]int{
		"/v2//": http.StatusNotFound, "/v2/./": http.StatusNotFound, "/v2/../v2/": http.StatusNotFound, "/v2/x/..": http.StatusNotFound,
		"//v2/": http.StatusNotFound, "/V2/": http.StatusNotFound, "/v2/%2e%2e/": http.StatusNotFound,
		tag + "/": http.StatusNotFound, tag + "%00": http.StatusNotFound, tag + "%0a": http.StatusNotFound, tag + ";x=1": http.StatusNotFound, tag + "@" + string(art.Descriptor.Digest): http.StatusBadRequest,
		"/v2/" + repo + "//manifests/v1": http.StatusBadRequest, "/v2//" + repo + "/manifests/v1": http.StatusBadRequest, "/v2/" + repo + "/manifests/../manifests/v1": http.StatusBadRequest,
		tag + "?x=%zz": http.StatusOK, tag + "?_method=DELETE": http.StatusOK,
		"/v2/" + strings.Replace(repo, "/", "%2F", 1) + "/manifests/v%31": http.StatusOK, // the same path, written in another way
	} {
		if a := c.get(path); a.StatusCode != status {
			c.t.Errorf("GET %s: got %s %s, want %d", path, a.Status, a.body, status)
		}
	}
	for _, name := range []string{"X-HTTP-Method-Override", "X-HTTP-Method", "X-Method-Override"} {
		c.get(tag, name, "DELETE").want(http.StatusOK)
		c.do(http.MethodPost, tag, nil, name, "DELETE").want(http.StatusMethodNotAllowed)
	}
	for _, method := range []string{http.MethodOptions, http.MethodTrace, http.MethodPatch, "PROPFIND", "get", "DELETEX"} {
		a := c.do(method, tag, nil).want(http.StatusMethodNotAllowed).wantCode("UNSUPPORTED").wantHeader("Allow", "DELETE, GET, HEAD, PUT")
		if strings.Contains(string(a.body), method) {
			c.t.Errorf("%s is repeated in the answer", method)
		}
	}
	c.get(tag).want(http.StatusOK)
}

// The specification lets clients say what they understand, and wants the
// manifest that is asked for in its own type.
func checkAccept(_ *testing.T, c *client) {
	art := regtest.NewArtifact("application/vnd.example", nil)
	c.push(repo, art, "v1")
	for _, accept := range []string{"", "*/*", "text/html", "application/vnd.docker.distribution.manifest.v2+json", ocispec.MediaTypeImageIndex + ";q=0.5", "nonsense,,;", strings.Repeat("a/b,", 5000)} {
		c.get("/v2/"+repo+"/manifests/v1", "Accept", accept, "Accept-Encoding", "gzip, br, zstd").want(http.StatusOK).
			wantBody(art.Manifest).wantHeader("Content-Type", ocispec.MediaTypeImageManifest).wantHeader("Content-Encoding", "")
	}
}

// Locations are paths, so that they are right whatever a client or a proxy
// before the server calls it.
func checkLocation(_ *testing.T, c *client) {
	b := []byte("content")
	d := digest.FromBytes(b)
	forwarded := []string{"X-Forwarded-Host", "evil.example.com", "X-Forwarded-Proto", "https", "X-Forwarded-Prefix", "/evil", "Forwarded", "host=evil.example.com;proto=https", "X-Original-URL", "/evil"}
	local := func(a *answer) *answer {
		c.t.Helper()
		if l := a.Header.Get("Location"); !strings.HasPrefix(l, "/v2/"+repo+"/") || strings.Contains(l, "evil") {
			c.t.Errorf("%s %s: Location is %q", a.Request.Method, a.Request.URL, l)
		}
		return a
	}
	loc := local(c.do(http.MethodPost, "/v2/"+repo+"/blobs/uploads/", nil, forwarded...).want(http.StatusAccepted)).location()
	loc = local(c.do(http.MethodPatch, loc, bytes.NewReader(b), forwarded...).want(http.StatusAccepted)).location()
	loc = local(c.get(loc, forwarded...).want(http.StatusNoContent)).location()
	local(c.do(http.MethodPut, withQuery(loc, "digest", string(d)), nil, forwarded...).want(http.StatusCreated))
	c.pushBlob(repo, []byte("{}"))
	art := regtest.NewArtifact("application/vnd.example", nil)
	local(c.do(http.MethodPut, "/v2/"+repo+"/manifests/v1", bytes.NewReader(art.Manifest), append(forwarded, "Content-Type", art.Descriptor.MediaType)...).want(http.StatusCreated))
}

// Signatures may come before what they sign, and outlive it.
func checkLostSubject(_ *testing.T, c *client) {
	art := regtest.NewArtifact("application/vnd.example", nil)
	sig := regtest.NewArtifact("application/vnd.example.signature", &art.Descriptor)
	plain := regtest.NewIndex("", &art.Descriptor) // an index without an artifact type
	has := func(n int, when string) {
		c.t.Helper()
		if got, _ := c.referrers(art.Descriptor.Digest, ""); len(got) != n {
			c.t.Errorf("%s: %d referrers, want %d", when, len(got), n)
		}
	}
	c.push(repo, sig, "sig")
	has(1, "before the subject")
	c.push(repo, art, "v1")
	c.push(repo, plain)
	c.push(repo, sig, "sig2") // again, which adds nothing
	has(2, "with the subject")
	c.do(http.MethodDelete, "/v2/"+repo+"/manifests/"+string(art.Descriptor.Digest), nil).want(http.StatusAccepted)
	has(2, "without the subject")
	c.push(repo, art, "v1")
	c.do(http.MethodDelete, "/v2/"+repo+"/manifests/sig", nil).want(http.StatusAccepted) // a tag of it only
	has(2, "with a tag less")
	got, _ := c.referrers(art.Descriptor.Digest, "?artifactType="+url.QueryEscape("application/vnd.example.signature"))
	if len(got) != 1 || got[0].Digest != sig.Descriptor.Digest || got[0].Size != sig.Descriptor.Size || got[0].MediaType != sig.Descriptor.MediaType {
		c.t.Errorf("filtered: %v", got)
	}
	c.do(http.MethodDelete, "/v2/"+repo+"/manifests/"+string(plain.Descriptor.Digest), nil).want(http.StatusAccepted)
	has(1, "after the index")
}

// Whether a child may go before its index is the storage's affair; nothing
// else changes.
func checkDeleteChild(_ *testing.T, c *client) {
	art := regtest.NewArtifact("application/vnd.example", nil)
	index := regtest.NewIndex("", nil, art.Descriptor)
	c.push(repo, art)
	c.push(repo, index, "index")
	a := c.do(http.MethodDelete, "/v2/"+repo+"/manifests/"+string(art.Descriptor.Digest), nil)
	switch a.StatusCode {
	case http.StatusAccepted:
		c.get("/v2/" + repo + "/manifests/" + string(art.Descriptor.Digest)).want(http.StatusNotFound)
	case http.StatusMethodNotAllowed:
		c.get("/v2/" + repo + "/manifests/" + string(art.Descriptor.Digest)).want(http.StatusOK)
	default:
		c.t.Errorf("got %s %s, want 202 or 405", a.Status, a.body)
	}
	c.get("/v2/" + repo + "/manifests/index").want(http.StatusOK).wantBody(index.Manifest)
	c.do(http.MethodDelete, "/v2/"+repo+"/manifests/"+string(index.Descriptor.Digest), nil).want(http.StatusAccepted)
	c.get("/v2/" + repo + "/manifests/index").want(http.StatusNotFound)
}

// TestRawRequests sends what no HTTP client would.
func TestRawRequests(t *testing.T) {
	t.Parallel()
	c := newClient(t, regmem.New(), &regserver.Options{Authorize: func(r *http.Request, a regserver.Access) error {
		if a.Repository == "closed" {
			return &regserver.UnauthorizedError{Challenge: `Basic realm="x"`, Message: "no"}
		}
		return nil
	}})
	art := regtest.NewArtifact("application/vnd.example", nil)
	c.push(repo, art, "v1")
	d := string(digest.FromString("hello"))
	send := func(format string, a ...any) *http.Response {
		t.Helper()
		resp, err := http.ReadResponse(bufio.NewReader(c.raw(format, a...)), nil)
		if err != nil {
			t.Fatalf("%.60q: %v", format, err)
		}
		t.Cleanup(func() { _ = resp.Body.Close() })
		return resp
	}
	upload := func() string { u, _ := url.Parse(c.start()); return u.Path }
	for name, test := range map[string]struct {
		request string
		status  int
	}{
		"HTTP/1.0 GET":                       {"GET /v2/" + repo + "/manifests/v1 HTTP/1.0\r\n\r\n", 200},
		"HTTP/1.0 POST":                      {"POST /v2/" + repo + "/blobs/uploads/?digest=" + d + " HTTP/1.0\r\nContent-Length: 5\r\n\r\nhello", 201},
		"the whole URL":                      {"GET http://elsewhere/v2/" + repo + "/manifests/v1 HTTP/1.1\r\nHost: x\r\n\r\n", 200},
		"chunked, with trailers":             {"POST /v2/" + repo + "/blobs/uploads/?digest=" + d + " HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTrailer: X-A\r\n\r\n2\r\nhe\r\n3;ext=1\r\nllo\r\n0\r\nX-A: b\r\nContent-Length: 7\r\n\r\n", 201},
		"chunked and Content-Range":          {"PATCH " + upload() + " HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Range: 0-4\r\n\r\n5\r\nhello\r\n0\r\n\r\n", 202},
		"chunked, longer than Content-Range": {"PATCH " + upload() + " HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Range: 0-4\r\n\r\n6\r\nhello!\r\n0\r\n\r\n", 400},
		"chunked, shorter":                   {"PATCH " + upload() + " HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Range: 0-4\r\n\r\n4\r\nhell\r\n0\r\n\r\n", 400},
		"a chunk that breaks off":            {"PATCH " + upload() + " HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", 400},
		"Content-Range and another length":   {"PATCH " + upload() + " HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Range: 0-9\r\n\r\nhello", 400},
		"two lengths":                        {"PATCH " + upload() + " HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!", 400},
		"a negative length":                  {"PATCH " + upload() + " HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n", 400},
		"a length that is too long":          {"PATCH " + upload() + " HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\n", 400},
		"another encoding":                   {"PATCH " + upload() + " HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501},
		"no host":                            {"GET /v2/ HTTP/1.1\r\n\r\n", 400},
		"a line break in a header":           {"GET /v2/ HTTP/1.1\r\nHost: x\r\nX-A: b\rc\r\n\r\n", 400},
		"an escape that is none":             {"GET /v2/a%2/manifests/v1 HTTP/1.1\r\nHost: x\r\n\r\n", 400},
		"dots as they are":                   {"GET /v2/../../etc/passwd HTTP/1.1\r\nHost: x\r\n\r\n", 404},
		"a zero byte":                        {"GET /v2/a\x00b/manifests/v1 HTTP/1.1\r\nHost: x\r\n\r\n", 400},
		// Whoever is refused is not asked for the content first.
		"Expect, refused":          {"PATCH /v2/closed/blobs/uploads/x HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\nExpect: 100-continue\r\n\r\n", 401},
		"Expect, too large":        {"PUT /v2/" + repo + "/manifests/v1 HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000000\r\nExpect: 100-continue\r\n\r\n", 413},
		"Expect, a blob too large": {"PATCH " + upload() + " HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000000\r\nExpect: 100-continue\r\n\r\n", 413},
		"Expect, out of order":     {"PATCH " + upload() + " HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Range: 5-9\r\nExpect: 100-continue\r\n\r\n", 416},
		"Expect something else":    {"PATCH " + upload() + " HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nExpect: miracles\r\n\r\nhello", 417},
	} {
		if resp := send("%s", test.request); resp.StatusCode != test.status {
			b, _ := io.ReadAll(resp.Body)
			t.Errorf("%s: got %s %s, want %d", name, resp.Status, b, test.status)
		}
	}
	c.get("/v2/" + repo + "/manifests/v1").want(http.StatusOK)
}

// A client that promises much and goes away leaves an upload that can go on.
func TestBrokenOffChunk(t *testing.T) {
	for driver, open := range drivers {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			c := newClient(t, open(t), nil)
			b := regtest.Random(22, 2000)
			d := digest.FromBytes(b)
			loc := c.do(http.MethodPatch, c.start(), bytes.NewReader(b[:1000]), "Content-Range", "0-999").want(http.StatusAccepted).location()
			u, err := url.Parse(loc)
			if err != nil {
				t.Fatal(err)
			}
			conn := c.raw("PATCH %s HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\nContent-Range: 1000-1000000999\r\n\r\n%s", u.Path, b[1000:1500])
			_ = conn.Close()
			// Until the server has noticed, the upload is taken.
			var size int
			for {
				a := c.get(loc).want(http.StatusNoContent)
				if _, err := fmt.Sscanf(a.Header.Get("Range"), "0-%d", &size); err != nil {
					t.Fatal(err)
				}
				size++
				if size != 1000 && size != 1500 {
					continue // while it arrives
				}
				a = c.do(http.MethodPatch, a.location(), bytes.NewReader(b[size:]), "Content-Range", contentRange(size, len(b)-size))
				if a.StatusCode == http.StatusAccepted {
					loc = a.location()
					break
				}
				a.want(http.StatusRequestedRangeNotSatisfiable)
			}
			c.finished(c.do(http.MethodPut, withQuery(loc, "digest", string(d)), nil), b, d)
		})
	}
}

// cannot is a store behind which something is missing.
type cannot struct{ regstore.Driver }

func (cannot) DeleteTag(context.Context, string, string) error {
	return fmt.Errorf("deleting: %w", errors.ErrUnsupported)
}

func TestUnsupported(t *testing.T) {
	t.Parallel()
	store := cannot{regmem.New()}
	art := regtest.NewArtifact("application/vnd.example", nil)
	regtest.Put(t.Context(), t, store, repo, art, "latest")
	c := newClient(t, store, nil)
	a := c.do(http.MethodDelete, "/v2/"+repo+"/manifests/latest", nil).want(http.StatusMethodNotAllowed).wantCode("UNSUPPORTED")
	if a.Header.Get("Allow") == "" || !json.Valid(a.body) {
		t.Errorf("got %v %s", a.Header, a.body)
	}
}
