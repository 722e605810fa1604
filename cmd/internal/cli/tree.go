package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/spf13/cobra"

	"github.com/krmcat/krmcat/registry"
	"github.com/krmcat/krmcat/signing"
)

type treeOptions struct {
	Remote    remoteFlags
	Verify    verifyFlags
	Reference string
	Output    string
}

func newTreeCmd(e *env) *cobra.Command {
	opts := &treeOptions{}
	cmd := &cobra.Command{
		Use:   "tree REFERENCE",
		Short: "Show what hangs on an artifact: signatures, attestations and others",
		Long: `List what refers to an artifact, and to each manifest of an index: signatures in
both formats, attestations and anything else. Who signed is what the signature
claims, unless it is marked verified, for which --key or an identity is needed.`,
		Example: `  krmcat tree localhost:5000/acme/hello:v1.0.0
  krmcat tree localhost:5000/acme/hello:v1.0.0 --key cosign.pub -o json`,
		Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error {
			opts.Reference = a[0]
			return runTree(cmd.Context(), e, opts)
		},
	}
	opts.Remote.add(cmd.Flags())
	opts.Verify.add(cmd.Flags())
	addOutput(cmd, &opts.Output, "text", "json")
	return cmd
}

// treeNode is a manifest with what is attached to it.
type treeNode struct {
	Digest       string       `json:"digest"`
	MediaType    string       `json:"mediaType"`
	ArtifactType string       `json:"artifactType,omitempty"`
	Attached     []attachment `json:"attached"`
}

type attachment struct {
	Kind          signing.Kind   `json:"kind"`
	Format        signing.Format `json:"format,omitempty"`
	Digest        string         `json:"digest"`
	ArtifactType  string         `json:"artifactType,omitempty"`
	PredicateType string         `json:"predicateType,omitempty"`
	Claims        string         `json:"claims,omitempty"` // who says that they signed
	Verified      bool           `json:"verified"`
	Signer        string         `json:"signer,omitempty"` // verified
	Time          *time.Time     `json:"time,omitempty"`   // verified
	Problem       string         `json:"problem,omitempty"`
}

func runTree(ctx context.Context, e *env, opts *treeOptions) error {
	if opts.Verify.given() {
		return usagef("--trust-policy decides about artifacts; see krmcat trust explain")
	}
	policy, err := opts.Verify.policy(e)
	if err != nil {
		return err
	}
	ref, repo, desc, err := opts.Remote.subject(ctx, e, opts.Reference)
	if err != nil {
		return err
	}
	manifests, err := signing.Tree(ctx, repo, desc)
	if err != nil {
		return fmt.Errorf("%s: %w", ref, registry.Classify(err))
	}
	var nodes []treeNode
	for _, m := range manifests {
		list, err := signing.ListAttached(ctx, repo, ref.Name(), m, policy)
		if err != nil {
			return registry.Classify(err)
		}
		nodes = append(nodes, newTreeNode(m, list))
	}
	if opts.Output == "json" {
		return printJSON(e.Out, nodes)
	}
	for _, n := range nodes {
		printf(e.Out, "%s@%s\n", ref.Name(), n.Digest)
		for i, a := range n.Attached {
			branch := "├──"
			if i == len(n.Attached)-1 {
				branch = "└──"
			}
			printf(e.Out, "%s %s\n", branch, a)
		}
	}
	return nil
}

func newTreeNode(m ocispec.Descriptor, list []signing.Attached) treeNode {
	n := treeNode{Digest: m.Digest.String(), MediaType: m.MediaType, ArtifactType: m.ArtifactType, Attached: []attachment{}}
	for _, x := range list {
		a := attachment{Kind: x.Kind, Format: x.Format, Digest: x.Descriptor.Digest.String(), ArtifactType: x.ArtifactType, PredicateType: x.PredicateType, Problem: x.Problem}
		switch {
		case x.ClaimedKey != "":
			a.Claims = "key " + x.ClaimedKey
		case x.ClaimedIdentity.Subject != "":
			a.Claims = x.ClaimedIdentity.String()
		}
		if v := x.Verified; v != nil {
			a.Verified, a.Signer = true, strings.TrimPrefix(signedBy(v), "signed by ")
			if !v.Time.IsZero() {
				t := v.Time.UTC()
				a.Time = &t
			}
		}
		n.Attached = append(n.Attached, a)
	}
	return n
}

// String is one line for people.
func (a attachment) String() string {
	what := string(a.Kind)
	switch a.Kind {
	case signing.KindAttestation:
		what += " " + a.PredicateType
	case signing.KindOther:
		what = a.ArtifactType
		if what == "" {
			what = "artifact"
		}
	default:
		what += " (" + string(a.Format) + ")"
	}
	line := what + "  " + a.Digest
	switch {
	case a.Verified:
		line += "  verified: " + a.Signer
	case a.Claims != "":
		line += "  claims: " + a.Claims
	}
	if a.Time != nil {
		line += "  " + a.Time.Format(time.RFC3339)
	}
	if a.Problem != "" && a.Claims == "" {
		line += "  problem: " + a.Problem
	}
	return line
}
