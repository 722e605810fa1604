// Package trustimport reads what other projects call a policy about signatures
// and writes it as a trust policy of krmcat's: Kubewarden's
// verification-config.yml (v1), the spec.verify of Flux's OCIRepository and
// HelmChart, and the policy-controller's ClusterImagePolicy.
//
// What cannot be said exactly, or only more strictly, is refused, with its
// place and the reason. Nothing is ever widened. What became stricter, or was
// written in another way, is in the notes.
package trustimport

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing/fstest"

	"sigs.k8s.io/yaml"

	"github.com/krmcat/krmcat/internal/yamlpos"
	"github.com/krmcat/krmcat/signing"
)

// Options say what the formats leave to others.
type Options struct {
	// Scopes are those of the rules, for formats that have none: Kubewarden's,
	// and a HelmChart whose HelmRepository is not in the same file.
	Scopes []string
	// Keys are the public keys in PEM that a Flux secretRef stands for.
	Keys []string
	// TrustedRoot is the file with Sigstore's trusted root, as the policy
	// names it; empty is trusted_root.json.
	TrustedRoot string
}

// Result is an imported policy.
type Result struct {
	Policy *signing.TrustPolicy
	YAML   []byte
	// Notes say what was written in another way than it stood there.
	Notes []signing.TrustPolicyMistake
}

// maxBytes bounds what is imported.
const maxBytes = 1 << 20

// rootName is what the policy calls its trusted root.
const rootName = "sigstore"

// Import reads all documents of a file. What does not map one to one is a
// [*signing.TrustPolicyError], with all that was found.
func Import(data []byte, opts Options) (*Result, error) {
	if opts.TrustedRoot == "" {
		opts.TrustedRoot = "trusted_root.json"
	}
	f, problems := yamlpos.Parse("", data, yamlpos.Limits{Bytes: maxBytes, Depth: 40, Documents: 1000, Values: 100_000, Expanded: 1000, Problems: 100})
	im := &importer{opts: opts, file: f, policy: &signing.TrustPolicy{
		APIVersion: signing.TrustPolicyAPIVersion, Kind: signing.TrustPolicyKind, Metadata: signing.TrustMetadata{Name: "imported"},
	}}
	for _, p := range problems {
		im.mistakes = append(im.mistakes, signing.TrustPolicyMistake{Line: p.Line, Column: p.Column, Width: p.Width, Message: p.Message, Fix: p.Fix})
	}
	if len(im.mistakes) == 0 && len(f.Documents) == 0 {
		im.mistakes = append(im.mistakes, signing.TrustPolicyMistake{Line: 1, Column: 1, Message: "there is no document"})
	}
	if len(im.mistakes) == 0 {
		for _, d := range f.Documents {
			im.document(d)
		}
	}
	if len(im.mistakes) == 0 && len(im.policy.Spec.Rules) == 0 {
		im.mistakes = append(im.mistakes, signing.TrustPolicyMistake{Line: f.Documents[0].Line, Column: 1, Message: "there is nothing about signatures in it"})
	}
	if len(im.mistakes) > 0 {
		sortByPlace(im.mistakes)
		return nil, &signing.TrustPolicyError{Mistakes: im.mistakes}
	}
	sortByPlace(im.notes)
	return im.finish()
}

func sortByPlace(list []signing.TrustPolicyMistake) {
	slices.SortStableFunc(list, func(a, b signing.TrustPolicyMistake) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column), cmp.Compare(a.Path, b.Path))
	})
}

// importer collects a policy.
type importer struct {
	opts     Options
	file     *yamlpos.File
	policy   *signing.TrustPolicy
	origins  []origin // of the signers
	rules    []origin // of the rules
	mistakes []signing.TrustPolicyMistake
	notes    []signing.TrustPolicyMistake
}

// origin is where something stands in what is imported.
type origin struct {
	doc  *yamlpos.Document
	path []string
}

func (o origin) at(more ...any) origin {
	path := slices.Clone(o.path)
	for _, m := range more {
		path = append(path, fmt.Sprint(m))
	}
	return origin{o.doc, path}
}

func (o origin) mistake(format string, a ...any) signing.TrustPolicyMistake {
	p := o.doc.ProblemAt(o.path, yamlpos.Type, false, "", format, a...)
	return signing.TrustPolicyMistake{Line: p.Line, Column: p.Column, Width: p.Width, Path: yamlpos.Path(o.doc.Value, p.Path), Message: p.Message}
}

// refuse notes what cannot be imported, and why.
func (im *importer) refuse(at origin, format string, a ...any) {
	im.mistakes = append(im.mistakes, at.mistake(format, a...))
}

func (im *importer) note(at origin, format string, a ...any) {
	im.notes = append(im.notes, at.mistake(format, a...))
}

// decode reads a part of a document, strictly: what is not known could have
// been a condition.
func (im *importer) decode(at origin, v any) bool {
	problems := at.doc.DecodeAt(at.path, v)
	for _, p := range problems {
		im.mistakes = append(im.mistakes, signing.TrustPolicyMistake{Line: p.Line, Column: p.Column, Width: p.Width, Path: yamlpos.Path(at.doc.Value, p.Path), Message: p.Message, Fix: p.Fix})
	}
	return len(problems) == 0
}

