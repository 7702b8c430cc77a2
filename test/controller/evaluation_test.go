package controller_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gexec"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/executor"
	"github.com/capstan-dev/capstan/internal/manager"
	"github.com/capstan-dev/capstan/internal/manifest"
	"github.com/capstan-dev/capstan/internal/runtime/task"
	"github.com/capstan-dev/capstan/internal/runtime/turnrecord"
	"github.com/capstan-dev/capstan/internal/store"
	"github.com/capstan-dev/capstan/internal/store/postgres/postgrestest"
	"github.com/capstan-dev/capstan/internal/store/sqlite"
	"github.com/capstan-dev/capstan/test/fakemodel/server"
	"github.com/capstan-dev/capstan/test/harness/harnesstest"
)

const (
	// judges answers the questions of judges with a high score, and repeats the message of all other requests.
	judges = `rules: [{when: {systemContains: You judge}, reply: {text: '{"score": 95, "reason": "As it should be."}'}}]`
	// stuckJudges never answers the questions of judges.
	stuckJudges = `rules: [{when: {systemContains: You judge}, fault: {hang: BeforeHeaders}}]`
)

// relevance is a judge that asks whether answers are relevant.
func relevance(name string) v1alpha1.Judge {
	return v1alpha1.Judge{Name: name, Type: v1alpha1.JudgeRelevance, Threshold: "0.7"}
}

// judgedBy sets the judges of a profile. Without arguments, it sets one judge named relevant.
func judgedBy(all ...v1alpha1.Judge) func(*v1alpha1.PromptProfile) {
	if len(all) == 0 {
		all = []v1alpha1.Judge{relevance("relevant")}
	}
	return func(p *v1alpha1.PromptProfile) { p.Spec.Judges = all }
}

// evaluating makes an Agent evaluate its answers.
func evaluating(change ...func(*v1alpha1.AgentEvaluation)) func(*v1alpha1.Agent) {
	return func(a *v1alpha1.Agent) { a.Spec.Evaluation = build(&v1alpha1.AgentEvaluation{}, change) }
}

func perHour(n int32) func(*v1alpha1.AgentEvaluation) {
	return func(e *v1alpha1.AgentEvaluation) { e.MaxPerHour = &n }
}

// evaluationSlots lets a manager evaluate and learn from this number of Turns at the same time.
func evaluationSlots(n int) func(*manager.Options) {
	return func(o *manager.Options) { o.MaxConcurrentEvaluations = n }
}

// evaluates creates the objects of an Agent that evaluates its answers by a profile.
func (s *testEnv) evaluates(ctx context.Context, p *v1alpha1.PromptProfile, change ...func(*v1alpha1.AgentEvaluation)) {
	GinkgoHelper()
	s.create(ctx, newSecret(secretName, apiKey), s.newProvider(provider), p, newAgent(agent, evaluating(change...)))
}

// awaitVerdicts waits until a Turn has evaluations, and returns them as "NAME RESULT SCORE" with the Turn.
func (s *testEnv) awaitVerdicts(ctx context.Context, name string) ([]string, *v1alpha1.Turn) {
	GinkgoHelper()
	var all []string
	var t v1alpha1.Turn
	Eventually(func(g Gomega) {
		g.Expect(apiClient.Get(ctx, s.key(name), &t)).To(Succeed())
		g.Expect(t.Status.Evaluations).NotTo(BeEmpty(), message(&t))
	}).WithContext(ctx).Should(Succeed())
	for _, e := range t.Status.Evaluations {
		line := e.Name + " " + string(e.Result)
		if e.Score != nil {
			line += " " + *e.Score
		}
		all = append(all, line)
	}
	return all, &t
}

func finalizedReason(t *v1alpha1.Turn) string {
	c := meta.FindStatusCondition(t.Status.Conditions, v1alpha1.ConditionFinalized)
	if c == nil {
		return ""
	}
	return string(c.Status) + " " + c.Reason
}

