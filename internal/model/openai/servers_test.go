package openai_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// usageEvent is the usage as OpenAI sends it, in an event of its own.
const usageEvent = `{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":4,"total_tokens":13}}`

// jsonType is the content type of an answer that is not a stream.
const jsonType = "Content-Type: application/json"

// TestRepliesOfRealServers checks that the replies of many servers are read, although they do not follow the protocol
// of OpenAI to the letter. Each case names its source: a thread of an issue tracker, or the documentation of the server.
func TestRepliesOfRealServers(t *testing.T) {
	usage := model.Usage{InputTokens: 9, OutputTokens: 4}
	yes := model.Reply{Text: "yes", FinishReason: model.FinishStop, Usage: usage}
	thought := model.Reply{Text: "yes", Reasoning: "Hm.", FinishReason: model.FinishStop, Usage: usage}
	cut := model.Reply{Text: "yes", FinishReason: model.FinishLength, Usage: usage}
	call := model.Reply{
		Text: "", ToolCalls: []model.ToolCall{{ID: "a", Name: "count", Arguments: `{"n":1}`}},
		FinishReason: model.FinishToolCalls, Usage: usage,
	}
	unnamed := call
	unnamed.ToolCalls = []model.ToolCall{{ID: "call_0", Name: "count", Arguments: `{"n":1}`}}
	content := delta(`"content":"yes"`)
	whole := func(message, finish string) string {
		return `{"id":"1","object":"chat.completion","created":1.5,"choices":[{"index":0,"message":{"role":"assistant",` +
			message + `}` + finish + `}],"usage":{"prompt_tokens":9,"completion_tokens":4,"total_tokens":13}}`
	}
	stop := `,"finish_reason":"stop"`
	for name, tc := range map[string]struct {
		// source is where the form of the answer is known from.
		source string
		body   string
		header string // empty: an event stream
		want   model.Reply
	}{
		// Contents.
		"parts": {
			"Mistral: github.com/symfony/ai/issues/2422",
			events(delta(`"content":[{"type":"text","text":"ye"},{"type":"reference","reference_ids":[1]}]`), delta(`"content":"s"`),
				finishing("stop"), usageEvent, "[DONE]"), "", yes,
		},
		"thinking parts": {
			"Mistral: github.com/simonw/llm-mistral/pull/39",
			events(delta(`"content":[{"type":"thinking","thinking":[{"type":"text","text":"Hm."}],"closed":true}]`), content,
				finishing("stop"), usageEvent, "[DONE]"), "", thought,
		},
		"null and other types": {
			"LiteLLM: github.com/BerriAI/liteLLM-proxy/issues/19",
			events(`{"choices":[{"index":0,"delta":{"role":null,"content":null,"tool_calls":null,"audio":false,"function_call":null,`+
				`"refusal":null},"logprobs":[]}],"stream_options":{"include_usage":true},"citations":"none","system_fingerprint":7}`,
				content, finishing("stop"), usageEvent, "[DONE]"), "", yes,
		},
		"delta and message": {
			"Perplexity: docs.perplexity.ai, streaming",
			events(`{"choices":[{"index":0,"delta":{"content":"ye"},"message":{"content":"ye"}}]}`,
				`{"choices":[{"index":0,"delta":{"content":"s"},"message":{"content":"yes"},"finish_reason":"stop"}]}`,
				usageEvent, "[DONE]"), "", yes,
		},
		// Numbers.
		"floats": {
			"SGLang: github.com/sgl-project/sglang/issues/9963, OpenRouter: github.com/BerriAI/litellm/issues/28024",
			events(`{"created":1756892755.25,"choices":[{"index":0.0,"delta":{"content":"yes"},"finish_reason":"stop"}]}`,
				`{"created":1756892755.5,"choices":[],"usage":{"prompt_tokens":9.0,"completion_tokens":3.92,"total_tokens":"13"}}`,
				"[DONE]"),
			"", yes,
		},
		"no usage": {
			"SGLang: github.com/sgl-project/sglang/issues/3912",
			events(`{"choices":[{"index":0,"delta":{"content":"yes"},"finish_reason":""}],"usage":null}`,
				finishing("stop"), `{"choices":[],"usage":[]}`, "[DONE]"), "",
			model.Reply{Text: "yes", FinishReason: model.FinishStop},
		},
		// Ends.
		"model_length": {
			"Mistral: github.com/laravel/ai/pull/955",
			events(content, finishing("model_length"), usageEvent, "[DONE]"), "", cut,
		},
		"max_tokens": {
			"gateways before Anthropic and Bedrock: docs.anthropic.com, stop reasons",
			events(content, finishing("max_tokens"), usageEvent, "[DONE]"), "", cut,
		},
		"MAX_TOKENS": {
			"gateways before Gemini and Cohere: docs.cohere.com, finish reasons",
			events(content, finishing("MAX_TOKENS"), usageEvent, "[DONE]"), "", cut,
		},
		"end_turn": {
			"gateways before Anthropic: docs.anthropic.com, stop reasons",
			events(content, finishing("end_turn"), usageEvent, "[DONE]"), "", yes,
		},
		"COMPLETE": {"Cohere: docs.cohere.com, finish reasons", events(content, finishing("COMPLETE"), usageEvent, "[DONE]"), "", yes},
		"tool_use": {
			"gateways before Anthropic: docs.anthropic.com, stop reasons",
			events(part(0, "a", "count", `{"n":1}`), finishing("tool_use"), usageEvent, "[DONE]"), "", call,
		},
		"no reason": {
			"gateways before Gemini: github.com/open-learning-exchange/planet/pull/10281",
			events(content, usageEvent, "[DONE]"), "", yes,
		},
		"no reason for a call": {
			"gateways before Gemini: github.com/open-learning-exchange/planet/pull/10281",
			events(part(0, "a", "count", `{"n":1}`), usageEvent, "[DONE]"), "", call,
		},
		"a number as the reason": {"the type of a field must not matter", events(content,
			`{"choices":[{"index":0,"delta":{},"finish_reason":1}]}`, usageEvent, "[DONE]"), "", yes},
		// Streams.
		"byte order mark": {"the standard: html.spec.whatwg.org, event streams", "\ufeff" + events(content, finishing("stop"),
			usageEvent), "", yes},
		"CR LF and comments": {
			"OpenRouter: github.com/openai/openai-go/issues/227",
			": OPENROUTER PROCESSING\r\n\r\ndata: " + content + "\r\n\r\n: OPENROUTER PROCESSING\r\n\r\ndata: " + finishing("stop") +
				"\r\n\r\ndata: " + usageEvent + "\r\n\r\ndata: [DONE]\r\n\r\n", "", yes,
		},
		"empty events": {
			"keep-alives of proxies", "data:\n\ndata: \n\n" + events(content, "", finishing("stop"), usageEvent, "[DONE]"),
			"", yes,
		},
		"no space": {"the space is optional", "data:" + content + "\n\ndata:" + finishing("stop") + "\n\ndata:" + usageEvent +
			"\n\ndata:[DONE]\n\n", "", yes},
		// Usage.
		"usage in the last chunk": {
			"vLLM and DeepSeek: api-docs.deepseek.com, create-chat-completion",
			events(content, `{"choices":[{"index":0,"delta":{"content":""},"finish_reason":"stop"}],"usage":{"prompt_tokens":9,`+
				`"completion_tokens":4}}`,
				"[DONE]"), "", yes,
		},
		"usage before the last chunk": {
			"Groq and Cohere send it with or before the end",
			events(usageEvent, content, finishing("stop"), "[DONE]"), "", yes,
		},
		"usage in two parts": {
			"gateways before Anthropic: the input at the start, the output at the end",
			events(`{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":0}}`, content, finishing("stop"),
				`{"choices":[],"usage":{"prompt_tokens":0,"completion_tokens":4}}`, "[DONE]"), "", yes,
		},
		"usage in a choice": {
			"Moonshot: github.com/earendil-works/pi/issues/2017",
			events(content, `{"choices":[{"index":0,"delta":{},"finish_reason":"stop","usage":{"prompt_tokens":9,"completion_tokens":4,`+
				`"total_tokens":13,"cached_tokens":8}}]}`, "[DONE]"), "",
			model.Reply{Text: "yes", FinishReason: model.FinishStop, Usage: model.Usage{
				InputTokens: 9, OutputTokens: 4,
				CacheReadTokens: 8,
			}},
		},
		"usage of Groq": {
			"Groq: console.groq.com, text chat",
			events(content, `{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}],"x_groq":{"id":"req_1",`+
				`"usage":{"queue_time":0.1,`+
				`"prompt_tokens":9,"completion_tokens":4,"total_tokens":13}}}`, "[DONE]"), "", yes,
		},
		"reasoning beside the output": {
			"xAI: github.com/vercel/ai/pull/12425",
			events(content, finishing("stop"), `{"choices":[],"usage":{"prompt_tokens":12,"completion_tokens":1,"total_tokens":399,`+
				`"prompt_tokens_details":{"cached_tokens":8},"completion_tokens_details":{"reasoning_tokens":386}}}`, "[DONE]"), "",
			model.Reply{Text: "yes", FinishReason: model.FinishStop, Usage: model.Usage{
				InputTokens: 12, OutputTokens: 387, ReasoningTokens: 386, CacheReadTokens: 8,
			}},
		},
		"reasoning only in the total": {
			"Gemini: github.com/UKGovernmentBEIS/inspect_ai/issues/5528",
			events(content, finishing("stop"), `{"choices":[],"usage":{"prompt_tokens":10,"completion_tokens":5,"total_tokens":65}}`,
				"[DONE]"), "",
			model.Reply{Text: "yes", FinishReason: model.FinishStop, Usage: model.Usage{InputTokens: 10, OutputTokens: 55}},
		},
		"cache of DeepSeek": {
			"DeepSeek: api-docs.deepseek.com, create-chat-completion",
			events(content, finishing("stop"), `{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":4,"total_tokens":13,`+
				`"prompt_cache_hit_tokens":8,"prompt_cache_miss_tokens":1}}`, "[DONE]"), "",
			model.Reply{Text: "yes", FinishReason: model.FinishStop, Usage: model.Usage{
				InputTokens: 9, OutputTokens: 4,
				CacheReadTokens: 8,
			}},
		},
		// Whole answers.
		"whole": {
			"servers that cannot stream: github.com/sgl-project/sglang/issues/2810",
			whole(`"content":"yes"`, stop), jsonType, yes,
		},
		"whole, on lines": {
			"servers that cannot stream", "{\n  \"choices\": [{\n    \"message\": {\"content\": \"yes\"},\n\n    \"finish_reason\": \"stop\"\n" +
				"  }],\n  \"usage\": {\"prompt_tokens\": 9, \"completion_tokens\": 4}\n}\n", jsonType, yes,
		},
		"whole, without a reason": {"servers that cannot stream", whole(`"content":"yes"`, ""), jsonType, yes},
		"whole, with DONE": {
			"github.com/decolua/9router/issues/3492", whole(`"content":"yes"`, stop) + "data: [DONE]\n\n", "",
			yes,
		},
		"whole, on the next line": {
			"github.com/decolua/9router/issues/3492", whole(`"content":"yes"`, stop) + "\n\ndata: [DONE]\n\n", "",
			yes,
		},
		"whole in one event": {"gateways", events(whole(`"content":"yes"`, stop), "[DONE]"), "", yes},
		"whole with reasoning": {
			"github.com/lidge-jun/opencodex/issues/3770",
			whole(`"content":[{"type":"text","text":"yes"}],"reasoning_content":"Hm."`, stop), jsonType, thought,
		},
		"whole call": {
			"TGI: github.com/huggingface/text-generation-inference/issues/2136",
			whole(`"content":null,"tool_calls":[{"id":"a","type":"function","function":{"description":null,"name":"count",`+
				`"arguments":{"n":1}}}]`, `,"finish_reason":"tool_calls"`), jsonType, call,
		},
		// Calls.
		"function_call": {
			"the older protocol: platform.openai.com, deprecated functions",
			events(delta(`"role":"assistant","content":null,"function_call":{"name":"count","arguments":""}`),
				delta(`"function_call":{"arguments":"{\"n\""}`), delta(`"function_call":{"arguments":":1}"}`), finishing("function_call"),
				usageEvent, "[DONE]"), "", unnamed,
		},
		"no id and no index": {
			"Ollama and llama.cpp of some versions",
			events(piece(`"function":{"name":"count","arguments":"{\"n\":1}"}`), finishing("tool_calls"), usageEvent, "[DONE]"), "",
			unnamed,
		},
		"arguments as an object": {
			"llama.cpp: github.com/ggml-org/llama.cpp/issues/20198",
			events(piece(`"index":0,"id":"a","function":{"name":"count","arguments":{"n":1}}`), finishing("tool_calls"), usageEvent,
				"[DONE]"), "", call,
		},
		"a number as the id": {
			"the type of a field must not matter",
			events(piece(`"index":"0","id":7,"function":{"name":"count","arguments":"{\"n\":1}"}`), finishing("tool_calls"), usageEvent,
				"[DONE]"), "",
			unnamed,
		},
	} {
		t.Run(name, func(t *testing.T) {
			header := tc.header
			if header == "" {
				header = stream
			}
			got, err := provider(t, serve(t, respond(200, tc.body, header))).Generate(t.Context(), withTools("hello"))
			if diff := cmp.Diff(tc.want, got); diff != "" || err != nil {
				t.Errorf("a form of %s was not read (error %v): -want +got:\n%s", tc.source, err, diff)
			}
		})
	}
}

