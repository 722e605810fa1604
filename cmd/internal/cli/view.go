package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v4"

	"github.com/krmcat/krmcat/catalog"
	"github.com/krmcat/krmcat/schema"
)

type viewOptions struct {
	Remote   remoteFlags
	Catalogs catalogFlags
	Location string
	Output   string
	Quiet    bool
}

func newViewCmd(e *env) *cobra.Command {
	opts := &viewOptions{}
	cmd := &cobra.Command{
		Use:   "view LOCATION",
		Short: "Show what is in a catalog or a definition, before you trust it",
		Long: `Show the publishers and functions of a catalog or a definition: their versions and
runtimes, whether these can be verified, what they want to be allowed, and where
the document deviates from the specification. Nothing is run, and nothing but the
document is fetched.

A location is a path, an https URL, a git repository and a path in it as
kustomize writes them, or an oci reference; - is standard input. The digest is
that of the document: it can be given to --trusted-catalog instead of a location,
to trust this content and no other.`,
		Example: `  krmcat view https://example.com/catalog.yaml
  krmcat view oci://localhost:8080/acme/catalog:v1
  krmcat view 'https://github.com/acme/functions//catalog.yaml?ref=v1'
  krmcat view catalog.yaml -o json | jq '.functions[].kind'`,
		Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error {
			opts.Location = a[0]
			return runView(cmd.Context(), e, opts)
		},
	}
	f := cmd.Flags()
	opts.Remote.add(f)
	opts.Catalogs.addTrusted(f)
	f.BoolVarP(&opts.Quiet, "quiet", "q", false, "no findings about the document")
	addOutput(cmd, &opts.Output, "text", "json", "yaml")
	return cmd
}

func runView(ctx context.Context, e *env, opts *viewOptions) error {
	src, _, err := opts.Remote.source(e)
	if err != nil {
		return err
	}
	trust, err := opts.Catalogs.trust(src)
	if err != nil {
		return err
	}
	doc, err := readDocument(ctx, e, src, opts.Location)
	if err != nil {
		return explainInvalid(e, err)
	}
	v := newCatalogView(doc)
	switch err := trust.Trusted(ctx, doc.AsCatalog()); {
	case err == nil:
		v.Trusted = true
	case !errors.Is(err, catalog.ErrUntrusted):
		return err
	}
	switch opts.Output {
	case "json":
		return printJSON(e.Out, v)
	case "yaml":
		return printYAML(e.Out, v)
	}
	if !opts.Quiet {
		if err := showDiagnostics(e, doc.Diagnostics); err != nil {
			return err
		}
	}
	return v.text(e.Out)
}

// readDocument reads a document as its users do, from a location or from
// standard input.
func readDocument(ctx context.Context, e *env, src catalog.Source, name string) (*catalog.Document, error) {
	opts := catalog.ReadOptions{Level: schema.Consume}
	if name == "-" {
		data, err := readInput(e.In, name)
		if err != nil {
			return nil, err
		}
		return catalog.Read(ctx, catalog.Location{}, "stdin", data, opts)
	}
	loc, err := parseLocation(name)
	if err != nil {
		return nil, err
	}
	return catalog.Load(ctx, src, loc, opts)
}

// catalogView is what view shows of a document, in the form that -o json
// prints.
type catalogView struct {
	Kind      string            `json:"kind"` // catalog or definition
	Name      string            `json:"name,omitempty"`
	Labels    map[string]string `json:"labels,omitempty"`
	Location  string            `json:"location,omitempty"`
	Resolved  string            `json:"resolved,omitempty"` // if it says more than Location
	Digest    digest.Digest     `json:"digest"`
	Trusted   bool              `json:"trusted"`
	Publisher []string          `json:"publishers"`
	Functions []functionView    `json:"functions"`
	Warnings  []string          `json:"warnings"`
}

