package web

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/krmcat/krmcat/catalog"
	"github.com/krmcat/krmcat/catalog/index"
	"github.com/krmcat/krmcat/web/ui"
)

// place says where clients reach the server, for what pages tell people to
// type.
type place struct {
	base string // such as https://example.com
	host string // such as example.com
}

func (s *server) place(r *http.Request) place { return place{s.base(r), s.host(r)} }

// plain is the flag that tools need for a registry without TLS. They need
// none for localhost, but do no harm there.
func (p place) plain(flag string) string {
	if strings.HasPrefix(p.base, "http://") {
		return flag + " "
	}
	return ""
}

func (s *server) site(r *http.Request, title string) ui.Site {
	path := r.URL.Path
	return ui.Site{Name: s.opts.Name, Title: title, Version: s.opts.Version, Path: path, Base: s.base(r)}
}

// pageCache lets browsers show a page again only after asking: what is pushed
// shows at once.
func pageCache(w http.ResponseWriter) {
	w.Header().Set("Cache-Control", "no-cache")
}

func (s *server) home(w http.ResponseWriter, r *http.Request) error {
	ctx := r.Context()
	p := &ui.Home{Site: s.site(r, s.opts.Name), HostName: s.host(r)}
	p.Ways = catalogWays(s.place(r), "/catalog.yaml", "")
	st, err := s.index.Stats(ctx)
	if errors.Is(err, index.ErrNotReady) {
		// The first page is the one that people look at when they start.
		p.NotReady = true
		w.Header().Set("Cache-Control", "no-store")
		return s.render(w, r, http.StatusOK, p)
	}
	if err != nil {
		return err
	}
	p.Functions, p.Releases, p.Publishers = st.Functions, st.Releases, st.Publishers
	recent, err := s.index.Search(ctx, index.Query{Order: index.ByUpdated, Limit: 9})
	if err != nil {
		return err
	}
	p.Recent = cards(recent.Items)
	tags, err := s.index.Facets(ctx, "tag", 12)
	if err != nil {
		return err
	}
	for _, t := range tags {
		p.Tags = append(p.Tags, ui.Link{Text: t.Value, Path: "/search?" + url.Values{"tag": {t.Value}}.Encode(), Count: t.Count})
	}
	list, err := s.index.Catalogs(ctx)
	if err != nil {
		return err
	}
	p.Catalogs = catalogRows(list[:min(len(list), 10)])
	pageCache(w)
	return s.render(w, r, http.StatusOK, p)
}

// cards are functions as lists show them.
func cards(list []*index.Listing) []ui.Card {
	var out []ui.Card
	for _, l := range list {
		out = append(out, card(l))
	}
	return out
}

func card(l *index.Listing) ui.Card {
	c := ui.Card{
		Kind: l.Kind, Group: l.Group, Path: functionPath(l.Group, l.Kind), Description: l.Description,
		Publisher: l.Publisher, PublisherPath: "/publishers/" + url.PathEscape(l.Slug), Tag: l.Tag, Runtimes: l.Runtimes(), Tags: l.Tags,
		Signed: l.Signed, Prerelease: l.Prerelease, Unreleased: !l.Released, Updated: l.Updated,
	}
	if l.Status != index.Active {
		c.Status = string(l.Status)
	}
	for _, v := range l.Versions {
		c.Versions = append(c.Versions, v.Name)
	}
	return c
}

func catalogRows(list []*index.CatalogListing) []ui.CatalogRow {
	var rows []ui.CatalogRow
	for _, c := range list {
		rows = append(rows, catalogRow(c))
	}
	return rows
}

func catalogRow(c *index.CatalogListing) ui.CatalogRow {
	row := ui.CatalogRow{
		Name: c.Name, Path: "/catalogs/" + url.PathEscape(c.Name), URL: "/catalogs/" + url.PathEscape(c.Name) + "/catalog.yaml",
		From: c.Publisher, Functions: c.Functions, Updated: c.Updated,
	}
	if c.Pushed() {
		row.From = c.Versions[0].Repository
		row.Signed = c.Versions[0].Signed
	}
	return row
}

