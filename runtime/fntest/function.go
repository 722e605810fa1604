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
//
// Failing in the ways that functions fail:
//
//	fail, kill, invalid (an error in results), error-exit-0, missing-file
//	garbage, logs, half, empty, bare, other-kind, two, utf8, no-items
//	hang, fork (leaves a process behind), flood, flood-stderr, memory
//	escape, absolute, collide, internal
//
// And telling what it can see on standard error: env, local, network, write,
// user.
func Function(stdin io.Reader, stdout, stderr io.Writer) int {
	input, err := io.ReadAll(stdin)
	if err != nil {
		fmt.Fprintln(stderr, err)
		return 1
	}
	do := word(input, "do: ")
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
		child := exec.Command("/bin/sleep", "600")
		child.Stdout, child.Stderr = os.Stdout, os.Stderr
		if err := child.Start(); err != nil {
			fmt.Fprintln(stderr, err)
			return 1
		}
		fmt.Fprintln(stderr, "child", child.Process.Pid)
		time.Sleep(10 * time.Minute)
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
	case "network":
		ifs, err := net.Interfaces()
		fmt.Fprintln(stderr, "interfaces:", len(ifs), err)
		for _, i := range ifs {
			fmt.Fprintln(stderr, i.Name)
		}
		_, _ = stdout.Write(list)
	default:
		fmt.Fprintln(stderr, "unknown: do "+strconv.Quote(do))
		return 1
	}
	return 0
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
