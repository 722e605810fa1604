package regbucket_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/krmcat/krmcat/registry/regbucket"
	"github.com/krmcat/krmcat/registry/regstore"
	"github.com/krmcat/krmcat/registry/regtest"
)

// holdGC lets collections through p begin, and holds them at their first step
// until the test calls the function that it returns.
func holdGC(p *proxy) (held <-chan struct{}, let func()) {
	begun, go_ := make(chan struct{}), make(chan struct{})
	var once sync.Once
	p.mode.Store(new(func(_ http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodGet && strings.HasSuffix(r.URL.Query().Get("prefix"), "/_blobs/") {
			once.Do(func() { close(begun) })
			select {
			case <-go_:
			case <-r.Context().Done():
				panic(http.ErrAbortHandler)
			}
		}
		return false
	}))
	return begun, sync.OnceFunc(func() { close(go_) })
}

// Of two servers, one collects garbage at a time; when it goes away in the
// middle, the other one takes over.
func TestGCLease(t *testing.T) {
	onEach(t, func(t *testing.T, cfg regbucket.Options) {
		ctx := t.Context()
		// Long enough that a collection that goes on is heard of on a busy
		// machine.
		opts := regbucket.GCOptions{Grace: -time.Hour, Settle: time.Nanosecond, Lease: 2 * time.Second}
		other := open(t, cfg)
		p, proxied := newProxy(t, cfg)
		s := open(t, proxied)
		regtest.PutBlob(ctx, t, other, repo, []byte("orphan"))

		begun, let := holdGC(p)
		defer let()
		first := make(chan error, 1)
		go func() { _, err := s.GC(context.WithoutCancel(ctx), &opts); first <- err }()
		<-begun
		if _, err := other.GC(ctx, &opts); !errors.Is(err, regbucket.ErrCollecting) {
			t.Errorf("a second collection: %v, want ErrCollecting", err)
		}
		// What removes nothing may look.
		dry := opts
		dry.DryRun = true
		if r, err := other.GC(ctx, &dry); err != nil || r.Blobs != 1 {
			t.Errorf("a dry run: %+v, %v", r, err)
		}
		// The first one is cut off from the storage, and gives up.
		p.mode.Store(new(func(http.ResponseWriter, *http.Request) bool { panic(http.ErrAbortHandler) }))
		if r, err := other.GC(ctx, &opts); err != nil || r.Blobs != 1 {
			t.Errorf("after the other one is gone: %+v, %v", r, err)
		}
		let()
		if err := <-first; !errors.Is(err, regstore.ErrUnavailable) {
			t.Errorf("a collection that lost the storage: %v", err)
		}
		p.mode.Store(nil)
		if _, err := s.GC(ctx, &opts); err != nil {
			t.Errorf("a collection later: %v", err)
		}
		opts.Interval = time.Hour
		if _, err := other.GC(ctx, &opts); !errors.Is(err, regbucket.ErrNotDue) {
			t.Errorf("a collection too early: %v, want ErrNotDue", err)
		}
	})
}

// However many start at the same time, they take turns.
func TestGCTurns(t *testing.T) {
	onEach(t, func(t *testing.T, cfg regbucket.Options) {
		ctx := t.Context()
		regtest.Put(ctx, t, open(t, cfg), repo, regtest.NewArtifact("application/vnd.example", nil), "v1")
		var running, most, done atomic.Int64
		var wg sync.WaitGroup
		for range 4 {
			p, proxied := newProxy(t, cfg)
			s := open(t, proxied)
			// A collection runs from its first list to the end of GC.
			var counted atomic.Bool
			p.mode.Store(new(func(_ http.ResponseWriter, r *http.Request) bool {
				if r.Method == http.MethodGet && strings.HasSuffix(r.URL.Query().Get("prefix"), "/_used/") && counted.CompareAndSwap(false, true) {
					most.Store(max(most.Load(), running.Add(1)))
				}
				return false
			}))
			wg.Go(func() {
				for range 3 {
					_, err := s.GC(ctx, &regbucket.GCOptions{Settle: -1, Lease: 2 * time.Second})
					if counted.CompareAndSwap(true, false) {
						running.Add(-1)
					}
					switch {
					case err == nil:
						done.Add(1)
					case !errors.Is(err, regbucket.ErrCollecting):
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		if most.Load() != 1 || done.Load() == 0 {
			t.Errorf("%d collections at once, %d in all", most.Load(), done.Load())
		}
	})
}

// An object gc that somebody damaged is written anew.
func TestDamagedLease(t *testing.T) {
	t.Parallel()
	cfg := fake(t)
	s := open(t, cfg)
	objectsOf(t, cfg).put("gc", "nonsense")
	if _, err := s.GC(t.Context(), &anyAge); err != nil {
		t.Error(err)
	}
	if _, err := s.GC(t.Context(), &anyAge); err != nil {
		t.Error(err)
	}
}
