package scheduler

import (
	"cmp"
	"strings"
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
	// Capacity is the maximum number of Turns that may be bound to the executor at the same time.
	Capacity int
	// Stuck is the number of Turns that are bound to the executor and hold a slot, but do not need it: the executor has
	// as many further slots. These further slots do not count when the share of a namespace is computed.
	Stuck int
	// Store is the store in which the executor keeps journals. It is the zero value if the executor has an older
	// version, which does not report its store.
	Store executor.StoreIdentity
	// Reach says whether the store works for the executor.
	Reach StoreReach
}

// StoreReach says whether a store works for an executor.
type StoreReach int

const (
	// ReachUnknown means that the executor does not say whether its store works.
	ReachUnknown StoreReach = iota
	// Reachable means that the store works for the executor.
	Reachable
	// Unreachable means that the store has not worked for the executor for some time.
	Unreachable
)

// WithoutCutOff returns the executors without those that alone have lost their store: it works for another of the
// executors. If the store works for none of them, all are returned, because no other executor could do better.
func WithoutCutOff(executors []Executor) []Executor {
	works := map[string]bool{}
	for _, e := range executors {
		if e.Reach == Reachable && e.Store.ID != "" {
			works[e.Store.ID] = true
		}
	}
	var kept []Executor
	for _, e := range executors {
		if e.Reach != Unreachable || !works[e.Store.ID] {
			kept = append(kept, e)
		}
	}
	return kept
}

// slots returns the number of slots of the executor.
func (e Executor) slots() int { return e.Capacity + e.Stuck }

// Agent holds the scheduler's facts about an Agent.
type Agent struct {
	Key Key
	// MaxParallelTurns is the maximum number of the Agent's Turns that may run at the same time, in all namespaces; 0
	// means no limit.
	MaxParallelTurns int
	// Version is the version of the Agent from which the limit comes. A limit from an older version than the stored one
	// is ignored. Version 0 means that the limit is unknown; a limit of this version is ignored, too.
	Version int64
}

// Request is a Turn that needs a slot.
type Request struct {
	Turn Key
	// Agent is the Agent of the Turn. It may be in another namespace. Fairness and the limits of namespaces apply to
	// the namespace of the Turn.
	Agent Agent
	// Since is the time from which the Turn has waited. Among the Turns of a namespace that can get a slot, the one
	// that has waited longest goes first.
	Since time.Time
	// Admitted means that the Turn has waited or has run before. Such a Turn is never refused because too many Turns
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

// Limits are the limits of the slots and the queue of one namespace.
type Limits struct {
	// Running is the maximum number of Turns of one namespace that may hold slots at the same time.
	Running Share
	// Queued is the maximum number of Turns of one namespace that may wait for a slot at the same time; 0 means no
	// limit.
	Queued int
}

// Cause is the reason why a Turn gets no slot now.
type Cause int

const (
	// NoCause means that the Turn has a slot.
	NoCause Cause = iota
	// NoExecutor means that no executor is running.
	NoExecutor
	// AllSlotsTaken means that no slot is free for this Turn: all slots are taken, or the free ones go to Turns that
	// have waited longer or whose namespace runs fewer Turns.
	AllSlotsTaken
	// AgentLimit means that the Agent already runs as many Turns as it may, or that none of its models answers and one
	// of its Turns is already trying them.
	AgentLimit
	// NamespaceLimit means that the namespace already runs as many Turns as it may.
	NamespaceLimit
	// AgentOrder means that an earlier Turn of the Agent is waiting, too.
	AgentOrder
	// QueueFull means that too many Turns of the namespace already wait. The Turn is refused: it is not queued.
	QueueFull
)

// Verdict is the result of a request for a slot.
type Verdict struct {
	// Executor is the executor with the slot; empty if the Turn gets no slot.
	Executor string
	// Cause and Message say why the Turn gets no slot. Message names the limit that applies.
	Cause   Cause
	Message string
}
