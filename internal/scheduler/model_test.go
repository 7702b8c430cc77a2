package scheduler

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
)

// model does the same as Slots in the simplest way: it searches all Turns for each slot.
type model struct {
	limits    Limits
	turns     map[Key]*modelTurn
	agents    map[Key]*modelAgent
	executors []Executor
	woken     []Key
}

type modelTurn struct {
	Request
	state    state
	deferred bool
	executor string
}

type modelAgent struct {
	limit   int
	version int64
	exists  bool
}

func newModel(limits Limits) *model {
	return &model{limits: limits, turns: map[Key]*modelTurn{}, agents: map[Key]*modelAgent{}}
}

func (m *model) setAgent(a Agent) {
	known := m.agents[a.Key]
	if known == nil {
		known = &modelAgent{}
		m.agents[a.Key] = known
	}
	if a.Version > 0 && a.Version >= known.version {
		known.limit, known.version = a.MaxParallelTurns, a.Version
	}
}

// removeUnusedAgents removes the limits of Agents that neither exist nor have Turns.
func (m *model) removeUnusedAgents() {
	for key, a := range m.agents {
		if !a.exists && m.count(func(t *modelTurn) bool { return t.Agent.Key == key }) == 0 {
			delete(m.agents, key)
		}
	}
}

func (m *model) count(which func(*modelTurn) bool) (n int) {
	for _, t := range m.turns {
		if which(t) {
			n++
		}
	}
	return n
}

func (m *model) running(ns string) int {
	return m.count(func(t *modelTurn) bool { return t.Turn.Namespace == ns && t.state != waiting })
}

func (m *model) capacity() (n int) {
	for _, e := range m.executors {
		n += e.Capacity
	}
	return n
}

func (m *model) namespaceLimit() int {
	tenants := map[string]bool{}
	for key, a := range m.agents {
		if a.exists {
			tenants[key.Namespace] = true
		}
	}
	return m.limits.Running.slotsFor(m.capacity(), len(tenants))
}

// eligible returns the Turns that may get a free slot, in the order in which they get one.
func (m *model) eligible() []*modelTurn {
	type laneKey struct {
		namespace string
		agent     Key
	}
	first := map[laneKey]*modelTurn{}
	for _, t := range m.turns {
		l := laneKey{t.Turn.Namespace, t.Agent.Key}
		if t.state == waiting && (first[l] == nil || t.compare(&first[l].Request) < 0) {
			first[l] = t
		}
	}
	var all []*modelTurn
	for l, t := range first {
		runs := m.count(func(other *modelTurn) bool { return other.Agent.Key == l.agent && other.state != waiting })
		limit := m.agents[l.agent].limit
		if !t.deferred && (limit == 0 || runs < limit) && (m.namespaceLimit() == 0 || m.running(l.namespace) < m.namespaceLimit()) {
			all = append(all, t)
		}
	}
	slices.SortFunc(all, func(a, b *modelTurn) int {
		return cmp.Or(cmp.Compare(m.running(a.Turn.Namespace), m.running(b.Turn.Namespace)), a.compare(&b.Request))
	})
	return all
}

func (m *model) freest() (name string, free int) {
	for _, e := range m.executors {
		left := e.Capacity - m.count(func(t *modelTurn) bool { return t.state != waiting && t.executor == e.Name })
		if left > free {
			name, free = e.Name, left
		}
	}
	return name, free
}

func (m *model) fill(caller Key) {
	m.removeUnusedAgents()
	for {
		name, free := m.freest()
		all := m.eligible()
		if free == 0 || len(all) == 0 {
			return
		}
		all[0].state, all[0].executor = reserved, name
		if all[0].Turn != caller {
			m.woken = append(m.woken, all[0].Turn)
		}
	}
}

func (m *model) reserve(r Request) (executor string, refused bool) {
	before := m.turns[r.Turn]
	if before != nil && before.state == reserved && before.Agent.Key == r.Agent.Key {
		before.Request = r
		m.setAgent(r.Agent)
		m.fill(Key{})
		return before.executor, false
	}
	t := &modelTurn{Request: r}
	m.turns[r.Turn] = t
	m.setAgent(r.Agent)
	m.fill(r.Turn)
	queued := m.count(func(other *modelTurn) bool { return other.Turn.Namespace == r.Turn.Namespace && other.state == waiting })
	wasWaiting := before != nil && before.state == waiting
	if t.state == waiting && m.limits.Queued > 0 && queued > m.limits.Queued && !wasWaiting && !r.Admitted {
		delete(m.turns, r.Turn)
		m.fill(Key{})
		return "", true
	}
	return t.executor, false
}

