package registry

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// ImageExecutable is a static executable to make a container image of.
type ImageExecutable struct {
	Platform string // os/arch, such as linux/amd64
	Path     string // the file
}

// ImageOptions are the optional settings of [WriteImage].
type ImageOptions struct {
	// Created is recorded in the image; zero is the Unix epoch, so that the
	// same executables give the same image.
	Created time.Time
	Labels  map[string]string
}

// WriteImage writes an OCI image layout to the new folder dir: an index with
// one image for each executable, which is its entrypoint as /usr/local/bin/name.
// No container engine is needed. Besides the executable an image holds
// /etc/passwd and /etc/group with nobody, so that it runs as that user by
// number and by name (FS-30), with a read-only root and without a network.
//
// The error wraps [io/fs.ErrExist] if dir is there already; on any error
// nothing is left of it.
func WriteImage(dir, name string, executables []ImageExecutable, opts *ImageOptions) (err error) {
	if opts == nil {
		opts = &ImageOptions{}
	}
	if name == "" || name != path.Base(name) || strings.HasPrefix(name, ".") {
		return fmt.Errorf("executable name %q: not a plain file name", name)
	}
	if len(executables) == 0 {
		return errors.New("an image needs at least one executable")
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(dir))
		}
	}()
	var index v1.ImageIndex = mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	seen := map[string]bool{}
	for _, x := range executables {
		if seen[x.Platform] {
			return fmt.Errorf("platform %s is given twice", x.Platform)
		}
		seen[x.Platform] = true
		goos, arch, ok := strings.Cut(x.Platform, "/")
		if !ok || goos != "linux" || arch == "" {
			return fmt.Errorf("platform %q: images of one executable are for linux/ARCH", x.Platform)
		}
		if err := checkExecutable(x.Path, goos, arch); err != nil {
			return err
		}
		img, err := executableImage(name, goos, arch, x.Path, opts)
		if err != nil {
			return fmt.Errorf("image for %s: %w", x.Platform, err)
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add:        img,
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: goos, Architecture: arch}},
		})
	}
	// The layout's own index.json names what it holds; krmcat publishes the
	// one index in it.
	p, err := layout.Write(dir, mutate.IndexMediaType(empty.Index, types.OCIImageIndex))
	if err != nil {
		return err
	}
	return p.AppendIndex(index)
}

func executableImage(name, goos, arch, file string, opts *ImageOptions) (v1.Image, error) {
	created := opts.Created
	if created.IsZero() {
		created = time.Unix(0, 0).UTC()
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	entrypoint := "/usr/local/bin/" + name
	tarred, err := tarFiles(created, []tarFile{
		{"etc/group", 0o644, []byte("root:x:0:\nnobody:x:65534:\n")},
		{"etc/passwd", 0o644, []byte("root:x:0:0:root:/:/sbin/nologin\nnobody:x:65534:65534:nobody:/:/sbin/nologin\n")},
		{entrypoint[1:], 0o755, data},
	})
	if err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(tarred)), nil
	}, tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, err
	}
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	img, err = mutate.Append(img, mutate.Addendum{
		Layer:     layer,
		MediaType: types.OCILayer,
		History:   v1.History{Created: v1.Time{Time: created}, CreatedBy: "krmcat image"},
	})
	if err != nil {
		return nil, err
	}
	cfg, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	cfg = cfg.DeepCopy()
	cfg.OS, cfg.Architecture, cfg.Created = goos, arch, v1.Time{Time: created}
	cfg.Config.Entrypoint = []string{entrypoint}
	cfg.Config.User = "65534:65534"
	cfg.Config.WorkingDir = "/"
	cfg.Config.Env = []string{"PATH=/usr/local/bin"}
	cfg.Config.Labels = opts.Labels
	return mutate.ConfigFile(img, cfg)
}

type tarFile struct {
	name string
	mode int64
	data []byte
}

// tarFiles packs files in the given order, with their folders, root's and of
// one time, so that the same files give the same bytes.
func tarFiles(at time.Time, files []tarFile) ([]byte, error) {
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	dirs := map[string]bool{".": true}
	for _, f := range files {
		for _, d := range parents(f.name) {
			if dirs[d] {
				continue
			}
			dirs[d] = true
			if err := tw.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: d + "/", Mode: 0o755, ModTime: at, Format: tar.FormatPAX}); err != nil {
				return nil, err
			}
		}
		if err := tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: f.name, Mode: f.mode, Size: int64(len(f.data)), ModTime: at, Format: tar.FormatPAX}); err != nil {
			return nil, err
		}
		if _, err := tw.Write(f.data); err != nil {
			return nil, err
		}
	}
	if err := tw.Close(); err != nil {
		return nil, err
	}
	return buf.Bytes(), nil
}

// parents lists the folders above a slash-separated name, outermost first.
func parents(name string) []string {
	var out []string
	for i, c := range name {
		if c == '/' {
			out = append(out, name[:i])
		}
	}
	return out
}

// isImageLayout reports whether a folder is an OCI image layout.
func isImageLayout(fsys fs.FS, dir string) bool {
	fi, err := fs.Stat(fsys, path.Join(dir, "oci-layout"))
	return err == nil && fi.Mode().IsRegular()
}
