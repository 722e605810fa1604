package signing_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// trustMutation takes one guard of trust policies away, and names the test that
// has to notice. Where two guards stand one behind the other, both are taken
// away.
type trustMutation struct {
	attack string // what is taken away
	test   string // has to fail
	pkg    string // of the test; empty is this one
	edits  []trustEdit
}

// trustEdit replaces text that a file, relative to this folder, holds once.
type trustEdit struct{ file, old, new string }

var trustMutations = []trustMutation{
	{attack: "strict decoding", test: "TestTrustPolicyMistakes", edits: []trustEdit{
		{"trustpolicy.go", `	for _, pr := range doc.Decode(p) {`, `	for _, pr := range doc.Decode(p)[:0] {`}}},
	{attack: "empty identities", test: "TestTrustPolicyMistakes", edits: []trustEdit{
		{"trustload.go", `if err := k.identity().validate(); err != nil {`, `if err := error(nil); err != nil {`},
		{"verify.go", `	if err := a.identity.validate(); err != nil {`, `	if err := error(nil); err != nil {`}}},
	{attack: "identities that everybody has", test: "TestTrustPolicyMistakes", edits: []trustEdit{
		{"trustload.go", `why != "" && k.SourceRepository == nil {`, `false {`}}},
	{attack: "keyless without a time", test: "TestTrustPolicyMistakes", edits: []trustEdit{
		{"trustload.go", `if ev.Timestamps+ev.Tlog == 0 {`, `if false {`}}},
	{attack: "a window without a time", test: "TestTrustPolicyMistakes", edits: []trustEdit{
		{"verify.go", `case window && needs == 0:`, `case false:`}}},
	{attack: "two signers with one key", test: "TestTrustPolicyMistakes", edits: []trustEdit{
		{"trustload.go", `if other, ok := keys[a.fingerprint]; ok {`, `if other, ok := keys[a.fingerprint]; ok && false {`}}},
	{attack: "two signers with one identity", test: "TestTrustPolicyMistakes", edits: []trustEdit{
		{"trustload.go", `if other, ok := identities[same]; ok {`, `if other, ok := identities[same]; ok && false {`}}},
	{attack: "open prefixes", test: "TestTrustPolicyMistakes", edits: []trustEdit{
		{"verify.go", `!strings.HasSuffix(id.SubjectPrefix, "/") && !strings.HasSuffix(id.SubjectPrefix, "@"):`, `false:`}}},
	{attack: "age without a time, when loading", test: "TestTrustPolicyMistakes", edits: []trustEdit{
		{"trustload.go", `a != nil && a.evidence.Timestamps+a.evidence.Tlog == 0 {`, `false {`}}},
	{attack: "age without a time, when deciding", test: "TestMinimumAgeNeedsTime", edits: []trustEdit{
		{"trustdecision.go", `if v.Time.IsZero() {`, `if false {`}}},
	{attack: "minimum age", test: "TestTrustPolicyConditions", edits: []trustEdit{
		{"trustdecision.go", `if now.Sub(v.Time) < rule.minimumAge {`, `if false {`}}},
	{attack: "default deny", test: "TestTrustPolicyZero", edits: []trustEdit{
		{"trustdecision.go", `	case rule == nil:
		d.deny(`, `	case rule == nil:
		rule = &TrustRule{}
		return nil
		d.deny(`}}},
	{attack: "scopes by segments", test: "TestTrustPolicyScopes", edits: []trustEdit{
		{"trustpolicy.go", `strings.HasPrefix(repository, base+"/") && len(base) > longest:`, `strings.HasPrefix(repository, base) && len(base) > longest:`}}},
	{attack: "the longest scope", test: "TestTrustPolicyScopes", edits: []trustEdit{
		{"trustpolicy.go", `&& len(base) > longest:`, `&& longest < 0:`}}},
	{attack: "an exact scope goes first", test: "TestTrustPolicyScopes", edits: []trustEdit{
		{"trustpolicy.go", `		case !below && repository == base:
			return r
`, `		case !below && repository == base && len(base) > longest+2:
			best, longest = r, len(base)
`}}},
	{attack: "mirrors by segments", test: "TestTrustPolicyMirrors", edits: []trustEdit{
		{"trustpolicy.go", `strings.HasPrefix(repository, m.Mirror+"/")`, `strings.HasPrefix(repository, m.Mirror)`}}},
	{attack: "a threshold", test: "TestTrustPolicyThreshold", edits: []trustEdit{
		{"trustpolicy.go", `	return max(1, s.Threshold)`, `	return 1`}}},
	{attack: "a principal counts once", test: "TestTrustPolicyThreshold", edits: []trustEdit{
		{"trustdecision.go", `	*s = append(*s, signerVote{signer, principal, v})`, `	*s = append(*s, signerVote{signer, principal + signer, v})`}}},
	{attack: "a signer counts once", test: "TestTrustPolicyThreshold", edits: []trustEdit{
		{"trustdecision.go", `	*s = append(*s, signerVote{signer, principal, v})`, `	*s = append(*s, signerVote{signer + v.Signature.Digest.String(), principal + v.Signature.Digest.String(), v})`}}},
	{attack: "all of allOf", test: "TestTrustPolicyAllOf", edits: []trustEdit{
		{"trustdecision.go", `return len(required) == len(all) && len(others) >= rule.Signatures.needed()`, `return len(required)+len(others) >= len(all)+rule.Signatures.needed()`}}},
	{attack: "signed annotations of a rule", test: "TestPolicyAttack06Annotations", edits: []trustEdit{
		{"trustdecision.go", `if err := hasAnnotations(v.Annotations, rule.Annotations); err != nil {`, `if err := error(nil); err != nil {`}}},
	{attack: "signed annotations of a signer", test: "TestTrustPolicySignerConditions", edits: []trustEdit{
		{"trustdecision.go", `if err := hasAnnotations(v.Annotations, s.Annotations); err != nil {`, `if err := error(nil); err != nil {`}}},
	{attack: "the repository of a job", test: "TestTrustPolicySignerConditions", edits: []trustEdit{
		{"trustdecision.go", `!s.Keyless.SourceRepository.matches(got) {`, `got == "x" {`}}},
	{attack: "conditions of attesters", test: "TestTrustPolicySignerConditions", edits: []trustEdit{
		{"trustdecision.go", `if err := p.counts(a, v, nil, time.Time{}); err != nil {`, `if err := error(nil); err != nil {`}}},
	{attack: "required attestations", test: "TestTrustPolicyAttestations", edits: []trustEdit{
		{"trustdecision.go", `range rule.Attestations {`, `range rule.Attestations[:0] {`}}},
	{attack: "attesters are not signers", test: "TestTrustPolicyAttestations", edits: []trustEdit{
		{"trustdecision.go", `	list := p.trusted(need.AnyOf)
`, `	var all []string
	for n := range p.signers {
		all = append(all, n)
	}
	list := p.trusted(all)
`}}},
	{attack: "fields of an attestation", test: "TestTrustPolicyAttestations", edits: []trustEdit{
		{"trustdecision.go", `if err := att.Require(need.Require); err != nil {`, `if err := att.Require(nil); err != nil {`}}},
	{attack: "an attestation is no signature", test: "TestPolicyAttack05AttestationIsNoSignature", edits: []trustEdit{
		{"verify.go", `case st.GetPredicateType() != PredicateSignature:`, `case false:`}}},
	{attack: "revoked signers and keys", test: "TestTrustPolicyRevocation", edits: []trustEdit{
		{"trustdecision.go", `a != nil && !p.isRevoked(n) {`, `a != nil {`}}},
	{attack: "revoked digests", test: "TestTrustPolicyRevocation", edits: []trustEdit{
		{"trustdecision.go", `slices.Contains(p.Spec.Revoked.Digests, x) {`, `false {`}}},
	{attack: "revoked content", test: "TestTrustPolicyRuntimes", edits: []trustEdit{
		{"trustdecision.go", `[]digest.Digest{r.Subject.Digest, r.Content} {`, `[]digest.Digest{r.Subject.Digest} {`}}},
	{attack: "the ceiling", test: "TestTrustPolicyCapabilities", edits: []trustEdit{
		{"trustdecision.go", `len(beyond) > 0 {`, `false {`}}},
	{attack: "the ceiling of the document", test: "TestTrustPolicyRuntimes", edits: []trustEdit{
		{"trustdecision.go", `		d.Capabilities = r.Document.Capabilities
`, ``}}},
	{attack: "the document is accepted", test: "TestTrustPolicyRuntimes", edits: []trustEdit{
		{"trustdecision.go", `if r.Document != nil && !r.Document.Allowed {`, `if false {`}}},
	{attack: "a document covers only if its rule says so", test: "TestTrustPolicyRuntimes", edits: []trustEdit{
		{"trustdecision.go", `covered := r.Document != nil && r.Document.CoversRuntimes`, `covered := r.Document != nil`}}},
	{attack: "files of this machine", test: "TestTrustPolicyZero", edits: []trustEdit{
		{"trustdecision.go", `case r.Local && p.Spec.LocalFiles:`, `case r.Local:`}}},
	{attack: "the older format where a rule says so", test: "TestTrustPolicyConditions", edits: []trustEdit{
		{"trustdecision.go", `subject: r.Subject, noLegacy: !rule.Legacy}`, `subject: r.Subject}`}}},
	{attack: "the repository in the older format", test: "TestPolicyAttack03Replayed", edits: []trustEdit{
		{"legacy.go", `if got.Context().Name() != want.Name() {`, `if false {`}}},
	{attack: "evidence of the time", test: "TestPolicyAttack08EvidenceMissing", edits: []trustEdit{
		{"trustload.go", `	a.evidence.Timestamps, a.evidence.Tlog = ev.Timestamps, ev.Tlog
`, `	a.evidence.Timestamps, a.evidence.Tlog = min(ev.Timestamps, 0), ev.Tlog
`}}},
	{attack: "certificate timestamps", test: "TestPolicyAttack08EvidenceMissing", edits: []trustEdit{
		{"trustload.go", `a.evidence.NoSCT = *ev.SCT == 0`, `a.evidence.NoSCT = true`}}},
	{attack: "anchors", test: "TestPolicyAttack11NotAnchored", edits: []trustEdit{
		{"verify.go", "return `^(?:` + id.SubjectRegexp + `)$`", "return `(?:` + id.SubjectRegexp + `)`"}}},

	{attack: "run: the document", test: "TestScript/trust-run", pkg: "cmd/krmcat", edits: []trustEdit{
		{"../cmd/internal/cli/functions.go", `	doc, err := f.trust.document(ctx, r.Catalog.Resolved)
`, `	_ = ctx
	doc, err := (*signing.Decision)(nil), error(nil)
`}, {"../cmd/internal/cli/functions.go", `	"github.com/krmcat/krmcat/schema/openapi"
`, `	"github.com/krmcat/krmcat/schema/openapi"
	"github.com/krmcat/krmcat/signing"
`}}},
	{attack: "run: what the document names", test: "TestScript/trust-run", pkg: "cmd/krmcat", edits: []trustEdit{
		{"../cmd/internal/cli/functions.go", `	engine := f.trust.engine(f.engine, function{r.GVK(), doc})
`, `	_ = doc
	engine := f.engine
`}}},
	{attack: "build", test: "TestScript/trust-run", pkg: "cmd/krmcat", edits: []trustEdit{
		{"../cmd/internal/cli/build.go", `b.fns.prepare(ctx, res)`, `b.fns.engine.Prepare(ctx, res)`}}},
	{attack: "files that pipelines name", test: "TestScript/trust-run", pkg: "cmd/krmcat", edits: []trustEdit{
		{"../cmd/internal/cli/pipeline.go", `if err := f.trust.local(ctx, file); err != nil {`, `if err := error(nil); err != nil {`}}},
	{attack: "resolve", test: "TestScript/trust-run", pkg: "cmd/krmcat", edits: []trustEdit{
		{"../cmd/internal/cli/resolve.go", `if err == nil && trust != nil {`, `if false {`}}},
	{attack: "verify: each is signed", test: "TestScript/trust-run", pkg: "cmd/krmcat", edits: []trustEdit{
		{"../cmd/internal/cli/verify.go", `	v.EachSigned = true
`, ``}}},
	{attack: "variables beyond the ceiling", test: "TestScript/trust-run", pkg: "cmd/krmcat", edits: []trustEdit{
		{"../cmd/internal/cli/trustpolicy.go", `		g.Env = x.gate.environment(d, g.Env)
`, ``}}},
	{attack: "pull", test: "TestScript/trust", pkg: "cmd/krmcat", edits: []trustEdit{
		{"../cmd/internal/cli/pull.go", `	if judge != nil {`, `	if false {`}}},
	{attack: "catalog create", test: "TestScript/trust", pkg: "cmd/krmcat", edits: []trustEdit{
		{"../cmd/internal/cli/catalog.go", `		if judge != nil {`, `		if false {`}}},
	{attack: "a policy that cannot be read", test: "TestScript/trust", pkg: "cmd/krmcat", edits: []trustEdit{
		{"../cmd/internal/cli/trustpolicy.go", `os.Lstat(file); !errors.Is(err, fs.ErrNotExist)`, `os.Stat(file); !errors.Is(err, fs.ErrNotExist)`}}},
	{attack: "serve: tags", test: "TestScript/serve-trust", pkg: "cmd/krmcat", edits: []trustEdit{
		{"../registry/admission/admission.go", `if a.opts.Trusted == nil || c.Tag == "" {`, `if true {`}}},
	{attack: "serve: what documents name", test: "TestScript/serve-trust", pkg: "cmd/krmcat", edits: []trustEdit{
		{"../cmd/internal/cli/admission.go", `	for _, x := range runtimes {
		ref, err`, `	for _, x := range runtimes[:0] {
		ref, err`}}},
	{attack: "serve: the ceiling", test: "TestScript/serve-trust", pkg: "cmd/krmcat", edits: []trustEdit{
		{"../cmd/internal/cli/admission.go", `r.Needs.Exec = r.Needs.Exec || x.needs.Exec`, `r.Needs.Exec = false`}, {"../cmd/internal/cli/admission.go", `Document: d, Needs: &x.needs})`, `Document: d})`}}},
	{attack: "import: an expression matches as it did", test: "FuzzSubject", pkg: "signing/trustimport", edits: []trustEdit{
		{"trustimport/regexps.go", `	if !begin {`, `	if false {`}}},
	{attack: "import: nothing that could be a condition is left out", test: "TestImport", pkg: "signing/trustimport", edits: []trustEdit{
		{"trustimport/trustimport.go", `	return len(problems) == 0
`, `	im.mistakes = nil
	return true
`}}},
	{attack: "import: what counts twice there", test: "TestImport", pkg: "signing/trustimport", edits: []trustEdit{
		{"trustimport/kubewarden.go", `&& !apart(list[i].Keyless, list[j].Keyless) {`, `&& false {`}}},
	{attack: "import: policies that all have to be satisfied", test: "TestImport", pkg: "signing/trustimport", edits: []trustEdit{
		{"trustimport/trustimport.go", `if overlap(have.Scope, r.Scope) && im.rules[i].doc != at.doc {`, `if false {`}}},
}

