package smallmap_test

import (
	"maps"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/runtime/smallmap"
)

// TestMap checks that a Map has the same entries as a map of Go, before and after it has more entries than its list.
func TestMap(t *testing.T) {
	var m smallmap.Map[string, int]
	want := map[string]int{}
	for i := range 40 {
		key := string(rune('a' + i*7%20)) // each key is set twice
		m.Set(key, i)
		want[key] = i
		if diff := cmp.Diff(want, maps.Collect(m.All())); diff != "" {
			t.Fatalf("after %d calls of Set: -want +got:\n%s", i+1, diff)
		}
		for key, value := range want {
			if got, ok := m.Get(key); !ok || got != value {
				t.Fatalf("after %d calls of Set, Get(%q) = %d, %t; want %d", i+1, key, got, ok, value)
			}
		}
		if got, ok := m.Get("?"); ok || got != 0 {
			t.Fatalf("Get of an unknown key = %d, %t; want 0, false", got, ok)
		}
	}
}

// TestCloneIsIndependent checks that changes of a clone do not reach the original, with a list and with a map.
func TestCloneIsIndependent(t *testing.T) {
	for _, entries := range []int{1, 7, 8, 9, 20} {
		var m smallmap.Map[int, string]
		for i := range entries {
			m.Set(i, "old")
		}
		clone := m.Clone()
		clone.Set(0, "new")
		clone.Set(-1, "new")
		if got, _ := m.Get(0); got != "old" {
			t.Errorf("with %d entries: a change of the clone has reached the original", entries)
		}
		if _, ok := m.Get(-1); ok {
			t.Errorf("with %d entries: an entry of the clone has reached the original", entries)
		}
		if got, _ := clone.Get(0); got != "new" {
			t.Errorf("with %d entries: the clone has %q, want new", entries, got)
		}
	}
}

// TestAllStops checks that All stops when its loop breaks.
func TestAllStops(t *testing.T) {
	for _, entries := range []int{5, 20} {
		var m smallmap.Map[int, int]
		for i := range entries {
			m.Set(i, i)
		}
		n := 0
		for range m.All() {
			if n++; n == 3 {
				break
			}
		}
		if n != 3 {
			t.Errorf("with %d entries: the loop ran %d times, want 3", entries, n)
		}
	}
}
