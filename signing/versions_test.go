package signing_test

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/Masterminds/semver/v3"
)

// floor is the oldest version of each module in which what is known to be wrong
// with it is mended, as far as it concerns signatures: cosign 2.6.5 resolves
// its own dependencies to older ones. An upgrade of something else must not
// take any of them below.
var floor = map[string]string{
	"github.com/sigstore/cosign/v2":              "v2.6.5", // GHSA-fx35-mq7g-6g98, GO-2026-4309, GO-2026-5694; see docs/signing.md for GO-2026-4529
	"github.com/sigstore/sigstore-go":            "v1.3.0", // GO-2026-5952, GO-2026-6162: thresholds, windows of keys
	"github.com/sigstore/sigstore":               "v1.10.11",
	"github.com/sigstore/rekor":                  "v1.5.4", // CVE-2026-48702, and GO-2026-5932 through openpgp
	"github.com/sigstore/timestamp-authority/v2": "v2.1.3", // GO-2026-5763, CVE-2026-49835
	"github.com/theupdateframework/go-tuf/v2":    "v2.4.2",
	"github.com/google/go-containerregistry":     "v0.22.1",
	"github.com/in-toto/in-toto-golang":          "v0.11.0",
	"github.com/go-jose/go-jose/v4":              "v4.1.4", // CVE-2026-34986
	"oras.land/oras-go/v2":                       "v2.6.4", // GO-2026-5880 to 5885: credentials on redirects
	"golang.org/x/mod":                           "v0.40.0",
	"golang.org/x/net":                           "v0.60.0", // GO-2026-6603
	"google.golang.org/grpc":                     "v1.83.2", // GO-2026-6061, GO-2026-6348, GO-2026-6443
}

func TestVersionFloor(t *testing.T) {
	t.Parallel()
	args := []string{"list", "-m", "-f", "{{.Path}} {{.Version}}{{with .Replace}} replaced{{end}}"}
	for path := range floor {
		args = append(args, path)
	}
	out, err := exec.CommandContext(t.Context(), "go", args...).Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	if len(lines) != len(floor) {
		t.Errorf("got %d modules, want %d", len(lines), len(floor))
	}
	for _, line := range lines {
		fields := strings.Fields(line)
		if len(fields) != 2 {
			t.Errorf("%s: a replacement is not what was checked", line)
			continue
		}
		have, err := semver.NewVersion(fields[1])
		if err != nil {
			t.Errorf("%s: %v", line, err)
			continue
		}
		if want := semver.MustParse(floor[fields[0]]); have.LessThan(want) {
			t.Errorf("%s is older than %s", line, want)
		}
	}
}
