package signing

import (
	"crypto"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/krmcat/krmcat/internal/yamlpos"
)

// policyLoader checks a policy and collects mistakes.
type policyLoader struct {
	policy   *TrustPolicy
	doc      *yamlpos.Document
	files    fs.FS
	roots    map[string]*TrustedRoot
	mistakes []TrustPolicyMistake
}

func (l *policyLoader) add(p yamlpos.Problem) {
	m := TrustPolicyMistake{Line: p.Line, Column: p.Column, Width: p.Width, Message: p.Message, Fix: p.Fix}
	if len(p.Path) > 0 {
		m.Path = yamlpos.Path(l.doc.Value, p.Path)
	}
	l.mistakes = append(l.mistakes, m)
}

// place is where a value stands in the policy.
type place []string

func (p place) at(more ...any) place {
	q := slices.Clone(p)
	for _, m := range more {
		q = append(q, fmt.Sprint(m))
	}
	return q
}

func (l *policyLoader) errf(at place, format string, a ...any) {
	l.add(l.doc.ProblemAt(at, yamlpos.Type, false, "", format, a...))
}

func (l *policyLoader) load() {
	p := l.policy
	if p.APIVersion != TrustPolicyAPIVersion || p.Kind != TrustPolicyKind {
		l.errf(place{}, "is %s %s, not %s %s", p.APIVersion, p.Kind, TrustPolicyAPIVersion, TrustPolicyKind)
		return
	}
	spec := place{"spec"}
	for i, r := range p.Spec.Roots {
		l.root(spec.at("roots", i), r)
	}
	l.signers(spec.at("signers"))
	scopes := map[string]bool{}
	for i := range p.Spec.Rules {
		r := &p.Spec.Rules[i]
		at := spec.at("rules", i)
		if scopes[r.Scope] {
			l.errf(at.at("scope"), "scope %s: two rules; put them into one", r.Scope)
		}
		scopes[r.Scope] = true
		l.rule(at, r)
	}
	l.revoked(spec.at("revoked"))
	mirrors := map[string]bool{}
	for i, m := range p.Spec.Mirrors {
		for field, name := range map[string]string{"mirror": m.Mirror, "original": m.Original} {
			if err := checkScope(name); err != nil || strings.Contains(name, "*") {
				l.errf(spec.at("mirrors", i, field), "mirror of %q: %q is not a host or a repository", m.Original, name)
			}
		}
		if mirrors[m.Mirror] {
			l.errf(spec.at("mirrors", i, "mirror"), "mirror %s: it cannot hold copies of two repositories", m.Mirror)
		}
		mirrors[m.Mirror] = true
	}
}

