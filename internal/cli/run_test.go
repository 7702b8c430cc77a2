package cli_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/cli/exit"
	"github.com/capstan-dev/capstan/internal/runtime/span"
	"github.com/capstan-dev/capstan/test/fakemodel/server"
	"github.com/capstan-dev/capstan/test/otlp"
)

// answers has a fixed usage, so that the tests know the costs.
const answers = `apiKeys: [` + key + `]
rules:
- reply: {text: "All is well.", usage: {promptTokens: 100, completionTokens: 20}}
`

const wantTurn = `apiVersion: capstan.dev/v1alpha1
kind: Turn
metadata:
  generation: 1
  name: first
  namespace: default
  uid: UID
spec:
  agentRef:
    name: support
  citations: Show
  context:
    facts:
    - id: f1
      source: notes/a.md
      text: Nothing much.
  desiredState: Active
  execution: Run
  message: What is up?
  onJournalLoss: Interrupt
status:
  completionTime: "2026-04-09T12:00:00.000000Z"
  conditions:
  - lastTransitionTime: "2026-04-09T12:00:00Z"
    message: the model answered
    observedGeneration: 1
    reason: Completed
    status: "True"
    type: Succeeded
  - lastTransitionTime: "2026-04-09T12:00:00Z"
    message: the prompt was prepared
    observedGeneration: 1
    reason: Prepared
    status: "True"
    type: Prepared
  - lastTransitionTime: "2026-04-09T12:00:00Z"
    message: the model answered
    observedGeneration: 1
    reason: Completed
    status: "True"
    type: Executed
  - lastTransitionTime: "2026-04-09T12:00:00Z"
    message: usage, cost, sources and decision record are complete
    observedGeneration: 1
    reason: Finalized
    status: "True"
    type: Finalized
  decision:
    contextHash: dfaaa448f33b6cc9
    key: support.chat.turn
    promptRenderHash: fffcb52f3df0a26e04e801df13167fc28763e294d1dd3c5beccee2ce081b5db7
    strategy: DirectAnswer
  durationMilliseconds: 0
  executor:
    epoch: 1
    name: local
  observedGeneration: 1
  preparation:
    contextHash: dfaaa448f33b6cc9
    dynamicChars: 201
    expression:
      directness: Medium
      explanationDensity: Medium
      humor: Light
      initiative: Medium
      warmth: Medium
    messageCount: 4
    mode: Full
    model: small
    promptHash: 7635c384321d20cd3d08ccee4ac9be0b008a3d19623ffc34eb718ecfeb0e85d2
    promptProfile:
      id: helpdesk.support
      name: support
      version: 1.0.0
    promptRenderHash: fffcb52f3df0a26e04e801df13167fc28763e294d1dd3c5beccee2ce081b5db7
    provider: demo
    sections:
    - agent
    - instructions
    - behavior
    - tools
    - environment
    stableChars: 341
    toolCount: 0
  prices:
  - model: small
    provider: demo
    source: ModelProvider
  result:
    bytes: 12
    citations:
      local:
      - notes/a.md
    preview: All is well.
    text: All is well.
  startTime: "2026-04-09T12:00:00.000000Z"
  steps:
    count: 1
    modelRequests: 1
    modelRetries: 0
    resumes: 0
  stopReason: Completed
  traceID: TRACE
  usage:
    cost:
      amount: "0.00014"
      currency: USD
    inputTokens: 100
    outputTokens: 20
    totalTokens: 120
`

func TestRunPrintsTheAnswer(t *testing.T) {
	t.Parallel()
	_, url := fake(t, answers)
	got := capstan(t, "run", "-f", complete().written(t, url)).mustEnd(t, exit.OK)
	if got.out != "All is well.\n" {
		t.Errorf("want only the answer on standard output, have %q", got.out)
	}
	want := `Asking small of ModelProvider demo: What is up?
Step 1: small of ModelProvider demo, 120 tokens (100 in, 20 out), cost 0.00014 USD
Completed, strategy DirectAnswer, 120 tokens, cost 0.00014 USD
Sources: notes/a.md
`
	if diff := cmp.Diff(want, measured.ReplaceAllString(got.err, "")); diff != "" {
		t.Errorf("want each step on a line with its usage; -want +have:\n%s", diff)
	}
}

