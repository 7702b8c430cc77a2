package api_test

import (
	"maps"
	"slices"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/capstan-dev/capstan/internal/translate"
)

// fullTurn sets each field of a Turn to a value other than its default. The exceptions are sessionRef, which excludes a
// history, and messageFrom and undo, which exclude a message.
const fullTurn = `
apiVersion: capstan.dev/v1alpha1
kind: Turn
metadata: {generateName: immutable-, namespace: default}
spec:
  agentRef: {name: support}
  requestedBy: {username: ada}
  message: What are my open loops?
  attachments: [{name: a, mediaType: image/png, configMapKeyRef: {name: a, key: b}}]
  parameters: [{name: a, value: x}]
  history: [{role: User, content: Hello}]
  context: {facts: [{id: a, text: x}]}
  shaping: {mode: review}
  guardrails: [{id: a, rule: x, priority: Low, kind: ToneConstraint}]
  promptMode: Task
  depth: 1
  model: demo-large
  webMode: "On"
  topK: 3
  output: {schema: {type: object}}
  citations: Hide
  limits: {timeoutSeconds: 30}
  execution: PrepareOnly
  onJournalLoss: Rerun
  desiredState: Suspended
  ttlSecondsAfterFinished: 60
`

// sessionTurn is a Turn of a Session.
const sessionTurn = `
apiVersion: capstan.dev/v1alpha1
kind: Turn
metadata: {generateName: immutable-, namespace: default}
spec:
  agentRef: {name: support}
  message: What are my open loops?
  sessionRef: {name: sess-abc}
`

// undoingTurn is a Turn that undoes calls of another Turn.
const undoingTurn = `
apiVersion: capstan.dev/v1alpha1
kind: Turn
metadata: {generateName: immutable-, namespace: default}
spec:
  agentRef: {name: support}
  undo: {turnUID: a}
`

// referringTurn has its message in a ConfigMap.
const referringTurn = `
apiVersion: capstan.dev/v1alpha1
kind: Turn
metadata: {generateName: immutable-, namespace: default}
spec:
  agentRef: {name: support}
  messageFrom: {configMapKeyRef: {name: a, key: k}}
`

// bareTurn sets only the required fields.
const bareTurn = `
apiVersion: capstan.dev/v1alpha1
kind: Turn
metadata: {generateName: immutable-, namespace: default}
spec:
  agentRef: {name: support}
  message: What are my open loops?
`

// immutableFields has a patch for each immutable field of a Turn's spec, except for messageFrom, sessionRef and undo,
// which have tests of their own. The patch sets a value that differs from the values in fullTurn and bareTurn. If a
// field has only two values, VALUE stands for the value that the Turn does not have.
var immutableFields = map[string]string{
	"agentRef":   `spec: {agentRef: {name: other}}`,
	"message":    `spec: {message: "And now?"}`,
	"parameters": `spec: {parameters: [{name: a, value: changed}]}`,
	"history":    `spec: {history: [{role: Assistant, content: Hello}]}`,
	"context":    `spec: {context: {facts: [{id: a, text: changed}]}}`,
	"shaping":    `spec: {shaping: {mode: changed}}`,
	"guardrails": `spec: {guardrails: [{id: a, rule: changed}]}`,
	"promptMode": `spec: {promptMode: Minimal}`,
	"depth":      `spec: {depth: 2}`,
	"model":      `spec: {model: "demo:demo-large"}`,
	"webMode":    `spec: {webMode: "Off"}`,
	"topK":       `spec: {topK: 4}`,
	"output":     `spec: {output: {schema: {type: array}}}`,
	"citations":  `spec: {citations: VALUE}`,
	"limits":     `spec: {limits: {timeoutSeconds: 31}}`,
	"execution":  `spec: {execution: VALUE}`,

	"onJournalLoss": `spec: {onJournalLoss: VALUE}`,
	"requestedBy":   `spec: {requestedBy: {username: grace}}`,
	"attachments":   `spec: {attachments: [{name: a, mediaType: image/gif, configMapKeyRef: {name: a, key: b}}]}`,
}

