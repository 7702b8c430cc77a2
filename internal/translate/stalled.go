package translate

import "github.com/capstan-dev/capstan/api/v1alpha1"

// Stalls reports whether an object whose condition Ready is False for this reason is Stalled: only a change of the
// object itself can make it Ready. GitOps tools report a Stalled object as failed immediately. So a reason does not
// stall if time or a change of another object may remove it, because the same sync may change that object. inOwnText is
// true if the fault is in a text of the object itself, and no PromptProfile or ConfigMap can remove it.
func Stalls(reason string, inOwnText bool) bool {
	switch reason {
	case v1alpha1.ReasonInvalidTimeZone, v1alpha1.ReasonInvalidRedaction, // of an Agent
		v1alpha1.ReasonHeaderRefused,                          // of a ModelProvider or a ToolServer
		v1alpha1.ReasonInvalidCompensation,                    // of a ToolServer
		v1alpha1.ReasonBudgetUsed, v1alpha1.ReasonHistoryLost, // of a Session
		v1alpha1.ReasonInvalidBudget: // of a Budget
		return true
	case v1alpha1.ReasonInvalidInstructions, v1alpha1.ReasonRenderFailed: // of an Agent, and of a PromptProfile
		return inOwnText
	}
	return false
}
