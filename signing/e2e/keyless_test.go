package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/registry/remote"

	"github.com/krmcat/krmcat/registry/regmem"
	"github.com/krmcat/krmcat/registry/regserver"
	"github.com/krmcat/krmcat/registry/regtest"
	"github.com/krmcat/krmcat/signing"
)

const testResult = "https://in-toto.io/attestation/test-result/v0.1"

// world is a stack with a registry.
type world struct {
	*stack
	root *signing.TrustedRoot
	host string
	n    int
}

func newWorld(t *testing.T) *world {
	s := startStack(t)
	root, err := signing.LoadTrustedRoot(s.read("trusted_root.json"))
	if err != nil {
		t.Fatal(err)
	}
	return &world{stack: s, root: root}
}

// subject is a fresh artifact.
type subject struct {
	repo *remote.Repository
	name string
	desc ocispec.Descriptor
}

func (x subject) at() string { return x.name + "@" + x.desc.Digest.String() }

func (w *world) artifact() subject {
	w.t.Helper()
	w.n++
	x := subject{name: w.host + "/e2e/a"}
	var err error
	if x.repo, err = remote.NewRepository(x.name); err != nil {
		w.t.Fatal(err)
	}
	x.repo.PlainHTTP = true
	layer, err := oras.PushBytes(w.t.Context(), x.repo, "text/plain", fmt.Append(nil, w.n))
	if err != nil {
		w.t.Fatal(err)
	}
	x.desc, err = oras.PackManifest(w.t.Context(), x.repo, oras.PackManifestVersion1_1, "application/vnd.example.v1", oras.PackManifestOptions{Layers: []ocispec.Descriptor{layer}})
	if err != nil {
		w.t.Fatal(err)
	}
	return x
}

func (w *world) services(config string) *signing.Services {
	w.t.Helper()
	s, err := signing.LoadServices(w.read(config), time.Now())
	if err != nil {
		w.t.Fatal(err)
	}
	s.Root = w.root
	return s
}

func (w *world) keyless(config, token string) *signing.KeylessSigner {
	w.t.Helper()
	k, err := signing.NewKeylessSigner(w.services(config), token)
	if err != nil {
		w.t.Fatal(err)
	}
	return k
}

func (w *world) sign(k *signing.KeylessSigner, x subject, opts signing.SignOptions) {
	w.t.Helper()
	if _, err := k.With(opts).Sign(w.t.Context(), x.repo, x.name, x.desc); err != nil {
		w.t.Fatal(err)
	}
}

// full is all the evidence that there can be.
var full = signing.Evidence{Timestamps: 1, Tlog: 1}

func (w *world) verify(ok bool, x subject, id signing.Identity, ev signing.Evidence) {
	w.t.Helper()
	v, err := signing.Checker{}.Verify(w.t.Context(), x.repo, x.name, x.desc, signing.Policy{Identities: []signing.Identity{id}, Root: w.root, Evidence: ev})
	if (err == nil) != ok {
		w.t.Errorf("verifying for %s with %+v: got %v, want success %v", id, ev, err, ok)
	}
	if err == nil && (v.Time.IsZero() || v.Certificate == nil) {
		w.t.Errorf("got time %v, certificate %v", v.Time, v.Certificate != nil)
	}
}

// keyPair makes NAME.key and NAME.pub.
func (w *world) keyPair(name string) *signing.KeySigner {
	w.t.Helper()
	pair, err := signing.GenerateKeyPair([]byte("secret"))
	if err != nil {
		w.t.Fatal(err)
	}
	w.write(name+".key", string(pair.Private))
	w.write(name+".pub", string(pair.Public))
	k, err := signing.LoadSigner(w.t.Context(), signing.KeyOptions{Ref: w.path(name + ".key"), Password: func() ([]byte, error) { return []byte("secret"), nil }})
	if err != nil {
		w.t.Fatal(err)
	}
	return k
}