// catalogWays say how to use a catalog. artifact is its reference in the
// registry, if it was pushed.
func catalogWays(p place, path, artifact string) []ui.Way {
	location := p.base + path
	ways := []ui.Way{
		{ID: "krmcat", Tool: "krmcat", Note: "Look at what is in it, then run a function by the apiVersion and kind of its functionConfig.",
			Text: fmt.Sprintf("krmcat view %s\nkrmcat run . --fn-config config.yaml \\\n  --catalog %s \\\n  --trusted-catalog %s", location, location, location)},
		{ID: "kustomize", Tool: "kustomize", Note: "kustomize does not read catalogs yet: name the function in an annotation, which each function's page has ready.",
			Text: "transformers:\n- |-\n  apiVersion: GROUP/VERSION\n  kind: KIND\n  metadata:\n    name: my-config\n    annotations:\n      config.kubernetes.io/function: |\n        container:\n          image: IMAGE@sha256:…"},
		{ID: "kpt", Tool: "kpt", Note: "Take the image of a function from its page, pinned to a digest.",
			Text: "kpt fn eval . --image IMAGE@sha256:… --fn-config config.yaml"},
		{ID: "curl", Tool: "curl", Note: "Anybody may read; the entity tag is the sha256 of the document.",
			Text: fmt.Sprintf("curl -fsSL --etag-save catalog.etag --etag-compare catalog.etag \\\n  -o catalog.yaml %s", location)},
	}
	if artifact != "" {
		ways = append(ways, ui.Way{ID: "oras", Tool: "oras", Note: "The same document as an OCI artifact, with the signatures on it.",
			Text: fmt.Sprintf("oras pull %s%s\noras discover %s%s", p.plain("--plain-http"), artifact, p.plain("--plain-http"), artifact)})
	} else {
		ways = append(ways, ui.Way{ID: "oras", Tool: "oras", Note: "Every release is an OCI artifact: definition, README and examples.",
			Text: fmt.Sprintf("oras repo ls %s%s\noras pull %s%s/REPOSITORY:TAG", p.plain("--plain-http"), p.host, p.plain("--plain-http"), p.host)})
	}
	return ways
}

// functionWays say how to use a release of a function.
func functionWays(p place, f *index.Function) []ui.Way {
	ref := p.host + "/" + f.Shown.Repository + ":" + f.Shown.Tag
	pinned := p.host + "/" + f.Shown.Repository + "@" + f.Shown.Digest
	var v *catalog.Version
	if len(f.Definition.Versions) > 0 {
		v = &f.Definition.Versions[0]
		for _, l := range f.Versions {
			if have := f.Version(l.Name); have != nil {
				v = have
				break
			}
		}
	}
	var ways []ui.Way
	allow := ""
	if v != nil && v.Runtime.Container == nil && v.Runtime.Exec != nil {
		allow = " --allow-exec"
	}
	if v != nil && v.Runtime.Container != nil && v.Runtime.Container.RequireNetwork {
		allow += " --allow-network"
	}
	ways = append(ways, ui.Way{ID: "krmcat", Tool: "krmcat", Note: "Verify the release, then run it on the resources of this folder.",
		Text: fmt.Sprintf("krmcat verify oci://%s --key publisher.pub\nkrmcat run . --fn-config config.yaml%s \\\n  --function oci://%s", pinned, allow, pinned)})
	if v != nil && v.Runtime.Container != nil {
		image := pinnedImage(v.Runtime.Container)
		ways = append(ways, ui.Way{ID: "kustomize", Tool: "kustomize", Note: "A transformer with the image pinned to its digest; build with --enable-alpha-plugins.",
			Text: fmt.Sprintf("apiVersion: %s\nkind: %s\nmetadata:\n  name: my-%s\n  annotations:\n    config.kubernetes.io/function: |\n      container:\n        image: %s%s",
				f.APIVersion(v.Name), f.Kind, strings.ToLower(f.Kind), image, networkLine(v.Runtime.Container))},
			ui.Way{ID: "kpt", Tool: "kpt", Text: fmt.Sprintf("kpt fn eval . --fn-config config.yaml \\\n  --image %s", image)})
	}
	ways = append(ways,
		ui.Way{ID: "oras", Tool: "oras", Note: "The definition, the README and the examples as files; then what is attached.",
			Text: fmt.Sprintf("oras pull %s%s\noras discover %s%s", p.plain("--plain-http"), ref, p.plain("--plain-http"), ref)},
		ui.Way{ID: "cosign", Tool: "cosign", Note: "The signature on the definition covers every byte that runs.",
			Text: fmt.Sprintf("cosign verify --key publisher.pub --insecure-ignore-tlog=true \\\n  %s%s", p.plain("--allow-http-registry"), pinned)})
	return ways
}

