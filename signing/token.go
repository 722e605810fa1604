package signing

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
)

// Audience is for whom identity tokens have to be made.
const Audience = "sigstore"

// kubernetesToken is where a pod finds a token if one is projected into it for
// Sigstore.
const kubernetesToken = "/var/run/sigstore/cosign/oidc-token"

const maxTokenBytes = 64 << 10

// ErrNoToken: the surroundings offer no identity token.
var ErrNoToken = errors.New("no identity token")

// TokenSource looks for the identity token of a CI job. The zero value looks
// nowhere.
type TokenSource struct {
	Getenv func(string) string
	// HTTPClient asks GitHub for the token. Nil is http.DefaultClient.
	HTTPClient *http.Client
	// KubernetesFile is the path of a projected token; empty means the usual
	// one, /var/run/sigstore/cosign/oidc-token.
	KubernetesFile string
}

// Ambient returns the token that the surroundings offer: SIGSTORE_ID_TOKEN
// (GitLab, and any CI that can set a variable), GitHub Actions with
// permissions: id-token: write, or a projected token of a Kubernetes service
// account. The error wraps [ErrNoToken] if there is none.
func (s TokenSource) Ambient(ctx context.Context) (string, error) {
	if s.Getenv == nil {
		return "", ErrNoToken
	}
	if t := strings.TrimSpace(s.Getenv("SIGSTORE_ID_TOKEN")); t != "" {
		return t, nil
	}
	if u := s.Getenv("ACTIONS_ID_TOKEN_REQUEST_URL"); u != "" {
		return s.github(ctx, u)
	}
	file := s.KubernetesFile
	if file == "" {
		file = kubernetesToken
	}
	t, err := ReadToken(file)
	if errors.Is(err, os.ErrNotExist) {
		return "", ErrNoToken
	}
	return t, err
}

// github asks the runner of GitHub Actions for a token.
func (s TokenSource) github(ctx context.Context, address string) (string, error) {
	u, err := url.Parse(address)
	if err != nil {
		return "", errors.New("identity token of GitHub Actions: ACTIONS_ID_TOKEN_REQUEST_URL is not a URL")
	}
	q := u.Query()
	q.Set("audience", Audience)
	u.RawQuery = q.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return "", fmt.Errorf("identity token of GitHub Actions: %w", err)
	}
	req.Header.Set("Authorization", "Bearer "+s.Getenv("ACTIONS_ID_TOKEN_REQUEST_TOKEN"))
	client := s.HTTPClient
	if client == nil {
		client = http.DefaultClient
	}
	resp, err := client.Do(req)
	if err != nil {
		return "", fmt.Errorf("identity token of GitHub Actions: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("identity token of GitHub Actions: %s (does the job have permissions: id-token: write?)", resp.Status)
	}
	var answer struct {
		Value string `json:"value"`
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxTokenBytes)).Decode(&answer); err != nil || answer.Value == "" {
		return "", errors.New("identity token of GitHub Actions: the answer holds none")
	}
	return answer.Value, nil
}

// ReadToken reads an identity token from a file.
func ReadToken(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", fmt.Errorf("reading the identity token: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxTokenBytes))
	if err != nil {
		return "", fmt.Errorf("reading the identity token: %w", err)
	}
	return strings.TrimSpace(string(data)), nil
}
