package fairgate_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/capstan-dev/capstan/internal/fairgate"
)

// TestLargeWorkTakesTurns checks that a piece of one namespace is done second although ten pieces of another
// namespace were queued before it.
func TestLargeWorkTakesTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		processors := fairgate.NewProcessors(1)
		first := fairgate.AcquireProcessor(processors.With(t.Context(), "attacker"), 1<<20)
		order := make(chan string, 11)
		work := func(namespace string) {
			go func() {
				done := fairgate.AcquireProcessor(processors.With(t.Context(), namespace), 1<<20)
				defer done()
				order <- namespace
			}()
			synctest.Wait()
		}
		for range 10 {
			work("attacker")
		}
		work("victim")
		if len(order) != 0 {
			t.Errorf("%d pieces are done while the first one has the processor, want none", len(order))
		}
		first()
		synctest.Wait()
		close(order)
		if got := slices.Collect(func(yield func(string) bool) {
			for namespace := range order {
				if !yield(namespace) {
					return
				}
			}
		}); len(got) != 11 || got[1] != "victim" {
			t.Errorf("the order is %s, want the victim second", strings.Join(got, " "))
		}
	})
}

// TestLargeWorkRests checks that a processor rests for as long as a piece of work took, so that two pieces of 3 seconds
// take 12 seconds, unless the context ends.
func TestLargeWorkRests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(fairgate.NewProcessors(1).With(t.Context(), "a"))
		begun := time.Now()
		for range 2 {
			done := fairgate.AcquireProcessor(ctx, 1<<20)
			time.Sleep(3 * time.Second) // the clock of this test is not real
			done()
		}
		if took := time.Since(begun); took != 12*time.Second {
			t.Errorf("two pieces of 3 s took %s, want 12 s with their rests", took)
		}
		begun = time.Now()
		done := fairgate.AcquireProcessor(ctx, 1<<20)
		time.Sleep(3 * time.Second)
		stop()
		done()
		if took := time.Since(begun); took != 3*time.Second {
			t.Errorf("after the end of its context, a piece of 3 s took %s, want no rest", took)
		}
	})
}

func TestWorkThatDoesNotWait(t *testing.T) {
	processors := fairgate.NewProcessors(1)
	ctx := processors.With(t.Context(), "a")
	defer fairgate.AcquireProcessor(ctx, 1<<20)()
	ended, end := context.WithCancel(processors.With(t.Context(), "b"))
	end()
	for name, tc := range map[string]struct {
		ctx   context.Context
		bytes int
	}{
		"few bytes":                {ctx, 16<<10 - 1},
		"no namespace":             {t.Context(), 1 << 20},
		"a context that has ended": {ended, 1 << 20},
		"no processors":            {(*fairgate.Processors)(nil).With(t.Context(), "a"), 1 << 20},
	} {
		t.Run(name, func(*testing.T) { fairgate.AcquireProcessor(tc.ctx, tc.bytes)() }) // a wait would never end
	}
}

func TestHalfOfProcessorsAdmitsLargeWork(t *testing.T) {
	processors := fairgate.HalfOfProcessors()
	done := fairgate.AcquireProcessor(processors.With(t.Context(), "a"), 1<<20)
	done()
	fairgate.AcquireProcessor(processors.With(t.Context(), "b"), 1<<20)()
}

func TestTextsAreChangedInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		processors := fairgate.NewProcessors(1)
		upper := fairgate.Fairly(processors.With(t.Context(), "a"), strings.ToUpper)
		leave := fairgate.AcquireProcessor(processors.With(t.Context(), "b"), 1<<20)
		if got := upper("short"); got != "SHORT" {
			t.Errorf("a short text became %q", got)
		}
		changed := make(chan string, 1)
		go func() { changed <- upper(strings.Repeat("x", 1<<20)) }()
		synctest.Wait()
		if len(changed) != 0 {
			t.Error("a large text did not wait for its turn")
		}
		leave()
		if got := <-changed; got != strings.Repeat("X", 1<<20) {
			t.Errorf("a large text became %d bytes, want them in upper case", len(got))
		}
	})
}
