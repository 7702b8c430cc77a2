package cli_test

import (
	"strings"
	"testing"

	"github.com/capstan-dev/capstan/internal/cli/exit"
)

// selecting offers one of two tools by its meaning.
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
// Words alone decide then, as in a cluster.
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
			mustSay(t, got.err, "note: words alone decide which memories and tools fit, because there are no embeddings: ", tc.why)
			again := capstan(t, "replay", "first", "--data-dir", data, "-m", dir).mustEnd(t, exit.OK)
			mustSay(t, again.out, "The answers are the same")
			if strings.Contains(again.err, "embeddings") {
				t.Errorf("the replay says %q, although it needs no vectors", again.err)
			}
		})
	}
}
