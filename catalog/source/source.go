// Package source fetches catalogs, definitions and runtimes from where they
// are: files, web servers and git repositories. A [Mux] picks the source by
// the scheme of the location, and [Cached] keeps on disk what cannot change.
// The source for OCI registries is in package registry.
//
// Everything that is fetched is read completely and checked before a caller
// sees a byte of it: its size against a limit, and its digest if the location
// has one. Small content stays in memory, large content goes through a
// temporary file.
package source

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"

	"github.com/krmcat/krmcat/catalog"
)

// DefaultMaxBytes is how much the sources read unless told otherwise. It is
// enough for every document; sources that executables are fetched from are
// given a larger limit.
const DefaultMaxBytes = catalog.MaxDocument

// inMemory is how much content stays in memory.
const inMemory = 8 << 20

// Errors reported by this package; test for them with [errors.Is]. Content
// that is not there wraps [io/fs.ErrNotExist], and a location that a source
// is not for, [errors.ErrUnsupported].
var (
	// ErrUnavailable: a server did not answer, or could not. Trying again
	// later may help.
	ErrUnavailable = errors.New("server is not available")
	// ErrDenied: the server wants to know who asks, or does not let us read.
	ErrDenied = errors.New("access denied")
	// ErrIntegrity: the content is not what its digest says.
	ErrIntegrity = errors.New("content does not match its digest")
	// ErrTooLarge: there is more content than the source is to read.
	ErrTooLarge = errors.New("content is too large")
)

// Mux picks a source by the scheme of the location: file, https, http, git or
// oci.
type Mux map[string]catalog.Source

// Fetch implements [catalog.Source].
func (m Mux) Fetch(ctx context.Context, loc catalog.Location) (*catalog.Content, error) {
	s, ok := m[loc.Scheme]
	switch {
	case ok:
		return s.Fetch(ctx, loc)
	case loc.IsZero():
		return nil, fmt.Errorf("no location to fetch from: %w", errors.ErrUnsupported)
	}
	return nil, fmt.Errorf("%s: locations of kind %s are not used here (used are %s): %w",
		loc, loc.Scheme, strings.Join(slices.Sorted(maps.Keys(m)), ", "), errors.ErrUnsupported)
}

// spool reads r to its end and gives it back as content, in memory or in a
// temporary file that goes away with the body. It fails before that if there
// are more than limit bytes or if the digest is not want; an empty want is not
// checked.
func spool(r io.Reader, limit int64, want digest.Digest) (*catalog.Content, error) {
	if limit <= 0 {
		limit = DefaultMaxBytes
	}
	sum := sha256.New()
	writers := []io.Writer{sum}
	var verify digest.Verifier
	if want != "" {
		if err := want.Validate(); err != nil {
			return nil, fmt.Errorf("digest %q: %w", want, err)
		}
		verify = want.Verifier()
		writers = append(writers, verify)
	}
	r = io.TeeReader(io.LimitReader(r, limit+1), io.MultiWriter(writers...))

	var head bytes.Buffer
	n, err := io.CopyN(&head, r, inMemory)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	var body io.ReadCloser = io.NopCloser(bytes.NewReader(head.Bytes()))
	if err == nil {
		f, more, err := spoolFile(&head, r)
		if err != nil {
			return nil, err
		}
		n += more
		body = f
	}
	if n > limit {
		body.Close()
		return nil, fmt.Errorf("more than %s: %w", size(limit), ErrTooLarge)
	}
	got := digest.NewDigest(digest.SHA256, sum)
	if verify != nil && !verify.Verified() {
		body.Close()
		return nil, fmt.Errorf("the content is %s, not %s: %w", got, want, ErrIntegrity)
	}
	return &catalog.Content{Body: body, Size: n, Digest: got}, nil
}

// spoolFile puts head and the rest of r into a temporary file, and gives back
// how long the rest was.
func spoolFile(head *bytes.Buffer, r io.Reader) (_ *tempFile, rest int64, err error) {
	f, err := os.CreateTemp("", "krmcat-fetch-")
	if err != nil {
		return nil, 0, err
	}
	t := &tempFile{f}
	defer func() {
		if err != nil {
			t.Close()
		}
	}()
	if _, err := f.Write(head.Bytes()); err != nil {
		return nil, 0, err
	}
	if rest, err = io.Copy(f, r); err != nil {
		return nil, 0, err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, 0, err
	}
	return t, rest, nil
}

// tempFile is removed when it is closed.
type tempFile struct{ *os.File }

func (t *tempFile) Close() error {
	return errors.Join(t.File.Close(), os.Remove(t.Name()))
}

func size(n int64) string {
	if n >= 1<<20 && n%(1<<20) == 0 {
		return fmt.Sprintf("%d MiB", n>>20)
	}
	return fmt.Sprintf("%d bytes", n)
}

// sentence makes a line of text from what a server or a program said, without
// anything that a terminal would act on.
func sentence(s string, limit int) string {
	s = strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t' || r == '\r':
			return ' '
		case r < ' ' || r >= 0x7f && r < 0xa0 || r == '\u2028' || r == '\u2029' || r >= '\u202a' && r <= '\u202e' || r >= '\u2066' && r <= '\u2069':
			return -1
		}
		return r
	}, strings.ToValidUTF8(s, ""))
	s = strings.Join(strings.Fields(s), " ")
	if r := []rune(s); len(r) > limit {
		return string(r[:limit]) + "…"
	}
	return s
}
