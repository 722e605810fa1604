package deploy

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/krmcat/krmcat/internal/tooltest"
)

// compose is what the test needs of a compose file.
type compose struct {
	Services map[string]struct {
		Command     []string
		Environment map[string]string
	}
}

func readCompose(t *testing.T) compose {
	t.Helper()
	data, err := os.ReadFile("compose.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var c compose
	if err := yaml.Unmarshal(data, &c); err != nil {
		t.Fatal(err)
	}
	return c
}

// variable is a variable of a compose file.
var variable = regexp.MustCompile(`\$\{(\w+)[^}]*\}`)

// composition is what compose.yaml says, on this machine: MinIO and PostgreSQL
// as programs, and servers of krmcat, with the file's arguments and variables.
type composition struct {
	t       *testing.T
	compose compose
	krmcat  string            // the program
	users   string            // the file of users, of whom ci has the password secret
	hosts   map[string]string // addresses for the names in the file
	pg      *postgres
}

func newComposition(t *testing.T) *composition {
	t.Helper()
	minio := tooltest.Path(t, "minio")
	c := &composition{t: t, compose: readCompose(t), hosts: map[string]string{"minio:9000": freeAddress(t), "postgres:5432": freeAddress(t)}}
	c.pg = startPostgres(t, c.hosts["postgres:5432"])
	start(t, c.environment("minio"), minio, append([]string{"--quiet"}, replace(c.compose.Services["minio"].Command, map[string]string{"/data": t.TempDir(), "server": "server --address " + c.hosts["minio:9000"]})...)...)
	await(t, "MinIO", func() bool {
		return status("http://"+c.hosts["minio:9000"]+"/minio/health/ready", "") == http.StatusOK
	})
	c.krmcat = filepath.Join(t.TempDir(), "krmcat")
	// As make build does, of which the cache then has most.
	build := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", c.krmcat, "../cmd/krmcat")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	c.users = filepath.Join(t.TempDir(), "users")
	if err := os.WriteFile(c.users, []byte("ci:$2a$06$.PRQY7TBvDXmyFKjzUNZv.dfcgM4BPw23QMzvHy6Sv9y7rVvUKCau\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	return c
}

// expand fills in variables and addresses.
func (c *composition) expand(s string) string {
	secrets := map[string]string{"S3_PASSWORD": "s3-password", "DB_PASSWORD": "db-password"}
	s = variable.ReplaceAllStringFunc(s, func(v string) string { return secrets[variable.FindStringSubmatch(v)[1]] })
	for from, to := range c.hosts {
		s = strings.ReplaceAll(s, from, to)
	}
	return s
}

func (c *composition) environment(service string) []string {
	env := []string{"PATH=" + os.Getenv("PATH"), "HOME=" + c.t.TempDir()}
	for k, v := range c.compose.Services[service].Environment {
		env = append(env, k+"="+c.expand(v))
	}
	return env
}

// serve starts a server as the file says, with more arguments, and returns its
// address once it is ready.
func (c *composition) serve(service string, more ...string) (string, *exec.Cmd) {
	c.t.Helper()
	begin := time.Now()
	defer func() { c.t.Logf("%s was ready after %s", service, time.Since(begin).Round(time.Millisecond)) }()
	file := filepath.Join(c.t.TempDir(), "addr")
	args := slices.Clone(c.compose.Services[service].Command)
	for i, a := range args {
		a = c.expand(a)
		// Nothing can be kept there: the containers have a root that cannot be
		// written, and no volume.
		a = strings.Replace(a, "--data=/data", "--data=/dev/null/none", 1)
		a = strings.Replace(a, "--listen=:8080", "--listen=127.0.0.1:0", 1)
		args[i] = strings.Replace(a, "/etc/krmcat/users", c.users, 1)
	}
	cmd := start(c.t, c.environment(service), c.krmcat, append(append(args, "--addr-file="+file), more...)...)
	var addr string
	await(c.t, service, func() bool {
		b, err := os.ReadFile(file)
		addr = strings.TrimSpace(string(b))
		return err == nil && status("http://"+addr+"/readyz", "") == http.StatusOK
	})
	return addr, cmd
}

// publish publishes a catalog through a server.
func (c *composition) publish(addr, tag, catalog string) error {
	home := c.t.TempDir()
	file := filepath.Join(home, "catalog.yaml")
	if err := os.WriteFile(file, []byte(catalog), 0o600); err != nil {
		return err
	}
	for _, args := range [][]string{{"login", addr, "-u", "ci", "--password-stdin"}, {"publish", file, addr + "/catalogs/tools:" + tag, "--sign=false"}} {
		cmd := exec.Command(c.krmcat, args...)
		cmd.Env = []string{"HOME=" + home, "PATH=" + os.Getenv("PATH")}
		cmd.Stdin = strings.NewReader("secret\n")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("krmcat %s: %w\n%s", args[0], err, out)
		}
	}
	return nil
}

// TestCompose starts what compose.yaml says, with its arguments and its
// variables, as programs on this machine: two servers, MinIO and PostgreSQL.
func TestCompose(t *testing.T) {
	t.Parallel()
	c := newComposition(t)
	a, stopping := c.serve("krmcat-a")
	b, _ := c.serve("krmcat-b")
	shows := func(addr, text string) func() bool {
		return func() bool { return status("http://"+addr+"/catalogs/tools/catalog.yaml", text) == http.StatusOK }
	}
	if err := c.publish(a, "v1.0.0", catalogOf("first words")); err != nil {
		t.Fatal(err)
	}
	await(t, "the catalog through the same server", shows(a, "first words"))
	await(t, "the catalog through the other server", shows(b, "first words"))
	if err := c.publish(b, "v1.0.0", catalogOf("other words")); err == nil {
		t.Error("a release was published twice")
	}

	// One server goes, the other one goes on; a new one has everything.
	if err := stopping.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := c.publish(b, "v1.1.0", catalogOf("second words")); err != nil {
		t.Fatal(err)
	}
	a, _ = c.serve("krmcat-a")
	await(t, "the catalog through a new server", shows(a, "second words"))
	if len(c.compose.Services["proxy"].Command) == 0 {
		t.Error("nothing is in front of the servers")
	}
}

func catalogOf(words string) string {
	return `apiVersion: config.kubernetes.io/v1alpha1
kind: KRMFunctionCatalog
metadata:
  name: tools
spec:
  krmFunctions:
  - group: example.com
    names:
      kind: Other
    description: ` + words + `
    publisher: acme
    versions:
    - name: v1
      schema:
        openAPIV3Schema:
          type: object
      idempotent: true
      runtime:
        starlark:
          uri: https://example.com/main.star
          sha256: 2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae
      usage: https://example.com/README.md
      examples: [https://example.com/example.md]
      license: Apache 2.0
`
}

// replace replaces whole arguments; spaces in the new one part arguments.
func replace(args []string, with map[string]string) []string {
	var out []string
	for _, a := range args {
		if to, ok := with[a]; ok {
			out = append(out, strings.Fields(to)...)
		} else {
			out = append(out, a)
		}
	}
	return out
}

// findPostgres finds a program of PostgreSQL where Debian has it, or on the
// path.
func findPostgres(name string) (string, error) {
	// Debian has wrappers of PostgreSQL's programs on the path.
	if found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/" + name); len(found) > 0 {
		return found[len(found)-1], nil
	}
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	return "", fmt.Errorf("%s is not installed", name)
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }() // for the program to take
	return l.Addr().String()
}

