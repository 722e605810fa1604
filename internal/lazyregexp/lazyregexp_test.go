package lazyregexp

import (
	"strings"
	"sync"
	"testing"
)

func TestRegexp(t *testing.T) {
	r := New(`^([a-z]+)-([0-9]+)$`)
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			if !r.MatchString("v-1") || r.MatchString("v") {
				t.Error("MatchString is wrong")
			}
		})
	}
	group.Wait()
	if got := r.FindStringSubmatch("v-1"); len(got) != 3 || got[1] != "v" || got[2] != "1" {
		t.Errorf("submatches are %q", got)
	}
	if got := r.ReplaceAllString("v-1", "$2"); got != "1" {
		t.Errorf("replaced: %q", got)
	}
	if got := r.ReplaceAllStringFunc("v-1", strings.ToUpper); got != "V-1" {
		t.Errorf("replaced: %q", got)
	}
}

func TestBrokenExpressionFailsEveryTest(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("New accepted what does not compile")
		}
	}()
	New(`(`)
}
