package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"

	"github.com/krmcat/krmcat/catalog"
	"github.com/krmcat/krmcat/registry"
	"github.com/krmcat/krmcat/schema"
)

// catalogFlags say where functions are looked for, and which catalogs are
// trusted.
type catalogFlags struct {
	Catalogs []string
	Trusted  []string
}

func (f *catalogFlags) add(fs *pflag.FlagSet) {
	fs.StringArrayVar(&f.Catalogs, "catalog", nil, "`location` of a catalog to look for functions in; repeatable, searched in order (default: those in $KRMCAT_CATALOG)")
	f.addTrusted(fs)
}

func (f *catalogFlags) addTrusted(fs *pflag.FlagSet) {
	fs.StringArrayVar(&f.Trusted, "trusted-catalog", nil, "`location` or digest of a catalog whose functions may be used; repeatable")
}

// trust is what --trusted-catalog says.
func (f *catalogFlags) trust(src catalog.Source) (*catalog.TrustList, error) {
	t := &catalog.TrustList{Source: src}
	for _, s := range f.Trusted {
		if err := t.ParseTrusted(s); err != nil {
			return nil, usagef("--trusted-catalog: %w", err)
		}
	}
	for i, l := range t.Locations {
		t.Locations[i] = here(l)
	}
	return t, nil
}

// locations are the catalogs that the flags name, or else the environment.
func (f *catalogFlags) locations(e *env) ([]catalog.Location, error) {
	names, from := f.Catalogs, "--catalog"
	if len(names) == 0 {
		// Locations hold commas, but no spaces unless they are paths.
		names, from = strings.Fields(e.Getenv("KRMCAT_CATALOG")), "KRMCAT_CATALOG"
	}
	var out []catalog.Location
	for _, n := range names {
		loc, err := catalog.ParseLocation(n)
		if err != nil {
			return nil, usagef("%s: %w", from, err)
		}
		out = append(out, here(loc))
	}
	return out, nil
}

// list is the search order: the catalogs of the flags or of the environment,
// then those that documents name.
func (f *catalogFlags) list(e *env, src catalog.Source, documents ...catalog.Location) (*catalog.List, error) {
	trust, err := f.trust(src)
	if err != nil {
		return nil, err
	}
	locs, err := f.locations(e)
	if err != nil {
		return nil, err
	}
	l := &catalog.List{Source: src, Trust: trust, Options: catalog.ReadOptions{Level: schema.Consume}}
	seen := map[catalog.Location]bool{}
	for _, loc := range append(locs, documents...) {
		if loc = here(loc); !seen[loc] {
			seen[loc] = true
			l.Entries = append(l.Entries, catalog.NewEntry(loc))
		}
	}
	return l, nil
}

// here writes a path the one way that it is compared in: relative to the
// working folder if it is in there, else absolute.
func here(l catalog.Location) catalog.Location {
	if !l.IsLocal() {
		return l
	}
	abs, err := filepath.Abs(filepath.FromSlash(l.Ref))
	if err != nil {
		return l
	}
	l.Ref = filepath.ToSlash(abs)
	if wd, err := os.Getwd(); err == nil {
		if rel, err := filepath.Rel(wd, abs); err == nil && filepath.IsLocal(rel) {
			l.Ref = filepath.ToSlash(rel)
		}
	}
	return l
}

// parseLocation reads a location that a command was given.
func parseLocation(s string) (catalog.Location, error) {
	l, err := catalog.ParseLocation(s)
	if err != nil {
		return catalog.Location{}, usageError{err}
	}
	if !l.IsLocal() {
		return l, nil
	}
	if _, err := os.Stat(filepath.FromSlash(l.Ref)); errors.Is(err, fs.ErrNotExist) {
		// Other commands take references without a scheme.
		if ref, err := registry.ParseReference(s); err == nil {
			return catalog.Location{}, withHint(fmt.Errorf("%s: no such file: %w", s, fs.ErrNotExist), "for the artifact in a registry, write oci://%s", ref)
		}
	}
	return here(l), nil
}
