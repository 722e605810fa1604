package signing

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	intoto "github.com/in-toto/attestation/go/v1"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/secure-systems-lab/go-securesystemslib/dsse"
	"github.com/sigstore/cosign/v2/pkg/cosign"
	cbundle "github.com/sigstore/cosign/v2/pkg/cosign/bundle"
	"github.com/sigstore/cosign/v2/pkg/oci"
	"github.com/sigstore/cosign/v2/pkg/oci/static"
	ctypes "github.com/sigstore/cosign/v2/pkg/types"
	"github.com/sigstore/sigstore-go/pkg/sign"
	"github.com/sigstore/sigstore/pkg/signature/payload"
	"google.golang.org/protobuf/encoding/protojson"
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/errdef"
)

// This file holds all that depends on cosign's own module: the older format,
// whose only definition is cosign's code. Fetching is ours, bounded; checking
// is cosign's, with what it leaves out added.

const (
	mediaTypeDockerManifest = "application/vnd.docker.distribution.manifest.v2+json"
	maxAnnotationBytes      = 256 << 10 // certificates, log entries and timestamps of one signature
)

// Endings of the tags that hold the signatures and the attestations of a
// subject.
const (
	signatureTag   = ".sig"
	attestationTag = ".att"
)

// legacyTag is the tag that holds the signatures of a subject, or its
// attestations.
func legacyTag(d digest.Digest, ending string) string {
	return strings.Replace(d.String(), ":", "-", 1) + ending
}

// attachLegacy adds a signature to the tag of a subject. Of two signers who do
// so at the same moment one may lose, as with cosign.
func attachLegacy(ctx context.Context, maker bundleMaker, target oras.Target, reference string, subject ocispec.Descriptor, annotations map[string]string) (ocispec.Descriptor, error) {
	p, err := legacyPayload(reference, subject.Digest, annotations)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	sig, err := signLegacy(ctx, maker, p)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	manifest := &ocispec.Manifest{MediaType: ocispec.MediaTypeImageManifest}
	manifest.SchemaVersion = 2
	if _, old, err := legacyManifest(ctx, target, subject.Digest, signatureTag); err == nil {
		manifest.Layers = old.Layers
	} else if !errors.Is(err, errdef.ErrNotFound) {
		return ocispec.Descriptor{}, err
	}
	if len(manifest.Layers) >= maxLegacyLayers {
		return ocispec.Descriptor{}, fmt.Errorf("%w: %s has %d signatures already", ErrTooMuch, legacyTag(subject.Digest, signatureTag), len(manifest.Layers))
	}
	layer := ocispec.Descriptor{
		MediaType:   string(ctypes.SimpleSigningMediaType),
		Digest:      digest.FromBytes(p),
		Size:        int64(len(p)),
		Annotations: sig,
	}
	if err := pushBytes(ctx, target, layer, p); err != nil {
		return ocispec.Descriptor{}, err
	}
	manifest.Layers = append(slices.Clone(manifest.Layers), layer)
	manifest.Config, err = pushLegacyConfig(ctx, target, manifest.Layers)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	data, err := json.Marshal(manifest)
	if err != nil {
		return ocispec.Descriptor{}, fmt.Errorf("writing the manifest: %w", err)
	}
	desc, err := oras.TagBytes(ctx, target, ocispec.MediaTypeImageManifest, data, legacyTag(subject.Digest, signatureTag))
	if err != nil {
		return ocispec.Descriptor{}, fmt.Errorf("tagging %s: %w", legacyTag(subject.Digest, signatureTag), err)
	}
	return desc, nil
}

