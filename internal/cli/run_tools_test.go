package cli_test

import (
	"context"
	"encoding/json"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/cli/exit"
)

// turnOf decodes a Turn from JSON.
func turnOf(t *testing.T, text string) *v1alpha1.Turn {
	t.Helper()
	var turn v1alpha1.Turn
	if err := json.Unmarshal([]byte(text), &turn); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return &turn
}

func TestRunCallsTheToolsOfAServer(t *testing.T) {
	t.Parallel()
	_, url := fake(t, closing)
	tools := serveTools(t, "")
	got := capstan(t, "run", "-f", withTools(t, tools.url, "").written(t, url), "-o", "json").mustEnd(t, exit.OK)
	turn := turnOf(t, got.out)
	if tools.closedTickets() != "1042" || !strings.Contains(turn.Status.Result.Text, "Ticket 1042 is closed.") {
		t.Errorf("want ticket 1042 closed once, have %q and the answer %q", tools.closedTickets(), turn.Status.Result.Text)
	}
	calls := turn.Status.ToolCalls
	if len(calls) != 1 || calls[0].Name != "close_ticket" || calls[0].Outcome != v1alpha1.ToolCallSucceeded || calls[0].CallID != "call_1" {
		t.Errorf("want the call in the status, have %+v", calls)
	}
	if diff := cmp.Diff([]string{"close_ticket"}, turn.Status.Decision.ToolsUsed); diff != "" {
		t.Errorf("toolsUsed (-want +have):\n%s", diff)
	}
}

func TestRunWithApproveFlag(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ reason, mode, closed, outcome string }{
		"all":  {"the user has approved all", "all", "1042", "Succeeded"},
		"none": {"the user has denied all", "none", "", "Refused"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, url := fake(t, closing)
			tools := serveTools(t, "")
			got := capstan(t, "run", "-f", withTools(t, tools.url, requiresApproval).written(t, url), "-o", "json", "--approve",
				tc.mode).mustEnd(t, exit.OK)
			record := turnOf(t, got.out).Status.ToolCalls[0]
			if tools.closedTickets() != tc.closed || string(record.Outcome) != tc.outcome || record.DecidedBy != "local user" {
				t.Errorf("%s: want %q closed and the outcome %s by the local user, have %q and %+v", tc.reason, tc.closed,
					tc.outcome, tools.closedTickets(), record)
			}
		})
	}
	mustSay(t, capstan(t, "run", "-f", "x", "--approve", "some").mustEnd(t, exit.Usage).err, "must be ask, all or none")
}

func TestRunAsksAtATerminal(t *testing.T) {
	t.Parallel()
	dumb := map[string]string{"TERM": "dumb"}
	for name, tc := range map[string]struct {
		reason, typed, closed string
		code                  int
		want                  string
	}{
		"yes":     {"the call is made", "y\n", "1042", exit.OK, "The call call_1 of step 1 was approved by local user\n"},
		"no":      {"the call is not made", "n\n", "", exit.OK, "The call call_1 of step 1 was denied by local user\n"},
		"unclear": {"the question is repeated", "what?\nyes\n", "1042", exit.OK, "Please reply y or n.\n"},
		"end of input": {
			"there is no decision", "", "", exit.Parked,
			"AwaitingApproval: approval is required for close_ticket (call_1): run the command at a terminal",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, url := fake(t, closing)
			tools := serveTools(t, "")
			dir := withTools(t, tools.url, requiresApproval).written(t, url)
			got := call{terminal: true, stdin: tc.typed, env: dumb}.run(t.Context(), "run", "-f", dir).mustEnd(t, tc.code)
			if tools.closedTickets() != tc.closed {
				t.Errorf("%s: want %q closed, have %q", tc.reason, tc.closed, tools.closedTickets())
			}
			mustSay(t, got.err, tc.want, "  tool     close_ticket\n", "  call     call_1\n",
				"arguments\n| {\n|   \"id\": \"1042\",\n|   \"note\": \"a\\nb\"\n| }\napprove? [y/N] ")
			if strings.Contains(got.err, "continued from its journal") {
				t.Error("want no mention of an earlier run, because there was none")
			}
		})
	}
}

