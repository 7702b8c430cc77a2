package api_test

import (
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

const serverBase = `
apiVersion: capstan.dev/v1alpha1
kind: ToolServer
metadata: {name: tickets, namespace: default}
spec:
  type: MCP
  mcp: {url: "http://tickets.tools:8080/mcp"}
`

// toolPatch returns a patch with a ToolServer's declaration of a tool, in YAML's flow style without the braces.
func toolPatch(fields string) string { return `spec: {tools: [{` + fields + `}]}` }

var _ = Describe("ToolServer", func() {
	It("has defaults", func(ctx SpecContext) {
		spec := accepted(ctx, serverBase, `{}`)
		Expect(spec).To(HaveKeyWithValue("callTimeoutSeconds", int64(45)))
		Expect(spec).To(HaveKeyWithValue("connectTimeoutSeconds", int64(5)))
		Expect(spec).NotTo(Or(HaveKey("tools"), HaveKey("headers"), HaveKey("tls"), HaveKey("credentialsRef")))
	})
	It("has no defaults in the declaration of a tool", func(ctx SpecContext) {
		spec := accepted(ctx, serverBase, toolPatch(`name: close_ticket`))
		Expect(asJSON(spec["tools"])).To(MatchJSON(`[{"name": "close_ticket"}]`), "a default would replace the server's own annotations")
	})

	DescribeTable("accepts",
		func(ctx SpecContext, patch string) { accepted(ctx, serverBase, patch) },
		Entry("https with a query", `spec: {mcp: {url: "https://tools.example.com/mcp?tenant=a"}}`),
		Entry("an IPv6 address", `spec: {mcp: {url: "http://[::1]:8080/mcp"}}`),
		Entry("an @ in the path and in the query", `spec: {mcp: {url: "https://tools.example.com/@upstash/context7-mcp/mcp?user=a@b"}}`),
		Entry("a token", `spec: {credentialsRef: {name: tickets, key: token}}`),
		Entry("headers", `spec: {headers: [{name: X-Team, value: support}, {name: X-Key, valueFrom: {secretKeyRef: {name: a, key: k}}}]}`),
		Entry("a CA bundle", `spec: {tls: {caBundleRef: {name: ca, key: ca.crt}}}`),
		Entry("times at their bounds", `spec: {callTimeoutSeconds: 3600, connectTimeoutSeconds: 60}`),
		Entry("a tool with all fields", toolPatch(
			`name: "web/search v2", effect: Idempotent, role: ContextPack, callTimeoutSeconds: 3600, `+
				`retryOnTimeout: Once, endsTurn: OnSuccess`)),
		Entry("the longest name of a tool", toolPatch(`name: `+strings.Repeat("t", 128))),
		Entry("as many tools as it may have", `spec: {tools: [`+numbered(256, `{name: t%d}`)+`]}`),
	)

	DescribeTable("rejects",
		func(ctx SpecContext, patch, field, message string) { rejected(ctx, serverBase, patch, field, message) },
		Entry("no spec", `spec: null`, "spec", "Required value"),
		Entry("no type", `spec: {type: null}`, "spec.type", "Required value"),
		Entry("an unknown type", `spec: {type: Stdio}`, "spec.type", `supported values: "MCP"`),
		Entry("no server", `spec: {mcp: null}`, "spec.mcp", "mcp must be given for a server of type MCP"),
		Entry("no URL", `spec: {mcp: {url: null}}`, "spec.mcp.url", "Required value"),
		Entry("an empty URL", `spec: {mcp: {url: ""}}`, "spec.mcp.url", "url must be an http or https URL with a host"),
		Entry("a URL without a scheme", `spec: {mcp: {url: tickets.tools/mcp}}`, "spec.mcp.url",
			"url must be an http or https URL with a host"),
		Entry("a URL of a program", `spec: {mcp: {url: "stdio:///bin/sh"}}`, "spec.mcp.url",
			"url must be an http or https URL with a host"),
		Entry("a URL with only a port", `spec: {mcp: {url: "http://:8080/mcp"}}`, "spec.mcp.url",
			"url must be an http or https URL with a host"),
		Entry("a URL with credentials", `spec: {mcp: {url: "http://ada:secret@tickets.tools/mcp"}}`,
			"spec.mcp.url", "url must not contain credentials or a fragment: use credentialsRef"),
		Entry("a URL with a user and an @ in the path", `spec: {mcp: {url: "https://ada@tickets.tools/@a/mcp"}}`, "spec.mcp.url",
			"url must not contain credentials or a fragment"),
		Entry("a URL with credentials before a query", `spec: {mcp: {url: "https://ada:secret@tickets.tools?a=b"}}`, "spec.mcp.url",
			"url must not contain credentials or a fragment"),
		Entry("a URL with a fragment", `spec: {mcp: {url: "http://tickets.tools/mcp#a"}}`, "spec.mcp.url",
			"url must not contain credentials or a fragment"),
		Entry("too long a URL", `spec: {mcp: {url: "http://tickets.tools/`+strings.Repeat("a", 1024)+`"}}`, "spec.mcp.url", "1024"),
		Entry("Authorization as a header", `spec: {headers: [{name: Authorization, value: a}]}`,
			"spec.headers[0].name", "name must not be authorization (use credentialsRef)"),
		Entry("the same header twice in other case", `spec: {headers: [{name: x-team, value: a}, {name: X-Team, value: b}]}`,
			"spec.headers", "headers must not repeat a name"),
		Entry("too many headers", `spec: {headers: [`+numbered(17, `{name: X-%d, value: a}`)+`]}`, "spec.headers",
			"must have at most 16 items"),
		Entry("no certificates", `spec: {tls: {}}`, "spec.tls", "should have at least 1 properties"),
		Entry("a client certificate without TLS", `spec: {mcp: {url: "http://tools/mcp"}, tls: {clientCertificateRef: {name: own}}}`,
			"spec.tls.clientCertificateRef", "a client certificate needs TLS"),
		Entry("a Secret with an invalid name", `spec: {tls: {caBundleRef: {name: A, key: k}}}`,
			"spec.tls.caBundleRef.name", "name must be a lower-case DNS name"),
		Entry("no time for a call", `spec: {callTimeoutSeconds: 0}`, "spec.callTimeoutSeconds", "greater than or equal to 1"),
		Entry("too much time for a call", `spec: {callTimeoutSeconds: 3601}`, "spec.callTimeoutSeconds", "less than or equal to 3600"),
		Entry("no time to connect", `spec: {connectTimeoutSeconds: 0}`, "spec.connectTimeoutSeconds", "greater than or equal to 1"),
		Entry("too much time to connect", `spec: {connectTimeoutSeconds: 61}`, "spec.connectTimeoutSeconds", "less than or equal to 60"),
		Entry("a tool without a name", toolPatch(`effect: ReadOnly`), "spec.tools[0].name", "Required value"),
		Entry("a tool with an empty name", toolPatch(`name: ""`), "spec.tools[0].name", "at least 1 chars long"),
		Entry("too long a name of a tool", toolPatch(`name: `+strings.Repeat("t", 129)), "spec.tools[0].name", "128"),
		Entry("the same tool twice", `spec: {tools: [{name: a}, {name: a}]}`, "spec.tools[1]", "Duplicate value"),
		Entry("an unknown effect", toolPatch(`name: a, effect: Harmless`), "spec.tools[0].effect",
			`supported values: "ReadOnly", "Idempotent", "Destructive"`),
		Entry("an unknown role", toolPatch(`name: a, role: Search`), "spec.tools[0].role",
			`supported values: "WebSearch", "LocalSearch", "ContextPack", "Other"`),
		Entry("no time for a call of a tool", toolPatch(`name: a, callTimeoutSeconds: 0`),
			"spec.tools[0].callTimeoutSeconds", "greater than or equal to 1"),
		Entry("an unknown retryOnTimeout", toolPatch(`name: a, retryOnTimeout: Always`), "spec.tools[0].retryOnTimeout",
			`supported values: "Never", "Once"`),
		Entry("a compensation without a tool", toolPatch(`name: a, compensation: {arguments: []}`), "spec.tools[0].compensation.tool",
			"Required value"),
		Entry("a compensation of a tool that only reads", toolPatch(`name: a, effect: ReadOnly, compensation: {tool: b}`),
			"spec.tools[0].compensation", "compensation must be absent if effect is ReadOnly"),
		Entry("a repeated argument of a compensation",
			toolPatch(`name: a, compensation: {tool: b, arguments: [{name: x, value: "1"}, {name: x, value: "2"}]}`),
			"spec.tools[0].compensation.arguments[1]", "Duplicate value"),
		Entry("too many arguments of a compensation",
			toolPatch(`name: a, compensation: {tool: b, arguments: [`+numbered(33, `{name: x%d, value: "1"}`)+`]}`),
			"spec.tools[0].compensation.arguments", "must have at most 32 items"),
		Entry("too long an expression",
			toolPatch(`name: a, compensation: {tool: b, arguments: [{name: x, value: "`+strings.Repeat("a", 1025)+`"}]}`),
			"spec.tools[0].compensation.arguments[0].value", "may not be more than 1024"),
		Entry("an unknown endsTurn", toolPatch(`name: a, endsTurn: Always`), "spec.tools[0].endsTurn",
			`supported values: "Never", "OnSuccess"`),
		Entry("too many tools", `spec: {tools: [`+numbered(257, `{name: t%d}`)+`]}`, "spec.tools", "must have at most 256 items"),
	)
})
