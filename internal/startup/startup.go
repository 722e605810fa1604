// Package startup makes a command start without a garbage collection. The
// packages that krmcat links allocate 8 MiB before main runs, most of it to
// stay (compiled expressions, schemas, type registries), and the collector
// would look at it three times, which is a fifth of what `krmcat version`
// costs. Package main imports this one for its effect; packages that need as
// little as this one are initialized first.
package startup

import (
	"runtime"
	"runtime/debug"
)

// percent lets the heap grow to 16 MiB before the first collection: the
// runtime's smallest heap, 4 MiB, times four.
const percent = 400

var _ = delayFirstCollection()

// delayFirstCollection puts the first collection off; from then on the
// collector works as it always does. A GOGC that the user has set stays.
func delayFirstCollection() bool {
	before := debug.SetGCPercent(percent)
	if before != 100 {
		debug.SetGCPercent(before)
		return false
	}
	// The collection that finds this object gone is the first one.
	runtime.AddCleanup(new([64]byte), func(p int) { debug.SetGCPercent(p) }, before)
	return true
}
