package verify

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/content"

	"github.com/krmcat/krmcat/catalog"
	"github.com/krmcat/krmcat/registry"
	"github.com/krmcat/krmcat/runtime/conformance"
	"github.com/krmcat/krmcat/runtime/execfn"
)

// executable checks that the verified executable of a platform is one for
// that platform.
func (r *run) executable(subject, what string, fetch *execfn.Executor, p *catalog.Platform) {
	name, err := fetch.File(r.ctx, *p)
	if err != nil {
		r.report.fail(subject, "digest", fmt.Errorf("%s: %w", what, err))
		return
	}
	f, err := os.Open(name)
	if err != nil {
		r.report.fail(subject, "C23", fmt.Errorf("%s: %w", what, err))
		return
	}
	defer f.Close()
	r.findings(subject, what, conformance.CheckExecutable(f, p.OS, p.Arch))
}

// maxImages bounds how many images of an index are looked at.
const maxImages = 32

// image checks the configurations of a container image, one for each platform.
func (r *run) image(subject string, ref registry.Reference) {
	err := r.configs(ref, func(platform string, config []byte) {
		r.findings(subject, "container "+platform, conformance.CheckImage(config))
	})
	if err != nil {
		r.report.fail(subject, "C23", fmt.Errorf("container: %w", err))
	}
}

// configs reads the configurations of the images that a reference stands for.
// The digests have been checked along the way.
func (r *run) configs(ref registry.Reference, each func(platform string, config []byte)) error {
	repo, err := r.Client.Repository(ref)
	if err != nil {
		return err
	}
	desc, err := r.Client.Resolve(r.ctx, ref)
	if err != nil {
		return err
	}
	todo := []ocispec.Descriptor{desc}
	for n := 0; len(todo) > 0; n++ {
		if n > maxImages {
			return fmt.Errorf("more than %d images", maxImages)
		}
		d := todo[0]
		todo = todo[1:]
		if d.Size > registry.MaxManifestBytes {
			return errors.New("a manifest is too large")
		}
		data, err := content.FetchAll(r.ctx, repo, d)
		if err != nil {
			return err
		}
		var m struct {
			Manifests []ocispec.Descriptor `json:"manifests"`
			Config    *ocispec.Descriptor  `json:"config"`
		}
		if err := json.Unmarshal(data, &m); err != nil {
			return fmt.Errorf("manifest %s: %w", d.Digest, err)
		}
		for _, child := range m.Manifests {
			// Attestations hang in indexes as images of no platform.
			if child.Platform == nil || child.Platform.OS != "unknown" {
				todo = append(todo, child)
			}
		}
		if m.Config == nil || len(m.Manifests) > 0 {
			continue
		}
		if m.Config.Size > registry.MaxManifestBytes {
			return errors.New("an image configuration is too large")
		}
		config, err := content.FetchAll(r.ctx, repo, *m.Config)
		if err != nil {
			return err
		}
		platform := "image"
		if d.Platform != nil {
			platform = d.Platform.OS + "/" + d.Platform.Architecture
		}
		each(platform, config)
	}
	return nil
}
