package controller_test

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/store/sqlite"
)

// stoppingModel calls a tool in its first step if the request offers one. The message determines the rest.
const stoppingModel = `
apiKeys: [right-key]
rules:
- when: {systemContains: "You shorten conversations"}
  reply: {text: "It was looked up."}
- when: {matches: "^stop-tool-ended$"}
  reply: {text: "I hand it over.", toolCalls: [{name: hand_over}]}
- when: {matches: "^stop-max-output-tokens$"}
  reply: {text: "one two three four five six seven"}
- when: {matches: "^stop-content-filter$", toolMessages: 1}
  reply: {text: "Something bad.", finishReason: content_filter}
- when: {matches: "(?m)^stop-context-length$", toolMessages: 1}
  fault: {status: 400, code: context_length_exceeded}
- when: {matches: "(?m)^stop-context-length$", anyContains: "It was looked up."}
  fault: {status: 400, code: context_length_exceeded}
- when: {matches: "(?m)^stop-output-invalid$", toolMessages: 1}
  reply: {text: "It ships on Monday."}
- when: {matches: "^Your answer was not accepted"}
  reply: {text: "It ships on Monday, really."}
- when: {matches: "^stop-model-error$", toolMessages: 1}
  fault: {status: 503}
- when: {matches: "^stop-(deadline|cancelled)$", toolMessages: 1}
  fault: {hang: AfterHeaders}
- when: {matches: "^stop-tokens$"}
  reply: {text: "Let me look: {{ .User }}.", toolCalls: [{name: lookup}], usage: {promptTokens: 90000, completionTokens: 9990}}
- when: {matches: "^stop-cost$"}
  reply: {text: "Let me look: {{ .User }}.", toolCalls: [{name: lookup}], usage: {promptTokens: 2000, completionTokens: 5000}}
- when: {matches: "(?m)^stop-", toolMessages: 0, hasTools: true}
  reply: {text: "Let me look: {{ .User }}.", toolCalls: [{name: lookup}]}
- when: {matches: "^stop-"}
  reply: {text: "It ships on Monday."}
`

// stop describes the Turn "stop-"+name, and the expected end of this Turn.
type stop struct {
	name   string
	turn   func(*v1alpha1.Turn)
	status metav1.ConditionStatus
	reason string
	stop   v1alpha1.StopReason
	// text is the expected text of the result. Without an answer, it is the text of the last reply. It is empty if
	// the Turn has no result.
	text string
	// steps are the expected counts, or nil for a Turn that never ran.
	steps *v1alpha1.StepCounts
	// free is true if the Turn costs nothing.
	free bool
	// cost is the expected cost, if it is known in advance.
	cost string
	// cutOff is true if the end of the Turn cuts off a request whose usage the endpoint has not reported.
	cutOff bool
}

const looked = "Let me look: stop-"

