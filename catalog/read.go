package catalog

import (
	"bytes"
	"context"
	_ "crypto/sha256" // for go-digest, which panics without
	_ "crypto/sha512" // likewise
	"encoding/json"
	"fmt"
	"io"

	"github.com/opencontainers/go-digest"
	"go.yaml.in/yaml/v4"

	"github.com/krmcat/krmcat/internal/lazyregexp"
	"github.com/krmcat/krmcat/internal/yamlpos"
	"github.com/krmcat/krmcat/schema"
)

// MaxDocument is the size in bytes up to which definitions and catalogs are
// read.
const MaxDocument = 32 << 20

// ReadOptions say how [Read] reads a document. The zero value is strict.
type ReadOptions struct {
	Level schema.Level
	// Source says that the document is what an author writes before
	// publishing: executables, scripts, images and documentation may be named
	// by local paths, and their digests may be missing.
	Source bool
	// StrictFields makes unknown fields errors.
	StrictFields bool
}

// Document is a document that [Read] has accepted. Exactly one of Definition
// and Catalog is not nil.
type Document struct {
	Definition  *Definition
	Catalog     *Catalog
	Location    Location           // as asked for
	Resolved    Location           // Location with the digest or commit it had when fetched
	Digest      digest.Digest      // sha256 of the bytes
	Diagnostics schema.Diagnostics // warnings and notices
}

// AsCatalog is the document's catalog or, for a definition, a catalog that
// holds only that definition and comes from the same place.
func (d *Document) AsCatalog() *Catalog {
	if d.Catalog != nil {
		return d.Catalog
	}
	return &Catalog{
		Name:        d.Definition.Name,
		Origin:      d.Location,
		Resolved:    d.Resolved,
		Digest:      d.Digest,
		Definitions: []Definition{*d.Definition},
		Diagnostics: d.Diagnostics,
	}
}

// Read reads a definition or a catalog. The location is where data is from,
// or zero; URIs in the document are taken against it. The name is for
// positions, usually the location's text.
//
// The data holds exactly one document. A document with findings of severity
// error is not returned: the error is then a [*schema.InvalidError] with all
// findings. At level [schema.Consume] the deviations that leave one sensible
// reading are read so (spec/interpretation.md of the project): permissions
// never get more generous by that, and a digest that is not well-formed is no
// digest.
func Read(ctx context.Context, loc Location, name string, data []byte, opts ReadOptions) (*Document, error) {
	file, problems := yamlpos.Parse(name, data, yamlpos.Limits{Bytes: MaxDocument})
	v := schema.Validator{Level: opts.Level, Source: opts.Source, StrictFields: opts.StrictFields}
	diags, err := v.ValidateFile(ctx, file, problems)
	if err != nil {
		return nil, err
	}
	if err := diags.Err(); err != nil {
		return nil, err
	}
	r := &reader{file: file, loc: loc, diags: diags}
	doc := r.document()
	if err := r.diags.Err(); err != nil {
		return nil, err
	}
	doc.Location, doc.Resolved = loc, loc
	doc.Digest = digest.FromBytes(data)
	doc.Diagnostics = r.diags
	if c := doc.Catalog; c != nil {
		c.Origin, c.Resolved, c.Digest, c.Diagnostics = loc, loc, doc.Digest, r.diags
	}
	return doc, nil
}

// Load fetches a document and reads it. URIs in it are taken against the
// location that the source has resolved, so that a tag or a branch is looked
// up only once.
// Errors are those of the source and of [Read].
func Load(ctx context.Context, src Source, loc Location, opts ReadOptions) (*Document, error) {
	data, content, err := Fetch(ctx, src, loc)
	if err != nil {
		return nil, err
	}
	base := content.Location
	if base.IsZero() {
		base = loc
	}
	doc, err := Read(ctx, base, loc.String(), data, opts)
	if err != nil {
		return nil, err
	}
	if doc.Catalog != nil {
		doc.Catalog.Origin = loc
	}
	doc.Location = loc
	return doc, nil
}

// Fetch reads a whole document from a source, up to [MaxDocument]. The Body
// of the Content is closed.
func Fetch(ctx context.Context, src Source, loc Location) ([]byte, *Content, error) {
	c, err := src.Fetch(ctx, loc)
	if err != nil {
		return nil, nil, fmt.Errorf("fetching %w", err)
	}
	defer c.Body.Close()
	data, err := io.ReadAll(io.LimitReader(c.Body, MaxDocument+1))
	if err != nil {
		return nil, nil, fmt.Errorf("fetching %s: %w", loc, err)
	}
	if len(data) > MaxDocument {
		return nil, nil, fmt.Errorf("fetching %s: more than %d MiB, which no definition or catalog has", loc, MaxDocument>>20)
	}
	return data, c, nil
}

