package catalog

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/opencontainers/go-digest"
)

// Trust decides which catalogs may have functions run from them.
type Trust interface {
	// Trusted returns nil if the catalog is trusted, and otherwise an
	// error wrapping [ErrUntrusted].
	Trusted(ctx context.Context, c *Catalog) error
}

// TrustFunc is a function used as a [Trust].
type TrustFunc func(ctx context.Context, c *Catalog) error

// Trusted calls f.
func (f TrustFunc) Trusted(ctx context.Context, c *Catalog) error { return f(ctx, c) }

// TrustList trusts the catalogs that a user has named (KC-019 to KC-022). A
// catalog is trusted if
//
//   - it was asked for by one of the Locations. Both are normalised, as
//     [ParseLocation] does; relative paths are relative to the same folder. A
//     location with a digest, or a git location with a commit, trusts only
//     that content, by whichever tag or branch it was found;
//   - its bytes have one of the Digests;
//   - its bytes are the same as those at one of the Locations: a copy beside
//     a Kustomization is trusted through the https URL that it was copied from
//     (KC-034). For this the Locations that are not local are fetched, at most
//     once and only when nothing else matches.
//
// The zero value trusts nothing. It is safe for concurrent use as long as its
// fields are not changed.
type TrustList struct {
	Locations []Location
	Digests   []digest.Digest // of the documents' bytes
	// Source fetches trusted documents to compare copies with. If it is nil,
	// copies are not trusted.
	Source Source

	mu      sync.Mutex
	fetched map[Location]fetchedDigest
}

type fetchedDigest struct {
	digest digest.Digest
	err    error
}

// ParseTrusted reads the value of a --trusted-catalog flag: a location, or
// the digest of a document.
func (t *TrustList) ParseTrusted(s string) error {
	if d := digest.Digest(s); d.Validate() == nil {
		t.Digests = append(t.Digests, d)
		return nil
	}
	l, err := ParseLocation(s)
	if err != nil {
		return err
	}
	t.Locations = append(t.Locations, l)
	return nil
}

// Trusted implements [Trust].
func (t *TrustList) Trusted(ctx context.Context, c *Catalog) error {
	for _, l := range t.Locations {
		if covers(l, c) {
			return nil
		}
	}
	if c.Digest == "" {
		return fmt.Errorf("%s: %w", nameOf(c), ErrUntrusted)
	}
	if slices.Contains(t.Digests, c.Digest) {
		return nil
	}
	var failed error
	for _, l := range t.Locations {
		if l.IsLocal() || t.Source == nil {
			continue
		}
		d, err := t.digestOf(ctx, l)
		switch {
		case err != nil && ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			failed = err
		case d == c.Digest:
			return nil
		}
	}
	if failed != nil {
		return fmt.Errorf("%s: %w (and it could not be compared with a trusted one: %v)", nameOf(c), ErrUntrusted, failed)
	}
	return fmt.Errorf("%s: %w", nameOf(c), ErrUntrusted)
}

// nameOf names a catalog in messages: by where it is from, if that is known.
func nameOf(c *Catalog) string {
	if c.Origin.IsZero() {
		return fmt.Sprintf("catalog %q", c.Name)
	}
	return c.Origin.String()
}

// covers reports whether trusting l means trusting the catalog for where it
// is from.
func covers(l Location, c *Catalog) bool {
	if l == c.Origin && !l.Pinned() {
		return true
	}
	if l.Scheme != c.Origin.Scheme || !l.Pinned() {
		return false
	}
	switch l.Scheme {
	case "git":
		want, err := l.Git()
		if err != nil {
			return false
		}
		got, err := c.Resolved.Git()
		return err == nil && got.Repo == want.Repo && got.Path == want.Path && got.Ref == want.Ref
	case "oci":
		// The digest names the content; a tag beside it is for people.
		return ociName(l) == ociName(c.Resolved) && l.Path == c.Resolved.Path && l.Digest == c.Resolved.Digest
	}
	return l.Ref == c.Origin.Ref && l.Digest == c.Digest
}

// ociName is host/repository without the tag.
func ociName(l Location) string {
	for i := len(l.Ref) - 1; i >= 0; i-- {
		switch l.Ref[i] {
		case '/':
			return l.Ref
		case ':':
			return l.Ref[:i]
		}
	}
	return l.Ref
}

// digestOf fetches a trusted document once for its digest. A failure is
// remembered as well, so that an unreachable host is waited for only once.
func (t *TrustList) digestOf(ctx context.Context, l Location) (digest.Digest, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if f, ok := t.fetched[l]; ok {
		return f.digest, f.err
	}
	data, _, err := Fetch(ctx, t.Source, l)
	f := fetchedDigest{err: err}
	if err == nil {
		f.digest = digest.FromBytes(data)
	}
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	if t.fetched == nil {
		t.fetched = map[Location]fetchedDigest{}
	}
	t.fetched[l] = f
	return f.digest, f.err
}

// Names reports whether l is one of the Locations, so that its catalog is
// trusted whatever is in it, as far as that can be said without fetching it.
func (t *TrustList) Names(l Location) bool { return slices.Contains(t.Locations, l) }
