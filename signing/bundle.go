package signing

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/sigstore/sigstore-go/pkg/root"
	"github.com/sigstore/sigstore-go/pkg/sign"
	"google.golang.org/protobuf/encoding/protojson"
	"oras.land/oras-go/v2"
)

// SignOptions are the optional settings of a signature.
type SignOptions struct {
	// Annotations are signed along; a policy can require them.
	Annotations map[string]string
	// Legacy also writes the older format, for verifiers that do not look
	// for bundles.
	Legacy bool
	// NoBundle leaves the bundle out; it goes with Legacy. cosign 2.6 looks at
	// nothing else as soon as there is a bundle, and then wants a trusted root
	// even for keys.
	NoBundle bool
	// Services vouch for the signature, besides the key. Nil means none.
	Services *Services
	// Created is the time that the manifest of the signature says it was
	// made at. It is not signed. Zero means now.
	Created time.Time
}

// Sign attaches a bundle to subject and implements [Signer].
func (k *KeySigner) Sign(ctx context.Context, target oras.GraphTarget, reference string, subject ocispec.Descriptor) (ocispec.Descriptor, error) {
	return k.With(SignOptions{}).Sign(ctx, target, reference, subject)
}

// With returns a signer that signs with k and options.
func (k *KeySigner) With(opts SignOptions) *OptionSigner {
	return &OptionSigner{maker: keyWithServices{k, opts.Services}, opts: opts}
}

// OptionSigner is a signer with options; see [KeySigner.With].
type OptionSigner struct {
	maker bundleMaker
	opts  SignOptions
}

var _ Signer = (*OptionSigner)(nil)

// keyWithServices is a key whose signatures others vouch for.
type keyWithServices struct {
	key      *KeySigner
	services *Services
}

func (k keyWithServices) bundle(ctx context.Context, content sign.Content) ([]byte, error) {
	opts := k.services.options(false)
	opts.Context = ctx
	if opts.TrustedRoot != nil {
		key := root.NewExpiringKey(k.key.sv, time.Time{}, time.Time{})
		opts.TrustedRoot = keyMaterial{opts.TrustedRoot, root.NewTrustedPublicKeyMaterial(
			func(string) (root.TimeConstrainedVerifier, error) { return key, nil })}
	}
	return makeBundle(content, keypair{k.key}, opts)
}

// bundleMaker signs statements and plain bytes; keys and keyless signers do.
type bundleMaker interface {
	bundle(ctx context.Context, content sign.Content) ([]byte, error)
}

// Sign implements [Signer].
func (s *OptionSigner) Sign(ctx context.Context, target oras.GraphTarget, reference string, subject ocispec.Descriptor) (ocispec.Descriptor, error) {
	if s.opts.NoBundle && !s.opts.Legacy {
		return ocispec.Descriptor{}, errors.New("signing: a format is needed, a bundle or the older one")
	}
	var desc ocispec.Descriptor
	if !s.opts.NoBundle {
		st, err := newStatement(reference, subject.Digest, PredicateSignature, nil, withNames(s.opts.Annotations, subject))
		if err != nil {
			return ocispec.Descriptor{}, err
		}
		if desc, err = attachStatement(ctx, s.maker, target, subject, st, PredicateSignature, s.opts.Created); err != nil {
			return ocispec.Descriptor{}, fmt.Errorf("signing %s@%s: %w", reference, subject.Digest, err)
		}
	}
	if s.opts.Legacy {
		legacy, err := attachLegacy(ctx, s.maker, target, reference, subject, withNames(s.opts.Annotations, subject))
		if err != nil {
			return ocispec.Descriptor{}, fmt.Errorf("signing %s@%s in the older format: %w", reference, subject.Digest, err)
		}
		if s.opts.NoBundle {
			desc = legacy
		}
	}
	return desc, nil
}

// Signed reports whether subject carries a signature by this key already, with
// the same annotations, and in the older format too if it is asked for, so
// that signing again would add nothing.
func (k *KeySigner) Signed(ctx context.Context, target oras.GraphTarget, reference string, subject ocispec.Descriptor, opts SignOptions) (bool, error) {
	return signed(ctx, target, reference, subject, Policy{Keys: []any{k.public}, Annotations: withNames(opts.Annotations, subject)}, opts)
}

// makeBundle signs and returns the bundle in JSON.
func makeBundle(content sign.Content, kp sign.Keypair, opts sign.BundleOptions) ([]byte, error) {
	b, err := sign.Bundle(content, kp, opts)
	if err != nil {
		return nil, err
	}
	data, err := protojson.Marshal(b)
	if err != nil {
		return nil, fmt.Errorf("writing the bundle: %w", err)
	}
	// protojson puts random blanks into its output.
	var raw json.RawMessage = data
	return json.Marshal(raw)
}

// attachStatement signs a statement and attaches it to its subject in the
// layout that cosign uses.
func attachStatement(ctx context.Context, maker bundleMaker, target oras.Target, subject ocispec.Descriptor, st []byte, predicateType string, created time.Time) (ocispec.Descriptor, error) {
	data, err := maker.bundle(ctx, &sign.DSSEData{Data: st, PayloadType: payloadInToto})
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	if created.IsZero() {
		created = time.Now()
	}
	layer := ocispec.Descriptor{MediaType: bundleMediaType, Digest: digest.FromBytes(data), Size: int64(len(data))}
	if err := pushBytes(ctx, target, layer, data); err != nil {
		return ocispec.Descriptor{}, err
	}
	desc, err := oras.PackManifest(ctx, target, oras.PackManifestVersion1_1, bundleMediaType, oras.PackManifestOptions{
		Subject: &ocispec.Descriptor{MediaType: subject.MediaType, Digest: subject.Digest, Size: subject.Size},
		Layers:  []ocispec.Descriptor{layer},
		ManifestAnnotations: map[string]string{
			ocispec.AnnotationCreated: created.UTC().Format(time.RFC3339),
			annotationContent:         "dsse-envelope",
			annotationType:            predicateType,
		},
	})
	if err != nil {
		return ocispec.Descriptor{}, fmt.Errorf("attaching the signature: %w", err)
	}
	return desc, nil
}