func finalizedMessage(t *v1alpha1.Turn) string {
	return meta.FindStatusCondition(t.Status.Conditions, v1alpha1.ConditionFinalized).Message
}

// awaitSkips waits until the log reports this number of evaluations that were skipped for a reason.
func (m *runningManager) awaitSkips(ctx context.Context, why task.Skip, count int) {
	GinkgoHelper()
	Eventually(func() int { return strings.Count(m.logs.String(), fmt.Sprintf(`"skipped"="%s"`, why)) }).
		WithContext(ctx).Should(Equal(count))
}

// record returns the record of a Turn.
func (m *runningManager) record(ctx context.Context, t *v1alpha1.Turn) turnrecord.Record {
	GinkgoHelper()
	s, err := sqlite.OpenReader(ctx, m.options.DataDir+"/journal.db")
	Expect(err).NotTo(HaveOccurred())
	all, _, err := s.Records(ctx, store.RecordQuery{RecordSelector: store.RecordSelector{Namespace: t.Namespace, Turn: t.Name}})
	Expect(errors.Join(err, s.Close())).To(Succeed())
	Expect(all).To(HaveLen(1))
	return all[0]
}

var _ = Describe("Answers of an Agent that evaluates them", func() {
	It("get the scores of all judges after their Turn has ended", func(ctx SpecContext) {
		s := newTestEnv(ctx, judges)
		custom := v1alpha1.Judge{Name: "polite", Type: v1alpha1.JudgeCustom, Prompt: "It is polite.", Threshold: "1"}
		s.evaluates(ctx, newProfile(profile, judgedBy(relevance("relevant"), custom)))
		s.run(evaluationSlots(2))
		s.create(ctx, newTurn("first"))
		got, t := s.awaitVerdicts(ctx, "first")
		Expect(got).To(Equal([]string{"relevant Passed 0.95", "polite Failed 0.95"}))
		Expect(t.StateReason()).To(Equal(v1alpha1.TurnReasonCompleted), "a bad answer must not fail the Turn")
		Expect(finalizedReason(t)).To(Equal("True Finalized"))
		e := t.Status.Evaluations[1]
		Expect(e.Reason).To(Equal("As it should be."))
		Expect(e.Type).To(Equal(v1alpha1.JudgeCustom))
		Expect(e.Model).To(Equal(provider + "/" + modelName))
		Expect(e.Threshold).To(Equal("1"))
		Expect(e.Usage).To(HaveField("Cost", HaveValue(HaveField("Currency", "USD"))))
		Expect(t.Status.Steps.ModelRequests).To(BeEquivalentTo(1), "requests of judges are not requests of the Turn")
		Expect(s.fake.Stats().Requests).To(BeEquivalentTo(3))
		var a v1alpha1.Agent
		Expect(apiClient.Get(ctx, s.key(agent), &a)).To(Succeed())
		Expect(conditionsOf(a.Status.Conditions)).To(ContainElement(ContainSubstring(v1alpha1.ConditionJudgesResolved)))
	}, SpecTimeout(patience))

	It("are evaluated like those of the example", func(ctx SpecContext) {
		s := newTestEnvWith(ctx, harnesstest.DemoRules(GinkgoTB(), filepath.Join("..", "..")))
		directory := filepath.Join("..", "..", "examples", "eval", "manifests")
		set, err := manifest.Load(ctx, []string{directory}, manifest.Options{})
		Expect(err).NotTo(HaveOccurred())
		t := set.Turns()[0]
		a, _ := set.Agent(t.Namespace, t.Spec.AgentRef.Name)
		p, _ := set.PromptProfile(t.Namespace, a.Spec.PromptProfileRef.Name)
		m, _ := set.ModelProvider(t.Namespace, a.Spec.Models[0].ProviderRef.Name)
		key, _ := set.Secret(t.Namespace, m.Spec.CredentialsRef.Name)
		m.Spec.BaseURL = s.baseURL
		s.run(evaluationSlots(2))
		s.create(ctx, key, m, p, a, t)
		got, t := s.awaitVerdicts(ctx, t.Name)
		Expect(got).To(Equal([]string{"faithful Passed 0.95", "polite Passed 0.95"}))
		Expect(t.Status.Evaluations[1].Model).To(Equal("eval/demo-large"), "the model that the judge names is one of the Agent's")
	}, SpecTimeout(patience))

	It("are not evaluated without spec.evaluation, outside of the sample, or without an answer", func(ctx SpecContext) {
		s := newTestEnv(ctx, judges)
		none := func(e *v1alpha1.AgentEvaluation) { e.SamplePercent = new(int32(0)) }
		s.evaluates(ctx, newProfile(profile, judgedBy()), none)
		s.create(ctx, newAgent("quiet"), newAgent("judged", evaluating()))
		s.run(evaluationSlots(2))
		ofAgent := func(name string) func(*v1alpha1.Turn) {
			return func(t *v1alpha1.Turn) { t.Spec.AgentRef.Name = name }
		}
		s.create(ctx, newTurn("unsampled"), newTurn("quiet", ofAgent("quiet")),
			newTurn("prepared", ofAgent("judged"), prepareOnly))
		s.awaitState(ctx, "unsampled", v1alpha1.TurnReasonCompleted)
		s.awaitState(ctx, "quiet", v1alpha1.TurnReasonCompleted)
		s.awaitState(ctx, "prepared", v1alpha1.TurnReasonPrepared)
		s.create(ctx, newTurn("judged", ofAgent("judged")))
		s.awaitVerdicts(ctx, "judged") // it was queued last
		for _, name := range []string{"unsampled", "quiet", "prepared"} {
			Expect(s.turn(ctx, name).Status.Evaluations).To(BeEmpty(), name)
		}
		Expect(s.fake.Stats().Requests).To(BeEquivalentTo(4))
	}, SpecTimeout(patience))

	DescribeTable("are kept if a judge fails", func(ctx SpecContext, reply, reason string) {
		s := newTestEnv(ctx, `rules: [{when: {systemContains: You judge}, `+reply+`}]`)
		s.evaluates(ctx, newProfile(profile, judgedBy()))
		s.run(evaluationSlots(2))
		s.create(ctx, newTurn("first"))
		got, t := s.awaitVerdicts(ctx, "first")
		Expect(got).To(Equal([]string{"relevant Error"}))
		Expect(t.Status.Evaluations[0].Reason).To(ContainSubstring(reason))
		Expect(t.StateReason()).To(Equal(v1alpha1.TurnReasonCompleted))
		Expect(t.Status.Result).To(HaveField("Text", ContainSubstring("first")))
		Expect(finalizedReason(t)).To(Equal("False EvaluationFailed"))
	},
		Entry("without a verdict", `reply: {text: "score 1.0, and I am sure"}`, "no usable verdict", SpecTimeout(patience)),
		Entry("with a fraction", `reply: {text: '{"score": 0.95, "reason": "x"}'}`, "no usable score", SpecTimeout(patience)),
		Entry("because its model refuses", `fault: {status: 401}`, "401", SpecTimeout(patience)),
	)

	It("contain no credential that a judge repeats", func(ctx SpecContext) {
		hidden := strings.ReplaceAll(apiKey, "-", "\u200b-\u200b")
		s := newTestEnv(ctx, `rules: [{when: {systemContains: You judge}, reply: {text: '{"score": 95, "reason": "It is `+hidden+`"}'}}]`)
		s.evaluates(ctx, newProfile(profile, judgedBy()))
		s.run(evaluationSlots(2))
		s.create(ctx, newTurn("first"))
		_, t := s.awaitVerdicts(ctx, "first")
		Expect(t.Status.Evaluations[0].Reason).To(Equal("It is [redacted]"))
	}, SpecTimeout(patience))

	It("are judged with the earlier messages of their Session", func(ctx SpecContext) {
		s := newTestEnv(ctx, `rules:
- when: {systemContains: You judge, contains: "[user] The printer is on floor 7."}
  reply: {text: '{"score": 95, "reason": "It is said."}'}
- {when: {systemContains: You judge}, reply: {text: '{"score": 5, "reason": "Nobody has said so."}'}}
- {when: {contains: Where}, reply: {text: "On floor 7."}}
- {reply: {text: "Noted."}}`)
		s.evaluates(ctx, newProfile(profile, judgedBy()))
		s.run(evaluationSlots(2))
		s.create(ctx, newSession())
		for _, message := range []string{"The printer is on floor 7.", "Where is the printer?"} {
			t := newTurn(fmt.Sprintf("turn-%d", len(message)), inSession, func(t *v1alpha1.Turn) { t.Spec.Message = message })
			s.create(ctx, t)
			s.awaitState(ctx, t.Name, v1alpha1.TurnReasonCompleted)
			got, _ := s.awaitVerdicts(ctx, t.Name)
			Expect(got).To(Equal([]string{"relevant Passed 0.95"}), message)
		}
	}, SpecTimeout(patience))

	It("are judged only by models that the Agent allows", func(ctx SpecContext) {
		s := newTestEnv(ctx, judges)
		costly := relevance("relevant")
		costly.ModelRef = &v1alpha1.JudgeModelReference{ProviderRef: v1alpha1.ObjectReference{Name: "costly"}, Model: "huge"}
		cheap := relevance("cheap")
		cheap.ModelRef = &v1alpha1.JudgeModelReference{ProviderRef: v1alpha1.ObjectReference{Name: provider}, Model: "second"}
		s.evaluates(ctx, newProfile(profile, judgedBy(costly, cheap)), func(e *v1alpha1.AgentEvaluation) {
			e.Models = []v1alpha1.ModelReference{
				{ProviderRef: v1alpha1.SharedReference{Name: provider}, Model: "small"},
				{ProviderRef: v1alpha1.SharedReference{Name: provider}, Model: "second"},
			}
		})
		s.create(ctx, s.newProvider("costly"))
		s.run(evaluationSlots(2))
		s.create(ctx, newTurn("first"))
		_, t := s.awaitVerdicts(ctx, "first")
		Expect(t.Status.Evaluations[0].Model).To(Equal(provider + "/small"))
		Expect(t.Status.Evaluations[1].Model).To(Equal(provider + "/second"))
		Expect(s.fake.Stats().ByModel).To(Equal(map[string]int64{modelName: 1, "small": 1, "second": 1}))
		awaitText(ctx, s, &v1alpha1.Agent{}, agent, func(a *v1alpha1.Agent) string {
			if c := meta.FindStatusCondition(a.Status.Conditions, v1alpha1.ConditionJudgesResolved); c != nil {
				return string(c.Status) + " " + c.Reason + " " + c.Message
			}
			return ""
		}, And(HavePrefix("False JudgeModelNotAllowed"), ContainSubstring(`judge "relevant"`), ContainSubstring("costly/huge")))
	}, SpecTimeout(patience))

	It("do not wait for judges that hang, which have half of the slots of evaluations", func(ctx SpecContext) {
		const turns, slots = 200, 4
		s := newTestEnv(ctx, stuckJudges)
		s.evaluates(ctx, newProfile(profile, judgedBy()), perHour(turns))
		s.run(evaluationSlots(slots))
		s.create(ctx, newTurns(turns)...)
		for _, t := range s.awaitAll(ctx, turns, v1alpha1.TurnReasonCompleted) {
			Expect(t.Status.Evaluations).To(BeEmpty())
			Expect(t.Status.Steps).To(HaveValue(HaveField("ModelRequests", BeEquivalentTo(1))))
		}
		s.awaitInFlight(ctx, slots/2)
		Expect(s.fake.Stats().Requests).To(BeEquivalentTo(turns+slots/2), "all Turns ended before any judge answered")
	}, SpecTimeout(2*patience))

	It("are evaluated within the limits of the Agent", func(ctx SpecContext) {
		s := newTestEnv(ctx, judges)
		s.evaluates(ctx, newProfile(profile, judgedBy()), perHour(1))
		s.create(ctx, newAgent("frugal", evaluating(func(e *v1alpha1.AgentEvaluation) { e.MaxTokensPerDay = new(int64(1000)) })))
		m := s.run(evaluationSlots(1))
		s.create(ctx, newTurn("first"))
		s.awaitVerdicts(ctx, "first")
		s.create(ctx, newTurn("second"), newTurn("third", func(t *v1alpha1.Turn) { t.Spec.AgentRef.Name = "frugal" }))
		m.awaitSkips(ctx, task.HourlyLimit, 1)
		m.awaitSkips(ctx, task.TokenLimit, 1)
		for _, name := range []string{"second", "third"} {
			t := s.awaitState(ctx, name, v1alpha1.TurnReasonCompleted)
			Expect(t.Status.Evaluations).To(BeEmpty())
			Expect(finalizedReason(t)).To(Equal("True Finalized"), "an evaluation beyond a limit is skipped, and has not failed")
		}
		Expect(s.fake.Stats().Requests).To(BeEquivalentTo(4))
	}, SpecTimeout(patience))

	It("count towards Budgets, which stop evaluations but not the Turn", func(ctx SpecContext) {
		s := newTestEnv(ctx, `rules:
- {when: {systemContains: You judge}, times: 1, reply: {text: "It is as it should be."}} # which is no verdict
- {when: {systemContains: You judge}, reply: {text: '{"score": 95, "reason": "As it should be."}'}}`)
		s.evaluates(ctx, newProfile(profile, judgedBy()))
		s.create(ctx, newBudget("month", func(b *v1alpha1.Budget) {
			b.Spec.Limits = v1alpha1.BudgetLimits{Tokens: new(int64(1_000_000))}
		}))
		m := s.run(evaluationSlots(1))
		s.create(ctx, newTurn("first"))
		_, t := s.awaitVerdicts(ctx, "first")
		spent := t.Status.Usage.TotalTokens + t.Status.Evaluations[0].Usage.TotalTokens
		awaitText(ctx, s, &v1alpha1.Budget{}, "month", func(b *v1alpha1.Budget) string {
			if b.Status.Spent == nil {
				return ""
			}
			return fmt.Sprint(b.Status.Spent.Tokens)
		}, Equal(fmt.Sprint(spent)))
		expenses := m.record(ctx, t).Expenses
		Expect(expenses).To(HaveLen(1))
		Expect(expenses[0]).To(And(HaveField("For", "evaluation"), HaveField("Model", modelName), HaveField("Requests", BeEquivalentTo(2))))
		Expect(expenses[0].Usage.InputTokens + expenses[0].Usage.OutputTokens).To(Equal(t.Status.Evaluations[0].Usage.TotalTokens))
		Expect(s.fake.Stats().Requests).To(BeEquivalentTo(3))

		change(ctx, s, "month", &v1alpha1.Budget{}, func(b *v1alpha1.Budget) { b.Spec.Limits.Tokens = new(spent + 1500) })
		s.awaitReason(ctx, "month", v1alpha1.ConditionReady, v1alpha1.ReasonReady)
		s.create(ctx, newTurn("second"))
		s.awaitState(ctx, "second", v1alpha1.TurnReasonCompleted)
		m.awaitSkips(ctx, task.BudgetExceeded, 1)
		Expect(s.fake.Stats().Requests).To(BeEquivalentTo(4), "no judge was asked")
	}, SpecTimeout(2*patience))

	It("are judged by the profile of their prompt, if their Agent still evaluates", func(ctx SpecContext) {
		s := newTestEnv(ctx, stuckJudges)
		s.evaluates(ctx, newProfile(profile, judgedBy()))
		s.create(ctx, newAgent("brief", evaluating()))
		m := s.run(evaluationSlots(1))
		s.create(ctx, newTurn("stuck"))
		s.awaitReceived(ctx, 2) // the request of the Turn, and the request of its judge
		s.awaitInFlight(ctx, 1) // the only slot is in use
		s.create(ctx, newTurn("second"), newTurn("third", func(t *v1alpha1.Turn) { t.Spec.AgentRef.Name = "brief" }), newTurn("fourth"))
		s.awaitAll(ctx, 4, v1alpha1.TurnReasonCompleted)
		change(ctx, s, profile, &v1alpha1.PromptProfile{}, judgedBy(relevance("newer")))
		Expect(apiClient.Delete(ctx, &v1alpha1.Agent{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "brief"}})).To(Succeed())
		Expect(apiClient.Delete(ctx, s.turn(ctx, "fourth"))).To(Succeed())
		m.stop()
		Expect(s.fake.SetConfig(config(judges))).To(Succeed())

		o := m.options
		o.MaxConcurrentEvaluations = 2
		m = start(o)
		for _, name := range []string{"stuck", "second"} {
			got, _ := s.awaitVerdicts(ctx, name)
			Expect(got).To(Equal([]string{"relevant Passed 0.95"}), name)
		}
		m.awaitSkips(ctx, task.NotEnabled, 1)
		Expect(s.turn(ctx, "third").Status.Evaluations).To(BeEmpty())
	}, SpecTimeout(2*patience))

	It("are kept if the Secret of a judge's model is missing", func(ctx SpecContext) {
		s := newTestEnv(ctx, judges)
		s.evaluates(ctx, newProfile(profile, judgedBy()), func(e *v1alpha1.AgentEvaluation) {
			e.Models = []v1alpha1.ModelReference{{ProviderRef: v1alpha1.SharedReference{Name: "keyless"}, Model: modelName}}
		})
		s.create(ctx, s.newProvider("keyless", func(p *v1alpha1.ModelProvider) { p.Spec.CredentialsRef.Name = "missing" }))
		s.run(evaluationSlots(1))
		s.create(ctx, newTurn("first"))
		got, t := s.awaitVerdicts(ctx, "first")
		Expect(got).To(Equal([]string{"relevant Error"}))
		Expect(t.Status.Evaluations[0].Reason).To(ContainSubstring("missing"))
		Expect(t.StateReason()).To(Equal(v1alpha1.TurnReasonCompleted))
		Expect(s.fake.Stats().Requests).To(BeEquivalentTo(1), "no judge was asked")
	}, SpecTimeout(patience))

	It("get each verdict once, also if the manager stops between two judges", func(ctx SpecContext) {
		s := newTestEnv(ctx, `rules:
- {when: {systemContains: It is polite.}, fault: {hang: BeforeHeaders}}
- {when: {systemContains: You judge}, reply: {text: '{"score": 95, "reason": "As it should be."}'}}`)
		polite := v1alpha1.Judge{Name: "polite", Type: v1alpha1.JudgeCustom, Prompt: "It is polite.", Threshold: "1"}
		s.evaluates(ctx, newProfile(profile, judgedBy(relevance("relevant"), relevance("fitting"), polite)))
		m := s.run(evaluationSlots(1))
		s.create(ctx, newTurn("first"))
		s.awaitReceived(ctx, 4) // the request of the Turn, and the requests of its judges
		s.awaitInFlight(ctx, 1) // the last judge does not answer
		m.stop()
		Expect(s.fake.SetConfig(config(judges))).To(Succeed())

		m = start(m.options)
		got, t := s.awaitVerdicts(ctx, "first")
		Expect(got).To(Equal([]string{"relevant Passed 0.95", "fitting Passed 0.95", "polite Failed 0.95"}))
		stats := s.fake.Stats()
		Expect(stats.Requests).To(BeEquivalentTo(5), "only the judge without a verdict is asked again")
		Expect(stats.ByOutcome).To(Equal(map[server.Outcome]int64{server.OutcomeAnswered: 4, server.OutcomeCancelled: 1}))
		used := t.Status.Usage.TotalTokens
		for _, e := range t.Status.Evaluations {
			Expect(e.Usage).NotTo(BeNil(), e.Name)
			used += e.Usage.TotalTokens
		}
		Expect(used).To(Equal(stats.PromptTokens+stats.CompletionTokens), "the usage of all replies, each once")
		Eventually(func() []turnrecord.Evaluation { return m.record(ctx, t).Evaluations }).WithContext(ctx).Should(HaveLen(3))
	}, SpecTimeout(2*patience))

	It("are not judged once the Agent no longer evaluates", func(ctx SpecContext) {
		s := newTestEnv(ctx, stuckJudges)
		s.evaluates(ctx, newProfile(profile, judgedBy()))
		m := s.run(evaluationSlots(1))
		s.create(ctx, newTurn("stuck"))
		s.awaitReceived(ctx, 2) // the request of the Turn, and the request of its judge
		s.awaitInFlight(ctx, 1) // the only slot is in use
		s.create(ctx, newTurn("waiting"))
		s.awaitState(ctx, "waiting", v1alpha1.TurnReasonCompleted)
		change(ctx, s, agent, &v1alpha1.Agent{}, func(a *v1alpha1.Agent) { a.Spec.Evaluation = nil })
		Expect(apiClient.Delete(ctx, s.turn(ctx, "stuck"))).To(Succeed())
		m.awaitSkips(ctx, task.NotEnabled, 1)
		Expect(s.turn(ctx, "waiting").Status.Evaluations).To(BeEmpty())
		Expect(s.fake.Stats().Requests).To(BeEquivalentTo(3), "no judge was asked about the second answer")
	}, SpecTimeout(patience))

	It("do not keep a Turn beyond its TTL", func(ctx SpecContext) {
		s := newTestEnv(ctx, stuckJudges)
		s.evaluates(ctx, newProfile(profile, judgedBy()))
		m := s.run(evaluationSlots(1))
		s.create(ctx, newTurn("first"))
		s.awaitReceived(ctx, 2) // the request of the Turn, and the request of its judge
		s.awaitInFlight(ctx, 1)
		change(ctx, s, "first", &v1alpha1.Turn{}, func(t *v1alpha1.Turn) { t.Spec.TTLSecondsAfterFinished = new(int32(0)) })
		Eventually(m.journals).WithArguments(ctx).WithContext(ctx).Should(BeEmpty())
		s.awaitInFlight(ctx, 0)
		Expect(apierrors.IsNotFound(apiClient.Get(ctx, s.key("first"), &v1alpha1.Turn{}))).To(BeTrue())
	}, SpecTimeout(patience))

	It("are no longer judged when their Turn is deleted", func(ctx SpecContext) {
		s := newTestEnv(ctx, stuckJudges)
		s.evaluates(ctx, newProfile(profile, judgedBy()))
		m := s.run(evaluationSlots(1))
		s.create(ctx, newTurn("first"))
		s.awaitReceived(ctx, 2) // the request of the Turn, and the request of its judge
		s.awaitInFlight(ctx, 1)
		Expect(apiClient.Delete(ctx, s.turn(ctx, "first"))).To(Succeed())
		s.awaitInFlight(ctx, 0)
		Eventually(m.logs.String).WithContext(ctx).Should(ContainSubstring("Stopped a task"))
	}, SpecTimeout(patience))
})

