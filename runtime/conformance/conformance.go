// Package conformance checks functions against the KRM functions
// specification from the outside: what they write for a given input, and how
// they behave when the input varies. krmcat verify runs these checks on the
// examples of a function; they can be run on any [runtime.Function].
//
// Each check has a name, C01 to C28, and the numbers of the statements of the
// specifications that it checks.
package conformance

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/krmcat/krmcat/runtime/resourcelist"
)

// Level says what a finding means.
type Level string

// The levels. An Error is about something that the specification says a
// function must do; a function with one does not conform.
const (
	Error   Level = "error"
	Warning Level = "warning" // should
	Info    Level = "info"    // worth knowing
)

// Finding is something that a check found.
type Finding struct {
	ID      string `json:"id"` // C01 and so on
	Level   Level  `json:"level"`
	Message string `json:"message"`
	// Evidence is the part of the output, or of the difference, that shows
	// it; may be empty.
	Evidence string `json:"evidence,omitempty"`
}

func (f Finding) String() string { return fmt.Sprintf("%s %s: %s", f.ID, f.Level, f.Message) }

// Check describes a check.
type Check struct {
	ID    string
	Title string
	Rules []string // numbers of the checklist
}

// Checks are the checks of this package, in order. Those of C13 to C15, C23,
// C24 and C26 need more than the function's streams; executors and the
// publishing side look after them.
func Checks() []Check {
	return []Check{
		{"C01", "standard output is exactly one document", []string{"FS-07", "FS-31", "CF-06"}},
		{"C02", "the document is a ResourceList, in the version of the input", []string{"FS-10", "FS-11", "CF-14"}},
		{"C03", "items is a list of Kubernetes objects", []string{"FS-12", "FS-14", "CF-13"}},
		{"C04", "nothing else is on standard output", []string{"FS-31"}},
		{"C05", "the exit code says whether the function succeeded", []string{"FS-32", "CF-07", "KG-22"}},
		{"C06", "a failure is explained", []string{"FS-08", "CF-08", "CF-09"}},
		{"C07", "results have the fields of the specification", []string{"FS-16", "FS-17", "FS-18", "FS-19", "FS-20", "FS-21", "FS-24", "FS-25", "FS-26"}},
		{"C08", "internal annotations survive, also unknown ones", []string{"FS-39", "FS-40", "FS-41"}},
		{"C09", "path and index annotations are kept, and new ones are clean", []string{"FS-42", "FS-43", "FS-44", "FS-46"}},
		{"C10", "comments survive", []string{"FS-34", "FS-47"}},
		{"C11", "what is not changed keeps its order and format", []string{"FS-34"}},
		{"C12", "JSON input gives the same items", []string{"FS-27", "FS-28"}},
		{"C16", "a second run changes nothing, if the function says that it is idempotent", []string{"KC-051", "KG-05"}},
		{"C17", "the same input gives the same output", nil},
		{"C19", "unusual input is handled without a crash", nil},
		{"C20", "objects of unknown types pass through", []string{"FS-33"}},
		{"C21", "a functionConfig of another type is refused", nil},
		{"C22", "changes that users made to generated resources are kept", []string{"CF-10", "KG-04"}},
		{"C25", "the example gives its expected output", []string{"KC-053", "KC-054"}},
		{"C26", "the function ends, and in time", nil},
		{"C28", "a validator changes nothing", []string{"CF-09"}},
	}
}

// CheckOutput checks what a function wrote for an input, both ResourceLists,
// and its exit code. It runs nothing. Standard error is not looked at: whether
// a failure is explained there is for the caller, see [CheckFailure].
func CheckOutput(input, stdout []byte, exitCode int) []Finding {
	c := &checker{}
	before, err := resourcelist.Read(input, resourcelist.ReadOptions{Verbatim: true})
	if err != nil {
		c.add("C01", Error, "the input is no ResourceList: "+err.Error(), "")
		return c.findings
	}
	c.output(before, stdout, exitCode)
	return c.findings
}

