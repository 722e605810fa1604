package kustomization

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	kyaml "sigs.k8s.io/kustomize/kyaml/yaml"
	"sigs.k8s.io/kustomize/kyaml/yaml/merge2"

	"github.com/krmcat/krmcat/catalog"
	"github.com/krmcat/krmcat/internal/yamlpos"
)

// Names of fields of a Composition: those of KEP-2906 and those that KEP-2299
// renamed them to. Both are read.
var (
	moduleFields   = []string{"modules", "transformers"}
	importFields   = []string{"modulesFrom", "transformersFrom"}
	overrideFields = []string{"moduleOverrides", "transformerOverrides"}
	orderFields    = []string{"moduleOrder", "transformerOrder"}
)

// module is an entry of a Composition on its way to the final list.
type module struct {
	config   object
	function Function // where it is from
}

// composition reads a Composition and its imports, and adds its functions.
func (l *loader) composition(name string) error {
	modules, catalogs, err := l.imports(name, nil)
	if err != nil {
		return err
	}
	for _, m := range modules {
		fn, err := newFunction(m.config)
		if err != nil {
			return fmt.Errorf("%s:%d: %w", m.function.File, m.function.Line, err)
		}
		if fn == nil {
			continue
		}
		at := m.function
		fn.Field, fn.Layer, fn.File, fn.Document, fn.Line, fn.Catalogs = "modules", name, at.File, at.Document, at.Line, catalogs
		l.tree.Functions = append(l.tree.Functions, *fn)
	}
	return nil
}

// field finds a field by one of its names.
func (f *file) field(names []string) (string, error) {
	var found []string
	for _, n := range names {
		if _, ok := f.object(0)[n]; ok {
			found = append(found, n)
		}
	}
	switch len(found) {
	case 0:
		return names[0], nil
	case 1:
		return found[0], nil
	}
	return "", f.fail(0, []string{found[1]}, fmt.Sprintf("%s and %s are two names of one field", found[0], found[1]), "put all entries under one of them")
}

func (f *file) listOf(names []string) (string, []any, error) {
	name, err := f.field(names)
	if err != nil {
		return "", nil, err
	}
	v, err := f.list(0, name)
	return name, v, err
}

// imports returns the modules of a Composition after its imports, overrides
// and order (KC-088), and the catalogs of it and of its imports (KC-089).
func (l *loader) imports(name string, parents []string) ([]module, []catalog.Location, error) {
	if slices.Contains(parents, name) {
		return nil, nil, fmt.Errorf("%s imports itself, through %s", name, strings.Join(parents, ", "))
	}
	if len(parents) == maxLayers {
		return nil, nil, fmt.Errorf("%s: more than %d imports one inside of another", name, maxLayers)
	}
	parents = append(parents[:len(parents):len(parents)], name)
	f, err := l.read(name)
	if err != nil {
		return nil, nil, err
	}
	if len(f.docs) != 1 || f.kind(0) != "Composition" {
		return nil, nil, fmt.Errorf("%s: not a Composition: %w", name, ErrNotKustomization)
	}
	catalogs, err := l.catalogs(f)
	if err != nil {
		return nil, nil, err
	}
	own, err := l.modules(f)
	if err != nil {
		return nil, nil, err
	}
	field, entries, err := f.listOf(importFields)
	if err != nil {
		return nil, nil, err
	}
	var before, after []module
	for i, e := range entries {
		tokens := []string{field, strconv.Itoa(i)}
		o, _ := e.(object)
		ref := str(o["path"])
		p, local := l.path(name, ref)
		if ref == "" || !local {
			return nil, nil, f.fail(0, tokens, "an import without the path of a Composition on this machine", "")
		}
		info, err := os.Stat(p)
		if err != nil {
			return nil, nil, f.fail(0, tokens, ref+": "+reason(err), "check the path")
		}
		if info.IsDir() {
			if p, err = layerFile(p); err != nil {
				return nil, nil, err
			}
		}
		ms, cs, err := l.imports(p, parents)
		if err != nil {
			return nil, nil, err
		}
		switch mode := str(o["importMode"]); mode {
		case "", "prepend":
			before = append(before, ms...)
		case "append":
			after = append(after, ms...)
		default:
			return nil, nil, f.fail(0, append(tokens, "importMode"), fmt.Sprintf("%q is neither prepend nor append", mode), "")
		}
		for _, c := range cs {
			if !slices.Contains(catalogs, c) {
				catalogs = append(catalogs, c)
			}
		}
	}
	imported := append(before, after...)
	if err := f.override(imported); err != nil {
		return nil, nil, err
	}
	all := slices.Concat(imported[:len(before)], own, imported[len(before):])
	all, err = f.order(all)
	return all, catalogs, err
}

