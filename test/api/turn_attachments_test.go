package api_test

import (
	"strings"

	. "github.com/onsi/ginkgo/v2"
)

// attachmentsPatch returns a patch that sets the attachments of the Turn, in YAML's flow style without the brackets.
func attachmentsPatch(list string) string { return `spec: {attachments: [` + list + `]}` }

// artifact returns an attachment with an artifact of the Turn t.
func artifact(fields string) string {
	return `{name: a, mediaType: text/plain, artifactRef: {turnName: t, ` + fields + `}}`
}

var _ = Describe("the attachments of a Turn", func() {
	const exactlyOne = "exactly one of url, configMapKeyRef and artifactRef must be given"
	const url = `url: "https://files.example/a.png?size=2"`

	DescribeTable("accepts",
		func(ctx SpecContext, patch string) { accepted(ctx, turnBase, patch) },
		Entry("a URL", attachmentsPatch(`{name: a, mediaType: image/png, `+url+`}`)),
		Entry("a ConfigMap", attachmentsPatch(`{name: a, mediaType: text/x-diff, configMapKeyRef: {name: c, key: k}}`)),
		Entry("an output of a Turn of the namespace", attachmentsPatch(artifact(`name: call-12-3, scope: Namespace`))),
		Entry("an answer of a Turn of the same Session", `spec: {sessionRef: {name: s}, attachments: [`+artifact(`name: answer.txt`)+`]}`),
		Entry("an attachment of a Turn of the same Session", `spec: {sessionRef: {name: s}, attachments: [`+
			artifact(`name: attachments/plan-2, scope: Session`)+`]}`),
		Entry("an at sign in the path",
			attachmentsPatch(`{name: a, mediaType: application/json, url: "https://files.example/@me/a?b=c@d"}`)),
		Entry("the maximum number of attachments",
			attachmentsPatch(numbered(8, "{name: a%d, mediaType: application/pdf, configMapKeyRef: {name: c, key: k}}"))),
	)

	DescribeTable("rejects an attachment",
		func(ctx SpecContext, attachment, field, message string) {
			rejected(ctx, turnBase, attachmentsPatch(attachment), "spec.attachments[0]"+field, message)
		},
		Entry("without a content", `{name: a, mediaType: image/png}`, "", exactlyOne),
		Entry("with two contents", `{name: a, mediaType: image/png, configMapKeyRef: {name: c, key: k}, `+url+`}`, "",
			exactlyOne),
		Entry("with a URL and an artifact", `{name: a, mediaType: image/png, artifactRef: {turnName: t, name: call-1-1, `+
			`scope: Namespace}, `+url+`}`, "", exactlyOne),
		Entry("from an artifact without a Turn", `{name: a, mediaType: text/plain, artifactRef: {name: call-1-1, scope: Namespace}}`,
			".artifactRef.turnName", "Required value"),
		Entry("from an artifact of a Turn of a path", `{name: a, mediaType: text/plain, artifactRef: {turnName: a/b, name: call-1-1, `+
			`scope: Namespace}}`, ".artifactRef.turnName", "turnName must be a lower-case DNS name"),
		Entry("from an artifact without a name", `{name: a, mediaType: text/plain, artifactRef: {turnName: t, scope: Namespace}}`,
			".artifactRef.name", "Required value"),
		Entry("from an artifact of a path", artifact(`name: "../secret", scope: Namespace`), ".artifactRef.name",
			"name must be the name of an artifact, such as call-3-1, answer.txt or attachments/plan"),
		Entry("from an artifact of a long name", artifact(`name: `+strings.Repeat("a", 81)+`, scope: Namespace`), ".artifactRef.name",
			"may not be more than 80"),
		Entry("from an artifact of another scope", artifact(`name: a, scope: Cluster`), ".artifactRef.scope",
			`supported values: "Session", "Namespace"`),
		Entry("without a name", `{mediaType: image/png, `+url+`}`, ".name", "Required value"),
		Entry("with a name that is no label", `{name: A_b, mediaType: image/png, `+url+`}`, ".name", "name must be a lower-case DNS label"),
		Entry("without a type", `{name: a, `+url+`}`, ".mediaType", "Required value"),
		Entry("of a type that is not supported", `{name: a, mediaType: image/bmp, `+url+`}`, ".mediaType", "mediaType must be image/png"),
		Entry("of a type with parameters", `{name: a, mediaType: "text/plain;charset=utf-8", `+url+`}`, ".mediaType",
			"mediaType must be image/png"),
		Entry("from a URL without TLS", `{name: a, mediaType: image/png, url: "http://files.example/a"}`, ".url",
			"url must be an https URL with a host"),
		Entry("from a URL without a host", `{name: a, mediaType: image/png, url: "https:///a"}`, ".url",
			"url must be an https URL with a host"),
		Entry("from a file", `{name: a, mediaType: image/png, url: "file:///etc/passwd"}`, ".url", "url must be an https URL with a host"),
		Entry("from a URL with credentials", `{name: a, mediaType: image/png, url: "https://user:key@files.example/a"}`, ".url",
			"url must not contain credentials or a fragment"),
		Entry("from a URL with a fragment", `{name: a, mediaType: image/png, url: "https://files.example/a#b"}`, ".url",
			"url must not contain credentials or a fragment"),
		Entry("from a URL that is too long", `{name: a, mediaType: image/png, url: "https://files.example/`+strings.Repeat("a", 2048)+`"}`,
			".url", "may not be more than 2048"),
	)

	It("rejects too many of them", func(ctx SpecContext) {
		rejected(ctx, turnBase, attachmentsPatch(numbered(9,
			"{name: a%d, mediaType: application/pdf, configMapKeyRef: {name: c, key: k}}")),
			"spec.attachments", "must have at most 8 items")
	})
	It("rejects an artifact of a Session in a Turn without one", func(ctx SpecContext) {
		rejected(ctx, turnBase, attachmentsPatch(artifact(`name: call-1-1`)), "spec.attachments",
			"artifactRef.scope must be Namespace in a Turn without sessionRef")
	})
	It("rejects two with the same name", func(ctx SpecContext) {
		rejected(ctx, turnBase, attachmentsPatch(`{name: a, mediaType: image/png, `+url+`}, {name: a, mediaType: image/gif, `+url+`}`),
			"spec.attachments[1]", "Duplicate value")
	})
})
