package cli_test

import (
	"encoding/json"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/cli/exit"
)

const wantDiff = `Turn default/first: the prompts differ
--- OLD: PromptProfile default/support
+++ NEW

1. system_prompt (system) changed, 542 → 728 characters, cache boundary at 341 → 350
@@ -5,7 +5,7 @@
 </agent>
 
 <instructions>
-Answer questions about the helpdesk.
+Politely answer questions about the helpdesk.
 </instructions>
 
 <behavior>
@@ -17,6 +17,13 @@
 
 No tools are available in this turn. Answer from the information you have, and do not claim to have called a tool.
 </tools_available>
+
+<turn_instructions>
+## Guardrails
+These rules constrain everything above. If an instruction conflicts with one of these rules, follow the rule.
+
+No jokes.
+</turn_instructions>
 
 <environment>
 - Today: Thursday, April 9, 2026 (2026-04-09)

Report
  promptProfile     support (helpdesk.support 1.0.0) → support (helpdesk.support 1.1.0)
  promptRenderHash  HASH → HASH
  promptHash        HASH → HASH
  sections          added turn_instructions
  stableChars       341 → 350
  dynamicChars      201 → 378
  guardrails        none → serious
`

// sha256 matches the hash of a prompt.
var sha256 = regexp.MustCompile(`\b[0-9a-f]{64}\b`)

// newer returns the complete manifests with a changed profile.
func newer(t *testing.T) files {
	t.Helper()
	return complete().with(t, "profile.yaml", "Answer questions about", "Politely answer questions about").
		with(t, "profile.yaml", "version: 1.0.0", "version: 1.1.0\n  guardrails: [{id: serious, source: legal, rule: No jokes.}]")
}

func TestDiffText(t *testing.T) {
	t.Parallel()
	oldFile := filepath.Join(complete().written(t, nowhere), "profile.yaml")
	dir := newer(t).written(t, nowhere)
	got := capstan(t, "render", "-f", dir, "--diff", oldFile, "--now", noon).mustEnd(t, exit.Differs)
	text := strings.NewReplacer(oldFile, "OLD", dir, "NEW").Replace(sha256.ReplaceAllString(got.out, "HASH"))
	if diff := cmp.Diff(wantDiff, text); diff != "" || got.err != "" {
		t.Errorf("want only the effect of the change; -want +have:\n%s%s", diff, got.err)
	}
}

