package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/spf13/pflag"
	"oras.land/oras-go/v2/errdef"

	"github.com/krmcat/krmcat/registry"
	"github.com/krmcat/krmcat/registry/admission"
	"github.com/krmcat/krmcat/signing"
)

// admissionFlags say what a server stores besides what is valid.
type admissionFlags struct {
	OnlyKRM       bool
	Publishers    map[string]string
	RequireSigned []string
}

func (f *admissionFlags) add(fs *pflag.FlagSet) {
	fs.BoolVar(&f.OnlyKRM, "only-krm", false, "refuse what is not a KRM function, a catalog, an image, or attached to one")
	fs.StringToStringVar(&f.Publishers, "publisher", nil, "`PREFIX=NAME`: functions in repositories below the prefix have to name this publisher; repeatable")
	fs.StringArrayVar(&f.RequireSigned, "require-signed", nil, "public key `file`: releases of functions and catalogs have to be signed by it, or by another that is given so; repeatable")
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
	return admission.New(opts), nil
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
