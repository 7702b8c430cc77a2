package scheduler

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// harness is Slots with a record of the Turns that it wakes.
type harness struct {
	*Slots
	t     *testing.T
	woken []string
}

func newHarness(t *testing.T, limits Limits) *harness {
	t.Helper()
	h := &harness{t: t}
	h.Slots = New(limits, func(turn Key, _ bool) { h.woken = append(h.woken, turn.String()) })
	return h
}

// wants is the request of a Turn, "namespace/agent/turn". Turns whose names come later in the alphabet are younger.
func wants(namespace, agent, turn string, most int) Request {
	return Request{
		Turn:  Key{Namespace: namespace, Name: turn},
		Agent: Agent{Key: Key{Namespace: namespace, Name: agent}, Most: most, Version: 1}, Since: time.Unix(int64(turn[0]), 0),
	}
}

func executors(capacities ...int) (all []Executor) {
	for i, capacity := range capacities {
		all = append(all, Executor{Name: fmt.Sprintf("e%d", i), Capacity: capacity})
	}
	return all
}

// expect checks which Turns were woken since the last call.
func (h *harness) expect(why string, turns ...string) {
	h.t.Helper()
	if diff := cmp.Diff(turns, h.woken); diff != "" {
		h.t.Errorf("%s (-want +got):\n%s", why, diff)
	}
	h.woken = nil
}

func TestSlotsGoToTheFreestExecutor(t *testing.T) {
	h := newHarness(t, Limits{})
	all := []Executor{{Name: "small", Capacity: 1}, {Name: "large", Capacity: 3}, {Name: "also", Capacity: 1}}
	var got []string
	for _, turn := range []string{"a", "b", "c", "d", "e", "f"} {
		v := h.Reserve(wants("n", "agent", turn, 0), all)
		got = append(got, v.Executor+v.Message)
	}
	want := []string{"large", "large", "also", "large", "small", "all executors run as many turns as they can"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the slots are others (-want +got):\n%s", diff)
	}
}

func TestReserveSaysWhyThereIsNoSlot(t *testing.T) {
	for name, tc := range map[string]struct {
		limits    Limits
		request   Request
		executors []Executor
		cause     Cause
		message   string
	}{
		"no executor":         {Limits{}, wants("n", "agent", "z", 0), nil, NoExecutor, "no executor is running"},
		"a full executor":     {Limits{}, wants("n", "agent", "z", 0), executors(1), Full, "all executors run as many turns as they can"},
		"an earlier Turn":     {Limits{}, wants("n", "queued", "z", 0), executors(1), AgentOrder, `earlier turns of Agent "queued" go first`},
		"the Agent's limit":   {Limits{}, wants("n", "busy", "z", 1), executors(9), AgentLimit, `Agent "busy" runs as many turns as it may at once (maxParallelTurns is 1)`},
		"the namespace's":     {Limits{Running: Share{count: 1}}, wants("n", "agent", "z", 0), executors(9), NamespaceLimit, `namespace "n" runs as many turns as it may at once: 1 (--max-running-turns-per-namespace is 1)`},
		"too many that queue": {Limits{Queued: 1}, wants("n", "agent", "z", 0), executors(1), QueueFull, `1 Turns of namespace "n" wait for a slot, and no more may (--max-queued-turns-per-namespace)`},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, tc.limits)
			if v := h.Reserve(wants("n", "busy", "a", 1), executors(1)); v.Executor != "e0" {
				t.Fatalf("the first Turn must get a slot: %+v", v)
			}
			h.Reserve(wants("n", "queued", "b", 0), executors(1))
			if got := h.Reserve(tc.request, tc.executors); got.Cause != tc.cause || got.Message != tc.message || got.Executor != "" {
				t.Errorf("got %+v, want cause %d, %q", got, tc.cause, tc.message)
			}
			if waits := h.Waits(tc.request.Turn); waits != (tc.cause != QueueFull) {
				t.Errorf("the Turn waits: %t", waits)
			}
		})
	}
}

