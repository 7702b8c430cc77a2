package controller_test

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/manager"
	"github.com/capstan-dev/capstan/internal/runtime/prompt"
	"github.com/capstan-dev/capstan/internal/runtime/session"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
	"github.com/capstan-dev/capstan/internal/runtime/untrusted"
	"github.com/capstan-dev/capstan/internal/store/sqlite"
)

// conversation is the name of the Session in these tests.
const conversation = "order-1042"

// inSession adds a Turn to the Session.
func inSession(t *v1alpha1.Turn) { t.Spec.SessionRef = &v1alpha1.ObjectReference{Name: conversation} }

func newSession(change ...func(*v1alpha1.Session)) *v1alpha1.Session {
	return build(&v1alpha1.Session{ObjectMeta: metav1.ObjectMeta{Name: conversation}}, change)
}

// session reads the Session.
func (s *testEnv) session(ctx context.Context) *v1alpha1.Session {
	GinkgoHelper()
	var found v1alpha1.Session
	Expect(apiClient.Get(ctx, s.key(conversation), &found)).To(Succeed())
	return &found
}

// prompts returns the model's requests, each as "role: content" of the messages after the system message.
func (s *testEnv) prompts() []string {
	GinkgoHelper()
	var all []string
	for _, messages := range s.heard() {
		var lines []string
		for _, m := range messages {
			if m.Role != "system" {
				lines = append(lines, m.Role+": "+m.Content)
			}
		}
		all = append(all, strings.Join(lines, " | "))
	}
	return all
}

// sentMessage is a message of a request.
type sentMessage struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// heard returns the messages of each model request.
func (s *testEnv) heard() [][]sentMessage {
	GinkgoHelper()
	var all [][]sentMessage
	for _, r := range s.fake.Requests() {
		var body struct {
			Messages []sentMessage `json:"messages"`
		}
		Expect(json.Unmarshal(r.Body, &body)).To(Succeed())
		all = append(all, body.Messages)
	}
	return all
}

