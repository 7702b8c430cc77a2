package server

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseConfigReadsFields(t *testing.T) {
	got, err := ParseConfig([]byte(`
apiKeys: [k]
models: [m]
rules:
- when: {model: m, contains: a, matches: b, systemContains: c, anyContains: d, toolMessages: 0, hasTools: false}
  times: 2
  reply:
    text: hello
    finishReason: length
    toolCalls: [{id: x, name: f, arguments: "{}"}]
    usage: {promptTokens: 1, completionTokens: 2, cachedTokens: 3, reasoningTokens: 4}
    chunkChars: 5
    repeat: 6
    ignoreMaxTokens: true
- fault: {latencyMilliseconds: 1, status: 429, message: m, code: c, retryAfterSeconds: 0, echoAuthorization: true}
`))
	if err != nil {
		t.Fatal(err)
	}
	want := Config{
		APIKeys: []string{"k"},
		Models:  []string{"m"},
		Rules: []Rule{
			{
				When: When{
					Model: "m", Contains: "a", Matches: "b", SystemContains: "c", AnyContains: "d",
					ToolMessages: new(0), HasTools: new(false),
				},
				Times: new(int64(2)),
				Reply: Reply{
					Text: new("hello"), FinishReason: FinishLength,
					ToolCalls: []ToolCall{{ID: "x", Name: "f", Arguments: new("{}")}},
					Usage: UsageOverride{
						PromptTokens: new(1), CompletionTokens: new(2), CachedTokens: new(3),
						ReasoningTokens: new(4),
					},
					ChunkChars: 5, Repeat: 6, IgnoreMaxTokens: true,
				},
			},
			{Fault: Fault{
				LatencyMilliseconds: 1, Status: 429, Message: "m", Code: "c",
				RetryAfterSeconds: new(0), EchoAuthorization: true,
			}},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("ParseConfig must read all these fields (-want +got):\n%s", diff)
	}
}

func TestParseConfigErrorsNameRuleAndField(t *testing.T) {
	for name, tc := range map[string]struct {
		rules string
		want  []string
	}{
		"not YAML":          {"rules: [", []string{"YAML"}},
		"duplicate field":   {"models: [a]\nmodels: [b]", []string{"models"}},
		"unknown top field": {"keys: [a]", []string{`unknown field "keys"`}},
		"unknown field":     {"rules: [{}, {reply: {txt: a}}]", []string{"rules[1]", `unknown field "reply.txt"`}},
		"wrong case":        {"rules: [{Reply: {}}]", []string{"rules[0]", `unknown field "Reply"`}},
		"text for a number": {
			"rules: [{}, {fault: {status: many}}]",
			[]string{"rules[1]", "fault.status: must be of type integer, not a string"},
		},
		"number for a text": {
			"rules: [{reply: {text: 3}}]",
			[]string{"rules[0]", "reply.text: must be of type string, not a number: put it in quotes"},
		},
		"text for a list":        {"models: m", []string{"models: must be of type array, not a string"}},
		"empty key":              {"apiKeys: ['']", []string{"apiKeys[0]"}},
		"empty model":            {"models: [a, '']", []string{"models[1]"}},
		"bad pattern":            {"rules: [{when: {matches: '('}}]", []string{"rules[0].when.matches"}},
		"negative tool messages": {"rules: [{when: {toolMessages: -1}}]", []string{"rules[0].when.toolMessages: must be 0 or more"}},
		"hasTools not a boolean": {
			"rules: [{when: {hasTools: 1}}]",
			[]string{"rules[0]", "when.hasTools: must be of type boolean, not a number"},
		},
		"bad template":            {"rules: [{reply: {text: '{{ .User'}}]", []string{"rules[0].reply.text"}},
		"misspelt template field": {"rules: [{reply: {text: '{{ .Usr }}'}}]", []string{"rules[0].reply.text", "Usr"}},
		"bad template of arguments": {
			"rules: [{reply: {toolCalls: [{name: f, arguments: '{{ nope }}'}]}}]",
			[]string{"rules[0].reply.toolCalls[0].arguments"},
		},
		"call without name": {"rules: [{reply: {toolCalls: [{id: x}]}}]", []string{"rules[0].reply.toolCalls[0].name"}},
		"finish reason":     {"rules: [{reply: {finishReason: done}}]", []string{"rules[0].reply.finishReason", "stop"}},
		"negative tokens":   {"rules: [{reply: {usage: {cachedTokens: -1}}}]", []string{"rules[0].reply.usage.cachedTokens"}},
		"negative chunk":    {"rules: [{reply: {chunkChars: -1}}]", []string{"rules[0].reply.chunkChars"}},
		"too many repeats":  {"rules: [{reply: {repeat: 1000001}}]", []string{"rules[0].reply.repeat", "1000000"}},
		"times of 0":        {"rules: [{times: 0}]", []string{"rules[0].times"}},
		"status of success": {"rules: [{fault: {status: 200}}]", []string{"rules[0].fault.status", "400"}},
		"negative latency":  {"rules: [{fault: {latencyMilliseconds: -1}}]", []string{"rules[0].fault.latencyMilliseconds"}},
		"chunk delay": {
			"rules: [{fault: {chunkDelayMilliseconds: 3600001}}]",
			[]string{"rules[0].fault.chunkDelayMilliseconds"},
		},
		"retry after": {
			"rules: [{fault: {status: 429, retryAfterSeconds: -1}}]",
			[]string{"rules[0].fault.retryAfterSeconds"},
		},
		"cut":             {"rules: [{fault: {cutAfterChunks: -1}}]", []string{"rules[0].fault.cutAfterChunks"}},
		"unknown hang":    {"rules: [{fault: {hang: Always}}]", []string{"rules[0].fault.hang", "AfterHeaders"}},
		"unknown rubbish": {"rules: [{fault: {rubbish: XML}}]", []string{"rules[0].fault.rubbish", "NotJSON"}},
		"two ends": {
			"rules: [{fault: {status: 500, hang: AfterHeaders}}]",
			[]string{"rules[0].fault.hang", "fault.status"},
		},
		"message without status": {"rules: [{fault: {message: a}}]", []string{"rules[0].fault.message: needs fault.status"}},
		"code without status":    {"rules: [{fault: {code: a}}]", []string{"rules[0].fault.code: needs fault.status"}},
		"retry after, no status": {
			"rules: [{fault: {retryAfterSeconds: 1}}]",
			[]string{"rules[0].fault.retryAfterSeconds: needs fault.status"},
		},
		"the error has the index of the invalid rule": {"rules: [{}, {}, {times: -4}]", []string{"rules[2].times"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ParseConfig([]byte(tc.rules))
			if err == nil {
				t.Fatal("want an error, have none")
			}
			for _, part := range tc.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("want %q in the error, have: %v", part, err)
				}
			}
		})
	}
}

func TestLoadConfig(t *testing.T) {
	dir := t.TempDir()
	bad, empty := filepath.Join(dir, "bad.yaml"), filepath.Join(dir, "empty.yaml")
	for path, text := range map[string]string{bad: "rules: [{wen: {}}]", empty: "# nothing yet\n"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := LoadConfig(bad); err == nil || !strings.Contains(err.Error(), "bad.yaml") || !strings.Contains(err.Error(), "rules[0]") {
		t.Errorf("want an error that names file and rule, have: %v", err)
	}
	if _, err := LoadConfig(filepath.Join(dir, "none.yaml")); err == nil {
		t.Error("want an error for a file that does not exist, have none")
	}
	if cfg, err := LoadConfig(empty); err != nil || len(cfg.Rules) != 0 {
		t.Errorf("an empty file must give no rules, have %v and %v", cfg, err)
	}
}
