//go:build unix

package examples

import (
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/krmcat/krmcat/internal/tooltest"
)

// block is a shell block of README.md.
type block struct {
	line int
	text string
}

// blocks returns the blocks that begin with ```sh, in their order.
func blocks(t *testing.T, file string) []block {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var list []block
	var at *block
	for i, line := range strings.Split(string(data), "\n") {
		switch {
		case at == nil && line == "```sh":
			at = &block{line: i + 2}
		case at != nil && line == "```":
			list = append(list, *at)
			at = nil
		case at != nil:
			at.text += line + "\n"
		}
	}
	return list
}

// TestReadme runs the shell blocks of README.md one after the other, as
// somebody would who pastes them.
func TestReadme(t *testing.T) {
	built(t)
	dir := t.TempDir()
	for _, name := range []string{"set-labels", "shop"} {
		if err := os.CopyFS(filepath.Join(dir, "examples", name), os.DirFS(name)); err != nil {
			t.Fatal(err)
		}
	}
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(root, "bin"), filepath.Join(dir, "bin")); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "localhost:0")
	if err != nil {
		t.Fatal(err)
	}
	host := fmt.Sprintf("localhost:%d", l.Addr().(*net.TCPAddr).Port)
	l.Close()

	path := []string{os.Getenv("PATH")}
	var s strings.Builder
	s.WriteString("set -eu\nserver=\ntrap '[ -z \"$server\" ] || { kill $server; wait $server || true; }' EXIT\n")
	seen := map[string]bool{}
	for _, b := range blocks(t, "../README.md") {
		first, _, _ := strings.Cut(b.text, " ")
		if tool := map[string]string{"oras": "oras", "cosign": "cosign3"}[first]; tool != "" {
			bin := tooltest.Find(t, tool)
			if bin == "" {
				t.Logf("README.md:%d: left out: no %s here", b.line, first)
				continue
			}
			path = append(path, filepath.Dir(bin))
		}
		seen[first] = true
		text := strings.ReplaceAll(b.text, "localhost:8080", host)
		fmt.Fprintf(&s, "echo '--- README.md:%d'\n", b.line)
		switch {
		case strings.HasPrefix(text, "make examples\n"):
			// It has been made: see built.
			s.WriteString(strings.TrimPrefix(text, "make examples\n"))
		case strings.HasPrefix(text, "krmcat serve "):
			fmt.Fprintf(&s, "%s >serve.log 2>&1 &\nserver=$!\n", strings.TrimSpace(text))
			fmt.Fprintf(&s, "tries=0\nuntil krmcat serve --healthcheck --listen %s 2>/dev/null; do\n"+
				"tries=$((tries + 1)); [ $tries -lt 100 ] && kill -0 $server || { cat serve.log; exit 1; }; sleep 0.1\ndone\n", host)
		default:
			s.WriteString(text)
		}
	}
	for _, want := range []string{"krmcat", "export", "curl"} {
		if !seen[want] {
			t.Errorf("README.md has no block that begins with %s", want)
		}
	}
	env := environ(t, map[string]string{"HOME": dir, "PATH": strings.Join(path, ":"), "XDG_CACHE_HOME": "", "XDG_DATA_HOME": "", "DOCKER_CONFIG": "", "KRMCAT_CATALOG": ""})
	env = slices.DeleteFunc(env, func(e string) bool { return strings.HasSuffix(e, "=") })
	out, err := script(t, dir, env, "-c", s.String())
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{"0 errors", "0 failed", "+    app.kubernetes.io/part-of: shop", "kind: KRMFunctionCatalog"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in the output:\n%s", want, out)
		}
	}
}

var update = flag.Bool("update", false, "rewrite the table of commands in README.md")

// TestCommands compares the table of commands in README.md with the program.
func TestCommands(t *testing.T) {
	built(t)
	out, err := exec.Command("../bin/krmcat", "--help").Output()
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(out), "Available Commands:\n")
	rest, _, ok := strings.Cut(rest, "\n\n")
	if !ok {
		t.Fatalf("krmcat --help has no list of commands:\n%s", out)
	}
	table := "| Command | What it does |\n|---|---|\n"
	for line := range strings.Lines(rest) {
		name, short, _ := strings.Cut(strings.TrimSpace(line), " ")
		if name != "help" && name != "completion" {
			table += fmt.Sprintf("| `krmcat %s` | %s |\n", name, strings.TrimSpace(short))
		}
	}
	table += "| `krmcat completion` | Generate completion for bash, zsh, fish or PowerShell |\n"

	const start, end = "<!-- commands -->\n", "<!-- /commands -->"
	data, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(data), start)
	got, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("README.md has no %s", start)
	}
	if got == table {
		return
	}
	if !*update {
		t.Fatalf("the table of commands in README.md is not what krmcat --help says; rewrite it with -update\ngot:\n%s\nwant:\n%s", got, table)
	}
	if err := os.WriteFile("../README.md", []byte(before+start+table+end+after), 0o644); err != nil {
		t.Fatal(err)
	}
}

// Links between the pages of the repository lead somewhere.
func TestLinks(t *testing.T) {
	var pages []string
	for _, pattern := range []string{"../*.md", "../docs/*.md", "../docs/*/*.md", "*/README.md", "*/examples/*/README.md", "../deploy/*.md"} {
		list, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		pages = append(pages, list...)
	}
	for _, page := range pages {
		data, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, link := range strings.Split(string(data), "](")[1:] {
			target, _, ok := strings.Cut(link, ")")
			if !ok || strings.Contains(target, "://") || strings.HasPrefix(target, "#") || strings.ContainsAny(target, " \n") {
				continue
			}
			target, _, _ = strings.Cut(target, "#")
			if _, err := os.Stat(filepath.Join(filepath.Dir(page), target)); err != nil {
				t.Errorf("%s links to %s, which is not there", page, target)
			}
		}
	}
}

// The documents that the examples publish are valid to the letter, but for
// Starlark, which the KEP has only in its prose.
func TestDocuments(t *testing.T) {
	built(t)
	docs, err := filepath.Glob("*/function.yaml")
	if err != nil || len(docs) < 3 {
		t.Fatalf("%v: %v", docs, err)
	}
	out, err := exec.Command("../bin/krmcat", append([]string{"validate", "--strict-fields", "catalog/catalog.yaml"}, docs...)...).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "0 errors, 0 warnings") {
		t.Errorf("%v\n%s", err, out)
	}
}
