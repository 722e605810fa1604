package index

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/krmcat/krmcat/catalog"
	"github.com/krmcat/krmcat/schema"
)

// Function is everything the index has about a function.
type Function struct {
	*Listing
	Releases []*Release
	// Shown is the release that was asked for, or the listed one.
	Shown      *Release
	Document   []byte        // the definition as it was pushed
	Readme     []byte        // Markdown; may be empty
	Examples   digest.Digest // of the blob with the examples, in the repository; may be empty
	Definition *catalog.Definition
}

// Version finds a version of the functionConfig in the shown release; nil if
// there is none.
func (f *Function) Version(name string) *catalog.Version {
	for i := range f.Definition.Versions {
		if f.Definition.Versions[i].Name == name {
			return &f.Definition.Versions[i]
		}
	}
	return nil
}

// Function reads a function by the group and kind of its functionConfig. The
// release is a tag in the function's repository; empty is the listed one. What
// is not there is [ErrNotFound].
func (x *Index) Function(ctx context.Context, group, kind, release string) (*Function, error) {
	if err := x.usable(); err != nil {
		return nil, err
	}
	var f *Function
	err := x.view(ctx, func(q querier) (err error) {
		f, err = x.function(ctx, q, clean(group), clean(kind), clean(release))
		return err
	})
	return f, x.notReady(ctx, err)
}

func (x *Index) function(ctx context.Context, q querier, group, kind, release string) (*Function, error) {
	releases, err := x.releases(ctx, q, group, kind)
	if err != nil {
		return nil, err
	}
	if len(releases) == 0 {
		return nil, fmt.Errorf("function %s, kind %s: %w", group, kind, ErrNotFound)
	}
	f := &Function{Listing: list(group, kind, releases), Releases: releases}
	for _, r := range releases {
		if release == "" || r.Tag == release && (f.Shown == nil || r.Repository == f.Repository) {
			f.Shown = r
			if release == "" {
				break
			}
		}
	}
	if f.Shown == nil {
		return nil, fmt.Errorf("release %s of %s, kind %s: %w", release, group, kind, ErrNotFound)
	}
	f.Examples = digest.Digest(f.Shown.summary.Examples)
	err = q.QueryRowContext(ctx, `SELECT document, readme FROM artifacts WHERE repository = $1 AND digest = $2`, f.Shown.Repository, f.Shown.Digest).
		Scan(&f.Document, &f.Readme)
	if err != nil {
		return nil, err
	}
	if f.Definition, err = readDefinition(ctx, f.Shown.Repository, f.Document); err != nil {
		return nil, err
	}
	return f, nil
}

// readDefinition reads a definition that was read before.
func readDefinition(ctx context.Context, repository string, document []byte) (*catalog.Definition, error) {
	doc, err := catalog.Read(ctx, catalog.Location{}, repository, document, catalog.ReadOptions{Level: schema.Consume})
	if err != nil {
		return nil, err
	}
	if doc.Definition == nil {
		return nil, fmt.Errorf("%s: not a definition", repository)
	}
	return doc.Definition, nil
}

// Resolved is the release to run for a functionConfig.
type Resolved struct {
	*Listing
	Version ListedVersion
	Runtime catalog.Runtime
}

// Resolve finds the function for the apiVersion and kind of a functionConfig
// (KC-094). What no release defines is [ErrNotFound].
func (x *Index) Resolve(ctx context.Context, apiVersion, kind string) (*Resolved, error) {
	if err := x.usable(); err != nil {
		return nil, err
	}
	var r *Resolved
	err := x.view(ctx, func(q querier) (err error) {
		r, err = x.resolveType(ctx, q, catalog.GVK(clean(apiVersion), clean(kind)))
		return err
	})
	return r, x.notReady(ctx, err)
}

