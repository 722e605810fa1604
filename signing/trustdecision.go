package signing

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	intoto "github.com/in-toto/attestation/go/v1"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/content"
)

// Decision is what a trust policy says about one artifact, and why.
type Decision struct {
	Reference string        `json:"reference"` // the repository
	Original  string        `json:"original,omitempty"`
	Subject   digest.Digest `json:"subject"`
	Allowed   bool          `json:"allowed"`
	// Scope is that of the rule that decided; empty if there is none.
	Scope string `json:"scope,omitempty"`
	// Steps are the checks that were made, in order.
	Steps []DecisionStep `json:"steps"`
	// Signers are the names of the signers whose signatures counted.
	Signers []string `json:"signers,omitempty"`
	// Capabilities is the ceiling for functions; nil if the policy says
	// nothing about it.
	Capabilities *TrustCapabilities `json:"capabilities,omitempty"`

	verified []*Verification
	err      error
}

// DecisionStep is one check.
type DecisionStep struct {
	Check  string `json:"check"`
	Passed bool   `json:"passed"`
	Detail string `json:"detail,omitempty"`
}

// Err is nil if the artifact is allowed. Else it wraps [ErrPolicy], or
// [ErrUnsigned] if there is no signature at all.
func (d *Decision) Err() error {
	if d.Allowed {
		return nil
	}
	return fmt.Errorf("%s@%s: %w", d.Reference, d.Subject, d.err)
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
	d.err = err
	d.Signers, d.verified = nil, nil
	return d
}

// Evaluate decides about an artifact. Reference is the name of its repository.
// Now is compared with the age that a rule asks for. The error is about
// failures to fetch; whether the artifact is allowed is in the decision.
func (p *TrustPolicy) Evaluate(ctx context.Context, target content.ReadOnlyGraphStorage, reference string, subject ocispec.Descriptor, now time.Time) (*Decision, error) {
	d := &Decision{Reference: reference, Subject: subject.Digest}
	original := p.original(reference)
	if original != reference {
		d.Original = original
	}
	if slices.Contains(p.Spec.Revoked.Digests, subject.Digest) {
		return d.deny("revocation", errors.New("the digest is revoked")), nil
	}
	rule := p.Rule(original)
	if rule == nil {
		return d.deny("rule", fmt.Errorf("no rule is about %s, so nothing is accepted there", original)), nil
	}
	d.Scope, d.Capabilities = rule.Scope, rule.Capabilities
	d.pass("rule", "scope %s", rule.Scope)
	if err := p.signatures(ctx, d, rule, target, original, subject, now); err != nil || d.err != nil {
		return d, err
	}
	for _, a := range rule.Attestations {
		if err := p.attestation(ctx, d, a, target, original, subject); err != nil || d.err != nil {
			return d, err
		}
	}
	d.Allowed = true
	return d, nil
}

// trusted are the signers of a list that are not revoked.
func (p *TrustPolicy) trusted(names []string) []*authority {
	var list []*authority
	for _, n := range names {
		a := p.authorities[n]
		if a == nil || slices.Contains(p.Spec.Revoked.Signers, n) || slices.Contains(p.Spec.Revoked.Keys, a.fingerprint) {
			continue
		}
		list = append(list, a)
	}
	return list
}

// signatures checks the signatures that a rule needs.
func (p *TrustPolicy) signatures(ctx context.Context, d *Decision, rule *TrustRule, target content.ReadOnlyGraphStorage, original string, subject ocispec.Descriptor, now time.Time) error {
	const check = "signatures"
	need := max(1, rule.Signatures.Threshold)
	list := p.trusted(rule.Signatures.AnyOf)
	if len(list) < need {
		d.deny(check, fmt.Errorf("%d signers are needed, and after revocation %d are left", need, len(list)))
		return nil
	}
	c := &collector{target: target, reference: original, subject: subject, noLegacy: !rule.Legacy}
	var votes signerVotes
	err := c.each(ctx, list, func(a *authority, v *Verification) (bool, error) {
		if err := hasAnnotations(v.Annotations, rule.Annotations); err != nil {
			return false, err
		}
		if rule.minimumAge > 0 && now.Sub(v.Time) < rule.minimumAge {
			return false, fmt.Errorf("signed at %s, and has to be %s old", v.Time.UTC().Format(time.RFC3339), rule.MinimumAge)
		}
		votes.add(a.name, v)
		return len(votes.match()) >= need, nil
	})
	if err != nil {
		return err
	}
	matched := votes.match()
	if len(matched) < need {
		failure := c.failure()
		if c.transport != nil {
			return failure
		}
		if len(matched) > 0 {
			failure = fmt.Errorf("%w: %d of %d signers (%s)", ErrPolicy, len(matched), need, strings.Join(votes.names(matched), ", "))
		}
		d.deny(check, failure)
		return nil
	}
	d.Signers = votes.names(matched)
	for _, v := range matched {
		d.verified = append(d.verified, v.verification)
	}
	d.pass(check, "%d of %d: %s", len(matched), need, strings.Join(d.Signers, ", "))
	return nil
}

// attestation checks one attestation that a rule needs.
func (p *TrustPolicy) attestation(ctx context.Context, d *Decision, need TrustAttestation, target content.ReadOnlyGraphStorage, original string, subject ocispec.Descriptor) error {
	check := "attestation " + need.PredicateType
	list := p.trusted(need.AnyOf)
	if len(list) == 0 {
		d.deny(check, errors.New("all its signers are revoked"))
		return nil
	}
	c := &collector{target: target, reference: original, subject: subject, predicateType: need.PredicateType, noLegacy: true}
	var by string
	err := c.eachStatement(ctx, list, func(a *authority, v *Verification, st *intoto.Statement) (bool, error) {
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
// count twice. It is the augmenting path algorithm, for a handful of both.
func (s signerVotes) match() []signerVote {
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
	for _, v := range s {
		if !done[v.signer] {
			done[v.signer] = true
			assign(v.signer, map[string]bool{})
		}
	}
	var list []signerVote
	for _, v := range byPrincipal {
		list = append(list, v)
	}
	slices.SortFunc(list, func(a, b signerVote) int { return strings.Compare(a.signer, b.signer) })
	return list
}

func (signerVotes) names(list []signerVote) []string {
	var names []string
	for _, v := range list {
		names = append(names, v.signer)
	}
	return names
}
