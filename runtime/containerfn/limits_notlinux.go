//go:build unix && !linux

package containerfn

func maxProcesses() int { return 0 }
