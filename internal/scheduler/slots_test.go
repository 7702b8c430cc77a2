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

// requestOf returns a request for a Turn of an Agent that may run limit Turns in parallel. Turns whose names come later
// in the alphabet are younger.
func requestOf(namespace, agent, turn string, limit int) Request {
	return Request{
		Turn:  Key{Namespace: namespace, Name: turn},
		Agent: Agent{Key: Key{Namespace: namespace, Name: agent}, MaxParallelTurns: limit, Version: 1}, Since: time.Unix(int64(turn[0]), 0),
	}
}

func executors(capacities ...int) (all []Executor) {
	for i, capacity := range capacities {
		all = append(all, Executor{Name: fmt.Sprintf("e%d", i), Capacity: capacity})
	}
	return all
}

// expectWoken checks that exactly these Turns were woken since the last call.
func (h *harness) expectWoken(why string, turns ...string) {
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
		v := h.Reserve(requestOf("n", "agent", turn, 0), all)
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
		"no executor":     {Limits{}, requestOf("n", "agent", "z", 0), nil, NoExecutor, "no executor is running"},
		"a full executor": {Limits{}, requestOf("n", "agent", "z", 0), executors(1), AllSlotsTaken, "all slots of all executors are taken"},
		"an earlier Turn": {
			Limits{},
			requestOf("n", "queued", "z", 0), executors(1), AgentOrder,
			`earlier turns of Agent "queued" go first`,
		},
		"the Agent's limit": {
			Limits{},
			requestOf("n", "busy", "z", 1), executors(9), AgentLimit,
			`Agent "busy" already runs as many turns as it may (maxParallelTurns is 1)`,
		},
		"the namespace's limit": {
			Limits{Running: Share{count: 1}},
			requestOf("n", "agent", "z", 0), executors(9),
			NamespaceLimit, `namespace "n" already runs as many turns as it may: 1 (--max-running-turns-per-namespace is 1)`,
		},
		"too many queued Turns": {
			Limits{Queued: 1},
			requestOf("n", "agent", "z", 0), executors(1), QueueFull,
			`1 turns of namespace "n" already wait for a slot, which is the limit (--max-queued-turns-per-namespace)`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, tc.limits)
			if v := h.Reserve(requestOf("n", "busy", "a", 1), executors(1)); v.Executor != "e0" {
				t.Fatalf("the first Turn must get a slot: %+v", v)
			}
			h.Reserve(requestOf("n", "queued", "b", 0), executors(1))
			if got := h.Reserve(tc.request, tc.executors); got.Cause != tc.cause || got.Message != tc.message || got.Executor != "" {
				t.Errorf("got %+v, want cause %d, %q", got, tc.cause, tc.message)
			}
			if waits := h.IsWaiting(tc.request.Turn); waits != (tc.cause != QueueFull) {
				t.Errorf("the Turn waits: %t, want %t", waits, !waits)
			}
		})
	}
}

// TestFreedSlotIsReservedImmediately checks that the next Turn gets the slot without a request, so that the length of
// the reconciler's queue does not matter.
func TestFreedSlotIsReservedImmediately(t *testing.T) {
	h := newHarness(t, Limits{})
	for _, turn := range []string{"a", "b", "c", "d"} {
		h.Reserve(requestOf("n", "agent", turn, 0), executors(2))
	}
	h.Release(Key{Namespace: "n", Name: "b"})
	h.expectWoken("the next Turn must hold the slot", "n/c")
	if v := h.Reserve(requestOf("m", "agent", "a", 0), executors(2)); v.Executor != "" {
		t.Errorf("a later Turn took the slot: %+v", v)
	}
	if v := h.Reserve(requestOf("n", "agent", "c", 0), executors(2)); v.Executor != "e0" {
		t.Errorf("the Turn must get its reserved slot: %+v", v)
	}
	h.expectWoken("no other Turn has a slot")
}

func TestSmallNamespaceDoesNotWaitBehindLargeOne(t *testing.T) {
	h := newHarness(t, Limits{})
	for i := range 1000 {
		h.Reserve(requestOf("many", fmt.Sprintf("agent-%d", i%7), fmt.Sprintf("m%04d", i), 0), executors(3, 2))
	}
	for _, turn := range []string{"x", "y", "z"} {
		h.Reserve(requestOf("few", "agent", turn, 0), executors(3, 2))
	}
	for i := range 3 {
		h.Release(Key{Namespace: "many", Name: fmt.Sprintf("m%04d", i)})
	}
	// Both namespaces then run two Turns, so the Turn that has waited longest goes first.
	h.expectWoken("the slots must go to the namespace that runs fewer", "few/x", "few/y", "many/m0005")
}

