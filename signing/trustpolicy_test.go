package signing_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/sigstore/sigstore/pkg/cryptoutils"
	"oras.land/oras-go/v2/registry/remote"

	"github.com/krmcat/krmcat/registry/regtest"
	"github.com/krmcat/krmcat/signing"
	"github.com/krmcat/krmcat/signing/signtest"
)

// trustWorld is a registry with an authority, keys and a folder of files that
// policies name.
type trustWorld struct {
	t         *testing.T
	auth      *signtest.Authority
	host      string
	key, key2 *signing.KeySigner
	release   *signing.KeylessSigner
	ci        *signing.KeylessSigner
	files     fstest.MapFS
	n         int
}

func newTrustWorld(t *testing.T) *trustWorld {
	t.Helper()
	w := &trustWorld{t: t, auth: signtest.New(t), host: regtest.NewServer(t).Host, key: newSigner(t), key2: newSigner(t)}
	w.release = newKeyless(t, w.auth, releaseFlow)
	w.ci = newKeyless(t, w.auth, "https://github.com/krmcat/krmcat/.github/workflows/ci.yml@refs/heads/main")
	w.files = fstest.MapFS{"trusted_root.json": {Data: w.auth.RootJSON}}
	for name, k := range map[string]*signing.KeySigner{"a.pub": w.key, "b.pub": w.key2} {
		pub, err := cryptoutils.MarshalPublicKeyToPEM(k.PublicKey())
		if err != nil {
			t.Fatal(err)
		}
		w.files[name] = &fstest.MapFile{Data: pub}
	}
	return w
}

const trustSigners = `
apiVersion: krmcat.dev/v1alpha1
kind: TrustPolicy
metadata: {name: test}
spec:
  roots: [{name: test, trustedRoot: trusted_root.json}]
  signers:
  - name: release
    keyless:
      root: test
      issuer: https://token.actions.githubusercontent.com
      subject: {regexp: 'https://github\.com/krmcat/krmcat/\.github/workflows/release\.yml@refs/tags/v.*'}
      evidence: {timestamps: 1, sct: 0}
  - name: ci
    keyless:
      root: test
      issuer: https://token.actions.githubusercontent.com
      subject: {prefix: 'https://github.com/krmcat/krmcat/.github/workflows/ci.yml@'}
      evidence: {timestamps: 1, sct: 0}
  - name: anyflow
    keyless:
      root: test
      issuer: https://token.actions.githubusercontent.com
      subject: {prefix: 'https://github.com/krmcat/'}
      evidence: {timestamps: 1, sct: 0}
  - {name: a, key: {publicKey: a.pub}}
  - {name: b, key: {publicKey: b.pub}}
`

// policy reads a policy whose rules are about HOST.
func (w *trustWorld) policy(rules string) *signing.TrustPolicy {
	w.t.Helper()
	p, err := signing.LoadTrustPolicy([]byte(strings.ReplaceAll(trustSigners+rules, "HOST", w.host)), w.files)
	if err != nil {
		w.t.Fatal(err)
	}
	return p
}

// artifact pushes a fresh artifact.
func (w *trustWorld) artifact(name string) (*remote.Repository, string, ocispec.Descriptor) {
	w.t.Helper()
	w.n++
	repo := repository(w.t, w.host, name)
	return repo, w.host + "/" + name, push(w.t, repo, fmt.Sprint(w.n), "v1")
}

type optionSigner interface {
	With(signing.SignOptions) *signing.OptionSigner
}

func (w *trustWorld) sign(s optionSigner, repo *remote.Repository, ref string, d ocispec.Descriptor, opts signing.SignOptions) {
	w.t.Helper()
	if _, err := s.With(opts).Sign(w.t.Context(), repo, ref, d); err != nil {
		w.t.Fatal(err)
	}
}

func (w *trustWorld) attest(s optionSigner, repo *remote.Repository, ref string, d ocispec.Descriptor, result string) {
	w.t.Helper()
	if _, err := s.With(signing.SignOptions{}).Attest(w.t.Context(), repo, ref, d, "test-result", json.RawMessage(`{"result":"`+result+`"}`)); err != nil {
		w.t.Fatal(err)
	}
}