func TestRunShowsProgressOnATerminal(t *testing.T) {
	t.Parallel()
	_, url := fake(t, "rules: [{when: {contains: up}, reply: {text: \"Fine.\\e[2J\"}}]")
	got := call{terminal: true}.run(t.Context(), "run", "-f", complete().written(t, url)).mustEnd(t, exit.OK)
	mustSay(t, got.err, "Asking small of ModelProvider demo: What is up?\n")
	if got.out != "Fine.[2J\n" {
		t.Errorf("want no control characters of the answer on the terminal, have %q", got.out)
	}
}

func TestRunPrintsTheTurnAsAClusterWritesIt(t *testing.T) {
	t.Parallel()
	_, url := fake(t, answers)
	dir := complete().written(t, url)
	out := capstan(t, "run", "-f", dir, "--now", noon, "-o", "yaml").mustEnd(t, exit.OK)
	var turn v1alpha1.Turn
	asJSON := capstan(t, "run", "-f", dir, "--now", noon, "-o", "json").mustEnd(t, exit.OK)
	if err := json.Unmarshal([]byte(asJSON.out), &turn); err != nil {
		t.Fatal(err)
	}
	named := strings.NewReplacer(string(turn.UID), "UID", span.TraceOf("", string(turn.UID)).String(), "TRACE")
	if diff := cmp.Diff(wantTurn, named.Replace(out.out)); diff != "" {
		t.Errorf("want the whole Turn; -want +have:\n%s", diff)
	}
	wantSteps := "Asking small of ModelProvider demo: What is up?\nStep 1: small of ModelProvider demo, 120 " +
		"tokens (100 in, 20 out), cost 0.00014 USD\n"
	if diff := cmp.Diff(wantSteps, measured.ReplaceAllString(out.err, "")); diff != "" {
		t.Errorf("want only the steps on standard error; -want +have:\n%s", diff)
	}
	if quiet := capstan(t, "run", "-f", dir, "--now", noon, "-o", "yaml", "-q").mustEnd(t, exit.OK); quiet.err != "" ||
		quiet.out != out.out {
		t.Errorf("want the same Turn and nothing on standard error, have:\n%s", quiet.err)
	}
	rendered := capstan(t, "render", "-f", dir, "--now", noon, "-o", "json").mustEnd(t, exit.OK)
	mustSay(t, rendered.out, turn.Status.Preparation.PromptRenderHash, turn.Status.Preparation.PromptHash)
}

func TestRunSendsRenderedMessages(t *testing.T) {
	t.Parallel()
	model, url := fake(t, answers)
	dir := complete().with(t, "provider.yaml", "  type: OpenAI", "  type: OpenAI\n  dialect: OpenAI").written(t, url)
	capstan(t, "run", "-f", dir, "--now", noon).mustEnd(t, exit.OK)
	var want, sent struct {
		Messages []struct{ Role, Content string }
	}
	out := capstan(t, "render", "-f", dir, "--now", noon, "-o", "json").mustEnd(t, exit.OK).out
	if err := json.Unmarshal([]byte(out), &want); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(model.Requests()[0].Body, &sent); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, sent); diff != "" {
		t.Errorf("want the model to receive the rendered prompt; -rendered +sent:\n%s", diff)
	}
}

func TestRunPrintsLongAnswersWhole(t *testing.T) {
	t.Parallel()
	_, url := fake(t, "rules: [{reply: {text: 0123456789abcdef, repeat: 4096, chunkChars: 8192, ignoreMaxTokens: true}}]")
	dir := complete().written(t, url)
	whole := strings.Repeat("0123456789abcdef", 4096)
	if got := capstan(t, "run", "-f", dir).mustEnd(t, exit.OK); got.out != whole+"\n" {
		t.Errorf("want all %d bytes of the answer, have %d", len(whole)+1, len(got.out))
	}
	var turn v1alpha1.Turn
	if err := json.Unmarshal([]byte(capstan(t, "run", "-f", dir, "-o", "json").mustEnd(t, exit.OK).out), &turn); err != nil {
		t.Fatal(err)
	}
	if r := turn.Status.Result; r.Text != whole[:32<<10] || !r.Truncated || r.Bytes != 64<<10 {
		t.Errorf("want the first 32 KiB of 64 in the Turn, have %d of %d, truncated: %t", len(r.Text), r.Bytes, r.Truncated)
	}
}

func TestRunTakesKeysFromTheEnvironment(t *testing.T) {
	t.Parallel()
	_, url := fake(t, answers)
	f := complete()
	delete(f, "secret.yaml")
	got := call{env: map[string]string{"MODEL_KEY": key}}.run(t.Context(),
		"run", "-f", f.written(t, url), "--env-secret", "model-key/apiKey=MODEL_KEY").mustEnd(t, exit.OK)
	if got.out != "All is well.\n" || strings.Contains(got.err, key) {
		t.Errorf("want the answer and no key, have:\n%s%s", got.out, got.err)
	}
}

