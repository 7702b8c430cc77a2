package cli_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/capstan-dev/capstan/internal/cli/exit"
)

// wire is a request as a server receives it.
type wire struct {
	fields   map[string]json.RawMessage
	messages []wireMessage
}

// newWire reads the body of a request.
func newWire(body []byte) (w wire, err error) {
	if err = json.Unmarshal(body, &w.fields); err == nil {
		err = json.Unmarshal(w.fields["messages"], &w.messages)
	}
	return w, err
}

// current returns the messages after the last message of the user.
func (w *wire) current() []wireMessage {
	all := w.messages
	for i, m := range all {
		if m.Role == "user" {
			all = w.messages[i+1:]
		}
	}
	return all
}

type wireMessage struct {
	Role      string
	Content   string
	Name      *string
	ToolCalls []struct {
		ID           string
		ExtraContent json.RawMessage `json:"extra_content"`
	} `json:"tool_calls"`
	ToolCallID       string          `json:"tool_call_id"`
	ReasoningContent string          `json:"reasoning_content"`
	ReasoningDetails json.RawMessage `json:"reasoning_details"`
}

// The server sends these data with its call: reasoning, blocks of reasoning and a signature.
const (
	reasoning = `I look.`
	details   = `[{"index":0,"signature":"c2ln","text":"I look.","type":"reasoning.text"}]`
	signature = `{"google":{"thought_signature":"c2ln"}}`
)

// returned returns the data that came with a call and was sent back.
func (m *wireMessage) returned() string {
	if len(m.ToolCalls) == 0 {
		return ""
	}
	return m.ReasoningContent + string(m.ReasoningDetails) + string(m.ToolCalls[0].ExtraContent)
}

// rule returns why a server refuses a request, or an empty text.
type rule func(wire) string

// without refuses a request that has one of these fields.
func without(names ...string) rule {
	return func(w wire) string {
		for _, name := range names {
			if _, ok := w.fields[name]; ok {
				return "Extra inputs are not permitted: " + name
			}
		}
		return ""
	}
}

// needs refuses a request that lacks one of these fields. The real server would accept it, and ignore for example the
// output limit that was sent in another field.
func needs(names ...string) rule {
	return func(w wire) string {
		for _, name := range names {
			if _, ok := w.fields[name]; !ok {
				return "Field required: " + name
			}
		}
		return ""
	}
}

// perMessage returns a rule that checks each message m. before is the message before m; it is empty for the first
// message.
func perMessage(check func(before, m wireMessage) string) rule {
	return func(w wire) string {
		before := wireMessage{}
		for i, m := range w.messages {
			if problem := check(before, m); problem != "" {
				return fmt.Sprintf("messages[%d]: %s", i, problem)
			}
			before = m
		}
		return ""
	}
}

// The rules of real servers. Each comment names the source of the error message.
var (
	// github.com/vllm-project/vllm/issues/41114 and github.com/ggml-org/llama.cpp/issues/20733
	systemFirst = perMessage(func(before, m wireMessage) string {
		if m.Role == "system" && before.Role != "" {
			return "System message must be at the beginning."
		}
		return ""
	})
	// github.com/ggml-org/llama.cpp/issues/19851 and github.com/vllm-project/vllm/issues/6862
	usersAlternate = perMessage(func(before, m wireMessage) string {
		if m.Role == "user" && before.Role == "user" {
			return "Conversation roles must alternate user/assistant/user/assistant/..."
		}
		return ""
	})
	// github.com/charmbracelet/crush/issues/279 and github.com/avante-corp/avante.nvim/pull/2695
	mistralOrder = perMessage(func(before, m wireMessage) string {
		after := map[string][]string{
			"": {"system", "user"}, "system": {"system", "user", "assistant"}, "user": {"system", "user", "assistant"},
			"assistant": {"user", "assistant", "tool"}, "tool": {"assistant", "tool"},
		}
		if !slices.Contains(after[before.Role], m.Role) {
			return fmt.Sprintf("Unexpected role '%s' after role '%s'", m.Role, before.Role)
		}
		return ""
	})
	// github.com/0xPlaygrounds/rig/pull/1130
	noPrefill rule = func(w wire) string {
		if w.messages[len(w.messages)-1].Role == "assistant" {
			return "Expected last role User or Tool for serving but got assistant"
		}
		return ""
	}
	// github.com/Gage-Technologies/mistral-go/pull/2
	noNames = perMessage(func(_, m wireMessage) string {
		if m.Name != nil {
			return "Extra inputs are not permitted: name"
		}
		return ""
	})
	// github.com/BerriAI/litellm/issues/9720
	onlyUsersHaveNames = perMessage(func(_, m wireMessage) string {
		if m.Name != nil && m.Role != "user" {
			return "Only messages of role 'user' can have a name."
		}
		return ""
	})
)

