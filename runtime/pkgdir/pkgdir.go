// Package pkgdir reads directories of resources into items and writes items
// back.
//
// Everything goes through an [os.Root]: no path of an item, and no symbolic
// link in the directory, leads out of it. Files that nothing changed are not
// touched. A write either happens as a whole or leaves the directory as it
// was.
package pkgdir

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/krmcat/krmcat/runtime/resourcelist"
)

// Limits of what is read.
const (
	MaxFile  = 64 << 20
	MaxFiles = 100_000
)

// keepParsed is the size of the files up to which they stay parsed until they
// are written.
const keepParsed = 2 << 20

// ErrCollision means that an item would be written over something that is no
// resource of the directory, or over another item.
var ErrCollision = errors.New("would overwrite something else")

// Dir is a directory whose resources have been read.
type Dir struct {
	// Items are the resources, by path and then by position in the file.
	Items []*resourcelist.Item
	// FilenamePattern is where new items without a path go, see
	// [CheckPattern]; empty means [DefaultPattern].
	FilenamePattern string
	// Skipped are files that look like YAML and hold something else, or
	// links, with the reason. They are left alone.
	Skipped []Skipped

	root  *os.Root
	files map[string]*file
	texts map[*resourcelist.Item][]byte // as in the files
}

// Skipped is a file that was left alone.
type Skipped struct{ Path, Reason string }

// file is a file with resources. Its documents, put together, are its text.
type file struct {
	data []byte
	mode fs.FileMode
	docs []document
}

type document struct {
	head []byte // separator line and what stands between
	text []byte
	item *resourcelist.Item // nil for an empty document
}

// Read reads the resources of a directory and its subdirectories: the files
// *.yaml, *.yml and Kptfile, but for those that an [IgnoreFile] leaves out. A
// file with a document that is no resource is skipped; one that is not YAML is
// an error. Directories whose names start with a dot are not entered, links
// are not followed. The caller closes the Dir.
func Read(ctx context.Context, dir string) (*Dir, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	d := &Dir{root: root, files: map[string]*file{}, texts: map[*resourcelist.Item][]byte{}}
	if err := d.read(ctx); err != nil {
		_ = root.Close()
		return nil, err
	}
	return d, nil
}

// ReadFile reads one file of resources as if its folder held nothing else.
// Every document in it must be a resource.
func ReadFile(ctx context.Context, name string) (*Dir, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(filepath.Dir(name))
	if err != nil {
		return nil, err
	}
	d := &Dir{root: root, files: map[string]*file{}, texts: map[*resourcelist.Item][]byte{}}
	base := filepath.Base(name)
	f, reason, err := d.readFile(base)
	if err == nil && reason != "" {
		err = fmt.Errorf("%s: %s: %w", name, reason, resourcelist.ErrItem)
	}
	if err != nil {
		_ = root.Close()
		return nil, err
	}
	d.add(base, f)
	return d, nil
}

func (d *Dir) add(p string, f *file) {
	d.files[p] = f
	for _, doc := range f.docs {
		if doc.item != nil {
			d.Items = append(d.Items, doc.item)
			d.texts[doc.item] = doc.text
		}
	}
}

// Close releases the directory.
func (d *Dir) Close() error {
	if d.root == nil {
		return nil
	}
	return d.root.Close()
}

func (d *Dir) read(ctx context.Context) error {
	var paths []string
	ignore := newIgnores(d.root.FS())
	err := fs.WalkDir(d.root.FS(), ".", func(p string, e fs.DirEntry, err error) error {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return err
		}
		name := path.Base(p)
		if e.IsDir() {
			if p != "." && (strings.HasPrefix(name, ".") || ignore.ignored(p, true)) {
				return fs.SkipDir
			}
			return ignore.enter(p)
		}
		if name == IgnoreFile && !ignore.read(p) {
			d.Skipped = append(d.Skipped, Skipped{p, "an ignore file counts in the top folder and beside a " + packageFile})
		}
		if !isYAML(name) || strings.HasPrefix(name, tempPrefix) || ignore.ignored(p, false) {
			return nil
		}
		if !e.Type().IsRegular() {
			d.Skipped = append(d.Skipped, Skipped{p, "not a regular file"})
			return nil
		}
		if len(paths) == MaxFiles {
			return fmt.Errorf("more than %d files with resources", MaxFiles)
		}
		paths = append(paths, p)
		return nil
	})
	if err != nil {
		return err
	}
	read := make([]struct {
		file   *file
		reason string
		err    error
	}, len(paths))
	var total atomic.Int64
	resourcelist.Parallel(len(paths), func(i int) {
		if err := ctx.Err(); err != nil {
			read[i].err = err
			return
		}
		f, reason, err := d.readFile(paths[i])
		read[i].file, read[i].reason, read[i].err = f, reason, err
		if f == nil || total.Add(int64(len(f.data))) <= keepParsed {
			return
		}
		for _, doc := range f.docs {
			if doc.item != nil {
				doc.item.Forget()
			}
		}
	})
	for i, r := range read {
		switch {
		case r.err != nil:
			return r.err
		case r.reason != "":
			d.Skipped = append(d.Skipped, Skipped{paths[i], r.reason})
			continue
		}
		d.add(paths[i], r.file)
	}
	return nil
}

