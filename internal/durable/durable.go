// Package durable changes files so that a change, once reported as made,
// survives the loss of power, and is otherwise not there at all.
//
// A file gets its content under a temporary name, is flushed, renamed, and
// then the folder that names it is flushed. That is as much as a file system
// promises; a disk that reports flushes it did not do is out of reach.
package durable

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
)

// Commit flushes and closes f and gives it the name path, replacing what has
// that name. Both are on one file system, and the folder of path exists. On
// failure f is closed and stays under its old name.
func Commit(f *os.File, path string) error {
	if err := f.Sync(); err != nil {
		_ = f.Close() // the first error counts
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	return SyncDir(filepath.Dir(path))
}

// WriteFile makes path a file with the given content, through a temporary
// file in the folder tmp. On failure nothing is left behind.
func WriteFile(tmp, path string, data []byte) error {
	f, err := os.CreateTemp(tmp, "w-")
	if err != nil {
		return err
	}
	if _, err := f.Write(data); err != nil {
		_ = f.Close()
		_ = os.Remove(f.Name())
		return err
	}
	if err := Commit(f, path); err != nil {
		_ = os.Remove(f.Name()) // gone already if it was renamed
		return err
	}
	return nil
}

// Touch makes path an empty file, if it does not exist.
func Touch(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o666)
	if err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return SyncDir(filepath.Dir(path))
}

// Remove removes a file or an empty folder.
func Remove(path string) error {
	if err := os.Remove(path); err != nil {
		return err
	}
	return SyncDir(filepath.Dir(path))
}

// Dirs makes folders below a root, each with all its parents, and remembers
// which ones it knows to be durable. A folder that merely exists may have been
// made by someone who did not get to flush it. It is safe for concurrent use.
type Dirs struct {
	root string

	mu    sync.Mutex
	known map[string]bool
}

// maxKnown bounds the memory of Dirs. Forgetting costs flushes only.
const maxKnown = 50_000

// NewDirs returns Dirs below root, which exists.
func NewDirs(root string) *Dirs {
	return &Dirs{root: filepath.Clean(root), known: map[string]bool{filepath.Clean(root): true}}
}

// Make makes dir, which is below the root, and its parents.
func (d *Dirs) Make(dir string) error {
	dir = filepath.Clean(dir)
	if dir != d.root && !strings.HasPrefix(dir, d.root+string(filepath.Separator)) {
		return fmt.Errorf("folder %s is not below %s", dir, d.root)
	}
	d.mu.Lock()
	known := d.known[dir]
	d.mu.Unlock()
	if known {
		return nil
	}
	parent := filepath.Dir(dir)
	if err := d.Make(parent); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o777); err != nil && !os.IsExist(err) {
		return err
	}
	if err := SyncDir(parent); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.known) >= maxKnown {
		clear(d.known)
		d.known[d.root] = true
	}
	d.known[dir] = true
	return nil
}
