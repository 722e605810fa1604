package index

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/Masterminds/semver/v3"
	"github.com/opencontainers/go-digest"

	"github.com/krmcat/krmcat/internal/lazyregexp"
)

// SnapshotTag is a tag of a catalog that names the day it was made
// (KEP-2985, story 3), with a number for more than one a day. Such a tag is
// meant never to move.
var SnapshotTag = lazyregexp.New(`^v[0-9]{8}(?:\.[1-9][0-9]{0,3})?$`)

// CatalogVersion is a tag of a pushed catalog.
type CatalogVersion struct {
	Repository string        `json:"repository"`
	Tag        string        `json:"tag"`
	Digest     string        `json:"digest"`   // of the artifact
	Document   digest.Digest `json:"document"` // of the document
	Size       int64         `json:"size"`
	Functions  int           `json:"functions"`
	Published  time.Time     `json:"published"`
	Signed     bool          `json:"signed"` // a signature is attached; it was not verified

	semver  *semver.Version
	foreign int
}

// CatalogListing is a catalog that can be fetched by its name.
type CatalogListing struct {
	Name string `json:"name"`
	// Publisher is set for the catalog of everything of one publisher.
	Publisher string    `json:"publisher,omitempty"`
	Functions int       `json:"functions"`
	Updated   time.Time `json:"updated"`
	// Versions are those of a pushed catalog, the current one first; of the
	// catalog of a publisher they are the snapshots.
	Versions []CatalogVersion `json:"versions,omitempty"`
}

// Pushed reports whether the catalog's bytes are as somebody pushed them,
// rather than made from the releases of a publisher.
func (c *CatalogListing) Pushed() bool { return c.Publisher == "" }

// catalogVersions lists the tags of the catalogs of a name, the current one
// first.
func (x *Index) catalogVersions(ctx context.Context, q querier, name string) ([]CatalogVersion, error) {
	rows, err := q.QueryContext(ctx, `SELECT t.repository, t.tag, t.digest, t.seen, a.created, a.summary,
		(SELECT count(*) FROM referrers r WHERE r.repository = t.repository AND r.subject = t.digest AND (r.type IN ($3, $4, $5) OR r.type LIKE $6))
		FROM artifacts a JOIN tags t ON t.repository = a.repository AND t.digest = a.digest
		WHERE a.kind = $1 AND a.name = $2 AND a.problem = '' ORDER BY t.repository, t.tag`,
		kindCatalog, name, typeLegacySignature, notationType, legacySignatureOCI, bundleTypePrefix+"%")
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var list []CatalogVersion
	for rows.Next() {
		var v CatalogVersion
		var seen, created int64
		var signatures int
		var data string
		if err := rows.Scan(&v.Repository, &v.Tag, &v.Digest, &seen, &created, &data, &signatures); err != nil {
			return nil, err
		}
		var s summary
		if err := json.Unmarshal([]byte(data), &s); err != nil {
			return nil, err
		}
		if v.Published = millis(created); v.Published.IsZero() {
			v.Published = millis(seen)
		}
		v.Document, v.Size, v.Functions, v.Signed = s.Document, s.Size, len(s.Functions), signatures > 0
		v.semver, _ = ParseRelease(v.Tag)
		v.foreign = b2i(!slices.Contains(strings.Split(v.Repository, "/"), Slug(name)))
		list = append(list, v)
	}
	slices.SortStableFunc(list, compareCatalogVersions)
	return list, rows.Err()
}

// compareCatalogVersions puts first what the name stands for: in a repository
// of that name before others, a release before latest, that before other tags,
// and dated snapshots after them; the newest of each first.
func compareCatalogVersions(a, b CatalogVersion) int {
	byVersion := 0
	if a.semver != nil && b.semver != nil {
		byVersion = -a.semver.Compare(b.semver)
	}
	return cmp.Or(
		cmp.Compare(a.foreign, b.foreign),
		cmp.Compare(a.class(), b.class()),
		byVersion,
		-cmp.Compare(a.Tag, b.Tag),
		cmp.Compare(a.Repository, b.Repository),
	)
}

