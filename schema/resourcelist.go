package schema

import (
	"context"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/krmcat/krmcat/internal/yamlpos"
)

// The ResourceList, the wire format of functions (FS-10 to FS-28).
const (
	kindResourceList  = "ResourceList"
	resourceListGroup = "config.kubernetes.io"
)

// Direction says whether a ResourceList goes into a function or comes out.
type Direction int

const (
	// Input is a ResourceList that a function is to read. It is the zero
	// value.
	Input Direction = iota
	// Output is what a function wrote.
	Output
)

// maxResourceDepth is how deep the resources in a ResourceList may nest.
const maxResourceDepth = 500

// ValidateResourceList checks the text of one ResourceList, as a function
// reads or writes it (FS-10). All versions that functions use are read: v1,
// v1beta1 and v1alpha1. More than one document, or none, is an error. The
// error is that of ctx.
func (v *Validator) ValidateResourceList(ctx context.Context, name string, data []byte, dir Direction) (Diagnostics, error) {
	limits := v.Limits
	if limits.Depth == 0 {
		limits.Depth = maxResourceDepth
	}
	f, problems := yamlpos.Parse(name, data, limits)
	var ds Diagnostics
	for _, p := range problems {
		ds = append(ds, problemDiagnostic(f, p, v.Level))
	}
	first := Diagnostic{Pos: Position{File: name, Line: 1, Column: 1}, Severity: Error}
	switch {
	case len(f.Documents) == 0 && len(ds) == 0:
		first.Rule, first.Message = ruleNoDocument.ID(v.Level), "there is no ResourceList"
		if dir == Output {
			first.Fix = "a function writes a ResourceList to standard output"
		}
		ds = append(ds, first)
	case len(f.Documents) > 1:
		d := Place(f, f.Documents[1], nil, false)
		d.Severity, d.Rule, d.Message = Error, ruleListType.ID(v.Level), "there is more than one document"
		ds = append(ds, d)
	}
	if len(f.Documents) > 0 {
		c := &checker{v: v, file: f, doc: f.Documents[0]}
		root := cursor{c: c, v: c.doc.Value}
		if _, ok := root.v.(map[string]any); !ok {
			root.report(ruleListType, "", "a ResourceList must be a mapping, not %s", typeName(root.v))
		} else {
			c.resourceListType(root)
			c.resourceList(root, dir)
		}
		ds = append(ds, c.found...)
	}
	sortDiagnostics(ds)
	return ds, ctx.Err()
}

// resourceListVersion tells the versions that are read (FS-11, CF-14).
func resourceListVersion(v string) bool { return v == "v1" || v == "v1beta1" || v == "v1alpha1" }

// resourceListType checks the apiVersion and kind (FS-11, FS-13).
func (c *checker) resourceListType(root cursor) {
	for _, name := range []string{"apiVersion", "kind"} {
		if _, there := root.field(name); !there {
			root.reportKey(ruleListRequired, "", "missing %q", name)
		}
	}
	if kind, f, ok := root.text("kind"); ok && kind != kindResourceList {
		f.report(ruleListType, "", "must be ResourceList, not %s", display(kind))
	}
	if apiVersion, f, ok := root.text("apiVersion"); ok {
		group, version, _ := strings.Cut(apiVersion, "/")
		if group != resourceListGroup || !resourceListVersion(version) {
			f.report(ruleListType, "write config.kubernetes.io/v1", "must be config.kubernetes.io/v1, v1beta1 or v1alpha1, not %s", display(apiVersion))
		}
	}
}

// resourceList checks all but the apiVersion and kind.
func (c *checker) resourceList(root cursor, dir Direction) {
	violations, err := resourceListBundle.check(kindResourceList, root.v)
	if err != nil {
		root.report(ruleListType, "", "%v", err)
		return
	}
	if apiVersion, f, ok := root.text("apiVersion"); ok && apiVersion == resourceListGroup+"/v1alpha1" {
		f.report(ruleListVersion, "write config.kubernetes.io/v1", "v1alpha1 is read as v1")
	}
	old := c.oldResults(root)
	for _, v := range violations {
		c.listViolation(v, old)
	}
	c.listUnknown(root, old)
	c.listItems(root)
	if f, ok := root.mapping("functionConfig"); ok {
		c.listMetadata(f)
	}
	for _, r := range root.fieldItems("results") {
		if !old {
			c.listResult(r, dir)
		}
	}
}

