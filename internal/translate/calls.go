package translate

import (
	"cmp"
	"encoding/json"
	"slices"
	"unicode/utf8"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
)

const (
	// maxCallsBytes bounds all calls in a status together, in bytes of JSON; the journal has all calls.
	maxCallsBytes = 16 << 10
	// maxIDChars, maxNameChars and maxUserChars are bounds of the schema, in characters.
	maxIDChars, maxNameChars, maxUserChars = 128, 64, 256
)

// StepCounts returns the counts of a Turn's runs.
func StepCounts(c turn.Counts) *v1alpha1.StepCounts {
	return &v1alpha1.StepCounts{
		Count: toInt32(c.Steps), ModelRequests: toInt32(c.ModelRequests), ModelRetries: toInt32(c.ModelRetries),
		ToolCalls: toInt32(c.ToolCalls), ToolRepairs: toInt32(c.ToolRepairs), ToolRetries: toInt32(c.ToolRetries),
		Compactions: toInt32(c.Compactions), Reflections: toInt32(c.Reflections),
		UnknownOutcomes: toInt32(c.UnknownOutcomes), Resumes: toInt32(c.Resumes),
	}
}

// ToolCalls returns the newest calls, as many as a status may hold, oldest first.
func ToolCalls(calls []turn.CallRecord) []v1alpha1.ToolCallRecord {
	var out []v1alpha1.ToolCallRecord
	left := maxCallsBytes
	for _, c := range slices.Backward(calls) {
		record := v1alpha1.ToolCallRecord{
			CallID: truncateChars(c.CallID, maxIDChars), Name: truncateChars(c.Name, maxNameChars), Step: toInt32(c.Step),
			Outcome:              cmp.Or(v1alpha1.ToolCallOutcome(c.Outcome), v1alpha1.ToolCallPending),
			DurationMilliseconds: c.DurationMS, Bytes: c.Bytes, Artifact: truncateChars(c.Artifact, maxIDChars), Turn: c.Turn,
			DecidedBy: truncateChars(c.DecidedBy, maxUserChars),
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

// structuredAnswer returns a structured answer for a status, or nil if it is absent, too long or not JSON.
func structuredAnswer(answer json.RawMessage) *apiextensionsv1.JSON {
	if len(answer) == 0 || len(answer) > maxResultBytes || !json.Valid(answer) {
		return nil
	}
	return &apiextensionsv1.JSON{Raw: answer}
}

// truncateChars shortens a text to at most limit characters.
func truncateChars(text string, limit int) string {
	if len(text) <= limit || utf8.RuneCountInString(text) <= limit {
		return text
	}
	return string([]rune(text)[:limit])
}
