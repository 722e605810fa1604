package registry

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"
	"oras.land/oras-go/v2/errdef"
	"oras.land/oras-go/v2/registry/remote"
)

// pushWorkers is how many blobs are uploaded at once.
const pushWorkers = 4

// blob is content to upload, opened as often as it takes.
type blob struct {
	desc ocispec.Descriptor
	open func() (io.ReadCloser, error)
}

func bytesBlob(mediaType, title string, data []byte) blob {
	return blob{
		desc: describe(mediaType, title, digest.FromBytes(data), int64(len(data))),
		open: func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil },
	}
}

// fileBlob describes a file of at most limit bytes, which is read again when
// it is uploaded: the registry refuses it if it changed in between.
func fileBlob(root *os.Root, name, mediaType, title string, limit int64) (blob, error) {
	f, err := root.Open(name)
	if err != nil {
		return blob{}, err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return blob{}, err
	}
	if !fi.Mode().IsRegular() {
		return blob{}, fmt.Errorf("%s: not a regular file", name)
	}
	if fi.Size() > limit {
		return blob{}, fmt.Errorf("%s: %d bytes, at most %d can be published", name, fi.Size(), limit)
	}
	d := digest.SHA256.Digester()
	n, err := io.Copy(d.Hash(), f)
	if err != nil {
		return blob{}, fmt.Errorf("reading %s: %w", name, err)
	}
	return blob{
		desc: describe(mediaType, title, d.Digest(), n),
		open: func() (io.ReadCloser, error) { return root.Open(name) },
	}, nil
}

func describe(mediaType, title string, d digest.Digest, size int64) ocispec.Descriptor {
	desc := ocispec.Descriptor{MediaType: mediaType, Digest: d, Size: size}
	if title != "" {
		desc.Annotations = map[string]string{ocispec.AnnotationTitle: title}
	}
	return desc
}

// manifest is a manifest or an index to push, with the tag it gets.
type manifest struct {
	desc ocispec.Descriptor
	data []byte
	tag  string
	kind string // what it is for the user: exec, starlark, image, docs, definition, catalog
	sign bool
	// names are the annotations that say which function or catalog it belongs
	// to. They are signed, and are not part of the manifest, which functions
	// may share.
	names map[string]string
}

// stage collects what a publication consists of before anything is sent, so
// that every problem that can be found beforehand is.
type stage struct {
	blobs     []blob
	manifests []manifest        // what refers to others comes after them
	names     map[string]string // of the manifests that are staged next
}

// artifact stages an OCI image manifest with an artifact type and returns its
// descriptor. The same arguments give the same bytes.
func (s *stage) artifact(kind, artifactType, tag string, annotations map[string]string, layers ...blob) (ocispec.Descriptor, error) {
	m := ocispec.Manifest{
		Versioned:    specs.Versioned{SchemaVersion: 2},
		MediaType:    ocispec.MediaTypeImageManifest,
		ArtifactType: artifactType,
		Config:       ocispec.DescriptorEmptyJSON,
		Annotations:  annotations,
	}
	s.blobs = append(s.blobs, bytesBlob(ocispec.MediaTypeEmptyJSON, "", ocispec.DescriptorEmptyJSON.Data))
	for _, l := range layers {
		s.blobs = append(s.blobs, l)
		m.Layers = append(m.Layers, l.desc)
	}
	return s.manifest(kind, tag, ocispec.MediaTypeImageManifest, artifactType, m)
}

// index stages an image index.
func (s *stage) index(kind, artifactType, tag string, annotations map[string]string, manifests []ocispec.Descriptor) (ocispec.Descriptor, error) {
	return s.manifest(kind, tag, ocispec.MediaTypeImageIndex, artifactType, ocispec.Index{
		Versioned:    specs.Versioned{SchemaVersion: 2},
		MediaType:    ocispec.MediaTypeImageIndex,
		ArtifactType: artifactType,
		Manifests:    manifests,
		Annotations:  annotations,
	})
}

