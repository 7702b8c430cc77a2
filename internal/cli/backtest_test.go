package cli_test

import (
	"encoding/json"
	"encoding/xml"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/capstan-dev/capstan/internal/cli/evaluation"
	"github.com/capstan-dev/capstan/internal/cli/exit"
)

// backtestRules answers by the prompt, and judges an answer by its words.
const backtestRules = `rules:
- when: {systemContains: "You judge", contains: "Worse."}
  reply: {text: '{"score": 20, "reason": "It is rude. | ![x](http://evil.example) @all"}'}
- when: {systemContains: "You judge"}
  reply: {text: '{"score": 90, "reason": "It is kind."}'}
- when: {systemContains: "version two", contains: "What is bad?"}
  reply: {text: "Worse."}
- when: {systemContains: "version two"}
  reply: {text: "Better."}
- reply: {text: "As before."}
`

// judged is the second profile with a judge.
const judged = secondProfile + "  judges: [{name: kind, type: Custom, prompt: Be kind.}]\n"

// recorded runs Turns with these messages, which are all of one Agent, and one Turn of another Agent. It returns the
// folder of the manifests and that of the journals.
func recorded(t *testing.T, url string, messages ...string) (dir, data string) {
	t.Helper()
	f := complete()
	other := strings.Replace(agentYAML, "name: support", "name: other", 1)
	f["other.yaml"] = other + "---\n" +
		strings.NewReplacer("{name: first}", "{name: of-other}", "{name: support}", "{name: other}").Replace(turnYAML)
	names := []string{"of-other"}
	delete(f, "turn.yaml")
	for i, message := range messages {
		name := fmt.Sprintf("turn-%d", i+1)
		names = append(names, name)
		f[name+".yaml"] = strings.NewReplacer("{name: first}", "{name: "+name+"}", "What is up?", message).Replace(turnYAML)
	}
	dir, data = f.written(t, url), t.TempDir()
	for i, name := range names {
		now := fmt.Sprintf("2026-04-09T12:%02d:00Z", i)
		capstan(t, "run", "-f", dir, "--turn", name, "--data-dir", data, "--now", now).mustEnd(t, exit.OK)
	}
	return dir, data
}

// profile writes a PromptProfile and returns its path.
func profile(t *testing.T, text string) string {
	t.Helper()
	return filepath.Join(files{"new.yaml": text}.written(t, nowhere), "new.yaml")
}

func backtestOf(t *testing.T, text string) evaluation.Report {
	t.Helper()
	var r evaluation.Report
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return r
}

// TestBacktestOfPrompts needs only the changed profile, and asks no model.
func TestBacktestOfPrompts(t *testing.T) {
	t.Parallel()
	model, url := fake(t, backtestRules)
	_, data := recorded(t, url, "What is up?", "What is bad?", "What is new?")
	before := model.Stats().Requests
	args := []string{"backtest", "-f", profile(t, secondProfile), "--agent", "support", "--data-dir", data}
	got := capstan(t, args...).mustEnd(t, exit.OK)
	mustSay(t, got.out, "TURN    PROMPT   CHANGES\n", "turn-3  Changed  system_prompt\n", "turn-1  Changed  system_prompt\n",
		"The prompts of 3 Turns change: turn-3, turn-2, turn-1:\nsystem_prompt changed\n@@\n",
		"-Answer questions about the helpdesk.\n+Speak about the helpdesk as version two.\n",
		"3 of 3 prompts can be made (100%). Prompts: 3 changed, 0 same, 0 cannot be made. Recorded: ", " USD.\n")
	mustSay(t, got.err, "turn-2: changed\n")
	if strings.Contains(got.out, "of-other") {
		t.Errorf("the report has a Turn of another Agent:\n%s", got.out)
	}
	last := backtestOf(t, capstan(t, append(args, "--last", "2", "-q", "-o", "json")...).mustEnd(t, exit.OK).out)
	if last.Total != 2 || last.Cases[0].Name != "turn-3" || last.PromptProfile != "second" || last.Version != "2.0.0" ||
		last.Backtest == nil || last.Backtest.Changed != 2 || len(last.Backtest.Changes) != 1 || last.Backtest.Spent.Tokens == 0 {
		t.Errorf("the report of the last two is %+v", last)
	}
	if n := model.Stats().Requests; n != before {
		t.Errorf("%d requests, want none", n-before)
	}
}