// TestASlotIsHandedOnAtOnce: nobody has to ask for it, so it does not matter how long the next Turn takes to be looked at.
func TestASlotIsHandedOnAtOnce(t *testing.T) {
	h := newHarness(t, Limits{})
	for _, turn := range []string{"a", "b", "c", "d"} {
		h.Reserve(wants("n", "agent", turn, 0), executors(2))
	}
	h.Release(Key{Namespace: "n", Name: "b"})
	h.expect("the next Turn must have the slot", "n/c")
	if v := h.Reserve(wants("m", "agent", "a", 0), executors(2)); v.Executor != "" {
		t.Errorf("a Turn that comes later took the slot: %+v", v)
	}
	if v := h.Reserve(wants("n", "agent", "c", 0), executors(2)); v.Executor != "e0" {
		t.Errorf("the Turn must find its slot: %+v", v)
	}
	h.expect("nobody else has a slot")
}

func TestAFewTurnsDoNotWaitBehindAThousandOfAnotherNamespace(t *testing.T) {
	h := newHarness(t, Limits{})
	for i := range 1000 {
		h.Reserve(wants("many", fmt.Sprintf("agent-%d", i%7), fmt.Sprintf("m%04d", i), 0), executors(3, 2))
	}
	for _, turn := range []string{"x", "y", "z"} {
		h.Reserve(wants("few", "agent", turn, 0), executors(3, 2))
	}
	for i := range 3 {
		h.Release(Key{Namespace: "many", Name: fmt.Sprintf("m%04d", i)})
	}
	// Both run two Turns then: who has waited longest goes first.
	h.expect("the slots must go to the namespace that runs fewer", "few/x", "few/y", "many/m0005")
}

func TestAReservedSlotIsPassedOn(t *testing.T) {
	key := Key{Namespace: "n", Name: "b"}
	for name, tc := range map[string]struct {
		reason string
		leave  func(*harness)
		waits  bool
	}{
		"released": {"its Turn was cancelled", func(h *harness) { h.Release(key) }, false},
		"deferred": {"a look at its Turn failed", func(h *harness) { h.Defer(key) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, Limits{})
			for _, turn := range []string{"a", "b", "c"} {
				h.Reserve(wants("n", "agent-"+turn, turn, 0), executors(1))
			}
			h.Release(Key{Namespace: "n", Name: "a"})
			h.expect("the first of those that wait", "n/b")
			tc.leave(h)
			h.expect(tc.reason, "n/c")
			if h.Waits(key) != tc.waits {
				t.Errorf("the Turn waits: %t", !tc.waits)
			}
		})
	}
}

// TestADeferredTurnKeepsItsAgentsTurnsWaiting, and those of no other Agent; they go on in their order.
func TestADeferredTurnKeepsItsAgentsTurnsWaiting(t *testing.T) {
	h := newHarness(t, Limits{})
	h.Reserve(wants("n", "third", "a", 0), executors(1))
	for _, turn := range []string{"b", "c"} {
		h.Reserve(wants("n", "agent", turn, 0), executors(1))
	}
	h.Reserve(wants("n", "other", "d", 0), executors(1))
	h.Defer(Key{Namespace: "n", Name: "b"})
	h.Release(Key{Namespace: "n", Name: "a"})
	h.expect("the slot must go past the Agent whose first Turn cannot take it", "n/d")
	h.SetExecutors(executors(3))
	h.expect("the later Turn must wait for the earlier one")
	h.Resume(Key{Namespace: "n", Name: "agent"})
	h.expect("both go on, in their order", "n/b", "n/c")
}

func TestALimitOfAnAgentIsTheNewest(t *testing.T) {
	h := newHarness(t, Limits{})
	agent := Agent{Key: Key{Namespace: "n", Name: "agent"}, Most: 1, Version: 5}
	h.SetAgent(agent)
	for _, turn := range []string{"a", "b", "c", "d"} {
		h.Reserve(wants("n", "agent", turn, 9), executors(9)) // as an older version said
	}
	agent.Most, agent.Version = 3, 6
	h.SetAgent(agent)
	h.expect("a raised limit lets waiting Turns go at once", "n/b", "n/c")
	h.ForgetAgent(agent.Key)
	agent.Most, agent.Version = 0, 2
	h.SetAgent(agent)
	h.expect("an Agent that was made anew has another limit", "n/d")
}

