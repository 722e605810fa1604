package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/krmcat/krmcat/catalog/index"
	"github.com/krmcat/krmcat/internal/version"
	"github.com/krmcat/krmcat/registry"
	"github.com/krmcat/krmcat/registry/regbucket"
	"github.com/krmcat/krmcat/registry/regdir"
	"github.com/krmcat/krmcat/registry/regserver"
	"github.com/krmcat/krmcat/web"
)

type serveOptions struct {
	Data          string
	Database      string
	Listen        string
	AddrFile      string
	MetricsListen string
	ExternalURL   string
	Name          string
	ReadOnly      bool
	HTPasswd      string
	AnonymousPush bool
	LogFormat     string
	LogLevel      string
	Healthcheck   bool
	Admission     admissionFlags
	Storage       storageFlags
}

func newServeCmd(e *env) *cobra.Command {
	opts := &serveOptions{}
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve a registry, its catalogs and a web site",
		Long: `Serve an OCI registry at /v2/, the catalogs of what is published in it at
/catalog.yaml and /catalogs/NAME/catalog.yaml, an API at /api/v1/ and a web site,
from one folder. What is pushed shows at once, and a restart keeps everything.

Anybody may read. Who may publish:
  - on a loopback address, whoever can reach it;
  - elsewhere, the users in a file (--htpasswd), or, if you really mean that,
    everybody (--anonymous-push).

What is pushed as a KRM function or a catalog has to be a valid one, and what is
wrong with it is in the answer. Anything else is stored as in any registry, unless
--only-krm.

It stops on an interrupt after it has answered what was asked. Exit codes: 2 for
wrong flags, 8 if the address or the folder is in use, 1 if it cannot be served.`,
		Example: `  # On this machine, from ~/.local/share/krmcat
  krmcat serve

  # For tests: a free port, whose address is in addr.txt once it answers
  krmcat serve --data ./data --listen localhost:0 --addr-file addr.txt

  # For others, behind a proxy that does TLS
  htpasswd -B -c users.txt ci
  krmcat serve --listen :8080 --htpasswd users.txt --external-url https://functions.example.com

  # Is it up? (For the health check of a container)
  krmcat serve --healthcheck --listen :8080`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if opts.Healthcheck {
				return runHealthcheck(cmd.Context(), e, opts)
			}
			return runServe(cmd.Context(), e, opts)
		},
	}
	f := cmd.Flags()
	f.StringVar(&opts.Data, "data", "", "`folder` for everything that is stored (default: $XDG_DATA_HOME/krmcat or ~/.local/share/krmcat)")
	f.StringVar(&opts.Database, "database", "", "`URL` of a PostgreSQL database for the index, which several servers may share (default: $KRMCAT_DATABASE, or a file in the data folder)")
	opts.Storage.add(f)
	f.StringVar(&opts.Listen, "listen", "localhost:8080", "`address` to listen on; port 0 is any free one")
	f.StringVar(&opts.AddrFile, "addr-file", "", "`file` to write the address to once the server answers")
	f.StringVar(&opts.MetricsListen, "metrics-listen", "", "second `address`, at which Prometheus gets /metrics (default: nowhere)")
	f.StringVar(&opts.ExternalURL, "external-url", "", "`URL` at which clients reach the server, if that is not the address")
	f.StringVar(&opts.Name, "name", "krmcat", "`name` of the site")
	f.BoolVar(&opts.ReadOnly, "read-only", false, "refuse every push and deletion")
	f.StringVar(&opts.HTPasswd, "htpasswd", "", "`file` of the users who may publish, as htpasswd -B writes it")
	f.BoolVar(&opts.AnonymousPush, "anonymous-push", false, "let everybody publish who can reach the server")
	opts.Admission.add(f)
	f.StringVar(&opts.LogFormat, "log-format", "text", "`format` of the log on standard error: text or json")
	f.StringVar(&opts.LogLevel, "log-level", "info", "least `level` that is logged: debug, info, warn or error")
	f.BoolVar(&opts.Healthcheck, "healthcheck", false, "ask the server at --listen or in --addr-file whether it is ready, and exit")
	return cmd
}

// Limits of the server, of which the registry and the pages have more.
const (
	readHeaderTimeout = 5 * time.Second
	idleTimeout       = 2 * time.Minute
	maxHeaderBytes    = 32 << 10
	shutdownTimeout   = 30 * time.Second
	// indexPatience is how long the server's address is kept back until the
	// index answers. Who knows it anyway is answered at once.
	indexPatience = 500 * time.Millisecond
	// indexRefresh is how often an index is compared with content that others
	// change without telling it.
	indexRefresh = 10 * time.Minute
)

