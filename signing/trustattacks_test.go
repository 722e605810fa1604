package signing_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2"

	"github.com/krmcat/krmcat/signing"
	"github.com/krmcat/krmcat/signing/signtest"
)

// The attacks of the table in docs/signing.md on what a trust policy decides.

// A signature of the older format says for which repository it was made, and
// one of either format may say for which function.
func TestPolicyAttack03Replayed(t *testing.T) {
	t.Parallel()
	w := newTrustWorld(t)
	p := w.policy(`
  rules:
  - {scope: HOST/fn/**, signatures: {anyOf: [a]}, legacy: true}
`)
	repo, ref, d := w.artifact("fn/a")
	w.sign(w.key, repo, ref, d, signing.SignOptions{Legacy: true, NoBundle: true})
	w.decide(p, repo, ref, d, "")
	other := repository(t, w.host, "fn/b")
	if err := oras.CopyGraph(t.Context(), repo, other, d, oras.CopyGraphOptions{}); err != nil {
		t.Fatal(err)
	}
	tag := sigTag(d.Digest)
	if _, err := oras.Copy(t.Context(), repo, tag, other, tag, oras.CopyOptions{}); err != nil {
		t.Fatal(err)
	}
	w.decide(p, other, w.host+"/fn/b", d, "signed for "+w.host+"/fn/a, not for")

	repo, ref, d = w.artifact("fn/c")
	w.sign(w.key, repo, ref, signing.Named(d, "example.com", "SetLabels"), signing.SignOptions{})
	w.ask(p, repo, signing.TrustRequest{Reference: ref, Subject: signing.Named(d, "example.com", "SetLabels")}, "")
	w.ask(p, repo, signing.TrustRequest{Reference: ref, Subject: signing.Named(d, "example.com", "DeleteAll")}, `not for "DeleteAll"`)
}

// Whoever may attest may not release: neither by an attestation in the place
// of a signature, nor by a signature in the place of an attestation.
func TestPolicyAttack05AttestationIsNoSignature(t *testing.T) {
	t.Parallel()
	w := newTrustWorld(t)
	p := w.policy(`
  rules:
  - {scope: HOST/fn/**, signatures: {anyOf: [a]}}
  - {scope: HOST/tested/**, signatures: {anyOf: [a]}, attestations: [{predicateType: test-result, anyOf: [b]}]}
`)
	repo, ref, d := w.artifact("fn/a")
	w.attest(w.key, repo, ref, d, "PASSED")
	w.decide(p, repo, ref, d, "not signed")
	repo, ref, d = w.artifact("tested/a")
	w.sign(w.key, repo, ref, d, signing.SignOptions{})
	w.sign(w.key2, repo, ref, d, signing.SignOptions{})
	w.decide(p, repo, ref, d, "no such attestation")
}

// Annotations that were signed count, and not those of the manifest.
func TestPolicyAttack06Annotations(t *testing.T) {
	t.Parallel()
	w := newTrustWorld(t)
	p := w.policy(`
  rules:
  - {scope: HOST/fn/**, signatures: {anyOf: [a]}, annotations: {channel: stable}}
`)
	repo, ref, d := w.artifact("fn/a")
	w.sign(w.key, repo, ref, d, signing.SignOptions{})
	w.decide(p, repo, ref, d, "signed without annotation channel")
	w.sign(w.key, repo, ref, d, signing.SignOptions{Annotations: map[string]string{"channel": "beta"}})
	w.decide(p, repo, ref, d, `channel="beta", not "stable"`)
	d.Annotations = map[string]string{"channel": "stable"}
	w.decide(p, repo, ref, d, `channel="beta", not "stable"`)
}

// A signature without the evidence that its signer needs.
func TestPolicyAttack08EvidenceMissing(t *testing.T) {
	t.Parallel()
	w := newTrustWorld(t)
	// A key without a timestamp, in both formats.
	repo, ref, d := w.artifact("fn/a")
	w.sign(w.key, repo, ref, d, signing.SignOptions{Legacy: true})
	stamped := strings.Replace(trustSigners, "{name: a, key: {publicKey: a.pub}}", "{name: a, key: {publicKey: a.pub, root: test, evidence: {timestamps: 1}}}", 1) +
		"  rules: [{scope: HOST/fn/**, signatures: {anyOf: [a]}, legacy: true}]\n"
	p, err := signing.LoadTrustPolicy([]byte(strings.ReplaceAll(stamped, "HOST", w.host)), w.files)
	if err != nil {
		t.Fatal(err)
	}
	w.decide(p, repo, ref, d, "no signature satisfies")
	// A certificate that no certificate log vouches for, or without an entry in
	// a log, or with one timestamp where two are needed.
	repo, ref, d = w.artifact("fn/b")
	w.sign(w.release, repo, ref, d, signing.SignOptions{})
	w.decide(w.policy("  rules: [{scope: HOST/fn/**, signatures: {anyOf: [release]}}]\n"), repo, ref, d, "")
	for _, text := range []string{"timestamps: 1, sct: 1", "tlog: 1, sct: 0", "timestamps: 2, sct: 0"} {
		evidence := strings.ReplaceAll(trustSigners, "timestamps: 1, sct: 0", text) + "  rules: [{scope: HOST/fn/**, signatures: {anyOf: [release]}}]\n"
		p, err := signing.LoadTrustPolicy([]byte(strings.ReplaceAll(evidence, "HOST", w.host)), w.files)
		if err != nil {
			t.Fatal(err)
		}
		w.decide(p, repo, ref, d, "no signature satisfies")
	}
}

