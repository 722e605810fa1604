package trustimport

import (
	"net/url"
	"slices"
	"strings"

	"github.com/krmcat/krmcat/signing"
)

// kubewardenConfig is Kubewarden's verification-config.yml.
type kubewardenConfig struct {
	APIVersion string                `json:"apiVersion"`
	AllOf      []kubewardenSignature `json:"allOf"`
	AnyOf      *kubewardenAnyOf      `json:"anyOf"`
}

type kubewardenAnyOf struct {
	MinimumMatches *int                  `json:"minimumMatches"`
	Signatures     []kubewardenSignature `json:"signatures"`
}

type kubewardenSignature struct {
	Kind        string             `json:"kind"`
	Owner       string             `json:"owner"`
	Key         string             `json:"key"`
	Repo        string             `json:"repo"`
	Issuer      string             `json:"issuer"`
	Subject     *kubewardenSubject `json:"subject"`
	Annotations map[string]string  `json:"annotations"`
}

type kubewardenSubject struct {
	Equal     string `json:"equal"`
	URLPrefix string `json:"urlPrefix"`
}

// githubIssuer is where GitHub's CI jobs get their identity tokens.
const githubIssuer = "https://token.actions.githubusercontent.com"

func (im *importer) kubewarden(at origin) {
	var c kubewardenConfig
	if !im.decode(at, &c) {
		return
	}
	if len(im.opts.Scopes) == 0 {
		im.refuse(at, "it is about everything; say with --scope for which repositories it shall be")
		return
	}
	var s signing.TrustSignatures
	for i, x := range c.AllOf {
		if name, ok := im.kubewardenSigner(at.at("allOf", i), x); ok {
			s.AllOf = append(s.AllOf, name)
		}
	}
	if alternatives := c.AnyOf; alternatives != nil {
		s.Threshold = 1
		if alternatives.MinimumMatches != nil {
			s.Threshold = *alternatives.MinimumMatches
		}
		if s.Threshold < 1 || s.Threshold > len(alternatives.Signatures) {
			im.refuse(at.at("anyOf", "minimumMatches"), "%d of %d signatures can never be asked for", s.Threshold, len(alternatives.Signatures))
		}
		for i, x := range alternatives.Signatures {
			if name, ok := im.kubewardenSigner(at.at("anyOf", "signatures", i), x); ok {
				s.AnyOf = append(s.AnyOf, name)
			}
		}
	}
	if len(c.AllOf) == 0 && c.AnyOf == nil {
		im.refuse(at, "neither allOf nor anyOf asks for a signature")
	}
	if len(im.mistakes) > 0 {
		return
	}
	// One signature satisfies every entry that it fits there, and counts once
	// here; that is the same as long as no signature fits two.
	if len(s.AllOf) > 1 || len(s.AllOf) == 1 && len(s.AnyOf) > 0 || s.Threshold > 1 {
		im.disjoint()
	}
	im.note(at, "the older signature format counts (legacy), with the repository that it names compared as well; identities need a certificate timestamp too, as is the default")
	for _, scope := range im.opts.Scopes {
		im.rule(at, signing.TrustRule{Scope: scope, Signatures: s, Legacy: true})
	}
}