func runServe(ctx context.Context, e *env, opts *serveOptions) (err error) {
	log, err := serveLog(e, opts)
	if err != nil {
		return err
	}
	external, err := externalURL(opts.ExternalURL)
	if err != nil {
		return err
	}
	if _, _, err := net.SplitHostPort(opts.Listen); err != nil {
		return usagef("--listen %s: write HOST:PORT, such as localhost:8080 or :8080", opts.Listen)
	}
	if opts.Storage.GCGrace <= 0 {
		return usagef("--gc-grace %s: not a positive time", opts.Storage.GCGrace)
	}
	// A cache of another registry has nothing of its own.
	opts.ReadOnly = opts.ReadOnly || opts.Storage.PullThrough != ""
	authorize, err := serveAuthorize(opts)
	if err != nil {
		return err
	}
	admit, err := opts.Admission.build(e)
	if err != nil {
		return err
	}
	dir, err := dataFolder(e, opts.Data)
	if err != nil {
		return err
	}
	// Before the folder is touched: a mistyped address leaves nothing behind.
	l, err := listen(ctx, opts.Listen)
	if err != nil {
		return err
	}
	defer l.Close()
	if err := opts.Admission.listening(e, external, opts.Listen, l); err != nil {
		return err
	}
	var ml net.Listener
	if opts.MetricsListen != "" {
		if _, _, err := net.SplitHostPort(opts.MetricsListen); err != nil {
			return usagef("--metrics-listen %s: write HOST:PORT, such as localhost:9090", opts.MetricsListen)
		}
		if ml, err = listen(ctx, opts.MetricsListen); err != nil {
			return err
		}
		defer ml.Close()
	}

	store, err := opts.Storage.open(ctx, e, dir, opts.ReadOnly, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	x, err := openIndex(ctx, store, dir, databaseFlag(e, opts.Database), log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, x.Close()) }()

	// The index works until the last request is answered.
	background, stopBackground := context.WithCancel(context.WithoutCancel(ctx))
	indexed := make(chan struct{})
	go func() { x.Run(background); close(indexed) }()
	collected := make(chan struct{})
	go func() { opts.Storage.collectGarbage(background, store, opts.ReadOnly, log); close(collected) }()
	defer func() { stopBackground(); <-indexed; <-collected }()

	reg := regserver.New(store, &regserver.Options{
		Log: log, Observer: observe(x), Admission: admit, ReadOnly: opts.ReadOnly, Authorize: authorize, ImmutableTags: immutableTag,
		Limits: regserver.Limits{RepositoryBytes: opts.Storage.Quota}, Deletable: opts.Storage.deletable(),
	})
	metrics := newServerMetrics(x.Stats)
	if ml != nil {
		log.InfoContext(ctx, "serving metrics", "url", "http://"+ml.Addr().String()+"/metrics")
		go metrics.serve(background, ml, log)
	}
	var stopping atomic.Bool
	handler, err := web.New(x, &web.Options{
		Observe:  metrics.observe,
		Registry: reg, Log: log, ExternalURL: external, Name: opts.Name, Version: version.String(),
		Ready: func(context.Context) error {
			if stopping.Load() {
				return errors.New("the server is stopping")
			}
			return nil
		},
	})
	if err != nil {
		return err
	}
	return serveHTTP(ctx, l, handler, &stopping, opts, serveFacts{log: log, dir: dir, anonymous: authorize == nil && !opts.ReadOnly, external: external, indexed: x.Ready()})
}

// observe tells an index of the changes to a registry.
func observe(x *index.Index) registry.Observer {
	return registry.ObserverFunc(func(ctx context.Context, _ registry.Store, c registry.Change) (func(context.Context, error) error, error) {
		return x.Begin(ctx, index.Change(c))
	})
}

// serveFacts are what the log says of a server.
type serveFacts struct {
	log       *slog.Logger
	dir       string
	anonymous bool
	external  *url.URL
	indexed   <-chan struct{} // closed when the index answers
}

