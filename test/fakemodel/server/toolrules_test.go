package server

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// call returns an assistant's message with one call for each ID.
func call(ids ...string) string {
	var calls []string
	for _, id := range ids {
		calls = append(calls, fmt.Sprintf(`{"id":%q,"type":"function","function":{"name":"count","arguments":"{}"}}`, id))
	}
	return `{"role":"assistant","content":null,"tool_calls":[` + strings.Join(calls, ",") + `]}`
}

// result returns a tool message.
func result(id string) string {
	return fmt.Sprintf(`{"role":"tool","tool_call_id":%q,"content":""}`, id)
}

const (
	userMessage   = `{"role":"user","content":"hi"}`
	systemMessage = `{"role":"system","content":"be kind"}`
)

// refusal is the error in an error body.
type refusal struct {
	Message string
	Type    string
	Param   *string
	Code    *string
}

// sendMessages sends a request with these messages and other JSON members. It returns the status and the error.
func (f *fakeModel) sendMessages(t *testing.T, members string, messages ...string) (int, refusal) {
	t.Helper()
	res := f.do(t, http.MethodPost, "/v1/chat/completions", `{"model":"m",`+members+`"messages":[`+strings.Join(messages, ",")+`]}`)
	var body struct{ Error refusal }
	if err := json.Unmarshal([]byte(res.body), &body); err != nil {
		t.Fatalf("response %s: %v", res.body, err)
	}
	return res.status, body.Error
}

func TestToolMessagesThatAreAccepted(t *testing.T) {
	for name, tc := range map[string]struct {
		reason   string
		messages []string
	}{
		"answered":  {"one call, one result", []string{userMessage, call("a"), result("a")}},
		"any order": {"results in any order", []string{userMessage, call("a", "b"), result("b"), result("a"), userMessage}},
		"again":     {"an id of an earlier reply", []string{userMessage, call("a"), result("a"), call("a"), result("a")}},
		"with text": {
			"an assistant that talks and calls",
			[]string{userMessage, strings.Replace(call("a"), "null", `"Let me see."`, 1), result("a")},
		},
		"content absent": {
			"calls need no content",
			[]string{userMessage, strings.Replace(call("a"), `"content":null,`, "", 1), result("a")},
		},
		"in parts": {
			"a result in parts",
			[]string{userMessage, call("a"), `{"role":"tool","tool_call_id":"a","content":[{"type":"text","text":"x"}]}`},
		},
		"long id": {"an id of 40 characters", []string{userMessage, call(strings.Repeat("a", 40)), result(strings.Repeat("a", 40))}},
	} {
		t.Run(name, func(t *testing.T) {
			if status, e := serveRules(t, "").sendMessages(t, "", tc.messages...); status != http.StatusOK {
				t.Errorf("%s: want 200, have %d with %q", tc.reason, status, e.Message)
			}
		})
	}
}

func TestToolMessagesThatAreRejected(t *testing.T) {
	const unanswered = "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'. " +
		"The following tool_call_ids did not have response messages: "
	long := strings.Repeat("a", 41)
	for name, tc := range map[string]struct {
		messages             []string
		param, code, message string
	}{
		"no call": {
			[]string{userMessage, result("a")},
			"messages.[1].role", "",
			"Invalid parameter: messages with role 'tool' must be a response to a preceding message with 'tool_calls'.",
		},
		"call before user": {
			[]string{call("a"), result("a"), userMessage, result("a")},
			"messages.[3].role", "",
			"Invalid parameter: messages with role 'tool' must be a response to a preceding message with 'tool_calls'.",
		},
		"other id": {
			[]string{userMessage, call("a"), result("b")},
			"messages.[2].tool_call_id", "",
			"Invalid parameter: 'tool_call_id' of 'b' not found in 'tool_calls' of previous message.",
		},
		"no id": {
			[]string{userMessage, call("a"), `{"role":"tool","content":""}`},
			"messages.[2].tool_call_id", codeMissing,
			"Missing parameter 'tool_call_id': messages with role 'tool' must have a 'tool_call_id'.",
		},
		"twice": {
			[]string{userMessage, call("a", "b"), result("a"), result("a")},
			"messages.[3].tool_call_id", "",
			"Invalid parameter: Duplicate value for 'tool_call_id' of 'a', in messages[2] and messages[3].",
		},
		"no content": {
			[]string{userMessage, call("a"), `{"role":"tool","tool_call_id":"a"}`},
			"messages.[2].content", "", "Invalid value for 'content': expected a string, got null.",
		},
		"unanswered at end":  {[]string{userMessage, call("a", "b", "c"), result("b")}, "messages.[3].role", "", unanswered + "a, c"},
		"unanswered at user": {[]string{call("a"), userMessage, result("a")}, "messages.[1].role", "", unanswered + "a"},
		"unanswered at call": {[]string{call("a"), call("b"), result("b"), result("a")}, "messages.[1].role", "", unanswered + "a"},
		"system between":     {[]string{call("a"), systemMessage, result("a")}, "messages.[1].role", "", unanswered + "a"},
		"silent assistant": {
			[]string{userMessage, `{"role":"assistant","content":null}`},
			"messages.[1].content", "",
			"Invalid value for 'content': expected a string, got null.",
		},
		"call without id": {
			[]string{call(""), result("")},
			"messages[0].tool_calls[0].id", codeMissing,
			"Missing required parameter: 'messages[0].tool_calls[0].id'.",
		},
		"same ids": {
			[]string{call("a", "a"), result("a")},
			"messages[0].tool_calls[1].id", codeInvalid,
			"Duplicate value for 'id' of 'a' in messages[0].tool_calls.",
		},
		"id too long": {
			[]string{call(long), result(long)},
			"messages[0].tool_calls[0].id", codeTooLong,
			"Invalid 'messages[0].tool_calls[0].id': string too long. Expected a string with maximum length 40, " +
				"but got a string with length 41 instead.",
		},
		"call without type": {
			[]string{strings.Replace(call("a"), "function", "", 1), result("a")},
			"messages[0].tool_calls[0].type", codeInvalid, "Invalid value: ''. Supported values are: 'function'.",
		},
		"no JSON": {
			[]string{strings.Replace(call("a"), `"{}"`, `"{"`, 1), result("a")},
			"messages[0].tool_calls[0].function.arguments", codeInvalid, "Invalid value: expected the text of a JSON object.",
		},
		"no object": {
			[]string{strings.Replace(call("a"), `"{}"`, `"null"`, 1), result("a")},
			"messages[0].tool_calls[0].function.arguments", codeInvalid, "Invalid value: expected the text of a JSON object.",
		},
		"empty arguments": {
			[]string{strings.Replace(call("a"), `"{}"`, `""`, 1), result("a")},
			"messages[0].tool_calls[0].function.arguments", codeInvalid, "Invalid value: expected the text of a JSON object.",
		},
		"no arguments": {
			[]string{strings.Replace(call("a"), `,"arguments":"{}"`, "", 1), result("a")},
			"messages[0].tool_calls[0].function.arguments", codeMissing,
			"Missing required parameter: 'messages[0].tool_calls[0].function.arguments'.",
		},
		"made-up name": {
			[]string{strings.Replace(call("a"), "count", "functions.count", 1), result("a")},
			"messages[0].tool_calls[0].function.name", codeInvalid,
			"Invalid 'messages[0].tool_calls[0].function.name': string does not match pattern. Expected a " +
				"string that matches the pattern '^[a-zA-Z0-9_-]+$'.",
		},
	} {
		t.Run(name, func(t *testing.T) {
			status, got := serveRules(t, "").sendMessages(t, "", tc.messages...)
			checkRefusal(t, status, got, tc.param, tc.code, tc.message)
		})
	}
}

