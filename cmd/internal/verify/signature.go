package verify

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"

	"github.com/krmcat/krmcat/catalog"
	"github.com/krmcat/krmcat/registry"
	"github.com/krmcat/krmcat/signing"
)

// signature looks for a signature on a referenced artifact of a function. As
// the signed document gives its digest, one that is missing is a failure only
// if the document itself is not signed. One that was made for another function
// does not count.
func (r *run) signature(fn catalog.GroupVersionKind, what string, loc catalog.Location) bool {
	subject := fn.String()
	key := loc.String() + " " + fn.Group + "/" + fn.Kind
	if r.Signature == nil || loc.Scheme != "oci" || loc.Digest == "" || r.signed[key] || r.unsigned[key] != nil {
		return r.signed[key]
	}
	who, err := r.signer(fn, loc)
	if err != nil {
		r.unsigned[key] = fmt.Errorf("%s: %w", what, err)
		return false
	}
	r.signed[key] = true
	r.report.add(subject, "signature", Pass, "%s: %s", what, who)
	return true
}

func (r *run) signer(fn catalog.GroupVersionKind, loc catalog.Location) (string, error) {
	ref, err := registry.ParseReference(loc.Ref)
	if err != nil {
		return "", err
	}
	ref.Tag, ref.Digest = "", loc.Digest
	desc, err := r.Client.Resolve(r.ctx, ref)
	if err != nil {
		return "", err
	}
	return r.Signature(r.ctx, ref, signing.Named(desc, fn.Group, fn.Kind))
}

// bundle checks the signature of a document that is not in a registry: a
// Sigstore bundle in a file of the same name with .sigstore.json behind.
func (r *run) bundle(loc catalog.Location, data []byte) {
	if r.Blob == nil {
		r.report.add(r.report.Location, "signature", Skipped, "not asked for")
		return
	}
	name := path.Base(loc.Ref) + signing.BundleSuffix
	at, err := sibling(loc, name)
	if err != nil {
		r.report.fail(r.report.Location, "signature", err)
		return
	}
	b, _, err := catalog.Fetch(r.ctx, r.Source, at)
	if errors.Is(err, fs.ErrNotExist) {
		r.absent = fmt.Errorf("no %s beside it: %w", name, signing.ErrUnsigned)
		return
	}
	if err == nil {
		var who string
		if who, err = r.Blob(r.ctx, data, b); err == nil {
			r.trusted = true
			r.report.add(r.report.Location, "signature", Pass, "%s", who)
			return
		}
	}
	r.report.fail(r.report.Location, "signature", err)
}

// conclude decides about signatures when everything that the document refers
// to was looked at.
func (r *run) conclude(loc catalog.Location) {
	subject := r.report.Location
	for _, key := range slices.Sorted(maps.Keys(r.unsigned)) {
		if err := r.unsigned[key]; r.trusted && !r.EachSigned {
			r.report.add(subject, "signature", Warning, "%v; the signed document gives its digest", err)
		} else {
			r.report.fail(subject, "signature", err)
		}
	}
	switch {
	case r.absent == nil:
	case len(r.signed) > 0 && len(r.unsigned) == 0:
		r.report.add(subject, "signature", Warning, "the document itself is not signed, but everything that it refers to is")
	case len(r.signed)+len(r.unsigned) == 0 && loc.IsLocal():
		r.report.add(subject, "signature", Skipped, "not published yet: publishing signs")
	default:
		r.report.fail(subject, "signature", r.absent)
	}
}

// sibling is the location of a file beside another.
func sibling(loc catalog.Location, name string) (catalog.Location, error) {
	if loc.Scheme == "oci" {
		loc.Path = path.Join(path.Dir(loc.Path), name)
		return loc, nil
	}
	return loc.Resolve("./" + name)
}