func (w *world) verifyKey(ok bool, x subject, k *signing.KeySigner, ev signing.Evidence) {
	w.t.Helper()
	policy := signing.Policy{Keys: []any{k.PublicKey()}, Root: w.root, Evidence: ev}
	if _, err := (signing.Checker{}).Verify(w.t.Context(), x.repo, x.name, x.desc, policy); (err == nil) != ok {
		w.t.Errorf("verifying with a key and %+v: got %v, want success %v", ev, err, ok)
	}
}

func (w *world) workflowID() signing.Identity {
	return signing.Identity{Issuer: w.github.url, Subject: "https://github.com/" + workflow}
}

func (w *world) mailID() signing.Identity {
	return signing.Identity{Issuer: w.mail.url, Subject: "release@krmcat.test"}
}

func flags(command string, more ...string) []string {
	return append([]string{command, "--trusted-root", "trusted_root.json", "--use-signed-timestamps", "--allow-insecure-registry"}, more...)
}

func identity(id signing.Identity) []string {
	return []string{"--certificate-identity", id.Subject, "--certificate-oidc-issuer", id.Issuer}
}

func join(lists ...[]string) []string {
	var all []string
	for _, l := range lists {
		all = append(all, l...)
	}
	return all
}

// TestInside is what TestEndToEnd runs.
func TestInside(t *testing.T) {
	if os.Getenv(envServices) == "" {
		t.Skip("TestEndToEnd runs it")
	}
	w := newWorld(t)
	// Signatures are found through the API for referrers, and where a registry
	// has none, through tags.
	for name, srv := range map[string]*regtest.Server{
		"referrers": regtest.NewServer(t),
		"tags":      regtest.NewServerWith(t, regmem.New(), &regserver.Options{NoReferrers: true}),
	} {
		t.Run(name, func(t *testing.T) {
			w.host = srv.Host
			w.everything(t)
		})
	}
}

func (w *world) everything(t *testing.T) {
	t.Run("ours", func(t *testing.T) { w.t = t; w.ours() })
	t.Run("without a log", func(t *testing.T) { w.t = t; w.withoutLog() })
	t.Run("older format", func(t *testing.T) { w.t = t; w.legacy() })
	t.Run("attestations", func(t *testing.T) { w.t = t; w.attestations() })
	t.Run("theirs", func(t *testing.T) { w.t = t; w.theirs() })
	t.Run("keys", func(t *testing.T) { w.t = t; w.keys() })
	t.Run("trust policy", func(t *testing.T) { w.t = t; w.trustPolicy() })
	t.Run("Rekor 1", func(t *testing.T) { w.t = t; w.withRekor1() })
	t.Run("Rekor 1, keys", func(t *testing.T) { w.t = t; w.keysWithRekor1() })
	t.Run("commands", func(t *testing.T) { w.t = t; w.commands() })
}

// ours: krmcat signs with everything, all verify.
func (w *world) ours() {
	x, id := w.artifact(), w.workflowID()
	w.sign(w.keyless("signing_config.json", w.workflowToken()), x, signing.SignOptions{})
	w.verify(true, x, id, full)
	w.verify(true, x, id, signing.Evidence{Timestamps: 1})
	w.verify(true, x, signing.Identity{Issuer: id.Issuer, SubjectPrefix: "https://github.com/krmcat/"}, full)
	w.verify(true, x, signing.Identity{Issuer: id.Issuer, SubjectRegexp: `https://github\.com/krmcat/krmcat/.*@refs/tags/v.*`}, full)
	w.verify(false, x, signing.Identity{Issuer: id.Issuer, Subject: "https://github.com/evil/x"}, full)
	w.verify(false, x, signing.Identity{Issuer: w.mail.url, Subject: id.Subject}, full)
	w.verify(false, x, id, signing.Evidence{Timestamps: 1, Tlog: 2})
	w.verify(false, x, id, signing.Evidence{Timestamps: 2, Tlog: 1})
	w.cosign("cosign3", true, join(flags("verify"), identity(id), []string{x.at()})...)
	w.cosign("cosign2", true, join(flags("verify", "--new-bundle-format"), identity(id), []string{x.at()})...)
	w.cosign("cosign3", false, join(flags("verify"), identity(w.mailID()), []string{x.at()})...)
	// A file.
	b, err := w.keyless("signing_config.json", w.mailToken()).With(signing.SignOptions{}).SignBlob(w.t.Context(), []byte("hello"))
	if err != nil {
		w.t.Fatal(err)
	}
	w.write("blob", "hello")
	w.write("blob.json", string(b))
	w.cosign("cosign3", true, join([]string{"verify-blob", "--trusted-root", "trusted_root.json", "--use-signed-timestamps", "--bundle", "blob.json"}, identity(w.mailID()), []string{"blob"})...)
	if _, err := signing.VerifyBlob(w.t.Context(), []byte("hello"), b, signing.Policy{Identities: []signing.Identity{w.mailID()}, Root: w.root, Evidence: full}); err != nil {
		w.t.Error(err)
	}
}