// TestANamespaceLeavesSlotsToOthers: a percentage holds from the second tenant on, a number always.
func TestANamespaceLeavesSlotsToOthers(t *testing.T) {
	for name, tc := range map[string]struct {
		reason  string
		limit   string
		tenants int
		slots   int
		want    int
	}{
		"alone":                {"a single tenant leaves slots to nobody", "90%", 1, 20, 20},
		"two tenants":          {"each leaves some to the other", "90%", 2, 20, 18},
		"few slots":            {"a part of a slot counts as one", "90%", 2, 5, 5},
		"a number":             {"a number is a number", "7", 1, 20, 7},
		"any number":           {"0 is no limit", "0", 2, 20, 20},
		"all":                  {"100% is no limit", "100%", 2, 20, 20},
		"more than there are ": {"a number above the slots is no limit", "50", 2, 20, 20},
	} {
		t.Run(name, func(t *testing.T) {
			share, err := ParseShare(tc.limit)
			if err != nil || share.String() != tc.limit {
				t.Fatalf("ParseShare(%q) = %s, %v", tc.limit, share, err)
			}
			h := newHarness(t, Limits{Running: share})
			for i := range tc.tenants {
				h.SetAgent(Agent{Key: Key{Namespace: fmt.Sprintf("n%d", i), Name: "agent"}, Version: 1})
			}
			got := 0
			for i := range 30 {
				if v := h.Reserve(wants("n0", "agent", fmt.Sprintf("t%03d", i), 0), executors(tc.slots)); v.Executor != "" {
					got++
				}
			}
			if got != tc.want {
				t.Errorf("the namespace has %d slots, want %d: %s", got, tc.want, tc.reason)
			}
			if tc.tenants > 1 && tc.want < tc.slots {
				if v := h.Reserve(wants("n1", "agent", "z", 0), executors(tc.slots)); v.Executor == "" {
					t.Errorf("the other namespace gets no slot: %+v", v)
				}
				h.ForgetAgent(Key{Namespace: "n1", Name: "agent"})
				if len(h.woken) != tc.slots-tc.want-1 {
					t.Errorf("woken: %v, want the Turns that may have the last slots now", h.woken)
				}
			}
		})
	}
}

func TestParseShareRefuses(t *testing.T) {
	for _, text := range []string{"", "x", "-1", "0%", "101%", "1000001", "1.5", "50 %"} {
		if got, err := ParseShare(text); err == nil {
			t.Errorf("ParseShare(%q) = %s, want an error", text, got)
		}
	}
}

// TestATurnThatWasAdmittedIsNotRefused: after a restart all Turns ask again, in any order.
func TestATurnThatWasAdmittedIsNotRefused(t *testing.T) {
	h := newHarness(t, Limits{Queued: 1})
	h.Reserve(wants("n", "agent", "a", 0), executors(1))
	for _, turn := range []string{"b", "c"} {
		r := wants("n", "agent", turn, 0)
		r.Admitted = true
		if v := h.Reserve(r, executors(1)); v.Cause == QueueFull {
			t.Errorf("%s was refused: %+v", turn, v)
		}
	}
	if v := h.Reserve(wants("n", "agent", "d", 0), executors(1)); v.Cause != QueueFull {
		t.Errorf("a new Turn beyond the limit: %+v, want a refusal", v)
	}
	if v := h.Reserve(wants("m", "agent", "e", 0), executors(1)); v.Cause != Full {
		t.Errorf("a Turn of another namespace: %+v, want it to wait", v)
	}
}

func TestATurnThatComesBackGivesItsSlotUpFirst(t *testing.T) {
	h := newHarness(t, Limits{})
	r := wants("n", "agent", "a", 1)
	h.Reserve(r, executors(1))
	h.Confirm(r, "e0")
	if v := h.Reserve(r, executors(1)); v.Executor != "e0" {
		t.Errorf("a Turn of a lost executor must not stand in its own way: %+v", v)
	}
}