func isYAML(name string) bool {
	return strings.HasSuffix(name, ".yaml") || strings.HasSuffix(name, ".yml") || name == "Kptfile"
}

func (d *Dir) readFile(p string) (*file, string, error) {
	in, err := d.root.Open(p)
	if err != nil {
		return nil, "", err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return nil, "", err
	}
	data, err := io.ReadAll(io.LimitReader(in, MaxFile+1))
	if err != nil {
		return nil, "", fmt.Errorf("%s: %w", p, err)
	}
	if len(data) > MaxFile {
		return nil, "", fmt.Errorf("%s: larger than %d bytes", p, MaxFile)
	}
	if err := resourcelist.CheckPath(p); err != nil {
		return nil, err.Error(), nil
	}
	f := &file{data: data, mode: info.Mode().Perm()}
	f.docs = splitDocuments(data)
	line, index := 1, 0
	for i := range f.docs {
		doc := &f.docs[i]
		line += bytes.Count(doc.head, []byte("\n"))
		if !blank(doc.text) {
			it, err := resourcelist.FromDocument(doc.text, p, index)
			if errors.Is(err, resourcelist.ErrItem) {
				return nil, fmt.Sprintf("document %d is no resource: %v", i+1, err), nil
			}
			if se, ok := errors.AsType[*resourcelist.SyntaxError](err); ok {
				return nil, "", fmt.Errorf("%s:%d: %s", p, line+max(se.Line, 1)-1, se.Msg)
			}
			if err != nil {
				return nil, "", fmt.Errorf("%s:%d: %w", p, line, err)
			}
			doc.item = it
			index++
		}
		line += bytes.Count(doc.text, []byte("\n"))
	}
	if index == 0 {
		return nil, "it holds no resource", nil
	}
	return f, "", nil
}

// blank reports whether a document is only comments, directives and white
// space.
func blank(text []byte) bool {
	for line := range bytes.Lines(bytes.TrimPrefix(text, []byte("\ufeff"))) {
		if t := bytes.TrimSpace(line); len(t) > 0 && t[0] != '#' && line[0] != '%' {
			return false
		}
	}
	return true
}

// splitDocuments splits a stream at its separators. Comments before the first
// separator stay with the separator.
func splitDocuments(data []byte) []document {
	var docs []document
	var head []byte
	start, pos := 0, 0
	add := func(end int) { docs = append(docs, document{head: head, text: data[start:end:end]}) }
	for line := range bytes.Lines(data) {
		at := pos
		pos += len(line)
		if !isSeparator(line) {
			continue
		}
		if len(docs) == 0 && head == nil && blank(data[:at]) {
			head, start = data[:pos:pos], pos
			continue
		}
		add(at)
		head, start = line, pos
	}
	if start < len(data) || head != nil {
		add(len(data))
	}
	return docs
}

// isSeparator reports whether a line is nothing but a separator. One with
// content behind it, which YAML allows, is part of its document; such a
// document is written anew when it changes.
func isSeparator(line []byte) bool {
	if !bytes.HasPrefix(line, []byte("---")) {
		return false
	}
	t := bytes.TrimSpace(line[3:])
	return len(t) == 0 || t[0] == '#' && (line[3] == ' ' || line[3] == '\t')
}

