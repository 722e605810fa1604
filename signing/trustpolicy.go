package signing

import (
	"cmp"
	"crypto/x509"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/sigstore/sigstore-go/pkg/fulcio/certificate"

	"github.com/krmcat/krmcat/internal/yamlpos"
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
	Metadata   TrustMetadata   `json:"metadata,omitzero"`
	Spec       TrustPolicySpec `json:"spec"`

	authorities map[string]*authority
	signers     map[string]*TrustSigner
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
	Revoked TrustRevoked `json:"revoked,omitzero"`
	// Mirrors are other places that hold content of repositories, which
	// rules and signatures know by their original names.
	Mirrors []TrustMirror `json:"mirrors,omitempty"`
	// LocalFiles accepts programs and scripts of this machine that documents
	// name, which nobody can have signed. What the user names on the command
	// line needs no permission here.
	LocalFiles bool `json:"localFiles,omitempty"`
}

// TrustRoot names a Sigstore trusted_root.json.
type TrustRoot struct {
	Name        string `json:"name"`
	TrustedRoot string `json:"trustedRoot"` // path, relative to the policy
}

// TrustSigner is one signer, by exactly one of Key and Keyless.
type TrustSigner struct {
	Name    string        `json:"name"`
	Key     *TrustKey     `json:"key,omitempty"`
	Keyless *TrustKeyless `json:"keyless,omitempty"`
	// Annotations have to be among those that this signer signed.
	Annotations map[string]string `json:"annotations,omitempty"`
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
	Evidence  TrustEvidence `json:"evidence,omitzero"`
}

// TrustKeyless is a certificate's identity.
type TrustKeyless struct {
	Root    string     `json:"root"`
	Issuer  string     `json:"issuer"`
	Subject TrustMatch `json:"subject"`
	// SourceRepository is the URL of the repository that a CI job ran for,
	// as the certificate says it. With workflows that others may call, the
	// subject names the workflow, and only this says who called it.
	SourceRepository *TrustMatch   `json:"sourceRepository,omitempty"`
	Evidence         TrustEvidence `json:"evidence"`
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

// TrustRule says what artifacts in a scope need: whoever signed, all that is
// required besides, and what functions may be granted at most.
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
	// CoversRuntimes accepts, with a document in the scope, the images,
	// executables and scripts that it names by digest, wherever they are.
	// Left out, each of them needs a signature that its own rule accepts.
	CoversRuntimes bool `json:"coversRuntimes,omitempty"`

	minimumAge time.Duration
}

// TrustSignatures says whose signatures are needed: those of all signers in
// AllOf, and of Threshold in AnyOf. Nobody counts twice, neither a signer with
// two signatures nor a key or a certificate's identity that fits two signers.
type TrustSignatures struct {
	AllOf []string `json:"allOf,omitempty"`
	AnyOf []string `json:"anyOf,omitempty"`
	// Threshold is how many of AnyOf are needed; zero means one.
	Threshold int `json:"threshold,omitempty"`
}

// needed is how many of AnyOf are needed.
func (s TrustSignatures) needed() int {
	if len(s.AnyOf) == 0 {
		return 0
	}
	return max(1, s.Threshold)
}

// TrustAttestation is an attestation that is needed.
type TrustAttestation struct {
	PredicateType string            `json:"predicateType"` // a URI or a short name
	AnyOf         []string          `json:"anyOf"`
	Require       map[string]string `json:"require,omitempty"` // top-level fields of the predicate
}

