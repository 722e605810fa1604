package trustimport

import (
	"slices"
	"strings"

	"github.com/krmcat/krmcat/signing"
)

// imagePolicySpec is the spec of the policy-controller's ClusterImagePolicy.
type imagePolicySpec struct {
	Images      []imagePattern `json:"images"`
	Authorities []authority    `json:"authorities"`
	Policy      any            `json:"policy"`
	Mode        string         `json:"mode"`
	Match       []any          `json:"match"`
}

type imagePattern struct {
	Glob string `json:"glob"`
}

type authority struct {
	Name             string        `json:"name"`
	Key              *authorityKey `json:"key"`
	Keyless          *keylessRef   `json:"keyless"`
	Static           any           `json:"static"`
	Source           []any         `json:"source"`
	CTLog            *ctlog        `json:"ctlog"`
	Attestations     []any         `json:"attestations"`
	RFC3161Timestamp *ctlog        `json:"rfc3161timestamp"`
	SignatureFormat  string        `json:"signatureFormat"`
}

type authorityKey struct {
	Data          string `json:"data"`
	SecretRef     any    `json:"secretRef"`
	KMS           string `json:"kms"`
	HashAlgorithm string `json:"hashAlgorithm"`
}

type keylessRef struct {
	URL               string            `json:"url"`
	Identities        []keylessIdentity `json:"identities"`
	CACert            any               `json:"ca-cert"`
	TrustRootRef      string            `json:"trustRootRef"`
	InsecureIgnoreSCT bool              `json:"insecureIgnoreSCT"`
}

type keylessIdentity struct {
	Issuer        string `json:"issuer"`
	Subject       string `json:"subject"`
	IssuerRegExp  string `json:"issuerRegExp"`
	SubjectRegExp string `json:"subjectRegExp"`
}

type ctlog struct {
	URL          string `json:"url"`
	TrustRootRef string `json:"trustRootRef"`
}

func (im *importer) clusterImagePolicy(at origin) {
	at = at.at("spec")
	if _, ok := at.doc.ValueAt(at.path); !ok {
		im.refuse(at, "there is no spec")
		return
	}
	var spec imagePolicySpec
	if !im.decode(at, &spec) {
		return
	}
	for _, x := range []struct {
		field, why string
		there      bool
	}{
		{"mode", "it lets through what fails; a TrustPolicy never does", spec.Mode != "" && spec.Mode != "enforce"},
		{"match", "it is about kinds of resources of a cluster", len(spec.Match) > 0},
		{"policy", "programs in CUE or Rego have no counterpart in a TrustPolicy", spec.Policy != nil},
		{"authorities", "without authorities it asks for no signature", len(spec.Authorities) == 0},
		{"images", "it names no images", len(spec.Images) == 0},
	} {
		if x.there {
			im.refuse(at.at(x.field), "%s", x.why)
		}
	}
	var names []string
	legacy := map[bool]bool{}
	for i, a := range spec.Authorities {
		names = append(names, im.authority(at.at("authorities", i), a)...)
		legacy[a.SignatureFormat != "bundle"] = true
	}
	if len(legacy) > 1 {
		im.refuse(at.at("authorities"), "some authorities want bundles and some the older format; a rule of a TrustPolicy is for all its signers")
	}
	if legacy[true] {
		im.note(at.at("authorities"), "bundles by the same signers count beside the older format")
	}
	for i, g := range spec.Images {
		at := at.at("images", i, "glob")
		scope, ok := scopeOf(g.Glob)
		if !ok {
			im.refuse(at, "the pattern %q is not about whole repositories below a name; HOST/PREFIX/** is", g.Glob)
			continue
		}
		if scope != g.Glob {
			im.note(at, "written as %s, as krmcat calls Docker Hub", scope)
		}
		im.rule(at, signing.TrustRule{Scope: scope, Signatures: signing.TrustSignatures{AnyOf: names}, Legacy: legacy[true]})
	}
}

// scopeOf is the scope that is the same as a pattern for images.
func scopeOf(glob string) (string, bool) {
	base, ok := strings.CutSuffix(glob, "/**")
	if !ok || strings.ContainsAny(base, "*@") || base == "" {
		return "", false
	}
	if rest, ok := strings.CutPrefix(base, "index.docker.io"); ok && (rest == "" || rest[0] == '/') {
		base = "docker.io" + rest
	}
	return base + "/**", true
}

