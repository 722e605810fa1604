package registry

import (
	"context"
	"encoding/json"
	"fmt"
	"io"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/content"
)

// maxCheckedManifests bounds how many manifests one image may have.
const maxCheckedManifests = 256

// Check reads everything that a manifest or an index refers to and compares
// it with its digests, without keeping it. It returns how many blobs there
// are. The reference needs a digest. Errors wrap [ErrIntegrity] for content
// that is not what its digest says, and are otherwise those of
// [Client.Resolve].
func (c *Client) Check(ctx context.Context, ref Reference) (blobs int, err error) {
	repo, err := c.Repository(ref)
	if err != nil {
		return 0, err
	}
	desc, err := c.Resolve(ctx, ref)
	if err != nil {
		return 0, err
	}
	k := &checker{repo: repo, seen: map[digest.Digest]bool{}}
	if err := k.manifest(ctx, desc, 0); err != nil {
		return 0, fmt.Errorf("%s: %w", ref, err)
	}
	return k.blobs, nil
}

type checker struct {
	repo      content.Fetcher
	seen      map[digest.Digest]bool
	manifests int
	blobs     int
}

func (k *checker) manifest(ctx context.Context, desc ocispec.Descriptor, depth int) error {
	if k.seen[desc.Digest] {
		return nil
	}
	k.seen[desc.Digest] = true
	if k.manifests++; k.manifests > maxCheckedManifests || depth > maxIndexDepth {
		return fmt.Errorf("more than %d manifests, or nested more than %d deep", maxCheckedManifests, maxIndexDepth)
	}
	data, err := fetchManifest(ctx, k.repo, desc)
	if err != nil {
		return err
	}
	// An index has manifests, a manifest has config and layers; what it is
	// called is checked where it is used.
	var m struct {
		Manifests []ocispec.Descriptor `json:"manifests"`
		Config    *ocispec.Descriptor  `json:"config"`
		Layers    []ocispec.Descriptor `json:"layers"`
	}
	if err := json.Unmarshal(data, &m); err != nil {
		return fmt.Errorf("manifest %s is not valid: %w", desc.Digest, err)
	}
	for _, child := range m.Manifests {
		if err := k.manifest(ctx, child, depth+1); err != nil {
			return err
		}
	}
	if m.Config != nil {
		m.Layers = append(m.Layers, *m.Config)
	}
	for _, b := range m.Layers {
		if err := k.blob(ctx, b); err != nil {
			return err
		}
	}
	return nil
}

func (k *checker) blob(ctx context.Context, desc ocispec.Descriptor) error {
	if k.seen[desc.Digest] {
		return nil
	}
	k.seen[desc.Digest] = true
	k.blobs++
	rc, err := openBlob(ctx, k.repo, desc)
	if err != nil {
		return err
	}
	defer rc.Close()
	_, err = io.Copy(io.Discard, rc)
	return err
}
