package web

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/krmcat/krmcat/catalog/index"
	"github.com/krmcat/krmcat/web/api"
)

// representation is a document in one form, as it is and compressed.
type representation struct {
	mediaType string
	data      []byte
	hex       string // sha256 of data
	gzip      []byte // nil if it is not smaller
	digests   [2]string
}

func newRepresentation(mediaType string, data []byte) (*representation, error) {
	rep := &representation{mediaType: mediaType, data: data}
	sum := sha256.Sum256(data)
	rep.hex = hex.EncodeToString(sum[:])
	rep.digests[0] = base64.StdEncoding.EncodeToString(sum[:])
	var b bytes.Buffer
	z, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	if _, err := z.Write(data); err != nil {
		return nil, err
	}
	if err := z.Close(); err != nil {
		return nil, err
	}
	if b.Len() < len(data) {
		rep.gzip = b.Bytes()
		sum = sha256.Sum256(rep.gzip)
		rep.digests[1] = base64.StdEncoding.EncodeToString(sum[:])
	}
	return rep, nil
}

// maxRepresentations bounds how many documents are kept compressed.
const maxRepresentations = 64

// representations keeps the forms of documents by their digests.
type representations struct {
	mu    sync.Mutex
	byKey map[string]*representation
	order []string
}

func (c *representations) get(doc *index.Document, asJSON bool) (*representation, error) {
	key := string(doc.Digest) + " " + strconv.FormatBool(asJSON)
	c.mu.Lock()
	rep := c.byKey[key]
	c.mu.Unlock()
	if rep != nil {
		return rep, nil
	}
	mediaType, data := api.MediaTypeYAML, doc.Data
	if asJSON {
		var err error
		// Keys come out sorted, so the same document gives the same bytes.
		if data, err = yaml.YAMLToJSON(data); err != nil {
			return nil, err
		}
		mediaType, data = api.MediaTypeJSON, append(data, '\n')
	}
	rep, err := newRepresentation(mediaType, data)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byKey == nil {
		c.byKey = map[string]*representation{}
	}
	if _, ok := c.byKey[key]; !ok {
		c.order = append(c.order, key)
		if len(c.order) > maxRepresentations {
			delete(c.byKey, c.order[0])
			c.order = c.order[1:]
		}
	}
	c.byKey[key] = rep
	return rep, nil
}

// serveDocument answers with a document: whole, in part, compressed, or not
// at all if the client has it.
func (s *server) serveDocument(w http.ResponseWriter, r *http.Request, doc *index.Document, asJSON bool) error {
	rep, err := s.reps.get(doc, asJSON)
	if err != nil {
		return err
	}
	rep.serve(w, r, doc.Modified, doc.Immutable)
	return nil
}

// serve answers by RFC 9110. The compressed form is another representation
// with an entity tag of its own; a client that has either of the two has the
// document. Parts are of the form that is not compressed.
func (rep *representation) serve(w http.ResponseWriter, r *http.Request, modified time.Time, immutable bool) {
	h := w.Header()
	h.Set("Content-Type", rep.mediaType)
	h.Set("Vary", "Accept-Encoding")
	h.Set("Cache-Control", "public, max-age=60, stale-while-revalidate=600, stale-if-error=86400")
	if immutable {
		h.Set("Cache-Control", "public, max-age=31536000, immutable")
	}
	compressed := rep.gzip != nil && r.Header.Get("Range") == "" && acceptsGzip(r.Header.Values("Accept-Encoding"))
	etag := `"` + rep.hex + `"`
	if compressed {
		etag = `"` + rep.hex + `-gz"`
	}
	h.Set("Etag", etag)
	if !modified.IsZero() {
		h.Set("Last-Modified", modified.UTC().Format(http.TimeFormat))
	}
	if inm := r.Header.Values("If-None-Match"); len(inm) > 0 && matches(inm, rep.hex) {
		h.Del("Content-Type")
		w.WriteHeader(http.StatusNotModified)
		return
	}
	if !compressed {
		h.Set("Repr-Digest", "sha-256=:"+rep.digests[0]+":") // RFC 9530
		http.ServeContent(w, r, "", modified, bytes.NewReader(rep.data))
		return
	}
	if len(r.Header.Values("If-None-Match")) == 0 && !modified.IsZero() {
		if t, err := http.ParseTime(r.Header.Get("If-Modified-Since")); err == nil && !modified.Truncate(time.Second).After(t) {
			h.Del("Content-Type")
			w.WriteHeader(http.StatusNotModified)
			return
		}
	}
	h.Set("Repr-Digest", "sha-256=:"+rep.digests[1]+":")
	h.Set("Content-Encoding", "gzip")
	write(w, r, http.StatusOK, rep.mediaType, rep.gzip)
}

// matches reports whether If-None-Match names the document in any form.
func matches(values []string, hex string) bool {
	for _, v := range values {
		for tag := range strings.SplitSeq(v, ",") {
			tag = strings.TrimSpace(tag)
			if tag == "*" {
				return true
			}
			tag = strings.TrimPrefix(tag, "W/")
			if tag == `"`+hex+`"` || tag == `"`+hex+`-gz"` {
				return true
			}
		}
	}
	return false
}

// acceptsGzip reads Accept-Encoding.
func acceptsGzip(values []string) bool {
	any := false
	for _, v := range values {
		for item := range strings.SplitSeq(v, ",") {
			coding, params, _ := strings.Cut(item, ";")
			coding = strings.ToLower(strings.TrimSpace(coding))
			ok := true
			if name, value, found := strings.Cut(strings.TrimSpace(params), "="); found && strings.EqualFold(strings.TrimSpace(name), "q") {
				q, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
				ok = err == nil && q > 0
			}
			switch coding {
			case "gzip", "x-gzip":
				return ok
			case "*":
				any = ok
			}
		}
	}
	return any
}
