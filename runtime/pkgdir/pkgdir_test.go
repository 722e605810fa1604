package pkgdir

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"github.com/krmcat/krmcat/runtime/resourcelist"
)

const tree = `
-- a.yaml --
# about the file
---
apiVersion: v1
kind: A
metadata:
  name: one   # first
---
# only a comment
---
apiVersion: v1
kind: A
metadata: {name: two}
-- sub/b.yml --
%YAML 1.1
---
apiVersion: v1
kind: B
metadata:
  name: b
-- values.yaml --
image: x
-- empty.yaml --
# nothing
-- .git/config.yaml --
apiVersion: v1
kind: Hidden
metadata: {name: h}
-- notes.txt --
apiVersion: v1
`

func write(t *testing.T, text string) string {
	t.Helper()
	dir := t.TempDir()
	for _, f := range txtar.Parse([]byte(text)).Files {
		p := filepath.Join(dir, filepath.FromSlash(f.Name))
		if err := errors.Join(os.MkdirAll(filepath.Dir(p), 0o755), os.WriteFile(p, f.Data, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func files(t *testing.T, dir string) map[string]string {
	t.Helper()
	m := map[string]string{}
	err := filepath.WalkDir(dir, func(p string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		rel, err := filepath.Rel(dir, p)
		if err != nil {
			return err
		}
		data, err := os.ReadFile(p)
		m[filepath.ToSlash(rel)] = string(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func read(t *testing.T, dir string) *Dir {
	t.Helper()
	d, err := Read(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d
}

// edit is what a function does: items to text and back.
func edit(t *testing.T, items []*resourcelist.Item, change func(string) string) []*resourcelist.Item {
	t.Helper()
	text, err := resourcelist.Compose(&resourcelist.List{Items: items})
	if err != nil {
		t.Fatal(err)
	}
	l, err := resourcelist.Read([]byte(change(string(text))), resourcelist.ReadOptions{Before: items, FromFunction: true})
	if err != nil {
		t.Fatal(err)
	}
	return l.Items
}

func apply(t *testing.T, d *Dir, items []*resourcelist.Item) []Change {
	t.Helper()
	changes, err := d.Changes(items)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Apply(t.Context(), changes); err != nil {
		t.Fatal(err)
	}
	return changes
}

func TestRead(t *testing.T) {
	d := read(t, write(t, tree))
	var got []string
	for _, it := range d.Items {
		m := it.Meta()
		got = append(got, m.Path+" "+m.ID())
	}
	if diff := cmp.Diff([]string{"a.yaml v1/A one", "a.yaml v1/A two", "sub/b.yml v1/B b"}, got); diff != "" {
		t.Error(diff)
	}
	if i := d.Items[1].Meta().Index; i != 1 {
		t.Errorf("index of two is %d", i)
	}
	var skipped []string
	for _, s := range d.Skipped {
		skipped = append(skipped, s.Path)
	}
	if diff := cmp.Diff([]string{"empty.yaml", "values.yaml"}, skipped); diff != "" {
		t.Error(diff)
	}
}

// Nothing changes when nothing changed, whatever the files look like.
func TestUnchanged(t *testing.T) {
	dir := write(t, tree)
	before := files(t, dir)
	d := read(t, dir)
	if c := apply(t, d, edit(t, d.Items, func(s string) string { return s })); len(c) > 0 {
		t.Errorf("changes: %+v", c)
	}
	if diff := cmp.Diff(before, files(t, dir)); diff != "" {
		t.Error(diff)
	}
}

// Only the lines that a function changed are changed; deletes and creates are
// honoured, and annotations are not written (FS-33, FS-36, FS-38).
func TestChanges(t *testing.T) {
	dir := write(t, tree)
	if err := os.Chmod(filepath.Join(dir, "a.yaml"), 0o600); err != nil {
		t.Fatal(err)
	}
	want := files(t, dir)
	d := read(t, dir)
	items := edit(t, d.Items, func(s string) string {
		s = strings.Replace(s, "name: one   # first", "name: one\n    labels: {x: y}", 1)
		s = s[:strings.Index(s, "- apiVersion: v1\n  kind: B")]
		return s + "- apiVersion: v1\n  kind: ConfigMap\n  metadata:\n    name: New\n- apiVersion: v1\n  kind: C\n  metadata:\n    name: c\n    annotations:\n      config.kubernetes.io/path: deep/er/c.yaml\n"
	})
	apply(t, d, items)
	want["a.yaml"] = strings.Replace(want["a.yaml"], "one   # first\n", "one   # first\n  labels: {x: y}\n", 1)
	delete(want, "sub/b.yml")
	want["new_configmap.yaml"] = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: New\n"
	want["deep/er/c.yaml"] = "apiVersion: v1\nkind: C\nmetadata:\n  name: c\n"
	if diff := cmp.Diff(want, files(t, dir)); diff != "" {
		t.Error(diff)
	}
	if info, err := os.Stat(filepath.Join(dir, "a.yaml")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode of a.yaml: %v %v", info, err)
	}
}

// One of several documents is changed or removed; the others keep their text.
func TestDocuments(t *testing.T) {
	const three = "\n-- f.yaml --\n# head\napiVersion: v1\nkind: A\nmetadata: {name: a}\n--- # two\napiVersion: v1\nkind: A\nmetadata: {name: b}\n\n---\n\napiVersion: v1\nkind: A\nmetadata:   {name: c}"
	for _, tt := range []struct {
		name string
		keep func(items []*resourcelist.Item) []*resourcelist.Item
		want string
	}{
		{"middle removed", func(i []*resourcelist.Item) []*resourcelist.Item { return []*resourcelist.Item{i[0], i[2]} },
			"# head\napiVersion: v1\nkind: A\nmetadata: {name: a}\n---\n\napiVersion: v1\nkind: A\nmetadata:   {name: c}\n"},
		{"first removed", func(i []*resourcelist.Item) []*resourcelist.Item { return i[1:] },
			"apiVersion: v1\nkind: A\nmetadata: {name: b}\n\n---\n\napiVersion: v1\nkind: A\nmetadata:   {name: c}\n"},
		{"last removed", func(i []*resourcelist.Item) []*resourcelist.Item { return i[:2] },
			"# head\napiVersion: v1\nkind: A\nmetadata: {name: a}\n--- # two\napiVersion: v1\nkind: A\nmetadata: {name: b}\n\n"},
		{"other order of the list", func(i []*resourcelist.Item) []*resourcelist.Item { return []*resourcelist.Item{i[2], i[0], i[1]} }, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := write(t, three)
			before := files(t, dir)["f.yaml"]
			d := read(t, dir)
			apply(t, d, tt.keep(d.Items))
			want := tt.want
			if want == "" {
				want = before // index decides, not the order of the list (CF-38)
			}
			if diff := cmp.Diff(want, files(t, dir)["f.yaml"]); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// Paths that lead out of the directory or onto something else are refused,
// and nothing is written.
func TestRefused(t *testing.T) {
	outside := t.TempDir()
	for _, tt := range []struct {
		name, path, text string
		is               error
	}{
		{"above", "../x.yaml", "leaves the folder", nil},
		{"absolute", filepath.ToSlash(filepath.Join(outside, "x.yaml")), "absolute", nil},
		{"not clean", "a//b.yaml", "not clean", nil},
		{"through a link", "link/x.yaml", `"link" is not a folder`, ErrCollision},
		{"onto a link", "link.yaml", "not among the resources", ErrCollision},
		{"onto another file", "values.yaml", "not among the resources", ErrCollision},
		{"onto a folder", "sub", "folder", ErrCollision},
		{"below a file", "a.yaml/x.yaml", `"a.yaml" is not a folder`, ErrCollision},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := write(t, tree)
			if err := errors.Join(os.Symlink(outside, filepath.Join(dir, "link")), os.Symlink(filepath.Join(outside, "x.yaml"), filepath.Join(dir, "link.yaml"))); err != nil {
				t.Fatal(err)
			}
			d := read(t, dir)
			if !slices.ContainsFunc(d.Skipped, func(s Skipped) bool { return s.Path == "link.yaml" }) {
				t.Error("the link is not among what was skipped")
			}
			items := edit(t, d.Items, func(s string) string {
				return s + "- apiVersion: v1\n  kind: C\n  metadata:\n    name: c\n    annotations:\n      config.kubernetes.io/path: " + tt.path + "\n"
			})
			before := len(walk(t, dir))
			changes, err := d.Changes(items)
			if err == nil {
				err = d.Apply(t.Context(), changes)
			}
			if err == nil || tt.is != nil && !errors.Is(err, tt.is) || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("got %v", err)
			}
			if n := len(walk(t, dir)); n != before {
				t.Errorf("%d entries became %d", before, n)
			}
			if n := len(walk(t, outside)); n != 1 {
				t.Errorf("%d entries outside", n)
			}
		})
	}
}

func walk(t *testing.T, dir string) []string {
	t.Helper()
	var all []string
	if err := filepath.WalkDir(dir, func(p string, _ fs.DirEntry, err error) error {
		all = append(all, p)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return all
}

func TestSamePlace(t *testing.T) {
	dir := write(t, tree)
	d := read(t, dir)
	items := edit(t, d.Items, func(s string) string {
		item := "- apiVersion: v1\n  kind: C\n  metadata:\n    name: NAME\n    annotations:\n      config.kubernetes.io/path: c.yaml\n      config.kubernetes.io/index: '0'\n"
		return s + strings.Replace(item, "NAME", "c1", 1) + strings.Replace(item, "NAME", "c2", 1)
	})
	if _, err := d.Changes(items); !errors.Is(err, ErrCollision) {
		t.Errorf("got %v", err)
	}
	// Without an index they follow each other (FS-45 would make both 0).
	d = read(t, dir)
	items = edit(t, d.Items, func(s string) string {
		item := "- apiVersion: v1\n  kind: C\n  metadata:\n    name: NAME\n    annotations:\n      config.kubernetes.io/path: c.yaml\n"
		return s + strings.Replace(item, "NAME", "c1", 1) + strings.Replace(item, "NAME", "c2", 1)
	})
	apply(t, d, items)
	if got := files(t, dir)["c.yaml"]; strings.Count(got, "---\n") != 1 {
		t.Errorf("got %s", got)
	}
}

// A failure in the middle undoes what came before: here a file that somebody
// changed while functions ran, and a folder that cannot be written to.
func TestUndo(t *testing.T) {
	dir := write(t, tree)
	d := read(t, dir)
	items := edit(t, d.Items, func(s string) string {
		s = strings.Replace(s, "kind: A", "kind: AA", 1)
		s = strings.Replace(s, "kind: B\n", "kind: BB\n", 1)
		return s + "- apiVersion: v1\n  kind: C\n  metadata:\n    name: c\n    annotations:\n      config.kubernetes.io/path: new/c.yaml\n"
	})
	changes, err := d.Changes(items)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "sub", "b.yml"), []byte("edited: meanwhile\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	before := files(t, dir)
	if err := d.Apply(t.Context(), changes); !errors.Is(err, ErrCollision) || !strings.Contains(err.Error(), "changed while functions ran") {
		t.Errorf("got %v", err)
	}
	if diff := cmp.Diff(before, files(t, dir)); diff != "" {
		t.Error(diff)
	}
	if _, err := os.Stat(filepath.Join(dir, "new")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the new folder is left: %v", err)
	}
}

func TestReadErrors(t *testing.T) {
	dir := write(t, "\n-- a.yaml --\napiVersion: v1\nkind: A\nmetadata: {name: a}\n---\na: [1\nb: {\n")
	if _, err := Read(t.Context(), dir); err == nil || !strings.Contains(err.Error(), "a.yaml:") {
		t.Errorf("got %v", err)
	}
	if _, err := Read(t.Context(), filepath.Join(dir, "nope")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}

func TestCreate(t *testing.T) {
	d := read(t, write(t, tree))
	out := filepath.Join(t.TempDir(), "out")
	fs1, err := d.Files(d.Items)
	if err != nil {
		t.Fatal(err)
	}
	if err := Create(t.Context(), out, fs1); err != nil {
		t.Fatal(err)
	}
	got := files(t, out)
	if len(got) != 2 || !strings.Contains(got["a.yaml"], "name: one   # first") {
		t.Errorf("got %v", got)
	}
	if err := Create(t.Context(), out, fs1); !errors.Is(err, fs.ErrExist) {
		t.Errorf("again: %v", err)
	}
	bad := filepath.Join(t.TempDir(), "bad")
	if err := Create(t.Context(), bad, []File{{Path: "a.yaml"}, {Path: "../b.yaml", Data: []byte("x")}}); err == nil {
		t.Error("a path that leads out is accepted")
	}
	if left := walk(t, filepath.Dir(bad)); len(left) != 1 {
		t.Errorf("left behind: %v", left)
	}
}

// Splitting a stream into documents loses nothing.
func FuzzSplitDocuments(f *testing.F) {
	f.Add([]byte("a: b\n---\nc: d\n--- # x\n\n---"))
	f.Add([]byte("# c\n---\n---\n%YAML 1.1\n---\r\na"))
	f.Fuzz(func(t *testing.T, data []byte) {
		var got []byte
		for _, d := range splitDocuments(data) {
			got = append(append(got, d.head...), d.text...)
		}
		if string(got) != string(data) {
			t.Fatalf("got %q, want %q", got, data)
		}
	})
}

// stopAfter is a context that ends when it has been asked n times, which
// finds every place where a write can be interrupted.
type stopAfter struct {
	context.Context
	n int
}

func (s *stopAfter) Err() error {
	if s.n--; s.n < 0 {
		return context.Canceled
	}
	return nil
}

// An interrupt while files are written: whenever it comes, either nothing has
// happened, or everything.
func TestInterrupted(t *testing.T) {
	for n := 0; ; n++ {
		dir := write(t, tree)
		before := walk(t, dir)
		was := files(t, dir)
		d := read(t, dir)
		items := edit(t, d.Items, func(s string) string {
			s = strings.Replace(s, "kind: A", "kind: AA", 1)
			s = strings.Replace(s, "kind: B\n", "kind: BB\n", 1)
			return s + "- apiVersion: v1\n  kind: C\n  metadata:\n    name: c\n    annotations:\n      config.kubernetes.io/path: new/c.yaml\n"
		})
		changes, err := d.Changes(items)
		if err != nil {
			t.Fatal(err)
		}
		err = d.Apply(&stopAfter{t.Context(), n}, changes)
		if err == nil {
			if n < 4 {
				t.Errorf("nobody asked after %d", n)
			}
			if got := files(t, dir); !strings.Contains(got["a.yaml"], "kind: AA") || got["new/c.yaml"] == "" || !strings.Contains(got["sub/b.yml"], "BB") {
				t.Errorf("not everything is written: %v", got)
			}
			return
		}
		if !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		if diff := cmp.Diff(was, files(t, dir)); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff(before, walk(t, dir)); diff != "" {
			t.Error(diff)
		}
	}
}

// Reading stops, too, and a new folder is not there in part.
func TestInterruptedReading(t *testing.T) {
	dir := write(t, tree)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Read(ctx, dir); !errors.Is(err, context.Canceled) {
		t.Errorf("Read: %v", err)
	}
	if _, err := ReadFile(ctx, filepath.Join(dir, "a.yaml")); !errors.Is(err, context.Canceled) {
		t.Errorf("ReadFile: %v", err)
	}
	out := filepath.Join(t.TempDir(), "out")
	if err := Create(ctx, out, []File{{Path: "a.yaml", Data: []byte(resource)}}); !errors.Is(err, context.Canceled) {
		t.Errorf("Create: %v", err)
	}
	if left := walk(t, filepath.Dir(out)); len(left) != 1 {
		t.Errorf("left behind: %v", left)
	}
}
