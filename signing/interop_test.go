package signing_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/sigstore/sigstore/pkg/cryptoutils"
	"oras.land/oras-go/v2/registry/remote"

	"github.com/krmcat/krmcat/internal/tooltest"
	"github.com/krmcat/krmcat/registry/regmem"
	"github.com/krmcat/krmcat/registry/regserver"
	"github.com/krmcat/krmcat/registry/regtest"
	"github.com/krmcat/krmcat/signing"
)

// findCosign returns the paths of the real cosign command in both versions.
func findCosign(t testing.TB) map[string]string {
	t.Helper()
	return map[string]string{"cosign2": tooltest.Path(t, "cosign2"), "cosign3": tooltest.Path(t, "cosign3")}
}

// cosignRun runs cosign in a folder of its own, without the user's
// configuration and without network but the loopback registry.
type cosignRun struct {
	dir  string
	bins map[string]string
}

func newCosign(t testing.TB) *cosignRun {
	t.Helper()
	c := &cosignRun{dir: t.TempDir(), bins: findCosign(t)}
	// All that cosign 2.6 wants of a trusted root to check a key's bundle.
	c.write(t, "empty-root.json", []byte(`{"mediaType":"application/vnd.dev.sigstore.trustedroot+json;version=0.1"}`))
	return c
}

func (c *cosignRun) write(t testing.TB, name string, data []byte) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(c.dir, name), data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// run returns the last line of the output as the error.
func (c *cosignRun) run(bin string, args ...string) (string, bool) {
	cmd := exec.Command(c.bins[bin], args...)
	cmd.Dir = c.dir
	cmd.Env = []string{"HOME=" + c.dir, "PATH=" + os.Getenv("PATH"), "COSIGN_PASSWORD=secret", "TUF_ROOT=" + filepath.Join(c.dir, "tuf"), "HTTPS_PROXY=http://127.0.0.1:1"}
	out, err := cmd.CombinedOutput()
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return lines[len(lines)-1], err == nil
}

// want runs cosign and checks whether it succeeds.
func (c *cosignRun) want(t testing.TB, ok bool, bin string, args ...string) {
	t.Helper()
	if msg, got := c.run(bin, args...); got != ok {
		t.Errorf("%s %s: success %v, want %v: %s", bin, strings.Join(args, " "), got, ok, msg)
	}
}

