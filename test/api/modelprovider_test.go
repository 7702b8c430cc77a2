package api_test

import (
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

const providerBase = `
apiVersion: capstan.dev/v1alpha1
kind: ModelProvider
metadata: {name: demo, namespace: default}
spec:
  type: OpenAI
  baseURL: https://llm.internal/v1
`

// priced returns a patch that lists a model with this pricing.
func priced(pricing string) string { return `spec: {models: [{name: m, pricing: ` + pricing + `}]}` }

var _ = Describe("ModelProvider", func() {
	It("has defaults", func(ctx SpecContext) {
		spec := accepted(ctx, providerBase, priced(`{inputPerMillion: "1", outputPerMillion: "2"}`))
		Expect(spec).To(HaveKeyWithValue("retry", map[string]any{
			"maxAttempts": int64(4), "initialBackoffMilliseconds": int64(500), "maxBackoffSeconds": int64(20),
		}))
		Expect(spec).To(HaveKeyWithValue("timeouts", map[string]any{"connectSeconds": int64(5), "idleSeconds": int64(60)}))
		Expect(asJSON(spec["models"])).To(ContainSubstring(`"currency":"USD"`))
	})

	DescribeTable("accepts",
		func(ctx SpecContext, patch string) { accepted(ctx, providerBase, patch) },
		Entry("plain http with a port", `spec: {baseURL: "http://127.0.0.1:8089/v1"}`),
		Entry("an IPv6 address", `spec: {baseURL: "http://[::1]:8089/v1"}`),
		Entry("a header with a value", `spec: {headers: [{name: X-Team, value: support}]}`),
		Entry("a header with an empty value", `spec: {headers: [{name: X-Team, value: ""}]}`),
		Entry("headers that only look like reserved ones",
			`spec: {headers: [{name: X-Forward, value: a}, {name: Cookies, value: a}, {name: Te2, value: a}]}`),
		Entry("a header from a Secret", `spec: {headers: [{name: X-Key, valueFrom: {secretKeyRef: {name: a, key: k}}}]}`),
		Entry("prices at their bounds", priced(
			`{currency: EUR, inputPerMillion: "0", outputPerMillion: "999999999.999999999", cacheReadPerMillion: "0.03"}`)),
		Entry("retries at their bounds", `spec: {retry: {maxAttempts: 10, initialBackoffMilliseconds: 60000, maxBackoffSeconds: 300}}`),
		Entry("authorities", `spec: {tls: {caBundleRef: {name: ca, key: ca.crt}}}`),
		Entry("all that can be said of a model", `spec: {models: [{name: m, contextWindow: 100000000, maxOutputTokens: 100000000,
  capabilities: [Tools, Streaming, StructuredOutput, Reasoning]}]}`),
		Entry("the smallest window", `spec: {models: [{name: m, contextWindow: 1, maxOutputTokens: 1}]}`),
		Entry("a dialect", `spec: {dialect: Mistral}`),
		Entry("all options of requests", `spec: {dialect: OpenAI, requests: {outputLimit: MaxTokens, systemMessages: BeforeReplies,
  messageNames: "Off", streamOptions: "Off", toolCallIDs: Plain, strictSchemas: "On", parallelToolCalls: "Off",
  developerRole: "On", extraFields: [{name: top_k, value: "20"}, {name: chat_template_kwargs, value: '{"a": [null]}'}]}}`),
		Entry("data that is sent back", `spec: {dialect: VLLM, requests: {returnedData: ReasoningContent}}`),
		Entry("nothing sent back", `spec: {dialect: Gemini, requests: {returnedData: Nothing}}`),
		Entry("options that Mistral accepts",
			`spec: {dialect: Mistral, requests: {systemMessages: Merged, messageNames: "Off", toolCallIDs: NineCharacters}}`),
		Entry("names of messages for another dialect", `spec: {dialect: Groq, requests: {messageNames: "On"}}`),
		Entry("one retry setting, the others by default", `spec: {retry: {maxAttempts: 1}}`),
	)

	DescribeTable("refuses",
		func(ctx SpecContext, patch, field, message string) { refused(ctx, providerBase, patch, field, message) },
		Entry("no type", `spec: {type: null}`, "spec.type", "Required value"),
		Entry("an unknown type", `spec: {type: Azure}`, "spec.type", `supported values: "OpenAI"`),
		Entry("an unknown dialect", `spec: {dialect: Claude}`, "spec.dialect", `supported values: "Generic", "OpenAI"`),
		Entry("an unknown position of a switch", `spec: {requests: {streamOptions: Maybe}}`,
			"spec.requests.streamOptions", "supported values"),
		Entry("system messages in place for Mistral", `spec: {dialect: Mistral, requests: {systemMessages: InPlace}}`,
			"spec.requests", "Mistral refuses system messages after replies"),
		Entry("names for Mistral", `spec: {dialect: Mistral, requests: {messageNames: "On"}}`,
			"spec.requests", "names of messages, IDs of calls in another form"),
		Entry("returned data for Mistral", `spec: {dialect: Mistral, requests: {returnedData: ReasoningContent}}`,
			"spec.requests", "Mistral refuses system messages after replies"),
		Entry("other IDs for Mistral", `spec: {dialect: Mistral, requests: {toolCallIDs: Any}}`,
			"spec.requests", "names of messages, IDs of calls in another form"),
		Entry("names for xAI", `spec: {dialect: XAI, requests: {messageNames: "On"}}`,
			"spec.requests.messageNames", "xAI refuses names of messages"),
		Entry("the role developer for DeepSeek", `spec: {dialect: DeepSeek, requests: {developerRole: "On"}}`,
			"spec.requests.developerRole", "Mistral and DeepSeek refuse the role developer"),
		Entry("strict schemas for Cohere", `spec: {dialect: Cohere, requests: {strictSchemas: "On"}}`,
			"spec.requests.strictSchemas", "Cohere refuses strict schemas"),
		Entry("an extra field that Capstan sends", `spec: {requests: {extraFields: [{name: Messages, value: "[]"}]}}`,
			"spec.requests.extraFields[0].name", "name must not be a field that Capstan sends or depends on"),
		Entry("an extra field that is no name", `spec: {requests: {extraFields: [{name: "a b", value: "1"}]}}`,
			"spec.requests.extraFields[0].name", "name must consist of letters, digits"),
		Entry("an extra field without a value", `spec: {requests: {extraFields: [{name: a, value: ""}]}}`,
			"spec.requests.extraFields[0].value", "at least 1"),
		Entry("an extra field twice", `spec: {requests: {extraFields: [{name: a, value: "1"}, {name: a, value: "2"}]}}`,
			"spec.requests.extraFields[1]", "Duplicate value"),
		Entry("no URL", `spec: {baseURL: null}`, "spec.baseURL", "Required value"),
		Entry("an empty URL", `spec: {baseURL: ""}`, "spec.baseURL", "baseURL must be an http or https URL with a host"),
		Entry("a URL without a scheme", `spec: {baseURL: llm.internal/v1}`, "spec.baseURL",
			"baseURL must be an http or https URL with a host"),
		Entry("a file", `spec: {baseURL: "file:///etc/passwd"}`, "spec.baseURL", "baseURL must be an http or https URL with a host"),
		Entry("a URL without a host", `spec: {baseURL: "https:///v1"}`, "spec.baseURL", "baseURL must be an http or https URL with a host"),
		Entry("a URL with a port alone", `spec: {baseURL: "http://:8080/v1"}`, "spec.baseURL",
			"baseURL must be an http or https URL with a host"),
		Entry("a URL with credentials", `spec: {baseURL: "https://user:secret@llm.internal/v1"}`,
			"spec.baseURL", "baseURL must not contain credentials, a query or a fragment"),
		Entry("a URL with a query", `spec: {baseURL: "https://llm.internal/v1?key=1"}`,
			"spec.baseURL", "baseURL must not contain credentials, a query or a fragment"),
		Entry("a URL with a fragment", `spec: {baseURL: "https://llm.internal/v1#a"}`,
			"spec.baseURL", "baseURL must not contain credentials, a query or a fragment"),
		Entry("a URL with a line break", `spec: {baseURL: "https://llm.internal/v1\nHost: evil"}`, "spec.baseURL", "baseURL must be"),
		Entry("too long a URL", `spec: {baseURL: "https://llm.internal/`+strings.Repeat("a", 1024)+`"}`, "spec.baseURL", "1024"),
		Entry("a Secret key that is a path", `spec: {credentialsRef: {name: a, key: ../k}}`, "spec.credentialsRef.key",
			"must consist of letters"),
		Entry("a Secret that is no name", `spec: {credentialsRef: {name: A, key: k}}`,
			"spec.credentialsRef.name", "name must be a lower-case DNS name"),
		Entry("a header without a value", `spec: {headers: [{name: X-Team}]}`,
			"spec.headers[0]", "exactly one of value and valueFrom must be given"),
		Entry("a header with two values", `spec: {headers: [{name: X, value: a, valueFrom: {secretKeyRef: {name: a, key: k}}}]}`,
			"spec.headers[0]", "exactly one of value and valueFrom must be given"),
		Entry("Authorization as a header", `spec: {headers: [{name: AUTHORIZATION, value: a}]}`,
			"spec.headers[0].name", "name must not be authorization (use credentialsRef)"),
		Entry("a cookie", `spec: {headers: [{name: Cookie, value: a}]}`, "spec.headers[0].name",
			"name must not be authorization (use credentialsRef), cookie, host"),
		Entry("the word of a proxy", `spec: {headers: [{name: X-Forwarded-For, value: a}]}`, "spec.headers[0].name",
			"a header about users or origins"),
		Entry("the word of a proxy, in disguise", `spec: {headers: [{name: x_forwarded_host, value: a}]}`,
			"spec.headers[0].name", "a header about users or origins"),
		Entry("a front proxy's user", `spec: {headers: [{name: X-Remote-User, value: a}]}`, "spec.headers[0].name",
			"a header about users or origins"),
		Entry("another identity", `spec: {headers: [{name: Impersonate-User, value: a}]}`, "spec.headers[0].name",
			"a header about users or origins"),
		Entry("a header of the connection", `spec: {headers: [{name: TE, value: trailers}]}`, "spec.headers[0].name",
			"a header of the connection"),
		Entry("the encoding of the answer", `spec: {headers: [{name: Accept-Encoding, value: gzip}]}`,
			"spec.headers[0].name", "a header of the connection"),
		Entry("Host as a header", `spec: {headers: [{name: Host, value: a}]}`, "spec.headers[0].name", "name must not be authorization"),
		Entry("a header's name with a space", `spec: {headers: [{name: "X Team", value: a}]}`, "spec.headers[0].name",
			"must be the name of an HTTP header"),
		Entry("a header with a line break", `spec: {headers: [{name: X, value: "a\r\nHost: evil"}]}`,
			"spec.headers[0].value", "must consist of printable ASCII characters"),
		Entry("the same header twice", `spec: {headers: [{name: X, value: a}, {name: X, value: b}]}`, "spec.headers[1]", "Duplicate value"),
		Entry("the same header twice in other case", `spec: {headers: [{name: x-team, value: a}, {name: X-Team, value: b}]}`,
			"spec.headers", "headers must not repeat a name"),
		Entry("too many headers", `spec: {headers: [`+numbered(17, `{name: X-%d, value: a}`)+`]}`, "spec.headers",
			"must have at most 16 items"),
		Entry("the same model twice", `spec: {models: [{name: m}, {name: m}]}`, "spec.models[1]", "Duplicate value"),
		Entry("too many models", `spec: {models: [`+numbered(65, `{name: m-%d}`)+`]}`, "spec.models", "must have at most 64 items"),
		Entry("a price that is a number", priced(`{inputPerMillion: 1.5, outputPerMillion: "2"}`),
			"spec.models[0].pricing.inputPerMillion", "must be of type string"),
		Entry("a negative price", priced(`{inputPerMillion: "-1", outputPerMillion: "2"}`),
			"spec.models[0].pricing.inputPerMillion", "must be a decimal"),
		Entry("a price with an exponent", priced(`{inputPerMillion: "1e3", outputPerMillion: "2"}`),
			"spec.models[0].pricing.inputPerMillion", "must be a decimal"),
		Entry("no price of output", priced(`{inputPerMillion: "1"}`), "spec.models[0].pricing.outputPerMillion", "Required value"),
		Entry("an empty price of cached input", priced(`{inputPerMillion: "1", outputPerMillion: "2", cacheReadPerMillion: ""}`),
			"spec.models[0].pricing.cacheReadPerMillion", "must be a decimal"),
		Entry("a currency in lower case", priced(`{currency: usd, inputPerMillion: "1", outputPerMillion: "2"}`),
			"spec.models[0].pricing.currency", "must be an ISO 4217 code"),
		Entry("no authorities", `spec: {tls: {}}`, "spec.tls.caBundleRef", "Required value"),
		Entry("authorities without a key", `spec: {tls: {caBundleRef: {name: ca}}}`, "spec.tls.caBundleRef.key", "Required value"),
		Entry("no window", `spec: {models: [{name: m, contextWindow: 0}]}`, "spec.models[0].contextWindow", "greater than or equal to 1"),
		Entry("too large a window", `spec: {models: [{name: m, contextWindow: 100000001}]}`,
			"spec.models[0].contextWindow", "less than or equal to 100000000"),
		Entry("no room for a reply", `spec: {models: [{name: m, maxOutputTokens: 0}]}`, "spec.models[0].maxOutputTokens",
			"greater than or equal to 1"),
		Entry("an unknown capability", `spec: {models: [{name: m, capabilities: [Vision]}]}`,
			"spec.models[0].capabilities[0]", `supported values: "Tools", "Streaming", "StructuredOutput", "Reasoning"`),
		Entry("the same capability twice", `spec: {models: [{name: m, capabilities: [Tools, Tools]}]}`,
			"spec.models[0].capabilities[1]", "Duplicate value"),
		Entry("no attempt", `spec: {retry: {maxAttempts: 0}}`, "spec.retry.maxAttempts", "greater than or equal to 1"),
		Entry("too short a backoff", `spec: {retry: {initialBackoffMilliseconds: 9}}`,
			"spec.retry.initialBackoffMilliseconds", "greater than or equal to 10"),
		Entry("a backoff that begins above its end", `spec: {retry: {initialBackoffMilliseconds: 5000, maxBackoffSeconds: 1}}`,
			"spec.retry.initialBackoffMilliseconds", "initialBackoffMilliseconds must be at most maxBackoffSeconds"),
		Entry("no time to connect", `spec: {timeouts: {connectSeconds: 0}}`, "spec.timeouts.connectSeconds", "greater than or equal to 1"),
		Entry("too long idle", `spec: {timeouts: {idleSeconds: 601}}`, "spec.timeouts.idleSeconds", "less than or equal to 600"),
	)
})
