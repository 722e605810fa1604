package signing_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/registry/remote"

	"github.com/krmcat/krmcat/signing"
	"github.com/krmcat/krmcat/signing/signtest"
)

// ask evaluates a request; want is as in decide.
func (w *trustWorld) ask(p *signing.TrustPolicy, repo *remote.Repository, r signing.TrustRequest, want string) *signing.Decision {
	w.t.Helper()
	dec, err := p.Evaluate(w.t.Context(), repo, r)
	if err != nil {
		w.t.Fatal(err)
	}
	switch err := dec.Err(); {
	case want == "" && err != nil:
		w.t.Errorf("denied: %v", err)
	case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
		w.t.Errorf("got %v, want %q", err, want)
	}
	return dec
}

// What a denial says: the rule, who was expected, who was found.
func TestTrustDecisionMessage(t *testing.T) {
	t.Parallel()
	w := newTrustWorld(t)
	p := w.policy(`
  rules:
  - {scope: HOST/fn/**, signatures: {anyOf: [a, release]}}
`)
	repo, ref, d := w.artifact("fn/a")
	w.sign(w.key2, repo, ref, d, signing.SignOptions{})
	w.attest(w.ci, repo, ref, d, "PASSED")
	dec := w.decide(p, repo, ref, d, "rule for "+w.host+"/fn/**: ")
	text := dec.Err().Error()
	for _, want := range []string{
		ref + "@" + d.Digest.String() + ": ",
		"needed: a: key " + w.key.Fingerprint() + ` or release: /https://github\.com/krmcat/krmcat/`,
		"key " + w.key2.Fingerprint(),
		"https://github.com/krmcat/krmcat/.github/workflows/ci.yml@refs/heads/main (by https://token.actions.githubusercontent.com) (attests only)",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%s\nlacks %q", text, want)
		}
	}
	if dec.Policy != "test" || len(dec.Expected) != 2 || len(dec.Found) != 2 || dec.Allowed || dec.Signers != nil {
		t.Errorf("got %+v", dec)
	}
}

func TestTrustPolicyAllOf(t *testing.T) {
	t.Parallel()
	w := newTrustWorld(t)
	p := w.policy(`
  rules:
  - {scope: HOST/fn/**, signatures: {allOf: [a], anyOf: [b, release]}}
  - {scope: HOST/flow/**, signatures: {allOf: [anyflow], anyOf: [release]}}
`)
	repo, ref, d := w.artifact("fn/a")
	w.sign(w.key, repo, ref, d, signing.SignOptions{})
	w.decide(p, repo, ref, d, "1 of 2 signers (a)")
	w.sign(w.key2, repo, ref, d, signing.SignOptions{})
	if dec := w.decide(p, repo, ref, d, ""); strings.Join(dec.Signers, " ") != "a b" {
		t.Errorf("got signers %v", dec.Signers)
	}
	// Two of the alternatives do not make up for the one that is required.
	repo, ref, d = w.artifact("fn/b")
	w.sign(w.key2, repo, ref, d, signing.SignOptions{})
	w.sign(w.release, repo, ref, d, signing.SignOptions{})
	w.decide(p, repo, ref, d, "of 2 signers")
	// One identity is not both.
	repo, ref, d = w.artifact("flow/a")
	w.sign(w.release, repo, ref, d, signing.SignOptions{})
	w.decide(p, repo, ref, d, "1 of 2 signers")
	w.sign(w.ci, repo, ref, d, signing.SignOptions{})
	w.decide(p, repo, ref, d, "")
	// Revocation of one that is required leaves nothing to satisfy the rule.
	p = w.policy(`
  rules:
  - {scope: HOST/flow/**, signatures: {allOf: [anyflow], anyOf: [release]}}
  revoked: {signers: [anyflow]}
`)
	w.decide(p, repo, ref, d, "0 are left")
}