// TestParallelCallsOfRealServers checks the forms in which servers send two calls. Each must arrive as two calls.
func TestParallelCallsOfRealServers(t *testing.T) {
	for name, tc := range map[string]struct {
		source string
		events []string
	}{
		"whole, index 0": {
			"Gemini gateways: github.com/BerriAI/litellm/pull/16194",
			[]string{part(0, "a", "count", `{"n":1}`), part(0, "b", "count", `{"n":2}`)},
		},
		"whole, index 0, no id": {
			"Gemini gateways: github.com/su-kaka/gcli2api/pull/406",
			[]string{part(0, "", "count", `{"n":1}`), part(0, "", "count", `{"n":2}`)},
		},
		"in one event, index 0, no id": {
			"Gemini gateways: github.com/omnigent-ai/omnigent/pull/28",
			[]string{delta(`"tool_calls":[{"index":0,"function":{"name":"count","arguments":"{\"n\":1}"}},` +
				`{"index":0,"function":{"name":"count","arguments":"{\"n\":2}"}}]`)},
		},
		"pieces, index 0": {
			"Dynamo: github.com/ai-dynamo/dynamo/pull/4723",
			[]string{
				part(0, "a", "count", `{"n`), part(0, "", "", `":1}`),
				part(0, "b", "count", `{"n`), part(0, "", "", `":2}`),
			},
		},
		"no index, no id": {
			"Ollama and llama.cpp of some versions",
			[]string{
				piece(`"function":{"name":"count","arguments":"{\"n\":1}"}`),
				piece(`"function":{"name":"count","arguments":"{\"n\":2}"}`),
			},
		},
		"no index, pieces": {
			"gateways that drop the index",
			[]string{
				piece(`"id":"a","function":{"name":"count","arguments":""}`), piece(`"function":{"arguments":"{\"n\":1}"}`),
				piece(`"id":"b","function":{"name":"count","arguments":""}`), piece(`"function":{"arguments":"{\"n\":2}"}`),
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			body := events(append(tc.events, finishing("tool_calls"), usageEvent, "[DONE]")...)
			got, err := provider(t, serve(t, respond(200, body, stream))).Generate(t.Context(), withTools("hello"))
			if err != nil {
				t.Fatalf("Generate: %v", err)
			}
			var calls []string
			for _, c := range got.ToolCalls {
				calls = append(calls, c.Name+" "+c.Arguments)
			}
			if diff := cmp.Diff([]string{`count {"n":1}`, `count {"n":2}`}, calls); diff != "" {
				t.Errorf("a form of %s: -want +got:\n%s", tc.source, diff)
			}
		})
	}
}

