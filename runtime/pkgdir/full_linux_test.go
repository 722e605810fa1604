package pkgdir

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/krmcat/krmcat/runtime/resourcelist"
)

// A disk that fills up while the new contents are written: nothing has
// changed, and nothing is left behind.
func TestDiskFull(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		if os.Getenv("KRMCAT_TEST_REQUIRE") == "all" && os.Getuid() == 0 {
			t.Fatal(err)
		}
		t.Skipf("cannot mount a small file system: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	for _, name := range []string{"a", "b"} {
		if err := os.WriteFile(filepath.Join(dir, name+".yaml"), []byte("apiVersion: v1\nkind: A\nmetadata:\n  name: "+name+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	before := files(t, dir)
	d := read(t, dir)
	items := edit(t, d.Items, func(s string) string {
		return strings.ReplaceAll(s, "  kind: A\n", "  kind: A\n  data: "+strings.Repeat("x", 50_000)+"\n")
	})
	changes, err := d.Changes(items)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Apply(t.Context(), changes); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("got %v", err)
	}
	if diff := cmp.Diff(before, files(t, dir)); diff != "" {
		t.Error(diff)
	}
	// With room, the same works.
	small := edit(t, d.Items, func(s string) string { return strings.Replace(s, "kind: A", "kind: B", 1) })
	if changes, err = d.Changes(small); err != nil {
		t.Fatal(err)
	}
	if err := d.Apply(t.Context(), changes); err != nil {
		t.Error(err)
	}
}

// A folder that nobody may write to: nothing happens, and nothing is left.
func TestReadOnly(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		if os.Getenv("KRMCAT_TEST_REQUIRE") == "all" && os.Getuid() == 0 {
			t.Fatal(err)
		}
		t.Skipf("cannot mount a small file system: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	if err := os.WriteFile(filepath.Join(dir, "a.yaml"), []byte("apiVersion: v1\nkind: A\nmetadata:\n  name: a\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("", dir, "", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	before := files(t, dir)
	d := read(t, dir)
	for name, items := range map[string][]*resourcelist.Item{
		"changed": edit(t, d.Items, func(s string) string { return strings.Replace(s, "kind: A", "kind: B", 1) }),
		"removed": nil,
		"created": edit(t, d.Items, func(s string) string {
			return s + "- apiVersion: v1\n  kind: C\n  metadata:\n    name: c\n    annotations:\n      config.kubernetes.io/path: new/c.yaml\n"
		}),
	} {
		changes, err := d.Changes(items)
		if err != nil {
			t.Fatal(err)
		}
		if err := d.Apply(t.Context(), changes); !errors.Is(err, syscall.EROFS) {
			t.Errorf("%s: got %v", name, err)
		}
		if diff := cmp.Diff(before, files(t, dir)); diff != "" {
			t.Error(diff)
		}
	}
	if err := Create(t.Context(), filepath.Join(dir, "new"), nil); !errors.Is(err, syscall.EROFS) {
		t.Errorf("a new folder: %v", err)
	}
}
