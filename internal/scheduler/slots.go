// Package scheduler decides which Turn gets which slot of which executor, and keeps what that needs: who waits, who holds a slot,
// which Leases hold, and which writes of this process the cache does not show yet.
//
// Its core, Slots, is pure: it knows no API server and no clock. Each operation takes time that is logarithmic in the number of
// Turns, and linear in the number of executors, which are few.
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
	// Name of the executor.
	Name string
	// Capacity is how many Turns may be bound to it at once.
	Capacity int
	// Store is where it keeps journals; the zero value if it does not say, as an executor of an older version.
	Store executor.StoreIdentity
}

// Agent is what the scheduler knows of an Agent.
type Agent struct {
	Key Key
	// Most is how many of its Turns may run at once; 0 for any number.
	Most int
	// Version orders what is said of the limit: an older version changes nothing, nor does 0, which says that the limit is not
	// known.
	Version int64
}

// Request is a Turn that needs a slot.
type Request struct {
	Turn  Key
	Agent Agent
	// Since orders the Turns of a namespace: the earliest goes first.
	Since time.Time
	// Admitted says that the Turn has queued or run before: it is never refused because too many Turns queue.
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

// Limits bound what one namespace takes.
type Limits struct {
	// Running is how many Turns of one namespace may hold slots at once.
	Running Share
	// Queued is how many Turns of one namespace may wait for a slot at once; 0 for any number.
	Queued int
}

// Cause is why a Turn gets no slot now.
type Cause int

const (
	// NoCause means that the Turn has a slot.
	NoCause Cause = iota
	// NoExecutor means that no executor is running.
	NoExecutor
	// Full means that all slots are taken, or others go first, because their namespace runs fewer Turns or because they have waited longer.
	Full
	// AgentLimit means that the Agent runs as many Turns as it may.
	AgentLimit
	// NamespaceLimit means that the namespace runs as many Turns as it may.
	NamespaceLimit
	// AgentOrder means that an earlier Turn of the Agent waits, too.
	AgentOrder
	// QueueFull means that too many Turns of the namespace wait. The Turn is refused and does not wait.
	QueueFull
)

// Verdict is the answer to a request.
type Verdict struct {
	// Executor has the slot; empty if there is none.
	Executor string
	// Cause and Message say why there is no slot. The message names the limit that counts.
	Cause   Cause
	Message string
}

// Slots gives slots to Turns. A free slot goes to the namespace that runs the fewest Turns, within it to the Turn that has waited
// longest. So however many Turns of one namespace wait, the first of another waits for one slot to become free.
//
// A slot that becomes free is given to the next Turn at once, by whoever frees it, and that Turn is woken: it holds the slot from
// then on, and asks for it with Reserve. So no slot stays free while a Turn waits that may have it, however long the queue of the
// reconciler is. A Turn that holds a slot and does not use it must call Defer or Release.
//
// Slots is safe for concurrent use.
type Slots struct {
	limits Limits
	wake   func(turn Key, urgent bool)

	mu         sync.Mutex
	turns      map[Key]*turn
	agents     map[Key]*agent
	namespaces map[string]*namespace
	// eligible are the namespaces with an Agent that is eligible, those that go first at the top.
	eligible ranking[*namespace]
	// executors by name; used are the slots that are taken, by executor, also of executors that are gone.
	executors []Executor
	used      map[string]int
	// atOnce is how many Turns of a namespace may hold slots; 0 for any number.
	atOnce int
	// tenants is the number of namespaces that have an Agent.
	tenants int
	// awaiting are the Turns that must learn of an executor that appears: they were told that there is none, or are about to ask.
	awaiting map[Key]struct{}
	// appeared says that an executor has appeared, or takes more Turns, since those were woken.
	appeared bool
}

// state of a Turn that the scheduler knows.
type state int

const (
	// waiting: the Turn waits for a slot.
	waiting state = iota
	// reserved: the Turn holds a slot, and its binding is not confirmed.
	reserved
	// bound: the Turn holds a slot, as the API server has it.
	bound
)

type turn struct {
	Request
	state state
	// deferred says that the Turn cannot take a slot at present. It keeps the later Turns of its Agent waiting, and nobody else.
	deferred bool
	executor string
	agent    *agent
	at       int
}

func (t *turn) position() *int { return &t.at }

type agent struct {
	Agent
	namespace *namespace
	// known says that the Agent exists.
	known bool
	// running is how many of its Turns hold slots.
	running int
	waiting ranking[*turn]
	// deferred are those of its waiting Turns that cannot take a slot at present.
	deferred map[*turn]struct{}
	at       int
}

func (a *agent) position() *int { return &a.at }

// isEligible reports whether the first Turn of an Agent may have a slot as far as the Agent is concerned.
func (a *agent) isEligible() bool {
	return a.waiting.Len() > 0 && !a.waiting.first().deferred && !a.isFull()
}

func (a *agent) isFull() bool { return a.Most > 0 && a.running >= a.Most }

type namespace struct {
	name string
	// agents is how many Agents the scheduler keeps of it, known how many of them exist.
	agents, known int
	// running and waiting are numbers of Turns.
	running, waiting int
	// eligible are its Agents whose first Turn may have a slot, the one that has waited longest at the top.
	eligible ranking[*agent]
	at       int
}

func (n *namespace) position() *int { return &n.at }

// New returns the scheduler's slots. wake brings a Turn back to its reconciler; urgent says that it holds a slot. It must return
// soon and must not call Slots.
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
	s.setAtOnce()
	return s
}

