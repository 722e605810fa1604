package signing_test

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"errors"
	"os"
	"path/filepath"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/content/memory"
	"oras.land/oras-go/v2/registry/remote"

	"github.com/krmcat/krmcat/registry/regmem"
	"github.com/krmcat/krmcat/registry/regserver"
	"github.com/krmcat/krmcat/registry/regtest"
	"github.com/krmcat/krmcat/signing"
)

// push puts a small artifact into a target.
func push(t testing.TB, target oras.Target, body, tag string) ocispec.Descriptor {
	t.Helper()
	ctx := t.Context()
	layer, err := oras.PushBytes(ctx, target, "text/plain", []byte(body))
	if err != nil {
		t.Fatal(err)
	}
	desc, err := oras.PackManifest(ctx, target, oras.PackManifestVersion1_1, "application/vnd.example.v1", oras.PackManifestOptions{
		Layers:              []ocispec.Descriptor{layer},
		ManifestAnnotations: map[string]string{ocispec.AnnotationCreated: "2026-01-01T00:00:00Z"},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := target.Tag(ctx, desc, tag); err != nil {
		t.Fatal(err)
	}
	return desc
}

// repository opens a repository of a test registry.
func repository(t testing.TB, host, name string) *remote.Repository {
	t.Helper()
	repo, err := remote.NewRepository(host + "/" + name)
	if err != nil {
		t.Fatal(err)
	}
	repo.PlainHTTP = true
	return repo
}

func newSigner(t testing.TB) *signing.KeySigner {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return signerOf(t, key)
}

func signerOf(t testing.TB, key crypto.Signer) *signing.KeySigner {
	t.Helper()
	s, err := signing.NewKeySigner(key)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// targets are the places that signatures are kept in.
func targets(t *testing.T, name string) map[string]oras.GraphTarget {
	with := regtest.NewServer(t)
	without := regtest.NewServerWith(t, regmem.New(), &regserver.Options{NoReferrers: true})
	return map[string]oras.GraphTarget{
		"registry":                   repository(t, with.Host, name),
		"registry without referrers": repository(t, without.Host, name),
		"memory":                     memory.New(),
	}
}

func TestSignAndVerify(t *testing.T) {
	t.Parallel()
	keys := map[string]crypto.Signer{}
	for name, curve := range map[string]elliptic.Curve{"P-256": elliptic.P256(), "P-384": elliptic.P384(), "P-521": elliptic.P521()} {
		k, err := ecdsa.GenerateKey(curve, rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		keys[name] = k
	}
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	keys["Ed25519"] = ed
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	keys["RSA"] = rsaKey

	for name, key := range keys {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for where, target := range targets(t, "fn/a") {
				t.Run(where, func(t *testing.T) {
					testSignAndVerify(t, target, signerOf(t, key))
				})
			}
		})
	}
}

func testSignAndVerify(t *testing.T, target oras.GraphTarget, signer *signing.KeySigner) {
	ctx := t.Context()
	const ref = "example.com/fn/a"
	subject := push(t, target, "hello", "v1")
	policy := signing.Policy{Keys: []any{signer.PublicKey()}}
	var c signing.Checker

	if _, err := c.Verify(ctx, target, ref, subject, policy); !errors.Is(err, signing.ErrUnsigned) {
		t.Errorf("unsigned: got %v, want ErrUnsigned", err)
	}
	opts := signing.SignOptions{Annotations: map[string]string{"krmcat.dev/group": "example.com"}, Legacy: true}
	if ok, err := signer.Signed(ctx, target, ref, subject, opts); ok || err != nil {
		t.Errorf("Signed before signing: got %v, %v", ok, err)
	}
	sig, err := signer.With(opts).Sign(ctx, target, ref, subject)
	if err != nil {
		t.Fatal(err)
	}
	if ok, err := signer.Signed(ctx, target, ref, subject, opts); !ok || err != nil {
		t.Errorf("Signed after signing: got %v, %v", ok, err)
	}

	v, err := c.Verify(ctx, target, ref, subject, policy)
	if err != nil {
		t.Fatal(err)
	}
	if v.Signature.Digest != sig.Digest || v.Format != signing.FormatBundle || v.Key != signer.Fingerprint() || v.Reference != ref {
		t.Errorf("got %+v, want bundle %s by %s for %s", v, sig.Digest, signer.Fingerprint(), ref)
	}
	if v.Annotations["krmcat.dev/group"] != "example.com" {
		t.Errorf("got annotations %v", v.Annotations)
	}

	other := signing.Policy{Keys: []any{newSigner(t).PublicKey()}}
	if _, err := c.Verify(ctx, target, ref, subject, other); !errors.Is(err, signing.ErrPolicy) {
		t.Errorf("other key: got %v, want ErrPolicy", err)
	}
	if _, err := c.Verify(ctx, target, ref, subject, signing.Policy{}); !errors.Is(err, signing.ErrPolicy) {
		t.Errorf("zero policy: got %v, want ErrPolicy", err)
	}
	policy.Annotations = map[string]string{"krmcat.dev/group": "example.org"}
	if _, err := c.Verify(ctx, target, ref, subject, policy); !errors.Is(err, signing.ErrPolicy) {
		t.Errorf("other annotation: got %v, want ErrPolicy", err)
	}
}

func TestVerifyBlob(t *testing.T) {
	t.Parallel()
	signer := newSigner(t)
	policy := signing.Policy{Keys: []any{signer.PublicKey()}}
	b, err := signer.SignBlob(t.Context(), []byte("content"))
	if err != nil {
		t.Fatal(err)
	}
	v, err := signing.VerifyBlob(t.Context(), []byte("content"), b, policy)
	if err != nil {
		t.Fatal(err)
	}
	if v.Key != signer.Fingerprint() {
		t.Errorf("got key %s, want %s", v.Key, signer.Fingerprint())
	}
	for name, tt := range map[string]struct {
		data, bundle []byte
		policy       signing.Policy
	}{
		"other content": {[]byte("Content"), b, policy},
		"other key":     {[]byte("content"), b, signing.Policy{Keys: []any{newSigner(t).PublicKey()}}},
		"zero policy":   {[]byte("content"), b, signing.Policy{}},
		"no bundle":     {[]byte("content"), []byte("{}"), policy},
		"cut off":       {[]byte("content"), b[:len(b)-1], policy},
	} {
		if _, err := signing.VerifyBlob(t.Context(), tt.data, tt.bundle, tt.policy); !errors.Is(err, signing.ErrPolicy) {
			t.Errorf("%s: got %v, want ErrPolicy", name, err)
		}
	}
}

func TestLoadSigner(t *testing.T) {
	t.Parallel()
	pair, err := signing.GenerateKeyPair([]byte("secret"))
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "cosign.key")
	if err := os.WriteFile(file, pair.Private, 0o600); err != nil {
		t.Fatal(err)
	}
	env := func(name string) string { return map[string]string{"KEY": string(pair.Private)}[name] }
	password := func(s string) func() ([]byte, error) {
		return func() ([]byte, error) { return []byte(s), nil }
	}
	public, err := signing.LoadPublicKey(pair.Public)
	if err != nil {
		t.Fatal(err)
	}
	want, err := signing.Fingerprint(public)
	if err != nil {
		t.Fatal(err)
	}
	for _, ref := range []string{file, "env://KEY"} {
		s, err := signing.LoadSigner(t.Context(), signing.KeyOptions{Ref: ref, Password: password("secret"), Getenv: env})
		if err != nil {
			t.Fatal(err)
		}
		if s.Fingerprint() != want {
			t.Errorf("%s: got %s, want %s", ref, s.Fingerprint(), want)
		}
		s.Close()
		if _, err := s.SignBlob(t.Context(), []byte("x")); err == nil {
			t.Errorf("%s: signed after Close", ref)
		}
	}
	for name, opts := range map[string]signing.KeyOptions{
		"wrong password":   {Ref: file, Password: password("Secret")},
		"no password":      {Ref: file},
		"no such variable": {Ref: "env://NONE", Getenv: env},
		"no environment":   {Ref: "env://KEY"},
		"kms":              {Ref: "awskms://alias/x"},
	} {
		if _, err := signing.LoadSigner(t.Context(), opts); !errors.Is(err, signing.ErrKey) {
			t.Errorf("%s: got %v, want ErrKey", name, err)
		}
	}
	if _, err := signing.LoadSigner(t.Context(), signing.KeyOptions{Ref: file + "x"}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: got %v, want ErrNotExist", err)
	}
	if _, err := signing.LoadPublicKey(pair.Private); !errors.Is(err, signing.ErrKey) {
		t.Errorf("private key as public: got %v, want ErrKey", err)
	}
	if bytes.Contains(pair.Private, []byte("BEGIN PRIVATE KEY")) {
		t.Error("the private key is not encrypted")
	}
}

// verifyFormat verifies signatures of one format only.
func verifyFormat(t testing.TB, target oras.GraphTarget, ref string, subject ocispec.Descriptor, policy signing.Policy, legacy bool) (*signing.Verification, error) {
	t.Helper()
	var read content.ReadOnlyGraphStorage = target
	if legacy {
		read = legacyOnly{target}
	} else {
		policy.NoLegacy = true
	}
	v, err := signing.Checker{}.Verify(t.Context(), read, ref, subject, policy)
	if err == nil && (v.Format == signing.FormatLegacy) != legacy {
		t.Errorf("got format %s", v.Format)
	}
	return v, err
}

// legacyOnly hides referrers.
type legacyOnly struct{ oras.ReadOnlyTarget }

func (legacyOnly) Predecessors(context.Context, ocispec.Descriptor) ([]ocispec.Descriptor, error) {
	return nil, nil
}
