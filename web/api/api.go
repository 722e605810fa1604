// Package api holds the JSON types of krmcat's HTTP API, for servers and
// clients alike. Readers ignore fields that they do not know: fields are
// added, and never change their meaning within v1.
package api

import "time"

// Media types of answers.
const (
	MediaTypeJSON    = "application/json"
	MediaTypeProblem = "application/problem+json" // RFC 9457
	MediaTypeYAML    = "application/yaml"         // RFC 9512
)

// Page is one page of a list.
type Page[T any] struct {
	Items []T `json:"items"`
	Total int `json:"total"`
	// Next is the path of the next page; empty on the last.
	Next string `json:"next,omitempty"`
	// Corrected is the search that was made instead, because nothing was
	// found for what was asked.
	Corrected string `json:"corrected,omitempty"`
}

// Function is a function in a list.
type Function struct {
	Group         string    `json:"group"`
	Kind          string    `json:"kind"`
	Description   string    `json:"description"`
	Publisher     string    `json:"publisher"`
	PublisherSlug string    `json:"publisherSlug,omitempty"` // the publisher in URLs
	Tags          []string  `json:"tags"`
	Repository    string    `json:"repository"`
	Latest        string    `json:"latest"` // tag of the release that is shown
	Digest        string    `json:"digest"` // of its artifact
	Released      bool      `json:"released"`
	Prerelease    bool      `json:"prerelease"`
	Signed        bool      `json:"signed"` // a signature is attached; the server did not verify it
	Status        string    `json:"status"` // active, deprecated or yanked
	Message       string    `json:"message,omitempty"`
	Replacement   string    `json:"replacement,omitempty"`
	Updated       time.Time `json:"updated"`
	Versions      []Version `json:"versions"`
	URL           string    `json:"url"` // path of the function's page
}

// Version is a version of a functionConfig, and the release that catalogs
// give for it.
type Version struct {
	APIVersion string   `json:"apiVersion"` // of the functionConfig
	Release    string   `json:"release"`
	Reference  string   `json:"reference"` // of the definition, host/repository@digest
	Runtimes   []string `json:"runtimes"`
	Platforms  []string `json:"platforms,omitempty"`
	Idempotent bool     `json:"idempotent"`
	Network    bool     `json:"network"`
	Storage    bool     `json:"storage"`
	License    string   `json:"license,omitempty"`
	InCatalog  bool     `json:"inCatalog"`
	Schema     string   `json:"schema"` // path of the functionConfig's JSON Schema
}

// FunctionDetail is everything about a function.
type FunctionDetail struct {
	Function
	Home        string   `json:"home,omitempty"`
	Source      string   `json:"source,omitempty"`
	Maintainers []string `json:"maintainers,omitempty"`
	// Releases are the tags of the function, the one that is shown first. The
	// fields are those that Renovate's custom datasources read.
	Releases  []Release `json:"releases"`
	Elsewhere []string  `json:"elsewhere,omitempty"` // other repositories with the same type
	Readme    string    `json:"readme,omitempty"`    // Markdown
	Document  string    `json:"definition"`          // the document as it was pushed
}

// Release is a published release, or another tag.
type Release struct {
	Version          string    `json:"version"` // the tag
	Repository       string    `json:"repository"`
	Digest           string    `json:"digest"`
	Reference        string    `json:"reference"`
	ReleaseTimestamp time.Time `json:"releaseTimestamp"`
	IsDeprecated     bool      `json:"isDeprecated"`
	SourceURL        string    `json:"sourceUrl,omitempty"`
	Prerelease       bool      `json:"prerelease"`
	Released         bool      `json:"released"` // the tag is a semantic version
	Signed           bool      `json:"signed"`
	Status           string    `json:"status"`
	Message          string    `json:"message,omitempty"`
	APIVersions      []string  `json:"apiVersions"`
}

// Resolution says what to run for a functionConfig.
type Resolution struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Publisher  string `json:"publisher"`
	Release    string `json:"release"`
	Definition string `json:"definition"` // reference of the definition, by digest
	Signed     bool   `json:"signed"`
	Status     string `json:"status"`
	Message    string `json:"message,omitempty"`

	Container *Container `json:"container,omitempty"`
	Exec      []Platform `json:"exec,omitempty"`
	Starlark  *Script    `json:"starlark,omitempty"`
}

// Container is a function as an image.
type Container struct {
	Image               string `json:"image"`
	Digest              string `json:"digest,omitempty"`
	RequireNetwork      bool   `json:"requireNetwork"`
	RequireStorageMount bool   `json:"requireStorageMount"`
}

// Platform is an executable for one platform.
type Platform struct {
	OS     string `json:"os"`
	Arch   string `json:"arch"`
	Bin    string `json:"bin"`
	URI    string `json:"uri"`
	SHA256 string `json:"sha256,omitempty"`
}

// Script is a Starlark script.
type Script struct {
	URI    string `json:"uri"`
	SHA256 string `json:"sha256,omitempty"`
}

// Catalog is a catalog that can be fetched.
type Catalog struct {
	Name      string     `json:"name"`
	Publisher string     `json:"publisher,omitempty"` // whose functions it has, if it was not pushed
	Functions int        `json:"functions"`
	Updated   time.Time  `json:"updated"`
	URL       string     `json:"url"`
	Snapshots []Snapshot `json:"snapshots"`
}

// Snapshot is a version of a catalog that never changes.
type Snapshot struct {
	Version   string    `json:"version"` // such as v20260102
	URL       string    `json:"url"`
	SHA256    string    `json:"sha256"` // of the document
	Reference string    `json:"reference"`
	Published time.Time `json:"published"`
	Signed    bool      `json:"signed"`
}

// Publisher is who functions are from.
type Publisher struct {
	Slug      string    `json:"slug"`
	Name      string    `json:"name"`
	Functions int       `json:"functions"`
	Updated   time.Time `json:"updated"`
	Catalog   string    `json:"catalog"` // path of the catalog of all of them
}

// Completion is a function as a shell completes it.
type Completion struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Reference  string `json:"reference"`
	Image      string `json:"image,omitempty"`
}

// Problem is the body of every answer that is not a success (RFC 9457).
type Problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail,omitempty"`
	Hint   string `json:"hint,omitempty"` // what to do
}

// Service is the document at /.well-known/krm-catalog.json, from which a
// client that was given only a host finds the rest.
type Service struct {
	APIVersion string            `json:"apiVersion"` // krmcat.dev/v1alpha1
	Kind       string            `json:"kind"`       // CatalogService
	Name       string            `json:"name"`
	Services   map[string]string `json:"services"`
	Feeds      map[string]string `json:"feeds"`
	Version    string            `json:"version,omitempty"` // of krmcat
}
