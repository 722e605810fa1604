// Package signtest is for tests: a certificate authority, a timestamp
// authority and the trusted root that vouches for both, in memory and on the
// loopback interface. Signing against them runs the real clients.
//
// There is no transparency log and no certificate log here: signatures made
// with it need Evidence{Timestamps: 1, NoSCT: true}. The tests in signing/e2e
// run against the real services.
package signtest

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/digitorus/timestamp"
	"github.com/sigstore/sigstore-go/pkg/root"
	"github.com/sigstore/sigstore-go/pkg/testing/ca"

	"github.com/krmcat/krmcat/signing"
)

// Authority is a Fulcio and a timestamp authority that end with their test.
type Authority struct {
	Fulcio    string // URL
	Timestamp string // URL
	Root      *signing.TrustedRoot
	RootJSON  []byte // Root as trusted_root.json

	ca, tsa       *issuer
	mu            sync.Mutex
	certificateAt func() time.Time
	requests      int
}

// issuer is a certificate with its key.
type issuer struct {
	cert *x509.Certificate
	key  crypto.Signer
}

// New starts an authority.
func New(t testing.TB) *Authority {
	t.Helper()
	a, err := build()
	if err != nil {
		t.Fatalf("starting the authority: %v", err)
	}
	serve := func(h http.HandlerFunc) string {
		s := httptest.NewServer(h)
		t.Cleanup(s.Close)
		return s.URL
	}
	a.Fulcio = serve(a.serveCertificate)
	a.Timestamp = serve(a.serveTimestamp)
	return a
}

func build() (*Authority, error) {
	rootCert, rootKey, err := ca.GenerateRootCa()
	if err != nil {
		return nil, err
	}
	caCert, caKey, err := ca.GenerateFulcioIntermediate(rootCert, rootKey)
	if err != nil {
		return nil, err
	}
	tsaCA, tsaCAKey, err := ca.GenerateTSAIntermediate(rootCert, rootKey)
	if err != nil {
		return nil, err
	}
	tsaKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	// The library makes it valid for ten minutes from the given time on.
	tsaCert, err := ca.GenerateTSALeafCert(time.Now().Add(-time.Minute), tsaKey, tsaCA, tsaCAKey)
	if err != nil {
		return nil, err
	}
	since := time.Now().Add(-5 * time.Hour)
	r, err := root.NewTrustedRoot(root.TrustedRootMediaType01,
		[]root.CertificateAuthority{&root.FulcioCertificateAuthority{
			Root: rootCert, Intermediates: []*x509.Certificate{caCert}, ValidityPeriodStart: since, URI: "https://fulcio.test",
		}}, nil,
		[]root.TimestampingAuthority{&root.SigstoreTimestampingAuthority{
			Root: rootCert, Intermediates: []*x509.Certificate{tsaCA}, Leaf: tsaCert, ValidityPeriodStart: since, URI: "https://tsa.test",
		}}, nil)
	if err != nil {
		return nil, err
	}
	data, err := r.MarshalJSON()
	if err != nil {
		return nil, err
	}
	return &Authority{
		Root: signing.NewTrustedRoot(r), RootJSON: data,
		ca: &issuer{caCert, caKey}, tsa: &issuer{tsaCert, tsaKey}, certificateAt: time.Now,
	}, nil
}

// Services are what a signer needs to use the authority.
func (a *Authority) Services() *signing.Services {
	return &signing.Services{Fulcio: a.Fulcio, Timestamps: []string{a.Timestamp}}
}

// SetCertificateTime sets the time that certificates are valid from, for ten
// minutes.
func (a *Authority) SetCertificateTime(now func() time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.certificateAt = now
}

// Certificates is how many certificates were issued.
func (a *Authority) Certificates() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.requests
}

// Token is an identity token that the authority takes without looking at its
// signature. Subject is an e-mail address or a URL.
func Token(issuer, subject string) string { return JobToken(issuer, subject, "") }

// JobToken is a token of a CI job, for the repository of that URL.
func JobToken(issuer, subject, repository string) string {
	c := map[string]any{"iss": issuer, "sub": subject, "aud": signing.Audience, "exp": time.Now().Add(time.Hour).Unix()}
	if strings.Contains(subject, "@") && !strings.Contains(subject, "://") {
		c["email"], c["email_verified"] = subject, true
	}
	if repository != "" {
		c["repository"] = repository
	}
	data, err := json.Marshal(c)
	if err != nil {
		panic(err) // strings and numbers always encode
	}
	enc := base64.RawURLEncoding.EncodeToString
	return enc([]byte(`{"alg":"ES256"}`)) + "." + enc(data) + "." + enc([]byte("unsigned"))
}

