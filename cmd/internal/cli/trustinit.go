package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing/fstest"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/krmcat/krmcat/signing"
)

type trustInitOptions struct {
	File           string
	Scopes         []string
	Keys           []string
	Identity       string
	IdentityPrefix string
	Issuer         string
	TrustedRoot    string
}

func newTrustInitCmd(e *env) *cobra.Command {
	opts := &trustInitOptions{}
	cmd := &cobra.Command{
		Use:   "init [FILE|-]",
		Short: "Write a trust policy to start from",
		Long: `Write a TrustPolicy to a new file; without FILE, to where all commands find it. With
--scope and a key or an identity it accepts just that. Without, it accepts nothing
yet, and shows in comments what can be said.`,
		Example: `  # Everything below one name, signed by a key
  krmcat trust init trust.yaml --scope ghcr.io/acme/** --key cosign.pub

  # Signed by a workflow
  krmcat trust init trust.yaml --scope ghcr.io/acme/** --trusted-root trusted_root.json \
    --certificate-oidc-issuer https://token.actions.githubusercontent.com \
    --certificate-identity-prefix https://github.com/acme/catalog/.github/workflows/release.yml@`,
		Args: args(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error {
			if len(a) == 1 {
				opts.File = a[0]
			}
			return runTrustInit(cmd.Context(), e, opts)
		},
	}
	f := cmd.Flags()
	f.StringArrayVar(&opts.Scopes, "scope", nil, "`HOST/REPOSITORY` or HOST/PREFIX/** that the policy is about; repeatable")
	f.StringArrayVar(&opts.Keys, "key", nil, "public key `file` that is accepted; its text goes into the policy; repeatable")
	f.StringVar(&opts.Identity, "certificate-identity", "", "`subject` of the certificates that are accepted, such as the URL of a workflow")
	f.StringVar(&opts.IdentityPrefix, "certificate-identity-prefix", "", "`beginning` of the subject, ending in / or @")
	f.StringVar(&opts.Issuer, "certificate-oidc-issuer", "", "`URL` of the issuer that the subject logged in at")
	f.StringVar(&opts.TrustedRoot, "trusted-root", "", "trusted_root.json `file` for identities; it is copied beside the policy")
	return cmd
}

const trustTemplate = `# Whose signatures are needed for what. What no rule is about is refused.
# krmcat trust check finds mistakes, krmcat trust explain REFERENCE shows decisions.
apiVersion: krmcat.dev/v1alpha1
kind: TrustPolicy
metadata:
  name: default
spec:
`

const trustTemplateEmpty = `  signers: []
  # - name: release
  #   key: {publicKey: cosign.pub}          # a file beside this one, or the PEM text
  rules: []
  # - scope: ghcr.io/acme/**                # everything below, or one repository
  #   signatures: {anyOf: [release]}
  #   capabilities: {network: true}         # the most that functions are granted
`

func runTrustInit(_ context.Context, e *env, opts *trustInitOptions) error {
	file := opts.File
	if file == "" {
		var err error
		if file, err = e.configFile("trust.yaml"); err != nil {
			return err
		}
	}
	text, rootJSON, err := opts.policy(e)
	if err != nil {
		return err
	}
	// What is written is what commands will read.
	p, err := signing.LoadTrustPolicy(text, fstest.MapFS{trustRootName: {Data: rootJSON}})
	if err != nil {
		return codeError{err, exitInvalid}
	}
	if file == "-" {
		_, err := e.Out.Write(text)
		return err
	}
	if opts.File == "" {
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			return err
		}
	}
	if rootJSON != nil {
		if err := createFile(filepath.Join(filepath.Dir(file), trustRootName), rootJSON); err != nil {
			return err
		}
	}
	if err := createFile(file, text); err != nil {
		return err
	}
	printf(e.Out, "%s\n", file)
	switch {
	case len(p.Spec.Rules) == 0:
		printf(e.Err, "krmcat: notice: it accepts nothing yet; name signers and rules in it\n")
	case opts.File != "":
		printf(e.Err, "krmcat: notice: use it with --trust-policy %s, or with %s=%s\n", file, trustPolicyVariable, file)
	}
	return nil
}

// trustRootName is the copy of the trusted root beside a policy.
const trustRootName = "trusted_root.json"

// createFile writes a new file and never replaces one.
func createFile(name string, data []byte) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if errors.Is(err, fs.ErrExist) {
		if have, rerr := os.ReadFile(name); rerr == nil && bytes.Equal(have, data) {
			return nil
		}
		return codeError{withHint(fmt.Errorf("%s: it exists already", name), "edit it, or name another file"), exitConflict}
	}
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Close())
}

// policy makes the text of the policy, and the trusted root to go with it.
func (o *trustInitOptions) policy(e *env) (text, rootJSON []byte, err error) {
	keyless := o.Identity != "" || o.IdentityPrefix != "" || o.Issuer != ""
	if len(o.Keys) == 0 && !keyless {
		if len(o.Scopes) > 0 || o.TrustedRoot != "" {
			return nil, nil, usagef("who signs there? Give --key, or --certificate-identity and --certificate-oidc-issuer")
		}
		return []byte(trustTemplate + trustTemplateEmpty), nil, nil
	}
	if len(o.Scopes) == 0 {
		return nil, nil, usagef("what do they sign? Give --scope, such as --scope ghcr.io/acme/**")
	}
	var spec signing.TrustPolicySpec
	var names []string
	for i, k := range o.Keys {
		data, err := readKeyText(e, k)
		if err != nil {
			return nil, nil, err
		}
		if _, err := signing.LoadPublicKey(data); err != nil {
			return nil, nil, fmt.Errorf("key %s: %w", k, err)
		}
		name := "key"
		if i > 0 {
			name = fmt.Sprintf("key-%d", i+1)
		}
		names = append(names, name)
		spec.Signers = append(spec.Signers, signing.TrustSigner{Name: name, Key: &signing.TrustKey{PublicKey: string(data)}})
	}
	if keyless {
		if o.TrustedRoot == "" {
			return nil, nil, usagef("--trusted-root is required for identities")
		}
		if rootJSON, err = readLimited(o.TrustedRoot, maxSigstoreBytes); err != nil {
			return nil, nil, fmt.Errorf("reading --trusted-root: %w", err)
		}
		spec.Roots = []signing.TrustRoot{{Name: "sigstore", TrustedRoot: trustRootName}}
		names = append(names, "identity")
		spec.Signers = append(spec.Signers, signing.TrustSigner{Name: "identity", Keyless: &signing.TrustKeyless{
			Root: "sigstore", Issuer: o.Issuer, Subject: signing.TrustMatch{Equal: o.Identity, Prefix: o.IdentityPrefix}, Evidence: signing.TrustEvidence{Tlog: 1},
		}})
	}
	for _, s := range o.Scopes {
		spec.Rules = append(spec.Rules, signing.TrustRule{Scope: s, Signatures: signing.TrustSignatures{AnyOf: names}})
	}
	body, err := yaml.Marshal(spec)
	if err != nil {
		return nil, nil, err
	}
	var b strings.Builder
	b.WriteString(trustTemplate)
	for line := range strings.Lines(string(body)) {
		b.WriteString("  " + line)
	}
	return []byte(b.String()), rootJSON, nil
}
