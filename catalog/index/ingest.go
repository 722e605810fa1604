package index

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/Masterminds/semver/v3"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/krmcat/krmcat/catalog"
	"github.com/krmcat/krmcat/internal/lazyregexp"
	"github.com/krmcat/krmcat/schema"
)

// errIntegrity: the store gave other content than was asked for.
var errIntegrity = errors.New("content does not match its digest")

// maxReadme is how much of a README is kept, in bytes.
const maxReadme = 1 << 20

// Kinds of artifacts that the index keeps.
const (
	kindDefinition = "definition"
	kindCatalog    = "catalog"
)

// signatureTag is how cosign tags what belongs to the manifest with that
// digest; without an ending it is the referrers tag of the distribution
// specification.
var signatureTag = lazyregexp.New(`^(sha256)-([0-9a-f]{64})(?:\.(sig|att|sbom))?$`)

// ParseRelease reads a tag as a release: a semantic version of three numbers,
// with or without v. Tags with an underscore, which no semantic version has,
// belong to the runtimes of a release and are none.
func ParseRelease(tag string) (*semver.Version, bool) {
	v, err := semver.StrictNewVersion(strings.TrimPrefix(tag, "v"))
	return v, err == nil
}

// artifact is a row of the table artifacts.
type artifact struct {
	Repository string
	Digest     digest.Digest
	Kind       string
	Group, Fn  string
	Name       string // of a catalog
	Document   []byte
	Readme     []byte
	Summary    summary
	Problem    string // why the document is not shown
	Created    time.Time
}

// summary is what lists need of a document without reading it again.
type summary struct {
	Description string           `json:"description,omitempty"`
	Publisher   string           `json:"publisher,omitempty"`
	Home        string           `json:"home,omitempty"`
	Source      string           `json:"source,omitempty"`
	Maintainers []string         `json:"maintainers,omitempty"`
	Tags        []string         `json:"tags,omitempty"`
	Versions    []VersionSummary `json:"versions,omitempty"`
	Functions   []string         `json:"functions,omitempty"` // of a catalog
	Examples    string           `json:"examples,omitempty"`  // digest of the blob
	Size        int64            `json:"size,omitempty"`      // of the document
	Document    digest.Digest    `json:"document,omitempty"`  // of the document
}

// VersionSummary is what lists show of a version of a functionConfig.
type VersionSummary struct {
	Name       string   `json:"name"`
	Runtimes   []string `json:"runtimes,omitempty"` // container, exec, starlark
	Platforms  []string `json:"platforms,omitempty"`
	Idempotent bool     `json:"idempotent,omitempty"`
	ConfigMap  bool     `json:"configMap,omitempty"`
	Network    bool     `json:"network,omitempty"` // the container asks for it
	Storage    bool     `json:"storage,omitempty"` // likewise
	License    string   `json:"license,omitempty"`
	Usage      string   `json:"usage,omitempty"`
	Examples   []string `json:"examples,omitempty"`
	Image      string   `json:"image,omitempty"` // of the container
}

// read reads a manifest and what the index keeps of it. The artifact is nil
// if it is none that is kept. A manifest that is not there is an error that
// wraps [fs.ErrNotExist].
func (x *Index) read(ctx context.Context, repository string, d digest.Digest) (*artifact, error) {
	content, err := x.store.FetchManifest(ctx, repository, d)
	if err != nil {
		return nil, err
	}
	var m ocispec.Manifest
	if err := json.Unmarshal(content, &m); err != nil {
		return nil, nil // nothing that the index could know
	}
	a := &artifact{Repository: repository, Digest: d}
	var document ocispec.Descriptor
	for _, l := range m.Layers {
		switch l.MediaType {
		case catalog.MediaTypeDefinition:
			if a.Kind == "" {
				a.Kind, document = kindDefinition, l
			}
		case catalog.MediaTypeCatalog:
			if a.Kind == "" {
				a.Kind, document = kindCatalog, l
			}
		case catalog.MediaTypeMarkdown:
			if a.Readme == nil && l.Size <= maxReadme {
				if a.Readme, err = x.blob(ctx, repository, l, maxReadme); err != nil {
					return nil, err
				}
			}
		case catalog.MediaTypeExamples:
			if a.Summary.Examples == "" {
				a.Summary.Examples = string(l.Digest)
			}
		}
	}
	if a.Kind == "" {
		return nil, nil
	}
	a.Created = annotatedTime(m.Annotations)
	a.Summary.Source = clean(m.Annotations[ocispec.AnnotationSource])
	if a.Document, err = x.blob(ctx, repository, document, catalog.MaxDocument); err != nil {
		return nil, err
	}
	a.Summary.Size, a.Summary.Document = int64(len(a.Document)), digest.FromBytes(a.Document)
	if err := a.decode(ctx); err != nil {
		return nil, err
	}
	return a, nil
}

