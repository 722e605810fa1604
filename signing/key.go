package signing

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/secure-systems-lab/go-securesystemslib/encrypted"
	protocommon "github.com/sigstore/protobuf-specs/gen/pb-go/common/v1"
	"github.com/sigstore/sigstore-go/pkg/sign"
	"github.com/sigstore/sigstore/pkg/cryptoutils"
	"github.com/sigstore/sigstore/pkg/signature"
	"github.com/sigstore/sigstore/pkg/signature/options"
)

// maxKeyBytes is the size limit of a key file.
const maxKeyBytes = 64 << 10

// PEM types of the keys that cosign encrypts. Both are read, the newer one is
// written, as cosign does.
const (
	pemCosign   = "ENCRYPTED COSIGN PRIVATE KEY"
	pemSigstore = "ENCRYPTED SIGSTORE PRIVATE KEY"
)

// KeyOptions say where a private key is.
type KeyOptions struct {
	// Ref is the path of a PEM file, or env://NAME for an environment variable
	// that holds the PEM text.
	Ref string
	// Password is called for the password of an encrypted key. Nil means the
	// empty password. The returned bytes are wiped.
	Password func() ([]byte, error)
	// Getenv looks up environment variables. Nil refuses env:// references.
	Getenv func(string) string
}

// KeySigner signs with a private key. It is safe for concurrent use.
//
// The key is decrypted once, by [LoadSigner], which takes most of the time and
// of the memory (scrypt, 64 MiB); signing many artifacts with one KeySigner is
// cheap.
type KeySigner struct {
	sv          signature.SignerVerifier
	private     crypto.Signer
	public      crypto.PublicKey
	details     signature.AlgorithmDetails
	fingerprint digestOfKey
}

// LoadSigner reads a private key: encrypted as cosign generates it, or a
// plain PEM one (PKCS #8, SEC 1 or PKCS #1). ECDSA on P-256, P-384 and P-521,
// Ed25519, and RSA with 2048, 3072 or 4096 bits are supported. The error wraps
// [ErrKey], or what reading the file gave.
func LoadSigner(_ context.Context, opts KeyOptions) (*KeySigner, error) {
	data, err := readKey(opts.Ref, opts.Getenv)
	if err != nil {
		return nil, err
	}
	defer clear(data)
	private, err := parsePrivateKey(data, opts.Password)
	if err != nil {
		return nil, fmt.Errorf("key %s: %w", opts.Ref, err)
	}
	k, err := NewKeySigner(private)
	if err != nil {
		return nil, fmt.Errorf("key %s: %w", opts.Ref, err)
	}
	return k, nil
}

// NewKeySigner signs with a private key in memory.
func NewKeySigner(private crypto.Signer) (*KeySigner, error) {
	public := private.Public()
	details, err := algorithmFor(public)
	if err != nil {
		return nil, err
	}
	sv, err := signature.LoadSignerVerifier(private, crypto.SHA256)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrKey, err)
	}
	fp, err := fingerprint(public)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrKey, err)
	}
	return &KeySigner{sv: sv, private: private, public: public, details: details, fingerprint: fp}, nil
}

// PublicKey is the key that verifies what k signs.
func (k *KeySigner) PublicKey() crypto.PublicKey { return k.public }

// Fingerprint identifies the key; see [Fingerprint].
func (k *KeySigner) Fingerprint() string { return k.fingerprint.String() }

// Close overwrites the private key as far as Go allows it: copies that the
// runtime or the crypto packages made stay. The signer cannot be used after.
func (k *KeySigner) Close() {
	switch p := k.private.(type) {
	case ed25519.PrivateKey:
		clear(p)
	case *ecdsa.PrivateKey:
		clear(p.D.Bits()) //nolint:staticcheck // there is no other way to reach the secret
	case *rsa.PrivateKey:
		clear(p.D.Bits())
		for _, x := range p.Primes {
			clear(x.Bits())
		}
	}
	k.private, k.sv = nil, nil
}