func TestWaitingTurnContinuesLater(t *testing.T) {
	t.Parallel()
	model, url := fake(t, closing)
	tools := serveTools(t, "")
	dir, data := withTools(t, tools.url, requiresApproval).written(t, url), t.TempDir()
	for _, output := range []string{"text", "json"} {
		waits := capstan(t, "run", "-f", dir, "--data-dir", data, "-o", output).mustEnd(t, exit.Parked)
		mustSay(t, waits.err, "AwaitingApproval: approval is required for close_ticket (call_1): run the same command again at a terminal")
		if output == "json" {
			pending := turnOf(t, waits.out).Status.PendingApprovals
			if len(pending) != 1 || pending[0].CallID != "call_1" || len(pending[0].ArgumentsHash) != 64 {
				t.Errorf("want the pending call in the status, have %+v", pending)
			}
		}
	}
	if tools.closedTickets() != "" || model.Stats().Requests != 1 {
		t.Errorf("want one request and no call, have %d and %q", model.Stats().Requests, tools.closedTickets())
	}
	later := call{terminal: true, stdin: "y\n", env: map[string]string{"TERM": "dumb"}}.run(t.Context(), "run", "-f", dir,
		"--data-dir", data).mustEnd(t, exit.OK)
	mustSay(t, later.err, "The Turn continued from its journal.")
	if tools.closedTickets() != "1042" || model.Stats().Requests != 2 {
		t.Errorf("want one call and two requests, have %q and %d requests", tools.closedTickets(), model.Stats().Requests)
	}
}

func TestRunIsInterruptedDuringQuestion(t *testing.T) {
	t.Parallel()
	_, url := fake(t, closing)
	tools := serveTools(t, "")
	dir := withTools(t, tools.url, requiresApproval).written(t, url)
	ctx, cancel := context.WithCancel(t.Context())
	typing, typed := io.Pipe()
	defer typed.Close() //nolint:errcheck // because a pipe closes without fail
	got := call{terminal: true, in: hooked{typing, cancel}, env: map[string]string{"TERM": "dumb"}}.run(ctx, "run", "-f", dir)
	got.mustEnd(t, exit.Interrupted)
	if tools.closedTickets() != "" {
		t.Errorf("want nothing closed, have %q", tools.closedTickets())
	}
}

// hooked is a reader that calls hook on each read.
type hooked struct {
	io.Reader
	hook func()
}

func (h hooked) Read(p []byte) (int, error) {
	h.hook()
	return h.Reader.Read(p)
}

// delegating returns manifests of an Agent that calls another Agent, which may close tickets.
func delegating(t *testing.T, tools string) files {
	t.Helper()
	f := complete().with(t, "agent.yaml", "  limits:", "  tools:\n  - agentRef: {name: closer}\n  limits:")
	agent := withTools(t, tools, requiresApproval)["agent.yaml"]
	f["closer.yaml"] = strings.Replace(strings.Replace(agent, "{name: support}", "{name: closer}", 1),
		"promptProfileRef: {name: support}", "promptProfileRef: {name: closer}", 1)
	f["closer-profile.yaml"] = strings.NewReplacer("name: support", "name: closer", "Answer questions about",
		"Close tickets of").Replace(profileYAML)
	f["tools.yaml"] = strings.ReplaceAll(toolServerYAML, "TOOLSURL", tools)
	return f
}

// delegatingAbroad is like delegating, but the sub-agent and its objects are in another namespace, whose Agent does not
// allow the namespace of the caller.
func delegatingAbroad(t *testing.T, tools string) files {
	t.Helper()
	f := delegating(t, tools).with(t, "agent.yaml", "agentRef: {name: closer}", "agentRef: {name: closer, namespace: platform}")
	for _, name := range []string{"closer.yaml", "closer-profile.yaml"} {
		f = f.with(t, name, "metadata: {name: closer}", "metadata: {name: closer, namespace: platform}")
	}
	f = f.with(t, "tools.yaml", "metadata: {name: tickets}", "metadata: {name: tickets, namespace: platform}")
	f["tools.yaml"] += "  credentialsRef: {name: model-key, key: apiKey}\n"
	f["provider-2.yaml"] = strings.Replace(providerYAML, "{name: demo}", "{name: demo, namespace: platform}", 1)
	f["secret-2.yaml"] = strings.Replace(secretYAML, "{name: model-key}", "{name: model-key, namespace: platform}", 1)
	return f
}

