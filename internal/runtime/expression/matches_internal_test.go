package expression

import (
	"fmt"
	"strings"
	"testing"

	"github.com/capstan-dev/capstan/internal/runtime/pattern"
)

// TestTheCacheIsBounded is an internal test, because the size of the cache has no other visible effect than memory.
func TestTheCacheIsBounded(t *testing.T) {
	for name, tc := range map[string]struct {
		reason, suffix string
	}{
		"small":         {"the number of patterns is limited", ""},
		"large classes": {"the memory of the patterns is limited", strings.Repeat(`\pL`, 40)},
	} {
		t.Run(name, func(t *testing.T) {
			c := patternCache{known: map[string]*pattern.Pattern{}}
			for i := range maxPatterns + 10 {
				if _, err := c.get(fmt.Sprint(i, tc.suffix)); err != nil {
					t.Fatal(err)
				}
			}
			held := 0
			for _, p := range c.known {
				held += p.Memory
			}
			if len(c.known) > maxPatterns || len(c.known) < 10 || held > maxPatternsMemory || c.memory != held {
				t.Errorf("%d patterns of %d bytes, counted as %d: %s", len(c.known), held, c.memory, tc.reason)
			}
		})
	}
}
