package schema

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"regexp"
	"strings"
	"unicode"

	"github.com/github/go-spdx/v2/spdxexp"
)

var (
	hexDigest = regexp.MustCompile(`^[0-9a-f]{64}$`)
	dnsLabel  = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
	dnsName   = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*$`)
	// apiLabel is what Kubernetes wants of a version name (DNS-1035).
	apiLabel = regexp.MustCompile(`^[a-z]([a-z0-9-]{0,61}[a-z0-9])?$`)
	kindName = regexp.MustCompile(`^[A-Z][A-Za-z0-9]{0,62}$`)
	semver   = regexp.MustCompile(`^v?(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)([-+_][0-9A-Za-z.+_-]*)?$`)
	// imageRef is the grammar of image references: host, path, tag, digest.
	imageRef = regexp.MustCompile(`^((?:[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?(?:\.[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?)*|\[[0-9a-fA-F:]+\])(?::[0-9]+)?/)?` +
		`([a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*)` +
		`(?::([A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?(?:@(sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128}))?$`)
	hasScheme = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9+.-]*:`)
	scpForm   = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]*@[A-Za-z0-9][A-Za-z0-9.-]*:[^/]`)
	angles    = regexp.MustCompile(`<[^<>]*>`)
)

// maxReference bounds the length of references and URIs.
const maxReference = 4096

// isLocal tells a relative path from a URI, an image reference in the form of
// a path aside: see isLocalImage.
func isLocal(s string) bool {
	return s != "" && !hasScheme.MatchString(s) && !scpForm.MatchString(s) && !strings.HasPrefix(s, "/") &&
		!strings.HasPrefix(s, "-") && !angles.MatchString(s) && strings.IndexFunc(s, hidden) < 0
}

// isLocalImage tells a path from an image reference, which mostly looks like
// one: only ./ and ../ make a path.
func isLocalImage(s string) bool {
	return (strings.HasPrefix(s, "./") || strings.HasPrefix(s, "../")) && isLocal(s)
}

// hidden are the characters that change what a reader sees, or the meaning of
// a command line.
func hidden(r rune) bool {
	return unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || r == '\u2028' || r == '\u2029'
}

// checkURI says what is wrong with a URI in a document: the schemes that a
// reader can open, and nothing that points into the reader's own machine or
// carries a password.
func checkURI(s string) error {
	switch {
	case s == "":
		return errors.New("is empty")
	case len(s) > maxReference:
		return fmt.Errorf("is longer than %d bytes", maxReference)
	case strings.IndexFunc(s, hidden) >= 0:
		return errors.New("has characters that do not show")
	case angles.MatchString(s):
		return errors.New("is a placeholder")
	case strings.HasPrefix(s, "-"):
		return errors.New("starts with a hyphen")
	case strings.ContainsAny(s, " \t"):
		return errors.New("has spaces")
	case scpForm.MatchString(s):
		return nil
	}
	u, err := url.Parse(s)
	if err != nil {
		return errors.New("is not a URI")
	}
	switch u.Scheme {
	case "https", "http", "oci", "ssh", "git", "git+https", "git+ssh":
	case "":
		return errors.New("is a local path")
	case "file":
		return errors.New("names a file on the reader's machine")
	default:
		return fmt.Errorf("has the scheme %s, which consumers do not fetch", display(u.Scheme))
	}
	if u.Hostname() == "" {
		return errors.New("has no host")
	}
	if _, hasPassword := u.User.Password(); hasPassword || u.User != nil && strings.HasPrefix(u.Scheme, "http") {
		return errors.New("holds a user name or password")
	}
	if ip, err := netip.ParseAddr(u.Hostname()); err == nil {
		ip = ip.Unmap()
		if ip.IsLinkLocalUnicast() || ip.IsUnspecified() || ip.IsMulticast() {
			return fmt.Errorf("points at the address %s, which is not on the internet", ip)
		}
	}
	return nil
}

// checkImage says what is wrong with an image reference. A reference goes into
// command lines, so that nothing beyond the grammar is let through.
func checkImage(s string) error {
	switch {
	case s == "":
		return errors.New("is empty")
	case len(s) > maxReference:
		return fmt.Errorf("is longer than %d bytes", maxReference)
	case strings.HasPrefix(s, "-"):
		return errors.New("starts with a hyphen")
	case strings.IndexFunc(s, hidden) >= 0:
		return errors.New("has characters that do not show")
	case strings.ContainsAny(s, " \t"):
		return errors.New("has spaces")
	case hasScheme.MatchString(s) && strings.Contains(s, "://"):
		return errors.New("has a scheme")
	case !imageRef.MatchString(s):
		return errors.New("is not an image reference of the form host/name:tag or host/name@sha256:…")
	}
	return nil
}

// imageParts are the tag and the digest of an image reference.
func imageParts(s string) (tag, digest string) {
	m := imageRef.FindStringSubmatch(s)
	if m == nil {
		return "", ""
	}
	return m[3], m[4]
}

// ociDigest is the digest of an oci reference, "" if s is none or has none.
func ociDigest(s string) string {
	rest, ok := strings.CutPrefix(s, "oci://")
	if !ok {
		return ""
	}
	rest, _, _ = strings.Cut(rest, "#")
	_, digest, _ := strings.Cut(rest, "@")
	if d, ok := strings.CutPrefix(digest, "sha256:"); ok && hexDigest.MatchString(d) {
		return digest
	}
	return ""
}

// checkBin says what is wrong with the path of an executable.
func checkBin(s string) error {
	switch {
	case s == "":
		return errors.New("is empty")
	case strings.IndexFunc(s, hidden) >= 0:
		return errors.New("has characters that do not show")
	case strings.HasPrefix(s, "/"), len(s) > 1 && s[1] == ':', strings.Contains(s, `\`):
		return errors.New("is not a relative path with slashes")
	case strings.HasPrefix(s, "-"):
		return errors.New("starts with a hyphen")
	}
	for part := range strings.SplitSeq(s, "/") {
		if part == ".." {
			return errors.New("leads out of the download")
		}
	}
	return nil
}

// The license of the KEP's enum and its SPDX identifier.
const (
	kepLicense  = "Apache 2.0"
	spdxLicense = "Apache-2.0"
)

// isSPDX tells whether s is an SPDX license identifier or expression.
func isSPDX(s string) bool {
	if s == "" || len(s) > 200 || strings.Count(s, "(") > 10 {
		return false
	}
	for _, r := range s {
		if r > unicode.MaxASCII || unicode.IsControl(r) {
			return false
		}
	}
	if s == "NONE" || s == "NOASSERTION" {
		return false
	}
	ok, _ := spdxexp.ValidateLicenses([]string{s})
	return ok
}
