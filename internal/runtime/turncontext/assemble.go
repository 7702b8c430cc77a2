package turncontext

import "slices"

// Input is the input of Assemble.
type Input struct {
	// TurnName is the ID of the session block if the session has no ID.
	TurnName string
	Identity Identity
	// Profile and Turn are the two layers of shaping. The Turn is applied after the profile.
	Profile, Turn Layer
	// TurnTrusted lets the texts of the Turn's layer instruct the model, as those of the profile do. If it is
	// false, these texts are wishes: the model receives them as data, and they cannot replace a text of the
	// profile.
	TurnTrusted bool
	// Session describes the conversation. It is nil if there is none.
	Session *Session
	// Memories are candidates. At most MaxMemories of them are used.
	Memories    []Memory
	MaxMemories int
	// Enrichments are candidates.
	Enrichments []Enrichment
	// Facts and Preferences are in the given order.
	Facts       []Fact
	Preferences []string
	// Data is JSON from the caller. It is empty if there is none.
	Data string
}

func (in Input) overlays() []Overlay { return slices.Concat(in.Profile.Overlays, in.Turn.Overlays) }

func (in Input) guardrails() []Guardrail {
	return slices.Concat(in.Profile.Guardrails, in.Turn.Guardrails)
}

// Assembly is the record of how the context of a Turn was composed. It marshals to JSON and back without loss.
type Assembly struct {
	Identity      IdentityReport `json:"identity"`
	Expression    Expression     `json:"expression"`
	ResponseStyle ResponseStyle  `json:"responseStyle,omitzero"`
	Segments      Segments       `json:"segments"`
	// Blocks are the pieces of context that the model receives.
	Blocks     []Block    `json:"blocks"`
	Provenance Provenance `json:"provenance"`
	// Dropped lists the items that were given but are not in the prompt, with the reasons.
	Dropped []Dropped `json:"dropped,omitempty"`
}

// IdentityReport describes the identity of the assistant.
type IdentityReport struct {
	AssistantName string `json:"assistantName,omitempty"`
	// TraitsApplied is true if the identity has traits.
	TraitsApplied bool `json:"traitsApplied"`
	// Summary lists the parts of the identity, such as voice:Concise.
	Summary []string `json:"summary"`
}

// Provenance lists the IDs of the parts of a prompt. The lists are never nil.
type Provenance struct {
	UsedMemoryIDs        []string `json:"usedMemoryIDs"`
	DroppedMemoryIDs     []string `json:"droppedMemoryIDs"`
	UsedEnrichmentIDs    []string `json:"usedEnrichmentIDs"`
	DroppedEnrichmentIDs []string `json:"droppedEnrichmentIDs"`
	UsedGuardrailIDs     []string `json:"usedGuardrailIDs"`
	UsedOverlayIDs       []string `json:"usedOverlayIDs"`
}

// Context is the part of an Input that the model receives.
type Context struct {
	Session     *Session
	Facts       []Fact
	Preferences []string
	// Enrichments and Memories are the selected ones, in order.
	Enrichments []Enrichment
	Memories    []Memory
	// Data is JSON from the caller. It is empty if there is none.
	Data string
}

// Assemble composes the context of a Turn, and the record of it. It is a pure function.
func Assemble(in Input) (Assembly, Context) {
	shown, provenance, dropped := choose(in)
	return Assembly{
		Identity: identity(in.Identity), Expression: expression(in),
		ResponseStyle: in.Profile.ResponseStyle.over(in.Turn.ResponseStyle),
		Segments:      segments(in), Blocks: blocks(in.TurnName, shown), Provenance: provenance, Dropped: dropped,
	}, shown
}

// WithoutInstructions returns the assembly for a prompt that has no section for the Turn's instructions. Such a prompt
// has no overlays, and only the guardrails of the profile. rules is the number of the profile's guardrails, which are
// the first of the used guardrails. The returned record lists the overlays, the other guardrails and the shaping as
// dropped for the given reason.
func (a Assembly) WithoutInstructions(reason string, rules int) Assembly {
	a.Dropped = slices.Clone(a.Dropped)
	for _, id := range a.Provenance.UsedOverlayIDs {
		a.Dropped = append(a.Dropped, Dropped{"overlay", id, reason})
	}
	for _, id := range a.Provenance.UsedGuardrailIDs[rules:] {
		a.Dropped = append(a.Dropped, Dropped{"guardrail", id, reason})
	}
	a.Provenance.UsedOverlayIDs, a.Provenance.UsedGuardrailIDs = []string{}, slices.Clone(a.Provenance.UsedGuardrailIDs[:rules])
	for _, s := range a.Segments.Developer {
		switch {
		case s.Source != shapingSource:
		case s.ID == segmentShapingMode:
			a.Dropped = append(a.Dropped, Dropped{"mode", segmentShapingMode, reason})
		case s.ID == segmentShapingTone:
			a.Dropped = append(a.Dropped, Dropped{"tone", segmentShapingTone, reason})
		}
	}
	if a.Expression.Line() != "" {
		a.Dropped = append(a.Dropped, Dropped{"expression", "expression", reason})
	}
	if a.ResponseStyle.Line() != "" {
		a.Dropped = append(a.Dropped, Dropped{"expression", "responseStyle", reason})
	}
	return a
}

