package turn_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/shopspring/decimal"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/session"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
)

// endings are the ways in which the Turn of these tests may end: its limits suffice just so, or they do not. Two processes may
// die with a request under way, which is of the budget as well: there is room for the two that take most.
var endings = map[string]struct {
	limits loop.Limits
	stop   turn.Stop
	text   string
	steps  int
	made   []string // calls, by key
}{
	"answered": {
		loop.Limits{MaxSteps: 3, MaxToolCalls: 6, MaxTokens: 41_236, MaxCost: decimal.RequireFromString("0.051136")},
		turn.StopCompleted, "Done.", 3,
		[]string{"1/d1", "1/i1", "1/r1", "2/d1", "2/d2"},
	},
	"out of steps": {
		loop.Limits{MaxSteps: 2, MaxToolCalls: 6},
		turn.StopMaxSteps, "Done.", 2,
		[]string{"1/d1", "1/i1", "1/r1", "2/d1", "2/d2"},
	},
	"out of calls": {
		loop.Limits{MaxSteps: 3, MaxToolCalls: 5},
		turn.StopCompleted, "Done.", 3,
		[]string{"1/d1", "1/i1", "1/r1", "2/d1"},
	},
	"over budget": {
		loop.Limits{MaxSteps: 3, MaxToolCalls: 6, MaxTokens: 14_000},
		turn.StopBudget, "", 2,
		[]string{"1/d1", "1/i1", "1/r1", "2/d1", "2/d2"},
	},
}

// stride is how many moments lie between those that a test of pairs of them looks at: so many for one ending, more for the
// others.
func stride(ending string, least int) int {
	if ending == "answered" && !testing.Short() {
		return least
	}
	return 11
}

// undisturbed runs the Turn in a world where nothing goes wrong.
func undisturbed(t *testing.T, limits loop.Limits) (*world, *process) {
	t.Helper()
	w := newWorld(t, &journaltest.Memory{}, "uid", limits)
	p := w.process(1, nil)
	if result, err := p.run(); err != nil || result.Counts.Resumes != 0 {
		t.Fatalf("Run = %+v, %v; want the Turn at its end", result, err)
	}
	return w, p
}

// survive runs the Turn by processes that die at these moments, one after another, and then by one that lives, which it
// returns with its result.
func survive(t *testing.T, w *world, moments ...int) (*process, *turn.Result) {
	t.Helper()
	for i, moment := range append(moments, 0) {
		p := w.process(int64(i+1), killedAt(moment))
		result, err := p.run()
		if !p.dead {
			if err != nil {
				t.Fatalf("the run of epoch %d: %v", p.epoch, err)
			}
			return p, result
		}
		if err == nil || result != nil {
			t.Fatalf("the run of epoch %d died and returned %+v, %v", p.epoch, result, err)
		}
	}
	panic("a process that is never killed was")
}

func TestCrashes(t *testing.T) {
	for name, e := range endings {
		calm, p := undisturbed(t, e.limits)
		if p.moments < 50 {
			t.Fatalf("%s: there are %d moments, want them between all effects", name, p.moments)
		}
		for first := 1; first <= p.moments; first++ {
			t.Run(fmt.Sprintf("%s at %d", name, first), func(t *testing.T) {
				w := newWorld(t, &journaltest.Memory{}, "uid", e.limits)
				last, result := survive(t, w, first)
				w.check(t, calm, name, last, result)
			})
			t.Run(fmt.Sprintf("%s at %d and again", name, first), func(t *testing.T) {
				t.Parallel()
				for second := 1 + first%stride(name, 1); ; second += stride(name, 1) {
					w := newWorld(t, &journaltest.Memory{}, "uid", e.limits)
					last, result := survive(t, w, first, second)
					w.check(t, calm, name, last, result)
					if t.Failed() {
						t.Fatalf("when killed at %d and then at %d", first, second)
					}
					if last.epoch < 3 {
						return // the second process lived to the end
					}
				}
			})
		}
	}
}

// TestCrashesWithAStore does so for some moments with a journal in a file.
func TestCrashesWithAStore(t *testing.T) {
	j := journals["sqlite"](t)
	for name, e := range endings {
		calm, p := undisturbed(t, e.limits)
		for first := 3; first <= p.moments; first += 13 {
			t.Run(fmt.Sprintf("%s at %d", name, first), func(t *testing.T) {
				w := newWorld(t, j, fmt.Sprintf("%s-%d", name, first), e.limits)
				last, result := survive(t, w, first, 5)
				w.check(t, calm, name, last, result)
			})
		}
	}
}

