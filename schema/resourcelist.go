package schema

import (
	"fmt"
	"slices"
	"strings"
)

// The ResourceList, the wire format of functions (FS-10 to FS-28).
const (
	kindResourceList  = "ResourceList"
	resourceListGroup = "config.kubernetes.io"
)

// Direction says whether a ResourceList goes into a function or comes out.
type Direction int

const (
	// Input is a ResourceList that a function is to read.
	Input Direction = iota
	// Output is what a function wrote.
	Output
)

// resourceListVersion tells the versions that are read (FS-11, CF-14).
func resourceListVersion(v string) bool { return v == "v1" || v == "v1beta1" || v == "v1alpha1" }

func (c *checker) resourceList(root cursor, _ Direction) {
	violations, err := resourceListBundle.check(kindResourceList, root.v)
	if err != nil {
		root.report(ruleType, "", "%v", err)
		return
	}
	for _, v := range violations {
		f := finding{rule: ruleType, path: v.path, message: v.describe()}
		if v.keyword == "required" {
			f.rule, f.onKey = ruleRequired, true
			names := v.missing()
			slices.Sort(names)
			f.message = fmt.Sprintf("missing %s", strings.Join(names, ", "))
		}
		c.report(f)
	}
}
