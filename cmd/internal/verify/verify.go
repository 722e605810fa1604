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
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/krmcat/krmcat/catalog"
	"github.com/krmcat/krmcat/registry"
	"github.com/krmcat/krmcat/runtime"
	"github.com/krmcat/krmcat/runtime/conformance"
	"github.com/krmcat/krmcat/runtime/execfn"
	"github.com/krmcat/krmcat/schema"
	"github.com/krmcat/krmcat/signing"
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

// function checks one version of a function: everything it refers to, then
// what it does.
func (r *run) function(loc catalog.Location, res *catalog.Resolution) {
	subject := res.GVK().String()
	rt := res.Version.Runtime
	var usable []catalog.Runtime
	trusted := r.trusted
	if x := rt.Exec; x != nil {
		ok, signed := r.exec(subject, x)
		if ok {
			usable = append(usable, catalog.Runtime{Exec: x})
		}
		trusted = trusted || signed
	}
	if s := rt.Starlark; s != nil && r.starlark(subject, s) {
		usable = append(usable, catalog.Runtime{Starlark: s})
	}
	if x := rt.Container; x != nil && r.container(subject, x) {
		usable = append(usable, catalog.Runtime{Container: x})
	}
	r.docs(subject, "usage", res.Version.Usage, loc)
	examples := r.examples(subject, res.Version, loc)
	for _, only := range usable {
		r.examine(subject, res, only, trusted, examples)
	}
}

// exec fetches the executable of every platform, not only of this one, and
// compares digests. It reports whether all are right, and signed.
func (r *run) exec(subject string, x *catalog.Exec) (ok, signed bool) {
	ok, signed = len(x.Platforms) > 0, true
	for i := range x.Platforms {
		p := &x.Platforms[i]
		what := "exec " + p.OS + "/" + p.Arch
		if p.Digest == "" && p.Location.Digest == "" && p.Location.IsLocal() {
			// The author's own file, before publishing fills in its digest.
			d, err := r.fileDigest(p.Location)
			if err != nil {
				r.report.fail(subject, "digest", fmt.Errorf("%s: %w", what, err))
				ok = false
				continue
			}
			p.Digest = d
		}
		fetch := &execfn.Executor{Source: r.Source, Cache: r.Cache, Platform: p.OS + "/" + p.Arch}
		_, err := fetch.Prepare(r.ctx, catalog.Runtime{Exec: &catalog.Exec{Platforms: []catalog.Platform{*p}}}, runtime.Grants{Exec: true}, runtime.Limits{})
		if err != nil {
			r.report.fail(subject, "digest", fmt.Errorf("%s: %w", what, err))
			ok = false
			continue
		}
		r.report.add(subject, "digest", Pass, "%s is %s", what, firstDigest(p.Digest, p.Location.Digest))
		signed = r.signature(subject, what, p.Location) && signed
	}
	return ok, ok && signed
}

func firstDigest(list ...digest.Digest) digest.Digest {
	for _, d := range list {
		if d != "" {
			return d
		}
	}
	return ""
}

func (r *run) starlark(subject string, s *catalog.Starlark) bool {
	if s.Digest == "" && s.Location.Digest == "" && s.Location.IsLocal() {
		d, err := r.fileDigest(s.Location)
		if err != nil {
			r.report.fail(subject, "digest", fmt.Errorf("starlark: %w", err))
			return false
		}
		s.Digest = d
	}
	if s.Digest == "" && s.Location.Digest == "" {
		r.report.fail(subject, "digest", fmt.Errorf("starlark %s: %w", s.URI, catalog.ErrNoDigest))
		return false
	}
	data, _, err := catalog.Fetch(r.ctx, r.Source, s.Location)
	if err == nil && s.Digest != "" {
		if got := s.Digest.Algorithm().FromBytes(data); got != s.Digest {
			err = fmt.Errorf("script %s is %s, but the document says %s: %w", s.URI, got, s.Digest, registry.ErrIntegrity)
		}
	}
	if err != nil {
		r.report.fail(subject, "digest", fmt.Errorf("starlark: %w", err))
		return false
	}
	r.report.add(subject, "digest", Pass, "starlark is %s", firstDigest(s.Digest, s.Location.Digest))
	r.signature(subject, "starlark", s.Location)
	return true
}

// fileDigest is the digest of a local file.
func (r *run) fileDigest(loc catalog.Location) (digest.Digest, error) {
	c, err := r.Source.Fetch(r.ctx, loc)
	if err != nil {
		return "", err
	}
	defer c.Body.Close()
	return digest.SHA256.FromReader(c.Body)
}

