package cli_test

import (
	"database/sql"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"html"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/capstan-dev/capstan/internal/cli/evaluation"
	"github.com/capstan-dev/capstan/internal/cli/exit"
	"github.com/capstan-dev/capstan/internal/cli/journals"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/test/fakemodel/server"
)

// backtestRules makes the model answer depending on the prompt, and judge an answer depending on its words.
const backtestRules = `rules:
- when: {systemContains: "You judge", contains: "Worse."}
  reply: {text: '{"score": 20, "reason": "It is rude. | ![x](http://evil.example) @all see #12, GH-7 and www.evil.example"}'}
- when: {systemContains: "You judge"}
  reply: {text: '{"score": 90, "reason": "It is kind."}'}
- when: {systemContains: "version two", contains: "What is bad?"}
  reply: {text: "Worse."}
- when: {systemContains: "version two"}
  reply: {text: "Better."}
- reply: {text: "As before."}
`

// judged is secondProfile with a judge.
const judged = secondProfile + "  judges: [{name: kind, type: Custom, prompt: Be kind.}]\n"

// recorded runs a Turn of one Agent for each message, and one Turn of another Agent. It returns the directory of the
// manifests and the directory of the journals.
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

// TestBacktestOfPrompts checks a backtest without --replay. It needs only the changed profile, and asks no model.
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
		t.Errorf("want the last two Turns, both with a changed prompt, have %+v", last)
	}
	if n := model.Stats().Requests; n != before {
		t.Errorf("%d requests, want none", n-before)
	}
}

// TestBacktestOfBrokenPrompt checks that a backtest reports the Turns whose prompts can no longer be made.
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

// TestBacktestReplay checks that the judges of the new profile compare the recorded and the new answers.
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
		t.Errorf("want turn-2 with both answers and their scores, have %+v", c)
	}
	page := capstan(t, append(args, "-o", "markdown")...).mustEnd(t, exit.Failed).out
	mustSay(t, page, "### Backtest failed: 1 of 2 Turns passed (50%)", "| turn-2 | Failed | Changed | 0 | ",
		"```diff\nsystem_prompt changed\n")
	mustBeLiteral(t, page)
	junit := capstan(t, append(args, "-o", "junit")...).mustEnd(t, exit.Failed).out
	if suite := suiteOf(t, junit); suite.Tests != 2 || suite.Failures != 1 {
		t.Errorf("%+v in\n%s", suite, junit)
	}
}

// TestBacktestReplayOfCutOffText checks that no judge is asked if the replay ends with a text that is no answer.
func TestBacktestReplayOfCutOffText(t *testing.T) {
	t.Parallel()
	model, url := fake(t, strings.Replace(backtestRules, `{text: "Better."}`, `{text: "Bet", finishReason: length}`, 1))
	dir, data := recorded(t, url, "What is up?")
	before := model.Stats().Requests
	args := []string{
		"backtest", "-f", profile(t, judged), "-m", dir, "--agent", "support", "--data-dir", data, "--replay", "-q", "-o", "json",
	}
	got := capstan(t, args...).mustEnd(t, exit.Failed)
	r := backtestOf(t, got.out)
	if n := model.Stats().Requests - before; n != 1 || len(r.Cases) != 1 || len(r.Cases[0].Problems) != 1 ||
		r.Cases[0].Answer != "Bet" || len(r.Cases[0].Evaluations) != 0 || len(r.Cases[0].Recorded.Evaluations) != 0 {
		t.Errorf("%d requests, want only that of the replay, and one problem in\n%s", n, got.out)
	}
}

// mustBeLiteral checks that the texts in a comment make no links, images, mentions, references or HTML on GitHub.
// GitHub finds mentions and references even if they are written with HTML entities.
func mustBeLiteral(t *testing.T, page string) {
	t.Helper()
	for _, bad := range []string{"![", "](", "<b>"} {
		if strings.Contains(page, bad) {
			t.Errorf("the comment has %q:\n%s", bad, page)
		}
	}
	live := regexp.MustCompile(`(?i)@[a-z]|#[0-9]|\bgh-[0-9]|\bwww\.|://`)
	for line := range strings.Lines(html.UnescapeString(page)) {
		if found := live.FindString(line); found != "" {
			t.Errorf("the comment has %q in %q", found, line)
		}
	}
}

