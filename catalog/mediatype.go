package catalog

// Media types of documents as layers of OCI artifacts (KC-098, KC-099), and of
// what comes with a definition.
const (
	MediaTypeCatalog    = "application/vnd.cncf.kubernetes.krm-func-catalog.layer.v1+yaml"
	MediaTypeDefinition = "application/vnd.cncf.kubernetes.krm-func-definition.layer.v1+yaml"
	MediaTypeMarkdown   = "text/markdown"
	MediaTypeExamples   = "application/vnd.krmcat.krm-func-examples.layer.v1.tar+gzip"
)
