// Package scheduler decides which Turn gets which slot of which executor. It tracks the waiting Turns, the reserved
// and bound slots, and the writes of this process that the cache does not show yet.
//
// Its core, Slots, is pure: it uses no API server and no clock. Each operation takes time that is logarithmic in
// the number of Turns, and linear in the number of executors, which is small.
package scheduler

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/capstan-dev/capstan/internal/executor"
)

// Key is the namespace and the name of an object.
type Key = types.NamespacedName

// Executor is an executor that Turns can be bound to.
type Executor struct {
	// Name is the name of the executor.
	Name string
	// Capacity is the number of Turns that may be bound to the executor at once.
	Capacity int
	// Store is the store in which the executor keeps journals. It is the zero value if the executor does not report
	// one, as an older version does not.
	Store executor.StoreIdentity
}

// Agent holds the scheduler's facts about an Agent.
type Agent struct {
	Key Key
	// MaxParallelTurns is the number of the Agent's Turns that may run at once; 0 means no limit.
	MaxParallelTurns int
	// Version orders reports of the limit: a report with an older version has no effect. Version 0 means that the
	// limit is unknown, and has no effect either.
	Version int64
}

// Request is a Turn that needs a slot.
type Request struct {
	Turn  Key
	Agent Agent
	// Since orders the Turns of a namespace: the earliest goes first.
	Since time.Time
	// Admitted means that the Turn has queued or run before. Such a Turn is never refused because too many Turns
	// are queued.
	Admitted bool
}

// compare orders requests by how long they have waited; names break ties.
func (r *Request) compare(other *Request) int {
	return cmp.Or(
		r.Since.Compare(other.Since),
		strings.Compare(r.Turn.Namespace, other.Turn.Namespace),
		strings.Compare(r.Turn.Name, other.Turn.Name),
	)
}

// Limits bound the slots and the queue of one namespace.
type Limits struct {
	// Running is the number of Turns of one namespace that may hold slots at once.
	Running Share
	// Queued is the number of Turns of one namespace that may wait for a slot at once; 0 means no limit.
	Queued int
}

// Cause is the reason for which a Turn gets no slot now.
type Cause int

const (
	// NoCause means that the Turn has a slot.
	NoCause Cause = iota
	// NoExecutor means that no executor is running.
	NoExecutor
	// AllSlotsTaken means that all slots are taken, or that other Turns go first, because their namespace runs fewer
	// Turns or because they have waited longer.
	AllSlotsTaken
	// AgentLimit means that the Agent already runs as many Turns as it may.
	AgentLimit
	// NamespaceLimit means that the namespace already runs as many Turns as it may.
	NamespaceLimit
	// AgentOrder means that an earlier Turn of the Agent is waiting, too.
	AgentOrder
	// QueueFull means that too many Turns of the namespace wait. The Turn is refused and does not wait.
	QueueFull
)

// Verdict is the answer to a request.
type Verdict struct {
	// Executor is the executor with the slot; empty if the Turn gets none.
	Executor string
	// Cause and Message say why the Turn gets no slot. Message names the limit that applies.
	Cause   Cause
	Message string
}

// Slots assigns slots to Turns. A free slot goes to the namespace that runs the fewest Turns, and within the
// namespace to the Turn that has waited longest. So the first Turn of a namespace waits for only one slot to become
// free, however many Turns of another namespace wait.
//
// The call that frees a slot reserves it for the next Turn at once and wakes that Turn, which then obtains it with
// Reserve. So no slot stays free while an eligible Turn waits, however long the queue of the reconciler is. A Turn
// that does not use its reserved slot must call Defer or Release.
//
// Slots is safe for concurrent use.
type Slots struct {
	limits Limits
	wake   func(turn Key, urgent bool)

	mu         sync.Mutex
	turns      map[Key]*turn
	agents     map[Key]*agent
	namespaces map[string]*namespace
	// eligible ranks the namespaces that have an eligible Agent. The namespace that goes first is at the top.
	eligible ranking[*namespace]
	// executors is sorted by name. used counts the occupied slots by executor, including executors that are gone.
	executors []Executor
	used      map[string]int
	// namespaceLimit is the number of Turns of a namespace that may hold slots; 0 means no limit.
	namespaceLimit int
	// tenants is the number of namespaces that have an Agent.
	tenants int
	// awaiting holds the Turns to wake when an executor appears: they were refused because no executor was running,
	// or are about to request a slot.
	awaiting map[Key]struct{}
	// executorAppeared means that an executor has appeared, or has gained capacity, since the Turns in awaiting
	// were last woken.
	executorAppeared bool
}

