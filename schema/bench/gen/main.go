// Command gen writes function definitions that look like real ones, and a
// catalog of the same functions, for schema/bench/run.sh. The same number gives
// the same files.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"log"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
)

func main() {
	n := flag.Int("n", 10_000, "how many functions")
	dir := flag.String("dir", "", "folder to write to")
	flag.Parse()
	if *dir == "" {
		log.Fatal("gen: -dir is required")
	}
	if err := write(*dir, *n); err != nil {
		log.Fatal("gen: ", err)
	}
}

func write(dir string, n int) error {
	docs := filepath.Join(dir, "docs")
	if err := os.MkdirAll(docs, 0o755); err != nil {
		return err
	}
	r := rand.New(rand.NewPCG(2906, 2985))
	catalog := bytes.NewBufferString("apiVersion: config.kubernetes.io/v1alpha1\nkind: KRMFunctionCatalog\nmetadata:\n  name: generated\nspec:\n  krmFunctions:\n")
	lines, size := 0, 0
	for i := range n {
		f := function(r, i)
		doc := fmt.Sprintf("apiVersion: config.kubernetes.io/v1alpha1\nkind: KRMFunctionDefinition\nmetadata:\n  name: %s\nspec:\n%s", f.name, indent(f.spec, "  "))
		lines += strings.Count(doc, "\n")
		size += len(doc)
		if err := os.WriteFile(filepath.Join(docs, fmt.Sprintf("%05d-%s.yaml", i, f.name)), []byte(doc), 0o644); err != nil {
			return err
		}
		entry := indent(f.spec, "      ")
		catalog.WriteString("    - " + strings.TrimPrefix(entry, "      "))
	}
	fmt.Printf("%d definitions, %.1f lines and %.0f bytes each; the catalog has %.1f MB\n", n, float64(lines)/float64(n), float64(size)/float64(n), float64(catalog.Len())/1e6)
	return os.WriteFile(filepath.Join(dir, "catalog.yaml"), catalog.Bytes(), 0o644)
}

func indent(text, by string) string {
	return by + strings.ReplaceAll(strings.TrimSuffix(text, "\n"), "\n", "\n"+by) + "\n"
}

var (
	verbs  = []string{"set", "ensure", "generate", "validate", "replace", "upsert", "annotate", "render"}
	nouns  = []string{"labels", "images", "namespace", "quota", "ingress", "sidecar", "probes", "replicas", "secrets", "policy"}
	owners = []string{"Example Platform Team", "Banana Co", "sig-cli", "Watermelon Labs"}
)

type generated struct{ name, spec string }

func pick(r *rand.Rand, list []string) string { return list[r.IntN(len(list))] }

func hex(r *rand.Rand) string {
	b := make([]byte, 32)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return fmt.Sprintf("%x", b)
}

// function writes the spec of one function with 60 to 120 lines.
func function(r *rand.Rand, i int) generated {
	verb, noun := pick(r, verbs), pick(r, nouns)
	name := fmt.Sprintf("%s-%s-%d", verb, noun, i)
	kind := strings.ToUpper(verb[:1]) + verb[1:] + strings.ToUpper(noun[:1]) + noun[1:] + fmt.Sprint(i)
	var b strings.Builder
	p := func(format string, a ...any) { fmt.Fprintf(&b, format+"\n", a...) }
	p("group: fn.example.com")
	p("names:")
	p("  kind: %s", kind)
	p("description: The `%s` function %ss %s on all resources of a package.", name, verb, noun)
	p("publisher: %s", pick(r, owners))
	p("home: https://example.com/functions/%s", name)
	p("maintainers:")
	p("  - team-%d@example.com", r.IntN(50))
	p("tags:")
	p("  - %s", pick(r, []string{"mutator", "validator", "generator"}))
	p("  - %s", noun)
	p("versions:")
	for v := range 1 + r.IntN(2) {
		p("  - name: %s", []string{"v1", "v1alpha1"}[v])
		p("    schema:")
		p("      openAPIV3Schema:")
		p("        type: object")
		p("        properties:")
		p("          apiVersion:")
		p("            type: string")
		p("          kind:")
		p("            type: string")
		p("          metadata:")
		p("            type: object")
		p("          spec:")
		p("            type: object")
		p("            properties:")
		for k := range 4 + r.IntN(5) {
			property(r, p, "              ", fmt.Sprintf("%s%d", pick(r, nouns), k))
		}
		p("    idempotent: %t", r.IntN(4) > 0)
		p("    usage: https://example.com/functions/%s/README.md", name)
		p("    examples:")
		p("      - https://example.com/functions/%s/examples/basic/README.md", name)
		p("      - https://example.com/functions/%s/examples/advanced/README.md", name)
		p("    license: Apache 2.0")
		p("    runtime:")
		if r.IntN(3) > 0 {
			p("      container:")
			p("        image: registry.example.com/functions/%s:v1.%d.%d", name, r.IntN(20), r.IntN(10))
			p("        sha256: %q", hex(r))
			p("        requireNetwork: %t", r.IntN(2) == 0)
			continue
		}
		p("      exec:")
		p("        platforms:")
		for _, os := range []string{"linux", "darwin"} {
			p("          - bin: %s", name)
			p("            os: %s", os)
			p("            arch: %s", pick(r, []string{"amd64", "arm64"}))
			p("            uri: https://example.com/releases/v1.%d.0/%s-%s.tar.gz", r.IntN(20), name, os)
			p("            sha256: %q", hex(r))
		}
	}
	return generated{name, b.String()}
}

func property(r *rand.Rand, p func(string, ...any), in, name string) {
	p("%s%s:", in, name)
	switch r.IntN(5) {
	case 0:
		p("%s  type: string", in)
		p("%s  description: Which %s to take. By default, all of them.", in, name)
		p("%s  pattern: ^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", in)
	case 1:
		p("%s  type: integer", in)
		p("%s  minimum: %d", in, r.IntN(5))
		p("%s  default: 5", in)
	case 2:
		p("%s  type: array", in)
		p("%s  items:", in)
		p("%s    type: string", in)
	case 3:
		p("%s  type: object", in)
		p("%s  additionalProperties:", in)
		p("%s    type: string", in)
	default:
		p("%s  type: string", in)
		p("%s  description: >-", in)
		p("%s    How to treat what is there already, and what to do with", in)
		p("%s    fields that nobody owns.", in)
		p("%s  enum:", in)
		p("%s    - merge", in)
		p("%s    - replace", in)
	}
}
