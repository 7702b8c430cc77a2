package cli_test

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/cli/exit"
)

// parameters returns the parameters of the model for a dialect, and the name of the request's field for the seed. The
// name is empty if the dialect supports no seed.
func parameters(dialect string) (yaml, seed string) {
	switch dialect {
	case "DeepSeek", "Gemini", "Moonshot":
		return "{maxOutputTokens: 500, stopSequences: [END]}", ""
	case "Mistral":
		return "{maxOutputTokens: 500, stopSequences: [END], seed: 7}", "random_seed"
	}
	return "{maxOutputTokens: 500, stopSequences: [END], seed: 7}", "seed"
}

// conversation returns an Agent with tools, on a provider with a dialect, and two Turns of a Session. The second Turn
// has a schema for its answer.
func conversation(t *testing.T, tools, dialect string) files {
	t.Helper()
	f := manifests(t, tools, dialect, "{timeoutSeconds: 30}").with(t, "agent.yaml", "  reflectEveryTurns: 1\n", "")
	yaml, _ := parameters(dialect)
	f = f.with(t, "agent.yaml", "{maxOutputTokens: 500}", yaml)
	f = f.with(t, "turn.yaml", "  message: Close 1042.\n  history: [{role: User, content: Hello.}, {role: Assistant, content: Hi!}]",
		"  sessionRef: {name: chat}\n  message: Close 1042.")
	f["second.yaml"] = secondYAML + "  output: {schema: {type: object, properties: {id: {type: integer}}, required: [id]}}\n"
	return f.with(t, "provider.yaml", "name: small", "name: small\n    capabilities: [StructuredOutput]")
}

// TestSessionOnEachDialect runs two Turns of a Session, with tools, parameters and a structured answer, on a strict
// server of each dialect. It checks that the bytes that a server can cache stay the same, and that the usage has the
// cached tokens.
func TestSessionOnEachDialect(t *testing.T) {
	t.Parallel()
	for dialect, server := range strictServers {
		t.Run(dialect, func(t *testing.T) {
			t.Parallel()
			url, received := server.serve(t, dialect, false)
			tools := serveTools(t, "")
			dir, data := conversation(t, tools.url, dialect).written(t, url), t.TempDir()
			run := func(name string) *v1alpha1.Turn {
				t.Helper()
				got := capstan(t, "run", "-f", dir, "--turn", name, "--data-dir", data, "-o", "json")
				if problems := received.refused(); len(problems) > 0 {
					t.Fatalf("the server refused a request: %s", strings.Join(problems, "; "))
				}
				return turnOf(t, got.mustEnd(t, exit.OK).out)
			}
			first, second := run("first"), run("second")
			if answer := first.Status.Result.Text; answer != "Done." || tools.closedTickets() != "1042,1042" {
				t.Errorf("want the answer, and a call in each Turn, have %q and %q", answer, tools.closedTickets())
			}
			var answer struct{ ID int }
			if got := second.Status.Result.Data; got == nil || json.Unmarshal(got.Raw, &answer) != nil || answer.ID != 1042 {
				t.Errorf("the structured answer is %v, want the ticket", got)
			}
			want := &v1alpha1.Usage{InputTokens: 258, OutputTokens: 8, TotalTokens: 266}
			if server.usage(dialect) != withoutCached {
				want.CacheReadTokens = 200
			}
			for _, turn := range []*v1alpha1.Turn{first, second} {
				if turn.Status.Usage.Cost = nil; !cmp.Equal(want, turn.Status.Usage) {
					t.Errorf("%s: usage: -want +got:\n%s", turn.Name, cmp.Diff(want, turn.Status.Usage))
				}
			}
			requests := received.requests()
			checkCacheable(t, requests, first.Status.Preparation.StableChars)
			if _, seed := parameters(dialect); string(requests[0].fields["stop"]) != `["END"]` ||
				seed != "" && string(requests[0].fields[seed]) != "7" {
				t.Errorf("want stop, and the seed as %q, have %s", seed, requests[0].fields)
			}
		})
	}
}

