package source

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"os/exec"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/krmcat/krmcat/catalog"
)

// Git fetches single files from git repositories with the git program, so
// that the user's credential helpers, ssh configuration and URL rewriting
// apply (KC-031, KC-032). Nothing is ever checked out: no hooks, no submodules,
// no symbolic links, no filters. The zero value is ready to use. It is safe
// for concurrent use.
//
// The location of the content names the commit.
type Git struct {
	Command string // the git program; empty means git on the PATH
	// AllowHTTP lets it speak to other machines without TLS.
	AllowHTTP bool
	MaxBytes  int64         // zero means DefaultMaxBytes
	Timeout   time.Duration // for locations without their own; zero means catalog.DefaultGitTimeout
	Log       *slog.Logger  // nil is silent
}

// Fetch implements [catalog.Source].
func (s *Git) Fetch(ctx context.Context, loc catalog.Location) (*catalog.Content, error) {
	ref, err := loc.Git()
	if err != nil {
		return nil, err
	}
	program, err := exec.LookPath(cmp.Or(s.Command, "git"))
	if err != nil {
		return nil, fmt.Errorf("%s: git is not installed, and is needed to read from a git repository: %w", loc, errors.ErrUnsupported)
	}
	if err := s.allowed(ref); err != nil {
		return nil, fmt.Errorf("%s: %w", loc, err)
	}
	timeout := cmp.Or(ref.Timeout, s.Timeout, catalog.DefaultGitTimeout)
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("no answer within %v (?timeout= waits longer): %w", timeout, ErrUnavailable))
	defer cancel()
	dir, err := os.MkdirTemp("", "krmcat-git-")
	if err != nil {
		return nil, fmt.Errorf("%s: making a temporary folder: %w", loc, err)
	}
	defer os.RemoveAll(dir)
	g := &gitRepo{program: program, dir: dir, ref: ref, allowHTTP: s.AllowHTTP, log: s.Log}
	c, err := g.file(ctx, cmp.Or(s.MaxBytes, DefaultMaxBytes))
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return nil, fmt.Errorf("%s: %w", loc, err)
	}
	return c, nil
}

func (s *Git) allowed(ref catalog.GitReference) error {
	if !strings.HasPrefix(ref.Repo, "http://") || s.AllowHTTP {
		return nil
	}
	if u, err := url.Parse(ref.Repo); err == nil && isLoopback(u.Hostname()) {
		return nil
	}
	return errors.New("http is not encrypted, and used only for this machine; use https or ssh, or allow http")
}

// gitRepo is a bare repository in a temporary folder.
type gitRepo struct {
	program   string
	dir       string
	ref       catalog.GitReference
	allowHTTP bool
	log       *slog.Logger
}

// config is what git is told on each call, over whatever the user's
// configuration says.
func (g *gitRepo) config() []string {
	set := []string{
		"core.hooksPath=/dev/null",
		"core.fsmonitor=false",
		"gc.auto=0",
		"maintenance.auto=false",
		"fetch.recurseSubmodules=false",
		"protocol.version=2",
		// Nothing but what the location says, wherever a server or a
		// rewritten URL leads.
		"protocol.allow=never",
		"protocol.https.allow=always",
		"protocol.ssh.allow=always",
	}
	switch {
	case strings.HasPrefix(g.ref.Repo, "file:"):
		set = append(set, "protocol.file.allow=always")
	case strings.HasPrefix(g.ref.Repo, "http:"):
		set = append(set, "protocol.http.allow=always")
	}
	var args []string
	for _, c := range set {
		args = append(args, "-c", c)
	}
	return args
}

