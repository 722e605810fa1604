package regbucket

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"time"
)

// Errors of [Store.GC].
var (
	// ErrCollecting: another server collects garbage at the moment.
	ErrCollecting = errors.New("another server is collecting garbage")
	// ErrNotDue: garbage was collected less than the interval ago.
	ErrNotDue = errors.New("garbage was collected not long ago")
)

// defaultLease is how long a collection may not be heard of before another
// server takes over.
const defaultLease = time.Minute

// leaseState is the content of the object gc: who collects garbage, and when
// that was last done. There is one such object, which is never deleted; each
// version of it replaces the one before, on the condition that it still is
// that.
type leaseState struct {
	Holder   string    `json:"holder,omitempty"` // empty is nobody
	Host     string    `json:"host,omitempty"`   // for people
	Turn     int64     `json:"turn"`             // so that no two versions are the same
	Finished time.Time `json:"finished"`
}

// lease is held by one server at a time. No clock is compared with that of
// another machine: who renews it shows by that to be alive.
type lease struct {
	s      *Store
	ttl    time.Duration
	holder string

	mu    sync.Mutex
	state leaseState
	etag  string
}

func (s *Store) leaseKey() string { return s.prefix + "gc" }

// acquireLease takes the lease, from one who has not been heard of for ttl if
// need be, for which it waits. Who is alive keeps it: [ErrCollecting]. If the
// last collection finished less than interval ago, it is [ErrNotDue].
func (s *Store) acquireLease(ctx context.Context, ttl, interval time.Duration) (*lease, error) {
	l := &lease{s: s, ttl: ttl, holder: rand.Text()}
	seen := ""
	for range maxTurns {
		state, etag, err := s.readLease(ctx)
		if err != nil {
			return nil, err
		}
		if interval > 0 && time.Since(state.Finished) < interval {
			return nil, ErrNotDue
		}
		if state.Holder != "" && etag != seen {
			if seen != "" {
				return nil, fmt.Errorf("%w (on %s)", ErrCollecting, state.Host)
			}
			seen = etag
			if err := pause(ctx, ttl); err != nil {
				return nil, err
			}
			continue
		}
		if state.Holder != "" {
			s.log.WarnContext(ctx, "a garbage collection ended without a word; taking over", "host", state.Host)
		}
		l.state, l.etag = state, etag
		l.state.Holder = l.holder
		l.state.Host, _ = os.Hostname() // for people
		err = l.write(ctx)
		switch {
		case err == nil:
			return l, nil
		case !errors.Is(err, fs.ErrExist):
			return nil, err
		}
		seen = "" // another one was faster
	}
	return nil, ErrCollecting
}

// readLease reads the state, which is empty and has no version if garbage was
// never collected. What cannot be read belongs to nobody.
func (s *Store) readLease(ctx context.Context) (leaseState, string, error) {
	b, info, err := s.getInfo(ctx, s.leaseKey(), 1<<10)
	if errors.Is(err, fs.ErrNotExist) {
		return leaseState{}, "", nil
	} else if err != nil {
		return leaseState{}, "", err
	}
	var state leaseState
	if err := json.Unmarshal(b, &state); err != nil {
		s.log.WarnContext(ctx, "object is damaged and written anew", "key", s.leaseKey(), "error", err)
		return leaseState{}, info.ETag, nil
	}
	return state, info.ETag, nil
}

// write replaces the version of the state that is known, or a later one that
// this server wrote and did not hear of. If another server has written one, the
// error wraps [fs.ErrExist].
func (l *lease) write(ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var err error
	for range maxTurns {
		if err = l.tryWrite(ctx); !errors.Is(err, fs.ErrExist) && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		state, etag, rerr := l.s.readLease(ctx)
		if rerr != nil {
			return rerr
		}
		if state.Holder != l.holder {
			return fmt.Errorf("object %s: replaced by another server: %w", l.s.leaseKey(), fs.ErrExist)
		}
		l.etag = etag
	}
	return err
}

func (l *lease) tryWrite(ctx context.Context) error {
	l.state.Turn++
	b, err := json.Marshal(l.state)
	if err != nil {
		return err
	}
	if l.etag == "" {
		err = l.s.create(ctx, l.s.leaseKey(), b)
	} else {
		err = l.s.replace(ctx, l.s.leaseKey(), l.etag, b)
	}
	if err != nil {
		return err
	}
	now, info, err := l.s.getInfo(ctx, l.s.leaseKey(), 1<<10)
	switch {
	case err != nil:
		return err
	case !bytes.Equal(now, b):
		return fs.ErrExist
	}
	l.etag = info.ETag
	return nil
}

// renew writes the lease again before others take it to be given up, until
// ctx ends, and calls lost if it cannot.
func (l *lease) renew(ctx context.Context, lost func()) {
	last := time.Now()
	for {
		if pause(ctx, l.ttl/4) != nil {
			return
		}
		err := l.write(ctx)
		switch {
		case err == nil:
			last = time.Now()
		case ctx.Err() != nil:
			return
		case errors.Is(err, fs.ErrExist):
			lost()
			return
		case time.Since(last) > l.ttl/2:
			lost() // before another one takes over
			return
		}
	}
}

// release gives the lease back; finished says that all was collected.
func (l *lease) release(ctx context.Context, finished bool) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.ttl)
	defer cancel()
	l.state.Holder = ""
	if finished {
		l.state.Finished = time.Now().UTC()
	}
	if err := l.write(ctx); err != nil {
		l.s.log.WarnContext(ctx, "the end of a garbage collection was not noted; others wait until they take over", "error", err)
	}
}
