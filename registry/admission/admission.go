// Package admission decides which manifests a registry server stores: what is
// pushed as a KRM function, catalog or runtime has to be one.
package admission

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/semaphore"

	"github.com/krmcat/krmcat/catalog"
	"github.com/krmcat/krmcat/registry"
	"github.com/krmcat/krmcat/schema"
)

// Options say what is admitted. The zero value admits valid KRM artifacts and
// everything that is none.
type Options struct {
	// OnlyKRM refuses what is not a KRM definition, catalog or runtime, the
	// documentation of one, an image (which may be a function's runtime), or
	// a referrer.
	OnlyKRM bool
	// Publishers says who publishes below which prefix of repository names:
	// documents there name that publisher. The longest prefix counts, which
	// ends at a slash; repositories without one are free.
	Publishers map[string]string
	// Signed decides whether a release of a definition or a catalog is signed
	// as it has to be, by looking at its referrers, which can be pushed first.
	// It returns a [*registry.RefusedError] if not. Nil asks for no signature.
	Signed func(ctx context.Context, store registry.Store, c registry.Change) error
	// Trusted decides about every tag that is to point at a definition, a
	// catalog or a runtime. The document is nil for runtimes. What it looks at,
	// the artifact's referrers and what the document names, is pushed before the
	// tag. It returns a [*registry.RefusedError] if not. Nil accepts all.
	Trusted func(ctx context.Context, store registry.Store, c registry.Change, doc *catalog.Document) error
	// StrictFields makes unknown fields of documents errors.
	StrictFields bool
	// MaxDocumentBytes is the largest document; 0 is 32 MiB.
	MaxDocumentBytes int64
}

// Admission is a [registry.Admission]. Use [New].
type Admission struct {
	opts Options
	busy *semaphore.Weighted // bytes of documents being read
}

// New returns an admission; nil options mean the defaults.
func New(opts *Options) *Admission {
	a := &Admission{}
	if opts != nil {
		a.opts = *opts
	}
	if a.opts.MaxDocumentBytes == 0 {
		a.opts.MaxDocumentBytes = catalog.MaxDocument
	}
	// Reading a document takes many times its size; the largest one goes
	// alone.
	a.busy = semaphore.NewWeighted(a.opts.MaxDocumentBytes)
	return a
}

// manifest has the fields of image manifests and indexes.
type manifest struct {
	ArtifactType string               `json:"artifactType"`
	Config       *ocispec.Descriptor  `json:"config"`
	Layers       []ocispec.Descriptor `json:"layers"`
	Manifests    []ocispec.Descriptor `json:"manifests"`
	Subject      *ocispec.Descriptor  `json:"subject"`
}

// invalid refuses content that is not what it is pushed as.
func invalid(format string, a ...any) error {
	return &registry.RefusedError{Code: "MANIFEST_INVALID", Message: fmt.Sprintf(format, a...)}
}

func denied(format string, a ...any) error {
	return &registry.RefusedError{Code: "DENIED", Message: fmt.Sprintf(format, a...)}
}

// Admit implements [registry.Admission]. What an artifact is follows from its
// layers' media types, as readers go by those; the artifact type counts where
// there is no such layer.
func (a *Admission) Admit(ctx context.Context, store registry.Store, c registry.Change) error {
	if c.Delete {
		return nil
	}
	var m manifest
	if err := json.Unmarshal(c.Manifest, &m); err != nil {
		return invalid("manifest is not valid: %v", err)
	}
	switch {
	case has(m.Layers, registry.MediaTypeDefinition), m.ArtifactType == registry.ArtifactTypeDefinition:
		return a.document(ctx, store, c, &m, registry.MediaTypeDefinition)
	case has(m.Layers, registry.MediaTypeCatalog), m.ArtifactType == registry.ArtifactTypeCatalog:
		return a.document(ctx, store, c, &m, registry.MediaTypeCatalog)
	case m.ArtifactType == registry.ArtifactTypeExec, has(m.Layers, registry.MediaTypeExec):
		if err := admitExec(&m); err != nil {
			return err
		}
		return a.trusted(ctx, store, c, nil)
	case has(m.Layers, registry.MediaTypeStarlark), m.ArtifactType == registry.ArtifactTypeStarlark:
		if err := admitStarlark(ctx, store, c, &m); err != nil {
			return err
		}
		return a.trusted(ctx, store, c, nil)
	case !a.opts.OnlyKRM, m.Subject != nil, m.ArtifactType == registry.ArtifactTypeDocs, isImage(&m):
		return nil
	}
	kind := c.Descriptor.ArtifactType
	if kind == "" {
		kind = c.Descriptor.MediaType
	}
	return denied("this registry takes KRM functions, catalogs and images only, not %.200q", kind)
}

