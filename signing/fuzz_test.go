package signing

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/sigstore/cosign/v2/pkg/oci/static"
	"github.com/sigstore/sigstore-go/pkg/sign"
	"github.com/sigstore/sigstore-go/pkg/testing/ca"
	"github.com/sigstore/sigstore/pkg/cryptoutils"
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/content/memory"
)

func testKeySigner() (*KeySigner, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	return NewKeySigner(key)
}

func makeStatementBundle(ctx context.Context, k *KeySigner, st []byte) ([]byte, error) {
	return keyWithServices{key: k}.bundle(ctx, &sign.DSSEData{Data: st, PayloadType: payloadInToto})
}

// FuzzLegacy: no annotations of a signature of the older format crash the
// verifier, and none make it accept a payload that was not signed.
func FuzzLegacy(f *testing.F) {
	vs, err := ca.NewVirtualSigstore()
	if err != nil {
		f.Fatal(err)
	}
	k, err := testKeySigner()
	if err != nil {
		f.Fatal(err)
	}
	subject := digest.FromString("x")
	p, err := legacyPayload("example.com/r/a", subject, nil)
	if err != nil {
		f.Fatal(err)
	}
	good, err := signLegacy(f.Context(), keyWithServices{key: k}, p)
	if err != nil {
		f.Fatal(err)
	}
	entry := `{"SignedEntryTimestamp":"AAAA","Payload":{"body":"e30=","integratedTime":1,"logIndex":1,"logID":"00"}}`
	f.Add(p, good[static.SignatureAnnotationKey], "", "", "")
	f.Add([]byte("{}"), "AAAA", "", entry, `{"SignedRFC3161Timestamp":"AAAA"}`)
	f.Add([]byte("{}"), "AAAA", "x", strings.Replace(entry, `"e30="`, "5", 1), "{}")
	f.Add([]byte("{}"), "!", "", "{}", "null")
	var list []*authority
	for _, ev := range []Evidence{{Timestamps: 1, NoSCT: true}, {Tlog: 1}, {Timestamps: 1, Tlog: 1}} {
		id := &authority{identity: Identity{Issuer: testIssuer, Subject: testSubject}, root: vs, evidence: ev}
		key := &authority{key: k.public, root: vs, evidence: ev}
		list = append(list, id, key)
	}
	list = append(list, &authority{key: k.public})
	for _, a := range list {
		if err := a.prepare(); err != nil {
			f.Fatal(err)
		}
	}
	f.Fuzz(func(t *testing.T, payload []byte, sig, cert, bundle, timestamp string) {
		target := memory.New()
		layer, err := oras.PushBytes(t.Context(), target, "application/vnd.dev.cosign.simplesigning.v1+json", payload)
		if err != nil {
			t.Fatal(err)
		}
		layer.Annotations = map[string]string{static.SignatureAnnotationKey: sig}
		for key, v := range map[string]string{static.CertificateAnnotationKey: cert, static.BundleAnnotationKey: bundle, static.RFC3161TimestampAnnotationKey: timestamp} {
			if v != "" {
				layer.Annotations[key] = v
			}
		}
		s, err := fetchLegacy(t.Context(), target, layer)
		if err != nil {
			return
		}
		for _, a := range list {
			if _, err := a.verifyLegacy(t.Context(), s, "example.com/r/a", subject, nil); err == nil && string(payload) != string(p) {
				t.Errorf("%s accepted %q", a, payload)
			}
		}
	})
}

// FuzzLegacyAttestation: no attestation of the older format crashes the
// verifier, and none is accepted that was not signed.
func FuzzLegacyAttestation(f *testing.F) {
	vs, err := ca.NewVirtualSigstore()
	if err != nil {
		f.Fatal(err)
	}
	k, err := testKeySigner()
	if err != nil {
		f.Fatal(err)
	}
	subject := digest.FromString("x")
	st, err := newStatement("r", subject, predicateNames[0].uri, json.RawMessage(`{"result":"PASSED"}`), nil)
	if err != nil {
		f.Fatal(err)
	}
	good := legacyEnvelope(f, k, st)
	dsseEntry := base64.StdEncoding.EncodeToString([]byte(`{"apiVersion":"0.0.1","kind":"dsse","spec":{"envelopeHash":{"algorithm":"sha256","value":"` + digest.FromBytes(good).Encoded() + `"},"signatures":[]}}`))
	entry := `{"SignedEntryTimestamp":"AAAA","Payload":{"body":"` + dsseEntry + `","integratedTime":1,"logIndex":1,"logID":"00"}}`
	f.Add(good, "", "", "")
	f.Add(good, "", entry, `{"SignedRFC3161Timestamp":"AAAA"}`)
	f.Add([]byte(`{"payloadType":"application/vnd.in-toto+json","payload":"e30=","signatures":[]}`), "x", entry, "")
	f.Add([]byte(`{"payloadType":"application/vnd.in-toto+json","payload":"!","signatures":[{"sig":"AAAA"}]}`), "", strings.Replace(entry, dsseEntry, "e30=", 1), "null")
	var list []*authority
	for _, ev := range []Evidence{{Timestamps: 1, NoSCT: true}, {Tlog: 1}, {Timestamps: 1, Tlog: 1}} {
		list = append(list, &authority{identity: Identity{Issuer: testIssuer, Subject: testSubject}, root: vs, evidence: ev}, &authority{key: k.public, root: vs, evidence: ev})
	}
	list = append(list, &authority{key: k.public})
	for _, a := range list {
		if err := a.prepare(); err != nil {
			f.Fatal(err)
		}
	}
	f.Fuzz(func(t *testing.T, envelope []byte, cert, bundle, timestamp string) {
		target := memory.New()
		layer, err := oras.PushBytes(t.Context(), target, "application/vnd.dsse.envelope.v1+json", envelope)
		if err != nil {
			t.Fatal(err)
		}
		layer.Annotations = map[string]string{}
		for key, v := range map[string]string{static.CertificateAnnotationKey: cert, static.BundleAnnotationKey: bundle, static.RFC3161TimestampAnnotationKey: timestamp} {
			if v != "" {
				layer.Annotations[key] = v
			}
		}
		att, err := fetchLegacyAttestation(t.Context(), target, layer)
		if err != nil {
			return
		}
		for _, a := range list {
			_, got, err := a.verifyLegacyAttestation(t.Context(), att, subject)
			if err != nil {
				continue
			}
			// The envelope can be written in other ways; the statement cannot.
			if p := got.GetPredicate().GetFields()["result"].GetStringValue(); p != "PASSED" || got.GetPredicateType() != predicateNames[0].uri {
				t.Errorf("%s accepted %q", a, envelope)
			}
		}
	})
}