// Reserve asks for a slot. The Turn gets one, or waits and is woken when it has one; a Turn that holds a reserved slot gets that. A
// Turn that was bound gives that slot up first. executors are those that may get Turns now.
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
	s.queue(t, true)
	s.fill(t)
	if t.state == reserved {
		return Verdict{Executor: t.executor}
	}
	if n := t.agent.namespace; s.limits.Queued > 0 && n.waiting > s.limits.Queued && !waited && !r.Admitted {
		s.drop(t)
		s.fill(nil)
		return Verdict{Cause: QueueFull, Message: fmt.Sprintf(
			"%d Turns of namespace %q wait for a slot, and no more may (--max-queued-turns-per-namespace)", s.limits.Queued, n.name)}
	}
	return s.whyNot(t)
}

// whyNot says why a Turn that waits has no slot.
func (s *Slots) whyNot(t *turn) Verdict {
	n := t.agent.namespace
	switch {
	case t.agent.isFull():
		return Verdict{Cause: AgentLimit, Message: fmt.Sprintf(
			"Agent %q runs as many turns as it may at once (maxParallelTurns is %d)", t.agent.Key.Name, t.agent.Most)}
	case t.agent.waiting.first() != t:
		return Verdict{Cause: AgentOrder, Message: fmt.Sprintf("earlier turns of Agent %q go first", t.agent.Key.Name)}
	case len(s.executors) == 0:
		s.awaiting[t.Turn] = struct{}{}
		return Verdict{Cause: NoExecutor, Message: "no executor is running"}
	case s.isFull(n):
		return Verdict{Cause: NamespaceLimit, Message: fmt.Sprintf(
			"namespace %q runs as many turns as it may at once: %d (--max-running-turns-per-namespace is %s)", n.name, s.atOnce, s.limits.Running)}
	}
	return Verdict{Cause: Full, Message: "all executors run as many turns as they can"}
}

// ReserveOverLimit reserves a slot beyond all limits, for a Turn that is to end: it asks no model. It returns the executor, empty
// if there is none; the Turn then goes on awaiting one.
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
	s.hold(t, reserved, name)
	s.fill(nil)
	return name
}

// AwaitExecutor notes that executors are about to be listed for a Turn: one that appears before the Turn asks for a slot then wakes
// it. The Turn is in nobody's way.
func (s *Slots) AwaitExecutor(turn Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.awaiting[turn] = struct{}{}
}

// Confirm notes that a Turn is bound, as the API server has it.
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
	s.hold(t, bound, executor)
	s.fill(nil)
}

// Release notes that a Turn neither holds a slot nor waits for one. Its slot goes to the next.
func (s *Slots) Release(turn Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.awaiting, turn)
	if t := s.turns[turn]; t != nil {
		s.drop(t)
		s.fill(nil)
	}
}

// ReleaseBound is Release for a Turn whose binding is confirmed; of any other, a reconciler has seen more than the caller.
func (s *Slots) ReleaseBound(turn Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.turns[turn]; t != nil && t.state == bound {
		s.drop(t)
		s.fill(nil)
	}
}

// Defer notes that a Turn that waits, or has a slot reserved, cannot take a slot at present. Its slot goes to the next; the Turn
// keeps its position in the queue and must ask again, or wait for Resume.
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

// SetAgent notes that an Agent exists, and its limit.
func (s *Slots) SetAgent(a Agent) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.exists(a.Key, true)
	s.setAgent(a)
	s.fill(nil)
}

// ForgetAgent notes that an Agent is gone. Its Turns go on waiting.
func (s *Slots) ForgetAgent(key Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if a := s.agents[key]; a != nil {
		s.exists(key, false)
		a.Version = 0
		s.tidy(a)
		s.fill(nil)
	}
}

// Resume lets the Turns of an Agent that were deferred have slots again.
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
	s.rank(a)
	s.fill(nil)
}

// SetExecutors notes which executors may get Turns now. Free slots go to Turns that wait.
func (s *Slots) SetExecutors(executors []Executor) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.setExecutors(executors)
	s.fill(nil)
}

// Holds reports whether a Turn holds a slot.
func (s *Slots) Holds(turn Key) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.turns[turn]
	return t != nil && t.state != waiting
}

// Waits reports whether a Turn waits for a slot.
func (s *Slots) Waits(turn Key) bool {
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

// setExecutors replaces the executors; fill must follow. Reserved slots of those that are gone are given up; bound Turns keep theirs
// until their reconciler releases them.
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
	s.setAtOnce()
	s.appeared = s.appeared || more
}

