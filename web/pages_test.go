package web_test

import (
	"strings"
	"testing"

	"golang.org/x/net/html"

	"github.com/krmcat/krmcat/web"
)

// nodes lists the elements of a page that have a tag.
func nodes(t *testing.T, page, tag string) []*html.Node {
	t.Helper()
	doc, err := html.Parse(strings.NewReader(page))
	if err != nil {
		t.Fatal(err)
	}
	var out []*html.Node
	var walk func(*html.Node)
	walk = func(n *html.Node) {
		if n.Type == html.ElementNode && n.Data == tag {
			out = append(out, n)
		}
		for c := n.FirstChild; c != nil; c = c.NextSibling {
			walk(c)
		}
	}
	walk(doc)
	return out
}

func attr(n *html.Node, name string) string {
	for _, a := range n.Attr {
		if a.Key == name {
			return a.Val
		}
	}
	return ""
}

func textOf(n *html.Node) string {
	var b strings.Builder
	var walk func(*html.Node)
	walk = func(n *html.Node) {
		if n.Type == html.TextNode {
			b.WriteString(n.Data)
		}
		for c := n.FirstChild; c != nil; c = c.NextSibling {
			walk(c)
		}
	}
	walk(n)
	return strings.TrimSpace(b.String())
}

var allPages = []string{
	"/", "/search?q=labels", "/search?q=nothing+at+all", "/functions", "/functions?tag=mutator&sort=updated",
	"/functions/example.com/SetLabels", "/functions/example.com/SetLabels/v1.0.0",
	"/catalogs", "/catalogs/tools", "/catalogs/acme", "/publishers", "/publishers/acme",
}

// Every page holds together: one heading, a title, labelled fields, ids that
// are there once, links that lead somewhere.
func TestPages(t *testing.T) {
	t.Parallel()
	s := filled(t)
	followed := map[string]bool{}
	for _, path := range append([]string{"/nope"}, allPages...) {
		a := s.get(path)
		if path == "/nope" && a.status != 404 || path != "/nope" && a.status != 200 || !strings.HasPrefix(a.header.Get("Content-Type"), "text/html") {
			t.Errorf("GET %s: %d %s", path, a.status, a.header.Get("Content-Type"))
			continue
		}
		if csp := a.header.Get("Content-Security-Policy"); !strings.Contains(csp, "default-src 'none'") || strings.Contains(csp, "unsafe") {
			t.Errorf("%s: Content-Security-Policy %q", path, csp)
		}
		if n := len(nodes(t, a.body, "h1")); n != 1 {
			t.Errorf("%s: %d first headings", path, n)
		}
		if title := nodes(t, a.body, "title"); len(title) != 1 || !strings.Contains(textOf(title[0]), "Example") {
			t.Errorf("%s: title %v", path, title)
		}
		if lang := attr(nodes(t, a.body, "html")[0], "lang"); lang != "en" {
			t.Errorf("%s: language %q", path, lang)
		}
		labels := map[string]bool{}
		for _, l := range nodes(t, a.body, "label") {
			labels[attr(l, "for")] = true
		}
		for _, i := range nodes(t, a.body, "input") {
			if id := attr(i, "id"); attr(i, "type") == "search" && !labels[id] {
				t.Errorf("%s: field %q has no label", path, id)
			}
		}
		ids := map[string]bool{}
		for _, tag := range []string{"section", "h2", "h3", "pre", "input", "main"} {
			for _, n := range nodes(t, a.body, tag) {
				if id := attr(n, "id"); id != "" && ids[id] {
					t.Errorf("%s: the id %q is there twice", path, id)
				} else {
					ids[id] = true
				}
			}
		}
		for _, n := range append(nodes(t, a.body, "script"), nodes(t, a.body, "style")...) {
			if n.Data == "style" || attr(n, "src") != "/static/app.js" || textOf(n) != "" {
				t.Errorf("%s: a %s of its own", path, n.Data)
			}
		}
		for _, tag := range []string{"a", "link", "script"} {
			for _, n := range nodes(t, a.body, tag) {
				to := attr(n, "href") + attr(n, "src")
				if strings.HasPrefix(to, "#") {
					if !ids[to[1:]] && to != "#" {
						t.Errorf("%s: link to %s, which is not there", path, to)
					}
					continue
				}
				if strings.HasPrefix(to, "/") && !followed[to] {
					followed[to] = true
					if b := s.get(to); b.status != 200 {
						t.Errorf("%s links to %s: %d", path, to, b.status)
					}
				}
				if strings.Contains(to, "javascript:") {
					t.Errorf("%s: link to %s", path, to)
				}
			}
		}
		if strings.Contains(a.body, "alert(1)</script>") || strings.Contains(a.body, "<b>& more") {
			t.Errorf("%s: text of a publisher is markup:\n%s", path, a.body)
		}
	}
	if len(followed) < 20 {
		t.Errorf("only %d links were followed", len(followed))
	}
}

func TestFunctionPage(t *testing.T) {
	t.Parallel()
	s := filled(t)
	a := s.get("/functions/example.com/SetLabels")
	for _, want := range []string{
		"krmcat verify oci://127.0.0.1", "kpt fn eval", "config.kubernetes.io/function", "oras pull --plain-http", "cosign verify",
		"spec.labels", "The labels", "no signature", "v1.0.0", "sha256:", "map of string",
		`<a href="https://example.com" rel="nofollow`, // the README's link
	} {
		if !strings.Contains(a.body, want) {
			t.Errorf("the page has no %q", want)
		}
	}
	if len(nodes(t, a.body, "img")) != 0 {
		t.Error("the page loads images")
	}
}

func TestFirstPageOfAnEmptySite(t *testing.T) {
	t.Parallel()
	s := newSite(t, web.Options{})
	a := s.get("/")
	if a.status != 200 || !strings.Contains(a.body, "Nothing is published yet") || !strings.Contains(a.body, "krmcat publish function.yaml 127.0.0.1:") {
		t.Errorf("%d\n%s", a.status, a.body)
	}
}

// HEAD is as GET, without the page.
func TestHead(t *testing.T) {
	t.Parallel()
	s := filled(t)
	for _, path := range allPages {
		if a := s.do("HEAD", path); a.status != 200 || a.body != "" {
			t.Errorf("HEAD %s: %d", path, a.status)
		}
	}
	if a := s.do("POST", "/"); a.status != 405 {
		t.Errorf("POST /: %d", a.status)
	}
}
