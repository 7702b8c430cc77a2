package schema

import (
	"fmt"
	"strings"
	"testing"
)

// TestTheCacheIsBounded is an internal test, because the size of the cache has no other visible effect than memory.
func TestTheCacheIsBounded(t *testing.T) {
	for name, tc := range map[string]struct {
		reason  string
		length  int
		schemas int
		want    int
	}{
		"small": {"the number of schemas is limited", 10, maxCached + 10, maxCached},
		"large": {"the size of the schemas is limited", 1 << 19, maxCached + 10, maxCachedBytes >> 19},
		"parts": {"the memory is limited, even for a short source", 0, 40, maxCachedBytes / (maxPatternSizes*bytesOfPattern + 22<<10)},
	} {
		t.Run(name, func(t *testing.T) {
			c := cache{entries: map[[32]byte]*entry{}}
			for i := range tc.schemas {
				if tc.length > 0 {
					c.get(fmt.Appendf(nil, "%0*d", tc.length, i))
					continue
				}
				var all []string
				for n := range 20 {
					all = append(all, fmt.Sprintf(`{"pattern":"%c{1000}"}`, rune(0x4e00+n)))
				}
				source := fmt.Sprintf(`{"title":"%d","anyOf":[%s]}`, i, strings.Join(all, ","))
				if _, err := c.get([]byte(source)).compile(); err != nil {
					t.Fatal(err)
				}
			}
			held := 0
			for _, e := range c.entries {
				held += e.bytes
			}
			if len(c.entries) != tc.want || c.bytes != held || held > maxCachedBytes {
				t.Errorf("%d schemas of %d bytes, counted as %d; want %d: %s", len(c.entries), held, c.bytes, tc.want, tc.reason)
			}
		})
	}
}

func TestPointersOfManyTokensStayShort(t *testing.T) {
	if got := pointer(strings.Split(strings.Repeat("a~/", 1000), "/")); len([]rune(got)) > maxPath {
		t.Errorf("a pointer of %d characters, want %d at most", len([]rune(got)), maxPath)
	}
}
