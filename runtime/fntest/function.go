// Package fntest has a function that behaves as a test wants it to, and the
// suite that all executors pass.
package fntest

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Config is a functionConfig that tells the test function what to do.
func Config(do string) []byte {
	return []byte("apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: test\ndata:\n  do: " + do + "\n")
}

// Function is the test function; call it from main. It reads a ResourceList,
// does what its configuration says under data.do, and returns the exit code.
// Well-behaved:
//
//	copy       writes what it read (the default)
//	annotate   adds an annotation to each item, keeping all lines
//	create     adds a ConfigMap named made
//	delete     removes all items
//	strip      removes all comments
//	validate   an information and no errors
//	move       gives all items the path under data.to
//	grow       adds an annotation of 100 kB to each item
//
// Failing in the ways that functions fail:
//
//	fail, silent, kill, missing-file, needs-root, needs-network
//	invalid (an error in results), said-twice (also on standard error),
//	error-exit-0, bad-results
//	garbage, logs, half, empty, bare, other-kind, two, utf8, no-items
//	hang, flood, flood-stderr, memory
//	escape, absolute, collide, internal, drop-internal
//
// Starting processes that nobody waits for, with a token by which [Running]
// finds them:
//
//	fork TOKEN            a child, and waits
//	bomb TOKEN            children until the system refuses, or there are 100
//	daemon TOKEN          a grandchild in a session of its own; then it copies
//	daemon-holds TOKEN    the same, which keeps the streams open
//	daemon-hang TOKEN     the same, and waits
//
// Doing what functions should not, which only tests of conformance find:
//
//	always-v1, reformat, backwards, random, crash-empty, known-only,
//	first-ten, needs-path
//
// And telling what it can see on standard error: env, fill (its /tmp), local,
// network, dial ADDRESS, pid, write, user.
func Function(stdin io.Reader, stdout, stderr io.Writer) int {
	if code, ok := child(); ok {
		return code
	}
	input, err := io.ReadAll(stdin)
	if err != nil {
		fmt.Fprintln(stderr, err)
		return 1
	}
	// Resources may have such a field, too.
	config := input[max(bytes.Index(input, []byte("\nfunctionConfig:")), 0):]
	do, token, _ := strings.Cut(word(config, "do: "), " ")
	list := rest(input)
	switch do {
	case "", "copy":
		_, _ = stdout.Write(input)
	case "annotate":
		_, _ = stdout.Write(bytes.ReplaceAll(list, []byte("\n    annotations:\n"), []byte("\n    annotations:\n      example.com/seen: 'yes'\n")))
	case "create":
		_, _ = stdout.Write(add(list, "- apiVersion: v1\n  kind: ConfigMap\n  metadata:\n    name: made\n  data:\n    a: b\n"))
	case "delete":
		fmt.Fprint(stdout, "apiVersion: config.kubernetes.io/v1\nkind: ResourceList\nitems: []\n")
	case "strip":
		for line := range bytes.Lines(list) {
			if i := bytes.IndexByte(line, '#'); i >= 0 {
				line = append(bytes.TrimRight(line[:i:i], " "), '\n')
				if len(line) == 1 {
					continue
				}
			}
			_, _ = stdout.Write(line)
		}
	case "validate":
		_, _ = stdout.Write(append(list, "results:\n- message: all is well\n  severity: info\n"...))
	case "grow":
		_, _ = stdout.Write(bytes.ReplaceAll(list, []byte("\n    annotations:\n"), []byte("\n    annotations:\n      example.com/long: "+strings.Repeat("x", 100_000)+"\n")))
	case "move":
		_, _ = stdout.Write(pathed(list, word(config, "to: ")))
	case "silent":
		return 3
	case "needs-root":
		if _, err := os.ReadFile("/etc/shadow"); err != nil {
			fmt.Fprintln(stderr, err)
			return 1
		}
		_, _ = stdout.Write(list)
	case "needs-network":
		// Connecting with UDP sends nothing, but it needs a route.
		conn, err := net.Dial("udp", "192.0.2.1:53")
		if err != nil {
			fmt.Fprintln(stderr, err)
			return 1
		}
		_ = conn.Close()
		_, _ = stdout.Write(list)
	case "bad-results":
		_, _ = stdout.Write(append(list, "results:\n- severity: info\n  field: {path: spec.replicas}\n"...))
	case "said-twice":
		_, _ = stdout.Write(append(list, "results:\n- message: replicas must be odd\n  severity: error\n  resourceRef: {apiVersion: apps/v1, kind: Deployment, name: web}\n  field: {path: spec.replicas}\n"...))
		fmt.Fprint(stderr, "looking at 1 resource\n[error] apps/v1/Deployment web spec.replicas: replicas must be odd\ngiving up\n")
		return 1
	case "always-v1":
		_, _ = stdout.Write(bytes.Replace(bytes.Replace(list, []byte("/v1beta1\n"), []byte("/v1\n"), 1), []byte("/v1alpha1\n"), []byte("/v1\n"), 1))
	case "reformat":
		_, _ = stdout.Write(bytes.ReplaceAll(list, []byte("    name: web\n"), []byte("    name:   \"web\"\n")))
	case "backwards":
		_, _ = stdout.Write(backwards(list))
	case "random":
		fmt.Fprintf(stdout, "%s# %d\n", list, time.Now().UnixNano())
	case "crash-empty", "needs-path":
		if !bytes.Contains(list, []byte("items:")) && do == "crash-empty" || do == "needs-path" && !bytes.Contains(list, []byte("config.kubernetes.io/path")) {
			fmt.Fprintln(stderr, "panic: runtime error: index out of range [0] with length 0")
			return 2
		}
		_, _ = stdout.Write(list)
	case "known-only":
		_, _ = stdout.Write(keep(list, func(i int, item []byte) bool { return bytes.Contains(item, []byte("kind: Deployment\n")) }))
	case "first-ten":
		_, _ = stdout.Write(keep(list, func(i int, _ []byte) bool { return i < 10 }))
	case "drop-internal":
		_, _ = stdout.Write(bytes.ReplaceAll(list, []byte("      internal.config.kubernetes.io/other: keep\n"), nil))
	case "fail":
		fmt.Fprintln(stderr, "cannot do it: the frobnicator is missing")
		return 3
	case "kill":
		return kill()
	case "invalid", "error-exit-0":
		_, _ = stdout.Write(append(list, "results:\n- message: replicas must be odd\n  severity: error\n  resourceRef: {apiVersion: v1, kind: A, name: a}\n  field: {path: spec.replicas, currentValue: 2}\n  file: {path: a.yaml}\n"...))
		if do == "invalid" {
			return 1
		}
	case "missing-file":
		if _, err := os.ReadFile("/nonexistent/settings.json"); err != nil {
			fmt.Fprintln(stderr, err)
			return 1
		}
	case "garbage":
		fmt.Fprintln(stdout, "<html>{{ not yaml: [}}")
	case "logs":
		fmt.Fprintln(stdout, "INFO starting")
		_, _ = stdout.Write(list)
	case "half":
		_, _ = stdout.Write(list[:len(list)*2/3])
		fmt.Fprint(stdout, "\n  x: \"unfinished")
	case "empty":
	case "bare":
		fmt.Fprint(stdout, "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: bare\n")
	case "other-kind":
		fmt.Fprint(stdout, "apiVersion: v1\nkind: List\nitems: []\n")
	case "two":
		_, _ = stdout.Write(list)
		fmt.Fprint(stdout, "---\n")
		_, _ = stdout.Write(list)
	case "utf8":
		_, _ = stdout.Write(bytes.ReplaceAll(list, []byte("kind: "), []byte("kind: \xff\xfe")))
	case "no-items":
		fmt.Fprint(stdout, "apiVersion: config.kubernetes.io/v1\nkind: ResourceList\n")
	case "hang":
		fmt.Fprintln(stderr, "waiting for nothing")
		time.Sleep(10 * time.Minute)
	case "fork":
		if err := start(token, true, "sleep"); err != nil {
			fmt.Fprintln(stderr, err)
			return 1
		}
		fmt.Fprintln(stderr, "started a child")
		time.Sleep(10 * time.Minute)
	case "bomb":
		for i := range 100 {
			if err := start(token, false, "sleep"); err != nil {
				fmt.Fprintf(stderr, "child %d: %v\n", i, err)
				return 1
			}
		}
	case "daemon", "daemon-holds", "daemon-hang":
		if err := start(token, do != "daemon", "daemon"); err != nil {
			fmt.Fprintln(stderr, err)
			return 1
		}
		// The child in between has ended when it has started the other.
		fmt.Fprintln(stderr, "started a daemon")
		if do == "daemon-hang" {
			time.Sleep(10 * time.Minute)
		}
		_, _ = stdout.Write(list)
	case "flood", "flood-stderr":
		w := stdout
		if do != "flood" {
			w = stderr
		}
		block := bytes.Repeat([]byte("never enough of this line\n"), 4096)
		for range 10 << 30 / len(block) {
			if _, err := w.Write(block); err != nil {
				return 1
			}
		}
	case "memory":
		var hold [][]byte
		for range 1 << 16 {
			b := make([]byte, 1<<20)
			for i := 0; i < len(b); i += 4096 {
				b[i] = 1
			}
			hold = append(hold, b)
		}
		fmt.Fprintln(stderr, len(hold))
	case "escape":
		_, _ = stdout.Write(pathed(list, "../../etc/passwd"))
	case "absolute":
		_, _ = stdout.Write(pathed(list, "/etc/passwd"))
	case "collide":
		item := "- apiVersion: v1\n  kind: ConfigMap\n  metadata:\n    name: %s\n    annotations:\n      internal.config.kubernetes.io/path: same.yaml\n      internal.config.kubernetes.io/index: '0'\n"
		_, _ = stdout.Write(add(list, fmt.Sprintf(item, "one")+fmt.Sprintf(item, "two")))
	case "internal":
		_, _ = stdout.Write(bytes.ReplaceAll(list, []byte("internal.config.kubernetes.io/other: keep"), []byte("internal.config.kubernetes.io/other: changed")))
	case "env":
		fmt.Fprintln(stderr, strings.Join(os.Environ(), "\n"))
		_, _ = stdout.Write(list)
	case "local":
		b, err := os.ReadFile("/local/functionConfig.yaml")
		fmt.Fprintf(stderr, "%s%v\n", b, err)
		err = os.WriteFile("/local/new", nil, 0o644)
		fmt.Fprintln(stderr, "write:", err)
		_, _ = stdout.Write(list)
	case "pid":
		fmt.Fprintf(stderr, "pid: %d\n", os.Getpid())
		_, _ = stdout.Write(list)
	case "user":
		fmt.Fprintf(stderr, "uid %d gid %d\n", os.Getuid(), os.Getgid())
		b, _ := os.ReadFile("/proc/self/status")
		for _, field := range []string{"CapEff", "CapBnd", "NoNewPrivs"} {
			fmt.Fprintln(stderr, field, word(b, field+":\t"))
		}
		_, _ = stdout.Write(list)
	case "write":
		for _, p := range []string{"/x", "/tmp/x", "x"} {
			fmt.Fprintln(stderr, p, os.WriteFile(p, []byte("x"), 0o644))
		}
		_, _ = stdout.Write(list)
	case "fill":
		f, err := os.Create("/tmp/full")
		for n := 0; err == nil; n++ {
			if _, err = f.Write(make([]byte, 1<<20)); err != nil {
				fmt.Fprintln(stderr, "megabytes:", n)
			}
		}
		fmt.Fprintln(stderr, err)
		return 1
	case "network":
		ns, _ := os.Readlink("/proc/self/ns/net")
		fmt.Fprintln(stderr, "namespace:", ns)
		ifs, err := net.Interfaces()
		fmt.Fprintln(stderr, "interfaces:", len(ifs), err)
		for _, i := range ifs {
			addrs, _ := i.Addrs()
			fmt.Fprintln(stderr, i.Name, addrs)
		}
		_, _ = stdout.Write(list)
	case "dial":
		for _, addr := range append([]string{token}, gateways(token)...) {
			conn, err := net.DialTimeout("tcp", addr, 5*time.Second)
			if err == nil {
				_ = conn.Close()
			}
			fmt.Fprintln(stderr, "dial", addr, err)
		}
		_, _ = stdout.Write(list)
	default:
		fmt.Fprintln(stderr, "unknown: do "+strconv.Quote(do))
		return 1
	}
	return 0
}

