package main

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/krmcat/krmcat/registry/regtest"
)

// TestPolicyAttack07TagMoves: a registry that answers a tag with a signed
// function first and with another one from then on. What the trust policy has
// accepted is what runs.
func TestPolicyAttack07TagMoves(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	for k, v := range map[string]string{"COSIGN_PASSWORD": "secret", "HOME": dir, "XDG_CONFIG_HOME": "", "KRMCAT_CACHE_DIR": "", "XDG_CACHE_HOME": "", "KRMCAT_TRUST_POLICY": ""} {
		t.Setenv(k, v)
	}
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// As processes: functions run in one that is started by the program.
	run := func(args ...string) (string, string, int) {
		var out, errs bytes.Buffer
		cmd := exec.CommandContext(t.Context(), "krmcat", args...)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader("apiVersion: config.kubernetes.io/v1\nkind: ResourceList\nitems: []\n"), &out, &errs
		err := cmd.Run()
		if cmd.ProcessState == nil {
			t.Fatal(err)
		}
		return out.String(), errs.String(), cmd.ProcessState.ExitCode()
	}
	must := func(args ...string) string {
		t.Helper()
		out, errs, code := run(args...)
		if code != 0 {
			t.Fatalf("krmcat %s: exit code %d: %s", strings.Join(args, " "), code, errs)
		}
		return out
	}
	must("keygen")
	write("README.md", "# Marks\n")
	const doc = `apiVersion: config.kubernetes.io/v1alpha1
kind: KRMFunctionDefinition
metadata:
  name: mark
spec:
  group: example.com
  names:
    kind: Mark
  description: Marks
  publisher: acme
  versions:
    - name: v1
      schema:
        openAPIV3Schema:
          type: object
      idempotent: true
      runtime:
        starlark: NAME.star
      usage: README.md
      examples:
        - README.md
      license: Apache-2.0
`
	srv := regtest.NewServer(t)
	for _, name := range []string{"good", "evil"} {
		write(name+".star", `ctx.resource_list["items"].append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "`+name+`"}})`+"\n")
		write(name+".yaml", strings.ReplaceAll(doc, "NAME", name))
	}
	must("publish", "good.yaml", srv.Host+"/r/a:latest", "--key", "cosign.key")
	must("publish", "evil.yaml", srv.Host+"/r/a:evil", "--sign=false")

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
	host := strings.TrimPrefix(front.URL, "http://")
	// What the documents name is at the address of the server itself.
	write("trust.yaml", `apiVersion: krmcat.dev/v1alpha1
kind: TrustPolicy
spec:
  signers: [{name: release, key: {publicKey: cosign.pub}}]
  rules:
  - {scope: `+host+`/r/**, signatures: {anyOf: [release]}}
  - {scope: `+srv.Host+`/r/**, signatures: {anyOf: [release]}}
`)
	out := must("run", "-", "--function", "oci://"+host+"/r/a:latest", "--trust-policy", "trust.yaml")
	if !strings.Contains(out, "name: good") || strings.Contains(out, "name: evil") {
		t.Errorf("ran what was not accepted:\n%s", out)
	}
	// Now the tag names the other one, which nobody signed.
	out, errs, code := run("run", "-", "--function", "oci://"+host+"/r/a:latest", "--trust-policy", "trust.yaml")
	if code != 10 || out != "" || !strings.Contains(errs, "artifact is not signed") {
		t.Errorf("got exit code %d, %s, %s", code, out, errs)
	}
	asked.Store(0)
	must("pull", host+"/r/a:latest", "--dir", "out", "--trust-policy", "trust.yaml")
	if data, err := os.ReadFile(filepath.Join(dir, "out", "function.yaml")); err != nil || !bytes.Contains(data, []byte("Marks")) {
		t.Errorf("got %s, %v", data, err)
	}
}
