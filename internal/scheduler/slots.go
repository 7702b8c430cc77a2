// Package scheduler decides which Turn may run, and on which executor:
//
//   - Slots gives the slots of executors to Turns, with fairness among namespaces and within limits.
//   - Sessions keeps the Turns of each Session in order.
//   - Leases tracks which executors are alive.
//   - Expectations remembers the writes of this process that the cache does not show yet.
//
// The package uses no API server and no clock: the reconcilers pass in the objects that they have read, and the time.
// Most operations of Slots take time that is logarithmic in the number of Turns, and linear in the number of executors,
// which is small. Rare changes take longer: if an executor is lost, all Turns are searched, and if an Agent reaches its
// limit, all namespaces whose Turns use the Agent are updated.
package scheduler

import (
	"cmp"
	"fmt"
	"sync"
)

// Slots assigns slots to Turns. A free slot goes to the namespace that runs the fewest Turns, and within the namespace
// to the Turn that has waited longest. So the first Turn of a namespace without running Turns gets the next slot that
// becomes free, however many Turns of another namespace wait.
//
// The call that frees a slot immediately reserves the slot for the next Turn and wakes that Turn. The reconciler of
// that Turn then obtains the slot with Reserve. So no slot stays free while an eligible Turn waits, however long the
// queue of the reconciler is. If a Turn cannot use its reserved slot, its reconciler must call Defer or Release.
//
// Slots is safe for concurrent use.
type Slots struct {
	limits Limits
	wake   func(turn Key, urgent bool)

	mu         sync.Mutex
	turns      map[Key]*turn
	agents     map[Key]*agent
	namespaces map[string]*namespace
	// eligible ranks the namespaces that are below their limit and have an eligible lane. The namespace that gets the
	// next free slot is at the top.
	eligible ranking[*namespace]
	// executors is sorted by name. used is the number of occupied slots of each executor, including executors that do
	// not exist any more.
	executors []Executor
	used      map[string]int
	// namespaceLimit is the maximum number of Turns of one namespace that may hold slots at the same time; 0 means no
	// limit.
	namespaceLimit int
	// tenants is the number of namespaces in which at least one Agent exists.
	tenants int
	// awaiting holds the Turns that are woken when an executor appears or gains capacity: they got no slot because no
	// executor was running, or they are about to request a slot.
	awaiting map[Key]struct{}
	// capacityAdded means that an executor has appeared, or has gained capacity, since the Turns in awaiting were last
	// woken.
	capacityAdded bool
}

// New returns Slots without Turns. wake must enqueue a Turn in its reconciler; urgent means that the Turn holds a
// slot. wake must return quickly and must not call Slots.
func New(limits Limits, wake func(turn Key, urgent bool)) *Slots {
	s := &Slots{
		limits: limits, wake: wake,
		turns: map[Key]*turn{}, agents: map[Key]*agent{}, namespaces: map[string]*namespace{}, used: map[string]int{},
		awaiting: map[Key]struct{}{},
		eligible: ranking[*namespace]{before: func(a, b *namespace) bool {
			return cmp.Or(
				cmp.Compare(a.running, b.running),
				a.eligible.first().waiting.first().compare(&b.eligible.first().waiting.first().Request),
			) < 0
		}},
	}
	s.updateNamespaceLimit()
	return s
}

// Reserve requests a slot for a Turn. The Turn gets a slot immediately, or waits and is woken when it gets one. If a
// slot is already reserved for the Turn, it gets that slot. If the Turn was bound and still holds a slot, Reserve first
// frees that slot. executors are the executors that may get Turns now.
func (s *Slots) Reserve(r Request, executors []Executor) Verdict {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.awaiting, r.Turn)
	s.setExecutors(executors)
	t := s.turns[r.Turn]
	if t != nil && t.state == reserved && t.lane.agent.Key == r.Agent.Key {
		t.Request = r
		s.setAgent(r.Agent)
		s.fill(nil)
		return Verdict{Executor: t.executor}
	}
	waited := t != nil && t.state == waiting
	t = s.replace(t, r)
	s.setAgent(r.Agent)
	s.setWaiting(t, true)
	s.fill(t)
	if t.state == reserved {
		return Verdict{Executor: t.executor}
	}
	if n := t.lane.namespace; s.limits.Queued > 0 && n.waiting > s.limits.Queued && !waited && !r.Admitted {
		s.drop(t)
		s.fill(nil)
		return Verdict{Cause: QueueFull, Message: fmt.Sprintf(
			"%d turns of namespace %q already wait for a slot, which is the limit (--max-queued-turns-per-namespace)",
			s.limits.Queued, n.name)}
	}
	return s.refusal(t)
}

