package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	"oras.land/oras-go/v2/registry/remote"
	"oras.land/oras-go/v2/registry/remote/auth"
	"oras.land/oras-go/v2/registry/remote/credentials"

	"github.com/krmcat/krmcat/registry"
)

// maxSecretBytes bounds a password or token read from standard input.
const maxSecretBytes = 64 << 10

type loginOptions struct {
	Remote        remoteFlags
	Host          string
	Username      string
	PasswordStdin bool
	TokenStdin    bool
}

func newLoginCmd(e *env) *cobra.Command {
	opts := &loginOptions{}
	cmd := &cobra.Command{
		Use:   "login HOST",
		Short: "Log in to a registry",
		Long: `Check a credential against a registry and keep it where docker keeps its own, so
that docker, oras, cosign and krmcat share it. A credential helper that docker is
configured with is used. A password is never taken from the command line.`,
		Example: `  # With a prompt for the user name and the password
  krmcat login ghcr.io

  # In CI
  echo "$TOKEN" | krmcat login ghcr.io --username ci --password-stdin`,
		Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error {
			opts.Host = a[0]
			return runLogin(cmd.Context(), e, opts)
		},
	}
	opts.Remote.add(cmd.Flags())
	cmd.Flags().StringVarP(&opts.Username, "username", "u", "", "user `name`")
	cmd.Flags().BoolVar(&opts.PasswordStdin, "password-stdin", false, "read the password from standard input")
	cmd.Flags().BoolVar(&opts.TokenStdin, "identity-token-stdin", false, "read an identity token from standard input")
	return cmd
}

func runLogin(ctx context.Context, e *env, opts *loginOptions) error {
	reg, err := remote.NewRegistry(opts.Host)
	if err != nil {
		return usagef("%q is not a registry host (write HOST or HOST:PORT, without https://)", opts.Host)
	}
	store, err := opts.Remote.credentials(e)
	if err != nil {
		return err
	}
	cred, err := opts.credential(e)
	if err != nil {
		return err
	}
	hc, err := opts.Remote.httpClient()
	if err != nil {
		return err
	}
	reg.PlainHTTP = opts.Remote.plainHTTP(reg.Reference.Host())
	reg.Client = &auth.Client{Client: hc}
	if err := credentials.Login(ctx, store, reg, cred); err != nil {
		return fmt.Errorf("logging in to %s: %w", opts.Host, registry.Classify(err))
	}
	if file := plaintextFile(store, opts.Host); file != "" {
		printf(e.Err, "krmcat: warning: the credential is in %s, not encrypted; configure a docker credential helper to change that\n", file)
	}
	printf(e.Err, "Logged in to %s\n", opts.Host)
	return nil
}

// plaintextFile is the file that holds the credential for a host as it is, or
// "" if a credential helper keeps it.
func plaintextFile(store credentials.Store, host string) string {
	s, ok := store.(interface{ ConfigPath() string })
	if !ok {
		return ""
	}
	data, err := os.ReadFile(s.ConfigPath())
	if err != nil {
		return ""
	}
	var config struct {
		Auths map[string]struct {
			Auth  string `json:"auth"`
			Token string `json:"identitytoken"`
		} `json:"auths"`
	}
	if json.Unmarshal(data, &config) != nil {
		return ""
	}
	if a := config.Auths[credentials.ServerAddressFromRegistry(host)]; a.Auth == "" && a.Token == "" {
		return ""
	}
	return s.ConfigPath()
}

// credential reads what was not given by flags: from standard input if asked
// to, else by a prompt on the terminal.
func (o *loginOptions) credential(e *env) (auth.Credential, error) {
	switch {
	case o.TokenStdin && o.PasswordStdin:
		return auth.Credential{}, usagef("--password-stdin and --identity-token-stdin exclude each other")
	case o.TokenStdin:
		token, err := readSecret(e.In)
		return auth.Credential{RefreshToken: token}, err
	case o.PasswordStdin:
		if o.Username == "" {
			return auth.Credential{}, usagef("--password-stdin needs --username")
		}
		password, err := readSecret(e.In)
		return auth.Credential{Username: o.Username, Password: password}, err
	}
	f, ok := e.In.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return auth.Credential{}, usagef("standard input is no terminal: give --username and --password-stdin")
	}
	username := o.Username
	if username == "" {
		printf(e.Err, "Username: ")
		line, err := bufio.NewReader(f).ReadString('\n')
		if err != nil {
			return auth.Credential{}, fmt.Errorf("reading the user name: %w", err)
		}
		username = strings.TrimSpace(line)
	}
	printf(e.Err, "Password: ")
	password, err := term.ReadPassword(int(f.Fd()))
	printf(e.Err, "\n")
	if err != nil {
		return auth.Credential{}, fmt.Errorf("reading the password: %w", err)
	}
	return auth.Credential{Username: username, Password: string(password)}, nil
}

// readSecret reads a password or a token without its line end.
func readSecret(r io.Reader) (string, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxSecretBytes+1))
	if err != nil {
		return "", fmt.Errorf("reading the secret from standard input: %w", err)
	}
	if len(data) > maxSecretBytes {
		return "", errors.New("secret on standard input is too long")
	}
	secret := strings.TrimRight(string(data), "\r\n")
	if secret == "" {
		return "", errors.New("standard input holds no secret")
	}
	return secret, nil
}

type logoutOptions struct {
	Remote remoteFlags
	Host   string
}

func newLogoutCmd(e *env) *cobra.Command {
	opts := &logoutOptions{}
	cmd := &cobra.Command{
		Use:     "logout HOST",
		Short:   "Forget the credential for a registry",
		Example: `  krmcat logout ghcr.io`,
		Args:    args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error {
			opts.Host = a[0]
			return runLogout(cmd.Context(), e, opts)
		},
	}
	opts.Remote.add(cmd.Flags())
	return cmd
}

func runLogout(ctx context.Context, e *env, opts *logoutOptions) error {
	store, err := opts.Remote.credentials(e)
	if err != nil {
		return err
	}
	if anonymous(ctx, store, opts.Host) {
		printf(e.Err, "Not logged in to %s\n", opts.Host)
		return nil
	}
	if err := credentials.Logout(ctx, store, opts.Host); err != nil {
		return fmt.Errorf("logging out of %s: %w", opts.Host, err)
	}
	printf(e.Err, "Logged out of %s\n", opts.Host)
	return nil
}
