package cli_test

import (
	"context"
	"encoding/json"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/cli/exit"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/store/sqlite"
)

// skilled has the rules of a model that loads a skill before it answers.
const skilled = `rules:
- {when: {toolMessages: 0}, reply: {text: Let me see., ` +
	`toolCalls: [{id: call_1, name: load_skill, arguments: '{"key":"refunds"}'}], ` +
	`usage: {promptTokens: 100, completionTokens: 20}}}
- {reply: {text: "Within a week.", usage: {promptTokens: 150, completionTokens: 10}}}
`

// journalOf runs the Turn of the complete manifests with a skill, and returns the directory of its journal.
func journalOf(t *testing.T, rules string) (data string) {
	t.Helper()
	_, url := fake(t, rules)
	f := complete().with(t, "agent.yaml", "  limits:", "  skills: {available: [refunds]}\n  limits:")
	f["profile.yaml"] += "  skills: [{key: refunds, name: Refunds, content: Pay back within a week.}]\n"
	data = t.TempDir()
	capstan(t, "run", "-f", f.written(t, url), "--data-dir", data).mustEnd(t, exit.OK)
	return data
}

// measured matches durations and hashes, which these tests ignore.
var measured = regexp.MustCompile(`, [0-9.]+ s\b|[0-9a-f]{64}`)

// lineTime matches the time at the beginning of a line. Its seconds depend on the order in which goroutines read the
// clock.
var lineTime = regexp.MustCompile(`(?m)^12:00:\d\dZ `)

func TestLogsOfALocalTurn(t *testing.T) {
	t.Parallel()
	data := journalOf(t, skilled)
	got := capstan(t, "logs", "first", "--data-dir", data).mustEnd(t, exit.OK)
	want := `Turn default/first
  asked by local
  run 1    executor local, epoch 1, 2026-04-09T12:00:03Z
  agent    support
  profile  support (helpdesk.support 1.0.0)
  model    small of ModelProvider demo
  prompt   4 messages, 1 tool, promptRenderHash 
user
| What is up?
12:00:__Z asking small of ModelProvider demo
12:00:__Z step 1: small of ModelProvider demo, 120 tokens (100 in, 20 out), cost 0.00014 USD, asks for load_skill
| Let me see.
  call     load_skill (call_1)
| {"key":"refunds"}
12:00:__Z calling load_skill (call_1)
12:00:__Z load_skill (call_1) succeeded, 70 bytes
| {"content":"Pay back within a week.","key":"refunds","name":"Refunds"}
12:00:__Z asking small of ModelProvider demo
12:00:__Z step 2: small of ModelProvider demo, 160 tokens (150 in, 10 out), cost 0.00017 USD
| Within a week.
12:00:__Z Completed: the model answered
  did      2 steps, 2 model requests, 1 tool call
  took     280 tokens (250 in, 30 out), cost 0.00031 USD
  source   notes/a.md
`
	have := lineTime.ReplaceAllString(measured.ReplaceAllString(got.out, ""), "12:00:__Z ")
	if diff := cmp.Diff(want, have); diff != "" {
		t.Errorf("-want +have:\n%s", diff)
	}
	if got.err != "" {
		t.Errorf("want nothing on standard error, have %q", got.err)
	}
	for _, args := range [][]string{{"default/first"}, {"first", "-n", "default"}, {"first", "-f"}} {
		same := capstan(t, append([]string{"logs", "--data-dir", data}, args...)...).mustEnd(t, exit.OK)
		if same.out != got.out {
			t.Errorf("%v: want the same, have:\n%s", args, same.out)
		}
	}
}

func TestRunShowsStepsAndCallsOnATerminal(t *testing.T) {
	t.Parallel()
	_, url := fake(t, skilled)
	f := complete().with(t, "agent.yaml", "  limits:", "  skills: {available: [refunds]}\n  limits:")
	f["profile.yaml"] += "  skills: [{key: refunds, name: Refunds, content: Pay back within a week.}]\n"
	// A terminal that cannot erase lines shows no spinner. The spinner's output would depend on the time.
	got := call{terminal: true, env: map[string]string{"TERM": "dumb"}}.run(t.Context(), "run", "-f",
		f.written(t, url)).mustEnd(t, exit.OK)
	want := `Asking small of ModelProvider demo: What is up?
Step 1: small of ModelProvider demo, 120 tokens (100 in, 20 out), cost 0.00014 USD, asks for load_skill
Calling load_skill (call_1)
load_skill (call_1) succeeded, 70 bytes
Asking small of ModelProvider demo (request 2): What is up?
Step 2: small of ModelProvider demo, 160 tokens (150 in, 10 out), cost 0.00017 USD
`
	if have := measured.ReplaceAllString(got.err, ""); !strings.HasPrefix(have, want) {
		t.Errorf("want a line for each request, reply and call; -want +have:\n%s", cmp.Diff(want, have))
	}
	if got.out != "Within a week.\n" {
		t.Errorf("want only the answer on standard output, have %q", got.out)
	}
}