// document imports one document by what it says that it is.
func (im *importer) document(d *yamlpos.Document) {
	at := origin{doc: d}
	m, ok := d.Value.(map[string]any)
	if !ok {
		im.refuse(at, "this is no policy")
		return
	}
	apiVersion, _ := m["apiVersion"].(string)
	kind, _ := m["kind"].(string)
	group, _, _ := strings.Cut(apiVersion, "/")
	switch {
	case kind == "" && apiVersion == "v1":
		im.kubewarden(at)
	case group == "source.toolkit.fluxcd.io" && kind == "OCIRepository":
		im.ociRepository(at)
	case group == "source.toolkit.fluxcd.io" && kind == "HelmChart":
		im.helmChart(at)
	case group == "source.toolkit.fluxcd.io" && kind == "HelmRepository":
		// It says where its charts are.
	case group == "policy.sigstore.dev" && kind == "ClusterImagePolicy":
		im.clusterImagePolicy(at)
	default:
		im.refuse(at, "%s %s is not imported; what is: Kubewarden's verification-config.yml (apiVersion: v1), Flux's OCIRepository and HelmChart, and ClusterImagePolicy", apiVersion, kind)
	}
}

// signer adds a signer under a name of its own, or finds the one that is the
// same.
func (im *importer) signer(at origin, name string, s signing.TrustSigner) string {
	for _, have := range im.policy.Spec.Signers {
		if sameSigner(have, s) {
			return have.Name
		}
	}
	base := plain(name)
	s.Name = base
	for i := 2; slices.ContainsFunc(im.policy.Spec.Signers, func(o signing.TrustSigner) bool { return o.Name == s.Name }); i++ {
		s.Name = fmt.Sprintf("%s-%d", base, i)
	}
	im.policy.Spec.Signers = append(im.policy.Spec.Signers, s)
	im.origins = append(im.origins, at)
	return s.Name
}

func sameSigner(a, b signing.TrustSigner) bool {
	a.Name, b.Name = "", ""
	x, errX := yaml.Marshal(a)
	y, errY := yaml.Marshal(b)
	return errX == nil && errY == nil && string(x) == string(y)
}

// plain makes a name of letters, digits, dots and dashes.
func plain(s string) string {
	s = strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '.':
			return r
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		}
		return '-'
	}, s)
	if s = strings.Trim(s, "-."); s == "" || len(s) > 60 {
		return "signer"
	}
	return s
}

// root makes sure that the policy names the trusted root.
func (im *importer) root() string {
	if len(im.policy.Spec.Roots) == 0 {
		im.policy.Spec.Roots = []signing.TrustRoot{{Name: rootName, TrustedRoot: im.opts.TrustedRoot}}
	}
	return rootName
}

func (im *importer) rule(at origin, r signing.TrustRule) {
	for i, have := range im.policy.Spec.Rules {
		if have.Scope == r.Scope && im.rules[i].doc == at.doc {
			return // said twice
		}
		if overlap(have.Scope, r.Scope) && im.rules[i].doc != at.doc {
			im.refuse(at, "%s and %s are both about some repositories; there all of them would have to be satisfied, and in a TrustPolicy the longest scope decides alone (line %d)", have.Scope, r.Scope, im.rules[i].mistake("").Line)
			return
		}
	}
	im.policy.Spec.Rules = append(im.policy.Spec.Rules, r)
	im.rules = append(im.rules, at)
}

// overlap reports whether there can be a repository in both scopes.
func overlap(a, b string) bool {
	within := func(x, y string) bool {
		base, below := strings.CutSuffix(y, "/**")
		return x == y || below && (strings.HasPrefix(x, base+"/"))
	}
	return within(a, b) || within(b, a)
}

// emptyRoot stands for the trusted root when the policy is checked.
const emptyRoot = `{"mediaType":"application/vnd.dev.sigstore.trustedroot+json;version=0.1"}`

// finish writes the policy, and reads it as anybody will: what krmcat would
// refuse to apply is refused here, where it stands in the other format.
func (im *importer) finish() (*Result, error) {
	text, err := yaml.Marshal(im.policy)
	if err != nil {
		return nil, fmt.Errorf("writing the policy: %w", err)
	}
	files := fstest.MapFS{im.opts.TrustedRoot: {Data: []byte(emptyRoot)}}
	p, err := signing.LoadTrustPolicy(text, files)
	te, invalid := errors.AsType[*signing.TrustPolicyError](err)
	if err != nil && !invalid {
		return nil, err
	}
	if invalid {
		for _, m := range te.Mistakes {
			at := origin{doc: im.file.Documents[0]}
			var i int
			if _, err := fmt.Sscanf(m.Path, "spec.signers[%d]", &i); err == nil && i < len(im.origins) {
				at = im.origins[i]
			} else if _, err := fmt.Sscanf(m.Path, "spec.rules[%d]", &i); err == nil && i < len(im.rules) {
				at = im.rules[i]
			}
			im.refuse(at, "%s", m.Message)
		}
		return nil, &signing.TrustPolicyError{Mistakes: im.mistakes}
	}
	return &Result{Policy: p, YAML: text, Notes: im.notes}, nil
}
