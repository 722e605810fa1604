package startup

import (
	"runtime"
	"runtime/debug"
	"testing"
	"time"
)

func TestCollectorIsItselfAfterTheFirstCollection(t *testing.T) {
	collect := func() {
		runtime.GC()
		runtime.GC()
	}
	collect() // whatever the package's own initialization left
	before := debug.SetGCPercent(100)
	defer debug.SetGCPercent(before)

	if !delayFirstCollection() {
		t.Fatal("the first collection was not put off")
	}
	if got := debug.SetGCPercent(percent); got != percent {
		t.Errorf("the percentage is %d before the first collection, not %d", got, percent)
	}
	for range 1000 {
		collect()
		got := debug.SetGCPercent(percent)
		debug.SetGCPercent(got)
		if got == 100 {
			return
		}
		time.Sleep(time.Millisecond) // cleanups run on a goroutine of the runtime
	}
	t.Error("the percentage was not put back after a collection")
}

func TestUsersOwnPercentageStays(t *testing.T) {
	before := debug.SetGCPercent(50)
	defer debug.SetGCPercent(before)
	if delayFirstCollection() {
		t.Error("a percentage that the user chose was changed")
	}
	if got := debug.SetGCPercent(50); got != 50 {
		t.Errorf("the percentage is %d, not the user's 50", got)
	}
}
