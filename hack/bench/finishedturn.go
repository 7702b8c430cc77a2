package main

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

const (
	// One of everyNthExpires finished Turns has a TTL. The TTL is a day, so that no Turn is deleted during the
	// measurement.
	everyNthExpires = 4
	daySeconds      = 24 * 60 * 60

	// The answers have from shortestAnswer to shortestAnswer+(answerLengths-1)*answerStep characters.
	shortestAnswer = 900
	answerLengths  = 8
	answerStep     = 200
)

// finishedTurn returns the finished Turn with this number. Its status is similar to one that a manager writes.
func finishedTurn(i int, now time.Time) *v1alpha1.Turn {
	turn := newTurn(fmt.Sprintf("finished-%d", i), 0)
	turn.Labels = map[string]string{finishedLabel: "true"}
	turn.Spec.Message = fmt.Sprintf("What does request %d cost, and what of it may a customer see? Name the source of each number.", i)
	if i%everyNthExpires == 0 {
		turn.Spec.TTLSecondsAfterFinished = new(int32(daySeconds))
	}
	end := metav1.NewMicroTime(now)
	start := metav1.NewMicroTime(now.Add(-2 * time.Second))
	answer := answerOf(i)
	contextHash := hashOf("context", i)[:16]
	turn.Status = v1alpha1.TurnStatus{
		ObservedGeneration: 1, Conditions: endedConditions(end.Time), StopReason: v1alpha1.StopCompleted,
		Executor:  &v1alpha1.ExecutorBinding{Name: objectName, Epoch: 1},
		StartTime: &start, CompletionTime: &end, DurationMilliseconds: new(int64(2000)),
		Preparation: preparationOf(i, contextHash),
		Steps:       &v1alpha1.StepCounts{Count: 1, ModelRequests: 1},
		Result: &v1alpha1.TurnResult{
			Text: answer, Bytes: int64(len(answer)), Preview: answer[:80],
			Citations: &v1alpha1.Citations{Local: []string{"handbook/prices.md", "handbook/visibility.md"}},
		},
		Usage: &v1alpha1.Usage{
			InputTokens: 1234, OutputTokens: 345, TotalTokens: 1579, CacheReadTokens: 1024,
			Cost: &v1alpha1.Cost{Amount: "0.00345", Currency: "USD"},
		},
		Decision: &v1alpha1.Decision{
			Key: hashOf("decision", i), Strategy: v1alpha1.StrategyDirectAnswer, PromptRenderHash: hashOf("render", 0),
			ContextHash: contextHash,
		},
	}
	return turn
}

func endedConditions(end time.Time) []metav1.Condition {
	var conditions []metav1.Condition
	for _, c := range []struct{ kind, reason, message string }{
		{v1alpha1.ConditionSucceeded, v1alpha1.TurnReasonCompleted, "the model finished its answer"},
		{v1alpha1.ConditionPrepared, v1alpha1.TurnReasonPrepared, "the prompt was prepared"},
		{v1alpha1.ConditionExecuted, v1alpha1.TurnReasonCompleted, "the model finished its answer"},
		{v1alpha1.ConditionFinalized, v1alpha1.TurnReasonFinalized, "usage, cost, sources and decision record are complete"},
	} {
		conditions = append(conditions, metav1.Condition{
			Type: c.kind, Status: metav1.ConditionTrue, Reason: c.reason, Message: c.message, ObservedGeneration: 1,
			LastTransitionTime: metav1.NewTime(end),
		})
	}
	return conditions
}

func preparationOf(i int, contextHash string) *v1alpha1.Preparation {
	p := &v1alpha1.Preparation{
		PromptProfile: v1alpha1.PromptProfileRevision{Name: objectName, ID: objectName, Version: "1.0.0", Generation: 1},
		Provider:      objectName, Model: modelName,
		PromptRenderHash: hashOf("render", 0), PromptHash: hashOf("prompt", i), ContextHash: contextHash,
		Mode: v1alpha1.PromptModeFull, Sections: []string{"instructions", "guardrails", "context", "memories"},
		StableChars: 2345, DynamicChars: 1234, MessageCount: 2,
		Provenance: &v1alpha1.Provenance{UsedGuardrailIDs: []string{"no-secrets", "sources-only"}},
	}
	for n := range 6 {
		p.Provenance.UsedMemoryIDs = append(p.Provenance.UsedMemoryIDs, hashOf("memory", i+n)[:32])
		p.Provenance.UsedEnrichmentIDs = append(p.Provenance.UsedEnrichmentIDs, hashOf("enrichment", i+n)[:32])
	}
	return p
}

// answerOf returns a unique answer, so that no process can keep one copy for all Turns.
func answerOf(i int) string {
	length := shortestAnswer + i%answerLengths*answerStep
	var text strings.Builder
	for n := 0; text.Len() < length; n++ {
		fmt.Fprintf(&text, "The price of part %d of request %d is %d cents. ", n, i, (i+n)%1000)
	}
	return text.String()[:length]
}

func hashOf(kind string, i int) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %d", kind, i))
	return hex.EncodeToString(sum[:])
}