// pinnedImage is an image with its digest, if there is one.
func pinnedImage(c *catalog.Container) string {
	if strings.Contains(c.Image, "@") || c.Digest == "" {
		return c.Image
	}
	name := c.Image
	if i := strings.LastIndexByte(name, ':'); i > strings.LastIndexByte(name, '/') {
		name = name[:i]
	}
	return name + "@" + string(c.Digest)
}

func networkLine(c *catalog.Container) string {
	if c.RequireNetwork {
		return "\n        network: true"
	}
	return ""
}

// search answers with a list of functions: all of them, or those that were
// searched for.
func (s *server) search(w http.ResponseWriter, r *http.Request) error {
	q, err := parseQuery(r)
	if err != nil {
		return err
	}
	q.Limit = 24
	found, err := s.index.Search(r.Context(), q)
	if err != nil {
		return err
	}
	p := &ui.Search{Site: s.site(r, "Functions"), Heading: "Functions", Corrected: found.Corrected, Total: found.Total, First: q.Offset + 1, Cards: cards(found.Items)}
	p.Site.Query = q.Text
	if q.Text != "" {
		p.Heading = "Functions for “" + q.Text + "”"
		p.Site.Title = q.Text
	}
	p.Next = nextPage(r, q, len(found.Items), found.Total)
	if q.Offset > 0 {
		p.Previous = with(r, "offset", strconv.Itoa(max(q.Offset-q.Limit, 0)))
	}
	for _, name := range []string{"publisher", "tag", "runtime", "group", "status", "signed"} {
		if v := r.URL.Query().Get(name); v != "" {
			p.Filters = append(p.Filters, ui.Link{Text: filterText(name, v), Path: with(r, name, "")})
		}
	}
	for _, o := range []struct{ text, value string }{{"best match", ""}, {"name", "name"}, {"newest", "updated"}} {
		if o.value == "" && q.Text == "" {
			continue
		}
		current := string(q.Order) == o.value || q.Text == "" && q.Order == "" && o.value == "name"
		p.Sorts = append(p.Sorts, ui.Link{Text: o.text, Path: with(r, "sort", o.value), Current: current})
	}
	for _, f := range []struct{ facet, name string }{{"tag", "Tags"}, {"runtime", "Runtimes"}, {"publisher", "Publishers"}} {
		counts, err := s.index.Facets(r.Context(), f.facet, 12)
		if err != nil {
			return err
		}
		facet := ui.Facet{Name: f.name}
		for _, c := range counts {
			facet.Links = append(facet.Links, ui.Link{Text: c.Value, Path: with(r, f.facet, c.Value), Count: c.Count, Current: r.URL.Query().Get(f.facet) == c.Value})
		}
		if len(facet.Links) > 0 {
			p.Facets = append(p.Facets, facet)
		}
	}
	p.Facets = append(p.Facets, ui.Facet{Name: "Signatures", Links: []ui.Link{{Text: "attached", Path: with(r, "signed", "true"), Current: q.Signed}}})
	pageCache(w)
	return s.render(w, r, http.StatusOK, p)
}

func filterText(name, value string) string {
	if name == "signed" {
		return "signature attached"
	}
	return name + ": " + value
}

// with is the address of this page with another parameter, from the start of
// the list.
func with(r *http.Request, name, value string) string {
	v := r.URL.Query()
	if name != "offset" {
		v.Del("offset")
	}
	v.Set(name, value)
	if value == "" || value == "0" {
		v.Del(name)
	}
	if len(v) == 0 {
		return r.URL.Path
	}
	return r.URL.Path + "?" + v.Encode()
}

func (s *server) function(w http.ResponseWriter, r *http.Request) error {
	f, err := s.index.Function(r.Context(), groupParam(r), pathParam(r, "kind"), pathParam(r, "release"))
	if err != nil {
		return err
	}
	p, err := functionPage(s.place(r), f)
	if err != nil {
		return err
	}
	p.Site = s.site(r, f.Kind+" "+f.Group)
	pageCache(w)
	return s.render(w, r, http.StatusOK, p)
}

