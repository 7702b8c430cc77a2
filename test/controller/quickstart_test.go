package controller_test

import (
	"context"
	"os"
	"path/filepath"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/test/fakemodel/server"
)

// quickstart returns the objects of examples/quickstart, with the address of the test environment's model.
func (s *testEnv) quickstart() []*unstructured.Unstructured {
	GinkgoHelper()
	files, err := filepath.Glob(filepath.Join("..", "..", "examples", "quickstart", "*.yaml"))
	Expect(err).NotTo(HaveOccurred())
	Expect(files).To(HaveLen(5), "the example has one file per kind")
	objects := make([]*unstructured.Unstructured, 0, len(files))
	for _, file := range files {
		text, err := os.ReadFile(file)
		Expect(err).NotTo(HaveOccurred())
		object := &unstructured.Unstructured{}
		Expect(yaml.Unmarshal(text, &object.Object)).To(Succeed(), file)
		object.SetNamespace(s.namespace)
		if object.GetKind() == "ModelProvider" {
			Expect(unstructured.SetNestedField(object.Object, s.baseURL, "spec", "baseURL")).To(Succeed())
		}
		objects = append(objects, object)
	}
	return objects
}

// apply applies objects like kubectl apply --server-side.
func apply(ctx context.Context, objects []*unstructured.Unstructured) {
	GinkgoHelper()
	for _, object := range objects {
		applied := client.ApplyConfigurationFromUnstructured(object.DeepCopy())
		Expect(apiClient.Apply(ctx, applied, client.FieldOwner("kubectl"))).To(Succeed(), "%s must apply", object.GetKind())
	}
}

// versions returns the resourceVersion of each object, by kind.
func versions(ctx context.Context, objects []*unstructured.Unstructured) map[string]string {
	GinkgoHelper()
	all := map[string]string{}
	for _, object := range objects {
		stored := object.DeepCopy()
		Expect(apiClient.Get(ctx, client.ObjectKeyFromObject(object), stored)).To(Succeed())
		all[object.GetKind()] = stored.GetResourceVersion()
	}
	return all
}

// demoModel returns the rules of the demo.
func demoModel() server.Config {
	GinkgoHelper()
	cfg, err := server.LoadConfig(filepath.Join("..", "..", "test", "fakemodel", "rules.yaml"))
	Expect(err).NotTo(HaveOccurred())
	return cfg
}

