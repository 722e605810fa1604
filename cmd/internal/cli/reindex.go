package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
)

type reindexOptions struct {
	Storage  string
	Data     string
	Database string
}

func newAdminReindexCmd(e *env) *cobra.Command {
	opts := &reindexOptions{}
	cmd := &cobra.Command{
		Use:   "reindex",
		Short: "Build the index of a server again from what its registry holds",
		Long: `Read every definition and catalog of a registry again and write the index anew. It
comes to the same catalogs, byte for byte. The server has to be stopped.

This is hardly ever needed: a server that finds its index missing, broken or of
another version builds it by itself, and compares it with the registry after it
was killed.`,
		Example: `  # The index of krmcat serve
  krmcat admin reindex

  # Of a server with its data elsewhere
  krmcat admin reindex --data /var/lib/krmcat`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return runAdminReindex(cmd.Context(), e, opts) },
	}
	f := cmd.Flags()
	f.StringVar(&opts.Data, "data", "", "`folder` of the server (default: as of krmcat serve)")
	f.StringVar(&opts.Database, "database", "", "`URL` of the PostgreSQL database of the index (default: $KRMCAT_DATABASE, or the file in the folder)")
	addStorage(cmd.Flags(), &opts.Storage)
	return cmd
}

func runAdminReindex(ctx context.Context, e *env, opts *reindexOptions) (err error) {
	log, err := serveLog(e, &serveOptions{LogFormat: "text", LogLevel: "warn"})
	if err != nil {
		return err
	}
	dir, err := dataFolder(e, opts.Data)
	if err != nil {
		return err
	}
	// Nothing is made: a mistyped folder is no empty registry.
	bucket := opts.Storage != "" || e.Getenv("KRMCAT_STORAGE") != ""
	if _, err := os.Stat(filepath.Join(dir, "registry", "layout")); !bucket && errors.Is(err, fs.ErrNotExist) {
		return codeError{withHint(fmt.Errorf("%s: krmcat serve has no data there", dir), "name the folder with --data"), exitNotFound}
	}
	store, err := (&storageFlags{Storage: opts.Storage}).open(ctx, e, dir, true, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	x, err := openIndex(ctx, store, dir, databaseFlag(e, opts.Database), log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, x.Close()) }()
	if err := x.Reindex(ctx, true); err != nil {
		return fmt.Errorf("building the index: %w", err)
	}
	st, err := x.Stats(ctx)
	if err != nil {
		return err
	}
	printf(e.Out, "%d functions in %d releases, %d catalogs\n", st.Functions, st.Releases, st.Catalogs)
	if st.Problems > 0 {
		printf(e.Err, "krmcat: warning: %d documents cannot be read and are not shown\n", st.Problems)
	}
	return nil
}
