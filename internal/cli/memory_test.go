package cli_test

import (
	"strings"
	"testing"

	"github.com/capstan-dev/capstan/internal/cli/exit"
)

// learningModel has the rules of a model that extracts a memory from a message, and answers from its memories.
const learningModel = `rules:
- {when: {systemContains: You read a message, contains: HP}, ` +
	`reply: {text: '{"memories": [{"content": "Has an HP 4000.", "scope": "User", "confidence": 90}]}'}}
- {when: {systemContains: You read a message}, fault: {status: 500}}
- {when: {systemContains: You read one turn}, reply: {text: '{"memories": [{"content": "x", "scope": "User", "confidence": 90}]}'}}
- {when: {anyContains: "[User] Has an HP 4000."}, reply: {text: "You have an HP 4000."}}
- {reply: {text: "I do not know you."}}
`

func TestRunLearnsAndMemoryShowsIt(t *testing.T) {
	t.Parallel()
	_, url := fake(t, learningModel)
	f := conversing(t).with(t, "agent.yaml", "spec:\n", "spec:\n  memory: {learning: {scopes: [Session, User]}}\n")
	f = f.with(t, "turn.yaml", "What is up?", "My printer is an HP.")
	dir, data := f.written(t, url), t.TempDir()
	run := func(turn string) output {
		return capstan(t, "run", "-f", dir, "--turn", turn, "--data-dir", data).mustEnd(t, exit.OK)
	}
	if first := run("first"); !strings.Contains(first.out, "I do not know you.") || !strings.Contains(first.err, "learned memories: 1;") {
		t.Errorf("the first Turn prints %q and %q, want its answer and that a memory was learned", first.out, first.err)
	}
	if second := run("second"); !strings.Contains(second.out, "You have an HP 4000.") ||
		!strings.Contains(second.err, "nothing was learned from the Turn") {
		t.Errorf("the second Turn prints %q and %q, want an answer from memory although the extraction fails", second.out, second.err)
	}
	list := capstan(t, "memory", "list", "--data-dir", data).mustEnd(t, exit.OK).out
	lines := strings.Split(strings.TrimSpace(list), "\n")
	if len(lines) != 2 || !strings.HasPrefix(lines[0], "LEARNED") || !strings.Contains(lines[1], "Has an HP 4000.") {
		t.Fatalf("list prints %q, want one memory", list)
	}
	id := strings.Fields(lines[1])[1]
	for field, want := range map[string]string{"turn": "first", "scope": "User", "confidence": "90 %"} {
		if got := capstan(t, "memory", "show", id, "--data-dir", data).mustEnd(t, exit.OK).out; !strings.Contains(got, want) {
			t.Errorf("show prints %q, want the %s %q", got, field, want)
		}
	}
	asJSON := capstan(t, "memory", "list", "--data-dir", data, "-o", "json", "--scope", "User", "--turn", "first").mustEnd(t, exit.OK).out
	if !strings.HasPrefix(asJSON, `{"id":"`+id+`","namespace":"`) || strings.Count(asJSON, "\n") != 1 {
		t.Errorf("list -o json prints %q, want one line for the memory", asJSON)
	}
	for _, more := range [][]string{nil, {"-n", "default"}, {"-A"}} {
		args := append([]string{"memory", "list", "--data-dir", data, "--turn", "default/first"}, more...)
		mustSay(t, capstan(t, args...).mustEnd(t, exit.OK).out, id)
	}
	for _, turn := range []string{"b/first", "default/second"} {
		args := []string{"memory", "list", "--data-dir", data, "--turn", turn}
		if got := capstan(t, args...).mustEnd(t, exit.OK).out; strings.Contains(got, id) {
			t.Errorf("list --turn %s prints %q, want only memories of this Turn", turn, got)
		}
	}
	capstan(t, "memory", "list", "--data-dir", data, "-n", "b", "--turn", "default/first").mustEnd(t, exit.Usage)
	capstan(t, "memory", "delete", "--data-dir", data).mustEnd(t, exit.Usage)
	capstan(t, "memory", "list", "--data-dir", data, "--scope", "Agent").mustEnd(t, exit.Usage)
	capstan(t, "memory", "list", "--data-dir", data+"/absent").mustEnd(t, exit.Failed)
	if got := capstan(t, "memory", "delete", "--turn", "none", "--data-dir", data, "-o", "json").mustEnd(t, exit.OK).out; got !=
		`{"deleted":0}`+"\n" {
		t.Errorf("the output is %q, want the number of memories as JSON", got)
	}
	if got := capstan(t, "memory", "delete", "--turn", "b/first", "--data-dir", data).mustEnd(t, exit.OK).out; got !=
		"deleted memories: 0\n" {
		t.Errorf("the output is %q, want that no memory of another namespace was deleted", got)
	}
	if got := capstan(t, "memory", "delete", id, "--data-dir", data).mustEnd(t, exit.OK).out; got != "deleted memories: 1\n" {
		t.Errorf("delete prints %q", got)
	}
	capstan(t, "memory", "delete", id, "--data-dir", data).mustEnd(t, exit.Failed)
	capstan(t, "memory", "show", id, "--data-dir", data).mustEnd(t, exit.Failed)
}

