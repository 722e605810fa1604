package regserver

import (
	"net/http"
	"strings"

	"github.com/opencontainers/go-digest"

	"github.com/krmcat/krmcat/registry/regstore"
)

// resource is a kind of thing that a path names.
type resource int

const (
	resBase resource = iota
	resCatalog
	resBlob
	resUploads
	resUpload
	resManifest
	resTags
	resReferrers
)

// route is a request's path, taken apart and checked.
type route struct {
	resource   resource
	repository string
	reference  string        // of a manifest, as written: a tag or a digest
	digest     digest.Digest // of a blob, a subject, or a manifest by digest
	upload     string
}

type handler struct {
	action Action
	do     func(*call) error
}

// methods lists what can be done with each resource, with the number of the
// endpoint in the specification (distribution-spec 1.1, "Endpoints").
var methods = map[resource]map[string]handler{
	resBase: {
		http.MethodGet:  {ActionPing, (*call).ping}, // end-1
		http.MethodHead: {ActionPing, (*call).ping},
	},
	resCatalog: {
		http.MethodGet:  {ActionList, (*call).listRepositories}, // reserved; as Docker's registry has it
		http.MethodHead: {ActionList, (*call).listRepositories},
	},
	resBlob: {
		http.MethodGet:    {ActionPull, (*call).getBlob}, // end-2
		http.MethodHead:   {ActionPull, (*call).getBlob},
		http.MethodDelete: {ActionDelete, (*call).deleteBlob}, // end-10
	},
	resManifest: {
		http.MethodGet:    {ActionPull, (*call).getManifest}, // end-3
		http.MethodHead:   {ActionPull, (*call).getManifest},
		http.MethodPut:    {ActionPush, (*call).putManifest},      // end-7
		http.MethodDelete: {ActionDelete, (*call).deleteManifest}, // end-9
	},
	resUploads: {
		http.MethodPost: {ActionPush, (*call).startUpload}, // end-4a, end-4b, end-11
	},
	resUpload: {
		http.MethodPatch:  {ActionPush, (*call).appendUpload}, // end-5
		http.MethodPut:    {ActionPush, (*call).finishUpload}, // end-6
		http.MethodGet:    {ActionPush, (*call).uploadStatus}, // end-13
		http.MethodDelete: {ActionPush, (*call).cancelUpload}, // "Cancel a blob upload"
	},
	resTags: {
		http.MethodGet:  {ActionPull, (*call).listTags}, // end-8a, end-8b
		http.MethodHead: {ActionPull, (*call).listTags},
	},
	resReferrers: {
		http.MethodGet:  {ActionPull, (*call).listReferrers}, // end-12a, end-12b
		http.MethodHead: {ActionPull, (*call).listReferrers},
	},
}

func (r route) methods() map[string]handler { return methods[r.resource] }

// parseRoute reads a path from its end, as the words of the API may also be
// components of a repository's name. Everything it returns is checked: no
// driver sees a name, tag or digest that is not one.
func parseRoute(path string) (route, error) {
	rest, ok := strings.CutPrefix(path, "/v2")
	if !ok {
		return route{}, errNotFound
	}
	switch rest {
	case "", "/":
		return route{resource: resBase}, nil
	case "/_catalog":
		return route{resource: resCatalog}, nil
	}
	rest, ok = strings.CutPrefix(rest, "/")
	if !ok {
		return route{}, errNotFound
	}
	if name, ok := cutSuffixes(rest, "/blobs/uploads/", "/blobs/uploads"); ok {
		return named(route{resource: resUploads}, name)
	}
	if name, ok := strings.CutSuffix(rest, "/tags/list"); ok {
		return named(route{resource: resTags}, name)
	}
	i := strings.LastIndexByte(rest, '/')
	if i < 0 {
		return route{}, errNotFound
	}
	head, last := rest[:i], rest[i+1:]
	if name, ok := strings.CutSuffix(head, "/blobs/uploads"); ok {
		return named(route{resource: resUpload, upload: last}, name)
	}
	if name, ok := strings.CutSuffix(head, "/blobs"); ok {
		return withDigest(route{resource: resBlob}, name, last)
	}
	if name, ok := strings.CutSuffix(head, "/referrers"); ok {
		return withDigest(route{resource: resReferrers}, name, last)
	}
	if name, ok := strings.CutSuffix(head, "/manifests"); ok {
		r := route{resource: resManifest, reference: last}
		if strings.Contains(last, ":") {
			return withDigest(r, name, last)
		}
		if !regstore.ValidTag(last) {
			return route{}, errTag
		}
		return named(r, name)
	}
	return route{}, errNotFound
}

func cutSuffixes(s string, suffixes ...string) (string, bool) {
	for _, suffix := range suffixes {
		if t, ok := strings.CutSuffix(s, suffix); ok {
			return t, true
		}
	}
	return s, false
}

func named(r route, name string) (route, error) {
	if !regstore.ValidRepository(name) {
		return route{}, errName
	}
	r.repository = name
	return r, nil
}

func withDigest(r route, name, s string) (route, error) {
	d, err := regstore.ParseDigest(s)
	if err != nil {
		return route{}, errDigest(s, err)
	}
	r.digest = d
	return named(r, name)
}
