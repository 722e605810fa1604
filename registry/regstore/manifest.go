package regstore

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Media types of manifests beside those of the image specification.
const (
	mediaTypeDockerManifest = "application/vnd.docker.distribution.manifest.v2+json"
	mediaTypeDockerList     = "application/vnd.docker.distribution.manifest.list.v2+json"
	mediaTypeDockerForeign  = "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip"
	prefixNondistributable  = "application/vnd.oci.image.layer.nondistributable.v1."
)

// MaxReferences is how many blobs and manifests one manifest may refer to.
// Each of them is looked up when the manifest is pushed.
const MaxReferences = 2000

// Manifest is a manifest that was read and checked.
type Manifest struct {
	// Descriptor is how the referrers API lists it: with its media type,
	// digest, size, artifact type and annotations.
	Descriptor ocispec.Descriptor
	Content    []byte
	// Subject is the digest of the manifest it refers to as its subject;
	// empty for none. The subject need not be in the registry.
	Subject digest.Digest
	// Blobs and Manifests are what has to be in the repository.
	Blobs, Manifests []ocispec.Descriptor
}

// Plain returns the descriptor without artifact type and annotations, as it
// is found by tag or digest.
func (m *Manifest) Plain() ocispec.Descriptor {
	return ocispec.Descriptor{MediaType: m.Descriptor.MediaType, Digest: m.Descriptor.Digest, Size: m.Descriptor.Size}
}

// document has the fields of all the manifest types.
type document struct {
	SchemaVersion int                  `json:"schemaVersion"`
	MediaType     string               `json:"mediaType"`
	ArtifactType  string               `json:"artifactType"`
	Config        *ocispec.Descriptor  `json:"config"`
	Layers        []ocispec.Descriptor `json:"layers"`
	Manifests     []ocispec.Descriptor `json:"manifests"`
	Subject       *ocispec.Descriptor  `json:"subject"`
	Annotations   map[string]string    `json:"annotations"`
}

// fieldNames are the fields of an object, with those of their values.
type fieldNames map[string]fieldNames

var (
	descriptorFields = fieldNames{"mediaType": nil, "digest": nil, "size": nil, "urls": nil, "annotations": nil, "data": nil, "platform": nil, "artifactType": nil}
	documentFields   = fieldNames{
		"schemaVersion": nil, "mediaType": nil, "artifactType": nil, "annotations": nil,
		"config": descriptorFields, "layers": descriptorFields, "manifests": descriptorFields, "subject": descriptorFields,
	}
)

// ParseManifest reads and checks a manifest. mediaType is what it was sent as,
// and may be empty if the manifest says it itself; d is the digest that it is
// stored under. Errors are meant for the one who sent it.
//
// It is for what is stored as well as for what arrives; the latter goes
// through [CheckManifest] first.
func ParseManifest(mediaType string, content []byte, d digest.Digest) (*Manifest, error) {
	var doc document
	if err := json.Unmarshal(content, &doc); err != nil {
		return nil, fmt.Errorf("manifest is not valid: %w", err)
	}
	switch {
	case mediaType == "" && doc.MediaType == "":
		return nil, errors.New("manifest has no media type (set the Content-Type header)")
	case mediaType == "":
		mediaType = doc.MediaType
	case doc.MediaType != "" && doc.MediaType != mediaType:
		return nil, fmt.Errorf("manifest says its media type is %q, but was sent as %q", doc.MediaType, mediaType)
	}
	if doc.SchemaVersion != 2 {
		return nil, fmt.Errorf("manifest has schemaVersion %d; only 2 is supported", doc.SchemaVersion)
	}
	m := &Manifest{
		Content: content,
		Descriptor: ocispec.Descriptor{
			MediaType:    mediaType,
			Digest:       d,
			Size:         int64(len(content)),
			ArtifactType: doc.ArtifactType,
			Annotations:  doc.Annotations,
		},
	}
	switch mediaType {
	case ocispec.MediaTypeImageManifest, mediaTypeDockerManifest:
		// A document that is a manifest to one client and an index to
		// another shows them different content (CVE-2021-41190).
		if doc.Manifests != nil {
			return nil, errors.New("an image manifest has no field manifests")
		}
		if doc.Config == nil {
			return nil, errors.New("an image manifest needs a config")
		}
		if m.Descriptor.ArtifactType == "" {
			m.Descriptor.ArtifactType = doc.Config.MediaType
		}
		m.Blobs = append([]ocispec.Descriptor{*doc.Config}, doc.Layers...)
	case ocispec.MediaTypeImageIndex, mediaTypeDockerList:
		if doc.Layers != nil || doc.Config != nil {
			return nil, errors.New("an image index has no fields config and layers")
		}
		m.Manifests = doc.Manifests
	default:
		return nil, fmt.Errorf("%q is not a media type of manifests that is served here (those are %s, %s, %s and %s)", mediaType,
			ocispec.MediaTypeImageManifest, ocispec.MediaTypeImageIndex, mediaTypeDockerManifest, mediaTypeDockerList)
	}
	if n := len(m.Blobs) + len(m.Manifests); n > MaxReferences {
		return nil, fmt.Errorf("manifest refers to %d blobs and manifests, at most %d are allowed", n, MaxReferences)
	}
	for _, list := range [][]ocispec.Descriptor{m.Blobs, m.Manifests} {
		for i, desc := range list {
			if err := checkDescriptor(desc); err != nil {
				return nil, fmt.Errorf("descriptor %d: %w", i, err)
			}
		}
	}
	m.Blobs = slices.DeleteFunc(m.Blobs, elsewhere)
	if doc.Subject != nil {
		if err := checkDescriptor(*doc.Subject); err != nil {
			return nil, fmt.Errorf("subject: %w", err)
		}
		m.Subject = doc.Subject.Digest
	}
	return m, nil
}