// functionView is a function version.
type functionView struct {
	APIVersion  string       `json:"apiVersion"`
	Kind        string       `json:"kind"`
	Description string       `json:"description,omitempty"`
	Publisher   string       `json:"publisher,omitempty"`
	License     string       `json:"license,omitempty"`
	Maintainers []string     `json:"maintainers,omitempty"`
	Tags        []string     `json:"tags,omitempty"`
	Home        string       `json:"home,omitempty"`
	Usage       string       `json:"usage,omitempty"`
	Idempotent  bool         `json:"idempotent"`
	HasSchema   bool         `json:"hasSchema"`
	Network     bool         `json:"requireNetwork"`
	Storage     bool         `json:"requireStorageMount"`
	Hidden      bool         `json:"hidden,omitempty"` // by an entry of the same type before it
	Runtimes    []recordView `json:"runtimes"`
}

// recordView is one way to run a function version.
type recordView struct {
	Type     string `json:"type"` // container, exec or starlark
	Platform string `json:"platform,omitempty"`
	Bin      string `json:"bin,omitempty"`
	// Reference is what is run: an image, if possible by digest, or the URI
	// of an executable or a script.
	Reference string        `json:"reference"`
	Digest    digest.Digest `json:"digest,omitempty"` // of the image's manifest or of the download
	// Verifiable says that there is a digest; without one it is not run.
	Verifiable bool `json:"verifiable"`
}

func newCatalogView(doc *catalog.Document) *catalogView {
	c := doc.AsCatalog()
	v := &catalogView{Kind: "catalog", Name: c.Name, Labels: c.Labels, Digest: doc.Digest, Publisher: []string{}, Functions: []functionView{}, Warnings: []string{}}
	if doc.Definition != nil {
		v.Kind = "definition"
	}
	if !c.Origin.IsZero() {
		v.Location = c.Origin.String()
	}
	if r := c.Resolved.String(); c.Resolved.Pinned() && r != v.Location && !c.Resolved.IsLocal() {
		v.Resolved = r
	}
	seen := map[catalog.GroupVersionKind]bool{}
	for r := range c.Resolutions() {
		f := newFunctionView(r)
		f.Hidden = seen[r.GVK()]
		seen[r.GVK()] = true
		v.Functions = append(v.Functions, f)
		if p := r.Definition.Publisher; p != "" && !slices.Contains(v.Publisher, p) {
			v.Publisher = append(v.Publisher, p)
		}
	}
	for _, d := range doc.Diagnostics {
		if d.Severity != schema.Notice {
			v.Warnings = append(v.Warnings, d.String())
		}
	}
	return v
}

func newFunctionView(r *catalog.Resolution) functionView {
	d, ver := r.Definition, r.Version
	f := functionView{
		APIVersion: r.GVK().APIVersion(), Kind: d.Kind, Description: d.Description, Publisher: d.Publisher,
		License: ver.License, Maintainers: ver.Maintainers, Tags: d.Tags, Home: d.Home, Usage: ver.Usage,
		Idempotent: ver.Idempotent, HasSchema: ver.Schema != nil, Runtimes: records(&ver.Runtime),
	}
	if len(f.Maintainers) == 0 {
		f.Maintainers = d.Maintainers // KC-056
	}
	if c := ver.Runtime.Container; c != nil {
		f.Network, f.Storage = c.RequireNetwork, c.RequireStorageMount
	}
	return f
}

// records lists the ways to run a function.
func records(rt *catalog.Runtime) []recordView {
	out := []recordView{}
	if c := rt.Container; c != nil {
		out = append(out, recordView{Type: "container", Reference: c.Pinned(), Digest: c.Digest, Verifiable: c.Digest != ""})
	}
	if x := rt.Exec; x != nil {
		for i := range x.Platforms {
			p := &x.Platforms[i]
			out = append(out, recordView{Type: "exec", Platform: p.OS + "/" + p.Arch, Bin: p.Bin, Reference: reference(p.URI, p.Location),
				Digest: p.Digest, Verifiable: p.Digest != "" || p.Location.Digest != ""})
		}
	}
	if s := rt.Starlark; s != nil {
		out = append(out, recordView{Type: "starlark", Reference: reference(s.URI, s.Location), Digest: s.Digest, Verifiable: s.Digest != "" || s.Location.Digest != ""})
	}
	return out
}

// reference is a URI as it is fetched, or as it is written if it cannot be.
func reference(uri string, loc catalog.Location) string {
	if loc.IsZero() {
		return uri
	}
	return loc.String()
}

