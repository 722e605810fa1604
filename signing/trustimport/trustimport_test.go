package trustimport_test

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/fstest"

	"golang.org/x/tools/txtar"

	"github.com/krmcat/krmcat/signing"
	"github.com/krmcat/krmcat/signing/trustimport"
)

var update = flag.Bool("update", false, "rewrite the expected results in testdata")

// key is a public key that nobody has the other half of.
const key = `-----BEGIN PUBLIC KEY-----
MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEQiTy5S+2JFvVlhUwWPLziM7iTM2j
byLgh2IjpNQN0Uio/9pZOTP/CsJmXoUNshfpTUHd3OxgHgz/6adtf2nBwQ==
-----END PUBLIC KEY-----
`

// Each file in testdata holds an input and what becomes of it: the policy and
// the notes, or what is refused. The first lines may say scope: and key:.
func TestImport(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatal(err, files)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			t.Parallel()
			ar, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var opts trustimport.Options
			for line := range strings.Lines(string(ar.Comment)) {
				if s, ok := strings.CutPrefix(strings.TrimSpace(line), "scope: "); ok {
					opts.Scopes = append(opts.Scopes, s)
				}
				if strings.TrimSpace(line) == "key" {
					opts.Keys = append(opts.Keys, key)
				}
			}
			got := describe(t, ar.Files[0].Data, opts)
			if *update {
				ar.Files = append(ar.Files[:1], got...)
				if err := os.WriteFile(file, txtar.Format(ar), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if want := txtar.Format(&txtar.Archive{Files: ar.Files[1:]}); string(want) != string(txtar.Format(&txtar.Archive{Files: got})) {
				t.Errorf("got:\n%s\nwant:\n%s", txtar.Format(&txtar.Archive{Files: got}), want)
			}
		})
	}
}

func describe(t *testing.T, data []byte, opts trustimport.Options) []txtar.File {
	t.Helper()
	res, err := trustimport.Import(data, opts)
	if te, ok := errors.AsType[*signing.TrustPolicyError](err); ok {
		te.File = "in.yaml"
		return []txtar.File{{Name: "refused", Data: []byte(te.Error() + "\n")}}
	}
	if err != nil {
		t.Fatal(err)
	}
	var notes strings.Builder
	for _, n := range res.Notes {
		fmt.Fprintf(&notes, "%d:%d: %s\n", n.Line, n.Column, n.Message)
	}
	return []txtar.File{{Name: "policy.yaml", Data: res.YAML}, {Name: "notes", Data: []byte(notes.String())}}
}

// An expression that matches anywhere, and what it became, agree about every
// subject.
func FuzzSubject(f *testing.F) {
	for _, re := range []string{`^https://github.com/acme/.*$`, `acme`, `^acme`, `acme$`, `^a|b$`, `(?i)acme`, `(?m)^acme$`, `a{2}`, `\$`, `a\$`, `^$`, `^(?:a)$`} {
		f.Add(re, "https://github.com/acme/x", "xacme\nacme")
	}
	f.Fuzz(func(t *testing.T, re, a, b string) {
		if len(re) > 100 {
			return
		}
		original, err := regexp.Compile(re)
		if err != nil {
			return
		}
		doc := fmt.Sprintf("apiVersion: source.toolkit.fluxcd.io/v1\nkind: OCIRepository\nspec:\n  url: oci://ghcr.io/acme/x\n  verify:\n    matchOIDCIdentity:\n    - {issuer: '^https://accounts\\.example$', subject: %q}\n", re)
		res, err := trustimport.Import([]byte(doc), trustimport.Options{})
		if err != nil {
			return // refused, which is never wrong
		}
		m := res.Policy.Spec.Signers[0].Keyless.Subject
		for _, s := range []string{a, b, a + b, re} {
			got := m.Equal != "" && m.Equal == s
			if m.Regexp != "" {
				got = regexp.MustCompile(`^(?:` + m.Regexp + `)$`).MatchString(s)
			}
			if got != original.MatchString(s) {
				t.Errorf("%q became %+v, and they differ about %q", re, m, s)
			}
		}
	})
}

// What is imported is a policy that krmcat reads, in which every rule asks for
// a signature, and which says the same when it is written again.
func FuzzImport(f *testing.F) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		ar, err := txtar.ParseFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(ar.Files[0].Data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		res, err := trustimport.Import(data, trustimport.Options{Scopes: []string{"ghcr.io/acme/**"}, Keys: []string{key}})
		if err != nil {
			if te, ok := errors.AsType[*signing.TrustPolicyError](err); !ok || len(te.Mistakes) == 0 {
				t.Fatalf("refused without a reason: %v", err)
			}
			return
		}
		root := fstest.MapFS{"trusted_root.json": {Data: []byte(`{"mediaType":"application/vnd.dev.sigstore.trustedroot+json;version=0.1"}`)}}
		p, err := signing.LoadTrustPolicy(res.YAML, root)
		if err != nil {
			t.Fatalf("%v\n%s", err, res.YAML)
		}
		for _, r := range p.Spec.Rules {
			if len(r.Signatures.AllOf)+len(r.Signatures.AnyOf) == 0 {
				t.Errorf("%s asks for nothing", r.Scope)
			}
		}
		for _, s := range p.Spec.Signers {
			if s.Keyless != nil && s.Keyless.Evidence.Tlog+s.Keyless.Evidence.Timestamps == 0 {
				t.Errorf("%s needs no time", s.Name)
			}
		}
	})
}
