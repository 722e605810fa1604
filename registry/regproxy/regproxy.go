// Package regproxy makes drivers of a registry that exists elsewhere: a
// [Backend] keeps everything in it, and a [Cache] reads through it and keeps
// what was read.
//
// Both speak to the other registry as a client does, so any one that knows
// the distribution specification will do: zot, Harbor, distribution, or a
// cloud's. Everything that comes from it is compared with its digest.
package regproxy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"iter"
	"net/http"
	"net/url"
	"path"
	"slices"
	"sync"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/registry/remote"
	"oras.land/oras-go/v2/registry/remote/errcode"

	"github.com/krmcat/krmcat/registry"
	"github.com/krmcat/krmcat/registry/regstore"
)

// Upstream is a registry elsewhere, or a part of one. It is safe for
// concurrent use.
type Upstream struct {
	client *registry.Client
	host   string
	prefix string // of repository names there, empty or ending with a slash

	mu    sync.Mutex
	repos map[string]*remote.Repository
}

// NewUpstream returns the registry at a host, such as ghcr.io, or the
// repositories there that begin with a prefix and a slash, if prefix is not
// empty. The client has the credentials.
func NewUpstream(client *registry.Client, host, prefix string) *Upstream {
	if prefix != "" {
		prefix += "/"
	}
	return &Upstream{client: client, host: host, prefix: prefix, repos: map[string]*remote.Repository{}}
}

// maxRepositories bounds the memory of an upstream.
const maxRepositories = 10_000

func (u *Upstream) repository(name string) (*remote.Repository, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if r, ok := u.repos[name]; ok {
		return r, nil
	}
	r, err := u.client.Repository(registry.Reference{Host: u.host, Repository: u.prefix + name})
	if err != nil {
		return nil, err
	}
	r.Client = anyDigest{r.Client}
	if len(u.repos) >= maxRepositories {
		clear(u.repos)
	}
	u.repos[name] = r // which remembers whether the registry lists referrers
	return r, nil
}

// anyDigest drops the digest that a registry says it has of a blob by
// another algorithm than it was asked for, which the specification allows
// ("Pulling blobs") and oras-go refuses.
type anyDigest struct{ remote.Client }

func (c anyDigest) Do(req *http.Request) (*http.Response, error) {
	resp, err := c.Client.Do(req)
	if err != nil {
		return resp, err
	}
	const header = "Docker-Content-Digest"
	said, err := digest.Parse(resp.Header.Get(header))
	if err == nil {
		asked, err := digest.Parse(path.Base(req.URL.Path))
		if err == nil && asked.Algorithm() != said.Algorithm() {
			resp.Header.Del(header)
		}
	}
	return resp, nil
}

// upstreamError says what an error of the other registry means for this one.
func upstreamError(err error) error {
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return err
	}
	err = registry.Classify(err)
	var resp *errcode.ErrorResponse
	if errors.As(err, &resp) && resp.StatusCode == http.StatusInsufficientStorage {
		return fmt.Errorf("%w: %w", regstore.ErrNoSpace, err)
	}
	if resp != nil && len(resp.Errors) > 0 && refusals[resp.StatusCode] {
		first := resp.Errors[0]
		return &registry.RefusedError{Code: first.Code, Message: "the registry behind this one refuses it: " + first.Message, Detail: first.Detail}
	}
	// Wrong credentials are ours, not the client's.
	if errors.Is(err, registry.ErrUnavailable) || errors.Is(err, registry.ErrDenied) || errors.Is(err, registry.ErrIntegrity) {
		return fmt.Errorf("%w: %w", regstore.ErrUnavailable, err)
	}
	return err
}

// refusals are the statuses of what is wrong with the content itself, which
// the one who sent it has to know.
var refusals = map[int]bool{http.StatusBadRequest: true, http.StatusRequestEntityTooLarge: true, http.StatusUnsupportedMediaType: true, http.StatusUnprocessableEntity: true}

// resolve finds a manifest.
func (u *Upstream) resolve(ctx context.Context, repository, reference string) (ocispec.Descriptor, error) {
	r, err := u.repository(repository)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	desc, err := r.Resolve(ctx, reference)
	if err != nil {
		return desc, upstreamError(err)
	}
	return ocispec.Descriptor{MediaType: desc.MediaType, Digest: desc.Digest, Size: desc.Size}, nil
}

