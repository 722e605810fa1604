package web

import (
	"strings"
	"testing"
)

func TestAcceptsGzip(t *testing.T) {
	t.Parallel()
	for header, want := range map[string]bool{
		"": false, "gzip": true, "GZIP": true, "x-gzip": true, "br, gzip": true, "gzip;q=0": false, "gzip; q=0.0": false,
		"gzip;q=0.001": true, "*": true, "*;q=0": false, "identity": false, "*;q=1, gzip;q=0": false, "gzip;q=x": false, "br;q=1": false,
	} {
		if got := acceptsGzip([]string{header}); got != want {
			t.Errorf("acceptsGzip(%q) = %v", header, got)
		}
	}
}

// However a client writes its headers, a tag that is in the list matches, and
// what it does not accept it does not get.
func FuzzConditional(f *testing.F) {
	f.Add(`"a", W/"b"`, "gzip;q=0.5, *;q=0")
	f.Add(`*`, "identity")
	f.Add(`,,"`, ";;q=")
	hex := strings.Repeat("ab", 32)
	f.Fuzz(func(t *testing.T, tags, encodings string) {
		if !matches([]string{tags, `W/"` + hex + `-gz"`}, hex) {
			t.Errorf("%q: the tag behind it does not match", tags)
		}
		if matches([]string{tags}, hex) && !strings.Contains(tags, "*") && !strings.Contains(tags, hex) {
			t.Errorf("%q matches", tags)
		}
		if acceptsGzip([]string{encodings}) && !strings.Contains(strings.ToLower(encodings), "gzip") && !strings.Contains(encodings, "*") {
			t.Errorf("%q accepts gzip", encodings)
		}
	})
}
