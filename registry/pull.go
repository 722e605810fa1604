package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// PulledFile is a file that [Artifact.Pull] wrote or found in place.
type PulledFile struct {
	Name      string        `json:"name"` // relative to the folder, with slashes
	MediaType string        `json:"mediaType"`
	Digest    digest.Digest `json:"digest"`
	Size      int64         `json:"size"`
	Written   bool          `json:"written"` // false if the file was there with this content
}

// Pull writes the artifact's layers into a folder, each under its title, as
// oras does. A layer without a title gets the name that its media type
// implies; executables are made executable. Every file is verified before it
// takes its name. Nothing is replaced unless force is set: the error wraps
// [io/fs.ErrExist] if a file of other content is there.
func (a *Artifact) Pull(ctx context.Context, dir *os.Root, force bool) ([]PulledFile, error) {
	var files []PulledFile
	seen := map[string]bool{}
	for _, l := range a.Manifest.Layers {
		name := l.Annotations[ocispec.AnnotationTitle]
		if name == "" {
			name = defaultTitle(l.MediaType)
		}
		if name == "" {
			continue
		}
		if !fs.ValidPath(name) || name == "." || strings.ContainsAny(name, "\\\x00") {
			return files, fmt.Errorf("%s: layer %s has the title %q, which is not a clean relative path", a.Reference, l.Digest, name)
		}
		if seen[name] {
			return files, fmt.Errorf("%s: two layers have the title %q", a.Reference, name)
		}
		seen[name] = true
		f := PulledFile{Name: name, MediaType: l.MediaType, Digest: l.Digest, Size: l.Size}
		same, err := hasContent(dir, name, l)
		if err != nil {
			return files, err
		}
		if !same {
			if _, err := dir.Lstat(name); err == nil && !force {
				return files, fmt.Errorf("%s: %w, with other content", name, fs.ErrExist)
			}
			if err := a.pullLayer(ctx, dir, name, l); err != nil {
				return files, fmt.Errorf("pulling %s: %w", name, err)
			}
			f.Written = true
		}
		files = append(files, f)
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("%s: no layer has a file name (a container image is pulled with docker or podman)", a.Reference)
	}
	return files, nil
}

// defaultTitle names the files of artifacts that were pushed without titles.
func defaultTitle(mediaType string) string {
	switch mediaType {
	case MediaTypeCatalog:
		return FileCatalog
	case MediaTypeDefinition:
		return FileDefinition
	case MediaTypeMarkdown:
		return "README.md"
	case MediaTypeExamples:
		return FileExamples
	case MediaTypeStarlark:
		return "main.star"
	case MediaTypeExec:
		return "function"
	}
	return ""
}

// hasContent reports whether a regular file has the content of a layer.
func hasContent(dir *os.Root, name string, l ocispec.Descriptor) (bool, error) {
	fi, err := dir.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if !fi.Mode().IsRegular() || fi.Size() != l.Size {
		return false, nil
	}
	f, err := dir.Open(name)
	if err != nil {
		return false, err
	}
	defer f.Close()
	v := l.Digest.Verifier()
	if _, err := io.Copy(v, f); err != nil {
		return false, err
	}
	return v.Verified(), nil
}

// pullLayer writes beside the final name and renames, so that the name never
// shows half a file or an unverified one.
func (a *Artifact) pullLayer(ctx context.Context, dir *os.Root, name string, l ocispec.Descriptor) error {
	if l.Size > MaxExecutableBytes {
		return fmt.Errorf("%d bytes, at most %d are pulled", l.Size, MaxExecutableBytes)
	}
	rc, err := openBlob(ctx, a.repo, l)
	if err != nil {
		return err
	}
	defer rc.Close()
	if d := path.Dir(name); d != "." {
		if err := dir.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	mode := fs.FileMode(0o644)
	if l.MediaType == MediaTypeExec {
		mode = 0o755
	}
	tmp := path.Join(path.Dir(name), "."+path.Base(name)+".part")
	f, err := dir.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, rc)
	if err == nil {
		err = f.Sync()
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = dir.Rename(tmp, name)
	}
	if err != nil {
		return errors.Join(err, dir.Remove(tmp))
	}
	return nil
}
