package cli_test

import (
	"strings"
	"testing"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/cli/exit"
)

// memory has the rules of a model that answers the second question only if it has received its first answer.
const memory = `rules:
- {when: {contains: again, anyContains: "It is Monday."}, ` +
	`reply: {text: "Monday, as I said.", usage: {promptTokens: 200, completionTokens: 20}}}
- {when: {contains: again}, reply: {text: "I have no idea."}}
- {reply: {text: "It is Monday.", usage: {promptTokens: 100, completionTokens: 20}}}
`

const secondYAML = `apiVersion: capstan.dev/v1alpha1
kind: Turn
metadata: {name: second}
spec:
  agentRef: {name: support}
  sessionRef: {name: chat}
  message: Say it again.
`

const sessionYAML = `apiVersion: capstan.dev/v1alpha1
kind: Session
metadata: {name: chat}
spec: {subject: Order 1042}
`

// conversing returns two Turns of one Session.
func conversing(t *testing.T) files {
	t.Helper()
	f := complete().with(t, "turn.yaml", "  message:", "  sessionRef: {name: chat}\n  message:")
	f["second.yaml"] = secondYAML
	return f
}

func TestTurnsOfASessionSeeEarlierMessages(t *testing.T) {
	t.Parallel()
	for name, manifest := range map[string]string{"created by the run": "", "in the manifests": sessionYAML} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			model, url := fake(t, memory)
			f := conversing(t)
			if manifest != "" {
				f["session.yaml"] = manifest
			}
			dir, data := f.written(t, url), t.TempDir()
			first := capstan(t, "run", "-f", dir, "--turn", "first", "--data-dir", data, "-o", "json").mustEnd(t, exit.OK)
			second := capstan(t, "run", "-f", dir, "--turn", "second", "--data-dir", data, "-o", "json").mustEnd(t, exit.OK)
			turn := decoded(t, second.out)
			if turn.Status.Result.Text != "Monday, as I said." {
				t.Errorf("want an answer that uses the first Turn, have %q", turn.Status.Result.Text)
			}
			for n, text := range map[int64]string{1: first.out, 2: second.out} {
				if d := decoded(t, text).Status.Decision; d.SessionName != "chat" || d.TurnNumber != n {
					t.Errorf("want Turn %d of Session chat, have %+v", n, d)
				}
			}
			capstan(t, "run", "-f", dir, "--turn", "first", "--data-dir", data).mustEnd(t, exit.OK)
			if n := model.Stats().Requests; n != 2 {
				t.Errorf("want 2 requests: the first Turn does not run again after the second; have %d", n)
			}
		})
	}
}

// closingInSession returns two Turns of one Session whose Agent may close tickets with an approval.
func closingInSession(t *testing.T, tools *toolServer) files {
	t.Helper()
	f := withTools(t, tools.url, requiresApproval).with(t, "turn.yaml", "  message:", "  sessionRef: {name: chat}\n  message:")
	f["second.yaml"] = secondYAML
	return f
}

// TestTurnWaitsForEarlierTurnOfItsSession checks that a Turn does not begin while an earlier Turn of its Session waits,
// because its history would lack that Turn.
func TestTurnWaitsForEarlierTurnOfItsSession(t *testing.T) {
	t.Parallel()
	model, url := fake(t, closing)
	dir, data := closingInSession(t, serveTools(t, "")).written(t, url), t.TempDir()
	run := func(name string, flags ...string) output {
		return capstan(t, append([]string{"run", "-f", dir, "--turn", name, "--data-dir", data, "-o", "json"}, flags...)...)
	}
	run("first").mustEnd(t, exit.Parked)
	mustSay(t, run("second", "--approve=all").mustEnd(t, exit.Failed).err,
		`Turn default/second waits for Turn default/first of Session "chat", which has not ended: continue it`)
	if n := model.Stats().Requests; n != 1 {
		t.Errorf("want only the request of the first Turn, have %d", n)
	}
	run("first", "--approve=all").mustEnd(t, exit.OK)
	if d := decoded(t, run("second", "--approve=all").mustEnd(t, exit.OK).out).Status.Decision; d.TurnNumber != 2 {
		t.Errorf("want the second Turn after the first one, have %+v", d)
	}
}