// CheckFailure checks a failure: it must say why, in results or on standard
// error.
func CheckFailure(stdout []byte, stderr string, exitCode int) []Finding {
	c := &checker{}
	if exitCode == 0 {
		return nil
	}
	if l, err := resourcelist.Read(stdout, resourcelist.ReadOptions{}); err == nil && resourcelist.HasErrors(l.Results) {
		return nil
	}
	if strings.TrimSpace(stderr) == "" {
		c.add("C06", Warning, fmt.Sprintf("the function failed with exit code %d and says nothing on standard error or in results", exitCode), "")
	}
	return c.findings
}

type checker struct{ findings []Finding }

func (c *checker) add(id string, level Level, message, evidence string) {
	if len(evidence) > 2000 {
		evidence = evidence[:2000] + "\n..."
	}
	c.findings = append(c.findings, Finding{id, level, message, strings.ToValidUTF8(evidence, "?")})
}

// output makes the checks of one output; the list is nil if it cannot be used.
func (c *checker) output(before *resourcelist.List, stdout []byte, exitCode int) *resourcelist.List {
	if len(bytes.TrimSpace(stdout)) == 0 {
		if exitCode == 0 {
			c.add("C01", Error, "standard output is empty although the function succeeded; all resources would vanish", "")
		}
		return nil
	}
	list, ok := c.document(before, stdout, exitCode)
	if !ok {
		return nil
	}
	if list.APIVersion != before.APIVersion {
		c.add("C02", Warning, fmt.Sprintf("the input is %s, the output %s", before.APIVersion, list.APIVersion), "")
	}
	if len(list.Unknown) > 0 {
		c.add("C02", Warning, "a ResourceList has no field "+strings.Join(list.Unknown, ", "), "")
	}
	if !list.HasItems {
		if len(before.Items) > 0 {
			c.add("C03", Error, "items is missing; the specification requires it", "")
		} else {
			c.add("C03", Warning, "items is left out when there are none; write an empty list", "")
		}
	}
	for _, it := range list.Items {
		if it.Meta().Name == "" && it.Origin() == nil {
			c.add("C03", Error, fmt.Sprintf("a new object of kind %s has no metadata.name", it.Meta().Kind), string(it.Wire()))
		}
	}
	failed := resourcelist.HasErrors(list.Results)
	if failed && exitCode == 0 {
		c.add("C05", Error, "results have errors, but the exit code is 0", resultText(list.Results))
	}
	c.results(stdout)
	c.annotations(list)
	if exitCode == 0 {
		c.fidelity(before, list)
	}
	return list
}

// document finds out whether the output is one ResourceList, and what is
// wrong with it otherwise.
func (c *checker) document(before *resourcelist.List, stdout []byte, exitCode int) (*resourcelist.List, bool) {
	list, err := resourcelist.Read(stdout, resourcelist.ReadOptions{Before: before.Items, FromFunction: true, Verbatim: true})
	if err == nil {
		return list, true
	}
	head := string(stdout[:min(len(stdout), 400)])
	if inner := embedded(stdout); inner != "" {
		c.add("C04", Error, "standard output has text besides the ResourceList; write logs to standard error", inner)
		return nil, false
	}
	id := "C01"
	switch {
	case strings.Contains(err.Error(), "items["):
		id = "C03"
	case strings.Contains(err.Error(), "kind"), strings.Contains(err.Error(), "apiVersion"):
		id = "C02"
	case strings.Contains(err.Error(), "result"), strings.Contains(err.Error(), "severity"):
		id = "C07"
	}
	level := Error
	if exitCode != 0 {
		level = Warning // a function that fails may have nothing to say
	}
	c.add(id, level, err.Error(), head)
	return nil, false
}

