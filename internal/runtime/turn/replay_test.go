package turn_test

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
)

// stepped returns the journal that a run left after a number of steps with two calls each. It also returns the input of
// a run that continues from this journal and stops before its first request.
func stepped(t testing.TB, steps int) (journal.Journal, turn.Input) {
	t.Helper()
	var answers []answer
	for step := range steps {
		look := func(id string) model.ToolCall { // different calls, because the same call is made only once
			return model.ToolCall{ID: id, Name: "find", Arguments: fmt.Sprintf(`{"page":"%d %s"}`, step, id)}
		}
		answers = append(answers, answer{reply: calls("I look.", look("c1"), look("c2"))})
	}
	c, _ := candidate("p0", 1, append(answers, says("never"))...)
	in := input(c)
	in.Limits = loop.Limits{MaxSteps: steps, MaxToolCalls: 2 * steps}
	in.Tools = []tool.Tool{named("find", tool.ReadOnly, saying(strings.Repeat("The parcel of order <1042> is late. ", 10)))}
	whole := &journaltest.Store{}
	if _, err := engine(whole).Run(t.Context(), new(in)); err != nil {
		t.Fatal(err)
	}
	in.Epoch, in.Interrupt = 2, interrupted()
	return copyOf(t, whole, &journaltest.Store{}, 5+6*steps), in // without the last request
}

func replay(t testing.TB, j journal.Journal, in turn.Input) {
	t.Helper()
	if _, err := engine(j).Run(t.Context(), new(in)); !errors.Is(err, loop.ErrInterrupted) {
		t.Fatalf("Run: %v, want it stopped before the next request", err)
	}
}

func BenchmarkReplay(b *testing.B) {
	for _, steps := range []int{10, 100, 1000} {
		b.Run(fmt.Sprintf("%d steps", steps), func(b *testing.B) {
			j, in := stepped(b, steps)
			b.ReportAllocs()
			for b.Loop() {
				replay(b, j, in)
			}
		})
	}
}

// TestReplayGrowsWithTheJournal measures memory, because measured time depends on the load of the machine.
func TestReplayGrowsWithTheJournal(t *testing.T) {
	cost := func(steps int) (allocs, bytes float64) {
		j, in := stepped(t, steps)
		replay(t, j, in)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range 3 {
			replay(t, j, in)
		}
		runtime.ReadMemStats(&after)
		return float64(after.Mallocs - before.Mallocs), float64(after.TotalAlloc - before.TotalAlloc)
	}
	allocs, bytes := cost(30)
	moreAllocs, moreBytes := cost(300)
	if grown := moreAllocs / allocs; grown > 12 {
		t.Errorf("ten times the steps take %.1f times the allocations (%.0f, then %.0f), want about 10 times", grown, allocs, moreAllocs)
	}
	if grown := moreBytes / bytes; grown > 12 {
		t.Errorf("ten times the steps take %.1f times the memory (%.0f bytes, then %.0f), want about 10 times", grown, bytes, moreBytes)
	}
}
