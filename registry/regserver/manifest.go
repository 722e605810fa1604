package regserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"mime"
	"net/http"
	"strconv"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/krmcat/krmcat/registry"
	"github.com/krmcat/krmcat/registry/regstore"
)

// getManifest answers end-3.
func (c *call) getManifest() error {
	var desc ocispec.Descriptor
	var content []byte
	var err error
	if c.r.Method == http.MethodHead {
		desc, err = c.store.Resolve(c.ctx, c.repository, c.reference)
	} else {
		desc, content, err = c.store.Manifest(c.ctx, c.repository, c.reference)
	}
	if err != nil {
		return storeError(err, "MANIFEST_UNKNOWN")
	}
	h := c.w.Header()
	h.Set("Content-Type", desc.MediaType)
	h.Set("Docker-Content-Digest", string(desc.Digest))
	h.Set("Etag", `"`+string(desc.Digest)+`"`)
	if c.unchanged(desc.Digest) {
		c.w.WriteHeader(http.StatusNotModified)
		return nil
	}
	setLength(c.w, desc.Size)
	if c.r.Method == http.MethodHead {
		return nil
	}
	_, err = c.w.Write(content)
	return ignore(err)
}

// unchanged reports whether the client says that it has what the digest
// names (If-None-Match, RFC 9110 section 13.1.2).
func (c *call) unchanged(d digest.Digest) bool {
	for _, list := range c.r.Header.Values("If-None-Match") {
		for tag := range strings.SplitSeq(list, ",") { // a digest has no comma
			tag = strings.TrimSpace(tag)
			if tag == "*" || strings.TrimPrefix(tag, "W/") == `"`+string(d)+`"` {
				return true
			}
		}
	}
	return false
}

func setLength(w http.ResponseWriter, n int64) {
	w.Header().Set("Content-Length", strconv.FormatInt(n, 10))
}

// maxTagParameters is how many tags one push may set.
const maxTagParameters = 50

// putManifest answers end-7. A push by digest may name tags with the
// parameter tag.
func (c *call) putManifest() error {
	content, release, err := c.readManifest()
	if err != nil {
		return err
	}
	defer release()
	m, err := c.checkManifest(content)
	if err != nil {
		return err
	}
	tags, err := c.tagsOf()
	if err != nil {
		return err
	}
	if err := c.checkTags(m, tags); err != nil {
		return err
	}
	if err := c.checkReferences(m); err != nil {
		return err
	}
	if err := c.room(m.Descriptor.Size); err != nil {
		return err
	}
	changes := c.changes(m, tags)
	if c.opts.Admission != nil {
		for _, change := range changes {
			if err := c.admit(change); err != nil {
				return err
			}
		}
	}
	err = c.observe(changes, func(ctx context.Context) error {
		return c.store.PutManifest(ctx, c.repository, m, tags)
	})
	if err != nil {
		return storeError(err, "MANIFEST_BLOB_UNKNOWN")
	}
	h := c.w.Header()
	h.Set("Location", "/v2/"+c.repository+"/manifests/"+string(m.Descriptor.Digest))
	h.Set("Docker-Content-Digest", string(m.Descriptor.Digest))
	if m.Subject != "" && !c.opts.NoReferrers {
		h.Set("Oci-Subject", string(m.Subject))
	}
	if c.digest != "" {
		for _, t := range tags {
			h.Add("Oci-Tag", t.Name)
		}
	}
	c.w.WriteHeader(http.StatusCreated)
	return nil
}