// functionPage is the page of a function.
func functionPage(at place, f *index.Function) (*ui.Function, error) {
	p := &ui.Function{
		Card: card(f.Listing), Home: webLink(f.Home), Source: webLink(f.Source), Maintainers: f.Maintainers, Elsewhere: f.Elsewhere,
		Definition: string(f.Document), Ways: functionWays(at, f), Feed: "/feeds/publishers/" + url.PathEscape(f.Slug) + ".atom",
		Message: f.Shown.Message,
	}
	p.Card.Description = f.Definition.Description
	if f.Shown.Status != index.Active {
		p.Status = string(f.Shown.Status)
	}
	if group, kind, ok := strings.Cut(f.Shown.Replacement, "/"); ok && p.Status != "" {
		p.Replacement = &ui.Link{Text: kind + " " + group, Path: functionPath(group, kind)}
	}
	path := functionPath(f.Group, f.Kind)
	for _, rel := range f.Releases {
		row := ui.Release{
			Tag: rel.Tag, Path: path + "/" + url.PathEscape(rel.Tag), Repository: rel.Repository, Digest: rel.Digest, Published: rel.Published,
			Signed: rel.Signed, Kind: "release", Message: rel.Message, Versions: rel.APIVersions, Attached: rel.Attached, Current: rel == f.Shown,
		}
		switch {
		case rel.Prerelease:
			row.Kind = "pre-release"
		case rel.Version == "":
			row.Kind = "tag"
		}
		if rel.Status != index.Active {
			row.Status = string(rel.Status)
		}
		p.Releases = append(p.Releases, row)
		if row.Current {
			p.Shown = row
		}
	}
	if len(f.Readme) > 0 {
		html, err := ui.Markdown(f.Readme)
		if err != nil {
			return nil, err
		}
		p.Readme = html
	}
	if f.Examples != "" {
		p.ExamplesURL = "/v2/" + f.Shown.Repository + "/blobs/" + string(f.Examples)
	}
	seen := map[string]bool{}
	for i := range f.Definition.Versions {
		v := &f.Definition.Versions[i]
		p.Configs = append(p.Configs, config(f, v))
		for _, e := range v.Examples {
			if !seen[e] {
				seen[e] = true
				p.Examples = append(p.Examples, exampleName(e))
			}
		}
	}
	return p, nil
}

// exampleName is what is shown of an example's location: of a file in an
// artifact, the file.
func exampleName(location string) string {
	if _, file, ok := strings.Cut(location, "#"); ok && strings.HasPrefix(location, "oci://") {
		return file
	}
	return location
}

// webLink is a link that a browser can follow, or nothing.
func webLink(s string) string {
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" {
		return ""
	}
	return s
}

func config(f *index.Function, v *catalog.Version) ui.Config {
	apiVersion := f.APIVersion(v.Name)
	c := ui.Config{
		APIVersion: apiVersion + ", kind " + f.Kind, Name: v.Name, Release: f.Shown.Tag, Idempotent: v.Idempotent, ConfigMap: v.ConfigMap, License: v.License,
		Rows: ui.SchemaRows(v.Schema), Skeleton: ui.Skeleton(apiVersion, f.Kind, v.Schema), SchemaPath: schemaPath(f.Group, f.Kind, v.Name),
	}
	for _, l := range f.Versions {
		if l.Name == v.Name && l.Digest == f.Shown.Digest {
			c.InCatalog = l.InCatalog
		}
	}
	if x := v.Runtime.Container; x != nil {
		c.Network, c.Storage = x.RequireNetwork, x.RequireStorageMount
		c.Runtimes = append(c.Runtimes, ui.Runtime{Name: "Container", Items: []ui.RuntimeItem{{Location: x.Image, Digest: hexOf(string(x.Digest))}}})
	}
	if x := v.Runtime.Exec; x != nil {
		r := ui.Runtime{Name: "Executables"}
		for _, pl := range x.Platforms {
			r.Items = append(r.Items, ui.RuntimeItem{Platform: pl.OS + "/" + pl.Arch, Location: pl.URI, Digest: hexOf(string(pl.Digest))})
		}
		c.Runtimes = append(c.Runtimes, r)
	}
	if x := v.Runtime.Starlark; x != nil {
		c.Runtimes = append(c.Runtimes, ui.Runtime{Name: "Starlark", Items: []ui.RuntimeItem{{Location: x.URI, Digest: hexOf(string(x.Digest))}}})
	}
	return c
}

