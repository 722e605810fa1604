package conformance

// Check describes a check.
type Check struct {
	ID    string
	Title string
	// Rules are the numbers of the statements that the check is about, of
	// the functions specification (FS), the configuration functions'
	// semantics (CF), kpt's guide (KG) and KEP-2906 (KC).
	Rules []string
	// Remedy is what the author of a function does about a finding.
	Remedy string
}

// Checks are the checks of this package, in order. All but C23 and C27 are
// made by [Run]; those two compare what one run does not show, see
// [CheckExecutable], [CheckImage] and [CompareRuntimes].
func Checks() []Check {
	return []Check{
		{"C01", "standard output is exactly one document",
			[]string{"FS-05", "FS-07", "FS-27", "CF-03", "CF-06", "KG-07", "KG-08"},
			"write one ResourceList to standard output, also when there is nothing to change"},
		{"C02", "the document is a ResourceList, in the version of the input",
			[]string{"FS-06", "FS-10", "FS-11", "FS-13", "CF-02", "CF-05", "CF-12", "CF-14", "KG-12"},
			"read v1, v1beta1 and v1alpha1, and answer with kind ResourceList and the apiVersion of the input"},
		{"C03", "items is a list of Kubernetes objects",
			[]string{"FS-12", "FS-14", "CF-13"},
			"write items always, an empty list if there are none; each has apiVersion, kind and metadata.name"},
		{"C04", "nothing else is on standard output",
			[]string{"FS-31"},
			"write logs and messages to standard error"},
		{"C05", "the exit code says whether the function succeeded",
			[]string{"FS-32", "CF-07", "KG-22"},
			"exit with another code than 0 when a result is an error, and with 0 otherwise"},
		{"C06", "a failure is explained",
			[]string{"FS-08", "CF-08", "CF-09", "KG-10"},
			"say what is wrong in a result of severity error, or on standard error"},
		{"C07", "results have the fields of the specification",
			[]string{"FS-16", "FS-17", "FS-18", "FS-19", "FS-20", "FS-21", "FS-22", "FS-23", "FS-24", "FS-25", "FS-26",
				"KG-18", "KG-20", "KG-21", "KG-23", "KG-24", "KG-25", "KG-26", "KG-27", "KG-28"},
			"write results as a flat list, with the fields and severities of v1"},
		{"C08", "internal annotations survive, also unknown ones",
			[]string{"FS-39", "FS-40", "FS-41"},
			"leave annotations that start with internal.config.kubernetes.io/ as they are, and add none"},
		{"C09", "path and index annotations are kept, and new ones are clean",
			[]string{"FS-42", "FS-43", "FS-44", "FS-46"},
			"leave path and index alone; give new resources a relative path that nothing else has"},
		{"C10", "comments survive",
			[]string{"FS-34", "FS-47"},
			"change the parsed YAML nodes, not values decoded from them"},
		{"C11", "what is not changed keeps its order and format",
			nil,
			"keep the order of items and fields, and write unchanged items as they came"},
		{"C12", "the encoding is UTF-8, and JSON input gives the same items",
			[]string{"FS-27", "FS-28"},
			"parse the input as YAML, of which JSON is a part, and write UTF-8"},
		{"C13", "it runs as nobody, on a read-only root",
			[]string{"FS-30", "CF-16", "CF-17"},
			"need no user, no privileges and no home folder; write to the temporary folder only"},
		{"C14", "it runs without network, unless its definition says that it needs it",
			[]string{"FS-03", "CF-15", "KC-060", "KC-075"},
			"do without the network, or say requireNetwork in the definition"},
		{"C15", "it runs without files of the machine, unless its definition says that it needs them",
			[]string{"KC-061", "KC-075"},
			"take everything from the ResourceList, or say requireStorageMount in the definition"},
		{"C16", "a second run changes nothing, if the function says that it is idempotent",
			[]string{"FS-04", "KC-051", "KG-04", "KG-05"},
			"read what an earlier run wrote and bring it to the declared state, or say idempotent: false"},
		{"C17", "the same input gives the same output",
			nil,
			"use no time, no random numbers and no order of maps"},
		{"C18", "the functionConfig is what the schema allows",
			[]string{"FS-15", "KC-050", "KC-054"},
			"let schema and function agree: refuse what the schema does not allow, with a message"},
		{"C19", "unusual input is handled without a crash",
			[]string{"FS-15", "KG-16"},
			"check the input; refuse what cannot be used with a message and an exit code other than 0"},
		{"C20", "objects of unknown types pass through",
			[]string{"FS-33", "KG-03"},
			"change only what the function is for; pass everything else on, whatever its type"},
		{"C21", "a functionConfig of another type is refused",
			[]string{"KG-17"},
			"compare apiVersion and kind of the functionConfig with those that the function is for"},
		{"C22", "changes that users made to generated resources are kept",
			[]string{"CF-10", "KG-04", "KG-06"},
			"merge what is generated into what is there, so that fields of others stay"},
		{"C23", "what is published can be run",
			[]string{"CF-04", "KC-063", "KC-064", "KC-065"},
			"build for the platform that the definition names; give an image an ENTRYPOINT or CMD and a numeric USER"},
		{"C24", "many resources are no trouble",
			nil,
			"go through the items once; keep no list of lists"},
		{"C25", "the example gives its expected output",
			[]string{"KC-053", "KC-054"},
			"correct the example or the function"},
		{"C26", "the function ends, and in time",
			[]string{"CF-03"},
			"end when the input has been read and the output written"},
		{"C27", "every runtime gives the same",
			[]string{"KC-057"},
			"build all runtimes of a version from the same source"},
		{"C28", "a validator changes nothing",
			[]string{"CF-09", "KG-18"},
			"write the items as they came, and say what is wrong in results"},
		{"C29", "it runs outside the orchestrator",
			[]string{"CF-11", "FS-45"},
			"rely on no annotation that an orchestrator sets; a missing index means 0"},
	}
}