// blob reads a blob of limited size and checks its digest. A blob that is too
// large is an empty one.
func (x *Index) blob(ctx context.Context, repository string, desc ocispec.Descriptor, limit int64) ([]byte, error) {
	if desc.Size > limit || desc.Digest.Validate() != nil {
		return []byte{}, nil
	}
	r, err := x.store.FetchBlob(ctx, repository, desc.Digest)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	data, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > limit || desc.Digest.Algorithm().FromBytes(data) != desc.Digest {
		return nil, fmt.Errorf("blob %s of %s is not what its digest says: %w", desc.Digest, repository, errIntegrity)
	}
	return data, nil
}

// decode fills what the document says. A document that cannot be read is kept
// with its problem, so that it is not read again and again.
func (a *artifact) decode(ctx context.Context) error {
	doc, err := catalog.Read(ctx, catalog.Location{}, a.Repository+"@"+string(a.Digest), a.Document, catalog.ReadOptions{Level: schema.Consume})
	var invalid *schema.InvalidError
	switch {
	case errors.As(err, &invalid):
		a.Problem = clean(err.Error())
		return nil
	case err != nil:
		return err
	}
	switch {
	case a.Kind == kindDefinition && doc.Definition != nil:
		a.define(doc.Definition)
	case a.Kind == kindCatalog && doc.Catalog != nil:
		a.Name = clean(doc.Catalog.Name)
		for _, d := range doc.Catalog.Definitions {
			for _, v := range d.Versions {
				a.Summary.Functions = append(a.Summary.Functions, clean(catalog.GroupVersionKind{Group: d.Group, Version: v.Name, Kind: d.Kind}.String()))
			}
		}
		a.Summary.Publisher = clean(doc.Catalog.Labels["publisher"])
		if a.Name == "" {
			a.Problem = "the catalog has no metadata.name"
		}
	default:
		a.Problem = "the document is not of the kind that its media type says"
	}
	return nil
}

func (a *artifact) define(d *catalog.Definition) {
	a.Group, a.Fn = clean(d.Group), clean(d.Kind)
	a.Name = clean(d.Name)
	a.Summary.Description = clean(d.Description)
	a.Summary.Publisher = clean(d.Publisher)
	a.Summary.Home = clean(d.Home)
	a.Summary.Maintainers = cleanAll(d.Maintainers)
	a.Summary.Tags = cleanAll(d.Tags)
	for _, v := range d.Versions {
		s := VersionSummary{
			Name: clean(v.Name), Idempotent: v.Idempotent, ConfigMap: v.ConfigMap,
			License: clean(v.License), Usage: clean(v.Usage), Examples: cleanAll(v.Examples),
		}
		if c := v.Runtime.Container; c != nil {
			s.Runtimes = append(s.Runtimes, "container")
			s.Image, s.Network, s.Storage = clean(c.Image), c.RequireNetwork, c.RequireStorageMount
		}
		if e := v.Runtime.Exec; e != nil {
			s.Runtimes = append(s.Runtimes, "exec")
			for _, p := range e.Platforms {
				s.Platforms = append(s.Platforms, clean(p.OS+"/"+p.Arch))
			}
		}
		if v.Runtime.Starlark != nil {
			s.Runtimes = append(s.Runtimes, "starlark")
		}
		a.Summary.Versions = append(a.Summary.Versions, s)
	}
}

func cleanAll(list []string) []string {
	out := slices.Clone(list)
	for i := range out {
		out[i] = clean(out[i])
	}
	return out
}

// annotatedTime is the time in the manifest, or zero.
func annotatedTime(annotations map[string]string) time.Time {
	t, err := time.Parse(time.RFC3339, annotations[ocispec.AnnotationCreated])
	if err != nil || t.Year() < 1980 || t.Year() > 9999 {
		return time.Time{}
	}
	return t.UTC()
}

