package main

import (
	"context"
	"strings"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/rogpeppe/go-internal/testscript"
	"oras.land/oras-go/v2"

	"github.com/krmcat/krmcat/registry"
)

// cmdPush pushes a file as plain oras does; what the registry answers to a
// refused push is standard error:
//
//	push REFERENCE FILE:MEDIATYPE
func cmdPush(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 2 {
		ts.Fatalf("usage: push REFERENCE FILE:MEDIATYPE")
	}
	file, mediaType, _ := strings.Cut(args[1], ":")
	err := push(args[0], []byte(ts.ReadFile(file)), mediaType)
	switch {
	case err != nil && !neg:
		ts.Fatalf("pushing: %v", err)
	case err == nil && neg:
		ts.Fatalf("the push was accepted")
	case err != nil:
		_, _ = ts.Stderr().Write([]byte(err.Error() + "\n"))
	}
}

func push(reference string, data []byte, mediaType string) error {
	ctx := context.Background()
	ref, err := registry.ParseReference(reference)
	if err != nil {
		return err
	}
	repo, err := registry.NewClient(nil).Repository(ref)
	if err != nil {
		return err
	}
	layer, err := oras.PushBytes(ctx, repo, mediaType, data)
	if err != nil {
		return err
	}
	m, err := oras.PackManifest(ctx, repo, oras.PackManifestVersion1_1, "application/vnd.unknown.artifact.v1", oras.PackManifestOptions{Layers: []ocispec.Descriptor{layer}})
	if err != nil {
		return err
	}
	return repo.Tag(ctx, m, ref.Tag)
}
