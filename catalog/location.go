package catalog

import (
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"path"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/opencontainers/go-digest"

	"github.com/krmcat/krmcat/internal/lazyregexp"
)

// maxLocation bounds the length of a location in bytes.
const maxLocation = 4096

// DefaultDocument is the file that a git location names when it gives no path
// inside the repository (KC-030).
const DefaultDocument = "catalog.yaml"

// Location says where a document or a runtime is: a file, an https URL, a git
// reference or an OCI reference, with an optional digest of the content
// (KC-014). It is parsed by [ParseLocation], which normalises it, and
// comparable. The zero Location is no place at all.
type Location struct {
	Scheme string // file, https, http, git or oci
	// Ref is what follows the scheme: a slash-separated path for file, the
	// whole URL for http and https, a git reference as [GitReference] writes
	// it, or host/repository[:tag] for oci.
	Ref string
	// Digest is the digest that an oci reference or the document gives. For
	// oci it is the digest of the manifest, for all others of the content.
	Digest digest.Digest
	// Path is a file inside an oci artifact, from the fragment; may be empty.
	Path string
}

// ParseLocation reads a location as it stands in a document or on a command
// line:
//
//	catalog.yaml, /etc/krm/catalog.yaml, file:///etc/krm/catalog.yaml
//	https://host/catalog.yaml
//	https://host/org/repo//path/catalog.yaml?ref=v1, https://host/repo.git,
//	ssh://git@host/repo//path, git@host:org/repo//path, file:///repo//path?ref=v1
//	oci://host/repository:tag, oci://host/repository@sha256:…#path/in/artifact
//
// An http or https URL is a git repository if its path contains // or a
// segment that ends in .git, or if it has a ref; otherwise it is one file.
// Anything without a scheme that does not look like git is a path. Git
// locations take kustomize's form; a path that looks like one of the others
// is written with ./ in front.
//
// The result is normalised: schemes and hosts in lower case, no default
// ports, clean paths, the tag latest for a reference with neither tag nor
// digest. The http scheme is accepted here and it is up to the
// source to refuse it. Credentials are refused, and are not repeated in the
// error; errors never hold control characters.
func ParseLocation(s string) (Location, error) {
	if err := checkText(s); err != nil {
		return Location{}, locationError(s, err)
	}
	l, err := parseLocation(s)
	if err != nil {
		return Location{}, locationError(s, err)
	}
	return l, nil
}

// locationError names the location, cut and without what could be a secret.
func locationError(s string, err error) error {
	return fmt.Errorf("location %q: %w", redact(s), err)
}

// redact takes the user information out of anything that looks like a URL and
// shortens what is too long to read.
func redact(s string) string {
	if i := strings.Index(s, "://"); i >= 0 {
		rest := s[i+3:]
		end := strings.IndexAny(rest, "/?#")
		if end < 0 {
			end = len(rest)
		}
		if at := strings.LastIndexByte(rest[:end], '@'); at >= 0 {
			s = s[:i+3] + "…" + rest[at:]
		}
	} else if at := strings.IndexByte(s, '@'); at >= 0 {
		if colon := strings.IndexByte(s[:at], ':'); colon >= 0 {
			s = s[:colon] + ":…" + s[at:]
		}
	}
	if r := []rune(s); len(r) > 200 {
		s = string(r[:200]) + "…"
	}
	return s
}

// checkText refuses what can hide or change meaning wherever a location is
// shown or handed to another program.
func checkText(s string) error {
	switch {
	case s == "":
		return errors.New("empty")
	case len(s) > maxLocation:
		return fmt.Errorf("longer than %d bytes", maxLocation)
	case !utf8.ValidString(s):
		return errors.New("not valid UTF-8")
	case s[0] == '-':
		return errors.New("starts with a hyphen (write ./ in front of a path)")
	}
	for _, r := range s {
		// Cf holds the marks that reorder or hide text.
		if unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || r == '\u2028' || r == '\u2029' {
			return fmt.Errorf("contains the character %U, which does not show", r)
		}
	}
	return nil
}

var (
	schemeExpr = lazyregexp.New(`^([A-Za-z][A-Za-z0-9+.-]*)://`)
	driveExpr  = lazyregexp.New(`^[A-Za-z]:[/\\]`)
	// scpExpr is user@host:path; the user is required, or every file name
	// with a colon would be one.
	scpExpr = lazyregexp.New(`^([A-Za-z0-9_][A-Za-z0-9_.-]*)@([A-Za-z0-9][A-Za-z0-9.-]*):([^/].*)$`)
	// scpLongExpr is an scp form with more before the @, such as a password.
	scpLongExpr = lazyregexp.New(`^[^/@]+@[^/@:]+:.`)
)