func TestUnusedReservedSlotIsPassedOn(t *testing.T) {
	key := Key{Namespace: "n", Name: "b"}
	for name, tc := range map[string]struct {
		reason string
		giveUp func(*harness)
		waits  bool
	}{
		"released": {"its Turn was cancelled", func(h *harness) { h.Release(key) }, false},
		"deferred": {"the reconciliation of its Turn failed", func(h *harness) { h.Defer(key) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, Limits{})
			for _, turn := range []string{"a", "b", "c"} {
				h.Reserve(requestOf("n", "agent-"+turn, turn, 0), executors(1))
			}
			h.Release(Key{Namespace: "n", Name: "a"})
			h.expectWoken("the first waiting Turn", "n/b")
			tc.giveUp(h)
			h.expectWoken(tc.reason, "n/c")
			if h.IsWaiting(key) != tc.waits {
				t.Errorf("the Turn waits: %t, want %t", !tc.waits, tc.waits)
			}
		})
	}
}

// TestDeferredTurnBlocksOnlyItsAgent checks that the later Turns of an Agent wait behind a deferred Turn, that Turns of
// other Agents do not, and that the Agent's Turns later continue in their order.
func TestDeferredTurnBlocksOnlyItsAgent(t *testing.T) {
	h := newHarness(t, Limits{})
	h.Reserve(requestOf("n", "third", "a", 0), executors(1))
	for _, turn := range []string{"b", "c"} {
		h.Reserve(requestOf("n", "agent", turn, 0), executors(1))
	}
	h.Reserve(requestOf("n", "other", "d", 0), executors(1))
	h.Defer(Key{Namespace: "n", Name: "b"})
	h.Release(Key{Namespace: "n", Name: "a"})
	h.expectWoken("the slot must go to the other Agent, because the first Turn of this Agent is deferred", "n/d")
	h.SetExecutors(executors(3))
	h.expectWoken("the later Turn must wait for the earlier one")
	h.Resume(Key{Namespace: "n", Name: "agent"})
	h.expectWoken("the Turns b and c must continue in their order", "n/b", "n/c")
}

func TestNewestAgentLimitApplies(t *testing.T) {
	h := newHarness(t, Limits{})
	agent := Agent{Key: Key{Namespace: "n", Name: "agent"}, MaxParallelTurns: 1, Version: 5}
	h.SetAgent(agent)
	for _, turn := range []string{"a", "b", "c", "d"} {
		h.Reserve(requestOf("n", "agent", turn, 9), executors(9)) // an older version of the Agent had this limit
	}
	agent.MaxParallelTurns, agent.Version = 3, 6
	h.SetAgent(agent)
	h.expectWoken("a raised limit must give slots to waiting Turns immediately", "n/b", "n/c")
	h.ForgetAgent(agent.Key)
	agent.MaxParallelTurns, agent.Version = 0, 2
	h.SetAgent(agent)
	h.expectWoken("the limit of a recreated Agent must apply", "n/d")
}

// TestAgentWhoseModelsAreDown checks that only one Turn at a time tries models that do not answer, that other Agents
// get the slots, and that all Turns continue when a model answers.
func TestAgentWhoseModelsAreDown(t *testing.T) {
	h := newHarness(t, Limits{})
	down, other := Key{Namespace: "n", Name: "down"}, Key{Namespace: "n", Name: "other"}
	h.SetAgent(Agent{Key: down, Version: 1})
	h.SetAgent(Agent{Key: other, Version: 1})
	h.Reserve(requestOf("n", "down", "a", 0), executors(4))
	h.Reserve(requestOf("n", "down", "b", 0), executors(4))
	h.SetModelsDown(down, true)
	const why = `no model of Agent "down" answers (their circuit breakers are open): one of its turns tries them, and the others wait`
	for _, turn := range []string{"c", "d", "e"} {
		if v := h.Reserve(requestOf("n", "down", turn, 0), executors(4)); v.Cause != AgentLimit || v.Message != why {
			t.Errorf("Reserve = %+v, want cause %d, %q", v, AgentLimit, why)
		}
	}
	if v := h.Reserve(requestOf("n", "other", "f", 0), executors(4)); v.Executor == "" {
		t.Errorf("Reserve = %+v, want a slot for a Turn of another Agent", v)
	}
	h.Release(Key{Namespace: "n", Name: "a"})
	h.expectWoken("another Turn still tries the models")
	h.Release(Key{Namespace: "n", Name: "b"})
	h.expectWoken("the next Turn tries them", "n/c")
	h.SetModelsDown(down, false)
	h.expectWoken("a model answers", "n/d", "n/e")
	h.SetModelsDown(Key{Namespace: "n", Name: "deleted"}, true)
	if n := len(h.agents); n != 2 {
		t.Errorf("%d Agents are known, want 2: a deleted Agent must be forgotten", n)
	}
}

