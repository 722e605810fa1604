package signing

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/opencontainers/go-digest"
	protobundle "github.com/sigstore/protobuf-specs/gen/pb-go/bundle/v1"
	"github.com/sigstore/sigstore-go/pkg/bundle"
	"github.com/sigstore/sigstore-go/pkg/sign"
	"github.com/sigstore/sigstore-go/pkg/verify"
)

// BundleSuffix is what is added to the name of a file, or to the URL of a
// document, for the name of its signature.
const BundleSuffix = ".sigstore.json"

// SignBlob signs the bytes of a file and returns a bundle in JSON, which
// cosign verify-blob --bundle accepts.
func (k *KeySigner) SignBlob(ctx context.Context, data []byte) ([]byte, error) {
	return k.With(SignOptions{}).SignBlob(ctx, data)
}

// SignBlob signs the bytes of a file; see [KeySigner.SignBlob].
func (s *OptionSigner) SignBlob(ctx context.Context, data []byte) ([]byte, error) {
	b, err := s.maker.bundle(ctx, &sign.PlainData{Data: data})
	if err != nil {
		return nil, fmt.Errorf("signing: %w", err)
	}
	return b, nil
}

// VerifyBlob checks that a bundle signs the bytes of a file and that policy
// accepts it. Bundles of cosign sign-blob are accepted, and bundles with a
// signature statement about the file's digest. The error wraps [ErrPolicy] or
// [ErrTooMuch].
//
// Policy.Annotations can be satisfied by statements only.
func VerifyBlob(_ context.Context, data, bundleJSON []byte, policy Policy) (*Verification, error) {
	if len(bundleJSON) > maxBundleBytes {
		return nil, fmt.Errorf("%w: bundle of %d bytes, at most %d are read", ErrTooMuch, len(bundleJSON), maxBundleBytes)
	}
	list, err := policy.authorities()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrPolicy, err)
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("%w: it names no key and no identity", ErrPolicy)
	}
	b, err := decodeBundle(bundleJSON)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrPolicy, err)
	}
	var problems []error
	for _, a := range list {
		v, err := a.verifyBlob(b, data)
		if err == nil {
			err = hasAnnotations(v.Annotations, policy.Annotations)
		}
		if err == nil {
			return v, nil
		}
		problems = append(problems, fmt.Errorf("%s: %w", a, err))
	}
	return nil, fmt.Errorf("%w: %w", ErrPolicy, joined(problems))
}

// verifyBlob checks a bundle about the bytes of a file.
func (a *authority) verifyBlob(b *bundle.Bundle, data []byte) (*Verification, error) {
	subject := digest.FromBytes(data)
	if _, ok := b.Content.(*protobundle.Bundle_MessageSignature); ok {
		res, err := a.check.Verify(b, verify.NewPolicy(verify.WithArtifact(bytes.NewReader(data)), a.options...))
		if err != nil {
			return nil, err
		}
		v, err := a.verification(b, res)
		if err != nil {
			return nil, err
		}
		v.Subject = subject
		return v, nil
	}
	if t := b.GetDsseEnvelope().GetPayloadType(); t != payloadInToto {
		return nil, fmt.Errorf("envelope of payload type %q, not %s", t, payloadInToto)
	}
	v, st, err := a.verifyBundle(b, subject)
	if err != nil {
		return nil, err
	}
	if err := isSignature(st); err != nil {
		return nil, err
	}
	return v, nil
}

// joined is several errors in one line.
func joined(list []error) error {
	switch len(list) {
	case 0:
		return errors.New("nothing to verify")
	case 1:
		return list[0]
	}
	err := list[0]
	for _, e := range list[1:] {
		err = fmt.Errorf("%w; %w", err, e)
	}
	return err
}