// toolsWithCalls refuses calls in a request without tools. Source: github.com/BerriAI/litellm/issues/40735.
func toolsWithCalls(w wire) string {
	hasCalls := slices.ContainsFunc(w.messages, func(m wireMessage) bool { return len(m.ToolCalls) > 0 })
	switch {
	case w.fields["tools"] == nil && hasCalls:
		return "Bedrock doesn't support tool calling without `tools=` param specified."
	case w.fields["tool_choice"] != nil:
		return "Bedrock doesn't support tool_choice"
	}
	return ""
}

// returns requires that each call is sent back with exactly this data.
func returns(data, problem string) rule {
	return perMessage(func(_, m wireMessage) string {
		if len(m.ToolCalls) > 0 && m.returned() != data {
			return problem
		}
		return ""
	})
}

// returnsCurrent is like returns, but calls before the last message of the user may also be sent back with the data
// in older.
func returnsCurrent(data, older, problem string) rule {
	return func(w wire) string {
		current := w.current()
		for i, m := range w.messages {
			isOlder := i < len(w.messages)-len(current) && m.returned() == older
			if len(m.ToolCalls) > 0 && m.returned() != data && !isOlder {
				return problem
			}
		}
		return ""
	}
}

// noSchemaWithTools refuses the schema of an answer in a request with tools.
func noSchemaWithTools(problem string) rule {
	return func(w wire) string {
		if w.fields["response_format"] != nil && w.fields["tools"] != nil {
			return problem
		}
		return ""
	}
}

// effortsOf refuses all reasoning efforts except these.
func effortsOf(efforts ...string) rule {
	return func(w wire) string {
		var effort string
		if text := w.fields["reasoning_effort"]; text == nil || json.Unmarshal(text, &effort) == nil && slices.Contains(efforts, effort) {
			return ""
		}
		return fmt.Sprintf("reasoning_effort must be one of %s", strings.Join(efforts, ", "))
	}
}

// validFormat refuses an invalid response_format. Source: platform.openai.com, response_format of chat completions.
func validFormat(w wire) string {
	var format struct {
		Type   string
		Schema struct {
			Name   string
			Schema map[string]json.RawMessage
		} `json:"json_schema"`
	}
	text := w.fields["response_format"]
	if text == nil {
		return ""
	}
	if err := json.Unmarshal(text, &format); err != nil {
		return err.Error()
	}
	isNamed := regexp.MustCompile(`^[a-zA-Z0-9_-]{1,64}$`).MatchString(format.Schema.Name)
	if format.Type != "json_schema" || format.Schema.Schema == nil || !isNamed {
		return "Invalid parameter: 'response_format'"
	}
	return ""
}

// ids requires that the IDs of calls match a pattern.
func ids(form string) rule {
	valid := regexp.MustCompile(form)
	return perMessage(func(_, m wireMessage) string {
		all := []string{m.ToolCallID}
		if m.Role != "tool" {
			all = nil
		}
		for _, c := range m.ToolCalls {
			all = append(all, c.ID)
		}
		for _, id := range all {
			if !valid.MatchString(id) {
				return "Tool call id was " + id + " but must be like " + form
			}
		}
		return ""
	})
}