// TestBacktestOfBrokenPrompt finds the Turns whose prompts can no longer be made.
func TestBacktestOfBrokenPrompt(t *testing.T) {
	t.Parallel()
	_, url := fake(t, backtestRules)
	dir, data := recorded(t, url, "What is up?", "What is new?")
	broken := profile(t, strings.Replace(secondProfile, "default: the helpdesk,", "required: true,", 1))
	for threshold, code := range map[string]int{"0": exit.OK, "0.01": exit.Failed, "1": exit.Failed} {
		got := capstan(t, "backtest", "-f", broken, "--agent", "support", "--data-dir", data, "--threshold", threshold).mustEnd(t, code)
		mustSay(t, got.out, "turn-1  Fails\n", "turn-1:\n  - ", "product",
			"0 of 2 prompts can be made (0%). Prompts: 0 changed, 0 same, 2 cannot")
	}
	same := capstan(t, "backtest", "-m", dir, "--agent", "support", "--data-dir", data, "-o", "markdown").mustEnd(t, exit.OK)
	mustSay(t, same.out, "### Backtest passed: 2 of 2 prompts can be made (100%)", "2 more Turns are not listed.")
}

// TestBacktestReplay replays the Turns, and compares the answers by the judges of the new profile.
func TestBacktestReplay(t *testing.T) {
	t.Parallel()
	_, url := fake(t, backtestRules)
	dir, data := recorded(t, url, "What is up?", "What is bad?")
	args := []string{"backtest", "-f", profile(t, judged), "-m", dir, "--agent", "support", "--data-dir", data, "--replay", "-q"}
	got := capstan(t, args...).mustEnd(t, exit.Failed)
	mustSay(t, got.out, "TURN    RESULT  PROMPT   CALLS  TOKENS", "turn-1  Passed  Changed  0 ", "kind 0.9\n",
		"turn-2  Failed  Changed  0 ",
		"kind 0.9 → 0.2\n", "turn-2:\n  - judge kind: score 0.2 is below 0.7: It is rude.", "  answer: Worse.",
		"1 of 2 Turns passed (50%). Prompts: 2 changed, 0 same, 0 cannot be made. Recorded: ", " Replayed: ", " Judges: ")
	mustSay(t, got.err, "1 of 2 Turns passed (50%), want 100% of the Turns")
	capstan(t, append(args, "--threshold", "0.5")...).mustEnd(t, exit.OK)

	r := backtestOf(t, capstan(t, append(args, "-o", "json")...).mustEnd(t, exit.Failed).out)
	c := r.Cases[0]
	if c.Name != "turn-2" || c.Recorded == nil || c.Recorded.Answer != "As before." || c.Answer != "Worse." || c.Calls == nil ||
		len(c.Recorded.Evaluations) != 1 || c.Recorded.Evaluations[0].Score != "0.9" || c.Evaluations[0].Score != "0.2" {
		t.Errorf("the newest Turn is %+v", c)
	}
	page := capstan(t, append(args, "-o", "markdown")...).mustEnd(t, exit.Failed).out
	mustSay(t, page, "### Backtest failed: 1 of 2 Turns passed (50%)", "| turn-2 | Failed | Changed | 0 | ",
		"```diff\nsystem_prompt changed\n")
	for _, bad := range []string{"![", "@all", "](", "http://"} {
		if strings.Contains(page, bad) {
			t.Errorf("the comment has %q:\n%s", bad, page)
		}
	}
	var suite struct {
		Tests    int `xml:"tests,attr"`
		Failures int `xml:"failures,attr"`
	}
	junit := capstan(t, append(args, "-o", "junit")...).mustEnd(t, exit.Failed).out
	if err := xml.Unmarshal([]byte(junit), &suite); err != nil || suite.Tests != 2 || suite.Failures != 1 {
		t.Errorf("%v, %+v in\n%s", err, suite, junit)
	}
}

