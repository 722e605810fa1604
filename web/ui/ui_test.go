package ui_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/krmcat/krmcat/web/ui"
)

// What a publisher writes is shown as text, and its links say that they are
// not ours.
func TestMarkdown(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, in, want string }{
		{"heading", "# One\n\n###### Six", "<h3>One</h3>\n<h6>Six</h6>\n"},
		{"link", "[a](https://example.com)", `<p><a href="https://example.com" rel="nofollow noreferrer">a</a></p>` + "\n"},
		{"script link", "[a](javascript:alert(1))", "<p>a</p>\n"},
		{"data link", "[a](data:text/html;base64,AAAA)", "<p>a</p>\n"},
		{"relative link", "[a](/v2/)", "<p>a</p>\n"},
		{"image", "![a](https://example.com/x.png)", `<p><a href="https://example.com/x.png" rel="nofollow noreferrer">a</a></p>` + "\n"},
		{"badge", "[![build](https://example.com/b.svg)](https://example.com/ci)", `<p><a href="https://example.com/ci" rel="nofollow noreferrer">build</a></p>` + "\n"},
		{"html", "<script>alert(1)</script>\n<img src=x onerror=alert(1)>\n<style>*{}</style>", ""},
		{"inline html", "a <b onclick=x>b</b> <svg/onload=alert(1)> c", "<p>a b &lt;svg/onload=alert(1)&gt; c</p>\n"},
		{"autolink", "<javascript:alert(1)>", "<p>javascript:alert(1)</p>\n"},
		{"code", "```yaml\na: <b>\n```", "<pre><code class=\"language-yaml\">a: &lt;b&gt;\n</code></pre>\n"},
		{"code class", "```x\" onclick=\"y\na\n```", "<pre><code>a\n</code></pre>\n"},
		{"task", "- [x] a", "<ul>\n<li><input checked=\"\" disabled=\"\" type=\"checkbox\"> a</li>\n</ul>\n"},
	} {
		got, err := ui.Markdown([]byte(c.in))
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if diff := cmp.Diff(strings.TrimSpace(c.want), strings.TrimSpace(string(got))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
}

func FuzzMarkdown(f *testing.F) {
	for _, s := range []string{"# a", "[a](javascript:x)", "![[a](b)](c)", "<script>", "|a|b|\n|-|-|\n|c|d|", "[![a](b)](c)", "- [x] a"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, err := ui.Markdown([]byte(s))
		if err != nil {
			t.Fatal(err)
		}
		lower := strings.ToLower(string(got))
		for _, bad := range []string{"<script", "<img", "<style", "<iframe", "<form", "<svg", "href=\"javascript", "href=\"data", "href=\"/"} {
			if strings.Contains(lower, bad) {
				t.Errorf("%q becomes %q", s, got)
			}
		}
	})
}

func TestSchemaRows(t *testing.T) {
	t.Parallel()
	schema := `{"type":"object","required":["spec"],"properties":{
		"apiVersion":{"type":"string"},"metadata":{"type":"object"},
		"spec":{"type":"object","required":["b"],"properties":{
			"z":{"type":"string","enum":["x","y"],"default":"x","description":"Last letter first."},
			"b":{"type":"array","minItems":1,"maxItems":3,"items":{"type":"object","required":["name"],"properties":{"name":{"type":"string","pattern":"^a","minLength":2}}}},
			"c":{"type":"object","additionalProperties":{"type":"integer","format":"int32"}},
			"d":{"x-kubernetes-int-or-string":true},
			"e":{}}}}}`
	want := []ui.SchemaRow{
		{Path: "spec", Type: "object", Required: true},
		{Path: "spec.z", Depth: 1, Type: "string", Default: `"x"`, Constraints: []string{`one of "x", "y"`}, Description: "Last letter first."},
		{Path: "spec.b", Depth: 1, Type: "list of object", Required: true, Constraints: []string{"1 to 3 items"}},
		{Path: "spec.b[].name", Depth: 2, Type: "string", Required: true, Constraints: []string{"matches ^a", "at least 2 characters"}},
		{Path: "spec.c", Depth: 1, Type: "map of integer (int32)"},
		{Path: "spec.d", Depth: 1, Type: "integer or string"},
		{Path: "spec.e", Depth: 1, Type: "anything"},
	}
	if diff := cmp.Diff(want, ui.SchemaRows(json.RawMessage(schema))); diff != "" {
		t.Errorf("rows (-want +got):\n%s", diff)
	}
	wantSkeleton := `apiVersion: example.com/v1
kind: Fn
metadata:
  name: my-fn
spec:
  b: []
`
	if diff := cmp.Diff(wantSkeleton, ui.Skeleton("example.com/v1", "Fn", json.RawMessage(schema))); diff != "" {
		t.Errorf("skeleton (-want +got):\n%s", diff)
	}
	for _, broken := range []string{"", "null", "[]", "{", `{"properties":[]}`, `{"properties":{"a":1}}`, `{"properties":{"a":{"properties":7}}}`} {
		if rows := ui.SchemaRows(json.RawMessage(broken)); len(rows) != 0 {
			t.Errorf("rows of %s: %v", broken, rows)
		}
	}
}

