// Package structural checks OpenAPI v3 schemas by themselves: whether they are
// schemas at all, and whether Kubernetes would take them for the structural
// schema of a CustomResourceDefinition.
//
// Schemas come from strangers. Nothing they name is loaded, and their size,
// depth and patterns are limited.
package structural

// Limits on a schema.
const (
	maxDepth = 64     // nested schemas
	maxNodes = 20_000 // schemas in all
)

// Finding is something that is wrong with a schema.
type Finding struct {
	Path    []string // tokens from the root of what was checked
	OnKey   bool     // the finding is about the key at Path, not about its value
	Kind    Kind
	Message string
	Fix     string // may be empty
}

// Kind is how much a [Finding] matters.
type Kind int

const (
	// Fault makes a schema unusable.
	Fault Kind = iota
	// Unstructural breaks one of the rules for structural schemas: an API
	// server would not take the schema for a CustomResourceDefinition, but
	// values can be checked against it.
	Unstructural
	// Contradiction is a default that the schema itself does not allow: values
	// can be checked, but those without the field are never valid.
	Contradiction
	// Unknown is a field that is not known and has no effect.
	Unknown
)