// TestReleaseBoundLeavesWhatIsNewer: an event that shows an unbinding may come when the Turn has reserved a slot anew.
func TestReleaseBoundLeavesWhatIsNewer(t *testing.T) {
	h := newHarness(t, Limits{})
	r := wants("n", "agent", "a", 0)
	h.Reserve(r, executors(1))
	h.ReleaseBound(r.Turn)
	if !h.Holds(r.Turn) {
		t.Error("a reserved slot was released")
	}
	h.Confirm(r, "e0")
	h.ReleaseBound(r.Turn)
	if h.Holds(r.Turn) {
		t.Error("the slot of an unbound Turn was kept")
	}
}

func TestReserveOverLimit(t *testing.T) {
	h := newHarness(t, Limits{Running: Share{count: 1}})
	h.Reserve(wants("n", "agent", "a", 1), executors(1))
	if name := h.ReserveOverLimit(wants("n", "agent", "b", 1), nil); name != "" {
		t.Errorf("got %q, want none where there is no executor", name)
	}
	h.SetExecutors(executors(1))
	h.expect("the Turn must learn of an executor that appears", "n/a", "n/b")
	if name := h.ReserveOverLimit(wants("n", "agent", "b", 1), executors(1)); name != "e0" {
		t.Errorf("got %q, want the executor though it is full: a Turn that ends asks no model", name)
	}
	if running, _ := h.Counts(); running != 2 {
		t.Errorf("%d Turns hold slots, want 2", running)
	}
}

// TestAnExecutorThatAppearsWhileTheyAreListedWakes the Turn for which they are listed.
func TestAnExecutorThatAppearsWhileTheyAreListedWakes(t *testing.T) {
	h := newHarness(t, Limits{})
	r := wants("n", "agent", "a", 0)
	h.AwaitExecutor(r.Turn)
	h.SetExecutors(executors(1)) // it appears after the listing found none
	h.expect("the Turn is about to ask", "n/a")
	if v := h.Reserve(r, nil); v.Cause != NoExecutor {
		t.Errorf("got %+v, want none", v)
	}
	h.SetExecutors(executors(1))
	h.expect("and is told again, with its slot", "n/a")
}

func TestReservedSlotsOfALostExecutorAreGivenUp(t *testing.T) {
	h := newHarness(t, Limits{})
	bound := wants("n", "agent", "a", 0)
	h.Reserve(bound, executors(2))
	h.Confirm(bound, "e0")
	h.Reserve(wants("n", "agent", "b", 0), executors(2))
	h.SetExecutors([]Executor{{Name: "other", Capacity: 1}})
	h.expect("the Turn whose binding is not written has a slot elsewhere", "n/b")
	if !h.Holds(bound.Turn) {
		t.Error("a bound Turn keeps its slot until it is looked at: its executor may live")
	}
}

func BenchmarkSlots(b *testing.B) {
	for _, waiting := range []int{1_000, 32_000} {
		b.Run(fmt.Sprintf("%d waiting", waiting), func(b *testing.B) {
			next := Key{}
			s := New(Limits{}, func(turn Key, _ bool) { next = turn })
			all := executors(500, 500)
			request := func(i int) Request {
				ns := fmt.Sprintf("ns-%d", i%20)
				return Request{
					Turn:  Key{Namespace: ns, Name: fmt.Sprintf("t%d", i)},
					Agent: Agent{Key: Key{Namespace: ns, Name: fmt.Sprintf("agent-%d", i%60)}, Version: 1}, Since: time.Unix(int64(i), 0),
				}
			}
			for i := range waiting + 1000 {
				s.Reserve(request(i), all)
			}
			next = request(0).Turn
			i := waiting + 1000
			for b.Loop() { // a Turn ends, the next has its slot, and another one comes
				s.Release(next)
				s.Reserve(request(i), all)
				i++
			}
		})
	}
}