// TestExpiredMemoriesOfADirectory checks that memory list marks expired memories, and that a run deletes them unless
// its --now is before their expiry.
func TestExpiredMemoriesOfADirectory(t *testing.T) {
	t.Parallel()
	_, url := fake(t, learningModel)
	f := conversing(t).with(t, "agent.yaml", "spec:\n", "spec:\n  memory: {learning: {scopes: [User], expiryDays: 1}}\n")
	dir := f.with(t, "turn.yaml", "What is up?", "My printer is an HP.").written(t, url)
	expired, valid := t.TempDir(), t.TempDir()
	const past, future = "2026-01-01T12:00:00Z", "2030-01-01T12:00:00Z" // the tests' clock begins on 2026-04-09
	list := func(data string) string {
		t.Helper()
		return capstan(t, "memory", "list", "--data-dir", data).mustEnd(t, exit.OK).out
	}
	mustSay(t, capstan(t, "run", "-f", dir, "--turn", "first", "--data-dir", expired, "--now", past).mustEnd(t, exit.OK).err,
		"learned memories: 1;")
	mustSay(t, list(expired), " 2026-01-02 (expired) ", "Has an HP 4000.")
	mustSay(t, capstan(t, "memory", "list", "--data-dir", expired, "-o", "json").mustEnd(t, exit.OK).out,
		`"expires":"2026-01-02T12:00:00Z"`)
	capstan(t, "run", "-f", dir, "--turn", "first", "--data-dir", expired, "--now", past).mustEnd(t, exit.OK)
	mustSay(t, list(expired), "Has an HP 4000.")
	capstan(t, "run", "-f", dir, "--turn", "second", "--data-dir", expired).mustEnd(t, exit.OK)
	if got := list(expired); strings.Contains(got, "HP") {
		t.Errorf("after a run, the list is %q, want no expired memory", got)
	}
	capstan(t, "run", "-f", dir, "--turn", "first", "--data-dir", valid).mustEnd(t, exit.OK)
	capstan(t, "run", "-f", dir, "--turn", "second", "--data-dir", valid, "--now", future).mustEnd(t, exit.OK)
	if got := list(valid); !strings.Contains(got, "Has an HP 4000.") || strings.Contains(got, "(expired)") {
		t.Errorf("after a run with --now in the future, the list is %q, want the memory, which has not expired", got)
	}
}

// TestRenderOfAnAgentThatLearns checks that render says that a prompt may get learned memories.
func TestRenderOfAnAgentThatLearns(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		reason, memory, turn string
		noted                bool
	}{
		"user":             {"each Turn has a user", "{learning: {scopes: [User]}}", "alone", true},
		"Session":          {"the Turn has a Session", "{learning: {scopes: [Session]}}", "first", true},
		"without Session":  {"the Turn has no Session", "{learning: {scopes: [Session]}}", "alone", false},
		"without memories": {"the prompt has no memories", "{maxItems: 0, learning: {scopes: [User]}}", "first", false},
		"no learning":      {"nothing is learned", "{maxItems: 3}", "first", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := conversing(t).with(t, "agent.yaml", "spec:\n", "spec:\n  memory: "+tc.memory+"\n")
			f["alone.yaml"] = strings.Replace(complete()["turn.yaml"], "name: first", "name: alone", 1)
			got := capstan(t, "render", "-f", f.written(t, nowhere), "--turn", tc.turn).mustEnd(t, exit.OK)
			note := "note: the memories that were learned from earlier Turns are not shown; a run adds those that fit the message\n"
			if strings.Contains(got.err, note) != tc.noted {
				t.Errorf("%s: standard error is %q, want the note: %t", tc.reason, got.err, tc.noted)
			}
		})
	}
}

func TestLearningWithAnUnsupportedParameter(t *testing.T) {
	t.Parallel()
	_, url := fake(t, learningModel)
	f := conversing(t).with(t, "agent.yaml", "spec:\n", "spec:\n  memory: {learning: {scopes: [Session], models: "+
		"[{providerRef: {name: demo}, model: small, parameters: {seed: 7}}]}}\n")
	f = f.with(t, "provider.yaml", "  type: OpenAI", "  type: OpenAI\n  dialect: DeepSeek")
	got := capstan(t, "run", "-f", f.written(t, url), "--turn", "first", "--data-dir", t.TempDir()).mustEnd(t, exit.OK)
	mustSay(t, got.err, "nothing was learned from the Turn: Agent spec.memory.learning.models[0].parameters.seed: "+
		`ModelProvider "demo": the service of this dialect has no seed: remove it`)
}

// TestLearningSendsNoStopSequences checks that the stop sequences of a model for learning are neither sent nor checked.
func TestLearningSendsNoStopSequences(t *testing.T) {
	t.Parallel()
	_, url := fake(t, learningModel)
	f := conversing(t).with(t, "agent.yaml", "spec:\n", "spec:\n  memory: {learning: {scopes: [User], models: "+
		"[{providerRef: {name: demo}, model: o3, parameters: {stopSequences: [END]}}]}}\n")
	f = f.with(t, "provider.yaml", "  type: OpenAI", "  type: OpenAI\n  dialect: OpenAI") // o3 refuses stop sequences
	f = f.with(t, "turn.yaml", "What is up?", "My printer is an HP.")
	got := capstan(t, "run", "-f", f.written(t, url), "--turn", "first", "--data-dir", t.TempDir()).mustEnd(t, exit.OK)
	mustSay(t, got.err, "learned memories: 1;")
}
