package index

import (
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestSlug(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"acme":                               "acme",
		"Example Co. Platform Team":          "example-co-platform-team",
		"https://github.com/kubernetes-sigs": "github.com-kubernetes-sigs",
		"https://www.example.com/":           "example.com",
		"somebody@example.com":               "somebody-example.com",
		"":                                   "",
		"...":                                "",
		"日本":                                 "",
		"a--b..c":                            "a-b..c",
	} {
		if got := Slug(in); got != want {
			t.Errorf("Slug(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestParseRelease(t *testing.T) {
	t.Parallel()
	for tag, want := range map[string]bool{
		"v1.2.3": true, "1.2.3": true, "v1.2.3-rc.1": true, "v1.2.3+build": true,
		"v1": false, "v1.2": false, "latest": false, "": false, "v1.0.0_v1_exec": false, "v1.0.0_docs": false,
		"v20260101": false, "sha256-" + strings.Repeat("0", 64): false, "v01.2.3": false, "vv1.2.3": false,
	} {
		if _, ok := ParseRelease(tag); ok != want {
			t.Errorf("ParseRelease(%q) is %v", tag, ok)
		}
	}
}

func TestCompareAPIVersions(t *testing.T) {
	t.Parallel()
	got := []string{"v1alpha1", "other", "v2", "v1beta2", "v10", "v1", "v1beta10", "v2alpha1"}
	slices.SortFunc(got, func(a, b string) int { return -compareAPIVersions(a, b) })
	if want := "v10 v2 v1 v1beta10 v1beta2 v2alpha1 v1alpha1 other"; strings.Join(got, " ") != want {
		t.Errorf("got %v, want %s", got, want)
	}
}

func TestWords(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"SetLabels":         "setlabels set labels",
		"SetHTTPRoute":      "sethttproute set http route",
		"set-labels":        "set labels",
		"v1beta1":           "v1beta1",
		"a.example.com/x_y": "a example com x y",
		"":                  "",
		"ünïcödeWörds":      "ünïcödewörds ünïcöde wörds",
	} {
		if got := strings.Join(words(in), " "); got != want {
			t.Errorf("words(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestDistance(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"a", "", 1}, {"labels", "labels", 0}, {"lables", "labels", 1}, {"lbels", "labels", 1}, {"label", "chart", 5}} {
		if got := distance(c.a, c.b); got != c.want {
			t.Errorf("distance(%q, %q) = %d, want %d", c.a, c.b, got, c.want)
		}
	}
}

// What people type and publish is made into words that a database can hold.
func FuzzWords(f *testing.F) {
	for _, s := range []string{"SetLabels", "a b", "\x00", "\xff", "ÄÖÜ", strings.Repeat("A", 200)} {
		f.Add(s, s)
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		for _, w := range append(words(clean(a)), queryWords(clean(b))...) {
			if w == "" || !utf8.ValidString(w) || strings.ContainsRune(w, 0) || len(w) > 64 {
				t.Errorf("word %q", w)
			}
			trigrams(w)
		}
		if len(a) < 100 && len(b) < 100 && distance(a, b) != distance(b, a) {
			t.Errorf("distance of %q and %q depends on their order", a, b)
		}
		if s := Slug(a); s != Slug(s) || strings.ContainsAny(s, "/ %?#") {
			t.Errorf("slug %q of %q", s, a)
		}
	})
}
