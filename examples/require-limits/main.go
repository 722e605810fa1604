// Command require-limits is a KRM function that finds containers without
// resource requests and limits, and with images that are not pinned. It
// changes nothing.
package main

import (
	"os"

	"github.com/krmcat/krmcat/examples/internal/fn"
)

func main() {
	os.Exit(fn.Run("require-limits", os.Stdin, os.Stdout, os.Stderr, requireLimits))
}

// requireLimits does the function's work.
func requireLimits(list *fn.List) error {
	cfg, wrong, err := readConfig(list.Config)
	if err != nil {
		return err
	}
	if len(wrong) > 0 {
		list.Results = wrong
		return nil
	}
	list.Results = nil
	for _, o := range list.Items {
		list.Results = append(list.Results, cfg.validate(o)...)
	}
	return nil
}
