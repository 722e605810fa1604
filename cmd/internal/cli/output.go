package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// addOutput adds the flag -o with the formats a command can print, of which
// the first is the default.
func addOutput(cmd *cobra.Command, to *string, formats ...string) {
	cmd.Flags().StringVarP(to, "output", "o", formats[0], "output `format`: "+strings.Join(formats, ", "))
	must(cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(asCompletions(formats), cobra.ShellCompDirectiveNoFileComp)))
	check := cmd.PreRunE
	cmd.PreRunE = func(cmd *cobra.Command, args []string) error {
		if !slices.Contains(formats, *to) {
			return usagef("-o %s: not one of %s", *to, strings.Join(formats, ", "))
		}
		if check != nil {
			return check(cmd, args)
		}
		return nil
	}
}

func asCompletions(list []string) []cobra.Completion {
	out := make([]cobra.Completion, len(list))
	copy(out, list)
	return out
}

// must panics on an error that only a wrong constructor can cause.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

// printJSON writes a value as indented JSON.
func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return fmt.Errorf("writing output: %w", err)
	}
	return nil
}
