// Command bench compares krmcat's registry server with others on one machine:
// small artifacts are pushed, pulled, signed and asked for their referrers by
// several workers, in turns, and the ratios are printed.
//
//	go run ./registry/bench                       # krmcat and what is installed
//	go run ./registry/bench -rounds 3 -json > out.json
//	go run ./registry/bench -s3                   # all over one MinIO
//	go run ./registry/bench -fill 100000          # start-up and latency of a full store and its index
//	go run ./registry/bench -blob 100             # one blob of 100 MiB in and out
//
// Debian's docker-registry, distribution's registry (go install
// github.com/distribution/distribution/v3/cmd/registry@v3.1.2) and minio are
// taken from the path or from $HOME/go/bin, if they are there.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"time"
)

type options struct {
	Artifacts int
	Workers   int
	Rounds    int
	Fill      int
	Blob      int
	S3        bool
	JSON      bool
	Dir       string
}

func main() {
	var o options
	flag.IntVar(&o.Artifacts, "n", 500, "artifacts of a round")
	flag.IntVar(&o.Workers, "workers", 8, "workers")
	flag.IntVar(&o.Rounds, "rounds", 2, "rounds, in which the servers take turns")
	flag.IntVar(&o.Fill, "fill", 0, "compare an empty store with one of so many artifacts")
	flag.IntVar(&o.Blob, "blob", 0, "push and pull one blob of so many MiB")
	flag.BoolVar(&o.S3, "s3", false, "store in one MinIO instead of folders")
	flag.BoolVar(&o.JSON, "json", false, "print JSON")
	flag.StringVar(&o.Dir, "dir", "", "folder to work in; a temporary one if empty")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) (err error) {
	if o.Dir == "" {
		if o.Dir, err = os.MkdirTemp("", "krmcat-bench-"); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(o.Dir)) }()
	}
	switch {
	case o.Fill > 0:
		return fill(ctx, o)
	case o.Blob > 0:
		return largeBlob(ctx, o)
	}
	return compare(ctx, o)
}

// compare lets the servers take turns, so that what else the machine does
// hits all of them.
func compare(ctx context.Context, o options) error {
	var store *minioServer
	if o.S3 {
		var err error
		if store, err = startMinio(ctx, filepath.Join(o.Dir, "minio")); err != nil {
			return err
		}
		defer store.stop()
	}
	servers, err := startAll(ctx, o.Dir, store)
	for _, s := range servers {
		defer s.stop()
	}
	if err != nil {
		return err
	}
	var results []result
	for round := range o.Rounds {
		for _, s := range servers {
			r, err := load(ctx, s, o, round, store)
			if err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
			results = append(results, r...)
			if !o.JSON {
				for _, r := range r {
					fmt.Println(r)
				}
			}
		}
	}
	if o.JSON {
		return json.NewEncoder(os.Stdout).Encode(struct {
			Machine string   `json:"machine"`
			Results []result `json:"results"`
		}{fmt.Sprintf("%s, %d CPUs", runtime.Version(), runtime.NumCPU()), results})
	}
	printRatios(results, servers)
	return nil
}

// printRatios compares the medians of the rounds.
func printRatios(results []result, servers []*server) {
	median := func(name, phase string, f func(result) float64) float64 {
		var v []float64
		for _, r := range results {
			if r.Server == name && r.Phase == phase {
				v = append(v, f(r))
			}
		}
		slices.Sort(v)
		if len(v) == 0 {
			return 0
		}
		return v[len(v)/2]
	}
	fmt.Println()
	for _, phase := range phases {
		mine := median(servers[0].name, phase, func(r result) float64 { return r.PerSecond })
		for _, s := range servers[1:] {
			if theirs := median(s.name, phase, func(r result) float64 { return r.PerSecond }); theirs > 0 {
				fmt.Printf("%-5s %s is %.1f times %s (%.0f and %.0f per second)\n", phase, servers[0].name, mine/theirs, s.name, mine, theirs)
			}
		}
	}
}

// result is one phase of one round.
type result struct {
	Server    string  `json:"server"`
	Phase     string  `json:"phase"`
	Round     int     `json:"round"`
	N         int     `json:"n"`
	Errors    int     `json:"errors"`
	PerSecond float64 `json:"perSecond"`
	P50       float64 `json:"p50ms"`
	P99       float64 `json:"p99ms"`
	CPU       float64 `json:"cpuMsPerOp"`     // of the server
	RSS       float64 `json:"rssMB"`          // of the server, after the phase
	Peak      float64 `json:"peakMB"`         // of the server, so far
	Calls     float64 `json:"s3CallsPerOp"`   // with -s3
	Seconds   float64 `json:"durationSecond"` // of the phase
}

func (r result) String() string {
	s := fmt.Sprintf("%-15s %-5s %4d errors=%d %8.1f/s  p50 %7.1f ms  p99 %7.1f ms  cpu %6.2f ms/op  rss %4.0f MB  peak %4.0f MB",
		r.Server, r.Phase, r.N, r.Errors, r.PerSecond, r.P50, r.P99, r.CPU, r.RSS, r.Peak)
	if r.Calls > 0 {
		s += fmt.Sprintf("  %.1f S3 calls/op", r.Calls)
	}
	return s
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