// listViolation reports a broken keyword of the specification's schema.
func (c *checker) listViolation(v violation, old bool) {
	if len(v.path) > 0 && v.path[0] == "results" && len(v.path) > 1 && old {
		return
	}
	if len(v.path) == 1 && v.path[0] == "items" && v.value == nil {
		c.report(finding{rule: ruleListItem, path: v.path, message: "items is null; read as an empty list", fix: "write items: []"})
		return
	}
	if v.keyword == "required" {
		names := v.missing()
		for _, n := range names {
			c.report(finding{rule: ruleListRequired, path: v.path, onKey: true, message: "missing " + strconv.Quote(n)})
		}
		return
	}
	if v.keyword == "enum" && v.value == "warn" {
		c.report(finding{rule: ruleListResults, path: v.path, message: `"warn" is read as "warning"`, fix: "write warning"})
		return
	}
	f := finding{rule: ruleListType, path: v.path, message: v.describe()}
	if len(v.path) > 0 && v.path[len(v.path)-1] == "index" {
		f.rule = ruleListIndex
		f.message = "must be an integer from 0, not " + typeName(v.value)
	}
	c.report(f)
}

// oldResults tells the results of functions that predate the specification: a
// list of groups with a name and items (KG-20 to KG-28). They are read, with
// one warning.
func (c *checker) oldResults(root cursor) bool {
	results := root.fieldItems("results")
	for _, r := range results {
		m, _ := r.v.(map[string]any)
		_, hasItems := m["items"].([]any)
		_, hasMessage := m["message"]
		if hasItems && !hasMessage {
			f, _ := root.field("results")
			f.reportKey(ruleListResults, "write a list of {message, severity, resourceRef, field, file}", "results are grouped by name, as before version v1 of the specification; read as a list")
			for _, g := range results {
				for _, item := range g.fieldItems("items") {
					if _, ok := item.v.(map[string]any); !ok {
						item.report(ruleListType, "", "a result must be a mapping, not %s", typeName(item.v))
					} else if _, _, ok := item.text("message"); !ok {
						item.reportKey(ruleListRequired, "", `missing "message"`)
					}
				}
			}
			return true
		}
	}
	return false
}

func (c *checker) listUnknown(root cursor, old bool) {
	def := resourceListBundle.definition(kindResourceList)
	props, _ := def["properties"].(map[string]any)
	m, _ := root.v.(map[string]any)
	for _, k := range slices.Sorted(maps.Keys(m)) {
		if _, known := props[k]; !known {
			f := c.unknownField(root.child(k, m[k]), k, props)
			f.rule = ruleListUnknown
			c.report(f)
		}
	}
	if old {
		return
	}
	result := resourceListBundle.definition("Result")
	known, _ := result["properties"].(map[string]any)
	for _, r := range root.fieldItems("results") {
		m, _ := r.v.(map[string]any)
		for _, k := range slices.Sorted(maps.Keys(m)) {
			if _, ok := known[k]; !ok {
				f := c.unknownField(r.child(k, m[k]), k, known)
				f.rule = ruleListUnknown
				c.report(f)
			}
		}
		field, _ := r.mapping("field")
		if f, there := field.field("suggestedValue"); there {
			f.reportKey(ruleListResults, "write proposedValue", "suggestedValue is read as proposedValue")
		}
	}
}

// The annotations that say where a resource came from, current and legacy
// (FS-42, FS-44, CF-31, CF-35).
var (
	pathAnnotations  = []string{"internal.config.kubernetes.io/path", "config.kubernetes.io/path"}
	indexAnnotations = []string{"internal.config.kubernetes.io/index", "config.kubernetes.io/index"}
)

