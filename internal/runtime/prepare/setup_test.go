package prepare_test

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/prompt"
	"github.com/capstan-dev/capstan/internal/runtime/turncontext"
)

var at = time.Date(2026, 6, 11, 15, 4, 5, 0, time.UTC)

// input returns the smallest valid input, changed by mutate.
func input(mutate ...func(*prepare.Input)) prepare.Input {
	in := prepare.Input{
		Agent: prepare.Agent{Name: "helper", MaxMemories: 10},
		Profile: prepare.Profile{
			Name: "support", ID: "support.default", Version: "1.2.3", Generation: 4,
			Identity: &turncontext.Identity{SystemPrompt: "Be brief."},
		},
		Turn:     prepare.Turn{Name: "first", Namespace: "demo", Message: "What is new?"},
		Provider: "openai", Model: "small", Now: at,
	}
	for _, m := range mutate {
		m(&in)
	}
	return in
}

func mustPrepare(t testing.TB, in prepare.Input) *prepare.Prepared {
	t.Helper()
	p, err := prepare.Prepare(in)
	if err != nil {
		t.Fatalf("Prepare: %v", err)
	}
	return p
}

// content returns the content of the first message with this name.
func content(p *prepare.Prepared, name string) string {
	for _, m := range p.Messages {
		if m.Name == name {
			return m.Content
		}
	}
	return ""
}

