package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
)

// commands: a function and a catalog of it are published by the job of a
// workflow, with the real command and the real services, and verified by
// krmcat and by cosign.
func (w *world) commands() {
	w.n++
	fn := fmt.Sprintf("%s/e2e/hello%d:v1.0.0", w.host, w.n)
	list := fmt.Sprintf("%s/e2e/catalog%d:latest", w.host, w.n)
	w.write("main.star", "def run(r):\n    pass\n")
	w.write("README.md", "# Hello\n")
	version := `
    - name: v1
      schema: {openAPIV3Schema: {type: object}}
      idempotent: true
      runtime: {starlark: main.star}
      usage: README.md
      examples: [README.md]
      license: Apache-2.0
`
	about := "group: example.com\n  names: {kind: Hello}\n  description: Says hello\n  publisher: acme\n  versions:"
	w.write("function.yaml", "apiVersion: config.kubernetes.io/v1alpha1\nkind: KRMFunctionDefinition\nmetadata: {name: hello}\nspec:\n  "+about+version)
	w.write("catalog.yaml", "apiVersion: config.kubernetes.io/v1alpha1\nkind: KRMFunctionCatalog\nmetadata: {name: greetings}\nspec:\n  krmFunctions:\n  - "+strings.ReplaceAll(about, "\n", "\n  ")+strings.ReplaceAll(version, "\n", "\n  "))
	keyless := []string{"--keyless", "--signing-config", "signing_config.json", "--trusted-root", "trusted_root.json"}

	// The token as GitLab gives it.
	token := []string{"SIGSTORE_ID_TOKEN=" + w.workflowToken()}
	for _, args := range [][]string{{"function.yaml", fn}, {"catalog.yaml", list}} {
		out := w.krmcat(true, token, join([]string{"publish"}, args, keyless)...)
		if n := strings.Count(out, "(signed)"); n < 3 {
			w.t.Errorf("publish %s signed %d artifacts:\n%s", args[0], n, out)
		}
		if strings.Contains(out, token[0][len("SIGSTORE_ID_TOKEN="):]) {
			w.t.Error("the token was printed")
		}
		// Again adds nothing.
		if out := w.krmcat(true, token, join([]string{"publish"}, args, keyless)...); strings.Contains(out, "pushed") {
			w.t.Errorf("publish %s again:\n%s", args[0], out)
		}
		if tree := w.krmcat(true, nil, "tree", args[1]); strings.Count(tree, "signature (") != 1 {
			w.t.Errorf("signed twice:\n%s", tree)
		}
		accept := join(identity(w.workflowID()), []string{"--trusted-root", "trusted_root.json", "--require-timestamps", "1", "--require-tlog", "1"})
		w.krmcat(true, nil, join([]string{"verify", "oci://" + args[1]}, accept)...)
		w.krmcat(false, nil, join([]string{"verify", "oci://" + args[1], "--trusted-root", "trusted_root.json"}, identity(w.mailID()))...)
		w.cosign("cosign3", true, join(flags("verify"), identity(w.workflowID()), []string{args[1]})...)
		w.cosign("cosign2", true, join(flags("verify", "--new-bundle-format"), identity(w.workflowID()), []string{args[1]})...)
		w.cosign("cosign3", true, join(flags("verify", "-a", "krmcat.dev/name="+map[string]string{fn: "Hello", list: "greetings"}[args[1]]), identity(w.workflowID()), []string{args[1]})...)
		w.cosign("cosign3", false, join(flags("verify", "-a", "krmcat.dev/name=Other"), identity(w.workflowID()), []string{args[1]})...)
	}

	// A test result, with the token from a file, into the first version of Rekor.
	w.write("token", w.mailToken())
	w.write("predicate.json", `{"result":"PASSED"}`)
	w.krmcat(true, nil, "attest", fn, "--type", "test-result", "--predicate", "predicate.json", "--keyless", "--identity-token", "token",
		"--fulcio-url", w.fulcio, "--rekor-url", w.rekor1, "--trusted-root", "trusted_root.json")
	out := w.krmcat(true, nil, join([]string{"verify-attestation", fn, "--type", "test-result", "--trusted-root", "trusted_root.json", "-o", "json"}, identity(w.mailID()))...)
	var attested []struct{ Predicate struct{ Result string } }
	if err := json.Unmarshal([]byte(out), &attested); err != nil || len(attested) != 1 || attested[0].Predicate.Result != "PASSED" {
		w.t.Errorf("got %v, %s", err, out)
	}
	w.cosign("cosign3", true, join([]string{"verify-attestation", "--trusted-root", "trusted_root.json", "--allow-insecure-registry", "--type", testResult}, identity(w.mailID()), []string{fn})...)
}
