package catalog

import (
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"path"
	"strings"
	"time"

	"github.com/krmcat/krmcat/internal/lazyregexp"
)

// DefaultGitTimeout bounds fetching from a git repository unless the location
// gives another timeout. It is kustomize's.
const DefaultGitTimeout = 27 * time.Second

// GitReference is a file in a git repository, in the form that kustomize
// reads: repository//path?ref=v1&timeout=30s. It is comparable.
type GitReference struct {
	// Repo is what git is given: an https, http, ssh or file URL, or
	// user@host:path.
	Repo string
	Path string // of the file in the repository
	// Ref is a branch, a tag or a commit; empty for the repository's default
	// branch.
	Ref     string
	Timeout time.Duration // zero means DefaultGitTimeout
}

// String is the reference in the form that [ParseLocation] reads.
func (g GitReference) String() string {
	q := url.Values{}
	if g.Ref != "" {
		q.Set("ref", g.Ref)
	}
	if g.Timeout != 0 {
		q.Set("timeout", g.Timeout.String())
	}
	p := g.Path
	if !g.scp() {
		p = (&url.URL{Path: "/" + p}).EscapedPath()[1:]
	}
	s := g.Repo + "//" + p
	if len(q) > 0 {
		s += "?" + strings.ReplaceAll(q.Encode(), "%2F", "/")
	}
	return s
}

func (g GitReference) scp() bool { return !strings.Contains(g.Repo, "://") }

// Git returns the parts of a git location.
func (l Location) Git() (GitReference, error) {
	if l.Scheme != "git" {
		return GitReference{}, fmt.Errorf("%s: not a git location: %w", l, errors.ErrUnsupported)
	}
	return parseGitReference(l.Ref)
}

func parseGit(s string) (Location, error) {
	g, err := parseGitReference(s)
	if err != nil {
		return Location{}, err
	}
	ref := g.String()
	// What is written has to read as the same thing.
	if again, err := parseGitReference(ref); err != nil || again != g || !looksLikeGit(ref) {
		return Location{}, errors.New("not a git repository and a path: write https://host/org/repo//path/catalog.yaml?ref=v1")
	}
	return Location{Scheme: "git", Ref: ref}, nil
}

var (
	// refExpr is git check-ref-format for one reference, without the
	// characters that need quoting anywhere; revision expressions such as
	// HEAD~1 and main:path are not references.
	refExpr    = lazyregexp.New(`^[A-Za-z0-9_][A-Za-z0-9_./+@#=,%-]*$`)
	commitExpr = lazyregexp.New(`^([0-9a-f]{40}|[0-9a-f]{64})$`)
	userExpr   = lazyregexp.New(`^[A-Za-z0-9_][A-Za-z0-9_.-]*$`)
)

func checkGitRef(ref string) error {
	if ref == "" {
		return nil
	}
	bad := !refExpr.MatchString(ref) || strings.Contains(ref, "..") || strings.Contains(ref, "//") ||
		strings.Contains(ref, "/.") || strings.Contains(ref, "@{") || strings.HasSuffix(ref, "/") ||
		strings.HasSuffix(ref, ".") || strings.HasSuffix(ref, ".lock") || strings.Contains(ref, ".lock/") || len(ref) > 250
	if bad {
		return fmt.Errorf("%q is not the name of a branch, tag or commit", ref)
	}
	return nil
}

// parseGitReference reads kustomize's grammar, with two differences: the path
// is that of a file, and submodules are never fetched.
func parseGitReference(s string) (GitReference, error) {
	var g GitReference
	if strings.Contains(s, "#") {
		return g, errors.New("a fragment has no meaning for a git repository (the branch, tag or commit is ?ref=)")
	}
	name, query, _ := strings.Cut(s, "?")
	if err := g.readQuery(query); err != nil {
		return GitReference{}, err
	}
	var err error
	if m := scpExpr.FindStringSubmatch(name); m != nil && !strings.Contains(name, "://") {
		err = g.readSCP(m[1], m[2], m[3])
	} else {
		err = g.readURL(name)
	}
	if err != nil {
		return GitReference{}, err
	}
	g.Path = strings.Trim(g.Path, "/")
	if g.Path == "" {
		g.Path = DefaultDocument
	}
	g.Path = path.Clean(g.Path)
	if !fs.ValidPath(g.Path) || g.Path == "." {
		return GitReference{}, errors.New("the path leaves the repository")
	}
	if err := checkText(g.Path); err != nil {
		return GitReference{}, err
	}
	return g, nil
}

