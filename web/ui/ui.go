// Package ui renders the pages of a krmcat server. A page is a struct with
// what is shown; package web builds it and this package makes HTML of it. All
// pages work without script.
package ui

import (
	"embed"
	"fmt"
	"html/template"
	"io"
	"io/fs"
	"mime"
	"path"
	"strings"
	"time"
)

//go:embed layout home search function catalogs publishers error
var templates embed.FS

//go:embed static
var static embed.FS

// Page is a page that can be rendered.
type Page interface {
	// template names the folder with the page's template.
	template() string
}

// Pages renders pages. It is safe for concurrent use.
type Pages struct{ byName map[string]*template.Template }

// New parses the templates.
func New() (*Pages, error) {
	p := &Pages{byName: map[string]*template.Template{}}
	names, err := fs.Glob(templates, "*/*.tmpl")
	if err != nil {
		return nil, err
	}
	for _, n := range names {
		dir := path.Dir(n)
		if dir == "layout" {
			continue
		}
		t, err := template.New("layout.tmpl").Funcs(funcs).ParseFS(templates, "layout/*.tmpl", n)
		if err != nil {
			return nil, fmt.Errorf("parsing the pages: %w", err)
		}
		p.byName[strings.TrimSuffix(path.Base(n), ".tmpl")] = t
	}
	return p, nil
}

// Render writes a page.
func (p *Pages) Render(w io.Writer, page Page) error {
	t := p.byName[page.template()]
	if t == nil {
		return fmt.Errorf("no page %s", page.template())
	}
	return t.Execute(w, page)
}

// Static returns a file that pages load, and its media type.
func Static(name string) (data []byte, mediaType string, ok bool) {
	if !fs.ValidPath(name) || strings.Contains(name, "/") {
		return nil, "", false
	}
	data, err := static.ReadFile("static/" + name)
	if err != nil {
		return nil, "", false
	}
	switch path.Ext(name) {
	case ".js":
		return data, "text/javascript; charset=utf-8", true
	case ".css":
		return data, "text/css; charset=utf-8", true
	}
	return data, mime.TypeByExtension(path.Ext(name)), true
}

var funcs = template.FuncMap{
	"date":  func(t time.Time) string { return t.Format("2 Jan 2006") },
	"stamp": func(t time.Time) string { return t.Format(time.RFC3339) },
	"short": func(digest string) string {
		algorithm, hex, ok := strings.Cut(digest, ":")
		if !ok || len(hex) < 12 {
			return digest
		}
		return algorithm + ":" + hex[:12]
	},
	"count": func(n int, one, many string) string {
		if n == 1 {
			return "1 " + one
		}
		return fmt.Sprintf("%d %s", n, many)
	},
	"join":    strings.Join,
	"snippet": func(id, label, text string) Snippet { return Snippet{ID: id, Label: label, Text: text} },
}

// Site is what is common to all pages.
type Site struct {
	Name    string
	Title   string // of the page
	Query   string // in the search box
	Version string // of krmcat
	Path    string // of the page
	Base    string // where clients reach the server
}

// Snippet is text to copy.
type Snippet struct {
	ID, Label, Text string
}

// Way is a way to use something: a tool and what to type.
type Way struct {
	ID   string // for the address of the tab
	Tool string
	Note string
	Text string
}

// Card is a function in a list.
type Card struct {
	Kind, Group, Path      string
	Description            string
	Publisher              string
	PublisherPath          string
	Tag                    string
	Versions               []string
	Runtimes               []string
	Tags                   []string
	Signed                 bool
	Prerelease, Unreleased bool
	Status                 string // empty if it is active
	Updated                time.Time
}

// CatalogRow is a catalog in a list.
type CatalogRow struct {
	Name, Path, URL string
	From            string // who or what it is from
	Functions       int
	Updated         time.Time
	Signed          bool
}

// Home is the first page.
type Home struct {
	Site
	Functions, Releases, Publishers int
	Recent                          []Card
	Tags                            []Link
	Catalogs                        []CatalogRow
	Ways                            []Way
	NotReady                        bool // the index is being built
	HostName                        string
}

// Link is something to go to, with how much is there.
type Link struct {
	Text, Path string
	Count      int
	Current    bool
}

// Search is a list of functions.
type Search struct {
	Site
	Heading   string
	Corrected string
	Total     int
	First     int // number of the first one shown
	Cards     []Card
	Facets    []Facet
	Filters   []Link // what the list is narrowed by; Path is without it
	Hidden    []Field
	Sorts     []Link
	Previous  string
	Next      string
}

// Facet is a kind of thing that lists are narrowed by.
type Facet struct {
	Name  string
	Links []Link
}

// Field is a hidden field of a form.
type Field struct{ Name, Value string }

// Function is the page of a function.
type Function struct {
	Site
	Card
	Status      string
	Message     string
	Replacement *Link
	Home        string
	Source      string
	Maintainers []string
	Releases    []Release
	Shown       Release
	Configs     []Config
	Readme      template.HTML // made by [Markdown]
	Examples    []string
	ExamplesURL string // where the examples can be downloaded
	Definition  string
	Ways        []Way
	Elsewhere   []string
	Feed        string
}

// Release is a release in the list of a function.
type Release struct {
	Tag        string
	Path       string
	Repository string
	Digest     string
	Published  time.Time
	Signed     bool
	Kind       string // release, pre-release or tag
	Status     string // empty if it is active
	Message    string
	Versions   []string
	Current    bool
	Attached   []string
}

// Config is a version of the functionConfig.
type Config struct {
	APIVersion string
	Name       string
	Release    string
	InCatalog  bool
	Idempotent bool
	Network    bool
	Storage    bool
	ConfigMap  bool
	License    string
	Runtimes   []Runtime
	Rows       []SchemaRow
	SchemaPath string
	Skeleton   string // a functionConfig to begin with
}

// Runtime is a way in which a function is run.
type Runtime struct {
	Name  string
	Items []RuntimeItem
}

// RuntimeItem is an image, an executable or a script.
type RuntimeItem struct{ Platform, Location, Digest string }

// Catalogs is the list of catalogs.
type Catalogs struct {
	Site
	Rows []CatalogRow
	All  CatalogRow
	Ways []Way
}

// Catalog is the page of a catalog.
type Catalog struct {
	Site
	CatalogRow
	Pushed   bool
	SHA256   string
	Size     int
	Versions []CatalogVersion
	Entries  []Link
	Ways     []Way
}

// CatalogVersion is a version of a catalog that never changes.
type CatalogVersion struct {
	Name, Path, SHA256, Reference string
	Published                     time.Time
	Signed                        bool
}

// Publishers is the list of publishers.
type Publishers struct {
	Site
	Rows []PublisherRow
}

// PublisherRow is a publisher in a list.
type PublisherRow struct {
	Name, Path string
	Functions  int
	Updated    time.Time
}

// Publisher is the page of a publisher.
type Publisher struct {
	Site
	Name       string
	CatalogURL string
	Feed       string
	Total      int
	Cards      []Card
	More       string // path of all of them, if there are more
	Ways       []Way
}

// Error is the page for what cannot be shown.
type Error struct {
	Site
	Status  int
	Title   string
	Message string
	Fix     string
}

func (*Home) template() string       { return "home" }
func (*Search) template() string     { return "search" }
func (*Function) template() string   { return "function" }
func (*Catalogs) template() string   { return "catalogs" }
func (*Catalog) template() string    { return "catalog" }
func (*Publishers) template() string { return "publishers" }
func (*Publisher) template() string  { return "publisher" }
func (*Error) template() string      { return "error" }
