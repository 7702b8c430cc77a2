package controller_test

import (
	"fmt"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/types"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/test/fakemodel/server"
)

// maxFaultDuration bounds the duration of a Turn that meets a fault: less than its deadline of a minute, and enough for
// a slow machine.
const maxFaultDuration = 50 * time.Second

// failure is a fault and the expected end of a Turn that meets it. The Turn, its Agent, its ModelProvider and its
// Secret have the failure's name.
type failure struct {
	name string
	// rule is the model's rule for the Turn's message, in YAML.
	rule string
	// provider, agent and turn change the objects of a successful Turn. Nil means no change.
	provider func(*v1alpha1.ModelProvider)
	agent    func(*v1alpha1.Agent)
	turn     func(*v1alpha1.Turn)
	// The expected end of the Turn.
	reason  string
	stop    v1alpha1.StopReason
	message types.GomegaMatcher
	// requests is the number of requests of the Turn.
	requests int32
	// also makes further checks. It may be nil.
	also func(*v1alpha1.Turn)
	// asksAgain is true if the Turn asks the model for an answer in a further message of the user.
	asksAgain bool
}

var failures = []failure{
	{
		name: "credentials-refused-by-completions", rule: `fault: {status: 401}`,
		reason: v1alpha1.TurnReasonModelFailed, stop: v1alpha1.StopModelError, requests: 1,
		message: ContainSubstring(`the endpoint refused the credentials (HTTP 401): check key "apiKey" of ` +
			`Secret "credentials-refused-by-completions"`),
	},
	{
		name: "unknown-model", agent: func(a *v1alpha1.Agent) { a.Spec.Models[0].Model = "no-such-model" },
		reason: v1alpha1.TurnReasonModelFailed, stop: v1alpha1.StopModelError, requests: 1,
		message: And(ContainSubstring("the endpoint does not know the model"), ContainSubstring("HTTP 404")),
	},
	{
		name: "unreachable-host", provider: func(p *v1alpha1.ModelProvider) { p.Spec.BaseURL = "http://127.0.0.1:1/v1" },
		reason: v1alpha1.TurnReasonModelFailed, stop: v1alpha1.StopModelError, requests: 0,
		message: And(ContainSubstring("the connection to the endpoint failed: "), ContainSubstring("refused"),
			ContainSubstring("(2 attempts)")),
	},
	{
		name: "unknown-host", provider: func(p *v1alpha1.ModelProvider) { p.Spec.BaseURL = "http://model.invalid/v1" },
		reason: v1alpha1.TurnReasonModelFailed, stop: v1alpha1.StopModelError, requests: 0,
		message: And(ContainSubstring(`provider "unknown-host": `), ContainSubstring("(2 attempts)")),
	},
	{
		name: "rate-limit-storm", rule: `fault: {status: 429, retryAfterSeconds: 0}`,
		reason: v1alpha1.TurnReasonModelFailed, stop: v1alpha1.StopModelError, requests: 2,
		message: And(ContainSubstring("the endpoint's rate limit is reached (HTTP 429)"), ContainSubstring("(2 attempts)")),
	},
	{
		name: "rate-limit-beyond-deadline", rule: `fault: {status: 429, retryAfterSeconds: 3600}`, turn: timeout(60),
		reason: v1alpha1.TurnReasonModelFailed, stop: v1alpha1.StopModelError, requests: 1,
		message: ContainSubstring("would be after the turn's deadline"),
	},
	{
		name: "server-error", rule: `fault: {status: 503}`,
		reason: v1alpha1.TurnReasonModelFailed, stop: v1alpha1.StopModelError, requests: 2,
		message: ContainSubstring("the endpoint failed (HTTP 503)"),
	},
	{
		name: "hang-until-deadline", rule: `fault: {hang: BeforeHeaders}`, turn: timeout(20), requests: 1,
		reason: v1alpha1.TurnReasonDeadlineExceeded, stop: v1alpha1.StopDeadline,
		message: And(ContainSubstring("the turn reached its time limit of 20s while model "),
			ContainSubstring(" worked: raise limits.timeoutSeconds or ask for less")),
	},
	{
		name: "hang-until-idle", rule: `fault: {hang: AfterHeaders}`,
		provider: func(p *v1alpha1.ModelProvider) {
			p.Spec.Timeouts.FirstEventSeconds, p.Spec.Retry.MaxAttempts = new(int32(1)), 1
		},
		reason: v1alpha1.TurnReasonModelFailed, stop: v1alpha1.StopModelError, requests: 1,
		message: ContainSubstring(`provider "hang-until-idle": the endpoint sent no part of an answer for 1s`),
	},
	{
		name: "cut-stream", rule: `reply: {text: "a long answer that never ends", chunkChars: 4}, fault: {cutAfterChunks: 3}`,
		reason: v1alpha1.TurnReasonModelFailed, stop: v1alpha1.StopModelError, requests: 2,
		message: ContainSubstring("the connection broke before the answer was finished"),
		also: func(t *v1alpha1.Turn) {
			Expect(t.Status.Usage.InputTokens).To(BeNumerically(">", 0), "the endpoint bills both attempts")
			Expect(t.Status.Usage.OutputTokens).To(BeEquivalentTo(2*3), "three pieces of four characters in each attempt")
		},
	},
	{
		name: "unfinished-stream", rule: `fault: {endWithoutFinish: true}`,
		// Without a dialect, an answer may end without a finish reason, because some gateways omit it.
		provider: func(p *v1alpha1.ModelProvider) { p.Spec.Dialect = v1alpha1.DialectOpenAI },
		reason:   v1alpha1.TurnReasonModelFailed, stop: v1alpha1.StopModelError, requests: 2,
		message: ContainSubstring("the stream ended before the answer was finished"),
	},
	{
		name: "rubbish-json", rule: `fault: {rubbish: NotJSON}`,
		reason: v1alpha1.TurnReasonModelFailed, stop: v1alpha1.StopModelError, requests: 2,
		message: ContainSubstring("the response does not follow the chat-completions protocol"),
	},
	{
		name: "rubbish-page", rule: `fault: {rubbish: HTML}`,
		reason: v1alpha1.TurnReasonModelFailed, stop: v1alpha1.StopModelError, requests: 2,
		message: And(ContainSubstring("the endpoint sent text/html"), ContainSubstring("check baseURL")),
	},
	{
		name: "empty-answer", rule: `reply: {text: ""}`, asksAgain: true,
		reason: v1alpha1.TurnReasonModelFailed, stop: v1alpha1.StopModelError, requests: 2,
		message: ContainSubstring("the answer was empty"),
	},
	{
		name: "unasked-tool-call", rule: `reply: {toolCalls: [{name: delete_all}]}`, asksAgain: true,
		reason: v1alpha1.TurnReasonStepLimitExceeded, stop: v1alpha1.StopMaxSteps, requests: 8,
		message: ContainSubstring("the turn ran out of steps after 6, and the model gave no answer"),
		also: func(t *v1alpha1.Turn) {
			Expect(t.Status.ToolCalls).To(HaveLen(8), "each call is listed")
			Expect(t.Status.ToolCalls).To(HaveEach(HaveField("Outcome", v1alpha1.ToolCallRefused)))
		},
	},
	{
		name: "cut-by-length", rule: `reply: {text: "one two three four five six seven"}`,
		agent: func(a *v1alpha1.Agent) {
			a.Spec.Models[0].Parameters = &v1alpha1.ModelParameters{MaxOutputTokens: new(int32(3))}
		},
		reason: v1alpha1.TurnReasonOutputInvalid, stop: v1alpha1.StopMaxOutputTokens, requests: 1,
		message: ContainSubstring("the model's answer was cut off after 3 output tokens: raise the agent's parameters.maxOutputTokens"),
		also: func(t *v1alpha1.Turn) {
			Expect(t.Status.Result.Text).To(Equal("one two thre"), "the partial answer is kept")
			Expect(t.Status.Usage.OutputTokens).To(BeEquivalentTo(3), "the output tokens are counted")
		},
	},
	{
		name: "long-and-cut-by-length", rule: `reply: {text: "word ", repeat: 20000, chunkChars: 5}`,
		agent: func(a *v1alpha1.Agent) {
			a.Spec.Models[0].Parameters = &v1alpha1.ModelParameters{MaxOutputTokens: new(int32(16000))}
		},
		reason: v1alpha1.TurnReasonOutputInvalid, stop: v1alpha1.StopMaxOutputTokens, requests: 1,
		message: ContainSubstring("the model's answer was cut off after 16000 output tokens"),
		also: func(t *v1alpha1.Turn) {
			Expect(t.Status.Result.Bytes).To(BeEquivalentTo(64000), "the partial answer is kept, although its stream has more than 3 MB")
			Expect(t.Status.Usage.OutputTokens).To(BeEquivalentTo(16000), "the output tokens are counted")
		},
	},
	{
		name: "content-filter", rule: `reply: {finishReason: content_filter}`,
		reason: v1alpha1.TurnReasonPolicyViolated, stop: v1alpha1.StopContentFilter, requests: 1,
		message: ContainSubstring("the content filter withheld the answer"),
		also:    func(t *v1alpha1.Turn) { Expect(t.Status.Result).To(BeNil(), "a withheld answer is not shown") },
	},
	{
		name: "prompt-too-long", rule: `fault: {status: 400, code: context_length_exceeded}`,
		reason: v1alpha1.TurnReasonContextLimitExceeded, stop: v1alpha1.StopContextLength, requests: 1,
		message: ContainSubstring("the prompt is longer than the model's context window"),
	},
	{
		name:   "undeclared-parameter",
		turn:   func(t *v1alpha1.Turn) { t.Spec.Parameters = []v1alpha1.Parameter{{Name: "mood", Value: new("good")}} },
		reason: v1alpha1.TurnReasonPreparationFailed, stop: v1alpha1.StopPreparationError,
		message: ContainSubstring(`Turn spec.parameters: "mood" is not a variable of PromptProfile "house", which declares: none`),
	},
}

