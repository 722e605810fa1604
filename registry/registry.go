// Package registry puts definitions, catalogs and runtimes into OCI
// registries as artifacts and gets them out again.
//
// The embedded server and its storage drivers are in subpackages.
package registry

import "github.com/krmcat/krmcat/catalog"

// Media types of the artifacts of KEP-2906 (KC-098 to KC-101). An artifact is
// an OCI image manifest with the artifact type here and the layer type below;
// readers go by the layer's media type.
const (
	ArtifactTypeCatalog    = "application/vnd.cncf.kubernetes.krm-func-catalog.v1"
	ArtifactTypeDefinition = "application/vnd.cncf.kubernetes.krm-func-definition.v1"
	ArtifactTypeStarlark   = "application/vnd.cncf.kubernetes.krm-func-runtime-starlark.v1"
	ArtifactTypeExec       = "application/vnd.cncf.kubernetes.krm-func-runtime-exec.v1"

	MediaTypeCatalog    = catalog.MediaTypeCatalog
	MediaTypeDefinition = catalog.MediaTypeDefinition
	MediaTypeStarlark   = "application/vnd.cncf.kubernetes.krm-func-runtime-starlark.layer.v1"
	// MediaTypeExec repairs a slip of the KEP, whose table repeats
	// MediaTypeStarlark for executables (KC-101).
	MediaTypeExec = "application/vnd.cncf.kubernetes.krm-func-runtime-exec.layer.v1"

	MediaTypeMarkdown = catalog.MediaTypeMarkdown
	MediaTypeExamples = catalog.MediaTypeExamples
)

// MaxManifestBytes is the size limit of a manifest, for reading and for
// storing (4 MiB, as the distribution specification asks clients to expect).
const MaxManifestBytes = 4 << 20

// ArtifactTypeDocs is the type of the artifact that holds the README and the
// examples of a function, to which usage and examples of a published
// definition point.
const ArtifactTypeDocs = "application/vnd.krmcat.krm-func-docs.v1"

// Names of the files that pulling a definition or a catalog gives.
const (
	FileDefinition = "function.yaml"
	FileCatalog    = "catalog.yaml"
	FileExamples   = "examples.tar.gz"
)

// MaxExecutableBytes is the size limit of an executable or a script.
const MaxExecutableBytes = 1 << 30
