package signing

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"

	intoto "github.com/in-toto/attestation/go/v1"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/content"
)

// TrustRequest is what a policy decides about: an artifact, or the image,
// executable or script of a function.
type TrustRequest struct {
	// Reference is the name of the repository that holds the subject, such as
	// localhost:5000/fn/set-labels. It is empty for what is in no registry.
	Reference string
	// Subject is the artifact, by digest; see [Named] too. In no registry, its
	// digest is that of the content, if it is known.
	Subject ocispec.Descriptor
	// Content is the digest of the executable or script in the artifact, if it
	// is known; it can be revoked as well.
	Content digest.Digest
	// Name is what messages call a subject in no registry.
	Name string
	// Local says that a subject in no registry is a file of this machine.
	Local bool
	// Document is the decision on the document that names the subject by its
	// digest. Nil if that is in no registry, or if there is none.
	Document *Decision
	// Needs is what a function asks for; nil if it is not about to be run.
	Needs *TrustCapabilities
	// Now is compared with the age that a rule asks for; zero is the present.
	Now time.Time
}

// Decision is what a trust policy says about one subject, and why.
type Decision struct {
	Policy    string        `json:"policy,omitempty"`    // its metadata.name
	Reference string        `json:"reference,omitempty"` // the repository
	Name      string        `json:"name,omitempty"`      // of what is in no registry
	Original  string        `json:"original,omitempty"`
	Subject   digest.Digest `json:"subject,omitempty"`
	Allowed   bool          `json:"allowed"`
	// Scope is that of the rule that decided; empty if there is none.
	Scope string `json:"scope,omitempty"`
	// Steps are the checks that were made, in order.
	Steps []DecisionStep `json:"steps"`
	// Signers are the names of the signers whose signatures counted.
	Signers []string `json:"signers,omitempty"`
	// Expected says whose signatures the rule asks for, and Found who claims
	// to have signed, verified or not, when they did not suffice.
	Expected []string `json:"expected,omitempty"`
	Found    []string `json:"found,omitempty"`
	// Capabilities is the ceiling for functions; nil if the policy says
	// nothing about it.
	Capabilities *TrustCapabilities `json:"capabilities,omitempty"`
	// Needs is what the function asks for, if that was asked about.
	Needs *TrustCapabilities `json:"needs,omitempty"`
	// CoversRuntimes says that what a document names is accepted with it.
	CoversRuntimes bool `json:"coversRuntimes,omitempty"`

	verified []*Verification
	err      error
}

// DecisionStep is one check.
type DecisionStep struct {
	Check  string `json:"check"`
	Passed bool   `json:"passed"`
	Detail string `json:"detail,omitempty"`
}

// ErrCapability is wrapped by the errors of decisions about functions that ask
// for more than the policy lets them have. They wrap [ErrPolicy] too.
var ErrCapability = errors.New("more than the trust policy lets the function have")

// Err is nil if the subject is allowed. Else it wraps [ErrPolicy], or
// [ErrUnsigned] if there is no signature at all.
func (d *Decision) Err() error {
	if d.Allowed {
		return nil
	}
	return fmt.Errorf("%s: %w", d.About(), d.err)
}

// About names the subject, with its digest.
func (d *Decision) About() string {
	switch {
	case d.Reference == "":
		return d.Name
	case d.Subject == "":
		return d.Reference
	}
	return d.Reference + "@" + d.Subject.String()
}

// Verifications are the signatures that counted, in the order of Signers.
func (d *Decision) Verifications() []*Verification { return d.verified }

func (d *Decision) pass(check, format string, a ...any) {
	d.Steps = append(d.Steps, DecisionStep{check, true, fmt.Sprintf(format, a...)})
}

func (d *Decision) deny(check string, err error) *Decision {
	d.Steps = append(d.Steps, DecisionStep{check, false, err.Error()})
	if !errors.Is(err, ErrUnsigned) && !errors.Is(err, ErrPolicy) {
		err = fmt.Errorf("%w: %w", ErrPolicy, err)
	}
	if d.Scope != "" {
		err = fmt.Errorf("rule for %s: %w", d.Scope, err)
	}
	if len(d.Expected) > 0 {
		err = fmt.Errorf("%w; needed: %s; found: %s", err, strings.Join(d.Expected, " or "), orNone(d.Found))
	}
	d.err = err
	d.Signers, d.verified = nil, nil
	return d
}