// requeue has a Turn wait anew, without the slot that it may have reserved.
func (s *Slots) requeue(t *turn, deferred bool) {
	t = s.replace(t, t.Request)
	if t.deferred = deferred; deferred {
		t.agent.deferred[t] = struct{}{}
	}
	s.queue(t, true)
}

// replace makes the entry of a Turn anew, without slot and wait. before is the entry that there was, nil if there was none.
func (s *Slots) replace(before *turn, r Request) *turn {
	if before != nil {
		s.leave(before)
	}
	t := &turn{Request: r, agent: s.agentOf(r.Agent.Key)}
	s.turns[r.Turn] = t
	return t
}

// setAtOnce works out how many Turns of a namespace may run at once.
func (s *Slots) setAtOnce() {
	capacity := 0
	for _, e := range s.executors {
		capacity += e.Capacity
	}
	if atOnce := s.limits.Running.of(capacity, s.tenants); atOnce != s.atOnce {
		s.atOnce = atOnce
		for _, n := range s.namespaces {
			s.rankNamespace(n)
		}
	}
}

func (s *Slots) isFull(n *namespace) bool { return s.atOnce > 0 && n.running >= s.atOnce }

// agentOf returns the Agent of a key, after making it if it is not there.
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

// setAgent takes over the limit of an Agent, unless a newer version of it is known.
func (s *Slots) setAgent(from Agent) {
	a := s.agentOf(from.Key)
	if from.Version == 0 || from.Version < a.Version {
		return
	}
	a.Version = from.Version
	if a.Most != from.Most {
		a.Most = from.Most
		s.rank(a)
	}
}

// exists notes whether an Agent exists, and so whether its namespace is a tenant.
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
		s.setAtOnce()
	}
}

// tidy forgets an Agent of which nothing is left.
func (s *Slots) tidy(a *agent) {
	if a.known || a.running > 0 || a.waiting.Len() > 0 {
		return
	}
	delete(s.agents, a.Key)
	if a.namespace.agents--; a.namespace.agents == 0 {
		delete(s.namespaces, a.namespace.name)
	}
}

// queue has a Turn wait, or no longer wait.
func (s *Slots) queue(t *turn, waits bool) {
	if (t.at > 0) != waits {
		if waits {
			t.agent.namespace.waiting++
		} else {
			t.agent.namespace.waiting--
		}
	}
	t.agent.waiting.place(t, waits)
	s.rank(t.agent)
}

// hold gives a Turn a slot.
func (s *Slots) hold(t *turn, as state, executor string) {
	t.state, t.executor = as, executor
	s.used[executor]++
	t.agent.running++
	t.agent.namespace.running++
	s.rank(t.agent)
}

// drop forgets a Turn, its slot and its wait, and what is only known for it.
func (s *Slots) drop(t *turn) {
	s.leave(t)
	s.tidy(t.agent)
}

// leave takes a Turn out, with its slot and its wait. What is known of its Agent stays.
func (s *Slots) leave(t *turn) {
	delete(s.turns, t.Turn)
	delete(t.agent.deferred, t)
	if t.state == waiting {
		s.queue(t, false)
	} else {
		if s.used[t.executor]--; s.used[t.executor] == 0 {
			delete(s.used, t.executor)
		}
		t.agent.running--
		t.agent.namespace.running--
		s.rank(t.agent)
	}
}

// rank brings the rankings up to date after an Agent has changed.
func (s *Slots) rank(a *agent) {
	a.namespace.eligible.place(a, a.isEligible())
	s.rankNamespace(a.namespace)
}

func (s *Slots) rankNamespace(n *namespace) {
	s.eligible.place(n, n.eligible.Len() > 0 && !s.isFull(n))
}

// fill gives free slots to Turns that wait, as long as there are both, and wakes them, but for the one that asks. It also wakes the
// Turns that await an executor, if one has appeared.
func (s *Slots) fill(asks *turn) {
	s.give(asks)
	if !s.appeared {
		return
	}
	s.appeared = false
	for key := range s.awaiting {
		if t := s.turns[key]; t == nil || t.state == waiting {
			s.wake(key, false)
		}
	}
	clear(s.awaiting)
}

func (s *Slots) give(asks *turn) {
	for s.eligible.Len() > 0 {
		name, free := s.freest()
		if free == 0 {
			return
		}
		t := s.eligible.first().eligible.first().waiting.first()
		s.queue(t, false)
		s.hold(t, reserved, name)
		if t != asks {
			s.wake(t.Turn, true)
		}
	}
}

// freest returns the executor with the most free slots, the first by name among equals, and how many are free on it.
func (s *Slots) freest() (name string, free int) {
	for _, e := range s.executors {
		if left := e.Capacity - s.used[e.Name]; left > free {
			name, free = e.Name, left
		}
	}
	return name, free
}