// state is the state of a Turn in the scheduler.
type state int

const (
	// waiting: the Turn waits for a slot.
	waiting state = iota
	// reserved: the Turn holds a slot, but its binding is not confirmed.
	reserved
	// bound: the Turn holds a slot, and the API server has its binding.
	bound
)

type turn struct {
	Request
	state state
	// deferred means that the Turn cannot take a slot at present. It keeps only the later Turns of its Agent
	// waiting.
	deferred bool
	executor string
	agent    *agent
	at       int
}

func (t *turn) position() *int { return &t.at }

type agent struct {
	Agent
	namespace *namespace
	// known means that the Agent exists.
	known bool
	// running is the number of the Agent's Turns that hold slots.
	running int
	waiting ranking[*turn]
	// deferred holds the waiting Turns that cannot take a slot at present.
	deferred map[*turn]struct{}
	at       int
}

func (a *agent) position() *int { return &a.at }

// isEligible reports whether the Agent allows a slot for its first waiting Turn.
func (a *agent) isEligible() bool {
	return a.waiting.Len() > 0 && !a.waiting.first().deferred && !a.isFull()
}

func (a *agent) isFull() bool { return a.MaxParallelTurns > 0 && a.running >= a.MaxParallelTurns }

type namespace struct {
	name string
	// agents is the number of the namespace's Agents in the scheduler; known is the number of these that exist.
	agents, known int
	// running and waiting count Turns.
	running, waiting int
	// eligible ranks the Agents whose first Turn may have a slot. The Agent whose Turn has waited longest is at the
	// top.
	eligible ranking[*agent]
	at       int
}

func (n *namespace) position() *int { return &n.at }

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

