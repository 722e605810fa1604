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

	_ "modernc.org/sqlite" // the driver "sqlite"

	"github.com/krmcat/krmcat/registry"
)

var sqliteDialect = dialect{name: "sqlite", exclusive: true, text: "TEXT", bytes: "BLOB"}

// readers is how many questions SQLite answers at once.
const readers = 4

// OpenSQLite opens the index in a file, which is made if it is missing. The
// caller sees to it that only one process uses the file. A file that cannot
// be read as an index is put aside, as path with ".broken" at the end, and a
// new one is begun; [Index.Run] then fills it.
func OpenSQLite(ctx context.Context, store registry.Store, path string, opts *Options) (*Index, error) {
	x, err := openSQLite(ctx, store, path, opts)
	if err == nil {
		return x, nil
	}
	if _, serr := os.Stat(path); serr != nil {
		return nil, fmt.Errorf("opening the index %s: %w", path, err)
	}
	log := newIndex(store, opts, sqliteDialect).log
	log.WarnContext(ctx, "index cannot be read and is built again", "file", path, "error", err)
	if err := putAside(path); err != nil {
		return nil, fmt.Errorf("opening the index: %w", err)
	}
	x, err = openSQLite(ctx, store, path, opts)
	if err != nil {
		return nil, fmt.Errorf("opening the index %s: %w", path, err)
	}
	return x, nil
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

func openSQLite(ctx context.Context, store registry.Store, path string, opts *Options) (*Index, error) {
	x := newIndex(store, opts, sqliteDialect)
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	// A commit in WAL mode with synchronous=NORMAL survives the end of the
	// process. The loss of power may undo the last ones: an index that was
	// not closed is compared with the registry at the next start.
	dsn := func(extra ...string) string {
		q := url.Values{"_pragma": {"busy_timeout(10000)", "journal_mode(WAL)", "synchronous(NORMAL)", "cache_size(-4000)"}}
		q["_pragma"] = append(q["_pragma"], extra...)
		if len(extra) == 0 {
			q.Set("_txlock", "immediate") // a reader that turns writer may have to give up
		}
		return (&url.URL{Scheme: "file", Path: filepath.ToSlash(abs), RawQuery: q.Encode()}).String()
	}
	if x.db, err = sql.Open("sqlite", dsn()); err != nil {
		return nil, err
	}
	x.db.SetMaxOpenConns(1)
	if x.rdb, err = sql.Open("sqlite", dsn("query_only(true)")); err != nil {
		return nil, errors.Join(err, x.db.Close())
	}
	x.rdb.SetMaxOpenConns(readers)
	x.rdb.SetMaxIdleConns(readers)
	if err := x.start(ctx); err != nil {
		return nil, errors.Join(err, x.db.Close(), x.rdb.Close())
	}
	return x, nil
}

// start readies the tables of SQLite. The whole file is looked at if it was
// not closed: a damaged page is found now and not when it is needed.
func (x *Index) start(ctx context.Context) error {
	if err := x.createTables(ctx); err != nil {
		return err
	}
	closed, err := x.meta(ctx, x.db, metaClean)
	if err != nil {
		return err
	}
	if closed != "1" {
		var verdict string
		if err := x.db.QueryRowContext(ctx, `PRAGMA quick_check(1)`).Scan(&verdict); err != nil {
			return err
		}
		if verdict != "ok" {
			return fmt.Errorf("damaged: %s", verdict)
		}
	}
	x.schemaOK.Store(true)
	return nil
}
