package registry

import (
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/opencontainers/go-digest"
	orasregistry "oras.land/oras-go/v2/registry"
)

// Reference names an artifact in a registry: host/repository, with a tag, a
// digest, both or neither. It is comparable.
type Reference struct {
	Host       string // with a port, if there is one
	Repository string
	Tag        string
	Digest     digest.Digest
}

// ParseReference reads host/repository[:tag][@digest], with or without
// oci:// in front. The host is required: no registry is the default one.
func ParseReference(s string) (Reference, error) {
	rest := strings.TrimPrefix(s, "oci://")
	var r Reference
	name, dig, hasDigest := strings.Cut(rest, "@")
	if hasDigest {
		r.Digest = digest.Digest(dig)
		if err := r.Digest.Validate(); err != nil {
			return Reference{}, fmt.Errorf("reference %q: %w", s, err)
		}
	}
	if i := strings.LastIndexByte(name, ':'); i > strings.LastIndexByte(name, '/') {
		name, r.Tag = name[:i], name[i+1:]
		t := orasregistry.Reference{Reference: r.Tag}
		if err := t.ValidateReferenceAsTag(); err != nil {
			return Reference{}, fmt.Errorf("reference %q: %q is not a tag (letters, digits, '_', '.' and '-', at most 128)", s, r.Tag)
		}
	}
	var ok bool
	r.Host, r.Repository, ok = strings.Cut(name, "/")
	if !ok || r.Host == "" || r.Repository == "" {
		return Reference{}, fmt.Errorf("reference %q: no registry host and repository (write host/repository:tag)", s)
	}
	if !strings.ContainsAny(r.Host, ".:") && r.Host != "localhost" {
		return Reference{}, fmt.Errorf("reference %q: %q is not a registry host (write host/repository:tag; there is no default registry)", s, r.Host)
	}
	o := orasregistry.Reference{Registry: r.Host, Repository: r.Repository}
	if err := o.ValidateRegistry(); err != nil {
		return Reference{}, fmt.Errorf("reference %q: %q is not a registry host", s, r.Host)
	}
	if err := o.ValidateRepository(); err != nil {
		return Reference{}, fmt.Errorf("reference %q: %q is not a repository name (lower case letters, digits and separators)", s, r.Repository)
	}
	return r, nil
}

// Name is host/repository, without tag and digest.
func (r Reference) Name() string { return r.Host + "/" + r.Repository }

// String is the reference as ParseReference reads it.
func (r Reference) String() string {
	s := r.Name()
	if r.Tag != "" {
		s += ":" + r.Tag
	}
	if r.Digest != "" {
		s += "@" + r.Digest.String()
	}
	return s
}

// URI is the reference by digest as it stands in documents, such as
// oci://host/repository@sha256:….
func (r Reference) URI(d digest.Digest) string { return "oci://" + r.Name() + "@" + d.String() }

// target is what a registry is asked for: the digest if there is one, else
// the tag.
func (r Reference) target() string {
	if r.Digest != "" {
		return r.Digest.String()
	}
	return r.Tag
}

// IsLoopback reports whether a registry host is on this machine. Such
// registries are spoken to without TLS unless asked otherwise, as docker and
// podman users expect.
func IsLoopback(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	if host == "localhost" {
		return true
	}
	a, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil && a.IsLoopback()
}
