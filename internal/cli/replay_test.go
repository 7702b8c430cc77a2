package cli_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/capstan-dev/capstan/internal/cli/evaluation"
	"github.com/capstan-dev/capstan/internal/cli/exit"
)

// secondProfile is another PromptProfile, which changes one line of the prompt.
const secondProfile = `apiVersion: capstan.dev/v1alpha1
kind: PromptProfile
metadata: {name: second}
spec:
  id: helpdesk.support
  version: 2.0.0
  variables:
  - {name: product, default: the helpdesk, trust: Trusted}
  identity: {assistantName: Ada}
  instructions: Speak about {{ .product }} as version two.
  overrides: {behavior: Be brief.}
`

// twoPrompts has the rules of a model that closes a ticket. With the second profile, the model writes the same
// arguments in another order, and then asks for a ticket that no recorded Turn has read.
const twoPrompts = `rules:
- when: {toolMessages: 0, hasTools: true, systemContains: "version two"}
  reply: {toolCalls: [{id: c9, name: close_ticket, arguments: '{"note": "a\nb",  "id": "1042"}'}]}
- when: {toolMessages: 1, hasTools: true, systemContains: "version two"}
  reply: {toolCalls: [{id: c10, name: get_ticket, arguments: '{"id": "7"}'}]}
- when: {systemContains: "version two", anyContains: "this is a replay"}
  reply:
    text: 'Two. {{ range .Messages }}{{ if contains .Content "Ticket 1042 is closed." }}Closed.{{ end }}{{ end }}'
- when: {toolMessages: 0, hasTools: true}
  reply: {toolCalls: [{id: call_1, name: close_ticket, arguments: '{"id": "1042", "note": "a\nb"}'}]}
- reply: {text: "One."}
`

// secondDir returns the directory of the second profile.
func secondDir(t *testing.T) string {
	t.Helper()
	return files{"profile.yaml": secondProfile}.written(t, nowhere)
}

type replayed struct {
	Turn               string
	Recorded, Replayed struct {
		PromptProfile, Version, Model, End, Answer string
		Cost                                       *struct{ Amount, Currency string }
		Usage                                      struct{ InputTokens int }
		ToolCalls                                  int
	}
	Prompt struct {
		Differs  bool
		Messages []struct{ Name, Diff string }
	}
	AnswerDiff string
	Calls      *struct {
		Recorded, NotMade int
		Unanswered        []struct{ Name, Arguments string }
	}
}

func replayOf(t *testing.T, text string) (r replayed) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return r
}

// TestReplay replays a Turn that has closed a ticket. The call is answered from the journal, and the ticket is not
// closed again. A call without a recorded result is not made, and its result says that this is a replay.
func TestReplay(t *testing.T) {
	t.Parallel()
	_, url := fake(t, twoPrompts)
	tools := serveTools(t, "")
	dir, data := withTools(t, tools.url, requiresApproval).written(t, url), t.TempDir()
	capstan(t, "run", "-f", dir, "--data-dir", data, "--approve", "all").mustEnd(t, exit.OK)
	args := []string{"replay", "first", "--data-dir", data, "-f", secondDir(t), "--manifests", dir}

	got := capstan(t, args...).mustEnd(t, exit.OK)
	mustSay(t, got.out, "Turn default/first: the prompts differ\n--- recorded at 2026-04-09T",
		": PromptProfile support 1.0.0, model demo:small\n",
		"+++ replayed: PromptProfile second 2.0.0, model demo:small\n", "-Answer questions about the helpdesk.\n",
		"+Speak about the helpdesk as version two.\n", "\nAnswer\n@@ -1 +1 @@\n-One.\n+Two. Closed.\n",
		"        RECORDED", "calls   1 ", "1 from the journal, 1 not made\n",
		"Calls that were not made, because the recorded Turn has no result for them: 1\n* get_ticket {\"id\": \"7\"}\n")
	r := replayOf(t, capstan(t, append(args, "-o", "json")...).mustEnd(t, exit.OK).out)
	if !r.Prompt.Differs || r.Recorded.Answer != "One." || r.Replayed.Answer != "Two. Closed." || r.Replayed.End != "Completed" ||
		r.Replayed.Cost == nil || r.Replayed.Usage.InputTokens == 0 || r.Calls.Recorded != 1 || r.Calls.NotMade != 1 ||
		r.Replayed.PromptProfile != "second" || r.Recorded.ToolCalls != 1 {
		t.Errorf("want both answers, one call from the journal and one call not made, have %+v", r)
	}
	if tools.closedTickets() != "1042" {
		t.Errorf("closed tickets %q, want only the ticket of the run", tools.closedTickets())
	}
	same := capstan(t, "replay", "first", "--data-dir", data, "-f", dir).mustEnd(t, exit.OK)
	mustSay(t, same.out, "Turn default/first: the prompts are the same: promptHash ", "\nThe answers are the same\n",
		"1 from the journal\n")
}

