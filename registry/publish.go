package registry

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"strings"
	"time"

	"github.com/Masterminds/semver/v3"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/errdef"
	"oras.land/oras-go/v2/registry/remote"

	"github.com/krmcat/krmcat/catalog"
	"github.com/krmcat/krmcat/schema"
)

const (
	maxReadmeBytes = 1 << 20
	maxScriptBytes = 4 << 20
)

// Annotations that say which function or catalog an artifact belongs to: the
// group and the kind of a function, or the name of a catalog, which has no
// group. They are signed and are in no manifest.
const (
	AnnotationGroup = "krmcat.dev/group"
	AnnotationName  = "krmcat.dev/name"
)

// Signer attaches a signature to a subject in a repository and returns the
// descriptor of the signature's manifest. For a subject that carries its
// signature already it does nothing and returns the zero descriptor.
//
// The annotations of the subject's descriptor are [AnnotationGroup] and
// [AnnotationName], to be signed along. A manifest that several functions of a
// catalog share is signed for each.
type Signer interface {
	Sign(ctx context.Context, target oras.GraphTarget, reference string, subject ocispec.Descriptor) (ocispec.Descriptor, error)
}

// PublishOptions are the optional settings of [Client.Publish].
type PublishOptions struct {
	// Signer signs everything that is published; nil leaves it unsigned.
	Signer Signer
	// Root is the folder that local paths in the document are relative to,
	// and that they cannot leave. Nil refuses local paths.
	Root *os.Root
	// Created is recorded in the manifests. Zero leaves it out, so that the
	// same input gives the same digest at any time.
	Created time.Time
	// Annotations are added to the manifest of the document, such as
	// org.opencontainers.image.revision.
	Annotations map[string]string
	// DryRun finds what would be published without pushing or signing.
	DryRun bool
}

// Published is what [Client.Publish] published.
type Published struct {
	Kind        string             `json:"kind"` // definition or catalog
	Reference   string             `json:"reference"`
	Digest      digest.Digest      `json:"digest"`
	Pushed      bool               `json:"pushed"` // whether the registry did not have it all
	Artifacts   []PublishedPart    `json:"artifacts"`
	Document    []byte             `json:"-"` // as published
	Diagnostics schema.Diagnostics `json:"-"` // warnings and notices about the document
}

// PublishedPart is one manifest of a publication.
type PublishedPart struct {
	Kind      string        `json:"kind"` // exec, starlark, image, docs, definition or catalog
	Reference string        `json:"reference"`
	Digest    digest.Digest `json:"digest"`
	Pushed    bool          `json:"pushed"`
	Signed    bool          `json:"signed"`
	Signature digest.Digest `json:"signature,omitempty"` // the new one; empty if there was one
}

// IsRelease reports whether a tag names a release: a semantic version, with or
// without v in front. What a release tag points at never changes.
func IsRelease(tag string) bool {
	_, err := semver.StrictNewVersion(strings.TrimPrefix(tag, "v"))
	return err == nil
}

// Publish validates a definition or a catalog document, uploads the
// executables, scripts, image layouts, README and examples that it names by
// local paths, rewrites it to refer to them by digest, pins its container
// images to digests, and pushes it as the artifact ref with a tag. Name is
// the document's file name, for messages and local paths.
//
// Nothing is sent before all that can be checked here is found right. Tags are
// written last, when everything is pushed and signed. The same input gives the same digests,
// and publishing it again pushes nothing. Errors: [*schema.InvalidError] for a
// wrong document; [ErrExists] if ref is a release with other content;
// [ErrIntegrity] for a digest in the document that is not its file's or
// image's; those of [Client.Resolve].
func (c *Client) Publish(ctx context.Context, name string, data []byte, ref Reference, opts *PublishOptions) (*Published, error) {
	if opts == nil {
		opts = &PublishOptions{}
	}
	if ref.Digest != "" {
		return nil, fmt.Errorf("reference %s: publish to a tag, not to a digest", ref)
	}
	if ref.Tag == "" {
		return nil, fmt.Errorf("reference %s: no tag", ref)
	}
	p := &publication{client: c, opts: opts, ref: ref, name: name}
	doc, err := p.read(ctx, data)
	if err != nil {
		return nil, err
	}
	if err := p.prepare(ctx, doc); err != nil {
		return nil, err
	}
	out, err := p.rewrite(ctx, data)
	if err != nil {
		return nil, err
	}
	root, err := p.document(doc, out)
	if err != nil {
		return nil, err
	}
	repo, err := c.Repository(ref)
	if err != nil {
		return nil, err
	}
	if err := checkRelease(ctx, repo, ref, root); err != nil {
		return nil, err
	}
	res := &Published{
		Kind: documentKind(doc), Reference: ref.String(), Digest: root.Digest,
		Document: out, Diagnostics: doc.Diagnostics,
	}
	if err := p.send(ctx, repo, res); err != nil {
		return nil, fmt.Errorf("publishing to %s: %w", ref, err)
	}
	return res, nil
}

