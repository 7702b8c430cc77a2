package cli_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/cli/exit"
	"github.com/capstan-dev/capstan/test/fakemodel/server"
)

// testTimeout limits the wait for a condition.
const testTimeout = time.Minute

// runInterrupted runs a command line, and interrupts it while a request to the model is in flight.
func runInterrupted(t *testing.T, model *server.Server, args ...string) output {
	t.Helper()
	return runInterruptedWhen(t, model, func(s server.Stats) bool { return s.InFlight == 1 }, args...)
}

// runInterruptedWhen runs a command line and interrupts it when the requests to the model meet a condition.
func runInterruptedWhen(t *testing.T, model *server.Server, ready func(server.Stats) bool, args ...string) output {
	t.Helper()
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	ended := make(chan output, 1)
	go func() { ended <- call{}.run(ctx, args...) }()
	patience, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	if err := model.Wait(patience, ready); err != nil {
		t.Fatal(err)
	}
	interrupt()
	select {
	case got := <-ended:
		return got
	case <-patience.Done():
		t.Fatal("want the run to end when it is interrupted")
		return output{}
	}
}

func decoded(t *testing.T, text string) v1alpha1.Turn {
	t.Helper()
	var turn v1alpha1.Turn
	if err := json.Unmarshal([]byte(text), &turn); err != nil {
		t.Fatalf("want a Turn, have %v in:\n%s", err, text)
	}
	return turn
}

func TestFinishedTurnDoesNotRunAgain(t *testing.T) {
	t.Parallel()
	model, url := fake(t, answers)
	dir, data := complete().written(t, url), t.TempDir()
	args := []string{"run", "-f", dir, "--now", noon, "--data-dir", data, "-o", "json"}
	first := capstan(t, args...).mustEnd(t, exit.OK)
	again := capstan(t, args...).mustEnd(t, exit.OK)
	if diff := cmp.Diff(first.out, again.out); diff != "" {
		t.Errorf("want the same finished Turn; -first +again:\n%s", diff)
	}
	mustSay(t, again.err, "note: the Turn ended at "+noon+" and does not run again", data)
	if n := model.Stats().Requests; n != 1 {
		t.Errorf("want one request for two runs, have %d", n)
	}
	text := capstan(t, "run", "-f", dir, "--now", noon, "--data-dir", data).mustEnd(t, exit.OK)
	if text.out != "All is well.\n" {
		t.Errorf("want the answer from the journal, have %q", text.out)
	}
}

func TestChangedTurnRunsAgain(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		reason         string
		file, old, new string
		want           int64
	}{
		"message":      {"another question", "turn.yaml", "What is up?", "What else?", 2},
		"profile":      {"another prompt", "profile.yaml", "Be brief.", "Be long.", 2},
		"agent":        {"another limit", "agent.yaml", "timeoutSeconds: 30", "timeoutSeconds: 20", 2},
		"provider":     {"another price", "provider.yaml", `outputPerMillion: "2"`, `outputPerMillion: "3"`, 2},
		"time to live": {"it has no effect", "turn.yaml", "message:", "ttlSecondsAfterFinished: 5\n  message:", 1},
		"rotated key":  {"it does not change the answer", "secret.yaml", key, "another", 1},
		"nothing":      {"comments do not count", "turn.yaml", "kind: Turn", "kind: Turn # mine", 1},
		"ConfigMap":    {"another text in the prompt", "notes.yaml", "The shop is closed.", "The shop is open.", 2},
		"other key":    {"nothing refers to it", "notes.yaml", "Pay back within a week.", "Pay back.", 1},
		"position":     {"the position in a file does not count", "agent.yaml", "kind: Agent", "kind: Agent\n", 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			model, url := fake(t, answers)
			data := t.TempDir()
			capstan(t, "run", "-f", withNotes(t).written(t, url), "--data-dir", data).mustEnd(t, exit.OK)
			changed := withNotes(t).with(t, tc.file, tc.old, tc.new).written(t, url)
			capstan(t, "run", "-f", changed, "--data-dir", data).mustEnd(t, exit.OK)
			if n := model.Stats().Requests; n != tc.want {
				t.Errorf("%s: want %d requests for two runs, have %d", tc.reason, tc.want, n)
			}
		})
	}
}