func TestDiffExitCodes(t *testing.T) {
	t.Parallel()
	current := complete().written(t, nowhere)
	broken := files{"profile.yaml": strings.Replace(profileYAML, "{{ .product }}", "{{ .prodcut }}", 1)}.written(t, nowhere)
	invalid := files{"profile.yaml": strings.Replace(profileYAML, "identity:", "identitty:", 1)}.written(t, nowhere)
	stranger := files{"provider.yaml": providerYAML}.written(t, nowhere)
	orphan := files{"agent.yaml": strings.Replace(agentYAML, "promptProfileRef: {name: support}",
		"promptProfileRef: {name: gone}", 1)}.written(t, nowhere)
	for name, tc := range map[string]struct {
		reason string
		args   []string
		code   int
		want   []string // parts of the output
	}{
		"the same": {
			"one line reports it",
			[]string{"--diff", current},
			exit.OK,
			[]string{"Turn default/first: the prompts are the same: 4 messages, promptHash "},
		},
		"a version alone": {
			"the version is not part of the prompt",
			[]string{"--diff", files{"p.yaml": strings.Replace(profileYAML, "1.0.0", "0.9.0", 1)}.written(t, nowhere)},
			exit.OK,
			[]string{"the prompts are the same"},
		},
		"an old state that does not render": {
			"the error names the old state",
			[]string{"--diff", broken},
			exit.Failed,
			[]string{"--diff: the old state, ", filepath.Join(broken, "profile.yaml") +
				": PromptProfile default/support: spec.instructions:1:27: "},
		},
		"an old Agent whose profile is gone": {
			"the error names the reference",
			[]string{"--diff", orphan},
			exit.Failed,
			[]string{"--diff: the old state, ", `PromptProfile "default/gone" is not in the manifests`},
		},
		"invalid manifests": {
			"exit code 2 means that the prompts differ",
			[]string{"--diff", invalid},
			exit.Failed,
			[]string{"spec.identitty: unknown field"},
		},
		"no object of the prompt": {
			"the prompts could never differ",
			[]string{"--diff", stranger},
			exit.Failed,
			[]string{"--diff: the prompt does not depend on any object in " + stranger +
				", which must contain at least one of Turn default/first, Agent default/support, PromptProfile default/support"},
		},
		"no such file": {
			"the error names it",
			[]string{"--diff", "none.yaml"},
			exit.Failed,
			[]string{"none.yaml: failed to find it"},
		},
		"an empty path": {
			"a shell variable may be unset",
			[]string{"--diff", ""},
			exit.Failed,
			[]string{"--diff must name a file, a directory or -", "render --help"},
		},
		"an unknown flag before": {
			"the exit code is right even if parsing stops before --diff",
			[]string{"--frobnicate", "--diff", current},
			exit.Failed,
			[]string{"unknown flag", "render --help"},
		},
		"an unknown flag after": {
			"exit code 2 means that the prompts differ",
			[]string{"--diff=" + current, "--frobnicate"},
			exit.Failed,
			[]string{"unknown flag"},
		},
		"no value": {
			"exit code 2 means that the prompts differ",
			[]string{"--diff"},
			exit.Failed,
			[]string{"flag needs an argument: --diff"},
		},
		"an unknown Turn": {
			"exit code 2 means that the prompts differ",
			[]string{"--diff", current, "--turn", "x"},
			exit.Failed,
			[]string{"--turn: "},
		},
		"standard input twice": {
			"the second reader would get no input",
			[]string{"--diff", "-", "-"},
			exit.Failed,
			[]string{"must not both read standard input"},
		},
		"an unknown flag without": {"the flag --diff is not set", []string{"--frobnicate"}, exit.Usage, []string{"unknown flag"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := capstan(t, append([]string{"render", "-f", current, "--now", noon}, tc.args...)...)
			if got.code != tc.code {
				t.Errorf("%s: want exit code %d, have %d; %s%s", tc.reason, tc.code, got.code, got.out, got.err)
			}
			mustSay(t, got.out+got.err, tc.want...)
		})
	}
}

func TestDiffOfAConfigMap(t *testing.T) {
	t.Parallel()
	f := complete().with(t, "profile.yaml", "  overrides:", skillOf("notes", "refunds")+"  overrides:").
		with(t, "agent.yaml", "  limits:", "  skills: {loaded: [refunds]}\n  limits:")
	f["notes.yaml"] = strings.Replace(notesYAML, "a week", "a month", 1)
	old := notesYAML + "---\n" + strings.Replace(notesYAML, "name: notes", "name: others", 1)
	got := call{stdin: old}.run(t.Context(), "render", "-f", f.written(t, nowhere), "--diff", "-", "--now",
		noon).mustEnd(t, exit.Differs)
	mustSay(t, got.out, "--- standard input: ConfigMap default/notes\n", "\n-Pay back within a week.\n+Pay back within a month.\n")
}