// TestBacktestNotWorse passes an answer that a judge refuses, because the judge gives the recorded one no better score.
func TestBacktestNotWorse(t *testing.T) {
	t.Parallel()
	_, url := fake(t, strings.Replace(backtestRules, "As before.", "Worse.", 1))
	dir, data := recorded(t, url, "What is bad?")
	got := capstan(t, "backtest", "-f", profile(t, judged), "-m", dir, "--agent", "support", "--data-dir", data,
		"--replay").mustEnd(t, exit.OK)
	mustSay(t, got.out, "Passed", "kind 0.2\n", "1 of 1 Turns passed (100%)")
}

// TestBacktestSkips skips the Turns that cannot be replayed, and counts the others.
func TestBacktestSkips(t *testing.T) {
	t.Parallel()
	_, url := fake(t, backtestRules)
	f := complete()
	prepared := maps.Clone(f)
	prepared["turn.yaml"] = strings.NewReplacer("{name: first}", "{name: only}",
		"  message:", "  execution: PrepareOnly\n  message:").Replace(turnYAML)
	data := t.TempDir()
	capstan(t, "run", "-f", prepared.written(t, url), "--data-dir", data).mustEnd(t, exit.OK)
	args := []string{"backtest", "-f", profile(t, secondProfile), "--agent", "support", "--data-dir", data}
	mustSay(t, capstan(t, args...).mustEnd(t, exit.Usage).err,
		`none of the last 1 Turns of Agent "support" can be replayed; the newest: the Turn only`)
	capstan(t, "run", "-f", f.written(t, url), "--data-dir", data).mustEnd(t, exit.OK)
	got := capstan(t, args...).mustEnd(t, exit.OK)
	mustSay(t, got.out, "Skipped: only: the Turn only prepared its prompt", "1 of 1 prompts can be made (100%)", " 1 Turns were skipped.")
	mustSay(t, got.err, "only: skipped\n")
}

// TestBacktestOfRepeatedTurn tells Turns of the same name apart.
func TestBacktestOfRepeatedTurn(t *testing.T) {
	t.Parallel()
	_, url := fake(t, backtestRules)
	data := t.TempDir()
	for _, version := range []string{"1.0.0", "1.0.1"} {
		dir := complete().with(t, "profile.yaml", "1.0.0", version).written(t, url)
		capstan(t, "run", "-f", dir, "--data-dir", data).mustEnd(t, exit.OK)
	}
	r := backtestOf(t, capstan(t, "backtest", "-f", profile(t, secondProfile), "--agent", "support", "--data-dir", data,
		"-o", "json").mustEnd(t, exit.OK).out)
	if r.Total != 2 || r.Cases[0].Name == r.Cases[1].Name || !strings.HasPrefix(r.Cases[0].Name, "first (") {
		t.Errorf("the Turns are %q and %q, want their UIDs", r.Cases[0].Name, r.Cases[1].Name)
	}
}

