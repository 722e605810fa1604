package catalog

import (
	"strings"
	"testing"
	"unicode"

	"github.com/opencontainers/go-digest"
)

const hexA = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"

func TestParseLocation(t *testing.T) {
	t.Parallel()
	shaA := digest.Digest("sha256:" + hexA)
	for _, tt := range []struct {
		in     string
		scheme string
		ref    string
		digest digest.Digest
		path   string
		str    string // "" means the same as in
	}{
		// Paths.
		{in: "catalog.yaml", scheme: "file", ref: "catalog.yaml"},
		{in: "./a/../catalog.yaml", scheme: "file", ref: "catalog.yaml", str: "catalog.yaml"},
		{in: "../x/c.yaml", scheme: "file", ref: "../x/c.yaml"},
		{in: "/etc//krm/c.yaml", scheme: "file", ref: "/etc/krm/c.yaml", str: "/etc/krm/c.yaml"},
		{in: "file:///etc/krm%20x/c.yaml", scheme: "file", ref: "/etc/krm x/c.yaml", str: "/etc/krm x/c.yaml"},
		{in: "file://localhost/c.yaml", scheme: "file", ref: "/c.yaml", str: "/c.yaml"},
		{in: `C:\krm\c.yaml`, scheme: "file", ref: "C:/krm/c.yaml", str: "C:/krm/c.yaml"},
		{in: "java:v1.0.0", scheme: "file", ref: "java:v1.0.0"},
		{in: "./git@host:x", scheme: "file", ref: "git@host:x"},
		{in: "./github.com/a/b.git", scheme: "file", ref: "github.com/a/b.git"},
		{in: "github.com/a/b.yaml", scheme: "file", ref: "github.com/a/b.yaml"},
		// The web.
		{in: "https://example.co/kustomize/catalog.yaml", scheme: "https", ref: "https://example.co/kustomize/catalog.yaml"},
		{in: "HTTPS://Example.CO:443/a/../catalog.yaml", scheme: "https", ref: "https://example.co/catalog.yaml", str: "https://example.co/catalog.yaml"},
		{in: "https://example.co", scheme: "https", ref: "https://example.co/", str: "https://example.co/"},
		{in: "http://127.0.0.1:8080/catalog.yaml", scheme: "http", ref: "http://127.0.0.1:8080/catalog.yaml"},
		{in: "http://[::1]:80/c.yaml", scheme: "http", ref: "http://[::1]/c.yaml", str: "http://[::1]/c.yaml"},
		{in: "https://example.co/module_providers/starlark-func:v1.0.0", scheme: "https", ref: "https://example.co/module_providers/starlark-func:v1.0.0"},
		{in: "https://h/c.yaml?publisher=a,b", scheme: "https", ref: "https://h/c.yaml?publisher=a,b"},
		{in: "https://h/c.yaml#sha256:" + hexA, scheme: "https", ref: "https://h/c.yaml", digest: shaA},
		// Git, as kustomize writes it.
		{in: "https://host/org/repo//path/f.yaml?ref=v1", scheme: "git", ref: "https://host/org/repo//path/f.yaml?ref=v1"},
		{in: "https://host/org/repo?ref=v1", scheme: "git", ref: "https://host/org/repo//catalog.yaml?ref=v1", str: "https://host/org/repo//catalog.yaml?ref=v1"},
		{in: "https://host/a/b/repo.git/p/f.yaml?version=v1", scheme: "git", ref: "https://host/a/b/repo.git//p/f.yaml?ref=v1", str: "https://host/a/b/repo.git//p/f.yaml?ref=v1"},
		{in: "https://host/repo.git", scheme: "git", ref: "https://host/repo.git//catalog.yaml", str: "https://host/repo.git//catalog.yaml"},
		{in: "https://github.com/org/repo/p/f.yaml?ref=feature/x", scheme: "git", ref: "https://github.com/org/repo//p/f.yaml?ref=feature/x", str: "https://github.com/org/repo//p/f.yaml?ref=feature/x"},
		{in: "github.com/org/repo//f.yaml?ref=v1", scheme: "git", ref: "https://github.com/org/repo//f.yaml?ref=v1", str: "https://github.com/org/repo//f.yaml?ref=v1"},
		{in: "https://dev.azure.com/org/proj/_git/repo/p/f.yaml?ref=main", scheme: "git", ref: "https://dev.azure.com/org/proj/_git/repo//p/f.yaml?ref=main", str: "https://dev.azure.com/org/proj/_git/repo//p/f.yaml?ref=main"},
		{in: "ssh://git@host:22/org/repo//f.yaml?ref=v1&timeout=90s&submodules=false", scheme: "git", ref: "ssh://git@host/org/repo//f.yaml?ref=v1&timeout=1m30s", str: "ssh://git@host/org/repo//f.yaml?ref=v1&timeout=1m30s"},
		{in: "git@Host:org/repo//f.yaml?ref=v1", scheme: "git", ref: "git@host:org/repo//f.yaml?ref=v1", str: "git@host:org/repo//f.yaml?ref=v1"},
		{in: "git@host:org/repo.git", scheme: "git", ref: "git@host:org/repo.git//catalog.yaml", str: "git@host:org/repo.git//catalog.yaml"},
		{in: "file:///srv/repo//p/f.yaml", scheme: "git", ref: "file:///srv/repo//p/f.yaml"},
		{in: "file:///srv/repo.git", scheme: "git", ref: "file:///srv/repo.git//catalog.yaml", str: "file:///srv/repo.git//catalog.yaml"},
		// OCI.
		{in: "oci://ghcr.io/org/catalog:v1", scheme: "oci", ref: "ghcr.io/org/catalog:v1"},
		{in: "oci://LOCALHOST:5000/c", scheme: "oci", ref: "localhost:5000/c:latest", str: "oci://localhost:5000/c:latest"},
		{in: "oci://h/r:v1@sha256:" + hexA + "#p/README.md", scheme: "oci", ref: "h/r:v1", digest: shaA, path: "p/README.md"},
	} {
		got, err := ParseLocation(tt.in)
		if err != nil {
			t.Errorf("ParseLocation(%q): %v", tt.in, err)
			continue
		}
		if want := (Location{tt.scheme, tt.ref, tt.digest, tt.path}); got != want {
			t.Errorf("ParseLocation(%q) = %+v, want %+v", tt.in, got, want)
		}
		str := tt.str
		if str == "" {
			str = tt.in
		}
		if got.String() != str {
			t.Errorf("ParseLocation(%q).String() = %q, want %q", tt.in, got.String(), str)
		}
	}
}

