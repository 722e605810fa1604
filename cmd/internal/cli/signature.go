package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/spf13/pflag"
	"golang.org/x/term"
	"oras.land/oras-go/v2"

	"github.com/krmcat/krmcat/registry"
	"github.com/krmcat/krmcat/signing"
)

// keyFlags name the private key to sign with.
type keyFlags struct {
	Key      string
	Legacy   bool
	NoBundle bool
}

// options are the formats to sign in.
func (f *keyFlags) options() signing.SignOptions {
	return signing.SignOptions{Legacy: f.Legacy || f.NoBundle, NoBundle: f.NoBundle}
}

func (f *keyFlags) add(fs *pflag.FlagSet) {
	fs.StringVar(&f.Key, "key", "", "private key to sign with: a `file` from krmcat keygen or cosign generate-key-pair, a PEM file, or env://NAME; the password is in COSIGN_PASSWORD or asked for")
	fs.BoolVar(&f.Legacy, "legacy", false, "also write the older signature format, for verifiers that do not look for bundles")
	fs.BoolVar(&f.NoBundle, "no-bundle", false, "write the older signature format only, which cosign 2.6 verifies without a trusted root")
}

// load reads the key; closing the signer wipes it.
func (f *keyFlags) load(ctx context.Context, e *env) (*signing.KeySigner, error) {
	return signing.LoadSigner(ctx, signing.KeyOptions{
		Ref:      f.Key,
		Getenv:   e.Getenv,
		Password: func() ([]byte, error) { return e.password("Password for the private key: ") },
	})
}

// password is COSIGN_PASSWORD, even if it is empty, or what is typed at a
// terminal.
func (e *env) password(prompt string) ([]byte, error) {
	if p, ok := e.LookupEnv("COSIGN_PASSWORD"); ok {
		return []byte(p), nil
	}
	f, ok := e.In.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return nil, withHint(errors.New("the key is encrypted and there is no terminal to ask for its password at"), "set COSIGN_PASSWORD")
	}
	printf(e.Err, "%s", prompt)
	p, err := term.ReadPassword(int(f.Fd()))
	printf(e.Err, "\n")
	if err != nil {
		return nil, fmt.Errorf("reading the password: %w", err)
	}
	return p, nil
}

// signingFlags are those of commands that sign what they push: the same as of
// krmcat sign, and one to leave it.
type signingFlags struct {
	Key      keyFlags
	Services serviceFlags
	Sign     bool
}

func (f *signingFlags) add(fs *pflag.FlagSet) {
	f.Key.add(fs)
	f.Services.add(fs)
	fs.BoolVar(&f.Sign, "sign", true, "sign what is published; --sign=false leaves it unsigned")
}

// signer returns nil if nothing shall be signed.
func (f *signingFlags) signer(ctx context.Context, e *env) (s registry.Signer, done func(), err error) {
	if !f.Sign {
		if f.Key.Key != "" || f.Services.Keyless {
			return nil, nil, usagef("--sign=false excludes --key and --keyless")
		}
		printf(e.Err, "krmcat: warning: what is published is not signed, so nobody can tell whether it is yours\n")
		return nil, func() {}, nil
	}
	if f.Key.Key == "" && !f.Services.Keyless {
		return nil, nil, withHint(usagef("no key to sign with: give --key, --keyless, or --sign=false to publish unsigned"), "make a key pair with krmcat keygen")
	}
	signer, opts, done, err := f.Services.artifactSigner(ctx, e, &f.Key)
	if err != nil {
		return nil, nil, err
	}
	return onceSigner{signer, opts}, done, nil
}

// onceSigner signs what the signer has not signed yet.
type onceSigner struct {
	signer artifactSigner
	opts   signing.SignOptions
}

func (s onceSigner) Sign(ctx context.Context, target oras.GraphTarget, reference string, subject ocispec.Descriptor) (ocispec.Descriptor, error) {
	signed, err := s.signer.Signed(ctx, target, reference, subject, s.opts)
	if err != nil || signed {
		return ocispec.Descriptor{}, err
	}
	return s.signer.With(s.opts).Sign(ctx, target, reference, subject)
}

// verifyFlags say which signatures are accepted.
type verifyFlags struct {
	Keys []string
	identityFlags
}

func (f *verifyFlags) add(fs *pflag.FlagSet) {
	fs.StringArrayVar(&f.Keys, "key", nil, "public key that must have signed: a PEM `file`, or env://NAME; repeatable, any of them will do")
	f.identityFlags.add(fs)
}

