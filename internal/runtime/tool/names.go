package tool

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
)

// withFinalNames returns the tools with their final names. The names depend only on the set of tools, not on its order.
// A name that is not unique even with a hash becomes empty, because only an attacker can cause such a collision.
func withFinalNames(tools []Tool, reserved []string) []Tool {
	all := slices.Clone(tools)
	for i, t := range tools {
		all[i].Name = acceptedName(t.Name)
	}
	for _, rename := range []func(Tool) string{
		prefixed,
		func(t Tool) string { return hashed(t, 8) },
		func(t Tool) string { return hashed(t, 32) },
		func(Tool) string { return "" },
	} {
		for i, taken := range takenNames(all, reserved) {
			if taken {
				all[i].Name = rename(tools[i])
			}
		}
	}
	return all
}

// takenNames reports for each tool whether another tool has the same name, or whether the name is reserved.
func takenNames(tools []Tool, reserved []string) []bool {
	count := map[string]int{}
	for _, name := range reserved {
		count[name]++
	}
	for _, t := range tools {
		count[t.Name]++
	}
	taken := make([]bool, len(tools))
	for i, t := range tools {
		taken[i] = count[t.Name] > 1
	}
	return taken
}

// maxName is the maximum length of a name that every provider accepts, in characters.
const maxName = 64

// acceptedName changes a name so that every provider accepts it: letters, digits, '_' and '-', with a letter or '_'
// first. If the name is too long, it gets a hash of itself as a suffix, so that two long names stay different.
func acceptedName(name string) string {
	accepted := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '_', r == '-':
			return r
		}
		return '_'
	}, name)
	if accepted == "" || accepted[0] == '-' || accepted[0] >= '0' && accepted[0] <= '9' {
		accepted = "_" + accepted
	}
	if len(accepted) > maxName {
		accepted = withHash(accepted, sum(name), 8)
	}
	return accepted
}

// prefixed returns the name of a server's tool with the server's name as a prefix. Other tools get no prefix.
func prefixed(t Tool) string {
	if t.Source.Server == "" {
		return acceptedName(t.Name)
	}
	return acceptedName(t.Source.Server + "_" + t.Name)
}

// hashed returns a name that ends in a hash of the tool's source.
func hashed(t Tool, digits int) string {
	return withHash(prefixed(t), sum(t.Source.Server+"\x00"+t.Source.Agent+"\x00"+t.Name), digits)
}

// withHash shortens a name as needed and adds this number of digits of a hash.
func withHash(name, hash string, digits int) string {
	return name[:min(len(name), maxName-1-digits)] + "_" + hash[:digits]
}

func sum(text string) string {
	s := sha256.Sum256([]byte(text))
	return hex.EncodeToString(s[:])
}