func (w *world) withoutLog() {
	x, id := w.artifact(), w.workflowID()
	w.sign(w.keyless("no_log.json", w.workflowToken()), x, signing.SignOptions{})
	w.verify(true, x, id, signing.Evidence{Timestamps: 1})
	w.verify(false, x, id, full)
	w.verify(false, x, id, signing.Evidence{})
	w.cosign("cosign3", true, join(flags("verify", "--insecure-ignore-tlog=true"), identity(id), []string{x.at()})...)
	w.cosign("cosign2", false, join(flags("verify", "--new-bundle-format"), identity(id), []string{x.at()})...)
}

func (w *world) legacy() {
	x, id := w.artifact(), w.mailID()
	w.sign(w.keyless("no_log.json", w.mailToken()), x, signing.SignOptions{Legacy: true, NoBundle: true})
	w.verify(true, x, id, signing.Evidence{Timestamps: 1})
	w.verify(false, x, id, full)
	w.verify(false, x, w.workflowID(), signing.Evidence{Timestamps: 1})
	for _, bin := range []string{"cosign2", "cosign3"} {
		w.cosign(bin, true, join(flags("verify", "--insecure-ignore-tlog=true"), identity(id), []string{x.at()})...)
	}
}

func (w *world) attestations() {
	x, id := w.artifact(), w.mailID()
	k := w.keyless("signing_config.json", w.mailToken())
	if _, err := k.With(signing.SignOptions{}).Attest(w.t.Context(), x.repo, x.name, x.desc, "test-result", json.RawMessage(`{"result":"PASSED"}`)); err != nil {
		w.t.Fatal(err)
	}
	w.attested(x, id)
	w.cosign("cosign3", true, join(flags("verify-attestation", "--type", testResult), identity(id), []string{x.at()})...)
	w.cosign("cosign2", true, join(flags("verify-attestation", "--new-bundle-format", "--type", testResult), identity(id), []string{x.at()})...)
	w.verify(false, x, id, full) // it is no signature

	x = w.artifact()
	w.write("token", w.workflowToken())
	w.write("predicate.json", `{"result":"PASSED"}`)
	w.cosign("cosign3", true, "attest", "--signing-config", "signing_config.json", "--trusted-root", "trusted_root.json", "--identity-token", "token", "--allow-insecure-registry", "--yes", "--type", testResult, "--predicate", "predicate.json", x.at())
	w.attested(x, w.workflowID())

	// Into Rekor v1, in both formats.
	x = w.artifact()
	k = w.keyless("rekor1.json", w.mailToken())
	if _, err := k.With(signing.SignOptions{}).Attest(w.t.Context(), x.repo, x.name, x.desc, "test-result", json.RawMessage(`{"result":"PASSED"}`)); err != nil {
		w.t.Fatal(err)
	}
	w.attested(x, id)
	w.cosign("cosign3", true, join(flags("verify-attestation", "--type", testResult), identity(id), []string{x.at()})...)
	w.cosign("cosign2", true, join(flags("verify-attestation", "--new-bundle-format", "--type", testResult), identity(id), []string{x.at()})...)
	attest := []string{"--identity-token", "token", "--allow-insecure-registry", "--yes", "--type", testResult, "--predicate", "predicate.json"}
	urls := []string{"--fulcio-url", w.fulcio, "--rekor-url", w.rekor1, "--timestamp-server-url", w.timestamp}
	for _, args := range [][]string{
		{"cosign3", "attest", "--signing-config", "rekor1.json", "--trusted-root", "trusted_root.json"},
		{"cosign2", "attest", "--signing-config", "rekor1.json", "--trusted-root", "trusted_root.json", "--new-bundle-format"},
		join([]string{"cosign2", "attest"}, urls),
		join([]string{"cosign2", "attest", "--rekor-entry-type", "intoto"}, urls),
	} {
		x := w.artifact()
		w.cosign(args[0], true, join(args[1:], attest, []string{x.at()})...)
		w.attested(x, w.workflowID())
		policy := signing.Policy{Identities: []signing.Identity{id}, Root: w.root, Evidence: full}
		if _, err := (signing.Checker{}).VerifyAttestations(w.t.Context(), x.repo, x.name, x.desc, "test-result", policy); !errors.Is(err, signing.ErrPolicy) {
			w.t.Errorf("%s: accepted for another identity: %v", strings.Join(args, " "), err)
		}
		policy.Identities[0], policy.Evidence = w.workflowID(), signing.Evidence{Timestamps: 1, Tlog: 2}
		if _, err := (signing.Checker{}).VerifyAttestations(w.t.Context(), x.repo, x.name, x.desc, "test-result", policy); !errors.Is(err, signing.ErrPolicy) {
			w.t.Errorf("%s: accepted with one log for two: %v", strings.Join(args, " "), err)
		}
	}

	// Known: in the older format cosign 3.1.3 has the signature stamped, where
	// both versions look for a timestamp of the envelope, so it does not verify
	// that itself. The log's time serves.
	x = w.artifact()
	w.cosign("cosign3", true, join([]string{"attest", "--new-bundle-format=false", "--use-signing-config=false"}, urls, attest, []string{x.at()})...)
	for ev, ok := range map[signing.Evidence]bool{logged: true, full: false} {
		policy := signing.Policy{Identities: []signing.Identity{w.workflowID()}, Root: w.root, Evidence: ev}
		if _, err := (signing.Checker{}).VerifyAttestations(w.t.Context(), x.repo, x.name, x.desc, "test-result", policy); (err == nil) != ok {
			w.t.Errorf("%+v: got %v, want success %v", ev, err, ok)
		}
	}
	older := []string{"verify-attestation", "--trusted-root", "trusted_root.json", "--allow-insecure-registry", "--offline", "--type", testResult}
	w.cosign("cosign3", false, join(older, []string{"--new-bundle-format=false", "--use-signed-timestamps"}, identity(w.workflowID()), []string{x.at()})...)
	w.cosign("cosign2", false, join(older, []string{"--use-signed-timestamps"}, identity(w.workflowID()), []string{x.at()})...)

	// Known: cosign 2.6.5 cannot attest into Rekor v2, as it cannot sign.
	x = w.artifact()
	w.cosign("cosign2", false, join([]string{"attest", "--signing-config", "signing_config.json", "--trusted-root", "trusted_root.json", "--new-bundle-format"}, attest, []string{x.at()})...)
}