// TestReplayPromptOnly checks that --prompt-only needs only the changed profile, and asks no model.
func TestReplayPromptOnly(t *testing.T) {
	t.Parallel()
	model, url := fake(t, skilled)
	dir, data := complete().written(t, url), t.TempDir()
	capstan(t, "run", "-f", dir, "--data-dir", data).mustEnd(t, exit.OK)
	before := model.Stats().Requests
	got := capstan(t, "replay", "first", "--data-dir", data, "-f", secondDir(t), "--prompt-only").mustEnd(t, exit.OK)
	mustSay(t, got.out, "+Speak about the helpdesk as version two.\n")
	if strings.Contains(got.out, "REPLAYED") || model.Stats().Requests != before {
		t.Errorf("%d requests after %d, want none, and no answer in\n%s", model.Stats().Requests, before, got.out)
	}
	all := capstan(t, "replay", "first", "--data-dir", data, "-f", dir, "--prompt-only", "--model", "demo:large").mustEnd(t, exit.OK)
	mustSay(t, all.out, "- provider: demo\n", "+- model: large\n", "model             demo:small → demo:large\n")
}

// TestReplayWithAnotherModel checks a replay with a model that is not in the Agent's chain.
func TestReplayWithAnotherModel(t *testing.T) {
	t.Parallel()
	model, url := fake(t, "rules:\n- {when: {model: large}, reply: {text: Large.}}\n- {reply: {text: Small.}}\n")
	dir, data := complete().written(t, url), t.TempDir()
	capstan(t, "run", "-f", dir, "--data-dir", data).mustEnd(t, exit.OK)
	got := capstan(t, "replay", "first", "--data-dir", data, "--manifests", dir, "--model", "demo:large").mustEnd(t, exit.OK)
	mustSay(t, got.out, "-Small.\n+Large.\n", "model   demo:small ", " demo:large\n", "cost    0.", " -\n")
	if n := model.Stats().ByModel["large"]; n != 1 {
		t.Errorf("%d requests to the other model, want one", n)
	}
}

// TestReplayOfEndlessCalls checks that a replay ends if the model keeps requesting calls that were not recorded.
func TestReplayOfEndlessCalls(t *testing.T) {
	t.Parallel()
	_, url := fake(t, `rules:
- when: {systemContains: "version two", hasTools: true}
  reply: {toolCalls: [{name: close_ticket, arguments: '{"id": "{{ .ToolMessages }}"}'}]}
- reply: {text: "One."}
`)
	tools := serveTools(t, "")
	f := withTools(t, tools.url, requiresApproval).with(t, "agent.yaml", "timeoutSeconds: 30", "maxSteps: 3, timeoutSeconds: 60")
	dir, data := f.written(t, url), t.TempDir()
	capstan(t, "run", "-f", dir, "--data-dir", data).mustEnd(t, exit.OK)
	r := replayOf(t, capstan(t, "replay", "first", "--data-dir", data, "-f", secondDir(t), "-m", dir, "-o", "json").out)
	if c := r.Calls; c == nil || c.Recorded != 0 || c.NotMade < 2 || len(c.Unanswered) != c.NotMade || r.Replayed.End != "MaxSteps" {
		t.Errorf("the replay is %+v, want an end at the limit of steps", r)
	}
	if tools.closedTickets() != "" {
		t.Errorf("closed tickets %q, want none", tools.closedTickets())
	}
}

