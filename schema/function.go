package schema

import (
	"fmt"
	"slices"
	"strings"
)

// catalog checks what only catalogs have, and then each function.
func (c *checker) catalog(root, spec cursor) {
	if meta, ok := root.mapping("metadata"); !ok {
		if _, there := root.field("metadata"); !there && c.v.Level == Publish {
			root.reportKey(ruleMetadata, "", `missing "metadata.name"`)
		}
	} else if name, f, ok := meta.text("name"); ok {
		if !dnsName.MatchString(name) || len(name) > 253 {
			f.report(ruleMetadata, "use lower case letters, digits, - and .", "name %s is not a DNS name", display(name))
		}
	} else if _, there := meta.field("name"); !there && c.v.Level == Publish {
		meta.reportKey(ruleMetadata, "", `missing "name"`)
	}
	functions, there := spec.field("krmFunctions")
	if list, ok := functions.v.([]any); there && ok && len(list) == 0 {
		functions.report(ruleEmpty, "", "no functions")
	}
	first := map[string]cursor{}  // group/kind/version -> where it is first
	folded := map[string]string{} // group and kind in lower case -> kind as first written
	for _, fn := range functions.items() {
		c.function(fn)
		group, _, _ := fn.text("group")
		kind, kindAt := functionKind(fn)
		if kind == "" {
			continue
		}
		key := group + "\x00" + strings.ToLower(kind)
		if other, ok := folded[key]; !ok {
			folded[key] = kind
		} else if other != kind {
			kindAt.report(ruleCase, "rename one of them", "kind %s differs from %s of the same group in case only", display(kind), display(other))
		}
		seen := map[string]bool{}
		for _, v := range fn.fieldItems("versions") {
			name, f, ok := v.text("name")
			if !ok || seen[name] {
				continue // versions within one function are looked at there
			}
			seen[name] = true
			gvk := group + "\x00" + kind + "\x00" + name
			if earlier, ok := first[gvk]; ok {
				// KC-085: the first one wins.
				f.report(ruleShadowed, "remove one of them", "%s/%s, kind %s, is defined before, by %s, which wins", group, name, kind, earlier.pathString())
			} else {
				first[gvk] = fn
			}
		}
	}
}

// functionKind is the kind of a function and where it stands.
func functionKind(fn cursor) (string, cursor) {
	if names, ok := fn.mapping("names"); ok {
		if kind, f, ok := names.text("kind"); ok {
			return kind, f
		}
	}
	kind, f, _ := fn.text("kind")
	return kind, f
}

// definitionName checks the metadata of a definition, which the KEP's schema
// does not have but its readers allow.
func (c *checker) definitionName(root cursor) {
	meta, ok := root.mapping("metadata")
	if !ok {
		return
	}
	if name, f, ok := meta.text("name"); ok && (!dnsName.MatchString(name) || len(name) > 253) {
		f.report(ruleName, "use lower case letters, digits, - and .", "name %s is not a DNS name", display(name))
	}
}

// function checks the spec of one function (KC-047 to KC-068).
func (c *checker) function(fn cursor) {
	if group, f, ok := fn.text("group"); ok {
		switch {
		case group == "":
			f.report(ruleGroup, "use a domain name that you control", "the group is empty")
		case !dnsName.MatchString(group) || len(group) > 253:
			f.report(ruleGroup, "use lower case letters, digits, - and .", "group %s is not a DNS name", display(group))
		}
	}
	c.names(fn)
	for _, name := range []string{"description", "publisher"} {
		if s, f, ok := fn.text(name); ok && strings.TrimSpace(s) == "" {
			f.report(rulePublisher, "", "%s is empty", name)
		}
	}
	if s, f, ok := fn.text("home"); ok {
		c.documentation(f, s)
	}
	shared, hasShared := fn.mapping("runtime")
	if f, there := fn.field("runtime"); there {
		f.reportKey(ruleRuntime, "move it into each version", "%s",
			c.byLevel("runtime beside versions applies to every version that has none", "runtime must be in each version"))
	}
	if hasShared {
		c.runtime(shared)
	}
	versions, there := fn.field("versions")
	list, isList := versions.v.([]any)
	if there && isList && len(list) == 0 {
		versions.report(ruleVersions, "", "no versions: nothing to resolve")
	}
	first := map[string]cursor{}
	for _, v := range versions.items() {
		if _, ok := v.v.(map[string]any); !ok {
			continue
		}
		if name, f, ok := v.text("name"); ok {
			c.versionName(f, name)
			if earlier, dup := first[name]; dup {
				f.report(ruleVersions, "remove one of them", "version %s is defined before, at line %d, which wins", display(name), earlier.line())
			} else {
				first[name] = f
			}
		}
		c.version(fn, v, shared, hasShared)
	}
}

