package source

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/krmcat/krmcat/catalog"
)

func location(t *testing.T, s string) catalog.Location {
	t.Helper()
	l, err := catalog.ParseLocation(s)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// fetch reads all that a source has at a location.
func fetch(t *testing.T, src catalog.Source, loc catalog.Location) (string, *catalog.Content, error) {
	t.Helper()
	c, err := src.Fetch(t.Context(), loc)
	if err != nil {
		return "", nil, err
	}
	data, err := io.ReadAll(c.Body)
	if err != nil {
		t.Fatalf("%s: reading: %v", loc, err)
	}
	if err := c.Body.Close(); err != nil {
		t.Fatalf("%s: closing: %v", loc, err)
	}
	if c.Size >= 0 && c.Size != int64(len(data)) {
		t.Errorf("%s: size %d of %d bytes", loc, c.Size, len(data))
	}
	if c.Digest != "" && c.Digest != digest.FromBytes(data) {
		t.Errorf("%s: digest %s of content with %s", loc, c.Digest, digest.FromBytes(data))
	}
	return string(data), c, nil
}

// wantError checks an error for its sentinel, if that is not nil, and text.
func wantError(t *testing.T, what string, err, is error, text string) {
	t.Helper()
	switch {
	case err == nil:
		t.Errorf("%s: no error, want %q", what, text)
	case is != nil && !errors.Is(err, is):
		t.Errorf("%s: %v, want one that is %v", what, err, is)
	case !strings.Contains(err.Error(), text):
		t.Errorf("%s: %v, want %q", what, err, text)
	}
}

func TestMux(t *testing.T) {
	t.Parallel()
	m := Mux{"file": &File{}, "https": &HTTPS{}}
	_, err := m.Fetch(t.Context(), location(t, "oci://h/r"))
	wantError(t, "a scheme that is not there", err, errors.ErrUnsupported, "used are file, https")
	_, err = m.Fetch(t.Context(), catalog.Location{})
	wantError(t, "no location", err, errors.ErrUnsupported, "no location")
	for _, s := range []catalog.Source{&File{}, &HTTPS{}, &Git{}} {
		_, err := s.Fetch(t.Context(), location(t, "oci://h/r"))
		wantError(t, "the wrong source", err, errors.ErrUnsupported, "oci://h/r")
	}
}

func TestFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name string, data []byte) string {
		name = filepath.Join(dir, name)
		if err := os.WriteFile(name, data, 0o600); err != nil {
			t.Fatal(err)
		}
		return filepath.ToSlash(name)
	}
	name := write("c.yaml", []byte("a: b\n"))
	got, c, err := fetch(t, &File{}, location(t, name))
	if err != nil || got != "a: b\n" || c.Name != "c.yaml" || c.Location != location(t, name) {
		t.Errorf("got %q, %+v, %v", got, c, err)
	}
	_, err = (&File{}).Fetch(t.Context(), location(t, filepath.ToSlash(dir)))
	wantError(t, "a folder", err, nil, "is a folder; name a file in it, such as "+filepath.ToSlash(dir)+"/catalog.yaml")
	_, err = (&File{}).Fetch(t.Context(), location(t, name+"x"))
	wantError(t, "no file", err, fs.ErrNotExist, "c.yamlx")
	_, err = (&File{}).Fetch(t.Context(), location(t, "/dev/null"))
	wantError(t, "a device", err, nil, "not a regular file")
	_, err = (&File{MaxBytes: 4}).Fetch(t.Context(), location(t, name))
	wantError(t, "too large", err, ErrTooLarge, "more than 4 bytes")
	loc := location(t, name)
	loc.Digest = digest.FromString("x")
	_, err = (&File{}).Fetch(t.Context(), loc)
	wantError(t, "another digest", err, ErrIntegrity, digest.FromString("a: b\n").String())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = (&File{}).Fetch(ctx, location(t, name))
	wantError(t, "cancelled", err, context.Canceled, "")

	// Larger than what stays in memory, and exactly as much.
	for _, n := range []int{inMemory - 1, inMemory, inMemory + 1} {
		big := write("big", bytes.Repeat([]byte("x"), n))
		if got, _, err := fetch(t, &File{}, location(t, big)); err != nil || len(got) != n {
			t.Errorf("%d of %d bytes, %v", len(got), n, err)
		}
	}
	left, err := filepath.Glob(filepath.Join(os.TempDir(), "krmcat-fetch-*"))
	if err != nil || len(left) > 0 {
		t.Errorf("temporary files are left: %v, %v", left, err)
	}
}

