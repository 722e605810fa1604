package trustimport

import (
	"slices"
	"strings"

	"github.com/krmcat/krmcat/signing"
)

// fluxVerify is the spec.verify of Flux's sources.
type fluxVerify struct {
	Provider             string         `json:"provider"`
	SecretRef            *fluxReference `json:"secretRef"`
	MatchOIDCIdentity    []fluxIdentity `json:"matchOIDCIdentity"`
	TrustedRootSecretRef *fluxReference `json:"trustedRootSecretRef"`
}

type fluxReference struct {
	Name string `json:"name"`
}

type fluxIdentity struct {
	Issuer  string `json:"issuer"`
	Subject string `json:"subject"`
}

// ociRepository imports the verification of an OCIRepository; everything else
// in it is about what to fetch, and when.
func (im *importer) ociRepository(at origin) {
	where, _ := at.doc.ValueAt([]string{"spec", "url"})
	url, _ := where.(string)
	scope, ok := strings.CutPrefix(url, "oci://")
	if !ok {
		im.refuse(at.at("spec", "url"), "%q does not name a repository (oci://HOST/REPOSITORY)", url)
		return
	}
	im.fluxVerify(at, []string{strings.TrimSuffix(scope, "/")})
}

// helmChart imports that of a HelmChart, whose repository is another object.
func (im *importer) helmChart(at origin) {
	value := func(path ...string) string {
		v, _ := at.doc.ValueAt(path)
		s, _ := v.(string)
		return s
	}
	if kind := value("spec", "sourceRef", "kind"); kind != "HelmRepository" {
		im.refuse(at.at("spec", "sourceRef"), "only charts of a HelmRepository are verified, not of %q", kind)
		return
	}
	scopes := im.opts.Scopes
	for _, d := range im.file.Documents {
		get := func(path ...string) string {
			v, _ := d.ValueAt(path)
			s, _ := v.(string)
			return s
		}
		if get("kind") != "HelmRepository" || get("metadata", "name") != value("spec", "sourceRef", "name") || get("metadata", "namespace") != value("metadata", "namespace") {
			continue
		}
		base, ok := strings.CutPrefix(get("spec", "url"), "oci://")
		if !ok {
			im.refuse(origin{doc: d}.at("spec", "url"), "%q is not in a registry (oci://…), and only charts in one are signed so", get("spec", "url"))
			return
		}
		scopes = []string{strings.TrimSuffix(base, "/") + "/" + value("spec", "chart")}
	}
	if len(scopes) == 0 {
		im.refuse(at.at("spec", "sourceRef"), "the HelmRepository %q, which says where the chart is, is not in this file; add it, or give --scope", value("spec", "sourceRef", "name"))
		return
	}
	im.fluxVerify(at, scopes)
}

func (im *importer) fluxVerify(at origin, scopes []string) {
	at = at.at("spec", "verify")
	if _, ok := at.doc.ValueAt(at.path); !ok {
		im.refuse(origin{doc: at.doc, path: []string{"spec"}}, "there is no spec.verify, so everything is accepted; a TrustPolicy cannot say that")
		return
	}
	var v fluxVerify
	if !im.decode(at, &v) {
		return
	}
	if v.Provider != "" && v.Provider != "cosign" {
		im.refuse(at.at("provider"), "provider %q has other signatures than Sigstore's", v.Provider)
		return
	}
	var names []string
	switch {
	case v.SecretRef != nil && len(v.MatchOIDCIdentity) > 0:
		im.refuse(at.at("matchOIDCIdentity"), "with a secretRef Flux looks at the keys in it only; leave one of the two out")
	case v.SecretRef != nil:
		if len(im.opts.Keys) == 0 {
			im.refuse(at.at("secretRef"), "the keys are in the secret %q; give each of them as a file with --key", v.SecretRef.Name)
		}
		for i, k := range im.opts.Keys {
			s := signing.TrustSigner{Key: &signing.TrustKey{PublicKey: k}}
			name := v.SecretRef.Name
			if i > 0 {
				name += "-key"
			}
			names = append(names, im.signer(at.at("secretRef"), name, s))
		}
	case len(v.MatchOIDCIdentity) == 0:
		im.refuse(at, "without secretRef and matchOIDCIdentity Flux accepts a certificate of anybody; name whose")
	}
	if v.TrustedRootSecretRef != nil {
		im.note(at.at("trustedRootSecretRef"), "put the trusted_root.json of the secret %q beside the policy, as %s", v.TrustedRootSecretRef.Name, im.opts.TrustedRoot)
	}
	for i, id := range v.MatchOIDCIdentity {
		at := at.at("matchOIDCIdentity", i)
		k := im.keyless("")
		k.Issuer = im.issuer(at.at("issuer"), id.Issuer)
		im.subject(at.at("subject"), id.Subject, &k.Subject)
		names = append(names, im.signer(at, "identity", signing.TrustSigner{Keyless: k}))
	}
	if len(im.mistakes) > 0 {
		return
	}
	im.note(at, "signatures of the older format count as well (legacy), as they do for Flux")
	slices.Sort(names)
	names = slices.Compact(names)
	for _, scope := range scopes {
		im.rule(at, signing.TrustRule{Scope: scope, Signatures: signing.TrustSignatures{AnyOf: names}, Legacy: true})
	}
}

// issuer is the one issuer that an expression is about. A TrustPolicy has
// exact issuers.
func (im *importer) issuer(at origin, re string) string {
	text, dots, ok := literal(re)
	if !ok {
		im.refuse(at, "%q does not stand for exactly one issuer; write it as ^https://HOST/PATH$", re)
		return ""
	}
	if dots {
		im.note(at, "the dots in %q are taken literally, so fewer issuers match: %s", re, text)
	}
	return text
}

// subject takes an expression over as it is meant: it may match anywhere,
// where that of a TrustPolicy matches the whole subject.
func (im *importer) subject(at origin, re string, m *signing.TrustMatch) {
	if text, dots, ok := literal(re); ok && !dots {
		m.Equal = text
		return
	}
	whole, changed, err := anchored(re)
	if err != nil {
		im.refuse(at, "%v", err)
		return
	}
	if changed {
		im.note(at, "%q matches anywhere in a subject; a TrustPolicy's expression matches all of it, so it became %q", re, whole)
	}
	m.Regexp = whole
}
