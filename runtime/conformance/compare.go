package conformance

import (
	"fmt"
	"strings"

	"github.com/rogpeppe/go-internal/diff"
	"go.yaml.in/yaml/v3"

	"github.com/krmcat/krmcat/runtime/resourcelist"
)

// Compare checks an output against the expected one (C25), both
// ResourceLists. What counts are the values of the items, in their order, and
// the results. The order of fields does not count, nor where the
// orchestrator's annotations are; comments and format are notices.
func Compare(expected, stdout []byte) []Finding {
	c := &checker{}
	want, err := resourcelist.Read(expected, resourcelist.ReadOptions{})
	if err != nil {
		c.add("C25", Error, "the expected output is no ResourceList: "+err.Error(), firstLines(expected))
		return c.findings
	}
	got, err := resourcelist.Read(stdout, resourcelist.ReadOptions{})
	if err != nil {
		c.add("C25", Error, "the output cannot be compared with the expected one: "+err.Error(), firstLines(stdout))
		return c.findings
	}
	c.compare(want, got)
	return c.findings
}

func (c *checker) compare(want, got *resourcelist.List) {
	byID := map[string]*resourcelist.Item{}
	for _, it := range got.Items {
		byID[it.Meta().ID()] = it
	}
	seen := map[string]bool{}
	var order []string
	all := true
	for _, w := range want.Items {
		id := w.Meta().ID()
		seen[id] = true
		order = append(order, id)
		g, ok := byID[id]
		if !ok {
			all = false
			c.add("C25", Error, id+" is expected and missing", string(w.Wire()))
			continue
		}
		c.compareItem(id, w, g)
	}
	var gotOrder []string
	for _, g := range got.Items {
		id := g.Meta().ID()
		if !seen[id] {
			c.add("C25", Error, id+" is not expected", string(g.Wire()))
		}
		gotOrder = append(gotOrder, id)
	}
	if all && len(order) == len(gotOrder) && strings.Join(order, "\n") != strings.Join(gotOrder, "\n") {
		c.add("C25", Info, "the items are in another order than expected", diffText(strings.Join(order, "\n"), strings.Join(gotOrder, "\n")))
	}
	c.compareResults(want.Results, got.Results)
}

func (c *checker) compareItem(id string, want, got *resourcelist.Item) {
	w, err1 := stripped(want)
	g, err2 := stripped(got)
	if err1 != nil || err2 != nil {
		c.add("C25", Error, fmt.Sprintf("%s cannot be compared: %v %v", id, err1, err2), string(got.Wire()))
		return
	}
	wText, gText := text(w), text(g)
	if !resourcelist.Equal(w, g) {
		c.add("C25", Error, id+" is not as expected", diffText(wText, gText))
		return
	}
	hadComments, hasComments := resourcelist.Comments(w), resourcelist.Comments(g)
	for comment := range hadComments {
		if hasComments[comment] == 0 {
			c.add("C25", Info, id+" has the expected values, but comments differ", diffText(wText, gText))
			return
		}
	}
}

func stripped(it *resourcelist.Item) (*yaml.Node, error) {
	doc, err := resourcelist.Strip(it)
	if err != nil {
		return nil, err
	}
	var d yaml.Node
	if err := yaml.Unmarshal(doc, &d); err != nil {
		return nil, err
	}
	return d.Content[0], nil
}

func text(n *yaml.Node) string {
	b, err := resourcelist.Encode(n, resourcelist.Style{})
	if err != nil {
		return err.Error()
	}
	return string(b)
}

func diffText(want, got string) string {
	line := func(s string) []byte {
		if s != "" && !strings.HasSuffix(s, "\n") {
			s += "\n"
		}
		return []byte(s)
	}
	return string(diff.Diff("expected", line(want), "got", line(got)))
}

func (c *checker) compareResults(want, got []resourcelist.Result) {
	if d := diffResults(want, got); d != "" {
		c.add("C25", Error, "the results are not as expected", d)
	}
}

func diffResults(want, got []resourcelist.Result) string {
	a, b := resultYAML(want), resultYAML(got)
	if a == b {
		return ""
	}
	return diffText(a, b)
}

// readable reads an output; nil if it is no ResourceList.
func readable(stdout []byte) *resourcelist.List {
	l, err := resourcelist.Read(stdout, resourcelist.ReadOptions{})
	if err != nil {
		return nil
	}
	return l
}

func resultYAML(rs []resourcelist.Result) string {
	if len(rs) == 0 {
		return ""
	}
	b, err := resourcelist.MarshalResults(rs)
	if err != nil {
		return err.Error()
	}
	return string(b)
}