const delegated = `rules:
- {when: {systemContains: Close tickets, toolMessages: 0, hasTools: true}, ` +
	`reply: {toolCalls: [{id: c1, name: close_ticket, arguments: '{"id": "1042"}'}]}}
- {when: {systemContains: Close tickets}, reply: {text: "Done as asked."}}
- {when: {toolMessages: 0, hasTools: true}, reply: {toolCalls: [{id: call_1, name: closer, arguments: '{"task": "Close 1042."}'}]}}
- {reply: {text: 'The closer said: {{ range .Messages }}{{ if eq .Role "tool" }}{{ .Content }}{{ end }}{{ end }}'}}
`

func TestRunAsksAboutCallsOfSubAgents(t *testing.T) {
	t.Parallel()
	model, url := fake(t, delegated)
	tools := serveTools(t, "")
	dir, data := delegating(t, tools.url).written(t, url), t.TempDir()
	waits := capstan(t, "run", "-f", dir, "--data-dir", data).mustEnd(t, exit.Parked)
	mustSay(t, waits.err, "WaitingForSubAgent: approval is required for close_ticket (c1)")

	args := []string{"run", "-f", dir, "--data-dir", data, "-o", "json"}
	got := call{terminal: true, stdin: "y\n", env: map[string]string{"TERM": "dumb"}}.run(t.Context(), args...).mustEnd(t, exit.OK)
	turn := turnOf(t, got.out)
	if tools.closedTickets() != "1042" || model.Stats().Requests != 4 {
		t.Errorf("want the ticket closed once by 4 requests, have %q by %d", tools.closedTickets(), model.Stats().Requests)
	}
	record := turn.Status.ToolCalls[0]
	if !strings.HasPrefix(record.Turn, "first-") || turn.Status.SubAgentUsage == nil || turn.Status.SubAgentUsage.TotalTokens == 0 {
		t.Errorf("want the child and its usage in the status, have %+v and %+v", record, turn.Status.SubAgentUsage)
	}
	mustSay(t, got.err, "  agent    closer\n", "closer> Asking small of ModelProvider demo", "closer> Completed: the model answered\n")
	child := capstan(t, "logs", record.Turn, "--data-dir", data).mustEnd(t, exit.OK)
	mustSay(t, child.out, "Turn default/"+record.Turn+"\n", "| Close 1042.\n",
		"the call c1 of step 1 was approved by local user", "| Done as asked.\n")
	again := capstan(t, args...).mustEnd(t, exit.OK)
	if diff := cmp.Diff(turn.Status.ToolCalls, turnOf(t, again.out).Status.ToolCalls); diff != "" || model.Stats().Requests != 4 {
		t.Errorf("want the same output again and no request, have %d requests and -first +again:\n%s", model.Stats().Requests, diff)
	}
}

func TestModelReceivesFailureOfSubAgent(t *testing.T) {
	t.Parallel()
	_, url := fake(t, strings.Replace(delegated, `{text: "Done as asked."}`, `{text: half, finishReason: length}`, 1))
	tools := serveTools(t, "")
	got := capstan(t, "run", "-f", delegating(t, tools.url).written(t, url), "--approve=all").mustEnd(t, exit.OK)
	mustSay(t, got.out, "The closer said: error (failed): the sub-agent did not succeed (OutputInvalid)\n<tool-output ",
		"\nIts answer so far:\nhalf\n</tool-output ")
}