// TestReplayOfSubAgents checks that a replay answers each call of a sub-agent from the journal, and not only the first
// one.
func TestReplayOfSubAgents(t *testing.T) {
	t.Parallel()
	_, url := fake(t, `rules:
- {when: {systemContains: Close tickets}, reply: {text: "Done as asked."}}
- {when: {toolMessages: 0, hasTools: true}, reply: {toolCalls: [{id: call_1, name: closer, arguments: '{"task": "Close 1042."}'}]}}
- {when: {toolMessages: 1, hasTools: true}, reply: {toolCalls: [{id: call_2, name: closer, arguments: '{"task": "Close 1061."}'}]}}
- {reply: {text: '{{ range .Messages }}{{ if eq .Role "tool" }}{{ .Content }}{{ end }}{{ end }}'}}
`)
	dir, data := delegating(t, serveTools(t, "").url).written(t, url), t.TempDir()
	capstan(t, "run", "-f", dir, "--data-dir", data).mustEnd(t, exit.OK)
	r := replayOf(t, capstan(t, "replay", "first", "--data-dir", data, "-f", secondDir(t), "-m", dir, "-o", "json").out)
	if c := r.Calls; c == nil || c.Recorded != 2 || c.NotMade != 0 || strings.Count(r.Replayed.Answer, "Done as asked.") != 2 {
		t.Errorf("the replay is %+v, want both calls answered", r)
	}
}

// TestReplayOfTurns checks replays of Turns whose call was denied or requires approval, and of Turns that have no
// answer or no prompt.
func TestReplayOfTurns(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		reason string
		change func(*testing.T, files) files
		args   []string
		// runCode and code are the exit codes of the run and of the replay.
		runCode, code int
		want          string
	}{
		"denied": {
			"the denial is recorded, too", func(_ *testing.T, f files) files { return f },
			[]string{"--approve", "none"},
			exit.OK, exit.OK,
			"1 from the journal\n",
		},
		"parked": {
			"the journal ends in the middle", func(_ *testing.T, f files) files { return f }, nil, exit.Parked, exit.OK,
			"end     has not ended  Completed\n",
		},
		"only prepared": {
			"there is no input to prepare again",
			func(t *testing.T, f files) files {
				return f.with(t, "turn.yaml", "  message:", "  execution: PrepareOnly\n  message:")
			},
			nil, exit.OK, exit.Failed, "the Turn default/first cannot be replayed: the Turn only prepared its prompt",
		},
		"not prepared": {
			"there is no prompt",
			func(t *testing.T, f files) files { return f.with(t, "profile.yaml", ".product", ".missing") },
			nil, exit.Failed, exit.Failed,
			"the Turn default/first cannot be replayed: the Turn ended before it made a prompt (PreparationError: ",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, url := fake(t, closing)
			tools := serveTools(t, "")
			dir, data := tc.change(t, withTools(t, tools.url, requiresApproval)).written(t, url), t.TempDir()
			capstan(t, append([]string{"run", "-f", dir, "--data-dir", data}, tc.args...)...).mustEnd(t, tc.runCode)
			got := capstan(t, "replay", "first", "--data-dir", data, "-m", withTools(t, nowhere, "").written(t, url)).mustEnd(t, tc.code)
			mustSay(t, got.out+got.err, tc.want)
			if tools.closedTickets() != "" {
				t.Errorf("%s: closed tickets %q, want none", tc.reason, tools.closedTickets())
			}
		})
	}
}

