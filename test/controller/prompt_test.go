package controller_test

import (
	"os"
	"path/filepath"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/manager"
)

func prepareOnly(t *v1alpha1.Turn) { t.Spec.Execution = v1alpha1.ExecutionPrepareOnly }

var _ = Describe("A profile that does not render", func() {
	DescribeTable("reports the field", func(ctx SpecContext, fault func(*v1alpha1.PromptProfileSpec), where string) {
		s := newTestEnv(ctx, ``)
		s.run()
		s.create(ctx, newProfile(profile, func(p *v1alpha1.PromptProfile) { fault(&p.Spec) }))
		awaitText(ctx, s, &v1alpha1.PromptProfile{}, profile, profileReadiness, HavePrefix("RenderFailed: "+where))
		var p v1alpha1.PromptProfile
		Expect(apiClient.Get(ctx, s.key(profile), &p)).To(Succeed())
		Expect(conditionsOf(p.Status.Conditions)).To(ConsistOf("Ready=False RenderFailed", "Stalled=True RenderFailed"))

		change(ctx, s, profile, &v1alpha1.PromptProfile{}, func(p *v1alpha1.PromptProfile) {
			p.Spec.Overlays, p.Spec.Sections, p.Spec.OutputPolicy = nil, nil, nil
		})
		awaitText(ctx, s, &v1alpha1.PromptProfile{}, profile, profileReadiness, HavePrefix("Ready: "))
		Expect(apiClient.Get(ctx, s.key(profile), &p)).To(Succeed())
		Expect(conditionsOf(p.Status.Conditions)).To(ConsistOf("Ready=True Ready"))
	},
		Entry("in an overlay", SpecTimeout(patience), func(p *v1alpha1.PromptProfileSpec) {
			p.Overlays = []v1alpha1.Overlay{{ID: "mood", Text: "Be kind.\nTo {{ .userNam }}."}}
		}, "PromptProfile spec.overlays[0].text:2:7: "),
		Entry("in an expression of an output policy", SpecTimeout(patience), func(p *v1alpha1.PromptProfileSpec) {
			p.OutputPolicy = []v1alpha1.OutputPolicy{{Name: "short", Expression: "true &&\n  output.txt.size() < 100"}}
		}, "PromptProfile spec.outputPolicy[0].expression:2:9: undefined field 'txt'"),
		Entry("in the list of sections", SpecTimeout(patience), func(p *v1alpha1.PromptProfileSpec) {
			p.Sections = []string{"agent", "weather"}
		}, `PromptProfile spec.sections[1]: "weather" is not a section: use agent, sub_agent, `),
	)
})

// shapePrompt sets most fields of a profile, an Agent and a Turn that shape a prompt.
func shapePrompt(p *v1alpha1.PromptProfile, a *v1alpha1.Agent, t *v1alpha1.Turn) {
	a.Spec.ContributionTrust = v1alpha1.TrustTrusted // so that the Turn's tone counts
	p.Spec.Identity = &v1alpha1.Identity{AssistantName: "Vela", SystemPrompt: "You are {{ .Agent.Name }}.", Traits: &v1alpha1.Traits{
		Voice: v1alpha1.VoiceConcise, Formality: v1alpha1.FormalityCasual, Proactivity: v1alpha1.LevelHigh,
	}}
	p.Spec.Overlays = []v1alpha1.Overlay{{ID: "house-style", Text: "Keep to the house style."}}
	p.Spec.Guardrails = []v1alpha1.Guardrail{{ID: "no-promises", Rule: "Promise nothing."}}
	p.Spec.Skills = []v1alpha1.Skill{skillOf("triage", "skills"), {Key: "refunds", Content: new("Ask for the order number.")}}
	p.Spec.Contributions = []v1alpha1.Contribution{{Name: "calendar", Text: new("Monday is a holiday."), Trust: v1alpha1.TrustTrusted}}

	a.Spec.Skills = &v1alpha1.AgentSkills{Loaded: []string{"triage"}, Available: []string{"refunds"}}
	a.Spec.Memory = &v1alpha1.AgentMemory{MaxItems: new(int32(1))}

	t.Spec.Execution, t.Spec.PromptMode = v1alpha1.ExecutionPrepareOnly, v1alpha1.PromptModeTask
	t.Spec.History = []v1alpha1.HistoryMessage{
		{Role: v1alpha1.HistoryRoleUser, Content: "Hello"}, {Role: v1alpha1.HistoryRoleAssistant, Content: "Hello!"},
	}
	t.Spec.Shaping = &v1alpha1.Shaping{
		Mode: "review", Overlays: []v1alpha1.Overlay{{ID: "audience", Text: "Write for operators.", Priority: v1alpha1.LevelHigh}},
		Expression: &v1alpha1.Expression{Tone: "dry"},
	}
	t.Spec.Guardrails = []v1alpha1.Guardrail{
		{ID: "no-jokes", Rule: "No jokes.", Priority: v1alpha1.LevelHigh, Kind: v1alpha1.GuardrailTone},
	}
	t.Spec.Context = &v1alpha1.TurnContext{
		Facts: []v1alpha1.Fact{{ID: "f", Text: "A fact.", Source: "notes.md"}},
		Memories: []v1alpha1.Memory{
			{ID: "faint", Text: "Once asked."}, {ID: "vivid", Text: "Likes lists.", Relevance: new("0.9")},
		},
		Enrichments: []v1alpha1.Enrichment{
			{ID: "minor", Content: "Small.", Importance: v1alpha1.LevelLow},
			{ID: "internal", Content: "Not for models.", Audience: v1alpha1.AudienceProduct},
			{ID: "major", Content: "Big.", Importance: v1alpha1.LevelHigh},
		},
		Session:       &v1alpha1.ConversationContext{ID: "c-1", Subject: "an invoice", Momentum: v1alpha1.LevelLow},
		Contributions: contributionOf("terms"), Preferences: []string{"short answers"},
		Skill: "You are acting as a reviewer.",
	}
}