func (l *policyLoader) root(at place, r TrustRoot) {
	if _, ok := l.roots[r.Name]; ok || r.Name == "" {
		l.errf(at.at("name"), "root %q: a name of its own is required", r.Name)
		return
	}
	l.roots[r.Name] = nil
	data, err := l.read(r.TrustedRoot, maxRootBytes)
	if err != nil {
		l.errf(at.at("trustedRoot"), "root %s: %v", r.Name, err)
		return
	}
	root, err := LoadTrustedRoot(data)
	if err != nil {
		l.errf(at.at("trustedRoot"), "root %s: %v", r.Name, err)
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

// signers makes all signers ready, and finds those that are the same.
func (l *policyLoader) signers(at place) {
	p := l.policy
	p.authorities = map[string]*authority{}
	p.signers = map[string]*TrustSigner{}
	keys := map[string]string{}
	identities := map[string]string{}
	for i := range p.Spec.Signers {
		s := &p.Spec.Signers[i]
		at := at.at(i)
		a := l.signer(at, s)
		if a == nil {
			continue
		}
		p.authorities[s.Name] = a
		p.signers[s.Name] = s
		// Two names for one signer would satisfy a threshold of two.
		if a.key != nil {
			if other, ok := keys[a.fingerprint]; ok {
				l.errf(at.at("key", "publicKey"), "signers %s and %s have the same key", other, s.Name)
			}
			keys[a.fingerprint] = s.Name
			continue
		}
		same := fmt.Sprintf("%s\x00%+v\x00%+v", s.Keyless.Issuer, s.Keyless.Subject, s.Keyless.sourceRepository())
		if other, ok := identities[same]; ok {
			l.errf(at.at("keyless", "subject"), "signers %s and %s have the same identity", other, s.Name)
		}
		identities[same] = s.Name
	}
}

func (k *TrustKeyless) sourceRepository() TrustMatch {
	if k.SourceRepository == nil {
		return TrustMatch{}
	}
	return *k.SourceRepository
}

// signer makes a signer ready, or notes why it cannot.
func (l *policyLoader) signer(at place, s *TrustSigner) *authority {
	if _, ok := l.policy.authorities[s.Name]; ok || s.Name == "" {
		l.errf(at.at("name"), "signer %q: a name of its own is required", s.Name)
		return nil
	}
	if (s.Key == nil) == (s.Keyless == nil) {
		l.errf(at, "signer %s: exactly one of key and keyless is required", s.Name)
		return nil
	}
	a := &authority{name: s.Name}
	var rootName string
	var ev TrustEvidence
	if k := s.Key; k != nil {
		at = at.at("key")
		rootName, ev = k.Root, k.Evidence
		if ev.SCT != nil {
			l.errf(at.at("evidence", "sct"), "signer %s: evidence.sct is about certificates, and a key has none", s.Name)
			return nil
		}
		key, err := l.key(k.PublicKey)
		if err != nil {
			l.errf(at.at("publicKey"), "signer %s: %v", s.Name, err)
			return nil
		}
		a.key = key
		if k.NotBefore != nil {
			a.notBefore = *k.NotBefore
		}
		if k.NotAfter != nil {
			a.notAfter = *k.NotAfter
		}
		if k.NotBefore != nil && k.NotAfter != nil && !k.NotBefore.Before(*k.NotAfter) {
			l.errf(at.at("notAfter"), "signer %s: the key would be valid at no time", s.Name)
			return nil
		}
	} else {
		k := s.Keyless
		at = at.at("keyless")
		rootName, ev = k.Root, k.Evidence
		a.identity = k.identity()
		if ev.Timestamps+ev.Tlog == 0 {
			l.errf(at.at("evidence"), "signer %s: a certificate is valid for minutes; require evidence.timestamps or evidence.tlog", s.Name)
			return nil
		}
		if ev.SCT != nil {
			if *ev.SCT < 0 || *ev.SCT > 1 {
				l.errf(at.at("evidence", "sct"), "signer %s: evidence.sct is 0 or 1", s.Name)
				return nil
			}
			a.evidence.NoSCT = *ev.SCT == 0
		}
		if !l.identity(at, s) {
			return nil
		}
	}
	if ev.Timestamps < 0 || ev.Tlog < 0 {
		l.errf(at.at("evidence"), "signer %s: evidence cannot be negative", s.Name)
		return nil
	}
	a.evidence.Timestamps, a.evidence.Tlog = ev.Timestamps, ev.Tlog
	if rootName != "" {
		root, ok := l.roots[rootName]
		if !ok {
			l.errf(at.at("root"), "signer %s: there is no root %s", s.Name, rootName)
			return nil
		}
		if root == nil {
			return nil // its own mistake is noted
		}
		a.root = root.material
	}
	if err := a.prepare(); err != nil {
		l.errf(at, "signer %s: %v", s.Name, err)
		return nil
	}
	return a
}

// identity finds identities that say nothing, or that everybody has.
func (l *policyLoader) identity(at place, s *TrustSigner) bool {
	k := s.Keyless
	if err := k.identity().validate(); err != nil {
		l.errf(at.at("subject"), "signer %s: %v", s.Name, err)
		return false
	}
	if why := k.Subject.tooWide(); why != "" && k.SourceRepository == nil {
		l.errf(at.at("subject"), "signer %s: %s; name whose it is", s.Name, why)
		return false
	}
	r := k.SourceRepository
	if r == nil {
		return true
	}
	if err := (Identity{Issuer: k.Issuer, Subject: r.Equal, SubjectPrefix: r.Prefix, SubjectRegexp: r.Regexp}).validate(); err != nil {
		l.errf(at.at("sourceRepository"), "signer %s: source repository: %v", s.Name, err)
		return false
	}
	if why := r.tooWide(); why != "" {
		l.errf(at.at("sourceRepository"), "signer %s: %s; name whose it is", s.Name, why)
		return false
	}
	return true
}

// probes are subjects of people and jobs that have nothing in common.
var probes = []string{"", "mallory@mallory.invalid", "https://ci.mallory.invalid/mallory/x", "https://github.com/mallory/x/.github/workflows/y.yml@refs/heads/z", "https://gitlab.com/mallory/x//y.yml@refs/heads/z"}

// tooWide says why a match would accept everybody whom the issuer knows.
func (m TrustMatch) tooWide() string {
	switch {
	case m.Prefix != "":
		u, err := url.Parse(m.Prefix)
		if err != nil || u.Scheme == "" || !strings.Contains(m.Prefix, "://") {
			// A name with every domain behind it.
			return fmt.Sprintf("the prefix %q is not that of a URL", m.Prefix)
		}
		if strings.Trim(u.Path, "/@") == "" {
			return fmt.Sprintf("the prefix %q is the beginning of everybody's URL there", m.Prefix)
		}
	case m.Regexp != "":
		re, err := regexp.Compile(`^(?:` + m.Regexp + `)$`)
		if err != nil {
			return err.Error()
		}
		for _, p := range probes {
			if re.MatchString(p) {
				return fmt.Sprintf("the expression %q matches everybody, for example %q", m.Regexp, p)
			}
		}
	}
	return ""
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

func (l *policyLoader) rule(at place, r *TrustRule) {
	if err := checkScope(r.Scope); err != nil {
		l.errf(at.at("scope"), "%v", err)
	}
	s := r.Signatures
	where := "scope " + r.Scope
	if len(s.AllOf)+len(s.AnyOf) == 0 {
		l.errf(at.at("signatures"), "%s: name at least one signer in anyOf, or in allOf", where)
	}
	l.names(at.at("signatures", "allOf"), where, s.AllOf, nil)
	l.names(at.at("signatures", "anyOf"), where, s.AnyOf, s.AllOf)
	switch t := s.Threshold; {
	case t < 0, t > len(s.AnyOf):
		l.errf(at.at("signatures", "threshold"), "%s: %d signers are needed, but %d are named", where, t, len(s.AnyOf))
	}
	for i := range r.Attestations {
		a := &r.Attestations[i]
		at := at.at("attestations", i)
		uri, err := PredicateType(a.PredicateType)
		if err != nil {
			l.errf(at.at("predicateType"), "%s: %v", where, err)
			continue
		}
		a.PredicateType = uri
		if len(a.AnyOf) == 0 {
			l.errf(at.at("anyOf"), "%s: attestation %s: name at least one signer in anyOf", where, uri)
		}
		l.names(at.at("anyOf"), where+": attestation "+uri, a.AnyOf, nil)
	}
	if r.MinimumAge != "" {
		l.minimumAge(at, r)
	}
	if c := r.Capabilities; c != nil {
		l.capabilities(at.at("capabilities"), where, c)
	}
}

func (l *policyLoader) minimumAge(at place, r *TrustRule) {
	d, err := time.ParseDuration(r.MinimumAge)
	if err != nil || d <= 0 {
		l.errf(at.at("minimumAge"), "scope %s: minimumAge %q: write a duration such as 72h", r.Scope, r.MinimumAge)
	}
	r.minimumAge = d
	for _, n := range slices.Concat(r.Signatures.AllOf, r.Signatures.AnyOf) {
		if a := l.policy.authorities[n]; a != nil && a.evidence.Timestamps+a.evidence.Tlog == 0 {
			l.errf(at.at("minimumAge"), "scope %s: minimumAge needs evidence of the time, and signer %s requires none", r.Scope, n)
		}
	}
}

var variableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

func (l *policyLoader) capabilities(at place, where string, c *TrustCapabilities) {
	if c.Write && !c.Storage {
		l.errf(at.at("write"), "%s: write needs storage", where)
	}
	for i, v := range c.Env {
		if !variableName.MatchString(v) {
			l.errf(at.at("env", i), "%s: %s is not the name of a variable", where, strconv.Quote(v))
		}
	}
}

// names checks that signers are there and differ.
func (l *policyLoader) names(at place, where string, names, before []string) {
	for i, n := range names {
		if !slices.ContainsFunc(l.policy.Spec.Signers, func(s TrustSigner) bool { return s.Name == n }) {
			l.errf(at.at(i), "%s: there is no signer %s", where, n)
		}
		if slices.Contains(names[:i], n) || slices.Contains(before, n) {
			l.errf(at.at(i), "%s: signer %s twice", where, n)
		}
	}
}

func (l *policyLoader) revoked(at place) {
	r := l.policy.Spec.Revoked
	for i, d := range r.Digests {
		if err := d.Validate(); err != nil {
			l.errf(at.at("digests", i), "revoked digest %q: %v", d, err)
		}
	}
	for i, k := range r.Keys {
		if err := digest.Digest(k).Validate(); err != nil {
			l.errf(at.at("keys", i), "revoked key %q: write the fingerprint, sha256:…", k)
		}
	}
	for i, n := range r.Signers {
		if !slices.ContainsFunc(l.policy.Spec.Signers, func(s TrustSigner) bool { return s.Name == n }) {
			l.errf(at.at("signers", i), "revoked signer %s: there is none of that name", n)
		}
	}
}
