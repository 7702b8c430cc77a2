package controller_test

import (
	"encoding/base64"
	"encoding/json"
	"slices"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/manager"
	"github.com/capstan-dev/capstan/internal/model/modeltest"
	"github.com/capstan-dev/capstan/test/harness/harnesstest"
)

// The contents of attachments: a PNG of one pixel in base64, and the part of a PDF that Capstan reads.
const (
	planPNG  = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
	termsPDF = "%PDF-1.4\n<</Type/Page>>"
)

// fromConfigMap returns an attachment whose content is in the ConfigMap "files", under the name of the attachment.
func fromConfigMap(name, mediaType string) v1alpha1.Attachment {
	return v1alpha1.Attachment{
		Name: name, MediaType: mediaType, ConfigMapKeyRef: &v1alpha1.ConfigMapKeyReference{Name: "files", Key: name},
	}
}

// fromTurn returns an attachment whose content is an artifact of another Turn.
func fromTurn(name, mediaType, turn, artifact string, scope v1alpha1.ArtifactScope) v1alpha1.Attachment {
	return v1alpha1.Attachment{
		Name: name, MediaType: mediaType, ArtifactRef: &v1alpha1.ArtifactReference{TurnName: turn, Name: artifact, Scope: scope},
	}
}

func attaching(all ...v1alpha1.Attachment) func(*v1alpha1.Turn) {
	return func(t *v1alpha1.Turn) { t.Spec.Attachments = all }
}

// newFiles returns the ConfigMap "files".
func newFiles() *corev1.ConfigMap {
	GinkgoHelper()
	plan, err := base64.StdEncoding.DecodeString(planPNG)
	Expect(err).NotTo(HaveOccurred())
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "files"}, Data: map[string]string{"terms": termsPDF, "rooms": "kitchen,12"},
		BinaryData: map[string][]byte{"plan": plan},
	}
}

// typesOf returns the types of the blocks of a message.
func typesOf(m modeltest.AnthropicMessage) (all []string) {
	for _, b := range m.Content {
		all = append(all, b.Type)
	}
	return all
}

