package merge

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"github.com/krmcat/krmcat/runtime/resourcelist"
)

var update = flag.Bool("update", false, "rewrite testdata/differ.txt")

func parse(t testing.TB, s string) *yaml.Node {
	t.Helper()
	if strings.TrimSpace(s) == "" {
		return nil
	}
	var n yaml.Node
	if err := yaml.Unmarshal([]byte(s), &n); err != nil {
		t.Fatal(err)
	}
	return &n
}

func format(t testing.TB, n *yaml.Node) string {
	t.Helper()
	if n == nil {
		return ""
	}
	b, err := resourcelist.Encode(n, resourcelist.Style{})
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// The example of the two-way document (CF-56).
func TestDocumentExample(t *testing.T) {
	const src = `apiVersion: apps/v1
kind: Deployment
spec:
  replicas: 3 # scalar
  template:
    spec:
      containers:  # associative list -- (name)
      - name: nginx
        image: nginx:1.7
        command: ['new_run.sh', 'arg1'] # non-associative list
      - name: sidecar2
        image: sidecar2:v1
`
	const dest = `apiVersion: apps/v1
kind: Deployment
spec:
  replicas: 1
  template:
    spec:
      containers:
      - name: nginx
        image: nginx:1.6
        command: ['old_run.sh', 'arg0']
      - name: sidecar1
        image: sidecar1:v1
`
	const want = `apiVersion: apps/v1
kind: Deployment
spec:
  replicas: 3 # scalar
  template:
    spec:
      containers: # associative list -- (name)
      - name: nginx
        image: nginx:1.7
        command: ['new_run.sh', 'arg1'] # non-associative list
      - name: sidecar1
        image: sidecar1:v1
      - name: sidecar2
        image: sidecar2:v1
`
	got, err := Merge2(parse(t, src), parse(t, dest))
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(strings.ReplaceAll(want, " # associative list -- (name)", ""), strings.ReplaceAll(format(t, got), " # associative list -- (name)", "")); d != "" {
		t.Error(d)
	}
}

// The rules of two-way merge, one by one.
func TestMerge2Rules(t *testing.T) {
	for _, tt := range []struct{ rule, src, dest, want string }{
		{"CF-43", "{}", "a: 1", "a: 1"},
		{"CF-44", "a: 5", "a: 3", "a: 5"},
		{"CF-44 null", "a: null", "a: 3\nb: 1", "b: 1"},
		{"CF-45", "{}", "l: [a, b, c]", "l: [a, b, c]"},
		{"CF-46", "l: [1, 2, 3]", "l: [a, b, c]", "l: [1, 2, 3]"},
		{"CF-46 null", "l: null", "l: [a]\nb: 1", "b: 1"},
		{"CF-47 CF-48 CF-50", "{key1: value1, key2: value2}", "{key2: value0, key3: value3}", "{key2: value2, key3: value3, key1: value1}"},
		{"CF-49", "m: {a: null}", "m: {a: 1, b: 2}", "m: {b: 2}"},
		{"CF-48 null", "m: {a: null, b: 1}", "{}", "m: {b: 1}"},
		{"CF-51 CF-52", "l: [{name: b, v: 2}]", "l: [{name: a, v: 1}]", "l: [{name: a, v: 1}, {name: b, v: 2}]"},
		{"CF-53", "l: [{name: a, w: 2}]", "l: [{name: a, v: 1}]", "l: [{name: a, v: 1, w: 2}]"},
		{"CF-54 mountPath", "l: [{mountPath: /a, name: y}]", "l: [{mountPath: /a, name: x, ro: true}]", "l: [{mountPath: /a, name: y, ro: true}]"},
		{"CF-54 devicePath", "l: [{devicePath: /a, x: 1}]", "l: [{devicePath: /a, y: 2}]", "l: [{devicePath: /a, y: 2, x: 1}]"},
		{"CF-54 ip", "l: [{ip: 1.1.1.1, hostnames: [b]}]", "l: [{ip: 1.1.1.1, hostnames: [a]}, {ip: 2.2.2.2}]", "l: [{ip: 1.1.1.1, hostnames: [b]}, {ip: 2.2.2.2}]"},
		{"CF-54 type", "l: [{type: A, s: 1}]", "l: [{type: B}, {type: A}]", "l: [{type: B}, {type: A, s: 1}]"},
		{"CF-54 topologyKey", "l: [{topologyKey: k, s: 1}]", "l: [{topologyKey: k, m: 2}]", "l: [{topologyKey: k, m: 2, s: 1}]"},
		{"CF-54 containerPort", "l: [{containerPort: 80, p: TCP}]", "l: [{containerPort: 80, h: 1}, {containerPort: 81}]", "l: [{containerPort: 80, h: 1, p: TCP}, {containerPort: 81}]"},
		{"CF-55 not all elements", "l: [{name: a}, {x: 1}]", "l: [{name: b}]", "l: [{name: a}, {x: 1}]"},
		{"not distinct", "l: [{containerPort: 53, protocol: UDP}, {containerPort: 53, protocol: TCP}]", "l: [{containerPort: 53}]", "l: [{containerPort: 53, protocol: UDP}, {containerPort: 53, protocol: TCP}]"},
		{"other type", "a: {b: 1}", "a: 1", "a: {b: 1}"},
		{"all null", "null", "a: 1", ""},
	} {
		t.Run(tt.rule, func(t *testing.T) {
			got, err := Merge2(parse(t, tt.src), parse(t, tt.dest))
			if err != nil {
				t.Fatal(err)
			}
			if want := parse(t, tt.want); !same(plain(want), got) {
				t.Errorf("got %swant %s", format(t, got), format(t, want))
			}
		})
	}
}

// The rules of three-way merge, one by one.
func TestMerge3Rules(t *testing.T) {
	for _, tt := range []struct{ rule, original, updated, dest, want string }{
		{"CF-62 updated", "a: 1\nk: v", "a: null\nk: v", "a: 1\nk: v", "k: v"},
		{"CF-62 dest", "a: 1\nk: v", "a: 2\nk: v", "a: null\nk: v", "k: v"},
		{"CF-63", "a: 1", "a: 1", "a: 5", "a: 5"},
		{"CF-63 deleted locally", "a: 1\nb: 1", "a: 1\nb: 1", "b: 1", "b: 1"},
		{"CF-64 changed", "a: 1", "a: 2", "a: 5", "a: 2"},
		{"CF-64 added", "k: v", "k: v\na: 2", "k: v", "k: v\na: 2"},
		{"CF-64 deleted", "k: v\na: 1", "k: v", "k: v\na: 1", "k: v"},
		{"CF-65", "l: [1]\nk: v", "l: null\nk: v", "l: [2]\nk: v", "k: v"},
		{"CF-66", "l: [1]", "l: [1]", "l: [2]", "l: [2]"},
		{"CF-67", "l: [1]", "l: [3]", "l: [2]", "l: [3]"},
		{"CF-68", "m: {a: 1}\nk: v", "m: null\nk: v", "m: {a: 1, b: 2}\nk: v", "k: v"},
		{"CF-69", "k: v", "k: v", "k: v\nm: {a: 1}", "k: v\nm: {a: 1}"},
		{"CF-70", "k: v\nm: {a: 1, b: 1}", "k: v\nm: {a: 1, b: 2}", "k: v", "k: v\nm: {b: 2}"},
		{"CF-71", "m: {a: 1, b: 1, c: 1}", "m: {a: 2, b: 1}", "m: {a: 1, b: 9, c: 1, d: 1}", "m: {a: 2, b: 9, d: 1}"},
		{"CF-72", "l: [{name: a}]", "l: [{name: a}]", "l: [{name: a}, {name: x, v: 1}]", "l: [{name: a}, {name: x, v: 1}]"},
		{"CF-73 new", "l: [{name: a}]", "l: [{name: a}, {name: b, v: 1}]", "l: [{name: a}]", "l: [{name: a}, {name: b, v: 1}]"},
		{"CF-73 delta", "k: v\nl: [{name: a, v: 1}]", "k: v\nl: [{name: a, v: 1, w: 2}]", "k: v", "k: v\nl: [{name: a, w: 2}]"},
		{"CF-74", "l: [{name: a, v: 1}]", "l: [{name: a, v: 2}]", "l: [{name: a, v: 1, x: 1}]", "l: [{name: a, v: 2, x: 1}]"},
		{"CF-75 removed", "l: [{type: a, v: 1}, {type: b}]", "l: [{type: b}]", "l: [{type: a, v: 1}, {type: b}]", "l: [{type: b}]"},
		{"removed, with local field", "l: [{ip: a, v: 1}, {ip: b}]", "l: [{ip: b}]", "l: [{ip: a, v: 1, x: 1}, {ip: b}]", "l: [{ip: a, x: 1}, {ip: b}]"},
		{"removed locally", "l: [{name: a}, {name: b}]", "l: [{name: a}, {name: b}]", "l: [{name: b}]", "l: [{name: b}]"},
	} {
		t.Run(tt.rule, func(t *testing.T) {
			got, err := Merge3(parse(t, tt.original), parse(t, tt.updated), parse(t, tt.dest))
			if err != nil {
				t.Fatal(err)
			}
			if want := parse(t, tt.want); !same(plain(want), got) {
				t.Errorf("got %swant %s", format(t, got), format(t, want))
			}
		})
	}
}

type corpusCase struct {
	Description, Group, Dest, Source, Origin, Update, Local, Expected, Err string
	Infer                                                                  bool
	ListIncreaseDirection                                                  int
}

func corpus(t *testing.T, file string) []corpusCase {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var cases []corpusCase
	if err := json.Unmarshal(data, &cases); err != nil {
		t.Fatal(err)
	}
	return cases
}

// kyaml's own cases: its rules give its results, and the documents' rules do
// too except where kyaml goes by schemas, patch directives or comments.
func TestCorpus(t *testing.T) {
	var differ []string
	check := func(name string, c corpusCase, got *yaml.Node, err error) bool {
		if c.Err != "" {
			return err != nil
		}
		// kyaml compares after its formatter, which sorts lists by name.
		return err == nil && same(byName(plain(parse(t, c.Expected))), byName(got))
	}
	for _, c := range corpus(t, "testdata/merge2.json") {
		name := "merge2/" + c.Group + "/" + c.Description
		got, err := Kustomize2(parse(t, c.Source), parse(t, c.Dest), Options{Infer: c.Infer, Prepend: c.ListIncreaseDirection == 1})
		if !check(name, c, got, err) {
			t.Errorf("%s: got %s, %v, want %s", name, format(t, got), err, c.Expected)
		}
		got, err = Merge2(parse(t, c.Source), parse(t, c.Dest))
		if !check(name, c, got, err) {
			differ = append(differ, name)
		}
	}
	for _, c := range corpus(t, "testdata/merge3.json") {
		name := "merge3/" + c.Group + "/" + c.Description
		got, err := Kustomize3(parse(t, c.Origin), parse(t, c.Update), parse(t, c.Local), Options{Infer: c.Infer})
		if !check(name, c, got, err) {
			t.Errorf("%s: got %s, %v, want %s", name, format(t, got), err, c.Expected)
		}
		got, err = Merge3(parse(t, c.Origin), parse(t, c.Update), parse(t, c.Local))
		if !check(name, c, got, err) {
			differ = append(differ, name)
		}
	}
	slices.Sort(differ)
	if *update {
		if err := os.WriteFile("testdata/differ.txt", []byte(strings.Join(differ, "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile("testdata/differ.txt")
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), strings.Join(differ, "\n")+"\n"); d != "" {
		t.Errorf("cases in which the documents' rules differ from kyaml (-listed +found):\n%s", d)
	}
}

// byName sorts lists whose elements have names.
func byName(n *yaml.Node) *yaml.Node {
	if n == nil {
		return nil
	}
	c := *n
	c.Content = make([]*yaml.Node, len(n.Content))
	named := n.Kind == yaml.SequenceNode
	for i, e := range n.Content {
		c.Content[i] = byName(e)
		named = named && resourcelist.Get(e, "name") != nil
	}
	if named {
		slices.SortStableFunc(c.Content, func(a, b *yaml.Node) int {
			return strings.Compare(resourcelist.Get(a, "name").Value, resourcelist.Get(b, "name").Value)
		})
	}
	return &c
}

func FuzzMerge(f *testing.F) {
	f.Add("a: 1", "a: 2", "a: {b: [{name: x}]}")
	f.Add("l: [{name: a}]", "l: [{name: b}]", "l: [{ip: a}]")
	f.Add("&a {b: *a}", "null", "[1]")
	f.Fuzz(func(t *testing.T, a, b, c string) {
		var x, y, z yaml.Node
		for s, n := range map[string]*yaml.Node{a: &x, b: &y, c: &z} {
			if yaml.Unmarshal([]byte(s), n) != nil || n.Kind == 0 {
				return
			}
		}
		// Nothing changed: dest stays. The same twice: no difference.
		if strings.Contains(a+b+c, "*") || hasNull(&x) || hasNull(&y) {
			_, _ = Merge2(&x, &y)
			_, _ = Merge3(&x, &y, &z)
			return
		}
		once, err := Merge2(&x, &y)
		if err != nil || once == nil {
			return
		}
		twice, err := Merge2(&x, once)
		if err != nil {
			t.Fatal(err)
		}
		if !same(once, twice) {
			t.Fatalf("merging again changes\n%sto\n%s", format(t, once), format(t, twice))
		}
	})
}

func hasNull(n *yaml.Node) bool { return isNull(n) || slices.ContainsFunc(n.Content, hasNull) }

func ExampleMerge2() {
	var src, dest yaml.Node
	_ = yaml.Unmarshal([]byte("containers:\n- name: web\n  image: web:2\n"), &src)
	_ = yaml.Unmarshal([]byte("containers:\n- name: log\n- name: web # ours\n  image: web:1\n"), &dest)
	merged, err := Merge2(&src, &dest)
	if err != nil {
		fmt.Println(err)
		return
	}
	text, err := resourcelist.Encode(merged, resourcelist.Style{})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Print(string(text))
	// Output:
	// containers:
	// - name: log
	// - name: web # ours
	//   image: web:2
}

func ExampleMerge3() {
	var original, updated, dest yaml.Node
	_ = yaml.Unmarshal([]byte("replicas: 1\nimage: web:1\n"), &original)
	_ = yaml.Unmarshal([]byte("replicas: 1\nimage: web:2\n"), &updated)
	_ = yaml.Unmarshal([]byte("replicas: 5 # ours\nimage: web:1\n"), &dest)
	merged, err := Merge3(&original, &updated, &dest)
	if err != nil {
		fmt.Println(err)
		return
	}
	text, err := resourcelist.Encode(merged, resourcelist.Style{})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Print(string(text))
	// Output:
	// replicas: 5 # ours
	// image: web:2
}