// junitSuite is a report as JUnit XML.
type junitSuite struct {
	Tests    int `xml:"tests,attr"`
	Failures int `xml:"failures,attr"`
	Errors   int `xml:"errors,attr"`
	Skipped  int `xml:"skipped,attr"`
	Cases    []struct {
		Name    string    `xml:"name,attr"`
		Failure *struct{} `xml:"failure"`
		Error   *struct {
			Message string `xml:"message,attr"`
		} `xml:"error"`
		Skipped *struct {
			Message string `xml:"message,attr"`
		} `xml:"skipped"`
	} `xml:"testcase"`
	Out string `xml:"system-out"`
}

// suiteOf reads a report, whose counts must be those of its test cases.
func suiteOf(t *testing.T, text string) junitSuite {
	t.Helper()
	var s junitSuite
	if err := xml.Unmarshal([]byte(text), &s); err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	var counted junitSuite
	for _, c := range s.Cases {
		counted.Tests++
		switch {
		case c.Failure != nil:
			counted.Failures++
		case c.Error != nil:
			counted.Errors++
		case c.Skipped != nil:
			counted.Skipped++
		}
	}
	if s.Tests != counted.Tests || s.Failures != counted.Failures || s.Errors != counted.Errors || s.Skipped != counted.Skipped {
		t.Errorf("the test cases do not have the counts of the suite:\n%s", text)
	}
	return s
}

// TestBacktestNotWorse checks that an answer passes although a judge refuses it, because the judge gives the recorded
// answer no better score.
func TestBacktestNotWorse(t *testing.T) {
	t.Parallel()
	_, url := fake(t, strings.Replace(backtestRules, "As before.", "Worse.", 1))
	dir, data := recorded(t, url, "What is bad?")
	got := capstan(t, "backtest", "-f", profile(t, judged), "-m", dir, "--agent", "support", "--data-dir", data,
		"--replay").mustEnd(t, exit.OK)
	mustSay(t, got.out, "Passed", "kind 0.2\n", "1 of 1 Turns passed (100%)")
}

// TestBacktestSkips checks that Turns that cannot be replayed are skipped, and that only the others count.
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
	mustSay(t, got.out, "Skipped: only: the Turn only prepared its prompt", "1 of 1 prompts can be made (100%)", " 1 Turn was skipped.")
	mustSay(t, got.err, "only: skipped\n")
	suite := suiteOf(t, capstan(t, append(args, "-o", "junit")...).mustEnd(t, exit.OK).out)
	if suite.Tests != 2 || suite.Skipped != 1 || !strings.Contains(suite.Cases[1].Skipped.Message, "only prepared its prompt") {
		t.Errorf("the report is %+v, want the Turn that was skipped", suite)
	}
	mustSay(t, suite.Out, "Prompts: 1 changed, 0 same, 0 cannot be made. 1 Turn was skipped.", "The prompts of 1 Turn change: first:",
		"+Speak about the helpdesk as version two.")
}

// corrupt sets a column of the journal entry with the input of a Turn. data is the directory of the journals, and name
// the name of the Turn.
func corrupt(t *testing.T, data, name, column string, value any) {
	t.Helper()
	change(t, data, "UPDATE journal SET "+column+" = ? WHERE kind = 'preparation.input' AND uid IN "+
		"(SELECT uid FROM journal WHERE kind = 'run.started' AND json_extract(payload, '$.name') = ?)", value, name)
}

// change changes one row of the journals in a directory.
func change(t *testing.T, data, statement string, args ...any) {
	t.Helper()
	db, err := sql.Open("sqlite", filepath.Join(data, journals.FileName))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close() //nolint:errcheck // because each write has its own error
	result, err := db.ExecContext(t.Context(), statement, args...)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := result.RowsAffected(); n != 1 || err != nil {
		t.Fatalf("%d rows with %v, %v; want one", n, args, err)
	}
}

