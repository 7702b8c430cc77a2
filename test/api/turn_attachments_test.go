package api_test

import (
	"strings"

	. "github.com/onsi/ginkgo/v2"
)

// attaching returns a patch that sets the attachments of the Turn, in YAML's flow style without the brackets.
func attaching(list string) string { return `spec: {attachments: [` + list + `]}` }

var _ = Describe("the attachments of a Turn", func() {
	const url = `url: "https://files.example/a.png?size=2"`

	DescribeTable("accepts",
		func(ctx SpecContext, patch string) { accepted(ctx, turnBase, patch) },
		Entry("a URL", attaching(`{name: a, mediaType: image/png, `+url+`}`)),
		Entry("a ConfigMap", attaching(`{name: a, mediaType: text/x-diff, configMapKeyRef: {name: c, key: k}}`)),
		Entry("an at sign in the path", attaching(`{name: a, mediaType: application/json, url: "https://files.example/@me/a?b=c@d"}`)),
		Entry("as many as there may be",
			attaching(numbered(8, "{name: a%d, mediaType: application/pdf, configMapKeyRef: {name: c, key: k}}"))),
	)

	DescribeTable("refuses an attachment",
		func(ctx SpecContext, attachment, field, message string) {
			refused(ctx, turnBase, attaching(attachment), "spec.attachments[0]"+field, message)
		},
		Entry("without a content", `{name: a, mediaType: image/png}`, "", "exactly one of url and configMapKeyRef must be given"),
		Entry("with two contents", `{name: a, mediaType: image/png, configMapKeyRef: {name: c, key: k}, `+url+`}`, "",
			"exactly one of url and configMapKeyRef must be given"),
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

	It("refuses too many of them", func(ctx SpecContext) {
		refused(ctx, turnBase, attaching(numbered(9, "{name: a%d, mediaType: application/pdf, configMapKeyRef: {name: c, key: k}}")),
			"spec.attachments", "must have at most 8 items")
	})
	It("refuses two of one name", func(ctx SpecContext) {
		refused(ctx, turnBase, attaching(`{name: a, mediaType: image/png, `+url+`}, {name: a, mediaType: image/gif, `+url+`}`),
			"spec.attachments[1]", "Duplicate value")
	})
})
