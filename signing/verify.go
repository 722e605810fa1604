package signing

import (
	"context"
	"crypto"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	intoto "github.com/in-toto/attestation/go/v1"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/sigstore/sigstore-go/pkg/fulcio/certificate"
	"github.com/sigstore/sigstore-go/pkg/root"
	"github.com/sigstore/sigstore-go/pkg/verify"
	"github.com/sigstore/sigstore/pkg/signature"
	"oras.land/oras-go/v2/content"
)

// Checker verifies signatures. The zero value is ready and safe for
// concurrent use.
type Checker struct{}

var _ Verifier = Checker{}

// Verify implements [Verifier]. Bundles come first, then signatures of the
// older format; a bad one does not hide a good one. Besides [ErrUnsigned] and
// [ErrPolicy], the error may wrap [ErrTooMuch], or what the target returned.
func (Checker) Verify(ctx context.Context, target content.ReadOnlyGraphStorage, reference string, subject ocispec.Descriptor, policy Policy) (*Verification, error) {
	list, err := policy.authorities()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrPolicy, err)
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("%w: it names no key and no identity", ErrPolicy)
	}
	c := &collector{target: target, reference: reference, subject: subject, mirrors: policy.Mirrors, noLegacy: policy.NoLegacy}
	v, err := c.first(ctx, list, policy.Annotations)
	if err != nil {
		return nil, fmt.Errorf("%s@%s: %w", reference, subject.Digest, err)
	}
	return v, nil
}

// signed reports whether a policy is satisfied in every format that the
// options ask for.
func signed(ctx context.Context, target content.ReadOnlyGraphStorage, reference string, subject ocispec.Descriptor, policy Policy, opts SignOptions) (bool, error) {
	list, err := policy.authorities()
	if err != nil {
		return false, err
	}
	if !opts.NoBundle {
		c := &collector{target: target, reference: reference, subject: subject, noLegacy: true}
		_, err = c.first(ctx, list, policy.Annotations)
	}
	if err == nil && opts.Legacy {
		c := &collector{target: target, reference: reference, subject: subject, noBundles: true}
		_, err = c.first(ctx, list, policy.Annotations)
	}
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, ErrUnsigned), errors.Is(err, ErrPolicy):
		return false, nil
	}
	return false, fmt.Errorf("looking for signatures of %s@%s: %w", reference, subject.Digest, err)
}

// authority is one signer that is accepted, ready to verify.
type authority struct {
	name        string
	key         crypto.PublicKey // nil for identities
	fingerprint string
	verifier    signature.Verifier
	notBefore   time.Time
	notAfter    time.Time
	identity    Identity
	root        root.TrustedMaterial
	evidence    Evidence

	check   *verify.Verifier
	options []verify.PolicyOption
}