// readManifest reads the body into memory, of which all requests together
// get no more than the server is given. release gives it back.
func (c *call) readManifest() (content []byte, release func(), err error) {
	const limit = registry.MaxManifestBytes
	tooBig := &Error{Status: http.StatusRequestEntityTooLarge, Code: "SIZE_INVALID", Message: fmt.Sprintf("a manifest has at most %d bytes", limit)}
	size := c.r.ContentLength
	if size > limit {
		return nil, nil, tooBig
	}
	// Reading and checking takes a few times the size; an unknown size may
	// be the largest.
	weight := 4 * (size + 4096)
	if size < 0 {
		weight = 4 * (limit + 4096)
	}
	if !c.buffer.TryAcquire(min(weight, c.opts.Limits.BufferedBytes)) {
		return nil, nil, tooMany("too many manifests at once")
	}
	release = func() { c.buffer.Release(min(weight, c.opts.Limits.BufferedBytes)) }
	r := c.body(size)
	if size >= 0 {
		content = make([]byte, size)
		if _, err = io.ReadFull(r, content); err == nil {
			_, err = r.Read(make([]byte, 1)) // past the end: the body is longer, or done
			if errors.Is(err, io.EOF) {
				err = nil
			}
		} else if errors.Is(err, io.EOF) && size == 0 {
			err = nil
		}
	} else {
		content, err = io.ReadAll(io.LimitReader(r, limit+1))
		if err == nil && len(content) > limit {
			err = tooBig
		}
	}
	if err != nil {
		release()
		return nil, nil, storeError(err, "MANIFEST_UNKNOWN")
	}
	return content, release, nil
}

// checkManifest checks what can be seen in the manifest itself.
func (c *call) checkManifest(content []byte) (*regstore.Manifest, error) {
	d := c.digest
	if d == "" {
		d = digest.FromBytes(content)
	} else if d.Algorithm().FromBytes(content) != d {
		return nil, errDigest(string(d), regstore.ErrDigest)
	}
	mediaType := c.r.Header.Get("Content-Type")
	if mediaType != "" {
		t, _, err := mime.ParseMediaType(mediaType)
		if err != nil {
			return nil, errManifest(fmt.Errorf("Content-Type %.100q: %w", mediaType, err))
		}
		mediaType = t
	}
	if err := regstore.CheckManifest(content); err != nil {
		return nil, errManifest(err)
	}
	m, err := regstore.ParseManifest(mediaType, content, d)
	if err != nil {
		return nil, errManifest(err)
	}
	return m, nil
}

func errManifest(err error) error {
	return &Error{Status: http.StatusBadRequest, Code: "MANIFEST_INVALID", Message: err.Error()}
}

// tagsOf returns the tags that a push sets.
func (c *call) tagsOf() ([]regstore.Tag, error) {
	names := []string{c.reference}
	if c.digest != "" {
		names = c.r.URL.Query()["tag"]
	}
	if len(names) > maxTagParameters {
		return nil, errManifest(fmt.Errorf("%d tags in one push, at most %d are allowed", len(names), maxTagParameters))
	}
	var tags []regstore.Tag
	for _, n := range names {
		if !regstore.ValidTag(n) {
			return nil, errManifest(fmt.Errorf("%.200q is not a tag (letters, digits, '_', '.' and '-', at most 128)", n))
		}
		tags = append(tags, regstore.Tag{Name: n, Immutable: c.immutable(c.repository, n)})
	}
	return tags, nil
}

// checkTags refuses early what the store would refuse, so that neither
// admission nor observer see it.
func (c *call) checkTags(m *regstore.Manifest, tags []regstore.Tag) error {
	for _, t := range tags {
		if !t.Immutable {
			continue
		}
		have, err := c.store.Resolve(c.ctx, c.repository, t.Name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return storeError(err, "MANIFEST_UNKNOWN")
		case have.Digest != m.Descriptor.Digest:
			return errImmutable(t.Name, have.Digest)
		}
	}
	return nil
}

// checkReferences looks up what the manifest refers to. Sizes count: a
// client that trusts a descriptor stops reading, or refuses, by its size.
func (c *call) checkReferences(m *regstore.Manifest) error {
	var missing []digest.Digest
	size := func(d ocispec.Descriptor, size int64, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			missing = append(missing, d.Digest)
		case err != nil:
			return storeError(err, "MANIFEST_BLOB_UNKNOWN")
		case size != d.Size:
			return &Error{Status: http.StatusBadRequest, Code: "SIZE_INVALID",
				Message: fmt.Sprintf("the manifest says that %s has %d bytes; it has %d", d.Digest, d.Size, size),
				Detail:  map[string]any{"digest": d.Digest, "size": size}}
		}
		return nil
	}
	for _, b := range m.Blobs {
		n, err := c.store.StatBlob(c.ctx, c.repository, b.Digest)
		if err := size(b, n, err); err != nil {
			return err
		}
	}
	for _, child := range m.Manifests {
		desc, err := c.store.Resolve(c.ctx, c.repository, string(child.Digest))
		if err := size(child, desc.Size, err); err != nil {
			return err
		}
	}
	if missing != nil {
		return errMissing(missing)
	}
	return nil
}

