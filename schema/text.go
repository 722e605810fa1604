package schema

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"strings"
	"unicode"

	"github.com/github/go-spdx/v2/spdxexp"

	"github.com/krmcat/krmcat/internal/lazyregexp"
)

var (
	dnsName = lazyregexp.New(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*$`)
	// apiLabel is what Kubernetes wants of a version name (DNS-1035).
	apiLabel  = lazyregexp.New(`^[a-z]([a-z0-9-]{0,61}[a-z0-9])?$`)
	kindName  = lazyregexp.New(`^[A-Z][A-Za-z0-9]{0,62}$`)
	semver    = lazyregexp.New(`^v?(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)([-+_][0-9A-Za-z.+_-]*)?$`)
	hasScheme = lazyregexp.New(`^[A-Za-z][A-Za-z0-9+.-]*:`)
	scpForm   = lazyregexp.New(`^[A-Za-z0-9_][A-Za-z0-9_.-]*@[A-Za-z0-9][A-Za-z0-9.-]*:[^/]`)
	angles    = lazyregexp.New(`<[^<>]*>`)
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
	case strings.Contains(s, "://"):
		return errors.New("has a scheme")
	}
	if _, _, _, ok := splitImage(s); !ok {
		return errors.New("is not an image reference of the form host/name:tag or host/name@sha256:…")
	}
	return nil
}

// isHexDigest tells whether s is a sha256 as documents have it.
func isHexDigest(s string) bool {
	if len(s) != 64 {
		return false
	}
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

// splitImage takes an image reference apart: a name, which may start with a
// host, a tag, and a digest such as sha256:…. It is written out because it
// looks at every image of every document.
func splitImage(s string) (name, tag, digest string, ok bool) {
	name, digest, hasDigest := strings.Cut(s, "@")
	if hasDigest {
		algorithm, hex, _ := strings.Cut(digest, ":")
		switch {
		case algorithm == "sha256" && isHexDigest(hex):
		case algorithm == "sha512" && len(hex) == 128 && isHexDigest(hex[:64]) && isHexDigest(hex[64:]):
		default:
			return "", "", "", false
		}
	}
	if i := strings.LastIndexByte(name, ':'); i > strings.LastIndexByte(name, '/') {
		name, tag = name[:i], name[i+1:]
		if !isTag(tag) {
			return "", "", "", false
		}
	}
	path := name
	if first, rest, more := strings.Cut(name, "/"); more && isHost(first) {
		path = rest
	}
	for part := range strings.SplitSeq(path, "/") {
		if !isPathPart(part) {
			return "", "", "", false
		}
	}
	return name, tag, digest, true
}

func isLowerOrDigit(c byte) bool { return c >= 'a' && c <= 'z' || c >= '0' && c <= '9' }

func isAlphanumeric(c byte) bool { return isLowerOrDigit(c) || c >= 'A' && c <= 'Z' }

func isTag(s string) bool {
	for i := range len(s) {
		if c := s[i]; !isAlphanumeric(c) && c != '_' && (i == 0 || c != '.' && c != '-') {
			return false
		}
	}
	return s != "" && len(s) <= 128
}

// isHost tells whether s may be the host of an image: a name or an IPv6
// address in brackets, with or without a port.
func isHost(s string) bool {
	host, port := s, ""
	if i := strings.LastIndexByte(s, ':'); i >= 0 && !strings.HasSuffix(s, "]") {
		host, port = s[:i], s[i+1:]
		if strings.Trim(port, "0123456789") != "" || port == "" {
			return false
		}
	}
	if inner, ok := strings.CutPrefix(host, "["); ok {
		inner, ok = strings.CutSuffix(inner, "]")
		return ok && inner != "" && strings.Trim(inner, "0123456789abcdefABCDEF:") == ""
	}
	for label := range strings.SplitSeq(host, ".") {
		if label == "" || !isAlphanumeric(label[0]) || !isAlphanumeric(label[len(label)-1]) {
			return false
		}
		for i := range len(label) {
			if !isAlphanumeric(label[i]) && label[i] != '-' {
				return false
			}
		}
	}
	return true
}

// isPathPart tells whether s may stand between the slashes of an image's name:
// words of lower case letters and digits, joined by one dot, one or two
// underscores, or any number of hyphens.
func isPathPart(s string) bool {
	if s == "" || !isLowerOrDigit(s[0]) || !isLowerOrDigit(s[len(s)-1]) {
		return false
	}
	for i := 0; i < len(s); {
		if isLowerOrDigit(s[i]) {
			i++
			continue
		}
		j := i
		for j < len(s) && s[j] == s[i] {
			j++
		}
		switch n := j - i; {
		case s[i] == '.' && n == 1, s[i] == '_' && n <= 2, s[i] == '-':
		default:
			return false
		}
		if !isLowerOrDigit(s[j]) {
			return false
		}
		i = j
	}
	return true
}

// imageParts are the tag and the digest of an image reference.
func imageParts(s string) (tag, digest string) {
	_, tag, digest, _ = splitImage(s)
	return tag, digest
}

// ociDigest is the digest of an oci reference, "" if s is none or has none.
func ociDigest(s string) string {
	rest, ok := strings.CutPrefix(s, "oci://")
	if !ok {
		return ""
	}
	rest, _, _ = strings.Cut(rest, "#")
	_, digest, _ := strings.Cut(rest, "@")
	if d, ok := strings.CutPrefix(digest, "sha256:"); ok && isHexDigest(d) {
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
