package source

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"mime"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"path"
	"strings"
	"time"

	"github.com/krmcat/krmcat/catalog"
)

// Limits of one request.
const (
	maxRedirects       = 5
	maxProblem         = 64 << 10 // bytes of an error response
	defaultHTTPTimeout = 2 * time.Minute
)

// HTTPS fetches from web servers, anonymously (KC-029). The zero value reads
// up to [DefaultMaxBytes], over TLS unless the server is on this machine, and
// through the proxy that the environment names. It is safe for concurrent use.
type HTTPS struct {
	// Client sends the requests; its limit of redirects is replaced, and a
	// cookie jar is not used. Nil means one with the system's certificate
	// authorities.
	Client *http.Client
	// AllowHTTP lets it speak to other machines without TLS, for catalogs in
	// a network that is trusted. Runtimes are verified by their digest anyway.
	AllowHTTP bool
	MaxBytes  int64         // zero means DefaultMaxBytes
	Timeout   time.Duration // of a fetch as a whole; zero means two minutes
	UserAgent string
	// Cache, if not nil, keeps what servers give an ETag or a date, so that
	// unchanged content is not sent again.
	Cache *Cache
}

// Fetch implements [catalog.Source].
func (s *HTTPS) Fetch(ctx context.Context, loc catalog.Location) (*catalog.Content, error) {
	if loc.Scheme != "https" && loc.Scheme != "http" {
		return nil, fmt.Errorf("%s: not a web location: %w", loc, errors.ErrUnsupported)
	}
	u, err := url.Parse(loc.Ref)
	if err != nil {
		return nil, fmt.Errorf("%s: not a URL", loc)
	}
	if err := s.allowed(u); err != nil {
		return nil, fmt.Errorf("%s: %w", loc, err)
	}
	timeout := s.Timeout
	if timeout <= 0 {
		timeout = defaultHTTPTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	c, err := s.get(ctx, loc)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", loc, err)
	}
	return c, nil
}

// allowed refuses what is neither encrypted nor local.
func (s *HTTPS) allowed(u *url.URL) error {
	switch {
	case u.Scheme == "https":
		return nil
	case u.Scheme != "http":
		return fmt.Errorf("scheme %q is not https", u.Scheme)
	case s.AllowHTTP || isLoopback(u.Hostname()):
		return nil
	}
	return errors.New("http is not encrypted, and used only for this machine; use https, or allow http")
}

func isLoopback(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	a, err := netip.ParseAddr(host)
	return err == nil && a.IsLoopback()
}

func (s *HTTPS) client() *http.Client {
	var c http.Client
	if s.Client != nil {
		c = *s.Client
	}
	c.Jar = nil
	c.CheckRedirect = func(req *http.Request, via []*http.Request) error {
		if len(via) > maxRedirects {
			return fmt.Errorf("more than %d redirects", maxRedirects)
		}
		if req.URL.User != nil {
			return errors.New("redirected to a URL with credentials")
		}
		if via[0].URL.Scheme == "https" && req.URL.Scheme != "https" {
			return errors.New("redirected from https to a URL that is not")
		}
		return s.allowed(req.URL)
	}
	return &c
}

