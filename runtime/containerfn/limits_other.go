//go:build !unix

package containerfn

func limitFiles(*engine) {}

// isBrokenPipe reports whether nobody reads any more; writing to a pipe fails
// for no other reason here.
func isBrokenPipe(err error) bool { return err != nil }