// embedded finds a ResourceList inside other text, and returns that text.
func embedded(stdout []byte) string {
	lines := strings.SplitAfter(string(stdout), "\n")
	for i, line := range lines {
		if i > 0 && i < 200 && (strings.HasPrefix(line, "apiVersion: config.kubernetes.io/") || strings.HasPrefix(line, "kind: ResourceList")) {
			for end := len(lines); end > i && end > len(lines)-20; end-- {
				if _, err := resourcelist.Read([]byte(strings.Join(lines[i:end], "")), resourcelist.ReadOptions{}); err == nil {
					return strings.Join(lines[:i], "") + strings.Join(lines[end:], "")
				}
			}
		}
	}
	for end := len(lines) - 1; end > 0 && end > len(lines)-20; end-- {
		if !looksForeign(lines[end]) {
			continue
		}
		if _, err := resourcelist.Read([]byte(strings.Join(lines[:end], "")), resourcelist.ReadOptions{}); err == nil {
			return strings.Join(lines[end:], "")
		}
	}
	return ""
}

// looksForeign reports whether a line cannot be part of a ResourceList.
func looksForeign(line string) bool {
	if strings.HasPrefix(line, "---") {
		return true
	}
	if strings.TrimSpace(line) == "" || strings.HasPrefix(line, " ") || strings.HasPrefix(line, "-") {
		return false
	}
	field, _, _ := strings.Cut(line, ":")
	return !slices.Contains([]string{"apiVersion", "kind", "items", "functionConfig", "results", "metadata"}, field)
}

func resultText(rs []resourcelist.Result) string {
	var b strings.Builder
	for _, r := range rs {
		b.WriteString(r.Text() + "\n")
	}
	return b.String()
}

// annotations checks C08 and C09.
func (c *checker) annotations(list *resourcelist.List) {
	at := map[string]string{}
	for _, it := range list.Items {
		m := it.Meta()
		if err := it.CheckInternal(); err != nil {
			c.add("C08", Error, err.Error(), string(it.Wire()))
		}
		if p := it.Prev(); p != nil && (p.Meta().Path != m.Path || max(p.Meta().Index, 0) != max(m.Index, 0)) && m.Path != "" {
			c.add("C09", Warning, fmt.Sprintf("%s was moved from %s index %d to %s index %d", m.ID(), p.Meta().Path, max(p.Meta().Index, 0), m.Path, max(m.Index, 0)), "")
		}
		if m.Path == "" {
			continue
		}
		if err := resourcelist.CheckPath(m.Path); err != nil {
			c.add("C09", Error, m.ID()+": "+err.Error(), "")
		}
		place := fmt.Sprintf("%s index %d", m.Path, max(m.Index, 0))
		if other, ok := at[place]; ok && it.Origin() != it {
			c.add("C09", Error, fmt.Sprintf("%s and %s have the same place, %s", other, m.ID(), place), "")
		}
		at[place] = m.ID()
	}
}

// fidelity checks C10 and C11: what became of comments, order and format.
func (c *checker) fidelity(before, after *resourcelist.List) {
	reformatted := 0
	var example string
	var lost []string
	var orderBefore, orderAfter []*resourcelist.Item
	kept := map[*resourcelist.Item]bool{}
	for _, it := range after.Items {
		prev := it.Prev()
		if prev == nil {
			if it.Origin() != nil {
				kept[it] = true
				orderAfter = append(orderAfter, it)
			}
			continue
		}
		kept[prev] = true
		orderAfter = append(orderAfter, prev)
		was, err1 := prev.Node()
		is, err2 := it.Node()
		if err1 != nil || err2 != nil {
			continue
		}
		had, has := resourcelist.Comments(was), resourcelist.Comments(is)
		for _, comment := range slices.Sorted(maps.Keys(had)) {
			if has[comment] == 0 {
				lost = append(lost, prev.Meta().ID()+": "+comment)
			}
		}
		if resourcelist.Equal(was, is) {
			reformatted++
			example = prev.Meta().ID()
		}
	}
	for _, it := range before.Items {
		if kept[it] {
			orderBefore = append(orderBefore, it)
		}
	}
	if len(lost) > 0 {
		c.add("C10", Warning, fmt.Sprintf("%d comments are lost", len(lost)), strings.Join(lost, "\n"))
	}
	if reformatted > 0 {
		c.add("C11", Info, fmt.Sprintf("%d resources that are not changed come back in another format, such as %s", reformatted, example), "")
	}
	if !slices.Equal(orderBefore, orderAfter) {
		c.add("C11", Info, "the order of the items is changed", "")
	}
}

