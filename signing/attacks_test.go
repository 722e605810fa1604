package signing_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/sigstore/sigstore-go/pkg/sign"
	"google.golang.org/protobuf/encoding/protojson"
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/registry/remote"
	"oras.land/oras-go/v2/registry/remote/auth"

	"github.com/krmcat/krmcat/registry/regtest"
	"github.com/krmcat/krmcat/signing"
	"github.com/krmcat/krmcat/signing/signtest"
)

// The numbers of these tests are those of the table in docs/signing.md. Each
// fails if the guard that it names is taken away.

const (
	bundleType    = "application/vnd.dev.sigstore.bundle.v0.3+json"
	simpleSigning = "application/vnd.dev.cosign.simplesigning.v1+json"
	signV1        = "https://sigstore.dev/cosign/sign/v1"
	intoto        = "application/vnd.in-toto+json"
)

// arena is a registry, and a signer whose key makes anything, so that what is
// wrong is never the signature itself.
type arena struct {
	t    *testing.T
	host string
	kp   *sign.EphemeralKeypair
}

func newArena(t *testing.T) *arena {
	t.Helper()
	t.Parallel()
	kp, err := sign.NewEphemeralKeypair(nil)
	if err != nil {
		t.Fatal(err)
	}
	return &arena{t: t, host: regtest.NewServer(t).Host, kp: kp}
}

func (a *arena) policy() signing.Policy {
	return signing.Policy{Keys: []any{a.kp.GetPublicKey().(crypto.PublicKey)}}
}

func (a *arena) artifact(name, body string) (*remote.Repository, string, ocispec.Descriptor) {
	a.t.Helper()
	repo := repository(a.t, a.host, name)
	return repo, a.host + "/" + name, push(a.t, repo, body, "v-"+digest.FromString(body).Encoded()[:8])
}

// bundle signs any payload as any type.
func (a *arena) bundle(payload, payloadType string) []byte {
	a.t.Helper()
	b, err := sign.Bundle(&sign.DSSEData{Data: []byte(payload), PayloadType: payloadType}, a.kp, sign.BundleOptions{Context: a.t.Context()})
	if err != nil {
		a.t.Fatal(err)
	}
	data, err := protojson.Marshal(b)
	if err != nil {
		a.t.Fatal(err)
	}
	return data
}

// statement is an in-toto statement about subjects by their SHA-256.
func statement(predicateType string, subjects ...digest.Digest) string {
	var list []string
	for _, s := range subjects {
		list = append(list, fmt.Sprintf(`{"digest":{"sha256":%q}}`, s.Encoded()))
	}
	return fmt.Sprintf(`{"_type":"https://in-toto.io/Statement/v1","subject":[%s],"predicateType":%q,"predicate":{}}`, strings.Join(list, ","), predicateType)
}

// attach makes bytes a referrer of subject.
func (a *arena) attach(repo oras.Target, subject ocispec.Descriptor, layerType string, data []byte) ocispec.Descriptor {
	a.t.Helper()
	layer, err := oras.PushBytes(a.t.Context(), repo, layerType, data)
	if err != nil {
		a.t.Fatal(err)
	}
	desc, err := oras.PackManifest(a.t.Context(), repo, oras.PackManifestVersion1_1, bundleType, oras.PackManifestOptions{
		Subject: &subject,
		Layers:  []ocispec.Descriptor{layer},
		ManifestAnnotations: map[string]string{
			"dev.sigstore.bundle.content":       "dsse-envelope",
			"dev.sigstore.bundle.predicateType": signV1, // what an attacker would say
		},
	})
	if err != nil {
		a.t.Fatal(err)
	}
	return desc
}

func (a *arena) attachStatement(repo oras.Target, subject ocispec.Descriptor, payload string) {
	a.t.Helper()
	a.attach(repo, subject, bundleType, a.bundle(payload, intoto))
}

// payload is a simple signing payload.
func payload(reference string, subject digest.Digest, kind string) string {
	return fmt.Sprintf(`{"critical":{"identity":{"docker-reference":%q},"image":{"docker-manifest-digest":%q},"type":%q},"optional":null}`, reference, subject, kind)
}

const cosignType = "cosign container image signature"

// legacy writes the tag of the older format with one signature for each
// payload.
func (a *arena) legacy(repo oras.Target, subject digest.Digest, layerType string, payloads ...string) {
	a.t.Helper()
	m := ocispec.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest}
	var err error
	if m.Config, err = oras.PushBytes(a.t.Context(), repo, ocispec.MediaTypeImageConfig, []byte(`{"rootfs":{"type":"layers"}}`)); err != nil {
		a.t.Fatal(err)
	}
	for _, p := range payloads {
		sig, _, err := a.kp.SignData(a.t.Context(), []byte(p))
		if err != nil {
			a.t.Fatal(err)
		}
		layer, err := oras.PushBytes(a.t.Context(), repo, layerType, []byte(p))
		if err != nil {
			a.t.Fatal(err)
		}
		layer.Annotations = map[string]string{"dev.cosignproject.cosign/signature": base64.StdEncoding.EncodeToString(sig)}
		m.Layers = append(m.Layers, layer)
	}
	data, err := json.Marshal(m)
	if err != nil {
		a.t.Fatal(err)
	}
	if _, err := oras.TagBytes(a.t.Context(), repo, ocispec.MediaTypeImageManifest, data, sigTag(subject)); err != nil {
		a.t.Fatal(err)
	}
}