func (c *checker) names(fn cursor) {
	kind, at := functionKind(fn)
	beside, besideAt, hasBeside := fn.text("kind")
	names, hasNames := fn.mapping("names")
	inNames, _, hasInNames := names.text("kind")
	switch {
	case hasBeside && hasNames && hasInNames && beside != inNames:
		f := finding{rule: ruleNames, path: besideAt.path, message: fmt.Sprintf("kind %s beside group differs from names.kind %s", display(beside), display(inNames)), fix: "keep names.kind", onKey: true}
		c.report(f.at(Error))
	case hasBeside:
		besideAt.reportKey(ruleNames, "write names: {kind: …}", "%s", c.byLevel("kind beside group is read as names.kind", "kind must be in names"))
	}
	if kind == "" {
		if hasInNames || hasBeside {
			c.report(finding{rule: ruleKindName, path: at.path, message: "the kind is empty"}.at(Error))
		}
		return
	}
	if !kindName.MatchString(kind) {
		at.report(ruleKindName, "use a word in CamelCase", "%s is not the name of a kind", display(kind))
	}
}

func (c *checker) versionName(f cursor, name string) {
	switch {
	case name == "":
		c.report(finding{rule: ruleVersions, path: f.path, message: "the name is empty"}.at(Error))
	case strings.ContainsAny(name, "/ ") || strings.IndexFunc(name, hidden) >= 0:
		c.report(finding{rule: ruleVersions, path: f.path, message: fmt.Sprintf("%s cannot be the last part of an apiVersion", display(name)), fix: "write a version such as v1 or v1beta1"}.at(Error))
	case !apiLabel.MatchString(name):
		c.report(finding{rule: ruleVersions, path: f.path, message: fmt.Sprintf("%s is not a version as Kubernetes APIs have them", display(name)), fix: "write a version such as v1 or v1beta1"}.at(Warning))
	}
}

func (c *checker) version(fn, v, shared cursor, hasShared bool) {
	rt, there := v.field("runtime")
	if _, ok := rt.v.(map[string]any); ok {
		c.runtime(rt)
	}
	switch {
	case there && !hasRuntime(rt):
		c.noRuntime(rt)
	case !there && !(hasShared && hasRuntime(shared)):
		c.noRuntime(v)
	}
	if s, f, ok := v.text("usage"); ok {
		c.documentation(f, s)
	}
	if examples, ok := v.field("examples"); ok {
		if list, isList := examples.v.([]any); isList && len(list) == 0 {
			examples.report(ruleURI, "name the README.md of an example", "no examples") // KC-053
		}
		for _, e := range examples.items() {
			if s, ok := e.v.(string); ok {
				c.documentation(e, s)
			}
		}
	}
	if s, f, ok := v.text("license"); ok {
		c.license(f, s)
	}
	if own, ok := v.field("maintainers"); ok {
		all, _ := fn.field("maintainers")
		if sameStrings(own.v, all.v) {
			own.reportKey(ruleMaintainers, "remove it here", "maintainers are the same as those of the function")
		}
	}
	if s, ok := v.mapping("schema"); ok {
		if o, ok := s.mapping("openAPIV3Schema"); ok {
			c.openAPI(o)
		}
	}
}