func TestLogsAsJSON(t *testing.T) {
	t.Parallel()
	data := journalOf(t, skilled)
	got := capstan(t, "logs", "first", "--data-dir", data, "-o", "json").mustEnd(t, exit.OK)
	mustSay(t, got.out, `{"seq":1,"epoch":1,"kind":"run.started","version":1,"time":"2026-04-09T12:00:03.5Z",`, "Pay back within a week.")
	mustSay(t, capstan(t, "logs", "first", "--data-dir", data, "-o", "yaml").mustEnd(t, exit.Usage).err, "must be text or json")
}

func TestExportRedactsContent(t *testing.T) {
	t.Parallel()
	data := journalOf(t, skilled)
	content := []string{
		"What is up?", "Nothing much.", "Within a week.", "Pay back", "Let me see.", "Answer questions",
		"notes/a.md", `\"refunds\"`,
	}
	got := capstan(t, "export", "turn", "first", "--data-dir", data).mustEnd(t, exit.OK)
	whole := capstan(t, "export", "turn", "first", "--data-dir", data, "--with-content").mustEnd(t, exit.OK)
	for _, text := range content {
		if strings.Contains(got.out, text) {
			t.Errorf("want no %q in the redacted export", text)
		}
	}
	mustSay(t, whole.out, content...)
	mustSay(t, got.out, `"redacted":true,"bytes":11`, `"name":"load_skill"`, `"outcome":"Succeeded"`,
		`"stop":"Completed"`, `"inputTokens":250`)
	kinds := func(text string) (all []string) {
		for line := range strings.Lines(text) {
			var e struct{ Kind string }
			if err := json.Unmarshal([]byte(line), &e); err != nil {
				t.Fatalf("want JSON on each line, have %v in %q", err, line)
			}
			all = append(all, e.Kind)
		}
		return all
	}
	if diff := cmp.Diff(kinds(whole.out), kinds(got.out)); diff != "" {
		t.Errorf("want the same entries with and without content; -whole +redacted:\n%s", diff)
	}
}

func TestExportOfAnArtifact(t *testing.T) {
	t.Parallel()
	data := journalOf(t, "rules: [{reply: {text: \"0123456789\\e[2J\", repeat: 4000}}]")
	logs := capstan(t, "logs", "first", "--data-dir", data).mustEnd(t, exit.OK)
	found := regexp.MustCompile(`answer +[0-9,]+ bytes, artifact ([0-9a-f]{64})`).FindStringSubmatch(logs.out)
	if found == nil {
		t.Fatalf("want the name of the artifact with the long answer, have:\n%.2000s", logs.out)
	}
	args := []string{"export", "turn", "first", "--data-dir", data, "--artifact", found[1]}
	got := capstan(t, args...).mustEnd(t, exit.OK)
	if want := strings.Repeat("0123456789\x1b[2J", 4000); got.out != want {
		t.Errorf("want the whole answer, have %d bytes", len(got.out))
	}
	if shown := (call{terminal: true}).run(t.Context(), args...).mustEnd(t, exit.OK); strings.Contains(shown.out, "\x1b") {
		t.Error("want no control characters on a terminal")
	}
	mustSay(t, capstan(t, "export", "turn", "first", "--data-dir", data, "--artifact", strings.Repeat("0", 64)).mustEnd(t,
		exit.Failed).err,
		"--artifact: the journal has no such artifact")
}

func TestTurnsOfTheSameName(t *testing.T) {
	t.Parallel()
	_, url := fake(t, answers)
	data := t.TempDir()
	for _, question := range []string{"What is up?", "What else?"} {
		capstan(t, "run", "-f", complete().with(t, "turn.yaml", "What is up?", question).written(t, url), "--data-dir", data,
			"--now", map[string]string{"What is up?": noon, "What else?": "2026-04-10T12:00:00Z"}[question]).mustEnd(t, exit.OK)
	}
	newest := capstan(t, "logs", "first", "--data-dir", data).mustEnd(t, exit.OK)
	mustSay(t, newest.out, "What else?")
	mustSay(t, newest.err, "note: "+data+" has journals of 2 Turns with the name default/first. This is the newest one. "+
		"To select another, set --uid: ", " ("+noon+")")
	uid := regexp.MustCompile(`--uid: (\S+) \(`).FindStringSubmatch(newest.err)[1]
	older := capstan(t, "logs", "first", "--data-dir", data, "--uid", uid).mustEnd(t, exit.OK)
	mustSay(t, older.out, "What is up?")
	if older.err != "" {
		t.Errorf("want no message about the choice, have %q", older.err)
	}
	mustSay(t, capstan(t, "logs", "first", "--data-dir", data, "--uid", "x").mustEnd(t, exit.Failed).err, `--uid: `,
		`has no Turn default/first with the UID "x"`, uid)
}