func orNone(list []string) string {
	if len(list) == 0 {
		return "none"
	}
	return strings.Join(list, ", ")
}

// Evaluate decides. It is the only place that does, for all that krmcat lets
// run, writes, or admits under a policy. The error is about failures to fetch;
// whether the subject is allowed is in the decision. Target is the repository,
// and may be nil for what is in no registry.
func (p *TrustPolicy) Evaluate(ctx context.Context, target content.ReadOnlyGraphStorage, r TrustRequest) (*Decision, error) {
	d := &Decision{Policy: p.Metadata.Name, Reference: r.Reference, Name: r.Name, Subject: r.Subject.Digest, Needs: r.Needs}
	if r.Now.IsZero() {
		r.Now = time.Now()
	}
	for _, x := range []digest.Digest{r.Subject.Digest, r.Content} {
		if x != "" && slices.Contains(p.Spec.Revoked.Digests, x) {
			return d.deny("revocation", fmt.Errorf("the digest is revoked: %s", x)), nil
		}
	}
	if r.Document != nil && !r.Document.Allowed {
		return d.deny("document", fmt.Errorf("%s, which names it, is not accepted", r.Document.About())), nil
	}
	covered := r.Document != nil && r.Document.CoversRuntimes
	if r.Document != nil {
		d.Capabilities = r.Document.Capabilities
	}
	var err error
	if r.Reference == "" {
		p.elsewhere(d, &r, covered)
	} else {
		err = p.artifact(ctx, d, &r, target, covered)
	}
	if err != nil || d.err != nil {
		return d, err
	}
	if r.Needs != nil {
		if beyond := d.Capabilities.Beyond(*r.Needs); len(beyond) > 0 {
			return d.deny("capabilities", fmt.Errorf("%w: it asks for %s, and is granted at most %s", ErrCapability, strings.Join(beyond, ", "), d.Capabilities)), nil
		}
		d.pass("capabilities", "asks for %s, of at most %s", r.Needs, d.Capabilities)
	}
	d.Allowed = true
	return d, nil
}

// elsewhere decides about what is in no registry, and so has no signature of
// its own.
func (p *TrustPolicy) elsewhere(d *Decision, r *TrustRequest, covered bool) {
	switch {
	case r.Local && p.Spec.LocalFiles:
		d.pass("location", "a file of this machine, which the policy accepts (localFiles)")
	case r.Local:
		d.deny("location", errors.New("it is a file of this machine, and the policy does not accept those (localFiles)"))
	case covered:
		d.Scope = r.Document.Scope
		d.pass("document", "%s names it, and covers what it names", r.Document.About())
	default:
		d.deny("location", errors.New("it is in no registry, so nobody can have signed it, and no signed document covers it (coversRuntimes)"))
	}
}

// artifact decides about what is in a registry.
func (p *TrustPolicy) artifact(ctx context.Context, d *Decision, r *TrustRequest, target content.ReadOnlyGraphStorage, covered bool) error {
	original := p.original(r.Reference)
	if original != r.Reference {
		d.Original = original
	}
	rule := p.Rule(original)
	if rule != nil {
		d.Capabilities = d.Capabilities.within(rule.Capabilities)
	}
	switch {
	case covered:
		d.Scope = r.Document.Scope
		d.pass("document", "%s names it, and covers what it names", r.Document.About())
		return nil
	case rule == nil:
		d.deny("rule", fmt.Errorf("no rule is about %s, so nothing is accepted there", original))
		return nil
	}
	d.Scope, d.CoversRuntimes = rule.Scope, rule.CoversRuntimes
	d.pass("rule", "scope %s", rule.Scope)
	if err := p.signatures(ctx, d, rule, target, original, r); err != nil || d.err != nil {
		return err
	}
	for _, a := range rule.Attestations {
		if err := p.attestation(ctx, d, rule, a, target, original, r.Subject); err != nil || d.err != nil {
			return err
		}
	}
	return nil
}

func (p *TrustPolicy) isRevoked(signer string) bool {
	a := p.authorities[signer]
	return slices.Contains(p.Spec.Revoked.Signers, signer) || a != nil && slices.Contains(p.Spec.Revoked.Keys, a.fingerprint)
}

