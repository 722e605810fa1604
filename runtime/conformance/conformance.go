// Package conformance checks functions against the KRM functions
// specification from the outside: what they write for a given input, and how
// they behave when the input varies. krmcat verify runs these checks on the
// examples of a function; they can be run on any [runtime.Function].
//
// Each check has a name, C01 to C29, the numbers of the statements of the
// specifications that it checks, and a remedy; [Checks] lists them. [Exempts]
// lists the statements that cannot be tested from outside a function, and
// why.
package conformance

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

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
	ID string `json:"id"` // C01 and so on
	// Rules are the numbers of the statements that are not kept; those of
	// the check as a whole if it cannot be told more precisely.
	Rules   []string `json:"rules,omitempty"`
	Level   Level    `json:"level"`
	Message string   `json:"message"`
	// Evidence is the part of the output, or of the difference, that shows it.
	Evidence string `json:"evidence"`
	// Remedy is what to do about it.
	Remedy string `json:"remedy"`
}

// String is the finding on one line, with its numbers and the remedy.
func (f Finding) String() string {
	s := fmt.Sprintf("%s %s: %s", f.ID, f.Level, f.Message)
	if len(f.Rules) > 0 {
		s += " (" + strings.Join(f.Rules, ", ") + ")"
	}
	return s + "; " + f.Remedy
}

// CheckOutput checks what a function wrote for an input, both ResourceLists,
// and its exit code. It runs nothing. Standard error is not looked at: whether
// a failure is explained there is for the caller, see [CheckFailure].
func CheckOutput(input, stdout []byte, exitCode int) []Finding {
	c := &checker{}
	before, err := resourcelist.Read(input, resourcelist.ReadOptions{Verbatim: true})
	if err != nil {
		c.add("C01", Error, "the input is no ResourceList: "+err.Error(), firstLines(input))
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

// add notes a finding. at is the name of the check, and behind it, separated
// by spaces, the numbers of the statements if they are not all of the check's.
func (c *checker) add(at string, level Level, message, evidence string) {
	names := strings.Fields(at)
	f := Finding{ID: names[0], Rules: names[1:], Level: level, Message: message}
	for _, check := range Checks() {
		if check.ID == f.ID {
			f.Remedy = check.Remedy
			if len(f.Rules) == 0 {
				f.Rules = check.Rules
			}
		}
	}
	f.Evidence = clip(evidence)
	c.findings = append(c.findings, f)
}

// maxEvidence bounds the evidence of one finding, in bytes.
const maxEvidence = 2000

func clip(evidence string) string {
	if strings.TrimSpace(evidence) == "" {
		return "(nothing was written)"
	}
	if len(evidence) > maxEvidence {
		evidence = evidence[:maxEvidence] + "\n..."
	}
	return strings.ToValidUTF8(evidence, "?")
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
		c.add("C02 FS-11 CF-14", Warning, fmt.Sprintf("the input is %s, the output %s", before.APIVersion, list.APIVersion), firstLines(stdout))
	}
	if len(list.Unknown) > 0 {
		c.add("C02", Warning, "a ResourceList has no field "+strings.Join(list.Unknown, ", "), firstLines(stdout))
	}
	if !list.HasItems {
		if len(before.Items) > 0 {
			c.add("C03 FS-12", Error, "items is missing; the specification requires it", firstLines(stdout))
		} else {
			c.add("C03 FS-12", Warning, "items is left out when there are none", firstLines(stdout))
		}
	}
	for _, it := range list.Items {
		if it.Meta().Name == "" && it.Origin() == nil {
			c.add("C03 FS-14", Error, fmt.Sprintf("a new object of kind %s has no metadata.name", it.Meta().Kind), string(it.Wire()))
		}
	}
	failed := resourcelist.HasErrors(list.Results)
	if failed && exitCode == 0 {
		c.add("C05 FS-32 KG-22", Error, "results have errors, but the exit code is 0", resultText(list.Results))
	}
	c.results(stdout)
	c.references(before, list)
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
	head := firstLines(stdout)
	if inner := embedded(stdout); inner != "" {
		c.add("C04", Error, "standard output has text besides the ResourceList", inner)
		return nil, false
	}
	id := "C01"
	switch {
	case !utf8.Valid(stdout):
		id = "C12 FS-28"
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

// firstLines is the beginning of an output, as evidence.
func firstLines(stdout []byte) string { return string(stdout[:min(len(stdout), 400)]) }

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
			c.add("C08 FS-40 FS-41", Error, err.Error(), string(it.Wire()))
		}
		if p := it.Prev(); p != nil && (p.Meta().Path != m.Path || max(p.Meta().Index, 0) != max(m.Index, 0)) && m.Path != "" {
			c.add("C09 FS-43 FS-46", Warning, fmt.Sprintf("%s was moved from %s index %d to %s index %d", m.ID(), p.Meta().Path, max(p.Meta().Index, 0), m.Path, max(m.Index, 0)), string(it.Wire()))
		}
		c.reserved(it)
		if m.Path == "" {
			continue
		}
		if err := resourcelist.CheckPath(m.Path); err != nil {
			c.add("C09 FS-42", Error, m.ID()+": "+err.Error(), string(it.Wire()))
		}
		place := fmt.Sprintf("%s index %d", m.Path, max(m.Index, 0))
		if other, ok := at[place]; ok && it.Origin() != it {
			c.add("C09 FS-44", Error, fmt.Sprintf("%s and %s have the same place, %s", other, m.ID(), place), string(it.Wire()))
		}
		at[place] = m.ID()
	}
}

