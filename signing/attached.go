package signing

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/errdef"
	"oras.land/oras-go/v2/registry"
)

// Kind is what a thing that is attached to an artifact is.
type Kind string

// Kinds of things that are attached.
const (
	KindSignature   Kind = "signature"
	KindAttestation Kind = "attestation"
	KindOther       Kind = "other"
)

// Attached is something that refers to an artifact. What it claims is not
// verified; Verified says what was.
type Attached struct {
	Kind          Kind
	Format        Format             // of signatures and attestations
	Descriptor    ocispec.Descriptor // of the manifest
	ArtifactType  string             // of other things
	PredicateType string             // claimed
	// ClaimedKey is the fingerprint of the key that it says it was signed by.
	ClaimedKey string
	// ClaimedIdentity is that of the certificate in it.
	ClaimedIdentity Identity
	// Verified is what the policy accepted; nil if it did not.
	Verified *Verification
	// Problem is why the policy did not accept it, or why it cannot be read.
	Problem string
}

// ListAttached lists what refers to a subject, and verifies what is signed
// against a policy; the zero policy verifies nothing. At most 256 referrers are
// listed, and the error wraps [ErrTooMuch] if there are more.
func ListAttached(ctx context.Context, target content.ReadOnlyGraphStorage, reference string, subject ocispec.Descriptor, policy Policy) ([]Attached, error) {
	list, err := policy.authorities()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrPolicy, err)
	}
	descs, err := listAll(ctx, target, subject)
	if err != nil {
		return nil, err
	}
	var out []Attached
	for _, desc := range descs {
		a, err := attachedBundle(ctx, target, subject, desc, list, policy)
		if err != nil {
			return nil, err
		}
		out = append(out, a)
	}
	legacy, err := attachedLegacy(ctx, target, reference, subject, list, policy)
	if err != nil {
		return nil, err
	}
	return append(out, legacy...), nil
}

// listAll lists referrers of every type.
func listAll(ctx context.Context, target content.ReadOnlyGraphStorage, subject ocispec.Descriptor) ([]ocispec.Descriptor, error) {
	var list []ocispec.Descriptor
	add := func(page []ocispec.Descriptor) error {
		if list = append(list, page...); len(list) > maxManifests {
			return fmt.Errorf("%w: more than %d referrers of %s", ErrTooMuch, maxManifests, subject.Digest)
		}
		return nil
	}
	var err error
	if lister, ok := target.(registry.ReferrerLister); ok {
		err = lister.Referrers(ctx, subject, "", add)
	} else {
		var all []ocispec.Descriptor
		if all, err = target.Predecessors(ctx, subject); err == nil {
			err = add(all)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("listing the referrers of %s: %w", subject.Digest, err)
	}
	return list, nil
}

// attachedBundle describes one referrer.
func attachedBundle(ctx context.Context, target content.Fetcher, subject, desc ocispec.Descriptor, list []*authority, policy Policy) (Attached, error) {
	a := Attached{Kind: KindOther, Descriptor: desc, ArtifactType: desc.ArtifactType}
	if !mayBeBundle(desc) {
		return a, nil
	}
	cand, err := fetchCandidate(ctx, target, subject.Digest, desc)
	switch t := (transportError{}); {
	case errors.Is(err, errNotBundle):
		return a, nil
	case errors.As(err, &t):
		return a, t.error
	case err != nil:
		a.Problem = err.Error()
		return a, nil
	}
	a.Kind, a.Format, a.ArtifactType, a.PredicateType = KindAttestation, FormatBundle, "", cand.claims
	if cand.claims == PredicateSignature {
		a.Kind = KindSignature
	}
	if vc, err := cand.bundle.VerificationContent(); err == nil {
		if cert := vc.Certificate(); cert != nil {
			a.ClaimedIdentity = certificateIdentity(cert)
		} else if key := vc.PublicKey(); key != nil {
			a.ClaimedKey = fingerprintOfHint(key.Hint())
		}
	}
	for _, auth := range list {
		v, st, err := auth.verifyBundle(cand.bundle, subject.Digest)
		if err == nil && a.Kind == KindSignature {
			err = isSignature(st)
		}
		if err == nil {
			err = hasAnnotations(v.Annotations, policy.Annotations)
		}
		if err != nil {
			a.Problem = fmt.Sprintf("%s: %v", auth, err)
			continue
		}
		v.Signature = desc
		a.Verified, a.Problem, a.PredicateType = v, "", st.GetPredicateType()
		break
	}
	return a, nil
}

// attachedLegacy describes the signatures and attestations of the older format.
func attachedLegacy(ctx context.Context, target content.ReadOnlyStorage, reference string, subject ocispec.Descriptor, list []*authority, policy Policy) ([]Attached, error) {
	var out []Attached
	for _, ending := range []string{signatureTag, attestationTag} {
		more, err := attachedTag(ctx, target, ending, reference, subject, list, policy)
		if err != nil {
			return nil, err
		}
		out = append(out, more...)
	}
	return out, nil
}

// attachedTag describes what is behind one tag of the older format.
func attachedTag(ctx context.Context, target content.ReadOnlyStorage, ending, reference string, subject ocispec.Descriptor, list []*authority, policy Policy) ([]Attached, error) {
	kind := KindSignature
	if ending == attestationTag {
		kind = KindAttestation
	}
	desc, m, err := legacyManifest(ctx, target, subject.Digest, ending)
	switch t := (transportError{}); {
	case errors.Is(err, errdef.ErrNotFound):
		return nil, nil
	case errors.As(err, &t):
		return nil, t.error
	case err != nil:
		return []Attached{{Kind: kind, Format: FormatLegacy, Descriptor: desc, Problem: err.Error()}}, nil
	}
	var out []Attached
	for _, layer := range m.Layers {
		a := Attached{Kind: kind, Format: FormatLegacy, Descriptor: desc}
		fetch := fetchLegacy
		if kind == KindAttestation {
			fetch = fetchLegacyAttestation
		}
		sig, err := fetch(ctx, target, layer)
		if err != nil {
			a.Problem = err.Error()
			out = append(out, a)
			continue
		}
		if cert, err := sig.Cert(); err == nil && cert != nil {
			a.ClaimedIdentity = certificateIdentity(cert)
		}
		if kind == KindAttestation {
			if st, err := legacyStatement(sig); err == nil {
				a.PredicateType = st.GetPredicateType()
			}
		}
		for _, auth := range list {
			var v *Verification
			if kind == KindAttestation {
				v, _, err = auth.verifyLegacyAttestation(ctx, sig, subject.Digest)
			} else {
				v, err = auth.verifyLegacy(ctx, sig, reference, subject.Digest, policy.Mirrors)
			}
			if err == nil {
				err = hasAnnotations(v.Annotations, policy.Annotations)
			}
			if err != nil {
				a.Problem = fmt.Sprintf("%s: %v", auth, err)
				continue
			}
			v.Signature = desc
			a.Verified, a.Problem = v, ""
			break
		}
		out = append(out, a)
	}
	return out, nil
}

// fingerprintOfHint reads the hint that cosign and krmcat put into bundles.
func fingerprintOfHint(hint string) string {
	raw, err := base64.StdEncoding.DecodeString(hint)
	if err != nil || len(raw) != len(digestOfKey{}) {
		return ""
	}
	return "sha256:" + hex.EncodeToString(raw)
}
