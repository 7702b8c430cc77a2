package cli_test

import (
	"strings"
	"testing"

	"github.com/capstan-dev/capstan/internal/cli/exit"
)

// schemaSent is a rule that requires the schema of an answer. All requests of the test have tools and a schema.
func schemaSent(w wire) string {
	if w.fields["response_format"] == nil {
		return "response_format is missing"
	}
	return ""
}

// TestSwitchesOfADialect runs an Agent with tools, parameters and a structured answer on strict servers that differ
// from the preset of their dialect. Without the switches, the server refuses a request, or Capstan refuses a parameter
// before it is sent.
func TestSwitchesOfADialect(t *testing.T) {
	t.Parallel()
	const onlyLimit = "{maxOutputTokens: 500}"
	for name, tc := range map[string]struct {
		dialect, switches, parameters string
		rules                         []rule
	}{
		"schemas together with tools": {"Generic", "{answerSchemas: Always}", onlyLimit, []rule{schemaSent}},
		"schemas without tools": {
			"OpenAI", "{answerSchemas: WithoutTools}", onlyLimit,
			[]rule{noSchemaWithTools("response_format is not supported with tools")},
		},
		"no schemas": {"OpenAI", "{answerSchemas: Never}", onlyLimit, []rule{without("response_format")}},
		"another seed": {
			"OpenAI", "{seed: RandomSeed}", "{maxOutputTokens: 500, seed: 7}", []rule{without("seed"), needs("random_seed")},
		},
		"a seed": {
			"DeepSeek", "{seed: Seed, answerSchemas: Always}", "{maxOutputTokens: 500, seed: 7}", []rule{needs("seed")},
		},
		"tiers": {"VLLM", `{serviceTiers: "On"}`, "{maxOutputTokens: 500, serviceTier: gold}", []rule{needs("service_tier")}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := strictServer{rules: tc.rules, status: 400, body: nestedError, id: "call_1", finish: "tool_calls"}
			run := func(code int, switches string) (closed, answer string) {
				t.Helper()
				url, received := server.serve(t, "", false)
				tools := serveTools(t, "")
				f := manifests(t, tools.url, tc.dialect, "{timeoutSeconds: 30}").with(t, "agent.yaml", "  reflectEveryTurns: 1\n", "")
				f = f.with(t, "agent.yaml", onlyLimit, tc.parameters)
				f = f.with(t, "provider.yaml", "  dialect: "+tc.dialect, "  dialect: "+tc.dialect+switches)
				f = f.with(t, "provider.yaml", "name: small", "name: small\n    capabilities: [StructuredOutput]")
				f["turn.yaml"] += "  output: {schema: {type: object, properties: {id: {type: integer}}, required: [id]}}\n"
				got := capstan(t, "run", "-f", f.written(t, url), "-o", "json").mustEnd(t, code)
				if problems := received.refused(); code == exit.OK && len(problems) > 0 {
					t.Errorf("the server refused a request: %s", strings.Join(problems, "; "))
				}
				if code == exit.OK {
					answer = turnOf(t, got.out).Status.Result.Text
				}
				return tools.closedTickets(), answer
			}
			if closed, answer := run(exit.OK, "\n  requests: "+tc.switches); closed != "1042" || answer != `{"id":1042}` {
				t.Errorf("want ticket 1042 closed once and the structured answer, have %q and %q", closed, answer)
			}
			if closed, _ := run(exit.Failed, ""); closed != "" {
				t.Errorf("a call was made without the switches: %s", closed)
			}
		})
	}
}
