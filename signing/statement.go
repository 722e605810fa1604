package signing

import (
	"encoding/json"
	"fmt"

	intoto "github.com/in-toto/attestation/go/v1"
	"github.com/opencontainers/go-digest"
)

// Types in signatures and attestations.
const (
	// PredicateSignature is what makes a statement a signature. cosign takes
	// a statement of any type for a signature; krmcat does not, or whoever
	// may attest test results could release artifacts.
	PredicateSignature = "https://sigstore.dev/cosign/sign/v1"

	payloadInToto   = "application/vnd.in-toto+json"
	statementV1     = "https://in-toto.io/Statement/v1"
	statementV01    = "https://in-toto.io/Statement/v0.1" // what cosign 2 attests with
	maxPredicateLen = 4 << 20                             // half of what a bundle may have, as it is base64 there
)

// statement is an in-toto statement as it is signed. Field order is part of
// the bytes.
type statement struct {
	Type          string             `json:"_type"`
	Subject       []statementSubject `json:"subject"`
	PredicateType string             `json:"predicateType"`
	// Predicate is never left out: some verifiers insist on it
	// (sigstore/cosign#4634).
	Predicate json.RawMessage `json:"predicate"`
}

type statementSubject struct {
	Name        string            `json:"name,omitempty"`
	Digest      map[string]string `json:"digest"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// newStatement says something about one digest.
func newStatement(name string, d digest.Digest, predicateType string, predicate json.RawMessage, annotations map[string]string) ([]byte, error) {
	if err := d.Validate(); err != nil {
		return nil, fmt.Errorf("subject: %w", err)
	}
	if len(predicate) == 0 {
		predicate = json.RawMessage("{}")
	}
	return json.Marshal(statement{
		Type: statementV1,
		Subject: []statementSubject{{
			Name:        name,
			Digest:      map[string]string{d.Algorithm().String(): d.Encoded()},
			Annotations: annotations,
		}},
		PredicateType: predicateType,
		Predicate:     predicate,
	})
}

// subjectOf finds the subject of a verified statement that is about d. It
// reads the parsed statement that was verified, never the bytes again:
// parsers disagree about repeated keys.
func subjectOf(st *intoto.Statement, d digest.Digest) (*intoto.ResourceDescriptor, error) {
	for _, s := range st.GetSubject() {
		if s.GetDigest()[d.Algorithm().String()] == d.Encoded() {
			return s, nil
		}
	}
	return nil, fmt.Errorf("statement is not about %s", d)
}

// annotationsOf are the signed annotations of a subject that are strings.
func annotationsOf(s *intoto.ResourceDescriptor) map[string]string {
	fields := s.GetAnnotations().GetFields()
	if len(fields) == 0 {
		return nil
	}
	m := make(map[string]string, len(fields))
	for k, v := range fields {
		if str, ok := v.AsInterface().(string); ok {
			m[k] = str
		}
	}
	return m
}

// hasAnnotations reports which of the wanted annotations is not there.
func hasAnnotations(have, want map[string]string) error {
	for k, v := range want {
		switch got, ok := have[k]; {
		case !ok:
			return fmt.Errorf("signed without annotation %s (want %q)", k, v)
		case got != v:
			return fmt.Errorf("signed with annotation %s=%q, not %q", k, got, v)
		}
	}
	return nil
}
