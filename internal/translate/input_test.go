package translate_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/shopspring/decimal"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/finalize"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/prompt"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/translate"
)

// mute is a model that is never asked.
type mute struct{ model.Provider }

// Generate fails.
func (mute) Generate(context.Context, model.Request) (model.Reply, error) {
	return model.Reply{}, fmt.Errorf("asked")
}

func TestInput(t *testing.T) {
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	own, tone := "Mine.", "kind"
	profile := &v1alpha1.PromptProfile{
		ObjectMeta: metav1.ObjectMeta{Name: "support", Generation: 4},
		Spec: v1alpha1.PromptProfileSpec{
			ID: "support.default", Version: "1.2.3", Tags: []string{"de"}, Instructions: "i",
			Identity:  &v1alpha1.Identity{AssistantName: "Ada", SystemPrompt: "s", DeveloperPrompt: "d"},
			Overrides: &v1alpha1.Overrides{Behavior: &own},
			Variables: []v1alpha1.Variable{{Name: "user", Required: true, Trust: v1alpha1.TrustUntrusted}, {Name: "tone", Default: &tone, Trust: v1alpha1.TrustTrusted}},
		},
	}
	agent := &v1alpha1.Agent{
		ObjectMeta: metav1.ObjectMeta{Name: "helper"},
		Spec: v1alpha1.AgentSpec{
			Description: "Helps.", Instructions: "More.", TimeZone: "Europe/Berlin", DecisionKey: "k",
			Limits: &v1alpha1.Limits{TimeoutSeconds: new(int32(30))},
		},
	}
	spec := &v1alpha1.Turn{
		ObjectMeta: metav1.ObjectMeta{Name: "first", Namespace: "demo", UID: "u"},
		Spec: v1alpha1.TurnSpec{
			Message: "What?", Parameters: []v1alpha1.Parameter{{Name: "user", Value: "Bob"}}, Execution: v1alpha1.ExecutionPrepareOnly,
			History:   []v1alpha1.HistoryMessage{{Role: v1alpha1.HistoryRoleUser, Content: "Hi"}, {Role: v1alpha1.HistoryRoleAssistant, Content: "Hello"}},
			Context:   &v1alpha1.TurnContext{Facts: []v1alpha1.Fact{{ID: "a", Text: "One.", Source: "a.md"}}},
			Citations: v1alpha1.CitationsHide,
		},
	}
	temperature, tokens := "0.2", int32(64)
	chain := []translate.Link{
		{
			Reference: v1alpha1.ModelReference{
				ProviderRef: v1alpha1.ObjectReference{Name: "main"}, Model: "small",
				Parameters: &v1alpha1.ModelParameters{Temperature: &temperature, MaxOutputTokens: &tokens},
			},
			Object: &v1alpha1.ModelProvider{Spec: v1alpha1.ModelProviderSpec{
				Retry:  v1alpha1.RetryPolicy{MaxAttempts: 4, InitialBackoffMilliseconds: 500, MaxBackoffSeconds: 20},
				Models: []v1alpha1.Model{{Name: "small", Pricing: &v1alpha1.Pricing{Currency: "USD", InputPerMillion: "2.5", OutputPerMillion: "10"}}},
			}},
			Provider: mute{},
		},
		{Reference: v1alpha1.ModelReference{ProviderRef: v1alpha1.ObjectReference{Name: "gone"}, Model: "large"}, Provider: mute{}},
	}
	got, err := translate.Input(spec, agent, profile, chain, now)
	if err != nil {
		t.Fatalf("Input: %v", err)
	}
	want := turn.Input{
		UID: "u", Timeout: 30 * time.Second, Limit: 30 * time.Second, PrepareOnly: true, DecisionKey: "k",
		Preparation: prepare.Input{
			Agent: prompt.Agent{Name: "helper", Description: "Helps.", Instructions: "More."},
			Profile: prepare.Profile{
				Profile: prompt.Profile{AssistantName: "Ada", SystemPrompt: "s", DeveloperPrompt: "d", Instructions: "i", Behavior: &own},
				Name:    "support", ID: "support.default", Version: "1.2.3", Generation: 4, Tags: []string{"de"},
				Variables: []prepare.Variable{{Name: "user", Required: true}, {Name: "tone", Default: "kind", Trusted: true}},
			},
			TurnName: "first", TurnNamespace: "demo", Parameters: map[string]string{"user": "Bob"}, Message: "What?",
			History: []prepare.HistoryMessage{{Role: "user", Content: "Hi"}, {Role: "assistant", Content: "Hello"}},
			Facts:   []prepare.Fact{{ID: "a", Text: "One.", Source: "a.md"}}, Now: now.In(berlin),
		},
		Chain: []turn.Candidate{
			{
				Candidate: loop.Candidate{
					ProviderName: "main", Model: "small", Parameters: model.Parameters{Temperature: new(0.2), MaxOutputTokens: new(64)},
					Retry: loop.Retry{MaxAttempts: 4, InitialBackoff: 500 * time.Millisecond, MaxBackoff: 20 * time.Second}, Provider: mute{},
				},
				Pricing: &finalize.Pricing{
					Currency: "USD", Input: decimal.RequireFromString("2.5"), Output: decimal.RequireFromString("10"), CacheRead: decimal.RequireFromString("2.5"),
				},
			},
			{Candidate: loop.Candidate{ProviderName: "gone", Model: "large", Retry: loop.Retry{MaxAttempts: 1}, Provider: mute{}}},
		},
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateComparable(mute{})); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if zone := got.Preparation.Now.Location().String(); zone != "Europe/Berlin" {
		t.Errorf("now is in %s, want the agent's zone", zone)
	}
}

