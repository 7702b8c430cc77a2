package translate

import (
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/finalize"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/runtime/turncontext"
)

// maxMissing is how many ToolServers with unknown tools a status names at most.
const maxMissing = 16

const (
	// maxResultBytes bounds the answer in a status, in bytes of JSON; the journal has the whole answer.
	maxResultBytes = 32 << 10
	// maxPreviewChars bounds the preview that kubectl prints.
	maxPreviewChars = 80
	// maxMessageBytes bounds the message of a condition, in bytes of JSON.
	maxMessageBytes = 2 << 10
)

// Finish writes the end of a Turn into its status: the result, the totals and all conditions.
func Finish(t *v1alpha1.Turn, r *turn.Result, now time.Time) {
	s := &t.Status
	s.StopReason = v1alpha1.StopReason(r.Stop)
	s.Preparation = preparation(r)
	Progress(t, turn.Progress{Counts: r.Counts, Calls: r.Calls, Usage: r.Record.Usage, Cost: r.Record.Cost, SubAgents: r.SubAgents})
	if r.Text != "" {
		s.Result = result(r)
	}
	s.Descendants = toInt32(r.Descendants)
	if d := r.Record.Decision; d != nil {
		s.Decision = &v1alpha1.Decision{
			Key: d.Key, Strategy: v1alpha1.Strategy(d.Strategy), PromptRenderHash: d.PromptRenderHash, ContextHash: d.ContextHash,
			ToolsUsed: d.ToolsUsed,
		}
		if p := r.Session; p != nil {
			s.Decision.SessionName, s.Decision.TurnNumber = p.Name, p.Number
		}
	}
	if n := r.MissingTurns; n > 0 {
		setCondition(t, v1alpha1.ConditionHistoryComplete, metav1.ConditionFalse, v1alpha1.ReasonHistoryLost,
			fmt.Sprintf("the history of %d earlier turns of the session was lost, and the model did not receive it", n), now)
	}
	status, reason := mainCondition(r.Stop)
	End(t, status, reason, r.Message, now)
	setDetailConditions(t, r, status, reason)
}

// End writes the main condition of a Turn that has ended, and its times.
func End(t *v1alpha1.Turn, status metav1.ConditionStatus, reason, message string, now time.Time) {
	message = truncateJSON(message, maxMessageBytes)
	unpark(&t.Status, now)
	t.Status.ObservedGeneration = t.Generation
	if start := t.Status.StartTime; start != nil && start.After(now) {
		now = start.Time // a clock was wrong: a Turn must not end before it starts
	}
	completion := metav1.NewMicroTime(now)
	t.Status.CompletionTime = &completion
	if t.Status.StartTime != nil {
		ms := max(0, now.Sub(t.Status.StartTime.Time).Milliseconds())
		t.Status.DurationMilliseconds = &ms
	}
	setCondition(t, v1alpha1.ConditionSucceeded, status, reason, message, now)
	meta.RemoveStatusCondition(&t.Status.Conditions, v1alpha1.ConditionReconciling)
	if status == metav1.ConditionFalse {
		setCondition(t, v1alpha1.ConditionStalled, metav1.ConditionTrue, reason, message, now)
	}
}

// sizes matches numbers of bytes in a message.
var sizes = regexp.MustCompile(`[0-9]+(\.[0-9]+)? [KMGTP]iB`)

// differInSizes reports whether two messages differ only in their numbers of bytes.
func differInSizes(a, b string) bool {
	return a != b && sizes.ReplaceAllLiteralString(a, "") == sizes.ReplaceAllLiteralString(b, "")
}

// Wait writes that a Turn has not ended, and why, and reports whether the status changed. A message that differs
// only in its numbers of bytes is not a change: hundreds of Turns may wait for the same reason, and each would be
// written again whenever the controller looks at one of them.
func Wait(t *v1alpha1.Turn, reason, message string, now time.Time) bool {
	message = truncateJSON(message, maxMessageBytes)
	changed := t.Status.ObservedGeneration != t.Generation
	t.Status.ObservedGeneration = t.Generation
	if c := meta.FindStatusCondition(t.Status.Conditions, v1alpha1.ConditionSucceeded); !changed && c != nil &&
		c.Reason == reason && differInSizes(c.Message, message) {
		message = c.Message
	}
	since := now
	if t.StateReason() == "" && !t.CreationTimestamp.IsZero() {
		since = t.CreationTimestamp.Time // the Turn has waited since then, even if no manager was running
	}
	changed = setCondition(t, v1alpha1.ConditionSucceeded, metav1.ConditionUnknown, reason, message, now) || changed
	if reason == v1alpha1.TurnReasonSuspended {
		return meta.RemoveStatusCondition(&t.Status.Conditions, v1alpha1.ConditionReconciling) || changed
	}
	return setCondition(t, v1alpha1.ConditionReconciling, metav1.ConditionTrue, reason, message, since) || changed
}