// signers reports whether the flags name any.
func (f *verifyFlags) signers() bool { return len(f.Keys) > 0 || f.hasIdentity() }

// wanted reports whether there is anything to verify with: flags, or a trust
// policy in force.
func (f *verifyFlags) wanted(e *env) bool { return f.signers() || f.trustFlags.file(e) != "" }

// judge is what decides about signatures: the flags that name signers, or else
// the trust policy in force.
type judge struct {
	client *registry.Client
	policy signing.Policy
	trust  *trustGate
}

// judge returns nil if nothing shall be verified.
func (f *verifyFlags) judge(e *env, client *registry.Client) (*judge, error) {
	j := &judge{client: client}
	var err error
	switch {
	case f.signers() && f.given():
		return nil, usagef("--trust-policy decides alone; leave --key and --certificate-… out")
	case f.signers():
		j.policy, err = f.policy(e)
	default:
		if j.trust, err = f.trustFlags.gate(e, client); err == nil && j.trust == nil {
			return nil, nil
		}
	}
	return j, err
}

func (f *verifyFlags) policy(e *env) (signing.Policy, error) {
	var p signing.Policy
	for _, ref := range f.Keys {
		data, err := readKeyText(e, ref)
		if err != nil {
			return p, err
		}
		k, err := signing.LoadPublicKey(data)
		if err != nil {
			return p, fmt.Errorf("key %s: %w", ref, err)
		}
		p.Keys = append(p.Keys, k)
	}
	return p, f.identityFlags.addTo(&p)
}

// artifact verifies the signature of a manifest and says who made it.
func (j *judge) artifact(ctx context.Context, ref registry.Reference, subject ocispec.Descriptor) (string, error) {
	if j.trust != nil {
		d, err := j.trust.accept(ctx, ref, signing.TrustRequest{Subject: subject})
		if err != nil {
			return "", err
		}
		return trustedBy(d), nil
	}
	v, err := j.verify(ctx, ref, subject)
	if err != nil {
		return "", fmt.Errorf("verifying the signature of %s: %w", ref, err)
	}
	return signedBy(v), nil
}

// blob verifies a document against the bundle beside it.
func (j *judge) blob(ctx context.Context, document, bundle []byte) (string, error) {
	v, err := signing.VerifyBlob(ctx, document, bundle, j.policy)
	if err != nil {
		return "", err
	}
	return signedBy(v), nil
}

// verify returns the signature that counted, or the first of several.
func (j *judge) verify(ctx context.Context, ref registry.Reference, subject ocispec.Descriptor) (*signing.Verification, error) {
	if j.trust != nil {
		d, err := j.trust.accept(ctx, ref, signing.TrustRequest{Subject: subject})
		if err != nil {
			return nil, err
		}
		return d.Verifications()[0], nil
	}
	repo, err := j.client.Repository(ref)
	if err != nil {
		return nil, err
	}
	v, err := signing.Checker{}.Verify(ctx, repo, ref.Name(), subject, j.policy)
	return v, registry.Classify(err)
}

// trustedBy says in a few words why a policy accepts something.
func trustedBy(d *signing.Decision) string {
	if len(d.Signers) == 0 {
		return "trusted, as the document names it"
	}
	return "trusted, by " + strings.Join(d.Signers, ", ")
}

// signedBy says in a few words who made a signature.
func signedBy(v *signing.Verification) string {
	if v.Key != "" {
		return "signed by key " + v.Key
	}
	return fmt.Sprintf("signed by %s (%s)", v.Identity.Subject, v.Identity.Issuer)
}

// maxKeyText bounds the PEM text of a public key.
const maxKeyText = 64 << 10

func readKeyText(e *env, ref string) ([]byte, error) {
	const scheme = "env://"
	if len(ref) > len(scheme) && ref[:len(scheme)] == scheme {
		v := e.Getenv(ref[len(scheme):])
		if v == "" {
			return nil, fmt.Errorf("key %s: the environment variable is not set", ref)
		}
		return []byte(v), nil
	}
	f, err := os.Open(ref)
	if err != nil {
		return nil, fmt.Errorf("reading the key: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxKeyText))
	if err != nil {
		return nil, fmt.Errorf("reading the key %s: %w", ref, err)
	}
	return data, nil
}