func (m *model) setExecutors(executors []Executor) {
	m.executors = slices.SortedFunc(slices.Values(executors), func(a, b Executor) int { return strings.Compare(a.Name, b.Name) })
	for _, t := range m.turns {
		if t.state == reserved && !slices.ContainsFunc(executors, func(e Executor) bool { return e.Name == t.executor }) {
			t.state, t.executor = waiting, ""
		}
	}
}

// drive applies the same operations to Slots and to the model, and compares the two after each step. Each operation and
// its arguments are chosen by calls of next, which returns a number from 0 to n-1.
func drive(t *testing.T, next func(n int) int, steps int) {
	t.Helper()
	limits := Limits{Queued: next(3) * 4}
	switch next(4) {
	case 0:
		limits.Running = Share{count: 1 + next(4)}
	case 1:
		limits.Running = Share{percent: 50}
	}
	m := newModel(limits)
	var woken []Key
	s := New(limits, func(turn Key, urgent bool) {
		if urgent {
			woken = append(woken, turn)
		}
	})
	executors := []Executor{{Name: "e", Capacity: 1 + next(4)}}
	version := int64(0)
	for step := range steps {
		version++
		ns := fmt.Sprintf("ns-%d", min(next(3), next(3)))
		agent := Agent{
			Key: Key{Namespace: ns, Name: fmt.Sprintf("agent-%d", next(3))}, MaxParallelTurns: next(4),
			Version: max(0, version-int64(next(9))),
		}
		if next(3) == 0 {
			agent.Key.Namespace = fmt.Sprintf("ns-%d", next(4)) // an Agent that another namespace shares
		}
		number := next(12)
		r := Request{
			Turn:  Key{Namespace: ns, Name: fmt.Sprintf("turn-%d", number)},
			Agent: agent, Since: time.Unix(int64(number%5), 0), Admitted: next(4) == 0,
		}
		known := m.turns[r.Turn]
		if known != nil {
			r.Agent.Key = known.Agent.Key // a Turn never changes its Agent
		}
		woken, m.woken = nil, nil
		op := next(12)
		what := ""
		switch op {
		default:
			what = fmt.Sprintf("Reserve(%v)", r)
			m.setExecutors(executors)
			want, refused := m.reserve(r)
			got := s.Reserve(r, executors)
			if got.Executor != want || (got.Cause == QueueFull) != refused || (got.Cause == NoCause) != (want != "") ||
				(got.Message == "") != (want != "") {
				t.Fatalf("step %d: %s = %+v, want %q, refused %t", step, what, got, want, refused)
			}
		case 5:
			what = fmt.Sprintf("ReserveOverLimit(%v)", r)
			m.setExecutors(executors)
			delete(m.turns, r.Turn)
			want := ""
			if len(m.executors) > 0 {
				name, _ := m.freest()
				want = cmp.Or(name, m.executors[0].Name)
				m.turns[r.Turn] = &modelTurn{Request: r, state: reserved, executor: want}
				m.setAgent(r.Agent)
			}
			m.fill(r.Turn)
			if got := s.ReserveOverLimit(r, executors); got != want {
				t.Fatalf("step %d: %s = %q, want %q", step, what, got, want)
			}
		case 6:
			what = fmt.Sprintf("Confirm(%v)", r)
			executor := "e"
			r.Agent.Version = 0
			if known != nil && known.state != waiting && known.executor == executor {
				known.state = bound
			} else {
				m.turns[r.Turn] = &modelTurn{Request: r, state: bound, executor: executor}
				m.setAgent(r.Agent)
				m.fill(Key{})
			}
			s.Confirm(r, executor)
		case 7:
			what = fmt.Sprintf("Release(%v)", r.Turn)
			if known != nil {
				delete(m.turns, r.Turn)
				m.fill(Key{})
			}
			s.Release(r.Turn)
		case 8:
			what = fmt.Sprintf("ReleaseBound(%v)", r.Turn)
			if known != nil && known.state == bound {
				delete(m.turns, r.Turn)
				m.fill(Key{})
			}
			s.ReleaseBound(r.Turn)
		case 9:
			what = fmt.Sprintf("Defer(%v)", r.Turn)
			if known != nil && known.state != bound && !known.deferred {
				m.turns[r.Turn] = &modelTurn{Request: known.Request, deferred: true}
				m.fill(Key{})
			}
			s.Defer(r.Turn)
		case 10:
			what = fmt.Sprintf("Agent(%v)", agent)
			switch next(4) {
			case 0:
				if a := m.agents[agent.Key]; a != nil {
					a.exists, a.version = false, 0
					m.fill(Key{})
				}
				s.ForgetAgent(agent.Key)
			case 1:
				for _, other := range m.turns {
					if other.Agent.Key == agent.Key {
						other.deferred = false
					}
				}
				m.fill(Key{})
				s.Resume(agent.Key)
			default:
				m.setAgent(agent)
				m.agents[agent.Key].exists = true
				m.fill(Key{})
				s.SetAgent(agent)
			}
		case 11:
			executors = nil
			for i := range next(4) {
				executors = append(executors, Executor{Name: string(rune('f' - i)), Capacity: next(5)})
			}
			what = fmt.Sprintf("SetExecutors(%v)", executors)
			m.setExecutors(executors)
			m.fill(Key{})
			s.SetExecutors(executors)
		}
		compare(t, s, m, fmt.Sprintf("step %d: %s", step, what))
		// Slots may wake further Turns: those that lose their slot and get another one within the step.
		for _, turn := range m.woken {
			if !slices.Contains(woken, turn) {
				t.Fatalf("step %d: %s: woken: %v, want %v", step, what, woken, m.woken)
			}
		}
	}
}