// TestZombies has an old process go on after a new one has begun. The old one hangs at its n-th moment until the new one is
// at its m-th, or at its end; the new one then waits for the old one's end.
func TestZombies(t *testing.T) {
	for name, e := range endings {
		calm, p := undisturbed(t, e.limits)
		for n := 1; n <= p.moments; n++ {
			t.Run(fmt.Sprintf("%s at %d", name, n), func(t *testing.T) {
				t.Parallel()
				for m, reached := 1+n%stride(name, 3), true; reached; m += stride(name, 3) {
					w := newWorld(t, &journaltest.Memory{}, "uid", e.limits)
					reached = haunt(t, w, calm, name, n, m)
					if t.Failed() {
						t.Fatalf("when the old process hangs at %d until the new one is at %d", n, m)
					}
				}
			})
		}
	}
}

// haunt returns false if the new process ended before its m-th moment.
func haunt(t *testing.T, w, calm *world, ending string, n, m int) (reached bool) {
	t.Helper()
	hangs, goOn, over := make(chan struct{}), make(chan struct{}), make(chan struct{})
	older, newer := w.process(1, nil), w.process(2, nil)
	older.zombie = true
	older.hook = func(moment int) bool {
		if moment == n {
			close(hangs)
			<-goOn
		}
		return false
	}
	released := false
	release := func() {
		if !released {
			released = true
			close(goOn)
			<-over
		}
	}
	newer.hook = func(moment int) bool {
		if moment == m {
			release()
		}
		return false
	}
	var old *turn.Result
	var oldErr error
	go func() {
		defer close(over)
		old, oldErr = older.run()
	}()
	<-hangs
	result, err := newer.run()
	reached = released
	release()
	if err != nil {
		t.Fatalf("the new process: %v", err)
	}
	switch {
	case oldErr != nil:
		if !errors.Is(oldErr, journal.ErrFenced) {
			t.Errorf("the old process: %v, want ErrFenced", oldErr)
		}
	default:
		if diff := cmp.Diff(asJSON(t, result), asJSON(t, old)); diff != "" {
			t.Errorf("the processes ended the Turn in two ways: -new +old:\n%s", diff)
		}
	}
	w.check(t, calm, ending, newer, result)
	return reached
}

// check asserts all that is guaranteed, whatever happened to the processes. calm is a world in which nothing did.
func (w *world) check(t *testing.T, calm *world, ending string, last *process, result *turn.Result) {
	t.Helper()
	e := endings[ending]
	if result.Stop != e.stop || result.Text != e.text {
		t.Errorf("the Turn ended with %s and %q, want %s and %q: %s", result.Stop, result.Text, e.stop, e.text, result.Message)
	}
	w.checkRequests(t, calm, ending)
	w.checkCalls(t, e.made)
	w.checkResult(t, result, e.steps, min(len(e.made)+1, e.limits.MaxToolCalls)) // load_skill is the last
	w.checkSession(t, result)
	asked := len(w.requests)
	again, err := w.process(last.epoch+1, nil).run()
	if diff := cmp.Diff(result, again); diff != "" || err != nil || len(w.requests) != asked {
		t.Errorf("one more run (error %v, %d requests): -first +again:\n%s", err, len(w.requests)-asked, diff)
	}
}