// TestNamespaceShare checks that a percentage applies only if there are at least two tenants, and a number always.
func TestNamespaceShare(t *testing.T) {
	for name, tc := range map[string]struct {
		reason  string
		limit   string
		tenants int
		slots   int
		want    int
	}{
		"alone":               {"a single tenant may use all slots", "90%", 1, 20, 20},
		"two tenants":         {"each leaves slots to the other", "90%", 2, 20, 18},
		"few slots":           {"a fraction of a slot is rounded up", "90%", 2, 5, 5},
		"a number":            {"a number does not depend on tenants", "7", 1, 20, 7},
		"zero":                {"0 means no limit", "0", 2, 20, 20},
		"100%":                {"100% means no limit", "100%", 2, 20, 20},
		"more than all slots": {"a number above the number of slots has no effect", "50", 2, 20, 20},
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
				if v := h.Reserve(requestOf("n0", "agent", fmt.Sprintf("t%03d", i), 0), executors(tc.slots)); v.Executor != "" {
					got++
				}
			}
			if got != tc.want {
				t.Errorf("the namespace has %d slots, want %d: %s", got, tc.want, tc.reason)
			}
			if tc.tenants > 1 && tc.want < tc.slots {
				if v := h.Reserve(requestOf("n1", "agent", "z", 0), executors(tc.slots)); v.Executor == "" {
					t.Errorf("the other namespace gets no slot: %+v", v)
				}
				h.ForgetAgent(Key{Namespace: "n1", Name: "agent"})
				if len(h.woken) != tc.slots-tc.want-1 {
					t.Errorf("woken: %v, want the %d Turns that now get the last slots", h.woken, tc.slots-tc.want-1)
				}
			}
		})
	}
}

func TestParseShareRejects(t *testing.T) {
	for _, text := range []string{"", "x", "-1", "0%", "101%", "1000001", "1.5", "50 %"} {
		if got, err := ParseShare(text); err == nil {
			t.Errorf("ParseShare(%q) = %s, want an error", text, got)
		}
	}
}

// TestAdmittedTurnIsNotRefused checks the time after a restart, when all Turns request slots again in any order.
func TestAdmittedTurnIsNotRefused(t *testing.T) {
	h := newHarness(t, Limits{Queued: 1})
	h.Reserve(requestOf("n", "agent", "a", 0), executors(1))
	for _, turn := range []string{"b", "c"} {
		r := requestOf("n", "agent", turn, 0)
		r.Admitted = true
		if v := h.Reserve(r, executors(1)); v.Cause == QueueFull {
			t.Errorf("%s was refused: %+v", turn, v)
		}
	}
	if v := h.Reserve(requestOf("n", "agent", "d", 0), executors(1)); v.Cause != QueueFull {
		t.Errorf("a new Turn beyond the limit: %+v, want a refusal", v)
	}
	if v := h.Reserve(requestOf("m", "agent", "e", 0), executors(1)); v.Cause != AllSlotsTaken {
		t.Errorf("a Turn of another namespace: %+v, want it to wait", v)
	}
}

func TestReserveFreesOldSlotOfTurn(t *testing.T) {
	h := newHarness(t, Limits{})
	r := requestOf("n", "agent", "a", 1)
	h.Reserve(r, executors(1))
	h.Confirm(r, "e0")
	if v := h.Reserve(r, executors(1)); v.Executor != "e0" {
		t.Errorf("a Turn of a lost executor must not be blocked by its old slot: %+v", v)
	}
}