// environment is the user's without what would lead git to another
// repository or make it ask questions.
func environment() []string {
	env := slices.DeleteFunc(os.Environ(), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		switch name {
		case "GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES",
			"GIT_COMMON_DIR", "GIT_NAMESPACE", "GIT_PREFIX", "GIT_CEILING_DIRECTORIES", "GIT_TEMPLATE_DIR", "GIT_QUARANTINE_PATH",
			"GIT_EXTERNAL_DIFF", "GIT_CONFIG", "GIT_SHALLOW_FILE", "GIT_GRAFT_FILE", "GIT_ALLOW_PROTOCOL", "GIT_PROTOCOL_FROM_USER":
			return true
		}
		return strings.HasPrefix(name, "GIT_TRACE") || name == "LC_ALL" || name == "LANGUAGE"
	})
	return append(env, "GIT_TERMINAL_PROMPT=0", "GIT_LITERAL_PATHSPECS=1", "LC_ALL=C")
}

// git runs a command and returns its output, at most limit bytes.
func (g *gitRepo) git(ctx context.Context, limit int64, args ...string) ([]byte, error) {
	args = append(append(g.config(), "-C", g.dir), args...)
	cmd := exec.CommandContext(ctx, g.program, args...)
	cmd.Env = environment()
	out, errs := &limitedBuffer{limit: limit}, &limitedBuffer{limit: 16 << 10, drop: true}
	cmd.Stdout, cmd.Stderr = out, errs
	detach(cmd)
	cmd.WaitDelay = 5 * time.Second
	err := cmd.Run()
	if g.log != nil {
		g.log.DebugContext(ctx, "ran git", "args", args, "error", err)
	}
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case out.full:
		return nil, fmt.Errorf("more than %s: %w", size(limit), ErrTooLarge)
	case err != nil:
		return nil, gitError(err, string(errs.data))
	}
	return out.data, nil
}

// gitError makes one line of what git said. Its text is the only thing that
// tells its failures apart.
func gitError(err error, stderr string) error {
	var lines []string
	for line := range strings.Lines(stderr) {
		line = strings.TrimSpace(line)
		if l, ok := strings.CutPrefix(line, "fatal: "); ok {
			lines = append(lines, l)
		} else if l, ok := strings.CutPrefix(line, "remote: "); ok {
			lines = append(lines, l)
		} else if strings.Contains(line, "rror: ") || strings.Contains(line, "ssh: ") || strings.Contains(line, "Permission denied") {
			lines = append(lines, line)
		}
	}
	text := sentence(strings.Join(lines, "; "), 400)
	if text == "" {
		text = cmp.Or(sentence(stderr, 400), err.Error())
	}
	lower := strings.ToLower(stderr)
	has := func(parts ...string) bool {
		return slices.ContainsFunc(parts, func(p string) bool { return strings.Contains(lower, p) })
	}
	kind := errors.New("git failed")
	switch {
	case has("find remote ref", "not our ref", "does not appear to be a git repository", "repository not found", "not found", "does not exist"):
		kind = fs.ErrNotExist
	case has("could not read username", "could not read password", "authentication failed", "permission denied", "access denied", "returned error: 401", "returned error: 403", "terminal prompts disabled"):
		kind = ErrDenied
	case has("could not resolve host", "connection refused", "timed out", "timeout", "could not connect", "connection reset", "unreachable", "returned error: 5", "unable to access", "hung up unexpectedly"):
		kind = ErrUnavailable
	}
	return fmt.Errorf("git: %s: %w", text, kind)
}