// text prints the view for people.
func (v *catalogView) text(w io.Writer) error {
	var b bytes.Buffer
	field := func(indent, name, value string) {
		if value != "" {
			fmt.Fprintf(&b, "%s%-*s %s\n", indent, 14-len(indent), name, printableLine(value))
		}
	}
	field("", v.Kind, v.Name)
	field("", "location", v.Location)
	field("", "resolved", v.Resolved)
	field("", "digest", v.Digest.String())
	field("", "publishers", strings.Join(v.Publisher, ", "))
	var labels []string
	for k, val := range v.Labels {
		labels = append(labels, k+"="+val)
	}
	slices.Sort(labels)
	field("", "labels", strings.Join(labels, ", "))
	if v.Trusted {
		field("", "trust", "trusted by --trusted-catalog")
	} else {
		field("", "trust", "not trusted; its functions run only with --trusted-catalog "+v.trustArgument())
	}
	for i := range v.Functions {
		f := &v.Functions[i]
		fmt.Fprintf(&b, "\n%s, kind %s\n", printableLine(f.APIVersion), printableLine(f.Kind))
		if f.Hidden {
			field("  ", "hidden", "an earlier entry of the same type is used instead")
		}
		field("  ", "description", f.Description)
		field("  ", "publisher", f.Publisher)
		field("  ", "maintainers", strings.Join(f.Maintainers, ", "))
		field("  ", "license", f.License)
		field("  ", "home", f.Home)
		field("  ", "tags", strings.Join(f.Tags, ", "))
		var needs []string
		if f.Network {
			needs = append(needs, "network (--allow-network)")
		}
		if f.Storage {
			needs = append(needs, "storage mounts (--allow-storage-mount)")
		}
		field("  ", "needs", strings.Join(needs, ", "))
		for _, r := range f.Runtimes {
			what := r.Reference
			if r.Platform != "" {
				what = r.Platform + " " + what
			}
			field("  ", r.Type, what)
			switch {
			case !r.Verifiable:
				field("  ", "", "no digest: it cannot be verified and will not be run")
			case r.Type != "container" && r.Digest != "":
				field("  ", "", r.Digest.String())
			}
		}
		if len(f.Runtimes) == 0 {
			field("  ", "runtime", "none")
		}
	}
	_, err := w.Write(b.Bytes())
	return err
}

// trustArgument is what trusts the document.
func (v *catalogView) trustArgument() string {
	if v.Location == "" {
		return v.Digest.String()
	}
	if strings.ContainsAny(v.Location, "?& '*") {
		return "'" + strings.ReplaceAll(v.Location, "'", `'\''`) + "'"
	}
	return v.Location
}

// printableLine is text of a stranger on one line, without what a terminal
// would act on.
func printableLine(s string) string {
	return strings.Join(strings.FieldsFunc(strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t' || r == '\r':
			return ' '
		case r < ' ' || r >= 0x7f && r < 0xa0 || r >= '\u202a' && r <= '\u202e' || r >= '\u2066' && r <= '\u2069' || r == '\u200e' || r == '\u200f':
			return '\uFFFD'
		}
		return r
	}, s), func(r rune) bool { return r == ' ' }), " ")
}

// printYAML writes a value as YAML, with the fields that printJSON has, in
// the same order.
func printYAML(w io.Writer, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("writing output: %w", err)
	}
	var n yaml.Node
	if err := yaml.Load(data, &n); err != nil {
		return fmt.Errorf("writing output: %w", err)
	}
	blockStyle(&n)
	out, err := yaml.Dump(&n, yaml.WithIndent(2), yaml.WithCompactSeqIndent(), yaml.WithLineWidth(-1))
	if err != nil {
		return fmt.Errorf("writing output: %w", err)
	}
	_, err = w.Write(out)
	return err
}

// blockStyle takes away JSON's braces and quotes; the writer puts quotes back
// where they are needed.
func blockStyle(n *yaml.Node) {
	if len(n.Content) > 0 || n.Kind == yaml.ScalarNode {
		n.Style = 0
	}
	for _, c := range n.Content {
		blockStyle(c)
	}
}