// refusal returns why a waiting Turn has no slot.
func (s *Slots) refusal(t *turn) Verdict {
	n, a := t.lane.namespace, t.lane.agent
	name := a.Key.Name
	if a.home != n {
		name = a.Key.String()
	}
	switch {
	case a.isThrottled():
		return Verdict{Cause: AgentLimit, Message: fmt.Sprintf(
			"no model of Agent %q answers (their circuit breakers are open): one of its turns tries them, and the others wait", name)}
	case a.isFull():
		return Verdict{Cause: AgentLimit, Message: fmt.Sprintf(
			"Agent %q already runs as many turns as it may (maxParallelTurns is %d)", name, a.MaxParallelTurns)}
	case t.lane.waiting.first() != t:
		return Verdict{Cause: AgentOrder, Message: fmt.Sprintf("earlier turns of Agent %q go first", name)}
	case len(s.executors) == 0:
		s.awaiting[t.Turn] = struct{}{}
		return Verdict{Cause: NoExecutor, Message: "no executor is running"}
	case s.isFull(n):
		return Verdict{Cause: NamespaceLimit, Message: fmt.Sprintf(
			"namespace %q already runs as many turns as it may: %d (--max-running-turns-per-namespace is %s)", n.name,
			s.namespaceLimit, s.limits.Running)}
	}
	return Verdict{Cause: AllSlotsTaken, Message: "all slots of all executors are taken"}
}

// ReserveOverLimit reserves a slot regardless of all limits, for a Turn whose executor only has to write the Turn's
// end, without asking a model. It returns the name of the executor. If no executor is running, it returns an empty
// string, and the Turn is woken when an executor appears.
func (s *Slots) ReserveOverLimit(r Request, executors []Executor) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.setExecutors(executors)
	old := s.turns[r.Turn]
	if len(s.executors) == 0 {
		if old != nil {
			s.drop(old)
			s.fill(nil)
		}
		s.awaiting[r.Turn] = struct{}{}
		return ""
	}
	delete(s.awaiting, r.Turn)
	t := s.replace(old, r)
	s.setAgent(r.Agent)
	name, _ := s.freest()
	name = cmp.Or(name, s.executors[0].Name)
	s.occupy(t, reserved, name)
	s.fill(nil)
	return name
}

// AwaitExecutor must be called before the executors are listed for a Turn. If an executor appears before the Turn
// requests a slot, the Turn is woken. The call does not affect other Turns.
func (s *Slots) AwaitExecutor(turn Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.awaiting[turn] = struct{}{}
}

// Confirm records that the API server has the binding of a Turn.
func (s *Slots) Confirm(r Request, executor string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.awaiting, r.Turn)
	t := s.turns[r.Turn]
	if t != nil && t.state != waiting && t.executor == executor && t.lane.agent.Key == r.Agent.Key {
		t.state = bound
		return
	}
	t = s.replace(t, r)
	s.setAgent(r.Agent)
	s.occupy(t, bound, executor)
	s.fill(nil)
}

// Release records that a Turn neither holds a slot nor waits for one. Its slot goes to the next Turn.
func (s *Slots) Release(turn Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.awaiting, turn)
	if t := s.turns[turn]; t != nil {
		s.drop(t)
		s.fill(nil)
	}
}

// ReleaseBound is like Release, but does nothing if the binding of the Turn is not confirmed, because the reconciler of
// the Turn then has newer information than the caller.
func (s *Slots) ReleaseBound(turn Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.turns[turn]; t != nil && t.state == bound {
		s.drop(t)
		s.fill(nil)
	}
}

// Defer records that a Turn cannot use a slot now. If a slot is reserved for the Turn, the slot goes to the next Turn.
// The deferred Turn keeps its position in the queue. It gets a slot only after Reserve is called for it again, or
// Resume for its Agent.
func (s *Slots) Defer(turn Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.turns[turn]
	if t == nil || t.state == bound || t.deferred {
		return
	}
	s.requeue(t, true)
	s.fill(nil)
}

// SetAgent records that an Agent exists, and its limit.
func (s *Slots) SetAgent(a Agent) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.setAgentExists(a.Key, true)
	s.setAgent(a)
	s.fill(nil)
}

// SetModelsDown records whether none of an Agent's models answers. If none answers, only one Turn of the Agent at a
// time gets a slot, to try the models. Otherwise Turns that wait for an endpoint would occupy slots that other Turns
// need. Turns that already hold slots keep them.
func (s *Slots) SetModelsDown(key Key, down bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.agentOf(key)
	if a.modelsDown != down {
		a.modelsDown = down
		s.updateRanks(a)
	}
	s.removeIfUnused(a)
	s.fill(nil)
}

// ForgetAgent records that an Agent was deleted. Its Turns still wait.
func (s *Slots) ForgetAgent(key Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if a := s.agents[key]; a != nil {
		s.setAgentExists(key, false)
		a.Version = 0
		s.removeIfUnused(a)
		s.fill(nil)
	}
}

// Resume makes the deferred Turns of an Agent eligible again.
func (s *Slots) Resume(key Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.agents[key]
	if a == nil {
		return
	}
	for _, l := range a.lanes {
		for t := range l.deferred {
			t.deferred = false
		}
		clear(l.deferred)
		s.updateRank(l)
	}
	s.fill(nil)
}

// SetExecutors records which executors may get Turns now. Free slots go to waiting Turns.
func (s *Slots) SetExecutors(executors []Executor) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.setExecutors(executors)
	s.fill(nil)
}

// HasSlot reports whether a Turn holds a slot.
func (s *Slots) HasSlot(turn Key) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.turns[turn]
	return t != nil && t.state != waiting
}

// IsWaiting reports whether a Turn waits for a slot.
func (s *Slots) IsWaiting(turn Key) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.turns[turn]
	return t != nil && t.state == waiting
}

// Counts returns how many Turns hold slots, and how many wait for one.
func (s *Slots) Counts() (running, queued int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range s.namespaces {
		running += n.running
		queued += n.waiting
	}
	return running, queued
}