// results checks C07 on the text itself, as reading it is lenient.
func (c *checker) results(stdout []byte) {
	var doc yaml.Node
	if yaml.Unmarshal(stdout, &doc) != nil || len(doc.Content) == 0 {
		return
	}
	rs := resourcelist.Get(doc.Content[0], "results")
	if rs == nil || rs.ShortTag() == "!!null" {
		return
	}
	if rs.Kind == yaml.MappingNode {
		c.add("C07", Warning, "results is a mapping with items, the shape before v1; write a list", "")
		return
	}
	for i, r := range rs.Content {
		where := fmt.Sprintf("results[%d]", i)
		if resourcelist.Get(r, "items") != nil && resourcelist.Get(r, "message") == nil {
			c.add("C07", Warning, where+" is a group with items, the shape before v1; write a flat list", "")
			continue
		}
		c.result(where, r)
	}
}

func (c *checker) result(where string, r *yaml.Node) {
	bad := func(format string, a ...any) {
		text, _ := yaml.Marshal(r)
		c.add("C07", Error, where+fmt.Sprintf(format, a...), string(text))
	}
	c.known(where, r, "message", "severity", "resourceRef", "field", "file", "tags")
	str := func(n *yaml.Node, field string, required bool) string {
		v := resourcelist.Get(n, field)
		switch {
		case v == nil && required:
			bad(": %s is missing", field)
		case v != nil && (v.Kind != yaml.ScalarNode || v.ShortTag() != "!!str"):
			bad(": %s is not a string", field)
		case v != nil:
			return v.Value
		}
		return ""
	}
	str(r, "message", true)
	switch s := str(r, "severity", false); s {
	case "", "error", "warning", "info":
	case "warn":
		c.add("C07", Warning, where+`: severity "warn" was renamed to "warning" in v1`, "")
	default:
		bad(": severity %q is not error, warning or info", s)
	}
	ref, field := resourcelist.Get(r, "resourceRef"), resourcelist.Get(r, "field")
	if ref != nil {
		c.known(where+".resourceRef", ref, "apiVersion", "kind", "name", "namespace")
		for _, f := range []string{"apiVersion", "kind", "name"} {
			str(ref, f, true)
		}
	}
	if field != nil {
		if ref == nil {
			bad(": field is given without resourceRef") // FS-20
		}
		c.known(where+".field", field, "path", "currentValue", "proposedValue")
		str(field, "path", true)
	}
	if file := resourcelist.Get(r, "file"); file != nil {
		c.known(where+".file", file, "path", "index")
		if p := str(file, "path", true); p != "" {
			if err := resourcelist.CheckPath(p); err != nil {
				bad(": file.%v", err)
			}
		}
		if i := resourcelist.Get(file, "index"); i != nil && i.ShortTag() != "!!int" && i.ShortTag() != "!!float" {
			bad(": file.index is not a number")
		}
	}
	if tags := resourcelist.Get(r, "tags"); tags != nil {
		for i := 1; i < len(tags.Content); i += 2 {
			if tags.Content[i].ShortTag() != "!!str" {
				bad(": tag %s is not a string", tags.Content[i-1].Value)
			}
		}
	}
}

// known warns about fields that the specification does not have.
func (c *checker) known(where string, n *yaml.Node, fields ...string) {
	for i := 0; i+1 < len(n.Content); i += 2 {
		k := n.Content[i].Value
		if slices.Contains(fields, k) {
			continue
		}
		hint := ""
		if k == "suggestedValue" {
			hint = ", which is proposedValue in v1"
		}
		c.add("C07", Warning, fmt.Sprintf("%s has an unknown field %s%s", where, k, hint), "")
	}
}
