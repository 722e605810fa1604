package containerfn

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	"github.com/spf13/pflag"

	"github.com/krmcat/krmcat/catalog"
	"github.com/krmcat/krmcat/runtime"
	"github.com/krmcat/krmcat/runtime/fntest"
)

// Where nerdctl is installed, all tests of engines run with it. Debian has no
// package of it, so here its command line is tested instead: a program that
// takes what nerdctl's command reference documents, refuses everything else as
// nerdctl does, and keeps what it was given. It runs the test function as a
// process, not in a container.

// nerdctlEnv makes the test program nerdctl; it is the folder with its state.
const nerdctlEnv = "KRMCAT_TEST_NERDCTL"

// nerdctl is the program.
func nerdctl(dir string, args []string) int {
	err := runNerdctl(dir, args)
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode()
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "time=%q level=fatal msg=%q\n", "2026-01-02T03:04:05Z", err.Error())
		return 1
	}
	return 0
}

func runNerdctl(dir string, args []string) error {
	f, err := os.OpenFile(filepath.Join(dir, "calls"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	if err := errors.Join(json.NewEncoder(f).Encode(args), f.Close()); err != nil {
		return err
	}
	if len(args) == 0 {
		return errors.New("no command")
	}
	command, args := args[0], args[1:]
	if command == "image" && len(args) > 0 {
		command, args = "image "+args[0], args[1:]
	}
	fs := pflag.NewFlagSet(command, pflag.ContinueOnError)
	fs.SetOutput(io.Discard)
	global := []string{"insecure-registry", "debug"}
	flags := nerdctlFlags[command]
	if flags == nil {
		return fmt.Errorf("unknown subcommand %q for %q", command, "nerdctl")
	}
	for _, name := range slices.Concat(flags.switches, global) {
		fs.Bool(name, false, "")
	}
	values := map[string]*[]string{}
	for name := range flags.values {
		values[name] = fs.StringArray(name, nil, "")
	}
	fs.SetInterspersed(command != "run")
	if err := fs.Parse(args); err != nil {
		return err
	}
	for name, given := range values {
		for _, v := range *given {
			if allowed := flags.values[name]; allowed != nil && !allowed(v) {
				return fmt.Errorf("invalid value %q for flag --%s", v, name)
			}
		}
	}
	if fs.NArg() != 1 {
		return fmt.Errorf("%s: %d arguments", command, fs.NArg())
	}
	arg := fs.Arg(0)
	pulled := filepath.Join(dir, "pulled")
	switch command {
	case "pull":
		if strings.Contains(arg, "/none@") {
			return fmt.Errorf("failed to resolve reference %q: %s: not found", arg, arg)
		}
		if strings.Contains(arg, "/private@") {
			return fmt.Errorf("failed to resolve reference %q: unexpected status from HEAD request to http://%s: 401 Unauthorized", arg, arg)
		}
		if strings.Contains(arg, "/elsewhere@") {
			return errors.New("no match for platform in manifest " + arg)
		}
		return os.WriteFile(pulled, []byte(arg), 0o644)
	case "image inspect":
		have, err := os.ReadFile(pulled)
		if err != nil || !strings.HasPrefix(string(have), arg) {
			return fmt.Errorf("1 errors: [no such image: %s]", arg)
		}
		fmt.Println(string(have))
		return nil
	case "rm":
		fmt.Println(arg)
		return nil
	}
	have, err := os.ReadFile(pulled)
	_, id, _ := strings.Cut(string(have), "@")
	if err != nil || arg != string(have) && arg != id {
		return fmt.Errorf("image not available: %q", arg)
	}
	cmd := exec.Command(os.Getenv(nerdctlEnv + "_FN"))
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = *values["env"]
	return cmd.Run()
}

// flagsOf are the flags of a command: those without a value, and those with
// one, and which values are allowed.
type flagsOf struct {
	switches []string
	values   map[string]func(string) bool
}

func oneOf(vs ...string) func(string) bool {
	return func(v string) bool { return slices.Contains(vs, v) }
}

// nerdctlFlags are from docs/command-reference.md of containerd/nerdctl, for
// all of its releases since 1.0; not those that are Docker's only.
var nerdctlFlags = map[string]*flagsOf{
	"pull": {switches: []string{"quiet", "all-platforms"}, values: map[string]func(string) bool{
		"platform": nil, "unpack": oneOf("auto", "true", "false"), "verify": oneOf("none", "cosign", "notation"),
	}},
	"image inspect": {values: map[string]func(string) bool{"mode": oneOf("dockercompat", "native"), "format": nil, "platform": nil}},
	"rm":            {switches: []string{"force", "volumes"}},
	"run": {
		switches: []string{"interactive", "tty", "sig-proxy", "detach", "rm", "init", "privileged", "read-only", "rootfs", "oom-kill-disable"},
		values: map[string]func(string) bool{
			"attach": nil, "restart": nil, "pull": oneOf("always", "missing", "never"), "pid": nil, "uts": nil, "stop-signal": nil, "stop-timeout": nil,
			"platform": nil, "init-binary": nil, "network": oneOf("bridge", "none"), "publish": nil, "dns": nil, "hostname": nil, "add-host": nil,
			"cpus": nil, "cpu-quota": nil, "cpu-period": nil, "cpu-shares": nil, "cpuset-cpus": nil, "cpuset-mems": nil,
			"memory": nil, "memory-reservation": nil, "memory-swap": nil, "memory-swappiness": nil, "oom-score-adj": nil, "pids-limit": nil,
			"cgroup-conf": nil, "cgroupns": oneOf("host", "private"), "cgroup-parent": nil, "device": nil, "user": nil, "umask": nil, "group-add": nil,
			"security-opt": func(v string) bool {
				return v == "no-new-privileges" || strings.HasPrefix(v, "seccomp=") || strings.HasPrefix(v, "apparmor=")
			},
			"cap-add": nil, "cap-drop": nil, "runtime": nil, "sysctl": nil,
			"volume": func(v string) bool {
				parts := strings.Split(v, ":")
				return len(parts) == 3 && !slices.ContainsFunc(strings.Split(parts[2], ","), func(o string) bool {
					return !slices.Contains([]string{"rw", "ro", "rro", "shared", "slave", "private", "rshared", "rslave", "rprivate", "bind", "rbind"}, o)
				})
			},
			"tmpfs": nil, "mount": nil, "entrypoint": nil, "workdir": nil, "env": nil, "env-file": nil, "name": nil, "label": nil, "label-file": nil,
			"annotation": nil, "cidfile": nil, "pidfile": nil,
			"log-driver": oneOf("json-file", "journald", "fluentd", "syslog"),
			"log-opt": func(v string) bool {
				return strings.HasPrefix(v, "max-size=") || strings.HasPrefix(v, "max-file=")
			},
			"ipc": nil, "shm-size": nil, "gpus": nil, "ulimit": nil, "verify": nil, "ipfs-address": nil,
		},
	},
}

// newNerdctl is an executor whose nerdctl is [nerdctl], and what it was
// called with.
func newNerdctl(t *testing.T) (x *Executor, calls func() [][]string) {
	t.Helper()
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(self, filepath.Join(dir, "nerdctl")); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	x = &Executor{Engine: "nerdctl", Env: []string{"PATH=" + dir, "CONTAINERD_ADDRESS=" + filepath.Join(dir, "s"), nerdctlEnv + "=" + dir, nerdctlEnv + "_FN=" + fntest.Build(t)}}
	return x, func() [][]string {
		t.Helper()
		data, err := os.ReadFile(filepath.Join(dir, "calls"))
		if err != nil {
			t.Fatal(err)
		}
		var all [][]string
		for line := range bytes.Lines(data) {
			var args []string
			if err := json.Unmarshal(line, &args); err != nil {
				t.Fatal(err)
			}
			all = append(all, args)
		}
		return all
	}
}

// The whole of a run with nerdctl: missing, pulled, run; killed; its errors.
func TestNerdctl(t *testing.T) {
	x, calls := newNerdctl(t)
	d := digest.FromString("image")
	image := "127.0.0.1:5000/krmcat/testfn@" + d.String()
	source := t.TempDir()
	rt := catalog.Container{Image: "127.0.0.1:5000/krmcat/testfn:v1", Digest: d, RequireNetwork: true, RequireStorageMount: true}
	g := runtime.Grants{Network: true, StorageMount: true, Env: []string{"A=b,c"}, Mounts: []runtime.Mount{{Source: source, Target: "/data"}, {Source: source, Target: "/out", Writable: true}}}
	run := func(rt catalog.Container, g runtime.Grants, do string) (string, string, error) {
		fn, err := x.Prepare(t.Context(), catalog.Runtime{Container: &rt}, g, runtime.Limits{})
		if err != nil {
			return "", "", err
		}
		var out, errs bytes.Buffer
		err = fn.Run(t.Context(), runtime.Stdio{Stdin: bytes.NewReader(fntest.List(do)), Stdout: &out, Stderr: &errs, FunctionConfig: fntest.Config(do)})
		return out.String(), errs.String(), err
	}
	out, said, err := run(rt, g, "copy")
	if err != nil || out != string(fntest.List("copy")) || said != "" {
		t.Fatalf("got %v, %d bytes, %q", err, len(out), said)
	}
	got := calls()
	if len(got) != 3 || got[0][0] != "run" || got[2][0] != "run" {
		t.Fatalf("calls: %q", got)
	}
	if want := []string{"pull", "--quiet", "--insecure-registry", image}; !slices.Equal(got[1], want) {
		t.Errorf("got %q, want %q", got[1], want)
	}
	args := strings.Join(got[2], " ")
	for _, want := range []string{"run --rm --interactive --name krmcat-", " --pull never ", " --read-only ", " --tmpfs /tmp:rw,noexec,nosuid,nodev,size=64m,mode=1777 ",
		" --cap-drop ALL ", " --security-opt no-new-privileges ", " --memory 2147483648 --memory-swap 2147483648 ", " --pids-limit 256 ", " --network bridge ",
		" --user 65534:65534 ", " --volume " + source + ":/data:ro ", " --volume " + source + ":/out:rw ", ":/local:ro ", " --env A=b,c "} {
		if !strings.Contains(args, want) {
			t.Errorf("no %q in %s", want, args)
		}
	}
	if !strings.HasSuffix(args, " "+image) {
		t.Errorf("the image is not the last argument: %s", args)
	}
	// What the function says and how it ends comes through.
	if _, said, err := run(rt, g, "fail"); !isFunctionError(err, 3) || !strings.Contains(said, "frobnicator") {
		t.Errorf("got %v, %q", err, said)
	}
	if _, _, err := run(rt, g, "missing-file"); !isFunctionError(err, 1) {
		t.Errorf("exit code 1 of the function: %v", err)
	}
	for image, is := range map[string]error{"none": os.ErrNotExist, "private": runtime.ErrDenied, "elsewhere": runtime.ErrUnavailable} {
		if _, said, err := run(catalog.Container{Image: "example.com/" + image, Digest: d}, runtime.Grants{}, "copy"); !errors.Is(err, is) || said != "" {
			t.Errorf("%s: got %v, want %v; %q", image, err, is, said)
		}
	}
	// An image of its own storage is run by the digest of its manifest.
	fn, err := x.Local(t.Context(), catalog.Container{Image: "127.0.0.1:5000/krmcat/testfn"}, runtime.Grants{}, runtime.Limits{})
	if err == nil {
		err = fn.Run(t.Context(), runtime.Stdio{Stdin: bytes.NewReader(fntest.List("copy")), Stdout: io.Discard})
	}
	if got := calls(); err != nil || got[len(got)-1][len(got[len(got)-1])-1] != d.String() {
		t.Errorf("local: %v, %q", err, got[len(got)-1])
	}
	if _, err := x.Local(t.Context(), catalog.Container{Image: "localhost/none"}, runtime.Grants{}, runtime.Limits{}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("local, missing: %v", err)
	}
	x.Pull = PullNever
	if _, _, err := run(catalog.Container{Image: "example.com/other", Digest: d}, runtime.Grants{}, "copy"); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "pulling is off") {
		t.Errorf("never pulled: %v", err)
	}
	// What is killed is removed.
	l := runtime.Limits{MaxOutput: 1 << 20}
	x.Pull = ""
	if err := prepare(t, x, rt, g, l).Run(t.Context(), runtime.Stdio{Stdin: bytes.NewReader(fntest.List("flood")), Stdout: io.Discard}); !errors.Is(err, runtime.ErrOutputLimit) {
		t.Errorf("flood: %v", err)
	}
	all := calls()
	last, before := all[len(all)-1], all[len(all)-2]
	if len(last) != 3 || last[0] != "rm" || last[1] != "--force" || last[2] != before[slices.Index(before, "--name")+1] {
		t.Errorf("after %q: %q", before, last)
	}
}

// A flag that nerdctl has not got is found.
func TestNerdctlUnknownFlag(t *testing.T) {
	x, _ := newNerdctl(t)
	e, err := x.engine()
	if err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"run", "--timeout", "5", "a"}, {"run", "--log-driver", "none", "a"}, {"run", "--volume", "/a:/b:ro,Z", "a"}, {"rm", "--time", "0", "a"}} {
		if _, stderr, err := x.call(t.Context(), e, inspectTime, args...); err == nil || !e.speaks(firstLine(stderr)) {
			t.Errorf("%q: got %v, %s", args, err, stderr)
		}
	}
}

func isFunctionError(err error, code int) bool {
	fe, ok := errors.AsType[*runtime.FunctionError](err)
	return ok && fe.ExitCode == code
}