func toMillis(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

// errMoved says that a tag moved while it was being read.
var errMoved = errors.New("the tag moved meanwhile")

// takeTag brings the index in step with what a tag points at now.
func (x *Index) takeTag(ctx context.Context, repository, tag string) error {
	_, err := x.takeTags(ctx, repository, []string{tag}, takeNew)
	return err
}

// Ways of taking a tag.
type taking int

const (
	takeNew     taking = iota // what is known is not looked at
	takeCompare               // its referrers are
	takeAgain                 // it is read again
)

// Bounds of what is taken with one transaction.
const (
	maxTogether       = 100
	maxTogetherShared = 20 // others wait
	maxTogetherBytes  = 4 << 20
)

// takeTags brings the index in step with the first of some tags, which are
// sorted, and returns how many that were. It is at least one, or there is an
// error, which is of the first tag.
//
// Two of them for one tag never overlap, in this process or in others that
// share the database: whoever commits last has read last.
func (x *Index) takeTags(ctx context.Context, repository string, tags []string, how taking) (n int, err error) {
	limit := maxTogether
	if !x.kind.exclusive {
		limit = maxTogetherShared
	}
	tags = tags[:min(len(tags), limit)]
	for _, tag := range tags {
		unlock, err := x.locks.lock(ctx, repository+":"+tag)
		if err != nil {
			return 0, err
		}
		defer unlock()
	}
	for range 10 {
		n, err = x.tryTags(ctx, repository, tags, how)
		if !errors.Is(err, errMoved) {
			return n, err
		}
	}
	return 0, err
}

// storeError is an error of the store, and not of the database.
type storeError struct{ err error }

func (e *storeError) Error() string { return e.err.Error() }
func (e *storeError) Unwrap() error { return e.err }

// tagged is what a tag was found to point at.
type tagged struct {
	tag     string
	digest  digest.Digest // empty if there is none
	subject string        // of a signature under a tag
	kind    string        // likewise
	known   bool          // nothing but its referrers is to be recorded
	a       *artifact     // nil is nothing that is kept
	refs    []ocispec.Descriptor
}

func (x *Index) tryTags(ctx context.Context, repository string, tags []string, how taking) (n int, err error) {
	known, err := x.knownTags(ctx, repository, tags)
	if err != nil {
		return 0, err
	}
	var found []*tagged
	bytes := 0
	for _, tag := range tags {
		t, err := x.readTag(ctx, repository, tag, known, how)
		if err != nil && n > 0 {
			break // what comes before it first
		}
		if err != nil {
			return 0, err
		}
		n++
		if t == nil {
			continue
		}
		found = append(found, t)
		if t.a != nil {
			bytes += len(t.a.Document) + len(t.a.Readme)
		}
		if bytes > maxTogetherBytes {
			break
		}
	}
	if len(found) == 0 {
		return n, nil
	}
	return n, x.update(ctx, func(tx *sql.Tx) error {
		var shown []subject
		for _, t := range found {
			if err := x.unmoved(ctx, tx, repository, t.tag, t.digest); err != nil {
				return err
			}
			about, err := x.record(ctx, tx, repository, t)
			if err != nil {
				return err
			}
			shown = append(shown, about...)
		}
		return x.project(ctx, tx, shown)
	})
}

// readTag finds out what a tag points at; nil if nothing is to be recorded.
func (x *Index) readTag(ctx context.Context, repository, tag string, known map[string]string, how taking) (*tagged, error) {
	desc, err := x.store.Resolve(ctx, repository, tag)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, &storeError{err}
	}
	t := &tagged{tag: tag, digest: desc.Digest}
	have, isKnown := known[tag]
	if m := signatureTag.FindStringSubmatch(tag); m != nil {
		// Without an ending it is an index of referrers, which are known one
		// by one.
		t.subject, t.kind = m[1]+":"+m[2], legacyTypes[m[3]]
		if t.kind == "" {
			return nil, nil
		}
		return t, nil
	}
	if t.digest == "" {
		if !isKnown {
			return nil, nil
		}
		return t, nil
	}
	t.known = have == string(t.digest) && how != takeAgain
	if t.known && how == takeNew {
		return nil, nil
	}
	if !t.known {
		// A tag whose manifest is gone is not shown.
		if t.a, err = x.read(ctx, repository, t.digest); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, &storeError{err}
		}
		if t.a == nil && !isKnown {
			return nil, nil
		}
	}
	if t.a != nil && t.a.Problem != "" {
		x.log.WarnContext(ctx, "document is not shown", "repository", repository, "tag", tag, "digest", t.digest, "problem", t.a.Problem)
	}
	if t.a != nil || t.known {
		// Referrers may have been there before the tag.
		if t.refs, err = x.newReferrers(ctx, repository, t.digest); err != nil {
			return nil, err
		}
	}
	if t.known && len(t.refs) == 0 {
		return nil, nil
	}
	return t, nil
}

