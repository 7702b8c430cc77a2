package schema

import (
	"fmt"
	"strings"
	"testing"
)

// TestTheCacheIsBounded looks into it: what it holds shows in memory alone.
func TestTheCacheIsBounded(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		length int
		most   int
	}{
		"small": {"so many at most", 10, maxCached},
		"large": {"or so many bytes", 1 << 19, maxCachedBytes >> 19},
	} {
		t.Run(name, func(t *testing.T) {
			c := cache{entries: map[[32]byte]entry{}}
			for i := range maxCached + 10 {
				c.get(fmt.Appendf(nil, "%0*d", tc.length, i))
			}
			held := 0
			for _, e := range c.entries {
				held += e.bytes
			}
			if len(c.entries) != tc.most || c.bytes != held || held > maxCachedBytes {
				t.Errorf("%d schemas of %d bytes, counted as %d; want %d: %s", len(c.entries), held, c.bytes, tc.most, tc.reason)
			}
		})
	}
}

func TestPointersOfManyTokensStayShort(t *testing.T) {
	if got := pointer(strings.Split(strings.Repeat("a~/", 1000), "/")); len([]rune(got)) > maxPath {
		t.Errorf("a pointer of %d characters, want %d at most", len([]rune(got)), maxPath)
	}
}