// TestReplayOfSession checks that the replay of the second Turn of a Session has the messages of the first Turn.
func TestReplayOfSession(t *testing.T) {
	t.Parallel()
	_, url := fake(t, memory)
	dir, data := conversing(t).written(t, url), t.TempDir()
	for _, name := range []string{"first", "second"} {
		capstan(t, "run", "-f", dir, "--turn", name, "--data-dir", data).mustEnd(t, exit.OK)
	}
	got := capstan(t, "replay", "second", "--data-dir", data, "-m", dir).mustEnd(t, exit.OK)
	mustSay(t, got.out, "the prompts are the same", "The answers are the same")
}

// TestReplayOfLongOutput checks that a replay answers a call from the artifact with the whole output.
func TestReplayOfLongOutput(t *testing.T) {
	t.Parallel()
	_, url := fake(t, `rules:
- {when: {toolMessages: 0, hasTools: true}, reply: {toolCalls: [{id: a, name: get_ticket, arguments: '{"id": "long"}'}]}}
- when: {toolMessages: 1, hasTools: true}
  reply: {toolCalls: [{id: b, name: read_artifact, arguments: '{"name": "call-1-1", "offset": 19000}'}]}
- {reply: {text: '{{ range .Messages }}{{ if contains .Content "this is the end" }}Read.{{ end }}{{ end }}'}}
`)
	tools := serveTools(t, "")
	dir, data := withTools(t, tools.url, "").written(t, url), t.TempDir()
	capstan(t, "run", "-f", dir, "--data-dir", data).mustEnd(t, exit.OK)
	r := replayOf(t, capstan(t, "replay", "first", "--data-dir", data, "-m", dir, "-o", "json").mustEnd(t, exit.OK).out)
	if r.Recorded.Answer != "Read." || r.Replayed.Answer != "Read." || r.Calls.Recorded != 1 || r.Calls.NotMade != 0 {
		t.Errorf("the replay is %+v, want the text of the same artifact", r)
	}
}

// TestReplayWithoutARecordedOutput checks that a replay fails if the recorded output of a call cannot be read, and that
// neither the model nor a judge is asked after that.
func TestReplayWithoutARecordedOutput(t *testing.T) {
	t.Parallel()
	model, url := fake(t, `rules:
- {when: {toolMessages: 0, hasTools: true}, reply: {toolCalls: [{id: a, name: get_ticket, arguments: '{"id": "long"}'}]}}
- {when: {systemContains: "You judge"}, reply: {text: '{"score": 90, "reason": "It is kind."}'}}
- {reply: {text: "Done."}}
`)
	tools := serveTools(t, "")
	dir, data := withTools(t, tools.url, "").written(t, url), t.TempDir()
	capstan(t, "run", "-f", dir, "--data-dir", data).mustEnd(t, exit.OK)
	change(t, data, "DELETE FROM artifact WHERE sha256 IN "+
		"(SELECT json_extract(payload, '$.artifact') FROM journal WHERE kind = 'tool.finished')")
	const want = `failed to read the recorded result of a call of "get_ticket": `
	got := capstan(t, "replay", "first", "--data-dir", data, "-m", dir).mustEnd(t, exit.Failed)
	mustSay(t, got.err, want)

	before := model.Stats().Requests
	got = capstan(t, "backtest", "-f", profile(t, judged), "-m", dir, "--agent", "support", "--data-dir", data, "--replay", "-q",
		"-o", "json").mustEnd(t, exit.Failed)
	r := backtestOf(t, got.out)
	if len(r.Cases) != 1 || r.Cases[0].Outcome != evaluation.Errored || len(r.Cases[0].Problems) != 1 ||
		!strings.Contains(r.Cases[0].Problems[0], want) || r.Cases[0].Calls != nil || r.Spent.Tokens == 0 {
		t.Errorf("want the result Error with the tokens of the replay, have\n%s", got.out)
	}
	if n := model.Stats().Requests - before; n != 1 {
		t.Errorf("%d requests, want only the one before the call", n)
	}
}

