package index

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
)

// Text is compared by its bytes, as SQLite does, so that lists come in the
// same order from both.
var postgresDialect = dialect{name: "postgres", text: `TEXT COLLATE "C"`, bytes: "BYTEA", isolation: sql.LevelRepeatableRead}

// Limits of the connections to PostgreSQL.
const (
	postgresConnections = 16
	connectTimeout      = 5 * time.Second
	statementTimeout    = 30 * time.Second
)

// OpenPostgres opens the index in a PostgreSQL database that several servers
// may share, by a URL such as postgres://user@host/database. The tables are in
// the first schema of the search path, as the database has it. A database that
// does not answer is no error: [Index.Run] goes on trying, and until then the
// index answers with [ErrNotReady] and the registry takes no pushes that the
// index would miss.
func OpenPostgres(store Store, url string, opts *Options) (*Index, error) {
	config, err := pgx.ParseConfig(url)
	if err != nil {
		// The error of the library repeats the URL, which may hold a password.
		return nil, errors.New("opening the index: that is not a URL of a PostgreSQL database (write postgres://USER@HOST:PORT/DATABASE)")
	}
	if config.ConnectTimeout == 0 || config.ConnectTimeout > connectTimeout {
		config.ConnectTimeout = connectTimeout
	}
	if config.RuntimeParams == nil {
		config.RuntimeParams = map[string]string{}
	}
	config.RuntimeParams["application_name"] = "krmcat"
	config.RuntimeParams["statement_timeout"] = fmt.Sprint(statementTimeout.Milliseconds())
	config.RuntimeParams["idle_in_transaction_session_timeout"] = fmt.Sprint(statementTimeout.Milliseconds())
	x := newIndex(store, opts, postgresDialect)
	db := stdlib.OpenDB(*config)
	db.SetMaxOpenConns(postgresConnections)
	db.SetMaxIdleConns(postgresConnections)
	db.SetConnMaxIdleTime(5 * time.Minute)
	x.dbs.Store(&databases{w: db, r: db})
	return x, nil
}

// IsPostgres reports whether a string is the URL of a PostgreSQL database.
func IsPostgres(url string) bool {
	return strings.HasPrefix(url, "postgres://") || strings.HasPrefix(url, "postgresql://")
}

// tablesLock is held while tables are made, so that servers that start
// together make them once.
const tablesLock = 0x6b726d636174 // "krmcat"

// lockTables makes the servers that share a database take turns.
func (x *Index) lockTables(ctx context.Context, tx querier) error {
	return x.lockNumber(ctx, tx, tablesLock)
}

// lockName makes the servers that share a database take turns with something,
// until the end of the transaction. SQLite has one writer at a time anyway.
func (x *Index) lockName(ctx context.Context, tx querier, name string) error {
	sum := sha256.Sum256([]byte(name))
	return x.lockNumber(ctx, tx, int64(binary.BigEndian.Uint64(sum[:])))
}

func (x *Index) lockNumber(ctx context.Context, tx querier, n int64) error {
	if x.kind.exclusive {
		return nil
	}
	_, err := tx.ExecContext(ctx, `SELECT pg_advisory_xact_lock($1)`, n)
	return err
}

// isConflict reports whether a transaction was given up for another one's
// sake, and can be tried again.
func isConflict(err error) bool {
	var pe *pgconn.PgError
	return errors.As(err, &pe) && (pe.Code == "40001" || pe.Code == "40P01") // serialization failure, deadlock
}
