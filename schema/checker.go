package schema

import (
	"fmt"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/krmcat/krmcat/internal/yamlpos"
)

// checker checks one document.
type checker struct {
	v      *Validator
	file   *yamlpos.File
	doc    *yamlpos.Document
	source bool
	found  Diagnostics

	// probe asks only whether there is anything to find: the document has no
	// nodes then, and a finding sets failed.
	probe, failed bool
}

// finding is what a rule says about one place.
type finding struct {
	rule    Rule
	path    []string
	message string
	fix     string
	onKey   bool // the finding is about the key at path, not about its value
	// severity replaces the rule's own one, if set.
	severity *Severity
}

// at sets another severity than the rule's.
func (f finding) at(s Severity) finding { f.severity = &s; return f }

// report adds a finding, unless its rule is off at this level.
func (c *checker) report(f finding) {
	sev := f.rule.Severity(c.v.Level)
	if f.severity != nil {
		sev = *f.severity
	}
	if sev == off {
		return
	}
	if c.probe {
		c.failed = true
		return
	}
	d := Place(c.file, c.doc, f.path, f.onKey)
	d.Severity, d.Rule, d.Message, d.Fix = sev, f.rule.ID(c.v.Level), f.message, f.fix
	c.found = append(c.found, d)
}

// Place starts a diagnostic about the value at a path in a document, or about
// the key of the value: it has a position, path, excerpt and width. If there is
// nothing at the path, the position is that of the last value on the way.
func Place(f *yamlpos.File, doc *yamlpos.Document, path []string, onKey bool) Diagnostic {
	key, value, ok := doc.Find(path...)
	node := value
	if (onKey || !ok) && key != nil {
		node = key
	}
	d := Diagnostic{Path: yamlpos.Path(doc.Value, path), Pos: Position{File: f.Name, Line: node.Line, Column: node.Column}}
	d.Width = yamlpos.Width(node)
	if node.Kind == yaml.MappingNode && len(node.Content) > 0 && node.Style&yaml.FlowStyle == 0 {
		d.Width = yamlpos.Width(node.Content[0])
	}
	d.Excerpt, d.Skip = f.Excerpt(d.Pos.Line, d.Pos.Column)
	return d
}

// ProblemDiagnostic is the diagnostic for something that is wrong with the
// text of a file.
func ProblemDiagnostic(f *yamlpos.File, p yamlpos.Problem) Diagnostic {
	return problemDiagnostic(f, p, Publish)
}

// cursor is a value in the document and the way to it.
type cursor struct {
	c    *checker
	path []string
	v    any
}

func (u cursor) child(token string, v any) cursor {
	if u.c.probe {
		return cursor{c: u.c, v: v} // nobody will ask for the path
	}
	return cursor{u.c, append(u.path[:len(u.path):len(u.path)], token), v}
}

// field is a member of a mapping. ok is false if it is not there; a field that
// is null is there.
func (u cursor) field(name string) (f cursor, ok bool) {
	m, _ := u.v.(map[string]any)
	v, ok := m[name]
	return u.child(name, v), ok
}

// text is a field that holds a string; ok is false for all else.
func (u cursor) text(name string) (s string, f cursor, ok bool) {
	f, _ = u.field(name)
	s, ok = f.v.(string)
	return s, f, ok
}

// mapping is a field that holds a mapping.
func (u cursor) mapping(name string) (f cursor, ok bool) {
	f, _ = u.field(name)
	_, ok = f.v.(map[string]any)
	return f, ok
}

// items are the elements of a list; of anything else there are none.
func (u cursor) items() []cursor {
	list, _ := u.v.([]any)
	out := make([]cursor, len(list))
	for i, v := range list {
		out[i] = u.child(strconv.Itoa(i), v)
	}
	return out
}

// fieldItems are the elements of a list in a field.
func (u cursor) fieldItems(name string) []cursor {
	f, _ := u.field(name)
	return f.items()
}