// pushLegacyConfig pushes the image config that readers expect to agree with
// the layers.
func pushLegacyConfig(ctx context.Context, target oras.Target, layers []ocispec.Descriptor) (ocispec.Descriptor, error) {
	var image ocispec.Image
	image.RootFS.Type = "layers"
	for _, l := range layers {
		image.RootFS.DiffIDs = append(image.RootFS.DiffIDs, l.Digest) // nothing is compressed
		image.History = append(image.History, ocispec.History{Created: &time.Time{}})
	}
	data, err := json.Marshal(image)
	if err != nil {
		return ocispec.Descriptor{}, fmt.Errorf("writing the config: %w", err)
	}
	desc := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageConfig, Digest: digest.FromBytes(data), Size: int64(len(data))}
	return desc, pushBytes(ctx, target, desc, data)
}

// pushBytes pushes a blob unless it is there already.
func pushBytes(ctx context.Context, target content.Storage, desc ocispec.Descriptor, data []byte) error {
	if ok, err := target.Exists(ctx, desc); err == nil && ok {
		return nil
	}
	if err := target.Push(ctx, desc, bytes.NewReader(data)); err != nil && !errors.Is(err, errdef.ErrAlreadyExists) {
		return fmt.Errorf("pushing %s: %w", desc.Digest, err)
	}
	return nil
}

// legacyPayload is what is signed in the older format.
func legacyPayload(reference string, d digest.Digest, annotations map[string]string) ([]byte, error) {
	ref, err := name.NewDigest(reference + "@" + d.String())
	if err != nil {
		return nil, fmt.Errorf("reference %q: %w", reference, err)
	}
	p := payload.Cosign{Image: ref}
	if len(annotations) > 0 {
		p.Annotations = make(map[string]any, len(annotations))
		for k, v := range annotations {
			p.Annotations[k] = v
		}
	}
	return p.MarshalJSON()
}

// signLegacy signs a payload of the older format: as a bundle about plain bytes,
// whose parts go into annotations.
func signLegacy(ctx context.Context, maker bundleMaker, p []byte) (map[string]string, error) {
	data, err := maker.bundle(ctx, &sign.PlainData{Data: p})
	if err != nil {
		return nil, err
	}
	b, err := decodeBundle(data)
	if err != nil {
		return nil, err
	}
	a := map[string]string{
		static.SignatureAnnotationKey: base64.StdEncoding.EncodeToString(b.GetMessageSignature().GetSignature()),
	}
	material := b.GetVerificationMaterial()
	if cert := material.GetCertificate(); cert != nil {
		a[static.CertificateAnnotationKey] = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.GetRawBytes()}))
		a[static.ChainAnnotationKey] = ""
	}
	if ts := material.GetTimestampVerificationData().GetRfc3161Timestamps(); len(ts) > 0 {
		if err := setJSON(a, static.RFC3161TimestampAnnotationKey, cbundle.RFC3161Timestamp{SignedRFC3161Timestamp: ts[0].GetSignedTimestamp()}); err != nil {
			return nil, err
		}
	}
	for _, e := range material.GetTlogEntries() {
		// Only the first version of Rekor promises inclusion, which is all
		// that the older format can hold.
		set := e.GetInclusionPromise().GetSignedEntryTimestamp()
		if len(set) == 0 {
			continue
		}
		entry := cbundle.RekorBundle{SignedEntryTimestamp: set, Payload: cbundle.RekorPayload{
			Body:           base64.StdEncoding.EncodeToString(e.GetCanonicalizedBody()),
			IntegratedTime: e.GetIntegratedTime(),
			LogIndex:       e.GetLogIndex(),
			LogID:          hex.EncodeToString(e.GetLogId().GetKeyId()),
		}}
		if err := setJSON(a, static.BundleAnnotationKey, entry); err != nil {
			return nil, err
		}
		break
	}
	return a, nil
}

func setJSON(m map[string]string, key string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("writing %s: %w", key, err)
	}
	m[key] = string(data)
	return nil
}