// compare fails the test if Slots and the model disagree, or if the counts of Slots are wrong.
func compare(t *testing.T, s *Slots, m *model, when string) {
	t.Helper()
	type shown struct {
		State    state
		Deferred bool
		Executor string
	}
	got, want := map[string]shown{}, map[string]shown{}
	for key, turn := range s.turns {
		got[key.String()] = shown{turn.state, turn.deferred, turn.executor}
	}
	for key, turn := range m.turns {
		want[key.String()] = shown{turn.state, turn.deferred, turn.executor}
	}
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Fatalf("%s (-want +got):\n%s", when, diff)
	}
	type agentState struct {
		Limit   int
		Version int64
		Exists  bool
	}
	gotAgents, wantAgents := map[string]agentState{}, map[string]agentState{}
	for key, a := range s.agents {
		gotAgents[key.String()] = agentState{a.MaxParallelTurns, a.Version, a.exists}
		for name, l := range a.lanes {
			if n := m.count(func(t *modelTurn) bool { return t.Turn.Namespace == name && t.Agent.Key == key }); n == 0 || n != l.turns {
				t.Fatalf("%s: Agent %s counts %d turns of namespace %s, want %d", when, key, l.turns, name, n)
			}
		}
	}
	for key, a := range m.agents {
		wantAgents[key.String()] = agentState{a.limit, a.version, a.exists}
	}
	if diff := gocmp.Diff(wantAgents, gotAgents); diff != "" {
		t.Fatalf("%s: Agents (-want +got):\n%s", when, diff)
	}
	for name, n := range s.namespaces {
		if n.running != m.running(name) || n.waiting != m.count(
			func(t *modelTurn) bool { return t.Turn.Namespace == name && t.state == waiting }) {
			t.Fatalf("%s: namespace %s counts %d running, %d waiting", when, name, n.running, n.waiting)
		}
	}
}

// TestSlotsAgreeWithASimpleModel applies the same random operations to Slots and to the model.
func TestSlotsAgreeWithASimpleModel(t *testing.T) {
	for seed := range uint64(60) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			drive(t, rand.New(rand.NewPCG(seed, 7)).IntN, 150)
		})
	}
}

func FuzzSlots(f *testing.F) {
	f.Add([]byte("a slot that becomes free goes to the namespace that runs the fewest Turns"))
	f.Fuzz(func(t *testing.T, data []byte) {
		drive(t, func(n int) int {
			if len(data) == 0 {
				return 0
			}
			b := int(data[0]) % n
			data = data[1:]
			return b
		}, len(data)/8)
	})
}
