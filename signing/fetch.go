package signing

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/sigstore/sigstore-go/pkg/bundle"
	"oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/registry"
)

// Limits of what is fetched. cosign has none of them: a referrer of 1 MB makes
// it use gigabytes, as it decompresses what it fetches.
const (
	maxManifestBytes  = 1 << 20
	maxBundleBytes    = 8 << 20
	maxCandidates     = 64   // referrers that may be signatures or attestations
	maxReferrers      = 4096 // referrers of any kind
	maxReferrerPages  = 128
	maxLegacyLayers   = 32
	maxPayloadBytes   = 64 << 10
	bundleMediaType   = "application/vnd.dev.sigstore.bundle.v0.3+json"
	bundleTypePrefix  = "application/vnd.dev.sigstore.bundle"
	annotationContent = "dev.sigstore.bundle.content"
	annotationType    = "dev.sigstore.bundle.predicateType"
)

// candidate is a referrer that may hold a bundle.
type candidate struct {
	desc   ocispec.Descriptor
	bundle *bundle.Bundle
	// claims is the predicate type that the statement says it has. It is not
	// verified: for messages, and to tell signatures from attestations when
	// nothing verifies.
	claims string
}

// transportError is a failure to fetch, as opposed to content that is wrong.
type transportError struct{ error }

func (e transportError) Unwrap() error { return e.error }

// listCandidates lists the referrers of a subject that may hold bundles.
func listCandidates(ctx context.Context, target content.ReadOnlyGraphStorage, subject ocispec.Descriptor) ([]ocispec.Descriptor, error) {
	var list []ocispec.Descriptor
	total, pages := 0, 0
	add := func(page []ocispec.Descriptor) error {
		total += len(page)
		if pages++; total > maxReferrers || pages > maxReferrerPages {
			return fmt.Errorf("%w: more than %d referrers of %s", ErrTooMuch, maxReferrers, subject.Digest)
		}
		for _, d := range page {
			if !mayBeBundle(d) {
				continue
			}
			if len(list) == maxCandidates {
				return fmt.Errorf("%w: more than %d signatures and attestations of %s", ErrTooMuch, maxCandidates, subject.Digest)
			}
			list = append(list, d)
		}
		return nil
	}
	var err error
	if lister, ok := target.(registry.ReferrerLister); ok {
		// The list is not filtered by the registry: some report the type of
		// the config there.
		err = lister.Referrers(ctx, subject, "", add)
	} else {
		var all []ocispec.Descriptor
		if all, err = target.Predecessors(ctx, subject); err == nil {
			err = add(all)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("listing the signatures of %s: %w", subject.Digest, err)
	}
	return list, nil
}

// mayBeBundle goes by what the list says, which is a hint only.
func mayBeBundle(d ocispec.Descriptor) bool {
	if d.MediaType != ocispec.MediaTypeImageManifest {
		return false
	}
	return d.ArtifactType == "" || d.ArtifactType == ocispec.MediaTypeEmptyJSON ||
		strings.HasPrefix(d.ArtifactType, bundleTypePrefix)
}

// errNotBundle: the referrer is something else.
var errNotBundle = errors.New("not a bundle")

// fetchCandidate reads one referrer of subject.
func fetchCandidate(ctx context.Context, target content.Fetcher, subject digest.Digest, desc ocispec.Descriptor) (*candidate, error) {
	manifest, err := fetchManifest(ctx, target, desc)
	if err != nil {
		return nil, err
	}
	if len(manifest.Layers) == 0 || !strings.HasPrefix(manifest.Layers[0].MediaType, bundleTypePrefix) {
		return nil, errNotBundle
	}
	// The list may lie about what refers to the subject.
	if manifest.Subject == nil || manifest.Subject.Digest != subject {
		return nil, errors.New("is attached to another subject")
	}
	if len(manifest.Layers) != 1 {
		return nil, fmt.Errorf("has %d layers, a bundle has one", len(manifest.Layers))
	}
	layer := manifest.Layers[0]
	if layer.MediaType != bundleMediaType {
		return nil, fmt.Errorf("bundle of type %s; only %s is read", layer.MediaType, bundleMediaType)
	}
	data, err := fetchBytes(ctx, target, layer, maxBundleBytes)
	if err != nil {
		return nil, err
	}
	b, claims, err := parseBundle(data)
	if err != nil {
		return nil, err
	}
	return &candidate{desc: desc, bundle: b, claims: claims}, nil
}

// parseBundle reads a bundle that holds an in-toto statement.
func parseBundle(data []byte) (*bundle.Bundle, string, error) {
	b, err := decodeBundle(data)
	if err != nil {
		return nil, "", err
	}
	env := b.GetDsseEnvelope()
	if env == nil {
		return nil, "", errors.New("bundle without an envelope")
	}
	// Checked before anything is verified: the same bytes under another type
	// are not a statement.
	if env.GetPayloadType() != payloadInToto {
		return nil, "", fmt.Errorf("envelope of payload type %q, not %s", env.GetPayloadType(), payloadInToto)
	}
	var claims struct {
		PredicateType string `json:"predicateType"`
	}
	_ = json.Unmarshal(env.GetPayload(), &claims) // the verifier reports what is wrong with it
	return b, claims.PredicateType, nil
}

func decodeBundle(data []byte) (*bundle.Bundle, error) {
	b := &bundle.Bundle{}
	if err := b.UnmarshalJSON(data); err != nil {
		return nil, fmt.Errorf("reading the bundle: %w", err)
	}
	if !b.MinVersion("v0.3") {
		return nil, fmt.Errorf("bundle of type %s; only v0.3 is read", b.GetMediaType())
	}
	return b, nil
}

// fetchManifest reads an image manifest.
func fetchManifest(ctx context.Context, target content.Fetcher, desc ocispec.Descriptor) (*ocispec.Manifest, error) {
	data, err := fetchBytes(ctx, target, desc, maxManifestBytes)
	if err != nil {
		return nil, err
	}
	var m ocispec.Manifest
	if err := json.Unmarshal(data, &m); err != nil {
		return nil, fmt.Errorf("reading the manifest: %w", err)
	}
	return &m, nil
}

// fetchBytes reads a manifest or a blob of at most limit bytes and checks
// size and digest. It never decompresses.
func fetchBytes(ctx context.Context, target content.Fetcher, desc ocispec.Descriptor, limit int64) ([]byte, error) {
	if err := desc.Digest.Validate(); err != nil {
		return nil, fmt.Errorf("digest %q: %w", desc.Digest, err)
	}
	if desc.Size < 0 || desc.Size > limit {
		return nil, fmt.Errorf("%w: %s has %d bytes, at most %d are read", ErrTooMuch, desc.Digest, desc.Size, limit)
	}
	data, err := content.FetchAll(ctx, target, desc)
	switch {
	case err == nil:
		return data, nil
	case errors.Is(err, content.ErrMismatchedDigest), errors.Is(err, content.ErrTrailingData), errors.Is(err, content.ErrInvalidDescriptorSize):
		return nil, fmt.Errorf("fetching %s: %w", desc.Digest, err)
	}
	return nil, transportError{fmt.Errorf("fetching %s: %w", desc.Digest, err)}
}
