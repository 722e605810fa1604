// Package verify proves that a published function or catalog is what it
// claims to be: its documents are valid, everything they refer to is there
// with the digest they give, it is signed, and its functions do on their
// examples what the examples say and the functions specification asks.
package verify

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/krmcat/krmcat/catalog"
	"github.com/krmcat/krmcat/registry"
	"github.com/krmcat/krmcat/runtime"
	"github.com/krmcat/krmcat/schema"
)

// Verifier verifies documents and what they refer to. Fields that are nil
// leave their checks out, which the report says.
type Verifier struct {
	Client *registry.Client
	Source catalog.Source // for every scheme
	// Engine runs the functions. What it grants holds; besides, a document
	// whose signature was verified may run its executables.
	Engine *runtime.Engine
	// Run says whether functions are run at all.
	Run bool
	// Cache is the folder where executables are kept.
	Cache string
	// Level at which documents must be valid.
	Level schema.Level
	// Signature checks the signature of a manifest in a repository and says
	// who made it. Errors are those of package signing.
	Signature func(ctx context.Context, ref registry.Reference, subject ocispec.Descriptor) (string, error)
	// EachSigned makes it a failure if what a signed document names by digest
	// has no acceptable signature of its own.
	EachSigned bool
	// Blob checks a document against the Sigstore bundle beside it.
	Blob func(ctx context.Context, document, bundle []byte) (string, error)
}

// Verify checks the document at a location and everything that it refers to.
// The error says that there is nothing to check: the location cannot be
// read. What was found wrong is in the report.
func (v *Verifier) Verify(ctx context.Context, loc catalog.Location) (*Report, error) {
	run := &run{Verifier: v, ctx: ctx, report: &Report{Location: loc.String()}, signed: map[string]bool{}, unsigned: map[string]error{}}
	if loc.Scheme == "oci" && loc.Path == "" {
		return run.artifact(loc)
	}
	data, content, err := catalog.Fetch(ctx, v.Source, loc)
	if err != nil {
		return nil, err
	}
	run.report.Digest = digest.FromBytes(data)
	if !content.Location.IsZero() {
		loc = content.Location
	}
	run.bundle(loc, data)
	run.document(loc, data)
	run.conclude(loc)
	return run.report, nil
}

// run is one verification.
type run struct {
	*Verifier
	ctx    context.Context
	report *Report

	trusted  bool             // the document's own signature was verified
	absent   error            // why the document has no signature to verify
	signed   map[string]bool  // referenced artifacts whose signature was verified
	unsigned map[string]error // and those where not

	first map[string]madeBy // examples, by the first runtime that ran them
}

// artifact verifies an artifact of a registry: the document in it, or a
// runtime alone.
func (r *run) artifact(loc catalog.Location) (*Report, error) {
	a, err := r.Client.Artifact(r.ctx, loc, "")
	if err != nil {
		return nil, err
	}
	r.report.Digest = a.Descriptor.Digest
	subject := a.Reference.String()
	kind := a.Kind()
	r.report.add(subject, "digest", Pass, "%s of %d bytes", a.Descriptor.Digest, a.Descriptor.Size)
	if r.Signature == nil {
		r.report.add(subject, "signature", Skipped, "not asked for")
	} else if who, err := r.Signature(r.ctx, a.Reference, a.Descriptor); err != nil {
		r.report.fail(subject, "signature", err)
	} else {
		r.trusted = true
		r.report.add(subject, "signature", Pass, "%s", who)
	}
	if kind != "definition" && kind != "catalog" {
		n, err := r.Client.Check(r.ctx, a.Reference)
		if err != nil {
			r.report.fail(subject, "digest", err)
		} else {
			r.report.add(subject, "digest", Pass, "all %d blobs of the %s artifact", n, kindName(kind))
		}
		return r.report, nil
	}
	content, err := a.Document(r.ctx)
	if err != nil {
		return nil, err
	}
	defer content.Body.Close()
	data, err := io.ReadAll(io.LimitReader(content.Body, catalog.MaxDocument+1))
	if err != nil {
		r.report.fail(subject, "digest", err)
		return r.report, nil
	}
	if len(data) > catalog.MaxDocument {
		return nil, fmt.Errorf("%s: the document has more than %d bytes", loc, catalog.MaxDocument)
	}
	r.document(content.Location, data)
	r.conclude(loc)
	return r.report, nil
}

func kindName(kind string) string {
	if kind == "" {
		return "unknown"
	}
	return kind
}

// document checks a document and the functions in it.
func (r *run) document(loc catalog.Location, data []byte) {
	name := r.report.Location
	doc, err := catalog.Read(r.ctx, loc, name, data, catalog.ReadOptions{Level: r.Level, Source: loc.IsLocal()})
	if ie, ok := errors.AsType[*schema.InvalidError](err); ok {
		r.report.Diagnostics = ie.Diagnostics
	}
	if err != nil {
		r.report.fail(name, "schema", err)
		return
	}
	r.report.Diagnostics = doc.Diagnostics
	c := doc.AsCatalog()
	r.report.add(name, "schema", Pass, "valid at %s level, %d function(s)", r.Level, len(c.Definitions))
	for i := range c.Definitions {
		d := &c.Definitions[i]
		for j := range d.Versions {
			r.function(loc, &catalog.Resolution{Catalog: c, Definition: d, Version: &d.Versions[j]})
		}
	}
}