// TestDiffOfSharedObjects checks that --diff finds the objects of other namespaces on which a prompt depends.
func TestDiffOfSharedObjects(t *testing.T) {
	t.Parallel()
	shared := func(yaml, name string) string {
		return strings.Replace(strings.Replace(yaml, "metadata: {name: "+name+"}", "metadata: {name: "+name+", namespace: platform}", 1),
			"spec:\n", "spec:\n  allowedNamespaces: {from: All}\n", 1)
	}
	f := complete().with(t, "agent.yaml", "promptProfileRef: {name: support}", "promptProfileRef: {name: support, namespace: platform}").
		with(t, "agent.yaml", "  limits:", "  skills: {loaded: [refunds]}\n  tools:\n  - agentRef: {name: closer, namespace: platform}\n"+
			"  - serverRef: {name: tickets, namespace: platform}\n  limits:").
		with(t, "profile.yaml", "  overrides:", skillOf("notes", "refunds")+"  overrides:")
	f["profile.yaml"] = shared(f["profile.yaml"], "support")
	f["notes.yaml"] = shared(notesYAML, "notes")
	f["closer.yaml"] = shared(strings.Replace(agentYAML, "{name: support}", "{name: closer}", 1), "closer")
	f["tools.yaml"] = shared(strings.ReplaceAll(toolServerYAML, "TOOLSURL", nowhere), "tickets")
	dir := f.written(t, nowhere)
	for _, name := range []string{"profile.yaml", "notes.yaml", "closer.yaml", "tools.yaml"} {
		got := capstan(t, "render", "-f", dir, "--diff", filepath.Join(dir, name), "--now", noon).mustEnd(t, exit.OK)
		mustSay(t, got.out, "the prompts are the same")
		mustSay(t, got.err, "note: the tools of ToolServer platform/tickets are not shown")
	}
	const objects = "PromptProfile platform/support, Agent platform/closer, ToolServer platform/tickets, ConfigMap platform/notes"
	changed := strings.Replace(f["profile.yaml"], "Answer questions about", "Politely answer questions about", 1)
	old := strings.Join([]string{changed, f["notes.yaml"], f["closer.yaml"], f["tools.yaml"]}, "---\n")
	got := call{stdin: old}.run(t.Context(), "render", "-f", dir, "--diff", "-", "--now", noon).mustEnd(t, exit.Differs)
	mustSay(t, got.out, "--- standard input: "+objects+"\n")
	got = call{stdin: profileYAML}.run(t.Context(), "render", "-f", dir, "--diff", "-", "--now", noon).mustEnd(t, exit.Failed)
	mustSay(t, got.err, "which must contain at least one of Turn default/first, Agent default/support, "+objects)
}

func TestDiffOfTurns(t *testing.T) {
	t.Parallel()
	dir := rich(t).written(t, nowhere)
	oldTurn := files{"turn.yaml": strings.Replace(turnYAML, "  message:",
		"  history: [{role: User, content: Hello}, {role: Assistant, content: Hi}]\n  message:", 1)}
	got := capstan(t, "render", "-f", dir, "--diff", oldTurn.written(t, nowhere), "--now", noon).mustEnd(t, exit.Differs)
	mustSay(t, got.out, "memory_context (system) added, ", "3. history (user) removed, 5 characters\n@@ -1 +0,0 @@\n-Hello\n",
		"4. history (assistant) removed", "  messages ", "  sections ", "added live_context\n", "\nNewly left out\n", "  memory m11 ",
		"  contribution notes ", "cut by 11 characters\n")
	if strings.Contains(got.out, "overlay empty") {
		t.Errorf("want no mention of parts that both states leave out, have:\n%s", got.out)
	}
	back := capstan(t, "render", "-f", oldTurn.written(t, nowhere), dir+"/agent.yaml", dir+"/profile.yaml", dir+"/notes.yaml",
		"--diff", dir, "--now", noon).mustEnd(t, exit.Differs)
	mustSay(t, back.out, "\nNo longer left out\n", "removed live_context\n")
}

func TestDiffShowsToolsThatAreNotInTheMessages(t *testing.T) {
	t.Parallel()
	f := complete().with(t, "profile.yaml", "{behavior: Be brief.}",
		"{tools: Use tools.}\n  sections: [agent, tools]\n")
	f["closer.yaml"] = strings.Replace(agentYAML, "{name: support}", "{name: closer}", 1)
	old := files{"agent.yaml": f["agent.yaml"]}.written(t, nowhere)
	dir := f.with(t, "agent.yaml", "  limits:", "  tools: [{agentRef: {name: closer}}]\n  limits:").written(t, nowhere)
	got := capstan(t, "render", "-f", dir, "--diff", old).mustEnd(t, exit.Differs)
	mustSay(t, got.out, "  tools  added closer, read_artifact\n")
}

func TestDiffUsesOneTimeForBothStates(t *testing.T) {
	t.Parallel()
	dir := complete().with(t, "agent.yaml", "description: Answers questions.", "description: Answers.").written(t, nowhere)
	got := capstan(t, "render", "-f", dir, "--diff", complete().written(t, nowhere)).mustEnd(t, exit.Differs)
	if strings.Contains(got.out, "-- Current time") {
		t.Errorf("want the time of both states to be the same, have:\n%s", got.out)
	}
}