// start starts this program again as a process of the given kind; a daemon has
// started its child, and ended, when start returns.
func start(token string, holds bool, kind string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := &exec.Cmd{Path: self, Args: []string{"testfn", kind, token}}
	if holds {
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	}
	if kind == "daemon" {
		detach(cmd)
		return cmd.Run()
	}
	return cmd.Start()
}

// gateways are the first addresses of the networks that this process is in,
// where the machine that it runs on usually is, with the port of addr.
func gateways(addr string) []string {
	_, port, _ := net.SplitHostPort(addr)
	all, _ := net.InterfaceAddrs()
	var out []string
	for _, a := range all {
		if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil && !n.IP.IsLoopback() {
			ip := n.IP.Mask(n.Mask)
			ip[3]++
			out = append(out, net.JoinHostPort(ip.String(), port))
		}
	}
	return out
}

// child is what this program does when it is started by [start].
func child() (code int, ok bool) {
	if len(os.Args) != 3 {
		return 0, false
	}
	switch kind, token := os.Args[1], os.Args[2]; kind {
	case "daemon":
		self, err := os.Executable()
		if err != nil {
			return 1, true
		}
		cmd := &exec.Cmd{Path: self, Args: []string{"testfn", "sleep", token}, Stdout: os.Stdout, Stderr: os.Stderr}
		detach(cmd)
		if err := cmd.Start(); err != nil {
			return 1, true
		}
		return 0, true
	case "sleep":
		time.Sleep(10 * time.Minute)
		return 0, true
	}
	return 0, false
}

