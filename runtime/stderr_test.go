package runtime

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/krmcat/krmcat/runtime/resourcelist"
)

func TestWithoutResults(t *testing.T) {
	results := []resourcelist.Result{
		{Message: "replicas must be odd", Severity: "error", ResourceRef: &resourcelist.ResourceRef{APIVersion: "apps/v1", Kind: "Deployment", Namespace: "shop", Name: "web"}, Field: &resourcelist.Field{Path: "spec.replicas"}, File: &resourcelist.File{Path: "a/web.yaml"}},
		{Message: "bad", Severity: "warning"},
		{Message: "one thing\nand another\n", Severity: "info"},
		{Message: "...", Severity: "info"},
	}
	for _, tt := range []struct{ name, text, want string }{
		{"as krmcat has it", "[error] apps/v1/Deployment shop/web spec.replicas: replicas must be odd (a/web.yaml)\n", ""},
		{"as an SDK has it", "[error] apps/v1/Deployment/shop/web spec.replicas: replicas must be odd\n", ""},
		{"as another has it", "Error: replicas must be odd\n", ""},
		{"the message alone", "  replicas must be odd", ""},
		{"without severity", "bad\n", ""},
		{"lines of one message", "info: one thing\nand another\n", ""},
		{"separators between them", "[error] replicas must be odd\n---\n[warning] bad\n---\n", ""},
		{"another line stays", "reading 3 resources\nError: replicas must be odd\ndone\n", "reading 3 resources\ndone\n"},
		{"one that says more stays", "replicas must be odd, see https://example.com/odd\n", "replicas must be odd, see https://example.com/odd\n"},
		{"a short message inside another word", "badly formed\n", "badly formed\n"},
		{"about another resource", "[error] apps/v1/Deployment shop/api spec.replicas: replicas must be odd\n", "[error] apps/v1/Deployment shop/api spec.replicas: replicas must be odd\n"},
		{"punctuation says nothing", "...\n", "...\n"},
		{"nothing", "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := withoutResults(tt.text, results); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
			if got := withoutResults(tt.text, nil); got != tt.text {
				t.Errorf("without results: %q", got)
			}
		})
	}
}

func TestHeldBuffer(t *testing.T) {
	var out bytes.Buffer
	h := &heldBuffer{to: &out}
	_, _ = h.Write([]byte("one\ntwo"))
	if out.Len() > 0 {
		t.Errorf("not held back: %q", out.String())
	}
	h.release(nil, errors.New("function x exited with code 1: two"))
	if got := out.String(); got != "one\n" {
		t.Errorf("got %q", got)
	}
	// What is too much to hold back goes through as it comes.
	out.Reset()
	h = &heldBuffer{to: &out}
	line := []byte(strings.Repeat("x", 1023) + "\n")
	for range 100 {
		if n, err := h.Write(line); n != len(line) || err != nil {
			t.Fatal(n, err)
		}
	}
	h.release(nil, nil)
	if out.Len() != 100*len(line) {
		t.Errorf("%d bytes came through", out.Len())
	}
	// A line that the error has only in part stays.
	out.Reset()
	h = &heldBuffer{to: &out}
	long := strings.Repeat("long ", 100)
	_, _ = h.Write([]byte(long))
	h.release(nil, &FunctionError{Name: "x", ExitCode: 1, Stderr: long})
	if !strings.Contains(out.String(), strings.TrimSpace(long)) {
		t.Errorf("got %q", out.String())
	}
}

// Whatever is left out, nothing is added, and without results all stays.
func FuzzWithoutResults(f *testing.F) {
	f.Add("[error] bad\nother\n", "bad")
	f.Add("---\n", "-")
	f.Fuzz(func(t *testing.T, text, message string) {
		got := withoutResults(text, []resourcelist.Result{{Message: message}})
		rest := text
		for line := range strings.Lines(got) {
			_, after, ok := strings.Cut(rest, line)
			if !ok {
				t.Fatalf("%q is not in %q", line, text)
			}
			rest = after
		}
	})
}