// container checks that an image is in its registry as the digest says, with
// all its blobs.
func (r *run) container(subject string, x *catalog.Container) bool {
	if catalog.IsLocalImage(x.Image) {
		r.report.add(subject, "digest", Skipped, "container: %s is an image layout that is not published yet", x.Image)
		return false
	}
	if x.Digest == "" {
		r.report.fail(subject, "digest", fmt.Errorf("container %s: %w", x.Image, catalog.ErrNoDigest))
		return false
	}
	ref, err := registry.ParseImage(x.Image)
	if err != nil {
		r.report.fail(subject, "digest", err)
		return false
	}
	ref.Tag, ref.Digest = "", x.Digest
	n, err := r.Client.Check(r.ctx, ref)
	if err != nil {
		r.report.fail(subject, "digest", fmt.Errorf("container: %w", err))
		return false
	}
	r.report.add(subject, "digest", Pass, "container is %s, with %d blobs", x.Digest, n)
	r.signature(subject, "container", catalog.Location{Scheme: "oci", Ref: ref.Name(), Digest: x.Digest})
	return true
}

// docs checks that a document that the function points at is there.
func (r *run) docs(subject, what, uri string, base catalog.Location) {
	if uri == "" {
		return
	}
	loc, err := base.Resolve(uri)
	if err == nil {
		_, _, err = catalog.Fetch(r.ctx, r.Source, loc)
	}
	if err != nil {
		// It says how to use the function; it does not run.
		r.report.add(subject, what, Warning, "%v", err)
		return
	}
	r.report.add(subject, what, Pass, "%s", uri)
}

// signature looks for a signature on a referenced artifact. As the signed
// document gives its digest, one that is missing is a failure only if the
// document itself is not signed.
func (r *run) signature(subject, what string, loc catalog.Location) bool {
	key := loc.String()
	if r.Signature == nil || loc.Scheme != "oci" || loc.Digest == "" || r.signed[key] || r.unsigned[key] != nil {
		return r.signed[key]
	}
	who, err := r.signer(loc)
	if err != nil {
		r.unsigned[key] = fmt.Errorf("%s: %w", what, err)
		return false
	}
	r.signed[key] = true
	r.report.add(subject, "signature", Pass, "%s: %s", what, who)
	return true
}

func (r *run) signer(loc catalog.Location) (string, error) {
	ref, err := registry.ParseReference(loc.Ref)
	if err != nil {
		return "", err
	}
	ref.Tag, ref.Digest = "", loc.Digest
	desc, err := r.Client.Resolve(r.ctx, ref)
	if err != nil {
		return "", err
	}
	return r.Signature(r.ctx, ref, desc)
}

// bundle checks the signature of a document that is not in a registry: a
// Sigstore bundle in a file of the same name with .sigstore.json behind.
func (r *run) bundle(loc catalog.Location, data []byte) {
	if r.Blob == nil {
		r.report.add(r.report.Location, "signature", Skipped, "not asked for")
		return
	}
	name := path.Base(loc.Ref) + signing.BundleSuffix
	at, err := sibling(loc, name)
	if err != nil {
		r.report.fail(r.report.Location, "signature", err)
		return
	}
	b, _, err := catalog.Fetch(r.ctx, r.Source, at)
	if errors.Is(err, fs.ErrNotExist) {
		r.absent = fmt.Errorf("no %s beside it: %w", name, signing.ErrUnsigned)
		return
	}
	if err == nil {
		var who string
		if who, err = r.Blob(r.ctx, data, b); err == nil {
			r.trusted = true
			r.report.add(r.report.Location, "signature", Pass, "%s", who)
			return
		}
	}
	r.report.fail(r.report.Location, "signature", err)
}

// conclude decides about signatures when everything that the document refers
// to was looked at.
func (r *run) conclude(loc catalog.Location) {
	subject := r.report.Location
	for _, key := range slices.Sorted(maps.Keys(r.unsigned)) {
		if err := r.unsigned[key]; r.trusted {
			r.report.add(subject, "signature", Warning, "%v; the signed document gives its digest", err)
		} else {
			r.report.fail(subject, "signature", err)
		}
	}
	switch {
	case r.absent == nil:
	case len(r.signed) > 0 && len(r.unsigned) == 0:
		r.report.add(subject, "signature", Warning, "the document itself is not signed, but everything that it refers to is")
	case len(r.signed)+len(r.unsigned) == 0 && loc.IsLocal():
		r.report.add(subject, "signature", Skipped, "not published yet: publishing signs")
	default:
		r.report.fail(subject, "signature", r.absent)
	}
}

// sibling is the location of a file beside another.
func sibling(loc catalog.Location, name string) (catalog.Location, error) {
	if loc.Scheme == "oci" {
		loc.Path = path.Join(path.Dir(loc.Path), name)
		return loc, nil
	}
	return loc.Resolve("./" + name)
}

