package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/krmcat/krmcat/signing"
)

type keygenOptions struct {
	Prefix     string
	NoPassword bool
	Output     string
}

func newKeygenCmd(e *env) *cobra.Command {
	opts := &keygenOptions{}
	cmd := &cobra.Command{
		Use:   "keygen",
		Short: "Make a key pair to sign with",
		Long: `Make an ECDSA P-256 key pair in cosign's format: cosign.key, encrypted with a
password, and cosign.pub. The password is read from COSIGN_PASSWORD or asked for.
Existing files are never overwritten.`,
		Example: `  # In CI
  COSIGN_PASSWORD=secret krmcat keygen

  # Two files of other names, team.key and team.pub
  COSIGN_PASSWORD=secret krmcat keygen --output-key-prefix team`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return runKeygen(cmd.Context(), e, opts)
		},
	}
	cmd.Flags().StringVar(&opts.Prefix, "output-key-prefix", "cosign", "`path` of the files, without .key and .pub")
	cmd.Flags().BoolVar(&opts.NoPassword, "no-password", false, "encrypt the private key with the empty password; whoever has the file can sign")
	addOutput(cmd, &opts.Output, "text", "json")
	return cmd
}

// keygenOutput is what -o json prints.
type keygenOutput struct {
	PrivateKey  string `json:"privateKey"`
	PublicKey   string `json:"publicKey"`
	Fingerprint string `json:"fingerprint"`
}

func runKeygen(_ context.Context, e *env, opts *keygenOptions) error {
	out := keygenOutput{PrivateKey: opts.Prefix + ".key", PublicKey: opts.Prefix + ".pub"}
	// Before a password is asked for.
	for _, file := range []string{out.PrivateKey, out.PublicKey} {
		if _, err := os.Lstat(file); err == nil {
			return wouldOverwrite(file)
		}
	}
	password, err := opts.password(e)
	if err != nil {
		return err
	}
	defer clear(password)
	pair, err := signing.GenerateKeyPair(password)
	if err != nil {
		return err
	}
	defer clear(pair.Private)
	public, err := signing.LoadPublicKey(pair.Public)
	if err != nil {
		return err
	}
	if out.Fingerprint, err = signing.Fingerprint(public); err != nil {
		return err
	}
	if err := writeNew(out.PrivateKey, pair.Private, 0o600); err != nil {
		return err
	}
	if err := writeNew(out.PublicKey, pair.Public, 0o644); err != nil {
		// A private key without its public one is of no use.
		return errors.Join(err, os.Remove(out.PrivateKey))
	}
	if opts.Output == "json" {
		return printJSON(e.Out, out)
	}
	printf(e.Out, "%s\n%s\n", out.PrivateKey, out.PublicKey)
	printf(e.Err, "Made a key pair with fingerprint %s; keep %s secret.\n", out.Fingerprint, out.PrivateKey)
	return nil
}

// password is what encrypts the new key.
func (o *keygenOptions) password(e *env) ([]byte, error) {
	if o.NoPassword {
		return nil, nil
	}
	if p, ok := e.LookupEnv("COSIGN_PASSWORD"); ok {
		return []byte(p), nil
	}
	if f, ok := e.In.(*os.File); !ok || !term.IsTerminal(int(f.Fd())) {
		return nil, usagef("no password: set COSIGN_PASSWORD, or say --no-password")
	}
	first, err := e.password("Password for the private key: ")
	if err != nil {
		return nil, err
	}
	second, err := e.password("The same again: ")
	if err != nil {
		clear(first)
		return nil, err
	}
	defer clear(second)
	if !bytes.Equal(first, second) {
		clear(first)
		return nil, errors.New("the passwords differ")
	}
	return first, nil
}

// writeNew writes a file that must not exist, and leaves nothing behind if it
// cannot.
func writeNew(file string, data []byte, mode fs.FileMode) error {
	f, err := os.OpenFile(filepath.Clean(file), os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if errors.Is(err, fs.ErrExist) {
		return wouldOverwrite(file)
	}
	if err != nil {
		return fmt.Errorf("writing %s: %w", file, err)
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return errors.Join(fmt.Errorf("writing %s: %w", file, err), os.Remove(file))
	}
	return nil
}

// wouldOverwrite is the error for a file that is in the way.
func wouldOverwrite(file string) error {
	return codeError{withHint(fmt.Errorf("%s exists, and is not overwritten", file), "move it away, or choose another name"), exitConflict}
}