func TestTrustPolicySignerConditions(t *testing.T) {
	t.Parallel()
	w := newTrustWorld(t)
	text := strings.Replace(trustSigners, "{name: a, key: {publicKey: a.pub}}", "{name: a, key: {publicKey: a.pub}, annotations: {env: prod}}", 1)
	// A workflow that others may call: the subject is the same for all.
	text += `
  - name: called
    keyless:
      root: test
      issuer: https://token.actions.githubusercontent.com
      subject: {equal: 'https://github.com/shared/flows/.github/workflows/sign.yml@refs/heads/main'}
      sourceRepository: {equal: 'https://github.com/krmcat/krmcat'}
      evidence: {timestamps: 1, sct: 0}
  - name: owner
    keyless:
      root: test
      issuer: https://token.actions.githubusercontent.com
      subject: {regexp: 'https://github\.com/[^/]+/[^/]+.*'}
      sourceRepository: {prefix: 'https://github.com/acme/'}
      evidence: {timestamps: 1, sct: 0}
  rules:
  - {scope: HOST/key/**, signatures: {anyOf: [a]}}
  - {scope: HOST/called/**, signatures: {anyOf: [called]}}
  - {scope: HOST/owner/**, signatures: {anyOf: [owner]}}
  - scope: HOST/attested/**
    signatures: {anyOf: [b]}
    attestations: [{predicateType: test-result, anyOf: [called]}]
`
	p, err := signing.LoadTrustPolicy([]byte(strings.ReplaceAll(text, "HOST", w.host)), w.files)
	if err != nil {
		t.Fatal(err)
	}
	repo, ref, d := w.artifact("key/a")
	w.sign(w.key, repo, ref, d, signing.SignOptions{})
	w.decide(p, repo, ref, d, "env")
	w.sign(w.key, repo, ref, d, signing.SignOptions{Annotations: map[string]string{"env": "prod"}})
	w.decide(p, repo, ref, d, "")

	job := func(repository string) *signing.KeylessSigner {
		t.Helper()
		s, err := signing.NewKeylessSigner(w.auth.Services(), signtest.JobToken("https://token.actions.githubusercontent.com",
			"https://github.com/shared/flows/.github/workflows/sign.yml@refs/heads/main", repository))
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	for scope, repository := range map[string]string{"called": "https://github.com/krmcat/krmcat", "owner": "https://github.com/acme/x"} {
		repo, ref, d = w.artifact(scope + "/a")
		w.sign(job("https://github.com/mallory/krmcat"), repo, ref, d, signing.SignOptions{})
		w.decide(p, repo, ref, d, `signed for the source repository "https://github.com/mallory/krmcat"`)
		w.sign(job(""), repo, ref, d, signing.SignOptions{})
		w.decide(p, repo, ref, d, `signed for the source repository ""`)
		w.sign(job(repository), repo, ref, d, signing.SignOptions{})
		w.decide(p, repo, ref, d, "")
	}
	repo, ref, d = w.artifact("attested/a")
	w.sign(w.key2, repo, ref, d, signing.SignOptions{})
	w.attest(job("https://github.com/mallory/x"), repo, ref, d, "PASSED")
	w.decide(p, repo, ref, d, "source repository")
	w.attest(job("https://github.com/krmcat/krmcat"), repo, ref, d, "PASSED")
	w.decide(p, repo, ref, d, "")
}

func TestTrustPolicyCapabilities(t *testing.T) {
	t.Parallel()
	w := newTrustWorld(t)
	p := w.policy(`
  rules:
  - {scope: HOST/none/**, signatures: {anyOf: [a]}, capabilities: {}}
  - {scope: HOST/some/**, signatures: {anyOf: [a]}, capabilities: {exec: true, storage: true, env: [HTTPS_PROXY]}}
  - {scope: HOST/free/**, signatures: {anyOf: [a]}}
`)
	type caps = signing.TrustCapabilities
	for _, tt := range []struct {
		name  string
		needs caps
		want  string
	}{
		{"none", caps{}, ""},
		{"none", caps{Exec: true}, "asks for exec, and is granted at most nothing"},
		{"none", caps{Network: true}, "asks for network"},
		{"none", caps{Storage: true}, "asks for storage"},
		{"none", caps{Env: []string{"TOKEN"}}, "asks for env TOKEN"},
		{"some", caps{Exec: true, Storage: true, Env: []string{"HTTPS_PROXY"}}, ""},
		{"some", caps{Storage: true, Write: true}, "asks for write, and is granted at most exec, storage, env HTTPS_PROXY"},
		{"some", caps{Network: true, Env: []string{"TOKEN"}}, "asks for network, env TOKEN"},
		{"free", caps{Exec: true, Network: true, Storage: true, Write: true, Env: []string{"TOKEN"}}, ""},
	} {
		repo, ref, d := w.artifact(tt.name + "/fn")
		w.sign(w.key, repo, ref, d, signing.SignOptions{})
		dec := w.ask(p, repo, signing.TrustRequest{Reference: ref, Subject: d, Needs: &tt.needs}, tt.want)
		if tt.want != "" && (!errors.Is(dec.Err(), signing.ErrCapability) || !errors.Is(dec.Err(), signing.ErrPolicy)) {
			t.Errorf("%s %v: got %v", tt.name, tt.needs, dec.Err())
		}
		// Asking for nothing in particular shows the ceiling.
		if dec := w.ask(p, repo, signing.TrustRequest{Reference: ref, Subject: d}, ""); (dec.Capabilities == nil) != (tt.name == "free") {
			t.Errorf("%s: got ceiling %v", tt.name, dec.Capabilities)
		}
		// It does not make up for a signature.
		repo, ref, d = w.artifact(tt.name + "/fn")
		w.ask(p, repo, signing.TrustRequest{Reference: ref, Subject: d, Needs: &tt.needs}, "not signed")
	}
}

// What a document names: judged by itself, unless the document's rule covers it.
func TestTrustPolicyRuntimes(t *testing.T) {
	t.Parallel()
	w := newTrustWorld(t)
	p := w.policy(`
  rules:
  - {scope: HOST/own/**, signatures: {anyOf: [a]}}
  - {scope: HOST/covering/**, signatures: {anyOf: [a]}, coversRuntimes: true, capabilities: {exec: true, network: true}}
  - {scope: HOST/runtimes/**, signatures: {anyOf: [b]}, capabilities: {network: true}}
  revoked: {digests: ['` + digest.FromString("stolen").String() + `']}
`)
	document := func(name, want string) *signing.Decision {
		t.Helper()
		repo, ref, d := w.artifact(name)
		if want == "" {
			w.sign(w.key, repo, ref, d, signing.SignOptions{})
		}
		return w.decide(p, repo, ref, d, want)
	}
	own, covering, unsigned := document("own/doc", ""), document("covering/doc", ""), document("covering/unsigned", "not signed")

	repo, ref, d := w.artifact("runtimes/unsigned")
	artifact := func(doc *signing.Decision) signing.TrustRequest {
		return signing.TrustRequest{Reference: ref, Subject: d, Document: doc}
	}
	w.ask(p, repo, artifact(nil), "not signed")
	w.ask(p, repo, artifact(own), "not signed")
	dec := w.ask(p, repo, artifact(covering), "")
	// The ceilings of both rules hold.
	if got := dec.Capabilities.String(); got != "network" {
		t.Errorf("got ceiling %s", got)
	}
	w.ask(p, repo, artifact(unsigned), "which names it, is not accepted")
	// What is covered may be where no rule is.
	w.ask(p, nil, signing.TrustRequest{Reference: "other.example/x", Subject: d}, "no rule is about")
	w.ask(p, nil, signing.TrustRequest{Reference: "other.example/x", Subject: d, Document: covering}, "")
	w.ask(p, nil, signing.TrustRequest{Reference: "other.example/x", Subject: d, Document: own}, "no rule is about")
	// Revocation goes before everything.
	stolen := ocispec.Descriptor{Digest: digest.FromString("stolen")}
	w.ask(p, nil, signing.TrustRequest{Reference: "other.example/x", Subject: stolen, Document: covering}, "is revoked")
	w.ask(p, nil, signing.TrustRequest{Reference: "other.example/x", Subject: d, Content: stolen.Digest, Document: covering}, "is revoked")
	w.ask(p, nil, signing.TrustRequest{Name: "https://x.example/fn", Subject: stolen, Document: covering}, "is revoked")

	// In no registry.
	web := signing.TrustRequest{Name: "https://x.example/fn"}
	w.ask(p, nil, web, "in no registry")
	web.Document = own
	w.ask(p, nil, web, "in no registry")
	web.Document = covering
	w.ask(p, nil, web, "")
	web.Needs = &signing.TrustCapabilities{Storage: true}
	w.ask(p, nil, web, "asks for storage")
	// Files of this machine, which no document from elsewhere can name.
	file := signing.TrustRequest{Name: "plugin.sh", Local: true}
	w.ask(p, nil, file, "localFiles")
	file.Document = covering
	w.ask(p, nil, file, "localFiles")
	local := w.policy("  rules: []\n  localFiles: true\n")
	w.ask(local, nil, signing.TrustRequest{Name: "plugin.sh", Local: true}, "")
	w.ask(local, nil, signing.TrustRequest{Name: "https://x.example/fn"}, "in no registry")
}

// The zero policy, and one with nothing in it, accept nothing.
func TestTrustPolicyZero(t *testing.T) {
	t.Parallel()
	w := newTrustWorld(t)
	repo, ref, d := w.artifact("fn/a")
	w.sign(w.key, repo, ref, d, signing.SignOptions{})
	empty, err := signing.LoadTrustPolicy([]byte("apiVersion: krmcat.dev/v1alpha1\nkind: TrustPolicy\nspec: {}\n"), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []*signing.TrustPolicy{{}, empty} {
		w.ask(p, repo, signing.TrustRequest{Reference: ref, Subject: d}, "no rule is about")
		w.ask(p, repo, signing.TrustRequest{}, "in no registry")
		w.ask(p, repo, signing.TrustRequest{Name: "x", Local: true}, "localFiles")
		w.ask(p, repo, signing.TrustRequest{Reference: ref, Subject: d, Document: &signing.Decision{}}, "is not accepted")
	}
}
