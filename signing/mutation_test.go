package signing_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// mutation takes one guard away, and names the test that has to notice. Where
// two guards stand one behind the other, both are taken away.
type mutation struct {
	attack string // number in the table of docs/signing.md, and what is taken away
	test   string // has to fail
	pkg    string // of the test; empty is this one
	edits  []edit
	// module is a version to go back to instead of edits.
	module string
}

// edit replaces text that a file holds once. The file is relative to this
// folder, or MODULE:PATH in a module that krmcat uses.
type edit struct{ file, old, new string }

// noDigest lets statements about any subject pass.
var noDigest = []edit{
	{"verify.go", `verify.NewPolicy(verify.WithArtifactDigest(subject.Algorithm().String(), raw), a.options...)`,
		`verify.NewPolicy(func() verify.ArtifactPolicyOption { _ = raw; return verify.WithoutArtifactUnsafe() }(), a.options...)`},
	{"statement.go", `if s.GetDigest()[d.Algorithm().String()] == d.Encoded() {`, `if true {`},
}

// lenientJSON takes the last of repeated keys, as encoding/json does.
const lenientJSON = `func() error {
		var m map[string]any
		if err := json.Unmarshal(RAW, &m); err != nil {
			return err
		}
		again, err := json.Marshal(m)
		if err != nil {
			return err
		}
		return protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(again, STATEMENT)
	}()`

func lenient(raw, statement string) string {
	return strings.NewReplacer("RAW", raw, "STATEMENT", statement).Replace(lenientJSON)
}