// arrange creates the objects of a failure.
func (f failure) arrange(ctx SpecContext, s *testEnv) {
	GinkgoHelper()
	p := s.newProvider(f.name, func(p *v1alpha1.ModelProvider) { p.Spec.CredentialsRef.Name = f.name })
	a := newAgent(f.name, func(a *v1alpha1.Agent) { a.Spec.Models[0].ProviderRef.Name = f.name })
	t := newTurn(f.name, func(t *v1alpha1.Turn) { t.Spec.AgentRef.Name = f.name })
	if f.provider != nil {
		f.provider(p)
	}
	if f.agent != nil {
		f.agent(a)
	}
	if f.turn != nil {
		f.turn(t)
	}
	s.create(ctx, newSecret(f.name, apiKey), p, a, t)
}

// rulesOf returns the model's rules for all failures.
func rulesOf(failures []failure) server.Config {
	GinkgoHelper()
	cfg := server.Config{APIKeys: []string{apiKey}, Models: []string{modelName}}
	for _, f := range failures {
		if f.rule == "" {
			continue
		}
		rules := config(fmt.Sprintf("rules: [{%s}]", f.rule)).Rules
		rules[0].When = server.When{Matches: "^" + f.name + "$"}
		if f.asksAgain {
			rules[0].When = server.When{AnyContains: f.name}
		}
		cfg.Rules = append(cfg.Rules, rules...)
	}
	return cfg
}