// TrustRevoked is what is not trusted any more.
type TrustRevoked struct {
	// Digests are of artifacts, and of the executables and scripts in them.
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
// or later. A policy with mistakes, or one that would accept what nobody can
// have meant, is a [*TrustPolicyError] with all of them.
func LoadTrustPolicy(data []byte, files fs.FS) (*TrustPolicy, error) {
	doc, mistakes := readTrustDocument(data)
	if len(mistakes) > 0 {
		return nil, &TrustPolicyError{Mistakes: mistakes}
	}
	p := &TrustPolicy{}
	l := &policyLoader{policy: p, doc: doc, files: files, roots: map[string]*TrustedRoot{}}
	// Strict: a misspelt field would weaken the policy.
	for _, pr := range doc.Decode(p) {
		l.add(pr)
	}
	if len(l.mistakes) == 0 {
		l.load()
	}
	if len(l.mistakes) > 0 {
		slices.SortStableFunc(l.mistakes, func(a, b TrustPolicyMistake) int {
			return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
		})
		return nil, &TrustPolicyError{Mistakes: l.mistakes}
	}
	return p, nil
}

// TrustPolicyError lists the mistakes in a trust policy.
type TrustPolicyError struct {
	// File is what messages call the policy; it may be set by callers.
	File     string
	Mistakes []TrustPolicyMistake // in the order of their places; never empty
}

// TrustPolicyMistake is one mistake and its place, from 1, columns in runes.
type TrustPolicyMistake struct {
	Line, Column int
	Width        int    // in runes
	Path         string // such as spec.rules[0].scope; empty for the document itself
	Message      string
	Fix          string // may be empty
}

// Error is one line for each mistake: file:line:column: path: message (fix).
func (e *TrustPolicyError) Error() string {
	file := e.File
	if file == "" {
		file = "trust policy"
	}
	var b strings.Builder
	for i, m := range e.Mistakes {
		if i > 0 {
			b.WriteByte('\n')
		}
		fmt.Fprintf(&b, "%s:%d:%d: ", file, m.Line, m.Column)
		if m.Path != "" {
			b.WriteString(m.Path + ": ")
		}
		b.WriteString(m.Message)
		if m.Fix != "" {
			fmt.Fprintf(&b, " (%s)", m.Fix)
		}
	}
	return b.String()
}

// readTrustDocument parses the one document of a policy.
func readTrustDocument(data []byte) (*yamlpos.Document, []TrustPolicyMistake) {
	// A policy is written by hand; nothing in it nests deep or is repeated.
	f, problems := yamlpos.Parse("trust policy", data, yamlpos.Limits{Bytes: maxTrustPolicyBytes, Depth: 20, Documents: 2, Values: 100_000, Expanded: 1000, Problems: 100})
	var mistakes []TrustPolicyMistake
	for _, p := range problems {
		m := TrustPolicyMistake{Line: p.Line, Column: p.Column, Width: p.Width, Message: p.Message, Fix: p.Fix}
		if len(p.Path) > 0 && len(f.Documents) > 0 {
			m.Path = yamlpos.Path(f.Documents[0].Value, p.Path)
		}
		mistakes = append(mistakes, m)
	}
	switch {
	case len(mistakes) > 0:
		return nil, mistakes
	case len(f.Documents) == 0:
		return nil, []TrustPolicyMistake{{Line: 1, Column: 1, Message: "there is no document", Fix: "krmcat trust init writes one to start from"}}
	case len(f.Documents) > 1:
		return nil, []TrustPolicyMistake{{Line: f.Documents[1].Line, Column: 1, Message: "a second document", Fix: "put all rules into one policy"}}
	}
	return f.Documents[0], nil
}

// expected says in a message whose signature is waited for.
func (p *TrustPolicy) expected(names []string) []string {
	var list []string
	for _, n := range names {
		s, a := p.signers[n], p.authorities[n]
		if s == nil || a == nil {
			continue
		}
		text := n + ": key " + a.fingerprint
		if s.Keyless != nil {
			text = n + ": " + a.identity.String()
			if r := s.Keyless.SourceRepository; r != nil {
				text += " for the repository " + r.String()
			}
		}
		if p.isRevoked(n) {
			text += " (revoked)"
		}
		list = append(list, text)
	}
	return list
}

func (k *TrustKeyless) identity() Identity {
	return Identity{Issuer: k.Issuer, Subject: k.Subject.Equal, SubjectPrefix: k.Subject.Prefix, SubjectRegexp: k.Subject.Regexp}
}

// String is the match for messages.
func (m TrustMatch) String() string {
	switch {
	case m.Prefix != "":
		return m.Prefix + "…"
	case m.Regexp != "":
		return "/" + m.Regexp + "/"
	}
	return m.Equal
}

// matches compares a text; a match without any field matches nothing.
func (m TrustMatch) matches(s string) bool {
	switch {
	case s == "":
		return false
	case m.Equal != "":
		return s == m.Equal
	case m.Prefix != "":
		return strings.HasPrefix(s, m.Prefix)
	case m.Regexp != "":
		re, err := regexp.Compile(`^(?:` + m.Regexp + `)$`)
		return err == nil && re.MatchString(s)
	}
	return false
}

// githubIssuer is where GitHub's CI jobs get their identity tokens.
const githubIssuer = "https://token.actions.githubusercontent.com"

// sourceRepository is the repository that a CI job ran for, as its certificate
// says. GitHub's older certificates have only the name of it.
func sourceRepository(cert *x509.Certificate) string {
	if cert == nil {
		return ""
	}
	s, err := certificate.SummarizeCertificate(cert)
	if err != nil {
		return ""
	}
	if s.SourceRepositoryURI == "" && s.Extensions.Issuer == githubIssuer && s.GithubWorkflowRepository != "" {
		return "https://github.com/" + s.GithubWorkflowRepository
	}
	return s.SourceRepositoryURI
}

// scopePattern is a registry's host, a repository and, for everything below,
// two stars.
var scopePattern = regexp.MustCompile(`^([a-z0-9][a-z0-9.-]*|\[[0-9a-f:]+\])(:[0-9]+)?(/[a-z0-9]+([._-]+[a-z0-9]+)*)*(/\*\*)?$`)

func checkScope(s string) error {
	host, _, _ := strings.Cut(s, "/")
	switch {
	case !scopePattern.MatchString(s):
		return fmt.Errorf("scope %q: write host/repository, or host/prefix/** for everything below", s)
	case !strings.ContainsAny(host, ".:") && host != "localhost":
		return fmt.Errorf("scope %q: %q is no registry host, so nothing can match", s, host)
	}
	return nil
}

// Rule returns the rule for a repository: the one with the longest matching
// scope. Scopes are compared by whole segments, and one without stars goes
// before all others. Nil means that no rule is about it, so nothing is accepted
// there.
func (p *TrustPolicy) Rule(repository string) *TrustRule {
	var best *TrustRule
	longest := -1
	for i := range p.Spec.Rules {
		r := &p.Spec.Rules[i]
		base, below := strings.CutSuffix(r.Scope, "/**")
		switch {
		case !below && repository == base:
			return r
		case below && strings.HasPrefix(repository, base+"/") && len(base) > longest:
			best, longest = r, len(base)
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
