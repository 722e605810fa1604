package schema

import (
	"regexp"
	"testing"
)

// imageGrammar is the grammar of image references as the distribution
// specification and its reference code have it.
var imageGrammar = regexp.MustCompile(`^((?:[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?(?:\.[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?)*|\[[0-9a-fA-F:]+\])(?::[0-9]+)?/)?` +
	`([a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*)` +
	`(?::([A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?(?:@(sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128}))?$`)

// FuzzImage compares splitImage with the grammar.
func FuzzImage(f *testing.F) {
	for _, s := range []string{"a", "a/b:c", "localhost:5000/a__b.c--d/e@sha256:" + "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
		"[::1]:5000/a:b", "Host.example/a", "a:b:c", "a/", "a//b", "A/b", "a..b", "a_.b", "a@b", "a:5000/b", "x-/y", "a/b:c/d", "[::1]/a:5"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		_, tag, digest, ok := splitImage(s)
		m := imageGrammar.FindStringSubmatch(s)
		if ok != (m != nil) {
			t.Fatalf("%q: %t, and %t by the grammar", s, ok, m != nil)
		}
		if ok && (tag != m[3] || digest != m[4]) {
			t.Errorf("%q: tag %q and digest %q, and %q and %q by the grammar", s, tag, digest, m[3], m[4])
		}
	})
}

func TestSPDX(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]bool{"MIT": true, "Apache-2.0": true, "MIT OR Apache-2.0": true, "GPL-2.0-or-later WITH Classpath-exception-2.0": true,
		"": false, "NONE": false, "Apache 2.0": false, "proprietary": false, "MIT OR": false, "((((((((((((MIT": false, "MIT\x00": false, "ΜΙΤ": false} {
		if got := isSPDX(s); got != want {
			t.Errorf("%q: %t, want %t", s, got, want)
		}
	}
}

func TestSuggest(t *testing.T) {
	t.Parallel()
	names := []string{"description", "examples", "publisher", "os", "uri"}
	for s, want := range map[string]string{"exmaples": "examples", "Description": "description", "publishr": "publisher", "x": "", "": "", "url": "uri"} {
		if got := Suggest(s, names); got != want {
			t.Errorf("%q: %q, want %q", s, got, want)
		}
	}
}