// TestBacktestOfAnUnreadableTurn checks that a journal that cannot be read does not hide other Turns, and that a Turn
// is skipped if a newer version of Capstan wrote its journal.
func TestBacktestOfAnUnreadableTurn(t *testing.T) {
	t.Parallel()
	_, url := fake(t, backtestRules)
	_, data := recorded(t, url, "What is up?", "What is new?", "What is old?")
	args := []string{"backtest", "-f", profile(t, secondProfile), "--agent", "support", "--data-dir", data, "-q"}
	corrupt(t, data, "turn-3", "payload", "[]")
	corrupt(t, data, "turn-2", "version", journal.PayloadVersion+1)
	got := capstan(t, args...).mustEnd(t, exit.Failed)
	mustSay(t, got.out, "turn-3  Error\n", "turn-1  Changed  system_prompt\n",
		"turn-3:\n  - failed to read the journal: failed to read entry 3 (\"preparation.input\")",
		"Skipped: turn-2: the journal was written by a newer version of Capstan: run that version, or a later one\n",
		"1 of 2 prompts can be made (50%), 1 had an error.")
	mustSay(t, capstan(t, append(args, "--last", "1")...).mustEnd(t, exit.Usage).err,
		`failed to read the journal: failed to read entry 3 ("preparation.input")`)
	newest := capstan(t, "replay", "turn-2", "-f", profile(t, secondProfile), "--data-dir", data, "--prompt-only").mustEnd(t, exit.Failed)
	mustSay(t, newest.err, "the Turn default/turn-2 cannot be replayed: the journal was written by a newer version of Capstan")
}

// TestBacktestInALongComment checks that a report with more changes and problems than fit into a comment of GitHub is
// shortened.
func TestBacktestInALongComment(t *testing.T) {
	t.Parallel()
	_, url := fake(t, strings.Replace(backtestRules, "It is rude.", "It is rude."+strings.Repeat(" |", 400), 1))
	var messages []string
	for i := range 40 {
		messages = append(messages, fmt.Sprintf("What is bad? %d", i))
	}
	dir, data := recorded(t, url, messages...)
	long := strings.NewReplacer(
		"judges: [", "judges: [{name: also, type: Custom, prompt: Be kind.}, {name: too, type: Custom, prompt: Be kind.}, ",
		"version two.", "version two. "+strings.Repeat("Be kind. ", 200),
	).Replace(judged)
	args := []string{
		"backtest", "-f", profile(t, long), "-m", dir, "--agent", "support", "--data-dir", data, "--replay", "-q", "-o", "markdown",
	}
	page := capstan(t, args...).mustEnd(t, exit.Failed).out
	if n := len(page); n > 60_000 || n < 50_000 {
		t.Errorf("the comment has %d bytes, want from 50000 to 60000", n)
	}
	mustSay(t, page, "### Backtest failed: 0 of 40 Turns passed (0%)", "| turn-40 | Failed |", "| turn-1 | Failed |",
		" problems are left out.\n", "1 more change is left out.\n")
}

// TestBacktestOfRepeatedTurn checks that the report shows the UIDs of Turns with the same name.
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

// TestBacktestInput checks that invalid input has its own exit code, and that no model is asked.
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
		"no Agent":     {[]string{"-m", dir}, "--agent: must be NAME"},
		"no name":      {[]string{"-m", dir, "--agent", "a/"}, "--agent: must be NAME"},
		"no namespace": {[]string{"-m", dir, "--agent", "/a"}, "--agent: must be NAME"},
		"two":          {[]string{"-m", dir, "--agent", "a/b/c"}, "--agent: must be NAME"},
		"other namespace": {
			[]string{"-m", dir, "--agent", "a/support"}, `there is no finished Turn of Agent "a/support" in namespace "default"`,
		},
		"unknown Agent": {
			[]string{"-m", dir, "--agent", "none"}, `there is no finished Turn of Agent "none" in namespace "default"`,
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
	if r := backtestOf(t, got.out); r.OK || r.Missing != 2 || r.Total != 0 || r.Backtest.Same != 0 {
		t.Errorf("report %+v, want no Turn: one was cancelled, and one was not replayed", r)
	}
	mustSay(t, got.err, "interrupted: the report has only the Turns that had ended")
	junit := suiteOf(t, runInterrupted(t, model, "backtest", "-m", dir, "--agent", "support", "--data-dir", data, "--replay",
		"--parallel", "1", "-o", "junit").mustEnd(t, exit.Interrupted).out)
	if last := junit.Cases[len(junit.Cases)-1]; last.Error == nil || last.Error.Message != "interrupted: 2 Turns have not ended" {
		t.Errorf("the report is %+v, want an error for the Turns that have not ended", junit)
	}
	mustSay(t, capstan(t, "__complete", "backtest", "-o", "").out, "text\njson\njunit\nmarkdown\n:4\n")
	mustSay(t, runInterrupted(t, model, "replay", "turn-1", "-m", dir, "--data-dir", data).mustEnd(t, exit.Interrupted).err, "interrupted")
}