// legacyManifest fetches the manifest behind a tag of a subject. The error
// wraps [errdef.ErrNotFound] if there is none.
func legacyManifest(ctx context.Context, target content.ReadOnlyStorage, subject digest.Digest, ending string) (ocispec.Descriptor, *ocispec.Manifest, error) {
	resolver, ok := target.(content.Resolver)
	if !ok {
		return ocispec.Descriptor{}, nil, errdef.ErrNotFound // without tags there is none
	}
	tag := legacyTag(subject, ending)
	desc, err := resolver.Resolve(ctx, tag)
	if err != nil {
		if errors.Is(err, errdef.ErrNotFound) {
			return ocispec.Descriptor{}, nil, err
		}
		return ocispec.Descriptor{}, nil, transportError{fmt.Errorf("resolving %s: %w", tag, err)}
	}
	if desc.MediaType != ocispec.MediaTypeImageManifest && desc.MediaType != mediaTypeDockerManifest {
		return desc, nil, fmt.Errorf("%s is a %s, not an image manifest", tag, desc.MediaType)
	}
	m, err := fetchManifest(ctx, target, desc)
	if err != nil {
		return desc, nil, fmt.Errorf("%s: %w", tag, err)
	}
	if len(m.Layers) > maxLegacyLayers {
		return desc, nil, fmt.Errorf("%w: %s has %d layers, at most %d are read", ErrTooMuch, tag, len(m.Layers), maxLegacyLayers)
	}
	return desc, m, nil
}

// fetchLegacy reads one signature of the older format.
func fetchLegacy(ctx context.Context, target content.Fetcher, layer ocispec.Descriptor) (oci.Signature, error) {
	return fetchLegacyLayer(ctx, target, layer, string(ctypes.SimpleSigningMediaType), maxPayloadBytes, layer.Annotations[static.SignatureAnnotationKey])
}

// fetchLegacyAttestation reads one attestation of the older format. It holds
// its signature itself: what an annotation says is left out, or a timestamp of
// that would be taken for one of the attestation.
func fetchLegacyAttestation(ctx context.Context, target content.Fetcher, layer ocispec.Descriptor) (oci.Signature, error) {
	return fetchLegacyLayer(ctx, target, layer, ctypes.DssePayloadType, maxBundleBytes, "")
}

// fetchLegacyLayer reads a layer of the older format with its annotations.
func fetchLegacyLayer(ctx context.Context, target content.Fetcher, layer ocispec.Descriptor, mediaType string, limit int64, signature string) (oci.Signature, error) {
	if layer.MediaType != mediaType {
		return nil, fmt.Errorf("layer of type %s, not %s", layer.MediaType, mediaType)
	}
	n := 0
	for k, v := range layer.Annotations {
		n += len(k) + len(v)
	}
	if n > maxAnnotationBytes {
		return nil, fmt.Errorf("%w: %d bytes of annotations, at most %d are read", ErrTooMuch, n, maxAnnotationBytes)
	}
	data, err := fetchBytes(ctx, target, layer, limit)
	if err != nil {
		return nil, err
	}
	a := layer.Annotations
	opts := []static.Option{static.WithAnnotations(a), static.WithLayerMediaType(types.MediaType(mediaType))}
	if cert := a[static.CertificateAnnotationKey]; cert != "" {
		opts = append(opts, static.WithCertChain([]byte(cert), []byte(a[static.ChainAnnotationKey])))
	}
	if v := a[static.BundleAnnotationKey]; v != "" {
		var b cbundle.RekorBundle
		if err := json.Unmarshal([]byte(v), &b); err != nil {
			return nil, fmt.Errorf("reading the log entry: %w", err)
		}
		opts = append(opts, static.WithBundle(&b))
	}
	if v := a[static.RFC3161TimestampAnnotationKey]; v != "" {
		var ts cbundle.RFC3161Timestamp
		if err := json.Unmarshal([]byte(v), &ts); err != nil {
			return nil, fmt.Errorf("reading the timestamp: %w", err)
		}
		opts = append(opts, static.WithRFC3161Timestamp(&ts))
	}
	return static.NewSignature(data, signature, opts...)
}