// record writes what a tag was found to point at, and says what is shown of
// it.
func (x *Index) record(ctx context.Context, tx *sql.Tx, repository string, t *tagged) (shown []subject, err error) {
	switch {
	case t.subject != "" && t.digest != "":
		return x.putReferrer(ctx, tx, repository, t.subject, t.tag, t.kind, nil)
	case t.subject != "":
		return x.dropReferrer(ctx, tx, repository, t.tag)
	case t.known:
	case t.a == nil:
		return x.dropTag(ctx, tx, repository, t.tag)
	default:
		if shown, err = x.putTag(ctx, tx, t.tag, t.a); err != nil {
			return nil, err
		}
	}
	for _, r := range t.refs {
		about, err := x.putReferrer(ctx, tx, repository, string(t.digest), string(r.Digest), r.ArtifactType, r.Annotations)
		if err != nil {
			return nil, err
		}
		shown = append(shown, about...)
	}
	return shown, nil
}

// unmoved makes the processes that share a database take turns with a tag,
// and reports whether the tag still points where it did.
func (x *Index) unmoved(ctx context.Context, tx *sql.Tx, repository, tag string, d digest.Digest) error {
	if x.kind.exclusive {
		return nil
	}
	if err := x.lockName(ctx, tx, "tag "+repository+":"+tag); err != nil {
		return err
	}
	desc, err := x.store.Resolve(ctx, repository, tag)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if desc.Digest != d {
		return errMoved
	}
	return nil
}

// legacyTypes name what cosign keeps under tags.
var legacyTypes = map[string]string{"sig": typeLegacySignature, "att": typeLegacyAttestation, "sbom": typeLegacySBOM}

// newReferrers lists what the registry has attached to a manifest, and the
// index does not know of.
func (x *Index) newReferrers(ctx context.Context, repository string, d digest.Digest) ([]ocispec.Descriptor, error) {
	var refs []ocispec.Descriptor
	for desc, err := range x.store.Referrers(ctx, repository, d, "") {
		if errors.Is(err, fs.ErrNotExist) {
			break
		}
		if err != nil {
			return nil, &storeError{err}
		}
		refs = append(refs, desc)
	}
	if len(refs) == 0 {
		return nil, nil
	}
	known, err := strings1(x.rdb().QueryContext(ctx, `SELECT source FROM referrers WHERE repository = $1 AND subject = $2`, repository, string(d)))
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(refs, func(r ocispec.Descriptor) bool { return slices.Contains(known, string(r.Digest)) }), nil
}

