// Package index is the searchable set of what a registry server holds: the
// functions and their releases, the catalogs, the publishers, and the
// documents that clients fetch (KEP-2985).
//
// The registry's content is the truth and the index is derived from it. An
// [Index] is told of each change before it is made ([Index.Begin]) and after:
// what a push was told is stored is in the index by then, and a change whose
// outcome was never learned, because the process or the database went away, is
// looked up again. [Index.Reindex] reads everything again and comes to the same
// documents.
//
// The index is kept in SQLite, a file for one server, or in PostgreSQL, which
// several servers share. Both give the same answers, as ranking is done here
// and not by the database.
package index

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Errors of this package; test for them with [errors.Is].
var (
	// ErrNotFound is the answer for what the index does not have.
	ErrNotFound = errors.New("not in the index")
	// ErrNotReady is the answer while an index is being built for the
	// first time, or its database does not answer.
	ErrNotReady = errors.New("the index is not ready")
)

// Options are the optional settings of an [Index].
type Options struct {
	// Log gets what the index does in the background. Nil is silent.
	Log *slog.Logger
	// Now is the clock; nil is [time.Now].
	Now func() time.Time
	// Refresh is how often the index is compared with the registry, for one
	// that others change without telling this index; 0 is never.
	Refresh time.Duration
}

// Index is the searchable set of one registry. Open it with [OpenSQLite] or
// [OpenPostgres], let [Index.Run] work in the background, and close it. It is
// safe for concurrent use.
type Index struct {
	store Store
	log   *slog.Logger
	now   func() time.Time
	kind  dialect
	file  string // of SQLite
	dbs   atomic.Pointer[databases]
	owner string // marks intents of this process

	locks    keyed
	inflight sync.Map // intents between Begin and done, by their ids
	wake     chan struct{}

	readyOnce sync.Once
	readyC    chan struct{}
	ready     atomic.Bool // everything was read once
	// schemaOK is set while the tables are known to exist.
	schemaOK atomic.Bool
	damaged  atomic.Bool // an answer of the database says so
	closed   atomic.Bool

	preparing sync.Mutex
	refresh   time.Duration
	found     *found       // what begin found
	compared  atomic.Int64 // when the index was last compared with the registry, in ns
	unread    atomic.Bool  // some tags could not be read then

	cache documentCache
}

// databases are the connections of an index.
type databases struct {
	w *sql.DB // for writing
	r *sql.DB // for reading; the same as w for PostgreSQL
}

func (d *databases) close() error {
	err := d.w.Close()
	if d.r != d.w {
		err = errors.Join(err, d.r.Close())
	}
	return err
}

func (x *Index) wdb() *sql.DB { return x.dbs.Load().w }

func (x *Index) rdb() *sql.DB { return x.dbs.Load().r }

func newIndex(store Store, opts *Options, kind dialect) *Index {
	x := &Index{
		store:  store,
		kind:   kind,
		log:    slog.New(slog.DiscardHandler),
		now:    time.Now,
		owner:  randomID(),
		wake:   make(chan struct{}, 1),
		readyC: make(chan struct{}),
	}
	if opts != nil && opts.Log != nil {
		x.log = opts.Log
	}
	if opts != nil && opts.Now != nil {
		x.now = opts.Now
	}
	if opts != nil {
		x.refresh = opts.Refresh
	}
	return x
}

// Ready is closed once the index has been built and can answer.
func (x *Index) Ready() <-chan struct{} { return x.readyC }

// Check reports whether the index can answer: nil, or an error that wraps
// [ErrNotReady].
func (x *Index) Check(ctx context.Context) error {
	if err := x.usable(); err != nil {
		return err
	}
	if _, err := x.generation(ctx); err != nil {
		return err
	}
	return nil
}

// usable says why the index cannot be asked: half an index would give half an
// answer, which looks like a whole one.
func (x *Index) usable() error {
	switch {
	case !x.schemaOK.Load():
		return fmt.Errorf("%w: its database does not answer", ErrNotReady)
	case !x.ready.Load():
		return fmt.Errorf("%w: it is being built", ErrNotReady)
	}
	return nil
}

func (x *Index) setReady() {
	x.ready.Store(true)
	x.readyOnce.Do(func() { close(x.readyC) })
}

