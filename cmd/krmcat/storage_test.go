package main

import (
	"net/http/httptest"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
	"github.com/rogpeppe/go-internal/testscript"
)

// cmdBucket starts an S3-compatible storage in memory, makes a bucket in it
// and sets $S3 to its URL:
//
//	bucket NAME
func cmdBucket(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: bucket NAME")
	}
	backend := s3mem.New()
	ts.Check(backend.CreateBucket(args[0]))
	srv := httptest.NewServer(gofakes3.New(backend).Server())
	ts.Defer(srv.Close)
	ts.Setenv("S3", srv.URL)
}
