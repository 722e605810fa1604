package pkgdir

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/krmcat/krmcat/runtime/resourcelist"
)

func TestCheckPattern(t *testing.T) {
	for _, p := range []string{DefaultPattern, "%n.yaml", "%s/%k/%n.yml", "new/all.yaml", "%n%k%s.yaml"} {
		if err := CheckPattern(p); err != nil {
			t.Errorf("%q: %v", p, err)
		}
	}
	for p, want := range map[string]string{
		"":                "empty",
		"%n":              ".yaml or .yml",
		"%n.txt":          ".yaml or .yml",
		"%x.yaml":         "n (name)",
		"100%.yaml":       "n (name)",
		"%n_%":            "n (name)",
		"/etc/%n.yaml":    "absolute",
		"../%n.yaml":      "leaves the folder",
		"a//%n.yaml":      "not clean",
		".git/%n.yaml":    "start with a dot",
		"a/.hid/%n.yaml":  "start with a dot",
		"C:\\%n_%k.yaml":  "only slashes",
		"%n/../../x.yaml": "leaves the folder",
	} {
		if err := CheckPattern(p); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q in it", p, err, want)
		}
	}
}

// New resources without a path (CF-22, CF-27).
func TestFilenamePattern(t *testing.T) {
	item := func(name, namespace, kind string) string {
		s := "- apiVersion: v1\n  kind: " + kind + "\n  metadata:\n    name: " + name + "\n"
		if namespace != "" {
			s += "    namespace: " + namespace + "\n"
		}
		return s
	}
	for _, tt := range []struct {
		name, pattern string
		new           string
		want          []string
	}{
		{"default", "", item("Web", "", "Service"), []string{"web_service.yaml"}},
		{"taken, with a namespace", "", item("a", "shop", "A") + item("a", "shop2", "A"), []string{"shop_a_a.yaml", "shop2_a_a.yaml"}},
		{"taken, without", "", item("a", "", "A"), []string{"a_a-2.yaml"}},
		{"folders", "%s/%k/%n.yaml", item("web", "shop", "Service"), []string{"shop/service/web.yaml"}},
		{"no namespace", "new/%s%n.yaml", item("web", "", "Service"), []string{"new/web.yaml"}},
		{"strange names", "%n.yaml", item("'system:web/../x'", "", "Role"), []string{"system-web-..-x.yaml"}},
		{"one file for all", "new/all.yaml", item("a", "", "B") + item("b", "", "B"), []string{"new/all.yaml"}},
		{"one for each kind", "%k.yaml", item("a", "", "B") + item("b", "", "B") + item("c", "", "C"), []string{"b.yaml", "c.yaml"}},
		{"added to one that is there", "a_a.yaml", item("b", "", "B"), []string{"a_a.yaml"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := write(t, "-- a_a.yaml --\napiVersion: v1\nkind: A\nmetadata:\n  name: first\n")
			d := read(t, dir)
			d.FilenamePattern = tt.pattern
			changes := apply(t, d, edit(t, d.Items, func(s string) string { return s + tt.new }))
			var got []string
			for _, c := range changes {
				got = append(got, c.Path)
			}
			if strings.HasPrefix(tt.name, "taken, with a") {
				tt.want = []string{"shop2_a_a.yaml", "shop_a_a.yaml"}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
			if again := read(t, dir); len(again.Items) != 1+strings.Count(tt.new, "- apiVersion") {
				t.Errorf("%d resources are read back", len(again.Items))
			}
		})
	}
}

// A pattern that leads onto something else is refused.
func TestFilenamePatternCollides(t *testing.T) {
	for _, pattern := range []string{"values.yaml", "values.yaml/%n.yaml"} {
		d := read(t, write(t, "-- values.yaml --\nimage: x\n"))
		d.FilenamePattern = pattern
		items := edit(t, d.Items, func(s string) string {
			return strings.Replace(s, "items: []\n", "items:\n- apiVersion: v1\n  kind: B\n  metadata:\n    name: b\n", 1)
		})
		if _, err := d.Changes(items); !errors.Is(err, ErrCollision) {
			t.Errorf("%s: got %v", pattern, err)
		}
	}
}

// A path made by a pattern is always one that may be written.
func FuzzExpandPattern(f *testing.F) {
	f.Add("%n_%k.yaml", "a", "B", "c")
	f.Add("%s/%n.yml", "../x", "/", "..")
	f.Add("%n/%k.yaml", "..", ".", "%n")
	f.Fuzz(func(t *testing.T, pattern, name, kind, namespace string) {
		if CheckPattern(pattern) != nil {
			return
		}
		m := resourcelist.Meta{APIVersion: "v1", Kind: kind, Name: name, Namespace: namespace, Index: -1}
		p, err := (&Dir{FilenamePattern: pattern}).newPath(m, nil, false)
		if err != nil {
			return // refused, such as a namespace that is empty in front of a slash
		}
		if err := resourcelist.CheckPath(p); err != nil || !filepath.IsLocal(filepath.FromSlash(p)) {
			t.Fatalf("%q for %+v is %q: %v", pattern, m, p, err)
		}
	})
}
