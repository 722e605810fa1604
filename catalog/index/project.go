package index

import (
	"bytes"
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/Masterminds/semver/v3"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/krmcat/krmcat/internal/lazyregexp"
)

// The status of a release is attached to it as a referrer, so that it is part
// of the registry's content like everything else: an artifact of this type,
// with these annotations. The newest by org.opencontainers.image.created
// holds.
//
//	oras attach --artifact-type application/vnd.krmcat.krm-func-status.v1 \
//	  --annotation dev.krmcat.status=deprecated \
//	  --annotation dev.krmcat.status.message="use SetLabels v2" HOST/REPOSITORY:v1.0.0
const (
	ArtifactTypeStatus      = "application/vnd.krmcat.krm-func-status.v1"
	AnnotationStatus        = "dev.krmcat.status"             // active, deprecated or yanked
	AnnotationStatusMessage = "dev.krmcat.status.message"     // for people
	AnnotationReplacement   = "dev.krmcat.status.replacement" // GROUP/KIND of another function
)

// Status is what has become of a release.
type Status string

// The states of a release.
const (
	Active     Status = "active"
	Deprecated Status = "deprecated" // still listed, with a message
	Yanked     Status = "yanked"     // not in catalogs any more; can still be pulled
)

const (
	typeLegacySignature   = "cosign signature"
	typeLegacyAttestation = "cosign attestation"
	typeLegacySBOM        = "cosign sbom"

	bundleTypePrefix   = "application/vnd.dev.sigstore.bundle"
	notationType       = "application/vnd.cncf.notary.signature"
	legacySignatureOCI = "application/vnd.dev.cosign.artifact.sig.v1+json"
)

// isSignature reports whether a referrer of that type is a signature. That
// one is attached says nothing about who made it: it is for the client to
// verify.
func isSignature(artifactType string) bool {
	switch artifactType {
	case typeLegacySignature, notationType, legacySignatureOCI:
		return true
	}
	return strings.HasPrefix(artifactType, bundleTypePrefix)
}

// Release is a published release of a function, or another tag of it.
type Release struct {
	Repository  string    `json:"repository"`
	Tag         string    `json:"tag"`
	Version     string    `json:"version,omitempty"` // the semantic version; empty if the tag is none
	Prerelease  bool      `json:"prerelease,omitempty"`
	Digest      string    `json:"digest"`
	Published   time.Time `json:"published"` // what the artifact says, or when it was first seen
	Signed      bool      `json:"signed"`    // a signature is attached; it was not verified
	Attached    []string  `json:"attached,omitempty"`
	Status      Status    `json:"status"`
	Message     string    `json:"message,omitempty"`
	Replacement string    `json:"replacement,omitempty"`
	APIVersions []string  `json:"apiVersions"` // of functionConfigs, last segments

	semver  *semver.Version
	summary summary
}

// Listing is a function as lists show it.
type Listing struct {
	Group       string   `json:"group"`
	Kind        string   `json:"kind"`
	Description string   `json:"description,omitempty"`
	Publisher   string   `json:"publisher,omitempty"`
	Slug        string   `json:"publisherSlug,omitempty"` // the publisher in URLs
	Home        string   `json:"home,omitempty"`
	Source      string   `json:"source,omitempty"`
	Maintainers []string `json:"maintainers,omitempty"`
	Tags        []string `json:"tags,omitempty"`
	// Repository, Tag and Digest are those of the release that is shown.
	Repository  string    `json:"repository"`
	Tag         string    `json:"tag"`
	Digest      string    `json:"digest"`
	Released    bool      `json:"released"` // Tag is a semantic version
	Prerelease  bool      `json:"prerelease,omitempty"`
	Updated     time.Time `json:"updated"`
	Signed      bool      `json:"signed"`
	Status      Status    `json:"status"`
	Message     string    `json:"message,omitempty"`
	Replacement string    `json:"replacement,omitempty"`
	Releases    int       `json:"releases"`
	// Versions are those of the functionConfig, newest first, each with the
	// release that catalogs give for it.
	Versions []ListedVersion `json:"versions"`
	// Elsewhere are other repositories that publish the same type.
	Elsewhere []string `json:"elsewhere,omitempty"`
}

