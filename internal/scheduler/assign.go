package scheduler

import (
	"slices"
	"strings"
)

// state is the state of a Turn in the scheduler.
type state int

const (
	// waiting: the Turn waits for a slot.
	waiting state = iota
	// reserved: the Turn holds a slot, but its binding (the executor in its status) is not yet confirmed by the API
	// server.
	reserved
	// bound: the Turn holds a slot, and the API server has its binding.
	bound
)

type turn struct {
	Request
	state state
	// deferred means that the Turn cannot use a slot now. It keeps its place in the queue of its lane, so later Turns
	// of this lane also wait. Turns of other lanes do not.
	deferred bool
	executor string
	lane     *lane
	// heapIndex is the position in the ranking, from 1; 0 means that the Turn is in no ranking.
	heapIndex int
}

func (t *turn) position() *int { return &t.heapIndex }

// agent is an Agent, which the Turns of several namespaces may use.
type agent struct {
	Agent
	// home is the namespace of the Agent.
	home *namespace
	// exists is false if Turns name the Agent although it does not exist.
	exists bool
	// modelsDown is true while none of the Agent's models answers.
	modelsDown bool
	// running is the number of the Agent's Turns that hold slots, in all namespaces.
	running int
	// lanes holds the lanes of the namespaces that have Turns of the Agent, by the name of the namespace.
	lanes map[string]*lane
}

// lane holds the Turns of one namespace that use one Agent.
type lane struct {
	agent     *agent
	namespace *namespace
	// turns is the number of the Turns.
	turns   int
	waiting ranking[*turn]
	// deferred holds the waiting Turns that cannot take a slot at present.
	deferred map[*turn]struct{}
	// heapIndex is the position in the ranking, from 1; 0 means that the lane is in no ranking.
	heapIndex int
}

func (l *lane) position() *int { return &l.heapIndex }

// isEligible reports whether the Agent allows a slot for the first waiting Turn of the lane.
func (l *lane) isEligible() bool {
	return l.waiting.Len() > 0 && !l.waiting.first().deferred && !l.agent.isFull()
}

func (a *agent) isFull() bool {
	return a.MaxParallelTurns > 0 && a.running >= a.MaxParallelTurns || a.isThrottled()
}

// isThrottled reports whether none of the Agent's models answers while at least one of its Turns holds a slot and tries
// them. While this is so, no other Turn of the Agent gets a slot.
func (a *agent) isThrottled() bool { return a.modelsDown && a.running > 0 }

type namespace struct {
	name string
	// refs is the number of the Agents and lanes in the scheduler that refer to the namespace. existing is the number
	// of the namespace's Agents that exist.
	refs, existing int
	// running is the number of the namespace's Turns that hold slots, and waiting the number of Turns that wait for
	// one.
	running, waiting int
	// eligible ranks the lanes whose first Turn may have a slot. The lane whose Turn has waited longest is at the top.
	eligible ranking[*lane]
	// heapIndex is the position in the ranking, from 1; 0 means that the namespace is in no ranking.
	heapIndex int
}

func (n *namespace) position() *int { return &n.heapIndex }

// setExecutors replaces the executors. The caller must then call fill. A Turn with a reserved slot of a removed
// executor loses the slot and waits again. A bound Turn keeps its slot until its reconciler releases the slot.
func (s *Slots) setExecutors(executors []Executor) {
	executors = slices.SortedFunc(slices.Values(executors), func(a, b Executor) int { return strings.Compare(a.Name, b.Name) })
	if slices.Equal(executors, s.executors) {
		return
	}
	removed := map[string]int{} // first all old executors with their capacities
	for _, e := range s.executors {
		removed[e.Name] = e.slots()
	}
	gained := false
	for _, e := range executors {
		capacity, known := removed[e.Name]
		gained = gained || !known || e.slots() > capacity
		delete(removed, e.Name)
	}
	s.executors = executors
	if len(removed) > 0 {
		for _, t := range s.turns {
			if _, isRemoved := removed[t.executor]; isRemoved && t.state == reserved {
				s.requeue(t, false)
			}
		}
	}
	s.updateNamespaceLimit()
	s.capacityAdded = s.capacityAdded || gained
}

