package cli

import (
	"errors"
	"slices"

	"github.com/krmcat/krmcat/cmd/internal/display"
	"github.com/krmcat/krmcat/schema"
)

// maxShown is how many findings a command shows that was not asked for them.
const maxShown = 100

// showDiagnostics writes errors and warnings to standard error, with their
// source lines. Notices are for those who ask, with krmcat validate.
func showDiagnostics(e *env, ds schema.Diagnostics) error {
	ds = slices.DeleteFunc(slices.Clone(ds), func(d schema.Diagnostic) bool { return d.Severity == schema.Notice })
	r := &display.Report{Diagnostics: ds, Max: maxShown}
	return r.Write(e.Err, "text")
}

// explainInvalid shows all findings about a document that is not valid, and
// leaves a short error. Other errors stay as they are.
func explainInvalid(e *env, err error) error {
	ie, ok := errors.AsType[*schema.InvalidError](err)
	if !ok {
		return err
	}
	if err := showDiagnostics(e, ie.Diagnostics); err != nil {
		return err
	}
	return codeError{errors.New("the document is not valid"), exitInvalid}
}