// checkCacheable checks that the requests of two Turns, two for each Turn, share the bytes that a server can cache: the
// tools, the beginning of the system prompt, which has stableChars characters, and the messages of earlier requests.
func checkCacheable(t *testing.T, requests []wire, stableChars int64) {
	t.Helper()
	if len(requests) != 4 || stableChars == 0 {
		t.Fatalf("%d requests with %d stable characters, want 4 requests and more than 0 characters", len(requests), stableChars)
	}
	for i := range requests {
		r := &requests[i]
		if !bytes.Equal(r.fields["tools"], requests[0].fields["tools"]) {
			t.Errorf("request %d has other tools: %s", i, r.fields["tools"])
		}
		if prompt := r.messages[0].Content; prompt[:stableChars] != requests[0].messages[0].Content[:stableChars] {
			t.Errorf("request %d has another stable part: %s", i, prompt[:stableChars])
		}
	}
	for _, turn := range [][]wire{requests[:2], requests[2:]} {
		if before, after := rawMessages(t, turn[0]), rawMessages(t, turn[1]); !slices.Equal(before, after[:len(before)]) {
			t.Errorf("the second request of a Turn begins with other messages: %s", cmp.Diff(before, after))
		}
	}
	before, after := conversationOf(requests[1]), conversationOf(requests[2])
	if len(before) != 3 || !slices.Equal(before, after[:min(len(before), len(after))]) {
		t.Errorf("the second Turn begins with other messages than the first had: %s", cmp.Diff(before, after))
	}
}

// conversationOf returns the messages of a request without the system messages. It leaves out the data that came with
// calls, because they may differ from Turn to Turn.
func conversationOf(w wire) (all []string) {
	for _, m := range w.messages {
		if m.Role != "system" {
			all = append(all, m.Role+" "+m.ToolCallID+": "+m.Content)
		}
	}
	return all
}

// rawMessages returns the messages of a request as they were received.
func rawMessages(t *testing.T, w wire) []string {
	t.Helper()
	var raw []json.RawMessage
	if err := json.Unmarshal(w.fields["messages"], &raw); err != nil {
		t.Fatal(err)
	}
	all := make([]string, 0, len(raw))
	for _, m := range raw {
		all = append(all, string(m))
	}
	return all
}

// TestPrefixOfASession checks that each Turn of a Session begins with the messages of the Turn before, so that the
// server finds them in its cache. The facts are an exception, because later Turns do not receive them. The test does
// not apply to other dialects: they put the system messages of each Turn first, or add data to calls.
func TestPrefixOfASession(t *testing.T) {
	t.Parallel()
	for _, dialect := range []string{"OpenAI", "AzureOpenAI"} {
		t.Run(dialect, func(t *testing.T) {
			t.Parallel()
			url, received := strictServers[dialect].serve(t, dialect, false)
			f := conversation(t, serveTools(t, "").url, dialect)
			f["second.yaml"] = secondYAML
			f["third.yaml"] = strings.ReplaceAll(secondYAML, "second", "third")
			dir, data := f.written(t, url), t.TempDir()
			for _, name := range []string{"first", "second", "third"} {
				capstan(t, "run", "-f", dir, "--turn", name, "--data-dir", data).mustEnd(t, exit.OK)
			}
			requests := received.requests()
			if len(requests) != 6 {
				t.Fatalf("%d requests, want 2 of each Turn", len(requests))
			}
			for i := 2; i < len(requests); i += 2 {
				before, after := rawMessages(t, requests[i-1]), rawMessages(t, requests[i])
				before = slices.DeleteFunc(before, func(m string) bool { return strings.Contains(m, `"name":"context_pack"`) })
				if len(before) >= len(after) || !slices.Equal(before, after[:len(before)]) {
					t.Errorf("Turn %d begins with other messages than the Turn before: %s", i/2+1, cmp.Diff(before, after))
				}
			}
		})
	}
}
