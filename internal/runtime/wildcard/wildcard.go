// Package wildcard matches names with patterns, in which '*' stands for any characters and '?' for one.
package wildcard

import "slices"

// MatchesOne reports whether a name matches one of the patterns.
func MatchesOne(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return matches([]rune(p), []rune(name)) })
}

// matches reports whether a name matches a pattern. It takes at most len(pattern) * len(name) steps, because it
// backtracks only to the last '*'.
func matches(pattern, name []rune) bool {
	p, n, star, after := 0, 0, -1, 0
	for n < len(name) {
		switch {
		case p < len(pattern) && pattern[p] == '*':
			star, after = p, n
			p++
		case p < len(pattern) && (pattern[p] == '?' || pattern[p] == name[n]):
			p++
			n++
		case star >= 0:
			after++
			p, n = star+1, after
		default:
			return false
		}
	}
	for p < len(pattern) && pattern[p] == '*' {
		p++
	}
	return p == len(pattern)
}