// decide evaluates and wants the decision; an empty want is allowed, else it is
// part of what the error says.
func (w *trustWorld) decide(p *signing.TrustPolicy, repo *remote.Repository, ref string, d ocispec.Descriptor, want string) *signing.Decision {
	w.t.Helper()
	return w.decideAt(time.Now(), p, repo, ref, d, want)
}

func (w *trustWorld) decideAt(now time.Time, p *signing.TrustPolicy, repo *remote.Repository, ref string, d ocispec.Descriptor, want string) *signing.Decision {
	w.t.Helper()
	dec, err := p.Evaluate(w.t.Context(), repo, signing.TrustRequest{Reference: ref, Subject: d, Now: now})
	if err != nil {
		w.t.Fatal(err)
	}
	switch err := dec.Err(); {
	case want == "" && err != nil:
		w.t.Errorf("%s: denied: %v", ref, err)
	case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
		w.t.Errorf("%s: got %v, want %q", ref, err, want)
	case want != "" && !errors.Is(err, signing.ErrPolicy) && !errors.Is(err, signing.ErrUnsigned):
		w.t.Errorf("%s: %v is neither ErrPolicy nor ErrUnsigned", ref, err)
	}
	return dec
}

func TestTrustPolicyScopes(t *testing.T) {
	t.Parallel()
	w := newTrustWorld(t)
	p := w.policy(`
  rules:
  - {scope: HOST/krmcat/**, signatures: {anyOf: [a]}}
  - {scope: HOST/krmcat/strict/**, signatures: {anyOf: [b]}}
  - {scope: HOST/krmcat/strict/exact, signatures: {anyOf: [a]}, capabilities: {exec: true}}
  - {scope: HOST/krmcat/strict/x, signatures: {anyOf: [a]}}
`)
	for name, want := range map[string]string{
		"krmcat/fn":             "",
		"krmcat/strict/fn":      "no signature satisfies",
		"krmcat/strict/exact":   "",
		"krmcat/strict/exact/x": "no signature satisfies",
		"krmcat/strict/x":       "", // shorter than HOST/krmcat/strict/**, and exact
		"krmcat/strictly/fn":    "",
		"krmcat":                "no rule is about",
		"krmcat-evil/fn":        "no rule is about",
	} {
		repo, ref, d := w.artifact(name)
		w.sign(w.key, repo, ref, d, signing.SignOptions{})
		dec := w.decide(p, repo, ref, d, want)
		if name == "krmcat/strict/exact" && (dec.Capabilities == nil || !dec.Capabilities.Exec || dec.Capabilities.Network) {
			t.Errorf("got capabilities %+v", dec.Capabilities)
		}
		if want == "" && (len(dec.Signers) != 1 || dec.Signers[0] != "a" || len(dec.Verifications()) != 1) {
			t.Errorf("%s: got signers %v", name, dec.Signers)
		}
	}
	repo, ref, d := w.artifact("krmcat/unsigned")
	if dec := w.decide(p, repo, ref, d, "not signed"); !errors.Is(dec.Err(), signing.ErrUnsigned) {
		t.Errorf("got %v, want ErrUnsigned", dec.Err())
	}
	// The zero policy accepts nothing.
	w.decide(&signing.TrustPolicy{}, repo, ref, d, "no rule is about")
}

func TestTrustPolicyThreshold(t *testing.T) {
	t.Parallel()
	w := newTrustWorld(t)
	p := w.policy(`
  rules:
  - {scope: HOST/fn/**, signatures: {anyOf: [a, b, release], threshold: 2}}
  - {scope: HOST/flow/**, signatures: {anyOf: [release, anyflow], threshold: 2}}
`)
	repo, ref, d := w.artifact("fn/a")
	w.sign(w.key, repo, ref, d, signing.SignOptions{})
	w.decide(p, repo, ref, d, "1 of 2 signers (a)")
	// Two signatures of one signer are one.
	w.sign(w.key, repo, ref, d, signing.SignOptions{Annotations: map[string]string{"again": "1"}})
	w.decide(p, repo, ref, d, "1 of 2 signers (a)")
	w.sign(w.release, repo, ref, d, signing.SignOptions{})
	w.decide(p, repo, ref, d, "")

	// One certificate's identity that fits two signers is one.
	repo, ref, d = w.artifact("flow/a")
	w.sign(w.release, repo, ref, d, signing.SignOptions{})
	w.decide(p, repo, ref, d, "1 of 2 signers")
	w.sign(w.ci, repo, ref, d, signing.SignOptions{})
	w.decide(p, repo, ref, d, "")
}