// TestErrorsOfRealServers checks that the kind of an error and the words of the server are known, whatever form they
// have. Each case names its source.
func TestErrorsOfRealServers(t *testing.T) {
	const (
		inStream = `provider "demo": the endpoint reported an error in the stream`
		limited  = `provider "demo": the endpoint's rate limit is reached (HTTP 429)`
		down     = `provider "demo": the endpoint failed (HTTP 502)`
		usedUp   = `provider "demo": the account's quota is used up (HTTP 402): check its plan and billing`
		bad      = `provider "demo": the endpoint refused the request (HTTP 400)`
		wrong    = `provider "demo": the endpoint refused the request (HTTP 422)`
		tooLong  = `provider "demo": the prompt is longer than the model's context window`
		noKey    = `provider "demo": the endpoint refused the credentials (HTTP 401): check key "apiKey" of Secret "demo"`
	)
	for name, tc := range map[string]struct {
		source string
		status int
		body   string
		want   errorParts
	}{
		// Error responses.
		"text": {
			"Ollama: github.com/ollama/ollama, openai middleware of older versions",
			400, `{"error":"model is required"}`, expectedError(model.InvalidRequest, bad, 0, "model is required"),
		},
		"text beside a code": {
			"xAI: github.com/BerriAI/litellm/issues/9720",
			400, `{"code":"Client specified an invalid argument","error":"Only messages of role 'user' can have a name."}`,
			expectedError(model.InvalidRequest, bad, 0, "Only messages of role 'user' can have a name."),
		},
		"flat": {
			"Mistral: github.com/nearai/ironclaw/issues/1241",
			400, `{"object":"error","message":"Tool call id was turn1_0 but must be a-z, A-Z, 0-9, with a length of 9.",` +
				`"type":"invalid_function_call","param":null,"code":"3280","raw_status_code":400}`,
			expectedError(model.InvalidRequest, bad, 0, "Tool call id was turn1_0 but must be a-z, A-Z, 0-9, with a length of 9."),
		},
		"flat context": {
			"vLLM: its ErrorResponse before version 0.11",
			400, `{"object":"error","message":"This model's maximum context length is 10 tokens.","type":"BadRequestError",` +
				`"param":null,"code":400}`,
			expectedError(model.ContextLength, tooLong, 0, "This model's maximum context length is 10 tokens."),
		},
		"only a message": {
			"Cohere: github.com/OpenRouterTeam/openrouter-examples/issues/71",
			422, `{"message":"unknown field: parameter 'strict' is not a valid field."}`,
			expectedError(model.InvalidRequest, wrong, 0, "unknown field: parameter 'strict' is not a valid field."),
		},
		"an object as the message": {
			"Mistral: github.com/dnakov/anon-kode/issues/53",
			422, `{"object":"error","message":{"detail":[{"type":"extra_forbidden","loc":["body","stream_options"],` +
				`"msg":"Extra inputs are not permitted"}]},"type":"invalid_request_error","param":null,"code":null}`,
			expectedError(model.InvalidRequest, wrong, 0,
				`{"type":"extra_forbidden","loc":["body","stream_options"],"msg":"Extra inputs are not permitted"}`),
		},
		"detail": {
			"servers on FastAPI, such as SGLang and TGI: fastapi.tiangolo.com, handling errors",
			422, `{"detail":"Unprocessable"}`, expectedError(model.InvalidRequest, wrong, 0, "Unprocessable"),
		},
		"list": {
			"Gemini: github.com/MinLL/SkyrimNet-GamePlugin/issues/77",
			400, `[{"error":{"code":400,"message":"Unknown name \"parallel_tool_calls\": Cannot find field.",` +
				`"status":"INVALID_ARGUMENT"}}]`,
			expectedError(model.InvalidRequest, bad, 0, `Unknown name "parallel_tool_calls": Cannot find field.`),
		},
		"number as a code": {
			"llama.cpp: github.com/ggml-org/llama.cpp/issues/20733",
			400, `{"error":{"code":400,"message":"System message must be at the beginning.","type":"invalid_request_error"}}`,
			expectedError(model.InvalidRequest, bad, 0, "System message must be at the beginning."),
		},
		"raw": {
			"OpenRouter: github.com/diegosouzapw/OmniRoute/issues/3044",
			400, `{"error":{"message":"Provider returned error","code":400,` +
				`"metadata":{"raw":"{\"error\":{\"type\":\"invalid_request_error\",` +
				`\"message\":\"At most 1 image per prompt.\"}}","provider_name":"Crucible"}},"user_id":"user_1"}`,
			expectedError(model.InvalidRequest, bad, 0, "Provider returned error: At most 1 image per prompt."),
		},
		"no balance": {
			"DeepSeek and OpenRouter: api-docs.deepseek.com, error codes",
			402, `{"error":{"message":"Insufficient Balance","type":"unknown_error","param":null,"code":"invalid_request_error"}}`,
			expectedError(model.Auth, usedUp, 0, "Insufficient Balance"),
		},
		"not JSON": {"proxies", 502, "<html>Bad Gateway</html>", expectedError(model.Overloaded, down, 0, "<html>Bad Gateway</html>")},
		// Errors within an answer that began with 200.
		"in the stream, raw": {
			"OpenRouter: github.com/damianvtran/local-operator/pull/223",
			200, events(`{"id":"gen-1","object":"chat.completion.chunk","provider":"Nvidia","error":{"code":502,` +
				`"message":"Upstream error",` +
				`"metadata":{"raw":"{\"message\":\"Worker local total request limit reached (33/32)\"}",` +
				`"error_type":"provider_unavailable"}},` +
				`"choices":[{"index":0,"delta":{"content":""},"finish_reason":"error"}]}`),
			expectedError(model.Overloaded, down, 0, "Upstream error: Worker local total request limit reached (33/32)"),
		},
		"in the stream, context": {
			"OpenRouter: github.com/dcdpr/jp/pull/978",
			200, events(`{"choices":[],"error":{"message":"This endpoint's maximum context length is 10 tokens.","code":400}}`),
			expectedError(model.ContextLength, tooLong, 0, "This endpoint's maximum context length is 10 tokens."),
		},
		"in the stream, in a choice": {
			"OpenRouter: github.com/genkit-ai/genkit/pull/6079",
			200, events(`{"choices":[{"index":0,"delta":{},"error":{"code":429,"message":"Slow down."},"finish_reason":"error"}]}`),
			expectedError(model.RateLimited, limited, 0, "Slow down."),
		},
		"in the stream, flat": {
			"SGLang and vLLM: create_streaming_error_response; github.com/sgl-project/sglang/pull/28175",
			200, events(`{"error":{"object":"error","message":"The request queue is full.","type":"SERVICE_UNAVAILABLE",` +
				`"param":null,"code":503}}`),
			expectedError(model.Overloaded, `provider "demo": the endpoint failed (HTTP 503)`, 0, "The request queue is full."),
		},
		"in the stream, not nested": {
			"vLLM of older versions", 200, events(`{"object":"error","message":"out of memory","type":"InternalServerError","code":500}`),
			expectedError(model.Overloaded, `provider "demo": the endpoint failed (HTTP 500)`, 0, "out of memory"),
		},
		"in the stream, twice": {
			"LM Studio: github.com/zendev-sh/goai/pull/110", 200,
			"event: error\n" + events(`{"error":{"message":"Compute error."},"message":"Compute error."}`),
			expectedError(model.Overloaded, inStream, 0, "Compute error."),
		},
		"in the stream, text": {
			"LM Studio: event of its server", 200, "event: error\n" + events(`{"error":"The model has crashed."}`),
			expectedError(model.Overloaded, inStream, 0, "The model has crashed."),
		},
		"in the stream, a word as the code": {
			"gateways before Anthropic: github.com/farzaa/clicky/issues/132",
			200, events(`{"type":"error","error":{"type":"authentication_error","message":"invalid x-api-key"}}`),
			expectedError(model.Auth, noKey, 0, "invalid x-api-key"),
		},
		"in the stream, bad request": {
			"Anthropic gateways: github.com/coder/aibridge/issues/56",
			200, events(`{"type":"error","error":{"type":"invalid_request_error","message":"no"}}`),
			expectedError(model.InvalidRequest, bad, 0, "no"),
		},
		"a line of its own": {
			"llama.cpp: github.com/ggml-org/llama.cpp/pull/16109",
			200, events(delta(`"content":"ye"`)) + `error: {"code":500,"message":"slot failed","type":"server_error"}` + "\n\n",
			expectedError(model.Overloaded, `provider "demo": the endpoint failed (HTTP 500)`, 0, "slot failed"),
		},
		"bare text": {
			"Crane: github.com/lucasjinreal/Crane/pull/121", 200, events("error: the engine stopped"),
			expectedError(model.Malformed, `provider "demo": the response does not follow the chat-completions protocol`, 0,
				"error: the engine stopped"),
		},
		"the reason": {
			"Mistral: github.com/laravel/ai/pull/955", 200, events(delta(`"content":"ye"`), finishing("error"), "[DONE]"),
			expectedError(model.Overloaded, inStream, 0),
		},
		"no error": {
			"servers that always send the field", 200, events(`{"error":{},"choices":[{"index":0,"delta":{"content":" "}}]}`, "[DONE]"),
			expectedError(model.Malformed, `provider "demo": the answer was empty`, 0),
		},
		"instead of a stream": {
			"gateways that answer every request with 200", 200, `{"error":{"message":"Slow down.","code":"429"}}`,
			expectedError(model.RateLimited, limited, 0, "Slow down."),
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := failure(t, provider(t, serve(t, respond(tc.status, tc.body, stream))))
			if diff := cmp.Diff(tc.want, partsOf(e)); diff != "" {
				t.Errorf("a form of %s: -want +got:\n%s", tc.source, diff)
			}
		})
	}
}