// checkRequests asserts that no reply was bought twice, and that the last request was that of the calm world, but for calls of
// unknown outcome, which say so.
func (w *world) checkRequests(t *testing.T, calm *world, ending string) {
	t.Helper()
	ids(t, w.requests...)
	counted, last := map[journal.Kind]int{}, ""
	for _, entry := range entries(t, w.journal, w.uid) {
		counted[entry.Kind]++
		if entry.Kind == journal.ModelRequested {
			last = decoded[loop.Request](t, entry).ID
		}
	}
	ended := counted[journal.ModelReplied] + counted[journal.ModelFailed]
	if len(w.requests) != ended+w.lost {
		t.Errorf("the models were asked %d times, want %d: %d replies and failures are in the journal, and %d were under way when a process died",
			len(w.requests), ended+w.lost, ended, w.lost)
	}
	// A zombie may ask later, and in vain.
	w.last = w.requests[slices.IndexFunc(w.requests, func(r model.Request) bool { return r.ID == last })].Messages
	want, got := slices.Clone(calm.requests[len(calm.requests)-1].Messages), w.last
	told := 0
	for i, m := range got {
		if strings.HasPrefix(m.Content, "error (outcome_unknown): ") && i < len(want) {
			told++
			want[i].Content = m.Content
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the last request: -want +got:\n%s", diff)
	}
	if told != w.unknown && ending != "over budget" { // which sends no further request that could say so
		t.Errorf("the model was told of %d unknown outcomes, want %d", told, w.unknown)
	}
}

// checkCalls asserts that no call that does harm was made twice, and which calls were made.
func (w *world) checkCalls(t *testing.T, made []string) {
	t.Helper()
	got := map[string]int{}
	for key, n := range w.calls {
		got[strings.TrimPrefix(key, w.uid+"/")] = n
	}
	missing := 0
	for _, key := range made {
		harmful := strings.Contains(key, "/d")
		switch n := got[key]; {
		case harmful && n > 1:
			t.Errorf("call %s was made %d times", key, n)
		case n == 0 && harmful:
			missing++
		case n == 0:
			t.Errorf("call %s was not made", key)
		}
		delete(got, key)
	}
	if missing > w.unknown {
		t.Errorf("%d calls that do harm were not made, and the outcome of %d is unknown", missing, w.unknown)
	}
	if len(got) > 0 {
		t.Errorf("the calls %v were made, too", slices.Sorted(maps.Keys(got)))
	}
}

// checkResult asserts that the result speaks of all that the journal knows.
func (w *world) checkResult(t *testing.T, result *turn.Result, steps, calls int) {
	t.Helper()
	var usage model.Usage
	var cost decimal.Decimal
	requests, unknown := 0, 0
	for _, e := range entries(t, w.journal, w.uid) {
		switch e.Kind { //nolint:exhaustive // because the others count nothing
		case journal.ModelRequested:
			requests++
		case journal.ModelReplied:
			s := decoded[loop.Step](t, e)
			usage, cost = usage.Add(s.Reply.Usage), cost.Add(s.Cost.Amount)
		case journal.ModelFailed:
			a := decoded[loop.Attempt](t, e)
			usage, cost = usage.Add(a.Usage), cost.Add(a.Cost.Amount)
		case journal.ToolFinished:
			if decoded[loop.Finish](t, e).Outcome == loop.Unknown {
				unknown++
			}
		}
	}
	got := result.Counts
	got.ModelRetries = 0
	want := turn.Counts{Steps: steps, ModelRequests: requests, ToolCalls: calls, UnknownOutcomes: w.unknown, Resumes: w.resumes}
	if got != want || unknown != w.unknown {
		t.Errorf("counts %+v with %d unknown outcomes in the journal, want %+v", got, unknown, want)
	}
	if result.Record.Usage != usage || result.Record.Cost == nil || result.Record.Cost.Amount != cost.String() {
		t.Errorf("usage %+v and cost %+v, want %+v and %s: the sum of the journal", result.Record.Usage, result.Record.Cost, usage, cost)
	}
}

// checkSession asserts that the Turn is in its Session once.
func (w *world) checkSession(t *testing.T, result *turn.Result) {
	t.Helper()
	h, err := session.Load(t.Context(), w.journal, w.talk)
	if err != nil || len(h) != 2 || h.Number(w.uid) != 2 || result.Session == nil || result.Session.Number != 2 {
		t.Fatalf("the Session has %d Turns (error %v) and the result says %+v; want this one once, as its second", len(h), err, result.Session)
	}
	if diff := cmp.Diff(h.Totals(), result.Session.Totals); diff != "" || h[1].Usage != result.Record.Usage {
		t.Errorf("totals: -history +result:\n%s", diff)
	}
	var want []model.Message
	if result.Stop != turn.StopBudget {
		from := slices.IndexFunc(w.last, func(m model.Message) bool { return m.Name == prepare.MessageUser })
		for _, m := range w.last[from:] {
			if m.Name != "step_limit" {
				m.Name = ""
				want = append(want, m)
			}
		}
		want = append(want, model.Message{Role: model.RoleAssistant, Content: result.Text})
	}
	if diff := cmp.Diff(want, h[1].Messages); diff != "" {
		t.Errorf("what the Turn has added to its Session: -want +got:\n%s", diff)
	}
}
