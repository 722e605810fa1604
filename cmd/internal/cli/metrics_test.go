package cli

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/krmcat/krmcat/catalog/index"
)

func TestMetrics(t *testing.T) {
	t.Parallel()
	var away atomic.Bool
	m := newServerMetrics(func(context.Context) (index.Stats, error) {
		if away.Load() {
			return index.Stats{}, errors.New("away")
		}
		return index.Stats{Functions: 7, Changed: time.Unix(1000, 0)}, nil
	})
	m.observe("GET", "/catalog.yaml", 200, 0.01)
	m.observe("MADE-UP", "none", 405, 0.01)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { m.serve(ctx, l, slog.New(slog.DiscardHandler)); close(done) }()
	defer func() { cancel(); <-done }()
	get := func() string {
		t.Helper()
		resp, err := http.Get("http://" + l.Addr().String() + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return string(body)
	}
	body := get()
	for _, want := range []string{
		"krmcat_functions 7\n", "krmcat_index_up 1\n", "krmcat_index_changed_timestamp_seconds 1000\n", "go_goroutines ",
		`krmcat_http_request_duration_seconds_count{code="200",method="GET",route="/catalog.yaml"} 1`,
		`krmcat_http_request_duration_seconds_count{code="405",method="other",route="none"} 1`,
	} {
		if !strings.Contains(body, want) {
			t.Errorf("no %q in\n%s", want, body)
		}
	}
	away.Store(true)
	if body := get(); !strings.Contains(body, "krmcat_index_up 0\n") || strings.Contains(body, "krmcat_functions") {
		t.Errorf("without an index:\n%s", body)
	}
}
