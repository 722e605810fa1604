package signing

import (
	"slices"
	"strings"
)

// TrustCapabilities is a ceiling for what functions may be granted, and what
// one of them asks for. The zero value is nothing.
type TrustCapabilities struct {
	// Exec is to run as a program of this machine, without a container.
	Exec bool `json:"exec,omitempty"`
	// Network is to use the network.
	Network bool `json:"network,omitempty"`
	// Storage is to read folders of this machine.
	Storage bool `json:"storage,omitempty"`
	// Write is to change folders of this machine; it needs Storage.
	Write bool `json:"write,omitempty"`
	// Env are the names of environment variables that may be given.
	Env []string `json:"env,omitempty"`
}

// Beyond are the parts of want that c does not allow, in words; none if want
// is within c. A nil ceiling allows everything.
func (c *TrustCapabilities) Beyond(want TrustCapabilities) []string {
	if c == nil {
		return nil
	}
	var list []string
	for _, x := range []struct {
		want, have bool
		name       string
	}{{want.Exec, c.Exec, "exec"}, {want.Network, c.Network, "network"}, {want.Storage, c.Storage, "storage"}, {want.Write, c.Write && c.Storage, "write"}} {
		if x.want && !x.have {
			list = append(list, x.name)
		}
	}
	for _, v := range want.Env {
		if !slices.Contains(c.Env, v) {
			list = append(list, "env "+v)
		}
	}
	return list
}

// within is what both ceilings allow.
func (c *TrustCapabilities) within(o *TrustCapabilities) *TrustCapabilities {
	switch {
	case c == nil:
		return o
	case o == nil:
		return c
	}
	both := &TrustCapabilities{Exec: c.Exec && o.Exec, Network: c.Network && o.Network, Storage: c.Storage && o.Storage, Write: c.Write && o.Write}
	for _, v := range c.Env {
		if slices.Contains(o.Env, v) {
			both.Env = append(both.Env, v)
		}
	}
	return both
}

// String lists what is allowed, or asked for.
func (c *TrustCapabilities) String() string {
	if c == nil {
		return "anything"
	}
	var list []string
	for _, x := range []struct {
		on   bool
		name string
	}{{c.Exec, "exec"}, {c.Network, "network"}, {c.Storage, "storage"}, {c.Write, "write"}} {
		if x.on {
			list = append(list, x.name)
		}
	}
	for _, v := range c.Env {
		list = append(list, "env "+v)
	}
	if len(list) == 0 {
		return "nothing"
	}
	return strings.Join(list, ", ")
}