// requeue makes a Turn wait again. If a slot is reserved for the Turn, requeue frees the slot.
func (s *Slots) requeue(t *turn, deferred bool) {
	t = s.replace(t, t.Request)
	if t.deferred = deferred; deferred {
		t.lane.deferred[t] = struct{}{}
	}
	s.setWaiting(t, true)
}

// replace creates an entry for a Turn, without a slot and without a position in the queue. If old is not nil, replace
// first removes old, the previous entry of the Turn.
func (s *Slots) replace(old *turn, r Request) *turn {
	if old != nil {
		s.detach(old)
	}
	t := &turn{Request: r, lane: s.laneOf(s.agentOf(r.Agent.Key), r.Turn.Namespace)}
	t.lane.turns++
	s.turns[r.Turn] = t
	if old != nil {
		s.removeLaneIfUnused(old.lane)
	}
	return t
}

// updateNamespaceLimit computes how many Turns of a namespace may hold slots at the same time.
func (s *Slots) updateNamespaceLimit() {
	capacity := 0
	for _, e := range s.executors {
		capacity += e.Capacity
	}
	if limit := s.limits.Running.slotsFor(capacity, s.tenants); limit != s.namespaceLimit {
		s.namespaceLimit = limit
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
	a := &agent{Agent: Agent{Key: key}, home: s.namespaceOf(key.Namespace), lanes: map[string]*lane{}}
	a.home.refs++
	s.agents[key] = a
	return a
}

// laneOf returns the lane of a namespace that uses an Agent. It creates the lane if necessary.
func (s *Slots) laneOf(a *agent, namespace string) *lane {
	if l := a.lanes[namespace]; l != nil {
		return l
	}
	l := &lane{
		agent: a, namespace: s.namespaceOf(namespace), deferred: map[*turn]struct{}{},
		waiting: ranking[*turn]{before: func(a, b *turn) bool { return a.compare(&b.Request) < 0 }},
	}
	l.namespace.refs++
	a.lanes[namespace] = l
	return l
}

// namespaceOf returns the namespace with a name. It creates the namespace if necessary.
func (s *Slots) namespaceOf(name string) *namespace {
	if n := s.namespaces[name]; n != nil {
		return n
	}
	n := &namespace{name: name, eligible: ranking[*lane]{before: func(a, b *lane) bool {
		return a.waiting.first().compare(&b.waiting.first().Request) < 0
	}}}
	s.namespaces[name] = n
	return n
}

// setAgent stores the limit of an Agent, unless a newer version is already stored.
func (s *Slots) setAgent(from Agent) {
	a := s.agentOf(from.Key)
	if from.Version == 0 || from.Version < a.Version {
		return
	}
	a.Version = from.Version
	if a.MaxParallelTurns != from.MaxParallelTurns {
		a.MaxParallelTurns = from.MaxParallelTurns
		s.updateRanks(a)
	}
}

// setAgentExists records whether an Agent exists, and thus whether its namespace is a tenant.
func (s *Slots) setAgentExists(key Key, exists bool) {
	a := s.agentOf(key)
	if a.exists == exists {
		return
	}
	a.exists = exists
	n := a.home
	before := n.existing
	if exists {
		n.existing++
	} else {
		n.existing--
	}
	if (before > 0) != (n.existing > 0) {
		s.tenants += n.existing - before
		s.updateNamespaceLimit()
	}
}

// removeLaneIfUnused removes a lane that has no Turns, and its Agent if nothing else needs the Agent.
func (s *Slots) removeLaneIfUnused(l *lane) {
	if l.turns > 0 {
		return
	}
	delete(l.agent.lanes, l.namespace.name)
	s.releaseNamespace(l.namespace)
	s.removeIfUnused(l.agent)
}

// removeIfUnused removes an Agent that does not exist and has no Turns.
func (s *Slots) removeIfUnused(a *agent) {
	if a.exists || len(a.lanes) > 0 {
		return
	}
	delete(s.agents, a.Key)
	s.releaseNamespace(a.home)
}

// releaseNamespace drops one reference to a namespace, and removes the namespace if that was the last one.
func (s *Slots) releaseNamespace(n *namespace) {
	if n.refs--; n.refs == 0 {
		delete(s.namespaces, n.name)
	}
}

// setWaiting adds a Turn to the queue of its lane, or removes it from the queue.
func (s *Slots) setWaiting(t *turn, isWaiting bool) {
	if (t.heapIndex > 0) != isWaiting {
		if isWaiting {
			t.lane.namespace.waiting++
		} else {
			t.lane.namespace.waiting--
		}
	}
	t.lane.waiting.update(t, isWaiting)
	s.updateRank(t.lane)
}

// occupy gives a slot to a Turn.
func (s *Slots) occupy(t *turn, as state, executor string) {
	t.state, t.executor = as, executor
	s.used[executor]++
	t.lane.namespace.running++
	s.countRunning(t.lane, 1)
}

// countRunning adds delta to the number of the running Turns of an Agent, after the Turns of a lane have changed. If
// the Agent has now reached its limit, or is below it again, countRunning updates the ranks of all lanes of the Agent.
// It updates the changed lane first, because a ranking stays valid only if its elements are updated one at a time.
func (s *Slots) countRunning(l *lane, delta int) {
	full := l.agent.isFull()
	l.agent.running += delta
	s.updateRank(l)
	if l.agent.isFull() != full {
		s.updateRanks(l.agent)
	}
}

// drop removes a Turn with its slot and its queue position, and its Agent if nothing else needs the Agent.
func (s *Slots) drop(t *turn) {
	s.detach(t)
	s.removeLaneIfUnused(t.lane)
}

// detach removes a Turn with its slot and its queue position. Its Agent and its lane stay.
func (s *Slots) detach(t *turn) {
	delete(s.turns, t.Turn)
	delete(t.lane.deferred, t)
	t.lane.turns--
	if t.state == waiting {
		s.setWaiting(t, false)
		return
	}
	if s.used[t.executor]--; s.used[t.executor] == 0 {
		delete(s.used, t.executor)
	}
	t.lane.namespace.running--
	s.countRunning(t.lane, -1)
}

// updateRanks updates the rankings after a change of an Agent that affects all its lanes.
func (s *Slots) updateRanks(a *agent) {
	for _, l := range a.lanes {
		s.updateRank(l)
	}
}

// updateRank updates the rankings after a change of a lane.
func (s *Slots) updateRank(l *lane) {
	l.namespace.eligible.update(l, l.isEligible())
	s.updateNamespaceRank(l.namespace)
}

func (s *Slots) updateNamespaceRank(n *namespace) {
	s.eligible.update(n, n.eligible.Len() > 0 && !s.isFull(n))
}

// fill gives free slots to eligible Turns until there are no more free slots or no more eligible Turns. It wakes the
// Turns that get a slot, except caller, whose reconciler is making this call; caller may be nil. If an executor has
// appeared or has gained capacity, fill also wakes the Turns in awaiting.
func (s *Slots) fill(caller *turn) {
	s.assign(caller)
	if !s.capacityAdded {
		return
	}
	s.capacityAdded = false
	for key := range s.awaiting {
		if t := s.turns[key]; t == nil || t.state == waiting {
			s.wake(key, false)
		}
	}
	clear(s.awaiting)
}

func (s *Slots) assign(caller *turn) {
	for s.eligible.Len() > 0 {
		name, free := s.freest()
		if free == 0 {
			return
		}
		t := s.eligible.first().eligible.first().waiting.first()
		s.setWaiting(t, false)
		s.occupy(t, reserved, name)
		if t != caller {
			s.wake(t.Turn, true)
		}
	}
}

// freest returns the executor with the most free slots, and the number of these slots. If several executors have the
// same number of free slots, it returns the first of them by name. If no slot is free, the name is empty.
func (s *Slots) freest() (name string, free int) {
	for _, e := range s.executors {
		if left := e.slots() - s.used[e.Name]; left > free {
			name, free = e.Name, left
		}
	}
	return name, free
}