// TestBacktestInterruptedCosts checks that what the replay of an interrupted Turn has used counts, although the Turn is
// not in the report.
func TestBacktestInterruptedCosts(t *testing.T) {
	t.Parallel()
	_, url := fake(t, backtestRules)
	_, data := recorded(t, url, "What is up?", "What is up?")
	dir := complete().written(t, url)
	args := []string{"backtest", "--agent", "support", "--data-dir", data, "--replay", "--parallel", "1", "-o", "json"}
	whole := backtestOf(t, capstan(t, append(args, "-f", profile(t, judged), "-m", dir, "--last", "1")...).mustEnd(t, exit.OK).out)
	model, hangs := fake(t, strings.Replace(backtestRules, "- when: {systemContains: \"You judge\"}\n",
		"- when: {systemContains: \"You judge\", contains: \"Better.\"}\n  fault: {hang: AfterHeaders}\n"+
			"- when: {systemContains: \"You judge\"}\n", 1))
	got := runInterruptedWhen(t, model, func(s server.Stats) bool { return s.Requests == 3 && s.InFlight == 1 },
		append(args, "-f", profile(t, judged), "-m", complete().written(t, hangs))...).mustEnd(t, exit.Interrupted)
	r := backtestOf(t, got.out)
	if r.OK || r.Missing != 2 || r.Total != 0 || len(r.Cases) != 0 || r.Backtest.Changed != 0 {
		t.Errorf("the report is %+v, want no Turn", r)
	}
	if r.Spent.Tokens != whole.Spent.Tokens || r.Backtest.Spent.Tokens != whole.Backtest.Spent.Tokens ||
		r.JudgesSpent.Tokens <= whole.JudgesSpent.Tokens/2 {
		t.Errorf("the recorded Turn used %+v, its replay %+v and the judges %+v; want %+v, %+v, and more than half of %+v",
			r.Backtest.Spent, r.Spent, r.JudgesSpent, whole.Backtest.Spent, whole.Spent, whole.JudgesSpent)
	}
}

// TestBacktestOfFeedback checks that --feedback takes the Turns that people have scored, that an unchanged bad answer
// fails, and that a good answer fails if it gets worse.
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
		`no finished Turn of Agent "support" in namespace "default" has feedback`)
	for turn, score := range map[string]string{"turn-1": "0", "turn-2": "0.8", "turn-3": "0.3", "turn-4": "0.4999", "turn-5": "0.5"} {
		got := capstan(t, "feedback", turn, "--data-dir", data, "--score", score).mustEnd(t, exit.OK)
		mustSay(t, got.out, "The feedback to Turn default/"+turn+" is stored.\n")
	}
	said := capstan(t, "feedback", "turn-1", "--data-dir", data, "--score", "0", "-o", "json").mustEnd(t, exit.OK)
	if want := `{"namespace":"default","turn":"turn-1","turnDeleted":false,"score":"0"}` + "\n"; said.out != want {
		t.Errorf("want %s, have %s", want, said.out)
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
		t.Errorf("want turn-5 and turn-4 with their feedback, have %+v", r.Cases)
	}
	mustSay(t, capstan(t, "feedback", "turn-9", "--data-dir", data, "--score", "1").mustEnd(t, exit.Failed).err,
		data+" has no record of the Turn default/turn-9: it has not ended, or its record was deleted")
	mustSay(t, capstan(t, "feedback", "turn-1", "--data-dir", filepath.Join(data, "none"), "--score", "1").mustEnd(t, exit.Failed).err,
		"none")
}

