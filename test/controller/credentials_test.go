package controller_test

import (
	"encoding/json"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

var _ = Describe("A Turn without credentials", func() {
	It("waits for the Secret and continues when it appears", func(ctx SpecContext) {
		s := newTestEnv(ctx, `apiKeys: [right-key]`)
		s.run()
		objects := s.basics()
		s.create(ctx, objects[theProvider], objects[theProfile], objects[theAgent], newTurn("waits"))
		wanted := ContainSubstring(`Secret "model-key" does not exist in namespace "` + s.namespace + `": create it with key "apiKey"`)
		awaitText(ctx, s, &v1alpha1.Turn{}, "waits", message, wanted)
		Expect(s.turn(ctx, "waits").StateReason()).To(Equal(v1alpha1.TurnReasonWaitingForAgent))
		awaitText(ctx, s, &v1alpha1.ModelProvider{}, provider, providerReadiness, HavePrefix("SecretNotFound: "))

		s.create(ctx, objects[theSecret])
		s.awaitState(ctx, "waits", v1alpha1.TurnReasonCompleted)
	}, SpecTimeout(patience))

	It("ends at its starting deadline, and reports the reason of its wait", func(ctx SpecContext) {
		s := newTestEnv(ctx, `apiKeys: [right-key]`)
		s.run()
		objects := s.basics()
		s.create(ctx, objects[theProvider], objects[theProfile], objects[theAgent], newTurn("late", startWithin(20)))
		// A Turn that no manager has seen before its deadline was never WaitingForAgent.
		s.awaitState(ctx, "late", v1alpha1.TurnReasonWaitingForAgent)
		t := s.awaitState(ctx, "late", v1alpha1.TurnReasonDeadlineExceeded)
		Expect(message(t)).To(And(
			HavePrefix("the turn did not start within 20s (limits.startingDeadlineSeconds); it was WaitingForAgent: "),
			ContainSubstring(`Secret "model-key" does not exist`)))
		Expect(t.Status.StopReason).To(Equal(v1alpha1.StopDeadline))
		Expect(conditionsOf(t.Status.Conditions)).To(ConsistOf("Succeeded=False DeadlineExceeded", "Stalled=True DeadlineExceeded"))
		Eventually(s.events).WithArguments(ctx, "Turn", "late").Should(ContainElement("Warning Failed"),
			"another Event may report the long wait")
		Expect(s.fake.Stats().Requests).To(BeZero())
	}, SpecTimeout(patience))

	It("waits for a key that its Secret lacks, or that is empty", func(ctx SpecContext) {
		s := newTestEnv(ctx, `apiKeys: [right-key]`)
		s.run()
		objects := s.basics()
		s.create(ctx, objects[1:]...)
		s.create(ctx, &corev1.Secret{ObjectMeta: newSecret(secretName, "").ObjectMeta, StringData: map[string]string{"other": "x"}},
			newTurn("waits"))
		awaitText(ctx, s, &v1alpha1.Turn{}, "waits", message,
			ContainSubstring(`Secret "model-key" in namespace "`+s.namespace+`" has no key "apiKey": add it`))
		change(ctx, s, secretName, &corev1.Secret{}, func(o *corev1.Secret) { o.StringData = map[string]string{keyName: " \n"} })
		awaitText(ctx, s, &v1alpha1.Turn{}, "waits", message,
			ContainSubstring(`key "apiKey" of Secret "model-key" in namespace "`+s.namespace+`" is empty: put the credential there`))
		change(ctx, s, secretName, &corev1.Secret{}, func(o *corev1.Secret) { o.StringData = map[string]string{keyName: apiKey + "\n"} })
		s.awaitState(ctx, "waits", v1alpha1.TurnReasonCompleted)
	}, SpecTimeout(patience))

	It("waits while the endpoint refuses the key, and continues with the correct one", func(ctx SpecContext) {
		s := newTestEnv(ctx, `apiKeys: [right-key]`)
		s.run()
		s.create(ctx, s.basics()[1:]...)
		s.create(ctx, newSecret(secretName, "wrong-key"), newTurn("waits"))
		awaitText(ctx, s, &v1alpha1.ModelProvider{}, provider, providerReadiness, And(HavePrefix("CredentialsRejected: "),
			ContainSubstring(`HTTP 401`), ContainSubstring(`key "apiKey" of Secret "model-key"`), Not(ContainSubstring("wrong-key"))))
		awaitText(ctx, s, &v1alpha1.Turn{}, "waits", message, ContainSubstring("the endpoint refused the credentials"))
		Expect(s.turn(ctx, "waits").StateReason()).To(Equal(v1alpha1.TurnReasonWaitingForAgent))

		change(ctx, s, secretName, &corev1.Secret{}, func(o *corev1.Secret) { o.StringData = map[string]string{keyName: apiKey} })
		s.awaitState(ctx, "waits", v1alpha1.TurnReasonCompleted)
		Expect(s.fake.Stats().Requests).To(BeEquivalentTo(1))
	}, SpecTimeout(patience))
})

var _ = Describe("A text that is too long", func() {
	const limit = 256 << 10

	It("of an answer is cut in the status, which stays small", func(ctx SpecContext) {
		s := newTestEnv(ctx, `rules: [{reply: {text: "\u0001<&>\"é", repeat: 29000, chunkChars: 4000, ignoreMaxTokens: true}}]`)
		s.run()
		s.create(ctx, s.basics()...)
		s.create(ctx, newTurn("long"))
		t := s.awaitState(ctx, "long", v1alpha1.TurnReasonCompleted)
		whole := strings.Repeat("\u0001<&>\"é", 29000)
		Expect(t.Status.Result.Bytes).To(BeEquivalentTo(len(whole)), "about 200 KiB")
		Expect(t.Status.Result.Truncated).To(BeTrue())
		Expect(whole).To(HavePrefix(t.Status.Result.Text))
		Expect(t.Status.Result.Text).NotTo(BeEmpty())
		text, err := json.Marshal(t)
		Expect(err).NotTo(HaveOccurred())
		Expect(len(text)).To(BeNumerically("<", limit))
	}, SpecTimeout(patience))

	It("of a spec is refused with numbers, although its parts are within their bounds", func(ctx SpecContext) {
		s := newTestEnv(ctx, ``)
		s.run()
		s.create(ctx, s.basics()...)
		s.create(ctx, newTurn("huge", func(t *v1alpha1.Turn) {
			for range 8 {
				t.Spec.History = append(t.Spec.History, v1alpha1.HistoryMessage{
					Role: v1alpha1.HistoryRoleUser, Content: strings.Repeat("x", 16384),
				})
			}
		}))
		t := s.awaitState(ctx, "huge", v1alpha1.TurnReasonInvalidSpec)
		Expect(message(t)).To(MatchRegexp(`^spec is 13\d{4} bytes of JSON and must be at most 98304: shorten ` +
			`message, history, context or shaping, or put texts into a ConfigMap$`))
		Expect(s.fake.Stats().Requests).To(BeZero())
	}, SpecTimeout(patience))
})