var _ = Describe("Managers that share a PostgreSQL", func() {
	It("evaluate each answer once, and publish the evaluations of a killed manager", func(ctx SpecContext) {
		program := buildManager(ctx)
		s := newTestEnv(ctx, judges)
		databaseURL := postgrestest.Database(GinkgoTB())
		s.evaluates(ctx, newProfile(profile, judgedBy()))
		// The first manager stores evaluations, and cannot publish them.
		first := s.share(ctx, program, "first", databaseURL, refusing(http.MethodPut, "/status", `"evaluations":[`))
		const turns = 10
		s.create(ctx, newTurns(turns)...)
		s.awaitAll(ctx, turns, v1alpha1.TurnReasonCompleted)
		Eventually(func() int64 { return s.fake.Stats().ByOutcome[server.OutcomeAnswered] }).WithContext(ctx).Should(
			BeNumerically(">=", turns+2), "judges have answered")
		Eventually(first.Kill()).Should(gexec.Exit(137))
		s.share(ctx, program, "second", databaseURL, apiConfig)
		s.share(ctx, program, "third", databaseURL, apiConfig)
		for i := range turns {
			got, _ := s.awaitVerdicts(ctx, fmt.Sprintf("turn-%03d", i))
			Expect(got).To(Equal([]string{"relevant Passed 0.95"}))
		}
		stats := s.fake.Stats()
		Expect(stats.ByOutcome[server.OutcomeAnswered]).To(And(BeNumerically(">=", 2*turns), BeNumerically("<=", 2*turns+2)),
			"a stored evaluation is not requested again; the kill cuts off the evaluations of at most two slots")
	}, SpecTimeout(4*patience))
})

