package tool

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
)

// named gives the tools their final names. The names depend only on the set of tools, not on its order. A name that
// is not unique even with a hash becomes empty: such a collision is made deliberately.
func named(tools []Tool, reserved []string) []Tool {
	all := slices.Clone(tools)
	for i, t := range tools {
		all[i].Name = fit(t.Name)
	}
	for _, another := range []func(Tool) string{
		prefixed,
		func(t Tool) string { return hashed(t, 8) },
		func(t Tool) string { return hashed(t, 32) },
		func(Tool) string { return "" },
	} {
		for i, again := range repeated(all, reserved) {
			if again {
				all[i].Name = another(tools[i])
			}
		}
	}
	return all
}

// repeated reports for each tool whether another tool has the same name, or whether the name is reserved.
func repeated(tools []Tool, reserved []string) []bool {
	count := map[string]int{}
	for _, name := range reserved {
		count[name]++
	}
	for _, t := range tools {
		count[t.Name]++
	}
	again := make([]bool, len(tools))
	for i, t := range tools {
		again[i] = count[t.Name] > 1
	}
	return again
}

// maxName is the maximum length of a name that every provider accepts, in characters.
const maxName = 64

// fit returns a name that every provider accepts: letters, digits, '_' and '-', with a letter or '_' first. A name
// that is too long gets a hash of itself as a suffix, so that two long names stay different.
func fit(name string) string {
	fitted := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '_', r == '-':
			return r
		}
		return '_'
	}, name)
	if fitted == "" || fitted[0] == '-' || fitted[0] >= '0' && fitted[0] <= '9' {
		fitted = "_" + fitted
	}
	if len(fitted) > maxName {
		fitted = ending(fitted, sum(name), 8)
	}
	return fitted
}

// prefixed returns the name of a server's tool with the server's name as a prefix. Other tools have no server.
func prefixed(t Tool) string {
	if t.Source.Server == "" {
		return fit(t.Name)
	}
	return fit(t.Source.Server + "_" + t.Name)
}

// hashed returns a name that ends in a hash of the tool's source.
func hashed(t Tool, digits int) string {
	return ending(prefixed(t), sum(t.Source.Server+"\x00"+t.Source.Agent+"\x00"+t.Name), digits)
}

func ending(name, hash string, digits int) string {
	return name[:min(len(name), maxName-1-digits)] + "_" + hash[:digits]
}

func sum(text string) string {
	s := sha256.Sum256([]byte(text))
	return hex.EncodeToString(s[:])
}