// TestRunRedactsKeysOfOtherProviders runs a model that writes the key of another provider of the Agent, plain and with
// invisible characters.
func TestRunRedactsKeysOfOtherProviders(t *testing.T) {
	t.Parallel()
	const other = "sk-the-key-of-another-provider"
	hidden := strings.Join(strings.Split(other, ""), "\u200b")
	_, url := fake(t, "rules: [{reply: {text: \"It is "+other+", or "+hidden+".\"}}]")
	f := complete().with(t, "agent.yaml", "    model: small\n", "    model: small\n  - {providerRef: {name: spare}, model: small}\n")
	f["spare.yaml"] = strings.NewReplacer("name: demo", "name: spare", "model-key", "spare-key").Replace(f["provider.yaml"])
	f["key.yaml"] = strings.NewReplacer("model-key", "spare-key", key, other).Replace(f["secret.yaml"])
	dir, data := f.written(t, url), t.TempDir()
	got := capstan(t, "run", "-f", dir, "--data-dir", data, "-o", "json").mustEnd(t, exit.OK)
	journal := capstan(t, "logs", "first", "--data-dir", data, "-o", "json").mustEnd(t, exit.OK)
	for name, text := range map[string]string{"the Turn": got.out, "the journal": journal.out} {
		mustSay(t, text, "It is [redacted], or [redacted].")
		if strings.Contains(text, other) || strings.Contains(text, hidden) {
			t.Errorf("want no key in %s, have:\n%s", name, text)
		}
	}
}

func TestRunFallsBackAlongTheChain(t *testing.T) {
	t.Parallel()
	_, url := fake(t, "models: [spare]\nrules: [{reply: {text: Here.}}]")
	dir := complete().with(t, "agent.yaml", "    model: small\n",
		"    model: small\n  - {providerRef: {name: demo}, model: spare}\n").written(t, url)
	got := call{terminal: true}.run(t.Context(), "run", "-f", dir).mustEnd(t, exit.OK)
	mustSay(t, got.err, "Asking small of", "Asking spare of", "demo/spare answered in place of demo/small")
}

// TestRunNamesTheProviderThatItWaitsFor checks that the progress shows why the next request waits. The provider allows
// the second request after 4 seconds.
func TestRunNamesTheProviderThatItWaitsFor(t *testing.T) {
	t.Parallel()
	url, _ := strictServers["Generic"].serve(t, "Generic", false)
	f := manifests(t, serveTools(t, "").url, "Generic", "{timeoutSeconds: 30}").with(t, "agent.yaml", "  reflectEveryTurns: 1\n", "")
	dir := f.with(t, "provider.yaml", "  type: OpenAI", "  type: OpenAI\n  limits: {requestsPerMinute: 15}").written(t, url)
	got := capstan(t, "run", "-f", dir).mustEnd(t, exit.OK)
	mustSay(t, got.err, `Waiting for ModelProvider "demo": its rate limits or its circuit breaker hold the next request back`)
}

// TestRunReportsARefusedTrace checks that a run whose collector refuses the spans prints the last refusal, without the
// key for the collector, and succeeds.
func TestRunReportsARefusedTrace(t *testing.T) {
	var requests atomic.Int32
	collector := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Error(w, fmt.Sprintf("refusal %d of key %s", requests.Add(1), r.Header.Get("Api-Key")), http.StatusUnauthorized)
	}))
	defer collector.Close()
	environment := map[string]string{
		"OTEL_EXPORTER_OTLP_ENDPOINT": collector.URL, "OTEL_EXPORTER_OTLP_HEADERS": "api-key=sk-collector",
		"OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "1", // each span fails in its own way
	}
	for name, value := range environment { // the exporter reads them from the process
		t.Setenv(name, value)
	}
	_, url := fake(t, answers)
	got := call{env: environment}.run(t.Context(), "run", "-f", complete().written(t, url)).mustEnd(t, exit.OK)
	mustSay(t, got.err, "Failed to export traces: ", "401", fmt.Sprintf("refusal %d of key", requests.Load()))
	if requests.Load() < 2 || strings.Count(got.err, "Failed to export traces") != 1 || strings.Contains(got.err, "sk-collector") {
		t.Errorf("%d spans were refused, want several, and one line about the traces, without the key, in:\n%s", requests.Load(), got.err)
	}
}

