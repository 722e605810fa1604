// Package e2e runs krmcat against the real services of Sigstore, offline: Fulcio,
// a timestamp authority, Rekor v1 with Trillian and PostgreSQL under it, Rekor
// v2, and cosign 2.6 and 3.1 on the other side. They are built from a module of
// their own, in services, into a folder beside Go's cache.
package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/krmcat/krmcat/internal/tooltest"
)

// What the test outside of the network namespace tells the one inside.
const (
	envServices = "KRMCAT_E2E_SERVICES" // folder of the services
	envCommand  = "KRMCAT_E2E_COMMAND"  // path of krmcat
)

// TestEndToEnd runs this program again in a network namespace that has a
// loopback interface and nothing else. The timestamp server opens a port on
// every interface, and nothing here shall be able to ask the public services.
func TestEndToEnd(t *testing.T) {
	if os.Getenv(envServices) != "" {
		t.Skip("this is the inside")
	}
	if !tooltest.Required() {
		t.Skip("set KRMCAT_TEST_REQUIRE=all to build Fulcio, Rekor and their like, and to test with them")
	}
	if postgresProgram("postgres") == "" {
		t.Fatal("PostgreSQL is not installed, which Rekor v1 needs (Debian: apt-get install postgresql)")
	}
	services, err := exec.Command("services/build.sh").Output()
	if err != nil {
		t.Fatalf("building the services of Sigstore: %v\n%s", err, stderrOf(err))
	}
	command := filepath.Join(t.TempDir(), "krmcat")
	if out, err := exec.Command("go", "build", "-o", command, "github.com/krmcat/krmcat/cmd/krmcat").CombinedOutput(); err != nil {
		t.Fatalf("building krmcat: %v\n%s", err, out)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	args := append(namespace(t), self, "-test.run=^TestInside", "-test.count=1", "-test.v")
	cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
	cmd.Env = append(os.Environ(), envServices+"="+strings.TrimSpace(string(services)), envCommand+"="+command,
		"KRMCAT_COSIGN2="+tooltest.Path(t, "cosign2"), "KRMCAT_COSIGN3="+tooltest.Path(t, "cosign3"))
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Logf("\n%s", out)
}

func stderrOf(err error) []byte {
	if exit, ok := err.(*exec.ExitError); ok {
		return exit.Stderr
	}
	return nil
}

// namespace is the command that runs another in a network of its own, as the
// same user.
func namespace(t *testing.T) []string {
	t.Helper()
	const up = `ip link set lo up && exec "$@"`
	ways := [][]string{
		{"unshare", "-n", "sh", "-c", up, "sh"},                      // root
		{"unshare", "-c", "--keep-caps", "-n", "sh", "-c", up, "sh"}, // where users may have namespaces
		// Where they may not, as on the runners of GitHub.
		{"sudo", "-n", "-E", "unshare", "-n", "sh", "-c", `ip link set lo up && exec setpriv --reuid=$SUDO_UID --regid=$SUDO_GID --init-groups "$@"`, "sh"},
	}
	var problems []string
	for _, way := range ways {
		out, err := exec.Command(way[0], append(way[1:], "true")...).CombinedOutput()
		if err == nil {
			return way
		}
		problems = append(problems, way[0]+": "+err.Error()+" "+string(out))
	}
	t.Fatalf("no network namespace can be made: %s", strings.Join(problems, "; "))
	return nil
}
