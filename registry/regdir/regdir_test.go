package regdir_test

import (
	"testing"

	"github.com/krmcat/krmcat/registry/regdir"
	"github.com/krmcat/krmcat/registry/regstore"
	"github.com/krmcat/krmcat/registry/regtest"
)

func open(t testing.TB, dir string, opts *regdir.Options) *regdir.Store {
	t.Helper()
	s, err := regdir.Open(dir, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() }) // closed already in some tests
	return s
}

func TestDriver(t *testing.T) {
	regtest.TestDriver(t, func(t *testing.T) regstore.Driver { return open(t, t.TempDir(), nil) })
}