func sameStrings(a, b any) bool {
	x, ok1 := a.([]any)
	y, ok2 := b.([]any)
	return ok1 && ok2 && len(x) > 0 && slices.EqualFunc(x, y, func(p, q any) bool {
		s, isString := p.(string)
		return isString && s == q
	})
}

// hasRuntime tells whether one of the runtimes is there (KC-057, and starlark,
// which counts for it).
func hasRuntime(rt cursor) bool {
	for _, name := range []string{"container", "exec", "starlark"} {
		if f, ok := rt.field(name); ok && f.v != nil {
			return true
		}
	}
	return false
}

func (c *checker) noRuntime(u cursor) {
	msg := "no runtime: needs container, exec or starlark"
	if m, _ := u.v.(map[string]any); len(u.path) > 0 && u.path[len(u.path)-1] == "runtime" && len(m) > 0 {
		names := make([]string, 0, len(m))
		for k := range m {
			names = append(names, display(k))
		}
		slices.Sort(names)
		msg = fmt.Sprintf("unknown runtime %s: needs container, exec or starlark", strings.Join(names[:min(3, len(names))], ", "))
	}
	if c.v.Level == Consume {
		msg += "; the version cannot be resolved"
	}
	u.reportKey(ruleNoRuntime, "", "%s", msg)
}

// runtime checks the runtimes of one version, or of all versions.
func (c *checker) runtime(rt cursor) {
	if container, ok := rt.mapping("container"); ok {
		c.container(container)
	}
	if exec, ok := rt.mapping("exec"); ok {
		c.exec(exec)
	}
	if script, ok := rt.field("starlark"); ok && script.v != nil {
		c.starlark(script)
	}
}

func (c *checker) container(u cursor) {
	if fs, ok := u.field("requireFilesystem"); ok {
		mount, both := u.field("requireStorageMount")
		if both && mount.v != fs.v {
			// A permission: never choose one of two readings.
			c.report(finding{rule: ruleFilesystem, path: fs.path, onKey: true, message: "requireFilesystem and requireStorageMount differ", fix: "keep requireStorageMount"}.at(Error))
		} else {
			fs.reportKey(ruleFilesystem, "write requireStorageMount", "%s", c.byLevel("requireFilesystem is read as requireStorageMount", "requireFilesystem must be requireStorageMount"))
		}
	}
	sha, shaAt, hasSHA := u.text("sha256")
	if hasSHA {
		c.digest(shaAt, sha)
	}
	image, f, ok := u.text("image")
	if !ok {
		return
	}
	if isLocalImage(image) {
		if !c.source {
			c.local(f, image)
		}
		return
	}
	if err := checkImage(image); err != nil {
		f.report(ruleImage, "", "image %s %s", display(image), err)
		return
	}
	tag, digest := imageParts(image)
	sha = strings.TrimPrefix(sha, "sha256:")
	switch {
	case digest != "" && isHexDigest(sha) && digest != "sha256:"+sha:
		c.report(finding{rule: ruleImageDigest, path: shaAt.path, message: "sha256 differs from the digest in image", fix: "keep one of them"}.at(Error))
	case digest == "" && !hasSHA && semver.MatchString(tag):
		if _, there := u.field("sha256"); there {
			return // its type has been reported
		}
		if c.source {
			c.report(finding{rule: ruleImageDigest, path: f.path, message: fmt.Sprintf("image tag %s has no digest yet", display(tag)), fix: "krmcat publish pins the image to its digest"}.at(Notice))
			return
		}
		f.report(ruleImageDigest, "add sha256, or write the image as name@sha256:…; krmcat publish pins it", "image with the semantic version %s has no sha256: cannot be verified", display(tag)) // KC-059
	}
}

// local reports a local path in a document that others are to read. A catalog
// in a folder may well name the files beside it, so that consumers take it.
func (c *checker) local(f cursor, s string) {
	if c.v.Level == Consume {
		return
	}
	f.report(ruleLocation, "krmcat publish uploads the file and writes its location", "%s is a local path, which consumers do not have", display(s))
}

