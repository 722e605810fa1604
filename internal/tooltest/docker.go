package tooltest

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// Docker is a docker daemon for tests, with storage, a socket and a bridge of
// its own.
type Docker struct {
	// Host is for DOCKER_HOST.
	Host string

	dir, ip, bridge string
	daemon          *exec.Cmd
	ended           chan struct{}
	output          bytes.Buffer
}

// StartDocker starts a daemon; call Stop when the tests are done. The error
// says what is lacking if there can be none: it takes root, dockerd, and ip
// for the bridge.
func StartDocker() (*Docker, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("dockerd needs root")
	}
	path := os.Getenv("PATH") + ":/usr/sbin:/sbin"
	find := func(name string) (string, error) {
		for _, dir := range filepath.SplitList(path) {
			if p, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
				return p, nil
			}
		}
		return "", fmt.Errorf("%s is not installed", name)
	}
	dockerd, err := find("dockerd")
	if err != nil {
		return nil, err
	}
	ip, err := find("ip")
	if err != nil {
		return nil, err
	}
	docker, err := find("docker")
	if err != nil {
		return nil, err
	}
	// Short: the paths of sockets are limited to 108 bytes.
	dir, err := os.MkdirTemp("", "krmcat-dk-")
	if err != nil {
		return nil, err
	}
	d := &Docker{Host: "unix://" + filepath.Join(dir, "s"), dir: dir, ip: ip, bridge: "kc" + strings.ToLower(rand.Text()[:8]), ended: make(chan struct{})}
	// docker0 may be another daemon's, also one of another test.
	if out, err := exec.Command(ip, "link", "add", d.bridge, "type", "bridge").CombinedOutput(); err != nil {
		_ = os.RemoveAll(dir)
		return nil, fmt.Errorf("making a bridge: %w\n%s", err, out)
	}
	d.daemon = exec.Command(dockerd, "--host", d.Host, "--data-root", filepath.Join(dir, "data"), "--exec-root", filepath.Join(dir, "exec"),
		"--pidfile", filepath.Join(dir, "pid"), "--storage-driver", "vfs", "--iptables=false", "--ip6tables=false", "--bridge", d.bridge)
	d.daemon.Env = append(os.Environ(), "PATH="+path)
	d.daemon.Stdout, d.daemon.Stderr = &d.output, &d.output
	if err := d.daemon.Start(); err != nil {
		close(d.ended)
		d.Stop()
		return nil, err
	}
	go func() { _ = d.daemon.Wait(); close(d.ended) }()
	for deadline := time.Now().Add(time.Minute); ; {
		version := exec.Command(docker, "version")
		version.Env = append(os.Environ(), "DOCKER_HOST="+d.Host)
		if version.Run() == nil {
			return d, nil
		}
		select {
		case <-d.ended:
			err = fmt.Errorf("dockerd ended:\n%s", d.output.Bytes())
		case <-time.After(100 * time.Millisecond):
			if time.Now().After(deadline) {
				err = errors.New("dockerd does not answer")
			}
		}
		if err != nil {
			d.Stop()
			return nil, err
		}
	}
}

// Stop ends the daemon and removes what it has left.
func (d *Docker) Stop() {
	if d.daemon.Process != nil {
		_ = d.daemon.Process.Signal(os.Interrupt)
	}
	<-d.ended
	_ = exec.Command(d.ip, "link", "del", d.bridge).Run() // gone if dockerd removed it
	_ = os.RemoveAll(d.dir)
}