func (s *server) catalogs(w http.ResponseWriter, r *http.Request) error {
	list, err := s.index.Catalogs(r.Context())
	if err != nil {
		return err
	}
	p := &ui.Catalogs{Site: s.site(r, "Catalogs"), Rows: catalogRows(list), Ways: catalogWays(s.place(r), "/catalog.yaml", "")}
	pageCache(w)
	return s.render(w, r, http.StatusOK, p)
}

func (s *server) catalogPage(w http.ResponseWriter, r *http.Request) error {
	name := pathParam(r, "name")
	list, err := s.index.Catalogs(r.Context())
	if err != nil {
		return err
	}
	for _, c := range list {
		if c.Name != name {
			continue
		}
		doc, err := s.index.Catalog(r.Context(), name)
		if err != nil {
			return err
		}
		p := &ui.Catalog{Site: s.site(r, name), CatalogRow: catalogRow(c), Pushed: c.Pushed(), SHA256: doc.Digest.Encoded(), Size: len(doc.Data)}
		artifact := ""
		if doc.Repository != "" {
			artifact = s.host(r) + "/" + doc.Repository + ":" + doc.Tag
		}
		p.Ways = catalogWays(s.place(r), "/catalogs/"+url.PathEscape(name)+"/catalog.yaml", artifact)
		for _, v := range s.apiCatalog(r, c).Snapshots {
			p.Versions = append(p.Versions, ui.CatalogVersion{Name: v.Version, Path: v.URL, SHA256: v.SHA256, Reference: v.Reference, Published: v.Published, Signed: v.Signed})
		}
		if p.Entries, err = s.entries(r, doc); err != nil {
			return err
		}
		pageCache(w)
		return s.render(w, r, http.StatusOK, p)
	}
	return fmt.Errorf("catalog %s: %w", name, index.ErrNotFound)
}

// entries lists what is in a catalog, with links to what this site has a page
// of.
func (s *server) entries(r *http.Request, doc *index.Document) ([]ui.Link, error) {
	functions, err := doc.Functions(r.Context())
	if err != nil {
		return nil, err
	}
	var out []ui.Link
	for _, f := range functions {
		found, err := s.index.Search(r.Context(), index.Query{Group: f.Group, Kind: f.Kind, Limit: 1})
		if err != nil {
			return nil, err
		}
		l := ui.Link{Text: f.String()}
		if found.Total > 0 {
			l.Path = functionPath(f.Group, f.Kind)
		}
		out = append(out, l)
	}
	return out, nil
}

func (s *server) publishers(w http.ResponseWriter, r *http.Request) error {
	list, err := s.index.Publishers(r.Context())
	if err != nil {
		return err
	}
	p := &ui.Publishers{Site: s.site(r, "Publishers")}
	for _, x := range list {
		p.Rows = append(p.Rows, ui.PublisherRow{Name: x.Name, Path: "/publishers/" + url.PathEscape(x.Slug), Functions: x.Functions, Updated: x.Updated})
	}
	pageCache(w)
	return s.render(w, r, http.StatusOK, p)
}

func (s *server) publisher(w http.ResponseWriter, r *http.Request) error {
	slug := pathParam(r, "publisher")
	found, err := s.index.Search(r.Context(), index.Query{Publisher: slug, Limit: 60})
	if err != nil {
		return err
	}
	if found.Total == 0 {
		return fmt.Errorf("publisher %s: %w", slug, index.ErrNotFound)
	}
	escaped := url.PathEscape(slug)
	p := &ui.Publisher{
		Name: found.Items[0].Publisher, CatalogURL: "/catalogs/" + escaped + "/catalog.yaml", Feed: "/feeds/publishers/" + escaped + ".atom",
		Total: found.Total, Cards: cards(found.Items), Ways: catalogWays(s.place(r), "/catalogs/"+escaped+"/catalog.yaml", ""),
	}
	p.Site = s.site(r, p.Name)
	if found.Total > len(found.Items) {
		p.More = "/search?" + url.Values{"publisher": {slug}}.Encode()
	}
	pageCache(w)
	return s.render(w, r, http.StatusOK, p)
}

func (s *server) static(w http.ResponseWriter, r *http.Request) error {
	data, mediaType, ok := ui.Static(pathParam(r, "file"))
	if !ok {
		return &httpError{status: http.StatusNotFound, msg: "there is no such file"}
	}
	rep, err := newRepresentation(mediaType, data)
	if err != nil {
		return err
	}
	w.Header().Set("X-Content-Type-Options", "nosniff")
	rep.serve(w, r, s.started, false)
	return nil
}
