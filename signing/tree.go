package signing

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/content"
)

const (
	maxIndexBytes = 4 << 20
	maxManifests  = 256 // in all indexes under one subject

	mediaTypeDockerIndex = "application/vnd.docker.distribution.manifest.list.v2+json"
)

// Tree lists a manifest and, if it is an index, the manifests that it lists,
// with those of indexes inside. Each digest comes once, parents first.
func Tree(ctx context.Context, target content.Fetcher, desc ocispec.Descriptor) ([]ocispec.Descriptor, error) {
	list := []ocispec.Descriptor{desc}
	seen := map[digest.Digest]bool{desc.Digest: true}
	for i := 0; i < len(list); i++ {
		if list[i].MediaType != ocispec.MediaTypeImageIndex && list[i].MediaType != mediaTypeDockerIndex {
			continue
		}
		data, err := fetchBytes(ctx, target, list[i], maxIndexBytes)
		if err != nil {
			return nil, err
		}
		var index ocispec.Index
		if err := json.Unmarshal(data, &index); err != nil {
			return nil, fmt.Errorf("reading the index %s: %w", list[i].Digest, err)
		}
		for _, m := range index.Manifests {
			if seen[m.Digest] {
				continue
			}
			if len(list) == maxManifests {
				return nil, fmt.Errorf("%w: more than %d manifests under %s", ErrTooMuch, maxManifests, desc.Digest)
			}
			seen[m.Digest] = true
			list = append(list, ocispec.Descriptor{MediaType: m.MediaType, Digest: m.Digest, Size: m.Size})
		}
	}
	return list, nil
}