// serveHTTP serves until ctx is done, then until what was asked is answered.
func serveHTTP(ctx context.Context, l net.Listener, handler http.Handler, stopping *atomic.Bool, opts *serveOptions, facts serveFacts) error {
	srv := &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: readHeaderTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          slog.NewLogLogger(facts.log.Handler(), slog.LevelDebug),
		// An interrupt ends the server, not the requests.
		BaseContext: func(net.Listener) context.Context { return context.WithoutCancel(ctx) },
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	select {
	case <-facts.indexed:
	case <-time.After(indexPatience):
		facts.log.InfoContext(ctx, "the index is being built; catalogs and pages follow, the registry works already")
	case <-ctx.Done():
	}

	address := l.Addr().String()
	where := "http://" + address + "/"
	if facts.external != nil {
		where = facts.external.String()
	}
	facts.log.InfoContext(ctx, "serving", "url", where, "address", address, "data", facts.dir)
	if facts.anonymous {
		facts.log.WarnContext(ctx, "whoever can reach this address can publish", "address", address)
	}
	if opts.AddrFile != "" {
		if err := writeAddress(opts.AddrFile, address); err != nil {
			_ = srv.Close() // the first error counts
			return codeError{withHint(fmt.Errorf("writing the address: %w", err), "choose a file in a folder that is there and can be written"), exitError}
		}
		defer os.Remove(opts.AddrFile)
	}
	select {
	case err := <-served:
		return fmt.Errorf("serving on %s: %w", address, err)
	case <-ctx.Done():
	}
	stopping.Store(true)
	// A second interrupt ends the process at once.
	signal.Reset(os.Interrupt, syscall.SIGTERM)
	facts.log.InfoContext(ctx, "stopping")
	graceful, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
	defer cancel()
	if err := srv.Shutdown(graceful); err != nil {
		facts.log.WarnContext(ctx, "some requests were cut off", "error", err)
		return errors.Join(srv.Close(), ignoreClosed(<-served))
	}
	return ignoreClosed(<-served)
}

func ignoreClosed(err error) error {
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// immutableTag says which tags never move: releases, and dated snapshots of
// catalogs.
func immutableTag(repository, tag string) bool {
	return regserver.ReleaseTag(repository, tag) || index.SnapshotTag.MatchString(tag)
}

func serveLog(e *env, opts *serveOptions) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(opts.LogLevel)); err != nil {
		return nil, usagef("--log-level %s: not one of debug, info, warn, error", opts.LogLevel)
	}
	ho := &slog.HandlerOptions{Level: level}
	switch opts.LogFormat {
	case "text":
		return slog.New(slog.NewTextHandler(e.Err, ho)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(e.Err, ho)), nil
	}
	return nil, usagef("--log-format %s: not one of text, json", opts.LogFormat)
}

// externalURL reads the URL that clients use. It has no path, because
// registries have none.
func externalURL(s string) (*url.URL, error) {
	if s == "" {
		return nil, nil
	}
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "" || u.User != nil {
		return nil, usagef("--external-url %s: write https://HOST or https://HOST:PORT", s)
	}
	u.Path = ""
	return u, nil
}

// serveAuthorize says who may publish. It is nil if everybody may.
func serveAuthorize(opts *serveOptions) (func(*http.Request, regserver.Access) error, error) {
	switch {
	case opts.HTPasswd != "" && opts.AnonymousPush:
		return nil, usagef("--htpasswd and --anonymous-push are for different servers: give one of them")
	case opts.HTPasswd != "":
		users, err := newPasswords(opts.HTPasswd)
		if err != nil {
			return nil, withHint(fmt.Errorf("reading the users: %w", err), "make the file with: htpasswd -B -c FILE USER")
		}
		return users.authorize, nil
	case opts.ReadOnly, opts.AnonymousPush, isLoopback(opts.Listen):
		return nil, nil
	}
	return nil, usagef("--listen %s is more than this machine, and everybody could publish: add --htpasswd FILE, --read-only, or, if that is meant, --anonymous-push", opts.Listen)
}

// isLoopback reports whether an address to listen on is for this machine only.
func isLoopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	if host == "localhost" {
		return true
	}
	a, err := netip.ParseAddr(host)
	return err == nil && a.IsLoopback()
}

// dataFolder is where everything is stored.
func dataFolder(e *env, flag string) (string, error) {
	if flag != "" {
		return flag, nil
	}
	if d := e.Getenv("XDG_DATA_HOME"); filepath.IsAbs(d) {
		return filepath.Join(d, "krmcat"), nil
	}
	if home := e.Getenv("HOME"); home != "" {
		return filepath.Join(home, ".local", "share", "krmcat"), nil
	}
	return "", usagef("there is no home folder: add --data DIR")
}

