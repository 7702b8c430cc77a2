package openai_test

import (
	"strings"
	"testing"

	"github.com/capstan-dev/capstan/internal/model/endpoint"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// TestUsageOfUnusableReplies checks that the usage in a reply that cannot be used is in the error, and that a request
// whose reply was not read to its end may be billed.
func TestUsageOfUnusableReplies(t *testing.T) {
	const counted = `"usage":{"prompt_tokens":9,"completion_tokens":4}`
	used := model.Usage{InputTokens: 9, OutputTokens: 4}
	long := strings.Repeat("x", endpoint.MaxEventBytes)
	var calls []string
	for range endpoint.MaxToolCalls + 1 {
		calls = append(calls, callEvent(`"function":{"name":"count","arguments":""}`))
	}
	for name, tc := range map[string]struct {
		body, header string
		kind         model.ErrorKind
		usage        model.Usage
		billed       bool
	}{
		"unreadable event":       {events(`{"choices":"none",` + counted + `}`), stream, model.Malformed, used, false},
		"unreadable answer":      {`{"choices":"none",` + counted + `}`, jsonType, model.Malformed, used, false},
		"no JSON":                {events(`{"choices":[{"ind` + counted + `}`), stream, model.Malformed, model.Usage{}, false},
		"no usage":               {events(`{"choices":"none"}`), stream, model.Malformed, model.Usage{}, false},
		"usage before the event": {events(`{"choices":[],`+counted+`}`, `{"choices":"none"}`), stream, model.Malformed, used, false},
		"error":                  {events(`{"error":"it crashed",` + counted + `}`), stream, model.Overloaded, used, false},
		"error in a choice": {
			events(`{"choices":[{"index":0,"error":{"message":"it crashed"}}],` + counted + `}`), stream, model.Overloaded, used, false,
		},
		"usage of Moonshot": {
			events(`{"error":"it crashed","choices":[{"index":0,` + counted + `}]}`), stream, model.Overloaded, used, false,
		},
		"usage of Moonshot, unreadable": {
			events(`{"choices":[{"index":0,` + counted + `},7]}`), stream, model.Malformed, used, false,
		},
		"usage of Groq": {events(`{"error":"it crashed","x_groq":{` + counted + `}}`), stream, model.Overloaded, used, false},
		"long event":    {events(delta(`"content":"` + long + `"`)), stream, model.ReplyTooLong, model.Usage{}, true},
		"long answer":   {`{"choices":[{"message":{"content":"` + long + `"}}]}`, jsonType, model.ReplyTooLong, model.Usage{}, true},
		"many calls":    {events(append(calls, finishEvent("stop"))...), stream, model.ReplyTooLong, model.Usage{}, true},
		"compressed":    {"x", "Content-Encoding: gzip", model.InvalidRequest, model.Usage{}, true},
		"no name":       {events(callPart(0, "a", "", "{}"), finishEvent("tool_calls")), stream, model.Malformed, model.Usage{}, true},
		"unreadable call": {
			events(finishEvent("malformed_function_call"), `{"choices":[],`+counted+`}`, "[DONE]"), stream, model.Malformed, used, true,
		},
		"calls, counted": {events(append(calls, `{"choices":[],`+counted+`}`, "[DONE]")...), stream, model.ReplyTooLong, used, true},
	} {
		t.Run(name, func(t *testing.T) {
			e := failure(t, provider(t, serve(t, respond(200, tc.body, tc.header))))
			if e.Kind != tc.kind || e.Usage != tc.usage || e.MayBeBilled != tc.billed {
				t.Errorf("error %s, usage %+v, billed %t; want %s, %+v and %t", e.Kind, e.Usage, e.MayBeBilled,
					tc.kind, tc.usage, tc.billed)
			}
		})
	}
	if e := failure(t, provider(t, serve(t, respond(429, "x", "Content-Encoding: gzip")))); e.MayBeBilled {
		t.Error("a refused request may be billed, although the endpoint has not accepted it")
	}
}

// TestUsageOfUnusableVectors is TestUsageOfUnusableReplies for vectors.
func TestUsageOfUnusableVectors(t *testing.T) {
	const counted = `"usage":{"prompt_tokens":9}`
	used := model.Usage{InputTokens: 9}
	long := strings.Repeat(" ", model.MaxEmbedTexts*model.MaxDimensions*32+128<<10)
	for name, tc := range map[string]struct {
		body, header string
		kind         model.ErrorKind
		usage        model.Usage
		billed       bool
	}{
		"unreadable":       {`{"data":7,` + counted + `}`, jsonType, model.Malformed, used, false},
		"unreadable item":  {`{"data":[7],` + counted + `}`, jsonType, model.Malformed, used, false},
		"error":            {`{"error":"it crashed",` + counted + `}`, jsonType, model.InvalidRequest, used, false},
		"web page":         {"<html>", jsonType, model.Malformed, model.Usage{}, false},
		"no vector":        {`{"data":[]}`, jsonType, model.Malformed, model.Usage{}, false},
		"unusable vectors": {`{"data":[{"embedding":[0,0]}]}`, jsonType, model.Malformed, model.Usage{}, true},
		"too long":         {long, jsonType, model.ReplyTooLong, model.Usage{}, true},
		"compressed":       {"x", "Content-Encoding: gzip", model.InvalidRequest, model.Usage{}, true},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := provider(t, serve(t, respond(200, tc.body, tc.header))).Generate(t.Context(), embed("x"))
			e := check(t, model.Reply{}, err)
			if e.Kind != tc.kind || e.Usage != tc.usage || e.MayBeBilled != tc.billed {
				t.Errorf("error %s, usage %+v, billed %t; want %s, %+v and %t", e.Kind, e.Usage, e.MayBeBilled,
					tc.kind, tc.usage, tc.billed)
			}
		})
	}
}
