package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/krmcat/krmcat/registry/regbucket"
	"github.com/krmcat/krmcat/registry/regstore"
)

// addStorage adds the flag that says where a server keeps its content.
func addStorage(cmd *cobra.Command, storage *string) {
	cmd.Flags().StringVar(storage, "storage", "", "`bucket` for what is published, s3://BUCKET/PREFIX?endpoint=URL&region=NAME, with credentials from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or a file (default: $KRMCAT_STORAGE, or the data folder)")
}

// openStorage opens the bucket that the flag or $KRMCAT_STORAGE names, or the
// registry in the data folder.
func openStorage(ctx context.Context, e *env, storage, dir string, readOnly bool, log *slog.Logger) (regstore.Driver, error) {
	if storage == "" {
		storage = e.Getenv("KRMCAT_STORAGE")
	}
	if storage == "" {
		return openStore(filepath.Join(dir, "registry"), log)
	}
	return openBucket(ctx, e, storage, readOnly, false, log)
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
	if err != nil {
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
