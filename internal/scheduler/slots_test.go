package scheduler

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// harness is Slots with a record of the woken Turns.
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

// wants returns the request of a Turn, "namespace/agent/turn". Turns whose names come later in the alphabet are
// younger.
func wants(namespace, agent, turn string, most int) Request {
	return Request{
		Turn:  Key{Namespace: namespace, Name: turn},
		Agent: Agent{Key: Key{Namespace: namespace, Name: agent}, MaxParallelTurns: most, Version: 1}, Since: time.Unix(int64(turn[0]), 0),
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

func TestSlotsGoToFreestExecutor(t *testing.T) {
	h := newHarness(t, Limits{})
	all := []Executor{{Name: "small", Capacity: 1}, {Name: "large", Capacity: 3}, {Name: "also", Capacity: 1}}
	var got []string
	for _, turn := range []string{"a", "b", "c", "d", "e", "f"} {
		v := h.Reserve(wants("n", "agent", turn, 0), all)
		got = append(got, v.Executor+v.Message)
	}
	want := []string{"large", "large", "also", "large", "small", "all slots of all executors are taken"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("slots (-want +got):\n%s", diff)
	}
}

func TestReserveCauses(t *testing.T) {
	for name, tc := range map[string]struct {
		limits    Limits
		request   Request
		executors []Executor
		cause     Cause
		message   string
	}{
		"no executor":     {Limits{}, wants("n", "agent", "z", 0), nil, NoExecutor, "no executor is running"},
		"a full executor": {Limits{}, wants("n", "agent", "z", 0), executors(1), AllSlotsTaken, "all slots of all executors are taken"},
		"an earlier Turn": {
			Limits{},
			wants("n", "queued", "z", 0), executors(1), AgentOrder,
			`earlier turns of Agent "queued" go first`,
		},
		"the Agent's limit": {
			Limits{},
			wants("n", "busy", "z", 1), executors(9), AgentLimit,
			`Agent "busy" already runs as many turns as it may (maxParallelTurns is 1)`,
		},
		"the namespace's": {
			Limits{Running: Share{count: 1}},
			wants("n", "agent", "z", 0), executors(9),
			NamespaceLimit, `namespace "n" already runs as many turns as it may: 1 (--max-running-turns-per-namespace is 1)`,
		},
		"too many queued Turns": {
			Limits{Queued: 1},
			wants("n", "agent", "z", 0), executors(1), QueueFull,
			`1 turns of namespace "n" already wait for a slot, which is the limit (--max-queued-turns-per-namespace)`,
		},
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
			if waits := h.IsWaiting(tc.request.Turn); waits != (tc.cause != QueueFull) {
				t.Errorf("the Turn waits: %t", waits)
			}
		})
	}
}

// TestFreedSlotIsReservedAtOnce checks that the next Turn gets the slot without a request, so that the length of the
// reconciler's queue does not matter.
func TestFreedSlotIsReservedAtOnce(t *testing.T) {
	h := newHarness(t, Limits{})
	for _, turn := range []string{"a", "b", "c", "d"} {
		h.Reserve(wants("n", "agent", turn, 0), executors(2))
	}
	h.Release(Key{Namespace: "n", Name: "b"})
	h.expect("the next Turn must hold the slot", "n/c")
	if v := h.Reserve(wants("m", "agent", "a", 0), executors(2)); v.Executor != "" {
		t.Errorf("a later Turn took the slot: %+v", v)
	}
	if v := h.Reserve(wants("n", "agent", "c", 0), executors(2)); v.Executor != "e0" {
		t.Errorf("the Turn must get its reserved slot: %+v", v)
	}
	h.expect("no other Turn has a slot")
}

func TestSmallNamespaceDoesNotWaitBehindLargeOne(t *testing.T) {
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
	// Both namespaces then run two Turns, so the Turn that has waited longest goes first.
	h.expect("the slots must go to the namespace that runs fewer", "few/x", "few/y", "many/m0005")
}

func TestUnusedReservedSlotIsPassedOn(t *testing.T) {
	key := Key{Namespace: "n", Name: "b"}
	for name, tc := range map[string]struct {
		reason string
		leave  func(*harness)
		waits  bool
	}{
		"released": {"its Turn was cancelled", func(h *harness) { h.Release(key) }, false},
		"deferred": {"the reconciliation of its Turn failed", func(h *harness) { h.Defer(key) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, Limits{})
			for _, turn := range []string{"a", "b", "c"} {
				h.Reserve(wants("n", "agent-"+turn, turn, 0), executors(1))
			}
			h.Release(Key{Namespace: "n", Name: "a"})
			h.expect("the first waiting Turn", "n/b")
			tc.leave(h)
			h.expect(tc.reason, "n/c")
			if h.IsWaiting(key) != tc.waits {
				t.Errorf("the Turn waits: %t", !tc.waits)
			}
		})
	}
}