// reader decodes a document that has been validated. It skips what is not as
// it should be, as the validator has reported it, and adds findings only where
// there is nothing to decode.
type reader struct {
	file  *yamlpos.File
	loc   Location
	diags schema.Diagnostics
}

func (r *reader) report(line, column int, path, message, fix string) {
	excerpt, skip := r.file.Excerpt(line, column)
	r.diags = append(r.diags, schema.Diagnostic{
		Pos:      schema.Position{File: r.file.Name, Line: line, Column: column},
		Path:     path,
		Severity: schema.Error,
		Message:  message,
		Fix:      fix,
		Excerpt:  excerpt,
		Skip:     skip,
		Width:    1,
	})
}

func (r *reader) fail(n *yaml.Node, path, message, fix string) {
	if n == nil {
		r.report(1, 1, path, message, fix)
		return
	}
	r.report(n.Line, n.Column, path, message, fix)
}

type object = map[string]any

func (r *reader) document() *Document {
	switch docs := r.file.Documents; {
	case len(docs) == 0:
		r.fail(nil, "", "no document", "")
		return nil
	case len(docs) > 1:
		r.fail(docs[1].Node, "", fmt.Sprintf("%d documents, and a definition or catalog is one", len(docs)), "split the file")
		return nil
	}
	d := r.file.Documents[0]
	root, ok := d.Value.(object)
	if !ok {
		r.fail(d.Node, "", "not a mapping", "")
		return nil
	}
	if v := str(root["apiVersion"]); v != schema.APIVersion {
		r.fail(d.Node, "apiVersion", fmt.Sprintf("%q is not %s", v, schema.APIVersion), "")
	}
	spec, ok := root["spec"].(object)
	if !ok {
		r.fail(d.Node, "spec", "not a mapping", "")
		return nil
	}
	meta, _ := root["metadata"].(object)
	switch kind := str(root["kind"]); kind {
	case schema.KindDefinition:
		def := r.definition(spec, d, "spec")
		def.Name = str(meta["name"])
		return &Document{Definition: &def}
	case schema.KindCatalog, schema.KindCatalogAlias:
		c := &Catalog{Name: str(meta["name"])}
		if labels, ok := meta["labels"].(object); ok {
			c.Labels = make(map[string]string, len(labels))
			for k, v := range labels {
				c.Labels[k] = str(v)
			}
		}
		fns, _ := spec["krmFunctions"].([]any)
		for i, f := range fns {
			if f, ok := f.(object); ok {
				c.Definitions = append(c.Definitions, r.definition(f, d, "spec", "krmFunctions", fmt.Sprint(i)))
			}
		}
		return &Document{Catalog: c}
	default:
		r.fail(d.Node, "kind", fmt.Sprintf("%q is neither %s nor %s", kind, schema.KindDefinition, schema.KindCatalog), "")
		return nil
	}
}

func (r *reader) definition(spec object, d *yamlpos.Document, at ...string) Definition {
	def := Definition{
		Group:       str(spec["group"]),
		Description: str(spec["description"]),
		Publisher:   str(spec["publisher"]),
		Home:        str(spec["home"]),
		Maintainers: strs(spec["maintainers"]),
		Tags:        strs(spec["tags"]),
	}
	if names, ok := spec["names"].(object); ok {
		def.Kind = str(names["kind"])
	} else {
		def.Kind = str(spec["kind"]) // beside group in the KEP's last example
	}
	versions, _ := spec["versions"].([]any)
	for i, v := range versions {
		if v, ok := v.(object); ok {
			def.Versions = append(def.Versions, r.version(v, spec["runtime"], d, append(at[:len(at):len(at)], "versions", fmt.Sprint(i))))
		}
	}
	return def
}

func (r *reader) version(v object, shared any, d *yamlpos.Document, at []string) Version {
	out := Version{
		Name:        str(v["name"]),
		Idempotent:  v["idempotent"] == true,
		ConfigMap:   v["configMap"] == true,
		Usage:       str(v["usage"]),
		Examples:    strs(v["examples"]),
		License:     str(v["license"]),
		Maintainers: strs(v["maintainers"]),
	}
	if s, ok := v["schema"].(object); ok {
		if open, ok := s["openAPIV3Schema"].(object); ok {
			_, node, _ := d.Find(append(at[:len(at):len(at)], "schema", "openAPIV3Schema")...)
			out.Schema = schemaJSON(node, open, len(d.Aliases) > 0)
		}
	}
	// A runtime beside versions is for each version without its own.
	rt, ok := v["runtime"]
	if !ok {
		rt = shared
	}
	out.Runtime = r.runtime(rt)
	return out
}

