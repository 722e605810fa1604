package signing

import (
	"crypto"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	"sigs.k8s.io/yaml"
)

// Names of the trust policy document.
const (
	TrustPolicyAPIVersion = "krmcat.dev/v1alpha1"
	TrustPolicyKind       = "TrustPolicy"

	maxTrustPolicyBytes = 1 << 20
)

// TrustPolicy is a document that says whose signatures are needed for which
// artifacts. Read it with [LoadTrustPolicy]. It is safe for concurrent use.
type TrustPolicy struct {
	APIVersion string          `json:"apiVersion"`
	Kind       string          `json:"kind"`
	Metadata   TrustMetadata   `json:"metadata,omitempty"`
	Spec       TrustPolicySpec `json:"spec"`

	authorities map[string]*authority
}

// TrustMetadata names a document.
type TrustMetadata struct {
	Name        string            `json:"name,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// TrustPolicySpec is the content of a trust policy.
type TrustPolicySpec struct {
	// Roots name files; nothing is fetched when verifying.
	Roots []TrustRoot `json:"roots,omitempty"`
	// Signers give names to who signs.
	Signers []TrustSigner `json:"signers,omitempty"`
	// Rules say what is needed; the longest matching scope applies alone.
	// What no rule is about is denied.
	Rules []TrustRule `json:"rules,omitempty"`
	// Revoked is what is not trusted any more, whatever the rules say.
	Revoked TrustRevoked `json:"revoked,omitempty"`
	// Mirrors are other places that hold content of repositories, which
	// rules and signatures know by their original names.
	Mirrors []TrustMirror `json:"mirrors,omitempty"`
}

// TrustRoot names a Sigstore trusted_root.json.
type TrustRoot struct {
	Name        string `json:"name"`
	TrustedRoot string `json:"trustedRoot"` // path, relative to the policy
}

// TrustSigner is one signer; exactly one of its fields besides the name.
type TrustSigner struct {
	Name    string        `json:"name"`
	Key     *TrustKey     `json:"key,omitempty"`
	Keyless *TrustKeyless `json:"keyless,omitempty"`
}

// TrustKey is a public key.
type TrustKey struct {
	// PublicKey is PEM text, or a path relative to the policy.
	PublicKey string `json:"publicKey"`
	Root      string `json:"root,omitempty"`
	// NotBefore and NotAfter bound when signatures were made. They need
	// evidence of the time.
	NotBefore *time.Time    `json:"notBefore,omitempty"`
	NotAfter  *time.Time    `json:"notAfter,omitempty"`
	Evidence  TrustEvidence `json:"evidence,omitempty"`
}

// TrustKeyless is a certificate's identity.
type TrustKeyless struct {
	Root     string        `json:"root"`
	Issuer   string        `json:"issuer"`
	Subject  TrustMatch    `json:"subject"`
	Evidence TrustEvidence `json:"evidence"`
}

// TrustMatch matches a subject; exactly one field.
type TrustMatch struct {
	Equal  string `json:"equal,omitempty"`
	Prefix string `json:"prefix,omitempty"` // ends in / or @
	Regexp string `json:"regexp,omitempty"` // matches all of it
}

// TrustEvidence is what has to vouch for a signature.
type TrustEvidence struct {
	Timestamps int  `json:"timestamps,omitempty"` // timestamp authorities
	Tlog       int  `json:"tlog,omitempty"`       // transparency logs
	SCT        *int `json:"sct,omitempty"`        // certificate logs: 1, or 0 for none; keyless only
}

// TrustRule says what artifacts in a scope need.
type TrustRule struct {
	// Scope is host/repository, or host/prefix/** for everything below.
	Scope string `json:"scope"`
	// Signatures says whose signatures are needed.
	Signatures TrustSignatures `json:"signatures"`
	// Annotations have to be signed along, in each signature that counts.
	Annotations map[string]string `json:"annotations,omitempty"`
	// Attestations are needed as well, each of them.
	Attestations []TrustAttestation `json:"attestations,omitempty"`
	// Legacy lets signatures of the older format count.
	Legacy bool `json:"legacy,omitempty"`
	// MinimumAge is how long ago signatures have to have been made, such as
	// 72h; signers need evidence of the time for that.
	MinimumAge string `json:"minimumAge,omitempty"`
	// Capabilities is the most that functions in the scope are granted. Left
	// out, the policy says nothing about them.
	Capabilities *TrustCapabilities `json:"capabilities,omitempty"`

	minimumAge time.Duration
}

// TrustSignatures are alternatives.
type TrustSignatures struct {
	AnyOf []string `json:"anyOf"`
	// Threshold is how many different signers are needed; zero means one.
	Threshold int `json:"threshold,omitempty"`
}

// TrustAttestation is an attestation that is needed.
type TrustAttestation struct {
	PredicateType string            `json:"predicateType"` // a URI or a short name
	AnyOf         []string          `json:"anyOf"`
	Require       map[string]string `json:"require,omitempty"` // top-level fields of the predicate
}

// TrustCapabilities is a ceiling for what functions may be granted.
type TrustCapabilities struct {
	Exec    bool `json:"exec,omitempty"`
	Network bool `json:"network,omitempty"`
	Storage bool `json:"storage,omitempty"`
}

// TrustRevoked is what is not trusted any more.
type TrustRevoked struct {
	Digests []digest.Digest `json:"digests,omitempty"`
	Signers []string        `json:"signers,omitempty"`
	// Keys are fingerprints, as krmcat prints them.
	Keys []string `json:"keys,omitempty"`
}

// TrustMirror says that everything below one name is a copy of what is below
// the other.
type TrustMirror struct {
	Mirror   string `json:"mirror"`
	Original string `json:"original"`
}

// LoadTrustPolicy reads a trust policy. Files that it names are opened in
// files, which holds the folder of the policy. Nothing else is looked up, then
// or later. Errors name every mistake that is found, joined.
func LoadTrustPolicy(data []byte, files fs.FS) (*TrustPolicy, error) {
	if len(data) > maxTrustPolicyBytes {
		return nil, fmt.Errorf("trust policy: more than %d bytes", maxTrustPolicyBytes)
	}
	p := &TrustPolicy{}
	// Strict: a misspelt field would weaken the policy.
	if err := yaml.UnmarshalStrict(data, p); err != nil {
		return nil, fmt.Errorf("trust policy: %w", err)
	}
	if p.APIVersion != TrustPolicyAPIVersion || p.Kind != TrustPolicyKind {
		return nil, fmt.Errorf("trust policy: is %s %s, not %s %s", p.APIVersion, p.Kind, TrustPolicyAPIVersion, TrustPolicyKind)
	}
	l := &policyLoader{policy: p, files: files, roots: map[string]*TrustedRoot{}}
	l.load()
	if len(l.errs) > 0 {
		return nil, fmt.Errorf("trust policy: %w", errors.Join(l.errs...))
	}
	return p, nil
}

// policyLoader checks a policy and collects mistakes.
type policyLoader struct {
	policy *TrustPolicy
	files  fs.FS
	roots  map[string]*TrustedRoot
	errs   []error
}

func (l *policyLoader) errf(format string, a ...any) {
	l.errs = append(l.errs, fmt.Errorf(format, a...))
}

func (l *policyLoader) load() {
	for _, r := range l.policy.Spec.Roots {
		l.root(r)
	}
	l.policy.authorities = map[string]*authority{}
	keys := map[string]string{}
	for _, s := range l.policy.Spec.Signers {
		a := l.signer(s)
		if a == nil {
			continue
		}
		l.policy.authorities[s.Name] = a
		// Two names for one key would satisfy a threshold of two.
		if a.key != nil {
			if other, ok := keys[a.fingerprint]; ok {
				l.errf("signers %s and %s have the same key", other, s.Name)
			}
			keys[a.fingerprint] = s.Name
		}
	}
	scopes := map[string]bool{}
	for i := range l.policy.Spec.Rules {
		r := &l.policy.Spec.Rules[i]
		if scopes[r.Scope] {
			l.errf("scope %s: two rules", r.Scope)
		}
		scopes[r.Scope] = true
		l.rule(r)
	}
	l.revoked()
	for _, m := range l.policy.Spec.Mirrors {
		for _, name := range []string{m.Mirror, m.Original} {
			if err := checkScope(name); err != nil || strings.Contains(name, "*") {
				l.errf("mirror of %q: %q is not a host or a repository", m.Original, name)
			}
		}
	}
}

func (l *policyLoader) root(r TrustRoot) {
	if _, ok := l.roots[r.Name]; ok || r.Name == "" {
		l.errf("root %q: a name of its own is required", r.Name)
		return
	}
	l.roots[r.Name] = nil
	data, err := l.read(r.TrustedRoot, maxRootBytes)
	if err != nil {
		l.errf("root %s: %w", r.Name, err)
		return
	}
	root, err := LoadTrustedRoot(data)
	if err != nil {
		l.errf("root %s: %w", r.Name, err)
		return
	}
	l.roots[r.Name] = root
}

// read reads a file beside the policy.
func (l *policyLoader) read(name string, limit int64) ([]byte, error) {
	if l.files == nil {
		return nil, fmt.Errorf("%s: this policy cannot name files", name)
	}
	f, err := l.files.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", name, err)
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("%s: more than %d bytes", name, limit)
	}
	return data, nil
}

// signer makes a signer ready, or notes why it cannot.
func (l *policyLoader) signer(s TrustSigner) *authority {
	if _, ok := l.policy.authorities[s.Name]; ok || s.Name == "" {
		l.errf("signer %q: a name of its own is required", s.Name)
		return nil
	}
	if (s.Key == nil) == (s.Keyless == nil) {
		l.errf("signer %s: exactly one of key and keyless is required", s.Name)
		return nil
	}
	a := &authority{name: s.Name}
	var rootName string
	var ev TrustEvidence
	if k := s.Key; k != nil {
		rootName, ev = k.Root, k.Evidence
		if ev.SCT != nil {
			l.errf("signer %s: evidence.sct is about certificates, and a key has none", s.Name)
			return nil
		}
		key, err := l.key(k.PublicKey)
		if err != nil {
			l.errf("signer %s: %w", s.Name, err)
			return nil
		}
		a.key = key
		if k.NotBefore != nil {
			a.notBefore = *k.NotBefore
		}
		if k.NotAfter != nil {
			a.notAfter = *k.NotAfter
		}
	} else {
		k := s.Keyless
		rootName, ev = k.Root, k.Evidence
		a.identity = Identity{Issuer: k.Issuer, Subject: k.Subject.Equal, SubjectPrefix: k.Subject.Prefix, SubjectRegexp: k.Subject.Regexp}
		if ev.Timestamps+ev.Tlog == 0 {
			l.errf("signer %s: a certificate is valid for minutes; require evidence.timestamps or evidence.tlog", s.Name)
			return nil
		}
		if ev.SCT != nil {
			if *ev.SCT < 0 || *ev.SCT > 1 {
				l.errf("signer %s: evidence.sct is 0 or 1", s.Name)
				return nil
			}
			a.evidence.NoSCT = *ev.SCT == 0
		}
	}
	if ev.Timestamps < 0 || ev.Tlog < 0 {
		l.errf("signer %s: evidence cannot be negative", s.Name)
		return nil
	}
	a.evidence.Timestamps, a.evidence.Tlog = ev.Timestamps, ev.Tlog
	if rootName != "" {
		root, ok := l.roots[rootName]
		if !ok {
			l.errf("signer %s: there is no root %s", s.Name, rootName)
			return nil
		}
		if root == nil {
			return nil // its own mistake is noted
		}
		a.root = root.material
	}
	if err := a.prepare(); err != nil {
		l.errf("signer %s: %w", s.Name, err)
		return nil
	}
	return a
}

func (l *policyLoader) key(text string) (crypto.PublicKey, error) {
	data := []byte(text)
	if !strings.Contains(text, "-----BEGIN") {
		var err error
		if data, err = l.read(text, maxKeyBytes); err != nil {
			return nil, err
		}
	}
	return LoadPublicKey(data)
}

func (l *policyLoader) rule(r *TrustRule) {
	if err := checkScope(r.Scope); err != nil {
		l.errs = append(l.errs, err)
	}
	l.names("scope "+r.Scope, r.Signatures.AnyOf)
	if t := r.Signatures.Threshold; t < 0 || t > len(r.Signatures.AnyOf) {
		l.errf("scope %s: %d signers are needed, but %d are named", r.Scope, t, len(r.Signatures.AnyOf))
	}
	for i := range r.Attestations {
		a := &r.Attestations[i]
		uri, err := PredicateType(a.PredicateType)
		if err != nil {
			l.errf("scope %s: %w", r.Scope, err)
			continue
		}
		a.PredicateType = uri
		l.names("scope "+r.Scope+": attestation "+uri, a.AnyOf)
	}
	if r.MinimumAge != "" {
		d, err := time.ParseDuration(r.MinimumAge)
		if err != nil || d < 0 {
			l.errf("scope %s: minimumAge %q: write a duration such as 72h", r.Scope, r.MinimumAge)
		}
		r.minimumAge = d
		for _, n := range r.Signatures.AnyOf {
			if a := l.policy.authorities[n]; a != nil && a.evidence.Timestamps+a.evidence.Tlog == 0 {
				l.errf("scope %s: minimumAge needs evidence of the time, and signer %s requires none", r.Scope, n)
			}
		}
	}
}

// names checks that signers are there and differ.
func (l *policyLoader) names(where string, names []string) {
	if len(names) == 0 {
		l.errf("%s: name at least one signer in anyOf", where)
	}
	for i, n := range names {
		if !slices.ContainsFunc(l.policy.Spec.Signers, func(s TrustSigner) bool { return s.Name == n }) {
			l.errf("%s: there is no signer %s", where, n)
		}
		if slices.Contains(names[:i], n) {
			l.errf("%s: signer %s twice", where, n)
		}
	}
}

func (l *policyLoader) revoked() {
	for _, d := range l.policy.Spec.Revoked.Digests {
		if err := d.Validate(); err != nil {
			l.errf("revoked digest %q: %w", d, err)
		}
	}
	for _, k := range l.policy.Spec.Revoked.Keys {
		if err := digest.Digest(k).Validate(); err != nil {
			l.errf("revoked key %q: write the fingerprint, sha256:…", k)
		}
	}
	for _, n := range l.policy.Spec.Revoked.Signers {
		if !slices.ContainsFunc(l.policy.Spec.Signers, func(s TrustSigner) bool { return s.Name == n }) {
			l.errf("revoked signer %s: there is none of that name", n)
		}
	}
}

var scopePattern = regexp.MustCompile(`^[a-z0-9.-]+(:[0-9]+)?(/[a-z0-9]+([._-]+[a-z0-9]+)*)*(/\*\*)?$`)

func checkScope(s string) error {
	if !scopePattern.MatchString(s) {
		return fmt.Errorf("scope %q: write host/repository, or host/prefix/** for everything below", s)
	}
	return nil
}

// Rule returns the rule for a repository: the one with the longest matching
// scope. Scopes are compared by whole segments. Nil means that no rule is
// about it, so nothing is accepted there.
func (p *TrustPolicy) Rule(repository string) *TrustRule {
	var best *TrustRule
	for i := range p.Spec.Rules {
		r := &p.Spec.Rules[i]
		base, below := strings.CutSuffix(r.Scope, "/**")
		if repository != r.Scope && !(below && strings.HasPrefix(repository, base+"/")) {
			continue
		}
		// An exact scope is longer than /** of its parent, always.
		if best == nil || len(r.Scope) > len(best.Scope) {
			best = r
		}
	}
	return best
}

// original is the name that a repository's content was published under.
func (p *TrustPolicy) original(repository string) string {
	best := TrustMirror{}
	for _, m := range p.Spec.Mirrors {
		if (repository == m.Mirror || strings.HasPrefix(repository, m.Mirror+"/")) && len(m.Mirror) > len(best.Mirror) {
			best = m
		}
	}
	if best.Mirror == "" {
		return repository
	}
	return best.Original + strings.TrimPrefix(repository, best.Mirror)
}