// examine runs a function on its examples, with one of its runtimes, and
// checks what it does by the functions specification.
func (r *run) examine(subject string, res *catalog.Resolution, rt catalog.Runtime, trusted bool, examples []conformance.Example) {
	what := kindOf(rt)
	if !r.Run {
		r.report.add(subject, "example", Skipped, "%s: not asked for", what)
		return
	}
	engine := *r.Engine
	// The key that the user gave has signed the executables, or the document
	// that gives their digests.
	engine.Grants.Exec = engine.Grants.Exec || trusted
	fn, err := engine.PrepareRuntime(r.ctx, rt)
	switch {
	case errors.Is(err, runtime.ErrNotGranted), errors.Is(err, runtime.ErrUnavailable), errors.Is(err, errors.ErrUnsupported):
		r.report.add(subject, "example", Skipped, "%s: %v", what, err)
		return
	case err != nil:
		r.report.fail(subject, "example", fmt.Errorf("%s: %w", what, err))
		return
	}
	for i, x := range examples {
		rep := conformance.Run(r.ctx, fn, x, conformance.Options{
			Idempotent: res.Version.Idempotent,
			Validator:  slices.Contains(res.Definition.Tags, "validator"),
			// How it takes odd input is the same for every example.
			Quick: i > 0,
		})
		r.example(subject, what, rep)
	}
}

// example reports what the run of an example showed.
func (r *run) example(subject, what string, rep *conformance.Report) {
	switch {
	case errors.Is(rep.Err, runtime.ErrUnavailable):
		r.report.add(subject, "example", Skipped, "%s, %s: %v", what, rep.Name, rep.Err)
		return
	case rep.Err != nil:
		r.report.fail(subject, "example", fmt.Errorf("%s, %s: %w", what, rep.Name, rep.Err))
		return
	case rep.OK():
		r.report.add(subject, "example", Pass, "%s, %s: as expected, %d checks of the functions specification, %s",
			what, rep.Name, len(rep.Checked), rep.Duration.Round(time.Millisecond))
	default:
		last := ""
		if t := strings.TrimSpace(rep.Stderr); t != "" {
			last = ": " + t[strings.LastIndexByte(t, '\n')+1:]
		}
		r.report.fail(subject, "example", fmt.Errorf("%s, %s: not what the example and the specification ask for (exit code %d)%s", what, rep.Name, rep.ExitCode, last))
	}
	for _, f := range rep.Findings {
		message := fmt.Sprintf("%s, %s: %s", what, rep.Name, f.Message)
		if f.Evidence != "" {
			message += "\n" + f.Evidence
		}
		switch f.Level {
		case conformance.Error:
			r.report.fail(subject, f.ID, errors.New(message))
		case conformance.Warning:
			r.report.add(subject, f.ID, Warning, "%s", message)
		}
	}
}

func kindOf(rt catalog.Runtime) string {
	switch {
	case rt.Exec != nil:
		return "exec"
	case rt.Starlark != nil:
		return "starlark"
	}
	return "container"
}

// examples fetches the examples of a version: for each README, the input and
// the output beside it.
func (r *run) examples(subject string, v *catalog.Version, base catalog.Location) []conformance.Example {
	var list []conformance.Example
	for _, uri := range v.Examples {
		loc, err := base.Resolve(uri)
		if err == nil {
			_, _, err = catalog.Fetch(r.ctx, r.Source, loc)
		}
		if err != nil {
			r.report.add(subject, "example", Warning, "%v", err)
			continue
		}
		x := conformance.Example{Name: exampleName(loc)}
		if x.Input, err = r.beside(loc, "input.yaml"); err == nil && x.Input != nil {
			x.Expected, err = r.beside(loc, "output.yaml")
		}
		switch {
		case err != nil:
			r.report.fail(subject, "example", fmt.Errorf("%s: %w", x.Name, err))
		case x.Input == nil:
			r.report.add(subject, "example", Skipped, "%s: there is no input.yaml beside it to run it with", uri)
		default:
			list = append(list, x)
		}
	}
	return list
}

// beside fetches a file beside another; nil if it is not there.
func (r *run) beside(loc catalog.Location, name string) ([]byte, error) {
	at, err := sibling(loc, name)
	if err != nil {
		return nil, err
	}
	data, _, err := catalog.Fetch(r.ctx, r.Source, at)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return data, err
}

// exampleName is the folder of an example's README.
func exampleName(loc catalog.Location) string {
	p := loc.Path
	if p == "" {
		p = loc.Ref
	}
	return path.Base(path.Dir(p))
}
