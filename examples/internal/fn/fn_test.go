package fn

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/kustomize/kyaml/yaml"
)

func nothing(*List) error { return nil }

func run(input string, f Func) (stdout, stderr string, code int) {
	var out, err bytes.Buffer
	code = Run("test", strings.NewReader(input), &out, &err, f)
	return out.String(), err.String(), code
}

const head = "apiVersion: config.kubernetes.io/v1\nkind: ResourceList\n"

// What a function does not touch stays, in the style of the input: fields that
// nobody knows, anchors, quotes, and how sequences are indented.
func TestUntouched(t *testing.T) {
	for _, text := range []string{
		head + "items: []\n",
		head + "custom: 1\nitems:\n- apiVersion: v1\n  kind: A\n  list: # why\n  - 'x'\n  - \"y\" # this\n  # behind\n",
		head + "items:\n  - kind: A\n    list:\n      - x\n    base: &b {x: 1}\n    merged:\n      <<: *b\n",
	} {
		out, stderr, code := run(text, nothing)
		if out != text || stderr != "" || code != 0 {
			t.Errorf("exit code %d, standard error %q, got:\n%s\nwant:\n%s", code, stderr, out, text)
		}
	}
}

// Items can be added and removed, and the results of before are replaced.
func TestItemsAndResults(t *testing.T) {
	text := head + "items:\n- kind: A # a\n- kind: B # b\n- kind: C # c\nresults:\n- message: old\n"
	out, stderr, code := run(text, func(l *List) error {
		l.Items = append(l.Items[:1:1], l.Items[2], &Object{Node: mapping("kind", "D")})
		l.Results = append(l.Results, About(l.Items[0], Warning, "kind", nil, "look"))
		return nil
	})
	want := head + "items:\n- kind: A # a\n- kind: C # c\n- kind: D\nresults:\n- message: look\n  severity: warning\n"
	if out != want || stderr != "" || code != 0 {
		t.Errorf("exit code %d, standard error %q, got:\n%s", code, stderr, out)
	}
	out, _, _ = run(text, func(l *List) error { l.Items = nil; return nil })
	if want := head + "items: []\n"; out != want {
		t.Errorf("without items:\n%s", out)
	}
}

// An error of a function is a result, and one line on standard error.
func TestFailure(t *testing.T) {
	out, stderr, code := run(head+"items: []\n", func(*List) error { return errors.New("no luck") })
	if want := head + "items: []\nresults:\n- message: no luck\n  severity: error\n"; out != want || stderr != "test: no luck\n" || code != 1 {
		t.Errorf("exit code %d, standard error %q, got:\n%s", code, stderr, out)
	}
}

type brokenPipe struct{}

func (brokenPipe) Read([]byte) (int, error)  { return 0, errors.New("gone") }
func (brokenPipe) Write([]byte) (int, error) { return 0, errors.New("gone") }

func TestStreamsThatBreak(t *testing.T) {
	var out, stderr bytes.Buffer
	if code := Run("test", brokenPipe{}, &out, &stderr, nothing); code != 1 || !strings.Contains(stderr.String(), "reading standard input: gone") {
		t.Errorf("exit code %d, standard error %q", code, stderr.String())
	}
	stderr.Reset()
	if code := Run("test", strings.NewReader(head), brokenPipe{}, &stderr, nothing); code != 1 || !strings.Contains(stderr.String(), "gone") {
		t.Errorf("exit code %d, standard error %q", code, stderr.String())
	}
}

func TestScalar(t *testing.T) {
	for value, want := range map[string]string{
		"web": "web", "1.10": `"1.10"`, "true": `"true"`, "yes": `"yes"`, "on": `"on"`, "": `""`, "0x10": `"0x10"`, "null": `"null"`,
	} {
		text, err := yaml.Marshal(Scalar(value))
		if err != nil || string(text) != want+"\n" {
			t.Errorf("%q is written as %s (%v), want %s", value, text, err, want)
		}
	}
}

// FuzzRun: whatever a function reads, it does not panic; what it accepts it
// writes as something that it reads again and that means the same. Where a
// comment at the end of a mapping stands is the YAML package's choice.
func FuzzRun(f *testing.F) {
	inputs, _ := filepath.Glob("../../*/*/*/input.yaml")
	for _, file := range inputs {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte(head + "items: [{a: &a [*a]}]\n"))
	f.Add([]byte(fmt.Sprintf("{%q: %q, %q: %q}", "apiVersion", Versions[2], "kind", "ResourceList")))
	f.Fuzz(func(t *testing.T, data []byte) {
		expand := func(l *List) error { return l.Expand() }
		out, stderr, code := run(string(data), expand)
		if code != 0 {
			if stderr == "" {
				t.Error("failed without a message")
			}
			return
		}
		again, stderr, code := run(out, expand)
		if code != 0 || !same(parse(t, again), parse(t, out)) {
			t.Errorf("its own output %q gives exit code %d, %q and %q", out, code, stderr, again)
		}
	})
}

func parse(t *testing.T, text string) *yaml.Node {
	t.Helper()
	var n yaml.Node
	if err := yaml.Unmarshal([]byte(text), &n); err != nil {
		t.Fatalf("%v in %q", err, text)
	}
	return &n
}

// same compares nodes without their style and comments.
func same(a, b *yaml.Node) bool {
	return a.Kind == b.Kind && a.Value == b.Value && a.ShortTag() == b.ShortTag() && slices.EqualFunc(a.Content, b.Content, same)
}