// TestChangedTurnReleasesItsSession checks that a Turn that cannot continue, because its manifests have changed, does
// not block its Session after a Turn of the same name has ended or was cancelled.
func TestChangedTurnReleasesItsSession(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		state string
		code  int
		ended bool // whether the run ends the earlier Turn
	}{
		"ended":     {"Active", exit.OK, false},
		"cancelled": {"Cancelled", exit.Failed, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, url := fake(t, closing)
			f, data := closingInSession(t, serveTools(t, "")), t.TempDir()
			args := []string{"--data-dir", data, "-o", "json"}
			old := append([]string{"run", "-f", f.written(t, url), "--turn", "first", "--now", noon}, args...)
			capstan(t, old...).mustEnd(t, exit.Parked)
			f = f.with(t, "profile.yaml", "Be brief.", "Be long.").with(t, "turn.yaml", "  message:",
				"  desiredState: "+tc.state+"\n  message:")
			args = append([]string{"run", "-f", f.written(t, url), "--approve=all", "--now", "2026-04-09T13:00:00Z"}, args...)
			mustSay(t, capstan(t, append(args, "--turn", "second")...).mustEnd(t, exit.Failed).err, "waits for Turn default/first")
			changed := capstan(t, append(args, "--turn", "first")...).mustEnd(t, tc.code)
			if strings.Contains(changed.err, "it is cancelled, too") != tc.ended {
				t.Errorf("the earlier Turn was ended: want %t, have:\n%s", tc.ended, changed.err)
			}
			second := decoded(t, capstan(t, append(args, "--turn", "second")...).mustEnd(t, exit.OK).out)
			if d := second.Status.Decision; d.TurnNumber != 2 {
				t.Errorf("want Turn 2 of the Session, have %+v", d)
			}
			if tc.ended {
				mustSay(t, capstan(t, old...).err, "does not run again")
			}
		})
	}
}

// TestCancelledTurnReleasesItsEarlierSession checks that a cancellation ends a Turn that cannot continue also if a
// newer Turn of its name has ended, in another Session or at the same --now, and that the Session has its usage.
func TestCancelledTurnReleasesItsEarlierSession(t *testing.T) {
	t.Parallel()
	for name, change := range map[string][3]string{
		"in another Session": {"turn.yaml", "{name: chat}", "{name: other}"},
		"at the same time":   {"profile.yaml", "Be brief.", "Be long."},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, url := fake(t, closing)
			f, data := closingInSession(t, serveTools(t, "")), t.TempDir()
			run := func(f files, name string, code int) output {
				return capstan(t, "run", "-f", f.written(t, url), "--turn", name, "--now", noon, "--data-dir", data, "-o", "json",
					"--approve=all").mustEnd(t, code)
			}
			old := []string{"run", "-f", f.written(t, url), "--turn", "first", "--now", noon, "--data-dir", data, "-o", "json"}
			capstan(t, old...).mustEnd(t, exit.Parked)
			changed := f.with(t, change[0], change[1], change[2])
			run(changed, "first", exit.OK)
			mustSay(t, run(changed, "second", exit.Failed).err, "waits for Turn default/first")
			cancelled := changed.with(t, "turn.yaml", "  message:", "  desiredState: Cancelled\n  message:")
			mustSay(t, run(cancelled, "first", exit.OK).err, "it is cancelled, too")
			if again := run(cancelled, "first", exit.OK).err; strings.Contains(again, "it is cancelled, too") {
				t.Errorf("want the earlier Turn to end once, have:\n%s", again)
			}
			want := int64(2)
			if change[0] == "profile.yaml" { // the newer Turn is in the same Session
				want = 3
			}
			if d := decoded(t, run(changed, "second", exit.OK).out).Status.Decision; d.TurnNumber != want {
				t.Errorf("want Turn %d of the Session, have %+v", want, d)
			}
			mustSay(t, capstan(t, old...).mustEnd(t, exit.Failed).err, "the turn was cancelled after its manifests had changed")
		})
	}
}

// TestSelfCallIsNoTurnOfTheSession checks that the Turn of an Agent that calls itself does not count for the Session.
func TestSelfCallIsNoTurnOfTheSession(t *testing.T) {
	t.Parallel()
	_, url := fake(t, `rules:
- {when: {contains: Look closer}, reply: {text: I looked.}}
- {when: {toolMessages: 0, hasTools: true}, reply: {toolCalls: [{id: c1, name: support, arguments: '{"task": "Look closer."}'}]}}
- {reply: {text: Done.}}
`)
	f := conversing(t).with(t, "agent.yaml", "  limits:", "  tools:\n  - agentRef: {name: support}\n  limits:")
	dir, data := f.written(t, url), t.TempDir()
	for i, name := range []string{"first", "second"} {
		got := capstan(t, "run", "-f", dir, "--turn", name, "--data-dir", data, "-o", "json").mustEnd(t, exit.OK)
		if d := decoded(t, got.out).Status.Decision; d.TurnNumber != int64(i+1) {
			t.Errorf("want Turn %d of the Session, have %+v", i+1, d)
		}
	}
}

