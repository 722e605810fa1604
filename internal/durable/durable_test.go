package durable_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/krmcat/krmcat/internal/durable"
)

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list
}

func TestWriteFile(t *testing.T) {
	t.Parallel()
	dir, tmp := t.TempDir(), t.TempDir()
	path := filepath.Join(dir, "f")
	for _, want := range []string{"one", "two", ""} {
		if err := durable.WriteFile(tmp, path, []byte(want)); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(path); string(got) != want || err != nil {
			t.Errorf("got %q, %v, want %q", got, err, want)
		}
	}
	if err := durable.WriteFile(tmp, filepath.Join(dir, "missing", "f"), []byte("x")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("into a folder that is not there: got %v", err)
	}
	if err := durable.WriteFile(tmp, dir, []byte("x")); err == nil {
		t.Error("over a folder: no error")
	}
	if got := names(t, tmp); len(got) != 0 {
		t.Errorf("left behind: %v", got)
	}
}

func TestTouchAndRemove(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "f")
	for range 2 {
		if err := durable.Touch(path); err != nil {
			t.Fatal(err)
		}
	}
	if err := durable.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := durable.Remove(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("removing twice: got %v", err)
	}
}

func TestDirs(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	d := durable.NewDirs(root)
	for range 2 {
		if err := d.Make(filepath.Join(root, "a", "b", "c")); err != nil {
			t.Fatal(err)
		}
	}
	if fi, err := os.Stat(filepath.Join(root, "a", "b", "c")); err != nil || !fi.IsDir() {
		t.Errorf("got %v, %v", fi, err)
	}
	if err := d.Make(filepath.Join(root, "..", "elsewhere")); err == nil {
		t.Error("a folder outside the root: no error")
	}
	if err := os.WriteFile(filepath.Join(root, "file"), nil, 0o666); err != nil {
		t.Fatal(err)
	}
	if err := d.Make(filepath.Join(root, "file", "b")); err == nil {
		t.Error("a folder below a file: no error")
	}
}

func TestLockFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "lock")
	l, err := durable.LockFile(path)
	if err != nil {
		t.Fatal(err)
	}
	_, err = durable.LockFile(path)
	if !errors.Is(err, durable.ErrLocked) || !strings.Contains(err.Error(), "process ") {
		t.Errorf("second lock: got %v, want ErrLocked with a process", err)
	}
	if err := l.Unlock(); err != nil {
		t.Fatal(err)
	}
	l, err = durable.LockFile(path)
	if err != nil {
		t.Fatalf("after Unlock: %v", err)
	}
	if err := l.Unlock(); err != nil {
		t.Fatal(err)
	}
}
