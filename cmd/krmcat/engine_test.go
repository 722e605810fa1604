package main

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/krmcat/krmcat/internal/tooltest"
	"github.com/krmcat/krmcat/runtime/fntest"
)

// TestEngines runs the scripts in testdata/engine with each container engine,
// in $KRM_FN_RUNTIME; $TESTFN is the test function for images, and commands
// of the engine itself find its daemon.
func TestEngines(t *testing.T) {
	t.Cleanup(fntest.Cleanup)
	for _, engine := range []string{"docker", "podman"} {
		t.Run(engine, func(t *testing.T) {
			t.Parallel()
			env := map[string]string{"KRM_FN_RUNTIME": engine, "CGO_ENABLED": "0"}
			if _, err := exec.LookPath(engine); err != nil {
				tooltest.Lacking(t, engine+" is not installed")
			}
			if engine == "docker" {
				d, err := tooltest.StartDocker()
				if err != nil {
					tooltest.Lacking(t, "no docker daemon: "+err.Error())
				}
				t.Cleanup(d.Stop)
				env["DOCKER_HOST"] = d.Host
			} else {
				t.Cleanup(func() { removeImages(t) })
			}
			env["TESTFN"] = fntest.Build(t)
			testscript.Run(t, scripts(t, "testdata/engine", env))
		})
	}
}

// removeImages removes from podman what the scripts have pulled from their
// registries.
func removeImages(t *testing.T) {
	out, err := exec.Command("podman", "images", "--all", "--format", "{{.ID}} {{.Repository}}").Output()
	if err != nil {
		t.Errorf("podman images: %v", err)
	}
	for line := range strings.Lines(string(out)) {
		id, repository, _ := strings.Cut(strings.TrimSpace(line), " ")
		if strings.HasPrefix(repository, "127.0.0.1:") && strings.Contains(repository, "/acme/") {
			_ = exec.Command("podman", "rmi", "--force", id).Run() // one image may have had several names
		}
	}
}

// cmdTamper starts a registry that has what $REGISTRY has, but gives changed
// content for the digests of manifests, and sets $TAMPERED:
//
//	tamper
func cmdTamper(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 0 {
		ts.Fatalf("usage: tamper")
	}
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: ts.Getenv("REGISTRY")})
	proxy.ModifyResponse = func(r *http.Response) error {
		if r.Request.Method != http.MethodGet || !strings.Contains(r.Request.URL.Path, "/manifests/") {
			return nil
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return err
		}
		body = bytes.Replace(body, []byte("{"), []byte("{ "), 1)
		r.Body = io.NopCloser(bytes.NewReader(body))
		r.Header.Set("Content-Length", strconv.Itoa(len(body)))
		r.ContentLength = int64(len(body))
		return nil
	}
	srv := httptest.NewServer(proxy)
	ts.Defer(srv.Close)
	ts.Setenv("TAMPERED", strings.TrimPrefix(srv.URL, "http://"))
}