var _ = Describe("A Turn whose prompt has many sources", func() {
	It("reports how its prompt was made", func(ctx SpecContext) {
		s := newTestEnv(ctx, ``)
		s.run()
		p, a, t := newProfile(profile), newAgent(agent), newTurn("all")
		shapePrompt(p, a, t)
		s.create(ctx, newSecret(secretName, apiKey), s.newProvider(provider), newConfigMap("skills", "Sort by urgency."),
			newConfigMap("terms", "Three days."), p, a, t)
		got := s.awaitState(ctx, "all", v1alpha1.TurnReasonPrepared).Status.Preparation
		Expect(got.Mode).To(Equal(v1alpha1.PromptModeTask))
		Expect(got.Expression).To(HaveValue(Equal(v1alpha1.Expression{
			Tone: "dry", Directness: v1alpha1.LevelHigh, Warmth: v1alpha1.LevelHigh, Humor: v1alpha1.HumorOff,
			Initiative: v1alpha1.LevelHigh, ExplanationDensity: v1alpha1.LevelMedium,
		})))
		Expect(got.Provenance).To(HaveValue(Equal(v1alpha1.Provenance{
			UsedMemoryIDs: []string{"vivid"}, DroppedMemoryIDs: []string{"faint"},
			UsedEnrichmentIDs: []string{"major", "minor"}, DroppedEnrichmentIDs: []string{"internal"},
			UsedGuardrailIDs: []string{"no-promises", "no-jokes"}, UsedOverlayIDs: []string{"house-style", "audience"},
		})))
		Expect(got.Sections).To(Equal([]string{
			"agent", "instructions", "behavior", "loaded_skills", "available_skills", "tools",
			"turn_instructions", "subject", "live_context", "environment",
		}))
		Expect(got.ToolCount).To(BeEquivalentTo(1), "load_skill")
		Expect(got.MessageCount).To(BeEquivalentTo(8))
		var stored v1alpha1.Agent
		Expect(apiClient.Get(ctx, s.key(agent), &stored)).To(Succeed())
		Expect(got.PromptRenderHash).NotTo(Equal(stored.Status.PromptRenderHash), "the hash of the Agent is for the Agent's own mode")
		Expect(s.fake.Stats().Requests).To(BeZero())
	}, SpecTimeout(patience))
})

var _ = Describe("Skills of the manager", func() {
	It("are available to every Agent", func(ctx SpecContext) {
		s := newTestEnv(ctx, ``)
		path := filepath.Join(GinkgoT().TempDir(), "skills.yaml")
		Expect(os.WriteFile(path, []byte("- {key: house, description: how we write, content: Write plainly.}"), 0o600)).To(Succeed())
		m := s.run(func(o *manager.Options) { o.SkillsFile = path })
		s.create(ctx, s.basics()...)
		s.create(ctx, newTurn("dry", prepareOnly))
		t := s.awaitState(ctx, "dry", v1alpha1.TurnReasonPrepared)
		Expect(t.Status.Preparation.ToolCount).To(BeEquivalentTo(1))
		Expect(t.Status.Preparation.Sections).To(ContainElement("available_skills"))
		awaitText(ctx, s, &v1alpha1.Agent{}, agent, renderHash, Equal(t.Status.Preparation.PromptRenderHash))

		m.stop()
		o := m.options
		o.SkillsFile = ""
		start(o)
		awaitText(ctx, s, &v1alpha1.Agent{}, agent, renderHash, And(Not(BeEmpty()), Not(Equal(t.Status.Preparation.PromptRenderHash))))
	}, SpecTimeout(patience))

	It("that are invalid stop the start", func(ctx SpecContext) {
		s := newTestEnv(ctx, ``)
		path := filepath.Join(GinkgoT().TempDir(), "skills.yaml")
		Expect(os.WriteFile(path, []byte("- {key: house}"), 0o600)).To(Succeed())
		o := s.options(func(o *manager.Options) { o.SkillsFile = path })
		err := manager.Run(ctx, o, apiConfig, GinkgoLogr)
		Expect(err).To(MatchError("--skills-file: failed to read skills from " + path + ": [0]: content is required and must not be blank"))
	}, SpecTimeout(patience))
})

var _ = Describe("A Turn that names a model", func() {
	It("that is not in the chain of its Agent ends, and lists the allowed models", func(ctx SpecContext) {
		s := newTestEnv(ctx, ``)
		s.run()
		s.create(ctx, s.basics()...)
		s.create(ctx, newTurn("elsewhere", func(t *v1alpha1.Turn) { t.Spec.Model = "gpt-9" }))
		t := s.awaitState(ctx, "elsewhere", v1alpha1.TurnReasonPreparationFailed)
		Expect(message(t)).To(Equal(`Turn spec.model: "gpt-9" is not a model of the agent's chain: use one of demo:demo-small`))
		Expect(s.fake.Stats().Requests).To(BeZero())
	}, SpecTimeout(patience))
})