// digest checks the form of a sha256 (KC-067, KC-078).
func (c *checker) digest(f cursor, s string) {
	const tail = "; cannot be verified, and is refused at run time"
	msg, fix := "", ""
	switch rest, prefixed := strings.CutPrefix(s, "sha256:"); {
	case isHexDigest(s):
		return
	case prefixed && isHexDigest(rest):
		if c.v.Level == Consume {
			return // one reading only
		}
		msg, fix = "sha256 must not have the prefix sha256:", "remove the prefix"
	case isHexDigest(strings.ToLower(s)):
		msg, fix = "sha256 must be in lower case", "write "+strings.ToLower(s)
		if c.v.Level == Consume {
			return
		}
	default:
		msg = fmt.Sprintf("%s is not a sha256 of 64 hexadecimal digits", display(s))
		if c.v.Level == Consume {
			msg += tail
		}
	}
	f.report(ruleDigest, fix, "%s", msg)
}

func (c *checker) exec(u cursor) {
	platforms, ok := u.field("platforms")
	if list, isList := platforms.v.([]any); ok && isList && len(list) == 0 {
		platforms.report(ruleNoRuntime, "", "no platforms")
	}
	first := map[string]cursor{}
	for _, p := range platforms.items() {
		if _, ok := p.v.(map[string]any); !ok {
			continue
		}
		os, _, hasOS := p.text("os")
		arch, _, hasArch := p.text("arch")
		if hasOS && hasArch {
			key := os + "/" + arch
			if earlier, dup := first[key]; dup {
				p.report(ruleNoRuntime, "remove one of them", "platform %s is defined before, at line %d, which wins", display(key), earlier.line())
			} else {
				first[key] = p
			}
		}
		if bin, f, ok := p.text("bin"); ok {
			if err := checkBin(bin); err != nil {
				f.report(ruleBin, "", "bin %s %s", display(bin), err)
			}
		}
		uri, uriAt, hasURI := p.text("uri")
		c.download(p, uri, uriAt, hasURI)
	}
}

// download checks a location and the sha256 beside it.
func (c *checker) download(u cursor, uri string, uriAt cursor, hasURI bool) {
	local := hasURI && isLocal(uri)
	if hasURI && !(local && c.source) {
		if local {
			c.local(uriAt, uri)
		} else if err := checkURI(uri); err != nil {
			uriAt.report(ruleLocation, "", "%s %s", display(uri), err)
		}
	}
	if sha, f, ok := u.text("sha256"); ok {
		c.digest(f, sha)
		return
	}
	if _, there := u.field("sha256"); there || !hasURI || local && c.source || ociDigest(uri) != "" {
		return
	}
	msg := `missing "sha256"`
	if c.v.Level == Consume {
		msg += "; cannot be verified, and is refused at run time"
	}
	fix := "add the sha256 of the download"
	if strings.HasPrefix(uri, "oci://") {
		fix = "add the sha256, or write the digest into the reference"
	}
	u.reportKey(ruleDigest, fix, "%s", msg) // KC-078, KC-080
}