// Documents splits a stream of YAML documents into items without paths; every
// document must be a resource.
func Documents(data []byte) ([]*resourcelist.Item, error) {
	var items []*resourcelist.Item
	line := 1
	for _, doc := range splitDocuments(data) {
		line += bytes.Count(doc.head, []byte("\n"))
		if !blank(doc.text) {
			it, err := resourcelist.FromDocument(doc.text, "", 0)
			if se, ok := errors.AsType[*resourcelist.SyntaxError](err); ok {
				return nil, fmt.Errorf("line %d: %s", line+max(se.Line, 1)-1, se.Msg)
			}
			if err != nil {
				return nil, fmt.Errorf("line %d: %w", line, err)
			}
			items = append(items, it)
		}
		line += bytes.Count(doc.text, []byte("\n"))
	}
	return items, nil
}

// Change is what writing does to one file.
type Change struct {
	Path   string
	Before []byte // nil if the file is new
	After  []byte // nil if the file goes
}

// Changes works out what the files become when items are what the directory
// holds: items that functions changed, removed, and created. Nothing is
// written. New items without a path go where FilenamePattern says.
//
// Errors wrap [ErrCollision] or say which path is not allowed.
func (d *Dir) Changes(items []*resourcelist.Item) ([]Change, error) {
	byPath, err := d.place(items, true)
	if err != nil {
		return nil, err
	}
	changes, err := d.composeAll(byPath, false)
	if err != nil {
		return nil, err
	}
	for _, p := range slices.Sorted(keys(d.files)) {
		if _, ok := byPath[p]; !ok {
			changes = append(changes, Change{Path: p, Before: d.files[p].data})
		}
	}
	slices.SortFunc(changes, func(a, b Change) int { return strings.Compare(a.Path, b.Path) })
	return changes, nil
}

func keys[V any](m map[string]V) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// File is a file with resources.
type File struct {
	Path string
	Data []byte
}

// Files is what the files are when items are written to an empty directory.
// Those of d keep their text as far as functions did not change it.
func (d *Dir) Files(items []*resourcelist.Item) ([]File, error) {
	byPath, err := d.place(items, false)
	if err != nil {
		return nil, err
	}
	all, err := d.composeAll(byPath, true)
	if err != nil {
		return nil, err
	}
	out := make([]File, len(all))
	for i, c := range all {
		out[i] = File{c.Path, c.After}
	}
	return out, nil
}

// composeAll composes files, several at once. If all, those that stay are
// among them.
func (d *Dir) composeAll(byPath map[string][]*resourcelist.Item, all bool) ([]Change, error) {
	paths := slices.Sorted(keys(byPath))
	made := make([]*Change, len(paths))
	errs := make([]error, len(paths))
	resourcelist.Parallel(len(paths), func(i int) {
		c, err := d.compose(paths[i], byPath[paths[i]])
		if err != nil {
			errs[i] = fmt.Errorf("%s: %w", paths[i], err)
		}
		made[i] = c
	})
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	var out []Change
	for i, c := range made {
		switch {
		case c != nil:
			out = append(out, *c)
		case all:
			out = append(out, Change{Path: paths[i], After: d.files[paths[i]].data})
		}
	}
	return out, nil
}

// Texts are the items as documents, without the orchestrator's annotations.
func (d *Dir) Texts(items []*resourcelist.Item) ([][]byte, error) {
	out := make([][]byte, len(items))
	for i, it := range items {
		text, err := d.text(it)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", it.Meta().ID(), err)
		}
		out[i] = text
	}
	return out, nil
}

// Memory is a Dir for items that come from nowhere on disk. It can be asked
// for [Dir.Files] and [Dir.Texts].
func Memory() *Dir { return &Dir{files: map[string]*file{}} }

// place sorts items into files. It decides where new items go. If here, what
// is in the directory is in the way.
func (d *Dir) place(items []*resourcelist.Item, here bool) (map[string][]*resourcelist.Item, error) {
	byPath := map[string][]*resourcelist.Item{}
	taken := map[string]map[int]*resourcelist.Item{}
	var homeless []*resourcelist.Item
	for _, it := range items {
		m := it.Meta()
		if m.Path == "" {
			homeless = append(homeless, it)
			continue
		}
		if err := resourcelist.CheckPath(m.Path); err != nil {
			return nil, fmt.Errorf("%s: %w", m.ID(), err)
		}
		if here {
			if err := d.free(m.Path); err != nil {
				return nil, fmt.Errorf("%s: %w", m.ID(), err)
			}
		}
		if m.Index >= 0 {
			at := taken[m.Path]
			if at == nil {
				at = map[int]*resourcelist.Item{}
				taken[m.Path] = at
			}
			if other := at[m.Index]; other != nil {
				return nil, fmt.Errorf("%s and %s have the same place, %s index %d: %w", other.Meta().ID(), m.ID(), m.Path, m.Index, ErrCollision)
			}
			at[m.Index] = it
		}
		byPath[m.Path] = append(byPath[m.Path], it)
	}
	for _, list := range byPath {
		// Items without an index come after those that have one.
		slices.SortStableFunc(list, func(a, b *resourcelist.Item) int { return order(a) - order(b) })
	}
	for _, it := range homeless {
		p, err := d.newPath(it.Meta(), byPath, here)
		if err != nil {
			return nil, err
		}
		byPath[p] = append(byPath[p], it)
	}
	return byPath, nil
}

