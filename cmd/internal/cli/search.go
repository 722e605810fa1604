package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/krmcat/krmcat/catalog"
)

type searchOptions struct {
	Remote   remoteFlags
	Catalogs []string
	Words    []string
	Output   string
}

func newSearchCmd(e *env) *cobra.Command {
	opts := &searchOptions{}
	cmd := &cobra.Command{
		Use:   "search [WORD...]",
		Short: "Find functions in catalogs by what they do",
		Long: `List the functions of catalogs in which all words occur: in the group, the kind,
the name, the description, the publisher or the tags, in upper or lower case.
Without words all functions are listed. Nothing is run, nothing but the catalogs
is fetched, and a catalog need not be trusted for it.`,
		Example: `  krmcat search labels --catalog http://localhost:8080/catalog.yaml

  # With the catalogs in the environment
  export KRMCAT_CATALOG="oci://localhost:8080/acme/catalog:latest https://example.com/catalog.yaml"
  krmcat search set replicas
  krmcat search mutator -o json | jq -r '.[].apiVersion'`,
		Args: args(cobra.ArbitraryArgs),
		RunE: func(cmd *cobra.Command, words []string) error {
			opts.Words = words
			return runSearch(cmd.Context(), e, opts)
		},
	}
	f := cmd.Flags()
	opts.Remote.add(f)
	f.StringArrayVar(&opts.Catalogs, "catalog", nil, "`location` of a catalog to search; repeatable (default: those in $KRMCAT_CATALOG)")
	addOutput(cmd, &opts.Output, "text", "json", "yaml")
	return cmd
}

// foundFunction is a function version that search found, in the form that
// -o json prints.
type foundFunction struct {
	functionView
	Catalog string `json:"catalog"`
}

func runSearch(ctx context.Context, e *env, opts *searchOptions) error {
	src, _, err := opts.Remote.source(e)
	if err != nil {
		return err
	}
	locations, err := (&catalogFlags{Catalogs: opts.Catalogs}).locations(e)
	if err != nil {
		return err
	}
	if len(locations) == 0 {
		return usagef("no catalog to search: say one with --catalog, or set KRMCAT_CATALOG")
	}
	found := []foundFunction{}
	for _, loc := range locations {
		doc, err := readDocument(ctx, e, src, loc.String())
		if err != nil {
			return explainInvalid(e, err)
		}
		seen := map[catalog.GroupVersionKind]bool{}
		for r := range doc.AsCatalog().Resolutions() {
			// What an entry before it hides is not what would be run.
			if !seen[r.GVK()] && mentions(r, opts.Words) {
				found = append(found, foundFunction{newFunctionView(r), loc.String()})
			}
			seen[r.GVK()] = true
		}
	}
	switch opts.Output {
	case "json":
		return printJSON(e.Out, found)
	case "yaml":
		return printYAML(e.Out, found)
	}
	if len(found) == 0 {
		printf(e.Err, "krmcat: notice: no function found; fewer words find more\n")
		return nil
	}
	return foundText(e.Out, found, len(locations) > 1)
}

// mentions reports whether all words occur in what a function says of itself.
func mentions(r *catalog.Resolution, words []string) bool {
	d := r.Definition
	text := strings.ToLower(strings.Join(append(slices.Clone(d.Tags), d.Group, d.Kind, d.Name, d.Description, d.Publisher), "\n"))
	return !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(text, strings.ToLower(w)) })
}

// foundText prints a table; the catalogs only if there are several.
func foundText(w io.Writer, found []foundFunction, several bool) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	header := "APIVERSION\tKIND\tRUNTIMES\tPUBLISHER\tDESCRIPTION"
	if several {
		header += "\tCATALOG"
	}
	fmt.Fprintln(t, header)
	for _, f := range found {
		var runtimes []string
		for _, r := range f.Runtimes {
			if !slices.Contains(runtimes, r.Type) {
				runtimes = append(runtimes, r.Type)
			}
		}
		row := []string{f.APIVersion, f.Kind, strings.Join(runtimes, ","), f.Publisher, f.Description}
		if several {
			row = append(row, f.Catalog)
		}
		for i, cell := range row {
			row[i] = printableLine(cell)
		}
		fmt.Fprintln(t, strings.Join(row, "\t"))
	}
	return t.Flush()
}