// ListedVersion is a version of a functionConfig and the release for it.
type ListedVersion struct {
	VersionSummary
	Repository string `json:"repository"`
	Tag        string `json:"tag"`
	Digest     string `json:"digest"`
	// InCatalog says that catalogs list it: it is not yanked and no
	// pre-release.
	InCatalog bool `json:"inCatalog"`
}

// APIVersion is the apiVersion of a functionConfig of one of the versions.
func (l *Listing) APIVersion(version string) string {
	if l.Group == "" {
		return version
	}
	return l.Group + "/" + version
}

// Runtimes are those of all versions, sorted.
func (l *Listing) Runtimes() []string {
	var out []string
	for _, v := range l.Versions {
		out = append(out, v.Runtimes...)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// separators are what several characters in a row become that are no letters.
var separators = lazyregexp.New(`[.-]*-[.-]*`)

// Slug is a publisher as it stands in URLs and repository names: letters,
// digits and hyphens.
func Slug(publisher string) string {
	s := strings.ToLower(publisher)
	for _, p := range []string{"https://", "http://", "www."} {
		s = strings.TrimPrefix(s, p)
	}
	var b strings.Builder
	for _, r := range s {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '.':
			b.WriteRune(r)
		default:
			b.WriteByte('-')
		}
	}
	return strings.Trim(separators.ReplaceAllString(b.String(), "-"), "-.")
}

// project brings up to date what is shown of functions and catalogs.
func (x *Index) project(ctx context.Context, tx *sql.Tx, about []subject) error {
	var list []subject
	for _, s := range about {
		switch {
		case s.kind == kindDefinition && s.fn != "":
			list = append(list, subject{kind: s.kind, group: s.group, fn: s.fn})
		case s.kind == kindCatalog && s.name != "":
			list = append(list, subject{kind: s.kind, name: s.name})
		}
	}
	// In the same order everywhere, so that no two wait for each other.
	slices.SortFunc(list, func(a, b subject) int {
		return cmp.Or(cmp.Compare(a.kind, b.kind), cmp.Compare(a.group, b.group), cmp.Compare(a.fn, b.fn), cmp.Compare(a.name, b.name))
	})
	for _, s := range slices.Compact(list) {
		// What is shown depends on several tags: whoever writes it last has
		// read all of them.
		if err := x.lockName(ctx, tx, strings.Join([]string{"shown", s.kind, s.group, s.fn, s.name}, "\x00")); err != nil {
			return err
		}
		var err error
		if s.kind == kindDefinition {
			err = x.projectFunction(ctx, tx, s.group, s.fn)
		} else {
			err = x.projectCatalog(ctx, tx, s.name)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// releases lists the tags of a function, the best first.
func (x *Index) releases(ctx context.Context, q querier, group, fn string) ([]*Release, error) {
	rows, err := q.QueryContext(ctx, `SELECT t.repository, t.tag, t.digest, t.seen, a.created, a.summary
		FROM artifacts a JOIN tags t ON t.repository = a.repository AND t.digest = a.digest
		WHERE a.grp = $1 AND a.fn = $2 AND a.kind = $3 AND a.problem = '' ORDER BY t.repository, t.tag`, group, fn, kindDefinition)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var list []*Release
	for rows.Next() {
		r := &Release{Status: Active}
		var seen, created int64
		var s string
		if err := rows.Scan(&r.Repository, &r.Tag, &r.Digest, &seen, &created, &s); err != nil {
			return nil, err
		}
		if err := json.Unmarshal([]byte(s), &r.summary); err != nil {
			return nil, err
		}
		if r.Published = millis(created); r.Published.IsZero() {
			r.Published = millis(seen)
		}
		if v, ok := ParseRelease(r.Tag); ok {
			r.semver, r.Version, r.Prerelease = v, v.String(), v.Prerelease() != ""
		}
		for _, v := range r.summary.Versions {
			r.APIVersions = append(r.APIVersions, v.Name)
		}
		list = append(list, r)
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	if err := x.attachments(ctx, q, group, fn, list); err != nil {
		return nil, err
	}
	slices.SortStableFunc(list, compareReleases)
	return list, nil
}

// attachments fills what is attached to the releases of a function.
func (x *Index) attachments(ctx context.Context, q querier, group, fn string, list []*Release) error {
	rows, err := q.QueryContext(ctx, `SELECT r.repository, r.subject, r.type, r.annotations
		FROM artifacts a JOIN referrers r ON r.repository = a.repository AND r.subject = a.digest
		WHERE a.grp = $1 AND a.fn = $2 AND a.kind = $3 AND a.problem = '' ORDER BY r.repository, r.subject, r.source`, group, fn, kindDefinition)
	if err != nil {
		return err
	}
	defer rows.Close()
	type key struct{ repository, digest string }
	attached := map[key][]attachment{}
	for rows.Next() {
		var k key
		var at attachment
		if err := rows.Scan(&k.repository, &k.digest, &at.kind, &at.notes); err != nil {
			return err
		}
		attached[k] = append(attached[k], at)
	}
	if err := rows.Err(); err != nil {
		return err
	}
	for _, r := range list {
		if err := r.attach(attached[key{r.Repository, r.Digest}]); err != nil {
			return err
		}
	}
	return nil
}

// attachment is what is attached to a release, and its annotations as JSON.
type attachment struct{ kind, notes string }

func (r *Release) attach(list []attachment) error {
	var newest time.Time
	for _, at := range list {
		r.Attached = append(r.Attached, at.kind)
		r.Signed = r.Signed || isSignature(at.kind)
		if at.kind != ArtifactTypeStatus {
			continue
		}
		var a map[string]string
		if err := json.Unmarshal([]byte(at.notes), &a); err != nil {
			return err
		}
		when := annotatedTime(map[string]string{ocispec.AnnotationCreated: a[ocispec.AnnotationCreated]})
		if s := Status(a[AnnotationStatus]); !when.Before(newest) && (s == Active || s == Deprecated || s == Yanked) {
			newest = when
			r.Status, r.Message, r.Replacement = s, a[AnnotationStatusMessage], a[AnnotationReplacement]
		}
	}
	slices.Sort(r.Attached)
	r.Attached = slices.Compact(r.Attached)
	return nil
}

// compareReleases puts first what is to be shown. It looks only at what the
// registry holds, so that a rebuilt index says the same:
//
// A repository that starts with its publisher's name comes before others, so
// that a namesake elsewhere does not take over. Then come what is not yanked,
// releases, pre-releases and other tags; the newest of each first, and latest
// before other names.
func compareReleases(a, b *Release) int {
	return cmp.Or(
		cmp.Compare(a.foreign(), b.foreign()),
		cmp.Compare(a.class(), b.class()),
		-a.compareVersion(b),
		cmp.Compare(b2i(a.Tag != "latest"), b2i(b.Tag != "latest")),
		-cmp.Compare(a.Tag, b.Tag),
		cmp.Compare(a.Repository, b.Repository),
	)
}

func (r *Release) compareVersion(o *Release) int {
	if r.semver == nil || o.semver == nil {
		return 0
	}
	return r.semver.Compare(o.semver)
}

// foreign is 1 if the repository does not start with the publisher's name.
func (r *Release) foreign() int {
	first, _, _ := strings.Cut(r.Repository, "/")
	slug := Slug(r.summary.Publisher)
	return b2i(slug == "" || first != slug && first != slug[strings.LastIndexByte(slug, '-')+1:])
}

// Classes of tags, from the one that is shown to the one that is not.
const (
	classRelease = iota
	classPrerelease
	classOther
	classYanked
)

func (r *Release) class() int {
	switch {
	case r.Status == Yanked:
		return classYanked
	case r.semver == nil:
		return classOther
	case r.Prerelease:
		return classPrerelease
	}
	return classRelease
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// list makes the listing of a function from its releases, best first.
func list(group, fn string, releases []*Release) *Listing {
	top := releases[0]
	s := top.summary
	l := &Listing{
		Group: group, Kind: fn, Description: s.Description, Publisher: s.Publisher, Slug: Slug(s.Publisher),
		Home: s.Home, Source: s.Source, Maintainers: s.Maintainers, Tags: s.Tags,
		Repository: top.Repository, Tag: top.Tag, Digest: top.Digest,
		Released: top.semver != nil, Prerelease: top.Prerelease,
		Signed: top.Signed, Status: top.Status, Message: top.Message, Replacement: top.Replacement,
	}
	// A function that was never released is listed by its other tags.
	released := slices.ContainsFunc(releases, func(r *Release) bool { return r.semver != nil })
	byName := map[string]int{}
	for _, r := range releases {
		if r.Published.After(l.Updated) {
			l.Updated = r.Published
		}
		if r.semver != nil {
			l.Releases++
		}
		if r.Repository != l.Repository && !slices.Contains(l.Elsewhere, r.Repository) {
			l.Elsewhere = append(l.Elsewhere, r.Repository)
		}
		if r.Repository != top.Repository && r.foreign() != 0 && top.foreign() == 0 {
			continue // a namesake
		}
		in := r.class() == classRelease || r.class() == classOther && !released
		for _, v := range r.summary.Versions {
			if i, ok := byName[v.Name]; ok {
				// The newest release that catalogs list wins over a newer one that they do not.
				if in && !l.Versions[i].InCatalog {
					l.Versions[i] = ListedVersion{v, r.Repository, r.Tag, r.Digest, true}
				}
				continue
			}
			byName[v.Name] = len(l.Versions)
			l.Versions = append(l.Versions, ListedVersion{v, r.Repository, r.Tag, r.Digest, in})
		}
	}
	slices.Sort(l.Elsewhere)
	slices.SortStableFunc(l.Versions, func(a, b ListedVersion) int { return -compareAPIVersions(a.Name, b.Name) })
	return l
}

// projectFunction writes the listing of a function, its entry in catalogs and
// what it is found by.
func (x *Index) projectFunction(ctx context.Context, tx *sql.Tx, group, fn string) error {
	releases, err := x.releases(ctx, tx, group, fn)
	if err != nil {
		return err
	}
	var was string
	var wasEntry []byte
	err = tx.QueryRowContext(ctx, `SELECT listing, entry FROM functions WHERE grp = $1 AND fn = $2`, group, fn).Scan(&was, &wasEntry)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return err
	}
	var l *Listing
	data, entry := []byte{}, []byte{}
	if len(releases) > 0 {
		l = list(group, fn, releases)
		if data, err = json.Marshal(l); err != nil {
			return err
		}
		if entry, err = x.entry(ctx, tx, l); err != nil {
			return err
		}
	}
	if string(data) == was && bytes.Equal(entry, wasEntry) {
		return nil
	}
	for _, t := range []string{"functions", "facets", "terms"} {
		if _, err := tx.ExecContext(ctx, `DELETE FROM `+t+` WHERE grp = $1 AND fn = $2`, group, fn); err != nil {
			return err
		}
	}
	if l != nil {
		if err := x.insertFunction(ctx, tx, l, string(data), entry); err != nil {
			return err
		}
	}
	return x.changed(ctx, tx)
}

func (x *Index) insertFunction(ctx context.Context, tx *sql.Tx, l *Listing, data string, entry []byte) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO functions (grp, fn, sort, publisher, updated, listing, entry) VALUES ($1, $2, $3, $4, $5, $6, $7)`,
		l.Group, l.Kind, strings.ToLower(l.Kind), l.Slug, toMillis(l.Updated), data, entry)
	if err != nil {
		return err
	}
	var facets [][]any
	for _, f := range l.facets() {
		facets = append(facets, []any{l.Group, l.Kind, f[0], f[1]})
	}
	if err := insertRows(ctx, tx, `facets (grp, fn, facet, value)`, facets); err != nil {
		return err
	}
	return x.insertTerms(ctx, tx, l)
}

// facets are what lists of functions are narrowed by.
func (l *Listing) facets() [][2]string {
	f := [][2]string{{"status", string(l.Status)}}
	if l.Slug != "" {
		f = append(f, [2]string{"publisher", l.Slug})
	}
	if l.Signed {
		f = append(f, [2]string{"signed", "true"})
	}
	for _, r := range l.Runtimes() {
		f = append(f, [2]string{"runtime", r})
	}
	for _, t := range l.Tags {
		f = append(f, [2]string{"tag", strings.ToLower(t)})
	}
	f = append(f, [2]string{"group", l.Group})
	return f
}

// compareAPIVersions compares versions such as v1, v1beta2 and v2alpha1 as
// Kubernetes does: stable ones are newer than beta, and beta than alpha; what
// is no such version is oldest.
func compareAPIVersions(a, b string) int {
	x, y := parseAPIVersion(a), parseAPIVersion(b)
	return cmp.Or(slices.Compare(x[:], y[:]), -cmp.Compare(a, b))
}