// strictServer is a model server that refuses the same requests as the real server.
type strictServer struct {
	rules []rule
	// status and body are the status and the body of its errors. %q in body stands for the message.
	status int
	body   string
	// id is the ID of its call, and finish its finish reason for the call.
	id, finish string
}

const nestedError = `{"error":{"message":%q,"type":"invalid_request_error","param":null,"code":null}}`

// strictServers are the servers by dialect. Comments name the sources of the rules and of the error messages.
var strictServers = map[string]strictServer{
	"Generic": {
		[]rule{systemFirst, usersAlternate, noNames, mistralOrder, noPrefill, needs("max_tokens"), without("max_completion_tokens",
			"parallel_tool_calls"), returns("", "Extra inputs are not permitted: reasoning_content")},
		400, nestedError, "", "stop",
	},
	// github.com/teilomillet/gollm/issues/33; platform.openai.com: IDs have at most 40 characters
	"OpenAI": {
		[]rule{without("max_tokens"), needs("max_completion_tokens"), ids(`^.{1,40}$`)},
		400, nestedError, "call_PTLP8xhu3u",
		"tool_calls",
	},
	"AzureOpenAI": {
		[]rule{without("max_tokens"), needs("max_completion_tokens"), ids(`^.{1,40}$`)},
		400, nestedError, "call_PTLP8xhu3u",
		"tool_calls",
	},
	// github.com/1Panel-dev/MaxKB/issues/3073
	"VLLM": {
		[]rule{systemFirst, usersAlternate, noPrefill, needs("max_tokens", "stream_options")},
		400,
		`{"object":"error","message":%q,"type":"BadRequestError","param":null,"code":400}`,
		"chatcmpl-tool-0123456789abcdef0123456789abcdef", "tool_calls",
	},
	"SGLang": {
		[]rule{systemFirst, usersAlternate, noPrefill, needs("max_tokens", "stream_options")},
		400,
		`{"object":"error","message":%q,"type":"BadRequest","param":null,"code":400}`, "call_0", "tool_calls",
	},
	"Ollama": {
		[]rule{systemFirst, needs("max_tokens", "stream_options"), without("max_completion_tokens")},
		400, `{"error":%q}`, "call_6h3k",
		"tool_calls",
	},
	"LlamaCpp": {
		[]rule{systemFirst, usersAlternate, noPrefill, needs("max_tokens", "stream_options")},
		500,
		`{"error":{"code":500,"message":%q,"type":"server_error"}}`,
		"AbCdEfGhIjKlMnOpQrStUvWxYz012345", "tool_calls",
	},
	"LMStudio": {
		[]rule{systemFirst, usersAlternate, needs("max_tokens", "stream_options")},
		400, `{"error":%q}`, "365174485", "tool_calls",
	},
	"LiteLLM": {
		[]rule{systemFirst, noNames, toolsWithCalls, needs("max_tokens", "stream_options")},
		400, nestedError, "toolu_01A", "tool_calls",
	},
	// github.com/agno-agi/agno/issues/8794
	"OpenRouter": {
		[]rule{
			mistralOrder, noPrefill, noNames, needs("max_tokens"),
			returnsCurrent(details, "", "messages.1.content.0: Invalid `signature` in `thinking` block"),
		},
		400,
		`{"error":{"message":"Provider returned error","code":400,"metadata":{"raw":%q,"provider_name":"Mistral"}}}`, "tool_0_close",
		"tool_calls",
	},
	// The efforts: github.com/withceleste/celeste-python/pull/311 and github.com/anomalyco/models.dev/pull/1986.
	"Mistral": {
		[]rule{
			mistralOrder, noPrefill, noNames, ids(`^[a-zA-Z0-9]{9}$`), needs("max_tokens"),
			without("max_completion_tokens", "stream_options", "seed", "service_tier"), effortsOf("none", "high"),
			returns("", "Extra inputs are not permitted: reasoning_content"),
		},
		422, `{"object":"error","message":{"detail":[{"type":"extra_forbidden","msg":%q}]},"type":"invalid_request_error"}`, "",
		"tool_calls",
	},
	// github.com/earendil-works/pi/issues/3636 and, for the schema of an answer, github.com/llm-exe/llm-exe/issues/662
	"DeepSeek": {
		[]rule{
			noPrefill, needs("max_tokens", "stream_options"), without("response_format", "seed"),
			returns(reasoning, "The `reasoning_content` in the thinking mode must be passed back to the API."),
		},
		400, nestedError, "call_0_9f2", "tool_calls",
	},
	// github.com/n8n-io/n8n/issues/29142
	"Moonshot": {
		[]rule{
			systemFirst, noPrefill, needs("max_completion_tokens"), ids(`^functions\.close_ticket:\d$`),
			returnsCurrent(reasoning, " ",
				"thinking is enabled but reasoning_content is missing in assistant tool call message at index 2"),
		},
		400, nestedError,
		"functions.close_ticket:0", "tool_calls",
	},
	// github.com/MinLL/SkyrimNet-GamePlugin/issues/77, github.com/TokenRhythm/opensquilla/issues/225 and
	// github.com/Simpleyyt/ai-manus/issues/101
	"Gemini": {
		[]rule{
			systemFirst, noNames, without("parallel_tool_calls", "n"),
			noSchemaWithTools("Function calling with a response mime type: 'application/json' is unsupported"),
			returnsCurrent(signature, "", "Function call is missing a thought_signature in functionCall parts."),
		},
		400,
		`[{"error":{"code":400,"message":%q,"status":"INVALID_ARGUMENT"}}]`, "", "stop",
	},
	"XAI": {
		[]rule{onlyUsersHaveNames, needs("max_completion_tokens")},
		400, `{"code":"Client specified an invalid argument","error":%q}`,
		"call_123", "tool_calls",
	},
	// github.com/vercel/ai/pull/16540
	"Groq": {
		[]rule{
			systemFirst, noNames, needs("max_completion_tokens"),
			noSchemaWithTools("json mode cannot be combined with tool/function calling"),
		},
		400, nestedError, "fc_1", "tool_calls",
	},
	// github.com/OpenRouterTeam/openrouter-examples/issues/71, strandsagents.com/docs, model provider Cohere, and, for
	// the schema of an answer, github.com/cohere-ai/cohere-developer-experience/pull/100
	"Cohere": {
		[]rule{
			systemFirst, noNames, needs("max_tokens"), without("stream_options", "service_tier", "parallel_tool_calls"),
			noSchemaWithTools("response_format is not supported with tools"),
		},
		422, `{"message":%q}`, "close_ticket_abc", "TOOL_CALL",
	},
	// docs.aws.amazon.com, ToolUseBlock
	"Bedrock": {
		[]rule{systemFirst, noPrefill, ids(`^[a-zA-Z0-9_-]{1,64}$`), needs("max_tokens")},
		400, `{"message":%q}`, "tooluse:1",
		"tool_use",
	},
}