// modules reads a Composition's own modules: mappings, or paths of files with
// them.
func (l *loader) modules(f *file) ([]module, error) {
	field, entries, err := f.listOf(moduleFields)
	if err != nil {
		return nil, err
	}
	var out []module
	for i, e := range entries {
		tokens := []string{field, strconv.Itoa(i)}
		switch e := e.(type) {
		case object:
			_, n, _ := f.docs[0].Find(tokens...)
			out = append(out, module{e, Function{File: f.name, Line: n.Line}})
		case string:
			p, local := l.path(f.name, e)
			if !local {
				l.skip(f.name, field, e)
				continue
			}
			if _, err := os.Stat(p); err != nil {
				return nil, f.fail(0, tokens, e+": "+reason(err), "check the path")
			}
			in, err := l.read(p)
			if err != nil {
				return nil, err
			}
			for j, d := range in.docs {
				if in.object(j) == nil {
					return nil, in.fail(j, nil, "not a mapping, so no functionConfig", "")
				}
				out = append(out, module{in.object(j), Function{File: p, Document: j, Line: d.Node.Line}})
			}
		default:
			return nil, f.fail(0, tokens, "neither a functionConfig nor a path", "")
		}
	}
	return out, nil
}

// identity tells the modules of a Composition apart.
func identity(o object) string {
	meta, _ := o["metadata"].(object)
	name := str(meta["name"])
	if name == "" {
		name = kebab(str(o["kind"]))
	}
	return str(o["apiVersion"]) + " " + str(o["kind"]) + " " + name
}

// override changes imported modules. Overrides are strategic merge patches
// (KEP-2299); without a schema, lists whose elements have a name or another
// known key are merged by it.
func (f *file) override(modules []module) error {
	field, entries, err := f.listOf(overrideFields)
	if err != nil {
		return err
	}
	for i, e := range entries {
		o, ok := e.(object)
		if !ok {
			return f.fail(0, []string{field, strconv.Itoa(i)}, "not a mapping", "")
		}
		found := false
		for j := range modules {
			if identity(modules[j].config) == identity(o) {
				m, err := patch(modules[j].config, o)
				if err != nil {
					return f.fail(0, []string{field, strconv.Itoa(i)}, "cannot be merged: "+err.Error(), "")
				}
				modules[j].config = m
				found = true
			}
		}
		if !found {
			return f.fail(0, []string{field, strconv.Itoa(i)}, "no imported module has this apiVersion, kind and name", "")
		}
	}
	return nil
}

// patch merges a patch into a mapping as kustomize does.
func patch(base, change object) (object, error) {
	from, err := json.Marshal(change)
	if err != nil {
		return nil, err
	}
	to, err := json.Marshal(base)
	if err != nil {
		return nil, err
	}
	text, err := merge2.MergeStrings(string(from), string(to), true, kyaml.MergeOptions{ListIncreaseDirection: kyaml.MergeOptionsListAppend})
	if err != nil {
		return nil, err
	}
	file, problems := yamlpos.Parse("", []byte(text), yamlpos.Limits{})
	if len(problems) > 0 || len(file.Documents) != 1 {
		return nil, errors.New("the result is not a document")
	}
	out, _ := file.Documents[0].Value.(object)
	return out, nil
}

// merge joins two mappings, the second over the first.
func merge(base, patch object) object {
	out := maps.Clone(base)
	for k, v := range patch {
		b, ok1 := out[k].(object)
		p, ok2 := v.(object)
		switch {
		case ok1 && ok2:
			out[k] = merge(b, p)
		case v == nil:
			delete(out, k)
		default:
			out[k] = v
		}
	}
	return out
}

// order puts modules into the order that a Composition gives, which names all
// of them.
func (f *file) order(modules []module) ([]module, error) {
	field, entries, err := f.listOf(orderFields)
	if err != nil || len(entries) == 0 {
		return modules, err
	}
	left := slices.Clone(modules)
	var out []module
	for i, e := range entries {
		o, _ := e.(object)
		matches := func(m module) bool {
			id := strings.Fields(identity(m.config))
			return len(id) == 3 && id[2] == str(o["name"]) &&
				(o["apiVersion"] == nil || o["apiVersion"] == id[0]) && (o["kind"] == nil || o["kind"] == id[1])
		}
		at := slices.IndexFunc(left, matches)
		if at < 0 {
			return nil, f.fail(0, []string{field, strconv.Itoa(i)}, fmt.Sprintf("no module %q left to put here", str(o["name"])), "")
		}
		if slices.IndexFunc(left[at+1:], matches) >= 0 {
			return nil, f.fail(0, []string{field, strconv.Itoa(i)}, fmt.Sprintf("more than one module is named %q", str(o["name"])), "add apiVersion and kind")
		}
		out = append(out, left[at])
		left = slices.Delete(left, at, at+1)
	}
	if len(left) > 0 {
		return nil, f.fail(0, []string{field}, fmt.Sprintf("%d modules are not in the order, such as %s", len(left), identity(left[0].config)), "name all of them")
	}
	return out, nil
}