// file fetches one file of the repository.
func (g *gitRepo) file(ctx context.Context, limit int64) (*catalog.Content, error) {
	const line = 64 << 10
	if _, err := g.git(ctx, line, "init", "--quiet", "--bare", "--template="); err != nil {
		return nil, err
	}
	// A named remote, so that git knows where to get the file itself from,
	// which the fetch leaves out.
	if _, err := g.git(ctx, line, "config", "remote.origin.url", g.ref.Repo); err != nil {
		return nil, err
	}
	commit, err := g.fetch(ctx)
	if err != nil {
		return nil, err
	}
	out, err := g.git(ctx, line, "ls-tree", "-z", "--full-tree", commit, "--", g.ref.Path)
	if err != nil {
		return nil, err
	}
	object, err := g.blob(string(out))
	if err != nil {
		return nil, err
	}
	out, err = g.git(ctx, line, "cat-file", "-s", object)
	if err != nil {
		return nil, err
	}
	if n, err := strconv.ParseInt(strings.TrimSpace(string(out)), 10, 64); err != nil || n > limit {
		return nil, fmt.Errorf("more than %s: %w", size(limit), ErrTooLarge)
	}
	data, err := g.git(ctx, limit, "cat-file", "blob", object)
	if err != nil {
		return nil, err
	}
	c, err := spool(bytes.NewReader(data), limit, "")
	if err != nil {
		return nil, err
	}
	c.Name = path.Base(g.ref.Path)
	pinned := g.ref
	pinned.Ref, pinned.Timeout = commit, 0
	c.Location = catalog.Location{Scheme: "git", Ref: pinned.String()}
	return c, nil
}

// fetch gets the commit, without history and without files.
func (g *gitRepo) fetch(ctx context.Context) (commit string, err error) {
	const line = 64 << 10
	ref := cmp.Or(g.ref.Ref, "HEAD")
	_, err = g.git(ctx, line, "fetch", "--quiet", "--depth=1", "--filter=blob:none", "--no-tags", "--end-of-options", "origin", ref)
	if err == nil {
		out, err := g.git(ctx, line, "rev-parse", "--verify", "--quiet", "FETCH_HEAD^{commit}")
		return strings.TrimSpace(string(out)), err
	}
	if !isCommit(ref) {
		return "", err
	}
	// Some servers give only branches and tags, so that a commit has to be
	// looked for in them.
	if _, all := g.git(ctx, line, "fetch", "--quiet", "--filter=blob:none", "--end-of-options", "origin", "+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*"); all != nil {
		return "", err
	}
	out, err := g.git(ctx, line, "rev-parse", "--verify", "--quiet", ref+"^{commit}")
	if err != nil {
		return "", fmt.Errorf("commit %s is not in any branch or tag of the repository: %w", ref, fs.ErrNotExist)
	}
	return strings.TrimSpace(string(out)), nil
}

func isCommit(ref string) bool {
	return (len(ref) == 40 || len(ref) == 64) && strings.Trim(ref, "0123456789abcdef") == ""
}

// blob reads what ls-tree says about the path.
func (g *gitRepo) blob(out string) (object string, err error) {
	entry, _, _ := strings.Cut(out, "\x00")
	meta, _, ok := strings.Cut(entry, "\t")
	f := strings.Fields(meta)
	if !ok || len(f) != 3 {
		return "", fmt.Errorf("no file %s in the repository: %w", g.ref.Path, fs.ErrNotExist)
	}
	switch f[0] {
	case "100644", "100755":
		return f[2], nil
	case "120000":
		return "", fmt.Errorf("%s is a symbolic link; name the file that it leads to", g.ref.Path)
	case "160000":
		return "", fmt.Errorf("%s is a submodule; name the repository that it leads to", g.ref.Path)
	}
	return "", fmt.Errorf("%s is a folder; name a file in it, such as %s", g.ref.Path, path.Join(g.ref.Path, catalog.DefaultDocument))
}

// limitedBuffer keeps what a program writes up to a limit. Beyond that it
// fails, which ends the program, or drops the rest.
type limitedBuffer struct {
	data  []byte // not a bytes.Buffer, which has ways around Write
	limit int64
	drop  bool
	full  bool
}

func (b *limitedBuffer) Write(p []byte) (int, error) {
	n := len(p)
	if room := b.limit - int64(len(b.data)); int64(n) > room {
		if !b.drop {
			b.full = true
			return 0, ErrTooLarge
		}
		p = p[:room]
	}
	b.data = append(b.data, p...)
	return n, nil
}
