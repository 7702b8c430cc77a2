package cli_test

import (
	"strings"
	"testing"

	"github.com/capstan-dev/capstan/internal/cli/exit"
)

// selecting makes an Agent offer one of two tools, selected by its meaning.
const selecting = "  embeddings: {providerRef: {name: vectors}, model: e}\n" +
	"  toolPolicy: {selection: Semantic, maxToolsPerTurn: 1}\n"

// withVectors returns all manifests of an Agent that selects tools by their meaning, with the given ModelProvider.
func withVectors(t *testing.T, url, provider string) files {
	t.Helper()
	f := withTools(t, url, "").with(t, "agent.yaml", "  limits:", selecting+"  limits:")
	if provider != "" {
		f["vectors.yaml"] = provider
	}
	return f
}

// TestEmbeddingsThatCannotBeUsed runs a Turn, and replays it, with a ModelProvider for embeddings that cannot be used.
// Tools are then selected only by their words, as in a cluster.
func TestEmbeddingsThatCannotBeUsed(t *testing.T) {
	t.Parallel()
	provider := strings.Replace(providerYAML, "{name: demo}", "{name: vectors}", 1)
	for name, tc := range map[string]struct{ provider, why string }{
		"missing":       {"", `provider "vectors": `},
		"no Secret":     {strings.Replace(provider, "name: model-key", "name: other-key", 1), "other-key"},
		"no embeddings": {strings.Replace(provider, "type: OpenAI", "type: Anthropic", 1), "Anthropic"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, url := fake(t, "rules: [{reply: {text: One.}}]\n")
			dir, data := withVectors(t, serveTools(t, "").url, tc.provider).written(t, url), t.TempDir()
			got := capstan(t, "run", "-f", dir, "--data-dir", data).mustEnd(t, exit.OK)
			mustSay(t, got.err, "note: memories and tools are selected only by their words, because the embeddings failed: ", tc.why)
			again := capstan(t, "replay", "first", "--data-dir", data, "-m", dir).mustEnd(t, exit.OK)
			mustSay(t, again.out, "The answers are the same")
			if strings.Contains(again.err, "embeddings") {
				t.Errorf("the replay prints %q, want nothing about vectors, which it does not need", again.err)
			}
		})
	}
}

// TestReplayWithoutVectors compares a Turn that requested vectors with its replay, which requests none.
func TestReplayWithoutVectors(t *testing.T) {
	t.Parallel()
	model, url := fake(t, "rules: [{reply: {text: One.}}]\n")
	provider := strings.Replace(providerYAML, "{name: demo}", "{name: vectors}", 1) // model e has no price
	dir, data := withVectors(t, serveTools(t, "").url, provider).written(t, url), t.TempDir()
	got := capstan(t, "run", "-f", dir, "--data-dir", data).mustEnd(t, exit.OK)
	if n := model.Stats().ByModel["e"]; n != 2 {
		t.Fatalf("%d requests for vectors, want one for the message and one for the tools:\n%s", n, got.err)
	}
	r := replayOf(t, capstan(t, "replay", "first", "--data-dir", data, "-m", dir, "-o", "json").mustEnd(t, exit.OK).out)
	if r.Recorded.Cost == nil || *r.Recorded.Cost != *r.Replayed.Cost || r.Recorded.Usage != r.Replayed.Usage {
		t.Errorf("the replay is %+v, want the cost and the tokens of the recorded Turn", r)
	}
	b := backtestOf(t, capstan(t, "backtest", "-f", dir, "--agent", "support", "--data-dir", data, "--replay", "-o", "json").
		mustEnd(t, exit.OK).out)
	if one := b.Cases[0]; one.Recorded.Spent.Tokens != one.Spent.Tokens || one.Recorded.Spent.Cost == nil {
		t.Errorf("the backtest has %+v after %+v, want the same tokens", one.Spent, one.Recorded.Spent)
	}
	if n := model.Stats().ByModel["e"]; n != 2 {
		t.Errorf("%d requests for vectors, want 2: the replays send none", n)
	}
}

// TestVectorsAreKeptForABatch evaluates an Agent with two cases, which share the vectors of its tools.
func TestVectorsAreKeptForABatch(t *testing.T) {
	t.Parallel()
	model, url := fake(t, "rules: [{reply: {text: One.}}]\n")
	provider := strings.Replace(providerYAML, "{name: demo}", "{name: vectors}", 1)
	path := evalSetup(t, url, "manifests: [manifests]\ncases: [{name: a, message: Which one}, {name: b, message: Which other}]\n",
		withVectors(t, serveTools(t, "").url, provider))
	capstan(t, "eval", "-f", path, "-q", "--parallel", "1").mustEnd(t, exit.OK)
	if n := model.Stats().ByModel["e"]; n != 3 {
		t.Errorf("%d requests for vectors, want one for each message, and one for the tools", n)
	}
}

// refusingModel extracts two memories from the first message and one from the second. It refuses to embed one of them.
const refusingModel = `rules:
- {when: {embeddings: true, contains: Refused}, fault: {status: 400}}
- {when: {systemContains: You read a message, contains: HP}, ` +
	`reply: {text: '{"memories": [{"content": "Has an HP 4000.", "scope": "User", "confidence": 90}, ` +
	`{"content": "Refused by the model.", "scope": "User", "confidence": 90}]}'}}
- {when: {systemContains: You read a message}, ` +
	`reply: {text: '{"memories": [{"content": "Likes tea.", "scope": "User", "confidence": 90}]}'}}
- {reply: {text: "One."}}
`

// TestMemoriesThatCannotBeEmbedded checks that a memory whose text is refused does not keep the others from their
// vectors, and that the next Turn does not request its vector again.
func TestMemoriesThatCannotBeEmbedded(t *testing.T) {
	t.Parallel()
	model, url := fake(t, refusingModel)
	f := conversing(t).with(t, "agent.yaml", "spec:\n", "spec:\n  memory: {learning: {scopes: [User]}}\n"+
		"  embeddings: {providerRef: {name: vectors}, model: e}\n")
	f["vectors.yaml"] = strings.Replace(providerYAML, "{name: demo}", "{name: vectors}", 1)
	f = f.with(t, "turn.yaml", "What is up?", "My printer is an HP.")
	dir, data := f.written(t, url), t.TempDir()
	for _, tc := range []struct {
		turn     string
		requests int64
		noted    bool
	}{{"first", 1 + 2, true}, {"second", 1 + 2 + 1, false}} {
		got := capstan(t, "run", "-f", dir, "--turn", tc.turn, "--data-dir", data).mustEnd(t, exit.OK)
		mustSay(t, got.err, "learned memories: ")
		if noted := strings.Contains(got.err, "found only by their words: the model refused 1 of 2 texts: "); noted != tc.noted {
			t.Errorf("the Turn %s prints %q", tc.turn, got.err)
		}
		if n := model.Stats().ByModel["e"]; n != tc.requests {
			t.Errorf("%d requests for vectors after the Turn %s, want %d", n, tc.turn, tc.requests)
		}
	}
}