// current reports whether a version may stand for a catalog that would
// otherwise be made of a publisher's functions: a dated snapshot may not.
func (v CatalogVersion) current() bool { return v.class() < versionSnapshot }

// Classes of versions, from the one that a name stands for.
const (
	versionRelease = iota
	versionLatest
	versionOther
	versionSnapshot
	versionPrerelease
)

func (v CatalogVersion) class() int {
	release, ok := ParseRelease(v.Tag)
	switch {
	case ok && release.Prerelease() != "":
		return versionPrerelease
	case ok:
		return versionRelease
	case SnapshotTag.MatchString(v.Tag):
		return versionSnapshot
	case v.Tag == "latest":
		return versionLatest
	}
	return versionOther
}

// projectCatalog writes what a catalog's name stands for.
func (x *Index) projectCatalog(ctx context.Context, tx *sql.Tx, name string) error {
	versions, err := x.catalogVersions(ctx, tx, name)
	if err != nil {
		return err
	}
	var was string
	err = tx.QueryRowContext(ctx, `SELECT listing FROM catalogs WHERE name = $1`, name).Scan(&was)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return err
	}
	data := []byte{}
	if len(versions) > 0 {
		l := CatalogListing{Name: name, Functions: versions[0].Functions, Versions: versions}
		for _, v := range versions {
			if v.Published.After(l.Updated) {
				l.Updated = v.Published
			}
		}
		if data, err = json.Marshal(l); err != nil {
			return err
		}
	}
	if string(data) == was {
		return nil
	}
	if len(versions) == 0 {
		_, err = tx.ExecContext(ctx, `DELETE FROM catalogs WHERE name = $1`, name)
	} else {
		_, err = tx.ExecContext(ctx, `INSERT INTO catalogs (name, repository, tag, digest, listing) VALUES ($1, $2, $3, $4, $5)
			ON CONFLICT (name) DO UPDATE SET repository = excluded.repository, tag = excluded.tag, digest = excluded.digest, listing = excluded.listing`,
			name, versions[0].Repository, versions[0].Tag, versions[0].Digest, string(data))
	}
	if err != nil {
		return err
	}
	return x.changed(ctx, tx)
}

// Catalogs lists the catalogs that can be fetched, by their names: those that
// were pushed, and one of everything of each publisher. Where both have the
// same name, the pushed one has it if its repository has the name too, and it
// is more than dated snapshots of the other.
func (x *Index) Catalogs(ctx context.Context) ([]*CatalogListing, error) {
	if err := x.usable(); err != nil {
		return nil, err
	}
	pushed, err := strings1(x.rdb().QueryContext(ctx, `SELECT listing FROM catalogs ORDER BY name`))
	if err != nil {
		return nil, x.notReady(ctx, err)
	}
	publishers, err := x.Publishers(ctx)
	if err != nil {
		return nil, err
	}
	byName := map[string]*CatalogListing{}
	for _, p := range publishers {
		byName[p.Slug] = &CatalogListing{Name: p.Slug, Publisher: p.Name, Functions: p.Functions, Updated: p.Updated}
	}
	for _, data := range pushed {
		var c CatalogListing
		if err := json.Unmarshal([]byte(data), &c); err != nil {
			return nil, err
		}
		own := byName[c.Name]
		if own == nil {
			byName[c.Name] = &c
			continue
		}
		own.Versions = c.Versions
		if i := slices.IndexFunc(c.Versions, CatalogVersion.current); i >= 0 && !isForeign(c.Name, c.Versions[i].Repository) {
			// The version that stands for the catalog comes first.
			v := c.Versions[i]
			c.Versions = slices.Insert(slices.Delete(c.Versions, i, i+1), 0, v)
			c.Functions = v.Functions
			byName[c.Name] = &c
		}
	}
	list := make([]*CatalogListing, 0, len(byName))
	for _, c := range byName {
		list = append(list, c)
	}
	slices.SortFunc(list, func(a, b *CatalogListing) int { return cmp.Compare(a.Name, b.Name) })
	return list, nil
}

func isForeign(name, repository string) bool {
	return !slices.Contains(strings.Split(repository, "/"), Slug(name))
}
