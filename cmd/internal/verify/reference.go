package verify

import (
	"fmt"

	"github.com/opencontainers/go-digest"

	"github.com/krmcat/krmcat/catalog"
	"github.com/krmcat/krmcat/registry"
	"github.com/krmcat/krmcat/runtime"
	"github.com/krmcat/krmcat/runtime/execfn"
)

// function checks one version of a function: everything it refers to, then
// what it does.
func (r *run) function(loc catalog.Location, res *catalog.Resolution) {
	subject := res.GVK().String()
	// The author's own files have no digests before publishing.
	pinned := *res.Version
	if err := catalog.PinLocal(r.ctx, r.Source, &pinned); err != nil {
		r.report.fail(subject, "digest", err)
		return
	}
	res.Version = &pinned
	rt := pinned.Runtime
	var usable []catalog.Runtime
	trusted := r.trusted
	if x := rt.Exec; x != nil {
		ok, signed := r.exec(res.GVK(), x)
		if ok {
			usable = append(usable, catalog.Runtime{Exec: x})
		}
		trusted = trusted || signed
	}
	if s := rt.Starlark; s != nil && r.starlark(res.GVK(), s) {
		usable = append(usable, catalog.Runtime{Starlark: s})
	}
	if x := rt.Container; x != nil && r.container(res.GVK(), x) {
		usable = append(usable, catalog.Runtime{Container: x})
	}
	r.docs(subject, "usage", res.Version.Usage, loc)
	examples := r.examples(subject, res.Version, loc)
	for _, only := range usable {
		r.examine(subject, res, only, trusted, examples)
	}
}

// exec fetches the executable of every platform, not only of this one, and
// compares digests. It reports whether all are right, and signed.
func (r *run) exec(fn catalog.GroupVersionKind, x *catalog.Exec) (ok, signed bool) {
	subject := fn.String()
	ok, signed = len(x.Platforms) > 0, true
	for i := range x.Platforms {
		p := &x.Platforms[i]
		what := "exec " + p.OS + "/" + p.Arch
		fetch := &execfn.Executor{Source: r.Source, Cache: r.Cache, Platform: p.OS + "/" + p.Arch}
		_, err := fetch.Prepare(r.ctx, catalog.Runtime{Exec: &catalog.Exec{Platforms: []catalog.Platform{*p}}}, runtime.Grants{Exec: true}, runtime.Limits{})
		if err != nil {
			r.report.fail(subject, "digest", fmt.Errorf("%s: %w", what, err))
			ok = false
			continue
		}
		r.report.add(subject, "digest", Pass, "%s is %s", what, firstDigest(p.Digest, p.Location.Digest))
		r.executable(subject, what, fetch, p)
		signed = r.signature(fn, what, p.Location) && signed
	}
	return ok, ok && signed
}

func firstDigest(list ...digest.Digest) digest.Digest {
	for _, d := range list {
		if d != "" {
			return d
		}
	}
	return ""
}

func (r *run) starlark(fn catalog.GroupVersionKind, s *catalog.Starlark) bool {
	subject := fn.String()
	if s.Digest == "" && s.Location.Digest == "" {
		r.report.fail(subject, "digest", fmt.Errorf("starlark %s: %w", s.URI, catalog.ErrNoDigest))
		return false
	}
	data, _, err := catalog.Fetch(r.ctx, r.Source, s.Location)
	if err == nil && s.Digest != "" {
		if got := s.Digest.Algorithm().FromBytes(data); got != s.Digest {
			err = fmt.Errorf("script %s is %s, but the document says %s: %w", s.URI, got, s.Digest, registry.ErrIntegrity)
		}
	}
	if err != nil {
		r.report.fail(subject, "digest", fmt.Errorf("starlark: %w", err))
		return false
	}
	r.report.add(subject, "digest", Pass, "starlark is %s", firstDigest(s.Digest, s.Location.Digest))
	r.signature(fn, "starlark", s.Location)
	return true
}

// container checks that an image is in its registry as the digest says, with
// all its blobs.
func (r *run) container(fn catalog.GroupVersionKind, x *catalog.Container) bool {
	subject := fn.String()
	if catalog.IsLocalImage(x.Image) {
		r.report.add(subject, "digest", Skipped, "container: %s is an image layout that is not published yet", x.Image)
		return false
	}
	if x.Digest == "" {
		r.report.fail(subject, "digest", fmt.Errorf("container %s: %w", x.Image, catalog.ErrNoDigest))
		return false
	}
	ref, err := registry.ParseImage(x.Image)
	if err != nil {
		r.report.fail(subject, "digest", err)
		return false
	}
	ref.Tag, ref.Digest = "", x.Digest
	n, err := r.Client.Check(r.ctx, ref)
	if err != nil {
		r.report.fail(subject, "digest", fmt.Errorf("container: %w", err))
		return false
	}
	r.report.add(subject, "digest", Pass, "container is %s, with %d blobs", x.Digest, n)
	r.image(subject, ref)
	r.signature(fn, "container", catalog.Location{Scheme: "oci", Ref: ref.Name(), Digest: x.Digest})
	return true
}

// docs checks that a document that the function points at is there.
func (r *run) docs(subject, what, uri string, base catalog.Location) {
	if uri == "" {
		return
	}
	loc, err := base.Resolve(uri)
	if err == nil {
		_, _, err = catalog.Fetch(r.ctx, r.Source, loc)
	}
	if err != nil {
		// It says how to use the function; it does not run.
		r.report.add(subject, what, Warning, "%v", err)
		return
	}
	r.report.add(subject, what, Pass, "%s", uri)
}