// TestBacktestOfFeedbackWithoutAVerdict checks Turns with a good score whose answers no judge compares: the Turn fails
// if the judge fails for the recorded answer, and a note is printed if the profile has no judge.
func TestBacktestOfFeedbackWithoutAVerdict(t *testing.T) {
	t.Parallel()
	_, url := fake(t, strings.Replace(backtestRules, "rules:\n", `rules:
- when: {systemContains: "You judge", contains: "As before."}
  reply: {text: "It is kind."}
`, 1))
	dir, data := recorded(t, url, "What is up?")
	capstan(t, "feedback", "turn-1", "--data-dir", data, "--score", "0.8").mustEnd(t, exit.OK)
	args := []string{"backtest", "-m", dir, "--agent", "support", "--data-dir", data, "--replay", "-q", "--feedback"}
	got := capstan(t, append(args, "-f", profile(t, judged))...).mustEnd(t, exit.Failed)
	mustSay(t, got.out, "turn-1:\n  - judge kind failed for the earlier answer, to which 1 person gave 0.8: the judge gave no ")
	got = capstan(t, append(args, "-f", profile(t, secondProfile))...).mustEnd(t, exit.OK)
	mustSay(t, got.err, "note: PromptProfile second has no judge, so nothing is checked for the Turns to which people gave 0.5 or more")
	capstan(t, "feedback", "turn-1", "--data-dir", data, "--score", "0.4").mustEnd(t, exit.OK)
	capstan(t, append(args, "-f", profile(t, judged))...).mustEnd(t, exit.OK)
	got = capstan(t, append(args, "-f", profile(t, secondProfile))...).mustEnd(t, exit.OK)
	if strings.Contains(got.err, "note: ") {
		t.Errorf("want no note, because no Turn has a good score, have: %s", got.err)
	}
}

// TestBacktestOfARedactionRule checks that a new redaction rule applies to the whole report: to the diff, the recorded
// answer and the reason of a judge. The diff has the line of the new profile that names an address.
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
	changed := strings.Replace(judged, "version two.", "version two, and write to "+address+".", 1) + "---\n" +
		strings.Replace(rule, "{name: support}\n  models", "{name: second}\n  models", 1)
	args := []string{
		"backtest", "-f", profile(t, changed), "-m", dir, "--agent", "support", "--data-dir", data, "--replay", "-q", "-o",
	}
	for _, format := range []string{"text", "markdown", "json", "junit"} {
		got := capstan(t, append(args, format)...)
		if strings.Contains(got.out+got.err, address) || !strings.Contains(got.out, "write to [redacted:email]") {
			t.Errorf("%s, exit code %d: want [redacted:email] in place of the address, have\n%s%s", format, got.code, got.out, got.err)
		}
	}
}

// TestBacktestRedactsWholeMessages checks rules that do not match in a part of a message or in a line of a diff: a JSON
// path, and a pattern for the beginning of a line.
func TestBacktestRedactsWholeMessages(t *testing.T) {
	t.Parallel()
	_, url := fake(t, backtestRules)
	dir, data := recorded(t, url, strconv.Quote(`{
  "user": "zoe",
  "team": "sales",
  "size": 3,
  "password": "hunter2",
  "last": true
}
ID: 4711`))
	rule := strings.Replace(agentYAML, "  limits:",
		"  redaction: {patterns: [{name: id, pattern: '(?m)^ID: \\d+'}], jsonPaths: [$..password]}\n  limits:", 1)
	changed := secondProfile + "---\n" + strings.Replace(rule, "{name: support}\n  models", "{name: second}\n  models", 1)
	args := []string{
		"backtest", "-f", profile(t, changed), "-m", dir, "--agent", "support", "--data-dir", data, "-q", "-o",
	}
	for _, format := range []string{"text", "markdown", "json", "junit"} {
		got := capstan(t, append(args, format)...).mustEnd(t, exit.OK)
		if strings.Contains(got.out, "hunter2") || strings.Contains(got.out, "4711") {
			t.Errorf("%s: the report has texts that the rules remove:\n%s", format, got.out)
		}
		mustSay(t, got.out, "message changed, only in redacted texts", "Speak about the helpdesk as version two.")
	}
}