// readKey reads what a key reference names.
func readKey(ref string, getenv func(string) string) ([]byte, error) {
	if name, ok := strings.CutPrefix(ref, "env://"); ok {
		if getenv == nil {
			return nil, fmt.Errorf("%w: %s: environment variables are not read here", ErrKey, ref)
		}
		v := getenv(name)
		if v == "" {
			return nil, fmt.Errorf("%w: environment variable %s is not set", ErrKey, name)
		}
		return []byte(v), nil
	}
	if strings.Contains(ref, "://") {
		return nil, fmt.Errorf("%w: %s: only files and env://NAME are supported", ErrKey, ref)
	}
	f, err := os.Open(ref)
	if err != nil {
		return nil, fmt.Errorf("reading the key: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxKeyBytes+1))
	if err != nil {
		return nil, fmt.Errorf("reading the key: %w", err)
	}
	if len(data) > maxKeyBytes {
		return nil, fmt.Errorf("%w: %s: more than %d bytes", ErrKey, ref, maxKeyBytes)
	}
	return data, nil
}

// parsePrivateKey reads a private key from PEM, and wipes what it decrypts on
// the way.
func parsePrivateKey(data []byte, password func() ([]byte, error)) (crypto.Signer, error) {
	block := firstKey(data)
	if block == nil {
		return nil, fmt.Errorf("%w: no PEM private key in it", ErrKey)
	}
	defer clear(block.Bytes)
	var private any
	var err error
	switch block.Type {
	case pemCosign, pemSigstore:
		return decryptKey(block, password)
	case "PRIVATE KEY":
		private, err = x509.ParsePKCS8PrivateKey(block.Bytes)
	case "EC PRIVATE KEY":
		private, err = x509.ParseECPrivateKey(block.Bytes)
	case "RSA PRIVATE KEY":
		private, err = x509.ParsePKCS1PrivateKey(block.Bytes)
	case "PUBLIC KEY", "CERTIFICATE":
		return nil, fmt.Errorf("%w: it is a public one; signing needs the private key", ErrKey)
	case "ENCRYPTED PRIVATE KEY":
		return nil, fmt.Errorf("%w: it is encrypted as openssl does; import it with cosign import-key-pair", ErrKey)
	default:
		return nil, fmt.Errorf("%w: PEM block %q is no private key", ErrKey, block.Type)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrKey, err)
	}
	return asSigner(private)
}

// firstKey is the first PEM block that is not the parameters block that
// openssl writes in front of EC keys.
func firstKey(data []byte) *pem.Block {
	for {
		block, rest := pem.Decode(data)
		if block == nil || block.Type != "EC PARAMETERS" {
			return block
		}
		data = rest
	}
}

// decryptKey opens a key that cosign encrypted. The parameters of scrypt are
// limited to those that cosign uses, so a file cannot make it run for ever.
func decryptKey(block *pem.Block, password func() ([]byte, error)) (crypto.Signer, error) {
	var pass []byte
	if password != nil {
		var err error
		if pass, err = password(); err != nil {
			return nil, err
		}
		defer clear(pass)
	}
	der, err := encrypted.Decrypt(block.Bytes, pass)
	if err != nil {
		return nil, fmt.Errorf("%w: %w (is the password right?)", ErrKey, err)
	}
	defer clear(der)
	private, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrKey, err)
	}
	return asSigner(private)
}

func asSigner(private any) (crypto.Signer, error) {
	s, ok := private.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("%w: %s", ErrKey, unsupported(private))
	}
	return s, nil
}

func unsupported(key any) string {
	if r, ok := key.(*rsa.PublicKey); ok {
		return fmt.Sprintf("RSA keys have 2048, 3072 or 4096 bits, this one has %d", r.Size()*8)
	}
	return fmt.Sprintf("keys of type %T are not supported", key)
}

// LoadPublicKey reads one public key in PEM (PKIX or PKCS #1). The error wraps
// [ErrKey].
func LoadPublicKey(data []byte) (crypto.PublicKey, error) {
	if len(data) > maxKeyBytes {
		return nil, fmt.Errorf("%w: more than %d bytes", ErrKey, maxKeyBytes)
	}
	block, _ := pem.Decode(data)
	switch {
	case block == nil:
		return nil, fmt.Errorf("%w: no PEM public key in it", ErrKey)
	case strings.Contains(block.Type, "PRIVATE KEY"):
		return nil, fmt.Errorf("%w: it is a private key; verifying needs the public one (cosign.pub)", ErrKey)
	}
	public, err := cryptoutils.UnmarshalPEMToPublicKey(data)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrKey, err)
	}
	if _, err := verifierFor(public); err != nil {
		return nil, err
	}
	return public, nil
}

// digestOfKey is the SHA-256 of a public key in PKIX DER.
type digestOfKey [sha256.Size]byte

func (d digestOfKey) String() string { return "sha256:" + hex.EncodeToString(d[:]) }

// hint is how cosign names the key in a bundle.
func (d digestOfKey) hint() string { return base64.StdEncoding.EncodeToString(d[:]) }

func fingerprint(public crypto.PublicKey) (digestOfKey, error) {
	der, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		return digestOfKey{}, err
	}
	return sha256.Sum256(der), nil
}

// Fingerprint identifies a public key: sha256: and the SHA-256 of its PKIX
// DER form in hexadecimal, as
// openssl pkey -pubin -in cosign.pub -outform DER | sha256sum prints it.
func Fingerprint(public crypto.PublicKey) (string, error) {
	d, err := fingerprint(public)
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrKey, err)
	}
	return d.String(), nil
}

// KeyPair is a generated key pair in PEM.
type KeyPair struct {
	Private []byte // encrypted, as cosign does; write it with mode 0600
	Public  []byte
}