// envelope signs a statement as cosign attest does in the older format.
func (a *arena) envelope(st string) []byte {
	a.t.Helper()
	sig, _, err := a.kp.SignData(a.t.Context(), fmt.Appendf(nil, "DSSEv1 %d %s %d %s", len(intoto), intoto, len(st), st))
	if err != nil {
		a.t.Fatal(err)
	}
	return fmt.Appendf(nil, `{"payloadType":%q,"payload":%q,"signatures":[{"sig":%q}]}`, intoto, base64.StdEncoding.EncodeToString([]byte(st)), base64.StdEncoding.EncodeToString(sig))
}

const dsseType = "application/vnd.dsse.envelope.v1+json"

// legacyAttestations writes the tag of the older format with layers, which get
// the annotations.
func (a *arena) legacyAttestations(repo oras.Target, subject digest.Digest, layerType string, annotations map[string]string, layers ...[]byte) {
	a.t.Helper()
	m := ocispec.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest}
	var err error
	if m.Config, err = oras.PushBytes(a.t.Context(), repo, ocispec.MediaTypeImageConfig, []byte(`{"rootfs":{"type":"layers"}}`)); err != nil {
		a.t.Fatal(err)
	}
	for _, data := range layers {
		layer, err := oras.PushBytes(a.t.Context(), repo, layerType, data)
		if err != nil {
			a.t.Fatal(err)
		}
		layer.Annotations = annotations
		m.Layers = append(m.Layers, layer)
	}
	data, err := json.Marshal(m)
	if err != nil {
		a.t.Fatal(err)
	}
	if _, err := oras.TagBytes(a.t.Context(), repo, ocispec.MediaTypeImageManifest, data, attTag(subject)); err != nil {
		a.t.Fatal(err)
	}
}

func attTag(d digest.Digest) string { return "sha256-" + d.Encoded() + ".att" }

// attested wants the outcome of verifying test results, as verify does.
func (a *arena) attested(repo oras.GraphTarget, ref string, subject ocispec.Descriptor, policy signing.Policy, want error, says string) {
	a.t.Helper()
	_, err := signing.Checker{}.VerifyAttestations(a.t.Context(), repo, ref, subject, "test-result", policy)
	switch {
	case want == nil && err != nil:
		a.t.Errorf("%s@%s: %v", ref, subject.Digest, err)
	case want != nil && (!errors.Is(err, want) || !strings.Contains(fmt.Sprint(err), says)):
		a.t.Errorf("%s@%s: got %v, want %v with %q", ref, subject.Digest, err, want, says)
	}
}

func sigTag(d digest.Digest) string { return "sha256-" + d.Encoded() + ".sig" }

// verify wants the outcome: nil, or an error that wraps the sentinel and says
// something.
func (a *arena) verify(repo oras.GraphTarget, ref string, subject ocispec.Descriptor, policy signing.Policy, want error, says string) {
	a.t.Helper()
	_, err := signing.Checker{}.Verify(a.t.Context(), repo, ref, subject, policy)
	switch {
	case want == nil && err != nil:
		a.t.Errorf("%s@%s: %v", ref, subject.Digest, err)
	case want != nil && (!errors.Is(err, want) || !strings.Contains(fmt.Sprint(err), says)):
		a.t.Errorf("%s@%s: got %v, want %v with %q", ref, subject.Digest, err, want, says)
	}
}

func TestAttack01LegacySignatureMoved(t *testing.T) {
	a := newArena(t)
	repo, ref, good := a.artifact("r/a", "good")
	_, _, evil := a.artifact("r/a", "evil")
	a.legacy(repo, good.Digest, simpleSigning, payload(ref, good.Digest, cosignType))
	a.verify(repo, ref, good, a.policy(), nil, "")
	moved, err := repo.Resolve(t.Context(), sigTag(good.Digest))
	if err != nil {
		t.Fatal(err)
	}
	if err := repo.Tag(t.Context(), moved, sigTag(evil.Digest)); err != nil {
		t.Fatal(err)
	}
	a.verify(repo, ref, evil, a.policy(), signing.ErrPolicy, "")
}

func TestAttack01LegacyAttestationMoved(t *testing.T) {
	a := newArena(t)
	repo, ref, good := a.artifact("r/a", "good")
	_, _, evil := a.artifact("r/a", "evil")
	env := a.envelope(statement(testResult, good.Digest))
	a.legacyAttestations(repo, good.Digest, dsseType, nil, env)
	a.attested(repo, ref, good, a.policy(), nil, "")
	a.legacyAttestations(repo, evil.Digest, dsseType, nil, env)
	a.attested(repo, ref, evil, a.policy(), signing.ErrPolicy, "statement is not about")
	// Nor is it a signature, of whichever tag.
	a.verify(repo, ref, good, a.policy(), signing.ErrUnsigned, "")
	a.legacy(repo, good.Digest, dsseType, string(env))
	a.verify(repo, ref, good, a.policy(), signing.ErrPolicy, "layer of type "+dsseType)
	// Unless the same signer signed it, other bytes are nobody's.
	a.legacyAttestations(repo, evil.Digest, dsseType, nil, bytes.Replace(env, []byte(base64.StdEncoding.EncodeToString([]byte(statement(testResult, good.Digest)))), []byte(base64.StdEncoding.EncodeToString([]byte(statement(testResult, evil.Digest)))), 1))
	a.attested(repo, ref, evil, a.policy(), signing.ErrPolicy, "")
}