func (g *GitReference) readQuery(query string) error {
	q, err := url.ParseQuery(query)
	if err != nil {
		return errors.New("not a valid query")
	}
	for k, v := range q {
		if len(v) != 1 {
			return fmt.Errorf("%s is given %d times", k, len(v))
		}
		switch k {
		case "ref", "version": // kustomize's older name
			if k == "version" && q.Has("ref") {
				return errors.New("both ref and version are given")
			}
			if v[0] == "" {
				continue
			}
			if err := checkGitRef(v[0]); err != nil {
				return err
			}
			g.Ref = v[0]
		case "timeout":
			d, err := time.ParseDuration(v[0])
			if err != nil || d < time.Second || d > time.Hour {
				return errors.New("timeout is a duration from 1s to 1h, such as 30s")
			}
			g.Timeout = d
		case "submodules":
			if v[0] != "false" && v[0] != "0" {
				return errors.New("submodules are not fetched; refer to the other repository itself")
			}
		default:
			return fmt.Errorf("unknown parameter %q (known are ref, timeout and submodules=false)", k)
		}
	}
	return nil
}

func (g *GitReference) readSCP(user, host, p string) error {
	repo, file, err := splitRepo(p, 2)
	if err != nil {
		return err
	}
	if strings.ContainsAny(repo, " \\\"'<>^`{|}") {
		return errors.New("the repository's name has characters that need quoting")
	}
	if repo = path.Clean(repo); !fs.ValidPath(repo) || repo == "." {
		return errors.New("not the path of a repository")
	}
	g.Repo = user + "@" + strings.ToLower(host) + ":" + repo
	g.Path = file
	return nil
}

func (g *GitReference) readURL(name string) error {
	scheme, rest, _ := strings.Cut(name, "://")
	scheme = strings.TrimPrefix(strings.ToLower(scheme), "git+")
	switch scheme {
	case "file":
		rest = strings.TrimPrefix(rest, "localhost")
		if !strings.HasPrefix(rest, "/") {
			return errors.New("a file URL has three slashes and an absolute path")
		}
		repo, file, err := splitRepo(rest[1:], 0)
		if err != nil {
			return err
		}
		if repo, err = url.PathUnescape(repo); err != nil {
			return errors.New("bad % escape")
		}
		if err := checkText("/" + repo); err != nil {
			return err
		}
		g.Repo = (&url.URL{Scheme: "file", Path: path.Clean("/" + repo)}).String()
		g.Path, err = unescape(file)
		return err
	case "https", "http", "ssh":
	case "git":
		return errors.New("the git protocol is neither encrypted nor authenticated; use https or ssh")
	default:
		return fmt.Errorf("git over %q is not known (https, ssh, file and user@host:path are)", scheme)
	}
	u, err := parseURL(scheme + "://" + rest)
	if err != nil {
		return err
	}
	if u.User != nil {
		_, hasPassword := u.User.Password()
		// Over https the user's name may be a token.
		if scheme != "ssh" || hasPassword || !userExpr.MatchString(u.User.Username()) {
			return errors.New("credentials in a URL are not accepted; git's own credential helpers are used")
		}
	}
	short := 0
	if u.Host == "github.com" {
		short = 2
	}
	repo, file, err := splitRepo(strings.TrimLeft(u.EscapedPath(), "/"), short)
	if err != nil {
		return err
	}
	if u.Path, err = url.PathUnescape(repo); err != nil {
		return errors.New("bad % escape")
	}
	u.Path = path.Clean("/" + u.Path)
	u.RawPath = ""
	if err := checkText(u.Path); err != nil {
		return err
	}
	if u.Path == "/" || strings.Contains(u.Path, "//") {
		return errors.New("no repository in the URL")
	}
	g.Repo = u.String()
	g.Path, err = unescape(file)
	return err
}

func unescape(p string) (string, error) {
	p, err := url.PathUnescape(p)
	if err != nil {
		return "", errors.New("bad % escape")
	}
	return p, nil
}

// splitRepo cuts a path into the repository and the file in it: at //, after
// the segment that ends in .git, after the segment that follows _git, or
// after the given number of segments, as kustomize does.
func splitRepo(p string, segments int) (repo, file string, err error) {
	if repo, file, ok := strings.Cut(p, "//"); ok {
		if strings.Contains(file, "//") {
			return "", "", errors.New("more than one // after the host")
		}
		return repo, file, nil
	}
	segs := strings.Split(p, "/")
	for i, s := range segs {
		switch {
		case len(s) > len(".git") && strings.HasSuffix(s, ".git"):
			return strings.Join(segs[:i+1], "/"), strings.Join(segs[i+1:], "/"), nil
		case s == "_git" && i+1 < len(segs):
			return strings.Join(segs[:i+2], "/"), strings.Join(segs[i+2:], "/"), nil
		}
	}
	if segments > 0 && len(segs) > segments {
		return strings.Join(segs[:segments], "/"), strings.Join(segs[segments:], "/"), nil
	}
	return p, "", nil
}
