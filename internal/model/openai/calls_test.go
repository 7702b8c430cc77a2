package openai_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/model/endpoint"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// withTools returns a request that offers a tool.
func withTools(message string) model.Request {
	req := request(message)
	req.Tools = []model.Tool{{Name: "count", Description: "Counts.", Parameters: json.RawMessage(`{"type":"object"}`)}}
	return req
}

// delta returns an event with a part of the reply.
func delta(members string) string {
	return `{"choices":[{"index":0,"delta":{` + members + `},"finish_reason":null}]}`
}

// finishEvent returns the event that ends the reply.
func finishEvent(reason string) string {
	return `{"choices":[{"index":0,"delta":{},"finish_reason":"` + reason + `"}]}`
}

// callEvent returns an event with the members of a tool call, given as a JSON object without its braces.
func callEvent(members string) string { return delta(`"tool_calls":[{` + members + `}]`) }

// callPart returns an event with a part of the call at an index.
func callPart(index int, id, name, arguments string) string {
	return callEvent(fmt.Sprintf(`"index":%d,"id":%q,"type":"function","function":{"name":%q,"arguments":%q}`, index, id, name, arguments))
}

func TestToolCalls(t *testing.T) {
	one := []model.ToolCall{{ID: "a", Name: "count", Arguments: `{"n":1}`}}
	two := []model.ToolCall{{ID: "a", Name: "count", Arguments: `{"n":1}`}, {ID: "b", Name: "list", Arguments: `{}`}}
	for name, tc := range map[string]struct {
		reason string
		events []string
		// finish is the finish reason; empty means tool_calls.
		finish string
		text   string
		want   []model.ToolCall
	}{
		"whole": {"a call in one piece", []string{callPart(0, "a", "count", `{"n":1}`)}, "", "", one},
		"pieces": {"arguments in pieces", []string{
			callPart(0, "a", "count", ""),
			callEvent(`"index":0,"function":{"arguments":"{\"n\""}`), callEvent(`"index":0,"function":{"arguments":":1}"}`),
		}, "", "", one},
		"empty piece": {
			"a piece with only an index is not a call",
			[]string{
				callPart(0, "a", "count", `{"n":1}`),
				callEvent(`"index":1,"id":"","type":"function","function":{"arguments":null}`),
			},
			"", "", one,
		},
		"empty piece before a call": {
			"a call may begin at the index of an empty piece",
			[]string{callPart(0, "a", "count", `{"n":1}`), callPart(1, "", "", ""), callPart(1, "b", "list", `{}`)},
			"", "", two,
		},
		"not UTF-8": {
			"bytes in raw arguments that are not UTF-8 become U+FFFD, as in the journal",
			[]string{callEvent(`"index":0,"id":"a","function":{"name":"count","arguments":{"n":"` + "\x80\xff" + `"}}`)},
			"", "",
			[]model.ToolCall{{ID: "a", Name: "count", Arguments: `{"n":"` + "\uFFFD" + `"}`}},
		},
		"only an empty piece": {
			"the answer is a text", []string{delta(`"content":"yes","tool_calls":[{}]`)}, "stop", "yes", nil,
		},
		"only an empty function": {
			"the same in the older protocol",
			[]string{delta(`"content":"yes","function_call":{"name":"","arguments":""}`)},
			"stop", "yes", nil,
		},
		"id and name later": {"ID and name may come later", []string{
			callEvent(`"index":0,"type":"function"`),
			callPart(0, "a", "", ""), callPart(0, "", "count", ""), callPart(0, "", "", `{"n":1}`),
		}, "", "", one},
		"id after arguments": {
			"ID and name may come after the arguments",
			[]string{callEvent(`"index":0,"function":{"arguments":"{\"n\":1}"}`), callPart(0, "a", "count", "")},
			"", "", one,
		},
		"id in pieces": {"ids and names in pieces", []string{
			callPart(0, "call_", "cou", ""), callPart(0, "77", "nt", ""),
			callPart(0, "", "", `{}`),
		}, "", "", []model.ToolCall{{ID: "call_77", Name: "count", Arguments: "{}"}}},
		"repeated": {
			"ids and names with every piece",
			[]string{callPart(0, "a", "count", ""), callPart(0, "a", "count", `{"n"`), callPart(0, "a", "count", `:1}`)},
			"", "", one,
		},
		"nulls": {"null values are ignored", []string{
			callPart(0, "a", "count", `{"n":`),
			callEvent(`"index":0,"id":null,"type":null,"function":{"name":null,"arguments":"1}"}`),
		}, "", "", one},
		"new ids": {
			"the first of several IDs counts",
			[]string{
				callPart(0, "a", "count", ""), callEvent(`"index":0,"id":"x","function":{"arguments":"{\"n\""}`),
				callEvent(`"index":0,"id":"y","function":{"arguments":":1}"}`),
			},
			"", "", one,
		},
		// MiniMax: github.com/NousResearch/hermes-agent/pull/106943.
		"new ids with names": {
			"the name comes with every piece, too",
			[]string{
				callPart(0, "a", "count", ""), callPart(0, "x", "count", `{"n"`), callPart(0, "y", "count", `:1`),
				callPart(0, "z", "count", `}`),
			},
			"", "", one,
		},
		"new ids, empty pieces": {
			"an empty piece within or after the pieces of a call does not begin another call",
			[]string{
				callPart(0, "a", "count", `{"n"`), callPart(0, "x", "count", ""), callPart(0, "y", "count", `:1}`),
				callPart(0, "z", "count", ""),
			},
			"", "", one,
		},
		"new ids, white space": {
			"white space may follow the arguments",
			[]string{callPart(0, "a", "count", `{"n"`), callPart(0, "x", "count", `:1} `), callPart(0, "y", "count", "\n")},
			"", "",
			[]model.ToolCall{{ID: "a", Name: "count", Arguments: "{\"n\":1} \n"}},
		},
		"new ids, an object within": {
			"an object may begin where a value is due, also in a list and in a text",
			[]string{
				callPart(0, "a", "count", `{"n": `), callPart(0, "v", "count", `{"m":[1,`), callPart(0, "w", "count", `{"o":"\"`),
				callPart(0, "x", "count", `{`), callPart(0, "y", "count", `"}]}}`),
			},
			"", "",
			[]model.ToolCall{{ID: "a", Name: "count", Arguments: `{"n": {"m":[1,{"o":"\"{"}]}}`}},
		},
		"new ids of many pieces": {
			"the pieces of one call do not count as calls",
			manyPieces(2 * endpoint.MaxToolCalls),
			"", "",
			[]model.ToolCall{{ID: "id-0", Name: "count", Arguments: `{"n":"` + strings.Repeat("x", 2*endpoint.MaxToolCalls) + `"}`}},
		},
		"same index, first without arguments": {
			"a piece with whole arguments is another call",
			[]string{callPart(0, "a", "count", ""), callPart(0, "b", "count", `{"n":1}`)},
			"", "",
			[]model.ToolCall{{ID: "a", Name: "count"}, {ID: "b", Name: "count", Arguments: `{"n":1}`}},
		},
		"same index, last without arguments": {
			"a call whose arguments are whole has no further piece",
			[]string{callPart(0, "a", "count", `{"n":1}`), callPart(0, "b", "count", "")},
			"", "",
			[]model.ToolCall{{ID: "a", Name: "count", Arguments: `{"n":1}`}, {ID: "b", Name: "count"}},
		},
		"new ids of two calls": {
			"whole arguments end a call",
			[]string{
				callPart(0, "a", "count", `{"n"`), callPart(0, "x", "count", `:1}`),
				callPart(0, "b", "count", `{"n"`), callPart(0, "y", "count", `:2}`),
			},
			"", "",
			[]model.ToolCall{{ID: "a", Name: "count", Arguments: `{"n":1}`}, {ID: "b", Name: "count", Arguments: `{"n":2}`}},
		},
		"same index, interleaved": {
			"the IDs identify calls of one tool",
			[]string{
				callPart(0, "a", "count", `{"n"`), callPart(0, "b", "count", `{"n"`),
				callPart(0, "a", "count", `:1}`), callPart(0, "b", "count", `:2}`),
			},
			"", "",
			[]model.ToolCall{{ID: "a", Name: "count", Arguments: `{"n":1}`}, {ID: "b", Name: "count", Arguments: `{"n":2}`}},
		},
		"same index, one broken": {
			"arguments that do not fit together stay apart",
			[]string{callPart(0, "a", "count", `{"n":1`), callPart(0, "b", "count", `{"n":2}`)},
			"", "",
			[]model.ToolCall{{ID: "a", Name: "count", Arguments: `{"n":1`}, {ID: "b", Name: "count", Arguments: `{"n":2}`}},
		},
		"several": {
			"calls one after the other",
			[]string{callPart(0, "a", "count", `{"n":1}`), callPart(1, "b", "list", `{}`)},
			"", "", two,
		},
		"interleaved": {
			"calls at the same time",
			[]string{
				callPart(0, "a", "count", `{"n`), callPart(1, "b", "list", `{`),
				callPart(0, "", "", `":1}`), callPart(1, "", "", `}`),
			},
			"", "", two,
		},
		"in one event": {
			"calls side by side",
			[]string{delta(`"tool_calls":[{"index":0,"id":"a","function":{"name":"count","arguments":"{\"n\":1}"}},` +
				`{"index":1,"id":"b","function":{"name":"list","arguments":"{}"}}]`)},
			"", "", two,
		},
		"other order": {
			"the index decides the order",
			[]string{callPart(1, "b", "list", `{}`), callPart(0, "a", "count", `{"n":1}`)},
			"", "", two,
		},
		"from one": {
			"indices may begin anywhere",
			[]string{callPart(1, "a", "count", `{"n":1}`), callPart(7, "b", "list", `{}`)},
			"", "", two,
		},
		"same index": {
			"whole calls that all have index 0",
			[]string{callPart(0, "a", "count", `{"n":1}`), callPart(0, "b", "list", `{}`)},
			"", "", two,
		},
		// github.com/su-kaka/gcli2api/pull/406 and github.com/ai-dynamo/dynamo/pull/4723, for calls without arguments.
		"same index without arguments": {
			"the IDs identify calls of one tool",
			[]string{callPart(0, "a", "count", ""), callPart(0, "b", "count", ""), callPart(0, "c", "count", "")},
			"", "",
			[]model.ToolCall{{ID: "a", Name: "count"}, {ID: "b", Name: "count"}, {ID: "c", Name: "count"}},
		},
		"same index with later arguments": {
			"the IDs identify calls of two tools",
			[]string{
				callPart(0, "a", "count", ""), callPart(0, "b", "list", ""),
				callEvent(`"index":0,"id":"a","function":{"arguments":"{\"n\""}`),
				callPart(0, "b", "", `{}`), callPart(0, "a", "", `:1}`),
			},
			"", "", two,
		},
		"same index, no arguments, no IDs": {
			"the names of tools identify calls",
			[]string{callPart(0, "", "count", ""), callPart(0, "", "list", "")},
			"", "",
			[]model.ToolCall{{ID: "call_0", Name: "count"}, {ID: "call_1", Name: "list"}},
		},
		"no index": {
			"without indices, the IDs identify the calls",
			[]string{
				callEvent(`"id":"a","function":{"name":"count","arguments":"{\"n\""}`),
				callEvent(`"id":"b","function":{"name":"list","arguments":"{}"}`),
				callEvent(`"id":"a","function":{"arguments":":1}"}`),
			},
			"", "", two,
		},
		"no index, same id": {
			"a call with the ID of another one is another call, and gets an ID of its own",
			[]string{
				callEvent(`"id":"count","function":{"name":"count","arguments":"{\"n\":1}"}`),
				callEvent(`"id":"count","function":{"name":"count","arguments":"{\"n\":2}"}`),
				callEvent(`"id":"count","function":{"name":"list","arguments":"{}"}`),
			},
			"", "",
			[]model.ToolCall{
				{ID: "count", Name: "count", Arguments: `{"n":1}`},
				{ID: "count_2", Name: "count", Arguments: `{"n":2}`},
				{ID: "count_3", Name: "list", Arguments: "{}"},
			},
		},
		"no index, same id, later arguments": {
			"the names of tools identify calls before their arguments begin",
			[]string{
				callEvent(`"id":"a","function":{"name":"count","arguments":""}`), callEvent(`"function":{"arguments":"{\"n\":1}"}`),
				callEvent(`"id":"a","function":{"name":"list","arguments":""}`), callEvent(`"function":{"arguments":"{}"}`),
			},
			"", "",
			[]model.ToolCall{{ID: "a", Name: "count", Arguments: `{"n":1}`}, {ID: "a_2", Name: "list", Arguments: "{}"}},
		},
		"no index, same id, no arguments": {
			"a call may have none",
			[]string{
				callEvent(`"id":"a","function":{"name":"count"}`), callEvent(`"id":"a","function":{"name":"list"}`),
			},
			"", "",
			[]model.ToolCall{{ID: "a", Name: "count"}, {ID: "a_2", Name: "list"}},
		},
		"same index, same id": {
			"a call with the ID of another one is another call, and gets an ID of its own",
			[]string{callPart(0, "a", "count", `{"n":1}`), callPart(0, "a", "count", `{"n":2}`), callPart(0, "a", "list", "{}")},
			"", "",
			[]model.ToolCall{
				{ID: "a", Name: "count", Arguments: `{"n":1}`},
				{ID: "a_2", Name: "count", Arguments: `{"n":2}`},
				{ID: "a_3", Name: "list", Arguments: "{}"},
			},
		},
		"no index, no id": {
			"without indices and IDs, the order identifies the calls",
			[]string{
				callEvent(`"function":{"name":"count","arguments":"{\"n\""}`), callEvent(`"function":{"arguments":":1}"}`),
				callEvent(`"function":{"name":"list","arguments":"{}"}`),
			},
			"", "",
			[]model.ToolCall{{ID: "call_0", Name: "count", Arguments: `{"n":1}`}, {ID: "call_1", Name: "list", Arguments: "{}"}},
		},
		"no ids": {
			"missing IDs are made up",
			[]string{callPart(3, "", "count", `{"n":1}`), callPart(5, "", "list", `{}`)},
			"", "",
			[]model.ToolCall{{ID: "call_0", Name: "count", Arguments: `{"n":1}`}, {ID: "call_1", Name: "list", Arguments: "{}"}},
		},
		"made id is taken": {
			"a made-up ID is unique",
			[]string{callPart(0, "", "count", `1`), callPart(1, "call_0", "count", `2`)},
			"", "",
			[]model.ToolCall{{ID: "call_0_2", Name: "count", Arguments: "1"}, {ID: "call_0", Name: "count", Arguments: "2"}},
		},
		"same ids": {
			"ids are made unique",
			[]string{
				callPart(0, "a", "count", `1`), callPart(1, "a", "count", `2`),
				callPart(2, "a_2", "count", `3`), callPart(3, "a", "count", `4`),
			},
			"",
			"",
			[]model.ToolCall{
				{ID: "a", Name: "count", Arguments: "1"},
				{ID: "a_3", Name: "count", Arguments: "2"},
				{ID: "a_2", Name: "count", Arguments: "3"},
				{ID: "a_4", Name: "count", Arguments: "4"},
			},
		},
		"longest id": {
			"128 characters are an id",
			[]string{callPart(0, strings.Repeat("x", 128), "count", `1`)},
			"",
			"",
			[]model.ToolCall{{ID: strings.Repeat("x", 128), Name: "count", Arguments: "1"}},
		},
		"same prefix": {
			"ids of more than 128 characters are replaced",
			[]string{callPart(0, strings.Repeat("x", 128)+"1", "count", `1`), callPart(1, strings.Repeat("x", 128)+"2", "list", `2`)},
			"", "",
			[]model.ToolCall{{ID: "call_0", Name: "count", Arguments: "1"}, {ID: "call_1", Name: "list", Arguments: "2"}},
		},
		"same first 1,024 characters": {
			"very long IDs are replaced",
			[]string{callPart(0, strings.Repeat("x", 1024)+"1", "count", `1`), callPart(1, strings.Repeat("x", 1024)+"2", "list", `2`)},
			"", "",
			[]model.ToolCall{{ID: "call_0", Name: "count", Arguments: "1"}, {ID: "call_1", Name: "list", Arguments: "2"}},
		},
		"hidden characters": {
			"IDs with invisible characters are replaced",
			[]string{callPart(0, "a\n", "count", `1`), callPart(1, "a\u200b", "list", `2`)},
			"", "",
			[]model.ToolCall{{ID: "call_0", Name: "count", Arguments: "1"}, {ID: "call_1", Name: "list", Arguments: "2"}},
		},
		"no arguments": {
			"missing arguments stay empty",
			[]string{callPart(0, "a", "count", "")},
			"", "",
			[]model.ToolCall{{ID: "a", Name: "count"}},
		},
		"bad arguments": {
			"arguments are not changed",
			[]string{callPart(0, "a", "count", "{\"n\":\n1")},
			"", "",
			[]model.ToolCall{{ID: "a", Name: "count", Arguments: "{\"n\":\n1"}},
		},
		"made-up name": {
			"the name is not changed",
			[]string{callPart(0, "a", "functions.Count it", "{}")},
			"", "",
			[]model.ToolCall{{ID: "a", Name: "functions.Count it", Arguments: "{}"}},
		},
		"with text": {"the text of a reply with calls is kept", []string{
			delta(`"content":"Let me "`),
			callPart(0, "a", "count", `{"n":1}`), delta(`"content":"count."`),
		}, "", "Let me count.", one},
		"empty lists": {
			"an empty list contains no call",
			[]string{delta(`"tool_calls":[]`), delta(`"tool_calls":null`), callPart(0, "a", "count", `{"n":1}`)},
			"", "", one,
		},
		"stop": {"some servers always end with stop", []string{callPart(0, "a", "count", `{"n":1}`)}, "stop", "", one},
		"end of sequence": {
			"some servers end with the name of a token",
			[]string{delta(`"content":" "`), callPart(0, "a", "count", `{"n":1}`)},
			"eos_token", " ", one,
		},
		"older end": {"the older finish reason is accepted", []string{callPart(0, "a", "count", `{"n":1}`)}, "function_call", "", one},
		"other choice": {
			"LiteLLM puts the number of the content block there: github.com/BerriAI/litellm/pull/19506",
			[]string{
				callPart(0, "a", "count", `{"n":1}`),
				`{"choices":[{"index":1,"delta":{"tool_calls":[{"index":1,"id":"b","function":{"name":"list","arguments":"{}"}}]}}]}`,
			},
			"",
			"",
			[]model.ToolCall{one[0], {ID: "b", Name: "list", Arguments: "{}"}},
		},
		"pieces of a call in other choices": {
			"servers that count the chunks",
			[]string{
				callPart(0, "a", "count", `{"n"`),
				`{"choices":[{"index":1,"delta":{"tool_calls":[{"index":0,"function":{"arguments":":"}}]}}]}`,
				`{"choices":[{"index":2,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"1}"}}]}}]}`,
			},
			"",
			"",
			one,
		},
		"another answer that ends": {
			"only the first choice counts",
			[]string{
				callPart(0, "a", "count", `{"n":1}`),
				`{"choices":[{"index":1,"delta":{"content":"No.","tool_calls":[{"index":1,"id":"b","function":{"name":"list"}}]}}]}`,
				`{"choices":[{"index":1,"delta":{"tool_calls":[{"index":1,"function":{"arguments":"{}"}}]},"finish_reason":"stop"}]}`,
			},
			"",
			"",
			one,
		},
		"another answer after the first": {
			"only the first choice counts",
			[]string{
				callPart(0, "a", "count", `{"n":1}`), finishEvent("tool_calls"),
				`{"choices":[{"index":1,"delta":{"tool_calls":[{"index":0,"id":"b","function":{"name":"list","arguments":"{}"}}]}}]}`,
				`{"choices":[{"index":1,"delta":{},"finish_reason":"length"}]}`,
			},
			"",
			"",
			one,
		},
		"another answer within a call": {
			"only the first choice counts, also if the pieces of both calls alternate",
			[]string{
				callPart(0, "a", "count", `{"n"`),
				`{"choices":[{"index":1,"delta":{"reasoning_content":"Hm.","tool_calls":[{"index":0,"function":{"arguments":":2}"}}]}}]}`,
				callPart(0, "", "", `:1}`),
				`{"choices":[{"index":1,"delta":{"tool_calls":[{"index":1,"id":"b","function":{"name":"list","arguments":"{}"}}]}}]}`,
			},
			"",
			"",
			one,
		},
		"two answers in one event": {
			"only the first choice counts",
			[]string{
				`{"choices":[{"index":0,"delta":{"tool_calls":[` +
					`{"index":0,"id":"a","function":{"name":"count","arguments":"{\"n\":1}"}}]}},` +
					`{"index":1,"delta":{"tool_calls":[{"index":0,"id":"b","function":{"name":"list","arguments":"{}"}}]}}]}`,
				`{"choices":[{"index":1,"delta":{"tool_calls":[{"index":1,"id":"c","function":{"name":"list","arguments":"{}"}}]}}]}`,
			},
			"",
			"",
			one,
		},
		"most calls": {"the maximum number of calls", manyCallEvents(endpoint.MaxToolCalls), "", "", manyCalls(endpoint.MaxToolCalls)},
	} {
		t.Run(name, func(t *testing.T) {
			finish := tc.finish
			if finish == "" {
				finish = "tool_calls"
			}
			body := events(append(tc.events, finishEvent(finish),
				`{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":4}}`, "[DONE]")...)
			req := withTools("hello")
			req.Tools = append(req.Tools, model.Tool{Name: "list"})
			got, err := generate(t.Context(), provider(t, serve(t, respond(200, body, stream))), req)
			want := model.Reply{
				Text: tc.text, ToolCalls: tc.want, FinishReason: model.FinishToolCalls,
				Usage: model.Usage{InputTokens: 9, OutputTokens: 4},
			}
			if tc.want == nil {
				want.FinishReason = model.FinishStop
			}
			if diff := cmp.Diff(want, got); diff != "" || err != nil {
				t.Errorf("%s (error %v): -want +got:\n%s", tc.reason, err, diff)
			}
		})
	}
}

