package index

import (
	"context"
	"database/sql"
	"fmt"
	"strings"

	"github.com/krmcat/krmcat/internal/lazyregexp"
)

// schemaVersion is the version of the tables. An index with tables of another
// version is dropped and built again, as everything in it is derived. It
// changes with what is stored, the form of catalog entries included.
const schemaVersion = "2"

// dialect is what differs between the databases.
type dialect struct {
	name string
	// exclusive says that no other process uses the database.
	exclusive bool
	text      string // type of text that sorts by its bytes
	bytes     string // type of bytes
	// isolation makes a transaction see one moment.
	isolation sql.IsolationLevel
}

// tables are in the order in which they are made. TEXT and BYTES stand for
// the types of the dialect; flags are 0 or 1 and times are milliseconds.
var tables = []struct{ name, columns string }{
	{"meta", `k TEXT NOT NULL PRIMARY KEY, v TEXT NOT NULL`},
	// Changes that were announced and whose outcome is not known yet.
	{"intents", `id TEXT NOT NULL PRIMARY KEY, owner TEXT NOT NULL,
		repository TEXT NOT NULL, tag TEXT NOT NULL, digest TEXT NOT NULL, created BIGINT NOT NULL`},
	// Definitions and catalogs that a tag points at.
	{"artifacts", `repository TEXT NOT NULL, digest TEXT NOT NULL, kind TEXT NOT NULL,
		grp TEXT NOT NULL, fn TEXT NOT NULL, name TEXT NOT NULL,
		document BYTES NOT NULL, readme BYTES NOT NULL, summary TEXT NOT NULL, problem TEXT NOT NULL,
		created BIGINT NOT NULL, seen BIGINT NOT NULL, PRIMARY KEY (repository, digest)`},
	{"tags", `repository TEXT NOT NULL, tag TEXT NOT NULL, digest TEXT NOT NULL,
		seen BIGINT NOT NULL, PRIMARY KEY (repository, tag)`},
	// Signatures and the like. source is the tag or the digest that says so.
	{"referrers", `repository TEXT NOT NULL, subject TEXT NOT NULL, source TEXT NOT NULL, type TEXT NOT NULL,
		annotations TEXT NOT NULL, PRIMARY KEY (repository, subject, source)`},
	// What is shown of a function, by the type of its functionConfig.
	{"functions", `grp TEXT NOT NULL, fn TEXT NOT NULL, sort TEXT NOT NULL, publisher TEXT NOT NULL,
		updated BIGINT NOT NULL, listing TEXT NOT NULL, entry BYTES NOT NULL, PRIMARY KEY (grp, fn)`},
	{"facets", `grp TEXT NOT NULL, fn TEXT NOT NULL, facet TEXT NOT NULL, value TEXT NOT NULL,
		PRIMARY KEY (facet, value, grp, fn)`},
	{"terms", `term TEXT NOT NULL, grp TEXT NOT NULL, fn TEXT NOT NULL, weight BIGINT NOT NULL,
		PRIMARY KEY (term, grp, fn)`},
	// Parts of three letters of each term, for words with a slip in them.
	{"trigrams", `gram TEXT NOT NULL, term TEXT NOT NULL, PRIMARY KEY (gram, term)`},
	{"catalogs", `name TEXT NOT NULL PRIMARY KEY, repository TEXT NOT NULL, tag TEXT NOT NULL, digest TEXT NOT NULL,
		listing TEXT NOT NULL`},
}

var indexes = []struct{ name, on string }{
	{"artifacts_fn", `artifacts (grp, fn)`},
	{"artifacts_name", `artifacts (name)`},
	{"tags_digest", `tags (repository, digest)`},
	{"tags_seen", `tags (seen)`},
	{"referrers_source", `referrers (repository, source)`},
	{"functions_sort", `functions (sort, grp, fn)`},
	{"functions_updated", `functions (updated DESC, sort, grp, fn)`},
	{"functions_publisher", `functions (publisher)`},
	{"facets_fn", `facets (grp, fn)`},
	{"terms_fn", `terms (grp, fn)`},
}

var typeWords = lazyregexp.New(`\b(TEXT|BYTES)\b`)

func (d dialect) columns(s string) string {
	return typeWords.ReplaceAllStringFunc(s, func(w string) string {
		if w == "BYTES" {
			return d.bytes
		}
		return d.text
	})
}

// createTables makes the tables that are missing, after dropping those of
// another version.
func (x *Index) createTables(ctx context.Context) error {
	tx, err := x.wdb().BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // no effect after Commit
	if err := x.lockTables(ctx, tx); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, `CREATE TABLE IF NOT EXISTS meta (`+x.kind.columns(tables[0].columns)+`)`); err != nil {
		return err
	}
	version, err := x.meta(ctx, tx, metaSchema)
	if err != nil {
		return err
	}
	if version == schemaVersion {
		return tx.Commit()
	}
	if version != "" {
		x.log.InfoContext(ctx, "index has tables of another version and is built again", "have", version, "want", schemaVersion)
	}
	if err := x.recreate(ctx, tx); err != nil {
		return err
	}
	return tx.Commit()
}

func (x *Index) recreate(ctx context.Context, tx *sql.Tx) error {
	var stmts []string
	for _, t := range tables[1:] {
		stmts = append(stmts, `DROP TABLE IF EXISTS `+t.name, `CREATE TABLE `+t.name+` (`+x.kind.columns(t.columns)+`)`)
	}
	for _, i := range indexes {
		stmts = append(stmts, `CREATE INDEX `+i.name+` ON `+i.on)
	}
	stmts = append(stmts, `DELETE FROM meta`)
	for _, s := range stmts {
		if _, err := tx.ExecContext(ctx, s); err != nil {
			return fmt.Errorf("%s: %w", strings.Join(strings.Fields(s)[:3], " "), err)
		}
	}
	return x.setMeta(ctx, tx, metaSchema, schemaVersion)
}
