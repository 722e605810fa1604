package containerfn

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/krmcat/krmcat/runtime"
)

// maxEarly is how long a container may wait for its input. An engine that
// ends containers itself gets that much more time.
const maxEarly = time.Minute

// early is a container that was started before there was input for it.
type early struct {
	f              *function
	config         []byte
	started        time.Time
	stdin          *os.File // what the container reads from is at the other end
	stdout, stderr lateWriter
	began          chan struct{} // closed by the run that takes it
	cancel         context.CancelCauseFunc
	ended          chan struct{} // when err is set
	err            error
}

// Start implements [runtime.Starter]: a container takes a few hundred
// milliseconds to start, in which the caller can read and parse. A function
// with a network or with folders of this machine is not started, as it could
// do something before it is known that its input can be read.
func (f *function) Start(ctx context.Context, functionConfig []byte) (stop func()) {
	if f.spec.RequireNetwork || f.spec.RequireStorageMount {
		return func() {}
	}
	r, w, err := os.Pipe()
	if err != nil {
		return func() {} // the run will say what is wrong
	}
	ctx, cancel := context.WithCancelCause(ctx)
	e := &early{
		f: f, config: bytes.Clone(functionConfig), started: time.Now(), stdin: w,
		began: make(chan struct{}), cancel: cancel, ended: make(chan struct{}),
	}
	f.mu.Lock()
	before := f.early
	f.early = e
	f.mu.Unlock()
	if before != nil {
		before.discard()
	}
	go func() {
		defer close(e.ended)
		e.err = f.run(ctx, runtime.Stdio{Stdin: r, Stdout: &e.stdout, Stderr: &e.stderr, FunctionConfig: e.config}, e.began)
		_ = r.Close() // the run that writes to it learns that there is nobody
	}()
	return func() {
		f.mu.Lock()
		if f.early == e {
			f.early = nil
		}
		f.mu.Unlock()
		e.discard()
	}
}

// takeEarly returns what was started for a run with this configuration.
func (f *function) takeEarly(config []byte) *early {
	f.mu.Lock()
	e := f.early
	f.early = nil
	f.mu.Unlock()
	if e == nil {
		return nil
	}
	if !bytes.Equal(e.config, config) || time.Since(e.started) > maxEarly {
		e.discard()
		return nil
	}
	return e
}

// discard ends the container, or does nothing if it has ended.
func (e *early) discard() {
	e.cancel(nil)
	<-e.ended
	_ = e.stdin.Close()
}

// run gives the container its input, and its output to the caller.
func (e *early) run(ctx context.Context, stdio runtime.Stdio) error {
	defer context.AfterFunc(ctx, func() { e.cancel(context.Cause(ctx)) })()
	close(e.began)
	e.stdout.begin(stdio.Stdout)
	e.stderr.begin(stdio.Stderr)
	written := make(chan error, 1)
	go func() {
		_, err := io.Copy(e.stdin, stdio.Stdin)
		// A function need not read its input, and may have ended.
		if errors.Is(err, os.ErrClosed) || isBrokenPipe(err) {
			err = nil
		}
		written <- errors.Join(err, e.stdin.Close())
	}()
	<-e.ended
	if err := <-written; err != nil && e.err == nil {
		return fmt.Errorf("function %s: writing its input: %w", e.f.name, err)
	}
	return e.err
}

// lateWriter keeps what is written until it is known where it goes.
type lateWriter struct {
	mu   sync.Mutex
	kept []byte
	w    io.Writer
	set  bool
}

func (l *lateWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.set {
		l.kept = append(l.kept, p...)
		return len(p), nil
	}
	if l.w == nil {
		return len(p), nil
	}
	return l.w.Write(p)
}

// begin passes on what is kept, and what comes. A nil writer drops it.
func (l *lateWriter) begin(w io.Writer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.w, l.set = w, true
	if w != nil && len(l.kept) > 0 {
		if _, err := w.Write(l.kept); err != nil {
			l.w = failed{err}
		}
	}
	l.kept = nil
}

// failed is a writer that has failed before.
type failed struct{ err error }

func (f failed) Write([]byte) (int, error) { return 0, f.err }
