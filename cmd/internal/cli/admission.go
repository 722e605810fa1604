package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"net/url"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/spf13/pflag"
	"oras.land/oras-go/v2/errdef"

	"github.com/krmcat/krmcat/catalog"
	"github.com/krmcat/krmcat/registry"
	"github.com/krmcat/krmcat/registry/admission"
	"github.com/krmcat/krmcat/signing"
)

// admissionFlags say what a server stores besides what is valid.
type admissionFlags struct {
	OnlyKRM       bool
	Publishers    map[string]string
	RequireSigned []string
	Trust         trustFlags

	// name is what the server's repositories are called in trust policies,
	// which is known when it listens.
	name string
}

func (f *admissionFlags) add(fs *pflag.FlagSet) {
	fs.BoolVar(&f.OnlyKRM, "only-krm", false, "refuse what is not a KRM function, a catalog, an image, or attached to one")
	fs.StringToStringVar(&f.Publishers, "publisher", nil, "`PREFIX=NAME`: functions in repositories below the prefix have to name this publisher; repeatable")
	fs.StringArrayVar(&f.RequireSigned, "require-signed", nil, "public key `file`: releases of functions and catalogs have to be signed by it, or by another that is given so; repeatable")
	f.Trust.server = true
	f.Trust.add(fs)
}

// build makes the admission that the flags describe. Without any, what claims
// to be a KRM function or a catalog has to be a valid one.
func (f *admissionFlags) build(e *env) (registry.Admission, error) {
	opts := &admission.Options{OnlyKRM: f.OnlyKRM, Publishers: f.Publishers}
	if len(f.RequireSigned) > 0 {
		keys := verifyFlags{Keys: f.RequireSigned}
		policy, err := keys.policy(e)
		if err != nil {
			return nil, err
		}
		opts.Signed = func(ctx context.Context, store registry.Store, c registry.Change) error {
			return checkSigned(ctx, store, c, policy)
		}
	}
	if file := f.Trust.file(e); file != "" {
		policy, err := readTrustPolicy(e, file)
		if err != nil {
			return nil, err
		}
		opts.Trusted = func(ctx context.Context, store registry.Store, c registry.Change, doc *catalog.Document) error {
			return (&trustAdmission{policy: policy, name: f.name, store: store}).admit(ctx, c, doc)
		}
	}
	return admission.New(opts), nil
}

// listening says where the server is, which trust policies call it by.
func (f *admissionFlags) listening(e *env, external *url.URL, flag string, l net.Listener) error {
	if external != nil {
		f.name = external.Host
		return nil
	}
	host, _, err := net.SplitHostPort(flag)
	if err != nil {
		return err
	}
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		return err
	}
	f.name = net.JoinHostPort(host, port)
	if a, err := netip.ParseAddr(host); f.Trust.file(e) != "" && (host == "" || err == nil && a.IsUnspecified()) {
		return usagef("--trust-policy: its rules are for names of repositories, and --listen %s says none: add --external-url", flag)
	}
	return nil
}

// trustAdmission asks a trust policy about tags. A tag is written after what it
// points at, its signatures and its attestations, so they are all there.
type trustAdmission struct {
	policy *signing.TrustPolicy
	name   string
	store  registry.Store
}

// admit asks about an artifact, and about what its document names in this
// server: a catalog or a definition leads to nothing that the policy does not
// accept. What is elsewhere is for those to judge who fetch it.
func (t *trustAdmission) admit(ctx context.Context, c registry.Change, doc *catalog.Document) error {
	r := signing.TrustRequest{Subject: c.Descriptor}
	var runtimes []namedRuntime
	if doc != nil {
		runtimes = runtimesOf(doc)
		r.Needs = &signing.TrustCapabilities{}
		for _, x := range runtimes {
			r.Needs.Exec = r.Needs.Exec || x.needs.Exec
			r.Needs.Network = r.Needs.Network || x.needs.Network
			r.Needs.Storage = r.Needs.Storage || x.needs.Storage
		}
	}
	d, err := t.decide(ctx, c.Repository, r)
	if err != nil {
		return err
	}
	if err := t.refusal(c, d); err != nil {
		return err
	}
	seen := map[string]bool{}
	for _, x := range runtimes {
		ref, err := registry.ParseImage(x.location.Ref)
		if err != nil || x.location.Scheme != "oci" {
			continue
		}
		key := fmt.Sprint(ref.Repository, "@", x.location.Digest, " ", x.fn.gvk, " ", x.needs)
		if seen[key] {
			continue
		}
		seen[key] = true
		// By digest and whatever the server is called: it has several names.
		desc, err := t.store.Resolve(ctx, ref.Repository, string(x.location.Digest))
		if errors.Is(err, fs.ErrNotExist) || x.location.Digest == "" {
			continue
		}
		if err != nil {
			return err
		}
		x.fn.document = d
		rd, err := t.decide(ctx, ref.Repository, signing.TrustRequest{Subject: x.fn.subject(desc), Content: x.content, Document: d, Needs: &x.needs})
		if err != nil {
			return err
		}
		if err := t.refusal(c, rd); err != nil {
			return err
		}
	}
	return nil
}