func TestAttack02BundleMoved(t *testing.T) {
	a := newArena(t)
	repo, ref, good := a.artifact("r/a", "good")
	_, _, evil := a.artifact("r/a", "evil")
	a.attachStatement(repo, evil, statement(signV1, good.Digest))
	a.verify(repo, ref, evil, a.policy(), signing.ErrPolicy, "digest")
}

func TestAttack03OtherRepository(t *testing.T) {
	a := newArena(t)
	_, ref, good := a.artifact("r/a", "good")
	repo, other, same := a.artifact("evil/a", "good")
	if good.Digest != same.Digest {
		t.Fatal("the artifacts differ")
	}
	a.legacy(repo, same.Digest, simpleSigning, payload(ref, good.Digest, cosignType))
	a.verify(repo, other, same, a.policy(), signing.ErrPolicy, "not for")
	// Unless the user says that it is a mirror.
	mirror := a.policy()
	mirror.Mirrors = map[string]string{other: ref}
	a.verify(repo, other, same, mirror, nil, "")
	mirror.Mirrors = map[string]string{other: ref + "x"}
	a.verify(repo, other, same, mirror, signing.ErrPolicy, "not for")

	// Bundles record no name that counts; signed annotations bind them to a
	// group and a name.
	st := strings.Replace(statement(signV1, same.Digest), `"digest"`, `"annotations":{"krmcat.dev/group":"good.example.com"},"digest"`, 1)
	a.attachStatement(repo, same, st)
	bound := a.policy()
	bound.Annotations = map[string]string{"krmcat.dev/group": "evil.example.com"}
	a.verify(repo, other, same, bound, signing.ErrPolicy, `krmcat.dev/group="good.example.com"`)
	bound.Annotations = map[string]string{"krmcat.dev/group": "good.example.com"}
	a.verify(repo, other, same, bound, nil, "")
}

// TestAttack03OtherName: what was signed for one function is taken, with its
// signatures, for another.
func TestAttack03OtherName(t *testing.T) {
	a := newArena(t)
	signer := newSigner(t)
	policy := signing.Policy{Keys: []any{signer.PublicKey()}}
	_, ref, good := a.artifact("r/a", "good")
	good = signing.Named(good, "good.example.com", "Good")
	repo, other, same := a.artifact("evil/a", "good")
	for _, legacy := range []bool{false, true} {
		name := other
		opts := signing.SignOptions{Legacy: legacy, NoBundle: legacy, Annotations: map[string]string{"team": "acme"}}
		if _, err := signer.With(opts).Sign(t.Context(), repo, name, good); err != nil {
			t.Fatal(err)
		}
		check := func(subject ocispec.Descriptor, policy signing.Policy, want error) {
			t.Helper()
			v, err := verifyFormat(t, repo, name, subject, policy, legacy)
			if !errors.Is(err, want) {
				t.Errorf("older format %v, as %v: got %v, want %v", legacy, subject.Annotations, err, want)
			}
			if err == nil && (v.Annotations["krmcat.dev/name"] != "Good" || v.Annotations["krmcat.dev/group"] != "good.example.com" || v.Annotations["team"] != "acme") {
				t.Errorf("older format %v: got signed annotations %v", legacy, v.Annotations)
			}
		}
		check(same, policy, nil) // no name is known
		check(good, policy, nil)
		check(signing.Named(same, "good.example.com", "Evil"), policy, signing.ErrPolicy)
		check(signing.Named(same, "evil.example.com", "Good"), policy, signing.ErrPolicy)
		check(signing.Named(same, "", "catalog"), policy, signing.ErrPolicy)
		if ok, err := signer.Signed(t.Context(), repo, name, signing.Named(same, "good.example.com", "Evil"), opts); ok || err != nil {
			t.Errorf("older format %v: signed already under another name: got %v, %v", legacy, ok, err)
		}
		if ok, err := signer.Signed(t.Context(), repo, name, good, opts); !ok || err != nil {
			t.Errorf("older format %v: signed already: got %v, %v", legacy, ok, err)
		}
	}
	// The names are in the signature, not in the manifest that carries it.
	if _, err := signer.With(signing.SignOptions{}).Attest(t.Context(), repo, other, good, "test-result", json.RawMessage(`{"result":"PASSED"}`)); err != nil {
		t.Fatal(err)
	}
	for subject, want := range map[*ocispec.Descriptor]error{&same: nil, &good: nil, new(signing.Named(same, "good.example.com", "Evil")): signing.ErrPolicy} {
		if _, err := (signing.Checker{}).VerifyAttestations(t.Context(), repo, other, *subject, "test-result", policy); !errors.Is(err, want) {
			t.Errorf("attestation as %v: got %v, want %v", subject.Annotations, err, want)
		}
	}
	// A signature that says nothing of names, as other tools make, serves
	// whatever it is known as; unless a policy wants names.
	repo, ref, plain := a.artifact("r/plain", "plain")
	a.attachStatement(repo, plain, statement(signV1, plain.Digest))
	a.verify(repo, ref, signing.Named(plain, "good.example.com", "Good"), a.policy(), nil, "")
	strict := a.policy()
	strict.Annotations = map[string]string{"krmcat.dev/name": "Good"}
	a.verify(repo, ref, signing.Named(plain, "good.example.com", "Good"), strict, signing.ErrPolicy, "signed without annotation krmcat.dev/name")
}