// Usage of each answer, in the forms of servers that cache 100 of 129 tokens of a prompt, or none.
const (
	cached        = `{"prompt_tokens":129,"completion_tokens":4,"total_tokens":133,"prompt_tokens_details":{"cached_tokens":100}}`
	cachedHits    = `{"prompt_tokens":129,"completion_tokens":4,"total_tokens":133,"prompt_cache_hit_tokens":100}`
	cachedAtTop   = `{"prompt_tokens":129,"completion_tokens":4,"total_tokens":133,"cached_tokens":100}`
	withoutCached = `{"prompt_tokens":129,"completion_tokens":4,"total_tokens":133}`
)

// usage returns the usage of each answer.
func (s strictServer) usage(dialect string) string {
	switch dialect {
	case "DeepSeek":
		return cachedHits
	case "Moonshot":
		return cachedAtTop
	case "Ollama", "LMStudio", "LlamaCpp", "Cohere", "Bedrock":
		return withoutCached
	}
	return cached
}

// received holds the requests that a strict server has accepted, and the reasons why it has refused others.
type received struct {
	mu       sync.Mutex
	problems []string
	accepted []wire
}

// refused returns why requests were refused.
func (r *received) refused() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.problems)
}

// requests returns the requests that were accepted.
func (r *received) requests() []wire {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.accepted)
}