// TestRefusedCallOfSubAgentCreatesNoTurn checks that a call of a sub-agent with invalid arguments does not use up the
// Turns of sub-agents that are left, so that the corrected call is made.
func TestRefusedCallOfSubAgentCreatesNoTurn(t *testing.T) {
	t.Parallel()
	_, url := fake(t, `rules:
- {when: {systemContains: Close tickets}, reply: {text: "Done as asked."}}
- {when: {toolMessages: 0, hasTools: true}, reply: {toolCalls: [{id: call_1, name: closer, arguments: '{"task": " "}'}]}}
- {when: {toolMessages: 1, hasTools: true}, reply: {toolCalls: [{id: call_2, name: closer, arguments: '{"task": "Close 1042."}'}]}}
- {reply: {text: 'The closer said: {{ range .Messages }}{{ if eq .Role "tool" }}{{ .Content }}{{ end }}{{ end }}'}}
`)
	tools := serveTools(t, "")
	got := capstan(t, "run", "-f", delegating(t, tools.url).written(t, url), "-o", "json").mustEnd(t, exit.OK)
	turn := turnOf(t, got.out)
	mustSay(t, turn.Status.Result.Text, "error (invalid_arguments): ", "Done as asked.")
	if turn.Status.Descendants != 1 {
		t.Errorf("the Turn has %d descendants, want 1", turn.Status.Descendants)
	}
}

func TestRunReportsUnreachableToolServer(t *testing.T) {
	t.Parallel()
	_, url := fake(t, closing)
	got := capstan(t, "run", "-f", withTools(t, "http://127.0.0.1:1/mcp", "").written(t, url)).mustEnd(t, exit.OK)
	mustSay(t, got.err, "note: the tools of ToolServer default/tickets are not offered: ")
	if got.out != "It said: \n" {
		t.Errorf("want an answer without tools, have %q", got.out)
	}
	recorded := capstan(t, "run", "-f", withTools(t, "http://127.0.0.1:1/mcp", "").written(t, url), "-o", "json").mustEnd(t, exit.OK)
	if p := turnOf(t, recorded.out).Status.Preparation; p == nil || !slices.Equal(p.ToolServersMissing, []string{"tickets"}) {
		t.Errorf("want the missing server in the status, have %+v", p)
	}
}

func TestTokenOfToolServerComesFromSecret(t *testing.T) {
	t.Parallel()
	_, url := fake(t, closing)
	tools := serveTools(t, key)
	f := withTools(t, tools.url, "")
	f["tools.yaml"] += "  credentialsRef: {name: tickets, key: token}\n"
	dir := f.written(t, url)
	missing := capstan(t, "run", "-f", dir).mustEnd(t, exit.Failed)
	mustSay(t, missing.err, "tools.yaml: ToolServer default/tickets: ", "or pass the value with --env-secret tickets/token=ENVVAR")
	c := call{env: map[string]string{"TICKETS": key}}
	got := c.run(t.Context(), "run", "-f", dir, "--env-secret", "tickets/token=TICKETS").mustEnd(t, exit.OK)
	if tools.closedTickets() != "1042" || strings.Contains(got.out+got.err, key) {
		t.Errorf("want the call made, and no token in the output, have %q and:\n%s", tools.closedTickets(), got.err)
	}
}

func TestObjectsOfAgentToolsMustExist(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		reason, from, to, want string
	}{
		"a server": {
			"its tools cannot be called", "agentRef: {name: closer}", "serverRef: {name: gone}",
			`agent.yaml: Agent default/support: spec.tools[0].serverRef.name: ToolServer "default/gone" is not ` +
				`in the manifests, which contain default/tickets`,
		},
		"an agent": {
			"the Agent cannot be called", "agentRef: {name: closer}", "agentRef: {name: gone}",
			`agent.yaml: Agent default/support: spec.tools[0].agentRef.name: Agent "default/gone" is not in the ` +
				`manifests, which contain default/closer, default/support`,
		},
		"a profile": {
			"the sub-agent could not run", "", "",
			`closer.yaml: Agent default/closer: spec.promptProfileRef.name: PromptProfile "default/closer" is not in the manifests`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := delegating(t, nowhere)
			if tc.from == "" {
				delete(f, "closer-profile.yaml")
			} else {
				f = f.with(t, "agent.yaml", tc.from, tc.to)
			}
			dir := f.written(t, nowhere)
			for _, command := range []string{"run", "render"} {
				mustSay(t, capstan(t, command, "-f", dir).mustEnd(t, exit.Failed).err, tc.want)
			}
		})
	}
}