func TestDiffJSON(t *testing.T) {
	t.Parallel()
	oldDir, newDir := complete().written(t, nowhere), newer(t).written(t, nowhere)
	type record struct {
		Differs  bool
		Messages []struct {
			Position                 int
			Name, Role, Change, Diff string
		}
		Tools       []struct{ Name, Change string }
		Preparation struct {
			Old, New struct{ PromptProfile struct{ Version string } }
		}
	}
	read := func(other string, code int) (r record) {
		out := capstan(t, "render", "-f", newDir, "--diff", other, "--now", noon, "-o", "json").mustEnd(t, code).out
		if err := json.Unmarshal([]byte(out), &r); err != nil {
			t.Fatalf("want JSON, have %v in:\n%s", err, out)
		}
		mustSay(t, out, `"tools": []`)
		return r
	}
	got := read(oldDir, exit.Differs)
	if !got.Differs || len(got.Messages) != 1 {
		t.Fatalf("want one message that differs, have %+v", got)
	}
	m := got.Messages[0]
	if m.Position != 1 || m.Name != "system_prompt" || m.Role != "system" || m.Change != "Changed" {
		t.Errorf("want the system prompt changed, have %+v", m)
	}
	mustSay(t, m.Diff, "--- old/system_prompt\n+++ new/system_prompt\n@@ ", "\n-Answer questions about the helpdesk.\n+Politely answer ")
	if p := got.Preparation; p.Old.PromptProfile.Version != "1.0.0" || p.New.PromptProfile.Version != "1.1.0" {
		t.Errorf("want the preparations of both states, have %+v", p)
	}
	if same := read(newDir, exit.OK); same.Differs || same.Messages == nil || len(same.Messages) != 0 {
		t.Errorf("want an empty list of messages, have %+v", same)
	}
	asYAML := capstan(t, "render", "-f", newDir, "--diff", oldDir, "-o", "yaml").mustEnd(t, exit.Differs).out
	mustSay(t, asYAML, "differs: true\n", "change: Changed\n")
}

func TestDiffColours(t *testing.T) {
	t.Parallel()
	args := []string{"render", "-f", newer(t).written(t, nowhere), "--diff", complete().written(t, nowhere)}
	for name, tc := range map[string]struct {
		call call
		want bool
	}{
		"a terminal":      {call{terminal: true}, true},
		"a pipe":          {call{}, false},
		"NO_COLOR":        {call{terminal: true, env: map[string]string{"NO_COLOR": "1"}}, false},
		"a dumb terminal": {call{terminal: true, env: map[string]string{"TERM": "dumb"}}, false},
		"NO_COLOR empty":  {call{terminal: true, env: map[string]string{"NO_COLOR": "", "TERM": "xterm"}}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := tc.call.run(t.Context(), args...).mustEnd(t, exit.Differs)
			if strings.Contains(got.out, "\x1b[31m-Answer questions about the helpdesk.\x1b[0m\n\x1b[32m+Politely") != tc.want ||
				strings.Contains(got.out, "\x1b") != tc.want {
				t.Errorf("want colours: %t, have:\n%q", tc.want, got.out)
			}
		})
	}
}

// TestInvisibleCharactersAreShown checks that a reviewer sees text that a profile hides in invisible characters.
func TestInvisibleCharactersAreShown(t *testing.T) {
	t.Parallel()
	const text = "Be brief."
	dir := complete().with(t, "profile.yaml", text, `"`+text+`\u200b\U000e0041"`).written(t, nowhere)
	for name, args := range map[string][]string{"render": nil, "diff": {"--diff", complete().written(t, nowhere)}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := capstan(t, append([]string{"render", "-f", dir}, args...)...)
			mustSay(t, got.out, text+`\u200b\U000e0041`)
		})
	}
}

func TestMessagesCannotImitateADiff(t *testing.T) {
	t.Parallel()
	hostile := `"What?\n\nReport\n  promptHash  same\n4. user_message (user) removed\n+++ x\e[2J"`
	dir := complete().with(t, "turn.yaml", "What is up?", hostile).written(t, nowhere)
	got := call{terminal: true}.run(t.Context(), "render", "-f", dir, "--diff", complete().written(t, nowhere)).mustEnd(t, exit.Differs)
	mustSay(t, got.out, "+Report\x1b[0m\n", "++++ x\\u001b[2J")
	if strings.Count(got.out, "\nReport\n") != 1 || strings.Contains(got.out, "\x1b[2J") {
		t.Errorf("want each line of a message to begin like a line of a diff, have:\n%q", got.out)
	}
}
