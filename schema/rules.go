package schema

import "fmt"

// A Rule is something that a document is checked for. Its identifiers are
// stable; docs/rules has a section for each rule.
type Rule struct {
	// Number is unique among the rules of one family.
	Number int
	// Reading rules are about text that is no document. They have the same
	// identifier, KR001 and so on, at both levels; the others are KC101 and so
	// on at level [Consume] and KP201 and so on at level [Publish].
	Reading bool
	// Title is a short description in the form of a statement that is broken.
	Title string
	// Consume and Publish are the usual severities at the two levels. A
	// negative one means that the rule is not checked at that level.
	Consume, Publish Severity
}

// off is the severity of a rule at a level at which it is not checked.
const off Severity = -1

// ID is the identifier of the rule at a level.
func (r Rule) ID(l Level) string {
	switch {
	case r.Reading:
		return fmt.Sprintf("KR%03d", r.Number)
	case l == Consume:
		return fmt.Sprintf("KC%d", 100+r.Number)
	}
	return fmt.Sprintf("KP%d", 200+r.Number)
}

// Severity is the usual severity at a level.
func (r Rule) Severity(l Level) Severity {
	if l == Consume {
		return r.Consume
	}
	return r.Publish
}

// The rules. Numbers up to 24 are those of the table of places where KEP-2906
// contradicts itself.
var (
	ruleSyntax      = Rule{1, true, "The text is YAML or JSON", Error, Error}
	ruleEncoding    = Rule{2, true, "The text is UTF-8 without control characters", Error, Error}
	ruleLimit       = Rule{3, true, "The text keeps within the limits on size, depth and expansion", Error, Error}
	ruleDuplicate   = Rule{4, true, "A key occurs once in its mapping", Error, Error}
	ruleKey         = Rule{5, true, "Keys are strings", Error, Error}
	ruleAlias       = Rule{6, true, "An alias stands for something else in the same document", Error, Error}
	ruleTag         = Rule{7, true, "Values have no tags but those of JSON's types", Error, Error}
	ruleNumber      = Rule{8, true, "Numbers are finite", Error, Error}
	ruleNoDocument  = Rule{9, true, "There is a document", Error, Error}
	ruleKind        = Rule{10, true, "The apiVersion and kind are ones that krmcat checks", Error, Error}
	ruleType        = Rule{11, true, "A field has the type that its schema gives", Error, Error}
	ruleRequired    = Rule{12, true, "Required fields are there", Error, Error}
	rulePlaceholder = Rule{13, true, `No line is a literal "..." placeholder`, Error, Error}

	ruleCatalogKind = Rule{1, false, "The kind of a catalog is KRMFunctionCatalog", Warning, Error}
	ruleRuntime     = Rule{2, false, "The runtime is inside of each version", Warning, Error}
	ruleNames       = Rule{3, false, "The kind of a function is in names.kind", Warning, Error}
	ruleStarlark    = Rule{4, false, "The starlark runtime is not in the KEP's schema", Warning, Notice}
	ruleFilesystem  = Rule{5, false, "The permission for storage is called requireStorageMount", Warning, Error}
	ruleNoRuntime   = Rule{6, false, "A version has a container, exec or starlark runtime", Warning, Error}
	ruleImageDigest = Rule{7, false, "An image with a semantic version has a digest", Warning, Error}
	ruleDigest      = Rule{8, false, "What is downloaded has a sha256 of 64 hexadecimal digits", Warning, Error}
	ruleNoSchema    = Rule{9, false, "openAPIV3Schema is an object", Warning, Error}
	ruleBoolean     = Rule{10, false, "Permissions and idempotent are true or false", Warning, Error}
	rulePublisher   = Rule{11, false, "A function has a description and a publisher", Warning, Error}
	ruleVersion     = Rule{12, false, "A version has schema, idempotent, usage, examples and license", Warning, Error}
	ruleURI         = Rule{13, false, "Documentation is named by URI, with at least one example", off, Error}
	ruleLicense     = Rule{14, false, "The license is Apache 2.0 or an SPDX identifier", Warning, Error}
	ruleName        = Rule{15, false, "metadata.name of a definition is a DNS label", off, Error}
	ruleMetadata    = Rule{16, false, "A catalog has a metadata.name and well-formed metadata", Warning, Error}
	ruleVersions    = Rule{17, false, "A function has versions, each once, with names as of APIs", Warning, Error}
	ruleShadowed    = Rule{18, false, "A catalog defines a function version once", Warning, Error}
	ruleGroup       = Rule{19, false, "The group is a DNS name", Warning, Error}
	rulePlatform    = Rule{20, false, "The os and arch are among those of the KEP", Warning, Error}
	ruleUnknown     = Rule{21, false, "Fields are known", Warning, Warning}
	ruleMaintainers = Rule{23, false, "A version lists maintainers only if they differ from the function's", off, Warning}
	ruleEmpty       = Rule{24, false, "A catalog has functions", Warning, Error}
	ruleImage       = Rule{26, false, "An image is a container image reference", Error, Error}
	ruleBin         = Rule{27, false, "bin is the path of a file inside of the download", Error, Error}
	ruleLocation    = Rule{28, false, "A location is one that a consumer can and may fetch", Warning, Error}
	ruleSchema      = Rule{29, false, "openAPIV3Schema is a structural schema", Warning, Error}
	ruleBooleanWord = Rule{31, false, "No plain scalar is a boolean in YAML 1.1 only", Warning, Warning}
	ruleAnchors     = Rule{32, false, "Published documents have no aliases and merge keys", off, Error}
	ruleCase        = Rule{33, false, "Kinds of one group differ in more than case", Warning, Error}
	ruleKindName    = Rule{34, false, "names.kind is the name of a kind", Warning, Error}
	ruleIgnored     = Rule{35, false, "A field for people has the type that its schema gives", Warning, Error}
)

// Rules returns all rules, those about reading first.
func Rules() []Rule {
	return []Rule{
		ruleSyntax, ruleEncoding, ruleLimit, ruleDuplicate, ruleKey, ruleAlias, ruleTag, ruleNumber, ruleNoDocument,
		ruleKind, ruleType, ruleRequired, rulePlaceholder,
		ruleCatalogKind, ruleRuntime, ruleNames, ruleStarlark, ruleFilesystem, ruleNoRuntime, ruleImageDigest, ruleDigest,
		ruleNoSchema, ruleBoolean, rulePublisher, ruleVersion, ruleURI, ruleLicense, ruleName, ruleMetadata, ruleVersions,
		ruleShadowed, ruleGroup, rulePlatform, ruleUnknown, ruleMaintainers, ruleEmpty, ruleImage, ruleBin, ruleLocation,
		ruleSchema, ruleBooleanWord, ruleAnchors, ruleCase, ruleKindName, ruleIgnored,
	}
}
