package index

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/krmcat/krmcat/catalog"
	"github.com/krmcat/krmcat/schema"
)

// Document is a catalog as it is served. It is not to be changed.
type Document struct {
	Name     string
	Data     []byte
	Digest   digest.Digest // sha256 of Data
	Modified time.Time
	// Repository and Tag name the artifact that holds the document; empty if
	// it was made from releases.
	Repository, Tag string
	// Immutable says that there will never be other bytes by this name.
	Immutable bool
}

// Functions lists the types of functionConfigs that the catalog has functions
// for, in its order.
func (d *Document) Functions(ctx context.Context) ([]catalog.GroupVersionKind, error) {
	doc, err := catalog.Read(ctx, catalog.Location{}, d.Name, d.Data, catalog.ReadOptions{Level: schema.Consume})
	if err != nil {
		return nil, err
	}
	var list []catalog.GroupVersionKind
	for _, def := range doc.AsCatalog().Definitions {
		for _, v := range def.Versions {
			list = append(list, catalog.GroupVersionKind{Group: def.Group, Version: v.Name, Kind: def.Kind})
		}
	}
	return list, nil
}

// Names of catalogs that are made from releases, besides those of publishers.
const (
	CatalogAll       = "all"
	CatalogAggregate = "aggregate"
)

// maxCached bounds how many documents are kept ready.
const maxCached = 128

// documentCache keeps documents for as long as nothing changed.
type documentCache struct {
	mu    sync.Mutex
	docs  map[string]*cachedDocument
	order []string
}

type cachedDocument struct {
	generation string
	doc        *Document
}

func (c *documentCache) get(key string) *cachedDocument {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.docs[key]
}

// outdate has all documents made anew, and keeps them until then.
func (c *documentCache) outdate() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for k, d := range c.docs {
		c.docs[k] = &cachedDocument{doc: d.doc}
	}
}

func (c *documentCache) put(key string, d *cachedDocument) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.docs == nil {
		c.docs = map[string]*cachedDocument{}
	}
	if _, ok := c.docs[key]; !ok {
		c.order = append(c.order, key)
		if len(c.order) > maxCached {
			delete(c.docs, c.order[0])
			c.order = c.order[1:]
		}
	}
	c.docs[key] = d
}

// cached returns a document that was made since the last change, or makes it.
// If the database does not answer, the last one made is returned.
func (x *Index) cached(ctx context.Context, key string, build func(ctx context.Context, q querier) (*Document, error)) (*Document, error) {
	unlock, err := x.locks.lock(ctx, "document "+key)
	if err != nil {
		return nil, err
	}
	defer unlock()
	have := x.cache.get(key)
	err = x.usable()
	var st state
	if err == nil {
		st, err = x.generation(ctx)
	}
	if err == nil && have != nil && have.generation == st.generation {
		return have.doc, nil
	}
	var doc *Document
	if err == nil {
		err = x.notReady(ctx, x.view(ctx, func(q querier) error {
			doc, err = build(ctx, q)
			return err
		}))
	}
	switch {
	case errors.Is(err, ErrNotReady) && have != nil:
		x.log.WarnContext(ctx, "serving the last catalog that was made", "catalog", key, "error", err)
		return have.doc, nil
	case err != nil:
		return nil, err
	}
	doc.Digest = digest.FromBytes(doc.Data)
	if doc.Modified.IsZero() {
		doc.Modified = st.changed
	}
	if have != nil && have.doc.Digest == doc.Digest {
		doc.Modified = have.doc.Modified
	}
	x.cache.put(key, &cachedDocument{st.generation, doc})
	return doc, nil
}

// Catalog returns a catalog by its name: [CatalogAll] is all functions, other
// names are those of [Index.Catalogs]. Pushed catalogs are the exact bytes
// that were pushed. What is not there is [ErrNotFound].
func (x *Index) Catalog(ctx context.Context, name string) (*Document, error) {
	return x.cached(ctx, "catalog/"+name, func(ctx context.Context, q querier) (*Document, error) {
		if name == CatalogAll {
			return x.compose(ctx, q, CatalogAll, nil, "")
		}
		// Snapshots of a publisher's functions do not stand for them.
		doc, err := x.pushed(ctx, q, name, CatalogVersion.current)
		if err == nil && !isForeign(name, doc.Repository) {
			doc.Immutable = false
			return doc, nil
		}
		if err != nil && !errors.Is(err, ErrNotFound) {
			return nil, err
		}
		made, err := x.compose(ctx, q, name, []string{name}, "")
		if !errors.Is(err, ErrNotFound) {
			return made, err
		}
		doc, err = x.pushed(ctx, q, name, func(CatalogVersion) bool { return true })
		if err != nil {
			return nil, err
		}
		doc.Immutable = false
		return doc, nil
	})
}

// Snapshot returns a version of a pushed catalog: the one with a tag, or, if
// the version is sha256-HEX, the one whose document has that digest.
func (x *Index) Snapshot(ctx context.Context, name, version string) (*Document, error) {
	return x.cached(ctx, "snapshot/"+name+"/"+version, func(ctx context.Context, q querier) (*Document, error) {
		hex, byDigest := strings.CutPrefix(version, "sha256-")
		return x.pushed(ctx, q, name, func(v CatalogVersion) bool {
			if byDigest {
				return v.Document == digest.NewDigestFromEncoded(digest.SHA256, hex)
			}
			return v.Tag == version
		})
	})
}

