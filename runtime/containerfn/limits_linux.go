package containerfn

import (
	"math"

	"golang.org/x/sys/unix"
)

func maxProcesses() int {
	var r unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NPROC, &r) != nil || r.Max > math.MaxInt32 {
		return 0
	}
	return int(r.Max)
}