// TestDeferredTurnBlocksOnlyItsAgent checks this, and that Turns of other Agents do not wait. The waiting
// Turns then continue in their order.
func TestDeferredTurnBlocksOnlyItsAgent(t *testing.T) {
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
	h.expect("both continue in their order", "n/b", "n/c")
}

func TestNewestAgentLimitApplies(t *testing.T) {
	h := newHarness(t, Limits{})
	agent := Agent{Key: Key{Namespace: "n", Name: "agent"}, MaxParallelTurns: 1, Version: 5}
	h.SetAgent(agent)
	for _, turn := range []string{"a", "b", "c", "d"} {
		h.Reserve(wants("n", "agent", turn, 9), executors(9)) // as an older version of the Agent said
	}
	agent.MaxParallelTurns, agent.Version = 3, 6
	h.SetAgent(agent)
	h.expect("a raised limit gives slots to waiting Turns at once", "n/b", "n/c")
	h.ForgetAgent(agent.Key)
	agent.MaxParallelTurns, agent.Version = 0, 2
	h.SetAgent(agent)
	h.expect("an Agent that was created anew has its own limit", "n/d")
}

// TestAgentWithoutAModel checks that one Turn at a time tries the models of an Agent that do not answer, that other
// Agents get the slots, and that all Turns continue when a model answers.
func TestAgentWithoutAModel(t *testing.T) {
	h := newHarness(t, Limits{})
	down, other := Key{Namespace: "n", Name: "down"}, Key{Namespace: "n", Name: "other"}
	h.SetAgent(Agent{Key: down, Version: 1})
	h.SetAgent(Agent{Key: other, Version: 1})
	h.Reserve(wants("n", "down", "a", 0), executors(4))
	h.Reserve(wants("n", "down", "b", 0), executors(4))
	h.HoldAgent(down, true)
	const why = `no model of Agent "down" answers (their circuit breakers are open): one of its turns tries them, and the others wait`
	for _, turn := range []string{"c", "d", "e"} {
		if v := h.Reserve(wants("n", "down", turn, 0), executors(4)); v.Cause != AgentLimit || v.Message != why {
			t.Errorf("Reserve = %+v, want that the Turn waits: %s", v, why)
		}
	}
	if v := h.Reserve(wants("n", "other", "f", 0), executors(4)); v.Executor == "" {
		t.Errorf("Reserve = %+v, want a slot for a Turn of another Agent", v)
	}
	h.Release(Key{Namespace: "n", Name: "a"})
	h.expect("another Turn still tries the models")
	h.Release(Key{Namespace: "n", Name: "b"})
	h.expect("the next Turn tries them", "n/c")
	h.HoldAgent(down, false)
	h.expect("a model answers", "n/d", "n/e")
	h.HoldAgent(Key{Namespace: "n", Name: "deleted"}, true)
	if n := len(h.agents); n != 2 {
		t.Errorf("%d Agents are known, want 2: one that was deleted is forgotten", n)
	}
}