// kubewardenSigner makes a signer of one entry.
func (im *importer) kubewardenSigner(at origin, x kubewardenSignature) (string, bool) {
	s := signing.TrustSigner{Annotations: x.Annotations}
	before := len(im.mistakes)
	only := func(fields ...string) {
		for name, set := range map[string]bool{"owner": x.Owner != "", "key": x.Key != "", "repo": x.Repo != "", "issuer": x.Issuer != "", "subject": x.Subject != nil} {
			if set && !slices.Contains(fields, name) {
				im.refuse(at.at(name), "%s is no field of the kind %s", name, x.Kind)
			}
		}
	}
	name := x.Owner
	switch x.Kind {
	case "pubKey":
		only("owner", "key")
		s.Key = &signing.TrustKey{PublicKey: x.Key}
		if !strings.Contains(x.Key, "-----BEGIN") {
			im.refuse(at.at("key"), "the key is not PEM text")
		}
		if name == "" {
			name = "key"
		}
	case "genericIssuer":
		only("issuer", "subject")
		k := im.keyless(x.Issuer)
		name = im.kubewardenSubject(at, x, k)
		s.Keyless = k
	case "githubAction":
		only("owner", "repo")
		if x.Owner == "" {
			im.refuse(at, "githubAction needs an owner")
		}
		k := im.keyless(githubIssuer)
		// Kubewarden wants some URL of GitHub's as the subject, and compares
		// the repository that the job ran for.
		k.Subject.Regexp = `https://github\.com/[^/]+/[^/]+.*`
		k.SourceRepository = &signing.TrustMatch{Prefix: "https://github.com/" + x.Owner + "/"}
		if x.Repo != "" {
			k.SourceRepository = &signing.TrustMatch{Equal: "https://github.com/" + x.Owner + "/" + x.Repo}
			name += "-" + x.Repo
		}
		if strings.ContainsAny(x.Owner+x.Repo, "/@#? ") {
			im.refuse(at, "owner %q and repo %q are not the names of an account and a repository", x.Owner, x.Repo)
		}
		s.Keyless = k
	default:
		im.refuse(at.at("kind"), "kind %q is not one of pubKey, genericIssuer, githubAction", x.Kind)
	}
	if len(im.mistakes) > before {
		return "", false
	}
	return im.signer(at, name, s), true
}

func (im *importer) kubewardenSubject(at origin, x kubewardenSignature, k *signing.TrustKeyless) string {
	switch {
	case x.Issuer == "":
		im.refuse(at, "genericIssuer needs an issuer")
	case x.Subject == nil || (x.Subject.Equal == "") == (x.Subject.URLPrefix == ""):
		im.refuse(at.at("subject"), "give one of equal and urlPrefix")
	case x.Subject.Equal != "":
		k.Subject.Equal = x.Subject.Equal
	default:
		u, err := url.Parse(x.Subject.URLPrefix)
		if err != nil || u.Scheme == "" || u.Host == "" || u.RawQuery != "" || u.Fragment != "" {
			im.refuse(at.at("subject", "urlPrefix"), "%q is no URL that others begin with", x.Subject.URLPrefix)
			break
		}
		// As Kubewarden does, so that org does not match org-malicious.
		k.Subject.Prefix = strings.TrimSuffix(x.Subject.URLPrefix, "/") + "/"
		if k.Subject.Prefix != x.Subject.URLPrefix {
			im.note(at.at("subject", "urlPrefix"), "written with the slash at its end that Kubewarden adds")
		}
	}
	if u, err := url.Parse(x.Issuer); err == nil && u.Host != "" {
		return u.Host
	}
	return "signer"
}

// keyless is an identity with the evidence that Kubewarden and Flux want: an
// entry in the transparency log, which also gives the time.
func (im *importer) keyless(issuer string) *signing.TrustKeyless {
	return &signing.TrustKeyless{Root: im.root(), Issuer: issuer, Evidence: signing.TrustEvidence{Tlog: 1}}
}

// disjoint refuses signers of which one signature could satisfy two.
func (im *importer) disjoint() {
	list := im.policy.Spec.Signers
	for i := range list {
		for j := range i {
			if list[i].Keyless != nil && list[j].Keyless != nil && !apart(list[i].Keyless, list[j].Keyless) {
				im.refuse(im.origins[i], "one signature could satisfy this and the entry in line %d; Kubewarden counts it for both, a TrustPolicy once", im.origins[j].mistake("").Line)
			}
		}
	}
}

// apart reports whether no certificate can be that of both.
func apart(a, b *signing.TrustKeyless) bool {
	if a.Issuer != b.Issuer {
		return true
	}
	if a.SourceRepository != nil && b.SourceRepository != nil {
		return matchesApart(*a.SourceRepository, *b.SourceRepository)
	}
	return matchesApart(a.Subject, b.Subject)
}

func matchesApart(a, b signing.TrustMatch) bool {
	switch {
	case a.Equal != "" && b.Equal != "":
		return a.Equal != b.Equal
	case a.Equal != "" && b.Prefix != "":
		return !strings.HasPrefix(a.Equal, b.Prefix)
	case a.Prefix != "" && b.Equal != "":
		return !strings.HasPrefix(b.Equal, a.Prefix)
	case a.Prefix != "" && b.Prefix != "":
		return !strings.HasPrefix(a.Prefix, b.Prefix) && !strings.HasPrefix(b.Prefix, a.Prefix)
	}
	return false // expressions are not compared
}