// TestBacktestInput checks that wrong input has its own exit code and that no model is asked then.
func TestBacktestInput(t *testing.T) {
	t.Parallel()
	model, url := fake(t, backtestRules)
	dir, data := recorded(t, url, "What is up?")
	noSecret := t.TempDir()
	if err := os.CopyFS(noSecret, os.DirFS(dir)); err != nil || os.Remove(filepath.Join(noSecret, "secret.yaml")) != nil {
		t.Fatal(err)
	}
	before := model.Stats().Requests
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"no Agent": {[]string{"-m", dir}, "--agent: must be NAME"},
		"no name":  {[]string{"-m", dir, "--agent", "a/"}, "--agent: must be NAME"},
		"no space": {[]string{"-m", dir, "--agent", "/a"}, "--agent: must be NAME"},
		"two":      {[]string{"-m", dir, "--agent", "a/b/c"}, "--agent: must be NAME"},
		"other namespace": {
			[]string{"-m", dir, "--agent", "a/support"}, `there is no Turn of Agent "a/support" in namespace "default" that has ended`,
		},
		"unknown Agent": {
			[]string{"-m", dir, "--agent", "none"}, `there is no Turn of Agent "none" in namespace "default" that has ended`,
		},
		"no manifests": {[]string{"--agent", "support"}, "there are no manifests"},
		"last":         {[]string{"-m", dir, "--agent", "support", "--last", "1001"}, "--last: must be from 1 to 1000"},
		"parallel":     {[]string{"-m", dir, "--agent", "support", "--parallel", "0"}, "--parallel: must be from 1 to 32"},
		"threshold":    {[]string{"-m", dir, "--agent", "support", "--threshold", "70"}, "--threshold: "},
		"format":       {[]string{"-m", dir, "--agent", "support", "-o", "yaml"}, "must be text, json, junit or markdown"},
		"no data": {
			[]string{"-m", dir, "--agent", "support", "--data-dir", t.TempDir()}, "does not exist: capstan run --data-dir",
		},
		"replay without Agent": {
			[]string{"-f", profile(t, secondProfile), "--agent", "support", "--replay"}, `the manifests have no Agent "support"`,
		},
		"replay without Secret": {[]string{"-m", noSecret, "--agent", "support", "--replay"}, "--env-secret model-key/apiKey="},
	} {
		t.Run(name, func(t *testing.T) {
			got := capstan(t, append([]string{"backtest", "--data-dir", data}, tc.args...)...).mustEnd(t, exit.Usage)
			mustSay(t, got.err, tc.want)
			if n := model.Stats().Requests; n != before || got.out != "" {
				t.Errorf("%d requests, and %q on standard output, want none", n-before, got.out)
			}
		})
	}
}

// TestBacktestInterrupted checks that an interrupt ends the backtest with its own exit code and a report.
func TestBacktestInterrupted(t *testing.T) {
	t.Parallel()
	_, url := fake(t, backtestRules)
	_, data := recorded(t, url, "What is up?", "What is new?")
	model, hangs := fake(t, "rules: [{fault: {hang: AfterHeaders}}]")
	dir := complete().written(t, hangs)
	got := runInterrupted(t, model, "backtest", "-m", dir, "--agent", "support", "--data-dir", data, "--replay", "--parallel", "1",
		"-o", "json")
	got.mustEnd(t, exit.Interrupted)
	if r := backtestOf(t, got.out); r.OK || r.Missing != 1 || r.Passed != 0 {
		t.Errorf("report %+v, want one Turn that was cancelled and one that was not replayed", r)
	}
	mustSay(t, got.err, "interrupted: the report has the Turns that had ended")
	mustSay(t, capstan(t, "__complete", "backtest", "-o", "").out, "text\njson\njunit\nmarkdown\n:4\n")
	mustSay(t, runInterrupted(t, model, "replay", "turn-1", "-m", dir, "--data-dir", data).mustEnd(t, exit.Interrupted).err, "interrupted")
}

