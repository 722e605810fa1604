package execfn

import (
	"context"

	"github.com/krmcat/krmcat/catalog"
)

// File fetches and verifies the executable of a platform, whatever this
// machine is, and returns where it is in the cache. Errors are those of
// [Executor.Prepare].
func (x *Executor) File(ctx context.Context, p catalog.Platform) (string, error) {
	c, err := x.executable(ctx, p)
	if err != nil {
		return "", err
	}
	return c.path, nil
}