// send pushes, signs and then tags, so that no release is ever seen without
// its signature, and fills in what was done.
func (p *publication) send(ctx context.Context, repo *remote.Repository, res *Published) error {
	pushed := map[digest.Digest]bool{}
	signatures := map[digest.Digest]digest.Digest{}
	if !p.opts.DryRun {
		var err error
		if pushed, err = p.stage.push(ctx, repo); err != nil {
			return err
		}
		if signatures, err = p.sign(ctx, repo); err != nil {
			return err
		}
		if err := p.stage.tag(ctx, repo, pushed); err != nil {
			return err
		}
	}
	for _, m := range p.stage.manifests {
		part := PublishedPart{
			Kind: m.kind, Digest: m.desc.Digest, Pushed: pushed[m.desc.Digest],
			Reference: Reference{Host: p.ref.Host, Repository: p.ref.Repository, Tag: m.tag, Digest: m.desc.Digest}.String(),
		}
		part.Signature, part.Signed = signatures[m.desc.Digest]
		res.Pushed = res.Pushed || part.Pushed
		res.Artifacts = append(res.Artifacts, part)
	}
	return nil
}

// sign signs every manifest that stands for itself. The signature of one that
// was signed already is empty.
func (p *publication) sign(ctx context.Context, repo *remote.Repository) (map[digest.Digest]digest.Digest, error) {
	signatures := map[digest.Digest]digest.Digest{}
	type signed struct {
		digest      digest.Digest
		group, name string
	}
	done := map[signed]bool{}
	for _, m := range p.stage.manifests {
		key := signed{m.desc.Digest, m.names[AnnotationGroup], m.names[AnnotationName]}
		if done[key] || !m.sign || p.opts.Signer == nil {
			continue
		}
		done[key] = true
		subject := m.desc
		subject.Annotations = maps.Clone(m.names)
		sig, err := p.opts.Signer.Sign(ctx, repo, p.ref.Name(), subject)
		if err != nil {
			return nil, fmt.Errorf("signing the %s %s: %w", m.kind, m.desc.Digest, Classify(err))
		}
		if signatures[m.desc.Digest] == "" {
			signatures[m.desc.Digest] = sig.Digest
		}
	}
	return signatures, nil
}

// checkRelease refuses to move a release tag to other content.
func checkRelease(ctx context.Context, repo *remote.Repository, ref Reference, root ocispec.Descriptor) error {
	if !IsRelease(ref.Tag) {
		return nil
	}
	have, err := repo.Resolve(ctx, ref.Tag)
	switch {
	case errors.Is(err, errdef.ErrNotFound):
		return nil
	case err != nil:
		return fmt.Errorf("resolving %s: %w", ref, Classify(err))
	case have.Digest != root.Digest:
		return fmt.Errorf("release %s is %s, this would be %s: %w", ref, have.Digest, root.Digest, ErrExists)
	}
	return nil
}

func documentKind(doc *catalog.Document) string {
	if doc.Catalog != nil {
		return "catalog"
	}
	return "definition"
}