// starlark checks a script: its location, or a mapping with uri or path and
// sha256.
func (c *checker) starlark(u cursor) {
	sev := ruleStarlark.Severity(c.v.Level)
	if c.v.Level == Publish && c.v.OnlyKEP {
		sev = Error
	}
	hasDigest := false
	if uri, ok := u.v.(string); ok {
		hasDigest = ociDigest(uri) != ""
	} else if m, ok := u.v.(map[string]any); ok {
		_, hasDigest = m["sha256"]
	}
	msg := "the starlark runtime is not in the KEP's schema; accepted"
	if c.v.Level == Consume && !hasDigest {
		msg += ", but without a digest it cannot be verified, and is refused at run time"
	}
	c.report(finding{rule: ruleStarlark, path: u.path, onKey: true, message: msg}.at(sev))

	switch u.v.(type) {
	case string:
		uri := u.v.(string)
		c.script(u, uri)
		if c.v.Level == Publish && !hasDigest && !(c.source && isLocal(uri)) {
			u.report(ruleDigest, "write {uri: …, sha256: …}", "the script has no sha256") // KC-080
		}
	case map[string]any:
		var given []cursor
		for _, name := range []string{"uri", "path", "url"} {
			if s, f, ok := u.text(name); ok {
				given = append(given, f)
				c.script(f, s)
			}
		}
		switch len(given) {
		case 0:
			u.reportKey(ruleRequired, "", `missing "uri"`)
			return
		case 1:
		default:
			c.report(finding{rule: ruleLocation, path: given[1].path, message: "the script has more than one location", fix: "keep uri", onKey: true}.at(Error))
		}
		if sha, f, ok := u.text("sha256"); ok {
			c.digest(f, sha)
			return
		}
		uri, _ := given[0].v.(string)
		if _, there := u.field("sha256"); !there && c.v.Level == Publish && ociDigest(uri) == "" && !(c.source && isLocal(uri)) {
			u.reportKey(ruleDigest, "add the sha256 of the script", `missing "sha256"`) // KC-080
		}
	}
}

func (c *checker) script(f cursor, uri string) {
	if isLocal(uri) {
		if !c.source {
			c.local(f, uri)
		}
		return
	}
	if err := checkURI(uri); err != nil {
		f.report(ruleLocation, "", "%s %s", display(uri), err)
	}
}

// documentation checks a URI that people follow (KC-052, KC-053).
func (c *checker) documentation(f cursor, s string) {
	if c.source && isLocal(s) {
		return
	}
	if err := checkURI(s); err != nil {
		f.report(ruleURI, "write an https, git or oci URI", "%s %s", display(s), err)
	}
}

// license checks the license (KC-055). The KEP's enum has one only; krmcat
// takes any SPDX license.
func (c *checker) license(f cursor, s string) {
	if s == kepLicense || s == spdxLicense && c.v.Level == Consume {
		return
	}
	spdx := isSPDX(s)
	switch {
	case c.v.Level == Consume:
		if !spdx {
			f.report(ruleLicense, "", "license %s is not an SPDX identifier", display(s))
		}
	case c.v.OnlyKEP:
		f.report(ruleLicense, "write "+kepLicense, "license %s is not in the KEP's list", display(s))
	case spdx:
		fix := ""
		if s == spdxLicense {
			fix = "write " + kepLicense
		}
		c.report(finding{rule: ruleLicense, path: f.path, message: fmt.Sprintf("license %s is not in the KEP's list, which has only %q", display(s), kepLicense), fix: fix}.at(Notice))
	default:
		fix := ""
		if l := strings.ToLower(s); strings.Contains(l, "apache") {
			fix = "write " + kepLicense
		}
		f.report(ruleLicense, fix, "license %s is neither %q nor an SPDX identifier", display(s), kepLicense)
	}
}

// namesLocalFile tells whether a document names a local file as a runtime.
func namesLocalFile(root cursor, definition string) bool {
	spec, _ := root.mapping("spec")
	functions := []cursor{spec}
	if definition == KindCatalog {
		functions = spec.fieldItems("krmFunctions")
	}
	for _, fn := range functions {
		for _, v := range append(fn.fieldItems("versions"), fn) {
			rt, _ := v.mapping("runtime")
			container, _ := rt.mapping("container")
			if image, _, ok := container.text("image"); ok && isLocalImage(image) {
				return true
			}
			exec, _ := rt.mapping("exec")
			for _, p := range exec.fieldItems("platforms") {
				if uri, _, ok := p.text("uri"); ok && isLocal(uri) {
					return true
				}
			}
			script, _ := rt.field("starlark")
			if uri, ok := script.v.(string); ok && isLocal(uri) {
				return true
			}
			for _, name := range []string{"uri", "path", "url"} {
				if uri, _, ok := script.text(name); ok && isLocal(uri) {
					return true
				}
			}
		}
	}
	return false
}
