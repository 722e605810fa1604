package signing

import (
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/sigstore/sigstore-go/pkg/testing/ca"
)

// These attacks are about transparency logs, whose entries the library for
// tests makes in memory only, not as bundles.

const (
	testIssuer  = "https://issuer.test"
	testSubject = "release@krmcat.test"
)

func virtualAuthority(t *testing.T, vs *ca.VirtualSigstore, ev Evidence) *authority {
	t.Helper()
	a := &authority{identity: Identity{Issuer: testIssuer, Subject: testSubject}, root: vs, evidence: ev}
	if err := a.prepare(); err != nil {
		t.Fatal(err)
	}
	return a
}

func testStatement(t *testing.T, d digest.Digest) []byte {
	t.Helper()
	st, err := newStatement("", d, PredicateSignature, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return st
}

func TestAttack09LogTimeOutsideCertificate(t *testing.T) {
	t.Parallel()
	vs, err := ca.NewVirtualSigstore()
	if err != nil {
		t.Fatal(err)
	}
	d := digest.FromString("x")
	a := virtualAuthority(t, vs, Evidence{Tlog: 1, NoSCT: true})
	for name, tt := range map[string]struct {
		at time.Time
		ok bool
	}{
		"in time": {time.Now().Add(5 * time.Minute), true},
		"late":    {time.Now().Add(time.Hour), false},
		"early":   {time.Now().Add(-time.Hour), false},
	} {
		e, err := vs.AttestAtTime(testSubject, testIssuer, testStatement(t, d), tt.at, false)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := a.verifyBundle(e, d); (err == nil) != tt.ok {
			t.Errorf("%s: got %v, want success %v", name, err, tt.ok)
		}
	}
}

func TestAttack10OneLogForTwo(t *testing.T) {
	t.Parallel()
	vs, err := ca.NewVirtualSigstore()
	if err != nil {
		t.Fatal(err)
	}
	other, err := ca.NewVirtualSigstore()
	if err != nil {
		t.Fatal(err)
	}
	d := digest.FromString("x")
	e, err := vs.Attest(testSubject, testIssuer, testStatement(t, d))
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		root *ca.VirtualSigstore
		ev   Evidence
		ok   bool
	}{
		"one log":        {vs, Evidence{Tlog: 1, NoSCT: true}, true},
		"by default":     {vs, Evidence{NoSCT: true}, true},
		"two logs":       {vs, Evidence{Tlog: 2, NoSCT: true}, false},
		"no SCT":         {vs, Evidence{Tlog: 1}, false},
		"other root":     {other, Evidence{Tlog: 1, NoSCT: true}, false},
		"two timestamps": {vs, Evidence{Timestamps: 2, NoSCT: true}, false},
	} {
		if _, _, err := virtualAuthority(t, tt.root, tt.ev).verifyBundle(e, d); (err == nil) != tt.ok {
			t.Errorf("%s: got %v, want success %v", name, err, tt.ok)
		}
	}
	if _, _, err := virtualAuthority(t, vs, Evidence{Tlog: 1, NoSCT: true}).verifyBundle(e, digest.FromString("y")); err == nil {
		t.Error("accepted for another digest")
	}
}

// TestSignerVotes: signers and principals are paired, not counted apart.
func TestSignerVotes(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		votes string // signer:principal
		want  int
	}{
		"none":                  {"", 0},
		"one":                   {"a:p", 1},
		"same signer twice":     {"a:p a:p", 1},
		"one signer, two keys":  {"a:p a:q", 1},
		"one key, two signers":  {"a:p b:p", 1},
		"two and two":           {"a:p b:q", 2},
		"crossing":              {"a:p a:q b:p", 2},
		"crossing, other order": {"b:p a:p a:q", 2},
		"three, shared key":     {"a:p b:p c:q c:r", 2},
		"chain":                 {"a:p a:q b:q b:r c:r", 3},
	} {
		var votes signerVotes
		for _, v := range strings.Fields(tt.votes) {
			signer, principal, _ := strings.Cut(v, ":")
			votes.add(signer, &Verification{Key: principal})
		}
		_, others := votes.match(nil)
		if got := len(others); got != tt.want {
			t.Errorf("%s: got %d, want %d", name, got, tt.want)
		}
	}
}

func FuzzParseBundle(f *testing.F) {
	k, err := testKeySigner()
	if err != nil {
		f.Fatal(err)
	}
	st, err := newStatement("r", digest.FromString("x"), PredicateSignature, nil, nil)
	if err != nil {
		f.Fatal(err)
	}
	b, err := makeStatementBundle(f.Context(), k, st)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte(`{"mediaType":"application/vnd.dev.sigstore.bundle.v0.3+json"}`))
	list, err := Policy{Keys: []any{k.public}}.authorities()
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		cand, _, err := parseBundle(data)
		if err != nil {
			return
		}
		// Nothing but our statement about our digest verifies.
		if _, _, err := list[0].verifyBundle(cand, digest.FromString("y")); err == nil {
			t.Error("accepted for another digest")
		}
	})
}