// TestReplayErrors checks that each error names its cause, and that no model is asked.
func TestReplayErrors(t *testing.T) {
	t.Parallel()
	model, url := fake(t, skilled)
	dir, data := complete().written(t, url), t.TempDir()
	capstan(t, "run", "-f", dir, "--data-dir", data).mustEnd(t, exit.OK)
	broken := complete().with(t, "profile.yaml", ".product", ".missing").written(t, url)
	required := complete().with(t, "profile.yaml", "default: the helpdesk,", "required: true,").written(t, url)
	noSecret := complete()
	delete(noSecret, "secret.yaml")
	before := model.Stats().Requests
	for name, tc := range map[string]struct {
		args []string
		code int
		want string
	}{
		"no manifests":   {nil, exit.Usage, "there are no manifests: set -f to the changed manifests"},
		"no file":        {[]string{"-f", "missing.yaml"}, exit.Usage, "missing.yaml"},
		"broken profile": {[]string{"-f", broken}, exit.Failed, "profile.yaml:"},
		"new variable": {
			[]string{"-f", required},
			exit.Failed,
			"profile.yaml: PromptProfile default/support: spec.variables[0].required: the recorded " +
				`Turn has no value for "product": give the variable a default, so that old Turns can be prepared again`,
		},
		"unknown profile": {
			[]string{"-m", dir, "--profile", "none"},
			exit.Failed,
			`--profile: PromptProfile "default/none" is not in the manifests, which contain ` +
				"default/support: correct the name, or add its file with --manifests",
		},
		"only another profile": {
			[]string{"-m", secondDir(t)},
			exit.Failed,
			`neither Agent "default/support" nor PromptProfile "default/support", but PromptProfile default/second`,
		},
		"no Agent":  {[]string{"-f", secondDir(t)}, exit.Failed, `the manifests have no Agent "support": add its file with --manifests`},
		"no Secret": {[]string{"-f", noSecret.written(t, url)}, exit.Failed, "--env-secret model-key/apiKey="},
		"unknown model": {
			[]string{"-m", dir, "--model", "large"},
			exit.Failed,
			`--model: Agent "support" has no model "large": name it as PROVIDER:MODEL`,
		},
		"unknown provider": {
			[]string{"-m", dir, "--model", "none:large"},
			exit.Failed,
			`--model: ModelProvider "default/none" is not in the manifests, which ` +
				"contain default/demo: correct the name, or add its file with --manifests",
		},
		"cluster and directory": {[]string{"-m", dir, "--server", "https://x"}, exit.Usage, "data-dir"},
		"format":                {[]string{"-m", dir, "-o", "yaml"}, exit.Usage, "must be text or json"},
	} {
		t.Run(name, func(t *testing.T) {
			got := capstan(t, append([]string{"replay", "first", "--data-dir", data}, tc.args...)...).mustEnd(t, tc.code)
			mustSay(t, got.err, tc.want)
			if n := model.Stats().Requests; n != before || got.out != "" {
				t.Errorf("%d requests after %d, and %q on standard output, want none", n, before, got.out)
			}
		})
	}
	value := complete().with(t, "turn.yaml", "  message:", "  parameters: [{name: product, value: printers}]\n  message:")
	withValue := t.TempDir()
	capstan(t, "run", "-f", value.written(t, url), "--data-dir", withValue).mustEnd(t, exit.OK)
	renamed := complete()
	renamed["profile.yaml"] = strings.NewReplacer("name: product", "name: thing", ".product", ".thing").Replace(profileYAML)
	mustSay(t, capstan(t, "replay", "first", "--data-dir", withValue, "-f", renamed.written(t, url)).mustEnd(t, exit.Failed).err,
		`profile.yaml: PromptProfile default/support: spec.variables: must declare "product", for which the recorded Turn has a value`)
	mustSay(t, capstan(t, "replay", "none", "--data-dir", data, "-m", dir).mustEnd(t, exit.Failed).err,
		"has no journal of Turn default/none; it has journals of these Turns: default/first")
	mustSay(t, capstan(t, "replay", "-m", dir).mustEnd(t, exit.Usage).err, "specify one Turn")
}