// Others than who is named: another subject, another issuer, another authority.
func TestPolicyAttack10OtherIdentity(t *testing.T) {
	t.Parallel()
	w := newTrustWorld(t)
	p := w.policy("  rules: [{scope: HOST/fn/**, signatures: {anyOf: [release]}}]\n")
	other := signtest.New(t)
	keyless := func(auth *signtest.Authority, issuer, subject string) *signing.KeylessSigner {
		t.Helper()
		s, err := signing.NewKeylessSigner(auth.Services(), signtest.Token(issuer, subject))
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	for name, s := range map[string]*signing.KeylessSigner{
		"subject":   keyless(w.auth, githubIssuer, "https://github.com/krmcat/krmcat/.github/workflows/other.yml@refs/tags/v1.0.0"),
		"issuer":    keyless(w.auth, "https://issuer.evil.example", releaseFlow),
		"authority": keyless(other, githubIssuer, releaseFlow),
	} {
		repo, ref, d := w.artifact("fn/" + name)
		w.sign(s, repo, ref, d, signing.SignOptions{})
		w.decide(p, repo, ref, d, "no signature satisfies")
	}
}

// Expressions and prefixes match no more than they say.
func TestPolicyAttack11NotAnchored(t *testing.T) {
	t.Parallel()
	w := newTrustWorld(t)
	text := trustSigners + `
  - name: mail
    keyless:
      root: test
      issuer: https://token.actions.githubusercontent.com
      subject: {regexp: 'release@krmcat\.test'}
      evidence: {timestamps: 1, sct: 0}
  - name: either
    keyless:
      root: test
      issuer: https://token.actions.githubusercontent.com
      subject: {regexp: 'x@krmcat\.test|release@krmcat\.test'}
      evidence: {timestamps: 1, sct: 0}
  rules:
  - {scope: HOST/mail/**, signatures: {anyOf: [mail]}}
  - {scope: HOST/either/**, signatures: {anyOf: [either]}}
  - {scope: HOST/prefix/**, signatures: {anyOf: [anyflow]}}
`
	p, err := signing.LoadTrustPolicy([]byte(strings.ReplaceAll(text, "HOST", w.host)), w.files)
	if err != nil {
		t.Fatal(err)
	}
	for scope, subjects := range map[string][2]string{
		"mail":   {"release@krmcat.test", "release@krmcat.test.evil.example"},
		"either": {"x@krmcat.test", "release@krmcat.test.evil.example"},
		"prefix": {"https://github.com/krmcat/x", "https://github.com/krmcat-evil/x"},
	} {
		for i, subject := range subjects {
			repo, ref, d := w.artifact(scope + "/" + string(rune('a'+i)))
			w.sign(newKeyless(t, w.auth, subject), repo, ref, d, signing.SignOptions{})
			want := ""
			if i == 1 {
				want = "no signature satisfies"
			}
			w.decide(p, repo, ref, d, want)
		}
	}
}

// A signature on an index is none on the manifests in it.
func TestPolicyAttack21IndexSignedChildNot(t *testing.T) {
	t.Parallel()
	w := newTrustWorld(t)
	p := w.policy("  rules: [{scope: HOST/fn/**, signatures: {anyOf: [a]}}]\n")
	repo, ref, child := w.artifact("fn/a")
	data, err := json.Marshal(ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex, Manifests: []ocispec.Descriptor{child}})
	if err != nil {
		t.Fatal(err)
	}
	index, err := oras.TagBytes(t.Context(), repo, ocispec.MediaTypeImageIndex, data, "index")
	if err != nil {
		t.Fatal(err)
	}
	w.sign(w.key, repo, ref, index, signing.SignOptions{})
	w.decide(p, repo, ref, index, "")
	w.decide(p, repo, ref, child, "not signed")
}

// Signatures that are not shown, or not shown any more.
func TestPolicyAttack22Stripped(t *testing.T) {
	t.Parallel()
	w := newTrustWorld(t)
	p := w.policy("  rules: [{scope: HOST/fn/**, signatures: {anyOf: [a, b], threshold: 2}, legacy: true}]\n")
	repo, ref, d := w.artifact("fn/a")
	w.sign(w.key, repo, ref, d, signing.SignOptions{Legacy: true})
	w.sign(w.key2, repo, ref, d, signing.SignOptions{})
	w.decide(p, repo, ref, d, "")
	dec, err := p.Evaluate(t.Context(), hiding{repo}, signing.TrustRequest{Reference: ref, Subject: d})
	if err != nil {
		t.Fatal(err)
	}
	if dec.Allowed || !errors.Is(dec.Err(), signing.ErrPolicy) && !errors.Is(dec.Err(), signing.ErrUnsigned) {
		t.Errorf("got %v", dec.Err())
	}
}

// hiding shows no referrers.
type hiding struct{ oras.GraphTarget }

func (hiding) Predecessors(context.Context, ocispec.Descriptor) ([]ocispec.Descriptor, error) {
	return nil, nil
}

// A registry that does not answer is an error, never a decision.
func TestPolicyRegistryDown(t *testing.T) {
	t.Parallel()
	w := newTrustWorld(t)
	p := w.policy("  rules: [{scope: HOST/fn/**, signatures: {anyOf: [a]}}]\n")
	repo, ref, d := w.artifact("fn/a")
	w.sign(w.key, repo, ref, d, signing.SignOptions{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	dec, err := p.Evaluate(ctx, repo, signing.TrustRequest{Reference: ref, Subject: d, Now: time.Now()})
	if err == nil || dec.Allowed {
		t.Errorf("got %+v, %v", dec, err)
	}
}
