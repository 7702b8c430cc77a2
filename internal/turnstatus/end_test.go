package turnstatus_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/shopspring/decimal"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/finalize"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/prompt"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/runtime/turncontext"
	"github.com/capstan-dev/capstan/internal/translate"
	"github.com/capstan-dev/capstan/internal/turnstatus"
)

var now = time.Date(2026, 6, 11, 15, 4, 5, 123456000, time.UTC)

// bound returns a Turn that has been running for 1.5 s, in its third epoch.
func bound() *v1alpha1.Turn {
	start := metav1.NewMicroTime(now.Add(-1500 * time.Millisecond))
	t := &v1alpha1.Turn{
		ObjectMeta: metav1.ObjectMeta{Generation: 7},
		Status:     v1alpha1.TurnStatus{StartTime: &start, Executor: &v1alpha1.ExecutorBinding{Name: "e", Epoch: 3}},
	}
	// StayParked only writes the conditions of a Turn that has not ended. Bind would also change the epoch and the
	// start.
	turnstatus.StayParked(t, v1alpha1.TurnReasonRunning, "running", nil, now.Add(-time.Second))
	return t
}

// conditions returns the conditions of a status as type=status/reason.
func conditions(t *v1alpha1.Turn) []string {
	var all []string
	for _, c := range t.Status.Conditions {
		all = append(all, c.Type+"="+string(c.Status)+"/"+c.Reason)
		if c.ObservedGeneration != t.Generation {
			all = append(all, c.Type+" has another generation")
		}
	}
	return all
}

func TestFinishConditions(t *testing.T) {
	failed := func(reason string) []string {
		return []string{
			"Succeeded=False/" + reason, "Stalled=True/" + reason, "Prepared=True/Prepared",
			"Executed=False/" + reason, "Finalized=True/Finalized",
		}
	}
	for stop, tc := range map[turn.Stop]struct {
		unprepared bool
		want       []string
	}{
		turn.StopCompleted: {false, []string{
			"Succeeded=True/Completed", "Prepared=True/Prepared",
			"Executed=True/Completed", "Finalized=True/Finalized",
		}},
		turn.StopToolEnded: {false, []string{
			"Succeeded=True/Completed", "Prepared=True/Prepared",
			"Executed=True/Completed", "Finalized=True/Finalized",
		}},
		turn.StopOutputInvalid:   {false, failed("OutputInvalid")},
		turn.StopPrepared:        {false, []string{"Succeeded=True/Prepared", "Prepared=True/Prepared", "Finalized=True/Finalized"}},
		turn.StopMaxSteps:        {false, failed("StepLimitExceeded")},
		turn.StopBudget:          {false, failed("BudgetExceeded")},
		turn.StopMaxOutputTokens: {false, failed("OutputInvalid")},
		turn.StopOutputPolicy:    {false, failed("PolicyViolated")},
		turn.StopContentFilter:   {false, failed("PolicyViolated")},
		turn.StopContextLength:   {false, failed("ContextLimitExceeded")},
		turn.StopModelError:      {false, failed("ModelFailed")},
		turn.StopDeadline:        {false, failed("DeadlineExceeded")},
		turn.StopCancelled:       {false, failed("Cancelled")},
		"ofANewerVersion":        {false, failed("ModelFailed")},
		turn.StopPreparationError: {true, []string{
			"Succeeded=False/PreparationFailed", "Stalled=True/PreparationFailed",
			"Prepared=False/PreparationFailed", "Finalized=True/Finalized",
		}},
	} {
		t.Run(string(stop), func(t *testing.T) {
			got := bound()
			r := &turn.Result{Stop: stop, Message: "so it ended"}
			if !tc.unprepared {
				r.Preparation = &prepare.Report{}
			}
			turnstatus.Finish(got, r, now)
			if diff := cmp.Diff(tc.want, conditions(got)); diff != "" {
				t.Errorf("conditions: -want +got:\n%s", diff)
			}
			if got.Status.StopReason != v1alpha1.StopReason(stop) || got.Status.Conditions[0].Message != "so it ended" {
				t.Errorf("stopReason %q, message %q; want %q, so it ended", got.Status.StopReason, got.Status.Conditions[0].Message, stop)
			}
			if !got.IsFinished() || *got.Status.DurationMilliseconds != 1500 || !got.Status.CompletionTime.Time.Equal(now) {
				t.Errorf("finished %t after %d ms at %s, want true after 1500 at %s", got.IsFinished(),
					*got.Status.DurationMilliseconds, got.Status.CompletionTime, now)
			}
		})
	}
}

