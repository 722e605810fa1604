package conformance

import (
	"fmt"
	"strings"

	"github.com/krmcat/krmcat/runtime/resourcelist"
)

// denials are what programs say when they are kept from something. They are
// looked for only when an example that should succeed has failed, so that a
// function may try and do without.
var denials = []struct {
	check   string
	what    string
	applies func(Withheld) bool
	signs   []string
}{
	{"C14", "the network", func(w Withheld) bool { return w.Network }, []string{
		"network is unreachable", "no such host", "name resolution", "could not resolve host", "name or service not known",
		"getaddrinfo", "dial tcp", "dial udp", "enetunreach", "eai_again", "failed to establish a new connection", "network unreachable",
	}},
	{"C13", "privileges", func(w Withheld) bool { return w.Privileges }, []string{
		"permission denied", "operation not permitted", "read-only file system", "eacces", "eperm", "erofs",
		"must be run as root", "must be root", "unknown user", "unknown userid", "no matching entries in passwd", "$home is not defined",
	}},
	{"C15", "files of the machine", func(w Withheld) bool { return w.Files }, []string{
		"no such file or directory", "enoent", "filenotfounderror",
	}},
}

// confined checks what the function did without (C13 to C15): an example that
// should succeed fails, and standard error says what was missing.
func (r *runner) confined(ex Example, base ran) {
	for _, d := range denials {
		if d.applies(r.opts.Withheld) {
			r.checked(d.check)
		}
	}
	if base.exit == 0 || expectsFailure(ex) {
		return
	}
	said := strings.ToLower(base.stderr)
	for _, d := range denials {
		if !d.applies(r.opts.Withheld) {
			continue
		}
		for _, sign := range d.signs {
			if strings.Contains(said, sign) {
				r.add(d.check, Error, fmt.Sprintf("without %s the function fails with exit code %d", d.what, base.exit), base.stderr)
				return
			}
		}
	}
}

func expectsFailure(ex Example) bool {
	if ex.Expected == nil {
		return false
	}
	want, err := resourcelist.Read(ex.Expected, resourcelist.ReadOptions{})
	return err == nil && resourcelist.HasErrors(want.Results)
}
