package containerfn

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	goruntime "runtime"

	"github.com/opencontainers/go-digest"

	"github.com/krmcat/krmcat/catalog"
	"github.com/krmcat/krmcat/runtime"
	"github.com/krmcat/krmcat/runtime/fntest"
)

// commands are the first words of what the client was called with.
func commands(calls [][]string) string {
	var words []string
	for _, c := range calls {
		words = append(words, c[0])
	}
	return strings.Join(words, " ")
}

// What is started early is what runs, once, and what no run takes is removed.
func TestStart(t *testing.T) {
	d := digest.FromString("image")
	rt := catalog.Container{Image: "127.0.0.1:5000/krmcat/testfn", Digest: d}
	stdio := func(do string) (runtime.Stdio, *bytes.Buffer) {
		var out bytes.Buffer
		return runtime.Stdio{Stdin: bytes.NewReader(fntest.List(do)), Stdout: &out, FunctionConfig: fntest.Config(do)}, &out
	}
	setup := func(t *testing.T, rt catalog.Container, g runtime.Grants, l runtime.Limits) (runtime.Starter, func() [][]string) {
		t.Helper()
		x, calls := newNerdctl(t)
		fn, ok := prepare(t, x, rt, g, l).(runtime.Starter)
		if !ok {
			t.Fatal("a function in a container is no Starter")
		}
		return fn, calls
	}
	t.Run("missing, pulled, then there", func(t *testing.T) {
		fn, calls := setup(t, rt, runtime.Grants{}, runtime.Limits{})
		for _, want := range []string{"run pull run", "run pull run run"} {
			s, out := stdio("copy")
			stop := fn.Start(t.Context(), s.FunctionConfig)
			err := fn.Run(t.Context(), s)
			stop()
			if err != nil || out.String() != string(fntest.List("copy")) {
				t.Errorf("got %v, %d bytes", err, out.Len())
			}
			if got := commands(calls()); got != want {
				t.Errorf("got %s, want %s", got, want)
			}
		}
		// A failure is the same as without.
		s, _ := stdio("fail")
		defer fn.Start(t.Context(), s.FunctionConfig)()
		if err := fn.Run(t.Context(), s); !isFunctionError(err, 3) || !strings.Contains(err.Error(), "frobnicator") {
			t.Errorf("got %v", err)
		}
		// A function that writes without waiting for input, and one whose
		// input nobody reads to the end.
		s, out := stdio("copy")
		s.Stdin = bytes.NewReader(append(fntest.List("copy"), bytes.Repeat([]byte("# more\n"), 1<<17)...))
		defer fn.Start(t.Context(), s.FunctionConfig)()
		if err := fn.Run(t.Context(), s); err != nil || out.Len() < 7<<17 {
			t.Errorf("much input: %v, %d bytes", err, out.Len())
		}
	})
	t.Run("another configuration", func(t *testing.T) {
		fn, calls := setup(t, rt, runtime.Grants{}, runtime.Limits{})
		first, _ := stdio("copy")
		if err := fn.Run(t.Context(), first); err != nil {
			t.Fatal(err)
		}
		before := len(calls())
		defer fn.Start(t.Context(), []byte("other"))()
		s, out := stdio("copy")
		if err := fn.Run(t.Context(), s); err != nil || out.Len() == 0 {
			t.Errorf("got %v, %d bytes", err, out.Len())
		}
		// If it had been started at all, it has been removed.
		got := calls()[before:]
		if c := commands(got); c != "run rm run" && c != "run" && c != "rm run" {
			t.Errorf("got %s", c)
		}
		if last := got[len(got)-1]; last[0] != "run" {
			t.Errorf("last is %q", last)
		}
	})
	t.Run("stopped", func(t *testing.T) {
		fn, calls := setup(t, rt, runtime.Grants{}, runtime.Limits{})
		first, _ := stdio("copy")
		if err := fn.Run(t.Context(), first); err != nil {
			t.Fatal(err)
		}
		fn.Start(t.Context(), first.FunctionConfig)()
		fn.Start(t.Context(), first.FunctionConfig)
		fn.Start(t.Context(), first.FunctionConfig)() // ends the one before too
		runs := map[string]bool{}
		for _, c := range calls()[3:] {
			switch c[0] {
			case "run":
				runs[c[slices.Index(c, "--name")+1]] = true
			case "rm":
				delete(runs, c[2])
			}
		}
		if len(runs) > 0 {
			t.Errorf("not removed: %v", runs)
		}
	})
	t.Run("canceled", func(t *testing.T) {
		fn, _ := setup(t, rt, runtime.Grants{}, runtime.Limits{})
		first, _ := stdio("copy")
		if err := fn.Run(t.Context(), first); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		s, _ := stdio("hang")
		defer fn.Start(t.Context(), s.FunctionConfig)()
		time.AfterFunc(200*time.Millisecond, cancel)
		if err := fn.Run(ctx, s); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("time limit", func(t *testing.T) {
		fn, _ := setup(t, rt, runtime.Grants{}, runtime.Limits{Timeout: 2 * time.Second})
		first, _ := stdio("copy")
		if err := fn.Run(t.Context(), first); err != nil {
			t.Fatal(err)
		}
		s, _ := stdio("hang")
		defer fn.Start(t.Context(), s.FunctionConfig)()
		err := fn.Run(t.Context(), s)
		if _, ok := errors.AsType[*runtime.TimeoutError](err); !ok || !strings.Contains(err.Error(), "within 2s") {
			t.Errorf("got %v", err)
		}
	})
	for name, rt := range map[string]catalog.Container{
		"network": {Image: rt.Image, Digest: d, RequireNetwork: true},
		"storage": {Image: rt.Image, Digest: d, RequireStorageMount: true},
	} {
		t.Run("not with "+name, func(t *testing.T) {
			fn, calls := setup(t, rt, runtime.Grants{Network: true, StorageMount: true}, runtime.Limits{})
			stop := fn.Start(t.Context(), nil)
			stop()
			s, _ := stdio("copy")
			if err := fn.Run(t.Context(), s); err != nil {
				t.Fatal(err)
			}
			if got := commands(calls()); got != "run pull run" {
				t.Errorf("got %s", got)
			}
		})
	}
}

// The same in real containers: none is left, whether it was used or not.
func TestStartReal(t *testing.T) {
	repo, d := push(t, image(t, goruntime.GOARCH))
	engines(t, func(t *testing.T, x *Executor) {
		fn := prepare(t, x, catalog.Container{Image: repo, Digest: d}, runtime.Grants{}, runtime.Limits{}).(runtime.Starter)
		for range 2 {
			stop := fn.Start(t.Context(), fntest.Config("local"))
			var out, errs bytes.Buffer
			err := fn.Run(t.Context(), runtime.Stdio{Stdin: bytes.NewReader(fntest.List("local")), Stdout: &out, Stderr: &errs, FunctionConfig: fntest.Config("local")})
			stop()
			if err != nil || out.Len() == 0 || !strings.Contains(errs.String(), "do: local") {
				t.Errorf("got %v, %d bytes\n%s", err, out.Len(), errs.String())
			}
		}
		fn.Start(t.Context(), nil)()
		noContainers(t, x)
		// One that waits for its input when it is stopped.
		stop := fn.Start(t.Context(), nil)
		waiting := func() bool {
			out, _, err := x.call(t.Context(), x.found, inspectTime, "ps", "--format", "{{.Names}}")
			return err == nil && strings.Contains(string(out), "krmcat-")
		}
		for deadline := time.Now().Add(time.Minute); !waiting(); {
			if time.Now().After(deadline) {
				t.Fatal("the container does not start")
			}
		}
		stop()
		noContainers(t, x)
	})
}