var mutations = []mutation{
	{attack: "01 the digest in a payload", test: "TestAttack01LegacySignatureMoved", edits: []edit{
		{"legacy.go", `co.ClaimVerifier = cosign.SimpleClaimVerifier`, `co.ClaimVerifier = nil`},
		{"legacy.go", `if p.Critical.Image.DockerManifestDigest != subject.String() {`, `if false {`},
	}},
	{attack: "01 the digest in an attestation of the older format", test: "TestAttack01LegacyAttestationMoved", edits: []edit{
		{"legacy.go", `co.ClaimVerifier = cosign.IntotoSubjectClaimVerifier`, `co.ClaimVerifier = nil`},
		{"statement.go", `if s.GetDigest()[d.Algorithm().String()] == d.Encoded() {`, `if true {`},
	}},
	{attack: "02 the digest in a statement", test: "TestAttack02BundleMoved", edits: noDigest},
	{attack: "03 docker-reference", test: "TestAttack03OtherRepository", edits: []edit{
		{"legacy.go", `if got.Context().Name() != want.Name() {`, `if false {`},
	}},
	{attack: "03 signed annotations of a policy", test: "TestAttack03OtherRepository", edits: []edit{
		{"statement.go", `case got != v:`, `case false:`},
	}},
	{attack: "03 the name, bundles", test: "TestAttack03OtherName", edits: []edit{
		{"verify.go", `err = checkNames(v.Annotations, c.subject)`, `err = nil`},
	}},
	{attack: "03 the name, older format", test: "TestAttack03OtherName", edits: []edit{
		{"legacy.go", `err = checkNames(v.Annotations, c.subject)`, `err = nil`},
	}},
	{attack: "03 the name is signed", test: "TestAttack03OtherName", edits: []edit{
		{"name.go", `maps.Copy(all, names)`, ``},
	}},
	{attack: "04 critical.type", test: "TestAttack04PayloadTypes", edits: []edit{
		{"legacy.go", `if p.Critical.Type != payload.CosignSignatureType {`, `if false {`},
	}},
	{attack: "04 the type of a layer", test: "TestAttack04PayloadTypes", edits: []edit{
		{"legacy.go", `if layer.MediaType != mediaType {`, `if false {`},
	}},
	{attack: "04 the type of a layer, attestations", test: "TestAttack04LegacyAttestationTypes", edits: []edit{
		{"legacy.go", `if layer.MediaType != mediaType {`, `if false {`},
	}},
	{attack: "05 the predicate type that was verified", test: "TestAttack05AttestationAsSignature", edits: []edit{
		{"verify.go", `case st.GetPredicateType() != PredicateSignature:`, `case false:`},
	}},
	{attack: "06 annotations", test: "TestAttack06WrongAnnotation", edits: []edit{
		{"statement.go", `case got != v:`, `case false:`},
	}},
	{attack: "06 annotations that are not there", test: "TestAttack06WrongAnnotation", edits: []edit{
		{"statement.go", `case !ok:`, `case false:`},
		{"statement.go", `case got != v:`, `case ok && got != v:`},
	}},
	{attack: "07 a tag is resolved once", test: "TestAttack07TagMoves", pkg: "cmd/krmcat", edits: []edit{
		{"../registry/source.go", `a := &Artifact{Reference: ref, Descriptor: desc, repo: repo}`, `a := &Artifact{Reference: ref, Descriptor: desc, repo: repo}
	again := ref
	again.Digest = ""
	if d, err := c.Resolve(ctx, again); err == nil {
		desc = d
	}`},
	}},
	{attack: "08 a log entry, bundles", test: "TestAttack08EvidenceMissing", edits: []edit{
		{"verify.go", `opts = append(opts, verify.WithTransparencyLog(a.evidence.Tlog))`, ``},
	}},
	{attack: "08 a log entry, older format", test: "TestAttack08EvidenceMissing", edits: []edit{
		{"legacy.go", `IgnoreTlog:          a.evidence.Tlog == 0,`, `IgnoreTlog:          true,`},
		{"legacy.go", `if a.evidence.Tlog > 0 {`, `if false {`},
	}},
	{attack: "08 a timestamp, bundles", test: "TestAttack08EvidenceMissing", edits: []edit{
		{"verify.go", `opts = append(opts, verify.WithSignedTimestamps(a.evidence.Timestamps))`, `opts = append(opts, verify.WithNoObserverTimestamps())`},
	}},
	{attack: "08 a timestamp, older format", test: "TestAttack08EvidenceMissing", edits: []edit{
		{"legacy.go", `return t, errors.New("no timestamp")`, `return t, nil`},
	}},
	{attack: "08 services that vouch for a time", test: "TestAttack08EvidenceMissing", edits: []edit{
		{"keyless.go", `if l.Version == 2 && len(s.Timestamps) == 0 {`, `if false {`},
	}},
	{attack: "08 what was stamped", test: "TestAttack08BorrowedTimestamp", edits: []edit{
		{"legacy.go", `ctypes.DssePayloadType, maxBundleBytes, "")`, `ctypes.DssePayloadType, maxBundleBytes, layer.Annotations[static.SignatureAnnotationKey])`},
		{"legacy.go", `if string(kind) == ctypes.DssePayloadType {`, `if b, _ := sig.Base64Signature(); b == "" && string(kind) == ctypes.DssePayloadType {`},
	}},
	{attack: "09 the certificate at the time of signing, bundles", test: "TestAttack09ExpiredCertificate", edits: []edit{
		{"github.com/sigstore/sigstore-go:pkg/verify/certificate.go", `chains, err := ca.Verify(leafCert, observerTimestamp)`, `chains, err := ca.Verify(leafCert, leafCert.NotBefore)`},
	}},
	{attack: "09 the certificate at the time of signing, older format", test: "TestAttack09ExpiredCertificate", edits: []edit{
		{"github.com/sigstore/cosign/v2:pkg/cosign/verify.go", `if cert.NotAfter.Before(it) {`, `if false {`},
	}},
	{attack: "09 the certificate at the time of the log", test: "TestAttack09LogTimeOutsideCertificate", edits: []edit{
		{"github.com/sigstore/sigstore-go:pkg/verify/certificate.go", `chains, err := ca.Verify(leafCert, observerTimestamp)`, `chains, err := ca.Verify(leafCert, leafCert.NotBefore)`},
		{"github.com/sigstore/sigstore-go:pkg/verify/tlog.go", `if !verificationContent.ValidAtTime(entry.IntegratedTime(), trustedMaterial) {`, `if false {`},
	}},
	{attack: "10 how many logs", test: "TestAttack10OneLogForTwo", edits: []edit{
		{"verify.go", `verify.WithTransparencyLog(a.evidence.Tlog)`, `verify.WithTransparencyLog(1)`},
	}},
	{attack: "10 how many timestamps", test: "TestAttack10OneLogForTwo", edits: []edit{
		{"verify.go", `verify.WithSignedTimestamps(a.evidence.Timestamps)`, `verify.WithSignedTimestamps(1)`},
	}},
	{attack: "10 certificate timestamps", test: "TestAttack10OneLogForTwo", edits: []edit{
		{"verify.go", `if !a.evidence.NoSCT {`, `if false {`},
	}},
	{attack: "10 the issuer, bundles", test: "TestKeyless", edits: []edit{
		{"verify.go", `verify.NewShortCertificateIdentity(a.identity.Issuer, "",`, `verify.NewShortCertificateIdentity("", ".*",`},
	}},
	{attack: "10 the issuer, older format", test: "TestKeyless", edits: []edit{
		{"legacy.go", `cosign.Identity{Issuer: a.identity.Issuer,`, `cosign.Identity{IssuerRegExp: ".*",`},
	}},
	{attack: "10 the subject, older format", test: "TestKeyless", edits: []edit{
		{"legacy.go", `Subject: a.identity.Subject, SubjectRegExp: a.identity.regexp()}`, `SubjectRegExp: ".*"}`},
	}},
	{attack: "10 certificate timestamps, older format", test: "TestKeyless", edits: []edit{
		{"legacy.go", `IgnoreSCT:           a.evidence.NoSCT || a.key != nil,`, `IgnoreSCT:           true,`},
	}},
	{attack: "11 anchored expressions", test: "TestAttack11RegexpNotAnchored", edits: []edit{
		{"verify.go", "return `^(?:` + id.SubjectRegexp + `)$`", "return id.SubjectRegexp"},
	}},
	{attack: "12 nobody is named", test: "TestAttack12NoIdentity", edits: []edit{
		{"verify.go", `	if len(list) == 0 {
		return nil, fmt.Errorf("%w: it names no key and no identity", ErrPolicy)`, `	if false {
		return nil, fmt.Errorf("%w: it names no key and no identity", ErrPolicy)`},
	}},
	{attack: "12 no issuer", test: "TestAttack12NoIdentity", edits: []edit{
		{"verify.go", `case id.Issuer == "":`, `case false:`},
	}},
	{attack: "12 no subject", test: "TestAttack12NoIdentity", edits: []edit{
		{"verify.go", `case n != 1:`, `case n > 1:`},
	}},
	{attack: "13 one subject in a signature", test: "TestAttack13Subjects", edits: []edit{
		{"verify.go", `case len(st.GetSubject()) != 1:`, `case false:`},
	}},
	{attack: "13 the algorithm of a digest", test: "TestAttack13Subjects", edits: []edit{
		noDigest[0],
		{"statement.go", `if s.GetDigest()[d.Algorithm().String()] == d.Encoded() {`, `if s.GetDigest()["sha256"]+s.GetDigest()["sha512"] == d.Encoded() {`},
	}},
	{attack: "14 the payload type of an envelope", test: "TestAttack14PayloadTypeConfusion", edits: []edit{
		{"fetch.go", `if env.GetPayloadType() != payloadInToto {`, `if false {`},
		{"github.com/sigstore/sigstore-go:pkg/bundle/signature_content.go", `if e.PayloadType != IntotoMediaType {`, `if false {`},
	}},
	{attack: "14 the payload type of an envelope, files", test: "TestAttack14PayloadTypeConfusion", edits: []edit{
		{"blob.go", `t != payloadInToto {`, `false && t != payloadInToto {`},
		{"github.com/sigstore/sigstore-go:pkg/bundle/signature_content.go", `if e.PayloadType != IntotoMediaType {`, `if false {`},
	}},
	{attack: "15 repeated keys", test: "TestAttack15RepeatedKeys", edits: []edit{
		{"github.com/sigstore/sigstore-go:pkg/bundle/signature_content.go", `err = protojson.Unmarshal(raw, &statement)`, `err = ` + lenient("raw", "&statement")},
		{"github.com/sigstore/sigstore-go:pkg/bundle/signature_content.go", `import (`, "import (\n\t\"encoding/json\""},
	}},
	{attack: "15 repeated keys, attestations of the older format", test: "TestAttack04LegacyAttestationTypes", edits: []edit{
		{"legacy.go", `if err := protojson.Unmarshal(payload, st); err != nil {`, `if err := ` + lenient("payload", "st") + `; err != nil {`},
	}},
	{attack: "16 nothing is decompressed", test: "TestAttack16GzipBomb", edits: []edit{
		{"fetch.go", `	case err == nil:
		return data, nil`, `	case err == nil:
		if zr, err := gzip.NewReader(bytes.NewReader(data)); err == nil {
			return io.ReadAll(zr)
		}
		return data, nil`},
		{"fetch.go", `import (`, "import (\n\t\"bytes\"\n\t\"compress/gzip\"\n\t\"io\""},
	}},
	{attack: "16 the size of a bundle", test: "TestAttack16GzipBomb", edits: []edit{
		{"fetch.go", `desc.Size < 0 || desc.Size > limit {`, `desc.Size < 0 {`},
	}},
	{attack: "17 how many referrers", test: "TestAttack17JunkReferrers", edits: []edit{
		{"fetch.go", `if len(list) == maxCandidates {`, `if false {`},
	}},
	{attack: "18 how many layers", test: "TestAttack18JunkLayers", edits: []edit{
		{"legacy.go", `if len(m.Layers) > maxLegacyLayers {`, `if false {`},
	}},
	{attack: "18 how many attestations of the older format", test: "TestAttack18JunkAttestations", edits: []edit{
		{"legacy.go", `if len(m.Layers) > maxLegacyLayers {`, `if false {`},
	}},
	{attack: "18 the size of a payload", test: "TestAttack18JunkLayers", edits: []edit{
		{"fetch.go", `desc.Size < 0 || desc.Size > limit {`, `desc.Size < 0 {`},
	}},
	{attack: "18 the size of annotations", test: "TestAttack18JunkAttestations", edits: []edit{
		{"legacy.go", `if n > maxAnnotationBytes {`, `if false {`},
	}},
	{attack: "19 formats are judged apart", test: "TestAttack19ForeignBundleHidesLegacy", edits: []edit{
		{"verify.go", `		if err != nil || enough {
			return err
		}
	}
	if c.noLegacy {`, `		if err != nil || enough || len(c.problems) > 0 {
			return err
		}
	}
	if c.noLegacy {`},
	}},
	{attack: "19 one does not hide another", test: "TestAttack19ForeignBundleHidesLegacy", edits: []edit{
		{"legacy.go", `	for _, layer := range m.Layers {
		sig, err := fetch(ctx, c.target, layer)
		if err != nil {
			c.note(layer.Digest, err)
			continue`, `	for _, layer := range m.Layers {
		sig, err := fetch(ctx, c.target, layer)
		if err != nil {
			c.note(layer.Digest, err)
			break`},
		{"legacy.go", `		default:
			c.note(layer.Digest, problem)
		}`, `		default:
			c.note(layer.Digest, problem)
			return nil
		}`},
	}},
	{attack: "20 the type behind the tag", test: "TestAttack20SignatureTagIsAnIndex", edits: []edit{
		{"legacy.go", `if desc.MediaType != ocispec.MediaTypeImageManifest && desc.MediaType != mediaTypeDockerManifest {`, `if false {`},
	}},
	{attack: "21 the manifests of an index", test: "TestAttack21IndexSignedChildNot", edits: []edit{
		{"tree.go", `if list[i].MediaType != ocispec.MediaTypeImageIndex && list[i].MediaType != mediaTypeDockerIndex {`, `if true {`},
	}},
	{attack: "22 no signature is an error", test: "TestAttack22SignaturesStripped", edits: []edit{
		{"verify.go", `	if found == nil {
		return nil, c.failure()`, `	if found == nil {
		return &Verification{}, nil`},
	}},
	{attack: "23 the window of a key, bundles", test: "TestAttack23ExpiredKey", edits: []edit{
		{"verify.go", `key := root.NewExpiringKey(a.verifier, a.notBefore, a.notAfter)`, `key := root.NewExpiringKey(a.verifier, time.Time{}, time.Time{})`},
	}},
	{attack: "23 the window of a key, older format", test: "TestAttack23ExpiredKey", edits: []edit{
		{"legacy.go", `return t, a.window(t)`, `return t, nil`},
	}},
	{attack: "24 revocation", test: "TestAttack24RotationAndRevocation", edits: []edit{
		{"trustdecision.go", `a != nil && !p.isRevoked(n) {`, `a != nil {`},
	}},
	{attack: "25 the subject of a referrer", test: "TestAttack25RegistryLies", edits: []edit{
		{"fetch.go", `manifest.Subject == nil || manifest.Subject.Digest != subject {`, `manifest.Subject == nil {`},
	}},
	{attack: "25 digests and sizes", test: "TestAttack25RegistryLies", edits: []edit{
		{"fetch.go", `data, err := content.FetchAll(ctx, target, desc)`, `data, err := func() ([]byte, error) {
		rc, err := target.Fetch(ctx, desc)
		if err != nil {
			return nil, err
		}
		defer rc.Close()
		return io.ReadAll(rc)
	}()`},
		{"fetch.go", `import (`, "import (\n\t\"io\""},
	}},
	{attack: "26 oras-go 2.6.2", test: "TestAttack26CredentialsOnRedirect", module: "oras.land/oras-go/v2@v2.6.1"},
}