func TestTrustPolicyConditions(t *testing.T) {
	t.Parallel()
	w := newTrustWorld(t)
	p := w.policy(`
  rules:
  - {scope: HOST/stable/**, signatures: {anyOf: [a]}, annotations: {krmcat.dev/channel: stable}}
  - {scope: HOST/old/**, signatures: {anyOf: [release]}, minimumAge: 72h}
  - {scope: HOST/legacy/**, signatures: {anyOf: [a]}, legacy: true}
  - {scope: HOST/new/**, signatures: {anyOf: [a]}}
`)
	repo, ref, d := w.artifact("stable/a")
	w.sign(w.key, repo, ref, d, signing.SignOptions{Annotations: map[string]string{"krmcat.dev/channel": "beta"}})
	w.decide(p, repo, ref, d, `krmcat.dev/channel="beta", not "stable"`)
	w.sign(w.key, repo, ref, d, signing.SignOptions{Annotations: map[string]string{"krmcat.dev/channel": "stable"}})
	w.decide(p, repo, ref, d, "")

	repo, ref, d = w.artifact("old/a")
	w.sign(w.release, repo, ref, d, signing.SignOptions{})
	w.decide(p, repo, ref, d, "has to be 72h old")
	w.decideAt(time.Now().Add(73*time.Hour), p, repo, ref, d, "")

	// The older format counts only where a rule says so.
	for name, want := range map[string]string{"legacy/a": "", "new/a": "not signed"} {
		repo, ref, d = w.artifact(name)
		w.sign(w.key, repo, ref, d, signing.SignOptions{Legacy: true, NoBundle: true})
		w.decide(p, repo, ref, d, want)
	}
}

func TestTrustPolicyAttestations(t *testing.T) {
	t.Parallel()
	w := newTrustWorld(t)
	p := w.policy(`
  rules:
  - scope: HOST/fn/**
    signatures: {anyOf: [a]}
    attestations:
    - {predicateType: test-result, anyOf: [ci], require: {result: PASSED}}
`)
	repo, ref, d := w.artifact("fn/a")
	w.sign(w.key, repo, ref, d, signing.SignOptions{})
	w.decide(p, repo, ref, d, "no such attestation")
	// The signer of signatures may not attest tests, nor the other way round.
	w.attest(w.key, repo, ref, d, "PASSED")
	w.decide(p, repo, ref, d, "no signature satisfies")
	w.attest(w.ci, repo, ref, d, "FAILED")
	w.decide(p, repo, ref, d, `result=FAILED, not "PASSED"`)
	w.attest(w.ci, repo, ref, d, "PASSED")
	dec := w.decide(p, repo, ref, d, "")
	if n := len(dec.Steps); n != 3 || dec.Steps[2].Detail != "by ci" {
		t.Errorf("got steps %+v", dec.Steps)
	}

	repo, ref, d = w.artifact("fn/b")
	w.sign(w.ci, repo, ref, d, signing.SignOptions{})
	w.attest(w.ci, repo, ref, d, "PASSED")
	w.decide(p, repo, ref, d, "no signature satisfies")
}

func TestTrustPolicyRevocation(t *testing.T) {
	t.Parallel()
	w := newTrustWorld(t)
	const rules = `
  rules:
  - {scope: HOST/fn/**, signatures: {anyOf: [a, b]}}
`
	repo, ref, d := w.artifact("fn/a")
	w.sign(w.key, repo, ref, d, signing.SignOptions{})
	w.decide(w.policy(rules), repo, ref, d, "")
	w.decide(w.policy(rules+"  revoked: {digests: ['"+d.Digest.String()+"']}\n"), repo, ref, d, "the digest is revoked")
	w.decide(w.policy(rules+"  revoked: {signers: [a]}\n"), repo, ref, d, "no signature satisfies")
	w.decide(w.policy(rules+"  revoked: {keys: ['"+w.key.Fingerprint()+"']}\n"), repo, ref, d, "no signature satisfies")
	w.decide(w.policy(rules+"  revoked: {signers: [b]}\n"), repo, ref, d, "")
	w.decide(w.policy(rules+"  revoked: {signers: [a, b]}\n"), repo, ref, d, "0 are left")
}

