package web

import (
	_ "embed"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/krmcat/krmcat/catalog/index"
	"github.com/krmcat/krmcat/web/api"
)

// maxText bounds what can be searched for, in bytes.
const maxText = 200

// noGroup stands for the empty group in paths.
const noGroup = "core"

func groupParam(r *http.Request) string {
	if g := pathParam(r, "group"); g != noGroup {
		return g
	}
	return ""
}

func groupPath(group string) string {
	if group == "" {
		return noGroup
	}
	return url.PathEscape(group)
}

// functionPath is the path of a function's page.
func functionPath(group, kind string) string {
	return "/functions/" + groupPath(group) + "/" + url.PathEscape(kind)
}

// parseQuery reads what is searched for.
func parseQuery(r *http.Request) (index.Query, error) {
	v := r.URL.Query()
	q := index.Query{
		Text: v.Get("q"), Publisher: v.Get("publisher"), Tag: v.Get("tag"), Runtime: v.Get("runtime"),
		Group: v.Get("group"), Kind: v.Get("kind"), Signed: v.Get("signed") == "true",
		Status: index.Status(v.Get("status")), Order: index.Order(v.Get("sort")),
	}
	for _, s := range []string{q.Text, q.Publisher, q.Tag, q.Runtime, q.Group, q.Kind, string(q.Status), string(q.Order)} {
		if len(s) > maxText {
			return q, &httpError{status: http.StatusBadRequest, msg: "a search has at most " + strconv.Itoa(maxText) + " bytes"}
		}
	}
	for name, to := range map[string]*int{"offset": &q.Offset, "limit": &q.Limit} {
		if s := v.Get(name); s != "" {
			n, err := strconv.Atoi(s)
			if err != nil || n < 0 || n > 1_000_000 {
				return q, &httpError{status: http.StatusBadRequest, msg: name + " is not a number that fits"}
			}
			*to = n
		}
	}
	return q, nil
}

// apiFunctions lists or finds functions.
func (s *server) apiFunctions(w http.ResponseWriter, r *http.Request) error {
	q, err := parseQuery(r)
	if err != nil {
		return err
	}
	found, err := s.index.Search(r.Context(), q)
	if err != nil {
		return err
	}
	page := api.Page[api.Function]{Items: []api.Function{}, Total: found.Total, Corrected: found.Corrected}
	for _, l := range found.Items {
		page.Items = append(page.Items, s.apiListing(r, l))
	}
	if page.Next = nextPage(r, q, len(found.Items), found.Total); page.Next != "" {
		w.Header().Set("Link", "<"+page.Next+`>; rel="next"`) // RFC 8288
	}
	return writeJSON(w, r, page)
}

// nextPage is the path of the next page; empty if there is none.
func nextPage(r *http.Request, q index.Query, items, total int) string {
	if items == 0 || q.Offset+items >= total {
		return ""
	}
	v := r.URL.Query()
	v.Set("offset", strconv.Itoa(q.Offset+items))
	return r.URL.Path + "?" + v.Encode()
}

func (s *server) apiListing(r *http.Request, l *index.Listing) api.Function {
	f := api.Function{
		Group: l.Group, Kind: l.Kind, Description: l.Description, Publisher: l.Publisher, PublisherSlug: l.Slug,
		Tags: list(l.Tags), Repository: l.Repository, Latest: l.Tag, Digest: l.Digest, Released: l.Released, Prerelease: l.Prerelease,
		Signed: l.Signed, Status: string(l.Status), Message: l.Message, Replacement: l.Replacement, Updated: l.Updated,
		Versions: []api.Version{}, URL: functionPath(l.Group, l.Kind),
	}
	for _, v := range l.Versions {
		f.Versions = append(f.Versions, api.Version{
			APIVersion: l.APIVersion(v.Name), Release: v.Tag, Reference: s.host(r) + "/" + v.Repository + "@" + v.Digest,
			Runtimes: list(v.Runtimes), Platforms: v.Platforms, Idempotent: v.Idempotent, Network: v.Network, Storage: v.Storage,
			License: v.License, InCatalog: v.InCatalog, Schema: schemaPath(l.Group, l.Kind, v.Name),
		})
	}
	return f
}

// list is never null in JSON.
func list(l []string) []string {
	if l == nil {
		return []string{}
	}
	return l
}

