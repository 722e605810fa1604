package process

import (
	"bytes"
	"crypto/rand"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// containments are the ways to keep what a process starts from outliving it,
// the soundest first. A process can leave its process group and its session,
// and its parent can end before it; it cannot leave its PID namespace, which
// the kernel ends with its first process.
func containments() []containment {
	ways := []containment{{prepare: func(cmd *exec.Cmd) { namespace(cmd, true) }}, marked()}
	if os.Geteuid() == 0 {
		// Root needs no user namespace, which would take rights away.
		ways = append([]containment{{prepare: func(cmd *exec.Cmd) { namespace(cmd, false) }}}, ways...)
	}
	return ways
}

// namespace makes the process the first one of a PID namespace. A user
// namespace gives an ordinary user the right to do so; in it the user and the
// group are the same as outside, and others are nobody.
func namespace(cmd *exec.Cmd, user bool) {
	a := cmd.SysProcAttr
	a.Cloneflags |= syscall.CLONE_NEWPID
	if !user {
		return
	}
	a.Cloneflags |= syscall.CLONE_NEWUSER
	a.UidMappings = []syscall.SysProcIDMap{{ContainerID: os.Geteuid(), HostID: os.Geteuid(), Size: 1}}
	a.GidMappings = []syscall.SysProcIDMap{{ContainerID: os.Getegid(), HostID: os.Getegid(), Size: 1}}
}

// refused reports whether the system does not allow a containment: user
// namespaces are turned off, used up, or denied by a security module or the
// seccomp filter of a container. Some of these errors are also those of a
// program that cannot be run; the next try says so again.
func refused(err error) bool {
	for _, e := range []error{syscall.EPERM, syscall.EACCES, syscall.EINVAL, syscall.ENOSYS, syscall.ENOSPC, syscall.EUSERS, syscall.ENOENT, syscall.EROFS} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// markName is the variable by which processes are found in [marked].
const markName = "KRMCAT_RUN"

// marked is for machines that allow no PID namespaces: the process gets a
// variable with a random value, which its children inherit, and whatever has
// it in its environment is killed. A program that is out to hide can clear its
// environment; one that only forgets to end its children does not.
func marked() containment {
	mark := markName + "=" + rand.Text()
	return containment{
		prepare: func(cmd *exec.Cmd) { cmd.Env = append(cmd.Env, mark) },
		end:     func() { killMarked([]byte(mark)) },
	}
}

// killMarked kills the processes of this user that have mark in their
// environment, until there are none: those killed may just have forked.
func killMarked(mark []byte) {
	const tries = 500
	for range tries {
		dirs, _ := filepath.Glob("/proc/[0-9]*")
		found := false
		for _, dir := range dirs {
			if pid, err := strconv.Atoi(filepath.Base(dir)); err == nil && killIf(pid, mark) {
				found = true
			}
		}
		if !found {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// killIf kills a process if it has the mark. The process is held by a file
// descriptor meanwhile, as its number may be another's in a moment.
func killIf(pid int, mark []byte) bool {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil && !errors.Is(err, unix.ENOSYS) {
		return false
	}
	if err == nil {
		defer unix.Close(fd)
	}
	env, rerr := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "environ"))
	if rerr != nil || !bytes.Contains(env, mark) {
		return false
	}
	if err != nil { // before Linux 5.3
		return unix.Kill(pid, unix.SIGKILL) == nil
	}
	return unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) == nil
}
