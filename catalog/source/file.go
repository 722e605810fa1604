package source

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/krmcat/krmcat/catalog"
)

// File fetches from the file system. The zero value reads files of up to
// [DefaultMaxBytes] anywhere, relative paths from the working folder.
type File struct {
	// Root, if not nil, is the folder that paths are relative to and that
	// neither a path nor a symbolic link leads out of.
	Root     *os.Root
	MaxBytes int64 // zero means DefaultMaxBytes
}

// Fetch implements [catalog.Source].
func (s *File) Fetch(ctx context.Context, loc catalog.Location) (*catalog.Content, error) {
	if loc.Scheme != "file" {
		return nil, fmt.Errorf("%s: not a file: %w", loc, errors.ErrUnsupported)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	info, err := s.stat(loc.Ref)
	if err != nil {
		return nil, pathError(loc, err)
	}
	switch {
	case info.IsDir():
		return nil, fmt.Errorf("%s is a folder; name a file in it, such as %s", loc, path.Join(loc.Ref, catalog.DefaultDocument))
	case !info.Mode().IsRegular():
		// Opening a pipe would wait for its writer.
		return nil, fmt.Errorf("%s is not a regular file; use - to read from a pipe", loc)
	}
	f, err := s.open(loc.Ref)
	if err != nil {
		return nil, pathError(loc, err)
	}
	defer f.Close()
	c, err := spool(f, s.MaxBytes, loc.Digest)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", loc, err)
	}
	c.Name = path.Base(loc.Ref)
	c.Location = loc
	return c, nil
}

// pathError leaves the name of the system call out.
func pathError(loc catalog.Location, err error) error {
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		err = pe.Err
	}
	return fmt.Errorf("%s: %w", loc, err)
}

func (s *File) stat(name string) (fs.FileInfo, error) {
	if s.Root != nil {
		if err := s.local(name); err != nil {
			return nil, err
		}
		return s.Root.Stat(name)
	}
	return os.Stat(filepath.FromSlash(name))
}

func (s *File) open(name string) (*os.File, error) {
	if s.Root != nil {
		return s.Root.Open(name)
	}
	return os.Open(filepath.FromSlash(name))
}

// local explains what os.Root would only refuse.
func (s *File) local(name string) error {
	if strings.HasPrefix(name, "/") || !filepath.IsLocal(filepath.FromSlash(name)) {
		return errors.New("outside the folder that files are read from")
	}
	return nil
}