func (s *stage) manifest(kind, tag, mediaType, artifactType string, v any) (ocispec.Descriptor, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	if len(data) > MaxManifestBytes {
		return ocispec.Descriptor{}, fmt.Errorf("manifest of the %s would have %d bytes, at most %d are allowed", kind, len(data), MaxManifestBytes)
	}
	desc := ocispec.Descriptor{MediaType: mediaType, ArtifactType: artifactType, Digest: digest.FromBytes(data), Size: int64(len(data))}
	s.manifests = append(s.manifests, manifest{desc: desc, data: data, tag: tag, kind: kind, sign: true, names: s.names})
	return desc, nil
}

// push uploads what the repository does not have: blobs, then manifests in
// order, none of them tagged. It reports which manifests were missing.
func (s *stage) push(ctx context.Context, repo *remote.Repository) (pushed map[digest.Digest]bool, err error) {
	pushed = map[digest.Digest]bool{}
	var missing []manifest
	for _, m := range s.manifests {
		have, err := repo.Manifests().Exists(ctx, m.desc)
		if err != nil {
			return nil, fmt.Errorf("looking for manifest %s: %w", m.desc.Digest, Classify(err))
		}
		if !have && !pushed[m.desc.Digest] {
			pushed[m.desc.Digest] = true
			missing = append(missing, m)
		}
	}
	if len(missing) > 0 {
		if err := s.pushBlobs(ctx, repo); err != nil {
			return nil, err
		}
	}
	for _, m := range missing {
		if err := repo.Manifests().Push(ctx, m.desc, bytes.NewReader(m.data)); err != nil {
			return nil, fmt.Errorf("pushing the %s manifest %s: %w", m.kind, m.desc.Digest, Classify(err))
		}
	}
	return pushed, nil
}

// tag points the tags of the manifests at them, in order, and adds those that
// moved to pushed.
func (s *stage) tag(ctx context.Context, repo *remote.Repository, pushed map[digest.Digest]bool) error {
	for _, m := range s.manifests {
		if m.tag == "" {
			continue
		}
		have, err := repo.Resolve(ctx, m.tag)
		if err == nil && have.Digest == m.desc.Digest {
			continue
		}
		if err != nil && !errors.Is(err, errdef.ErrNotFound) {
			return fmt.Errorf("resolving tag %s: %w", m.tag, Classify(err))
		}
		if err := repo.Manifests().PushReference(ctx, m.desc, bytes.NewReader(m.data), m.tag); err != nil {
			return fmt.Errorf("tagging %s as %s: %w", m.desc.Digest, m.tag, Classify(err))
		}
		pushed[m.desc.Digest] = true
	}
	return nil
}

func (s *stage) pushBlobs(ctx context.Context, repo *remote.Repository) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(pushWorkers)
	seen := map[digest.Digest]bool{}
	for _, b := range s.blobs {
		if seen[b.desc.Digest] {
			continue
		}
		seen[b.desc.Digest] = true
		g.Go(func() error { return pushBlob(ctx, repo, b) })
	}
	return g.Wait()
}

func pushBlob(ctx context.Context, repo *remote.Repository, b blob) error {
	have, err := repo.Blobs().Exists(ctx, b.desc)
	if err != nil {
		return fmt.Errorf("looking for blob %s: %w", b.desc.Digest, Classify(err))
	}
	if have {
		return nil
	}
	rc, err := b.open()
	if err != nil {
		return err
	}
	defer rc.Close()
	if err := repo.Blobs().Push(ctx, b.desc, rc); err != nil {
		return fmt.Errorf("uploading blob %s: %w", b.desc.Digest, Classify(err))
	}
	return nil
}

// packExamples makes a tar.gz of files by name, sorted and without times, so
// that the same files give the same bytes.
func packExamples(files map[string][]byte) ([]byte, error) {
	var list []tarFile
	for _, name := range slices.Sorted(maps.Keys(files)) {
		list = append(list, tarFile{name, 0o644, files[name]})
	}
	tarred, err := tarFiles(time.Unix(0, 0).UTC(), list)
	if err != nil {
		return nil, err
	}
	var buf bytes.Buffer
	zw := gzip.NewWriter(&buf)
	zw.OS = 255 // unknown, on every system
	if _, err := zw.Write(tarred); err != nil {
		return nil, err
	}
	if err := zw.Close(); err != nil {
		return nil, err
	}
	return buf.Bytes(), nil
}
