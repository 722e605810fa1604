//go:build !linux

package process

// boundMemory has no means on this system to limit another process.
func boundMemory(int, int64) {}