// manyPieces returns the pieces of one call, each with an ID of its own, whose argument has n characters.
func manyPieces(n int) []string {
	all := []string{callPart(0, "id-0", "count", `{"n":"`)}
	for i := range n {
		all = append(all, callPart(0, fmt.Sprint("id-", i+1), "count", "x"))
	}
	return append(all, callPart(0, "last", "count", `"}`))
}

// manyCallEvents returns n events, each with a whole call.
func manyCallEvents(n int) []string {
	var all []string
	for i := range n {
		all = append(all, callPart(i, fmt.Sprint("id-", i), "count", "{}"))
	}
	return all
}

// manyCalls returns the calls in the events of manyCallEvents.
func manyCalls(n int) []model.ToolCall {
	var all []model.ToolCall
	for i := range n {
		all = append(all, model.ToolCall{ID: fmt.Sprint("id-", i), Name: "count", Arguments: "{}"})
	}
	return all
}

func TestInvalidToolCalls(t *testing.T) {
	const usage = `{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":4}}`
	whole := callPart(0, "a", "count", `{"n":1}`)
	for name, tc := range map[string]struct {
		reason string
		events []string
		want   errorParts
	}{
		"no call": {"the finish reason announces calls, but there are none", []string{
			finishEvent("tool_calls"),
		}, errorParts{Kind: model.Malformed, Message: "the model announced a tool call but made none"}},
		"no call, old": {
			"the older finish reason announces calls",
			[]string{finishEvent("function_call")},
			errorParts{Kind: model.Malformed, Message: "the model announced a tool call but made none"},
		},
		"an empty call beside a text": {
			"the text is not the answer, because the model meant to call a tool",
			[]string{delta(`"content":"Let me look that up.","tool_calls":[{"index":0}]`), finishEvent("tool_calls")},
			errorParts{Kind: model.Malformed, Message: "the model announced a tool call but made none"},
		},
		"no name": {
			"a call without a name cannot be made",
			[]string{callPart(0, "a", "", "{}"), finishEvent("tool_calls")},
			errorParts{Kind: model.Malformed, Message: "the model called a tool without a name"},
		},
		"blank name": {
			"a blank name is no name",
			[]string{whole, callPart(1, "b", " ", "{}"), finishEvent("stop")},
			errorParts{Kind: model.Malformed, Message: "the model called a tool without a name"},
		},
		"too many": {
			"the number of calls is bounded", append(manyCallEvents(endpoint.MaxToolCalls+1), finishEvent("tool_calls")),
			errorParts{Kind: model.ReplyTooLong, Message: "the model called more than 128 tools in one reply"},
		},
		"filtered": {
			"the content filter ends the reply",
			[]string{whole, finishEvent("content_filter")},
			errorParts{Kind: model.ContentFiltered, Message: "the content filter withheld the answer"},
		},
		"blank": {
			"an empty answer is invalid even if tools were offered",
			[]string{delta(`"content":" \n"`), finishEvent("stop")},
			errorParts{Kind: model.Malformed, Message: "the answer was empty"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			reply, err := generate(t.Context(), provider(t, serve(t, respond(200, events(append(tc.events, usage, "[DONE]")...), stream))),
				withTools("hello"))
			e := check(t, reply, err)
			tc.want.Message = `provider "demo": ` + tc.want.Message
			if diff := cmp.Diff(tc.want, partsOf(e)); diff != "" {
				t.Errorf("%s: -want +got:\n%s", tc.reason, diff)
			}
			if want := (model.Usage{InputTokens: 9, OutputTokens: 4}); e.Usage != want {
				t.Errorf("usage %+v, want %+v: an unusable reply costs as much", e.Usage, want)
			}
		})
	}
}

