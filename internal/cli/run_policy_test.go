package cli_test

import (
	"strings"
	"testing"

	"github.com/capstan-dev/capstan/internal/cli/exit"
)

// policyRules makes the model answer with a price first, and without one when it must answer again.
const policyRules = `rules:
- when: {matches: "^Your answer was not accepted"}
  reply: {text: "Ask at the counter."}
- when: {systemContains: "You check one answer"}
  reply: {text: '{"verdicts": [{"rule": "kind", "violated": true, "reason": "The answer costs 40 EUR."}]}'}
- reply: {text: "It costs 40 EUR."}
`

// withPolicy returns a field of a PromptProfile with an output policy.
func withPolicy(policy string) string {
	return "overrides: {behavior: Be brief.}\n  outputPolicy:\n  - " + policy
}

// TestRunWithOutputPolicy checks that a refused answer is not on standard output, and that people see the violation.
func TestRunWithOutputPolicy(t *testing.T) {
	t.Parallel()
	const noPrices = `{name: no-prices, expression: "!output.text.contains('EUR')", message: Name no prices., onViolation: `
	for name, tc := range map[string]struct {
		policy string
		code   int
		out    string
		err    []string
	}{
		"fail": {
			noPrices + "Fail}", exit.Failed, "",
			[]string{
				"The answer violates the output policy no-prices (Fail): Name no prices.",
				"The text of the model is withheld; capstan logs shows it.",
				`Turn default/first: PolicyViolated: the answer violates the output policy "no-prices": Name no prices.`,
			},
		},
		"report": {
			noPrices + "Report}", 0, "It costs 40 EUR.\n",
			[]string{
				"The answer of step 1 violates no-prices: it is delivered, and the violation is recorded",
				"The answer violates the output policy no-prices (Report): Name no prices.",
			},
		},
		"retry": {
			noPrices + "Retry}", 0, "Ask at the counter.\n",
			[]string{
				"The answer of step 1 violates no-prices: it is not delivered", "The answer of step 1 was sent back to the model",
				"The answer of step 2 complies with all output policies",
			},
		},
		"prompt": {
			"{name: kind, prompt: Be kind.}", exit.Failed, "",
			[]string{
				"to check the answer against the output policies", "The answer of step 1 violates kind: it is not delivered",
				`PolicyViolated: the answer violates the output policy "kind": Be kind.`,
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, url := fake(t, policyRules)
			dir := complete().with(t, "profile.yaml", "overrides: {behavior: Be brief.}", withPolicy(tc.policy)).written(t, url)
			got := capstan(t, "run", "-f", dir).mustEnd(t, tc.code)
			mustSay(t, got.err, tc.err...)
			if got.out != tc.out {
				t.Errorf("want %q on standard output, have %q", tc.out, got.out)
			}
			if tc.code == exit.Failed && strings.Contains(got.err, "40 EUR") {
				t.Errorf("want no part of the withheld answer, have:\n%s", got.err)
			}
			turn := capstan(t, "run", "-f", dir, "-o", "json").mustEnd(t, tc.code)
			if name != "retry" {
				mustSay(t, turn.out, `"policyViolations"`)
			}
			if tc.code == exit.Failed && strings.Contains(turn.out, "40 EUR") {
				t.Errorf("want no part of the withheld answer in the Turn, have:\n%s", turn.out)
			}
			t.Logf("%s", got.err)
		})
	}
}

// TestRenderReportsAnInvalidOutputPolicy checks that capstan render reports an expression that is invalid.
func TestRenderReportsAnInvalidOutputPolicy(t *testing.T) {
	t.Parallel()
	dir := complete().with(t, "profile.yaml", "overrides: {behavior: Be brief.}",
		withPolicy("{name: short, expression: size(output.txt) < 9}")).written(t, nowhere)
	got := capstan(t, "render", "-f", dir).mustEnd(t, exit.Failed)
	mustSay(t, got.err, "spec.outputPolicy[0].expression:1:12: undefined field 'txt'")
}
