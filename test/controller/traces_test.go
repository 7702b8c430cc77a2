package controller_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gexec"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/manager"
	"github.com/capstan-dev/capstan/internal/store/postgres/postgrestest"
	"github.com/capstan-dev/capstan/test/otlp"
)

// tracedModel searches, then asks the helper, then deletes, and then answers. It does not answer the first request
// after the search.
const tracedModel = `
rules:
- when: {systemContains: You judge}
  reply: {text: '{"score": 95, "reason": "As it should be."}'}
- when: {contains: "subtask"}
  reply: {text: "The answer is 42."}
- when: {contains: tidy, toolMessages: 0}
  reply: {toolCalls: [{name: search}]}
- when: {contains: tidy, toolMessages: 1}
  times: 1
  fault: {hang: AfterHeaders}
- when: {contains: tidy, toolMessages: 1}
  reply: {toolCalls: [{name: helper, arguments: '{"task": "subtask one", "context": "It is blue."}'}]}
- when: {contains: tidy, toolMessages: 2}
  reply: {toolCalls: [{name: delete, arguments: '{"name": "a"}'}]}
- when: {contains: tidy}
  reply: {text: "Done."}
`

// serveCollector serves a receiver over gRPC and returns its address. The end of the spec stops it.
func serveCollector(r *otlp.Receiver) string {
	GinkgoHelper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	Expect(err).NotTo(HaveOccurred())
	server := grpc.NewServer()
	collector.RegisterTraceServiceServer(server, r)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	DeferCleanup(func() {
		server.Stop()
		Expect(<-ended).To(Succeed())
	})
	return listener.Addr().String()
}

var _ = Describe("The trace of a Turn whose executors are killed", func() {
	It("is one tree, with the Turn of its sub-agent, over gRPC", func(ctx SpecContext) {
		program := buildManager(ctx)
		s, host := newTestEnv(ctx, tracedModel), newFakeToolServer()
		host.offer("search", readOnly, answering("Found."))
		host.offer("delete", destructive, answering("Deleted."))
		databaseURL := postgrestest.Database(GinkgoTB())
		var receiver otlp.Receiver
		traced := []string{
			"OTEL_EXPORTER_OTLP_ENDPOINT=http://" + serveCollector(&receiver), "OTEL_EXPORTER_OTLP_PROTOCOL=grpc",
			"OTEL_BSP_SCHEDULE_DELAY=20",
		}
		arrived := func(name string) func(context.Context) error {
			return func(ctx context.Context) error {
				return receiver.Wait(ctx, func(all []otlp.Span) bool {
					for i := range all {
						if all[i].Name == name {
							return true
						}
					}
					return false
				})
			}
		}
		s.run(sharedStore(databaseURL, "controller", 1, manager.RoleController))
		s.create(ctx, s.basics(withTools("desk"), func(a *v1alpha1.Agent) {
			a.Spec.Tools[0].RequireApproval = []string{"delete"}
			a.Spec.Tools = append(a.Spec.Tools, v1alpha1.AgentTool{AgentRef: &v1alpha1.SharedReference{Name: helper}})
		}, evaluating())...)
		change(ctx, s, profile, &v1alpha1.PromptProfile{}, judgedBy())
		s.create(ctx, newAgent(helper))
		s.create(ctx, newToolServer("desk", host.url, reading("search")))
		awaitText(ctx, s, &v1alpha1.Agent{}, agent, offered, HaveSuffix("[delete search helper]"))

		By("killing the first executor while it waits for the model")
		first := s.share(ctx, program, "first", databaseURL, apiConfig, traced...)
		s.create(ctx, newTurn("tidy", timeout(600)))
		s.awaitReceived(ctx, 2) // one before the search, and one after it
		s.awaitInFlight(ctx, 1)
		Expect(arrived("execute_tool search")(ctx)).To(Succeed())
		Expect(s.turn(ctx, "tidy").BoundTo()).To(Equal("first"))
		Eventually(first.Kill()).Should(gexec.Exit(137))

		By("continuing in the second one, which cannot write the end of the Turn into its status")
		second := s.share(ctx, program, "second", databaseURL,
			refusing(http.MethodPut, "/turns/tidy/status", `"completionTime"`), traced...)
		t := s.awaitState(ctx, "tidy", v1alpha1.TurnReasonAwaitingApproval)
		s.decide(ctx, t, 0, v1alpha1.ApprovalApproved)
		s.awaitRecorded(ctx, databaseURL, 2) // the journals of the Turn and of its sub-agent's Turn
		Eventually(func() int {
			n := 0
			for _, r := range receiver.Spans() {
				if r.Name == "finalize" {
					n++
				}
			}
			return n
		}).WithContext(ctx).Should(Equal(2))
		Expect(s.turn(ctx, "tidy").IsFinished()).To(BeFalse())
		Eventually(second.Kill()).Should(gexec.Exit(137))

		By("ending it in the third one, which finds the end in the journal")
		third := s.share(ctx, program, "third", databaseURL, apiConfig, traced...)
		t = s.awaitState(ctx, "tidy", v1alpha1.TurnReasonCompleted)
		Expect(t.Status.Executor).To(beBound("third", t.Status.Executor.Epoch))
		Expect(arrived("invoke_agent " + agent)(ctx)).To(Succeed())
		s.awaitVerdicts(ctx, "tidy")
		Expect(arrived("evaluation")(ctx)).To(Succeed())
		Eventually(third.Interrupt()).Should(gexec.Exit(0))

		spans := receiver.Spans()
		byID, problems := otlp.Tree(spans, "")
		Expect(problems).To(BeEmpty())
		names := map[string]int{}
		for _, span := range byID {
			Expect(span.TraceID).To(Equal(t.Status.TraceID), span.Name)
			names[span.Name]++
		}
		Expect(len(spans)).To(BeNumerically(">", len(byID)), "the third executor has sent the end of the Turn again")
		for name, want := range map[string]int{
			"invoke_agent " + agent: 1, "invoke_agent " + helper: 1, "execute_tool search": 1, "execute_tool " + helper: 1,
			"execute_tool delete": 1, "approval delete": 1, "step 1": 2, "step 2": 1, "step 3": 1, "step 4": 1, "prepare": 2, "finalize": 2,
			"evaluation": 1,
		} {
			Expect(names[name]).To(Equal(want), "spans %q of %v", name, names)
		}
		interrupted := 0
		for _, span := range byID {
			if span.Attributes["error.type"] == "Interrupted" {
				interrupted++
			}
			parent := byID[span.Parent].Name
			switch {
			case span.Name == "invoke_agent "+helper:
				Expect(parent).To(Equal("execute_tool " + helper))
			case span.Attributes["capstan.purpose"] == "evaluation":
				Expect(parent).To(Equal("evaluation"))
			case span.Name == "evaluation":
				Expect(parent).To(Equal("invoke_agent " + agent))
			case strings.HasPrefix(span.Name, "execute_tool "), strings.HasPrefix(span.Name, "chat "),
				strings.HasPrefix(span.Name, "approval "):
				Expect(parent).To(HavePrefix("step "), span.Name)
			}
		}
		Expect(interrupted).To(Equal(1), "the request that the kill has cut off")
		Expect(fmt.Sprint(spans)).NotTo(Or(ContainSubstring("It is blue"), ContainSubstring("Done."), ContainSubstring("Deleted."),
			ContainSubstring("As it should be")),
			"no span may contain a text of the conversation")
	}, SpecTimeout(8*patience))
})
