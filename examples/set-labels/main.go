// Command set-labels is a KRM function that sets labels on resources, on the
// pod templates of workloads and in the selectors that belong to them.
package main

import (
	"os"

	"github.com/krmcat/krmcat/examples/internal/fn"
)

func main() {
	os.Exit(fn.Run("set-labels", os.Stdin, os.Stdout, os.Stderr, setLabels))
}

// setLabels does the function's work: nothing at all if the functionConfig is
// wrong.
func setLabels(list *fn.List) error {
	cfg, wrong, err := readConfig(list.Config)
	if err != nil {
		return err
	}
	if len(wrong) > 0 {
		list.Results = wrong
		return nil
	}
	if err := list.Expand(); err != nil {
		return err
	}
	for _, o := range list.Items {
		list.Results = append(list.Results, cfg.apply(o)...)
	}
	return nil
}
