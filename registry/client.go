package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/errdef"
	"oras.land/oras-go/v2/registry/remote"
	"oras.land/oras-go/v2/registry/remote/auth"
	"oras.land/oras-go/v2/registry/remote/errcode"
	"oras.land/oras-go/v2/registry/remote/retry"
)

// Errors of registries; test for them with [errors.Is]. Content that is not
// there is [io/fs.ErrNotExist].
var (
	// ErrDenied: the registry wants other credentials, or allows nobody.
	ErrDenied = errors.New("access denied by the registry")
	// ErrUnavailable: the registry did not answer, or could not just now.
	ErrUnavailable = errors.New("registry is not available")
	// ErrIntegrity: content does not match the digest it was asked by.
	ErrIntegrity = errors.New("content does not match its digest")
	// ErrExists: the release is published already, with other content.
	ErrExists = errors.New("already published with other content")
)

// Options are the optional settings of a [Client]. The zero value is usable.
type Options struct {
	// PlainHTTP says whether to speak to a registry without TLS. Nil means
	// only to those on the loopback interface.
	PlainHTTP func(host string) bool
	// Credential finds the credential for a registry. Nil is anonymous.
	Credential auth.CredentialFunc
	// HTTPClient is used for all requests. Nil retries requests that a
	// registry could not answer just now.
	HTTPClient *http.Client
	// UserAgent names the program to registries.
	UserAgent string
}

// Client speaks to registries. It is safe for concurrent use and remembers
// tokens and what each registry supports.
type Client struct {
	auth      *auth.Client
	plainHTTP func(host string) bool
}

// NewClient returns a client; nil options mean the defaults.
func NewClient(opts *Options) *Client {
	if opts == nil {
		opts = &Options{}
	}
	c := &Client{
		auth: &auth.Client{
			Client:     opts.HTTPClient,
			Cache:      auth.NewCache(),
			Credential: opts.Credential,
		},
		plainHTTP: opts.PlainHTTP,
	}
	if c.auth.Client == nil {
		c.auth.Client = retry.DefaultClient
	}
	if c.auth.Client.CheckRedirect == nil {
		client := *c.auth.Client
		client.CheckRedirect = checkRedirect
		c.auth.Client = &client
	}
	if opts.UserAgent != "" {
		c.auth.SetUserAgent(opts.UserAgent)
	}
	if c.plainHTTP == nil {
		c.plainHTTP = IsLoopback
	}
	return c
}

// maxRedirects is how often a registry may send a client on.
const maxRedirects = 10

// checkRedirect keeps credentials with the server that they are for. Package
// http goes by the name of the host alone, and would send them on to another
// port of it, to its subdomains, and without TLS.
func checkRedirect(req *http.Request, via []*http.Request) error {
	if len(via) >= maxRedirects {
		return fmt.Errorf("redirected more than %d times", maxRedirects)
	}
	if first := via[0].URL; req.URL.Scheme != first.Scheme || req.URL.Host != first.Host {
		req.Header.Del("Authorization")
		req.Header.Del("Cookie")
	}
	return nil
}

// Repository returns the repository of a reference, ready for requests.
// Nothing is sent.
func (c *Client) Repository(ref Reference) (*remote.Repository, error) {
	repo, err := remote.NewRepository(ref.Name())
	if err != nil {
		return nil, fmt.Errorf("reference %s: %w", ref, err)
	}
	repo.Client = c.auth
	repo.PlainHTTP = c.plainHTTP(ref.Host)
	repo.MaxMetadataBytes = MaxManifestBytes
	// A referrers index that lost a race is garbage to collect, not to
	// delete at once: another signer may just be reading it.
	repo.SkipReferrersGC = true
	return repo, nil
}

// Resolve finds the manifest that a reference names. A reference with a
// digest is asked for by the digest; one with neither tag nor digest is an
// error. The error wraps [io/fs.ErrNotExist], [ErrDenied] or
// [ErrUnavailable].
func (c *Client) Resolve(ctx context.Context, ref Reference) (ocispec.Descriptor, error) {
	if ref.target() == "" {
		return ocispec.Descriptor{}, fmt.Errorf("reference %s: no tag and no digest", ref)
	}
	repo, err := c.Repository(ref)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	desc, err := repo.Resolve(ctx, ref.target())
	if err != nil {
		return ocispec.Descriptor{}, fmt.Errorf("resolving %s: %w", ref, Classify(err))
	}
	return desc, nil
}

