package index

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Order is how found functions are sorted.
type Order string

// Orders of functions. The zero Order is by relevance if there is a text to
// search for, else by name.
const (
	ByName    Order = "name"
	ByUpdated Order = "updated"
)

// Query selects functions. The zero value selects all.
type Query struct {
	Text      string // words that all have to be there, the last may be the start of one
	Publisher string // its slug
	Tag       string
	Runtime   string
	Group     string
	Kind      string // exact
	KindFold  string // the kind in lower case
	Signed    bool   // only what has a signature attached
	Status    Status
	Order     Order
	// Offset and Limit are the page; a Limit of 0 is 20, and more than 100
	// is 100.
	Offset, Limit int
}

const (
	defaultLimit = 20
	maxLimit     = 100
	// maxWords bounds the words of a query, and maxMatches how many
	// functions are ranked for each: past that, the heaviest are enough.
	maxWords   = 8
	maxMatches = 2000
)

// Page is a part of what was found.
type Page struct {
	Items []*Listing
	Total int
	// Corrected is the query with its slips corrected, if nothing was found
	// for what was asked.
	Corrected string
}

func placeholder(n int) string { return "$" + strconv.Itoa(n) }

// key is a function's.
type key struct{ group, fn string }

// Search finds functions.
func (x *Index) Search(ctx context.Context, q Query) (*Page, error) {
	if err := x.usable(); err != nil {
		return nil, err
	}
	p, err := x.search(ctx, q)
	return p, x.notReady(ctx, err)
}

func (x *Index) search(ctx context.Context, q Query) (*Page, error) {
	q.Offset = max(q.Offset, 0)
	if q.Limit <= 0 {
		q.Limit = defaultLimit
	}
	q.Limit = min(q.Limit, maxLimit)
	if q.Text = strings.TrimSpace(q.Text); q.Text == "" {
		return x.browse(ctx, q)
	}
	asked := queryWords(q.Text)
	if len(asked) == 0 {
		return &Page{}, nil
	}
	scores, err := x.match(ctx, asked)
	if err != nil {
		return nil, err
	}
	p := &Page{}
	if len(scores) == 0 {
		corrected, err := x.correct(ctx, asked)
		if err != nil || corrected == nil {
			return p, err
		}
		if scores, err = x.match(ctx, corrected); err != nil {
			return nil, err
		}
		p.Corrected = strings.Join(corrected, " ")
	}
	keys, err := x.narrow(ctx, q, scores)
	if err != nil {
		return nil, err
	}
	p.Total = len(keys)
	keys = keys[min(q.Offset, len(keys)):]
	for _, k := range keys[:min(q.Limit, len(keys))] {
		l, err := x.listing(ctx, x.rdb(), k.group, k.fn)
		if err != nil {
			return nil, err
		}
		if l != nil {
			p.Items = append(p.Items, l)
		}
	}
	return p, nil
}

// queryWords are the words to look for. Those of one CamelCase word are taken
// as written, in one piece.
func queryWords(text string) []string {
	var out []string
	for _, f := range strings.FieldsFunc(strings.ToLower(text), func(r rune) bool { return !isWordRune(r) }) {
		if len(f) <= 64 && !slices.Contains(out, f) {
			out = append(out, f)
		}
	}
	return out[:min(len(out), maxWords)]
}

func isWordRune(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r > 127
}

// match scores the functions that have all words. A word also matches longer
// ones that start with it, for less.
func (x *Index) match(ctx context.Context, asked []string) (map[key]float64, error) {
	var total map[key]float64
	for _, w := range asked {
		found, err := x.matchWord(ctx, w)
		if err != nil {
			return nil, err
		}
		if total == nil {
			total = found
			continue
		}
		for k, s := range total {
			if more, ok := found[k]; ok {
				total[k] = s + more
			} else {
				delete(total, k)
			}
		}
	}
	return total, nil
}