// TestNamespaceShare checks that a percentage applies from the second tenant on, and a number
// always.
func TestNamespaceShare(t *testing.T) {
	for name, tc := range map[string]struct {
		reason  string
		limit   string
		tenants int
		slots   int
		want    int
	}{
		"alone":                {"a single tenant may use all slots", "90%", 1, 20, 20},
		"two tenants":          {"each leaves slots to the other", "90%", 2, 20, 18},
		"few slots":            {"a fraction of a slot is rounded up", "90%", 2, 5, 5},
		"a number":             {"a number does not depend on tenants", "7", 1, 20, 7},
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
					t.Errorf("woken: %v, want the Turns that now get the last slots", h.woken)
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

// TestAdmittedTurnIsNotRefused checks a restart, after which all Turns request slots again in any order.
func TestAdmittedTurnIsNotRefused(t *testing.T) {
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
	if v := h.Reserve(wants("m", "agent", "e", 0), executors(1)); v.Cause != AllSlotsTaken {
		t.Errorf("a Turn of another namespace: %+v, want it to wait", v)
	}
}

func TestReturningTurnReleasesItsSlotFirst(t *testing.T) {
	h := newHarness(t, Limits{})
	r := wants("n", "agent", "a", 1)
	h.Reserve(r, executors(1))
	h.Confirm(r, "e0")
	if v := h.Reserve(r, executors(1)); v.Executor != "e0" {
		t.Errorf("a Turn of a lost executor must not be blocked by its old slot: %+v", v)
	}
}

// TestReleaseBoundIgnoresNewerReservation checks an event that shows an unbinding after the Turn has reserved a slot
// again.
func TestReleaseBoundIgnoresNewerReservation(t *testing.T) {
	h := newHarness(t, Limits{})
	r := wants("n", "agent", "a", 0)
	h.Reserve(r, executors(1))
	h.ReleaseBound(r.Turn)
	if !h.HasSlot(r.Turn) {
		t.Error("a reserved slot was released")
	}
	h.Confirm(r, "e0")
	h.ReleaseBound(r.Turn)
	if h.HasSlot(r.Turn) {
		t.Error("the slot of an unbound Turn was kept")
	}
}

func TestReserveOverLimit(t *testing.T) {
	h := newHarness(t, Limits{Running: Share{count: 1}})
	h.Reserve(wants("n", "agent", "a", 1), executors(1))
	if name := h.ReserveOverLimit(wants("n", "agent", "b", 1), nil); name != "" {
		t.Errorf("got %q, want none without an executor", name)
	}
	h.SetExecutors(executors(1))
	h.expect("an executor that appears must wake the Turn", "n/a", "n/b")
	if name := h.ReserveOverLimit(wants("n", "agent", "b", 1), executors(1)); name != "e0" {
		t.Errorf("got %q, want the executor although it is full: a Turn that ends calls no model", name)
	}
	if running, _ := h.Counts(); running != 2 {
		t.Errorf("%d Turns hold slots, want 2", running)
	}
}

// TestExecutorAppearingDuringListWakesTurn checks that it wakes the Turn for which the executors are
// listed.
func TestExecutorAppearingDuringListWakesTurn(t *testing.T) {
	h := newHarness(t, Limits{})
	r := wants("n", "agent", "a", 0)
	h.AwaitExecutor(r.Turn)
	h.SetExecutors(executors(1)) // it appears after the list was found empty
	h.expect("the Turn is about to request a slot", "n/a")
	if v := h.Reserve(r, nil); v.Cause != NoExecutor {
		t.Errorf("got %+v, want none", v)
	}
	h.SetExecutors(executors(1))
	h.expect("the Turn is woken again with its slot", "n/a")
}

func TestReservedSlotsOfLostExecutorAreReleased(t *testing.T) {
	h := newHarness(t, Limits{})
	bound := wants("n", "agent", "a", 0)
	h.Reserve(bound, executors(2))
	h.Confirm(bound, "e0")
	h.Reserve(wants("n", "agent", "b", 0), executors(2))
	h.SetExecutors([]Executor{{Name: "other", Capacity: 1}})
	h.expect("the Turn whose binding is not written has a slot elsewhere", "n/b")
	if !h.HasSlot(bound.Turn) {
		t.Error("a bound Turn keeps its slot until it is reconciled: its executor may be alive")
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
			for b.Loop() { // a Turn ends, the next Turn gets its slot, and a new Turn comes
				s.Release(next)
				s.Reserve(request(i), all)
				i++
			}
		})
	}
}

// TestAgentsOfOtherNamespaces checks that the limits of a namespace regard the namespace of the Turn, and that the
// limit of an Agent regards the Turns of all namespaces.
func TestAgentsOfOtherNamespaces(t *testing.T) {
	uses := func(namespace, turn string, most int) Request {
		r := wants(namespace, "shared", turn, most)
		r.Agent.Key.Namespace = "owner"
		return r
	}
	t.Run("a namespace", func(t *testing.T) {
		h := newHarness(t, Limits{Running: Share{count: 1}})
		h.Reserve(uses("a", "1", 0), executors(9))
		v := h.Reserve(uses("a", "2", 0), executors(9))
		if want := `namespace "a" already runs as many turns as it may: 1 (--max-running-turns-per-namespace is 1)`; v.Message != want {
			t.Errorf("the message is %q, want %q", v.Message, want)
		}
		for _, r := range []Request{uses("b", "3", 0), wants("owner", "shared", "4", 0)} {
			if v := h.Reserve(r, executors(9)); v.Executor == "" {
				t.Errorf("%s has no slot, although its namespace runs nothing: %s", r.Turn, v.Message)
			}
		}
	})
	t.Run("the Agent", func(t *testing.T) {
		h := newHarness(t, Limits{})
		h.Reserve(uses("a", "1", 1), executors(9))
		v := h.Reserve(uses("b", "2", 1), executors(9))
		if want := `Agent "owner/shared" already runs as many turns as it may (maxParallelTurns is 1)`; v.Message != want {
			t.Errorf("the message is %q, want %q", v.Message, want)
		}
		v = h.Reserve(wants("owner", "shared", "3", 1), executors(9))
		if want := `Agent "shared" already runs as many turns as it may (maxParallelTurns is 1)`; v.Message != want {
			t.Errorf("the message is %q, want %q", v.Message, want)
		}
		h.expect("no slot has become free")
		h.Release(Key{Namespace: "a", Name: "1"})
		h.expect("the Turn of another namespace has waited longest", "b/2")
		h.Defer(Key{Namespace: "b", Name: "2"})
		h.expect("a deferred Turn holds up its own namespace only", "owner/3")
		h.Release(Key{Namespace: "owner", Name: "3"})
		h.Resume(Key{Namespace: "owner", Name: "shared"})
		h.expect("the Agent is ready again", "b/2")
		h.Release(Key{Namespace: "b", Name: "2"})
		if len(h.agents)+len(h.namespaces) != 0 {
			t.Errorf("%d Agents and %d namespaces are known without a Turn", len(h.agents), len(h.namespaces))
		}
	})
}