// TestTurnWithAChangedProviderOfVectorsOrMemoriesRunsAgain checks that the ModelProviders of all models of an Agent are
// inputs of the Turn.
func TestTurnWithAChangedProviderOfVectorsOrMemoriesRunsAgain(t *testing.T) {
	t.Parallel()
	all := func(t *testing.T) files {
		t.Helper()
		f := complete().with(t, "agent.yaml", "spec:\n", "spec:\n  embeddings: {providerRef: {name: vectors}, model: e}\n"+
			"  memory: {learning: {scopes: [User], models: [{providerRef: {name: learner}, model: small}]}}\n")
		f["vectors.yaml"] = strings.Replace(providerYAML, "{name: demo}", "{name: vectors}", 1)
		f["learner.yaml"] = strings.Replace(providerYAML, "{name: demo}", "{name: learner}", 1)
		return f
	}
	for name, want := range map[string]bool{"vectors.yaml": false, "learner.yaml": false, "": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, url := fake(t, answers)
			f, data := all(t), t.TempDir()
			capstan(t, "run", "-f", f.written(t, url), "--data-dir", data).mustEnd(t, exit.OK)
			if name != "" {
				f = f.with(t, name, `outputPerMillion: "2"`, `outputPerMillion: "3"`)
			}
			again := capstan(t, "run", "-f", f.written(t, url), "--data-dir", data).mustEnd(t, exit.OK)
			if got := strings.Contains(again.err, "does not run again"); got != want {
				t.Errorf("the Turn is not run again: %t, want %t; the output is %q", got, want, again.err)
			}
		})
	}
}

// withNotes returns the complete manifests with a contribution from a ConfigMap.
func withNotes(t *testing.T) files {
	t.Helper()
	f := complete().with(t, "turn.yaml", "  context:\n",
		"  context:\n    contributions: [{name: notes, configMapKeyRef: {name: notes, key: today}}]\n")
	f["notes.yaml"] = notesYAML
	return f
}

func TestTurnWithOtherManagerSkillsRunsAgain(t *testing.T) {
	t.Parallel()
	model, url := fake(t, answers)
	dir, data := complete().written(t, url), t.TempDir()
	for _, content := range []string{"Call.", "Call.", "Write."} {
		skills := skillFile(t, "- {key: escalate, content: "+content+"}\n")
		capstan(t, "run", "-f", dir, "--data-dir", data, "--skills-file", skills).mustEnd(t, exit.OK)
	}
	if n := model.Stats().Requests; n != 2 {
		t.Errorf("want a request for each content of the skill, have %d", n)
	}
}

func TestInterruptedTurnContinuesFromJournal(t *testing.T) {
	t.Parallel()
	model, url := fake(t, "rules: [{times: 1, fault: {hang: AfterHeaders}}, {reply: {text: Back.}}]")
	dir, data := complete().written(t, url), t.TempDir()
	args := []string{"run", "-f", dir, "--data-dir", data, "-o", "json"}
	got := runInterrupted(t, model, args...).mustEnd(t, exit.Interrupted)
	mustSay(t, got.err, "Turn default/first: interrupted before it ended; run the same command again to continue")
	if got.out != "" {
		t.Errorf("want no output of a Turn that has not ended, have:\n%s", got.out)
	}
	mustSay(t, capstan(t, "undo", "first", "--data-dir", data).mustEnd(t, exit.Failed).err,
		"the Turn default/first has not ended: wait for its end, or continue it with the same capstan run; "+
			"with desiredState Cancelled, that run ends it")
	again := capstan(t, "run", "-f", dir, "--data-dir", data).mustEnd(t, exit.OK)
	mustSay(t, again.out, "Back.")
	mustSay(t, again.err, "The Turn continued from its journal.")
	turn := decoded(t, capstan(t, args...).mustEnd(t, exit.OK).out)
	if turn.Status.Result.Text != "Back." || turn.Epoch() != 2 || turn.Status.Steps.Resumes != 1 {
		t.Errorf("want the answer of a second binding, have %+v of %+v", turn.Status.Result, turn.Status.Executor)
	}
}