// TestMutations takes each guard away, in a copy of its file that only the
// compiler sees, and wants the named test to fail. It builds the tests anew
// for each, which takes many minutes, so it runs on request only.
func TestMutations(t *testing.T) {
	if os.Getenv("KRMCAT_TEST_MUTATE") == "" {
		t.Skip("set KRMCAT_TEST_MUTATE=1 to take each guard away and see its test fail")
	}
	// As they are, the tests pass.
	tests := map[string][]string{}
	for _, m := range mutations {
		tests[m.pkg] = append(tests[m.pkg], m.test)
	}
	for pkg, names := range tests {
		out, err := mutation{pkg: pkg, test: "(" + strings.Join(names, "|") + ")"}.run(t, nil)
		if err != nil {
			t.Fatalf("%s does not pass without any change: %v\n%s", pkg, err, out)
		}
		for _, name := range names {
			if !strings.Contains(out, "--- PASS: "+name) {
				t.Errorf("%s did not run", name)
			}
		}
	}
	numbers := map[string]bool{}
	for _, m := range mutations {
		numbers[m.attack[:2]] = true
		t.Run(m.attack, func(t *testing.T) {
			var args []string
			if m.module != "" {
				args = m.modfile(t)
			} else {
				args = []string{"-overlay=" + m.overlay(t)}
			}
			out, err := m.run(t, args)
			switch {
			case err == nil:
				t.Errorf("%s passes without the guard", m.test)
			case !strings.Contains(out, "--- FAIL: "+m.test):
				t.Errorf("%s did not run: %v\n%s", m.test, err, out)
			}
		})
	}
	if len(numbers) != 26 {
		t.Errorf("mutations for %d attacks, want 26", len(numbers))
	}
}

