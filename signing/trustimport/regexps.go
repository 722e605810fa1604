package trustimport

import (
	"regexp/syntax"
	"strings"
)

// anywhere is any text, line ends too.
const anywhere = "(?s:.*)"

// anchored is an expression that matches a whole text exactly if re matches
// somewhere in it, and whether re did so only in part.
func anchored(re string) (whole string, changed bool, err error) {
	tree, err := syntax.Parse(re, syntax.Perl)
	if err != nil {
		return "", false, err
	}
	begin, end := edges(tree)
	if begin && end && strings.HasPrefix(re, "^") && strings.HasSuffix(re, "$") {
		return re[1 : len(re)-1], false, nil
	}
	whole = "(?:" + re + ")"
	if !begin {
		whole, changed = anywhere+whole, true
	}
	if !end {
		whole, changed = whole+anywhere, true
	}
	return whole, changed, nil
}

// edges reports whether an expression starts with ^ and ends with $, outside
// of all alternatives.
func edges(tree *syntax.Regexp) (begin, end bool) {
	if tree.Op != syntax.OpConcat || len(tree.Sub) == 0 {
		return tree.Op == syntax.OpBeginText, tree.Op == syntax.OpEndText
	}
	return tree.Sub[0].Op == syntax.OpBeginText, tree.Sub[len(tree.Sub)-1].Op == syntax.OpEndText
}

// literal is the one text that an anchored expression matches. Dots that are
// not escaped are taken literally and reported; what a careless author wrote
// for one host name stays that name.
func literal(re string) (text string, dots, ok bool) {
	tree, err := syntax.Parse(re, syntax.Perl)
	if err != nil {
		return "", false, false
	}
	begin, end := edges(tree)
	if !begin || !end || tree.Op != syntax.OpConcat {
		return "", false, false
	}
	var b strings.Builder
	for _, sub := range tree.Sub[1 : len(tree.Sub)-1] {
		switch {
		case sub.Op == syntax.OpLiteral && sub.Flags&syntax.FoldCase == 0:
			b.WriteString(string(sub.Rune))
		case sub.Op == syntax.OpAnyCharNotNL:
			b.WriteByte('.')
			dots = true
		default:
			return "", false, false
		}
	}
	return b.String(), dots, b.Len() > 0
}
