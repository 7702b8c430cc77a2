package cli_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/capstan-dev/capstan/internal/cli/exit"
)

// toolsWithoutReasoning refuses tools unless the request turns reasoning off: these models reason by default. Source:
// github.com/BerriAI/litellm/pull/34569 and github.com/GoogleChromeLabs/webmcp-tools/issues/417.
func toolsWithoutReasoning(w wire) string {
	if w.fields["tools"] != nil && string(w.fields["reasoning_effort"]) != `"none"` {
		return "Function tools with reasoning_effort are not supported for gpt-5.6 in /v1/chat/completions. " +
			"To use function tools, use /v1/responses or set reasoning_effort to 'none'."
	}
	return ""
}

// TestModelsThatCallToolsOnlyWithoutReasoning runs Turns with tools on a model that refuses tools while it reasons.
func TestModelsThatCallToolsOnlyWithoutReasoning(t *testing.T) {
	t.Parallel()
	const hint = `the model accepts tools only if it does not reason (HTTP 400): set spec.thinking of the Agent to "Off", and ` +
		`add ReasoningOff to the model's capabilities in the ModelProvider`
	for name, tc := range map[string]struct {
		thinking, capabilities string
		code                   int
		says                   string
	}{
		"reasoning turned off":        {`"Off"`, "[Reasoning, ReasoningOff]", exit.OK, ""},
		"no other setting":            {`"Off"`, "[ReasoningOff]", exit.OK, ""},
		"the default of the endpoint": {`"Off"`, "[Reasoning]", exit.Failed, hint},
		"reasoning":                   {"Low", "[Reasoning, ReasoningOff]", exit.Failed, hint},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := strictServers["OpenAI"]
			server.rules = append(slices.Clone(server.rules), toolsWithoutReasoning)
			url, received := server.serve(t, "OpenAI", false)
			tools := serveTools(t, "")
			f := manifests(t, tools.url, "OpenAI", "{timeoutSeconds: 30}")
			f = f.with(t, "agent.yaml", "spec:\n", "spec:\n  thinking: "+tc.thinking+"\n")
			f = f.with(t, "provider.yaml", "  - name: small\n", "  - name: small\n    capabilities: "+tc.capabilities+"\n")
			got := capstan(t, "run", "-f", f.written(t, url)).mustEnd(t, tc.code)
			mustSay(t, got.err, tc.says)
			if tc.code == exit.OK && (len(received.refused()) > 0 || tools.closedTickets() != "1042") {
				t.Errorf("want ticket 1042 closed, have %q, and refused: %s", tools.closedTickets(), strings.Join(received.refused(), "; "))
			}
		})
	}
}
