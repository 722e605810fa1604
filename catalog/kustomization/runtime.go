package kustomization

import (
	"errors"
	"fmt"
	"strings"

	"github.com/krmcat/krmcat/internal/yamlpos"
)

// The annotations that name a function's runtime (KC-006).
const (
	Annotation       = "config.kubernetes.io/function"
	annotationLegacy = "config.k8s.io/function"
)

// Marker starts an annotation that [Pin] has written. What a person wrote is
// left alone.
const Marker = "# resolved by krmcat from "

// Runtime is a runtime that a functionConfig gives itself.
type Runtime struct {
	From     string // runtime, annotation or configFn
	Image    string
	Exec     string // path of an executable
	Starlark string // path or URL of a script
	Network  bool   // asked for; a catalog would have to declare it
	// Managed says that [Pin] has written it, so that the catalogs are to be
	// asked again.
	Managed bool
	// Catalog is where a managed runtime was resolved from.
	Catalog string
}

// String names what is run.
func (r *Runtime) String() string {
	switch {
	case r.Image != "":
		return r.Image
	case r.Exec != "":
		return r.Exec
	}
	return r.Starlark
}

// InlineRuntime reads the runtime that a functionConfig gives itself: the
// field runtime, the annotation, or the older metadata.configFn, whichever
// comes first. It is nil if there is none.
func InlineRuntime(config map[string]any) (*Runtime, error) {
	if v, ok := config["runtime"].(object); ok {
		// A field of this name may be the function's own; it is a runtime
		// only if it looks like one.
		if rt, err := parseRuntime(v); err == nil {
			rt.From = "runtime"
			return rt, nil
		}
	}
	meta, _ := config["metadata"].(object)
	annotations, _ := meta["annotations"].(object)
	for _, name := range []string{Annotation, annotationLegacy} {
		text := str(annotations[name])
		if text == "" {
			continue
		}
		rt, err := parseAnnotation(text)
		if err != nil {
			return nil, fmt.Errorf("annotation %s: %w", name, err)
		}
		return rt, nil
	}
	if fn, ok := meta["configFn"].(object); ok {
		rt, err := parseRuntime(fn)
		if err != nil {
			return nil, fmt.Errorf("metadata.configFn: %w", err)
		}
		rt.From = "configFn"
		return rt, nil
	}
	return nil, nil
}

func parseAnnotation(text string) (*Runtime, error) {
	file, problems := yamlpos.Parse(Annotation, []byte(text), yamlpos.Limits{Bytes: 64 << 10, Documents: 1})
	if len(problems) > 0 {
		return nil, fmt.Errorf("not YAML: %s", problems[0].Message)
	}
	if len(file.Documents) != 1 {
		return nil, errors.New("empty")
	}
	m, ok := file.Documents[0].Value.(object)
	if !ok {
		return nil, errors.New("not a mapping")
	}
	rt, err := parseRuntime(m)
	if err != nil {
		return nil, err
	}
	rt.From = "annotation"
	if line, _, _ := strings.Cut(text, "\n"); strings.HasPrefix(line, Marker) {
		rt.Managed, rt.Catalog = true, strings.TrimPrefix(line, Marker)
	}
	return rt, nil
}

// parseRuntime reads container.image, exec.path and starlark.path (KC-092),
// with the other names that these have had.
func parseRuntime(m object) (*Runtime, error) {
	rt := &Runtime{}
	found := 0
	if c, ok := m["container"].(object); ok {
		rt.Image = str(c["image"])
		rt.Network = c["network"] == true || c["requireNetwork"] == true
		found++
	}
	if x, ok := m["exec"].(object); ok {
		rt.Exec = str(x["path"])
		found++
	}
	switch s := m["starlark"].(type) {
	case object:
		for _, k := range []string{"path", "url", "uri"} {
			if rt.Starlark == "" {
				rt.Starlark = str(s[k])
			}
		}
		found++
	case string:
		rt.Starlark = s
		found++
	}
	switch {
	case found == 0:
		return nil, errors.New("none of container, exec and starlark")
	case found > 1:
		return nil, errors.New("more than one of container, exec and starlark")
	case rt.String() == "":
		return nil, errors.New("no image or path")
	}
	return rt, nil
}
