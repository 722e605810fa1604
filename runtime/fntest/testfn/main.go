// Command testfn is the test function as a program of its own, for images and
// archives.
package main

import (
	"os"

	"github.com/krmcat/krmcat/runtime/fntest"
)

func main() { os.Exit(fntest.Function(os.Stdin, os.Stdout, os.Stderr)) }
