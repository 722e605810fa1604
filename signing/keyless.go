package signing

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/sigstore/sigstore-go/pkg/root"
	"github.com/sigstore/sigstore-go/pkg/sign"
	"oras.land/oras-go/v2"
)

// serviceTimeout bounds one request to a Sigstore service. An entry in the
// second version of Rekor waits for the next checkpoint.
const serviceTimeout = 30 * time.Second

// Services are the Sigstore services that vouch for a signature.
type Services struct {
	// Fulcio is the URL of the certificate authority; keyless only.
	Fulcio string
	// Timestamps are the full URLs of RFC 3161 timestamp authorities.
	Timestamps []string
	// Logs are the transparency logs to enter the signature in. Those of
	// version 2 vouch for no time, so they need a timestamp authority.
	Logs []Log
	// Root checks a fresh signature before it is attached. Nil does not.
	Root *TrustedRoot
	// Transport is for Fulcio and timestamp authorities. Nil is the default.
	Transport http.RoundTripper
}

// Log is a Rekor transparency log.
type Log struct {
	URL     string
	Version uint32 // of its API: 1 or 2
}

// options are sigstore-go's, without certificates unless keyless.
func (s *Services) options(keyless bool) sign.BundleOptions {
	var o sign.BundleOptions
	if s == nil {
		return o
	}
	if keyless {
		o.CertificateProvider = sign.NewFulcio(&sign.FulcioOptions{BaseURL: s.Fulcio, Timeout: serviceTimeout, Retries: 1, Transport: s.Transport})
	}
	for _, u := range s.Timestamps {
		o.TimestampAuthorities = append(o.TimestampAuthorities, sign.NewTimestampAuthority(&sign.TimestampAuthorityOptions{URL: u, Timeout: serviceTimeout, Retries: 1, Transport: s.Transport}))
	}
	for _, l := range s.Logs {
		o.TransparencyLogs = append(o.TransparencyLogs, sign.NewRekor(&sign.RekorOptions{BaseURL: l.URL, Timeout: serviceTimeout, Retries: 1, Version: l.Version}))
	}
	if s.Root != nil {
		o.TrustedRoot = s.Root.material
	}
	return o
}

// Check finds services that cannot give a keyless signature that lasts.
func (s *Services) Check() error {
	switch {
	case s == nil || s.Fulcio == "":
		return errors.New("keyless signing needs the URL of a certificate authority (Fulcio)")
	case len(s.Timestamps)+len(s.Logs) == 0:
		return errors.New("keyless signing needs a timestamp authority or a transparency log: the certificate is valid for minutes only")
	}
	for _, l := range s.Logs {
		if l.Version != 1 && l.Version != 2 {
			return fmt.Errorf("transparency log %s: version %d is not 1 or 2", l.URL, l.Version)
		}
		if l.Version == 2 && len(s.Timestamps) == 0 {
			return fmt.Errorf("transparency log %s: version 2 vouches for no time; add a timestamp authority", l.URL)
		}
	}
	return nil
}

// LoadServices reads a Sigstore signing_config.json and takes the newest
// services that are valid now.
func LoadServices(data []byte, now time.Time) (*Services, error) {
	if len(data) > maxRootBytes {
		return nil, fmt.Errorf("signing config: more than %d bytes", maxRootBytes)
	}
	config, err := root.NewSigningConfigFromJSON(data)
	if err != nil {
		return nil, fmt.Errorf("reading the signing config: %w", err)
	}
	s := &Services{}
	if len(config.FulcioCertificateAuthorityURLs()) > 0 {
		f, err := root.SelectService(config.FulcioCertificateAuthorityURLs(), sign.FulcioAPIVersions, now)
		if err != nil {
			return nil, fmt.Errorf("signing config: certificate authority: %w", err)
		}
		s.Fulcio = f.URL
	}
	if len(config.TimestampAuthorityURLs()) > 0 {
		list, err := root.SelectServices(config.TimestampAuthorityURLs(), config.TimestampAuthorityURLsConfig(), sign.TimestampAuthorityAPIVersions, now)
		if err != nil {
			return nil, fmt.Errorf("signing config: timestamp authority: %w", err)
		}
		for _, x := range list {
			s.Timestamps = append(s.Timestamps, x.URL)
		}
	}
	if len(config.RekorLogURLs()) > 0 {
		list, err := root.SelectServices(config.RekorLogURLs(), config.RekorLogURLsConfig(), sign.RekorAPIVersions, now)
		if err != nil {
			return nil, fmt.Errorf("signing config: transparency log: %w", err)
		}
		for _, x := range list {
			s.Logs = append(s.Logs, Log{URL: x.URL, Version: x.MajorAPIVersion})
		}
	}
	return s, nil
}

