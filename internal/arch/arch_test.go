// Package arch checks which package may import which.
package arch

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/krmcat/krmcat/"

// allowed says, for each package of the module, which others it may import.
// Imports point one way: cmd, then web, runtime and registry, then catalog,
// then schema. When this test fails, think first about the direction, then
// about the table.
var allowed = map[string][]string{
	"cmd/internal/cli":           {"*"},
	"cmd/internal/display":       {"schema"},
	"cmd/internal/scaffold":      {},
	"cmd/internal/verify":        {"*"},
	"cmd/krmcat":                 {"cmd/internal/cli", "internal/startup"},
	"catalog":                    {"internal/lazyregexp", "internal/yamlpos", "schema"},
	"catalog/index":              {"catalog", "internal/lazyregexp", "schema"},
	"catalog/kustomization":      {"catalog", "internal/yamlpos", "schema"},
	"catalog/source":             {"catalog"},
	"internal/arch":              {},
	"internal/durable":           {},
	"internal/lazyregexp":        {},
	"internal/startup":           {},
	"internal/tooltest":          {},
	"internal/version":           {},
	"internal/yamlpos":           {},
	"registry":                   {"catalog", "schema"},
	"registry/admission":         {"catalog", "registry", "schema"},
	"registry/regbucket":         {"registry", "registry/regstore"},
	"registry/regdir":            {"internal/durable", "registry", "registry/regstore"},
	"registry/regmem":            {"registry", "registry/regstore"},
	"registry/regproxy":          {"registry", "registry/regstore"},
	"registry/regserver":         {"registry", "registry/regstore"},
	"registry/regstore":          {"internal/lazyregexp", "registry"},
	"registry/regtest":           {"registry", "registry/regmem", "registry/regserver", "registry/regstore"},
	"runtime":                    {"catalog", "runtime/resourcelist"},
	"runtime/conformance":        {"runtime", "runtime/resourcelist"},
	"runtime/containerfn":        {"catalog", "runtime"},
	"runtime/execfn":             {"catalog", "runtime"},
	"runtime/fntest":             {"runtime"},
	"runtime/fntest/testfn":      {"runtime/fntest"},
	"runtime/internal/process":   {"runtime"},
	"runtime/merge":              {"runtime/resourcelist"},
	"runtime/pkgdir":             {"runtime/resourcelist"},
	"runtime/resourcelist":       {},
	"runtime/starlarkfn":         {"catalog", "runtime", "runtime/resourcelist"},
	"schema":                     {"internal/lazyregexp", "internal/yamlpos"},
	"schema/internal/fastyaml":   {},
	"schema/internal/structural": {},
	"schema/openapi":             {"internal/lazyregexp", "internal/yamlpos", "schema"},
	"signing":                    {"internal/yamlpos"},
	"signing/e2e":                {},
	"signing/signtest":           {"signing"},
	"signing/trustimport":        {"internal/yamlpos", "signing"},
	"web":                        {"catalog", "catalog/index", "internal/lazyregexp", "schema", "web/api", "web/ui"},
	"web/api":                    {},
	"web/ui":                     {"web/api"},
}

// banned lists outside packages that are kept away from parts of the module.
var banned = map[string][]string{
	"schema":           {"net/http", "oras.land/", "os/exec"},
	"internal/yamlpos": {"net/http", "os"},
	"catalog":          {"net/http", "oras.land/", "os", "os/exec"},
	"web":              {"oras.land/", "os/exec", "cuelabs.dev/"},
	"catalog/index":    {"oras.land/", "os/exec", "cuelabs.dev/"},
	"runtime":          {"oras.land/", "net/http"},
}

func TestImports(t *testing.T) {
	for pkg, imports := range list(t, "{{.ImportPath}} {{join .Imports \" \"}}", module+"...") {
		if strings.HasPrefix(pkg+"/", "examples/") || pkg == "deploy" || strings.Contains(pkg, "/bench") {
			continue
		}
		want, ok := allowed[pkg]
		if !ok {
			t.Errorf("%s is not in the table; say what it may import", pkg)
			continue
		}
		for _, imp := range imports {
			dep, ours := strings.CutPrefix(imp, module)
			if room, _, internal := strings.Cut(dep, "/internal/"); internal && strings.HasPrefix(pkg, room) {
				continue // a room's own; the compiler keeps others out
			}
			if ours && !slices.Contains(want, dep) && !slices.Contains(want, "*") {
				t.Errorf("%s imports %s", pkg, dep)
			}
			for _, b := range banned[pkg] {
				if imp == b || strings.HasSuffix(b, "/") && strings.HasPrefix(imp, b) {
					t.Errorf("%s imports %s", pkg, imp)
				}
			}
		}
	}
}

// heavy are packages that drag in so much that they must never be linked.
var heavy = []string{
	"k8s.io/client-go",
	"github.com/sigstore/cosign/v2/pkg/signature",
	"github.com/sigstore/cosign/v2/cmd",
	"github.com/sigstore/sigstore/pkg/signature/kms/",
}

func TestNothingHeavyIsLinked(t *testing.T) {
	for dep := range list(t, "{{.ImportPath}}", "-deps", module+"cmd/krmcat") {
		for _, h := range heavy {
			if strings.HasPrefix(dep, h) {
				t.Errorf("krmcat links %s", dep)
			}
		}
	}
}

// list runs go list and returns its lines by their first word, without the
// module's own prefix.
func list(t *testing.T, format string, args ...string) map[string][]string {
	t.Helper()
	out, err := exec.Command("go", append([]string{"list", "-f", format}, args...)...).Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	m := map[string][]string{}
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(line)
		m[strings.TrimPrefix(f[0], module)] = f[1:]
	}
	return m
}
