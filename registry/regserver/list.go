package regserver

import (
	"encoding/json"
	"errors"
	"io/fs"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/krmcat/krmcat/registry"
	"github.com/krmcat/krmcat/registry/regstore"
)

// Pages of lists end here if the client does not ask for less; a Link header
// leads on.
const (
	maxPage          = 10000
	maxPageReferrers = 1000
	// Clients read at most 4 MiB, as of a manifest.
	maxPageBytes = registry.MaxManifestBytes - 64<<10
)

// listTags answers end-8a and end-8b.
func (c *call) listTags() error {
	tags, err := c.page(func(last string) iter.Seq2[string, error] { return c.store.Tags(c.ctx, c.repository, last) })
	if err != nil {
		return err
	}
	return c.json("application/json", struct {
		Name string   `json:"name"`
		Tags []string `json:"tags"`
	}{c.repository, tags})
}

// listRepositories answers /v2/_catalog.
func (c *call) listRepositories() error {
	names, err := c.page(func(last string) iter.Seq2[string, error] { return c.store.Repositories(c.ctx, last) })
	if err != nil {
		return err
	}
	return c.json("application/json", struct {
		Repositories []string `json:"repositories"`
	}{names})
}

// page reads a page of a list, by the parameters n and last.
func (c *call) page(list func(last string) iter.Seq2[string, error]) ([]string, error) {
	q := c.r.URL.Query()
	n := maxPage
	if s := q.Get("n"); s != "" {
		v, err := strconv.ParseUint(s, 10, 64)
		if err != nil && !errors.Is(err, strconv.ErrRange) { // more than there can be is all
			return nil, &Error{Status: http.StatusBadRequest, Code: "UNSUPPORTED", Message: "the parameter n is a number of entries"}
		}
		n = int(min(v, maxPage))
	}
	names := []string{}
	if n == 0 {
		return names, nil
	}
	for name, err := range list(q.Get("last")) {
		if err != nil {
			return nil, storeError(err, "NAME_UNKNOWN")
		}
		if len(names) == n {
			c.next(url.Values{"n": {strconv.Itoa(n)}, "last": {names[n-1]}})
			break
		}
		names = append(names, name)
	}
	return names, nil
}

// next says where the next page is (RFC 8288).
func (c *call) next(q url.Values) {
	c.w.Header().Set("Link", "<"+c.r.URL.EscapedPath()+"?"+q.Encode()+`>; rel="next"`)
}

func (c *call) json(mediaType string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	c.w.Header().Set("Content-Type", mediaType)
	setLength(c.w, int64(len(b)))
	if c.r.Method == http.MethodHead {
		return nil
	}
	_, err = c.w.Write(b)
	return ignore(err)
}

// listReferrers answers end-12a and end-12b. A subject that is not there has
// no referrers or some; it is no error.
func (c *call) listReferrers() error {
	if c.opts.NoReferrers {
		return errNotFound
	}
	q := c.r.URL.Query()
	artifactType, last := q.Get("artifactType"), q.Get("last")
	if last != "" {
		if _, err := regstore.ParseDigest(last); err != nil {
			return errDigest(last, err)
		}
	}
	index := ocispec.Index{
		Versioned: specs.Versioned{SchemaVersion: 2},
		MediaType: ocispec.MediaTypeImageIndex,
		Manifests: []ocispec.Descriptor{},
	}
	size := 0
	for desc, err := range c.store.Referrers(c.ctx, c.repository, c.digest, artifactType) {
		if errors.Is(err, fs.ErrNotExist) {
			break
		} else if err != nil {
			return storeError(err, "MANIFEST_UNKNOWN")
		}
		if strings.Compare(string(desc.Digest), last) <= 0 {
			continue
		}
		b, err := json.Marshal(desc)
		if err != nil {
			return err
		}
		if n := len(index.Manifests); n > 0 && (n == maxPageReferrers || size+len(b) > maxPageBytes) {
			v := url.Values{"last": {string(index.Manifests[n-1].Digest)}}
			if artifactType != "" {
				v.Set("artifactType", artifactType)
			}
			c.next(v)
			break
		}
		size += len(b) + 1
		index.Manifests = append(index.Manifests, desc)
	}
	if artifactType != "" {
		c.w.Header().Set("Oci-Filters-Applied", "artifactType")
	}
	return c.json(ocispec.MediaTypeImageIndex, index)
}
