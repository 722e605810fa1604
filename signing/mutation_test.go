package signing_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// A mutant is krmcat with one guard taken away. All of them are compiled into
// one program, from copies of the sources that only the compiler sees, of ours
// and of two modules; each change asks mutant("NAME") whether it is in force. Where two guards stand one
// behind the other, both ask for the same name.

// edit replaces text that a file holds once. The file is relative to this
// folder, or MODULE:PATH in a module that krmcat uses.
type edit struct{ file, old, new string }

const (
	sigstoreGo = "github.com/sigstore/sigstore-go:"
	cosignV2   = "github.com/sigstore/cosign/v2:"
)

// lenient reads JSON as encoding/json does, which takes the last of repeated
// keys, instead of as protojson does.
const lenient = `func() error {
		if !mutant("NAME") {
			return protojson.Unmarshal(RAW, STATEMENT)
		}
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

var edits = []edit{
	{"legacy.go", `	co.ClaimVerifier = cosign.SimpleClaimVerifier`, `	if co.ClaimVerifier = cosign.SimpleClaimVerifier; mutant("01 the digest in a payload") {
		co.ClaimVerifier = nil
	}`},
	{"legacy.go", `if p.Critical.Image.DockerManifestDigest != subject.String() {`, `if !mutant("01 the digest in a payload") && p.Critical.Image.DockerManifestDigest != subject.String() {`},
	{"legacy.go", `	co.ClaimVerifier = cosign.IntotoSubjectClaimVerifier`, `	if co.ClaimVerifier = cosign.IntotoSubjectClaimVerifier; mutant("01 the digest in an attestation of the older format") {
		co.ClaimVerifier = nil
	}`},
	{"statement.go", `if s.GetDigest()[d.Algorithm().String()] == d.Encoded() {`, `if mutant("01 the digest in an attestation of the older format") || mutant("02 the digest in a statement") || mutant("13 the algorithm of a digest") || s.GetDigest()[d.Algorithm().String()] == d.Encoded() {`},
	{"verify.go", `	res, err := a.check.Verify(b, verify.NewPolicy(verify.WithArtifactDigest(subject.Algorithm().String(), raw), a.options...))`, `	about := verify.WithArtifactDigest(subject.Algorithm().String(), raw)
	if mutant("02 the digest in a statement") || mutant("13 the algorithm of a digest") {
		about = verify.WithoutArtifactUnsafe()
	}
	res, err := a.check.Verify(b, verify.NewPolicy(about, a.options...))`},
	{"legacy.go", `if got.Context().Name() != want.Name() {`, `if !mutant("03 docker-reference") && got.Context().Name() != want.Name() {`},
	{"statement.go", `case got != v:`, `case !mutant("03 signed annotations of a policy") && !mutant("06 annotations") && got != v:`},
	{"statement.go", `case !ok:`, `case !mutant("06 annotations that are not there") && !ok:`},
	{"verify.go", `			err = checkNames(v.Annotations, c.subject)`, `			if !mutant("03 the name, bundles") {
				err = checkNames(v.Annotations, c.subject)
			}`},
	{"legacy.go", `				err = checkNames(v.Annotations, c.subject)`, `				if !mutant("03 the name, older format") {
					err = checkNames(v.Annotations, c.subject)
				}`},
	{"name.go", `	maps.Copy(all, names)`, `	if !mutant("03 the name is signed") {
		maps.Copy(all, names)
	}`},
	{"legacy.go", `if p.Critical.Type != payload.CosignSignatureType {`, `if !mutant("04 critical.type") && p.Critical.Type != payload.CosignSignatureType {`},
	{"legacy.go", `if layer.MediaType != mediaType {`, `if !mutant("04 the type of a layer") && !mutant("04 the type of a layer, attestations") && layer.MediaType != mediaType {`},
	{"verify.go", `case st.GetPredicateType() != PredicateSignature:`, `case !mutant("05 the predicate type that was verified") && st.GetPredicateType() != PredicateSignature:`},
	{"../registry/source.go", `	a := &Artifact{Reference: ref, Descriptor: desc, repo: repo}`, `	a := &Artifact{Reference: ref, Descriptor: desc, repo: repo}
	if again := ref; mutant("07 a tag is resolved once") {
		again.Digest = ""
		if d, err := c.Resolve(ctx, again); err == nil {
			desc = d
		}
	}`},
	{"verify.go", `		opts = append(opts, verify.WithTransparencyLog(a.evidence.Tlog))`, `		n := a.evidence.Tlog
		if mutant("10 how many logs") {
			n = 1
		}
		if !mutant("08 a log entry, bundles") {
			opts = append(opts, verify.WithTransparencyLog(n))
		}`},
	{"legacy.go", `IgnoreTlog:          a.evidence.Tlog == 0,`, `IgnoreTlog:          mutant("08 a log entry, older format") || a.evidence.Tlog == 0,`},
	{"legacy.go", `	if a.evidence.Tlog > 0 {
		if entry == nil {`, `	if !mutant("08 a log entry, older format") && a.evidence.Tlog > 0 {
		if entry == nil {`},
	{"verify.go", `		opts = append(opts, verify.WithSignedTimestamps(a.evidence.Timestamps))`, `		n := a.evidence.Timestamps
		if mutant("10 how many timestamps") {
			n = 1
		}
		if mutant("08 a timestamp, bundles") {
			opts = append(opts, verify.WithNoObserverTimestamps())
		} else {
			opts = append(opts, verify.WithSignedTimestamps(n))
		}`},
	{"legacy.go", `			return t, errors.New("no timestamp")`, `			if mutant("08 a timestamp, older format") {
				return t, nil
			}
			return t, errors.New("no timestamp")`},
	{"keyless.go", `if l.Version == 2 && len(s.Timestamps) == 0 {`, `if !mutant("08 services that vouch for a time") && l.Version == 2 && len(s.Timestamps) == 0 {`},
	{"legacy.go", `	return fetchLegacyLayer(ctx, target, layer, ctypes.DssePayloadType, maxBundleBytes, "")`, `	signature := ""
	if mutant("08 what was stamped") {
		signature = layer.Annotations[static.SignatureAnnotationKey]
	}
	return fetchLegacyLayer(ctx, target, layer, ctypes.DssePayloadType, maxBundleBytes, signature)`},
	{"legacy.go", `	if string(kind) == ctypes.DssePayloadType {`, `	own := ""
	if mutant("08 what was stamped") {
		own, _ = sig.Base64Signature()
	}
	if own == "" && string(kind) == ctypes.DssePayloadType {`},
	{sigstoreGo + "pkg/verify/certificate.go", `		chains, err := ca.Verify(leafCert, observerTimestamp)`, `		if mutant("09 the certificate at the time of signing, bundles") || mutant("09 the certificate at the time of the log") {
			observerTimestamp = leafCert.NotBefore
		}
		chains, err := ca.Verify(leafCert, observerTimestamp)`},
	{sigstoreGo + "pkg/verify/tlog.go", `if !verificationContent.ValidAtTime(entry.IntegratedTime(), trustedMaterial) {`, `if !mutant("09 the certificate at the time of the log") && !verificationContent.ValidAtTime(entry.IntegratedTime(), trustedMaterial) {`},
	{cosignV2 + "pkg/cosign/verify.go", `if cert.NotAfter.Before(it) {`, `if !mutant("09 the certificate at the time of signing, older format") && cert.NotAfter.Before(it) {`},
	{"verify.go", `if !a.evidence.NoSCT {`, `if !mutant("10 certificate timestamps") && !a.evidence.NoSCT {`},
	{"verify.go", `	id, err := verify.NewShortCertificateIdentity(a.identity.Issuer, "", a.identity.Subject, a.identity.regexp())`, `	issuer, anyIssuer := a.identity.Issuer, ""
	if mutant("10 the issuer, bundles") {
		issuer, anyIssuer = "", ".*"
	}
	id, err := verify.NewShortCertificateIdentity(issuer, anyIssuer, a.identity.Subject, a.identity.regexp())`},
	{"legacy.go", `	co.Identities = []cosign.Identity{id}`, `	if mutant("10 the issuer, older format") {
		id.Issuer, id.IssuerRegExp = "", ".*"
	}
	if mutant("10 the subject, older format") {
		id.Subject, id.SubjectRegExp = "", ".*"
	}
	co.Identities = []cosign.Identity{id}`},
	{"legacy.go", `IgnoreSCT:           a.evidence.NoSCT || a.key != nil,`, `IgnoreSCT:           mutant("10 certificate timestamps, older format") || a.evidence.NoSCT || a.key != nil,`},
	{"verify.go", "		return `^(?:` + id.SubjectRegexp + `)$`", "		if mutant(\"11 anchored expressions\") {\n			return id.SubjectRegexp\n		}\n		return `^(?:` + id.SubjectRegexp + `)$`"},
	{"verify.go", `	if len(list) == 0 {
		return nil, fmt.Errorf("%w: it names no key and no identity", ErrPolicy)`, `	if !mutant("12 nobody is named") && len(list) == 0 {
		return nil, fmt.Errorf("%w: it names no key and no identity", ErrPolicy)`},
	{"verify.go", `case id.Issuer == "":`, `case !mutant("12 no issuer") && id.Issuer == "":`},
	{"verify.go", `case n != 1:`, `case !(mutant("12 no subject") && n == 0) && n != 1:`},
	{"verify.go", `case len(st.GetSubject()) != 1:`, `case !mutant("13 one subject in a signature") && len(st.GetSubject()) != 1:`},
	{"fetch.go", `if env.GetPayloadType() != payloadInToto {`, `if !mutant("14 the payload type of an envelope") && env.GetPayloadType() != payloadInToto {`},
	{"blob.go", `t != payloadInToto {`, `!mutant("14 the payload type of an envelope, files") && t != payloadInToto {`},
	{sigstoreGo + "pkg/bundle/signature_content.go", `if e.PayloadType != IntotoMediaType {`, `if !mutant("14 the payload type of an envelope") && !mutant("14 the payload type of an envelope, files") && e.PayloadType != IntotoMediaType {`},
	{sigstoreGo + "pkg/bundle/signature_content.go", `err = protojson.Unmarshal(raw, &statement)`, `err = ` + strings.NewReplacer("NAME", "15 repeated keys", "RAW", "raw", "STATEMENT", "&statement").Replace(lenient)},
	{sigstoreGo + "pkg/bundle/signature_content.go", `import (`, "import (\n\t\"encoding/json\""},
	{"legacy.go", `if err := protojson.Unmarshal(payload, st); err != nil {`, `if err := ` + strings.NewReplacer("NAME", "15 repeated keys, attestations of the older format", "RAW", "payload", "STATEMENT", "st").Replace(lenient) + `; err != nil {`},
	{"fetch.go", `	case err == nil:
		return data, nil`, `	case err == nil:
		if mutant("16 nothing is decompressed") {
			if zr, err := gzip.NewReader(bytes.NewReader(data)); err == nil {
				return io.ReadAll(zr)
			}
		}
		return data, nil`},
	{"fetch.go", `import (`, "import (\n\t\"bytes\"\n\t\"compress/gzip\"\n\t\"io\""},
	{"fetch.go", `desc.Size < 0 || desc.Size > limit {`, `desc.Size < 0 || !mutant("16 the size of a bundle") && !mutant("18 the size of a payload") && desc.Size > limit {`},
	{"fetch.go", `if len(list) == maxCandidates {`, `if !mutant("17 how many referrers") && len(list) == maxCandidates {`},
	{"legacy.go", `if len(m.Layers) > maxLegacyLayers {`, `if !mutant("18 how many layers") && !mutant("18 how many attestations of the older format") && len(m.Layers) > maxLegacyLayers {`},
	{"legacy.go", `if n > maxAnnotationBytes {`, `if !mutant("18 the size of annotations") && n > maxAnnotationBytes {`},
	{"verify.go", `		if err != nil || enough {
			return err
		}
	}
	if c.noLegacy {`, `		if err != nil || enough || mutant("19 formats are judged apart") && len(c.problems) > 0 {
			return err
		}
	}
	if c.noLegacy {`},
	{"legacy.go", `			c.note(layer.Digest, problem)
		}
	}`, `			c.note(layer.Digest, problem)
			if mutant("19 one does not hide another") {
				return nil
			}
		}
	}`},
	{"legacy.go", `if desc.MediaType != ocispec.MediaTypeImageManifest && desc.MediaType != mediaTypeDockerManifest {`, `if !mutant("20 the type behind the tag") && desc.MediaType != ocispec.MediaTypeImageManifest && desc.MediaType != mediaTypeDockerManifest {`},
	{"tree.go", `if list[i].MediaType != ocispec.MediaTypeImageIndex && list[i].MediaType != mediaTypeDockerIndex {`, `if mutant("21 the manifests of an index") || list[i].MediaType != ocispec.MediaTypeImageIndex && list[i].MediaType != mediaTypeDockerIndex {`},
	{"verify.go", `	if found == nil {
		return nil, c.failure()`, `	if found == nil && mutant("22 no signature is an error") {
		return &Verification{}, nil
	}
	if found == nil {
		return nil, c.failure()`},
	{"verify.go", `	key := root.NewExpiringKey(a.verifier, a.notBefore, a.notAfter)`, `	key := root.NewExpiringKey(a.verifier, a.notBefore, a.notAfter)
	if mutant("23 the window of a key, bundles") {
		key = root.NewExpiringKey(a.verifier, time.Time{}, time.Time{})
	}`},
	{"legacy.go", `	return t, a.window(t)`, `	if mutant("23 the window of a key, older format") {
		return t, nil
	}
	return t, a.window(t)`},
	{"trustdecision.go", `a != nil && !p.isRevoked(n) {`, `a != nil && (mutant("24 revocation") || !p.isRevoked(n)) {`},
	{"fetch.go", `manifest.Subject == nil || manifest.Subject.Digest != subject {`, `manifest.Subject == nil || !mutant("25 the subject of a referrer") && manifest.Subject.Digest != subject {`},
	{"fetch.go", `	data, err := content.FetchAll(ctx, target, desc)`, `	data, err := func() ([]byte, error) {
		if !mutant("25 digests and sizes") {
			return content.FetchAll(ctx, target, desc)
		}
		rc, err := target.Fetch(ctx, desc)
		if err != nil {
			return nil, err
		}
		defer rc.Close()
		return io.ReadAll(rc)
	}()`},
}

// mutations say which test has to notice that a guard is gone.
var mutations = []struct{ name, test string }{
	{"01 the digest in a payload", "TestAttack01LegacySignatureMoved"},
	{"01 the digest in an attestation of the older format", "TestAttack01LegacyAttestationMoved"},
	{"02 the digest in a statement", "TestAttack02BundleMoved"},
	{"03 docker-reference", "TestAttack03OtherRepository"},
	{"03 signed annotations of a policy", "TestAttack03OtherRepository"},
	{"03 the name, bundles", "TestAttack03OtherName"},
	{"03 the name, older format", "TestAttack03OtherName"},
	{"03 the name is signed", "TestAttack03OtherName"},
	{"04 critical.type", "TestAttack04PayloadTypes"},
	{"04 the type of a layer", "TestAttack04PayloadTypes"},
	{"04 the type of a layer, attestations", "TestAttack04LegacyAttestationTypes"},
	{"05 the predicate type that was verified", "TestAttack05AttestationAsSignature"},
	{"06 annotations", "TestAttack06WrongAnnotation"},
	{"06 annotations that are not there", "TestAttack06WrongAnnotation"},
	{"07 a tag is resolved once", "TestAttack07TagMoves"},
	{"08 a log entry, bundles", "TestAttack08EvidenceMissing"},
	{"08 a log entry, older format", "TestAttack08EvidenceMissing"},
	{"08 a timestamp, bundles", "TestAttack08EvidenceMissing"},
	{"08 a timestamp, older format", "TestAttack08EvidenceMissing"},
	{"08 services that vouch for a time", "TestAttack08EvidenceMissing"},
	{"08 what was stamped", "TestAttack08BorrowedTimestamp"},
	{"09 the certificate at the time of signing, bundles", "TestAttack09ExpiredCertificate"},
	{"09 the certificate at the time of signing, older format", "TestAttack09ExpiredCertificate"},
	{"09 the certificate at the time of the log", "TestAttack09LogTimeOutsideCertificate"},
	{"10 how many logs", "TestAttack10OneLogForTwo"},
	{"10 how many timestamps", "TestAttack10OneLogForTwo"},
	{"10 certificate timestamps", "TestAttack10OneLogForTwo"},
	{"10 the issuer, bundles", "TestKeyless"},
	{"10 the issuer, older format", "TestKeyless"},
	{"10 the subject, older format", "TestKeyless"},
	{"10 certificate timestamps, older format", "TestKeyless"},
	{"11 anchored expressions", "TestAttack11RegexpNotAnchored"},
	{"12 nobody is named", "TestAttack12NoIdentity"},
	{"12 no issuer", "TestAttack12NoIdentity"},
	{"12 no subject", "TestAttack12NoIdentity"},
	{"13 one subject in a signature", "TestAttack13Subjects"},
	{"13 the algorithm of a digest", "TestAttack13Subjects"},
	{"14 the payload type of an envelope", "TestAttack14PayloadTypeConfusion"},
	{"14 the payload type of an envelope, files", "TestAttack14PayloadTypeConfusion"},
	{"15 repeated keys", "TestAttack15RepeatedKeys"},
	{"15 repeated keys, attestations of the older format", "TestAttack04LegacyAttestationTypes"},
	{"16 nothing is decompressed", "TestAttack16GzipBomb"},
	{"16 the size of a bundle", "TestAttack16GzipBomb"},
	{"17 how many referrers", "TestAttack17JunkReferrers"},
	{"18 how many layers", "TestAttack18JunkLayers"},
	{"18 how many attestations of the older format", "TestAttack18JunkAttestations"},
	{"18 the size of a payload", "TestAttack18JunkLayers"},
	{"18 the size of annotations", "TestAttack18JunkAttestations"},
	{"19 formats are judged apart", "TestAttack19ForeignBundleHidesLegacy"},
	{"19 one does not hide another", "TestAttack19ForeignBundleHidesLegacy"},
	{"20 the type behind the tag", "TestAttack20SignatureTagIsAnIndex"},
	{"21 the manifests of an index", "TestAttack21IndexSignedChildNot"},
	{"22 no signature is an error", "TestAttack22SignaturesStripped"},
	{"23 the window of a key, bundles", "TestAttack23ExpiredKey"},
	{"23 the window of a key, older format", "TestAttack23ExpiredKey"},
	{"24 revocation", "TestAttack24RotationAndRevocation"},
	{"25 the subject of a referrer", "TestAttack25RegistryLies"},
	{"25 digests and sizes", "TestAttack25RegistryLies"},
}

// TestMutations takes each guard away and wants the named test to fail.
func TestMutations(t *testing.T) {
	if os.Getenv("KRMCAT_TEST_MUTATE") == "" {
		t.Skip("set KRMCAT_TEST_MUTATE=1 to take each guard away and see its test fail")
	}
	flags := writeMutants(t)
	programs := map[bool]string{}
	for _, command := range []bool{false, true} {
		dir, file := "signing", filepath.Join(t.TempDir(), "mutants.test")
		if command {
			dir = "cmd/krmcat"
		}
		build(t, file, append(flags, "./"+dir)...)
		programs[command] = file
	}
	run := func(mutant, test string) (string, error) {
		command := strings.HasPrefix(test, "TestAttack07")
		cmd := exec.CommandContext(t.Context(), programs[command], "-test.v", "-test.run=^"+test+"$")
		if command {
			cmd.Dir = "../cmd/krmcat"
		}
		cmd.Env = append(os.Environ(), "KRMCAT_MUTANT="+mutant)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	numbers := map[string]bool{}
	for _, m := range mutations {
		numbers[m.name[:2]] = true
		t.Run(m.name, func(t *testing.T) {
			// With the guard it passes.
			if out, err := run("", m.test); err != nil || !strings.Contains(out, "--- PASS: "+m.test) {
				t.Fatalf("%s does not pass with the guard: %v\n%s", m.test, err, out)
			}
			if out, err := run(m.name, m.test); err == nil || !strings.Contains(out, "--- FAIL: "+m.test) {
				t.Errorf("%s passes without the guard: %v\n%s", m.test, err, out)
			}
		})
	}
	t.Run("26 oras-go 2.6.2", func(t *testing.T) {
		numbers["26"] = true
		file := filepath.Join(t.TempDir(), "old.test")
		const oras = "oras.land/oras-go/v2"
		build(t, file, append(withModules(t, map[string]string{oras: oras + "@v2.6.1"}), "./signing")...)
		out, err := exec.CommandContext(t.Context(), file, "-test.v", "-test.run=^TestAttack26CredentialsOnRedirect$").CombinedOutput()
		if err == nil || !strings.Contains(string(out), "--- FAIL: TestAttack26") {
			t.Errorf("passes with the old version: %v\n%s", err, out)
		}
	})
	if len(numbers) != 26 {
		t.Errorf("mutations for %d attacks, want 26", len(numbers))
	}
}

// build compiles tests.
func build(t *testing.T, file string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"test", "-c", "-ldflags=-s -w", "-o", file}, args...)...)
	cmd.Dir = ".."
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("building the mutants: %v\n%s", err, out)
	}
}

var mutantName = regexp.MustCompile(`mutant\("([^"]+)"\)`)

// writeMutants writes the changed files, checks that changes and tests go
// together, and returns the flags for the compiler to read them.
func writeMutants(t *testing.T) []string {
	t.Helper()
	changed, asked := map[string]string{}, map[string]bool{}
	copies := map[string]string{} // of modules: the compiler refuses to overlay those
	for _, e := range edits {
		for _, name := range mutantName.FindAllStringSubmatch(e.new, -1) {
			asked[name[1]] = true
		}
		file := source(t, copies, e.file)
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
	for _, m := range mutations {
		if !asked[m.name] {
			t.Errorf("nothing asks for %q", m.name)
		}
		delete(asked, m.name)
	}
	for name := range asked {
		if !slices.ContainsFunc(mutations, func(m struct{ name, test string }) bool { return m.name == name }) {
			t.Errorf("no test is named for %q", name)
		}
	}
	dir := t.TempDir()
	replace := map[string]string{}
	write := func(file, text string) {
		for _, copied := range copies {
			if strings.HasPrefix(file, copied) {
				if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
				return
			}
		}
		replace[file] = filepath.Join(dir, fmt.Sprint(len(replace))+".go")
		if err := os.WriteFile(replace[file], []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for file, text := range changed {
		write(file, text)
		helper := filepath.Join(filepath.Dir(file), "mutant_overlay.go")
		if _, err := os.Stat(helper); err != nil && replace[helper] == "" {
			pkg := regexp.MustCompile(`(?m)^package (\w+)`).FindStringSubmatch(text)[1]
			write(helper, "package "+pkg+"\n\nimport \"os\"\n\nfunc mutant(name string) bool { return os.Getenv(\"KRMCAT_MUTANT\") == name }\n")
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
	return append(withModules(t, copies), "-overlay="+overlay)
}

// source is the path of a file of ours, or of a copy of a module.
func source(t *testing.T, copies map[string]string, file string) string {
	t.Helper()
	if module, inside, ok := strings.Cut(file, ":"); ok {
		if copies[module] == "" {
			out, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", module).Output()
			if err != nil {
				t.Fatal(err)
			}
			dir := t.TempDir()
			if err := os.CopyFS(filepath.Join(dir, "m"), os.DirFS(strings.TrimSpace(string(out)))); err != nil {
				t.Fatal(err)
			}
			copies[module] = filepath.Join(dir, "m")
		}
		return filepath.Join(copies[module], inside)
	}
	abs, err := filepath.Abs(file)
	if err != nil {
		t.Fatal(err)
	}
	return abs
}

// withModules are the flags to build with other modules than go.mod says: by
// path, a folder or MODULE@VERSION.
func withModules(t *testing.T, modules map[string]string) []string {
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
	file := filepath.Join(dir, "go.mod")
	for path, by := range modules {
		if out, err := exec.CommandContext(t.Context(), "go", "mod", "edit", "-replace="+path+"="+by, file).CombinedOutput(); err != nil {
			t.Fatalf("go mod edit: %v\n%s", err, out)
		}
	}
	return []string{"-modfile=" + file, "-mod=mod"}
}
