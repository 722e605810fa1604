package regdir

import (
	"os"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/krmcat/krmcat/registry/regstore"
)

// What is damaged or missing when fsck looks at it, and is pushed before fsck
// repairs it, stays.
func TestFsckSparesWhatIsPushedMeanwhile(t *testing.T) {
	t.Parallel()
	const repo = "publisher/set-labels"
	s, err := Open(t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	d := digest.FromString("layer")
	push := func() {
		t.Helper()
		if err := s.FinishUpload(t.Context(), repo, "", regstore.Chunk{Body: strings.NewReader("layer"), Offset: -1, Size: -1}, d); err != nil {
			t.Fatal(err)
		}
	}
	c := &check{s: s, opts: FsckOptions{Repair: true}, yield: func(Problem, error) bool { return true }}
	link := s.repoPath(repo, "_blobs", fileName(d))
	for name, round := range map[string]struct {
		damage func() error
		repair func() error
	}{
		"damaged blob": {func() error { return os.WriteFile(s.blobPath(d), []byte("x"), 0o666) }, c.setBlobAside(s.blobPath(d), d)},
		"missing blob": {func() error { return os.Remove(s.blobPath(d)) }, c.removeLink(link, d)},
	} {
		push()
		if err := round.damage(); err != nil {
			t.Fatal(err)
		}
		push()
		if err := round.repair(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if n, err := s.StatBlob(t.Context(), repo, d); err != nil || n != 5 {
			t.Errorf("%s, which was pushed again: %d bytes, %v", name, n, err)
		}
		// And if nobody pushes, it goes.
		if err := round.damage(); err != nil {
			t.Fatal(err)
		}
		if err := round.repair(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := s.StatBlob(t.Context(), repo, d); err == nil {
			t.Errorf("%s is still there after the repair", name)
		}
	}
}