// TestReplayHostileTexts checks that a terminal receives no control characters from texts of a model and of a tool.
func TestReplayHostileTexts(t *testing.T) {
	t.Parallel()
	_, url := fake(t, `rules:
- when: {systemContains: "version two", toolMessages: 0, hasTools: true}
  reply: {toolCalls: [{id: a, name: get_ticket, arguments: '{"id": "\u001b[31m"}'}]}
- {when: {systemContains: "version two"}, reply: {text: "\u001b[2JTwo\u009b"}}
- {reply: {text: "\u001b]0;title\u0007One\nTurn default/first: the prompts are the same"}}
`)
	tools := serveTools(t, "")
	dir, data := withTools(t, tools.url, "").written(t, url), t.TempDir()
	capstan(t, "run", "-f", dir, "--data-dir", data).mustEnd(t, exit.OK)
	onTerminal := call{terminal: true, env: map[string]string{"TERM": "dumb"}}
	for _, format := range []string{"text", "json"} {
		got := onTerminal.run(t.Context(), "replay", "first", "--data-dir", data, "-f", secondDir(t), "-m", dir,
			"-o", format).mustEnd(t, exit.OK)
		if strings.ContainsAny(got.out, "\x1b\x07\u009b") || strings.Contains(got.out, "\nTurn default/first: the prompts are the same") {
			t.Errorf("want no control characters, and no line that imitates Capstan's own output, have\n%q", got.out)
		}
	}
}

// TestReplayOfRequest checks that the attachment, the schema and the redacted texts of a replay come from the journal.
func TestReplayOfRequest(t *testing.T) {
	t.Parallel()
	_, url := fake(t, `rules:
- when: {systemContains: "one JSON value", anyContains: "the attached text"}
  reply: {text: '{"a": 1}'}
- reply: {text: "No JSON."}
`)
	f := complete().with(t, "turn.yaml", "  message: What is up?",
		"  output: {schema: {type: object, required: [a]}}\n  message: Ask zoe@example.com.").with(t, "agent.yaml", "  limits:",
		"  redaction: {patterns: [{name: email, pattern: '[a-z]+@[a-z.]+'}]}\n  limits:")
	dir, data := f.written(t, url), t.TempDir()
	note := filepath.Join(t.TempDir(), "note.txt")
	if err := os.WriteFile(note, []byte("the attached text"), 0o600); err != nil {
		t.Fatal(err)
	}
	capstan(t, "run", "-f", dir, "--data-dir", data, "--attach", "note="+note).mustEnd(t, exit.OK)
	if err := os.Remove(note); err != nil {
		t.Fatal(err)
	}
	got := capstan(t, "replay", "first", "--data-dir", data, "-m", dir).mustEnd(t, exit.OK)
	mustSay(t, got.out, "the prompts are the same", "The answers are the same")
	all := capstan(t, "replay", "first", "--data-dir", data, "-m", dir, "-o", "json").mustEnd(t, exit.OK).out
	if strings.Contains(all, "zoe@example.com") || replayOf(t, all).Replayed.Answer != `{"a": 1}` {
		t.Errorf("the replay is %s, want the answer with the schema and no redacted text", all)
	}
}

// TestReplayCompletion checks that the completion offers the names of the Turns of a directory.
func TestReplayCompletion(t *testing.T) {
	t.Parallel()
	data := journalOf(t, skilled)
	mustSay(t, capstan(t, "__complete", "replay", "--data-dir", data, "").out, "first\n:4\n")
	mustSay(t, capstan(t, "__complete", "replay", "-o", "").out, "text\njson\n:4\n")
}