func TestSessionWithoutDataDirIsNotKept(t *testing.T) {
	t.Parallel()
	_, url := fake(t, memory)
	dir := conversing(t).written(t, url)
	got := capstan(t, "run", "-f", dir, "--turn", "second").mustEnd(t, exit.OK)
	if got.out != "I have no idea.\n" {
		t.Errorf("want no history, have %q", got.out)
	}
	mustSay(t, got.err, "note: Session default/chat has no history and is not kept: set --data-dir to keep it")
}

func TestBudgetOfSession(t *testing.T) {
	t.Parallel()
	model, url := fake(t, memory)
	f := conversing(t)
	f["session.yaml"] = sessionYAML + "  \n"
	f.with(t, "session.yaml", "{subject: Order 1042}", "{budget: {maxTurns: 1}}")
	dir, data := f.written(t, url), t.TempDir()
	capstan(t, "run", "-f", dir, "--turn", "first", "--data-dir", data).mustEnd(t, exit.OK)
	got := capstan(t, "run", "-f", dir, "--turn", "second", "--data-dir", data, "-o", "json").mustEnd(t, exit.Failed)
	mustSay(t, got.err, `Turn default/second: SessionClosed: the budget of Session "chat" is used up: 1 of 1 turns (spec.budget.maxTurns)`)
	if turn := decoded(t, got.out); turn.Status.StopReason != v1alpha1.StopSessionClosed {
		t.Errorf("want the Turn ended as in a cluster, have %+v", turn.Status)
	}
	capstan(t, "run", "-f", dir, "--turn", "first", "--data-dir", data).mustEnd(t, exit.OK) // the Turn is in the Session already
	f.with(t, "session.yaml", "maxTurns: 1", "maxTurns: 2")
	got = capstan(t, "run", "-f", f.written(t, url), "--turn", "second", "--data-dir", data).mustEnd(t, exit.OK)
	if got.out != "Monday, as I said.\n" {
		t.Errorf("want the Turn to run after the budget of the Session was raised, have %q", got.out)
	}
	if n := model.Stats().Requests; n != 2 {
		t.Errorf("want a request for each Turn, have %d", n)
	}
}

func TestOtherSubjectMakesAnotherTurn(t *testing.T) {
	t.Parallel()
	model, url := fake(t, memory)
	data := t.TempDir()
	for _, subject := range []string{"Order 1042", "Order 1042", "Order 1043"} {
		f := conversing(t)
		f["session.yaml"] = strings.Replace(sessionYAML, "Order 1042", subject, 1)
		capstan(t, "run", "-f", f.written(t, url), "--turn", "first", "--data-dir", data).mustEnd(t, exit.OK)
	}
	if n := model.Stats().Requests; n != 2 {
		t.Errorf("want one request for each subject, because the prompt contains it; have %d", n)
	}
}

func TestRenderOfATurnWithASession(t *testing.T) {
	t.Parallel()
	f := conversing(t)
	f["session.yaml"] = sessionYAML
	dir := f.written(t, nowhere)
	got := capstan(t, "render", "-f", dir, "--turn", "second").mustEnd(t, exit.OK)
	mustSay(t, got.out, "Order 1042")
	mustSay(t, got.err, "note: the earlier messages of Session default/chat are not shown; a run puts them before the message")

	changed := strings.Replace(sessionYAML, "1042", "1043", 1)
	diff := call{stdin: changed}.run(t.Context(), "render", "-f", dir, "--turn", "second", "--diff", "-").mustEnd(t, exit.Differs)
	mustSay(t, diff.out, "--- standard input: Session default/chat", "-", "Order 1043", "Order 1042")

	got = capstan(t, "render", "-f", complete().written(t, nowhere)).mustEnd(t, exit.OK)
	if got.err != "" {
		t.Errorf("want no mention of Sessions without one, have %q", got.err)
	}
}

func TestSessionIsValidated(t *testing.T) {
	t.Parallel()
	f := conversing(t)
	f["session.yaml"] = strings.Replace(sessionYAML, "{subject: Order 1042}", `{budget: {maxCost: "free"}}`, 1)
	got := capstan(t, "run", "-f", f.written(t, nowhere), "--turn", "first").mustEnd(t, exit.Usage)
	mustSay(t, got.err, "Session default/chat: spec.budget.maxCost", "must be a decimal above 0")
}