// TestBacktestOfFeedback takes the Turns that people have scored, and expects that bad answers change and that good
// ones do not get worse.
func TestBacktestOfFeedback(t *testing.T) {
	t.Parallel()
	_, url := fake(t, strings.Replace(backtestRules, "rules:\n", `rules:
- when: {systemContains: "You judge", contains: "Fair."}
  reply: {text: '{"score": 75, "reason": "It is short."}'}
- when: {systemContains: "version two", contains: "What is fair?"}
  reply: {text: "Fair."}
- when: {systemContains: "version two", contains: "What is old?"}
  reply: {text: "As before."}
`, 1))
	dir, data := recorded(t, url, "What is up?", "What is fair?", "What is old?", "What is fair?", "What is old?", "What is new?")
	args := []string{
		"backtest", "-f", profile(t, judged), "-m", dir, "--agent", "support", "--data-dir", data, "--replay", "-q", "--feedback",
	}
	mustSay(t, capstan(t, args...).mustEnd(t, exit.Usage).err,
		`no Turn of Agent "support" in namespace "default" that has ended has feedback`)
	for turn, score := range map[string]string{"turn-1": "0", "turn-2": "0.8", "turn-3": "0.3", "turn-4": "0.4999", "turn-5": "0.5"} {
		got := capstan(t, "feedback", turn, "--data-dir", data, "--score", score).mustEnd(t, exit.OK)
		mustSay(t, got.out, "feedback to Turn default/"+turn+" stored\n")
	}
	got := capstan(t, args...).mustEnd(t, exit.Failed)
	mustSay(t, got.out, "JUDGES           FEEDBACK\n",
		"turn-2:\n  - judge kind: score 0.75 is below 0.9 of the earlier answer, to which 1 person gave 0.8\n",
		"turn-3:\n  - the answer has not changed, and 1 person gave 0.3\n", "3 of 5 Turns passed (60%)")
	if strings.Contains(got.out, "turn-6") {
		t.Errorf("the report has a Turn without feedback:\n%s", got.out)
	}
	r := backtestOf(t, capstan(t, append(args, "--last", "2", "-o", "json")...).mustEnd(t, exit.OK).out)
	if len(r.Cases) != 2 || r.Cases[1].Feedback == nil || r.Cases[1].Feedback.Score != "0.49" ||
		r.Cases[0].Name != "turn-5" || r.Cases[0].Feedback == nil || r.Cases[0].Feedback.Score != "0.5" ||
		r.Cases[0].Feedback.People != 1 {
		t.Errorf("the newest Turn with feedback: %+v", r.Cases)
	}
	mustSay(t, capstan(t, "feedback", "turn-9", "--data-dir", data, "--score", "1").mustEnd(t, exit.Failed).err,
		"the Turn default/turn-9 has not ended in "+data+", or was not kept there")
	mustSay(t, capstan(t, "feedback", "turn-1", "--data-dir", filepath.Join(data, "none"), "--score", "1").mustEnd(t, exit.Failed).err,
		"none")
}

// TestBacktestOfARedactionRule checks that the report of a new rule does not have what the rule removes: neither in the
// difference, nor in the recorded answer, nor in the words of a judge.
func TestBacktestOfARedactionRule(t *testing.T) {
	t.Parallel()
	const address = "zoe@example.com"
	_, url := fake(t, `rules:
- when: {systemContains: "You judge"}
  reply: {text: '{"score": 90, "reason": "It names `+address+`."}'}
- reply: {text: "Write to `+address+`."}
`)
	dir, data := recorded(t, url, "Is "+address+" mine?")
	rule := strings.Replace(agentYAML, "  limits:", "  redaction: {patterns: [{name: email, pattern: '[a-z]+@[a-z.]+'}]}\n  limits:", 1)
	args := []string{
		"backtest", "-f", profile(t, judged+"---\n"+rule), "-m", dir, "--agent", "support", "--data-dir", data, "--replay", "-q", "-o",
	}
	for _, format := range []string{"text", "markdown", "json", "junit"} {
		got := capstan(t, append(args, format)...)
		if strings.Contains(got.out+got.err, address) || format != "junit" && !strings.Contains(got.out, "[redacted:email]") {
			t.Errorf("%s with exit code %d must have what replaces the address, and not the address:\n%s%s", format,
				got.code, got.out, got.err)
		}
	}
}