// apiFunction answers with everything about a function.
func (s *server) apiFunction(w http.ResponseWriter, r *http.Request) error {
	f, err := s.index.Function(r.Context(), groupParam(r), pathParam(r, "kind"), pathParam(r, "release"))
	if err != nil {
		return err
	}
	d := api.FunctionDetail{
		Function: s.apiListing(r, f.Listing), Home: f.Home, Source: f.Source, Maintainers: f.Maintainers,
		Elsewhere: f.Elsewhere, Readme: string(f.Readme), Document: string(f.Document), Releases: []api.Release{},
	}
	for _, rel := range f.Releases {
		d.Releases = append(d.Releases, api.Release{
			Version: rel.Tag, Repository: rel.Repository, Digest: rel.Digest, Reference: s.host(r) + "/" + rel.Repository + "@" + rel.Digest,
			ReleaseTimestamp: rel.Published, IsDeprecated: rel.Status != index.Active, SourceURL: f.Source,
			Prerelease: rel.Prerelease, Released: rel.Version != "", Signed: rel.Signed, Status: string(rel.Status), Message: rel.Message, APIVersions: list(rel.APIVersions),
		})
	}
	return writeJSON(w, r, d)
}

// apiResolve answers with what runs a functionConfig (KC-094, KC-096).
func (s *server) apiResolve(w http.ResponseWriter, r *http.Request) error {
	apiVersion, kind := r.URL.Query().Get("apiVersion"), r.URL.Query().Get("kind")
	if apiVersion == "" || kind == "" || len(apiVersion)+len(kind) > 2*maxText {
		return &httpError{status: http.StatusBadRequest, msg: "apiVersion and kind of the functionConfig are needed", fix: "add ?apiVersion=GROUP/VERSION&kind=KIND"}
	}
	found, err := s.index.Resolve(r.Context(), apiVersion, kind)
	if err != nil {
		return err
	}
	out := api.Resolution{
		APIVersion: apiVersion, Kind: kind, Publisher: found.Publisher, Release: found.Version.Tag,
		Definition: s.host(r) + "/" + found.Version.Repository + "@" + found.Version.Digest,
		Signed:     found.Signed, Status: string(found.Status), Message: found.Message,
	}
	if c := found.Runtime.Container; c != nil {
		out.Container = &api.Container{Image: c.Image, Digest: string(c.Digest), RequireNetwork: c.RequireNetwork, RequireStorageMount: c.RequireStorageMount}
	}
	if e := found.Runtime.Exec; e != nil {
		for _, p := range e.Platforms {
			out.Exec = append(out.Exec, api.Platform{OS: p.OS, Arch: p.Arch, Bin: p.Bin, URI: p.URI, SHA256: hexOf(p.Digest.String())})
		}
	}
	if st := found.Runtime.Starlark; st != nil {
		out.Starlark = &api.Script{URI: st.URI, SHA256: hexOf(st.Digest.String())}
	}
	return writeJSON(w, r, out)
}

func hexOf(digest string) string { return strings.TrimPrefix(digest, "sha256:") }

// apiComplete lists functions that start with a prefix (KEP-2985, story 5).
func (s *server) apiComplete(w http.ResponseWriter, r *http.Request) error {
	prefix := r.URL.Query().Get("prefix")
	if len(prefix) > maxText {
		return &httpError{status: http.StatusBadRequest, msg: "the prefix is too long"}
	}
	found, err := s.index.Complete(r.Context(), prefix, 20)
	if err != nil {
		return err
	}
	page := api.Page[api.Completion]{Items: []api.Completion{}}
	for _, l := range found {
		for _, v := range l.Versions {
			if !v.InCatalog {
				continue
			}
			page.Items = append(page.Items, api.Completion{
				APIVersion: l.APIVersion(v.Name), Kind: l.Kind, Reference: s.host(r) + "/" + v.Repository + ":" + v.Tag, Image: v.Image,
			})
		}
	}
	page.Total = len(page.Items)
	return writeJSON(w, r, page)
}

func (s *server) apiPublishers(w http.ResponseWriter, r *http.Request) error {
	found, err := s.index.Publishers(r.Context())
	if err != nil {
		return err
	}
	page := api.Page[api.Publisher]{Items: []api.Publisher{}, Total: len(found)}
	for _, p := range found {
		page.Items = append(page.Items, api.Publisher{
			Slug: p.Slug, Name: p.Name, Functions: p.Functions, Updated: p.Updated, Catalog: "/catalogs/" + p.Slug + "/catalog.yaml",
		})
	}
	return writeJSON(w, r, page)
}

func (s *server) apiStats(w http.ResponseWriter, r *http.Request) error {
	st, err := s.index.Stats(r.Context())
	if err != nil {
		return err
	}
	return writeJSON(w, r, st)
}

// schemaPath is the path of the JSON Schema of a functionConfig, laid out as
// kubeconform and the CRD catalogs have it.
func schemaPath(group, kind, version string) string {
	return "/schemas/" + groupPath(group) + "/" + url.PathEscape(strings.ToLower(kind)+"_"+version+".json")
}

