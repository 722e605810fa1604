package main

import (
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/krmcat/krmcat/registry/regmem"
	"github.com/krmcat/krmcat/registry/regserver"
)

// A few artifacts go through all phases without an error.
func TestLoad(t *testing.T) {
	t.Parallel()
	srv := httptest.NewServer(regserver.New(regmem.New(), nil))
	t.Cleanup(srv.Close)
	// The process that is measured is the test's own.
	s := &server{name: "test", host: strings.TrimPrefix(srv.URL, "http://"), cmd: &exec.Cmd{Process: &os.Process{Pid: os.Getpid()}}}
	results, err := load(t.Context(), s, options{Artifacts: 12, Workers: 4}, 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(results) != len(phases) {
		t.Fatalf("got %d results, want %d", len(results), len(phases))
	}
	for _, r := range results {
		if r.Errors != 0 || r.PerSecond <= 0 || r.P99 < r.P50 {
			t.Errorf("got %+v", r)
		}
	}
	if err := referrersOf(t.Context(), s, options{Artifacts: 12, Workers: 4}); err != nil {
		t.Error(err)
	}
}
