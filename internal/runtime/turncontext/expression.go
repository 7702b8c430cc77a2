package turncontext

import (
	"cmp"
	"strings"
)

// DefaultExpression returns the expression that applies if nothing else is given.
func DefaultExpression() Expression {
	return Expression{Directness: Medium, Warmth: Medium, Humor: HumorLight, Initiative: Medium, ExplanationDensity: Medium}
}

// expression combines everything that affects the expression. A later layer overrides an earlier one, field by
// field.
func expression(in Input) Expression {
	e := fromTraits(in.Identity.Traits)
	turn := in.Turn.Expression
	if !in.TurnTrusted {
		turn.Tone = "" // the tone is the only free text, so it is a wish
	}
	e = e.over(in.Profile.Expression).over(turn)
	if in.Session != nil && in.Session.Momentum == Low && e.ExplanationDensity == Low {
		e.ExplanationDensity = Medium // a stalled conversation needs more explanation, whichever layer asked for less
	}
	e = DefaultExpression().over(e)
	for _, g := range in.guardrails() {
		if !blank(g.Rule) {
			e.Humor = capHumor(e.Humor, g)
		}
	}
	return e
}

// fromTraits returns the expression that follows from the traits of an identity.
func fromTraits(t Traits) Expression {
	e := Expression{Initiative: t.Proactivity}
	switch t.Voice {
	case "":
	case VoiceConcise:
		e.Directness, e.ExplanationDensity = High, Low
	case VoiceVerbose:
		e.Directness, e.ExplanationDensity = Low, High
	case VoiceBalanced:
		e.Directness, e.ExplanationDensity = Medium, Medium
	default:
		e.ExplanationDensity = Medium
	}
	switch t.Formality {
	case FormalityFormal, FormalityProfessional, FormalityAcademic:
		e.Warmth, e.Humor = Medium, HumorLight
	case FormalityCasual:
		e.Warmth, e.Humor = High, HumorNormal
	case FormalityFriendly:
		e.Warmth, e.Humor = High, HumorLight
	}
	return e
}

// over returns the expression with the fields that a later layer sets.
func (e Expression) over(later Expression) Expression {
	if blank(later.Tone) {
		later.Tone = ""
	}
	return Expression{
		Tone:               cmp.Or(later.Tone, e.Tone),
		Directness:         cmp.Or(later.Directness, e.Directness),
		Warmth:             cmp.Or(later.Warmth, e.Warmth),
		Humor:              cmp.Or(later.Humor, e.Humor),
		Initiative:         cmp.Or(later.Initiative, e.Initiative),
		ExplanationDensity: cmp.Or(later.ExplanationDensity, e.ExplanationDensity),
	}
}

// capHumor lowers humor as a guardrail of tone or sensitivity requires. It never raises humor.
func capHumor(h Humor, g Guardrail) Humor {
	switch {
	case g.Kind != GuardrailTone && g.Kind != GuardrailSensitivity:
		return h
	case g.Priority == High:
		return HumorOff
	case h == HumorNormal:
		return HumorLight
	}
	return h
}

// Line returns the expression as one line for the model. It is empty if all fields have their defaults.
func (e Expression) Line() string {
	e.Tone = line(e.Tone)
	if e == DefaultExpression() || e == (Expression{}) {
		return ""
	}
	var parts []string
	for _, p := range []struct{ name, value string }{
		{"tone", e.Tone},
		{"directness", lower(e.Directness)},
		{"warmth", lower(e.Warmth)},
		{"humor", lower(e.Humor)},
		{"initiative", lower(e.Initiative)},
		{"explanation density", lower(e.ExplanationDensity)},
	} {
		if p.value != "" {
			parts = append(parts, p.name+" "+p.value)
		}
	}
	return "Style of expression: " + strings.Join(parts, ", ") + "."
}

func lower[T ~string](word T) string { return strings.ToLower(string(word)) }
