// Package lazyregexp holds regular expressions that are compiled when they are
// first used: every command would otherwise compile at its start, for a
// millisecond, what most of them never need.
package lazyregexp

import (
	"regexp"
	"sync"
	"testing"
)

// A Regexp is a regular expression of package regexp. It is safe for use by
// several goroutines at once.
type Regexp struct {
	compile func() *regexp.Regexp
}

// New returns the expression. One that does not compile panics when it is
// first used, and at once in a test, so that no test run passes with it.
func New(expr string) *Regexp {
	r := &Regexp{sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expr) })}
	if testing.Testing() {
		r.compile()
	}
	return r
}

// MatchString is that of [regexp.Regexp].
func (r *Regexp) MatchString(s string) bool { return r.compile().MatchString(s) }

// FindStringSubmatch is that of [regexp.Regexp].
func (r *Regexp) FindStringSubmatch(s string) []string { return r.compile().FindStringSubmatch(s) }

// ReplaceAllString is that of [regexp.Regexp].
func (r *Regexp) ReplaceAllString(s, with string) string {
	return r.compile().ReplaceAllString(s, with)
}

// ReplaceAllStringFunc is that of [regexp.Regexp].
func (r *Regexp) ReplaceAllStringFunc(s string, with func(string) string) string {
	return r.compile().ReplaceAllStringFunc(s, with)
}