// TestRunsInOneTraceHaveSpansOfTheirOwn runs the same Turn with a sub-agent twice in the trace of one caller, each time
// with a journal of its own, and in two parts. The spans of all parts of a Turn must be connected, and no span of the
// second Turn may have the ID of a span of the first.
func TestRunsInOneTraceHaveSpansOfTheirOwn(t *testing.T) {
	var received otlp.Receiver
	collector := httptest.NewServer(&received)
	defer collector.Close()
	const caller = "00f067aa0ba902b7"
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.URL) // the exporter reads it from the process
	environment := map[string]string{
		"OTEL_EXPORTER_OTLP_ENDPOINT": collector.URL, "TRACEPARENT": "00-4bf92f3577b34da6a3ce929d0e0e4736-" + caller + "-01",
	}
	_, url := fake(t, delegated)
	dir := delegating(t, serveTools(t, "").url).written(t, url)
	var before []otlp.Span
	for range 2 {
		data := t.TempDir()
		call{env: environment}.run(t.Context(), "run", "-f", dir, "--data-dir", data).mustEnd(t, exit.Parked)
		call{env: environment}.run(t.Context(), "run", "-f", dir, "--data-dir", data, "--approve=all").mustEnd(t, exit.OK)
		spans := received.Spans()[len(before):]
		if len(spans) < 10 || !slices.ContainsFunc(spans, func(s otlp.Span) bool { return s.Name == "invoke_agent closer" }) {
			t.Errorf("the spans are %+v, want those of the Turn and of its sub-agent", spans)
		}
		for _, s := range spans {
			if s.Parent != caller && !slices.ContainsFunc(spans, func(above otlp.Span) bool { return above.ID == s.Parent }) {
				t.Errorf("the span %q has the parent %s, which did not arrive", s.Name, s.Parent)
			}
			if slices.ContainsFunc(before, func(b otlp.Span) bool { return b.ID == s.ID }) {
				t.Errorf("the span %q of the second Turn has the ID %s of a span of the first", s.Name, s.ID)
			}
		}
		before = received.Spans()
	}
}

func TestRunFollowsTheSpecOfTheTurn(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		reason, spec string
		code         int
		reasonInTurn string
		err          string
	}{
		"Cancelled": {
			"a cancelled Turn never runs", "desiredState: Cancelled", exit.Failed, "Cancelled",
			"Turn default/first: Cancelled: the turn was cancelled before it ran",
		},
		"Suspended": {
			"a suspended Turn waits", "desiredState: Suspended", exit.Failed, "Suspended",
			"Turn default/first: Suspended: the turn is suspended; set desiredState to Active to continue",
		},
		"PrepareOnly": {"only the prompt is made, which takes no Secret", "execution: PrepareOnly", exit.OK, "Prepared", "Prepared, "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			model, url := fake(t, answers)
			f := complete().with(t, "turn.yaml", "message:", tc.spec+"\n  message:")
			delete(f, "secret.yaml")
			dir := f.written(t, url)
			text := capstan(t, "run", "-f", dir).mustEnd(t, tc.code)
			mustSay(t, text.err, tc.err)
			turn := capstan(t, "run", "-f", dir, "-o", "json").mustEnd(t, tc.code)
			mustSay(t, turn.out, `"reason": "`+tc.reasonInTurn+`"`)
			if n := model.Stats().Requests; n != 0 || text.out != "" {
				t.Errorf("%s: want no request and no answer, have %d and %q", tc.reason, n, text.out)
			}
		})
	}
}

func TestQuickstartRuns(t *testing.T) {
	t.Parallel()
	rules, err := os.ReadFile(filepath.Join("..", "..", "test", "fakemodel", "rules.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	model, url := fake(t, string(rules))
	quickstart := files{}
	names, err := filepath.Glob(filepath.Join("..", "..", "examples", "quickstart", "*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		quickstart[filepath.Base(name)] = strings.ReplaceAll(string(text), "http://127.0.0.1:8089/v1", "BASEURL")
	}
	got := capstan(t, "run", "-f", quickstart.written(t, url)).mustEnd(t, exit.OK)
	mustSay(t, got.out, "found 2 things that may answer “What are my open loops?”")
	mustSay(t, got.err, "Sources: tickets/1042.md, tickets/1057.md")
	if n := model.Stats().ByOutcome[server.OutcomeAnswered]; n != 1 {
		t.Errorf("want one request, have %d", n)
	}
}