func (w *world) attested(x subject, id signing.Identity) {
	w.t.Helper()
	list, err := signing.Checker{}.VerifyAttestations(w.t.Context(), x.repo, x.name, x.desc, "test-result", signing.Policy{Identities: []signing.Identity{id}, Root: w.root, Evidence: full})
	if err != nil {
		w.t.Error(err)
		return
	}
	if err := list[0].Require(map[string]string{"result": "PASSED"}); err != nil {
		w.t.Error(err)
	}
}

func (w *world) theirs() {
	id := w.workflowID()
	w.write("token", w.workflowToken())
	sign := []string{"--trusted-root", "trusted_root.json", "--identity-token", "token", "--allow-insecure-registry", "--yes"}

	x := w.artifact()
	w.cosign("cosign3", true, join([]string{"sign", "--signing-config", "signing_config.json"}, sign, []string{x.at()})...)
	w.verify(true, x, id, full)

	x = w.artifact()
	w.cosign("cosign2", true, join([]string{"sign", "--signing-config", "no_log.json", "--new-bundle-format"}, sign, []string{x.at()})...)
	w.verify(true, x, id, signing.Evidence{Timestamps: 1})
	w.verify(false, x, id, full)

	x = w.artifact()
	w.cosign("cosign2", true, "sign", "--fulcio-url", w.fulcio, "--timestamp-server-url", w.timestamp, "--tlog-upload=false", "--insecure-skip-verify", "--identity-token", "token", "--allow-insecure-registry", "--yes", x.at())
	w.verify(true, x, id, signing.Evidence{Timestamps: 1})

	// Known: cosign 2.6.5 sends entries that Rekor v2 does not take any more.
	x = w.artifact()
	last := w.cosign("cosign2", false, join([]string{"sign", "--signing-config", "signing_config.json", "--new-bundle-format"}, sign, []string{x.at()})...)
	if !strings.Contains(last, "400") && !strings.Contains(last, "hashedrekord") {
		w.t.Errorf("cosign 2.6.5 fails at Rekor v2 in another way than it used to: %s", last)
	}
}