// TestBacktestOfASharedAgent checks that the reasons of judges have no credential of the Agent's namespace.
func TestBacktestOfASharedAgent(t *testing.T) {
	t.Parallel()
	_, url := fake(t, strings.Replace(delegated, "rules:\n", "rules:\n- when: {systemContains: You judge}\n"+
		`  reply: {text: '{"score": 90, "reason": "The key is `+key+`."}'}`+"\n", 1))
	f := delegatingAbroad(t, serveTools(t, key).url).with(t, "closer.yaml", "spec:", "spec:\n  allowedNamespaces: {from: All}").
		with(t, "closer-profile.yaml", "overrides: {behavior: Be brief.}", "overrides: {behavior: Be brief.}\n"+
			"  judges: [{name: kind, type: Custom, prompt: Be kind., modelRef: {providerRef: {name: other}, model: small}}]")
	f["other.yaml"] = strings.NewReplacer("{name: demo,", "{name: other,", "model-key", "other-key").Replace(f["provider-2.yaml"]) +
		"---\n" + strings.NewReplacer("model-key", "other-key", key, "sk-other-0815").Replace(f["secret-2.yaml"])
	dir, data := f.written(t, url), t.TempDir()
	capstan(t, "run", "-f", dir, "--approve=all", "--data-dir", data).mustEnd(t, exit.OK)
	got := capstan(t, "backtest", "-m", dir, "--agent", "platform/closer", "--data-dir", data, "--replay", "-q", "-o", "json").
		mustEnd(t, exit.OK)
	if strings.Contains(got.out, key) {
		t.Errorf("the report has the key:\n%s", got.out)
	}
	mustSay(t, got.out, "The key is [redacted].")
}

// TestResultsAreDeliveredIfTheJournalIsNotClosed checks that results that are paid for are not lost if the temporary
// journal cannot be removed at the end.
func TestResultsAreDeliveredIfTheJournalIsNotClosed(t *testing.T) {
	_, url := fake(t, "rules: [{reply: {text: As before.}, fault: {latencyMilliseconds: 300}}]") // so that the spinner draws
	dir, data := recorded(t, url, "What is up?")
	for name, tc := range map[string]struct {
		args []string
		// after is a text on standard error that follows the end of the Turn.
		after, want string
	}{
		"eval": {
			[]string{"-f", evalSetup(t, url, "manifests: [manifests]\ncases: [{name: a, message: What is up}]", complete())},
			"a: passed", "1 of 1 cases passed",
		},
		"backtest": {[]string{"-m", dir, "--agent", "support", "--data-dir", data, "--replay"}, "turn-1: passed", "1 of 1 Turns passed"},
		"replay":   {[]string{"turn-1", "-m", dir, "--data-dir", data}, "\r\x1b[K", "The answers are the same"},
	} {
		t.Run(name, func(t *testing.T) {
			temporary := filepath.Join(t.TempDir(), "tmp")
			if err := os.Mkdir(temporary, 0o700); err != nil {
				t.Fatal(err)
			}
			t.Setenv("TMPDIR", temporary)
			c := call{terminal: name == "replay", env: map[string]string{"TERM": "xterm"}, onError: func(text string) {
				if !strings.HasSuffix(text, tc.after) && !strings.HasPrefix(text, tc.after+",") {
					return
				}
				// The directory of the journal cannot be removed if its parent is a file.
				if os.Rename(temporary, temporary+"-moved") != nil || os.WriteFile(temporary, nil, 0o600) != nil {
					t.Error("failed to replace the directory")
				}
			}}
			got := c.run(t.Context(), append([]string{name}, tc.args...)...).mustEnd(t, exit.Failed)
			mustSay(t, got.out, tc.want)
			mustSay(t, got.err, "failed to close the journal")
		})
	}
}

// TestReplayOfARedactionRule checks that no request contains a text that a rule of the new Agent redacts: neither the
// request for an answer, in an attachment, nor the request to the judge, in the recorded answer.
func TestReplayOfARedactionRule(t *testing.T) {
	t.Parallel()
	const address = "zoe@example.com"
	model, url := fake(t, `rules:
- when: {systemContains: "You judge"}
  reply: {text: '{"score": 90, "reason": "It is kind."}'}
- reply: {text: "Write to `+address+`."}
`)
	f := attachedTo(t, "OpenAI", "people text/csv people.csv")
	f = f.with(t, "inputs.yaml", "data:\n", "data:\n  people.csv: \"name\\n"+address+"\\n\"\n")
	dir, data := f.written(t, url), t.TempDir()
	capstan(t, "run", "-f", dir, "--data-dir", data).mustEnd(t, exit.OK)
	before := len(model.Requests())
	rule := strings.Replace(agentYAML, "  limits:", "  redaction: {patterns: [{name: email, pattern: '[a-z]+@[a-z.]+'}]}\n  limits:", 1)
	changed := profile(t, judged+"---\n"+strings.Replace(rule, "{name: support}\n  models", "{name: second}\n  models", 1))
	capstan(t, "backtest", "-f", changed, "-m", dir, "--agent", "support", "--data-dir", data, "--replay", "-q").mustEnd(t, exit.OK)
	capstan(t, "replay", "first", "-f", changed, "-m", dir, "--data-dir", data).mustEnd(t, exit.OK)
	requests := model.Requests()[before:]
	if len(requests) != 4 {
		t.Fatalf("%d requests, want two answers, and two verdicts of the backtest", len(requests))
	}
	for _, r := range requests {
		if body := string(r.Body); strings.Contains(body, address) || !strings.Contains(body, "[redacted:email]") {
			t.Errorf("request %d: want [redacted:email] in place of the address, have\n%s", r.Number, body)
		}
	}
}

