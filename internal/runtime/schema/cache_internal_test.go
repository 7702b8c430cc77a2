package schema

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/capstan-dev/capstan/internal/memory/memorytest"
	"github.com/capstan-dev/capstan/internal/runtime/pattern"
)

// TestTheCacheIsBounded is an internal test, because the size of the cache has no other visible effect than memory.
func TestTheCacheIsBounded(t *testing.T) {
	large, err := pattern.Compile("\u4e00{1000}")
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		reason  string
		length  int
		schemas int
		want    int
	}{
		"small": {"the number of schemas is limited", 10, maxCached + 10, maxCached},
		"large": {"the size of the schemas is limited", 1 << 19, maxCached + 10, maxCachedBytes >> 19},
		"parts": {"the memory is limited, even for a short source", 0, 60, maxCachedBytes / (20*large.Memory + 22<<10)},
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

// TestTheSizeBoundsTheMemory checks that the counted size of a schema whose patterns have many large classes is not
// less than its memory.
func TestTheSizeBoundsTheMemory(t *testing.T) {
	var all []string
	for i := range 30 {
		all = append(all, fmt.Sprintf(`{"pattern":"^%d%s"}`, i, strings.Repeat(`\\pL?`, 15)))
	}
	source := []byte(`{"anyOf":[` + strings.Join(all, ",") + `]}`)
	if _, err := Compile(source); err != nil { // so that the library's own schemas exist
		t.Fatal(err)
	}
	before := memorytest.Heap()
	s, err := Compile(source)
	if err != nil {
		t.Fatal(err)
	}
	kept := int(memorytest.Heap() - before)
	t.Logf("%d bytes are kept, and %d are counted", kept, s.size)
	if kept > s.size {
		t.Errorf("%d bytes are kept, but only %d are counted", kept, s.size)
	}
	runtime.KeepAlive(s)
}