// withState replaces the Turn of a directory of manifests by the same Turn with a desired state, and removes the
// Secret.
func withState(t *testing.T, dir, state string) {
	t.Helper()
	text := strings.Replace(turnYAML, "  message:", "  desiredState: "+state+"\n  message:", 1)
	if err := os.WriteFile(filepath.Join(dir, "turn.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, "secret.yaml")); err != nil {
		t.Fatal(err)
	}
}

// TestCancelledTurnEndsFromItsJournal checks that a Turn that has begun ends with its usage and its calls when it is
// cancelled, without another request, and that this end is final.
func TestCancelledTurnEndsFromItsJournal(t *testing.T) {
	t.Parallel()
	model, url := fake(t, closing)
	tools := serveTools(t, "")
	f := withTools(t, tools.url, requiresApproval)
	dir, data := f.written(t, url), t.TempDir()
	args := []string{"run", "-f", dir, "--data-dir", data, "-o", "json"}
	capstan(t, args...).mustEnd(t, exit.Parked)
	withState(t, dir, "Suspended")
	mustSay(t, capstan(t, args...).mustEnd(t, exit.Failed).err, "Suspended: the turn is suspended")
	for name, text := range f { // to set the Turn to Active again
		if err := os.WriteFile(filepath.Join(dir, name), []byte(strings.ReplaceAll(text, "BASEURL", url)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	capstan(t, args...).mustEnd(t, exit.Parked)

	withState(t, dir, "Cancelled")
	for range 2 {
		got := capstan(t, args...).mustEnd(t, exit.Failed)
		mustSay(t, got.err, "Turn default/first: Cancelled: the turn was cancelled\n")
		turn := decoded(t, got.out)
		if used := turn.Status.Usage; used == nil || used.TotalTokens == 0 || len(turn.Status.ToolCalls) != 1 {
			t.Errorf("want the usage and the call of the Turn, have %+v and %+v", used, turn.Status.ToolCalls)
		}
	}
	mustSay(t, capstan(t, "usage", "--data-dir", data).mustEnd(t, exit.OK).out, "support   1 ")
	mustSay(t, capstan(t, "logs", "-f", "first", "--data-dir", data).mustEnd(t, exit.OK).out, "the turn was cancelled")
	mustSay(t, capstan(t, "undo", "first", "--data-dir", data).mustEnd(t, exit.OK).err, "has no call that changed something")

	again := capstan(t, "run", "-f", f.written(t, url), "--data-dir", data, "--approve=all").mustEnd(t, exit.Failed)
	mustSay(t, again.err, "does not run again")
	if n := model.Stats().Requests; n != 1 || tools.closedTickets() != "" {
		t.Errorf("want one request and no call, have %d and %q", n, tools.closedTickets())
	}
}

// TestCancelledTurnEndsItsSubAgents checks that the Turns of sub-agents end with their caller.
func TestCancelledTurnEndsItsSubAgents(t *testing.T) {
	t.Parallel()
	_, url := fake(t, delegated)
	dir, data := delegating(t, serveTools(t, "").url).written(t, url), t.TempDir()
	args := []string{"run", "-f", dir, "--data-dir", data, "-o", "json"}
	child := decoded(t, capstan(t, args...).mustEnd(t, exit.Parked).out).Status.AwaitedTurns[0]
	withState(t, dir, "Cancelled")
	turn := decoded(t, capstan(t, args...).mustEnd(t, exit.Failed).out)
	if used := turn.Status.SubAgentUsage; used == nil || used.TotalTokens == 0 {
		t.Errorf("want the usage of the sub-agent, have %+v", used)
	}
	mustSay(t, capstan(t, "logs", "-f", child, "--data-dir", data).mustEnd(t, exit.OK).out, "the turn that called this one ended first")
}

// TestCancellationOfACompletedTurn checks that the result of a Turn that has ended stays.
func TestCancellationOfACompletedTurn(t *testing.T) {
	t.Parallel()
	for _, state := range []string{"Cancelled", "Suspended"} {
		_, url := fake(t, answers)
		dir, data := complete().written(t, url), t.TempDir()
		args := []string{"run", "-f", dir, "--data-dir", data}
		capstan(t, args...).mustEnd(t, exit.OK)
		withState(t, dir, state)
		if got := capstan(t, args...).mustEnd(t, exit.OK); got.out != "All is well.\n" {
			t.Errorf("%s: want the answer of the Turn, have %q", state, got.out)
		}
	}
}

// TestRunningTurnIsNotStartedTwice checks that a second run sends no request to the model, and that the first run keeps
// the Turn.
func TestRunningTurnIsNotStartedTwice(t *testing.T) {
	t.Parallel()
	model, url := fake(t, "rules: [{times: 1, fault: {hang: AfterHeaders}}, {reply: {text: Back.}}]")
	dir, data := complete().written(t, url), t.TempDir()
	args := []string{"run", "-f", dir, "--data-dir", data}
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	first := make(chan output, 1)
	go func() { first <- call{}.run(ctx, args...) }()
	patience, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	if err := model.Wait(patience, func(s server.Stats) bool { return s.InFlight == 1 }); err != nil {
		t.Fatal(err)
	}
	second := capstan(t, args...).mustEnd(t, exit.Failed)
	mustSay(t, second.err, "another process uses it (process ",
		"another capstan uses the same --data-dir: wait for it, or use another directory")
	capstan(t, "logs", "first", "--data-dir", data).mustEnd(t, exit.OK) // a journal in use can be read
	if s := model.Stats(); s.Requests != 1 || s.InFlight != 1 {
		t.Errorf("want only the request of the first run, have %+v", s)
	}
	interrupt()
	got := <-first
	got.mustEnd(t, exit.Interrupted)
	if got := capstan(t, args...).mustEnd(t, exit.OK); got.out != "Back.\n" {
		t.Errorf("want the Turn to continue after the first run was interrupted, have %q", got.out)
	}
}

func TestInterruptedTurnWithoutJournalIsCancelled(t *testing.T) {
	t.Parallel()
	for _, format := range []string{"text", "json"} {
		model, url := fake(t, "rules: [{fault: {hang: BeforeHeaders}}]")
		got := runInterrupted(t, model, "run", "-f", complete().written(t, url), "-o", format).mustEnd(t, exit.Interrupted)
		mustSay(t, got.err, "Turn default/first: Cancelled: interrupted: the turn was cancelled")
		if format == "json" {
			if turn := decoded(t, got.out); turn.StateReason() != v1alpha1.TurnReasonCancelled {
				t.Errorf("want a cancelled Turn, have %+v", turn.Status)
			}
		}
	}
}

// TestInterruptedSubAgentCounts checks that the usage of a sub-agent that an interruption cancelled is in the status of
// its caller, because nothing else shows it.
func TestInterruptedSubAgentCounts(t *testing.T) {
	t.Parallel()
	model, url := fake(t, `rules:
- {when: {systemContains: Close tickets, toolMessages: 0, hasTools: true}, `+
		`reply: {toolCalls: [{id: c1, name: get_ticket, arguments: '{"id": "1042"}'}]}}
- {when: {systemContains: Close tickets}, fault: {hang: BeforeHeaders}}
- {when: {toolMessages: 0, hasTools: true}, reply: {toolCalls: [{id: call_1, name: closer, arguments: '{"task": "Read 1042."}'}]}}
`)
	dir := delegating(t, serveTools(t, "").url).written(t, url)
	got := runInterruptedWhen(t, model, func(s server.Stats) bool { return s.Requests == 3 && s.InFlight == 1 },
		"run", "-f", dir, "-o", "json").mustEnd(t, exit.Interrupted)
	turn := decoded(t, got.out)
	if used := turn.Status.SubAgentUsage; turn.StateReason() != v1alpha1.TurnReasonCancelled || used == nil || used.TotalTokens == 0 ||
		len(turn.Status.ToolCalls) != 1 || !strings.HasPrefix(turn.Status.ToolCalls[0].Turn, "first-") {
		t.Errorf("want a cancelled Turn with the usage of its sub-agent, have %+v", turn.Status)
	}
}

func TestAnInterruptionBeforeTheRun(t *testing.T) {
	t.Parallel()
	ctx, interrupt := context.WithCancel(t.Context())
	interrupt()
	got := call{}.run(ctx, "run", "-f", complete().written(t, nowhere)).mustEnd(t, exit.Interrupted)
	mustSay(t, got.err, "Turn default/first: Cancelled: interrupted: the turn was cancelled")
}

func TestTemporaryJournalIsRemoved(t *testing.T) {
	temporary := t.TempDir()
	t.Setenv("TMPDIR", temporary)
	dir := filepath.Join(t.TempDir(), "manifests")
	_, url := fake(t, answers)
	if err := os.Rename(complete().written(t, url), dir); err != nil {
		t.Fatal(err)
	}
	killed, long := filepath.Join(temporary, "capstan-run-1"), time.Now().Add(-time.Hour) // of a run that was killed
	if err := errors.Join(os.Mkdir(killed, 0o700), os.WriteFile(filepath.Join(killed, "owner.lock"), nil, 0o600),
		os.Chtimes(killed, long, long)); err != nil {
		t.Fatal(err)
	}
	capstan(t, "run", "-f", dir).mustEnd(t, exit.OK)
	left, err := filepath.Glob(filepath.Join(temporary, "capstan-run-*"))
	if err != nil || len(left) != 0 {
		t.Errorf("want no temporary files, have %v (%v)", left, err)
	}
}

func TestKeyIsNotInJournal(t *testing.T) {
	t.Parallel()
	_, url := fake(t, "rules: [{fault: {echoAuthorization: true}}]")
	data := t.TempDir()
	capstan(t, "run", "-f", complete().written(t, url), "--data-dir", data).mustEnd(t, exit.Failed)
	names, err := filepath.Glob(filepath.Join(data, "*"))
	if err != nil || len(names) == 0 {
		t.Fatalf("want a journal in the directory, have %v (%v)", names, err)
	}
	for _, name := range names {
		content, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(content), key) {
			t.Errorf("want no key in %s", name)
		}
	}
}

func TestUnusableDataDir(t *testing.T) {
	t.Parallel()
	dir := complete().written(t, nowhere)
	got := capstan(t, "run", "-f", dir, "--data-dir", filepath.Join(dir, "turn.yaml")).mustEnd(t, exit.Failed)
	mustSay(t, got.err, "--data-dir: "+filepath.Join(dir, "turn.yaml")+" is not a directory\n")
}