func (u cursor) report(r Rule, fix, format string, a ...any) {
	u.c.report(finding{rule: r, path: u.path, message: fmt.Sprintf(format, a...), fix: fix})
}

func (u cursor) reportKey(r Rule, fix, format string, a ...any) {
	u.c.report(finding{rule: r, path: u.path, message: fmt.Sprintf(format, a...), fix: fix, onKey: true})
}

// line is where the value stands.
func (u cursor) line() int {
	if u.c.probe {
		return 0
	}
	_, node, _ := u.c.doc.Find(u.path...)
	return node.Line
}

// pathString is how diagnostics name the place.
func (u cursor) pathString() string { return yamlpos.Path(u.c.doc.Value, u.path) }

// document checks one document from the root.
func (c *checker) document() {
	root := cursor{c: c, v: c.doc.Value}
	if _, ok := root.v.(map[string]any); !ok {
		root.report(ruleType, "", "a document must be a mapping, not %s", typeName(root.v))
		return
	}
	definition, ok := c.kindOf(root)
	if !ok {
		return
	}
	if definition == kindResourceList {
		if c.probe {
			c.failed = true // it is not worth a fast way
			return
		}
		c.resourceList(root, Input)
		return
	}
	c.aliases()
	if !c.source && c.v.LocalSource && namesLocalFile(root, definition) {
		c.source = true
	}
	if c.probe {
		if !functionBundle.acceptor(definition).accepts(c.doc.Value) {
			c.failed = true
			return
		}
	} else {
		violations, err := functionBundle.check(definition, c.doc.Value)
		if err != nil {
			root.report(ruleType, "", "%v", err)
			return
		}
		for _, v := range violations {
			c.violation(definition, v)
		}
		c.words(c.doc.Node)
	}
	c.unknownFields(definition)
	spec, _ := root.mapping("spec")
	if definition == KindCatalog {
		c.catalog(root, spec)
		return
	}
	c.definitionName(root)
	c.function(spec)
}

// byLevel chooses a wording: what a consumer makes of a deviation, or what a
// publisher has to do.
func (c *checker) byLevel(consume, publish string) string {
	if c.v.Level == Consume {
		return consume
	}
	return publish
}

// kindOf finds out which schema a document is for (KC-069, KC-070). It reports
// documents that none is for.
func (c *checker) kindOf(root cursor) (definition string, ok bool) {
	apiVersion, apiCursor, hasAPI := root.text("apiVersion")
	kind, kindCursor, hasKind := root.text("kind")
	for _, name := range []string{"apiVersion", "kind"} {
		if f, there := root.field(name); there {
			if _, isString := f.v.(string); !isString {
				f.report(ruleType, "", "must be a string, not %s", typeName(f.v))
			}
		} else if !c.v.SkipOthers {
			root.reportKey(ruleRequired, "", "missing %q", name)
		}
	}
	if !hasAPI || !hasKind {
		if c.v.SkipOthers && len(c.found) == 0 {
			c.report(finding{rule: ruleKind, message: "no apiVersion and kind: not checked"}.at(Notice))
		}
		return "", false
	}
	group, version, _ := strings.Cut(apiVersion, "/")
	switch kind {
	case KindDefinition, KindCatalog, KindCatalogAlias:
		if apiVersion == APIVersion {
			if kind == KindCatalogAlias {
				kindCursor.report(ruleCatalogKind, "write "+KindCatalog, c.byLevel("%[1]q is read as %[2]s", "must be %[2]s, not %[1]q"), kind, KindCatalog)
				return KindCatalog, true
			}
			return kind, true
		}
		if group == "config.kubernetes.io" || kind != KindCatalogAlias {
			apiCursor.report(ruleKind, "write "+APIVersion, "must be %q for kind %s, not %s", APIVersion, kind, display(apiVersion))
			return "", false
		}
	case kindResourceList:
		if group == resourceListGroup {
			if resourceListVersion(version) {
				return kindResourceList, true
			}
			apiCursor.report(ruleKind, "write config.kubernetes.io/v1", "must be config.kubernetes.io/v1, v1beta1 or v1alpha1 for kind ResourceList, not %s", display(apiVersion))
			return "", false
		}
	}
	if c.v.SkipOthers && group != "config.kubernetes.io" {
		c.report(finding{rule: ruleKind, path: kindCursor.path, message: fmt.Sprintf("kind %s of %s is not checked", display(kind), display(apiVersion))}.at(Notice))
		return "", false
	}
	known := []string{KindDefinition, KindCatalog, kindResourceList}
	fix := "krmcat checks " + strings.Join(known, ", ")
	if near := suggest(kind, known); near != "" {
		fix = fmt.Sprintf("did you mean %q?", near)
	}
	if group != "config.kubernetes.io" {
		apiCursor.report(ruleKind, fix, "%s, kind %s, is not a document that krmcat checks", display(apiVersion), display(kind))
	} else {
		kindCursor.report(ruleKind, fix, "unknown kind %s", display(kind))
	}
	return "", false
}

