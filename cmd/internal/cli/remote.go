package cli

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"os"
	"path/filepath"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/spf13/pflag"
	"oras.land/oras-go/v2/registry/remote"
	"oras.land/oras-go/v2/registry/remote/auth"
	"oras.land/oras-go/v2/registry/remote/credentials"
	"oras.land/oras-go/v2/registry/remote/retry"

	"github.com/krmcat/krmcat/catalog"
	"github.com/krmcat/krmcat/catalog/source"
	"github.com/krmcat/krmcat/internal/version"
	"github.com/krmcat/krmcat/registry"
)

// remoteFlags say how registries and web servers are spoken to. Every command
// that fetches or pushes has them.
type remoteFlags struct {
	PlainHTTP      bool
	Insecure       bool
	CAFile         string
	RegistryConfig string

	set *pflag.FlagSet
}

func (f *remoteFlags) add(fs *pflag.FlagSet) {
	f.set = fs
	fs.BoolVar(&f.PlainHTTP, "plain-http", false, "speak to registries without TLS (the default for registries on this machine)")
	fs.BoolVar(&f.Insecure, "insecure-skip-tls-verify", false, "accept any certificate; only for tests")
	fs.StringVar(&f.CAFile, "ca-file", "", "PEM `file` of certificate authorities to trust besides the system's")
	fs.StringVar(&f.RegistryConfig, "registry-config", "", "`file` with credentials (default: docker's config.json, then podman's auth.json)")
}

// httpClient is for web servers and, with retries, for registries.
func (f *remoteFlags) httpClient() (*http.Client, error) {
	base := http.DefaultTransport.(*http.Transport).Clone()
	base.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: f.Insecure}
	if f.CAFile != "" {
		pem, err := os.ReadFile(f.CAFile)
		if err != nil {
			return nil, fmt.Errorf("reading --ca-file: %w", err)
		}
		pool, err := x509.SystemCertPool()
		if err != nil {
			pool = x509.NewCertPool()
		}
		if !pool.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("--ca-file %s: no PEM certificate in it", f.CAFile)
		}
		base.TLSClientConfig.RootCAs = pool
	}
	return &http.Client{Transport: retry.NewTransport(base)}, nil
}

// client returns the client for registries, with the user's credentials.
func (f *remoteFlags) client(e *env) (*registry.Client, error) {
	hc, err := f.httpClient()
	if err != nil {
		return nil, err
	}
	store, err := f.credentials(e)
	if err != nil {
		return nil, err
	}
	opts := &registry.Options{
		Credential: credentials.Credential(store),
		HTTPClient: hc,
		UserAgent:  "krmcat/" + version.String(),
	}
	opts.PlainHTTP = f.plainHTTP
	return registry.NewClient(opts), nil
}

// plainHTTP says whether to speak to a registry without TLS: as --plain-http
// says if it was given, else only to those on this machine.
func (f *remoteFlags) plainHTTP(host string) bool {
	if f.set != nil && f.set.Changed("plain-http") {
		return f.PlainHTTP
	}
	return registry.IsLoopback(host)
}

// subject finds the artifact that a reference names, in its repository. The
// tag is resolved here, once.
func (f *remoteFlags) subject(ctx context.Context, e *env, reference string) (registry.Reference, *remote.Repository, ocispec.Descriptor, error) {
	ref, err := registry.ParseReference(reference)
	if err != nil {
		return ref, nil, ocispec.Descriptor{}, usageError{err}
	}
	client, err := f.client(e)
	if err != nil {
		return ref, nil, ocispec.Descriptor{}, err
	}
	repo, err := client.Repository(ref)
	if err != nil {
		return ref, nil, ocispec.Descriptor{}, err
	}
	desc, err := client.Resolve(ctx, ref)
	return ref, repo, desc, err
}

// source returns the source for documents, executables and scripts wherever
// they are, and the client for registries in it.
func (f *remoteFlags) source(e *env) (catalog.Source, *registry.Client, error) {
	client, err := f.client(e)
	if err != nil {
		return nil, nil, err
	}
	hc, err := f.httpClient()
	if err != nil {
		return nil, nil, err
	}
	dir, err := e.cacheDir()
	if err != nil {
		return nil, nil, err
	}
	cache := &source.Cache{Dir: filepath.Join(dir, "content")}
	// One limit for all: what is read as a document has a smaller one.
	https := &source.HTTPS{Client: hc, AllowHTTP: f.PlainHTTP, MaxBytes: registry.MaxExecutableBytes, UserAgent: "krmcat/" + version.String(), Cache: cache}
	return &source.Cached{Cache: cache, Source: source.Mux{
		"file":  &source.File{MaxBytes: registry.MaxExecutableBytes},
		"https": https,
		"http":  https,
		"git":   &source.Git{AllowHTTP: f.PlainHTTP},
		"oci":   &registry.Source{Client: client},
	}}, client, nil
}

// cacheDir is the folder for what can be fetched again.
func (e *env) cacheDir() (string, error) {
	if d := e.Getenv("KRMCAT_CACHE_DIR"); d != "" {
		return d, nil
	}
	d, err := os.UserCacheDir()
	if err != nil {
		return "", withHint(fmt.Errorf("finding a folder for the cache: %w", err), "set KRMCAT_CACHE_DIR")
	}
	return filepath.Join(d, "krmcat"), nil
}

// credentials opens the store that login writes and everything else reads.
func (f *remoteFlags) credentials(e *env) (credentials.Store, error) {
	// Without a credential helper, credentials go into the file as docker
	// puts them; login says so.
	opts := credentials.StoreOptions{DetectDefaultNativeStore: true, AllowPlaintextPut: true}
	if f.RegistryConfig != "" {
		s, err := credentials.NewStore(f.RegistryConfig, opts)
		if err != nil {
			return nil, fmt.Errorf("reading --registry-config: %w", err)
		}
		return s, nil
	}
	primary, err := credentials.NewStoreFromDocker(opts)
	if err != nil {
		return nil, fmt.Errorf("reading docker's credentials: %w", err)
	}
	var fallbacks []credentials.Store
	for _, file := range podmanAuthFiles(e.Getenv) {
		if _, err := os.Stat(file); err != nil {
			continue
		}
		s, err := credentials.NewStore(file, credentials.StoreOptions{})
		if err != nil {
			return nil, fmt.Errorf("reading podman's credentials: %w", err)
		}
		fallbacks = append(fallbacks, s)
	}
	return userStore{credentials.NewStoreWithFallbacks(primary, fallbacks...), primary}, nil
}

// userStore is docker's credential store with others to look in as well.
type userStore struct {
	credentials.Store
	primary *credentials.DynamicStore
}

// ConfigPath is the file that credentials are put into.
func (s userStore) ConfigPath() string { return s.primary.ConfigPath() }

// podmanAuthFiles are the places where podman, buildah and skopeo keep
// credentials (containers-auth.json(5)).
func podmanAuthFiles(getenv func(string) string) []string {
	var files []string
	if f := getenv("REGISTRY_AUTH_FILE"); f != "" {
		files = append(files, f)
	}
	if d := getenv("XDG_RUNTIME_DIR"); d != "" {
		files = append(files, filepath.Join(d, "containers", "auth.json"))
	}
	return files
}

// anonymous reports whether a credential is none, so that messages can say
// what login would change.
func anonymous(ctx context.Context, store credentials.Store, host string) bool {
	cred, err := store.Get(ctx, credentials.ServerAddressFromRegistry(host))
	return err != nil || cred == auth.EmptyCredential
}