func has(layers []ocispec.Descriptor, mediaType string) bool {
	return slices.ContainsFunc(layers, func(l ocispec.Descriptor) bool { return l.MediaType == mediaType })
}

// isImage reports whether a manifest is that of an image for containers.
func isImage(m *manifest) bool {
	if m.Config == nil {
		return m.ArtifactType == "" // an index of what was admitted before
	}
	return m.Config.MediaType == ocispec.MediaTypeImageConfig || m.Config.MediaType == "application/vnd.docker.container.image.v1+json"
}

// document checks a definition (KC-099) or a catalog (KC-098).
func (a *Admission) document(ctx context.Context, store registry.Store, c registry.Change, m *manifest, mediaType string) error {
	what := "definition"
	if mediaType == registry.MediaTypeCatalog {
		what = "catalog"
	}
	layer, err := only(m, mediaType, what)
	if err != nil {
		return err
	}
	if layer.Size > a.opts.MaxDocumentBytes {
		return invalid("the %s has %d bytes, at most %d are allowed", what, layer.Size, a.opts.MaxDocumentBytes)
	}
	weight := min(layer.Size+1, a.opts.MaxDocumentBytes)
	if err := a.busy.Acquire(ctx, weight); err != nil {
		return err
	}
	defer a.busy.Release(weight)
	data, err := fetch(ctx, store, c.Repository, layer)
	if err != nil {
		return err
	}
	name := layer.Annotations[ocispec.AnnotationTitle]
	if name == "" {
		name = what + ".yaml"
	}
	doc, err := catalog.Read(ctx, catalog.Location{}, name, data, catalog.ReadOptions{Level: schema.Publish, StrictFields: a.opts.StrictFields})
	var found *schema.InvalidError
	if errors.As(err, &found) {
		return &registry.RefusedError{Code: "MANIFEST_INVALID", Message: found.Error(), Detail: findings(found.Diagnostics)}
	} else if err != nil {
		return err
	}
	if (doc.Catalog != nil) != (mediaType == registry.MediaTypeCatalog) {
		return invalid("%s is pushed as a %s, but is none", name, what)
	}
	if err := a.owner(c.Repository, doc); err != nil {
		return err
	}
	if a.opts.Signed != nil && registry.IsRelease(c.Tag) {
		if err := a.opts.Signed(ctx, store, c); err != nil {
			return err
		}
	}
	return a.trusted(ctx, store, c, doc)
}

// trusted asks about a tag. What is pushed by digest alone is waiting for its
// signatures.
func (a *Admission) trusted(ctx context.Context, store registry.Store, c registry.Change, doc *catalog.Document) error {
	if a.opts.Trusted == nil || c.Tag == "" {
		return nil
	}
	return a.opts.Trusted(ctx, store, c, doc)
}

// Finding is one entry of a refusal's detail.
type Finding struct {
	File     string `json:"file"`
	Line     int    `json:"line"`
	Column   int    `json:"column"`
	Path     string `json:"path,omitempty"`
	Severity string `json:"severity"`
	Rule     string `json:"rule,omitempty"`
	Message  string `json:"message"`
	Fix      string `json:"fix,omitempty"`
}

// maxFindings bounds a refusal.
const maxFindings = 50

