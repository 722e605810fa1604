package signing

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	intoto "github.com/in-toto/attestation/go/v1"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/content"
)

// ErrNoAttestation: the subject carries no attestation of the type asked for.
var ErrNoAttestation = errors.New("no such attestation")

// predicateNames are short names of predicate types, those of cosign where it
// has one, and the field that such a predicate cannot be without.
var predicateNames = []struct{ name, uri, field string }{
	{"test-result", "https://in-toto.io/attestation/test-result/v0.1", "result"},
	{"slsaprovenance1", "https://slsa.dev/provenance/v1", "buildDefinition"},
	{"slsaprovenance02", "https://slsa.dev/provenance/v0.2", "buildType"},
	{"spdxjson", "https://spdx.dev/Document", "spdxVersion"},
	{"cyclonedx", "https://cyclonedx.org/bom", "bomFormat"},
	{"vuln", "https://cosign.sigstore.dev/attestation/vuln/v1", "scanner"},
	{"openvex", "https://openvex.dev/ns", "statements"},
}

// PredicateNames are the short names that [PredicateType] knows.
func PredicateNames() []string {
	var names []string
	for _, p := range predicateNames {
		names = append(names, p.name)
	}
	return names
}

// PredicateType expands a short name of a predicate type, such as test-result
// or spdxjson; a URI stays as it is. That of signatures is refused.
func PredicateType(s string) (string, error) {
	for _, p := range predicateNames {
		if s == p.name {
			return p.uri, nil
		}
	}
	u, err := url.Parse(s)
	if err != nil || u.Scheme == "" || u.Host == "" {
		return "", fmt.Errorf("predicate type %q: give a URI, or one of %s", s, strings.Join(PredicateNames(), ", "))
	}
	if s == PredicateSignature {
		return "", fmt.Errorf("predicate type %s is that of signatures, not of attestations", s)
	}
	return s, nil
}

// checkPredicate finds predicates that are not what their type says.
func checkPredicate(predicateType string, predicate json.RawMessage) error {
	if len(predicate) > maxPredicateLen {
		return fmt.Errorf("%w: predicate of %d bytes, at most %d are attested", ErrTooMuch, len(predicate), maxPredicateLen)
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(predicate, &fields); err != nil {
		return fmt.Errorf("predicate is not a JSON object: %w", err)
	}
	for _, p := range predicateNames {
		if p.uri != predicateType {
			continue
		}
		if _, ok := fields[p.field]; !ok {
			return fmt.Errorf("predicate has no field %q, so it is no %s", p.field, p.name)
		}
	}
	if predicateType == predicateNames[0].uri {
		var result string
		if err := json.Unmarshal(fields["result"], &result); err != nil || !slices.Contains([]string{"PASSED", "WARNED", "FAILED"}, result) {
			return fmt.Errorf("predicate has result %s; write PASSED, WARNED or FAILED", fields["result"])
		}
	}
	return nil
}

// Attest attaches a signed statement about subject that is no signature: a
// test result, provenance, a bill of materials. PredicateType is a short name
// or a URI, see [PredicateType]; predicate is a JSON object of at most 4 MiB.
func (s *OptionSigner) Attest(ctx context.Context, target oras.GraphTarget, reference string, subject ocispec.Descriptor, predicateType string, predicate json.RawMessage) (ocispec.Descriptor, error) {
	uri, err := PredicateType(predicateType)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	if err := checkPredicate(uri, predicate); err != nil {
		return ocispec.Descriptor{}, fmt.Errorf("attesting %s: %w", uri, err)
	}
	st, err := newStatement(reference, subject.Digest, uri, predicate, withNames(s.opts.Annotations, subject))
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	desc, err := attachStatement(ctx, s.maker, target, subject, st, uri, s.opts.Created)
	if err != nil {
		return ocispec.Descriptor{}, fmt.Errorf("attesting %s@%s: %w", reference, subject.Digest, err)
	}
	return desc, nil
}

// Attestation is a verified statement about a subject.
type Attestation struct {
	Verification
	PredicateType string
	Predicate     json.RawMessage
}

// Require checks top-level fields of the predicate: each has to be there with
// the value, compared as text.
func (a *Attestation) Require(want map[string]string) error {
	var fields map[string]any
	dec := json.NewDecoder(bytes.NewReader(a.Predicate))
	dec.UseNumber()
	if err := dec.Decode(&fields); err != nil {
		return fmt.Errorf("reading the predicate: %w", err)
	}
	for k, v := range want {
		switch got, ok := fields[k]; {
		case !ok:
			return fmt.Errorf("predicate has no %s (want %q)", k, v)
		case fmt.Sprint(got) != v:
			return fmt.Errorf("predicate has %s=%v, not %q", k, got, v)
		}
	}
	return nil
}

// VerifyAttestations returns the attestations of one type that policy accepts,
// in the order of the registry's list, and after them those of the older format,
// which are read and not written. The error wraps [ErrNoAttestation] if there is none, and [ErrPolicy] if there are some
// but none is acceptable.
//
// A registry can hide attestations, so conclude from what is there, never from
// what is not.
func (Checker) VerifyAttestations(ctx context.Context, target content.ReadOnlyGraphStorage, reference string, subject ocispec.Descriptor, predicateType string, policy Policy) ([]Attestation, error) {
	uri, err := PredicateType(predicateType)
	if err != nil {
		return nil, err
	}
	list, err := policy.authorities()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrPolicy, err)
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("%w: it names no key and no identity", ErrPolicy)
	}
	c := &collector{target: target, reference: reference, subject: subject, predicateType: uri, noLegacy: policy.NoLegacy}
	var found []Attestation
	err = c.eachAttestation(ctx, list, func(_ *authority, v *Verification, st *intoto.Statement) (bool, error) {
		if err := hasAnnotations(v.Annotations, policy.Annotations); err != nil {
			return false, err
		}
		a, err := attestationOf(v, st)
		if err != nil {
			return false, err
		}
		found = append(found, *a)
		return false, nil
	})
	if err == nil && len(found) == 0 {
		err = c.failure()
	}
	if err != nil {
		return nil, fmt.Errorf("attestations %s of %s@%s: %w", uri, reference, subject.Digest, err)
	}
	return found, nil
}

// attestationOf reads a verified statement.
func attestationOf(v *Verification, st *intoto.Statement) (*Attestation, error) {
	predicate, err := st.GetPredicate().MarshalJSON()
	if err != nil {
		return nil, fmt.Errorf("reading the predicate: %w", err)
	}
	return &Attestation{Verification: *v, PredicateType: st.GetPredicateType(), Predicate: predicate}, nil
}

// isAttestation tells attestations of one type from everything else, by what
// was verified.
func isAttestation(st *intoto.Statement, predicateType string) error {
	switch {
	case st.GetType() != statementV1 && st.GetType() != statementV01:
		return fmt.Errorf("statement of type %s, not %s", st.GetType(), statementV1)
	case st.GetPredicateType() != predicateType:
		return fmt.Errorf("statement says %s, not %s", st.GetPredicateType(), predicateType)
	}
	return nil
}