// choose selects the content for the model, and records the outcome of each candidate.
func choose(in Input) (Context, Provenance, []Dropped) {
	var dropped []Dropped
	drop := func(kind, reason string) func(id string) {
		return func(id string) { dropped = append(dropped, Dropped{kind, id, reason}) }
	}
	remembered, blankMemories := partition(in.Memories, Memory.hasText)
	memories, memoriesOver := selectMemories(remembered, in.MaxMemories)
	each(memoriesOver, Memory.id, drop("memory", overCap))
	each(blankMemories, Memory.id, drop("memory", isBlank))
	forModels, excluded := partition(in.Enrichments, Enrichment.isForModels)
	enriching, blankEnrichments := partition(forModels, Enrichment.hasText)
	enrichments, over := selectEnrichments(enriching)
	each(over, Enrichment.id, drop("enrichment", overCap))
	each(excluded, Enrichment.id, drop("enrichment", notForModels))
	each(blankEnrichments, Enrichment.id, drop("enrichment", isBlank))
	facts, blankFacts := partition(in.Facts, Fact.hasText)
	each(blankFacts, Fact.id, drop("fact", isBlank))
	preferences, blankPreferences := partition(in.Preferences, hasText)
	each(blankPreferences, self, drop("preference", isBlank))
	overlays, blankOverlays := partition(in.overlays(), Overlay.hasText)
	each(blankOverlays, Overlay.id, drop("overlay", rendersBlank))
	guardrails, blankGuardrails := partition(in.guardrails(), Guardrail.hasText)
	each(blankGuardrails, Guardrail.id, drop("guardrail", rendersBlank))

	shown := Context{
		Session: in.Session, Facts: facts, Preferences: preferences, Enrichments: enrichments, Memories: memories,
		Data: in.Data,
	}
	return shown, Provenance{
		UsedMemoryIDs: ids(memories, Memory.id), DroppedMemoryIDs: ids(slices.Concat(memoriesOver, blankMemories), Memory.id),
		UsedEnrichmentIDs:    ids(enrichments, Enrichment.id),
		DroppedEnrichmentIDs: ids(slices.Concat(over, excluded, blankEnrichments), Enrichment.id),
		UsedGuardrailIDs:     ids(guardrails, Guardrail.id), UsedOverlayIDs: ids(overlays, Overlay.id),
	}, dropped
}

func self(text string) string { return text }

func (f Fact) id() string       { return f.ID }
func (m Memory) id() string     { return m.ID }
func (e Enrichment) id() string { return e.ID }
func (o Overlay) id() string    { return o.ID }
func (g Guardrail) id() string  { return g.ID }

func hasText(text string) bool         { return !blank(text) }
func (f Fact) hasText() bool           { return !blank(f.Text) }
func (m Memory) hasText() bool         { return !blank(m.Text) }
func (e Enrichment) hasText() bool     { return !blank(e.Content) }
func (e Enrichment) isForModels() bool { return e.Audience != AudienceProduct }
func (o Overlay) hasText() bool        { return !blank(o.Text) }
func (g Guardrail) hasText() bool      { return !blank(g.Rule) }

func each[T any](list []T, id func(T) string, do func(string)) {
	for _, item := range list {
		do(id(item))
	}
}

func ids[T any](list []T, id func(T) string) []string {
	all := make([]string, 0, len(list))
	each(list, id, func(s string) { all = append(all, s) })
	return all
}

// partition separates the items that satisfy a condition from the other items.
func partition[T any](list []T, condition func(T) bool) (matching, others []T) {
	for _, item := range list {
		if condition(item) {
			matching = append(matching, item)
		} else {
			others = append(others, item)
		}
	}
	return matching, others
}

// developerPromptPresent is the summary of an identity whose developer prompt is the first developer segment.
const developerPromptPresent = "base:developer-prompt-present"

func identity(i Identity) IdentityReport {
	r := IdentityReport{AssistantName: i.AssistantName, TraitsApplied: i.Traits != (Traits{}), Summary: []string{}}
	for _, s := range []struct{ name, value string }{
		{"name", i.AssistantName},
		{"voice", i.Traits.Voice},
		{"formality", i.Traits.Formality},
		{"proactivity", string(i.Traits.Proactivity)},
		{"risk-posture", i.Traits.RiskPosture},
	} {
		if s.value != "" {
			r.Summary = append(r.Summary, s.name+":"+s.value)
		}
	}
	if !blank(i.SystemPrompt) {
		r.Summary = append(r.Summary, "base:system-prompt-present")
	}
	if !blank(i.DeveloperPrompt) {
		r.Summary = append(r.Summary, developerPromptPresent)
	}
	return r
}