// authorities makes the signers of a policy ready.
func (p Policy) authorities() ([]*authority, error) {
	var list []*authority
	for _, key := range p.Keys {
		a := &authority{key: key, evidence: p.Evidence}
		list = append(list, a)
	}
	for _, id := range p.Identities {
		a := &authority{identity: id, evidence: p.Evidence}
		list = append(list, a)
	}
	for _, a := range list {
		if p.Root != nil {
			a.root = p.Root.material
		}
		if err := a.prepare(); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// prepare checks what the authority requires and builds its verifier.
func (a *authority) prepare() error {
	var opts []verify.VerifierOption
	var err error
	if a.key != nil {
		opts, err = a.prepareKey()
	} else {
		opts, err = a.prepareIdentity()
	}
	if err != nil {
		return err
	}
	if a.evidence.Tlog > 0 {
		opts = append(opts, verify.WithTransparencyLog(a.evidence.Tlog))
	}
	if a.evidence.Timestamps > 0 {
		opts = append(opts, verify.WithSignedTimestamps(a.evidence.Timestamps))
	}
	if a.check, err = verify.NewVerifier(a.trust(), opts...); err != nil {
		return fmt.Errorf("preparing to verify: %w", err)
	}
	return nil
}

func (a *authority) prepareKey() ([]verify.VerifierOption, error) {
	var err error
	if a.verifier, err = verifierFor(a.key); err != nil {
		return nil, err
	}
	if a.fingerprint, err = Fingerprint(a.key); err != nil {
		return nil, err
	}
	a.options = []verify.PolicyOption{verify.WithKey()}
	window := !a.notBefore.IsZero() || !a.notAfter.IsZero()
	needs := a.evidence.Timestamps + a.evidence.Tlog
	switch {
	case needs > 0 && a.root == nil:
		return nil, fmt.Errorf("key %s: evidence is required, but there is %w", a.fingerprint, errNoRoot)
	case window && needs == 0:
		// Without a trusted time nobody can say whether the key was valid.
		return nil, fmt.Errorf("key %s: a validity window needs evidence of the time (timestamps or tlog)", a.fingerprint)
	case a.evidence.Timestamps > 0:
		return nil, nil
	case window:
		return []verify.VerifierOption{verify.WithObserverTimestamps(1)}, nil
	}
	return []verify.VerifierOption{verify.WithNoObserverTimestamps()}, nil
}

func (a *authority) prepareIdentity() ([]verify.VerifierOption, error) {
	if err := a.identity.validate(); err != nil {
		return nil, err
	}
	if a.root == nil {
		return nil, fmt.Errorf("identity %s: %w", a.identity, errNoRoot)
	}
	id, err := verify.NewShortCertificateIdentity(a.identity.Issuer, "", a.identity.Subject, a.identity.regexp())
	if err != nil {
		return nil, fmt.Errorf("identity %s: %w", a.identity, err)
	}
	a.options = []verify.PolicyOption{verify.WithCertificateIdentity(id)}
	if a.evidence.Timestamps+a.evidence.Tlog == 0 {
		a.evidence.Tlog = 1
	}
	var opts []verify.VerifierOption
	if !a.evidence.NoSCT {
		opts = append(opts, verify.WithSignedCertificateTimestamps(1))
	}
	if a.evidence.Timestamps == 0 {
		opts = append(opts, verify.WithObserverTimestamps(1))
	}
	return opts, nil
}

// trust is the trusted root, with the key in it.
func (a *authority) trust() root.TrustedMaterial {
	if a.key == nil {
		return a.root
	}
	key := root.NewExpiringKey(a.verifier, a.notBefore, a.notAfter)
	// The hint in a bundle is only a hint; the key is tried whatever it says.
	material := root.NewTrustedPublicKeyMaterial(func(string) (root.TimeConstrainedVerifier, error) { return key, nil })
	if a.root == nil {
		return material
	}
	return keyMaterial{a.root, material}
}

// keyMaterial is a trusted root with a key.
type keyMaterial struct {
	root.TrustedMaterial
	key root.TrustedMaterial
}

func (m keyMaterial) PublicKeyVerifier(hint string) (root.TimeConstrainedVerifier, error) {
	return m.key.PublicKeyVerifier(hint)
}

// window checks a time against the validity of the key.
func (a *authority) window(t time.Time) error {
	if !a.notBefore.IsZero() && t.Before(a.notBefore) {
		return fmt.Errorf("signed at %s, before the key was valid", t.UTC().Format(time.RFC3339))
	}
	if !a.notAfter.IsZero() && t.After(a.notAfter) {
		return fmt.Errorf("signed at %s, after the key was valid", t.UTC().Format(time.RFC3339))
	}
	return nil
}

// String describes the authority for messages.
func (a *authority) String() string {
	switch {
	case a.name != "":
		return "signer " + a.name
	case a.key != nil:
		return "key " + a.fingerprint
	}
	return "identity " + a.identity.String()
}

// verifyBundle checks a bundle about subject and returns the statement.
func (a *authority) verifyBundle(b verify.SignedEntity, subject digest.Digest) (*Verification, *intoto.Statement, error) {
	raw, err := hex.DecodeString(subject.Encoded())
	if err != nil {
		return nil, nil, fmt.Errorf("digest %s: %w", subject, err)
	}
	res, err := a.check.Verify(b, verify.NewPolicy(verify.WithArtifactDigest(subject.Algorithm().String(), raw), a.options...))
	if err != nil {
		return nil, nil, err
	}
	st := res.Statement
	if st == nil {
		return nil, nil, errors.New("bundle holds no statement")
	}
	s, err := subjectOf(st, subject)
	if err != nil {
		return nil, nil, err
	}
	v, err := a.verification(b, res)
	if err != nil {
		return nil, nil, err
	}
	v.Subject = subject
	v.Reference = s.GetName()
	v.Annotations = annotationsOf(s)
	return v, st, nil
}

// verification says who signed a verified bundle and when.
func (a *authority) verification(b verify.SignedEntity, res *verify.VerificationResult) (*Verification, error) {
	v := &Verification{Format: FormatBundle, Key: a.fingerprint}
	for _, ts := range res.VerifiedTimestamps {
		if v.Time.IsZero() || ts.Timestamp.Before(v.Time) {
			v.Time = ts.Timestamp
		}
	}
	if a.key != nil {
		return v, nil
	}
	vc, err := b.VerificationContent()
	if err != nil {
		return nil, err
	}
	v.Certificate = vc.Certificate()
	v.Identity = certificateIdentity(v.Certificate)
	return v, nil
}

// certificateIdentity is who a certificate is for.
func certificateIdentity(cert *x509.Certificate) Identity {
	s, err := certificate.SummarizeCertificate(cert)
	if err != nil {
		return Identity{}
	}
	return Identity{Issuer: s.Extensions.Issuer, Subject: s.SubjectAlternativeName}
}

// validate checks an identity of a policy.
func (id Identity) validate() error {
	n := 0
	for _, s := range []string{id.Subject, id.SubjectPrefix, id.SubjectRegexp} {
		if s != "" {
			n++
		}
	}
	switch {
	case id.Issuer == "":
		return fmt.Errorf("identity %s: no issuer", id)
	case n != 1:
		return fmt.Errorf("identity %s: give one of subject, subject prefix and subject regexp", id)
	case id.SubjectPrefix != "" && !strings.HasSuffix(id.SubjectPrefix, "/") && !strings.HasSuffix(id.SubjectPrefix, "@"):
		return fmt.Errorf("identity %s: a prefix has to end in / or @, or %q would match %q", id, id.SubjectPrefix, id.SubjectPrefix+"-evil")
	}
	if _, err := regexp.Compile(id.regexp()); err != nil {
		return fmt.Errorf("identity %s: %w", id, err)
	}
	return nil
}

// regexp is the expression for the subject, or "" if it is compared as it is.
// It is always anchored: neither sigstore-go nor cosign does so.
func (id Identity) regexp() string {
	switch {
	case id.SubjectRegexp != "":
		return `^(?:` + id.SubjectRegexp + `)$`
	case id.SubjectPrefix != "":
		return `^` + regexp.QuoteMeta(id.SubjectPrefix) + `.*$`
	}
	return ""
}

// String is the identity for messages.
func (id Identity) String() string {
	s := id.Subject
	switch {
	case id.SubjectPrefix != "":
		s = id.SubjectPrefix + "…"
	case id.SubjectRegexp != "":
		s = "/" + id.SubjectRegexp + "/"
	}
	if id.Issuer == "" {
		return fmt.Sprintf("%q", s)
	}
	return fmt.Sprintf("%s (by %s)", s, id.Issuer)
}

// collector fetches the signatures of one subject, or its attestations of one
// type, and checks them.
type collector struct {
	target    content.ReadOnlyGraphStorage
	reference string
	subject   ocispec.Descriptor
	mirrors   map[string]string
	// predicateType is that of the attestations to look for; empty looks for
	// signatures.
	predicateType string
	noLegacy      bool
	noBundles     bool

	problems  []string // what was wrong with those that were looked for
	others    int      // bundles that say they are something else
	transport error    // the first failure to fetch
}

// signatureFunc gets a signature that an authority vouches for and says
// whether it is enough. An error is a problem of that signature.
type signatureFunc func(*authority, *Verification) (enough bool, err error)

// statementFunc gets the statement as well.
type statementFunc func(*authority, *Verification, *intoto.Statement) (enough bool, err error)

// first returns the first signature that one of the authorities vouches for.
func (c *collector) first(ctx context.Context, list []*authority, annotations map[string]string) (*Verification, error) {
	var found *Verification
	err := c.each(ctx, list, func(_ *authority, v *Verification) (bool, error) {
		if err := hasAnnotations(v.Annotations, annotations); err != nil {
			return false, err
		}
		found = v
		return true, nil
	})
	if err != nil {
		return nil, err
	}
	if found == nil {
		return nil, c.failure()
	}
	return found, nil
}

// each calls fn with each signature that an authority vouches for, until it
// is enough.
func (c *collector) each(ctx context.Context, list []*authority, fn signatureFunc) error {
	enough := false
	if !c.noBundles {
		err := c.eachStatement(ctx, list, func(a *authority, v *Verification, _ *intoto.Statement) (bool, error) {
			var err error
			enough, err = fn(a, v)
			return enough, err
		})
		if err != nil || enough {
			return err
		}
	}
	if c.noLegacy {
		return nil
	}
	return c.eachLegacy(ctx, list, fn)
}

// eachAttestation calls fn with each attestation of the wanted type that an
// authority vouches for, in both formats, until it is enough.
func (c *collector) eachAttestation(ctx context.Context, list []*authority, fn statementFunc) error {
	enough := false
	err := c.eachStatement(ctx, list, func(a *authority, v *Verification, st *intoto.Statement) (bool, error) {
		var err error
		enough, err = fn(a, v, st)
		return enough, err
	})
	if err != nil || enough || c.noLegacy {
		return err
	}
	return c.eachLegacyAttestation(ctx, list, fn)
}

// eachStatement calls fn with each bundle of the wanted type that an authority
// vouches for, until it is enough.
func (c *collector) eachStatement(ctx context.Context, list []*authority, fn statementFunc) error {
	descs, err := listCandidates(ctx, c.target, c.subject)
	if err != nil {
		return err
	}
	for _, desc := range descs {
		cand, err := fetchCandidate(ctx, c.target, c.subject.Digest, desc)
		if err != nil {
			c.note(desc.Digest, err)
			continue
		}
		enough, err := c.tryBundle(cand, list, fn)
		if enough {
			return nil
		}
		if err != nil && cand.claims != "" && cand.claims != c.wanted() {
			c.others++
			continue
		}
		c.note(desc.Digest, err)
	}
	return ctx.Err()
}

// wanted is the predicate type that is looked for.
func (c *collector) wanted() string {
	if c.predicateType == "" {
		return PredicateSignature
	}
	return c.predicateType
}

// tryBundle checks a bundle with each authority. The error is the last one's.
func (c *collector) tryBundle(cand *candidate, list []*authority, fn statementFunc) (enough bool, err error) {
	var problem error
	accepted := false
	for _, a := range list {
		v, st, err := a.verifyBundle(cand.bundle, c.subject.Digest)
		if err == nil && c.predicateType == "" {
			err = isSignature(st)
		} else if err == nil {
			err = isAttestation(st, c.predicateType)
		}
		if err == nil {
			err = checkNames(v.Annotations, c.subject)
		}
		if err == nil {
			v.Signature = cand.desc
			if enough, err = fn(a, v, st); enough {
				return true, nil
			}
		}
		if err != nil {
			problem = fmt.Errorf("%s: %w", a, err)
		} else {
			accepted = true
		}
	}
	if accepted {
		problem = nil
	}
	return false, problem
}

// isSignature tells signatures from attestations, by what was verified.
func isSignature(st *intoto.Statement) error {
	switch {
	case st.GetType() != statementV1:
		return fmt.Errorf("statement of type %s, not %s", st.GetType(), statementV1)
	case st.GetPredicateType() != PredicateSignature:
		return fmt.Errorf("statement says %s, which is no signature", st.GetPredicateType())
	case len(st.GetSubject()) != 1:
		return fmt.Errorf("signature of %d subjects; one is accepted", len(st.GetSubject()))
	}
	return nil
}

// note keeps what was wrong with one signature.
func (c *collector) note(d digest.Digest, err error) {
	if err == nil || errors.Is(err, errNotBundle) {
		return
	}
	if t, ok := errors.AsType[transportError](err); ok && c.transport == nil {
		c.transport = t.error
	}
	c.problems = append(c.problems, fmt.Sprintf("%s: %v", short(d), err))
}

// failure says why nothing was found.
func (c *collector) failure() error {
	switch {
	case c.transport != nil:
		// The good signature may be the one that could not be fetched.
		return c.transport
	case len(c.problems) > 0:
		const most = 4
		shown := c.problems
		more := ""
		if len(shown) > most {
			more = fmt.Sprintf("; and %d more", len(shown)-most)
			shown = shown[:most]
		}
		return fmt.Errorf("%w: %s%s", ErrPolicy, strings.Join(slices.Clone(shown), "; "), more)
	case c.predicateType != "":
		return ErrNoAttestation
	case c.others > 0:
		return fmt.Errorf("%w (attestations it has: %d)", ErrUnsigned, c.others)
	}
	return ErrUnsigned
}

// short is a digest for messages.
func short(d digest.Digest) string {
	if len(d) > 19 {
		return string(d[:19]) + "…"
	}
	return string(d)
}