func parseLocation(s string) (Location, error) {
	if rest, ok := strings.CutPrefix(s, "git::"); ok {
		return Location{}, fmt.Errorf("git:: is not a prefix here; write the repository's URL, // and the path, such as %s//catalog.yaml?ref=v1", redact(strings.TrimSuffix(rest, "/")))
	}
	m := schemeExpr.FindStringSubmatch(s)
	if m == nil {
		return parsePlain(s)
	}
	rest := s[len(m[0]):]
	switch scheme := strings.ToLower(m[1]); scheme {
	case "file":
		return parseFileURL(s, rest)
	case "https", "http":
		return parseWeb(scheme, s)
	case "oci":
		return parseOCI(rest)
	case "ssh", "git+ssh", "git+https", "git+http", "git+file", "git":
		return parseGit(s)
	default:
		return Location{}, fmt.Errorf("unknown scheme %q (known are file, https, oci, ssh and git repositories as kustomize writes them)", scheme)
	}
}

// parsePlain reads a location without a scheme: a path, or git in scp style.
func parsePlain(s string) (Location, error) {
	if !driveExpr.MatchString(s) {
		if scpExpr.MatchString(s) {
			return parseGit(s)
		}
		if scpLongExpr.MatchString(s) && !strings.HasPrefix(s, ".") {
			return Location{}, errors.New("neither a path nor git in the form user@host:path (write ./ in front of a path)")
		}
		// kustomize reads this host without a scheme; a folder of the name
		// is written with ./ in front.
		if host, _, ok := strings.Cut(s, "/"); ok && strings.EqualFold(host, "github.com") && looksLikeGit(s) {
			return parseGit("https://" + s)
		}
	}
	return fileLocation(s)
}

