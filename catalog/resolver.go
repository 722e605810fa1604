package catalog

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
)

// Resolver finds the function version for a functionConfig type.
type Resolver interface {
	// Resolve returns the first match in search order. The error wraps
	// [ErrNotFound] if there is none, and [ErrUntrusted] if the match is
	// in a catalog that is not trusted.
	Resolve(ctx context.Context, gvk GroupVersionKind) (*Resolution, error)
}

// List is a [Resolver] over catalogs in search order (KC-017, KC-083). A
// catalog is fetched when the search first comes to it, and kept: one that is
// not needed need not be there (KC-112). It is safe for concurrent use as long
// as its fields are not changed.
type List struct {
	Entries []*Entry
	Source  Source      // fetches the entries' documents; nil if all are loaded
	Trust   Trust       // nil trusts nothing
	Options ReadOptions // Level is usually schema.Consume
}

// Entry is a place in the search order of a [List].
type Entry struct {
	Location Location
	// Official marks a catalog that the build of the program or its
	// configuration names. It needs no further trust (KC-025), and stands
	// first in the list (KC-095).
	Official bool

	mu      sync.Mutex
	catalog *Catalog
	err     error
}

// NewEntry makes an entry for a catalog that is fetched when it is needed.
func NewEntry(loc Location) *Entry { return &Entry{Location: loc} }

// Loaded makes an entry for a catalog that has been read already.
func Loaded(c *Catalog) *Entry { return &Entry{Location: c.Origin, catalog: c} }

// load fetches and reads the catalog once. A definition is read as a catalog
// that holds only it. Failures are kept, but not those of ctx.
func (e *Entry) load(ctx context.Context, l *List) (*Catalog, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.catalog != nil || e.err != nil {
		return e.catalog, e.err
	}
	if l.Source == nil {
		return nil, fmt.Errorf("catalog %s: no source to fetch it from: %w", e.Location, errors.ErrUnsupported)
	}
	doc, err := Load(ctx, l.Source, e.Location, l.Options)
	if err != nil {
		if ctx.Err() == nil {
			e.err = err
		}
		return nil, err
	}
	c := doc.AsCatalog()
	c.Origin = e.Location
	e.catalog = c
	return c, nil
}

// Looked says what the search found at one place of a [List].
type Looked struct {
	Location Location
	Catalog  *Catalog // nil if it was not needed or not available
	State    LookedState
	Err      error // for Unavailable and Untrusted
	// Matches are the places of the type in the catalog, first the one that
	// is used.
	Matches []*Resolution
}

// LookedState is the outcome of looking at one catalog.
type LookedState int

// The outcomes.
const (
	NotNeeded   LookedState = iota // an earlier catalog had the function
	NoMatch                        // it does not define the function
	Matched                        // it supplies the function
	Untrusted                      // it defines the function, but is not trusted
	Unavailable                    // it could not be fetched or read
)

func (s LookedState) String() string {
	switch s {
	case NotNeeded:
		return "not needed"
	case NoMatch:
		return "no match"
	case Matched:
		return "match"
	case Untrusted:
		return "not trusted"
	default:
		return "unavailable"
	}
}

// NotFoundError reports that no catalog defines a type. It wraps
// [ErrNotFound].
type NotFoundError struct {
	GVK      GroupVersionKind
	Searched []Location
	// Similar are types of the searched catalogs that differ in the version
	// or the group only.
	Similar []GroupVersionKind
}

func (e *NotFoundError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %v", e.GVK, ErrNotFound)
	switch len(e.Searched) {
	case 0:
		b.WriteString(" (no catalog was given)")
	case 1:
		fmt.Fprintf(&b, " (searched %s)", e.Searched[0])
	default:
		fmt.Fprintf(&b, " (searched %d catalogs)", len(e.Searched))
	}
	if len(e.Similar) > 0 {
		fmt.Fprintf(&b, "; did you mean %s?", e.Similar[0])
	}
	return b.String()
}

