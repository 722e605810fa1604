package regtest_test

import (
	"bytes"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/content/memory"
	"oras.land/oras-go/v2/registry/remote"

	"github.com/krmcat/krmcat/registry/regmem"
	"github.com/krmcat/krmcat/registry/regserver"
	"github.com/krmcat/krmcat/registry/regtest"
)

// An artifact with a signature goes in and out with oras-go, with the
// referrers API and without it.
func TestServer(t *testing.T) {
	for name, noReferrers := range map[string]bool{"referrers API": false, "referrers tag": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			srv := regtest.NewServerWith(t, regmem.New(), &regserver.Options{NoReferrers: noReferrers})
			repo, err := remote.NewRepository(srv.Host + "/example/set-labels")
			if err != nil {
				t.Fatal(err)
			}
			repo.PlainHTTP = true
			store := memory.New()
			layer, err := oras.PushBytes(ctx, store, "application/vnd.example.layer", []byte("hello"))
			if err != nil {
				t.Fatal(err)
			}
			desc, err := oras.PackManifest(ctx, store, oras.PackManifestVersion1_1, "application/vnd.example", oras.PackManifestOptions{Layers: []ocispec.Descriptor{layer}})
			if err != nil {
				t.Fatal(err)
			}
			if err := oras.CopyGraph(ctx, store, repo, desc, oras.DefaultCopyGraphOptions); err != nil {
				t.Fatal(err)
			}
			if err := repo.Tag(ctx, desc, "v1.0.0"); err != nil {
				t.Fatal(err)
			}
			sig, err := oras.PackManifest(ctx, store, oras.PackManifestVersion1_1, "application/vnd.example.signature", oras.PackManifestOptions{Subject: &desc})
			if err != nil {
				t.Fatal(err)
			}
			if err := oras.CopyGraph(ctx, store, repo, sig, oras.CopyGraphOptions{FindSuccessors: nil}); err != nil {
				t.Fatal(err)
			}
			got, err := srv.Store.Resolve(ctx, "example/set-labels", "v1.0.0")
			if err != nil || got.Digest != desc.Digest {
				t.Errorf("Resolve: got %v, %v, want %s", got, err, desc.Digest)
			}
			_, b, err := oras.FetchBytes(ctx, repo, "v1.0.0", oras.DefaultFetchBytesOptions)
			if err != nil {
				t.Fatal(err)
			}
			if want, _ := srv.Store.FetchManifest(ctx, "example/set-labels", desc.Digest); !bytes.Equal(b, want) {
				t.Error("other bytes came back")
			}
			n := 0
			err = repo.Referrers(ctx, desc, "", func(list []ocispec.Descriptor) error {
				n += len(list)
				return nil
			})
			if err != nil || n != 1 {
				t.Errorf("Referrers: got %d, %v, want 1", n, err)
			}
			stored := 0
			for range srv.Store.Referrers(ctx, "example/set-labels", desc.Digest, "") {
				stored++
			}
			// The store knows them in any case; only the API is missing.
			if stored != 1 {
				t.Errorf("the store lists %d referrers, want 1", stored)
			}
		})
	}
}