// Reserve requests a slot. The Turn gets one, or waits and is woken when it gets one. If the Turn already has a
// reserved slot, it gets that slot. If the Turn was bound, it first gives up that slot. executors are the executors
// that may get Turns now.
func (s *Slots) Reserve(r Request, executors []Executor) Verdict {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.awaiting, r.Turn)
	s.setExecutors(executors)
	t := s.turns[r.Turn]
	if t != nil && t.state == reserved && t.agent.Key == r.Agent.Key {
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
	if n := t.agent.namespace; s.limits.Queued > 0 && n.waiting > s.limits.Queued && !waited && !r.Admitted {
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
	n := t.agent.namespace
	switch {
	case t.agent.isFull():
		return Verdict{Cause: AgentLimit, Message: fmt.Sprintf(
			"Agent %q already runs as many turns as it may (maxParallelTurns is %d)", t.agent.Key.Name, t.agent.MaxParallelTurns)}
	case t.agent.waiting.first() != t:
		return Verdict{Cause: AgentOrder, Message: fmt.Sprintf("earlier turns of Agent %q go first", t.agent.Key.Name)}
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

// ReserveOverLimit reserves a slot beyond all limits, for a Turn that only ends: it calls no model. It returns the
// executor. If none is running, it returns an empty string, and an executor that appears wakes the Turn.
func (s *Slots) ReserveOverLimit(r Request, executors []Executor) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.setExecutors(executors)
	before := s.turns[r.Turn]
	if len(s.executors) == 0 {
		if before != nil {
			s.drop(before)
			s.fill(nil)
		}
		s.awaiting[r.Turn] = struct{}{}
		return ""
	}
	delete(s.awaiting, r.Turn)
	t := s.replace(before, r)
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
	if t != nil && t.state != waiting && t.executor == executor && t.agent.Key == r.Agent.Key {
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

// ReleaseBound is Release for a Turn whose binding is confirmed. It ignores any other Turn, because its reconciler
// has newer information than the caller.
func (s *Slots) ReleaseBound(turn Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.turns[turn]; t != nil && t.state == bound {
		s.drop(t)
		s.fill(nil)
	}
}

// Defer records that a Turn cannot take a slot at present. If a slot is reserved for it, the slot goes to the next
// Turn. The Turn keeps its position in the queue. It must call Reserve again or wait for Resume.
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
	s.exists(a.Key, true)
	s.setAgent(a)
	s.fill(nil)
}

// ForgetAgent records that an Agent was deleted. Its Turns still wait.
func (s *Slots) ForgetAgent(key Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if a := s.agents[key]; a != nil {
		s.exists(key, false)
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
	if a == nil || len(a.deferred) == 0 {
		return
	}
	for t := range a.deferred {
		t.deferred = false
	}
	clear(a.deferred)
	s.updateRank(a)
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

// setExecutors replaces the executors. The caller must then call fill. Reserved slots of removed executors are
// given up. Bound Turns keep their slots until their reconciler releases them.
func (s *Slots) setExecutors(executors []Executor) {
	executors = slices.SortedFunc(slices.Values(executors), func(a, b Executor) int { return strings.Compare(a.Name, b.Name) })
	if slices.Equal(executors, s.executors) {
		return
	}
	before := map[string]int{}
	for _, e := range s.executors {
		before[e.Name] = e.Capacity
	}
	more := false
	for _, e := range executors {
		was, known := before[e.Name]
		more = more || !known || e.Capacity > was
		delete(before, e.Name)
	}
	s.executors = executors
	if len(before) > 0 {
		for _, t := range s.turns {
			if _, gone := before[t.executor]; gone && t.state == reserved {
				s.requeue(t, false)
			}
		}
	}
	s.updateNamespaceLimit()
	s.executorAppeared = s.executorAppeared || more
}

// requeue makes a Turn wait again. If it has a reserved slot, it gives up the slot.
func (s *Slots) requeue(t *turn, deferred bool) {
	t = s.replace(t, t.Request)
	if t.deferred = deferred; deferred {
		t.agent.deferred[t] = struct{}{}
	}
	s.setWaiting(t, true)
}

// replace creates the entry of a Turn anew, without slot or queue position. before is its previous entry, or nil.
func (s *Slots) replace(before *turn, r Request) *turn {
	if before != nil {
		s.detach(before)
	}
	t := &turn{Request: r, agent: s.agentOf(r.Agent.Key)}
	s.turns[r.Turn] = t
	return t
}

// updateNamespaceLimit computes how many Turns of a namespace may run at once.
func (s *Slots) updateNamespaceLimit() {
	capacity := 0
	for _, e := range s.executors {
		capacity += e.Capacity
	}
	if atOnce := s.limits.Running.of(capacity, s.tenants); atOnce != s.namespaceLimit {
		s.namespaceLimit = atOnce
		for _, n := range s.namespaces {
			s.updateNamespaceRank(n)
		}
	}
}

func (s *Slots) isFull(n *namespace) bool {
	return s.namespaceLimit > 0 && n.running >= s.namespaceLimit
}

// agentOf returns the Agent with a key. It creates the Agent if necessary.
func (s *Slots) agentOf(key Key) *agent {
	if a := s.agents[key]; a != nil {
		return a
	}
	n := s.namespaces[key.Namespace]
	if n == nil {
		n = &namespace{name: key.Namespace, eligible: ranking[*agent]{before: func(a, b *agent) bool {
			return a.waiting.first().compare(&b.waiting.first().Request) < 0
		}}}
		s.namespaces[key.Namespace] = n
	}
	n.agents++
	a := &agent{
		Agent: Agent{Key: key}, namespace: n, deferred: map[*turn]struct{}{},
		waiting: ranking[*turn]{before: func(a, b *turn) bool { return a.compare(&b.Request) < 0 }},
	}
	s.agents[key] = a
	return a
}

// setAgent takes over the limit of an Agent, unless a newer version is known.
func (s *Slots) setAgent(from Agent) {
	a := s.agentOf(from.Key)
	if from.Version == 0 || from.Version < a.Version {
		return
	}
	a.Version = from.Version
	if a.MaxParallelTurns != from.MaxParallelTurns {
		a.MaxParallelTurns = from.MaxParallelTurns
		s.updateRank(a)
	}
}

// exists records whether an Agent exists, and thus whether its namespace is a tenant.
func (s *Slots) exists(key Key, known bool) {
	a := s.agentOf(key)
	if a.known == known {
		return
	}
	a.known = known
	n := a.namespace
	before := n.known
	if known {
		n.known++
	} else {
		n.known--
	}
	if (before > 0) != (n.known > 0) {
		s.tenants += n.known - before
		s.updateNamespaceLimit()
	}
}

// removeIfUnused removes an Agent that does not exist and has no Turns.
func (s *Slots) removeIfUnused(a *agent) {
	if a.known || a.running > 0 || a.waiting.Len() > 0 {
		return
	}
	delete(s.agents, a.Key)
	if a.namespace.agents--; a.namespace.agents == 0 {
		delete(s.namespaces, a.namespace.name)
	}
}

// setWaiting makes a Turn wait, or stop waiting.
func (s *Slots) setWaiting(t *turn, waits bool) {
	if (t.at > 0) != waits {
		if waits {
			t.agent.namespace.waiting++
		} else {
			t.agent.namespace.waiting--
		}
	}
	t.agent.waiting.update(t, waits)
	s.updateRank(t.agent)
}

// occupy gives a slot to a Turn.
func (s *Slots) occupy(t *turn, as state, executor string) {
	t.state, t.executor = as, executor
	s.used[executor]++
	t.agent.running++
	t.agent.namespace.running++
	s.updateRank(t.agent)
}

// drop removes a Turn with its slot and its queue position, and its Agent if nothing else needs the Agent.
func (s *Slots) drop(t *turn) {
	s.detach(t)
	s.removeIfUnused(t.agent)
}

// detach removes a Turn with its slot and its queue position. Its Agent stays.
func (s *Slots) detach(t *turn) {
	delete(s.turns, t.Turn)
	delete(t.agent.deferred, t)
	if t.state == waiting {
		s.setWaiting(t, false)
	} else {
		if s.used[t.executor]--; s.used[t.executor] == 0 {
			delete(s.used, t.executor)
		}
		t.agent.running--
		t.agent.namespace.running--
		s.updateRank(t.agent)
	}
}

// updateRank updates the rankings after a change of an Agent.
func (s *Slots) updateRank(a *agent) {
	a.namespace.eligible.update(a, a.isEligible())
	s.updateNamespaceRank(a.namespace)
}

func (s *Slots) updateNamespaceRank(n *namespace) {
	s.eligible.update(n, n.eligible.Len() > 0 && !s.isFull(n))
}

// fill gives free slots to waiting Turns as long as there are both, and wakes those Turns, except the one that
// asks. If an executor has appeared, it also wakes the Turns that await one.
func (s *Slots) fill(asks *turn) {
	s.assign(asks)
	if !s.executorAppeared {
		return
	}
	s.executorAppeared = false
	for key := range s.awaiting {
		if t := s.turns[key]; t == nil || t.state == waiting {
			s.wake(key, false)
		}
	}
	clear(s.awaiting)
}

func (s *Slots) assign(asks *turn) {
	for s.eligible.Len() > 0 {
		name, free := s.freest()
		if free == 0 {
			return
		}
		t := s.eligible.first().eligible.first().waiting.first()
		s.setWaiting(t, false)
		s.occupy(t, reserved, name)
		if t != asks {
			s.wake(t.Turn, true)
		}
	}
}

// freest returns the executor with the most free slots and the number of these; among equals, the first by name.
func (s *Slots) freest() (name string, free int) {
	for _, e := range s.executors {
		if left := e.Capacity - s.used[e.Name]; left > free {
			name, free = e.Name, left
		}
	}
	return name, free
}