func TestPrices(t *testing.T) {
	link := func(p *v1alpha1.Pricing) []translate.Link {
		return []translate.Link{{
			Reference: v1alpha1.ModelReference{Model: "small"},
			Object:    &v1alpha1.ModelProvider{ObjectMeta: metav1.ObjectMeta{Name: "main"}, Spec: v1alpha1.ModelProviderSpec{Models: []v1alpha1.Model{{Name: "small", Pricing: p}}}},
		}}
	}
	in := func(p *v1alpha1.Pricing) (turn.Input, error) {
		return translate.Input(&v1alpha1.Turn{}, &v1alpha1.Agent{}, &v1alpha1.PromptProfile{}, link(p), now)
	}
	cached := "0.25"
	got, err := in(&v1alpha1.Pricing{Currency: "EUR", InputPerMillion: "1", OutputPerMillion: "2", CacheReadPerMillion: &cached})
	if err != nil || got.Chain[0].Pricing.CacheRead.String() != "0.25" {
		t.Errorf("prices %+v, %v; want the cache's own price", got.Chain[0].Pricing, err)
	}
	if got, err := in(nil); err != nil || got.Chain[0].Pricing != nil || !got.ShowCitations || got.PrepareOnly {
		t.Errorf("input %+v, %v; want no price and the defaults of a Turn", got, err)
	}
	_, err = in(&v1alpha1.Pricing{InputPerMillion: "1", OutputPerMillion: "much"})
	const want = `failed to read the prices of model "small" of ModelProvider "main": can't convert much to decimal`
	if err == nil || err.Error() != want {
		t.Errorf("Input: %v, want %q", err, want)
	}
}

func TestLocation(t *testing.T) {
	for name, tc := range map[string]struct{ zone, want, err string }{
		"default": {"", "UTC", ""},
		"utc":     {"UTC", "UTC", ""},
		"named":   {"America/Argentina/Buenos_Aires", "America/Argentina/Buenos_Aires", ""},
		"unknown": {"Mars/Olympus", "", `Agent spec.timeZone: "Mars/Olympus" is not an IANA time zone: use a name such as Europe/Berlin or UTC`},
		"machine": {"Local", "", `Agent spec.timeZone: "Local" is not an IANA time zone: use a name such as Europe/Berlin or UTC`},
		"path":    {"../etc/passwd", "", `Agent spec.timeZone: "../etc/passwd" is not an IANA time zone: use a name such as Europe/Berlin or UTC`},
	} {
		t.Run(name, func(t *testing.T) {
			loc, err := translate.Location(&v1alpha1.Agent{Spec: v1alpha1.AgentSpec{TimeZone: tc.zone}})
			if tc.err != "" {
				if err == nil || err.Error() != tc.err {
					t.Errorf("Location: %v, want %q", err, tc.err)
				}
				return
			}
			if err != nil || loc.String() != tc.want {
				t.Errorf("Location = %v, %v; want %s", loc, err, tc.want)
			}
		})
	}
}