// publication is one run of Publish.
type publication struct {
	client *Client
	opts   *PublishOptions
	ref    Reference
	name   string

	stage stage
	edits []catalog.Edit
	docs  []blob // README and examples of a definition, which its artifact holds as well
}

func (p *publication) read(ctx context.Context, data []byte) (*catalog.Document, error) {
	return catalog.Read(ctx, catalog.Location{Scheme: "file", Ref: p.name}, p.name, data,
		catalog.ReadOptions{Level: schema.Publish, Source: true})
}

// prepare stages everything that the document refers to by local paths and
// collects the edits that make it refer to them by digest.
func (p *publication) prepare(ctx context.Context, doc *catalog.Document) error {
	if doc.Definition != nil {
		return p.definition(ctx, doc.Definition, []any{"spec"}, "")
	}
	for i := range doc.Catalog.Definitions {
		d := &doc.Catalog.Definitions[i]
		at := []any{"spec", "krmFunctions", i}
		if err := p.definition(ctx, d, at, strings.ToLower(d.Kind)+"_"); err != nil {
			return err
		}
	}
	return nil
}

// definition prepares one definition. Prefix keeps the tags of a catalog's
// functions apart.
func (p *publication) definition(ctx context.Context, d *catalog.Definition, at []any, prefix string) error {
	p.stage.names = map[string]string{AnnotationGroup: d.Group, AnnotationName: d.Kind}
	for i := range d.Versions {
		v := &d.Versions[i]
		at := join(at, "versions", i)
		what := d.Kind + " " + v.Name
		tag := p.ref.Tag + "_" + prefix + v.Name + "_"
		if x := v.Runtime.Exec; x != nil {
			if err := p.exec(ctx, x, join(at, "runtime", "exec", "platforms"), tag+"exec"); err != nil {
				return fmt.Errorf("%s: %w", what, err)
			}
		}
		if s := v.Runtime.Starlark; s != nil {
			if err := p.starlark(ctx, s, join(at, "runtime", "starlark"), tag+"starlark"); err != nil {
				return fmt.Errorf("%s: %w", what, err)
			}
		}
		if x := v.Runtime.Container; x != nil {
			if err := p.container(ctx, x, join(at, "runtime", "container"), tag+"image"); err != nil {
				return fmt.Errorf("%s: %w", what, err)
			}
		}
		if err := p.documentation(v, at, tag+"docs"); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
	}
	return nil
}

func join(at []any, more ...any) []any { return append(at[:len(at):len(at)], more...) }

func (p *publication) edit(at []any, value any, comment string) {
	p.edits = append(p.edits, catalog.Edit{Path: at, Value: value, Comment: comment})
}