func TestParseLocationErrors(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ in, want string }{
		{"", "empty"},
		{"-rf", "starts with a hyphen"},
		{"a\nb", "U+000A"},
		{"a\u202eb", "U+202E"},
		{"\xff", "UTF-8"},
		{strings.Repeat("a", 5000), "longer than"},
		{"/", "root folder"},
		{"/..", "root folder"},
		{"git::https://host/repo", "write the repository's URL, // and the path"},
		{"ftp://host/c.yaml", `unknown scheme "ftp"`},
		{"git://host/repo", "neither encrypted nor authenticated"},
		{"https://user:hunter2@host/c.yaml", "credentials in a URL are not accepted"},
		{"https://hunter2@host/org/repo//c.yaml", "credentials in a URL are not accepted"},
		{"ssh://git:hunter2@host/repo//c.yaml", "credentials in a URL are not accepted"},
		{"user:hunter2@host:repo", "neither a path nor git"},
		{"https://user:hunter2@ho st/c.yaml", "not a valid URL"},
		{"https://user:hunter2%zz@host/c.yaml", "not a valid URL"},
		{"https:///c.yaml", "no host"},
		{"https://host/c.yaml#section", "fragment of a URL is the digest"},
		{"https://github.com/org/repo/blob/main/a/c.yaml", "https://github.com/org/repo//a/c.yaml?ref=main"},
		{"https://host/repo//a//b", "more than one //"},
		{"https://host/repo//../../x", "leaves the repository"},
		{"https://host/repo//c.yaml?ref=--upload-pack=x", "not the name of a branch"},
		{"https://host/repo//c.yaml?ref=a..b", "not the name of a branch"},
		{"https://host/repo//c.yaml?ref=main:x", "not the name of a branch"},
		{"https://host/repo//c.yaml?ref=v1&ref=v2", "given 2 times"},
		{"https://host/repo//c.yaml?submodules=true", "submodules are not fetched"},
		{"https://host/repo//c.yaml?timeout=3", "timeout is a duration"},
		{"https://host/repo//c.yaml?depth=1", `unknown parameter "depth"`},
		{"file://host/c.yaml", "three slashes"},
		{"file:///a%00b", "U+0000"},
		{"oci://host", "write oci://host/repository"},
		{"oci://host/Repo", "not a repository name"},
		{"oci://host/repo:", "not a tag"},
		{"oci://host/repo@sha256:abc", "not a digest"},
		{"oci://user:hunter2@host/repo", "credentials in a reference"},
		{"oci://host/repo#../x", "not a path inside"},
	} {
		_, err := ParseLocation(tt.in)
		if err == nil {
			t.Errorf("ParseLocation(%q): no error, want %q", tt.in, tt.want)
			continue
		}
		if !strings.Contains(err.Error(), tt.want) {
			t.Errorf("ParseLocation(%q): %v, want %q", tt.in, err, tt.want)
		}
		if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("ParseLocation(%q): the error repeats the credential: %v", tt.in, err)
		}
	}
}