// manifest reads a manifest and checks it.
func (u *Upstream) manifest(ctx context.Context, repository, reference string) (ocispec.Descriptor, []byte, error) {
	r, err := u.repository(repository)
	if err != nil {
		return ocispec.Descriptor{}, nil, err
	}
	desc, rc, err := r.FetchReference(ctx, reference)
	if err != nil {
		return desc, nil, upstreamError(err)
	}
	defer func() { _ = rc.Close() }() // only read
	if desc.Size > registry.MaxManifestBytes {
		return desc, nil, fmt.Errorf("%w: manifest %s has %d bytes", regstore.ErrUnavailable, desc.Digest, desc.Size)
	}
	b, err := content.ReadAll(rc, desc)
	if err != nil {
		return desc, nil, upstreamError(err)
	}
	return ocispec.Descriptor{MediaType: desc.MediaType, Digest: desc.Digest, Size: desc.Size}, b, nil
}

// statBlob returns the size of a blob.
func (u *Upstream) statBlob(ctx context.Context, repository string, d digest.Digest) (int64, error) {
	r, err := u.repository(repository)
	if err != nil {
		return 0, err
	}
	desc, err := r.Blobs().Resolve(ctx, string(d))
	return desc.Size, upstreamError(err)
}

// openBlob opens a blob, whose content is not checked.
func (u *Upstream) openBlob(ctx context.Context, repository string, desc ocispec.Descriptor) (io.ReadCloser, error) {
	r, err := u.repository(repository)
	if err != nil {
		return nil, err
	}
	rc, err := r.Blobs().Fetch(ctx, desc)
	return rc, upstreamError(err)
}

// tags lists the tags of a repository after one, in the order of their bytes.
//
// Not every registry does so: some ignore where a list is to begin, or have
// it in another order. What the first page says about that decides whether
// the rest is read as it comes, or all of it and put in order here.
func (u *Upstream) tags(ctx context.Context, repository, after string) iter.Seq2[string, error] {
	list := func(after string) iter.Seq2[[]string, error] {
		return func(yield func([]string, error) bool) {
			r, err := u.repository(repository)
			if err == nil {
				err = r.Tags(ctx, after, func(page []string) error {
					if !yield(page, nil) {
						return errStop
					}
					return nil
				})
			}
			if err != nil && !errors.Is(err, errStop) {
				yield(nil, upstreamError(err))
			}
		}
	}
	return func(yield func(string, error) bool) {
		ordered := false
		for page, err := range list(after) {
			if err != nil {
				yield("", err)
				return
			}
			if !ordered && !follows(page, after) {
				break
			}
			ordered = true
			for _, tag := range page {
				if !yield(tag, nil) {
					return
				}
			}
		}
		if ordered {
			return
		}
		var all []string
		for page, err := range list("") {
			if err != nil {
				yield("", err)
				return
			}
			all = append(all, page...)
		}
		slices.Sort(all)
		for _, tag := range slices.Compact(all) {
			if tag > after && !yield(tag, nil) {
				return
			}
		}
	}
}

// follows reports whether tags are in order, and after the one given.
func follows(tags []string, after string) bool {
	for _, tag := range tags {
		if tag <= after {
			return false
		}
		after = tag
	}
	return true
}

// referrers lists the referrers of a subject.
func (u *Upstream) referrers(ctx context.Context, repository string, d digest.Digest, artifactType string) iter.Seq2[ocispec.Descriptor, error] {
	return pages(func(page func([]ocispec.Descriptor) error) error {
		r, err := u.repository(repository)
		if err != nil {
			return err
		}
		return r.Referrers(ctx, ocispec.Descriptor{Digest: d}, artifactType, page)
	})
}

// repositories lists the repositories below the prefix.
func (u *Upstream) repositories(ctx context.Context, after string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		last := ""
		if after != "" {
			last = u.prefix + after
		}
		for name, err := range pages(func(page func([]string) error) error { return u.catalog(ctx, last, page) }) {
			if err != nil {
				yield("", err)
				return
			}
			if rest, ok := cutPrefix(name, u.prefix); ok && rest > after && !yield(rest, nil) {
				return
			}
		}
	}
}

func cutPrefix(s, prefix string) (string, bool) {
	if len(s) > len(prefix) && s[:len(prefix)] == prefix {
		return s[len(prefix):], true
	}
	return "", false
}

func (u *Upstream) catalog(ctx context.Context, last string, page func([]string) error) error {
	r, err := u.repository("repositories") // for its client, and whether it has TLS
	if err != nil {
		return err
	}
	reg, err := remote.NewRegistry(u.host)
	if err != nil {
		return err
	}
	reg.Client, reg.PlainHTTP = r.Client, r.PlainHTTP
	return reg.Repositories(ctx, last, page)
}

// errStop ends a listing whose reader has seen enough.
var errStop = errors.New("stop")

// pages turns a listing that calls back with pages into a sequence.
func pages[T any](list func(func([]T) error) error) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		err := list(func(page []T) error {
			for _, v := range page {
				if !yield(v, nil) {
					return errStop
				}
			}
			return nil
		})
		if err != nil && !errors.Is(err, errStop) {
			var zero T
			yield(zero, upstreamError(err))
		}
	}
}

