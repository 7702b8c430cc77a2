package translate

import (
	"cmp"
	"encoding/json"
	"slices"
	"unicode/utf8"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/finalize"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
)

const (
	// maxCallsBytes bounds the calls in a status together, as JSON; the journal has them all.
	maxCallsBytes = 16 << 10
	// maxIDChars, maxNameChars and maxUserChars bound what the schema bounds in characters.
	maxIDChars, maxNameChars, maxUserChars = 128, 64, 256
)

// Progress writes into the status of a Turn what its runs have done by now.
func Progress(t *v1alpha1.Turn, p turn.Progress) {
	c := p.Counts
	t.Status.Steps = &v1alpha1.StepCounts{
		Count: count(c.Steps), ModelRequests: count(c.ModelRequests), ModelRetries: count(c.ModelRetries),
		ToolCalls: count(c.ToolCalls), ToolRepairs: count(c.ToolRepairs), ToolRetries: count(c.ToolRetries),
		Compactions: count(c.Compactions), Reflections: count(c.Reflections),
		UnknownOutcomes: count(c.UnknownOutcomes), Resumes: count(c.Resumes),
	}
	t.Status.ToolCalls = toolCalls(p.Calls)
	if p.Usage != (model.Usage{}) {
		t.Status.Usage = usage(finalize.Record{Usage: p.Usage, Cost: p.Cost})
	}
	if a := p.SubAgents; a != nil {
		t.Status.SubAgentUsage = usage(finalize.Record{Usage: a.Usage, Cost: a.Cost})
	}
	t.Status.PendingApprovals = slices.DeleteFunc(t.Status.PendingApprovals, func(a v1alpha1.PendingApproval) bool {
		return slices.ContainsFunc(p.Calls, func(c turn.CallRecord) bool {
			return count(c.Step) == a.Step && c.CallID == a.CallID && (c.Outcome != "" || c.DecidedBy != "")
		})
	})
}

// toolCalls are the newest calls, as many as a status may hold, oldest first.
func toolCalls(calls []turn.CallRecord) []v1alpha1.ToolCallRecord {
	var out []v1alpha1.ToolCallRecord
	left := maxCallsBytes
	for _, c := range slices.Backward(calls) {
		record := v1alpha1.ToolCallRecord{
			CallID: cutChars(c.CallID, maxIDChars), Name: cutChars(c.Name, maxNameChars), Step: count(c.Step),
			Outcome:              cmp.Or(v1alpha1.ToolCallOutcome(c.Outcome), v1alpha1.ToolCallPending),
			DurationMilliseconds: c.DurationMS, Bytes: c.Bytes, Artifact: cutChars(c.Artifact, maxIDChars), Turn: c.Turn,
			DecidedBy: cutChars(c.DecidedBy, maxUserChars),
		}
		encoded, err := json.Marshal(record)
		if left -= len(encoded) + 1; err != nil || left < 0 || len(out) == turn.MaxCalls {
			break
		}
		out = append(out, record)
	}
	slices.Reverse(out)
	return out
}

// data is a structured answer as a status has it; nil for one that is too long, or is none.
func data(answer json.RawMessage) *apiextensionsv1.JSON {
	if len(answer) == 0 || len(answer) > maxResultBytes || !json.Valid(answer) {
		return nil
	}
	return &apiextensionsv1.JSON{Raw: answer}
}

// cutChars shortens a text to at most so many characters.
func cutChars(text string, most int) string {
	if len(text) <= most || utf8.RuneCountInString(text) <= most {
		return text
	}
	return string([]rune(text)[:most])
}
