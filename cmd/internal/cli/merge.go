package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/krmcat/krmcat/runtime/merge"
	"github.com/krmcat/krmcat/runtime/pkgdir"
	"github.com/krmcat/krmcat/runtime/resourcelist"
)

type mergeOptions struct {
	Original string // empty for two-way
	Source   string
	Dest     string
	Write    bool
	DryRun   bool
	Rules    string
}

const mergeRules = `Fields are merged one by one. Lists whose elements all have one of the keys
mountPath, devicePath, ip, type, topologyKey, name or containerPort in common
are merged element by element, other lists are taken whole; null removes a
field. With --rules kustomize, lists go by the schemas of Kubernetes' own types
and by patch directives, as kustomize has it.

Each of the arguments is a file, a folder or - for standard input. What does not
change in DEST keeps its text. The result is printed, unless --write changes
DEST.`

func newMergeCmd(e *env) *cobra.Command {
	opts := &mergeOptions{}
	cmd := &cobra.Command{
		Use:   "merge SOURCE DEST",
		Short: "Merge resources into others, field by field",
		Long: `Merge the resources of SOURCE into those of DEST with the same type, namespace
and name; those that DEST does not have are added.

` + mergeRules,
		Example: `  # Show a Deployment with changes merged in
  krmcat merge changes.yaml deployment.yaml

  # Change a folder
  krmcat merge changes.yaml shop --write`,
		Args: args(cobra.ExactArgs(2)),
		RunE: func(cmd *cobra.Command, a []string) error {
			opts.Source, opts.Dest = a[0], a[1]
			return runMerge(cmd.Context(), e, opts)
		},
	}
	opts.add(cmd)
	return cmd
}

func newMerge3Cmd(e *env) *cobra.Command {
	opts := &mergeOptions{}
	cmd := &cobra.Command{
		Use:   "merge3 ORIGINAL UPDATED DEST",
		Short: "Merge what changed between two versions of resources into a third",
		Long: `Find what changed from ORIGINAL to UPDATED and merge it into DEST: resources that
were added or removed are added to or removed from DEST, and changed fields are
changed. What DEST has of its own stays.

` + mergeRules,
		Example: `  # Take over what a new release of a package changed
  krmcat merge3 package-v1 package-v2 my-package --write`,
		Args: args(cobra.ExactArgs(3)),
		RunE: func(cmd *cobra.Command, a []string) error {
			opts.Original, opts.Source, opts.Dest = a[0], a[1], a[2]
			return runMerge(cmd.Context(), e, opts)
		},
	}
	opts.add(cmd)
	return cmd
}

func (o *mergeOptions) add(cmd *cobra.Command) {
	f := cmd.Flags()
	f.BoolVarP(&o.Write, "write", "w", false, "change DEST instead of printing the result")
	f.BoolVar(&o.DryRun, "dry-run", false, "show what --write would change, as a diff")
	f.StringVar(&o.Rules, "rules", "spec", "how lists are merged: spec or kustomize")
}

func runMerge(ctx context.Context, e *env, opts *mergeOptions) error {
	if opts.Rules != "spec" && opts.Rules != "kustomize" {
		return usagef("--rules %s: not one of spec, kustomize", opts.Rules)
	}
	if (opts.Write || opts.DryRun) && opts.Dest == "-" {
		return usagef("--write and --dry-run need a DEST that is a file or a folder")
	}
	stdin := 0
	read := func(name string) (*pkgdir.Dir, []*resourcelist.Item, error) {
		if name == "" {
			return pkgdir.Memory(), nil, nil
		}
		if name == "-" {
			if stdin++; stdin > 1 {
				return nil, nil, usagef("standard input can be given once")
			}
		}
		return readPlain(ctx, e, name)
	}
	original, originals, err := read(opts.Original)
	if err != nil {
		return err
	}
	defer original.Close()
	source, sources, err := read(opts.Source)
	if err != nil {
		return err
	}
	defer source.Close()
	dest, dests, err := read(opts.Dest)
	if err != nil {
		return err
	}
	defer dest.Close()
	m := &merger{three: opts.Original != "", kustomize: opts.Rules == "kustomize"}
	items, err := m.merge(originals, sources, dests)
	if err != nil {
		return codeError{err, exitInvalid}
	}
	switch {
	case opts.DryRun:
		changes, err := dest.Changes(items)
		if err != nil {
			return explainRun(err)
		}
		for _, c := range changes {
			if _, err := e.Out.Write(unifiedDiff(c)); err != nil {
				return err
			}
		}
		return nil
	case opts.Write:
		changes, err := dest.Changes(items)
		if err == nil {
			err = dest.Apply(ctx, changes)
		}
		if err != nil {
			return explainRun(fmt.Errorf("writing %s: %w", opts.Dest, err))
		}
		showChanges(e, changes)
		return nil
	}
	texts, err := dest.Texts(items)
	if err != nil {
		return err
	}
	_, err = e.Out.Write(joinDocuments(texts))
	return err
}

