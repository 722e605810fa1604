package registry

import (
	"io/fs"
	"maps"
	"testing"
)

// What comes out of an examples archive has clean names, and packing it again
// gives the same files.
func FuzzReadExamples(f *testing.F) {
	packed, err := packExamples(map[string][]byte{"basic/README.md": []byte("# Basic\n"), "basic/input.yaml": nil})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(packed)
	f.Add([]byte("\x1f\x8b"))
	f.Fuzz(func(t *testing.T, data []byte) {
		files, err := readExamples(data)
		if err != nil {
			return
		}
		for name := range files {
			if !fs.ValidPath(name) || name == "." {
				t.Errorf("name %q", name)
			}
		}
		again, err := packExamples(files)
		if err != nil {
			t.Fatal(err)
		}
		got, err := readExamples(again)
		if err != nil {
			t.Fatal(err)
		}
		if !maps.EqualFunc(files, got, func(a, b []byte) bool { return string(a) == string(b) }) {
			t.Errorf("%q became %q", files, got)
		}
	})
}

// The same files give the same archive, whatever order they came in.
func TestPackExamplesIsReproducible(t *testing.T) {
	files := map[string][]byte{}
	for _, n := range []string{"b/1", "a/2", "a/1", "c"} {
		files[n] = []byte(n)
	}
	first, err := packExamples(files)
	if err != nil {
		t.Fatal(err)
	}
	for range 10 {
		again, err := packExamples(maps.Clone(files))
		if err != nil {
			t.Fatal(err)
		}
		if string(again) != string(first) {
			t.Fatal("two archives of the same files differ")
		}
	}
}
