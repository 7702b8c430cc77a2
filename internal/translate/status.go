package translate

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/shopspring/decimal"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/cut"
	"github.com/capstan-dev/capstan/internal/runtime/finalize"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/runtime/turncontext"
)

// maxMissing is the maximum number of names in toolServersMissing.
const maxMissing = 16

const (
	// maxResultBytes bounds the answer in a status, in bytes of JSON; the journal has the whole answer.
	maxResultBytes = 32 << 10
	// maxPreviewChars bounds the preview that kubectl prints.
	maxPreviewChars = 80
)

// PreparationOf returns the report of a run's preparation, or nil if there was none.
func PreparationOf(r *turn.Result) *v1alpha1.Preparation {
	if r.Preparation == nil {
		return nil
	}
	out := PreparationStatus(r.Preparation, r.Provider, r.Model, r.MessageCount)
	out.ToolsLeftOut = toInt32(r.ToolsLeftOut)
	out.ToolServersMissing = r.ToolServersMissing[:min(len(r.ToolServersMissing), maxMissing)]
	return out
}

// PreparationStatus returns the report of a preparation in the form of a status.
func PreparationStatus(p *prepare.Report, provider, modelName string, messages int) *v1alpha1.Preparation {
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

// maxToneChars is the maximum number of characters of a tone in the schema.
const maxToneChars = 128

func expression(e turncontext.Expression) *v1alpha1.Expression {
	if e == (turncontext.Expression{}) {
		return nil
	}
	return &v1alpha1.Expression{
		// A replacement of the redaction may be longer than the text that it replaces.
		Tone:       cut.Chars(e.Tone, maxToneChars, ""),
		Directness: v1alpha1.Level(e.Directness), Warmth: v1alpha1.Level(e.Warmth), Humor: v1alpha1.Humor(e.Humor),
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

// ResultOf returns the answer of a run, within the bounds of a status. It returns nil if there is no answer.
func ResultOf(r *turn.Result) *v1alpha1.TurnResult {
	if r.Text == "" {
		return nil
	}
	out := &v1alpha1.TurnResult{
		Text: TruncateJSON(r.Text, maxResultBytes), Bytes: int64(len(r.Text)), Preview: preview(r.Text),
	}
	out.Truncated = len(out.Text) < len(r.Text)
	out.Data = structuredAnswer(r.Data)
	if a := r.Answer; a != nil {
		out.Artifacts = []v1alpha1.Artifact{{Name: a.Name, Bytes: a.Bytes, SHA256: a.SHA256}}
	}
	out.Citations = citationsOf(&r.Record)
	return out
}

// maxCitationsBytes bounds the citations of a status, in bytes of JSON.
const maxCitationsBytes = 16 << 10

// citationsOf returns the sources of an answer, or nil if it has none. If they are too long together for a status, it
// leaves out the last web pages, and then the last local sources. The journal has all.
func citationsOf(r *finalize.Record) *v1alpha1.Citations {
	out := &v1alpha1.Citations{Local: r.Citations}
	for _, p := range r.WebCitations {
		out.Web = append(out.Web, v1alpha1.WebCitation{Title: p.Title, URL: p.URL})
	}
	for {
		text, err := json.Marshal(out)
		switch {
		case err != nil, len(out.Local)+len(out.Web) == 0:
			return nil
		case len(text) <= maxCitationsBytes:
			return out
		case len(out.Web) > 0:
			out.Web = out.Web[:len(out.Web)-1]
		default:
			out.Local = out.Local[:len(out.Local)-1]
		}
	}
}

// maxViolations bounds the policy violations in a status.
const maxViolations = 8

// PolicyViolations returns the output policies that the newest answer of a run violates or could not be checked
// against.
func PolicyViolations(r *turn.Result) []v1alpha1.PolicyViolation {
	var out []v1alpha1.PolicyViolation
	for _, v := range r.Violations[:min(len(r.Violations), maxViolations)] {
		out = append(out, v1alpha1.PolicyViolation{
			Policy: v.Policy, OnViolation: v1alpha1.ViolationAction(v.OnViolation), Unchecked: v.Unchecked,
		})
	}
	return out
}

// DecisionOf returns the record of how a run reached its end, or nil if there is none.
func DecisionOf(r *turn.Result) *v1alpha1.Decision {
	d := r.Record.Decision
	if d == nil {
		return nil
	}
	out := &v1alpha1.Decision{
		Key: d.Key, Strategy: v1alpha1.Strategy(d.Strategy), PromptRenderHash: d.PromptRenderHash, ContextHash: d.ContextHash,
		ToolsUsed: d.ToolsUsed,
	}
	if p := r.Session; p != nil {
		out.SessionName, out.TurnNumber = p.Name, p.Number
	}
	return out
}

// Usage returns a usage with its cost. If cost is nil, known is the known part of the cost.
func Usage(u model.Usage, cost *finalize.Cost, known decimal.Decimal) *v1alpha1.Usage {
	out := &v1alpha1.Usage{
		InputTokens: u.InputTokens, OutputTokens: u.OutputTokens, TotalTokens: u.InputTokens + u.OutputTokens,
		ReasoningTokens: u.ReasoningTokens, CacheReadTokens: u.CacheReadTokens,
		CacheCreationTokens: u.CacheCreationTokens, Estimated: u.Estimated,
	}
	switch {
	case cost != nil:
		out.Cost = &v1alpha1.Cost{Amount: cost.Amount, Currency: cost.Currency}
	case known.IsPositive():
		out.KnownCost = known.String()
	}
	out.CostUnknown = cost == nil && out.TotalTokens > 0
	return out
}

// maxPrices bounds the models with prices in a status.
const maxPrices = 8

// Prices returns the sources of the prices of models that were asked, at most 8.
func Prices(spent []turn.Spent) []v1alpha1.UsedPrice {
	var out []v1alpha1.UsedPrice
	for _, s := range spent {
		if s.Price != "" && len(out) < maxPrices {
			out = append(out, v1alpha1.UsedPrice{
				Provider: s.Provider, Model: s.Model, Source: v1alpha1.PriceSource(s.Price), Date: s.PriceDate,
			})
		}
	}
	return out
}

// preview returns the beginning of a text on one line, without characters that are unsafe on a terminal.
func preview(text string) string {
	line := strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return -1
	}, strings.Join(strings.Fields(cut.Bytes(strings.TrimSpace(text), 8*maxPreviewChars)), " "))
	return cut.Chars(line, maxPreviewChars, "…")
}

// TruncateJSON shortens a text so that it takes at most limit bytes within a JSON string. JSON escapes some
// characters, such as control characters, with up to six bytes each.
func TruncateJSON(text string, limit int) string {
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
			CallID: cut.Chars(c.CallID, maxIDChars, ""), Name: cut.Chars(c.Name, maxNameChars, ""), Step: toInt32(c.Step),
			Outcome:              cmp.Or(v1alpha1.ToolCallOutcome(c.Outcome), v1alpha1.ToolCallPending),
			DurationMilliseconds: c.DurationMS, Bytes: c.Bytes, Artifact: cut.Chars(c.Artifact, maxIDChars, ""), Turn: c.Turn,
			DecidedBy: cut.Chars(c.DecidedBy, maxUserChars, ""),
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

// Summary returns one line about a Turn that has ended: its reason, strategy, usage and time. The line contains no
// text of the Turn.
func Summary(t *v1alpha1.Turn) string {
	s := t.StateReason()
	if d := t.Status.Decision; d != nil && d.Strategy != "" {
		s += fmt.Sprintf(", strategy %s", d.Strategy)
	}
	if u := t.Status.Usage; u != nil {
		s += fmt.Sprintf(", %d tokens", u.TotalTokens)
		if u.Estimated {
			s += " (partly estimated)"
		}
		if u.Cost != nil {
			s += fmt.Sprintf(", cost %s %s", u.Cost.Amount, u.Cost.Currency)
		}
	}
	if ms := t.Status.DurationMilliseconds; ms != nil {
		s += fmt.Sprintf(", %.1f s", float64(*ms)/1000)
	}
	return s
}

// EndNote returns the note of the Event at the end of a Turn: its summary and, if the Turn failed, its message.
func EndNote(t *v1alpha1.Turn) string {
	note := Summary(t)
	c := meta.FindStatusCondition(t.Status.Conditions, v1alpha1.ConditionSucceeded)
	if c != nil && c.Status == metav1.ConditionFalse && c.Reason != v1alpha1.TurnReasonCancelled && c.Message != "" {
		note += ": " + c.Message
	}
	return note
}
