// Package version says which krmcat this is.
package version

import "runtime/debug"

// Version is the release, set by the linker with
// -X github.com/krmcat/krmcat/internal/version.Version=v1.2.3.
var Version = ""

// String is the release, the module version of a go install, or "devel".
func String() string {
	if Version != "" {
		return Version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "devel"
}
