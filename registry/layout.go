package registry

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// layout stages the image of an OCI image layout as it is, so that its digest
// stays. The layout must name one image or index.
func (s *stage) layout(root *os.Root, dir, tag string) (ocispec.Descriptor, error) {
	if !isImageLayout(root.FS(), dir) {
		return ocispec.Descriptor{}, fmt.Errorf("%s: not an OCI image layout (no oci-layout file; make one with krmcat image)", dir)
	}
	data, err := readLimited(root, path.Join(dir, ocispec.ImageIndexFile), MaxManifestBytes)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	var index ocispec.Index
	if err := json.Unmarshal(data, &index); err != nil {
		return ocispec.Descriptor{}, fmt.Errorf("%s: index.json is not valid: %w", dir, err)
	}
	if len(index.Manifests) != 1 {
		return ocispec.Descriptor{}, fmt.Errorf("%s: holds %d images, must be one (or one index over several)", dir, len(index.Manifests))
	}
	l := &layoutReader{stage: s, root: root, dir: dir}
	desc, err := l.add(index.Manifests[0], 0)
	if err != nil {
		return ocispec.Descriptor{}, fmt.Errorf("%s: %w", dir, err)
	}
	s.manifests[len(s.manifests)-1].tag = tag
	return desc, nil
}

type layoutReader struct {
	stage *stage
	root  *os.Root
	dir   string
}

// add stages a manifest after everything that it refers to.
func (l *layoutReader) add(desc ocispec.Descriptor, depth int) (ocispec.Descriptor, error) {
	name, err := l.blobPath(desc)
	if err != nil {
		return desc, err
	}
	data, err := readLimited(l.root, name, MaxManifestBytes)
	if err != nil {
		return desc, err
	}
	if got := desc.Digest.Algorithm().FromBytes(data); got != desc.Digest {
		return desc, fmt.Errorf("manifest %s is %s: %w", desc.Digest, got, ErrIntegrity)
	}
	if isIndex(desc.MediaType) {
		var index ocispec.Index
		if err := json.Unmarshal(data, &index); err != nil {
			return desc, fmt.Errorf("index %s is not valid: %w", desc.Digest, err)
		}
		if depth == maxIndexDepth {
			return desc, fmt.Errorf("indexes are nested more than %d deep", maxIndexDepth)
		}
		for _, m := range index.Manifests {
			if _, err := l.add(m, depth+1); err != nil {
				return desc, err
			}
		}
	} else {
		var m ocispec.Manifest
		if err := json.Unmarshal(data, &m); err != nil {
			return desc, fmt.Errorf("manifest %s is not valid: %w", desc.Digest, err)
		}
		for _, b := range append([]ocispec.Descriptor{m.Config}, m.Layers...) {
			if err := l.addBlob(b); err != nil {
				return desc, err
			}
		}
	}
	desc = ocispec.Descriptor{MediaType: desc.MediaType, Digest: desc.Digest, Size: int64(len(data))}
	l.stage.manifests = append(l.stage.manifests, manifest{desc: desc, data: data, kind: "image", sign: depth == 0, names: l.stage.names})
	return desc, nil
}

func (l *layoutReader) addBlob(desc ocispec.Descriptor) error {
	name, err := l.blobPath(desc)
	if err != nil {
		return err
	}
	fi, err := l.root.Stat(name)
	if err != nil {
		return err
	}
	if fi.Size() != desc.Size || fi.Size() > MaxExecutableBytes {
		return fmt.Errorf("blob %s: %d bytes, %d expected, at most %d can be published", desc.Digest, fi.Size(), desc.Size, MaxExecutableBytes)
	}
	l.stage.blobs = append(l.stage.blobs, blob{
		desc: ocispec.Descriptor{MediaType: desc.MediaType, Digest: desc.Digest, Size: desc.Size},
		open: func() (io.ReadCloser, error) { return l.root.Open(name) },
	})
	return nil
}

func (l *layoutReader) blobPath(desc ocispec.Descriptor) (string, error) {
	if err := desc.Digest.Validate(); err != nil {
		return "", fmt.Errorf("digest %q: %w", desc.Digest, err)
	}
	return path.Join(l.dir, ocispec.ImageBlobsDir, desc.Digest.Algorithm().String(), desc.Digest.Encoded()), nil
}

func readLimited(root *os.Root, name string, limit int64) ([]byte, error) {
	f, err := root.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", name, err)
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("%s: more than %d bytes", name, limit)
	}
	return data, nil
}