func TestFinishStatus(t *testing.T) {
	got := bound()
	turnstatus.Finish(got, &turn.Result{
		Stop: turn.StopCompleted, Message: "the model answered", Provider: "openai", Model: "small", MessageCount: 4, Text: "An\nanswer.",
		Counts: turn.Counts{
			Steps: 1, ModelRequests: 3, ModelRetries: 2, ToolCalls: 5, UnknownOutcomes: 1, Resumes: 4,
			ToolRepairs: 6, ToolRetries: 7, Compactions: 8, Reflections: 9,
		},
		Calls: []turn.CallRecord{
			{CallID: "c1", Name: "search", Outcome: "Succeeded", DurationMS: 12, Bytes: 13, Artifact: "call-1-1"},
			{CallID: "c2", Name: "ask", Step: 1, Turn: "child"},
			{CallID: "c3", Name: "delete", Step: 2, Outcome: "Refused", DecidedBy: "jane"},
		},
		ToolsLeftOut: 3, ToolServersMissing: []string{"wiki"}, Data: json.RawMessage(`{"a":1}`),
		SubAgents: &turn.SubAgents{Usage: model.Usage{InputTokens: 7, OutputTokens: 1}, Cost: &finalize.Cost{Amount: "2", Currency: "USD"}},
		Spent: []turn.Spent{
			{Provider: "openai", Model: "small", Price: turn.PriceListed, PriceDate: "2026-07-01"},
			{Provider: "own", Model: "large", Price: turn.PriceDeclared},
			{Provider: "old", Model: "older version"},
		},
		Answer: &turn.Artifact{Name: "answer.txt", SHA256: "s", Bytes: 9}, Session: &turn.SessionPosition{Name: "talk", Number: 8},
		Preparation: &prepare.Report{
			Report: prompt.Report{
				Mode: prompt.Task, StableChars: 5, DynamicChars: 6, Sections: []string{"agent"},
				ToolCount: 3, PromptHash: "p", RenderHash: "r",
			},
			ContextHash: "c", Expression: turncontext.Expression{
				Tone: "dry", Directness: "High", Warmth: "Low",
				Humor: "Off", Initiative: "Medium", ExplanationDensity: "Low",
			},
			Provenance: turncontext.Provenance{
				UsedMemoryIDs: []string{"m1"}, DroppedMemoryIDs: []string{"m2"}, UsedEnrichmentIDs: []string{"e1"},
				DroppedEnrichmentIDs: []string{"e2"},
				UsedGuardrailIDs:     []string{"g"}, UsedOverlayIDs: []string{},
			},
			Profile: prepare.Revision{Name: "support", ID: "support.default", Version: "1.0.0", Generation: 2},
		},
		Record: finalize.Record{
			Citations: []string{"a.md"}, Usage: model.Usage{InputTokens: 10, OutputTokens: 5, ReasoningTokens: 2, CacheReadTokens: 3},
			Cost: &finalize.Cost{Amount: "0.1", Currency: "USD"}, Failures: []string{"cost: odd", "decision: odder"},
			Decision: &finalize.Decision{
				Key: "k", Strategy: "ToolAssisted", ToolsUsed: []string{"ask", "search"},
				PromptRenderHash: "r", ContextHash: "c",
			},
		},
	}, now)
	want := v1alpha1.TurnStatus{
		StopReason: "Completed", ObservedGeneration: 7,
		Preparation: &v1alpha1.Preparation{
			PromptProfile: v1alpha1.PromptProfileRevision{Name: "support", ID: "support.default", Version: "1.0.0", Generation: 2},
			Provider:      "openai", Model: "small", PromptRenderHash: "r", PromptHash: "p", ContextHash: "c",
			Mode: "Task", Sections: []string{"agent"}, StableChars: 5, DynamicChars: 6, ToolCount: 3, ToolsLeftOut: 3,
			ToolServersMissing: []string{"wiki"}, MessageCount: 4,
			Expression: &v1alpha1.Expression{
				Tone: "dry", Directness: "High", Warmth: "Low", Humor: "Off",
				Initiative: "Medium", ExplanationDensity: "Low",
			},
			Provenance: &v1alpha1.Provenance{
				UsedMemoryIDs: []string{"m1"}, DroppedMemoryIDs: []string{"m2"}, UsedEnrichmentIDs: []string{"e1"},
				DroppedEnrichmentIDs: []string{"e2"},
				UsedGuardrailIDs:     []string{"g"},
			},
		},
		Steps: &v1alpha1.StepCounts{
			Count: 1, ModelRequests: 3, ModelRetries: 2, ToolCalls: 5, UnknownOutcomes: 1, Resumes: 4,
			ToolRepairs: 6, ToolRetries: 7, Compactions: 8, Reflections: 9,
		},
		ToolCalls: []v1alpha1.ToolCallRecord{
			{CallID: "c1", Name: "search", Outcome: "Succeeded", DurationMilliseconds: 12, Bytes: 13, Artifact: "call-1-1"},
			{CallID: "c2", Name: "ask", Step: 1, Outcome: "Pending", Turn: "child"},
			{CallID: "c3", Name: "delete", Step: 2, Outcome: "Refused", DecidedBy: "jane"},
		},
		SubAgentUsage: &v1alpha1.Usage{InputTokens: 7, OutputTokens: 1, TotalTokens: 8, Cost: &v1alpha1.Cost{Amount: "2", Currency: "USD"}},
		Prices: []v1alpha1.UsedPrice{
			{Provider: "openai", Model: "small", Source: "ListPrice", Date: "2026-07-01"},
			{Provider: "own", Model: "large", Source: "ModelProvider"},
		},
		Result: &v1alpha1.TurnResult{
			Data: &apiextensionsv1.JSON{Raw: []byte(`{"a":1}`)},
			Text: "An\nanswer.", Bytes: 10, Preview: "An answer.",
			Artifacts: []v1alpha1.Artifact{{Name: "answer.txt", SHA256: "s", Bytes: 9}},
			Citations: &v1alpha1.Citations{Local: []string{"a.md"}},
		},
		Usage: &v1alpha1.Usage{
			InputTokens: 10, OutputTokens: 5, TotalTokens: 15, ReasoningTokens: 2,
			CacheReadTokens: 3, Cost: &v1alpha1.Cost{Amount: "0.1", Currency: "USD"},
		},
		Decision: &v1alpha1.Decision{
			Key: "k", Strategy: "ToolAssisted", ToolsUsed: []string{"ask", "search"},
			PromptRenderHash: "r", ContextHash: "c", SessionName: "talk", TurnNumber: 8,
		},
	}
	s := got.Status
	finalized := s.Conditions[len(s.Conditions)-1]
	if finalized.Reason != "PartiallyFinalized" || finalized.Message != "these steps failed: cost: odd; decision: odder" {
		t.Errorf("Finalized is %s: %q, want the steps that failed", finalized.Reason, finalized.Message)
	}
	s.Conditions, s.Executor, s.StartTime, s.CompletionTime, s.DurationMilliseconds = nil, nil, nil, nil, nil
	if diff := cmp.Diff(want, s); diff != "" {
		t.Errorf("status: -want +got:\n%s", diff)
	}
}