// changes says what storing a manifest changes, tag by tag.
func (c *call) changes(m *regstore.Manifest, tags []regstore.Tag) []registry.Change {
	change := registry.Change{Repository: c.repository, Descriptor: m.Descriptor, Manifest: m.Content}
	if len(tags) == 0 {
		return []registry.Change{change}
	}
	changes := make([]registry.Change, len(tags))
	for i, t := range tags {
		change.Tag = t.Name
		changes[i] = change
	}
	return changes
}

func (c *call) admit(change registry.Change) error {
	err := c.opts.Admission.Admit(c.ctx, c.store, change)
	var refused *registry.RefusedError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &refused):
		return errRefused(refused)
	}
	return unavailable(fmt.Errorf("admission: %w", err))
}

// observe makes a change between the observer's begin and done.
func (c *call) observe(changes []registry.Change, do func(context.Context) error) error {
	// Once the observer knows of the change, it is made and reported even if
	// the client hangs up.
	ctx := context.WithoutCancel(c.ctx)
	var done []func(context.Context, error) error
	finish := func(err error) {
		for _, f := range done {
			if derr := f(ctx, err); derr != nil {
				c.log.ErrorContext(ctx, "observer did not take note of a change", "repository", c.repository, "reference", c.reference, "error", derr)
			}
		}
	}
	if c.opts.Observer != nil {
		for _, change := range changes {
			f, err := c.opts.Observer.Begin(c.ctx, c.store, change)
			if err != nil {
				err = fmt.Errorf("announcing the change: %w", err)
				finish(err)
				return unavailable(err)
			}
			done = append(done, f)
		}
	}
	err := do(ctx)
	finish(err)
	return err
}

// deleteManifest answers end-9, for a manifest and for a tag.
func (c *call) deleteManifest() error {
	desc, err := c.store.Resolve(c.ctx, c.repository, c.reference)
	if err != nil {
		return storeError(err, "MANIFEST_UNKNOWN")
	}
	change := registry.Change{Repository: c.repository, Descriptor: desc, Delete: true}
	if err := c.deletable(c.reference); err != nil {
		return err
	}
	if c.digest == "" {
		if c.immutable(c.repository, c.reference) {
			return errRelease(c.reference)
		}
		change.Tag = c.reference
		err = c.observe([]registry.Change{change}, func(ctx context.Context) error {
			return c.store.DeleteTag(ctx, c.repository, c.reference)
		})
	} else {
		if err := c.checkUnreleased(desc.Digest); err != nil {
			return err
		}
		err = c.observe([]registry.Change{change}, func(ctx context.Context) error {
			return c.store.DeleteManifest(ctx, c.repository, c.digest)
		})
	}
	if err != nil {
		return storeError(err, "MANIFEST_UNKNOWN")
	}
	c.w.WriteHeader(http.StatusAccepted)
	return nil
}

func errRelease(tag string) error {
	return errKept("release "+tag+" cannot be deleted: others may depend on it", map[string]string{"tag": tag})
}

// checkUnreleased refuses to delete a manifest under an immutable tag.
func (c *call) checkUnreleased(d digest.Digest) error {
	for tag, err := range c.store.Tags(c.ctx, c.repository, "") {
		if err != nil {
			return storeError(err, "NAME_UNKNOWN")
		}
		if !c.immutable(c.repository, tag) {
			continue
		}
		desc, err := c.store.Resolve(c.ctx, c.repository, tag)
		if err == nil && desc.Digest == d {
			return errRelease(tag)
		}
	}
	return nil
}
