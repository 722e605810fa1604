// Package kustomization reads Kustomization, Component and Composition files
// for the functions that they use and the catalogs that they look for them in
// (KEP-2906). It does not build anything: resources, patches and everything
// else in these files is left to kustomize.
//
// The order in which a function is looked for (KC-082):
//
//  1. A runtime given with the function's configuration is used as it is:
//     the runtime field, the annotation config.kubernetes.io/function, the
//     older metadata.configFn, in this order (KC-091, KC-092).
//  2. The catalogs of the command line and of the environment, which the
//     caller puts in front.
//  3. For a Kustomization or a Component, the catalogs of that file, in their
//     order. Other layers neither add catalogs nor see these (KC-086, KC-087).
//  4. For a Composition, its own catalogs and then those of its imports, in
//     the order of the imports and each only once; what is imported sees the
//     same list (KC-088 to KC-090).
package kustomization

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"go.yaml.in/yaml/v4"

	"github.com/krmcat/krmcat/catalog"
	"github.com/krmcat/krmcat/internal/yamlpos"
	"github.com/krmcat/krmcat/schema"
)

// Limits of what is read.
const (
	maxFile   = 8 << 20 // bytes of one file
	maxFiles  = 10_000
	maxLayers = 100 // layers one inside of another
)

// FileNames are the names of the file that makes a folder a layer, in the
// order in which they are tried.
var FileNames = []string{"kustomization.yaml", "kustomization.yml", "Kustomization", "composition.yaml", "composition.yml"}

// ErrNotKustomization is wrapped by the error about a file or folder that is
// none of the kinds that this package reads.
var ErrNotKustomization = errors.New("not a Kustomization, Component or Composition")

// Function is a functionConfig and where its function is looked for.
type Function struct {
	Field    string // generators, transformers, validators or modules
	Layer    string // path of the file of the layer that uses it
	File     string // path of the file that it is in; Layer if it is inline
	Document int    // index of the document in File
	Line     int    // line in File
	GVK      catalog.GroupVersionKind
	Name     string             // metadata.name; may be empty
	Inline   *Runtime           // the runtime given with it; nil if catalogs are asked
	Catalogs []catalog.Location // what the files name, in search order
	// Standalone says that the functionConfig is a document of a file of its
	// own, so that [Pin] can change it.
	Standalone bool
	// Config is the functionConfig, for a Composition with its overrides.
	Config map[string]any

	entry int // for text inside of a Kustomization: the index in Field
}

// Tree is what was found below a file or a folder.
type Tree struct {
	Root      string // path of the first layer's file
	Kind      string // Kustomization, Component or Composition
	Functions []Function
	// Catalogs are all the catalogs that the files name, each once.
	Catalogs []catalog.Location
	// Skipped are references that were not followed, with the reason: remote
	// layers, which kustomize fetches when it builds.
	Skipped []string
	// Layers are the files of all Kustomizations and Components that were
	// read, and Built those of folders that are built into functionConfigs.
	Layers, Built []string
	// Compositions are the files of Compositions that layers refer to.
	Compositions []string
}

// Load reads a Kustomization, Component or Composition, or the folder that
// holds it, and the layers that it refers to. A file that is wrong is reported
// as a [*schema.InvalidError] with the place.
func Load(name string) (*Tree, error) {
	file, err := layerFile(name)
	if err != nil {
		return nil, err
	}
	l := &loader{tree: &Tree{Root: file}, done: map[string]bool{}}
	f, err := l.read(file)
	if err != nil {
		return nil, err
	}
	if len(f.docs) == 0 {
		return nil, fmt.Errorf("%s: %w", file, ErrNotKustomization)
	}
	switch l.tree.Kind = f.kind(0); l.tree.Kind {
	case "Kustomization", "Component":
		err = l.layer(file, nil)
	case "Composition":
		err = l.composition(file)
	default:
		return nil, fmt.Errorf("%s: kind %q: %w", file, l.tree.Kind, ErrNotKustomization)
	}
	if err != nil {
		return nil, err
	}
	return l.tree, nil
}

// layerFile finds the file of a layer.
func layerFile(name string) (string, error) {
	info, err := os.Stat(name)
	if err != nil {
		return "", err
	}
	if !info.IsDir() {
		return filepath.Clean(name), nil
	}
	var found []string
	for _, n := range FileNames {
		p := filepath.Join(name, n)
		if info, err := os.Stat(p); err == nil && info.Mode().IsRegular() {
			found = append(found, p)
		}
	}
	switch len(found) {
	case 0:
		return "", fmt.Errorf("%s: no %s in this folder: %w", name, FileNames[0], fs.ErrNotExist)
	case 1:
		return found[0], nil
	}
	return "", fmt.Errorf("%s holds both %s and %s; name the file", name, filepath.Base(found[0]), filepath.Base(found[1]))
}

