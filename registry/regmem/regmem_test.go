package regmem_test

import (
	"testing"

	"github.com/krmcat/krmcat/registry/regmem"
	"github.com/krmcat/krmcat/registry/regstore"
	"github.com/krmcat/krmcat/registry/regtest"
)

func TestDriver(t *testing.T) {
	regtest.TestDriver(t, func(*testing.T) regstore.Driver { return regmem.New() })
}