// GenerateKeyPair makes an ECDSA P-256 key pair and encrypts the private key
// with the password, in cosign's format. An empty password is possible. The
// password stays the caller's to wipe.
func GenerateKeyPair(password []byte) (*KeyPair, error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generating a key: %w", err)
	}
	defer clear(private.D.Bits()) //nolint:staticcheck // as in Close
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return nil, fmt.Errorf("generating a key: %w", err)
	}
	defer clear(der)
	enc, err := encrypted.Encrypt(der, password)
	if err != nil {
		return nil, fmt.Errorf("encrypting the key: %w", err)
	}
	pub, err := cryptoutils.MarshalPublicKeyToPEM(private.Public())
	if err != nil {
		return nil, fmt.Errorf("generating a key: %w", err)
	}
	return &KeyPair{Private: pem.EncodeToMemory(&pem.Block{Type: pemSigstore, Bytes: enc}), Public: pub}, nil
}

// algorithmFor is how a key signs: in the form that cosign verify --key
// accepts, which is SHA-256 for every curve and Ed25519 without a hash.
// cosign 2.6.5 and 3.1.3 sign with P-384 and Ed25519 keys in forms that they
// do not verify themselves; [verifierFor] accepts those too.
func algorithmFor(public crypto.PublicKey) (signature.AlgorithmDetails, error) {
	kind, err := signature.GetDefaultPublicKeyDetails(public)
	if err != nil {
		return signature.AlgorithmDetails{}, fmt.Errorf("%w: %s", ErrKey, unsupported(public))
	}
	switch kind {
	case protocommon.PublicKeyDetails_PKIX_ECDSA_P384_SHA_384:
		kind = protocommon.PublicKeyDetails_PKIX_ECDSA_P384_SHA_256 //nolint:staticcheck // see above
	case protocommon.PublicKeyDetails_PKIX_ECDSA_P521_SHA_512:
		kind = protocommon.PublicKeyDetails_PKIX_ECDSA_P521_SHA_256 //nolint:staticcheck // see above
	}
	details, err := signature.GetAlgorithmDetails(kind)
	if err != nil {
		return signature.AlgorithmDetails{}, fmt.Errorf("%w: %w", ErrKey, err)
	}
	return details, nil
}

// verifierFor checks signatures of one key in every form that cosign ever
// made them: Ed25519 over the message or over its hash, ECDSA with the hash
// that fits the curve or with SHA-256.
func verifierFor(public crypto.PublicKey) (signature.Verifier, error) {
	v, err := signature.LoadDefaultVerifier(public, options.WithED25519ph())
	if err != nil {
		return nil, fmt.Errorf("%w: %s", ErrKey, unsupported(public))
	}
	var other signature.Verifier
	switch p := public.(type) {
	case ed25519.PublicKey:
		other, err = signature.LoadED25519Verifier(p)
	case *ecdsa.PublicKey:
		if p.Curve == elliptic.P256() {
			return v, nil
		}
		other, err = signature.LoadECDSAVerifier(p, crypto.SHA256)
	default:
		return v, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrKey, err)
	}
	return eitherVerifier{v, other}, nil
}

// eitherVerifier accepts what one of two verifiers of the same key accepts.
type eitherVerifier struct {
	signature.Verifier
	other signature.Verifier
}

func (v eitherVerifier) VerifySignature(sig, message io.Reader, opts ...signature.VerifyOption) error {
	s, err := io.ReadAll(sig)
	if err != nil {
		return err
	}
	m, err := io.ReadAll(message)
	if err != nil {
		return err
	}
	err = v.Verifier.VerifySignature(bytes.NewReader(s), bytes.NewReader(m), opts...)
	if err == nil || v.other.VerifySignature(bytes.NewReader(s), bytes.NewReader(m), opts...) == nil {
		return nil
	}
	return err
}

// keypair lets sigstore-go sign with a KeySigner.
type keypair struct{ *KeySigner }

var _ sign.Keypair = keypair{}

// GetHashAlgorithm names the digest that SignData returns.
func (k keypair) GetHashAlgorithm() protocommon.HashAlgorithm {
	return protocommon.HashAlgorithm_SHA2_256
}

func (k keypair) GetSigningAlgorithm() protocommon.PublicKeyDetails {
	return k.details.GetSignatureAlgorithm()
}

func (k keypair) GetHint() []byte { return []byte(k.fingerprint.hint()) }

func (k keypair) GetKeyAlgorithm() string {
	switch k.details.GetKeyType() {
	case signature.ECDSA:
		return "ECDSA"
	case signature.RSA:
		return "RSA"
	case signature.ED25519:
		return "ED25519"
	}
	return ""
}

func (k keypair) GetPublicKey() crypto.PublicKey { return k.public }

func (k keypair) GetPublicKeyPem() (string, error) {
	b, err := cryptoutils.MarshalPublicKeyToPEM(k.public)
	return string(b), err
}

// SignData returns the signature and the digest that it is about.
func (k keypair) SignData(_ context.Context, data []byte) (sig, digest []byte, err error) {
	if k.sv == nil {
		return nil, nil, errors.New("the key was closed")
	}
	sig, err = k.sv.SignMessage(bytes.NewReader(data))
	if err != nil {
		return nil, nil, fmt.Errorf("signing: %w", err)
	}
	// For Ed25519 the digest was not signed, but bundles name one all the same.
	sum := sha256.Sum256(data)
	return sig, sum[:], nil
}