// Media types of manifests that are read besides OCI's.
const (
	mediaTypeDockerManifest = "application/vnd.docker.distribution.manifest.v2+json"
	mediaTypeDockerList     = "application/vnd.docker.distribution.manifest.list.v2+json"
)

func isIndex(mediaType string) bool {
	return mediaType == ocispec.MediaTypeImageIndex || mediaType == mediaTypeDockerList
}

// fetchManifest reads a manifest or an index and checks it against its
// descriptor.
func fetchManifest(ctx context.Context, repo content.Fetcher, desc ocispec.Descriptor) ([]byte, error) {
	if !isIndex(desc.MediaType) && desc.MediaType != ocispec.MediaTypeImageManifest && desc.MediaType != mediaTypeDockerManifest {
		return nil, fmt.Errorf("%s: media type %q is neither a manifest nor an index", desc.Digest, desc.MediaType)
	}
	if desc.Size > MaxManifestBytes {
		return nil, fmt.Errorf("manifest %s: %d bytes, at most %d are read", desc.Digest, desc.Size, MaxManifestBytes)
	}
	data, err := content.FetchAll(ctx, repo, desc)
	if err != nil {
		return nil, fmt.Errorf("fetching manifest %s: %w", desc.Digest, Classify(err))
	}
	return data, nil
}

// fetchBlob reads a blob of at most limit bytes and checks it.
func fetchBlob(ctx context.Context, repo content.Fetcher, desc ocispec.Descriptor, limit int64) ([]byte, error) {
	if desc.Size > limit {
		return nil, fmt.Errorf("blob %s: %d bytes, at most %d are read", desc.Digest, desc.Size, limit)
	}
	data, err := content.FetchAll(ctx, repo, desc)
	if err != nil {
		return nil, fmt.Errorf("fetching blob %s: %w", desc.Digest, Classify(err))
	}
	return data, nil
}

// openBlob opens a blob whose reader fails, at the end, if the content was
// not what the descriptor says.
func openBlob(ctx context.Context, repo content.Fetcher, desc ocispec.Descriptor) (io.ReadCloser, error) {
	rc, err := repo.Fetch(ctx, desc)
	if err != nil {
		return nil, fmt.Errorf("fetching blob %s: %w", desc.Digest, Classify(err))
	}
	return &verifiedBlob{vr: content.NewVerifyReader(rc, desc), c: rc, digest: desc.Digest}, nil
}

type verifiedBlob struct {
	vr     *content.VerifyReader
	c      io.Closer
	digest digest.Digest
}

func (b *verifiedBlob) Read(p []byte) (int, error) {
	n, err := b.vr.Read(p)
	if errors.Is(err, io.EOF) {
		if verr := b.vr.Verify(); verr != nil {
			return n, fmt.Errorf("blob %s: %w", b.digest, Classify(verr))
		}
	}
	return n, err
}

func (b *verifiedBlob) Close() error { return b.c.Close() }

// Classify adds the sentinel of this package that says what a caller can do
// about an error of oras-go or of the network.
func Classify(err error) error {
	var resp *errcode.ErrorResponse
	var urlErr *url.Error
	var netErr net.Error
	switch {
	case err == nil, errors.Is(err, context.Canceled):
		return err
	case errors.Is(err, errdef.ErrNotFound):
		return mark{err, fs.ErrNotExist}
	case errors.Is(err, content.ErrMismatchedDigest), errors.Is(err, content.ErrTrailingData), errors.Is(err, content.ErrInvalidDescriptorSize):
		return mark{err, ErrIntegrity}
	case errors.As(err, &resp):
		switch {
		case resp.StatusCode == http.StatusUnauthorized, resp.StatusCode == http.StatusForbidden:
			return mark{err, ErrDenied}
		case resp.StatusCode == http.StatusNotFound:
			return mark{err, fs.ErrNotExist}
		case resp.StatusCode == http.StatusTooManyRequests, resp.StatusCode >= 500:
			return mark{err, ErrUnavailable}
		}
		return err
	case errors.Is(err, auth.ErrBasicCredentialNotFound):
		return mark{err, ErrDenied}
	case errors.As(err, &urlErr), errors.As(err, &netErr), errors.Is(err, io.ErrUnexpectedEOF):
		return mark{err, ErrUnavailable}
	}
	return err
}

// mark is an error that is also another one, without changing its text.
type mark struct{ err, is error }

func (m mark) Error() string   { return m.err.Error() }
func (m mark) Unwrap() []error { return []error{m.err, m.is} }
