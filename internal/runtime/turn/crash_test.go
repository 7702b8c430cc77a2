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
	"github.com/capstan-dev/capstan/internal/runtime/tool"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
)

// ending is one way in which the Turn of these tests ends.
type ending struct {
	limits loop.Limits
	stop   turn.Stop
	text   string
	steps  int
	made   []string // the keys of the calls, without the one call of Capstan's own tools
	// change changes the input of each process. If it is nil, the input stays the same.
	change func(*process, *turn.Input)
	// asked returns the step and the purpose of a request, and reply returns the reply of the models. If they are nil,
	// the functions of world are used.
	asked func([]model.Message) (int, loop.Purpose)
	reply func(step int, purpose loop.Purpose) model.Reply
	// counts are the expected counts of events that happen only in this ending.
	counts turn.Counts
}

// endings are the endings of these tests. The limits of each are either just sufficient or just too low. Two processes
// may die during a request, and such requests count against the budget. A sufficient budget therefore has room for the
// two most expensive requests, and for nonces with a few more tokens.
var endings = map[string]ending{
	"answered": {
		limits: loop.Limits{
			MaxSteps: 3, MaxToolCalls: 6, MaxDescendants: 25, MaxTokens: 42_000,
			MaxCost: decimal.RequireFromString("0.0519"),
		},
		stop: turn.StopCompleted, text: "Done.", steps: 3,
		made: []string{"1/d1", "1/i1", "1/r1", "2/d1_2", "2/d2"},
	},
	"out of steps": {
		limits: loop.Limits{MaxSteps: 2, MaxToolCalls: 6, MaxDescendants: 25},
		stop:   turn.StopMaxSteps, text: "Done.", steps: 2,
		made: []string{"1/d1", "1/i1", "1/r1", "2/d1_2", "2/d2"},
	},
	"out of calls": {
		limits: loop.Limits{MaxSteps: 3, MaxToolCalls: 5, MaxDescendants: 25},
		stop:   turn.StopCompleted, text: "Done.", steps: 3,
		made: []string{"1/d1", "1/i1", "1/r1", "2/d1_2"},
	},
	"over budget": {
		limits: loop.Limits{MaxSteps: 3, MaxToolCalls: 6, MaxDescendants: 25, MaxTokens: 14_000},
		stop:   turn.StopBudget, steps: 2,
		made: []string{"1/d1", "1/i1", "1/r1", "2/d1_2", "2/d2"},
	},
	"everything": everything,
}

// stride returns the distance between the second moments that a test tries. It returns the argument least for the
// ending "answered", except in short tests. It returns a longer distance for the other endings.
func stride(ending string, least int) int {
	switch {
	case ending == "everything":
		return 37
	case ending == "answered" && !testing.Short():
		return least
	}
	return 11
}

// sparse returns the distance between the first moments that a test tries. It is more than 1 for the ending
// "everything", whose Turn is long.
func sparse(ending string) int {
	switch {
	case ending != "everything":
		return 1
	case testing.Short():
		return 7
	}
	return 3
}

// undisturbed runs the Turn without failures, and returns the number of moments.
func undisturbed(t *testing.T, e ending) (*world, int) {
	t.Helper()
	w := newWorld(t, &journaltest.Store{}, "uid", e)
	_, result, moments, err := w.run(1, false, nil)
	if err != nil || result.Counts.Resumes != 0 {
		t.Fatalf("Run = %+v, %v; want the Turn to end without resumes", result, err)
	}
	if moments < 50 {
		t.Fatalf("there are %d moments, want at least 50: one between any two effects", moments)
	}
	return w, moments
}

