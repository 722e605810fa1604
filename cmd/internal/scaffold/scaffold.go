// Package scaffold makes the folder of a new function: a definition, a program
// that does something, its README and an example with which it is verified.
package scaffold

import (
	"bytes"
	"embed"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"text/template"

	"k8s.io/apimachinery/pkg/util/validation"
)

// The files common to all functions, and those of each runtime. An ending
// .tmpl keeps the go command from taking them for its own.
//
//go:embed common starlark go
var templates embed.FS

// Runtimes are the ways to write a function that a folder can be made for: a
// Starlark script, or a program in Go.
var Runtimes = []string{"starlark", "go"}

// Function says what the new function is.
type Function struct {
	Name    string // such as set-owner
	Group   string // of the functionConfig's apiVersion, such as example.com; also the publisher
	Kind    string // the functionConfig's kind, such as SetOwner
	Runtime string // one of [Runtimes]
}

// Platform is what a program is built for.
type Platform struct{ OS, Arch string }

// Platforms are what a new program is built for.
func (Function) Platforms() []Platform {
	return []Platform{{"linux", "amd64"}, {"linux", "arm64"}, {"darwin", "amd64"}, {"darwin", "arm64"}}
}

// File is a file of the new folder. The name is slash-separated.
type File struct {
	Name string
	Data []byte
}

// Files makes the files of a function, ordered by name. What is wrong with the
// function is a [NameError].
func Files(f Function) ([]File, error) {
	if err := f.check(); err != nil {
		return nil, err
	}
	var files []File
	for _, root := range []string{"common", f.Runtime} {
		err := fs.WalkDir(templates, root, func(name string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			data, err := render(name, f)
			files = append(files, File{Name: fileName(strings.TrimPrefix(name, root+"/")), Data: data})
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	slices.SortFunc(files, func(a, b File) int { return strings.Compare(a.Name, b.Name) })
	return files, nil
}

func render(name string, f Function) ([]byte, error) {
	text, err := templates.ReadFile(name)
	if err != nil {
		return nil, err
	}
	t, err := template.New(name).Option("missingkey=error").Parse(string(text))
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	if err := t.Execute(&b, f); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// fileName is the name that the file of a template gets.
func fileName(name string) string {
	name = strings.TrimSuffix(name, ".tmpl")
	if path.Base(name) == "gitignore" {
		return path.Join(path.Dir(name), ".gitignore")
	}
	return name
}

// NameError says that something cannot be called so.
type NameError struct {
	What, Name string
	Want       string
}

func (e *NameError) Error() string { return fmt.Sprintf("%s %q: want %s", e.What, e.Name, e.Want) }

func (f Function) check() error {
	switch {
	case len(validation.IsDNS1035Label(f.Name)) > 0:
		return &NameError{"function", f.Name, "lower-case letters, digits and hyphens, with a letter first, such as set-owner"}
	case len(validation.IsDNS1123Subdomain(f.Group)) > 0 || !strings.Contains(f.Group, "."):
		return &NameError{"group", f.Group, "a domain name, such as example.com"}
	case f.Kind == "" || f.Kind[0] < 'A' || f.Kind[0] > 'Z' || strings.Contains(f.Kind, "-") || len(validation.IsDNS1035Label(strings.ToLower(f.Kind))) > 0:
		return &NameError{"kind", f.Kind, "letters and digits, with a capital first, such as SetOwner"}
	case !slices.Contains(Runtimes, f.Runtime):
		return &NameError{"runtime", f.Runtime, strings.Join(Runtimes, " or ")}
	}
	return nil
}

// KindOf is the kind that goes with a function's name: set-owner is SetOwner.
func KindOf(name string) string {
	var kind strings.Builder
	for word := range strings.SplitSeq(name, "-") {
		if word != "" {
			kind.WriteString(strings.ToUpper(word[:1]) + word[1:])
		}
	}
	return kind.String()
}
