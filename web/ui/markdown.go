package ui

import (
	"bytes"
	"fmt"
	"html/template"
	"regexp"
	"sync"

	"github.com/microcosm-cc/bluemonday"
	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/text"
	"github.com/yuin/goldmark/util"
)

// maxMarkdown bounds what is rendered, in bytes: of a longer text the rest is
// left out.
const maxMarkdown = 256 << 10

// Markdown makes HTML of a README that anybody may have written. Headings go
// down by two levels, to stand below those of the page. Images become links,
// as loading them would tell others who reads what. Scripts, styles, forms,
// frames and HTML of the text's own are left out; links say that they are not
// ours.
func Markdown(source []byte) (template.HTML, error) {
	if len(source) > maxMarkdown {
		source = append(bytes.Clone(source[:maxMarkdown]), "\n\n(The rest is left out here.)\n"...)
	}
	var b bytes.Buffer
	if err := markdown().Convert(source, &b); err != nil {
		return "", fmt.Errorf("rendering Markdown: %w", err)
	}
	return template.HTML(policy().SanitizeBytes(b.Bytes())), nil
}

var markdown = sync.OnceValue(func() goldmark.Markdown {
	return goldmark.New(
		goldmark.WithExtensions(extension.GFM),
		goldmark.WithParserOptions(parser.WithASTTransformers(util.Prioritized(adjust{}, 100))),
	)
})

// adjust fits a text into a page.
type adjust struct{}

func (adjust) Transform(doc *ast.Document, _ text.Reader, _ parser.Context) {
	var images []*ast.Image
	_ = ast.Walk(doc, func(n ast.Node, entering bool) (ast.WalkStatus, error) { // the function never fails
		if !entering {
			return ast.WalkContinue, nil
		}
		switch n := n.(type) {
		case *ast.Heading:
			n.Level = min(n.Level+2, 6)
		case *ast.Image:
			images = append(images, n)
		}
		return ast.WalkContinue, nil
	})
	for _, img := range images {
		link := ast.NewLink()
		link.Destination, link.Title = img.Destination, img.Title
		for c := img.FirstChild(); c != nil; {
			next := c.NextSibling()
			link.AppendChild(link, c)
			c = next
		}
		if !link.HasChildren() {
			link.AppendChild(link, ast.NewString([]byte("image")))
		}
		if parent := img.Parent(); parent != nil {
			if insideLink(parent) {
				// A link in a link is none: a badge keeps its words.
				for c := link.FirstChild(); c != nil; {
					next := c.NextSibling()
					parent.InsertBefore(parent, img, c)
					c = next
				}
				parent.RemoveChild(parent, img)
				continue
			}
			parent.ReplaceChild(parent, img, link)
		}
	}
}

func insideLink(n ast.Node) bool {
	for ; n != nil; n = n.Parent() {
		if n.Kind() == ast.KindLink {
			return true
		}
	}
	return false
}

// policy is the second wall: it lets through what a text may have, whatever
// the renderer made.
var policy = sync.OnceValue(func() *bluemonday.Policy {
	p := bluemonday.NewPolicy()
	p.AllowStandardURLs()
	p.AllowRelativeURLs(false)
	p.AllowURLSchemes("https", "http", "mailto")
	p.RequireNoFollowOnLinks(true)
	p.RequireNoReferrerOnLinks(true)
	p.AllowAttrs("href").OnElements("a")
	p.AllowElements("h3", "h4", "h5", "h6", "p", "br", "hr", "strong", "em", "del", "code", "pre", "blockquote",
		"ul", "ol", "li", "table", "thead", "tbody", "tr", "th", "td")
	p.AllowAttrs("class").Matching(regexp.MustCompile(`^language-[A-Za-z0-9_+-]{1,30}$`)).OnElements("code")
	p.AllowAttrs("align").Matching(regexp.MustCompile(`^(left|right|center)$`)).OnElements("th", "td")
	p.AllowAttrs("start").Matching(bluemonday.Integer).OnElements("ol")
	p.AllowAttrs("type").Matching(regexp.MustCompile(`^checkbox$`)).OnElements("input")
	p.AllowAttrs("checked", "disabled").Matching(regexp.MustCompile(`^$`)).OnElements("input")
	return p
})