func TestOfferedTools(t *testing.T) {
	tool := func(name, schema string) string {
		return fmt.Sprintf(`"tools":[{"type":"function","function":{"name":%q,"parameters":%s}}],`, name, schema)
	}
	const object = `{"type":"object","properties":{}}`
	many := strings.TrimSuffix(strings.Repeat(`{"type":"function","function":{"name":"f"}},`, 129), ",")
	const pattern = "Invalid 'tools[0].function.name': string does not match pattern. Expected a string that " +
		"matches the pattern '^[a-zA-Z0-9_-]+$'."
	for name, tc := range map[string]struct{ tools, param, code, message string }{
		"accepted":  {tool("Read_file-2", object), "", "", ""},
		"no schema": {`"tools":[{"type":"function","function":{"name":"f"}}],`, "", "", ""},
		"no tools":  {`"tools":null,`, "", "", ""},
		"empty": {
			`"tools":[],`, "tools", "empty_array",
			"Invalid 'tools': empty array. Expected an array with minimum length 1, but got an empty array instead.",
		},
		"too many": {
			`"tools":[` + many + `],`, "tools", "array_above_max_length",
			"Invalid 'tools': array too long. Expected an array with maximum length 128, but got an array with length 129 instead.",
		},
		"space":   {tool("read file", object), "tools[0].function.name", codeInvalid, pattern},
		"umlaut":  {tool("lesen_ü", object), "tools[0].function.name", codeInvalid, pattern},
		"newline": {tool("f\n", object), "tools[0].function.name", codeInvalid, pattern},
		"long": {
			tool(strings.Repeat("f", 65), object), "tools[0].function.name", codeTooLong,
			"Invalid 'tools[0].function.name': string too long. Expected a string with maximum length 64, but " +
				"got a string with length 65 instead.",
		},
		"no name": {tool("", object), "tools[0].function.name", codeMissing, "Missing required parameter: 'tools[0].function.name'."},
		"no type": {
			`"tools":[{"function":{"name":"f"}}],`, "tools[0].type", codeMissing,
			"Missing required parameter: 'tools[0].type'.",
		},
		"other type": {
			`"tools":[{"type":"magic"}],`, "tools[0].type", codeInvalid,
			"Invalid value: 'magic'. Supported values are: 'function'.",
		},
		"array schema": {
			tool("f", `{"type":"array"}`), "tools[0].function.parameters", "invalid_function_parameters",
			`Invalid schema for function 'f': schema must be a JSON Schema of 'type: "object"', got 'type: "array"'.`,
		},
		"null schema": {
			tool("f", "null"), "tools[0].function.parameters", "invalid_function_parameters",
			`Invalid schema for function 'f': schema must be a JSON Schema of 'type: "object"', got 'type: "<nil>"'.`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			status, got := serveRules(t, "").sendMessages(t, tc.tools, userMessage)
			if tc.param == "" {
				if status != http.StatusOK {
					t.Errorf("want 200, have %d with %q", status, got.Message)
				}
				return
			}
			checkRefusal(t, status, got, tc.param, tc.code, tc.message)
		})
	}
}

// checkRefusal compares a response with the error of a real server. An empty code stands for null.
func checkRefusal(t *testing.T, status int, got refusal, param, code, message string) {
	t.Helper()
	want := refusal{Message: message, Type: "invalid_request_error", Param: &param}
	if code != "" {
		want.Code = &code
	}
	if diff := cmp.Diff(want, got); diff != "" || status != http.StatusBadRequest {
		t.Errorf("want 400, have %d (-want +got):\n%s", status, diff)
	}
}