// reserved looks for internal annotations that the function added: the prefix
// is the orchestrator's (FS-39). kustomize documents some that generators set,
// so that this is only worth knowing.
func (c *checker) reserved(it *resourcelist.Item) {
	if it.Origin() == it {
		return
	}
	now, err := it.Annotations()
	if err != nil {
		return
	}
	before := map[string]string{}
	if p := it.Prev(); p != nil {
		if before, err = p.Annotations(); err != nil {
			return
		}
	}
	for _, k := range slices.Sorted(maps.Keys(now)) {
		if _, had := before[k]; !had && strings.HasPrefix(k, resourcelist.InternalPrefix) && k != resourcelist.PathAnnotation && k != resourcelist.IndexAnnotation {
			c.add("C08 FS-39", Info, fmt.Sprintf("%s has a new annotation %s with the orchestrator's prefix", it.Meta().ID(), k), string(it.Wire()))
		}
	}
}

// references looks up what results are about (KG-25): a reference that no
// resource has cannot be followed. It may be of one that is missing, which is
// what the result says then.
func (c *checker) references(before, after *resourcelist.List) {
	known := map[string]bool{}
	for _, list := range []*resourcelist.List{before, after} {
		for _, it := range list.Items {
			known[it.Meta().ID()] = true
		}
	}
	for _, r := range after.Results {
		ref := r.ResourceRef
		if ref == nil || ref.APIVersion == "" || ref.Kind == "" || ref.Name == "" {
			continue
		}
		id := resourcelist.Meta{APIVersion: ref.APIVersion, Kind: ref.Kind, Namespace: ref.Namespace, Name: ref.Name}.ID()
		if !known[id] {
			c.add("C07 KG-25", Info, "a result is about "+id+", which is not among the resources", r.Text())
		}
	}
}

// fidelity checks C10 and C11: what became of comments, order and format.
func (c *checker) fidelity(before, after *resourcelist.List) {
	reformatted := 0
	var example string
	var lost, moved []string
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
		if at := reordered(was, is, "", 0); at != "" {
			moved = append(moved, prev.Meta().ID()+": "+at)
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
		c.add("C11", Info, fmt.Sprintf("%d resources that are not changed come back in another format", reformatted), example)
	}
	if len(moved) > 0 {
		c.add("C11", Info, fmt.Sprintf("the fields of %d resources are in another order", len(moved)), strings.Join(moved, "\n"))
	}
	if !slices.Equal(orderBefore, orderAfter) {
		c.add("C11", Info, "the order of the items is changed", diffText(ids(orderBefore), ids(orderAfter)))
	}
}

