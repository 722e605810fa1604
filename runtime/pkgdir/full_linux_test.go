package pkgdir

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
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