func asJSON(t testing.TB, v any) string {
	t.Helper()
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func withFacts(facts ...turncontext.Fact) func(*prepare.Input) {
	return func(in *prepare.Input) { in.Turn.Facts = facts }
}

// everything returns an input that uses every field.
func everything() prepare.Input {
	return prepare.Input{
		Agent: prepare.Agent{
			Name: "helper", Description: "Answers questions about orders.", Instructions: "You are {{ .Agent.Name }}.",
			Thinking: prompt.ThinkingLow, Loaded: []string{"refunds"}, Available: []string{"returns"}, MaxMemories: 2, AllowsTrusted: true,
			Contributions: []prompt.Contribution{{Name: "Opening hours", Text: "9 to 5", Trusted: true}},
		},
		Profile: fullProfile(),
		Turn:    fullTurn(),
		Tools: []prompt.Tool{
			{Name: "find_order", Description: "Finds an order.", UseWhen: "the user asks about one", Parameters: []prompt.Parameter{
				{Name: "number", Type: "integer", Required: true, Description: "Its number."},
				{Name: "state", Type: "enum", Enum: []string{"open", "closed"}, Default: json.RawMessage(`"open"`)},
			}},
			{Name: "hand_over", Description: "Hands over to a person.", EndsTurn: true},
			prompt.SubAgent("translator", "Translates texts."),
		},
		ManagerSkills: []prepare.Skill{
			{Key: "returns", Name: "Not this one", Content: "the profile's own comes first"},
			{Key: "complaints", Name: "Complaints", Description: "How to calm people.", Content: "Listen."},
		},
		Provider: "openai", Model: "small", Now: at,
	}
}

func fullProfile() prepare.Profile {
	return prepare.Profile{
		Name: "support", ID: "support.default", Version: "1.2.3", Generation: 4, Tags: []string{"de", "orders"},
		Variables: []prepare.Variable{
			{Name: "user", Required: true},
			{Name: "shop", Default: "Example Shop"},
			{Name: "tier", Trusted: true},
		},
		Mode: prompt.Full,
		Identity: &turncontext.Identity{
			AssistantName: "Ada", SystemPrompt: "You work for {{ .shop }}.", DeveloperPrompt: "The user is {{ .user }}, tier {{ .tier }}.",
			Traits: turncontext.Traits{Voice: "Concise", Formality: "Casual", Proactivity: turncontext.High, RiskPosture: "Cautious"},
		},
		Instructions: "Answer in German.", StablePrefix: "House rules apply.", DynamicSuffix: "Now answer.",
		Overlays:   []turncontext.Overlay{{ID: "summer", Source: "marketing", Text: "Mention the summer sale.", Priority: turncontext.Low}},
		Guardrails: []turncontext.Guardrail{{ID: "truth", Source: "legal", Rule: "Promise nothing.", Kind: "TruthfulnessConstraint"}},
		Shaping: turncontext.Layer{
			Mode: "support", Overlays: []turncontext.Overlay{{ID: "short", Text: "Keep it short."}},
			Expression:    turncontext.Expression{Tone: "dry"},
			ResponseStyle: turncontext.ResponseStyle{PreferMarkdown: new(true), MaxAnswerChars: new(800)},
		},
		Skills: []prepare.Skill{
			{Key: "refunds", Name: "Refunds", Description: "Money back.", Content: "Ask {{ .shop }} first."},
			{Key: "returns", Name: "Returns", Description: "Goods back.", Content: "Send a label."},
		},
		Contributions: []prompt.Contribution{{Name: "Stock", Text: "Plenty."}},
	}
}

func fullTurn() prepare.Turn {
	return prepare.Turn{
		Name: "first", Namespace: "demo", Message: "Where is my order?", Parameters: map[string]string{"user": "Bob", "tier": "gold"},
		History: []prepare.HistoryMessage{{Role: model.RoleUser, Content: "Hello"}, {Role: model.RoleAssistant, Content: "Good day."}},
		Mode:    prompt.Full, Depth: 1,
		Shaping: turncontext.Layer{
			Mode:       "review",
			Overlays:   []turncontext.Overlay{{ID: "vip", Source: "crm", Text: "Be generous.", Priority: turncontext.High}},
			Guardrails: []turncontext.Guardrail{{ID: "mood", Rule: "No jokes.", Priority: turncontext.High, Kind: "ToneConstraint"}},
			Expression: turncontext.Expression{Warmth: turncontext.Low}, ResponseStyle: turncontext.ResponseStyle{MaxAnswerChars: new(500)},
		},
		Session: &turncontext.Session{
			ID: "s-1", Subject: "Order 1042", State: "Active", Summary: "The parcel is late.",
			UnresolvedQuestions: []string{"Where is it?", "Who pays?"}, Momentum: turncontext.Low,
		},
		Facts: []turncontext.Fact{
			{ID: "f1", Text: "Order 1042 was sent.", Source: "orders/1042"},
			{ID: "f2", Text: "It weighs 2 kg."},
		},
		Preferences: []string{"short answers", "no emoji"},
		Data:        `{"order":1042}`,
		Memories: []turncontext.Memory{
			{ID: "m1", Text: "Likes tea.", Scope: "User", Freshness: "Recent", Relevance: 0.2},
			{ID: "m2", Text: "Ordered before.", Relevance: 0.9},
			{ID: "m3", Text: "Lives in Bern.", Scope: "Org"},
		},
		Enrichments: []turncontext.Enrichment{
			{ID: "e1", Kind: "Review", Source: "reviewer", Content: "Looks fine.", Importance: turncontext.Low, Audience: "Assistant"},
			{ID: "e2", Kind: "Other", Title: "Carrier", Content: "Delayed.", Importance: turncontext.High, Audience: "Mixed"},
			{ID: "e3", Kind: "Handoff", Content: "Internal.", Audience: "Product"},
		},
		Skill:         "You are acting as a travel planner.",
		Contributions: []prompt.Contribution{{Name: "Weather", Text: "Rain", MaxChars: 2}},
	}
}

// enrichments returns n enrichments of the same importance.
func enrichments(n int) []turncontext.Enrichment {
	var all []turncontext.Enrichment
	for i := range n {
		all = append(all, turncontext.Enrichment{ID: fmt.Sprintf("e%d", i), Kind: "Other", Content: fmt.Sprintf("Note %d.", i)})
	}
	return all
}