// TestBacktestOfASharedAgentPrefersTheRecordedModel checks that a Turn of an Agent of another namespace is replayed
// with the model of its recording, and that --model finds a model of the Agent with and without the namespace.
func TestBacktestOfASharedAgentPrefersTheRecordedModel(t *testing.T) {
	t.Parallel()
	model, url := fake(t, delegated)
	f := delegatingAbroad(t, serveTools(t, key).url).with(t, "closer.yaml", "spec:", "spec:\n  allowedNamespaces: {from: All}").
		with(t, "provider-2.yaml", "  - name: small\n", "  - name: large\n  - name: small\n")
	dir, data := f.written(t, url), t.TempDir()
	capstan(t, "run", "-f", dir, "--approve=all", "--data-dir", data).mustEnd(t, exit.OK)
	changed := f.with(t, "closer.yaml", "  - providerRef: {name: demo}\n    model: small\n",
		"  - providerRef: {name: demo}\n    model: large\n    parameters: {seed: 1}\n"+
			"  - providerRef: {name: demo}\n    model: small\n    parameters: {seed: 2}\n").written(t, url)
	for name, tc := range map[string]struct{ flag, model, seed string }{
		"the recorded model":      {"", "small", `"seed":2`},
		"with the namespace":      {"--model=platform/demo:large", "large", `"seed":1`},
		"without the namespace":   {"--model=demo:small", "small", `"seed":2`},
		"without a ModelProvider": {"--model=large", "large", `"seed":1`},
	} {
		before := len(model.Requests())
		args := []string{"backtest", "-m", changed, "--agent", "platform/closer", "--data-dir", data, "--replay", "-q"}
		if tc.flag != "" {
			args = append(args, tc.flag)
		}
		capstan(t, args...).mustEnd(t, exit.OK)
		requests := model.Requests()[before:]
		if len(requests) == 0 {
			t.Errorf("%s: there are no requests", name)
		}
		for _, r := range requests {
			if r.Model != tc.model || !strings.Contains(string(r.Body), tc.seed) {
				t.Errorf("%s: the request for model %q is %s, want model %q with %s", name, r.Model, r.Body, tc.model, tc.seed)
			}
		}
	}
}

// TestBacktestOfARefusedAttachment checks that an attachment that no model accepts anymore fails only its own Turn,
// even if that Turn is the newest.
func TestBacktestOfARefusedAttachment(t *testing.T) {
	t.Parallel()
	_, url := fake(t, "rules: [{reply: {text: As before.}}]")
	f := attachedTo(t, "OpenAI", "plan image/png plan.png")
	f["second.yaml"] = f["turn.yaml"]
	f["turn.yaml"] = turnYAML
	f = f.with(t, "second.yaml", "{name: first}", "{name: second}")
	dir, data := f.written(t, url), t.TempDir()
	capstan(t, "run", "-f", dir, "--turn", "first", "--data-dir", data, "--now", noon).mustEnd(t, exit.OK)
	capstan(t, "run", "-f", dir, "--turn", "second", "--data-dir", data, "--now", "2026-04-09T12:01:00Z").mustEnd(t, exit.OK)
	changed := f.with(t, "provider.yaml", "    capabilities: [Images, Files]\n", "").written(t, url)
	got := capstan(t, "backtest", "-m", changed, "--agent", "support", "--data-dir", data, "--replay", "-q", "-o", "json").
		mustEnd(t, exit.Failed)
	results := map[string]string{}
	for _, c := range reportOf(t, got.out).Cases {
		results[c.Name] = string(c.Outcome)
	}
	if results["first"] != string(evaluation.Passed) || results["second"] != string(evaluation.Errored) {
		t.Errorf("the results are %v, want only second with an error", results)
	}
	mustSay(t, got.out, "must be accepted by a model of Agent")
}