// Exempt are the statements of the functions specification, the configuration
// functions' semantics and kpt's guide that cannot be tested by running a
// function, and why.
type Exempt struct {
	Numbers []string
	Why     string
}

// Exempts lists the statements that no check is for. With the rules of
// [Checks] every number from FS-01 to FS-47, CF-01 to CF-75 and KG-01 to KG-28
// is accounted for.
func Exempts() []Exempt {
	return []Exempt{
		{[]string{"FS-01", "FS-02", "CF-01", "CF-40", "KG-01", "KG-02", "KG-11"}, "words and explanations that ask for nothing"},
		{[]string{"FS-29"}, "KEP-2906 allows executables and scripts beside containers; the container is checked by C13 and C23 where there is one"},
		{[]string{"FS-09", "FS-35", "FS-36", "FS-37", "FS-38", "CF-18", "CF-24", "CF-25", "CF-26", "CF-27", "KG-13", "KG-14", "KG-15", "KG-19"},
			"duties of the orchestrator: the tests of packages runtime, pkgdir and containerfn and of krmcat run"},
		{[]string{"CF-19", "CF-20", "CF-21", "CF-22", "CF-23"}, "what krmcat fn wrap does; its tests"},
		{[]string{"CF-28", "CF-29", "CF-30", "CF-31", "CF-32", "CF-33", "CF-34", "CF-35", "CF-36", "CF-37", "CF-38", "CF-39", "CF-41"},
			"about tools that read and write files: the tests of package pkgdir and of krmcat fn source and sink"},
		{[]string{"CF-42", "CF-43", "CF-44", "CF-45", "CF-46", "CF-47", "CF-48", "CF-49", "CF-50", "CF-51", "CF-52", "CF-53", "CF-54", "CF-55", "CF-56",
			"CF-57", "CF-58", "CF-59", "CF-60", "CF-61", "CF-62", "CF-63", "CF-64", "CF-65", "CF-66", "CF-67", "CF-68", "CF-69", "CF-70", "CF-71", "CF-72",
			"CF-73", "CF-74", "CF-75"}, "how resources are merged: the tests of package merge"},
		{[]string{"KG-09"}, "the interface of Starlark scripts: the tests of package starlarkfn; a script is checked as any other function"},
	}
}
