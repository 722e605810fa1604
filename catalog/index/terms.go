package index

import (
	"cmp"
	"context"
	"database/sql"
	"maps"
	"slices"
	"strings"
	"unicode"
)

// Weights of the places where a word can stand.
const (
	weightKind        = 40
	weightName        = 30
	weightTag         = 15
	weightGroup       = 10
	weightPublisher   = 10
	weightDescription = 4
	weightOther       = 2
)

// maxTerms bounds the words that are kept of one function.
const maxTerms = 400

// words splits text into lower case words: at everything that is no letter or
// digit, and inside CamelCase words, which are kept whole as well.
func words(text string) []string {
	var out []string
	for _, w := range strings.FieldsFunc(text, func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) }) {
		parts := splitCamel(w)
		out = append(out, strings.ToLower(w))
		if len(parts) > 1 {
			for _, p := range parts {
				out = append(out, strings.ToLower(p))
			}
		}
	}
	return slices.DeleteFunc(out, func(w string) bool { return len(w) > 64 })
}

// splitCamel splits SetHTTPRoute into Set, HTTP and Route.
func splitCamel(w string) []string {
	var parts []string
	rs := []rune(w)
	start := 0
	for i := 1; i < len(rs); i++ {
		up := unicode.IsUpper(rs[i])
		if up && !unicode.IsUpper(rs[i-1]) || up && i+1 < len(rs) && unicode.IsLower(rs[i+1]) {
			parts = append(parts, string(rs[start:i]))
			start = i
		}
	}
	return append(parts, string(rs[start:]))
}

// terms are the words that a function is found by, with their weights.
func (l *Listing) terms() map[string]int {
	m := map[string]int{}
	add := func(weight int, texts ...string) {
		for _, t := range texts {
			for _, w := range words(t) {
				if len(m) < maxTerms || m[w] != 0 {
					m[w] = max(m[w], weight)
				}
			}
		}
	}
	add(weightKind, l.Kind)
	// A name is also looked for in one piece: set-labels, setlabels.
	base := l.Repository[strings.LastIndexByte(l.Repository, '/')+1:]
	add(weightName, base, strings.ReplaceAll(base, "-", ""))
	add(weightTag, l.Tags...)
	add(weightGroup, l.Group)
	add(weightPublisher, l.Publisher, l.Repository)
	add(weightDescription, l.Description)
	add(weightOther, l.Runtimes()...)
	return m
}

func (x *Index) insertTerms(ctx context.Context, tx *sql.Tx, l *Listing) error {
	m := l.terms()
	list := slices.Sorted(maps.Keys(m))
	rows := make([][]any, len(list))
	for i, t := range list {
		rows[i] = []any{t, l.Group, l.Kind, m[t]}
	}
	if err := insertRows(ctx, tx, `terms (term, grp, fn, weight)`, rows); err != nil {
		return err
	}
	return x.insertTrigrams(ctx, tx, list)
}

// insertTrigrams records the parts of words that are new. They stay when the
// word goes: a word that no function has finds nothing.
func (x *Index) insertTrigrams(ctx context.Context, tx *sql.Tx, terms []string) error {
	var args []any
	var pairs []string
	for _, t := range terms {
		if grams := trigrams(t); len(grams) > 0 {
			args = append(args, grams[0], t)
			pairs = append(pairs, "("+placeholder(len(args)-1)+", "+placeholder(len(args))+")")
		}
	}
	if len(args) == 0 {
		return nil
	}
	known, err := strings1(tx.QueryContext(ctx, `SELECT term FROM trigrams WHERE (gram, term) IN (VALUES `+strings.Join(pairs, ", ")+`)`, args...))
	if err != nil {
		return err
	}
	var rows [][]any
	for _, t := range terms {
		if slices.Contains(known, t) {
			continue
		}
		for _, g := range trigrams(t) {
			rows = append(rows, []any{g, t})
		}
	}
	return insertRows(ctx, tx, `trigrams (gram, term)`, rows)
}

// maxArguments is how many values one statement carries.
const maxArguments = 400

// insertRows inserts rows that are not there yet, several with one statement.
func insertRows(ctx context.Context, tx *sql.Tx, into string, rows [][]any) error {
	if len(rows) == 0 {
		return nil
	}
	for part := range slices.Chunk(rows, maxArguments/len(rows[0])) {
		var args []any
		values := make([]string, len(part))
		for i, row := range part {
			marks := make([]string, len(row))
			for j, v := range row {
				args = append(args, v)
				marks[j] = placeholder(len(args))
			}
			values[i] = "(" + strings.Join(marks, ", ") + ")"
		}
		if _, err := tx.ExecContext(ctx, `INSERT INTO `+into+` VALUES `+strings.Join(values, ", ")+` ON CONFLICT DO NOTHING`, args...); err != nil {
			return err
		}
	}
	return nil
}

// trigrams are the parts of three letters of a word, which is taken to have a
// blank before and behind it. Words that are too short to have a slip in have
// none.
func trigrams(word string) []string {
	rs := []rune(" " + word + " ")
	if len(rs) < 6 {
		return nil
	}
	var out []string
	for i := 0; i+3 <= len(rs); i++ {
		out = append(out, string(rs[i:i+3]))
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// similar finds words that are known and close to one that is not: at most
// one letter wrong in four, and two in all.
func (x *Index) similar(ctx context.Context, word string) ([]string, error) {
	grams := trigrams(word)
	if len(grams) == 0 {
		return nil, nil
	}
	args := make([]any, len(grams))
	marks := make([]string, len(grams))
	for i, g := range grams {
		args[i] = g
		marks[i] = placeholder(i + 1)
	}
	candidates, err := strings1(x.rdb().QueryContext(ctx, `SELECT term FROM trigrams WHERE gram IN (`+strings.Join(marks, ", ")+`)
		GROUP BY term ORDER BY count(*) DESC, term LIMIT 200`, args...))
	if err != nil {
		return nil, err
	}
	limit := min(2, len([]rune(word))/4)
	type near struct {
		term     string
		distance int
	}
	var found []near
	for _, c := range candidates {
		if d := distance(word, c); d <= limit {
			found = append(found, near{c, d})
		}
	}
	slices.SortFunc(found, func(a, b near) int { return cmp.Or(cmp.Compare(a.distance, b.distance), cmp.Compare(a.term, b.term)) })
	var out []string
	for _, f := range found[:min(len(found), 5)] {
		out = append(out, f.term)
	}
	return out, nil
}

// distance counts the letters to insert, drop, replace, or swap with the next
// one to come from a to b.
func distance(a, b string) int {
	x, y := []rune(a), []rune(b)
	prev2, prev := make([]int, len(y)+1), make([]int, len(y)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := 1; i <= len(x); i++ {
		row := make([]int, len(y)+1)
		row[0] = i
		for j := 1; j <= len(y); j++ {
			row[j] = min(prev[j]+1, row[j-1]+1, prev[j-1]+b2i(x[i-1] != y[j-1]))
			if i > 1 && j > 1 && x[i-1] == y[j-2] && x[i-2] == y[j-1] {
				row[j] = min(row[j], prev2[j-2]+1)
			}
		}
		prev2, prev = prev, row
	}
	return prev[len(y)]
}