// Aggregate returns a catalog of everything of some publishers, by their
// slugs, and with a tag if one is given (KEP-2985, story 2).
func (x *Index) Aggregate(ctx context.Context, publishers []string, tag string) (*Document, error) {
	publishers = slices.Clone(publishers)
	slices.Sort(publishers)
	publishers = slices.Compact(publishers)
	return x.cached(ctx, "aggregate/"+strings.Join(publishers, ",")+"/"+tag, func(ctx context.Context, q querier) (*Document, error) {
		return x.compose(ctx, q, CatalogAggregate, publishers, tag)
	})
}

// pushed finds the best version of a pushed catalog that is wanted.
func (x *Index) pushed(ctx context.Context, q querier, name string, want func(CatalogVersion) bool) (*Document, error) {
	versions, err := x.catalogVersions(ctx, q, clean(name))
	if err != nil {
		return nil, err
	}
	for _, v := range versions {
		if !want(v) {
			continue
		}
		data, err := x.document(ctx, q, v.Repository, v.Digest)
		if err != nil {
			return nil, err
		}
		return &Document{
			Name: name, Data: data, Modified: v.Published, Repository: v.Repository, Tag: v.Tag,
			Immutable: v.semver != nil || SnapshotTag.MatchString(v.Tag),
		}, nil
	}
	return nil, fmt.Errorf("catalog %s: %w", name, ErrNotFound)
}

// compose makes a catalog of what catalogs list, of all publishers or of
// some. A publisher that has nothing is [ErrNotFound].
func (x *Index) compose(ctx context.Context, q querier, name string, publishers []string, tag string) (*Document, error) {
	where, args := Query{Tag: tag}.conditions(nil)
	if publishers != nil {
		marks := make([]string, len(publishers))
		for i, p := range publishers {
			args = append(args, clean(p))
			marks[i] = placeholder(len(args))
		}
		where += " AND f.publisher IN (" + strings.Join(marks, ", ") + ")"
	}
	rows, err := q.QueryContext(ctx, `SELECT f.publisher, f.entry FROM functions f WHERE `+where+` ORDER BY f.grp, f.fn`, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var entries [][]byte
	seen := map[string]bool{}
	for rows.Next() {
		var publisher string
		var entry []byte
		if err := rows.Scan(&publisher, &entry); err != nil {
			return nil, err
		}
		seen[publisher] = true
		if len(entry) > 0 {
			entries = append(entries, entry)
		}
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	for _, p := range publishers {
		if !seen[p] && tag == "" {
			return nil, fmt.Errorf("publisher %s: %w", p, ErrNotFound)
		}
	}
	data, err := catalog.JoinEntries(name, nil, entries)
	if err != nil {
		return nil, err
	}
	return &Document{Name: name, Data: data}, nil
}

// entry is what catalogs say of a function; empty if they do not list it.
// What cannot be written is left out of catalogs, rather than to take away all
// others.
func (x *Index) entry(ctx context.Context, q querier, l *Listing) ([]byte, error) {
	d, err := x.listed(ctx, q, l)
	if err != nil || d == nil {
		return []byte{}, err
	}
	data, err := catalog.MarshalEntry(d)
	if err != nil {
		x.log.WarnContext(ctx, "function is left out of catalogs", "group", l.Group, "kind", l.Kind, "error", err)
		return []byte{}, nil
	}
	return data, nil
}

// listed is the entry of a function in catalogs; nil if it has none.
func (x *Index) listed(ctx context.Context, q querier, l *Listing) (*catalog.Definition, error) {
	read := map[string]*catalog.Definition{}
	definition := func(repository, d string) (*catalog.Definition, error) {
		if def := read[repository+"@"+d]; def != nil {
			return def, nil
		}
		data, err := x.document(ctx, q, repository, d)
		if err != nil {
			return nil, err
		}
		def, err := readDefinition(ctx, repository, data)
		read[repository+"@"+d] = def
		return def, err
	}
	var out *catalog.Definition
	for _, v := range l.Versions {
		if !v.InCatalog {
			continue
		}
		def, err := definition(v.Repository, v.Digest)
		if err != nil {
			return nil, err
		}
		if out == nil {
			base, err := definition(l.Repository, l.Digest)
			if err != nil {
				return nil, err
			}
			c := *base
			c.Versions = nil
			if l.Status == Deprecated {
				c.Description = strings.TrimSpace("Deprecated: "+l.Message) + "\n\n" + c.Description
			}
			out = &c
		}
		for _, dv := range def.Versions {
			if dv.Name != v.Name {
				continue
			}
			if len(dv.Maintainers) == 0 && !slices.Equal(def.Maintainers, out.Maintainers) {
				dv.Maintainers = def.Maintainers // KC-056
			}
			out.Versions = append(out.Versions, dv)
			break
		}
	}
	return out, nil
}
