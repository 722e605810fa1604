package signing

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"math/big"
	"os"
	"path/filepath"
	"testing"
)

// TestKeysAreWiped: what is left in memory of a key, of its password and of a
// key for one run after they were used.
func TestKeysAreWiped(t *testing.T) {
	t.Parallel()
	zero := func(name string, words []big.Word) {
		t.Helper()
		for _, w := range words {
			if w != 0 {
				t.Errorf("%s is still there", name)
				return
			}
		}
	}
	ec, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	rs, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	ecSecret, rsSecret := ec.D.Bits(), rs.D.Bits() //nolint:staticcheck // to see it go
	for _, key := range []crypto.Signer{ec, ed, rs} {
		k, err := NewKeySigner(key)
		if err != nil {
			t.Fatal(err)
		}
		k.Close()
		if _, err := k.SignBlob(t.Context(), nil); err == nil {
			t.Errorf("%T signs after it was closed", key)
		}
	}
	zero("the ECDSA key", ecSecret)
	zero("the RSA key", rsSecret)
	for _, prime := range rs.Primes {
		zero("a prime of the RSA key", prime.Bits())
	}
	for _, b := range ed {
		if b != 0 {
			t.Error("the Ed25519 key is still there")
			break
		}
	}

	// The password, whether it is right or not.
	pair, err := GenerateKeyPair([]byte("secret"))
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "k.key")
	if err := os.WriteFile(file, pair.Private, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, password := range []string{"secret", "wrong"} {
		given, asked := []byte(password), 0
		k, err := LoadSigner(t.Context(), KeyOptions{Ref: file, Password: func() ([]byte, error) { asked++; return given, nil }})
		if (err == nil) != (password == "secret") {
			t.Errorf("password %s: got %v", password, err)
		}
		if asked != 1 {
			t.Errorf("asked %d times for the password, want once", asked)
		}
		for _, b := range given {
			if b != 0 {
				t.Errorf("the password %s is still there", password)
				break
			}
		}
		if err != nil {
			continue
		}
		// Once decrypted it signs without asking again.
		for range 3 {
			if _, err := k.SignBlob(t.Context(), nil); err != nil {
				t.Error(err)
			}
		}
		secret := k.private.(*ecdsa.PrivateKey).D.Bits() //nolint:staticcheck // to see it go
		k.Close()
		zero("the decrypted key", secret)
	}

	// Keyless: the key of this run.
	kl, err := NewKeylessSigner(&Services{Fulcio: "http://127.0.0.1:1", Timestamps: []string{"http://127.0.0.1:1"}}, "e30.e30.e30")
	if err != nil {
		t.Fatal(err)
	}
	secret := kl.key.private.(*ecdsa.PrivateKey).D.Bits() //nolint:staticcheck // to see it go
	kl.Close()
	zero("the key of a keyless signer", secret)
}
