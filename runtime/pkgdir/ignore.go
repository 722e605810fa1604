package pkgdir

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"

	gitignore "github.com/monochromegane/go-gitignore"
)

// IgnoreFile is the name of the files that say what is not read, and
// packageFile the one that makes a folder a package of its own, both kpt's.
const (
	IgnoreFile  = ".krmignore"
	packageFile = "Kptfile"
)

// maxIgnoreFile bounds an ignore file, in bytes.
const maxIgnoreFile = 1 << 20

// ignores are the ignore files of a folder and of the packages in it. They
// mean what they mean to kpt and kustomize: patterns of gitignore without
// a/**/b; a pattern that starts with ! wins over the others, wherever it
// stands. A file counts for its own package only: the patterns of the top
// folder can leave out a package below as a whole, but nothing in it.
type ignores struct {
	root     fs.FS
	packages map[string]gitignore.IgnoreMatcher // by folder
}

func newIgnores(root fs.FS) *ignores {
	return &ignores{root, map[string]gitignore.IgnoreMatcher{}}
}

// enter reads the ignore file of a folder if it is a package or the top.
func (g *ignores) enter(dir string) error {
	if dir != "." {
		_, err := fs.Stat(g.root, path.Join(dir, packageFile))
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
	}
	name := path.Join(dir, IgnoreFile)
	info, err := fs.Stat(g.root, name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		g.packages[dir] = gitignore.DummyIgnoreMatcher(false)
		return nil
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s is not a regular file", name)
	}
	f, err := g.root.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxIgnoreFile+1))
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if len(text) > maxIgnoreFile {
		return fmt.Errorf("%s: larger than %d bytes", name, maxIgnoreFile)
	}
	g.packages[dir] = matcher(text)
	return nil
}

// read reports whether an ignore file is one that counts.
func (g *ignores) read(p string) bool {
	_, ok := g.packages[path.Dir(p)]
	return ok
}

// matcher reads patterns. The library has no mercy with patterns that are
// empty, which match nothing.
func matcher(text []byte) gitignore.IgnoreMatcher {
	var b bytes.Buffer
	for line := range bytes.Lines(bytes.TrimPrefix(text, []byte("\ufeff"))) {
		p := strings.Trim(strings.TrimRight(string(line), "\r\n"), " ")
		if p = strings.TrimPrefix(p, "!"); p == "" || p == "/" {
			continue
		}
		b.Write(bytes.TrimRight(line, "\r\n"))
		b.WriteByte('\n')
	}
	return gitignore.NewGitIgnoreFromReader("/", &b)
}

// ignored reports whether a file or folder is left out by its package.
func (g *ignores) ignored(p string, isDir bool) bool {
	for dir := path.Dir(p); ; dir = path.Dir(dir) {
		m, ok := g.packages[dir]
		switch {
		case ok:
			return m.Match("/"+strings.TrimPrefix(strings.TrimPrefix(p, dir), "/"), isDir)
		case dir == ".":
			return false
		}
	}
}