// knownTags returns the digests of those of some tags that the index has.
func (x *Index) knownTags(ctx context.Context, repository string, tags []string) (map[string]string, error) {
	args := []any{repository}
	marks := make([]string, len(tags))
	for i, t := range tags {
		args = append(args, t)
		marks[i] = placeholder(len(args))
	}
	rows, err := x.rdb().QueryContext(ctx, `SELECT tag, digest FROM tags WHERE repository = $1 AND tag IN (`+strings.Join(marks, ", ")+`)`, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	known := map[string]string{}
	for rows.Next() {
		var tag, d string
		if err := rows.Scan(&tag, &d); err != nil {
			return nil, err
		}
		known[tag] = d
	}
	return known, rows.Err()
}

func (x *Index) tagDigest(ctx context.Context, q querier, repository, tag string) (string, error) {
	var d string
	err := q.QueryRowContext(ctx, `SELECT digest FROM tags WHERE repository = $1 AND tag = $2`, repository, tag).Scan(&d)
	if errors.Is(err, sql.ErrNoRows) {
		return "", nil
	}
	return d, err
}

// putTag records a tag and the artifact it points at, and says what is shown
// of them.
func (x *Index) putTag(ctx context.Context, tx *sql.Tx, tag string, a *artifact) ([]subject, error) {
	old, err := x.tagDigest(ctx, tx, a.Repository, tag)
	if err != nil {
		return nil, err
	}
	s, err := json.Marshal(a.Summary)
	if err != nil {
		return nil, err
	}
	now := x.now().UnixMilli()
	if a.Document == nil {
		a.Document = []byte{}
	}
	if a.Readme == nil {
		a.Readme = []byte{}
	}
	_, err = tx.ExecContext(ctx, `INSERT INTO artifacts (repository, digest, kind, grp, fn, name, document, readme, summary, problem, created, seen)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
		ON CONFLICT (repository, digest) DO UPDATE SET kind = excluded.kind, grp = excluded.grp, fn = excluded.fn, name = excluded.name,
		document = excluded.document, readme = excluded.readme, summary = excluded.summary, problem = excluded.problem, created = excluded.created`,
		a.Repository, string(a.Digest), a.Kind, a.Group, a.Fn, a.Name, a.Document, a.Readme, string(s), a.Problem, toMillis(a.Created), now)
	if err != nil {
		return nil, err
	}
	_, err = tx.ExecContext(ctx, `INSERT INTO tags (repository, tag, digest, seen) VALUES ($1, $2, $3, $4)
		ON CONFLICT (repository, tag) DO UPDATE SET digest = excluded.digest,
		seen = CASE WHEN tags.digest = excluded.digest THEN tags.seen ELSE excluded.seen END`,
		a.Repository, tag, string(a.Digest), now)
	if err != nil {
		return nil, err
	}
	shown := []subject{{a.Kind, a.Group, a.Fn, a.Name}}
	if old != "" && old != string(a.Digest) {
		was, err := x.release(ctx, tx, a.Repository, old)
		if err != nil {
			return nil, err
		}
		shown = append(shown, was...)
	}
	return shown, nil
}

// dropTag forgets a tag, if it was known, and says what was shown of it.
func (x *Index) dropTag(ctx context.Context, tx *sql.Tx, repository, tag string) ([]subject, error) {
	d, err := x.tagDigest(ctx, tx, repository, tag)
	if err != nil || d == "" {
		return nil, err
	}
	if _, err := tx.ExecContext(ctx, `DELETE FROM tags WHERE repository = $1 AND tag = $2`, repository, tag); err != nil {
		return nil, err
	}
	return x.release(ctx, tx, repository, d)
}

// subject is something that is shown: a function or a catalog.
type subject struct{ kind, group, fn, name string }

// release says what an artifact is about, and forgets the artifact if no tag
// points at it any more.
func (x *Index) release(ctx context.Context, tx *sql.Tx, repository, d string) ([]subject, error) {
	about, err := x.about(ctx, tx, repository, d)
	if err != nil {
		return nil, err
	}
	_, err = tx.ExecContext(ctx, `DELETE FROM artifacts WHERE repository = $1 AND digest = $2
		AND NOT EXISTS (SELECT 1 FROM tags WHERE tags.repository = artifacts.repository AND tags.digest = artifacts.digest)`, repository, d)
	return about, err
}

// about says what the artifact with a digest is about; nothing if it is not
// in the index.
func (x *Index) about(ctx context.Context, q querier, repository, d string) ([]subject, error) {
	var s subject
	err := q.QueryRowContext(ctx, `SELECT kind, grp, fn, name FROM artifacts WHERE repository = $1 AND digest = $2`, repository, d).
		Scan(&s.kind, &s.group, &s.fn, &s.name)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	return []subject{s}, err
}

// putReferrer records that something is attached to a subject, and says what
// is shown of that. Only what is attached to something that is shown changes
// anything that is shown.
func (x *Index) putReferrer(ctx context.Context, tx *sql.Tx, repository, to, source, artifactType string, annotations map[string]string) ([]subject, error) {
	note := map[string]string{}
	for _, k := range []string{AnnotationStatus, AnnotationStatusMessage, AnnotationReplacement, ocispec.AnnotationCreated} {
		if v, ok := annotations[k]; ok {
			note[k] = clean(v)
		}
	}
	data, err := json.Marshal(note)
	if err != nil {
		return nil, err
	}
	var n int
	err = tx.QueryRowContext(ctx, `SELECT count(*) FROM referrers WHERE repository = $1 AND subject = $2 AND source = $3`, repository, to, source).Scan(&n)
	if err != nil || n > 0 {
		return nil, err
	}
	_, err = tx.ExecContext(ctx, `INSERT INTO referrers (repository, subject, source, type, annotations) VALUES ($1, $2, $3, $4, $5)`,
		repository, to, source, clean(artifactType), string(data))
	if err != nil {
		return nil, err
	}
	return x.about(ctx, tx, repository, to)
}

// dropReferrer forgets what is attached under a tag or a digest, and says what
// is shown of its subject.
func (x *Index) dropReferrer(ctx context.Context, tx *sql.Tx, repository, source string) (shown []subject, err error) {
	subjects, err := strings1(tx.QueryContext(ctx, `SELECT subject FROM referrers WHERE repository = $1 AND source = $2`, repository, source))
	if err != nil || len(subjects) == 0 {
		return nil, err
	}
	if _, err := tx.ExecContext(ctx, `DELETE FROM referrers WHERE repository = $1 AND source = $2`, repository, source); err != nil {
		return nil, err
	}
	for _, s := range subjects {
		about, err := x.about(ctx, tx, repository, s)
		if err != nil {
			return nil, err
		}
		shown = append(shown, about...)
	}
	return shown, nil
}

// updateShown runs f in a transaction that writes, and brings up to date what
// is shown of what f says.
func (x *Index) updateShown(ctx context.Context, f func(tx *sql.Tx) ([]subject, error)) error {
	return x.update(ctx, func(tx *sql.Tx) error {
		shown, err := f(tx)
		if err != nil {
			return err
		}
		return x.project(ctx, tx, shown)
	})
}

// strings1 reads rows of one text column.
func strings1(rows *sql.Rows, err error) ([]string, error) {
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []string
	for rows.Next() {
		var s string
		if err := rows.Scan(&s); err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	return out, rows.Err()
}

// takeDigest brings the index in step with a manifest by its digest: what it
// is attached to, or that it is gone.
func (x *Index) takeDigest(ctx context.Context, repository string, d digest.Digest) error {
	unlock, err := x.locks.lock(ctx, repository+"@"+string(d))
	if err != nil {
		return err
	}
	content, err := x.store.FetchManifest(ctx, repository, d)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		err = x.updateShown(ctx, func(tx *sql.Tx) ([]subject, error) { return x.dropReferrer(ctx, tx, repository, string(d)) })
		unlock()
		if err != nil {
			return err
		}
		// Its tags are gone with it.
		tags, err := strings1(x.rdb().QueryContext(ctx, `SELECT tag FROM tags WHERE repository = $1 AND digest = $2 ORDER BY tag`, repository, string(d)))
		if err != nil {
			return err
		}
		for _, t := range tags {
			if err := x.takeTag(ctx, repository, t); err != nil {
				return err
			}
		}
		return nil
	case err != nil:
		unlock()
		return err
	}
	defer unlock()
	about, artifactType, annotations := attached(content)
	if about == "" {
		return nil
	}
	return x.updateShown(ctx, func(tx *sql.Tx) ([]subject, error) {
		return x.putReferrer(ctx, tx, repository, about, string(d), artifactType, annotations)
	})
}

// attached reads what a manifest is attached to, and as what (distribution
// specification, "Listing Referrers").
func attached(content []byte) (subject, artifactType string, annotations map[string]string) {
	var m struct {
		ArtifactType string              `json:"artifactType"`
		Config       ocispec.Descriptor  `json:"config"`
		Subject      *ocispec.Descriptor `json:"subject"`
		Annotations  map[string]string   `json:"annotations"`
	}
	if json.Unmarshal(content, &m) != nil || m.Subject == nil || m.Subject.Digest.Validate() != nil {
		return "", "", nil
	}
	if m.ArtifactType == "" {
		m.ArtifactType = m.Config.MediaType
	}
	return string(m.Subject.Digest), m.ArtifactType, m.Annotations
}
