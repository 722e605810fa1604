package web

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"net/http"
	"strings"
	"time"

	"github.com/krmcat/krmcat/catalog/index"
)

// feedLength is how many of the newest releases feeds have.
const feedLength = 50

// atom is a feed (RFC 4287).
type atom struct {
	XMLName xml.Name    `xml:"http://www.w3.org/2005/Atom feed"`
	ID      string      `xml:"id"`
	Title   string      `xml:"title"`
	Updated string      `xml:"updated"`
	Links   []atomLink  `xml:"link"`
	Entries []atomEntry `xml:"entry"`
}

type atomLink struct {
	Rel  string `xml:"rel,attr"`
	Href string `xml:"href,attr"`
}

type atomEntry struct {
	ID      string     `xml:"id"`
	Title   string     `xml:"title"`
	Updated string     `xml:"updated"`
	Author  string     `xml:"author>name"`
	Summary string     `xml:"summary,omitempty"`
	Links   []atomLink `xml:"link"`
}

// jsonFeed is a feed (JSON Feed 1.1).
type jsonFeed struct {
	Version string         `json:"version"`
	Title   string         `json:"title"`
	Home    string         `json:"home_page_url"`
	Feed    string         `json:"feed_url"`
	Items   []jsonFeedItem `json:"items"`
}

type jsonFeedItem struct {
	ID        string              `json:"id"`
	URL       string              `json:"url"`
	Title     string              `json:"title"`
	Text      string              `json:"content_text"`
	Published string              `json:"date_published"`
	Authors   []map[string]string `json:"authors,omitempty"`
}

func (s *server) feedPublisher(w http.ResponseWriter, r *http.Request) error {
	file := pathParam(r, "file")
	if p, ok := strings.CutSuffix(file, ".atom"); ok && slugExpr.MatchString(p) {
		return s.serveAtom(w, r, p)
	}
	if p, ok := strings.CutSuffix(file, ".json"); ok && slugExpr.MatchString(p) {
		return s.serveJSONFeed(w, r, p)
	}
	return &httpError{status: http.StatusNotFound, msg: "there is no such feed", fix: "feeds are /feeds/publishers/NAME.atom and NAME.json"}
}

func (s *server) feedAtom(w http.ResponseWriter, r *http.Request) error { return s.serveAtom(w, r, "") }
func (s *server) feedJSON(w http.ResponseWriter, r *http.Request) error {
	return s.serveJSONFeed(w, r, "")
}

func (s *server) feedTitle(publisher string) string {
	if publisher == "" {
		return s.opts.Name + ": new releases"
	}
	return s.opts.Name + ": new releases of " + publisher
}

// eventTitle is such as SetLabels v1.2.0.
func eventTitle(e index.Event) string { return e.Kind + " " + e.Tag + " (" + e.Group + ")" }

func (s *server) eventID(r *http.Request, e index.Event) string {
	return "oci://" + s.host(r) + "/" + e.Repository + "@" + e.Digest + "#" + e.Tag
}

func (s *server) serveAtom(w http.ResponseWriter, r *http.Request, publisher string) error {
	events, err := s.index.Newest(r.Context(), publisher, feedLength)
	if err != nil {
		return err
	}
	base := s.base(r)
	f := atom{
		ID: base + r.URL.Path, Title: s.feedTitle(publisher), Updated: time.Unix(0, 0).UTC().Format(time.RFC3339),
		Links: []atomLink{{"self", base + r.URL.Path}, {"alternate", base + "/"}},
	}
	for i, e := range events {
		if i == 0 {
			f.Updated = e.Published.Format(time.RFC3339)
		}
		author := e.Publisher
		if author == "" {
			author = "unknown"
		}
		f.Entries = append(f.Entries, atomEntry{
			ID: s.eventID(r, e), Title: eventTitle(e), Updated: e.Published.Format(time.RFC3339), Author: author, Summary: e.Description,
			Links: []atomLink{{"alternate", base + functionPath(e.Group, e.Kind) + "/" + e.Tag}},
		})
	}
	var b bytes.Buffer
	b.WriteString(xml.Header)
	enc := xml.NewEncoder(&b)
	enc.Indent("", " ")
	if err := enc.Encode(f); err != nil {
		return err
	}
	return s.serveFeed(w, r, "application/atom+xml", b.Bytes(), events)
}

func (s *server) serveJSONFeed(w http.ResponseWriter, r *http.Request, publisher string) error {
	events, err := s.index.Newest(r.Context(), publisher, feedLength)
	if err != nil {
		return err
	}
	base := s.base(r)
	f := jsonFeed{Version: "https://jsonfeed.org/version/1.1", Title: s.feedTitle(publisher), Home: base + "/", Feed: base + r.URL.Path, Items: []jsonFeedItem{}}
	for _, e := range events {
		item := jsonFeedItem{
			ID: s.eventID(r, e), URL: base + functionPath(e.Group, e.Kind) + "/" + e.Tag, Title: eventTitle(e),
			Text: e.Description, Published: e.Published.Format(time.RFC3339),
		}
		if e.Publisher != "" {
			item.Authors = []map[string]string{{"name": e.Publisher}}
		}
		f.Items = append(f.Items, item)
	}
	data, err := json.MarshalIndent(f, "", " ")
	if err != nil {
		return err
	}
	return s.serveFeed(w, r, "application/feed+json", append(data, '\n'), events)
}

func (s *server) serveFeed(w http.ResponseWriter, r *http.Request, mediaType string, data []byte, events []index.Event) error {
	rep, err := newRepresentation(mediaType, data)
	if err != nil {
		return err
	}
	var modified time.Time
	if len(events) > 0 {
		modified = events[0].Published
	}
	rep.serve(w, r, modified, false)
	return nil
}