func TestFileRoot(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{"in/c.yaml", "secret.yaml"} {
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("../secret.yaml", filepath.Join(dir, "in", "link.yaml")); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(filepath.Join(dir, "in"))
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	src := &File{Root: root}
	if _, _, err := fetch(t, src, location(t, "c.yaml")); err != nil {
		t.Error(err)
	}
	for _, name := range []string{"../secret.yaml", "x/../../secret.yaml", filepath.ToSlash(dir) + "/secret.yaml", "link.yaml"} {
		if got, _, err := fetch(t, src, location(t, name)); err == nil {
			t.Errorf("%s: read %q from outside", name, got)
		}
	}
}

func TestCache(t *testing.T) {
	t.Parallel()
	c := &Cache{Dir: filepath.Join(t.TempDir(), "cache"), MaxBytes: 8000}
	d, err := c.Put([]byte("hello"))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := c.Get(d); err != nil || string(got) != "hello" {
		t.Errorf("got %q, %v", got, err)
	}
	if _, err := c.Get(digest.FromString("other")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what is not there: %v", err)
	}
	for _, bad := range []digest.Digest{"", "sha256:..", "sha512:" + digest.Digest(strings.Repeat("a", 128))} {
		if _, err := c.Get(bad); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	// Damage is found, and repaired by the next Put.
	if err := os.WriteFile(c.blobPath(d), []byte("hellO"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Get(d); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("damaged content: %v", err)
	}
	if _, err := c.Put([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Get(d); err != nil {
		t.Errorf("after the repair: %v", err)
	}
	// It does not grow beyond its bound, and what is large is not kept.
	for i := range 50 {
		if _, err := c.Put(bytes.Repeat([]byte{byte(i)}, 500)); err != nil {
			t.Fatal(err)
		}
	}
	if d, err := c.Put(make([]byte, 1001)); err != nil {
		t.Fatal(err)
	} else if _, err := c.Get(d); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("content of an eighth of the bound: %v", err)
	}
	var total int64
	entries, err := os.ReadDir(filepath.Join(c.Dir, "blobs", "sha256"))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		total += info.Size()
	}
	if total > 8000 || total < 4000 {
		t.Errorf("%d bytes in a cache for 8000", total)
	}
}

// Several caches over one folder, as of several processes.
func TestCacheConcurrent(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	done := make(chan error)
	for w := range 4 {
		go func() {
			c := &Cache{Dir: dir, MaxBytes: 20_000}
			for i := range 100 {
				data := bytes.Repeat([]byte{byte(i), byte(w % 2)}, 100)
				d, err := c.Put(data)
				if err != nil && !errors.Is(err, fs.ErrNotExist) {
					done <- err
					return
				}
				got, err := c.Get(d)
				if err == nil && !bytes.Equal(got, data) || err != nil && !errors.Is(err, fs.ErrNotExist) {
					done <- errors.Join(err, errors.New("other content"))
					return
				}
			}
			done <- nil
		}()
	}
	for range 4 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func TestCached(t *testing.T) {
	t.Parallel()
	const hex = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	calls := 0
	down := false
	text := "a: b\n"
	src := &Cached{
		Cache: &Cache{Dir: t.TempDir()},
		Source: catalog.SourceFunc(func(_ context.Context, loc catalog.Location) (*catalog.Content, error) {
			calls++
			if down {
				return nil, ErrUnavailable
			}
			if loc.Scheme == "oci" {
				loc.Digest = "sha256:" + hex
			}
			return &catalog.Content{Body: io.NopCloser(strings.NewReader(text)), Size: -1, Name: "catalog.yaml", Location: loc}, nil
		}),
	}
	for range 3 {
		if got, c, err := fetch(t, src, location(t, "oci://h/r:v1@sha256:"+hex)); err != nil || got != text || c.Name != "catalog.yaml" {
			t.Errorf("%q, %+v, %v", got, c, err)
		}
	}
	if calls != 1 {
		t.Errorf("a pinned location was fetched %d times", calls)
	}
	// A tag is asked for each time, and what it gives is kept by its digest.
	calls = 0
	for range 2 {
		if _, _, err := fetch(t, src, location(t, "oci://h/x:v1")); err != nil {
			t.Error(err)
		}
	}
	if calls != 2 {
		t.Errorf("a tag was asked for %d times, want 2", calls)
	}
	down = true
	if _, _, err := fetch(t, src, location(t, "oci://h/x:v1")); !errors.Is(err, ErrUnavailable) {
		t.Errorf("a tag while the server is down: %v", err)
	}
	if got, _, err := fetch(t, src, location(t, "oci://h/x:v1@sha256:"+hex)); err != nil || got != text {
		t.Errorf("by digest while the server is down: %q, %v", got, err)
	}
	// A cache that cannot be written to does no harm.
	down = false
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	src.Cache = &Cache{Dir: file}
	if got, _, err := fetch(t, src, location(t, "oci://h/y@sha256:"+hex)); err != nil || got != text {
		t.Errorf("without a usable cache: %q, %v", got, err)
	}
}
