package openapi

// defaults is filled in with the evaluation of values.
func (w *walker) defaults(schema any) {}