func listen(ctx context.Context, address string) (net.Listener, error) {
	var c net.ListenConfig
	l, err := c.Listen(ctx, "tcp", address)
	switch {
	case err == nil:
		return l, nil
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, codeError{withHint(fmt.Errorf("listening on %s: another program does already", address), "end that program, or choose another address with --listen; port 0 is any free one"), exitConflict}
	case errors.Is(err, syscall.EACCES):
		return nil, withHint(fmt.Errorf("listening on %s: not allowed", address), "ports below 1024 are for root; choose a higher one with --listen")
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return nil, withHint(fmt.Errorf("listening on %s: this machine does not have that address", address), "choose an address of this machine with --listen, or :PORT for all of them")
	}
	return nil, fmt.Errorf("listening on %s: %w", address, err)
}

func openStore(dir string, log *slog.Logger) (*regdir.Store, error) {
	store, err := regdir.Open(dir, &regdir.Options{Log: log})
	switch {
	case err == nil:
		return store, nil
	case errors.Is(err, regdir.ErrLocked):
		return nil, codeError{withHint(err, "another krmcat serves this folder; end it, or choose another folder with --data"), exitConflict}
	case errors.Is(err, regdir.ErrNotRegistry):
		return nil, codeError{withHint(err, "choose another folder with --data"), exitConflict}
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS), errors.Is(err, syscall.ENOTDIR):
		return nil, codeError{withHint(err, "choose a folder that can be written with --data"), exitError}
	case errors.Is(err, syscall.ENOSPC):
		return nil, codeError{withHint(err, "make room on the disk"), exitError}
	}
	return nil, codeError{err, exitError}
}

// openIndex opens the index in the data folder, or in a database that several
// servers share.
func openIndex(ctx context.Context, store registry.Store, dir, database string, log *slog.Logger) (*index.Index, error) {
	var foreign time.Duration
	switch store.(type) {
	case *regdir.Store, *regbucket.Store:
	default:
		foreign = indexRefresh // others push there
	}
	if database != "" {
		if !index.IsPostgres(database) {
			return nil, usagef("--database: write postgres://USER@HOST:PORT/DATABASE")
		}
		return index.OpenPostgres(store, database, &index.Options{Log: log, Refresh: foreign})
	}
	refresh := foreign
	if _, ok := store.(*regbucket.Store); ok {
		refresh = indexRefresh // other servers have indexes of their own
	}
	return index.OpenSQLite(ctx, store, filepath.Join(dir, "index", "index.db"), &index.Options{Log: log, Refresh: refresh})
}

// databaseFlag is the database of the index: the flag, or $KRMCAT_DATABASE,
// as a URL with a password does not belong on a command line.
func databaseFlag(e *env, flag string) string {
	if flag != "" {
		return flag
	}
	return e.Getenv("KRMCAT_DATABASE")
}

// writeAddress writes the address so that nobody ever reads half of it.
func writeAddress(file, address string) error {
	tmp, err := os.CreateTemp(filepath.Dir(file), ".addr-*")
	if err != nil {
		return err
	}
	_, err = tmp.WriteString(address + "\n")
	err = errors.Join(err, tmp.Chmod(0o644), tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), file)
	}
	if err != nil {
		return errors.Join(err, os.Remove(tmp.Name()))
	}
	return nil
}

// runHealthcheck asks a server whether it is ready.
func runHealthcheck(ctx context.Context, e *env, opts *serveOptions) error {
	address := opts.Listen
	if opts.AddrFile != "" {
		data, err := os.ReadFile(opts.AddrFile)
		if err != nil {
			return fmt.Errorf("reading the address: %w", err)
		}
		address = strings.TrimSpace(string(data))
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return usagef("%s is no address; write HOST:PORT", address)
	}
	if a, err := netip.ParseAddr(host); host == "" || err == nil && a.IsUnspecified() {
		host = "localhost"
	}
	target := "http://" + net.JoinHostPort(host, port) + "/readyz"
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
	if err != nil {
		return fmt.Errorf("asking %s: %w", target, err)
	}
	// Not through a proxy: it is this machine.
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return codeError{fmt.Errorf("asking %s: %w", target, err), exitUnavailable}
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return codeError{fmt.Errorf("asking %s: %s", target, resp.Status), exitUnavailable}
	}
	printf(e.Out, "ok\n")
	return nil
}