var _ = Describe("The quickstart", func() {
	It("ends with the answer and the whole record in the Turn's status", func(ctx SpecContext) {
		s := newTestEnvWith(ctx, demoModel())
		s.run()
		apply(ctx, s.quickstart())

		t := s.awaitState(ctx, "open-loops", v1alpha1.TurnReasonCompleted)
		st := t.Status
		Expect(st.Result.Text).To(ContainSubstring("found 2 things that may answer “What are my open loops?”"))
		Expect(st.Result.Bytes).To(BeEquivalentTo(len(st.Result.Text)))
		Expect(st.Result.Truncated).To(BeFalse())
		Expect([]rune(st.Result.Preview)).To(HaveLen(80))
		Expect(st.Result.Citations.Local).To(Equal([]string{"tickets/1042.md", "tickets/1057.md"}))
		Expect(st.StopReason).To(Equal(v1alpha1.StopCompleted))
		Expect(*st.Steps).To(Equal(v1alpha1.StepCounts{Count: 1, ModelRequests: 1}))

		stats := s.fake.Stats()
		Expect(stats.Requests).To(BeEquivalentTo(1))
		Expect(st.Usage.InputTokens).To(Equal(stats.PromptTokens))
		Expect(st.Usage.OutputTokens).To(Equal(stats.CompletionTokens))
		Expect(st.Usage.TotalTokens).To(Equal(stats.PromptTokens + stats.CompletionTokens))
		Expect(st.Usage.Cost).To(HaveField("Currency", "USD"))
		Expect(st.Usage.Cost.Amount).To(MatchRegexp(`^0\.000[0-9]+$`))

		Expect(st.Preparation.PromptProfile).To(Equal(v1alpha1.PromptProfileRevision{
			Name: "support", ID: "helpdesk.support", Version: "1.0.0", Generation: 1,
		}))
		Expect(st.Preparation).To(And(HaveField("Provider", "demo"), HaveField("Model", "demo-small")))
		Expect(st.Preparation.PromptHash).To(MatchRegexp(`^[0-9a-f]{64}$`))
		Expect(st.Preparation.ContextHash).To(MatchRegexp(`^[0-9a-f]{16}$`))
		Expect(*st.Decision).To(Equal(v1alpha1.Decision{
			Key: "support.chat.turn", Strategy: v1alpha1.StrategyDirectAnswer,
			PromptRenderHash: st.Preparation.PromptRenderHash, ContextHash: st.Preparation.ContextHash,
		}))
		var a v1alpha1.Agent
		Expect(apiClient.Get(ctx, s.key("support"), &a)).To(Succeed())
		Expect(a.Status.PromptRenderHash).To(Equal(st.Preparation.PromptRenderHash), "the hash of the Agent is the hash of its Turns")

		Expect(conditionsOf(st.Conditions)).To(ConsistOf(
			"Succeeded=True Completed", "Prepared=True Prepared", "Executed=True Completed", "Finalized=True Finalized",
		), "neither Reconciling nor Stalled may be left when a Turn has ended well")
		Expect(st.ObservedGeneration).To(Equal(t.Generation))
		Expect(st.CompletionTime.Sub(st.StartTime.Time).Milliseconds()).To(Equal(*st.DurationMilliseconds))
		Expect(st.Executor.Epoch).To(BeEquivalentTo(1))
		Expect(t.Finalizers).To(BeEmpty())

		var events eventsv1.EventList
		Eventually(func() []eventsv1.Event {
			Expect(apiClient.List(ctx, &events, client.InNamespace(s.namespace))).To(Succeed())
			return events.Items
		}).Should(HaveLen(1))
		Expect(events.Items[0]).To(And(HaveField("Type", "Normal"), HaveField("Reason", "Succeeded"),
			HaveField("Regarding.Name", "open-loops"),
			HaveField("Note", MatchRegexp(`^Completed, strategy DirectAnswer, \d+ tokens, cost 0\.\d+ USD, \d+\.\d s$`))))
	}, SpecTimeout(patience))

	It("costs two status writes, two reconciles and one Event per Turn, and nothing afterwards", Serial, func(ctx SpecContext) {
		s := newTestEnv(ctx, ``)
		s.run()
		s.create(ctx, s.basics()...)
		s.create(ctx, newTurn("first"))
		s.awaitState(ctx, "first", v1alpha1.TurnReasonCompleted)
		Eventually(s.events).WithArguments(ctx, "Turn", "first").Should(HaveLen(1))

		puts, patches, reconciled := requests(ctx, "PUT", "turns", "status"), requests(ctx, "PATCH", "turns", "status"), reconciles("turn")
		changes, err := apiClient.Watch(ctx, &v1alpha1.TurnList{}, client.InNamespace(s.namespace))
		Expect(err).NotTo(HaveOccurred())
		defer changes.Stop()
		s.create(ctx, newTurn("second"))
		s.awaitState(ctx, "second", v1alpha1.TurnReasonCompleted)
		// An object that is unchanged after the whole life of another Turn will not change later.
		s.create(ctx, newTurn("third"))
		s.awaitState(ctx, "third", v1alpha1.TurnReasonCompleted)
		Eventually(s.events).WithArguments(ctx, "Turn", "third").Should(HaveLen(1))

		Expect(requests(ctx, "PUT", "turns", "status")-puts).To(BeEquivalentTo(4), "bind and end, of two Turns")
		Expect(requests(ctx, "PATCH", "turns", "status") - patches).To(BeZero())
		Eventually(func() float64 { return reconciles("turn") - reconciled }).Should(BeEquivalentTo(4), "appeared and ended, of two Turns")
		Eventually(s.events).WithArguments(ctx, "Turn", "second").Should(Equal([]string{"Normal Succeeded"}))

		var seen []string
		for ended := false; !ended; {
			var e watch.Event
			Eventually(changes.ResultChan()).Should(Receive(&e))
			t := e.Object.(*v1alpha1.Turn)
			ended = t.Name == "third" && t.IsFinished()
			if t.Name == "second" {
				seen = append(seen, string(e.Type)+" "+t.StateReason())
			}
		}
		Expect(seen).To(Equal([]string{"ADDED ", "MODIFIED Running", "MODIFIED Completed"}), "versions of the second Turn")
	}, SpecTimeout(patience))

	It("does nothing when the same manifests are applied again, nor when the endpoint is probed again", func(ctx SpecContext) {
		s := newTestEnvWith(ctx, demoModel())
		s.run()
		objects := s.quickstart()
		apply(ctx, objects)
		s.awaitState(ctx, "open-loops", v1alpha1.TurnReasonCompleted)
		before := versions(ctx, objects)
		reconciled, probes := reconciles("agent"), s.fake.Stats().ModelLists

		apply(ctx, objects)
		Eventually(func() int64 { return s.fake.Stats().ModelLists }).Should(BeNumerically(">=", probes+2), "probes must continue")

		Expect(versions(ctx, objects)).To(Equal(before))
		Expect(s.fake.Stats().Requests).To(BeEquivalentTo(1))
		Expect(reconciles("agent")).To(Equal(reconciled), "a probe that finds nothing new wakes no agent")
	}, SpecTimeout(patience))
})