// verifyLegacy checks a signature of the older format: with cosign, and then
// what cosign leaves out.
func (a *authority) verifyLegacy(ctx context.Context, sig oci.Signature, reference string, subject digest.Digest, mirrors map[string]string) (*Verification, error) {
	hash, err := v1.NewHash(subject.String())
	if err != nil {
		return nil, err
	}
	co, err := a.legacyOptions()
	if err != nil {
		return nil, err
	}
	when, err := a.legacyTime(sig)
	if err != nil {
		return nil, err
	}
	co.ClaimVerifier = cosign.SimpleClaimVerifier // without it the digest is not compared
	if err := guard(func() error { _, err := cosign.VerifyImageSignature(ctx, sig, hash, co); return err }); err != nil {
		return nil, err
	}
	data, err := sig.Payload()
	if err != nil {
		return nil, err
	}
	var p payload.SimpleContainerImage
	if err := json.Unmarshal(data, &p); err != nil {
		return nil, fmt.Errorf("reading the payload: %w", err)
	}
	if p.Critical.Type != payload.CosignSignatureType {
		return nil, fmt.Errorf("payload of type %q, not %q", p.Critical.Type, payload.CosignSignatureType)
	}
	if p.Critical.Image.DockerManifestDigest != subject.String() {
		return nil, fmt.Errorf("signed for %s", p.Critical.Image.DockerManifestDigest)
	}
	signedAs := p.Critical.Identity.DockerReference
	if err := sameRepository(signedAs, reference, mirrors); err != nil {
		return nil, err
	}
	v := &Verification{Subject: subject, Format: FormatLegacy, Key: a.fingerprint, Reference: signedAs, Time: when}
	for k, x := range p.Optional {
		if s, ok := x.(string); ok {
			if v.Annotations == nil {
				v.Annotations = map[string]string{}
			}
			v.Annotations[k] = s
		}
	}
	return v, a.legacyIdentity(v, sig)
}

// legacyIdentity says in a verification who signed without a key.
func (a *authority) legacyIdentity(v *Verification, sig oci.Signature) error {
	if a.key != nil {
		return nil
	}
	cert, err := sig.Cert()
	if err != nil {
		return err
	}
	v.Certificate = cert
	v.Identity = certificateIdentity(cert)
	return nil
}

// verifyLegacyAttestation checks an attestation of the older format with
// cosign, and reads the statement that was verified as bundles' are read.
func (a *authority) verifyLegacyAttestation(ctx context.Context, att oci.Signature, subject digest.Digest) (*Verification, *intoto.Statement, error) {
	hash, err := v1.NewHash(subject.String())
	if err != nil {
		return nil, nil, err
	}
	st, err := legacyStatement(att)
	if err != nil {
		return nil, nil, err
	}
	s, err := subjectOf(st, subject)
	if err != nil {
		return nil, nil, err
	}
	co, err := a.legacyOptions()
	if err != nil {
		return nil, nil, err
	}
	when, err := a.legacyTime(att)
	if err != nil {
		return nil, nil, err
	}
	co.ClaimVerifier = cosign.IntotoSubjectClaimVerifier
	// This is what VerifyImageAttestation calls for each, but in goroutines of
	// its own, whose panics nobody can catch.
	if err := guard(func() error { _, err := cosign.VerifyBlobAttestation(ctx, att, hash, co); return err }); err != nil {
		return nil, nil, err
	}
	v := &Verification{Subject: subject, Format: FormatLegacy, Key: a.fingerprint, Reference: s.GetName(), Annotations: annotationsOf(s), Time: when}
	return v, st, a.legacyIdentity(v, att)
}