var _ = Describe("Attachments", func() {
	It("reach a server that is as strict as Anthropic, and later Turns of the Session attach them again", func(ctx SpecContext) {
		s, host := newTestEnv(ctx, ``), newFakeToolServer()
		host.offer("measure", readOnly, answering("12 square meters"))
		strict := &modeltest.Anthropic{Key: apiKey, Reply: func(r modeltest.AnthropicRequest) ([]modeltest.AnthropicBlock, string) {
			last := r.Messages[len(r.Messages)-1]
			if slices.Contains(typesOf(last), "tool_result") || !slices.Contains(typesOf(last), "image") {
				return []modeltest.AnthropicBlock{{Type: "text", Text: "The kitchen."}}, "end_turn"
			}
			return []modeltest.AnthropicBlock{{Type: "tool_use", ID: "toolu_1", Name: "measure", Input: json.RawMessage(`{}`)}}, "tool_use"
		}}
		s.baseURL = harnesstest.Serve(GinkgoTB(), strict) + "/v1"
		s.run()
		const claude = "claude-sonnet-4-5"
		s.create(ctx, newSecret(secretName, apiKey), newProfile(profile), newFiles(), newToolServer("desk", host.url, reading("measure")),
			s.newProvider(provider, func(p *v1alpha1.ModelProvider) {
				p.Spec.Type, p.Spec.Models[0].Name = v1alpha1.ProviderTypeAnthropic, claude
				p.Spec.Models[0].Capabilities = []v1alpha1.ModelCapability{v1alpha1.CapabilityImages, v1alpha1.CapabilityFiles}
			}),
			newAgent(agent, withTools("desk"), func(a *v1alpha1.Agent) { a.Spec.Models[0].Model = claude }))
		awaitText(ctx, s, &v1alpha1.Agent{}, agent, offered, HaveSuffix("[measure]"))
		s.create(ctx, newTurn("first", inSession, attaching(
			fromConfigMap("plan", "image/png"), fromConfigMap("terms", "application/pdf"), fromConfigMap("rooms", "text/csv"))))
		t := s.awaitState(ctx, "first", v1alpha1.TurnReasonCompleted)
		Expect(outcomes(t)).To(Equal([]string{"measure Succeeded"}))
		s.drop(ctx, &corev1.ConfigMap{}, "files")
		s.create(ctx, newTurn("second", inSession, attaching(
			fromTurn("again", "image/png", "first", "attachments/plan", v1alpha1.ArtifactScopeSession))))
		s.awaitState(ctx, "second", v1alpha1.TurnReasonCompleted)

		Expect(strict.Refused()).To(BeEmpty())
		requests := strict.Requests()
		Expect(requests).To(HaveLen(4))
		for _, r := range requests[:2] {
			asks := r.Messages[0]
			Expect(typesOf(asks)).To(Equal([]string{"image", "document", "text"}))
			Expect(asks.Content[0].Source.Data).To(Equal(planPNG))
			Expect(asks.Content[2].Text).To(And(ContainSubstring("kitchen,12"), HaveSuffix("first")))
		}
		later := requests[2].Messages
		Expect(typesOf(later[0])).To(Equal([]string{"text"}), "the first Turn's contents are not sent again")
		Expect(typesOf(later[len(later)-1])).To(Equal([]string{"image", "text"}))
		Expect(later[len(later)-1].Content[0].Source.Data).To(Equal(planPNG))
	}, SpecTimeout(patience))

	It("may be tool outputs of other Turns, within their scope", func(ctx SpecContext) {
		s, host := newTestEnv(ctx, calling("dump")), newFakeToolServer()
		host.offer("dump", readOnly, answering("HEAD"+strings.Repeat("-", 50_000)+"THE MIDDLE"+strings.Repeat("-", 50_000)))
		s.run()
		s.equip(ctx, host.url, "dump", reading("dump"))
		s.create(ctx, newTurn("source", asking("call it")))
		t := s.awaitState(ctx, "source", v1alpha1.TurnReasonCompleted)
		Expect(t.Status.ToolCalls[0].Artifact).To(Equal("call-1-1"))
		output := func(turn, name string, scope v1alpha1.ArtifactScope) func(*v1alpha1.Turn) {
			return asking("Read it.", attaching(fromTurn("dump", "text/plain", turn, name, scope)))
		}
		s.create(ctx, newTurn("reader", output("source", "call-1-1", v1alpha1.ArtifactScopeNamespace)))
		s.awaitState(ctx, "reader", v1alpha1.TurnReasonCompleted)
		Expect(s.lastMessage()).To(And(ContainSubstring(`## Attachment "dump" (text/plain)`), ContainSubstring("THE MIDDLE"),
			HaveSuffix("Read it.")))

		for name, refusal := range map[string]struct {
			change  func(*v1alpha1.Turn)
			problem string
		}{
			"stranger": {
				asking("", inSession, output("source", "call-1-1", v1alpha1.ArtifactScopeSession)),
				`Turn "source": it does not belong to the Session of this Turn: set scope to Namespace, ` +
					"which requires permission to get turns/log in the namespace",
			},
			"mistaken": {
				output("source", "call-2-1", v1alpha1.ArtifactScopeNamespace),
				`Turn "source": there is no artifact "call-2-1": it has call-1-1`,
			},
			"nobody": {output("nothing", "call-1-1", v1alpha1.ArtifactScopeNamespace), `Turn "nothing": it does not exist`},
			"itself": {
				output("itself", "attachments/dump", v1alpha1.ArtifactScopeNamespace),
				`Turn "itself": there is no artifact "attachments/dump": it has no artifacts of this kind so far`,
			},
		} {
			s.create(ctx, newTurn(name, refusal.change))
			Expect(message(s.awaitState(ctx, name, v1alpha1.TurnReasonPreparationFailed))).To(
				ContainSubstring("spec.attachments[0].artifactRef: "+refusal.problem), name)
		}
	}, SpecTimeout(patience))

	It("are not fetched from URLs if the operator does not allow it", func(ctx SpecContext) {
		s := newTestEnv(ctx, `apiKeys: [right-key]`)
		s.run(func(o *manager.Options) { o.AttachmentURLs = false })
		s.create(ctx, append(s.basics(), newTurn("outside", attaching(v1alpha1.Attachment{
			Name: "a", MediaType: "text/plain", URL: "https://files.example/a?secret=1",
		})))...)
		t := s.awaitState(ctx, "outside", v1alpha1.TurnReasonInvalidSpec)
		Expect(message(t)).To(Equal(
			"Turn spec.attachments[0].url: the operator of the cluster does not allow attachments from URLs: use a ConfigMap"))
		Expect(s.fake.Stats().Requests).To(BeZero())
	}, SpecTimeout(patience))
})