func FuzzSchemaRows(f *testing.F) {
	f.Add(`{"properties":{"a":{"type":"array","items":{"properties":{"b":{"enum":[1]}}}}}}`)
	f.Add(`{"properties":{"spec":{"required":["a"],"properties":{"a":{"default":{"x":1}}}}}}`)
	f.Fuzz(func(t *testing.T, s string) {
		if rows := ui.SchemaRows(json.RawMessage(s)); len(rows) > 300 {
			t.Errorf("%d rows", len(rows))
		}
		if got := ui.Skeleton("a/v1", "B", json.RawMessage(s)); !strings.HasPrefix(got, "apiVersion: a/v1\nkind: B\n") {
			t.Errorf("skeleton %q", got)
		}
	})
}

func TestRender(t *testing.T) {
	t.Parallel()
	pages, err := ui.New()
	if err != nil {
		t.Fatal(err)
	}
	site := ui.Site{Name: "Example", Title: "A <title>", Query: `"><script>`}
	card := ui.Card{Kind: "SetLabels", Group: "example.com", Path: "/functions/example.com/SetLabels", Status: "deprecated", Tags: []string{"a b"}, Updated: time.Unix(0, 0)}
	for name, p := range map[string]ui.Page{
		"home":       &ui.Home{Site: site, Recent: []ui.Card{card}},
		"not ready":  &ui.Home{Site: site, NotReady: true},
		"search":     &ui.Search{Site: site, Cards: []ui.Card{card}, Corrected: "x"},
		"function":   &ui.Function{Site: site, Card: card, Status: "yanked", Message: "<i>", Replacement: &ui.Link{Text: "Other", Path: "/x"}},
		"catalogs":   &ui.Catalogs{Site: site},
		"catalog":    &ui.Catalog{Site: site},
		"publishers": &ui.Publishers{Site: site},
		"publisher":  &ui.Publisher{Site: site},
		"error":      &ui.Error{Site: site, Status: 404},
	} {
		var b bytes.Buffer
		if err := pages.Render(&b, p); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if s := b.String(); strings.Contains(s, `"><script>`) || strings.Contains(s, "<i>") || !strings.Contains(s, "A &lt;title&gt;") || !strings.HasSuffix(s, "</html>\n") {
			t.Errorf("%s:\n%s", name, s)
		}
	}
}

func TestStatic(t *testing.T) {
	t.Parallel()
	for name, mediaType := range map[string]string{"style.css": "text/css; charset=utf-8", "app.js": "text/javascript; charset=utf-8", "icon.svg": "image/svg+xml"} {
		if data, got, ok := ui.Static(name); !ok || got != mediaType || len(data) == 0 {
			t.Errorf("%s: %v %s", name, ok, got)
		}
	}
	for _, name := range []string{"", ".", "..", "nope", "../ui.go", "a/b"} {
		if _, _, ok := ui.Static(name); ok {
			t.Errorf("%s is there", name)
		}
	}
}