// Close ends the use of the database. [Index.Run] has returned by then.
func (x *Index) Close() error {
	if !x.closed.CompareAndSwap(false, true) {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if x.schemaOK.Load() && x.kind.exclusive && !x.damaged.Load() {
		// Says that nothing is left to be looked up at the next start.
		if err := x.setMeta(ctx, x.wdb(), metaClean, "1"); err != nil {
			x.log.WarnContext(ctx, "index was not closed cleanly", "error", err)
		}
	}
	if err := x.dbs.Load().close(); err != nil {
		return fmt.Errorf("closing the index: %w", err)
	}
	return nil
}

// querier is a database, or a transaction in it.
type querier interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// Keys of the table meta.
const (
	metaSchema     = "schema"     // version of the tables
	metaBuilt      = "built"      // "1" once everything was read
	metaClean      = "clean"      // "1" after Close, "" while open
	metaBoot       = "boot"       // of the machine when it was opened
	metaOpening    = "opening"    // of the store with which it is in step
	metaGeneration = "generation" // counts changes to what is shown
	metaChanged    = "changed"    // time of the last of them, in ms
)

func (x *Index) meta(ctx context.Context, q querier, key string) (string, error) {
	var v string
	err := q.QueryRowContext(ctx, `SELECT v FROM meta WHERE k = $1`, key).Scan(&v)
	if errors.Is(err, sql.ErrNoRows) {
		return "", nil
	}
	return v, err
}

func (x *Index) setMeta(ctx context.Context, q querier, key, value string) error {
	_, err := q.ExecContext(ctx, `INSERT INTO meta (k, v) VALUES ($1, $2) ON CONFLICT (k) DO UPDATE SET v = excluded.v`, key, value)
	return err
}

// state is the number of the newest change to what is shown, and its time.
type state struct {
	generation string
	changed    time.Time
}

// generation reads the state, or an error that wraps [ErrNotReady].
func (x *Index) generation(ctx context.Context) (state, error) {
	if !x.schemaOK.Load() {
		return state{}, fmt.Errorf("%w: its database does not answer", ErrNotReady)
	}
	rows, err := x.rdb().QueryContext(ctx, `SELECT k, v FROM meta WHERE k IN ($1, $2)`, metaGeneration, metaChanged)
	if err != nil {
		return state{}, x.notReady(ctx, err)
	}
	defer rows.Close()
	var st state
	for rows.Next() {
		var k, v string
		if err := rows.Scan(&k, &v); err != nil {
			return state{}, x.notReady(ctx, err)
		}
		switch k {
		case metaGeneration:
			st.generation = v
		case metaChanged:
			st.changed = parseMillis(v)
		}
	}
	return st, x.notReady(ctx, rows.Err())
}

// notReady marks an error of the database as one that may pass.
func (x *Index) notReady(ctx context.Context, err error) error {
	x.suspect(err)
	switch {
	case err == nil, errors.Is(err, ErrNotFound), errors.Is(err, ErrNotReady):
		return err
	case ctx.Err() != nil:
		return ctx.Err()
	}
	return fmt.Errorf("%w: %w", ErrNotReady, err)
}

// changed counts a change to what is shown.
func (x *Index) changed(ctx context.Context, tx querier) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO meta (k, v) VALUES ($1, '1')
		ON CONFLICT (k) DO UPDATE SET v = CAST(CAST(meta.v AS BIGINT) + 1 AS TEXT)`, metaGeneration)
	if err != nil {
		return err
	}
	return x.setMeta(ctx, tx, metaChanged, fmt.Sprint(x.now().UnixMilli()))
}

// attempts is how often a transaction is tried that another one got in the
// way of.
const attempts = 10

// update runs f in a transaction that writes. f may be run more than once.
func (x *Index) update(ctx context.Context, f func(tx *sql.Tx) error) error {
	if !x.schemaOK.Load() {
		return fmt.Errorf("%w: its database does not answer", ErrNotReady)
	}
	var err error
	for range attempts {
		if err = x.tryUpdate(ctx, f); !isConflict(err) {
			break
		}
	}
	x.suspect(err)
	return err
}

func (x *Index) tryUpdate(ctx context.Context, f func(tx *sql.Tx) error) error {
	tx, err := x.wdb().BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if err := f(tx); err != nil {
		return errors.Join(err, ignoreDone(tx.Rollback()))
	}
	return tx.Commit()
}

// view runs f in a transaction that reads, so that all it sees is of one
// moment.
func (x *Index) view(ctx context.Context, f func(q querier) error) error {
	tx, err := x.rdb().BeginTx(ctx, &sql.TxOptions{ReadOnly: true, Isolation: x.kind.isolation})
	if err != nil {
		return err
	}
	err = f(tx)
	return errors.Join(err, ignoreDone(tx.Rollback()))
}

// ignoreDone drops the complaint about a transaction that ended by itself.
func ignoreDone(err error) error {
	if errors.Is(err, sql.ErrTxDone) {
		return nil
	}
	return err
}

func parseMillis(s string) time.Time {
	var n int64
	if _, err := fmt.Sscan(s, &n); err != nil {
		return time.Time{}
	}
	return millis(n)
}

// millis is a time as it stands in the tables; 0 is no time.
func millis(n int64) time.Time {
	if n == 0 {
		return time.Time{}
	}
	return time.UnixMilli(n).UTC()
}

func randomID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// clean makes text storable: PostgreSQL takes neither NUL nor broken UTF-8.
func clean(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}

// keyed is a set of locks by name.
type keyed struct {
	mu    sync.Mutex
	locks map[string]*keyLock
}

type keyLock struct {
	ch    chan struct{}
	users int
}

// lock waits for the lock of a name and returns what unlocks it.
func (k *keyed) lock(ctx context.Context, name string) (unlock func(), err error) {
	k.mu.Lock()
	if k.locks == nil {
		k.locks = map[string]*keyLock{}
	}
	l := k.locks[name]
	if l == nil {
		l = &keyLock{ch: make(chan struct{}, 1)}
		k.locks[name] = l
	}
	l.users++
	k.mu.Unlock()
	leave := func() {
		k.mu.Lock()
		if l.users--; l.users == 0 {
			delete(k.locks, name)
		}
		k.mu.Unlock()
	}
	select {
	case l.ch <- struct{}{}:
		return func() { <-l.ch; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, ctx.Err()
	}
}