// word is the rest of the first line that starts with prefix, after spaces.
func word(b []byte, prefix string) string {
	for line := range bytes.Lines(b) {
		if r, ok := bytes.CutPrefix(bytes.TrimLeft(line, " "), []byte(prefix)); ok {
			return string(bytes.TrimSpace(r))
		}
	}
	return ""
}

// rest is the list without its functionConfig, which comes last.
func rest(input []byte) []byte {
	if i := bytes.Index(input, []byte("\nfunctionConfig:\n")); i >= 0 {
		return input[: i+1 : i+1]
	}
	return input
}

// add puts items at the end.
func add(list []byte, items string) []byte {
	list = bytes.Replace(list, []byte("\nitems: []\n"), []byte("\nitems:\n"), 1)
	return append(list, items...)
}

// split takes the items apart; they start in column 0, as krmcat writes them.
func split(list []byte) (head []byte, items [][]byte) {
	rest := list
	if i := bytes.Index(rest, []byte("\nitems:\n")); i >= 0 {
		head, rest = rest[:i+len("\nitems:\n")], rest[i+len("\nitems:\n"):]
	}
	for line := range bytes.Lines(rest) {
		if bytes.HasPrefix(line, []byte("- ")) || len(items) == 0 {
			items = append(items, nil)
		}
		items[len(items)-1] = append(items[len(items)-1], line...)
	}
	return head, items
}

func backwards(list []byte) []byte {
	head, items := split(list)
	slices.Reverse(items)
	return append(slices.Clone(head), bytes.Join(items, nil)...)
}

func keep(list []byte, want func(int, []byte) bool) []byte {
	head, items := split(list)
	out := slices.Clone(head)
	for i, it := range items {
		if want(i, it) {
			out = append(out, it...)
		}
	}
	if len(out) == len(head) {
		return bytes.Replace(out, []byte("\nitems:\n"), []byte("\nitems: []\n"), 1)
	}
	return out
}

// pathed changes the paths of all items.
func pathed(list []byte, to string) []byte {
	var out []byte
	for line := range bytes.Lines(list) {
		if i := bytes.Index(line, []byte("config.kubernetes.io/path: ")); i >= 0 {
			line = append(line[:i:i], "config.kubernetes.io/path: "+to+"\n"...)
		}
		out = append(out, line...)
	}
	return out
}
