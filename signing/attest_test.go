package signing_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/krmcat/krmcat/registry/regtest"
	"github.com/krmcat/krmcat/signing"
)

const testResult = "https://in-toto.io/attestation/test-result/v0.1"

func TestAttest(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	for where, target := range targets(t, "fn/a") {
		t.Run(where, func(t *testing.T) {
			const ref = "example.com/fn/a"
			subject := push(t, target, "a", "v1")
			ci, release := newSigner(t), newSigner(t)
			policy := signing.Policy{Keys: []any{ci.PublicKey()}}
			var c signing.Checker
			if _, err := c.VerifyAttestations(ctx, target, ref, subject, "test-result", policy); !errors.Is(err, signing.ErrNoAttestation) {
				t.Errorf("none yet: got %v, want ErrNoAttestation", err)
			}
			for _, result := range []string{"FAILED", "PASSED"} {
				if _, err := ci.With(signing.SignOptions{}).Attest(ctx, target, ref, subject, "test-result", json.RawMessage(`{"result":"`+result+`","n":12345678901}`)); err != nil {
					t.Fatal(err)
				}
			}
			list, err := c.VerifyAttestations(ctx, target, ref, subject, testResult, policy)
			if err != nil {
				t.Fatal(err)
			}
			if len(list) != 2 {
				t.Fatalf("got %d attestations, want 2", len(list))
			}
			passed := 0
			for _, a := range list {
				if a.PredicateType != testResult || a.Key != ci.Fingerprint() {
					t.Errorf("got %s by %s", a.PredicateType, a.Key)
				}
				if a.Require(map[string]string{"result": "PASSED"}) == nil {
					passed++
				}
				if err := a.Require(map[string]string{"nothing": "x"}); err == nil {
					t.Error("a field that is not there was found")
				}
			}
			if passed != 1 {
				t.Errorf("got %d passed, want 1", passed)
			}
			if _, err := c.VerifyAttestations(ctx, target, ref, subject, "spdxjson", policy); !errors.Is(err, signing.ErrNoAttestation) {
				t.Errorf("other type: got %v, want ErrNoAttestation", err)
			}
			other := signing.Policy{Keys: []any{release.PublicKey()}}
			if _, err := c.VerifyAttestations(ctx, target, ref, subject, "test-result", other); !errors.Is(err, signing.ErrPolicy) {
				t.Errorf("other key: got %v, want ErrPolicy", err)
			}
			// An attestation is no signature, whoever made it.
			if _, err := c.Verify(ctx, target, ref, subject, policy); !errors.Is(err, signing.ErrUnsigned) {
				t.Errorf("as a signature: got %v, want ErrUnsigned", err)
			}
		})
	}
}

func TestAttestMistakes(t *testing.T) {
	t.Parallel()
	srv := regtest.NewServer(t)
	repo := repository(t, srv.Host, "fn/a")
	subject := push(t, repo, "a", "v1")
	for name, tt := range map[string]struct{ kind, predicate, want string }{
		"as a signature": {signing.PredicateSignature, `{}`, "is that of signatures"},
		"unknown name":   {"sbom", `{}`, "give a URI, or one of"},
		"no object":      {"test-result", `[]`, "not a JSON object"},
		"no JSON":        {"test-result", `{`, "not a JSON object"},
		"no result":      {"test-result", `{}`, `no field "result"`},
		"odd result":     {"test-result", `{"result":"OK"}`, "write PASSED, WARNED or FAILED"},
		"no SPDX":        {"spdxjson", `{"bomFormat":"CycloneDX"}`, `no field "spdxVersion"`},
		"no CycloneDX":   {"cyclonedx", `{"spdxVersion":"2.3"}`, `no field "bomFormat"`},
		"no SLSA":        {"slsaprovenance1", `{}`, `no field "buildDefinition"`},
		"too large":      {"https://example.com/x", `{"x":"` + strings.Repeat("x", 4<<20) + `"}`, "at most"},
	} {
		_, err := newSigner(t).With(signing.SignOptions{}).Attest(t.Context(), repo, "example.com/fn/a", subject, tt.kind, json.RawMessage(tt.predicate))
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want %q", name, err, tt.want)
		}
	}
}

// TestInteropAttestations: attestations go both ways.
func TestInteropAttestations(t *testing.T) {
	t.Parallel()
	c := newCosign(t)
	srv := regtest.NewServer(t)
	pair, err := signing.GenerateKeyPair([]byte("secret"))
	if err != nil {
		t.Fatal(err)
	}
	c.write(t, "k.key", pair.Private)
	c.write(t, "k.pub", pair.Public)
	c.write(t, "predicate.json", []byte(`{"result":"PASSED"}`))
	signer, err := signing.LoadSigner(t.Context(), signing.KeyOptions{Ref: c.dir + "/k.key", Password: func() ([]byte, error) { return []byte("secret"), nil }})
	if err != nil {
		t.Fatal(err)
	}
	policy := signing.Policy{Keys: []any{signer.PublicKey()}}
	verify := map[string][]string{
		"cosign2": {"verify-attestation", "--key", "k.pub", "--insecure-ignore-tlog=true", "--new-bundle-format", "--trusted-root", "empty-root.json", "--type", testResult},
		"cosign3": {"verify-attestation", "--key", "k.pub", "--insecure-ignore-tlog=true", "--type", testResult},
	}
	repo := repository(t, srv.Host, "fn/a")
	ref := srv.Host + "/fn/a"
	subject := push(t, repo, "ours", "v1")
	if _, err := signer.With(signing.SignOptions{}).Attest(t.Context(), repo, ref, subject, "test-result", json.RawMessage(`{"result":"PASSED"}`)); err != nil {
		t.Fatal(err)
	}
	for bin, args := range verify {
		at := ref + "@" + subject.Digest.String()
		c.want(t, true, bin, append(args, at)...)
		args = append(args[:len(args)-1:len(args)-1], "https://example.com/other", at)
		c.want(t, false, bin, args...)
	}
	// A known flaw of cosign: it takes this artifact, which has a test result
	// only, for signed. krmcat does not.
	at := ref + "@" + subject.Digest.String()
	c.want(t, true, "cosign3", "verify", "--key", "k.pub", "--insecure-ignore-tlog=true", at)
	c.want(t, true, "cosign2", "verify", "--key", "k.pub", "--insecure-ignore-tlog=true", "--trusted-root", "empty-root.json", at)
	if _, err := (signing.Checker{}).Verify(t.Context(), repo, ref, subject, policy); !errors.Is(err, signing.ErrUnsigned) {
		t.Errorf("krmcat: got %v, want ErrUnsigned", err)
	}

	for bin := range c.bins {
		subject := push(t, repo, "theirs"+bin, "v1")
		args := []string{"attest", "--key", "k.key", "--tlog-upload=false", "--yes", "--new-bundle-format=true", "--allow-insecure-registry", "--type", testResult, "--predicate", "predicate.json"}
		if bin == "cosign3" {
			args = append(args, "--use-signing-config=false")
		}
		c.want(t, true, bin, append(args, ref+"@"+subject.Digest.String())...)
		list, err := signing.Checker{}.VerifyAttestations(t.Context(), repo, ref, subject, "test-result", policy)
		if err != nil {
			t.Errorf("%s: %v", bin, err)
			continue
		}
		if err := list[0].Require(map[string]string{"result": "PASSED"}); err != nil {
			t.Errorf("%s: %v", bin, err)
		}
	}
}