// run runs the test of a mutation.
func (m mutation) run(t *testing.T, args []string) (string, error) {
	t.Helper()
	pkg := m.pkg
	if pkg == "" {
		pkg = "signing"
	}
	// Without what takes time and finds nothing here.
	args = append(append([]string{"test", "-vet=off", "-ldflags=-s -w"}, args...), "-count=1", "-v", "-run", "^"+m.test+"$", "./"+pkg)
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir = ".."
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// overlay writes the changed files and what the compiler needs to read them.
func (m mutation) overlay(t *testing.T) string {
	t.Helper()
	changed := map[string]string{}
	for _, e := range m.edits {
		file := source(t, e.file)
		text, ok := changed[file]
		if !ok {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			text = string(data)
		}
		if n := strings.Count(text, e.old); n != 1 {
			t.Fatalf("%s holds the guard %d times, want once: %s", e.file, n, e.old)
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

// source is the path of a file of ours, or of a module.
func source(t *testing.T, file string) string {
	t.Helper()
	if module, inside, ok := strings.Cut(file, ":"); ok {
		out, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", module).Output()
		if err != nil {
			t.Fatal(err)
		}
		return filepath.Join(strings.TrimSpace(string(out)), inside)
	}
	abs, err := filepath.Abs(file)
	if err != nil {
		t.Fatal(err)
	}
	return abs
}

// modfile is a copy of go.mod with another version of one module.
func (m mutation) modfile(t *testing.T) []string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"go.mod", "go.sum"} {
		data, err := os.ReadFile(filepath.Join("..", name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	args := []string{"-modfile=" + filepath.Join(dir, "go.mod"), "-mod=mod"}
	path, _, _ := strings.Cut(m.module, "@")
	cmd := exec.CommandContext(t.Context(), "go", "mod", "edit", "-replace="+path+"="+m.module, filepath.Join(dir, "go.mod"))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go mod edit: %v\n%s", err, out)
	}
	return args
}