func TestTrustPolicyMirrors(t *testing.T) {
	t.Parallel()
	w := newTrustWorld(t)
	p := w.policy(`
  rules:
  - {scope: ghcr.io/krmcat/**, signatures: {anyOf: [a]}, legacy: true}
  mirrors:
  - {mirror: HOST/copies, original: ghcr.io/krmcat}
`)
	repo, ref, d := w.artifact("copies/fn")
	w.sign(w.key, repo, "ghcr.io/krmcat/fn", d, signing.SignOptions{Legacy: true, NoBundle: true})
	if dec := w.decide(p, repo, ref, d, ""); dec.Original != "ghcr.io/krmcat/fn" {
		t.Errorf("got original %q", dec.Original)
	}
	repo, ref, d = w.artifact("copiesofothers/fn")
	w.sign(w.key, repo, ref, d, signing.SignOptions{})
	w.decide(p, repo, ref, d, "no rule is about")
}

func TestTrustPolicyMistakes(t *testing.T) {
	t.Parallel()
	w := newTrustWorld(t)
	const head = "apiVersion: krmcat.dev/v1alpha1\nkind: TrustPolicy\nspec:\n"
	for name, tt := range map[string]struct{ text, want string }{
		"unknown field":      {head + "  rule: []\n", `unknown field "rule"`},
		"wrong kind":         {"apiVersion: v1\nkind: ConfigMap\n", "is v1 ConfigMap"},
		"not YAML":           {"{", "trust policy:1:1: did not find"},
		"nothing":            {"# later\n", "trust policy:1:1: there is no document (krmcat trust init"},
		"two documents":      {head + "  rules: []\n---\n" + head, "trust policy:5:1: a second document"},
		"other case":         {head + "  Rules: []\n", `trust policy:4:3: spec.Rules: unknown field "Rules" (write rules)`},
		"near miss":          {head + "  rules:\n  - scop: a.b/c\n", `trust policy:5:5: spec.rules[0].scop: unknown field "scop" (did you mean scope?)`},
		"wrong type":         {head + "  rules:\n  - {scope: a.b/c, signatures: {anyOf: [x], threshold: two}}\n", `trust policy:5:56: spec.rules[0].signatures.threshold: this is the string "two", not an integer`},
		"anchored nowhere":   {strings.Replace(trustSigners, `{regexp: 'https://github\.com/krmcat/krmcat/\.github/workflows/release\.yml@refs/tags/v.*'}`, "{regexp: '.*'}", 1), `trust policy:12:16: spec.signers[0].keyless.subject: signer release: the expression ".*" matches everybody`},
		"all of GitHub":      {strings.Replace(trustSigners, "'https://github.com/krmcat/'", "'https://github.com/'", 1), "everybody's URL"},
		"all of the web":     {strings.Replace(trustSigners, "'https://github.com/krmcat/'", "'https://'", 1), "everybody's URL"},
		"all of a name":      {strings.Replace(trustSigners, "'https://github.com/krmcat/'", "'release@'", 1), "is not that of a URL"},
		"all of GitHub, too": {strings.Replace(trustSigners, "{prefix: 'https://github.com/krmcat/'}", `{regexp: 'https://github\.com/.+'}`, 1), "matches everybody"},
		"no subject":         {strings.Replace(trustSigners, "{prefix: 'https://github.com/krmcat/'}", "{}", 1), "give one of subject"},
		"two subjects":       {strings.Replace(trustSigners, "{prefix: 'https://github.com/krmcat/'}", "{prefix: 'https://github.com/krmcat/', equal: x}", 1), "give one of subject"},
		"same identity":      {strings.Replace(trustSigners, "'https://github.com/krmcat/'", "'https://github.com/krmcat/krmcat/.github/workflows/ci.yml@'", 1), "signers ci and anyflow have the same identity"},
		"bad expression":     {strings.Replace(trustSigners, "{prefix: 'https://github.com/krmcat/'}", "{regexp: '('}", 1), "missing closing"},
		"wide source":        {strings.Replace(trustSigners, "{prefix: 'https://github.com/krmcat/'}", "{prefix: 'https://github.com/'}\n      sourceRepository: {prefix: 'https://github.com/'}", 1), "spec.signers[2].keyless.sourceRepository: signer anyflow: the prefix"},
		"open source":        {strings.Replace(trustSigners, "{prefix: 'https://github.com/krmcat/'}", "{prefix: 'https://github.com/'}\n      sourceRepository: {prefix: 'https://github.com/krmcat'}", 1), "has to end in / or @"},
		"valid never":        {head + "  signers: [{name: x, key: {publicKey: a.pub, notBefore: 2027-01-01T00:00:00Z, notAfter: 2026-01-01T00:00:00Z, evidence: {timestamps: 1}}}]\n", "valid at no time"},
		"no time":            {head + "  signers: [{name: x, key: {publicKey: a.pub, notAfter: soon}}]\n", `"soon" cannot be read`},
		"negative evidence":  {head + "  signers: [{name: x, key: {publicKey: a.pub, evidence: {tlog: -1}}}]\n", "cannot be negative"},
		"no host":            {trustSigners + "  rules: [{scope: acme/**, signatures: {anyOf: [a]}}]\n", `"acme" is no registry host`},
		"any and all":        {trustSigners + "  rules: [{scope: a.b/c, signatures: {anyOf: [a], allOf: [a]}}]\n", "signer a twice"},
		"negative age":       {trustSigners + "  rules: [{scope: a.b/c, signatures: {anyOf: [release]}, minimumAge: -1h}]\n", "such as 72h"},
		"age of all":         {trustSigners + "  rules: [{scope: a.b/c, signatures: {allOf: [release, a]}, minimumAge: 1h}]\n", "signer a requires none"},
		"nobody attests":     {trustSigners + "  rules: [{scope: a.b/c, signatures: {anyOf: [a]}, attestations: [{predicateType: test-result}]}]\n", "name at least one signer"},
		"write":              {trustSigners + "  rules: [{scope: a.b/c, signatures: {anyOf: [a]}, capabilities: {write: true}}]\n", "write needs storage"},
		"bad variable":       {trustSigners + "  rules: [{scope: a.b/c, signatures: {anyOf: [a]}, capabilities: {env: ['A=B']}}]\n", "spec.rules[0].capabilities.env[0]: scope a.b/c: \"A=B\" is not the name of a variable"},
		"two mirrors":        {trustSigners + "  mirrors: [{mirror: a.b/c, original: c.d}, {mirror: a.b/c, original: e.f}]\n", "copies of two"},
		"twice the same key": {head + "  signers: []\n  signers: []\n", `key "signers" occurs twice`},
		"no signer":          {head + "  rules: [{scope: a.b/c, signatures: {anyOf: [x]}}]\n", "there is no signer x"},
		"empty anyOf":        {head + "  rules: [{scope: a.b/c, signatures: {}}]\n", "name at least one signer"},
		"no evidence":        {head + "  signers: [{name: x, keyless: {root: r, issuer: i, subject: {equal: s}}}]\n", "valid for minutes"},
		"no such root":       {head + "  signers: [{name: x, keyless: {root: r, issuer: i, subject: {equal: s}, evidence: {tlog: 1}}}]\n", "there is no root r"},
		"no root for key":    {head + "  signers: [{name: x, key: {publicKey: a.pub, evidence: {tlog: 1}}}]\n", "no trusted root"},
		"window, no time":    {head + "  signers: [{name: x, key: {publicKey: a.pub, notAfter: '2027-01-01T00:00:00Z'}}]\n", "needs evidence of the time"},
		"sct for key":        {head + "  signers: [{name: x, key: {publicKey: a.pub, evidence: {sct: 1}}}]\n", "about certificates"},
		"sct 2":              {head + "  signers: [{name: x, keyless: {root: r, issuer: i, subject: {equal: s}, evidence: {tlog: 1, sct: 2}}}]\n", "0 or 1"},
		"both":               {head + "  signers: [{name: x, key: {publicKey: a.pub}, keyless: {root: r, issuer: i, subject: {equal: s}, evidence: {tlog: 1}}}]\n", "exactly one of"},
		"neither":            {head + "  signers: [{name: x}]\n", "exactly one of"},
		"no name":            {head + "  signers: [{key: {publicKey: a.pub}}]\n", "a name of its own"},
		"same key":           {head + "  signers: [{name: x, key: {publicKey: a.pub}}, {name: y, key: {publicKey: a.pub}}]\n", "have the same key"},
		"open prefix":        {strings.Replace(trustSigners, "ci.yml@'", "ci.yml'", 1), "has to end in / or @"},
		"no issuer":          {strings.Replace(trustSigners, "issuer: https://token.actions.githubusercontent.com", "issuer: ''", 1), "no issuer"},
		"no file":            {head + "  signers: [{name: x, key: {publicKey: none.pub}}]\n", "none.pub"},
		"escape":             {head + "  signers: [{name: x, key: {publicKey: ../a.pub}}]\n", "../a.pub"},
		"no key":             {head + "  signers: [{name: x, key: {publicKey: trusted_root.json}}]\n", "no PEM public key"},
		"bad root":           {head + "  roots: [{name: r, trustedRoot: a.pub}]\n", "reading the trusted root"},
		"two rules":          {trustSigners + "  rules: [{scope: a.b/c, signatures: {anyOf: [a]}}, {scope: a.b/c, signatures: {anyOf: [b]}}]\n", "two rules"},
		"bad scope":          {trustSigners + "  rules: [{scope: 'a.b/*/c', signatures: {anyOf: [a]}}]\n", "write host/repository"},
		"open scope":         {trustSigners + "  rules: [{scope: 'a.b/c**', signatures: {anyOf: [a]}}]\n", "write host/repository"},
		"empty scope":        {trustSigners + "  rules: [{signatures: {anyOf: [a]}}]\n", "write host/repository"},
		"threshold":          {trustSigners + "  rules: [{scope: a.b/c, signatures: {anyOf: [a], threshold: 2}}]\n", "2 signers are needed, but 1"},
		"signer twice":       {trustSigners + "  rules: [{scope: a.b/c, signatures: {anyOf: [a, a], threshold: 2}}]\n", "signer a twice"},
		"age without time":   {trustSigners + "  rules: [{scope: a.b/c, signatures: {anyOf: [a]}, minimumAge: 1h}]\n", "needs evidence of the time"},
		"bad age":            {trustSigners + "  rules: [{scope: a.b/c, signatures: {anyOf: [release]}, minimumAge: 3d}]\n", "such as 72h"},
		"sign as attest":     {trustSigners + "  rules: [{scope: a.b/c, signatures: {anyOf: [a]}, attestations: [{predicateType: 'https://sigstore.dev/cosign/sign/v1', anyOf: [a]}]}]\n", "that of signatures"},
		"bad digest":         {trustSigners + "  revoked: {digests: [abc]}\n", "revoked digest"},
		"bad fingerprint":    {trustSigners + "  revoked: {keys: [abc]}\n", "write the fingerprint"},
		"revoked nobody":     {trustSigners + "  revoked: {signers: [nobody]}\n", "there is none of that name"},
		"bad mirror":         {trustSigners + "  mirrors: [{mirror: 'a.b/**', original: c.d}]\n", "is not a host or a repository"},
		"too large":          {trustSigners + strings.Repeat("#", 1<<20), "more than"},
	} {
		_, err := signing.LoadTrustPolicy([]byte(tt.text), w.files)
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want %q", name, err, tt.want)
		}
	}
	if _, err := signing.LoadTrustPolicy([]byte(trustSigners), nil); err == nil || !strings.Contains(err.Error(), "cannot name files") {
		t.Errorf("without files: got %v", err)
	}
}

func FuzzLoadTrustPolicy(f *testing.F) {
	f.Add([]byte(trustSigners))
	f.Add([]byte(trustSigners + "  rules: [{scope: a.b/c/**, signatures: {anyOf: [a], threshold: 1}}]\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := signing.LoadTrustPolicy(data, nil)
		if err != nil {
			return
		}
		// Whatever is in it, a rule that applies has a scope that is about
		// the repository, and nothing outside of scopes is accepted.
		for _, name := range []string{"a.b/c", "a.b/c/d", "a.b/cd", "x"} {
			r := p.Rule(name)
			if r == nil {
				continue
			}
			base := strings.TrimSuffix(r.Scope, "/**")
			if name != base && !strings.HasPrefix(name, base+"/") {
				t.Errorf("scope %s applies to %s", r.Scope, name)
			}
			if len(r.Signatures.AnyOf)+len(r.Signatures.AllOf) == 0 {
				t.Errorf("scope %s needs no signature", r.Scope)
			}
		}
	})
}