var _ = Describe("A Session", func() {
	It("is created for the first Turn that names it, and each Turn sees the earlier messages", func(ctx SpecContext) {
		s := newTestEnv(ctx, `apiKeys: [right-key]`)
		s.run()
		s.create(ctx, s.basics()...)
		for _, name := range []string{"one", "two", "three"} {
			s.create(ctx, newTurn(name, inSession))
			t := s.awaitState(ctx, name, v1alpha1.TurnReasonCompleted)
			Expect(t.Status.Decision.SessionName).To(Equal(conversation))
		}
		Expect(s.prompts()).To(Equal([]string{
			"user: one",
			"user: one | assistant: This is demo-small. You said: one | user: two",
			"user: one | assistant: This is demo-small. You said: one | user: two | assistant: This is " +
				"demo-small. You said: two | user: three",
		}))
		Expect(s.turn(ctx, "three").Status.Decision.TurnNumber).To(BeEquivalentTo(3))
		status := s.session(ctx).Status
		Expect(status.Turns).To(BeEquivalentTo(3))
		Expect(status.LastTurnName).To(Equal("three"))
		var tokens int64
		for _, name := range []string{"one", "two", "three"} {
			tokens += s.turn(ctx, name).Status.Usage.TotalTokens
		}
		Expect(status.Usage.TotalTokens).To(Equal(tokens))
		Expect(meta.IsStatusConditionTrue(status.Conditions, v1alpha1.ConditionReady)).To(BeTrue())
	}, SpecTimeout(patience))

	It("runs its Turns one after another in the order of their creation, even within one second", func(ctx SpecContext) {
		s := newTestEnv(ctx, `apiKeys: [right-key]`)
		release := s.hold()
		s.run()
		s.create(ctx, s.basics()...)
		names := []string{"zebra", "ant", "mole", "bee", "yak"} // no sorting produces this order
		for _, name := range names {
			s.create(ctx, newTurn(name, inSession))
		}
		s.awaitStates(ctx, map[string]int{v1alpha1.TurnReasonRunning: 1, v1alpha1.TurnReasonWaitingForSession: 4})
		Expect(message(s.turn(ctx, "ant"))).To(ContainSubstring("zebra"))
		release()
		s.awaitAll(ctx, len(names), v1alpha1.TurnReasonCompleted)
		for i, name := range names {
			Expect(s.turn(ctx, name).Status.Decision.TurnNumber).To(BeEquivalentTo(i+1), name)
		}
	}, SpecTimeout(patience))

	It("gives its subject to the prompt and closes when its budget is used up", func(ctx SpecContext) {
		s := newTestEnv(ctx, `apiKeys: [right-key]`)
		s.run()
		s.create(ctx, append(s.basics(), newSession(func(n *v1alpha1.Session) {
			n.Spec.Subject, n.Spec.Budget = "Order 1042", &v1alpha1.SessionBudget{MaxTurns: new(int32(1))}
		}))...)
		s.create(ctx, newTurn("first", inSession), newTurn("second", inSession))
		s.awaitState(ctx, "first", v1alpha1.TurnReasonCompleted)
		t := s.awaitState(ctx, "second", v1alpha1.TurnReasonSessionClosed)
		Expect(t.Status.StopReason).To(Equal(v1alpha1.StopSessionClosed))
		Expect(message(t)).To(ContainSubstring("1 of 1 turns (spec.budget.maxTurns)"))
		Expect(s.heard()[0][0].Content).To(ContainSubstring("Order 1042"))
		Expect(s.fake.Stats().Requests).To(BeEquivalentTo(1))

		change(ctx, s, conversation, &v1alpha1.Session{}, func(n *v1alpha1.Session) { n.Spec.Budget.MaxTurns = new(int32(2)) })
		s.create(ctx, newTurn("third", inSession))
		Expect(s.awaitState(ctx, "third", v1alpha1.TurnReasonCompleted).Status.Decision.TurnNumber).To(BeEquivalentTo(2))
	}, SpecTimeout(patience))

	It("is a new conversation after it was deleted", func(ctx SpecContext) {
		s := newTestEnv(ctx, `apiKeys: [right-key]`)
		s.run()
		s.create(ctx, append(s.basics(), newTurn("before", inSession))...)
		s.awaitState(ctx, "before", v1alpha1.TurnReasonCompleted)
		Expect(apiClient.Delete(ctx, s.session(ctx))).To(Succeed())
		s.create(ctx, newTurn("after", inSession))
		Expect(s.awaitState(ctx, "after", v1alpha1.TurnReasonCompleted).Status.Decision.TurnNumber).To(BeEquivalentTo(1))
		Expect(s.prompts()[1]).To(Equal("user: after"))
	}, SpecTimeout(patience))

	It("keeps tool calls with their exact results", func(ctx SpecContext) {
		s := newTestEnvWith(ctx, config(`
apiKeys: [right-key]
rules:
- when: {contains: lookup, toolMessages: 0}
  reply: {text: "Let me look.", toolCalls: [{name: lookup, arguments: '{"key": "1042"}'}]}
- when: {contains: lookup, toolMessages: 1}
  reply: {text: "It has shipped."}
`))
		calls := make(chan tool.Call, 10)
		m := s.run(offering(tool.Tool{
			Tool: prompt.Tool{Name: "lookup", Parameters: []prompt.Parameter{{Name: "key", Required: true}}}, Effect: tool.ReadOnly,
			Caller: tool.CallerFunc(func(_ context.Context, c tool.Call) (tool.Result, error) {
				calls <- c
				return tool.Result{Content: `{"state":"shipped"}`}, nil
			}),
		}))
		s.create(ctx, append(s.basics(), newTurn("lookup", inSession))...)
		t := s.awaitState(ctx, "lookup", v1alpha1.TurnReasonCompleted)
		Expect(t.Status.Steps.Count).To(BeEquivalentTo(2))
		Expect(t.Status.Steps.ToolCalls).To(BeEquivalentTo(1))
		Expect(t.Status.Decision.Strategy).To(Equal(v1alpha1.StrategyToolAssisted))
		Expect((<-calls).IdempotencyKey).To(HavePrefix(string(t.UID) + "/1/"))
		s.create(ctx, newTurn("thanks", inSession))
		s.awaitState(ctx, "thanks", v1alpha1.TurnReasonCompleted)
		nonce := regexp.MustCompile(`<tool-output (\w+)>`).FindStringSubmatch(s.prompts()[1])
		Expect(nonce).To(HaveLen(2), "the output of a tool is fenced")
		Expect(s.prompts()[2]).To(Equal("user: lookup | assistant: Let me look. | tool: " +
			untrusted.Tool(nonce[1], "", `{"state":"shipped"}`) +
			" | assistant: It has shipped. | user: thanks"))

		uid := string(s.session(ctx).UID)
		m.stop()
		store, err := sqlite.Open(ctx, filepath.Join(m.options.DataDir, "journal.db"))
		Expect(err).NotTo(HaveOccurred())
		defer func() { Expect(store.Close()).To(Succeed()) }()
		history, err := session.Recall(ctx, store, uid, nil)
		Expect(err).NotTo(HaveOccurred())
		Expect(history.Turns).To(HaveLen(2))
		call := history.Turns[0].Messages[1].ToolCalls[0]
		Expect(fmt.Sprint(call.Name, call.Arguments)).To(Equal(`lookup{"key": "1042"}`))
		Expect(history.Turns[0].Messages[2].ToolCallID).To(Equal(call.ID))
	}, SpecTimeout(patience))

	It("continues after a restart has cut off one of its Turns", func(ctx SpecContext) {
		s := newTestEnv(ctx, `apiKeys: [right-key]`)
		m := s.run()
		s.create(ctx, append(s.basics(), newTurn("one", inSession))...)
		s.awaitState(ctx, "one", v1alpha1.TurnReasonCompleted)
		release := s.hold()
		s.create(ctx, newTurn("two", inSession), newTurn("three", inSession))
		s.awaitStates(ctx, map[string]int{
			v1alpha1.TurnReasonCompleted: 1, v1alpha1.TurnReasonRunning: 1,
			v1alpha1.TurnReasonWaitingForSession: 1,
		})
		m.stop()
		release()
		start(m.options)
		s.awaitAll(ctx, 3, v1alpha1.TurnReasonCompleted)
		Expect(s.turn(ctx, "two").Status.Decision.TurnNumber).To(BeEquivalentTo(2))
		Expect(s.turn(ctx, "three").Status.Decision.TurnNumber).To(BeEquivalentTo(3))
		Expect(s.session(ctx).Status.Turns).To(BeEquivalentTo(3))
	}, SpecTimeout(patience))
})

// offering makes the manager offer a tool to all Agents.
func offering(t tool.Tool) func(*manager.Options) {
	return func(o *manager.Options) {
		o.Hooks.Tools = func(context.Context, *v1alpha1.Agent) []tool.Tool { return []tool.Tool{t} }
	}
}