// TestUnofferedToolCalls checks that calls are a valid reply to a request without tools: repeating the request would
// give the same reply.
func TestUnofferedToolCalls(t *testing.T) {
	for name, body := range map[string]string{
		"tool_calls": events(delta(`"content":"hm"`), callPart(0, "a", "count", `{"n":1}`), finishEvent("tool_calls"), "[DONE]"),
		"stop":       events(delta(`"content":"hm"`), callPart(0, "a", "count", `{"n":1}`), finishEvent("stop"), "[DONE]"),
	} {
		got, err := generate(t.Context(), provider(t, serve(t, respond(200, body, stream))), request("hello"))
		want := model.Reply{
			Text: "hm", FinishReason: model.FinishToolCalls,
			ToolCalls: []model.ToolCall{{ID: "a", Name: "count", Arguments: `{"n":1}`}},
		}
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%s (error %v): -want +got:\n%s", name, err, diff)
		}
	}
}

// TestCutOffToolCallsAreLeftOut checks that a reply that is cut off has no calls, and that their bytes still count if
// the endpoint reports no usage.
func TestCutOffToolCallsAreLeftOut(t *testing.T) {
	body := events(delta(`"content":"Let me"`), callPart(0, "a", "count", `{"n":1}`), callPart(1, "b", "count", `{"n":`),
		finishEvent("length"), "[DONE]")
	for name, req := range map[string]model.Request{"offered": withTools("hello"), "not offered": request("hello")} {
		got, err := generate(t.Context(), provider(t, serve(t, respond(200, body, stream))), req)
		if diff := cmp.Diff(model.Reply{Text: "Let me", FinishReason: model.FinishLength, Received: 18}, got); diff != "" || err != nil {
			t.Errorf("%s (error %v): -want +got:\n%s", name, err, diff)
		}
	}
}

