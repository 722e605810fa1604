package regdir

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/krmcat/krmcat/registry/regstore"
)

// While what a killed process left is being flushed, content can be read, and
// nothing is promised: neither that something is stored, nor that a blob need
// not be sent.
func TestNothingIsPromisedBeforeTheFlush(t *testing.T) {
	const repo = "publisher/set-labels"
	s, err := Open(t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	put := func(ctx context.Context, content string) (digest.Digest, error) {
		d := digest.FromString(content)
		return d, s.FinishUpload(ctx, repo, "", regstore.Chunk{Body: strings.NewReader(content), Offset: -1, Size: -1}, d)
	}
	config, err := put(t.Context(), "{}")
	if err != nil {
		t.Fatal(err)
	}
	content := []byte(`{"schemaVersion":2,"mediaType":"` + ocispec.MediaTypeImageManifest + `","config":{"mediaType":"x/y","digest":"` + string(config) + `","size":2},"layers":[]}`)
	m, err := regstore.ParseManifest("", content, digest.FromBytes(content))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.PutManifest(t.Context(), repo, m, []regstore.Tag{{Name: "v1"}}); err != nil {
		t.Fatal(err)
	}
	calls := map[string]func(context.Context) error{
		"StatBlob":       func(ctx context.Context) error { _, err := s.StatBlob(ctx, repo, config); return err },
		"FinishUpload":   func(ctx context.Context) error { _, err := put(ctx, "{}"); return err },
		"MountBlob":      func(ctx context.Context) error { return s.MountBlob(ctx, "other", repo, config) },
		"PutManifest":    func(ctx context.Context) error { return s.PutManifest(ctx, repo, m, nil) },
		"GC":             func(ctx context.Context) error { _, err := s.GC(ctx, nil); return err },
		"DeleteTag":      func(ctx context.Context) error { return s.DeleteTag(ctx, repo, "v1") },
		"DeleteManifest": func(ctx context.Context) error { return s.DeleteManifest(ctx, repo, m.Descriptor.Digest) },
		"DeleteBlob":     func(ctx context.Context) error { return s.DeleteBlob(ctx, repo, config) },
		"Fsck": func(ctx context.Context) error {
			for _, err := range s.Fsck(ctx, nil) {
				return err
			}
			return nil
		},
	}
	done := s.flushed
	synctest.Test(t, func(t *testing.T) {
		s.flushed = make(chan struct{})
		for name, call := range calls {
			ctx, cancel := context.WithCancel(t.Context())
			result := make(chan error, 1)
			go func() { result <- call(ctx) }()
			synctest.Wait()
			select {
			case err := <-result:
				cancel()
				t.Errorf("%s did not wait: %v", name, err)
				continue
			default:
			}
			cancel()
			if err := <-result; !errors.Is(err, context.Canceled) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if _, got, err := s.Manifest(t.Context(), repo, "v1"); err != nil || !bytes.Equal(got, content) {
			t.Errorf("a pull waits: %v", err)
		}
		if rc, _, err := s.OpenBlob(t.Context(), repo, config); err != nil {
			t.Errorf("a pull of a blob waits: %v", err)
		} else {
			_ = rc.Close() // only read
		}
		// A disk that cannot flush takes nothing.
		s.flushErr = regstore.ErrUnavailable
		close(s.flushed)
		if _, err := put(t.Context(), "other"); !errors.Is(err, regstore.ErrUnavailable) {
			t.Errorf("after a flush that failed: %v", err)
		}
		s.flushErr = nil
	})
	s.flushed = done
	if err := calls["StatBlob"](t.Context()); err != nil {
		t.Error(err)
	}
}

// Each opening has a name, and knows that of the one before.
func TestOpening(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	last := ""
	for range 3 {
		s, err := Open(dir, nil)
		if err != nil {
			t.Fatal(err)
		}
		this, before := s.Opening()
		if before != last || this == last || this == "" {
			t.Errorf("opening %q after %q, want it after %q", this, before, last)
		}
		last = this
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