func findings(ds schema.Diagnostics) []Finding {
	list := make([]Finding, 0, min(len(ds), maxFindings))
	for _, d := range ds {
		if len(list) == maxFindings {
			break
		}
		if d.Severity != schema.Error {
			continue
		}
		list = append(list, Finding{File: d.Pos.File, Line: d.Pos.Line, Column: d.Pos.Column, Path: d.Path,
			Severity: d.Severity.String(), Rule: d.Rule, Message: d.Message, Fix: d.Fix})
	}
	return list
}

// only returns the one layer of a media type.
func only(m *manifest, mediaType, what string) (ocispec.Descriptor, error) {
	var found []ocispec.Descriptor
	for _, l := range m.Layers {
		switch l.MediaType {
		case mediaType:
			found = append(found, l)
		case registry.MediaTypeDefinition, registry.MediaTypeCatalog, registry.MediaTypeStarlark, registry.MediaTypeExec:
			return ocispec.Descriptor{}, invalid("a %s has no layer of type %s", what, l.MediaType)
		}
	}
	if len(found) != 1 {
		return ocispec.Descriptor{}, invalid("a %s has one layer of type %s, this has %d", what, mediaType, len(found))
	}
	return found[0], nil
}

// fetch reads a layer, which the server has checked to be there and to have
// its size.
func fetch(ctx context.Context, store registry.Store, repository string, desc ocispec.Descriptor) ([]byte, error) {
	rc, err := store.FetchBlob(ctx, repository, desc.Digest)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rc.Close() }() // only read
	return io.ReadAll(io.LimitReader(rc, desc.Size))
}

// owner checks that a document names the publisher whose repository it is
// pushed to.
func (a *Admission) owner(repository string, doc *catalog.Document) error {
	prefix, owner := "", ""
	for p, o := range a.opts.Publishers {
		p = strings.TrimSuffix(p, "/")
		if len(p) >= len(prefix) && (repository == p || strings.HasPrefix(repository, p+"/") || p == "") {
			prefix, owner = p, o
		}
	}
	if owner == "" || doc.Catalog != nil { // a catalog lists functions of others
		return nil
	}
	if doc.Definition.Publisher != owner {
		return denied("repositories below %s are for functions of publisher %q; this one names publisher %q", prefix, owner, doc.Definition.Publisher)
	}
	return nil
}

// maxScriptBytes is the largest Starlark script, as for publishing.
const maxScriptBytes = 4 << 20

// admitStarlark checks a Starlark runtime (KC-100).
func admitStarlark(ctx context.Context, store registry.Store, c registry.Change, m *manifest) error {
	layer, err := only(m, registry.MediaTypeStarlark, "Starlark runtime")
	if err != nil {
		return err
	}
	if layer.Size == 0 || layer.Size > maxScriptBytes {
		return invalid("a Starlark script has 1 to %d bytes, this has %d", maxScriptBytes, layer.Size)
	}
	data, err := fetch(ctx, store, c.Repository, layer)
	if err != nil {
		return err
	}
	if !utf8.Valid(data) || strings.ContainsRune(string(data), 0) {
		return invalid("the Starlark script is not text in UTF-8")
	}
	return nil
}

// admitExec checks an executable (KC-101), or the index of one for several
// platforms.
func admitExec(m *manifest) error {
	if m.Config == nil && m.Manifests != nil {
		seen := map[string]bool{}
		for i, d := range m.Manifests {
			p := d.Platform
			if p == nil || p.OS == "" || p.Architecture == "" {
				return invalid("manifests[%d]: an executable needs a platform with os and architecture", i)
			}
			key := p.OS + "/" + p.Architecture + "/" + p.Variant
			if seen[key] {
				return invalid("manifests[%d]: a second executable for %s/%s", i, p.OS, p.Architecture)
			}
			seen[key] = true
		}
		if len(seen) == 0 {
			return invalid("an executable needs at least one platform")
		}
		return nil
	}
	layer, err := only(m, registry.MediaTypeExec, "executable")
	if err != nil {
		return err
	}
	if layer.Size == 0 {
		return invalid("the executable is empty")
	}
	return nil
}