// TestKnownCostOfASubAgent checks that the known part of a cost is in the status of a sub-agent's Turn, from which its
// caller counts it.
func TestKnownCostOfASubAgent(t *testing.T) {
	used := model.Usage{InputTokens: 10}
	got := bound()
	turnstatus.Finish(got, &turn.Result{
		Stop: turn.StopCompleted, Record: finalize.Record{Usage: used, KnownCost: decimal.RequireFromString("0.5")},
		SubAgents: &turn.SubAgents{Usage: used, KnownCost: decimal.RequireFromString("0.25")},
	}, now)
	partly := func(known string) *v1alpha1.Usage {
		return &v1alpha1.Usage{InputTokens: 10, TotalTokens: 10, CostUnknown: true, KnownCost: known}
	}
	want, both := []*v1alpha1.Usage{partly("0.5"), partly("0.25")}, []*v1alpha1.Usage{got.Status.Usage, got.Status.SubAgentUsage}
	if diff := cmp.Diff(want, both); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if spent := translate.SubAgentUsage(got); spent.KnownCost().String() != "0.75" {
		t.Errorf("the caller counts %s, want 0.75", spent.KnownCost())
	}
}

func TestResultText(t *testing.T) {
	const maxText = 32 << 10
	for name, tc := range map[string]struct {
		reason, text string
		kept         int // bytes
	}{
		"fits":            {"a text of the maximum size is kept whole", strings.Repeat("x", maxText), maxText},
		"one more":        {"one byte more is cut", strings.Repeat("x", maxText+1), maxText},
		"between letters": {"a character is not split", "x" + strings.Repeat("ü", maxText/2), maxText - 1},
		"wide characters": {"a character of any width is not split", strings.Repeat("🙂", maxText), maxText},
		"line feeds":      {"a line feed takes two bytes in JSON", strings.Repeat("\n", maxText), maxText / 2},
		"quotes":          {"a quote takes two bytes, too", strings.Repeat(`"`, maxText), maxText / 2},
		"control":         {"a control character takes six bytes", strings.Repeat("\x01", maxText), maxText / 6},
		"HTML":            {"a character with a meaning in HTML takes six bytes", strings.Repeat("<", maxText), maxText / 6},
		"line separators": {"a line separator of three bytes takes six", strings.Repeat("\u2028", maxText), maxText / 6 * 3},
		"not UTF-8":       {"a byte that is not UTF-8 takes six bytes", strings.Repeat("\xff", maxText), maxText / 6},
		"replaced bytes":  {"the replacement character takes three bytes", strings.Repeat("\uFFFD", maxText), maxText / 3 * 3},
		"mostly good text": {
			"hostile characters count with their escaped length",
			strings.Repeat("x", maxText-6) + "\x01\x01", maxText - 5,
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := finished(tc.text).Status.Result
			if got.Text != tc.text[:tc.kept] {
				t.Errorf("kept %d of %d bytes, want %d: %s", len(got.Text), len(tc.text), tc.kept, tc.reason)
			}
			if got.Truncated != (tc.kept < len(tc.text)) || got.Bytes != int64(len(tc.text)) {
				t.Errorf("truncated %t, %d bytes; want %t, %d", got.Truncated, got.Bytes, tc.kept < len(tc.text), len(tc.text))
			}
			data, err := json.Marshal(got.Text)
			if err != nil || len(data)-2 > maxText {
				t.Errorf("the text takes %d bytes as JSON (error %v), want at most %d", len(data)-2, err, maxText)
			}
		})
	}
}

