package index

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"modernc.org/sqlite" // also the driver "sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

var sqliteDialect = dialect{name: "sqlite", exclusive: true, text: "TEXT", bytes: "BLOB"}

// readers is how many questions SQLite answers at once.
const readers = 4

// OpenSQLite opens the index in a file, which is made if it is missing, with
// its folder. The caller sees to it that only one process uses the file. A file
// that turns out not to be readable as an index, now or later, is put aside, as
// path with ".broken" at the end, and a new one is begun, which [Index.Run]
// fills. A file that cannot be opened is no error here either: Run goes on
// trying, and until then the index answers with [ErrNotReady], and the registry
// takes no pushes that the index would miss.
func OpenSQLite(ctx context.Context, store Store, path string, opts *Options) (*Index, error) {
	x := newIndex(store, opts, sqliteDialect)
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("opening the index %s: %w", path, err)
	}
	x.file = abs
	dbs, err := x.connectSQLite()
	if err != nil {
		return nil, fmt.Errorf("opening the index %s: %w", path, err)
	}
	x.dbs.Store(dbs)
	if err := x.prepare(ctx); err != nil {
		x.log.WarnContext(ctx, "index cannot be opened; trying again", "file", path, "error", err)
	}
	return x, nil
}

// connectSQLite makes connections, which open the file when they are used.
func (x *Index) connectSQLite() (*databases, error) {
	// A commit in WAL mode with synchronous=NORMAL survives the end of the
	// process. The loss of power may undo the last ones: see inStep.
	dsn := func(extra ...string) string {
		q := url.Values{"_pragma": {"busy_timeout(10000)", "journal_mode(WAL)", "synchronous(NORMAL)", "cache_size(-4000)"}}
		q["_pragma"] = append(q["_pragma"], extra...)
		if len(extra) == 0 {
			q.Set("_txlock", "immediate") // a reader that turns writer may have to give up
		}
		return (&url.URL{Scheme: "file", Path: filepath.ToSlash(x.file), RawQuery: q.Encode()}).String()
	}
	w, err := sql.Open("sqlite", dsn())
	if err != nil {
		return nil, err
	}
	w.SetMaxOpenConns(1)
	r, err := sql.Open("sqlite", dsn("query_only(true)"))
	if err != nil {
		return nil, errors.Join(err, w.Close())
	}
	r.SetMaxOpenConns(readers)
	r.SetMaxIdleConns(readers)
	return &databases{w: w, r: r}, nil
}

// sqliteCode is the primary code of an error of SQLite; 0 is none.
func sqliteCode(err error) int {
	var se *sqlite.Error
	if !errors.As(err, &se) {
		return 0
	}
	return se.Code() & 0xff
}

// suspect notes an error that says that the file is damaged. [Index.Run] then
// begins a new one.
func (x *Index) suspect(err error) {
	if code := sqliteCode(err); code == sqlite3.SQLITE_CORRUPT || code == sqlite3.SQLITE_NOTADB {
		if x.damaged.CompareAndSwap(false, true) {
			x.wakeUp()
		}
	}
}

// unreadable reports whether an error from opening the file says that it is no
// index, rather than that it cannot be opened just now.
func unreadable(err error) bool {
	switch sqliteCode(err) {
	case sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_MISMATCH:
		return true
	}
	return false
}

// replace puts a broken file aside and begins a new one. The caller holds
// preparing.
func (x *Index) replace(ctx context.Context, why error) error {
	x.log.WarnContext(ctx, "index cannot be read and is built again", "file", x.file, "error", why)
	x.schemaOK.Store(false)
	x.ready.Store(false)
	if err := x.dbs.Load().close(); err != nil {
		x.log.WarnContext(ctx, "broken index was not closed cleanly", "error", err)
	}
	if err := putAside(x.file); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	dbs, err := x.connectSQLite()
	if err != nil {
		return err
	}
	x.dbs.Store(dbs)
	if err := x.createTables(ctx); err != nil {
		return err
	}
	x.cache.outdate() // which counts changes from the beginning again
	// What is under way announced itself to the broken one.
	for _, v := range x.inflight.Range {
		if err := insertIntent(ctx, dbs.w, v.(intent)); err != nil {
			return err
		}
	}
	x.damaged.Store(false)
	return nil
}

// putAside renames a broken database and drops what belongs to it.
func putAside(path string) error {
	if err := os.Rename(path, path+".broken"); err != nil {
		return err
	}
	for _, suffix := range []string{"-wal", "-shm"} {
		if err := os.Remove(path + suffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// checkFile looks at the whole file: a damaged page is found now and not when
// it is needed.
func (x *Index) checkFile(ctx context.Context) error {
	var verdict string
	if err := x.rdb().QueryRowContext(ctx, `PRAGMA quick_check(1)`).Scan(&verdict); err != nil {
		x.suspect(err)
		return err
	}
	if verdict != "ok" {
		x.damaged.Store(true)
		return fmt.Errorf("damaged: %s", verdict)
	}
	return nil
}

// bootID is another one after each start of the machine; empty where it cannot
// be known.
func bootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}
