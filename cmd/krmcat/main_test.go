package main

import (
	"crypto/subtle"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/krmcat/krmcat/registry/regtest"
	"github.com/krmcat/krmcat/runtime/fntest"
	"github.com/krmcat/krmcat/signing/signtest"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"krmcat": main,
		// A function that behaves as its configuration says.
		"testfn": func() { os.Exit(fntest.Function(os.Stdin, os.Stdout, os.Stderr)) },
	})
}

// TestScript runs the scripts in testdata/script, one file for each command.
// UPDATE=1 rewrites the expected output in them.
func TestScript(t *testing.T) { testscript.Run(t, scripts(t, "testdata/script", nil)) }

// scripts are the scripts of a folder, with more variables.
func scripts(t *testing.T, dir string, more map[string]string) testscript.Params {
	gocache := goEnv(t, "GOCACHE", "GOMODCACHE", "GOPROXY", "GOPATH")
	return testscript.Params{
		Dir:                 dir,
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		UpdateScripts:       os.Getenv("UPDATE") != "",
		Setup: func(env *testscript.Env) error {
			// Never the developer's own credentials, keys or cache.
			env.Setenv("HOME", env.WorkDir)
			// But Go's, so that scripts can build functions offline.
			for k, v := range gocache {
				env.Setenv(k, v)
			}
			for k, v := range more {
				env.Setenv(k, v)
			}
			return nil
		},
		Condition: condition,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"authregistry": func(ts *testscript.TestScript, neg bool, args []string) {
				cmdAuthRegistry(ts, neg, args, regtest.NewServer(t))
			},
			"push":     cmdPush,
			"exitcode": cmdExitCode,
			"sigstore": func(ts *testscript.TestScript, neg bool, args []string) {
				if neg || len(args) != 0 {
					ts.Fatalf("usage: sigstore")
				}
				cmdSigstore(ts, signtest.New(t))
			},
			"web":    cmdWeb,
			"await":  cmdAwait,
			"get":    cmdGet,
			"occupy": cmdOccupy,
			"bucket": cmdBucket,
			"registry": func(ts *testscript.TestScript, neg bool, args []string) {
				if neg || len(args) != 0 {
					ts.Fatalf("usage: registry")
				}
				ts.Setenv("REGISTRY", regtest.NewServer(t).Host)
			},
			"tamper": cmdTamper,
		},
	}
}

// goEnv reads settings of the go command.
func goEnv(t *testing.T, names ...string) map[string]string {
	t.Helper()
	out, err := exec.Command("go", append([]string{"env"}, names...)...).Output()
	if err != nil {
		t.Fatalf("go env: %v", err)
	}
	m := map[string]string{}
	for i, v := range strings.Split(strings.TrimSuffix(string(out), "\n"), "\n") {
		m[names[i]] = v
	}
	return m
}

// cmdWeb serves a folder over http and sets $WEB to its URL:
//
//	web DIR
func cmdWeb(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: web DIR")
	}
	srv := httptest.NewServer(http.FileServer(http.Dir(ts.MkAbs(args[0]))))
	ts.Defer(srv.Close)
	ts.Setenv("WEB", srv.URL)
}

// cmdAuthRegistry starts a registry that lets a user with a password in and
// nobody else, not even to read, and sets $REGISTRY:
//
//	authregistry USER PASSWORD
func cmdAuthRegistry(ts *testscript.TestScript, neg bool, args []string, reg *regtest.Server) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: authregistry USER PASSWORD")
	}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, password, _ := r.BasicAuth()
		if user != args[0] || subtle.ConstantTimeCompare([]byte(password), []byte(args[1])) != 1 {
			w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
			http.Error(w, `{"errors":[{"code":"UNAUTHORIZED","message":"who are you?"}]}`, http.StatusUnauthorized)
			return
		}
		reg.HTTP.Config.Handler.ServeHTTP(w, r)
	}))
	ts.Defer(srv.Close)
	ts.Setenv("REGISTRY", strings.TrimPrefix(srv.URL, "http://"))
}

// cmdExitCode runs a command that has to end with an exit code:
//
//	exitcode CODE COMMAND [ARG...]
func cmdExitCode(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exitcode CODE COMMAND [ARG...]")
	}
	got := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		exit, ok := errors.AsType[*exec.ExitError](err)
		if !ok {
			ts.Fatalf("%v", err)
		}
		got = exit.ExitCode()
	}
	if strconv.Itoa(got) != args[0] {
		ts.Fatalf("%s: exit code %d, want %s", strings.Join(args[1:], " "), got, args[0])
	}
}

// cmdSigstore makes a certificate authority and a timestamp authority known to
// a script: $FULCIO, $TSA, trusted_root.json and an identity token in
// token.txt, for releases@example.com by https://issuer.example.com.
func cmdSigstore(ts *testscript.TestScript, a *signtest.Authority) {
	ts.Setenv("FULCIO", a.Fulcio)
	ts.Setenv("TSA", a.Timestamp)
	token := signtest.Token("https://issuer.example.com", "releases@example.com")
	ts.Check(os.WriteFile(ts.MkAbs("trusted_root.json"), a.RootJSON, 0o644))
	ts.Check(os.WriteFile(ts.MkAbs("token.txt"), []byte(token+"\n"), 0o600))
}