// KeylessSigner signs with a key that exists in memory only, and a
// certificate for the identity that a token proves. One certificate serves all
// signatures until it expires. It is safe for concurrent use.
type KeylessSigner struct {
	services *Services
	token    string
	key      *KeySigner

	mu      sync.Mutex
	der     []byte
	expires time.Time
}

// NewKeylessSigner signs as whom an OpenID Connect identity token names.
// Nothing is sent before something is signed.
func NewKeylessSigner(services *Services, token string) (*KeylessSigner, error) {
	if err := services.Check(); err != nil {
		return nil, err
	}
	if _, err := tokenClaims(token); err != nil {
		return nil, err
	}
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("making a key: %w", err)
	}
	key, err := NewKeySigner(private)
	if err != nil {
		return nil, fmt.Errorf("making a key: %w", err)
	}
	return &KeylessSigner{services: services, token: token, key: key}, nil
}

// Close overwrites the key, as [KeySigner.Close] does. The signer cannot be
// used after.
func (k *KeylessSigner) Close() { k.key.Close() }

// Sign implements [Signer].
func (k *KeylessSigner) Sign(ctx context.Context, target oras.GraphTarget, reference string, subject ocispec.Descriptor) (ocispec.Descriptor, error) {
	return k.With(SignOptions{}).Sign(ctx, target, reference, subject)
}

// With returns a signer that signs with k and options. Services of the
// options are not looked at.
func (k *KeylessSigner) With(opts SignOptions) *OptionSigner {
	return &OptionSigner{maker: k, opts: opts}
}

// Identity is whom the certificate is for. It asks for the certificate.
func (k *KeylessSigner) Identity(ctx context.Context) (Identity, error) {
	der, err := k.GetCertificate(ctx, keypair{k.key}, nil)
	if err != nil {
		return Identity{}, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return Identity{}, fmt.Errorf("reading the certificate: %w", err)
	}
	return certificateIdentity(cert), nil
}

// Signed reports whether subject carries a signature by this identity already
// that the trusted root of the services vouches for.
func (k *KeylessSigner) Signed(ctx context.Context, target oras.GraphTarget, reference string, subject ocispec.Descriptor, opts SignOptions) (bool, error) {
	if k.services.Root == nil {
		return false, nil
	}
	id, err := k.Identity(ctx)
	if err != nil {
		return false, err
	}
	policy := Policy{Identities: []Identity{id}, Root: k.services.Root, Annotations: withNames(opts.Annotations, subject)}
	policy.Evidence = Evidence{Timestamps: min(1, len(k.services.Timestamps)), Tlog: min(1, len(k.services.Logs)), NoSCT: true}
	return signed(ctx, target, reference, subject, policy, opts)
}

func (k *KeylessSigner) bundle(ctx context.Context, content sign.Content) ([]byte, error) {
	opts := k.services.options(true)
	opts.Context = ctx
	opts.CertificateProvider = k
	return makeBundle(content, keypair{k.key}, opts)
}

// GetCertificate lets sigstore-go ask for the certificate. It implements
// sign.CertificateProvider.
func (k *KeylessSigner) GetCertificate(ctx context.Context, kp sign.Keypair, _ *sign.CertificateProviderOptions) ([]byte, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	// A minute is left for the services that have to see it valid.
	if k.der != nil && time.Now().Add(time.Minute).Before(k.expires) {
		return k.der, nil
	}
	der, err := k.services.options(true).CertificateProvider.GetCertificate(ctx, kp, &sign.CertificateProviderOptions{IDToken: k.token})
	if err != nil {
		return nil, fmt.Errorf("asking the certificate authority %s: %w", k.services.Fulcio, err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("reading the certificate: %w", err)
	}
	k.der, k.expires = der, cert.NotAfter
	return der, nil
}

// claims are what a token says about itself. They are not verified: Fulcio
// does that.
type claims struct {
	Issuer  string `json:"iss"`
	Subject string `json:"sub"`
	Email   string `json:"email"`
	Expires int64  `json:"exp"`
}

// tokenClaims finds tokens that cannot work before they are sent anywhere.
// Its errors never quote the token.
func tokenClaims(token string) (claims, error) {
	var c claims
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return c, errors.New("identity token: not a JSON web token")
	}
	data, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil || json.Unmarshal(data, &c) != nil {
		return c, errors.New("identity token: its claims cannot be read")
	}
	if c.Expires != 0 && time.Now().After(time.Unix(c.Expires, 0)) {
		return c, fmt.Errorf("identity token: expired at %s", time.Unix(c.Expires, 0).UTC().Format(time.RFC3339))
	}
	return c, nil
}