// legacyEnvelope signs a statement as cosign attest did.
func legacyEnvelope(t testing.TB, k *KeySigner, st []byte) []byte {
	t.Helper()
	pae := fmt.Appendf(nil, "DSSEv1 %d %s %d %s", len(payloadInToto), payloadInToto, len(st), st)
	sig, err := k.sv.SignMessage(bytes.NewReader(pae))
	if err != nil {
		t.Fatal(err)
	}
	env, err := json.Marshal(map[string]any{
		"payloadType": payloadInToto, "payload": base64.StdEncoding.EncodeToString(st),
		"signatures": []any{map[string]string{"keyid": "", "sig": base64.StdEncoding.EncodeToString(sig)}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return env
}

// FuzzPrivateKey: no file crashes the reader of keys; what it accepts signs and
// verifies.
func FuzzPrivateKey(f *testing.F) {
	pair, err := GenerateKeyPair([]byte("x"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(pair.Public)
	f.Add([]byte("-----BEGIN EC PARAMETERS-----\nAAAA\n-----END EC PARAMETERS-----\n"))
	f.Add([]byte("-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEINTuctv5E1hK1bbY8fdp+K06/nwoy/HU++CXqI9EdVhC\n-----END PRIVATE KEY-----\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if strings.Contains(string(data), "ENCRYPTED") {
			return // scrypt takes too long for this
		}
		private, err := parsePrivateKey(data, nil)
		if err != nil {
			return
		}
		k, err := NewKeySigner(private)
		if err != nil {
			return
		}
		b, err := k.SignBlob(t.Context(), []byte("x"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := VerifyBlob(t.Context(), []byte("x"), b, Policy{Keys: []any{k.public}}); err != nil {
			t.Error(err)
		}
	})
}

// FuzzManifest: whatever a registry serves as a referrer, listing and fetching
// it neither crashes nor finds a bundle that is not about the subject.
func FuzzManifest(f *testing.F) {
	subject := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: digest.FromString("x"), Size: 1}
	seed, err := json.Marshal(ocispec.Manifest{MediaType: ocispec.MediaTypeImageManifest, Subject: &subject, Layers: []ocispec.Descriptor{{MediaType: bundleMediaType}}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(seed)
	f.Add([]byte(`{"layers":[{"mediaType":"application/vnd.dev.sigstore.bundle.v0.3+json","size":-1}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		target := memory.New()
		desc := ocispec.Descriptor{MediaType: "application/octet-stream", Digest: digest.FromBytes(data), Size: int64(len(data))}
		if err := target.Push(t.Context(), desc, strings.NewReader(string(data))); err != nil {
			t.Fatal(err)
		}
		if _, err := fetchCandidate(t.Context(), target, subject.Digest, desc); err == nil {
			t.Errorf("found a bundle through %q", data)
		}
	})
}

// FuzzTrustedRoot: no file crashes the reader of trusted roots, and whatever it
// reads, nothing that is not signed is accepted with it.
func FuzzTrustedRoot(f *testing.F) {
	k, err := testKeySigner()
	if err != nil {
		f.Fatal(err)
	}
	st, err := newStatement("r", digest.FromString("x"), PredicateSignature, nil, nil)
	if err != nil {
		f.Fatal(err)
	}
	data, err := makeStatementBundle(f.Context(), k, st)
	if err != nil {
		f.Fatal(err)
	}
	b, _, err := parseBundle(data)
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte(`{"mediaType":"application/vnd.dev.sigstore.trustedroot+json;version=0.1"}`))
	f.Add([]byte(`{"mediaType":"application/vnd.dev.sigstore.trustedroot+json;version=0.1","tlogs":[{"baseUrl":"https://r","hashAlgorithm":"SHA2_256","publicKey":{"rawBytes":"AAAA","keyDetails":"PKIX_ECDSA_P256_SHA_256","validFor":{"start":"2021-01-12T11:53:27.000Z"}},"logId":{"keyId":"AAAA"}}],"certificateAuthorities":[{"certChain":{"certificates":[{"rawBytes":"AAAA"}]}}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		root, err := LoadTrustedRoot(data)
		if err != nil {
			return
		}
		for _, ev := range []Evidence{{Tlog: 1}, {Timestamps: 1, NoSCT: true}} {
			list, err := Policy{Keys: []any{k.public}, Identities: []Identity{{Issuer: testIssuer, Subject: testSubject}}, Root: root, Evidence: ev}.authorities()
			if err != nil {
				return
			}
			for _, a := range list {
				if _, _, err := a.verifyBundle(b, digest.FromString("x")); err == nil {
					t.Errorf("%s: accepted without evidence", a)
				}
			}
		}
	})
}

// FuzzServices: no signing config crashes its reader; services that pass the
// check have what a keyless signature needs.
func FuzzServices(f *testing.F) {
	f.Add([]byte(`{"mediaType":"application/vnd.dev.sigstore.signingconfig.v0.2+json","caUrls":[{"url":"https://f","majorApiVersion":1,"validFor":{"start":"2020-01-01T00:00:00Z"}}],"tsaUrls":[{"url":"https://t","majorApiVersion":1,"validFor":{"start":"2020-01-01T00:00:00Z"}}],"tsaConfig":{"selector":"ANY"},"rekorTlogUrls":[{"url":"https://r","majorApiVersion":2,"validFor":{"start":"2020-01-01T00:00:00Z"}}],"rekorTlogConfig":{"selector":"EXACT","count":1}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := LoadServices(data, time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC))
		if err != nil || s.Check() != nil {
			return
		}
		if s.Fulcio == "" || len(s.Timestamps)+len(s.Logs) == 0 {
			t.Errorf("got %+v", s)
		}
	})
}

// FuzzPublicKey: what is read as a public key can verify, has a fingerprint, and
// reads back as the same key.
func FuzzPublicKey(f *testing.F) {
	pair, err := GenerateKeyPair(nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(pair.Public)
	f.Add([]byte("-----BEGIN RSA PUBLIC KEY-----\nMAsCBAAAAAECAwEAAQ==\n-----END RSA PUBLIC KEY-----\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		key, err := LoadPublicKey(data)
		if err != nil {
			return
		}
		fp, err := Fingerprint(key)
		if err != nil {
			t.Fatal(err)
		}
		text, err := cryptoutils.MarshalPublicKeyToPEM(key)
		if err != nil {
			t.Fatal(err)
		}
		again, err := LoadPublicKey(text)
		if err != nil {
			t.Fatal(err)
		}
		if got, _ := Fingerprint(again); got != fp {
			t.Errorf("got %s, then %s", fp, got)
		}
	})
}

// FuzzToken: no token crashes the reader of its claims, and no error quotes it.
func FuzzToken(f *testing.F) {
	f.Add("e30.eyJpc3MiOiJpIiwiZXhwIjoxfQ.c2ln")
	f.Add("a.b.c")
	f.Fuzz(func(t *testing.T, token string) {
		if _, err := tokenClaims(token); err != nil && len(token) > 40 && strings.Contains(err.Error(), token) {
			t.Errorf("quoted %q", token)
		}
	})
}

// FuzzTree: whatever an index lists, each digest comes once, and there are not
// more than are looked at.
func FuzzTree(f *testing.F) {
	f.Add([]byte(`{"manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"sha256:0000000000000000000000000000000000000000000000000000000000000000","size":1},{"digest":"x"}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		target := memory.New()
		desc := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageIndex, Digest: digest.FromBytes(data), Size: int64(len(data))}
		// Bytes of an index that is none cannot be stored there; under another
		// type they can.
		if err := target.Push(t.Context(), ocispec.Descriptor{MediaType: "application/octet-stream", Digest: desc.Digest, Size: desc.Size}, bytes.NewReader(data)); err != nil {
			t.Fatal(err)
		}
		list, err := Tree(t.Context(), anyType{target}, desc)
		if err != nil {
			return
		}
		seen := map[digest.Digest]bool{}
		for _, d := range list {
			if seen[d.Digest] {
				t.Errorf("%s twice", d.Digest)
			}
			seen[d.Digest] = true
		}
		if len(list) > maxManifests {
			t.Errorf("got %d manifests", len(list))
		}
	})
}

// anyType fetches by digest, whatever the type is said to be.
type anyType struct{ content.Fetcher }

func (a anyType) Fetch(ctx context.Context, d ocispec.Descriptor) (io.ReadCloser, error) {
	d.MediaType = "application/octet-stream"
	return a.Fetcher.Fetch(ctx, d)
}