func TestAttack04PayloadTypes(t *testing.T) {
	a := newArena(t)
	repo, ref, d := a.artifact("r/a", "a")
	a.legacy(repo, d.Digest, simpleSigning, payload(ref, d.Digest, "SOMETHING ELSE"))
	a.verify(repo, ref, d, a.policy(), signing.ErrPolicy, "SOMETHING ELSE")
	a.legacy(repo, d.Digest, "text/html", payload(ref, d.Digest, cosignType))
	a.verify(repo, ref, d, a.policy(), signing.ErrPolicy, "layer of type text/html")
}

func TestAttack04LegacyAttestationTypes(t *testing.T) {
	a := newArena(t)
	repo, ref, d := a.artifact("r/a", "a")
	env := a.envelope(statement(testResult, d.Digest))
	a.legacyAttestations(repo, d.Digest, "text/html", nil, env)
	a.attested(repo, ref, d, a.policy(), signing.ErrPolicy, "layer of type text/html")
	a.legacyAttestations(repo, d.Digest, dsseType, nil, bytes.Replace(env, []byte(intoto), []byte("application/json"), 1))
	a.attested(repo, ref, d, a.policy(), signing.ErrPolicy, `payload type "application/json"`)
	// The statement says what it is, not an annotation beside it.
	a.legacyAttestations(repo, d.Digest, dsseType, map[string]string{"predicateType": testResult}, a.envelope(statement("https://example.com/other", d.Digest)))
	a.attested(repo, ref, d, a.policy(), signing.ErrNoAttestation, "")
	// Repeated keys are read by nobody.
	a.legacyAttestations(repo, d.Digest, dsseType, nil, a.envelope(strings.Replace(statement("https://example.com/other", d.Digest), `"predicateType"`, `"predicateType":"`+testResult+`","predicateType"`, 1)))
	a.attested(repo, ref, d, a.policy(), signing.ErrPolicy, "")
}

func TestAttack05AttestationAsSignature(t *testing.T) {
	a := newArena(t)
	repo, ref, d := a.artifact("r/a", "a")
	// The annotation of the manifest claims that it is a signature.
	a.attachStatement(repo, d, statement(testResult, d.Digest))
	a.verify(repo, ref, d, a.policy(), signing.ErrUnsigned, "attestations it has: 1")
	// Nor is a signature an attestation.
	a.attachStatement(repo, d, statement(signV1, d.Digest))
	list, err := signing.Checker{}.VerifyAttestations(t.Context(), repo, ref, d, "test-result", a.policy())
	if err != nil || len(list) != 1 {
		t.Errorf("got %d attestations, %v; want 1", len(list), err)
	}
}

func TestAttack06WrongAnnotation(t *testing.T) {
	a := newArena(t)
	repo, ref, d := a.artifact("r/a", "a")
	st := strings.Replace(statement(signV1, d.Digest), `"digest"`, `"annotations":{"k":"right"},"digest"`, 1)
	a.attachStatement(repo, d, st)
	p := a.policy()
	for value, want := range map[string]error{"right": nil, "wrong": signing.ErrPolicy} {
		p.Annotations = map[string]string{"k": value}
		a.verify(repo, ref, d, p, want, "")
	}
	p.Annotations = map[string]string{"other": ""}
	a.verify(repo, ref, d, p, signing.ErrPolicy, "signed without annotation")
}

// Attack 7, a tag that moves after it was verified, is about commands: see
// TestAttack07TagMoves in cmd/krmcat.

func TestAttack08EvidenceMissing(t *testing.T) {
	a := newArena(t)
	auth := signtest.New(t)
	repo, ref, d := a.artifact("r/a", "a")
	signer := newKeyless(t, auth, releaseFlow)
	if _, err := signer.With(signing.SignOptions{Legacy: true}).Sign(t.Context(), repo, ref, d); err != nil {
		t.Fatal(err)
	}
	id := signing.Policy{Identities: []signing.Identity{{Issuer: githubIssuer, Subject: releaseFlow}}, Root: auth.Root}
	for name, ev := range map[string]signing.Evidence{
		"nothing said": {NoSCT: true},
		"log":          {Timestamps: 1, Tlog: 1, NoSCT: true},
		"two":          {Timestamps: 2, NoSCT: true},
	} {
		id.Evidence = ev
		t.Log(name)
		a.verify(repo, ref, d, id, signing.ErrPolicy, "")
	}
	id.Evidence = tsaOnly
	a.verify(repo, ref, d, id, nil, "")
	// The same for keys: nothing to vouch for the time.
	key := a.policy()
	key.Root, key.Evidence = auth.Root, signing.Evidence{Timestamps: 1}
	repo, ref, d = a.artifact("r/b", "b")
	a.attachStatement(repo, d, statement(signV1, d.Digest))
	a.legacy(repo, d.Digest, simpleSigning, payload(ref, d.Digest, cosignType))
	a.verify(repo, ref, d, key, signing.ErrPolicy, "no timestamp")
	// And a signer does not make signatures that nobody could check later.
	if _, err := signing.NewKeylessSigner(&signing.Services{Fulcio: auth.Fulcio, Logs: []signing.Log{{URL: "http://r", Version: 2}}}, signtest.Token("i", "s")); err == nil {
		t.Error("a log of version 2 without a timestamp authority was accepted")
	}
}