type loader struct {
	tree  *Tree
	files int
	done  map[string]bool // layers that have been read
}

// document file with its place in messages.
type file struct {
	name string
	pos  *yamlpos.File
	docs []*yamlpos.Document
}

type object = map[string]any

func (f *file) object(i int) object { o, _ := f.docs[i].Value.(object); return o }

// kind is that of a document. A kustomization file need not say what it is.
func (f *file) kind(i int) string {
	o := f.object(i)
	if k := str(o["kind"]); k != "" {
		return k
	}
	if base := filepath.Base(f.name); o != nil && slices.Contains(FileNames[:3], base) {
		return "Kustomization"
	}
	return ""
}

// fail reports something about a value.
func (f *file) fail(doc int, tokens []string, message, fix string) error {
	d := f.docs[doc]
	_, n, _ := d.Find(tokens...)
	excerpt, skip := f.pos.Excerpt(n.Line, n.Column)
	return &schema.InvalidError{Diagnostics: schema.Diagnostics{{
		Pos: schema.Position{File: f.name, Line: n.Line, Column: n.Column}, Path: yamlpos.Path(d.Value, tokens),
		Message: message, Fix: fix, Excerpt: excerpt, Skip: skip,
	}}}
}

func (l *loader) read(name string) (*file, error) {
	if l.files++; l.files > maxFiles {
		return nil, fmt.Errorf("%s: more than %d files", l.tree.Root, maxFiles)
	}
	data, err := readFile(name)
	if err != nil {
		return nil, err
	}
	pos, problems := yamlpos.Parse(name, data, yamlpos.Limits{})
	if len(problems) > 0 {
		return nil, invalid(pos, problems)
	}
	return &file{name, pos, pos.Documents}, nil
}

func readFile(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil {
		return nil, err
	} else if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: not a regular file", name)
	}
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxFile {
		return nil, fmt.Errorf("%s: more than %d MiB", name, maxFile>>20)
	}
	return data, nil
}

func invalid(f *yamlpos.File, problems []yamlpos.Problem) error {
	var ds schema.Diagnostics
	for _, p := range problems {
		excerpt, skip := f.Excerpt(p.Line, p.Column)
		ds = append(ds, schema.Diagnostic{Pos: schema.Position{File: f.Name, Line: p.Line, Column: p.Column},
			Message: p.Message, Fix: p.Fix, Excerpt: excerpt, Skip: skip, Width: p.Width})
	}
	return &schema.InvalidError{Diagnostics: ds}
}

func str(v any) string { s, _ := v.(string); return s }

// list returns a field that is a list, or an error at its place.
func (f *file) list(doc int, field string) ([]any, error) {
	switch v := f.object(doc)[field].(type) {
	case nil:
		return nil, nil
	case []any:
		return v, nil
	}
	return nil, f.fail(doc, []string{field}, "not a list", "write each value on a line with - in front")
}

// layer reads a Kustomization or a Component, first the layers inside of it,
// as they are processed first. Parents are the files that led here.
func (l *loader) layer(name string, parents []string) error {
	if slices.Contains(parents, name) {
		return fmt.Errorf("%s refers to itself, through %s", name, strings.Join(parents, ", "))
	}
	if len(parents) == maxLayers {
		return fmt.Errorf("%s: more than %d layers", name, maxLayers)
	}
	if l.done[name] {
		return nil
	}
	l.done[name] = true
	f, err := l.read(name)
	if err != nil {
		return err
	}
	if len(f.docs) != 1 || f.object(0) == nil {
		return fmt.Errorf("%s: a layer is one mapping, not %d documents: %w", name, len(f.docs), ErrNotKustomization)
	}
	switch k := f.kind(0); k {
	case "Kustomization", "Component":
	case "Composition":
		l.tree.Compositions = append(l.tree.Compositions, name)
		return l.composition(name)
	default:
		return fmt.Errorf("%s: kind %q: %w", name, k, ErrNotKustomization)
	}
	l.tree.Layers = append(l.tree.Layers, name)
	parents = append(parents[:len(parents):len(parents)], name)
	for _, field := range []string{"bases", "resources", "components"} {
		entries, err := f.list(0, field)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if err := l.inner(f, field, str(e), parents); err != nil {
				return err
			}
		}
	}
	catalogs, err := l.catalogs(f)
	if err != nil {
		return err
	}
	for _, field := range []string{"generators", "transformers", "validators"} {
		entries, err := f.list(0, field)
		if err != nil {
			return err
		}
		for i, e := range entries {
			tokens := []string{field, strconv.Itoa(i)}
			s, ok := e.(string)
			if !ok {
				return f.fail(0, tokens, "not a path", "name a file, or write the functionConfig as text with |")
			}
			if err := l.entry(f, field, i, s, catalogs, parents); err != nil {
				return err
			}
		}
	}
	return nil
}

