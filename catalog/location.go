package catalog

import (
	"github.com/opencontainers/go-digest"
)

// Location says where a document or a runtime is: a file, an https URL, a git
// reference or an OCI reference, with an optional digest of the content.
// It is parsed by [ParseLocation] and comparable.
type Location struct {
	Scheme string // file, https, http, git or oci
	// Ref is what follows the scheme: a slash-separated path for file, a URL
	// for http and https, a git reference, or host/repository[:tag] for oci.
	Ref string
	// Digest is the digest that an oci reference or the document gives. For
	// oci it is the digest of the manifest.
	Digest digest.Digest
	// Path is a file inside an oci artifact, from the fragment; may be empty.
	Path string
}
