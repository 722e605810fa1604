package catalog

import (
	"context"
	"io"

	"github.com/opencontainers/go-digest"
)

// Source fetches content by location. A Source whose scheme does not match
// returns an error wrapping [errors.ErrUnsupported]; content that is not
// there, one wrapping [io/fs.ErrNotExist]. Errors name the location. When loc has a digest, the content
// is verified before it is returned.
type Source interface {
	Fetch(ctx context.Context, loc Location) (*Content, error)
}

// SourceFunc is a function used as a [Source].
type SourceFunc func(ctx context.Context, loc Location) (*Content, error)

// Fetch calls f.
func (f SourceFunc) Fetch(ctx context.Context, loc Location) (*Content, error) { return f(ctx, loc) }

// Content is what a [Source] fetched. The caller closes Body.
type Content struct {
	Body      io.ReadCloser
	Size      int64 // -1 if not known
	MediaType string
	Name      string        // file name, if the source knows one
	Digest    digest.Digest // digest of Body's bytes, if known before reading
	// Location is loc as resolved: with the digest of the manifest for oci
	// and the commit for git, so that fetching it again gives the same bytes.
	Location Location
}