// inner follows a reference to another layer.
func (l *loader) inner(f *file, field, ref string, parents []string) error {
	p, local := l.path(f.name, ref)
	if !local {
		l.skip(f.name, field, ref)
		return nil
	}
	info, err := os.Stat(p)
	if err != nil || !info.IsDir() {
		// Missing resources are for kustomize to complain about.
		return nil
	}
	name, err := layerFile(p)
	if err != nil {
		return err
	}
	return l.layer(name, parents)
}

func (l *loader) skip(file, field, ref string) {
	l.tree.Skipped = append(l.tree.Skipped, fmt.Sprintf("%s: %s: %s is not on this machine", file, field, ref))
}

// path is a reference as a path, if it is one.
func (l *loader) path(from, ref string) (string, bool) {
	if filepath.IsAbs(ref) {
		return filepath.Clean(ref), true
	}
	p := filepath.Join(filepath.Dir(from), filepath.FromSlash(ref))
	if loc, err := catalog.ParseLocation(ref); err != nil || !loc.IsLocal() {
		return p, false
	}
	return p, true
}

// catalogs reads the catalogs that a file names.
func (l *loader) catalogs(f *file) ([]catalog.Location, error) {
	entries, err := f.list(0, "catalogs")
	if err != nil {
		return nil, err
	}
	base := catalog.Location{Scheme: "file", Ref: filepath.ToSlash(f.name)}
	var out []catalog.Location
	for i, e := range entries {
		tokens := []string{"catalogs", strconv.Itoa(i)}
		s, ok := e.(string)
		if !ok {
			return nil, f.fail(0, tokens, "not a location", "write a path, or an https, git or oci location")
		}
		loc, err := base.Resolve(s)
		if err != nil {
			return nil, f.fail(0, tokens, err.Error(), "")
		}
		if !slices.Contains(out, loc) {
			out = append(out, loc)
		}
		if !slices.Contains(l.tree.Catalogs, loc) {
			l.tree.Catalogs = append(l.tree.Catalogs, loc)
		}
	}
	return out, nil
}

// entry reads an entry of generators, transformers or validators: a file with
// functionConfigs, a folder that is built into some, or the text of one.
func (l *loader) entry(f *file, field string, i int, s string, catalogs []catalog.Location, parents []string) error {
	tokens := []string{field, strconv.Itoa(i)}
	if strings.Contains(s, "\n") || strings.HasPrefix(strings.TrimSpace(s), "{") {
		pos, problems := yamlpos.Parse(f.name, []byte(s), yamlpos.Limits{})
		if len(problems) > 0 {
			return f.fail(0, tokens, "the text is not YAML: "+problems[0].Message, "")
		}
		in := &file{f.name, pos, pos.Documents}
		_, n, _ := f.docs[0].Find(tokens...)
		return l.functions(in, field, f.name, catalogs, func(fn *Function) { fn.Line, fn.entry = n.Line, i })
	}
	p, local := l.path(f.name, s)
	if !local {
		l.skip(f.name, field, s)
		return nil
	}
	info, err := os.Stat(p)
	if err != nil {
		return f.fail(0, tokens, s+": "+reason(err), "check the path")
	}
	if info.IsDir() {
		name, err := layerFile(p)
		if err != nil {
			return err
		}
		return l.built(name, field, f.name, catalogs, parents)
	}
	in, err := l.read(p)
	if err != nil {
		return err
	}
	if len(in.docs) == 1 && in.kind(0) == "Composition" {
		l.tree.Compositions = append(l.tree.Compositions, p)
		return l.composition(p)
	}
	return l.functions(in, field, f.name, catalogs, func(fn *Function) { fn.Standalone = true })
}

func reason(err error) string {
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		return pe.Err.Error()
	}
	return err.Error()
}

