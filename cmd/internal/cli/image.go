package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/krmcat/krmcat/registry"
)

type imageOptions struct {
	Output      string
	Name        string
	Executables []string // OS/ARCH=FILE
	Labels      map[string]string
}

func newImageCmd(e *env) *cobra.Command {
	opts := &imageOptions{}
	cmd := &cobra.Command{
		Use:   "image --output DIR --platform OS/ARCH=FILE...",
		Short: "Make a container image of static executables, without a container engine",
		Long: `Write an OCI image layout with one image for each platform. An image holds the
executable as its entrypoint, runs as nobody (65534) and needs no writable root,
as the functions specification asks. The same executables give the same digests.

Name the folder in a definition to publish the image with it:

  runtime:
    container:
      image: ./image`,
		Example: `  # An image of a Go function for two platforms
  CGO_ENABLED=0 GOARCH=amd64 go build -o dist/set-labels-linux-amd64 .
  CGO_ENABLED=0 GOARCH=arm64 go build -o dist/set-labels-linux-arm64 .
  krmcat image --output dist/image --name set-labels \
    --platform linux/amd64=dist/set-labels-linux-amd64 \
    --platform linux/arm64=dist/set-labels-linux-arm64`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return runImage(cmd.Context(), e, opts) },
	}
	f := cmd.Flags()
	f.StringVar(&opts.Output, "output", "", "new `folder` to write the image layout to")
	f.StringVar(&opts.Name, "name", "", "file `name` of the executable in the image (default: that of the first FILE)")
	f.StringArrayVar(&opts.Executables, "platform", nil, "`OS/ARCH=FILE`: an executable and its platform; repeatable")
	f.StringToStringVar(&opts.Labels, "label", nil, "`KEY=VALUE`: a label of the image; repeatable")
	return cmd
}

func runImage(_ context.Context, e *env, opts *imageOptions) error {
	if opts.Output == "" || len(opts.Executables) == 0 {
		return usagef("image needs --output DIR and at least one --platform OS/ARCH=FILE")
	}
	var list []registry.ImageExecutable
	for _, x := range opts.Executables {
		platform, file, ok := strings.Cut(x, "=")
		if !ok || platform == "" || file == "" {
			return usagef("--platform %s: write OS/ARCH=FILE, such as linux/amd64=dist/fn", x)
		}
		list = append(list, registry.ImageExecutable{Platform: platform, Path: file})
	}
	name := opts.Name
	if name == "" {
		name = filepath.Base(list[0].Path)
	}
	created, err := sourceDate(e.Getenv)
	if err != nil {
		return err
	}
	err = registry.WriteImage(opts.Output, name, list, &registry.ImageOptions{Created: created, Labels: opts.Labels})
	if errors.Is(err, fs.ErrExist) {
		return codeError{withHint(fmt.Errorf("writing the image: %w", err), "remove the folder, or choose another with --output"), exitConflict}
	}
	if err != nil {
		return fmt.Errorf("writing the image: %w", err)
	}
	printf(e.Out, "%s\n", opts.Output)
	return nil
}
