// Package signing signs artifacts and files and verifies their signatures, in
// the formats that cosign writes and reads.
//
// A signature is a Sigstore bundle (a signed in-toto statement about the
// subject's digest) that is attached to its subject as a referrer. The older
// format, a tag sha256-….sig with simple signing payloads, can be written as
// well and is verified with the same requirements.
//
// Everything that comes from a registry is taken for hostile: sizes and
// counts are bounded, nothing is decompressed, and what a signature says is
// read only after it was verified.
//
// The package works on any target that can list predecessors and needs
// nothing else of krmcat. The major version of cosign shows in legacy.go only.
package signing

import (
	"context"
	"crypto/x509"
	"errors"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/content"
)

// Signer attaches a signature to a subject and returns the descriptor of the
// signature's manifest. Reference is the name of the subject's repository,
// such as localhost:5000/fn/set-labels, which the signature records. The subject
// may say which function it belongs to; see [Named].
type Signer interface {
	Sign(ctx context.Context, target oras.GraphTarget, reference string, subject ocispec.Descriptor) (ocispec.Descriptor, error)
}

// Verifier checks that a subject carries a signature that policy accepts.
// [Checker] is the one for real signatures.
type Verifier interface {
	// Verify returns the signature that satisfied the policy. If the
	// subject says which function it belongs to, see [Named], signatures for
	// another are not acceptable. The error wraps [ErrUnsigned] if the subject has none, and [ErrPolicy] if it
	// has some but none is acceptable.
	Verify(ctx context.Context, target content.ReadOnlyGraphStorage, reference string, subject ocispec.Descriptor, policy Policy) (*Verification, error)
}

// Policy says which signatures are acceptable: those of any of the keys, or
// of any of the identities. The zero value accepts none.
type Policy struct {
	// Keys are public keys, as [LoadPublicKey] returns them: *ecdsa.PublicKey
	// (P-256, P-384, P-521), ed25519.PublicKey or *rsa.PublicKey (2048, 3072
	// or 4096 bits).
	Keys []any
	// Identities are keyless signers, whose certificates Root vouches for.
	Identities []Identity
	// Root is needed for Identities, and for Keys if Evidence asks for
	// anything.
	Root *TrustedRoot
	// Evidence is required besides the signature itself.
	Evidence Evidence
	// Annotations have to be among those that were signed.
	Annotations map[string]string
	// Mirrors maps the name of a repository, as content is fetched now, to
	// the name that it was signed under. Only the older format records names.
	Mirrors map[string]string
	// NoLegacy leaves signatures and attestations of the older format out.
	NoLegacy bool
}

// Identity is a keyless signer: who vouched for it (the issuer of its token)
// and what it is called in its certificate, such as an e-mail address or the
// URL of a workflow. In a policy the issuer and exactly one of the others are
// required.
type Identity struct {
	Issuer  string `json:"issuer"`
	Subject string `json:"subject,omitempty"`
	// SubjectPrefix is the beginning of the subject. It has to end in / or @,
	// so that a neighbour with a longer name does not match.
	SubjectPrefix string `json:"subjectPrefix,omitempty"`
	// SubjectRegexp has to match the whole subject, anchored or not.
	SubjectRegexp string `json:"subjectRegexp,omitempty"`
}

// Evidence is what has to vouch for a signature besides the signature itself.
//
// For identities the zero value requires an entry in a transparency log, a
// trusted time of signing (from a timestamp authority or the log) and a
// certificate timestamp (SCT). For keys it requires nothing.
type Evidence struct {
	// Timestamps is how many timestamp authorities have to vouch for the time.
	Timestamps int
	// Tlog is how many transparency logs have to hold the signature. For
	// identities zero means one if Timestamps is zero as well.
	Tlog int
	// NoSCT accepts certificates that no certificate log vouches for.
	NoSCT bool
}

// Format is how a signature is stored.
type Format string

// Formats of signatures.
const (
	FormatBundle Format = "bundle" // Sigstore bundle v0.3, a referrer
	FormatLegacy Format = "legacy" // simple signing, the tag sha256-….sig
)

// Verification is the outcome of a successful verification.
type Verification struct {
	Subject     digest.Digest      // what was signed
	Signature   ocispec.Descriptor // the manifest that holds the signature; empty for files
	Format      Format
	Key         string            // fingerprint of the key; empty if keyless
	Identity    Identity          // keyless: what the certificate says
	Certificate *x509.Certificate // keyless
	// Time is when the signature was made, as a timestamp authority or a
	// transparency log vouches for. Zero if none does.
	Time time.Time
	// Reference is the repository that the signature records, if it does.
	Reference string
	// Annotations are the signed ones.
	Annotations map[string]string
}

// Errors reported by this package; test for them with [errors.Is].
var (
	ErrUnsigned = errors.New("artifact is not signed")
	ErrPolicy   = errors.New("no signature satisfies the policy")
	// ErrTooMuch: a registry offers more, or larger, signatures than are
	// looked at. Nothing is accepted then.
	ErrTooMuch = errors.New("too many or too large signatures")
	// ErrKey: a key cannot be read: it is no key, of a kind that is not
	// supported, or the password is wrong.
	ErrKey = errors.New("cannot use the key")
)