func (e *NotFoundError) Unwrap() error { return ErrNotFound }

// Explain searches for a type and says what happened at each place. The
// Resolution is nil if err is not; the errors are those of [List.Resolve].
//
// A catalog that cannot be fetched or read ends the search, even if a later
// one has the function: the first match has to win, and taking another one
// because a server does not answer would run other code (KC-018, KC-111). For
// the same reason a match in a catalog that is not trusted ends it (KC-022).
func (l *List) Explain(ctx context.Context, gvk GroupVersionKind) (*Resolution, []Looked, error) {
	looked := make([]Looked, len(l.Entries))
	for i, e := range l.Entries {
		looked[i].Location = e.Location
	}
	missing := &NotFoundError{GVK: gvk}
	for i, e := range l.Entries {
		c, err := e.load(ctx, l)
		if err != nil {
			looked[i].State, looked[i].Err = Unavailable, err
			return nil, looked, fmt.Errorf("%s: %w", gvk, err)
		}
		looked[i].Catalog = c
		for r := range c.Resolutions() {
			if got := r.GVK(); got == gvk {
				looked[i].Matches = append(looked[i].Matches, r)
			} else if got.Kind == gvk.Kind && !slices.Contains(missing.Similar, got) {
				missing.Similar = append(missing.Similar, got)
			}
		}
		missing.Searched = append(missing.Searched, e.Location)
		if len(looked[i].Matches) == 0 {
			looked[i].State = NoMatch
			continue
		}
		if err := l.trusted(ctx, e, c); err != nil {
			looked[i].State, looked[i].Err = Untrusted, err
			return nil, looked, fmt.Errorf("%s: %w", gvk, err)
		}
		looked[i].State = Matched
		return looked[i].Matches[0], looked, nil
	}
	slices.SortStableFunc(missing.Similar, func(a, b GroupVersionKind) int {
		// Another version of the same function first.
		switch {
		case a.Group == gvk.Group && b.Group != gvk.Group:
			return -1
		case a.Group != gvk.Group && b.Group == gvk.Group:
			return 1
		}
		return 0
	})
	return nil, looked, missing
}

func (l *List) trusted(ctx context.Context, e *Entry, c *Catalog) error {
	if e.Official {
		return nil
	}
	if l.Trust == nil {
		return fmt.Errorf("%s: %w", nameOf(c), ErrUntrusted)
	}
	return l.Trust.Trusted(ctx, c)
}

// Resolve implements [Resolver]. The errors are a [*NotFoundError], one that
// wraps [ErrUntrusted], or why a catalog could not be fetched or read, such as
// a schema.InvalidError.
func (l *List) Resolve(ctx context.Context, gvk GroupVersionKind) (*Resolution, error) {
	r, _, err := l.Explain(ctx, gvk)
	return r, err
}

// All gives every function version in search order, including those that an
// earlier one of the same type hides. It fetches all catalogs, stops at the
// first that cannot be read, and asks for no trust.
func (l *List) All(ctx context.Context) iter.Seq2[*Resolution, error] {
	return func(yield func(*Resolution, error) bool) {
		for _, e := range l.Entries {
			c, err := e.load(ctx, l)
			if err != nil {
				yield(nil, err)
				return
			}
			for r := range c.Resolutions() {
				if !yield(r, nil) {
					return
				}
			}
		}
	}
}

// Resolutions gives the function versions of a catalog in order.
func (c *Catalog) Resolutions() iter.Seq[*Resolution] {
	return func(yield func(*Resolution) bool) {
		for i := range c.Definitions {
			d := &c.Definitions[i]
			for j := range d.Versions {
				if !yield(&Resolution{Catalog: c, Definition: d, Version: &d.Versions[j]}) {
					return
				}
			}
		}
	}
}

var _ Resolver = (*List)(nil)