func (t *trustAdmission) decide(ctx context.Context, repository string, r signing.TrustRequest) (*signing.Decision, error) {
	r.Reference = t.name + "/" + repository
	d, err := t.policy.Evaluate(ctx, &storedRepository{store: t.store, repository: repository}, r)
	if errors.Is(err, signing.ErrTooMuch) {
		return nil, &registry.RefusedError{Code: "DENIED", Message: err.Error()}
	}
	return d, err
}

// refusal has the decision in its detail.
func (t *trustAdmission) refusal(c registry.Change, d *signing.Decision) error {
	if d.Allowed {
		return nil
	}
	return &registry.RefusedError{Code: "DENIED", Detail: d,
		Message: fmt.Sprintf("tag %s does not satisfy the trust policy of this registry: %v (push by digest, sign, then tag)", c.Tag, d.Err())}
}

// namedRuntime is an image, executable or script that a document names.
type namedRuntime struct {
	fn       function
	location catalog.Location
	content  digest.Digest
	needs    signing.TrustCapabilities
}

func runtimesOf(doc *catalog.Document) []namedRuntime {
	var list []namedRuntime
	for r := range doc.AsCatalog().Resolutions() {
		fn := function{gvk: r.GVK()}
		rt := r.Version.Runtime
		if s := rt.Starlark; s != nil {
			list = append(list, namedRuntime{fn: fn, location: s.Location, content: s.Digest})
		}
		if x := rt.Exec; x != nil {
			for _, p := range x.Platforms {
				list = append(list, namedRuntime{fn: fn, location: p.Location, content: p.Digest, needs: signing.TrustCapabilities{Exec: true}})
			}
		}
		if c := rt.Container; c != nil {
			list = append(list, namedRuntime{fn: fn, location: catalog.Location{Scheme: "oci", Ref: c.Image, Digest: c.Digest},
				needs: signing.TrustCapabilities{Network: c.RequireNetwork, Storage: c.RequireStorageMount}})
		}
	}
	return list
}

// checkSigned refuses a release that carries no acceptable signature.
// krmcat publish signs before it tags; with other tools, push by digest, sign,
// then tag.
func checkSigned(ctx context.Context, store registry.Store, c registry.Change, policy signing.Policy) error {
	target := &storedRepository{store: store, repository: c.Repository}
	// The older format records the name that clients use for this server,
	// which it does not know for sure; a bundle records none.
	policy.NoLegacy = true
	_, err := signing.Checker{}.Verify(ctx, target, c.Repository, c.Descriptor, policy)
	if errors.Is(err, signing.ErrUnsigned) || errors.Is(err, signing.ErrPolicy) || errors.Is(err, signing.ErrTooMuch) {
		return &registry.RefusedError{Code: "DENIED", Message: fmt.Sprintf("release %s has to be signed before it is tagged: %v", c.Tag, err)}
	}
	return err
}

// storedRepository is a repository of this server as packages for registries
// elsewhere see one.
type storedRepository struct {
	store      registry.Store
	repository string
}

func (r *storedRepository) Fetch(ctx context.Context, desc ocispec.Descriptor) (io.ReadCloser, error) {
	rc, err := r.store.FetchBlob(ctx, r.repository, desc.Digest)
	if err == nil || !errors.Is(err, fs.ErrNotExist) {
		return rc, err
	}
	data, err := r.store.FetchManifest(ctx, r.repository, desc.Digest)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: %w", desc.Digest, errdef.ErrNotFound)
	}
	if err != nil {
		return nil, err
	}
	return io.NopCloser(bytes.NewReader(data)), nil
}

func (r *storedRepository) Exists(ctx context.Context, desc ocispec.Descriptor) (bool, error) {
	rc, err := r.Fetch(ctx, desc)
	if errors.Is(err, errdef.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return true, rc.Close()
}

// Resolve finds the tags that signatures of the older format have.
func (r *storedRepository) Resolve(ctx context.Context, reference string) (ocispec.Descriptor, error) {
	desc, err := r.store.Resolve(ctx, r.repository, reference)
	if errors.Is(err, fs.ErrNotExist) {
		return desc, fmt.Errorf("%s: %w", reference, errdef.ErrNotFound)
	}
	return desc, err
}

func (r *storedRepository) Predecessors(ctx context.Context, desc ocispec.Descriptor) ([]ocispec.Descriptor, error) {
	var list []ocispec.Descriptor
	for d, err := range r.store.Referrers(ctx, r.repository, desc.Digest, "") {
		if err != nil {
			return nil, err
		}
		list = append(list, d)
	}
	return list, nil
}
