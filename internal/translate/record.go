package translate

import (
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/span"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/runtime/turnrecord"
)

// About returns the part of a Turn's record that is known before the Turn begins. labels are the keys of the labels
// that records keep.
func About(t *v1alpha1.Turn, labels []string) turnrecord.About {
	return turnrecord.About{Agent: t.AgentName(), Labels: selectedLabels(t.Labels, labels)}
}

// selectedLabels returns the labels with the given keys, or nil if there are none.
func selectedLabels(all map[string]string, keys []string) map[string]string {
	out := maps.Clone(all)
	maps.DeleteFunc(out, func(key, _ string) bool { return !slices.Contains(keys, key) })
	if len(out) == 0 {
		return nil
	}
	return out
}

// ObjectEnd returns the end of a Turn as its status has it, and the input with which that end can be written into the
// journal. It returns false if the Turn has not ended, or was never bound.
func ObjectEnd(t *v1alpha1.Turn, labels []string) (*turn.Input, turn.ObjectEnd, bool) {
	c, b := meta.FindStatusCondition(t.Status.Conditions, v1alpha1.ConditionSucceeded), t.Status.Executor
	if !t.IsFinished() || c == nil || t.Status.CompletionTime == nil || b == nil {
		return nil, turn.ObjectEnd{}, false
	}
	end := turn.ObjectEnd{
		Stop: turn.Stop(t.Status.StopReason), Message: c.Message, Reason: c.Reason, At: t.Status.CompletionTime.Time,
		Epoch: t.Epoch(),
	}
	if b.JournalEntries != nil {
		end.Entries = *b.JournalEntries
	}
	in := &turn.Input{
		UID: string(t.UID), Namespace: t.Namespace, Name: t.Name, Requester: t.Requester(), About: About(t, labels),
	}
	if ref := t.Spec.SessionRef; ref != nil {
		in.Session = &turn.Session{Name: ref.Name}
	}
	return in, end, true
}

// Record returns the record of a Turn that has ended, from its status. It is for a Turn whose journal has no end: no
// executor has run it, its journal is lost, or an older version has ended it. The usage in such a record names no
// model. Record returns false if the Turn has not ended.
func Record(t *v1alpha1.Turn, labels []string) (turnrecord.Record, bool) {
	c := meta.FindStatusCondition(t.Status.Conditions, v1alpha1.ConditionSucceeded)
	if !t.IsFinished() || c == nil || t.Status.CompletionTime == nil {
		return turnrecord.Record{}, false
	}
	about, s := About(t, labels), &t.Status
	out := turnrecord.Record{
		UID: string(t.UID), Namespace: t.Namespace, Turn: t.Name, Agent: about.Agent, Requester: t.Requester(),
		Reason: c.Reason, Completed: s.CompletionTime.UTC().Truncate(time.Microsecond),
		Details: turnrecord.Details{Labels: about.Labels, Incomplete: true},
	}
	if t.Spec.SessionRef != nil {
		out.Session = t.Spec.SessionRef.Name
	}
	if s.DurationMilliseconds != nil {
		out.ElapsedMilliseconds = *s.DurationMilliseconds
	}
	if d := s.Decision; d != nil {
		out.Key, out.Strategy, out.Tools, out.TurnNumber = d.Key, string(d.Strategy), d.ToolsUsed, d.TurnNumber
	}
	if p := s.Preparation; p != nil {
		out.PromptRenderHash, out.ContextHash = p.PromptRenderHash, p.ContextHash
		out.Prompt = &turnrecord.Prompt{Profile: p.PromptProfile.Name, ID: p.PromptProfile.ID, Version: p.PromptProfile.Version}
	}
	if u := s.Usage; u != nil && u.TotalTokens > 0 {
		m := turnrecord.Model{Usage: model.Usage{
			InputTokens: u.InputTokens, OutputTokens: u.OutputTokens, ReasoningTokens: u.ReasoningTokens,
			CacheReadTokens: u.CacheReadTokens, CacheCreationTokens: u.CacheCreationTokens, Estimated: u.Estimated,
		}}
		if u.Cost != nil {
			m.Cost = &turnrecord.Cost{Amount: u.Cost.Amount, Currency: u.Cost.Currency}
		}
		out.Models = []turnrecord.Model{m}
	}
	return out, true
}

// EndOf returns a copy of a Turn that has ended, with only the small fields that Record, ObjectEnd, SessionTurn,
// HasCounted and the trace of the Turn use. labels are the keys of the labels that records keep.
func EndOf(t *v1alpha1.Turn, labels []string) *v1alpha1.Turn {
	s := t.Status.DeepCopy()
	out := &v1alpha1.Turn{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: t.Namespace, Name: t.Name, UID: t.UID, Labels: selectedLabels(t.Labels, labels),
			Annotations: span.Kept(t.Annotations),
		},
		Spec: v1alpha1.TurnSpec{
			AgentRef: *t.Spec.AgentRef.DeepCopy(), SessionRef: t.Spec.SessionRef.DeepCopy(), RequestedBy: t.Spec.RequestedBy.DeepCopy(),
		},
		Status: v1alpha1.TurnStatus{
			Executor: s.Executor, StartTime: s.StartTime, CompletionTime: s.CompletionTime, StopReason: s.StopReason,
			DurationMilliseconds: s.DurationMilliseconds, Steps: s.Steps, Usage: s.Usage, SubAgentUsage: s.SubAgentUsage,
			Preparation: s.Preparation, Decision: s.Decision, TraceID: s.TraceID,
		},
	}
	if c := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionSucceeded); c != nil {
		out.Status.Conditions = []metav1.Condition{*c}
	}
	return out
}