// built reads a folder whose resources are functionConfigs of a layer.
func (l *loader) built(name, field, layer string, catalogs []catalog.Location, parents []string) error {
	if slices.Contains(parents, name) {
		return fmt.Errorf("%s refers to itself, through %s", name, strings.Join(parents, ", "))
	}
	if len(parents) == maxLayers {
		return fmt.Errorf("%s: more than %d layers", name, maxLayers)
	}
	f, err := l.read(name)
	if err != nil {
		return err
	}
	if len(f.docs) != 1 || f.object(0) == nil {
		return fmt.Errorf("%s: %w", name, ErrNotKustomization)
	}
	if !slices.Contains(l.tree.Built, name) {
		l.tree.Built = append(l.tree.Built, name)
	}
	parents = append(parents[:len(parents):len(parents)], name)
	entries, err := f.list(0, "resources")
	if err != nil {
		return err
	}
	for i, e := range entries {
		tokens := []string{"resources", strconv.Itoa(i)}
		p, local := l.path(name, str(e))
		if !local {
			l.skip(name, "resources", str(e))
			continue
		}
		info, err := os.Stat(p)
		if err != nil {
			return f.fail(0, tokens, str(e)+": "+reason(err), "check the path")
		}
		if info.IsDir() {
			inner, err := layerFile(p)
			if err == nil {
				err = l.built(inner, field, layer, catalogs, parents)
			}
			if err != nil {
				return err
			}
			continue
		}
		in, err := l.read(p)
		if err != nil {
			return err
		}
		if err := l.functions(in, field, layer, catalogs, func(fn *Function) { fn.Standalone = true }); err != nil {
			return err
		}
	}
	return nil
}

// functions adds the functionConfigs of a file.
func (l *loader) functions(f *file, field, layer string, catalogs []catalog.Location, set func(*Function)) error {
	for i, d := range f.docs {
		o := f.object(i)
		if o == nil {
			return f.fail(i, nil, "not a mapping, so no functionConfig", "")
		}
		fn, err := newFunction(o)
		if err != nil {
			return f.fail(i, nil, err.Error(), "")
		}
		if fn == nil {
			continue // built into kustomize
		}
		fn.Field, fn.Layer, fn.File, fn.Document, fn.Line, fn.Catalogs = field, layer, f.name, i, d.Node.Line, catalogs
		set(fn)
		l.tree.Functions = append(l.tree.Functions, *fn)
	}
	return nil
}

// newFunction reads a functionConfig. It is nil for kustomize's own.
func newFunction(o object) (*Function, error) {
	apiVersion, kind := str(o["apiVersion"]), str(o["kind"])
	switch {
	case apiVersion == "builtin":
		return nil, nil
	case apiVersion == "" || kind == "":
		return nil, errors.New("a functionConfig without apiVersion or kind")
	}
	meta, _ := o["metadata"].(object)
	rt, err := InlineRuntime(o)
	if err != nil {
		return nil, err
	}
	return &Function{GVK: catalog.GVK(apiVersion, kind), Name: str(meta["name"]), Inline: rt, Config: o}, nil
}

// kebab is the name that a functionConfig without one has: its kind, such as
// java-application for JavaApplication (KEP-2299).
func kebab(kind string) string {
	var b strings.Builder
	runes := []rune(kind)
	for i, r := range runes {
		if unicode.IsUpper(r) {
			after := i > 0 && !unicode.IsUpper(runes[i-1])
			before := i > 0 && i+1 < len(runes) && unicode.IsLower(runes[i+1])
			if after || before {
				b.WriteByte('-')
			}
			r = unicode.ToLower(r)
		}
		b.WriteRune(r)
	}
	return b.String()
}

// Configs reads a file of functionConfigs that no Kustomization refers to, so
// that nothing but the caller's catalogs is asked. The name is for messages
// and for Function.File.
func Configs(name string, data []byte) ([]Function, error) {
	pos, problems := yamlpos.Parse(name, data, yamlpos.Limits{Bytes: maxFile})
	if len(problems) > 0 {
		return nil, invalid(pos, problems)
	}
	if len(pos.Documents) == 0 {
		return nil, fmt.Errorf("%s: no functionConfig in it: %w", name, ErrNotKustomization)
	}
	l := &loader{tree: &Tree{Root: name}}
	err := l.functions(&file{name, pos, pos.Documents}, "", name, nil, func(fn *Function) { fn.Standalone = true })
	return l.tree.Functions, err
}

// ConfigText is the functionConfig as a document for the function: without
// what names a runtime in its annotations, which is not the function's
// business, and with the name that it has by default.
func (f *Function) ConfigText() ([]byte, error) {
	c := merge(f.Config, object{})
	meta := merge(object{}, asObject(c["metadata"]))
	annotations := merge(object{}, asObject(meta["annotations"]))
	delete(annotations, Annotation)
	delete(annotations, annotationLegacy)
	delete(meta, "annotations")
	delete(meta, "configFn")
	if len(annotations) > 0 {
		meta["annotations"] = annotations
	}
	if str(meta["name"]) == "" {
		meta["name"] = kebab(f.GVK.Kind)
	}
	c["metadata"] = meta
	if f.Inline != nil && f.Inline.From == "runtime" {
		delete(c, "runtime")
	}
	return yaml.Marshal(c)
}

func asObject(v any) object { o, _ := v.(object); return o }