// TestReleaseBoundIgnoresNewerReservation checks an event that shows that a Turn was unbound, and that arrives after
// the Turn has reserved a slot again.
func TestReleaseBoundIgnoresNewerReservation(t *testing.T) {
	h := newHarness(t, Limits{})
	r := requestOf("n", "agent", "a", 0)
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

// TestStuckTurnsNeedNoSlot checks that an executor has further slots for stuck Turns, and that these do not raise the
// share of a namespace.
func TestStuckTurnsNeedNoSlot(t *testing.T) {
	h := newHarness(t, Limits{Running: Share{percent: 50}})
	h.SetAgent(Agent{Key: Key{Namespace: "a", Name: "x"}, Version: 1})
	h.SetAgent(Agent{Key: Key{Namespace: "b", Name: "x"}, Version: 1})
	all := executors(2)
	h.Confirm(requestOf("a", "x", "stuck", 0), all[0].Name)
	h.Confirm(requestOf("b", "x", "runs", 0), all[0].Name)
	if v := h.Reserve(requestOf("b", "x", "second", 0), all); v.Cause == NoCause {
		t.Fatal("all slots are taken")
	}
	all[0].Stuck = 1
	if v := h.Reserve(requestOf("b", "x", "second", 0), all); v.Cause != NamespaceLimit {
		t.Errorf("verdict %+v, want the limit of the namespace, which is half of 2 slots", v)
	}
	if v := h.Reserve(requestOf("c", "x", "third", 0), all); v.Cause != NoCause {
		t.Errorf("verdict %+v, want the slot that the stuck Turn does not need", v)
	}
}

// TestWaitingForSlots checks that only Turns count that more executors could run.
func TestWaitingForSlots(t *testing.T) {
	const queued = 5
	shared := Agent{Key: Key{Namespace: "owner", Name: "shared"}, MaxParallelTurns: 3, Version: 1}
	for name, tc := range map[string]struct {
		limits Limits
		agent  func(namespace string) Agent // of the waiting Turns
		change func(*harness)
		want   int
	}{
		"all slots are taken": {want: 2 * queued},
		"a limit of the Agent": {
			agent: func(namespace string) Agent {
				return Agent{Key: Key{Namespace: namespace, Name: "x"}, MaxParallelTurns: 2, Version: 1}
			},
			want: 4,
		},
		"a limit of an Agent that namespaces share": {agent: func(string) Agent { return shared }, want: 3},
		"an Agent at its limit": {
			agent: func(string) Agent {
				return Agent{Key: Key{Namespace: "a", Name: "busy"}, MaxParallelTurns: 1, Version: 1}
			},
		},
		"no model answers": {change: func(h *harness) { h.SetModelsDown(Key{Namespace: "a", Name: "x"}, true) }, want: 1 + queued},
		"one Turn tries the models": {
			agent:  func(string) Agent { return Agent{Key: Key{Namespace: "a", Name: "busy"}, Version: 1} },
			change: func(h *harness) { h.SetModelsDown(Key{Namespace: "a", Name: "busy"}, true) },
		},
		"a fixed limit of namespaces":      {limits: Limits{Running: Share{count: 3}}, want: 2 + 3}, // one Turn of a runs
		"a limit of namespaces in percent": {limits: Limits{Running: Share{percent: 50}}, want: 2 * queued},
		"the first Turn of an Agent cannot use a slot": {
			change: func(h *harness) { h.Defer(Key{Namespace: "a", Name: "a0"}) }, want: queued,
		},
		"a later Turn of an Agent cannot use a slot": {
			change: func(h *harness) { h.Defer(Key{Namespace: "a", Name: "b1"}) }, want: 2*queued - 1,
		},
		"no executor is running":  {change: func(h *harness) { h.SetExecutors(nil) }, want: 2 * queued},
		"Turns that wait no more": {change: func(h *harness) { h.Release(Key{Namespace: "b", Name: "a0"}) }, want: 2*queued - 1},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, tc.limits)
			if got := h.WaitingForSlots(); got != 0 {
				t.Errorf("%d Turns wait for slots before there is a Turn, want none", got)
			}
			runs := requestOf("a", "busy", "runs", 1)
			h.Confirm(runs, "e0")
			for _, namespace := range []string{"a", "b"} {
				for i := range queued {
					r := requestOf(namespace, "x", fmt.Sprintf("%c%d", 'a'+i, i), 0)
					if tc.agent != nil {
						r.Agent = tc.agent(namespace)
					}
					if v := h.Reserve(r, executors(1)); v.Executor != "" {
						t.Fatalf("Turn %s has a slot, want none", r.Turn)
					}
				}
			}
			if tc.change != nil {
				tc.change(h)
			}
			if got := h.WaitingForSlots(); got != tc.want {
				t.Errorf("%d Turns wait for slots, want %d", got, tc.want)
			}
		})
	}
}

func TestReserveOverLimit(t *testing.T) {
	h := newHarness(t, Limits{Running: Share{count: 1}})
	h.Reserve(requestOf("n", "agent", "a", 1), executors(1))
	if name := h.ReserveOverLimit(requestOf("n", "agent", "b", 1), nil); name != "" {
		t.Errorf("ReserveOverLimit = %q, want an empty name: no executor is running", name)
	}
	h.SetExecutors(executors(1))
	h.expectWoken("an executor that appears must wake the Turn", "n/a", "n/b")
	if name := h.ReserveOverLimit(requestOf("n", "agent", "b", 1), executors(1)); name != "e0" {
		t.Errorf("ReserveOverLimit = %q, want e0 although it is full: a Turn that only ends calls no model", name)
	}
	if running, _ := h.Counts(); running != 2 {
		t.Errorf("%d Turns hold slots, want 2", running)
	}
}

