package tool

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
)

// named gives the tools their names. They depend on the set of tools alone, and not on its order. What has no name that is its
// own after all has an empty one: somebody has made it so.
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

// repeated says of each tool whether another has its name, or the name is reserved.
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

// maxName is how long a name may be for every provider, in characters.
const maxName = 64

// fit makes a name that every provider takes: letters, digits, '_' and '-', with a letter or '_' first. One that is too long
// ends in a hash of it, so that two of them stay two.
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

// prefixed is the name of a server's tool with that of its server before it. Others have no server.
func prefixed(t Tool) string {
	if t.Source.Server == "" {
		return fit(t.Name)
	}
	return fit(t.Source.Server + "_" + t.Name)
}

// hashed is a name that ends in a hash of where the tool comes from.
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