// authority makes signers of an authority: any of them will do.
func (im *importer) authority(at origin, a authority) []string {
	before := len(im.mistakes)
	for _, x := range []struct {
		field, why string
		there      bool
	}{
		{"static", "it decides without a signature", a.Static != nil},
		{"source", "signatures are looked for beside the artifact only", len(a.Source) > 0},
		{"attestations", "an authority with attestations asks for no signature besides; a TrustPolicy always does", len(a.Attestations) > 0},
		{"signatureFormat", "this is neither legacy nor bundle", !slices.Contains([]string{"", "legacy", "bundle"}, a.SignatureFormat)},
	} {
		if x.there {
			im.refuse(at.at(x.field), "%s", x.why)
		}
	}
	var ev signing.TrustEvidence
	switch {
	case a.CTLog == nil:
		ev.Tlog = 1
		im.note(at, "no ctlog: an entry in a transparency log is required")
	case a.CTLog.URL != "" || a.CTLog.TrustRootRef != "":
		ev.Tlog = 1
	}
	if a.RFC3161Timestamp != nil {
		ev.Timestamps = 1
	}
	name := a.Name
	if name == "" {
		name = "authority"
	}
	var names []string
	switch {
	case (a.Key == nil) == (a.Keyless == nil):
		if a.Static == nil {
			im.refuse(at, "exactly one of key and keyless")
		}
	case a.Key != nil:
		k := a.Key
		switch {
		case k.KMS != "":
			im.refuse(at.at("key", "kms"), "keys of a service cannot be asked for here; give the public key as data")
		case k.SecretRef != nil:
			im.refuse(at.at("key", "secretRef"), "the key is in a secret; give it as data")
		case !strings.Contains(k.Data, "-----BEGIN"):
			im.refuse(at.at("key", "data"), "the key is not PEM text")
		case k.HashAlgorithm != "" && k.HashAlgorithm != "sha256":
			im.refuse(at.at("key", "hashAlgorithm"), "%s is not what a signature by this key is read with", k.HashAlgorithm)
		}
		key := &signing.TrustKey{PublicKey: k.Data, Evidence: ev}
		if ev != (signing.TrustEvidence{}) {
			key.Root = im.root()
		}
		if len(im.mistakes) == before {
			names = append(names, im.signer(at, name, signing.TrustSigner{Key: key}))
		}
	default:
		names = im.identities(at.at("keyless"), name, a.Keyless, ev)
	}
	return names
}

func (im *importer) identities(at origin, name string, k *keylessRef, ev signing.TrustEvidence) []string {
	if k.CACert != nil {
		im.refuse(at.at("ca-cert"), "put the certificate authority into trusted_root.json")
	}
	if len(k.Identities) == 0 {
		im.refuse(at.at("identities"), "without identities a certificate of anybody is accepted")
	}
	if k.InsecureIgnoreSCT {
		none := 0
		ev.SCT = &none
	}
	if k.TrustRootRef != "" {
		im.note(at.at("trustRootRef"), "put the trusted root %q beside the policy, as %s", k.TrustRootRef, im.opts.TrustedRoot)
	}
	var names []string
	for i, id := range k.Identities {
		at := at.at("identities", i)
		before := len(im.mistakes)
		x := &signing.TrustKeyless{Root: im.root(), Issuer: id.Issuer, Evidence: ev}
		switch {
		case (id.Issuer == "") == (id.IssuerRegExp == ""):
			im.refuse(at, "give one of issuer and issuerRegExp")
		case id.IssuerRegExp != "":
			x.Issuer = im.issuer(at.at("issuerRegExp"), id.IssuerRegExp)
		}
		switch {
		case (id.Subject == "") == (id.SubjectRegExp == ""):
			im.refuse(at, "give one of subject and subjectRegExp")
		case id.Subject != "":
			x.Subject.Equal = id.Subject
		default:
			im.subject(at.at("subjectRegExp"), id.SubjectRegExp, &x.Subject)
		}
		if len(im.mistakes) == before {
			names = append(names, im.signer(at, name, signing.TrustSigner{Keyless: x}))
		}
	}
	return names
}