func finished(text string) *v1alpha1.Turn {
	t := bound()
	turnstatus.Finish(t, &turn.Result{Stop: turn.StopCompleted, Text: text}, now)
	return t
}

func TestPreview(t *testing.T) {
	for name, tc := range map[string]struct{ reason, text, want string }{
		"one line":      {"line feeds and runs of white space are one space", "  One\n\n two\tthree ", "One two three"},
		"exact":         {"80 characters fit", strings.Repeat("ü", 80), strings.Repeat("ü", 80)},
		"longer":        {"a longer text is cut, with a mark", strings.Repeat("ü", 81), strings.Repeat("ü", 79) + "…"},
		"terminal":      {"characters that move a cursor are removed", "a\x1b[31mb\u202ec\u200bd\x00", "a[31mbcd"},
		"blank start":   {"white space before the answer is skipped", strings.Repeat("\n", 5000) + "Here.", "Here."},
		"wide and long": {"characters count, not bytes", strings.Repeat("🙂", 9000), strings.Repeat("🙂", 79) + "…"},
	} {
		t.Run(name, func(t *testing.T) {
			got := finished(tc.text).Status.Result.Preview
			if diff := cmp.Diff(tc.want, got); diff != "" || utf8.RuneCountInString(got) > 80 {
				t.Errorf("%s: -want +got:\n%s", tc.reason, diff)
			}
		})
	}
}

// TestFinishNamesMissingToolServers checks the message of the condition Prepared.
func TestFinishNamesMissingToolServers(t *testing.T) {
	for want, missing := range map[string][]string{
		"the prompt was prepared": nil,
		"the prompt was prepared, but without the tools of ToolServer a, which had never been reached when the turn began":     {"a"},
		"the prompt was prepared, but without the tools of ToolServers a, b, which had never been reached when the turn began": {"a", "b"},
	} {
		got := bound()
		r := &turn.Result{Stop: turn.StopCompleted, Preparation: &prepare.Report{}, ToolServersMissing: missing}
		turnstatus.Finish(got, r, now)
		if c := meta.FindStatusCondition(got.Status.Conditions, v1alpha1.ConditionPrepared); c == nil || c.Message != want {
			t.Errorf("with the missing ToolServers %q, the condition is %+v, want the message %q", missing, c, want)
		}
	}
}