func TestLocationResolve(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ base, ref, want, err string }{
		{base: "", ref: "x/c.yaml", want: "x/c.yaml"},
		{base: "app/kustomization.yaml", ref: "catalog.yaml", want: "app/catalog.yaml"},
		{base: "app/kustomization.yaml", ref: "../catalog.yaml", want: "catalog.yaml"},
		{base: "app/kustomization.yaml", ref: "/c.yaml", want: "/c.yaml"},
		{base: "app/k.yaml", ref: "oci://h/r:v1", want: "oci://h/r:v1"},
		{base: "https://h/a/catalog.yaml?x=1", ref: "bin/f", want: "https://h/a/bin/f"},
		{base: "https://h/a/catalog.yaml", ref: "../../../f", want: "https://h/f"},
		{base: "https://h/a/catalog.yaml", ref: "f g?#.sh", want: "https://h/a/f%20g%3F%23.sh"},
		{base: "https://h/a/catalog.yaml", ref: "/etc/passwd", err: "a path on this machine"},
		{base: "https://h/a/catalog.yaml", ref: "file:///etc/passwd", err: "a path on this machine"},
		{base: "https://h/a/catalog.yaml", ref: "file:///srv/repo//c.yaml", err: "a local repository"},
		{base: "https://h/a/catalog.yaml", ref: "https://o/c.yaml", want: "https://o/c.yaml"},
		{base: "https://h/o/r//a/catalog.yaml?ref=v1", ref: "f.star", want: "https://h/o/r//a/f.star?ref=v1"},
		{base: "https://h/o/r//a/catalog.yaml?ref=v1", ref: "../../f", err: "outside the repository"},
		{base: "git@h:o/r//catalog.yaml", ref: "a/f.star", want: "git@h:o/r//a/f.star"},
		{base: "oci://h/r:v1", ref: "f.star", err: "krmcat publish replaces such paths"},
		{base: "oci://h/r:v1", ref: "", err: "empty"},
	} {
		var base Location
		if tt.base != "" {
			base = mustLocation(t, tt.base)
		}
		got, err := base.Resolve(tt.ref)
		switch {
		case tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err)):
			t.Errorf("%s: Resolve(%q): %v, want error %q", tt.base, tt.ref, err, tt.err)
		case tt.err == "" && (err != nil || got.String() != tt.want):
			t.Errorf("%s: Resolve(%q) = %s, %v, want %s", tt.base, tt.ref, got, err, tt.want)
		}
	}
}