func TestQuietHidesSteps(t *testing.T) {
	t.Parallel()
	_, url := fake(t, closing)
	tools := serveTools(t, "")
	dir := withTools(t, tools.url, "").written(t, url)
	got := capstan(t, "run", "-f", dir).mustEnd(t, exit.OK)
	mustSay(t, got.err, "The model is offered 2 tools\n", "Asking small of ModelProvider demo: What is up?\n",
		"Calling close_ticket (call_1)\n")
	if strings.Contains(got.err, "\x1b") {
		t.Errorf("want plain lines without a terminal, have %q", got.err)
	}
	for _, flag := range []string{"-q", "--quiet"} {
		for where, c := range map[string]call{"no terminal": {}, "terminal": {terminal: true}} {
			quiet := c.run(t.Context(), "run", "-f", dir, flag).mustEnd(t, exit.OK)
			if !strings.Contains(quiet.out, "Ticket 1042 is closed.") ||
				!strings.HasPrefix(quiet.err, "Completed, strategy ToolAssisted, ") || strings.Contains(quiet.err, "\x1b") {
				t.Errorf("%s, %s: want the answer and the summary, but no steps, have %q and:\n%s", where, flag, quiet.out, quiet.err)
			}
		}
	}
}

func TestRenderDiscoversToolsOfServers(t *testing.T) {
	t.Parallel()
	tools := serveTools(t, "")
	dir := delegating(t, tools.url).with(t, "agent.yaml", "  tools:\n",
		"  tools:\n  - serverRef: {name: tickets}\n    allow: [get_*]\n").written(t, nowhere)
	offline := capstan(t, "render", "-f", dir).mustEnd(t, exit.OK)
	mustSay(t, offline.out, "tools             closer, read_artifact\n")
	mustSay(t, offline.err, "note: the tools of ToolServer tickets are not shown: add --discover to list them\n")
	online := capstan(t, "render", "-f", dir, "--discover", "-o", "json").mustEnd(t, exit.OK)
	var got struct {
		Tools []struct{ Name, Description string }
	}
	if err := json.Unmarshal([]byte(online.out), &got); err != nil {
		t.Fatal(err)
	}
	if len(got.Tools) != 3 || got.Tools[0].Name != "get_ticket" || got.Tools[0].Description != "Returns a ticket." ||
		got.Tools[1].Name != "closer" || online.err != "" {
		t.Errorf("want the same tools as in a run, and no note, have %+v and %q", got.Tools, online.err)
	}
}

func TestArtifactIsFoundByName(t *testing.T) {
	t.Parallel()
	_, url := fake(t, `rules:
- {when: {toolMessages: 0}, reply: {toolCalls: [{id: call_1, name: get_ticket, arguments: '{"id": "long"}'}]}}
- {reply: {text: Long.}}
`)
	tools := serveTools(t, "")
	data := t.TempDir()
	capstan(t, "run", "-f", withTools(t, tools.url, "").written(t, url), "--data-dir", data).mustEnd(t, exit.OK)
	mustSay(t, capstan(t, "logs", "first", "--data-dir", data).mustEnd(t, exit.OK).out, "  whole    artifact call-1-1, ")
	for _, command := range [][]string{{"logs"}, {"export", "turn"}} {
		args := slices.Concat(command, []string{"first", "--data-dir", data, "--artifact", "call-1-1"})
		if got := capstan(t, args...).mustEnd(t, exit.OK); len(got.out) != 20_004 {
			t.Errorf("%v: want the whole output, have %d bytes", command, len(got.out))
		}
		if got := (call{terminal: true}).run(t.Context(), args...).mustEnd(t, exit.OK); strings.Contains(got.out, "\x1b") {
			t.Errorf("%v: want no control characters on a terminal", command)
		}
		args[len(args)-1] = "call-9-9"
		mustSay(t, capstan(t, args...).mustEnd(t, exit.Failed).err,
			`--artifact: the Turn has no artifact "call-9-9": its artifacts are call-1-1`)
	}
}

