package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/spf13/pflag"
	"golang.org/x/term"
	"oras.land/oras-go/v2"

	"github.com/krmcat/krmcat/signing"
)

// Sigstore's public services, for keyless signing without further flags.
const (
	publicFulcio     = "https://fulcio.sigstore.dev"
	publicTimestamp  = "https://timestamp.sigstore.dev/api/v1/timestamp"
	publicRekor      = "https://rekor.sigstore.dev"
	publicIssuer     = "https://oauth2.sigstore.dev/auth"
	publicClientID   = "sigstore"
	maxSigstoreBytes = 4 << 20
)

// serviceFlags say which Sigstore services vouch for a signature, and how to
// sign without a key of one's own.
type serviceFlags struct {
	Keyless       bool
	Token         string
	OIDCIssuer    string
	OIDCClientID  string
	SigningConfig string
	TrustedRoot   string
	Fulcio        string
	Timestamps    []string
	Rekor         string
	RekorVersion  uint32
}

func (f *serviceFlags) add(fs *pflag.FlagSet) {
	fs.BoolVar(&f.Keyless, "keyless", false, "sign with a certificate for an identity instead of a key: that of the CI job (GitHub, GitLab, Kubernetes), of --identity-token, or of a login in the browser")
	fs.StringVar(&f.Token, "identity-token", "", "`file` with the identity token for --keyless, or env://NAME")
	fs.StringVar(&f.OIDCIssuer, "oidc-issuer", publicIssuer, "`URL` of the issuer for a login in the browser")
	fs.StringVar(&f.OIDCClientID, "oidc-client-id", publicClientID, "client `ID` for a login in the browser")
	fs.StringVar(&f.SigningConfig, "signing-config", "", "signing_config.json `file` that names the services to use")
	fs.StringVar(&f.TrustedRoot, "trusted-root", "", "trusted_root.json `file` that the new signature is checked against before it is attached")
	fs.StringVar(&f.Fulcio, "fulcio-url", "", "`URL` of the certificate authority (default with --keyless: Sigstore's public one)")
	fs.StringArrayVar(&f.Timestamps, "timestamp-url", nil, "`URL` of a timestamp authority; repeatable (default with --keyless: Sigstore's public one)")
	fs.StringVar(&f.Rekor, "rekor-url", "", "`URL` of a transparency log (default with --keyless: Sigstore's public one)")
	fs.Uint32Var(&f.RekorVersion, "rekor-version", 1, "`version` of the transparency log: 1 or 2")
}

// services returns nil if none is asked for.
func (f *serviceFlags) services() (*signing.Services, error) {
	s := &signing.Services{}
	if f.SigningConfig != "" {
		if f.Fulcio != "" || f.Rekor != "" || len(f.Timestamps) > 0 {
			return nil, usagef("--signing-config names the services; leave --fulcio-url, --timestamp-url and --rekor-url out")
		}
		data, err := readLimited(f.SigningConfig, maxSigstoreBytes)
		if err != nil {
			return nil, fmt.Errorf("reading --signing-config: %w", err)
		}
		if s, err = signing.LoadServices(data, time.Now()); err != nil {
			return nil, err
		}
	} else {
		s.Fulcio, s.Timestamps = f.Fulcio, f.Timestamps
		if f.Rekor != "" {
			s.Logs = []signing.Log{{URL: f.Rekor, Version: f.RekorVersion}}
		}
		if f.Keyless && f.Fulcio == "" && f.Rekor == "" && len(f.Timestamps) == 0 {
			s.Fulcio, s.Timestamps, s.Logs = publicFulcio, []string{publicTimestamp}, []signing.Log{{URL: publicRekor, Version: 1}}
		}
	}
	if s.Fulcio == "" && len(s.Timestamps)+len(s.Logs) == 0 {
		return nil, nil
	}
	if f.TrustedRoot != "" {
		root, err := readTrustedRoot(f.TrustedRoot)
		if err != nil {
			return nil, err
		}
		s.Root = root
	}
	return s, nil
}

// token finds the identity token.
func (f *serviceFlags) token(ctx context.Context, e *env) (string, error) {
	if f.Token != "" {
		if name, ok := cutEnvRef(f.Token); ok {
			if v := e.Getenv(name); v != "" {
				return v, nil
			}
			return "", fmt.Errorf("--identity-token %s: the environment variable is not set", f.Token)
		}
		return signing.ReadToken(f.Token)
	}
	t, err := signing.TokenSource{Getenv: e.Getenv}.Ambient(ctx)
	if err == nil || !errors.Is(err, signing.ErrNoToken) {
		return t, err
	}
	if in, ok := e.In.(*os.File); !ok || !term.IsTerminal(int(in.Fd())) {
		return "", codeError{withHint(errors.New("no identity to sign as: no CI job offers a token, and there is no terminal to log in at"),
			"give --identity-token; GitHub Actions needs permissions: id-token: write, GitLab needs id_tokens: SIGSTORE_ID_TOKEN"), exitAuth}
	}
	return (&signing.Login{Issuer: f.OIDCIssuer, ClientID: f.OIDCClientID, In: e.In, Out: e.Err}).Token(ctx)
}

// artifactSigner signs artifacts and files, with a key or without.
type artifactSigner interface {
	// Identity names the signer. A keyless one asks for its certificate.
	Identity(ctx context.Context) (string, error)
	With(signing.SignOptions) *signing.OptionSigner
	Signed(ctx context.Context, target oras.GraphTarget, reference string, subject ocispec.Descriptor, opts signing.SignOptions) (bool, error)
}