// stops lists the ways in which a Turn ends, except for those of capacity_test.go and undo_test.go.
var stops = []stop{
	{
		name: "completed", status: metav1.ConditionTrue, reason: v1alpha1.TurnReasonCompleted, stop: v1alpha1.StopCompleted,
		text: "It ships on Monday.", steps: &v1alpha1.StepCounts{Count: 2, ModelRequests: 2, ToolCalls: 1},
	},
	{
		name: "tool-ended", status: metav1.ConditionTrue, reason: v1alpha1.TurnReasonCompleted, stop: v1alpha1.StopToolEnded,
		text: "Team network has it.", steps: &v1alpha1.StepCounts{Count: 1, ModelRequests: 1, ToolCalls: 1},
	},
	{
		name: "prepared", turn: prepareOnly, status: metav1.ConditionTrue, reason: v1alpha1.TurnReasonPrepared, stop: v1alpha1.StopPrepared,
		steps: &v1alpha1.StepCounts{}, free: true,
	},
	{
		name: "max-steps", turn: limited(v1alpha1.Limits{MaxSteps: new(int32(1))}), status: metav1.ConditionFalse,
		reason: v1alpha1.TurnReasonStepLimitExceeded, stop: v1alpha1.StopMaxSteps,
		text: "It ships on Monday.", steps: &v1alpha1.StepCounts{Count: 1, ModelRequests: 2, ToolCalls: 1},
	},
	{
		name: "tokens", turn: limited(v1alpha1.Limits{MaxTokens: new(int64(100_000))}), status: metav1.ConditionFalse,
		reason: v1alpha1.TurnReasonBudgetExceeded, stop: v1alpha1.StopBudget, // before the second request
		text: looked + "tokens.", steps: &v1alpha1.StepCounts{Count: 1, ModelRequests: 1, ToolCalls: 1}, cost: "0.10998",
	},
	{
		name: "cost", turn: limited(v1alpha1.Limits{MaxCost: new("0.01")}), status: metav1.ConditionFalse,
		reason: v1alpha1.TurnReasonBudgetExceeded, stop: v1alpha1.StopBudget, // before the call
		text: looked + "cost.", steps: &v1alpha1.StepCounts{Count: 1, ModelRequests: 1}, cost: "0.012",
	},
	{
		name: "max-output-tokens", turn: answeredBy("brief"), status: metav1.ConditionFalse,
		reason: v1alpha1.TurnReasonOutputInvalid, stop: v1alpha1.StopMaxOutputTokens,
		text: "one two thre", steps: &v1alpha1.StepCounts{Count: 1, ModelRequests: 1},
	},
	{
		name: "output-invalid", turn: structured(`{"type": "object"}`), status: metav1.ConditionFalse,
		reason: v1alpha1.TurnReasonOutputInvalid, stop: v1alpha1.StopOutputInvalid,
		text: "It ships on Monday, really.", steps: &v1alpha1.StepCounts{Count: 4, ModelRequests: 4, ToolCalls: 1},
	},
	{
		name: "output-policy", turn: answeredBy("strict"), status: metav1.ConditionFalse,
		reason: v1alpha1.TurnReasonPolicyViolated, stop: v1alpha1.StopOutputPolicy, // the answer is withheld
		steps: &v1alpha1.StepCounts{Count: 1, ModelRequests: 1},
	},
	{
		name: "content-filter", status: metav1.ConditionFalse, reason: v1alpha1.TurnReasonPolicyViolated, stop: v1alpha1.StopContentFilter,
		text: looked + "content-filter.", steps: &v1alpha1.StepCounts{Count: 1, ModelRequests: 2, ToolCalls: 1},
	},
	{
		name: "context-length", status: metav1.ConditionFalse,
		reason: v1alpha1.TurnReasonContextLimitExceeded, stop: v1alpha1.StopContextLength,
		text: looked + "context-length.", steps: &v1alpha1.StepCounts{
			Count: 1, ModelRequests: 4, ModelRetries: 1,
			ToolCalls: 1, Compactions: 1,
		},
	},
	{
		name: "model-error", status: metav1.ConditionFalse, reason: v1alpha1.TurnReasonModelFailed, stop: v1alpha1.StopModelError,
		text: looked + "model-error.", steps: &v1alpha1.StepCounts{Count: 1, ModelRequests: 3, ModelRetries: 1, ToolCalls: 1},
	},
	{
		name:   "preparation-error",
		turn:   func(t *v1alpha1.Turn) { t.Spec.Parameters = []v1alpha1.Parameter{{Name: "mood", Value: new("good")}} },
		status: metav1.ConditionFalse, reason: v1alpha1.TurnReasonPreparationFailed, stop: v1alpha1.StopPreparationError,
		steps: &v1alpha1.StepCounts{}, free: true,
	},
	{
		name: "invalid-spec", turn: func(t *v1alpha1.Turn) {
			long := v1alpha1.HistoryMessage{Role: v1alpha1.HistoryRoleUser, Content: strings.Repeat("x", 16384)}
			t.Spec.History = []v1alpha1.HistoryMessage{long, long, long, long, long, long}
		},
		status: metav1.ConditionFalse, reason: v1alpha1.TurnReasonInvalidSpec, stop: v1alpha1.StopInvalidSpec, free: true,
	},
	{
		name: "deadline", turn: timeout(30), status: metav1.ConditionFalse,
		reason: v1alpha1.TurnReasonDeadlineExceeded, stop: v1alpha1.StopDeadline,
		text: looked + "deadline.", steps: &v1alpha1.StepCounts{Count: 1, ModelRequests: 2, ToolCalls: 1}, cutOff: true,
	},
	{
		name: "session-closed", turn: inSession, status: metav1.ConditionFalse,
		reason: v1alpha1.TurnReasonSessionClosed, stop: v1alpha1.StopSessionClosed, free: true,
	},
	{
		name: "interrupted", status: metav1.ConditionFalse, reason: v1alpha1.TurnReasonInterrupted, stop: v1alpha1.StopInterrupted,
		steps: &v1alpha1.StepCounts{}, free: true,
	},
	{
		name: "cancelled", status: metav1.ConditionFalse, reason: v1alpha1.TurnReasonCancelled, stop: v1alpha1.StopCancelled,
		text: looked + "cancelled.", steps: &v1alpha1.StepCounts{Count: 1, ModelRequests: 2, ToolCalls: 1}, cutOff: true,
	},
}