func testKeys(t testing.TB) map[string]crypto.Signer {
	t.Helper()
	keys := map[string]crypto.Signer{}
	for name, curve := range map[string]elliptic.Curve{"P-256": elliptic.P256(), "P-384": elliptic.P384(), "P-521": elliptic.P521()} {
		k, err := ecdsa.GenerateKey(curve, rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		keys[name] = k
	}
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	keys["Ed25519"] = ed
	if keys["RSA"], err = rsa.GenerateKey(rand.Reader, 2048); err != nil {
		t.Fatal(err)
	}
	return keys
}

// TestInteropTheySeeOurs: cosign accepts what krmcat signs with a key.
func TestInteropTheySeeOurs(t *testing.T) {
	t.Parallel()
	c := newCosign(t)
	with := regtest.NewServer(t)
	without := regtest.NewServerWith(t, regmem.New(), &regserver.Options{NoReferrers: true})
	for name, key := range testKeys(t) {
		signer := signerOf(t, key)
		pub, err := cryptoutils.MarshalPublicKeyToPEM(key.Public())
		if err != nil {
			t.Fatal(err)
		}
		c.write(t, name+".pub", pub)
		c.write(t, "other.pub", otherKey(t))
		for where, srv := range map[string]*regtest.Server{"referrers": with, "tags": without} {
			repoName := "fn/" + strings.ToLower(name)
			repo := repository(t, srv.Host, repoName)
			for _, legacy := range []bool{false, true} {
				body := name + where
				if legacy {
					body += "legacy"
				}
				subject := push(t, repo, body, "v1")
				ref := srv.Host + "/" + repoName
				opts := signing.SignOptions{Legacy: legacy, Annotations: map[string]string{"team": "acme"}}
				if _, err := signer.With(opts).Sign(t.Context(), repo, ref, subject); err != nil {
					t.Fatal(err)
				}
				at := ref + "@" + subject.Digest.String()
				verify := []string{"verify", "--key", name + ".pub", "--insecure-ignore-tlog=true"}
				c.want(t, true, "cosign3", append(verify, at)...)
				c.want(t, true, "cosign3", append(verify, "-a", "team=acme", at)...)
				c.want(t, false, "cosign3", append(verify, "-a", "team=other", at)...)
				c.want(t, false, "cosign3", "verify", "--key", "other.pub", "--insecure-ignore-tlog=true", at)
				c.want(t, true, "cosign2", append(verify, "--trusted-root", "empty-root.json", at)...)
				c.want(t, false, "cosign2", "verify", "--key", "other.pub", "--insecure-ignore-tlog=true", "--trusted-root", "empty-root.json", at)
				// As soon as there is a bundle, cosign 2.6 looks at nothing
				// else, and wants a trusted root, which it would fetch.
				c.want(t, false, "cosign2", append(verify, at)...)
				if legacy {
					c.want(t, true, "cosign3", append(verify, "--new-bundle-format=false", at)...)
				}
			}
		}
		blob, err := signer.SignBlob(t.Context(), []byte("hello"))
		if err != nil {
			t.Fatal(err)
		}
		c.write(t, "blob", []byte("hello"))
		c.write(t, "other-blob", []byte("Hello"))
		c.write(t, "blob.json", blob)
		verify := []string{"verify-blob", "--key", name + ".pub", "--insecure-ignore-tlog=true", "--bundle", "blob.json"}
		c.want(t, true, "cosign3", append(verify, "blob")...)
		c.want(t, false, "cosign3", append(verify, "other-blob")...)
		c.want(t, true, "cosign2", append(verify, "--new-bundle-format", "--trusted-root", "empty-root.json", "blob")...)
		c.want(t, false, "cosign2", append(verify, "--new-bundle-format", "--trusted-root", "empty-root.json", "other-blob")...)
	}
}

func otherKey(t testing.TB) []byte {
	t.Helper()
	pub, err := cryptoutils.MarshalPublicKeyToPEM(newSigner(t).PublicKey())
	if err != nil {
		t.Fatal(err)
	}
	return pub
}

// TestInteropLegacyOnly: cosign 2.6 and 3.1 accept the older format without
// more flags if there is no bundle beside it.
func TestInteropLegacyOnly(t *testing.T) {
	t.Parallel()
	c := newCosign(t)
	srv := regtest.NewServer(t)
	signer := newSigner(t)
	pub, err := cryptoutils.MarshalPublicKeyToPEM(signer.PublicKey())
	if err != nil {
		t.Fatal(err)
	}
	c.write(t, "key.pub", pub)
	repo := repository(t, srv.Host, "fn/a")
	subject := push(t, repo, "a", "v1")
	opts := signing.SignOptions{Legacy: true, NoBundle: true}
	if _, err := signer.With(opts).Sign(t.Context(), repo, srv.Host+"/fn/a", subject); err != nil {
		t.Fatal(err)
	}
	for bin := range c.bins {
		c.want(t, true, bin, "verify", "--key", "key.pub", "--insecure-ignore-tlog=true", srv.Host+"/fn/a:v1")
	}
	policy := signing.Policy{Keys: []any{signer.PublicKey()}}
	if _, err := (signing.Checker{}).Verify(t.Context(), repo, srv.Host+"/fn/a", subject, policy); err != nil {
		t.Error(err)
	}
}

// TestInteropWeSeeTheirs: krmcat accepts what cosign signs with a key, for
// keys that cosign makes and for keys that it imports.
func TestInteropWeSeeTheirs(t *testing.T) {
	t.Parallel()
	c := newCosign(t)
	c.want(t, true, "cosign2", "generate-key-pair", "--output-key-prefix", "made")
	keys := map[string]string{"made": "made"}
	for name, key := range testKeys(t) {
		if name == "P-521" {
			continue // cosign takes no such key
		}
		der, err := cryptoutils.MarshalPrivateKeyToPEM(key)
		if err != nil {
			t.Fatal(err)
		}
		c.write(t, name+".pem", der)
		c.want(t, true, "cosign3", "import-key-pair", "--key", name+".pem", "--output-key-prefix", name)
		keys[name] = name
	}
	with := regtest.NewServer(t)
	without := regtest.NewServerWith(t, regmem.New(), &regserver.Options{NoReferrers: true})
	for name, file := range keys {
		pub, err := os.ReadFile(filepath.Join(c.dir, file+".pub"))
		if err != nil {
			t.Fatal(err)
		}
		key, err := signing.LoadPublicKey(pub)
		if err != nil {
			t.Fatal(err)
		}
		s, err := signing.LoadSigner(t.Context(), signing.KeyOptions{
			Ref:      filepath.Join(c.dir, file+".key"),
			Password: func() ([]byte, error) { return []byte("secret"), nil },
		})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if want, _ := signing.Fingerprint(key); s.Fingerprint() != want {
			t.Errorf("%s: key and public key differ", name)
		}
		for where, srv := range map[string]*regtest.Server{"referrers": with, "tags": without} {
			for bin := range c.bins {
				for _, bundle := range []string{"true", "false"} {
					repo, ref, subject := theirs(t, c, srv, name, bin, bundle, where, file)
					v, err := signing.Checker{}.Verify(t.Context(), repo, ref, subject, signing.Policy{Keys: []any{key}})
					if err != nil {
						t.Errorf("%s %s bundle=%s on %s: %v", name, bin, bundle, where, err)
						continue
					}
					if want := map[string]signing.Format{"true": signing.FormatBundle, "false": signing.FormatLegacy}[bundle]; v.Format != want {
						t.Errorf("%s %s: got format %s, want %s", name, bin, v.Format, want)
					}
					other := signing.Policy{Keys: []any{newSigner(t).PublicKey()}}
					if _, err := (signing.Checker{}).Verify(t.Context(), repo, ref, subject, other); err == nil {
						t.Errorf("%s %s: accepted with another key", name, bin)
					}
				}
			}
		}
	}
}

// theirs signs a fresh artifact with cosign.
func theirs(t testing.TB, c *cosignRun, srv *regtest.Server, key, bin, bundle, where, file string) (*remote.Repository, string, ocispec.Descriptor) {
	t.Helper()
	name := "theirs/" + strings.ToLower(key)
	repo := repository(t, srv.Host, name)
	subject := push(t, repo, key+bin+bundle+where, "v1")
	ref := srv.Host + "/" + name
	args := []string{"sign", "--key", file + ".key", "--tlog-upload=false", "--yes", "--new-bundle-format=" + bundle, "--allow-insecure-registry"}
	if bin == "cosign3" {
		args = append(args, "--use-signing-config=false")
	}
	c.want(t, true, bin, append(args, ref+"@"+subject.Digest.String())...)
	return repo, ref, subject
}
