package shared_test

import (
	"runtime"
	"sync"
	"testing"

	"github.com/capstan-dev/capstan/internal/runtime/shared"
)

type value struct{ text string }

func TestValuesAreSharedWhileTheyAreHeld(t *testing.T) {
	var values shared.Values[string, value]
	first := values.Of("a", &value{"one"})
	if again := values.Of("a", &value{"one"}); again != first {
		t.Error("Of returns another value for the same key, want the one that is held")
	}
	if got := values.Get("a"); got != first {
		t.Error("Get returns another value, want the one that is held")
	}
	if got := values.Get("b"); got != nil {
		t.Errorf("Get returns %v for a key without a value", got)
	}
	if other := values.Of("b", &value{"one"}); other == first {
		t.Error("two keys have the same value, want different ones")
	}
	runtime.KeepAlive(first)
}

// TestUnusedValuesAreForgotten checks that unused values take no memory.
func TestUnusedValuesAreForgotten(t *testing.T) {
	var values shared.Values[int, value]
	held := values.Of(-1, &value{"held"})
	for i := range 100 {
		values.Of(i, &value{"gone"})
	}
	for tries := 0; values.Len() > 1; tries++ {
		if tries == 1000 {
			t.Fatalf("%d values are left, want the one that is held", values.Len())
		}
		runtime.GC() // cleanups run in a separate goroutine
		runtime.Gosched()
	}
	if again := values.Of(-1, &value{"new"}); again != held || again.text != "held" {
		t.Error("the value that is held is not shared any more")
	}
}

func TestConcurrentUse(t *testing.T) {
	var values shared.Values[int, value]
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for i := range 1000 {
				if got := values.Of(i%7, &value{string(rune('a' + i%7))}); got.text != string(rune('a'+i%7)) {
					t.Errorf("value %q of key %d", got.text, i%7)
				}
				if i%100 == 0 {
					runtime.GC()
				}
			}
		})
	}
	all.Wait()
}
