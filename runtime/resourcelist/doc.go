// Package resourcelist is the wire format between orchestrators and KRM
// functions: a document of kind ResourceList (functions specification, FS-10
// to FS-28).
//
// A resource is kept as the bytes that came in. Lists are taken apart by
// lines, put together by concatenation, and only what a function really
// changed is parsed. What a function did not change keeps its comments, field
// order and formatting, even when the function lost them.
//
// The package does no input or output of its own and starts no processes.
package resourcelist

import (
	"errors"
	"fmt"
)

// The apiVersions of ResourceList that are read; APIVersion is written unless
// another is asked for (FS-11, CF-14).
const (
	APIVersion         = "config.kubernetes.io/v1"
	APIVersionV1beta1  = "config.kubernetes.io/v1beta1"
	APIVersionV1alpha1 = "config.kubernetes.io/v1alpha1"
	Kind               = "ResourceList"
)

// KnownAPIVersion reports whether v is an apiVersion of ResourceList that
// this package reads and writes.
func KnownAPIVersion(v string) bool {
	return v == APIVersion || v == APIVersionV1beta1 || v == APIVersionV1alpha1
}

// The annotations that say where a resource came from. The first pair is the
// specification's (FS-42, FS-44), the second what older functions read
// (CF-31, CF-35). Both are set on input and kept in step.
const (
	InternalPrefix        = "internal.config.kubernetes.io/"
	PathAnnotation        = "internal.config.kubernetes.io/path"
	IndexAnnotation       = "internal.config.kubernetes.io/index"
	LegacyPathAnnotation  = "config.kubernetes.io/path"
	LegacyIndexAnnotation = "config.kubernetes.io/index"
	// LocalConfigAnnotation marks configuration for tools, not for a cluster.
	LocalConfigAnnotation = "config.kubernetes.io/local-config"
)

// Errors of this package; test for them with [errors.Is]. All but ErrItem
// mean that a whole list could not be used.
var (
	ErrEmpty           = errors.New("no ResourceList: the output is empty")
	ErrNotResourceList = errors.New("not a ResourceList")
	ErrItem            = errors.New("not a Kubernetes object")
	ErrConflict        = errors.New("annotations contradict each other")
	ErrInternal        = errors.New("internal annotations are the orchestrator's")
)

// SyntaxError says that something is not YAML or not UTF-8, and where.
type SyntaxError struct {
	Line int // in the text given; 0 if not known
	Msg  string
}

func (e *SyntaxError) Error() string {
	if e.Line > 0 {
		return fmt.Sprintf("line %d: %s", e.Line, e.Msg)
	}
	return e.Msg
}