// add checks a request, and returns why it is refused, or an empty text.
func (r *received) add(w wire, rules []rule) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, check := range slices.Concat(rules, []rule{validFormat}) {
		if problem := check(w); problem != "" {
			r.problems = append(r.problems, problem)
			return problem
		}
	}
	r.accepted = append(r.accepted, w)
	return ""
}

// schemasSuppressCalls are the dialects whose servers make the model write only JSON that fits the schema of an answer:
// github.com/vllm-project/vllm/issues/39929, github.com/ollama/ollama-python/issues/546 and
// github.com/sgl-project/sglang/pull/25777. LM Studio runs llama.cpp, and a server of the dialect Generic may be any of
// them.
var schemasSuppressCalls = []string{"VLLM", "Ollama", "LlamaCpp", "SGLang", "LMStudio", "Generic"}

// serve starts the server of a dialect. Its model calls a tool, and answers after the result of the call. If stubborn
// is true, the model also calls a tool together with its first answer.
func (s strictServer) serve(t *testing.T, dialect string, stubborn bool) (url string, got *received) {
	t.Helper()
	got = &received{}
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		request, invalid := newWire(body)
		if err != nil || invalid != nil {
			t.Errorf("request %s: %v, %v", body, err, invalid)
			return
		}
		if problem := got.add(request, s.rules); problem != "" {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(s.status)
			_, _ = fmt.Fprintf(w, s.body, problem) // the run notices if it does not arrive
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		delta, finish := s.answer(request, stubborn)
		if request.fields["response_format"] != nil && slices.Contains(schemasSuppressCalls, dialect) {
			delta, finish = `{"content":"{\"id\":1042}"}`, "stop"
		}
		_, _ = fmt.Fprintf(w, "data: {\"choices\":[{\"index\":0,\"delta\":%s,\"finish_reason\":%q}]}\n\n", delta, finish)
		_, _ = fmt.Fprintf(w, "data: {\"choices\":[],\"usage\":%s}\n\ndata: [DONE]\n\n", s.usage(dialect))
	}))
	t.Cleanup(web.Close)
	return web.URL + "/v1", got
}

// answer returns the answer to a request, and its finish reason.
func (s strictServer) answer(w wire, stubborn bool) (delta, finish string) {
	wasRefused, mustBeJSON := false, false
	for _, m := range w.messages {
		wasRefused = wasRefused || m.Role == "user" && strings.Contains(m.Content, "was not accepted")
		mustBeJSON = mustBeJSON || strings.Contains(m.Content, "must be one JSON value")
	}
	results := 0
	for _, m := range w.current() {
		if m.Role == "tool" {
			results++
		}
	}
	content := ""
	switch {
	case stubborn && wasRefused, mustBeJSON && !stubborn && results > 0:
		return `{"content":"{\"id\":1042}"}`, "stop"
	case stubborn && results > 0:
		content = "Done."
	case results > 0, w.fields["tools"] == nil:
		return `{"content":"Done."}`, "stop"
	}
	id := strings.Replace(s.id, ":0", fmt.Sprintf(":%d", results), 1)
	return fmt.Sprintf(`{"content":%q,"reasoning_content":%q,"reasoning_details":%s,"tool_calls":[{"index":0,"id":%q,`+
		`"extra_content":%s,"function":{"name":"close_ticket","arguments":"{\"id\":\"1042\"}"}}]}`,
		content, reasoning, details, id, signature), s.finish
}

