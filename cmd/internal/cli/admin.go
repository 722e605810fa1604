package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/krmcat/krmcat/registry/regdir"
)

// adminCommands lists the constructors of the commands below admin.
var adminCommands = []func(*env) *cobra.Command{
	newAdminFsckCmd,
	newAdminGCCmd,
	newAdminReindexCmd,
}

func newAdminCmd(e *env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "admin",
		Short: "Look after the data of a registry",
		Args:  args(cobra.NoArgs),
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	for _, c := range adminCommands {
		cmd.AddCommand(c(e))
	}
	return cmd
}

type fsckOptions struct {
	Dir    string
	Quick  bool
	Repair bool
	Output string
}

func newAdminFsckCmd(e *env) *cobra.Command {
	opts := &fsckOptions{}
	cmd := &cobra.Command{
		Use:   "fsck FOLDER",
		Short: "Check everything that a registry folder holds",
		Long: `Read every blob and manifest of a registry folder and compare it with its digest,
and check that tags, manifests, blobs and referrers belong together. The registry
that uses the folder has to be stopped.

With --repair, what can be mended is mended, and what is damaged is moved to the
folder "damaged" inside, so that pushing it again brings it back. The exit code is 7
if there is a problem that was not mended.`,
		Example: `  # Check a folder
  krmcat admin fsck /var/lib/krmcat/registry

  # Check without reading blobs, and mend what can be mended
  krmcat admin fsck --quick --repair /var/lib/krmcat/registry

  # Check a bucket
  krmcat admin fsck 's3://functions?endpoint=https://minio.example.com'`,
		Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error {
			opts.Dir = a[0]
			return runAdminFsck(cmd.Context(), e, opts)
		},
	}
	cmd.Flags().BoolVar(&opts.Quick, "quick", false, "leave out reading the content of blobs")
	cmd.Flags().BoolVar(&opts.Repair, "repair", false, "mend what can be mended")
	addOutput(cmd, &opts.Output, "text", "json")
	return cmd
}

func runAdminFsck(ctx context.Context, e *env, opts *fsckOptions) error {
	if isBucket(opts.Dir) {
		return runAdminFsckBucket(ctx, e, opts)
	}
	store, err := openRegistryFolder(opts.Dir)
	if err != nil {
		return err
	}
	defer func() { _ = store.Close() }() // everything is on the disk already
	problems := []regdir.Problem{}
	left := 0
	for p, err := range store.Fsck(ctx, &regdir.FsckOptions{Quick: opts.Quick, Repair: opts.Repair}) {
		if err != nil {
			return fmt.Errorf("checking %s: %w", opts.Dir, err)
		}
		problems = append(problems, p)
		if p.Repaired == "" {
			left++
		}
		if opts.Output == "text" {
			printf(e.Out, "%s: %s", p.Path, p.What)
			if p.Repaired != "" {
				printf(e.Out, " (%s)", p.Repaired)
			}
			printf(e.Out, "\n")
		}
	}
	if opts.Output == "json" {
		if err := printJSON(e.Out, struct {
			Problems []regdir.Problem `json:"problems"`
		}{problems}); err != nil {
			return err
		}
	} else {
		printf(e.Err, "%s: %d problems, %d mended.\n", opts.Dir, len(problems), len(problems)-left)
	}
	if left > 0 {
		return errSilent(exitIntegrity)
	}
	return nil
}

type gcOptions struct {
	Dir      string
	Grace    time.Duration
	Untagged bool
	DryRun   bool
	Output   string
}

func newAdminGCCmd(e *env) *cobra.Command {
	opts := &gcOptions{}
	cmd := &cobra.Command{
		Use:   "gc FOLDER",
		Short: "Remove what nothing in a registry folder refers to",
		Long: `Remove the blobs that no manifest refers to, such as those of pushes that were cut
short, if they have rested for longer than the grace period. The registry that uses
the folder has to be stopped.

Manifests stay, as someone may know them by their digest. With --untagged, those go
too that no tag leads to: not as part of an index, and not as a signature or another
referrer of something that a tag leads to.`,
		Example: `  # See what would be removed
  krmcat admin gc --dry-run /var/lib/krmcat/registry

  # Remove it
  krmcat admin gc /var/lib/krmcat/registry

  # In a bucket, beside the servers that use it
  krmcat admin gc 's3://functions?endpoint=https://minio.example.com'`,
		Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error {
			opts.Dir = a[0]
			if opts.Grace <= 0 {
				return usagef("--grace %s: not a positive time", opts.Grace)
			}
			return runAdminGC(cmd.Context(), e, opts)
		},
	}
	cmd.Flags().DurationVar(&opts.Grace, "grace", 24*time.Hour, "`time` that something has to be unused; longer than any push takes")
	cmd.Flags().BoolVar(&opts.Untagged, "untagged", false, "remove manifests that no tag leads to")
	cmd.Flags().BoolVar(&opts.DryRun, "dry-run", false, "remove nothing, and say what would be")
	addOutput(cmd, &opts.Output, "text", "json")
	return cmd
}

func runAdminGC(ctx context.Context, e *env, opts *gcOptions) error {
	if isBucket(opts.Dir) {
		return runAdminGCBucket(ctx, e, opts)
	}
	store, err := openRegistryFolder(opts.Dir)
	if err != nil {
		return err
	}
	defer func() { _ = store.Close() }() // everything is on the disk already
	res, err := store.GC(ctx, &regdir.GCOptions{Grace: opts.Grace, Untagged: opts.Untagged, DryRun: opts.DryRun})
	if err != nil {
		return fmt.Errorf("collecting garbage in %s: %w", opts.Dir, err)
	}
	if opts.Output == "json" {
		return printJSON(e.Out, res)
	}
	verb := "Removed"
	if opts.DryRun {
		verb = "Would remove"
	}
	printf(e.Err, "%s %d manifests and %d blobs of repositories, and %d files with %d bytes.\n", verb, res.Manifests, res.Links, res.Blobs, res.Bytes)
	return nil
}

// openRegistryFolder opens a folder that is a registry already.
func openRegistryFolder(dir string) (*regdir.Store, error) {
	store, err := regdir.Open(dir, &regdir.Options{MustExist: true})
	switch {
	case errors.Is(err, regdir.ErrLocked):
		return nil, codeError{withHint(err, "stop the registry that uses the folder first"), exitConflict}
	case err != nil:
		return nil, err
	}
	return store, nil
}