// start starts a program that ends with the test.
func start(t *testing.T, env []string, program string, args ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, program, args...)
	var out bytes.Buffer
	cmd.Env, cmd.Stdout, cmd.Stderr = env, &out, &out
	if err := cmd.Start(); err != nil {
		cancel()
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		_ = cmd.Wait() // it was killed
		if t.Failed() {
			t.Logf("%s:\n%s", filepath.Base(program), &out)
		}
	})
	return cmd
}

// startPostgres starts a cluster of its own with the user and the database
// krmcat, which asks for the password.
func startPostgres(t *testing.T, address string) *postgres {
	t.Helper()
	programs := map[string]string{"initdb": "", "postgres": "", "createdb": ""}
	for name := range maps.Clone(programs) {
		path, err := findPostgres(name)
		if err == nil {
			path, err = filepath.EvalSymlinks(path)
		}
		if err != nil {
			tooltest.Lacking(t, err.Error())
		}
		programs[name] = path
	}
	dir, err := os.MkdirTemp("", "krmcat-pg")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) }) // in the system's folder for such things
	password := filepath.Join(dir, "password")
	if err := os.WriteFile(password, []byte("db-password\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	attr := &syscall.SysProcAttr{}
	if os.Getuid() == 0 { // which PostgreSQL refuses to be
		u, err := user.Lookup("nobody")
		if err != nil {
			t.Fatal(err)
		}
		uid, _ := strconv.Atoi(u.Uid) // a number on Linux
		gid, _ := strconv.Atoi(u.Gid)
		for _, f := range []string{dir, password} {
			if err := os.Chown(f, uid, gid); err != nil {
				t.Fatal(err)
			}
		}
		attr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)} //nolint:gosec // of the system
	}
	data := filepath.Join(dir, "data")
	initdb := exec.Command(programs["initdb"], "-D", data, "-A", "scram-sha-256", "--pwfile", password, "-U", "krmcat", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync")
	initdb.Dir, initdb.SysProcAttr = dir, attr
	if out, err := initdb.CombinedOutput(); err != nil {
		t.Fatalf("initdb: %v\n%s", err, out)
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	p := &postgres{t: t, program: programs["postgres"], createdb: programs["createdb"], dir: dir, data: data, host: host, port: port, attr: attr}
	p.start()
	t.Cleanup(p.stop)
	return p
}

// postgres is a server that can be stopped and started.
type postgres struct {
	t                 *testing.T
	program, createdb string
	dir, data         string
	host, port        string
	attr              *syscall.SysProcAttr
	cmd               *exec.Cmd
}

// start starts the server and waits until it answers.
func (p *postgres) start() {
	p.t.Helper()
	p.cmd = exec.Command(p.program, "-D", p.data, "-k", p.dir, "-p", p.port, "-c", "listen_addresses="+p.host, "-c", "fsync=off") // it loses nothing when it is killed
	p.cmd.Dir, p.cmd.SysProcAttr = p.dir, p.attr
	if err := p.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	await(p.t, "PostgreSQL", func() bool {
		createdb := exec.Command(p.createdb, "-h", p.host, "-p", p.port, "-U", "krmcat", "-w", "krmcat")
		createdb.Env = []string{"PGPASSWORD=db-password"}
		out, err := createdb.CombinedOutput()
		return err == nil || strings.Contains(string(out), "already exists")
	})
}

// stop ends the server at once, as if it crashed: the next start recovers.
func (p *postgres) stop() {
	_ = p.cmd.Process.Signal(syscall.SIGQUIT) // gone already, perhaps
	_ = p.cmd.Wait()                          // likewise
}

// status is the status of a page; 0 if there is none, or it lacks a text.
func status(url, text string) int {
	client := &http.Client{Timeout: 5 * time.Second}
	resp, err := client.Get(url)
	if err != nil {
		return 0
	}
	defer func() { _ = resp.Body.Close() }() // only read
	b, err := io.ReadAll(resp.Body)
	if err != nil || !strings.Contains(string(b), text) {
		return 0
	}
	return resp.StatusCode
}

func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(90 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("%s: waited in vain", what)
		}
		time.Sleep(50 * time.Millisecond)
	}
}