// manifests returns an Agent with tools, on a provider with a dialect, and a Turn with earlier messages and facts.
func manifests(t *testing.T, tools, dialect, limits string) files {
	t.Helper()
	f := withTools(t, tools, "").with(t, "provider.yaml", "  type: OpenAI", "  type: OpenAI\n  dialect: "+dialect)
	f = f.with(t, "agent.yaml", "    model: small", "    model: small\n    parameters: {maxOutputTokens: 500}\n  reflectEveryTurns: 1")
	f = f.with(t, "agent.yaml", "{timeoutSeconds: 30}", limits)
	return f.with(t, "turn.yaml", "  message: What is up?", "  message: Close 1042.\n"+
		"  history: [{role: User, content: Hello.}, {role: Assistant, content: Hi!}]")
}

// TestAgentOnEachDialect runs an Agent with tools and reflection on a strict server of each dialect: once with the
// default limit of steps, and once with a limit of one step. Reflection and the last step both add notes to a
// conversation that has facts between earlier messages.
func TestAgentOnEachDialect(t *testing.T) {
	t.Parallel()
	for dialect, server := range strictServers {
		for name, run := range map[string]struct {
			limits string
			code   int
		}{
			"default limit": {"{timeoutSeconds: 30}", exit.OK}, "last step": {"{timeoutSeconds: 30, maxSteps: 1}", exit.Failed},
		} {
			t.Run(dialect+", "+name, func(t *testing.T) {
				t.Parallel()
				url, received := server.serve(t, dialect, false)
				tools := serveTools(t, "")
				got := capstan(t, "run", "-f", manifests(t, tools.url, dialect, run.limits).written(t, url), "-o", "json")
				if problems := received.refused(); len(problems) > 0 {
					t.Fatalf("the server refused a request: %s", strings.Join(problems, "; "))
				}
				turn := turnOf(t, got.mustEnd(t, run.code).out)
				if tools.closedTickets() != "1042" || turn.Status.Result.Text != "Done." {
					t.Errorf("want ticket 1042 closed once and the answer, have %q and %q", tools.closedTickets(), turn.Status.Result.Text)
				}
			})
		}
	}
}

// TestUnsupportedParameter checks that a Turn does not run if the model does not support a parameter.
func TestUnsupportedParameter(t *testing.T) {
	t.Parallel()
	url, received := strictServers["DeepSeek"].serve(t, "DeepSeek", false)
	f := manifests(t, serveTools(t, "").url, "DeepSeek", "{timeoutSeconds: 30}")
	f = f.with(t, "agent.yaml", "{maxOutputTokens: 500}", "{seed: 7}")
	got := capstan(t, "run", "-f", f.written(t, url)).mustEnd(t, exit.Failed)
	mustSay(t, got.err, `Agent spec.models[0].parameters.seed: ModelProvider "demo": the service of this dialect has no seed: remove it`)
	if n := len(received.requests()); n != 0 {
		t.Errorf("%d requests were sent, want none", n)
	}
}