// trusted are the signers of a list that are not revoked.
func (p *TrustPolicy) trusted(names []string) []*authority {
	var list []*authority
	for _, n := range names {
		if a := p.authorities[n]; a != nil && !p.isRevoked(n) {
			list = append(list, a)
		}
	}
	return list
}

// counts checks what a rule and a signer ask for besides the signature.
func (p *TrustPolicy) counts(a *authority, v *Verification, rule *TrustRule, now time.Time) error {
	s := p.signers[a.name]
	if s.Keyless != nil && s.Keyless.SourceRepository != nil {
		if got := sourceRepository(v.Certificate); !s.Keyless.SourceRepository.matches(got) {
			return fmt.Errorf("signed for the source repository %q, not %s", got, s.Keyless.SourceRepository)
		}
	}
	if err := hasAnnotations(v.Annotations, s.Annotations); err != nil {
		return err
	}
	if rule == nil {
		return nil
	}
	if err := hasAnnotations(v.Annotations, rule.Annotations); err != nil {
		return err
	}
	if rule.minimumAge <= 0 {
		return nil
	}
	// Evidence of a log alone may come without any time.
	if v.Time.IsZero() {
		return fmt.Errorf("nothing vouches for when it was signed, and it has to be %s old", rule.MinimumAge)
	}
	if now.Sub(v.Time) < rule.minimumAge {
		return fmt.Errorf("signed at %s, and has to be %s old", v.Time.UTC().Format(time.RFC3339), rule.MinimumAge)
	}
	return nil
}

// signatures checks the signatures that a rule needs.
func (p *TrustPolicy) signatures(ctx context.Context, d *Decision, rule *TrustRule, target content.ReadOnlyGraphStorage, original string, r *TrustRequest) error {
	const check = "signatures"
	all, anyOf := rule.Signatures.AllOf, rule.Signatures.AnyOf
	need := len(all) + rule.Signatures.needed()
	list := p.trusted(slices.Concat(all, anyOf))
	if n := len(p.trusted(all)); n < len(all) {
		d.deny(check, fmt.Errorf("%d signers are needed, and after revocation %d are left", len(all), n))
		return nil
	}
	if n := len(p.trusted(anyOf)); n < rule.Signatures.needed() {
		d.deny(check, fmt.Errorf("%d signers are needed, and after revocation %d are left", rule.Signatures.needed(), n))
		return nil
	}
	c := &collector{target: target, reference: original, subject: r.Subject, noLegacy: !rule.Legacy}
	var votes signerVotes
	enough := func() bool {
		required, others := votes.match(all)
		return len(required) == len(all) && len(others) >= rule.Signatures.needed()
	}
	err := c.each(ctx, list, func(a *authority, v *Verification) (bool, error) {
		if err := p.counts(a, v, rule, r.Now); err != nil {
			return false, err
		}
		votes.add(a.name, v)
		return enough(), nil
	})
	if err != nil {
		return err
	}
	required, others := votes.match(all)
	matched := append(required, others...)
	if !enough() {
		failure := c.failure()
		if c.transport != nil {
			return failure
		}
		if len(matched) > 0 {
			failure = fmt.Errorf("%w: %d of %d signers (%s)", ErrPolicy, len(matched), need, strings.Join(votes.names(matched), ", "))
		}
		d.Expected = p.expected(slices.Concat(all, anyOf))
		d.Found = claimants(ctx, target, original, r.Subject)
		d.deny(check, failure)
		return nil
	}
	slices.SortFunc(matched, func(a, b signerVote) int { return strings.Compare(a.signer, b.signer) })
	d.Signers = votes.names(matched)
	for _, v := range matched {
		d.verified = append(d.verified, v.verification)
	}
	d.pass(check, "%d of %d: %s", len(matched), need, strings.Join(d.Signers, ", "))
	return nil
}

// maxClaims is how many signers a message names.
const maxClaims = 4

