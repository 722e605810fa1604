package cli

import (
	"fmt"
	"io"
	"os"

	"github.com/krmcat/krmcat/catalog"
)

// readInput reads a document from a file, or from standard input for "-".
func readInput(stdin io.Reader, name string) ([]byte, error) {
	r := stdin
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		r = f
	}
	data, err := io.ReadAll(io.LimitReader(r, catalog.MaxDocument+1))
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", name, err)
	}
	if len(data) > catalog.MaxDocument {
		return nil, fmt.Errorf("%s: more than %d bytes", name, catalog.MaxDocument)
	}
	return data, nil
}
