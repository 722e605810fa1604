package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/krmcat/krmcat/registry"
	"github.com/krmcat/krmcat/registry/regbucket"
	"github.com/krmcat/krmcat/registry/regdir"
	"github.com/krmcat/krmcat/registry/regproxy"
	"github.com/krmcat/krmcat/registry/regstore"
)

// storageFlags say where a server keeps its content, and how it looks after
// it.
type storageFlags struct {
	Remote      remoteFlags
	Storage     string
	PullThrough string
	GCInterval  time.Duration
	GCGrace     time.Duration
	Quota       int64
	KeepAll     bool
}

func (f *storageFlags) add(fs *pflag.FlagSet) {
	addStorage(fs, &f.Storage)
	fs.StringVar(&f.PullThrough, "pull-through", "", "`HOST[/PREFIX]` of a registry to read from: what is asked for is fetched, verified and kept in the data folder; nothing can be pushed")
	fs.DurationVar(&f.GCInterval, "gc-interval", 24*time.Hour, "how `often` what nothing refers to is removed from the data folder or the bucket, beside pushes; 0 is never")
	fs.DurationVar(&f.GCGrace, "gc-grace", 24*time.Hour, "`time` that something has to be unused before it is removed; longer than any push takes")
	fs.Int64Var(&f.Quota, "repository-quota", 0, "`bytes` that a repository may hold; 0 is unlimited")
	fs.BoolVar(&f.KeepAll, "deny-deletes", false, "refuse every deletion; releases cannot be deleted anyway")
	f.Remote.add(fs)
}

// addStorage adds the flag that says where a server keeps its content.
func addStorage(fs *pflag.FlagSet, storage *string) {
	fs.StringVar(storage, "storage", "", "where to keep what is published, if not in the data folder: a `bucket`, s3://BUCKET/PREFIX?endpoint=URL&region=NAME, with credentials from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or a file, or another registry, oci://HOST[/PREFIX], with those of krmcat login (default: $KRMCAT_STORAGE)")
}

// open opens the storage that the flags or $KRMCAT_STORAGE name, or the
// registry in the data folder.
func (f *storageFlags) open(ctx context.Context, e *env, dir string, readOnly bool, log *slog.Logger) (regstore.Driver, error) {
	storage := f.Storage
	if storage == "" {
		storage = e.Getenv("KRMCAT_STORAGE")
	}
	switch {
	case f.PullThrough != "" && storage != "":
		return nil, usagef("--pull-through and --storage exclude each other")
	case f.PullThrough != "":
		up, err := f.upstream(e, f.PullThrough)
		if err != nil {
			return nil, err
		}
		local, err := openStore(filepath.Join(dir, "registry"), log)
		if err != nil {
			return nil, err
		}
		return regproxy.NewCache(up, local, &regproxy.CacheOptions{Log: log}), nil
	case strings.HasPrefix(storage, "oci://"):
		if f.Quota > 0 {
			return nil, usagef("--repository-quota is for a folder or a bucket; what %s holds, its own settings bound", storage)
		}
		up, err := f.upstream(e, strings.TrimPrefix(storage, "oci://"))
		if err != nil {
			return nil, err
		}
		// Only unfinished uploads are kept here.
		spool, err := openStore(filepath.Join(dir, "uploads"), log)
		if err != nil {
			return nil, err
		}
		return regproxy.NewBackend(up, spool), nil
	case storage != "":
		return openBucket(ctx, e, storage, readOnly, false, log)
	}
	return openStore(filepath.Join(dir, "registry"), log)
}

// deletable is what may be deleted besides what is protected anyway; nil is
// everything.
func (f *storageFlags) deletable() func(repository, reference string) bool {
	if !f.KeepAll {
		return nil
	}
	return func(string, string) bool { return false }
}

// upstream is another registry, or the part of it below a prefix.
func (f *storageFlags) upstream(e *env, where string) (*regproxy.Upstream, error) {
	host, prefix, _ := strings.Cut(where, "/")
	// A made-up repository, as a reference has one.
	ref, err := registry.ParseReference(path.Join(host, prefix, "x"))
	if err != nil || ref.Tag != "" || ref.Digest != "" {
		return nil, usagef("%q: write HOST or HOST/PREFIX of a registry", where)
	}
	client, err := f.Remote.client(e)
	if err != nil {
		return nil, err
	}
	return regproxy.NewUpstream(client, host, prefix), nil
}

// collectGarbage removes what nothing refers to from a folder or a bucket now
// and then, until ctx is done. Of the servers that share a bucket, one does it
// for all. Other registries look after themselves.
func (f *storageFlags) collectGarbage(ctx context.Context, store regstore.Driver, readOnly bool, log *slog.Logger) {
	collect := f.collector(store)
	if collect == nil || readOnly || f.GCInterval <= 0 {
		return
	}
	ticker := time.NewTicker(f.GCInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		switch err := collect(ctx); {
		case ctx.Err() != nil:
			return
		case errors.Is(err, regbucket.ErrCollecting), errors.Is(err, regbucket.ErrNotDue):
			log.DebugContext(ctx, "no garbage collection here", "reason", err)
		case err != nil:
			log.ErrorContext(ctx, "collecting garbage", "error", err)
		}
	}
}