// keys: a key whose signature the log and the timestamp authority vouch for.
// Such a signature needs no --insecure-ignore-tlog.
func (w *world) keys() {
	k := w.keyPair("k")
	services := w.services("signing_config.json")
	services.Fulcio = ""
	x := w.artifact()
	if _, err := k.With(signing.SignOptions{Services: services}).Sign(w.t.Context(), x.repo, x.name, x.desc); err != nil {
		w.t.Fatal(err)
	}
	policy := signing.Policy{Keys: []any{k.PublicKey()}, Root: w.root, Evidence: full}
	v, err := signing.Checker{}.Verify(w.t.Context(), x.repo, x.name, x.desc, policy)
	if err != nil {
		w.t.Fatal(err)
	}
	if v.Time.IsZero() {
		w.t.Error("no time")
	}
	w.cosign("cosign3", true, join(flags("verify", "--key", "k.pub"), []string{x.at()})...)
	w.cosign("cosign2", true, join(flags("verify", "--key", "k.pub", "--new-bundle-format"), []string{x.at()})...)
}

func (w *world) trustPolicy() {
	text := fmt.Sprintf(`
apiVersion: krmcat.dev/v1alpha1
kind: TrustPolicy
spec:
  roots: [{name: test, trustedRoot: trusted_root.json}]
  signers:
  - name: release
    keyless: {root: test, issuer: %[1]s, subject: {prefix: 'https://github.com/krmcat/krmcat/.github/workflows/release.yml@'}, evidence: {timestamps: 1, tlog: 1, sct: 1}}
  - name: ci
    keyless: {root: test, issuer: %[2]s, subject: {equal: release@krmcat.test}, evidence: {timestamps: 1, tlog: 1}}
  rules:
  - scope: %[3]s/e2e/**
    signatures: {anyOf: [release]}
    attestations: [{predicateType: test-result, anyOf: [ci], require: {result: PASSED}}]
`, w.github.url, w.mail.url, w.host)
	p, err := signing.LoadTrustPolicy([]byte(text), fstest.MapFS{"trusted_root.json": {Data: w.read("trusted_root.json")}})
	if err != nil {
		w.t.Fatal(err)
	}
	x := w.artifact()
	decide := func(want error) {
		w.t.Helper()
		d, err := p.Evaluate(w.t.Context(), x.repo, signing.TrustRequest{Reference: x.name, Subject: x.desc})
		if err != nil {
			w.t.Fatal(err)
		}
		if err := d.Err(); !errors.Is(err, want) {
			w.t.Errorf("got %v, want %v", err, want)
		}
	}
	decide(signing.ErrUnsigned)
	w.sign(w.keyless("signing_config.json", w.workflowToken()), x, signing.SignOptions{})
	decide(signing.ErrPolicy)
	if _, err := w.keyless("signing_config.json", w.mailToken()).With(signing.SignOptions{}).Attest(w.t.Context(), x.repo, x.name, x.desc, "test-result", json.RawMessage(`{"result":"PASSED"}`)); err != nil {
		w.t.Fatal(err)
	}
	decide(nil)
}
