package mcp

import (
	"fmt"
	"strings"
	"testing"
)

// TestComparisonOfStructuredContentTakesLittleMemory checks that the items of a long list, and the members of a large
// object, are not decoded: they would take many times as much memory as their text, which alone is reserved.
func TestComparisonOfStructuredContentTakesLittleMemory(t *testing.T) {
	var members strings.Builder
	for i := range 100_000 {
		fmt.Fprintf(&members, `"%d":0,`, i)
	}
	list := "[" + strings.Repeat("0,", 1<<20) + "0]"
	for name, value := range map[string]string{
		"a list": list, "a wrapped list": `{"result":` + list + `}`, "an object": "{" + members.String() + `"a":0}`,
	} {
		for _, text := range []string{"x", "0", "[", "{"} {
			if got := testing.AllocsPerRun(1, func() { repetitionOf([]string{text}, []byte(value)) }); got > 1000 {
				t.Errorf("the comparison of %q with %s takes %.0f allocations, want at most 1000", text, name, got)
			}
		}
	}
}
