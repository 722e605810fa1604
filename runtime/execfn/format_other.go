//go:build !unix

package execfn

func isExecFormat(error) bool { return false }
