package regstore

import (
	_ "crypto/sha256" // digests of these algorithms can be verified
	_ "crypto/sha512"
	"fmt"

	"github.com/opencontainers/go-digest"

	"github.com/krmcat/krmcat/internal/lazyregexp"
)

// MaxRepositoryBytes is the longest repository name, as clients keep host and
// name together within 255 characters.
const MaxRepositoryBytes = 255

var (
	repositoryPattern = lazyregexp.New(`^[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*$`)
	tagPattern        = lazyregexp.New(`^[a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}$`)
)

// ValidRepository reports whether name may name a repository
// (distribution-spec, "Pulling manifests"). A valid name has no empty,
// "." or ".." component, and none that begins with '_' or '.'.
func ValidRepository(name string) bool {
	return len(name) <= MaxRepositoryBytes && repositoryPattern.MatchString(name)
}

// ValidTag reports whether tag may name a tag (distribution-spec, "Pulling
// manifests").
func ValidTag(tag string) bool { return tagPattern.MatchString(tag) }

// ParseDigest checks a digest. The algorithms are sha256 and sha512, the
// registered ones of the image specification that every client knows.
func ParseDigest(s string) (digest.Digest, error) {
	d, err := digest.Parse(s)
	if err != nil {
		return "", err
	}
	if a := d.Algorithm(); a != digest.SHA256 && a != digest.SHA512 {
		return "", fmt.Errorf("%w: %s (sha256 and sha512 are supported)", digest.ErrDigestUnsupported, a)
	}
	return d, nil
}