func TestLogsErrors(t *testing.T) {
	t.Parallel()
	data := journalOf(t, skilled)
	for name, tc := range map[string]struct {
		reason string
		args   []string
		code   int
		want   string
	}{
		"unknown": {
			"the error names the existing Turns",
			[]string{"logs", "other", "--data-dir", data},
			exit.Failed, "has no journal of Turn default/other; it has journals of these Turns: default/first",
		},
		"namespace": {
			"names belong to a namespace",
			[]string{"logs", "first", "-n", "b", "--data-dir", data},
			exit.Failed, "has no journal of Turn b/first",
		},
		"two": {
			"a Turn is in one namespace",
			[]string{"logs", "a/first", "-n", "b", "--data-dir", data},
			exit.Usage, "name different namespaces",
		},
		"no namespace": {
			"the variable in $NAMESPACE/first may be empty, and another Turn must not be taken",
			[]string{"logs", "/first", "--data-dir", data},
			exit.Usage, `"/first" has no namespace before the slash`,
		},
		"malformed": {
			"a path is not a name",
			[]string{"logs", "a/b/c", "--data-dir", data},
			exit.Usage,
			"must be NAME or NAMESPACE/NAME",
		},
		"no directory": {
			"logs creates no journal",
			[]string{"logs", "first", "--data-dir", filepath.Join(data, "x")},
			exit.Failed, "capstan run --data-dir",
		},
		"none": {"the name is required", []string{"logs", "--data-dir", data}, exit.Usage, "specify one Turn"},
		"both": {
			"the journal is local or in a cluster",
			[]string{"logs", "first", "--data-dir", data, "--context", "x"},
			exit.Usage, "[context data-dir]",
		},
		"uid": {
			"it selects a Turn in a directory",
			[]string{"logs", "first", "--uid", "x"},
			exit.Usage,
			"--uid requires --data-dir",
		},
		"kubeconfig": {
			"the error explains the use without a cluster",
			[]string{"logs", "first", "--kubeconfig", filepath.Join(data, "x")},
			exit.Usage, "set --data-dir to the directory of capstan run",
		},
		"in clear": {
			"a token is a secret",
			[]string{"logs", "first", "--server", "http://192.0.2.1:80", "--token", "t"},
			exit.Usage, "must begin with https",
		},
		"no server": {
			"no server listens at this address",
			[]string{"logs", "first", "--server", nowhere, "--token", "t"},
			exit.Failed, "failed to read the journal: the connection broke: ",
		},
		"export": {"a kind is required", []string{"export"}, exit.Usage, "capstan export turn NAME"},
		"uid export": {
			"the same flags",
			[]string{"export", "turn", "x", "--data-dir", data},
			exit.Failed,
			"has no journal of Turn default/x",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := capstan(t, tc.args...).mustEnd(t, tc.code); !strings.Contains(got.err, tc.want) {
				t.Errorf("%s: want %q, have %q", tc.reason, tc.want, got.err)
			}
		})
	}
}

func TestFollowLocalTurn(t *testing.T) {
	t.Parallel()
	model, url := fake(t, "rules: [{times: 1, fault: {hang: AfterHeaders}}, {reply: {text: Back.}}]")
	dir, data := complete().written(t, url), t.TempDir()
	args := []string{"run", "-f", dir, "--data-dir", data}
	runInterrupted(t, model, args...).mustEnd(t, exit.Interrupted)

	logs := make(chan output, 1)
	go func() { logs <- call{}.run(t.Context(), "logs", "-f", "first", "--data-dir", data) }()
	capstan(t, args...).mustEnd(t, exit.OK)
	got := (<-logs).mustEnd(t, exit.OK)
	mustSay(t, got.out, "  run 1    executor local, epoch 1", "  run 2    executor local, epoch 2", "| Back.\n",
		"Completed: the model answered\n", "resumed 1 time")
}

