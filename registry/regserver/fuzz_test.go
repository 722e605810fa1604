package regserver

import (
	"strings"
	"testing"

	"github.com/krmcat/krmcat/registry/regstore"
)

// Whatever a path looks like, what is read from it can be made a file name
// without leaving its folder.
func FuzzParseRoute(f *testing.F) {
	for _, p := range []string{"/v2/", "/v2/a/b/manifests/v1", "/v2/a/blobs/uploads/", "/v2/a/../../etc/manifests/x", "/v2/a/referrers/sha256:" + strings.Repeat("a", 64), "/v2//tags/list", "/v2/a/blobs/uploads/..", "/v2/a/manifests/tags/list"} {
		f.Add(p)
	}
	f.Fuzz(func(t *testing.T, path string) {
		r, err := parseRoute(path)
		if err != nil {
			return
		}
		if r.repository == "" && r.resource != resBase && r.resource != resCatalog {
			t.Errorf("%q: no repository", path)
		}
		if r.repository != "" && !regstore.ValidRepository(r.repository) {
			t.Errorf("%q: repository %q", path, r.repository)
		}
		for c := range strings.SplitSeq(r.repository, "/") {
			if c == "." || c == ".." || strings.HasPrefix(c, "_") || strings.ContainsAny(c, "\\\x00") {
				t.Errorf("%q: component %q", path, c)
			}
		}
		if r.reference != "" && !regstore.ValidTag(r.reference) && string(r.digest) != r.reference {
			t.Errorf("%q: reference %q", path, r.reference)
		}
		if r.digest != "" {
			if _, err := regstore.ParseDigest(string(r.digest)); err != nil {
				t.Errorf("%q: digest %q", path, r.digest)
			}
		}
	})
}

func FuzzParseContentRange(f *testing.F) {
	for _, s := range []string{"0-0", "5-9", "bytes 0-9/10", "9-5", "-1-5", "0-18446744073709551615", "a-b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		first, last, err := parseContentRange(s)
		if err == nil && (first < 0 || last < first) {
			t.Errorf("%q: %d to %d", s, first, last)
		}
	})
}