// TestThinkingOnMistral checks that the effort high is sent, and that an effort that the models do not accept causes an
// error before a request.
func TestThinkingOnMistral(t *testing.T) {
	t.Parallel()
	for level, want := range map[string]struct {
		code         int
		effort, says string
	}{
		"High": {exit.OK, `"high"`, ""},
		"Low": {
			exit.Failed, "",
			`Agent spec.thinking: ModelProvider "demo": models of this service have no level "low": use High or "Off", or set ` +
				"requests.thinking to Effort if the model has levels",
		},
	} {
		t.Run(level, func(t *testing.T) {
			t.Parallel()
			url, received := strictServers["Mistral"].serve(t, "Mistral", false)
			f := manifests(t, serveTools(t, "").url, "Mistral", "{timeoutSeconds: 30}")
			f = f.with(t, "agent.yaml", "spec:\n", "spec:\n  thinking: "+level+"\n")
			f = f.with(t, "provider.yaml", "  - name: small\n", "  - name: small\n    capabilities: [Reasoning]\n")
			got := capstan(t, "run", "-f", f.written(t, url)).mustEnd(t, want.code)
			mustSay(t, got.err, want.says)
			if problems := received.refused(); len(problems) > 0 {
				t.Errorf("the server refused a request: %s", strings.Join(problems, "; "))
			}
			for _, w := range received.requests() {
				if effort := string(w.fields["reasoning_effort"]); effort != want.effort {
					t.Errorf("the effort %s was sent, want %s", effort, want.effort)
				}
			}
		})
	}
}

// TestAnswerWithACallInTheLastStep runs an Agent whose model, in its last step, sends an answer that does not fit the
// schema together with a call. In the next request, the result of the call must precede the message about the answer.
func TestAnswerWithACallInTheLastStep(t *testing.T) {
	t.Parallel()
	for dialect, server := range strictServers {
		t.Run(dialect, func(t *testing.T) {
			t.Parallel()
			url, received := server.serve(t, dialect, true)
			f := manifests(t, serveTools(t, "").url, dialect, "{timeoutSeconds: 30, maxSteps: 2}")
			f["turn.yaml"] += "  output: {schema: {type: object, properties: {id: {type: integer}}, required: [id]}}\n"
			got := capstan(t, "run", "-f", f.written(t, url), "-o", "json")
			if problems := received.refused(); len(problems) > 0 {
				t.Fatalf("the server refused a request: %s", strings.Join(problems, "; "))
			}
			turn := turnOf(t, got.mustEnd(t, exit.Failed).out)
			if turn.Status.Result == nil || turn.Status.Result.Text != `{"id":1042}` {
				t.Errorf("want the corrected answer, have %+v", turn.Status.Result)
			}
		})
	}
}

// TestStrictServersRefuseAnotherDialect checks the servers of the tests themselves: each refuses another dialect.
func TestStrictServersRefuseAnotherDialect(t *testing.T) {
	t.Parallel()
	for dialect, server := range strictServers {
		other := "OpenAI"
		if strings.HasSuffix(dialect, other) {
			other = "Generic"
		}
		t.Run(dialect, func(t *testing.T) {
			t.Parallel()
			url, received := server.serve(t, dialect, false)
			capstan(t, "run", "-f", manifests(t, serveTools(t, "").url, other, "{timeoutSeconds: 30}").written(t, url)).mustEnd(t,
				exit.Failed)
			if len(received.refused()) == 0 {
				t.Errorf("the server of %s accepts the dialect %s", dialect, other)
			}
		})
	}
}

// TestEachDialectHasAStrictServer checks that the tests cover each dialect of the API.
func TestEachDialectHasAStrictServer(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("..", "..", "config", "crd", "bases", "capstan.dev_modelproviders.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var crd struct {
		Spec struct {
			Versions []struct {
				Schema struct {
					OpenAPIV3Schema struct {
						Properties struct {
							Spec struct {
								Properties struct{ Dialect struct{ Enum []string } }
							}
						}
					}
				}
			}
		}
	}
	if err := yaml.Unmarshal(text, &crd); err != nil {
		t.Fatal(err)
	}
	names := crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties.Spec.Properties.Dialect.Enum
	for _, name := range names {
		if _, ok := strictServers[name]; !ok {
			t.Errorf("there is no strict server for the dialect %s: add one", name)
		}
	}
	if len(names) != len(strictServers) {
		t.Errorf("there are %d dialects and %d strict servers", len(names), len(strictServers))
	}
}
