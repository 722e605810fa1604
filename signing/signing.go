// Package signing signs artifacts and verifies their signatures, in the
// formats that cosign writes and reads.
//
// Signatures are attached as referrers of the subject, so the package works
// on any target that can list predecessors and needs nothing else of krmcat.
package signing

import (
	"context"
	"crypto/x509"
	"errors"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/content"
)

// Signer attaches a signature to a subject and returns the descriptor of the
// signature's manifest. Reference is the name of the subject's repository,
// such as localhost:5000/fn/set-labels, which the signature records.
type Signer interface {
	Sign(ctx context.Context, target oras.GraphTarget, reference string, subject ocispec.Descriptor) (ocispec.Descriptor, error)
}

// Verifier checks that a subject carries a signature that policy accepts.
type Verifier interface {
	// Verify returns the signature that satisfied the policy. The error
	// wraps [ErrUnsigned] if the subject has none, and [ErrPolicy] if it
	// has some but none is acceptable.
	Verify(ctx context.Context, target content.ReadOnlyGraphStorage, reference string, subject ocispec.Descriptor, policy Policy) (*Verification, error)
}

// Policy says which signatures are acceptable. The zero value accepts none.
type Policy struct {
	Identities []Identity // keyless signers
	Keys       []any      // public keys
}

// Identity is a keyless signer: a certificate subject and who vouched for it.
type Identity struct{ Issuer, Subject string }

// Verification is the outcome of a successful verification.
type Verification struct {
	Signature   ocispec.Descriptor
	Identity    Identity
	Certificate *x509.Certificate
	Time        time.Time
}

// Errors reported by this package; test for them with [errors.Is].
var (
	ErrUnsigned = errors.New("artifact is not signed")
	ErrPolicy   = errors.New("no signature satisfies the policy")
)