func order(it *resourcelist.Item) int {
	if i := it.Meta().Index; i >= 0 {
		return i
	}
	return 1 << 30
}

// free reports an error if a path is something else than a file with
// resources or nothing yet.
func (d *Dir) free(p string) error {
	if _, ok := d.files[p]; ok {
		return nil
	}
	if err := d.insideTree(p); err != nil {
		return err
	}
	info, err := d.root.Lstat(p)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("path %q: %w", p, err)
	case info.IsDir():
		return fmt.Errorf("path %q is a folder: %w", p, ErrCollision)
	}
	return fmt.Errorf("path %q is a file that is not among the resources: %w", p, ErrCollision)
}

// insideTree makes sure that the folders of a new file are folders: no files,
// and no links, wherever those lead.
func (d *Dir) insideTree(p string) error {
	for i := range p {
		if p[i] != '/' {
			continue
		}
		info, err := d.root.Lstat(p[:i])
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("path %q: %w", p, err)
		}
		if !info.IsDir() {
			return fmt.Errorf("path %q: %q is not a folder: %w", p, p[:i], ErrCollision)
		}
	}
	return nil
}

// compose is what becomes of one file; nil if it stays.
func (d *Dir) compose(p string, items []*resourcelist.Item) (*Change, error) {
	f := d.files[p]
	if f != nil && f.holds(items) {
		return nil, nil
	}
	var b bytes.Buffer
	var before []byte
	var docs []document
	at := map[*resourcelist.Item]int{}
	if f != nil {
		before, docs = f.data, f.docs
		for i, doc := range docs {
			if doc.item != nil {
				at[doc.item] = i
			}
		}
	}
	put := func(head, text []byte) {
		switch {
		case b.Len() == 0 && len(docs) > 0:
			head = docs[0].head // what is at the top of the file stays there
		case b.Len() == 0:
			head = nil
		case !bytes.HasPrefix(head, []byte("---")):
			head = []byte("---\n")
		}
		endLine(&b)
		b.Write(head)
		b.Write(text)
	}
	next := 0 // the next document that holds no resource, only comments
	comments := func(until int) {
		for ; next < until; next++ {
			if docs[next].item == nil && len(docs[next].text) > 0 {
				put(docs[next].head, docs[next].text)
			}
		}
	}
	for _, it := range items {
		var head []byte
		if i, ok := at[it.Origin()]; ok && it.Origin() != nil {
			comments(i)
			head = docs[i].head
		}
		text, err := d.text(it)
		if err != nil {
			return nil, err
		}
		put(head, text)
	}
	comments(len(docs))
	if f != nil && bytes.Equal(b.Bytes(), before) {
		return nil, nil
	}
	return &Change{Path: p, Before: before, After: b.Bytes()}, nil
}

func endLine(b *bytes.Buffer) {
	if n := b.Len(); n > 0 && b.Bytes()[n-1] != '\n' {
		b.WriteByte('\n')
	}
}

// holds reports whether a file is made of exactly these items.
func (f *file) holds(items []*resourcelist.Item) bool {
	i := 0
	for _, doc := range f.docs {
		if doc.item == nil {
			continue
		}
		if i == len(items) || items[i] != doc.item {
			return false
		}
		i++
	}
	return i == len(items)
}

// text is an item as it is written: from its own text in the file where it
// comes from, if there is one.
func (d *Dir) text(it *resourcelist.Item) ([]byte, error) {
	origin := it.Origin()
	if origin == nil {
		return resourcelist.Strip(it)
	}
	text := d.texts[origin]
	if text == nil {
		var err error
		if text, err = resourcelist.Strip(origin); err != nil {
			return nil, err
		}
	}
	if it == origin {
		return text, nil
	}
	return resourcelist.Preserve(text, it)
}
