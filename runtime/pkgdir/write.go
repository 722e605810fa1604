package pkgdir

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// tempPrefix starts the names of files that are being written.
const tempPrefix = ".krmcat-tmp-"

// Apply makes changes. New contents are first written in full beside their
// files, so that a full disk is found before anything changes; then they are
// renamed into place. If a rename fails, those before it are undone. When ctx
// ends before the first rename, nothing is changed; after it, the rest is
// done as well.
//
// Errors wrap [ErrCollision] for a file that somebody else changed meanwhile,
// and those of the file system.
func (d *Dir) Apply(ctx context.Context, changes []Change) (err error) {
	var undo []func() error
	var temps []string
	defer func() {
		for _, t := range temps {
			_ = d.root.Remove(t)
		}
		if err == nil {
			return
		}
		for _, u := range slices.Backward(undo) {
			if uerr := u(); uerr != nil {
				err = errors.Join(err, fmt.Errorf("undoing: %w", uerr))
			}
		}
	}()
	type move struct {
		temp string
		c    Change
	}
	var moves []move
	for _, c := range changes {
		if c.After == nil {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		made, err := d.mkdirAll(path.Dir(c.Path))
		for _, dir := range made {
			undo = append(undo, func() error { return d.root.Remove(dir) })
		}
		if err != nil {
			return fmt.Errorf("writing %s: %w", c.Path, err)
		}
		temp := path.Join(path.Dir(c.Path), tempPrefix+strings.ToLower(rand.Text()))
		temps = append(temps, temp)
		if err := d.writeTemp(temp, c); err != nil {
			return fmt.Errorf("writing %s: %w", c.Path, err)
		}
		moves = append(moves, move{temp, c})
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	for _, m := range moves {
		if err := d.unchanged(m.c); err != nil {
			return err
		}
		if err := d.root.Rename(m.temp, m.c.Path); err != nil {
			return fmt.Errorf("writing %s: %w", m.c.Path, err)
		}
		undo = append(undo, func() error { return d.restore(m.c) })
	}
	for _, c := range changes {
		if c.After != nil {
			continue
		}
		if err := d.unchanged(c); err != nil {
			return err
		}
		if err := d.root.Remove(c.Path); err != nil {
			return fmt.Errorf("removing %s: %w", c.Path, err)
		}
		undo = append(undo, func() error { return d.restore(c) })
	}
	return nil
}

// mkdirAll makes folders one by one and returns those it made.
func (d *Dir) mkdirAll(dir string) (made []string, err error) {
	if dir == "." {
		return nil, nil
	}
	parts := strings.Split(dir, "/")
	for i := range parts {
		p := strings.Join(parts[:i+1], "/")
		err := d.root.Mkdir(p, 0o755)
		switch {
		case err == nil:
			made = append(made, p)
		case errors.Is(err, fs.ErrExist):
		default:
			return made, err
		}
	}
	return made, nil
}

func (d *Dir) writeTemp(temp string, c Change) error {
	mode := fs.FileMode(0o644)
	if f := d.files[c.Path]; f != nil {
		mode = f.mode
	}
	out, err := d.root.OpenFile(temp, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	_, err = out.Write(c.After)
	if f := d.files[c.Path]; f != nil && err == nil {
		// The mask of this process must not take away what the file had.
		err = out.Chmod(f.mode)
	}
	if err == nil {
		err = out.Sync()
	}
	return errors.Join(err, out.Close())
}

// unchanged makes sure that a file is still what was read, or still missing:
// somebody may have edited it while the functions ran.
func (d *Dir) unchanged(c Change) error {
	info, err := d.root.Lstat(c.Path)
	if c.Before == nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return fmt.Errorf("%s has come into being while functions ran: %w", c.Path, ErrCollision)
	}
	if err != nil {
		return fmt.Errorf("%s has changed while functions ran: %w", c.Path, err)
	}
	if !info.Mode().IsRegular() || info.Size() != int64(len(c.Before)) {
		return fmt.Errorf("%s has changed while functions ran: %w", c.Path, ErrCollision)
	}
	data, err := d.root.ReadFile(c.Path)
	if err != nil {
		return fmt.Errorf("%s: %w", c.Path, err)
	}
	if string(data) != string(c.Before) {
		return fmt.Errorf("%s has changed while functions ran: %w", c.Path, ErrCollision)
	}
	return nil
}

// restore puts back what was there before a change.
func (d *Dir) restore(c Change) error {
	if c.Before == nil {
		return d.root.Remove(c.Path)
	}
	temp := path.Join(path.Dir(c.Path), tempPrefix+strings.ToLower(rand.Text()))
	if err := d.writeTemp(temp, Change{Path: c.Path, After: c.Before}); err != nil {
		return errors.Join(err, d.root.Remove(temp))
	}
	return d.root.Rename(temp, c.Path)
}

// Create writes files to a new directory: under another name first, so that
// the directory is there in full or not at all. The error wraps [fs.ErrExist]
// if it exists.
func Create(ctx context.Context, dir string, files []File) (err error) {
	if _, err := os.Lstat(dir); err == nil {
		return fmt.Errorf("%s: %w", dir, fs.ErrExist)
	}
	parent := filepath.Dir(filepath.Clean(dir))
	temp, err := os.MkdirTemp(parent, tempPrefix)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.RemoveAll(temp)
		}
	}()
	if err := os.Chmod(temp, 0o755); err != nil {
		return err
	}
	root, err := os.OpenRoot(temp)
	if err != nil {
		return err
	}
	defer root.Close()
	d := &Dir{root: root, files: map[string]*file{}}
	changes := make([]Change, len(files))
	for i, f := range files {
		changes[i] = Change{Path: f.Path, After: f.Data}
	}
	if err := d.Apply(ctx, changes); err != nil {
		return err
	}
	return os.Rename(temp, dir)
}