// aliases refuses aliases and merge keys in documents that others will read
// with readers that bound them differently.
func (c *checker) aliases() {
	for _, n := range c.doc.Aliases {
		sev := ruleAnchors.Severity(c.v.Level)
		if sev == off {
			return
		}
		what := "alias *" + n.Value
		if n.Tag == "!!merge" {
			what = "merge key <<"
		}
		d := Diagnostic{Pos: Position{File: c.file.Name, Line: n.Line, Column: n.Column}, Severity: sev, Rule: ruleAnchors.ID(c.v.Level),
			Message: what + " in a document to publish", Fix: "write the value out", Width: yamlpos.Width(n)}
		d.Excerpt, d.Skip = c.file.Excerpt(n.Line, n.Column)
		c.found = append(c.found, d)
	}
}

// words warns of plain scalars that readers of YAML 1.1, such as kubectl, take
// for booleans. Where a boolean is expected, the type is reported instead.
func (c *checker) words(n *yaml.Node) {
	switch n.Kind {
	case yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			c.word(n.Content[i], true)
			if k := n.Content[i].Value; k != "idempotent" && k != "requireNetwork" && k != "requireStorageMount" && k != "requireFilesystem" && k != "configMap" {
				c.words(n.Content[i+1])
			}
		}
	case yaml.SequenceNode:
		for _, item := range n.Content {
			c.words(item)
		}
	case yaml.ScalarNode:
		c.word(n, false)
	}
}

func (c *checker) word(n *yaml.Node, key bool) {
	if n.Kind != yaml.ScalarNode || n.Style != 0 || n.Tag != "!!str" || !isBooleanWord(n.Value) {
		return
	}
	what := "value"
	if key {
		what = "key"
	}
	d := Diagnostic{Pos: Position{File: c.file.Name, Line: n.Line, Column: n.Column}, Severity: ruleBooleanWord.Severity(c.v.Level), Rule: ruleBooleanWord.ID(c.v.Level),
		Message: fmt.Sprintf("%s %s is a string here, but a boolean for tools that read YAML 1.1", what, n.Value),
		Fix:     fmt.Sprintf("write %q, or true or false", n.Value), Width: yamlpos.Width(n)}
	if key {
		d.Fix = fmt.Sprintf("write %q", n.Value)
	}
	d.Excerpt, d.Skip = c.file.Excerpt(n.Line, n.Column)
	c.found = append(c.found, d)
}

func isBooleanWord(s string) bool {
	if len(s) > 3 {
		return false
	}
	switch strings.ToLower(s) {
	case "y", "n":
		return true
	case "yes", "no", "on", "off":
		// YAML 1.1 knows three spellings of each word.
		return s == strings.ToLower(s) || s == strings.ToUpper(s) || s == strings.ToUpper(s[:1])+strings.ToLower(s[1:])
	}
	return false
}