// serveCertificate answers as Fulcio does, and to GET /certificates with how
// many certificates there were.
func (a *Authority) serveCertificate(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodGet && r.URL.Path == "/certificates" {
		fmt.Fprintln(w, a.Certificates())
		return
	}
	der, err := a.issue(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	var chain []string
	for _, d := range [][]byte{der, a.ca.cert.Raw} {
		chain = append(chain, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: d})))
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{
		"signedCertificateEmbeddedSct": map[string]any{"chain": map[string]any{"certificates": chain}},
	})
}

// Object identifiers of Fulcio's extensions for the issuer, old and new, and
// for the repository that a job ran for.
var (
	oidIssuerV1         = asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 57264, 1, 1}
	oidIssuerV2         = asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 57264, 1, 8}
	oidSourceRepository = asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 57264, 1, 12}
)

func (a *Authority) issue(r *http.Request) ([]byte, error) {
	var req struct {
		PublicKeyRequest struct {
			PublicKey struct{ Content string }
		}
	}
	if err := json.NewDecoder(io.LimitReader(r.Body, 64<<10)).Decode(&req); err != nil {
		return nil, err
	}
	block, _ := pem.Decode([]byte(req.PublicKeyRequest.PublicKey.Content))
	if block == nil {
		return nil, errors.New("no public key")
	}
	pub, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil {
		return nil, err
	}
	iss, sub, repository, err := identityOf(r.Header.Get("Authorization"))
	if err != nil {
		return nil, err
	}
	utf8, err := asn1.MarshalWithParams(iss, "utf8")
	if err != nil {
		return nil, err
	}
	a.mu.Lock()
	now := a.certificateAt()
	a.requests++
	serial := big.NewInt(int64(a.requests))
	a.mu.Unlock()
	tmpl := &x509.Certificate{
		SerialNumber: serial,
		NotBefore:    now.Add(-time.Second),
		NotAfter:     now.Add(10 * time.Minute),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageCodeSigning},
		ExtraExtensions: []pkix.Extension{
			{Id: oidIssuerV1, Value: []byte(iss)},
			{Id: oidIssuerV2, Value: utf8},
		},
	}
	if repository != "" {
		value, err := asn1.MarshalWithParams(repository, "utf8")
		if err != nil {
			return nil, err
		}
		tmpl.ExtraExtensions = append(tmpl.ExtraExtensions, pkix.Extension{Id: oidSourceRepository, Value: value})
	}
	if u, err := url.Parse(sub); err == nil && u.Scheme != "" {
		tmpl.URIs = []*url.URL{u}
	} else {
		tmpl.EmailAddresses = []string{sub}
	}
	return x509.CreateCertificate(rand.Reader, tmpl, a.ca.cert, pub, a.ca.key)
}

func identityOf(authorization string) (issuer, subject, repository string, err error) {
	parts := strings.Split(strings.TrimPrefix(authorization, "Bearer "), ".")
	if len(parts) != 3 {
		return "", "", "", errors.New("no token")
	}
	data, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return "", "", "", err
	}
	var c struct{ Iss, Sub, Repository string }
	if err := json.Unmarshal(data, &c); err != nil {
		return "", "", "", err
	}
	return c.Iss, c.Sub, c.Repository, nil
}

// serveTimestamp answers as an RFC 3161 authority does.
func (a *Authority) serveTimestamp(w http.ResponseWriter, r *http.Request) {
	answer, err := a.stamp(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/timestamp-reply")
	_, _ = w.Write(answer)
}

func (a *Authority) stamp(body io.Reader) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(body, 64<<10))
	if err != nil {
		return nil, err
	}
	req, err := timestamp.ParseRequest(data)
	if err != nil {
		return nil, fmt.Errorf("reading the request: %w", err)
	}
	ts := timestamp.Timestamp{
		HashAlgorithm: req.HashAlgorithm, HashedMessage: req.HashedMessage, Nonce: req.Nonce,
		Time: time.Now(), Policy: asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 57264, 2},
		AddTSACertificate: req.Certificates, ExtraExtensions: req.Extensions,
	}
	return ts.CreateResponseWithOpts(a.tsa.cert, a.tsa.key, crypto.SHA256)
}
