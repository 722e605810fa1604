package schema

import "fmt"

// A Rule is something that a document is checked for. Its identifiers are
// stable; docs/rules has a section for each rule.
type Rule struct {
	// Number is unique among the rules of one family.
	Number int
	// Family is what the rule is about. Rules of a family have the same
	// identifier at both levels, such as KR001. Those without a family, about
	// definitions and catalogs, are KC101 and so on at level [Consume] and
	// KP201 and so on at level [Publish].
	Family Family
	// Title is a short description in the form of a statement that is broken.
	Title string
	// Consume and Publish are the usual severities at the two levels. A
	// negative one means that the rule is not checked at that level.
	Consume, Publish Severity
}

// Family is a family of rules whose identifiers start with the same letters.
type Family string

// The families of rules.
const (
	Reading      Family = "KR" // text that is no document
	Config       Family = "KF" // functionConfigs against the schema of their function
	ResourceList Family = "KL" // ResourceLists
)

// off is the severity of a rule at a level at which it is not checked.
const off Severity = -1

// ID is the identifier of the rule at a level.
func (r Rule) ID(l Level) string {
	switch {
	case r.Family != "":
		return fmt.Sprintf("%s%03d", r.Family, r.Number)
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
	ruleSyntax      = Rule{1, Reading, "The text is YAML or JSON", Error, Error}
	ruleEncoding    = Rule{2, Reading, "The text is UTF-8 without control characters", Error, Error}
	ruleLimit       = Rule{3, Reading, "The text keeps within the limits on size, depth and expansion", Error, Error}
	ruleDuplicate   = Rule{4, Reading, "A key occurs once in its mapping", Error, Error}
	ruleKey         = Rule{5, Reading, "Keys are strings", Error, Error}
	ruleAlias       = Rule{6, Reading, "An alias stands for something else in the same document", Error, Error}
	ruleTag         = Rule{7, Reading, "Values have no tags but those of JSON's types", Error, Error}
	ruleNumber      = Rule{8, Reading, "Numbers are finite", Error, Error}
	ruleNoDocument  = Rule{9, Reading, "There is a document", Error, Error}
	ruleKind        = Rule{10, Reading, "The apiVersion and kind are ones that krmcat checks", Error, Error}
	ruleType        = Rule{11, Reading, "A field has the type that its schema gives", Error, Error}
	ruleRequired    = Rule{12, Reading, "Required fields are there", Error, Error}
	rulePlaceholder = Rule{13, Reading, `No line is a literal "..." placeholder`, Error, Error}

	ruleCatalogKind = Rule{1, "", "The kind of a catalog is KRMFunctionCatalog", Warning, Error}
	ruleRuntime     = Rule{2, "", "The runtime is inside of each version", Warning, Error}
	ruleNames       = Rule{3, "", "The kind of a function is in names.kind", Warning, Error}
	ruleStarlark    = Rule{4, "", "The starlark runtime is not in the KEP's schema", Warning, Notice}
	ruleFilesystem  = Rule{5, "", "The permission for storage is called requireStorageMount", Warning, Error}
	ruleNoRuntime   = Rule{6, "", "A version has a container, exec or starlark runtime", Warning, Error}
	ruleImageDigest = Rule{7, "", "An image with a semantic version has a digest", Warning, Error}
	ruleDigest      = Rule{8, "", "What is downloaded has a sha256 of 64 hexadecimal digits", Warning, Error}
	ruleNoSchema    = Rule{9, "", "openAPIV3Schema is an object", Warning, Error}
	ruleBoolean     = Rule{10, "", "Permissions and idempotent are true or false", Warning, Error}
	rulePublisher   = Rule{11, "", "A function has a description and a publisher", Warning, Error}
	ruleVersion     = Rule{12, "", "A version has schema, idempotent, usage, examples and license", Warning, Error}
	ruleURI         = Rule{13, "", "Documentation is named by URI, with at least one example", off, Error}
	ruleLicense     = Rule{14, "", "The license is Apache 2.0 or an SPDX identifier", Warning, Error}
	ruleName        = Rule{15, "", "metadata.name of a definition is a DNS label", off, Error}
	ruleMetadata    = Rule{16, "", "A catalog has a metadata.name and well-formed metadata", Warning, Error}
	ruleVersions    = Rule{17, "", "A function has versions, each once, with names as of APIs", Warning, Error}
	ruleShadowed    = Rule{18, "", "A catalog defines a function version once", Warning, Error}
	ruleGroup       = Rule{19, "", "The group is a DNS name", Warning, Error}
	rulePlatform    = Rule{20, "", "The os and arch are among those of the KEP", Warning, Error}
	ruleUnknown     = Rule{21, "", "Fields are known", Warning, Warning}
	ruleMaintainers = Rule{23, "", "A version lists maintainers only if they differ from the function's", off, Warning}
	ruleEmpty       = Rule{24, "", "A catalog has functions", Warning, Error}
	ruleImage       = Rule{26, "", "An image is a container image reference", Error, Error}
	ruleBin         = Rule{27, "", "bin is the path of a file inside of the download", Error, Error}
	ruleLocation    = Rule{28, "", "A location is one that a consumer can and may fetch", Warning, Error}
	ruleSchema      = Rule{29, "", "openAPIV3Schema is a structural schema", Warning, Error}
	ruleBooleanWord = Rule{31, "", "No plain scalar is a boolean in YAML 1.1 only", Warning, Warning}
	ruleAnchors     = Rule{32, "", "Published documents have no aliases and merge keys", off, Error}
	ruleCase        = Rule{33, "", "Kinds of one group differ in more than case", Warning, Error}
	ruleKindName    = Rule{34, "", "names.kind is the name of a kind", Warning, Error}
	ruleIgnored     = Rule{35, "", "A field for people has the type that its schema gives", Warning, Error}

	ruleListType       = Rule{1, ResourceList, "The fields of a ResourceList have the types of the specification", Error, Error}
	ruleListRequired   = Rule{2, ResourceList, "The required fields of a ResourceList are there", Error, Error}
	ruleListVersion    = Rule{3, ResourceList, "The version of a ResourceList is v1 or v1beta1", Warning, Warning}
	ruleListUnknown    = Rule{4, ResourceList, "The fields of a ResourceList are known", Warning, Warning}
	ruleListItem       = Rule{5, ResourceList, "An item has apiVersion, kind and metadata.name", Warning, Warning}
	ruleListAnnotation = Rule{6, ResourceList, "Annotations and labels are strings", Warning, Warning}
	ruleListPath       = Rule{7, ResourceList, "Paths are relative, with slashes, and stay in their folder", Error, Error}
	ruleListTwice      = Rule{8, ResourceList, "A resource is in the list once", Warning, Warning}
	ruleListResults    = Rule{9, ResourceList, "Results have the shape of the specification, not the older one", Warning, Warning}
	ruleListReference  = Rule{10, ResourceList, "A result with a field has a resourceRef", Error, Error}
	ruleListIndex      = Rule{11, ResourceList, "An index is an integer from 0", Error, Error}
)

// The rules about functionConfigs, which package openapi applies.
var (
	RuleConfigValue    = Rule{1, Config, "Values have the types, formats and ranges of the schema", Error, Error}
	RuleConfigRequired = Rule{2, Config, "Required fields are there", Error, Error}
	RuleConfigUnknown  = Rule{3, Config, "Fields are in the schema", Error, Error}
	RuleConfigRule     = Rule{4, Config, "The rules of x-kubernetes-validations hold", Error, Error}
	RuleConfigList     = Rule{5, Config, "Lists that are sets or maps have no element twice", Error, Error}
	RuleConfigMetadata = Rule{6, Config, "Metadata of the functionConfig and of embedded resources is well-formed", Error, Error}
	RuleConfigFunction = Rule{7, Config, "The apiVersion and kind name a function", Error, Error}
	RuleConfigPartial  = Rule{8, Config, "Everything could be checked", Warning, Warning}
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
		RuleConfigValue, RuleConfigRequired, RuleConfigUnknown, RuleConfigRule, RuleConfigList, RuleConfigMetadata,
		RuleConfigFunction, RuleConfigPartial,
		ruleListType, ruleListRequired, ruleListVersion, ruleListUnknown, ruleListItem, ruleListAnnotation, ruleListPath,
		ruleListTwice, ruleListResults, ruleListReference, ruleListIndex,
	}
}