// TestCrashes kills one process at each moment, or two processes at pairs of moments, and checks the Turn afterwards.
func TestCrashes(t *testing.T) {
	for name, e := range endings {
		calm, moments := undisturbed(t, e)
		for first := 1; first <= moments; first++ {
			t.Run(fmt.Sprintf("%s at %d", name, first), func(t *testing.T) {
				w := newWorld(t, &journaltest.Store{}, "uid", e)
				last, result, _ := survive(t, w, first)
				w.check(t, calm, name, last, result)
			})
			if first%sparse(name) != 0 {
				continue
			}
			t.Run(fmt.Sprintf("%s at %d and again", name, first), func(t *testing.T) {
				t.Parallel()
				killed := newWorld(t, &journaltest.Store{}, "uid", e)
				dead, _ := kill(t, killed, 1, first)
				for second := 1 + first%stride(name, 1); ; second += stride(name, 1) {
					w := killed.clone()
					last, result, deaths := surviveFrom(t, w, dead.epoch+1, second)
					w.check(t, calm, name, last, result)
					if t.Failed() {
						t.Fatalf("when killed at %d and then at %d", first, second)
					}
					if deaths == 0 {
						return // the second process lived to the end
					}
				}
			})
		}
	}
}

// TestCrashesWithAStore repeats TestCrashes for some moments, with a journal in a file.
func TestCrashesWithAStore(t *testing.T) {
	j := journals["sqlite"](t)
	for name, e := range endings {
		calm, moments := undisturbed(t, e)
		for first := 3; first <= moments; first += 13 {
			t.Run(fmt.Sprintf("%s at %d", name, first), func(t *testing.T) {
				w := newWorld(t, j, fmt.Sprintf("%s-%d", name, first), e)
				last, result, _ := survive(t, w, first, 5)
				w.check(t, calm, name, last, result)
			})
		}
	}
}

// TestZombies lets an old process continue after a new one has begun. The old process hangs at its n-th moment
// until the new one is at its m-th moment or at its end. The new process then waits for the end of the old one.
func TestZombies(t *testing.T) {
	for name, e := range endings {
		calm, moments := undisturbed(t, e)
		for n := sparse(name); n <= moments; n += sparse(name) {
			t.Run(fmt.Sprintf("%s at %d", name, n), func(t *testing.T) {
				t.Parallel()
				for m, reached := 1+n%stride(name, 3), true; reached; m += stride(name, 3) {
					w := newWorld(t, &journaltest.Store{}, "uid", e)
					reached = haunt(t, w, calm, name, n, m)
					if t.Failed() {
						t.Fatalf("when the old process hangs at %d until the new one is at %d", n, m)
					}
				}
			})
		}
	}
}

// haunt runs both processes. It returns false if the new process ended before its m-th moment.
func haunt(t *testing.T, w, calm *world, ending string, n, m int) (reached bool) {
	t.Helper()
	hangs, proceed, over := make(chan struct{}), make(chan struct{}), make(chan struct{})
	released := false
	release := func() {
		if !released {
			released = true
			close(proceed)
			<-over
		}
	}
	var old *turn.Result
	var oldErr error
	go func() {
		defer close(over)
		_, old, _, oldErr = w.run(1, true, func(moment int) bool {
			if moment == n {
				close(hangs)
				<-proceed
			}
			return false
		})
	}()
	<-hangs
	newer, result, _, err := w.run(10, false, func(moment int) bool {
		if moment == m {
			release()
		}
		return false
	})
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
			t.Errorf("the processes returned different results: -new +old:\n%s", diff)
		}
	}
	w.check(t, calm, ending, newer, result)
	return reached
}