// local returns the path in the root for a local path of the document.
func (p *publication) local(uri string) (string, error) {
	if p.opts.Root == nil {
		return "", fmt.Errorf("%s: a local path, but the document has no folder", uri)
	}
	if strings.HasPrefix(uri, "/") || strings.Contains(uri, `\`) {
		return "", fmt.Errorf("%s: write a path relative to the document, with slashes", uri)
	}
	name := path.Clean(uri)
	if !fs.ValidPath(name) {
		return "", fmt.Errorf("%s: outside the document's folder", uri)
	}
	return name, nil
}

// exec uploads local executables: a manifest for each platform, to which the
// document refers, and an index over them for clients that choose themselves.
func (p *publication) exec(ctx context.Context, x *catalog.Exec, at []any, tag string) error {
	var manifests []ocispec.Descriptor
	for i := range x.Platforms {
		pl := &x.Platforms[i]
		at := join(at, i)
		if !catalog.IsLocalPath(pl.URI) {
			if err := p.pinArtifact(ctx, pl.URI, pl.Location, join(at, "uri")); err != nil {
				return err
			}
			continue
		}
		name, err := p.local(pl.URI)
		if err != nil {
			return err
		}
		b, err := fileBlob(p.opts.Root, name, MediaTypeExec, path.Base(name), MaxExecutableBytes)
		if err != nil {
			return err
		}
		if err := p.checkHeader(name, pl); err != nil {
			return err
		}
		if pl.Digest != "" && pl.Digest != b.desc.Digest {
			return fmt.Errorf("%s is %s, but the document says %s: %w", pl.URI, b.desc.Digest, pl.Digest, ErrIntegrity)
		}
		desc, err := p.stage.artifact("exec", ArtifactTypeExec, "", p.annotations(nil), b)
		if err != nil {
			return err
		}
		p.edit(join(at, "uri"), p.ref.URI(desc.Digest), "")
		p.edit(join(at, "sha256"), b.desc.Digest.Encoded(), "")
		desc.Platform = &ocispec.Platform{OS: pl.OS, Architecture: pl.Arch}
		manifests = append(manifests, desc)
	}
	if len(manifests) == 0 {
		return nil
	}
	_, err := p.stage.index("exec", ArtifactTypeExec, tag, p.annotations(nil), manifests)
	return err
}

func (p *publication) checkHeader(name string, pl *catalog.Platform) error {
	f, err := p.opts.Root.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	return checkExecutableHeader(f, name, pl.OS, pl.Arch)
}

// pinArtifact replaces a tag in an oci URI by the digest it has now.
func (p *publication) pinArtifact(ctx context.Context, uri string, loc catalog.Location, at []any) error {
	if loc.Scheme != "oci" || loc.Digest != "" {
		return nil
	}
	ref, err := ParseReference(uri)
	if err != nil {
		return err
	}
	desc, err := p.client.Resolve(ctx, ref)
	if err != nil {
		return err
	}
	p.edit(at, ref.URI(desc.Digest), ref.Tag)
	return nil
}

func (p *publication) starlark(ctx context.Context, s *catalog.Starlark, at []any, tag string) error {
	if !catalog.IsLocalPath(s.URI) {
		if s.Location.Scheme != "oci" && s.Digest == "" {
			return fmt.Errorf("starlark %s: no sha256: %w", s.URI, catalog.ErrNoDigest)
		}
		return p.pinArtifact(ctx, s.URI, s.Location, join(at, "uri"))
	}
	name, err := p.local(s.URI)
	if err != nil {
		return err
	}
	b, err := fileBlob(p.opts.Root, name, MediaTypeStarlark, path.Base(name), maxScriptBytes)
	if err != nil {
		return err
	}
	if s.Digest != "" && s.Digest != b.desc.Digest {
		return fmt.Errorf("%s is %s, but the document says %s: %w", s.URI, b.desc.Digest, s.Digest, ErrIntegrity)
	}
	desc, err := p.stage.artifact("starlark", ArtifactTypeStarlark, tag, p.annotations(nil), b)
	if err != nil {
		return err
	}
	p.edit(at, catalog.Mapping{{Key: "uri", Was: "path", Value: p.ref.URI(desc.Digest)}, {Key: "sha256", Value: b.desc.Digest.Encoded()}}, "")
	return nil
}

// container pins an image to its digest, uploading it first if it is an OCI
// image layout in the document's folder.
func (p *publication) container(ctx context.Context, x *catalog.Container, at []any, tag string) error {
	if catalog.IsLocalImage(x.Image) {
		name, err := p.local(x.Image)
		if err != nil {
			return err
		}
		desc, err := p.stage.layout(p.opts.Root, name, tag)
		if err != nil {
			return err
		}
		if x.Digest != "" && x.Digest != desc.Digest {
			return fmt.Errorf("image %s is %s, but the document says %s: %w", x.Image, desc.Digest, x.Digest, ErrIntegrity)
		}
		p.pinImage(at, Reference{Host: p.ref.Host, Repository: p.ref.Repository, Tag: tag, Digest: desc.Digest})
		return nil
	}
	if p.opts.Root != nil && isImageLayout(p.opts.Root.FS(), path.Clean(x.Image)) {
		return fmt.Errorf("image %s is a folder here: write ./%s to publish it", x.Image, path.Clean(x.Image))
	}
	ref, err := ParseImage(x.Image)
	if err != nil {
		return err
	}
	given := ref.Digest
	if given == "" {
		given = x.Digest
	}
	if ref.Tag != "" {
		// By the tag, so that a document whose tag and digest do not
		// belong together is found out.
		ref.Digest = ""
	} else {
		ref.Digest = given
	}
	if ref.target() == "" {
		ref.Tag = "latest"
	}
	desc, err := p.client.Resolve(ctx, ref)
	if err != nil {
		return fmt.Errorf("image %s: %w", x.Image, err)
	}
	if given != "" && desc.Digest != given {
		return fmt.Errorf("image %s is %s in the registry, but the document says %s: %w", x.Image, desc.Digest, given, ErrIntegrity)
	}
	ref.Digest = desc.Digest
	p.pinImage(at, ref)
	return nil
}

// pinImage writes the digest both into the image, for readers that know only
// that, and into sha256 (KC-059); the tag stays beside it for people.
func (p *publication) pinImage(at []any, ref Reference) {
	p.edit(join(at, "image"), ref.Name()+"@"+ref.Digest.String(), ref.Tag)
	p.edit(join(at, "sha256"), ref.Digest.Encoded(), "")
}

// ParseImage reads a container image's name as container engines do: without
// a registry it is Docker Hub's.
func ParseImage(image string) (Reference, error) {
	first, _, slash := strings.Cut(image, "/")
	switch {
	case !slash:
		image = "docker.io/library/" + image
	case !strings.ContainsAny(first, ".:") && first != "localhost":
		image = "docker.io/" + image
	}
	return ParseReference(image)
}

// documentation uploads the README and the examples that a version names by
// local paths.
func (p *publication) documentation(v *catalog.Version, at []any, tag string) error {
	var layers []blob
	files := map[string][]byte{}
	if catalog.IsLocalPath(v.Usage) {
		name, err := p.local(v.Usage)
		if err != nil {
			return err
		}
		b, err := fileBlob(p.opts.Root, name, MediaTypeMarkdown, name, maxReadmeBytes)
		if err != nil {
			return fmt.Errorf("usage: %w", err)
		}
		layers = append(layers, b)
	}
	for _, e := range v.Examples {
		if !catalog.IsLocalPath(e) {
			continue
		}
		name, err := p.local(e)
		if err != nil {
			return err
		}
		if err := readExample(p.opts.Root, name, files); err != nil {
			return fmt.Errorf("example %s: %w", e, err)
		}
	}
	if len(files) > 0 {
		packed, err := packExamples(files)
		if err != nil {
			return err
		}
		layers = append(layers, bytesBlob(MediaTypeExamples, FileExamples, packed))
	}
	if len(layers) == 0 {
		return nil
	}
	desc, err := p.stage.artifact("docs", ArtifactTypeDocs, tag, p.annotations(nil), layers...)
	if err != nil {
		return err
	}
	if catalog.IsLocalPath(v.Usage) {
		p.edit(join(at, "usage"), p.ref.URI(desc.Digest)+"#"+path.Clean(v.Usage), "")
	}
	for i, e := range v.Examples {
		if catalog.IsLocalPath(e) {
			p.edit(join(at, "examples", i), p.ref.URI(desc.Digest)+"#"+path.Clean(e), "")
		}
	}
	for _, l := range layers {
		p.docs = appendNew(p.docs, l)
	}
	return nil
}

// appendNew adds a layer unless one of that title is there: the versions of a
// function usually share their README, and a pull gives each name once.
func appendNew(list []blob, b blob) []blob {
	for _, have := range list {
		if have.desc.Annotations[ocispec.AnnotationTitle] == b.desc.Annotations[ocispec.AnnotationTitle] {
			return list
		}
	}
	return append(list, b)
}

// readExample adds an example's README and, if it has a folder of its own,
// the other files in there.
func readExample(root *os.Root, readme string, files map[string][]byte) error {
	dir := path.Dir(readme)
	if dir == "." {
		return addFile(root, readme, files)
	}
	if _, err := root.Stat(readme); err != nil {
		return err
	}
	return fs.WalkDir(root.FS(), dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		if !d.Type().IsRegular() {
			return fmt.Errorf("%s: only regular files can be published", name)
		}
		return addFile(root, name, files)
	})
}

func addFile(root *os.Root, name string, files map[string][]byte) error {
	if _, ok := files[name]; ok {
		return nil
	}
	if len(files) == maxExamplesFiles {
		return fmt.Errorf("more than %d files of examples", maxExamplesFiles)
	}
	fi, err := root.Stat(name)
	if err != nil {
		return err
	}
	total := fi.Size()
	for _, b := range files {
		total += int64(len(b))
	}
	if total > maxExamplesBytes {
		return fmt.Errorf("more than %d bytes of examples", maxExamplesBytes)
	}
	data, err := root.ReadFile(name)
	if err != nil {
		return err
	}
	files[name] = data
	return nil
}

// rewrite applies the edits and checks that the result is what a publication
// must be: valid to the letter, with no local path left.
func (p *publication) rewrite(ctx context.Context, data []byte) ([]byte, error) {
	out, err := catalog.Rewrite(p.name, data, p.edits)
	if err != nil {
		return nil, fmt.Errorf("rewriting %s: %w", p.name, err)
	}
	if _, err := catalog.Read(ctx, catalog.Location{}, p.name, out, catalog.ReadOptions{Level: schema.Publish}); err != nil {
		return nil, fmt.Errorf("as it would be published: %w", err)
	}
	return out, nil
}

// document stages the artifact of the document itself.
func (p *publication) document(doc *catalog.Document, data []byte) (ocispec.Descriptor, error) {
	a := map[string]string{}
	// Only the document's manifest names the release: a runtime that did not
	// change keeps its digest from one release to the next.
	if IsRelease(p.ref.Tag) {
		a[ocispec.AnnotationVersion] = p.ref.Tag
	}
	if doc.Catalog != nil {
		p.stage.names = map[string]string{AnnotationName: doc.Catalog.Name}
		a[ocispec.AnnotationTitle] = doc.Catalog.Name
		return p.stage.artifact("catalog", ArtifactTypeCatalog, p.ref.Tag, p.annotations(a, p.opts.Annotations),
			bytesBlob(MediaTypeCatalog, FileCatalog, data))
	}
	d := doc.Definition
	p.stage.names = map[string]string{AnnotationGroup: d.Group, AnnotationName: d.Kind}
	a[ocispec.AnnotationTitle] = d.Kind + "." + d.Group
	a[ocispec.AnnotationDescription] = d.Description
	a[ocispec.AnnotationVendor] = d.Publisher
	if d.Home != "" {
		a[ocispec.AnnotationURL] = d.Home
	}
	if l := licenses(d); l != "" {
		a[ocispec.AnnotationLicenses] = l
	}
	layers := append([]blob{bytesBlob(MediaTypeDefinition, FileDefinition, data)}, p.docs...)
	return p.stage.artifact("definition", ArtifactTypeDefinition, p.ref.Tag, p.annotations(a, p.opts.Annotations), layers...)
}

// licenses is the SPDX expression of a definition's licenses.
func licenses(d *catalog.Definition) string {
	var list []string
	for _, v := range d.Versions {
		l := v.License
		if l == "Apache 2.0" { // KC-055 spells SPDX's Apache-2.0 so
			l = "Apache-2.0"
		}
		if l == "" || len(list) > 0 && list[len(list)-1] == l {
			continue
		}
		list = append(list, l)
	}
	return strings.Join(list, " AND ")
}

func (p *publication) annotations(sets ...map[string]string) map[string]string {
	a := map[string]string{}
	if !p.opts.Created.IsZero() {
		a[ocispec.AnnotationCreated] = p.opts.Created.UTC().Format(time.RFC3339)
	}
	for _, s := range sets {
		maps.Copy(a, s)
	}
	if len(a) == 0 {
		return nil
	}
	return a
}