func setCondition(t *v1alpha1.Turn, kind string, status metav1.ConditionStatus, reason, message string, now time.Time) bool {
	return meta.SetStatusCondition(&t.Status.Conditions, metav1.Condition{
		Type: kind, Status: status, Reason: reason, Message: message,
		ObservedGeneration: t.Generation, LastTransitionTime: metav1.NewTime(now),
	})
}

// mainCondition maps the stop reason of a run to status and reason of the main condition.
func mainCondition(s turn.Stop) (metav1.ConditionStatus, string) {
	switch s {
	case turn.StopCompleted, turn.StopToolEnded:
		return metav1.ConditionTrue, v1alpha1.TurnReasonCompleted
	case turn.StopPrepared:
		return metav1.ConditionTrue, v1alpha1.TurnReasonPrepared
	case turn.StopPreparationError:
		return metav1.ConditionFalse, v1alpha1.TurnReasonPreparationFailed
	case turn.StopMaxSteps:
		return metav1.ConditionFalse, v1alpha1.TurnReasonStepLimitExceeded
	case turn.StopBudget:
		return metav1.ConditionFalse, v1alpha1.TurnReasonBudgetExceeded
	case turn.StopMaxOutputTokens, turn.StopOutputInvalid:
		return metav1.ConditionFalse, v1alpha1.TurnReasonOutputInvalid
	case turn.StopContentFilter:
		return metav1.ConditionFalse, v1alpha1.TurnReasonPolicyViolated
	case turn.StopContextLength:
		return metav1.ConditionFalse, v1alpha1.TurnReasonContextLimitExceeded
	case turn.StopDeadline:
		return metav1.ConditionFalse, v1alpha1.TurnReasonDeadlineExceeded
	case turn.StopCancelled:
		return metav1.ConditionFalse, v1alpha1.TurnReasonCancelled
	case turn.StopInterrupted:
		return metav1.ConditionFalse, v1alpha1.TurnReasonInterrupted
	case turn.StopModelError:
	}
	return metav1.ConditionFalse, v1alpha1.TurnReasonModelFailed
}

// setDetailConditions writes the conditions Prepared, Executed and Finalized.
func setDetailConditions(t *v1alpha1.Turn, r *turn.Result, status metav1.ConditionStatus, reason string) {
	now := t.Status.CompletionTime.Time
	switch {
	case r.Preparation != nil:
		setCondition(t, v1alpha1.ConditionPrepared, metav1.ConditionTrue, v1alpha1.TurnReasonPrepared,
			truncateJSON(preparedMessage(r), maxMessageBytes), now)
	case r.Stop == turn.StopPreparationError:
		setCondition(t, v1alpha1.ConditionPrepared, metav1.ConditionFalse, reason, truncateJSON(r.Message, maxMessageBytes), now)
	}
	if r.Preparation != nil && r.Stop != turn.StopPrepared {
		setCondition(t, v1alpha1.ConditionExecuted, status, reason, truncateJSON(r.Message, maxMessageBytes), now)
	}
	if f := r.Record.Failures; len(f) > 0 {
		setCondition(t, v1alpha1.ConditionFinalized, metav1.ConditionFalse, v1alpha1.TurnReasonPartiallyFinalized,
			truncateJSON("these steps failed: "+strings.Join(f, "; "), maxMessageBytes), now)
		return
	}
	setCondition(t, v1alpha1.ConditionFinalized, metav1.ConditionTrue, v1alpha1.TurnReasonFinalized, "the record is complete", now)
}

// preparedMessage returns the message of the condition Prepared for a prompt that was made.
func preparedMessage(r *turn.Result) string {
	if len(r.ToolServersMissing) == 0 {
		return "the prompt was prepared"
	}
	return "the prompt was prepared, but " + WithoutTools(r.ToolServersMissing)
}

// WithoutTools returns the part of a message that says that a Turn ran without the tools of these ToolServers,
// because none of their tools were known.
func WithoutTools(servers []string) string {
	return "without the tools of ToolServer " + strings.Join(servers, ", ") + ", which had never been reached when the turn began"
}

func preparation(r *turn.Result) *v1alpha1.Preparation {
	if r.Preparation == nil {
		return nil
	}
	out := Report(r.Preparation, r.Provider, r.Model, r.MessageCount)
	out.ToolsLeftOut = toInt32(r.ToolsLeftOut)
	out.ToolServersMissing = r.ToolServersMissing[:min(len(r.ToolServersMissing), maxMissing)]
	return out
}

// Report returns the report of a preparation in the form of a status.
func Report(p *prepare.Report, provider, modelName string, messages int) *v1alpha1.Preparation {
	return &v1alpha1.Preparation{
		PromptProfile: v1alpha1.PromptProfileRevision{
			Name: p.Profile.Name, ID: p.Profile.ID, Version: p.Profile.Version, Generation: p.Profile.Generation,
		},
		Provider: provider, Model: modelName,
		PromptRenderHash: p.RenderHash, PromptHash: p.PromptHash, ContextHash: p.ContextHash,
		Mode: v1alpha1.PromptMode(p.Mode), Sections: p.Sections,
		StableChars: int64(p.StableChars), DynamicChars: int64(p.DynamicChars), ToolCount: toInt32(p.ToolCount),
		MessageCount: toInt32(messages),
		Expression:   expression(p.Expression), Provenance: provenance(p.Provenance),
	}
}