// TestAttack08BorrowedTimestamp: a genuine timestamp of one thing beside
// another does not count, also where the older format has two places to say
// what was stamped.
func TestAttack08BorrowedTimestamp(t *testing.T) {
	a := newArena(t)
	auth := signtest.New(t)
	repo, ref, d := a.artifact("r/a", "a")
	policy := a.policy()
	policy.Root, policy.Evidence = auth.Root, signing.Evidence{Timestamps: 1}
	env, other := a.envelope(statement(testResult, d.Digest)), []byte("another signature")
	stamp := func(data []byte) string {
		ts, err := sign.NewTimestampAuthority(&sign.TimestampAuthorityOptions{URL: auth.Timestamp}).GetTimestamp(t.Context(), data)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf(`{"SignedRFC3161Timestamp":%q}`, base64.StdEncoding.EncodeToString(ts))
	}
	const signature, timestamp = "dev.cosignproject.cosign/signature", "dev.sigstore.cosign/rfc3161timestamp"
	for name, tt := range map[string]struct {
		annotations map[string]string
		want        error
	}{
		"its own":                    {map[string]string{timestamp: stamp(env)}, nil},
		"none":                       {nil, signing.ErrPolicy},
		"another's":                  {map[string]string{timestamp: stamp(other)}, signing.ErrPolicy},
		"another's, with what it is": {map[string]string{timestamp: stamp(other), signature: base64.StdEncoding.EncodeToString(other)}, signing.ErrPolicy},
	} {
		t.Log(name)
		a.legacyAttestations(repo, d.Digest, dsseType, tt.annotations, env)
		a.attested(repo, ref, d, policy, tt.want, "")
	}
	// A key needs a log entry if one is required, in this format as well.
	policy.Evidence = signing.Evidence{Tlog: 1}
	a.attested(repo, ref, d, policy, signing.ErrPolicy, "no log entry")
}

func TestAttack09ExpiredCertificate(t *testing.T) {
	a := newArena(t)
	for name, shift := range map[string]time.Duration{"expired": -time.Hour, "not yet valid": time.Hour} {
		auth := signtest.New(t)
		auth.SetCertificateTime(func() time.Time { return time.Now().Add(shift) })
		repo, ref, d := a.artifact("r/a", name)
		if _, err := newKeyless(t, auth, releaseFlow).With(signing.SignOptions{Legacy: true}).Sign(t.Context(), repo, ref, d); err != nil {
			t.Fatal(err)
		}
		p := signing.Policy{Identities: []signing.Identity{{Issuer: githubIssuer, Subject: releaseFlow}}, Root: auth.Root, Evidence: tsaOnly}
		a.verify(repo, ref, d, p, signing.ErrPolicy, "")
	}
}

// Attack 10 (other subject, issuer, authority, no SCT) is in TestKeyless, for
// both formats; its part about logs is in TestAttack10OneLogForTwo.

func TestAttack11RegexpNotAnchored(t *testing.T) {
	a := newArena(t)
	auth := signtest.New(t)
	repo, ref, d := a.artifact("r/a", "a")
	if _, err := newKeyless(t, auth, "release@krmcat.test.evil.example").With(signing.SignOptions{Legacy: true}).Sign(t.Context(), repo, ref, d); err != nil {
		t.Fatal(err)
	}
	for _, re := range []string{`release@krmcat\.test`, `release@krmcat\.test|x`, `.*@krmcat\.test`, "(?m)release@krmcat.test"} {
		p := signing.Policy{Identities: []signing.Identity{{Issuer: githubIssuer, SubjectRegexp: re}}, Root: auth.Root, Evidence: tsaOnly}
		for _, legacy := range []bool{false, true} {
			if _, err := verifyFormat(t, repo, ref, d, p, legacy); !errors.Is(err, signing.ErrPolicy) {
				t.Errorf("%s (older format %v): got %v, want ErrPolicy", re, legacy, err)
			}
		}
	}
}

func TestAttack12NoIdentity(t *testing.T) {
	a := newArena(t)
	auth := signtest.New(t)
	repo, ref, d := a.artifact("r/a", "a")
	if _, err := newKeyless(t, auth, releaseFlow).With(signing.SignOptions{Legacy: true}).Sign(t.Context(), repo, ref, d); err != nil {
		t.Fatal(err)
	}
	a.verify(repo, ref, d, signing.Policy{Root: auth.Root, Evidence: tsaOnly}, signing.ErrPolicy, "names no key and no identity")
	a.verify(repo, ref, d, signing.Policy{Identities: []signing.Identity{{}}, Root: auth.Root, Evidence: tsaOnly}, signing.ErrPolicy, "no issuer")
	a.verify(repo, ref, d, signing.Policy{Identities: []signing.Identity{{Issuer: githubIssuer}}, Root: auth.Root, Evidence: tsaOnly}, signing.ErrPolicy, "give one of")
}

func TestAttack13Subjects(t *testing.T) {
	a := newArena(t)
	repo, ref, d := a.artifact("r/a", "a")
	other := digest.FromString("other")
	// The digest under another algorithm.
	a.attachStatement(repo, d, strings.Replace(statement(signV1, d.Digest), "sha256", "sha512", 1))
	a.verify(repo, ref, d, a.policy(), signing.ErrPolicy, "")
	// A signature of several things at once.
	a.attachStatement(repo, d, statement(signV1, other, d.Digest))
	a.verify(repo, ref, d, a.policy(), signing.ErrPolicy, "2 subjects")
	// No subject.
	a.attachStatement(repo, d, statement(signV1))
	a.verify(repo, ref, d, a.policy(), signing.ErrPolicy, "")
	// An attestation may be about several, if ours is among them.
	a.attachStatement(repo, d, statement(testResult, other, d.Digest))
	if _, err := (signing.Checker{}).VerifyAttestations(t.Context(), repo, ref, d, "test-result", a.policy()); err != nil {
		t.Error(err)
	}
}

