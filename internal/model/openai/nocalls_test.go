package openai_test

import (
	"encoding/json"
	"testing"

	"github.com/capstan-dev/capstan/internal/model/openai"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// TestToolsThatMustNotBeCalled checks that OpenAI receives tools that must not be called, with a tool choice that
// forbids calls, so that it finds the beginning of the request in its cache. Other servers may ignore the tool choice,
// or return calls as text, so they receive no tools.
func TestToolsThatMustNotBeCalled(t *testing.T) {
	off := false
	const tools = `[{"function":{"name":"count","parameters":{"type":"object","properties":{}}},"type":"function"}]`
	for name, tc := range map[string]struct {
		dialect       openai.Dialect
		noCalls       bool
		tools, choice string
	}{
		"OpenAI":                {openai.DialectOf("OpenAI", ""), true, tools, `"none"`},
		"Azure":                 {openai.DialectOf("AzureOpenAI", ""), true, tools, `"none"`},
		"OpenAI, with calls":    {openai.DialectOf("OpenAI", ""), false, tools, ""},
		"Generic":               {openai.DialectOf("", ""), true, "", ""},
		"VLLM":                  {openai.DialectOf("VLLM", ""), true, "", ""},
		"one call at a time":    {openai.Dialect{ParallelCalls: &off}, true, "", ""},
		"LiteLLM, before calls": {openai.DialectOf("LiteLLM", ""), true, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			for member, want := range map[string]string{"tools": tc.tools, "tool_choice": tc.choice} {
				req := request("hello")
				req.Tools, req.NoCalls = []model.Tool{{Name: "count"}}, tc.noCalls
				if got, _ := sentBody(t, req, member, withDialect(tc.dialect)); got != want {
					t.Errorf("%s: sent %s, want %s", member, got, want)
				}
			}
		})
	}
	req := request("hello")
	req.Tools, req.NoCalls, req.Output = []model.Tool{{Name: "count"}}, true, json.RawMessage(`{"type":"object"}`)
	if got, _ := sentBody(t, req, "parallel_tool_calls", withDialect(openai.Dialect{ParallelCalls: &off})); got != "" {
		t.Errorf("parallel_tool_calls %s is sent without tools, which OpenAI refuses", got)
	}
}