func ids(items []*resourcelist.Item) string {
	var b strings.Builder
	for _, it := range items {
		b.WriteString(it.Meta().ID() + "\n")
	}
	return b.String()
}

// reordered is the path of the first mapping whose fields are in another order
// than they were; fields that came or went do not count.
func reordered(was, is *yaml.Node, at string, depth int) string {
	if was == nil || is == nil || was.Kind != yaml.MappingNode || is.Kind != yaml.MappingNode || depth > 100 {
		return ""
	}
	last := -1
	for i := 0; i+1 < len(is.Content); i += 2 {
		key := is.Content[i].Value
		j := slices.IndexFunc(was.Content, func(n *yaml.Node) bool { return n.Value == key && n.Kind == yaml.ScalarNode })
		if j < 0 || j%2 != 0 {
			continue
		}
		if j < last {
			return strings.TrimPrefix(at+"."+key, ".")
		}
		last = j
		if found := reordered(was.Content[j+1], is.Content[i+1], at+"."+key, depth+1); found != "" {
			return found
		}
	}
	return ""
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
		c.add("C07 FS-16 KG-20", Warning, "results is a mapping with items, the shape before v1", text(rs))
		return
	}
	for i, r := range rs.Content {
		where := fmt.Sprintf("results[%d]", i)
		if resourcelist.Get(r, "items") != nil && resourcelist.Get(r, "message") == nil {
			c.add("C07 FS-16 KG-20", Warning, where+" is a group with items, the shape before v1", text(r))
			continue
		}
		c.result(where, r)
	}
}

func (c *checker) result(where string, r *yaml.Node) {
	bad := func(rules, format string, a ...any) {
		c.add("C07 "+rules, Error, where+fmt.Sprintf(format, a...), text(r))
	}
	c.known(where, r, "message", "severity", "resourceRef", "field", "file", "tags")
	str := func(rules string, n *yaml.Node, field string, required bool) string {
		v := resourcelist.Get(n, field)
		switch {
		case v == nil && required:
			bad(rules, ": %s is missing", field)
		case v != nil && (v.Kind != yaml.ScalarNode || v.ShortTag() != "!!str"):
			bad(rules, ": %s is not a string", field)
		case v != nil:
			return v.Value
		}
		return ""
	}
	str("FS-17 KG-24", r, "message", true)
	switch s := str("FS-18", r, "severity", false); s {
	case "", "error", "warning", "info":
	case "warn":
		c.add("C07 FS-18 KG-21", Warning, where+`: severity "warn" was renamed to "warning" in v1`, text(r))
	default:
		bad("FS-18 KG-21", ": severity %q is not error, warning or info", s)
	}
	ref, field := resourcelist.Get(r, "resourceRef"), resourcelist.Get(r, "field")
	if ref != nil {
		c.known(where+".resourceRef", ref, "apiVersion", "kind", "name", "namespace")
		for _, f := range []string{"apiVersion", "kind", "name"} {
			str("FS-19 KG-25", ref, f, true)
		}
	}
	if field != nil {
		if ref == nil {
			bad("FS-20", ": field is given without resourceRef")
		}
		c.known(where+".field", field, "path", "currentValue", "proposedValue")
		str("FS-21", field, "path", true)
	}
	if file := resourcelist.Get(r, "file"); file != nil {
		c.known(where+".file", file, "path", "index")
		if p := str("FS-24", file, "path", true); p != "" {
			if err := resourcelist.CheckPath(p); err != nil {
				bad("FS-24", ": file.%v", err)
			}
		}
		if i := resourcelist.Get(file, "index"); i != nil && i.ShortTag() != "!!int" && i.ShortTag() != "!!float" {
			bad("FS-25", ": file.index is not a number")
		}
	}
	if tags := resourcelist.Get(r, "tags"); tags != nil {
		for i := 1; i < len(tags.Content); i += 2 {
			if tags.Content[i].ShortTag() != "!!str" {
				bad("FS-26", ": tag %s is not a string", tags.Content[i-1].Value)
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
		c.add("C07", Warning, fmt.Sprintf("%s has an unknown field %s%s", where, k, hint), text(n))
	}
}