// check checks all guarantees that hold after any crashes. calm is a world without crashes.
func (w *world) check(t *testing.T, calm *world, ending string, last *process, result *turn.Result) {
	t.Helper()
	e := endings[ending]
	if result.Stop != e.stop || result.Text != e.text {
		t.Errorf("the Turn ended with %s and %q, want %s and %q: %s", result.Stop, result.Text, e.stop, e.text, result.Message)
	}
	w.checkRequests(t, calm, ending)
	w.checkObserved(t)
	w.checkCalls(t, e.made)
	w.checkResult(t, result, e, min(len(e.made)+1, e.limits.MaxToolCalls)) // plus the call of load_skill or read_artifact
	w.checkSession(t, result)
	asked := len(w.requests)
	again, err := w.process(last.epoch+1, nil).run()
	if diff := cmp.Diff(result, again); diff != "" || err != nil || len(w.requests) != asked {
		t.Errorf("one more run (error %v, %d requests): -first +again:\n%s", err, len(w.requests)-asked, diff)
	}
	w.checkObserved(t)
}

// checkRequests checks that no reply was paid for twice. The last request must equal the last request of the calm
// world, except for the messages of calls with an unknown outcome.
func (w *world) checkRequests(t *testing.T, calm *world, ending string) {
	t.Helper()
	checkIDs(t, w.requests...)
	counted, last := map[journal.Kind]int{}, ""
	for _, entry := range entries(t, w.journal, w.uid) {
		counted[entry.Kind]++
		if entry.Kind == journal.ModelRequested {
			last = decoded[loop.Request](t, entry).ID
		}
		if entry.Kind == journal.ToolFinished && decoded[loop.CallResult](t, entry).Outcome == loop.Unknown {
			counted[unknownOutcome]++
		}
	}
	ended := counted[journal.ModelReplied] + counted[journal.ModelFailed]
	if len(w.requests) != ended+w.lost {
		t.Errorf("the models were asked %d times, want %d: %d replies and failures are in the journal, and %d "+
			"were in progress when a process died",
			len(w.requests), ended+w.lost, ended, w.lost)
	}
	// A zombie may send a later request, whose reply is refused.
	w.last = w.requests[slices.IndexFunc(w.requests, func(r model.Request) bool { return r.ID == last })].Messages
	want, got := calm.anonymous(t, calm.requests[len(calm.requests)-1].Messages), w.anonymous(t, w.last)
	received := 0
	for i, m := range got {
		if strings.HasPrefix(m.Content, "error (outcome_unknown): ") && i < len(want) {
			received++
			want[i].Content = m.Content
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the last request: -want +got:\n%s", diff)
	}
	if ending == "everything" { // a summary has replaced some of the messages
		received = counted[unknownOutcome]
	}
	if received != w.unknown && ending != "over budget" { // this Turn sends no later request that could mention the unknown outcomes
		t.Errorf("the model received %d unknown outcomes, want %d", received, w.unknown)
	}
}

// checkObserved checks that all processes together have counted each request once. A process that dies right after it
// has recorded the end of a request cannot count this request.
func (w *world) checkObserved(t *testing.T) {
	t.Helper()
	missing := 0
	for _, entry := range entries(t, w.journal, w.uid) {
		if entry.Kind != journal.ModelRequested {
			continue
		}
		switch key := turn.RequestKey(decoded[loop.Request](t, entry).ID); w.observed[key] {
		case 0:
			missing++
		case 1:
		default:
			t.Errorf("the request %s counts %d times in the metrics, want once", key, w.observed[key])
		}
	}
	if missing > w.unobserved {
		t.Errorf("%d requests do not count in the metrics, and %d processes died before they could count a request", missing, w.unobserved)
	}
}

// unknownOutcome is the key under which checkRequests counts the calls whose outcome in the journal is unknown.
const unknownOutcome journal.Kind = "unknown"

// anonymous returns the messages without the nonce of the world.
func (w *world) anonymous(t *testing.T, messages []model.Message) []model.Message {
	t.Helper()
	messages = slices.Clone(messages)
	for _, entry := range entries(t, w.journal, w.uid) {
		if entry.Kind == journal.ToolsExposed {
			nonce := decoded[tool.Exposure](t, entry).Nonce
			for i := range messages {
				messages[i].Content = strings.ReplaceAll(messages[i].Content, nonce, "NONCE")
			}
		}
	}
	return messages
}

// checkCalls checks that no harmful call was made twice, and that exactly the expected calls were made, except for
// harmful calls of unknown outcome.
func (w *world) checkCalls(t *testing.T, made []string) {
	t.Helper()
	got := map[string]int{}
	for key, n := range w.calls {
		call := strings.TrimPrefix(key[:strings.LastIndexByte(key, '/')], w.uid+"/")
		if got[call] > 0 {
			t.Errorf("call %s has several idempotency keys", call)
		}
		got[call] += n
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
		t.Errorf("the unexpected calls %v were made", slices.Sorted(maps.Keys(got)))
	}
}

// checkResult checks that the result covers everything in the journal.
func (w *world) checkResult(t *testing.T, result *turn.Result, e ending, calls int) {
	t.Helper()
	var usage model.Usage
	var cost decimal.Decimal
	requests, unknown := 0, 0
	var open *loop.Request // a request without an end, which may have been billed
	cutOff := func() {
		if open != nil {
			usage, cost = usage.Add(model.Usage{InputTokens: open.EstimatedTokens, Estimated: true}), cost.Add(open.EstimatedCost.Amount)
		}
		open = nil
	}
	for _, e := range entries(t, w.journal, w.uid) {
		switch e.Kind { //nolint:exhaustive // because only these entries count
		case journal.ModelRequested:
			requests++
			cutOff()
			r := decoded[loop.Request](t, e)
			open = &r
		case journal.ModelReplied:
			s := decoded[loop.Step](t, e)
			usage, cost, open = usage.Add(s.Reply.Usage), cost.Add(s.Cost.Amount), nil
		case journal.ModelFailed:
			a := decoded[loop.FailedRequest](t, e)
			usage, cost, open = usage.Add(a.Usage), cost.Add(a.Cost.Amount), nil
		case journal.ToolFinished:
			if decoded[loop.CallResult](t, e).Outcome == loop.Unknown {
				unknown++
			}
		}
	}
	cutOff()
	got := result.Counts
	got.ModelRetries = 0
	want := e.counts
	want.Steps, want.ModelRequests, want.ToolCalls, want.UnknownOutcomes, want.Resumes = e.steps, requests, calls, w.unknown, w.resumes
	if got != want || unknown != w.unknown {
		t.Errorf("counts %+v with %d unknown outcomes in the journal, want %+v", got, unknown, want)
	}
	if result.Record.Usage != usage || result.Record.Cost == nil || result.Record.Cost.Amount != cost.String() {
		t.Errorf("usage %+v and cost %+v, want %+v and %s: the sum of the journal", result.Record.Usage, result.Record.Cost, usage, cost)
	}
}

// usageOf returns the usage of a Turn including its sub-agents.
func usageOf(result *turn.Result) model.Usage {
	if result.SubAgents == nil {
		return result.Record.Usage
	}
	return result.Record.Usage.Add(result.SubAgents.Usage)
}

// checkSession checks that the Turn is in its Session exactly once.
func (w *world) checkSession(t *testing.T, result *turn.Result) {
	t.Helper()
	c, err := session.Recall(t.Context(), w.journal, w.talk, nil)
	if err != nil {
		t.Fatal(err)
	}
	h := c.Turns
	if len(h) != 2 || h[1].UID != w.uid || result.Session == nil || result.Session.Number != 2 {
		t.Fatalf("the Session has %d Turns (error %v) and the result says %+v; want the Turn once, with number 2",
			len(h), err, result.Session)
	}
	if diff := cmp.Diff(c.Totals, result.Session.Totals); diff != "" || h[1].Usage != usageOf(result) {
		t.Errorf("totals: -history +result:\n%s", diff)
	}
	if w.ending.change != nil {
		w.checkEverything(t, result, h[1])
		return
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
		t.Errorf("the messages that the Turn added to its Session: -want +got:\n%s", diff)
	}
}