// elsewhere reports whether a layer is fetched from its URLs and need not be
// in the registry (image-spec, "Non-Distributable Layers").
func elsewhere(d ocispec.Descriptor) bool {
	return len(d.URLs) > 0 && (d.MediaType == mediaTypeDockerForeign || strings.HasPrefix(d.MediaType, prefixNondistributable))
}

func checkDescriptor(d ocispec.Descriptor) error {
	if _, err := ParseDigest(string(d.Digest)); err != nil {
		return fmt.Errorf("digest %q: %w", d.Digest, err)
	}
	if d.Size < 0 {
		return fmt.Errorf("size %d is negative", d.Size)
	}
	return nil
}

// CheckManifest refuses, of a manifest that comes from outside, what two JSON
// readers may understand differently: a field that is there twice, wherever
// that is, one of the manifest or of a descriptor that is written in another
// case, and text that is not UTF-8. Otherwise what was checked here and what
// a client pulls were not the same. It also refuses what takes much more
// memory than its size, and takes little memory itself.
//
// What is stored already is not asked again: rules that become stricter must
// not turn content that somebody relies on into garbage.
func CheckManifest(content []byte) error {
	if !utf8.Valid(content) {
		return errors.New("manifest is not UTF-8")
	}
	// This bounds the depth of what follows.
	if !json.Valid(content) {
		return fmt.Errorf("manifest is not JSON: %w", json.Unmarshal(content, &json.RawMessage{}))
	}
	if !bytes.HasPrefix(bytes.TrimLeft(content, " \t\r\n"), []byte("{")) {
		return errors.New("manifest is not a JSON object")
	}
	c := checker{dec: json.NewDecoder(bytes.NewReader(content))}
	return c.value(documentFields)
}

// maxValues is how many values and names of fields a manifest may have. What
// it takes in memory depends on their number more than on its size.
const maxValues = 100_000

// checker reads a document without keeping it.
type checker struct {
	dec    *json.Decoder
	values int
}

func (c *checker) token() (json.Token, error) {
	if c.values++; c.values > maxValues {
		return nil, fmt.Errorf("manifest has more than %d values", maxValues)
	}
	return c.dec.Token()
}

// value checks the next value. fields are those of objects that have to be
// written so, and what their values are in turn.
func (c *checker) value(fields fieldNames) error {
	t, err := c.token()
	if err != nil {
		return err
	}
	switch t {
	case json.Delim('['):
		for n := 1; c.dec.More(); n++ {
			if n > MaxReferences && fields != nil {
				return fmt.Errorf("manifest refers to more than %d blobs or manifests", MaxReferences)
			}
			if err := c.value(fields); err != nil {
				return err
			}
		}
	case json.Delim('{'):
		seen := map[string]bool{}
		for c.dec.More() {
			t, err := c.token()
			if err != nil {
				return err
			}
			name, _ := t.(string)
			if seen[name] {
				return fmt.Errorf("manifest has the field %.100q twice", name)
			}
			seen[name] = true
			for f := range fields {
				if name != f && strings.EqualFold(name, f) {
					return fmt.Errorf("manifest has a field %q (did you mean %q?)", name, f)
				}
			}
			if err := c.value(fields[name]); err != nil {
				return err
			}
		}
	default:
		return nil
	}
	_, err = c.dec.Token() // the end
	return err
}

// References returns the distinct digests that the manifest refers to.
func (m *Manifest) References() (blobs, manifests []digest.Digest) {
	set := func(list []ocispec.Descriptor) []digest.Digest {
		s := map[digest.Digest]bool{}
		for _, d := range list {
			s[d.Digest] = true
		}
		return slices.Sorted(maps.Keys(s))
	}
	return set(m.Blobs), set(m.Manifests)
}