// collector collects garbage once, and logs what it did; nil is for storage
// that is not ours to clean.
func (f *storageFlags) collector(store regstore.Driver) func(context.Context) error {
	switch s := store.(type) {
	case *regdir.Store:
		return func(ctx context.Context) error {
			_, err := s.GC(ctx, &regdir.GCOptions{Grace: f.GCGrace})
			return err
		}
	case *regbucket.Store:
		// A little less than the interval, so that two servers with the same
		// one take turns and none waits for two.
		interval := f.GCInterval - f.GCInterval/10
		return func(ctx context.Context) error {
			_, err := s.GC(ctx, &regbucket.GCOptions{Grace: f.GCGrace, Settle: -1, Interval: interval})
			return err
		}
	}
	return nil
}

// isBucket reports whether an argument names a bucket and not a folder.
func isBucket(s string) bool { return strings.HasPrefix(s, "s3:") }

func openBucket(ctx context.Context, e *env, storage string, readOnly, mustExist bool, log *slog.Logger) (*regbucket.Store, error) {
	opts, err := regbucket.ParseLocation(storage)
	if err != nil {
		return nil, usageError{err}
	}
	opts.Log, opts.ReadOnly, opts.MustExist = log, readOnly, mustExist
	if opts.Endpoint == "" {
		opts.Endpoint = e.Getenv("AWS_ENDPOINT_URL_S3")
	}
	if opts.Region == "" {
		opts.Region = e.Getenv("AWS_REGION")
	}
	if !opts.Credentials.Instance {
		opts.Credentials = bucketCredentials(e)
	}
	if opts.Credentials == (regbucket.Credentials{}) {
		return nil, codeError{withHint(fmt.Errorf("opening bucket %s: no credentials", opts.Bucket),
			"set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_SHARED_CREDENTIALS_FILE, or add credentials=instance on a machine that has a role"), exitAuth}
	}
	store, err := regbucket.Open(ctx, opts)
	switch {
	case err == nil:
		return store, nil
	case errors.Is(err, regbucket.ErrNotRegistry):
		return nil, codeError{withHint(err, "choose another prefix: s3://BUCKET/PREFIX"), exitConflict}
	case errors.Is(err, regbucket.ErrNotConditional):
		return nil, codeError{withHint(err, "use a storage that does, such as Amazon S3, MinIO or Ceph, or a data folder on a disk"), exitError}
	case errors.Is(err, regstore.ErrUnavailable):
		return nil, codeError{withHint(err, "check the endpoint, the credentials and what they allow"), exitUnavailable}
	case errors.Is(err, fs.ErrNotExist):
		return nil, codeError{withHint(err, "create the bucket, or add create=true"), exitNotFound}
	}
	return nil, codeError{err, exitError}
}

// bucketCredentials reads the variables that other programs read as well.
func bucketCredentials(e *env) regbucket.Credentials {
	if key := e.Getenv("AWS_ACCESS_KEY_ID"); key != "" {
		return regbucket.Credentials{AccessKey: key, SecretKey: e.Getenv("AWS_SECRET_ACCESS_KEY"), SessionToken: e.Getenv("AWS_SESSION_TOKEN")}
	}
	return regbucket.Credentials{File: e.Getenv("AWS_SHARED_CREDENTIALS_FILE"), Profile: e.Getenv("AWS_PROFILE")}
}

func runAdminFsckBucket(ctx context.Context, e *env, opts *fsckOptions) error {
	store, err := openBucket(ctx, e, opts.Dir, !opts.Repair, true, nil)
	if err != nil {
		return err
	}
	defer func() { _ = store.Close() }() // everything is in the bucket already
	problems := []regbucket.Problem{}
	left := 0
	for p, err := range store.Fsck(ctx, &regbucket.FsckOptions{Quick: opts.Quick, Repair: opts.Repair}) {
		if err != nil {
			return fmt.Errorf("checking the bucket: %w", err)
		}
		problems = append(problems, p)
		if p.Repaired == "" {
			left++
		}
		if opts.Output == "text" {
			printf(e.Out, "%s: %s", p.Key, p.What)
			if p.Repaired != "" {
				printf(e.Out, " (%s)", p.Repaired)
			}
			printf(e.Out, "\n")
		}
	}
	if opts.Output == "json" {
		if err := printJSON(e.Out, struct {
			Problems []regbucket.Problem `json:"problems"`
		}{problems}); err != nil {
			return err
		}
	} else {
		printf(e.Err, "%d problems, %d mended.\n", len(problems), len(problems)-left)
	}
	if left > 0 {
		return errSilent(exitIntegrity)
	}
	return nil
}

func runAdminGCBucket(ctx context.Context, e *env, opts *gcOptions) error {
	store, err := openBucket(ctx, e, opts.Dir, opts.DryRun, true, nil)
	if err != nil {
		return err
	}
	defer func() { _ = store.Close() }() // everything is in the bucket already
	r, err := store.GC(ctx, &regbucket.GCOptions{Grace: opts.Grace, Untagged: opts.Untagged, DryRun: opts.DryRun})
	switch {
	case errors.Is(err, regbucket.ErrCollecting):
		return codeError{withHint(err, "there is nothing to do but to wait"), exitConflict}
	case err != nil:
		return fmt.Errorf("collecting garbage: %w", err)
	}
	if opts.Output == "json" {
		return printJSON(e.Out, r)
	}
	verb := "Removed"
	if opts.DryRun {
		verb = "Would remove"
	}
	printf(e.Err, "%s %d manifests and %d blobs with %d bytes.\n", verb, r.Manifests, r.Blobs, r.Bytes)
	return nil
}
