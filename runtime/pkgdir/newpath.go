package pkgdir

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"github.com/krmcat/krmcat/runtime/resourcelist"
)

// DefaultPattern is where new resources go that have no path (CF-27).
const DefaultPattern = "%n_%k.yaml"

// CheckPattern says what is wrong with a pattern for the paths of new
// resources: %n is the name, %k the kind and %s the namespace, all in lower
// case. The path must stay below the folder, and be one that is read again.
func CheckPattern(pattern string) error {
	for i := strings.IndexByte(pattern, '%'); i >= 0; {
		if i+1 == len(pattern) || !strings.ContainsRune("nks", rune(pattern[i+1])) {
			return fmt.Errorf("pattern %q: after %% comes n (name), k (kind) or s (namespace)", pattern)
		}
		next := strings.IndexByte(pattern[i+2:], '%')
		if next < 0 {
			break
		}
		i += 2 + next
	}
	p := ExpandPattern(pattern, resourcelist.Meta{Kind: "K", Name: "n", Namespace: "s"})
	if err := resourcelist.CheckPath(p); err != nil {
		return fmt.Errorf("pattern %q: %w", pattern, err)
	}
	if !strings.HasSuffix(p, ".yaml") && !strings.HasSuffix(p, ".yml") {
		return fmt.Errorf("pattern %q: resources are read from files that end in .yaml or .yml", pattern)
	}
	for dir := range strings.SplitSeq(path.Dir(p), "/") {
		if dir != "." && strings.HasPrefix(dir, ".") {
			return fmt.Errorf("pattern %q: resources are not read from folders that start with a dot", pattern)
		}
	}
	return nil
}

// ExpandPattern is the path that a pattern gives a resource. Characters that
// do not belong in file names become dashes.
func ExpandPattern(pattern string, m resourcelist.Meta) string {
	return strings.NewReplacer("%n", fileName(m.Name), "%k", fileName(m.Kind), "%s", fileName(m.Namespace)).Replace(pattern)
}

// newPath is where an item without a path goes: where the pattern says, with
// the namespace in front if that is taken, or a number behind. A pattern
// without the name is one file for several resources.
func (d *Dir) newPath(m resourcelist.Meta, byPath map[string][]*resourcelist.Item, here bool) (string, error) {
	pattern := d.FilenamePattern
	if pattern == "" {
		pattern = DefaultPattern
	}
	first := ExpandPattern(pattern, m)
	if err := resourcelist.CheckPath(first); err != nil {
		return "", fmt.Errorf("%s: %w", m.ID(), err)
	}
	if !strings.Contains(pattern, "%n") {
		if _, ok := byPath[first]; !ok && here {
			if err := d.free(first); err != nil {
				return "", fmt.Errorf("%s: %w", m.ID(), err)
			}
		}
		return first, nil
	}
	dir, base := path.Split(first)
	ext := path.Ext(base)
	base = strings.TrimSuffix(base, ext)
	candidates := []string{base}
	if m.Namespace != "" && !strings.Contains(pattern, "%s") {
		candidates = append(candidates, fileName(m.Namespace)+"_"+base)
	}
	last := candidates[len(candidates)-1]
	for n := 2; n <= 100; n++ {
		candidates = append(candidates, fmt.Sprintf("%s-%d", last, n))
	}
	for _, c := range candidates {
		p := dir + c + ext
		if _, ok := byPath[p]; ok {
			continue
		}
		if !here {
			return p, nil
		}
		if err := d.insideTree(p); err != nil {
			return "", fmt.Errorf("%s: %w", m.ID(), err)
		}
		_, err := d.root.Lstat(p)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return p, nil
		case err != nil:
			return "", fmt.Errorf("%s: path %q: %w", m.ID(), p, err)
		}
	}
	return "", fmt.Errorf("%s: no free name for its file: %w", m.ID(), ErrCollision)
}

// fileName makes a name safe as part of a file name.
func fileName(s string) string {
	s = strings.ToLower(s)
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '-' || r == '.' {
			return r
		}
		return '-'
	}, s)
}