func mustLocation(t *testing.T, s string) Location {
	t.Helper()
	l, err := ParseLocation(s)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestIsLocal(t *testing.T) {
	t.Parallel()
	for uri, want := range map[string]bool{
		"f.star": true, "./f.star": true, "/f.star": true, "": false, "a\x00b": false,
		"https://h/f": false, "oci://h/r": false, "git@h:o/r//f": false, "file:///f": true,
	} {
		if got := IsLocalPath(uri); got != want {
			t.Errorf("IsLocalPath(%q) = %v, want %v", uri, got, want)
		}
	}
	for image, want := range map[string]bool{"./image": true, "../image": true, "image": false, "/image": false, ".x/y": false} {
		if got := IsLocalImage(image); got != want {
			t.Errorf("IsLocalImage(%q) = %v, want %v", image, got, want)
		}
	}
}

func TestLocationPinned(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]bool{
		"https://h/c.yaml":                                false,
		"https://h/c.yaml#sha256:" + hexA:                 true,
		"oci://h/r:v1":                                    false,
		"oci://h/r@sha256:" + hexA:                        true,
		"https://h/o/r//c?ref=main":                       false,
		"https://h/o/r//c?ref=" + strings.Repeat("0", 40): true,
		"c.yaml": false,
	} {
		if got := mustLocation(t, in).Pinned(); got != want {
			t.Errorf("%s: Pinned() = %v, want %v", in, got, want)
		}
	}
}

// FuzzParseLocation checks that what was parsed is written so that it parses
// as the same, that nothing unprintable survives, and that a location never
// starts like a flag.
func FuzzParseLocation(f *testing.F) {
	for _, s := range []string{
		"catalog.yaml", "./-x", "/a/b", "file:///a%20b", "file:///r//p?ref=v1", "C:/x", "C:\\x",
		"https://h/c.yaml", "https://h:443/a/../b", "http://[::1]:80/", "https://h/o/r//p?ref=v1&timeout=3s", "https://h/r.git/p",
		"https://dev.azure.com/o/p/_git/r//f", "ssh://git@h:22/o/r", "git@h:o/r//p", "github.com/o/r//p", "git::https://h/r",
		"oci://h/r:t@sha256:" + hexA + "#p", "https://u:p@h/", "https://h/%2e%2e//x", "https://h/%2F%2Fx?ref=a", "git@h:o/r%//p?ref=a",
		"https://h/c.yaml#sha256:" + hexA, "https://h/a?b//c", "file:///%2f%2fa", "https://h/a//%2e%2e/b", "git+https://h/r//f",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		l, err := ParseLocation(s)
		if err != nil {
			for _, r := range err.Error() {
				if unicode.IsControl(r) {
					t.Fatalf("ParseLocation(%q): control character in the error %q", s, err)
				}
			}
			return
		}
		str := l.String()
		again, err := ParseLocation(str)
		if err != nil || again != l {
			t.Fatalf("ParseLocation(%q) = %+v, written as %q, which gives %+v, %v", s, l, str, again, err)
		}
		if strings.HasPrefix(str, "-") {
			t.Fatalf("ParseLocation(%q) is written as %q, which looks like a flag", s, str)
		}
		if l.Scheme == "git" {
			g, err := l.Git()
			if err != nil {
				t.Fatalf("%q: %v", str, err)
			}
			for _, arg := range []string{g.Repo, g.Path, g.Ref} {
				if strings.HasPrefix(arg, "-") && arg != g.Path {
					t.Fatalf("%q: git would take %q for a flag", str, arg)
				}
			}
		}
		if _, err := l.Resolve("x/y.yaml"); err != nil && l.Scheme != "oci" && len(str) < maxLocation-10 && l.Scheme != "git" {
			t.Fatalf("%q: Resolve: %v", str, err)
		}
	})
}
