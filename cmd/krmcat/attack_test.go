package main

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/krmcat/krmcat/cmd/internal/cli"
	"github.com/krmcat/krmcat/registry/regtest"
)

// TestAttack07TagMoves: a registry that answers a tag with a signed artifact
// first and with another one from then on. What was verified is what is
// pulled, as the tag is asked for once.
func TestAttack07TagMoves(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("COSIGN_PASSWORD", "secret")
	t.Setenv("HOME", dir)
	srv := regtest.NewServer(t)
	write := func(name, text string) string {
		t.Helper()
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return p
	}
	run := func(args ...string) (string, int) {
		var out, errs bytes.Buffer
		code := cli.Main(t.Context(), args, cli.Stdio{In: strings.NewReader(""), Out: &out, Err: &errs})
		if code != 0 {
			t.Logf("krmcat %s: %s", strings.Join(args, " "), errs.String())
		}
		return out.String(), code
	}
	must := func(args ...string) string {
		t.Helper()
		out, code := run(args...)
		if code != 0 {
			t.Fatalf("krmcat %s: exit code %d", strings.Join(args, " "), code)
		}
		return out
	}
	key := filepath.Join(dir, "cosign")
	must("keygen", "--output-key-prefix", key)
	const doc = `apiVersion: config.kubernetes.io/v1alpha1
kind: KRMFunctionDefinition
metadata:
  name: hello
spec:
  group: example.com
  names:
    kind: Hello
  description: The %s one
  publisher: acme
  versions:
    - name: v1
      schema:
        openAPIV3Schema:
          type: object
      idempotent: true
      runtime:
        starlark: main.star
      usage: README.md
      examples:
        - README.md
      license: Apache-2.0
`
	write("main.star", "def run(r):\n    pass\n")
	write("README.md", "# Hello\n")
	good := write("good.yaml", fmt.Sprintf(doc, "good"))
	evil := write("evil.yaml", fmt.Sprintf(doc, "evil"))
	must("publish", good, srv.Host+"/r/a:latest", "--key", key+".key")
	must("publish", evil, srv.Host+"/r/a:evil", "--sign=false")

	target, err := url.Parse(srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(target)
	var asked atomic.Int32
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/manifests/latest") && asked.Add(1) > 1 {
			r.URL.Path = strings.TrimSuffix(r.URL.Path, "latest") + "evil"
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(front.Close)
	ref := strings.TrimPrefix(front.URL, "http://") + "/r/a:latest"
	outDir := filepath.Join(dir, "out")
	must("pull", ref, "--key", key+".pub", "--dir", outDir)
	data, err := os.ReadFile(filepath.Join(outDir, "function.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(data, []byte("The good one")) {
		t.Errorf("pulled what was not verified:\n%s", data)
	}
	// Now the tag names the other one, which is not signed.
	if _, code := run("pull", ref, "--key", key+".pub", "--dir", filepath.Join(dir, "out2")); code != 10 {
		t.Errorf("got exit code %d, want 10", code)
	}
	// Signing prints and signs the digest that it resolved, once.
	asked.Store(0)
	signed := strings.TrimSpace(must("sign", ref, "--key", key+".key"))
	if asked.Load() != 1 {
		t.Errorf("sign asked for the tag %d times, want 1", asked.Load())
	}
	if want := strings.TrimSpace(must("publish", good, srv.Host+"/r/a:latest", "--key", key+".key")); signed != want {
		t.Errorf("signed %s, want %s", signed, want)
	}
}
