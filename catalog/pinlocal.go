package catalog

import (
	"context"
	"fmt"

	"github.com/opencontainers/go-digest"
)

// PinLocal gives the executables and the script of a version that are files
// of this machine the digests that they have now, where the document gives
// none: in its author's folder, before publishing does so. What is elsewhere
// stays as it is.
func PinLocal(ctx context.Context, src Source, v *Version) error {
	if x := v.Runtime.Exec; x != nil {
		pinned := *x
		pinned.Platforms = append([]Platform(nil), x.Platforms...)
		for i := range pinned.Platforms {
			p := &pinned.Platforms[i]
			d, err := localDigest(ctx, src, p.Location, p.Digest)
			if err != nil {
				return fmt.Errorf("executable %s: %w", p.URI, err)
			}
			p.Digest = d
		}
		v.Runtime.Exec = &pinned
	}
	if s := v.Runtime.Starlark; s != nil {
		pinned := *s
		d, err := localDigest(ctx, src, s.Location, s.Digest)
		if err != nil {
			return fmt.Errorf("script %s: %w", s.URI, err)
		}
		pinned.Digest = d
		v.Runtime.Starlark = &pinned
	}
	return nil
}

func localDigest(ctx context.Context, src Source, loc Location, have digest.Digest) (digest.Digest, error) {
	if have != "" || loc.Digest != "" || !loc.IsLocal() {
		return have, nil
	}
	c, err := src.Fetch(ctx, loc)
	if err != nil {
		return "", err
	}
	defer c.Body.Close()
	return digest.SHA256.FromReader(c.Body)
}
