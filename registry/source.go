package registry

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	goruntime "runtime"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/content"

	"github.com/krmcat/krmcat/catalog"
)

// maxIndexDepth bounds how many indexes may stand between a reference and a
// manifest.
const maxIndexDepth = 4

// Source is a [catalog.Source] for oci locations. The tag of a location is
// resolved once; everything after goes by digest and is verified.
//
// A location with a Path gives the layer of that title, or the file of that
// name in the examples layer; without one, the artifact's document or
// runtime. An image index gives the artifact for this machine's platform.
type Source struct {
	Client *Client
	// Platform is os/arch; empty means this machine's.
	Platform string
}

// Fetch implements [catalog.Source].
func (s *Source) Fetch(ctx context.Context, loc catalog.Location) (*catalog.Content, error) {
	if loc.Scheme != "oci" {
		return nil, fmt.Errorf("%s: not an oci location: %w", loc, errors.ErrUnsupported)
	}
	a, err := s.Client.Artifact(ctx, loc, s.Platform)
	if err != nil {
		return nil, err
	}
	if loc.Path != "" {
		return a.file(ctx, loc)
	}
	layer, err := a.main()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", loc, err)
	}
	return a.open(ctx, layer)
}

// Artifact is an artifact whose manifest was fetched and verified.
type Artifact struct {
	Reference  Reference          // by digest; the tag is the one asked for
	Descriptor ocispec.Descriptor // of what the reference named: a manifest or an index
	Manifest   ocispec.Manifest
	// ManifestDescriptor is Descriptor, or what the index has for the platform.
	ManifestDescriptor ocispec.Descriptor

	repo content.Fetcher
}

// Artifact fetches the manifest that an oci location names, going through an
// index to platform (os/arch; empty means this machine's).
func (c *Client) Artifact(ctx context.Context, loc catalog.Location, platform string) (*Artifact, error) {
	ref, err := ParseReference(loc.Ref)
	if err != nil {
		return nil, err
	}
	if loc.Digest != "" {
		ref.Digest = loc.Digest
	}
	repo, err := c.Repository(ref)
	if err != nil {
		return nil, err
	}
	desc, err := c.Resolve(ctx, ref)
	if err != nil {
		return nil, err
	}
	ref.Digest = desc.Digest
	a := &Artifact{Reference: ref, Descriptor: desc, repo: repo}
	if platform == "" {
		platform = goruntime.GOOS + "/" + goruntime.GOARCH
	}
	for depth := 0; ; depth++ {
		data, err := fetchManifest(ctx, repo, desc)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", ref, err)
		}
		if !isIndex(desc.MediaType) {
			if err := json.Unmarshal(data, &a.Manifest); err != nil {
				return nil, fmt.Errorf("%s: manifest %s is not valid: %w", ref, desc.Digest, err)
			}
			a.ManifestDescriptor = desc
			return a, nil
		}
		if depth == maxIndexDepth {
			return nil, fmt.Errorf("%s: indexes are nested more than %d deep", ref, maxIndexDepth)
		}
		var index ocispec.Index
		if err := json.Unmarshal(data, &index); err != nil {
			return nil, fmt.Errorf("%s: index %s is not valid: %w", ref, desc.Digest, err)
		}
		next, err := forPlatform(index, platform)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", ref, err)
		}
		desc = next
	}
}

func forPlatform(index ocispec.Index, platform string) (ocispec.Descriptor, error) {
	var have []string
	for _, m := range index.Manifests {
		if m.Platform == nil {
			continue
		}
		p := m.Platform.OS + "/" + m.Platform.Architecture
		if p == platform {
			return m, nil
		}
		have = append(have, p)
	}
	return ocispec.Descriptor{}, fmt.Errorf("nothing for platform %s (has %s): %w", platform, strings.Join(have, ", "), fs.ErrNotExist)
}

// layerOrder is the order in which the layers of krmcat's artifacts are
// looked for: the media type of a layer says what an artifact is, so that one
// pushed by plain oras without an artifact type is read as well.
var layerOrder = []string{MediaTypeCatalog, MediaTypeDefinition, MediaTypeExec, MediaTypeStarlark}

// main is the layer that the artifact is about.
func (a *Artifact) main() (ocispec.Descriptor, error) {
	for _, mt := range layerOrder {
		for _, l := range a.Manifest.Layers {
			if l.MediaType == mt {
				return l, nil
			}
		}
	}
	what := a.Manifest.ArtifactType
	if what == "" {
		what = a.Manifest.Config.MediaType
	}
	return ocispec.Descriptor{}, fmt.Errorf("an artifact of type %s holds no definition, catalog or runtime", what)
}

// IsImage reports whether the artifact is a container image.
func (a *Artifact) IsImage() bool {
	mt := a.Manifest.Config.MediaType
	return mt == ocispec.MediaTypeImageConfig || mt == "application/vnd.docker.container.image.v1+json"
}

