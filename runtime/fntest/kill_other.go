//go:build !unix

package fntest

func kill() int { return 137 }