// claimants says who seems to have signed a subject, for messages only.
func claimants(ctx context.Context, target content.ReadOnlyGraphStorage, reference string, subject ocispec.Descriptor) []string {
	attached, err := ListAttached(ctx, target, reference, subject, Policy{})
	if err != nil {
		return nil // what is missing has been said
	}
	var list []string
	for _, x := range attached {
		var who string
		switch {
		case x.ClaimedKey != "":
			who = "key " + x.ClaimedKey
		case x.ClaimedIdentity.Subject != "":
			who = x.ClaimedIdentity.String()
		default:
			continue
		}
		who = printable(who)
		if x.Kind == KindAttestation {
			who += " (attests only)"
		}
		if slices.Contains(list, who) {
			continue
		}
		if len(list) == maxClaims {
			return append(list, "and others")
		}
		list = append(list, who)
	}
	return list
}

// printable keeps what somebody else wrote from being more than one line of
// text.
func printable(s string) string {
	const most = 200
	n := 0
	return strings.Map(func(r rune) rune {
		if n++; n > most {
			return -1
		}
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}

// attestation checks one attestation that a rule needs.
func (p *TrustPolicy) attestation(ctx context.Context, d *Decision, rule *TrustRule, need TrustAttestation, target content.ReadOnlyGraphStorage, original string, subject ocispec.Descriptor) error {
	check := "attestation " + need.PredicateType
	list := p.trusted(need.AnyOf)
	if len(list) == 0 {
		d.deny(check, errors.New("all its signers are revoked"))
		return nil
	}
	c := &collector{target: target, reference: original, subject: subject, predicateType: need.PredicateType, noLegacy: !rule.Legacy}
	var by string
	err := c.eachAttestation(ctx, list, func(a *authority, v *Verification, st *intoto.Statement) (bool, error) {
		if err := p.counts(a, v, nil, time.Time{}); err != nil {
			return false, err
		}
		att, err := attestationOf(v, st)
		if err != nil {
			return false, err
		}
		if err := att.Require(need.Require); err != nil {
			return false, err
		}
		by = a.name
		return true, nil
	})
	if err != nil {
		return err
	}
	if by == "" {
		failure := c.failure()
		if c.transport != nil {
			return failure
		}
		d.Expected = p.expected(need.AnyOf)
		d.Found = claimants(ctx, target, original, subject)
		d.deny(check, failure)
		return nil
	}
	d.pass(check, "by %s", by)
	return nil
}

// signerVotes are the signatures that count towards a threshold.
type signerVotes []signerVote

type signerVote struct {
	signer       string
	principal    string // the key, or issuer and subject of the certificate
	verification *Verification
}

func (s *signerVotes) add(signer string, v *Verification) {
	principal := v.Key
	if principal == "" {
		principal = v.Identity.Issuer + "\x00" + v.Identity.Subject
	}
	*s = append(*s, signerVote{signer, principal, v})
}

// match pairs as many signers as possible with a principal each, so that
// neither two signatures by one signer nor one principal that fits two signers
// count twice. It is the augmenting path algorithm, for a handful of both. Those
// that are required come first, and a pair once made is never given up, only
// exchanged.
func (s signerVotes) match(required []string) (first, others []signerVote) {
	byPrincipal := map[string]signerVote{}
	var assign func(signer string, seen map[string]bool) bool
	assign = func(signer string, seen map[string]bool) bool {
		for _, v := range s {
			if v.signer != signer || seen[v.principal] {
				continue
			}
			seen[v.principal] = true
			holder, taken := byPrincipal[v.principal]
			if !taken || assign(holder.signer, seen) {
				byPrincipal[v.principal] = v
				return true
			}
		}
		return false
	}
	done := map[string]bool{}
	for _, pass := range []bool{true, false} {
		for _, v := range s {
			if slices.Contains(required, v.signer) == pass && !done[v.signer] {
				done[v.signer] = true
				assign(v.signer, map[string]bool{})
			}
		}
	}
	for _, v := range byPrincipal {
		if slices.Contains(required, v.signer) {
			first = append(first, v)
		} else {
			others = append(others, v)
		}
	}
	bySigner := func(a, b signerVote) int { return strings.Compare(a.signer, b.signer) }
	slices.SortFunc(first, bySigner)
	slices.SortFunc(others, bySigner)
	return first, others
}

func (signerVotes) names(list []signerVote) []string {
	var names []string
	for _, v := range list {
		names = append(names, v.signer)
	}
	return names
}