func TestAttack14PayloadTypeConfusion(t *testing.T) {
	a := newArena(t)
	repo, ref, d := a.artifact("r/a", "a")
	a.attach(repo, d, bundleType, a.bundle(statement(signV1, d.Digest), "application/json"))
	a.verify(repo, ref, d, a.policy(), signing.ErrPolicy, `payload type "application/json"`)
	b := a.bundle(statement(signV1, digest.FromString("file")), "application/json")
	if _, err := signing.VerifyBlob(t.Context(), []byte("file"), b, a.policy()); !errors.Is(err, signing.ErrPolicy) {
		t.Errorf("VerifyBlob: got %v, want ErrPolicy", err)
	}
}

func TestAttack15RepeatedKeys(t *testing.T) {
	a := newArena(t)
	for i, change := range [][2]string{
		{`"predicateType"`, `"predicateType":"` + signV1 + `","predicateType"`},
		{`"predicate":{}`, `"predicateType":"` + signV1 + `","predicate":{}`},
		{`"predicate":{}`, `"PredicateType":"` + signV1 + `","predicate":{}`},
		{`"predicate":{}`, `"predicate_type":"` + signV1 + `","predicate":{}`},
	} {
		repo, ref, d := a.artifact("r/a", fmt.Sprint(i))
		st := strings.Replace(statement("https://example.com/other", d.Digest), change[0], change[1], 1)
		a.attachStatement(repo, d, st)
		if _, err := (signing.Checker{}).Verify(t.Context(), repo, ref, d, a.policy()); err == nil {
			t.Errorf("accepted %s", st)
		}
		// The same bytes without the trick are right, so it was the trick.
		a.attachStatement(repo, d, statement(signV1, d.Digest))
		a.verify(repo, ref, d, a.policy(), nil, "")
	}
}

func TestAttack16GzipBomb(t *testing.T) {
	a := newArena(t)
	repo, ref, d := a.artifact("r/a", "a")
	var bomb bytes.Buffer
	zw := gzip.NewWriter(&bomb)
	if _, err := io.CopyN(zw, spaces{}, 256<<20); err != nil {
		t.Fatal(err)
	}
	if err := zw.Close(); err != nil {
		t.Fatal(err)
	}
	a.attach(repo, d, bundleType, bomb.Bytes())
	a.attach(repo, d, bundleType+"+gzip", bomb.Bytes())
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	a.verify(repo, ref, d, a.policy(), signing.ErrPolicy, "")
	runtime.ReadMemStats(&after)
	// Other tests run beside this one; the bomb alone would be 256 MiB.
	if used := (after.TotalAlloc - before.TotalAlloc) >> 20; used > 128 {
		t.Errorf("verifying allocated %d MiB", used)
	}
	// Larger than what is read: nothing is fetched.
	a.attach(repo, d, bundleType, bytes.Repeat([]byte(" "), 8<<20+1))
	a.verify(repo, ref, d, a.policy(), signing.ErrPolicy, "at most 8388608 are read")
}

type spaces struct{}

func (spaces) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = ' '
	}
	return len(p), nil
}

func TestAttack17JunkReferrers(t *testing.T) {
	a := newArena(t)
	repo, ref, d := a.artifact("r/a", "a")
	a.attachStatement(repo, d, statement(signV1, d.Digest))
	for i := range 64 {
		a.attach(repo, d, bundleType, fmt.Appendf(nil, `{"junk":%d}`, i))
	}
	a.verify(repo, ref, d, a.policy(), signing.ErrTooMuch, "more than 64")
}

func TestAttack18JunkLayers(t *testing.T) {
	a := newArena(t)
	repo, ref, d := a.artifact("r/a", "a")
	list := []string{payload(ref, d.Digest, cosignType)}
	for i := range 32 {
		list = append(list, payload(ref+fmt.Sprint(i), d.Digest, cosignType))
	}
	a.legacy(repo, d.Digest, simpleSigning, list...)
	a.verify(repo, ref, d, a.policy(), signing.ErrTooMuch, "33 layers")
	// A payload that is larger than any.
	a.legacy(repo, d.Digest, simpleSigning, payload(ref, d.Digest, cosignType)+strings.Repeat(" ", 64<<10))
	a.verify(repo, ref, d, a.policy(), signing.ErrPolicy, "at most 65536 are read")
}

func TestAttack18JunkAttestations(t *testing.T) {
	a := newArena(t)
	repo, ref, d := a.artifact("r/a", "a")
	good := a.envelope(statement(testResult, d.Digest))
	list := [][]byte{good}
	for i := range 32 {
		list = append(list, fmt.Appendf(nil, `{"junk":%d}`, i))
	}
	a.legacyAttestations(repo, d.Digest, dsseType, nil, list...)
	a.attested(repo, ref, d, a.policy(), signing.ErrTooMuch, "33 layers")
	a.legacyAttestations(repo, d.Digest, dsseType, nil, append(good, bytes.Repeat([]byte(" "), 8<<20)...))
	a.attested(repo, ref, d, a.policy(), signing.ErrPolicy, "at most 8388608 are read")
	a.legacyAttestations(repo, d.Digest, dsseType, map[string]string{"x": strings.Repeat("x", 256<<10)}, good)
	a.attested(repo, ref, d, a.policy(), signing.ErrPolicy, "bytes of annotations")
	// Junk beside a good one does not hide it.
	a.legacyAttestations(repo, d.Digest, dsseType, nil, []byte("junk"), good)
	a.attach(repo, d, bundleType, []byte("junk"))
	a.attested(repo, ref, d, a.policy(), nil, "")
}