// change applies a merge patch, in YAML, to a stored object. With client.DryRunAll, the API server stores nothing.
func change(ctx SpecContext, object *unstructured.Unstructured, patch string, opts ...client.PatchOption) error {
	GinkgoHelper()
	text, err := yaml.YAMLToJSON([]byte(patch))
	Expect(err).NotTo(HaveOccurred())
	return apiClient.Patch(ctx, object.DeepCopy(), client.RawPatch(types.MergePatchType, text), opts...)
}

// changeStatus is like change, but writes to the subresource status.
func changeStatus(ctx SpecContext, object *unstructured.Unstructured, patch string) error {
	GinkgoHelper()
	text, err := yaml.YAMLToJSON([]byte(patch))
	Expect(err).NotTo(HaveOccurred())
	return apiClient.Status().Patch(ctx, object.DeepCopy(), client.RawPatch(types.MergePatchType, text))
}

// createFrom creates the object of a manifest and deletes it after the test.
func createFrom(ctx SpecContext, base string) *unstructured.Unstructured {
	GinkgoHelper()
	object := merged(base, `{}`)
	Expect(apiClient.Create(ctx, object)).To(Succeed())
	DeferCleanup(func(ctx SpecContext) { Expect(apiClient.Delete(ctx, object)).To(Succeed()) })
	return object
}