// Kind says what an artifact is: catalog, definition, exec, starlark, image,
// or "" for anything else.
func (a *Artifact) Kind() string {
	if a.IsImage() {
		return "image"
	}
	l, err := a.main()
	if err != nil {
		return ""
	}
	switch l.MediaType {
	case MediaTypeCatalog:
		return "catalog"
	case MediaTypeDefinition:
		return "definition"
	case MediaTypeExec:
		return "exec"
	}
	// KC-101: the KEP's table gives executables the Starlark layer type,
	// so the artifact type decides.
	if a.Manifest.ArtifactType == ArtifactTypeExec {
		return "exec"
	}
	return "starlark"
}

// Document opens the definition or catalog document of the artifact.
func (a *Artifact) Document(ctx context.Context) (*catalog.Content, error) {
	layer, err := a.main()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", a.Reference, err)
	}
	return a.open(ctx, layer)
}

func (a *Artifact) open(ctx context.Context, layer ocispec.Descriptor) (*catalog.Content, error) {
	body, err := openBlob(ctx, a.repo, layer)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", a.Reference, err)
	}
	return &catalog.Content{
		Body:      body,
		Size:      layer.Size,
		MediaType: layer.MediaType,
		Name:      layer.Annotations[ocispec.AnnotationTitle],
		Digest:    layer.Digest,
		Location:  a.location(),
	}, nil
}

func (a *Artifact) location() catalog.Location {
	ref := a.Reference
	ref.Digest = ""
	return catalog.Location{Scheme: "oci", Ref: ref.String(), Digest: a.ManifestDescriptor.Digest}
}

// file finds a file by the path of the location: a layer's title, or a file
// in the examples layer.
func (a *Artifact) file(ctx context.Context, loc catalog.Location) (*catalog.Content, error) {
	for _, l := range a.Manifest.Layers {
		if l.Annotations[ocispec.AnnotationTitle] == loc.Path {
			return a.open(ctx, l)
		}
	}
	files, err := a.Examples(ctx)
	if err != nil {
		return nil, err
	}
	data, ok := files[loc.Path]
	if !ok {
		return nil, fmt.Errorf("%s: no file %q in the artifact: %w", a.Reference, loc.Path, fs.ErrNotExist)
	}
	where := a.location()
	where.Path = loc.Path
	return &catalog.Content{
		Body:     io.NopCloser(bytes.NewReader(data)),
		Size:     int64(len(data)),
		Name:     path.Base(loc.Path),
		Digest:   digest.FromBytes(data),
		Location: where,
	}, nil
}

// Examples reads the files of the artifact's examples layer, by their path in
// it. Without such a layer the map is empty.
func (a *Artifact) Examples(ctx context.Context) (map[string][]byte, error) {
	for _, l := range a.Manifest.Layers {
		if l.MediaType != MediaTypeExamples {
			continue
		}
		data, err := fetchBlob(ctx, a.repo, l, maxExamplesBytes)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", a.Reference, err)
		}
		files, err := readExamples(data)
		if err != nil {
			return nil, fmt.Errorf("%s: examples %s: %w", a.Reference, l.Digest, err)
		}
		return files, nil
	}
	return nil, nil
}

// Limits of an examples layer: packed, unpacked and in number of files.
const (
	maxExamplesBytes    = 16 << 20
	maxExamplesUnpacked = 64 << 20
	maxExamplesFiles    = 2000
)

// readExamples unpacks a tar.gz of small regular files into memory. Nothing
// is written, so a name cannot escape; names that are not clean are refused
// all the same, because callers write them.
func readExamples(data []byte) (map[string][]byte, error) {
	zr, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("not gzip: %w", err)
	}
	tr := tar.NewReader(io.LimitReader(zr, maxExamplesUnpacked+1))
	files := map[string][]byte{}
	total := 0
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return files, nil
		}
		if err != nil {
			return nil, fmt.Errorf("not a tar archive: %w", err)
		}
		if h.Typeflag == tar.TypeDir {
			continue
		}
		if h.Typeflag != tar.TypeReg || !fs.ValidPath(h.Name) || strings.ContainsRune(h.Name, '\\') {
			return nil, fmt.Errorf("entry %q: only regular files with clean relative names are allowed", h.Name)
		}
		if len(files) == maxExamplesFiles {
			return nil, fmt.Errorf("more than %d files", maxExamplesFiles)
		}
		b, err := io.ReadAll(tr)
		if err != nil {
			return nil, fmt.Errorf("entry %q: %w", h.Name, err)
		}
		if total += len(b); total > maxExamplesUnpacked {
			return nil, fmt.Errorf("more than %d bytes unpacked", maxExamplesUnpacked)
		}
		files[h.Name] = b
	}
}