func fileLocation(p string) (Location, error) {
	if driveExpr.MatchString(p) {
		p = strings.ReplaceAll(p, `\`, "/")
	}
	if p = path.Clean(p); p == "/" {
		return Location{}, errors.New("the root folder, not a file")
	}
	return Location{Scheme: "file", Ref: p}, nil
}

func parseFileURL(s, rest string) (Location, error) {
	if strings.Contains(rest, "//") || hasGitSegment(rest) || strings.Contains(rest, "?") {
		return parseGit(s)
	}
	p, ok := strings.CutPrefix(rest, "localhost/")
	if ok {
		rest = "/" + p
	}
	if !strings.HasPrefix(rest, "/") {
		return Location{}, errors.New("a file URL has three slashes and an absolute path (or write the path without file://)")
	}
	if strings.Contains(rest, "#") {
		return Location{}, errors.New("a fragment has no meaning for a file")
	}
	p, err := url.PathUnescape(rest)
	if err != nil {
		return Location{}, errors.New("not a valid URL: bad % escape")
	}
	// What was escaped has to pass the same checks as what was not.
	if err := checkText(p); err != nil {
		return Location{}, err
	}
	if driveExpr.MatchString(p[1:]) {
		p = p[1:]
	}
	return fileLocation(p)
}

// looksLikeGit applies kustomize's marks of a repository to what may also be
// the URL of one file.
func looksLikeGit(s string) bool {
	s, _, _ = strings.Cut(s, "#")
	p, query, _ := strings.Cut(s, "?")
	if i := strings.Index(p, "://"); i >= 0 {
		p = p[i+3:]
	}
	if strings.Contains(p, "//") || hasGitSegment(p) {
		return true
	}
	q, err := url.ParseQuery(query)
	return err == nil && q.Has("ref")
}

// hasGitSegment reports whether a segment of p ends in .git, or is the _git
// of Azure DevOps.
func hasGitSegment(p string) bool {
	p, _, _ = strings.Cut(p, "?")
	for seg := range strings.SplitSeq(p, "/") {
		if (len(seg) > len(".git") && strings.HasSuffix(seg, ".git")) || seg == "_git" {
			return true
		}
	}
	return false
}

// parseURL parses a URL and normalises its scheme and host.
func parseURL(s string) (*url.URL, error) {
	if strings.ContainsAny(s, " \\\"<>^`{|}") {
		return nil, errors.New("not a valid URL: spaces, quotes, backslashes and brackets are written with % escapes")
	}
	u, err := url.Parse(s)
	if err != nil {
		// The text of url.Error repeats the URL with its credentials.
		if ue, ok := errors.AsType[*url.Error](err); ok {
			err = ue.Err
		}
		if strings.Contains(s, "@") {
			return nil, errors.New("not a valid URL")
		}
		return nil, fmt.Errorf("not a valid URL: %w", err)
	}
	if u.Host == "" || u.Opaque != "" || u.Hostname() == "" {
		return nil, errors.New("no host")
	}
	u.Host = strings.ToLower(u.Host)
	if p := u.Port(); p == "" {
		u.Host = strings.TrimSuffix(u.Host, ":")
	} else if (u.Scheme == "https" && p == "443") || (u.Scheme == "http" && p == "80") || (u.Scheme == "ssh" && p == "22") {
		u.Host = strings.TrimSuffix(u.Host, ":"+p)
	}
	if !hostExpr.MatchString(u.Host) {
		return nil, errors.New("not a valid host")
	}
	return u, nil
}

// hostExpr is a host with an optional port, in lower case.
var hostExpr = lazyregexp.New(`^([a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?\.?|\[[0-9a-f:.]+\])(:[0-9]{1,5})?$`)

func parseWeb(scheme, s string) (Location, error) {
	if looksLikeGit(s) {
		return parseGit(s)
	}
	u, err := parseURL(s)
	if err != nil {
		return Location{}, err
	}
	if u.User != nil {
		// KC-029: what is read over https is public.
		return Location{}, errors.New("credentials in a URL are not accepted: documents over https are read anonymously")
	}
	seg := strings.Split(strings.TrimPrefix(u.Path, "/"), "/")
	if u.Host == "github.com" && len(seg) > 4 && seg[2] == "blob" {
		return Location{}, fmt.Errorf("a page about the file, not the file; write https://github.com/%s/%s//%s?ref=%s or https://raw.githubusercontent.com/%s/%s/%s/%s",
			seg[0], seg[1], strings.Join(seg[4:], "/"), seg[3], seg[0], seg[1], seg[3], strings.Join(seg[4:], "/"))
	}
	var d digest.Digest
	if u.Fragment != "" {
		if d, err = parseDigest(u.Fragment); err != nil {
			return Location{}, fmt.Errorf("the fragment of a URL is the digest of the content, such as #sha256:…: %w", err)
		}
	}
	u.Fragment, u.RawFragment, u.ForceQuery = "", "", false
	u.Scheme = scheme
	if u.Path == "" {
		u.Path = "/"
	}
	u = u.JoinPath() // removes dot segments
	ref := u.String()
	if looksLikeGit(ref) {
		return Location{}, errors.New("dot segments in the path")
	}
	return Location{Scheme: scheme, Ref: ref, Digest: d}, nil
}

func parseDigest(s string) (digest.Digest, error) {
	d := digest.Digest(s)
	if err := d.Validate(); err != nil {
		return "", fmt.Errorf("%q is not a digest: %w", redact(s), err)
	}
	return d, nil
}

var (
	repositoryExpr = lazyregexp.New(`^[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*(/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)*$`)
	tagExpr        = lazyregexp.New(`^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$`)
)

// parseOCI reads host/repository[:tag][@digest][#path] (KC-097).
func parseOCI(s string) (Location, error) {
	l := Location{Scheme: "oci"}
	s, fragment, hasFragment := strings.Cut(s, "#")
	if hasFragment {
		if !fs.ValidPath(fragment) || fragment == "." {
			return Location{}, fmt.Errorf("%q is not a path inside an artifact", fragment)
		}
		l.Path = fragment
	}
	name, dig, hasDigest := strings.Cut(s, "@")
	if hasDigest {
		d, err := parseDigest(dig)
		if err != nil {
			if strings.ContainsAny(dig, "/") {
				return Location{}, errors.New("credentials in a reference are not accepted; use krmcat login")
			}
			return Location{}, err
		}
		l.Digest = d
	}
	tag := ""
	if i := strings.LastIndexByte(name, ':'); i > strings.LastIndexByte(name, '/') {
		name, tag = name[:i], name[i+1:]
		if !tagExpr.MatchString(tag) {
			return Location{}, fmt.Errorf("%q is not a tag", tag)
		}
	}
	host, repo, ok := strings.Cut(name, "/")
	host = strings.ToLower(host)
	if !ok || repo == "" || !hostExpr.MatchString(host) {
		return Location{}, errors.New("write oci://host/repository:tag or oci://host/repository@sha256:…")
	}
	if len(repo) > 255 || !repositoryExpr.MatchString(repo) {
		return Location{}, fmt.Errorf("%q is not a repository name (lower case letters, digits and single separators)", repo)
	}
	if tag == "" && !hasDigest {
		tag = "latest"
	}
	l.Ref = host + "/" + repo
	if tag != "" {
		l.Ref += ":" + tag
	}
	return l, nil
}

// String is the location in the form that [ParseLocation] reads.
func (l Location) String() string {
	switch l.Scheme {
	case "oci":
		s := "oci://" + l.Ref
		if l.Digest != "" {
			s += "@" + l.Digest.String()
		}
		if l.Path != "" {
			s += "#" + l.Path
		}
		return s
	case "http", "https":
		if l.Digest != "" {
			return l.Ref + "#" + l.Digest.String()
		}
		return l.Ref
	case "file":
		// A name that reads as something else, such as github.com/a/b.git.
		if got, err := parseLocation(l.Ref); err != nil || got.Scheme != "file" || got.Ref != l.Ref || strings.HasPrefix(l.Ref, "-") {
			return "./" + l.Ref
		}
		return l.Ref
	}
	return l.Ref
}

// IsLocal reports whether l is a path on this machine. A git repository on
// this machine is not.
func (l Location) IsLocal() bool { return l.Scheme == "file" }

// IsZero reports whether l is no place at all, as for a document that was
// read from standard input.
func (l Location) IsZero() bool { return l == Location{} }

// Pinned reports whether l names one content for ever: by digest, or by the
// commit of a git repository.
func (l Location) Pinned() bool {
	if l.Scheme == "git" {
		g, err := l.Git()
		return err == nil && commitExpr.MatchString(g.Ref)
	}
	return l.Digest != ""
}

// Resolve reads ref as it stands in the document at l: a location of its own,
// or a relative path, which is taken against the folder of the document. For
// a document at the zero Location, paths are as they stand.
//
// A document that is not a local file cannot refer to local files, a path in
// a git repository cannot leave the repository, and a path in a document from
// an OCI registry is an error, as only the document was published.
func (l Location) Resolve(ref string) (Location, error) {
	if err := checkText(ref); err != nil {
		return Location{}, locationError(ref, err)
	}
	got, err := parseLocation(ref)
	if err != nil {
		return Location{}, locationError(ref, err)
	}
	if got.Scheme == "git" && !l.IsZero() && l.Scheme != "file" {
		if g, err := got.Git(); err != nil || strings.HasPrefix(g.Repo, "file:") {
			return Location{}, locationError(ref, fmt.Errorf("a local repository, but the document is not a local file (%s)", l))
		}
	}
	if got.Scheme != "file" || l.IsZero() {
		return got, nil
	}
	relative := !strings.HasPrefix(got.Ref, "/") && !driveExpr.MatchString(got.Ref)
	if l.Scheme == "file" {
		if relative {
			got.Ref = path.Join(path.Dir(l.Ref), got.Ref)
		}
		return got, nil
	}
	if !relative {
		return Location{}, locationError(ref, fmt.Errorf("a path on this machine, but the document is not a local file (%s)", l))
	}
	switch l.Scheme {
	case "https", "http":
		base, err := url.Parse(l.Ref)
		if err != nil {
			return Location{}, locationError(ref, errors.New("the document's own location is not a URL"))
		}
		base.RawQuery = ""
		base = base.JoinPath("..", escapePath(got.Ref))
		return ParseLocation(base.String())
	case "git":
		g, err := l.Git()
		if err != nil {
			return Location{}, err
		}
		g.Path = path.Join(path.Dir(g.Path), got.Ref)
		if !fs.ValidPath(g.Path) || g.Path == "." {
			return Location{}, locationError(ref, errors.New("outside the repository of the document"))
		}
		return ParseLocation(g.String())
	case "oci":
		return Location{}, locationError(ref, fmt.Errorf("a relative path in a document from a registry (%s); krmcat publish replaces such paths by references", l))
	}
	return Location{}, locationError(ref, fmt.Errorf("a relative path, but the document has no known location (%s)", l))
}

// escapePath escapes a relative path for a URL.
func escapePath(p string) string {
	segs := strings.Split(p, "/")
	for i, s := range segs {
		segs[i] = url.PathEscape(s)
	}
	return strings.Join(segs, "/")
}

// IsLocalPath reports whether a URI as it stands in a document is a path on
// the author's machine, which publishing has to replace.
func IsLocalPath(uri string) bool {
	l, err := ParseLocation(uri)
	return err == nil && l.Scheme == "file"
}

// IsLocalImage reports whether an image as it stands in a document is the
// path of an OCI image layout on the author's machine. Such a path starts
// with ./ or ../, as anything else may be an image's name.
func IsLocalImage(image string) bool {
	return strings.HasPrefix(image, "./") || strings.HasPrefix(image, "../")
}