// Each guard has a test that fails without it. Always checked is that the
// guards stand where the table says; KRMCAT_TEST_MUTATE runs the tests, and
// KRMCAT_TEST_MUTATE=PART only those of which the name has the part.
func TestTrustMutations(t *testing.T) {
	part := os.Getenv("KRMCAT_TEST_MUTATE")
	for _, m := range trustMutations {
		overlay := m.overlay(t)
		if part == "" || part != "1" && !strings.Contains(m.attack, part) {
			continue
		}
		t.Run(m.attack, func(t *testing.T) {
			out, err := m.run(t, overlay)
			switch {
			case err == nil:
				t.Errorf("%s passes without the guard", m.test)
			case !strings.Contains(out, "--- FAIL: "+m.test):
				t.Errorf("%s did not run: %v\n%s", m.test, err, out)
			}
		})
	}
}

// overlay writes the changed files, and what the compiler needs to read them
// in the place of ours.
func (m trustMutation) overlay(t *testing.T) string {
	t.Helper()
	changed := map[string]string{}
	for _, e := range m.edits {
		file, err := filepath.Abs(e.file)
		if err != nil {
			t.Fatal(err)
		}
		text, ok := changed[file]
		if !ok {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			text = string(data)
		}
		if n := strings.Count(text, e.old); n != 1 {
			t.Fatalf("%s: %s holds the guard %d times, want once: %s", m.attack, e.file, n, e.old)
		}
		changed[file] = strings.Replace(text, e.old, e.new, 1)
	}
	dir := t.TempDir()
	replace := map[string]string{}
	for file, text := range changed {
		replace[file] = filepath.Join(dir, strings.ReplaceAll(file, string(filepath.Separator), "_"))
		if err := os.WriteFile(replace[file], []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	data, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	overlay := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(overlay, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return overlay
}

// run runs the test of a mutation against the changed files.
func (m trustMutation) run(t *testing.T, overlay string) (string, error) {
	t.Helper()
	pkg := m.pkg
	if pkg == "" {
		pkg = "signing"
	}
	cmd := exec.CommandContext(t.Context(), "go", "test", "-overlay="+overlay, "-vet=off", "-ldflags=-s -w", "-count=1", "-v", "-run", "^"+m.test+"$", "./"+pkg)
	cmd.Dir = ".."
	out, err := cmd.CombinedOutput()
	return string(out), err
}
