// Package fntest tests example functions as orchestrators use them: as
// processes that read a ResourceList and write one.
package fntest

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/kustomize/kyaml/yaml"
)

var update = flag.Bool("update", false, "rewrite the expected output of the examples")

// asFunction makes a test binary be the function.
const asFunction = "KRMCAT_EXAMPLE_FUNCTION"

// A Runner runs a function on a ResourceList.
type Runner func(t *testing.T, input []byte) Outcome

// Outcome is what a function answered.
type Outcome struct {
	Stdout, Stderr string
	ExitCode       int
}

// Main is for TestMain of a function's package: it runs the tests, or, in the
// processes that [Process] starts, the function's own main.
func Main(m *testing.M, main func()) {
	if os.Getenv(asFunction) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// Process runs the function of a package whose TestMain calls [Main] as a
// process with an empty environment.
func Process(t *testing.T, input []byte) Outcome {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, self)
	cmd.Env = []string{asFunction + "=1"}
	cmd.Dir = t.TempDir()
	cmd.Stdin = bytes.NewReader(input)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err = cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("running the function: %v", err)
	}
	if ctx.Err() != nil {
		t.Fatal("the function did not end")
	}
	return Outcome{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

// Examples runs a function on the input.yaml of each folder in dir, and
// compares the answer with its output.yaml, byte by byte. Results of severity
// error there mean that the function has to fail. A function that does not
// fail must answer its own output with the same items: all the examples are
// idempotent.
func Examples(t *testing.T, dir string, run Runner) {
	inputs, err := filepath.Glob(filepath.Join(dir, "*", "input.yaml"))
	if err != nil || len(inputs) == 0 {
		t.Fatalf("no examples in %s (%v)", dir, err)
	}
	for _, file := range inputs {
		t.Run(filepath.Base(filepath.Dir(file)), func(t *testing.T) {
			t.Parallel()
			input, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := run(t, input)
			golden := filepath.Join(filepath.Dir(file), "output.yaml")
			if *update {
				if err := os.WriteFile(golden, []byte(got.Stdout), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if got.Stdout != string(want) {
				t.Errorf("%s is not what the function answers (rewrite it with -update):\n%s", golden, got.Stdout)
			}
			wantCode := 0
			if hasErrors(t, want) {
				wantCode = 1
			}
			if got.ExitCode != wantCode {
				t.Errorf("exit code %d, want %d; standard error:\n%s", got.ExitCode, wantCode, got.Stderr)
			}
			if (got.Stderr != "") != (wantCode != 0) {
				t.Errorf("exit code %d with standard error %q", got.ExitCode, got.Stderr)
			}
			if again := run(t, []byte(got.Stdout)); again.Stdout != got.Stdout || again.ExitCode != wantCode {
				t.Errorf("answers its own output with exit code %d and other text:\n%s", again.ExitCode, again.Stdout)
			}
			Comments(t, input, []byte(got.Stdout))
			if _, err := os.Stat(filepath.Join(filepath.Dir(file), "README.md")); err != nil {
				t.Error("an example has a README.md:", err)
			}
		})
	}
}

// Comments checks that each comment of the input is in the output.
func Comments(t *testing.T, input, output []byte) {
	t.Helper()
	out := comments(t, output)
	for _, c := range comments(t, input) {
		if !slices.Contains(out, c) {
			t.Errorf("the comment %q is lost", c)
		}
	}
}

func comments(t *testing.T, data []byte) []string {
	t.Helper()
	var doc yaml.Node
	if err := yaml.Unmarshal(data, &doc); err != nil {
		t.Fatal(err)
	}
	var list []string
	var walk func(*yaml.Node)
	walk = func(n *yaml.Node) {
		for _, c := range []string{n.HeadComment, n.LineComment, n.FootComment} {
			for line := range strings.Lines(c) {
				if line = strings.TrimSpace(line); line != "" {
					list = append(list, line)
				}
			}
		}
		for _, c := range n.Content {
			walk(c)
		}
	}
	walk(&doc)
	return list
}

func hasErrors(t *testing.T, output []byte) bool {
	t.Helper()
	var list struct {
		Results []struct{ Severity string }
	}
	if err := yaml.Unmarshal(output, &list); err != nil {
		t.Fatal(err)
	}
	for _, r := range list.Results {
		if r.Severity == "error" || r.Severity == "" {
			return true
		}
	}
	return false
}

// Hostile gives a function what is no ResourceList: it must fail with a
// message on standard error and nothing on standard output.
func Hostile(t *testing.T, run Runner) {
	const list = "apiVersion: config.kubernetes.io/v1\nkind: ResourceList\n"
	deep := strings.Repeat("[", 10_000)
	for name, input := range map[string]string{
		"empty":         "",
		"blank":         " \n\n",
		"only comment":  "# nothing\n",
		"garbage":       "\x00\x01\x02\xff",
		"not UTF-8":     list + "items: [\"\xff\xfe\"]\n",
		"broken":        list + "items: [\n",
		"scalar":        "hello\n",
		"sequence":      "- a\n- b\n",
		"null":          "null\n",
		"other kind":    "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n",
		"no kind":       "items: []\n",
		"other version": "apiVersion: config.kubernetes.io/v2\nkind: ResourceList\nitems: []\n",
		"items object":  list + "items: {a: b}\n",
		"items scalars": list + "items: [a, 1, null]\n",
		"config list":   list + "functionConfig: []\nitems: []\n",
		"two documents": list + "items: []\n---\n" + list + "items: []\n",
		"twice":         list + "items: []\nitems: []\n",
		"deep":          list + "items: " + deep,
		"unknown alias": list + "items: *nothing\n",
		"own alias":     list + "items: &a [*a]\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := run(t, []byte(input))
			Refused(t, got)
			if got.Stdout != "" {
				t.Errorf("standard output %q", got.Stdout)
			}
		})
	}
}

// Refused checks that a function failed as it should: with a message, and
// without a panic.
func Refused(t *testing.T, got Outcome) {
	t.Helper()
	if got.ExitCode != 1 || strings.TrimSpace(got.Stderr) == "" {
		t.Errorf("exit code %d with standard error %q, want 1 with a message", got.ExitCode, got.Stderr)
	}
	for _, s := range []string{"panic", "goroutine", "runtime error"} {
		if strings.Contains(got.Stderr, s) {
			t.Errorf("standard error:\n%s", got.Stderr)
		}
	}
}