// schemaFile answers with the JSON Schema of a functionConfig.
func (s *server) schemaFile(w http.ResponseWriter, r *http.Request) error {
	group, file := groupParam(r), pathParam(r, "file")
	notFound := &httpError{status: http.StatusNotFound, msg: "no function has a functionConfig of this type", fix: "the path is /schemas/GROUP/KIND_VERSION.json, with the kind in lower case"}
	name, ok := strings.CutSuffix(file, ".json")
	lower, version, ok2 := strings.Cut(name, "_")
	if !ok || !ok2 {
		return notFound
	}
	found, err := s.index.Search(r.Context(), index.Query{Group: group, KindFold: lower, Limit: 100})
	if err != nil {
		return err
	}
	for _, l := range found.Items {
		if l.Group != group {
			continue
		}
		release := ""
		for _, v := range l.Versions {
			if v.Name == version {
				release = v.Tag
			}
		}
		if release == "" {
			return notFound
		}
		f, err := s.index.Function(r.Context(), group, l.Kind, release)
		if err != nil {
			return err
		}
		v := f.Version(version)
		if v == nil || v.Schema == nil {
			return notFound
		}
		data, err := configSchema(l.APIVersion(version), l.Kind, v.Schema)
		if err != nil {
			return err
		}
		rep, err := newRepresentation("application/schema+json", data)
		if err != nil {
			return err
		}
		rep.serve(w, r, f.Shown.Published, false)
		return nil
	}
	return notFound
}

// configSchema makes a JSON Schema of a whole functionConfig: the function's
// own, with the fields that every resource has.
func configSchema(apiVersion, kind string, openAPI json.RawMessage) ([]byte, error) {
	var own map[string]any
	if err := json.Unmarshal(openAPI, &own); err != nil {
		return nil, err
	}
	if own == nil {
		own = map[string]any{}
	}
	properties, _ := own["properties"].(map[string]any)
	if properties == nil {
		properties = map[string]any{}
	}
	properties["apiVersion"] = map[string]any{"const": apiVersion}
	properties["kind"] = map[string]any{"const": kind}
	if _, ok := properties["metadata"]; !ok {
		properties["metadata"] = map[string]any{"type": "object"}
	}
	own["properties"] = properties
	own["type"] = "object"
	own["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	own["title"] = kind + " (" + apiVersion + ")"
	data, err := json.MarshalIndent(own, "", "  ")
	if err != nil {
		return nil, err
	}
	return append(data, '\n'), nil
}

//go:embed openapi.yaml
var openAPIDocument []byte

func (s *server) openAPI(w http.ResponseWriter, r *http.Request) error {
	w.Header().Set("Cache-Control", "public, max-age=300")
	write(w, r, http.StatusOK, api.MediaTypeYAML, openAPIDocument)
	return nil
}

// livez says that the process answers.
func (s *server) livez(w http.ResponseWriter, r *http.Request) error {
	w.Header().Set("Cache-Control", "no-store")
	write(w, r, http.StatusOK, "text/plain; charset=utf-8", []byte("ok\n"))
	return nil
}

// readyz says that the server can do what it is for.
func (s *server) readyz(w http.ResponseWriter, r *http.Request) error {
	w.Header().Set("Cache-Control", "no-store")
	err := s.index.Check(r.Context())
	if err == nil && s.opts.Ready != nil {
		err = s.opts.Ready(r.Context())
	}
	switch {
	case errors.Is(err, index.ErrNotReady):
		return err
	case err != nil:
		return &httpError{status: http.StatusServiceUnavailable, msg: "not ready", err: err}
	}
	write(w, r, http.StatusOK, "text/plain; charset=utf-8", []byte("ok\n"))
	return nil
}

func (s *server) robots(w http.ResponseWriter, r *http.Request) error {
	w.Header().Set("Cache-Control", "public, max-age=86400")
	write(w, r, http.StatusOK, "text/plain; charset=utf-8", []byte("User-agent: *\nDisallow: /v2/\nDisallow: /api/\nDisallow: /search\n"))
	return nil
}

// discovery answers with where everything is, for clients that were given a
// host and nothing else.
func (s *server) discovery(w http.ResponseWriter, r *http.Request) error {
	base := s.base(r)
	w.Header().Set("Cache-Control", "public, max-age=300")
	return writeJSON(w, r, api.Service{
		APIVersion: "krmcat.dev/v1alpha1", Kind: "CatalogService", Name: s.opts.Name, Version: s.opts.Version,
		Services: map[string]string{
			"catalog.v1":  base + "/catalog.yaml",
			"catalogs.v1": base + "/catalogs/{name}/catalog.yaml",
			"api.v1":      base + "/api/v1/",
			"schemas.v1":  base + "/schemas/",
			"oci.v2":      s.host(r),
		},
		Feeds: map[string]string{"atom": base + "/feeds/all.atom", "json": base + "/feeds/all.json"},
	})
}