func limited(l v1alpha1.Limits) func(*v1alpha1.Turn) {
	return func(t *v1alpha1.Turn) { t.Spec.Limits = &l }
}

func answeredBy(name string) func(*v1alpha1.Turn) {
	return func(t *v1alpha1.Turn) { t.Spec.AgentRef.Name = name }
}

func structured(schema string) func(*v1alpha1.Turn) {
	return func(t *v1alpha1.Turn) {
		t.Spec.Output = &v1alpha1.TurnOutput{Schema: apiextensionsv1.JSON{Raw: []byte(schema)}}
	}
}

// damage creates a Turn that is bound to an executor, and an unreadable journal of this Turn in a data directory.
func (s *testEnv) damage(ctx context.Context, name, dataDir, executor string) {
	GinkgoHelper()
	s.create(ctx, newTurn(name))
	t := s.turn(ctx, name)
	bound(t, executor, 1)
	Expect(apiClient.Status().Update(ctx, t)).To(Succeed())
	store, err := sqlite.Open(ctx, filepath.Join(dataDir, "journal.db"))
	Expect(err).NotTo(HaveOccurred())
	Expect(store.Append(ctx, string(t.UID),
		journal.Entry{Seq: 1, Epoch: 1, Kind: journal.Prepared, Version: 1, Payload: []byte(`"torn`)})).To(Succeed())
	Expect(store.Close()).To(Succeed())
}

// bill returns the tokens that the model has billed for requests that contain a text.
func (s *testEnv) bill(about string) (input, output int64) {
	for _, r := range s.fake.Requests() {
		if r.Billed && bytes.Contains(r.Body, []byte(about)) {
			input, output = input+r.InputTokens, output+r.OutputTokens
		}
	}
	return input, output
}

// stopReasons returns the stop reasons in the CustomResourceDefinition.
func stopReasons() []v1alpha1.StopReason {
	GinkgoHelper()
	text, err := os.ReadFile(filepath.Join("..", "..", "config", "crd", "bases", "capstan.dev_turns.yaml"))
	Expect(err).NotTo(HaveOccurred())
	var crd apiextensionsv1.CustomResourceDefinition
	Expect(yaml.Unmarshal(text, &crd)).To(Succeed())
	var reasons []v1alpha1.StopReason
	for _, value := range crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["status"].Properties["stopReason"].Enum {
		var reason v1alpha1.StopReason
		Expect(json.Unmarshal(value.Raw, &reason)).To(Succeed())
		reasons = append(reasons, reason)
	}
	return reasons
}