func TestAttack19ForeignBundleHidesLegacy(t *testing.T) {
	a := newArena(t)
	repo, ref, d := a.artifact("r/a", "a")
	a.legacy(repo, d.Digest, simpleSigning, payload(ref, d.Digest, cosignType))
	if _, err := newSigner(t).Sign(t.Context(), repo, ref, d); err != nil {
		t.Fatal(err)
	}
	a.attach(repo, d, bundleType, []byte("junk"))
	a.verify(repo, ref, d, a.policy(), nil, "")
	// Nor does junk in the older format hide a bundle, or a good layer.
	repo, ref, d = a.artifact("r/b", "b")
	a.legacy(repo, d.Digest, simpleSigning, "junk", payload(ref, d.Digest, cosignType))
	a.verify(repo, ref, d, a.policy(), nil, "")
}

func TestAttack20SignatureTagIsAnIndex(t *testing.T) {
	a := newArena(t)
	repo, ref, d := a.artifact("r/a", "a")
	a.legacy(repo, d.Digest, simpleSigning, payload(ref, d.Digest, cosignType))
	good, err := repo.Resolve(t.Context(), sigTag(d.Digest))
	if err != nil {
		t.Fatal(err)
	}
	index, err := json.Marshal(ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex, Manifests: []ocispec.Descriptor{good}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := oras.TagBytes(t.Context(), repo, ocispec.MediaTypeImageIndex, index, sigTag(d.Digest)); err != nil {
		t.Fatal(err)
	}
	a.verify(repo, ref, d, a.policy(), signing.ErrPolicy, "not an image manifest")
}

func TestAttack21IndexSignedChildNot(t *testing.T) {
	a := newArena(t)
	repo, ref, child := a.artifact("r/a", "child")
	data, err := json.Marshal(ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex, Manifests: []ocispec.Descriptor{child}})
	if err != nil {
		t.Fatal(err)
	}
	index, err := oras.TagBytes(t.Context(), repo, ocispec.MediaTypeImageIndex, data, "index")
	if err != nil {
		t.Fatal(err)
	}
	a.attachStatement(repo, index, statement(signV1, index.Digest))
	a.verify(repo, ref, index, a.policy(), nil, "")
	a.verify(repo, ref, child, a.policy(), signing.ErrUnsigned, "")
	// Signing recursively covers it.
	tree, err := signing.Tree(t.Context(), repo, index)
	if err != nil || len(tree) != 2 || tree[1].Digest != child.Digest {
		t.Errorf("got tree %v, %v", tree, err)
	}
}

func TestAttack22SignaturesStripped(t *testing.T) {
	a := newArena(t)
	repo, ref, d := a.artifact("r/a", "a")
	a.legacy(repo, d.Digest, simpleSigning, payload(ref, d.Digest, cosignType))
	a.verify(repo, ref, d, a.policy(), nil, "")
	sig, err := repo.Resolve(t.Context(), sigTag(d.Digest))
	if err != nil {
		t.Fatal(err)
	}
	if err := repo.Delete(t.Context(), sig); err != nil {
		t.Fatal(err)
	}
	a.verify(repo, ref, d, a.policy(), signing.ErrUnsigned, "not signed")
}

func TestAttack23ExpiredKey(t *testing.T) {
	t.Parallel()
	w := newTrustWorld(t)
	doc := `
apiVersion: krmcat.dev/v1alpha1
kind: TrustPolicy
spec:
  roots: [{name: test, trustedRoot: trusted_root.json}]
  signers:
  - {name: a, key: {publicKey: a.pub, root: test, WINDOW, evidence: {timestamps: 1}}}
  rules:
  - {scope: HOST/fn/**, signatures: {anyOf: [a]}, legacy: true}
`
	stamped := signing.SignOptions{Services: &signing.Services{Timestamps: []string{w.auth.Timestamp}}}
	for _, format := range []bool{false, true} {
		repo, ref, d := w.artifact("fn/a")
		opts := stamped
		opts.Legacy, opts.NoBundle = format, format
		w.sign(w.key, repo, ref, d, opts)
		past, future := time.Now().Add(-time.Hour).UTC().Format(time.RFC3339), time.Now().Add(time.Hour).UTC().Format(time.RFC3339)
		for window, want := range map[string]string{
			"notAfter: '" + future + "'":                                  "",
			"notBefore: '" + past + "', notAfter: '" + future + "'":       "",
			"notAfter: '" + past + "'":                                    "no signature satisfies",
			"notBefore: '" + future + "'":                                 "no signature satisfies",
			"notBefore: '1970-01-01T00:00:00Z', notAfter: '" + past + "'": "no signature satisfies",
		} {
			text := strings.NewReplacer("WINDOW", window, "HOST", w.host).Replace(doc)
			p, err := signing.LoadTrustPolicy([]byte(text), w.files)
			if err != nil {
				t.Fatal(err)
			}
			w.decide(p, repo, ref, d, want)
		}
	}
}

