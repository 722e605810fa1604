package regstore_test

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/krmcat/krmcat/registry/regstore"
)

// What was accepted has valid digests everywhere, and is accepted again with
// the media type that it was found to have.
func FuzzParseManifest(f *testing.F) {
	d := string(digest.FromString("x"))
	for _, s := range []string{
		`{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":{"digest":"` + d + `","size":1},"layers":[]}`,
		`{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[{"digest":"` + d + `","size":1}],"subject":{"digest":"` + d + `"}}`,
		`{"schemaVersion":2,"config":{"digest":"` + d + `"},"layers":[{"digest":"` + d + `","urls":["https://x"],"mediaType":"application/vnd.oci.image.layer.nondistributable.v1.tar"}]}`,
		`{"mediaType":1}`, `[]`, `{"config":{},"config":{}}`, `{"Layers":[]}`, `{}{}`,
	} {
		f.Add(ocispec.MediaTypeImageManifest, []byte(s))
		f.Add("", []byte(s))
	}
	f.Fuzz(func(t *testing.T, mediaType string, content []byte) {
		d := digest.FromBytes(content)
		m, err := regstore.ParseManifest(mediaType, content, d)
		if err != nil {
			return
		}
		if m.Descriptor.Digest != d || m.Descriptor.Size != int64(len(content)) || !bytes.Equal(m.Content, content) {
			t.Errorf("descriptor %v", m.Descriptor)
		}
		blobs, manifests := m.References()
		for _, d := range slices.Concat(blobs, manifests) {
			if _, err := regstore.ParseDigest(string(d)); err != nil {
				t.Errorf("digest %q: %v", d, err)
			}
		}
		if len(blobs) > 0 && len(manifests) > 0 {
			t.Error("manifest and index at once")
		}
		if _, err := regstore.ParseManifest(m.Descriptor.MediaType, content, d); err != nil {
			t.Errorf("accepted as %q, and then not as %q: %v", mediaType, m.Descriptor.MediaType, err)
		}
	})
}

// What passes the check is one JSON object that other readers understand in
// the same way: written anew, with its fields sorted, it passes too.
func FuzzCheckManifest(f *testing.F) {
	for _, s := range []string{
		`{"schemaVersion":2,"config":{"digest":"x","size":1},"layers":[{"a":{"b":[]}}]}`,
		`{"config":{"digest":"x","Digest":"y"}}`, `{"layers":[{"size":1,"size":2}]}`, `{"a":1,"\u0061":2}`, `{"x":[[[[]]]]}`,
		`[]`, `{}{}`, `{"Layers":[]}`, "{\"a\":\"\xff\"}", ` {"a":null} `, `{"ſubject":1}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		if regstore.CheckManifest(content) != nil {
			return
		}
		dec := json.NewDecoder(bytes.NewReader(content))
		dec.UseNumber()
		var v map[string]any
		if err := dec.Decode(&v); err != nil {
			t.Fatalf("accepted, and not an object: %v", err)
		}
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		if err := regstore.CheckManifest(b); err != nil {
			t.Errorf("%s was accepted, and %s not: %v", content, b, err)
		}
		// The decoder folds case; what it finds is what is written so.
		var folded struct {
			Config struct {
				Digest any `json:"digest"`
			} `json:"config"`
		}
		config, _ := v["config"].(map[string]any)
		if json.Unmarshal(content, &folded) == nil && (folded.Config.Digest == nil) != (config["digest"] == nil) {
			t.Errorf("%s: a digest for one reader only", content)
		}
	})
}

// Rules for what arrives do not hold for what is stored.
func TestStoredManifest(t *testing.T) {
	t.Parallel()
	d := string(digest.FromString("x"))
	content := []byte(`{"schemaVersion":2,"mediaType":"` + ocispec.MediaTypeImageManifest + `","config":{"digest":"` + d + `","size":1,"size":2},"layers":[]}`)
	if err := regstore.CheckManifest(content); err == nil {
		t.Error("a field twice was accepted")
	}
	m, err := regstore.ParseManifest("", content, digest.FromBytes(content))
	if err != nil || len(m.Blobs) != 1 {
		t.Errorf("a stored manifest cannot be read: %v", err)
	}
}

func TestParseDigest(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]bool{
		"sha256:" + strings.Repeat("a", 64): true, "sha512:" + strings.Repeat("0", 128): true,
		"sha384:" + strings.Repeat("a", 96): false, "md5:" + strings.Repeat("a", 32): false,
		"sha256:" + strings.Repeat("A", 64): false, "sha256:" + strings.Repeat("a", 63): false,
		"sha256:../../" + strings.Repeat("a", 58): false, "": false, ":": false, "sha256:": false,
	} {
		if _, err := regstore.ParseDigest(s); (err == nil) != want {
			t.Errorf("ParseDigest(%q): %v", s, err)
		}
	}
}
