package cli

import (
	goruntime "runtime"

	"github.com/spf13/cobra"

	"github.com/krmcat/krmcat/internal/version"
)

func newVersionCmd(e *env) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version of krmcat",
		Args:  args(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error {
			printf(e.Out, "krmcat %s %s %s/%s\n", version.String(), goruntime.Version(), goruntime.GOOS, goruntime.GOARCH)
			return nil
		},
	}
}
