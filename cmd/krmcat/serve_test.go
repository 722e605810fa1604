package main

import (
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// cmdAwait waits for the file in which a server says its address, and sets
// $ADDR to it:
//
//	await FILE
func cmdAwait(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: await FILE")
	}
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		data, err := os.ReadFile(ts.MkAbs(args[0]))
		if err == nil {
			ts.Setenv("ADDR", strings.TrimSpace(string(data)))
			return
		}
	}
	ts.Fatalf("no server wrote its address to %s", args[0])
}

// cmdGet asks the server at $ADDR and prints the status, the header lines
// sorted, an empty line, and the body:
//
//	get PATH ['NAME: VALUE'...]
func cmdGet(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) < 1 {
		ts.Fatalf("usage: get PATH ['NAME: VALUE'...]")
	}
	req, err := http.NewRequest(http.MethodGet, "http://"+ts.Getenv("ADDR")+args[0], nil)
	ts.Check(err)
	req.Header.Set("Accept-Encoding", "identity")
	for _, h := range args[1:] {
		name, value, ok := strings.Cut(h, ":")
		if !ok {
			ts.Fatalf("%q is no header", h)
		}
		req.Header.Set(name, strings.TrimSpace(value))
	}
	t := &http.Transport{DisableKeepAlives: true}
	resp, err := t.RoundTrip(req)
	ts.Check(err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	ts.Check(err)
	if neg == (resp.StatusCode < 400) {
		ts.Fatalf("GET %s: %s\n%s", args[0], resp.Status, body)
	}
	var lines []string
	for name, values := range resp.Header {
		lines = append(lines, name+": "+strings.Join(values, ", "))
	}
	slices.Sort(lines)
	_, err = io.WriteString(ts.Stdout(), resp.Status+"\n"+strings.Join(lines, "\n")+"\n\n"+string(body))
	ts.Check(err)
}

// cmdOccupy listens on a port until the script ends and sets $OCCUPIED to the
// address:
//
//	occupy
func cmdOccupy(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 0 {
		ts.Fatalf("usage: occupy")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	ts.Check(err)
	ts.Defer(func() { _ = l.Close() })
	ts.Setenv("OCCUPIED", l.Addr().String())
}
