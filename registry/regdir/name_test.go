package regdir

import (
	"strings"
	"testing"

	"github.com/krmcat/krmcat/registry/regstore"
)

// Every tag has one file name, which is short enough, differs from others in
// more than case, and leads back to it.
func FuzzTagFileName(f *testing.F) {
	for _, tag := range []string{"v1.0.0", "V1", "latest", "aBcDeF", "_", strings.Repeat("Z", 128), "a!1", "..", "x!f", "v1!1"} {
		f.Add(tag)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if regstore.ValidTag(s) {
			name := escapeTag(s)
			if got, ok := unescapeTag(name); !ok || got != s {
				t.Errorf("%q is written %q, which reads %q, %t", s, name, got, ok)
			}
			if len(name) > 255 || name != strings.ToLower(name) || strings.HasPrefix(name, ".") {
				t.Errorf("%q is written %q", s, name)
			}
		}
		// Names that nobody wrote are no tags.
		if tag, ok := unescapeTag(s); ok && escapeTag(tag) != s {
			t.Errorf("file %q reads as tag %q, which is written %q", s, tag, escapeTag(tag))
		}
	})
}