// keySigner and keylessSigner are the signers of package signing with names to
// show.
type (
	keySigner     struct{ *signing.KeySigner }
	keylessSigner struct{ *signing.KeylessSigner }
)

func (s keySigner) Identity(context.Context) (string, error) { return s.Fingerprint(), nil }

func (s keylessSigner) Identity(ctx context.Context) (string, error) {
	id, err := s.KeylessSigner.Identity(ctx)
	return id.String(), err
}

// artifactSigner makes what the flags ask for. Nothing is sent to a certificate
// authority before something is signed. Done wipes the key.
func (f *serviceFlags) artifactSigner(ctx context.Context, e *env, key *keyFlags) (s artifactSigner, opts signing.SignOptions, done func(), err error) {
	if opts.Created, err = sourceDate(e.Getenv); err != nil {
		return nil, opts, nil, err
	}
	format := key.options()
	opts.Legacy, opts.NoBundle = format.Legacy, format.NoBundle
	if f.Keyless == (key.Key != "") {
		if f.Keyless {
			return nil, opts, nil, usagef("--key and --keyless exclude each other")
		}
		return nil, opts, nil, withHint(usagef("no key to sign with: give --key, or --keyless"), "make a key pair with krmcat keygen")
	}
	services, err := f.services()
	if err != nil {
		return nil, opts, nil, err
	}
	if !f.Keyless {
		k, err := key.load(ctx, e)
		if err != nil {
			return nil, opts, nil, err
		}
		opts.Services = services
		return keySigner{k}, opts, k.Close, nil
	}
	if err := services.Check(); err != nil {
		return nil, opts, nil, usageError{err}
	}
	token, err := f.token(ctx, e)
	if err != nil {
		return nil, opts, nil, err
	}
	k, err := signing.NewKeylessSigner(services, token)
	if err != nil {
		return nil, opts, nil, usageError{err}
	}
	return keylessSigner{k}, opts, k.Close, nil
}

// identityFlags say which keyless signers are accepted, what has to vouch for
// their signatures, or which policy decides.
type identityFlags struct {
	Identity       string
	IdentityPrefix string
	IdentityRegexp string
	Issuer         string
	TrustedRoot    string
	Timestamps     int
	Tlog           int
	IgnoreSCT      bool
	Annotations    map[string]string
	Mirrors        map[string]string
	trustFlags
}

func (f *identityFlags) add(fs *pflag.FlagSet) {
	f.trustFlags.add(fs)
	fs.StringVar(&f.Identity, "certificate-identity", "", "`subject` of the certificate that must have signed, such as the URL of a workflow")
	fs.StringVar(&f.IdentityPrefix, "certificate-identity-prefix", "", "`beginning` of the subject, ending in / or @")
	fs.StringVar(&f.IdentityRegexp, "certificate-identity-regexp", "", "`expression` that matches the whole subject")
	fs.StringVar(&f.Issuer, "certificate-oidc-issuer", "", "`URL` of the issuer that the certificate's subject logged in at")
	fs.StringVar(&f.TrustedRoot, "trusted-root", "", "trusted_root.json `file` for certificates, timestamps and logs; nothing is fetched")
	fs.IntVar(&f.Timestamps, "require-timestamps", 0, "`number` of timestamp authorities that must vouch for the time")
	fs.IntVar(&f.Tlog, "require-tlog", 0, "`number` of transparency logs that must hold the signature (default for identities without --require-timestamps: 1)")
	fs.BoolVar(&f.IgnoreSCT, "insecure-ignore-sct", false, "accept certificates that no certificate log vouches for")
	fs.StringToStringVar(&f.Annotations, "require-annotation", nil, "`KEY=VALUE` that must have been signed along; repeatable")
	fs.StringToStringVar(&f.Mirrors, "signed-as", nil, "`MIRROR=ORIGINAL`: content of the first repository was signed under the name of the second; repeatable")
}

func (f *identityFlags) hasIdentity() bool {
	return f.Identity != "" || f.IdentityPrefix != "" || f.IdentityRegexp != "" || f.Issuer != ""
}

// addTo adds what the flags say to a policy.
func (f *identityFlags) addTo(p *signing.Policy) error {
	if f.hasIdentity() {
		p.Identities = []signing.Identity{{Issuer: f.Issuer, Subject: f.Identity, SubjectPrefix: f.IdentityPrefix, SubjectRegexp: f.IdentityRegexp}}
	}
	p.Evidence = signing.Evidence{Timestamps: f.Timestamps, Tlog: f.Tlog, NoSCT: f.IgnoreSCT}
	p.Annotations, p.Mirrors = f.Annotations, f.Mirrors
	if f.TrustedRoot != "" {
		root, err := readTrustedRoot(f.TrustedRoot)
		if err != nil {
			return err
		}
		p.Root = root
	}
	return nil
}

func readTrustedRoot(file string) (*signing.TrustedRoot, error) {
	data, err := readLimited(file, maxSigstoreBytes)
	if err != nil {
		return nil, fmt.Errorf("reading --trusted-root: %w", err)
	}
	root, err := signing.LoadTrustedRoot(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return root, nil
}

// readLimited reads a file of at most limit bytes.
func readLimited(file string, limit int64) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("%s: more than %d bytes", file, limit)
	}
	return data, nil
}

func cutEnvRef(ref string) (string, bool) {
	const scheme = "env://"
	if len(ref) > len(scheme) && ref[:len(scheme)] == scheme {
		return ref[len(scheme):], true
	}
	return "", false
}
