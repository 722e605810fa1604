package signing_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/krmcat/krmcat/registry/regmem"
	"github.com/krmcat/krmcat/registry/regserver"
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

// TestInteropAttestations: attestations by keys go both ways, on registries
// with and without the referrers API.
func TestInteropAttestations(t *testing.T) {
	t.Parallel()
	for where, srv := range map[string]*regtest.Server{
		"referrers": regtest.NewServer(t),
		"tags":      regtest.NewServerWith(t, regmem.New(), &regserver.Options{NoReferrers: true}),
	} {
		t.Run(where, func(t *testing.T) {
			t.Parallel()
			interopAttestations(t, srv)
		})
	}
}

func interopAttestations(t *testing.T, srv *regtest.Server) {
	c := newCosign(t)
	pair, err := signing.GenerateKeyPair([]byte("secret"))
	if err != nil {
		t.Fatal(err)
	}
	c.write(t, "k.key", pair.Private)
	c.write(t, "k.pub", pair.Public)
	c.write(t, "other.pub", otherKey(t))
	predicates := map[string]string{
		testResult:                        `{"result":"PASSED"}`,
		"https://slsa.dev/provenance/v1":  `{"buildDefinition":{"buildType":"https://example.com/make","externalParameters":{}},"runDetails":{"builder":{"id":"https://example.com/ci"}}}`,
		"https://spdx.dev/Document":       `{"spdxVersion":"SPDX-2.3","name":"hello"}`,
		"https://cyclonedx.org/bom":       `{"bomFormat":"CycloneDX","specVersion":"1.6"}`,
		"https://example.com/anything/v1": `{"a":[1,2.5,"x",null,true]}`,
	}
	signer, err := signing.LoadSigner(t.Context(), signing.KeyOptions{Ref: c.dir + "/k.key", Password: func() ([]byte, error) { return []byte("secret"), nil }})
	if err != nil {
		t.Fatal(err)
	}
	policy := signing.Policy{Keys: []any{signer.PublicKey()}}
	verify := map[string][]string{
		"cosign2": {"verify-attestation", "--insecure-ignore-tlog=true", "--new-bundle-format", "--trusted-root", "empty-root.json"},
		"cosign3": {"verify-attestation", "--insecure-ignore-tlog=true"},
	}
	repo := repository(t, srv.Host, "fn/a")
	ref := srv.Host + "/fn/a"
	for uri, predicate := range predicates {
		subject := push(t, repo, "ours"+uri, "v1")
		at := ref + "@" + subject.Digest.String()
		if _, err := signer.With(signing.SignOptions{}).Attest(t.Context(), repo, ref, subject, uri, json.RawMessage(predicate)); err != nil {
			t.Fatal(err)
		}
		for bin, args := range verify {
			c.want(t, true, bin, slices.Concat(args, []string{"--key", "k.pub", "--type", uri, at})...)
			c.want(t, false, bin, slices.Concat(args, []string{"--key", "k.pub", "--type", "https://example.com/other", at})...)
			c.want(t, false, bin, slices.Concat(args, []string{"--key", "other.pub", "--type", uri, at})...)
		}
		if uri != testResult {
			continue
		}
		// A known flaw of cosign: it takes this artifact, which has a test
		// result only, for signed. krmcat does not.
		c.want(t, true, "cosign3", "verify", "--key", "k.pub", "--insecure-ignore-tlog=true", at)
		c.want(t, true, "cosign2", "verify", "--key", "k.pub", "--insecure-ignore-tlog=true", "--trusted-root", "empty-root.json", at)
		if _, err := (signing.Checker{}).Verify(t.Context(), repo, ref, subject, policy); !errors.Is(err, signing.ErrUnsigned) {
			t.Errorf("krmcat: got %v, want ErrUnsigned", err)
		}
	}

	for bin := range c.bins {
		for _, bundle := range []bool{true, false} {
			// Several types on one artifact: the older format keeps all
			// behind one tag.
			subject := push(t, repo, fmt.Sprint("theirs", bin, bundle), "v1")
			for uri, predicate := range predicates {
				c.write(t, "predicate.json", []byte(predicate))
				args := []string{"attest", "--key", "k.key", "--tlog-upload=false", "--yes", fmt.Sprintf("--new-bundle-format=%v", bundle), "--allow-insecure-registry", "--type", uri, "--predicate", "predicate.json"}
				if bin == "cosign3" {
					args = append(args, "--use-signing-config=false")
				}
				c.want(t, true, bin, append(args, ref+"@"+subject.Digest.String())...)
			}
			for uri, predicate := range predicates {
				list, err := signing.Checker{}.VerifyAttestations(t.Context(), repo, ref, subject, uri, policy)
				if err != nil || len(list) != 1 {
					t.Errorf("%s bundle=%v %s: got %d, %v; want 1", bin, bundle, uri, len(list), err)
					continue
				}
				if a := list[0]; (a.Format == signing.FormatBundle) != bundle || a.Key != signer.Fingerprint() || a.PredicateType != uri {
					t.Errorf("%s bundle=%v %s: got format %s by %s of type %s", bin, bundle, uri, a.Format, a.Key, a.PredicateType)
				}
				if strings.HasPrefix(uri, "https://slsa.dev/") {
					continue // cosign fills in what it leaves out
				}
				var got, want any
				if err := json.Unmarshal(list[0].Predicate, &got); err != nil {
					t.Fatal(err)
				}
				if err := json.Unmarshal([]byte(predicate), &want); err != nil {
					t.Fatal(err)
				}
				if !reflect.DeepEqual(got, want) {
					t.Errorf("%s bundle=%v %s: got predicate %s, want %s", bin, bundle, uri, list[0].Predicate, predicate)
				}
			}
			if _, err := (signing.Checker{}).VerifyAttestations(t.Context(), repo, ref, subject, "https://example.com/none", policy); !errors.Is(err, signing.ErrNoAttestation) {
				t.Errorf("%s bundle=%v, no such type: got %v, want ErrNoAttestation", bin, bundle, err)
			}
			other := signing.Policy{Keys: []any{newSigner(t).PublicKey()}}
			if _, err := (signing.Checker{}).VerifyAttestations(t.Context(), repo, ref, subject, testResult, other); !errors.Is(err, signing.ErrPolicy) {
				t.Errorf("%s bundle=%v, other key: got %v, want ErrPolicy", bin, bundle, err)
			}
			strict := policy
			strict.NoLegacy = true
			if _, err := (signing.Checker{}).VerifyAttestations(t.Context(), repo, ref, subject, testResult, strict); (err == nil) != bundle {
				t.Errorf("%s bundle=%v, without the older format: got %v", bin, bundle, err)
			}
			// The older format is no signature either, for anybody.
			if _, err := (signing.Checker{}).Verify(t.Context(), repo, ref, subject, policy); !errors.Is(err, signing.ErrUnsigned) {
				t.Errorf("%s bundle=%v, as a signature: got %v, want ErrUnsigned", bin, bundle, err)
			}
			attached, err := signing.ListAttached(t.Context(), repo, ref, subject, policy)
			if err != nil || len(attached) != len(predicates) {
				t.Errorf("%s bundle=%v: %d things hang on it, %v; want %d", bin, bundle, len(attached), err, len(predicates))
			}
			for _, a := range attached {
				if a.Kind != signing.KindAttestation || a.Verified == nil || predicates[a.PredicateType] == "" {
					t.Errorf("%s bundle=%v: got %s %s, verified %v: %s", bin, bundle, a.Kind, a.PredicateType, a.Verified != nil, a.Problem)
				}
			}
		}
	}
}