func (x *Index) matchWord(ctx context.Context, w string) (map[key]float64, error) {
	// Everything that starts with the word sorts from it up to the word with
	// the last character there is.
	rows, err := x.rdb().QueryContext(ctx, `SELECT term, grp, fn, weight FROM terms WHERE term >= $1 AND term < $2
		ORDER BY weight DESC, term, grp, fn LIMIT $3`, w, w+"\U0010FFFF", maxMatches)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	found := map[key]float64{}
	for rows.Next() {
		var term string
		var k key
		var weight float64
		if err := rows.Scan(&term, &k.group, &k.fn, &weight); err != nil {
			return nil, err
		}
		if term != w {
			weight *= 0.6 * float64(len(w)) / float64(len(term))
		}
		found[k] = max(found[k], weight)
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	// Rare words say more.
	rare := 1 / math.Log2(2+float64(len(found)))
	for k := range found {
		found[k] *= 1 + rare
	}
	return found, nil
}

// correct replaces the words that nothing has by close ones. It is nil if
// there are none.
func (x *Index) correct(ctx context.Context, asked []string) ([]string, error) {
	out := slices.Clone(asked)
	changed := false
	for i, w := range asked {
		found, err := x.matchWord(ctx, w)
		if err != nil {
			return nil, err
		}
		if len(found) > 0 {
			continue
		}
		near, err := x.similar(ctx, w)
		if err != nil {
			return nil, err
		}
		for _, n := range near {
			// Words stay known when their functions go.
			if found, err := x.matchWord(ctx, n); err != nil {
				return nil, err
			} else if len(found) > 0 {
				out[i], changed = n, true
				break
			}
		}
		if out[i] == w {
			return nil, nil
		}
	}
	if !changed {
		return nil, nil
	}
	return out, nil
}

// everything is a condition that always holds.
const everything = "1 = 1"

// conditions are what a query asks besides its text, as SQL on functions f.
func (q Query) conditions(args []any) (string, []any) {
	where := []string{everything}
	arg := func(v any) string {
		args = append(args, v)
		return placeholder(len(args))
	}
	for _, f := range [][2]string{
		{"publisher", q.Publisher}, {"tag", strings.ToLower(q.Tag)}, {"runtime", q.Runtime}, {"status", string(q.Status)},
		{"signed", map[bool]string{true: "true"}[q.Signed]},
	} {
		if f[1] != "" {
			where = append(where, fmt.Sprintf(`EXISTS (SELECT 1 FROM facets c WHERE c.facet = %s AND c.value = %s AND c.grp = f.grp AND c.fn = f.fn)`, arg(f[0]), arg(clean(f[1]))))
		}
	}
	if q.Group != "" {
		where = append(where, "f.grp = "+arg(clean(q.Group)))
	}
	if q.KindFold != "" {
		where = append(where, "f.sort = "+arg(clean(q.KindFold)))
	}
	if q.Kind != "" {
		where = append(where, "f.fn = "+arg(clean(q.Kind)))
	}
	return strings.Join(where, " AND "), args
}

// batch is how many functions are looked at with one question.
const batch = 200

// narrow drops what the query does not want and sorts the rest.
func (x *Index) narrow(ctx context.Context, q Query, scores map[key]float64) ([]key, error) {
	type hit struct {
		key
		score   float64
		sort    string
		updated int64
	}
	hits := make([]hit, 0, len(scores))
	for k, score := range scores {
		hits = append(hits, hit{key: k, score: score, sort: strings.ToLower(k.fn)})
	}
	if where, _ := q.conditions(nil); where != everything || q.Order == ByUpdated {
		updated := map[key]int64{}
		for part := range slices.Chunk(hits, batch) {
			keys := make([]key, len(part))
			for i, h := range part {
				keys[i] = h.key
			}
			if err := x.wanted(ctx, q, keys, updated); err != nil {
				return nil, err
			}
		}
		hits = slices.DeleteFunc(hits, func(h hit) bool { _, ok := updated[h.key]; return !ok })
		for i := range hits {
			hits[i].updated = updated[hits[i].key]
		}
	}
	slices.SortFunc(hits, func(a, b hit) int {
		byName := cmp.Or(cmp.Compare(a.sort, b.sort), cmp.Compare(a.group, b.group), cmp.Compare(a.fn, b.fn))
		switch q.Order {
		case ByName:
			return byName
		case ByUpdated:
			return cmp.Or(-cmp.Compare(a.updated, b.updated), byName)
		}
		return cmp.Or(-cmp.Compare(a.score, b.score), byName)
	})
	keys := make([]key, len(hits))
	for i, h := range hits {
		keys[i] = h.key
	}
	return keys, nil
}

// wanted adds those of the functions that the query wants, with the times of
// their last releases.
func (x *Index) wanted(ctx context.Context, q Query, keys []key, updated map[key]int64) error {
	where, args := q.conditions(nil)
	pairs := make([]string, len(keys))
	for i, k := range keys {
		args = append(args, k.group, k.fn)
		pairs[i] = "(" + placeholder(len(args)-1) + ", " + placeholder(len(args)) + ")"
	}
	rows, err := x.rdb().QueryContext(ctx, `SELECT f.grp, f.fn, f.updated FROM functions f WHERE `+where+` AND (f.grp, f.fn) IN (VALUES `+strings.Join(pairs, ", ")+`)`, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var k key
		var at int64
		if err := rows.Scan(&k.group, &k.fn, &at); err != nil {
			return err
		}
		updated[k] = at
	}
	return rows.Err()
}

// browse lists functions without a text to search for.
func (x *Index) browse(ctx context.Context, q Query) (*Page, error) {
	where, args := q.conditions(nil)
	p := &Page{}
	if err := x.rdb().QueryRowContext(ctx, `SELECT count(*) FROM functions f WHERE `+where, args...).Scan(&p.Total); err != nil {
		return nil, err
	}
	order := "f.sort, f.grp, f.fn"
	if q.Order == ByUpdated {
		order = "f.updated DESC, " + order
	}
	n := len(args)
	listings, err := strings1(x.rdb().QueryContext(ctx, `SELECT f.listing FROM functions f WHERE `+where+` ORDER BY `+order+
		` LIMIT `+placeholder(n+1)+` OFFSET `+placeholder(n+2), append(args, q.Limit, q.Offset)...))
	if err != nil {
		return nil, err
	}
	for _, data := range listings {
		l, err := parseListing(data)
		if err != nil {
			return nil, err
		}
		p.Items = append(p.Items, l)
	}
	return p, nil
}

func parseListing(data string) (*Listing, error) {
	var l Listing
	if err := json.Unmarshal([]byte(data), &l); err != nil {
		return nil, err
	}
	return &l, nil
}

// listing reads the listing of a function; nil if there is none.
func (x *Index) listing(ctx context.Context, q querier, group, fn string) (*Listing, error) {
	data, err := strings1(q.QueryContext(ctx, `SELECT listing FROM functions WHERE grp = $1 AND fn = $2`, group, fn))
	if err != nil || len(data) == 0 {
		return nil, err
	}
	return parseListing(data[0])
}

// Complete lists functions whose kind or name starts with a prefix, for
// completion in a shell (KEP-2985, story 5).
func (x *Index) Complete(ctx context.Context, prefix string, limit int) ([]*Listing, error) {
	p, err := x.Search(ctx, Query{Text: prefix, Limit: limit, Order: ByName})
	if err != nil {
		return nil, err
	}
	if p.Corrected != "" {
		return nil, nil
	}
	return p.Items, nil
}

// Count is how many functions have a value.
type Count struct {
	Value string `json:"value"`
	Count int    `json:"count"`
}

// Facets counts the values that functions can be narrowed by: publisher, tag,
// runtime or status. The most frequent come first.
func (x *Index) Facets(ctx context.Context, facet string, limit int) ([]Count, error) {
	if err := x.usable(); err != nil {
		return nil, err
	}
	rows, err := x.rdb().QueryContext(ctx, `SELECT value, count(*) FROM facets WHERE facet = $1 GROUP BY value ORDER BY count(*) DESC, value LIMIT $2`, facet, limit)
	if err != nil {
		return nil, x.notReady(ctx, err)
	}
	defer rows.Close()
	var out []Count
	for rows.Next() {
		var c Count
		if err := rows.Scan(&c.Value, &c.Count); err != nil {
			return nil, x.notReady(ctx, err)
		}
		out = append(out, c)
	}
	return out, x.notReady(ctx, rows.Err())
}

// Publisher is who functions are from.
type Publisher struct {
	Slug      string    `json:"slug"`
	Name      string    `json:"name"`
	Functions int       `json:"functions"`
	Updated   time.Time `json:"updated"`
}

// Publishers lists all publishers by their slugs.
func (x *Index) Publishers(ctx context.Context) ([]Publisher, error) {
	if err := x.usable(); err != nil {
		return nil, err
	}
	rows, err := x.rdb().QueryContext(ctx, `SELECT publisher, count(*), max(updated), min(listing) FROM functions WHERE publisher <> '' GROUP BY publisher ORDER BY publisher`)
	if err != nil {
		return nil, x.notReady(ctx, err)
	}
	defer rows.Close()
	var out []Publisher
	for rows.Next() {
		var p Publisher
		var updated int64
		var listing string
		if err := rows.Scan(&p.Slug, &p.Functions, &updated, &listing); err != nil {
			return nil, x.notReady(ctx, err)
		}
		l, err := parseListing(listing)
		if err != nil {
			return nil, err
		}
		p.Name, p.Updated = l.Publisher, millis(updated)
		out = append(out, p)
	}
	return out, x.notReady(ctx, rows.Err())
}
