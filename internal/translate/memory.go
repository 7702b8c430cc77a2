package translate

import (
	"slices"
	"time"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/memories"
	"github.com/capstan-dev/capstan/internal/runtime/turncontext"
)

// LearningLimits say what is learned from the Turns of an Agent.
type LearningLimits struct {
	Scopes []memories.Scope
	// MaxPerTurn is the maximum number of memories of each scope that are learned from one Turn. MaxMemories is the
	// maximum number of memories that each Session or user keeps.
	MaxPerTurn, MaxMemories int
	// MinConfidence is from 0 to 100.
	MinConfidence int
	ExpiryDays    int
}

// Learning returns what is learned from the Turns of an Agent. Learns must be true for the Agent.
func Learning(a *v1alpha1.Agent) LearningLimits {
	l := a.Spec.Memory.Learning
	or := func(value *int32, defaultValue int) int {
		if value == nil {
			return defaultValue
		}
		return int(*value)
	}
	out := LearningLimits{
		MaxPerTurn: or(l.MaxPerTurn, v1alpha1.DefaultLearnedPerTurn), MaxMemories: or(l.MaxMemories, v1alpha1.DefaultMaxMemories),
		MinConfidence: or(l.MinConfidencePercent, v1alpha1.DefaultMinConfidence), ExpiryDays: or(l.ExpiryDays, v1alpha1.DefaultExpiryDays),
	}
	for _, s := range l.Scopes {
		out.Scopes = append(out.Scopes, memories.Scope(s))
	}
	return out
}

// Learns reports whether memories are learned from the Turns of an Agent.
func Learns(a *v1alpha1.Agent) bool { return a.Spec.Memory != nil && a.Spec.Memory.Learning != nil }

// LearnsFor reports whether an Agent learns and uses memories of a scope.
func LearnsFor(a *v1alpha1.Agent, s memories.Scope) bool {
	return Learns(a) && slices.Contains(a.Spec.Memory.Learning.Scopes, v1alpha1.LearnedScope(s))
}

// MemoryOwners returns the owners of the memories that a Turn uses: its Session and its user, if the Agent learns for
// their scopes. sessionUID is empty for a Turn without a Session, and user for a Turn without a verified requester.
func MemoryOwners(t *v1alpha1.Turn, a *v1alpha1.Agent, sessionUID, user string) []memories.Owner {
	var owners []memories.Owner
	for _, o := range []struct {
		scope memories.Scope
		id    string
	}{{memories.Session, sessionUID}, {memories.User, user}} {
		if o.id != "" && LearnsFor(a, o.scope) {
			owners = append(owners, memories.Owner{Namespace: t.Namespace, Agent: t.AgentName(), Scope: o.scope, ID: o.id})
		}
	}
	return owners
}

// LearningModels returns the models that extract memories for an Agent, and the thinking level of the requests to them:
// the Agent's level if they are the Agent's own models, and otherwise none.
func LearningModels(a *v1alpha1.Agent) ([]v1alpha1.ModelReference, v1alpha1.ThinkingLevel) {
	if l := a.Spec.Memory.Learning; len(l.Models) > 0 {
		return l.Models, ""
	}
	return a.Spec.Models, a.Spec.Thinking
}

// MaxMemories returns the maximum number of memories in the prompt of an Agent.
func MaxMemories(a *v1alpha1.Agent) int {
	if m := a.Spec.Memory; m != nil && m.MaxItems != nil {
		return int(*m.MaxItems)
	}
	return turncontext.MaxMemories
}

// IsWrittenByRequester reports whether the requester of a Turn has written its message. The message of a sub-agent's
// Turn was written by another Agent, and a message in a ConfigMap by anyone who may write the ConfigMap. The function
// checks the depth, too: the owner reference to the calling Turn can be removed, but the depth is immutable.
func IsWrittenByRequester(t *v1alpha1.Turn) bool {
	_, called := Parent(t)
	return !called && (t.Spec.Depth == nil || *t.Spec.Depth == 0) && t.Spec.MessageFrom == nil
}

// Observation returns the observation of a Turn that has ended. common has the fields that are the same in all memories
// of the Turn.
func Observation(t *v1alpha1.Turn, common memories.Memory) memories.Observation {
	o := memories.Observation{
		TurnUID: common.TurnUID, Namespace: common.Namespace, Turn: common.Turn, Agent: common.Agent, Session: common.Session,
		SessionUID: common.SessionUID, Requester: common.Requester, Time: common.Learned.Truncate(time.Microsecond),
		Details: memories.Details{Reason: t.StateReason()},
	}
	if d := t.Status.Decision; d != nil {
		o.Strategy, o.Tools = string(d.Strategy), d.ToolsUsed
	}
	if p := t.Status.Preparation; p != nil && p.Provenance != nil {
		o.Recalled = p.Provenance.UsedMemoryIDs
	}
	if n := t.Status.DurationMilliseconds; n != nil {
		o.ElapsedMilliseconds = *n
	}
	return o
}
