package api_test

import (
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

const approvalBase = `
apiVersion: capstan.dev/v1alpha1
kind: ToolApproval
metadata: {name: close, namespace: default}
spec:
  turnRef: {name: open-loops}
  turnUID: 00000000-0000-0000-0000-000000000000
  requestID: VFJ4
  step: 1
  callID: call_1
  toolName: close_ticket
  schemaHash: c3d4
  argumentsHash: a1b2
  decision: Denied
  reason: Not yet.
  decidedBy: ada
`

var _ = Describe("ToolApproval", func() {
	It("has no defaults", func(ctx SpecContext) {
		Expect(acceptedButNotLoaded(ctx, approvalBase, `spec: {reason: null}`)).To(HaveLen(10))
	})

	DescribeTable("accepts",
		func(ctx SpecContext, patch string) { acceptedButNotLoaded(ctx, approvalBase, patch) },
		Entry("an approval", `spec: {decision: Approved}`),
		Entry("the longest values", `spec: {step: 1000, callID: `+strings.Repeat("c", 128)+`, reason: `+strings.Repeat("r", 1024)+
			`, decidedBy: `+strings.Repeat("d", 256)+`}`),
		Entry("a tool of a server", `spec: {toolServerUID: 00000000-0000-0000-0000-000000000001}`),
		Entry("a service account", `spec: {decidedBy: "system:serviceaccount:helpdesk:bot"}`),
	)

	DescribeTable("rejects",
		func(ctx SpecContext, patch, field, message string) {
			rejected(ctx, approvalBase, patch, field, message)
		},
		Entry("no spec", `spec: null`, "spec", "Required value"),
		Entry("no Turn", `spec: {turnRef: null}`, "spec.turnRef", "Required value"),
		Entry("an invalid name of a Turn", `spec: {turnRef: {name: A/b}}`, "spec.turnRef.name", "name must be a lower-case DNS name"),
		Entry("no UID, so that it would apply to another Turn with the same name", `spec: {turnUID: null}`, "spec.turnUID",
			"Required value"),
		Entry("an empty UID", `spec: {turnUID: ""}`, "spec.turnUID", "at least 1 chars long"),
		Entry("no step", `spec: {step: null}`, "spec.step", "Required value"),
		Entry("step 0", `spec: {step: 0}`, "spec.step", "greater than or equal to 1"),
		Entry("a step beyond the maximum", `spec: {step: 1001}`, "spec.step", "less than or equal to 1000"),
		Entry("no call", `spec: {callID: null}`, "spec.callID", "Required value"),
		Entry("an empty call", `spec: {callID: ""}`, "spec.callID", "at least 1 chars long"),
		Entry("too long a call", `spec: {callID: `+strings.Repeat("c", 129)+`}`, "spec.callID", "128"),
		Entry("no arguments, so that it would apply to any arguments", `spec: {argumentsHash: null}`, "spec.argumentsHash",
			"Required value"),
		Entry("an empty hash of arguments", `spec: {argumentsHash: ""}`, "spec.argumentsHash", "at least 1 chars long"),
		Entry("no request ID, so that it could be older than its request", `spec: {requestID: null}`, "spec.requestID", "Required value"),
		Entry("an empty request ID", `spec: {requestID: ""}`, "spec.requestID", "at least 1 chars long"),
		Entry("too long a request ID", `spec: {requestID: `+strings.Repeat("r", 65)+`}`, "spec.requestID", "64"),
		Entry("no tool, so that it would apply to any tool", `spec: {toolName: null}`, "spec.toolName", "Required value"),
		Entry("an empty tool", `spec: {toolName: ""}`, "spec.toolName", "at least 1 chars long"),
		Entry("too long a tool", `spec: {toolName: `+strings.Repeat("t", 65)+`}`, "spec.toolName", "64"),
		Entry("too long a UID of a server", `spec: {toolServerUID: `+strings.Repeat("u", 65)+`}`, "spec.toolServerUID", "64"),
		Entry("no schema, so that it would apply to any schema", `spec: {schemaHash: null}`, "spec.schemaHash", "Required value"),
		Entry("an empty hash of a schema", `spec: {schemaHash: ""}`, "spec.schemaHash", "at least 1 chars long"),
		Entry("too long a hash of a schema", `spec: {schemaHash: `+strings.Repeat("s", 65)+`}`, "spec.schemaHash", "64"),
		Entry("no decision", `spec: {decision: null}`, "spec.decision", "Required value"),
		Entry("an unknown decision", `spec: {decision: "Yes"}`, "spec.decision", `supported values: "Approved", "Denied"`),
		Entry("too long a reason", `spec: {reason: `+strings.Repeat("r", 1025)+`}`, "spec.reason", "1024"),
		Entry("no approver", `spec: {decidedBy: null}`, "spec.decidedBy", "Required value"),
		Entry("an approver with an empty name", `spec: {decidedBy: ""}`, "spec.decidedBy", "at least 1 chars long"),
		Entry("an approver with too long a name", `spec: {decidedBy: `+strings.Repeat("d", 257)+`}`, "spec.decidedBy", "256"),
		Entry("an unknown field", `spec: {approved: true}`, "spec.approved", "unknown field"),
	)

	DescribeTable("does not change",
		func(ctx SpecContext, patch string) {
			Expect(faultsOf(change(ctx, createFrom(ctx, approvalBase), patch, client.DryRunAll))).To(ContainElement(And(
				HaveField("Field", "spec"), HaveField("Message", ContainSubstring("spec must not change: a decision is final")))))
		},
		Entry("its decision", `spec: {decision: Approved}`),
		Entry("its approver", `spec: {decidedBy: bob}`),
		Entry("its call", `spec: {callID: call_2}`),
		Entry("its reason", `spec: {reason: null}`),
	)
	It("may change its labels", func(ctx SpecContext) {
		Expect(change(ctx, createFrom(ctx, approvalBase), `metadata: {labels: {team: support}}`, client.DryRunAll)).To(Succeed())
	})

	It("is listed by its Turn", func(ctx SpecContext) {
		other := strings.NewReplacer("name: close,", "name: other,", "name: open-loops", "name: printer-works").Replace(approvalBase)
		createFrom(ctx, approvalBase)
		createFrom(ctx, other)
		var found v1alpha1.ToolApprovalList
		Expect(apiClient.List(ctx, &found, client.InNamespace("default"),
			client.MatchingFields{"spec.turnRef.name": "open-loops"})).To(Succeed())
		Expect(found.Items).To(HaveExactElements(HaveField("Name", "close")))
	})
})
