package tooltest_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/krmcat/krmcat/internal/tooltest"
)

// A daemon answers, has a bridge, and leaves nothing behind.
func TestStartDocker(t *testing.T) {
	d, err := tooltest.StartDocker()
	if err != nil {
		tooltest.Lacking(t, "no docker daemon: "+err.Error())
	}
	t.Cleanup(d.Stop)
	cmd := exec.CommandContext(t.Context(), "docker", "network", "ls", "--format", "{{.Name}} {{.Driver}}")
	cmd.Env = append(os.Environ(), "DOCKER_HOST="+d.Host)
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "bridge bridge\n") {
		t.Errorf("got %v\n%s", err, out)
	}
	socket := strings.TrimPrefix(d.Host, "unix://")
	d.Stop()
	if _, err := os.Stat(socket); err == nil {
		t.Errorf("%s is left", socket)
	}
}