func (c *checker) listItems(root cursor) {
	first := map[string]int{}
	for i, item := range root.fieldItems("items") {
		if _, ok := item.v.(map[string]any); !ok {
			continue // its type has been reported
		}
		var missing []string
		apiVersion, _, hasAPI := item.text("apiVersion")
		kind, _, hasKind := item.text("kind")
		meta, _ := item.mapping("metadata")
		name, _, hasName := meta.text("name")
		namespace, _, _ := meta.text("namespace")
		for n, ok := range map[string]bool{"apiVersion": hasAPI, "kind": hasKind, "metadata.name": hasName} {
			if !ok {
				missing = append(missing, n)
			}
		}
		if _, _, generated := meta.text("generateName"); generated || strings.HasSuffix(kind, "List") && !hasName {
			missing = slices.DeleteFunc(missing, func(n string) bool { return n == "metadata.name" })
		}
		if slices.Sort(missing); len(missing) > 0 {
			item.reportKey(ruleListItem, "", "missing %s", strings.Join(missing, ", "))
		} else if hasName {
			// The group and not the version identifies a resource.
			group, _, _ := strings.Cut(apiVersion, "/")
			if group == apiVersion {
				group = ""
			}
			key := strings.Join([]string{group, kind, namespace, name}, "\x00")
			if j, dup := first[key]; dup {
				item.reportKey(ruleListTwice, "", "%s %s is in the list twice, first as items[%d]", kind, display(name), j)
			} else {
				first[key] = i
			}
		}
		c.listMetadata(item)
	}
}

// listMetadata checks the parts of metadata that travel with a resource.
func (c *checker) listMetadata(item cursor) {
	meta, _ := item.mapping("metadata")
	for _, kind := range []string{"annotations", "labels"} {
		group, there := meta.field(kind)
		if !there || group.v == nil {
			continue
		}
		m, ok := group.v.(map[string]any)
		if !ok {
			group.report(ruleListAnnotation, "", "must be a mapping, not %s", typeName(group.v))
			continue
		}
		for _, k := range slices.Sorted(maps.Keys(m)) {
			f := group.child(k, m[k])
			text, ok := m[k].(string)
			if !ok {
				f.report(ruleListAnnotation, "quote it", "must be a string, not %s", typeName(m[k]))
				if n, isInt := m[k].(int64); isInt && slices.Contains(indexAnnotations, k) && n >= 0 {
					continue
				}
				text = display(m[k])
			}
			if kind != "annotations" {
				continue
			}
			if slices.Contains(pathAnnotations, k) {
				c.listPath(f, text)
			}
			if slices.Contains(indexAnnotations, k) {
				if n, err := strconv.Atoi(text); err != nil || n < 0 {
					f.report(ruleListIndex, "", "must be an integer from 0, not %s", display(text))
				}
			}
		}
	}
}

// listPath checks a path that an orchestrator may write to (FS-24, FS-42).
func (c *checker) listPath(f cursor, s string) {
	switch {
	case s == "":
		f.report(ruleListPath, "", "the path is empty")
	case strings.IndexFunc(s, hidden) >= 0:
		f.report(ruleListPath, "", "the path %s has characters that do not show", display(s))
	case strings.HasPrefix(s, "/"), len(s) > 1 && s[1] == ':':
		f.report(ruleListPath, "", "the path %s is not relative", display(s))
	case strings.Contains(s, `\`):
		f.report(ruleListPath, "write slashes", "the path %s has backslashes", display(s))
	case path.Clean(s) == "..", strings.HasPrefix(path.Clean(s), "../"):
		f.report(ruleListPath, "", "the path %s leads out of its folder", display(s))
	}
}

// listResult checks one result (FS-17 to FS-26).
func (c *checker) listResult(r cursor, dir Direction) {
	field, hasField := r.mapping("field")
	_, hasRef := r.mapping("resourceRef")
	if hasField && !hasRef {
		f := finding{rule: ruleListReference, path: field.path, onKey: true, message: "a result with a field must have a resourceRef"} // FS-20
		if dir == Input {
			f = f.at(Warning)
		} else {
			f = f.at(Error)
		}
		c.report(f)
	}
	file, _ := r.mapping("file")
	if p, f, ok := file.text("path"); ok {
		c.listPath(f, p)
	}
	if f, there := file.field("index"); there {
		switch n := f.v.(type) {
		case int64:
			if n < 0 {
				f.report(ruleListIndex, "", "must be an integer from 0, not %d", n)
			}
		case float64:
			f.report(ruleListIndex, "", "must be an integer from 0, not %v", n)
		}
	}
}
