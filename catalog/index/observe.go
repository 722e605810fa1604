package index

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/krmcat/krmcat/catalog"
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
func (x *Index) Begin(ctx context.Context, c Change) (func(context.Context, error) error, error) {
	concerns, err := x.concerns(ctx, c)
	if err != nil {
		return nil, x.notReady(ctx, err)
	}
	if !concerns {
		return func(context.Context, error) error { return nil }, nil
	}
	in := intent{ID: randomID(), Owner: x.owner, Repository: c.Repository, Tag: c.Tag, Digest: c.Descriptor.Digest, Created: x.now()}
	x.inflight.Store(in.ID, in)
	err = x.update(ctx, func(tx *sql.Tx) error { return insertIntent(ctx, tx, in) })
	if err != nil {
		x.inflight.Delete(in.ID)
		return nil, x.notReady(ctx, err)
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

func insertIntent(ctx context.Context, q querier, in intent) error {
	_, err := q.ExecContext(ctx, `INSERT INTO intents (id, owner, repository, tag, digest, created) VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT DO NOTHING`,
		in.ID, in.Owner, in.Repository, in.Tag, string(in.Digest), in.Created.UnixMilli())
	return err
}

// concerns reports whether a change can alter what the index knows.
func (x *Index) concerns(ctx context.Context, c Change) (bool, error) {
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
	err := x.rdb().QueryRowContext(ctx, `SELECT
		(SELECT count(*) FROM tags WHERE repository = $1 AND (tag = $2 OR ($2 = '' AND digest = $3))) +
		(SELECT count(*) FROM referrers WHERE repository = $1 AND (source = $2 OR source = $3))`,
		c.Repository, c.Tag, string(c.Descriptor.Digest)).Scan(&n)
	if err != nil || n > 0 {
		return n > 0, err
	}
	// It may be on its way into the index.
	err = x.rdb().QueryRowContext(ctx, `SELECT count(*) FROM intents WHERE repository = $1`, c.Repository).Scan(&n)
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
		if l.MediaType == catalog.MediaTypeDefinition || l.MediaType == catalog.MediaTypeCatalog {
			return tag != ""
		}
	}
	return false
}

// resolve looks up the outcome of a change and takes it into the index. With
// drop, the intent is done with.
func (x *Index) resolve(ctx context.Context, in intent, drop bool) error {
	if in.Tag != "" {
		if err := x.takeTag(ctx, in.Repository, in.Tag); err != nil {
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
	rows, err := x.rdb().QueryContext(ctx, `SELECT id, owner, repository, tag, digest, created FROM intents ORDER BY created, id`)
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
// database was away at first, builds the index if it is new or turns out to be
// broken, compares it with the registry where it may not be in step, and looks
// up changes of unknown outcome.
func (x *Index) Run(ctx context.Context) {
	started := false
	for {
		started = x.work(ctx, started)
		select {
		case <-ctx.Done():
			return
		case <-x.wake:
		case <-time.After(sweepEvery):
		}
	}
}

// work does what is to be done now, and reports whether begin is behind it.
func (x *Index) work(ctx context.Context, started bool) bool {
	if x.damaged.Load() {
		x.preparing.Lock()
		err := x.replace(ctx, errors.New("the database says that it is damaged"))
		if err == nil {
			x.schemaOK.Store(true)
		}
		x.preparing.Unlock()
		if err != nil && ctx.Err() == nil {
			x.log.WarnContext(ctx, "index is not ready; trying again", "error", err)
			return started
		}
		x.found = nil
		started = false
	}
	switch {
	case !started:
		err := x.begin(ctx)
		x.suspect(err)
		if err != nil && ctx.Err() == nil {
			x.log.WarnContext(ctx, "index is not ready; trying again", "error", err)
		}
		return err == nil
	case x.due():
		if err := x.Reindex(ctx, false); err != nil && ctx.Err() == nil {
			x.suspect(err)
			x.log.WarnContext(ctx, "index was not compared with the registry; trying again", "error", err)
		}
		x.compared.Store(time.Now().UnixNano()) // not at once again if the registry is away
	}
	if err := x.sweep(ctx); err != nil && ctx.Err() == nil {
		x.suspect(err)
		x.log.WarnContext(ctx, "changes of unknown outcome are still so; trying again", "error", err)
	}
	return true
}

// retryUnread is how long a tag that could not be read is left alone.
const retryUnread = 10 * time.Minute

// due reports whether the index is to be compared with the registry again.
func (x *Index) due() bool {
	since := time.Since(time.Unix(0, x.compared.Load()))
	return x.refresh > 0 && since >= x.refresh || x.unread.Load() && since >= retryUnread
}

// prepare makes the tables, if that was not done at the start because the
// database did not answer.
func (x *Index) prepare(ctx context.Context) error {
	x.preparing.Lock()
	defer x.preparing.Unlock()
	if x.schemaOK.Load() {
		return nil
	}
	if x.file != "" {
		if err := os.MkdirAll(filepath.Dir(x.file), 0o777); err != nil {
			return err
		}
	}
	err := x.createTables(ctx)
	if err != nil && x.file != "" && unreadable(err) {
		err = x.replace(ctx, err)
	}
	if err != nil {
		return fmt.Errorf("making the tables of the index: %w", err)
	}
	x.schemaOK.Store(true)
	return nil
}

// found is what an index was found to be when it was opened.
type found struct {
	built  bool // everything was read once
	intact bool // nothing that was written can have been lost
	inStep bool // nothing can have changed in the store since
}

// look reads what was left by whoever had the index before.
func (x *Index) look(ctx context.Context) (*found, error) {
	m := map[string]string{}
	for _, k := range []string{metaBuilt, metaClean, metaBoot, metaOpening} {
		v, err := x.meta(ctx, x.wdb(), k)
		if err != nil {
			return nil, err
		}
		m[k] = v
	}
	boot := bootID()
	f := &found{
		built: m[metaBuilt] == "1",
		// A process that is killed loses no commit, a machine that stops may.
		intact: !x.kind.exclusive || m[metaClean] == "1" || boot != "" && m[metaBoot] == boot,
	}
	// Servers that share a database tell each other of what they change.
	f.inStep = !x.kind.exclusive
	if s, ok := x.store.(opener); ok {
		_, last := s.Opening()
		f.inStep = f.intact && last != "" && m[metaOpening] == last
	}
	if !x.kind.exclusive {
		return f, nil
	}
	return f, errors.Join(x.setMeta(ctx, x.wdb(), metaClean, ""), x.setMeta(ctx, x.wdb(), metaBoot, boot))
}

// setInStep notes that the index is in step with the store as it is opened now.
func (x *Index) setInStep(ctx context.Context) error {
	if s, ok := x.store.(opener); ok {
		this, _ := s.Opening()
		return x.setMeta(ctx, x.wdb(), metaOpening, this)
	}
	return nil
}

// begin brings the index to where it can answer, and then, if need be, in step
// with the registry.
func (x *Index) begin(ctx context.Context) (err error) {
	if err := x.prepare(ctx); err != nil {
		return err
	}
	if x.found == nil {
		if x.found, err = x.look(ctx); err != nil {
			return err
		}
	}
	if x.found.built {
		x.setReady()
	}
	if err := x.sweep(ctx); err != nil {
		return err
	}
	if !x.found.intact && x.file != "" {
		if err := x.checkFile(ctx); err != nil {
			return err
		}
		x.found.intact = true
	}
	if x.found.built && x.found.inStep {
		x.compared.Store(time.Now().UnixNano())
		return x.setInStep(ctx)
	}
	return x.Reindex(ctx, false)
}
