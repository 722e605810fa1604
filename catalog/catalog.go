// Package catalog models KRM function definitions and catalogs, finds the
// function that implements a given apiVersion and kind, and decides whether
// the catalog it came from is trusted.
//
// The package does no input or output of its own: documents reach it through
// a [Source].
package catalog

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/opencontainers/go-digest"

	"github.com/krmcat/krmcat/schema"
)

// GroupVersionKind names the type of a functionConfig. Version is the last
// segment of its apiVersion; Group is empty for the core group.
type GroupVersionKind struct{ Group, Version, Kind string }

// GVK splits an apiVersion such as example.com/v1 and joins it with a kind.
func GVK(apiVersion, kind string) GroupVersionKind {
	group, version, ok := strings.Cut(apiVersion, "/")
	if !ok {
		group, version = "", apiVersion
	}
	return GroupVersionKind{Group: group, Version: version, Kind: kind}
}

// APIVersion is the apiVersion field of a functionConfig of this type.
func (k GroupVersionKind) APIVersion() string {
	if k.Group == "" {
		return k.Version
	}
	return k.Group + "/" + k.Version
}

func (k GroupVersionKind) String() string {
	return fmt.Sprintf("%s, kind %s", k.APIVersion(), k.Kind)
}

// Definition is the content of one KRMFunctionDefinition, or of one entry of
// a catalog (KEP-2906, KC-046).
type Definition struct {
	Name        string // metadata.name; may be empty
	Group       string
	Kind        string // names.kind
	Description string
	Publisher   string
	Home        string
	Maintainers []string
	Tags        []string
	Versions    []Version
}

// Version is one version of a function. Its Name is the API version of the
// functionConfig, not a release.
type Version struct {
	Name        string
	Schema      json.RawMessage // openAPIV3Schema as JSON; nil if there is none
	Idempotent  bool
	ConfigMap   bool // also takes a ConfigMap as functionConfig (KEP-2985)
	Runtime     Runtime
	Usage       string   // URI of a README.md
	Examples    []string // URIs of README.md files
	License     string
	Maintainers []string // overrides Definition.Maintainers when not empty
}

// Runtime says how a function version is run. A valid definition sets at
// least one field; the order of preference is the caller's.
type Runtime struct {
	Container *Container
	Exec      *Exec
	Starlark  *Starlark
}

type (
	// Container is a function published as an image.
	Container struct {
		Image               string        // as written: name, name:tag or name@digest
		Digest              digest.Digest // from sha256 or the image's @digest; empty if neither is usable
		RequireNetwork      bool
		RequireStorageMount bool
	}
	// Exec is a function published as one executable per platform.
	Exec struct{ Platforms []Platform }
	// Platform is one executable of an [Exec] function.
	Platform struct {
		Bin, OS, Arch string
		URI           string        // as written
		Location      Location      // URI parsed against the document's origin
		Digest        digest.Digest // sha256 of the executable or of the archive that holds it; empty if not usable
	}
	// Starlark is a function published as a script.
	Starlark struct {
		URI      string // as written
		Location Location
		Digest   digest.Digest // sha256 of the script; empty if not usable
	}
)

// Pinned is the image by digest, without a tag, as some engines refuse both.
// Without a digest it is the image as written.
func (c *Container) Pinned() string {
	if c.Digest == "" {
		return c.Image
	}
	name, _, _ := strings.Cut(c.Image, "@")
	if i := strings.LastIndexByte(name, ':'); i > strings.LastIndexByte(name, '/') {
		name = name[:i]
	}
	return name + "@" + c.Digest.String()
}

// Catalog is an ordered collection of definitions and where it came from.
type Catalog struct {
	Name        string // metadata.name
	Labels      map[string]string
	Origin      Location      // as asked for
	Resolved    Location      // Origin with the digest or commit it had when fetched
	Digest      digest.Digest // sha256 of the document as fetched
	Definitions []Definition
	Diagnostics schema.Diagnostics // warnings found while reading
}

// Resolution is a function version and the catalog that supplied it.
type Resolution struct {
	Catalog    *Catalog // nil for a definition or a runtime given inline
	Definition *Definition
	Version    *Version
}

// GVK is the type of functionConfig that r implements.
func (r *Resolution) GVK() GroupVersionKind {
	return GroupVersionKind{r.Definition.Group, r.Version.Name, r.Definition.Kind}
}

// Errors reported by this package; test for them with [errors.Is].
var (
	ErrNotFound  = errors.New("no catalog defines the function")
	ErrUntrusted = errors.New("catalog is not trusted")
	ErrNoDigest  = errors.New("no digest to verify the content against")
)