func expression(e turncontext.Expression) *v1alpha1.Expression {
	if e == (turncontext.Expression{}) {
		return nil
	}
	return &v1alpha1.Expression{
		Tone: e.Tone, Directness: v1alpha1.Level(e.Directness), Warmth: v1alpha1.Level(e.Warmth), Humor: v1alpha1.Humor(e.Humor),
		Initiative: v1alpha1.Level(e.Initiative), ExplanationDensity: v1alpha1.Level(e.ExplanationDensity),
	}
}

// maxProvenanceBytes bounds all lists of a provenance together, in bytes of JSON; the journal has the complete
// lists.
const maxProvenanceBytes = 20 << 10

// provenance returns the lists for a status, cut to the bounds of its schema and to maxProvenanceBytes together. It
// returns nil if all lists are empty.
func provenance(p turncontext.Provenance) *v1alpha1.Provenance {
	out := &v1alpha1.Provenance{}
	left, listed := maxProvenanceBytes, 0
	list := func(ids []string, most int) []string {
		var kept []string
		for _, id := range ids {
			encoded, err := json.Marshal(id)
			if left -= len(encoded) + 1; err != nil || left < 0 || len(kept) == most {
				out.Truncated = true
				break
			}
			kept = append(kept, id)
		}
		listed += len(kept)
		return kept
	}
	// The IDs that are in the prompt come first, so that they are cut last.
	out.UsedGuardrailIDs, out.UsedOverlayIDs = list(p.UsedGuardrailIDs, 64), list(p.UsedOverlayIDs, 96)
	out.UsedMemoryIDs, out.UsedEnrichmentIDs = list(p.UsedMemoryIDs, 10), list(p.UsedEnrichmentIDs, 8)
	out.DroppedMemoryIDs, out.DroppedEnrichmentIDs = list(p.DroppedMemoryIDs, 64), list(p.DroppedEnrichmentIDs, 64)
	if listed == 0 && !out.Truncated {
		return nil
	}
	return out
}

func result(r *turn.Result) *v1alpha1.TurnResult {
	out := &v1alpha1.TurnResult{
		Text: truncateJSON(r.Text, maxResultBytes), Bytes: int64(len(r.Text)), Preview: preview(r.Text),
	}
	out.Truncated = len(out.Text) < len(r.Text)
	out.Data = structuredAnswer(r.Data)
	if a := r.Answer; a != nil {
		out.Artifacts = []v1alpha1.Artifact{{Name: a.Name, Bytes: a.Bytes, SHA256: a.SHA256}}
	}
	if c := r.Record.Citations; len(c) > 0 {
		out.Citations = &v1alpha1.Citations{Local: c}
	}
	return out
}

func usage(r finalize.Record) *v1alpha1.Usage {
	u := &v1alpha1.Usage{
		InputTokens: r.Usage.InputTokens, OutputTokens: r.Usage.OutputTokens,
		TotalTokens:     r.Usage.InputTokens + r.Usage.OutputTokens,
		ReasoningTokens: r.Usage.ReasoningTokens, CacheReadTokens: r.Usage.CacheReadTokens,
		Estimated: r.Usage.Estimated,
	}
	if r.Cost != nil {
		u.Cost = &v1alpha1.Cost{Amount: r.Cost.Amount, Currency: r.Cost.Currency}
	}
	return u
}

// preview returns the beginning of a text on one line, without characters that are unsafe on a terminal.
func preview(text string) string {
	line := strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return -1
	}, strings.Join(strings.Fields(truncateBytes(strings.TrimSpace(text), 8*maxPreviewChars)), " "))
	if runes := []rune(line); len(runes) > maxPreviewChars {
		return string(runes[:maxPreviewChars-1]) + "…"
	}
	return line
}

// truncateBytes shortens a text to at most limit bytes, without splitting a character.
func truncateBytes(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	for limit > 0 && !utf8.RuneStart(text[limit]) {
		limit--
	}
	return text[:limit]
}

// truncateJSON shortens a text so that it takes at most limit bytes within a JSON string. JSON escapes some
// characters, such as control characters, with up to six bytes each.
func truncateJSON(text string, limit int) string {
	size := 0
	for at := 0; at < len(text); {
		r, width := utf8.DecodeRuneInString(text[at:])
		switch {
		case r == '"', r == '\\', r == '\b', r == '\f', r == '\n', r == '\r', r == '\t':
			size += 2
		case r < 0x20, r == '<', r == '>', r == '&', r == '\u2028', r == '\u2029', r == utf8.RuneError && width == 1:
			size += 6
		default:
			size += width
		}
		if size > limit {
			return text[:at]
		}
		at += width
	}
	return text
}

func toInt32(n int) int32 { return int32(min(max(n, 0), math.MaxInt32)) }