func TestFollowIsInterrupted(t *testing.T) {
	t.Parallel()
	model, url := fake(t, "rules: [{fault: {hang: AfterHeaders}}]")
	dir, data := complete().written(t, url), t.TempDir()
	runInterrupted(t, model, "run", "-f", dir, "--data-dir", data).mustEnd(t, exit.Interrupted)
	ctx, interrupt := context.WithCancel(t.Context())
	interrupt()
	mustSay(t, call{}.run(ctx, "logs", "-f", "first", "--data-dir", data).mustEnd(t, exit.Interrupted).err, "capstan: interrupted\n")
}

func TestCompletionOfTurnsInDirectory(t *testing.T) {
	t.Parallel()
	data := journalOf(t, skilled)
	for _, command := range [][]string{{"logs"}, {"export", "turn"}} {
		got := capstan(t, append(append([]string{"__complete"}, command...), "--data-dir", data, "")...).mustEnd(t, exit.OK)
		mustSay(t, got.out, "first\n")
	}
	got := capstan(t, "__complete", "logs", "--data-dir", filepath.Join(data, "x"), "").mustEnd(t, exit.OK)
	if strings.Contains(got.out, "first") {
		t.Errorf("want no names from a directory that does not exist, have %q", got.out)
	}
}

func TestLogsFindTurnOfOlderVersion(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	s, err := sqlite.Open(t.Context(), filepath.Join(data, "capstan-run.db"))
	if err != nil {
		t.Fatal(err)
	}
	large := journal.NewArtifact([]byte(`{"input":{"Turn":{"Namespace":"default","Name":"large"}}}`))
	for uid, first := range map[string]journal.Entry{
		"a": {Payload: json.RawMessage(`{"input":{"Turn":{"Namespace":"default","Name":"small"}}}`)},
		"b": {Artifact: large.SHA256, Artifacts: []journal.Artifact{large}},
	} {
		first.Seq, first.Epoch, first.Kind, first.Version = 1, 1, journal.PreparationInput, 1
		end := journal.Entry{
			Seq: 2, Epoch: 1, Kind: journal.Finalized, Version: 1,
			Payload: json.RawMessage(`{"stop":"Completed","message":"done"}`),
		}
		if err := s.Append(t.Context(), uid, first, end); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"small", "large"} {
		mustSay(t, capstan(t, "logs", name, "--data-dir", data).mustEnd(t, exit.OK).out, "Completed: done\n")
	}
}

func TestLogsIgnoreJournalOfSession(t *testing.T) {
	t.Parallel()
	_, url := fake(t, memory)
	dir, data := conversing(t).written(t, url), t.TempDir()
	capstan(t, "run", "-f", dir, "--turn", "first", "--data-dir", data).mustEnd(t, exit.OK)
	s, err := sqlite.Open(t.Context(), filepath.Join(data, "capstan-run.db"))
	if err != nil {
		t.Fatal(err)
	}
	uids, err := s.UIDs(t.Context(), "", 10)
	if err != nil || len(uids) != 2 || s.Close() != nil {
		t.Fatalf("want the journals of a Turn and of a Session, have %v (%v)", uids, err)
	}
	mustSay(t, capstan(t, "logs", "chat", "--data-dir", data).mustEnd(t, exit.Failed).err,
		"it has journals of these Turns: default/first")
}

// TestExportShowsHistoryOfTurn checks that an export contains the earlier messages, although the journal only refers to
// them.
func TestExportShowsHistoryOfTurn(t *testing.T) {
	t.Parallel()
	_, url := fake(t, memory)
	dir, data := conversing(t).written(t, url), t.TempDir()
	for _, name := range []string{"first", "second"} {
		capstan(t, "run", "-f", dir, "--turn", name, "--data-dir", data).mustEnd(t, exit.OK)
	}
	type entry struct {
		Kind    string `json:"kind"`
		Payload struct {
			Messages []struct{ Name string } `json:"messages"`
		} `json:"payload"`
	}
	for _, args := range [][]string{{"--with-content"}, nil} {
		got := capstan(t, append([]string{"export", "turn", "second", "--data-dir", data}, args...)...).mustEnd(t, exit.OK)
		messages := 0
		for line := range strings.Lines(got.out) {
			e := entry{}
			if strings.Contains(line, `"prepared"`) {
				if err := json.Unmarshal([]byte(line), &e); err != nil {
					t.Fatal(err)
				}
			}
			for _, m := range e.Payload.Messages {
				if m.Name == "history" {
					messages++
				}
			}
		}
		if messages != 2 {
			t.Errorf("export %v shows %d messages of the history, want the question and the answer", args, messages)
		}
	}
	mustSay(t, capstan(t, "logs", "second", "--data-dir", data).mustEnd(t, exit.OK).out, "5 messages")
}
