//go:build !unix

package containerfn

func limitFiles(*engine) {}