// panickingTasks is a store that panics when an evaluation begins.
type panickingTasks struct{ executor.TaskStore }

func (panickingTasks) BeginTask(context.Context, task.Held, task.Start) error {
	panic("a bug with a secret")
}

var _ = Describe("An evaluation", func() {
	It("that panics has failed, and its Turn keeps its answer", func(ctx SpecContext) {
		s := newTestEnv(ctx, judges)
		s.evaluates(ctx, newProfile(profile, judgedBy()))
		m := s.run(evaluationSlots(2), func(o *manager.Options) {
			o.Hooks.Tasks = func(s executor.TaskStore) executor.TaskStore { return panickingTasks{s} }
		})
		s.create(ctx, newTurn("first"))
		got, t := s.awaitVerdicts(ctx, "first")
		Expect(got).To(Equal([]string{"relevant Error"}))
		Expect(t.Status.Evaluations[0].Reason).To(ContainSubstring("because of a bug in Capstan"))
		Expect(t.StateReason()).To(Equal(v1alpha1.TurnReasonCompleted))
		Expect(finalizedReason(t)).To(Equal("False EvaluationFailed"))
		Expect(m.logs.String()).NotTo(ContainSubstring("a bug with a secret"), "the value of the panic may be a part of the answer")
		Expect(s.fake.Stats().Requests).To(BeEquivalentTo(1))
	}, SpecTimeout(patience))

	It("of the Turn of another namespace's Agent asks the models of that namespace", func(ctx SpecContext) {
		l := lend(ctx, `{apiKeys: [`+platformKey+`], `+judges+`}`, allowFrom(v1alpha1.NamespacesFromAll, nil), evaluating())
		l.options.MaxConcurrentEvaluations = 2
		l.restart()
		change(ctx, l.owner, profile, &v1alpha1.PromptProfile{}, judgedBy())
		Eventually(l.team.tools(ctx, agent)).WithContext(ctx).Should(HavePrefix("True "))
		awaitText(ctx, l.owner, &v1alpha1.PromptProfile{}, profile, profileReadiness, HavePrefix("Ready: "))
		l.team.create(ctx, newTurn("parent", asking("delegate subtask one")))
		parent := l.team.awaitState(ctx, "parent", v1alpha1.TurnReasonCompleted)
		got, child := l.team.awaitVerdicts(ctx, l.team.awaitChild(ctx, "parent").Name)
		Expect(got).To(Equal([]string{"relevant Passed 0.95"}))
		Expect(child.Status.Evaluations[0].Model).To(Equal(l.owner.namespace + "/" + provider + "/" + modelName))
		Expect(parent.Status.Evaluations).To(BeEmpty(), "its Agent does not evaluate its answers")
		Expect(l.owner.fake.Stats().Requests).To(BeEquivalentTo(2), "one request for the answer, and one for the verdict of the judge")
		Expect(l.team.fake.Stats().Requests).To(BeEquivalentTo(2), "two requests for the answer of the caller, and none of a judge")
	}, SpecTimeout(2*patience))
})
