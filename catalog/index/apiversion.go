package index

import (
	"strconv"

	"github.com/krmcat/krmcat/internal/lazyregexp"
)

var apiVersionExpr = lazyregexp.New(`^v([1-9][0-9]{0,8})(?:(alpha|beta)([1-9][0-9]{0,8}))?$`)

// parseAPIVersion takes a version apart into what sorts: its stability, its
// number and the number of the alpha or beta.
func parseAPIVersion(s string) [3]int {
	m := apiVersionExpr.FindStringSubmatch(s)
	if m == nil {
		return [3]int{}
	}
	stability := map[string]int{"": 3, "beta": 2, "alpha": 1}[m[2]]
	major, _ := strconv.Atoi(m[1]) // at most nine digits
	minor, _ := strconv.Atoi(m[3]) // empty is 0
	return [3]int{stability, major, minor}
}