// do sends a request that oras-go has no call for, and returns the answer
// without its body.
func (u *Upstream) do(ctx context.Context, method, repository, path string, body []byte, mediaType string) (*http.Response, error) {
	r, err := u.repository(repository)
	if err != nil {
		return nil, err
	}
	scheme := "https"
	if r.PlainHTTP {
		scheme = "http"
	}
	req, err := http.NewRequestWithContext(ctx, method, scheme+"://"+u.host+"/v2/"+u.prefix+repository+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if mediaType != "" {
		req.Header.Set("Content-Type", mediaType)
	}
	resp, err := r.Client.Do(req)
	if err != nil {
		return nil, upstreamError(err)
	}
	_ = resp.Body.Close() // what it says is in status and header
	return resp, nil
}

// deleteTag removes a tag.
func (u *Upstream) deleteTag(ctx context.Context, repository, tag string) error {
	resp, err := u.do(ctx, http.MethodDelete, repository, "/manifests/"+tag, nil, "")
	if err != nil {
		return err
	}
	switch resp.StatusCode {
	case http.StatusAccepted, http.StatusOK, http.StatusNoContent:
		return nil
	case http.StatusMethodNotAllowed, http.StatusBadRequest:
		return fmt.Errorf("tag %s of %s: the other registry deletes no tags: %w", tag, repository, errors.ErrUnsupported)
	}
	return statusError(resp)
}

// tagDigest points a tag at a manifest under a digest that is not the usual
// one, which only the parameter tag can say.
func (u *Upstream) tagDigest(ctx context.Context, repository, tag string, m *regstore.Manifest) error {
	resp, err := u.do(ctx, http.MethodPut, repository, "/manifests/"+string(m.Descriptor.Digest)+"?tag="+url.QueryEscape(tag), m.Content, m.Descriptor.MediaType)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusCreated {
		return statusError(resp)
	}
	if !slices.Contains(resp.Header.Values("Oci-Tag"), tag) {
		return fmt.Errorf("tag %s of %s: the other registry cannot tag a manifest by its %s digest: %w", tag, repository, m.Descriptor.Digest.Algorithm(), errors.ErrUnsupported)
	}
	return nil
}

func statusError(resp *http.Response) error {
	return upstreamError(&errcode.ErrorResponse{Method: resp.Request.Method, URL: resp.Request.URL, StatusCode: resp.StatusCode})
}

// blob reads a blob of the upstream from anywhere in it.
type blob struct {
	open   func() (io.ReadCloser, error)
	rc     io.ReadCloser
	at     int64 // where rc is
	offset int64 // where the next Read is
	size   int64

	digest digest.Digest
	hash   hash.Hash // of the first hashed bytes
	hashed int64
}

func (b *blob) Read(p []byte) (int, error) {
	if b.offset >= b.size {
		return 0, io.EOF
	}
	if b.at != b.offset {
		if err := b.move(); err != nil {
			return 0, err
		}
	}
	n, err := b.rc.Read(p[:min(int64(len(p)), b.size-b.offset)])
	if b.hashed == b.offset {
		_, _ = b.hash.Write(p[:n]) // never fails
		b.hashed += int64(n)
	}
	b.at += int64(n)
	b.offset = b.at
	if errors.Is(err, io.EOF) && b.offset < b.size {
		return n, fmt.Errorf("%w: the other registry sent %d bytes of %d of blob %s", regstore.ErrUnavailable, b.offset, b.size, b.digest)
	}
	if b.hashed == b.size && n > 0 && digest.NewDigest(b.digest.Algorithm(), b.hash) != b.digest {
		return 0, fmt.Errorf("%w: the other registry sent something else for blob %s", regstore.ErrUnavailable, b.digest)
	}
	return n, err
}

// move brings the reader to the offset: by asking for the rest, if the
// registry knows ranges, and otherwise by reading up to there.
func (b *blob) move() error {
	if s, ok := b.rc.(io.Seeker); ok {
		_, err := s.Seek(b.offset, io.SeekStart)
		b.at = b.offset
		return upstreamError(err)
	}
	if b.at > b.offset {
		_ = b.rc.Close() // only read
		rc, err := b.open()
		if err != nil {
			return err
		}
		b.rc, b.at = rc, 0
	}
	n, err := io.CopyN(io.Discard, b.rc, b.offset-b.at)
	b.at += n
	return err
}

func (b *blob) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += b.offset
	case io.SeekEnd:
		offset += b.size
	}
	if offset < 0 {
		return 0, errors.New("seek before the beginning")
	}
	b.offset = offset
	return offset, nil
}

func (b *blob) Close() error { return b.rc.Close() }