func TestExpiredRequestIsADenial(t *testing.T) {
	t.Parallel()
	_, url := fake(t, closing)
	tools := serveTools(t, "")
	f := withTools(t, tools.url, requiresApproval).with(t, "agent.yaml", "timeoutSeconds: 30",
		"timeoutSeconds: 30, approvalTimeoutSeconds: 1")
	dir, data := f.written(t, url), t.TempDir()
	capstan(t, "run", "-f", dir, "--data-dir", data, "--now", noon).mustEnd(t, exit.Parked)
	logs := capstan(t, "logs", "first", "--data-dir", data).mustEnd(t, exit.OK)
	mustSay(t, logs.out, "close_ticket (call_1) requires approval until 2026-04-09T12:00:01Z")
	// Without --now, each call of the tests' clock adds half a second, so the request expires during the run.
	late := capstan(t, "run", "-f", f.written(t, url), "--data-dir", t.TempDir(), "-o", "json").mustEnd(t, exit.OK)
	mustSay(t, late.err, "The request for approval of the call call_1 of step 1 has expired: the call is denied\n")
	// With --now, the clock stands still while the question about the first of two calls is open.
	_, twice := fake(t, strings.Replace(closing, `"}'}]}}`, `"}'}, {id: call_2, name: close_ticket, arguments: '{"id": "1043"}'}]}}`, 1))
	silent, person := io.Pipe()
	defer func() { _ = person.Close() }() // never fails
	unanswered := call{terminal: true, env: map[string]string{"TERM": "dumb"}, in: silent}.
		run(t.Context(), "run", "-f", f.written(t, twice), "--now", noon, "-o", "json").mustEnd(t, exit.OK)
	mustSay(t, unanswered.err, "approve? [y/N]", "The request for approval of the call call_1 of step 1 has expired: the call is denied\n",
		"The request for approval of the call call_2 of step 1 has expired: the call is denied\n")
	if tools.closedTickets() != "" {
		t.Errorf("want nothing closed, have %q", tools.closedTickets())
	}
}

// TestRunWithSubAgentOfAnotherNamespace checks that a sub-agent of another namespace works with the objects there, and
// that its Agent must allow the namespace of the caller.
func TestRunWithSubAgentOfAnotherNamespace(t *testing.T) {
	t.Parallel()
	_, url := fake(t, delegated)
	tools := serveTools(t, key)
	f := delegatingAbroad(t, tools.url)
	refused := capstan(t, "run", "-f", f.written(t, url)).mustEnd(t, exit.Failed)
	mustSay(t, refused.err, `agent.yaml: Agent default/support: spec.tools[0].agentRef.name: Agent "platform/closer" does not allow `+
		`namespace "default": allow it in spec.allowedNamespaces of the Agent`)

	f = f.with(t, "closer.yaml", "spec:", "spec:\n  allowedNamespaces: {from: All}")
	dir, data := f.written(t, url), t.TempDir()
	got := capstan(t, "run", "-f", dir, "--approve=all", "--data-dir", data).mustEnd(t, exit.OK)
	mustSay(t, got.out, "The closer said: ", "Done as asked.")
	mustSay(t, got.err, "platform/closer> Asking small of ModelProvider platform/demo", "Asking small of ModelProvider demo")
	if tools.closedTickets() != "1042" {
		t.Errorf("want the call made once, have %q", tools.closedTickets())
	}
	child := ""
	for _, more := range [][]string{{}, {"--replay"}} { // the child Turn is in the namespace of the calling Turn
		args := append([]string{"backtest", "-m", dir, "--agent", "platform/closer", "--data-dir", data, "-o", "json"}, more...)
		r := backtestOf(t, capstan(t, args...).mustEnd(t, exit.OK).out)
		if r.Agent != "platform/closer" || r.Total != 1 || r.Passed != 1 || r.Backtest.Same != 1 || len(r.Backtest.Skipped) > 0 {
			t.Fatalf("backtest %q: %+v, want one Turn with the same prompt", more, r)
		}
		child = r.Cases[0].Name
	}
	capstan(t, "feedback", child, "--data-dir", data, "--score", "1").mustEnd(t, exit.OK)
	r := backtestOf(t, capstan(t, "backtest", "-m", dir, "--agent", "platform/closer", "--data-dir", data, "--feedback", "-o", "json").
		mustEnd(t, exit.OK).out)
	if r.Total != 1 {
		t.Errorf("with feedback: %+v, want one Turn", r)
	}
	delete(f, "secret-2.yaml")
	absent := capstan(t, "run", "-f", f.written(t, url)).mustEnd(t, exit.Failed)
	mustSay(t, absent.err, `Secret "model-key" does not exist in namespace "platform"`)
}
