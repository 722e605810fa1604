package main

import (
	"context"
	"errors"
	"net/http"
	"os"
	"os/exec"

	"github.com/krmcat/krmcat/registry/regbucket"
	"github.com/krmcat/krmcat/registry/regserver"
)

// bucketArg makes this program a server over a bucket.
const bucketArg = "serve-bucket"

// serveBucket serves a bucket: serve-bucket ADDRESS ENDPOINT.
func serveBucket(args []string) error {
	if len(args) != 2 {
		return errors.New("usage: bench serve-bucket ADDRESS ENDPOINT")
	}
	store, err := regbucket.Open(context.Background(), regbucket.Options{
		Endpoint: args[1], Bucket: "krmcat", Credentials: regbucket.Credentials{AccessKey: minioUser, SecretKey: minioPassword},
	})
	if err != nil {
		return err
	}
	srv := &http.Server{Addr: args[0], Handler: regserver.New(store, nil)}
	regserver.Harden(srv)
	return srv.ListenAndServe()
}

// startBucket starts krmcat over a bucket.
func startBucket(ctx context.Context, store *minioServer) (*server, error) {
	host, err := address()
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return start(ctx, "krmcat", host, exec.CommandContext(ctx, self, bucketArg, host, store.endpoint))
}
