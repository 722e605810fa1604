package index

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/opencontainers/go-digest"
)

// Reindex compares the index with everything that the registry holds and
// brings it in step. With reread, documents that are known are read again. It
// may run beside pushes and questions.
func (x *Index) Reindex(ctx context.Context, reread bool) error {
	if err := x.prepare(ctx); err != nil {
		return err
	}
	begun := x.now()
	seen := map[string]bool{}
	var tags int
	for repository, err := range x.store.Repositories(ctx, "") {
		if err != nil {
			return fmt.Errorf("reading the registry: %w", err)
		}
		for tag, err := range x.store.Tags(ctx, repository, "") {
			if errors.Is(err, fs.ErrNotExist) {
				break // deleted since it was listed
			}
			if err != nil {
				return fmt.Errorf("reading the registry: %w", err)
			}
			if err := x.takeTag(ctx, repository, tag, reread); err != nil {
				return fmt.Errorf("reading %s:%s: %w", repository, tag, err)
			}
			seen[repository+":"+tag] = true
			tags++
		}
	}
	if err := x.forget(ctx, seen); err != nil {
		return err
	}
	if err := x.reproject(ctx); err != nil {
		return err
	}
	if err := errors.Join(x.setMeta(ctx, x.wdb(), metaBuilt, "1"), x.setInStep(ctx)); err != nil {
		return err
	}
	x.setReady()
	x.log.InfoContext(ctx, "index is in step with the registry", "tags", tags, "duration", x.now().Sub(begun).Round(1e6))
	return nil
}

// forget looks again at what the index has and the registry was not seen to
// have.
func (x *Index) forget(ctx context.Context, seen map[string]bool) error {
	known, err := strings1(x.rdb().QueryContext(ctx, `SELECT repository || ':' || tag FROM tags ORDER BY repository, tag`))
	if err != nil {
		return err
	}
	for _, k := range known {
		if seen[k] {
			continue
		}
		repository, tag, _ := strings.Cut(k, ":")
		if err := x.takeTag(ctx, repository, tag, false); err != nil {
			return fmt.Errorf("looking up %s: %w", k, err)
		}
	}
	// Referrers that are gone, and those that came without a trace.
	known, err = strings1(x.rdb().QueryContext(ctx, `SELECT repository || '|' || source FROM referrers ORDER BY repository, source`))
	if err != nil {
		return err
	}
	for _, k := range known {
		repository, source, _ := strings.Cut(k, "|")
		if _, err := x.store.Resolve(ctx, repository, source); errors.Is(err, fs.ErrNotExist) {
			if err := x.update(ctx, func(tx *sql.Tx) error { return x.dropReferrer(ctx, tx, repository, source) }); err != nil {
				return err
			}
		} else if err != nil {
			return err
		}
	}
	return nil
}

// reproject brings up to date everything that is shown. Referrers that the
// registry has for what is shown are taken in first.
func (x *Index) reproject(ctx context.Context) error {
	type key struct{ repository, digest string }
	var keys []key
	var about []subject
	rows, err := x.rdb().QueryContext(ctx, `SELECT repository, digest, kind, grp, fn, name FROM artifacts ORDER BY repository, digest`)
	if err != nil {
		return err
	}
	for rows.Next() {
		var k key
		var s subject
		if err := rows.Scan(&k.repository, &k.digest, &s.kind, &s.group, &s.fn, &s.name); err != nil {
			return errors.Join(err, rows.Close())
		}
		keys = append(keys, k)
		about = append(about, s)
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil {
		return err
	}
	for _, k := range keys {
		if err := x.takeReferrers(ctx, k.repository, digest.Digest(k.digest)); err != nil {
			return err
		}
	}
	done := map[subject]bool{}
	for _, s := range about {
		if s.kind == kindDefinition {
			s.name = ""
		}
		if done[s] {
			continue
		}
		done[s] = true
		if err := x.update(ctx, func(tx *sql.Tx) error { return x.project(ctx, tx, []subject{s}) }); err != nil {
			return err
		}
	}
	return nil
}