// readPlain reads resources from a file, a folder or standard input.
func readPlain(ctx context.Context, e *env, name string) (*pkgdir.Dir, []*resourcelist.Item, error) {
	if name == "-" {
		data, err := io.ReadAll(io.LimitReader(e.In, pkgdir.MaxFile+1))
		if err != nil {
			return nil, nil, fmt.Errorf("reading standard input: %w", err)
		}
		if len(data) > pkgdir.MaxFile {
			return nil, nil, fmt.Errorf("standard input: more than %d bytes", pkgdir.MaxFile)
		}
		items, err := pkgdir.Documents(data)
		if err != nil {
			return nil, nil, codeError{fmt.Errorf("standard input: %w", err), exitInvalid}
		}
		return pkgdir.Memory(), items, nil
	}
	info, err := os.Stat(name)
	if err != nil {
		return nil, nil, err
	}
	var dir *pkgdir.Dir
	if info.IsDir() {
		dir, err = pkgdir.Read(ctx, name)
	} else {
		dir, err = pkgdir.ReadFile(ctx, name)
	}
	if err != nil {
		if !errors.Is(err, os.ErrNotExist) && !errors.Is(err, os.ErrPermission) {
			err = codeError{err, exitInvalid}
		}
		return nil, nil, fmt.Errorf("reading %s: %w", name, err)
	}
	return dir, dir.Items, nil
}

type merger struct{ three, kustomize bool }

// merge merges resources: by type, namespace and name, whatever the file
// (CF-58 to CF-61).
func (m *merger) merge(originals, sources, dests []*resourcelist.Item) ([]*resourcelist.Item, error) {
	original, err := byIdentity(originals)
	if err != nil {
		return nil, err
	}
	source, err := byIdentity(sources)
	if err != nil {
		return nil, err
	}
	dest, err := byIdentity(dests)
	if err != nil {
		return nil, err
	}
	var out []*resourcelist.Item
	for _, d := range dests {
		o, s := original[identity(d)], source[identity(d)]
		switch {
		case s == nil && o == nil, s == nil && !m.three:
			out = append(out, d) // only in dest
			continue
		case s == nil:
			continue // deleted upstream
		}
		it, err := m.one(o, s, d)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", d.Meta().ID(), err)
		}
		if it != nil {
			out = append(out, it)
		}
	}
	for _, s := range sources {
		if dest[identity(s)] != nil || original[identity(s)] != nil {
			continue // merged, or deleted locally
		}
		added, err := s.Created()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.Meta().ID(), err)
		}
		out = append(out, added)
	}
	return out, nil
}

// one merges one resource; nil if it is to be removed.
func (m *merger) one(original, source, dest *resourcelist.Item) (*resourcelist.Item, error) {
	d, err := dest.Node()
	if err != nil {
		return nil, err
	}
	s, err := plainNode(source, dest)
	if err != nil {
		return nil, err
	}
	var merged *yaml.Node
	switch {
	case m.three:
		var o *yaml.Node
		if original != nil {
			if o, err = plainNode(original, dest); err != nil {
				return nil, err
			}
		}
		if m.kustomize {
			merged, err = merge.Kustomize3(o, s, d, merge.Options{Infer: true})
		} else {
			merged, err = merge.Merge3(o, s, d)
		}
	case m.kustomize:
		merged, err = merge.Kustomize2(s, d, merge.Options{Infer: true})
	default:
		merged, err = merge.Merge2(s, d)
	}
	if err != nil || merged == nil {
		return nil, err
	}
	return dest.Update(merged)
}

// plainNode is a resource as if it came from the place of another.
func plainNode(it, place *resourcelist.Item) (*yaml.Node, error) {
	text, err := resourcelist.Strip(it)
	if err != nil {
		return nil, err
	}
	m := place.Meta()
	moved, err := resourcelist.FromDocument(text, m.Path, max(m.Index, 0))
	if err != nil {
		return nil, err
	}
	return moved.Node()
}

func identity(it *resourcelist.Item) string {
	m := it.Meta()
	return resourcelist.CutGroup(m.APIVersion) + "/" + m.Kind + "/" + m.Namespace + "/" + m.Name
}

func byIdentity(items []*resourcelist.Item) (map[string]*resourcelist.Item, error) {
	m := make(map[string]*resourcelist.Item, len(items))
	for _, it := range items {
		id := identity(it)
		if other := m[id]; other != nil {
			return nil, fmt.Errorf("%s is there twice, in %s and %s", it.Meta().ID(), place(other), place(it))
		}
		m[id] = it
	}
	return m, nil
}

func place(it *resourcelist.Item) string {
	if p := it.Meta().Path; p != "" {
		return p
	}
	return "the same input"
}
