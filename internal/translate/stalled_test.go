package translate_test

import (
	"os"
	"regexp"
	"testing"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/translate"
)

// TestStalls checks each reason of the API that a condition Ready, or a condition of an Agent that is a part of Ready,
// may have while it is False.
func TestStalls(t *testing.T) {
	const (
		never   = "another object or time may remove it"
		always  = "only a change of the object helps"
		ownText = "only a change of the object helps if the fault is in its own text"
	)
	reasons := map[string]string{
		v1alpha1.ReasonSecretNotFound: never, v1alpha1.ReasonHostNotAllowed: never, v1alpha1.ReasonMemoryUsedUp: never,
		v1alpha1.ReasonCredentialsRejected: never, v1alpha1.ReasonEndpointUnreachable: never, v1alpha1.ReasonAddressRefused: never,
		v1alpha1.ReasonProtocolError: never, v1alpha1.ReasonTooManyObjects: never, v1alpha1.ReasonHeaderRefused: always,
		v1alpha1.ReasonInvalidCompensation: always,

		v1alpha1.ReasonRenderFailed: ownText, v1alpha1.ReasonConfigMapNotFound: never, v1alpha1.ReasonConfigMapUnreadable: never,

		v1alpha1.ReasonProfileNotFound: never, v1alpha1.ReasonProfileNotReady: never, v1alpha1.ReasonProfileNotRendered: never,
		v1alpha1.ReasonInvalidInstructions: ownText, v1alpha1.ReasonSkillNotFound: never, v1alpha1.ReasonInvalidTimeZone: always,
		v1alpha1.ReasonInvalidRedaction: always, v1alpha1.ReasonReferenceNotAllowed: never, v1alpha1.ReasonProviderNotFound: never,
		v1alpha1.ReasonProviderNotReady: never, v1alpha1.ReasonUnsupportedParameter: never, v1alpha1.ReasonToolServerNotFound: never,
		v1alpha1.ReasonToolServerNotReady: never, v1alpha1.ReasonSubAgentNotFound: never,

		v1alpha1.ReasonBudgetUsed: always, v1alpha1.ReasonHistoryLost: always,

		v1alpha1.ReasonInvalidBudget: always, v1alpha1.ReasonTooManyBudgets: never, v1alpha1.ReasonRequestersNotChecked: never,
	}
	for reason, why := range reasons {
		for _, own := range []bool{false, true} {
			if got, want := translate.Stalls(reason, own), why == always || why == ownText && own; got != want {
				t.Errorf("Stalls(%s, %t) = %t, want %t: %s", reason, own, got, want, why)
			}
		}
	}
	others := []string{ // of other conditions, or of a condition that is True
		v1alpha1.ReasonReady, v1alpha1.ReasonResolved, v1alpha1.ReasonPartiallyResolved, v1alpha1.ReasonOpen,
		v1alpha1.ReasonHistoryComplete, v1alpha1.ReasonCircuitOpen, v1alpha1.ReasonCircuitClosed, v1alpha1.ReasonLimitReached,
		v1alpha1.ReasonWithinLimits, v1alpha1.ReasonWarnPercentReached, v1alpha1.ReasonBelowWarnPercent,
		v1alpha1.ReasonNoEmbeddings, v1alpha1.ReasonNoJudges, v1alpha1.ReasonJudgeModelNotAllowed,
	}
	for _, reason := range others {
		if reasons[reason] = never; translate.Stalls(reason, true) {
			t.Errorf("Stalls(%s) = true, want false", reason)
		}
	}
	source, err := os.ReadFile("../../api/v1alpha1/conditions.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`(?m)^\tReason\w* += "(\w+)"`).FindAllStringSubmatch(string(source), -1) {
		if reasons[m[1]] == "" {
			t.Errorf("the reason %s is not checked: decide whether it stalls", m[1])
		}
	}
}