func (x *Index) resolveType(ctx context.Context, q querier, gvk catalog.GroupVersionKind) (*Resolved, error) {
	l, err := x.listing(ctx, q, gvk.Group, gvk.Kind)
	if err != nil {
		return nil, err
	}
	if l == nil {
		return nil, fmt.Errorf("%s: %w", gvk, ErrNotFound)
	}
	var have []string
	for _, v := range l.Versions {
		if !v.InCatalog {
			continue
		}
		if v.Name != gvk.Version {
			have = append(have, v.Name)
			continue
		}
		document, err := x.document(ctx, q, v.Repository, v.Digest)
		if err != nil {
			return nil, err
		}
		d, err := readDefinition(ctx, v.Repository, document)
		if err != nil {
			return nil, err
		}
		r := &Resolved{Listing: l, Version: v}
		for _, dv := range d.Versions {
			if dv.Name == v.Name {
				r.Runtime = dv.Runtime
			}
		}
		return r, nil
	}
	if have == nil {
		return nil, fmt.Errorf("%s: %w (no release of it is in catalogs)", gvk, ErrNotFound)
	}
	return nil, fmt.Errorf("%s: %w (there is %s)", gvk, ErrNotFound, strings.Join(have, ", "))
}

// Stats says how much there is.
type Stats struct {
	Functions  int       `json:"functions"`
	Releases   int       `json:"releases"`
	Publishers int       `json:"publishers"`
	Catalogs   int       `json:"catalogs"`
	Problems   int       `json:"problems"` // artifacts that cannot be read and are not shown
	Pending    int       `json:"pending"`  // changes of unknown outcome
	Changed    time.Time `json:"changed"`
}

// Stats counts what the index has.
func (x *Index) Stats(ctx context.Context) (Stats, error) {
	if err := x.usable(); err != nil {
		return Stats{}, err
	}
	st, err := x.generation(ctx)
	if err != nil {
		return Stats{}, err
	}
	s := Stats{Changed: st.changed}
	err = x.rdb().QueryRowContext(ctx, `SELECT (SELECT count(*) FROM functions),
		(SELECT count(*) FROM tags t JOIN artifacts a ON a.repository = t.repository AND a.digest = t.digest WHERE a.kind = 'definition' AND a.problem = ''),
		(SELECT count(DISTINCT publisher) FROM functions WHERE publisher <> ''), (SELECT count(*) FROM catalogs),
		(SELECT count(*) FROM artifacts WHERE problem <> ''), (SELECT count(*) FROM intents)`).
		Scan(&s.Functions, &s.Releases, &s.Publishers, &s.Catalogs, &s.Problems, &s.Pending)
	return s, x.notReady(ctx, err)
}

// Event is the publication of a release or another tag.
type Event struct {
	Group       string
	Kind        string
	Repository  string
	Tag         string
	Digest      string
	Publisher   string
	Published   time.Time
	Description string
}

// Newest lists the tags of functions that were published last, newest first;
// of one publisher if its slug is given.
func (x *Index) Newest(ctx context.Context, publisher string, limit int) ([]Event, error) {
	if err := x.usable(); err != nil {
		return nil, err
	}
	rows, err := x.rdb().QueryContext(ctx, `SELECT a.grp, a.fn, t.repository, t.tag, t.digest, t.seen, f.listing
		FROM tags t JOIN artifacts a ON a.repository = t.repository AND a.digest = t.digest
		JOIN functions f ON f.grp = a.grp AND f.fn = a.fn
		WHERE a.kind = 'definition' AND a.problem = '' AND ($1 = '' OR f.publisher = $1)
		ORDER BY t.seen DESC, t.repository, t.tag LIMIT $2`, publisher, limit)
	if err != nil {
		return nil, x.notReady(ctx, err)
	}
	defer rows.Close()
	var out []Event
	for rows.Next() {
		var e Event
		var seen int64
		var listing string
		if err := rows.Scan(&e.Group, &e.Kind, &e.Repository, &e.Tag, &e.Digest, &seen, &listing); err != nil {
			return nil, x.notReady(ctx, err)
		}
		l, err := parseListing(listing)
		if err != nil {
			return nil, err
		}
		e.Publisher, e.Description, e.Published = l.Publisher, l.Description, millis(seen)
		out = append(out, e)
	}
	return out, x.notReady(ctx, rows.Err())
}

// document reads the document of an artifact that a listing names.
func (x *Index) document(ctx context.Context, q querier, repository, d string) ([]byte, error) {
	var data []byte
	err := q.QueryRowContext(ctx, `SELECT document FROM artifacts WHERE repository = $1 AND digest = $2`, repository, d).Scan(&data)
	return data, err
}