// TestExecutorAppearingDuringListWakesTurn checks that a Turn is woken if an executor appears while the executors are
// being listed for the Turn.
func TestExecutorAppearingDuringListWakesTurn(t *testing.T) {
	h := newHarness(t, Limits{})
	r := requestOf("n", "agent", "a", 0)
	h.AwaitExecutor(r.Turn)
	h.SetExecutors(executors(1)) // the executor appears after the list was found empty
	h.expectWoken("the Turn is about to request a slot", "n/a")
	if v := h.Reserve(r, nil); v.Cause != NoExecutor {
		t.Errorf("Reserve = %+v, want cause %d", v, NoExecutor)
	}
	h.SetExecutors(executors(1))
	h.expectWoken("the Turn is woken again with its slot", "n/a")
}

func TestReservedSlotsOfLostExecutorAreReleased(t *testing.T) {
	h := newHarness(t, Limits{})
	bound := requestOf("n", "agent", "a", 0)
	h.Reserve(bound, executors(2))
	h.Confirm(bound, "e0")
	h.Reserve(requestOf("n", "agent", "b", 0), executors(2))
	h.SetExecutors([]Executor{{Name: "other", Capacity: 1}})
	h.expectWoken("the Turn that was not bound yet must get a slot of the other executor", "n/b")
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
			for b.Loop() { // a Turn ends, the next Turn gets its slot, and a new Turn appears
				s.Release(next)
				s.Reserve(request(i), all)
				i++
			}
		})
	}
}

// TestAgentsOfOtherNamespaces checks that the limit of a namespace applies to the Turns in this namespace, and that the
// limit of an Agent applies to its Turns in all namespaces.
func TestAgentsOfOtherNamespaces(t *testing.T) {
	shared := func(namespace, turn string, limit int) Request {
		r := requestOf(namespace, "shared", turn, limit)
		r.Agent.Key.Namespace = "owner"
		return r
	}
	t.Run("limit of the namespace", func(t *testing.T) {
		h := newHarness(t, Limits{Running: Share{count: 1}})
		h.Reserve(shared("a", "1", 0), executors(9))
		v := h.Reserve(shared("a", "2", 0), executors(9))
		if want := `namespace "a" already runs as many turns as it may: 1 (--max-running-turns-per-namespace is 1)`; v.Message != want {
			t.Errorf("the message is %q, want %q", v.Message, want)
		}
		for _, r := range []Request{shared("b", "3", 0), requestOf("owner", "shared", "4", 0)} {
			if v := h.Reserve(r, executors(9)); v.Executor == "" {
				t.Errorf("%s has no slot, although its namespace runs nothing: %s", r.Turn, v.Message)
			}
		}
	})
	t.Run("limit of the Agent", func(t *testing.T) {
		h := newHarness(t, Limits{})
		h.Reserve(shared("a", "1", 1), executors(9))
		v := h.Reserve(shared("b", "2", 1), executors(9))
		if want := `Agent "owner/shared" already runs as many turns as it may (maxParallelTurns is 1)`; v.Message != want {
			t.Errorf("the message is %q, want %q", v.Message, want)
		}
		v = h.Reserve(requestOf("owner", "shared", "3", 1), executors(9))
		if want := `Agent "shared" already runs as many turns as it may (maxParallelTurns is 1)`; v.Message != want {
			t.Errorf("the message is %q, want %q", v.Message, want)
		}
		h.expectWoken("no slot has become free")
		h.Release(Key{Namespace: "a", Name: "1"})
		h.expectWoken("the Turn of another namespace has waited longest", "b/2")
		h.Defer(Key{Namespace: "b", Name: "2"})
		h.expectWoken("a deferred Turn must block only its own namespace", "owner/3")
		h.Release(Key{Namespace: "owner", Name: "3"})
		h.Resume(Key{Namespace: "owner", Name: "shared"})
		h.expectWoken("the Agent is ready again", "b/2")
		h.Release(Key{Namespace: "b", Name: "2"})
		if len(h.agents)+len(h.namespaces) != 0 {
			t.Errorf("%d Agents and %d namespaces are known without a Turn", len(h.agents), len(h.namespaces))
		}
	})
}
