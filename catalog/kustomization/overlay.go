package kustomization

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/krmcat/krmcat/internal/yamlpos"
)

// ErrNotBuildable is wrapped by the errors of [Tree.Overlay] about what cannot
// be built with functions from catalogs.
var ErrNotBuildable = errors.New("cannot be built with functions from catalogs")

// Overlay gives files other content, by their absolute paths, so that
// kustomize builds the tree with the functions that annotation names: the
// field catalogs is taken out of every layer, as kustomize does not know it,
// and every functionConfig gets the annotation for its index in Functions and
// loses all other ways to name a runtime. The files on disk stay as they are.
//
// Everything that could bring in functions that are not in the tree is an
// error: layers on other machines, folders of functionConfigs with more in
// them than resources, Compositions inside of a layer, and a functionConfig
// that two layers use in different ways.
func (t *Tree) Overlay(annotation func(i int) string) (map[string][]byte, error) {
	switch {
	case t.Kind == "Composition":
		return nil, fmt.Errorf("%s: a Composition: %w", t.Root, ErrNotBuildable)
	case len(t.Skipped) > 0:
		return nil, fmt.Errorf("%s: %w", t.Skipped[0], ErrNotBuildable)
	case len(t.Compositions) > 0:
		return nil, fmt.Errorf("%s: a Composition inside of a layer: %w", t.Compositions[0], ErrNotBuildable)
	}
	o := &overlay{docs: map[string][]any{}}
	for _, name := range slices.Concat(t.Layers, t.Built) {
		docs, err := o.read(name)
		if err != nil {
			return nil, err
		}
		layer, ok := docs[0].(object)
		if !ok || len(docs) != 1 {
			return nil, fmt.Errorf("%s: %w", name, ErrNotKustomization)
		}
		delete(layer, "catalogs")
	}
	for _, name := range t.Built {
		for k := range o.docs[name][0].(object) {
			if !slices.Contains([]string{"apiVersion", "kind", "metadata", "resources"}, k) {
				return nil, fmt.Errorf("%s: has %s, and could change how functions are run: %w", name, k, ErrNotBuildable)
			}
		}
	}
	done := map[string]string{}
	for i := range t.Functions {
		fn := &t.Functions[i]
		key := fmt.Sprint(fn.File, " ", fn.Field, " ", fn.entry, " ", fn.Document)
		if fn.Standalone {
			key = fmt.Sprint(fn.File, " ", fn.Document)
		}
		if before, ok := done[key]; ok {
			if before != annotation(i) {
				return nil, fmt.Errorf("%s:%d: used by layers whose catalogs have different functions for it: %w", fn.File, fn.Line, ErrNotBuildable)
			}
			continue
		}
		done[key] = annotation(i)
		if !fn.Standalone {
			if err := o.inside(fn, annotation(i)); err != nil {
				return nil, err
			}
			continue
		}
		docs, err := o.read(fn.File)
		if err != nil {
			return nil, err
		}
		if fn.Document >= len(docs) {
			return nil, fmt.Errorf("%s has changed while it was read", fn.File)
		}
		if docs[fn.Document], err = annotated(docs[fn.Document], annotation(i)); err != nil {
			return nil, fmt.Errorf("%s: %w", fn.File, err)
		}
	}
	out := map[string][]byte{}
	for _, name := range slices.Sorted(maps.Keys(o.docs)) {
		abs, err := filepath.Abs(name)
		if err != nil {
			return nil, err
		}
		if out[abs], err = encode(o.docs[name]); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return out, nil
}

type overlay struct {
	docs map[string][]any // the values of files, changed in place
}

func (o *overlay) read(name string) ([]any, error) {
	if docs, ok := o.docs[name]; ok {
		return docs, nil
	}
	data, err := readFile(name)
	if err != nil {
		return nil, err
	}
	docs, err := values(name, data)
	if err != nil {
		return nil, err
	}
	o.docs[name] = docs
	return docs, nil
}

func values(name string, data []byte) ([]any, error) {
	f, problems := yamlpos.Parse(name, data, yamlpos.Limits{Bytes: maxFile})
	if len(problems) > 0 {
		return nil, invalid(f, problems)
	}
	if len(f.Documents) == 0 {
		return nil, fmt.Errorf("%s: empty", name)
	}
	docs := make([]any, len(f.Documents))
	for i, d := range f.Documents {
		docs[i] = d.Value
	}
	return docs, nil
}

// inside changes a functionConfig that is text in a list of a layer.
func (o *overlay) inside(fn *Function, annotation string) error {
	docs, err := o.read(fn.File)
	if err != nil {
		return err
	}
	list, _ := docs[0].(object)[fn.Field].([]any)
	if fn.entry >= len(list) {
		return fmt.Errorf("%s has changed while it was read", fn.File)
	}
	text := str(list[fn.entry])
	inner, err := values(fn.File, []byte(text))
	if err != nil {
		return err
	}
	if fn.Document >= len(inner) {
		return fmt.Errorf("%s has changed while it was read", fn.File)
	}
	if inner[fn.Document], err = annotated(inner[fn.Document], annotation); err != nil {
		return fmt.Errorf("%s: %s[%s]: %w", fn.File, fn.Field, strconv.Itoa(fn.entry), err)
	}
	data, err := encode(inner)
	if err != nil {
		return err
	}
	// A line end tells kustomize that this is text and not a path.
	list[fn.entry] = string(data)
	return nil
}

// annotated is a functionConfig with the annotation as the only thing that
// names a runtime.
func annotated(v any, annotation string) (object, error) {
	in, ok := v.(object)
	if !ok {
		return nil, errors.New("not a mapping")
	}
	out := pinned(in, annotation)
	meta := out["metadata"].(object)
	delete(meta, "configFn")
	delete(meta["annotations"].(object), annotationLegacy)
	return out, nil
}

// encode writes documents as JSON, which is YAML.
func encode(docs []any) ([]byte, error) {
	var b bytes.Buffer
	for i, d := range docs {
		if i > 0 {
			b.WriteString("---\n")
		}
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(false)
		if err := e.Encode(d); err != nil {
			return nil, err
		}
	}
	return b.Bytes(), nil
}