// legacyStatement reads the statement in an envelope, unverified.
func legacyStatement(att oci.Signature) (*intoto.Statement, error) {
	data, err := att.Payload()
	if err != nil {
		return nil, err
	}
	// As cosign reads it, so that both see the same payload.
	var env dsse.Envelope
	if err := json.Unmarshal(data, &env); err != nil {
		return nil, fmt.Errorf("reading the envelope: %w", err)
	}
	if env.PayloadType != payloadInToto {
		return nil, fmt.Errorf("envelope of payload type %q, not %s", env.PayloadType, payloadInToto)
	}
	payload, err := env.DecodeB64Payload()
	if err != nil {
		return nil, fmt.Errorf("reading the envelope: %w", err)
	}
	st := &intoto.Statement{}
	if err := protojson.Unmarshal(payload, st); err != nil {
		return nil, fmt.Errorf("reading the statement: %w", err)
	}
	return st, nil
}

// eachLegacy calls fn with each signature of the older format that an
// authority vouches for, until it is enough.
func (c *collector) eachLegacy(ctx context.Context, list []*authority, fn signatureFunc) error {
	return c.eachLegacyLayer(ctx, signatureTag, fetchLegacy, list, func(a *authority, sig oci.Signature) (*Verification, func() (bool, error), error) {
		v, err := a.verifyLegacy(ctx, sig, c.reference, c.subject.Digest, c.mirrors)
		return v, func() (bool, error) { return fn(a, v) }, err
	})
}

// eachLegacyAttestation calls fn with each attestation of the older format and
// of the wanted type that an authority vouches for, until it is enough.
func (c *collector) eachLegacyAttestation(ctx context.Context, list []*authority, fn statementFunc) error {
	return c.eachLegacyLayer(ctx, attestationTag, fetchLegacyAttestation, list, func(a *authority, att oci.Signature) (*Verification, func() (bool, error), error) {
		if st, err := legacyStatement(att); err == nil && st.GetPredicateType() != c.predicateType {
			return nil, nil, errOtherType
		}
		v, st, err := a.verifyLegacyAttestation(ctx, att, c.subject.Digest)
		if err == nil {
			err = isAttestation(st, c.predicateType)
		}
		return v, func() (bool, error) { return fn(a, v, st) }, err
	})
}

// errOtherType: an attestation of the older format is of another type than is
// looked for, by what it says. All types are behind one tag.
var errOtherType = errors.New("other type")

// eachLegacyLayer goes through what is behind a tag of the older format. Check
// verifies one for an authority, and its result says whether it is enough.
func (c *collector) eachLegacyLayer(ctx context.Context, ending string,
	fetch func(context.Context, content.Fetcher, ocispec.Descriptor) (oci.Signature, error), list []*authority,
	check func(*authority, oci.Signature) (*Verification, func() (enough bool, err error), error)) error {
	desc, m, err := legacyManifest(ctx, c.target, c.subject.Digest, ending)
	switch {
	case errors.Is(err, errdef.ErrNotFound):
		return nil
	case errors.Is(err, ErrTooMuch):
		return err
	case err != nil:
		c.note(desc.Digest, err)
		return nil
	}
	for _, layer := range m.Layers {
		sig, err := fetch(ctx, c.target, layer)
		if err != nil {
			c.note(layer.Digest, err)
			continue
		}
		var problem error
		accepted := false
		for _, a := range list {
			v, result, err := check(a, sig)
			if err == nil {
				err = checkNames(v.Annotations, c.subject)
			}
			if err == nil {
				v.Signature = desc
				var enough bool
				if enough, err = result(); enough {
					return nil
				}
			}
			if err != nil {
				problem = fmt.Errorf("%s: %w", a, err)
			} else {
				accepted = true
			}
		}
		switch {
		case accepted:
		case errors.Is(problem, errOtherType):
			c.others++
		default:
			c.note(layer.Digest, problem)
		}
	}
	return ctx.Err()
}