var _ = Describe("A Turn that meets a fault", Ordered, ContinueOnFailure, func() {
	var s *testEnv

	BeforeAll(func(ctx SpecContext) {
		s = newTestEnvWith(ctx, rulesOf(failures))
		s.run()
		s.create(ctx, newProfile(profile))
		for _, f := range failures { // create all before waiting for one, because they are independent
			f.arrange(ctx, s)
		}
	}, NodeTimeout(patience))

	for _, f := range failures {
		It("ends as "+f.reason+": "+f.name, func(ctx SpecContext) {
			t := s.awaitState(ctx, f.name, f.reason)
			Expect(message(t)).To(f.message)
			Expect(t.Status.StopReason).To(Equal(f.stop))
			Expect(conditionsOf(t.Status.Conditions)).To(ContainElements("Succeeded=False "+f.reason, "Stalled=True "+f.reason))
			Expect(conditionsOf(t.Status.Conditions)).NotTo(ContainElement(HavePrefix("Reconciling")))
			Expect(t.Status.Steps.ModelRequests).To(Equal(f.requests))
			Expect(*t.Status.DurationMilliseconds).To(BeNumerically("<=", maxFaultDuration.Milliseconds()))
			if f.also != nil {
				f.also(t)
			}
			Eventually(s.events).WithArguments(ctx, "Turn", f.name).Should(Equal([]string{"Warning Failed"}))
		}, SpecTimeout(patience))
	}

	It("leaves its Agent Ready if only the endpoint is down", func(ctx SpecContext) {
		awaitText(ctx, s, &v1alpha1.ModelProvider{}, "unreachable-host", providerReadiness, HavePrefix("EndpointUnreachable: "))
		awaitText(ctx, s, &v1alpha1.Agent{}, "unreachable-host", agentReadiness, HavePrefix("Ready: "))
	}, SpecTimeout(patience))
})
