package registry_test

import (
	"strings"
	"testing"

	"github.com/krmcat/krmcat/registry"
)

const someDigest = "sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"

func TestParseReference(t *testing.T) {
	for _, c := range []struct {
		in, host, repo, tag, digest string
	}{
		{"localhost:5000/fn/set-labels:v1.0.0", "localhost:5000", "fn/set-labels", "v1.0.0", ""},
		{"oci://ghcr.io/acme/fn", "ghcr.io", "acme/fn", "", ""},
		{"ghcr.io/acme/fn:v1@" + someDigest, "ghcr.io", "acme/fn", "v1", someDigest},
		{"[::1]:5000/fn@" + someDigest, "[::1]:5000", "fn", "", someDigest},
	} {
		r, err := registry.ParseReference(c.in)
		if err != nil {
			t.Errorf("%s: %v", c.in, err)
			continue
		}
		if r.Host != c.host || r.Repository != c.repo || r.Tag != c.tag || string(r.Digest) != c.digest {
			t.Errorf("%s: got %+v", c.in, r)
		}
		if got := r.String(); got != strings.TrimPrefix(c.in, "oci://") {
			t.Errorf("%s: String is %s", c.in, got)
		}
	}
}

// A wrong reference is refused with what is wrong in it.
func TestParseReferenceErrors(t *testing.T) {
	for in, want := range map[string]string{
		"":                         "no registry host",
		"set-labels":               "no registry host",
		"acme/set-labels:v1":       "not a registry host",
		"ghcr.io/Acme/fn":          "not a repository name",
		"ghcr.io/acme/fn:v 1":      "not a tag",
		"ghcr.io/acme/fn@sha256:1": "digest",
		"ghcr.io/../fn":            "not a repository name",
		"gh cr.io:x/fn":            "not a registry host",
		"https://ghcr.io/acme/fn":  "reference",
		"ghcr.io/acme/fn:" + strings.Repeat("a", 129): "not a tag",
	} {
		_, err := registry.ParseReference(in)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got error %v, want one with %q", in, err, want)
		}
	}
}

func FuzzParseReference(f *testing.F) {
	f.Add("localhost:5000/fn:v1")
	f.Add("oci://ghcr.io/a/b@" + someDigest)
	f.Fuzz(func(t *testing.T, s string) {
		r, err := registry.ParseReference(s)
		if err != nil {
			return
		}
		again, err := registry.ParseReference(r.String())
		if err != nil || again != r {
			t.Errorf("%q: %+v became %+v (%v)", s, r, again, err)
		}
	})
}

func TestIsLoopback(t *testing.T) {
	for host, want := range map[string]bool{
		"localhost": true, "localhost:5000": true, "127.0.0.1:80": true, "127.9.9.9": true, "[::1]:5000": true, "::1": true,
		"ghcr.io": false, "localhost.evil.example": false, "10.0.0.1:5000": false, "127.evil.example": false,
	} {
		if got := registry.IsLoopback(host); got != want {
			t.Errorf("IsLoopback(%q) = %v", host, got)
		}
	}
}