func (s *HTTPS) get(ctx context.Context, loc catalog.Location) (*catalog.Content, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, loc.Ref, nil)
	if err != nil {
		return nil, errors.New("not a URL")
	}
	req.Header.Set("Accept", "application/yaml, application/json;q=0.9, application/octet-stream;q=0.8, */*;q=0.5")
	if s.UserAgent != "" {
		req.Header.Set("User-Agent", s.UserAgent)
	}
	var known *reference
	var kept []byte
	if s.Cache != nil {
		if ref, data, ok := s.Cache.lookup(webKey(loc)); ok {
			known, kept = ref, data
			if known.ETag != "" {
				req.Header.Set("If-None-Match", known.ETag)
			}
			if known.LastModified != "" {
				req.Header.Set("If-Modified-Since", known.LastModified)
			}
		}
	}
	resp, err := s.client().Do(req)
	if err != nil {
		return nil, requestError(ctx, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusNotModified && known != nil {
		return s.content(loc, bytes.NewReader(kept), known.MediaType)
	}
	if resp.StatusCode != http.StatusOK {
		return nil, statusError(resp)
	}
	mediaType, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if err != nil {
		mediaType = ""
	}
	if mediaType == "text/html" || mediaType == "application/xhtml+xml" {
		return nil, fmt.Errorf("the server sent a web page (%s), not a file; check the URL, it may want a login or be a page about the file", mediaType)
	}
	c, err := s.content(loc, resp.Body, mediaType)
	if err != nil {
		if ctx.Err() != nil || isNetwork(err) {
			return nil, requestError(ctx, err)
		}
		return nil, err
	}
	return s.keep(c, loc, resp)
}

func webKey(loc catalog.Location) string { return "web " + loc.Ref }

// content reads the body. The location it gives names the content by digest,
// so that whoever fetches it again gets the same or an error.
func (s *HTTPS) content(loc catalog.Location, body io.Reader, mediaType string) (*catalog.Content, error) {
	c, err := spool(body, s.MaxBytes, loc.Digest)
	if err != nil {
		return nil, err
	}
	c.MediaType = mediaType
	c.Location = loc
	c.Location.Digest = c.Digest
	if u, err := url.Parse(loc.Ref); err == nil {
		c.Name = path.Base(u.Path)
	}
	return c, nil
}

// keep puts content into the cache if the server lets us ask for changes.
func (s *HTTPS) keep(c *catalog.Content, loc catalog.Location, resp *http.Response) (*catalog.Content, error) {
	etag, modified := resp.Header.Get("ETag"), resp.Header.Get("Last-Modified")
	if s.Cache == nil || etag == "" && modified == "" || c.Size > inMemory ||
		strings.Contains(strings.ToLower(resp.Header.Get("Cache-Control")), "no-store") {
		return c, nil
	}
	data, err := io.ReadAll(c.Body)
	c.Body.Close()
	if err != nil {
		return nil, err
	}
	s.Cache.remember(reference{Key: webKey(loc), ETag: etag, LastModified: modified, MediaType: c.MediaType, Location: c.Location}, data)
	c.Body = io.NopCloser(bytes.NewReader(data))
	return c, nil
}

// requestError says why a request had no answer.
func requestError(ctx context.Context, err error) error {
	if cause := ctx.Err(); errors.Is(cause, context.Canceled) {
		return cause
	}
	// The URL is named already, and this one may be that of a redirect with
	// a signature in its query.
	if ue, ok := errors.AsType[*url.Error](err); ok {
		err = ue.Err
	}
	if isNetwork(err) || errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%w: %v", ErrUnavailable, err)
	}
	return err
}

// isNetwork tells errors of the network, which may pass, from what was
// refused by us.
func isNetwork(err error) bool {
	if _, ok := errors.AsType[net.Error](err); ok {
		return true
	}
	return errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF)
}

// statusError turns an answer that is not the content into an error, with
// what the server says if it says it in a way meant for people.
func statusError(resp *http.Response) error {
	what := resp.Status
	if text := problemText(resp); text != "" {
		what += " (" + text + ")"
	}
	switch code := resp.StatusCode; {
	case code == http.StatusNotFound || code == http.StatusGone:
		return fmt.Errorf("the server answers %s: %w", what, fs.ErrNotExist)
	case code == http.StatusUnauthorized || code == http.StatusForbidden || code == http.StatusProxyAuthRequired:
		return fmt.Errorf("the server answers %s, but what is read over https must be public: %w", what, ErrDenied)
	case code == http.StatusTooManyRequests || code == http.StatusRequestTimeout || code >= 500:
		return fmt.Errorf("the server answers %s: %w", what, ErrUnavailable)
	}
	return fmt.Errorf("the server answers %s", what)
}

// problemText reads a problem+json answer (RFC 9457) or a short plain text.
func problemText(resp *http.Response) string {
	mediaType, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if err != nil {
		return ""
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxProblem))
	if err != nil {
		return ""
	}
	switch mediaType {
	case "application/problem+json", "application/json":
		var p struct{ Title, Detail string }
		if json.Unmarshal(body, &p) != nil {
			return ""
		}
		if p.Detail != "" {
			return sentence(p.Detail, 300)
		}
		return sentence(p.Title, 300)
	case "text/plain":
		return sentence(string(body), 100)
	}
	return ""
}

var _ catalog.Source = (*HTTPS)(nil)