var _ = Describe("A Turn with tools", Ordered, ContinueOnFailure, func() {
	var s *testEnv

	BeforeAll(func(ctx SpecContext) {
		s = newTestEnv(ctx, stoppingModel)
		host := newFakeToolServer()
		host.offer("lookup", readOnly, answering("It ships on Monday."))
		host.offer("hand_over", destructive, answering("Team network has it."))
		o := s.options()
		s.damage(ctx, "stop-interrupted", o.DataDir, o.ExecutorName)
		start(o)
		s.create(ctx, s.basics(withTools("desk"))...)
		s.create(ctx, newAgent("brief", func(a *v1alpha1.Agent) {
			a.Spec.Models[0].Parameters = &v1alpha1.ModelParameters{MaxOutputTokens: new(int32(3))}
		}))
		s.create(ctx, newProfile("strict", func(p *v1alpha1.PromptProfile) {
			p.Spec.OutputPolicy = []v1alpha1.OutputPolicy{{Name: "no-days", Expression: `!output.text.contains("Monday")`}}
		}), newAgent("strict", func(a *v1alpha1.Agent) { a.Spec.PromptProfileRef.Name = "strict" }))
		s.create(ctx, newToolServer("desk", host.url, func(o *v1alpha1.ToolServer) {
			o.Spec.Tools = []v1alpha1.ToolDeclaration{{Name: "hand_over", EndsTurn: v1alpha1.EndsTurnOnSuccess}}
		}))
		awaitText(ctx, s, &v1alpha1.Agent{}, agent, offered, HaveSuffix("[hand_over lookup]"))
		s.create(ctx, newSession(func(n *v1alpha1.Session) { n.Spec.Budget = &v1alpha1.SessionBudget{MaxTurns: new(int32(1))} }))
		s.create(ctx, newTurn("earlier", inSession))
		s.awaitState(ctx, "earlier", v1alpha1.TurnReasonCompleted)
		for _, e := range stops { // create all before waiting for one, because they are independent
			if e.stop == v1alpha1.StopInterrupted {
				continue // damage has created it already
			}
			t := newTurn("stop-" + e.name)
			if e.turn != nil {
				e.turn(t)
			}
			s.create(ctx, t)
		}
		s.awaitRequests(ctx, "stop-cancelled", 2)
		s.desire(ctx, "stop-cancelled", v1alpha1.DesiredStateCancelled)
	}, NodeTimeout(2*patience))

	for _, e := range stops {
		It("ends with stopReason "+string(e.stop)+": "+e.name, func(ctx SpecContext) {
			name := "stop-" + e.name
			t := s.awaitState(ctx, name, e.reason)
			Expect(t.Status.StopReason).To(Equal(e.stop))
			Expect(conditionsOf(t.Status.Conditions)).To(ContainElement("Succeeded=" + string(e.status) + " " + e.reason))
			Expect(t.Status.CompletionTime).NotTo(BeNil())
			Expect(t.Status.Steps).To(Equal(e.steps))
			if e.text == "" {
				Expect(t.Status.Result).To(BeNil())
			} else {
				Expect(t.Status.Result).To(HaveValue(HaveField("Text", e.text)))
				Expect(t.Status.Result.Data).To(BeNil())
			}
			input, output := s.bill(name)
			if e.free {
				Expect(t.Status.Usage).To(BeNil())
				Expect(input + output).To(BeZero())
				return
			}
			Expect(t.Status.Usage.Estimated).To(Equal(e.cutOff))
			if e.cutOff {
				Expect(t.Status.Usage.InputTokens).To(And(BeNumerically(">", input), BeNumerically("<", 4*input)),
					"the usage, and an estimate of the prompt of the request that was cut off")
				input = t.Status.Usage.InputTokens
			}
			Expect([]int64{t.Status.Usage.InputTokens, t.Status.Usage.OutputTokens, t.Status.Usage.TotalTokens}).To(
				Equal([]int64{input, output, input + output}), "the status must have exactly the usage that the endpoint has billed")
			Expect(t.Status.Usage.Cost).To(HaveValue(HaveField("Currency", "USD")))
			if e.cost != "" {
				Expect(t.Status.Usage.Cost.Amount).To(Equal(e.cost))
			}
		}, SpecTimeout(patience))
	}

	It("has no other stopReason", func() {
		// The stop reasons of capacity_test.go, which needs a manager with a short queue, and those of undo_test.go.
		known := map[v1alpha1.StopReason]bool{
			v1alpha1.StopQueueFull: true, v1alpha1.StopUndone: true, v1alpha1.StopUndoIncomplete: true,
		}
		for _, e := range stops {
			known[e.stop] = true
		}
		for _, reason := range stopReasons() {
			Expect(known).To(HaveKey(reason))
			delete(known, reason)
		}
		Expect(known).To(BeEmpty())
	})
})

// awaitRequests waits until the model has received this many requests that contain a text.
func (s *testEnv) awaitRequests(ctx context.Context, about string, times int) {
	GinkgoHelper()
	Eventually(func() int {
		n := 0
		for _, r := range s.fake.Requests() {
			if bytes.Contains(r.Body, []byte(about)) {
				n++
			}
		}
		return n
	}).WithContext(ctx).Should(Equal(times))
}