// TestUnreportedCutOffToolCallsAreLeftOut checks that a call that the output limit has cut off is recognized by the
// usage if the finish reason does not say it.
func TestUnreportedCutOffToolCallsAreLeftOut(t *testing.T) {
	const usage = `{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":40}}`
	whole := model.ToolCall{ID: "a", Name: "count", Arguments: `{"n":1}`}
	for name, tc := range map[string]struct {
		reason, arguments, finish string
		limit                     *int
		want                      []model.ToolCall // nil if the reply is cut off
	}{
		"calls":        {"the second call is cut off", `{"n":`, "tool_calls", new(40), nil},
		"stop":         {"the finish reason may be another one", `{"n":`, "stop", new(40), nil},
		"no arguments": {"the call is cut off before its arguments", "", "tool_calls", new(40), nil},
		"whole": {
			"the calls end at the limit", `{"n":2}`, "tool_calls", new(40),
			[]model.ToolCall{whole, {ID: "b", Name: "count", Arguments: `{"n":2}`}},
		},
		"below the limit": {
			"the model wrote the arguments so", `{"n":`, "tool_calls", new(41),
			[]model.ToolCall{whole, {ID: "b", Name: "count", Arguments: `{"n":`}},
		},
		"no limit": {
			"the request states none", `{"n":`, "tool_calls", nil,
			[]model.ToolCall{whole, {ID: "b", Name: "count", Arguments: `{"n":`}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			body := events(callPart(0, "a", "count", `{"n":1}`), callPart(1, "b", "count", tc.arguments), finishEvent(tc.finish),
				usage, "[DONE]")
			req := withTools("hello")
			req.Parameters.MaxOutputTokens = tc.limit
			got, err := generate(t.Context(), provider(t, serve(t, respond(200, body, stream))), req)
			want := model.Reply{
				ToolCalls: tc.want, FinishReason: model.FinishToolCalls, Usage: model.Usage{InputTokens: 9, OutputTokens: 40},
			}
			if tc.want == nil {
				want.FinishReason = model.FinishLength
			}
			if diff := cmp.Diff(want, got); diff != "" || err != nil {
				t.Errorf("%s (error %v): -want +got:\n%s", tc.reason, err, diff)
			}
		})
	}
}

func TestEndlessToolCalls(t *testing.T) {
	body := events(append(manyCallEvents(5000), finishEvent("tool_calls"), "[DONE]")...)
	reply, err := generate(t.Context(), provider(t, serve(t, respond(200, body, stream))), withTools("hello"))
	want := errorParts{Kind: model.ReplyTooLong, Message: `provider "demo": the model called more than 128 tools in one reply`}
	if diff := cmp.Diff(want, partsOf(check(t, reply, err))); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