func TestFinishReportsLostHistory(t *testing.T) {
	got := bound()
	turnstatus.Finish(got, &turn.Result{Stop: turn.StopCompleted, Preparation: &prepare.Report{}, MissingTurns: 3}, now)
	if c := meta.FindStatusCondition(got.Status.Conditions, v1alpha1.ConditionHistoryComplete); c == nil ||
		c.Status != metav1.ConditionFalse || c.Reason != v1alpha1.ReasonHistoryLost || !strings.Contains(c.Message, "3 earlier turns") {
		t.Errorf("condition %+v, want the number of turns whose history was lost", c)
	}
}

func TestFinishWithoutAnswer(t *testing.T) {
	got := bound()
	turnstatus.Finish(got, &turn.Result{Stop: turn.StopDeadline}, now)
	if s := got.Status; s.Result != nil || s.Usage != nil || s.Decision != nil || s.Preparation != nil {
		t.Errorf("status %+v has fields without a value", s)
	}
}

func TestMessagesAreBounded(t *testing.T) {
	got := bound()
	long := "x" + strings.Repeat("ü", 4000)
	turnstatus.End(got, v1alpha1.TurnReasonInvalidSpec, long, now)
	for _, c := range got.Status.Conditions {
		if c.Message != long[:2047] {
			t.Errorf("%s has a message of %d bytes, want 2047: 2 KiB at most, between characters", c.Type, len(c.Message))
		}
	}
	turnstatus.Wait(got, v1alpha1.TurnReasonPending, long, 0, now)
	if n := len(got.Status.Conditions[0].Message); n != 2047 {
		t.Errorf("a waiting Turn has a message of %d bytes, want 2047", n)
	}
}

func TestEndWithoutStart(t *testing.T) {
	got := &v1alpha1.Turn{}
	turnstatus.End(got, v1alpha1.TurnReasonDeadlineExceeded, "never started", now)
	if got.Status.DurationMilliseconds != nil || got.Status.CompletionTime == nil {
		t.Errorf("duration %v and completion %v, want no duration: the Turn never ran", got.Status.DurationMilliseconds,
			got.Status.CompletionTime)
	}
	future := metav1.NewMicroTime(now.Add(time.Second))
	got.Status.StartTime = &future
	turnstatus.End(got, v1alpha1.TurnReasonDeadlineExceeded, "clocks differ", now)
	if *got.Status.DurationMilliseconds != 0 {
		t.Errorf("duration %d, want 0 even if clocks differ", *got.Status.DurationMilliseconds)
	}
}

// TestEndWithoutRun checks the stop reason, and that a binding and an unfinished preparation end with the Turn.
func TestEndWithoutRun(t *testing.T) {
	for reason, want := range map[string]v1alpha1.StopReason{
		v1alpha1.TurnReasonCancelled:        v1alpha1.StopCancelled,
		v1alpha1.TurnReasonDeadlineExceeded: v1alpha1.StopDeadline,
		v1alpha1.TurnReasonInvalidSpec:      v1alpha1.StopInvalidSpec,
		v1alpha1.TurnReasonSessionClosed:    v1alpha1.StopSessionClosed,
		v1alpha1.TurnReasonQueueFull:        v1alpha1.StopQueueFull,
		"OfANewerVersion":                   "",
	} {
		got := bound()
		got.Status.Conditions = append(got.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionPrepared})
		turnstatus.End(got, reason, "so it ended", now)
		if diff := cmp.Diff([]string{"Succeeded=False/" + reason, "Stalled=True/" + reason}, conditions(got)); diff != "" {
			t.Errorf("conditions: -want +got:\n%s", diff)
		}
		if s := got.Status; s.StopReason != want || s.Executor.Name != "" || s.Executor.Epoch != 3 {
			t.Errorf("%s: stopReason %q and executor %+v, want %q and no executor in epoch 3", reason, s.StopReason, s.Executor, want)
		}
	}
}
