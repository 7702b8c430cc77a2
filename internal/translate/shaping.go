package translate

import (
	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/turncontext"
)

// shaping returns the shaping of a profile or a Turn in the form of the engine, without guardrails.
func shaping(s *v1alpha1.Shaping) turncontext.Layer {
	if s == nil {
		return turncontext.Layer{}
	}
	out := turncontext.Layer{Mode: s.Mode, Overlays: overlays(s.Overlays)}
	if e := s.Expression; e != nil {
		out.Expression = turncontext.Expression{
			Tone: e.Tone, Directness: turncontext.Level(e.Directness), Warmth: turncontext.Level(e.Warmth),
			Humor:      turncontext.Humor(e.Humor),
			Initiative: turncontext.Level(e.Initiative), ExplanationDensity: turncontext.Level(e.ExplanationDensity),
		}
	}
	if r := s.ResponseStyle; r != nil {
		out.ResponseStyle.PreferMarkdown = r.PreferMarkdown
		if r.MaxAnswerChars != nil {
			n := int(*r.MaxAnswerChars)
			out.ResponseStyle.MaxAnswerChars = &n
		}
	}
	return out
}

func overlays(list []v1alpha1.Overlay) []turncontext.Overlay {
	var out []turncontext.Overlay
	for _, o := range list {
		out = append(out, turncontext.Overlay{ID: o.ID, Source: o.Source, Text: o.Text, Priority: turncontext.Level(o.Priority)})
	}
	return out
}

func guardrails(list []v1alpha1.Guardrail) []turncontext.Guardrail {
	var out []turncontext.Guardrail
	for _, g := range list {
		out = append(out, turncontext.Guardrail{
			ID: g.ID, Source: g.Source, Rule: g.Rule, Priority: turncontext.Level(g.Priority), Kind: string(g.Kind),
		})
	}
	return out
}