var _ = Describe("a stored Turn", func() {
	expectFault := func(err error, field, message string) {
		GinkgoHelper()
		Expect(faultsOf(err)).To(ContainElement(And(HaveField("Field", field), HaveField("Message", ContainSubstring(message)))))
	}
	// expectImmutable expects the message to list exactly these fields, separated by commas.
	expectImmutable := func(ctx SpecContext, base, patch, fields string) {
		GinkgoHelper()
		err := change(ctx, createFrom(ctx, base), patch, client.DryRunAll)
		expectFault(err, "spec", ": "+fields+" must not change: create a new Turn instead")
	}

	It("rejects a change of undo", func(ctx SpecContext) {
		expectImmutable(ctx, undoingTurn, `spec: {undo: {turnUID: b}}`, "undo")
		expectImmutable(ctx, undoingTurn, `spec: {undo: {calls: [c]}}`, "undo")
		expectImmutable(ctx, undoingTurn, `spec: {undo: null, message: Hello}`, "message, undo")
		expectImmutable(ctx, bareTurn, `spec: {message: null, undo: {turnUID: a}}`, "message, undo")
	})

	It("rejects a change of messageFrom, and between message and messageFrom", func(ctx SpecContext) {
		expectImmutable(ctx, referringTurn, `spec: {messageFrom: {configMapKeyRef: {name: b}}}`, "messageFrom")
		expectImmutable(ctx, referringTurn, `spec: {message: Hello, messageFrom: null}`, "message, messageFrom")
		expectImmutable(ctx, bareTurn, `spec: {message: null, messageFrom: {configMapKeyRef: {name: a, key: k}}}`, "message, messageFrom")
	})

	It("has no field without a test here", func() {
		all, err := definitions()
		Expect(err).NotTo(HaveOccurred())
		turn := all[slices.IndexFunc(all, func(d *apiextensionsv1.CustomResourceDefinition) bool { return d.Spec.Names.Kind == "Turn" })]
		known := slices.Collect(maps.Keys(immutableFields))
		Expect(slices.Collect(maps.Keys(schemaOf(turn).Properties["spec"].Properties))).
			To(ConsistOf(append(known, "messageFrom", "sessionRef", "undo", "desiredState", "ttlSecondsAfterFinished")))
	})

	for _, name := range slices.Sorted(maps.Keys(immutableFields)) {
		patch := immutableFields[name]
		toDefault := map[string]string{"citations": "Show", "execution": "Run", "onJournalLoss": "Interrupt"}[name]
		toOther := map[string]string{"citations": "Hide", "execution": "PrepareOnly", "onJournalLoss": "Rerun"}[name]

		It("rejects a change of "+name, func(ctx SpecContext) {
			expectImmutable(ctx, fullTurn, strings.ReplaceAll(patch, "VALUE", toDefault), name)
		})
		if name == "agentRef" {
			It("rejects the removal of "+name, func(ctx SpecContext) {
				err := change(ctx, createFrom(ctx, fullTurn), `spec: {agentRef: null}`, client.DryRunAll)
				expectFault(err, "spec.agentRef", "Required value")
			})
			continue
		}
		It("rejects the removal of "+name, func(ctx SpecContext) {
			expectImmutable(ctx, fullTurn, `spec: {`+name+`: null}`, name)
		})
		if name == "message" {
			continue // bareTurn has a message
		}
		It("rejects the addition of "+name, func(ctx SpecContext) {
			expectImmutable(ctx, bareTurn, strings.ReplaceAll(patch, "VALUE", toOther), name)
		})
	}

	It("rejects a change of sessionRef", func(ctx SpecContext) {
		expectImmutable(ctx, sessionTurn, `spec: {sessionRef: {name: other}}`, "sessionRef")
	})
	It("rejects the removal of sessionRef", func(ctx SpecContext) {
		expectImmutable(ctx, sessionTurn, `spec: {sessionRef: null}`, "sessionRef")
	})
	It("rejects the addition of sessionRef", func(ctx SpecContext) {
		expectImmutable(ctx, bareTurn, `spec: {sessionRef: {name: sess-abc}}`, "sessionRef")
	})
	It("rejects the replacement of sessionRef by a history", func(ctx SpecContext) {
		expectImmutable(ctx, sessionTurn, `spec: {sessionRef: null, history: [{role: User, content: Hello}]}`,
			"sessionRef, history")
	})

	It("rejects the removal of the spec", func(ctx SpecContext) {
		expectFault(change(ctx, createFrom(ctx, fullTurn), `spec: null`, client.DryRunAll), "spec", "Required value")
	})
	It("rejects the addition of a fact", func(ctx SpecContext) {
		expectImmutable(ctx, fullTurn, `spec: {context: {facts: [{id: a, text: x}, {id: b, text: z}]}}`, "context")
	})
	It("is not cancelled by a patch for another Turn with its name", func(ctx SpecContext) {
		turn := createFrom(ctx, fullTurn)
		patch := func(uid types.UID) error {
			return apiClient.Patch(ctx, turn.DeepCopy(), client.RawPatch(types.MergePatchType, translate.CancelPatch(uid)))
		}
		Expect(patch("00000000-0000-4000-8000-000000000000")).To(Satisfy(translate.IsOtherObject))
		Expect(patch(turn.GetUID())).To(Succeed())
	})

	DescribeTable("rejects the addition of a subfield",
		func(ctx SpecContext, patch, field string) { expectImmutable(ctx, fullTurn, patch, field) },
		Entry("context: contributions", `spec: {context: {contributions: [{name: a, text: x}]}}`, "context"),
		Entry("context: memories", `spec: {context: {memories: [{id: a, text: x}]}}`, "context"),
		Entry("context: enrichments", `spec: {context: {enrichments: [{id: a, content: x}]}}`, "context"),
		Entry("context: preferences", `spec: {context: {preferences: [x]}}`, "context"),
		Entry("context: session", `spec: {context: {session: {state: Cold}}}`, "context"),
		Entry("context: skill", `spec: {context: {skill: x}}`, "context"),
		Entry("shaping: overlays", `spec: {shaping: {overlays: [{id: a, text: x}]}}`, "shaping"),
		Entry("shaping: expression", `spec: {shaping: {expression: {humor: "Off"}}}`, "shaping"),
		Entry("shaping: responseStyle", `spec: {shaping: {responseStyle: {preferMarkdown: false}}}`, "shaping"),
		Entry("guardrails: a source", `spec: {guardrails: [{id: a, source: s, rule: x, priority: Low, kind: ToneConstraint}]}`,
			"guardrails"),
	)
	It("rejects the addition of an empty list", func(ctx SpecContext) {
		expectImmutable(ctx, bareTurn, `spec: {history: []}`, "history")
		expectImmutable(ctx, bareTurn, `spec: {guardrails: []}`, "guardrails")
	})
	DescribeTable("rejects setting a field to its default later",
		func(ctx SpecContext, name, patch string) { expectImmutable(ctx, bareTurn, patch, name) },
		Entry("webMode", "webMode", `spec: {webMode: "Off"}`),
		Entry("topK", "topK", `spec: {topK: 8}`),
	)
	It("rejects the addition of a property to the schema of its answer", func(ctx SpecContext) {
		expectImmutable(ctx, fullTurn, `spec: {output: {schema: {properties: {a: {type: string}}}}}`, "output")
	})
	It("rejects the addition of a depth of 0", func(ctx SpecContext) {
		expectImmutable(ctx, bareTurn, `spec: {depth: 0}`, "depth")
	})

	// The rule does not compare the spec in a write that changes these times, because only writes of the status change
	// them. So these specs try to pass a changed spec through such a write.
	It("rejects a change together with a change of the status", func(ctx SpecContext) {
		turn := createFrom(ctx, bareTurn)
		expectFault(change(ctx, turn, `{spec: {limits: {timeoutSeconds: 31}}, status: {startTime: "2026-01-01T00:00:00.000000Z"}}`), "spec",
			": limits must not change: create a new Turn instead")
		Expect(changeStatus(ctx, turn, `status: {startTime: "2026-01-01T00:00:00.000000Z"}`)).To(Succeed())
		for _, status := range []string{`null`, `{startTime: null}`, `{completionTime: "2026-01-01T00:00:01.000000Z"}`} {
			expectFault(change(ctx, turn, `{spec: {message: "And now?", limits: {timeoutSeconds: 31}}, status: `+status+`}`), "spec",
				": message, limits must not change: create a new Turn instead")
		}
	})
	It("keeps its spec in a write of the status", func(ctx SpecContext) {
		turn := createFrom(ctx, fullTurn)
		spec := turn.Object["spec"]
		for _, status := range []string{
			`{startTime: "2026-01-01T00:00:00.000000Z"}`, `{completionTime: "2026-01-01T00:00:01.000000Z"}`, `{stopReason: Completed}`,
		} {
			Expect(changeStatus(ctx, turn, `{spec: {message: "And now?", limits: null}, status: `+status+`}`)).To(Succeed())
			Expect(apiClient.Get(ctx, client.ObjectKeyFromObject(turn), turn)).To(Succeed())
			Expect(turn.Object["spec"]).To(Equal(spec))
		}
	})
	It("may be suspended and made active again", func(ctx SpecContext) {
		turn := createFrom(ctx, bareTurn)
		Expect(change(ctx, turn, `spec: {desiredState: Suspended}`)).To(Succeed())
		Expect(change(ctx, turn, `spec: {desiredState: Active}`)).To(Succeed())
	})
	It("stays cancelled", func(ctx SpecContext) {
		turn := createFrom(ctx, bareTurn)
		Expect(change(ctx, turn, `spec: {desiredState: Cancelled}`)).To(Succeed())
		for _, patch := range []string{
			`spec: {desiredState: Active}`, `spec: {desiredState: Suspended}`, `spec: {desiredState: null}`,
		} {
			Expect(faultsOf(change(ctx, turn, patch, client.DryRunAll))).To(ConsistOf(And(
				HaveField("Field", "spec.desiredState"),
				HaveField("Message", ContainSubstring(
					"desiredState must stay Cancelled: cancelling is final, create a new Turn instead")))), patch)
		}
	})
	DescribeTable("may change how long it is kept",
		func(ctx SpecContext, base, patch string) {
			Expect(change(ctx, createFrom(ctx, base), patch, client.DryRunAll)).To(Succeed())
		},
		Entry("longer", fullTurn, `spec: {ttlSecondsAfterFinished: 120}`),
		Entry("forever", fullTurn, `spec: {ttlSecondsAfterFinished: null}`),
		Entry("from forever to a time", bareTurn, `spec: {ttlSecondsAfterFinished: 0}`),
	)
	It("may change its labels, and be applied again unchanged", func(ctx SpecContext) {
		turn := createFrom(ctx, fullTurn)
		Expect(change(ctx, turn, `metadata: {labels: {team: support}}`, client.DryRunAll)).To(Succeed())
		Expect(change(ctx, turn, fullTurn, client.DryRunAll)).To(Succeed())
	})
})
