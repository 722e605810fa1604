package verify

import (
	"errors"
	"fmt"

	"github.com/opencontainers/go-digest"

	"github.com/krmcat/krmcat/schema"
)

// Status is the outcome of a check.
type Status string

// The outcomes.
const (
	Pass    Status = "pass"
	Fail    Status = "fail"
	Warning Status = "warning" // passed, but someone should look at it
	Skipped Status = "skipped" // could not be checked here
)

// Check is one thing that was checked.
type Check struct {
	Subject string `json:"subject"` // the document, the function version or the runtime
	Name    string `json:"check"`   // schema, signature, digest, runtime, example or a conformance rule
	Status  Status `json:"status"`
	Message string `json:"message,omitempty"`

	// Err is the reason of a failure, for errors.Is; nil otherwise.
	Err error `json:"-"`
}

// Report is everything that was checked.
type Report struct {
	Location string        `json:"location"`
	Digest   digest.Digest `json:"digest"` // of the manifest for oci, of the document otherwise
	Checks   []Check       `json:"checks"`

	Diagnostics schema.Diagnostics `json:"-"` // of the document
}

func (r *Report) add(subject, name string, status Status, format string, a ...any) {
	r.Checks = append(r.Checks, Check{Subject: subject, Name: name, Status: status, Message: fmt.Sprintf(format, a...)})
}

func (r *Report) fail(subject, name string, err error) {
	r.Checks = append(r.Checks, Check{Subject: subject, Name: name, Status: Fail, Message: err.Error(), Err: err})
}

// Count says how many checks had an outcome.
func (r *Report) Count(s Status) int {
	n := 0
	for _, c := range r.Checks {
		if c.Status == s {
			n++
		}
	}
	return n
}

// Err joins the reasons of all failures; nil if there is none.
func (r *Report) Err() error {
	var errs []error
	for _, c := range r.Checks {
		if c.Status == Fail {
			errs = append(errs, fmt.Errorf("%s: %s: %w", c.Subject, c.Name, c.Err))
		}
	}
	return errors.Join(errs...)
}