// legacyOptions are cosign's options for what the authority requires.
func (a *authority) legacyOptions() (*cosign.CheckOpts, error) {
	if a.evidence.Timestamps > 1 || a.evidence.Tlog > 1 {
		return nil, errors.New("signatures of the older format carry one timestamp and one log entry at most")
	}
	co := &cosign.CheckOpts{
		Offline:             true,
		IgnoreTlog:          a.evidence.Tlog == 0,
		IgnoreSCT:           a.evidence.NoSCT || a.key != nil,
		UseSignedTimestamps: a.evidence.Timestamps > 0,
		TrustedMaterial:     a.root,
		MaxWorkers:          1,
	}
	if a.key != nil {
		co.SigVerifier = a.verifier
		return co, nil
	}
	// Without identities cosign accepts every certificate.
	id := cosign.Identity{Issuer: a.identity.Issuer, Subject: a.identity.Subject, SubjectRegExp: a.identity.regexp()}
	co.Identities = []cosign.Identity{id}
	return co, nil
}

// guard lets cosign check a signature. cosign panics on some that are made to
// do so; those known are kept from it, and the rest are errors.
func guard(check func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("malformed signature: %v", r)
		}
	}()
	return check()
}

// legacyTime is the time of signing that the required evidence claims,
// checked against the window of the key. The timestamp is verified here: cosign
// takes a signature without one, and panics at one that no trusted authority
// made. The log entry is verified by cosign after this.
func (a *authority) legacyTime(sig oci.Signature) (time.Time, error) {
	var t time.Time
	entry, err := sig.Bundle()
	if err != nil {
		return t, fmt.Errorf("log entry: %w", err)
	}
	if entry != nil {
		if _, ok := entry.Payload.Body.(string); !ok {
			return t, errors.New("log entry: no body") // cosign panics at it
		}
	}
	if a.evidence.Tlog > 0 {
		if entry == nil {
			return t, errors.New("no log entry")
		}
		t = time.Unix(entry.Payload.IntegratedTime, 0)
	}
	if a.evidence.Timestamps > 0 {
		ts, err := sig.RFC3161Timestamp()
		if err != nil {
			return t, fmt.Errorf("timestamp: %w", err)
		}
		if ts == nil {
			return t, errors.New("no timestamp")
		}
		if t, err = a.timestamp(sig, ts.SignedRFC3161Timestamp); err != nil {
			return t, err
		}
	}
	return t, a.window(t)
}

// timestamp verifies a timestamp of a signature, or of the whole envelope of
// an attestation.
func (a *authority) timestamp(sig oci.Signature, ts []byte) (time.Time, error) {
	raw, err := timestamped(sig)
	if err != nil {
		return time.Time{}, err
	}
	for _, tsa := range a.root.TimestampingAuthorities() {
		if t, err := tsa.Verify(ts, raw); err == nil {
			return t.Time, nil
		}
	}
	return time.Time{}, errors.New("no trusted authority made the timestamp")
}

// timestamped is what the timestamp of a signature is about.
func timestamped(sig oci.Signature) ([]byte, error) {
	kind, err := sig.MediaType()
	if err != nil {
		return nil, err
	}
	if string(kind) == ctypes.DssePayloadType {
		return sig.Payload()
	}
	b64, err := sig.Base64Signature()
	if err != nil {
		return nil, err
	}
	raw, err := base64.StdEncoding.DecodeString(b64)
	if err != nil || len(raw) == 0 {
		return nil, errors.New("the signature is not base64")
	}
	return raw, nil
}

// sameRepository checks the repository that a signature was made for, so that
// a signature cannot be taken to another repository.
func sameRepository(signedAs, reference string, mirrors map[string]string) error {
	if m, ok := mirrors[reference]; ok {
		reference = m
	}
	want, err := name.NewRepository(reference)
	if err != nil {
		return fmt.Errorf("reference %q: %w", reference, err)
	}
	got, err := name.ParseReference(signedAs) // some signers record a tag as well
	if err != nil {
		return fmt.Errorf("signed for %q: %w", signedAs, err)
	}
	if got.Context().Name() != want.Name() {
		return fmt.Errorf("signed for %s, not for %s", got.Context().Name(), want.Name())
	}
	return nil
}
