package web

import (
	"errors"
	"net/http"
	"slices"
	"strings"

	"github.com/go-chi/chi/v5"

	"github.com/krmcat/krmcat/catalog/index"
	"github.com/krmcat/krmcat/internal/lazyregexp"
	"github.com/krmcat/krmcat/web/api"
)

// slugExpr is what publishers, catalogs and tags are called in URLs.
var slugExpr = lazyregexp.New(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)

// contentHash names a version of a catalog by its content.
var contentHash = lazyregexp.New(`^sha256-[0-9a-f]{64}$`)

// maxPublishers bounds the publishers of an aggregate.
const maxPublishers = 50

// pathParam is a part of the path. It is compared and looked up, and never
// becomes the name of a file.
func pathParam(r *http.Request, name string) string { return chi.URLParam(r, name) }

func isJSON(path string) bool { return strings.HasSuffix(path, ".json") }

// catalogAll answers with all functions (KC-029, KC-030).
func (s *server) catalogAll(w http.ResponseWriter, r *http.Request) error {
	doc, err := s.index.Catalog(r.Context(), index.CatalogAll)
	if err != nil {
		return err
	}
	return s.serveDocument(w, r, doc, isJSON(r.URL.Path))
}

// catalogAggregate answers with all functions of some publishers (KEP-2985,
// story 2).
func (s *server) catalogAggregate(w http.ResponseWriter, r *http.Request) error {
	publishers, err := listParam(r, "publisher")
	if err != nil {
		return err
	}
	if len(publishers) == 0 {
		return &httpError{status: http.StatusBadRequest, msg: "no publisher was named", fix: "add ?publisher=NAME,NAME; /api/v1/publishers lists the names"}
	}
	tag := r.URL.Query().Get("tag")
	if tag != "" && !slugExpr.MatchString(tag) {
		return &httpError{status: http.StatusBadRequest, msg: "that is no tag of a function"}
	}
	doc, err := s.index.Aggregate(r.Context(), publishers, tag)
	if err != nil {
		return err
	}
	return s.serveDocument(w, r, doc, isJSON(r.URL.Path))
}

// listParam reads a parameter that may be given more than once and hold a
// list.
func listParam(r *http.Request, name string) ([]string, error) {
	var list []string
	for _, v := range r.URL.Query()[name] {
		for p := range strings.SplitSeq(v, ",") {
			if p = strings.TrimSpace(p); p == "" {
				continue
			}
			if !slugExpr.MatchString(p) {
				return nil, &httpError{status: http.StatusBadRequest, msg: "a " + name + " is named with letters, digits, '.', '_' and '-'"}
			}
			list = append(list, p)
		}
	}
	slices.Sort(list)
	list = slices.Compact(list)
	if len(list) > maxPublishers {
		return nil, &httpError{status: http.StatusBadRequest, msg: "more than 50 of " + name}
	}
	return list, nil
}

// catalogFile answers with a catalog by its name: what it is now, or one of
// its versions that never change (KEP-2985, story 3).
func (s *server) catalogFile(w http.ResponseWriter, r *http.Request) error {
	name, file := pathParam(r, "name"), pathParam(r, "file")
	version, ok := strings.CutSuffix(file, ".yaml")
	if !ok {
		version, ok = strings.CutSuffix(file, ".json")
	}
	notFound := &httpError{status: http.StatusNotFound, msg: "there is no such file of a catalog", fix: "catalog.yaml is the catalog as it is now; /api/v1/catalogs lists catalogs and their versions"}
	if !ok || !slugExpr.MatchString(name) {
		return notFound
	}
	var doc *index.Document
	var err error
	switch {
	case version == "catalog" || version == "latest":
		doc, err = s.index.Catalog(r.Context(), name)
	case index.SnapshotTag.MatchString(version), contentHash.MatchString(version):
		doc, err = s.index.Snapshot(r.Context(), name, version)
	default:
		if _, release := index.ParseRelease(version); !release {
			return notFound
		}
		doc, err = s.index.Snapshot(r.Context(), name, version)
	}
	if errors.Is(err, index.ErrNotFound) {
		return &httpError{status: http.StatusNotFound, msg: err.Error(), fix: "/api/v1/catalogs lists catalogs and their versions"}
	}
	if err != nil {
		return err
	}
	if doc.Repository != "" {
		w.Header().Set("Link", "<oci://"+s.host(r)+"/"+doc.Repository+":"+doc.Tag+`>; rel="alternate"`)
	}
	return s.serveDocument(w, r, doc, isJSON(file))
}

func (s *server) apiCatalogs(w http.ResponseWriter, r *http.Request) error {
	list, err := s.index.Catalogs(r.Context())
	if err != nil {
		return err
	}
	page := api.Page[api.Catalog]{Items: []api.Catalog{}, Total: len(list)}
	for _, c := range list {
		page.Items = append(page.Items, s.apiCatalog(r, c))
	}
	return writeJSON(w, r, page)
}

func (s *server) apiCatalog(r *http.Request, c *index.CatalogListing) api.Catalog {
	out := api.Catalog{
		Name: c.Name, Publisher: c.Publisher, Functions: c.Functions, Updated: c.Updated,
		URL: "/catalogs/" + c.Name + "/catalog.yaml", Snapshots: []api.Snapshot{},
	}
	for _, v := range c.Versions {
		_, release := index.ParseRelease(v.Tag)
		version := v.Tag
		if !release && !index.SnapshotTag.MatchString(v.Tag) {
			version = "sha256-" + v.Document.Encoded()
		}
		out.Snapshots = append(out.Snapshots, api.Snapshot{
			Version: version, URL: "/catalogs/" + c.Name + "/" + version + ".yaml", SHA256: v.Document.Encoded(),
			Reference: s.host(r) + "/" + v.Repository + "@" + v.Digest, Published: v.Published, Signed: v.Signed,
		})
	}
	return out
}
