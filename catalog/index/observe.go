package index

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/krmcat/krmcat/registry"
)

const (
	// sweepEvery is how often changes of unknown outcome are looked at.
	sweepEvery = 2 * time.Second
	// foreignAge is from when on another process's announced change is
	// looked up here, in case that process is gone.
	foreignAge = 2 * time.Second
	// abandonAge is from when on another process is taken to be gone. No
	// manifest takes that long to store.
	abandonAge = 10 * time.Minute
	// doneTimeout bounds how long a client waits for the index.
	doneTimeout = 15 * time.Second
)

// intent is an announced change.
type intent struct {
	ID         string
	Owner      string
	Repository string
	Tag        string
	Digest     digest.Digest
	Created    time.Time
}

// Begin announces a change. Changes that cannot concern the index cost one
// lookup at most; for others a row is kept until their outcome is known. It
// fails if the database does not answer, so that nothing is acknowledged that
// the index might miss.
func (x *Index) Begin(ctx context.Context, _ registry.Store, c registry.Change) (func(context.Context, error) error, error) {
	concerns, err := x.concerns(ctx, c)
	if err != nil {
		return nil, notReady(ctx, err)
	}
	if !concerns {
		return func(context.Context, error) error { return nil }, nil
	}
	in := intent{ID: randomID(), Owner: x.owner, Repository: c.Repository, Tag: c.Tag, Digest: c.Descriptor.Digest, Created: x.now()}
	x.inflight.Store(in.ID, nil)
	err = x.update(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO intents (id, owner, repository, tag, digest, created) VALUES ($1, $2, $3, $4, $5, $6)`,
			in.ID, in.Owner, in.Repository, in.Tag, string(in.Digest), in.Created.UnixMilli())
		return err
	})
	if err != nil {
		x.inflight.Delete(in.ID)
		return nil, notReady(ctx, err)
	}
	return func(ctx context.Context, _ error) error {
		// The outcome is read from the store, whatever the server thinks it
		// was: a failed write may have been made all the same.
		defer x.inflight.Delete(in.ID)
		ctx, cancel := context.WithTimeout(ctx, doneTimeout)
		defer cancel()
		if err := x.resolve(ctx, in, true); err != nil {
			x.wakeUp()
			return fmt.Errorf("taking %s into the index: %w", c.Repository, err)
		}
		return nil
	}, nil
}

// concerns reports whether a change can alter what the index knows.
func (x *Index) concerns(ctx context.Context, c registry.Change) (bool, error) {
	if !c.Delete {
		if signatureTag.MatchString(c.Tag) || interesting(c.Manifest, c.Tag) {
			return true, nil
		}
		if c.Tag == "" {
			return false, nil
		}
	}
	if !x.schemaOK.Load() {
		return false, fmt.Errorf("%w: its database does not answer", ErrNotReady)
	}
	// A tag that moves away from, or the deletion of, something known.
	var n int
	err := x.rdb.QueryRowContext(ctx, `SELECT
		(SELECT count(*) FROM tags WHERE repository = $1 AND (tag = $2 OR ($2 = '' AND digest = $3))) +
		(SELECT count(*) FROM referrers WHERE repository = $1 AND (source = $2 OR source = $3))`,
		c.Repository, c.Tag, string(c.Descriptor.Digest)).Scan(&n)
	if err != nil || n > 0 {
		return n > 0, err
	}
	// It may be on its way into the index.
	err = x.rdb.QueryRowContext(ctx, `SELECT count(*) FROM intents WHERE repository = $1`, c.Repository).Scan(&n)
	return n > 0, err
}

// interesting reports whether a manifest holds a document, or is attached to
// another.
func interesting(manifest []byte, tag string) bool {
	var m struct {
		Layers  []ocispec.Descriptor `json:"layers"`
		Subject *ocispec.Descriptor  `json:"subject"`
	}
	if json.Unmarshal(manifest, &m) != nil {
		return false
	}
	if m.Subject != nil {
		return true
	}
	for _, l := range m.Layers {
		if l.MediaType == registry.MediaTypeDefinition || l.MediaType == registry.MediaTypeCatalog {
			return tag != ""
		}
	}
	return false
}

// resolve looks up the outcome of a change and takes it into the index. With
// drop, the intent is done with.
func (x *Index) resolve(ctx context.Context, in intent, drop bool) error {
	if in.Tag != "" {
		if err := x.takeTag(ctx, in.Repository, in.Tag, false); err != nil {
			return err
		}
	}
	if in.Digest != "" {
		if err := x.takeDigest(ctx, in.Repository, in.Digest); err != nil {
			return err
		}
	}
	if !drop {
		return nil
	}
	return x.update(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `DELETE FROM intents WHERE id = $1`, in.ID)
		return err
	})
}

func (x *Index) wakeUp() {
	select {
	case x.wake <- struct{}{}:
	default:
	}
}

// intents lists the announced changes, oldest first.
func (x *Index) intents(ctx context.Context) ([]intent, error) {
	rows, err := x.rdb.QueryContext(ctx, `SELECT id, owner, repository, tag, digest, created FROM intents ORDER BY created, id`)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var list []intent
	for rows.Next() {
		var in intent
		var created int64
		if err := rows.Scan(&in.ID, &in.Owner, &in.Repository, &in.Tag, &in.Digest, &created); err != nil {
			return nil, err
		}
		in.Created = millis(created)
		list = append(list, in)
	}
	return list, rows.Err()
}

// sweep resolves what was left over: by this process, by the one that had the
// database before, and by others that are gone.
func (x *Index) sweep(ctx context.Context) error {
	list, err := x.intents(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, in := range list {
		if _, busy := x.inflight.Load(in.ID); busy {
			continue
		}
		age := x.now().Sub(in.Created)
		drop := in.Owner == x.owner || x.kind.exclusive || age > abandonAge
		if !drop && age < foreignAge {
			continue
		}
		if err := x.resolve(ctx, in, drop); err != nil {
			errs = append(errs, fmt.Errorf("%s %s %s: %w", in.Repository, in.Tag, in.Digest, err))
			continue
		}
		if drop {
			x.log.InfoContext(ctx, "change of unknown outcome was looked up", "repository", in.Repository, "tag", in.Tag, "digest", in.Digest)
		}
	}
	return errors.Join(errs...)
}

// Run works in the background until ctx is done: it makes the tables if the
// database was away at first, builds the index if it is new, compares it with
// the registry if it was not closed, and looks up changes of unknown outcome.
func (x *Index) Run(ctx context.Context) {
	started := false
	for {
		if !started {
			err := x.begin(ctx)
			if err != nil && ctx.Err() == nil {
				x.log.WarnContext(ctx, "index is not ready; trying again", "error", err)
			}
			started = err == nil
		} else if err := x.sweep(ctx); err != nil && ctx.Err() == nil {
			x.log.WarnContext(ctx, "changes of unknown outcome are still so; trying again", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-x.wake:
		case <-time.After(sweepEvery):
		}
	}
}

// prepare makes the tables, if that was not done at the start because the
// database did not answer.
func (x *Index) prepare(ctx context.Context) error {
	if x.schemaOK.Load() {
		return nil
	}
	if err := x.createTables(ctx); err != nil {
		return fmt.Errorf("making the tables of the index: %w", err)
	}
	x.schemaOK.Store(true)
	return nil
}

// begin brings the index to where it can answer.
func (x *Index) begin(ctx context.Context) error {
	if err := x.prepare(ctx); err != nil {
		return err
	}
	built, err := x.meta(ctx, x.db, metaBuilt)
	if err != nil {
		return err
	}
	closed, err := x.meta(ctx, x.db, metaClean)
	if err != nil {
		return err
	}
	if x.kind.exclusive {
		if err := x.setMeta(ctx, x.db, metaClean, ""); err != nil {
			return err
		}
	}
	if err := x.sweep(ctx); err != nil {
		return err
	}
	if built == "1" {
		x.setReady()
	}
	if built != "1" || x.kind.exclusive && closed != "1" {
		return x.Reindex(ctx, false)
	}
	return nil
}