func TestAttack24RotationAndRevocation(t *testing.T) {
	t.Parallel()
	w := newTrustWorld(t)
	future := time.Now().Add(time.Hour).UTC().Format(time.RFC3339)
	doc := strings.ReplaceAll(`
apiVersion: krmcat.dev/v1alpha1
kind: TrustPolicy
spec:
  roots: [{name: test, trustedRoot: trusted_root.json}]
  signers:
  - {name: old, key: {publicKey: a.pub, root: test, notAfter: '`+future+`', evidence: {timestamps: 1}}}
  - {name: new, key: {publicKey: b.pub}}
  rules:
  - {scope: HOST/fn/**, signatures: {anyOf: [old, new]}}
`, "HOST", w.host)
	stamped := signing.SignOptions{Services: &signing.Services{Timestamps: []string{w.auth.Timestamp}}}
	repo, ref, d := w.artifact("fn/a")
	w.sign(w.key, repo, ref, d, stamped)
	newRepo, newRef, newD := w.artifact("fn/b")
	w.sign(w.key2, newRepo, newRef, newD, signing.SignOptions{})
	load := func(text string) *signing.TrustPolicy {
		p, err := signing.LoadTrustPolicy([]byte(text), w.files)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	// What the old key signed in its time stays, whatever the clock says.
	w.decideAt(time.Now().Add(1000*time.Hour), load(doc), repo, ref, d, "")
	w.decide(load(doc), newRepo, newRef, newD, "")
	// Unless it was stolen.
	revoked := doc + "  revoked: {signers: [old]}\n"
	w.decide(load(revoked), repo, ref, d, "no signature satisfies")
	w.decide(load(revoked), newRepo, newRef, newD, "")
}

func TestAttack25RegistryLies(t *testing.T) {
	a := newArena(t)
	repo, ref, d := a.artifact("r/a", "a")
	_, _, other := a.artifact("r/a", "other")
	// A referrer of another subject in our list, with a statement about ours.
	elsewhere := a.attach(repo, other, bundleType, a.bundle(statement(signV1, d.Digest), intoto))
	a.verify(lyingTarget{repo, elsewhere, nil}, ref, d, a.policy(), signing.ErrPolicy, "attached to another subject")
	// Other bytes than the digest says.
	good := a.attach(repo, d, bundleType, a.bundle(statement(signV1, d.Digest), intoto))
	a.verify(repo, ref, d, a.policy(), nil, "")
	a.verify(lyingTarget{repo, good, func(b []byte) []byte {
		return bytes.Replace(b, []byte(`"schemaVersion":2`), []byte(`"schemaVersion":3`), 1)
	}},
		ref, d, a.policy(), signing.ErrPolicy, "mismatch")
	// More bytes than the digest says.
	a.verify(lyingTarget{repo, good, func(b []byte) []byte { return append(b, ' ') }}, ref, d, a.policy(), signing.ErrPolicy, "trailing")
}

// lyingTarget lists one referrer, whatever it refers to, and changes bytes.
type lyingTarget struct {
	oras.GraphTarget
	listed ocispec.Descriptor
	change func([]byte) []byte
}

func (l lyingTarget) Predecessors(context.Context, ocispec.Descriptor) ([]ocispec.Descriptor, error) {
	return []ocispec.Descriptor{l.listed}, nil
}

func (l lyingTarget) Fetch(ctx context.Context, d ocispec.Descriptor) (io.ReadCloser, error) {
	rc, err := l.GraphTarget.Fetch(ctx, d)
	if err != nil || l.change == nil {
		return rc, err
	}
	defer rc.Close()
	data, err := io.ReadAll(rc)
	if err != nil {
		return nil, err
	}
	return io.NopCloser(bytes.NewReader(l.change(data))), nil
}

func TestAttack26CredentialsOnRedirect(t *testing.T) {
	a := newArena(t)
	repo, ref, d := a.artifact("r/a", "a")
	a.attachStatement(repo, d, statement(signV1, d.Digest))
	leaked := make(chan string, 64)
	elsewhere := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if h := r.Header.Get("Authorization"); h != "" {
			leaked <- h
		}
		http.Redirect(w, r, "http://"+a.host+r.URL.RequestURI(), http.StatusTemporaryRedirect)
	}))
	t.Cleanup(elsewhere.Close)
	asked := 0
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") == "" {
			w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
			http.Error(w, "who are you?", http.StatusUnauthorized)
			return
		}
		asked++
		// 127.0.0.1 by another name, so that it is another host.
		http.Redirect(w, r, strings.Replace(elsewhere.URL, "127.0.0.1", "localhost", 1)+r.URL.RequestURI(), http.StatusTemporaryRedirect)
	}))
	t.Cleanup(front.Close)
	behind := repository(t, strings.TrimPrefix(front.URL, "http://"), "r/a")
	behind.Client = &auth.Client{Credential: auth.StaticCredential(strings.TrimPrefix(front.URL, "http://"), auth.Credential{Username: "u", Password: "p"})}
	if _, err := (signing.Checker{}).Verify(t.Context(), behind, ref, d, a.policy()); err != nil {
		t.Error(err)
	}
	if asked == 0 {
		t.Error("the credential was never asked for")
	}
	select {
	case h := <-leaked:
		t.Errorf("another host got %q", h)
	default:
	}
}