func (r *reader) runtime(v any) Runtime {
	var rt Runtime
	m, _ := v.(object)
	if c, ok := m["container"].(object); ok {
		rt.Container = &Container{
			Image:               str(c["image"]),
			Digest:              containerDigest(str(c["image"]), str(c["sha256"])),
			RequireNetwork:      c["requireNetwork"] == true,
			RequireStorageMount: storageMount(c),
		}
	}
	if x, ok := m["exec"].(object); ok {
		rt.Exec = &Exec{}
		platforms, _ := x["platforms"].([]any)
		for _, p := range platforms {
			p, ok := p.(object)
			if !ok {
				continue
			}
			rt.Exec.Platforms = append(rt.Exec.Platforms, Platform{
				Bin: str(p["bin"]), OS: str(p["os"]), Arch: str(p["arch"]),
				URI:      str(p["uri"]),
				Location: r.resolve(str(p["uri"])),
				Digest:   contentDigest(str(p["sha256"])),
			})
		}
	}
	switch s := m["starlark"].(type) {
	case string:
		rt.Starlark = &Starlark{URI: s, Location: r.resolve(s)}
	case object:
		uri := str(s["uri"])
		for _, alias := range []string{"path", "url"} {
			if uri == "" {
				uri = str(s[alias])
			}
		}
		rt.Starlark = &Starlark{URI: uri, Location: r.resolve(uri), Digest: contentDigest(str(s["sha256"]))}
	}
	return rt
}

// resolve gives the zero location for a URI that is none, so that the runtime
// cannot be fetched.
func (r *reader) resolve(uri string) Location {
	l, err := r.loc.Resolve(uri)
	if err != nil {
		return Location{}
	}
	return l
}

func str(v any) string { s, _ := v.(string); return s }

func strs(v any) []string {
	list, _ := v.([]any)
	var out []string
	for _, x := range list {
		if s, ok := x.(string); ok {
			out = append(out, s)
		}
	}
	return out
}

// storageMount reads requireStorageMount and the name that Story 7 of the KEP
// gives it. If both are given, both have to ask for the permission.
func storageMount(c object) bool {
	v, ok := c["requireStorageMount"]
	alias, aliased := c["requireFilesystem"]
	switch {
	case ok && aliased:
		return v == true && alias == true
	case aliased:
		return alias == true
	}
	return v == true
}

var sha256Expr = lazyregexp.New(`^(?:sha256:)?([0-9a-f]{64})$`)

// contentDigest reads a sha256 field. What is not well-formed is no digest
// (KC-080: without one, a runtime is not run).
func contentDigest(s string) digest.Digest {
	m := sha256Expr.FindStringSubmatch(s)
	if m == nil {
		return ""
	}
	return digest.NewDigestFromEncoded(digest.SHA256, m[1])
}

// containerDigest joins the sha256 field and the digest in an image's name.
// If they differ, neither is believed.
func containerDigest(image, sha256 string) digest.Digest {
	field := contentDigest(sha256)
	_, after, ok := bytes.Cut([]byte(image), []byte("@"))
	if !ok {
		return field
	}
	named := digest.Digest(after)
	if named.Validate() != nil || (field != "" && field != named) {
		return ""
	}
	return named
}

// schemaJSON is a schema as JSON, with its keys in the order of the document
// unless aliases make the document's order hard to tell.
func schemaJSON(n *yaml.Node, v object, aliases bool) json.RawMessage {
	if aliases || n == nil {
		data, err := json.Marshal(v)
		if err != nil {
			return nil
		}
		return data
	}
	var b bytes.Buffer
	if err := writeOrdered(&b, n, v); err != nil {
		return nil
	}
	return b.Bytes()
}

// writeOrdered writes v, the value of n, with the keys in the order of n.
func writeOrdered(b *bytes.Buffer, n *yaml.Node, v any) error {
	switch v := v.(type) {
	case object:
		b.WriteByte('{')
		first := true
		for i := 0; i+1 < len(n.Content); i += 2 {
			key := n.Content[i].Value
			item, ok := v[key]
			if !ok {
				continue
			}
			if !first {
				b.WriteByte(',')
			}
			first = false
			if err := writeJSON(b, key); err != nil {
				return err
			}
			b.WriteByte(':')
			if err := writeOrdered(b, n.Content[i+1], item); err != nil {
				return err
			}
		}
		b.WriteByte('}')
		return nil
	case []any:
		b.WriteByte('[')
		for i, item := range v {
			if i > 0 {
				b.WriteByte(',')
			}
			if err := writeOrdered(b, n.Content[i], item); err != nil {
				return err
			}
		}
		b.WriteByte(']')
		return nil
	}
	return writeJSON(b, v)
}

// writeJSON writes a scalar without escaping what is only special in HTML.
func writeJSON(b *bytes.Buffer, v any) error {
	e := json.NewEncoder(b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return err
	}
	b.Truncate(b.Len() - 1) // Encode's line end
	return nil
}
