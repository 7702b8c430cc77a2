package translate

import (
	"cmp"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// selection returns how the tools for the model are selected. The caller fills in the tools that the profile pins.
func selection(p *v1alpha1.ToolPolicy) tool.Selection {
	if p == nil {
		return tool.Selection{Most: v1alpha1.DefaultMaxToolsPerTurn}
	}
	return tool.Selection{
		Most:     int(cmp.Or(p.MaxToolsPerTurn, v1alpha1.DefaultMaxToolsPerTurn)),
		Semantic: p.Selection == v1alpha1.ToolSelectionSemantic,
	}
}

// callPolicy returns which calls a Turn may make, and how.
func callPolicy(t *v1alpha1.Turn, p *v1alpha1.ToolPolicy) loop.Policy {
	out := loop.Policy{NoWeb: t.Spec.WebMode != v1alpha1.WebModeOn}
	if p != nil {
		out.ReadOnly = p.Effects == v1alpha1.AllowedEffectsReadOnly
		out.Sequential = p.Execution == v1alpha1.ToolExecutionSequential
		out.Unvalidated = p.ArgumentValidation == v1alpha1.ArgumentValidationOff
	}
	return out
}

// contextPolicy returns what a run does when the conversation approaches the size of the context window. If only
// CompactPercent is set, it may be below the default of WarnPercent. The warning then comes at CompactPercent.
func contextPolicy(c *v1alpha1.AgentContext) loop.ContextPolicy {
	if c == nil {
		c = &v1alpha1.AgentContext{}
	}
	compact := int(cmp.Or(c.CompactPercent, v1alpha1.DefaultCompactPercent))
	return loop.ContextPolicy{
		Compact:        c.Compaction != v1alpha1.CompactionOff,
		WarnPercent:    min(compact, int(cmp.Or(c.WarnPercent, v1alpha1.DefaultWarnPercent))),
		CompactPercent: compact,
	}
}

// maxListedTools is how many tools the status of an Agent lists at most; the Agent may have more.
const maxListedTools = 128

// MayAffect reports whether a Turn may call a tool that is not ReadOnly, as far as the current status of its Agent
// shows. It returns true if the tools are unknown. If MayAffect returns false and the Turn nevertheless calls such a
// tool, the run first sets sideEffects in status.executor.
func MayAffect(t *v1alpha1.Turn, a *v1alpha1.Agent) bool {
	if a == nil {
		return true
	}
	c := meta.FindStatusCondition(a.Status.Conditions, v1alpha1.ConditionReady)
	switch p := a.Spec.ToolPolicy; {
	case t.Spec.Execution == v1alpha1.ExecutionPrepareOnly:
		return false
	case c != nil && c.Reason == v1alpha1.ReasonTooManyObjects: // the cache has no spec, and the status is old
		return true
	case len(a.Spec.Tools) == 0, p != nil && p.Effects == v1alpha1.AllowedEffectsReadOnly:
		return false
	case a.Status.ObservedGeneration != a.Generation, len(a.Status.Tools) == 0, len(a.Status.Tools) == maxListedTools:
		return true
	}
	return slices.ContainsFunc(a.Status.Tools, func(e v1alpha1.ExposedTool) bool { return e.Effect != v1alpha1.ToolEffectReadOnly })
}
