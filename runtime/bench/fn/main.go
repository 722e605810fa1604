// Command fn is a function to measure with: it copies, or sets an annotation
// the way functions written with kyaml do.
//
//	fn copy|annotate
package main

import (
	"fmt"
	"io"
	"os"

	"sigs.k8s.io/kustomize/kyaml/fn/framework"
	"sigs.k8s.io/kustomize/kyaml/kio"
	"sigs.k8s.io/kustomize/kyaml/yaml"
)

func main() {
	// An orchestrator gives no arguments: the name of the program decides.
	mode := "copy"
	if len(os.Args) > 0 && len(os.Args[0]) >= 8 && os.Args[0][len(os.Args[0])-8:] == "annotate" {
		mode = "annotate"
	}
	var err error
	if mode == "copy" {
		_, err = io.Copy(os.Stdout, os.Stdin)
	} else {
		err = framework.Execute(framework.ResourceListProcessorFunc(func(rl *framework.ResourceList) error {
			for _, it := range rl.Items {
				if err := it.PipeE(yaml.SetAnnotation("example.com/owner", "team-a")); err != nil {
					return err
				}
			}
			return nil
		}), &kio.ByteReadWriter{})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
